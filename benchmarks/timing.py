"""How the benchmark measures time: every system in turn, in one process.

Each repeat gives every system a turn. The order moves on by one from repeat to repeat, so that
warm-up, throttling and other work on the machine affect all systems alike. In its turn a system
runs as often as fits in a tenth of a second, and at least once. Every system runs once before any
time is taken. The result is the median over the repeats and the spread from 10 % to 90 %.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .records import FASTER_IS_MORE, STEP, BenchRecord

# seconds between systems: threads of the last one may still spin and must not take the next one's
# core
PAUSE = 0.05
TURN = (
    0.1  # seconds: shorter runs are repeated, since a processor needs a moment to reach its speed
)
HOPELESS = 1.5  # a form this many times slower than the best one is not run again


def no_preparation() -> None:
    """Prepare nothing, as most systems do."""


@dataclass(frozen=True, eq=False)
class TimedSystem:
    """A system at one workload.

    form     how the system is used, in words
    run      what is timed
    amount   how much one run does, in what the unit counts
    prepare  called before the clock starts; a system that needs it runs once in each turn
    size     what is varied, in a workload named scaling-... or memory-...
    """

    work: str
    system: str
    version: str
    form: str
    run: Callable[[], object]
    amount: float
    prepare: Callable[[], object] = no_preparation
    size: float | None = None


@dataclass(frozen=True)
class Conditions:
    """What the systems have in common: the name of the inputs, the unit, and the batch size."""

    inputs: str
    unit: str
    batch: int | None = None


def turns(count: int, repeat: int) -> list[int]:
    """The order of the systems in a repeat."""
    return [(index + repeat) % count for index in range(count)]


def interleave(
    systems: Sequence[TimedSystem], repeats: int, device: str = "cpu"
) -> list[list[float]]:
    """Seconds for one run of each system in each repeat."""
    runs = []
    for system in systems:
        _seconds(system, device)
        again = (
            1
            if system.prepare is not no_preparation
            else math.ceil(TURN / max(_seconds(system, device), 1e-6))
        )
        runs.append(max(1, again))
    gc.collect()  # garbage of earlier workloads must not be collected while these are timed
    taken: list[list[float]] = [[] for _ in systems]
    for repeat in range(repeats):
        for index in turns(len(systems), repeat):
            time.sleep(PAUSE)
            taken[index].append(_seconds(systems[index], device, runs[index]))
    return taken


def _seconds(system: TimedSystem, device: str, runs: int = 1) -> float:
    system.prepare()
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(runs):
        system.run()
    synchronize(device)
    return (time.perf_counter() - begin) / runs


def synchronize(device: str) -> None:
    """Wait until a GPU has finished; on a CPU there is nothing to wait for."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def as_record(system: TimedSystem, seconds: Sequence[float], conditions: Conditions) -> BenchRecord:
    """The median and the 10 % to 90 % spread, in the unit."""
    each = np.asarray(seconds) / system.amount
    values = (
        1 / each
        if conditions.unit in FASTER_IS_MORE
        else each * (1e6 if conditions.unit == STEP else 1)
    )
    low, median, high = (float(value) for value in np.quantile(values, (0.1, 0.5, 0.9)))
    return BenchRecord(
        work=system.work,
        inputs=conditions.inputs,
        system=system.system,
        version=system.version,
        unit=conditions.unit,
        median=median,
        low=low,
        high=high,
        repeats=len(seconds),
        form=system.form,
        batch=conditions.batch,
        size=system.size,
    )


def measure(
    systems: Sequence[TimedSystem], conditions: Conditions, repeats: int, device: str = "cpu"
) -> list[BenchRecord]:
    """The records of the systems, in their order."""
    taken = interleave(systems, repeats, device)
    return [
        as_record(system, seconds, conditions)
        for system, seconds in zip(systems, taken, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class FormTrial:
    """A form to try: `make` prepares it and returns what to run; after `warm_ups` runs it has its
    full speed.
    """

    make: Callable[[], Callable[[], object]]
    warm_ups: int = 1


@dataclass(frozen=True)
class FormChoice:
    """The fastest form, or None if no form works; and for each form that does not work,
    the reason.
    """

    form: str | None
    failures: dict[str, str]


def fastest_form(forms: Mapping[str, FormTrial], device: str = "cpu") -> FormChoice:
    """Try every form: warm it up, then take the faster of two runs. A form whose first run is
    hopeless is not run again.
    """
    best, chosen = np.inf, None
    failures: dict[str, str] = {}
    for name, trial in forms.items():
        try:
            run = trial.make()
            for _ in range(trial.warm_ups):
                run()
            seconds = _tried(run, device)
            if seconds < HOPELESS * best:
                seconds = min(seconds, _tried(run, device))
        except Exception as error:  # a library that does not fit this machine may raise anything
            failures[name] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
            continue
        if seconds < best:
            best, chosen = seconds, name
    return FormChoice(chosen, failures)


def _tried(run: Callable[[], object], device: str) -> float:
    return _seconds(TimedSystem("", "", "", "", run, 1.0), device)
