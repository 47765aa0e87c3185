"""Decisions, and how good they were.

    coverage            share of inputs whose answer holds the label, with Wilson's interval
    latency             mean stopping time; normalized_latency the same over the last checkpoint's time
    set_size            mean number of classes in an answer

Each is an `Estimate`: a number with `low` and `high`, at 95 % if no other level is asked for.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import Booleans, Floats, InputError, Integers

from .checks import as_labels
from .levels import coverage_draws
from .score_files import Scores


@dataclass(frozen=True)
class Decision:
    """Where one input stopped, and the classes it answers with; `names` are the names of those classes, where they are known."""

    time: float
    index: int
    classes: tuple[int, ...]
    names: tuple[str, ...] | None = None

    @classmethod
    def of(cls, index: int, answer: Booleans, checkpoints: Sequence[float], class_names: Sequence[str] | None) -> Self:
        """The decision for a stop at checkpoint `index` with the set `answer`, (C,)."""
        classes = tuple(np.flatnonzero(answer).tolist())
        return cls(checkpoints[index], index, classes, None if class_names is None else tuple(class_names[label] for label in classes))


@dataclass(frozen=True, eq=False, repr=False)
class Decisions:
    """Where n inputs stopped and what they answer: `stop_index` (n,), `sets` (n, C).

    reuse        a sentence if the rule was tuned or calibrated on some of the inputs, else an empty string
    class_names  (C,) where they are known
    notes        a sentence for each thing that could not be checked
    draw         for rules with one threshold: the number n of calibration examples and the rank of the threshold among them
    """

    stop_index: Integers
    sets: Booleans
    checkpoints: tuple[float, ...]
    reuse: str = ""
    class_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    draw: tuple[int, int] | None = None

    @property
    def stop_time(self) -> Integers | Floats:
        """The checkpoint time at which each input stopped, (n,)."""
        return np.array(self.checkpoints)[self.stop_index]

    @property
    def set_size(self) -> Integers:
        return np.count_nonzero(self.sets, axis=1)

    def __len__(self) -> int:
        return len(self.stop_index)

    def __repr__(self) -> str:
        return f"Decisions(n={len(self)}, mean stop time {self.stop_time.mean():.4g}, mean set size {self.set_size.mean():.4g})"

    def __getitem__(self, i: int) -> Decision:
        return Decision.of(int(self.stop_index[i]), self.sets[i], self.checkpoints, self.class_names)


class Estimate(float):
    """A number with a confidence interval, `low` to `high`, and a standard error, `se`."""

    low: float
    high: float
    se: float

    def __new__(cls, value: float, low: float, high: float, se: float) -> Self:
        estimate = super().__new__(cls, value)
        estimate.low, estimate.high, estimate.se = low, high, se
        return estimate

    def __getnewargs__(self) -> tuple[float, float, float, float]:  # type: ignore[override]
        return float(self), self.low, self.high, self.se

    def __repr__(self) -> str:
        return f"{float(self):.4g} [{self.low:.4g}, {self.high:.4g}]"

    @classmethod
    def of_mean(cls, values: Floats | Integers, confidence: float) -> Self:
        """A mean, with the normal interval."""
        count = len(values)
        mean = float(np.mean(values))
        se = float(np.std(values, ddof=1)) / math.sqrt(count) if count > 1 else math.nan
        z = _z(confidence)
        return cls(mean, mean - z * se, mean + z * se, se)

    @classmethod
    def of_share(cls, hits: float, count: float, confidence: float) -> Self:
        """A proportion, with Wilson's interval."""
        z = _z(confidence)
        share = hits / count
        centre = (share + z * z / (2 * count)) / (1 + z * z / count)
        half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
        low, high = min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half))  # rounding must not shut the share out
        return cls(share, low, high, math.sqrt(share * (1 - share) / count))

    def over(self, scale: float) -> Self:
        """The same quantity in another unit."""
        return type(self)(self / scale, self.low / scale, self.high / scale, self.se / scale)


def _z(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise InputError(f"confidence is {confidence}: give the level of the intervals, between 0 and 1.")
    return NormalDist().inv_cdf((1 + confidence) / 2)


@dataclass(frozen=True)
class Group:
    """Coverage among the inputs that stopped at one time, or that belong to one class."""

    key: float
    n: int
    coverage: Estimate
    normalized_latency: Estimate
    set_size: Estimate

    @classmethod
    def of(cls, groups: Sequence[Self], confidence: float = 0.95) -> Self:
        """Several groups as one, under the key of the first; means without intervals, coverage with its own."""
        total = sum(group.n for group in groups)

        def mean(values: Iterable[Estimate]) -> Estimate:
            value = sum(group.n * one for group, one in zip(groups, values, strict=True)) / total
            return Estimate(value, math.nan, math.nan, math.nan)

        coverage = Estimate.of_share(round(sum(group.n * group.coverage for group in groups)), total, confidence)
        latency, set_size = mean(group.normalized_latency for group in groups), mean(group.set_size for group in groups)
        return cls(groups[0].key, total, coverage, latency, set_size)


@dataclass(frozen=True, repr=False)
class Evaluation:
    """How often the answers held the label, how early they came and how large they were.

    draw_range      for rules with one threshold: coverages from `low` to `high` are what the draw of the calibration examples explains,
                    at the level of the intervals
    draws_this_low  for those rules: the share of draws that would end at this coverage or below, if the promise holds with equality
    notes           a sentence for each thing that could not be checked
    """

    n: int
    coverage: Estimate
    latency: Estimate
    normalized_latency: Estimate
    set_size: Estimate
    by_stop_time: tuple[Group, ...]
    by_class: tuple[Group, ...]
    draw_range: tuple[float, float] | None = None
    draws_this_low: float | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        figures = (f"{name}={getattr(self, name)!r}" for name in ("n", "coverage", "normalized_latency", "set_size"))
        return f"Evaluation({', '.join(figures)})"


def evaluate(decisions: Any, labels_or_scores: ArrayLike | Scores, confidence: float = 0.95) -> Evaluation:
    """Compare `Decisions` with the true labels (n,), or those of a `Scores`. Refuses rows that the rule was tuned or calibrated on.

    What holds decisions, such as the run of an engine, is taken too.
    """
    decisions = getattr(decisions, "decisions", decisions)
    if not isinstance(decisions, Decisions):
        raise InputError(f"decisions is of type {type(decisions).__name__}: give what `decide` returns.")
    n, classes = decisions.sets.shape
    if n == 0:
        raise InputError("there are no decisions to evaluate: decide on at least one input.")
    labels = labels_or_scores.labels if isinstance(labels_or_scores, Scores) else labels_or_scores
    if labels is None:
        raise InputError("the scores hold no labels: give one label for each input to evaluate decisions.")
    truth = as_labels(labels, n, classes)
    if decisions.reuse:
        raise InputError(f"evaluation: {decisions.reuse}")
    hits = decisions.sets[np.arange(n), truth]
    times = decisions.stop_time
    horizon = float(decisions.checkpoints[-1])

    def group(key: float, rows: Booleans) -> Group:
        count = int(rows.sum())
        coverage = Estimate.of_share(int(hits[rows].sum()), count, confidence)
        latency = Estimate.of_mean(times[rows], confidence).over(horizon)
        return Group(key, count, coverage, latency, Estimate.of_mean(decisions.set_size[rows], confidence))

    def groups(values: Integers, keys: Sequence[float]) -> tuple[Group, ...]:
        return tuple(group(keys[value], values == value) for value in np.unique(values).tolist())

    together = group(0, np.ones(n, dtype=bool))
    draw_range = draws_this_low = None
    if decisions.draw is not None:
        draws = coverage_draws(*decisions.draw, n)
        low, high = np.searchsorted(draws, ((1 - confidence) / 2, (1 + confidence) / 2)).tolist()
        draw_range, draws_this_low = (low / n, high / n), float(draws[hits.sum()])
    return Evaluation(
        n=n,
        coverage=together.coverage,
        latency=Estimate.of_mean(times, confidence),
        normalized_latency=together.normalized_latency,
        set_size=together.set_size,
        by_stop_time=groups(decisions.stop_index, decisions.checkpoints),
        by_class=groups(truth, range(classes)),
        draw_range=draw_range,
        draws_this_low=draws_this_low,
        notes=decisions.notes,
    )
