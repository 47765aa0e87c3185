"""SplitMix64 gives the numbers of the reference implementation, and does not change its
argument.
"""

from __future__ import annotations

import numpy as np

from agreestop.common import GAMMA, mix

REFERENCE = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]
"""The first numbers of the stream that starts at 1234567, by the C code of Sebastiano Vigna."""


def test_numbers_are_those_of_the_reference() -> None:
    words = np.uint64(1234567) + GAMMA * np.arange(1, 6, dtype=np.uint64)
    assert mix(words).tolist() == REFERENCE


def test_the_argument_does_not_change() -> None:
    words = np.arange(5, dtype=np.uint64)
    mix(words)
    assert words.tolist() == [0, 1, 2, 3, 4]
