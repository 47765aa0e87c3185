"""The main job: train the ensembles of a configuration, score them, measure every rule on the scores, and gather the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agreestop.decide.score_files import load_scores
from agreestop.engines.early_stopping import TimeSaved, measure_saving
from agreestop.engines.energy import running_energy
from agreestop.ensembles.files import load_members
from agreestop.events.data import EventData
from agreestop.report.contents import Report
from agreestop.report.records import Record

from .config import EnsembleSettings, RunConfig
from .gather import gather_section, in_words, measured, versions
from .measure import Protocol, Rule, Tell, measure_stream, save_records
from .steps import EnsembleFiles, engine_for, ensemble_files, load_data, load_energy, save_test_inputs, score_ensemble

SIZES = (1, 2, 4, 6)
TARGETS = (0.8, 0.85, 0.9, 0.92)
NOTES = {
    "digits": "The difficulty of the embedded digits, their motion and their noise, was set by looking at held-out accuracies, so that "
    "the classes become clear only with time. The accuracies on this page are therefore no benchmark."
}


def run_config(config: RunConfig, folder: Path, command: str, tell: Tell) -> Report:
    """Run a configuration, which `command` asked for; what was trained and scored before with the same settings is used again.

    Writes `metrics.json`.
    """
    data, decide = load_data(config), config.decide
    records: list[Record] = []
    sections = []
    for ensemble, files in zip(config.ensembles, ensemble_files(config, folder), strict=True):
        score_ensemble(config, ensemble, data, files, tell)
        name, protocol, spent = files.folder.name, _protocol(config, ensemble), running_energy(load_energy(files))
        tuning, pool = load_scores(files.tuning), load_scores(files.pool)
        measurement = measure_stream(name, tuning, pool, protocol, tell, spent)
        settings = (*in_words(config.network), *in_words(ensemble))
        section = gather_section(name, pool, measurement, protocol, tell, data.pool.inputs, settings)
        if not ensemble.fresh:
            tell(f"{name}: report, time saved", 0.9)
            section = replace(section, saved=_time_saved(config, files, measurement.rules[section.verdict.headline.label], data.pool))
        sections.append(section)
        records += measurement.records
    save_test_inputs(folder / "test-inputs.npz", data, decide.n_calibration)
    header = {"data": data.pool.description, "simulated": data.pool.simulated, "n_calibration": decide.n_calibration}
    save_records(folder / "metrics.json", records, name=config.name, realisations=decide.realisations, **header)
    *_, height, width = data.pool.shape
    parts = f"{len(data.training)} inputs for training, {len(data.tuning)} for tuning, {len(data.pool)} in the pool"
    shape = f"{data.pool.steps} steps, {height} × {width} pixels, ON and OFF events, {len(data.pool.classes)} classes"
    return Report(
        name=config.name,
        kind="simulated events" if data.pool.simulated else "recorded events",
        description=data.pool.description,
        measured=measured(protocol, len(data.tuning), len(data.pool)),
        sections=sections,
        command=command,
        versions=versions("agreestop", "numpy", "torch", "scikit-learn"),
        settings=(("inputs", shape), ("parts", parts), *in_words(config.data)),
        notes=tuple(note for name, note in NOTES.items() if name == config.data.name),
    )


def _time_saved(config: RunConfig, files: EnsembleFiles, rule: Rule, pool: EventData) -> TimeSaved:
    """What stopping early truly saves on the test inputs of the first division of the pool."""
    calibration = load_scores(files.calibration)
    assert calibration.labels is not None
    calibrated = rule.calibrate(calibration.log_confidence, calibration.labels, calibration.times)
    engine = engine_for(load_members(files.members), config.decide.engine, pool)
    return measure_saving(engine, calibrated, pool.inputs[config.decide.n_calibration :])


def _protocol(config: RunConfig, ensemble: EnsembleSettings) -> Protocol:
    decide = config.decide
    targets = (decide.target, *(target for target in TARGETS if target != decide.target))
    sizes = tuple(sorted({*(size for size in SIZES if size < ensemble.members), ensemble.members}))
    return Protocol(targets, sizes, decide.checkpoints, decide.max_set_size, decide.n_calibration, decide.realisations, config.data.seed)
