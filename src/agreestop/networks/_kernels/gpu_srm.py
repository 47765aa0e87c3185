"""The SRM recurrence of a whole chunk of steps in one GPU kernel, forward and backward, written in Triton.

    i_t = b i_{t-1} + x_t,    m_t = a m_{t-1} + i_t,    u_t = c m_t - θ r h_{t-1},    z_t = 1 where u_t ≥ θ,    h_t = r h_{t-1} + z_t

    backward, from t = T down to 1, with q_t = g(u_t - θ) (η_t + ∂L/∂z_t) the gradient in u_t:
    μ_t += c q_t,    ∂L/∂x_t = ι_t + μ_t,    η_t -= θ q_t,    then   ι_{t-1} = b ∂L/∂x_t,    μ_{t-1} = a μ_t,    η_{t-1} = r η_t

A GPU program takes a tile of neurons of one member through all steps. The state stays in registers, always in float32, so a chunk reads
each current once and writes each spike once. The time loop runs over segments of at most 16 steps. Only the steps of one segment are
unrolled, so their loads run together.

The backward pass needs u_t in reverse, and running the recurrence backwards is not stable. So three things are saved: the currents, which
are in memory already; the spikes as bits, 16 steps of a neuron per word; and (i, m, h) at the start of each segment except the first. The
backward pass runs a segment forward again, with spikes from the bits, so rounding cannot change one, and then backward.
Bytes per neuron and step, forward and backward, at T = 80 (s bytes per current: 4, or 2 in bfloat16):

    currents, bits and segments   (2 s + 0.9) + (3 s + 0.7) = 5 s + 1.6   21.6 in float32, 11.6 in bfloat16; saved: s + 0.7
    every u_t in float32          (2 s + 4.2) + (2 s + 4)   = 4 s + 8.2   24.2 in float32, 16.2 in bfloat16; saved: 4

Promise: operations and their order are those of `srm` step by step. Forward, each multiply-add rounds once on a GPU, so chunks give the
same bits as the whole sequence. PyTorch may round differently; a potential within rounding of the threshold may then spike in one and not
in the other. Gradients agree up to rounding. No atomic operation is used, so the same input always gives the same bits. Only `srm` calls
this module.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..srm_types import Constants, SRMState, empty_like, shaped_like
from ..surrogates import Surrogate
from .gpu_runtime import on_device_of
from .triton_kernels import backward_kernel, forward_kernel

LONGEST_SEGMENT = 16
"""Steps whose spike bits share a word. The backward pass holds this many slopes per neuron in registers."""
LONGEST_SEGMENT_LEARNED = 8
"""Shorter if constants are learned: the backward pass then also holds the states of a segment."""


# ---- memory layout


class _Layout(NamedTuple):
    """Memory layout of a step: its axes, slowest first; those outside and inside the member axis; and the sizes (outer, members, inner)."""

    order: tuple[int, ...]
    outside: tuple[int, ...]
    inside: tuple[int, ...]
    sizes: tuple[int, int, int]

    @staticmethod
    def of(currents: Tensor, by_member: bool) -> _Layout:
        """The layout of currents (T, ...); by_member: the first axis of a step is that of the constants."""
        shape, strides = currents.shape[1:], currents.stride()[1:]
        order = tuple(sorted(range(len(shape)), key=lambda axis: strides[axis], reverse=True))
        long = tuple(axis for axis in order if shape[axis] != 1)
        cut = long.index(0) if by_member else 0
        outside, inside = long[:cut], long[cut + by_member :]
        sizes = (math.prod(shape[axis] for axis in outside), shape[0] if by_member else 1, math.prod(shape[axis] for axis in inside))
        return _Layout(order, outside, inside, sizes)

    def strides(self, values: Tensor) -> tuple[int, int, int, int] | None:
        """Strides (time, outer, member, inner) of values (T, ...), or None if the values do not have this layout."""
        shape, strides = values.shape[1:], values.stride()[1:]
        for axes in (self.outside, self.inside):
            if any(strides[slow] != strides[fast] * shape[fast] for slow, fast in pairwise(axes)):
                return None
        outer, inner = (strides[axes[-1]] if axes else 1 for axes in (self.outside, self.inside))
        return values.stride(0), outer, strides[0] if self.sizes[1] > 1 else 0, inner

    def empty(self, like: Tensor, dtype: torch.dtype, steps: int | None = None) -> Tensor:
        """An empty step with the shape of a step of `like` (T, ...), or `steps` of them, dense in this layout."""
        lead, shape = () if steps is None else (steps,), like.shape[1:]
        dense = torch.empty([*lead, *(shape[axis] for axis in self.order)], dtype=dtype, device=like.device)
        return dense.permute(*range(len(lead)), *(len(lead) + self.order.index(axis) for axis in range(len(shape))))

    def empty_state(self, like: Tensor) -> SRMState:
        """An empty state for values like `like` (T, ...)."""
        return SRMState(*(self.empty(like, torch.float32) for _ in range(3)))

    def fitting(self, values: Tensor, copy: bool = True) -> Tensor:
        """The values (T, ...) if they have this layout; else a copy that has it, or empty memory for one."""
        if self.strides(values) is not None:
            return values
        dense = self.empty(values, values.dtype, len(values))
        return dense.copy_(values) if copy else dense

    def dense(self, state: SRMState | None) -> tuple[Tensor, ...] | None:
        """The tensors of a state in float32 and this layout, copied only if they are not."""
        return None if state is None else tuple(self._dense_step(step) for step in state)

    def _dense_step(self, step: Tensor) -> Tensor:
        wanted = self.empty(step.unsqueeze(0), torch.float32)
        return step if step.dtype == torch.float32 and step.stride() == wanted.stride() else wanted.copy_(step)


class Tile(NamedTuple):
    """Neurons of a program, a power of two, and its warps of 32 threads."""

    neurons: int
    warps: int


WIDE, INFERENCE, FORWARD, BACKWARD = Tile(512, 4), Tile(128, 2), Tile(256, 2), Tile(256, 4)
"""The fastest on an H200: forward with currents of two bytes, forward with four bytes (inference, training), and backward."""


class _Grid(NamedTuple):
    """Rows and columns of a tile, the number of programs, and the warps of each."""

    rows: int
    columns: int
    programs: int
    warps: int

    @staticmethod
    def of(sizes: tuple[int, int, int], tile: Tile) -> _Grid:
        """The grid for the tile, or for a smaller one if the tile would leave processors idle."""
        (outer, members, inner), (neurons, warps) = sizes, tile
        while neurons > 128 and math.prod(sizes) < 512 * neurons:
            neurons //= 2
        if math.prod(sizes) < 512 * neurons:
            neurons, warps = 32, 1
        columns = min(neurons, triton.next_power_of_2(inner))
        rows = min(neurons // columns, triton.next_power_of_2(outer))
        return _Grid(rows, columns, members * triton.cdiv(outer, rows) * triton.cdiv(inner, columns), warps)


def _segments(steps: int, longest: int) -> tuple[int, int]:
    """The fewest segments of at most `longest` steps, and the length that spreads the steps over them evenly."""
    count = -(-steps // longest)
    return count, -(-steps // count)


def _stride_of(constant: Tensor) -> int:
    return constant.stride(0) if constant.numel() > 1 else 0


# ---- the operator


def _by_member(constants: Iterable[Tensor]) -> bool:
    return any(value.numel() > 1 for value in constants)


def forward(
    currents: Tensor, before: SRMState | None, constants: Constants, longest: int, float16_spikes: bool = False
) -> tuple[Tensor, SRMState, Tensor, Tensor]:
    """Spikes, state after, and bits and checkpoints for the backward pass, with segments of at most `longest` steps; 0 saves nothing."""
    layout, size = _Layout.of(currents, _by_member(constants)), currents[0].numel()
    count, length = _segments(len(currents), longest or LONGEST_SEGMENT)
    spikes, after = empty_like(currents, torch.float16 if float16_spikes else None), layout.empty_state(currents)
    bits = torch.empty((count if longest else 0, size), dtype=torch.int16, device=currents.device)
    checkpoints = torch.empty((count - 1 if longest else 0, 3, size), dtype=torch.float32, device=currents.device)
    currents, filled = layout.fitting(currents), layout.fitting(spikes, copy=False)
    grid = _Grid.of(layout.sizes, WIDE if currents.element_size() < 4 else FORWARD if longest else INFERENCE)
    with on_device_of(currents):
        forward_kernel[(grid.programs,)](
            currents, filled, layout.dense(before), tuple(after), bits if longest else None, checkpoints if longest else None, constants,
            len(currents), count, layout.sizes, layout.strides(currents), layout.strides(filled),
            tuple(_stride_of(value) for value in constants), SEGMENT=length,
            EVEN=count * length == len(currents), ROWS=grid.rows, COLUMNS=grid.columns, num_warps=grid.warps,
            enable_fp_fusion=True,  # explicit, because Triton's default is about to change; what must round once says so itself
        )  # fmt: skip
    if filled is not spikes:
        spikes.copy_(filled)
    return spikes, after, bits, checkpoints


def backward(
    to_spikes: Tensor,
    to_after: SRMState | None,
    currents: Tensor,
    before: SRMState | None,
    bits: Tensor,
    checkpoints: Tensor,
    constants: Constants,
    surrogate: Surrogate,
    longest: int,
    for_state: bool,
    for_constants: bool,
) -> tuple[Tensor, SRMState | None, Tensor | None]:
    """Gradients in the currents, and, if needed, in the state before them and in the constants (5, members)."""
    layout = _Layout.of(currents, _by_member(constants))
    to_currents, to_before = empty_like(currents), layout.empty_state(currents) if for_state else None
    filled, currents, to_spikes = layout.fitting(to_currents, copy=False), layout.fitting(currents), layout.fitting(to_spikes)
    grid, (count, length) = _Grid.of(layout.sizes, BACKWARD), _segments(len(currents), longest)
    sums = torch.empty((grid.programs, 5), dtype=torch.float32, device=currents.device) if for_constants else None
    inside, outside = surrogate.factors
    with on_device_of(currents):
        backward_kernel[(grid.programs,)](
            to_spikes, layout.dense(to_after), filled, to_before and tuple(to_before), sums, currents, layout.dense(before),
            bits, checkpoints, constants, inside, outside, len(currents), count, layout.sizes,
            layout.strides(to_spikes), layout.strides(filled), layout.strides(currents), tuple(_stride_of(value) for value in constants),
            SLOPE=surrogate.name, SEGMENT=length, EVEN=count * length == len(currents), ROWS=grid.rows, COLUMNS=grid.columns,
            num_warps=grid.warps, enable_fp_fusion=True,  # as in `forward`
        )  # fmt: skip
    if filled is not to_currents:
        to_currents.copy_(filled)
    return to_currents, to_before, None if sums is None else sums.view(layout.sizes[1], -1, 5).sum(1).t()


class _FusedSRM(torch.autograd.Function):
    """One autograd node for the whole sequence."""

    @staticmethod
    def forward(ctx: Any, surrogate: Surrogate, longest: int, currents: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        before, constants = rest[:3], rest[3:]
        spikes, after, bits, checkpoints = forward(currents, _state(before), constants, longest)
        ctx.surrogate, ctx.longest = surrogate, longest
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(currents, bits, checkpoints, *rest)
        return spikes, *after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_spikes: Tensor | None, *to_after: Tensor | None) -> tuple[Tensor | None, ...]:
        currents, bits, checkpoints, *rest = ctx.saved_tensors
        before, constants = _state(rest[:3]), (rest[3], rest[4], rest[5], rest[6], rest[7])
        if to_spikes is None:
            to_spikes = torch.zeros_like(currents[:1]).expand_as(currents)
        needed = any(ctx.needs_input_grad[3:6]), any(ctx.needs_input_grad[6:])
        to_currents, to_before, found = backward(
            to_spikes, _state(to_after), currents, before, bits, checkpoints, constants, ctx.surrogate, ctx.longest, *needed
        )
        to_constants = [None] * 5 if found is None else shaped_like(constants, found)
        return None, None, to_currents, *(to_before or (None,) * 3), *to_constants


def _state(values: Sequence[Tensor | None]) -> SRMState | None:
    """The three tensors, with zeros for missing ones; None if all are missing."""
    given = next((value for value in values if value is not None), None)
    if given is None:
        return None
    return SRMState(*(torch.zeros_like(given) if value is None else value for value in values))


# ---- called by `srm`

INTERPRETED = not isinstance(forward_kernel, triton.JITFunction)
"""Whether TRITON_INTERPRET=1 was set when Triton was imported: the kernels then run on the CPU, slowly, for tests."""


def objection(currents: Tensor, dtype: torch.dtype, constants: Constants) -> str | None:
    """The reason why the kernels cannot run on these, or None."""
    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 3):
        return f"Triton is {triton.__version__} and 3.3 is needed"  # kernels that take tuples
    if not currents.numel():
        return f"the currents have shape {tuple(currents.shape)} and hold nothing"
    if not (currents.is_cuda or INTERPRETED):
        return f"the currents are on {currents.device} and a GPU is needed"
    if dtype != torch.float32 or currents.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"the currents are {currents.dtype} and the state {dtype}, and a float32 state is needed"
    shape = (currents.shape[1], *(1,) * (currents.ndim - 2))
    if any(value.numel() > 1 and tuple(value.shape) != shape for value in constants):
        return f"the constants have shape {tuple(constants[0].shape)} and one number or {shape} is needed"
    return None


def srm_fused(
    currents: Tensor, before: SRMState | None, constants: Constants, surrogate: Surrogate, float16_spikes: bool = False
) -> tuple[Tensor, SRMState]:
    """Spikes and the state after them, as `srm`; before None: the state is zero."""
    trained = torch.is_grad_enabled() and any(value.requires_grad for value in (currents, *(before or ()), *constants))
    if not trained:
        return forward(currents, before, constants, 0, float16_spikes=float16_spikes)[:2]
    longest = LONGEST_SEGMENT_LEARNED if any(value.requires_grad for value in constants) else LONGEST_SEGMENT
    spikes, *after = _FusedSRM.apply(surrogate, longest, currents, *(before or (None,) * 3), *constants)  # type: ignore[no-untyped-call]
    return spikes, SRMState(*after)
