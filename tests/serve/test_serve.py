"""The server decides as a live session does, keeps to its limits, and answers what is wrong with
one sentence.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

for _name in ("torch", "numba", "starlette", "uvicorn", "websockets"):
    pytest.importorskip(_name, reason=f"the server needs {_name}: install agreestop[serve]")

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

import agreestop as ag
from agreestop.serve import AsyncClient, Client, Limits, Server
from agreestop.serve.protocol import (
    SUBPROTOCOL,
    read_decision,
    write,
    write_decision,
    write_frames,
    write_push,
)
from agreestop.serve.watch import Watch
from tests.cli.test_cli import call

from .served import INPUTS, STEPS, Served, steps_of, until


@pytest.fixture
def url(served: Served) -> Iterator[str]:
    with serving(served) as address:
        yield address


def get(url: str, path: str, **headers: str) -> str:
    with urllib.request.urlopen(
        urllib.request.Request(url.replace("ws:", "http:") + path, headers=headers)
    ) as answer:
        return str(answer.read().decode())


def status(url: str) -> dict[str, Any]:
    return dict(json.loads(get(url, "/status")))


@contextmanager
def serving(served: Served, ensemble: bool = True, **options: Any) -> Iterator[str]:
    with Server(
        served.rule, served.ensemble if ensemble else None, port=0, **options
    ).background() as url:
        yield url


@contextmanager
def raw(url: str, **options: Any) -> Iterator[Any]:
    """A connection on which a test may send anything; the welcome is read."""
    with connect(url + "/live", compression=None, proxy=None, **options) as talk:
        assert json.loads(talk.recv())["type"] == "welcome"
        yield talk


def test_a_client_needs_neither_torch_nor_the_server() -> None:
    heavy = "torch", "numba", "starlette", "uvicorn"
    code = (
        "import sys, agreestop as ag; ag.serve.Client; sys.exit(sum(name in sys.modules for "
        f"name in {heavy}))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_client_gets_the_decisions_of_a_live_session(served: Served, url: str) -> None:
    with Client(url) as client:
        assert (client.about["inputs"], client.about["classes"], client.about["protocol"]) == (
            INPUTS,
            4,
            1,
        )
        for frames, expected in zip(served.inputs[:8], served.expected[:8], strict=True):
            session = client.open()
            found = [session.push(step) for step in steps_of(frames)[: int(expected.time)]]
            assert found[-1] == expected == session.decision and not any(found[:-1])
            assert (
                found[-1] is not None
                and found[-1].first_risk == expected.first_risk
                and found[-1].members == 3
            )
            assert session.promise == served.rule.guarantee
            with pytest.raises(ag.InputError, match="open a new session"):
                session.push([])
        for frames, expected in zip(served.inputs, served.expected, strict=True):
            session = client.open()
            for steps in (
                [],
                [[3], [-1]],
                [[2**32]],
            ):  # refused before anything is sent, so the session goes on
                with pytest.raises(ag.InputError, match="no step, or an index that is no input"):
                    session.push_steps(steps)
            assert session.push_steps(steps_of(frames)) == expected
        assert status(url)["decisions"] == 28 and status(url)["sessions"] == 0


def test_json_pushes_are_decided_as_binary_ones(served: Served, url: str) -> None:
    with raw(url, subprotocols=[SUBPROTOCOL]) as talk:
        talk.send(write(type="open", session=7))
        assert json.loads(talk.recv()) == {"type": "opened", "session": 7, "number": 0}
        steps = [step.tolist() for step in steps_of(served.inputs[0])]
        stop = int(served.expected[0].time)
        for step in range(stop - 2):
            talk.send(write(type="push", session=7, step=step + 1, events=steps[step]))
            assert json.loads(talk.recv()) == {"type": "next", "session": 7, "step": step + 2}
        talk.send(write(type="push", session=7, step=stop - 1, steps=steps[stop - 2 :]))
        answer = json.loads(talk.recv())
        assert (answer["type"], answer["time"], tuple(answer["classes"])) == (
            "decision",
            stop,
            served.expected[0].classes,
        )
        talk.send(write(type="push", session=7, step=STEPS + 1, events=[]))
        assert "session 7 is not open" in json.loads(talk.recv())["error"]
        talk.send(write(type="open", session=7))  # the number is free again
        assert json.loads(talk.recv())["number"] == 1


def test_messages_behind_a_decision_are_answered_that_the_session_is_over(
    served: Served, url: str
) -> None:
    with raw(url) as talk:
        for session in range(20):  # sent at once, so that some of them are computed together
            talk.send(write(type="open", session=session))
            talk.send(write_push(session, 1, steps_of(served.inputs[session])))
            talk.send(write_push(session, STEPS + 1, [[]]))
        answers = [json.loads(talk.recv()) for _ in range(60)]
    for session in range(20):
        opened, decision, late = (answer for answer in answers if answer["session"] == session)
        assert (opened["type"], decision["type"], late["type"]) == (
            "opened",
            "decision",
            "error",
        ) and "is not open" in late["error"]


def test_log_confidences_are_judged_as_in_a_stream(served: Served) -> None:
    values = served.ensemble.score(served.inputs[:4]).log_confidence.astype(np.float64)
    with serving(served, ensemble=False) as url, Client(url) as client:
        assert client.about["inputs"] is None
        for row in values:
            stream, session, packed = served.rule.stream(0), client.open(), client.open()
            expected = next(
                decision for value in row if (decision := stream.push(value)) is not None
            )
            found = next(
                decision
                for value in row
                if (decision := session.push(log_confidence=value)) is not None
            )
            assert found == expected
            assert packed.push(log_confidence=row) == expected
        for given in ([1], row[0]):
            with pytest.raises(ag.InputError, match=r"push\(log_confidence=array\)"):
                client.open().push(given)
    few = ag.AgreeStop(0.8, (8, 24), 1, delta=0.2).calibrate(
        served.ensemble.score(served.inputs, served.labels)
    )
    with Server(few, port=0).background() as url, Client(url) as client:
        with pytest.raises(ag.InputError, match="3 steps, but the rule decides within 2"):
            client.open().push(log_confidence=values[0, :3])
        assert client.open().push(log_confidence=values[0, [7, 23]]) is not None


def test_a_stream_that_is_over_is_answered_and_one_may_be_given_up(
    served: Served, url: str
) -> None:
    live = served.ensemble.live(served.rule)
    steps = steps_of(served.inputs[1])[:3]
    for step in steps:
        live.push(step)
    with Client(url) as client:
        session = client.open()
        session.push_steps(steps)
        assert session.end() == live.last_decision()
        given_up = client.open()
        given_up.close()
        with pytest.raises(ag.InputError, match="the client closed it"):
            given_up.push([])
        with pytest.raises(ag.InputError, match="before its first step"):
            client.open().end()
    until(lambda: status(url)["clients"] == 0)
    assert status(url)["sessions"] == 0


def test_many_sessions_of_many_clients_at_once(served: Served, url: str) -> None:
    async def one(client: AsyncClient, row: int) -> ag.Decision | None:
        session, steps = await client.open(), steps_of(served.inputs[row])
        while (decision := await session.push(steps.pop(0))) is None:
            pass
        await session.label(int(served.labels[row]))
        return decision

    async def all_of_them() -> list[ag.Decision | None]:
        async with AsyncClient(url) as first, AsyncClient(url) as second:
            return await asyncio.gather(
                *(one((first, second)[row % 2], row % 20) for row in range(60))
            )

    assert asyncio.run(all_of_them()) == served.expected * 3
    found = status(url)
    assert (found["decisions"], found["labels"], found["processed"], found["sessions"]) == (
        60,
        60,
        60,
        0,
    )
    assert found["ticks"] < found["messages"], "sessions are computed together"
    hits = sum(
        label in decision.classes
        for label, decision in zip(served.labels, served.expected, strict=True)
    )
    assert found["coverage"][0] == pytest.approx(hits / 20)
    text = get(url, "/metrics")
    assert (
        "\nagreestop_decisions_total 60\n" in text
        and 'agreestop_decision_seconds_bucket{le="+Inf"} 60\n' in text
    )
    check_prometheus_text(text)


def check_prometheus_text(text: str) -> None:
    """The grammar of the text format: every metric has its help and type, then its samples; buckets
    of a histogram add up.
    """
    assert text.endswith("\n")
    kinds: dict[str, str] = {}
    buckets: list[float] = []
    for line in text.splitlines():
        if found := re.fullmatch(r"# (HELP|TYPE) (\w+) (.+)", line):
            word, name, rest = found.groups()
            assert (name in kinds) == (word == "TYPE") and (
                word == "HELP" or rest in ("gauge", "counter", "histogram")
            )
            kinds[name] = rest
            continue
        sample = re.fullmatch(
            r'(agreestop_[a-z0-9_]+?)(_bucket|_sum|_count)?(\{(\w+)="([^"\\]*)"\})? (\S+)', line
        )
        assert sample is not None and sample[1] in kinds and math.isfinite(float(sample[6])), line
        assert sample[1] == list(kinds)[-1] and (sample[2] is not None) == (
            kinds[sample[1]] == "histogram"
        ), line
        if sample[2] == "_bucket":
            buckets.append(float(sample[6]))
        elif sample[2] == "_count":
            assert sorted(buckets) == buckets and buckets[-1] == float(sample[6])
    assert len(buckets) == 12 and len(kinds) == 19


BAD = {
    "no JSON": ("{", None),
    "too deep": ("[" * 100_000, None),
    "no object": ("[]", None),
    "a constant": ('{"type":"open","session":NaN}', None),
    "no session": ('{"type":"open"}', None),
    "a session that is no number": ('{"type":"open","session":true}', None),
    "a short push": (b"\0" * 8, None),
    "no key": ('{"type":"label"}', None),
    "a session beyond 32 bits": ('{"type":"open","session":4294967296}', None),
    "a key that is too long": (write(type="label", decision="a" * 65, label=0), None),
    "a label that is a boolean": ('{"type":"label","decision":"a","label":true}', None),
    "a label below 0": ('{"type":"label","decision":"a","label":-1}', None),
    "an unknown type": ('{"type":"shout","session":1}', "send open, push"),
    "a group that is none": ('{"type":"open","session":2,"group":{}}', "group is none"),
    "a group beyond 32 bits": ('{"type":"open","session":2,"group":4294967296}', "group is none"),
    "a group without groups": ('{"type":"open","session":2,"group":"left"}', "calibrated without"),
    "a session that is open": ('{"type":"open","session":1}', "is open"),
    "a session that is not": ('{"type":"end","session":3}', "is not open"),
    "another step": ('{"type":"push","session":1,"step":2,"events":[]}', "step 1 is due"),
    "no step": ('{"type":"push","session":1,"events":[]}', "step is missing"),
    "step 0": ('{"type":"push","session":1,"step":0,"events":[]}', "step is missing"),
    "events that are no list": ('{"type":"push","session":1,"step":1,"events":{}}', "as a list"),
    "no steps": ('{"type":"push","session":1,"step":1,"steps":[]}', "steps is empty"),
    "no events": ('{"type":"push","session":1,"step":1}', "one of events, steps, frame, frames"),
    "an event out of range": (
        '{"type":"push","session":1,"step":1,"events":[32]}',
        "numbered 0 to 31",
    ),
    "an event that is a huge number": (
        '{"type":"push","session":1,"step":1,"events":[1' + "0" * 30 + "]}",
        "events",
    ),
    "an event below 0": ('{"type":"push","session":1,"step":1,"events":[-1]}', "numbered 0 to 31"),
    "words": ('{"type":"push","session":1,"step":1,"events":["a"]}', "flat indices"),
    "a ragged list": (
        '{"type":"push","session":1,"step":1,"steps":[[1],[[2,3],4]]}',
        "no regular list",
    ),
    "no list of lists": ('{"type":"push","session":1,"step":1,"steps":[1,2]}', "list of lists"),
    "too many steps": (write_push(1, 1, [[]] * (STEPS + 1)), "decides within 24"),
    "counts that do not fit": (write_push(1, 1, [[1, 2]])[:-4], "1 events, but its steps have 2"),
    "more steps than bytes": (
        np.array([1, 1, 2**30, 5], "<u4").tobytes(),
        "do not fit its 1073741824 steps",
    ),
    "a binary push of no step": (np.array([1, 1, 0], "<u4").tobytes(), "do not fit its 0 steps"),
    "a binary push of step 0": (np.array([1, 0, 1, 0], "<u4").tobytes(), "from step 0"),
    "half a number": (write_push(1, 1, [[1, 2]])[:-1], "do not fit"),
    "log-confidences of other members": (
        '{"type":"push","session":1,"step":1,"log_confidence":[[-1,-1,-1,-1]]}',
        "members",
    ),
    "log-confidences above 0": (
        '{"type":"push","session":1,"step":1,"log_confidence":[[2,1,1,1],[1,1,1,1],[1,1,1,1]]}',
        "at most 0",
    ),
    "a frame of another size": (
        '{"type":"push","session":1,"step":1,"frame":[1,0]}',
        "of shape (2, 4, 4) are needed",
    ),
    "a frame of words": (
        '{"type":"push","session":1,"step":1,"frame":["a"]}',
        "frames are no lists of numbers",
    ),
    "a frame of numbers, where members read events": (
        write(type="push", session=1, step=1, frame=[0.5] * 32),
        "values other than 0 and 1",
    ),
    "a ragged frame": (
        '{"type":"push","session":1,"step":1,"frames":[[1],[1,2]]}',
        "no regular list",
    ),
    "no frame": (
        '{"type":"push","session":1,"step":1,"frames":[]}',
        "frames are no lists of numbers",
    ),
    "frames that are no lists": (
        '{"type":"push","session":1,"step":1,"frames":[1,2]}',
        "frames are no lists of numbers",
    ),
    "frames and events": (
        '{"type":"push","session":1,"step":1,"frame":[1],"events":[1]}',
        "a push needs one of",
    ),
    "half a frame": (write_frames(1, 1, np.zeros((2, 32)))[:-4], "63 numbers for 2 frames"),
    "a frame of no inputs": (
        '{"type":"push","session":1,"step":1,"frame":[]}',
        "frames are no lists of numbers",
    ),
    "frames without numbers": (write_frames(1, 1, np.zeros((1, 1)))[:-4], "0 numbers for 1 frames"),
    "a frame that is not finite": (
        write_frames(1, 1, np.zeros((1, 32)))[:-4] + np.float32("nan").tobytes(),
        "finite",
    ),
    "log-confidences without members": (
        '{"type":"push","session":1,"step":1,"log_confidence":[-1,-1]}',
        "log_confidence is no list",
    ),
    "empty log-confidences": (
        '{"type":"push","session":1,"step":1,"log_confidence":[[]]}',
        "log_confidence is no list",
    ),
    "log-confidences of words": (
        '{"type":"push","session":1,"step":1,"log_confidence":[["a"]]}',
        "log_confidence is no list",
    ),
}


def test_a_bad_message_gets_a_sentence_and_costs_its_session_alone(
    served: Served, url: str
) -> None:
    with Client(url) as other:
        good = other.open()
        for name, (message, sentence) in BAD.items():
            with raw(url) as talk:
                for session in (0, 1):
                    talk.send(write(type="open", session=session))
                    talk.recv()
                talk.send(message)
                answer = json.loads(talk.recv())
                assert answer["type"] == "error" and len(answer["error"]) < 300, name
                if sentence is None:  # it names no session: the connection ends
                    assert answer["session"] is None, name
                    with pytest.raises(ConnectionClosed):
                        talk.recv()
                    continue
                assert sentence in answer["error"], name
                talk.send(write(type="push", session=0, step=1, events=[]))
                assert json.loads(talk.recv()) == {"type": "next", "session": 0, "step": 2}, name
                if answer["session"] == 1:
                    talk.send(write(type="push", session=1, step=1, events=[]))
                    assert "not open" in json.loads(talk.recv())["error"], name
        assert good.push_steps(steps_of(served.inputs[0])) == served.expected[0]


def test_a_decision_survives_its_message() -> None:
    for risk, found in (
        (-0.5, -0.5),
        (None, None),
        (-np.inf, None),
        (np.nan, None),
    ):  # JSON has no infinite numbers
        for names in (None, ("one", 'two, "2"\ud800')):
            decision = ag.Decision(3, 2, (0, 1), names, risk, 2, 1)
            read = read_decision(json.loads(write_decision(7, "key", decision, "promise")))
            assert read == decision and (read.names, read.first_risk, read.members, read.block) == (
                names,
                found,
                2,
                1,
            )


def fuzzed(rng: np.random.Generator) -> str | bytes:
    """A message that is almost right, or not at all."""
    pick = int(rng.integers(7))
    if pick == 0:
        return rng.bytes(int(rng.integers(80)))
    if pick == 1:
        return write_push(
            int(rng.integers(3)),
            int(rng.integers(1, 4)),
            [rng.integers(0, 40, size=int(rng.integers(6)))],
        )
    if pick == 6:
        frames = write_frames(
            int(rng.integers(3)),
            int(rng.integers(1, 3)),
            rng.choice([0, 1, 2], size=(int(rng.integers(1, 3)), 32), p=[0.8, 0.19, 0.01]),
        )
        return frames[: len(frames) - int(rng.choice([0, 0, 1, 4]))]
    words: list[Any] = [
        0,
        1,
        2,
        3,
        -1,
        1.5,
        "push",
        "open",
        "end",
        "close",
        None,
        True,
        "é",
        "\ud800",
    ]
    words += [[], {}, [1], [[2]], [[[-1.0] * 4] * 3], [0.0] * 32]
    names = (
        "session",
        "step",
        "events",
        "steps",
        "frame",
        "frames",
        "log_confidence",
        "evidence",
        "cost",
        "group",
        "label",
        "decision",
    )
    content = {
        "type": str(rng.choice(["open", "push", "end", "close", "label", "x"])),
        "session": int(rng.integers(3)),
        "step": 1,
    }
    content |= {
        str(rng.choice(names)): words[int(rng.integers(len(words)))]
        for _ in range(int(rng.integers(4)))
    }
    text = json.dumps(content)
    if pick == 2:
        cut = int(rng.integers(len(text)))
        text = text[:cut] + chr(int(rng.integers(32, 1000))) + text[cut + 1 :]
    return text


def fuzz(served: Served, url: str, count: int) -> None:
    """Send fuzzed messages and read an answer to each; the server goes on deciding for others."""
    rng, sent = np.random.default_rng(5), 0
    with Client(url) as other:
        while sent < count:
            with raw(url) as talk:
                try:
                    while sent < count:
                        sent += 1
                        talk.send(fuzzed(rng))
                        assert json.loads(talk.recv(timeout=60))["type"] in (
                            "opened",
                            "next",
                            "decision",
                            "closed",
                            "error",
                            "labelled",
                        )
                except ConnectionClosed:
                    pass
            if sent % 1000 < 5:
                assert other.open().push_steps(steps_of(served.inputs[3])) == served.expected[3]
        assert other.open().push_steps(steps_of(served.inputs[3])) == served.expected[3]
    until(lambda: status(url)["clients"] == 0)
    assert status(url)["sessions"] == 0


def test_fuzzed_messages(served: Served, url: str) -> None:
    fuzz(served, url, 400)


@pytest.mark.slow
def test_many_fuzzed_messages(served: Served, url: str) -> None:
    fuzz(served, url, 100_000)


def test_limits_of_sessions_clients_and_messages(served: Served) -> None:
    limits = Limits(message_bytes=2000, sessions=3, sessions_per_client=2, clients=2)
    with serving(served, limits=limits) as url, Client(url) as first, Client(url) as second:
        kept = [first.open(), first.open()]
        with pytest.raises(ag.InputError, match="a client may have no more"):
            first.open()
        kept.append(second.open())
        with pytest.raises(ag.InputError, match="all 3 sessions"):
            second.open()
        with pytest.raises(ag.InputError, match="2 clients are connected"):
            Client(url)
        kept[0].close()
        assert second.open().push_steps(steps_of(served.inputs[0])) == served.expected[0]
        with pytest.raises(ag.InputError, match="1009"):
            second.open().push([0] * 1000)
        until(lambda: status(url)["clients"] == 1)
        assert kept[1].push_steps(steps_of(served.inputs[1])) == served.expected[1]
    for wrong in (
        {"sessions": 0},
        {"sessions": 1.5},
        {"idle_seconds": float("inf")},
        {"idle_seconds": "a"},
    ):
        with pytest.raises(ag.InputError, match="above 0"):
            Limits(**wrong)


def test_idle_sessions_and_connections_are_closed(served: Served) -> None:
    with serving(served, limits=Limits(idle_seconds=0.2)) as url, raw(url) as talk:
        talk.send(write(type="open", session=1))
        talk.recv()
        assert json.loads(talk.recv(timeout=30)) == {
            "type": "closed",
            "session": 1,
            "reason": "it had no push for 0.2 seconds.",
        }
        with pytest.raises(ConnectionClosed, match="idle"):
            talk.recv(timeout=30)
        assert status(url)["dropped_idle"] == 1 and status(url)["sessions"] == 0


def handshake(url: str, name: str = "127.0.0.1") -> socket.socket:
    """A WebSocket whose client never reads: by hand, with a small buffer."""
    host, port = url.removeprefix("ws://").split(":")
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.connect((host, int(port)))
    key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg=="
    plain.sendall(
        f"GET /live HTTP/1.1\r\nHost: {name}\r\nConnection: Upgrade\r\nUpgrade: "
        f"websocket\r\n{key}\r\n\r\n".encode()
    )
    return plain


def test_a_client_that_does_not_read_is_dropped_and_others_are_not(served: Served) -> None:
    limits = Limits(slow_seconds=0.3)
    with serving(served, limits=limits) as url, Client(url) as other, handshake(url) as slow:
        text = write(type="end", session=1).encode()  # every one is answered with a sentence
        frame = bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text
        stop = threading.Event()

        def shout() -> None:
            try:
                while not stop.is_set():
                    slow.sendall(frame * 200)
            except OSError:
                pass

        thread = threading.Thread(target=shout)
        thread.start()
        try:
            until(lambda: status(url)["dropped_slow"] == 1)
        finally:
            stop.set()
            slow.close()
            thread.join()
        until(lambda: status(url)["clients"] == 1)
        assert other.open().push_steps(steps_of(served.inputs[2])) == served.expected[2]


def test_half_open_clients_are_noticed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from agreestop.serve import server

    monkeypatch.setattr(server, "PING_SECONDS", 0.2)
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.2)
    with serving(served) as url, handshake(url) as gone:  # it never answers a ping
        until(lambda: status(url)["clients"] == 1)
        host, port = url.removeprefix("ws://").split(":")
        with socket.create_connection((host, int(port))) as silent:
            silent.sendall(b"GET / HTTP/1.1\r\nHost:")  # and never the rest
            silent.settimeout(30)
            with pytest.raises(ConnectionResetError):
                assert silent.recv(1) == b""
                raise ConnectionResetError
        with socket.create_connection((host, int(port))) as silent:
            silent.settimeout(30)
            for _ in range(2):
                silent.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
                until(lambda: silent.recv(1000).endswith(b"ok\n"))
                time.sleep(0.3)  # between two requests there may be more time than one may take
            silent.sendall(b"GET / HTTP/1.1\r\nHost:")  # the second request never ends
            with pytest.raises(ConnectionResetError):
                while silent.recv(1000):
                    pass
                raise ConnectionResetError
        until(lambda: status(url)["clients"] == 0)
        assert gone.fileno() >= 0


def test_a_token_is_needed_where_there_is_one(served: Served) -> None:
    with serving(served, token="s3cret") as url:
        for wrong in (None, "", "s3cre", "s3cret0", "é"):
            with pytest.raises(ag.InputError, match=r"token is needed|cannot connect"):
                Client(url, token=wrong)
        for path in ("/", "/status", "/metrics", "/?token=no"):
            with pytest.raises(urllib.error.HTTPError, match="401") as refused:
                get(url, path)
            refused.value.close()
        assert get(url, "/healthz") == "ok\n"
        assert "agreestop" in get(url, "/?token=s3cret") and "agreestop_sessions 0" in get(
            url, "/metrics?token=s3cret"
        )
        with Client(url, token="s3cret") as client:
            assert client.open().push_steps(steps_of(served.inputs[0])) == served.expected[0]
        # that of a proxy
        basic = get(url, "/status?token=s3cret", Authorization="Basic bmFtZTpwYXNz")
        assert "sessions" in basic and "sessions" in get(
            url, "/status", Authorization="bearer s3cret"
        )
    for unusable in ("", "two words", "pässe", "a\n"):
        with pytest.raises(ag.InputError, match="token is empty, or has a space"):
            Server(served.rule, port=0, token=unusable)


def test_other_sites_and_other_versions_may_not_connect(served: Served, url: str) -> None:
    for options, code in (
        ({"origin": "http://evil.example"}, 403),
        ({"subprotocols": ["agreestop.v9"]}, 400),
    ):
        with pytest.raises(Exception, match=str(code)), raw(url, **options):
            pass
    with raw(url, origin=url.replace("ws:", "http:")):
        pass
    for path in ("/etc/passwd", "/../pyproject.toml", "/%2e%2e/%2e%2e/etc/passwd", "/page.html"):
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            get(url, path)
        refused.value.close()


def test_labels_feed_the_monitor_once(served: Served, url: str) -> None:
    with Client(url) as client:
        session = client.open()
        with pytest.raises(ag.InputError, match="no decision yet"):
            session.label(0)
        session.push_steps(steps_of(served.inputs[0]))
        with pytest.raises(ag.InputError, match="from 0 to 3"):
            session.label(4)
        with raw(url) as talk:
            # half a character, which no answer may repeat as it is
            talk.send('{"type":"label","decision":"\\ud800","label":0}')
            assert "waits for a label" in json.loads(talk.recv())["error"]
        assert session.label(int(served.labels[0])) == ()
        with pytest.raises(ag.InputError, match="waits"):
            session.label(1)
        unknown = client.open()
        unknown.push_steps(steps_of(served.inputs[1]))
        unknown.label(None)
        found = status(url)
        assert (found["labels"], found["processed"], found["watched"]) == (1, 1, 2)
        alarms: tuple[str, ...] = ()
        for _ in range(200):  # every answer misses
            session = client.open()
            decision = session.push_steps(steps_of(served.inputs[0]))
            assert decision is not None
            if alarms := session.label((decision.classes[0] + 1) % 4):
                break
        assert any("miss more often than promised" in alarm for alarm in alarms)
        assert status(url)["alarms"] == list(alarms) and 'agreestop_alarm{kind="misses"} 1' in get(
            url, "/metrics"
        )


def test_late_labels_are_given_up_so_that_others_count(served: Served) -> None:
    with (
        serving(served, limits=Limits(label_seconds=0.1, save_seconds=0.05)) as url,
        Client(url) as client,
    ):
        silent, other = client.open(), client.open()
        for session in (silent, other):
            session.push_steps(steps_of(served.inputs[0]))
        other.label(0)
        until(lambda: status(url)["processed"] == 1 and status(url)["waiting"] == "")
        with pytest.raises(ag.InputError, match="waits for a label"):
            silent.label(0)


def test_labels_of_a_rule_without_an_alarm_count_for_coverage(served: Served) -> None:
    scores = served.ensemble.score(*[part[:60] for part in (served.inputs, served.labels)])
    rule = ag.AgreeStop(0.8, range(1, STEPS + 1), 1).calibrate(
        scores, groups=np.arange(len(scores)) % 2
    )
    with Server(rule, served.ensemble, port=0).background() as url, Client(url) as client:
        session = client.open(group=0)
        session.push_steps(steps_of(served.inputs[0]))
        session.label(0)
        with pytest.raises(ag.InputError, match="has its label already"):
            session.label(0)
        assert status(url)["labels"] == 1 and status(url)["coverage"] is not None


def start(folder: Path, *options: str) -> tuple[subprocess.Popen[str], str]:
    """`agreestop serve` as a process of its own, and its address."""
    command = [
        sys.executable,
        "-c",
        "from agreestop.cli import main; main()",
        "serve",
        str(folder / "rule.agreestop"),
    ]
    command += ["--members", str(folder / "members.safetensors"), "--port", "0", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "500"}
    )
    assert process.stdout is not None
    line = next(line for line in process.stdout if "Serving on" in line)
    return process, line.split("connect to ")[1].split(". ")[0]


def test_the_monitor_survives_a_kill_and_sigterm_drains(served: Served, tmp_path: Path) -> None:
    served.rule.save(tmp_path / "rule.agreestop")
    served.ensemble.save(tmp_path / "members.safetensors")
    process, url = start(tmp_path)
    try:
        with Client(url) as client:
            sessions = [client.open() for _ in range(6)]
            for number, session in enumerate(sessions):
                assert (
                    session.push_steps(steps_of(served.inputs[number])) == served.expected[number]
                )
            for session in sessions[:3]:
                session.label(0)
            monitor = tmp_path / "rule.agreestop.monitor"
            until(
                lambda: (
                    ag.DriftMonitor.load(monitor).observed == 6
                    and ag.DriftMonitor.load(monitor).misses.count == 3
                )
            )
            process.send_signal(signal.SIGKILL)
            process.wait()
        process.stdout.close()  # type: ignore[union-attr]
        process, url = start(tmp_path)
        found = status(url)
        assert (found["watched"], found["processed"], found["decisions"]) == (6, 3, 0)
        with Client(url) as client, raw(url) as talk:
            # the label of a decision before the kill
            talk.send(write(type="label", decision=sessions[3]._key, label=0))
            assert json.loads(talk.recv())["type"] == "labelled"
            session = client.open()
            session.push(steps_of(served.inputs[0])[0])
            process.send_signal(signal.SIGTERM)
            until(lambda: _is_draining(url))
            with pytest.raises(ag.InputError, match="the server stops"):
                client.open()
            # it may go on to its decision
            assert session.push_steps(steps_of(served.inputs[0])[1:]) == served.expected[0]
            assert process.wait(60) == 0
        kept = ag.DriftMonitor.load(monitor)
        assert (kept.observed, kept.misses.count) == (7, 4)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def _is_draining(url: str) -> bool:
    try:
        get(url, "/healthz")
    except urllib.error.HTTPError as error:
        error.close()
        return error.code == 503
    return False


def test_a_port_in_use_and_a_folder_that_is_not_there_are_named(
    served: Served, tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ag.InputError, match="choose another host or port"):
            Server(served.rule, port=taken.getsockname()[1])
    with pytest.raises(ag.InputError, match="cannot write"):
        Server(served.rule, port=0, monitor=tmp_path / "no" / "monitor")
    with pytest.raises(ag.InputError, match=r"cannot connect to ws:.*`agreestop serve`"):
        Client("ws://127.0.0.1:1")


def test_a_monitor_belongs_to_one_server(served: Served, tmp_path: Path) -> None:
    monitor = tmp_path / "monitor"
    server = Server(served.rule, port=0, monitor=monitor)
    with server.background():
        with pytest.raises(ag.InputError, match=r"monitor is in use by process \d+"):
            Server(served.rule, port=0, monitor=monitor)
        with pytest.raises(
            ag.InputError, match="choose another host or port"
        ) as kept:  # its traceback keeps what was made
            Server(served.rule, port=server.port, monitor=tmp_path / "other")
        with Server(served.rule, port=0, monitor=tmp_path / "other").background():
            assert kept.tb is not None
    with Server(served.rule, port=0, monitor=monitor).background():
        pass
    (tmp_path / "other").write_bytes(b"no monitor")
    for _ in range(2):
        with pytest.raises(ag.InputError, match=r"other (?!is in use)"):
            Server(served.rule, port=0, monitor=tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["monitor", "other"]


def test_requests_for_another_name_are_refused_unless_there_is_a_token(served: Served) -> None:
    def asked(url: str, name: str, path: str = "/status") -> str:
        return get(url, path, Host=name)

    with serving(served) as url:
        port = url.rpartition(":")[2]
        for name in ("127.0.0.1", f"localhost:{port}", f"[::1]:{port}"):
            assert "sessions" in asked(url, name)
        for path in ("/", "/status", "/metrics"):
            with pytest.raises(urllib.error.HTTPError, match="403") as refused:
                asked(url, "evil.example", path)
            refused.value.close()
        with handshake(url, f"evil.example\r\nOrigin: http://evil.example:{port}") as other:
            assert b" 403 " in other.recv(100)
    with serving(served, token="s3cret") as url:
        assert "sessions" in asked(url, "proxy.example", "/status?token=s3cret")
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            asked(url, "127.0.0.1")
        refused.value.close()


def test_a_client_refuses_what_cannot_be_meant(served: Served, url: str) -> None:
    with Client(url + "/live") as client:
        session = client.open()
        for given in ("x", [[-1.0, -2.0], [-1.0]], [-1.0]):
            with pytest.raises(ag.InputError, match=r"finite numbers \(K, C\)"):
                session.push(log_confidence=given)
        for steps in (3, iter([[1]])):
            with pytest.raises(ag.InputError, match="give a list with an entry for each step"):
                session.push_steps(steps)  # type: ignore[arg-type]
        for group in (b"a", object(), float("nan")):
            with pytest.raises(ag.InputError, match="group is none: give a string"):
                client.open(group=group)
        assert session.push_steps(steps_of(served.inputs[0])) == served.expected[0]
        for label in (1.0, True, "1", -1, [1]):
            with pytest.raises(ag.InputError, match=r"label is .*: give a class index"):
                session.label(label)  # type: ignore[arg-type]
        assert session.label(np.int64(1)) == ()  # type: ignore[arg-type]
    for address in ("ftp://127.0.0.1:8000", "127.0.0.1:8000", None):
        with pytest.raises(ag.InputError, match=r"such as ws://127\.0\.0\.1:8000"):
            Client(address)  # type: ignore[arg-type]


def test_text_that_is_no_unicode_ends_the_connection_and_fills_no_log(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("uvicorn.error").addHandler(caplog.handler)
    try:
        with handshake(url) as talk:
            until(lambda: b"welcome" in talk.recv(4096))
            talk.sendall(bytes([0x81, 0x82, 0, 0, 0, 0, 0xFF, 0xFE]))
            until(lambda: status(url)["clients"] == 0)
    finally:
        logging.getLogger("uvicorn.error").removeHandler(caplog.handler)
    assert caplog.records == []


def test_a_monitor_that_cannot_be_saved_is_said_once_and_stops_nothing(
    served: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "here").mkdir()
    limits = Limits(save_seconds=0.05, drain_seconds=0.1)
    with (
        serving(served, monitor=tmp_path / "here" / "monitor", limits=limits) as url,
        Client(url) as client,
    ):
        shutil.rmtree(tmp_path / "here")
        for row in (0, 1):
            session = client.open()
            assert session.push_steps(steps_of(served.inputs[row])) == served.expected[row]
            until(lambda: "cannot be saved" in caplog.text)
            time.sleep(0.2)  # more saves fail
    words = [record.message for record in caplog.records if record.name == "agreestop.serve"]
    assert [word.partition(":")[0] for word in words] == [
        "the monitor cannot be saved, and a stop would lose what is new",
        "the last decisions and labels are lost",
    ]
    assert all(
        "cannot write" in word and record.exc_info is None
        for word, record in zip(words, caplog.records, strict=True)
    )


def test_options_of_the_command_line_are_named(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    served.rule.save(tmp_path / "a.rule")
    monkeypatch.setenv("AGREESTOP_TOKEN", "")
    refused = call(monkeypatch, capsys, "serve", str(tmp_path / "a.rule"), "--port", "0")
    assert refused.code == 2 and "AGREESTOP_TOKEN is set but empty" in refused.err
    monkeypatch.delenv("AGREESTOP_TOKEN")
    refused = call(
        monkeypatch, capsys, "serve", str(tmp_path / "a.rule"), "--port", "0", "--idle-seconds", "0"
    )
    assert refused.code == 2 and "--idle-seconds is 0.0: give a number above 0" in refused.err


def test_a_fault_of_the_monitor_does_not_stop_decisions(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Watch, "observe", lambda *_: 1 / 0)

    async def decide(url: str) -> list[ag.Decision | None]:
        async with AsyncClient(url) as client:
            found = []
            for frames in served.inputs[:4]:
                session = await client.open()
                found.append(await session.push_steps(steps_of(frames)))
            return found

    async def in_time(url: str) -> list[ag.Decision | None]:
        return await asyncio.wait_for(decide(url), 30)

    with serving(served) as url:
        assert asyncio.run(in_time(url)) == served.expected[:4]
    assert caplog.text.count("decisions could not be watched") == 4
