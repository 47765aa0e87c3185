"""A scikit-learn regressor for time series that answers with an interval as soon as it is narrow
enough: one model for each checkpoint, one calibrated `IntervalStop`.

`fit` divides the rows at random, as `EarlyClassifier` does. Most of them fit the models: for each
checkpoint t a clone of the estimator on the prefixes X[..., :t]. The others calibrate the rule and
are used for nothing else, so for new rows exchangeable with those of `fit`

    P(the interval holds the true number) ≥ target

What an estimator gives decides what the rule reads (see `IntervalStop`):

    two estimators (lower, upper)     ends, such as two quantiles; where they cross they change
                                      places
    predict(X, return_std=True)       centre and scale, as of Gaussian processes
    any other                         its prediction is the centre. The scale is the mean absolute
                                      error of cross-validated predictions of the fitting rows, at
                                      each checkpoint; or what `scale_estimator`, which is fitted on
                                      these errors, predicts for the row
"""

import inspect
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.model_selection import GroupKFold, cross_val_predict

from agreestop.common import Floats, InputError, Integers, is_integer
from agreestop.common.levels import Target
from agreestop.decide.checkpoints import State, Verdict
from agreestop.decide.decisions import Decisions
from agreestop.decide.intervals import IntervalStop, Numbers
from agreestop.events.container import input_ids

from .division import (
    Division,
    SeriesSession,
    decide_series,
    prefix,
    read_labelled_series,
    read_new_series,
    series_times,
    too_many_times,
)

LEAST_SHARE = 0.05  # a scale is at least this share of the mean error


class EarlyRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Fit a regressor for each checkpoint on prefixes of time series, and answer each series with
    an interval as soon as it is narrow enough.

    estimator        a regressor, or a pair (lower, upper) of regressors of two quantiles
    checkpoints      times at which it may stop, from 1 to T; or their number, spread evenly up to
                     T; or None for every time
    target           the probability that the interval holds the true number, such as 0.9
    max_width, side, limit
                     as in `ag.IntervalStop`: an interval narrower than max_width, or a bound
                     beyond limit
    seed             which rows calibrate
    calibration      the share of the rows that calibrate
    folds            cross-validation folds for the scales, where the estimator gives none
    scale_estimator  a regressor that predicts how far off the prediction of a row is

    X is (n, T), or (n, channels, T), and y is (n,). After `fit`: `checkpoints_`, `models_`,
    `scales_`, `calibration_rows_` (rows of X), `rule_`, the calibrated rule, `training_rows_`,
    hashes of the rows that fitted the models, and `notes_`, a sentence for each thing that is worth
    knowing about the division.

    >>> import numpy as np, agreestop as ag
    >>> from sklearn.linear_model import Ridge
    >>> rng = np.random.default_rng(0)
    >>> y = rng.normal(size=600)
    >>> X = y[:, None] + rng.normal(size=(600, 20))
    >>> early = ag.adapters.EarlyRegressor(Ridge(), 10, 0.9, max_width=1.5).fit(X[:300], y[:300])
    >>> decision = early.decide(X[300:])[0]
    >>> bool(decision.time < 20), bool(decision.upper - decision.lower < 1.5)
    (True, True)
    """

    def __init__(
        self,
        estimator: Any,
        checkpoints: Any,
        target: Target,
        *,
        max_width: float | None = None,
        side: str = "both",
        limit: float | None = None,
        seed: int = 0,
        calibration: float = 0.3,
        folds: int = 3,
        scale_estimator: Any = None,
    ) -> None:
        self.estimator, self.checkpoints, self.target = estimator, checkpoints, target
        self.max_width, self.side, self.limit = max_width, side, limit
        self.seed, self.calibration, self.folds = seed, calibration, folds
        self.scale_estimator = scale_estimator

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        groups: ArrayLike | None = None,
        *,
        people: ArrayLike | None = None,
        for_people: Target | None = None,
    ) -> Self:
        """Fit the models on some rows of X, (n, T) or (n, channels, T), with numbers y (n,), and
        calibrate the rule on the others. groups, people and for_people are as in `EarlyClassifier`.
        """
        series, truth = read_labelled_series(self, X, y, y_numeric=True)
        truth = np.asarray(truth, dtype=np.float64)
        if truth.ndim != 1:
            raise InputError(f"y has shape {truth.shape}: one number for each row is needed.")
        self._check_estimators()
        self.checkpoints_ = series_times(self.checkpoints, series.shape[-1])
        rule = IntervalStop(self.target, self.checkpoints_, self.max_width, self.side, self.limit)
        divided = Division.of(
            series, truth, groups, people, for_people, self.calibration, self.seed
        )
        self.calibration_rows_ = rows = divided.counted
        self.training_rows_ = divided.training_rows
        self.notes_ = divided.notes((*self._estimators, self.scale_estimator))
        self.notes_ += too_many_times(self.checkpoints, self.checkpoints_)
        self._fit_models(series[divided.fitting], truth[divided.fitting], divided)
        numbers = self._numbers(series[rows], truth[rows])
        self.rule_ = divided.calibrate(rule, numbers, rows, for_people)
        self.notes_ += self.rule_.notes
        return self

    def predict(self, X: ArrayLike) -> Floats:
        """What the model expects of each series at its stop, (n,); with ends, their middle."""
        return self._watch(read_new_series(self, X))[0]

    def decide(self, X: ArrayLike) -> Decisions:
        """Where each series stops and the interval it answers with, in `lower` and `upper`.

        Only series that have not stopped are shown to a model.
        """
        return self._watch(read_new_series(self, X))[1]

    def stream(self) -> SeriesSession:
        """A session for one series that arrives step by step: push(step) until it decides."""
        return SeriesSession(self, self._pairs)

    def numbers(self, X: ArrayLike, y: ArrayLike | None = None) -> Numbers:
        """What the models give at every checkpoint, with true numbers where y is given: for
        another rule, or for a report.
        """
        return self._numbers(read_new_series(self, X), y)

    def _check_estimators(self) -> None:
        for one in self._estimators:
            if not (hasattr(one, "fit") and hasattr(one, "predict")):
                raise InputError(
                    f"estimator is {one!r:.60}: give a regressor, or a pair (lower, upper) of "
                    "regressors of two quantiles."
                )
        if len(self._estimators) > 2:
            raise InputError(f"estimator has {len(self._estimators)} parts: give one or a pair.")
        if self.scale_estimator is not None and (self._has_ends or self._gives_scale):
            raise InputError("scale_estimator has no use: the estimator says how sure it is.")
        if not is_integer(self.folds) or self.folds < 2:
            raise InputError(f"folds is {self.folds!r}: give 2 or more.")

    @property
    def _estimators(self) -> Sequence[Any]:
        return self.estimator if isinstance(self.estimator, (tuple, list)) else (self.estimator,)

    @property
    def _has_ends(self) -> bool:
        return len(self._estimators) == 2

    @property
    def _gives_scale(self) -> bool:
        """Whether `predict` takes `return_std`; a pipeline passes it to its last step."""
        last = self.estimator.steps[-1][1] if hasattr(self.estimator, "steps") else self.estimator
        return "return_std" in inspect.signature(last.predict).parameters

    def _fit_models(self, series: Floats, truth: Floats, divided: Division) -> None:
        """For each checkpoint the estimators, and what gives the scale where they do not."""
        units = divided.units[divided.fitting]
        folds = GroupKFold(min(self.folds, max(2, len(np.unique(units)))))
        by_errors = not (self._has_ends or self._gives_scale)
        models: list[list[Any]] = []
        scales: list[tuple[float, Any] | None] = []
        self.models_, self.scales_ = models, scales
        for time in self.checkpoints_:
            seen = prefix(self._estimators[0], series, time)
            self.models_.append([clone(one).fit(seen, truth) for one in self._estimators])
            if not by_errors:
                self.scales_.append(None)
                continue
            found = cross_val_predict(self.estimator, seen, truth, groups=units, cv=folds)
            errors = np.abs(np.asarray(found, dtype=np.float64).reshape(-1) - truth)
            least = max(float(errors.mean()), 1e-9 * max(1.0, float(np.abs(truth).max())))
            model = self.scale_estimator
            self.scales_.append((least, None if model is None else clone(model).fit(seen, errors)))

    def _pairs(self, index: int, series: Floats) -> Floats:
        """(n, 2): centre and scale, or the ends, of whole series at a checkpoint."""
        seen = prefix(self._estimators[0], series, self.checkpoints_[index])
        models, scale = self.models_[index], self.scales_[index]
        if self._has_ends:
            return np.sort(_columns(*(one.predict(seen) for one in models)), axis=1)
        if scale is None:
            centre, spread = models[0].predict(seen, return_std=True)
            return _columns(centre, np.maximum(spread, np.finfo(np.float64).tiny))
        mean, model = scale
        spread = mean if model is None else np.maximum(model.predict(seen), LEAST_SHARE * mean)
        centre = np.asarray(models[0].predict(seen), dtype=np.float64).reshape(-1)
        return _columns(centre, np.broadcast_to(spread, centre.shape))

    def _watch(self, series: Floats) -> tuple[Floats, Decisions]:
        """What is expected at the stop, (n,), and the decisions."""
        pairs = np.empty((len(series), 2))

        def judge(index: int, active: Integers, state: State) -> Verdict:
            pairs[active] = found = self._pairs(index, series[active])
            return self.rule_.step(index, found[:, None], state)

        decisions = decide_series(self, series, judge)
        return pairs.mean(axis=1) if self._has_ends else pairs[:, 0], decisions

    def _numbers(self, series: Floats, truth: Any) -> Numbers:
        pairs = np.stack(
            [self._pairs(index, series) for index in range(len(self.checkpoints_))], axis=1
        )
        names = ("lower", "upper") if self._has_ends else ("centre", "scale")
        known: dict[str, Any] = dict(zip(names, np.moveaxis(pairs, 2, 0), strict=True))
        return Numbers(**known, labels=truth, times=self.checkpoints_, ids=input_ids(series))


def _columns(*values: NDArray[Any]) -> Floats:
    return np.stack([np.asarray(one, dtype=np.float64).reshape(-1) for one in values], axis=1)
