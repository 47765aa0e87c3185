"""A batch of messages through `LiveBatch`, in the thread that computes."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from time import perf_counter, thread_time
from typing import final

from agreestop.common import InputError
from agreestop.decide.decisions import Decision
from agreestop.engines.live_batch import LiveBatch, LiveInput, Push

from .protocol import Close, End, Open, PushSteps
from .sessions import Session, Work


class Progress(Enum):
    """How far a message is."""

    UNFINISHED = "the next tick goes on with it"


Result = Decision | InputError | Progress | None
log = logging.getLogger("agreestop.serve")


@dataclass(frozen=True, eq=False)
class Computed:
    """What became of a batch: a result for each message, the steps that were run, and the
    seconds that it took.

    cpu_seconds: of this thread alone, without those in which it waited for the interpreter.
    """

    results: list[Result]
    steps: int
    seconds: float
    cpu_seconds: float


@final
class Computing:
    """Runs the sessions of all clients together. It belongs to one thread."""

    def __init__(self, batch: LiveBatch) -> None:
        self._batch = batch
        self._steps = 0

    def run(self, work: Sequence[Work], units: Sequence[int]) -> Computed:
        """Run a batch, of each message at most about so many units: steps, or checkpoints of a
        stream that is over.

        For each message: its decision or its error, if there is one; UNFINISHED if there
        is more to do.
        """
        began, cpu_began = perf_counter(), thread_time()
        self._steps = 0
        results = self._run(work, units)
        return Computed(results, self._steps, perf_counter() - began, thread_time() - cpu_began)

    def _run(self, work: Sequence[Work], units: Sequence[int]) -> list[Result]:
        results: list[Result] = [None] * len(work)
        try:
            pushes: list[Push] = []
            pushed: list[int] = []
            rests: list[PushSteps | None] = []
            for number, (one, most) in enumerate(zip(work, units, strict=True)):
                message, row = one.message, one.session.row
                if isinstance(message, Open):
                    results[number] = self._begin(one.session, message)
                elif isinstance(message, PushSteps) and row is not None:
                    part, rest = message.cut(most)
                    # wrong steps are refused before the first is run
                    if rest is not None and not one.begun:
                        results[number] = self._batch.check(message.push(row))
                    if results[number] is None:
                        self._steps += len(part)
                        pushes.append(part.push(row))
                        pushed.append(number)
                        rests.append(rest)
            for number, rest, found in zip(pushed, rests, self._batch.push(pushes), strict=True):
                results[number] = found
                if found is None and rest is not None:
                    work[number].message, work[number].begun = rest, True
                    results[number] = Progress.UNFINISHED
            for number, (one, most) in enumerate(zip(work, units, strict=True)):
                if isinstance(one.message, End) and one.session.row is not None:
                    results[number] = self._end(one.session.row, most)
        except Exception as error:  # a fault of ours: these sessions are lost, and the others go on
            log.exception("a batch failed")
            results = [
                InputError(f"the server failed ({type(error).__name__}): open a new session.")
            ] * len(work)
        for one, result in zip(work, results, strict=True):
            over = result is not None or isinstance(one.message, (End, Close))
            if over and result is not Progress.UNFINISHED and one.session.row is not None:
                one.session.first_risk = self._batch.close(one.session.row)
                one.session.row = None
        return results

    def _begin(self, session: Session, message: Open) -> InputError | None:
        try:
            session.row = self._batch.open(session.number, message.group, fresh=True)
        except InputError as error:
            return error
        return None

    def _end(self, row: LiveInput, most: int) -> Result:
        if row.decision is not None or row.failed is not None:
            return None
        try:
            return self._batch.end(row, most) or Progress.UNFINISHED
        except InputError as error:
            return error
