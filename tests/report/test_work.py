"""Latency against work in a report: fixed schedules, measured on the pool, and drawn where there
are at least three members.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the figure needs matplotlib")

import agreestop as ag
from agreestop.report import MeasurementSettings
from agreestop.report.figures import work_panel
from agreestop.report.work import ALL, HALF, ONE, fixed_schedules, measure_work

MEASURED = MeasurementSettings(
    targets=(0.8,),
    sizes=(3,),
    checkpoints=(5, 10),
    max_set_size=2,
    n_calibration=20,
    realisations=4,
)


def test_points_are_those_of_the_plain_rules() -> None:
    pool = ag.simulate_scores(90, steps=10, K=3, C=4)
    points = {point.name: point for point in measure_work(pool, MEASURED)}
    for name, members in ((ONE, 1), (ALL, 3), (HALF, 2)):
        few = replace(pool, log_confidence=pool.log_confidence[:, :, :members])
        splits = ag.repeat_splits(
            ag.AgreeStop(0.8, range(1, 11), 2), few, n_calibration=20, repeats=4
        )
        assert float(points[name].latency) == pytest.approx(float(splits.normalized_latency))
        assert float(points[name].coverage) == pytest.approx(float(splits.coverage))
        assert float(points[name].work) == pytest.approx(
            10 * members * float(splits.normalized_latency)
        )
    assert len(points) == 5
    panel = work_panel(tuple(points.values()))
    axes = panel.figure().axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_legend_handles_labels()[1] == list(points)
    assert all(f"{point.work:.1f} member-steps" in panel.words for point in points.values())


def test_members_join_in_time() -> None:
    schedules = fixed_schedules(range(1, 9), 4)
    assert schedules["joining as time doubles"].looks[:7] == (
        (1, 1),
        (1, 2),
        (2, 2),
        (2, 3),
        (3, 3),
        (4, 3),
        (4, 4),
    )
    assert fixed_schedules(range(1, 17), 3)["joining until T/2"].looks[3:10] == (
        (4, 1),
        (4, 2),
        (5, 2),
        (6, 2),
        (7, 2),
        (8, 2),
        (8, 3),
    )
    for times, members in ((np.arange(1, 81), 10), ((20, 40, 60, 80), 6), ((0.5, 1.5), 3)):
        for schedule in fixed_schedules(list(times), members).values():
            assert schedule.times == tuple(times)


def test_two_members_and_rules_that_cannot_stop_give_no_points() -> None:
    pool = ag.simulate_scores(60, steps=10, K=3, C=4)
    assert not measure_work(replace(pool, log_confidence=pool.log_confidence[:, :, :2]), MEASURED)
    assert not measure_work(pool, replace(MEASURED, targets=(0.99,)))
