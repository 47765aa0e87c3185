"""The connections of a server: how many there may be, and how long each may take.

uvicorn reads requests and WebSockets; the two protocols here add what it leaves open:

    deadlines     a request, a handshake, a message and an answer each have some seconds; then the
                  connection is aborted
    connections   there are at most `most`; those that are no WebSocket yet are few in all and for
                  each address, else the oldest go
    control       pings and pongs are few, and are never written to a client that does not read
    reading       a little at a time, and a client whose bytes took long to read rests
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import thread_time
from typing import Any, Protocol, final

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

from .frames import SHORT, FrameReader, write_frame

WAITING, WAITING_OF_ADDRESS = 512, 128  # connections that are no WebSocket yet
WAITING_SECONDS = 1.0  # that each of them has at least, however many there are
MESSAGE_SECONDS = 30.0  # for all of a WebSocket message
CONTROL_FRAMES, CONTROL_RATE = 60, 10.0  # pings and pongs at once, and a second
FRAGMENTS = 64  # frames of one message
READ_BYTES = 4096  # at a time from one connection
AHEAD = 16  # messages that wait to be taken; then no more is read
# seconds of the event loop; the time that the connection rests, in multiples of that
SLOW_TO_READ, RESTS = 0.001, 25
log = logging.getLogger("agreestop.serve")


class Guarded(Protocol):
    """A connection that can say whether it takes too long."""

    transport: asyncio.Transport

    def is_late(self, now: float) -> bool:
        """Whether its deadline is over."""


@final
class Door:
    """All connections of a server.

    most             connections at once
    request_seconds  for a whole request or handshake
    slow_seconds     for which a client may not read what was written
    """

    def __init__(self, most: int, request_seconds: float, slow_seconds: float) -> None:
        self.most, self.request_seconds, self.slow_seconds = most, request_seconds, slow_seconds
        self.open: set[Guarded] = set()
        self.refused = self.late = 0
        self._waiting: dict[str, dict[Http, float]] = {}  # by address: since when, the oldest first
        # since when something is written that the client has not read
        self._unread: dict[Guarded, float] = {}

    @property
    def waiting(self) -> int:
        """How many connections are no WebSocket yet."""
        return sum(map(len, self._waiting.values()))

    def enter(self, connection: Guarded, address: str, now: float) -> None:
        """Let a connection in, or abort it where there are too many."""
        if len(self.open) >= self.most:
            crowd = max(self._waiting.values(), key=len, default={})
            late = self.late
            # the place of one that has waited is free in a moment
            self._make_room(crowd, len(crowd) - 1, now)
            if self.late == late:
                self.refused += 1
                connection.transport.abort()
                return
        self.open.add(connection)
        if isinstance(connection, Http):
            self._waiting.setdefault(address, {})[connection] = now
            self._make_room(self._waiting[address], WAITING_OF_ADDRESS, now)

    def _make_room(self, waiting: "dict[Http, float]", most: int, now: float) -> None:
        """Abort the oldest of too many connections, but none that has just come."""
        for connection, since in list(waiting.items())[: max(0, len(waiting) - most)]:
            if now - since <= WAITING_SECONDS:
                break
            self.late += 1
            del waiting[connection]
            connection.transport.abort()

    def leave(self, connection: Guarded, address: str) -> None:
        """A connection is gone, or has become a WebSocket."""
        self.open.discard(connection)
        self._unread.pop(connection, None)
        here = self._waiting.get(address, {})
        here.pop(connection, None)  # type: ignore[call-overload]
        if not here:
            self._waiting.pop(address, None)

    async def watch(self) -> None:
        """Abort connections whose deadlines are over, for ever."""
        while True:
            await asyncio.sleep(min(1.0, self.request_seconds / 4, self.slow_seconds / 4))
            now = asyncio.get_running_loop().time()
            addresses = sorted(self._waiting.values(), key=len)
            for left, waiting in enumerate(reversed(addresses)):
                share = (
                    max(1, WAITING // (len(addresses) - left))
                    if self.waiting > WAITING
                    else WAITING_OF_ADDRESS
                )
                self._make_room(waiting, min(share, WAITING_OF_ADDRESS), now)
            for connection in list(self.open):
                if self._is_late(connection, now):
                    self.late += 1
                    connection.transport.abort()

    def _is_late(self, connection: Guarded, now: float) -> bool:
        transport = connection.transport
        if transport.get_write_buffer_size() and (
            transport.is_closing() or isinstance(connection, Http)
        ):
            if now - self._unread.setdefault(connection, now) > self.slow_seconds:
                return True
        else:
            self._unread.pop(connection, None)
        return connection.is_late(now)


@final
class Http(H11Protocol):
    """uvicorn's HTTP, with deadlines."""

    def __init__(self, door: Door, **settings: Any) -> None:
        super().__init__(**settings)
        self._door, self._address = door, ""
        self._since: float | None = None  # since when a request is awaited or read
        answer = self.app

        async def answer_unless_gone(scope: Any, receive: Any, send: Any) -> None:
            scope["is_gone"] = self.transport.is_closing
            await answer(scope, receive, send)

        self.app = answer_unless_gone

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self._since = self.loop.time()
        if hasattr(transport, "max_size"):  # of asyncio's own loop; others read what they like
            transport.max_size = READ_BYTES
        self._door.enter(self, self._address, self._since)

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.leave(self, self._address)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        _survive(super().data_received, data, self.transport)
        if self.cycle is not None and not self.cycle.response_complete:
            self._since = None
        elif self._since is None:
            self._since = self.loop.time()

    def handle_websocket_upgrade(self, event: Any) -> None:
        self._door.leave(self, self._address)
        super().handle_websocket_upgrade(event)
        # a client that did not wait for the answer: uvicorn would lose this
        early, _ = self.conn.trailing_data
        websocket = self.transport.get_protocol()
        if early and isinstance(websocket, WebSocket):
            websocket.data_received(early)

    def is_late(self, now: float) -> bool:
        return self._since is not None and now - self._since > self._door.request_seconds


@final
class WebSocket(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, with deadlines and few control frames. The application finds it in the
    scope, and takes and sends many messages at once.
    """

    def __init__(self, door: Door, **settings: Any) -> None:
        super().__init__(**settings)
        self._door = door
        self._fragments, self._allowed = 0, float(CONTROL_FRAMES)
        self._refilled = self._made = self._rests_until = self.loop.time()
        # since when a frame or a message is read that is not whole
        self._since: float | None = None
        self._whole_frames = 0
        self._has_request = False
        longest = min(SHORT, self.config.ws_max_size)
        self._frames = FrameReader(True, longest, self._take, self._may_take, super().data_received)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._door.enter(self, "", self._made)

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.leave(self, "")
        super().connection_lost(exc)

    async def run_asgi(self) -> None:
        about: dict[str, Any] = {"socket": self, "is_gone": self.transport.is_closing}
        self.scope.update(about)  # type: ignore[typeddict-item]
        await super().run_asgi()

    def abort(self) -> None:
        """End the connection at once."""
        self.transport.abort()

    async def messages(self) -> list[str | bytes]:
        """The messages that have come, one at least; none once the connection has ended."""
        events = [await self.receive()]
        while events[-1]["type"] == "websocket.receive" and not self.queue.empty():
            events.append(await super().receive())
        if events[-1]["type"] != "websocket.receive":
            last = events.pop()
            if events:  # the next call finds the end
                self.queue.put_nowait(last)
        return [one["bytes"] if one.get("text") is None else one["text"] for one in events]

    async def write(self, answers: Sequence[str]) -> bool:
        """Send messages, once the client has read enough of the earlier ones. False: it is gone."""
        await self.writable.wait()
        if self.transport.is_closing() or self.conn.state is not State.OPEN:
            return False
        self.transport.write(b"".join([write_frame(answer) for answer in answers]))
        return True

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            # with a refusal, which uvicorn would call unfinished and log
            self.handshake_complete = True

    async def receive(self) -> Any:
        if (left := self._rests_until - self.loop.time()) > 0:
            await asyncio.sleep(left)
        return await super().receive()

    def data_received(self, data: bytes) -> None:
        began, frames = thread_time(), self._whole_frames
        read = self._frames.read if self._has_request else super().data_received
        self._has_request = True
        _survive(read, data, self.transport)
        if self._fragments or (self._whole_frames == frames and self.handshake_complete):
            self._since = self._since or self.loop.time()
        else:
            self._since = None
        if (spent := thread_time() - began) > SLOW_TO_READ and len(self._door.open) > 1:
            self._rest(RESTS * spent)

    def _rest(self, seconds: float) -> None:
        """Read nothing for some time."""
        self._rests_until = self.loop.time() + seconds
        if not self.transport.is_closing():
            self.read_paused = True
            self.transport.pause_reading()
            self.loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        if self.read_paused and self.queue.empty() and not self.transport.is_closing():
            self.read_paused = False
            self.transport.resume_reading()

    def _may_take(self) -> bool:
        return not self._fragments and not self.close_sent and self.conn.state is State.OPEN

    def _take(self, message: str | bytes) -> None:
        """Queue a message for the application."""
        self._whole_frames += 1
        kind = "text" if isinstance(message, str) else "bytes"
        self.queue.put_nowait({"type": "websocket.receive", kind: message})  # type: ignore[arg-type]
        if self.queue.qsize() >= AHEAD and not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def handle_text(self, event: Any) -> None:
        self._count(event)
        super().handle_text(event)

    def handle_bytes(self, event: Any) -> None:
        self._count(event)
        super().handle_bytes(event)

    def handle_cont(self, event: Any) -> None:
        self._count(event)
        super().handle_cont(event)

    def handle_ping(self) -> None:
        if self._may_control():
            super().handle_ping()

    def handle_pong(self, event: Any) -> None:
        if self._may_control():
            super().handle_pong(event)

    def is_late(self, now: float) -> bool:
        if not self.handshake_complete:
            return now - self._made > self._door.request_seconds
        return self._since is not None and now - self._since > MESSAGE_SECONDS

    def _count(self, event: Any) -> None:
        """Count the frames of a message.

        One of very many small ones costs far more memory than its bytes.
        """
        self._whole_frames += 1
        self._fragments = 0 if event.fin else self._fragments + 1
        if self._fragments > FRAGMENTS:
            self._drop()

    def _may_control(self) -> bool:
        """Whether a control frame may be handled; a client that sends too many, or does not read
        the answers, is dropped.
        """
        self._whole_frames += 1
        now = self.loop.time()
        self._allowed = (
            min(CONTROL_FRAMES, self._allowed + CONTROL_RATE * (now - self._refilled)) - 1
        )
        self._refilled = now
        if self._allowed < 0 or not self.writable.is_set():
            self._drop()
        return not self.transport.is_closing()

    def _drop(self) -> None:
        if not self.transport.is_closing():
            self._door.refused += 1
            self.transport.abort()


def _survive(read: Callable[[bytes], None], data: bytes, transport: asyncio.Transport) -> None:
    """Read bytes; what cannot be read, however strange, costs the connection and nothing else."""
    if transport.is_closing():
        return
    try:
        read(data)
    except Exception as error:
        log.warning(
            "a connection was ended whose bytes could not be read (%s)", type(error).__name__
        )
        transport.abort()
