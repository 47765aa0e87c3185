"""Decisions and how good they were: every figure against one counted by hand, every interval against its formula."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agreestop as ag

Z = 1.959963984540054


def five_decisions() -> ag.Decisions:
    """Stops at 2, 2, 5, 10, 10; sets {0}, {1, 2}, {}, {0, 1, 2}, {2}."""
    sets = np.array([[1, 0, 0], [0, 1, 1], [0, 0, 0], [1, 1, 1], [0, 0, 1]], dtype=bool)
    return ag.Decisions(stop_index=np.array([0, 0, 1, 2, 2]), sets=sets, checkpoints=(2, 5, 10))


LABELS = np.array([0, 0, 1, 1, 2])  # hit, miss, miss, hit, hit


def test_decisions_say_where_each_input_stopped() -> None:
    decisions = five_decisions()
    assert len(decisions) == 5
    assert decisions.stop_time.tolist() == [2, 2, 5, 10, 10]
    assert decisions.set_size.tolist() == [1, 2, 0, 3, 1]
    assert decisions[1] == ag.Decision(time=2, index=0, classes=(1, 2))
    assert decisions[-3] == ag.Decision(time=5, index=1, classes=())
    assert [decision.time for decision in decisions] == [2, 2, 5, 10, 10]
    with pytest.raises(IndexError):
        decisions[5]


def test_evaluation_counts() -> None:
    evaluation = ag.evaluate(five_decisions(), LABELS)
    assert evaluation.n == 5
    assert evaluation.coverage == 3 / 5
    assert evaluation.latency == 29 / 5
    assert evaluation.normalized_latency == pytest.approx(0.58)
    assert evaluation.set_size == 7 / 5


def test_evaluation_by_stop_time_and_by_class() -> None:
    evaluation = ag.evaluate(five_decisions(), LABELS)
    assert [(group.key, group.n, float(group.coverage), float(group.set_size)) for group in evaluation.by_stop_time] == [
        (2, 2, 0.5, 1.5),
        (5, 1, 0.0, 0.0),
        (10, 2, 1.0, 2.0),
    ]
    assert [(group.key, group.n, float(group.coverage)) for group in evaluation.by_class] == [(0, 2, 0.5), (1, 2, 0.5), (2, 1, 1.0)]
    assert [float(group.normalized_latency) for group in evaluation.by_class] == pytest.approx([0.2, 0.75, 1.0])


def test_times_and_classes_that_do_not_occur_have_no_group() -> None:
    decisions = ag.Decisions(np.array([2, 2]), np.ones((2, 3), dtype=bool), (2, 5, 10))
    evaluation = ag.evaluate(decisions, [1, 1])
    assert [group.key for group in evaluation.by_stop_time] == [10]
    assert [group.key for group in evaluation.by_class] == [1]


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"),
    [(8, 10, 0.49016, 0.94331), (0, 10, 0.0, 0.27753), (10, 10, 0.72247, 1.0), (81, 263, 0.25528, 0.36621)],
)
def test_coverage_has_wilsons_interval(hits: int, count: int, low: float, high: float) -> None:
    """81 of 263 is the worked example of Newcombe (1998)."""
    sets = np.zeros((count, 2), dtype=bool)
    sets[:hits, 0] = True
    coverage = ag.evaluate(ag.Decisions(np.zeros(count, dtype=np.int64), sets, (1,)), np.zeros(count, dtype=int)).coverage
    assert (coverage.low, coverage.high) == pytest.approx((low, high), abs=1e-5)
    assert coverage.se == pytest.approx(math.sqrt(coverage * (1 - coverage) / count))


def test_means_have_the_normal_interval() -> None:
    evaluation = ag.evaluate(five_decisions(), LABELS)
    se = np.std([2, 2, 5, 10, 10], ddof=1) / math.sqrt(5)
    assert evaluation.latency.se == pytest.approx(se)
    assert (evaluation.latency.low, evaluation.latency.high) == pytest.approx((5.8 - Z * se, 5.8 + Z * se))
    normalized = evaluation.normalized_latency
    assert (normalized.low, normalized.high, normalized.se) == pytest.approx(((5.8 - Z * se) / 10, (5.8 + Z * se) / 10, se / 10))


def test_another_level_gives_wider_or_narrower_intervals() -> None:
    widths = [ag.evaluate(five_decisions(), LABELS, confidence=level).latency for level in (0.5, 0.95, 0.999)]
    spans = [estimate.high - estimate.low for estimate in widths]
    assert spans[0] < spans[1] < spans[2]


def test_one_decision_has_no_standard_error() -> None:
    evaluation = ag.evaluate(ag.Decisions(np.array([0]), np.array([[True, False]]), (4,)), [0])
    assert float(evaluation.latency) == 4
    assert math.isnan(evaluation.latency.se)
    assert 0 < evaluation.coverage.low < evaluation.coverage.high == 1


@given(st.floats(-5, 5), st.floats(0.1, 9))
def test_an_estimate_is_a_number(value: float, scale: float) -> None:
    estimate = ag.Estimate(value, value - 1, value + 1, 0.5)
    assert isinstance(estimate, float)
    assert estimate == value
    assert estimate + 1 == value + 1
    other = estimate.over(scale)
    assert (float(other), other.low, other.high, other.se) == (value / scale, (value - 1) / scale, (value + 1) / scale, 0.5 / scale)
    assert json.loads(json.dumps(estimate)) == value


def test_an_estimate_shows_its_interval() -> None:
    assert repr(ag.Estimate(0.91234, 0.9, 0.95, 0.01)) == "0.9123 [0.9, 0.95]"


@pytest.mark.parametrize("again", [copy.deepcopy, lambda estimate: pickle.loads(pickle.dumps(estimate))], ids=["copy", "pickle"])
def test_an_estimate_can_be_copied(again: Callable[[ag.Estimate], ag.Estimate]) -> None:
    estimate = ag.Estimate(0.9, 0.8, 0.95, 0.02)
    copied = again(estimate)
    assert (float(copied), copied.low, copied.high, copied.se) == (0.9, 0.8, 0.95, 0.02)


def test_an_evaluation_becomes_a_dictionary() -> None:
    assert dataclasses.asdict(ag.evaluate(five_decisions(), LABELS))["coverage"] == 0.6


@pytest.mark.parametrize(
    ("decisions", "labels", "match"),
    [
        (five_decisions(), [0, 1], "2 entries for 5 inputs"),
        (five_decisions(), [0, 1, 2, 3, 0], "labels holds 3"),
        (five_decisions(), [0.0, 1, 2, 0, 0], "dtype float64"),
        (ag.Decisions(np.empty(0, dtype=np.int64), np.empty((0, 2), dtype=bool), (1,)), [], "no decisions to evaluate"),
        (
            dataclasses.replace(five_decisions(), reuse="5 of the 5 rows were used for tuning: keep them apart."),
            LABELS,
            "^evaluation: 5 of the 5",
        ),
    ],
)
def test_evaluate_refuses(decisions: ag.Decisions, labels: list[int], match: str) -> None:
    with pytest.raises(ag.InputError, match=match):
        ag.evaluate(decisions, labels)


@pytest.mark.parametrize("confidence", [0, 1, -0.5, 95, math.nan])
def test_evaluate_refuses_a_level_that_is_no_probability(confidence: float) -> None:
    with pytest.raises(ag.InputError, match="confidence is"):
        ag.evaluate(five_decisions(), LABELS, confidence=confidence)
