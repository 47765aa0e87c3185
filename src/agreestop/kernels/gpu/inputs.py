# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Frames from inputs that are already on the GPU: for each slot, the next steps of the
input that it runs.

    frames[s, slot] = inputs[row[slot], min(time[slot] + s, T - 1)]

Inputs are dense (n, T, cells), or events: the kernel then writes only what is not zero, into frames
that were cleared. The kernels read the addresses from a small table, so a CUDA graph that was
captured once serves any inputs of the same dtypes. Its entries: the address of the dense inputs or
of the indices, of the pointers, of the values, and the number of steps T.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .runtime import on_device_of

CELLS, EVENTS = 1024, 128  # what one program handles
KINDS = {
    torch.bool: tl.int8, torch.uint8: tl.uint8, torch.int8: tl.int8, torch.uint16: tl.uint16,
    torch.int16: tl.int16, torch.uint32: tl.uint32, torch.int32: tl.int32, torch.uint64: tl.uint64,
    torch.int64: tl.int64, torch.float16: tl.float16, torch.float32: tl.float32,
    torch.float64: tl.float64,
}  # fmt: skip
"""Triton's dtypes of what is read."""


class InputKind(NamedTuple):
    """Dtypes of inputs: of the indices of events, None for dense inputs; and of dense inputs or
    of events' values, None where all are 1.
    """

    indices: torch.dtype | None
    values: torch.dtype | None


@triton.jit
def _dense_kernel(
    table, rows, times, frames, slots, cells, KIND: tl.constexpr, BLOCK: tl.constexpr
):
    slot, step = tl.program_id(0) % slots, tl.program_id(0) // slots
    source = tl.load(table).to(tl.pointer_type(KIND))
    length = tl.load(table + 3)
    frame = tl.load(rows + slot) * length + tl.minimum(tl.load(times + slot) + step, length - 1)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + frame * cells + cell, mask=cell < cells, other=0)
    target = frames + (step.to(tl.int64) * slots + slot) * cells
    tl.store(target + cell, value.to(frames.dtype.element_ty), mask=cell < cells)


@triton.jit
def _events_kernel(
    table,
    rows,
    times,
    frames,
    slots,
    cells,
    KIND: tl.constexpr,
    VALUES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    slot, step = tl.program_id(0) % slots, tl.program_id(0) // slots
    indices = tl.load(table).to(tl.pointer_type(KIND))
    pointers = tl.load(table + 1).to(tl.pointer_type(tl.int64))
    length = tl.load(table + 3)
    pointers += tl.load(rows + slot) * (length + 1) + tl.minimum(
        tl.load(times + slot) + step, length - 1
    )
    target = frames + (step.to(tl.int64) * slots + slot) * cells
    begin, end = tl.load(pointers), tl.load(pointers + 1)
    while begin < end:
        event = begin + tl.arange(0, BLOCK)
        cell = tl.load(indices + event, mask=event < end, other=0).to(tl.int64)
        value = tl.full((BLOCK,), 1.0, tl.float32)
        if VALUES is not None:
            value = tl.load(
                tl.load(table + 2).to(tl.pointer_type(VALUES)) + event, mask=event < end, other=0
            ).to(tl.float32)
        tl.store(target + cell, value.to(frames.dtype.element_ty), mask=event < end)
        begin += BLOCK


def load_frames(
    kind: tuple[Any, ...], table: Tensor, rows: Tensor, times: Tensor, frames: Tensor
) -> None:
    """Fill frames (steps, slots, ...) from inputs of this `InputKind`, at the addresses of the
    table (4,) int64.

    rows and times (slots,) int64: the input of each slot, and the steps that it has run.
    """
    (indices, values), (steps, slots) = kind, frames.shape[:2]
    cells = frames[0, 0].numel()
    with on_device_of(frames):
        if indices is None:
            grid = (steps * slots, triton.cdiv(cells, CELLS))
            _dense_kernel[grid](
                table,
                rows,
                times,
                frames,
                slots,
                cells,
                KIND=KINDS[values],
                BLOCK=CELLS,
                num_warps=4,
            )
        else:
            frames.zero_()
            _events_kernel[(steps * slots,)](
                table,
                rows,
                times,
                frames,
                slots,
                cells,
                KIND=KINDS[indices],
                VALUES=KINDS.get(values),
                BLOCK=EVENTS,
                num_warps=2,
            )
