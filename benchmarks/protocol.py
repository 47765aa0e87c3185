"""How the benchmark measures: every system in turn, in one run.

Each repeat gives every contender a turn, in an order that moves on by one from repeat to repeat, so that what warms up, throttles or
disturbs the machine reaches all alike. In its turn a contender runs as often as fills a tenth of a second, once at least. Everyone is run
before the clock starts. Reported are the median over repeats and the spread from 10 % to 90 %.
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

SETTLE = 0.05  # seconds between contenders: threads of the last one may spin for a moment, and must not take the next one's core
TURN = 0.1  # seconds: what runs for less is run again, since the first moments are a processor's that wakes up
HOPELESS = 1.5  # a form that takes so many times as long as the best one is not run again


def nothing() -> None:
    """What most contenders have to prepare."""


@dataclass(frozen=True, eq=False)
class Contender:
    """A system at a piece of work. A run does `amount` of what the unit counts.

    `prepare` comes before the clock starts; what needs it is run once a turn.
    """

    work: str
    system: str
    version: str
    form: str
    run: Callable[[], object]
    amount: float
    prepare: Callable[[], object] = nothing
    size: float | None = None


@dataclass(frozen=True)
class Where:
    """What contenders share: the inputs' name, the batch, and the unit."""

    inputs: str
    unit: str
    batch: int | None = None


def turns(count: int, repeat: int) -> list[int]:
    """Whose turn it is, one after another, in that repeat."""
    return [(place + repeat) % count for place in range(count)]


def interleave(contenders: Sequence[Contender], repeats: int, device: str = "cpu") -> list[list[float]]:
    """Seconds of a run of each contender in each repeat."""
    runs = []
    for contender in contenders:
        _seconds(contender, device)
        again = 1 if contender.prepare is not nothing else math.ceil(TURN / max(_seconds(contender, device), 1e-6))
        runs.append(max(1, again))
    gc.collect()  # what came before is not theirs to clean up
    taken: list[list[float]] = [[] for _ in contenders]
    for repeat in range(repeats):
        for place in turns(len(contenders), repeat):
            time.sleep(SETTLE)
            taken[place].append(_seconds(contenders[place], device, runs[place]))
    return taken


def _seconds(contender: Contender, device: str, runs: int = 1) -> float:
    contender.prepare()
    finish(device)
    begin = time.perf_counter()
    for _ in range(runs):
        contender.run()
    finish(device)
    return (time.perf_counter() - begin) / runs


def finish(device: str) -> None:
    """Wait for a GPU."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def as_record(contender: Contender, seconds: Sequence[float], where: Where) -> BenchRecord:
    """The median and the 10 % to 90 % spread, in the unit."""
    each = np.asarray(seconds) / contender.amount
    values = 1 / each if where.unit in FASTER_IS_MORE else each * (1e6 if where.unit == STEP else 1)
    low, median, high = (float(value) for value in np.quantile(values, (0.1, 0.5, 0.9)))
    return BenchRecord(
        work=contender.work,
        inputs=where.inputs,
        system=contender.system,
        version=contender.version,
        unit=where.unit,
        median=median,
        low=low,
        high=high,
        repeats=len(seconds),
        form=contender.form,
        batch=where.batch,
        size=contender.size,
    )


def measure(contenders: Sequence[Contender], where: Where, repeats: int, device: str = "cpu") -> list[BenchRecord]:
    """Records of the contenders, in their order."""
    return [
        as_record(contender, seconds, where) for contender, seconds in zip(contenders, interleave(contenders, repeats, device), strict=True)
    ]


@dataclass(frozen=True, eq=False)
class Trial:
    """A form to try: what makes it ready to run, and how many runs it takes to be at its speed."""

    make: Callable[[], Callable[[], object]]
    warm_ups: int = 1


@dataclass(frozen=True)
class Choice:
    """The fastest form, None where none works; and for each that does not, why."""

    form: str | None
    failures: dict[str, str]


def fastest_form(forms: Mapping[str, Trial], device: str = "cpu") -> Choice:
    """Try every form: runs to warm up, then the faster of two, or the first alone where that is hopeless already."""
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
        except Exception as error:  # whatever a library that does not fit this machine raises
            failures[name] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
            continue
        if seconds < best:
            best, chosen = seconds, name
    return Choice(chosen, failures)


def _tried(run: Callable[[], object], device: str) -> float:
    return _seconds(Contender("", "", "", "", run, 1.0), device)
