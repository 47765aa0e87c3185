"""The learned risk: features of agreement, a fit that scikit-learn would repeat, and what it
refuses.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import agreestop as ag
from agreestop.common import Floats
from tests.decide.strategies import make_sample, reading_at

SAMPLE = make_sample(200, checkpoints=3, members=3, classes=5, tied=False)
FEATURES = 9


def features_of(
    log_confidence: Floats, log_time: float, posterior: ag.TopMass | None = None, index: int = 0
) -> Floats:
    """The features (b, 9) at one checkpoint, for sets of two: the log-odds of a risk that has a
    weight for one of them alone.
    """
    log_times = np.full(1 if posterior is None else 3, log_time)
    columns = []
    for weights in np.eye(FEATURES):
        risk = ag.LearnedRisk(
            ag.TopMass() if posterior is None else posterior, 2, weights, 0.0, log_times
        )
        log_risk = reading_at(risk, index, log_confidence, 2).risk
        columns.append(log_risk - np.log(-np.expm1(log_risk)))
    return np.stack(columns, axis=1)


def test_features_mean_what_their_names_say() -> None:
    confidence = np.array([[[0.5, 0.3, 0.15, 0.05], [0.2, 0.6, 0.1, 0.1]]])
    (features,) = features_of(np.log(confidence), -0.5)
    outside = np.log([0.2, 0.2])
    expected = [
        *(np.log(0.2), np.log(0.55), np.log(0.55) - np.log(0.2)),
        *(outside.mean(), outside.max(), 0.0, 0.5, -0.5, -0.5 * np.log(0.2)),
    ]
    np.testing.assert_allclose(features, expected, atol=1e-12)


def test_the_risk_is_the_probability_that_scikit_learn_gives() -> None:
    risk = ag.LearnedRisk.fit(*SAMPLE, max_set_size=2)
    parts, misses, computed = [], [], []
    for index in range(3):
        values = SAMPLE.log_confidence[:, index]
        parts.append(features_of(values, float(np.log((index + 1) / 3)), risk.posterior, index))
        reading = reading_at(risk, index, values, 2)
        best = np.argsort(-reading.values, axis=1)[:, :2]
        misses.append((best != SAMPLE.labels[:, None]).all(axis=1))
        computed.append(np.exp(reading.risk))
    features = np.concatenate(parts)
    scaled = (features - features.mean(axis=0)) / features.std(axis=0)
    model = LogisticRegression(max_iter=1000).fit(scaled, np.concatenate(misses))
    np.testing.assert_allclose(
        np.concatenate(computed), model.predict_proba(scaled)[:, 1], rtol=1e-6
    )


def test_another_size_than_learned_for_is_refused() -> None:
    risk = ag.LearnedRisk.fit(*SAMPLE, max_set_size=2)
    with pytest.raises(ag.InputError, match="max_set_size is 3"):
        ag.AgreeStop(0.9, (1, 2, 3), 3, risk=risk)


def test_nothing_to_learn_is_said() -> None:
    with pytest.raises(ag.InputError, match="never miss the label"):
        ag.LearnedRisk.fit(*SAMPLE, max_set_size=5)


def test_without_scikit_learn_a_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(ag.InputError, match="needs scikit-learn"):
        ag.LearnedRisk.fit(*SAMPLE, max_set_size=2)
