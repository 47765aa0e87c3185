"""Stop-aware calibration against brute force: V at every score value, between them and beyond; and the earliest threshold among all."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agreestop as ag
from agreestop.common import Floats
from agreestop.decide.evidence import Evidence, run_policy
from agreestop.decide.levels import order_statistic, quantile_rank
from agreestop.decide.policies import StoppingThreshold
from agreestop.decide.spikecp import StoppingTimes, StopProfile, last_failures
from tests.decide.strategies import ScoreTable, between, breaking_points, calibrate_quietly, make_sample, score_tables


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
    """sup of the thresholds that miss. Everything is constant on [v, next v), so each value and one number beyond it say all."""
    points = breaking_points(scores)
    starts, insides, ends = (-math.inf, *points), between(points), (*points, math.inf)
    failure = -math.inf
    for start, inside, end in zip(starts, insides, ends, strict=True):
        missed = misses(scores, label, inside, max_set_size)
        assert missed == misses(scores, label, start, max_set_size)
        if missed:
            failure = end
    return failure


def mean_stop(table: ScoreTable, times: Floats, threshold: float) -> float:
    return float(np.mean([times[answer(row, threshold, table.max_set_size)[0]] for row in table.scores]))


@given(score_tables())
@settings(max_examples=300)
def test_last_failure_is_the_supremum_of_the_thresholds_that_miss(table: ScoreTable) -> None:
    failures = last_failures(table.scores, table.labels, table.max_set_size)
    expected = [last_failure(row, label, table.max_set_size) for row, label in zip(table.scores, table.labels.tolist(), strict=True)]
    assert failures.tolist() == expected


@given(score_tables())
def test_no_threshold_from_the_last_failure_on_misses(table: ScoreTable) -> None:
    failures = last_failures(table.scores, table.labels, table.max_set_size)
    for row, label, failure in zip(table.scores, table.labels.tolist(), failures.tolist(), strict=True):
        points = breaking_points(row)
        for threshold in (failure, *points, *between(points), math.inf):
            if threshold >= failure:
                assert not misses(row, label, threshold, table.max_set_size)


@given(score_tables())
def test_last_failure_is_at_most_the_largest_score_of_the_label(table: ScoreTable) -> None:
    """So the threshold floor is never above that of simultaneous calibration."""
    failures = last_failures(table.scores, table.labels, table.max_set_size)
    assert (failures <= table.scores[np.arange(len(failures)), :, table.labels].max(axis=1)).all()


@given(score_tables())
def test_calibration_does_not_write_into_its_scores(table: ScoreTable) -> None:
    before = table.scores.copy()
    last_failures(table.scores, table.labels, table.max_set_size)
    np.testing.assert_array_equal(table.scores, before)


@given(score_tables())
def test_profile_says_where_each_input_stops(table: ScoreTable) -> None:
    profile = StopProfile.of(table.scores, table.max_set_size)
    for row, breaks, stops in zip(table.scores, profile.breaks, profile.stops, strict=True):
        points = breaking_points(row)
        for threshold in (-math.inf, *points, *between(points)):
            interval = np.searchsorted(breaks, threshold, side="right") - 1
            assert stops[interval] == answer(row, threshold, table.max_set_size)[0]


@given(score_tables())
def test_the_policy_answers_as_defined(table: ScoreTable) -> None:
    classes = table.scores.shape[2]
    points = breaking_points(table.scores)
    for threshold in (-math.inf, *points, *between(points), math.inf):
        policy = StoppingThreshold(threshold, table.max_set_size)
        state = policy.start(len(table.scores), classes, 0)
        stops = run_policy(policy, Evidence(table.scores), state, classes)
        for row, stop, kept in zip(table.scores, stops.index.tolist(), stops.sets, strict=True):
            assert (stop, set(np.flatnonzero(kept).tolist())) == answer(row, threshold, table.max_set_size)


@given(score_tables(), st.sampled_from([-math.inf, -1.0, 0.0, 1.0, 2.0, 2.5, 4.0, 5.0, 9.0]), st.booleans())
@settings(max_examples=200)
def test_earliest_threshold_is_the_smallest_of_least_mean_stopping_time(table: ScoreTable, floor: float, even: bool) -> None:
    times = np.array([1.0, 2.0, 3.0, 4.0] if even else [0.5, 0.75, 3.0, 16.0])[: table.scores.shape[1]]
    chosen = StoppingTimes.of(StopProfile.of(table.scores, table.max_set_size), times).earliest(floor)
    points = breaking_points(table.scores)
    others = [value for value in (*points, *between(points)) if value > floor]
    least = min(mean_stop(table, times, value) for value in (floor, *others))
    assert chosen >= floor
    assert mean_stop(table, times, chosen) == pytest.approx(least, rel=1e-12)
    assert all(mean_stop(table, times, value) > least + 1e-9 for value in (floor, *others) if value < chosen)
    breakpoints = {value for row in table.scores for index in range(len(row) - 1) for value in np.sort(row[index]).tolist()}
    assert chosen in {floor} | breakpoints


def test_a_floor_at_a_breakpoint_counts_what_holds_from_there_on() -> None:
    """One input stops at once for λ in [0, 2), the other for λ in [3, 5): at the floor 2 neither does, so 3 is better."""
    table = ScoreTable(np.array([[[0.0, 2.0], [0.0, 0.0]], [[3.0, 5.0], [0.0, 0.0]]]), np.array([0, 0]), 1)
    profile, times = StopProfile.of(table.scores, 1), np.array([1.0, 10.0])
    assert [mean_stop(table, times, threshold) for threshold in (1.0, 2.0, 3.0)] == [5.5, 10.0, 5.5]
    assert [StoppingTimes.of(profile, times).earliest(floor) for floor in (0.0, 1.0, 2.0, 3.0, 5.0)] == [0.0, 1.0, 3.0, 3.0, 5.0]


def test_no_finite_floor_means_no_early_stop() -> None:
    table = make_sample(5, checkpoints=3, members=1).log_confidence[:, :, 0]
    assert StoppingTimes.of(StopProfile.of(-table, 2), np.array([1.0, 2.0, 3.0])).earliest(math.inf) == math.inf


@pytest.mark.parametrize("max_set_size", [1, 2, 4])
@pytest.mark.parametrize("tied", [True, False])
def test_the_calibrated_rule_uses_the_rank_and_the_earliest_threshold(max_set_size: int, tied: bool) -> None:
    sample = make_sample(30, checkpoints=4, members=1, tied=tied)
    scores = -sample.log_confidence[:, :, 0]
    times = (1, 2, 3.5, 8)
    rule = ag.SpikeCP(0.9, times, max_set_size, calibration="stop-aware")
    failures = np.array([last_failure(row, label, max_set_size) for row, label in zip(scores, sample.labels.tolist(), strict=True)])
    floor = order_statistic(failures, quantile_rank(30, Fraction(9, 10)))
    assert floor == np.sort(failures)[27], "the 28th of 30: 31 times 0.9, rounded up"
    calibrated = calibrate_quietly(rule, sample)
    assert calibrated.kth_values == floor
    table = ScoreTable(scores, sample.labels, max_set_size)
    candidates = [floor, *(value for value in breaking_points(scores) if value > floor)]
    least = min(mean_stop(table, np.array(times), value) for value in candidates)
    earliest = next(value for value in candidates if mean_stop(table, np.array(times), value) <= least + 1e-9)
    assert earliest <= calibrated.thresholds <= earliest + 0.03
    assert calibrated.thresholds == earliest == math.inf or calibrated.thresholds > earliest, "it lies in a gap"


def test_class_conditional_calibration_takes_the_largest_floor() -> None:
    sample = make_sample(80, checkpoints=3, members=1, classes=2, tied=False)
    scores = -sample.log_confidence[:, :, 0]
    failures = last_failures(scores, sample.labels, 1)
    floors = [order_statistic(failures[sample.labels == label], quantile_rank(40, Fraction(4, 5))) for label in (0, 1)]
    assert floors[0] != floors[1]
    rule = ag.SpikeCP(0.8, (1, 2, 3), 1, calibration="stop-aware", class_conditional=True)
    calibrated = calibrate_quietly(rule, sample)
    earliest = StoppingTimes.of(StopProfile.of(scores, 1), np.array([1.0, 2.0, 3.0])).earliest(max(floors))
    assert calibrated.kth_values == max(floors)
    assert earliest < calibrated.thresholds <= earliest + 0.03
