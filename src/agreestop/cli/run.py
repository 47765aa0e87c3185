"""`agreestop run`: the main job, from scores to the report."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from agreestop.common.errors import InputError
from agreestop.pipeline.config import RunConfig, load_config
from agreestop.pipeline.measure import Protocol, Tell
from agreestop.pipeline.simulated import run_simulated
from agreestop.report.contents import Report
from agreestop.report.records import Record

from .console import needing_networks, out, progress_bar, telling_warnings


def run(
    config: Annotated[Path | None, typer.Argument(help="Configuration (TOML); without one, the embedded digits.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder for all that is made. [default: runs/NAME]")] = None,
    simulated: Annotated[bool, typer.Option("--simulated", help="No training: rules on simulated scores.")] = False,
) -> None:
    """Train the ensembles of a configuration, score them, and measure every rule; numbers, figures and a report go to a folder.

    What was trained and scored before with the same settings is used again, and a run that was stopped goes on.
    """
    try:
        from agreestop.report.page import verdict_in_words, write_report
    except ImportError as error:
        raise InputError(f"the report needs matplotlib and jinja2 ({error}): install agreestop[figures].") from None
    if simulated and config is not None:
        raise InputError("--simulated takes no configuration: leave one of the two out.")
    settings = RunConfig() if config is None else load_config(config)
    folder = output or Path("runs") / ("simulated" if simulated else settings.name)
    with telling_warnings():
        with progress_bar("simulated scores" if simulated else settings.name) as tell:
            command = _command(config, output, simulated)
            report = run_simulated(folder, Protocol(), command, tell) if simulated else _run_config(settings, folder, command, tell)
            tell("writing the report", 1.0)
            written = write_report(report, folder)
        for section in report.sections:
            out.print(_table(section.records, ", ".join(part for part in (report.name, section.name) if part)))
        for section in report.sections:
            for line in verdict_in_words(section):
                out.print(line, markup=False, soft_wrap=True)
    for path in (*written.figures, folder / "metrics.json", *sorted(folder.rglob("*.npz")), written.page):
        out.print(f"Wrote {path}", markup=False, soft_wrap=True)


def _command(config: Path | None, output: Path | None, simulated: bool) -> str:
    """The command line that does this again."""
    words = ["agreestop", "run"] + ([str(config)] if config else []) + ["--simulated"] * simulated
    return shlex.join(words + (["-o", str(output)] if output else []))


def _run_config(settings: RunConfig, folder: Path, command: str, tell: Tell) -> Report:
    with needing_networks():
        from agreestop.pipeline.main_job import run_config
    return run_config(settings, folder, command, tell)


def _table(records: Sequence[Record], title: str) -> Table:
    """Every rule at the target and number of members that were compared most, with 95 % intervals."""
    target, members = records[0].target, max(record.K for record in records)
    table = Table(title=f"{title}: target {target:g}, {members} members", title_justify="left", title_style="bold")
    table.caption = "± is the 95 % interval" + ("; energy is a share of that of running to T" if records[0].energy is not None else "")
    columns = ["rule", "coverage", "latency / T", "set size"] + ["energy"] * (records[0].energy is not None)
    for name in columns:
        table.add_column(name, justify="left" if name == "rule" else "right")
    for record in records:
        if (record.target, record.K) == (target, members):
            coverage = f"{record.coverage:.3f} ± {1.96 * record.coverage_se:.3f}"
            latency = f"{record.latency:.3f} ± {1.96 * record.latency_se:.3f}"
            energy = [] if record.energy is None else [f"{record.energy:.2f}"]
            table.add_row(record.label, coverage, latency, f"{record.set_size:.2f}", *energy)
    return table
