"""The rules: what the user asks for, before any calibration data.

    SpikeCP    sets of plausible classes; stop when a set is small enough. Bonferroni, simultaneous or stop-aware calibration
    AgreeStop  answer the best I classes once their risk is small enough
    DCSNN      stop when the top confidence reaches a threshold found on the calibration data; no guarantee
    SEENN      the same with a threshold that the user fixes; no guarantee

A rule knows three things: `evidence`, what it reads off an input at a checkpoint (fixed before calibration); `fit`, how labelled
evidence becomes a policy; and `promise`, what then holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from .calibrated import CalibratedRule, calibrate
from .checks import Floats, InputError, Integers, as_checkpoints, as_max_set_size
from .first_failures import first_failures
from .levels import Target, as_delta, as_target, in_words, least_n, order_statistic, quantile_rank
from .merging import merging_factor, prefix_factor
from .policies import (
    CheckpointThresholds,
    ConfidenceThreshold,
    MemberVotes,
    MergedPValues,
    Policy,
    RankPooling,
    RiskThreshold,
    RunningThreshold,
    StoppingThreshold,
)
from .pooling import MajorityVote, MergeConfidence, MergePValues, MergeRanks, Pooling
from .ranking import MergedRanks, PooledRanks
from .risks import Risk, TopMass
from .scores import LogLoss, Score
from .stop_aware import StopProfile, earliest_threshold, last_failures
from .tuned_rows import TunedRows


class Rule(Protocol):
    """What `calibrate`, `repeat_splits` and the files need of a rule."""

    @property
    def checkpoints(self) -> tuple[float, ...]: ...
    @property
    def max_set_size(self) -> int: ...
    @property
    def tuned(self) -> TunedRows | None: ...
    def check_members(self, members: int) -> None: ...
    def evidence(self, index: int, log_confidence: Floats) -> Floats: ...
    def fit(self, evidence: Floats, labels: Integers, classes: int) -> Policy: ...
    def promise(self) -> str: ...
    def shortage(self, labels: Integers, members: int, classes: int) -> str: ...
    def examples_needed(self, K: int = 1) -> int: ...
    def calibrate(self, log_confidence: ArrayLike, labels: ArrayLike, times: Sequence[float] | None = None) -> CalibratedRule: ...


CALIBRATIONS = ("bonferroni", "simultaneous", "stop-aware")


def _groups(labels: Integers, classes: int, class_conditional: bool) -> list[Integers]:
    """The rows that share a quantile: all, or one group for each class."""
    if not class_conditional:
        return [np.arange(len(labels))]
    return [np.flatnonzero(labels == label) for label in range(classes)]


def _own(evidence: Floats, labels: Integers) -> Floats:
    """The true label's entry along the class axis, which is the last."""
    return evidence[np.arange(len(labels)), ..., labels]


def _promise(target: Fraction, class_conditional: bool, delta: Fraction | None) -> str:
    whom = "for each true class, " if class_conditional else ""
    if delta is None:
        return (
            f"{whom}the answer holds the true class with probability at least {in_words(target)}, over the draw of the calibration "
            "examples and of a new example exchangeable with them."
        )
    return (
        f"{whom}with probability at least {in_words(1 - delta)} over the draw of the calibration examples, the answer holds the true class "
        f"of a new example with probability at least {in_words(target)}; calibration and new examples must be i.i.d."
    )


def _shortage(rule: Rule, labels: Integers, members: int, classes: int, class_conditional: bool) -> str:
    """One sentence if the rule can never exclude a label with these calibration examples, else an empty string."""
    needed = rule.examples_needed(members)
    if not class_conditional:
        if len(labels) >= needed:
            return ""
        return (
            f"With {len(labels)} calibration examples this rule can never exclude a label, so its sets stay full and nothing stops early: "
            f"it needs at least {needed}."
        )
    counts = np.bincount(labels, minlength=classes)
    rare = np.flatnonzero(counts < needed)
    if not len(rare):
        return ""
    names = ", ".join(f"class {label} has {counts[label]}" for label in rare[:5]) + (", …" if len(rare) > 5 else "")
    return f"Class-conditional calibration needs at least {needed} examples of each class, but {names}: such classes can never be excluded."


@dataclass(frozen=True, eq=False)
class SpikeCP:
    """Conformal sets at checkpoints; stop at the first set of at most `max_set_size` classes (I_th).

    target             p_targ: 0.9, "0.9", Fraction or "9/10", taken exactly
    checkpoints        times at which the rule may stop, increasing
    pooling            MergeConfidence, MergePValues, MergeRanks or MajorityVote; None for one member or with a score that pools
    calibration        "bonferroni" (the paper), "simultaneous" or "stop-aware"
    score              a score fixed before calibration, such as Temperature.fit(...); None is the pooled log-loss
    class_conditional  the promise for each true class by itself
    delta              δ: the promise given the calibration data, with probability ≥ 1 - δ over their draw
    """

    target: Target
    checkpoints: Sequence[float]
    max_set_size: int
    pooling: Pooling | None = None
    calibration: str = "bonferroni"
    score: Score | None = None
    class_conditional: bool = False
    delta: Target | None = None

    def __post_init__(self) -> None:
        _settle(self)
        if self.calibration not in CALIBRATIONS:
            raise InputError(f"calibration is {self.calibration!r}: choose one of {', '.join(CALIBRATIONS)}.")
        pooling = self.pooling
        if pooling is not None and not isinstance(pooling, (MergeConfidence, MergePValues, MergeRanks, MajorityVote)):
            raise InputError(f"pooling is {pooling!r}: give MergeConfidence, MergePValues, MergeRanks, MajorityVote or None.")
        if self.score is not None:
            if not hasattr(self.score, "losses"):
                raise InputError(f"score is {self.score!r}: give a fitted score such as Temperature.fit(...), or None for the log-loss.")
            if pooling is not None:
                raise InputError(f"the score pools its members itself, but pooling is {pooling!r}: give pooling=None.")
            object.__setattr__(self, "score", self.score.cut(self._times))
        if self._by_rank:
            name = type(pooling).__name__
            if self.calibration != "bonferroni":
                raise InputError(
                    f"{name} has no guarantee with {self.calibration} calibration: use calibration='bonferroni', or pooling=MergeConfidence(r=...)."
                )
            if self.class_conditional or self.delta is not None:
                raise InputError(
                    f"{name} has no class-conditional or training-conditional guarantee: use pooling=MergeConfidence(r=...), "
                    "or drop class_conditional and delta."
                )

    @property
    def _times(self) -> tuple[float, ...]:
        return tuple(self.checkpoints)

    @property
    def _by_rank(self) -> bool:
        return isinstance(self.pooling, (MergePValues, MergeRanks, MajorityVote))

    @property
    def _alpha(self) -> Fraction:
        """α/M under Bonferroni, α elsewhere."""
        alpha = 1 - as_target(self.target)
        return alpha / len(self.checkpoints) if self.calibration == "bonferroni" else alpha

    @property
    def _delta(self) -> Fraction | None:
        delta = as_delta(self.delta)
        return delta / len(self.checkpoints) if delta is not None and self.calibration == "bonferroni" else delta

    @property
    def tuned(self) -> TunedRows | None:
        return None if self.score is None else self.score.tuned

    def check_members(self, members: int) -> None:
        if members > 1 and self.pooling is None and self.score is None:
            raise InputError(
                f"log_confidence has {members} members but pooling is None: give pooling=MergeConfidence(r=1), or another, or a score that pools."
            )

    def evidence(self, index: int, log_confidence: Floats) -> Floats:
        if self._by_rank:
            return np.negative(log_confidence)
        if self.score is not None:
            return self.score.losses(index, log_confidence)
        pooling = self.pooling if isinstance(self.pooling, MergeConfidence) else MergeConfidence()
        return LogLoss(pooling).losses(index, log_confidence)

    def _threshold(self, values: Floats) -> float:
        return order_statistic(values, quantile_rank(len(values), 1 - self._alpha, self._delta))

    def fit(self, evidence: Floats, labels: Integers, classes: int) -> Policy:
        groups = _groups(labels, classes, self.class_conditional)
        if self.calibration == "simultaneous":
            worst = _own(evidence, labels).max(axis=1)
            return RunningThreshold(np.array([self._threshold(worst[rows]) for rows in groups]), self.max_set_size)
        if self.calibration == "stop-aware":
            profile = StopProfile.of(evidence, self.max_set_size)
            failures = last_failures(evidence, labels, profile)
            floor = max(self._threshold(failures[rows]) for rows in groups)
            threshold = earliest_threshold(profile, np.array(self.checkpoints, dtype=np.float64), floor)
            return StoppingThreshold(threshold, self.max_set_size)
        own = _own(evidence, labels)
        level = self._alpha * (len(labels) + 1)
        match self.pooling:
            case MergePValues():
                calibration = np.sort(np.moveaxis(own, 0, -1), axis=-1)
                return MergedPValues(MergedRanks(calibration, level, self.pooling), self.max_set_size)
            case MergeRanks(r=r):
                return RankPooling(PooledRanks(np.ascontiguousarray(np.moveaxis(own, 0, -1)), level, r), self.max_set_size)
            case MajorityVote():
                rank = quantile_rank(len(labels), 1 - self._alpha / 2)
                votes = [[order_statistic(own[:, m, k], rank) for k in range(own.shape[2])] for m in range(own.shape[1])]
                return MemberVotes(np.array(votes), self.max_set_size)
            case _:
                thresholds = [[self._threshold(own[rows, m]) for rows in groups] for m in range(own.shape[1])]
                return CheckpointThresholds(np.array(thresholds), self.max_set_size)

    def promise(self) -> str:
        words = _promise(as_target(self.target), self.class_conditional, as_delta(self.delta))
        if isinstance(self.pooling, MergePValues) and self.pooling.form == "exchangeable":
            words += " The members must be exchangeable, in an order fixed before any data; the probability is over their draw too."
        if isinstance(self.pooling, MergePValues) and self.pooling.form == "randomized":
            words += " The probability is over the input's uniform number too."
        return words

    def shortage(self, labels: Integers, members: int, classes: int) -> str:
        return _shortage(self, labels, members, classes, self.class_conditional)

    def examples_needed(self, K: int = 1) -> int:
        """The least n with which K members could ever exclude a label; with class_conditional, of each class."""
        match self.pooling:
            case MajorityVote():
                return least_n(1 - self._alpha / 2)
            case MergePValues(r=r, form=form):
                factor = {"any": lambda: merging_factor(r, K, self.pooling.table), "exchangeable": lambda: prefix_factor(r), "randomized": lambda: 1.0}
                return max(1, math.ceil(Fraction(factor[form]()) / self._alpha - 1))
            case _:
                return least_n(1 - self._alpha, self._delta)

    def calibrate(self, log_confidence: ArrayLike, labels: ArrayLike, times: Sequence[float] | None = None) -> CalibratedRule:
        """Calibrate on log-confidences (n, M, K, C) with labels (n,); with `times` a longer array is cut to the checkpoints."""
        return calibrate(self, log_confidence, labels, times)


@dataclass(frozen=True, eq=False)
class AgreeStop:
    """Stop when the best `max_set_size` classes are sure enough: the estimated risk that they miss falls under a calibrated threshold.

    fill=False answers, of those classes, only the ones that the threshold keeps (smaller sets); fill=True answers all of them and
    stops a little earlier. Targets and the conditional variants are those of SpikeCP.
    """

    target: Target
    checkpoints: Sequence[float]
    max_set_size: int
    fill: bool = False
    risk: Risk = field(default_factory=TopMass)
    class_conditional: bool = False
    delta: Target | None = None

    def __post_init__(self) -> None:
        _settle(self)
        if not hasattr(self.risk, "evidence"):
            raise InputError(f"risk is {self.risk!r}: give TopMass(...), TopMass.fit(...) or LearnedRisk.fit(...).")
        object.__setattr__(self, "risk", self.risk.cut(tuple(self.checkpoints)))

    @property
    def tuned(self) -> TunedRows | None:
        return self.risk.tuned

    def check_members(self, members: int) -> None:
        """Any number of members will do: the risk pools them."""

    def evidence(self, index: int, log_confidence: Floats) -> Floats:
        return self.risk.evidence(index, log_confidence, self.max_set_size)

    def fit(self, evidence: Floats, labels: Integers, classes: int) -> Policy:
        failures = first_failures(evidence, labels, self.max_set_size, self.fill)
        thresholds = []
        for rows in _groups(labels, classes, self.class_conditional):
            n = len(rows)
            allowed = n + 1 - quantile_rank(n, as_target(self.target), as_delta(self.delta))
            thresholds.append(order_statistic(failures[rows], allowed))
        return RiskThreshold(min(thresholds), self.max_set_size, self.fill)

    def promise(self) -> str:
        return _promise(as_target(self.target), self.class_conditional, as_delta(self.delta))

    def shortage(self, labels: Integers, members: int, classes: int) -> str:
        return _shortage(self, labels, members, classes, self.class_conditional)

    def examples_needed(self, K: int = 1) -> int:
        """The least n with which the rule could ever stop early; with class_conditional, of each class."""
        return least_n(as_target(self.target), as_delta(self.delta))

    def calibrate(self, log_confidence: ArrayLike, labels: ArrayLike, times: Sequence[float] | None = None) -> CalibratedRule:
        """Calibrate on log-confidences (n, M, K, C) with labels (n,); with `times` a longer array is cut to the checkpoints."""
        return calibrate(self, log_confidence, labels, times)


GRID = tuple(i / 100 for i in range(1, 100))


@dataclass(frozen=True, eq=False)
class DCSNN:
    """Stop when the top confidence reaches p_th: the smallest of the grid whose calibration accuracy is at least the target.

    If none is, the smallest p_th of greatest calibration accuracy. Ensembles average their confidences. It answers its top
    `max_set_size` classes. There is no guarantee: the accuracy is that of the calibration data.
    """

    target: Target
    checkpoints: Sequence[float]
    max_set_size: int
    grid: Sequence[float] = GRID

    def __post_init__(self) -> None:
        _settle(self)
        grid = tuple(float(value) for value in self.grid)
        if not grid or not all(0 < value <= 1 for value in grid) or list(grid) != sorted(set(grid)):
            raise InputError("grid must hold increasing confidences between 0 and 1, for example (0.5, 0.6, 0.7, 0.8, 0.9).")
        object.__setattr__(self, "grid", grid)

    @property
    def tuned(self) -> None:
        return None

    def check_members(self, members: int) -> None:
        """Any number of members will do: their confidences are averaged."""

    def evidence(self, index: int, log_confidence: Floats) -> Floats:
        return MergeConfidence().pool(log_confidence)

    def fit(self, evidence: Floats, labels: Integers, classes: int) -> Policy:
        top, right = evidence.max(axis=2), evidence.argmax(axis=2) == labels[:, None]
        rows = np.arange(len(labels))
        best, chosen = -1, self.grid[0]
        for threshold in self.grid:
            reached = top >= math.log(threshold)
            reached[:, -1] = True
            correct = int(right[rows, reached.argmax(axis=1)].sum())
            if correct >= as_target(self.target) * len(labels):
                chosen = threshold
                break
            if correct > best:
                best, chosen = correct, threshold
        return ConfidenceThreshold(math.log(chosen), self.max_set_size)

    def promise(self) -> str:
        return "no guarantee: the confidence threshold met the target accuracy on the calibration data, or came as near as it could."

    def shortage(self, labels: Integers, members: int, classes: int) -> str:
        return ""

    def examples_needed(self, K: int = 1) -> int:
        """One example is enough to choose a threshold; no number of them makes it a guarantee."""
        return 1

    def calibrate(self, log_confidence: ArrayLike, labels: ArrayLike, times: Sequence[float] | None = None) -> CalibratedRule:
        """Choose p_th on log-confidences (n, M, K, C) with labels (n,); with `times` a longer array is cut to the checkpoints."""
        return calibrate(self, log_confidence, labels, times)


@dataclass(frozen=True, eq=False)
class SEENN:
    """SEENN-I: stop when the top confidence reaches a threshold that the user fixed for a time budget; answer the top classes.

    Calibration data only say how many members and classes there are. There is no guarantee.
    """

    threshold: float
    checkpoints: Sequence[float]
    max_set_size: int

    def __post_init__(self) -> None:
        _settle(self)
        if not isinstance(self.threshold, (int, float)) or not 0 < self.threshold <= 1:
            raise InputError(f"threshold is {self.threshold!r}: give the confidence at which to stop, between 0 and 1.")

    @property
    def tuned(self) -> None:
        return None

    def check_members(self, members: int) -> None:
        """Any number of members will do: their confidences are averaged."""

    def evidence(self, index: int, log_confidence: Floats) -> Floats:
        return MergeConfidence().pool(log_confidence)

    def fit(self, evidence: Floats, labels: Integers, classes: int) -> Policy:
        return ConfidenceThreshold(math.log(self.threshold), self.max_set_size)

    def promise(self) -> str:
        return "no guarantee: the confidence threshold was fixed by hand."

    def shortage(self, labels: Integers, members: int, classes: int) -> str:
        return ""

    def examples_needed(self, K: int = 1) -> int:
        """One example, to know how many members and classes there are."""
        return 1

    def calibrate(self, log_confidence: ArrayLike, labels: ArrayLike, times: Sequence[float] | None = None) -> CalibratedRule:
        """Take the number of members and classes from log-confidences (n, M, K, C); the threshold is fixed already."""
        return calibrate(self, log_confidence, labels, times)


def _settle(rule: SpikeCP | AgreeStop | DCSNN | SEENN) -> None:
    """Check the settings all rules share and keep them in one form."""
    object.__setattr__(rule, "checkpoints", as_checkpoints(rule.checkpoints))
    object.__setattr__(rule, "max_set_size", as_max_set_size(rule.max_set_size))
    if not isinstance(rule, SEENN):
        object.__setattr__(rule, "target", as_target(rule.target))
    if isinstance(rule, (SpikeCP, AgreeStop)) and rule.delta is not None:
        object.__setattr__(rule, "delta", as_delta(rule.delta))
