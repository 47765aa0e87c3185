"""Paths along which images move in front of the camera: the shift (down, right) in pixels at the times 0..T.

    circle    s(t) = ρ (sin α, cos α),  α = φ ± 2π τ(t)/P: around the centre

τ(t) is the time t, or with `slow_start` = a the way of a motion that gets faster over its first a steps:
τ(t) = t²/(2a) up to t = a, and t - a/2 after. Every input draws its angle φ, radius ρ, period P, direction ± and slow start a
uniformly from the given range: its path depends only on the seed and its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from agreestop.common.arrays import Floats, Integers, as_count, is_number
from agreestop.common.errors import InputError

from .streams import Purpose, draw_uniforms, stream_keys

Range: TypeAlias = float | tuple[float, float]  # one number for all inputs, or the lowest and the highest


def circular_path(
    inputs: int | Sequence[int] | Integers,
    steps: int,
    radius: Range = (1.0, 2.0),
    period: Range = (60.0, 80.0),
    angle: Range = (0.0, 1.0),
    either_way: bool = True,
    slow_start: Range = 0.0,
    seed: int = 0,
) -> Floats:
    """Circles (n, T+1, 2) of `inputs`, their count or their numbers; radius in pixels, period in steps, first angle in turns."""
    drawn = draw_uniforms(stream_keys(seed, Purpose.PATH, inputs), 0, 5)
    turn, start, cycle, reach, first = (drawn[:, [column]] for column in range(5))
    time = np.arange(as_count(steps, "steps") + 1, dtype=np.float64)
    pickup = _between(start, slow_start, "slow_start")
    way = np.where(time < pickup, time**2 / (2 * np.maximum(pickup, 1e-9)), time - pickup / 2)
    turns = np.where((turn < 0.5) & either_way, -1.0, 1.0) * way / _between(cycle, period, "period", least=1.0)
    distance = _between(reach, radius, "radius")
    angles = 2 * np.pi * (_between(first, angle, "angle") + turns)
    return np.stack([distance * np.sin(angles), distance * np.cos(angles)], axis=2)


def _between(share: Floats, values: Range, name: str, least: float = 0.0) -> Floats:
    """Uniform numbers of [0, 1), stretched to the range."""
    ends = values if isinstance(values, (tuple, list)) else (values, values)
    if len(ends) != 2 or not all(is_number(end) for end in ends) or not least <= ends[0] <= ends[1]:
        raise InputError(f"{name} is {values!r}: give one number of at least {least:g}, or the lowest and the highest as a pair.")
    return ends[0] + (ends[1] - ends[0]) * share
