"""How sure a model is, fixed before calibration: risks of the best I classes, scores of each class.

Risks, for AgreeStop:

    π_t(c)   posterior: softmax(τ_t · g_t), g_t the pooled log-confidence; it orders the classes,
             ties by lowest index
    ρ_t(c)   π_t-mass of c and of all classes ranked after it
    e_t      risk that the label is not among the I most probable classes; TopMass: their missing
             mass, ρ_t of rank I + 1

A `Gate` says when an input first looks ready. Fixed on tuning data:

    κ_t      a threshold for log e_t, one for each block of times
    G(x)     the first checkpoint with log e_t - κ_t < slack. Its block is the input's block, and
             "never" is a block of its own

Checkpoints before G(x) do not count. From there on a rule has the threshold of the input's block,
calibrated on the examples of that block. Block and failure are fixed functions of an example, so
the examples of one block are exchangeable, and P(miss | block) ≤ α for every block.

All in logarithms and as sums of the tail: 1 - Σ would cancel to 0 for confident networks, and then
nothing stops. A risk gives the rule an `Evidence`: values are log ρ of every class, log_risk is
log e.

Scores, for SpikeCP: the larger S_t(x, c), the less class c fits the input.

    LogLoss        S_t = -g_t
    Temperature    S_t = -log softmax(τ_t · g_t)        τ_t: least log-loss on the tuning split
    TuningRanks    S_t = F_t(-g_t)                      F_t: distribution of the true label's loss
                                                        on the tuning split
    Spread         S_t = base + β · spread of the members' losses
    Shaped         S_t = base - offset_t

In simultaneous and stop-aware calibration one threshold serves all times, so scores must be
comparable across time. Raw losses are not, because counts grow. Everything that is fitted is
fitted on a tuning split that is neither calibration nor test data, and remembers the rows it used.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import (
    Booleans,
    Floats,
    InputError,
    Integers,
    KeptInFiles,
    as_checkpoints,
    as_count,
    as_floats,
    as_max_set_size,
    check_finite,
    is_number,
    set_fields,
)
from agreestop.common.levels import Rounding, Target, as_target

from .answer_kinds import BestClasses, Tails
from .checkpoints import Evidence, Index
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
from .tuning.gate_fit import LEAST_ROWS, SLACKS, fit_gate, opened_at

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
    """Pooled log-confidences (n, C) at each checkpoint, and of these the labels' own, (n,)."""
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
        set_fields(owner, **{name: values})


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
        set_fields(self, offsets=as_floats(self.offsets, "offsets"))

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


MISSES = 6  # calibration examples that may miss for each block of a gate
FEWEST, MOST = 2, 4  # blocks of a gate


class Risk(Reader):
    """Turns the log-confidences of one checkpoint into an order of the classes and a risk."""

    kind: ClassVar[str] = ""
    """What a record calls AgreeStop with this risk, where that has a name of its own."""

    @abstractmethod
    def evidence(self, index: Index, log_confidence: Floats, max_set_size: int) -> Evidence:
        """log ρ (b, C) and log e (b,) from log-confidences (b, K, C).

        The index is one checkpoint, or one for each input.
        """

    def over_time(self, data: Scores, max_set_size: int) -> Evidence:
        """Evidence (n, M, ...) of scores at all their times, which the risk must be cut to."""
        checkpoints = range(len(data.times))
        cells = ((index, at_checkpoint(data, index)) for index in checkpoints)
        return Evidence.stack([self.evidence(*cell, max_set_size) for cell in cells])

    reads_answers: ClassVar[bool] = False
    """Whether it reads open answers in place of log-confidences."""

    def logits(self, index: Index, log_confidence: Floats) -> Floats:
        """Pooled logits (b, C), for the risks of the nodes of a tree."""
        raise InputError(f"a tree needs pooled confidences, and {type(self).__name__} has none.")

    pools_classes: ClassVar[bool] = False
    """Whether it has `logits`."""

    def check_size(self, max_set_size: int) -> None:
        """Refuse another I than the risk was learned for."""
        return

    def own_limit(self, alpha: Fraction) -> float:
        """The log-risk below which the risk itself says that misses are rarer than alpha."""
        return math.log(alpha)

    @property
    def is_default(self) -> bool:
        """Whether it is the risk that a rule has without being given one."""
        return False

    @property
    def tunable(self) -> bool:
        """Whether another risk may stand in its place."""
        return True

    @property
    def takes_temperatures(self) -> bool:
        """Whether the risk has no temperatures and may have one for each checkpoint."""
        return False

    def with_temperatures(self, tuning: Scores) -> "Risk":
        """The risk with temperatures fitted on tuning scores, where it takes some."""
        return self

    def shaped(
        self, offsets: Floats, times: tuple[float, ...], rows: TunedRows | None
    ) -> "ShapedRisk":
        """The risk with an offset for each time (M,), which remembers the tuning rows."""
        return ShapedRisk(self, offsets, times, rows)


@dataclass(frozen=True, eq=False)
class TopMass(Fitted, Risk, KeptInFiles):
    """The posterior mass of all but the I most probable classes.

    Parameters
    ----------
    pooling : MergeConfidence
        How the members' confidences are pooled.
    temperatures : array (M,), optional
        Factors of the pooled log-confidence; `TopMass.fit` finds them on tuning data.
    times : tuple of float, optional
        The times of the temperatures.
    tuned : TunedRows, optional
        The rows that were used to fit it.

    Examples
    --------
    >>> import agreestop as ag
    >>> tuning, calibration = ag.simulate_scores(400, steps=20, K=3, C=4).split(0.5, 0.5)
    >>> rule = ag.AgreeStop(0.9, range(1, 21), 1, risk=ag.TopMass.fit(tuning))
    >>> rule.calibrate(calibration).n
    200
    """

    pooling: MergeConfidence = MODEL_AVERAGE
    temperatures: Floats | None = field(default=None, metadata={"per_checkpoint": True})
    times: tuple[float, ...] | None = None
    tuned: TunedRows | None = None

    _learn = staticmethod(fit_temperatures)

    def __post_init__(self) -> None:
        pooling_of(self.pooling)
        if self.temperatures is not None:
            fix_numbers(self, "temperatures", positive=True)

    pools_classes = True

    def logits(self, index: Index, log_confidence: Floats) -> Floats:
        pooled = self.pooling.pool(log_confidence)
        if self.temperatures is None:
            return pooled
        return tempered(np.asarray(self.temperatures[index])[..., None], pooled)

    def tails(self, index: Index, log_confidence: Floats) -> Tails:
        """The pooled order of the classes."""
        return Tails.of(self.logits(index, log_confidence))

    def evidence(self, index: Index, log_confidence: Floats, max_set_size: int) -> Evidence:
        tails = self.tails(index, log_confidence)
        return tails.evidence(tails.outside(max_set_size))

    def rounding(self, base: Rounding) -> Rounding:
        return base.scaled(1.0 if self.temperatures is None else self.temperatures)

    def cut(self, checkpoints: tuple[float, ...]) -> Self:
        return self if self.temperatures is None else super().cut(checkpoints)

    @property
    def is_default(self) -> bool:
        return self.temperatures is None and self.pooling == MODEL_AVERAGE

    @property
    def takes_temperatures(self) -> bool:
        return self.temperatures is None

    def with_temperatures(self, tuning: Scores) -> Risk:
        return TopMass.fit(tuning, pooling=self.pooling)

    def numbers(self, count: int) -> RiskNumbers | None:
        return RiskNumbers.of(self.pooling, self.temperatures, count)


@dataclass(frozen=True, eq=False)
class FixedTime(Risk, KeptInFiles):
    """A risk that only falls with time, so that all inputs stop at one checkpoint.

    It is the baseline that every early stop has to beat. `AgreeStop(..., fill=True,
    risk=FixedTime())` answers the I most probable classes at the earliest checkpoint that
    calibration allows. Where it allows none, the answer comes at the last checkpoint and may be
    larger.

    Parameters
    ----------
    pooling : MergeConfidence
        How the members' confidences are pooled.

    Examples
    --------
    >>> import agreestop as ag
    >>> scores, test = ag.simulate_scores(400, steps=20, K=3, C=4).split(0.5, 0.5)
    >>> rule = ag.AgreeStop(0.8, range(1, 21), 1, fill=True, risk=ag.FixedTime())
    >>> len(set(rule.calibrate(scores).decide(test).stop_time.tolist()))
    1
    """

    pooling: MergeConfidence = MODEL_AVERAGE

    kind = "fixedtime"

    def __post_init__(self) -> None:
        pooling_of(self.pooling)

    def evidence(self, index: Index, log_confidence: Floats, max_set_size: int) -> Evidence:
        # The risk stays above log ρ ≤ 0, so that a threshold first shrinks the last answer and only
        # then allows earlier stops.
        risk = np.full(len(log_confidence), 1.0 / (np.asarray(index) + 1.0))
        return Tails.of(self.pooling.pool(log_confidence)).evidence(risk)

    def rounding(self, base: Rounding) -> Rounding:
        """The rounding of log-masses; the risk itself is above them, and exact."""
        return replace(base.scaled(1.0), exact_above=0.0)

    def own_limit(self, alpha: Fraction) -> float:
        raise InputError(
            "accumulated=True stops where the risk is below 1 - target, which a fixed time never "
            "is: give another risk."
        )

    @property
    def tunable(self) -> bool:
        return False

    def numbers(self, count: int) -> RiskNumbers | None:
        return RiskNumbers.of(self.pooling, None, count, fixed_time=True)


class ShapedRisk(ShapedOverTime[Risk], Risk, KeptInFiles):
    """A risk whose threshold is shaped over time.

    It stops when e_t < λ · exp(offset_t), and keeps classes with ρ_t ≥ λ · exp(offset_t).

    Parameters
    ----------
    base : Risk
        The risk without its shape.
    offsets : array (M,)
        One for each checkpoint; -inf for a checkpoint at which nothing stops. `tune` finds them.
    times : tuple of float, optional
        The times of the offsets.
    rows : TunedRows, optional
        The rows the offsets were fitted on, where the base does not know them already.

    Examples
    --------
    >>> import agreestop as ag
    >>> risk = ag.ShapedRisk.per_time(ag.TopMass(), range(1, 21), power=0.5)
    >>> ag.AgreeStop(0.9, range(1, 21), 1, risk=risk).max_set_size
    1
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if not ((np.abs(self.offsets) <= LARGEST_CONSTANT) | (self.offsets == -np.inf)).all():
            raise InputError(
                "offsets holds nan, inf or a number that is too large: give numbers of at most "
                f"{LARGEST_CONSTANT:g} in size, or -inf for a checkpoint at which nothing stops."
            )

    @classmethod
    def per_time(cls, base: Risk, times: Sequence[float], power: float = 1.0) -> Self:
        """The shape (t/T)^power: the risk that is tolerated grows with the time waited."""
        known = as_checkpoints(times)
        return cls(base, power * np.log(np.array(known) / known[-1]), known)

    def check_size(self, max_set_size: int) -> None:
        self.base.check_size(max_set_size)

    def evidence(self, index: Index, log_confidence: Floats, max_set_size: int) -> Evidence:
        evidence = self.base.evidence(index, log_confidence, max_set_size)
        return evidence.minus(self.offsets[index])


@dataclass(frozen=True, eq=False, repr=False)
class Gate(ShapedRisk, KeptInFiles):
    """When an input first looks ready. Make one with `Gate.fit`, on tuning data.

    Parameters
    ----------
    base : Risk
        The risk.
    offsets : array (M,)
        κ at each checkpoint.
    times : tuple of float
        The times of the checkpoints.
    rows : TunedRows, optional
        The tuning rows.
    slack : float
        The gate opens where log e_t - κ_t is below this.
    ends : tuple of float
        The last time of each block.

    Examples
    --------
    >>> import agreestop as ag
    >>> scores = ag.simulate_scores(800, steps=20, K=3, C=4, pace=5.0)
    >>> tuning, calibration = scores.split(0.5, 0.5)
    >>> gate = ag.Gate.fit(tuning, target=0.9, max_set_size=1, blocks=(10,))
    >>> gate.block_names
    ('ready in (0, 10]', 'ready in (10, 20]', 'never ready')
    >>> ag.AgreeStop(0.9, range(1, 21), 1, gate=gate).calibrate(calibration).thresholds.shape
    (3,)
    """

    slack: float = SLACKS[0]
    ends: tuple[float, ...] = ()

    kind = "gatedagreestop"

    def __post_init__(self) -> None:
        super().__post_init__()
        rising = list(self.ends) == sorted(set(self.ends))
        if self.times is None or not self.ends or not rising or self.ends[-1] < self.times[-1]:
            raise InputError(
                f"ends is {self.ends}: give times in increasing order, the last one not before the "
                "last checkpoint."
            )
        if not (is_number(self.slack) or self.slack == np.inf):
            raise InputError(f"slack is {self.slack!r}: give a number.")

    def __repr__(self) -> str:
        return f"Gate(base={type(self.base).__name__}, ends={self.ends}, slack={self.slack:g})"

    @property
    def blocks(self) -> Integers:
        """(M,) the block of each checkpoint; never opening is block len(ends)."""
        return np.searchsorted(np.array(self.ends), np.array(self.times))

    def opened(self, log_risk: Floats) -> tuple[Booleans, Integers]:
        """Where the gate is open, (n, M), and the block of each input (n,).

        log_risk: shaped log-risks (n, M).
        """
        return opened_at(log_risk, self.slack, self.blocks, len(self.ends))

    @property
    def block_names(self) -> tuple[str, ...]:
        """The blocks in words: "ready in (0, 10]", "ready in (10, 20]", ..., "never ready"."""
        spans = zip((0, *self.ends[:-1]), self.ends, strict=True)
        return (*(f"ready in ({start:g}, {end:g}]" for start, end in spans), "never ready")

    def own_limit(self, alpha: Fraction) -> float:
        return 0.0

    @property
    def tunable(self) -> bool:
        return False

    @staticmethod
    def count_blocks(n_calibration: int, target: Target) -> int:
        """A number of blocks for n calibration examples: from 2 to 4.

        n·α/blocks is at least 6 where it can be. Fewer examples in a block make its threshold,
        which is the ⌊(n_b + 1)α⌋-th smallest of n_b, needlessly safe.
        """
        allowed = as_count(n_calibration, "n_calibration") * (1 - as_target(target))
        return min(max(int(allowed / MISSES), FEWEST), MOST)

    @classmethod
    def fit(
        cls,
        scores_or_log_confidence: ScoresLike,
        labels: ArrayLike | None = None,
        times: Sequence[float] | None = None,
        *,
        target: Target,
        max_set_size: int,
        blocks: int | Sequence[float] = 4,
        risk: Risk | None = None,
    ) -> Self:
        """A gate from tuning data. Calibration and test must not use these rows.

        Parameters
        ----------
        scores_or_log_confidence : Scores, or array (n, M, K, C)
            Tuning scores, or log-confidences with labels (n,).
        labels, times : optional
            For log-confidences.
        target, max_set_size
            As in the rule that the gate is for.
        blocks : int or sequence of float
            A number of blocks, which then hold about as many tuning inputs each, or the ends of the
            blocks: (10, 20, 40) divides the times into (0, 10], (10, 20], (20, 40] and (40, T].
            `Gate.count_blocks` says how many blocks suit how many calibration examples.
        risk : Risk
            `TopMass()` unless another is given.
        """
        alpha, size = float(1 - as_target(target)), as_max_set_size(max_set_size)
        data = as_scores(scores_or_log_confidence, labels, times)
        truth, known = labels_of(data), data.times
        if len(truth) < LEAST_ROWS:
            raise InputError(
                f"there are {len(truth)} tuning rows: a gate needs at least {LEAST_ROWS}."
            )
        base = TopMass() if risk is None else risk
        fitted = base.cut(known)  # the base is kept as fitted, so that rules may cut it themselves
        failures = BestClasses(size).failures(fitted.over_time(data, size), truth, None)
        rounding = fitted.rounding(Rounding.of(data.log_confidence, data.rounding))
        offsets, slack, ends = fit_gate(failures, known, blocks, alpha, rounding)
        rows = TunedRows.of(data.log_confidence, data.ids)
        return cls(base, offsets, known, rows, slack, ends)
