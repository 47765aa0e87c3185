"""The client with async and await: its sessions may be used by as many tasks.

async with AsyncClient("ws://127.0.0.1:8000") as client:
    session = await client.open()
    decision = await session.push(indices)
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar, cast, final

from numpy.typing import ArrayLike

from agreestop.common import InputError, needs
from agreestop.decide.decisions import Decision
from agreestop.decide.spotting import Detection

from .client import (
    ATTEMPTS,
    RECONNECT_SECONDS,
    WELCOME_SECONDS,
    CannotConnect,
    ConnectionLost,
    Result,
    SharedSession,
    as_seconds,
    cannot_connect,
    connect_options,
    connection_lost,
    live_address,
    pauses,
    read_alarms,
    read_answer,
    read_welcome,
)
from .protocol import CLOSED_BY_CLIENT, write


class SharedAsyncSession(SharedSession):
    """What sessions of an `AsyncClient` share.

    A push that is cancelled has been sent, and the server runs its step: its answer is awaited by
    nobody, but goes to no other push.
    """

    def __init__(self, client: "AsyncClient", session: int) -> None:
        super().__init__(session, client.about)
        self._client = client
        # for each message without an answer, who waits for it; in their order
        self._due: deque[asyncio.Future[None]] = deque()

    async def _ask(self, message: str | bytes, may_close: bool = False) -> None:
        if any(not waits.done() for waits in self._due):
            raise InputError("the session waits for an answer: await one push before the next.")
        answered = asyncio.get_running_loop().create_future()
        self._due.append(answered)
        try:
            await self._client._send(message)
        except InputError as error:
            if not answered.cancel():
                answered.exception()  # it is raised here
            if self.lost and may_close:
                return
            raise self._error() if self.lost else error from None
        try:
            await answered
        except ConnectionLost:
            if not may_close:
                raise
        told = self.decision is not None or bool(self._found)  # before the session was closed
        if self._closed and not told and not may_close:
            raise self._error()

    def _take(self, answer: dict[str, Any]) -> None:
        super()._take(answer)
        over = self.decision is not None or bool(self._closed)
        for waits in [
            self._due.popleft() for _ in range(len(self._due) if over else min(1, len(self._due)))
        ]:
            if not waits.done():
                waits.set_result(None)
        if over:
            self._client._sessions.pop(self._id, None)


@final
class AsyncSession(SharedAsyncSession):
    """One input at the server, of an `AsyncClient`; see `ClientSession`."""

    async def push(
        self,
        step: Any = None,
        *,
        frame: ArrayLike | None = None,
        log_confidence: ArrayLike | None = None,
        cost: float | None = None,
        weight: float | None = None,
    ) -> Decision | None:
        """Send the next step, and return the decision if the rule stops here, else None."""
        await self._ask(self._step_message(step, frame, log_confidence, cost, weight))
        return self.decision

    async def push_steps(
        self,
        steps: Sequence[Any] | None = None,
        *,
        frames: ArrayLike | None = None,
        cost: Sequence[float] | None = None,
        weight: Sequence[float] | None = None,
    ) -> Decision | None:
        """Send several steps in one message; steps after the decision are ignored."""
        await self._ask(self._steps_message(steps, frames, cost, weight))
        return self.decision

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

    async def label(self, label: int | float | str | None) -> tuple[str, ...]:
        """Give the label of the decision. Returns the alarms of the drift monitor so
        far, in words.
        """
        return await self._client._label(self, label)


@final
class AsyncWatch(SharedAsyncSession):
    """One stream without an end at the server, of an `AsyncClient`; see `ClientWatch`.

    Examples
    --------
    With a server that `agreestop serve SPOTTER` started::

        async with ag.serve.AsyncClient("ws://127.0.0.1:8000") as client:
            stream = await client.watch()
            for score in scores:
                found = await stream.push(score)
                if found is not None:
                    print(found)
    """

    endless = True

    async def push(
        self, step: Any = None, *, frame: ArrayLike | None = None
    ) -> Detection | Decision | None:
        """Send the next step: a `Detection`, later the `Decision` on what follows, or None."""
        await self._ask(self._step_message(step, frame, None, None, None))
        return self._found.popleft() if self._found else None

    async def push_steps(
        self, steps: Sequence[Any] | None = None, *, frames: ArrayLike | None = None
    ) -> list[Detection | Decision]:
        """Send several steps in one message. Returns what they found, in order."""
        await self._ask(self._steps_message(steps, frames))
        found = list(self._found)
        self._found.clear()
        return found

    async def close(self) -> str:
        """End the stream. Returns a sentence if a detection has no decision yet, else ""."""
        if not self._closed:
            await self._ask(write(type="close", session=self._id), may_close=True)
        return self._closed.partition(CLOSED_BY_CLIENT)[2].strip()


Opened = TypeVar("Opened", AsyncSession, AsyncWatch)


@final
class AsyncClient:
    """A connection to a server, as a context: `async with AsyncClient(url) as client`.

    `about`: what is served there.
    """

    def __init__(
        self, url: str, *, token: str | None = None, reconnect: float = RECONNECT_SECONDS
    ) -> None:
        self._url, self._token, self._reconnect = url, token, as_seconds(reconnect)
        self._is_closed, self._connecting = False, asyncio.Lock()
        self._lost = False  # whether the error is that the connection ended
        self.about: dict[str, Any] = {}
        self._sessions: dict[int, SharedAsyncSession] = {}
        self._labels: dict[str, deque[asyncio.Future[dict[str, Any]]]] = {}
        # sessions whose opening was cancelled, on their way to be closed
        self._unwanted: set[asyncio.Task[None]] = set()
        self._next, self._error = 0, ""

    async def __aenter__(self) -> Self:
        await self._connect()
        return self

    async def _connect(self) -> None:
        with needs("a client"):
            from websockets.asyncio.client import connect
            from websockets.exceptions import WebSocketException

            from .short_way import ShortWay

        address, options = live_address(self._url), connect_options(self._token)
        try:
            connected = await connect(address, create_connection=ShortWay, **options)
            self._socket = cast(ShortWay, connected)
            try:
                self.about = read_welcome(
                    await asyncio.wait_for(self._socket.recv(), WELCOME_SECONDS)
                )
            except BaseException:
                await self._socket.close()
                raise
        except (OSError, WebSocketException, ValueError) as error:
            raise cannot_connect(self._url, error) from None
        self._error, self._lost = "", False
        self._socket.begin(self._take)
        self._reader = asyncio.create_task(self._read())

    async def _connect_again(self) -> None:
        """Connect where the connection has ended."""
        if self._is_closed:
            raise InputError("this client is closed: make a new one.")
        async with self._connecting:
            if not self._lost:
                return None
            await self._reader  # which must not take the next connection for the one that ended
            failed: InputError = ConnectionLost(self._error)
            for pause in pauses(self._reconnect):
                try:
                    return await self._connect()
                except CannotConnect as error:
                    if not error.may_pass:
                        raise
                    failed = error
                    await asyncio.sleep(pause)
            raise failed

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_closed = True
        await self._socket.close()
        await self._reader

    async def open(self, *, group: Any = None) -> AsyncSession:
        """Begin a session. group: that of the input, for a rule with groups."""
        return await self._retry(lambda again: self._begin(AsyncSession(self, self._next), group))

    async def watch(self) -> AsyncWatch:
        """Begin a stream without an end, at a server with a spotter."""
        return await self._retry(lambda again: self._begin(AsyncWatch(self, self._next), None))

    async def _retry(self, work: Callable[[bool], Awaitable[Result]]) -> Result:
        """What `work(again)` gives, connected; again: it was tried before, and the connection
        ended.
        """
        for left in reversed(range(ATTEMPTS)):
            await self._connect_again()
            try:
                return await work(left < ATTEMPTS - 1)
            except ConnectionLost:
                if not left or not self._reconnect:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _begin(self, session: Opened, group: Any) -> Opened:
        """Open a session."""
        message = session._open_message(group)
        self._next += 1
        self._sessions[session._id] = session
        try:
            await session._ask(message)
        except asyncio.CancelledError:  # the server opens it all the same
            task = asyncio.create_task(self._give_up(session))
            self._unwanted.add(task)
            task.add_done_callback(self._unwanted.discard)
            raise
        return session

    async def _give_up(self, session: SharedAsyncSession) -> None:
        with suppress(InputError):  # the connection is gone, and the session with it
            await session._ask(write(type="close", session=session._id), may_close=True)

    async def _send(self, message: str | bytes) -> None:
        from websockets.exceptions import ConnectionClosed

        if self._error:
            raise (ConnectionLost if self._lost else InputError)(self._error)
        try:
            await self._socket.send(message)
        except ConnectionClosed as error:
            raise self._lose(str(error)) from None

    async def _label(
        self, session: AsyncSession, label: int | float | str | None
    ) -> tuple[str, ...]:
        session._label_message(label)  # refuses what is no label
        return await self._retry(lambda again: self._label_once(session, label, again))

    async def _label_once(
        self, session: AsyncSession, label: int | float | str | None, again: bool
    ) -> tuple[str, ...]:
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        message = session._label_message(label, again)
        self._labels.setdefault(session._key, deque()).append(answered)
        await self._send(message)
        return read_alarms(await answered)

    async def _read(self) -> None:
        """Take the answers that come in parts, until the connection ends."""
        from websockets.exceptions import ConnectionClosed

        try:
            while True:
                self._take(await self._socket.recv())
        except ConnectionClosed as error:
            self._lose(self._error or str(error))

    def _take(self, text: str | bytes) -> None:
        """Hand an answer to the session that waits for it."""
        try:
            answer = read_answer(text)
        except InputError as error:
            self._error = str(error)
            self._fail(error)
            return
        if "decision" in answer and answer["type"] in ("labelled", "error"):
            self._take_label(answer)
        elif (session := self._sessions.get(answer.get("session", -1))) is not None:
            session._take(answer)
        elif answer["type"] == "error" and answer.get("session") is None:
            self._error = f"the server refused a message: {answer['error']}"

    def _lose(self, reason: str) -> ConnectionLost:
        """The connection has ended, and all sessions with it."""
        lost = ConnectionLost(reason) if reason == self._error else connection_lost(reason)
        self._error, self._lost = str(lost), True
        for session in self._sessions.values():
            session._lose(reason)
        self._fail(lost)
        self._sessions.clear()
        self._labels.clear()
        return lost

    def _fail(self, error: InputError) -> None:
        """Let nobody wait for an answer any more."""
        waiting: list[tuple[asyncio.Future[Any], InputError]] = [
            (one, session._error() if session.lost else error)
            for session in self._sessions.values()
            for one in session._due
        ]
        waiting += [(one, error) for labels in self._labels.values() for one in labels]
        for future, reason in waiting:
            if not future.done():
                future.set_exception(reason)

    def _take_label(self, answer: dict[str, Any]) -> None:
        """Hand the answer to a label to the first that waits for it, which may have
        been cancelled.
        """
        key = answer["decision"]
        if waiting := self._labels.get(key):
            first = waiting.popleft()
            if not first.done():
                first.set_result(answer)
            if not waiting:
                del self._labels[key]
