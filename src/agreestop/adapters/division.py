"""Which series of a data set fit the models and which calibrate the rule, for early estimators.

The division is random and ignores labels, as the promise needs it. Rows that belong together stay
on one side: equal series, and with groups the rows of one group.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted, validate_data

from agreestop.common import (
    Booleans,
    Floats,
    InputError,
    Integers,
    as_array,
    as_checkpoints,
    as_floats,
    as_seed,
    check_finite,
    check_series,
    is_integer,
    is_number,
)
from agreestop.common.errors import warn_user
from agreestop.common.levels import Target
from agreestop.decide.calibrated import Session
from agreestop.decide.checkpoints import State, Verdict, run_checkpoints
from agreestop.decide.decisions import Decision, Decisions
from agreestop.decide.leakage import Overlap, TrainingRows, mark_ids
from agreestop.events.container import input_ids

LEAST_ROWS = 10


@dataclass(frozen=True, eq=False)
class Division:
    """A division of n series.

    fitting      rows that fit the models
    calibration  rows of the other side; `counted` are those that calibrate: equal series with
                 equal labels count once
    units (n,)   what stays on one side, numbered from 0
    ids, changes (n,)  a hash of each series, and whether it is not constant
    groups (n,)  the groups or the people of the rows, where they are given
    """

    fitting: Integers
    calibration: Integers
    counted: Integers
    units: Integers
    ids: NDArray[np.uint64]
    changes: Booleans
    groups: NDArray[Any] | None
    by_people: bool

    @classmethod
    def of(
        cls,
        series: Floats,
        labels: NDArray[Any],
        groups: ArrayLike | None,
        people: ArrayLike | None,
        for_people: Target | None,
        share: float,
        seed: int,
    ) -> Self:
        """Divide series (n, ..., T) so that about this share of them calibrates."""
        if groups is not None and people is not None:
            raise InputError("groups and people are given: people are kept apart too, so give one.")
        if for_people is not None and people is None:
            raise InputError("for_people is given without people: give the person of each row.")
        persons = _as_groups(people, len(series), "people")
        names = _as_groups(groups, len(series)) if persons is None else persons
        units = _units(series, names)
        fitting, calibration = _divide(units, share, seed)
        ids, changes = input_ids(series), _changes(series)
        codes = np.unique(labels, return_inverse=True)[1]
        first = _first_copies(ids[calibration], codes[calibration])
        counted = calibration[first | ~changes[calibration]]
        return cls(fitting, calibration, counted, units, ids, changes, names, persons is not None)

    @property
    def people(self) -> NDArray[Any] | None:
        """The people of all rows, where they are given as people."""
        return self.groups if self.by_people else None

    @property
    def training_rows(self) -> TrainingRows:
        """What recognises the rows that fit the models."""
        return TrainingRows.of(self.ids[self.fitting[self.changes[self.fitting]]])

    @property
    def apart(self) -> Booleans:
        """Which of the fitting rows are no copies of calibration rows."""
        return ~np.isin(self.ids[self.fitting], self.ids[self.calibration])

    def calibrate(self, rule: Any, examples: Any, rows: Integers, for_people: Target | None) -> Any:
        """The rule, calibrated on the examples of these rows."""
        persons = None if self.people is None else self.people[rows]
        calibrated = rule.calibrate(examples, people=persons, for_people=for_people)
        if self.people is None:
            return calibrated
        # neither those who calibrate nor those who fit are new
        return replace(calibrated, known_people=np.unique(mark_ids(self.people)))

    def notes(self, estimators: tuple[Any, ...]) -> tuple[str, ...]:
        """What is worth knowing; what may void the promise is also warned of."""
        ids, groups = self.ids[self.changes], self.groups
        notes, doubts = [], []
        if copies := len(ids) - len(np.unique(ids)):
            notes.append(
                f"{copies} series are copies of others: copies stay on one side, and calibrate "
                "once."
            )
        if groups is not None:
            count = len(np.unique(groups[self.calibration]))
            what = "people" if self.by_people else "groups"
            notes.append(
                f"The rows of {count} of the {len(np.unique(groups))} {what} calibrate, and those "
                "of the others fit the models."
            )
            if not self.by_people:
                doubts.append(
                    f"rows of one group are alike, so with {count} groups that calibrate, the "
                    "promise is about new rows of these groups: it may fail for rows of new "
                    "groups."
                )
        if any(map(_was_fitted, estimators)):
            doubts.append(
                "the estimator was fitted before, and fit cannot tell which rows trained it: "
                "the promise holds only if X holds none of them."
            )
        for doubt in doubts:
            warn_user(doubt)
        return (*notes, *(doubt[0].upper() + doubt[1:] for doubt in doubts))


def _as_groups(groups: ArrayLike | None, n: int, name: str = "groups") -> NDArray[Any] | None:
    if groups is None:
        return None
    array = as_array(groups, name)
    if array.shape != (n,) or array.dtype.kind not in "iuUS":
        raise InputError(
            f"{name} has shape {array.shape} and dtype {array.dtype}: {n} whole numbers or strings "
            "are needed, one for each row of X."
        )
    return array


def _changes(series: Floats) -> Booleans:
    """Which series are not constant. Constant ones, such as empty recordings, repeat by nature."""
    return np.asarray((series != series[..., :1]).reshape(len(series), -1).any(axis=1))


def _first_copies(ids: NDArray[np.uint64], codes: Integers) -> Booleans:
    """The first row of each series and class."""
    _, first = np.unique(np.stack([ids, codes.astype(np.uint64)]), axis=1, return_index=True)
    return np.isin(np.arange(len(ids)), first)


def _units(series: Floats, groups: NDArray[Any] | None) -> Integers:
    """What stays on one side of a division, (n,), numbered from 0 as it appears: equal series
    that are not constant, and groups.
    """
    _, content = np.unique(input_ids(series), return_inverse=True)
    n, constant = len(series), ~_changes(series)
    content = np.where(constant, n + np.arange(n), content)
    parts = [content] if groups is None else [content, np.unique(groups, return_inverse=True)[1]]
    units, before = np.arange(n), None
    # every row takes the first row that it belongs to
    while before is None or not np.array_equal(units, before):
        before = units
        for part in parts:
            first = np.full(int(part.max()) + 1, n)
            np.minimum.at(first, part, units)
            units = first[part]
    return np.unique(units, return_inverse=True)[1]


def _was_fitted(estimator: Any) -> bool:
    """Whether the estimator, or a part of it, stays as it was fitted before when it is cloned."""
    parts = [
        estimator,
        *(estimator.get_params(deep=True).values() if hasattr(estimator, "get_params") else ()),
    ]
    models = [part for part in parts if hasattr(part, "fit") and not isinstance(part, type)]
    return any(
        isinstance(model, FrozenEstimator) or clone(model, safe=False) is model for model in models
    )


def _divide(units: Integers, share: float, seed: int) -> tuple[Integers, Integers]:
    """The rows that fit and those that calibrate.

    The division is random and ignores labels, as the promise needs it.

    units (n,), from 0: rows of one unit stay on one side.
    """
    n, counts = len(units), np.bincount(units)
    if not (is_number(share) and 0 < share < 1):
        raise InputError(f"calibration is {share!r}: give a share of the rows, between 0 and 1.")
    if n < LEAST_ROWS:
        raise InputError(
            f"X has {n} samples, but a minimum of {LEAST_ROWS} is required: some fit the "
            "models, others calibrate."
        )
    if len(counts) < 2:
        raise InputError(
            "all rows are of one group, or equal: give rows of at least two groups, some to "
            "fit and others to calibrate."
        )
    order = np.random.default_rng(as_seed(seed)).permutation(len(counts))
    wanted = min(max(1, round(share * n)), n - 2)
    taken = int(np.abs(np.cumsum(counts[order])[:-1] - wanted).argmin()) + 1
    calibrates = np.isin(units, order[:taken])
    return np.flatnonzero(~calibrates), np.flatnonzero(calibrates)


def read_series(estimator: Any, *given: Any, **options: Any) -> Any:
    """X, and y where it is given, as scikit-learn checks them; series of unequal length are
    refused.
    """
    try:
        return validate_data(estimator, *given, allow_nd=True, dtype=np.float64, **options)
    except ValueError:
        if isinstance(given[0], (list, tuple, np.ndarray)):
            lengths = {np.shape(row)[-1] for row in given[0] if np.ndim(row)}
            if len(lengths) > 1:
                raise InputError(
                    f"X holds series of {min(lengths)} to {max(lengths)} times: give series of one "
                    "length, cut or padded with their last value."
                ) from None
        raise


def read_labelled_series(estimator: Any, X: ArrayLike, y: ArrayLike, **options: Any) -> Any:
    """The same for `fit`: series (n, T) or (n, channels, T), and y."""
    series, given = read_series(estimator, X, y, **options)
    if series.ndim > 3:
        raise InputError(f"X has shape {series.shape}: (n, T) or (n, channels, T) is needed.")
    check_series(series.shape, estimator.checkpoints)
    estimator.channels_ = series.shape[1] if series.ndim == 3 else None
    return series, given


def read_new_series(estimator: Any, X: ArrayLike) -> Floats:
    """Checked series for a fitted estimator, at least as long as its last checkpoint."""
    check_is_fitted(estimator)
    try:
        series = read_series(estimator, X, reset=False)
    except ValueError as error:
        if " features, but " not in str(error):
            raise
        raise InputError(
            f"{error} Give whole series, or push one that still arrives to stream()."
        ) from None
    last = estimator.checkpoints_[-1]
    if series.shape[-1] < last:
        raise InputError(
            f"X has {series.shape[-1]} times, but the last checkpoint is {last}: give whole series."
        )
    return series


def decide_series(
    estimator: Any, series: Floats, judge: Callable[[int, Integers, State], Verdict]
) -> Decisions:
    """The decisions of a fitted estimator; only series that have not stopped are judged."""
    rule, rows, ids = estimator.rule_, estimator.training_rows_, input_ids(series)
    start, checkpoints = rule.start(len(series)), len(estimator.checkpoints_)
    stops = run_checkpoints(judge, start, checkpoints, rule.classes)
    trained = Overlap.of("training", "ids", rows.find(ids), rows.chance)
    return rule.decisions(stops, ids, training=trained)


class SeriesSession:
    """One series that arrives step by step. `stream()` of a fitted early estimator opens one.

    A model is asked at its checkpoint only, and no model after the decision.

    Attributes
    ----------
    number : int
        As in a stream of the rule: its place in the order of opening.
    decision : Decision or None
        The decision, once there is one.

    Examples
    --------
    >>> import numpy as np, agreestop as ag
    >>> from sklearn.naive_bayes import GaussianNB
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(2, size=300)
    >>> X = rng.normal(size=(300, 20)) + y[:, None]
    >>> early = ag.adapters.EarlyClassifier(GaussianNB(), 10, 0.9).fit(X[:200], y[:200])
    >>> session = early.stream()
    >>> for value in X[200]:
    ...     if decision := session.push(value):
    ...         break
    >>> decision.time == early.decide(X[200:201])[0].time
    True
    """

    def __init__(self, estimator: Any, evidence: Callable[[int, Floats], Floats]) -> None:
        check_is_fitted(estimator)
        self._session: Session = estimator.rule_.stream()
        self._evidence, self._times = evidence, estimator.checkpoints_
        self._shape = () if estimator.channels_ is None else (estimator.channels_,)
        self._seen: list[Floats] = []

    @property
    def number(self) -> int:
        return self._session.number

    @property
    def decision(self) -> Decision | None:
        return self._session.decision

    def push(self, step: ArrayLike) -> Decision | None:
        """Take the next step, a number, or (channels,); return the decision if it stops here."""
        self._session.check_open()
        values = as_floats(step, "step")
        check_finite(values, "step")
        if values.shape != self._shape:
            needed = f"an array of shape {self._shape}" if self._shape else "one number"
            raise InputError(
                f"step has shape {values.shape}: {needed} is needed, the values of one time step."
            )
        self._seen.append(values.astype(np.float64))
        index = self._session.index
        if len(self._seen) < self._times[index]:
            return None
        return self._session.push(self._evidence(index, np.stack(self._seen, axis=-1)[None]))

    def close(self) -> float | None:
        """End the series without a decision; returns its first risk, for `DriftMonitor.skip`."""
        return self._session.close()


def too_many_times(checkpoints: Any, times: tuple[int, ...]) -> tuple[str, ...]:
    """A note if more checkpoints are wanted than series have times."""
    if not is_integer(checkpoints) or checkpoints <= len(times):
        return ()
    return (f"checkpoints is {checkpoints}, and series have {len(times)} times: each is one.",)


def series_times(checkpoints: Any, length: int) -> tuple[int, ...]:
    """The checkpoints of series of that length."""
    given: Any = length if checkpoints is None else checkpoints
    if is_integer(given):
        if given < 1:
            raise InputError(
                f"checkpoints is {given}: give how many there are, at least 1, or the times "
                "themselves."
            )
        return tuple(
            sorted(
                {
                    -(-length * part // min(given, length))
                    for part in range(1, min(given, length) + 1)
                }
            )
        )
    times: Any = as_checkpoints(given)
    if not all(is_integer(time) for time in times) or times[-1] > length:
        raise InputError(
            f"checkpoints is {given!r}: give whole numbers of time steps, at most {length}, "
            "the length of the series."
        )
    return times


def prefix(estimator: Any, series: Floats, time: int) -> Floats:
    """What the estimator sees of series at a time."""
    seen = series[..., :time]
    return seen if takes_channels(estimator) else seen.reshape(len(seen), -1)


def takes_channels(estimator: Any) -> bool:
    """Whether an estimator takes (n, channels, T): those of aeon do, and those of scikit-learn
    whose tags say so.
    """
    return hasattr(type(estimator), "get_class_tags") or bool(
        get_tags(estimator).input_tags.three_d_array
    )
