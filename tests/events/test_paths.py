"""Paths: the shapes they promise, speeds from rest, and one for each input whatever stands beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from agreestop.common.arrays import Floats
from agreestop.events.camera.paths import circular_path, drift_path, saccade_path

MAKERS: dict[str, Callable[..., Floats]] = {"drift": drift_path, "circle": circular_path, "saccades": saccade_path}
every_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def lengths(path: Floats) -> Floats:
    """How far each step goes, (n, T)."""
    return np.linalg.norm(np.diff(path, axis=1), axis=2)


@every_maker
def test_a_path_follows_from_the_seed_and_the_number(make: Callable[..., Floats]) -> None:
    whole = make(10, 40, seed=3)
    assert whole.shape == (10, 41, 2)
    assert np.array_equal(make([7, 2], 40, seed=3), whole[[7, 2]])
    assert not np.array_equal(make(10, 40, seed=4), whole)
    assert len(np.unique(whole[:, 0], axis=0)) == 10


@every_maker
def test_a_slow_start_gathers_speed(make: Callable[..., Floats]) -> None:
    steps = lengths(make(20, 60, slow_start=(20.0, 30.0)))
    assert (np.diff(steps[:, :19], axis=1) > 0).mean() > 0.9  # a saccade's corner cuts its step short
    assert (steps[:, 0] < 0.1 * steps[:, 40:].max(axis=1)).all()
    evenly = lengths(make(20, 60))
    assert np.median(evenly, axis=1) == pytest.approx(evenly.max(axis=1), rel=0.01)


def test_a_drift_is_straight_and_crosses_the_centre() -> None:
    path = drift_path(50, 40, speed=(0.1, 0.2))
    assert np.allclose(path[:, 0], -path[:, -1])
    assert np.allclose(path[:, 20], 0)
    speed = lengths(path)
    assert np.allclose(speed, speed[:, :1])
    assert speed.min() >= 0.1
    assert speed.max() <= 0.2
    assert np.allclose(drift_path(1, 4, speed=1.0, angle=0.0)[0], [[0, -2], [0, -1], [0, 0], [0, 1], [0, 2]])


def test_a_circle_keeps_its_radius_and_period() -> None:
    path = circular_path(200, 60, radius=(1.0, 2.0), period=30.0)
    reach = np.linalg.norm(path, axis=2)
    assert np.allclose(reach, reach[:, :1])
    assert reach.min() >= 1
    assert reach.max() <= 2
    assert np.allclose(path[:, 0], path[:, 30])
    cross = path[:, 0, 0] * path[:, 1, 1] - path[:, 0, 1] * path[:, 1, 0]
    assert 0.3 < (cross > 0).mean() < 0.7
    one_way = circular_path(200, 60, either_way=False)
    cross = one_way[:, 0, 0] * one_way[:, 1, 1] - one_way[:, 0, 1] * one_way[:, 1, 0]
    assert len(np.unique(np.sign(cross))) == 1


@pytest.mark.parametrize("saccades", [2, 3, 5])
def test_saccades_go_from_corner_to_corner_and_home(saccades: int) -> None:
    path = saccade_path(10, 12 * saccades, radius=1.5, saccades=saccades)
    corners = path[:, ::12]
    assert corners.shape[1] == saccades + 1
    assert np.allclose(np.linalg.norm(corners, axis=2), 1.5)
    assert np.allclose(corners[:, 0], corners[:, -1])
    assert np.allclose(path[:, 6], (corners[:, 0] + corners[:, 1]) / 2)
    assert np.allclose(corners[:, :-1].sum(axis=1), 0)


@pytest.mark.parametrize(("settings", "name"), [({"speed": (0.0, 1.0)}, "speed"), ({"angle": (0.2, 0.3)}, "angle")])
def test_draws_fill_their_range(settings: dict[str, Any], name: str) -> None:
    path = drift_path(2000, 10, **settings)
    way = path[:, -1] - path[:, 0]
    drawn = np.linalg.norm(way, axis=1) / 10 if name == "speed" else np.arctan2(way[:, 0], way[:, 1]) / (2 * np.pi)
    low, high = settings[name]
    assert drawn.min() >= low - 1e-9
    assert drawn.max() <= high + 1e-9
    assert abs(drawn.mean() - (low + high) / 2) < 0.03 * (high - low)
