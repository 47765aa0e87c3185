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
in the other. Gradients agree up to rounding. No atomic operation is used, so the same input always gives the same bits.

The operator is registered with `torch.library.custom_op`, so torch.compile sees one node. `triton_op` would trace its inside, where there
is nothing to fuse. Only `srm` calls it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ..srm_types import Constants, empty_like
from ..surrogates import Surrogate
from .gpu_srm_kernels import backward_kernel, forward_kernel
from .triton_runtime import on_device_of

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

    def dense(self, step: Tensor) -> Tensor:
        """A step in float32 and this layout; the step itself if it has both."""
        wanted = self.empty(step.unsqueeze(0), torch.float32)
        return step if step.dtype == torch.float32 and step.stride() == wanted.stride() else wanted.copy_(step)


class Tile(NamedTuple):
    """Neurons of a program, a power of two, and its warps of 32 threads."""

    neurons: int
    warps: int


WIDE, INFERENCE, FORWARD, BACKWARD = Tile(512, 4), Tile(128, 2), Tile(256, 2), Tile(256, 4)
"""The fastest on an H200: forward with currents of two bytes, forward with four bytes (inference, training), and backward."""


def _forward_tile(currents: Tensor, longest: int) -> Tile:
    if currents.element_size() < 4:
        return WIDE
    return FORWARD if longest else INFERENCE


def _fitted(tile: Tile, sizes: tuple[int, int, int]) -> Tile:
    """The tile, or a smaller one if it would leave processors idle."""
    neurons, total = tile.neurons, math.prod(sizes)
    while neurons > 128 and total < 512 * neurons:
        neurons //= 2
    return Tile(neurons, tile.warps) if total >= 512 * neurons else Tile(32, 1)


class _Grid(NamedTuple):
    rows: int
    columns: int
    programs: int

    @staticmethod
    def of(sizes: tuple[int, int, int], tile: Tile) -> _Grid:
        outer, members, inner = sizes
        columns = min(tile.neurons, triton.next_power_of_2(inner))
        rows = min(tile.neurons // columns, triton.next_power_of_2(outer))
        return _Grid(rows, columns, members * triton.cdiv(outer, rows) * triton.cdiv(inner, columns))


def _segments(steps: int, longest: int) -> tuple[int, int]:
    """The fewest segments of at most `longest` steps, and the length that spreads the steps over them evenly."""
    count = -(-steps // longest)
    return count, -(-steps // count)


def _stride_of(constant: Tensor) -> int:
    return constant.stride(0) if constant.numel() > 1 else 0


# ---- the operator

State = tuple[Tensor, Tensor, Tensor]


def _by_member(constants: Iterable[Tensor]) -> bool:
    return any(value.numel() > 1 for value in constants)


def _outputs(currents: Tensor, layout: _Layout, longest: int, float16_spikes: bool = False) -> tuple[Tensor, State, Tensor, Tensor]:
    """Empty spikes, state after, bits and checkpoints. longest 0: nothing is saved."""
    after = (layout.empty(currents, torch.float32), layout.empty(currents, torch.float32), layout.empty(currents, torch.float32))
    count = _segments(len(currents), longest)[0] if longest else 0
    size = math.prod(layout.sizes)
    bits = torch.empty((count, size), dtype=torch.int16, device=currents.device)
    checkpoints = torch.empty((max(count - 1, 0), 3, size), dtype=torch.float32, device=currents.device)
    return empty_like(currents, torch.float16 if float16_spikes else None), after, bits, checkpoints


def forward(
    currents: Tensor, before: State | None, constants: Constants, longest: int, tile: Tile | None = None, float16_spikes: bool = False
) -> tuple[Tensor, State, Tensor, Tensor]:
    """Spikes, state after, and bits and checkpoints for the backward pass, with segments of at most `longest` steps; 0 saves nothing."""
    layout = _Layout.of(currents, _by_member(constants))
    spikes, after, bits, checkpoints = _outputs(currents, layout, longest, float16_spikes)
    strides, filled = layout.strides(currents), spikes
    if strides is None:
        dense = layout.empty(currents, currents.dtype, len(currents)).copy_(currents)
        currents, strides = dense, layout.strides(dense)
    if layout.strides(spikes) is None:
        filled = layout.empty(currents, spikes.dtype, len(currents))
    tile = tile or _fitted(_forward_tile(currents, longest), layout.sizes)
    grid, (count, length) = _Grid.of(layout.sizes, tile), _segments(len(currents), longest or LONGEST_SEGMENT)
    with on_device_of(currents):
        forward_kernel[(grid.programs,)](
            currents, filled, None if before is None else tuple(layout.dense(value) for value in before), after,
            bits if longest else None, checkpoints if longest else None, constants, len(currents), count, layout.sizes, strides,
            layout.strides(filled), tuple(_stride_of(value) for value in constants), SEGMENT=length,
            EVEN=count * length == len(currents), ROWS=grid.rows, COLUMNS=grid.columns, num_warps=tile.warps,
            enable_fp_fusion=True,  # explicit, because Triton's default is about to change; what must round once says so itself
        )  # fmt: skip
    if filled is not spikes:
        spikes.copy_(filled)
    return spikes, after, bits, checkpoints


def backward(
    to_spikes: Tensor,
    to_after: State | None,
    currents: Tensor,
    before: State | None,
    bits: Tensor,
    checkpoints: Tensor,
    constants: Constants,
    surrogate: Surrogate,
    longest: int,
    for_state: bool,
    for_constants: bool,
    tile: Tile | None = None,
) -> tuple[Tensor, State | None, Tensor | None]:
    """Gradients in the currents, and, if needed, in the state before them and in the constants (5, members)."""
    layout = _Layout.of(currents, _by_member(constants))
    to_currents, to_before = empty_like(currents), None
    if for_state:
        to_before = (layout.empty(currents, torch.float32), layout.empty(currents, torch.float32), layout.empty(currents, torch.float32))
    filled = to_currents
    if layout.strides(filled) is None:
        filled = layout.empty(currents, currents.dtype, len(currents))
    if layout.strides(currents) is None:
        currents = layout.empty(currents, currents.dtype, len(currents)).copy_(currents)
    if layout.strides(to_spikes) is None:
        to_spikes = layout.empty(currents, to_spikes.dtype, len(currents)).copy_(to_spikes)
    tile = tile or _fitted(BACKWARD, layout.sizes)
    grid, (count, length) = _Grid.of(layout.sizes, tile), _segments(len(currents), longest)
    sums = torch.empty((grid.programs, 5), dtype=torch.float32, device=currents.device) if for_constants else None
    inside, outside = surrogate.factors
    with on_device_of(currents):
        backward_kernel[(grid.programs,)](
            to_spikes, None if to_after is None else tuple(layout.dense(value) for value in to_after), filled, to_before, sums,
            currents, None if before is None else tuple(layout.dense(value) for value in before), bits, checkpoints, constants, inside,
            outside, len(currents), count, layout.sizes, layout.strides(to_spikes), layout.strides(filled), layout.strides(currents),
            tuple(_stride_of(value) for value in constants), SLOPE=surrogate.name, SEGMENT=length,
            EVEN=count * length == len(currents), ROWS=grid.rows, COLUMNS=grid.columns, num_warps=tile.warps,
            enable_fp_fusion=True,  # explicit, because Triton's default is about to change; what must round once says so itself
        )  # fmt: skip
    if filled is not to_currents:
        to_currents.copy_(filled)
    return to_currents, to_before, None if sums is None else sums.view(layout.sizes[1], -1, 5).sum(1).t()


_STATE = "Tensor? synapse, Tensor? membrane, Tensor? refractory"
_CONSTANTS = "Tensor membrane_decay, Tensor synapse_decay, Tensor refractory_decay, Tensor threshold, Tensor gain"


@torch.library.custom_op(
    "agreestop::srm",
    mutates_args=(),
    schema=f"(Tensor currents, {_STATE}, {_CONSTANTS}, str slope, float sharpness, int longest)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _operator(*given: Any) -> tuple[Tensor, ...]:
    """Spikes, state after, bits and checkpoints."""
    spikes, after, bits, checkpoints = forward(given[0], _state(*given[1:4]), given[4:9], given[-1])
    return spikes, *after, bits, checkpoints


@_operator.register_fake
def _(currents: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    spikes, after, bits, checkpoints = _outputs(currents, _Layout.of(currents, _by_member(rest[3:8])), rest[-1])
    return spikes, *after, bits, checkpoints


@torch.library.custom_op(
    "agreestop::srm_backward",
    mutates_args=(),
    schema="(Tensor to_spikes, Tensor? to_synapse, Tensor? to_membrane, Tensor? to_refractory, Tensor currents, "
    f"{_STATE}, Tensor bits, Tensor checkpoints, {_CONSTANTS}, str slope, float sharpness, int longest, "
    "bool for_state, bool for_constants) -> Tensor[]",
)
def _operator_backward(*given: Any) -> list[Tensor]:
    """Gradients in the currents; then in the state, if needed; then in the constants (5, members), if needed."""
    to_after, before, constants = given[1:4], given[5:8], given[10:15]
    to_currents, to_before, to_constants = backward(
        given[0], _state(*to_after), given[4], _state(*before), given[8], given[9], constants, Surrogate(*given[15:17]), *given[17:]
    )
    return [to_currents, *(to_before or ()), *(() if to_constants is None else (to_constants,))]


@_operator_backward.register_fake
def _(*given: Any) -> list[Tensor]:
    currents, constants, for_state, for_constants = given[4], given[10:15], *given[-2:]
    layout = _Layout.of(currents, _by_member(constants))
    to_state = [layout.empty(currents, torch.float32) for _ in range(3)] if for_state else []
    to_constants = [currents.new_empty((layout.sizes[1], 5), dtype=torch.float32).t()] if for_constants else []
    return [empty_like(currents), *to_state, *to_constants]


def _state(*values: Tensor | None) -> State | None:
    """The three tensors, with zeros for missing ones; None if all are missing."""
    given = next((value for value in values if value is not None), None)
    if given is None:
        return None
    synapse, membrane, refractory = (torch.zeros_like(given) if value is None else value for value in values)
    return synapse, membrane, refractory


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    currents, before, constants = inputs[0], inputs[1:4], inputs[4:9]
    ctx.settings = inputs[9:]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(currents, *before, *output[4:], *constants)


def _gradients(ctx: Any, *arrived: Tensor | None) -> tuple[Tensor | None, ...]:
    """Gradients in all inputs of the operator, from the gradients in its outputs."""
    kept = ctx.saved_tensors
    currents, constants = kept[0], kept[6:]
    to_spikes = torch.zeros_like(currents[:1]).expand_as(currents) if arrived[0] is None else arrived[0]
    for_state, for_constants = any(ctx.needs_input_grad[1:4]), any(ctx.needs_input_grad[4:9])
    found = _operator_backward(to_spikes, *arrived[1:4], *kept, *ctx.settings, for_state, for_constants)
    to_state = found[1:4] if for_state else (None,) * 3
    to_constants: Iterable[Tensor | None] = (None,) * 5
    if for_constants:
        to_constants = (
            (row if value.numel() > 1 else row.sum()).reshape(value.shape) for row, value in zip(found[-1], constants, strict=True)
        )
    return found[0], *to_state, *to_constants, None, None, None


_operator.register_autograd(_gradients, setup_context=_save)


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
    currents: Tensor, before: State | None, constants: Constants, surrogate: Surrogate, float16_spikes: bool = False
) -> tuple[Tensor, State]:
    """Spikes and the state after them, as `srm`; before None: the state is zero."""
    given = (currents, *(before or ()), *constants)
    longest = 0
    if torch.is_grad_enabled() and any(value.requires_grad for value in given):
        longest = LONGEST_SEGMENT_LEARNED if any(value.requires_grad for value in constants) else LONGEST_SEGMENT
    elif not torch.compiler.is_compiling():
        # the dispatch of a registered operator takes longer than the kernel
        return forward(currents, before, constants, 0, float16_spikes=float16_spikes)[:2]
    spikes, synapse, membrane, refractory, _, _ = _operator(
        currents, *(before or (None,) * 3), *constants, surrogate.name, surrogate.gain, longest
    )
    return spikes, (synapse, membrane, refractory)
