"""Early classifiers over scikit-learn's: the promise holds, a series is not shown to models after its stop, and conventions are kept."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="EarlyClassifier needs scikit-learn")

from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.dummy import DummyClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.utils.estimator_checks import parametrize_with_checks

import agreestop as ag
from agreestop.adapters import EarlyClassifier
from agreestop.events import input_ids

NAMES = np.array(["falling", "flat", "rising"])


def made(n: int, seed: int, steps: int = 20) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=n)
    return np.cumsum(rng.normal(size=(n, steps)) + 0.7 * (labels[:, None] - 1), axis=1), NAMES[labels]


X, Y = made(300, 0)
NEW, TRUE = made(400, 1)


class Counting(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Naive Bayes on the mean step of a prefix of any length; it counts the series that it is shown, by length."""

    def __init__(self, seen: dict[int, int] | None = None) -> None:
        self.seen = seen

    def fit(self, X: Any, y: Any) -> Counting:
        self.model_ = GaussianNB().fit(X[:, -1:] / X.shape[1], y)
        self.classes_ = self.model_.classes_
        self.seen_: dict[int, int] = {}
        return self

    def predict_proba(self, X: Any) -> Any:
        self.seen_[X.shape[1]] = self.seen_.get(X.shape[1], 0) + len(X)
        return self.model_.predict_proba(X[:, -1:] / X.shape[1])


@parametrize_with_checks([EarlyClassifier(LogisticRegression(), 4, 0.95, folds=0)])  # type: ignore[untyped-decorator]
@pytest.mark.filterwarnings("ignore")
def test_it_keeps_the_conventions_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("rule", ["agreestop", "stop-aware", "simultaneous", "spikecp", "fixed-time", partial(ag.AgreeStop, delta=0.2)])
@pytest.mark.filterwarnings("ignore::agreestop.CalibrationWarning")
def test_every_rule_decides_as_on_scores_and_keeps_its_promise(rule: Any) -> None:
    early = EarlyClassifier(GaussianNB(), (2, 5, 10, 20), 0.85, rule=rule).fit(X, Y)
    decisions = early.decide(NEW)
    scores = early.scores(NEW, TRUE)
    same = early.rule_.decide(scores.log_confidence, scores.times)
    assert np.array_equal(decisions.sets, same.sets) and np.array_equal(decisions.stop_time, same.stop_time)
    assert decisions.class_names == ("falling", "flat", "rising")
    result = ag.evaluate(decisions, scores)
    assert result.coverage > (0.85 if result.draw_range is None else result.draw_range[0])
    assert np.array_equal(early.predict(NEW), NAMES[np.asarray(decisions.best)])
    assert early.score(NEW, TRUE) == float(result.accuracy or 0)


def test_the_promise_holds_on_average_over_seeds() -> None:
    covered = []
    for seed in range(30):
        early = EarlyClassifier(GaussianNB(), (2, 5, 10, 20), 0.8, seed=seed, folds=0).fit(*made(150, seed + 100))
        covered.append(ag.evaluate(early.decide(NEW), np.searchsorted(NAMES, TRUE)).coverage)
    assert np.mean(covered) > 0.8 - 4 * np.std(covered) / np.sqrt(30) - 0.02


def test_calibration_rows_fit_nothing_and_a_series_is_not_shown_after_its_stop() -> None:
    early = EarlyClassifier(Counting(), (2, 5, 10, 20), 0.8, folds=0).fit(X, Y)
    rows = early.calibration_rows_
    assert len(rows) == early.rule_.n == 90
    moved = X.copy()
    moved[rows] += 100.0
    other = EarlyClassifier(Counting(), (2, 5, 10, 20), 0.8, folds=0).fit(moved, Y)
    for one, two in zip(early.models_, other.models_, strict=True):
        assert np.array_equal(one.model_.theta_, two.model_.theta_)
    for model in early.models_:
        model.seen_.clear()
    decisions = early.decide(NEW)
    seen = [sum(model.seen_.values()) for model in early.models_]
    assert seen == [int((decisions.stop_index >= index).sum()) for index in range(4)] and seen[3] < seen[0] == 400


def test_one_model_that_reads_prefixes_is_fitted_once_and_a_frozen_one_never() -> None:
    early = EarlyClassifier(Counting(), 4, 0.8, one_model=True, folds=0).fit(X, Y)
    assert len(early.models_) == 4 and len({id(model) for model in early.models_}) == 1
    assert early.decide(NEW).stop_time.mean() < 20
    series, labels = made(200, 7)
    fitted = Counting().fit(series, labels)
    frozen = EarlyClassifier(FrozenEstimator(fitted), 4, 0.8, one_model=True, folds=0).fit(X, Y)
    assert frozen.models_[0].estimator is fitted and frozen.decide(NEW).stop_time.mean() < 20
    assert (frozen.predict(NEW) == TRUE).mean() > 0.6
    with pytest.raises(ag.InputError, match="the class 'flat', which y does not hold"):
        EarlyClassifier(FrozenEstimator(fitted), 4, 0.8, one_model=True, folds=0).fit(X[Y != "flat"], Y[Y != "flat"])


def test_rows_that_calibrated_or_tuned_the_rule_cannot_be_evaluated() -> None:
    early = EarlyClassifier(GaussianNB(), 4, 0.8).fit(X, Y)
    fitting = np.setdiff1d(np.arange(len(X)), early.calibration_rows_)
    for rows in (early.calibration_rows_, fitting):
        with pytest.raises(ag.InputError, match="rows"):
            ag.evaluate(early.decide(X[rows]), early.scores(X[rows], Y[rows]))
    assert not early.decide(NEW).reuse


def test_a_series_that_the_data_hold_twice_may_fit_and_calibrate() -> None:
    early = EarlyClassifier(GaussianNB(), 4, 0.8).fit(np.concatenate([X[:60], X[:60]]), np.tile(Y[:60], 2))
    tuned: Any = early.rule_.rule.tuned
    assert early.rule_.n == 36 and 0 < len(tuned.ids) < 84
    same = EarlyClassifier(DummyClassifier(), 4, 0.8).fit(np.ones((30, 20)), np.arange(30) % 2)  # nothing is left to tune on
    assert same.rule_.rule.tuned is None


def test_channels_are_put_side_by_side_and_time_is_the_last_axis() -> None:
    both = np.stack([X, -X], axis=1)
    early = EarlyClassifier(GaussianNB(), (3, 20), 0.8, folds=0).fit(both, Y)
    assert early.models_[0].n_features_in_ == 6 and early.models_[1].n_features_in_ == 40
    assert early.predict(np.stack([NEW, -NEW], axis=1)).shape == (400,)


def test_checkpoints_are_times_or_their_number_or_all() -> None:
    def times(checkpoints: Any) -> Any:
        return EarlyClassifier(GaussianNB(), checkpoints, 0.8, folds=0).fit(X, Y).checkpoints_

    assert times((5, 20)) == (5, 20) and times(4) == (5, 10, 15, 20) and times(None) == tuple(range(1, 21)) == times(99)


def test_temperatures_come_from_rows_that_fit_the_models() -> None:
    early = EarlyClassifier(GaussianNB(), (5, 20), 0.8).fit(X, Y)
    tuned: Any = early.rule_.rule.tuned
    ids = input_ids(X)
    assert tuned is not None and not set(tuned.ids.tolist()) & set(ids[early.calibration_rows_].tolist()) and len(tuned.ids) == 210
    assert EarlyClassifier(GaussianNB(), (5, 20), 0.8, folds=0).fit(X, Y).rule_.rule.tuned is None


def test_scikit_learn_clones_and_cross_validates_it() -> None:
    early = EarlyClassifier(GaussianNB(), 4, "0.8", rule=ag.AgreeStop, folds=0)
    assert repr(clone(early)) == repr(early) and clone(early).rule is ag.AgreeStop
    assert clone(early).set_params(estimator__var_smoothing=1e-3).estimator.var_smoothing == 1e-3
    assert cross_val_score(early, X, Y, cv=2).min() > 0.6


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"checkpoints": (5, 30)}, "at most 20"),
        ({"checkpoints": (2.5, 5)}, "whole numbers"),
        ({"checkpoints": 0}, "at least 1"),
        ({"rule": "quick"}, "choose one of agreestop"),
        ({"calibration": 1.0}, "between 0 and 1"),
        ({"target": 2}, "target"),
        ({"folds": 1}, "give 2 or more, or 0"),
        ({"estimator": RidgeClassifier()}, "estimator is a RidgeClassifier without predict_proba: give a classifier that has it"),
        ({"rule": lambda target, times, size: 3}, "rule makes a int with other checkpoints than \\(5, 10, 15, 20\\)"),
        ({"rule": lambda target, times, size: ag.AgreeStop(target, times[2:], size)}, "rule makes a AgreeStop with other checkpoints"),
        ({"folds": -1}, "give 2 or more, or 0"),
    ],
)
def test_wrong_settings_are_refused_in_a_sentence(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ag.InputError, match=words):
        EarlyClassifier(**{"estimator": GaussianNB(), "checkpoints": 4, "target": 0.8, **settings}).fit(X, Y)


CHANGES: list[Any] = [
    lambda found: 5 * found,
    lambda found: 3 * found - 2 / 3,  # sums are 1, and some values lie below 0
    lambda found: found[:, :2] / found[:, :2].sum(1, keepdims=True),
    lambda found: found * np.nan,
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_a_probability_is_refused(change: Any) -> None:
    class Changed(GaussianNB):  # type: ignore[misc]
        def predict_proba(self, X: Any) -> Any:
            return change(super().predict_proba(X))

    with pytest.raises(ag.InputError, match=r"predict_proba of the estimator gives .*: probabilities \(90, 3\) are needed"):
        EarlyClassifier(Changed(), 4, 0.8, folds=0).fit(X, Y)


def test_series_and_labels_that_do_not_fit_are_refused() -> None:
    early = EarlyClassifier(GaussianNB(), 4, 0.8, folds=0).fit(X, Y)
    with pytest.raises(ag.InputError, match="classes that were not fitted"):
        early.scores(NEW, np.full(400, "sideways"))
    wide = EarlyClassifier(GaussianNB(), 4, 0.8, folds=0).fit(X[:, None], Y)
    with pytest.raises(ag.InputError, match="X has 10 times, but the last checkpoint is 20"):
        wide.decide(NEW[:, None, :10])
    with pytest.raises(ag.InputError, match=r"\(n, channels, T\) is needed"):
        early.fit(X[:, None, None], Y)
    with pytest.raises(ag.InputError, match="y holds one class, 'flat': a classifier"):
        early.fit(X, np.full(300, "flat"))
