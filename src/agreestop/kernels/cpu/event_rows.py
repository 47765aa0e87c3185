# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
"""Rows of a convolutional network: each passes all layers of a member, over a block of steps,
before the next one starts.

What the layers of one row hand on lies in the cache. A convolution takes and gives lists of words
(see `event_convolutions`). A fully connected layer takes a list of weight rows for each step and
gives bits, which are listed again.
"""

import numpy as np

from . import intrinsics as simd
from .event_convolutions import WORD, column_of, convolve, find_reach, pack, word_of
from .event_format import TOGETHER
from .event_tiles import run_tile
from .intrinsics import EIGHT, MASKED, address, get, put
from .numba_runtime import jit, jit_template


@jit()
def list_reach(layers, reach):
    """The positions that lines and columns of the input reach, layer after layer (see
    `find_reach`).
    """
    at, memory = np.int64(0), address(reach)
    for layer in layers:
        find_reach(
            layer.window_y, layer.stride_y, layer.pad_y, layer.in_height, layer.height, memory, at
        )
        find_reach(
            layer.window_x,
            layer.stride_x,
            layer.pad_x,
            layer.in_width,
            layer.width,
            memory,
            at + 2 * layer.in_height,
        )
        at += 2 * (layer.in_height + layer.in_width)


@jit_template
def _enter(layer, line, step, column, channel, frame):
    """Set the bit of an active input in the frame of a block, which has a word for (line, step,
    column, 64 channels).
    """
    index = ((line * TOGETHER + step) * layer.in_width + column) * layer.in_words + channel // WORD
    put(frame, index, get(frame, index) | np.uint64(1) << np.uint64(channel % WORD))


@jit_template
def _list_block(layer, first, count, frame, lists, n):
    """Append the words of a frame, for `count` steps from `first` on, to lists of length n in
    all, and clear them. Return the length.
    """
    (begins, where, words), each = lists, layer.in_words
    size = layer.in_width * each
    for line in range(layer.in_height):
        for step in range(count):
            put(begins, first * layer.in_height + line * count + step, n)
            at = (line * TOGETHER + step) * size
            for piece in range(0, size, EIGHT):
                active = simd.nonzero_words(frame, at + piece)
                if size - piece < EIGHT:
                    active &= (np.uint64(1) << np.uint64(size - piece)) - np.uint64(1)
                while active != 0:
                    index = piece + simd.lowest_bit(active)
                    active &= active - np.uint64(1)
                    put(where, n, pack(index // each, index % each))
                    put(words, n, get(frame, at + index))
                    put(frame, at + index, 0)
                    n += 1
    return n


@jit_template
def _list_frames(layer, steps, flags, at, step_size, lists, frame):
    """List the active inputs of a row.

    The bytes of step t, (channels, positions), begin at at + t · step_size.
    """
    width, positions, n = layer.in_width, layer.in_height * layer.in_width, np.int64(0)
    whole = positions - positions % MASKED
    for first in range(0, steps, TOGETHER):
        count = min(TOGETHER, steps - first)
        for step in range(count):
            for channel in range(layer.in_channels):
                begin = at + (first + step) * step_size + channel * positions
                for piece in range(0, whole, MASKED):
                    active = simd.nonzero_mask(flags, begin + piece)
                    while active != 0:
                        position = piece + simd.lowest_bit(active)
                        active &= active - np.uint64(1)
                        _enter(layer, position // width, step, position % width, channel, frame)
                for position in range(whole, positions):
                    if get(flags, begin + position):
                        _enter(layer, position // width, step, position % width, channel, frame)
        n = _list_block(layer, first, count, frame, lists, n)
    put(lists[0], steps * layer.in_height, n)


@jit_template
def _list_events(layer, steps, bounds, indices, given, valued, held, frames, lists, frame):
    """The same from a sparse form: the events of step t are indices[bounds[t] : bounds[t + 1]].
    frames gets their values.
    """
    width, positions, n = layer.in_width, layer.in_height * layer.in_width, np.int64(0)
    for first in range(0, steps, TOGETHER):
        count = min(TOGETHER, steps - first)
        for step in range(count):
            t = 0 if held else first + step
            for m in range(bounds[t], bounds[t + 1]):
                index = np.int64(indices[m])
                channel, position = index // positions, index % positions
                _enter(layer, position // width, step, position % width, channel, frame)
                if valued:
                    frames[(first + step) * positions * layer.in_channels + index] = given[m]
        n = _list_block(layer, first, count, frame, lists, n)
    put(lists[0], steps * layer.in_height, n)


@jit_template
def _group(layer, steps, t, line):
    """The index of the list of a line of the input at step t."""
    first = t - t % TOGETHER
    return first * layer.in_height + line * min(TOGETHER, steps - first) + t % TOGETHER


@jit_template
def _list_rows(layer, steps, lists, starts, events):
    """List the weight rows of a fully connected layer for each step."""
    (begins, where, words), n = lists, np.int64(0)
    for t in range(steps):
        put(starts, t, n)
        for line in range(layer.in_height):
            group = _group(layer, steps, t, line)
            for m in range(get(begins, group), get(begins, group + 1)):
                entry, bits = get(where, m), get(words, m)
                base = (
                    line * layer.in_width + column_of(entry)
                ) * layer.in_channels + WORD * word_of(entry)
                while bits != 0:
                    put(events, n, base + simd.lowest_bit(bits))
                    bits &= bits - np.uint64(1)
                    n += 1
    put(starts, steps, n)


@jit_template
def _list_bits(layer, member, steps, spikes, columns, lists):
    """List the spikes of a fully connected layer."""
    begins, where, words = lists
    n, first = np.int64(0), member * layer.words * columns
    for t in range(steps):
        put(begins, t, n)
        for word in range(layer.words):
            bits = get(spikes, first + word * columns + t)
            if bits != 0:
                put(where, n, pack(0, word))
                put(words, n, bits)
                n += 1
    put(begins, steps, n)


@jit_template
def _count_synapses(layer, steps, reach, lists, totals, at, step):
    """Add the synapses that the listed spikes of step t reach to totals[at + t · step]."""
    begins, where, words = lists
    for t in range(steps):
        for line in range(layer.in_height):
            group = _group(layer, steps, t, line)
            lines = get(reach, 2 * line + 1) - get(reach, 2 * line)
            for m in range(get(begins, group), get(begins, group + 1)):
                column = layer.in_height + column_of(get(where, m))
                reached = lines * (get(reach, 2 * column + 1) - get(reach, 2 * column))
                put(
                    totals,
                    at + t * step,
                    get(totals, at + t * step)
                    + reached * layer.outputs * simd.count_bits(get(words, m)),
                )


@jit_template
def _count_spikes(steps, lists, totals, at, step):
    """Add the spikes of a fully connected layer at step t to totals[at + t · step]."""
    begins, _, words = lists
    for t in range(steps):
        for m in range(get(begins, t), get(begins, t + 1)):
            put(totals, at + t * step, get(totals, at + t * step) + simd.count_bits(get(words, m)))


@jit()
def run_rows(
    layers, members, weights, constants, reach, slots, slot_size, state, steps, sparse, marks,
    marks_at, marks_step, bounds, indices, given, held, valued, found, counts, emitted,
    first_synapses, synapses, frames, begins, where, words, frame, fired, spiked, currents, touched,
    again, spikes, starts, events, values, sums, start, stop,
):  # fmt: skip
    """Run items start … stop of (row, member) over a block of steps. found (rows, steps, K, words)
    gets the bits of the read-out.

    Inputs are bytes, or sparse (bounds, indices, given). The bytes of step t begin at
    marks_at[row] + t · marks_step, and their values at the same index of frames; if the inputs are
    sparse, frames is scratch memory. Where `counts`, the arrays (rows, steps, K) get the spikes and
    the synapses that they reach. begins, where and words have room for three lists. They and what
    follows are scratch memory of one thread, of which frame, spiked, currents and touched are zero.
    """
    previous, columns = -1, spikes.shape[1]
    for item in range(start, stop):
        row, member = item // members, item % members
        slot_at, at = slots[row] * slot_size, row * steps * members + member
        if row != previous:
            previous, given_to = row, (address(begins[0]), address(where[0]), address(words[0]))
            if sparse:
                _list_events(
                    layers[0],
                    steps,
                    bounds[row],
                    indices,
                    given,
                    valued,
                    held,
                    frames,
                    given_to,
                    address(frame),
                )
            else:
                _list_frames(
                    layers[0],
                    steps,
                    address(marks),
                    marks_at[row],
                    marks_step,
                    given_to,
                    address(frame),
                )
        frame_at = np.int64(0) if sparse else marks_at[row]
        following = slots[row + 1] * slot_size if row + 1 < len(slots) else slot_at
        here, reach_at, spikes_at = 0, 0, 0
        for index in range(len(layers)):
            layer, there = layers[index], 1 if here != 1 else 2
            reached = address(reach[reach_at:])
            reach_at += 2 * (layer.in_height + layer.in_width)
            source = address(begins[here]), address(where[here]), address(words[here])
            target = address(begins[there]), address(where[there]), address(words[there])
            if counts:
                totals = address(synapses if index else first_synapses)
                _count_synapses(layer, steps, reached, source, totals, at, members)
            if layer.convolves:
                own = 3 * layer.height * layer.width * layer.lanes
                ahead = own if member + 1 < members else following - slot_at - member * own
                convolve(
                    layer, member, address(weights), address(constants), address(state), slot_at,
                    ahead, steps, reached, source, valued and index == 0, address(frames), frame_at,
                    marks_step, target, address(currents), address(fired), address(spiked),
                    address(touched), address(again), address(emitted), at,
                    members if counts else 0,
                )  # fmt: skip
            else:
                # each layer has its own, since lanes without a neuron must stay zero
                bits = address(spikes[spikes_at:])
                spikes_at += members * layer.words
                _list_rows(layer, steps, source, address(starts), address(events))
                for tile in range(layer.wide + layer.narrow):
                    run_tile(
                        layer, tile, member, np.int64(0), address(weights), address(starts),
                        np.int64(0), address(events), address(values), np.bool_(False), steps,
                        address(state), slot_at, address(constants), bits, np.int64(0), columns,
                        np.bool_(False), address(sums),
                    )  # fmt: skip
                _list_bits(layer, member, steps, bits, columns, target)
                if counts:
                    _count_spikes(steps, target, address(emitted), at, members)
            here = there
        for t in range(steps):
            for word in range(layer.words):
                found[row, t, member, word] = spikes[
                    spikes_at - (members - member) * layer.words + word, t
                ]
