"""What the server keeps of its clients: connections, their sessions, and the messages that are on
their way through `LiveBatch`, in the thread that computes.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from time import monotonic, perf_counter, thread_time
from typing import final

from agreestop.common import InputError
from agreestop.decide.decisions import Decision
from agreestop.decide.spotting import Detection
from agreestop.engines.live_batch import LiveBatch, LiveInput, Push

from .limits import Limits
from .protocol import Close, End, Message, Open, PushSteps
from .streams import Streams

MESSAGE_COST = 1000  # bytes that a queued message counts beyond its own
AT_ONCE = 64  # answers that are written in one call
log = logging.getLogger("agreestop.serve")


@final
class Connection:
    """One client: its open sessions, its messages that wait to be computed, and the answers that
    wait to be sent.

    queued    bytes of its messages that wait for their answers; `labels` of them are labels
    turn      when its messages began to be read, rather than those of others; rest: seconds for
              which no more are read
    ended_at  when its end began; it is dropped if it does not read what is left for it
    abort     ends the connection at once, without sending what is left
    """

    def __init__(self, limits: Limits, abort: Callable[[], object]) -> None:
        self.sessions: dict[int, ServedSession] = {}
        self.work: deque[Work] = deque()
        self.outbox: deque[str | tuple[int, str]] = deque()
        self._filled = asyncio.Event()
        self.queued, self.labels, self.seen, self.sending_since = 0, 0, monotonic(), 0.0
        self.turn, self.rest = 0.0, 0.0
        self.ended, self.ended_at, self.dropped = False, 0.0, False
        self._abort = abort
        self._most = limits.queued_bytes // MESSAGE_COST + 2 * limits.sessions_per_client

    def send(self, text: str) -> bool:
        """Queue an answer. False if the client does not read: it is dropped."""
        if not self.ended:
            if len(self.outbox) >= self._most:
                self.drop()
                return False
            self.outbox.append(text)
            self._filled.set()
        return True

    async def answers(self) -> list[str | tuple[int, str]]:
        """The answers that wait to be sent, one at least; a pair, which closes the connection, is
        the last.
        """
        while not self.outbox:
            self._filled.clear()
            await self._filled.wait()
        return [self.outbox.popleft() for _ in range(min(AT_ONCE, len(self.outbox)))]

    def finish(self, code: int, reason: str) -> None:
        """Close the connection once all answers are sent."""
        if not self.ended:
            self.end()
            self.outbox.append((code, reason[:100]))
            self._filled.set()

    def drop(self) -> None:
        """End the connection at once."""
        self.end()
        self.dropped = True
        self._abort()

    def end(self) -> None:
        """Take no more messages."""
        self.ended, self.ended_at = True, self.ended_at or monotonic()


@final
class ServedSession:
    """One input of a client.

    `step` is the number of the next step, `seen` the time of the last push, `began` the time of the
    first message. `number` is its place in the order of opening, and `first_risk` the risk at its
    first checkpoint, once it is closed.
    """

    __slots__ = (
        "began",
        "connection",
        "ending",
        "first_risk",
        "id",
        "number",
        "row",
        "seen",
        "step",
    )

    def __init__(self, connection: Connection, session: int, number: int) -> None:
        self.connection, self.id, self.number, self.step = connection, session, number, 1
        self.row: LiveInput | None = None  # belongs to the thread that computes
        self.first_risk: float | None = None
        self.ending, self.seen = False, monotonic()
        self.began = self.seen


@dataclass(eq=False, slots=True)
class Work:
    """A message on its way through one tick or several; `message` is what is left of it.

    units: about how much work is left, in steps. next_step: of a push, the step after it. reason:
    of a close, why; wrong: whether a bad message is the reason. found: what it found so far in a
    stream without an end.
    """

    session: ServedSession
    message: Message
    units: int = 1
    cost: int = 0
    received: float = 0.0
    next_step: int = 0
    reason: str = ""
    wrong: bool = False
    begun: bool = False
    found: tuple[Detection | Decision, ...] = ()


class Progress(Enum):
    """How far a message is."""

    UNFINISHED = "the next tick goes on with it"


Result = Decision | InputError | Progress | None


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

    def __init__(self, batch: LiveBatch | Streams) -> None:
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
                    part, rest = (message, None) if one.units <= most else message.cut(most)
                    # wrong steps are refused before the first is run
                    if rest is not None and not one.begun:
                        results[number] = self._batch.check(message.push(row))
                    if results[number] is None:
                        self._steps += len(part)
                        pushes.append(part.push(row))
                        pushed.append(number)
                        rests.append(rest)
            founds = self._batch.push(pushes)
            for number, push, rest, found in zip(pushed, pushes, rests, founds, strict=True):
                if isinstance(found, tuple):
                    work[number].found, found = (*work[number].found, *found), push.row.failed
                results[number] = found
                if found is None and rest is not None:
                    one = work[number]
                    one.message, one.units, one.begun = rest, rest.units, True
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
                row, one.session.row = one.session.row, None
                one.session.first_risk = self._batch.close(row)
                one.reason = f"{one.reason} {row.note}".strip()
        return results

    def _begin(self, session: ServedSession, message: Open) -> InputError | None:
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
