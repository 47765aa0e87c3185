"""The main job: train the ensembles of a configuration, score them, and measure every rule on the scores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agreestop.decide.score_files import load_scores
from agreestop.engines.energy import running_energy
from agreestop.report.records import Record

from .config import RunConfig
from .measure import Protocol, Tell, measure_stream, save_records
from .steps import ensemble_files, load_data, load_energy, score_ensemble

SIZES = (1, 2, 4, 6)
TARGETS = (0.8, 0.85, 0.9, 0.92)


def run_config(config: RunConfig, folder: Path, tell: Tell) -> list[Record]:
    """Run a configuration; what was trained and scored before with the same settings is used again. Writes `metrics.json`."""
    data, decide = load_data(config), config.decide
    targets = (decide.target, *(target for target in TARGETS if target != decide.target))
    protocol = Protocol(targets, (), decide.checkpoints, decide.max_set_size, decide.n_calibration, decide.realisations, config.data.seed)
    records: list[Record] = []
    for ensemble, files in zip(config.ensembles, ensemble_files(config, folder), strict=True):
        score_ensemble(config, ensemble, data, files, tell)
        sizes = tuple(sorted({*(size for size in SIZES if size < ensemble.members), ensemble.members}))
        spent = running_energy(load_energy(files))
        tuning, pool = load_scores(files.tuning), load_scores(files.pool)
        records += measure_stream(files.folder.name, tuning, pool, replace(protocol, sizes=sizes), tell, spent)
    header = {"data": data.pool.description, "simulated": data.pool.simulated, "n_calibration": decide.n_calibration}
    save_records(folder / "metrics.json", records, name=config.name, realisations=decide.realisations, **header)
    return records
