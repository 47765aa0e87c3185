"""How fast the server is, and whether a thousand sessions at once get the right decisions.

Six members of 256 neurons on the embedded digits in front of a simulated event camera, T = 80. The
server is a process of its own, the load another one: 1,000 sessions over 20 connections are opened,
then all of them push until they have their decisions. Every decision is compared with the one of
the engine on the whole input. A session-step is a step of one session up to its decision, so the
rates of messages of one and of several steps count the same work.

Without a network the same steps go through `LiveBatch` in the process of the load, a step of every
session in a call, or several; and through one `LiveSession` after the other.

With an older version given, its server and its client take turns with these, on the same members,
rule and inputs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import agreestop as ag

from .digits import DigitsStudy
from .records import OURS
from .results import busy_cores, describe_run, version_of, write_results
from .serve_worker import CLIENTS
from .workers import ROOT, System, in_turn, older_version


def run_serve(
    sessions: int, rounds: int, output: Path, previous: Path | None = None
) -> dict[str, Any]:
    """Measure, and write a JSON file."""
    ours = System(OURS, version_of(OURS), "this version", sys.executable, ROOT / "src", False)
    found = [ours]
    if previous is not None:
        found.append(older_version(OURS, sys.executable, previous, single_threaded=False))
    with TemporaryDirectory() as folder:
        prepare(Path(folder))
        busy = busy_cores(2.0)
        lines = [str(sessions)]
        times = in_turn("benchmarks.serve_worker", found, Path(folder), lines, rounds)[lines[0]]
    if any(one[0]["stop_times"] != times[0][0]["stop_times"] for one in times):
        raise RuntimeError("the two versions decided otherwise")
    record = {
        **describe_run(),
        "other_cores_busy_before": round(busy, 2),
        "sessions": sessions,
        "connections": CLIENTS,
        "mean_stop_time": float(np.mean(times[0][0]["stop_times"])),
        **summary(times[0]),
    }
    if previous is not None:
        record["previous"] = {"version": found[1].version, **summary(times[1])}
    write_results(output, record)
    return record


def prepare(folder: Path) -> None:
    """Train, calibrate, and write the scores of calibration, the members and the inputs."""
    study = DigitsStudy.make()
    ag.save_scores(folder / "scores.npz", study.scores)
    study.ensemble.save(folder / "members")
    ag.events.Events.from_dense(study.inputs).save(folder / "inputs.npz")


def summary(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the rounds of one version come to. Other work on the machine only makes a run slower, so
    each rate is the best of its rounds.
    """
    served = {name: [one["served"][name] for one in rounds] for name in rounds[0]["served"]}
    every = [one for runs in served.values() for one in runs]
    many = {name: runs for name, runs in served.items() if name != "single"}
    fastest = {name: max(runs, key=lambda one: one["rate"]) for name, runs in served.items()}
    return {
        "open_at_once": min(one["open_at_once"] for runs in many.values() for one in runs),
        "lost": sum(one["lost"] for one in every),
        "wrong": sum(one["wrong"] for one in every),
        "decisions": sum(one["decisions"] for one in every),
        "session_steps_a_second": {name: one["rate"] for name, one in fastest.items()},
        "push_to_decision_ms": {
            name: min((one["latency_ms"] for one in runs), key=lambda pair: pair[1])
            for name, runs in served.items()
        },
        "computing_share": {name: fastest[name]["computing_share"] for name in many},
        "steps_a_tick": {name: fastest[name]["steps_a_tick"] for name in many},
        "without_network_session_steps_a_second": {
            name: max(one["direct"][name] for one in rounds) for name in rounds[0]["direct"]
        },
    }
