"""The speed of the decision layer, as ratios to peers that are timed in turn with it, in the same
process.

`python -m benchmarks decide` writes results/bench/decide.json: medians over rounds; low and high
are the extremes.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from crepes.base import p_values_batch
from rich.table import Table

import agreestop as ag
from agreestop.cli.console import out
from agreestop.common import Floats, Integers

from .results import describe_run, write_results

CHECKPOINTS = (20, 40, 60, 80)


@dataclass(frozen=True)
class DecisionTiming:
    """One workload: seconds (median, low, high), the peer's median, the ratio of the medians, and
    its goal.
    """

    work: str
    median: float
    low: float
    high: float
    peer: str
    peer_median: float
    ratio: float
    wanted: str


def interleaved(
    ours: Callable[[], object], peer: Callable[[], object], rounds: int
) -> tuple[list[float], list[float]]:
    """Seconds of both, taken in turn."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for seconds, work in zip(times, (ours, peer), strict=True):
            begin = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - begin)
    return times


def timing(
    work: str, wanted: str, peer_name: str, times: tuple[list[float], list[float]], faster: bool
) -> DecisionTiming:
    """`faster`: the ratio is peer over ours; else ours over peer."""
    mine, theirs = (statistics.median(part) for part in times)
    return DecisionTiming(
        work,
        mine,
        min(times[0]),
        max(times[0]),
        peer_name,
        theirs,
        theirs / mine if faster else mine / theirs,
        wanted,
    )


def bench_p_values(rounds: int) -> DecisionTiming:
    rng = np.random.default_rng(0)
    calibration, scores = rng.random(1000), rng.random((100_000, 10))
    times = interleaved(
        partial(ag.p_values, calibration, scores),
        partial(p_values_batch, calibration, scores, smoothing=False),
        rounds,
    )
    return timing("p-variables, 10^5 x 10 against 1000", "at least 30", "crepes", times, True)


def rules(checkpoints: tuple[int, ...]) -> dict[str, ag.SpikeCP | ag.AgreeStop | ag.DCSNN]:
    """The rules that are timed: every pooling and every calibration."""
    average = ag.MergeConfidence(r=1)
    return {
        "confidence:1": ag.SpikeCP(0.9, checkpoints, 3, average),
        "confidence:0": ag.SpikeCP(0.9, checkpoints, 3, ag.MergeConfidence(r=0)),
        "p-values:45": ag.SpikeCP(0.9, checkpoints, 3, ag.MergePValues(r=45)),
        "p-values:1": ag.SpikeCP(0.9, checkpoints, 3, ag.MergePValues(r=1)),
        "p-values:1:exchangeable": ag.SpikeCP(
            0.9, checkpoints, 3, ag.MergePValues(r=1, form="exchangeable")
        ),
        "p-values:1:randomized": ag.SpikeCP(
            0.9, checkpoints, 3, ag.MergePValues(r=1, form="randomized")
        ),
        "vote": ag.SpikeCP(0.9, checkpoints, 3, ag.MajorityVote()),
        "simultaneous": ag.SpikeCP(0.9, checkpoints, 3, average, "simultaneous"),
        "stop-aware": ag.SpikeCP(0.9, checkpoints, 3, average, "stop-aware"),
        "AgreeStop": ag.AgreeStop(0.9, checkpoints, 3),
        "DC-SNN": ag.DCSNN(0.9, checkpoints, 3),
        "ranks:1": ag.SpikeCP(0.9, checkpoints, 3, ag.MergeRanks(r=1)),
    }


def make_scores(
    n: int, checkpoints: int = 4, members: int = 6, seed: int = 0
) -> tuple[Floats, Integers]:
    """Random log-confidences with a weak label. They stay undecided for long, so every checkpoint
    has to be computed.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(10, size=n)
    logits = rng.normal(size=(n, checkpoints, members, 10))
    logits[np.arange(n), :, :, labels] += 1.0
    return ag.log_confidence(logits), labels


def bench_decide(n: int, rounds: int) -> tuple[list[DecisionTiming], dict[str, float]]:
    """`decide` on (n, 4, 6, 10) against one numpy.sort of the same array, and its peak memory as a
    multiple of the input's size.
    """
    calibration, labels = make_scores(1000, seed=1)
    scores, _ = make_scores(n)
    timings, memory = [], {}
    for name, rule in rules(CHECKPOINTS).items():
        calibrated = rule.calibrate(calibration, labels)
        slow = name.startswith("ranks")
        chosen = scores[: max(1, n // 50)] if slow else scores
        times = interleaved(
            partial(calibrated.decide, chosen),
            partial(np.sort, chosen, axis=-1),
            1 if slow else rounds,
        )
        wanted = "stated" if slow else "at most 10"
        timings.append(
            timing(f"decide, {name}, ({len(chosen)}, 4, 6, 10)", wanted, "numpy.sort", times, False)
        )
        tracemalloc.start()
        calibrated.decide(chosen)
        memory[name] = tracemalloc.get_traced_memory()[1] / chosen.nbytes
        tracemalloc.stop()
    return timings, memory


STEPS = 20


def simulated(n: int, seed: int) -> ag.Scores:
    """Simulated inputs, most of which can stop after about half of the steps."""
    return ag.simulate_scores(n, steps=STEPS, K=6, C=10, seed=seed, pace=4.0)


def promises() -> dict[str, ag.CalibratedRule]:
    """AgreeStop at every step with each kind of promise, the plain one first."""
    examples, rule = simulated(1000, 1), ag.AgreeStop(0.9, range(1, STEPS + 1), 1)
    gate = ag.Gate.fit(simulated(1000, 2), target=0.9, max_set_size=1)
    joins = [
        (1, 1),
        (1, 2),
        (2, 2),
        (2, 3),
        (3, 3),
        (4, 3),
        (4, 4),
        *((time, 4) for time in range(5, 8)),
    ]
    schedule = ag.Schedule([*joins, *((time, 6) for time in range(8, STEPS + 1))])
    return {
        "plain": rule.calibrate(examples),
        "gate": replace(rule, gate=gate).calibrate(examples),
        "groups": rule.calibrate(examples, groups=np.arange(len(examples)) % 4),
        "weights": rule.calibrate(
            examples, weights=np.linspace(0.5, 1.5, len(examples)), max_weight=1.5
        ),
        "final": rule.calibrate(examples, "final"),
        "loss": replace(rule, target=None, loss=1.0 - np.eye(10), max_loss=0.1).calibrate(examples),
        "schedule": replace(rule, checkpoints=schedule).calibrate(examples),
    }


def bench_promises(n: int, rounds: int) -> list[DecisionTiming]:
    """`decide` with each kind of promise against the plain rule."""
    kinds, scores = promises(), simulated(n, 3)
    plain = partial(kinds.pop("plain").decide, scores)
    timings = []
    for name, calibrated in kinds.items():
        own = partial(
            calibrated.decide, scores, groups=np.arange(n) % 4 if name == "groups" else None
        )
        work = f"decide, AgreeStop with {name}, ({n}, {STEPS}, 6, 10)"
        timings.append(
            timing(work, "at most 1.5", "AgreeStop", interleaved(own, plain, rounds), False)
        )
    return timings


def bench_push(rounds: int) -> list[DecisionTiming]:
    """One push of (6, 10) with n = 1000, over thousands of sessions, against one numpy.sort of the
    same array.
    """
    calibration, labels = make_scores(1000, seed=1)
    values = calibration[0, 0]
    timings = []
    calibrated_rules = {
        name: rule.calibrate(calibration, labels) for name, rule in rules(CHECKPOINTS).items()
    }
    kinds = {f"AgreeStop with {name}": one for name, one in promises().items() if name != "plain"}
    for name, calibrated in (calibrated_rules | kinds).items():
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
        timings.append(
            timing(
                f"push, {name}",
                "stated" if name.startswith("ranks") else "60 µs",
                "numpy.sort",
                pushes,
                False,
            )
        )
    return timings


def bench_import(rounds: int) -> DecisionTiming:
    def start(module: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", f"import {module}"], check=True)

    return timing(
        "import agreestop",
        "at most 2",
        "import numpy",
        interleaved(start("agreestop"), start("numpy"), rounds),
        False,
    )


def bench_growth(n: int) -> dict[str, list[list[float]]]:
    """Seconds of `decide` as one size grows: inputs, checkpoints or members (confidence merging),
    or n (p-variable merging).
    """
    growth: dict[str, list[list[float]]] = {
        "examples": [],
        "checkpoints": [],
        "members": [],
        "calibration examples": [],
    }

    def seconds(rule: ag.SpikeCP, data: Floats, calibration: tuple[Floats, Integers]) -> float:
        calibrated = rule.calibrate(*calibration)
        return min(interleaved(lambda: calibrated.decide(data), lambda: None, 3)[0])

    for factor in (1, 2, 4, 8):
        few = make_scores(n)[0]
        sizes = {
            "examples": (n * factor, 4, 6),
            "checkpoints": (n, 4 * factor, 6),
            "members": (n, 4, 2 * factor),
        }
        for name, (rows, checkpoints, members) in sizes.items():
            rule = ag.SpikeCP("0.999", tuple(range(1, checkpoints + 1)), 1, ag.MergeConfidence(r=1))
            taken = seconds(
                rule,
                make_scores(rows, checkpoints, members)[0],
                make_scores(200, checkpoints, members, 1),
            )
            growth[name].append(
                [{"examples": rows, "checkpoints": checkpoints, "members": members}[name], taken]
            )
        merging = ag.SpikeCP("0.999", CHECKPOINTS, 1, ag.MergePValues(r=45))
        count = 250 * factor * factor
        growth["calibration examples"].append(
            [count, seconds(merging, few, make_scores(count, seed=1))]
        )
    return growth


def run_decide(inputs: int, rounds: int, output: Path) -> None:
    """Run all measurements, print a table and write `output`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ag.CalibrationWarning)
        timings = [bench_p_values(rounds), bench_import(2 * rounds + 1)]
        decided, memory = bench_decide(inputs, rounds)
        timings += decided + bench_promises(max(1, inputs // 10), rounds) + bench_push(rounds)
        growth = bench_growth(max(1, inputs // 10))
    content = {
        **describe_run(),
        "timings": [asdict(one) for one in timings],
        "peak_extra_memory_over_input": memory,
        "seconds_of_decide_as_a_size_grows": growth,
    }
    write_results(output, content)
    table = Table("work", "median", "least", "peer", "ratio", "wanted")
    for one in timings:
        table.add_row(
            one.work,
            f"{one.median * 1e6:,.0f} µs",
            f"{one.low * 1e6:,.0f} µs",
            one.peer,
            f"{one.ratio:.2f}",
            one.wanted,
        )
    out.print(table)
    out.print(
        "Peak extra memory over the size of the input: "
        + ", ".join(f"{name} {value:.2f}" for name, value in memory.items())
    )
    out.print(f"Wrote {output}", markup=False, soft_wrap=True)
