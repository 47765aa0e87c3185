# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators
"""Layers of the event-driven engine: the spikes of one are listed for the tiles of the next, for
all rows of a block.
"""

import numpy as np

from . import intrinsics as simd
from .event_tiles import first_lane, run_tile
from .intrinsics import EIGHT, NARROW, WIDE, address, get, put
from .numba_runtime import jit, jit_template


@jit_template
def _find_active(layer, received, first, pairs, steps, y, active):
    """For each word of bits under the windows of line y: the steps in which it is not zero, as bits
    of one integer for every 64 steps.

    Most words are zero, so eight steps are tested at once. Up to seven words past the steps are
    read, and ignored.
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
def _list_window(
    layer,
    received,
    first,
    pairs,
    active,
    steps,
    begin,
    count,
    y,
    x,
    starts,
    events,
    valued,
    frames,
    frame_at,
    values,
):
    """List the weight rows of the spikes that reach position (y, x) in the steps from `begin` on,
    one list a step, in a fixed order.

    received holds the bits from `first` on, frames the values (steps, channels, positions) from
    `frame_at` on, and `active` what `_find_active` found. The first pass counts the spikes of each
    step, and the second one writes their rows.
    """
    top = y * layer.stride_y - layer.pad_y
    left = x * layer.stride_x - layer.pad_x
    groups = (steps + 63) // 64
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
                    index = (row * layer.in_width + left + column) * layer.in_words + word
                    at = first + (top * layer.in_width * layer.in_words + index) * pairs
                    base = (row * layer.window_x + column) * layer.in_channels + 64 * word
                    for group in range(groups):
                        left_over = get(active, index * groups + group)
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
                                n = _append_exactly(
                                    bits, base, events, n, valued, frames, frame, positions, values
                                )
                                put(starts, t - begin + 1, n)
                            else:
                                found = True
                                put(
                                    starts,
                                    t - begin + 2,
                                    get(starts, t - begin + 2) + simd.count_bits(bits),
                                )


@jit_template
def _sum_window(
    layer,
    weights,
    weight_at,
    received,
    first,
    pairs,
    active,
    steps,
    y,
    x,
    starts,
    currents,
    valued,
    frames,
    frame_at,
):
    """Add the weight rows of the spikes that reach position (y, x) to the currents of one narrow
    tile, in the order of `_list_window`.

    There are no lists: adding 16 lanes in memory costs no more than listing a row. `starts` only
    says in which steps there is input.
    """
    top = y * layer.stride_y - layer.pad_y
    left = x * layer.stride_x - layer.pad_x
    groups = (steps + 63) // 64
    like = simd.zeros_like(simd.zero_sum(weights, NARROW))
    positions = layer.in_height * layer.in_width
    put(starts, 0, 0)
    for t in range(steps):
        put(starts, t + 1, 0)
        simd.store(currents, t * NARROW, like)
    for row in range(max(0, -top), min(layer.window_y, layer.in_height - top)):
        for column in range(max(0, -left), min(layer.window_x, layer.in_width - left)):
            for word in range(layer.in_words):
                index = (row * layer.in_width + left + column) * layer.in_words + word
                at = first + (top * layer.in_width * layer.in_words + index) * pairs
                base = (
                    weight_at
                    + ((row * layer.window_x + column) * layer.in_channels + 64 * word)
                    * layer.row_stride
                )
                for group in range(groups):
                    left_over = get(active, index * groups + group)
                    while left_over != 0:
                        t = 64 * group + simd.lowest_bit(left_over)
                        left_over &= left_over - np.uint64(1)
                        bits = get(received, at + t)
                        put(starts, t + 1, 1)
                        frame = (
                            frame_at
                            + (t * layer.in_channels + 64 * word) * positions
                            + (top + row) * layer.in_width
                            + left
                            + column
                        )
                        total = simd.load_like(like, currents, t * NARROW)
                        while bits != 0:
                            bit = simd.lowest_bit(bits)
                            bits &= bits - np.uint64(1)
                            value = (
                                np.float32(get(frames, frame + bit * positions))
                                if valued
                                else np.float32(1)
                            )
                            total = simd.plus_row_times(
                                total, weights, base + bit * layer.row_stride, value
                            )
                        simd.store(currents, t * NARROW, total)
    for t in range(steps):
        put(starts, t + 1, get(starts, t + 1) + get(starts, t))


@jit_template
def _append_exactly(bits, base, events, n, valued, frames, at, positions, values):
    """`_append` that writes nothing past the end of the list, and the values of the events too:
    those of frames from `at` on.
    """
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
    """Append the weight rows of a layer's own spikes of the last step to a list of length n.

    Return its new length.
    """
    for tile in range(layer.wide + layer.narrow):
        offset, lanes = first_lane(layer, tile), WIDE if tile < layer.wide else NARROW
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
    layer, members, weights, constants, slots, slot_size, state, steps, spikes, received, frames,
    valued, active, starts, events, values, currents, start, stop,
):  # fmt: skip
    """Run items start … stop of a layer over a block of steps.

    A layer whose inputs are listed has items (member, tile, row). The row is the innermost index,
    so the weights of a tile stay in the second cache for all rows and steps. Every other layer has
    items (member, line, row), and the lists are scratch memory: each position lists its inputs in
    every step of the block once for all its lanes, and once for all members if they share the
    input. A recurrent layer does so step by step, because its own spikes of the last step are
    among its inputs.
    """
    rows, positions, tiles = len(slots), layer.in_height * layer.in_width, layer.wide + layer.narrow
    for item in range(start, stop):
        unit, row = item // rows, item % rows
        if layer.listed:
            member = unit // tiles
            run_tile(
                layer, unit % tiles, member, np.int64(0), address(weights), address(starts),
                row * steps, address(events), address(values), valued, steps, address(state),
                slots[row] * slot_size, address(constants), address(spikes), row * steps,
                spikes.shape[1], np.bool_(False), address(currents),
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
                    layer, address(weights), layer.weights_at + group * layer.member_stride,
                    address(received), first, received.shape[1], address(active), steps, y, x,
                    address(starts), address(currents), valued, address(frames), frame_at,
                )  # fmt: skip
                run_tile(
                    layer, np.int64(0), group, y * layer.width + x, address(weights),
                    address(starts), np.int64(0), address(events), address(values), valued, steps,
                    address(state), slots[row] * slot_size, address(constants), address(spikes),
                    row * steps, spikes.shape[1], np.bool_(True), address(currents),
                )  # fmt: skip
                continue
            for t in range(0, steps, together):
                _list_window(
                    layer, address(received), first, received.shape[1], address(active), steps, t,
                    together, y, x, address(starts), address(events), valued, address(frames),
                    frame_at, address(values),
                )  # fmt: skip
                end = starts[together]
                for member in range(group if layer.own else 0, group + 1 if layer.own else members):
                    if layer.recurrent:
                        own = slots[row] * slot_size + layer.state_at + 3 * member * layer.lanes
                        starts[1] = _list_own_spikes(
                            layer,
                            address(state),
                            own,
                            address(events),
                            address(values),
                            valued,
                            end,
                        )
                    for tile in range(tiles):
                        run_tile(
                            layer, tile, member, y * layer.width + x, address(weights),
                            address(starts), np.int64(0), address(events), address(values), valued,
                            together, address(state), slots[row] * slot_size, address(constants),
                            address(spikes), row * steps + t, spikes.shape[1], np.bool_(False),
                            address(currents),
                        )  # fmt: skip


@jit()
def pool(layer, pairs, spikes, pooled, start, stop):
    """2×2 max-pool: the result is a spike if the window has one.

    For items start … stop of (member, line of the result).
    """
    height, width, words = layer.height // 2, layer.width // 2, layer.words
    for item in range(start, stop):
        member, y = item // height, item % height
        for x in range(width):
            source = ((member * layer.height + 2 * y) * layer.width + 2 * x) * words
            below, target = source + layer.width * words, (item * width + x) * words
            for word in range(words):
                for pair in range(pairs):
                    upper = spikes[source + word, pair] | spikes[source + words + word, pair]
                    pooled[target + word, pair] = (
                        upper | spikes[below + word, pair] | spikes[below + words + word, pair]
                    )
