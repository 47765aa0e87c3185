"""A thousand sessions at once, and a soak: no decision is lost or wrong, and memory stays flat."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from time import monotonic

import numpy as np
import pytest

for _name in ("torch", "numba", "starlette", "uvicorn", "websockets"):
    pytest.importorskip(_name, reason=f"the server needs {_name}: install agreestop[serve]")

from agreestop.serve import AsyncClient, Server
from benchmarks.serve import in_one_process, load, load_one_by_one, server_process, status, with_live_sessions

from .served import Served, steps_of, until

SOAK_SECONDS = float(os.environ.get("AGREESTOP_SOAK_SECONDS", "600"))


def save(served: Served, folder: Path) -> tuple[Path, Path]:
    served.rule.save(folder / "rule")
    served.ensemble.save(folder / "members")
    return folder / "rule", folder / "members"


def run_load(served: Served, url: str, sessions: int) -> None:
    expected = served.ensemble.decide(served.rule, served.inputs).decisions
    steps, rows = [steps_of(frames) for frames in served.inputs], [row % 20 for row in range(sessions)]
    for packed in (1, 8):
        found = asyncio.run(load(url, steps, expected, rows, packed))
        assert (found["open_at_once"], found["decisions"], found["lost"], found["wrong"]) == (sessions, sessions, 0, 0)
    alone = asyncio.run(load_one_by_one(url, steps, expected, rows[:3]))
    assert (alone["lost"], alone["wrong"]) == (0, 0)
    assert (status(url)["sessions"], status(url)["errors"], status(url)["decisions"]) == (0, 0, 2 * sessions + 3)
    for packed in (1, 8):
        assert in_one_process(served.ensemble, served.rule, steps, expected, rows, packed) > 0
    assert with_live_sessions(served.ensemble, served.rule, steps, rows[:3]) > 0


def test_the_load_script_finds_no_lost_or_wrong_decision(served: Served) -> None:
    with Server(served.rule, served.ensemble, port=0).background() as url:
        run_load(served, url, 40)


@pytest.mark.slow
def test_a_thousand_sessions_at_once(served: Served, tmp_path: Path) -> None:
    with server_process(*save(served, tmp_path)) as (url, _):
        run_load(served, url, 1000)


def memory(process: int) -> int:
    """Bytes that a process holds in memory."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


@pytest.mark.slow
def test_memory_stays_flat(served: Served, tmp_path: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("this system does not say how much memory a process holds.")
    steps = [steps_of(frames) for frames in served.inputs]

    async def soak(url: str, seconds: float) -> None:
        """Sessions that are decided and labelled, given up, refused, or whose client goes away."""
        rng, end = np.random.default_rng(0), monotonic() + seconds
        while monotonic() < end:
            async with AsyncClient(url) as client:
                sessions = await asyncio.gather(*(client.open() for _ in range(50)))
                await asyncio.gather(*(one.push_steps(steps[int(rng.integers(20))]) for one in sessions[:40]))
                await asyncio.gather(*(one.label(0) for one in sessions[:40]))
                await asyncio.gather(*(one.close() for one in sessions[40:45]))
                await asyncio.gather(*(one.push([99]) for one in sessions[45:48]), return_exceptions=True)

    with server_process(*save(served, tmp_path)) as (url, process):
        asyncio.run(soak(url, SOAK_SECONDS / 5))
        before, decided = memory(process), status(url)["decisions"]
        asyncio.run(soak(url, SOAK_SECONDS * 4 / 5))
        until(lambda: (status(url)["sessions"], status(url)["clients"]) == (0, 0))
        found = status(url)
        risks = 8 * 4 * (found["decisions"] - decided)  # the monitor keeps them, in an array that grows and is copied
        grown = memory(process) - before - risks
        assert found["decisions"] > 2 * decided
        assert grown < 8 << 20, f"{grown:,} bytes more after {found['decisions']:,} decisions"
