"""The spike response model (SRM) neuron, over whole sequences, with a backward pass written by hand.

    u_t = Σ_{s ≤ t} ε(t - s + 1) x_s  -  θ Σ_{s < t} e^{-(t - s)/τ_r} z_s,        z_t = 1 where u_t ≥ θ

    ε(n) = c (a^n - b^n) / (a - b),   a = e^{-1/τ_m},  b = e^{-1/τ_s},  c = scale · (1 - a)(1 - b);   c n a^{n-1} where a = b

The current x_t arrives as its time step begins and u_t is read as it ends, so the lag n is at least one and a layer delays nothing.
The kernel sums to `scale`. Two exponential filters in a row make it, which needs no special case for the alpha kernel a = b:

    i_t = b i_{t-1} + x_t,    m_t = a m_{t-1} + i_t,    u_t = c m_t - θ r h_{t-1},    h_t = r h_{t-1} + z_t,    r = e^{-1/τ_r}

Gradients use the surrogate slope g(u_t - θ) for dz_t/du_t wherever z_t appears: the refractory path carries gradient too.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from agreestop.common.errors import InputError

from ._kernels.numba_runtime import numba_available
from ._kernels.triton_runtime import TRITON_AVAILABLE
from .surrogates import Surrogate


class SRMState(NamedTuple):
    """What a layer remembers between time steps, each of the shape of one step of its currents: i_t, m_t and h_t."""

    synapse: Tensor
    membrane: Tensor
    refractory: Tensor


Constants = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""a, b, r, θ and c."""


@dataclass(frozen=True)
class SRMParameters:
    """a, b, r in (0, 1) and θ > 0, tensors that broadcast against one step of the currents; the sum of the kernel; the slope."""

    membrane_decay: Tensor
    synapse_decay: Tensor
    refractory_decay: Tensor
    threshold: Tensor
    scale: float = 1.0
    surrogate: Surrogate = field(default_factory=Surrogate)

    @cached_property
    def constants(self) -> Constants:
        """a, b, r, θ and c."""
        a, b = self.membrane_decay, self.synapse_decay
        return a, b, self.refractory_decay, self.threshold, self.scale * (1 - a) * (1 - b)

    def to(self, dtype: torch.dtype) -> SRMParameters:
        """The same in another type."""
        values = (self.membrane_decay, self.synapse_decay, self.refractory_decay, self.threshold)
        if all(value.dtype == dtype for value in values):
            return self
        a, b, r, threshold = (value.to(dtype) for value in values)
        return SRMParameters(a, b, r, threshold, self.scale, self.surrogate)


def srm(
    currents: Tensor, state: SRMState | None, parameters: SRMParameters, fused: bool | None = None, narrow: bool = False
) -> tuple[Tensor, SRMState]:
    """Currents (T, ...) and the state before them, None at the start, to spikes (T, ...) of the same type and the state after them.

    The state is kept in the wider of the types of currents and parameters. Differentiable once, in currents, state, decays and threshold.
    fused: in one kernel (`fused.py`); None: on a GPU where Triton is installed and on a CPU where numba is (`cpu_srm.py`), for a float32
    state and constants that are one number or one a member, shaped (K, 1, ..., 1); False: step by step. narrow: spikes in float16 where a
    GPU computes them in one kernel and nothing is trained.
    """
    if currents.ndim < 2 or not len(currents) or not currents.is_floating_point():
        raise InputError(
            f"currents has shape {tuple(currents.shape)} and type {currents.dtype}: "
            "floating-point numbers (T, batch, ...) with T ≥ 1 are needed."
        )
    dtype = torch.promote_types(currents.dtype, parameters.threshold.dtype)
    constants = parameters.to(dtype).constants
    if state is not None and any(value.shape != currents.shape[1:] for value in state):
        raise InputError(
            f"state has shape {tuple(state.membrane.shape)} and a step of the currents {tuple(currents.shape[1:])}: "
            "give the state that the same inputs left, or None to start."
        )
    if fused or (fused is None and currents.is_cuda):
        found = _in_one_kernel(currents, state, constants, dtype, parameters.surrogate, fused is not None, narrow)
        if found is not None:
            return found
    if fused is None and currents.device.type == "cpu" and dtype == torch.float32 and numba_available():
        from ._kernels import cpu_srm  # imported here since it compiles its loops

        if cpu_srm.can_run(currents, state, constants):
            return cpu_srm.fused_srm(currents, state, constants, parameters.surrogate)
    if state is None:
        state = SRMState(*(torch.zeros_like(currents[0], dtype=dtype) for _ in range(3)))
    tensors = (currents, *state, *constants)
    if torch.is_grad_enabled() and any(value.requires_grad for value in tensors):
        spikes, *after = _SRM.apply(parameters.surrogate, *tensors)  # type: ignore[no-untyped-call]
        return spikes, SRMState(*after)
    return _advance(currents, state, *constants, None)


def _in_one_kernel(
    currents: Tensor,
    state: SRMState | None,
    constants: Constants,
    dtype: torch.dtype,
    surrogate: Surrogate,
    demanded: bool,
    narrow: bool,
) -> tuple[Tensor, SRMState] | None:
    """What the fused operator gives, or None where it cannot be used and was not demanded."""
    if not TRITON_AVAILABLE:
        if demanded:
            raise InputError("fused is True, but Triton is not installed: install triton, or give fused=None.")
        warnings.warn("Triton is not installed, so spiking layers run step by step on the GPU: install triton to fuse them.", stacklevel=3)
        return None
    from ._kernels.gpu_srm import objection, srm_fused  # imported here since Triton takes a while and a CPU needs none of it

    reason = objection(currents, dtype, constants)
    if reason is None:
        spikes, after = srm_fused(currents, state, constants, surrogate, narrow)
        return spikes, SRMState(*after)
    if demanded:
        raise InputError(f"fused is True, but {reason}: change that, or give fused=None.")
    return None


def _advance(
    currents: Tensor, state: SRMState, a: Tensor, b: Tensor, r: Tensor, threshold: Tensor, gain: Tensor, potentials: Tensor | None
) -> tuple[Tensor, SRMState]:
    """The recursion, in place on a copy of the state; fills `potentials` with every u_t where one is given."""
    synapse, membrane, refractory = (value.clone() for value in state)
    spikes, reset = _empty_like(currents), threshold * r
    kept: Iterable[Tensor] = repeat(torch.empty_like(membrane)) if potentials is None else potentials.unbind(0)
    for x, z, u in zip(currents.unbind(0), spikes.unbind(0), kept, strict=False):
        torch.addcmul(x, synapse, b, out=synapse)
        torch.addcmul(synapse, membrane, a, out=membrane)
        torch.mul(membrane, gain, out=u).addcmul_(refractory, reset, value=-1)
        torch.ge(u, threshold, out=z)
        torch.addcmul(z, refractory, r, out=refractory)
    return spikes, SRMState(synapse, membrane, refractory)


def _empty_like(currents: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """An empty tensor with the memory order of `currents`, also where one step was expanded over time."""
    if currents.stride(0):
        return torch.empty_like(currents, dtype=dtype)
    order = sorted(range(1, currents.ndim), key=currents.stride, reverse=True)
    dense = torch.empty([len(currents), *(currents.shape[axis] for axis in order)], dtype=dtype or currents.dtype, device=currents.device)
    return dense.permute(0, *(1 + order.index(axis) for axis in range(1, currents.ndim)))


class _SRM(torch.autograd.Function):
    """One node of the graph for the whole sequence. Keeps u_t alone; with learned constants x_t and z_t as well."""

    @staticmethod
    def forward(ctx: Any, surrogate: Surrogate, currents: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        state, (a, b, r, threshold, gain) = SRMState(*rest[:3]), rest[3:]
        potentials = _empty_like(currents, state.membrane.dtype)
        spikes, after = _advance(currents, state, a, b, r, threshold, gain, potentials)
        ctx.surrogate, ctx.learned = surrogate, any(ctx.needs_input_grad[5:])
        ctx.save_for_backward(potentials, *rest[3:], *((currents, spikes, *state) if ctx.learned else ()))
        return spikes, *after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        potentials, a, b, r, threshold, gain, *forward = ctx.saved_tensors
        to_spikes, to_synapse, to_membrane, to_refractory = gradients[0], *(value.clone() for value in gradients[1:])
        to_currents = _empty_like(potentials)
        kept: list[tuple[Tensor, Tensor, Tensor]] = []
        for z, u, x in zip(*(reversed(value.unbind(0)) for value in (to_spikes, potentials, to_currents)), strict=True):
            to_u = ctx.surrogate.slope(u - threshold).mul_(to_refractory + z)
            to_membrane.addcmul_(to_u, gain)
            torch.add(to_synapse, to_membrane, out=x)
            to_refractory.addcmul_(to_u, threshold, value=-1)
            if ctx.learned:
                kept.append((to_u, to_membrane.clone(), to_refractory.clone()))
            torch.mul(x, b, out=to_synapse)
            to_membrane.mul_(a)
            to_refractory.mul_(r)
        to_constants = _gradient_of_constants(to_currents, kept[::-1], forward, a, b, r) if ctx.learned else (None,) * 5
        shaped = (
            None if value is None else value.sum_to_size(constant.shape)
            for value, constant in zip(to_constants, (a, b, r, threshold, gain), strict=True)
        )
        return None, to_currents, to_synapse, to_membrane, to_refractory, *shaped


def _gradient_of_constants(
    to_currents: Tensor,
    kept: list[tuple[Tensor, Tensor, Tensor]],
    forward: list[Tensor],
    a: Tensor,
    b: Tensor,
    r: Tensor,
) -> tuple[Tensor, ...]:
    """Sums over time of gradient times state, for a, b, r, θ and c; the states are run again rather than kept."""
    currents, spikes, synapse, membrane, refractory = forward
    for_a, for_b, for_r, for_u, for_reset, for_gain = (torch.zeros_like(membrane) for _ in range(6))
    for x, z, to_synapse, (to_u, to_membrane, to_refractory) in zip(
        currents.unbind(0), spikes.unbind(0), to_currents.unbind(0), kept, strict=True
    ):
        for_a.addcmul_(to_membrane, membrane)
        for_b.addcmul_(to_synapse, synapse)
        for_r.addcmul_(to_refractory, refractory)
        for_reset.addcmul_(to_u, refractory)
        synapse = torch.addcmul(x, synapse, b)
        membrane = torch.addcmul(synapse, membrane, a)
        refractory = torch.addcmul(z, refractory, r)
        for_u.add_(to_u)
        for_gain.addcmul_(to_u, membrane)
    return for_a, for_b, for_r, -for_u - r * for_reset, for_gain


NORMALISATIONS = ("peak", "sum")
CONSTANTS = ("membrane_time", "synapse_time", "refractory_time", "threshold")


@final
@dataclass(frozen=True)
class Neuron:
    """Settings of a layer of SRM neurons: τ_m, τ_s, τ_r in time steps, the threshold θ, and the slope of its spikes.

    normalise "peak": the kernel is one at its highest, so that one spike lifts the membrane by its weight; "sum": it sums to one, so
    that a constant current is what the membrane settles at. learned=True trains the times and the threshold, one of each per
    member and layer; the kernel's sum stays as it was. τ_s = τ_m gives the alpha kernel.
    """

    membrane_time: float = 8.0
    synapse_time: float = 2.0
    refractory_time: float = 4.0
    threshold: float = 1.0
    normalise: str = "peak"
    surrogate: Surrogate = field(default_factory=Surrogate)
    learned: bool = False

    def __post_init__(self) -> None:
        for name in CONSTANTS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise InputError(f"{name} is {value!r}: give a positive, finite number.")
        if self.normalise not in NORMALISATIONS:
            raise InputError(f"normalise is {self.normalise!r}: choose one of {', '.join(NORMALISATIONS)}.")

    @property
    def scale(self) -> float:
        """The sum of the kernel."""
        if self.normalise == "sum":
            return 1.0
        lags = np.arange(math.ceil(max(self.membrane_time, self.synapse_time)) + 1)  # the peak lies between the two times
        a, b = math.exp(-1 / self.membrane_time), math.exp(-1 / self.synapse_time)
        kernel = np.convolve(a**lags, b**lags)[: len(lags)]
        return float(1 / ((1 - a) * (1 - b) * kernel.max()))


@final
class SRM(nn.Module):
    """A layer of SRM neurons of K members: currents (T, K, batch, ...) and state to spikes and state, as `srm`.

    The times and the threshold are kept as logarithms (K,), so whatever training makes of them they stay positive, and decays in (0, 1).
    `fused` and `narrow` are those of `srm`, and may be set. `rates` may be set too: neurons then answer with the rate ρ in [0, 1] at which
    they would spike if the current stayed, where the potential just reaches the threshold,

        scale · x - θ r ρ / (1 - r) = θ

    and remember nothing. It is a quick way to train a deep network before its spikes are trained.
    """

    def __init__(self, members: int, neuron: Neuron) -> None:
        super().__init__()
        self.scale, self.surrogate = neuron.scale, neuron.surrogate
        self.fused: bool | None = None
        self.float16_spikes = self.rates = False
        self._kept: tuple[list[Tensor], list[int], SRMParameters] | None = None
        for name in CONSTANTS:
            value = torch.full((members,), math.log(getattr(neuron, name)))
            if neuron.learned:
                self.register_parameter(f"log_{name}", nn.Parameter(value))
            else:
                self.register_buffer(f"log_{name}", value)

    def parameters_for(self, currents: Tensor) -> SRMParameters:
        """The constants, shaped to broadcast against a step of the currents, in float32 at least.

        They are kept while nothing trains them and nothing changes.
        """
        logs = [getattr(self, f"log_{name}") for name in CONSTANTS]
        if (torch.is_grad_enabled() or self.training) and any(value.requires_grad for value in logs):
            return self._parameters_for(currents)
        versions = [torch.is_inference_mode_enabled(), currents.ndim, *(value._version for value in logs)]
        if self._kept is None or self._kept[1] != versions or any(old is not new for old, new in zip(self._kept[0], logs, strict=True)):
            self._kept = (logs, versions, self._parameters_for(currents))
        return self._kept[2]

    def _parameters_for(self, currents: Tensor) -> SRMParameters:
        def shaped(name: str) -> Tensor:
            value: Tensor = getattr(self, f"log_{name}")
            return value.to(torch.promote_types(value.dtype, torch.float32)).view(-1, *(1,) * (currents.ndim - 2)).exp()

        membrane, synapse, refractory = (torch.exp(-1 / shaped(name)) for name in ("membrane_time", "synapse_time", "refractory_time"))
        return SRMParameters(membrane, synapse, refractory, shaped("threshold"), self.scale, self.surrogate)

    def forward(self, currents: Tensor, state: SRMState | None = None) -> tuple[Tensor, SRMState]:
        """Spikes (T, K, batch, ...) and the state after them."""
        parameters = self.parameters_for(currents)
        if self.rates:
            step = torch.zeros_like(currents[0], dtype=torch.float32)
            return steady_rates(currents, parameters), SRMState(step, step, step)
        return srm(currents, state, parameters, self.fused, self.float16_spikes)


def steady_rates(currents: Tensor, parameters: SRMParameters) -> Tensor:
    """The rates at which neurons settle on currents that stay."""
    r, threshold = parameters.refractory_decay, parameters.threshold
    start, slope = (-(1 - r) / r).to(currents.dtype), (parameters.scale * (1 - r) / (threshold * r)).to(currents.dtype)
    return nn.functional.hardtanh(torch.addcmul(start, currents, slope), 0.0, 1.0)
