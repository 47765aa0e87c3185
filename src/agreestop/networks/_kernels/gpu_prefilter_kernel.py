"""The prefilter of AgreeStop (`engines.prefilter`) as one Triton kernel: from read-out spikes to the first step at which a row may stop.

One program takes one row through the steps of a segment with its counts in registers. It computes in float32, so its margin is wider than
that of the CPU's loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

TINY = tl.constexpr(1e-30)  # keeps the logarithm finite for members and classes that only fill up a tile
POWER, GEOMETRIC, LARGEST, SMALLEST = (tl.constexpr(kind) for kind in range(4))


@triton.jit  # type: ignore[untyped-decorator]
def _log_sum(values: tl.tensor, mask: tl.tensor) -> Any:
    """log Σ exp over the entries of a vector where `mask`."""
    top = tl.max(tl.where(mask, values, -1e30), 0)
    return top + tl.log(tl.maximum(tl.sum(tl.where(mask, tl.exp(tl.where(mask, values - top, 0.0)), 0.0), 0), TINY))


@triton.jit  # type: ignore[untyped-decorator]
def _pooled(count: tl.tensor, exists: tl.tensor, members: tl.tensor, exponent: tl.tensor, MEAN: tl.constexpr) -> Any:
    """The pooled log-confidence (C) from counts (K, C)."""
    numbers = tl.where(exists, count.to(tl.float32), -1e30)
    gaps = numbers - tl.max(numbers, 1)[:, None]
    logs = gaps - tl.log(tl.maximum(tl.sum(tl.where(exists, tl.exp(gaps), 0.0), 1), TINY))[:, None]
    if MEAN == LARGEST:
        pooled = tl.max(tl.where(exists, logs, -1e30), 0)
    elif MEAN == SMALLEST:
        pooled = tl.min(tl.where(exists, logs, 1e30), 0)
    elif MEAN == GEOMETRIC:
        pooled = tl.sum(tl.where(exists, logs, 0.0), 0) / members
    else:
        scaled = tl.where(exists, logs * exponent, -1e30)
        top = tl.max(scaled, 0)
        total = tl.sum(tl.where(exists, tl.exp(scaled - top[None, :]), 0.0), 0)
        pooled = (top + tl.log(tl.maximum(total / members, TINY))) / exponent
    return pooled


@triton.jit  # type: ignore[untyped-decorator]
def _prefilter_kernel(
    spikes: tl.tensor,
    begins: tl.tensor,
    time: tl.tensor,
    counts: tl.tensor,
    outcome: tl.tensor,
    temperatures: tl.tensor,
    bounds: tl.tensor,
    exponent: tl.tensor,
    steps: tl.tensor,
    members: tl.tensor,
    classes: tl.tensor,
    time_stride: tl.tensor,
    member_stride: tl.tensor,
    row_stride: tl.tensor,
    class_stride: tl.tensor,
    SIZE: tl.constexpr,
    MEAN: tl.constexpr,
    MEMBERS: tl.constexpr,
    CLASSES: tl.constexpr,
) -> None:
    """One row of `find_first_stops`."""
    row = tl.program_id(0).to(tl.int64)
    member, label = tl.arange(0, MEMBERS)[:, None], tl.arange(0, CLASSES)[None, :]
    exists = (member < members) & (label < classes)
    every_class = tl.arange(0, CLASSES)
    cell = member * classes + label
    source = spikes + row * row_stride + member * member_stride + label * class_stride
    outcome += row * (1 + members * classes)
    counts += row * members * classes
    # `begin` is below 0 for a row that continues. For a row that begins it is the number of steps in which the row is known not to stop,
    # which is stored as a negative `stopped` until a stop is found.
    begin = tl.load(begins + row)
    fresh = begin >= 0
    passed = tl.where(fresh, 0, tl.load(time + row))
    stopped = tl.where(fresh, -begin, tl.load(outcome))
    count = tl.where(fresh, 0, tl.load(counts + cell, mask=exists, other=0))
    counts_at_stop = tl.load(outcome + 1 + cell, mask=exists, other=0)
    step = tl.cast(0, tl.int64)
    while step < steps:
        spiked = tl.load(source + step * time_stride, mask=exists, other=0.0)
        count += (spiked != 0).to(tl.int32)
        pooled = _pooled(count, exists, members, exponent, MEAN) * tl.load(temperatures + passed + step)
        rest = every_class < classes
        whole = _log_sum(pooled, rest)
        for _ in tl.static_range(SIZE):
            rest = rest & (every_class != tl.argmax(tl.where(rest, pooled, -1e30), 0))
        risk = _log_sum(pooled, rest) - whole
        step += 1
        first = (stopped <= 0) & (passed + step > -stopped) & (risk < tl.load(bounds + passed + step - 1))
        stopped = tl.where(first, passed + step, stopped).to(tl.int32)
        counts_at_stop = tl.where(first, count, counts_at_stop)
    tl.store(time + row, (passed + steps).to(tl.int32))
    tl.store(counts + cell, count, mask=exists)
    tl.store(outcome, stopped)
    tl.store(outcome + 1 + cell, counts_at_stop, mask=exists)


def find_first_stops(
    spikes: Tensor, begins: Tensor, time: Tensor, counts: Tensor, outcome: Tensor, tables: Sequence[Tensor], exponent: float, size: int
) -> None:
    """Go through spikes (steps, K, rows, C) of rows that have run for `time` (rows,) steps, all on the GPU.

    begins (rows,): -1 for a row that continues; for a row that begins, the number of first steps in which it is known not to stop. `time`
    and `counts` (rows, K, C) are moved on. `outcome` (rows, 1 + K·C) receives the first step, counted from 1, at which the row may stop (0
    or below while there is none), and its counts there. tables: temperature and bound for each step. size: the number of classes in an
    answer.
    """
    steps, members, rows, classes = spikes.shape
    _prefilter_kernel[(rows,)](
        spikes,
        begins,
        time,
        counts,
        outcome,
        *tables,
        exponent if math.isfinite(exponent) else 0.0,
        steps,
        members,
        classes,
        *spikes.stride(),
        SIZE=size,
        MEAN={math.inf: LARGEST, -math.inf: SMALLEST, 0.0: GEOMETRIC}.get(exponent, POWER),
        MEMBERS=triton.next_power_of_2(members),
        CLASSES=triton.next_power_of_2(classes),
        num_warps=1,
    )
