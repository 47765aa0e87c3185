# mypy: allow-untyped-defs
"""Operations that numba cannot express, written as LLVM instructions, and a copy loop. All numba kernels share them."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from .numba_runtime import emits, jit_inline

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


@emits(lambda x, y, z: types.float32(types.float32, types.float32, types.float32))
def fma(builder, context, signature, x, y, z):
    """x · y + z, rounded once."""
    return multiply_add(builder, x, y, z)


@emits(lambda exponent: types.float32(types.float32))
def power_of_two(builder, context, signature, exponent):
    """2^n for an integer n ≥ -126."""
    biased = builder.add(builder.fptosi(exponent, ir.IntType(32)), ir.IntType(32)(127))
    return builder.bitcast(builder.shl(biased, ir.IntType(32)(23)), ir.FloatType())


@emits(lambda array, at, count: types.void(array, types.int64, count))
def prefetch(builder, context, signature, array, at, count):
    """Ask for `count` float32 values, a literal number, ahead of time. The processor does not foresee jumps of a page or more."""
    byte, number = ir.IntType(8), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), number, number, number])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    for line in range(0, signature.args[2].literal_value, 16):
        address = pointer(context, builder, signature.args[0], array, builder.add(at, ir.IntType(64)(line)), byte)
        builder.call(function, [address, number(0), number(3), number(1)])


@emits(lambda memory, at: types.uint64(memory, types.int64))
def nonzero_mask(builder, context, signature, memory, at):
    """Which of the 64 entries from `at` on are not zero, as the bits of one integer; for float32 values or bytes."""
    floating = signature.args[0].dtype == types.float32
    vector = floats(MASKED) if floating else integers(MASKED, 8)
    found = builder.load(pointer(context, builder, signature.args[0], memory, at, vector), align=4 if floating else 1)
    compare = builder.fcmp_unordered if floating else builder.icmp_unsigned
    return builder.bitcast(compare("!=", found, ir.Constant(vector, None)), ir.IntType(MASKED))


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
    """Copy `count` elements. Indices are unsigned, because numba checks signed ones for values below zero."""
    for index in range(np.uint64(count)):
        target[np.uint64(to) + index] = source[np.uint64(begin) + index]
