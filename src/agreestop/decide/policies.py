"""What a rule reads off its inputs at a checkpoint, and what it then does: evidence and state in, verdict and state out.

Batch, stream and engines share `judge`, so they cannot disagree. A policy holds what calibration learned and nothing else.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from agreestop.common import Booleans, Floats, Integers

from .ranking import Index, MergedRanks, PooledRanks
from .rule_files import KeptInFiles


@dataclass(frozen=True, eq=False, slots=True)
class Evidence:
    """What a rule reads off b inputs at a checkpoint, or off n inputs at all M checkpoints: then the second axis is the checkpoint.

    values    (b, C) for each class, or (b, K, C) for each member and class
    log_risk  (b,) log e, the risk that the best classes miss; None for rules that estimate no risk
    """

    values: Floats
    log_risk: Floats | None = None

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> Self:
        """Some of the inputs, or with two indices some inputs at some checkpoints; every part is indexed alike."""
        return type(self)(self.values[key], None if self.log_risk is None else self.log_risk[key])

    def minus(self, offsets: float | Floats) -> Self:
        """All parts less an offset: one number, one for each input (b,), or one for each checkpoint (M,).

        An offset of -∞ makes all parts ∞, so that nothing stops there.
        """
        finite = np.where(np.isneginf(offsets), 0.0, offsets)
        lift = np.where(np.isneginf(offsets), np.inf, 0.0)
        values = self.values - finite[..., None] + lift[..., None]
        return type(self)(values, None if self.log_risk is None else np.where(lift > 0, np.inf, self.log_risk - finite))

    @classmethod
    def joined(cls, parts: Sequence[Self], join: Callable[[list[Floats]], Floats]) -> Self:
        """Several pieces of evidence as one; `join` makes one array of several."""
        risks = [part.log_risk for part in parts if part.log_risk is not None]
        return cls(join([part.values for part in parts]), join(risks) if risks else None)

    @classmethod
    def stack(cls, parts: Sequence[Self]) -> Self:
        """The evidence of one checkpoint after another, as (n, M, ...)."""
        return cls.joined(parts, partial(np.stack, axis=1))


@dataclass(frozen=True, eq=False, slots=True)
class State:
    """What a policy remembers of `count` inputs from one checkpoint to the next. Most policies remember nothing.

    largest   (count, C) the largest score of each class so far, for simultaneous calibration
    uniforms  (count, 1) the uniform number of each input, for randomised merging
    """

    count: int
    largest: Floats | None = None
    uniforms: Floats | None = None

    def __len__(self) -> int:
        return self.count

    def rows(self, rows: Booleans | Integers) -> Self:
        """The state of some of the inputs, by a mask or by their positions."""
        count = int(np.count_nonzero(rows)) if rows.dtype == np.bool_ else len(rows)
        kept = (None if part is None else part[rows] for part in (self.largest, self.uniforms))
        return type(self)(count, *kept)


class Verdict(NamedTuple):
    """For each input of a batch: whether it stops here, (b,); its answer (b, C), which has a meaning only if it stops; the next state."""

    stop: Booleans
    sets: Booleans
    state: State


class Policy(Protocol):
    """A calibrated way to stop."""

    def start(self, count: int, classes: int, first: int) -> State:
        """The state of `count` inputs, numbered from `first`, before their first checkpoint."""
        ...

    def judge(self, index: Index, last: bool | Booleans, evidence: Evidence, state: State) -> Verdict:
        """The verdict at checkpoint `index`, one for all inputs or one for each; an input at its `last` checkpoint always stops."""
        ...


def run_checkpoints(
    judge: Callable[[int, Integers, State], Verdict], state: State, checkpoints: int, classes: int
) -> tuple[Integers, Booleans]:
    """Judge a batch checkpoint by checkpoint and drop the inputs that stop: stop indices (b,) and sets (b, C).

    `judge(index, active, state)` is called only with the inputs that are still running.
    """
    stops, answers = np.empty(len(state), dtype=np.int64), np.empty((len(state), classes), dtype=bool)
    active = np.arange(len(state))
    for index in range(checkpoints):
        verdict = judge(index, active, state)
        done = active[verdict.stop]
        stops[done], answers[done] = index, verdict.sets[verdict.stop]
        running = ~verdict.stop
        active, state = active[running], verdict.state.rows(running)
        if not len(active):
            break
    return stops, answers


def run_policy(policy: Policy, evidence: Evidence, state: State, classes: int) -> tuple[Integers, Booleans]:
    """Stop indices (n,) and sets (n, C) of inputs whose evidence (n, M, ...) at every checkpoint is known."""
    checkpoints = evidence.values.shape[1]

    def judge(index: int, active: Integers, state: State) -> Verdict:
        return policy.judge(index, index == checkpoints - 1, evidence[active, index], state)

    return run_checkpoints(judge, state, checkpoints, classes)


class Stateless:
    """The start of every policy that remembers nothing."""

    def start(self, count: int, classes: int, first: int) -> State:
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

    def sets(self, index: Index, values: Floats, state: State) -> Booleans:
        return values <= self.thresholds[index]


@dataclass(frozen=True, eq=False)
class MemberVotes(SetPolicy, KeptInFiles):
    """Bonferroni: classes in more than half of the members' sets {c : S_t^k ≤ threshold_t^k}; `thresholds` is (M, K)."""

    thresholds: Floats
    max_set_size: int

    def sets(self, index: Index, values: Floats, state: State) -> Booleans:
        votes = np.count_nonzero(values <= self.thresholds[index][..., None], axis=1)
        return 2 * votes > values.shape[1]


@dataclass(frozen=True, eq=False)
class MergedPValues(SetPolicy, KeptInFiles):
    """Bonferroni: Γ_t = {c : merged p-variable > α/M}. An input keeps its uniform number, if the form asks for one."""

    ranks: MergedRanks
    max_set_size: int

    def start(self, count: int, classes: int, first: int) -> State:
        return State(count, uniforms=self.ranks.uniforms(count, first) if self.ranks.merging.form == "randomized" else None)

    def sets(self, index: Index, values: Floats, state: State) -> Booleans:
        return self.ranks.keeps(index, values, state.uniforms)


@dataclass(frozen=True, eq=False)
class RankPooling(SetPolicy, KeptInFiles):
    """Bonferroni: Γ_t = {c : p-variable of the pooled ranks > α/M}."""

    ranks: PooledRanks
    max_set_size: int

    def sets(self, index: Index, values: Floats, state: State) -> Booleans:
        return self.ranks.keeps(index, values)


@dataclass(frozen=True, eq=False)
class RunningThreshold(KeptInFiles):
    """Simultaneous: Γ_t = {c : max over t' ≤ t of S_t' ≤ threshold}; an input keeps the maximum so far."""

    threshold: Floats
    max_set_size: int

    def start(self, count: int, classes: int, first: int) -> State:
        return State(count, largest=np.full((count, classes), -np.inf))

    def judge(self, index: Index, last: bool | Booleans, evidence: Evidence, state: State) -> Verdict:
        assert state.largest is not None
        largest = np.maximum(state.largest, evidence.values)
        sets = largest <= self.threshold
        small = np.count_nonzero(sets, axis=1) <= self.max_set_size
        return Verdict(small | last, _fill_empty(sets, largest), State(len(sets), largest))


@dataclass(frozen=True, eq=False)
class StoppingThreshold(Stateless, KeptInFiles):
    """Stop-aware: Γ_t = {c : S_t ≤ threshold}; an empty set does not stop before the last checkpoint."""

    threshold: float
    max_set_size: int

    def judge(self, index: Index, last: bool | Booleans, evidence: Evidence, state: State) -> Verdict:
        sets = evidence.values <= self.threshold
        size = np.count_nonzero(sets, axis=1)
        stop = ((size >= 1) & (size <= self.max_set_size)) | last
        return Verdict(stop, sets if last is False else _fill_empty(sets, evidence.values), state)


@dataclass(frozen=True, eq=False)
class RiskThreshold(Stateless, KeptInFiles):
    """AgreeStop: stop when log e_t < threshold.

    A stopped answer is the I most probable classes (`fill`), or of those the most probable and all with log ρ_t ≥ threshold. If
    nothing stopped, the last answer is the I most probable classes and all with log ρ ≥ threshold.
    """

    threshold: float
    max_set_size: int
    fill: bool

    def judge(self, index: Index, last: bool | Booleans, evidence: Evidence, state: State) -> Verdict:
        assert evidence.log_risk is not None
        stop = evidence.log_risk < self.threshold
        sets = np.zeros(evidence.values.shape, dtype=bool)
        if stop.any():
            sets[stop] = self._answers(evidence.values[stop])
        ends = last & ~stop
        if ends.any():
            mass = evidence.values[ends]
            sets[ends] = self._best(mass) | (mass >= self.threshold)
        return Verdict(stop | last, sets, state)

    def _best(self, mass: Floats) -> Booleans:
        """The I most probable classes: ρ falls strictly along the order of the classes."""
        others = mass.shape[1] - self.max_set_size
        if others <= 0:
            return np.ones(mass.shape, dtype=bool)
        return mass >= np.partition(mass, others, axis=1)[:, others, None]

    def _answers(self, mass: Floats) -> Booleans:
        if self.fill:
            return self._best(mass)
        return self._best(mass) & ((mass >= self.threshold) | (mass == mass.max(axis=1, keepdims=True)))


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
