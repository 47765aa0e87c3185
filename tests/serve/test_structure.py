"""Few modules stand between an input and its decision."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the server needs PyTorch")
pytest.importorskip("uvicorn", reason="the server needs uvicorn")
pytest.importorskip("numba", reason="the event-driven engine needs numba")

import agreestop as ag
from agreestop.cli.app import app
from agreestop.serve import Client, Server
from tests.decide.test_structure import modules_run

from .served import Served, steps_of

MOST_RUN_BY_DECIDE, MOST_RUN_BY_PUSH = 36, 26
"""Modules in which a function runs: for `agreestop decide --members`, and for the pushes of one
input at both ends.
"""


def test_a_decision_of_members_runs_through_few_modules(served: Served, tmp_path: Path) -> None:
    testing = pytest.importorskip("typer.testing", reason="the command line needs typer")
    served.rule.save(tmp_path / "rule")
    served.ensemble.save(tmp_path / "members")
    ag.events.Events.from_dense(served.inputs).save(tmp_path / "inputs.npz")
    names = [str(tmp_path / name) for name in ("rule", "inputs.npz", "members", "out.csv")]
    command = ["decide", *names[:2], "--members", names[2], "-o", names[3]]
    results: list[Any] = []
    found = modules_run(lambda: results.append(testing.CliRunner().invoke(app, command)))
    assert results[0].exit_code == 0, results[0].output
    assert 20 < len(found) <= MOST_RUN_BY_DECIDE, sorted(found)


def test_a_served_push_runs_through_few_modules(served: Served) -> None:
    found: set[str] = set()
    watching = threading.Event()

    def note(frame: Any, event: str, argument: Any) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and watching.is_set() and name.split(".")[0] == "agreestop":
            found.add(name)

    threading.setprofile(note)  # of the threads of the server
    try:
        with (
            Server(served.rule, served.ensemble, port=0).background() as url,
            Client(url) as client,
        ):
            session, steps = client.open(), steps_of(served.inputs[0])

            def push() -> None:
                watching.set()
                assert any(session.push(step) is not None for step in steps)
                watching.clear()

            found |= modules_run(push)
    finally:
        threading.setprofile(None)
    assert "agreestop.engines.live_batch" in found and "agreestop.serve.hub" in found
    assert len(found) <= MOST_RUN_BY_PUSH, sorted(found)
