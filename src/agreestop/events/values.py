"""Checks that the modules of this room share."""

from __future__ import annotations

import math
from typing import TypeGuard

import numpy as np

from agreestop.decide.checks import InputError


def is_number(value: object) -> TypeGuard[float]:
    """A finite real number, and no truth value."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool) and math.isfinite(value)


def is_integer(value: object) -> TypeGuard[int]:
    """A whole number of an integer type, and no truth value."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def as_count(value: int, name: str, least: int = 1) -> int:
    """An integer of at least `least`."""
    if not is_integer(value) or value < least:
        raise InputError(f"{name} is {value!r}: give an integer of at least {least}.")
    return int(value)


def as_seed(seed: int) -> int:
    """A seed: an integer from 0 to 2^63 - 1."""
    if not is_integer(seed) or not 0 <= seed < 2**63:
        raise InputError(f"seed is {seed!r}: give an integer from 0 to 2^63 - 1.")
    return int(seed)


def as_size(size: tuple[int, int]) -> tuple[int, int]:
    """The sensor's height and width: two integers of at least one."""
    if not isinstance(size, (tuple, list)) or len(size) != 2 or not all(is_integer(side) and side >= 1 for side in size):
        raise InputError(f"size is {size!r}: give the sensor's height and width in pixels, for example (20, 20).")
    return int(size[0]), int(size[1])
