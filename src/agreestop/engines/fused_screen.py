"""The screen of `screen` as one kernel of a GPU, written in Triton: from read-out spikes to who may stop, when, and with which counts.

A program takes one input through the steps of a segment with its counts in registers. It computes in float32, so its slack is wider than
that of the loop for CPUs; what it lets through for nothing, the rule itself sends on.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from .screen import Screen

SLACK = 2e-4
"""Rounding of float32, with room, in a logarithm of ten or so; of a larger one, in proportion."""
FAR = 1e30  # below the logarithm of anything
TINY = tl.constexpr(1e-30)  # for members and classes that only fill up a tile
ARITHMETIC, GEOMETRIC, LARGEST, SMALLEST = 0, 1, 2, 3


@triton.jit  # type: ignore[untyped-decorator]
def _log_sum(values: tl.tensor, there: tl.tensor) -> Any:
    """log Σ exp over a vector where `there`."""
    top = tl.max(tl.where(there, values, -1e30), 0)
    return top + tl.log(tl.maximum(tl.sum(tl.where(there, tl.exp(tl.where(there, values - top, 0.0)), 0.0), 0), TINY))


@triton.jit  # type: ignore[untyped-decorator]
def _screen_kernel(
    spikes: tl.tensor,
    counts: tl.tensor,
    time: tl.tensor,
    stop: tl.tensor,
    kept: tl.tensor,
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
    """One row of `DeviceScreen`."""
    row = tl.program_id(0).to(tl.int64)
    member, label = tl.arange(0, MEMBERS)[:, None], tl.arange(0, CLASSES)[None, :]
    exists = (member < members) & (label < classes)
    lone = tl.arange(0, CLASSES)
    place = member * classes + label
    place += row * members * classes
    count = tl.load(counts + place, mask=exists, other=0)
    held = tl.load(kept + place, mask=exists, other=0)
    source = spikes + row * row_stride + member * member_stride + label * class_stride
    passed = tl.load(time + row)
    stopped = tl.load(stop + row)
    step = tl.cast(0, tl.int64)
    while step < steps:
        spiked = tl.load(source + step * time_stride, mask=exists, other=0.0)
        count += (spiked != 0).to(tl.int32)
        numbers = tl.where(exists, count.to(tl.float32), -1e30)
        gaps = numbers - tl.max(numbers, 1)[:, None]
        logs = gaps - tl.log(tl.maximum(tl.sum(tl.where(exists, tl.exp(gaps), 0.0), 1), TINY))[:, None]
        if MEAN == 2:
            pooled = tl.max(tl.where(exists, logs, -1e30), 0)
        elif MEAN == 3:
            pooled = tl.min(tl.where(exists, logs, 1e30), 0)
        elif MEAN == 1:
            pooled = tl.sum(tl.where(exists, logs, 0.0), 0) / members
        else:
            scaled = tl.where(exists, logs * exponent, -1e30)
            top = tl.max(scaled, 0)
            total = tl.sum(tl.where(exists, tl.exp(scaled - top[None, :]), 0.0), 0)
            pooled = (top + tl.log(tl.maximum(total / members, TINY))) / exponent
        pooled = pooled * tl.load(temperatures + passed + step)
        there = lone < classes
        whole = _log_sum(pooled, there)
        for _ in tl.static_range(SIZE):
            best = tl.argmax(tl.where(there, pooled, -1e30), 0)
            there = there & (lone != best)
        risk = _log_sum(pooled, there) - whole
        first = (stopped == 0) & (risk < tl.load(bounds + passed + step))
        stopped = tl.where(first, passed + step + 1, stopped).to(tl.int32)
        held = tl.where(first, count, held)
        step += 1
    tl.store(counts + place, count, mask=exists)
    tl.store(kept + place, held, mask=exists)
    tl.store(stop + row, stopped)


class DeviceScreen:
    """A rule's screen as tables on the device, an entry for each step up to `beyond` its last checkpoint.

    Between checkpoints nobody may stop, at the last one everybody.
    """

    def __init__(self, screen: Screen, beyond: int, device: torch.device) -> None:
        slack, times = SLACK * (1 + np.abs(screen.bounds)), screen.times
        places = np.array(times) - 1
        bounds, temperatures = np.full(times[-1] + beyond, -FAR), np.ones(times[-1] + beyond)
        bounds[places] = np.clip(screen.bounds + np.where(np.isfinite(slack), slack, 0), -FAR, FAR)
        bounds[places[-1]] = FAR
        temperatures[places] = screen.temperatures
        self._bounds, self._temperatures = (torch.tensor(v, dtype=torch.float32, device=device) for v in (bounds, temperatures))
        self._exponent, self._size = screen.exponent, screen.rule.max_set_size

    def __call__(self, spikes: Tensor, counts: Tensor, time: Tensor, stop: Tensor, kept: Tensor) -> None:
        """Go through spikes (steps, K, rows, C) of rows that have run for `time` (rows,) steps.

        `counts` (rows, K, C) moves on. `stop` (rows,) is the first step, counted from 1, at which a row may stop, 0 before it is known,
        and `kept` (rows, K, C) the counts there.
        """
        steps, members, rows, classes = spikes.shape
        _screen_kernel[(rows,)](
            spikes,
            counts,
            time,
            stop,
            kept,
            self._temperatures,
            self._bounds,
            float(self._exponent) if math.isfinite(self._exponent) else 0.0,
            steps,
            members,
            classes,
            *spikes.stride(),
            SIZE=min(self._size, classes),
            MEAN={math.inf: LARGEST, -math.inf: SMALLEST, 0.0: GEOMETRIC}.get(self._exponent, ARITHMETIC),
            MEMBERS=triton.next_power_of_2(members),
            CLASSES=triton.next_power_of_2(classes),
            num_warps=1,
        )
