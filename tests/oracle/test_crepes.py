"""Conformal p-variables equal those of crepes (`smoothing=False`), bit for bit: continuous scores,
heavy ties, one group per class.

crepes counts #{i : s_i ≥ s} + 1 over n + 1 one score at a time; agreestop sorts and searches. From
crepes' p-variables the Bonferroni sets {c : p_c > α/M} follow by integer arithmetic, so they are
compared too, and p-variable merging with them.
"""

from __future__ import annotations

from contextlib import nullcontext as nothing
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import agreestop as ag

crepes = pytest.importorskip("crepes")

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def peer_p_values(
    calibration: Floats, scores: Floats, bins: Any = None, test_bins: Any = None
) -> Floats:
    classifier = crepes.ConformalClassifier()
    classifier.fit(calibration, bins=bins)
    return np.asarray(
        classifier.predict_p(scores, bins=test_bins, smoothing=False), dtype=np.float64
    )


def counted(
    rng: np.random.Generator, rows: int, checkpoints: int, members: int, classes: int
) -> tuple[Floats, Integers]:
    """Log-confidences from one or two spikes a checkpoint: nearly every score ties with others."""
    labels = rng.integers(classes, size=rows)
    rates = np.full((rows, checkpoints, members, classes), 0.3)
    rates[np.arange(rows), :, :, labels] = 0.8
    return ag.log_confidence(np.cumsum(rng.poisson(rates), axis=1)), labels


@pytest.mark.parametrize("n", [1, 2, 9, 50, 333])
@pytest.mark.parametrize("kind", ["continuous", "ties", "constant", "extremes"])
def test_p_values_are_those_of_crepes(kind: str, n: int) -> None:
    rng = np.random.default_rng(n)

    def draw(*size: int) -> Floats:
        if kind == "continuous":
            return rng.normal(size=size)
        if kind == "ties":
            return rng.integers(4, size=size) / 3
        if kind == "constant":
            return np.full(size, -0.1)
        return rng.choice([-1e300, -1e-300, 0.0, 1e-300, 1e300], size=size)

    calibration, scores = draw(n), draw(40, 7)
    scores[0] = calibration[rng.integers(n, size=7)]  # exact ties with calibration scores
    ours = ag.p_values(calibration, scores)
    assert ours.shape == scores.shape
    assert np.array_equal(ours, peer_p_values(calibration, scores))


@pytest.mark.parametrize(
    ("n", "target"), [(20, "0.9"), (39, "0.9"), (50, "0.9"), (79, "0.95"), (119, "0.9"), (9, "0.6")]
)
def test_bonferroni_sets_follow_from_the_p_values_of_crepes(n: int, target: str) -> None:
    rng = np.random.default_rng(7)
    checkpoints, classes = 4, 6
    calibration, labels = counted(rng, n, checkpoints, 1, classes)
    test, _ = counted(rng, 300, checkpoints, 1, classes)
    level = (1 - Fraction(target)) / checkpoints
    kept = []
    for t in range(checkpoints):
        p = peer_p_values(-calibration[np.arange(n), t, 0, labels], -test[:, t, 0])
        ranks = np.rint(p * (n + 1)).astype(int)
        assert np.abs(ranks / (n + 1) - p).max() < 1e-12
        kept.append(
            np.array([[Fraction(int(rank), n + 1) > level for rank in row] for row in ranks])
        )
    sets = np.stack(kept, axis=1)
    small = sets.sum(axis=2) <= 2
    small[:, -1] = True
    stops = small.argmax(axis=1)

    with pytest.warns(ag.CalibrationWarning) if level * (n + 1) < 1 else nothing():
        calibrated = ag.SpikeCP(target, (1, 2, 3, 4), 2).calibrate(calibration, labels)
    decisions = calibrated.decide(test)
    assert np.array_equal(decisions.stop_index, stops)
    assert np.array_equal(decisions.sets, sets[np.arange(300), stops])


@pytest.mark.parametrize("r", [-np.inf, -1, 0, 1, 3, np.inf])
def test_merged_sets_follow_from_the_p_values_of_crepes(r: float) -> None:
    rng = np.random.default_rng(11)
    n, members, classes, target = 137, 3, 6, 0.83  # no merged value lands on the level
    calibration, labels = counted(rng, n, 1, members, classes)
    test, _ = counted(rng, 400, 1, members, classes)
    p = np.stack(
        [
            peer_p_values(-calibration[np.arange(n), 0, k, labels], -test[:, 0, k])
            for k in range(members)
        ]
    )
    merged = ag.merge_p_values(p, r, axis=0)
    assert np.abs(merged - (1 - target)).min() > 1e-9
    decisions = (
        ag.SpikeCP(target, (1,), 2, ag.MergePValues(r)).calibrate(calibration, labels).decide(test)
    )
    assert np.array_equal(decisions.sets, merged > 1 - target)
    assert 0 < decisions.sets.mean() < 1


@pytest.mark.parametrize("n", [60, 200])
def test_class_conditional_sets_are_those_of_crepes_with_a_bin_for_each_class(n: int) -> None:
    rng = np.random.default_rng(n)
    classes, target = 3, Fraction("0.8")
    calibration, labels = counted(rng, n, 1, 1, classes)
    test, _ = counted(rng, 200, 1, 1, classes)
    own = -calibration[np.arange(n), 0, 0, labels]
    sets = np.empty((200, classes), dtype=bool)
    for label in range(classes):
        p = peer_p_values(own, -test[:, 0, 0, label], bins=labels, test_bins=np.full(200, label))
        size = int((labels == label).sum()) + 1
        sets[:, label] = [Fraction(round(value * size), size) > 1 - target for value in p]
    decisions = (
        ag.SpikeCP(target, (1,), 2, class_conditional=True)
        .calibrate(calibration, labels)
        .decide(test)
    )
    assert np.array_equal(decisions.sets, sets)
    assert 0 < sets.mean() < 1
