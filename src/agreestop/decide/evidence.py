"""What a rule reads off its inputs at a checkpoint, and how inputs end: evidence and state in, verdict and state out.

Batch, stream and engines share `Policy.judge`, so they cannot disagree.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple, Protocol, Self, cast

import numpy as np
from numpy.typing import NDArray

from agreestop.common import Booleans, Floats, Integers

from .ranking import Index


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

    @property
    def level(self) -> Floats:
        """One number for each input (b,): the log-risk, or without one the least score."""
        return self.values.min(axis=tuple(range(1, self.values.ndim))) if self.log_risk is None else self.log_risk

    def minus(self, offsets: float | Floats) -> Self:
        """All parts less an offset: one number, one for each input (b,), or one for each checkpoint (M,).

        An offset of -∞ makes all parts ∞, so that nothing stops there.
        """
        if np.ndim(offsets) == 0 and offsets > -np.inf:  # by far the most frequent case
            return type(self)(self.values - offsets, None if self.log_risk is None else self.log_risk - offsets)
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

    largest     (count, C) the largest score of each class so far, for simultaneous calibration
    uniforms    (count, 1) the uniform number of each input, for randomised merging
    limits      (count, B) the threshold of each input for each block, where there are groups or a gate
    block       (count,) the block of each input; -1 before its gate opens
    first_risk  (count,) the log-risk, or the least score, at the first checkpoint: drift shows in it
    """

    count: int
    largest: Floats | None = None
    uniforms: Floats | None = None
    limits: Floats | None = None
    block: Integers | None = None
    first_risk: Floats | None = None

    def __len__(self) -> int:
        return self.count

    def rows(self, rows: Booleans | Integers) -> Self:
        """The state of some of the inputs, by a mask or by their positions."""
        count = int(np.count_nonzero(rows)) if rows.dtype == np.bool_ else len(rows)
        return type(self)(count, *(None if part is None else part[rows] for part in self._parts))

    def put(self, rows: Integers, other: Self) -> Self:
        """The state with that of some of the inputs, given by their positions, replaced."""
        parts = []
        for part, new in zip(self._parts, other._parts, strict=True):
            if new is not None:
                part = np.full((self.count, *new.shape[1:]), np.nan, dtype=new.dtype) if part is None else part.copy()
                part[rows] = new
            parts.append(part)
        return type(self)(self.count, *parts)

    def overwrite(self, rows: Integers, other: Self) -> Self:
        """Replace some of the inputs in place, which costs nothing for the others. The state must own its arrays."""
        parts = list(self._parts)
        for index, new in enumerate(other._parts):
            if new is not None:
                if parts[index] is None:
                    parts[index] = np.full((self.count, *new.shape[1:]), np.nan, dtype=new.dtype)
                cast(NDArray[Any], parts[index])[rows] = new
        return type(self)(self.count, *parts)

    @property
    def _parts(self) -> tuple[NDArray[Any] | None, ...]:
        return self.largest, self.uniforms, self.limits, self.block, self.first_risk


class Verdict(NamedTuple):
    """For each input of a batch: whether it stops here, (b,); its answer (b, C) and its best class (b,); the next state.

    Answer and best class have a meaning only where the input stops. A policy by itself leaves the best class to the rule.
    """

    stop: Booleans
    sets: Booleans
    state: State
    best: Integers | None = None


@dataclass(frozen=True, eq=False)
class Stops:
    """How n inputs ended.

    index       (n,) the checkpoint at which each stopped; -1 before it does
    sets        (n, C) the answers
    best        (n,) the best class at the stop; -1 where it is not known
    block       (n,) the block of the gate; -1 without a gate
    first_risk  (n,) the log-risk, or the least score, at the first checkpoint; nan where it is not known
    """

    index: Integers
    sets: Booleans
    best: Integers
    block: Integers
    first_risk: Floats

    @classmethod
    def empty(cls, n: int, classes: int) -> Self:
        """Room for n inputs."""
        nothing = np.full(n, -1)
        return cls(nothing, np.empty((n, classes), dtype=bool), nothing.copy(), nothing.copy(), np.full(n, np.nan))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Several batches one after the other."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def put(self, rows: Integers, index: Index, verdict: Verdict) -> None:
        """Note the inputs that stop, out of inputs `rows` that were judged at checkpoint `index`, one for all or one for each."""
        stop, state = verdict.stop, verdict.state
        done = rows[stop]
        self.index[done] = index if isinstance(index, int) else index[stop]
        self.sets[done] = verdict.sets[stop]
        for name, values in (("best", verdict.best), ("block", state.block), ("first_risk", state.first_risk)):
            if values is not None:
                getattr(self, name)[done] = values[stop]


class Policy(Protocol):
    """A calibrated way to stop."""

    def start(self, count: int, classes: int, first: int | None) -> State:
        """The state of `count` inputs before their first checkpoint.

        Random numbers are those of the inputs `first`, `first` + 1 and so on; fresh ones where it is None.
        """
        ...

    def judge(self, index: Index, last: bool | Booleans, evidence: Evidence, state: State) -> Verdict:
        """The verdict at checkpoint `index`, one for all inputs or one for each; an input at its `last` checkpoint always stops."""
        ...


def run_checkpoints(judge: Callable[[int, Integers, State], Verdict], state: State, checkpoints: int, classes: int) -> Stops:
    """Judge a batch checkpoint by checkpoint and drop the inputs that stop.

    `judge(index, active, state)` is called only with the inputs that are still running.
    """
    stops, active = Stops.empty(len(state), classes), np.arange(len(state))
    for index in range(checkpoints):
        verdict = judge(index, active, state)
        stops.put(active, index, verdict)
        running = ~verdict.stop
        active, state = active[running], verdict.state.rows(running)
        if not len(active):
            break
    return stops


def run_policy(policy: Policy, evidence: Evidence, state: State, classes: int, rows: Integers | None = None) -> Stops:
    """How inputs end whose evidence (n, M, ...) at every checkpoint is known: all of them, or some rows; `state` is theirs.

    A policy that remembers nothing may have a method `stopping`, which says at which checkpoints, (n, M), an input would stop. Then each
    input is judged only at the first of them, with the same results.
    """
    last, rows = evidence.values.shape[1] - 1, np.arange(len(evidence)) if rows is None else rows
    stopping: Callable[[Evidence], Booleans] | None = getattr(policy, "stopping", None)
    if stopping is not None:
        would = stopping(evidence)[rows]
        would[:, last] = True
        index, stops = would.argmax(axis=1), Stops.empty(len(rows), classes)
        stops.put(np.arange(len(rows)), index, policy.judge(index, index == last, evidence[rows, index], state))
        return stops

    def judge(index: int, active: Integers, state: State) -> Verdict:
        return policy.judge(index, index == last, evidence[rows[active], index], state)

    return run_checkpoints(judge, state, last + 1, classes)
