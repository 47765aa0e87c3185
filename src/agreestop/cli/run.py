"""`agreestop run`: the main job, from scores to figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from agreestop.decide.checks import InputError
from agreestop.experiments.config import RunConfig, load_config
from agreestop.experiments.measure import Protocol, Tell
from agreestop.experiments.simulated import run_simulated
from agreestop.report.records import Record

from .console import needing_networks, out, progress_bar, telling_warnings


def run(
    config: Annotated[Path | None, typer.Argument(help="Configuration (TOML); without one, the embedded digits.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder for all that is made. [default: runs/NAME]")] = None,
    simulated: Annotated[bool, typer.Option("--simulated", help="No training: rules on simulated scores.")] = False,
) -> None:
    """Train the ensembles of a configuration, score them, and measure every rule; numbers and figures go to a folder.

    What was trained and scored before with the same settings is used again, and a run that was stopped goes on.
    """
    try:
        from agreestop.report.figures import draw_coverage_and_latency
    except ImportError:
        raise InputError("figures need matplotlib: install agreestop[figures].") from None
    if simulated and config is not None:
        raise InputError("--simulated takes no configuration: leave one of the two out.")
    settings = RunConfig() if config is None else load_config(config)
    folder = output or Path("runs") / ("simulated" if simulated else settings.name)
    with telling_warnings():
        with progress_bar("simulated scores" if simulated else settings.name) as tell:
            records = run_simulated(folder, Protocol(), tell) if simulated else _run_config(settings, folder, tell)
        for ensemble in dict.fromkeys(record.ensemble for record in records):
            mine = [record for record in records if record.ensemble == ensemble]
            title = "Simulated scores" if simulated else f"{settings.name}, {ensemble} ensemble, simulated events"
            name = "coverage-and-latency" if simulated else f"coverage-and-latency-{ensemble}"
            drawn = draw_coverage_and_latency(mine, folder, title, name)
            out.print(_table(mine, title))
            for path in drawn:
                out.print(f"Wrote {path}", markup=False, soft_wrap=True)
    for path in (folder / "metrics.json", *sorted(folder.rglob("*.npz"))):
        out.print(f"Wrote {path}", markup=False, soft_wrap=True)


def _run_config(settings: RunConfig, folder: Path, tell: Tell) -> list[Record]:
    with needing_networks():
        from agreestop.experiments.main_job import run_config
    return run_config(settings, folder, tell)


def _table(records: list[Record], title: str) -> Table:
    """Every rule at the target and number of members that were compared most."""
    target, members = records[0].target, max(record.K for record in records)
    table = Table(title=f"{title}: target {target:g}, {members} members", title_justify="left", title_style="bold")
    columns = ["rule", "coverage", "latency / T", "set size"] + ["energy"] * (records[0].energy is not None)
    for name in columns:
        table.add_column(name, justify="left" if name == "rule" else "right")
    for record in records:
        if (record.target, record.K) == (target, members):
            coverage = f"{record.coverage:.3f} ± {record.coverage_se:.3f}"
            latency = f"{record.latency:.3f} ± {record.latency_se:.3f}"
            energy = [] if record.energy is None else [f"{record.energy:.2f}"]
            table.add_row(record.label, coverage, latency, f"{record.set_size:.2f}", *energy)
    return table
