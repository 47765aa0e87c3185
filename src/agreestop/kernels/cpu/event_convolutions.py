# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
"""Convolutions of the event-driven engine: each spike adds its weight rows to the positions
that it reaches.

    currents[t, y, x, :] += value · W[window position, channel, :]

for the spikes of step t, by position and then by channel.

A layer takes TOGETHER steps at once, 16 channels after the other, and line by line. The spikes of
one line of the input are added to the lines of the output that they reach. A line of the output
that no later spike reaches then takes all these steps, with the state of its neurons in registers.
So the weights of 16 channels and the currents of a few lines lie in the first cache, and a state is
read and written once for all these steps.

Spikes travel from layer to layer as lists of words, ordered by block of TOGETHER steps, line, step,
column and word: one list for each line and step. An entry is (column, word), packed into one
integer, and the 64 bits of the word. No frame is searched for spikes.
"""

import numpy as np

from . import intrinsics as simd
from .event_format import SRM, SUBTRACTS, TOGETHER
from .event_neurons import load_constants, step_integrator, step_srm
from .intrinsics import HALF, NARROW, get, put
from .numba_runtime import jit_template, jit_uncached

WORD = 64  # channels in a word
COLUMN = 20  # bits below the column of a packed entry
# columns on either side of a line of currents, for what a window of three adds outside of it
MARGIN = 2


@jit_template
def pack(column, word):
    return (column << COLUMN) | word


@jit_template
def column_of(entry):
    return entry >> COLUMN


@jit_template
def word_of(entry):
    return entry & ((1 << COLUMN) - 1)


@jit_template
def find_reach(window, stride, pad, inputs, outputs, reach, at):
    """For each line (or column) of the input: the first output line that it reaches, and the one
    after the last.
    """
    for index in range(inputs):
        behind = index + pad - window
        first = behind // stride + 1 if behind >= 0 else 0
        put(reach, at + 2 * index, min(first, outputs))
        put(reach, at + 2 * index + 1, min(outputs, (index + pad) // stride + 1))


# ---- currents; `part` is the first of 16 channels


@jit_template
def _add_to_lines(
    like, lines, layer, weights, weight_at, stride, begins, group, count, where, words, valued,
    frames, frame_at, frame_step, currents, one_at, two_at, three_at,
):  # fmt: skip
    """Add the spikes of one input line to two or three output lines, where the window is 3×3
    and the stride 1.

    `lines` is a literal. The nine (or six) sums of a word stay in registers for all its
    spikes. one_at, two_at and three_at are the indices of the currents that a spike in column
    0 reaches first.
    """
    plane = layer.in_height * layer.in_width
    across, size = layer.in_channels * stride, (layer.width + 2 * MARGIN) * NARROW
    for step in range(count):
        for n in range(get(begins, group + step), get(begins, group + step + 1)):
            entry, left_over = get(where, n), get(words, n)
            column, channel = column_of(entry), WORD * word_of(entry)
            value_at = frame_at + step * frame_step + channel * plane + column
            at = step * size + column * NARROW
            one, two, three = one_at + at, two_at + at, three_at + at
            a, b = simd.load_like(like, currents, one), simd.load_like(like, currents, one + NARROW)
            c = simd.load_like(like, currents, one + 2 * NARROW)
            d = simd.load_like(like, currents, two)
            e = simd.load_like(like, currents, two + NARROW)
            f = simd.load_like(like, currents, two + 2 * NARROW)
            g, h, i = like, like, like
            if lines == 3:
                g = simd.load_like(like, currents, three)
                h = simd.load_like(like, currents, three + NARROW)
                i = simd.load_like(like, currents, three + 2 * NARROW)
            while left_over != 0:
                bit = simd.lowest_bit(left_over)
                left_over &= left_over - np.uint64(1)
                value = np.float32(get(frames, value_at + bit * plane)) if valued else np.float32(1)
                row = weight_at + (channel + bit) * stride
                a = simd.plus_row_times(a, weights, row, value)
                b = simd.plus_row_times(b, weights, row - across, value)
                c = simd.plus_row_times(c, weights, row - 2 * across, value)
                d = simd.plus_row_times(d, weights, row - 3 * across, value)
                e = simd.plus_row_times(e, weights, row - 4 * across, value)
                f = simd.plus_row_times(f, weights, row - 5 * across, value)
                if lines == 3:
                    g = simd.plus_row_times(g, weights, row - 6 * across, value)
                    h = simd.plus_row_times(h, weights, row - 7 * across, value)
                    i = simd.plus_row_times(i, weights, row - 8 * across, value)
            simd.store(currents, one, a)
            simd.store(currents, one + NARROW, b)
            simd.store(currents, one + 2 * NARROW, c)
            simd.store(currents, two, d)
            simd.store(currents, two + NARROW, e)
            simd.store(currents, two + 2 * NARROW, f)
            if lines == 3:
                simd.store(currents, three, g)
                simd.store(currents, three + NARROW, h)
                simd.store(currents, three + 2 * NARROW, i)


@jit_template
def _add_to_positions(
    like, layer, weights, weight_at, stride, reach, line, begins, group, count, where, words,
    valued, frames, frame_at, frame_step, currents, ring, touched,
):  # fmt: skip
    """The same for any window and stride, one position after the other.

    `touched` gets a bit for each column, for each line and step.
    """
    channels, still = layer.in_channels, layer.still
    plane, size = layer.in_height * layer.in_width, (layer.width + 2 * MARGIN) * NARROW
    across = layer.stride_x * channels * stride
    below = layer.stride_y * layer.window_x * channels * stride
    first_y = get(reach, 2 * line)
    last_y = get(reach, 2 * line + 1)
    columns_at = 2 * layer.in_height
    above = (
        weight_at
        + ((line + layer.pad_y) * layer.window_x + layer.pad_x) * channels * stride
        - first_y * below
    )
    for step in range(count):
        for n in range(get(begins, group + step), get(begins, group + step + 1)):
            entry, bits = get(where, n), get(words, n)
            column, channel = column_of(entry), WORD * word_of(entry)
            first_x = get(reach, columns_at + 2 * column)
            last_x = get(reach, columns_at + 2 * column + 1)
            if first_x == last_x:  # between two windows
                continue
            corner = above + (column * channels + channel) * stride - first_x * across
            value_at = frame_at + step * frame_step + channel * plane + column
            columns = (
                (np.uint64(2) << np.uint64(last_x - 1 - first_x)) - np.uint64(1)
            ) << np.uint64(first_x)
            for y in range(first_y, last_y):
                slot = y % ring * TOGETHER + step
                if still:
                    put(touched, slot, get(touched, slot) | columns)
                weight = corner - (y - first_y) * below
                lane = slot * size + (MARGIN + first_x) * NARROW
                for _ in range(first_x, last_x):
                    total, left_over = simd.load_like(like, currents, lane), bits
                    while left_over != 0:
                        bit = simd.lowest_bit(left_over)
                        left_over &= left_over - np.uint64(1)
                        value = (
                            np.float32(get(frames, value_at + bit * plane))
                            if valued
                            else np.float32(1)
                        )
                        total = simd.plus_row_times(total, weights, weight + bit * stride, value)
                    simd.store(currents, lane, total)
                    weight -= across
                    lane += NARROW


@jit_uncached
def _add_line(
    layer, weights, weight_at, stride, reach, line, lists, group, count, valued, frames, frame_at,
    frame_step, currents, ring, touched
):  # fmt: skip
    """Add the spikes of one input line to the currents. `stride` is that of the weight rows."""
    begins, where, words = lists
    like = simd.zero_sum(currents, NARROW)
    first_y, last_y = get(reach, 2 * line), get(reach, 2 * line + 1)
    small = (
        layer.window_y == 3
        and layer.window_x == 3
        and layer.stride_y == 1
        and layer.stride_x == 1
        and layer.still == 0
    )
    across, slot = layer.in_channels * stride, TOGETHER * (layer.width + 2 * MARGIN) * NARROW
    corner = weight_at + ((line + layer.pad_y - first_y) * 3 + 2) * across
    before = (MARGIN + layer.pad_x - 2) * NARROW
    one_at = first_y % 3 * slot + before
    two_at = (first_y + 1) % 3 * slot + before
    three_at = (first_y + 2) % 3 * slot + before
    if small and last_y - first_y == 3:
        _add_to_lines(
            like, 3, layer, weights, corner, stride, begins, group, count, where, words, valued,
            frames, frame_at, frame_step, currents, one_at, two_at, three_at,
        )  # fmt: skip
    elif small and last_y - first_y == 2:
        _add_to_lines(
            like, 2, layer, weights, corner, stride, begins, group, count, where, words, valued,
            frames, frame_at, frame_step, currents, one_at, two_at, three_at,
        )  # fmt: skip
    else:
        _add_to_positions(
            like, layer, weights, weight_at, stride, reach, line, begins, group, count, where,
            words, valued, frames, frame_at, frame_step, currents, ring, touched,
        )  # fmt: skip


# ---- neurons; `fired` has a word for each line, step and column


@jit_template
def _recur(like, layer, loaded, count, currents, current_at, state, own, ahead, fired, fired_at):
    """Neurons of 16 channels in neighbouring columns take `count` steps, and their currents
    become zero. `like` has 16 lanes a column.
    """
    apart = 3 * layer.lanes
    neuron = layer.neuron
    size = (layer.width + 2 * MARGIN) * NARROW
    line = 4 * layer.width
    synapse = simd.load_apart(like, state, own, apart)
    membrane = simd.load_apart(like, state, own + NARROW, apart)
    simd.prefetch_apart(like, state, own + ahead, apart)
    if neuron == SRM:
        last = simd.load_apart(like, state, own + 2 * NARROW, apart)
        for step in range(count):
            current = simd.load_apart(like, currents, current_at + step * size, NARROW)
            simd.store_apart(currents, current_at + step * size, NARROW, like)
            synapse, membrane, last, spikes = step_srm(current, loaded, synapse, membrane, last)
            simd.store_apart(fired, fired_at + step * line, 4, spikes)
        simd.store_apart(state, own + 2 * NARROW, apart, last)
    else:
        for step in range(count):
            current = simd.load_apart(like, currents, current_at + step * size, NARROW)
            simd.store_apart(currents, current_at + step * size, NARROW, like)
            synapse, membrane, spikes = step_integrator(
                current, loaded, synapse, membrane, neuron == SUBTRACTS
            )
            simd.store_apart(fired, fired_at + step * line, 4, spikes)
    simd.store_apart(state, own, apart, synapse)
    simd.store_apart(state, own + NARROW, apart, membrane)


@jit_uncached
def _step_line(
    layer, y, part, slot, count, currents, state, state_at, ahead, constants, lane, fired
):
    """16 channels of a line take `count` steps."""
    one, four = simd.zero_sum(currents, NARROW), simd.zero_sum(currents, HALF)
    width, lanes, all_lanes = layer.width, layer.lanes, layer.all_lanes
    whole = width - width % 4
    current_at = (slot * TOGETHER * (width + 2 * MARGIN) + MARGIN) * NARROW
    spike_at = 4 * y * TOGETHER * width + part // NARROW
    own = state_at + 3 * (y * width * lanes + part)
    loaded = load_constants(four, constants, lane + part, all_lanes, 0)
    for x in range(0, whole, 4):
        _recur(
            four,
            layer,
            loaded,
            count,
            currents,
            current_at + x * NARROW,
            state,
            own + 3 * x * lanes,
            ahead,
            fired,
            spike_at + 4 * x,
        )
    if whole < width:
        single = load_constants(one, constants, lane + part, all_lanes, 0)
        for x in range(whole, width):
            _recur(
                one,
                layer,
                single,
                count,
                currents,
                current_at + x * NARROW,
                state,
                own + 3 * x * lanes,
                ahead,
                fired,
                spike_at + 4 * x,
            )


@jit_template
def _step_touched(
    layer,
    y,
    part,
    slot,
    count,
    currents,
    state,
    state_at,
    constants,
    lane,
    touched,
    again,
    fired,
    spiked,
):
    """The same where neurons rest without input: only touched columns take a step.

    One that would spike again stays touched.

    `spiked` gets a bit for each column that spikes, for each line and step.
    """
    like = simd.zero_sum(currents, NARROW)
    width = layer.width
    lanes = layer.lanes
    neuron = layer.neuron
    loaded = load_constants(like, constants, lane + part, layer.all_lanes, 0)
    size, index = (width + 2 * MARGIN) * NARROW, part // NARROW * layer.height + y
    waiting = get(again, index)
    for step in range(count):
        left_over, now = get(touched, slot * TOGETHER + step) | waiting, y * TOGETHER + step
        put(touched, slot * TOGETHER + step, 0)
        waiting = np.uint64(0)
        while left_over != 0:
            column = simd.lowest_bit(left_over)
            bit = left_over & -left_over
            left_over ^= bit
            at = (slot * TOGETHER + step) * size + (MARGIN + column) * NARROW
            current = simd.load_like(like, currents, at)
            own = state_at + 3 * ((y * width + column) * lanes + part) + NARROW
            _, membrane, spikes = step_integrator(
                current, loaded, like, simd.load_like(like, state, own), neuron == SUBTRACTS
            )
            simd.store(state, own, membrane)
            simd.store(currents, at, like)
            if spikes != 0:
                simd.store(fired, 4 * (now * width + column) + part // NARROW, spikes)
                put(spiked, now, get(spiked, now) | bit)
                if simd.reached(membrane, loaded[5]) != 0:
                    waiting |= bit
    put(again, index, waiting)


@jit_template
def _list_lines(layer, first, count, fired, spiked, emitted, n, totals, total_at, total_step):
    """List the spikes of all lines, or those of a 2×2 max-pool if one follows: one where the window
    has one. Return the new length.

    n is the length before. If total_step is not zero, the spikes of each step are added to
    totals[total_at + step · total_step].
    """
    (begins, where, words), width, pool = emitted, layer.width, layer.pool
    height, columns = (layer.height // 2, width // 2) if pool else (layer.height, width)
    if total_step:
        for y in range(layer.height):
            for step in range(count):
                at = total_at + step * total_step
                for column in range(
                    (y * TOGETHER + step) * width, (y * TOGETHER + step + 1) * width
                ):
                    put(totals, at, get(totals, at) + simd.count_bits(get(fired, column)))
    for y in range(height):
        for step in range(count):
            put(begins, first * height + y * count + step, n)
            if layer.still:
                now = y * TOGETHER + step
                left_over = get(spiked, now)
                put(spiked, now, 0)
                while left_over != 0:
                    column = simd.lowest_bit(left_over)
                    left_over &= left_over - np.uint64(1)
                    put(where, n, pack(column, 0))
                    put(words, n, get(fired, now * width + column))
                    put(fired, now * width + column, 0)
                    n += 1
                continue
            upper = ((2 * y if pool else y) * TOGETHER + step) * width
            lower = upper + TOGETHER * width
            for x in range(columns):
                if pool:
                    bits = get(fired, upper + 2 * x) | get(fired, upper + 2 * x + 1)
                    bits |= get(fired, lower + 2 * x) | get(fired, lower + 2 * x + 1)
                else:
                    bits = get(fired, upper + x)
                put(where, n, pack(x, 0))
                put(words, n, bits)
                n += np.int64(bits != 0)  # no branch: whether there are spikes cannot be foreseen
    return n


# ---- one layer


@jit_uncached
def convolve(
    layer, member, weights, constants, state, slot_at, ahead, steps, reach, lists, valued, frames,
    frame_at, frame_step, emitted, currents, fired, spiked, touched, again, totals, total_at,
    total_step,
):  # fmt: skip
    """Run a layer of one member over a block of steps, from lists of words to lists of words.

    All arrays are addresses.

    A line has at most 64 columns, and a position at most 64 channels. Weights are in the order of
    `FlatNetwork.weights_by_part`. currents, spiked and touched are zero before and after. The
    values of step t, if there are any, begin at frame_at + t · frame_step. If total_step is not
    zero, the spikes of step t are added to totals[total_at + t · total_step]. ahead: the distance
    to the state of the next call.
    """
    height, width, lanes, in_height = layer.height, layer.width, layer.lanes, layer.in_height
    weight_at = layer.weights_at + member * layer.member_stride
    lane = layer.lanes_at + member * lanes
    state_at = slot_at + layer.state_at + 3 * member * height * width * lanes
    ring = (layer.window_y - 1) // layer.stride_y + 1
    stride = NARROW if layer.own else layer.row_stride
    n = np.int64(0)
    for at in range(height * TOGETHER * width):  # lanes without a neuron stay zero
        put(fired, at, 0)
    # the last step may have left neurons that spike again
    for at in range(lanes // NARROW * height):
        put(again, at, (np.uint64(2) << np.uint64(width - 1)) - np.uint64(1))
    for first in range(0, steps, TOGETHER):
        count = min(TOGETHER, steps - first)
        for part in range(0, lanes, NARROW):
            y = np.int64(0)
            for line in range(in_height):
                _add_line(
                    layer, weights, weight_at + (part * layer.rows if layer.own else part), stride,
                    reach, line, lists, first * in_height + line * count, count, valued, frames,
                    frame_at + first * frame_step + line * layer.in_width, frame_step, currents,
                    ring, touched,
                )  # fmt: skip
                complete = get(reach, 2 * (line + 1)) if line + 1 < in_height else height
                while y < complete:
                    if layer.still:
                        _step_touched(
                            layer, y, part, y % ring, count, currents, state, state_at, constants,
                            lane, touched, again, fired, spiked
                        )  # fmt: skip
                    else:
                        _step_line(
                            layer,
                            y,
                            part,
                            y % ring,
                            count,
                            currents,
                            state,
                            state_at,
                            ahead,
                            constants,
                            lane,
                            fired,
                        )
                    y += 1
        n = _list_lines(
            layer,
            first,
            count,
            fired,
            spiked,
            emitted,
            n,
            totals,
            total_at + first * total_step,
            total_step,
        )
    put(emitted[0], steps * (height // 2 if layer.pool else height), n)
    beside, nothing = MARGIN * NARROW, simd.zero_sum(currents, NARROW)
    inside = width * NARROW + beside
    for begin in range(0, ring * TOGETHER * (inside + beside), inside + beside):
        for at in range(begin, begin + beside, NARROW):
            simd.store(currents, at, nothing)
            simd.store(currents, at + inside, nothing)
