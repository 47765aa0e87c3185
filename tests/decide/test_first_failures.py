"""AgreeStop's calibration against brute force: W at every value of e and ρ, between them and beyond."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings

import agreestop as ag
from agreestop.common import Floats, Integers
from agreestop.decide.checkpoints import Failures
from agreestop.decide.evidence import Evidence, run_policy
from agreestop.decide.policies import RiskThreshold
from agreestop.decide.rules import gather_evidence
from tests.decide.strategies import RiskTable, between, breaking_points, calibrate_quietly, make_sample, risk_of, risk_tables

both_forms = pytest.mark.parametrize("fill", [False, True])


def rows_of(evidence: Evidence) -> list[Evidence]:
    """The evidence of each input: log ρ (M, C) and log e (M,)."""
    return [evidence[row] for row in range(len(evidence))]


def all_points(evidence: Evidence) -> tuple[float, ...]:
    return breaking_points(np.append(evidence.values, risk_of(evidence)))


def answer(evidence: Evidence, threshold: float, max_set_size: int, fill: bool) -> tuple[int, set[int]]:
    """Where one input stops, and what it answers, in the words of the definition."""
    for index, (mass, risk) in enumerate(zip(evidence.values.tolist(), risk_of(evidence).tolist(), strict=True)):
        ranked = sorted(range(len(mass)), key=lambda label: -mass[label])
        best = set(ranked[:max_set_size])
        kept = {label for label in ranked if mass[label] >= threshold}
        if risk < threshold:
            return index, best if fill else best & ({ranked[0]} | kept)
        if index == len(evidence) - 1:
            return index, best | kept
    raise AssertionError


def misses(evidence: Evidence, label: int, threshold: float, max_set_size: int, fill: bool) -> bool:
    return label not in answer(evidence, threshold, max_set_size, fill)[1]


def first_failure(evidence: Evidence, label: int, max_set_size: int, fill: bool) -> float:
    """inf of the thresholds that miss. Everything is constant on (previous v, v], so each value and one number before it say all."""
    points = all_points(evidence)
    starts, insides, ends = (-math.inf, *points), between(points), (*points, math.inf)
    for start, inside, end in zip(starts, insides, ends, strict=True):
        missed = misses(evidence, label, inside, max_set_size, fill)
        assert missed == misses(evidence, label, end, max_set_size, fill)
        if missed:
            return start
    return math.inf


def first_failures(evidence: Evidence, labels: Integers, max_set_size: int, fill: bool) -> Floats:
    return Failures.of(evidence, labels, max_set_size, -math.inf if fill else 0.0).first()


@both_forms
@given(table=risk_tables())
@settings(max_examples=300)
def test_first_failure_is_the_infimum_of_the_thresholds_that_miss(fill: bool, table: RiskTable) -> None:
    failures = first_failures(table.evidence, table.labels, table.max_set_size, fill)
    rows = zip(rows_of(table.evidence), table.labels.tolist(), strict=True)
    assert failures.tolist() == [first_failure(row, label, table.max_set_size, fill) for row, label in rows]


@both_forms
@given(table=risk_tables())
def test_no_threshold_up_to_the_first_failure_misses(fill: bool, table: RiskTable) -> None:
    failures = first_failures(table.evidence, table.labels, table.max_set_size, fill)
    for row, label, failure in zip(rows_of(table.evidence), table.labels.tolist(), failures.tolist(), strict=True):
        points = all_points(row)
        for threshold in (-math.inf, failure, *points, *between(points)):
            if threshold <= failure:
                assert not misses(row, label, threshold, table.max_set_size, fill)


@given(table=risk_tables())
def test_filled_answers_fail_no_earlier(table: RiskTable) -> None:
    filled, sparing = (first_failures(table.evidence, table.labels, table.max_set_size, fill) for fill in (True, False))
    assert (sparing <= filled).all()


@both_forms
@given(table=risk_tables())
def test_the_policy_answers_as_defined(fill: bool, table: RiskTable) -> None:
    classes = table.evidence.values.shape[2]
    points = all_points(table.evidence)
    for threshold in (-math.inf, *points, *between(points), math.inf):
        policy = RiskThreshold(threshold, table.max_set_size, fill)
        state = policy.start(len(table.evidence), classes, 0)
        stops = run_policy(policy, table.evidence, state, classes)
        for row, stop, kept in zip(rows_of(table.evidence), stops.index.tolist(), stops.sets, strict=True):
            assert (stop, set(np.flatnonzero(kept).tolist())) == answer(row, threshold, table.max_set_size, fill)


@both_forms
@pytest.mark.parametrize("max_set_size", [1, 2, 3, 4, 5])
def test_the_calibrated_rule_uses_the_kth_smallest_first_failure(fill: bool, max_set_size: int) -> None:
    sample = make_sample(49, checkpoints=3, members=2)
    rule = ag.AgreeStop(0.9, (1, 2, 3), max_set_size, fill=fill)
    evidence = gather_evidence(rule, sample.log_confidence, [0, 1, 2])
    failures = [first_failure(row, label, max_set_size, fill) for row, label in zip(rows_of(evidence), sample.labels.tolist(), strict=True)]
    calibrated = calibrate_quietly(rule, sample)
    assert calibrated.kth_values == sorted(failures)[5 - 1], "50 times 0.1 examples may fail"
    assert calibrated.thresholds <= calibrated.kth_values
    assert calibrated.thresholds == math.inf or calibrated.thresholds >= calibrated.kth_values - 0.03


def test_class_conditional_calibration_takes_the_smallest_threshold() -> None:
    sample = make_sample(80, checkpoints=3, members=1, classes=2, tied=False)
    rule = ag.AgreeStop(0.8, (1, 2, 3), 1, class_conditional=True)
    evidence = gather_evidence(rule, sample.log_confidence, [0, 1, 2])
    failures = first_failures(evidence, sample.labels, 1, False)
    each = [float(np.sort(failures[sample.labels == label])[8 - 1]) for label in (0, 1)]
    calibrated = calibrate_quietly(rule, sample)
    assert each[0] != each[1]
    assert calibrated.kth_values == min(each)
    assert min(each) - 0.03 <= calibrated.thresholds < min(each)


@both_forms
def test_too_few_examples_never_stop_and_answer_everything(fill: bool) -> None:
    sample = make_sample(8, checkpoints=3, members=2)
    with pytest.warns(ag.CalibrationWarning, match="needs at least 9"):
        calibrated = ag.AgreeStop(0.9, (1, 2, 3), 2, fill=fill).calibrate(*sample)
    decisions = calibrated.decide(sample.log_confidence)
    assert (decisions.stop_index == 2).all()
    assert decisions.sets.all()
