"""Policies with a set of plausible classes at every checkpoint, for `SpikeCP`.

A class is in the set while its score is within an order statistic, or its p-variable above α/M.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from agreestop.common import Booleans, Floats, KeptInFiles
from agreestop.common.levels import order_statistic, quantile_rank

from .answer_kinds import fill_empty
from .checkpoints import Evidence, Index, Policy, State, Verdict
from .merging import MergedRanks, PooledRanks
from .rule_files import reads_old


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
        sets = self.sets(index, largest, state)
        small = np.count_nonzero(sets, axis=1) <= self.max_set_size
        return Verdict(small | last, fill_empty(sets, largest), replace(state, largest=largest))


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
