"""The gate of speed: key workloads, each timed in turn with a reference, against the ratios that
are stored.

    ratio = fastest(reference) / fastest(workload)

The reference is a fixed mixture of numpy and Python, so a ratio hardly depends on the machine or on
its other work. `python -m benchmarks check --store` writes results/bench/check.json, and `--add`
only the ratios of new workloads. Without them, a workload whose ratio is below 0.8 of the stored
one fails.

`python -m benchmarks check --previous FOLDER` times the same workloads in two processes in turn,
this version and a checkout of an older one, and writes results/bench/versions.json.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

import agreestop as ag
from agreestop.common import InputError, read_file
from agreestop.engines.live_batch import LiveBatch, Push, Steps

from .records import OURS
from .results import describe_run, version_of, write_results
from .workers import MARK, ROOT, System, in_turn, older_version

LEAST = 0.8
"""A share of the stored ratio."""
TRIES = 3
"""A workload that looks slow is measured again: a busy machine looks like that too."""
STEPS, MEMBERS = 40, 6

Work = Callable[[], object]


def reference() -> float:
    """Sorting, logarithms and a loop of Python, as the package does."""
    values = np.random.default_rng(0).random((200, STEPS, MEMBERS, 10))
    total = float(np.log(np.sort(values, axis=-1)).sum())
    for row in values[:, 0, 0, 0].tolist():
        total += math.sqrt(row)
    return total


def example_inputs() -> NDArray[np.bool_]:
    """Inputs that train, calibrate and test the members of the workloads."""
    return np.random.default_rng(0).random((160, STEPS, 2, 12, 12)) < 0.03


def trained(x: NDArray[np.bool_]) -> ag.ensembles.Ensemble:
    """The members of the workloads."""
    network = ag.networks.FullyConnected(x.shape[2:], 10, hidden=(256,))
    ensemble = ag.ensembles.DeepEnsemble(network, members=MEMBERS, device="cpu")
    return ensemble.fit(x[:60], np.arange(60) % 10, epochs=1, progress=False)


def workloads(members: Path | None = None) -> dict[str, Work]:
    """What users wait for: the rules on scores, and the event-driven engine on events; `members`
    names a file of members, else they are trained.
    """
    x = example_inputs()
    ensemble = trained(x) if members is None else ag.ensembles.load(members)
    rule = ag.AgreeStop(0.9, range(1, STEPS + 1), 1)
    examples, more = (
        ag.simulate_scores(n, steps=STEPS, K=MEMBERS, C=10, seed=n, pace=4.0) for n in (500, 2000)
    )
    calibrated = rule.calibrate(examples)
    watched = rule.calibrate(ensemble.score(x[60:110]), "final")
    frames = [np.flatnonzero(step) for step in x[110]]

    def stream() -> None:
        for row in more.log_confidence[:50]:
            session = calibrated.stream()
            for step in row:
                if session.push(step) is not None:
                    break

    def live() -> None:
        for _ in range(5):
            session = ensemble.live(watched)
            for step in frames:
                if session.push(step) is not None:
                    break

    def live_network() -> None:
        for _ in range(5):
            alone = ensemble.engine.live()
            for step in frames:
                alone.push(step)

    def batch() -> None:
        together = LiveBatch(watched, ensemble.engine, 50, ensemble.options())
        rows = [together.open(number) for number in range(50)]
        for step in frames:
            together.push([Push(row, Steps.of([step])) for row in rows if row.decision is None])

    def opening() -> None:
        for _ in range(50):
            ensemble.live(watched)

    return {
        "calibrate": partial(rule.calibrate, examples),
        "decide": partial(calibrated.decide, more),
        "repeat_splits": partial(ag.repeat_splits, rule, more, n_calibration=200, repeats=5),
        "stream": stream,
        "live network": live_network,
        "live push": live,
        "live opening": opening,
        "live batch": batch,
        "event-driven decide": partial(ensemble.decide, watched, x[110:]),
    }


def measure(work: Work, rounds: int) -> float:
    """The ratio of a workload to the reference, each at its fastest over rounds in turn."""
    work(), reference()  # compiles and loads
    best = [math.inf, math.inf]
    for _ in range(rounds):
        for which, run in enumerate((reference, work)):
            begin = time.perf_counter()
            run()
            best[which] = min(best[which], time.perf_counter() - begin)
    return best[0] / best[1]


def stored_ratios(path: Path) -> dict[str, float]:
    """The ratios that `store` wrote."""
    content = json.loads(read_file(path, "write it with `python -m benchmarks check --store`"))
    return {str(name): float(ratio) for name, ratio in content["ratios"].items()}


def store(
    works: Mapping[str, Work], path: Path, rounds: int, known: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Measure and write all ratios, but keep those that are known."""
    kept = known or {}
    ratios = {
        name: kept[name] if name in kept else measure(work, rounds) for name, work in works.items()
    }
    write_results(
        path,
        {
            **describe_run(),
            "rounds": rounds,
            "ratios": {name: round(ratio, 4) for name, ratio in ratios.items()},
        },
    )
    return ratios


def compare(previous: Path, output: Path, rounds: int) -> dict[str, dict[str, float]]:
    """For each workload that the older version can run, the fastest seconds of both, and by how
    much this version is faster; also written to a JSON file.
    """
    ours = System(OURS, version_of(OURS), "this version", sys.executable, ROOT / "src")
    found = [ours, older_version(OURS, sys.executable, previous)]
    with TemporaryDirectory() as folder:
        trained(example_inputs()).save(Path(folder) / "members")
        times = in_turn(
            "benchmarks.check",
            found,
            Path(folder),
            list(workloads(Path(folder) / "members")),
            rounds,
        )
    best = {
        name: [min(one["seconds"] for one in rounds_of) for rounds_of in both]
        for name, both in times.items()
    }
    compared = {
        name: {"seconds": now, "seconds_before": before, "ratio": before / now}
        for name, (now, before) in best.items()
        if math.isfinite(before)
    }
    about = {**describe_run(), "previous": found[1].version, "rounds": rounds}
    write_results(output, {**about, "workloads": compared})
    return compared


def seconds_of(works: Mapping[str, Work], name: str) -> float:
    """How long one call takes; infinity where an older version lacks what it calls."""
    begin = time.perf_counter()
    try:
        works[name]()
    except (AttributeError, TypeError):
        return math.inf
    return time.perf_counter() - begin


def main() -> None:
    """One version: seconds of a workload whenever a line names it."""
    works = workloads(Path(sys.argv[1]) / "members")
    for name in works:
        seconds_of(works, name)  # compiles and loads
    for line in sys.stdin:
        found = {"seconds": seconds_of(works, line.strip())}
        print(f"{MARK}{json.dumps(found)}", flush=True)


def check(
    works: Mapping[str, Work],
    stored: Mapping[str, float],
    rounds: int,
    say: Callable[[str], object],
) -> Sequence[str]:
    """The workloads that are slower than they may be."""
    unknown = sorted(set(works) ^ set(stored))
    if unknown:
        raise InputError(
            f"the stored ratios do not fit the workloads ({', '.join(unknown)}): write them again "
            "with --store."
        )
    slow = []
    for name, work in works.items():
        ratio = 0.0
        for _ in range(TRIES):
            ratio = max(ratio, measure(work, rounds))
            if ratio >= LEAST * stored[name]:
                break
        else:
            slow.append(name)
        say(
            f"{name}: {ratio / stored[name]:.2f} of the stored "
            f"speed{' - too slow' if name in slow else ''}"
        )
    return slow


if __name__ == "__main__":
    main()
