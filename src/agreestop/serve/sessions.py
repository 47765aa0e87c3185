"""What the server keeps of its clients: connections, their sessions, and the messages that
are on their way.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import final

from agreestop.engines.live_batch import LiveInput

from .limits import Limits
from .protocol import Message

MESSAGE_COST = 1000  # bytes that a queued message counts beyond its own


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
        self.sessions: dict[int, Session] = {}
        self.work: deque[Work] = deque()
        self.outbox: asyncio.Queue[str | tuple[int, str]] = asyncio.Queue()
        self.queued, self.labels, self.seen, self.sending_since = 0, 0, monotonic(), 0.0
        self.turn, self.rest = 0.0, 0.0
        self.ended, self.ended_at, self.dropped = False, 0.0, False
        self._abort = abort
        self._most = limits.queued_bytes // MESSAGE_COST + 2 * limits.sessions_per_client

    def send(self, text: str) -> bool:
        """Queue an answer. False if the client does not read: it is dropped."""
        if not self.ended:
            if self.outbox.qsize() >= self._most:
                self.drop()
                return False
            self.outbox.put_nowait(text)
        return True

    def finish(self, code: int, reason: str) -> None:
        """Close the connection once all answers are sent."""
        if not self.ended:
            self.end()
            self.outbox.put_nowait((code, reason[:100]))

    def drop(self) -> None:
        """End the connection at once."""
        self.end()
        self.dropped = True
        self._abort()

    def end(self) -> None:
        """Take no more messages."""
        self.ended, self.ended_at = True, self.ended_at or monotonic()


@final
class Session:
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

    next_step: of a push, the step after it. reason: of a close, why; wrong: whether a bad message
    is the reason.
    """

    session: Session
    message: Message
    cost: int = 0
    received: float = 0.0
    next_step: int = 0
    reason: str = ""
    wrong: bool = False
    begun: bool = False
