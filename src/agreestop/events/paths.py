"""Paths along which images move in front of the camera: the shift (down, right) in pixels at the times 0..T.

    drift     s(t) = v (τ(t) - τ(T)/2) (sin φ, cos φ): straight across the centre
    circle    s(t) = ρ (sin α, cos α),  α = φ ± 2π τ(t)/P: around the centre
    saccades  from corner to corner, in straight lines, of a regular polygon of radius ρ around the centre, once around by time T

The angle φ is uniform, the turn ± is either way, and every input draws its speed v, radius ρ and period P from the range given.
τ(t) is the time t, or with `slow_start` = a the way of a motion that gathers speed over its first a steps:
τ(t) = t²/(2a) up to t = a, and t - a/2 after. An input's path follows from the seed and the input's number alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from agreestop.decide.checks import Floats, InputError, Integers

from .streams import Purpose, as_numbers, draw_uniforms, stream_keys
from .values import as_count, is_number

Range: TypeAlias = float | tuple[float, float]


def drift_path(
    inputs: int | Sequence[int] | Integers,
    steps: int,
    speed: Range = (0.05, 0.1),
    slow_start: float = 0.0,
    seed: int = 0,
) -> Floats:
    """Straight paths (n, T+1, 2) across the centre, each in a direction of its own; the speed is in pixels a step."""
    draws = _draws(inputs, seed)
    way = way_gone(steps, slow_start)
    along = _between(speed, draws[:, 1:2], "speed", least=0.0) * (way - way[-1] / 2)
    angle = 2 * np.pi * draws[:, :1]
    return np.stack([along * np.sin(angle), along * np.cos(angle)], axis=2)


def circular_path(
    inputs: int | Sequence[int] | Integers,
    steps: int,
    radius: Range = (1.0, 2.0),
    period: Range = (60.0, 80.0),
    phase: Range = (0.0, 1.0),
    either_way: bool = True,
    slow_start: float = 0.0,
    seed: int = 0,
) -> Floats:
    """Circles (n, T+1, 2) around the centre, either way around; the radius is in pixels and the period in steps."""
    draws = _draws(inputs, seed)
    turns = way_gone(steps, slow_start) / _between(period, draws[:, 2:3], "period", least=1.0)
    angle = 2 * np.pi * (_between(phase, draws[:, :1], "phase", 0.0) + _turn(draws, either_way) * turns)
    reach = _between(radius, draws[:, 1:2], "radius", least=0.0)
    return np.stack([reach * np.sin(angle), reach * np.cos(angle)], axis=2)


def saccade_path(
    inputs: int | Sequence[int] | Integers,
    steps: int,
    radius: Range = (1.0, 2.0),
    saccades: int = 3,
    phase: Range = (0.0, 1.0),
    either_way: bool = True,
    slow_start: float = 0.0,
    seed: int = 0,
) -> Floats:
    """Polygons (n, T+1, 2) around the centre, either way around: `saccades` straight movements that end where they began."""
    draws = _draws(inputs, seed)
    corners = as_count(saccades, "saccades", least=2)
    way = way_gone(steps, slow_start)
    progress = corners * way / way[-1]
    corner = np.minimum(np.floor(progress), corners - 1)
    part = (progress - corner)[:, None]
    reach = _between(radius, draws[:, 1:2], "radius", least=0.0)
    here, there = (
        2 * np.pi * (_between(phase, draws[:, :1], "phase", 0.0) + _turn(draws, either_way) * place / corners)
        for place in (corner, corner + 1)
    )
    starts, ends = (np.stack([np.sin(angle), np.cos(angle)], axis=2) for angle in (here, there))
    return reach[:, :, None] * ((1 - part) * starts + part * ends)


def way_gone(steps: int, slow_start: float = 0.0) -> Floats:
    """τ(0), …, τ(T): the way of a motion of speed 1 that gathers its speed over the first `slow_start` steps."""
    time = np.arange(as_count(steps, "steps") + 1, dtype=np.float64)
    if not is_number(slow_start) or slow_start < 0:
        raise InputError(f"slow_start is {slow_start!r}: give the steps over which the motion gathers speed, 0 for none.")
    if slow_start == 0:
        return time
    return np.where(time < slow_start, time**2 / (2 * slow_start), time - slow_start / 2)


def _draws(inputs: int | Sequence[int] | Integers, seed: int) -> Floats:
    return draw_uniforms(stream_keys(seed, Purpose.PATH, as_numbers(inputs)), 0, 4)


def _turn(draws: Floats, either_way: bool) -> Floats:
    return np.where(either_way & (draws[:, 3:4] < 0.5), -1.0, 1.0)


def _between(values: Range, draws: Floats, name: str, least: float) -> Floats:
    """Numbers drawn evenly from a range, or the one number that is given."""
    ends = values if isinstance(values, (tuple, list)) else (values, values)
    if len(ends) != 2 or not all(is_number(end) for end in ends) or not least <= ends[0] <= ends[1]:
        raise InputError(f"{name} is {values!r}: give one number, or the lowest and the highest as a pair, of at least {least:g}.")
    return ends[0] + (ends[1] - ends[0]) * draws
