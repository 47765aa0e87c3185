"""Early regressors over scikit-learn's: intervals hold the true number as promised, and models see
no series after its stop.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="EarlyRegressor needs scikit-learn")

from sklearn.linear_model import BayesianRidge, QuantileRegressor, Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import agreestop as ag
from agreestop.adapters import EarlyRegressor

TIMES = (2, 5, 10, 20)


def made(n: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=n)
    return truth[:, None] + rng.normal(size=(n, 20)), truth


X, Y = made(400, 0)
NEW, TRUE = made(500, 1)
QUANTILES = tuple(QuantileRegressor(quantile=share, alpha=0.0) for share in (0.1, 0.9))
ESTIMATORS: dict[str, tuple[Any, Any]] = {
    "errors": (Ridge(), None),
    "a scale of its own": (BayesianRidge(), None),
    "a pipeline with a scale": (make_pipeline(StandardScaler(), BayesianRidge()), None),
    "a model of the errors": (Ridge(), Ridge()),
    "quantiles": (QUANTILES, None),
}


class Seen(Ridge):  # type: ignore[misc]
    """It counts the series that it was shown last."""

    seen_ = 0

    def predict(self, X: Any) -> Any:
        self.seen_ = len(X)
        return super().predict(X)


@parametrize_with_checks([EarlyRegressor(Ridge(), 4, 0.5, max_width=1e-6)])  # type: ignore[untyped-decorator]
@pytest.mark.filterwarnings("ignore")
def test_it_keeps_the_conventions_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_intervals_hold_the_number_and_are_those_of_the_rule(name: str) -> None:
    estimator, scale = ESTIMATORS[name]
    early = EarlyRegressor(estimator, TIMES, 0.8, max_width=1.2, scale_estimator=scale).fit(X, Y)
    decisions, numbers = early.decide(NEW), early.numbers(NEW, TRUE)
    assert numbers.has_ends == (name == "quantiles")
    same = early.rule_.decide(numbers)
    np.testing.assert_array_equal(decisions.stop_index, same.stop_index)
    np.testing.assert_allclose(decisions.lower, same.lower)  # type: ignore[arg-type]
    for row in range(5):
        session = early.stream()
        for value in NEW[row]:
            if live := session.push(value):
                break
        assert live is not None and live.time == decisions[row].time
        assert live.lower == pytest.approx(decisions[row].lower)
        assert live.upper == pytest.approx(decisions[row].upper)
    result = ag.evaluate(decisions, TRUE)
    assert result.coverage > 0.72 and result.normalized_latency < 0.95
    expected = early.predict(NEW)
    assert decisions.lower is not None and decisions.upper is not None
    assert ((decisions.lower <= expected) & (expected <= decisions.upper)).all()
    assert early.score(NEW, TRUE) > 0.7
    assert np.mean(decisions.width[decisions.stop_index < 3]) < 1.2


def test_a_stopped_series_is_not_shown_to_later_models() -> None:
    early = EarlyRegressor(Seen(), TIMES, 0.8, max_width=1.2, scale_estimator=Ridge()).fit(X, Y)
    stops = early.decide(NEW).stop_index
    seen = [models[0].seen_ for models in early.models_]
    assert len(set(stops.tolist())) > 1
    assert seen == [int((stops >= index).sum()) for index in range(4)] and seen[-1] < len(NEW)


def test_a_bound_alone_stops_beyond_its_limit() -> None:
    early = EarlyRegressor(BayesianRidge(), TIMES, 0.9, side="upper", limit=1.0).fit(X, Y)
    decisions = early.decide(NEW)
    assert decisions.upper is not None and (decisions.upper[decisions.stop_index < 3] < 1.0).all()
    assert ag.evaluate(decisions, TRUE).coverage > 0.85


def test_rows_that_fitted_are_refused_and_people_stay_apart() -> None:
    early = EarlyRegressor(Ridge(), TIMES, 0.8, max_width=1.2).fit(X, Y)
    with pytest.raises(ag.InputError, match="trained"):
        ag.evaluate(early.decide(X), Y)
    people = np.arange(400) // 8
    early = EarlyRegressor(Ridge(), TIMES, 0.8, max_width=1.5).fit(X, Y, people=people)
    assert (
        set(people[early.calibration_rows_]) < set(people) and "new person" in early.rule_.guarantee
    )
    with pytest.raises(ag.InputError, match="people"):
        ag.evaluate(early.decide(NEW[:400]), TRUE[:400], people=people)
    fitted = ~np.isin(people, people[early.calibration_rows_])  # whom a model knows is not new
    with pytest.raises(ag.InputError, match="people"):
        ag.evaluate(early.decide(NEW[:400][fitted]), TRUE[:400][fitted], people=people[fitted])


def test_scales_are_errors_for_people_that_no_model_saw() -> None:
    """The nearest neighbour makes no error for rows and people that it saw."""
    some = np.tile(np.arange(60), 6)
    near = X[some] + 1e-6 * np.random.default_rng(2).normal(size=(360, 20))
    early = EarlyRegressor(KNeighborsRegressor(1), TIMES, 0.8, max_width=4)
    numbers = early.fit(near, Y[some], people=some).numbers(NEW, TRUE)
    ratio = numbers.scale.mean(axis=0) / np.abs(numbers.centre - TRUE[:, None]).mean(axis=0)
    assert (ratio > 0.5).all() and (ratio < 2).all()


def test_quantiles_may_come_in_any_order() -> None:
    ends = [
        EarlyRegressor(pair, (10,), 0.8, max_width=1.2).fit(X, Y).decide(NEW)
        for pair in (QUANTILES, QUANTILES[::-1])
    ]
    np.testing.assert_array_equal(ends[0].lower, ends[1].lower)
    np.testing.assert_array_equal(ends[0].upper, ends[1].upper)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no width": ({}, "max_width"),
    "no estimator": ({"estimator": "ridge", "max_width": 1.0}, "estimator is 'ridge'"),
    "three estimators": ({"estimator": (Ridge(), Ridge(), Ridge()), "max_width": 1.0}, "3 parts"),
    "a scale twice": (
        {"estimator": BayesianRidge(), "scale_estimator": Ridge(), "max_width": 1.0},
        "scale_estimator",
    ),
    "one fold": ({"folds": 1, "max_width": 1.0}, "folds is 1"),
    "a time after the end": ({"checkpoints": (5, 30), "max_width": 1.0}, "checkpoints"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_settings_are_refused(case: str) -> None:
    given, match = BAD[case]
    with pytest.raises(ag.InputError, match=match):
        EarlyRegressor(**{"estimator": Ridge(), "checkpoints": TIMES, "target": 0.9, **given}).fit(
            X, Y
        )
