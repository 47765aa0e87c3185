"""Scores S_t(x, c), fixed before calibration: the less a class fits the input, the larger.

    LogLoss        S_t = -g_t                                   g_t: pooled log-confidence
    Temperature    S_t = -log softmax(τ_t · g_t)                τ_t: least log-loss on the tuning split
    TuningRanks    S_t = F_t(-g_t)                              F_t: distribution of the true label's loss on the tuning split
    Spread         S_t = base + β · spread of the members' losses
    Shaped         S_t = base - offset_t

One threshold serves all times in the simultaneous and stop-aware calibrations, so scores must be comparable across time:
raw losses are not, because counts grow. Whatever is fitted, is fitted on a tuning split that is neither calibration
nor test data, and remembers the rows it has seen.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import Floats, InputError, Integers, as_floats, check_finite, is_number

from .confidence import log_softmax, tempered
from .merging import MODEL_AVERAGE, MergeConfidence
from .rounding import Rounding, rounding_of
from .rule_files import KeptInFiles
from .score_files import Scores, ScoresLike, as_scores, at_checkpoint, labels_of
from .tuned_rows import TunedRows, cut_fitted


class Tunable(Protocol):
    """What scores and risks have in common."""

    @property
    def tuned(self) -> TunedRows | None:
        """The tuning rows that were used to fit it, if there were any."""
        ...

    def cut(self, checkpoints: tuple[float, ...]) -> Self:
        """The same score or risk, restricted to a rule's checkpoints."""
        ...


class Score(Tunable, Protocol):
    """Anything that turns the log-confidences of one checkpoint into a score for each class."""

    def losses(self, index: int, log_confidence: Floats) -> Floats:
        """Scores (b, C) at checkpoint `index` from log-confidences (b, K, C)."""
        ...


def pooling_of(pooling: MergeConfidence | None) -> MergeConfidence:
    """The confidence merging that a score or risk works on; model averaging if none is named."""
    if pooling is None:
        return MODEL_AVERAGE
    if not isinstance(pooling, MergeConfidence):
        raise InputError(f"pooling is {pooling!r}: scores and risks pool confidences; give MergeConfidence(r=...).")
    return pooling


@dataclass(frozen=True)
class LogLoss(KeptInFiles):
    """The pooled log-loss, -log M_r(f): the score of the paper."""

    pooling: MergeConfidence = MODEL_AVERAGE
    tuned: ClassVar[None] = None

    def losses(self, index: int, log_confidence: Floats) -> Floats:
        pooled = self.pooling.pool(log_confidence)
        return np.negative(pooled)

    def rounding(self, base: Rounding) -> Rounding:
        """The rounding of scores, from that of log-confidences."""
        return base

    def cut(self, checkpoints: tuple[float, ...]) -> Self:
        return self


def of_label(values: Floats, labels: Integers) -> Floats:
    """The entry of each row's own label, from values (n, C)."""
    return values[np.arange(len(values)), labels]


def fit_temperatures(data: Scores, pooling: MergeConfidence) -> Floats:
    """The τ_t of least log-loss at each checkpoint, by bisection on its derivative, which grows with τ."""
    labels = labels_of(data)
    return np.array([_fit_temperature(pooling.pool(at_checkpoint(data, index)), labels) for index in range(len(data.times))])


def _fit_temperature(pooled: Floats, labels: Integers) -> float:
    own = of_label(pooled, labels).mean()
    low, high = np.log(1e-3), np.log(1e3)
    for _ in range(26):
        middle = (low + high) / 2
        expected = (np.exp(log_softmax(np.exp(middle) * pooled)) * pooled).sum(axis=-1).mean()
        if expected > own:
            high = middle
        else:
            low = middle
    return float(np.exp((low + high) / 2))


LARGEST_CONSTANT = 1e9  # beyond it, rounding makes different classes equal, and an early answer could hold more than max_set_size


def fix_numbers(owner: Any, *names: str, positive: bool = False, largest: float = LARGEST_CONSTANT) -> None:
    """Bring the numbers of a score or risk to float64; refuse nan, infinity and absurd sizes, from which no threshold may come."""
    for name in names:
        values = as_floats(getattr(owner, name), name)
        check_finite(values, name)
        if (found := float(np.abs(values).max(initial=0))) > largest:
            raise InputError(f"{name} holds {found:.3g} in size: give numbers up to {largest:g}.")
        if positive and not (values > 0).all():
            raise InputError(f"{name} holds {values.min():.6g}: every one must be greater than 0.")
        object.__setattr__(owner, name, values)


class Fitted(ABC):
    """How scores and risks with fitted numbers for each checkpoint are made, and cut to a rule's checkpoints."""

    @classmethod
    def fit(
        cls,
        scores_or_log_confidence: ScoresLike,
        labels: ArrayLike | None = None,
        pooling: MergeConfidence | None = None,
        times: Sequence[float] | None = None,
    ) -> Self:
        """Fit on tuning scores, or on log-confidences (n, M, K, C) with labels (n,); with `times` rules may use some of them."""
        data = as_scores(scores_or_log_confidence, labels, times)
        merge = pooling_of(pooling)
        known = None if times is None and data is not scores_or_log_confidence else data.times
        return cls(merge, cls._learn(data, merge), known, TunedRows.of(data.log_confidence, data.ids))  # type: ignore[call-arg]

    @staticmethod
    @abstractmethod
    def _learn(data: Scores, pooling: MergeConfidence) -> Floats:
        """The fitted numbers, (M, ...)."""

    def cut(self, checkpoints: tuple[float, ...]) -> Self:
        return cut_fitted(self, checkpoints)


@dataclass(frozen=True, eq=False)
class Temperature(Fitted, KeptInFiles):
    """Log-loss at a temperature per checkpoint: the recommended score for stop-aware calibration."""

    pooling: MergeConfidence
    temperatures: Floats = field(metadata={"per_checkpoint": True})
    times: tuple[float, ...] | None = None
    tuned: TunedRows | None = None

    _learn = staticmethod(fit_temperatures)

    def __post_init__(self) -> None:
        pooling_of(self.pooling)
        fix_numbers(self, "temperatures", positive=True)

    def losses(self, index: int, log_confidence: Floats) -> Floats:
        return np.negative(log_softmax(tempered(self.temperatures[index], self.pooling.pool(log_confidence))))

    def rounding(self, base: Rounding) -> Rounding:
        """The rounding of scores, from that of log-confidences."""
        return base.scaled(self.temperatures)


QUANTILES = 64
BESIDE = 1e-4  # above the rounding of losses


@dataclass(frozen=True, eq=False)
class TuningRanks(Fitted, KeptInFiles):
    """The rank of a class's loss among the true labels' losses of the tuning split, at the same checkpoint.

    The distribution is kept as quantiles; between them ranks are interpolated, beyond them the loss itself goes on, so
    that the order of losses is never lost.
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
        pooled = [pooling.pool(at_checkpoint(data, index)) for index in range(len(data.times))]
        own = [-of_label(values, labels_of(data)) for values in pooled]
        return np.quantile(np.array(own), np.linspace(0, 1, QUANTILES), axis=1).T.copy()

    def losses(self, index: int, log_confidence: Floats) -> Floats:
        # Many inputs share a loss, and where quantiles repeat it the rank jumps: the jump stands a little beside it.
        loss = np.negative(self.pooling.pool(log_confidence)) - BESIDE
        grid = self.quantiles[index]
        inside = np.interp(loss, grid, np.linspace(0, 1, QUANTILES))
        return np.asarray(inside + np.maximum(loss - grid[-1], 0) + np.minimum(loss - grid[0], 0))

    def rounding(self, base: Rounding) -> Rounding:
        """The rounding of ranks: where quantiles lie close together, at most the rank between two of them."""
        gaps = np.diff(self.quantiles, axis=1)
        closest = np.where(gaps > 0, gaps, np.inf).min(axis=1)
        steepest = np.minimum(base.absolute / (QUANTILES - 1) / closest, 1 / (QUANTILES - 1))
        return base.plus(steepest)


@dataclass(frozen=True, eq=False)
class Spread(KeptInFiles):
    """A score plus β times the members' disagreement: the standard deviation of their losses for the class."""

    base: Score
    beta: float = 0.5

    def __post_init__(self) -> None:
        if not is_number(self.beta) or abs(self.beta) > LARGEST_CONSTANT:
            raise InputError(f"beta is {self.beta!r}: give a number of at most {LARGEST_CONSTANT:g} in size.")

    @property
    def tuned(self) -> TunedRows | None:
        return self.base.tuned

    def losses(self, index: int, log_confidence: Floats) -> Floats:
        ordered = np.sort(log_confidence, axis=-2)
        return np.asarray(self.base.losses(index, log_confidence) + self.beta * ordered.std(axis=-2))

    def rounding(self, base: Rounding) -> Rounding:
        """The rounding of scores, from that of log-confidences."""
        own, share = rounding_of(self.base, base), 2 * abs(self.beta)
        return replace(own.plus(share * base.absolute), relative=own.relative + share * base.relative)

    def cut(self, checkpoints: tuple[float, ...]) -> Self:
        return replace(self, base=self.base.cut(checkpoints))


Base = TypeVar("Base", bound=Tunable)


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
        if self.rows is None or self.times is None or self.rows.is_cut:
            return self.base.tuned if self.rows is None else self.rows.also(self.base.tuned)
        return self.cut(self.times).tuned  # the base may have been fitted at other times

    def rounding(self, base: Rounding) -> Rounding:
        """The rounding of the base, and of the offsets, which change the size of its numbers."""
        own = rounding_of(self.base, base)
        return own.plus(own.relative * np.where(np.isfinite(self.offsets), np.abs(self.offsets), 0.0))

    def cut(self, checkpoints: tuple[float, ...]) -> Self:
        return replace(cut_fitted(self, checkpoints), base=self.base.cut(checkpoints))


class Shaped(ShapedOverTime[Score], KeptInFiles):
    """A score less an offset per checkpoint: a threshold shaped over time, S_t ≤ λ + offset_t. `tune` finds offsets.

    `rows` are the tuning rows the offsets were fitted on, where the base score does not know them already.
    """

    def __post_init__(self) -> None:
        fix_numbers(self, "offsets")

    def losses(self, index: int, log_confidence: Floats) -> Floats:
        return np.asarray(self.base.losses(index, log_confidence) - self.offsets[index])
