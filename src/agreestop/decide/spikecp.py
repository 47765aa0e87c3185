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

Large λ is safe here, and small ones in `checkpoints` and `thresholds`: they work with -λ and -S, and W = -V. There checkpoint t
opens at -b_t, closes at -a_t and fails at -S_t(y). The other calibrations compare scores with order statistics of scores: there
the calibration scores are raised by their rounding, so that a score that ties with one in any run is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from agreestop.common import Floats, InputError, Integers

from .calibration import Uncalibrated
from .checkpoints import Failures
from .checks import as_checkpoints
from .conditions import LabelledEvidence
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
from .rounding import EQUAL, Rounding, rounding_of
from .rule_files import KeptInFiles
from .rules import coverage_promise, validate
from .schedules import Schedule
from .scores import LogLoss, Score
from .thresholds import allowed_threshold, find_thresholds
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


def last_failures(
    scores: Floats,
    labels: Integers,
    max_set_size: int,
    rounding: Rounding | None = None,
    final: bool = False,
    exact: Floats | None = None,
) -> Floats:
    """V(x, y) (n,) of scores (n, M, C); with a rounding, of all runs of the same inputs that are rounded otherwise.

    exact: V without rounding, where it is known already.
    """
    rows, classes = np.arange(len(labels)), scores.shape[2]
    own = scores[rows, :, labels]
    ordered = np.sort(scores[:, :-1], axis=-1)
    beyond = np.full(ordered.shape[:2], np.inf) if max_set_size >= classes else ordered[:, :, max_set_size]
    # A label that surely has the least score is in every set that is not empty, and at the last checkpoint in every answer.
    others = np.where(np.arange(classes) == labels[:, None, None], np.inf, scores).min(axis=-1)
    with np.errstate(invalid="ignore"):
        ahead = others - own
    best, first = ahead >= (0.0 if rounding is None else -EQUAL), scores[:, -1].argmin(axis=-1) == labels
    if rounding is not None and rounding.breaks_ties:
        best = ahead > rounding.at(own) + rounding.at(others) + EQUAL
        first &= best[:, -1] | final
    fails, fails_end = np.where(best[:, :-1], np.inf, -own[:, :-1]), np.where(first, np.inf, -own[:, -1])
    return -Failures(-beyond, fails, fails_end, -ordered[:, :, 0]).first(rounding, None if exact is None else -exact)


def _compared(scores: Floats, max_set_size: int) -> Floats:
    """The numbers (n, ...) that are compared with a threshold: the best I + 1 scores of each checkpoint, and all of the last."""
    n, _, classes = scores.shape
    best = np.sort(scores[:, :-1], axis=-1)[:, :, : min(max_set_size + 1, classes)]
    return -np.concatenate([best.reshape(n, -1), scores[:, -1]], axis=1)


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


def _order_statistics(bags: Sequence[Floats], level: Fraction, delta: Fraction | None) -> Floats:
    """The order statistics (M, ..., bags) of losses (M, ..., n) that hold a new loss with this probability."""
    found = np.empty((*bags[0].shape[:-1], len(bags)))
    for column, bag in enumerate(bags):
        rank = quantile_rank(bag.shape[-1], level, delta)
        for cell in np.ndindex(*bag.shape[:-1]):
            found[*cell, column] = order_statistic(bag[cell], rank)
    return found


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

    def rounding(self, base: Rounding) -> Rounding:
        """How far scores of one input may differ between two runs, from the rounding of log-confidences."""
        if self.score is not None:
            return rounding_of(self.score, base)
        pooling = self.pooling if isinstance(self.pooling, MergeConfidence) else MODEL_AVERAGE
        return base if self._by_rank else LogLoss(pooling).rounding(base)

    def _rank(self, n: int) -> int:
        return quantile_rank(n, 1 - self._alpha, self._delta)

    @property
    def reducible(self) -> bool:
        """Whether a few numbers of each example are enough for calibration."""
        return self.gate is None and self.calibration in ("simultaneous", "stop-aware")

    def reduce(self, examples: LabelledEvidence) -> dict[str, NDArray[Any]]:
        """What calibration needs of each example: V and V_η (n,).

        For stop-aware calibration also the numbers compared with a threshold (n, ...), negated, its least score and where it stops.
        """
        values, labels, rounding = examples.evidence.values, examples.labels, self.rounding(examples.rounding)
        if self.calibration == "simultaneous":
            own = values[np.arange(len(labels)), :, labels]
            return {"V": own.max(axis=1), "rounded": (own + rounding.at(own)).max(axis=1)}
        return self._reduce_stops(examples, values)

    def _reduce_stops(self, examples: LabelledEvidence, values: Floats) -> dict[str, NDArray[Any]]:
        size, labels, final = self.max_set_size, examples.labels, examples.conditions.final
        profile = StopProfile.of(values, size)
        V = last_failures(values, labels, size)
        rounded = last_failures(values, labels, size, self.rounding(examples.rounding), final, V)
        known = {"V": V, "rounded": rounded, "numbers": _compared(values, size)}
        return {**known, "lowest": values.min(axis=(1, 2)), "breaks": profile.breaks, "stops": profile.stops}

    def fit_reduced(self, numbers: dict[str, NDArray[Any]], examples: LabelledEvidence) -> Policy:
        """The policy learned from what `reduce` gave; the evidence of the examples is not used."""
        if self.calibration == "stop-aware":
            return self._fit_stop_aware(numbers, examples, None)
        self._refuse_conditions(examples)
        groups = examples.cells(self.class_conditional)
        kth, thresholds = (
            np.array([order_statistic(numbers[name][rows], self._rank(len(rows))) for rows in groups]) for name in ("V", "rounded")
        )
        return RunningThreshold(thresholds, self.max_set_size, kth)

    def _refuse_conditions(self, examples: LabelledEvidence) -> None:
        if examples.conditions.used:
            advice = "give AgreeStop, or calibration='stop-aware'"
            raise InputError(f"{examples.conditions.used} need a rule with one threshold, which {self.calibration} is not: {advice}.")

    def fit(self, examples: LabelledEvidence) -> Policy:
        evidence, labels = examples.evidence, examples.labels
        if self.reducible:
            return self.fit_reduced(self.reduce(examples), examples)
        if self.calibration == "stop-aware":
            return self._fit_gated(examples)
        self._refuse_conditions(examples)
        groups = examples.cells(self.class_conditional)
        own = evidence.values[np.arange(len(labels)), ..., labels]  # the true label's entry along the class axis, which is the last
        above = own + self.rounding(examples.rounding).at(own)  # another run may give the same inputs losses up to these
        levels = [self._alpha * (len(rows) + 1) for rows in groups]
        bags, raised = ([np.ascontiguousarray(np.moveaxis(part[rows], 0, -1)) for rows in groups] for part in (own, above))
        match self.pooling:
            case MergePValues() as merging:
                merged = tuple(MergedRanks(np.sort(bag, axis=-1), level, merging) for bag, level in zip(raised, levels, strict=True))
                return MergedPValues(merged if self.class_conditional else merged[0], self.max_set_size)
            case MergeRanks(r=r):
                eta = self.rounding(examples.rounding).largest(float(np.abs(own).max(initial=0.0)))
                shape = own.shape[1:3]
                pooled = tuple(PooledRanks(bag, level, r, np.full(shape, eta)) for bag, level in zip(bags, levels, strict=True))
                return RankPooling(pooled if self.class_conditional else pooled[0], self.max_set_size)
            case MajorityVote():
                level = 1 - self._vote_alpha(own.shape[2])
                kth, votes = (_order_statistics(bag, level, None) for bag in (bags, raised))
                one = np.s_[...] if self.class_conditional else np.s_[..., 0]
                return MemberVotes(votes[one], self.max_set_size, kth[one])
            case _:
                kth, thresholds = (_order_statistics(bag, 1 - self._alpha, self._delta) for bag in (bags, raised))
                return CheckpointThresholds(thresholds, self.max_set_size, kth)

    def _vote_alpha(self, members: int) -> Fraction:
        """The miscoverage of each member of a majority vote: a miss needs half of an even number of members, or (K+1)/2 of an odd one."""
        return self._alpha * Fraction(members + members % 2, 2 * members)

    def _fit_gated(self, examples: LabelledEvidence) -> Policy:
        evidence, gate = examples.evidence, self.gate
        assert gate is not None and evidence.log_risk is not None
        opened, blocks = gate.opened(evidence.log_risk)
        opened[:, -1] = True  # the last checkpoint answers whatever happened before
        values = np.where(opened[:, :, None], evidence.values, np.inf)
        return self._fit_stop_aware(self._reduce_stops(examples, values), examples, blocks)

    def _fit_stop_aware(self, numbers: dict[str, NDArray[Any]], examples: LabelledEvidence, blocks: Integers | None) -> Policy:
        """From what `reduce` gave of the examples, and the blocks (n,) of a gate."""
        conditions, gate = examples.conditions, self.gate
        policy = StoppingThreshold(np.inf, self.max_set_size, conditions.final)
        times, profile = np.array(self.checkpoints, dtype=np.float64), StopProfile(numbers["breaks"], numbers["stops"])
        waits = StoppingTimes.of(profile, times)

        def allowed(name: str, rows: Integers) -> float:
            return allowed_threshold(-numbers[name], conditions, rows, as_target(self.target), self._delta)

        def earliest(value: float, rows: Integers) -> float:
            chosen = waits if len(rows) == len(examples) else StoppingTimes.of(profile.rows(rows), times)
            return -chosen.earliest(-value)

        if gate is None:
            policy = replace(policy, reach=_reach(numbers["V"], numbers["lowest"], waits.earliest(-np.inf)))
        count = 1 if gate is None else len(gate.ends) + 1
        limits = partial(allowed, "V"), partial(allowed, "rounded")
        compared, rounding = numbers["numbers"], self.rounding(examples.rounding)
        found = find_thresholds(examples, *limits, compared, rounding, self.class_conditional, blocks, count, earliest)
        thresholds, kth = -found.values, -found.kth
        if gate is not None:
            return ConditionalThresholds(policy, thresholds, conditions.group_names, gate.blocks, gate.slack, kth)
        if conditions.groups is not None:
            return ConditionalThresholds(policy, thresholds, conditions.group_names, kth_values=kth)
        return replace(policy, threshold=float(thresholds[0, 0]), kth_values=kth[0])

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
