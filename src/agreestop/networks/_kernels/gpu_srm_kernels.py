# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The Triton kernels of `gpu_srm`, which has the equations.

The strides of an array are (time, outer, member, inner). Each constant has one stride. A tile is ROWS × COLUMNS neurons of one member.
Arrays of one step are dense, in the order (outer, member, inner).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tile(sizes, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Member, rows (ROWS, 1) and columns (1, COLUMNS) of this program's tile, and a mask of the neurons that exist."""
    outer, _, inner = sizes
    program = tl.program_id(0)
    across, down = tl.cdiv(inner, COLUMNS), tl.cdiv(outer, ROWS)
    row = (program // across % down) * ROWS + tl.arange(0, ROWS)[:, None]
    column = (program % across) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    return (program // (across * down)).to(tl.int64), row.to(tl.int64), column.to(tl.int64), (row < outer) & (column < inner)


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
    """Load all steps of a segment before the first is used, because the compiler moves no load across a store."""
    loaded: tl.tuple = ()
    for step in tl.static_range(SEGMENT):
        there = exists if EVEN else first + step < lasts
        loaded = loaded + (tl.load(array + (first + step) * stride, mask=there, other=0.0),)  # noqa: RUF005
    return loaded


@triton.jit
def _slope(v, inside, outside, SLOPE: tl.constexpr):
    """g(v) of `surrogates.py`; `inside` multiplies v and `outside` the result."""
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
    currents, spikes, before, after, bits, checkpoints, constants, steps, segments, sizes, currents_strides, spikes_strides,
    constants_strides, SEGMENT: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """before None: the state is zero. bits None: nothing is saved for a backward pass. EVEN: all segments are full."""
    member, row, column, exists = _tile(sizes, ROWS, COLUMNS)
    a, b, r, threshold, gain = _constants_of(constants, constants_strides, member)
    reset = -(threshold * r)
    lasts = tl.where(exists, steps, 0)  # the number of steps of each neuron of the tile
    size = tl.cast(sizes[0], tl.int64) * sizes[1] * sizes[2]
    index = (row * sizes[1] + member) * sizes[2] + column
    source = currents + member * currents_strides[2] + (row * currents_strides[1] + column * currents_strides[3])
    target = spikes + member * spikes_strides[2] + (row * spikes_strides[1] + column * spikes_strides[3])
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
            new_i = tl.fma(i, b, loaded[step].to(tl.float32))
            new_m = tl.fma(m, a, new_i)
            spiked = tl.fma(h, reset, new_m * gain) >= threshold
            spike = spiked.to(tl.float32)
            new_h = tl.fma(h, r, spike)
            word |= spiked.to(tl.int32) << step
            if EVEN:
                there = exists
                i, m, h = new_i, new_m, new_h
            else:
                there = first + step < lasts
                i, m, h = tl.where(there, new_i, i), tl.where(there, new_m, m), tl.where(there, new_h, h)
            tl.store(target + (first + step) * spikes_strides[0], spike.to(spikes.dtype.element_ty), mask=there)
        if bits is not None:
            tl.store(bits + segment * size + index, word.to(tl.int16), mask=exists)
        segment += 1
    _store_state(after, index, exists, (i, m, h))


@triton.jit
def backward_kernel(
    to_spikes, to_after, to_currents, to_before, to_constants, currents, before, bits, checkpoints, constants, inside_slope,
    outside_slope, steps, segments, sizes, to_spikes_strides, to_currents_strides, currents_strides, constants_strides,
    SLOPE: tl.constexpr, SEGMENT: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """to_after None: zero. to_before or to_constants None: not needed. to_constants receives five sums per program."""
    member, row, column, exists = _tile(sizes, ROWS, COLUMNS)
    a, b, r, threshold, gain = _constants_of(constants, constants_strides, member)
    reset = -(threshold * r)
    lasts = tl.where(exists, steps, 0)  # the number of steps of each neuron of the tile
    size = tl.cast(sizes[0], tl.int64) * sizes[1] * sizes[2]
    index = (row * sizes[1] + member) * sizes[2] + column
    source = currents + member * currents_strides[2] + (row * currents_strides[1] + column * currents_strides[3])
    arriving = to_spikes + member * to_spikes_strides[2] + (row * to_spikes_strides[1] + column * to_spikes_strides[3])
    target = to_currents + member * to_currents_strides[2] + (row * to_currents_strides[1] + column * to_currents_strides[3])
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
            new_i = tl.fma(i, b, loaded[step].to(tl.float32))
            new_m = tl.fma(m, a, new_i)
            u = tl.fma(h, reset, new_m * gain)
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
            tl.store(target + (first + step) * to_currents_strides[0], to_x.to(to_currents.dtype.element_ty), mask=there)
    if to_before is not None:
        _store_state(to_before, index, exists, (to_i, to_m, to_h))
    if to_constants is not None:
        sums = to_constants + tl.program_id(0).to(tl.int64) * 5
        tl.store(sums, tl.sum(for_a))
        tl.store(sums + 1, tl.sum(for_b))
        tl.store(sums + 2, tl.sum(for_r))
        tl.store(sums + 3, tl.sum(for_threshold))
        tl.store(sums + 4, tl.sum(for_gain))
