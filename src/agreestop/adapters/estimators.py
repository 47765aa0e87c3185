"""A scikit-learn classifier for time series that answers as soon as it has seen enough: one model
for each checkpoint, one calibrated rule.

`fit` divides the rows at random. Most of them fit the models: for each checkpoint t a clone of the
estimator on the prefixes X[..., :t]. Cross-validated confidences of the same rows set a temperature
for each checkpoint. The others calibrate the rule and are used for nothing else, so the promise is
that of the rule:

    P(the answer holds the true class) ≥ target        for new rows exchangeable with those of `fit`

Rows that belong together stay on one side: equal series, and with `groups` the rows of one group.
Equal series calibrate once.

A class that no fitting row has is never answered early, and a class that no row of X has never at
all. So the u of n calibration rows of such classes count as misses. With k = ⌊(n + 1)(1 - target)⌋
misses allowed, the other n - u rows calibrate at the target 1 - (k - u)/(n - u + 1), and where u
≥ k the fit is refused. Of n + 1 exchangeable rows let U be of classes that the fitting rows do not
have. For U ≤ k the new row misses with probability at most
U/(n + 1) + (n + 1 - U)/(n + 1) · (k - U)/(n + 1 - U) = k/(n + 1); for larger U the fit is refused.

Rows of one person are not exchangeable with another's. `fit(X, y, people=...)` keeps every person
on one side and promises the same for a row of a new person (see `docs/people.md`); people with rows
of classes that no fitting person has are refused there.

With at_end="abstain" a series that nothing stopped is not answered: `predict` returns
`abstain_label` for it, and P(answered and wrong) ≤ 1 - target is promised. `ag.evaluate` of what
`decide` returns has the share answered, with an interval.

`predict` returns the most probable class at the stop. `decide` returns the whole answer, which may
hold several classes at the last checkpoint; the promise is about it.
"""

import reprlib
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.model_selection import KFold
from sklearn.utils.multiclass import check_classification_targets

from agreestop.common import (
    Booleans,
    Floats,
    InputError,
    Integers,
    as_seed,
    is_integer,
)
from agreestop.common.errors import warn_user
from agreestop.common.levels import Target, in_words, quantile_rank
from agreestop.decide.agree_stop import AgreeStop
from agreestop.decide.checkpoints import State, Verdict
from agreestop.decide.confidence import MODEL_AVERAGE
from agreestop.decide.decisions import Decisions
from agreestop.decide.rule import Rule, build_rule
from agreestop.decide.scores import Scores
from agreestop.decide.spikecp import SpikeCP
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

RuleMaker = Callable[[Target, tuple[float, ...], int], Rule]
RULES: dict[str, RuleMaker] = {
    "agreestop": AgreeStop,
    "stop-aware": partial(SpikeCP, calibration="stop-aware"),
    "simultaneous": partial(SpikeCP, pooling=MODEL_AVERAGE, calibration="simultaneous"),
    "spikecp": partial(SpikeCP, pooling=MODEL_AVERAGE),
    "fixed-time": partial(build_rule, "fixed-time"),
}
ABSTAINING = ("agreestop", "fixed-time")
SUM_ERROR = 1e-3  # rounding of a sum of probabilities
LEAST_CONFIDENCE = 1e-6  # a forest often gives a class no vote at all, and log 0 is no number


class EarlyClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Fit a classifier for each checkpoint on prefixes of time series, and answer each series as
    early as the promise allows.

    estimator     a classifier with `predict_proba`, of scikit-learn or aeon
    checkpoints   times at which it may stop, from 1 to T; or their number, spread evenly up to T;
                  or None for every time
    target        the probability that the answer holds the true class, such as 0.9
    max_set_size  the largest answer that may stop early
    rule          "agreestop", "stop-aware", "simultaneous", "spikecp" or "fixed-time"; or what
                  makes a rule from a target, checkpoints and max_set_size, such as `ag.AgreeStop`
    seed          which rows calibrate
    calibration   the share of the rows that calibrate
    folds         cross-validation folds for the temperatures; 0 for none, which saves their time
    one_model     True if one model reads prefixes of every length: it is fitted once,
                  on whole series
    at_end        "answer", or "abstain": a series that nothing stopped is not answered; for the
                  rules "agreestop" and "fixed-time"
    abstain_label what `predict` returns for a series that is not answered, such as -1; it is no
                  class of y

    X is (n, T), or (n, channels, T). For an estimator that takes two axes, channels are put side by
    side. After `fit`: `classes_`, `checkpoints_`, `models_`, `calibration_rows_` (rows of X),
    `rule_`, the calibrated rule, `training_rows_`, hashes of the rows that fitted the models, and
    `notes_`, a sentence for each thing that is worth knowing about the division.
    """

    def __init__(
        self,
        estimator: Any,
        checkpoints: Any,
        target: Target,
        *,
        max_set_size: int = 1,
        rule: str | RuleMaker = "agreestop",
        seed: int = 0,
        calibration: float = 0.3,
        folds: int = 3,
        one_model: bool = False,
        at_end: str = "answer",
        abstain_label: Any = None,
    ) -> None:
        self.estimator, self.checkpoints, self.target = estimator, checkpoints, target
        self.max_set_size, self.rule, self.seed = max_set_size, rule, seed
        self.calibration, self.folds, self.one_model = calibration, folds, one_model
        self.at_end, self.abstain_label = at_end, abstain_label

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        groups: ArrayLike | None = None,
        *,
        people: ArrayLike | None = None,
        for_people: Target | None = None,
    ) -> Self:
        """Fit the models on some rows of X, (n, T) or (n, channels, T), with labels y (n,), and
        calibrate the rule on the others.

        groups (n,) are whole numbers or strings, such as the person whom a series is of: rows of
        one group do not both fit and calibrate.

        people (n,) are the same, and the promise is for a row of a new person, people counting
        equally; with for_people, such as 0.9, for this share of new people: at most a share
        1 - target of their answers miss.
        """
        series, labels = read_labelled_series(self, X, y)
        if not hasattr(self.estimator, "predict_proba"):
            raise InputError(
                f"estimator is a {type(self.estimator).__name__} without predict_proba: give a "
                "classifier that has it, or put yours into "
                "sklearn.calibration.CalibratedClassifierCV."
            )
        if not is_integer(self.folds) or self.folds < 0 or self.folds == 1:
            raise InputError(f"folds is {self.folds!r}: give 2 or more, or 0 for no temperatures.")
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(
                f"y holds one class, {str(self.classes_[0])!r}: a classifier needs two or more."
            )
        self.checkpoints_ = series_times(self.checkpoints, series.shape[-1])
        make = self._rule_maker()
        divided = Division.of(
            series, codes, groups, people, for_people, self.calibration, self.seed
        )
        fitting = divided.fitting
        known = np.unique(codes[fitting])
        if len(known) < 2:
            raise InputError(
                f"the {len(fitting)} rows that fit the models hold one class, "
                f"{str(self.classes_[known[0]])!r}: give more rows."
            )
        rule = make(self.target, self.checkpoints_, self.max_set_size)
        if not isinstance(rule, Rule) or rule.checkpoints != self.checkpoints_:
            raise InputError(
                f"rule makes a {type(rule).__name__} with other checkpoints than "
                f"{reprlib.repr(self.checkpoints_)}: give what makes a rule of the target, "
                "checkpoints and max_set_size that it gets."
            )
        self._check_abstain_label(rule)
        self.calibration_rows_ = divided.counted
        self.training_rows_ = divided.training_rows
        if self.folds:
            rule = self._with_temperatures(
                rule, series[fitting], codes[fitting], divided.units[fitting], divided.apart
            )
        met = np.isin(codes[self.calibration_rows_], known)
        if divided.people is not None and not met.all():
            raise InputError(
                f"people: {int((~met).sum())} calibration rows are of classes that no person who "
                "fits the models has: give more people, or leave these classes out."
            )
        stricter, unmet = _count_unmet(rule, met)
        self.notes_ = (*divided.notes((self.estimator,)), *([unmet] if unmet else []))
        self.notes_ += too_many_times(self.checkpoints, self.checkpoints_)
        self.models_ = self._fit_models(series[fitting], codes[fitting])
        rows = self.calibration_rows_[met]
        scores = self._scores(self.models_, series[rows], codes[rows])
        calibrated = divided.calibrate(stricter, scores, rows, for_people)
        self.notes_ += calibrated.notes
        self.rule_ = (
            replace(calibrated, guarantee=f"{rule.promise()} {unmet}") if unmet else calibrated
        )
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class of each series at its stop, (n,).

        `abstain_label` for a series that is not answered.
        """
        decisions = self.decide(X)
        classes = self.classes_[decisions.best]
        if decisions.answered.all():
            return classes
        return np.where(decisions.answered, classes, self.abstain_label)

    def decide(self, X: ArrayLike) -> Decisions:
        """Where each series stops and the classes it answers with.

        Only series that have not stopped are shown to a model.
        """
        series = read_new_series(self, X)
        return decide_series(self, series, self._judge(series))

    def stream(self) -> SeriesSession:
        """A session for one series that arrives step by step: push(step) until it decides."""
        return SeriesSession(
            self, lambda index, series: self._confidence(self.models_, index, series)
        )

    def _judge(self, series: Floats) -> Callable[[int, Integers, State], Verdict]:
        """A function that runs the models on some series at a checkpoint and judges them."""
        return lambda index, active, state: self.rule_.step(
            index, self._confidence(self.models_, index, series[active])[:, None], state
        )

    def scores(self, X: ArrayLike, y: ArrayLike | None = None) -> Scores:
        """The confidences of the models at every checkpoint, with labels where y is given: for
        `ag.write_report` or another rule.
        """
        series, codes = read_new_series(self, X), None
        if y is not None:
            labels = np.asarray(y)
            if not np.isin(labels, self.classes_).all():
                raise InputError(
                    "y holds classes that were not fitted: give labels among "
                    f"{', '.join(map(str, self.classes_[:10]))}."
                )
            codes = np.searchsorted(self.classes_, labels)
        scores, rows = self._scores(self.models_, series, codes), self.training_rows_
        return replace(scores, trained=rows.find(cast(Any, scores.ids)), trained_chance=rows.chance)

    def _check_abstain_label(self, rule: Rule) -> None:
        label, classes = np.asarray(self.abstain_label), self.classes_
        if self.abstain_label is None:
            if rule.terms.abstains:
                example = "'?'" if classes.dtype.kind in "US" else "-1"
                raise InputError(
                    "abstain_label is missing: give what predict returns for a series that is not "
                    f"answered, such as {example}."
                )
        elif label.shape or (label.dtype.kind in "US") != (classes.dtype.kind in "US"):
            raise InputError(
                f"abstain_label is {self.abstain_label!r:.60}: give a text where classes are "
                "texts, and a number where they are numbers."
            )
        elif label in classes:
            raise InputError(
                f"abstain_label is {self.abstain_label!r:.60}, a class of y: give another."
            )

    def _rule_maker(self) -> RuleMaker:
        if self.at_end != "answer":
            if self.rule not in ABSTAINING:
                raise InputError(
                    f"at_end is {self.at_end!r:.40}, which is for the rules "
                    f"{' and '.join(ABSTAINING)}: choose one of these, or give rule= what makes a "
                    "rule that abstains."
                )
            return partial(cast(Any, RULES[self.rule]), at_end=self.at_end)
        if callable(self.rule):
            return self.rule
        if self.rule not in RULES:
            raise InputError(
                f"rule is {self.rule!r}: choose one of {', '.join(RULES)}, or give a class such as "
                "ag.AgreeStop."
            )
        return RULES[self.rule]

    def _with_temperatures(
        self,
        rule: Rule,
        series: Floats,
        codes: Integers,
        units: Integers,
        used: Booleans,
    ) -> Rule:
        """The rule with a temperature for each checkpoint, from cross-validated confidences of
        the rows `used` that fit the models.
        """
        _, units = np.unique(units, return_inverse=True)
        count = int(units.max()) + 1
        if not rule.takes_temperatures or not used.any() or count < 2:
            return rule
        values = np.empty((len(series), len(self.checkpoints_), 1, len(self.classes_)))
        folds = KFold(min(self.folds, count), shuffle=True, random_state=as_seed(self.seed))
        for _, left_out in folds.split(np.arange(count)):
            outside = np.isin(units, left_out)
            inside = ~outside
            if len(np.unique(codes[inside])) < 2:
                return rule
            values[outside] = self._scores(
                self._fit_models(series[inside], codes[inside]), series[outside], None
            ).log_confidence
        tuning = Scores(values, codes, self.checkpoints_, ids=input_ids(series)).rows(used)
        return rule.with_temperatures(tuning)

    def _fit_models(self, series: Floats, codes: Integers) -> list[Any]:
        """One model for each checkpoint, or one for all of them, fitted on the labels behind the
        codes 0 … C - 1.
        """
        labels = self.classes_[codes]
        if self.one_model:
            whole = prefix(self.estimator, series, self.checkpoints_[-1])
            return [clone(self.estimator).fit(whole, labels)] * len(self.checkpoints_)
        return [
            clone(self.estimator).fit(prefix(self.estimator, series, time), labels)
            for time in self.checkpoints_
        ]

    def _confidence(self, models: list[Any], index: int, series: Floats) -> Floats:
        """Log-confidences (n, C) of whole series at a checkpoint.

        A class that a model has not met has hardly any confidence.
        """
        found = np.asarray(
            models[index].predict_proba(prefix(self.estimator, series, self.checkpoints_[index])),
            dtype=np.float64,
        )
        confidence = np.zeros((len(series), len(self.classes_)))
        known = np.asarray(models[index].classes_)
        if not np.isin(known, self.classes_).all():  # a model that was fitted before, and is frozen
            unknown = known[~np.isin(known, self.classes_)][0]
            raise InputError(
                f"the estimator knows the class {str(unknown)!r}, which y does not hold: give "
                "labels of all its classes."
            )
        if found.shape != (len(series), len(known)) or not (
            (found >= 0).all() and (np.abs(found.sum(1) - 1) < SUM_ERROR).all()
        ):
            raise InputError(
                f"predict_proba of the estimator gives values of shape {found.shape}, sums other "
                f"than 1, or values below 0: probabilities ({len(series)}, {len(known)}) are "
                "needed."
            )
        confidence[:, np.searchsorted(self.classes_, known)] = found
        return np.log(np.clip(confidence, LEAST_CONFIDENCE, 1.0))

    def _scores(self, models: list[Any], series: Floats, codes: Integers | None) -> Scores:
        values = np.stack(
            [self._confidence(models, index, series) for index in range(len(self.checkpoints_))],
            axis=1,
        )
        return Scores(
            values[:, :, None],
            codes,
            self.checkpoints_,
            tuple(map(str, self.classes_.tolist())),
            ids=input_ids(series),
        )


def _count_unmet(rule: Rule, met: Booleans) -> tuple[Rule, str]:
    """The rule that counts calibration rows of classes that the models have not met as misses, and
    a sentence if there are any.

    met (n,): whether the class of a calibration row is among those of the fitting rows. The rule is
    to be calibrated on the others.
    """
    n, unmet = len(met), int((~met).sum())
    terms = rule.terms
    if not unmet or not terms.promises:  # nothing to count, or nothing promised
        return rule, ""
    whom = f"{unmet} of the {n} calibration rows are of classes that no fitting row has"
    target, delta = terms.target, terms.delta
    if terms.is_divided or target is None:
        words = f"{whom}, and the promise is about the others"
        warn_user(f"{words}: give more rows of each class.")
        return rule, f"{words}."
    allowed = n + 1 - quantile_rank(n, target, delta)
    if unmet >= allowed:
        raise InputError(
            f"{whom}, so new rows will be missed as often: a target of {in_words(target)} allows "
            f"{max(allowed - 1, 0)} of these, so give more rows of each class, or leave rare "
            "classes out."
        )
    stricter: Any = rule
    stricter = replace(stricter, target=_target_with(n - unmet, allowed - unmet, delta))
    return stricter, f"{whom}: they count as misses, as new classes will."


def _target_with(n: int, misses: int, delta: Fraction | None) -> Fraction:
    """A target at which n calibration rows allow this number of misses, or slightly fewer."""
    if delta is None:
        return 1 - Fraction(misses, n + 1)
    low, high, parts = 0, 2**20, 2**20  # targets as multiples of 2^-20; `high` allows few enough
    while high - low > 1:
        middle = (low + high) // 2
        allows = n + 1 - quantile_rank(n, Fraction(middle, parts), delta)
        low, high = (middle, high) if allows > misses else (low, middle)
    return Fraction(min(high, parts - 1), parts)
