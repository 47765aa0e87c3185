"""Inputs that are not answered: W at every threshold by definition, bags, figures, monitors, files, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agreestop as ag
from agreestop.common import Floats
from tests.decide.strategies import (
    RiskTable,
    TableRisk,
    assert_same_decisions,
    at_threshold,
    between,
    breaking_points,
    calibrate_quietly,
    risk_tables,
    value_of_each,
)

Ending = tuple[int, set[int]]


def ends(mass: Floats, risk: Floats, threshold: float, max_set_size: int) -> Ending:
    """Where one input ends, and what it answers, in the words of the definition; an empty set: it abstains."""
    last = len(risk) - 1
    for index, (masses, log_risk) in enumerate(zip(mass.tolist(), risk.tolist(), strict=True)):
        ranked = sorted(range(len(masses)), key=lambda label: -masses[label])
        if log_risk < threshold:
            return index, {ranked[0]} | {label for label in ranked[:max_set_size] if masses[label] >= threshold}
        if index == last:
            return index, set()
    raise AssertionError


def rule_of(table: RiskTable) -> ag.AgreeStop:
    return ag.AgreeStop("1/2", table.times, table.max_set_size, risk=TableRisk(), at_end="abstain")


def is_wrong(ending: Ending, label: int) -> bool:
    return bool(ending[1]) and label not in ending[1]


def points_of(*values: Floats) -> Sequence[float]:
    points = breaking_points(np.concatenate([one.ravel() for one in values]))
    return (-math.inf, *sorted([*points, *between(points)]), math.inf)


@given(table=risk_tables())
@settings(max_examples=300)
def test_every_threshold_decides_as_defined_and_w_is_where_it_first_fails(table: RiskTable) -> None:
    rule = rule_of(table)
    W = value_of_each(rule, table.log_confidence, table.labels)
    calibrated = calibrate_quietly(rule, table.log_confidence, table.labels)
    wrong = {}
    for threshold in points_of(table.mass, table.risk):
        decisions = at_threshold(calibrated, threshold).decide(table.log_confidence)
        for row, label in enumerate(table.labels.tolist()):
            ending = ends(table.mass[row], table.risk[row], threshold, table.max_set_size)
            assert (int(decisions.stop_index[row]), set(np.flatnonzero(decisions.sets[row]).tolist())) == ending
            assert decisions.answered[row] == bool(ending[1])
            wrong[row, threshold] = is_wrong(ending, label)
    for (row, threshold), missed in wrong.items():
        assert not (missed and threshold <= W[row]), "a miss at λ implies W < λ"
    for row, value in enumerate(W.tolist()):
        later = [missed for (one, threshold), missed in wrong.items() if one == row and threshold > value]
        assert value == math.inf or later[0], "just above W it fails"


@given(table=risk_tables(most_rows=6), target=st.sampled_from(["1/2", "2/3", "3/4"]))
@settings(max_examples=100)
def test_no_bag_is_answered_wrongly_too_often(table: RiskTable, target: str) -> None:
    """Each row in turn is the new one; the last answers are all wrong here, which an abstention forgives."""
    n = len(table.labels)
    if n < 2:
        return
    wrong = 0
    for new in range(n):
        others = np.arange(n) != new
        calibrated = calibrate_quietly(
            ag.AgreeStop(target, table.times, table.max_set_size, risk=TableRisk(), at_end="abstain"),
            table.log_confidence[others],
            table.labels[others],
        )
        decision = calibrated.decide(table.log_confidence[new : new + 1])[0]
        wrong += decision.answered and int(table.labels[new]) not in decision.classes
    assert wrong <= n * (1 - Fraction(target))


def hard(n: int, seed: int) -> ag.Scores:
    """Half of the inputs never show their class."""
    scores = ag.simulate_scores(n, steps=12, K=2, C=4, seed=seed, pace=4.0)
    rng = np.random.default_rng(seed)
    assert scores.labels is not None
    labels = np.where(rng.random(n) < 0.4, rng.integers(0, 4, n), scores.labels)
    return ag.Scores(scores.log_confidence, labels, scores.times)


TIMES = range(1, 13)
CALIBRATION, TEST = hard(400, 1), hard(400, 2)


def test_abstaining_stops_what_must_run_to_the_end_with_answers() -> None:
    """The control: with 40 % of noise, answers at the end must hold many classes; the wrong ones are as rare as promised."""
    abstaining, answering = (calibrate_quietly(ag.AgreeStop(0.9, TIMES, 1, at_end=at_end), CALIBRATION) for at_end in ("abstain", "answer"))
    results = [ag.evaluate(rule.decide(TEST), TEST) for rule in (abstaining, answering)]
    assert results[0].wrong is not None and results[0].answered is not None
    assert 0.02 < results[0].wrong < 0.16 and 0.2 < results[0].answered < 0.9
    assert results[0].coverage == pytest.approx(1 - results[0].wrong)
    assert results[1].answered is not None and results[1].answered >= 1 and results[1].set_size > 1.5
    assert results[0].answered.low < results[0].answered < results[0].answered.high
    assert "answered" in str(results[0]) and "wrong" in str(results[0])
    assert "not answered" in abstaining.guarantee and "not answered" not in answering.guarantee


def test_files_streams_and_monitors(tmp_path: Path) -> None:
    rule = ag.AgreeStop(0.9, TIMES, 1, at_end="abstain").calibrate(CALIBRATION)
    decisions = rule.decide(TEST)
    rule.save(tmp_path / "rule")
    assert_same_decisions(ag.load_rule(tmp_path / "rule").decide(TEST), decisions)
    row = int(np.flatnonzero(~decisions.answered)[0])
    session, found = rule.stream(), None
    for values in TEST.log_confidence[row]:
        found = session.push(values)
    assert found is not None and found.classes == () and not found.answered
    assert found.index == len(TIMES) - 1 == decisions.stop_index[row]
    monitor = ag.DriftMonitor(rule)
    assert TEST.labels is not None
    for one, label in zip(decisions, TEST.labels.tolist(), strict=True):
        monitor.update(one, label)
    assert not monitor.alarms, "an abstention is no miss"
    for one, label in zip(rule.decide(hard(400, 3)), hard(400, 3).labels.tolist(), strict=True):  # type: ignore[union-attr]
        monitor.update(ag.Decision(one.time, one.index, one.classes), label)
    assert [alarm.kind for alarm in monitor.alarms] == ["misses"], "the control: empty answers are"


@pytest.mark.parametrize(
    ("options", "match"),
    [({"at_end": "perhaps"}, "at_end is 'perhaps'"), ({"at_end": "abstain", "accumulated": True, "delta": 0.1}, "at_end")],
)
def test_what_has_no_proof_is_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ag.InputError, match=match):
        ag.AgreeStop(0.9, TIMES, 1, **options)
