"""Paths along which images move in front of the camera: the shift (down, right) in pixels at the times 0..T.

    drift     s(t) = v (τ(t) - τ(T)/2) (sin φ, cos φ): straight across the centre
    circle    s(t) = ρ (sin α, cos α),  α = φ ± 2π τ(t)/P: around the centre
    saccades  from corner to corner, in straight lines, of a regular polygon of radius ρ around the centre, its first
              corner at the angle φ, once around by time T

τ(t) is the time t, or with `slow_start` = a the way of a motion that gathers speed over its first a steps:
τ(t) = t²/(2a) up to t = a, and t - a/2 after. Every input draws its angle φ, speed v, radius ρ, period P, turn ± and slow
start a by itself, evenly from the range that is given: its path follows from the seed and its number alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from agreestop.common.arrays import Floats, Integers, as_count, is_number
from agreestop.common.errors import InputError

from .streams import Purpose, draw_uniforms, stream_keys

Range: TypeAlias = float | tuple[float, float]  # one number for all inputs, or the lowest and the highest


def drift_path(
    inputs: int | Sequence[int] | Integers,
    steps: int,
    speed: Range = (0.05, 0.1),
    angle: Range = (0.0, 1.0),
    slow_start: Range = 0.0,
    seed: int = 0,
) -> Floats:
    """Straight paths (n, T+1, 2) of `inputs`, how many or their numbers; speed in pixels a step, angle in turns, 0 to the right."""
    draws = _Draws(inputs, seed)
    way = draws.way(steps, slow_start)
    along = draws.between(speed, "speed") * (way - way[:, -1:] / 2)
    return _polar(along, draws.between(angle, "angle"))


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
    """Circles (n, T+1, 2) of `inputs`, how many or their numbers; radius in pixels, period in steps, first angle in turns."""
    draws = _Draws(inputs, seed)
    turns = draws.turn(either_way) * draws.way(steps, slow_start) / draws.between(period, "period", least=1.0)
    return _polar(draws.between(radius, "radius"), draws.between(angle, "angle") + turns)


def saccade_path(
    inputs: int | Sequence[int] | Integers,
    steps: int,
    radius: Range = (1.0, 2.0),
    saccades: int = 3,
    angle: Range = (0.0, 1.0),
    either_way: bool = True,
    slow_start: Range = 0.0,
    seed: int = 0,
) -> Floats:
    """Closed polygons (n, T+1, 2) of `inputs`, how many or their numbers, in as many straight movements as `saccades` says."""
    draws = _Draws(inputs, seed)
    corners = as_count(saccades, "saccades", least=2)
    way = draws.way(steps, slow_start)
    progress = corners * way / way[:, -1:]
    corner = np.minimum(np.floor(progress), corners - 1)
    part = (progress - corner)[:, :, None]
    reach, first, turn = draws.between(radius, "radius"), draws.between(angle, "angle"), draws.turn(either_way)
    here, there = (_polar(reach, first + turn * place / corners) for place in (corner, corner + 1))
    return (1 - part) * here + part * there


class _Draws:
    """One column of uniform numbers after the other, an entry for each input."""

    def __init__(self, inputs: int | Sequence[int] | Integers, seed: int) -> None:
        self._keys = stream_keys(seed, Purpose.PATH, inputs)
        self._drawn = 0

    def next(self) -> Floats:
        column = draw_uniforms(self._keys, self._drawn, 1)
        self._drawn += 1
        return column

    def between(self, values: Range, name: str, least: float = 0.0) -> Floats:
        ends = values if isinstance(values, (tuple, list)) else (values, values)
        if len(ends) != 2 or not all(is_number(end) for end in ends) or not least <= ends[0] <= ends[1]:
            raise InputError(f"{name} is {values!r}: give one number of at least {least:g}, or the lowest and the highest as a pair.")
        return ends[0] + (ends[1] - ends[0]) * self.next()

    def turn(self, either_way: bool) -> Floats:
        return np.where((self.next() < 0.5) & either_way, -1.0, 1.0)

    def way(self, steps: int, slow_start: Range) -> Floats:
        """τ(0), …, τ(T) of every input, (n, T+1)."""
        time = np.arange(as_count(steps, "steps") + 1, dtype=np.float64)
        pickup = self.between(slow_start, "slow_start")
        return np.where(time < pickup, time**2 / (2 * np.maximum(pickup, 1e-9)), time - pickup / 2)


def _polar(radius: Floats, turns: Floats) -> Floats:
    angle = 2 * np.pi * turns
    return np.stack([radius * np.sin(angle), radius * np.cos(angle)], axis=2)
