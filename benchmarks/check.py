"""The gate of speed: key workloads, each timed in turn with a reference, against the ratios that
are stored.

    ratio = fastest(reference) / fastest(workload)

The reference is a fixed mixture of numpy and Python, so a ratio hardly depends on the machine or on
its other work. `python -m benchmarks check --store` writes results/bench/check.json, and `--add`
only the ratios of new workloads. Without them, a workload whose ratio is below 0.8 of the stored
one fails.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

import agreestop as ag
from agreestop.common import InputError, read_file
from agreestop.engines.live_batch import LiveBatch, Push, Steps

from .results import describe_run, write_results

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


def workloads() -> dict[str, Work]:
    """What users wait for: the rules on scores, and the event-driven engine on events."""
    rng = np.random.default_rng(0)
    rule = ag.AgreeStop(0.9, range(1, STEPS + 1), 1)
    examples, more = (
        ag.simulate_scores(n, steps=STEPS, K=MEMBERS, C=10, seed=n, pace=4.0) for n in (500, 2000)
    )
    calibrated = rule.calibrate(examples)
    x = rng.random((160, STEPS, 2, 12, 12)) < 0.03
    network = ag.networks.FullyConnected(x.shape[2:], 10, hidden=(256,))
    ensemble = ag.ensembles.DeepEnsemble(network, members=MEMBERS, device="cpu").fit(
        x[:60], np.arange(60) % 10, epochs=1, progress=False
    )
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
