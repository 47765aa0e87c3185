"""One version of `python -m benchmarks serve`: a process that times one round of the server
whenever a line with the number of sessions asks for it.

    python -m benchmarks.serve_worker FOLDER agreestop

FOLDER holds the scores of calibration, the members and the inputs. The server is the version that
this process imports, and so is its client.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import agreestop as ag
from agreestop.common import Integers
from agreestop.engines.live_batch import LiveBatch, Push, Steps
from agreestop.serve import AsyncClient

from .workers import MARK, stopping_rule

CLIENTS = 20
PACKED = (1, 8)  # steps of a message
RULE = f"rule-{os.getpid()}"  # each version calibrates its own
ALONE = 50  # inputs for the latency of a single session, and for `LiveSession`


@contextmanager
def server_process(rule: Path, members: Path) -> Iterator[tuple[str, int]]:
    """`agreestop serve` as a process of its own: its address and its process id."""
    command = [
        sys.executable,
        "-c",
        "from agreestop.cli import main; main()",
        "serve",
        str(rule),
        "--members",
        str(members),
        "--port",
        "0",
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "500"}
    )
    assert process.stdout is not None
    try:
        line = next(line for line in process.stdout if "connect to" in line)
        yield line.split("connect to ")[1].split(". ")[0], process.pid
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def status(url: str) -> dict[str, Any]:
    """The numbers of the server's page."""
    with urllib.request.urlopen(url.replace("ws:", "http:") + "/status") as answer:
        return dict(json.load(answer))


async def load(
    url: str, steps: list[list[Integers]], expected: ag.Decisions, rows: list[int], packed: int
) -> dict[str, Any]:
    """Open one session for each of `rows`, which are rows of the inputs, then push all of them at
    once.
    """
    clients = [AsyncClient(url) for _ in range(min(CLIENTS, len(rows)))]
    for client in clients:
        await client.__aenter__()
    try:
        sessions = await asyncio.gather(
            *(clients[number % len(clients)].open() for number in range(len(rows)))
        )
        before = await asyncio.to_thread(status, url)
        began = perf_counter()
        pushed = (
            push_all(session, steps[row], packed)
            for session, row in zip(sessions, rows, strict=True)
        )
        latencies = await asyncio.gather(*pushed)
        seconds = perf_counter() - began
        after = await asyncio.to_thread(status, url)
    finally:
        for client in clients:
            await client.__aexit__(None, None, None)
    ticks, computing = (
        after["ticks"] - before["ticks"],
        after["tick_seconds"] - before["tick_seconds"],
    )
    server = {
        "computing_share": computing / seconds,
        "steps_a_tick": (after["steps"] - before["steps"]) / ticks,
    }
    return (
        {"open_at_once": before["sessions"]}
        | server
        | _outcome([session.decision for session in sessions], expected, rows, latencies, seconds)
    )


async def load_one_by_one(
    url: str, steps: list[list[Integers]], expected: ag.Decisions, rows: list[int]
) -> dict[str, Any]:
    """One session at a time, one step a message: the latency of a server that has nothing else to
    do.
    """
    async with AsyncClient(url) as client:
        decisions, latencies = [], []
        began = perf_counter()
        for row in rows:
            session = await client.open()
            latencies.append(await push_all(session, steps[row], 1))
            decisions.append(session.decision)
        return _outcome(decisions, expected, rows, latencies, perf_counter() - began)


async def push_all(session: Any, steps: list[Integers], packed: int) -> float:
    """Push an input to its decision; the seconds from the last push to the decision."""
    for first in range(0, len(steps), packed):
        began = perf_counter()
        if await session.push_steps(steps[first : first + packed]) is not None:
            return perf_counter() - began
    return float("nan")


def _outcome(
    decisions: list[ag.Decision | None],
    expected: ag.Decisions,
    rows: list[int],
    latencies: list[float],
    seconds: float,
) -> dict[str, Any]:
    total = sum(decision.time for decision in decisions if decision is not None)
    return {
        "decisions": len(decisions),
        "lost": sum(decision is None for decision in decisions),
        "wrong": sum(
            decision is not None and decision != expected[row]
            for decision, row in zip(decisions, rows, strict=True)
        ),
        "rate": total / seconds,
        "latency_ms": (1000 * np.nanquantile(latencies, [0.5, 0.99])).round(3).tolist(),
    }


def in_one_process(
    ensemble: ag.ensembles.Ensemble,
    rule: ag.CalibratedRule,
    steps: list[list[Integers]],
    expected: ag.Decisions,
    rows: list[int],
    packed: int,
) -> float:
    """Session-steps a second of `LiveBatch` without a server: the next steps of all sessions in one
    call.
    """
    batch = LiveBatch(rule, ensemble.engine, len(rows), ensemble.options())
    running = {batch.open(number): row for number, row in enumerate(rows)}
    total, time, began = 0.0, 0, perf_counter()
    while running:
        batch.push(
            [Push(one, Steps.of(steps[row][time : time + packed])) for one, row in running.items()]
        )
        time += packed
        total += sum(one.decision.time for one in running if one.decision is not None)
        running = {one: row for one, row in running.items() if one.decision is None}
    seconds = perf_counter() - began
    assert total == expected.stop_time[rows].sum()
    return total / seconds


def with_live_sessions(
    ensemble: ag.ensembles.Ensemble,
    rule: ag.CalibratedRule,
    steps: list[list[Integers]],
    rows: list[int],
) -> float:
    """Session-steps a second of one live session after the other."""
    total, seconds = 0, 0.0
    for row in rows:
        live = ensemble.live(rule)
        began = perf_counter()
        for step in steps[row]:
            total += 1
            if live.push(step) is not None:
                break
        seconds += perf_counter() - began
    return total / seconds


class Round:
    """All workloads of one version, one round at a time."""

    def __init__(self, folder: Path, url: str) -> None:
        self._url = url
        self._ensemble = ag.ensembles.load(folder / "members", engine="event-driven")
        self._rule = ag.load_rule(folder / RULE)
        inputs = ag.events.load(folder / "inputs.npz")
        self._expected = self._ensemble.decide(self._rule, inputs).decisions
        self._steps = [[np.flatnonzero(step) for step in one] for one in inputs.to_dense()]

    def run(self, sessions: int) -> dict[str, Any]:
        steps, expected = self._steps, self._expected
        rows = [row % len(steps) for row in range(sessions)]
        served = {
            f"steps_{packed}": asyncio.run(load(self._url, steps, expected, rows, packed))
            for packed in PACKED
        }
        served["single"] = asyncio.run(load_one_by_one(self._url, steps, expected, rows[:ALONE]))
        direct = {
            f"steps_{packed}": in_one_process(
                self._ensemble, self._rule, steps, expected, rows, packed
            )
            for packed in PACKED
        }
        direct["live_session"] = with_live_sessions(self._ensemble, self._rule, steps, rows[:ALONE])
        stops = expected.stop_time[rows].astype(int).tolist()
        return {"served": served, "direct": direct, "stop_times": stops}


def main() -> None:
    folder = Path(sys.argv[1])
    stopping_rule(ag.load_scores(folder / "scores.npz")).save(folder / RULE)
    with server_process(folder / RULE, folder / "members") as (url, _):
        timed = Round(folder, url)
        timed.run(ALONE)  # compiles and loads
        for line in sys.stdin:
            print(f"{MARK}{json.dumps(timed.run(int(line)))}", flush=True)


if __name__ == "__main__":
    main()
