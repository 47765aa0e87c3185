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

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import agreestop as ag
from agreestop.common import InputError

from .live_worker import MARK
from .peers import PEERS
from .records import OURS, RATE, STEP, BenchRecord, compared, save_benchmark
from .results import busy_cores, describe_run, version_of

MEMBERS, CALIBRATION = 6, 200
INPUT = "µs/input"
UNITS = {"steps": INPUT, "input": INPUT, "batch": RATE}
ROOT = Path(__file__).parents[1]


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


@dataclass(frozen=True)
class LiveSystem:
    """A process to time: what its records are called, its interpreter, and where it finds
    agreestop.
    """

    name: str
    version: str
    form: str
    python: str
    source: Path


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
        rule = ag.AgreeStop(0.9, range(1, data.pool.steps + 1), 1).calibrate(
            ensemble.score(x[:CALIBRATION], y[:CALIBRATION])
        )
        ends = ensemble.decide(rule, chosen).decisions.stop_time
        place = folder / name_of(hidden)
        place.mkdir()
        ensemble.save(place / "members")
        rule.save(place / "rule")
        np.savez(place / "inputs.npz", x=chosen, ends=ends, limit=rule.thresholds[0])


def systems(settings: LiveSettings) -> tuple[list[LiveSystem], str]:
    """This version, the older one, and the peers that can be imported; a sentence about what is
    missing.
    """
    ours, python = version_of("agreestop"), str(settings.python or sys.executable)
    found = [LiveSystem(OURS, ours, "this version", sys.executable, ROOT / "src")]
    missing = []
    if settings.previous is None:
        missing.append("an older version (give --previous FOLDER)")
    elif not (settings.previous / "src" / "agreestop").is_dir():
        raise InputError(
            f"previous is {settings.previous}, which holds no src/agreestop: give a checkout of an "
            "older version."
        )
    else:
        words = ["git", "-C", str(settings.previous), "rev-parse", "--short", "HEAD"]
        commit = (
            subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
            or "older"
        )
        found.append(LiveSystem(OURS, commit, "before", sys.executable, settings.previous / "src"))
    for peer in PEERS:
        code = (
            "from benchmarks.peers import PEERS, find_peers; p = [p for p in PEERS if p.name "
            f"== {peer.name!r}]; "
        )
        code += "print(p[0].version) if find_peers(p).peers else exit(1)"
        words = [python, "-c", code]
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=environment(ROOT / "src"),
            check=False,
        )
        if done.returncode:
            missing.append(peer.name)
        else:
            found.append(
                LiveSystem(peer.name, done.stdout.split()[-1], "its own loop", python, ROOT / "src")
            )
    advice = "`make peers` installs the other libraries, and --python names their interpreter"
    return found, f"left out: {', '.join(missing)}; {advice}." if missing else ""


def environment(source: Path) -> dict[str, str]:
    """One thread, and agreestop from this folder."""
    return {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}


@contextmanager
def worker(system: LiveSystem, folder: Path) -> Iterator[Any]:
    """A function that has the process time one round of a workload."""
    asked = "agreestop" if system.name == OURS else system.name
    words = [system.python, "-m", "benchmarks.live_worker", str(folder), asked]
    about: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "text": True,
        "cwd": ROOT,
        "env": environment(system.source),
    }
    with subprocess.Popen(words, **about) as process:

        def ask(workload: str) -> dict[str, float]:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(f"{workload}\n")
            process.stdin.flush()
            for line in process.stdout:
                if line.startswith(MARK):
                    found: dict[str, float] = json.loads(line[len(MARK) :])
                    return found
            raise InputError(
                f"{system.name} ({system.form}) ended before its times were known: its message "
                "stands above."
            )

        try:
            yield ask
        finally:
            if process.stdin is not None:
                process.stdin.close()
            process.wait()


def measure(found: Sequence[LiveSystem], settings: LiveSettings, folder: Path) -> list[BenchRecord]:
    """The records of every workload; in each round all systems take their turn, the first one moves
    on.
    """
    records = []
    with ExitStack() as stack:
        asks = [stack.enter_context(worker(system, folder)) for system in found]
        for hidden in settings.hidden:
            rounds: list[list[dict[str, float]]] = [[] for _ in found]
            for repeat in range(settings.rounds):
                for turn in range(len(found)):
                    at = (repeat + turn) % len(found)
                    rounds[at].append(asks[at](name_of(hidden)))
            records += [
                one
                for work in rounds[0][0]
                for one in as_records(work, name_of(hidden), found, rounds)
            ]
    return records


def as_records(
    work: str, name: str, found: Sequence[LiveSystem], rounds: Sequence[Sequence[dict[str, float]]]
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
    return (
        records,
        f"Live inputs of {MEMBERS} members, one thread of {about['machine']['cpu']}",
        missing,
    )
