# mypy: allow-untyped-defs, allow-untyped-calls, allow-subclassing-any, allow-untyped-decorators
"""The inner loops of the event-driven engine, compiled by numba: lists of events in, spikes of SRM neurons out.

    x_t = scale · Σ_{events e at t} value_e · W[e, :] + bias
    i_t = b i_{t-1} + x_t,   m_t = a m_{t-1} + i_t,   z_t = 1 where c m_t - θ r h_{t-1} ≥ θ,   h_t = r h_{t-1} + z_t

Neurons stand side by side in *lanes*. The sums of a tile of lanes, 128 of them or 16, stay in registers over the events of a step, and
its state over the steps of a block, so that a step costs one read of a weight row for each event and little else. Spikes are bits, in
arrays (words of 64 neurons, pairs of row and step): what a tile writes over time lies together.

Sums run in the order of the list, and the recursion uses the fused multiply-add where PyTorch does:
each neuron is one fixed sequence of roundings, whatever the thread, the batch or the length of the block.

Vectors are LLVM's, through a numba type; LLVM splits them over the registers that the processor has. Inside the loops an array is its
address: numba counts references to arrays, and one count costs as much as a row of weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

WIDE, HALF, NARROW = 128, 64, 16
STEPS_SUMMED = 16  # before the recursion runs over them: their sums stay in the nearest cache
EVENTS_IN_A_BLOCK = 256  # as many int8 weights as 16 bits can sum
SPARE = 8
ROWS_AT_ONCE = 8  # of weights that a stream reads side by side

LAYER = np.dtype(
    [
        ("window", np.int64),  # 3 for a convolution of 3×3, 0 for full connection
        ("own", np.int64),  # 1 where each member has its own input, 0 where all share one
        ("rows", np.int64),  # weight rows: inputs, or places of the window times channels
        ("outputs", np.int64),  # neurons at each position
        ("height", np.int64),  # positions; 1 × 1 for full connection
        ("width", np.int64),
        ("wide", np.int64),  # tiles of 128 lanes at each position, then tiles of 16
        ("narrow", np.int64),
        ("lanes", np.int64),
        ("words", np.int64),  # of 64 spikes at each position
        ("pool", np.int64),  # 1 where the next layer receives the spikes through a 2×2 max-pool
        ("in_channels", np.int64),  # what arrives, after the pool: channels, positions, and words at a position
        ("in_height", np.int64),
        ("in_width", np.int64),
        ("in_words", np.int64),
        ("weights_at", np.int64),  # where the layer begins in weights, state and lane constants
        ("row_stride", np.int64),
        ("member_stride", np.int64),
        ("state_at", np.int64),
        ("lanes_at", np.int64),
    ]
)
"""One layer, as the loops see it; sizes and places are counted in elements."""

Function = TypeVar("Function", bound=Callable[..., Any])


def _entry(function: Function) -> Function:
    """Compiled, without Python's lock, and kept on disk: next to this file, else in numba's directory of the user, else not at all."""
    try:
        return cast(Function, numba.njit(nogil=True, error_model="numpy", cache=True)(function))
    except RuntimeError:  # numba finds no place that it may write to
        return _apart(function)


def _apart(function: Function) -> Function:
    """Compiled once for all loops that call it, if none gives it a literal: for each literal numba would compile it again."""
    return cast(Function, numba.njit(nogil=True, error_model="numpy")(function))


def _inner(function: Function) -> Function:
    """Compiled into each loop that calls it."""
    return cast(Function, numba.njit(nogil=True, error_model="numpy", inline="always")(function))


# ---- addresses and vectors: numba types for LLVM's, and the few operations on them that the loops need


def _operation(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that writes LLVM's instructions: called without its first argument, and a literal number may be part of a type."""
    return cast(Callable[..., Any], intrinsic(prefer_literal=True)(function))


class Lanes(types.Type):
    """`count` numbers in registers: floats, or the 16-bit sums of int8 weights. `stored` is the type of the weights that are summed."""

    def __init__(self, count: int, stored: Any = types.float32) -> None:
        self.count, self.stored, self.floating = count, stored, stored != types.int8
        super().__init__(name=f"Lanes({count}, {stored})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, _floats(kind.count) if kind.floating else _integers(kind.count, 16))


def _floats(count: int) -> Any:
    return ir.VectorType(ir.FloatType(), count)


def _integers(count: int, bits: int) -> Any:
    return ir.VectorType(ir.IntType(bits), count)


def _same(builder: Any, value: Any, count: int) -> Any:
    """One number in every lane."""
    vector = ir.VectorType(value.type, count)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), ir.Constant(_integers(count, 32), [0] * count))


def _fused(builder: Any, x: Any, y: Any, z: Any) -> Any:
    kind = ir.FunctionType(x.type, [x.type] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{x.type.count}f32"), [x, y, z])


def _read(builder: Any, stored: Any, address: Any, at: Any, count: int) -> Any:
    """Stored weights as floats. A wide row of bfloat16 lies in pairs, lane j above lane j + 64, so that a mask and a shift widen it."""

    def load(lanes: Any, align: int) -> Any:
        return builder.load(builder.bitcast(builder.gep(address, [at]), lanes.as_pointer()), align=align)

    if stored == types.float32:
        return load(_floats(count), 4)
    if stored == types.int8:
        return builder.sitofp(builder.sext(load(_integers(count, 8), 1), _integers(count, 32)), _floats(count))
    if count == NARROW:
        whole = builder.zext(load(_integers(count, 16), 2), _integers(count, 32))
        return builder.bitcast(builder.shl(whole, ir.Constant(whole.type, [16] * count)), _floats(count))
    pairs = load(_integers(count // 2, 32), 2)
    above = builder.and_(pairs, ir.Constant(pairs.type, [0xFFFF0000] * (count // 2)))
    below = builder.shl(pairs, ir.Constant(pairs.type, [16] * (count // 2)))
    joined = builder.shuffle_vector(above, below, ir.Constant(_integers(count, 32), list(range(count))))
    return builder.bitcast(joined, _floats(count))


@_operation
def _address(typing: Any, array: Any) -> Any:
    """Where an array begins."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, arguments[0]).data

    return types.CPointer(array.dtype)(array), generate


@_operation
def _get(typing: Any, address: Any, at: Any) -> Any:
    """The element at that place."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.gep(arguments[0], [arguments[1]]))

    return address.dtype(address, types.int64), generate


@_operation
def _put(typing: Any, address: Any, at: Any, value: Any) -> Any:
    """Writes an element."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, at, value = arguments
        builder.store(value, builder.gep(address, [at]))
        return context.get_dummy_value()

    return types.void(address, types.int64, address.dtype), generate


@_operation
def _nothing(typing: Any, weights: Any, count: Any) -> Any:
    """An empty sum of weights."""
    kind = Lanes(count.literal_value, weights.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(context.get_value_type(signature.return_type), None)

    return kind(weights, count), generate


@_operation
def _plus_row(typing: Any, total: Any, weights: Any, at: Any) -> Any:
    """A sum and one more row of weights."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (total, weights, at), lanes = arguments, signature.return_type
        if lanes.floating:
            return builder.fadd(total, _read(builder, lanes.stored, weights, at, lanes.count))
        row = builder.load(builder.bitcast(builder.gep(weights, [at]), _integers(lanes.count, 8).as_pointer()), align=1)
        return builder.add(total, builder.sext(row, total.type))

    return total(total, weights, types.int64), generate


@_operation
def _plus_row_times(typing: Any, total: Any, weights: Any, at: Any, value: Any) -> Any:
    """A sum in floats and one more row of weights, times a number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (total, weights, at, value), count = arguments, signature.return_type.count
        row = _read(builder, signature.args[1].dtype, weights, at, count)
        return _fused(builder, row, _same(builder, value, count), total)

    return total(total, weights, types.int64, types.float32), generate


@_operation
def _opened(typing: Any, total: Any, nothing: Any) -> Any:
    """Where a part of a sum begins: floats go on from the total, integers from nothing."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return arguments[0] if signature.return_type.floating else arguments[1]

    return nothing(total, nothing), generate


@_operation
def _closed(typing: Any, total: Any, part: Any) -> Any:
    """The total with the part: floats are in it, integers are added, which is exact."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (total, part), lanes = arguments, signature.args[1]
        if lanes.floating:
            return part
        return builder.fadd(total, builder.sitofp(builder.sext(part, _integers(lanes.count, 32)), _floats(lanes.count)))

    return total(total, part), generate


@_operation
def _zeros_like(typing: Any, lanes: Any) -> Any:
    """As many zeros in floats."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(_floats(signature.return_type.count), None)

    return Lanes(lanes.count)(lanes), generate


@_operation
def _load_like(typing: Any, lanes: Any, address: Any, at: Any) -> Any:
    """Floats from that place on, as many as there are lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _read(builder, types.float32, arguments[1], arguments[2], signature.return_type.count)

    return lanes(lanes, address, types.int64), generate


@_operation
def _same_like(typing: Any, lanes: Any, value: Any) -> Any:
    """One number in as many lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _same(builder, arguments[1], signature.return_type.count)

    return lanes(lanes, types.float32), generate


@_operation
def _store(typing: Any, address: Any, at: Any, lanes: Any) -> Any:
    """Writes floats, or the bits of spikes into 16-bit words."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, at, value = arguments
        unit = ir.FloatType() if isinstance(signature.args[2], Lanes) else ir.IntType(16)
        place = builder.gep(builder.bitcast(address, unit.as_pointer()), [at])
        builder.store(value, builder.bitcast(place, value.type.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.void(address, types.int64, lanes), generate


@_operation
def _product(typing: Any, x: Any, y: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fmul(*arguments)

    return x(x, x), generate


@_operation
def _product_plus(typing: Any, x: Any, y: Any, z: Any) -> Any:
    """x · y + z, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _fused(builder, *arguments)

    return x(x, x, x), generate


@_operation
def _reached(typing: Any, x: Any, y: Any) -> Any:
    """The lanes in which x ≥ y, as the bits of one number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.fcmp_ordered(">=", *arguments), ir.IntType(signature.args[0].count))

    return types.Integer.from_bitwidth(x.count, signed=False)(x, x), generate


@_operation
def _ones(typing: Any, bits: Any) -> Any:
    """1.0 in the lanes whose bit is set."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        count = signature.return_type.count
        return builder.uitofp(builder.bitcast(arguments[0], _integers(count, 1)), _floats(count))

    return Lanes(bits.bitwidth)(bits), generate


@_operation
def _nonzero_bytes(typing: Any, address: Any, at: Any) -> Any:
    """Which of the 64 bytes from that place on are not zero, as the bits of one number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        found = builder.load(builder.bitcast(builder.gep(arguments[0], [arguments[1]]), _integers(64, 8).as_pointer()), align=1)
        return builder.bitcast(builder.icmp_unsigned("!=", found, ir.Constant(found.type, None)), ir.IntType(64))

    return types.uint64(address, types.int64), generate


@_operation
def _lowest(typing: Any, bits: Any) -> Any:
    """The place of the lowest bit that is set; 64 where none is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


@_operation
def _number_set(typing: Any, bits: Any) -> Any:
    """How many bits are set."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


# ---- lists of events


@_inner
def _append(bits, base, events, n):
    """Adds the places of the bits that are set, counted from `base`, to a list that is n long; its new length.

    Eight at a time, since a loop that may end after each would be predicted wrongly for almost every word: what is written past the
    end is overwritten, and a list needs room for `SPARE` events more than it holds.
    """
    count = _number_set(bits)
    for first in range(0, count, SPARE):
        for place in range(n + first, n + first + SPARE):
            _put(events, place, base + _lowest(bits))
            bits &= bits - np.uint64(1)
    return n + count


# ---- one tile of neurons over a block of steps


@_inner
def _sum_rows(total, nothing, weights, at, stride, events, begin, end):
    """A total and the weight rows of events begin … end, for the lanes from `at` on; `nothing` gives their number and kind."""
    for first in range(begin, end, EVENTS_IN_A_BLOCK):
        part = _opened(total, nothing)
        for n in range(first, min(first + EVENTS_IN_A_BLOCK, end)):
            part = _plus_row(part, weights, at + np.int64(_get(events, n)) * stride)
        total = _closed(total, part)
    return total


@_inner
def _sum_rows_times(total, weights, at, stride, events, values, begin, end):
    """The same with weights times the value of their event."""
    for n in range(begin, end):
        total = _plus_row_times(total, weights, at + np.int64(_get(events, n)) * stride, _get(values, n))
    return total


@_inner
def _recur(empty, currents, current_at, lanes, steps, state, at, constants, scale, bias, spikes, spike_at):
    """The recursion over some steps with the state in registers; `empty` gives the number of lanes."""
    a, b, r = _same_like(empty, _get(constants, 0)), _same_like(empty, _get(constants, 1)), _same_like(empty, _get(constants, 2))
    threshold, gain = _same_like(empty, _get(constants, 3)), _same_like(empty, _get(constants, 4))
    reset = _same_like(empty, _get(constants, 5))  # -θ r
    synapse, membrane = _load_like(empty, state, at), _load_like(empty, state, at + lanes)
    refractory = _load_like(empty, state, at + 2 * lanes)
    for t in range(steps):
        synapse = _product_plus(synapse, b, _product_plus(_load_like(empty, currents, current_at + t * lanes), scale, bias))
        membrane = _product_plus(membrane, a, synapse)
        fired = _reached(_product_plus(refractory, reset, _product(membrane, gain)), threshold)
        refractory = _product_plus(refractory, r, _ones(fired))
        _store(spikes, spike_at + 4 * t, fired)
    _store(state, at, synapse)
    _store(state, at + lanes, membrane)
    _store(state, at + 2 * lanes, refractory)


@_inner
def _run_tile(
    nothing, empty, lanes, piece, weights, weight_at, stride, starts, list_at, events, values, valued, steps,
    state, state_at, constants, scale, bias, lane, spikes, spike_at, pairs, summed, currents,
):  # fmt: skip
    """All steps of the block for one tile: lists list_at … list_at + steps of `starts` are what arrives at each, if not summed before."""
    for first in range(0, steps, STEPS_SUMMED):
        count = min(STEPS_SUMMED, steps - first)
        for t in range(0 if summed else count):
            begin, end = _get(starts, list_at + first + t), _get(starts, list_at + first + t + 1)
            total = _zeros_like(nothing)
            if valued:
                total = _sum_rows_times(total, weights, weight_at, stride, events, values, begin, end)
            else:
                total = _sum_rows(total, nothing, weights, weight_at, stride, events, begin, end)
            _store(currents, t * lanes, total)
        for at in range(0, lanes, piece):
            _recur(
                empty, currents, at, lanes, count, state, state_at + at, constants,
                _load_like(empty, scale, lane + at), _load_like(empty, bias, lane + at),
                spikes, spike_at + 4 * (first + at // 64 * pairs),
            )  # fmt: skip


@_inner
def _offset(layer, tile):
    """The lane at which a tile begins: wide ones come first."""
    return WIDE * tile if tile < layer.wide else WIDE * layer.wide + NARROW * (tile - layer.wide)


@_apart
def _run(
    layer, tile, member, position, weights, starts, list_at, events, values, valued, steps,
    state, slot_at, constants, scale, bias, spikes, pair, pairs, summed, currents,
):  # fmt: skip
    """One tile of a member at a position, wide or narrow, over the steps from `pair` on; all arrays are addresses."""
    positions = layer.height * layer.width
    neurons = (member * positions + position) * layer.lanes
    offset = _offset(layer, tile)
    weight_at = layer.weights_at + member * layer.member_stride + offset
    state_at = slot_at + layer.state_at + 3 * (neurons + offset)
    lane = layer.lanes_at + member * layer.lanes + offset
    word = (member * positions + position) * layer.words + offset // 64
    spike_at = 4 * (word * pairs + pair) + offset % 64 // NARROW  # counted by 16 spikes
    if tile < layer.wide:
        _run_tile(
            _nothing(weights, WIDE), _nothing(currents, HALF), WIDE, HALF, weights, weight_at, layer.row_stride,
            starts, list_at, events, values, valued, steps,
            state, state_at, constants, scale, bias, lane, spikes, spike_at, pairs, summed, currents,
        )  # fmt: skip
    else:
        _run_tile(
            _nothing(weights, NARROW), _nothing(currents, NARROW), NARROW, NARROW, weights, weight_at, layer.row_stride,
            starts, list_at, events, values, valued, steps,
            state, state_at, constants, scale, bias, lane, spikes, spike_at, pairs, summed, currents,
        )  # fmt: skip


# ---- layers


@_inner
def _advance_shared(
    layer, weights, constants, scale, bias, slots, slot_size, state, steps, spikes, valued, starts, events, values, currents, start, stop
):
    """A fully connected layer whose members share their input, for items start … stop of (member, tile, row).

    The row runs fastest, so the weights of a tile stay in the second cache while all rows and steps pass by.
    """
    tiles, rows = layer.wide + layer.narrow, len(slots)
    for item in range(start, stop):
        unit, row = item // rows, item % rows
        member, tile = unit // tiles, unit % tiles
        _run(
            layer, tile, member, np.int64(0), _address(weights), _address(starts), row * steps, _address(events), _address(values),
            valued, steps, _address(state), slots[row] * slot_size, _address(constants[member]), _address(scale), _address(bias),
            _address(spikes), row * steps, spikes.shape[1], np.bool_(False), _address(currents),
        )  # fmt: skip


@_inner
def _gather(layer, received, at, pairs, y, x, events, n):
    """Adds the weight rows of all that reaches position (y, x) in one step to a list that is n long; its new length."""
    if layer.window == 0:
        for position in range(layer.in_height * layer.in_width):
            for word in range(layer.in_words):
                bits = _get(received, at + (position * layer.in_words + word) * pairs)
                n = _append(bits, position * layer.in_channels + 64 * word, events, n)
        return n
    for row in range(max(0, 1 - y), min(3, layer.in_height - y + 1)):
        for column in range(max(0, 1 - x), min(3, layer.in_width - x + 1)):
            position = (y + row - 1) * layer.in_width + x + column - 1
            for word in range(layer.in_words):
                bits = _get(received, at + (position * layer.in_words + word) * pairs)
                n = _append(bits, (3 * row + column) * layer.in_channels + 64 * word, events, n)
    return n


@_inner
def _look_up(layer, frames, at, y, x, events, begin, end, values):
    """The values of what a convolution has listed; they lie as (channels, height, width)."""
    for n in range(begin, end):
        place, channel = _get(events, n) // layer.in_channels, _get(events, n) % layer.in_channels
        position = (y + place // 3 - 1) * layer.in_width + x + place % 3 - 1
        _put(values, n, _get(frames, at + channel * layer.in_height * layer.in_width + position))


@_inner
def _advance_local(
    layer, members, weights, constants, scale, bias, slots, slot_size, state, steps, spikes, received, frames, valued,
    starts, events, values, currents, start, stop,
):  # fmt: skip
    """A convolution, or a fully connected layer of members with their own inputs, for items start … stop of (member, line, row).

    Each position lists what reaches it in every step of the block, once for all its lanes, and for all members where they share it.
    """
    rows, positions = len(slots), layer.in_height * layer.in_width
    for item in range(start, stop):
        unit, row = item // rows, item % rows
        group, y = unit // layer.height, unit % layer.height
        first = group * positions * layer.in_words * received.shape[1]
        for x in range(layer.width):
            n = 0
            for t in range(steps):
                pair, begin = row * steps + t, n
                starts[t] = begin
                n = _gather(layer, _address(received), first + pair, received.shape[1], y, x, _address(events), n)
                if valued:
                    _look_up(
                        layer, _address(frames), pair * layer.in_channels * positions, y, x, _address(events), begin, n, _address(values)
                    )
            starts[steps] = n
            for member in range(group if layer.own else 0, group + 1 if layer.own else members):
                for tile in range(layer.wide + layer.narrow):
                    _run(
                        layer, tile, member, y * layer.width + x, _address(weights), _address(starts), np.int64(0),
                        _address(events), _address(values), valued, steps, _address(state), slots[row] * slot_size,
                        _address(constants[member]), _address(scale), _address(bias), _address(spikes), row * steps,
                        spikes.shape[1], np.bool_(False), _address(currents),
                    )  # fmt: skip


@_entry
def advance(
    layer, members, weights, constants, scale, bias, slots, slot_size, state, steps, spikes, received, frames, valued,
    starts, events, values, currents, start, stop,
):  # fmt: skip
    """Some items of a layer over a block of steps. The lists hold a fully connected layer's inputs; for others they are room to work in."""
    if layer.window == 0 and layer.own == 0:
        _advance_shared(
            layer, weights, constants, scale, bias, slots, slot_size, state, steps, spikes, valued,
            starts, events, values, currents, start, stop,
        )  # fmt: skip
    else:
        _advance_local(
            layer, members, weights, constants, scale, bias, slots, slot_size, state, steps, spikes, received, frames, valued,
            starts, events, values, currents, start, stop,
        )  # fmt: skip


@_entry
def pool(layer, pairs, spikes, pooled, start, stop):
    """2×2 max-pool: a spike anywhere in the window is a spike; for items start … stop of (member, line of the result)."""
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


@_entry
def list_inputs(marks, frames, valued, inputs, total, rows, first, steps, starts, events, values):
    """For each row and step the list of active inputs, and of their values; marks lie as (all rows, total steps, inputs)."""
    n, whole, places = 0, inputs - inputs % 64, _address(marks)
    for row in range(len(rows)):
        for t in range(steps):
            at, begin = (rows[row] * total + first + t) * inputs, n
            starts[row * steps + t] = begin
            for piece in range(0, whole, 64):
                n = _append(_nonzero_bytes(places, at + piece), piece, _address(events), n)
            for place in range(whole, inputs):
                if marks[at + place]:
                    events[n] = place
                    n += 1
            if valued:
                for m in range(begin, n):
                    values[m] = frames[at + events[m]]
    starts[len(rows) * steps] = n


@_entry
def mark_positions(layer, marks, total, rows, first, steps, received):
    """Active inputs of a convolution as bits, channels side by side at each position; marks lie as (rows, steps, channels, positions)."""
    positions = layer.in_height * layer.in_width
    received[:, : len(rows) * steps] = 0
    for row in range(len(rows)):
        for t in range(steps):
            for channel in range(layer.in_channels):
                at = ((rows[row] * total + first + t) * layer.in_channels + channel) * positions
                for place in range(positions):
                    if marks[at + place]:
                        word = place * layer.in_words + channel // 64
                        received[word, row * steps + t] |= np.uint64(1) << np.uint64(channel % 64)


# ---- one live stream


@_inner
def _stream_shared(layer, members, weights, constants, scale, bias, state, spikes, starts, events, values, currents):
    """`_advance_shared` for one row and step: the wide tiles take a few events at a time, along their whole rows.

    The weights come from far away, and a processor fetches ahead for a few rows that are read from end to end, not for pieces of many.
    """
    lanes, count, rows, sums = layer.lanes, starts[1], _address(weights), _address(currents)
    nothing = _nothing(rows, WIDE)
    currents[: members * lanes] = 0
    for first in range(0, count, ROWS_AT_ONCE):
        last = min(first + ROWS_AT_ONCE, count)
        for begin in range(0, members * lanes, lanes):
            for lane in range(begin, begin + WIDE * layer.wide, WIDE):
                total = _load_like(_zeros_like(nothing), sums, lane)
                total = _sum_rows(total, nothing, rows, layer.weights_at + lane, layer.row_stride, _address(events), first, last)
                _store(sums, lane, total)
    for member in range(members):
        for tile in range(layer.wide + layer.narrow):
            _run(
                layer, tile, member, np.int64(0), rows, _address(starts), np.int64(0), _address(events), _address(values), np.bool_(False),
                np.int64(1), _address(state), np.int64(0), _address(constants[member]), _address(scale), _address(bias), _address(spikes),
                np.int64(0), np.int64(1), tile < layer.wide, _address(currents[member * lanes + _offset(layer, tile) :]),
            )  # fmt: skip


@_entry
def push(
    layers, weights, constants, scale, bias, given, given_values, valued, marks, frames, slots, state, spikes, starts, events, values,
    currents, counts,
):  # fmt: skip
    """One step of one stream through all layers, its read-out spikes added to `counts`; the first event that is no input, or -1.

    `spikes` holds the received bits of a convolution, then of each layer what it emits and what is left of it after a max-pool.
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
    for place in range(1, len(layers)):
        if layer.pool:
            pool(layer, one, spikes[at:], spikes[after:], zero, members * (layer.height // 2))
            at, after = after, after + members * (layer.height // 2) * (layer.width // 2) * layer.words
        layer = layers[place]
        advance(
            layer, members, weights, constants[place], scale, bias, slots, zero, state, one, spikes[after:], spikes[at:], frames,
            valued and place == 0, starts, events, values, currents, zero, members * layer.height,
        )  # fmt: skip
        at, after = after, after + members * layer.height * layer.width * layer.words
    for member in range(members):
        for label in range(counts.shape[1]):
            counts[member, label] += (spikes[at + member * layer.words + label // 64, 0] >> np.uint64(label % 64)) & np.uint64(1)
    return -1
