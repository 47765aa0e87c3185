"""How sure the best I classes are, for AgreeStop: fixed before calibration.

    π_t(c)   posterior: softmax(τ_t · g_t), g_t the pooled log-confidence; classes ordered by it, ties by lowest index
    ρ_t(c)   π_t-mass of c and of all classes ranked after it
    e_t      risk that the label is not among the I most probable classes; TopMass: their missing mass, ρ_t of rank I + 1

`LearnedRisk` is logistic regression on how the members agree: e_t = σ(b + Σ_j w_j φ_j(x, t)), fitted on the tuning split to "the label is
not among the I most probable classes". scikit-learn fits it; what is kept are plain arrays, and numpy evaluates it.

All in logarithms and as sums of the tail: 1 - Σ would cancel to 0 for confident networks, and then nothing stops.
A risk gives the rule an `Evidence`: its values are log ρ of every class, its log_risk is log e.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import Booleans, Floats, InputError, Integers, is_number, needs

from .checks import as_checkpoints, as_max_set_size
from .confidence import tempered
from .evidence import Evidence
from .merging import MODEL_AVERAGE, MergeConfidence
from .ranking import Index
from .rounding import Rounding
from .rule_files import KeptInFiles
from .score_files import ScoresLike, as_scores, at_checkpoint, labels_of
from .scores import LARGEST_CONSTANT, Fitted, ShapedOverTime, Tunable, fit_temperatures, fix_numbers, pooling_of
from .tuned_rows import TunedRows, cut_fitted


class Risk(Tunable, Protocol):
    """Anything that turns the log-confidences of one checkpoint into an order of the classes and a risk."""

    def check_size(self, max_set_size: int) -> None:
        """Refuse another I than the risk was learned for."""
        ...

    def evidence(self, index: Index, log_confidence: Floats, max_set_size: int) -> Evidence:
        """log ρ (b, C) and log e (b,) from log-confidences (b, K, C) at one checkpoint, or at one checkpoint for each input."""
        ...


@dataclass(frozen=True, eq=False)
class Tails:
    """Classes in order of probability, and the log-mass of each and of all after it, both (b, C)."""

    order: Integers
    log_mass: Floats

    @classmethod
    def of(cls, logits: Floats) -> Self:
        order = np.negative(logits).argsort(axis=-1, kind="stable")
        ranked = logits[np.arange(len(logits))[:, None], order]
        mass = np.logaddexp.accumulate(ranked[:, ::-1], axis=-1)[:, ::-1]
        return cls(order, mass - mass[:, :1])

    def outside(self, count: int) -> Floats:
        """Log-mass of all but the `count` most probable classes; -∞ if there are no others."""
        if count >= self.log_mass.shape[1]:
            return np.full(len(self.log_mass), -np.inf)
        return self.log_mass[:, count]

    def evidence(self, log_risk: Floats) -> Evidence:
        """log ρ in the order of the class indices, with the risk (b,)."""
        by_class = np.empty(self.log_mass.shape)
        by_class[np.arange(len(by_class))[:, None], self.order] = self.log_mass
        return Evidence(by_class, log_risk)


@dataclass(frozen=True, eq=False)
class TopMass(Fitted, KeptInFiles):
    """The posterior mass of all but the I most probable classes; `TopMass.fit` gives the posterior a temperature per checkpoint."""

    pooling: MergeConfidence = MODEL_AVERAGE
    temperatures: Floats | None = field(default=None, metadata={"per_checkpoint": True})
    times: tuple[float, ...] | None = None
    tuned: TunedRows | None = None

    _learn = staticmethod(fit_temperatures)

    def __post_init__(self) -> None:
        pooling_of(self.pooling)
        if self.temperatures is not None:
            fix_numbers(self, "temperatures", positive=True)

    def check_size(self, max_set_size: int) -> None:
        """Any I will do."""

    def tails(self, index: Index, log_confidence: Floats) -> Tails:
        pooled = self.pooling.pool(log_confidence)
        return Tails.of(pooled if self.temperatures is None else tempered(np.asarray(self.temperatures[index])[..., None], pooled))

    def evidence(self, index: Index, log_confidence: Floats, max_set_size: int) -> Evidence:
        tails = self.tails(index, log_confidence)
        return tails.evidence(tails.outside(max_set_size))

    def rounding(self, base: Rounding) -> Rounding:
        """The rounding of log-masses, from that of log-confidences."""
        return base.scaled(1.0 if self.temperatures is None else self.temperatures)

    def cut(self, checkpoints: tuple[float, ...]) -> Self:
        return self if self.temperatures is None else super().cut(checkpoints)


@dataclass(frozen=True, eq=False)
class FixedTime(KeptInFiles):
    """A risk that only falls with time, so that all inputs stop at one checkpoint: the baseline that every early stop has to beat.

    `AgreeStop(..., fill=True, risk=FixedTime())` answers the I most probable classes at the earliest checkpoint that calibration allows.
    Where it allows none, the answer comes at the last checkpoint and may be larger.
    """

    pooling: MergeConfidence = MODEL_AVERAGE
    tuned: ClassVar[TunedRows | None] = None

    def __post_init__(self) -> None:
        pooling_of(self.pooling)

    def check_size(self, max_set_size: int) -> None:
        """Any I will do."""

    def evidence(self, index: Index, log_confidence: Floats, max_set_size: int) -> Evidence:
        # The risk stays above log ρ ≤ 0, so that a threshold first shrinks the last answer and only then allows earlier stops.
        risk = np.full(len(log_confidence), 1.0 / (np.asarray(index) + 1.0))
        return Tails.of(self.pooling.pool(log_confidence)).evidence(risk)

    def rounding(self, base: Rounding) -> Rounding:
        """The rounding of log-masses; the risk itself is above them, and exact."""
        return replace(base.scaled(1.0), exact_above=0.0)

    def cut(self, checkpoints: tuple[float, ...]) -> Self:
        return self


class ShapedRisk(ShapedOverTime[Risk], KeptInFiles):
    """A risk whose threshold is shaped over time: stop when e_t < λ · exp(offset_t), keep classes with ρ_t ≥ λ · exp(offset_t).

    `ShapedRisk.per_time(base, times)` tolerates a risk in proportion to the time waited, e_t < λ·(t/T)^power; `tune` finds freer shapes.
    `rows` are the tuning rows the offsets were fitted on, where the base risk does not know them already.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if not ((np.abs(self.offsets) <= LARGEST_CONSTANT) | (self.offsets == -np.inf)).all():
            advice = f"give numbers of at most {LARGEST_CONSTANT:g} in size, or -inf for a checkpoint at which nothing stops"
            raise InputError(f"offsets holds nan, inf or a number that is too large: {advice}.")

    @classmethod
    def per_time(cls, base: Risk, times: Sequence[float], power: float = 1.0) -> Self:
        """The shape (t/T)^power at the given times."""
        known = as_checkpoints(times)
        return cls(base, power * np.log(np.array(known) / known[-1]), known)

    def check_size(self, max_set_size: int) -> None:
        self.base.check_size(max_set_size)

    def evidence(self, index: Index, log_confidence: Floats, max_set_size: int) -> Evidence:
        return self.base.evidence(index, log_confidence, max_set_size).minus(self.offsets[index])


FEATURES = (
    "log mass outside the best I classes",
    "log mass outside the best class",
    "log ratio of the masses from rank I and from rank I + 1 on",
    "members' mean log mass outside the best I classes",
    "members' largest log mass outside the best I classes",
    "members' spread of the log mass outside the best I classes",
    "share of members with another best class",
    "log time",
    "log time × log mass outside the best I classes",
)
FLOOR = -30.0  # log masses below this are as good as none
MASSES = (1, 1, 2, 1, 1, 2, 0, 0)  # how many log masses the rounding of each feature is made of; the last has log time of them
LARGEST_WEIGHT = 1e30  # a feature that hardly varies in the tuning rows may get a large one; far larger ones would overflow


class NothingToLearn(InputError):
    """Tuning data on which the best classes never miss, or always."""


def agreement_features(log_confidence: Floats, tails: Tails, max_set_size: int, log_time: float | Floats) -> Floats:
    """The features (b, len(FEATURES)) of log-confidences (b, K, C) and their pooled order, the same for any order of the members."""
    batch, members, classes = log_confidence.shape
    best = tails.order[:, :max_set_size]
    outside = np.ones((batch, classes), dtype=bool)
    outside[np.arange(batch)[:, None], best] = False
    peak = log_confidence.max(axis=2, keepdims=True)
    mass = np.where(outside[:, None], np.exp(log_confidence - peak), 0.0)
    total = np.add.accumulate(np.sort(mass, axis=2), axis=2)[:, :, -1]
    own = np.sort(np.maximum(np.log(np.maximum(total, 1e-300)) + peak[:, :, 0], FLOOR), axis=1)
    mean = np.add.accumulate(own, axis=1)[:, -1] / members
    spread = np.sqrt(np.add.accumulate((own - mean[:, None]) ** 2, axis=1)[:, -1] / members)
    tail = np.maximum(tails.outside(max_set_size), FLOOR)
    dissent = np.count_nonzero(log_confidence.argmax(axis=2) != tails.order[:, :1], axis=1) / members
    columns = [tail, np.maximum(tails.outside(1), FLOOR), np.maximum(tails.outside(max_set_size - 1), FLOOR) - tail]
    columns += [mean, own[:, -1], spread, dissent, np.broadcast_to(log_time, batch), log_time * tail]
    return np.stack(columns, axis=1)


@dataclass(frozen=True, eq=False)
class LearnedRisk(KeptInFiles):
    """The risk that the best I classes miss, learned from how the members agree. Make one with `LearnedRisk.fit`."""

    posterior: TopMass
    max_set_size: int
    weights: Floats
    bias: float
    log_times: Floats = field(metadata={"per_checkpoint": True})
    times: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        fix_numbers(self, "weights", largest=LARGEST_WEIGHT)
        fix_numbers(self, "log_times")
        if not is_number(self.bias) or abs(self.bias) > LARGEST_WEIGHT:
            raise InputError(f"bias is {self.bias!r}: give a number of at most {LARGEST_WEIGHT:g} in size.")

    @classmethod
    def fit(
        cls,
        scores_or_log_confidence: ScoresLike,
        labels: ArrayLike | None = None,
        pooling: MergeConfidence | None = None,
        max_set_size: int = 3,
        times: Sequence[float] | None = None,
    ) -> Self:
        """Learn on tuning scores, or log-confidences (n, M, K, C) with labels (n,), for sets of `max_set_size`; needs scikit-learn."""
        size = as_max_set_size(max_set_size)
        posterior = TopMass.fit(scores_or_log_confidence, labels, pooling, times)
        data = as_scores(scores_or_log_confidence, labels, times)
        clock = np.array(data.times, dtype=np.float64)
        log_times = np.log(clock / clock[-1])
        features, misses = [], []
        for index, log_time in enumerate(log_times.tolist()):
            values = at_checkpoint(data, index)
            tails = posterior.tails(index, values)
            features.append(agreement_features(values, tails, size, log_time))
            misses.append((tails.order[:, :size] != labels_of(data)[:, None]).all(axis=1))
        weights, bias = _fit_logistic(np.concatenate(features), np.concatenate(misses))
        return cls(posterior, size, weights, bias, log_times, posterior.times)

    @property
    def tuned(self) -> TunedRows | None:
        return self.posterior.tuned

    def check_size(self, max_set_size: int) -> None:
        if max_set_size != self.max_set_size:
            raise InputError(
                f"the risk was learned for sets of {self.max_set_size} classes, but max_set_size is {max_set_size}: fit it again."
            )

    def evidence(self, index: Index, log_confidence: Floats, max_set_size: int) -> Evidence:
        tails = self.posterior.tails(index, log_confidence)
        features = agreement_features(log_confidence, tails, max_set_size, self.log_times[index])
        logit = np.full(len(features), self.bias)
        for column, weight in zip(features.T, self.weights, strict=True):
            logit += weight * column
        return tails.evidence(-np.logaddexp(0.0, -logit))

    def rounding(self, base: Rounding) -> Rounding:
        """The rounding of log-risks: what the weights make of the rounding of log-masses, which are at least FLOOR."""
        temperatures = self.posterior.temperatures
        steepest = np.maximum(1.0 if temperatures is None else temperatures, 1.0)
        mass = 2 * (np.asarray(base.absolute) - base.relative * FLOOR) * steepest
        sizes = np.abs(self.weights)
        masses = sizes[:-1] @ np.array(MASSES) + sizes[-1] * np.abs(self.log_times)
        return Rounding(mass * masses, base.relative)

    def cut(self, checkpoints: tuple[float, ...]) -> Self:
        return replace(cut_fitted(self, checkpoints), posterior=self.posterior.cut(checkpoints))


def _fit_logistic(features: Floats, misses: Booleans) -> tuple[Floats, float]:
    with needs("LearnedRisk.fit", advice="use TopMass.fit"):
        from sklearn.linear_model import LogisticRegression
    if misses.all() or not misses.any():
        state = "always" if misses.all() else "never"
        raise NothingToLearn(f"the best classes {state} miss the label on the tuning data, so there is nothing to learn: use TopMass.fit.")
    centre, scale = features.mean(axis=0), features.std(axis=0)
    scale[scale == 0] = 1.0
    model = LogisticRegression(max_iter=1000).fit((features - centre) / scale, misses)
    weights = np.asarray(model.coef_[0], dtype=np.float64) / scale
    return weights, float(model.intercept_[0] - weights @ centre)
