# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
"""Convolutions of the event-driven engine: step by step, each spike adds its weight rows to the positions that it reaches.

    currents[y, x, :] += value · W[window position, channel, :]      for the spikes of a step, by position and then by channel

All neurons of a layer take a step together: their state and currents lie in the cache, and none waits for the result of another. Where
neurons rest without input, only positions that a spike reached take the step. Spikes travel from layer to layer as lists of words, one
list a step: (line, column, word) packed into one integer, and the 64 bits of the word. No frame is searched for spikes.
"""

import numpy as np

from . import intrinsics as simd
from .event_format import SRM, SUBTRACTS
from .event_neurons import load_constants, step_integrator, step_srm
from .intrinsics import HALF, NARROW, get, put
from .numba_runtime import jit_template, jit_uncached

WORD = 64  # channels in a word
PAIR = 2 * NARROW
COLUMN, LINE = 20, 40  # bits below the column and the line of a packed entry


@jit_template
def pack(line, column, word):
    return (line << LINE) | (column << COLUMN) | word


@jit_template
def line_of(entry):
    return entry >> LINE


@jit_template
def column_of(entry):
    return (entry >> COLUMN) & ((1 << (LINE - COLUMN)) - 1)


@jit_template
def word_of(entry):
    return entry & ((1 << COLUMN) - 1)


# ---- sorting the words of a step by position


@jit_template
def enter(entry, index, bits, sorting):
    """Set bits of the word with this index in a frame.

    sorting: the frame, the entries of its words, and a bit for every word that is not zero.
    """
    frame, entries, used = sorting
    put(frame, index, get(frame, index) | bits)
    put(entries, index, entry)
    put(used, index >> 6, get(used, index >> 6) | (np.uint64(1) << np.uint64(index & 63)))


@jit_template
def drain(size, sorting, where, words, n):
    """Append the words of a frame to a list of length n and set them to zero. Return the new length."""
    frame, entries, used = sorting
    for group in range((size + 63) >> 6):
        left_over = get(used, group)
        if left_over != 0:
            put(used, group, 0)
        while left_over != 0:
            index = (group << 6) + simd.lowest_bit(left_over)
            left_over &= left_over - np.uint64(1)
            put(where, n, get(entries, index))
            put(words, n, get(frame, index))
            put(frame, index, 0)
            n += 1
    return n


@jit_uncached
def pool_words(layer, steps, lists, pooled, sorting):
    """2×2 max-pool of lists: the result is a spike if the window has one."""
    (begins, where, words), (to_begins, to_where, to_words) = lists, pooled
    height, width, each, n = layer.height // 2, layer.width // 2, layer.words, np.int64(0)
    for t in range(steps):
        put(to_begins, t, n)
        for m in range(get(begins, t), get(begins, t + 1)):
            entry = get(where, m)
            line, column, word = line_of(entry) >> 1, column_of(entry) >> 1, word_of(entry)
            if line < height and column < width:
                enter(pack(line, column, word), (line * width + column) * each + word, get(words, m), sorting)
        n = drain(height * width * each, sorting, to_where, to_words, n)
    put(to_begins, steps, n)


# ---- one layer


@jit_template
def find_reach(window, stride, pad, inputs, outputs, reach, at):
    """For each line (or column) of the input: the first output line that it reaches, and the one after the last."""
    for index in range(inputs):
        behind = index + pad - window
        first = behind // stride + 1 if behind >= 0 else 0
        put(reach, at + 2 * index, min(first, outputs))
        put(reach, at + 2 * index + 1, min(outputs, (index + pad) // stride + 1))


@jit_template
def _add_spikes(
    like, piece, lanes, layer, weights, weight_at, reach, begin, end, where, words, valued, frames, frame_at, currents, touched
):
    """Add the weight rows of the listed words begin … end to the currents, `piece` lanes at a time: `like` has as many.

    All spikes of a word are added in registers. `touched` has a bit for each column of a line.
    """
    width, stride, channels, still = layer.width, layer.row_stride, layer.in_channels, layer.still
    in_width, in_height, window_x, pad_y, pad_x = layer.in_width, layer.in_height, layer.window_x, layer.pad_y, layer.pad_x
    across, below = layer.stride_x * channels * stride, layer.stride_y * window_x * channels * stride
    for n in range(begin, end):
        entry, bits = get(where, n), get(words, n)
        line, column, channel = line_of(entry), column_of(entry), WORD * word_of(entry)
        first_y, last_y = get(reach, 2 * line), get(reach, 2 * line + 1)
        first_x, last_x = get(reach, 2 * (in_height + column)), get(reach, 2 * (in_height + column) + 1)
        if first_y == last_y or first_x == last_x:  # between two windows
            continue
        corner = (
            weight_at + (((line + pad_y) * window_x + column + pad_x) * channels + channel) * stride - first_y * below - first_x * across
        )
        target = (first_y * width + first_x) * lanes
        if still:
            columns = ((np.uint64(2) << np.uint64(last_x - 1 - first_x)) - np.uint64(1)) << np.uint64(first_x)
            for y in range(first_y, last_y):
                put(touched, y, get(touched, y) | columns)
        value_at = frame_at + (channel * in_height + line) * in_width + column
        for y in range(first_y, last_y):
            weight, lane = corner + (first_y - y) * below, target + (y - first_y) * width * lanes
            if last_x - first_x == 3:  # most often: three positions beside each other share the search for spikes
                for part in range(0, lanes, piece):
                    one, left_over = simd.load_like(like, currents, lane + part), bits
                    two = simd.load_like(like, currents, lane + lanes + part)
                    three = simd.load_like(like, currents, lane + 2 * lanes + part)
                    while left_over != 0:
                        bit = simd.lowest_bit(left_over)
                        left_over &= left_over - np.uint64(1)
                        value = np.float32(get(frames, value_at + bit * in_height * in_width)) if valued else np.float32(1)
                        row = weight + part + bit * stride
                        one = simd.plus_row_times(one, weights, row, value)
                        two = simd.plus_row_times(two, weights, row - across, value)
                        three = simd.plus_row_times(three, weights, row - 2 * across, value)
                    simd.store(currents, lane + part, one)
                    simd.store(currents, lane + lanes + part, two)
                    simd.store(currents, lane + 2 * lanes + part, three)
                continue
            for _ in range(first_x, last_x):
                for part in range(0, lanes, piece):
                    total, left_over = simd.load_like(like, currents, lane + part), bits
                    while left_over != 0:
                        bit = simd.lowest_bit(left_over)
                        left_over &= left_over - np.uint64(1)
                        value = np.float32(get(frames, value_at + bit * in_height * in_width)) if valued else np.float32(1)
                        total = simd.plus_row_times(total, weights, weight + part + bit * stride, value)
                    simd.store(currents, lane + part, total)
                weight -= across
                lane += lanes


@jit_template
def _emit(fired, part, lanes, line, column, bits, where, words, n):
    """Collect the spikes of 16 lanes in `bits`; append the word when it is complete and not zero."""
    bits |= np.uint64(fired) << np.uint64(part % WORD)
    if (part + NARROW) % WORD == 0 or part + NARROW == lanes:
        if bits != 0:
            put(where, n, pack(line, column, part // WORD))
            put(words, n, bits)
            n += 1
        bits = np.uint64(0)
    return bits, n


@jit_template
def _step_all(like, lanes, layer, currents, state, state_at, constants, lane, frame, where, words, n):
    """All neurons take a step, and their currents become zero. Spikes are appended to a list of length n; return its new length.

    frame, a word for 64 channels of each position, is zero before and after.
    """
    width, each, neuron, all_lanes = layer.width, layer.words, layer.neuron, layer.all_lanes
    positions = layer.height * width
    for part in range(0, lanes, NARROW):  # the constants of 16 channels stay in registers
        loaded = load_constants(like, constants, lane + part, all_lanes)
        for position in range(positions):
            at = position * lanes + part
            current, own = simd.load_like(like, currents, at), state_at + 3 * at
            synapse, membrane = simd.load_like(like, state, own), simd.load_like(like, state, own + NARROW)
            if neuron == SRM:
                last = simd.load_like(like, state, own + 2 * NARROW)
                synapse, membrane, last, fired = step_srm(current, loaded, synapse, membrane, last)
                simd.store(state, own + 2 * NARROW, last)
            else:
                synapse, membrane, fired = step_integrator(current, loaded, synapse, membrane, neuron == SUBTRACTS)
            simd.store(state, own, synapse)
            simd.store(state, own + NARROW, membrane)
            simd.store(currents, at, like)
            simd.store(frame, position * each * (WORD // NARROW) + part // NARROW, fired)
    for line in range(layer.height):
        for index in range(line * width * each, (line + 1) * width * each):
            bits = get(frame, index)
            if bits != 0:
                put(where, n, pack(line, index // each - line * width, index % each))
                put(words, n, bits)
                put(frame, index, 0)
                n += 1
    return n


@jit_template
def _step_touched(like, lanes, layer, currents, state, state_at, constants, lane, touched, where, words, n):
    """The same where neurons rest without input: only touched positions take the step; one that would spike again stays touched."""
    width, neuron, all_lanes = layer.width, layer.neuron, layer.all_lanes
    for line in range(layer.height):
        left_over, again = get(touched, line), np.uint64(0)
        while left_over != 0:
            column, bits = simd.lowest_bit(left_over), np.uint64(0)
            left_over &= left_over - np.uint64(1)
            for part in range(0, lanes, NARROW):
                loaded = load_constants(like, constants, lane + part, all_lanes)
                at = (line * width + column) * lanes + part
                current, own = simd.load_like(like, currents, at), state_at + 3 * at + NARROW
                _, membrane, fired = step_integrator(current, loaded, like, simd.load_like(like, state, own), neuron == SUBTRACTS)
                simd.store(state, own, membrane)
                simd.store(currents, at, like)
                if fired != 0 and simd.reached(membrane, loaded[5]) != 0:
                    again |= np.uint64(1) << np.uint64(column)
                bits, n = _emit(fired, part, lanes, line, column, bits, where, words, n)
        put(touched, line, again)
    return n


@jit_template
def _run_steps(
    like, sums, piece, lanes, layer, weights, weight_at, constants, lane, state, state_at, steps, reach, lists, valued, frames, frame_at,
    frame_step, emitted, currents, frame, touched,
):  # fmt: skip
    """All steps of a block. `sums` have `piece` lanes; lanes: the number of lanes at each position. Both are literals where they can be."""
    (begins, where, words), (to_begins, to_where, to_words), n = lists, emitted, np.int64(0)
    for t in range(steps):
        put(to_begins, t, n)
        _add_spikes(
            sums, piece, lanes, layer, weights, weight_at, reach, get(begins, t), get(begins, t + 1), where, words, valued, frames,
            frame_at + t * frame_step, currents, touched,
        )  # fmt: skip
        if layer.still:
            n = _step_touched(like, lanes, layer, currents, state, state_at, constants, lane, touched, to_where, to_words, n)
        else:
            n = _step_all(like, lanes, layer, currents, state, state_at, constants, lane, frame, to_where, to_words, n)
    put(to_begins, steps, n)


@jit_uncached
def convolve(
    layer, member, weights, constants, state, slot_at, steps, reach, lists, valued, frames, frame_at, frame_step, emitted, currents,
    frame, touched,
):  # fmt: skip
    """Run a layer of one member over a block of steps, from lists of words to lists of words. All arrays are addresses.

    A line has at most 64 columns. currents and frame are zero before and after. The values of step t, if there are any, begin at
    frame_at + t · frame_step.
    """
    like = simd.zeros_like(simd.zero_sum(weights, NARROW))
    neurons = member * layer.height * layer.width * layer.lanes
    weight_at, lane = layer.weights_at + member * layer.member_stride, layer.lanes_at + member * layer.lanes
    state_at = slot_at + layer.state_at + 3 * neurons
    for line in range(layer.height):  # the last step may have left neurons that spike again
        put(touched, line, (np.uint64(2) << np.uint64(layer.width - 1)) - np.uint64(1))
    if layer.lanes == NARROW:
        _run_steps(
            like, like, NARROW, NARROW, layer, weights, weight_at, constants, lane, state, state_at, steps, reach, lists, valued, frames,
            frame_at, frame_step, emitted, currents, frame, touched,
        )  # fmt: skip
    elif layer.lanes == PAIR:
        _run_steps(
            like, simd.zeros_like(simd.zero_sum(weights, PAIR)), PAIR, PAIR, layer, weights, weight_at, constants, lane, state, state_at,
            steps, reach, lists, valued, frames, frame_at, frame_step, emitted, currents, frame, touched,
        )  # fmt: skip
    elif layer.lanes % HALF == 0:
        _run_steps(
            like, simd.zeros_like(simd.zero_sum(weights, HALF)), HALF, layer.lanes, layer, weights, weight_at, constants, lane, state,
            state_at, steps, reach, lists, valued, frames, frame_at, frame_step, emitted, currents, frame, touched,
        )  # fmt: skip
    else:
        _run_steps(
            like, like, NARROW, layer.lanes, layer, weights, weight_at, constants, lane, state, state_at, steps, reach, lists, valued,
            frames, frame_at, frame_step, emitted, currents, frame, touched,
        )  # fmt: skip
