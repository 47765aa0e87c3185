"""`python -m benchmarks live`: what a live input costs, beside the bare network, an older version
and the peers' own loops.

Six members on the embedded digits, hidden layers of several sizes, the rule at every step. Times
are medians over the pushes of a round:

    network  a step of the network without a rule
    push     a step with the rule that decides nothing
    steps    all steps of an input without a rule
    input    the same input with the rule, opening and decision included
    open     opening a session    first  its first step      decide  the step that decides
    batch    session-steps a second, a step of every input in one call

Every system is a process of its own with one thread. In every round all take their turn, so other
work on the machine meets all of them. Whole inputs and batches are in processor time. All run every
input for as many steps as the rule needs, and every version must decide at the same steps. Peers
have no rule: they get ours in numpy.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import agreestop as ag

from .peers import PEERS
from .records import OURS, RATE, STEP, BenchRecord, compared, save_benchmark
from .results import busy_cores, describe_run, version_of
from .workers import ROOT, System, in_turn, older_version, stopping_rule

MEMBERS, CALIBRATION = 6, 200
INPUT = "µs/input"
UNITS = {"steps": INPUT, "input": INPUT, "batch": RATE}


@dataclass(frozen=True)
class LiveSettings:
    """hidden: sizes of the hidden layer. inputs: in each round. previous: a checkout of an older
    version. python: one with the peers.
    """

    hidden: Sequence[int] = (256, 1000)
    inputs: int = 40
    rounds: int = 15
    epochs: int = 2
    previous: Path | None = None
    python: Path | None = None


def name_of(hidden: int) -> str:
    """What a workload is called."""
    return f"{MEMBERS} × {hidden} neurons"


def prepare(settings: LiveSettings, folder: Path) -> None:
    """Train, calibrate and write one folder for each size: members, rule, inputs and the steps at
    which they stop.
    """
    data = ag.events.load_data_set("digits")
    x, y = data.pool.inputs, data.pool.labels
    chosen = np.asarray(x[CALIBRATION : CALIBRATION + settings.inputs])
    for hidden in settings.hidden:
        network = ag.networks.FullyConnected(
            data.pool.shape, len(data.pool.classes), hidden=(hidden,)
        )
        ensemble = ag.ensembles.DeepEnsemble(
            network, MEMBERS, seed=0, device="cpu", engine="event-driven"
        )
        ensemble.fit(
            data.training.inputs, data.training.labels, epochs=settings.epochs, progress=False
        )
        scores = ensemble.score(x[:CALIBRATION], y[:CALIBRATION])
        rule = stopping_rule(scores)
        ends = ensemble.decide(rule, chosen).decisions.stop_time
        place = folder / name_of(hidden)
        place.mkdir()
        ensemble.save(place / "members")
        ag.save_scores(place / "scores.npz", scores)
        np.savez(place / "inputs.npz", x=chosen, ends=ends, limit=rule.thresholds[0])


def systems(settings: LiveSettings) -> tuple[list[System], str]:
    """This version, the older one, and the peers that can be imported; a sentence about what is
    missing.
    """
    ours, python = version_of("agreestop"), str(settings.python or sys.executable)
    found = [System(OURS, ours, "this version", sys.executable, ROOT / "src")]
    missing = []
    if settings.previous is None:
        missing.append("an older version (give --previous FOLDER)")
    else:
        found.append(older_version(OURS, sys.executable, settings.previous))
    for peer in PEERS:
        code = (
            "from benchmarks.peers import PEERS, find_peers; p = [p for p in PEERS if p.name "
            f"== {peer.name!r}]; "
        )
        code += "print(p[0].version) if find_peers(p).peers else exit(1)"
        system = System(peer.name, "", "its own loop", python, ROOT / "src")
        done = subprocess.run(
            [python, "-c", code],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=system.environment,
            check=False,
        )
        if done.returncode:
            missing.append(peer.name)
        else:
            found.append(replace(system, version=done.stdout.split()[-1]))
    advice = "`make peers` installs the other libraries, and --python names their interpreter"
    return found, f"left out: {', '.join(missing)}; {advice}." if missing else ""


def measure(found: Sequence[System], settings: LiveSettings, folder: Path) -> list[BenchRecord]:
    """The records of every workload; in each round all systems take their turn, the first one moves
    on.
    """
    names = [name_of(hidden) for hidden in settings.hidden]
    times = in_turn("benchmarks.live_worker", found, folder, names, settings.rounds)
    return [
        one
        for name in names
        for work in times[name][0][0]
        for one in as_records(work, name, found, times[name])
    ]


def as_records(
    work: str, name: str, found: Sequence[System], rounds: Sequence[Sequence[dict[str, float]]]
) -> list[BenchRecord]:
    """Medians over the rounds of the systems that have this workload, ours with the ratio to the
    fastest peer.
    """
    records = []
    for system, times in zip(found, rounds, strict=True):
        if work in times[0]:
            low, middle, high = (
                float(value) for value in np.quantile([one[work] for one in times], (0.1, 0.5, 0.9))
            )
            about = f"live-{work}", name, system.name, system.version, UNITS.get(work, STEP)
            records.append(BenchRecord(*about, middle, low, high, len(times), system.form))
    peers = [one for one in records if one.system != OURS]
    return [compared(one, peers) if one.system == OURS else one for one in records]


def run_live(settings: LiveSettings, output: Path) -> tuple[list[BenchRecord], str, str]:
    """Measure and write a JSON file; the records, a title, and a sentence about what was
    left out.
    """
    found, missing = systems(settings)
    with TemporaryDirectory() as folder:
        prepare(settings, Path(folder))
        before = busy_cores(2.0)
        records = measure(found, settings, Path(folder))
    busy = {"other_cores_busy": {"before": round(before, 2), "after": round(busy_cores(2.0), 2)}}
    plan = {
        "members": MEMBERS,
        "hidden": list(settings.hidden),
        "inputs": settings.inputs,
        "rounds": settings.rounds,
    }
    about = describe_run()
    save_benchmark(output, {**about, **busy, "plan": plan, "missing": missing}, records)
    return records, title_of(about), missing


def title_of(about: dict[str, Any]) -> str:
    """The title of the figure."""
    return f"Live inputs of {MEMBERS} members, one thread of {about['machine']['cpu']}"
