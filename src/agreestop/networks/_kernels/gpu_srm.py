"""The SRM recurrence of a whole chunk of steps in one GPU kernel, forward and backward, written in Triton.

    i_t = b i_{t-1} + x_t,    m_t = a m_{t-1} + i_t,    u_t = c m_t - θ r h_{t-1},    z_t = 1 where u_t ≥ θ,    h_t = r h_{t-1} + z_t

    backward, from t = T down to 1, with q_t = g(u_t - θ) (η_t + ∂L/∂z_t) the gradient in u_t:
    μ_t += c q_t,    ∂L/∂x_t = ι_t + μ_t,    η_t -= θ q_t,    then   ι_{t-1} = b ∂L/∂x_t,    μ_{t-1} = a μ_t,    η_{t-1} = r η_t

A program of the GPU takes a tile of neurons of one member through all steps with its state in registers, always in float32, so a chunk
reads each current once and writes each spike once. Nothing is unrolled over T: the time loop runs over segments of at most 16 steps, and
only the steps of one segment are written out, so that their loads are under way together.

What the backward pass keeps. It needs u_t in reverse, and the recurrence cannot be run backwards stably. Kept are the currents, which
lie in memory already, the spikes as bits, 16 steps of a neuron to a word, and (i, m, h) at the start of each segment but the first; the
backward pass runs a segment forward again, with the spikes taken from the bits, so that rounding can move none, and then back.
Bytes for a neuron and step, forward and backward, at T = 80 (s bytes to a current: 4, or 2 in bf16):

    currents, bits and segments   (2 s + 0.9) + (3 s + 0.7) = 5 s + 1.6   21.6 in float32, 11.6 in bf16; held: s + 0.7
    every u_t in float32          (2 s + 4.2) + (2 s + 4)   = 4 s + 8.2   24.2 in float32, 16.2 in bf16; held: 4

Promise: the operations and their order are those of `srm` without fusion. Forward, each multiply-and-add rounds once on a GPU, so chunks
give the bits of the whole; PyTorch may round otherwise, and then a potential within rounding of the threshold may spike in one and not
in the other. Gradients agree to rounding. No atomic operation is used: the same input gives the same bits again.

Registered with `torch.library.custom_op`, so that torch.compile sees one node; `triton_op` would have it trace what is inside, the choice
of layout and all, and there is nothing in there to fuse. Only `srm` calls it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ..srm_types import Constants, empty_like
from ..surrogates import Surrogate
from .gpu_srm_kernels import backward_kernel, forward_kernel

LONGEST_SEGMENT = 16
"""Steps of a neuron whose bits share a word; also what a thread holds in registers for each of its neurons in the backward pass."""
LONGEST_SEGMENT_LEARNED = 8
"""Shorter where constants are learned: the backward pass then holds the states of a segment as well as its slopes."""


# Memory: what the kernels are told of it, and what they fill.


class _Layout(NamedTuple):
    """How the neurons of a step lie: its axes, slowest first, those outside and inside the member axis, and (outer, members, inner)."""

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
        """(time, outer, member, inner) of values (T, ...), or None where a kernel cannot step through them so."""
        shape, strides = values.shape[1:], values.stride()[1:]
        for axes in (self.outside, self.inside):
            if any(strides[slow] != strides[fast] * shape[fast] for slow, fast in pairwise(axes)):
                return None
        outer, inner = (strides[axes[-1]] if axes else 1 for axes in (self.outside, self.inside))
        return values.stride(0), outer, strides[0] if self.sizes[1] > 1 else 0, inner

    def empty(self, like: Tensor, dtype: torch.dtype, steps: int | None = None) -> Tensor:
        """An empty step of the shape of a step of `like` (T, ...), or `steps` of them, dense in this order."""
        lead, shape = () if steps is None else (steps,), like.shape[1:]
        dense = torch.empty([*lead, *(shape[axis] for axis in self.order)], dtype=dtype, device=like.device)
        return dense.permute(*range(len(lead)), *(len(lead) + self.order.index(axis) for axis in range(len(shape))))

    def dense(self, step: Tensor) -> Tensor:
        """A step in float32 and this order: itself where it is that already."""
        wanted = self.empty(step.unsqueeze(0), torch.float32)
        return step if step.dtype == torch.float32 and step.stride() == wanted.stride() else wanted.copy_(step)


class Tile(NamedTuple):
    """How many neurons a program takes, a power of two, and with how many warps of 32 threads."""

    neurons: int
    warps: int


WIDE, INFERENCE, FORWARD, BACKWARD = Tile(512, 4), Tile(128, 2), Tile(256, 2), Tile(256, 4)
"""The fastest found on an H200: for currents of two bytes going forward, then for four bytes, and for going back."""


def _forward_tile(currents: Tensor, longest: int) -> Tile:
    if currents.element_size() < 4:
        return WIDE
    return FORWARD if longest else INFERENCE


def _fitted(tile: Tile, sizes: tuple[int, int, int]) -> Tile:
    """The tile, made smaller where it would leave processors idle."""
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


def _on(values: Tensor) -> AbstractContextManager[Any]:
    """Triton starts kernels on the current device, which need not be that of the values."""
    return torch.cuda.device(values.device) if values.is_cuda else nullcontext()


def _stride_of(constant: Tensor) -> int:
    return constant.stride(0) if constant.numel() > 1 else 0


# The operator.

State = tuple[Tensor, Tensor, Tensor]


def _by_member(constants: Iterable[Tensor]) -> bool:
    return any(value.numel() > 1 for value in constants)


def _outputs(currents: Tensor, layout: _Layout, longest: int, float16_spikes: bool = False) -> tuple[Tensor, State, Tensor, Tensor]:
    """Spikes, state after, bits and checkpoints, all to be filled; longest 0: nothing is kept."""
    after = (layout.empty(currents, torch.float32), layout.empty(currents, torch.float32), layout.empty(currents, torch.float32))
    count = _segments(len(currents), longest)[0] if longest else 0
    size = math.prod(layout.sizes)
    bits = torch.empty((count, size), dtype=torch.int16, device=currents.device)
    checkpoints = torch.empty((max(count - 1, 0), 3, size), dtype=torch.float32, device=currents.device)
    return empty_like(currents, torch.float16 if float16_spikes else None), after, bits, checkpoints


def forward(
    currents: Tensor, before: State | None, constants: Constants, longest: int, tile: Tile | None = None, float16_spikes: bool = False
) -> tuple[Tensor, State, Tensor, Tensor]:
    """Spikes, state after, and for the backward pass bits and checkpoints, with segments of at most `longest` steps; 0 keeps nothing.

    float16_spikes: the dtype of the spikes is float16.
    """
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
    with _on(currents):
        forward_kernel[(grid.programs,)](
            currents,
            filled,
            None if before is None else tuple(layout.dense(value) for value in before),
            after,
            bits if longest else None,
            checkpoints if longest else None,
            constants,
            len(currents),
            count,
            layout.sizes,
            strides,
            layout.strides(filled),
            tuple(_stride_of(value) for value in constants),
            SEGMENT=length,
            EVEN=count * length == len(currents),
            ROWS=grid.rows,
            COLUMNS=grid.columns,
            num_warps=tile.warps,
            enable_fp_fusion=True,  # said, since Triton's default is about to change; what must round once says so itself
        )
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
    """Gradients in the currents, in the state before them, and in the constants (5, members), the last two where wanted."""
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
    with _on(currents):
        backward_kernel[(grid.programs,)](
            to_spikes,
            None if to_after is None else tuple(layout.dense(value) for value in to_after),
            filled,
            to_before,
            sums,
            currents,
            None if before is None else tuple(layout.dense(value) for value in before),
            bits,
            checkpoints,
            constants,
            inside,
            outside,
            len(currents),
            count,
            layout.sizes,
            layout.strides(to_spikes),
            layout.strides(filled),
            layout.strides(currents),
            tuple(_stride_of(value) for value in constants),
            SLOPE=surrogate.name,
            SEGMENT=length,
            EVEN=count * length == len(currents),
            ROWS=grid.rows,
            COLUMNS=grid.columns,
            num_warps=tile.warps,
            enable_fp_fusion=True,  # said, since Triton's default is about to change; what must round once says so itself
        )
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
def _operator(
    currents: Tensor,
    synapse: Tensor | None,
    membrane: Tensor | None,
    refractory: Tensor | None,
    membrane_decay: Tensor,
    synapse_decay: Tensor,
    refractory_decay: Tensor,
    threshold: Tensor,
    gain: Tensor,
    slope: str,
    sharpness: float,
    longest: int,
) -> tuple[Tensor, ...]:
    """Spikes, state after, bits and checkpoints."""
    constants = (membrane_decay, synapse_decay, refractory_decay, threshold, gain)
    spikes, after, bits, checkpoints = forward(currents, _state(synapse, membrane, refractory), constants, longest)
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
def _operator_backward(
    to_spikes: Tensor,
    to_synapse: Tensor | None,
    to_membrane: Tensor | None,
    to_refractory: Tensor | None,
    currents: Tensor,
    synapse: Tensor | None,
    membrane: Tensor | None,
    refractory: Tensor | None,
    bits: Tensor,
    checkpoints: Tensor,
    membrane_decay: Tensor,
    synapse_decay: Tensor,
    refractory_decay: Tensor,
    threshold: Tensor,
    gain: Tensor,
    slope: str,
    sharpness: float,
    longest: int,
    for_state: bool,
    for_constants: bool,
) -> list[Tensor]:
    """Gradients in the currents; then in the state, where wanted; then in the constants (5, members), where wanted."""
    to_currents, to_before, to_constants = backward(
        to_spikes,
        _state(to_synapse, to_membrane, to_refractory),
        currents,
        _state(synapse, membrane, refractory),
        bits,
        checkpoints,
        (membrane_decay, synapse_decay, refractory_decay, threshold, gain),
        Surrogate(slope, sharpness),
        longest,
        for_state,
        for_constants,
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
    """The three of them, with zeros for some that are missing; None where all are."""
    given = next((value for value in values if value is not None), None)
    if given is None:
        return None
    synapse, membrane, refractory = (torch.zeros_like(given) if value is None else value for value in values)
    return synapse, membrane, refractory


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    currents, before, constants = inputs[0], inputs[1:4], inputs[4:9]
    ctx.settings = inputs[9:]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(currents, *before, *output[4:], *constants)


def _gradients(ctx: Any, *arrived: Tensor | None) -> tuple[Tensor | None, ...]:
    """In all inputs of the operator, from those in its outputs."""
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


_operator.register_autograd(_gradients, setup_context=_keep)


# What `srm` calls.

INTERPRETED = not isinstance(forward_kernel, triton.JITFunction)
"""Whether TRITON_INTERPRET=1 was set as Triton was imported: the kernels then run on the CPU, slowly, for tests."""


def objection(currents: Tensor, dtype: torch.dtype, constants: Constants) -> str | None:
    """Why the kernels cannot take these, or None where they can."""
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
    """Spikes and the state after them, as `srm`; before None: from rest."""
    given = (currents, *(before or ()), *constants)
    longest = 0
    if torch.is_grad_enabled() and any(value.requires_grad for value in given):
        longest = LONGEST_SEGMENT_LEARNED if any(value.requires_grad for value in constants) else LONGEST_SEGMENT
    elif not torch.compiler.is_compiling():
        # without the operator's registration, which takes longer than the kernel
        return forward(currents, before, constants, 0, float16_spikes=float16_spikes)[:2]
    spikes, synapse, membrane, refractory, _, _ = _operator(
        currents, *(before or (None,) * 3), *constants, surrogate.name, surrogate.gain, longest
    )
    return spikes, (synapse, membrane, refractory)
