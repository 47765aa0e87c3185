"""The spike response model (SRM) neuron, over whole sequences, with a backward pass
written by hand.

    u_t = Σ_{s ≤ t} ε(t - s + 1) x_s  -  θ Σ_{s < t} e^{-(t - s)/τ_r} z_s,    z_t = 1 where u_t ≥ θ

    ε(n) = c (a^n - b^n) / (a - b),   or c n a^{n-1} where a = b
    a = e^{-1/τ_m},   b = e^{-1/τ_s},   c = scale · (1 - a)(1 - b)

The current x_t arrives as its time step begins and u_t is read as it ends, so the lag n is at least
one and a layer delays nothing. The kernel sums to `scale`. Two exponential filters in a row make
it, which needs no special case for the alpha kernel a = b:

    i_t = b i_{t-1} + x_t,           m_t = a m_{t-1} + i_t,    u_t = c m_t - θ r h_{t-1}
    h_t = r h_{t-1} + z_t,           r = e^{-1/τ_r}

Gradients use the surrogate slope g(u_t - θ) for dz_t/du_t wherever z_t appears: the refractory path
carries gradient too.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from agreestop.common import InputError, is_number
from agreestop.kernels.srm import (
    Chunk,
    Kernels,
    SRMParameters,
    SRMState,
    Surrogate,
    empty_like,
    run_kernels,
)

from . import operations


def srm(
    currents: Tensor,
    state: SRMState | None,
    parameters: SRMParameters,
    fused: bool | None = None,
    float16_spikes: bool = False,
) -> tuple[Tensor, SRMState]:
    """Run a layer: currents (T, ...) and the state before them (None at the start) give spikes
    (T, ...) and the state after them.

    Spikes have the dtype of the currents. The state has the wider of the dtypes of currents and
    parameters. The result can be differentiated once, in currents, state, decays and threshold.

    fused chooses the implementation. True: one Triton kernel (`kernels.gpu.srm`). False: step by
    step in PyTorch. None: the Triton kernel on a GPU and the numba loop (`kernels.cpu.srm`) on a
    CPU, if they are installed, the state is float32 and each constant is one number or one number
    per member, with shape (K, 1, ..., 1).

    float16_spikes returns float16 spikes. It has an effect only in the Triton kernel, and only when
    nothing is trained.
    """
    if currents.ndim < 2 or not len(currents) or not currents.is_floating_point():
        raise InputError(
            f"currents has shape {tuple(currents.shape)} and type {currents.dtype}: floating-point "
            "numbers (T, batch, ...) with T ≥ 1 are needed."
        )
    dtype = torch.promote_types(currents.dtype, parameters.threshold.dtype)
    constants = parameters.to(dtype).constants
    if state is not None and any(value.shape != currents.shape[1:] for value in state):
        raise InputError(
            f"state has shape {tuple(state.membrane.shape)} and a step of the currents "
            f"{tuple(currents.shape[1:])}: give the state that the same inputs left, or None to "
            "start."
        )
    done = operations.srm(currents, state, constants, parameters.surrogate, fused, float16_spikes)
    if done is not None:
        return done
    if state is None:
        state = SRMState(*(torch.zeros_like(currents[0], dtype=dtype) for _ in range(3)))
    tensors = (currents, *state, *constants)
    if torch.is_grad_enabled() and any(value.requires_grad for value in tensors):
        return run_kernels(STEP_BY_STEP, parameters.surrogate, Chunk(currents, state, constants))
    return _advance(currents, state, *constants, None)


def _advance(
    currents: Tensor,
    state: SRMState,
    a: Tensor,
    b: Tensor,
    r: Tensor,
    threshold: Tensor,
    gain: Tensor,
    potentials: Tensor | None,
) -> tuple[Tensor, SRMState]:
    """Run the recursion in place on a copy of the state.

    Write every u_t into `potentials`, if given.
    """
    synapse, membrane, refractory = (value.clone() for value in state)
    spikes, reset = empty_like(currents), threshold * r
    kept: Iterable[Tensor] = (
        repeat(torch.empty_like(membrane)) if potentials is None else potentials.unbind(0)
    )
    for x, z, u in zip(currents.unbind(0), spikes.unbind(0), kept, strict=False):
        torch.addcmul(x, synapse, b, out=synapse)
        torch.addcmul(synapse, membrane, a, out=membrane)
        torch.mul(membrane, gain, out=u).addcmul_(refractory, reset, value=-1)
        torch.ge(u, threshold, out=z)
        torch.addcmul(z, refractory, r, out=refractory)
    return spikes, SRMState(synapse, membrane, refractory)


def _forward(chunk: Chunk, learned: bool) -> tuple[Tensor, SRMState, Sequence[Tensor]]:
    assert chunk.before is not None
    potentials = empty_like(chunk.currents, chunk.before.membrane.dtype)
    spikes, after = _advance(chunk.currents, chunk.before, *chunk.constants, potentials)
    return spikes, after, (potentials, spikes) if learned else (potentials,)


def _backward(
    chunk: Chunk,
    saved: Sequence[Tensor],
    surrogate: Surrogate,
    to_spikes: Tensor,
    to_after: SRMState | None,
    learned: bool,
) -> tuple[Tensor, SRMState, Sequence[Tensor] | None]:
    potentials, (a, b, r, threshold, gain) = saved[0], chunk.constants
    after = to_after or (torch.zeros_like(potentials[0]),) * 3
    to_synapse, to_membrane, to_refractory = (value.clone() for value in after)
    to_currents = empty_like(potentials)
    kept: list[tuple[Tensor, Tensor, Tensor]] = []
    for z, u, x in zip(
        *(reversed(value.unbind(0)) for value in (to_spikes, potentials, to_currents)), strict=True
    ):
        to_u = surrogate.slope(u - threshold).mul_(to_refractory + z)
        to_membrane.addcmul_(to_u, gain)
        torch.add(to_synapse, to_membrane, out=x)
        to_refractory.addcmul_(to_u, threshold, value=-1)
        if learned:
            kept.append((to_u, to_membrane.clone(), to_refractory.clone()))
        torch.mul(x, b, out=to_synapse)
        to_membrane.mul_(a)
        to_refractory.mul_(r)
    sums = _gradient_of_constants(chunk, saved[1], to_currents, kept[::-1]) if learned else None
    return to_currents, SRMState(to_synapse, to_membrane, to_refractory), sums


STEP_BY_STEP = Kernels(_forward, _backward)
"""In PyTorch's own operators. It saves every u_t, and every z_t if constants are learned."""


def _gradient_of_constants(
    chunk: Chunk, spikes: Tensor, to_currents: Tensor, kept: list[tuple[Tensor, Tensor, Tensor]]
) -> Sequence[Tensor]:
    """Sums over time of gradient times state, for a, b, r, θ and c.

    The states are computed again, not stored.
    """
    assert chunk.before is not None
    (a, b, r, _, _), (synapse, membrane, refractory) = chunk.constants, chunk.before
    for_a, for_b, for_r, for_u, for_reset, for_gain = (torch.zeros_like(membrane) for _ in range(6))
    for x, z, to_synapse, (to_u, to_membrane, to_refractory) in zip(
        chunk.currents.unbind(0), spikes.unbind(0), to_currents.unbind(0), kept, strict=True
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
    sums = (for_a, for_b, for_r, -for_u - r * for_reset, for_gain)
    return [
        value.sum_to_size(constant.shape)
        for value, constant in zip(sums, chunk.constants, strict=True)
    ]


NORMALISATIONS = ("peak", "sum")
CONSTANTS = ("membrane_time", "synapse_time", "refractory_time", "threshold")
LARGEST = 10_000
"""The largest time constant and threshold.

The kernel of a longer time takes long to compute, and in float32 its decay is nearly 1.
"""


@final
@dataclass(frozen=True)
class Neuron:
    """Settings of a layer of SRM neurons: τ_m, τ_s, τ_r in time steps, the threshold θ, and the
    surrogate gradient.

    normalise="peak" scales the kernel to a maximum of one: one spike then raises the potential by
    its weight. normalise="sum" scales it to a sum of one: the potential then converges to a
    constant current. learned=True trains the times and the threshold, one of each per member and
    layer; the sum of the kernel does not change. τ_s = τ_m gives the alpha kernel.
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
            if not is_number(value) or not 0 < value <= LARGEST:
                raise InputError(
                    f"{name} is {value!r}: give a positive number of at most {LARGEST:,}."
                )
            object.__setattr__(self, name, value.item() if isinstance(value, np.generic) else value)
        if isinstance(self.surrogate, str):
            object.__setattr__(self, "surrogate", Surrogate(self.surrogate))
        if not isinstance(self.surrogate, Surrogate) or not isinstance(self.learned, bool):
            raise InputError(
                f"surrogate is {self.surrogate!r} and learned {self.learned!r}: a Surrogate, for "
                "example Surrogate('arctan'), and True or False are needed."
            )
        if self.normalise not in NORMALISATIONS:
            raise InputError(
                f"normalise is {self.normalise!r}: choose one of {', '.join(NORMALISATIONS)}."
            )

    @property
    def scale(self) -> float:
        """The sum of the kernel."""
        if self.normalise == "sum":
            return 1.0
        # the peak lies between the two time constants
        lags = np.arange(math.ceil(max(self.membrane_time, self.synapse_time)) + 1)
        a, b = math.exp(-1 / self.membrane_time), math.exp(-1 / self.synapse_time)
        kernel = np.convolve(a**lags, b**lags)[: len(lags)]
        return float(1 / ((1 - a) * (1 - b) * kernel.max()))


@final
class SRM(nn.Module):
    """A layer of SRM neurons of K members: currents (T, K, batch, ...) and state to spikes and
    state, as `srm`.

    The times and the threshold are stored as logarithms (K,), so training keeps them positive
    and keeps the decays in (0, 1). The attributes `fused` and `float16_spikes` are arguments of
    `srm` and may be set. `rates = True` replaces spikes by rates: the output is the rate ρ in
    [0, 1] at which a neuron spikes under a constant current, at which the potential just reaches
    the threshold:

        scale · x - θ r ρ / (1 - r) = θ

    Rates have no state. They are a fast way to pre-train a deep network before its
    spikes are trained.
    """

    def __init__(self, members: int, neuron: Neuron) -> None:
        super().__init__()
        self.scale, self.surrogate, self.learned = neuron.scale, neuron.surrogate, neuron.learned
        self.fused: bool | None = None
        self.float16_spikes = self.rates = False
        self._cached: tuple[list[Tensor], list[int], SRMParameters] | None = None
        for name in CONSTANTS:
            value = torch.full((members,), math.log(getattr(neuron, name)))
            if neuron.learned:
                self.register_parameter(f"log_{name}", nn.Parameter(value))
            else:
                self.register_buffer(f"log_{name}", value)

    def parameters_for(self, currents: Tensor) -> SRMParameters:
        """The constants in float32 or wider, with a shape that broadcasts against a step
        of the currents.

        They are cached as long as they are not trained and do not change.
        """
        logs = [getattr(self, f"log_{name}") for name in CONSTANTS]
        if (torch.is_grad_enabled() or self.training) and any(
            value.requires_grad for value in logs
        ):
            return self._parameters_for(currents)
        versions = [
            torch.is_inference_mode_enabled(),
            currents.ndim,
            *(value._version for value in logs),
        ]
        cached = self._cached
        if (
            cached is None
            or cached[1] != versions
            or any(old is not new for old, new in zip(cached[0], logs, strict=True))
        ):
            self._cached = cached = (logs, versions, self._parameters_for(currents))
        return cached[2]

    def _parameters_for(self, currents: Tensor) -> SRMParameters:
        logs: list[Tensor] = [getattr(self, f"log_{name}") for name in CONSTANTS]
        shape = (-1, *(1,) * (currents.ndim - 2))
        *times, threshold = (
            value.to(torch.promote_types(value.dtype, torch.float32)).view(shape).exp()
            for value in logs
        )
        membrane, synapse, refractory = (torch.exp(-1 / time) for time in times)
        return SRMParameters(membrane, synapse, refractory, threshold, self.scale, self.surrogate)

    def forward(self, currents: Tensor, state: SRMState | None = None) -> tuple[Tensor, SRMState]:
        """Spikes (T, K, batch, ...) and the state after them."""
        parameters = self.parameters_for(currents)
        if self.rates:
            step = torch.zeros_like(currents[0], dtype=torch.float32)
            return steady_rates(currents, parameters), SRMState(step, step, step)
        return srm(currents, state, parameters, self.fused, self.float16_spikes)


def steady_rates(currents: Tensor, parameters: SRMParameters) -> Tensor:
    """The rates ρ of neurons under constant currents, with the shape of the currents."""
    r, threshold = parameters.refractory_decay, parameters.threshold
    start = (-(1 - r) / r).to(currents.dtype)
    slope = (parameters.scale * (1 - r) / (threshold * r)).to(currents.dtype)
    return nn.functional.hardtanh(torch.addcmul(start, currents, slope), 0.0, 1.0)
