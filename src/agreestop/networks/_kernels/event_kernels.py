# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
"""The inner loops of the event-driven engine, compiled by numba: lists of events in, spikes of neurons out.

    x_t = scale · Σ_{events e at t} value_e · W[e, :] + bias
    SRM:          i_t = b i_{t-1} + x_t,   m_t = a m_{t-1} + i_t,   z_t = 1 where c m_t - θ r h_{t-1} ≥ θ,   h_t = r h_{t-1} + z_t
    integrators:  i_t = b i_{t-1} + x_t,   v_t = a v_{t-1} + c i_t + l,   z_t = 1 where v_t ≥ θ,   then v_t ← ρ or v_t - ρ where z_t = 1

Neurons lie side by side in *lanes*; a tile has 128 lanes or 16. The sums of a tile stay in registers for all events of a step, and its
state stays there for all steps of a block. A step then costs one read of a weight row per event and little else. Spikes are bits in
arrays (words of 64 neurons, pairs of row and step), so the spikes of a tile over time are neighbours in memory.

Each sum follows the order of its list, and the recursion uses the fused multiply-add where PyTorch does. So each neuron is one fixed
sequence of roundings. It does not depend on the thread, the batch or the length of the block.
"""

import numpy as np

from . import intrinsics as simd
from .intrinsics import EIGHT, HALF, NARROW, WIDE, address, get, put
from .numba_runtime import jit, jit_template, jit_uncached

STEPS_SUMMED = 16  # the recursion runs after the sums of 16 steps, which still lie in the first cache
EVENTS_IN_A_BLOCK = 256  # a 16-bit integer holds the sum of 256 int8 weights
SPARE = 8  # entries that a list needs beyond its events
ROWS_AT_ONCE = 8  # weight rows that a live stream reads together

LAYER_FIELDS = (
    "still",  # 1 if neurons below their threshold stay as they are without input: IF neurons
    "neuron", "recurrent",  # SRM, RESETS or SUBTRACTS; weight rows for the layer's own spikes of the last step, after those for its input
    "listed", "own",  # 1 if the inputs are lists, 0 if they are bits; 1 if each member has its own input, 0 if all share one
    "window_y", "window_x", "stride_y", "stride_x", "pad_y", "pad_x",  # of a convolution; a fully connected layer has one window
    "rows", "outputs",  # weight rows: window positions times channels, and recurrent ones; neurons at each position
    "height", "width",  # positions; 1 × 1 for a fully connected layer
    "wide", "narrow", "lanes",  # tiles of 128 lanes at each position, then tiles of 16; lanes in all
    "words", "pool",  # words of 64 spikes at each position; 1 if a 2×2 max-pool follows
    "in_channels", "in_height", "in_width", "in_words",  # the input after the pool: channels, positions, and words per position
    "weights_at", "row_stride", "member_stride", "state_at", "lanes_at", "all_lanes",  # first indices in weights, state and constants
)  # fmt: skip
SRM, RESETS, SUBTRACTS = 0, 1, 2
"""Kinds of neurons: the spike response model; integrators that are set to a value after a spike, or from which one is subtracted."""
CONSTANTS = ("scale", "bias", "a", "b", "r", "threshold", "gain", "reset")
"""Rows of the constants, each with one number for every lane. r is l for integrators; reset is -θ r for SRM neurons."""
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
def _recur(like, currents, current_at, lanes, steps, state, at, constants, lane, all_lanes, neuron, spikes, spike_at):
    """Run the recursion over some steps with the state in registers; `like` has the number of lanes."""
    scale, bias = simd.load_like(like, constants, lane), simd.load_like(like, constants, lane + all_lanes)
    a, b = simd.load_like(like, constants, lane + 2 * all_lanes), simd.load_like(like, constants, lane + 3 * all_lanes)
    r, threshold = simd.load_like(like, constants, lane + 4 * all_lanes), simd.load_like(like, constants, lane + 5 * all_lanes)
    gain, reset = simd.load_like(like, constants, lane + 6 * all_lanes), simd.load_like(like, constants, lane + 7 * all_lanes)
    synapse, membrane = simd.load_like(like, state, at), simd.load_like(like, state, at + lanes)
    last = simd.load_like(like, state, at + 2 * lanes)  # the refractory state, or the last spikes of an integrator
    if neuron == SRM:
        for t in range(steps):
            synapse = simd.fma(synapse, b, simd.fma(simd.load_like(like, currents, current_at + t * lanes), scale, bias))
            membrane = simd.fma(membrane, a, synapse)
            fired = simd.reached(simd.fma(last, reset, simd.multiply(membrane, gain)), threshold)
            last = simd.fma(last, r, simd.ones_where(fired))
            simd.store(spikes, spike_at + 4 * t, fired)
    else:
        for t in range(steps):
            synapse = simd.fma(synapse, b, simd.fma(simd.load_like(like, currents, current_at + t * lanes), scale, bias))
            membrane = simd.fma(membrane, a, simd.fma(synapse, gain, r))
            fired = simd.reached(membrane, threshold)
            membrane = simd.where(fired, simd.subtract(membrane, reset) if neuron == SUBTRACTS else reset, membrane)
            last = simd.ones_where(fired)
            simd.store(spikes, spike_at + 4 * t, fired)
    simd.store(state, at, synapse)
    simd.store(state, at + lanes, membrane)
    simd.store(state, at + 2 * lanes, last)


@jit_template
def _run_tile(
    zero, like, lanes, piece, weights, weight_at, stride, starts, list_at, events, values, valued, steps,
    state, state_at, constants, lane, all_lanes, neuron, still, spikes, spike_at, pairs, summed, currents,
):  # fmt: skip
    """Run one tile over all steps of the block. List list_at + t holds the events of step t. summed: `currents` has the sums already."""
    for first in range(0, steps, STEPS_SUMMED):
        count = min(STEPS_SUMMED, steps - first)
        if still and get(starts, list_at + first) == get(starts, list_at + first + count):
            awake = False
            for at in range(0, lanes, piece):
                membrane = simd.load_like(like, state, state_at + lanes + at)
                fired = simd.reached(membrane, simd.load_like(like, constants, lane + 5 * all_lanes + at))
                awake = awake or fired != 0
                simd.store(state, state_at + 2 * lanes + at, simd.ones_where(fired))
                for t in range(count):
                    simd.store(spikes, spike_at + 4 * (first + at // 64 * pairs + t), fired)
            if not awake:
                continue
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
                like, currents, at + (first * lanes if summed else 0), lanes, count, state, state_at + at, constants, lane + at, all_lanes,
                neuron,
                spikes, spike_at + 4 * (first + at // 64 * pairs),
            )  # fmt: skip


@jit_template
def _offset(layer, tile):
    """The first lane of a tile; wide tiles come first."""
    return WIDE * tile if tile < layer.wide else WIDE * layer.wide + NARROW * (tile - layer.wide)


@jit_uncached
def _run(
    layer, tile, member, position, weights, starts, list_at, events, values, valued, steps,
    state, slot_at, constants, spikes, pair, pairs, summed, currents,
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
            state, state_at, constants, lane, layer.all_lanes, layer.neuron, layer.still, spikes, spike_at, pairs, summed, currents,
        )  # fmt: skip
    else:
        _run_tile(
            simd.zero_sum(weights, NARROW), simd.zero_sum(currents, NARROW), NARROW, NARROW, weights, weight_at, layer.row_stride,
            starts, list_at, events, values, valued, steps,
            state, state_at, constants, lane, layer.all_lanes, layer.neuron, layer.still, spikes, spike_at, pairs, summed, currents,
        )  # fmt: skip


# ---- layers


@jit_template
def _find_active(layer, received, first, pairs, steps, y, active):
    """For each word of bits under the windows of line y: the steps in which it is not zero, as bits of one integer for every 64 steps.

    Most words are zero, so eight steps are tested at once. Up to seven words past the steps are read, and ignored.
    """
    top, groups = y * layer.stride_y - layer.pad_y, (steps + 63) // 64
    for row in range(max(0, -top), min(layer.window_y, layer.in_height - top)):
        for word in range(layer.in_width * layer.in_words):
            at = first + ((top + row) * layer.in_width * layer.in_words + word) * pairs
            for group in range(groups):
                found = np.uint64(0)
                for begin in range(64 * group, min(64 * group + 64, steps), EIGHT):
                    found |= simd.nonzero_words(received, at + begin) << np.uint64(begin % 64)
                if steps < 64 * group + 64:
                    found &= (np.uint64(1) << np.uint64(steps % 64)) - np.uint64(1)
                put(active, (row * layer.in_width * layer.in_words + word) * groups + group, found)


@jit_template
def _list_window(layer, received, first, pairs, active, steps, begin, count, y, x, starts, events, valued, frames, frame_at, values):
    """List the weight rows of the spikes that reach position (y, x) in the steps from `begin` on, one list a step, in a fixed order.

    received holds the bits from `first` on, frames the values (steps, channels, positions) from `frame_at` on, and `active` what
    `_find_active` found. The first pass counts the spikes of each step, and the
    second one writes their rows.
    """
    top, left, groups = y * layer.stride_y - layer.pad_y, x * layer.stride_x - layer.pad_x, (steps + 63) // 64
    positions = layer.in_height * layer.in_width
    found = False
    for t in range(count + 2):
        put(starts, t, 0)
    for writing in range(2):
        if writing:
            if not found:
                break
            for t in range(2, count + 2):
                put(starts, t, get(starts, t) + get(starts, t - 1))
        for row in range(max(0, -top), min(layer.window_y, layer.in_height - top)):
            for column in range(max(0, -left), min(layer.window_x, layer.in_width - left)):
                for word in range(layer.in_words):
                    place = (row * layer.in_width + left + column) * layer.in_words + word
                    at = first + (top * layer.in_width * layer.in_words + place) * pairs
                    base = (row * layer.window_x + column) * layer.in_channels + 64 * word
                    for group in range(groups):
                        left_over = get(active, place * groups + group)
                        if count == 1:
                            left_over &= np.uint64(begin // 64 == group) << np.uint64(begin % 64)
                        while left_over != 0:
                            t = 64 * group + simd.lowest_bit(left_over)
                            left_over &= left_over - np.uint64(1)
                            bits = get(received, at + t)
                            if writing:
                                frame = (
                                    frame_at
                                    + (t * layer.in_channels + 64 * word) * positions
                                    + (top + row) * layer.in_width
                                    + left
                                    + column
                                )
                                n = get(starts, t - begin + 1)
                                n = _append_exactly(bits, base, events, n, valued, frames, frame, positions, values)
                                put(starts, t - begin + 1, n)
                            else:
                                found = True
                                put(starts, t - begin + 2, get(starts, t - begin + 2) + simd.count_bits(bits))


@jit_template
def _sum_window(layer, weights, weight_at, received, first, pairs, active, steps, y, x, starts, currents, valued, frames, frame_at):
    """Add the weight rows of the spikes that reach position (y, x) to the currents of one narrow tile, in the order of `_list_window`.

    There are no lists: adding 16 lanes in memory costs no more than listing a row. `starts` only tells in which steps there is input.
    """
    top, left, groups = y * layer.stride_y - layer.pad_y, x * layer.stride_x - layer.pad_x, (steps + 63) // 64
    like, positions = simd.zeros_like(simd.zero_sum(weights, NARROW)), layer.in_height * layer.in_width
    put(starts, 0, 0)
    for t in range(steps):
        put(starts, t + 1, 0)
        simd.store(currents, t * NARROW, like)
    for row in range(max(0, -top), min(layer.window_y, layer.in_height - top)):
        for column in range(max(0, -left), min(layer.window_x, layer.in_width - left)):
            for word in range(layer.in_words):
                place = (row * layer.in_width + left + column) * layer.in_words + word
                at = first + (top * layer.in_width * layer.in_words + place) * pairs
                base = weight_at + ((row * layer.window_x + column) * layer.in_channels + 64 * word) * layer.row_stride
                for group in range(groups):
                    left_over = get(active, place * groups + group)
                    while left_over != 0:
                        t = 64 * group + simd.lowest_bit(left_over)
                        left_over &= left_over - np.uint64(1)
                        bits = get(received, at + t)
                        put(starts, t + 1, 1)
                        frame = frame_at + (t * layer.in_channels + 64 * word) * positions + (top + row) * layer.in_width + left + column
                        total = simd.load_like(like, currents, t * NARROW)
                        while bits != 0:
                            bit = simd.lowest_bit(bits)
                            bits &= bits - np.uint64(1)
                            value = np.float32(get(frames, frame + bit * positions)) if valued else np.float32(1)
                            total = simd.plus_row_times(total, weights, base + bit * layer.row_stride, value)
                        simd.store(currents, t * NARROW, total)
    for t in range(steps):
        put(starts, t + 1, get(starts, t + 1) + get(starts, t))


@jit_template
def _append_exactly(bits, base, events, n, valued, frames, at, positions, values):
    """`_append` that writes nothing past the end of the list, and the values of the events too: those of frames from `at` on."""
    while bits != 0:
        bit = simd.lowest_bit(bits)
        put(events, n, base + bit)
        if valued:
            put(values, n, get(frames, at + bit * positions))
        bits &= bits - np.uint64(1)
        n += 1
    return n


@jit_template
def _list_own_spikes(layer, state, neurons, events, values, valued, n):
    """Append the weight rows of a layer's own spikes of the last step to a list of length n. Return its new length."""
    for tile in range(layer.wide + layer.narrow):
        offset, lanes = _offset(layer, tile), WIDE if tile < layer.wide else NARROW
        last = neurons + 3 * offset + 2 * lanes
        for lane in range(lanes):
            if get(state, last + lane) != 0:
                put(events, n, layer.rows - layer.recurrent + offset + lane)
                if valued:
                    put(values, n, 1)
                n += 1
    return n


@jit()
def advance(
    layer, members, weights, constants, slots, slot_size, state, steps, spikes, received, frames, valued,
    active, starts, events, values, currents, start, stop,
):  # fmt: skip
    """Run items start … stop of a layer over a block of steps.

    A layer whose inputs are listed has items (member, tile, row). The row is the innermost index, so the weights of a tile stay in the
    second cache for all rows and steps. Every other layer has items (member, line, row), and the lists are scratch memory: each position
    lists its inputs in every step of the block once for all its lanes, and once for all members if they share the input. A recurrent layer
    does so step by step, because its own spikes of the last step are among its inputs.
    """
    rows, positions, tiles = len(slots), layer.in_height * layer.in_width, layer.wide + layer.narrow
    for item in range(start, stop):
        unit, row = item // rows, item % rows
        if layer.listed:
            member = unit // tiles
            _run(
                layer, unit % tiles, member, np.int64(0), address(weights), address(starts), row * steps, address(events), address(values),
                valued, steps, address(state), slots[row] * slot_size, address(constants), address(spikes), row * steps, spikes.shape[1],
                np.bool_(False), address(currents),
            )  # fmt: skip
            continue
        group, y = unit // layer.height, unit % layer.height
        first = group * positions * layer.in_words * received.shape[1] + row * steps
        together = 1 if layer.recurrent else steps
        directly = layer.lanes == NARROW and not layer.recurrent and (layer.own or members == 1)
        frame_at = row * steps * layer.in_channels * positions
        _find_active(layer, address(received), first, received.shape[1], steps, y, address(active))
        for x in range(layer.width):
            if directly:
                _sum_window(
                    layer, address(weights), layer.weights_at + group * layer.member_stride, address(received), first, received.shape[1],
                    address(active), steps, y, x, address(starts), address(currents), valued, address(frames), frame_at,
                )  # fmt: skip
                _run(
                    layer, np.int64(0), group, y * layer.width + x, address(weights), address(starts), np.int64(0),
                    address(events), address(values), valued, steps, address(state), slots[row] * slot_size,
                    address(constants), address(spikes), row * steps, spikes.shape[1], np.bool_(True), address(currents),
                )  # fmt: skip
                continue
            for t in range(0, steps, together):
                _list_window(
                    layer, address(received), first, received.shape[1], address(active), steps, t, together, y, x,
                    address(starts), address(events), valued, address(frames), frame_at, address(values),
                )  # fmt: skip
                end = starts[together]
                for member in range(group if layer.own else 0, group + 1 if layer.own else members):
                    if layer.recurrent:
                        own = slots[row] * slot_size + layer.state_at + 3 * member * layer.lanes
                        starts[1] = _list_own_spikes(layer, address(state), own, address(events), address(values), valued, end)
                    for tile in range(tiles):
                        _run(
                            layer, tile, member, y * layer.width + x, address(weights), address(starts), np.int64(0),
                            address(events), address(values), valued, together, address(state), slots[row] * slot_size,
                            address(constants), address(spikes), row * steps + t, spikes.shape[1], np.bool_(False), address(currents),
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
def mark_positions(layer, marks, total, rows, first, steps, received, start, stop):
    """Set a bit for each active input, channels of a position together, for rows start … stop.

    marks is (rows, steps, channels, positions).
    """
    positions, flags, channels = layer.in_height * layer.in_width, address(marks), layer.in_channels
    whole, width = positions - positions % 64, received.shape[1]
    bits = address(received)
    for row in range(start, stop):
        for word in range(positions * layer.in_words):
            for t in range(row * steps, (row + 1) * steps):
                put(bits, word * width + t, 0)
        for t in range(steps):
            for channel in range(channels):
                at = ((rows[row] * total + first + t) * channels + channel) * positions
                one, pair = np.uint64(1) << np.uint64(channel % 64), channel // 64 * width + row * steps + t
                for piece in range(0, whole, 64):
                    active = simd.nonzero_mask(flags, at + piece)
                    while active != 0:
                        place = (piece + simd.lowest_bit(active)) * layer.in_words * width + pair
                        put(bits, place, get(bits, place) | one)
                        active &= active - np.uint64(1)
                for position in range(whole, positions):
                    if get(flags, at + position):
                        place = position * layer.in_words * width + pair
                        put(bits, place, get(bits, place) | one)


@jit()
def list_events(bounds, indices, given, valued, held, steps, starts, events, values):
    """List the events of each row and step, and their values, from a sparse form.

    The events of step t of a row are indices[bounds[row, t] : bounds[row, t + 1]]; an image (held) has one step, which is listed for each.
    """
    n = 0
    for row in range(len(bounds)):
        for t in range(steps):
            starts[row * steps + t] = n
            step = 0 if held else t
            for m in range(bounds[row, step], bounds[row, step + 1]):
                events[n] = indices[m]
                if valued:
                    values[n] = given[m]
                n += 1
    starts[len(bounds) * steps] = n


@jit()
def mark_events(layer, bounds, indices, given, valued, held, steps, received, frames):
    """`mark_positions` from a sparse form (see `list_events`). frames (rows, steps, channels, positions), all 0, gets the values."""
    positions = layer.in_height * layer.in_width
    received[:, : len(bounds) * steps] = 0
    for row in range(len(bounds)):
        for t in range(steps):
            pair, step = row * steps + t, 0 if held else t
            for m in range(bounds[row, step], bounds[row, step + 1]):
                index = np.int64(indices[m])
                channel, position = index // positions, index % positions
                received[position * layer.in_words + channel // 64, pair] |= np.uint64(1) << np.uint64(channel % 64)
                if valued:
                    frames[pair * layer.in_channels * positions + index] = given[m]


# ---- one live stream


@jit_template
def _stream_shared(layer, members, weights, constants, state, spikes, starts, events, values, currents):
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
                np.int64(1), address(state), np.int64(0), address(constants), address(spikes), np.int64(0), np.int64(1), tile < layer.wide,
                address(currents[member * lanes + _offset(layer, tile) :]),
            )  # fmt: skip


@jit()
def push(
    layers, weights, constants, given, given_values, valued, marks, frames, slots, state, spikes, active, starts, events, values,
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
    at = zero if layer.listed else layer.in_height * layer.in_width * layer.in_words
    after = at + members * layer.height * layer.width * layer.words
    if layer.listed:
        list_inputs(marks, frames, valued, inputs, one, slots, zero, one, starts, events, values)
    else:
        mark_positions(layer, marks, one, slots, zero, one, spikes[:at], zero, one)
    if valued or not layer.listed:
        items = members * (layer.wide + layer.narrow) if layer.listed else layer.height
        advance(
            layer, members, weights, constants, slots, zero, state, one, spikes[at:], spikes, frames, valued,
            active, starts, events, values, currents, zero, items,
        )  # fmt: skip
    else:
        _stream_shared(layer, members, weights, constants, state, spikes, starts, events, values, currents)
    for n in range(len(given)):
        marks[given[n]] = 0
    for index in range(1, len(layers)):
        if layer.pool:
            pool(layer, one, spikes[at:], spikes[after:], zero, members * (layer.height // 2))
            at, after = after, after + members * (layer.height // 2) * (layer.width // 2) * layer.words
        layer = layers[index]
        advance(
            layer, members, weights, constants, slots, zero, state, one, spikes[after:], spikes[at:], frames, np.bool_(False), active,
            starts, events, values, currents, zero, members * layer.height,
        )  # fmt: skip
        at, after = after, after + members * layer.height * layer.width * layer.words
    for member in range(members):
        for label in range(counts.shape[1]):
            counts[member, label] += (spikes[at + member * layer.words + label // 64, 0] >> np.uint64(label % 64)) & np.uint64(1)
    return -1


@jit()
def push_rows(
    layers, weights, constants, rows, pointers, given, given_values, valued, marks, frames, slots, states, spikes, active, starts, events,
    values, currents, counts, evidence,
):  # fmt: skip
    """Run steps of many live streams: step n, with the events given[pointers[n] : pointers[n + 1]], is the next one of stream rows[n].

    given_values: the value of each event, if `valued`.
    states (streams, state) and counts (streams, K, C) are those of all streams; evidence (steps, K, C) gets the counts after each step.
    """
    for n in range(len(rows)):
        row = rows[n]
        at = slice(pointers[n], pointers[n + 1])
        push(
            layers, weights, constants, given[at], given_values[at], valued, marks, frames, slots, states[row],
            spikes, active, starts, events, values, currents, counts[row],
        )  # fmt: skip
        evidence[n] = counts[row]
