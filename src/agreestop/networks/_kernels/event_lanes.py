# mypy: allow-subclassing-any, allow-untyped-decorators
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
from .numba_runtime import intrinsic

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


def _load(builder: Any, address: Any, at: Any, vector: Any, align: int) -> Any:
    return builder.load(builder.bitcast(builder.gep(address, [at]), vector.as_pointer()), align=align)


def _read(builder: Any, stored: Any, address: Any, at: Any, count: int) -> Any:
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


@intrinsic
def address(typing: Any, array: Any) -> Any:
    """The address of the first element of an array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, arguments[0]).data

    return types.CPointer(array.dtype)(array), generate


@intrinsic
def get(typing: Any, address: Any, at: Any) -> Any:
    """Read one element."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.gep(arguments[0], [arguments[1]]))

    return address.dtype(address, types.int64), generate


@intrinsic
def put(typing: Any, address: Any, at: Any, value: Any) -> Any:
    """Write one element."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, at, value = arguments
        builder.store(value, builder.gep(address, [at]))
        return context.get_dummy_value()

    return types.void(address, types.int64, address.dtype), generate


@intrinsic
def zero_sum(typing: Any, weights: Any, count: Any) -> Any:
    """A sum of weights with no terms; count is a literal number of lanes."""
    kind = Lanes(count.literal_value, weights.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(context.get_value_type(signature.return_type), None)

    return kind(weights, count), generate


@intrinsic
def plus_row(typing: Any, total: Any, weights: Any, at: Any) -> Any:
    """Add a row of weights to a sum."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (total, weights, at), lanes = arguments, signature.return_type
        if lanes.floating:
            return builder.fadd(total, _read(builder, lanes.stored, weights, at, lanes.count))
        return builder.add(total, builder.sext(_load(builder, weights, at, integers(lanes.count, 8), 1), total.type))

    return total(total, weights, types.int64), generate


@intrinsic
def plus_row_times(typing: Any, total: Any, weights: Any, at: Any, value: Any) -> Any:
    """Add a row of weights, multiplied by a value, to a float32 sum."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (total, weights, at, value), count = arguments, signature.return_type.count
        row = _read(builder, signature.args[1].dtype, weights, at, count)
        return multiply_add(builder, row, splat(builder, value, count), total)

    return total(total, weights, types.int64, types.float32), generate


@intrinsic
def begin_part(typing: Any, total: Any, zero: Any) -> Any:
    """The start of a partial sum: a float32 sum continues from the total, an integer sum starts from zero."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return arguments[0] if signature.return_type.floating else arguments[1]

    return zero(total, zero), generate


@intrinsic
def end_part(typing: Any, total: Any, part: Any) -> Any:
    """The total after a partial sum: a float32 part contains the total already; an integer part is added, which is exact."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (total, part), lanes = arguments, signature.args[1]
        if lanes.floating:
            return part
        return builder.fadd(total, builder.sitofp(builder.sext(part, integers(lanes.count, 32)), floats(lanes.count)))

    return total(total, part), generate


@intrinsic
def zeros_like(typing: Any, lanes: Any) -> Any:
    """float32 zeros in the same number of lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(floats(signature.return_type.count), None)

    return Lanes(lanes.count)(lanes), generate


@intrinsic
def load_like(typing: Any, lanes: Any, address: Any, at: Any) -> Any:
    """Load float32 values from `at` on, in the same number of lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _read(builder, types.float32, arguments[1], arguments[2], signature.return_type.count)

    return lanes(lanes, address, types.int64), generate


@intrinsic
def broadcast_like(typing: Any, lanes: Any, value: Any) -> Any:
    """One value in every lane, in the same number of lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return splat(builder, arguments[1], signature.return_type.count)

    return lanes(lanes, types.float32), generate


@intrinsic
def store(typing: Any, address: Any, at: Any, lanes: Any) -> Any:
    """Write float32 values, or the bits of spikes. `at` counts float32 values, or 16-bit words."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, at, value = arguments
        unit = ir.FloatType() if isinstance(signature.args[2], Lanes) else ir.IntType(16)
        target = builder.gep(builder.bitcast(address, unit.as_pointer()), [at])
        builder.store(value, builder.bitcast(target, value.type.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.void(address, types.int64, lanes), generate


@intrinsic
def multiply(typing: Any, x: Any, y: Any) -> Any:
    """x · y in every lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fmul(*arguments)

    return x(x, x), generate


@intrinsic
def multiply_add_lanes(typing: Any, x: Any, y: Any, z: Any) -> Any:
    """x · y + z in every lane, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return multiply_add(builder, *arguments)

    return x(x, x, x), generate


@intrinsic
def reached(typing: Any, x: Any, y: Any) -> Any:
    """The lanes in which x ≥ y, as the bits of one integer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.fcmp_ordered(">=", *arguments), ir.IntType(signature.args[0].count))

    return types.Integer.from_bitwidth(x.count, signed=False)(x, x), generate


@intrinsic
def ones_where(typing: Any, bits: Any) -> Any:
    """1.0 in the lanes whose bit is set, else 0.0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        count = signature.return_type.count
        return builder.uitofp(builder.bitcast(arguments[0], integers(count, 1)), floats(count))

    return Lanes(bits.bitwidth)(bits), generate
