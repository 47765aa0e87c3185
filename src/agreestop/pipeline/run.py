"""The main job: train the ensembles of a configuration, score them, measure every rule on the
scores, and collect the report.
"""

from dataclasses import replace
from pathlib import Path

from agreestop.common import InputError, ProgressCallback, Stages, no_progress
from agreestop.decide.rule import Rule
from agreestop.decide.scores import load_scores
from agreestop.engines.early_stopping import TimeSaved, measure_saving
from agreestop.engines.protocol import running_energy
from agreestop.engines.runner import choose_engine
from agreestop.ensembles.streams import kl_note
from agreestop.events.data import EventData, EventSplits
from agreestop.events.files import save_events
from agreestop.report.contents import Report, describe_ensemble, settings_in_words, versions
from agreestop.report.pictures import InputPictures
from agreestop.report.records import MeasurementSettings, Record

from .config import EnsembleSettings, RunConfig, unused_keys
from .data import load_data
from .demo import write_demo
from .measure import (
    FinishedRun,
    locked_folder,
    measure_rules,
    save_records,
    shortage_in_words,
    write_pages,
)
from .products import (
    EnsembleFiles,
    load_operations,
    members_are_current,
    needs_training,
    score_ensemble,
    scores_are_current,
    train_ensemble,
)
from .workers import MapTasks

SIZES = (1, 2, 4, 6)
EPOCH, SCORES, RULES, EXAMPLES = 2.5, 8.0, 400.0, 15.0
"""Weights of the progress bar: relative times of an epoch of one member, of the scores, of all
rules and of the examples, on the digits.
"""
NOTES = {
    "digits": (
        "The difficulty of the embedded digits, their motion and their noise, was set by looking "
        "at held-out accuracies, so that the classes become clear only with time. "
        "The accuracies on this page are therefore no benchmark."
    )
}


def train_ensembles(
    config: RunConfig, folder: Path, progress: ProgressCallback, run: MapTasks | None = None
) -> list[EnsembleFiles]:
    """Train the ensembles of a configuration; the files of each. run: trains members on other
    machines; see `workers`.
    """
    data, pairs = load_data(config), _ensembles(config, folder)
    with locked_folder(folder, progress):
        stages = Stages(progress, [_costs(config, *pair)[0] for pair in pairs])
        for ensemble, files in pairs:
            train_ensemble(config, ensemble, data, files, stages.begin(files.folder.name), run)
    return [files for _, files in pairs]


def score_ensembles(
    config: RunConfig, folder: Path, progress: ProgressCallback, run: MapTasks | None = None
) -> list[EnsembleFiles]:
    """Score the ensembles of a configuration, after training where that is missing; the files of
    each. Writes `test-inputs.npz` too.

    run: trains and scores on other machines; see `workers`.
    """
    data, pairs = load_data(config), _ensembles(config, folder)
    with locked_folder(folder, progress):
        stages = Stages(progress, [cost for pair in pairs for cost in _costs(config, *pair)])
        for ensemble, files in pairs:
            _train_and_score(config, ensemble, data, files, stages, run)
        _save_test_inputs(config, data, folder)
    return [files for _, files in pairs]


def training_notes(config: RunConfig, folder: Path) -> list[str]:
    """Sentences to show before training: rules that can never stop, and why the loss of a
    variational ensemble rises on purpose.
    """
    measured = measurement_settings(
        config, max(config.ensembles, key=lambda ensemble: ensemble.members)
    )
    shortage = shortage_in_words(measured)
    return (
        [f"{shortage} Raise decide.n_calibration, or lower decide.target."] if shortage else []
    ) + [
        f"{files.folder.name}: {kl_note(ensemble.kl_weight, ensemble.warm_up)}"
        for ensemble, files in _ensembles(config, folder)
        if ensemble.kind == "variational" and kl_note(ensemble.kl_weight, ensemble.warm_up)
        if not members_are_current(config, ensemble, files)
    ]


def run_config(
    config: RunConfig,
    folder: Path,
    command: str,
    progress: ProgressCallback,
    workers: int = 1,
    pages: bool = True,
) -> FinishedRun:
    """Run a configuration and write `metrics.json`, the report, and the page in which one watches
    the members decide, where they are of a kind that runs in one.

    What the same settings trained and scored before is used again. The rules are measured in
    `workers` processes. `command` is the command line that asked for the run. pages=False: only
    numbers are written.
    """
    data, decide = load_data(config), config.decide
    if 2 * decide.n_calibration > len(data.tuning):
        raise InputError(
            f"decide.n_calibration is {decide.n_calibration}, but there are {len(data.tuning)} "
            "inputs for tuning, and twice as many as for "
            "calibration are needed: give fewer calibration examples, or more data."
        )
    with locked_folder(folder, progress):
        report = _run(config, data, folder, command, progress, workers)
        if not pages:
            return FinishedRun(report)
        members = _watchable_members(config, folder)
        demo = None if members is None else write_demo(config, folder, members)
        report = replace(report, demo=demo is not None)
        written = write_pages(report, folder, progress)
        return FinishedRun(report, [*written, *([demo] if demo else [])])


def _run(
    config: RunConfig,
    data: EventSplits,
    folder: Path,
    command: str,
    progress: ProgressCallback,
    workers: int,
) -> Report:
    decide = config.decide
    records: list[Record] = []
    sections, pictures = [], InputPictures(data.pool.inputs)
    pairs = _ensembles(config, folder)
    stages = Stages(
        progress, [cost for pair in pairs for cost in (*_costs(config, *pair), RULES, EXAMPLES)]
    )
    for ensemble, files in pairs:
        name, measured = files.folder.name, measurement_settings(config, ensemble, data.pool.steps)
        _train_and_score(config, ensemble, data, files, stages)
        tuning = load_scores(files.tuning)
        pool = load_scores(files.pool)
        spent = running_energy(load_operations(files))
        measurement = measure_rules(
            name, tuning, pool, measured, stages.begin(name), spent, workers
        )
        report = stages.begin(name)
        made_with = (
            *settings_in_words(config.network, unused_keys(config.network)),
            *settings_in_words(ensemble, unused_keys(ensemble)),
        )
        section = describe_ensemble(
            name,
            pool,
            measurement.records,
            measurement.rules,
            measured,
            report,
            pictures,
            made_with,
        )
        if not ensemble.fresh and section.summary.headline.examples_needed is None:
            report("time saved", 0.9)
            rule = measurement.rules[section.summary.headline.label]
            section = replace(section, saved=_time_saved(config, ensemble, files, rule, data))
        sections.append(section)
        records += measurement.records
    _save_test_inputs(config, data, folder)
    header = {
        "data": data.pool.description,
        "simulated": data.pool.simulated,
        "n_calibration": decide.n_calibration,
    }
    save_records(
        folder / "metrics.json",
        records,
        name=config.name,
        realisations=decide.realisations,
        **header,
    )
    parts = (
        f"{len(data.training)} inputs for training, {len(data.tuning)} for tuning, "
        f"{len(data.pool)} in the pool"
    )
    return Report(
        name=config.name,
        kind="simulated events" if data.pool.simulated else "recorded events",
        description=data.pool.description,
        measured=measured,
        n_tuning=len(data.tuning),
        n_pool=len(data.pool),
        sections=sections,
        command=command,
        versions=versions("agreestop", "numpy", "torch", "scikit-learn"),
        settings=(
            ("inputs", _shape_in_words(data.pool)),
            ("parts", parts),
            *settings_in_words(config.data, unused_keys(config.data)),
        ),
        notes=tuple(note for name, note in NOTES.items() if name == config.data.name),
    )


def _ensembles(config: RunConfig, folder: Path) -> list[tuple[EnsembleSettings, EnsembleFiles]]:
    """Each ensemble and its files, in a folder named after its kind, with a number where there
    are several of one kind.
    """
    kinds = [ensemble.kind for ensemble in config.ensembles]
    names = [
        kind if kinds.count(kind) == 1 else f"{kind}-{kinds[: index + 1].count(kind)}"
        for index, kind in enumerate(kinds)
    ]
    return [
        (ensemble, EnsembleFiles(folder / name))
        for ensemble, name in zip(config.ensembles, names, strict=True)
    ]


def _train_and_score(
    config: RunConfig,
    ensemble: EnsembleSettings,
    data: EventSplits,
    files: EnsembleFiles,
    stages: Stages,
    run: MapTasks | None = None,
) -> None:
    name = files.folder.name
    training, scoring = stages.begin(name), stages.begin(name)
    if needs_training(config, ensemble, files):
        train_ensemble(config, ensemble, data, files, training, run)
    score_ensemble(config, ensemble, data, files, scoring, run)


def _save_test_inputs(config: RunConfig, data: EventSplits, folder: Path) -> None:
    """Write the inputs behind `test.npz`, for `agreestop decide --members`."""
    save_events(
        folder / "test-inputs.npz", data.pool.rows(slice(config.decide.n_calibration, None))
    )


def _costs(
    config: RunConfig, ensemble: EnsembleSettings, files: EnsembleFiles
) -> tuple[float, float]:
    """The weights of training and of scoring, each 0 where its product can be used again."""
    members = ensemble.members if ensemble.kind == "deep" else 1
    training = EPOCH * ensemble.epochs * members if needs_training(config, ensemble, files) else 0.0
    return training, 0.0 if scores_are_current(config, ensemble, files) else SCORES


def _time_saved(
    config: RunConfig,
    ensemble: EnsembleSettings,
    files: EnsembleFiles,
    rule: Rule,
    data: EventSplits,
) -> TimeSaved:
    """The time that early stopping saves on the test inputs of the first division of the pool."""
    calibrated = rule.calibrate(load_scores(files.calibration))
    # in most cases this loads them
    members = train_ensemble(config, ensemble, data, files, no_progress)
    engine = choose_engine(members.network, config.decide.engine, data.pool.density)
    return measure_saving(
        engine, calibrated, data.pool.rows(slice(config.decide.n_calibration, None)).inputs
    )


def _watchable_members(config: RunConfig, folder: Path) -> Path | None:
    """The file of the first ensemble that a page can run: drawn once, and event-driven."""
    if config.network.architecture != "fully-connected":
        return None
    for ensemble, files in _ensembles(config, folder):
        if ensemble.fresh or not files.members.is_file():
            continue
        if load_scores(files.calibration).engine.startswith("event-driven"):
            return files.members
    return None


def measurement_settings(
    config: RunConfig, ensemble: EnsembleSettings, steps: int = 80
) -> MeasurementSettings:
    """The targets, ensemble sizes and checkpoints at which the rules are measured, on inputs of
    this many steps.
    """
    decide = config.decide
    targets = (decide.target, *(target for target in decide.targets if target != decide.target))
    sizes = tuple(sorted({*(size for size in SIZES if size < ensemble.members), ensemble.members}))
    checkpoints = decide.checkpoints or tuple(
        sorted({-(-steps * quarter // 4) for quarter in (1, 2, 3, 4)})
    )
    return MeasurementSettings(
        targets,
        sizes,
        checkpoints,
        decide.max_set_size,
        decide.n_calibration,
        decide.realisations,
        config.data.seed,
    )


def _shape_in_words(part: EventData) -> str:
    shape = part.shape
    polarity = len(shape) == 3 and shape[0] == 2
    cells = (
        f"{shape[1]} × {shape[2]} pixels, ON and OFF events"
        if polarity
        else f"{' × '.join(map(str, shape))} values in each step"
    )
    return f"{part.steps} steps, {cells}, {len(part.classes)} classes"
