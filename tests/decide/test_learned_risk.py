"""The learned risk: features of agreement, a fit that scikit-learn would repeat, and what it refuses."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import agreestop as ag
from agreestop.decide.risks import FEATURES, Tails, agreement_features
from tests.decide.strategies import make_sample, risk_of

SAMPLE = make_sample(200, checkpoints=3, members=3, classes=5, tied=False)


def test_features_are_named_and_do_not_look_at_the_order_of_members() -> None:
    values = SAMPLE.log_confidence[:, 1]
    tails = Tails.of(ag.MergeConfidence().pool(values))
    features = agreement_features(values, tails, 2, -0.3)
    assert features.shape == (200, len(FEATURES))
    np.testing.assert_array_equal(features, agreement_features(values[:, ::-1], tails, 2, -0.3))


def test_features_mean_what_their_names_say() -> None:
    confidence = np.array([[[0.5, 0.3, 0.15, 0.05], [0.2, 0.6, 0.1, 0.1]]])
    pooled = np.log(confidence.mean(axis=1))
    (features,) = agreement_features(np.log(confidence), Tails.of(pooled), 2, -0.5)
    outside = np.log([0.2, 0.2])
    expected = [
        *(np.log(0.2), np.log(0.55), np.log(0.55) - np.log(0.2)),
        *(outside.mean(), outside.max(), 0.0, 0.5, -0.5, -0.5 * np.log(0.2)),
    ]
    np.testing.assert_allclose(features, expected, atol=1e-12)


def test_the_risk_is_the_probability_that_scikit_learn_gives() -> None:
    risk = ag.LearnedRisk.fit(*SAMPLE, max_set_size=2)
    parts, misses = [], []
    for index in range(3):
        tails = risk.posterior.tails(index, SAMPLE.log_confidence[:, index])
        parts.append(agreement_features(SAMPLE.log_confidence[:, index], tails, 2, float(np.log((index + 1) / 3))))
        misses.append((tails.order[:, :2] != SAMPLE.labels[:, None]).all(axis=1))
    features = np.concatenate(parts)
    scaled = (features - features.mean(axis=0)) / features.std(axis=0)
    model = LogisticRegression(max_iter=1000).fit(scaled, np.concatenate(misses))
    computed = np.concatenate([np.exp(risk_of(risk.evidence(index, SAMPLE.log_confidence[:, index], 2))) for index in range(3)])
    np.testing.assert_allclose(computed, model.predict_proba(scaled)[:, 1], rtol=1e-8)


def test_another_size_than_learned_for_is_refused() -> None:
    risk = ag.LearnedRisk.fit(*SAMPLE, max_set_size=2)
    with pytest.raises(ag.InputError, match="learned for sets of 2 classes, but max_set_size is 3"):
        ag.AgreeStop(0.9, (1, 2, 3), 3, risk=risk)


def test_nothing_to_learn_is_said() -> None:
    with pytest.raises(ag.InputError, match="never miss the label"):
        ag.LearnedRisk.fit(*SAMPLE, max_set_size=5)


def test_without_scikit_learn_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(ag.InputError, match=r"needs scikit-learn, .*: pip install 'agreestop\[learn\]'"):
        ag.LearnedRisk.fit(*SAMPLE, max_set_size=2)
