"""SplitMix64 (Steele, Lea and Flood, 2014): a one-to-one scrambling of 64-bit words, for hashes and
for streams of random numbers.

    z ← (z ⊕ z ≫ 30) · 0xBF58476D1CE4E5B9,   z ← (z ⊕ z ≫ 27) · 0x94D049BB133111EB,   z ← z ⊕ z ≫ 31

The n-th number of the stream that starts at s is mix(s + n·GAMMA). All arithmetic is modulo 2^64.
"""

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

GAMMA = np.uint64(0x9E3779B97F4A7C15)
FIRST = np.uint64(0xBF58476D1CE4E5B9)
SECOND = np.uint64(0x94D049BB133111EB)


def mix(words: Words) -> Words:
    """The scrambled words, in a new array."""
    mixed: Words = words ^ (words >> np.uint64(30))
    mixed *= FIRST
    mixed ^= mixed >> np.uint64(27)
    mixed *= SECOND
    mixed ^= mixed >> np.uint64(31)
    return mixed
