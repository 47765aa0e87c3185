"""DC-SNN and SEENN-I against their definition: where they stop, what they answer, and which
threshold is chosen.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agreestop as ag
from agreestop.common import Floats
from tests.decide.strategies import Sample, calibrate_quietly, make_sample

CHECKPOINTS = (1, 2, 3)
GRID = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def decide_one(log_mean: Floats, threshold: float, max_set_size: int) -> tuple[int, list[int]]:
    """The first checkpoint whose top confidence reaches the threshold, else the last; and the top
    classes there, lowest index on ties.
    """
    index = next(
        (t for t, row in enumerate(log_mean) if row.max() >= math.log(threshold)), len(log_mean) - 1
    )
    ranked = sorted(range(log_mean.shape[1]), key=lambda label: (-log_mean[index, label], label))
    return index, sorted(ranked[:max_set_size])


def average(sample: Sample) -> Floats:
    return ag.MergeConfidence(r=1).pool(sample.log_confidence)


@given(st.integers(0, 1000), st.sampled_from([0.3, 0.5, 0.9, 1.0]), st.integers(1, 5))
def test_seenn_stops_where_the_top_confidence_reaches_the_threshold(
    seed: int, threshold: float, size: int
) -> None:
    sample = make_sample(12, members=2, seed=seed)
    decisions = calibrate_quietly(ag.SEENN(threshold, CHECKPOINTS, size), sample).decide(
        sample.log_confidence
    )
    for row, decision in zip(average(sample), [decisions[i] for i in range(12)], strict=True):
        assert (decision.index, list(decision.classes)) == decide_one(row, threshold, size)


def test_a_confidence_at_the_threshold_stops() -> None:
    sample = Sample(ag.log_confidence(np.zeros((1, 2, 1, 2))), np.array([0]))
    assert ag.SEENN(0.5, (1, 2), 1).calibrate(*sample).decide(sample.log_confidence)[
        0
    ] == ag.Decision(1, 0, (0,))
    assert ag.SEENN(0.51, (1, 2), 1).calibrate(*sample).decide(sample.log_confidence)[
        0
    ] == ag.Decision(2, 1, (0,))


def accuracy(sample: Sample, threshold: float) -> int:
    """How many arg-max decisions are right."""
    rows = zip(average(sample), sample.labels.tolist(), strict=True)
    return sum(int(row[decide_one(row, threshold, 1)[0]].argmax()) == label for row, label in rows)


@given(st.integers(0, 1000), st.sampled_from([0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.99]))
def test_dcsnn_takes_the_smallest_threshold_that_meets_the_target_or_comes_nearest(
    seed: int, target: float
) -> None:
    sample = make_sample(30, members=2, seed=seed)
    right = [accuracy(sample, threshold) for threshold in GRID]
    enough = [
        threshold
        for threshold, hits in zip(GRID, right, strict=True)
        if hits >= round(target * 30, 9)
    ]
    expected = enough[0] if enough else GRID[right.index(max(right))]
    calibrated = ag.DCSNN(target, CHECKPOINTS, 2, grid=GRID).calibrate(*sample)
    assert calibrated.thresholds == math.log(expected)
    assert (calibrated.decide(sample.log_confidence).set_size == 2).all()


def test_a_target_met_exactly_is_met() -> None:
    """Nine of ten are right at once, and 0.9 of ten is nine."""
    values = np.log(np.tile([0.8, 0.2], (10, 2, 1, 1)))
    labels = np.array([0] * 9 + [1])
    assert ag.DCSNN(0.9, (1, 2), 1, grid=(0.5, 0.99)).calibrate(
        values, labels
    ).thresholds == math.log(0.5)


@pytest.mark.parametrize(
    "rule", [ag.DCSNN(0.9, CHECKPOINTS, 1), ag.SEENN(0.9, CHECKPOINTS, 1)], ids=["dcsnn", "seenn"]
)
def test_they_need_no_number_of_examples_and_promise_nothing(rule: ag.DCSNN | ag.SEENN) -> None:
    assert rule.examples_needed(6) == 1
    calibrated = rule.calibrate(*make_sample(4))
    assert calibrated.shortage == ""
    assert calibrated.guarantee.startswith("no guarantee")
