"""What one hostile client does to the others: the time of an honest push, alone and beside one
attacker of each kind.

    python -m benchmarks attacks        writes results/serve/attacks.json; takes a few minutes

The server, the attacker and the honest client are three processes. The honest client pushes one
step after the other; its 95th percentile, and the time until it is connected, are measured right
before each attack and during it, so that both see the same machine. The memory of the server and
the bytes of its log are read at the end of each attack.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter, sleep
from typing import Any

import numpy as np

import agreestop as ag
from agreestop.common import Integers
from agreestop.serve import Client
from agreestop.serve.protocol import write, write_push

from .digits import DigitsStudy
from .results import describe_run, write_results
from .soak import memory

TEXT, BINARY, PING, CONTINUATION = 1, 2, 9, 0
KEY = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg=="
STEPS = 80  # of the pushes of an attacker that only works much
CONNECTIONS = 2300
SECONDS = 5.0
PATIENCE = 60.0  # seconds in which an honest client must be connected


def connect(url: str, *, small: bool = True) -> socket.socket:
    """A plain connection to a server; with a small buffer for what it never reads."""
    host, port = url.removeprefix("ws://").split(":")
    plain = socket.socket()
    if small:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.settimeout(5)
    plain.connect((host, int(port)))
    return plain


def handshake(
    url: str, host: str = "127.0.0.1", extra: str = "", *, small: bool = True
) -> socket.socket:
    """A WebSocket by hand; nothing that the server sends is read."""
    plain = connect(url, small=small)
    head = (
        f"GET /live HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: "
        f"websocket\r\n{extra}{KEY}\r\n\r\n"
    )
    plain.sendall(head.encode())
    return plain


def frame(payload: bytes, kind: int = TEXT, last: bool = True) -> bytes:
    """A WebSocket frame of a client, whose mask is zero."""
    size = len(payload)
    short = size if size < 126 else 126 if size < 1 << 16 else 127
    length = b"" if short == size else struct.pack("!H" if short == 126 else "!Q", size)
    return bytes([kind | (0x80 if last else 0), 0x80 | short]) + length + bytes(4) + payload


def words_for_numbers(size: int = 130_000) -> str:
    """A push with one long and many short strings where numbers belong."""
    return write(
        type="push", session=1, step=1, log_confidence=[["a" * (size // 2), *["b"] * (size // 8)]]
    )


def empty_steps(count: int = 300_000) -> str:
    return '{"type":"push","session":1,"step":1,"steps":[' + ",".join(["[]"] * count) + "]}"


def deep_lists(size: int = 1_000_000) -> str:
    one = "[" * 400 + "]" * 400
    return '{"type":"push","session":1,"step":1,"frame":[' + ",".join([one] * (size // 801)) + "]}"


def many_events(size: int = 1_000_000) -> bytes:
    """One step that names the same input again and again."""
    return write_push(1, 1, [np.zeros(size // 4 - 10, np.int64)])


def _repeat(url: str, message: str | bytes) -> None:
    """Open a session, send a message, and wait for the answer, again and again."""
    from websockets.sync.client import connect as connect_websocket

    with connect_websocket(url + "/live", compression=None, proxy=None) as talk:
        talk.recv()
        while True:
            talk.send(write(type="open", session=1))
            talk.send(message)
            talk.recv()
            talk.recv()


def _send_for_ever(url: str, data: bytes) -> None:
    """Send the same bytes over a WebSocket, and never read."""
    with handshake(url) as plain:
        while True:
            plain.sendall(data)


def _work_much(url: str) -> None:
    """A thousand sessions that push many steps each and ask for the end of others: all of it is
    allowed.
    """
    from websockets.sync.client import connect as connect_websocket

    steps = [np.arange(step % 7) for step in range(STEPS)]
    with connect_websocket(url + "/live", compression=None, proxy=None) as talk:
        talk.recv()
        while True:
            for session in range(500):
                talk.send(write(type="open", session=session))
                if session % 2:
                    talk.send(write_push(session, 1, steps))
                else:
                    talk.send(write_push(session, 1, [[]]))
                    talk.send(write(type="end", session=session))
            for _ in range(1250):
                talk.recv()


def _pipeline(url: str) -> None:
    """Requests on many connections, of which no answer is read."""
    request = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 100
    open_now: list[socket.socket] = []
    while True:
        with suppress(OSError):
            plain = connect(url)
            plain.setblocking(False)
            open_now.append(plain)
        for one in open_now[-200:]:
            with suppress(OSError):
                one.send(request)
        if len(open_now) > CONNECTIONS:
            open_now.pop(0).close()


def _half_open(url: str) -> None:
    """Many connections that send half a request."""
    open_now: list[socket.socket] = []
    while True:
        with suppress(OSError):
            open_now.append(connect(url))
            open_now[-1].sendall(b"GET / HTTP/1.1\r\nHost:")
        if len(open_now) > CONNECTIONS:
            open_now.pop(0).close()


def _refused(url: str) -> None:
    """Handshakes with a Host or an Origin that is none."""
    while True:
        for host, extra in (("[", ""), ("127.0.0.1", "Origin: http://[\r\n")):
            with suppress(OSError), handshake(url, host, extra) as plain:
                plain.recv(1000)


def _many_fragments(url: str) -> None:
    with handshake(url) as plain:
        plain.sendall(frame(b"", TEXT, False))
        while True:
            plain.sendall(frame(b"", CONTINUATION, False) * 500)


ATTACKS: dict[str, Callable[[str], None]] = {
    "strings where numbers belong, 130 kB": lambda url: _repeat(url, words_for_numbers()),
    "300,000 empty steps a message": lambda url: _repeat(url, empty_steps()),
    "lists in lists, 1 MB": lambda url: _repeat(url, deep_lists()),
    "260,000 events in a step": lambda url: _repeat(url, many_events()),
    "500 sessions that work much": _work_much,
    "messages without end, nothing read": lambda url: _send_for_ever(
        url, frame(b'{"type":"end","session":1}') * 500
    ),
    "labels without end, nothing read": lambda url: _send_for_ever(
        url, frame(b'{"type":"label","decision":"a","label":0}') * 500
    ),
    "pings, nothing read": lambda url: _send_for_ever(url, frame(b"x" * 100, PING) * 500),
    "fragments of a message without end": _many_fragments,
    "2,300 connections, requests, nothing read": _pipeline,
    "2,300 connections, half a request": _half_open,
    "refused handshakes": _refused,
}
"""What an attacker does, until it is stopped. One that is dropped begins again."""


def attack(name: str, url: str) -> None:
    """Be an attacker, for ever."""
    while True:
        with suppress(Exception):
            ATTACKS[name](url)
        sleep(0.01)


@contextmanager
def attacked(name: str, url: str) -> Iterator[None]:
    """An attacker as a process of its own, while the context lasts."""
    process = multiprocessing.get_context("spawn").Process(
        target=attack, args=(name, url), daemon=True
    )
    process.start()
    sleep(2.0)  # it imports what it needs
    try:
        yield
    finally:
        process.kill()
        process.join()


def connected(url: str) -> Client:
    """An honest client, which tries again if it is sent away."""
    until = monotonic() + PATIENCE
    while True:
        try:
            return Client(url)
        except ag.InputError:
            if monotonic() > until:
                raise


def push_times(url: str, steps: list[list[Integers]], seconds: float) -> tuple[float, list[float]]:
    """Seconds until a client is connected, and of every push; it pushes one step after
    the other.
    """
    found: list[float] = []
    row, began = 0, perf_counter()
    with connected(url) as client:
        connecting, end = perf_counter() - began, monotonic() + seconds
        while monotonic() < end:
            session = client.open()
            for step in steps[row % len(steps)]:
                began = perf_counter()
                decision = session.push(step)
                found.append(perf_counter() - began)
                if decision is not None:
                    break
            row += 1
    return connecting, found


@contextmanager
def logged_server(folder: Path) -> Iterator[tuple[str, int, Path]]:
    """`agreestop serve` on the rule and the members in a folder: its address, its process id, and
    the file of its log.
    """
    command = [
        sys.executable,
        "-c",
        "from agreestop.cli import main; main()",
        "serve",
        str(folder / "rule"),
    ]
    command += ["--members", str(folder / "members"), "--port", "0"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "COLUMNS": "500"},
        )
        assert process.stdout is not None
        try:
            line = next(line for line in process.stdout if "connect to" in line)
            yield line.split("connect to ")[1].split(". ")[0], process.pid, folder / "log"
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()


def measure(
    folder: Path, steps: list[list[Integers]], seconds: float, names: list[str]
) -> list[dict[str, Any]]:
    """One server, and one attacker after the other."""
    found = []
    with logged_server(folder) as (url, process, log):
        push_times(url, steps, 1.0)
        for name in names:
            alone, before = push_times(url, steps, seconds / 2)
            size, logged = memory(process), log.stat().st_size
            with attacked(name, url):
                connecting, during = push_times(url, steps, seconds)
                grown = memory(process) - size
            quantiles = {
                "alone": float(np.quantile(before, 0.95)),
                "attacked": float(np.quantile(during, 0.95)),
            }
            found.append({
                "attack": name,
                "p95_ms": {key: 1000 * value for key, value in quantiles.items()},
                "ratio": quantiles["attacked"] / quantiles["alone"],
                "connect_ms": {"alone": 1000 * alone, "attacked": 1000 * connecting},
                "slowest_ms": 1000 * max(during),
                "pushes": len(during),
                "grown_bytes": grown,
                "log_bytes": log.stat().st_size - logged,
            })  # fmt: skip
            sleep(1.0)
    return found


def run_attacks(seconds: float, output: Path) -> dict[str, Any]:
    """Attack a server of the digits, and write a JSON file."""
    study = DigitsStudy.make()
    inputs = study.inputs.to_dense() if isinstance(study.inputs, ag.events.Events) else study.inputs
    steps = [[np.flatnonzero(step) for step in one] for one in inputs[:50]]
    with TemporaryDirectory() as folder:
        study.rule.save(Path(folder) / "rule")
        study.ensemble.save(Path(folder) / "members")
        record = {
            **describe_run(),
            "seconds": seconds,
            "attacks": measure(Path(folder), steps, seconds, list(ATTACKS)),
        }
    write_results(output, record)
    return record


if __name__ == "__main__":
    print(json.dumps(run_attacks(SECONDS, Path("results/serve/attacks.json")), indent=1))
