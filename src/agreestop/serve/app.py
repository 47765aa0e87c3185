"""The web application around a `Hub`: the WebSocket of the clients, the page, its numbers, and
those for Prometheus.
"""

import asyncio
import hmac
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, final
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from .hub import Hub
from .metrics import prometheus, status
from .protocol import PATH, SUBPROTOCOL
from .sessions import Connection

LOOPBACK = ("127.0.0.1", "localhost", "::1")
PAGE = Path(__file__).with_name("page.html")
# requests and handshakes that are answered at once, and seconds between further ones
REQUESTS_AT_ONCE, REQUEST_INTERVAL = 200, 0.004
SAFE = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data:"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def make_app(hub: Hub, token: str | None = None, *, local_names_only: bool = False) -> ASGIApp:
    """The application.

    With a token, all but /healthz needs it: as `Authorization: Bearer TOKEN`, or for browsers
    as ?token=TOKEN.

    local_names_only: refuse requests for another host name than those of this machine. A site whose
    name is pointed at 127.0.0.1 could otherwise let the browser of a visitor read the pages and
    open sessions, because the browser takes both for one site.
    """
    page = PAGE.read_text(encoding="utf-8")

    def denial(connection: HTTPConnection) -> Response | None:
        """Why a request is refused, if it is."""
        if local_names_only and _host_name(connection.headers.get("host", "")) not in LOOPBACK:
            return PlainTextResponse(
                "this server answers to 127.0.0.1 and localhost alone: start it with a token to "
                "use another name.\n",
                403,
                SAFE,
            )
        if token is None:
            return None
        scheme, _, bearer = connection.headers.get("authorization", "").partition(" ")
        given = bearer if scheme.lower() == "bearer" else connection.query_params.get("token", "")
        if hmac.compare_digest(given.encode(), token.encode()):
            return None
        return PlainTextResponse(
            "a token is needed: give it as ?token= or as Authorization: Bearer.\n", 401, SAFE
        )

    async def show_page(request: Request) -> Response:
        return denial(request) or HTMLResponse(page, headers=SAFE)

    async def show_status(request: Request) -> Response:
        if refused := denial(request):
            return refused
        counts = hub.sessions, len(hub.connections), hub.draining
        known = hub.metrics, hub.watch, hub.offer, *counts
        return JSONResponse(await hub.in_watch(status, *known), headers=SAFE)

    async def show_metrics(request: Request) -> Response:
        if refused := denial(request):
            return refused
        text = await hub.in_watch(
            prometheus, hub.metrics, hub.watch, hub.sessions, len(hub.connections)
        )
        return PlainTextResponse(text, headers=SAFE, media_type="text/plain; version=0.0.4")

    async def show_health(request: Request) -> Response:
        failures = hub.metrics.failures
        said = [
            f"{name} failed {count} times and went on: the log says more\n"
            for name, count in failures.items()
        ]
        return PlainTextResponse(
            "".join(["the server stops\n" if hub.draining else "ok\n", *said]),
            503 if hub.draining else 200,
            SAFE,
        )

    async def serve_client(websocket: WebSocket) -> None:
        if refused := denial(websocket) or _refusal(websocket, hub):
            await websocket.send_denial_response(refused)
        else:
            await websocket.accept(
                SUBPROTOCOL if SUBPROTOCOL in websocket.scope["subprotocols"] else None
            )
            await _talk(hub, websocket)

    @asynccontextmanager
    async def running(app: Starlette) -> AsyncIterator[None]:
        await hub.start()
        yield
        await hub.stop()

    routes: list[Any] = [
        Route("/", show_page),
        Route("/status", show_status),
        Route("/metrics", show_metrics),
        Route("/healthz", show_health),
        WebSocketRoute(PATH, serve_client),
    ]
    app = Starlette(routes=routes, lifespan=running)
    app.router.redirect_slashes = False
    return _in_turn(app)


def _in_turn(app: ASGIApp) -> ASGIApp:
    """The application, but many requests and handshakes at once are answered one after the
    other, so that sessions are not delayed.
    """
    turns = Turns()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await turns.wait(is_gone := scope.get("is_gone", bool))
            if scope["type"] == "http" and is_gone():
                return
        await app(scope, receive, send)

    return answer


@final
class Turns:
    """Lets REQUESTS_AT_ONCE requests pass, and further ones one by one, every REQUEST_INTERVAL.

    A request whose connection has ended takes no turn. Connections before the handshake are few
    (see `door`), so nobody waits long behind a flood of them.
    """

    def __init__(self) -> None:
        self._due = 0.0
        self._waiting: deque[tuple[asyncio.Future[None], Callable[[], bool]]] = deque()

    async def wait(self, is_gone: Callable[[], bool]) -> None:
        """Wait for the turn of a request, or until its connection has ended."""
        loop = asyncio.get_running_loop()
        if not self._waiting and self._left() <= 0:
            self._due += REQUEST_INTERVAL
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append((turn, is_gone))
        if len(self._waiting) == 1:
            loop.call_later(max(0.0, self._left()), self._next)
        await turn

    def _left(self) -> float:
        """Seconds until the next turn."""
        now = monotonic()
        self._due = max(self._due, now - REQUESTS_AT_ONCE * REQUEST_INTERVAL)
        return self._due + REQUEST_INTERVAL - now

    def _next(self) -> None:
        while self._waiting and self._left() <= 0:
            turn, is_gone = self._waiting.popleft()
            if not turn.done():
                self._due += 0.0 if is_gone() else REQUEST_INTERVAL
                turn.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_later(max(0.0, self._left()), self._next)


def _host_name(address: str) -> str | None:
    """The name in an address `host:port`, None if it has none."""
    try:
        return urlsplit("//" + address).hostname
    except ValueError:
        return None


def _site(origin: str) -> str | None:
    """The `host:port` of a page's origin, None if it has none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _refusal(websocket: WebSocket, hub: Hub) -> Response | None:
    """Why a client may not connect: another page's script, another version of the protocol, or
    too many clients.
    """
    origin, offered = websocket.headers.get("origin"), websocket.scope["subprotocols"]
    if origin is not None and _site(origin) != websocket.headers.get("host"):
        return PlainTextResponse("scripts of other sites may not connect.\n", 403)
    if offered and SUBPROTOCOL not in offered:
        return PlainTextResponse(
            f"this server speaks {SUBPROTOCOL}: take a client of the same version.\n", 400
        )
    if hub.draining or len(hub.connections) >= hub.limits.clients:
        why = (
            "the server stops"
            if hub.draining
            else f"{hub.limits.clients} clients are connected, and no more may"
        )
        return PlainTextResponse(f"{why}: try again later.\n", 503)
    return None


async def _talk(hub: Hub, websocket: WebSocket) -> None:
    """Receive the messages of one client until it, or the server, ends the connection."""
    socket = websocket.scope["socket"]
    connection = hub.connect(socket.abort)
    writer = asyncio.create_task(_write(connection, websocket))
    try:
        while not connection.ended:
            messages = await socket.messages()
            if not messages:
                writer.cancel()
                break
            for message in messages:
                if not connection.ended:
                    hub.receive(connection, message)
                    if hub.must_wait(connection):
                        await hub.wait_for_room(connection)
    finally:
        hub.disconnect(connection)
        try:
            with suppress(asyncio.CancelledError):
                await writer
        finally:
            hub.forget(connection)


async def _write(connection: Connection, websocket: WebSocket) -> None:
    """Send the answers of one client. `sending_since` shows how long it has not read."""
    socket = websocket.scope["socket"]
    with suppress(WebSocketDisconnect, RuntimeError):  # the client is gone
        while True:
            answers = await connection.answers()
            connection.sending_since = monotonic()
            texts = [answer for answer in answers if isinstance(answer, str)]
            if not await socket.write(texts):
                return
            if len(texts) < len(answers):
                await websocket.close(*answers[-1])
                return
            connection.sending_since = 0.0
