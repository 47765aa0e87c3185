"""SpikeCP: sets of plausible classes at checkpoints; stop when a set is small enough.

Bonferroni      Γ_t = {c : p_c > α/M}; one member, or members pooled by confidence, p-variable, rank or vote
simultaneous    Γ_t = {c : max over t' ≤ t of S_t' ≤ q}, q the ⌈(n+1)p⌉-th smallest of max_t S_t(x_i, y_i); holds at all t at once
stop-aware      Γ_t = {c : S_t ≤ λ}, only the set at the stop must hold the label

The stop-aware rule with threshold λ stops at the first checkpoint with 1 ≤ #{c : S_t(c) ≤ λ} ≤ I, else at the last one, where an
empty set becomes the best-scored class. For a calibration example let

    V(x, y) = sup{ λ : the answer at λ misses y },          q = the ⌈(n+1)p⌉-th smallest V.

V_1..V_n and the new V are exchangeable, so V ≤ q with probability ≥ p; every comparison is S ≤ λ, so the λ that miss y are a
union of intervals [u, v), and V ≤ λ means that the answer at λ holds y. Hence every λ ≥ q keeps the promise, even one that was
chosen by looking at the calibration inputs: we take the smallest λ ≥ q of least mean stopping time there.

With a_t the smallest and b_t the (I+1)-th smallest score, t is the stop exactly for λ in [a_t, b_t) outside the intervals
of earlier checkpoints. All is constant between neighbouring breakpoints, so V is exact; there is no grid.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from agreestop.common import Floats, InputError, Integers

from .calibration import Uncalibrated
from .checks import as_checkpoints
from .conditions import LabelledEvidence, allowed_threshold
from .evidence import Evidence, Policy
from .gates import Gate
from .levels import Target, as_delta, as_target, least_n, order_statistic, quantile_rank
from .merging import MODEL_AVERAGE, MajorityVote, MergeConfidence, MergePValues, MergeRanks, Pooling
from .policies import (
    CheckpointThresholds,
    ConditionalThresholds,
    MemberVotes,
    MergedPValues,
    RankPooling,
    RunningThreshold,
    StoppingThreshold,
)
from .ranking import Index, MergedRanks, PooledRanks, at_checkpoints, least_n_merged
from .rule_files import KeptInFiles
from .rules import coverage_promise, validate
from .schedules import Schedule
from .scores import Score
from .tuned_rows import TunedRows

CALIBRATIONS = ("bonferroni", "simultaneous", "stop-aware")


@dataclass(frozen=True, eq=False)
class StopProfile:
    """Where each input stops as a function of λ: at checkpoint `stops[i, j]` for λ in [breaks[i, j], breaks[i, j + 1])."""

    breaks: Floats
    stops: Integers

    @classmethod
    def of(cls, scores: Floats, max_set_size: int) -> Self:
        """From scores (n, M, C)."""
        n, checkpoints, classes = scores.shape
        last = checkpoints - 1
        ordered = np.sort(scores[:, :last], axis=-1)
        opens = ordered[:, :, 0]
        closes = ordered[:, :, max_set_size] if max_set_size < classes else np.full((n, last), np.inf)
        breaks = np.concatenate([np.full((n, 1), -np.inf), np.sort(np.concatenate([opens, closes], axis=1), axis=1)], axis=1)
        stops = np.full(breaks.shape, last)
        for index in range(last - 1, -1, -1):
            np.copyto(stops, index, where=(opens[:, index, None] <= breaks) & (breaks < closes[:, index, None]))
        return cls(breaks, stops)

    def rows(self, rows: Integers) -> Self:
        """That of some of the inputs."""
        return type(self)(self.breaks[rows], self.stops[rows])


def last_failures(scores: Floats, labels: Integers, profile: StopProfile) -> Floats:
    """V(x, y) of every example: the right end of the last interval of thresholds whose answer misses the label."""
    rows = np.arange(len(labels))
    own = scores[rows, :, labels]
    # At the last checkpoint an empty set answers the best class, so its own label is never missed there.
    own[:, -1] = np.where(scores[:, -1].argmin(axis=-1) == labels, -np.inf, own[:, -1])
    ends = np.concatenate([profile.breaks[:, 1:], np.full((len(labels), 1), np.inf)], axis=1)
    misses_until = np.minimum(ends, own[rows[:, None], profile.stops])
    return np.where(misses_until > profile.breaks, misses_until, -np.inf).max(axis=1)


@dataclass(frozen=True, eq=False)
class StoppingTimes:
    """The total stopping time of a profile's inputs as a function of λ: `first` at -∞, and `totals[j]` from `breaks[j]`, increasing, on."""

    first: float
    breaks: Floats
    totals: Floats

    @classmethod
    def of(cls, profile: StopProfile, times: Floats) -> Self:
        stop_times = times[profile.stops]
        breaks = profile.breaks[:, 1:].ravel()
        order = np.argsort(breaks, kind="stable")
        first = stop_times[:, 0].sum()
        return cls(first, breaks[order], first + np.cumsum(np.diff(stop_times, axis=1).ravel()[order]))

    def earliest(self, floor: float) -> float:
        """The smallest λ ≥ floor of least total, and so of least mean, stopping time."""
        breaks, totals = self.breaks, self.totals
        above = int(np.searchsorted(breaks, floor, side="right"))
        ends = np.append(breaks[1:] > breaks[:-1], True) if len(breaks) else np.zeros(0, dtype=bool)
        ends[:above] = False
        candidates = np.append(floor, breaks[ends])
        values = np.append(totals[above - 1] if above else self.first, totals[ends])
        best = values.min()
        tolerance = 1e-9 * abs(best)
        return float(candidates[np.argmax(values <= best + tolerance)])


def _order_statistics(bag: Floats, rank: int) -> Floats:
    """The rank-th smallest of each row, (M, K), of losses (M, K, n)."""
    return np.array([[order_statistic(losses, rank) for losses in members] for members in bag])


def _reach(failures: Floats, scores: Floats, earliest: float) -> tuple[float, float]:
    """The largest V (n,), and the threshold of least mean stopping time, or without early stops the smallest score."""
    boldest = earliest if np.isfinite(earliest) else float(scores.min())
    failing = failures[np.isfinite(failures)]
    return float(failing.max()) if len(failing) else boldest, boldest


@dataclass(frozen=True, eq=False, repr=False)
class SpikeCP(Uncalibrated, KeptInFiles):
    """Conformal sets at checkpoints; stop at the first set of at most `max_set_size` classes (I_th).

    target             p_targ: 0.9, "0.9", Fraction or "9/10", taken exactly
    checkpoints        times at which the rule may stop, increasing
    pooling            MergeConfidence, MergePValues, MergeRanks or MajorityVote; None for one member or with a score that pools
    calibration        "bonferroni" (the paper), "simultaneous" or "stop-aware"
    score              a score fixed before calibration, such as Temperature.fit(...); None is the pooled log-loss
    class_conditional  the promise for each true class by itself
    delta              δ: the promise given the calibration data, with probability ≥ 1 - δ over their draw
    gate               stop-aware: a `Gate`, for the promise for each block of times at which an input first looked ready
    """

    target: Target
    checkpoints: Sequence[float]
    max_set_size: int
    pooling: Pooling | None = None
    calibration: str = "bonferroni"
    score: Score | None = None
    class_conditional: bool = False
    delta: Target | None = None
    gate: Gate | None = None

    def __post_init__(self) -> None:
        validate(self)
        if self.calibration not in CALIBRATIONS:
            raise InputError(f"calibration is {self.calibration!r}: choose one of {', '.join(CALIBRATIONS)}.")
        pooling = self.pooling
        if pooling is not None and not isinstance(pooling, (MergeConfidence, MergePValues, MergeRanks, MajorityVote)):
            raise InputError(f"pooling is {pooling!r}: give MergeConfidence, MergePValues, MergeRanks, MajorityVote or None.")
        if self.score is not None:
            if isinstance(self.score, type) or not hasattr(self.score, "losses"):
                raise InputError(f"score is {self.score!r}: give a fitted score such as Temperature.fit(...), or None for the log-loss.")
            if pooling is not None:
                raise InputError(f"the score pools its members itself, but pooling is {pooling!r}: give pooling=None.")
            object.__setattr__(self, "score", self.score.cut(as_checkpoints(self.checkpoints)))
        if self.gate is not None:
            if not isinstance(self.gate, Gate):
                raise InputError(f"gate is {self.gate!r}: give what Gate.fit returned.")
            if self.calibration != "stop-aware":
                raise InputError(f"a gate needs one threshold, but calibration is {self.calibration!r}: give calibration='stop-aware'.")
            object.__setattr__(self, "gate", self.gate.cut(as_checkpoints(self.checkpoints)))
        if self._by_rank:
            name = type(pooling).__name__
            if isinstance(self.checkpoints, Schedule):
                raise InputError(f"{name} compares every member at every checkpoint: give pooling=MergeConfidence(r=...) with a schedule.")
            if self.calibration != "bonferroni":
                advice = "use calibration='bonferroni', or pooling=MergeConfidence(r=...)"
                raise InputError(f"{name} has no guarantee with {self.calibration} calibration: {advice}.")
            if self.delta is not None:
                raise InputError(f"{name} has no training-conditional guarantee: use pooling=MergeConfidence(r=...), or drop delta.")

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
        delta, parts = as_delta(self.delta), 1
        if self.calibration == "bonferroni":
            parts = len(self.checkpoints)
        elif self.gate is not None:
            parts = len(self.gate.ends) + 1
        return None if delta is None else delta / parts

    @property
    def tuned(self) -> TunedRows | None:
        rows = None if self.score is None else self.score.tuned
        if self.gate is None or self.gate.tuned is None:
            return rows
        return self.gate.tuned.also(rows)

    def evidence(self, index: Index, log_confidence: Floats) -> Evidence:
        evidence = self._scores(index, log_confidence)
        if self.gate is None:
            return evidence
        return replace(evidence, log_risk=self.gate.evidence(index, log_confidence, self.max_set_size).log_risk)

    def _scores(self, index: Index, log_confidence: Floats) -> Evidence:
        if self._by_rank:
            return Evidence(np.negative(log_confidence))
        if self.score is not None:
            return Evidence(at_checkpoints(index, log_confidence, self.score.losses))
        members = log_confidence.shape[1]
        if members > 1 and self.pooling is None:
            advice = "give pooling=MergeConfidence(r=1), or another, or a score that pools"
            raise InputError(f"log_confidence has {members} members but pooling is None: {advice}.")
        pooling = self.pooling if isinstance(self.pooling, MergeConfidence) else MODEL_AVERAGE
        return Evidence(np.negative(pooling.pool(log_confidence)))

    def _threshold(self, values: Floats) -> float:
        return order_statistic(values, quantile_rank(len(values), 1 - self._alpha, self._delta))

    @property
    def reducible(self) -> bool:
        """Whether a few numbers of each example are enough for calibration."""
        return self.gate is None and self.calibration in ("simultaneous", "stop-aware")

    def reduce(self, evidence: Evidence, labels: Integers) -> dict[str, NDArray[Any]]:
        """What calibration needs of each example: V (n,), and for stop-aware calibration its least score and where it stops."""
        values = evidence.values
        if self.calibration == "simultaneous":
            return {"V": values[np.arange(len(labels)), :, labels].max(axis=1)}
        profile = StopProfile.of(values, self.max_set_size)
        failures = last_failures(values, labels, profile)
        return {"V": failures, "lowest": values.min(axis=(1, 2)), "breaks": profile.breaks, "stops": profile.stops}

    def fit_reduced(self, numbers: dict[str, NDArray[Any]], examples: LabelledEvidence) -> Policy:
        """The policy learned from what `reduce` gave; the evidence of the examples is not used."""
        if self.calibration == "stop-aware":
            profile = StopProfile(numbers["breaks"], numbers["stops"])
            return self._fit_stop_aware(examples, numbers["V"], numbers["lowest"], profile, None)
        self._refuse_conditions(examples)
        groups = examples.cells(self.class_conditional)
        return RunningThreshold(np.array([self._threshold(numbers["V"][rows]) for rows in groups]), self.max_set_size)

    def _refuse_conditions(self, examples: LabelledEvidence) -> None:
        if examples.conditions.used:
            advice = "give AgreeStop, or calibration='stop-aware'"
            raise InputError(f"{examples.conditions.used} need a rule with one threshold, which {self.calibration} is not: {advice}.")

    def fit(self, examples: LabelledEvidence) -> Policy:
        evidence, labels = examples.evidence, examples.labels
        if self.reducible:
            return self.fit_reduced(self.reduce(evidence, labels), examples)
        if self.calibration == "stop-aware":
            return self._fit_gated(examples)
        self._refuse_conditions(examples)
        groups = examples.cells(self.class_conditional)
        own = evidence.values[np.arange(len(labels)), ..., labels]  # the true label's entry along the class axis, which is the last
        bags = [(np.ascontiguousarray(np.moveaxis(own[rows], 0, -1)), self._alpha * (len(rows) + 1)) for rows in groups]
        match self.pooling:
            case MergePValues() as merging:
                merged = tuple(MergedRanks(np.sort(bag, axis=-1), level, merging) for bag, level in bags)
                return MergedPValues(merged if self.class_conditional else merged[0], self.max_set_size)
            case MergeRanks(r=r):
                pooled = tuple(PooledRanks(bag, level, r) for bag, level in bags)
                return RankPooling(pooled if self.class_conditional else pooled[0], self.max_set_size)
            case MajorityVote():
                level = 1 - self._vote_alpha(own.shape[2])
                votes = np.stack([_order_statistics(bag, quantile_rank(bag.shape[-1], level)) for bag, _ in bags], axis=-1)
                return MemberVotes(votes if self.class_conditional else votes[..., 0], self.max_set_size)
            case _:
                thresholds = [[self._threshold(own[rows, m]) for rows in groups] for m in range(own.shape[1])]
                return CheckpointThresholds(np.array(thresholds), self.max_set_size)

    def _vote_alpha(self, members: int) -> Fraction:
        """The miscoverage of each member of a majority vote: a miss needs half of an even number of members, or (K+1)/2 of an odd one."""
        return self._alpha * Fraction(members + members % 2, 2 * members)

    def _fit_gated(self, examples: LabelledEvidence) -> Policy:
        evidence, gate = examples.evidence, self.gate
        assert gate is not None and evidence.log_risk is not None
        opened, blocks = gate.opened(evidence.log_risk)
        opened[:, -1] = True  # the last checkpoint answers whatever happened before
        values = np.where(opened[:, :, None], evidence.values, np.inf)
        profile = StopProfile.of(values, self.max_set_size)
        return self._fit_stop_aware(examples, last_failures(values, examples.labels, profile), values, profile, blocks)

    def _fit_stop_aware(
        self, examples: LabelledEvidence, failures: Floats, values: Floats, profile: StopProfile, blocks: Integers | None
    ) -> Policy:
        """From the V (n,) of the examples, their scores or the least of them, where they stop, and the blocks (n,) of a gate."""
        conditions, gate = examples.conditions, self.gate
        policy = StoppingThreshold(np.inf, self.max_set_size, conditions.final)
        times = np.array(self.checkpoints, dtype=np.float64)

        def threshold(rows: Integers) -> float:
            return allowed_threshold(-failures, conditions, rows, as_target(self.target), self._delta)

        def earliest(value: float, rows: Integers) -> float:
            chosen = waits if len(rows) == len(failures) else StoppingTimes.of(profile.rows(rows), times)
            return -chosen.earliest(-value)

        waits = StoppingTimes.of(profile, times)
        if gate is None:
            policy = replace(policy, reach=_reach(failures, values, waits.earliest(-np.inf)))
        count = 1 if gate is None else len(gate.ends) + 1
        thresholds = -examples.thresholds(threshold, self.class_conditional, blocks, count, earliest)
        if gate is None and conditions.groups is None:
            return replace(policy, threshold=float(thresholds[0, 0]))
        if gate is None:
            return ConditionalThresholds(policy, thresholds, conditions.group_names)
        return ConditionalThresholds(policy, thresholds, conditions.group_names, gate.blocks, gate.slack)

    def best(self, evidence: Evidence) -> Integers:
        """The class (b,) of the smallest score, or where members are not pooled, of the largest averaged confidence."""
        if evidence.values.ndim == 3:
            return MODEL_AVERAGE.pool(-evidence.values).argmax(axis=-1)
        return evidence.values.argmin(axis=-1)

    def promise(self) -> str:
        words = coverage_promise(as_target(self.target), self.class_conditional, as_delta(self.delta))
        if self.gate is not None:
            words = f"for each block of times at which an input first looked ready, {words}"
        if isinstance(self.pooling, MergePValues) and self.pooling.form == "exchangeable":
            words += " The members must be exchangeable, in an order fixed before any data; the probability is over their draw too."
        if isinstance(self.pooling, MergePValues) and self.pooling.form == "randomized":
            words += " The probability is over the input's uniform number too."
        return words

    def examples_needed(self, K: int = 1) -> int:
        """The least n with which K members could ever exclude a label; with class_conditional, of each class."""
        match self.pooling:
            case MajorityVote():
                return least_n(1 - self._vote_alpha(K))
            case MergePValues() as merging:
                return least_n_merged(merging, K, self._alpha)
            case _:
                return least_n(1 - self._alpha, self._delta)
