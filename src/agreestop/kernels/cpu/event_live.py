# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
"""Live streams on the event-driven engine: one step through all layers, for one input or
for many in turn.
"""

import numpy as np

from . import intrinsics as simd
from .event_inputs import list_inputs, list_spikes, mark_positions
from .event_layers import advance, pool
from .event_tiles import first_lane, run_tile, step_rows, sum_rows
from .intrinsics import WIDE, address
from .numba_runtime import jit, jit_template, jit_uncached
from .prefilter import may_stop_at

ROWS_AT_ONCE = 8  # weight rows that a live stream reads together


@jit_template
def _stream_shared(
    layer, members, weights, constants, state, spikes, starts, events, values, currents
):
    """`advance` with a shared input, for one row and step.

    The wide tiles add a few events at a time, along whole weight rows.

    The weights come from main memory. The processor prefetches a few rows that are read to their
    end, but not parts of many rows.
    """
    lanes, count, rows, sums = layer.lanes, starts[1], address(weights), address(currents)
    zero = simd.zero_sum(rows, WIDE)
    currents[: members * lanes] = 0
    for first in range(0, count, ROWS_AT_ONCE):
        last = min(first + ROWS_AT_ONCE, count)
        for begin in range(0, members * lanes, lanes):
            for lane in range(begin, begin + WIDE * layer.wide, WIDE):
                total = simd.load_like(simd.zeros_like(zero), sums, lane)
                total = sum_rows(
                    total,
                    zero,
                    rows,
                    layer.weights_at + lane,
                    layer.row_stride,
                    address(events),
                    first,
                    last,
                )
                simd.store(sums, lane, total)
    for member in range(members):
        for tile in range(layer.wide + layer.narrow):
            run_tile(
                layer, tile, member, np.int64(0), rows, address(starts), np.int64(0),
                address(events), address(values), np.bool_(False), np.int64(1), address(state),
                np.int64(0), address(constants), address(spikes), np.int64(0), np.int64(1),
                tile < layer.wide, address(currents[member * lanes + first_lane(layer, tile) :]),
            )  # fmt: skip


@jit_template
def _count(spikes, at, words, step, counts):
    """Add the read-out spikes of a step, whose words begin at `at`, to the counts (K, C)."""
    for member in range(len(counts)):
        for word in range(words):
            bits = spikes[at + member * words + word, step]
            while bits != 0:
                counts[member, 64 * word + simd.lowest_bit(bits)] += 1
                bits &= bits - np.uint64(1)


@jit()
def push(
    layers, weights, constants, given, given_values, valued, marks, frames, slots, state, spikes,
    active, starts, events, values, currents, counts,
):  # fmt: skip
    """Run one step of a live stream through all layers and add its read-out spikes to `counts`.

    Return -1, or the index of the first event that is not an input. `spikes` holds the input bits
    of a convolution, then the spikes of each layer and their max-pool.
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
            layer, members, weights, constants, slots, zero, state, one, spikes[at:], spikes,
            frames, valued, active, starts, events, values, currents, zero, items,
        )  # fmt: skip
    else:
        _stream_shared(
            layer, members, weights, constants, state, spikes, starts, events, values, currents
        )
    for n in range(len(given)):
        marks[given[n]] = 0
    for index in range(1, len(layers)):
        if layer.pool:
            pool(layer, one, spikes[at:], spikes[after:], zero, members * (layer.height // 2))
            at, after = (
                after,
                after + members * (layer.height // 2) * (layer.width // 2) * layer.words,
            )
        layer = layers[index]
        advance(
            layer, members, weights, constants, slots, zero, state, one, spikes[after:],
            spikes[at:], frames, np.bool_(False), active, starts, events, values, currents, zero,
            members * layer.height,
        )  # fmt: skip
        at, after = after, after + members * layer.height * layer.width * layer.words
    _count(spikes, at, layer.words, zero, counts)
    return -1


@jit_uncached
def _must_judge(
    counts, clock, times, exponent, temperatures, bounds, learned, size, slack, floor, logs, one,
    work, order,
):  # fmt: skip
    """Count a step of an input with counts (K, C); whether the rule must judge it.

    clock is (time, checkpoint): the steps so far, and the next checkpoint of those at `times` (M,),
    which moves on where the input cannot stop. Every input stops at the last checkpoint, and its
    risk at the first is noted. Without bounds there is no prefilter.
    """
    clock[0] += 1
    index, last = clock[1], len(times) - 1
    if index > last or times[index] != clock[0]:
        return False
    if index == 0 or index == last or len(bounds) == 0:
        return True
    if may_stop_at(
        counts, index, exponent, temperatures, bounds, learned, size, slack, floor, logs, one, work,
        order,
    ):  # fmt: skip
        return True
    clock[1] += 1
    return False


@jit()
def push_filtered(
    layers, weights, constants, given, given_values, valued, marks, frames, slots, state, spikes,
    active, starts, events, values, currents, counts, clock, times, exponent, temperatures, bounds,
    learned, size, slack, floor, logs, one, work, order,
):  # fmt: skip
    """`push`, and the prefilter where the step is a checkpoint, see `_must_judge`.

    Return 0 if the input cannot stop at this step, 1 if the rule must judge it, and -1 - n if event
    n is not an input.
    """
    wrong = push(
        layers, weights, constants, given, given_values, valued, marks, frames, slots, state,
        spikes, active, starts, events, values, currents, counts,
    )  # fmt: skip
    if wrong >= 0:
        return -1 - wrong
    return np.int64(
        _must_judge(
            counts, clock, times, exponent, temperatures, bounds, learned, size, slack, floor,
            logs, one, work, order,
        )
    )  # fmt: skip


@jit()
def _push_together(
    layers, weights, constants, rows, pointers, given, marks, frames, slots, states, spikes,
    starts, events, values, currents, members,
):  # fmt: skip
    """Run many steps layer by layer, those of a stream in their order, and return where the words
    of their read-out spikes begin.

    Tile by tile, the weights stay in the second cache for all steps. The numbers are those of
    `push`, since the weight rows of a neuron are added in the same order.
    """
    inputs, zero, one = len(marks), np.int64(0), np.int64(1)
    count, whole, state = len(rows), states.shape[1], states.reshape(-1)
    starts[0] = 0
    for n in range(count):
        for index in range(pointers[n], pointers[n + 1]):
            marks[given[index]] = 1
        begin = starts[n]
        list_inputs(
            marks, frames, np.bool_(False), inputs, one, slots, zero, one, starts[n:],
            events[begin:], values,
        )  # fmt: skip
        starts[n] = begin
        starts[n + 1] += begin
        for index in range(pointers[n], pointers[n + 1]):
            marks[given[index]] = 0
    at = after = zero
    for index in range(len(layers)):
        layer = layers[index]
        for member in range(members):
            if index > 0:
                first = at + member * layer.in_words
                list_spikes(spikes, first, layer.in_words, count, starts, events)
            step_rows(
                layer, member, weights, constants, starts, events, rows, whole, state,
                spikes[after:], currents,
            )  # fmt: skip
        at, after = after, after + members * layer.words
    return at


@jit()
def push_rows(
    layers, weights, constants, rows, pointers, given, given_values, valued, checked, marks,
    frames, slots, states, spikes, active, starts, events, values, currents, counts, found,
    evidence, together, lists, listed, sums, clocks, times, exponent, temperatures, bounds, learned,
    size, slack, floor, logs, one, work, order,
):  # fmt: skip
    """Run steps of many live streams: step n, with the events given[pointers[n] : pointers[n + 1]],
    is the next one of stream rows[n].

    given_values: the value of each event, if `valued`. Unless the steps are `checked`, nothing is
    run and -1 is returned where an event is not an input, or a step has as many as there are
    inputs.

    states (streams, state), counts (streams, K, C) and clocks (streams, 2) are those of all
    streams; see `_must_judge`. Return at how many steps the rule must judge the input: found
    (steps, 2) gets these steps and their checkpoints, and evidence (steps, K, C) the counts.

    together (words, n): the spikes of at most n steps that run layer by layer, none where they run
    one after the other; lists and listed: where the events of each begin, and the events.
    """
    inputs, members, judged = len(marks), counts.shape[1], 0
    if not checked:
        for n in range(len(rows)):
            if pointers[n + 1] - pointers[n] >= inputs:
                return -1
        for index in range(pointers[len(rows)]):
            if given[index] < 0 or given[index] >= inputs:
                return -1
    most, words = 1 if valued else max(1, together.shape[1]), layers[len(layers) - 1].words
    for first in range(0, len(rows), most):
        last, at = min(first + most, len(rows)), np.int64(0)
        if last > first + 1:
            at = _push_together(
                layers, weights, constants, rows[first:last], pointers[first:], given, marks,
                frames, slots, states, together, lists, listed, values, sums, members,
            )  # fmt: skip
        else:
            part = slice(pointers[first], pointers[last])
            push(
                layers, weights, constants, given[part], given_values[part], valued, marks, frames,
                slots, states[rows[first]], spikes, active, starts, events, values, currents,
                counts[rows[first]],
            )  # fmt: skip
        for n in range(first, last):
            own, clock = counts[rows[n]], clocks[rows[n]]
            if last > first + 1:
                _count(together, at, words, n - first, own)
            if _must_judge(
                own, clock, times, exponent, temperatures, bounds, learned, size, slack, floor,
                logs, one, work, order,
            ):  # fmt: skip
                found[judged, 0], found[judged, 1] = n, clock[1]
                evidence[judged] = own
                clock[1] += 1
                judged += 1
    return judged
