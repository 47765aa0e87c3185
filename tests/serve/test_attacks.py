"""One hostile client of each kind: what it costs is bounded, and the others are answered."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import socket
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

for _name in ("torch", "numba", "starlette", "uvicorn", "websockets"):
    pytest.importorskip(_name, reason=f"the server needs {_name}: install agreestop[serve]")

import agreestop as ag
from agreestop.serve import AsyncClient, Client, Limits, Server, app, door, hub, logs
from agreestop.serve.hub import Hub
from agreestop.serve.protocol import (
    BadMessage,
    Bounds,
    PushSteps,
    read_message,
    write,
    write_frames,
    write_push,
)
from agreestop.serve.watch import Watch
from benchmarks import attacks
from benchmarks.attacks import (
    CONTINUATION,
    PING,
    TEXT,
    connect,
    deep_lists,
    empty_steps,
    frame,
    handshake,
    many_events,
    words_for_numbers,
)

from .served import STEPS, Served, steps_of, until
from .test_serve import get, raw, status

MESSAGE = 1 << 20  # bytes of a message at most
ALLOWED = 50 << 20  # bytes that reading it may take at most


@contextmanager
def running(served: Served, **options: Any) -> Iterator[tuple[str, Server]]:
    server = Server(served.rule, served.ensemble, port=0, **options)
    with server.background() as url:
        yield url, server


def is_answered(served: Served, url: str) -> None:
    """An honest client gets its decision."""
    with Client(url) as client:
        assert client.open().push_steps(steps_of(served.inputs[0])) == served.expected[0]


def is_dropped(plain: socket.socket) -> bool:
    """Whether the server has ended a connection; what it sent is read."""
    plain.settimeout(0.01)
    try:
        while plain.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def send_until_dropped(plain: socket.socket, data: bytes) -> None:
    """Send without reading, until the server ends the connection."""
    plain.settimeout(0.2)

    def is_gone() -> bool:
        try:
            plain.sendall(data)
        except TimeoutError:
            return False
        except OSError:
            return True
        return False

    until(is_gone)


def peak(function: Callable[[], Any]) -> int:
    """Bytes that a function has at once, at most."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refused(message: str | bytes, bounds: Bounds | None = None) -> BadMessage:
    with pytest.raises(BadMessage) as found:
        read_message(message, bounds)
    return found.value


def test_strings_where_numbers_belong_do_not_multiply() -> None:
    small = json.loads(words_for_numbers(10_000))["log_confidence"]
    # the control: an array as wide as its longest string, 20 MB of 10 kB
    assert peak(lambda: np.asarray(small)) > 2000 * 10_000
    message = words_for_numbers()
    assert len(message) < 140_000
    assert peak(lambda: refused(message)) < 10 * len(message)
    assert "log_confidence is no list of numbers" in str(refused(message))
    for kind in ("frame", "frames", "events", "steps"):
        assert peak(lambda kind=kind: refused(message.replace("log_confidence", kind))) < 10 * len(  # type: ignore[misc]
            message
        )


def of_size(size: int, one: str, begin: str = '"frame":[') -> str:
    text = '{"type":"push","session":1,"step":1,' + begin
    return (
        text
        + ",".join([one] * ((size - len(text)) // (len(one) + 1) - 2))
        + "]" * begin.count("[")
        + "}"
    )


LARGE: dict[str, Callable[[int], str | bytes]] = {
    "words": lambda size: words_for_numbers(size - 1000),
    "deep lists": lambda size: deep_lists(size - 1000),
    "empty steps": lambda size: empty_steps(size // 3 - 100),
    "lists of one": lambda size: of_size(size, "[0]"),
    "objects": lambda size: of_size(size, '{"":0}'),
    "small numbers": lambda size: of_size(size, "0"),
    "large numbers": lambda size: of_size(size, "1000", '"events":['),
    "fractions": lambda size: of_size(size, "1.5"),
    "log-confidences": lambda size: of_size(size, "-1.5", '"log_confidence":[[['),
    "answers": lambda size: of_size(size, '"ab"', '"evidence":['),
    "pairs": lambda size: of_size(size, "[1.5,2]", '"evidence":['),
    "costs": lambda size: (
        of_size(size, "1.5", '"evidence":["a"],"cost":[')[:-1].replace("]]", "]") + "}"
    ),
    "short words": lambda size: of_size(size, '"ab"', '"log_confidence":[[['),
    "a group": lambda size: write(type="open", session=1, group="a" * (size - 100)),
    "booleans": lambda size: write(type="open", session=1, group=[True] * (size // 6)),
    "events": lambda size: many_events(size),
    "frames": lambda size: write_frames(1, 1, np.zeros((2, size // 8 - 10))),
    "steps": lambda size: write_push(1, 1, [[]] * (size // 4 - 10)),
}


def check_memory(name: str, served: Served, part: int) -> None:
    """A part of the largest message takes the same part of the memory at most."""
    message = LARGE[name](MESSAGE // part)
    assert MESSAGE // part // 2 < len(message) <= MESSAGE // part

    def read() -> None:
        try:
            read_message(message, Bounds.of(served.rule, (2, 4, 4)))
        except BadMessage as error:
            assert len(str(error)) < 300

    assert peak(read) < ALLOWED // part


@pytest.mark.parametrize("name", LARGE)
def test_reading_a_message_takes_memory_in_proportion(name: str, served: Served) -> None:
    check_memory(name, served, 16)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_no_message_takes_more_than_fifty_megabytes(name: str, served: Served) -> None:
    check_memory(name, served, 1)


def test_lists_that_no_push_can_need_are_not_parsed_and_the_session_is_told(served: Served) -> None:
    bounds = Bounds.of(served.rule, (2, 4, 4))
    message = empty_steps()
    assert peak(lambda: refused(message, bounds)) < 100_000
    assert refused(message, bounds).session == 1 and "300002 lists" in str(refused(message, bounds))
    assert refused(deep_lists(), bounds).session == 1
    allowed = empty_steps(STEPS + 1)
    assert "decides within 24" in str(refused(allowed, bounds))
    frames = np.zeros((STEPS, 2, 4, 4)).tolist()  # the most lists that a push can need
    assert (
        len(
            read_message(  # type: ignore[arg-type]
                write(type="push", session=1, step=1, frames=frames),
                Bounds.of(served.rule, (2, 4, 4)),
            )
        )
        == STEPS
    )


def test_numbers_in_json_keep_their_kinds() -> None:
    for values, kind in (
        ([[True, False]], "b"),
        ([[1, True]], "i"),
        ([[1, 0.5]], "f"),
        ([[[1], [2]]], "i"),
    ):
        message = read_message(write(type="push", session=1, step=1, frames=values))
        assert isinstance(message, PushSteps) and message.frames is not None
        assert (
            message.frames.dtype.kind == kind
            and message.frames.tolist() == np.asarray(values).tolist()
        )
    for wrong in ([[1], [2, 3]], [[1], 2], [[[1]], [2]], [1, [2]], [[10**30]]):
        assert "no regular list" in str(
            refused(write(type="push", session=1, step=1, frames=wrong))
        )
    deep: Any = 1
    for _ in range(20):
        deep = [deep]
    assert refused(write(type="push", session=1, step=1, frames=deep)).session == 1


def test_a_message_is_cut_into_steps_by_what_they_cost() -> None:
    events = read_message(write_push(1, 1, [[], [1, 2], np.arange(64), [], []]))
    assert isinstance(events, PushSteps) and events.units == 5 + 66 // 16
    parts: list[list[int]] = []
    rest: PushSteps | None = events
    while rest is not None:
        part, rest = rest.cut(2)
        assert part.steps is not None
        parts.append(part.steps.counts.tolist())
    assert parts == [[0, 2], [64], [0, 0]]
    for name, values in (
        ("frames", np.zeros((3, 2))),
        ("log_confidence", np.full((3, 1, 2), -1.0)),
    ):
        message = read_message(write(type="push", session=1, step=1, **{name: values.tolist()}))
        assert isinstance(message, PushSteps)
        head, tail = message.cut(2)
        assert tail is not None and (len(head), len(tail)) == (2, 1) and head.cut(2)[1] is None


def test_every_client_has_a_share_of_every_tick(served: Served) -> None:
    async def check() -> None:
        one_hub = Hub(
            served.rule,
            served.ensemble.engine,
            input_shape=(2, 4, 4),
            options=served.ensemble.options(),
        )
        await one_hub.start()
        for task in one_hub._tasks:  # nothing is computed here
            task.cancel()
        greedy, honest = (one_hub.connect(lambda: None) for _ in range(2))
        for session in range(900):
            one_hub.receive(greedy, write(type="open", session=session))
            one_hub.receive(greedy, write_push(session, 1, [[]] * STEPS))
        one_hub.receive(honest, write(type="open", session=0))
        one_hub.receive(honest, write_push(0, 1, [[1]]))
        work, units = one_hub._next_batch()
        share = int(hub.TICK_SECONDS / hub.UNIT_SECONDS)
        taken = dict.fromkeys((greedy, honest), 0)
        for one, size in zip(work, units, strict=True):
            taken[one.session.connection] += size
        assert taken[honest] == hub.OPEN_UNITS + 1 and not honest.work
        assert taken[greedy] <= share + hub.OPEN_UNITS < 900 * STEPS and len(greedy.work) > 1700
        assert list(one_hub._turns) == [greedy]
        one_hub.disconnect(greedy)  # what nobody waits for is not computed
        assert not any(isinstance(one.message, PushSteps) for one in greedy.work)
        one_hub.forget(greedy)
        assert one_hub.connections == {honest}
        await one_hub.stop()

    asyncio.run(check())


def test_messages_in_parts_are_decided_as_whole_ones(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "TICK_SECONDS", 0.0)
    monkeypatch.setattr(hub, "LEAST_UNITS", 1)
    values = served.ensemble.score(served.inputs[:4]).log_confidence.astype(np.float64)
    with running(served) as (url, server), Client(url) as client:
        for frames, expected in zip(served.inputs, served.expected, strict=True):
            assert client.open().push_steps(steps_of(frames)) == expected
        for frames, expected in zip(served.inputs[:3], served.expected[:3], strict=True):
            assert client.open().push_steps(frames=frames) == expected
        for row in values:
            stream, session = served.rule.stream(0), client.open()
            expected = next(
                decision for value in row if (decision := stream.push(value)) is not None
            )
            assert session.push(log_confidence=row) == expected
        live, session = served.ensemble.live(served.rule), client.open()
        for step in steps_of(served.inputs[1])[:3]:
            live.push(step)
        session.push_steps(steps_of(served.inputs[1])[:3])
        # the checkpoints that are left are judged in parts too
        assert session.end() == live.last_decision()
        late = client.open()
        with pytest.raises(
            ag.InputError, match="numbered 0 to 31"
        ):  # wrong steps are refused before the first is run
            late.push_steps([*steps_of(served.inputs[0])[:-1], [99]])
        with raw(url) as talk:  # others go on while a client leaves in the middle of its message
            for session_id in range(50):
                talk.send(write(type="open", session=session_id))
                talk.send(write_push(session_id, 1, [[]] * STEPS))
        until(lambda: status(url)["sessions"] == 0)
        assert server.hub._queued == 0 and server.hub.metrics.ticks > 20 * 5


def test_long_messages_of_one_client_leave_the_others_alone(served: Served) -> None:
    with running(served) as (url, _), raw(url) as hostile, Client(url) as client:
        message = empty_steps()
        session = client.open()
        for step in steps_of(served.inputs[3]):
            hostile.send(message)
            decision = session.push(step)
            assert json.loads(hostile.recv())["session"] == 1
            if decision is not None:
                break
        assert decision == served.expected[3]
        assert status(url)["steps"] == decision.time, "none of the empty steps was computed"


def test_a_client_whose_messages_take_long_to_read_rests_while_others_are_there(
    served: Served,
) -> None:
    async def check() -> None:
        one_hub = Hub(served.rule)
        await one_hub.start()
        slow, fast = (one_hub.connect(lambda: None) for _ in range(2))
        one_hub.receive(slow, of_size(MESSAGE, "0"))
        one_hub.receive(fast, write(type="open", session=1))
        assert slow.rest > hub.RESTS * hub.SLOW_TO_READ and fast.rest == 0
        one_hub.disconnect(slow)
        await one_hub.stop()

    asyncio.run(check())


def test_the_sweeper_goes_on_after_faults_and_says_so(
    served: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    keep, sweep, faults = Watch.keep, Hub._sweep, {"keep": 3, "sweep": 2}

    def fails(name: str, fault: Exception) -> None:
        if faults[name]:
            faults[name] -= 1
            raise fault

    def keep_or_fail(self: Watch) -> None:
        fails("keep", metadata.PackageNotFoundError("agreestop"))
        keep(self)

    def sweep_or_fail(self: Hub, *given: Any) -> None:
        fails("sweep", OSError(24, "Too many open files"))
        sweep(self, *given)

    monkeypatch.setattr(Watch, "keep", keep_or_fail)
    monkeypatch.setattr(Hub, "_sweep", sweep_or_fail)
    limits = Limits(save_seconds=0.05, idle_seconds=0.3)
    with running(served, monitor=tmp_path / "monitor", limits=limits) as (url, _), raw(url) as talk:
        talk.send(write(type="open", session=1))
        talk.recv()
        assert json.loads(talk.recv(timeout=30))["type"] == "closed"  # the sweeper lives
        is_answered(served, url)
        # and the monitor is saved
        until(lambda: ag.DriftMonitor.load(tmp_path / "monitor").observed >= 1)
        assert status(url)["failures"] == {"sweeping": 2, "saving": 1}
        assert get(url, "/healthz").startswith("ok\nsweeping failed 2 times and went on")
    said = [record.getMessage() for record in caplog.records if record.name == "agreestop.serve"]
    assert (
        sum("cannot be saved" in one for one in said) == 1
        and sum("'sweeping' failed" in one for one in said) == 2
    )


def test_a_task_that_computes_begins_again_and_only_its_clients_are_dropped(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver, faults = Hub._deliver, [1]

    def deliver_or_fail(self: Hub, *given: Any) -> None:
        if faults:
            faults.clear()
            raise RuntimeError("a fault of ours")
        deliver(self, *given)

    with running(served) as (url, _):
        with Client(url) as other, Client(url, reconnect=0) as unlucky:
            session = other.open()
            monkeypatch.setattr(Hub, "_deliver", deliver_or_fail)
            with pytest.raises(ag.InputError, match="connection to the server ended"):
                unlucky.open()
            assert session.push_steps(steps_of(served.inputs[0])) == served.expected[0]
        until(lambda: (status(url)["sessions"], status(url)["clients"]) == (0, 0))
        assert status(url)["failures"] == {"computing": 1}


def test_saving_does_not_read_the_version_of_the_package_again(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_away(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    with running(served, monitor=tmp_path / "monitor", limits=Limits(save_seconds=0.05)) as (
        url,
        _,
    ):
        monkeypatch.setattr(metadata, "version", is_away)  # the package is being replaced
        is_answered(served, url)
        until(lambda: ag.DriftMonitor.load(tmp_path / "monitor").observed == 1)
        assert status(url)["failures"] == {}


def test_requests_whose_answers_are_not_read_are_dropped(served: Served) -> None:
    limits = Limits(slow_seconds=0.2)
    with running(served, limits=limits) as (url, server), ExitStack() as stack:
        request = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 50
        greedy = [stack.enter_context(connect(url)) for _ in range(5)]
        for plain in greedy:
            plain.sendall(request)
        is_answered(served, url)
        until(lambda: server._door.late >= 5)
        until(lambda: not server._door.open)
        assert get(url, "/healthz") == "ok\n"


def test_many_half_open_connections_make_room_for_others(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "WAITING_OF_ADDRESS", 8)
    monkeypatch.setattr(door, "WAITING_SECONDS", 0.05)
    with running(served) as (url, server), ExitStack() as stack, Client(url) as client:
        session = client.open()
        for _ in range(60):
            stack.enter_context(connect(url)).sendall(b"GET / HTTP/1.1\r\nHost:")
        until(lambda: server._door.late >= 52)
        assert server._door.waiting <= 8
        is_answered(served, url)
        assert session.push_steps(steps_of(served.inputs[1])) == served.expected[1]
        server._door.most = len(server._door.open)
        is_answered(served, url)  # one that has waited makes room
        monkeypatch.setattr(door, "WAITING_SECONDS", 60.0)
        server._door.most = 1  # none has waited long enough
        plain = stack.enter_context(connect(url))
        until(lambda: is_dropped(plain))
        assert server._door.refused == 1


def test_a_client_that_pings_and_does_not_read_is_dropped(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(served) as (url, server):
        with raw(url) as polite:
            for _ in range(20):
                assert polite.ping().wait(30)
        with handshake(url) as plain:
            until(lambda: status(url)["clients"] == 1)
            send_until_dropped(plain, frame(b"x" * 100, PING) * 100)
        assert server._door.refused == 1
        # however many may come, they are not kept for who does not read
        monkeypatch.setattr(door, "CONTROL_FRAMES", 10**9)
        with handshake(url) as plain:
            until(lambda: status(url)["clients"] == 1)
            sizes: list[int] = []

            def is_full() -> bool:
                sizes.extend(
                    one.transport.get_write_buffer_size() for one in list(server._door.open)
                )
                return server._door.refused == 2

            plain.settimeout(0.2)

            def shout() -> bool:
                with suppress(OSError):
                    plain.sendall(frame(b"x" * 100, PING) * 100)
                return is_full()

            until(shout)
            assert max(sizes) < 1 << 20
        is_answered(served, url)


def test_a_message_of_very_many_frames_is_refused_and_one_of_some_is_read(served: Served) -> None:
    with running(served) as (url, server):
        with raw(url) as talk:
            talk.send(iter(["{", '"type":"open",', '"session":1', "}"]))
            assert json.loads(talk.recv())["type"] == "opened"
        with handshake(url) as plain:
            until(lambda: status(url)["clients"] == 1)
            plain.sendall(frame(b"", TEXT, False))
            send_until_dropped(plain, frame(b"", CONTINUATION, False) * 10)
        assert server._door.refused == 1
        is_answered(served, url)


def test_messages_and_handshakes_have_deadlines(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agreestop.serve import server as of_server

    monkeypatch.setattr(of_server, "REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(door, "MESSAGE_SECONDS", 0.3)
    with running(served) as (url, _):
        with handshake(url) as plain:
            until(lambda: status(url)["clients"] == 1)
            plain.sendall(frame(bytes(100_000))[:20])  # the beginning of a frame
            send_until_dropped(plain, b"x")  # and its bytes one by one
        with handshake(url) as plain:
            until(lambda: status(url)["clients"] == 1)
            plain.sendall(frame(b"{", TEXT, False))  # a message that never ends
            until(lambda: is_dropped(plain))
        for strange in ("X: " + "a" * 9000 + "\r\n", "X: 1\r\n" * 200, "Content-Length: 5\r\n"):
            with handshake(url, extra=strange) as plain:
                until(lambda: is_dropped(plain))
        is_answered(served, url)
        until(lambda: status(url)["clients"] == 0)


def test_a_client_that_ends_badly_and_does_not_read_is_dropped(served: Served) -> None:
    with running(served, limits=Limits(slow_seconds=0.3)) as (url, server), handshake(url) as plain:
        until(lambda: status(url)["clients"] == 1)
        plain.settimeout(0.5)
        with pytest.raises(OSError):  # until the server reads no more
            while True:
                plain.sendall(frame(b'{"type":"end","session":1}') * 100)
        with pytest.raises(OSError):
            plain.sendall(frame(b"no message") * 100_000)
        until(lambda: status(url)["clients"] == 0)
        assert not server.hub.connections and status(url)["dropped_slow"] >= 1


def test_malformed_names_are_refused_without_a_word_in_the_log(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    with running(served) as (url, _):
        for name in ("uvicorn.error", "asyncio", "agreestop.serve"):
            logging.getLogger(name).addHandler(caplog.handler)
        try:
            for host, extra in (
                ("[", ""),
                ("127.0.0.1", "Origin: http://[\r\n"),
                ("[::1", ""),
                ("127.0.0.1", "Origin: [\r\n"),
                ("]", ""),
            ):
                with handshake(url, host, extra) as plain:
                    assert b" 403 " in plain.recv(100), (host, extra)
                with connect(url) as plain:
                    plain.sendall(f"GET /status/ HTTP/1.1\r\nHost: {host}\r\n{extra}\r\n".encode())
                    assert b" 404 " in plain.recv(100)
            for _ in range(20):
                with handshake(url, extra="Sec-WebSocket-Protocol: agreestop.v9\r\n") as plain:
                    assert b" 400 " in plain.recv(100)
                handshake(url).close()  # gone before the answer
            with connect(url) as plain:
                plain.sendall(b"\x00\xff no HTTP\r\n\r\n")
                assert b" 400 " in plain.recv(100)
            is_answered(served, url)
            until(lambda: status(url)["clients"] == 0)
        finally:
            for name in ("uvicorn.error", "asyncio", "agreestop.serve"):
                logging.getLogger(name).removeHandler(caplog.handler)
    assert caplog.records == []


def test_an_event_that_comes_again_and_again_is_logged_a_few_times_with_a_count() -> None:
    now, few = [0.0], logs.FewOfAKind(lambda: now[0])

    def passes(message: str, *arguments: Any) -> logging.LogRecord | None:
        record = logging.LogRecord("a", logging.ERROR, "a.py", 1, message, arguments, None)
        return record if few.filter(record) else None

    assert (
        sum(passes("client %d failed", number) is not None for number in range(1000))
        == logs.AT_ONCE
    )
    assert passes("another") is not None
    now[0] = logs.SECONDS + 1
    record = passes("client %d failed", 7)
    assert (
        record is not None
        and record.getMessage() == "client 7 failed (and 995 times more in the last 61 seconds)"
    )
    assert (
        sum(passes(f"kind {number}") is not None for number in range(10_000))
        < logs.KINDS + logs.AT_ONCE
    )


def test_a_cancelled_push_keeps_the_answers_in_order(served: Served) -> None:
    async def decide(client: AsyncClient, row: int) -> ag.Decision | None:
        session, steps = await client.open(), steps_of(served.inputs[row])
        stop = int(served.expected[row].time)
        for number, step in enumerate(steps[: stop - 1]):
            push = asyncio.create_task(session.push(step))
            if number % 2 == 0:
                await asyncio.sleep(0)  # it is sent
                push.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await push
            else:
                assert await push is None
        return await session.push(steps[stop - 1])

    async def check(url: str) -> None:
        async with AsyncClient(url) as client:
            rows = [row for row in range(20) if served.expected[row].time > 2]
            assert len(rows) > 3
            for row in rows:
                assert await decide(client, row) == served.expected[row]
            session = await client.open()
            push = asyncio.create_task(session.push_steps(steps_of(served.inputs[0])))
            await asyncio.sleep(0)
            push.cancel()
            # sent behind the decision, which answers it
            assert await session.push([]) == served.expected[0]
            with pytest.raises(ag.InputError, match="open a new session"):
                await session.push([])
            first, second = (asyncio.create_task(session.label(0)) for _ in range(2))
            await asyncio.sleep(0)
            first.cancel()
            with pytest.raises(
                ag.InputError, match="waits for a label"
            ):  # it is the second that was refused
                await second
            opening = asyncio.create_task(client.open())
            await asyncio.sleep(0)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            await (await client.open()).close()
            # nobody has the session, so it is closed
            await asyncio.to_thread(until, lambda: status(url)["sessions"] == 0)
            assert not client._sessions and not client._labels

    with running(served) as (url, _):
        asyncio.run(asyncio.wait_for(check(url), 60))


def test_an_interrupted_push_keeps_the_answers_in_order(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with running(served) as (url, _), Client(url) as client:
        for row in (0, 1):
            session = client.open()
            for step in steps_of(served.inputs[row])[:2]:
                with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                    patch.setattr(client, "_receive", interrupt)
                    session.push(step)
            assert session.push_steps(steps_of(served.inputs[row])[2:]) == served.expected[row]
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(client, "_receive", interrupt)
                session.label(0)
            with pytest.raises(ag.InputError, match="waits for a label"):
                session.label(0)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            session = client.open()
            patch.setattr(client._socket, "send", interrupt)
            session.push([])
        with pytest.raises(ag.InputError, match="interrupted while it was sent"):
            session.push([])


@pytest.mark.slow
@pytest.mark.parametrize("name", attacks.ATTACKS)
def test_others_are_answered_and_little_is_kept_during_an_attack(
    served: Served, tmp_path: Path, name: str
) -> None:
    served.rule.save(tmp_path / "rule")
    served.ensemble.save(tmp_path / "members")
    (found,) = attacks.measure(
        tmp_path, [steps_of(frames) for frames in served.inputs], 3.0, [name]
    )
    print(found)
    assert found["pushes"] > 20 and found["grown_bytes"] < ALLOWED and found["log_bytes"] < 10_000


@pytest.mark.slow
def test_files_that_are_used_up_end_neither_the_sweeper_nor_new_connections(
    served: Served, tmp_path: Path
) -> None:
    served.rule.save(tmp_path / "rule")
    served.ensemble.save(tmp_path / "members")
    command = [
        sys.executable,
        "-c",
        "from agreestop.cli import main; main()",
        "serve",
        str(tmp_path / "rule"),
    ]
    command += ["--members", str(tmp_path / "members"), "--port", "0", "--idle-seconds", "2"]

    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))

    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, preexec_fn=few_files
        )
    assert process.stdout is not None
    try:
        url = (
            next(line for line in process.stdout if "connect to" in line)
            .split("connect to ")[1]
            .split(". ")[0]
        )
        with Client(url) as client, ExitStack() as stack:
            session = client.open()
            for _ in range(300):
                plain = stack.enter_context(socket.socket())
                plain.setblocking(False)
                plain.connect_ex(("127.0.0.1", int(url.rpartition(":")[2])))
            assert session.push_steps(steps_of(served.inputs[0])) == served.expected[0]
            until(lambda: ag.DriftMonitor.load(tmp_path / "rule.monitor").observed == 1, 60)

        def nobody_is_left() -> bool:
            try:
                return bool(status(url)["clients"] == 0)
            except OSError:  # there is no room yet
                return False

        until(nobody_is_left, 60)
        is_answered(served, url)
        assert (tmp_path / "log").stat().st_size < 10_000
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def test_requests_of_connections_that_are_gone_take_no_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a flood whose connections were dropped, an honest client does not wait for its
    requests.
    """
    monkeypatch.setattr(app, "REQUESTS_AT_ONCE", 1)
    monkeypatch.setattr(app, "REQUEST_INTERVAL", 0.05)
    done: list[str] = []

    async def request(turns: app.Turns, name: str, is_gone: bool) -> None:
        await turns.wait(lambda: is_gone)
        done.append(name)

    async def check() -> None:
        turns = app.Turns()
        flood = [("gone", True)] * 200 + [("waits", False)] * 2 + [("honest", False)]
        await asyncio.wait_for(asyncio.gather(*(request(turns, *one) for one in flood)), 5)

    asyncio.run(check())
    assert done[-3:] == ["waits", "waits", "honest"] and len(done) == 203
