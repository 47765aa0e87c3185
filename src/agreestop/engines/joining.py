"""Members that join: the members of an engine in groups, each of which starts when a schedule
first asks for it.

A group that joins at step t replays the steps 1 … t of the inputs that are still running. Members
that no input asks for are never run. Without a schedule there is one group, which is the engine
itself. An engine whose members cannot be divided runs all of them.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import Booleans, InputError, Integers, as_array, check_finite
from agreestop.events.container import Inputs

from .protocol import DividingEngine, Engine, Live, Pass

Result = TypeVar("Result")


def joined(parts: Sequence[Result], axis: int = 0) -> Result:
    """Arrays, or results with arrays as fields, one after the other along the inputs (axis 0),
    the steps (1) or the members (2).
    """
    first: Any = parts[0]
    if len(parts) == 1:
        return cast(Result, first)
    if isinstance(first, np.ndarray):
        return cast(Result, np.concatenate(cast(Any, parts), axis))
    return cast(
        Result,
        type(first)(
            *(
                joined([getattr(part, field.name) for part in parts], axis)
                for field in fields(first)
            )
        ),
    )


class MemberGroups:
    """The groups of an engine under a rule.

    `members` (M,) is the number of members that each look judges.
    """

    def __init__(self, engine: Engine, members: Sequence[int]) -> None:
        self._engines: list[Engine | None] = [engine]
        self._engine, self._ends = engine, [engine.members]
        self.members: Integers = np.array(members)
        ends = np.unique(self.members).tolist()
        if isinstance(engine, DividingEngine) and ends != self._ends:
            first = engine.members_slice(0, ends[0])
            if first is not None:
                self._ends, self._engines = ends, [first, *[None] * (len(ends) - 1)]

    def __len__(self) -> int:
        return len(self._ends)

    def engine(self, group: int) -> Engine:
        """The engine of one group; it is made when the group first joins."""
        found = self._engines[group]
        if found is None:
            assert isinstance(self._engine, DividingEngine)
            found = self._engine.members_slice(self._ends[group - 1], self._ends[group])
            assert found is not None, "an engine that gives some of its members gives the others"
            self._engines[group] = found
        return found

    def needed(self, look: int) -> int:
        """The number of groups that a look needs."""
        return 1 if len(self) == 1 else self._ends.index(self.members[look]) + 1

    def run_length(self, look: int) -> int:
        """The number of looks from this one on that judge as many members."""
        return int((self.members == self.members[look])[look:].sum())


class JoiningPass:
    """A batch on its way through time; groups of members join it."""

    def __init__(self, groups: MemberGroups, batch: Inputs, first: int, output: str) -> None:
        self._groups = groups
        self._batch = batch
        self._first = first
        self._spikes = output == "spikes"
        self._passes: list[Pass] = []
        self._active: Integers = np.arange(len(batch))
        self.time, self.work = 0, np.zeros(len(batch), np.int64)
        # (rows, K, C) of the members that have joined: spike counts so far, or logits
        self.evidence: NDArray[Any] | None = None

    @property
    def active(self) -> Integers:
        """The inputs (rows,) that are still running."""
        return self._active

    def _join(self, count: int) -> None:
        """Let the first `count` groups take part, and bring the new ones to the time
        of the others.
        """
        for group in range(len(self._passes), count):
            engine = self._groups.engine(group)
            self._passes.append(engine.begin(self._batch, self._first))
            if len(self._active) < len(self._batch):
                self._passes[-1].keep(np.isin(np.arange(len(self._batch)), self._active))
            shape = (len(self._active), engine.members, engine.classes)
            caught_up: NDArray[Any] = np.zeros(shape, np.int64 if self._spikes else np.float64)
            if self.time:
                outputs = self._passes[-1].advance(self.time)
                if not self._spikes:
                    check_finite(outputs, "the output of the members")
                caught_up = outputs.sum(axis=1, dtype=np.int64) if self._spikes else outputs[:, -1]
                self.work[self._active] += self.time * engine.members
            self.evidence = (
                caught_up
                if self.evidence is None
                else np.concatenate([self.evidence, caught_up], axis=1)
            )

    def advance_to(self, times: Integers, first: int) -> NDArray[Any]:
        """The evidence (rows, checkpoints, K, C) at these times, of the members that are judged.

        They are those of the checkpoints from number `first` on, as far as these ask for the same
        members. Members that join replay what they missed.
        """
        groups = self._groups
        self._join(groups.needed(first))
        times = times[: groups.run_length(first)]
        # the steps, from 0, after which evidence is needed; -1: members joined at this very time
        offsets, steps = times - self.time - 1, int(times[-1]) - self.time
        evidence = cast(NDArray[Any], self.evidence)
        before = [evidence[:, None]] if offsets[0] < 0 else []
        if steps:
            outputs = joined([run.advance(steps) for run in self._passes], 2)
            self.time += steps
            self.work[self._active] += steps * outputs.shape[2]
            later = offsets[offsets >= 0]
            if self._spikes:
                found = np.add.reduceat(outputs, [0, *(later[:-1] + 1)], axis=1, dtype=np.int64)
                found[:, 0] += evidence
                np.cumsum(found, axis=1, out=found)
            else:
                check_finite(outputs, "the output of the members")
                found = outputs[:, later]
            before, self.evidence = [*before, found], found[:, -1]
        return joined(before, 1)[:, :, : groups.members[first]]

    def keep(self, rows: Booleans) -> None:
        """Continue with some of the inputs that are running."""
        self._active = self._active[rows]
        self.evidence = cast(NDArray[Any], self.evidence)[rows]
        for run in self._passes:
            run.keep(rows)


class JoiningLive:
    """One live input; groups of members join it and replay what was pushed.

    See `protocol.FilteredLive`. Every step that is a checkpoint must be judged.
    """

    def __init__(self, groups: MemberGroups, times: Integers, number: int) -> None:
        self._groups, self._times, self._number = groups, times, number
        self._live: list[Live] = []
        # what was pushed, while groups are left that may join
        self._steps: list[tuple[ArrayLike | None, ArrayLike | None]] = []
        self._evidence: list[NDArray[Any]] = []
        self._failed: InputError | None = None
        self.time = self.index = 0
        self._join(groups.needed(0))

    def push(self, events: ArrayLike | None, frame: ArrayLike | None) -> bool:
        if self._failed is not None:
            raise self._failed
        self._evidence = [live.push(events, frame=frame) for live in self._live]
        if len(self._live) < len(self._groups):
            self._steps.append((_copied(events), _copied(frame)))
        self.time += 1
        if not all(map(_is_finite, self._evidence)):
            # the members have made the step, and cannot take it back
            self._failed = InputError(
                f"the output of the members is not finite at step {self.time}, so this input is "
                "not run further: check the members and this step, and open a new session."
            )
            raise self._failed
        return bool(self._times[self.index] == self.time)

    @property
    def evidence(self) -> NDArray[Any]:
        """(K, C) of the members that checkpoint `index` asks for, of which new ones replay the
        input.
        """
        if self._failed is not None:
            raise self._failed
        groups = self._groups
        count = groups.needed(self.index)
        self._join(count)
        found = self._evidence[0] if count == 1 else np.concatenate(self._evidence[:count])
        return found[: groups.members[self.index]]

    def _join(self, count: int) -> None:
        while len(self._live) < count:
            live = self._groups.engine(len(self._live)).live(self._number)
            for events, frame in self._steps:
                evidence = live.push(events, frame=frame)
                if evidence.dtype.kind == "f":
                    check_finite(evidence, "the output of the members")
            if self._steps:
                self._evidence.append(evidence)
            self._live.append(live)
        if len(self._live) == len(self._groups):
            self._steps.clear()


def _copied(step: ArrayLike | None) -> NDArray[Any] | None:
    return None if step is None else as_array(step, "the step").copy()


def _is_finite(evidence: NDArray[Any]) -> bool:
    """Whether the evidence (K, C) of a step is finite, as counts always are."""
    return evidence.dtype.kind != "f" or bool(np.isfinite(evidence).all())
