"""Clients of the server, with and without async and await.

    with Client("ws://127.0.0.1:8000") as client:
        session = client.open()
        for indices in stream:
            if (decision := session.push(indices)) is not None:
                break
        session.label(3)                 once it is known; the drift monitor of the server uses it

A client has one connection, and any number of sessions on it. A `Client` belongs to one thread. The sessions of an `AsyncClient` may be
used by as many tasks.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self, final

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import InputError
from agreestop.decide.decisions import Decision

from .protocol import PATH, PROTOCOL, SUBPROTOCOL, read_decision, write, write_push

LARGEST_ANSWER = 1 << 20


class _Session:
    """What both kinds of session know: their number, the next step, and the answers of the server."""

    def __init__(self, session: int) -> None:
        self._id, self._step = session, 1
        self.number = -1
        """The number of the input, which matters to randomised merging and to members that are drawn for every input."""
        self.decision: Decision | None = None
        self.promise = ""
        """What the server promises about the decision, in words."""
        self._key, self._closed = "", ""

    def __repr__(self) -> str:
        return f"<session {self._id}: {self.decision or self._closed or f'step {self._step} is next'}>"

    def _push_message(self, steps: Sequence[ArrayLike] | None, log_confidence: ArrayLike | None) -> str | bytes:
        if (steps is None) == (log_confidence is None):
            raise InputError("one of indices and log_confidence is needed: push(indices), push([]) for a pause.")
        self._check_open()
        first = self._step
        if steps is not None:
            message: str | bytes = write_push(self._id, first, steps)
            self._step += len(steps)
            return message
        array = np.asarray(log_confidence, dtype=np.float64)
        if array.ndim not in (2, 3) or not np.isfinite(array).all():
            raise InputError(f"log_confidence has shape {array.shape}: finite numbers (K, C), or several of them (m, K, C), are needed.")
        self._step += len(array) if array.ndim == 3 else 1
        return write(type="push", session=self._id, step=first, log_confidence=array.tolist())

    def _check_open(self) -> None:
        if self.decision is not None:
            raise InputError(f"this input stopped at time {self.decision.time}: open a new session for the next input.")
        if self._closed:
            raise InputError(self._closed)

    def _label_message(self, label: int | None) -> str:
        if not self._key:
            raise InputError("there is no decision yet: push until there is one, then give its label.")
        return write(type="label", decision=self._key, label=None if label is None else int(label))

    def _take(self, answer: dict[str, Any]) -> None:
        """Take an answer of the server to this session."""
        match answer["type"]:
            case "opened":
                self.number = answer["number"]
            case "decision":
                self.decision, self.promise, self._key = read_decision(answer), answer["promise"], answer["decision"]
            case "closed" | "error":
                self._closed = f"the server closed this session: {answer.get('reason') or answer.get('error')}"


def _about(text: str | bytes) -> dict[str, Any]:
    """The welcome of the server."""
    answer: dict[str, Any] = json.loads(text)
    if answer.get("type") != "welcome" or answer.get("protocol") != PROTOCOL:
        raise InputError(f"the server speaks protocol {answer.get('protocol')!r}: this client speaks {PROTOCOL}.")
    return answer


def _options(token: str | None) -> dict[str, Any]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    shared = {"compression": None, "max_size": LARGEST_ANSWER, "proxy": None}
    return {"subprotocols": [SUBPROTOCOL], "additional_headers": headers, **shared}


def _cannot_connect(url: str, error: Exception) -> InputError:
    response = getattr(error, "response", None)
    said = response.body.decode(errors="replace").strip() if response is not None and response.body else str(error)
    return InputError(f"cannot connect to {url}: {said}")


@final
class ClientSession(_Session):
    """One input at the server, of a `Client`."""

    def __init__(self, client: "Client", session: int) -> None:
        super().__init__(session)
        self._client = client

    def push(self, indices: ArrayLike | None = None, *, log_confidence: ArrayLike | None = None) -> Decision | None:
        """Send the next step, and return the decision if the rule stops here, else None.

        indices: flat indices of the active inputs, [] for a pause. log_confidence: instead, (K, C) at the next checkpoint.
        """
        return self._client._push(self, None if indices is None else [indices], log_confidence)

    def push_steps(self, steps: Sequence[ArrayLike]) -> Decision | None:
        """Send several steps in one message, each a list of flat indices; steps after the decision are ignored."""
        return self._client._push(self, steps, None)

    def end(self) -> Decision:
        """The decision on a stream that is over: its last evidence stands for every checkpoint that is left."""
        self._check_open()
        self._client._ask(self, write(type="end", session=self._id))
        assert self.decision is not None
        return self.decision

    def close(self) -> None:
        """Give up the session without a decision."""
        if self.decision is None and not self._closed:
            self._client._ask(self, write(type="close", session=self._id), may_close=True)

    def label(self, label: int | None) -> tuple[str, ...]:
        """Give the label of the decision, None if it will never be known. Returns the alarms of the drift monitor so far, in words."""
        return self._client._label(self, label)


@final
class Client:
    """A connection to a server. `about`: what is served there."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        self._stack = ExitStack()
        try:
            self._socket = self._stack.enter_context(connect(url.rstrip("/") + PATH, **_options(token)))
        except (OSError, WebSocketException, ValueError) as error:
            raise _cannot_connect(url, error) from None
        self.about = _about(self._socket.recv())
        self._sessions: dict[int, ClientSession] = {}
        self._next = 0

    def open(self, *, group: Any = None) -> ClientSession:
        """Begin a session. group: that of the input, for a rule with groups."""
        session = ClientSession(self, self._next)
        self._next += 1
        self._sessions[session._id] = session
        self._ask(session, write(type="open", session=session._id, group=_plain(group)))
        return session

    def close(self) -> None:
        """End the connection; sessions without a decision are given up."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _push(self, session: ClientSession, steps: Sequence[ArrayLike] | None, log_confidence: ArrayLike | None) -> Decision | None:
        self._ask(session, session._push_message(steps, log_confidence))
        return session.decision

    def _label(self, session: ClientSession, label: int | None) -> tuple[str, ...]:
        self._send(session._label_message(label))
        while True:
            answer = self._receive()
            if answer.get("decision") == session._key and answer["type"] in ("labelled", "error"):
                return _alarms(answer)

    def _ask(self, session: ClientSession, message: str | bytes, may_close: bool = False) -> None:
        """Send a message about a session, and wait for its answer."""
        self._send(message)
        while self._receive().get("session") != session._id:
            pass
        if session.decision is not None or session._closed:
            self._sessions.pop(session._id, None)
        if session._closed and not may_close:
            raise InputError(session._closed)

    def _send(self, message: str | bytes) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            self._socket.send(message)
        except ConnectionClosed as error:
            raise _lost(error) from None

    def _receive(self) -> dict[str, Any]:
        """The next answer of the server, which its session has taken."""
        from websockets.exceptions import ConnectionClosed

        try:
            answer: dict[str, Any] = json.loads(self._socket.recv())
        except ConnectionClosed as error:
            raise _lost(error) from None
        session = self._sessions.get(answer.get("session", -1))
        if session is not None:
            session._take(answer)
        elif answer["type"] == "error" and "decision" not in answer and answer.get("session") is None:
            raise InputError(f"the server refused a message: {answer['error']}")
        return answer


@final
class AsyncSession(_Session):
    """One input at the server, of an `AsyncClient`; see `ClientSession`."""

    def __init__(self, client: "AsyncClient", session: int) -> None:
        super().__init__(session)
        self._client = client
        self._answered: asyncio.Future[None] | None = None

    async def push(self, indices: ArrayLike | None = None, *, log_confidence: ArrayLike | None = None) -> Decision | None:
        """Send the next step, and return the decision if the rule stops here, else None."""
        return await self._push(None if indices is None else [indices], log_confidence)

    async def push_steps(self, steps: Sequence[ArrayLike]) -> Decision | None:
        """Send several steps in one message; steps after the decision are ignored."""
        return await self._push(steps, None)

    async def end(self) -> Decision:
        """The decision on a stream that is over."""
        self._check_open()
        await self._ask(write(type="end", session=self._id))
        assert self.decision is not None
        return self.decision

    async def close(self) -> None:
        """Give up the session without a decision."""
        if self.decision is None and not self._closed:
            await self._ask(write(type="close", session=self._id), may_close=True)

    async def label(self, label: int | None) -> tuple[str, ...]:
        """Give the label of the decision. Returns the alarms of the drift monitor so far, in words."""
        return await self._client._label(self._label_message(label), self._key)

    async def _push(self, steps: Sequence[ArrayLike] | None, log_confidence: ArrayLike | None) -> Decision | None:
        await self._ask(self._push_message(steps, log_confidence))
        return self.decision

    async def _ask(self, message: str | bytes, may_close: bool = False) -> None:
        if self._answered is not None:
            raise InputError("the session waits for an answer: await one push before the next.")
        self._answered = asyncio.get_running_loop().create_future()
        try:
            await self._client._send(message)
            await self._answered
        finally:
            self._answered = None
        if self.decision is not None or self._closed:
            self._client._sessions.pop(self._id, None)
        if self._closed and not may_close:
            raise InputError(self._closed)

    def _take(self, answer: dict[str, Any]) -> None:
        super()._take(answer)
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(None)


@final
class AsyncClient:
    """A connection to a server, as a context: `async with AsyncClient(url) as client`. `about`: what is served there."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        self._url, self._token = url, token
        self.about: dict[str, Any] = {}
        self._sessions: dict[int, AsyncSession] = {}
        self._labels: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._next, self._error = 0, ""

    async def __aenter__(self) -> Self:
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException

        try:
            self._socket = await connect(self._url.rstrip("/") + PATH, **_options(self._token))
        except (OSError, WebSocketException, ValueError) as error:
            raise _cannot_connect(self._url, error) from None
        self.about = _about(await self._socket.recv())
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._socket.close()
        await self._reader

    async def open(self, *, group: Any = None) -> AsyncSession:
        """Begin a session. group: that of the input, for a rule with groups."""
        session = AsyncSession(self, self._next)
        self._next += 1
        self._sessions[session._id] = session
        await session._ask(write(type="open", session=session._id, group=_plain(group)))
        return session

    async def _send(self, message: str | bytes) -> None:
        from websockets.exceptions import ConnectionClosed

        if self._error:
            raise InputError(self._error)
        try:
            await self._socket.send(message)
        except ConnectionClosed as error:
            raise _lost(error) from None

    async def _label(self, message: str, key: str) -> tuple[str, ...]:
        answered = self._labels.setdefault(key, asyncio.get_running_loop().create_future())
        try:
            await self._send(message)
            return _alarms(await answered)
        finally:
            self._labels.pop(key, None)

    async def _read(self) -> None:
        """Hand every answer to the session that waits for it, until the connection ends."""
        from websockets.exceptions import ConnectionClosed

        try:
            while True:
                answer = json.loads(await self._socket.recv())
                if "decision" in answer and answer["type"] in ("labelled", "error"):
                    if (label := self._labels.get(answer["decision"])) is not None and not label.done():
                        label.set_result(answer)
                elif (session := self._sessions.get(answer.get("session", -1))) is not None:
                    session._take(answer)
                elif answer["type"] == "error" and answer.get("session") is None:
                    self._error = f"the server refused a message: {answer['error']}"
        except ConnectionClosed as error:
            lost = InputError(self._error) if self._error else _lost(error)
            self._error = str(lost)
            waiting = [session._answered for session in self._sessions.values()]
            for future in [*waiting, *self._labels.values()]:
                if future is not None and not future.done():
                    future.set_exception(lost)


def _lost(error: Exception) -> InputError:
    return InputError(f"the connection to the server ended ({error}): connect again; sessions without a decision are lost.")


def _alarms(answer: dict[str, Any]) -> tuple[str, ...]:
    if answer["type"] == "error":
        raise InputError(answer["error"])
    return tuple(answer["alarms"])


def _plain(group: Any) -> Any:
    """A group as JSON has it."""
    return group.tolist() if isinstance(group, (np.generic, np.ndarray)) else group
