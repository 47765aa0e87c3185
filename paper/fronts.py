"""`python -m paper promises`, second part: what the latency of an ensemble costs in work, on the
score files of the figures.

    <output>/promises/front.json             all records
    <output>/promises/front.png, .svg        latency against member-steps

The points are one member, all members, and the schedules that `agreestop.front` chooses on the
tuning split for several prices of work. Each is calibrated and tested on random divisions of the
pool. Members may join, and inputs may stop, at every step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from agreestop.common import ProgressCallback, Schedule, run_tasks
from agreestop.decide.agree_stop import AgreeStop
from agreestop.decide.scores import Scores
from agreestop.decide.tuning.schedules import PRICES, FrontPoint, front
from agreestop.decide.tuning.splits import repeat_splits
from agreestop.pipeline.measure import bounds
from agreestop.report.contents import versions

from .outcomes import SpikeCounts
from .promises import (
    ENSEMBLES,
    FEW,
    LARGE,
    LARGEST_POOL,
    MEMBERS,
    REALISATIONS,
    SEED,
    SIZES,
    SMALL,
    TUNING_ROWS,
    save,
)
from .sources import load_source

TARGET, N, SMALL_SIZE = 0.95, 200, 3
TUNING_REPEATS, TUNING_SEED = 10, 1
POOL_REPEATS = 5  # realisations without each part of the pool
ALL, ONE = "all members", "one member"


class FrontSetting(NamedTuple):
    data: str
    ensemble: str
    max_set_size: int
    n: int


@dataclass(frozen=True)
class FrontRecord:
    """One point of a front: means over realisations, with 95 % intervals (low, high) for the draw
    of the pool, None where unknown.

    prices                    the prices of work for which tuning chose this schedule
    joins                     pairs (time, members): from that time on, that many members are asked
    work, latency             mean member-steps of an input, and its mean stopping time over T
    work_share, ratio         both over those of all members
    tuning_work, _latency     what tuning expected
    """

    data: str
    simulated: bool
    ensemble: str
    max_set_size: int
    target: float
    n: int
    members: int
    name: str
    prices: tuple[float, ...]
    joins: tuple[tuple[float, int], ...]
    work: float
    work_interval: tuple[float, float] | None
    latency: float
    latency_interval: tuple[float, float] | None
    coverage: float
    coverage_interval: tuple[float, float] | None
    set_size: float
    set_size_interval: tuple[float, float] | None
    tuning_work: float
    tuning_latency: float
    work_share: float = 1.0
    ratio: float = 1.0


def settings() -> list[FrontSetting]:
    """The settings that are measured."""
    large = [
        FrontSetting(data, ensemble, size, N)
        for data in LARGE
        for ensemble in ENSEMBLES
        for size in SIZES
    ]
    return large + [FrontSetting(data, "deep", SMALL_SIZE, FEW) for data in SMALL]


def measure_front(scores: Path, setting: FrontSetting) -> list[FrontRecord]:
    """The front of one ensemble: all members, schedules from the highest work to the lowest, one
    member.
    """
    source = load_source(scores / setting.data / setting.ensemble, setting.data, setting.ensemble)
    members = min(MEMBERS, source.members)
    tuning = _scores(SpikeCounts.of(source.tuning, TUNING_ROWS), members)
    pool = _scores(SpikeCounts.of(source.pool, LARGEST_POOL), members)
    plain, n = (
        AgreeStop(TARGET, tuning.times, setting.max_set_size),
        min(setting.n, len(tuning) // 2),
    )
    points = front(
        plain, tuning, n_calibration=n, prices=PRICES, repeats=TUNING_REPEATS, seed=TUNING_SEED
    )
    records = []
    for point, prices in _distinct(points):
        assert isinstance(point.rule.checkpoints, Schedule)
        splits = repeat_splits(
            point.rule, pool, n_calibration=setting.n, repeats=REALISATIONS, seed=SEED
        )
        found = splits.pool_figures(POOL_REPEATS)
        assert found.work is not None
        record = FrontRecord(
            data=source.data,
            simulated=source.simulated,
            ensemble=source.ensemble,
            max_set_size=setting.max_set_size,
            target=TARGET,
            n=setting.n,
            members=members,
            name="schedule" if prices else point.name,
            prices=prices,
            joins=_joins(point.rule.checkpoints),
            work=float(found.work),
            work_interval=bounds(found.work),
            latency=float(found.normalized_latency),
            latency_interval=bounds(found.normalized_latency),
            coverage=float(found.coverage),
            coverage_interval=bounds(found.coverage),
            set_size=float(found.set_size),
            set_size_interval=bounds(found.set_size),
            tuning_work=point.work,
            tuning_latency=point.latency,
        )
        records.append(record)
    (whole,) = (record for record in records if record.name == ALL)
    return [
        replace(record, work_share=record.work / whole.work, ratio=record.latency / whole.latency)
        for record in records
    ]


def run_fronts(
    scores: Path, output: Path, command: str, progress: ProgressCallback, workers: int = 1
) -> list[FrontRecord]:
    """Measure all fronts, and write `front.json`."""
    wanted, records = settings(), list[FrontRecord]()
    for number, (setting, found) in enumerate(
        run_tasks(partial(_measurer, scores), wanted, workers, in_order=True), 1
    ):
        records += found
        progress(f"{setting.data}, {setting.ensemble}", number / len(wanted))
    protocol = {
        "members": MEMBERS,
        "prices": PRICES,
        "realisations": REALISATIONS,
        "largest_pool": LARGEST_POOL,
        "tuning_rows": TUNING_ROWS,
        "tuning_repeats": TUNING_REPEATS,
        "tuning_seed": TUNING_SEED,
        "seed": SEED,
    }
    header = {
        "command": command,
        "protocol": protocol,
        "versions": dict(versions("agreestop", "numpy")),
    }
    save(output / "promises" / "front.json", records, header)
    return records


def _measurer(scores: Path) -> Callable[[FrontSetting], list[FrontRecord]]:
    return partial(measure_front, scores)


def load_fronts(path: Path) -> list[FrontRecord]:
    """Read records that `run_fronts` wrote."""
    return [FrontRecord(**one) for one in json.loads(path.read_text(encoding="utf-8"))["records"]]


def _scores(counts: SpikeCounts, members: int) -> Scores:
    times = range(1, counts.steps + 1)
    return Scores(
        np.stack([counts.at(step, members) for step in times], axis=1), counts.labels, tuple(times)
    )


def _distinct(points: tuple[FrontPoint, ...]) -> Iterator[tuple[FrontPoint, tuple[float, ...]]]:
    """Points with the prices that chose them; prices that chose the same schedule give
    one point.
    """
    for _, same in groupby(
        points, key=lambda point: (point.price is None, point.work, point.latency)
    ):
        chosen = list(same)
        yield chosen[0], tuple(point.price for point in chosen if point.price is not None)


def _joins(schedule: Schedule) -> tuple[tuple[float, int], ...]:
    """The first look of each number of members."""
    return tuple(next(looks) for _, looks in groupby(schedule.looks, key=lambda look: look[1]))
