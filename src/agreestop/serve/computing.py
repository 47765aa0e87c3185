"""A batch of messages through `LiveBatch`, in the thread that computes."""

import logging
from collections.abc import Sequence
from typing import final

from agreestop.common import InputError
from agreestop.decide.decisions import Decision
from agreestop.engines.live_batch import LiveBatch, LiveInput, Push

from .protocol import Close, End, Open, PushSteps
from .sessions import Session, Work

Result = Decision | InputError | None
log = logging.getLogger("agreestop.serve")


@final
class Computing:
    """Runs the sessions of all clients together. It belongs to one thread."""

    def __init__(self, batch: LiveBatch) -> None:
        self._batch = batch

    def run(self, work: Sequence[Work]) -> list[Result]:
        """Run a batch. For each message: its decision or its error, if there is one."""
        results: list[Result] = [None] * len(work)
        try:
            pushes: list[Push] = []
            pushed: list[int] = []
            for number, one in enumerate(work):
                message, row = one.message, one.session.row
                if isinstance(message, Open):
                    results[number] = self._begin(one.session, message)
                elif isinstance(message, PushSteps) and row is not None:
                    pushes.append(Push(row, message.steps, message.log_confidence, message.frames))
                    pushed.append(number)
            for number, found in zip(pushed, self._batch.push(pushes), strict=True):
                results[number] = found
            for number, one in enumerate(work):
                if isinstance(one.message, End) and one.session.row is not None:
                    results[number] = self._end(one.session.row)
        except Exception as error:  # a fault of ours: these sessions are lost, and the others go on
            log.exception("a batch failed")
            results = [InputError(f"the server failed ({type(error).__name__}): open a new session.")] * len(work)
        for one, result in zip(work, results, strict=True):
            if (result is not None or isinstance(one.message, (End, Close))) and one.session.row is not None:
                one.session.first_risk = self._batch.close(one.session.row)
                one.session.row = None
        return results

    def _begin(self, session: Session, message: Open) -> InputError | None:
        try:
            session.row = self._batch.open(session.number, message.group, fresh=True)
        except InputError as error:
            return error
        return None

    def _end(self, row: LiveInput) -> Result:
        try:
            return None if row.decision is not None or row.failed is not None else self._batch.end(row)
        except InputError as error:
            return error
