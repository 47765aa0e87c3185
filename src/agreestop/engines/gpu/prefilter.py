"""The screen of `screen` as one kernel of a GPU, written in Triton: from read-out spikes to who may stop, when, and with which answer.

A program takes one input through the steps of a segment with its counts in registers. It computes in float32, so its slack is wider than
that of the loop for CPUs. Where stop and answer hang on no rounding, in that slack, they are the rule's; what is not so sure is left to
the rule itself, with the counts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from ..prefilter import Screen

SLACK = 2e-4
"""Rounding of float32, with room, in a log-risk of ten or so; in a larger one, in proportion. `Screen.doubt` adds that of what goes in."""
EPSILON = float(np.finfo(np.float32).eps)
FAR = 1e30  # below the logarithm of anything
TINY = tl.constexpr(1e-30)  # for members and classes that only fill up a tile
POWER, GEOMETRIC, LARGEST, SMALLEST = (tl.constexpr(kind) for kind in range(4))


@triton.jit  # type: ignore[untyped-decorator]
def _log_sum(values: tl.tensor, there: tl.tensor) -> Any:
    """log Σ exp over a vector where `there`."""
    top = tl.max(tl.where(there, values, -1e30), 0)
    return top + tl.log(tl.maximum(tl.sum(tl.where(there, tl.exp(tl.where(there, values - top, 0.0)), 0.0), 0), TINY))


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
def _screen_kernel(
    spikes: tl.tensor,
    begins: tl.tensor,
    time: tl.tensor,
    counts: tl.tensor,
    outcome: tl.tensor,
    temperatures: tl.tensor,
    above: tl.tensor,
    below: tl.tensor,
    doubt: tl.tensor,
    exponent: tl.tensor,
    slack: tl.tensor,
    steps: tl.tensor,
    members: tl.tensor,
    classes: tl.tensor,
    time_stride: tl.tensor,
    member_stride: tl.tensor,
    row_stride: tl.tensor,
    class_stride: tl.tensor,
    SIZE: tl.constexpr,
    FILL: tl.constexpr,
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
    source = spikes + row * row_stride + member * member_stride + label * class_stride
    outcome += row * (2 + SIZE + members * classes)
    counts += row * members * classes
    begin = tl.load(begins + row)  # below 0 for what goes on; else the steps in which it does not stop, kept as a `stopped` of minus that
    fresh = begin >= 0
    passed = tl.where(fresh, 0, tl.load(time + row))
    stopped = tl.where(fresh, -begin, tl.load(outcome))
    count = tl.where(fresh, 0, tl.load(counts + place, mask=exists, other=0))
    held = tl.load(outcome + 2 + SIZE + place, mask=exists, other=0)
    step = tl.cast(0, tl.int64)
    while step < steps:
        spiked = tl.load(source + step * time_stride, mask=exists, other=0.0)
        count += (spiked != 0).to(tl.int32)
        pooled = _pooled(count, exists, members, exponent, MEAN) * tl.load(temperatures + passed + step)
        there = lone < classes
        whole = _log_sum(pooled, there)
        for _ in tl.static_range(SIZE):
            best = tl.argmax(tl.where(there, pooled, -1e30), 0)
            there = there & (lone != best)
        risk = _log_sum(pooled, there) - whole
        step += 1
        first = (stopped <= 0) & (passed + step > -stopped) & (risk < tl.load(above + passed + step - 1))
        stopped = tl.where(first, passed + step, stopped).to(tl.int32)
        held = tl.where(first, count, held)
    if stopped > passed:
        high, low, unsettled = tl.load(above + stopped - 1), tl.load(below + stopped - 1), tl.load(doubt + stopped - 1)
        pooled = _pooled(held, exists, members, exponent, MEAN) * tl.load(temperatures + stopped - 1)
        there = lone < classes
        whole = _log_sum(pooled, there)
        sure, apart = stopped > 0, stopped > 0  # true, until found otherwise
        for rank in tl.static_range(SIZE):
            best = tl.argmax(tl.where(there, pooled, -1e30), 0)
            value, mass = tl.max(tl.where(there, pooled, -1e30), 0), _log_sum(pooled, there) - whole
            there = there & (lone != best)
            answered = (mass >= high) | FILL | (rank == 0)
            sure = sure & (answered | (mass < low))
            # no class left out is close to the last one answered; or all that are close have the very same counts, and the lowest wins
            close = (lone < classes) & (tl.abs(value - pooled) <= slack * (1 + tl.abs(value)) + unsettled)
            counted = tl.sum(tl.where(label == best, held, 0), 1)[:, None]
            differs = (tl.max(tl.where(exists & (held != counted), 1, 0), 0) > 0) | (pooled != value)
            clear = (tl.max((close & there).to(tl.int32), 0) == 0) | (tl.max((close & differs).to(tl.int32), 0) == 0)
            apart = tl.where(answered, clear, apart)
            tl.store(outcome + 2 + rank, tl.where(answered, best, -1).to(tl.int32))
        sure = sure & apart
        sure = sure & (_log_sum(pooled, there) - whole < low)
        tl.store(outcome + 1, sure.to(tl.int32))
    tl.store(time + row, (passed + steps).to(tl.int32))
    tl.store(counts + place, count, mask=exists)
    tl.store(outcome, stopped)
    tl.store(outcome + 2 + SIZE + place, held, mask=exists)


class DeviceScreen:
    """A rule's screen as tables on the device, an entry for each step up to `beyond` its last checkpoint.

    Between checkpoints nobody may stop, at the last one everybody. `above` and `below` are the bounds with the slack added and taken away:
    what is under the one may stop, and surely does under the other.
    """

    def __init__(self, screen: Screen, classes: int, beyond: int, device: torch.device) -> None:
        times, rounding = screen.times, screen.doubt(classes, EPSILON)
        slack = screen.slack(SLACK, rounding)
        places = np.array(times) - 1
        above, below, doubt, temperatures = (np.full(times[-1] + beyond, value) for value in (-FAR, -FAR, 0.0, 1.0))
        above[places], below[places] = (np.clip(bounds, -FAR, FAR) for bounds in (screen.bounds + slack, screen.bounds - slack))
        above[places[-1]] = FAR
        temperatures[places], doubt[places] = screen.temperatures, rounding
        self._tables = [torch.tensor(values, dtype=torch.float32, device=device) for values in (temperatures, above, below, doubt)]
        self._exponent, self._size, self._fill, self._slack = screen.exponent, screen.answers(classes), screen.rule.fill, SLACK

    def __call__(self, spikes: Tensor, begins: Tensor, time: Tensor, counts: Tensor, outcome: Tensor) -> None:
        """Go through spikes (steps, K, rows, C) of rows that have run for `time` (rows,) steps.

        begins (rows,): -1 for a row that goes on; another begins, and does not stop in its first so many steps. `time` and `counts`
        (rows, K, C) move on. `outcome` (rows, 2 + min(I, C) + K·C) holds the first step, counted from 1, at which a row may stop, none
        above 0 before it is known; whether that is sure; the classes of the answer, if so, -1 for none; and the counts there.
        """
        steps, members, rows, classes = spikes.shape
        _screen_kernel[(rows,)](
            spikes,
            begins,
            time,
            counts,
            outcome,
            *self._tables,
            float(self._exponent) if math.isfinite(self._exponent) else 0.0,
            self._slack,
            steps,
            members,
            classes,
            *spikes.stride(),
            SIZE=self._size,
            FILL=self._fill,
            MEAN={math.inf: LARGEST, -math.inf: SMALLEST, 0.0: GEOMETRIC}.get(self._exponent, POWER),
            MEMBERS=triton.next_power_of_2(members),
            CLASSES=triton.next_power_of_2(classes),
            num_warps=1,
        )
