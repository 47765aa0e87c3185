"""SpikeCP: sets of plausible classes at checkpoints; stop when a set is small enough.

Bonferroni      Γ_t = {c : p_c > α/M}; one member, or members pooled by confidence, p-variable, rank
                or vote
simultaneous    Γ_t = {c : max over t' ≤ t of S_t' ≤ q}, q the ⌈(n+1)p⌉-th smallest of
                max_t S_t(x_i, y_i); holds at all t at once
stop-aware      Γ_t = {c : S_t ≤ λ}, only the set at the stop must hold the label

The stop-aware rule with threshold λ stops at the first checkpoint with 1 ≤ #{c : S_t(c) ≤ λ} ≤ I,
else at the last one, where an empty set becomes the best-scored class. For a calibration example

    V(x, y) = sup{ λ : the answer at λ misses y },        q = the ⌈(n+1)p⌉-th smallest V.

V_1..V_n and the new V are exchangeable, so V ≤ q with probability ≥ p. Every comparison is S ≤ λ,
so the λ that miss y are a union of intervals [u, v), and V ≤ λ means that the answer at λ holds y.
Hence every λ ≥ q keeps the promise, even one that was chosen by looking at the calibration inputs:
we take the smallest λ ≥ q of least mean stopping time there. Users see λ; inside, -λ is the
threshold of `answer_kinds.NestedSets`, W = -V, and small thresholds are safe as everywhere.

The other calibrations compare scores with order statistics of scores. There the calibration scores
are raised by their rounding, so that a score that ties with one in any run is kept.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property, partial
from typing import Any, ClassVar, Self

import numpy as np

from agreestop.common import (
    Booleans,
    Floats,
    InputError,
    Integers,
    KeptInFiles,
    as_checkpoints,
    set_fields,
)
from agreestop.common.levels import (
    Rounding,
    Target,
    as_delta,
    as_target,
    least_n,
    order_statistic,
    quantile_rank,
)

from .answer_kinds import NestedSets, fill_empty
from .calibration import Uncalibrated
from .checkpoints import Evidence, Index, LabelledEvidence, Policy, State, Verdict, at_checkpoints
from .confidence import MODEL_AVERAGE, MergeConfidence, Pooling
from .leakage import TunedRows
from .merging import (
    MajorityVote,
    MergedRanks,
    MergePValues,
    MergeRanks,
    PooledRanks,
    as_pooling,
    least_n_merged,
)
from .risks import Gate, LogLoss, Score, Spread, Temperature, TuningRanks
from .rule import (
    ALTERNATIVE,
    Fit,
    PlainRule,
    Reduced,
    Rule,
    Terms,
    coverage_promise,
    fixed,
    validate,
)
from .rule_files import reads_old
from .scores import Scores
from .thresholds import OneThreshold, allowed_by_failures, fit_thresholds

CALIBRATIONS = ("bonferroni", "simultaneous", "stop-aware")


@dataclass(frozen=True, eq=False, repr=False)
class SpikeCP(Uncalibrated, KeptInFiles):
    """Conformal sets at checkpoints; stop at the first set of at most `max_set_size` classes.

    Parameters
    ----------
    target : float, str or Fraction
        p_targ: 0.9, "0.9", Fraction or "9/10", taken exactly.
    checkpoints : sequence of float, or Schedule
        Times at which the rule may stop, increasing.
    max_set_size : int
        I_th, the largest set that may stop.
    pooling : Pooling, optional
        `MergeConfidence`, `MergePValues`, `MergeRanks` or `MajorityVote`; None for one member or
        with a score that pools.
    calibration : str
        "bonferroni" (the paper), "simultaneous" or "stop-aware".
    score : Score, optional
        A score fixed before calibration, such as `Temperature.fit(...)`; None is the pooled
        log-loss.
    class_conditional : bool
        Keep the promise for each true class by itself.
    delta : float, optional
        δ: the promise given the calibration data, with probability ≥ 1 - δ over their draw.
    gate : Gate, optional
        Stop-aware: the promise for each block of times at which an input first looked ready.

    Notes
    -----
    *Guarantee.* P(the answer holds the label) ≥ target, over the draw of the calibration examples
    and of a new example exchangeable with them. With p-variable merging, r ≥ K - 1, the rule cannot
    stop earlier than any of its members: a_{r,K}·M_r ≥ max_k p_k.

    Examples
    --------
    >>> import agreestop as ag
    >>> calibration, test = ag.simulate_scores(600, steps=20, K=3, C=4, seed=1).split(0.5, 0.5)
    >>> paper = ag.SpikeCP(0.9, (5, 10, 15, 20), 1, ag.MergePValues(r=45))
    >>> ours = ag.SpikeCP(0.9, range(1, 21), 1, ag.MergeConfidence(), calibration="stop-aware")
    >>> slow, fast = (rule.calibrate(calibration).decide(test) for rule in (paper, ours))
    >>> bool(fast.stop_time.mean() < slow.stop_time.mean())
    True
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

    kinds: ClassVar = {
        "spikecp": ("target", "pooling", "calibration", "class_conditional", "delta", "gate")
    }

    def __post_init__(self) -> None:
        validate(self)
        if self.calibration not in CALIBRATIONS:
            raise InputError(
                f"calibration is {self.calibration!r:.80}: choose one of {', '.join(CALIBRATIONS)}."
            )
        pooling = self.pooling
        if pooling is not None and not isinstance(pooling, Pooling):
            raise InputError(
                f"pooling is {pooling!r:.80}: give MergeConfidence, MergePValues, MergeRanks, "
                "MajorityVote or None."
            )
        times = as_checkpoints(self.checkpoints)
        if self.score is not None:
            if not isinstance(self.score, Score):
                raise InputError(
                    f"score is {self.score!r:.80}: give a fitted score such as "
                    "Temperature.fit(...), or None for the log-loss."
                )
            if pooling is not None:
                raise InputError(
                    f"the score pools its members itself, but pooling is {pooling!r}: give "
                    "pooling=None."
                )
            set_fields(self, score=self.score.cut(times))
        if self.gate is not None:
            if not isinstance(self.gate, Gate):
                raise InputError(f"gate is {self.gate!r:.80}: give what Gate.fit returned.")
            if self.calibration != "stop-aware":
                raise InputError(
                    f"a gate needs one threshold, but calibration is {self.calibration!r}: give "
                    "calibration='stop-aware'."
                )
            set_fields(self, gate=self.gate.cut(times))
        if self._by_rank:
            self._check_rank_pooling(type(pooling).__name__)

    def _check_rank_pooling(self, name: str) -> None:
        if self.joined_members:
            raise InputError(
                f"{name} compares every member at every checkpoint: give "
                "pooling=MergeConfidence(r=...) with a schedule."
            )
        if self.calibration != "bonferroni":
            raise InputError(
                f"{name} has no guarantee with {self.calibration} calibration: use "
                "calibration='bonferroni', or pooling=MergeConfidence(r=...)."
            )
        if self.delta is not None:
            raise InputError(
                f"{name} has no training-conditional guarantee: use "
                "pooling=MergeConfidence(r=...), or drop delta."
            )

    @property
    def _by_rank(self) -> bool:
        return self.pooling is not None and self.pooling.by_rank

    @property
    def _is_stop_aware(self) -> bool:
        return self.calibration == "stop-aware"

    @property
    def _alpha(self) -> Fraction:
        """α/M under Bonferroni, α elsewhere."""
        alpha = 1 - self.exact_target
        return alpha / len(self.checkpoints) if self.calibration == "bonferroni" else alpha

    @property
    def _delta(self) -> Fraction | None:
        delta, parts = self.terms.delta, 1
        if self.calibration == "bonferroni":
            parts = len(self.checkpoints)
        elif self.gate is not None:
            parts = len(self.gate.ends) + 1
        return None if delta is None else delta / parts

    @cached_property
    def terms(self) -> Terms:
        return Terms(
            "spikecp",
            as_target(self.target),
            as_delta(self.delta),
            class_conditional=self.class_conditional,
            by_checkpoint=self.calibration == "bonferroni",
            block_names=None if self.gate is None else self.gate.block_names,
            pooling=self.pooling,
            calibration=self.calibration,
        )

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
        risk = self.gate.evidence(index, log_confidence, self.max_set_size).log_risk
        return replace(evidence, log_risk=risk)

    def _scores(self, index: Index, log_confidence: Floats) -> Evidence:
        if self._by_rank:
            return Evidence(np.negative(log_confidence))
        if self.score is not None:
            return Evidence(at_checkpoints(index, log_confidence, self.score.losses))
        members = log_confidence.shape[1]
        if not self.reads(members):
            raise InputError(
                f"log_confidence has {members} members but pooling is None: give "
                "pooling=MergeConfidence(r=1), or another, or a score that pools."
            )
        return Evidence(np.negative((self.pooling or MODEL_AVERAGE).pool(log_confidence)))

    def rounding(self, base: Rounding) -> Rounding:
        return base if self.score is None else self.score.rounding(base)

    def reduce(self, examples: LabelledEvidence) -> Reduced:
        """Scores of the labels, (n, M) or (n, M, K), or for stop-aware calibration W and W_η (n,).

        For the latter also the numbers compared with a threshold (n, ...), the least score and
        where an example stops.
        """
        evidence, labels = examples.evidence, examples.labels
        rounding = self.rounding(examples.rounding)
        if not self._is_stop_aware:
            # The true label's entry along the class axis, which is the last; another run may give
            # the same inputs losses up to `above`.
            own = evidence.values[np.arange(len(labels)), ..., labels]
            above = own + rounding.at(own)
            if self.calibration == "bonferroni":
                return {"own": own, "above": above}
            return {"own": own.max(axis=1), "above": above.max(axis=1)}
        answer = NestedSets(self.max_set_size, examples.conditions.final)
        found: Reduced = {}
        if self.gate is not None:
            opened, found["blocks"] = self.gate.opened(evidence.risk)
            evidence = answer.shut(evidence, opened)
        profile = StopProfile.of(evidence.values, self.max_set_size)
        return {
            **found,
            **answer.reduce(evidence, labels, rounding),
            "numbers": answer.compared(evidence),
            "lowest": evidence.values.min(axis=(1, 2)),
            "breaks": profile.breaks,
            "stops": profile.stops,
        }

    def fit(self, reduced: Reduced, examples: LabelledEvidence) -> Policy:
        if self._is_stop_aware:
            return self._fit_stop_aware(reduced, examples)
        if examples.conditions.used:
            raise InputError(
                f"{examples.conditions.used} need a rule with one threshold, which "
                f"{self.calibration} is not: give AgreeStop, or calibration='stop-aware'."
            )
        own, above = reduced["own"], reduced["above"]
        cells = examples.cells(self.class_conditional)
        bags, raised = (
            [np.ascontiguousarray(np.moveaxis(part[rows], 0, -1)) for rows in cells]
            for part in (own, above)
        )
        level = 1 - self._alpha
        if not self._by_rank:
            kth, values = (order_statistics(bag, level, self._delta) for bag in (bags, raised))
            running = self.calibration == "simultaneous"
            policy = RunningThreshold if running else CheckpointThresholds
            return policy(values, self.max_set_size, kth)
        levels = [self._alpha * (len(rows) + 1) for rows in cells]
        ranks: list[MergedRanks | PooledRanks]
        match self.pooling:
            case MergePValues() as merging:
                pairs = zip(raised, levels, strict=True)
                ranks = [MergedRanks(np.sort(bag, axis=-1), at, merging) for bag, at in pairs]
            case MergeRanks(r=r):
                largest = float(np.abs(own).max(initial=0.0))
                eta = np.full(own.shape[1:3], self.rounding(examples.rounding).largest(largest))
                ranks = [PooledRanks(bag, at, r, eta) for bag, at in zip(bags, levels, strict=True)]
            case _:
                vote = 1 - self._vote_alpha(own.shape[2])
                kth, values = (order_statistics(bag, vote, None) for bag in (bags, raised))
                one = np.s_[...] if self.class_conditional else np.s_[..., 0]
                return MemberVotes(values[one], self.max_set_size, kth[one])
        return RankedSets(tuple(ranks) if self.class_conditional else ranks[0], self.max_set_size)

    def _vote_alpha(self, members: int) -> Fraction:
        """The miscoverage of each member of a majority vote.

        A miss needs half of an even number of members, or (K+1)/2 of an odd one.
        """
        return self._alpha * Fraction(members + members % 2, 2 * members)

    def _fit_stop_aware(self, reduced: Reduced, examples: LabelledEvidence) -> Policy:
        times = np.array(self.checkpoints, dtype=np.float64)
        profile = StopProfile(reduced["breaks"], reduced["stops"])

        @cache
        def of_all() -> TotalTimes:
            return profile.totals(times, slice(None))

        def earliest(value: float, rows: Integers) -> float:
            everybody = len(rows) == len(examples)
            return -(of_all() if everybody else profile.totals(times, rows)).earliest(-value)

        policy = fit_thresholds(
            NestedSets(self.max_set_size, examples.conditions.final),
            reduced,
            examples,
            self.rounding(examples.rounding),
            allowed_by_failures(reduced, examples, self.exact_target, self._delta),
            self.class_conditional,
            self.gate,
            earliest,
        )
        known = None if self.gate is not None else _reach(reduced, of_all().earliest(-np.inf))
        return replace(policy, reach=known)

    def best(self, evidence: Evidence) -> Integers:
        """The class of the smallest score; without pooling, of the largest averaged confidence."""
        if evidence.values.ndim == 3:
            return MODEL_AVERAGE.pool(-evidence.values).argmax(axis=-1)
        return evidence.values.argmin(axis=-1)

    def promise(self) -> str:
        words = coverage_promise(self.exact_target, self.class_conditional, self.terms.delta)
        if self.gate is not None:
            words = f"for each block of times at which an input first looked ready, {words}"
        return words + ("" if self.pooling is None else self.pooling.assumes)

    def examples_needed(self, K: int = 1) -> int:
        """The least n, of each class with class_conditional, to ever exclude a label."""
        match self.pooling:
            case MajorityVote():
                return least_n(1 - self._vote_alpha(K))
            case MergePValues() as merging:
                return least_n_merged(merging, K, self._alpha)
            case _:
                return least_n(1 - self._alpha, self._delta)

    # --- tuning, exported code

    @property
    def one_threshold(self) -> bool:
        return self.calibration != "bonferroni"

    @property
    def reader(self) -> Score:
        return LogLoss(self.pooling or MODEL_AVERAGE) if self.score is None else self.score  # type: ignore[arg-type]

    def untuned(self) -> Self:
        if self.gate is not None:
            raise InputError(
                "the rule has a gate, which holds its risk: tune the rule without it, then give "
                "the tuned risk to Gate.fit."
            )
        if self._by_rank:
            raise InputError(
                f"tune chooses a score of pooled confidences, but pooling is {self.pooling!r}: "
                "give MergeConfidence or None."
            )
        return replace(self, pooling=None, score=LogLoss())

    def with_reader(self, reader: Score) -> Self:
        return replace(self, pooling=None, score=reader)

    def candidates(self, exponents: Sequence[float], members: int) -> Iterator[tuple[str, Fit]]:
        for r in exponents if members > 1 else (1.0,):
            pooling = MergeConfidence(r)
            yield f"log-loss, r={r:g}", fixed(LogLoss(pooling))
            yield f"temperatures, r={r:g}", partial(Temperature.fit, pooling=pooling)
            yield f"tuning ranks, r={r:g}", partial(TuningRanks.fit, pooling=pooling)
        for beta in (0.5, 1.0) if members > 1 else ():
            yield f"temperatures, r=1, spread {beta:g}", partial(_spread, beta)

    def reads(self, members: int) -> bool:
        return members == 1 or self.pooling is not None or self.score is not None

    @property
    def takes_temperatures(self) -> bool:
        return self._is_stop_aware and self.score is None

    def with_temperatures(self, tuning: Scores) -> Self:
        pooling: Any = self.pooling
        return replace(self, pooling=None, score=Temperature.fit(tuning, pooling=pooling))

    def plain(self, policy: Policy) -> PlainRule:
        if self.gate is not None:
            raise InputError(
                "exported code has a gate only with AgreeStop, which reads one risk: calibrate "
                "AgreeStop with the gate."
            )
        if self._by_rank:
            raise InputError(
                f"{type(self.pooling).__name__} pools members after each was calibrated by itself, "
                f"which exported code does not do: {ALTERNATIVE}."
            )
        numbers = self.reader.numbers(len(self.checkpoints))
        if numbers is None:
            raise InputError(
                f"the score is a {type(self.reader.innermost).__name__}, which exported code does "
                "not know: calibrate with Temperature, or with none."
            )
        kinds = {"bonferroni": "checkpoints", "simultaneous": "running", "stop-aware": "stopping"}
        final = isinstance(policy, OneThreshold) and policy.answer.final  # type: ignore[attr-defined]
        return PlainRule(
            kinds[self.calibration],
            numbers.exponent,
            numbers.temperatures,
            numbers.offsets,
            np.atleast_2d(policy.thresholds),
            final=final,
        )

    @classmethod
    def build(cls, kind: str, *, pooling: Any = MODEL_AVERAGE, **settings: Any) -> Rule:
        return cls(pooling=as_pooling(pooling), **settings)


def _spread(beta: float, data: Scores) -> Score:
    return Spread(Temperature.fit(data), beta)


def _reach(reduced: Reduced, earliest: float) -> tuple[float, float]:
    """The smallest W, and the threshold of least mean stopping time; small is safe.

    Without early stops the second is minus the smallest score.
    """
    bold = -(earliest if math.isfinite(earliest) else float(reduced["lowest"].min()))
    failing = reduced["W"][np.isfinite(reduced["W"])]
    return float(failing.min()) if len(failing) else bold, bold


class SetPolicy(Policy):
    """A set Γ_t at every checkpoint: stop at the first of at most `max_set_size` classes.

    An empty set stops too, as in the paper.
    """

    max_set_size: int

    @abstractmethod
    def sets(self, index: Index, values: Floats, state: State) -> Booleans:
        """Γ_t (b, C)."""

    def judge(
        self, index: Index, last: bool | Booleans, evidence: Evidence, state: State
    ) -> Verdict:
        sets = self.sets(index, evidence.values, state)
        small: Booleans = np.count_nonzero(sets, axis=1) <= self.max_set_size
        return Verdict(small if last is False else small | last, sets, state)


@dataclass(frozen=True, eq=False)
class LimitedSets(SetPolicy):
    """Sets of classes whose scores are within `values`; order_statistics are behind them."""

    values: Floats
    max_set_size: int
    order_statistics: Floats | None = None

    @property
    def thresholds(self) -> Floats:
        return self.values

    @property
    def kth_values(self) -> Floats | None:
        return self.order_statistics

    @property
    def by_class(self) -> bool:
        """Whether each class has thresholds of its own."""
        return self.values.shape[-1] > 1

    @property
    def joint_promises(self) -> int:
        if not self.by_class:
            return 1
        finite = np.isfinite(self.values).reshape(-1, self.values.shape[-1])
        return max(1, int(finite.any(axis=0).sum()))

    def never_stops(self, needed: int | None) -> bool:
        if needed is None or not self.by_class:
            return needed is not None
        # Classes with too few examples are in every set.
        return bool((np.isinf(self.values).sum(axis=-1) > self.max_set_size).all())


@dataclass(frozen=True, eq=False)
class CheckpointThresholds(LimitedSets, KeptInFiles):
    """Bonferroni: Γ_t = {c : S_t ≤ value_t}; values (M, 1), or (M, C) with one for each class."""

    def sets(self, index: Index, values: Floats, state: State) -> Booleans:
        return values <= self.values[index]


@dataclass(frozen=True, eq=False)
class MemberVotes(LimitedSets, KeptInFiles):
    """Bonferroni: classes in more than half of the members' sets {c : S_t^k ≤ value_t^k}.

    values is (M, K), or (M, K, C) with one for each class.
    """

    @property
    def by_class(self) -> bool:
        return self.values.ndim == 3

    @property
    def joint_promises(self) -> int:
        return 1

    def sets(self, index: Index, values: Floats, state: State) -> Booleans:
        limits = self.values[index]
        inside = values <= (limits if self.by_class else limits[..., None])
        return 2 * np.count_nonzero(inside, axis=1) > values.shape[1]


@dataclass(frozen=True, eq=False)
class RunningThreshold(LimitedSets, KeptInFiles):
    """Simultaneous: Γ_t = {c : max over t' ≤ t of S_t' ≤ value}; an input keeps the maximum.

    values is (1,), or (C,) with one for each class.
    """

    @property
    def one_order_statistic(self) -> bool:
        return True

    def start(self, count: int, classes: int, first: int | None) -> State:
        return State(count, largest=np.full((count, classes), -np.inf))

    def sets(self, index: Index, values: Floats, state: State) -> Booleans:
        return values <= self.values

    def judge(
        self, index: Index, last: bool | Booleans, evidence: Evidence, state: State
    ) -> Verdict:
        assert state.largest is not None
        largest = np.maximum(state.largest, evidence.values)
        known = replace(state, largest=largest)
        verdict = super().judge(index, last, Evidence(largest), known)
        return verdict._replace(sets=fill_empty(verdict.sets, largest))


@dataclass(frozen=True, eq=False)
class RankedSets(SetPolicy, KeptInFiles):
    """Bonferroni: Γ_t = {c : p-variable > α/M}, from the members' ranks.

    `ranks` are among all calibration examples, or for each class among its own examples. An input
    keeps its uniform number, if the merging asks for one.
    """

    ranks: MergedRanks | PooledRanks | tuple[MergedRanks | PooledRanks, ...]
    max_set_size: int

    @property
    def _each(self) -> tuple[MergedRanks | PooledRanks, ...]:
        return self.ranks if isinstance(self.ranks, tuple) else (self.ranks,)

    def start(self, count: int, classes: int, first: int | None) -> State:
        return State(count, uniforms=self._each[0].uniforms(count, first))

    def sets(self, index: Index, values: Floats, state: State) -> Booleans:
        if not isinstance(self.ranks, tuple):
            return self.ranks.keeps(index, values, state.uniforms)
        one_by_one = enumerate(self.ranks)
        return np.hstack(
            [ranks.keeps(index, values[:, :, [c]], state.uniforms) for c, ranks in one_by_one]
        )

    def never_stops(self, needed: int | None) -> bool:
        if needed is None or not isinstance(self.ranks, tuple):
            return needed is not None
        # Classes with too few examples are in every set.
        few = sum(ranks.calibration.shape[-1] < needed for ranks in self.ranks)
        return few > self.max_set_size


def order_statistics(bags: Sequence[Floats], level: Fraction, delta: Fraction | None) -> Floats:
    """Order statistics (M, ..., bags) of losses (M, ..., n) that hold a new loss."""
    found = np.empty((*bags[0].shape[:-1], len(bags)))
    for column, bag in enumerate(bags):
        rank = quantile_rank(bag.shape[-1], level, delta)
        for cell in np.ndindex(*bag.shape[:-1]):
            found[*cell, column] = order_statistic(bag[cell], rank)
    return found


def _read_limits(
    kind: type[LimitedSets], max_set_size: int, kth_values: Floats | None = None, **limits: Floats
) -> LimitedSets:
    """Older formats call the values `threshold` or `thresholds`."""
    (values,) = limits.values()
    return kind(values, max_set_size, kth_values)


for _kind in (CheckpointThresholds, MemberVotes, RunningThreshold):
    reads_old(_kind.__name__)(partial(_read_limits, _kind))


@reads_old("MergedPValues")
@reads_old("RankPooling")
def _read_ranks(ranks: Any, max_set_size: int) -> RankedSets:
    return RankedSets(ranks, max_set_size)


@dataclass(frozen=True, eq=False)
class StopProfile:
    """Where inputs stop as λ grows: at `stops[i, j]` for λ in [breaks[i, j], breaks[i, j + 1])."""

    breaks: Floats
    stops: Integers

    @classmethod
    def of(cls, scores: Floats, max_set_size: int) -> Self:
        """From scores (n, M, C)."""
        n, checkpoints, classes = scores.shape
        last = checkpoints - 1
        ordered = np.sort(scores[:, :last], axis=-1)
        opens, closes = ordered[:, :, 0], np.full((n, last), np.inf)
        if max_set_size < classes:
            closes = ordered[:, :, max_set_size]
        edges = np.sort(np.concatenate([opens, closes], axis=1), axis=1)
        breaks = np.concatenate([np.full((n, 1), -np.inf), edges], axis=1)
        stops = np.full(breaks.shape, last)
        for index in range(last - 1, -1, -1):
            inside = (opens[:, index, None] <= breaks) & (breaks < closes[:, index, None])
            np.copyto(stops, index, where=inside)
        return cls(breaks, stops)

    def totals(self, times: Floats, rows: Integers | slice) -> "TotalTimes":
        """The total stopping time of some inputs."""
        stop_times = times[self.stops[rows]]
        breaks = self.breaks[rows][:, 1:].ravel()
        order = np.argsort(breaks, kind="stable")
        steps = np.diff(stop_times, axis=1).ravel()[order]
        first = stop_times[:, 0].sum()
        return TotalTimes(first, breaks[order], first + np.cumsum(steps))


@dataclass(frozen=True, eq=False)
class TotalTimes:
    """A total stopping time as λ grows: `first` at -∞, `totals[j]` from `breaks[j]` on."""

    first: float
    breaks: Floats
    totals: Floats

    def earliest(self, floor: float) -> float:
        """The smallest λ ≥ floor of least total, and so of least mean, stopping time."""
        breaks, totals = self.breaks, self.totals
        above = int(np.searchsorted(breaks, floor, side="right"))
        ends = np.append(breaks[1:] > breaks[:-1], True) if len(breaks) else np.zeros(0, dtype=bool)
        ends[:above] = False
        candidates = np.append(floor, breaks[ends])
        values = np.append(totals[above - 1] if above else self.first, totals[ends])
        best = values.min()
        return float(candidates[np.argmax(values <= best + 1e-9 * abs(best))])
