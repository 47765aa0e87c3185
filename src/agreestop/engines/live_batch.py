"""Many live inputs under one calibrated rule, each at a time of its own, computed and
judged together.

    batch = LiveBatch(calibrated, engine, slots=1000)
    row = batch.open(number=0)
    batch.push([Push(row, Steps.of([[3, 17], []])), ...])

`push` returns for each push the decision if it falls there, else None.

Every decision is the one that `LiveSession` makes on the same steps, or `CalibratedRule.stream` on
the same log-confidences. The steps of all pushes go through an engine with slots (`BatchingEngine`)
in one call, and each round of judgements is one call of `calibrated.step`. Other engines, and rules
with a `Schedule`, run one `LiveSession` for each input.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self, cast, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import Floats, InputError, Integers, as_count
from agreestop.decide.calibrated import CalibratedRule, Session, check_calibrated
from agreestop.decide.checkpoints import Index, State, Verdict, in_rounds, run_rounds
from agreestop.decide.decisions import Decision
from agreestop.decide.scores import as_log_confidence

from .early_stopping import (
    DEFAULTS,
    RunOptions,
    check_rule,
    check_whole_inputs,
    checkpoint_steps,
)
from .inputs import check_events
from .live import LiveSession
from .prefilter import can_prefilter_on_cpu, prefilter_for
from .protocol import BatchingEngine, Engine, LiveSlots

KINDS = ("events", "frames", "log-confidences", "what its rule reads")
"""What may be pushed to an input, one of them."""
COUNTS = np.arange(4096)
"""Counts of single steps, which are parts of it: to make an array takes longer."""
COUNTS.flags.writeable = False
CLOSED = "this input was closed: open another one."


@dataclass(
    eq=False, slots=True
)  # not frozen: one is made for each push, and that would take longer
class Steps:
    """Steps in a row: how many events each has, counts (n,), and the flat indices of all of
    them, one step after the other; int64.
    """

    counts: Integers
    indices: Integers

    def __len__(self) -> int:
        return len(self.counts)

    @classmethod
    def of(cls, steps: Sequence[ArrayLike]) -> Self:
        """Steps from one list of flat indices for each."""
        only = steps[0] if len(steps) == 1 else None
        if type(only) is np.ndarray and only.dtype == np.int64 and only.ndim == 1:
            count = len(only)
            return cls(
                COUNTS[count : count + 1] if count < len(COUNTS) else np.array([count]), only
            )
        parts = [np.asarray(step) for step in steps]
        for part in parts:
            if part.size and (part.ndim != 1 or part.dtype.kind not in "iu"):
                raise InputError(
                    f"events has shape {part.shape} and dtype {part.dtype}: a list of flat indices "
                    "is needed for each step, or push(frame=array) for a dense step."
                )
        indices = parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *parts])
        return cls(
            np.array([part.size for part in parts], np.int64), indices.astype(np.int64, copy=False)
        )

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Several steps after several others."""
        counts = np.concatenate([part.counts for part in parts])
        return cls(counts, np.concatenate([part.indices for part in parts]))

    @property
    def pointers(self) -> Integers:
        """Where each step begins in the indices, and where the last one ends, (n + 1,)."""
        pointers = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self.counts, out=pointers[1:])
        return pointers

    def each(self) -> list[Integers]:
        """The flat indices of each step."""
        return np.split(self.indices, self.pointers[1:-1])

    def part(self, first: int, last: int) -> Self:
        """The steps first … last - 1."""
        begin = int(self.counts[:first].sum())
        counts = self.counts[first:last]
        return type(self)(counts, self.indices[begin : begin + int(counts.sum())])

    def each_once(self, inputs: int) -> Self:
        """The same, but a step with more events than inputs names each of them once."""
        steps = self.each()
        for number in np.flatnonzero(self.counts > inputs).tolist():
            steps[number] = np.flatnonzero(np.bincount(steps[number], minlength=inputs))
        return type(self).of(steps)

    def check(self, inputs: int, repeats: str) -> None:
        """Refuse an event that is not one of `inputs` inputs, a step that looks like a whole
        frame, and what `repeats` refuses.
        """
        counts, indices = self.counts, self.indices
        wrong: list[Integers] = []  # the numbers of wrong steps
        outside = bool(len(indices)) and bool(indices.min() < 0 or indices.max() >= inputs)
        like_frames = inputs > 2 and bool((counts == inputs).any())
        may_repeat = repeats == "refused" and bool((counts > 1).any())
        if not (outside or like_frames or may_repeat):
            return
        steps = np.repeat(np.arange(len(self)), counts)
        if outside:
            wrong.append(steps[(indices < 0) | (indices >= inputs)])
        if like_frames:
            binary = np.bincount(steps[(indices == 0) | (indices == 1)], minlength=len(self))
            wrong.append(np.flatnonzero((counts == inputs) & (binary == inputs)))
        if may_repeat:
            order = np.lexsort((indices, steps))
            same = (np.diff(steps[order]) == 0) & (np.diff(indices[order]) == 0)
            wrong.append(steps[order][1:][same])
        if any(len(found) for found in wrong):
            first = min(int(found.min()) for found in wrong if len(found))
            # its message says what is wrong
            check_events(self.part(first, first + 1).indices, inputs, repeats)


class Reading(NamedTuple):
    """What a rule without fixed classes reads at a checkpoint; see `Session.push`."""

    value: Any
    cost: float | None = None
    weight: float | None = None


@final
@dataclass(eq=False, slots=True)
class LiveInput:
    """One input of a `LiveBatch`: the number of steps, or of log-confidences, that it has had,
    and its decision once there is one.

    ended     the checkpoint before which its end was judged
    kind      what is pushed to it, one of KINDS; empty before the first push
    last      its last log-confidences, or what its rule read last
    note      what the client is told at the end of a stream that was not over
    separate  its own session, where it is not computed with the others
    """

    number: int
    slot: int
    group: ArrayLike | None
    fresh: bool = False
    time: int = 0
    ended: int = 0
    decision: Decision | None = None
    failed: InputError | None = None
    kind: str = ""
    last: Floats | Reading | None = None
    note: str = ""
    separate: LiveSession | Session | None = None

    @property
    def scored(self) -> bool:
        """Whether it gets log-confidences."""
        return self.kind == "log-confidences"


@dataclass(eq=False, slots=True)
class Push:
    """The next steps of an input as events, or as frames (m, ...); or instead its
    log-confidences (m, K, C) at the next m checkpoints, or what its rule reads there.
    """

    row: LiveInput
    steps: Steps | None = None
    log_confidence: ArrayLike | None = None
    frames: ArrayLike | None = None
    evidence: Sequence[Reading] | None = None

    @property
    def contents(self) -> tuple[Any, ...]:
        """What may be pushed, in the order of KINDS."""
        return self.steps, self.frames, self.log_confidence, self.evidence

    @property
    def only_steps(self) -> bool:
        """Whether events are pushed, and nothing else."""
        others = self.frames is None and self.log_confidence is None and self.evidence is None
        return others and self.steps is not None

    @property
    def content(self) -> Any:
        """What is pushed."""
        return next(given for given in self.contents if given is not None)

    def __len__(self) -> int:
        return len(self.content)


@final
class LiveBatch:
    """At most `slots` live inputs under a rule; without an engine they only get log-confidences.

    It belongs to one thread at a time.
    """

    def __init__(
        self,
        calibrated: CalibratedRule,
        engine: Engine | None,
        slots: int,
        options: RunOptions = DEFAULTS,
    ) -> None:
        check_calibrated(calibrated)
        self._calibrated, self._engine, self._options = calibrated, engine, options
        self._free = list(range(as_count(slots, "slots")))[::-1]
        self._times: Integers = np.zeros(0, np.int64)
        self._slots: LiveSlots | None = None
        self._prefilter = None
        self._state: State | None = None
        if engine is not None:
            check_rule(calibrated, engine, options)
            check_whole_inputs(calibrated)
            self._times = checkpoint_steps(calibrated, engine, None)
        alone = engine is None and calibrated.rule.terms.reads != "log_confidence"
        if alone or calibrated.members_join:
            return  # each input has a session of its own
        start = calibrated.start(slots, 0, calibrated.find_groups(None, slots))
        # arrays of its own, which are overwritten from now on
        self._state = start.rows(np.arange(slots))
        if isinstance(engine, BatchingEngine):
            if can_prefilter_on_cpu():
                self._prefilter = prefilter_for(calibrated, engine.output)
            self._slots = engine.live_slots(slots, self._times, self._prefilter)

    def open(self, number: int, group: ArrayLike | None = None, fresh: bool = False) -> LiveInput:
        """Begin an input. number, group and fresh: as for `LiveSession`."""
        if not self._free:
            raise InputError("all slots are in use: close an input first.")
        inside = self._calibrated.find_groups(None if group is None else np.asarray(group)[None], 1)
        row = LiveInput(as_count(number, "number", least=0), self._free.pop(), group, fresh)
        if self._state is not None:
            state = self._calibrated.start(1, None if fresh else row.number, inside)
            state = replace(state, first_risk=np.array([np.nan]))
            self._state = self._state.overwrite(np.array([row.slot]), state)
        if self._slots is not None:
            self._slots.reset(row.slot)
        return row

    def close(self, row: LiveInput) -> float | None:
        """Give up the slot of an input. It is not run further, and its pushes are refused.

        Returns its risk at the first checkpoint, None before that, for `DriftMonitor.skip`.
        """
        if row.slot < 0:
            raise InputError("this input was closed before: its slot may belong to another now.")
        risk = math.nan
        if row.separate is not None:
            first = row.separate.close()
            risk = math.nan if first is None else first
        elif self._state is not None and self._state.first_risk is not None:
            risk = float(self._state.first_risk[row.slot])
        self._free.append(row.slot)
        row.slot = -1
        return None if math.isnan(risk) else risk

    def push(self, pushes: Sequence[Push]) -> list[Decision | InputError | None]:
        """Run the pushes in their order.

        For each: the decision if it falls there, the error if it is refused, else None.

        An input that has its decision, or whose earlier push was refused, is not run further.
        """
        results: list[Decision | InputError | None] = [None] * len(pushes)
        events: list[int] = []
        scores: list[int] = []
        together = self._slots is not None
        for number, one in enumerate(pushes):
            row = one.row
            if row.slot < 0 and row.failed is None:
                row.failed = InputError(CLOSED)
            if row.decision is not None or row.failed is not None:
                results[number] = row.failed
                continue
            try:
                if together and row.kind == KINDS[0] and one.only_steps:  # as most pushes are
                    events.append(number)
                elif self._check(one):
                    (scores if row.scored else events).append(number)
                else:
                    results[number] = self._push_separately(one)
            except InputError as error:
                row.failed = results[number] = error
        if events:
            self._run_events(pushes, events, results)
        if scores:
            self._run_scores(pushes, scores, results)
        return results

    def check(self, one: Push) -> InputError | None:
        """What is wrong with a push, if it is.

        A push that is run in parts is checked as a whole before the first of them.
        """
        try:
            if self._check(one) and not one.row.scored:
                slots = cast(LiveSlots, self._slots)
                cast(Steps, one.steps).check(slots.inputs, slots.repeats)
        except InputError as error:
            return error
        return None

    def end(self, row: LiveInput, most: int | None = None) -> Decision | None:
        """The decision on an input that is over: its last evidence stands for every
        checkpoint that is left.

        most: judge at most as many checkpoints now. None is returned if the decision has not fallen
        there; call it again then.
        """
        if row.slot < 0:
            raise row.failed or InputError(CLOSED)
        if row.time == 0:
            raise InputError("this stream ends before its first step: push one step at least.")
        if self._calibrated.rule.terms.open_answers:
            raise InputError(
                "open answers have no early end, since an answer that was not given cannot be "
                "counted: push until there is a decision, or close."
            )
        if row.separate is not None:
            judged = 0
            while row.decision is None and (most is None or judged < most):
                judged += 1
                if isinstance(row.separate, LiveSession):
                    if row.separate.decision is None:
                        row.separate.judge_next()
                    row.decision = row.separate.decision
                else:
                    row.decision = row.separate.push(cast(Reading, row.last).value)
        elif row.decision is None:
            last = len(self._calibrated.checkpoints)
            first = (
                row.time
                if row.scored
                else int(np.searchsorted(self._times, row.time, side="right"))
            )
            first = max(first, row.ended)
            checkpoints = np.arange(first, last if most is None else min(last, first + most))
            row.ended = first + len(checkpoints)
            scored = cast(Floats, row.last)
            evidence = scored if row.scored else cast(LiveSlots, self._slots).evidence(row.slot)
            left = checkpoints
            if self._prefilter is not None and not row.scored:
                repeated = np.broadcast_to(evidence, (1, len(checkpoints), *evidence.shape))
                left = checkpoints[self._prefilter.may_stop(repeated, checkpoints)[0]]
            repeated = np.broadcast_to(evidence, (len(left), *evidence.shape))
            self._judge([row] * len(left), left, repeated, row.scored)
            assert row.decision is not None or row.ended < last, (
                "every input stops at the last checkpoint"
            )
        return row.decision

    def _check(self, one: Push) -> bool:
        """Refuse a wrong push. Whether it can be computed together with others."""
        row, contents = one.row, zip(KINDS, one.contents, strict=True)
        given = [kind for kind, content in contents if content is not None]
        if len(given) != 1:
            raise InputError(
                "a push needs one of steps, frames and log_confidence, or evidence: give one."
            )
        if row.kind not in ("", *given):
            raise InputError(
                f"this input got {row.kind} and {given[0]}: open one session for each."
            )
        row.kind = given[0]
        reads = self._calibrated.rule.terms.reads
        if self._engine is None and row.kind in KINDS[:2]:
            needed = "log-confidences" if reads == "log_confidence" else reads
            raise InputError(
                f"there are no members here that could read {row.kind}: push {needed}."
            )
        if row.kind in KINDS[2:] and row.scored != (reads == "log_confidence"):
            raise InputError(f"the rule reads {reads}, and this is something else: push {reads}.")
        if row.kind == KINDS[3]:
            return False
        if row.scored:
            calibrated = self._calibrated
            array = as_log_confidence(cast(ArrayLike, one.log_confidence), "(m, K, C)")
            if self._state is not None:
                calibrated.check_sizes(array.shape[1], array.shape[2])
            return self._state is not None
        return self._slots is not None and row.kind == "events"

    def _push_separately(self, one: Push) -> Decision | None:
        """Run a push through a session of its own."""
        row, calibrated = one.row, self._calibrated
        if row.separate is None and row.kind in KINDS[2:]:
            row.separate = Session(calibrated, row.number, row.group, fresh=row.fresh)
        elif row.separate is None:
            about = calibrated, row.number, row.group, row.fresh, self._options
            row.separate = LiveSession(cast(Engine, self._engine), *about)
        for step in one.content if one.steps is None else one.steps.each():
            if isinstance(row.separate, LiveSession):
                row.decision = (
                    row.separate.push(step)
                    if row.kind == "events"
                    else row.separate.push(frame=step)
                )
            else:
                read = step if isinstance(step, Reading) else Reading(step)
                row.last, (value, cost, weight) = read, read
                row.decision = row.separate.push(value, cost=cost, weight=weight)
            row.time += 1
            if row.decision is not None:
                break
        return row.decision

    def _run_events(self, pushes: Sequence[Push], numbers: list[int], results: list[Any]) -> None:
        slots_of = cast(LiveSlots, self._slots)
        rows = [pushes[number].row for number in numbers]
        given = [cast(Steps, pushes[number].steps) for number in numbers]
        steps, slots, sources = Steps.joined(given), np.array([row.slot for row in rows]), numbers
        lengths = [len(one.counts) for one in given]
        if lengths.count(1) < len(lengths):
            slots = np.repeat(slots, lengths)
            sources = np.repeat(numbers, lengths).tolist()
        found = slots_of.push(slots, steps.pointers, steps.indices)
        if found is None:
            try:
                steps.check(slots_of.inputs, slots_of.repeats)
            except InputError:  # find the wrong ones; the others are run
                good = [
                    number
                    for number in numbers
                    if not self._refuse(pushes[number], number, results)
                ]
                if good:
                    self._run_events(pushes, good, results)
                return
            if slots_of.repeats == "once":
                steps = steps.each_once(slots_of.inputs)
            found = slots_of.push(slots, steps.pointers, steps.indices, checked=True)
        for row, length in zip(rows, lengths, strict=True):
            row.time += length
        (where, checkpoints), evidence = cast(Any, found)[0].T, cast(Any, found)[1]
        sources = [sources[step] for step in where.tolist()]
        self._judge(
            [pushes[number].row for number in sources],
            checkpoints,
            evidence,
            False,
            results,
            sources,
        )

    def _refuse(self, one: Push, number: int, results: list[Any]) -> bool:
        """Whether the events of a push are wrong; its input, and what else was pushed to it, is
        not run further.
        """
        row = one.row
        if row.failed is None:
            try:
                slots = cast(LiveSlots, self._slots)
                cast(Steps, one.steps).check(slots.inputs, slots.repeats)
            except InputError as error:
                row.failed = error
        results[number] = row.failed
        return row.failed is not None

    def _run_scores(self, pushes: Sequence[Push], numbers: list[int], results: list[Any]) -> None:
        rows: list[LiveInput] = []
        checkpoints: list[Integers] = []
        parts: list[Floats] = []
        for number in numbers:
            row = pushes[number].row
            array = np.asarray(pushes[number].log_confidence, dtype=np.float64)
            left = np.arange(
                row.time, min(row.time + len(array), len(self._calibrated.checkpoints))
            )
            checkpoints.append(left)
            parts.append(array[: len(left)])
            rows.extend([row] * len(left))
            row.time, row.last = row.time + len(array), np.array(array[-1])
        sources = np.repeat(numbers, [len(part) for part in parts]).tolist()
        self._judge(
            rows, np.concatenate(checkpoints), np.concatenate(parts), True, results, sources
        )

    def _judge(
        self,
        rows: Sequence[LiveInput],
        checkpoints: Integers,
        evidence: NDArray[Any],
        scored: bool,
        results: list[Any] | None = None,
        sources: Sequence[int] = (),
    ) -> None:
        """Judge the evidence (n, K, C) of n inputs at checkpoints (n,), which rise for each input,
        and note the decisions that fall.

        scored: whether the evidence is log-confidences. sources: the result that each belongs to.
        """
        if not rows:
            return
        calibrated, state = self._calibrated, cast(State, self._state)
        turn = {slot: at for at, slot in enumerate(dict.fromkeys(row.slot for row in rows))}
        used, inputs = np.array([*turn], np.int64), np.array([turn[row.slot] for row in rows])

        def note(where: Integers, index: Index, verdict: Verdict) -> None:
            for at in np.flatnonzero(verdict.stop).tolist():
                row, reached = rows[where[at]], index if isinstance(index, int) else int(index[at])
                row.decision = calibrated.decision(reached, verdict, row.number, at)
                if results is not None:
                    results[sources[where[at]]] = row.decision

        judge = calibrated.judge_some(evidence, scored)
        rounds = in_rounds(checkpoints, inputs, np.arange(len(checkpoints)))
        self._state = state.overwrite(used, run_rounds(judge, state.rows(used), rounds, note)[0])
