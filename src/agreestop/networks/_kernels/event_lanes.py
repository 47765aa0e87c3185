# mypy: allow-untyped-defs, allow-untyped-calls, allow-subclassing-any, allow-untyped-decorators
"""Vectors and addresses inside the event-driven loops: numba types for LLVM's, and the few operations on them that the loops need.

LLVM splits a vector over the registers that the processor has. Inside the loops an array is its address: numba counts references to arrays,
and one count costs as much as a row of weights.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import models, register_model

from .intrinsics import floats, integers, multiply_add, splat
from .numba_runtime import emits

WIDE, HALF, NARROW = 128, 64, 16
"""Lanes of a wide tile, of the pieces in which its recursion runs, and of a narrow tile."""


class Lanes(types.Type):
    """`count` numbers in registers: float32, or 16-bit sums of int8 weights. `stored` is the type of the weights in the sum."""

    def __init__(self, count: int, stored: Any = types.float32) -> None:
        self.count, self.stored, self.floating = count, stored, stored != types.int8
        super().__init__(name=f"Lanes({count}, {stored})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, floats(kind.count) if kind.floating else integers(kind.count, 16))


def _load(builder, address, at, vector, align):
    return builder.load(builder.bitcast(builder.gep(address, [at]), vector.as_pointer()), align=align)


def _read(builder, stored, address, at, count):
    """Load stored weights as float32. A wide row of bfloat16 holds pairs, lane j above lane j + 64: a mask and a shift convert it."""

    if stored == types.float32:
        return _load(builder, address, at, floats(count), 4)
    if stored == types.int8:
        return builder.sitofp(builder.sext(_load(builder, address, at, integers(count, 8), 1), integers(count, 32)), floats(count))
    if count == NARROW:
        whole = builder.zext(_load(builder, address, at, integers(count, 16), 2), integers(count, 32))
        return builder.bitcast(builder.shl(whole, ir.Constant(whole.type, [16] * count)), floats(count))
    pairs = _load(builder, address, at, integers(count // 2, 32), 2)
    above = builder.and_(pairs, ir.Constant(pairs.type, [0xFFFF0000] * (count // 2)))
    below = builder.shl(pairs, ir.Constant(pairs.type, [16] * (count // 2)))
    joined = builder.shuffle_vector(above, below, ir.Constant(integers(count, 32), list(range(count))))
    return builder.bitcast(joined, floats(count))


@emits(lambda array: types.CPointer(array.dtype)(array))
def address(builder, context, signature, array):
    """The address of the first element of an array."""
    return context.make_array(signature.args[0])(context, builder, array).data


@emits(lambda address, at: address.dtype(address, types.int64))
def get(builder, context, signature, address, at):
    """Read one element."""
    return builder.load(builder.gep(address, [at]))


@emits(lambda address, at, value: types.void(address, types.int64, address.dtype))
def put(builder, context, signature, address, at, value):
    """Write one element."""
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
    return builder.add(total, builder.sext(_load(builder, weights, at, integers(lanes.count, 8), 1), total.type))


@emits(lambda total, weights, at, value: total(total, weights, types.int64, types.float32))
def plus_row_times(builder, context, signature, total, weights, at, value):
    """Add a row of weights, multiplied by a value, to a float32 sum."""
    count = signature.return_type.count
    return multiply_add(builder, _read(builder, signature.args[1].dtype, weights, at, count), splat(builder, value, count), total)


@emits(lambda total, zero: zero(total, zero))
def begin_part(builder, context, signature, total, zero):
    """The start of a partial sum: a float32 sum continues from the total, an integer sum starts from zero."""
    return total if signature.return_type.floating else zero


@emits(lambda total, part: total(total, part))
def end_part(builder, context, signature, total, part):
    """The total after a partial sum: a float32 part contains the total already; an integer part is added, which is exact."""
    lanes = signature.args[1]
    if lanes.floating:
        return part
    return builder.fadd(total, builder.sitofp(builder.sext(part, integers(lanes.count, 32)), floats(lanes.count)))


@emits(lambda lanes: Lanes(lanes.count)(lanes))
def zeros_like(builder, context, signature, lanes):
    """float32 zeros in the same number of lanes."""
    return ir.Constant(floats(signature.return_type.count), None)


@emits(lambda lanes, address, at: lanes(lanes, address, types.int64))
def load_like(builder, context, signature, lanes, address, at):
    """Load float32 values from `at` on, in the same number of lanes."""
    return _read(builder, types.float32, address, at, signature.return_type.count)


@emits(lambda lanes, value: lanes(lanes, types.float32))
def broadcast_like(builder, context, signature, lanes, value):
    """One value in every lane, in the same number of lanes."""
    return splat(builder, value, signature.return_type.count)


@emits(lambda address, at, lanes: types.void(address, types.int64, lanes))
def store(builder, context, signature, address, at, value):
    """Write float32 values, or the bits of spikes. `at` counts float32 values, or 16-bit words."""
    unit = ir.FloatType() if isinstance(signature.args[2], Lanes) else ir.IntType(16)
    target = builder.gep(builder.bitcast(address, unit.as_pointer()), [at])
    builder.store(value, builder.bitcast(target, value.type.as_pointer()), align=2)


@emits(lambda x, y: x(x, x))
def multiply(builder, context, signature, x, y):
    """x · y in every lane."""
    return builder.fmul(x, y)


@emits(lambda x, y, z: x(x, x, x))
def multiply_add_lanes(builder, context, signature, x, y, z):
    """x · y + z in every lane, rounded once."""
    return multiply_add(builder, x, y, z)


@emits(lambda x, y: types.Integer.from_bitwidth(x.count, signed=False)(x, x))
def reached(builder, context, signature, x, y):
    """The lanes in which x ≥ y, as the bits of one integer."""
    return builder.bitcast(builder.fcmp_ordered(">=", x, y), ir.IntType(signature.args[0].count))


@emits(lambda bits: Lanes(bits.bitwidth)(bits))
def ones_where(builder, context, signature, bits):
    """1.0 in the lanes whose bit is set, else 0.0."""
    count = signature.return_type.count
    return builder.uitofp(builder.bitcast(bits, integers(count, 1)), floats(count))
