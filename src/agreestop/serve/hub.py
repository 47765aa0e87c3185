"""Sessions of all clients, computed together: whatever has come while one batch was computed is the next batch.

    receive   a message is checked and queued; one that is wrong costs its session
    tick      all that is queued goes through `LiveBatch` in a worker thread, while the event loop receives more
    deliver   every message gets one answer, and a decision ends its session

Everything here runs on the event loop; `Computing` and `Watch` have a thread each. Nothing is buffered without bound: of a
client whose messages wait for too many answers no more is read (`wait_for_room`), and a client that does not read its answers is dropped.
"""

import asyncio
import logging
import math
import secrets
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, TypeVar, final

from agreestop.common import InputError
from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.decisions import Decision
from agreestop.engines.live_batch import LiveBatch
from agreestop.engines.protocol import Engine

from .computing import Computing
from .limits import Limits
from .metrics import Metrics
from .protocol import BadMessage, Close, End, Label, Message, Open, PushSteps, read_message, write, write_decision
from .sessions import MESSAGE_COST, Connection, Session, Work
from .watch import Watch

QUEUED_BYTES = 256 << 20  # of all clients
TICK_STEPS = 1 << 15  # in one batch at most, unless one message has more
UNSENT = 1000  # answers that a client has not read; then no more is read from it
OBSERVING = 64  # batches of decisions that the monitor may lag behind
log = logging.getLogger("agreestop.serve")
Result = TypeVar("Result")


@final
class Hub:
    """All sessions under one rule. `engine` None: clients push log-confidences alone."""

    def __init__(
        self,
        calibrated: CalibratedRule,
        engine: Engine | None = None,
        limits: Limits | None = None,
        monitor: Path | None = None,
        *,
        ensemble_digest: str = "",
        input_shape: tuple[int, ...] | None = None,
        any_engine: bool = False,
        any_members: bool = False,
    ) -> None:
        self.calibrated, self.limits, self.input_shape = calibrated, limits or Limits(), input_shape
        allowed = {"ensemble_digest": ensemble_digest, "any_engine": any_engine, "any_members": any_members}
        self._computing = Computing(LiveBatch(calibrated, engine, self.limits.sessions, **allowed))  # type: ignore[arg-type]
        self.watch, self.metrics = Watch(calibrated, monitor, self.limits), Metrics()
        self.connections: set[Connection] = set()
        self.sessions, self.draining, self._queued = 0, False, 0
        self._number = self.watch.next_number
        self._work: deque[Work] = deque()
        self._observing: deque[asyncio.Future[None]] = deque()
        self._compute_thread, self._watch_thread = ThreadPoolExecutor(1, "compute"), ThreadPoolExecutor(1, "watch")
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to compute, on the running event loop."""
        self._wake, self._ticked = asyncio.Event(), asyncio.Event()
        self._tasks = [asyncio.create_task(self._tick_forever()), asyncio.create_task(self._sweep_forever())]

    async def stop(self) -> None:
        """Stop computing, and save the monitor."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self.in_watch(self.watch.close)
        except InputError as error:
            log.error("the last decisions and labels are lost: %s", error)
        self._compute_thread.shutdown()
        self._watch_thread.shutdown()

    async def drain(self) -> None:
        """Refuse new sessions, let the others go on for a while, then close them."""
        self.draining = True
        until = monotonic() + self.limits.drain_seconds
        while self.sessions and monotonic() < until:
            await asyncio.sleep(0.02)
        for connection in list(self.connections):
            for session in list(connection.sessions.values()):
                self._queue(session, Close(session.id), reason="the server stops: connect again later.")
        while self._work or self.sessions:
            await asyncio.sleep(0.02)
        for connection in list(self.connections):
            connection.finish(1001, "the server stops")
        until = monotonic() + min(1.0, self.limits.slow_seconds)
        while self.connections and monotonic() < until:
            await asyncio.sleep(0.02)

    async def in_watch(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a function in the thread of the monitor."""
        return await asyncio.get_running_loop().run_in_executor(self._watch_thread, function, *arguments)

    def connect(self, abort: Callable[[], object]) -> Connection:
        """A new client, which is told what is served here."""
        connection, calibrated = Connection(self.limits, abort), self.calibrated
        self.connections.add(connection)
        about: dict[str, Any] = {"members": calibrated.members, "classes": calibrated.classes, "class_names": calibrated.class_names}
        limits = {"message_bytes": self.limits.message_bytes, "sessions": self.limits.sessions_per_client}
        last, promise, shape = calibrated.checkpoints[-1], calibrated.guarantee, self.input_shape
        about |= {"inputs": None if shape is None else math.prod(shape), "shape": shape}
        about |= {"checkpoints": len(calibrated.checkpoints), "last_time": last, "promise": promise}
        connection.send(write(type="welcome", protocol=1, **about, limits=limits | {"idle_seconds": self.limits.idle_seconds}))
        return connection

    def disconnect(self, connection: Connection) -> None:
        """Forget a client that is gone, and its sessions."""
        connection.ended = True
        self.connections.discard(connection)
        for session in list(connection.sessions.values()):
            self._queue(session, Close(session.id))

    async def wait_for_room(self, connection: Connection) -> None:
        """Wait until the client may send more."""
        while not connection.ended and (connection.queued >= self.limits.queued_bytes or self._queued >= QUEUED_BYTES):
            await self._ticked.wait()
        while not connection.ended and connection.outbox.qsize() >= UNSENT:
            await asyncio.sleep(0.005)

    def receive(self, connection: Connection, data: str | bytes) -> None:
        """Take a message of a client: queue it, or answer why not."""
        self.metrics.messages += 1
        connection.seen, cost = monotonic(), MESSAGE_COST + len(data)
        try:
            message = read_message(data)
            if isinstance(message, Label):
                self._take_label(connection, message, cost)
            elif isinstance(message, Open):
                self._open(connection, message, cost)
            else:
                self._take(connection, message, cost)
        except BadMessage as error:
            self.metrics.errors += 1
            if error.session is None:
                self._send(connection, write(type="error", session=None, error=str(error)))
                connection.finish(1008, "bad message")
                return
            session = connection.sessions.get(error.session)
            if session is not None and not session.ending:
                self._queue(session, Close(session.id), reason=str(error), wrong=True)
            else:
                self._send(connection, write(type="error", session=error.session, error=str(error)))

    def _open(self, connection: Connection, message: Open, cost: int) -> None:
        limits, refused = self.limits, ""
        if message.session in connection.sessions:
            raise BadMessage(f"session {message.session} is open: choose another number for the next input.", message.session)
        if self.draining:
            refused = "the server stops: connect again later."
        elif self.sessions >= limits.sessions:
            refused = f"all {limits.sessions} sessions of the server are in use: try again later."
        elif len(connection.sessions) >= limits.sessions_per_client:
            refused = f"{limits.sessions_per_client} sessions are open, and a client may have no more: close one first."
        if refused:
            raise BadMessage(refused, message.session)
        session = Session(connection, message.session, self._number)
        self._number += 1
        self.sessions += 1
        self.metrics.opened += 1
        connection.sessions[message.session] = session
        self._queue(session, message, cost)

    def _take(self, connection: Connection, message: PushSteps | End | Close, cost: int) -> None:
        session = connection.sessions.get(message.session)
        if session is None or session.ending:
            why = "it has its decision, was closed, or was never opened"
            raise BadMessage(f"session {message.session} is not open: {why}.", message.session)
        session.seen = connection.seen
        next_step = 0
        if isinstance(message, PushSteps):
            if message.step != session.step:
                raise BadMessage(f"step {message.step} came where step {session.step} is due: send every step once, in order.", session.id)
            looks = message.log_confidence is not None
            most = len(self.calibrated.checkpoints) if looks else int(self.calibrated.checkpoints[-1])
            if len(message) > most:
                raise BadMessage(f"the message has {len(message)} steps, but the rule decides within {most}: send fewer.", session.id)
            next_step = session.step = session.step + len(message)
        self._queue(session, message, cost, next_step, "the client closed it." if isinstance(message, Close) else "")

    def _queue(self, session: Session, message: Message, cost: int = 0, next_step: int = 0, reason: str = "", wrong: bool = False) -> None:
        session.ending = session.ending or isinstance(message, (End, Close))
        session.connection.queued += cost
        self._queued += cost
        self._work.append(Work(session, message, cost, perf_counter(), next_step, reason, wrong))
        self._wake.set()

    def _take_label(self, connection: Connection, message: Label, cost: int) -> None:
        connection.queued += cost
        self._queued += cost
        task = asyncio.get_running_loop().run_in_executor(self._watch_thread, self.watch.label, message.key, message.label)

        def answer(done: asyncio.Future[tuple[str, ...]]) -> None:
            connection.queued -= cost
            self._queued -= cost
            self._pulse()
            error = None if done.cancelled() else done.exception()
            if isinstance(error, InputError):
                self.metrics.errors += 1
                self._send(connection, write(type="error", session=None, decision=message.key, error=str(error)))
            elif error is not None:
                log.error("a label could not be taken", exc_info=error)
            elif not done.cancelled():
                self._send(connection, write(type="labelled", decision=message.key, alarms=done.result()))

        task.add_done_callback(answer)

    async def _tick_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            work, steps = [], 0
            while self._work and steps < TICK_STEPS:
                work.append(self._work.popleft())
                steps += len(work[-1].message) if isinstance(work[-1].message, PushSteps) else 0
            if not self._work:
                self._wake.clear()
            began = perf_counter()
            results = await loop.run_in_executor(self._compute_thread, self._computing.run, work)
            self.metrics.ticks += 1
            self.metrics.steps += steps
            self.metrics.tick_seconds += perf_counter() - began
            self._deliver(work, results)
            while self._observing and (self._observing[0].done() or len(self._observing) > OBSERVING):
                await self._observing.popleft()

    def _deliver(self, work: list[Work], results: list[Decision | InputError | None]) -> None:
        """Answer every message of a batch, and hand the decisions to the monitor."""
        decided: list[tuple[str, Decision]] = []
        skipped: list[tuple[int, float | None]] = []
        now = perf_counter()
        for one, result in zip(work, results, strict=True):
            session, connection = one.session, one.session.connection
            connection.queued -= one.cost
            self._queued -= one.cost
            is_open = connection.sessions.get(session.id) is session
            if not is_open:
                self._answer(connection, one, "error", error=f"session {session.id} is not open: it has its decision, or was closed.")
            elif isinstance(result, Decision):
                key = secrets.token_hex(8)
                decided.append((key, result))
                self.metrics.decided(now - one.received, result.time)
                self._send(connection, write_decision(session.id, key, result, self.calibrated.guarantee))
            elif isinstance(result, InputError):
                self.metrics.errors += 1
                self._answer(connection, one, "error", error=str(result))
            elif isinstance(one.message, PushSteps):
                self._send(connection, f'{{"type":"next","session":{session.id},"step":{one.next_step}}}')
            elif isinstance(one.message, Open):
                self._answer(connection, one, "opened", number=session.number)
            elif one.reason:
                self._answer(connection, one, "error" if one.wrong else "closed", **{"error" if one.wrong else "reason": one.reason})
            if is_open and (result is not None or isinstance(one.message, (End, Close))):
                del connection.sessions[session.id]
                self.sessions -= 1
                if not isinstance(result, Decision):
                    skipped.append((session.number, session.first_risk))
        self._pulse()
        if decided or skipped:
            loop = asyncio.get_running_loop()
            self._observing.append(loop.run_in_executor(self._watch_thread, self._observe, decided, skipped))

    def _observe(self, decided: list[tuple[str, Decision]], skipped: list[tuple[int, float | None]]) -> None:
        try:
            self.watch.observe(decided, skipped)
        except Exception:  # a fault of ours: the monitor misses these decisions, and sessions go on
            log.exception("decisions could not be watched")

    def _answer(self, connection: Connection, one: Work, kind: str, **content: Any) -> None:
        self._send(connection, write(type=kind, session=one.session.id, **content))

    def _send(self, connection: Connection, text: str) -> None:
        self.metrics.slow += not connection.send(text)

    def _pulse(self) -> None:
        """Let all that wait for room look again."""
        self._ticked.set()
        self._ticked = asyncio.Event()

    async def _sweep_forever(self) -> None:
        """Close what is idle, drop who does not read, and let the monitor save itself, every now and then."""
        limits, saved, unsaved = self.limits, monotonic(), False
        pause = min(1.0, limits.idle_seconds / 4, limits.session_seconds / 4, limits.slow_seconds / 4, limits.save_seconds)
        while True:
            await asyncio.sleep(pause)
            now = monotonic()
            for connection in list(self.connections):
                self._sweep(connection, now)
            if now - saved >= limits.save_seconds:
                saved = now
                try:
                    await self.in_watch(self.watch.keep)
                    unsaved = False
                except InputError as error:
                    if not unsaved:  # once, not every second
                        log.error("the monitor cannot be saved, and a stop would lose what is new: %s", error)
                    unsaved = True

    def _sweep(self, connection: Connection, now: float) -> None:
        limits = self.limits
        if connection.sending_since and now - connection.sending_since > limits.slow_seconds:
            self.metrics.slow += 1
            connection.drop()
            return
        for session in list(connection.sessions.values()):
            if session.ending:
                continue
            if now - session.seen > limits.idle_seconds:
                self.metrics.idle += 1
                self._queue(session, Close(session.id), reason=f"it had no push for {limits.idle_seconds:g} seconds.")
            elif now - session.began > limits.session_seconds:
                self.metrics.idle += 1
                self._queue(session, Close(session.id), reason=f"it had no decision after {limits.session_seconds:g} seconds.")
        if not connection.sessions and now - connection.seen > limits.idle_seconds:
            connection.finish(1001, "idle")
