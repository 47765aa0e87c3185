"""Clients whose connection ends: they say which sessions are lost, connect again, and nothing
counts twice.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

for _name in ("torch", "numba", "starlette", "uvicorn", "websockets"):
    pytest.importorskip(_name, reason=f"the server needs {_name}: install agreestop[serve]")

import agreestop as ag
from agreestop.serve import AsyncClient, Client, ConnectionLost, Limits, Server, client

from .served import Served, steps_of, until
from .test_serve import status


def drop(server: Server) -> None:
    """End all connections, as a network does that breaks."""

    def drop_all() -> None:
        for connection in list(server.hub.connections):
            connection.drop()

    server._uvicorn._loop.call_soon_threadsafe(drop_all)


def cut(server: Server) -> None:
    """The same, and wait until they are gone."""
    drop(server)
    until(lambda: not server.hub.connections)


def test_open_sessions_are_lost_and_the_next_one_connects_again(served: Served) -> None:
    server = Server(served.rule, served.ensemble, port=0)
    steps = steps_of(served.inputs[0])
    with server.background() as url, Client(url) as here:
        decided, first, second = here.open(), here.open(), here.open()
        assert decided.push_steps(steps) == served.expected[0]
        first.push(steps[0])
        cut(server)
        with pytest.raises(ConnectionLost, match=r"step [23] was next: this session is lost"):
            first.push(steps[1])
        assert first.lost and second.lost and not decided.lost and second.decision is None
        for _ in range(2):  # it stays lost, however often it is pushed
            with pytest.raises(ConnectionLost, match="this session is lost"):
                second.push(steps[0])
        second.close()
        assert decided.label(int(served.labels[0])) == ()  # which connects again
        again = here.open()
        assert again.push_steps(steps) == served.expected[0] and again.number == 3
        cut(server)
        assert here.open().push_steps(steps) == served.expected[0]
        assert server.hub.watch is not None
        monitor = server.hub.watch.monitor
        until(lambda: monitor.observed == 5)  # each session once: three decisions, two without
        found = status(url)
        assert (found["opened"], found["decisions"], found["labels"], found["sessions"]) == (
            5,
            3,
            1,
            0,
        )
    with pytest.raises(ag.InputError, match="this client is closed"):
        here.open()


def test_a_decision_on_its_way_is_given_once_or_not_at_all(served: Served) -> None:
    """The connection breaks while a push is answered: client and monitor agree on the number of
    inputs.
    """
    server = Server(served.rule, served.ensemble, port=0)
    steps = steps_of(served.inputs[0])
    with server.background() as url, Client(url) as here:
        got = lost = 0
        for round_ in range(12):
            session = here.open()
            cutter = threading.Timer(0.0005 * round_, drop, [server])
            cutter.start()
            try:
                while session.push(steps[0]) is None:
                    pass
                got += 1
            except ConnectionLost:
                lost += 1
            cutter.join()
        assert server.hub.watch is not None
        watch, metrics = server.hub.watch, server.hub.metrics
        until(lambda: watch.monitor.observed == metrics.opened)
        assert got + lost == 12 and metrics.opened >= 12 and metrics.decisions >= got


def test_a_label_that_is_sent_again_counts_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(served.rule, served.ensemble, port=0)
    with server.background() as url, Client(url) as here:
        session = here.open()
        session.push_steps(steps_of(served.inputs[0]))
        receive, times = here._receive, [0]

        def lose_the_answer() -> Any:
            times[0] += 1
            if times[0] == 1:
                until(lambda: status(url)["labels"] == 1)
                cut(server)
            return receive()

        monkeypatch.setattr(here, "_receive", lose_the_answer)
        answer = here._socket.recv
        # the first answer is lost
        monkeypatch.setattr(here._socket, "recv", lambda: (answer(), answer())[1])
        assert session.label(int(served.labels[0])) == ()
        assert times[0] > 1 and (status(url)["labels"], status(url)["processed"]) == (1, 1)
        with pytest.raises(ag.InputError, match="waits for a label"):
            session.label(int(served.labels[0]))  # by the user, who must not give it twice


def test_a_client_waits_for_a_server_that_starts_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(drain_seconds=0.1)
    server = Server(served.rule, served.ensemble, port=0, limits=limits)
    with server.background() as url:
        patient, hasty, never = Client(url), Client(url, reconnect=0.3), Client(url, reconnect=0)
        session = patient.open()
    with pytest.raises(ConnectionLost, match="this session is lost"):
        session.push_steps(steps_of(served.inputs[0]))
    for one, words in ((hasty, "cannot connect to"), (never, "connect again")):
        with pytest.raises(ag.InputError):
            one.open()
        with pytest.raises(ag.InputError, match=words):
            one.open()
    later = Server(served.rule, served.ensemble, port=server.port)
    starting = threading.Timer(0.5, later.run)
    starting.start()
    assert patient.open().push_steps(steps_of(served.inputs[0])) == served.expected[0]
    later._uvicorn.drain()
    starting.join()
    for one in (patient, hasty, never):
        one.close()


def test_a_token_that_changed_is_said_at_once(served: Served) -> None:
    server = Server(served.rule, port=0, token="a", limits=Limits(drain_seconds=0.1))
    with server.background() as url:
        here = Client(url, token="a")
    with Server(served.rule, port=server.port, token="b").background():
        with pytest.raises(ag.InputError):
            here.open()
        with pytest.raises(ag.InputError, match="a token is needed"):
            here.open()
    here.close()


def test_tasks_of_an_async_client_share_the_new_connection(served: Served) -> None:
    server = Server(served.rule, served.ensemble, port=0)

    async def decide(here: AsyncClient, row: int) -> ag.Decision | None:
        session = await here.open()
        decision = await session.push_steps(steps_of(served.inputs[row]))
        await session.label(int(served.labels[row]))
        return decision

    async def check(url: str) -> None:
        async with AsyncClient(url) as here:
            session = await here.open()
            await session.push([])
            for _ in range(3):
                await asyncio.to_thread(cut, server)
                found = await asyncio.gather(*(decide(here, row) for row in range(6)))
                assert found == served.expected[:6]
            with pytest.raises(ConnectionLost, match="step 2 was next"):
                await session.push([])
            assert session.lost
            await session.close()
            waiting = await here.open()
            held = asyncio.create_task(waiting.push_steps([[]] * 3))
            await asyncio.sleep(0)
            await asyncio.to_thread(cut, server)
            with pytest.raises(ConnectionLost):
                await held
                await waiting.push([])
            assert not here._labels
        with pytest.raises(ag.InputError, match="this client is closed"):
            await here.open()

    with server.background() as url:
        asyncio.run(asyncio.wait_for(check(url), 60))
        assert server.hub.watch is not None
        monitor = server.hub.watch.monitor
        until(lambda: monitor.observed == server.hub.metrics.opened)
        assert (server.hub.watch.labels, monitor.labels) == (18, 18)


def test_a_stream_without_an_end_is_lost_too() -> None:
    rng = np.random.default_rng(0)
    server = Server(
        spotter=ag.Spotter(0.2, rest=5).calibrate([rng.normal(size=200) for _ in range(30)]), port=0
    )
    with server.background() as url, Client(url) as here:
        session = here.watch()
        session.push(0.0)
        cut(server)
        with pytest.raises(ConnectionLost, match="this session is lost"):
            session.push(0.0)
        assert session.close() == "" and isinstance(here.watch().push(1e9), ag.Detection)


def test_pauses_grow_and_end() -> None:
    for given in (-1, float("nan"), "5", None):
        with pytest.raises(ag.InputError, match="reconnect is"):
            Client("ws://127.0.0.1:1", reconnect=given)  # type: ignore[arg-type]
    assert list(client.pauses(0)) == []
    first, second = (
        next(client.pauses(60.0)),
        list(zip(range(8), client.pauses(60.0), strict=False)),
    )
    assert 0.04 < first <= 0.1 and second[-1][1] > 2 and all(pause <= 5 for _, pause in second)
