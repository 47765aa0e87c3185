"""The main job on simulated scores: 600 tuning rows and a pool of 2,000, six members that count spikes for 80 steps."""

from pathlib import Path

import numpy as np

from agreestop.common import ProgressCallback, Stages, make_folder
from agreestop.decide.confidence import log_confidence
from agreestop.decide.score_files import Scores, save_spikes
from agreestop.decide.simulated import simulate_spikes
from agreestop.report.contents import Report, describe_ensemble, versions
from agreestop.report.records import MeasurementSettings

from .measure import measure_rules, save_records

STEPS, N_TUNING, N_POOL = 80, 600, 2000
SPLITS = {
    "tuning": slice(0, N_TUNING),
    "calibration": slice(N_TUNING, N_TUNING + 300),
    "test": slice(N_TUNING + 300, None),
}


def run_simulated(folder: Path, measured: MeasurementSettings, command: str, progress: ProgressCallback) -> Report:
    """Measure on simulated scores; `command` is the command line that asked for it. The scores are written too, for the other verbs."""
    make_folder(folder)
    stages = Stages(progress, (1.0, 12.0, 1.0))
    stages.begin("simulated")("drawing scores", 0.0)
    members = max(measured.sizes)
    spikes, labels = simulate_spikes(N_TUNING + N_POOL, STEPS, members, seed=measured.seed)
    for name, rows in SPLITS.items():
        save_spikes(folder / f"{name}.npz", spikes[rows], labels[rows])
    scores = Scores(log_confidence(np.cumsum(spikes, axis=1, dtype=np.int32)), labels, tuple(range(1, STEPS + 1)))
    tuning, pool = scores.rows(slice(0, N_TUNING)), scores.rows(slice(N_TUNING, None))
    measurement = measure_rules("simulated", tuning, pool, measured, stages.begin("simulated"))
    header = {"data": "simulated scores", "seed": measured.seed, "repeats": measured.realisations, "n_calibration": measured.n_calibration}
    save_records(folder / "metrics.json", measurement.records, **header)
    return Report(
        name="simulated scores",
        kind="simulated scores",
        description=f"scores drawn from a generator, {members} simulated members that count spikes for {STEPS} steps; "
        "there are no inputs and no networks behind them",
        measured=measured,
        n_tuning=N_TUNING,
        n_pool=N_POOL,
        sections=[describe_ensemble("", pool, measurement.records, measurement.rules, measured, stages.begin("report"))],
        command=command,
        versions=versions("agreestop", "numpy"),
        settings=(("seed", str(measured.seed)),),
    )
