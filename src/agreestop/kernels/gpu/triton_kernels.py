# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The Triton kernels: the SRM recurrence (`gpu.srm` has the equations), the split into float16
parts (`mixed_product`), and the prefilter.

Recurrence: the strides of an array are (time, outer, member), and its inner axis is dense. Each
constant has one stride. A tile is ROWS × COLUMNS neurons of one member. Arrays of one step are
dense, in the order (outer, member, inner).

Prefilter (`engines.prefilter`): one program takes one row through the steps of a segment, with its
counts in registers, from read-out spikes to the first step at which the row may stop. It computes
in float32, so its margin is wider than that of the CPU's loop.
"""

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from .runtime import on_device_of

BLOCK = 1024  # values of a program that splits
TOGETHER = 16  # steps that the prefilter looks at together
# keeps the logarithm finite for members and classes that only fill up a tile
TINY = tl.constexpr(1e-30)
POWER, GEOMETRIC, LARGEST, SMALLEST = (tl.constexpr(kind) for kind in range(4))


# ---- the SRM recurrence


@triton.jit
def _tile(sizes, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Member, rows (ROWS, 1) and columns (1, COLUMNS) of this program's tile, and a mask of the
    neurons that exist.
    """
    outer, _, inner = sizes
    program = tl.program_id(0)
    across, down = tl.cdiv(inner, COLUMNS), tl.cdiv(outer, ROWS)
    row = (program // across % down) * ROWS + tl.arange(0, ROWS)[:, None]
    column = (program % across) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    return (
        (program // (across * down)).to(tl.int64),
        row.to(tl.int64),
        column.to(tl.int64),
        (row < outer) & (column < inner),
    )


@triton.jit
def _constants_of(constants, strides, member):
    """a, b, r, θ and c of the member."""
    a = tl.load(constants[0] + member * strides[0])
    b = tl.load(constants[1] + member * strides[1])
    r = tl.load(constants[2] + member * strides[2])
    threshold = tl.load(constants[3] + member * strides[3])
    gain = tl.load(constants[4] + member * strides[4])
    return a, b, r, threshold, gain


@triton.jit
def _at(array, strides, member, row, column):
    """Addresses of the neurons of a tile in the first step of an array."""
    return array + member * strides[2] + (row * strides[1] + column)


@triton.jit
def _load_state(arrays, index, exists):
    synapse = tl.load(arrays[0] + index, mask=exists, other=0.0)
    membrane = tl.load(arrays[1] + index, mask=exists, other=0.0)
    refractory = tl.load(arrays[2] + index, mask=exists, other=0.0)
    return synapse, membrane, refractory


@triton.jit
def _store_state(arrays, index, exists, state):
    tl.store(arrays[0] + index, state[0], mask=exists)
    tl.store(arrays[1] + index, state[1], mask=exists)
    tl.store(arrays[2] + index, state[2], mask=exists)


@triton.jit
def _checkpoint(array, segment, size):
    """Addresses of the saved state at the start of a segment. The first segment has none."""
    start = array + (segment - 1) * 3 * size
    return start, start + size, start + 2 * size


@triton.jit
def _load_segment(array, stride, exists, first, lasts, SEGMENT: tl.constexpr, EVEN: tl.constexpr):
    """Load all steps of a segment before the first is used, because the compiler moves no load
    across a store.
    """
    loaded: tl.tuple = ()
    for step in tl.static_range(SEGMENT):
        there = exists if EVEN else first + step < lasts
        loaded = loaded + (tl.load(array + (first + step) * stride, mask=there, other=0.0),)  # noqa: RUF005
    return loaded


@triton.jit
def step_srm(x, i, m, h, a, b, reset, gain):
    """One step of SRM neurons: i_t, m_t and u_t; `reset` is -θ r."""
    i = tl.fma(i, b, x)
    m = tl.fma(m, a, i)
    return i, m, tl.fma(h, reset, m * gain)


@triton.jit
def _slope(v, inside, outside, SLOPE: tl.constexpr):
    """g(v) of `kernels.srm`; `inside` multiplies v and `outside` the result."""
    if SLOPE == "arctan":
        scaled = v * inside
        slope = outside / (scaled * scaled + 1)
    elif SLOPE == "sigmoid":
        s = tl.sigmoid(v * inside)
        slope = s * (1 - s) * outside
    elif SLOPE == "triangle":
        slope = tl.maximum(1 - tl.abs(v) * inside, 0) * outside
    else:
        tl.static_assert(SLOPE == "fast-sigmoid" or SLOPE == "superspike")
        scaled = tl.abs(v) * inside + 1
        slope = outside / (scaled * scaled)
    return slope


@triton.jit
def forward_kernel(
    currents, spikes, before, after, bits, checkpoints, constants, steps, segments, sizes,
    currents_strides, spikes_strides, constants_strides, SEGMENT: tl.constexpr, EVEN: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """before None: the state is zero. bits None: nothing is saved for a backward pass.

    EVEN: all segments are full.
    """
    member, row, column, exists = _tile(sizes, ROWS, COLUMNS)
    a, b, r, threshold, gain = _constants_of(constants, constants_strides, member)
    reset = -(threshold * r)
    lasts = tl.where(exists, steps, 0)  # the number of steps of each neuron of the tile
    size = tl.cast(sizes[0], tl.int64) * sizes[1] * sizes[2]
    index = (row * sizes[1] + member) * sizes[2] + column
    source = _at(currents, currents_strides, member, row, column)
    target = _at(spikes, spikes_strides, member, row, column)
    if before is None:
        i = tl.zeros((ROWS, COLUMNS), tl.float32)
        m = tl.zeros((ROWS, COLUMNS), tl.float32)
        h = tl.zeros((ROWS, COLUMNS), tl.float32)
    else:
        i, m, h = _load_state(before, index, exists)
    segment = tl.cast(0, tl.int64)
    while segment < segments:
        first = segment * SEGMENT
        loaded = _load_segment(source, currents_strides[0], exists, first, lasts, SEGMENT, EVEN)
        word = tl.zeros((ROWS, COLUMNS), tl.int32)
        if bits is not None:  # noqa: SIM102 (a condition at compile time; the next one is at run time)
            if segment > 0:
                _store_state(_checkpoint(checkpoints, segment, size), index, exists, (i, m, h))
        for step in tl.static_range(SEGMENT):
            new_i, new_m, u = step_srm(loaded[step].to(tl.float32), i, m, h, a, b, reset, gain)
            spiked = u >= threshold
            spike = spiked.to(tl.float32)
            new_h = tl.fma(h, r, spike)
            word |= spiked.to(tl.int32) << step
            if EVEN:
                there = exists
                i, m, h = new_i, new_m, new_h
            else:
                there = first + step < lasts
                i, m, h = (
                    tl.where(there, new_i, i),
                    tl.where(there, new_m, m),
                    tl.where(there, new_h, h),
                )
            tl.store(
                target + (first + step) * spikes_strides[0],
                spike.to(spikes.dtype.element_ty),
                mask=there,
            )
        if bits is not None:
            tl.store(bits + segment * size + index, word.to(tl.int16), mask=exists)
        segment += 1
    _store_state(after, index, exists, (i, m, h))


@triton.jit
def backward_kernel(
    to_spikes, to_after, to_currents, to_before, to_constants, currents, before, bits, checkpoints,
    constants, inside_slope, outside_slope, steps, segments, sizes, to_spikes_strides,
    to_currents_strides, currents_strides, constants_strides, SLOPE: tl.constexpr,
    SEGMENT: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """to_after None: zero. to_before or to_constants None: not needed. to_constants receives
    five sums per program.
    """
    member, row, column, exists = _tile(sizes, ROWS, COLUMNS)
    a, b, r, threshold, gain = _constants_of(constants, constants_strides, member)
    reset = -(threshold * r)
    lasts = tl.where(exists, steps, 0)  # the number of steps of each neuron of the tile
    size = tl.cast(sizes[0], tl.int64) * sizes[1] * sizes[2]
    index = (row * sizes[1] + member) * sizes[2] + column
    source = _at(currents, currents_strides, member, row, column)
    arriving = _at(to_spikes, to_spikes_strides, member, row, column)
    target = _at(to_currents, to_currents_strides, member, row, column)
    zero = tl.zeros((ROWS, COLUMNS), tl.float32)
    to_i, to_m, to_h = zero, zero, zero
    if to_after is not None:
        to_i, to_m, to_h = _load_state(to_after, index, exists)
    for_a, for_b, for_r, for_threshold, for_gain = zero, zero, zero, zero, zero
    segment = tl.cast(segments, tl.int64)
    while segment > 0:
        segment -= 1
        first = segment * SEGMENT
        loaded = _load_segment(source, currents_strides[0], exists, first, lasts, SEGMENT, EVEN)
        arrived = _load_segment(arriving, to_spikes_strides[0], exists, first, lasts, SEGMENT, EVEN)
        word = tl.load(bits + segment * size + index, mask=exists, other=0).to(tl.int32)
        i, m, h = zero, zero, zero
        if segment > 0:
            i, m, h = _load_state(_checkpoint(checkpoints, segment, size), index, exists)
        elif before is not None:
            i, m, h = _load_state(before, index, exists)
        slopes: tl.tuple = ()
        states: tl.tuple = ()
        for step in tl.static_range(SEGMENT):
            new_i, new_m, u = step_srm(loaded[step].to(tl.float32), i, m, h, a, b, reset, gain)
            slopes = slopes + (_slope(u - threshold, inside_slope, outside_slope, SLOPE),)  # noqa: RUF005
            if to_constants is not None:
                states = states + ((i, m, h, new_m),)  # noqa: RUF005
            i, m, h = new_i, new_m, tl.fma(h, r, ((word >> step) & 1).to(tl.float32))
        for step in tl.static_range(SEGMENT - 1, -1, -1):
            there = exists if EVEN else first + step < lasts
            to_u = slopes[step] * (to_h + arrived[step].to(tl.float32))
            if not EVEN:
                to_u = tl.where(there, to_u, 0.0)
            new_m = tl.fma(to_u, gain, to_m)
            new_h = tl.fma(to_u, -threshold, to_h)
            to_x = to_i + new_m
            if to_constants is not None:
                old_i, old_m, old_h, now_m = states[step]
                within = there.to(tl.float32)
                for_a = tl.fma(new_m * within, old_m, for_a)
                for_b = tl.fma(to_x * within, old_i, for_b)
                for_r = tl.fma(new_h * within, old_h, for_r)
                for_threshold -= to_u * tl.fma(old_h, r, 1.0)
                for_gain = tl.fma(to_u, now_m, for_gain)
            if EVEN:
                to_i, to_m, to_h = to_x * b, new_m * a, new_h * r
            else:
                to_i = tl.where(there, to_x * b, to_i)
                to_m = tl.where(there, new_m * a, to_m)
                to_h = tl.where(there, new_h * r, to_h)
            tl.store(
                target + (first + step) * to_currents_strides[0],
                to_x.to(to_currents.dtype.element_ty),
                mask=there,
            )
    if to_before is not None:
        _store_state(to_before, index, exists, (to_i, to_m, to_h))
    if to_constants is not None:
        sums = to_constants + tl.program_id(0).to(tl.int64) * 5
        tl.store(sums, tl.sum(for_a))
        tl.store(sums + 1, tl.sum(for_b))
        tl.store(sums + 2, tl.sum(for_r))
        tl.store(sums + 3, tl.sum(for_threshold))
        tl.store(sums + 4, tl.sum(for_gain))


# ---- the split into float16 parts


@triton.jit
def _split_kernel(values, scale, parts, count, factor, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = index < count
    member = tl.program_id(1).to(tl.int64)
    value = tl.load(values + member * count + index, mask=exists, other=0.0)
    if scale is not None:
        value *= tl.load(scale)
    first = value.to(tl.float16)
    target = parts + member * 2 * count + index
    tl.store(target, first, mask=exists)
    tl.store(target + count, ((value - first.to(tl.float32)) * factor).to(tl.float16), mask=exists)


def split(values: Tensor, factor: float, scale: Tensor | None = None) -> Tensor:
    """Parts (K, 2, ...) in float16 of contiguous values (K, ...) times a scale.

    The second part is multiplied by the factor.
    """
    members, count = len(values), values[0].numel()
    parts = torch.empty((members, 2, *values.shape[1:]), dtype=torch.float16, device=values.device)
    with on_device_of(values):
        _split_kernel[(triton.cdiv(count, BLOCK), members)](
            values, scale, parts, count, factor, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=True
        )
    return parts


# ---- the prefilter


@triton.jit
def _log_sum(values, mask):
    """log Σ exp over the last axis, of the entries where `mask`."""
    top = tl.max(tl.where(mask, values, -1e30), 1)
    return top + tl.log(
        tl.maximum(
            tl.sum(tl.where(mask, tl.exp(tl.where(mask, values - top[:, None], 0.0)), 0.0), 1), TINY
        )
    )


@triton.jit
def _pooled(count, exists, members, exponent, MEAN: tl.constexpr):
    """The pooled log-confidence (S, C) from counts (S, K, C)."""
    numbers = tl.where(exists, count.to(tl.float32), -1e30)
    gaps = numbers - tl.max(numbers, 2)[:, :, None]
    logs = (
        gaps - tl.log(tl.maximum(tl.sum(tl.where(exists, tl.exp(gaps), 0.0), 2), TINY))[:, :, None]
    )
    if MEAN == LARGEST:
        pooled = tl.max(tl.where(exists, logs, -1e30), 1)
    elif MEAN == SMALLEST:
        pooled = tl.min(tl.where(exists, logs, 1e30), 1)
    elif MEAN == GEOMETRIC:
        pooled = tl.sum(tl.where(exists, logs, 0.0), 1) / members
    else:
        scaled = tl.where(exists, logs * exponent, -1e30)
        top = tl.max(scaled, 1)
        total = tl.sum(tl.where(exists, tl.exp(scaled - top[:, None, :]), 0.0), 1)
        pooled = (top + tl.log(tl.maximum(total / members, TINY))) / exponent
    return pooled


@triton.jit
def _prefilter_kernel(
    spikes, begins, time, counts, outcome, temperatures, bounds, certain, exponent, steps, members,
    classes, time_stride, member_stride, row_stride, class_stride, SIZE: tl.constexpr,
    MEAN: tl.constexpr, STEPS: tl.constexpr, MEMBERS: tl.constexpr, CLASSES: tl.constexpr,
    LOOKS: tl.constexpr,
):  # fmt: skip
    """One row of `find_stops`, STEPS steps at a time."""
    row = tl.program_id(0).to(tl.int64)
    step, every_class = tl.arange(0, STEPS), tl.arange(0, CLASSES)
    member, label = tl.arange(0, MEMBERS)[:, None], every_class[None, :]
    exists = (member < members) & (label < classes)
    cell, entry = member * classes + label, 1 + members * classes
    source = spikes + row * row_stride + member * member_stride + label * class_stride
    outcome += row * (2 + LOOKS * entry)
    counts += row * members * classes
    begin = tl.load(begins + row).to(tl.int32)
    fresh = begin >= 0
    passed = tl.where(fresh, 0, tl.load(time + row))
    found = tl.where(fresh, 0, tl.load(outcome))
    no_stop_before = tl.where(fresh, begin, tl.load(outcome + 1))
    before = tl.where(fresh, 0, tl.load(counts + cell, mask=exists, other=0))
    first = 0
    while first < steps:
        there = first + step < steps
        at = (first + step).to(tl.int64)[:, None, None] * time_stride
        spiked = tl.load(
            source[None, :, :] + at, mask=there[:, None, None] & exists[None, :, :], other=0.0
        )
        added = (spiked != 0).to(tl.int32)
        count = tl.cumsum(added, 0) + before[None, :, :]
        now = passed + first + step
        temperature = tl.load(temperatures + now, mask=there, other=1.0)
        bound = tl.load(bounds + now, mask=there, other=0.0)
        earlier = tl.maximum(now - 1, 0)
        same = (temperature == tl.load(temperatures + earlier, mask=there, other=1.0)).to(tl.int32)
        same *= (bound == tl.load(bounds + earlier, mask=there, other=0.0)).to(tl.int32)
        pooled = _pooled(count, exists[None, :, :], members, exponent, MEAN) * temperature[:, None]
        rest = (every_class < classes)[None, :] & there[:, None]
        whole = _log_sum(pooled, rest)
        for _ in tl.static_range(SIZE):
            rest = rest & (
                every_class[None, :] != tl.argmax(tl.where(rest, pooled, -1e30), 1)[:, None]
            )
        risk = _log_sum(pooled, rest) - whole
        # A step without spikes, under the same numbers as the step before, has the same answer.
        news = (tl.sum(tl.sum(added, 2), 1) > 0) | (now == 0) | (same == 0)
        may_stop = there & (now + 1 > no_stop_before) & (risk < bound) & news
        stops = (risk < tl.load(certain + now, mask=there, other=0.0)).to(tl.int32)
        for _ in tl.static_range(LOOKS):
            earliest = tl.min(tl.where(may_stop, step, STEPS), 0)
            if (found >= 0) & (earliest < STEPS):
                chosen = step == earliest
                target = outcome + 2 + found * entry
                tl.store(target, passed + first + earliest + 1)
                tl.store(
                    target + 1 + cell,
                    tl.sum(tl.where(chosen[:, None, None], count, 0), 0),
                    mask=exists,
                )
                found += 1
                if (found == LOOKS) | (tl.sum(tl.where(chosen, stops, 0), 0) > 0):
                    found = -found
                may_stop = may_stop & (step > earliest)
        before += tl.sum(added, 0)
        first += STEPS
    tl.store(time + row, (passed + steps).to(tl.int32))
    tl.store(counts + cell, before, mask=exists)
    tl.store(outcome, found)
    tl.store(outcome + 1, no_stop_before)


def find_stops(
    spikes: Tensor,
    begins: Tensor,
    time: Tensor,
    counts: Tensor,
    outcome: Tensor,
    tables: Sequence[Tensor],
    exponent: float,
    size: int,
) -> None:
    """Go through spikes (steps, K, rows, C) of rows that have run for `time` (rows,) steps,
    all on the GPU.

    begins (rows,): -1 for a row that continues; for a row that begins, the number of first steps in
    which it is known not to stop. `time` and `counts` (rows, K, C) are moved on. tables:
    temperature, and the log-risks below which a row may stop and certainly stops, for each step.
    size: the number of classes in an answer.

    `outcome` (rows, 2 + looks · (1 + K·C)) receives the number of steps at which the row may stop,
    the `begins` of the row, and for each of these steps its number, counted from 1, and the counts
    there. After a certain stop, or as many steps as there is room for, no more are looked for, and
    the number of steps is negative.
    """
    steps, members, rows, classes = spikes.shape
    _prefilter_kernel[(rows,)](
        spikes, begins, time, counts, outcome, *tables,
        exponent if math.isfinite(exponent) else 0.0, steps, members, classes, *spikes.stride(),
        SIZE=size,
        MEAN={math.inf: LARGEST, -math.inf: SMALLEST, 0.0: GEOMETRIC}.get(exponent, POWER),
        STEPS=min(TOGETHER, triton.next_power_of_2(steps)), MEMBERS=triton.next_power_of_2(members),
        CLASSES=triton.next_power_of_2(classes),
        LOOKS=(outcome.shape[1] - 2) // (1 + members * classes), num_warps=4,
    )  # fmt: skip
