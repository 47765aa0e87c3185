"""What networks and kernels share: surrogate gradients, state, parameters, memory layout and
autograd node of the SRM neuron, and a batch normalisation in training.

Surrogate gradients are slopes g that replace the derivative of a spike.

    forward   z = 1 where v ≥ 0, else 0          (v is the potential minus the threshold)
    backward  dz/dv := g(v)

Every slope except SuperSpike is the derivative of a smooth step from 0 to 1, so it integrates to
one. SuperSpike has a peak of one. The default gains give every slope a peak of one, so the gradient
through the refractory path does not grow.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from agreestop.common import InputError


def arctan(v: Tensor, gain: float) -> Tensor:
    """g(v) = (k/2) / (1 + (π k v / 2)²), the derivative of 1/2 + arctan(π k v / 2) / π."""
    return v.mul(0.5 * math.pi * gain).square_().add_(1).reciprocal_().mul_(0.5 * gain)


def fast_sigmoid(v: Tensor, gain: float) -> Tensor:
    """g(v) = (k/2) / (1 + k |v|)², the derivative of (1 + k v / (1 + k |v|)) / 2."""
    return v.abs().mul_(gain).add_(1).square_().reciprocal_().mul_(0.5 * gain)


def sigmoid(v: Tensor, gain: float) -> Tensor:
    """g(v) = k σ(k v) (1 - σ(k v)), the derivative of the logistic function σ(k v)."""
    s = v.mul(gain).sigmoid_()
    return s.mul_(1 - s).mul_(gain)


def triangle(v: Tensor, gain: float) -> Tensor:
    """g(v) = k max(0, 1 - k |v|)."""
    return v.abs().mul_(-gain).add_(1).clamp_(min=0).mul_(gain)


def superspike(v: Tensor, gain: float) -> Tensor:
    """g(v) = 1 / (1 + k |v|)², of Zenke and Ganguli (2018)."""
    return v.abs().mul_(gain).add_(1).square_().reciprocal_()


SLOPES: dict[str, tuple[Callable[[Tensor, float], Tensor], float]] = {
    "arctan": (arctan, 2.0),
    "fast-sigmoid": (fast_sigmoid, 2.0),
    "sigmoid": (sigmoid, 4.0),
    "triangle": (triangle, 1.0),
    "superspike": (superspike, 10.0),
}


@final
@dataclass(frozen=True)
class Surrogate:
    """A surrogate gradient: the name of a slope g, one of SLOPES, and its gain k. gain=None
    takes the default gain of the slope.
    """

    name: str = "arctan"
    gain: float | None = None

    def __post_init__(self) -> None:
        if self.name not in SLOPES:
            raise InputError(f"surrogate is {self.name!r}: choose one of {', '.join(SLOPES)}.")
        gain = SLOPES[self.name][1] if self.gain is None else self.gain
        if isinstance(gain, bool) or not isinstance(gain, (int, float)) or not 0 < gain < math.inf:
            raise InputError(f"gain of the surrogate is {gain!r}: give a positive, finite number.")
        object.__setattr__(self, "gain", float(gain))

    def slope(self, v: Tensor) -> Tensor:
        """g(v), in a new tensor of the shape of v."""
        assert self.gain is not None
        return SLOPES[self.name][0](v, self.gain)

    @property
    def factors(self) -> tuple[float, float]:
        """The factor of v and the factor of the result in g(v), for the kernels."""
        k = self.gain
        assert k is not None
        inside = 0.5 * math.pi * k if self.name == "arctan" else k
        return inside, {"arctan": 0.5 * k, "fast-sigmoid": 0.5 * k, "superspike": 1.0}.get(
            self.name, k
        )


class SRMState(NamedTuple):
    """State of a layer between time steps: i_t, m_t and h_t, each with the shape of one step
    of the currents.
    """

    synapse: Tensor
    membrane: Tensor
    refractory: Tensor

    def members(self, chosen: slice) -> "SRMState":
        """The state of some members, which are the first axis."""
        return SRMState(*(value[chosen] for value in self))


Constants = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""a, b, r, θ and c."""


@dataclass(frozen=True)
class SRMParameters:
    """a, b, r in (0, 1) and θ > 0 as tensors that broadcast against one step of the currents;
    the sum of the kernel; the surrogate.
    """

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

    @cached_property
    def table(self) -> Tensor:
        """a, b, r, θ and c of one member, (5,)."""
        return torch.cat([value.flatten() for value in self.constants])

    def to(self, dtype: torch.dtype) -> "SRMParameters":
        """Convert to another data type; the same object if it has it, because it caches
        its constants.
        """
        values = (self.membrane_decay, self.synapse_decay, self.refractory_decay, self.threshold)
        if all(value.dtype == dtype for value in values):
            return self
        a, b, r, threshold = (value.to(dtype) for value in values)
        return SRMParameters(a, b, r, threshold, self.scale, self.surrogate)


class Chunk(NamedTuple):
    """What the recurrence starts from: currents (T, ...), the state before them (None: zeros),
    and the constants.
    """

    currents: Tensor
    before: SRMState | None
    constants: Constants


# ---- memory

Allocate = Callable[[Sequence[int]], Tensor]


def empty_like(
    currents: Tensor, dtype: torch.dtype | None = None, allocate: Allocate | None = None
) -> Tensor:
    """An empty, dense tensor with the memory order of `currents`.

    Axes that are expanded, such as the time of a held image, are slowest.
    """
    order = sorted(
        range(currents.ndim), key=lambda axis: currents.stride(axis) or math.inf, reverse=True
    )
    return _in_order(
        order,
        currents.shape,
        allocate or partial(torch.empty, dtype=dtype or currents.dtype, device=currents.device),
    )


def _in_order(order: Sequence[int], shape: Sequence[int], allocate: Allocate) -> Tensor:
    """An empty, dense tensor of this shape; `order` lists its axes, slowest first."""
    return allocate([shape[axis] for axis in order]).permute(
        [order.index(axis) for axis in range(len(shape))]
    )


class Layout(NamedTuple):
    """Memory layout of a step: its axes, slowest first; those outside and inside the member
    axis; and the sizes (outer, members, inner).
    """

    order: tuple[int, ...]
    outside: tuple[int, ...]
    inside: tuple[int, ...]
    sizes: tuple[int, int, int]

    @staticmethod
    def of(chunk: Chunk) -> "Layout":
        """The layout of currents (T, K, ...), or (T, ...) if all neurons have the
        same constants.
        """
        shape, strides, by_member = (
            chunk.currents.shape[1:],
            chunk.currents.stride()[1:],
            any(value.numel() > 1 for value in chunk.constants),
        )
        order = tuple(sorted(range(len(shape)), key=lambda axis: strides[axis], reverse=True))
        long = tuple(axis for axis in order if shape[axis] != 1)
        cut = long.index(0) if by_member else 0
        outside, inside = long[:cut], long[cut + by_member :]
        sizes = (
            math.prod(shape[axis] for axis in outside),
            shape[0] if by_member else 1,
            math.prod(shape[axis] for axis in inside),
        )
        return Layout(order, outside, inside, sizes)

    def strides(self, values: Tensor) -> tuple[int, int, int] | None:
        """Strides (time, outer, member) of values (T, ...), or None if they do not have this
        layout with a dense inner axis.
        """
        shape, strides = values.shape[1:], values.stride()[1:]
        for axes in (self.outside, self.inside):
            if any(strides[slow] != strides[fast] * shape[fast] for slow, fast in pairwise(axes)):
                return None
        if self.inside and strides[self.inside[-1]] != 1:
            return None
        return (
            values.stride(0),
            strides[self.outside[-1]] if self.outside else 1,
            strides[0] if self.sizes[1] > 1 else 0,
        )

    def fitting(self, values: Tensor, copy: bool = True) -> Tensor:
        """The values (T, ...) if they have this layout; else a copy that has it, or empty
        memory for one.
        """
        if self.strides(values) is not None:
            return values
        order = (0, *(1 + axis for axis in self.order))
        dense = _in_order(
            order, values.shape, partial(torch.empty, dtype=values.dtype, device=values.device)
        )
        return dense.copy_(values) if copy else dense

    def empty_state(self, currents: Tensor, allocate: Allocate | None = None) -> SRMState:
        """An empty float32 state for currents (T, ...), dense in this layout."""
        allocate = allocate or partial(torch.empty, dtype=torch.float32, device=currents.device)
        return SRMState(*(_in_order(self.order, currents.shape[1:], allocate) for _ in range(3)))

    def dense(self, state: SRMState | None) -> tuple[Tensor, ...] | None:
        """The tensors of a state in float32 and dense in this layout, copied only
        if they are not.
        """
        if state is None:
            return None
        wanted = self.empty_state(state.synapse.unsqueeze(0))
        return tuple(
            step
            if step.dtype == torch.float32 and step.stride() == dense.stride()
            else dense.copy_(step)
            for step, dense in zip(state, wanted, strict=True)
        )


# ---- autograd


class Kernels(NamedTuple):
    """One implementation of the recurrence over a chunk of steps.

    forward(chunk, learned) gives spikes, the state after them, and tensors to save for the
    backward pass. learned: whether the constants need a gradient. backward(chunk, saved,
    surrogate, gradient in the spikes, gradient in the state after them or None, learned) gives the
    gradients in the currents, in the state before them if there is one, and in the constants
    (5, members) if they are learned.
    """

    forward: Callable[[Chunk, bool], tuple[Tensor, SRMState, Sequence[Tensor]]]
    backward: Callable[..., tuple[Tensor, SRMState | None, Tensor | Sequence[Tensor] | None]]


def run_kernels(kernels: Kernels, surrogate: Surrogate, chunk: Chunk) -> tuple[Tensor, SRMState]:
    """Spikes and the state after them, differentiable in currents, state and constants."""
    tensors = (chunk.currents, *(chunk.before or (None,) * 3), *chunk.constants)
    spikes, *after = _SRMFunction.apply(kernels, surrogate, *tensors)  # type: ignore[no-untyped-call]
    return spikes, SRMState(*after)


class _SRMFunction(torch.autograd.Function):
    """One autograd node for the whole sequence.

    It saves the currents, the state before them, and what the kernels ask for.
    """

    @staticmethod
    def forward(
        ctx: Any, kernels: Kernels, surrogate: Surrogate, currents: Tensor, *rest: Any
    ) -> tuple[Tensor, ...]:
        spikes, after, saved = kernels.forward(
            Chunk(currents, _state(rest[:3]), rest[3:]), any(ctx.needs_input_grad[6:])
        )
        ctx.kernels, ctx.surrogate = kernels, surrogate
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(currents, *rest, *saved)
        return spikes, *after

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, to_spikes: Tensor | None, *to_after: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        currents, *rest = ctx.saved_tensors
        chunk, saved = Chunk(currents, _state(rest[:3]), tuple(rest[3:8])), rest[8:]
        if to_spikes is None:
            to_spikes = torch.zeros_like(currents[:1]).expand_as(currents)
        learned = any(ctx.needs_input_grad[6:])
        to_currents, to_before, sums = ctx.kernels.backward(
            chunk, saved, ctx.surrogate, to_spikes, _state(to_after), learned
        )
        to_constants = (
            [None] * 5
            if sums is None
            else [_like(value, row) for value, row in zip(chunk.constants, sums, strict=True)]
        )
        return None, None, to_currents, *(to_before or (None,) * 3), *to_constants


def _like(constant: Tensor, sums: Tensor) -> Tensor:
    """Sums (members,) in the type and shape of the constant.

    One that the members share gets the sum over them.
    """
    return (sums if constant.numel() > 1 else sums.sum()).to(constant.dtype).reshape(constant.shape)


def _state(values: Sequence[Tensor | None]) -> SRMState | None:
    """The three tensors, with zeros for missing ones; None if all are missing."""
    given = next((value for value in values if value is not None), None)
    return (
        None
        if given is None
        else SRMState(*(torch.zeros_like(given) if value is None else value for value in values))
    )


class Norm(NamedTuple):
    """Weight, bias and running statistics (channels,), which move on in place, and the constants
    of a batch normalisation in training.
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    momentum: float
    epsilon: float
