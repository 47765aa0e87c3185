# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
"""One tile of neurons over a block of steps: the weight rows of its events are summed in
registers, then its neurons take their steps.
"""

import numpy as np

from . import intrinsics as simd
from .event_format import SRM, STEPS_SUMMED, SUBTRACTS
from .event_neurons import load_constants, recur, step_integrator, step_srm
from .intrinsics import HALF, NARROW, WIDE, address, get
from .numba_runtime import jit, jit_template, jit_uncached

EVENTS_IN_A_BLOCK = 256  # a 16-bit integer holds the sum of 256 int8 weights


@jit_template
def sum_rows(total, zero, weights, at, stride, events, begin, end):
    """Add the weight rows of events begin … end to a total, for the lanes from `at` on; `zero`
    has their number and type.
    """
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
        total = simd.plus_row_times(
            total, weights, at + np.int64(get(events, n)) * stride, get(values, n)
        )
    return total


@jit_template
def _run_tile(
    zero, like, lanes, piece, weights, weight_at, stride, starts, list_at, events, values, valued,
    steps, state, state_at, constants, lane, all_lanes, neuron, still, spikes, spike_at, pairs,
    summed, currents,
):  # fmt: skip
    """Run one tile over all steps of the block.

    List list_at + t holds the events of step t. summed: `currents` has the sums already.
    """
    for first in range(0, steps, STEPS_SUMMED):
        count = min(STEPS_SUMMED, steps - first)
        if still and get(starts, list_at + first) == get(starts, list_at + first + count):
            awake = False
            for at in range(0, lanes, piece):
                membrane = simd.load_like(like, state, state_at + lanes + at)
                fired = simd.reached(
                    membrane, simd.load_like(like, constants, lane + 5 * all_lanes + at)
                )
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
                total = _sum_rows_times(
                    total, weights, weight_at, stride, events, values, begin, end
                )
            else:
                total = sum_rows(total, zero, weights, weight_at, stride, events, begin, end)
            simd.store(currents, t * lanes, total)
        for at in range(0, lanes, piece):
            recur(
                like, currents, at + (first * lanes if summed else 0), lanes, count, state,
                state_at + at, constants, lane + at, all_lanes, neuron, spikes,
                spike_at + 4 * (first + at // 64 * pairs),
            )  # fmt: skip


@jit_template
def first_lane(layer, tile):
    """The first lane of a tile; wide tiles come first."""
    return WIDE * tile if tile < layer.wide else WIDE * layer.wide + NARROW * (tile - layer.wide)


@jit_uncached
def run_tile(
    layer, tile, member, position, weights, starts, list_at, events, values, valued, steps,
    state, slot_at, constants, spikes, pair, pairs, summed, currents,
):  # fmt: skip
    """Run one tile of a member at a position, wide or narrow, over the steps from `pair` on.

    All arrays are addresses.
    """
    positions = layer.height * layer.width
    neurons = (member * positions + position) * layer.lanes
    offset = first_lane(layer, tile)
    weight_at = layer.weights_at + member * layer.member_stride + offset
    state_at = slot_at + layer.state_at + 3 * (neurons + offset)
    lane = layer.lanes_at + member * layer.lanes + offset
    word = (member * positions + position) * layer.words + offset // 64
    spike_at = 4 * (word * pairs + pair) + offset % 64 // NARROW  # in units of 16 spikes
    if tile < layer.wide:
        _run_tile(
            simd.zero_sum(weights, WIDE), simd.zero_sum(currents, HALF), WIDE, HALF, weights,
            weight_at, layer.row_stride, starts, list_at, events, values, valued, steps, state,
            state_at, constants, lane, layer.all_lanes, layer.neuron, layer.still, spikes, spike_at,
            pairs, summed, currents,
        )  # fmt: skip
    else:
        _run_tile(
            simd.zero_sum(weights, NARROW), simd.zero_sum(currents, NARROW), NARROW, NARROW,
            weights, weight_at, layer.row_stride, starts, list_at, events, values, valued, steps,
            state, state_at, constants, lane, layer.all_lanes, layer.neuron, layer.still, spikes,
            spike_at, pairs, summed, currents,
        )  # fmt: skip


@jit_template
def _run_rows(
    zero, like, lanes, weights, weight_at, stride, starts, events, slots, slot_size, state,
    state_at, constants, lane, all_lanes, neuron, spikes, spike_at, pairs, currents,
):  # fmt: skip
    """Run one tile for one step of many inputs; list n holds the events of the input slots[n]."""
    for n in range(len(slots)):
        total = sum_rows(
            simd.zeros_like(zero), zero, weights, weight_at, stride, events, get(starts, n),
            get(starts, n + 1),
        )  # fmt: skip
        simd.store(currents, n * lanes, total)
    for at in range(0, lanes, NARROW):
        loaded = load_constants(like, constants, lane + at, all_lanes, NARROW)
        for n in range(len(slots)):
            own = slots[n] * slot_size + state_at + at
            current = simd.load_like(like, currents, n * lanes + at)
            synapse, membrane = (
                simd.load_like(like, state, own),
                simd.load_like(like, state, own + lanes),
            )
            if neuron == SRM:
                last = simd.load_like(like, state, own + 2 * lanes)
                synapse, membrane, last, fired = step_srm(current, loaded, synapse, membrane, last)
            else:
                synapse, membrane, fired = step_integrator(
                    current, loaded, synapse, membrane, neuron == SUBTRACTS
                )
                last = simd.ones_where(fired)
            simd.store(state, own, synapse)
            simd.store(state, own + lanes, membrane)
            simd.store(state, own + 2 * lanes, last)
            simd.store(spikes, spike_at + 4 * (at // 64 * pairs + n) + at % 64 // NARROW, fired)


@jit()
def step_rows(
    layer, member, weights, constants, starts, events, slots, slot_size, state, spikes, currents
):  # fmt: skip
    """Run a member of a fully connected layer for one step of many inputs.

    Constants stay in registers for all inputs, and the weights of a tile in the second cache.
    """
    pairs = spikes.shape[1]
    for tile in range(layer.wide + layer.narrow):
        offset = first_lane(layer, tile)
        weight_at = layer.weights_at + member * layer.member_stride + offset
        state_at = layer.state_at + 3 * (member * layer.lanes + offset)
        lane = layer.lanes_at + member * layer.lanes + offset
        word = member * layer.words + offset // 64
        spike_at = 4 * word * pairs + offset % 64 // NARROW
        if tile < layer.wide:
            _run_rows(
                simd.zero_sum(address(weights), WIDE), simd.zero_sum(address(currents), NARROW),
                WIDE, address(weights), weight_at, layer.row_stride, address(starts),
                address(events), slots, slot_size, address(state), state_at, address(constants),
                lane, layer.all_lanes, layer.neuron, address(spikes), spike_at, pairs,
                address(currents),
            )  # fmt: skip
        else:
            _run_rows(
                simd.zero_sum(address(weights), NARROW), simd.zero_sum(address(currents), NARROW),
                NARROW, address(weights), weight_at, layer.row_stride, address(starts),
                address(events), slots, slot_size, address(state), state_at, address(constants),
                lane, layer.all_lanes, layer.neuron, address(spikes), spike_at, pairs,
                address(currents),
            )  # fmt: skip
