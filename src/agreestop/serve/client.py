"""Clients of the server, with and without async and await.

    with Client("ws://127.0.0.1:8000") as client:
        session = client.open()
        for indices in stream:
            if (decision := session.push(indices)) is not None:
                break
        session.label(3)                 once it is known; the drift monitor of the server uses it

A client has one connection, and any number of sessions on it. A `Client` belongs to one thread. The
sessions of an `AsyncClient` may be used by as many tasks.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self, final

from numpy.typing import ArrayLike

from agreestop.common import InputError, needs
from agreestop.decide.decisions import Decision

from .client_session import (
    WELCOME_SECONDS,
    SharedSession,
    cannot_connect,
    connect_options,
    connection_lost,
    live_address,
    read_alarms,
    read_answer,
    read_welcome,
)
from .protocol import write


@final
class ClientSession(SharedSession):
    """One input at the server, of a `Client`."""

    def __init__(self, client: "Client", session: int) -> None:
        super().__init__(session)
        self._client = client
        self._due = 0  # messages without an answer; more than one after a push that was interrupted

    def push(
        self,
        indices: ArrayLike | None = None,
        *,
        frame: ArrayLike | None = None,
        log_confidence: ArrayLike | None = None,
    ) -> Decision | None:
        """Send the next step, and return the decision if the rule stops here, else None.

        indices: flat indices of the active inputs, [] for a pause. frame: instead, one dense step
        of booleans or numbers. log_confidence: instead, (K, C) at the next checkpoint, or (m, K, C)
        at the next m. A session gets one of the three.
        """
        self._client._ask(self, self._step_message(indices, frame, log_confidence))
        return self.decision

    def push_steps(
        self, steps: Sequence[ArrayLike] | None = None, *, frames: ArrayLike | None = None
    ) -> Decision | None:
        """Send several steps in one message, each a list of flat indices, or frames (m, ...);
        steps after the decision are ignored.
        """
        self._client._ask(self, self._steps_message(steps, frames))
        return self.decision

    def end(self) -> Decision:
        """The decision on a stream that is over: its last evidence stands for every
        checkpoint that is left.
        """
        self._check_open()
        self._client._ask(self, write(type="end", session=self._id))
        assert self.decision is not None
        return self.decision

    def close(self) -> None:
        """Give up the session without a decision."""
        if self.decision is None and not self._closed:
            self._client._ask(self, write(type="close", session=self._id), may_close=True)

    def label(self, label: int | None) -> tuple[str, ...]:
        """Give the label of the decision, None if it will never be known.

        Returns the alarms of the drift monitor so far, in words.
        """
        return self._client._label(self, label)


@final
class Client:
    """A connection to a server. `about`: what is served there."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        with needs("a client"):
            from websockets.exceptions import WebSocketException
            from websockets.sync.client import connect

        address = live_address(url)
        self._stack = ExitStack()
        try:
            self._socket = self._stack.enter_context(connect(address, **connect_options(token)))
            self.about = read_welcome(self._socket.recv(timeout=WELCOME_SECONDS))
        except (OSError, WebSocketException, ValueError) as error:
            self._stack.close()
            raise cannot_connect(url, error) from None
        self._sessions: dict[int, ClientSession] = {}
        self._labels_due: dict[str, int] = {}
        self._next, self._is_sending = 0, False

    def open(self, *, group: Any = None) -> ClientSession:
        """Begin a session. group: that of the input, for a rule with groups."""
        session = ClientSession(self, self._next)
        message = session._open_message(group)
        self._next += 1
        self._sessions[session._id] = session
        self._ask(session, message)
        return session

    def close(self) -> None:
        """End the connection; sessions without a decision are given up."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _label(self, session: ClientSession, label: int | None) -> tuple[str, ...]:
        message, key = session._label_message(label), session._key
        self._labels_due[key] = self._labels_due.get(key, 0) + 1
        self._send(message)
        while True:
            answer = self._receive()
            if answer.get("decision") == key and answer["type"] in ("labelled", "error"):
                self._labels_due[key] -= 1
                # else it is the answer to a label that was interrupted
                if not self._labels_due[key]:
                    del self._labels_due[key]
                    return read_alarms(answer)

    def _ask(self, session: ClientSession, message: str | bytes, may_close: bool = False) -> None:
        """Send a message about a session, and wait for its answer, behind those to messages that
        were interrupted.
        """
        session._due += 1
        self._send(message)
        while session._due:
            self._receive()
        if session._closed and session.decision is None and not may_close:
            raise InputError(session._closed)

    def _send(self, message: str | bytes) -> None:
        from websockets.exceptions import ConnectionClosed

        if self._is_sending:
            raise InputError(
                "an earlier message was interrupted while it was sent, perhaps in its middle: "
                "connect again."
            )
        self._is_sending = True
        try:
            self._socket.send(message)
        except ConnectionClosed as error:
            self._is_sending = False
            raise connection_lost(error) from None
        self._is_sending = False

    def _receive(self) -> dict[str, Any]:
        """The next answer of the server, which its session has taken."""
        from websockets.exceptions import ConnectionClosed

        try:
            answer = read_answer(self._socket.recv())
        except ConnectionClosed as error:
            raise connection_lost(error) from None
        session = self._sessions.get(answer.get("session", -1))
        if session is not None:
            session._take(answer)
            over = session.decision is not None or bool(session._closed)
            session._due = 0 if over else max(0, session._due - 1)
            if over:
                del self._sessions[session._id]
        elif (
            answer["type"] == "error" and "decision" not in answer and answer.get("session") is None
        ):
            raise InputError(f"the server refused a message: {answer['error']}")
        return answer
