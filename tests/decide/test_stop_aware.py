"""Stop-aware calibration against brute force: V at every score value, between them and beyond; and
the earliest threshold among all.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agreestop as ag
from agreestop.common import Floats, order_statistic, quantile_rank
from tests.decide.strategies import (
    ScoreTable,
    at_threshold,
    between,
    breaking_points,
    calibrate_quietly,
    make_sample,
    score_tables,
    value_of_each,
)


def answer(scores: Floats, threshold: float, max_set_size: int) -> tuple[int, set[int]]:
    """Where one input (M, C) stops, and what it answers, in the words of the definition."""
    last = len(scores) - 1
    for index, row in enumerate(scores):
        classes = {label for label, score in enumerate(row.tolist()) if score <= threshold}
        if index == last:
            return last, classes or {row.tolist().index(min(row.tolist()))}
        if 1 <= len(classes) <= max_set_size:
            return index, classes
    raise AssertionError


def misses(scores: Floats, label: int, threshold: float, max_set_size: int) -> bool:
    return label not in answer(scores, threshold, max_set_size)[1]


def last_failure(scores: Floats, label: int, max_set_size: int) -> float:
    """sup of the thresholds that miss. Everything is constant on [v, next v), so each value and one
    number beyond it say all.
    """
    points = breaking_points(scores)
    starts, insides, ends = (-math.inf, *points), between(points), (*points, math.inf)
    failure = -math.inf
    for start, inside, end in zip(starts, insides, ends, strict=True):
        missed = misses(scores, label, inside, max_set_size)
        assert missed == misses(scores, label, start, max_set_size)
        if missed:
            failure = end
    return failure


def table_rule(table: ScoreTable, target: object = "1/2", times: object = None) -> ag.SpikeCP:
    """Stop-aware SpikeCP for a table, whose scores are those of one member."""
    known = range(1, table.scores.shape[1] + 1) if times is None else times
    return ag.SpikeCP(target, known, table.max_set_size, calibration="stop-aware")  # type: ignore[arg-type]


def confidences(table: ScoreTable) -> Floats:
    """(n, M, 1, C): log-confidences with these scores."""
    return -table.scores[:, :, None]


def last_failures(table: ScoreTable) -> Floats:
    """V of every row, as calibration finds it."""
    return value_of_each(table_rule(table), confidences(table), table.labels)


def mean_stop(table: ScoreTable, times: Floats, threshold: float) -> float:
    return float(
        np.mean([times[answer(row, threshold, table.max_set_size)[0]] for row in table.scores])
    )


@given(score_tables())
@settings(max_examples=300)
def test_last_failure_is_the_supremum_of_the_thresholds_that_miss(table: ScoreTable) -> None:
    failures = last_failures(table)
    expected = [
        last_failure(row, label, table.max_set_size)
        for row, label in zip(table.scores, table.labels.tolist(), strict=True)
    ]
    assert failures.tolist() == expected


@given(score_tables())
def test_no_threshold_from_the_last_failure_on_misses(table: ScoreTable) -> None:
    failures = last_failures(table)
    for row, label, failure in zip(
        table.scores, table.labels.tolist(), failures.tolist(), strict=True
    ):
        points = breaking_points(row)
        for threshold in (failure, *points, *between(points), math.inf):
            if threshold >= failure:
                assert not misses(row, label, threshold, table.max_set_size)


@given(score_tables())
def test_last_failure_is_at_most_the_largest_score_of_the_label(table: ScoreTable) -> None:
    """So the threshold floor is never above that of simultaneous calibration."""
    failures = last_failures(table)
    assert (failures <= table.scores[np.arange(len(failures)), :, table.labels].max(axis=1)).all()


@given(score_tables())
def test_calibration_does_not_write_into_its_scores(table: ScoreTable) -> None:
    given = confidences(table)
    before = given.copy()
    calibrate_quietly(table_rule(table), given, table.labels)
    np.testing.assert_array_equal(given, before)


@given(score_tables())
def test_the_rule_answers_as_defined_at_every_threshold(table: ScoreTable) -> None:
    points = breaking_points(table.scores)
    calibrated = calibrate_quietly(table_rule(table), confidences(table), table.labels)
    for threshold in (-math.inf, *points, *between(points), math.inf):
        decisions = at_threshold(calibrated, threshold).decide(confidences(table))
        for row, stop, kept in zip(
            table.scores, decisions.stop_index.tolist(), decisions.sets, strict=True
        ):
            assert (stop, set(np.flatnonzero(kept).tolist())) == answer(
                row, threshold, table.max_set_size
            )


def earliest(table: ScoreTable, times: Floats, floor: float) -> float:
    """The smallest threshold from the floor on of least mean stopping time."""
    candidates = [floor, *(value for value in breaking_points(table.scores) if value > floor)]
    least = min(mean_stop(table, times, value) for value in candidates)
    return next(value for value in candidates if mean_stop(table, times, value) <= least + 1e-9)


@given(score_tables(), st.integers(1, 5), st.booleans())
@settings(max_examples=300)
def test_the_threshold_is_the_earliest_from_every_floor(
    table: ScoreTable, rank: int, even: bool
) -> None:
    """The floor is the V of each rank in turn, and no V at all where n is too small."""
    times = np.array([1.0, 2.0, 3.0, 4.0] if even else [0.5, 0.75, 3.0, 16.0])[
        : table.scores.shape[1]
    ]
    n = len(table.scores)
    rank = min(rank, n + 1)
    target = Fraction(rank, n + 1) if rank <= n else Fraction(99, 100)
    rows = zip(table.scores, table.labels.tolist(), strict=True)
    failures = sorted(last_failure(row, label, table.max_set_size) for row, label in rows)
    floor = failures[rank - 1] if rank <= n else math.inf
    calibrated = calibrate_quietly(
        table_rule(table, target, times.tolist()), confidences(table), table.labels
    )
    assert calibrated.kth_values == floor
    (found,) = calibrated.thresholds.tolist()
    first = earliest(table, times, floor)
    assert found == first if math.isinf(first) else first <= found <= first + 0.03, (
        "in a gap above it"
    )
    assert mean_stop(table, times, found) <= mean_stop(table, times, first) + 1e-9


def test_a_floor_at_a_breakpoint_counts_what_holds_from_there_on() -> None:
    """One input stops at once for λ in [0, 2), the other for λ in [3, 5): at the floor 2 neither
    does, so 3 is better.
    """
    table = ScoreTable(
        np.array([[[0.0, 2.0], [0.0, 0.0]], [[3.0, 5.0], [0.0, 0.0]]]), np.array([1, 1]), 1
    )
    times = np.array([1.0, 10.0])
    assert [mean_stop(table, times, threshold) for threshold in (1.0, 2.0, 3.0)] == [5.5, 10.0, 5.5]
    calibrated = calibrate_quietly(
        table_rule(table, "1/3", times.tolist()), confidences(table), table.labels
    )
    assert calibrated.kth_values == 2.0
    assert calibrated.thresholds == pytest.approx(3.0, abs=0.03)


def test_no_finite_floor_means_no_early_stop() -> None:
    sample = make_sample(5, checkpoints=3, members=1)
    calibrated = calibrate_quietly(ag.SpikeCP(0.9, (1, 2, 3), 2, calibration="stop-aware"), sample)
    assert calibrated.kth_values == calibrated.thresholds == math.inf
    assert (calibrated.decide(sample.log_confidence).stop_index == 2).all()


@pytest.mark.parametrize("max_set_size", [1, 2, 4])
@pytest.mark.parametrize("tied", [True, False])
def test_the_calibrated_rule_uses_the_rank_and_the_earliest_threshold(
    max_set_size: int, tied: bool
) -> None:
    sample = make_sample(30, checkpoints=4, members=1, tied=tied)
    scores = -sample.log_confidence[:, :, 0]
    times = (1, 2, 3.5, 8)
    rule = ag.SpikeCP(0.9, times, max_set_size, calibration="stop-aware")
    failures = np.array(
        [
            last_failure(row, label, max_set_size)
            for row, label in zip(scores, sample.labels.tolist(), strict=True)
        ]
    )
    floor = order_statistic(failures, quantile_rank(30, Fraction(9, 10)))
    assert floor == np.sort(failures)[27], "the 28th of 30: 31 times 0.9, rounded up"
    calibrated = calibrate_quietly(rule, sample)
    assert calibrated.kth_values == floor
    table = ScoreTable(scores, sample.labels, max_set_size)
    first = earliest(table, np.array(times), floor)
    assert first <= calibrated.thresholds <= first + 0.03
    assert calibrated.thresholds == first == math.inf or calibrated.thresholds > first, (
        "it lies in a gap"
    )


def test_class_conditional_calibration_takes_the_largest_floor() -> None:
    sample = make_sample(80, checkpoints=3, members=1, classes=2, tied=False)
    scores = -sample.log_confidence[:, :, 0]
    table = ScoreTable(scores, sample.labels, 1)
    failures = last_failures(table)
    floors = [
        order_statistic(failures[sample.labels == label], quantile_rank(40, Fraction(4, 5)))
        for label in (0, 1)
    ]
    assert floors[0] != floors[1]
    rule = ag.SpikeCP(0.8, (1, 2, 3), 1, calibration="stop-aware", class_conditional=True)
    calibrated = calibrate_quietly(rule, sample)
    first = earliest(table, np.array([1.0, 2.0, 3.0]), max(floors))
    assert calibrated.kth_values == max(floors)
    assert first < calibrated.thresholds <= first + 0.03
