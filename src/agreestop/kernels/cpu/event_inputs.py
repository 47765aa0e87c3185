# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
"""Inputs of the event-driven engine: lists of events for a fully connected layer, bits at
positions for a convolution.
"""

import numpy as np

from . import intrinsics as simd
from .event_format import SPARE
from .intrinsics import address, get, put
from .numba_runtime import jit, jit_template


@jit_template
def _append(bits, base, events, n):
    """Append the indices of the set bits, plus `base`, to a list of length n.

    Return its new length.

    Entries are written eight at a time, because the exit of a loop over single bits would be
    mispredicted for almost every word. Entries past the end are overwritten later, so a list needs
    `SPARE` more entries than it has events.
    """
    count = simd.count_bits(bits)
    for first in range(0, count, SPARE):
        for index in range(n + first, n + first + SPARE):
            put(events, index, base + simd.lowest_bit(bits))
            bits &= bits - np.uint64(1)
    return n + count


@jit()
def list_inputs(marks, frames, valued, inputs, total, rows, first, steps, starts, events, values):
    """List the active inputs of each row and step, and their values. marks is
    (all rows, total steps, inputs).
    """
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
def list_spikes(received, first, words, rows, starts, events):
    """List the spikes of each row in the `words` words from `first` on."""
    n = 0
    for row in range(rows):
        starts[row] = n
        for word in range(words):
            n = _append(received[first + word, row], 64 * word, address(events), n)
    starts[rows] = n


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
                one = np.uint64(1) << np.uint64(channel % 64)
                pair = channel // 64 * width + row * steps + t
                for piece in range(0, whole, 64):
                    active = simd.nonzero_mask(flags, at + piece)
                    while active != 0:
                        index = (piece + simd.lowest_bit(active)) * layer.in_words * width + pair
                        put(bits, index, get(bits, index) | one)
                        active &= active - np.uint64(1)
                for position in range(whole, positions):
                    if get(flags, at + position):
                        index = position * layer.in_words * width + pair
                        put(bits, index, get(bits, index) | one)


@jit()
def list_events(bounds, indices, given, valued, held, steps, starts, events, values):
    """List the events of each row and step, and their values, from a sparse form.

    The events of step t of a row are indices[bounds[row, t] : bounds[row, t + 1]]; an image (held)
    has one step, which is listed for each.
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
    """`mark_positions` from a sparse form (see `list_events`). frames (rows, steps, channels,
    positions), all 0, gets the values.
    """
    positions = layer.in_height * layer.in_width
    received[:, : len(bounds) * steps] = 0
    for row in range(len(bounds)):
        for t in range(steps):
            pair, step = row * steps + t, 0 if held else t
            for m in range(bounds[row, step], bounds[row, step + 1]):
                index = np.int64(indices[m])
                channel, position = index // positions, index % positions
                received[position * layer.in_words + channel // 64, pair] |= np.uint64(
                    1
                ) << np.uint64(channel % 64)
                if valued:
                    frames[pair * layer.in_channels * positions + index] = given[m]
