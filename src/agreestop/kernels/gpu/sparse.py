# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Fully connected layers on a GPU, from input spikes to their own: spikes stay bits, and only
inputs that spike are multiplied.

    x_t = spikes_t · W  in fixed point (`mixed_product`),   then the SRM recurrence of `gpu.srm`

A word holds 16 steps of one neuron. A tile is the words of 8 rows of the batch. In a tile of a
recording most inputs never spike; the first layer lists the others and packs their words. One
program of a layer multiplies a tile by the rows of the weights of a block of neurons, on tensor
cores, and takes these neurons through the 16 steps in registers. So no current reaches memory,
spikes take a sixteenth of the bytes of float16, and an input that does not spike costs nothing.

Sums are exact, so spikes do not depend on the other rows of a tile, and are those of
`mixed_product` and `gpu.srm`, bit for bit.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from ..mixed_product import SHIFT, FixedPoint
from .runtime import on_device_of
from .triton_kernels import step_srm

STEPS, ROWS = 16, 8  # a tile has this many steps of this many rows of the batch
INPUTS = 64  # inputs that are multiplied together
CELLS = 128  # inputs that a program makes words of
# neurons of a program, its warps of 32 threads, and loads that are under way; the
# fastest on an H200
NEURONS, WARPS, STAGES = 64, 4, 3


@triton.jit
def _words_kernel(
    frames,
    words,
    active,
    steps,
    rows,
    cells,
    width,
    STEPS: tl.constexpr,
    ROWS: tl.constexpr,
    CELLS: tl.constexpr,
):
    """The words (ROWS, CELLS) of a tile, and whether each input spikes anywhere in it.

    Lines have `width` entries.
    """
    tile = tl.program_id(0)
    row, step = tile * ROWS + tl.arange(0, ROWS)[:, None, None], tl.arange(0, STEPS)[None, :, None]
    cell = tl.program_id(1) * CELLS + tl.arange(0, CELLS)
    source = frames + (step.to(tl.int64) * rows + row) * cells + cell[None, None, :]
    there = (step < steps) & (row < rows) & (cell < cells)[None, None, :]
    word = tl.sum((tl.load(source, mask=there, other=0.0) != 0).to(tl.int32) << step, 1)
    line = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None] * width
    tl.store(words + line + cell[None, :], word.to(tl.int16))
    tl.store(active + tile * width + cell, tl.max((word != 0).to(tl.int32), 0).to(tl.int8))


@triton.jit
def _expanded(word, STEPS: tl.constexpr):
    """Words (inputs, rows) as spikes (inputs, steps · rows) in float16."""
    bits = (word.to(tl.int32)[:, None, :] >> tl.arange(0, STEPS)[None, :, None]) & 1
    return tl.reshape(bits, (word.shape[0], STEPS * word.shape[1])).to(tl.float16)


@triton.jit
def _pack_kernel(
    words, active, listed, packed, counts, width,
    STEPS: tl.constexpr, ROWS: tl.constexpr, CELLS: tl.constexpr, WIDTH: tl.constexpr,
    INPUTS: tl.constexpr,
):  # fmt: skip
    """List the active inputs of a tile in order and pack their spikes; up to a multiple of INPUTS,
    spikes of 0 follow.

    `listed` has width + INPUTS entries for a tile, and `packed` as many lines of
    STEPS · ROWS spikes.
    """
    tile, length, every = tl.program_id(0), width + INPUTS, tl.arange(0, WIDTH)
    flags = tl.load(active + tile * width + every, mask=every < width, other=0).to(tl.int32)
    start, total = tl.sum(tl.where(every < tl.program_id(1) * CELLS, flags, 0), 0), tl.sum(flags, 0)
    cell, row = tl.program_id(1) * CELLS + tl.arange(0, CELLS), tile * ROWS + tl.arange(0, ROWS)
    mine = tl.load(active + tile * width + cell).to(tl.int32)
    position = tl.cast(tile, tl.int64) * length + start + tl.cumsum(mine, 0) - 1
    spike = tl.arange(0, STEPS * ROWS)
    spikes = _expanded(tl.load(words + row.to(tl.int64)[None, :] * width + cell[:, None]), STEPS)
    tl.store(listed + position, cell, mask=mine > 0)
    tl.store(
        packed + position[:, None] * (STEPS * ROWS) + spike[None, :],
        spikes,
        mask=(mine > 0)[:, None] & (spike >= 0)[None, :],
    )
    if tl.program_id(1) == 0:
        tl.store(counts + tile, total)
        tail = tl.cast(tile, tl.int64) * length + total + tl.arange(0, INPUTS)
        tl.store(listed + tail, tl.zeros((INPUTS,), tl.int32))
        tl.store(
            packed + tail[:, None] * (STEPS * ROWS) + spike[None, :],
            tl.zeros((INPUTS, STEPS * ROWS), tl.float16),
        )


@triton.jit
def _halves(values):
    """Even and odd entries of the last axis."""
    return tl.split(tl.reshape(values, (values.shape[0], values.shape[1], values.shape[2] // 2, 2)))


@triton.jit
def _sixteen(values):
    """The entries of a last axis of 16."""
    even, odd = _halves(values)
    e0, e1 = _halves(even)
    o0, o1 = _halves(odd)
    e00, e01 = _halves(e0)
    e10, e11 = _halves(e1)
    o00, o01 = _halves(o0)
    o10, o11 = _halves(o1)
    s0, s8 = tl.split(e00)
    s4, s12 = tl.split(e01)
    s2, s10 = tl.split(e10)
    s6, s14 = tl.split(e11)
    s1, s9 = tl.split(o00)
    s5, s13 = tl.split(o01)
    s3, s11 = tl.split(o10)
    s7, s15 = tl.split(o11)
    return s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15


@triton.jit
def _layer_kernel(
    source, listed, counts, parts, units, constants, state, begins, spikes, rows, neurons, inputs,
    columns, length, member_stride, members, TAKEN: tl.constexpr, STEPS: tl.constexpr,
    ROWS: tl.constexpr, INPUTS: tl.constexpr, NEURONS: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """One tile and one block of neurons of a member, for the TAKEN steps that exist of the tile.

    source: with `listed`, the packed spikes of the listed inputs, `length` for a tile; else words,
    in lines of `length`. inputs and columns: the sizes of the parts of the weights. spikes: words
    (members, rows up to a multiple of ROWS, columns).
    """
    program = tl.program_id(0)
    tiles = tl.cdiv(rows, ROWS)
    tile, block = program % tiles, program // tiles % (columns // NEURONS)
    member = program // tiles // (columns // NEURONS)
    column, row = block * NEURONS + tl.arange(0, NEURONS), tile * ROWS + tl.arange(0, ROWS)
    entry, spike = tl.arange(0, INPUTS), tl.arange(0, STEPS * ROWS)
    first_part = parts + tl.cast(member * 2, tl.int64) * inputs * columns
    second_part = first_part + tl.cast(inputs, tl.int64) * columns
    source += tl.cast(member, tl.int64) * member_stride
    high = tl.zeros((NEURONS, STEPS * ROWS), tl.float32)
    low = tl.zeros((NEURONS, STEPS * ROWS), tl.float32)
    count = inputs
    if listed is not None:
        count = tl.load(counts + tile)
        source += tl.cast(tile, tl.int64) * length * (STEPS * ROWS)
        listed += tile * length
    for begin in range(0, count, INPUTS):
        name = begin + entry
        if listed is not None:
            x = tl.load(source + name[:, None] * (STEPS * ROWS) + spike[None, :])
            name = tl.load(listed + name)
        else:
            x = _expanded(
                tl.load(
                    source + row.to(tl.int64)[None, :] * length + name[:, None],
                    mask=(name < length)[:, None],
                    other=0,
                ),
                STEPS,
            )
        at = name[:, None] * columns + column[None, :]
        high = tl.dot(tl.trans(tl.load(first_part + at)), x, high)
        low = tl.dot(tl.trans(tl.load(second_part + at)), x, low)
    currents = (
        tl.fma(low, 1.0 / (1 << SHIFT), high) * tl.load(units + member * columns + column)[:, None]
    )
    by_step = _sixteen(tl.permute(tl.reshape(currents, (NEURONS, STEPS, ROWS)), (0, 2, 1)))
    a = tl.load(constants + member)
    b = tl.load(constants + members + member)
    r = tl.load(constants + 2 * members + member)
    threshold = tl.load(constants + 3 * members + member)
    gain = tl.load(constants + 4 * members + member)
    reset = -(threshold * r)
    exists = (column < neurons)[:, None] & (row < rows)[None, :]
    goes_on = exists & (tl.load(begins + row, mask=row < rows, other=0) < 0)[None, :]
    neuron = state + (member * rows + row).to(tl.int64)[None, :] * neurons + column[:, None]
    size = tl.cast(members, tl.int64) * rows * neurons
    i = tl.load(neuron, mask=goes_on, other=0.0)
    m = tl.load(neuron + size, mask=goes_on, other=0.0)
    h = tl.load(neuron + 2 * size, mask=goes_on, other=0.0)
    made = tl.zeros((NEURONS, ROWS), tl.int32)
    for step in tl.static_range(TAKEN):
        i, m, u = step_srm(by_step[step], i, m, h, a, b, reset, gain)
        spiked = u >= threshold
        h = tl.fma(h, r, spiked.to(tl.float32))
        made |= spiked.to(tl.int32) << step
    tl.store(
        spikes + (member * tiles * ROWS + row).to(tl.int64)[None, :] * columns + column[:, None],
        made.to(tl.int16),
    )
    tl.store(neuron, i, mask=exists)
    tl.store(neuron + size, m, mask=exists)
    tl.store(neuron + 2 * size, h, mask=exists)


class SparseLayer(NamedTuple):
    """A layer: weights in fixed point, filled up with zeros to whole blocks; its number of
    neurons; and constants (5, K): a, b, r, θ, c.
    """

    weights: FixedPoint
    neurons: int
    constants: Tensor

    @staticmethod
    def of(weights: FixedPoint, constants: Sequence[Tensor]) -> "SparseLayer":
        inputs, neurons = weights.parts.shape[2:]
        missing = -neurons % NEURONS
        filled = FixedPoint(
            F.pad(weights.parts, (0, missing, 0, -inputs % INPUTS)),
            F.pad(weights.units, (0, missing)),
        )
        return SparseLayer(filled, neurons, torch.stack([value.flatten() for value in constants]))


def spiking_layers(
    frames: Tensor, layers: Sequence[SparseLayer], states: Sequence[Tensor], begins: Tensor
) -> Tensor:
    """Spikes (S, K, rows, neurons) of the last layer, as booleans, from input spikes
    (S, rows, inputs), numbers of which 0 is no spike.

    The states (3, K, rows, neurons) of the layers are moved on in place. begins (rows,): a row with
    a number of at least 0 starts from states of zero.
    """
    going_on, parts = torch.full_like(begins, -1), []
    with on_device_of(frames):
        for first in range(0, len(frames), STEPS):
            taken = frames[first : first + STEPS]
            words = _run(taken, layers, states, going_on if first else begins)[
                :, : frames.shape[1], : layers[-1].neurons
            ]
            steps = torch.arange(len(taken), dtype=torch.int16, device=frames.device)
            parts.append((words >> steps[:, None, None, None]) & 1 != 0)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _run(
    frames: Tensor, layers: Sequence[SparseLayer], states: Sequence[Tensor], begins: Tensor
) -> Tensor:
    """Words (K, rows up to a multiple of ROWS, columns) of the last layer, from at
    most STEPS steps.
    """
    (steps, rows, inputs), device = frames.shape, frames.device
    tiles, looks = triton.cdiv(rows, ROWS), triton.cdiv(inputs, CELLS)
    width = looks * CELLS
    words = torch.empty((tiles * ROWS, width), dtype=torch.int16, device=device)
    active = torch.empty((tiles, width), dtype=torch.int8, device=device)
    _words_kernel[(tiles, looks)](
        frames,
        words,
        active,
        steps,
        rows,
        inputs,
        width,
        STEPS=STEPS,
        ROWS=ROWS,
        CELLS=CELLS,
        num_warps=4,
    )
    listed = torch.empty((tiles, width + INPUTS), dtype=torch.int32, device=device)
    packed = torch.empty((tiles, width + INPUTS, STEPS * ROWS), dtype=torch.float16, device=device)
    counts = torch.empty(tiles, dtype=torch.int32, device=device)
    _pack_kernel[(tiles, looks)](
        words, active, listed, packed, counts, width,
        STEPS=STEPS, ROWS=ROWS, CELLS=CELLS, WIDTH=triton.next_power_of_2(width), INPUTS=INPUTS,
        num_warps=4,
    )  # fmt: skip
    received, length, stride = packed, width + INPUTS, 0
    for index, (layer, state) in enumerate(zip(layers, states, strict=True)):
        members, _, size, columns = layer.weights.parts.shape
        programs = tiles * members * (columns // NEURONS)
        spikes = torch.empty((members, tiles * ROWS, columns), dtype=torch.int16, device=device)
        _layer_kernel[(programs,)](
            received, None if index else listed, None if index else counts, *layer.weights,
            layer.constants, state, begins, spikes, rows, layer.neurons, size, columns, length,
            stride, members, TAKEN=steps, STEPS=STEPS, ROWS=ROWS, INPUTS=INPUTS, NEURONS=NEURONS,
            SHIFT=SHIFT, num_warps=WARPS, num_stages=STAGES,
            # explicit, because Triton's default is about to change; what must round once
            # says so itself
            enable_fp_fusion=True,
        )  # fmt: skip
        received, length, stride = spikes, columns, spikes[0].numel()
    return received
