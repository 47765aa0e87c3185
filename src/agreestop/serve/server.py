"""The server as a process, or in a thread: uvicorn around the application.

SIGTERM and Ctrl-C drain: no new session begins, open ones may go on for a while, the monitor is
saved, then the process ends. A second signal ends it at once.
"""

import asyncio
import contextlib
import logging
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, final

import uvicorn

from agreestop.common import InputError
from agreestop.decide.calibrated import CalibratedRule, check_calibrated
from agreestop.decide.spotting import CalibratedSpotter
from agreestop.engines.runner import Runner
from agreestop.engines.watching import Event

from .app import LOOPBACK, make_app
from .door import WAITING, Door, Http, WebSocket
from .hub import Hub
from .journal import Journal
from .limits import Limits
from .logs import FEW
from .streams import Streams

REQUEST_SECONDS = 10.0  # for a whole request
# between two pings, and for the answer: a client that is gone without a word is noticed
PING_SECONDS = 20.0
SPARE_FILES, BACKLOG = 256, 512
# that the system keeps for a connection in each direction: little, so that who does not read is
# noticed soon
SOCKET_BYTES = 1 << 17
_log = logging.getLogger("agreestop.serve")


@final
class _Uvicorn(uvicorn.Server):
    """uvicorn's server, which drains before it ends."""

    def __init__(self, config: uvicorn.Config, hub: Hub) -> None:
        super().__init__(config)
        self._hub = hub
        self._drain: Future[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(_log_fault)
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._drain is not None:
            super().handle_exit(sig, frame)
        else:
            self.drain()

    def drain(self) -> None:
        """Drain, then end; from any thread."""
        self._drain = asyncio.run_coroutine_threadsafe(self._hub.drain(), self._loop)
        self._drain.add_done_callback(lambda done: setattr(self, "should_exit", True))


@final
class Server:
    """Serves a calibrated rule, and the ensemble whose members read the inputs; without one,
    clients push what the rule reads: log-confidences, open answers, numbers or risks.

    ensemble: an `Ensemble`, or what an adapter returned, such as `agreestop.adapters.from_nir`.
    Decisions are those of `ensemble.live(rule)`. It binds to `host`, this machine alone unless
    another is given; port 0 takes a free one.

    A `spotter` serves streams without an end: alone, whose clients push scores, or with an ensemble
    and a rule, as `ensemble.watch(spotter, rule, window=, event=, skip=)`.

    token    what clients must know; without it, anybody who can connect may open sessions
    log      file to which decisions, labels and alarms are appended as JSON Lines; beyond
             `log_bytes` it is renamed, and `log_files` older ones are kept
    monitor  file of the `DriftMonitor`, which goes on from it if it exists; without one, the
             monitor ends with the server
    """

    def __init__(
        self,
        rule: CalibratedRule | None = None,
        ensemble: Runner | None = None,
        *,
        spotter: CalibratedSpotter | None = None,
        window: int | None = None,
        event: Event | None = None,
        skip: int = 0,
        host: str = "127.0.0.1",
        port: int = 8000,
        token: str | None = None,
        monitor: Path | None = None,
        log: Path | None = None,
        log_bytes: int = 100 << 20,
        log_files: int = 10,
        limits: Limits | None = None,
        any_engine: bool = False,
        any_members: bool = False,
    ) -> None:
        if token is not None and not re.fullmatch("[!-~]+", token):
            raise InputError(
                "the token is empty, or has a space or a sign outside ASCII: give one of ASCII "
                "letters and digits that cannot be guessed."
            )
        options: dict[str, Any] = {}
        allowed = {"any_engine": any_engine, "any_members": any_members}
        if ensemble is not None:
            if ensemble.input_shape is None:
                raise InputError(
                    "the shape of the inputs is not known yet: call score once, then serve."
                )
            options["input_shape"] = ensemble.input_shape
        served: CalibratedRule | Streams
        if spotter is not None:
            if monitor is not None:
                raise InputError("streams without an end have no drift monitor: leave out monitor.")
            served = _streams(spotter, rule, ensemble, window, event, skip, allowed)
        elif rule is None or window is not None or event is not None or skip:
            raise InputError(
                "give a rule, or a spotter; window, event and skip belong to a spotter."
            )
        else:
            check_calibrated(rule)
            served = rule
            if ensemble is not None:
                engine = ensemble.current_engine()
                options |= {"engine": engine, "options": ensemble.options(**allowed)}
        with ExitStack() as held:
            if log is not None:
                options["journal"] = journal = Journal(log, log_bytes, log_files)
                held.callback(journal.close)
            self.hub = Hub(served, limits=limits, monitor=monitor, **options)
            if self.hub.watch is not None:
                held.callback(self.hub.watch.close)
            self._socket = _bind(host, port)
            held.pop_all()
        self.port = int(self._socket.getsockname()[1])
        self.url = f"{f'[{host}]' if ':' in host else host}:{self.port}"
        self._door = Door(
            self.hub.limits.clients + WAITING, REQUEST_SECONDS, self.hub.limits.slow_seconds
        )
        self.hub.background["watching connections"] = self._door.watch
        config = uvicorn.Config(
            make_app(self.hub, token, local_names_only=token is None and host in LOOPBACK),
            http=partial(Http, self._door),  # type: ignore[arg-type]
            ws=partial(WebSocket, self._door),  # type: ignore[arg-type]
            ws_max_size=self.hub.limits.message_bytes,
            ws_ping_interval=PING_SECONDS,
            ws_ping_timeout=PING_SECONDS,
            ws_per_message_deflate=False,
            loop="asyncio",
            timeout_graceful_shutdown=5,
            backlog=BACKLOG,
            log_level="error",
            access_log=False,
            server_header=False,
        )
        for name in ("uvicorn.error", _log.name):
            logging.getLogger(name).addFilter(FEW)
        logging.getLogger("uvicorn.error").addFilter(_is_no_fault_of_a_client)
        self._uvicorn = _Uvicorn(config, self.hub)

    def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C."""
        files = _allow_files(self._door.most + BACKLOG + SPARE_FILES)
        self._door.most = min(self._door.most, max(files // 2, files - BACKLOG - SPARE_FILES))
        self._uvicorn.run(sockets=[self._socket])

    @contextlib.contextmanager
    def background(self) -> Iterator[str]:
        """Serve in a thread of its own while the context lasts; gives the address for `Client`."""
        thread = threading.Thread(target=self.run, name="agreestop-serve", daemon=True)
        thread.start()
        while not self._uvicorn.started and thread.is_alive():
            thread.join(0.01)
        if not thread.is_alive():
            raise InputError("the server did not start: its log says why.")
        try:
            yield f"ws://{self.url}"
        finally:
            self._uvicorn.drain()
            thread.join()


def _streams(
    spotter: CalibratedSpotter,
    rule: CalibratedRule | None,
    ensemble: Runner | None,
    window: int | None,
    event: Event | None,
    skip: int,
    allowed: dict[str, bool],
) -> Streams:
    """Streams of a spotter, or of an ensemble that watches."""
    if rule is None and ensemble is None and window is None and event is None and not skip:
        return Streams(spotter)
    if rule is None or ensemble is None or window is None or event is None:
        raise InputError(
            "to watch, a rule, members, a spotter, window and event are needed: give all of them, "
            "or the spotter alone."
        )
    watch = ensemble.watch(spotter, rule, window=window, event=event, skip=skip, **allowed)
    return Streams(spotter, watch)


def _is_no_fault_of_a_client(record: logging.LogRecord) -> bool:
    """False for text that is not UTF-8: uvicorn closes the connection, and a client must not be
    able to fill the log.
    """
    return "Invalid UTF-8" not in record.getMessage()


def _bind(host: str, port: int) -> socket.socket:
    """A socket that listens on a host and port, so that the port is known before the
    server starts.
    """
    bound = None
    try:
        known = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, number, _, address = known[0]
        bound = socket.socket(family, kind, number)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):  # every connection inherits them
            bound.setsockopt(socket.SOL_SOCKET, buffer, SOCKET_BYTES)
        bound.bind(address)
        bound.listen(BACKLOG)  # clients may connect from now on, and wait until the server answers
    except (OSError, OverflowError) as error:
        if bound is not None:
            bound.close()
        raise InputError(
            f"cannot listen on {host}:{port} ({error}): choose another host or port."
        ) from None
    return bound


def _allow_files(count: int) -> int:
    """Let this process have as many open files, where the system allows it; how
    many it may have.
    """
    try:
        import resource
    except ImportError:  # only Unix limits a process
        return count
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return count if soft == resource.RLIM_INFINITY else soft


def _log_fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what went wrong in the event loop, such as a connection that could not be accepted; a
    few times of each kind.
    """
    fault = context.get("exception")
    if isinstance(fault, ConnectionError):
        return  # a client is gone
    detail = None if isinstance(fault, OSError) else fault
    _log.error("%s" % context.get("message", "the event loop failed"), exc_info=detail)  # noqa: UP031
