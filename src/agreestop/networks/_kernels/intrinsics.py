# mypy: allow-untyped-defs
"""Operations that numba cannot express, written as LLVM instructions, and a copy loop. All numba kernels share them."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from .numba_runtime import intrinsic, jit_inline

MASKED = 64
"""Entries that `nonzero_mask` tests at once."""

# ---- helpers that write instructions into a builder


def floats(count: int) -> Any:
    """A vector of float32."""
    return ir.VectorType(ir.FloatType(), count)


def integers(count: int, bits: int) -> Any:
    """A vector of integers."""
    return ir.VectorType(ir.IntType(bits), count)


def pointer(context: Any, builder: Any, kind: Any, memory: Any, at: Any, target: Any) -> Any:
    """The address of element `at` of an array, or of an address, as a pointer to the type `target`."""
    data = context.make_array(kind)(context, builder, memory).data if isinstance(kind, types.Array) else memory
    return builder.bitcast(builder.gep(data, [at]), target.as_pointer())


def splat(builder: Any, value: Any, count: int) -> Any:
    """A vector with the value in every lane."""
    vector = ir.VectorType(value.type, count)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), ir.Constant(integers(count, 32), [0] * count))


def multiply_add(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """x · y + z for float32 or vectors of it, rounded once."""
    suffix, kind = f"v{x.type.count}f32" if isinstance(x.type, ir.VectorType) else "f32", ir.FunctionType(x.type, [x.type] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.{suffix}"), [x, y, z])


# ---- intrinsics


@intrinsic
def fma(typing: Any, x: Any, y: Any, z: Any) -> Any:
    """x · y + z, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return multiply_add(builder, *arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


@intrinsic
def power_of_two(typing: Any, exponent: Any) -> Any:
    """2^n for an integer n ≥ -126."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        biased = builder.add(builder.fptosi(arguments[0], ir.IntType(32)), ir.IntType(32)(127))
        return builder.bitcast(builder.shl(biased, ir.IntType(32)(23)), ir.FloatType())

    return types.float32(types.float32), generate


@intrinsic
def prefetch(typing: Any, array: Any, at: Any, count: Any) -> Any:
    """Ask for `count` float32 values, a literal number, ahead of time. The processor does not foresee jumps of a page or more."""
    lines = range(0, count.literal_value, 16)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, number = ir.IntType(8), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        for line in lines:
            at = builder.add(arguments[1], ir.IntType(64)(line))
            address = pointer(context, builder, signature.args[0], arguments[0], at, byte)
            builder.call(function, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64, count), generate


@intrinsic
def nonzero_mask(typing: Any, memory: Any, at: Any) -> Any:
    """Which of the 64 entries from `at` on are not zero, as the bits of one integer; for float32 values or bytes."""
    floating = memory.dtype == types.float32

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = floats(MASKED) if floating else integers(MASKED, 8)
        address = pointer(context, builder, signature.args[0], arguments[0], arguments[1], vector)
        found = builder.load(address, align=4 if floating else 1)
        compare = builder.fcmp_unordered if floating else builder.icmp_unsigned
        return builder.bitcast(compare("!=", found, ir.Constant(vector, None)), ir.IntType(MASKED))

    return types.uint64(memory, types.int64), generate


@intrinsic
def lowest_bit(typing: Any, bits: Any) -> Any:
    """The index of the lowest bit that is set; 64 if none is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(0))

    return types.int64(types.uint64), generate


@intrinsic
def count_bits(typing: Any, bits: Any) -> Any:
    """The number of bits that are set."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


@jit_inline
def copy_range(source, begin, target, to, count):
    """Copy `count` elements. Indices are unsigned, because numba checks signed ones for values below zero."""
    for index in range(np.uint64(count)):
        target[np.uint64(to) + index] = source[np.uint64(begin) + index]
