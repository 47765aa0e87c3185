"""`agreestop run`, `train` and `score`: from a configuration to trained members, to score files,
and to the report.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from agreestop.common import (
    InputError,
    ProgressCallback,
    check_writable,
    cores,
    names_in,
    needs,
)
from agreestop.decide.scores import save_scores
from agreestop.events.files import read_stored
from agreestop.pipeline.config import RunConfig, load_config
from agreestop.pipeline.measure import FinishedRun, run_simulated
from agreestop.report.records import MeasurementSettings, Record

from .console import (
    Engine,
    Members,
    Ray,
    check_one_file,
    printed_warnings,
    progress_bar,
    say,
    show,
    show_written,
)

Config = Annotated[
    Path | None, typer.Argument(help="Configuration (TOML); without one, the embedded digits.")
]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Folder. [default: runs/NAME of the configuration]"),
]


def run(
    config: Config = None,
    output: Output = None,
    simulated: Annotated[
        bool,
        typer.Option(
            "--simulated", help="Measure the rules on simulated scores, without training."
        ),
    ] = False,
) -> None:
    """Train the ensembles of a configuration, score them, measure every rule, and write numbers,
    figures and a report to a folder.

    A configuration is a TOML file with [data], [network], [[ensembles]] and [decide]. The data are
    a data set of `agreestop data list`, or with name = "files" your own inputs.
    docs/configuration.md of the repository lists every key. What the same settings trained and
    scored before, also in a run that was stopped, is used again.
    """
    with needs("agreestop run", extras="" if simulated else "engines,figures,learn"):
        from agreestop.report.page import summary_in_words

        if not simulated:
            from agreestop.pipeline.run import run_config
    if simulated and config is not None:
        raise InputError("--simulated takes no configuration: leave one of the two out.")
    settings, command = _settings(config), _command(config, output, simulated)
    make: Callable[[str, ProgressCallback, int], FinishedRun]
    if simulated:
        folder = output or Path("runs") / "simulated"
        make = partial(run_simulated, folder, MeasurementSettings())
    else:
        folder = _folder(settings, output)
        make = partial(run_config, settings, folder)
    with printed_warnings():
        with progress_bar(folder.name) as progress:
            finished = make(command, progress, cores())
        report = finished.report
        for section in report.sections:
            name = ", ".join(part for part in (report.name, section.name) if part)
            show(*summary_in_words(section), table_of_rules(section.records, name), "")
        show(*notes_of_tables([record for one in report.sections for record in one.records]))
    products = sorted((*folder.rglob("members.safetensors"), *folder.rglob("*.npz")))
    show_files(folder, (*finished.written, folder / "metrics.json", *products))
    show(*next_steps(folder, products, report.measured), unbroken=True)


def show_files(folder: Path, paths: Sequence[Path]) -> None:
    """Name the files of a run in one line: pages and numbers by name, the others counted."""
    names = [path.name for path in reversed(paths) if path.suffix in (".html", ".json")]
    kinds = Counter(path.suffix for path in paths if path.name not in names)
    counted = [f"{count} {kind}" for kind, count in kinds.items()]
    show(f"Wrote {folder}: {', '.join(names + counted)}", unbroken=True)


def next_steps(folder: Path, products: Sequence[Path], measured: MeasurementSettings) -> list[str]:
    """Three steps: see the result, make a rule from its scores, and check it on other inputs."""
    scores = next(path for path in products if path.name == "calibration.npz")
    rule = shlex.quote(f"{folder.resolve().name}.rule")
    chosen = f"--target {measured.targets[0]:g} --max-set-size {measured.max_set_size}"
    return [
        "Next:",
        f"  open {folder / 'report.html'} in a browser",
        f"  agreestop calibrate {shlex.quote(str(scores))} \\\n    {chosen} -o {rule}",
        f"  agreestop evaluate {rule} {shlex.quote(str(scores.with_name('test.npz')))}",
    ]


def train(config: Config = None, output: Output = None, ray: Ray = None) -> None:
    """Train the ensembles of a configuration, deep or variational.

    A training that was stopped continues from its last whole epoch.

    With --ray the members of a deep ensemble train in parallel, to the same weights.
    """
    on_cluster = on_ray(ray)
    with needs("agreestop train", extras="engines,learn" if config is None else ""):
        from agreestop.pipeline.run import train_ensembles

    if config is not None and config.suffix in (".npz", ".parquet"):
        raise InputError(
            f"{config} holds inputs: give a configuration (.toml) that names them, with [data] "
            'name = "files".'
        )
    settings = _settings(config)
    folder = _folder(settings, output)
    with progress_bar(folder.name) as progress:
        made = train_ensembles(settings, folder, progress, on_cluster)
    show_written(*(files.members for files in made))


def score(
    config: Annotated[
        Path | None,
        typer.Argument(
            help=(
                "Configuration (TOML), or with --members a file of inputs; with --ray also a "
                "folder or Parquet."
            )
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help=(
                "With --members the score file; else a folder. [default: runs/NAME of the "
                "configuration]"
            ),
        ),
    ] = None,
    members: Members = None,
    engine: Engine = "auto",
    ray: Ray = None,
) -> None:
    """Run the members over the data, after training them if needed, and write score files: tuning,
    calibration, test.

    With --members, run a trained ensemble over a file of inputs and write one score file.
    """
    if members is not None:
        _score_inputs(members, config, output, engine, ray)
        return
    if engine != "auto":
        raise InputError(
            f"--engine is {engine}, but without --members the configuration names it: set "
            "decide.engine there."
        )
    if config is not None and (config.is_dir() or config.suffix in (".npz", ".parquet")):
        if {"log_confidence", "spikes"} & names_in(config):
            raise InputError(f"{config} holds scores already: calibrate or evaluate them.")
        raise InputError(
            f"{config} holds inputs: give the members that score them (--members), or a "
            "configuration (.toml)."
        )
    on_cluster = on_ray(ray)
    with needs("agreestop score", extras="engines,learn" if config is None else ""):
        from agreestop.pipeline.run import score_ensembles

    settings = _settings(config)
    folder = _folder(settings, output)
    with progress_bar(folder.name) as progress:
        made = score_ensembles(settings, folder, progress, on_cluster)
    show_written(
        *(path for files in made for path in (files.tuning, files.calibration, files.test)),
        folder / "test-inputs.npz",
    )


def _score_inputs(
    members: Path, inputs: Path | None, output: Path | None, engine: str, ray: str | None
) -> None:
    if inputs is None or output is None:
        raise InputError(
            "--members is given, but no "
            f"{'file of inputs' if inputs is None else 'score file to write (-o)'}: give both."
        )
    check_writable(output, inputs, members)
    if ray is None:
        from agreestop.ensembles import load

        check_one_file(inputs)
        ensemble, stored = load(members, engine=engine), read_stored(inputs)
        scores = ensemble.score(
            stored.inputs, stored.labels, steps=stored.held, classes=stored.classes
        )
    else:
        from agreestop import cluster

        held = None if inputs.is_dir() or inputs.suffix == ".parquet" else read_stored(inputs).held
        with progress_bar(output.name) as progress:
            scores = cluster.score(
                members, inputs, address=ray, engine=engine, steps=held, progress=progress
            )
    save_scores(output, scores)
    if scores.trained is None:
        say(
            f"{members} does not say which rows trained its members: calibrate and evaluate on "
            "rows that did not."
        )
    say(
        f"The {scores.engine} engine scored {len(scores)} "
        f"inputs{'' if scores.labels is not None else ', which have no labels'}."
    )
    show_written(output)


def on_ray(address: str | None) -> Callable[..., list[Any]] | None:
    """What runs tasks on the Ray cluster at this address.

    None for no cluster, which leaves the work in this process.
    """
    if address is None:
        return None
    from agreestop import cluster

    return partial(cluster.map_tasks, cluster.Actors(address))


def _settings(config: Path | None) -> RunConfig:
    return RunConfig() if config is None else load_config(config)


def _folder(settings: RunConfig, output: Path | None) -> Path:
    """The folder of a training, after what is worth knowing before it begins was said."""
    from agreestop.pipeline.run import training_notes

    folder = output or Path("runs") / settings.name
    for sentence in training_notes(settings, folder):
        say(sentence)
    return folder


def _command(config: Path | None, output: Path | None, simulated: bool) -> str:
    """The command line of this run."""
    words = ["agreestop", "run"] + ([str(config)] if config else []) + ["--simulated"] * simulated
    return shlex.join(words + (["-o", str(output)] if output else []))


def notes_of_tables(records: Sequence[Record]) -> list[str]:
    """What the tables of some records leave unsaid."""
    over = (
        "over the realisations" if records[0].coverage_pool is None else "for the draw of the pool"
    )
    notes = [f"±: 95 % interval {over}"]
    notes += ["energy: share of running to T"] * (records[0].energy is not None)
    stuck = any(record.examples_needed for record in records)
    return ["; ".join(notes), *["* cannot stop: too few calibration examples"] * stuck]


def table_of_rules(records: Sequence[Record], title: str) -> Table:
    """Every rule at the main target and for all members, with 95 % intervals."""
    target, members = records[0].target, max(record.K for record in records)
    many = f"{members} member" + ("s" if members > 1 else "")
    table = Table(
        title=f"{title}: target {target:g}, {many}",
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    shown = [record for record in records if (record.target, record.K) == (target, members)]
    energy = shown[0].energy is not None
    for name in ("rule", "coverage", "latency / T", "size", *["energy"] * energy):
        table.add_column(name, justify="left" if name == "rule" else "right")
    for record in shown:
        name = record.label + "*" * (record.examples_needed is not None)
        judged = (record.judged_coverage, record.judged_latency)
        coverage, latency = (
            f"{value:.3f} ± {(value.high - value.low) / 2:.3f}" for value in judged
        )
        table.add_row(
            name,
            coverage,
            latency,
            f"{record.set_size:.2f}",
            *([] if record.energy is None else [f"{record.energy:.2f}"]),
        )
    return table
