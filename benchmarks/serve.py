"""How fast the server is, and whether a thousand sessions at once get the right decisions.

Six members of 256 neurons on the embedded digits in front of a simulated event camera, T = 80. The
server is a process of its own, the load another one: 1,000 sessions over 20 connections are opened,
then all of them push until they have their decisions. Every decision is compared with the one of
the engine on the whole input. A session-step is a step of one session up to its decision, so the
rates of messages of one and of several steps count the same work.

Without a network the same steps go through `LiveBatch` in this process, a step of every session in
a call, or several; and through one `LiveSession` after the other.
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
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np

import agreestop as ag
from agreestop.common import Integers
from agreestop.engines.live_batch import LiveBatch, Push, Steps
from agreestop.serve import AsyncClient

from .digits import DigitsStudy
from .results import describe_run, write_results

CLIENTS = 20
PACKED = (1, 8)  # steps of a message
ALONE = 50  # inputs for the latency of a single session, and for `LiveSession`


def run_serve(sessions: int, rounds: int, output: Path) -> dict[str, Any]:
    """Measure, and write a JSON file."""
    study = DigitsStudy.make()
    ensemble, rule = study.ensemble, study.rule
    inputs = study.inputs
    expected = ensemble.decide(rule, inputs).decisions
    rows = [row % len(inputs) for row in range(sessions)]
    dense = inputs.to_dense() if isinstance(inputs, ag.events.Events) else inputs
    steps = [[np.flatnonzero(step) for step in one] for one in dense]
    found: dict[str, Any] = {f"steps_{packed}": [] for packed in PACKED} | {"single": []}
    with TemporaryDirectory() as folder:
        rule.save(Path(folder) / "rule")
        ensemble.save(Path(folder) / "members")
        with server_process(Path(folder) / "rule", Path(folder) / "members") as (url, _):
            for _ in range(rounds):
                for packed in PACKED:
                    found[f"steps_{packed}"].append(
                        asyncio.run(load(url, steps, expected, rows, packed))
                    )
                found["single"].append(
                    asyncio.run(load_one_by_one(url, steps, expected, rows[:ALONE]))
                )
    direct = {
        f"steps_{packed}": max(
            in_one_process(ensemble, rule, steps, expected, rows, packed) for _ in range(rounds)
        )
        for packed in PACKED
    }
    direct["live_session"] = max(
        with_live_sessions(ensemble, rule, steps, rows[:ALONE]) for _ in range(rounds)
    )
    record = {
        **describe_run(),
        "sessions": sessions,
        "connections": CLIENTS,
        "open_at_once": min(
            one["open_at_once"] for packed in PACKED for one in found[f"steps_{packed}"]
        ),
        "mean_stop_time": float(np.mean(expected.stop_time[rows])),
        "lost": sum(one["lost"] for runs in found.values() for one in runs),
        "wrong": sum(one["wrong"] for runs in found.values() for one in runs),
        "decisions": sum(one["decisions"] for runs in found.values() for one in runs),
        # other work on the machine only makes a run slower, so each rate is the best of its rounds
        "session_steps_a_second": {
            name: max(one["rate"] for one in runs) for name, runs in found.items()
        },
        "push_to_decision_ms": {
            name: min((one["latency_ms"] for one in runs), key=lambda pair: pair[1])
            for name, runs in found.items()
        },
        "computing_share": {
            name: _best(runs)["computing_share"] for name, runs in found.items() if name != "single"
        },
        "steps_a_tick": {
            name: _best(runs)["steps_a_tick"] for name, runs in found.items() if name != "single"
        },
        "without_network_session_steps_a_second": direct,
    }
    write_results(output, record)
    return record


def _best(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return max(runs, key=lambda one: one["rate"])


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
