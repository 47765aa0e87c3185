"""The policies: what a rule does with the evidence of a checkpoint. A policy holds what calibration learned and nothing else.

Thresholds lie in gaps between numbers that inputs share; `kth_values` are the order statistics behind them, None in files of
version 0.2, whose thresholds are the order statistics themselves.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from agreestop.common import Booleans, Floats, Integers

from .evidence import Evidence, State, Verdict
from .ranking import Index, MergedRanks, PooledRanks
from .rule_files import KeptInFiles


class Stateless:
    """The start of every policy that remembers nothing."""

    def start(self, count: int, classes: int, first: int | None) -> State:
        return State(count)


def _fill_empty(sets: Booleans, scores: Floats) -> Booleans:
    """Empty sets answer the class of smallest score, lowest index on ties."""
    empty = np.flatnonzero(~sets.any(axis=1))
    if len(empty):
        sets[empty, scores[empty].argmin(axis=1)] = True
    return sets


class SetPolicy(Stateless, ABC):
    """Policies with a set Γ_t at every checkpoint: stop at the first of at most `max_set_size` classes, an empty one included."""

    max_set_size: int

    @abstractmethod
    def sets(self, index: Index, values: Floats, state: State) -> Booleans:
        """Γ_t (b, C)."""

    def judge(self, index: Index, last: bool | Booleans, evidence: Evidence, state: State) -> Verdict:
        sets = self.sets(index, evidence.values, state)
        small: Booleans = np.count_nonzero(sets, axis=1) <= self.max_set_size
        return Verdict(small if last is False else small | last, sets, state)


@dataclass(frozen=True, eq=False)
class CheckpointThresholds(SetPolicy, KeptInFiles):
    """Bonferroni: Γ_t = {c : S_t ≤ threshold_t}; `thresholds` is (M, 1), or (M, C) with one for each class."""

    thresholds: Floats
    max_set_size: int
    kth_values: Floats | None = None

    def sets(self, index: Index, values: Floats, state: State) -> Booleans:
        return values <= self.thresholds[index]


@dataclass(frozen=True, eq=False)
class MemberVotes(SetPolicy, KeptInFiles):
    """Bonferroni: classes in more than half of the members' sets {c : S_t^k ≤ threshold_t^k}; `thresholds` is (M, K), or (M, K, C)."""

    thresholds: Floats
    max_set_size: int
    kth_values: Floats | None = None

    def sets(self, index: Index, values: Floats, state: State) -> Booleans:
        limits = self.thresholds[index]
        votes = np.count_nonzero(values <= (limits[..., None] if self.thresholds.ndim == 2 else limits), axis=1)
        return 2 * votes > values.shape[1]


@dataclass(frozen=True, eq=False)
class MergedPValues(SetPolicy, KeptInFiles):
    """Bonferroni: Γ_t = {c : merged p-variable > α/M}. An input keeps its uniform number, if the form asks for one.

    `ranks` are those of all calibration examples, or for each class those of its own examples.
    """

    ranks: MergedRanks | tuple[MergedRanks, ...]
    max_set_size: int

    def start(self, count: int, classes: int, first: int | None) -> State:
        ranks = self.ranks[0] if isinstance(self.ranks, tuple) else self.ranks
        return State(count, uniforms=ranks.uniforms(count, first) if ranks.merging.form == "randomized" else None)

    def sets(self, index: Index, values: Floats, state: State) -> Booleans:
        if not isinstance(self.ranks, tuple):
            return self.ranks.keeps(index, values, state.uniforms)
        return np.hstack([ranks.keeps(index, values[:, :, [label]], state.uniforms) for label, ranks in enumerate(self.ranks)])


@dataclass(frozen=True, eq=False)
class RankPooling(SetPolicy, KeptInFiles):
    """Bonferroni: Γ_t = {c : p-variable of the pooled ranks > α/M}; `ranks` as in `MergedPValues`."""

    ranks: PooledRanks | tuple[PooledRanks, ...]
    max_set_size: int

    def sets(self, index: Index, values: Floats, state: State) -> Booleans:
        if not isinstance(self.ranks, tuple):
            return self.ranks.keeps(index, values)
        return np.hstack([ranks.keeps(index, values[:, :, [label]]) for label, ranks in enumerate(self.ranks)])


@dataclass(frozen=True, eq=False)
class RunningThreshold(KeptInFiles):
    """Simultaneous: Γ_t = {c : max over t' ≤ t of S_t' ≤ threshold}; an input keeps the maximum so far."""

    threshold: Floats
    max_set_size: int
    kth_values: Floats | None = None

    def start(self, count: int, classes: int, first: int | None) -> State:
        return State(count, largest=np.full((count, classes), -np.inf))

    def judge(self, index: Index, last: bool | Booleans, evidence: Evidence, state: State) -> Verdict:
        assert state.largest is not None
        largest = np.maximum(state.largest, evidence.values)
        sets = largest <= self.threshold
        small = np.count_nonzero(sets, axis=1) <= self.max_set_size
        return Verdict(small | last, _fill_empty(sets, largest), replace(state, largest=largest))


@dataclass(frozen=True, eq=False)
class StoppingThreshold(Stateless, KeptInFiles):
    """Stop-aware: Γ_t = {c : S_t ≤ threshold}; an empty set does not stop before the last checkpoint.

    With `final`, an input that nothing stopped answers the class of smallest score. `reach` are the safest and the boldest threshold that
    were of any use for the calibration examples.
    """

    threshold: float
    max_set_size: int
    final: bool = False
    reach: tuple[float, ...] | None = None
    kth_values: Floats | None = None

    safest = math.inf

    def judge(self, index: Index, last: bool | Booleans, evidence: Evidence, state: State) -> Verdict:
        return self.judge_at(self.threshold, last, evidence, state)

    def judge_at(self, limits: float | Floats, last: bool | Booleans, evidence: Evidence, state: State) -> Verdict:
        """The verdict with these thresholds, one for all inputs or one for each, (b,)."""
        sets = evidence.values <= np.asarray(limits)[..., None]
        size = np.count_nonzero(sets, axis=1)
        small = (size >= 1) & (size <= self.max_set_size)
        if last is not False:
            if self.final:
                sets[~small & last] = False
            sets = _fill_empty(sets, evidence.values)
        return Verdict(small | last, sets, state)

    def stopping(self, evidence: Evidence) -> Booleans:
        """Where inputs with evidence (n, M, C) would stop, (n, M)."""
        inside = (evidence.values <= self.threshold).astype(np.float32)
        size = inside @ np.ones(inside.shape[-1], dtype=np.float32)  # much faster than a sum over so short an axis
        return np.asarray((size >= 1) & (size <= self.max_set_size))

    def closed(self, evidence: Evidence, closed: Booleans, last: bool | Booleans) -> Evidence:
        """Evidence on which these inputs (b,) stop only at the last checkpoint: nan is in no set, whatever the threshold."""
        return Evidence(np.where((closed & ~np.asarray(last))[:, None], np.nan, evidence.values), evidence.log_risk)


@dataclass(frozen=True, eq=False)
class RiskThreshold(Stateless, KeptInFiles):
    """AgreeStop: stop when log e_t < threshold.

    A stopped answer is the I most probable classes (`fill`), or of those the most probable and all with log ρ_t - log_trim ≥ threshold.
    If nothing stopped, the last answer is the I most probable classes and all with log ρ ≥ threshold; with `final`, the most probable.
    `reach` are the safest and the boldest threshold that were of any use for the calibration examples.
    """

    threshold: float
    max_set_size: int
    fill: bool
    log_trim: float = 0.0
    final: bool = False
    reach: tuple[float, ...] | None = None
    kth_values: Floats | None = None

    safest = -math.inf

    def judge(self, index: Index, last: bool | Booleans, evidence: Evidence, state: State) -> Verdict:
        return self.judge_at(self.threshold, last, evidence, state)

    def judge_at(self, limits: float | Floats, last: bool | Booleans, evidence: Evidence, state: State) -> Verdict:
        """The verdict with these thresholds, one for all inputs or one for each, (b,)."""
        assert evidence.log_risk is not None
        stop = evidence.log_risk < limits
        sets = np.zeros(evidence.values.shape, dtype=bool)
        if np.count_nonzero(stop):  # `any` takes longer on the few values of a stream
            sets[stop] = self._answers(evidence.values[stop], _rows_of(limits, stop))
        if last is False:
            return Verdict(stop, sets, state)
        ends = last & ~stop
        if np.count_nonzero(ends):
            mass = evidence.values[ends]
            sets[ends] = mass == mass.max(axis=1, keepdims=True) if self.final else self._best(mass) | (mass >= _rows_of(limits, ends))
        return Verdict(stop | last, sets, state)

    def stopping(self, evidence: Evidence) -> Booleans:
        """Where inputs with evidence (n, M, C) would stop, (n, M)."""
        assert evidence.log_risk is not None
        return evidence.log_risk < self.threshold

    def closed(self, evidence: Evidence, closed: Booleans, last: bool | Booleans) -> Evidence:
        """Evidence on which these inputs (b,) stop only at the last checkpoint."""
        assert evidence.log_risk is not None
        return Evidence(evidence.values, np.where(closed, np.inf, evidence.log_risk))

    def _best(self, mass: Floats) -> Booleans:
        """The I most probable classes: ρ falls strictly along the order of the classes."""
        others = mass.shape[1] - self.max_set_size
        if others <= 0:
            return np.ones(mass.shape, dtype=bool)
        return mass >= np.partition(mass, others, axis=1)[:, others, None]

    def _answers(self, mass: Floats, limits: float | Floats) -> Booleans:
        if self.fill:
            return self._best(mass)
        return self._best(mass) & ((mass - self.log_trim >= limits) | (mass == mass.max(axis=1, keepdims=True)))


def _rows_of(limits: float | Floats, rows: Booleans) -> float | Floats:
    """The thresholds of some inputs, as a column."""
    return limits[rows][:, None] if isinstance(limits, np.ndarray) else limits


@dataclass(frozen=True, eq=False)
class CheckpointRisks(Stateless, KeptInFiles):
    """AgreeStop with a threshold for each checkpoint, (M,), instead of that of `base`."""

    base: RiskThreshold
    thresholds: Floats
    kth_values: Floats | None = None

    @property
    def never_stops(self) -> bool:
        """Whether no checkpoint before the last is open."""
        return bool((self.thresholds[:-1] == self.base.safest).all())

    def judge(self, index: Index, last: bool | Booleans, evidence: Evidence, state: State) -> Verdict:
        return self.base.judge_at(np.broadcast_to(self.thresholds[index], len(evidence)), last, evidence, state)


@dataclass(frozen=True, eq=False)
class ConditionalThresholds(KeptInFiles):
    """A threshold for each group and block, (G, B), instead of that of `base`.

    An input has the safest threshold of its groups. An input without a known group never stops early and answers all classes. With a gate,
    checkpoints do not count before it opens, where log e_t < slack. `blocks` (M,) says which block an input is in whose gate opens at a
    checkpoint; inputs whose gate never opens are in the last block, B - 1.
    """

    base: RiskThreshold | StoppingThreshold
    thresholds: Floats
    group_names: tuple[str, ...] | None = None
    blocks: Integers | None = None
    slack: float = 0.0
    kth_values: Floats | None = None

    def __post_init__(self) -> None:
        groups = 1 if self.group_names is None else len(self.group_names)
        if self.thresholds.ndim != 2 or len(self.thresholds) != groups:
            raise ValueError(f"thresholds of shape {self.thresholds.shape} for {groups} groups")
        if not (self.blocks is None or ((self.blocks >= 0) & (self.blocks < self.thresholds.shape[1])).all()):
            raise ValueError(f"a block outside the {self.thresholds.shape[1]} that have thresholds")

    def start(self, count: int, classes: int, first: int | None) -> State:
        unknown = None if self.group_names is None else np.zeros((count, len(self.group_names)), dtype=bool)
        return self.start_in(unknown, count)

    def start_in(self, groups: Booleans | None, count: int) -> State:
        """The state of inputs that belong to these groups, (count, G); None without groups."""
        safest = self.base.safest
        if groups is None:
            limits = np.broadcast_to(self.thresholds[0], (count, self.thresholds.shape[1]))
        else:
            chosen = np.where(groups[:, :, None], self.thresholds, -safest)
            limits = (chosen.min if safest < 0 else chosen.max)(axis=1)
            limits[~groups.any(axis=1)] = safest
        return State(count, limits=limits, block=np.full(count, 0 if self.blocks is None else -1))

    def judge(self, index: Index, last: bool | Booleans, evidence: Evidence, state: State) -> Verdict:
        limits = state.limits
        assert limits is not None and state.block is not None
        if self.blocks is None:
            return self.base.judge_at(limits[:, 0], last, evidence, state)
        assert evidence.log_risk is not None
        block, closed = state.block, state.block < 0
        if np.count_nonzero(closed):
            opens = closed & (evidence.log_risk < self.slack)
            closed = closed & ~opens
            if last is not False or np.count_nonzero(opens):
                block = np.where(opens, self.blocks[index], np.where(closed & last, self.thresholds.shape[1] - 1, block))
                state = replace(state, block=block)
            evidence = self.base.closed(evidence, closed, last)
        return self.base.judge_at(limits[np.arange(len(block)), block], last, evidence, state)


@dataclass(frozen=True, eq=False)
class ConfidenceThreshold(Stateless, KeptInFiles):
    """DC-SNN and SEENN-I: stop when the largest pooled log-confidence reaches the threshold; answer the top I classes."""

    threshold: float
    max_set_size: int

    def judge(self, index: Index, last: bool | Booleans, evidence: Evidence, state: State) -> Verdict:
        confidence = evidence.values
        order = np.argsort(np.negative(confidence), axis=1, kind="stable")[:, : self.max_set_size]
        sets = np.zeros(confidence.shape, dtype=bool)
        sets[np.arange(len(sets))[:, None], order] = True
        stop = confidence.max(axis=1) >= self.threshold
        return Verdict(stop | last, sets, state)

    def stopping(self, evidence: Evidence) -> Booleans:
        """Where inputs with evidence (n, M, C) would stop, (n, M)."""
        return np.asarray(evidence.values.max(axis=-1) >= self.threshold)
