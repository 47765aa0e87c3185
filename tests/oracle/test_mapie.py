"""With one checkpoint and one member, the Bonferroni sets are the LAC sets of MAPIE.

MAPIE ranks 1 - f, agreestop ranks -log f: the same order. MAPIE keeps a class up to 1e-8 beyond its
threshold and works with 1 - f, which rounds; so classes within 1e-6 of the threshold are left out,
except where they tie with it exactly, which both keep.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import agreestop as ag

pytest.importorskip("sklearn")
mapie = pytest.importorskip("mapie.classification")

from sklearn.base import BaseEstimator, ClassifierMixin

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]


class Identity(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A fitted classifier whose input is already the confidence of each class."""

    def __init__(self, classes: int = 2) -> None:
        self.classes = classes

    @property
    def classes_(self) -> Integers:
        return np.arange(self.classes)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, X: Any, y: Any) -> Identity:
        return self

    def predict_proba(self, X: Floats) -> Floats:
        return X

    def predict(self, X: Floats) -> Integers:
        return np.asarray(X.argmax(axis=1))


def peer_sets(
    calibration: Floats, labels: Integers, test: Floats, target: float
) -> tuple[Booleans, float]:
    """MAPIE's sets and the confidence at its threshold."""
    classifier = mapie.SplitConformalClassifier(
        Identity(calibration.shape[1]), confidence_level=target, conformity_score="lac", prefit=True
    )
    classifier.conformalize(calibration, labels)
    _, sets = classifier.predict_set(test)
    own = np.sort(1 - calibration[np.arange(len(labels)), labels])
    rank = int(np.ceil(np.round((len(labels) + 1) * target, 9)))
    return np.asarray(sets[:, :, 0], dtype=bool), float(1 - own[rank - 1])


def simulated(
    rng: np.random.Generator, rows: int, classes: int, ties: bool
) -> tuple[Floats, Integers]:
    """Logits or small spike counts (rows, classes), and labels."""
    labels = rng.integers(classes, size=rows)
    drive = np.zeros((rows, classes))
    drive[np.arange(rows), labels] = 1.2
    return (
        rng.poisson(0.5 + drive).astype(float) if ties else rng.normal(size=(rows, classes)) + drive
    ), labels


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    ("n", "target"), [(19, 0.9), (50, 0.9), (99, 0.8), (200, 0.95), (37, 0.5), (500, 0.99)]
)
def test_sets_are_the_lac_sets_of_mapie(n: int, target: float, ties: bool) -> None:
    rng = np.random.default_rng(n)
    classes = 5
    logits, labels = simulated(rng, n, classes, ties)
    test_logits, _ = simulated(rng, 1000, classes, ties)
    calibration, test = ag.log_confidence(logits), ag.log_confidence(test_logits)
    theirs, threshold = peer_sets(np.exp(calibration), labels, np.exp(test), target)
    decisions = (
        ag.SpikeCP(target, (1,), 2)
        .calibrate(calibration[:, None, None], labels)
        .decide(test[:, None, None])
    )
    gap = np.abs(np.exp(test) - threshold)
    compared = (gap > 1e-6) | (gap < 1e-14)
    assert compared.mean() > 0.99
    assert np.array_equal(decisions.sets[compared], theirs[compared])
    assert 0 < theirs.mean() < 1
    if ties:
        assert (gap < 1e-14).any()  # the tie at the threshold was met
