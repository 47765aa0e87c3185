"""Do more checkpoints stop earlier? AgreeStop at four, eight, twenty and all checkpoints, with raw
scores and with fitted ones.

The streams are those of `benchmarks.shapes` and the stored scores of `paper`. There are 50
calibration examples, target 0.9, at most three classes. Temperatures are fitted on the tuning rows
of each stream. `noted` is the share of calibration draws in which `calibrate` says that so many
checkpoints stop later than four.

`python -m benchmarks checkpoints` writes results/checkpoints.json; `make docs` writes the table in
docs/shapes.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import agreestop as ag
from agreestop.common import CalibrationWarning

from .results import describe_run, write_results
from .shapes import N_CALIBRATION, SIZE, TARGET, TunedStream, digits_stream, simulated_stream

COUNTS = 4, 8, 20, 0  # checkpoints; 0 for every step
STORED = "braille", "cifar10", "gesture-sim", "mnist-dvs-sim"
AVERAGE = ag.MergeConfidence(r=1)


@dataclass(frozen=True)
class CheckpointRecord:
    """One stream, one risk, so many checkpoints: latency is a share of T."""

    data: str
    simulated: bool
    risk: str
    checkpoints: int
    latency: float
    latency_se: float
    coverage: float
    set_size: float
    noted: float


def streams(scores: Path) -> Iterator[TunedStream]:
    """The digits of scikit-learn, stored scores of spiking ensembles, and two simulated streams."""
    yield digits_stream(0)
    for name in STORED:
        parts = [
            ag.load_scores(scores / name / "deep" / f"{part}.npz") for part in ("tuning", "pool")
        ]
        yield TunedStream(
            name, name.endswith("-sim"), *(part.rows(slice(0, 2000)) for part in parts)
        )
    yield simulated_stream("simulated, slow", 15.0, 2.6, 0)
    yield simulated_stream("simulated, fast", 2.0, 1.6, 0)


def measure(stream: TunedStream, repeats: int) -> Iterator[CheckpointRecord]:
    tuning, times = stream.tuning, stream.pool.times
    fitted = ag.TopMass.fit(tuning.log_confidence, tuning.labels, AVERAGE, tuning.times)
    for name, risk in {"raw": ag.TopMass(AVERAGE), "temperatures": fitted}.items():
        for count in COUNTS:
            every = count or len(times)
            checkpoints = [times[len(times) * (index + 1) // every - 1] for index in range(every)]
            rule = ag.AgreeStop(TARGET, checkpoints, SIZE, risk=risk)
            splits = ag.repeat_splits(
                rule, stream.pool, n_calibration=N_CALIBRATION, repeats=repeats
            )
            noted = np.mean([_noted(rule, stream.pool, seed) for seed in range(repeats)])
            yield CheckpointRecord(
                *(
                    stream.name,
                    stream.simulated,
                    name,
                    every,
                    float(splits.normalized_latency),
                    splits.normalized_latency.se,
                ),
                *(float(splits.coverage), float(splits.set_size), float(noted)),
            )


def _noted(rule: ag.AgreeStop, pool: ag.Scores, seed: int) -> bool:
    """Whether `calibrate` says of one draw that the rule stops later than with four checkpoints."""
    rows = np.random.default_rng(seed).permutation(len(pool))[:N_CALIBRATION]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        calibrated = rule.calibrate(pool.rows(rows))
    return any("as its only checkpoints" in note for note in calibrated.notes)


def run_checkpoints(repeats: int, scores: Path, output: Path) -> list[CheckpointRecord]:
    """Measure every stream and write the records."""
    records = []
    for stream in streams(scores):
        for record in measure(stream, repeats):
            records.append(record)
            print(
                f"{record.data:16} {record.risk:13} {record.checkpoints:3} {record.latency:.3f} "
                f"{record.noted:.2f}",
                flush=True,
            )
    content = {
        **describe_run(("agreestop", "numpy", "scikit-learn")),
        "repeats": repeats,
        "records": [asdict(one) for one in records],
    }
    write_results(output, content)
    return records
