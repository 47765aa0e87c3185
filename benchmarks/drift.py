"""How often a drift monitor raises an alarm without drift where streams run side by side.

    python -m benchmarks drift        writes results/drift.json; takes about ten minutes

Streams end in the order of their ease, some are closed at a deadline, and some labels never come. A
monitor counts them in the order of opening (`Decision.number`); as a control, another one takes
them as they end, and leaves out what has no answer or no label. Each run calibrates a rule of its
own, and all inputs are exchangeable with its calibration examples, except for the last world, which
has a drift.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import agreestop as ag

from .results import describe_run, write_results

STEPS, MEMBERS, CLASSES = 10, 2, 4
CALIBRATION, TARGET, DELTA = 1000, 0.9, 0.1  # of the rule
ALARM = 0.05  # δ of the monitor
# the share of inputs that look like another class, three times as many after a change, for so many
# steps
MISLED, EARLY = 0.11, 3


@dataclass(frozen=True)
class World:
    """How streams come and end.

    side_by_side  streams that are open at once; each is followed by a new one
    rate          instead of a fixed number at once, so many streams are opened in a step, at random
    deadline      the checkpoint at which streams without a decision are closed; None: never
    lost          the share of the hits whose labels never come; misses lose a tenth of that
    late          the number of steps by which labels come late, twice as many for hits
    drift         the input from which on the members see less; None: never
    """

    name: str
    side_by_side: int = 1
    rate: float = 0.0
    deadline: int | None = None
    lost: float = 0.0
    late: int = 0
    drift: int | None = None


WORLDS = (
    World("one stream after the other"),
    World("300 streams side by side", 300),
    World("streams that come at random, 100 a step", rate=100.0),
    World("300 side by side, closed after 6 of 10 steps", 300, deadline=6),
    World("300 side by side, half of the labels of hits lost", 300, lost=0.5, late=5),
    World("300 side by side, the inputs change at input 1,000", 300, drift=1000),
)


def make_scores(rng: np.random.Generator, changed: NDArray[np.bool_]) -> ag.Scores:
    """Scores of inputs (n,), of which some are changed: their members see less of the label.

    Ease differs from input to input, and some inputs look like another class at first, so that
    early answers miss more often than late ones.
    """
    n = len(changed)
    labels = rng.integers(CLASSES, size=n)
    logits = rng.normal(size=(n, STEPS, MEMBERS, CLASSES))
    ease = np.where(changed, 0.6, 1.0) * rng.lognormal(0.0, 0.7, size=n)
    growth = ease[:, None, None] * np.sqrt(np.arange(1, STEPS + 1))[None, :, None]
    logits[np.arange(n), :, :, labels] += growth
    misled = np.flatnonzero(rng.random(n) < np.where(changed, 3 * MISLED, MISLED))
    other = (labels[misled] + 1) % CLASSES
    logits[misled, :EARLY, :, other] += 2 * growth[misled, :EARLY]
    return ag.Scores(ag.log_confidence(logits), labels, tuple(range(1, STEPS + 1)))


def endings(
    world: World, stops: NDArray[Any], rng: np.random.Generator
) -> Iterator[tuple[float, int]]:
    """When each of the streams, numbered in the order of opening, ends, as (time, number)
    in order.
    """
    n = len(stops)
    lengths = stops + 1.0 if world.deadline is None else np.minimum(stops + 1.0, world.deadline)
    if world.rate:
        opened = np.cumsum(rng.exponential(1 / world.rate, size=n))
        return iter(sorted(zip((opened + lengths).tolist(), range(n), strict=True)))
    free: list[float] = [0.0] * world.side_by_side
    ends = []
    for number in range(n):
        ends.append((heappop(free) + float(lengths[number]), number))
        heappush(free, ends[-1][0])
    return iter(sorted(ends))


def watch(world: World, inputs: int, seed: int) -> dict[str, dict[str, int]]:
    """One run: for each order, the number of inputs at each alarm."""
    rng = np.random.default_rng(seed)
    rule = ag.AgreeStop(TARGET, range(1, STEPS + 1), 1, delta=DELTA)
    calibrated = rule.calibrate(make_scores(rng, np.zeros(CALIBRATION, bool)))
    changed = np.arange(inputs) >= (inputs if world.drift is None else world.drift)
    scores = make_scores(rng, changed)
    batch, labels = calibrated.decide(scores), scores.labels
    assert labels is not None and batch.first_risk is not None
    opening = ag.DriftMonitor(calibrated, ALARM, seed=seed)
    ending = ag.DriftMonitor(replace(calibrated), ALARM, seed=seed)
    due: list[tuple[float, int, ag.Decision, int | None]] = []

    def give(number: int, alone: ag.Decision, label: int | None) -> None:
        opening.update(number, label)
        if label is not None:
            ending.update(alone, label)

    for time, number in endings(world, batch.stop_index, rng):
        if world.deadline is not None and batch.stop_index[number] >= world.deadline:
            opening.skip(number, float(batch.first_risk[number]))
            continue
        alone = replace(batch[number], row=None)
        decision = replace(alone, number=number)
        missed = int(labels[number]) not in decision.classes
        lost = rng.random() < world.lost * (0.1 if missed else 1.0)
        opening.observe(decision)
        if not lost:
            ending.observe(alone)
        late = world.late * (1 if missed else 2)
        label = None if lost else int(labels[number])
        heappush(due, (time + late, number, alone, label))
        while due and due[0][0] <= time:
            give(*heappop(due)[1:])
    while due:
        give(*heappop(due)[1:])
    monitors = {"opening": opening, "ending": ending}
    return {
        name: {alarm.kind: alarm.number for alarm in one.alarms} for name, one in monitors.items()
    }


def false_alarms(world: World, runs: int, inputs: int, first: int = 0) -> dict[str, Any]:
    """In how many runs there was an alarm of each kind, and in a world with a drift after how many
    inputs.
    """
    found = [watch(world, inputs, first + seed) for seed in range(runs)]
    record: dict[str, Any] = {
        "world": world.name,
        "drift": world.drift,
        "runs": runs,
        "inputs": inputs,
    }
    for order in ("opening", "ending"):
        for kind in ("inputs", "misses"):
            at = [one[order][kind] for one in found if kind in one[order]]
            record[f"{order}_{kind}"] = len(at)
            record[f"{order}_{kind}_median"] = float(np.median(at)) if at else None
    return record


def run_drift(runs: int, inputs: int, output: Path) -> dict[str, Any]:
    """Watch every world, and write a JSON file."""
    setting = {"calibration": CALIBRATION, "target": TARGET, "delta": DELTA, "alarm": ALARM}
    results = [false_alarms(world, runs, inputs) for world in WORLDS]
    record = {**describe_run(), **setting, "results": results}
    write_results(output, record)
    return record
