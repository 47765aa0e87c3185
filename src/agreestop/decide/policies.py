"""What a calibrated rule does at a checkpoint: evidence and state in, verdict and state out.

Batch, stream and files share `judge`, so they cannot disagree. A policy holds what calibration learned and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from agreestop.common.arrays import Booleans, Floats, Integers

from .checks import Index
from .ranking import MergedRanks, PooledRanks


class Verdict(NamedTuple):
    """For each input of a batch: whether it stops here, the set it answers with if so (else of no meaning), and the state."""

    stop: Booleans
    sets: Booleans
    state: Floats


class Policy(Protocol):
    """A calibrated way to stop."""

    def start(self, count: int, classes: int, first: int) -> Floats:
        """State (count, s) of inputs numbered from `first`, before their first checkpoint."""
        ...

    def judge(self, index: int, last: bool, evidence: Floats, state: Floats) -> Verdict:
        """The verdict at checkpoint `index`; at the last one every input stops."""
        ...


def run_policy(
    policy: Policy, evidence: Callable[[int, Integers], Floats], state: Floats, checkpoints: int, classes: int
) -> tuple[Integers, Booleans]:
    """Judge a batch checkpoint by checkpoint, dropping what has stopped: stop indices (b,) and sets (b, C).

    `evidence(index, active)` is asked only for the inputs that are still running.
    """
    count = len(state)
    stops, answers = np.empty(count, dtype=np.int64), np.empty((count, classes), dtype=bool)
    active = np.arange(count)
    for index in range(checkpoints):
        verdict = policy.judge(index, index == checkpoints - 1, evidence(index, active), state)
        done = active[verdict.stop]
        stops[done], answers[done] = index, verdict.sets[verdict.stop]
        go_on = ~verdict.stop
        active, state = active[go_on], verdict.state[go_on]
        if not len(active):
            break
    return stops, answers


def _no_state(count: int) -> Floats:
    return np.empty((count, 0))


def _small_sets(sets: Booleans, max_set_size: int, last: bool) -> Booleans:
    if last:
        return np.ones(len(sets), dtype=bool)
    return np.asarray(np.count_nonzero(sets, axis=1) <= max_set_size)


def _fill_empty(sets: Booleans, scores: Floats) -> Booleans:
    """Empty sets answer the class of smallest score, lowest index on ties."""
    empty = np.flatnonzero(~sets.any(axis=1))
    if len(empty):
        sets[empty, scores[empty].argmin(axis=1)] = True
    return sets


@dataclass(frozen=True, eq=False)
class CheckpointThresholds:
    """Bonferroni: Γ_t = {c : S_t ≤ threshold_t}; `thresholds` is (M, 1), or (M, C) with one for each class."""

    thresholds: Floats
    max_set_size: int

    def start(self, count: int, classes: int, first: int) -> Floats:
        return _no_state(count)

    def judge(self, index: int, last: bool, evidence: Floats, state: Floats) -> Verdict:
        sets = evidence <= self.thresholds[index]
        return Verdict(_small_sets(sets, self.max_set_size, last), sets, state)


@dataclass(frozen=True, eq=False)
class MemberVotes:
    """Bonferroni: classes in more than half of the members' sets {c : S_t^k ≤ threshold_t^k}; `thresholds` is (M, K)."""

    thresholds: Floats
    max_set_size: int

    def start(self, count: int, classes: int, first: int) -> Floats:
        return _no_state(count)

    def judge(self, index: int, last: bool, evidence: Floats, state: Floats) -> Verdict:
        votes = np.count_nonzero(evidence <= self.thresholds[index][:, None], axis=1)
        sets = 2 * votes > evidence.shape[1]
        return Verdict(_small_sets(sets, self.max_set_size, last), sets, state)


@dataclass(frozen=True, eq=False)
class MergedPValues:
    """Bonferroni: Γ_t = {c : merged p-variable > α/M}. The state is an input's uniform number, where the form asks for one."""

    ranks: MergedRanks
    max_set_size: int

    def start(self, count: int, classes: int, first: int) -> Floats:
        return self.ranks.uniforms(count, first)

    def judge(self, index: int, last: bool, evidence: Floats, state: Floats) -> Verdict:
        sets = self.ranks.keeps(index, evidence, state)
        return Verdict(_small_sets(sets, self.max_set_size, last), sets, state)


@dataclass(frozen=True, eq=False)
class RankPooling:
    """Bonferroni: Γ_t = {c : p-variable of the pooled ranks > α/M}."""

    ranks: PooledRanks
    max_set_size: int

    def start(self, count: int, classes: int, first: int) -> Floats:
        return _no_state(count)

    def judge(self, index: int, last: bool, evidence: Floats, state: Floats) -> Verdict:
        sets = self.ranks.keeps(index, evidence)
        return Verdict(_small_sets(sets, self.max_set_size, last), sets, state)


@dataclass(frozen=True, eq=False)
class RunningThreshold:
    """Simultaneous: Γ_t = {c : max over t' ≤ t of S_t' ≤ threshold}; the state is the running maximum, (b, C)."""

    threshold: Floats
    max_set_size: int

    def start(self, count: int, classes: int, first: int) -> Floats:
        return np.full((count, classes), -np.inf)

    def judge(self, index: int, last: bool, evidence: Floats, state: Floats) -> Verdict:
        running = np.maximum(state, evidence)
        sets = running <= self.threshold
        return Verdict(_small_sets(sets, self.max_set_size, last), _fill_empty(sets, running), running)


@dataclass(frozen=True, eq=False)
class StoppingThreshold:
    """Stop-aware: Γ_t = {c : S_t ≤ threshold}; a set that is empty does not stop before the last checkpoint."""

    threshold: float
    max_set_size: int

    def start(self, count: int, classes: int, first: int) -> Floats:
        return _no_state(count)

    def judge(self, index: int, last: bool, evidence: Floats, state: Floats) -> Verdict:
        sets = evidence <= self.threshold
        if last:
            return Verdict(np.ones(len(sets), dtype=bool), _fill_empty(sets, evidence), state)
        size = np.count_nonzero(sets, axis=1)
        return Verdict((size >= 1) & (size <= self.max_set_size), sets, state)


@dataclass(frozen=True, eq=False)
class RiskThreshold:
    """AgreeStop: stop when log e_t < threshold.

    A stopped answer is the I most probable classes (`fill`), or of those the most probable and all with log ρ_t ≥ threshold. If
    nothing stopped, the last answer is the I most probable classes and all with log ρ ≥ threshold.
    """

    threshold: float
    max_set_size: int
    fill: bool

    def start(self, count: int, classes: int, first: int) -> Floats:
        return _no_state(count)

    def judge(self, index: Index, last: bool | Booleans, evidence: Floats, state: Floats) -> Verdict:
        """As every policy; `index` and `last` may also be given for each input."""
        stop = evidence[:, -1] < self.threshold
        sets = np.zeros((len(evidence), evidence.shape[1] - 1), dtype=bool)
        if stop.any():
            sets[stop] = self._answers(evidence[stop, :-1])
        ends = last & ~stop
        if ends.any():
            mass = evidence[ends, :-1]
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
class ConfidenceThreshold:
    """DC-SNN and SEENN-I: stop when the largest pooled log-confidence reaches the threshold; answer the top I classes."""

    threshold: float
    max_set_size: int

    def start(self, count: int, classes: int, first: int) -> Floats:
        return _no_state(count)

    def judge(self, index: int, last: bool, evidence: Floats, state: Floats) -> Verdict:
        order = np.argsort(np.negative(evidence), axis=1, kind="stable")[:, : self.max_set_size]
        sets = np.zeros(evidence.shape, dtype=bool)
        sets[np.arange(len(sets))[:, None], order] = True
        stop = evidence.max(axis=1) >= self.threshold
        return Verdict(stop | last, sets, state)
