"""How fast the decision layer is, as ratios against peers measured in the same run, interleaved.

`make bench` runs it and writes results/bench/decide.json. Medians over rounds; low and high are the extremes.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from crepes.base import p_values_batch
from rich.console import Console
from rich.table import Table

import agreestop as ag
from agreestop.common.arrays import Floats, Integers

CHECKPOINTS = (20, 40, 60, 80)


@dataclass(frozen=True)
class Timing:
    """One piece of work: seconds (median, low, high), the peer's median, their ratio, and what the ratio should be."""

    work: str
    median: float
    low: float
    high: float
    peer: str
    peer_median: float
    ratio: float
    wanted: str


def interleaved(ours: Callable[[], object], peer: Callable[[], object], rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of both, taken in turn."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for place, work in enumerate((ours, peer)):
            begin = time.perf_counter()
            work()
            times[place].append(time.perf_counter() - begin)
    return times


def timing(work: str, wanted: str, peer_name: str, times: tuple[list[float], list[float]], faster: bool) -> Timing:
    """`faster`: the ratio is peer over ours; else ours over peer."""
    mine, theirs = (statistics.median(part) for part in times)
    return Timing(work, mine, min(times[0]), max(times[0]), peer_name, theirs, theirs / mine if faster else mine / theirs, wanted)


def bench_p_values(rounds: int) -> Timing:
    rng = np.random.default_rng(0)
    calibration, scores = rng.random(1000), rng.random((100_000, 10))
    times = interleaved(partial(ag.p_values, calibration, scores), partial(p_values_batch, calibration, scores, smoothing=False), rounds)
    return timing("p-variables, 10^5 x 10 against 1000", "at least 30", "crepes", times, True)


def rules(checkpoints: tuple[int, ...]) -> dict[str, ag.SpikeCP | ag.AgreeStop | ag.DCSNN]:
    """Every pooling and calibration whose decisions are timed."""
    average = ag.MergeConfidence(r=1)
    return {
        "confidence:1": ag.SpikeCP(0.9, checkpoints, 3, average),
        "confidence:0": ag.SpikeCP(0.9, checkpoints, 3, ag.MergeConfidence(r=0)),
        "p-values:45": ag.SpikeCP(0.9, checkpoints, 3, ag.MergePValues(r=45)),
        "p-values:1": ag.SpikeCP(0.9, checkpoints, 3, ag.MergePValues(r=1)),
        "p-values:1:exchangeable": ag.SpikeCP(0.9, checkpoints, 3, ag.MergePValues(r=1, form="exchangeable")),
        "p-values:1:randomized": ag.SpikeCP(0.9, checkpoints, 3, ag.MergePValues(r=1, form="randomized")),
        "vote": ag.SpikeCP(0.9, checkpoints, 3, ag.MajorityVote()),
        "simultaneous": ag.SpikeCP(0.9, checkpoints, 3, average, "simultaneous"),
        "stop-aware": ag.SpikeCP(0.9, checkpoints, 3, average, "stop-aware"),
        "AgreeStop": ag.AgreeStop(0.9, checkpoints, 3),
        "DC-SNN": ag.DCSNN(0.9, checkpoints, 3),
        "ranks:1": ag.SpikeCP(0.9, checkpoints, 3, ag.MergeRanks(r=1)),
    }


def make_scores(n: int, checkpoints: int = 4, members: int = 6, seed: int = 0) -> tuple[Floats, Integers]:
    """Scores that stay undecided for long, so that every checkpoint costs: random log-confidences with a weak label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(10, size=n)
    logits = rng.normal(size=(n, checkpoints, members, 10))
    logits[np.arange(n), :, :, labels] += 1.0
    return ag.log_confidence(logits), labels


def bench_decide(n: int, rounds: int) -> tuple[list[Timing], dict[str, float]]:
    """decide on (n, 4, 6, 10) against one numpy.sort of the same array, and the peak extra memory over the input's size."""
    calibration, labels = make_scores(1000, seed=1)
    scores, _ = make_scores(n)
    timings, memory = [], {}
    for name, rule in rules(CHECKPOINTS).items():
        calibrated = rule.calibrate(calibration, labels)
        slow = name.startswith("ranks")
        some = scores[: max(1, n // 50)] if slow else scores
        times = interleaved(partial(calibrated.decide, some), partial(np.sort, some, axis=-1), 1 if slow else rounds)
        wanted = "stated" if slow else "at most 10"
        timings.append(timing(f"decide, {name}, ({len(some)}, 4, 6, 10)", wanted, "numpy.sort", times, False))
        tracemalloc.start()
        calibrated.decide(some)
        memory[name] = tracemalloc.get_traced_memory()[1] / some.nbytes
        tracemalloc.stop()
    return timings, memory


def bench_push(rounds: int) -> list[Timing]:
    """One push of (6, 10) with n = 1000, median over thousands of sessions, against one numpy.sort of the same."""
    calibration, labels = make_scores(1000, seed=1)
    values = calibration[0, 0]
    timings = []
    for name, rule in rules(CHECKPOINTS).items():
        calibrated = rule.calibrate(calibration, labels)
        pushes: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds):
            sessions = [calibrated.stream() for _ in range(500)]
            begin = time.perf_counter()
            for session in sessions:
                session.push(values)
            middle = time.perf_counter()
            for _ in sessions:
                np.sort(values, axis=-1)
            pushes[0].append((middle - begin) / 500)
            pushes[1].append((time.perf_counter() - middle) / 500)
        timings.append(timing(f"push, {name}", "stated" if name.startswith("ranks") else "50 µs", "numpy.sort", pushes, False))
    return timings


def bench_import(rounds: int) -> Timing:
    def start(module: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", f"import {module}"], check=True)

    return timing("import agreestop", "at most 2", "import numpy", interleaved(start("agreestop"), start("numpy"), rounds), False)


def bench_growth(n: int) -> dict[str, list[list[float]]]:
    """Seconds of decide as one size grows: examples, checkpoints, members (confidence merging), n (p-variable merging)."""
    growth: dict[str, list[list[float]]] = {"examples": [], "checkpoints": [], "members": [], "calibration examples": []}

    def seconds(rule: ag.SpikeCP, data: Floats, calibration: tuple[Floats, Integers]) -> float:
        calibrated = rule.calibrate(*calibration)
        return min(interleaved(lambda: calibrated.decide(data), lambda: None, 3)[0])

    for factor in (1, 2, 4, 8):
        few = make_scores(n)[0]
        sizes = {"examples": (n * factor, 4, 6), "checkpoints": (n, 4 * factor, 6), "members": (n, 4, 2 * factor)}
        for name, (rows, checkpoints, members) in sizes.items():
            rule = ag.SpikeCP("0.999", tuple(range(1, checkpoints + 1)), 1, ag.MergeConfidence(r=1))
            taken = seconds(rule, make_scores(rows, checkpoints, members)[0], make_scores(200, checkpoints, members, 1))
            growth[name].append([{"examples": rows, "checkpoints": checkpoints, "members": members}[name], taken])
        merging = ag.SpikeCP("0.999", CHECKPOINTS, 1, ag.MergePValues(r=45))
        count = 250 * factor * factor
        growth["calibration examples"].append([count, seconds(merging, few, make_scores(count, seed=1))])
    return growth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("results/bench/decide.json"))
    options = parser.parse_args()
    warnings.simplefilter("ignore", ag.CalibrationWarning)
    timings = [bench_p_values(options.rounds), bench_import(2 * options.rounds + 1)]
    decided, memory = bench_decide(options.inputs, options.rounds)
    timings += decided + bench_push(options.rounds)
    growth = bench_growth(max(1, options.inputs // 10))
    versions = {"python": platform.python_version(), "numpy": np.__version__, "machine": platform.machine()}
    content = {
        "command": "make bench",
        "versions": versions,
        "timings": [asdict(one) for one in timings],
        "peak_extra_memory_over_input": memory,
        "seconds_of_decide_as_a_size_grows": growth,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(content, indent=1) + "\n")
    table = Table("work", "median", "peer", "ratio", "wanted")
    for one in timings:
        table.add_row(one.work, f"{one.median * 1e6:,.0f} µs", one.peer, f"{one.ratio:.2f}", one.wanted)
    console = Console()
    console.print(table)
    console.print("Peak extra memory over the size of the input: " + ", ".join(f"{name} {value:.2f}" for name, value in memory.items()))
    console.print(f"Wrote {options.output}")


if __name__ == "__main__":
    main()
