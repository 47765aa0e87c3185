"""Scores S_t(x, c): the less a class fits the input, the larger. They are fixed before calibration.

    LogLoss        S_t = -g_t                           g_t: pooled log-confidence
    Temperature    S_t = -log softmax(τ_t · g_t)        τ_t: least log-loss on the tuning split
    TuningRanks    S_t = F_t(-g_t)                      F_t: distribution of the true label's loss
                                                        on the tuning split
    Spread         S_t = base + β · spread of the members' losses
    Shaped         S_t = base - offset_t

In simultaneous and stop-aware calibration one threshold serves all times, so scores must be
comparable across time. Raw losses are not, because counts grow. Everything that is fitted is
fitted on a tuning split that is neither calibration nor test data, and remembers the rows it used.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import Floats, InputError, as_floats, check_finite, is_number
from agreestop.common.kept import KeptInFiles
from agreestop.common.levels import Rounding

from .confidence import (
    MODEL_AVERAGE,
    MergeConfidence,
    RiskNumbers,
    log_softmax,
    pooling_of,
    tempered,
)
from .leakage import TunedRows, cut_fitted
from .scores import Scores, ScoresLike, as_scores, at_checkpoint, labels_of

QUANTILES = 64
BESIDE = 1e-4  # above the rounding of losses
# Rounding makes different classes equal beyond this size, and then an early answer could hold more
# classes than max_set_size.
LARGEST_CONSTANT = 1e9


class Reader(ABC):
    """What scores and risks have in common: they read log-confidences, and are fixed beforehand."""

    @property
    def tuned(self) -> TunedRows | None:
        """The tuning rows that it was fitted on; None if there were none."""
        return None

    def cut(self, checkpoints: tuple[float, ...]) -> Self:
        """The same score or risk, restricted to a rule's checkpoints."""
        return self

    def rounding(self, base: Rounding) -> Rounding:
        """The rounding of its numbers, from the rounding of log-confidences."""
        return base.scaled(1.0)

    @property
    def innermost(self) -> "Reader":
        """The score or risk without its offsets."""
        return self

    def numbers(self, count: int) -> RiskNumbers | None:
        """It as plain numbers at `count` checkpoints; None where that is not possible."""
        return None

    @abstractmethod
    def shaped(self, offsets: Floats, times: tuple[float, ...], rows: TunedRows | None) -> "Reader":
        """The same with an offset for each time (M,), which remembers the tuning rows."""

    def remembering(self, rows: TunedRows, times: tuple[float, ...]) -> "Reader":
        """The same, which remembers that these rows were used to choose it."""
        return self.shaped(np.zeros(len(times)), times, rows)


class Score(Reader):
    """Turns the log-confidences of one checkpoint into a score for each class."""

    @abstractmethod
    def losses(self, index: int, log_confidence: Floats) -> Floats:
        """Scores (b, C) at checkpoint `index` from log-confidences (b, K, C)."""

    def shaped(self, offsets: Floats, times: tuple[float, ...], rows: TunedRows | None) -> "Shaped":
        return Shaped(self, offsets, times, rows)


@dataclass(frozen=True)
class LogLoss(Score, KeptInFiles):
    """The pooled log-loss, -log M_r(f): the score of the paper.

    Parameters
    ----------
    pooling : MergeConfidence
        How the members' confidences are pooled.

    Examples
    --------
    >>> import agreestop as ag
    >>> scores, fresh = (ag.simulate_scores(300, steps=40, K=3, C=4, seed=seed) for seed in (1, 2))
    >>> rule = ag.SpikeCP(0.9, (20, 40), 1, score=ag.LogLoss(), calibration="stop-aware")
    >>> rule.calibrate(scores).decide(fresh).sets.shape
    (300, 4)
    """

    pooling: MergeConfidence = MODEL_AVERAGE

    def losses(self, index: int, log_confidence: Floats) -> Floats:
        return np.negative(self.pooling.pool(log_confidence))

    def rounding(self, base: Rounding) -> Rounding:
        return base

    def numbers(self, count: int) -> RiskNumbers | None:
        return RiskNumbers.of(self.pooling, None, count)


def _pooled(data: Scores, pooling: MergeConfidence) -> Iterator[tuple[Floats, Floats]]:
    """Pooled log-confidences (n, C) at each checkpoint, and those of the labels, (n,)."""
    rows, labels = np.arange(len(data)), labels_of(data)
    for index in range(len(data.times)):
        pooled = pooling.pool(at_checkpoint(data, index))
        yield pooled, pooled[rows, labels]


def fit_temperatures(data: Scores, pooling: MergeConfidence) -> Floats:
    """The τ_t of least log-loss at each checkpoint."""
    return np.array([_fit_temperature(*each) for each in _pooled(data, pooling)])


def _fit_temperature(pooled: Floats, own: Floats) -> float:
    """Bisection on the derivative of the log-loss, which grows with τ."""
    low, high = np.log(1e-3), np.log(1e3)
    for _ in range(26):
        middle = (low + high) / 2
        confidence = np.exp(log_softmax(np.exp(middle) * pooled))
        if (confidence * pooled).sum(axis=-1).mean() > own.mean():
            high = middle
        else:
            low = middle
    return float(np.exp((low + high) / 2))


def fix_numbers(
    owner: Any, *names: str, positive: bool = False, largest: float = LARGEST_CONSTANT
) -> None:
    """Convert the numbers of a score or risk to float64, and refuse those that are not usable.

    No threshold may come from nan, infinity or numbers of absurd size.
    """
    for name in names:
        values = as_floats(getattr(owner, name), name)
        check_finite(values, name)
        if (found := float(np.abs(values).max(initial=0))) > largest:
            raise InputError(f"{name} holds {found:.3g} in size: give numbers up to {largest:g}.")
        if positive and not (values > 0).all():
            raise InputError(f"{name} holds {values.min():.6g}: every one must be greater than 0.")
        object.__setattr__(owner, name, values)


class Fitted(ABC):
    """Scores and risks with fitted numbers for each checkpoint."""

    @classmethod
    def fit(
        cls,
        scores_or_log_confidence: ScoresLike,
        labels: ArrayLike | None = None,
        pooling: MergeConfidence | None = None,
        times: Sequence[float] | None = None,
    ) -> Self:
        """Fit on tuning data, which must be neither calibration nor test data.

        Parameters
        ----------
        scores_or_log_confidence : Scores or array_like of shape (n, M, K, C)
            Tuning scores, or log-confidences.
        labels : array_like of shape (n,), optional
            The true classes, for log-confidences.
        pooling : MergeConfidence, optional
            How the members' confidences are pooled; model averaging if it is None.
        times : sequence of float, optional
            The M times of log-confidences; with them, a rule may use some of the times.
        """
        data = as_scores(scores_or_log_confidence, labels, times)
        merge = pooling_of(pooling)
        known = None if times is None and data is not scores_or_log_confidence else data.times
        rows = TunedRows.of(data.log_confidence, data.ids)
        return cls(merge, cls._learn(data, merge), known, rows)  # type: ignore[call-arg]

    @staticmethod
    @abstractmethod
    def _learn(data: Scores, pooling: MergeConfidence) -> Floats:
        """The fitted numbers, (M, ...)."""

    def cut(self, checkpoints: tuple[float, ...]) -> Self:
        return cut_fitted(self, checkpoints)


@dataclass(frozen=True, eq=False)
class Temperature(Fitted, Score, KeptInFiles):
    """Log-loss at a temperature per checkpoint: the recommended score for stop-aware calibration.

    Make one with `Temperature.fit`.

    Parameters
    ----------
    pooling : MergeConfidence
        How the members' confidences are pooled.
    temperatures : ndarray of shape (M,)
        The factors τ of the pooled log-confidences.
    times : tuple of float, optional
        The times of the M checkpoints, where they are known.
    tuned : TunedRows, optional
        The rows that it was fitted on.

    Examples
    --------
    >>> import agreestop as ag
    >>> tuning, scores, fresh = (ag.simulate_scores(300, K=3, C=4, seed=seed) for seed in (0, 1, 2))
    >>> score = ag.Temperature.fit(tuning)
    >>> score.temperatures.shape
    (80,)
    >>> rule = ag.SpikeCP(0.9, range(1, 81), 1, score=score, calibration="stop-aware")
    >>> rule.calibrate(scores).decide(fresh).sets.shape
    (300, 4)
    """

    pooling: MergeConfidence
    temperatures: Floats = field(metadata={"per_checkpoint": True})
    times: tuple[float, ...] | None = None
    tuned: TunedRows | None = None

    _learn = staticmethod(fit_temperatures)

    def __post_init__(self) -> None:
        pooling_of(self.pooling)
        fix_numbers(self, "temperatures", positive=True)

    def losses(self, index: int, log_confidence: Floats) -> Floats:
        pooled = self.pooling.pool(log_confidence)
        return np.negative(log_softmax(tempered(self.temperatures[index], pooled)))

    def rounding(self, base: Rounding) -> Rounding:
        return base.scaled(self.temperatures)

    def numbers(self, count: int) -> RiskNumbers | None:
        return RiskNumbers.of(self.pooling, self.temperatures, count)


@dataclass(frozen=True, eq=False)
class TuningRanks(Fitted, Score, KeptInFiles):
    """The rank of a class's loss among the tuning split's true labels, at the same checkpoint.

    Make one with `TuningRanks.fit`.

    Parameters
    ----------
    pooling : MergeConfidence
        How the members' confidences are pooled.
    quantiles : ndarray of shape (M, 64)
        Quantiles of the true labels' losses.
    times : tuple of float, optional
        The times of the M checkpoints, where they are known.
    tuned : TunedRows, optional
        The rows that it was fitted on.

    Notes
    -----
    Ranks are interpolated between quantiles. Beyond the quantiles the loss itself is added, so the
    order of losses is never lost.

    Examples
    --------
    >>> import agreestop as ag
    >>> score = ag.TuningRanks.fit(ag.simulate_scores(200, steps=10, K=3))
    >>> score.quantiles.shape
    (10, 64)
    """

    pooling: MergeConfidence
    quantiles: Floats = field(metadata={"per_checkpoint": True})
    times: tuple[float, ...] | None = None
    tuned: TunedRows | None = None

    def __post_init__(self) -> None:
        pooling_of(self.pooling)
        fix_numbers(self, "quantiles", largest=np.inf)

    @staticmethod
    def _learn(data: Scores, pooling: MergeConfidence) -> Floats:
        own = [-own for _, own in _pooled(data, pooling)]
        return np.quantile(np.array(own), np.linspace(0, 1, QUANTILES), axis=1).T.copy()

    def losses(self, index: int, log_confidence: Floats) -> Floats:
        # Many inputs share a loss, and the rank jumps where quantiles repeat it. The jump is moved
        # a little beside the loss, so that rounding cannot cross it.
        loss = np.negative(self.pooling.pool(log_confidence)) - BESIDE
        grid = self.quantiles[index]
        rank = np.interp(loss, grid, np.linspace(0, 1, QUANTILES))
        return np.asarray(rank + np.maximum(loss - grid[-1], 0) + np.minimum(loss - grid[0], 0))

    def rounding(self, base: Rounding) -> Rounding:
        """The rounding of ranks: at most one step between two quantiles that are close together."""
        gaps = np.diff(self.quantiles, axis=1)
        closest = np.where(gaps > 0, gaps, np.inf).min(axis=1)
        step = 1 / (QUANTILES - 1)
        return base.plus(np.minimum(base.absolute / (QUANTILES - 1) / closest, step))


@dataclass(frozen=True, eq=False)
class Spread(Score, KeptInFiles):
    """A score plus β times the members' disagreement.

    The disagreement is the standard deviation of the members' losses for the class.

    Parameters
    ----------
    base : Score
        The score that the disagreement is added to.
    beta : float
        The weight β of the disagreement.

    Examples
    --------
    >>> import agreestop as ag
    >>> scores, fresh = (ag.simulate_scores(300, steps=40, K=3, C=4, seed=seed) for seed in (1, 2))
    >>> rule = ag.SpikeCP(0.9, (20, 40), 1, score=ag.Spread(ag.LogLoss(), beta=0.5))
    >>> rule.calibrate(scores).decide(fresh).sets.shape
    (300, 4)
    """

    base: Score
    beta: float = 0.5

    def __post_init__(self) -> None:
        if not is_number(self.beta) or abs(self.beta) > LARGEST_CONSTANT:
            raise InputError(
                f"beta is {self.beta!r}: give a number of at most {LARGEST_CONSTANT:g} in size."
            )

    @property
    def tuned(self) -> TunedRows | None:
        return self.base.tuned

    def losses(self, index: int, log_confidence: Floats) -> Floats:
        spread = np.sort(log_confidence, axis=-2).std(axis=-2)
        return np.asarray(self.base.losses(index, log_confidence) + self.beta * spread)

    def rounding(self, base: Rounding) -> Rounding:
        own, share = self.base.rounding(base), 2 * abs(self.beta)
        relative = own.relative + share * base.relative
        return replace(own.plus(share * base.absolute), relative=relative)

    def cut(self, checkpoints: tuple[float, ...]) -> Self:
        return replace(self, base=self.base.cut(checkpoints))


Base = TypeVar("Base", bound=Reader)


@dataclass(frozen=True, eq=False)
class ShapedOverTime(Generic[Base]):
    """A score or risk with an offset per checkpoint."""

    base: Base
    offsets: Floats = field(metadata={"per_checkpoint": True})
    times: tuple[float, ...] | None = None
    rows: TunedRows | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", as_floats(self.offsets, "offsets"))

    @property
    def tuned(self) -> TunedRows | None:
        if self.rows is None:
            return self.base.tuned
        if self.times is None or self.rows.is_cut:
            return self.rows.also(self.base.tuned)
        return self.cut(self.times).tuned  # the base may have been fitted at other times

    def rounding(self, base: Rounding) -> Rounding:
        """The rounding of the base and of the offsets, which change the size of its numbers."""
        own = self.base.rounding(base)
        sizes = np.where(np.isfinite(self.offsets), np.abs(self.offsets), 0.0)
        return own.plus(own.relative * sizes)

    def cut(self, checkpoints: tuple[float, ...]) -> Self:
        return replace(cut_fitted(self, checkpoints), base=self.base.cut(checkpoints))

    @property
    def innermost(self) -> Reader:
        return self.base.innermost

    def numbers(self, count: int) -> RiskNumbers | None:
        base = self.base.numbers(count)
        return None if base is None else replace(base, offsets=base.offsets + self.offsets)

    def remembering(self, rows: TunedRows, times: tuple[float, ...]) -> Self:
        return replace(self, rows=rows if self.rows is None else self.rows.also(rows))


class Shaped(ShapedOverTime[Score], Score, KeptInFiles):
    """A score less an offset per checkpoint: a threshold shaped over time, S_t ≤ λ + offset_t.

    `tune` finds offsets.

    Parameters
    ----------
    base : Score
        The score that the offsets are subtracted from.
    offsets : ndarray of shape (M,)
        The offset of each checkpoint.
    times : tuple of float, optional
        The times of the M checkpoints; with them, a rule may use some of the times.
    rows : TunedRows, optional
        The tuning rows that the offsets were fitted on, if the base score does not know them.

    Examples
    --------
    >>> import numpy as np
    >>> import agreestop as ag
    >>> shaped = Shaped(ag.LogLoss(), np.array([-0.5, 0.0]), times=(20, 40))
    >>> shaped.losses(0, np.log([[[0.5, 0.25]]])).round(3).tolist()
    [[1.193, 1.886]]
    """

    def __post_init__(self) -> None:
        fix_numbers(self, "offsets")

    def losses(self, index: int, log_confidence: Floats) -> Floats:
        return np.asarray(self.base.losses(index, log_confidence) - self.offsets[index])
