# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
"""The inner loops of the event-driven engine, compiled by numba: lists of events in, spikes of SRM neurons out.

    x_t = scale · Σ_{events e at t} value_e · W[e, :] + bias
    i_t = b i_{t-1} + x_t,   m_t = a m_{t-1} + i_t,   z_t = 1 where c m_t - θ r h_{t-1} ≥ θ,   h_t = r h_{t-1} + z_t

Neurons lie side by side in *lanes*; a tile has 128 lanes or 16. The sums of a tile stay in registers for all events of a step, and its
state stays there for all steps of a block. A step then costs one read of a weight row per event and little else. Spikes are bits in
arrays (words of 64 neurons, pairs of row and step), so the spikes of a tile over time are neighbours in memory.

Each sum follows the order of its list, and the recursion uses the fused multiply-add where PyTorch does. So each neuron is one fixed
sequence of roundings. It does not depend on the thread, the batch or the length of the block.
"""

import numpy as np

from . import intrinsics as simd
from .intrinsics import HALF, NARROW, WIDE, address, get, put
from .numba_runtime import jit, jit_template, jit_uncached

STEPS_SUMMED = 16  # the recursion runs after the sums of 16 steps, which still lie in the first cache
EVENTS_IN_A_BLOCK = 256  # a 16-bit integer holds the sum of 256 int8 weights
SPARE = 8  # entries that a list needs beyond its events
ROWS_AT_ONCE = 8  # weight rows that a live stream reads together

LAYER_FIELDS = (
    "window", "own",  # 3 for a 3×3 convolution, 0 for a fully connected layer; 1 if each member has its own input, 0 if all share one
    "rows", "outputs",  # weight rows: inputs, or window positions times channels; neurons at each position
    "height", "width",  # positions; 1 × 1 for a fully connected layer
    "wide", "narrow", "lanes",  # tiles of 128 lanes at each position, then tiles of 16; lanes in all
    "words", "pool",  # words of 64 spikes at each position; 1 if a 2×2 max-pool follows
    "in_channels", "in_height", "in_width", "in_words",  # the input after the pool: channels, positions, and words per position
    "weights_at", "row_stride", "member_stride", "state_at", "lanes_at",  # first index of the layer in weights, state and lane constants
)  # fmt: skip
LAYER = np.dtype([(name, np.int64) for name in LAYER_FIELDS])
"""The description of one layer for the loops. Sizes and indices count elements."""


# ---- lists of events


@jit_template
def _append(bits, base, events, n):
    """Append the indices of the set bits, plus `base`, to a list of length n. Return its new length.

    Entries are written eight at a time, because the exit of a loop over single bits would be mispredicted for almost every word. Entries
    past the end are overwritten later, so a list needs `SPARE` more entries than it has events.
    """
    count = simd.count_bits(bits)
    for first in range(0, count, SPARE):
        for index in range(n + first, n + first + SPARE):
            put(events, index, base + simd.lowest_bit(bits))
            bits &= bits - np.uint64(1)
    return n + count


# ---- one tile of neurons over a block of steps


@jit_template
def _sum_rows(total, zero, weights, at, stride, events, begin, end):
    """Add the weight rows of events begin … end to a total, for the lanes from `at` on; `zero` has their number and type."""
    for first in range(begin, end, EVENTS_IN_A_BLOCK):
        part = simd.begin_part(total, zero)
        for n in range(first, min(first + EVENTS_IN_A_BLOCK, end)):
            part = simd.plus_row(part, weights, at + np.int64(get(events, n)) * stride)
        total = simd.end_part(total, part)
    return total


@jit_template
def _sum_rows_times(total, weights, at, stride, events, values, begin, end):
    """The same, with each weight row multiplied by the value of its event."""
    for n in range(begin, end):
        total = simd.plus_row_times(total, weights, at + np.int64(get(events, n)) * stride, get(values, n))
    return total


@jit_template
def _recur(like, currents, current_at, lanes, steps, state, at, constants, scale, bias, spikes, spike_at):
    """Run the recursion over some steps with the state in registers; `like` has the number of lanes."""
    a, b = simd.broadcast_like(like, get(constants, 0)), simd.broadcast_like(like, get(constants, 1))
    r = simd.broadcast_like(like, get(constants, 2))
    threshold, gain = simd.broadcast_like(like, get(constants, 3)), simd.broadcast_like(like, get(constants, 4))
    reset = simd.broadcast_like(like, get(constants, 5))  # -θ r
    synapse, membrane = simd.load_like(like, state, at), simd.load_like(like, state, at + lanes)
    refractory = simd.load_like(like, state, at + 2 * lanes)
    for t in range(steps):
        synapse = simd.fma(synapse, b, simd.fma(simd.load_like(like, currents, current_at + t * lanes), scale, bias))
        membrane = simd.fma(membrane, a, synapse)
        fired = simd.reached(simd.fma(refractory, reset, simd.multiply(membrane, gain)), threshold)
        refractory = simd.fma(refractory, r, simd.ones_where(fired))
        simd.store(spikes, spike_at + 4 * t, fired)
    simd.store(state, at, synapse)
    simd.store(state, at + lanes, membrane)
    simd.store(state, at + 2 * lanes, refractory)


@jit_template
def _run_tile(
    zero, like, lanes, piece, weights, weight_at, stride, starts, list_at, events, values, valued, steps,
    state, state_at, constants, scale, bias, lane, spikes, spike_at, pairs, summed, currents,
):  # fmt: skip
    """Run one tile over all steps of the block. List list_at + t holds the events of step t. summed: `currents` has the sums already."""
    for first in range(0, steps, STEPS_SUMMED):
        count = min(STEPS_SUMMED, steps - first)
        for t in range(0 if summed else count):
            begin, end = get(starts, list_at + first + t), get(starts, list_at + first + t + 1)
            total = simd.zeros_like(zero)
            if valued:
                total = _sum_rows_times(total, weights, weight_at, stride, events, values, begin, end)
            else:
                total = _sum_rows(total, zero, weights, weight_at, stride, events, begin, end)
            simd.store(currents, t * lanes, total)
        for at in range(0, lanes, piece):
            _recur(
                like, currents, at, lanes, count, state, state_at + at, constants,
                simd.load_like(like, scale, lane + at), simd.load_like(like, bias, lane + at),
                spikes, spike_at + 4 * (first + at // 64 * pairs),
            )  # fmt: skip


@jit_template
def _offset(layer, tile):
    """The first lane of a tile; wide tiles come first."""
    return WIDE * tile if tile < layer.wide else WIDE * layer.wide + NARROW * (tile - layer.wide)


@jit_uncached
def _run(
    layer, tile, member, position, weights, starts, list_at, events, values, valued, steps,
    state, slot_at, constants, scale, bias, spikes, pair, pairs, summed, currents,
):  # fmt: skip
    """Run one tile of a member at a position, wide or narrow, over the steps from `pair` on. All arrays are addresses."""
    positions = layer.height * layer.width
    neurons = (member * positions + position) * layer.lanes
    offset = _offset(layer, tile)
    weight_at = layer.weights_at + member * layer.member_stride + offset
    state_at = slot_at + layer.state_at + 3 * (neurons + offset)
    lane = layer.lanes_at + member * layer.lanes + offset
    word = (member * positions + position) * layer.words + offset // 64
    spike_at = 4 * (word * pairs + pair) + offset % 64 // NARROW  # in units of 16 spikes
    if tile < layer.wide:
        _run_tile(
            simd.zero_sum(weights, WIDE), simd.zero_sum(currents, HALF), WIDE, HALF, weights, weight_at, layer.row_stride,
            starts, list_at, events, values, valued, steps,
            state, state_at, constants, scale, bias, lane, spikes, spike_at, pairs, summed, currents,
        )  # fmt: skip
    else:
        _run_tile(
            simd.zero_sum(weights, NARROW), simd.zero_sum(currents, NARROW), NARROW, NARROW, weights, weight_at, layer.row_stride,
            starts, list_at, events, values, valued, steps,
            state, state_at, constants, scale, bias, lane, spikes, spike_at, pairs, summed, currents,
        )  # fmt: skip


# ---- layers


@jit_template
def _gather(layer, received, at, pairs, y, x, events, n):
    """Append the weight rows of all spikes that reach position (y, x) in one step to a list of length n. Return its new length."""
    if layer.window == 0:
        for position in range(layer.in_height * layer.in_width):
            for word in range(layer.in_words):
                bits = get(received, at + (position * layer.in_words + word) * pairs)
                n = _append(bits, position * layer.in_channels + 64 * word, events, n)
        return n
    for row in range(max(0, 1 - y), min(3, layer.in_height - y + 1)):
        for column in range(max(0, 1 - x), min(3, layer.in_width - x + 1)):
            position = (y + row - 1) * layer.in_width + x + column - 1
            for word in range(layer.in_words):
                bits = get(received, at + (position * layer.in_words + word) * pairs)
                n = _append(bits, (3 * row + column) * layer.in_channels + 64 * word, events, n)
    return n


@jit_template
def _read_values(layer, frames, at, y, x, events, begin, end, values):
    """Read the values of the listed inputs of a convolution from frames (channels, height, width)."""
    for n in range(begin, end):
        cell, channel = get(events, n) // layer.in_channels, get(events, n) % layer.in_channels
        position = (y + cell // 3 - 1) * layer.in_width + x + cell % 3 - 1
        put(values, n, get(frames, at + channel * layer.in_height * layer.in_width + position))


@jit()
def advance(
    layer, members, weights, constants, scale, bias, slots, slot_size, state, steps, spikes, received, frames, valued,
    starts, events, values, currents, start, stop,
):  # fmt: skip
    """Run items start … stop of a layer over a block of steps.

    A fully connected layer whose members share their input has items (member, tile, row), and the lists hold its inputs. The row is the
    innermost index, so the weights of a tile stay in the second cache for all rows and steps. Every other layer has items (member, line,
    row), and the lists are scratch memory: each position lists its inputs in every step of the block once for all its lanes, and once for
    all members if they share the input.
    """
    rows, positions, tiles = len(slots), layer.in_height * layer.in_width, layer.wide + layer.narrow
    for item in range(start, stop):
        unit, row = item // rows, item % rows
        if layer.window == 0 and layer.own == 0:
            member = unit // tiles
            _run(
                layer, unit % tiles, member, np.int64(0), address(weights), address(starts), row * steps, address(events), address(values),
                valued, steps, address(state), slots[row] * slot_size, address(constants[member]), address(scale), address(bias),
                address(spikes), row * steps, spikes.shape[1], np.bool_(False), address(currents),
            )  # fmt: skip
            continue
        group, y = unit // layer.height, unit % layer.height
        first = group * positions * layer.in_words * received.shape[1]
        for x in range(layer.width):
            n = 0
            for t in range(steps):
                pair, begin = row * steps + t, n
                starts[t] = begin
                n = _gather(layer, address(received), first + pair, received.shape[1], y, x, address(events), n)
                if valued:
                    at = pair * layer.in_channels * positions
                    _read_values(layer, address(frames), at, y, x, address(events), begin, n, address(values))
            starts[steps] = n
            for member in range(group if layer.own else 0, group + 1 if layer.own else members):
                for tile in range(tiles):
                    _run(
                        layer, tile, member, y * layer.width + x, address(weights), address(starts), np.int64(0),
                        address(events), address(values), valued, steps, address(state), slots[row] * slot_size,
                        address(constants[member]), address(scale), address(bias), address(spikes), row * steps,
                        spikes.shape[1], np.bool_(False), address(currents),
                    )  # fmt: skip


@jit()
def pool(layer, pairs, spikes, pooled, start, stop):
    """2×2 max-pool: the result is a spike if the window has one. For items start … stop of (member, line of the result)."""
    height, width, words = layer.height // 2, layer.width // 2, layer.words
    for item in range(start, stop):
        member, y = item // height, item % height
        for x in range(width):
            source = ((member * layer.height + 2 * y) * layer.width + 2 * x) * words
            below, target = source + layer.width * words, (item * width + x) * words
            for word in range(words):
                for pair in range(pairs):
                    upper = spikes[source + word, pair] | spikes[source + words + word, pair]
                    pooled[target + word, pair] = upper | spikes[below + word, pair] | spikes[below + words + word, pair]


# ---- inputs


@jit()
def list_inputs(marks, frames, valued, inputs, total, rows, first, steps, starts, events, values):
    """List the active inputs of each row and step, and their values. marks is (all rows, total steps, inputs)."""
    n, whole, flags = 0, inputs - inputs % 64, address(marks)
    for row in range(len(rows)):
        for t in range(steps):
            at, begin = (rows[row] * total + first + t) * inputs, n
            starts[row * steps + t] = begin
            for piece in range(0, whole, 64):
                n = _append(simd.nonzero_mask(flags, at + piece), piece, address(events), n)
            for index in range(whole, inputs):
                if marks[at + index]:
                    events[n] = index
                    n += 1
            if valued:
                for m in range(begin, n):
                    values[m] = frames[at + events[m]]
    starts[len(rows) * steps] = n


@jit()
def mark_positions(layer, marks, total, rows, first, steps, received):
    """Set a bit for each active input of a convolution, channels of a position together. marks is (rows, steps, channels, positions)."""
    positions = layer.in_height * layer.in_width
    received[:, : len(rows) * steps] = 0
    for row in range(len(rows)):
        for t in range(steps):
            for channel in range(layer.in_channels):
                at = ((rows[row] * total + first + t) * layer.in_channels + channel) * positions
                for position in range(positions):
                    if marks[at + position]:
                        word = position * layer.in_words + channel // 64
                        received[word, row * steps + t] |= np.uint64(1) << np.uint64(channel % 64)


# ---- one live stream


@jit_template
def _stream_shared(layer, members, weights, constants, scale, bias, state, spikes, starts, events, values, currents):
    """`advance` with a shared input, for one row and step. The wide tiles add a few events at a time, along whole weight rows.

    The weights come from main memory. The processor prefetches a few rows that are read to their end, but not parts of many rows.
    """
    lanes, count, rows, sums = layer.lanes, starts[1], address(weights), address(currents)
    zero = simd.zero_sum(rows, WIDE)
    currents[: members * lanes] = 0
    for first in range(0, count, ROWS_AT_ONCE):
        last = min(first + ROWS_AT_ONCE, count)
        for begin in range(0, members * lanes, lanes):
            for lane in range(begin, begin + WIDE * layer.wide, WIDE):
                total = simd.load_like(simd.zeros_like(zero), sums, lane)
                total = _sum_rows(total, zero, rows, layer.weights_at + lane, layer.row_stride, address(events), first, last)
                simd.store(sums, lane, total)
    for member in range(members):
        for tile in range(layer.wide + layer.narrow):
            _run(
                layer, tile, member, np.int64(0), rows, address(starts), np.int64(0), address(events), address(values), np.bool_(False),
                np.int64(1), address(state), np.int64(0), address(constants[member]), address(scale), address(bias), address(spikes),
                np.int64(0), np.int64(1), tile < layer.wide, address(currents[member * lanes + _offset(layer, tile) :]),
            )  # fmt: skip


@jit()
def push(
    layers, weights, constants, scale, bias, given, given_values, valued, marks, frames, slots, state, spikes, starts, events, values,
    currents, counts,
):  # fmt: skip
    """Run one step of a live stream through all layers and add its read-out spikes to `counts`.

    Return -1, or the index of the first event that is not an input. `spikes` holds the input bits of a convolution, then the spikes of
    each layer and their max-pool.
    """
    inputs, members, zero, one = len(marks), len(counts), np.int64(0), np.int64(1)
    for n in range(len(given)):
        if given[n] < 0 or given[n] >= inputs:
            return n
    for n in range(len(given)):
        marks[given[n]] = 1
        if valued:
            frames[given[n]] = given_values[n]
            marks[given[n]] = given_values[n] != 0
    layer = layers[0]
    at = layer.in_height * layer.in_width * layer.in_words if layer.window else zero
    after = at + members * layer.height * layer.width * layer.words
    if layer.window:
        mark_positions(layer, marks, one, slots, zero, one, spikes[:at])
    else:
        list_inputs(marks, frames, valued, inputs, one, slots, zero, one, starts, events, values)
    if layer.window or valued:
        items = layer.height if layer.window else members * (layer.wide + layer.narrow)
        advance(
            layer, members, weights, constants[0], scale, bias, slots, zero, state, one, spikes[at:], spikes, frames, valued,
            starts, events, values, currents, zero, items,
        )  # fmt: skip
    else:
        _stream_shared(layer, members, weights, constants[0], scale, bias, state, spikes, starts, events, values, currents)
    for n in range(len(given)):
        marks[given[n]] = 0
    for index in range(1, len(layers)):
        if layer.pool:
            pool(layer, one, spikes[at:], spikes[after:], zero, members * (layer.height // 2))
            at, after = after, after + members * (layer.height // 2) * (layer.width // 2) * layer.words
        layer = layers[index]
        advance(
            layer, members, weights, constants[index], scale, bias, slots, zero, state, one, spikes[after:], spikes[at:], frames,
            np.bool_(False), starts, events, values, currents, zero, members * layer.height,
        )  # fmt: skip
        at, after = after, after + members * layer.height * layer.width * layer.words
    for member in range(members):
        for label in range(counts.shape[1]):
            counts[member, label] += (spikes[at + member * layer.words + label // 64, 0] >> np.uint64(label % 64)) & np.uint64(1)
    return -1
