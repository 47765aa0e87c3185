# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
"""Live streams on the event-driven engine: one step through all layers, for one input or
for many in turn.
"""

import numpy as np

from . import intrinsics as simd
from .event_inputs import list_inputs, mark_positions
from .event_layers import advance, pool
from .event_tiles import first_lane, run_tile, sum_rows
from .intrinsics import WIDE, address
from .numba_runtime import jit, jit_template
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
    for member in range(members):
        for label in range(counts.shape[1]):
            counts[member, label] += (
                spikes[at + member * layer.words + label // 64, 0] >> np.uint64(label % 64)
            ) & np.uint64(1)
    return -1


@jit()
def push_filtered(
    layers, weights, constants, given, given_values, valued, marks, frames, slots, state, spikes,
    active, starts, events, values, currents, counts, clock, times, exponent, temperatures, bounds,
    learned, size, slack, floor, logs, one, work, order,
):  # fmt: skip
    """`push`, and the prefilter where the step is a checkpoint.

    clock is (time, checkpoint): the steps so far, and the next checkpoint of those at `times` (M,).
    Return 0 if the input cannot stop at this step, 1 if the rule must judge it, and -1 - n if event
    n is not an input. Every input stops at the last checkpoint, and its risk at the first is noted.
    """
    wrong = push(
        layers, weights, constants, given, given_values, valued, marks, frames, slots, state,
        spikes, active, starts, events, values, currents, counts,
    )  # fmt: skip
    if wrong >= 0:
        return -1 - wrong
    clock[0] += 1
    index = clock[1]
    if times[index] != clock[0]:
        return 0
    if (
        index == 0
        or index == len(times) - 1
        or may_stop_at(
            counts, index, exponent, temperatures, bounds, learned, size, slack, floor, logs, one,
            work, order,
        )
    ):  # fmt: skip
        return 1
    clock[1] += 1
    return 0


@jit()
def _push_together(
    layers, weights, constants, rows, pointers, given, marks, frames, slots, states, spikes,
    starts, events, active, own_starts, own_events, values, currents, counts, evidence,
):  # fmt: skip
    """Run many steps layer by layer, those of a stream in their order.

    Tile by tile, the weights stay in the second cache for all steps. The numbers are those of
    `push`, since the weight rows of a neuron are added in the same order.
    """
    inputs, members, zero, one = len(marks), counts.shape[1], np.int64(0), np.int64(1)
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
    at, after = zero, members * layers[0].words
    advance(
        layers[0], members, weights, constants, rows, whole, state, one, spikes, spikes, frames,
        np.bool_(False), active, starts, events, values, currents, zero,
        members * (layers[0].wide + layers[0].narrow) * count,
    )  # fmt: skip
    for index in range(1, len(layers)):
        layer = layers[index]
        advance(
            layer, members, weights, constants, rows, whole, state, one, spikes[after:],
            spikes[at:], frames, np.bool_(False), active, own_starts, own_events, values, currents,
            zero, members * layer.height * count,
        )  # fmt: skip
        at, after = after, after + members * layer.height * layer.width * layer.words
    words = layers[len(layers) - 1].words
    for n in range(count):
        for member in range(members):
            for label in range(counts.shape[2]):
                counts[rows[n], member, label] += (
                    spikes[at + member * words + label // 64, n] >> np.uint64(label % 64)
                ) & np.uint64(1)
        evidence[n] = counts[rows[n]]


@jit()
def push_rows(
    layers, weights, constants, rows, pointers, given, given_values, valued, marks, frames, slots,
    states, spikes, active, starts, events, values, currents, counts, evidence, together, lists,
    listed,
):  # fmt: skip
    """Run steps of many live streams: step n, with the events given[pointers[n] : pointers[n + 1]],
    is the next one of stream rows[n].

    given_values: the value of each event, if `valued`.
    states (streams, state) and counts (streams, K, C) are those of all streams; evidence
    (steps, K, C) gets the counts after each step.

    together (words, n): the spikes of at most n steps that run layer by layer, none where they run
    one after the other; lists and listed: where the events of each begin, and the events.
    """
    most = 1 if valued else max(1, together.shape[1])
    for first in range(0, len(rows), most):
        last = min(first + most, len(rows))
        if last > first + 1:
            _push_together(
                layers, weights, constants, rows[first:last], pointers[first:], given, marks,
                frames, slots, states, together, lists, listed, active, starts, events, values,
                currents, counts, evidence[first:],
            )  # fmt: skip
            continue
        row, at = rows[first], slice(pointers[first], pointers[last])
        push(
            layers, weights, constants, given[at], given_values[at], valued, marks, frames, slots,
            states[row], spikes, active, starts, events, values, currents, counts[row],
        )  # fmt: skip
        evidence[first] = counts[row]
