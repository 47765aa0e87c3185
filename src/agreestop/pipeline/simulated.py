"""The main job on simulated scores: 600 tuning rows and a pool of 2,000, six members that count spikes for 80 steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from agreestop.common.files import make_folder
from agreestop.decide.confidence import log_confidence
from agreestop.decide.score_files import Scores, save_spikes
from agreestop.decide.simulated import simulate_spikes
from agreestop.report.contents import Report

from .gather import gather_section, measured, versions
from .measure import Protocol, Tell, measure_stream, save_records

STEPS, N_TUNING, N_POOL = 80, 600, 2000
SPLITS = {
    "tuning": slice(0, N_TUNING),
    "calibration": slice(N_TUNING, N_TUNING + 300),
    "test": slice(N_TUNING + 300, None),
}


def run_simulated(folder: Path, protocol: Protocol, command: str, tell: Tell) -> Report:
    """Measure on simulated scores, as `command` asked; what is simulated is kept, so that the other verbs can be tried on it."""
    make_folder(folder)
    tell("simulating scores", 0.0)
    spikes, labels = simulate_spikes(N_TUNING + N_POOL, STEPS, max(protocol.sizes), seed=protocol.seed)
    for name, rows in SPLITS.items():
        save_spikes(folder / f"{name}.npz", spikes[rows], labels[rows])
    scores = Scores(log_confidence(np.cumsum(spikes, axis=1, dtype=np.int32)), labels, tuple(range(1, STEPS + 1)))
    tuning, pool = scores.rows(slice(0, N_TUNING)), scores.rows(slice(N_TUNING, None))
    measurement = measure_stream("simulated", tuning, pool, protocol, tell)
    header = {"data": "simulated scores", "seed": protocol.seed, "repeats": protocol.repeats, "n_calibration": protocol.n_calibration}
    save_records(folder / "metrics.json", measurement.records, **header)
    return Report(
        name="simulated scores",
        kind="simulated scores",
        description=f"scores drawn from a generator, {max(protocol.sizes)} simulated members that count spikes for {STEPS} steps; "
        "there are no inputs and no networks behind them",
        measured=measured(protocol, N_TUNING, N_POOL),
        sections=[gather_section("", pool, measurement, protocol, tell)],
        command=command,
        versions=versions("agreestop", "numpy"),
        settings=(("seed", str(protocol.seed)),),
    )
