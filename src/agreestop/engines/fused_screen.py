"""The screen of `screen` as one kernel of a GPU, written in Triton: from read-out spikes to counts, and to who may stop where.

A program takes one input through the steps of a chunk with its counts in registers. It computes in float32, so its slack is wider than
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
    before: tl.tensor,
    counts: tl.tensor,
    flags: tl.tensor,
    slots: tl.tensor,
    temperatures: tl.tensor,
    bounds: tl.tensor,
    exponent: tl.tensor,
    steps: tl.tensor,
    looks: tl.tensor,
    members: tl.tensor,
    classes: tl.tensor,
    strides: tl.tuple,
    SIZE: tl.constexpr,
    MEAN: tl.constexpr,
    MEMBERS: tl.constexpr,
    CLASSES: tl.constexpr,
) -> None:
    """before (rows, K, C) is replaced by the counts after; slots: for each step, its place among the looks, or -1 where none is."""
    row = tl.program_id(0).to(tl.int64)
    member, label = tl.arange(0, MEMBERS)[:, None], tl.arange(0, CLASSES)[None, :]
    exists = (member < members) & (label < classes)
    lone = tl.arange(0, CLASSES)
    place = member * classes + label
    count = tl.load(before + row * members * classes + place, mask=exists, other=0)
    source = spikes + row * strides[2] + member * strides[1] + label * strides[3]
    step = tl.cast(0, tl.int64)
    while step < steps:
        spiked = tl.load(source + step * strides[0], mask=exists, other=0.0)
        count += (spiked != 0).to(tl.int32)
        slot = tl.load(slots + step)
        if slot >= 0:
            tl.store(counts + (row * looks + slot) * members * classes + place, count, mask=exists)
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
            pooled = pooled * tl.load(temperatures + slot)
            there = lone < classes
            whole = _log_sum(pooled, there)
            for _ in tl.static_range(SIZE):
                best = tl.argmax(tl.where(there, pooled, -1e30), 0)
                there = there & (lone != best)
            risk = _log_sum(pooled, there) - whole
            tl.store(flags + row * looks + slot, (risk < tl.load(bounds + slot)).to(tl.int8))
        step += 1
    tl.store(before + row * members * classes + place, count, mask=exists)


class DeviceScreen:
    """A rule's screen with its numbers on the device."""

    def __init__(self, screen: Screen, device: torch.device) -> None:
        slack = SLACK * (1 + np.abs(screen.bounds))
        bounds = np.clip(screen.bounds + np.where(np.isfinite(slack), slack, 0), -FAR, FAR)
        self._screen = screen
        self._bounds, self._temperatures = (torch.tensor(v, dtype=torch.float32, device=device) for v in (bounds, screen.temperatures))

    def __call__(self, spikes: Tensor, counts: Tensor, checkpoints: range, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Counts (rows, looks, K, C) at the checkpoints of spikes (steps, K, rows, C), and who may stop there; `counts` moves on."""
        steps, members, rows, classes = spikes.shape
        looks = len(checkpoints)
        at = torch.empty((rows, looks, members, classes), dtype=torch.int32, device=spikes.device)
        flags = torch.empty((rows, looks), dtype=torch.int8, device=spikes.device)
        exponent = self._screen.exponent
        mean = {math.inf: LARGEST, -math.inf: SMALLEST, 0.0: GEOMETRIC}.get(exponent, ARITHMETIC)
        _screen_kernel[(rows,)](
            spikes,
            counts,
            at,
            flags,
            slots,
            self._temperatures[checkpoints.start : checkpoints.stop],
            self._bounds[checkpoints.start : checkpoints.stop],
            float(exponent) if math.isfinite(exponent) else 0.0,
            steps,
            looks,
            members,
            classes,
            spikes.stride(),
            SIZE=min(self._screen.rule.max_set_size, classes),
            MEAN=mean,
            MEMBERS=triton.next_power_of_2(members),
            CLASSES=triton.next_power_of_2(classes),
            num_warps=1,
        )
        return at, flags
