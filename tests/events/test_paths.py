"""Circular paths: their radius and period, motion from rest, and a path for each input that does
not depend on the others.
"""

from __future__ import annotations

import numpy as np
import pytest

from agreestop.common import Floats
from agreestop.events import circular_path


def lengths(path: Floats) -> Floats:
    """The length of each step, (n, T)."""
    return np.linalg.norm(np.diff(path, axis=1), axis=2)


def test_a_path_depends_only_on_the_seed_and_the_number() -> None:
    whole = circular_path(10, 40, seed=3)
    assert whole.shape == (10, 41, 2)
    assert np.array_equal(circular_path([7, 2], 40, seed=3), whole[[7, 2]])
    assert not np.array_equal(circular_path(10, 40, seed=4), whole)
    assert len(np.unique(whole[:, 0], axis=0)) == 10


def test_a_slow_start_gets_faster() -> None:
    steps = lengths(circular_path(20, 60, slow_start=(20.0, 30.0)))
    assert (np.diff(steps[:, :19], axis=1) > 0).all()
    assert (steps[:, 0] < 0.1 * steps[:, 40:].max(axis=1)).all()
    evenly = lengths(circular_path(20, 60))
    assert np.median(evenly, axis=1) == pytest.approx(evenly.max(axis=1), rel=0.01)


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


@pytest.mark.parametrize("name", ["radius", "angle"])
def test_draws_fill_their_range(name: str) -> None:
    low, high = {"radius": (0.0, 1.0), "angle": (0.2, 0.3)}[name]
    start = circular_path(
        2000,
        1,
        radius=(low, high) if name == "radius" else 1.0,
        angle=(low, high) if name == "angle" else 0.0,
    )[:, 0]
    drawn = (
        np.linalg.norm(start, axis=1)
        if name == "radius"
        else np.arctan2(start[:, 0], start[:, 1]) / (2 * np.pi)
    )
    assert drawn.min() >= low - 1e-9
    assert drawn.max() <= high + 1e-9
    assert abs(drawn.mean() - (low + high) / 2) < 0.03 * (high - low)
