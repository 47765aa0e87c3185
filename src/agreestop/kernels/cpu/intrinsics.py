# mypy: allow-untyped-defs, allow-untyped-calls, allow-subclassing-any, allow-untyped-decorators
"""Operations that numba cannot express, written as LLVM instructions, and a copy loop.

All numba kernels share them.

Vectors are numba types for LLVM's; LLVM splits a vector over the registers that the processor has.
In the event-driven loops an array is its address: numba counts references to arrays, and one count
costs as much as a row of weights.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import models, register_model

from .numba_runtime import emits, jit_inline

MASKED = 64  # entries that `nonzero_mask` tests at once
EIGHT = 8  # words that `nonzero_words` tests at once
WIDE, HALF, NARROW = 128, 64, 16
"""Lanes of a wide tile of the event-driven loops, of the pieces in which its recursion runs, and
of a narrow tile.
"""

# ---- helpers that write instructions into a builder


def floats(count: int) -> Any:
    """A vector of float32."""
    return ir.VectorType(ir.FloatType(), count)


def integers(count: int, bits: int) -> Any:
    """A vector of integers."""
    return ir.VectorType(ir.IntType(bits), count)


def pointer(context: Any, builder: Any, kind: Any, memory: Any, at: Any, target: Any) -> Any:
    """The address of element `at` of an array, or of an address, as a pointer to the
    type `target`.
    """
    data = (
        context.make_array(kind)(context, builder, memory).data
        if isinstance(kind, types.Array)
        else memory
    )
    return builder.bitcast(builder.gep(data, [at]), target.as_pointer())


def splat(builder: Any, value: Any, count: int) -> Any:
    """A vector with the value in every lane."""
    vector = ir.VectorType(value.type, count)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
    return builder.shuffle_vector(
        first, ir.Constant(vector, ir.Undefined), ir.Constant(integers(count, 32), [0] * count)
    )


def multiply_add(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """x · y + z for float32 or vectors of it, rounded once."""
    suffix = f"v{x.type.count}f32" if isinstance(x.type, ir.VectorType) else "f32"
    kind = ir.FunctionType(x.type, [x.type] * 3)
    return builder.call(
        cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.{suffix}"), [x, y, z]
    )


# ---- intrinsics


@emits(lambda x, y, z: x(x, x, x))
def fma(builder, context, signature, x, y, z):
    """x · y + z for float32, or in every lane, rounded once."""
    return multiply_add(builder, x, y, z)


@emits(lambda exponent: types.float32(types.float32))
def power_of_two(builder, context, signature, exponent):
    """2^n for an integer n ≥ -126."""
    biased = builder.add(builder.fptosi(exponent, ir.IntType(32)), ir.IntType(32)(127))
    return builder.bitcast(builder.shl(biased, ir.IntType(32)(23)), ir.FloatType())


@emits(lambda array, at, count: types.void(array, types.int64, count))
def prefetch(builder, context, signature, array, at, count):
    """Ask for `count` float32 values, a literal number, ahead of time.

    The processor does not foresee jumps of a page or more.
    """
    byte, number = ir.IntType(8), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), number, number, number])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    for line in range(0, signature.args[2].literal_value, 16):
        address = pointer(
            context, builder, signature.args[0], array, builder.add(at, ir.IntType(64)(line)), byte
        )
        builder.call(function, [address, number(0), number(3), number(1)])


@emits(lambda memory, at: types.uint64(memory, types.int64))
def nonzero_mask(builder, context, signature, memory, at):
    """Which of the 64 entries from `at` on are not zero, as the bits of one integer; for float32
    values or bytes.
    """
    floating = signature.args[0].dtype == types.float32
    vector = floats(MASKED) if floating else integers(MASKED, 8)
    found = builder.load(
        pointer(context, builder, signature.args[0], memory, at, vector), align=4 if floating else 1
    )
    compare = builder.fcmp_unordered if floating else builder.icmp_unsigned
    return builder.bitcast(compare("!=", found, ir.Constant(vector, None)), ir.IntType(MASKED))


@emits(lambda address, at: types.uint64(address, types.int64))
def nonzero_words(builder, context, signature, address, at):
    """Which of the eight 64-bit words from `at` on are not zero, as the lowest bits
    of one integer.
    """
    words = _load(builder, address, at, integers(EIGHT, 64), 8)
    return builder.zext(
        builder.bitcast(
            builder.icmp_unsigned("!=", words, ir.Constant(words.type, None)), ir.IntType(EIGHT)
        ),
        ir.IntType(64),
    )


@emits(lambda bits: types.int64(types.uint64))
def lowest_bit(builder, context, signature, bits):
    """The index of the lowest bit that is set; 64 if none is."""
    return builder.cttz(bits, ir.IntType(1)(0))


@emits(lambda bits: types.int64(types.uint64))
def count_bits(builder, context, signature, bits):
    """The number of bits that are set."""
    return builder.ctpop(bits)


@jit_inline
def copy_range(source, begin, target, to, count):
    """Copy `count` elements.

    Indices are unsigned, because numba checks signed ones for values below zero.
    """
    for index in range(np.uint64(count)):
        target[np.uint64(to) + index] = source[np.uint64(begin) + index]


# ---- vectors and addresses of the event-driven loops


class Lanes(types.Type):
    """`count` numbers in registers: float32, or 16-bit sums of int8 weights.

    `stored` is the type of the weights in the sum.
    """

    def __init__(self, count: int, stored: Any = types.float32) -> None:
        self.count, self.stored, self.floating = count, stored, stored != types.int8
        super().__init__(name=f"Lanes({count}, {stored})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(
            manager, kind, floats(kind.count) if kind.floating else integers(kind.count, 16)
        )


def _load(builder, address, at, vector, align):
    return builder.load(
        builder.bitcast(builder.gep(address, [at]), vector.as_pointer()), align=align
    )


def _read(builder, stored, address, at, count):
    """Load stored weights as float32.

    A wide row of bfloat16 holds pairs, lane j above lane j + 64: a mask and a shift convert it.
    """
    if stored == types.float32:
        return _load(builder, address, at, floats(count), 4)
    if stored == types.int8:
        return builder.sitofp(
            builder.sext(_load(builder, address, at, integers(count, 8), 1), integers(count, 32)),
            floats(count),
        )
    if count < WIDE:
        whole = builder.zext(
            _load(builder, address, at, integers(count, 16), 2), integers(count, 32)
        )
        return builder.bitcast(
            builder.shl(whole, ir.Constant(whole.type, [16] * count)), floats(count)
        )
    pairs = _load(builder, address, at, integers(count // 2, 32), 2)
    above = builder.and_(pairs, ir.Constant(pairs.type, [0xFFFF0000] * (count // 2)))
    below = builder.shl(pairs, ir.Constant(pairs.type, [16] * (count // 2)))
    joined = builder.shuffle_vector(
        above, below, ir.Constant(integers(count, 32), list(range(count)))
    )
    return builder.bitcast(joined, floats(count))


@emits(lambda array: types.CPointer(array.dtype)(array))
def address(builder, context, signature, array):
    """The address of the first element of an array."""
    return context.make_array(signature.args[0])(context, builder, array).data


@emits(lambda address, at: address.dtype(address, types.int64))
def get(builder, context, signature, address, at):
    return builder.load(builder.gep(address, [at]))


@emits(lambda address, at, value: types.void(address, types.int64, address.dtype))
def put(builder, context, signature, address, at, value):
    builder.store(value, builder.gep(address, [at]))


@emits(lambda weights, count: Lanes(count.literal_value, weights.dtype)(weights, count))
def zero_sum(builder, context, signature, weights, count):
    """A sum of weights with no terms; count is a literal number of lanes."""
    return ir.Constant(context.get_value_type(signature.return_type), None)


@emits(lambda total, weights, at: total(total, weights, types.int64))
def plus_row(builder, context, signature, total, weights, at):
    """Add a row of weights to a sum."""
    lanes = signature.return_type
    if lanes.floating:
        return builder.fadd(total, _read(builder, lanes.stored, weights, at, lanes.count))
    return builder.add(
        total, builder.sext(_load(builder, weights, at, integers(lanes.count, 8), 1), total.type)
    )


@emits(lambda total, weights, at, value: total(total, weights, types.int64, types.float32))
def plus_row_times(builder, context, signature, total, weights, at, value):
    """Add a row of weights, multiplied by a value, to a float32 sum."""
    count = signature.return_type.count
    return multiply_add(
        builder,
        _read(builder, signature.args[1].dtype, weights, at, count),
        splat(builder, value, count),
        total,
    )


@emits(lambda total, zero: zero(total, zero))
def begin_part(builder, context, signature, total, zero):
    """The start of a partial sum: a float32 sum continues from the total, an integer sum
    starts from zero.
    """
    return total if signature.return_type.floating else zero


@emits(lambda total, part: total(total, part))
def end_part(builder, context, signature, total, part):
    """The total after a partial sum: a float32 part contains the total already.

    An integer part is added, which is exact.
    """
    lanes = signature.args[1]
    if lanes.floating:
        return part
    return builder.fadd(
        total, builder.sitofp(builder.sext(part, integers(lanes.count, 32)), floats(lanes.count))
    )


@emits(lambda lanes: Lanes(lanes.count)(lanes))
def zeros_like(builder, context, signature, lanes):
    """float32 zeros in the same number of lanes."""
    return ir.Constant(floats(signature.return_type.count), None)


@emits(lambda lanes, address, at: lanes(lanes, address, types.int64))
def load_like(builder, context, signature, lanes, address, at):
    """Load float32 values from `at` on, in the same number of lanes."""
    return _read(builder, types.float32, address, at, signature.return_type.count)


@emits(lambda address, at, lanes: types.void(address, types.int64, lanes))
def store(builder, context, signature, address, at, value):
    """Write float32 values, or the bits of spikes. `at` counts float32 values, or 16-bit words."""
    unit = ir.FloatType() if isinstance(signature.args[2], Lanes) else ir.IntType(16)
    target = builder.gep(builder.bitcast(address, unit.as_pointer()), [at])
    builder.store(value, builder.bitcast(target, value.type.as_pointer()), align=2)


@emits(lambda lanes, address, at, apart: lanes(lanes, address, types.int64, types.int64))
def load_apart(builder, context, signature, lanes, address, at, apart):
    """Load float32 values in the same number of lanes: 16 from `at` on, the next 16 from
    `at + apart` on, and so on.
    """
    parts = []
    for _ in range(0, signature.return_type.count, NARROW):
        parts.append(_load(builder, address, at, floats(NARROW), 4))
        at = builder.add(at, apart)
    while len(parts) > 1:
        joined = ir.Constant(
            integers(2 * parts[0].type.count, 32), list(range(2 * parts[0].type.count))
        )
        parts = [
            builder.shuffle_vector(one, two, joined)
            for one, two in zip(parts[::2], parts[1::2], strict=True)
        ]
    return parts[0]


@emits(lambda lanes, address, at, apart: types.void(lanes, address, types.int64, types.int64))
def prefetch_apart(builder, context, signature, lanes, address, at, apart):
    """Ask for three times as many values as `load_apart` loads, into the second cache: 48
    in each place.
    """
    byte, number = ir.IntType(8), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), number, number, number])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    for _ in range(0, signature.args[0].count, NARROW):
        for line in range(3):
            place = builder.gep(address, [builder.add(at, ir.IntType(64)(line * NARROW))])
            builder.call(
                function,
                [builder.bitcast(place, byte.as_pointer()), number(0), number(2), number(1)],
            )
        at = builder.add(at, apart)


@emits(lambda address, at, apart, value: types.void(address, types.int64, types.int64, value))
def store_apart(builder, context, signature, address, at, apart, value):
    """Write float32 values as `load_apart` reads them, or the bits of spikes, 16 in each place.

    `at` and `apart` count as in `store`.
    """
    kind, bits = signature.args[3], ir.IntType(16)
    unit, count = (ir.FloatType(), kind.count) if isinstance(kind, Lanes) else (bits, kind.bitwidth)
    for first in range(0, count, NARROW):
        if unit == bits:
            part = (
                value
                if count == NARROW
                else builder.trunc(builder.lshr(value, value.type(first)), bits)
            )
        else:
            chosen = ir.Constant(integers(NARROW, 32), list(range(first, first + NARROW)))
            part = builder.shuffle_vector(value, ir.Constant(value.type, ir.Undefined), chosen)
        target = builder.gep(builder.bitcast(address, unit.as_pointer()), [at])
        builder.store(part, builder.bitcast(target, part.type.as_pointer()), align=2)
        at = builder.add(at, apart)


@emits(lambda x, y: x(x, x))
def multiply(builder, context, signature, x, y):
    return builder.fmul(x, y)


@emits(lambda x, y: x(x, x))
def divide(builder, context, signature, x, y):
    return builder.fdiv(x, y)


@emits(lambda x, y: x(x, x))
def add(builder, context, signature, x, y):
    return builder.fadd(x, y)


@emits(lambda x, y: x(x, x))
def subtract(builder, context, signature, x, y):
    return builder.fsub(x, y)


@emits(lambda x, y: types.Integer.from_bitwidth(x.count, signed=False)(x, x))
def reached(builder, context, signature, x, y):
    """The lanes in which x ≥ y, as the bits of one integer."""
    return builder.bitcast(builder.fcmp_ordered(">=", x, y), ir.IntType(signature.args[0].count))


@emits(lambda bits: Lanes(bits.bitwidth)(bits))
def ones_where(builder, context, signature, bits):
    """1.0 in the lanes whose bit is set, else 0.0."""
    count = signature.return_type.count
    return builder.uitofp(builder.bitcast(bits, integers(count, 1)), floats(count))


@emits(lambda bits, x, y: x(bits, x, x))
def where(builder, context, signature, bits, x, y):
    """x in the lanes whose bit is set, else y."""
    return builder.select(builder.bitcast(bits, integers(signature.return_type.count, 1)), x, y)
