"""`agreestop run`: the main job, from a configuration to the report."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from agreestop.common import InputError, ProgressCallback
from agreestop.pipeline.config import RunConfig, load_config
from agreestop.pipeline.simulated import run_simulated
from agreestop.report.contents import Report
from agreestop.report.records import MeasurementSettings, Record, Z

from .console import needing_networks, out, printed_warnings, progress_bar, say, say_written


def run(
    config: Annotated[Path | None, typer.Argument(help="Configuration (TOML); without one, the embedded digits.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder for the results. [default: runs/NAME]")] = None,
    simulated: Annotated[bool, typer.Option("--simulated", help="Measure the rules on simulated scores, without training.")] = False,
) -> None:
    """Train the ensembles of a configuration, score them, measure every rule, and write numbers, figures and a report to a folder.

    A configuration is a TOML file with [data], [network], [[ensembles]] and [decide]. The data are a data set of `agreestop data list`, or
    with name = "files" your own inputs. What the same settings trained and scored before is used again. A run that was stopped continues.
    """
    try:
        from agreestop.report.page import summary_in_words, write_report
    except ImportError as error:
        raise InputError(f"the report needs matplotlib and jinja2 ({error}): install agreestop[figures].") from None
    if simulated and config is not None:
        raise InputError("--simulated takes no configuration: leave one of the two out.")
    settings = RunConfig() if config is None else load_config(config)
    folder = output or Path("runs") / ("simulated" if simulated else settings.name)
    command = _command(config, output, simulated)
    with printed_warnings():
        with progress_bar(folder.name) as progress:
            report = (
                run_simulated(folder, MeasurementSettings(), command, progress)
                if simulated
                else _run_config(settings, folder, command, progress)
            )
            progress("writing the report", 1.0)
            written = write_report(report, folder)
        for section in report.sections:
            out.print(_table(section.records, ", ".join(part for part in (report.name, section.name) if part)))
        for section in report.sections:
            for line in summary_in_words(section):
                out.print(line, markup=False, soft_wrap=True)
    say_written(*written.figures, folder / "metrics.json", *sorted(folder.rglob("*.npz")), written.page)


def _command(config: Path | None, output: Path | None, simulated: bool) -> str:
    """The command line of this run."""
    words = ["agreestop", "run"] + ([str(config)] if config else []) + ["--simulated"] * simulated
    return shlex.join(words + (["-o", str(output)] if output else []))


def _run_config(settings: RunConfig, folder: Path, command: str, progress: ProgressCallback) -> Report:
    with needing_networks():
        from agreestop.pipeline.run import run_config
        from agreestop.pipeline.train import training_notes
    for sentence in training_notes(settings, folder):
        say(sentence)
    return run_config(settings, folder, command, progress)


def _table(records: Sequence[Record], title: str) -> Table:
    """Every rule at the main target and for all members, with 95 % intervals."""
    target, members = records[0].target, max(record.K for record in records)
    table = Table(title=f"{title}: target {target:g}, {members} members", title_justify="left", title_style="bold")
    table.caption = "± is the 95 % interval" + ("; energy is a share of that of running to T" if records[0].energy is not None else "")
    columns = ["rule", "coverage", "latency / T", "set size"] + ["energy"] * (records[0].energy is not None)
    for name in columns:
        table.add_column(name, justify="left" if name == "rule" else "right")
    for record in records:
        if (record.target, record.K) == (target, members):
            coverage = f"{record.coverage:.3f} ± {Z * record.coverage_se:.3f}"
            latency = f"{record.latency:.3f} ± {Z * record.latency_se:.3f}"
            energy = [] if record.energy is None else [f"{record.energy:.2f}"]
            table.add_row(record.label, coverage, latency, f"{record.set_size:.2f}", *energy)
    return table
