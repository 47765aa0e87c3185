"""Random numbers by address: every input has its own stream, which does not depend on the other inputs.

    key_i = mix(mix(seed + γ (purpose + 1)) + γ (i + 1)),   draw_{i,j} = mix(key_i + γ (j + 1))

`mix` is the finaliser of SplitMix64 and γ its increment (`common.splitmix`), so the draws of one input are a SplitMix64 sequence that
starts at a hashed state. Number j of input i depends only on (seed, purpose, i, j): a batch of any size and order gives the same
numbers, and they are computed for all inputs at once.
"""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from agreestop.common import GAMMA, Floats, InputError, Integers, Words, as_seed, is_integer, mix


class Purpose(IntEnum):
    """The purpose of a stream: numbers drawn for one purpose are independent of those for another."""

    MISMATCH = 0
    LEAK = 1
    SHOT_NOISE = 2
    PATH = 3


def as_numbers(inputs: int | Sequence[int] | Integers) -> Integers:
    """Input numbers (n,): those given, or 0..n-1 where only their count n is given."""
    if is_integer(inputs):
        if inputs < 1:
            raise InputError(f"inputs is {inputs}: give how many inputs there are, at least 1, or a list of their numbers.")
        return np.arange(inputs, dtype=np.int64)
    try:
        numbers = np.asarray(inputs)
    except ValueError:
        raise InputError("inputs cannot be read as one array: give how many inputs there are, or a list of their numbers.") from None
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or not len(numbers):
        raise InputError(
            f"inputs has shape {numbers.shape} and dtype {numbers.dtype}: give how many inputs there are, or a list of their numbers."
        )
    if numbers.min() < 0 or numbers.max() >= 2**62:
        wrong = numbers[(numbers < 0) | (numbers >= 2**62)][0]
        raise InputError(f"inputs holds {wrong}: number the inputs from 0 to 2^62 - 1.")
    return numbers.astype(np.int64)


def stream_keys(seed: int, purpose: Purpose, inputs: int | Sequence[int] | Integers) -> Words:
    """The state at which the stream of every input starts, (n,)."""
    start = mix(np.array([as_seed(seed)], dtype=np.uint64) + GAMMA * np.array([purpose + 1], dtype=np.uint64))
    return mix(start + GAMMA * (as_numbers(inputs).astype(np.uint64) + np.uint64(1)))


def draw_words(keys: Words, first: int, count: int) -> Words:
    """Draws first..first+count-1 of every stream, (n, count): integers, uniform on 0..2^64-1."""
    return mix(keys[:, None] + GAMMA * np.arange(first + 1, first + count + 1, dtype=np.uint64))


def draw_uniforms(keys: Words, first: int, count: int) -> Floats:
    """The same draws as numbers in [0, 1), (n, count)."""
    return (draw_words(keys, first, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw_normals(keys: Words, first: int, count: int) -> Floats:
    """Standard normal numbers (n, count) by Box and Muller, from draws 2 first..2 (first+count)-1."""
    pairs = draw_uniforms(keys, 2 * first, 2 * count).reshape(len(keys), count, 2)
    return np.sqrt(-2.0 * np.log1p(-pairs[..., 0])) * np.cos(2.0 * np.pi * pairs[..., 1])
