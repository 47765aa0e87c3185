"""A thousand sessions at once, and a soak: no decision is lost or wrong, and memory stays flat."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

for _name in ("torch", "numba", "starlette", "uvicorn", "websockets"):
    pytest.importorskip(_name, reason=f"the server needs {_name}: install agreestop[serve]")

from agreestop.serve import Server
from benchmarks.serve import run_serve
from benchmarks.serve_worker import (
    in_one_process,
    load,
    load_one_by_one,
    server_process,
    status,
    with_live_sessions,
)
from benchmarks.soak import soak
from benchmarks.workers import ROOT

from .served import Served, steps_of

SOAK_SECONDS = float(os.environ.get("AGREESTOP_SOAK_SECONDS", "600"))


def save(served: Served, folder: Path) -> tuple[Path, Path]:
    served.rule.save(folder / "rule")
    served.ensemble.save(folder / "members")
    return folder / "rule", folder / "members"


def run_load(served: Served, url: str, sessions: int) -> None:
    expected = served.ensemble.decide(served.rule, served.inputs).decisions
    steps, rows = (
        [steps_of(frames) for frames in served.inputs],
        [row % 20 for row in range(sessions)],
    )
    for packed in (1, 8):
        found = asyncio.run(load(url, steps, expected, rows, packed))
        assert (found["open_at_once"], found["decisions"], found["lost"], found["wrong"]) == (
            sessions,
            sessions,
            0,
            0,
        )
    alone = asyncio.run(load_one_by_one(url, steps, expected, rows[:3]))
    assert (alone["lost"], alone["wrong"]) == (0, 0)
    assert (status(url)["sessions"], status(url)["errors"], status(url)["decisions"]) == (
        0,
        0,
        2 * sessions + 3,
    )
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


@pytest.mark.slow
def test_an_older_version_takes_turns_with_this_one(tmp_path: Path) -> None:
    found = run_serve(20, 1, tmp_path / "load.json", ROOT)
    assert json.loads((tmp_path / "load.json").read_text()) == found
    for one in (found, found["previous"]):
        assert (one["decisions"], one["lost"], one["wrong"]) == (60, 0, 0)
        assert min(one["session_steps_a_second"].values()) > 0


@pytest.mark.slow
def test_memory_stays_flat(served: Served) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("this system does not say how much memory a process holds.")
    found = soak(
        served.rule, served.ensemble, [steps_of(frames) for frames in served.inputs], SOAK_SECONDS
    )
    assert (
        found["sessions"] == 0 and found["labels"] == found["decisions"] > 0 and found["errors"] > 0
    )
    assert found["grown"] < 8 << 20, (
        f"{found['grown']:,} bytes more after {found['decisions']:,} decisions"
    )
