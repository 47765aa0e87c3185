"""AgreeStop's calibration against brute force: W at every value of e and ρ, between them and
beyond.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings

import agreestop as ag
from agreestop.common import Floats
from tests.decide.strategies import (
    RiskTable,
    TableRisk,
    at_threshold,
    between,
    breaking_points,
    calibrate_quietly,
    make_sample,
    reading_of,
    risk_tables,
    value_of_each,
)

both_forms = pytest.mark.parametrize("fill", [False, True])


class Row(NamedTuple):
    """One input: log ρ (M, C) and log e (M,)."""

    mass: Floats
    risk: Floats


def rows_of(mass: Floats, risk: Floats) -> list[Row]:
    return [Row(*pair) for pair in zip(mass, risk, strict=True)]


def all_points(mass: Floats, risk: Floats) -> tuple[float, ...]:
    return breaking_points(np.append(mass, risk))


def table_rule(table: RiskTable, fill: bool) -> ag.AgreeStop:
    """AgreeStop on a table of risks, with target 1/2."""
    return ag.AgreeStop("1/2", table.times, table.max_set_size, fill=fill, risk=TableRisk())


def answer(row: Row, threshold: float, max_set_size: int, fill: bool) -> tuple[int, set[int]]:
    """Where one input stops, and what it answers, in the words of the definition."""
    for index, (mass, risk) in enumerate(zip(row.mass.tolist(), row.risk.tolist(), strict=True)):
        ranked = sorted(range(len(mass)), key=lambda label: -mass[label])
        best = set(ranked[:max_set_size])
        kept = {label for label in ranked if mass[label] >= threshold}
        if risk < threshold:
            return index, best if fill else best & ({ranked[0]} | kept)
        if index == len(row.risk) - 1:
            return index, best | kept
    raise AssertionError


def misses(row: Row, label: int, threshold: float, max_set_size: int, fill: bool) -> bool:
    return label not in answer(row, threshold, max_set_size, fill)[1]


def first_failure(row: Row, label: int, max_set_size: int, fill: bool) -> float:
    """inf of the thresholds that miss. Everything is constant on (previous v, v], so each value and
    one number before it say all.
    """
    points = all_points(*row)
    starts, insides, ends = (-math.inf, *points), between(points), (*points, math.inf)
    for start, inside, end in zip(starts, insides, ends, strict=True):
        missed = misses(row, label, inside, max_set_size, fill)
        assert missed == misses(row, label, end, max_set_size, fill)
        if missed:
            return start
    return math.inf


def first_failures(table: RiskTable, fill: bool) -> Floats:
    """W of every row, as calibration finds it."""
    return value_of_each(table_rule(table, fill), table.log_confidence, table.labels)


@both_forms
@given(table=risk_tables())
@settings(max_examples=300)
def test_first_failure_is_the_infimum_of_the_thresholds_that_miss(
    fill: bool, table: RiskTable
) -> None:
    failures = first_failures(table, fill)
    rows = zip(rows_of(table.mass, table.risk), table.labels.tolist(), strict=True)
    assert failures.tolist() == [
        first_failure(row, label, table.max_set_size, fill) for row, label in rows
    ]


@both_forms
@given(table=risk_tables())
def test_every_rank_takes_its_own_first_failure(fill: bool, table: RiskTable) -> None:
    rows = zip(rows_of(table.mass, table.risk), table.labels.tolist(), strict=True)
    failures = sorted(first_failure(row, label, table.max_set_size, fill) for row, label in rows)
    n = len(failures)
    for k in range(n + 1):
        rule = replace(table_rule(table, fill), target=Fraction(n + 1 - k, n + 1) if k else "0.99")
        calibrated = calibrate_quietly(rule, table.log_confidence, table.labels)
        assert calibrated.kth_values == (failures[k - 1] if k else -math.inf), (
            "no rank, no threshold"
        )


@both_forms
@given(table=risk_tables())
def test_no_threshold_up_to_the_first_failure_misses(fill: bool, table: RiskTable) -> None:
    failures = first_failures(table, fill)
    for row, label, failure in zip(
        rows_of(table.mass, table.risk), table.labels.tolist(), failures.tolist(), strict=True
    ):
        points = all_points(*row)
        for threshold in (-math.inf, failure, *points, *between(points)):
            if threshold <= failure:
                assert not misses(row, label, threshold, table.max_set_size, fill)


@given(table=risk_tables())
def test_filled_answers_fail_no_earlier(table: RiskTable) -> None:
    filled, sparing = (first_failures(table, fill) for fill in (True, False))
    assert (sparing <= filled).all()


@both_forms
@given(table=risk_tables())
def test_the_rule_answers_as_defined_at_every_threshold(fill: bool, table: RiskTable) -> None:
    points = all_points(table.mass, table.risk)
    calibrated = calibrate_quietly(table_rule(table, fill), table.log_confidence, table.labels)
    for threshold in (-math.inf, *points, *between(points), math.inf):
        decisions = at_threshold(calibrated, threshold).decide(table.log_confidence)
        for row, stop, kept in zip(
            rows_of(table.mass, table.risk),
            decisions.stop_index.tolist(),
            decisions.sets,
            strict=True,
        ):
            assert (stop, set(np.flatnonzero(kept).tolist())) == answer(
                row, threshold, table.max_set_size, fill
            )


@both_forms
@pytest.mark.parametrize("max_set_size", [1, 2, 3, 4, 5])
def test_the_calibrated_rule_uses_the_kth_smallest_first_failure(
    fill: bool, max_set_size: int
) -> None:
    sample = make_sample(49, checkpoints=3, members=2)
    rule = ag.AgreeStop(0.9, (1, 2, 3), max_set_size, fill=fill)
    reading = reading_of(rule, sample.log_confidence)
    rows = zip(rows_of(reading.values, reading.risk), sample.labels.tolist(), strict=True)
    failures = [first_failure(row, label, max_set_size, fill) for row, label in rows]
    calibrated = calibrate_quietly(rule, sample)
    assert calibrated.kth_values == sorted(failures)[5 - 1], "50 times 0.1 examples may fail"
    assert calibrated.thresholds <= calibrated.kth_values
    assert (
        calibrated.thresholds == math.inf or calibrated.thresholds >= calibrated.kth_values - 0.03
    )


def test_class_conditional_calibration_takes_the_smallest_threshold() -> None:
    sample = make_sample(80, checkpoints=3, members=1, classes=2, tied=False)
    rule = ag.AgreeStop(0.8, (1, 2, 3), 1, class_conditional=True)
    failures = value_of_each(ag.AgreeStop(0.8, (1, 2, 3), 1), *sample)
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
