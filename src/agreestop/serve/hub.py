"""Sessions of all clients, computed together: whatever has come while one batch was computed is
the next batch.

    receive   a message is checked and queued; one that is wrong costs its session
    tick      a share of what each client has queued goes through `LiveBatch` in a worker thread,
              while the event loop receives more
    deliver   every message gets one answer, and a decision ends its session

Everything here runs on the event loop; `Computing` and `Watch` have a thread each. Nothing is
buffered without bound: of a client whose messages wait for too many answers no more is read
(`wait_for_room`), and a client that does not read its answers is dropped.

No client delays the others for long. Every tick computes about TICK_SECONDS of work of each client,
in turn, and goes on with the rest of a long message in the next tick. A client whose message took
long to read rests for RESTS times as long while others are connected. The tasks that do all this
begin again if they fail (`_supervise`).
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic, perf_counter, thread_time
from typing import Any, TypeVar, final

from agreestop.common import InputError
from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.decisions import Decision
from agreestop.decide.drift.monitor import Alarm
from agreestop.engines.early_stopping import DEFAULTS, RunOptions
from agreestop.engines.live_batch import LiveBatch
from agreestop.engines.protocol import Engine

from .journal import Entry, Journal
from .limits import Limits
from .metrics import Metrics
from .offers import Offer
from .protocol import (
    CLOSED_BY_CLIENT,
    BadMessage,
    Close,
    End,
    Label,
    Message,
    Open,
    PushSteps,
    decision_fields,
    found_fields,
    needed_label,
    read_message,
    step_after,
    write,
    write_decision,
)
from .sessions import MESSAGE_COST, Computing, Connection, Progress, Result, ServedSession, Work
from .streams import Streams
from .watch import Watch

QUEUED_BYTES = 256 << 20  # of all clients
TICK_SECONDS = 0.0005  # of computing for each client, in one batch
UNIT_SECONDS = 1e-5  # for a step, before the first is measured
# a batch that takes less is computed on the event loop, once so many were measured: to wait for
# another thread takes longer
SHORT_TICK, MEASURED = 0.005, 20
LEAST_UNITS = 8  # of one client in one batch, if it has as many
OPEN_UNITS = 8  # steps that cost about as much as the beginning of a session
# seconds of the event loop for a message; the time that its client rests, in multiples of that
SLOW_TO_READ, RESTS = 0.001, 25
SHORT = 2048  # characters or bytes, which nothing in them makes slow to read
LONGEST_REST = 5.0  # seconds
TURN_SECONDS = 0.0002  # of reading the messages of one client before it is the turn of the others
MOST_LABELS = 8  # labels of one client that the monitor may hold at once
RESTART_SECONDS = 0.1  # before a task that failed begins again
UNSENT = 1000  # answers that a client has not read; then no more is read from it
OBSERVING = 64  # batches of decisions that the monitor may lag behind
log = logging.getLogger("agreestop.serve")
Value = TypeVar("Value")


@final
class Hub:
    """All sessions under one rule, or all streams without an end.

    engine: None where clients push what the rule itself reads. watch: the drift monitor; None for
    streams without an end.
    """

    def __init__(
        self,
        served: CalibratedRule | Streams,
        engine: Engine | None = None,
        limits: Limits | None = None,
        monitor: Path | None = None,
        *,
        input_shape: tuple[int, ...] | None = None,
        options: RunOptions = DEFAULTS,
        journal: Journal | None = None,
    ) -> None:
        self._journal = journal
        self.limits, self.metrics = limits or Limits(), Metrics()
        self.watch: Watch | None = None
        batch: LiveBatch | Streams
        if isinstance(served, Streams):
            batch, self.offer = served, Offer.of_streams(served, input_shape)
        else:
            batch = LiveBatch(served, engine, self.limits.sessions, options)
            self.offer = Offer.of_rule(served, input_shape)
            self.watch = Watch(served, monitor, self.limits)
        self._computing = Computing(batch)
        self.connections: set[Connection] = set()
        self.sessions, self.draining, self._queued = 0, False, 0
        self._number = 0 if self.watch is None else self.watch.next_number
        # the clients that have work, each once, in the order of their turns
        self._turns: deque[Connection] = deque()
        self._unit_seconds = UNIT_SECONDS
        self.background: dict[str, Callable[[], Awaitable[None]]] = {
            "computing": self._tick_forever,
            "sweeping": self._sweep_forever,
        }
        self._observing: deque[asyncio.Future[None]] = deque()
        self._compute_thread = ThreadPoolExecutor(1, "compute")
        self._watch_thread = ThreadPoolExecutor(1, "watch")
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to compute, on the running event loop."""
        self._wake, self._ticked = asyncio.Event(), asyncio.Event()
        self._log([{"event": "start", "promise": self.offer.promise}], [])
        self._tasks = [
            asyncio.create_task(self._supervise(name, task))
            for name, task in self.background.items()
        ]

    async def stop(self) -> None:
        """Stop computing, and save the monitor."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.watch is not None:
            try:
                await self.in_watch(self.watch.close)
            except InputError as error:
                log.error("the last decisions and labels are lost: %s", error)
        if self._journal is not None:
            await self.in_watch(self._end_log, self._journal)
        self._compute_thread.shutdown()
        self._watch_thread.shutdown()

    async def _supervise(self, name: str, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task for ever: one that fails is logged and counted, and begins again."""
        while True:
            try:
                await task()
            except Exception:
                self.metrics.failures[name] += 1
                log.exception("the task %r failed, and begins again", name)
            await asyncio.sleep(RESTART_SECONDS)

    async def drain(self) -> None:
        """Refuse new sessions, let the others go on for a while, then close them."""
        self.draining = True
        until = monotonic() + self.limits.drain_seconds
        while self.sessions and monotonic() < until:
            await asyncio.sleep(0.02)
        for connection in list(self.connections):
            for session in list(connection.sessions.values()):
                self._queue(
                    session, Close(session.id), reason="the server stops: connect again later."
                )
        until = monotonic() + self.limits.drain_seconds
        while (self._turns or self.sessions) and monotonic() < until:
            await asyncio.sleep(0.02)
        for connection in list(self.connections):
            connection.finish(1001, "the server stops")
        until = monotonic() + min(1.0, self.limits.slow_seconds)
        while self.connections and monotonic() < until:
            await asyncio.sleep(0.02)

    async def in_watch(self, function: Callable[..., Value], *arguments: Any) -> Value:
        """Run a function in the thread of the monitor."""
        return await asyncio.get_running_loop().run_in_executor(
            self._watch_thread, function, *arguments
        )

    def connect(self, abort: Callable[[], object]) -> Connection:
        """A new client, which is told what is served here."""
        connection = Connection(self.limits, abort)
        self.connections.add(connection)
        limits = {
            "message_bytes": self.limits.message_bytes,
            "sessions": self.limits.sessions_per_client,
            "idle_seconds": self.limits.idle_seconds,
        }
        connection.send(write(type="welcome", protocol=1, **self.offer.about, limits=limits))
        return connection

    def disconnect(self, connection: Connection) -> None:
        """Take no more from a client, and give up its sessions.

        It counts as a client until `forget`.
        """
        connection.end()
        # nobody waits for them
        for one in [one for one in connection.work if isinstance(one.message, (PushSteps, End))]:
            connection.work.remove(one)
            self._queued -= one.cost
        for session in list(connection.sessions.values()):
            self._queue(session, Close(session.id))

    def forget(self, connection: Connection) -> None:
        """The client is gone."""
        self.connections.discard(connection)

    def must_wait(self, connection: Connection) -> bool:
        """Whether a client may send no more for now."""
        return (
            bool(connection.rest)
            or perf_counter() - connection.turn > TURN_SECONDS
            or connection.labels >= MOST_LABELS
            or len(connection.outbox) >= UNSENT
            or self._has_no_room(connection)
        )

    async def wait_for_room(self, connection: Connection) -> None:
        """Wait until the client may send more. Every other client gets its turn first."""
        rest, connection.rest = connection.rest if len(self.connections) > 1 else 0.0, 0.0
        if rest or perf_counter() - connection.turn > TURN_SECONDS:
            over = perf_counter() + min(rest, LONGEST_REST)
            await asyncio.sleep(0)
            while not connection.ended and (left := over - perf_counter()) > 0:
                await asyncio.sleep(min(left, 0.1))
            connection.turn = perf_counter()
        while not connection.ended and (
            self._has_no_room(connection) or connection.labels >= MOST_LABELS
        ):
            await self._ticked.wait()
        while not connection.ended and len(connection.outbox) >= UNSENT:
            await asyncio.sleep(0.005)

    def _has_no_room(self, connection: Connection) -> bool:
        """Whether the messages of a client fill its own room, or its share of the room of all."""
        share = QUEUED_BYTES // max(1, len(self.connections))
        return connection.queued >= self.limits.queued_bytes or (
            self._queued >= QUEUED_BYTES and connection.queued >= share
        )

    def receive(self, connection: Connection, data: str | bytes) -> None:
        """Take a message of a client: queue it, or answer why not."""
        if len(data) < SHORT:  # as most are; the clock of a thread takes longer than to read them
            self._receive(connection, data)
            return
        began = thread_time()
        self._receive(connection, data)
        if (spent := thread_time() - began) > SLOW_TO_READ:
            connection.rest += RESTS * spent

    def _receive(self, connection: Connection, data: str | bytes) -> None:
        self.metrics.messages += 1
        connection.seen, cost = monotonic(), MESSAGE_COST + len(data)
        try:
            message = read_message(data, self.offer.bounds)
            if isinstance(message, Label) and self.watch is None:
                words = f"label: {needed_label(None, 'null')}."
                self._send(
                    connection,
                    write(type="error", session=None, decision=message.key, error=words),
                )
            elif isinstance(message, Label):
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
            raise BadMessage(
                f"session {message.session} is open: choose another number for the next input.",
                message.session,
            )
        if self.draining:
            refused = "the server stops: connect again later."
        elif self.sessions >= limits.sessions:
            refused = f"all {limits.sessions} sessions of the server are in use: try again later."
        elif len(connection.sessions) >= limits.sessions_per_client:
            refused = (
                f"{limits.sessions_per_client} sessions are open, and a client may have no more: "
                "close one first."
            )
        if refused:
            raise BadMessage(refused, message.session)
        session = ServedSession(connection, message.session, self._number)
        self._number += 1
        self.sessions += 1
        self.metrics.opened += 1
        connection.sessions[message.session] = session
        self._queue(session, message, cost, units=OPEN_UNITS)

    def _take(self, connection: Connection, message: PushSteps | End | Close, cost: int) -> None:
        session = connection.sessions.get(message.session)
        if session is None or session.ending:
            why = "it has its decision, was closed, or was never opened"
            raise BadMessage(f"session {message.session} is not open: {why}.", message.session)
        session.seen = connection.seen
        next_step, units = 0, self.offer.end_units if isinstance(message, End) else 1
        if isinstance(message, PushSteps):
            if message.step != session.step:
                raise BadMessage(
                    f"step {message.step} came where step {session.step} is due: send every step "
                    "once, in order.",
                    session.id,
                )
            cost = max(cost, MESSAGE_COST + message.nbytes)
            length, units = len(message), message.units
            next_step = session.step = step_after(session.step, length)
            largest = units if length == 1 else message.largest_units
            if largest * self._unit_seconds > TICK_SECONDS:
                connection.rest = RESTS * (largest * self._unit_seconds - TICK_SECONDS)
        reason = CLOSED_BY_CLIENT if isinstance(message, Close) else ""
        self._queue(session, message, cost, next_step, reason, units=units)

    def _queue(
        self,
        session: ServedSession,
        message: Message,
        cost: int = 0,
        next_step: int = 0,
        reason: str = "",
        wrong: bool = False,
        units: int = 1,
    ) -> None:
        session.ending = session.ending or isinstance(message, (End, Close))
        session.connection.queued += cost
        self._queued += cost
        if not session.connection.work:
            self._turns.append(session.connection)
        session.connection.work.append(
            Work(session, message, units, cost, perf_counter(), next_step, reason, wrong)
        )
        self._wake.set()

    def _take_label(self, connection: Connection, message: Label, cost: int) -> None:
        connection.queued += cost
        connection.labels += 1
        self._queued += cost
        assert self.watch is not None, "streams without an end have no labels"
        watched = self.watch
        task = asyncio.get_running_loop().run_in_executor(
            self._watch_thread, self._label, watched, message
        )

        def answer(done: asyncio.Future[bool | None]) -> None:
            connection.queued -= cost
            connection.labels -= 1
            self._queued -= cost
            self._pulse()
            error = None if done.cancelled() else done.exception()
            if isinstance(error, InputError):
                self.metrics.errors += 1
                self._send(
                    connection,
                    write(type="error", session=None, decision=message.key, error=str(error)),
                )
            elif error is not None:
                log.error("a label could not be taken", exc_info=error)
            elif not done.cancelled():
                self.metrics.labelled(message.key, done.result())
                alarms = [str(alarm) for alarm in watched.monitor.alarms]
                self._send(connection, write(type="labelled", decision=message.key, alarms=alarms))

        task.add_done_callback(answer)

    async def _tick_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            work, units = self._next_batch()
            try:
                if sum(units) * self._unit_seconds < SHORT_TICK and self.metrics.ticks >= MEASURED:
                    done = self._computing.run(work, units)
                    await asyncio.sleep(0)
                else:
                    done = await loop.run_in_executor(
                        self._compute_thread, self._computing.run, work, units
                    )
                self._deliver(work, done.results)
            except Exception:  # their messages would never be answered
                for connection in {one.session.connection for one in work}:
                    connection.drop()
                raise
            self.metrics.ticks += 1
            self.metrics.steps += done.steps
            self.metrics.tick_seconds += done.seconds
            total = sum(units)
            weight = min(0.5, total / 64)  # a tick of few steps says little about the price of one
            self._unit_seconds += weight * (done.cpu_seconds / max(1, total) - self._unit_seconds)
            while self._observing and (
                self._observing[0].done() or len(self._observing) > OBSERVING
            ):
                await self._observing.popleft()

    def _next_batch(self) -> tuple[list[Work], list[int]]:
        """The next work of every client, as much as its share of a tick allows, and the
        units of each.
        """
        share = min(self.offer.most_units, max(LEAST_UNITS, int(TICK_SECONDS / self._unit_seconds)))
        work: list[Work] = []
        units: list[int] = []
        for _ in range(len(self._turns)):
            connection, left = self._turns.popleft(), share
            while connection.work and left > 0:
                one = connection.work.popleft()
                work.append(one)
                units.append(min(one.units, left))
                left -= one.units
            if connection.work:
                self._turns.append(connection)
        if not self._turns:
            self._wake.clear()
        return work, units

    def _deliver(self, work: list[Work], results: list[Result]) -> None:
        """Answer every message of a batch that is finished, queue the rest of the others first,
        and hand the decisions to the monitor.
        """
        decided: list[tuple[str, Decision]] = []
        skipped: list[tuple[int, float | None]] = []
        records: list[Entry] = []  # for the log
        now = perf_counter()
        for one, result in zip(work, results, strict=True):
            session, connection = one.session, one.session.connection
            if result is Progress.UNFINISHED and not connection.ended:
                if not connection.work:
                    self._turns.append(connection)
                    self._wake.set()
                connection.work.appendleft(one)
                continue
            connection.queued -= one.cost
            self._queued -= one.cost
            is_open = connection.sessions.get(session.id) is session
            if result is None and is_open and not one.found and isinstance(one.message, PushSteps):
                words = f'{{"type":"next","session":{session.id},"step":{one.next_step}}}'
                self.metrics.slow += not connection.send(words)
                continue  # as most are
            # also where a later step of the same push is wrong
            if is_open and one.found and result is not Progress.UNFINISHED:
                found = [found_fields(each) for each in one.found]
                self._answer(connection, one, "next", step=one.next_step, found=found)
                for each, content in zip(one.found, found, strict=True):
                    self.metrics.found(each)
                    known = {"event": content.pop("type"), "stream": session.number}
                    records.append(known | content)
            if not is_open:
                self._answer(
                    connection,
                    one,
                    "error",
                    error=f"session {session.id} is not open: it has its decision, or was closed.",
                )
            elif isinstance(result, Decision):
                key = secrets.token_hex(8)
                decided.append((key, result))
                seconds = now - one.received
                self.metrics.decided(seconds, result.time)
                self.metrics.answered(key, result)
                if self._journal is not None:
                    known = {"event": "decision", "decision": key, "seconds": round(seconds, 6)}
                    records.append(known | decision_fields(result))
                self._send(connection, write_decision(session.id, key, result, self.offer.promise))
            elif isinstance(result, InputError):
                self.metrics.errors += 1
                self._answer(connection, one, "error", error=str(result))
            elif result is Progress.UNFINISHED:
                continue  # its client is gone, and its session is given up next
            elif isinstance(one.message, Open):
                self._answer(connection, one, "opened", number=session.number)
            elif one.reason:
                self._answer(
                    connection,
                    one,
                    "error" if one.wrong else "closed",
                    **{"error" if one.wrong else "reason": one.reason},
                )
            if is_open and (result is not None or isinstance(one.message, (End, Close))):
                del connection.sessions[session.id]
                self.sessions -= 1
                if not isinstance(result, Decision):
                    skipped.append((session.number, session.first_risk))
                    reason = one.reason or (str(result) if result else "its client is gone")
                    records.append({"event": "closed", "number": session.number, "reason": reason})
        self._pulse()
        if decided or skipped or records:
            loop = asyncio.get_running_loop()
            self._observing.append(
                loop.run_in_executor(self._watch_thread, self._observe, decided, skipped, records)
            )

    def _observe(
        self,
        decided: list[tuple[str, Decision]],
        skipped: list[tuple[int, float | None]],
        records: list[Entry],
    ) -> None:
        """Tell the monitor and the log; in their thread."""
        alarms: list[Alarm] = []
        try:
            if self.watch is not None:
                alarms = self.watch.observe(decided, skipped)
        except Exception:  # a fault of ours: the monitor misses these decisions, and sessions go on
            log.exception("decisions could not be watched")
        self._log(records, alarms)

    def _label(self, watch: Watch, message: Label) -> bool | None:
        """Take a label; in the thread of the monitor. Whether the decision holds it."""
        if message.again and message.key in watch.taken:
            label, hit = watch.taken[message.key]
            if label == message.label:
                return hit  # it counts once
        hit, alarms = watch.label(message.key, message.label)
        known = {"decision": message.key, "label": message.label, "hit": hit}
        self._log([{"event": "label", **known}], alarms)
        return hit

    def _end_log(self, journal: Journal) -> None:
        journal.write([{"event": "end"}])
        journal.close()

    def _log(self, records: list[Entry], alarms: list[Alarm]) -> None:
        """Write records to the log, and the alarms that they raised."""
        if self._journal is None or not (records or alarms):
            return
        records += [
            {"event": "alarm", "kind": one.kind, "number": one.number, "alarm": str(one)}
            for one in alarms
        ]
        if not self._journal.write(records):
            self.metrics.failures["logging"] += 1

    def _answer(self, connection: Connection, one: Work, kind: str, **content: Any) -> None:
        self._send(connection, write(type=kind, session=one.session.id, **content))

    def _send(self, connection: Connection, text: str) -> None:
        self.metrics.slow += not connection.send(text)

    def _pulse(self) -> None:
        """Let all that wait for room look again."""
        self._ticked.set()
        self._ticked = asyncio.Event()

    async def _sweep_forever(self) -> None:
        """Close what is idle, drop who does not read, and let the monitor save itself,
        every now and then.
        """
        limits, saved, unsaved = self.limits, monotonic(), False
        pause = min(
            1.0,
            limits.idle_seconds / 4,
            limits.session_seconds / 4,
            limits.slow_seconds / 4,
            limits.save_seconds,
        )
        while True:
            await asyncio.sleep(pause)
            now = monotonic()
            for connection in list(self.connections):
                self._sweep(connection, now)
            if self.watch is not None and now - saved >= limits.save_seconds:
                saved = now
                try:
                    await self.in_watch(self.watch.keep)
                    unsaved = False
                except Exception as error:  # whatever it is, it may pass
                    if not unsaved:  # once, not every second
                        fault = None if isinstance(error, InputError) else error
                        log.error(
                            "the monitor cannot be saved, and a stop would lose what is new: %s",
                            error,
                            exc_info=fault,
                        )
                        self.metrics.failures["saving"] += 1
                    unsaved = True

    def _sweep(self, connection: Connection, now: float) -> None:
        limits = self.limits
        since = min(time for time in (connection.sending_since, connection.ended_at, now) if time)
        if now - since > limits.slow_seconds and not connection.dropped:
            self.metrics.slow += 1
            connection.drop()
            return
        if connection.ended:
            return
        for session in list(connection.sessions.values()):
            if session.ending:
                continue
            reason = ""
            if now - session.seen > limits.idle_seconds:
                reason = f"it had no push for {limits.idle_seconds:g} seconds."
            elif self.watch is not None and now - session.began > limits.session_seconds:
                reason = f"it had no decision after {limits.session_seconds:g} seconds."
            if reason:
                self.metrics.idle += 1
                self._queue(session, Close(session.id), reason=reason)
        if not connection.sessions and now - connection.seen > limits.idle_seconds:
            connection.finish(1001, "idle")
