"""`agreestop run`: the main job, from scores to figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from agreestop.decide.checks import InputError
from agreestop.experiments.measure import Protocol
from agreestop.experiments.simulated import SPLITS, run_simulated
from agreestop.report.records import Record

from .console import out, progress_bar, telling_warnings


def run(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for numbers and figures.")] = Path("runs/simulated"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulated scores and of the random splits.")] = 0,
    repeats: Annotated[int, typer.Option(min=1, help="Random calibration and test realisations.")] = 50,
) -> None:
    """Calibrate and decide on simulated scores; draw coverage against target and latency against the number of members."""
    try:
        from agreestop.report.figures import draw_coverage_and_latency
    except ImportError:
        raise InputError("figures need matplotlib: install agreestop[figures].") from None
    protocol = Protocol(seed=seed, repeats=repeats)
    with telling_warnings():
        with progress_bar("simulated scores") as tell:
            records = run_simulated(output, protocol, tell)
        drawn = draw_coverage_and_latency(records, output, "Simulated scores")
        out.print(_table(records, protocol))
    score_files = [output / f"{name}.npz" for name in SPLITS]
    for path in (output / "metrics.json", *drawn, *score_files):
        out.print(f"Wrote {path}", markup=False, soft_wrap=True)


def _table(records: list[Record], protocol: Protocol) -> Table:
    target, members = protocol.targets[0], max(protocol.sizes)
    title = f"Simulated scores: target {target:g}, {members} members, {protocol.n_calibration} calibration examples"
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in ("rule", "looks", "coverage", "latency / T", "set size"):
        table.add_column(name, justify="left" if name == "rule" else "right")
    for record in records:
        if (record.target, record.K) == (target, members):
            coverage = f"{record.coverage:.3f} ± {record.coverage_se:.3f}"
            latency = f"{record.latency:.3f} ± {record.latency_se:.3f}"
            table.add_row(record.label, str(len(record.checkpoints)), coverage, latency, f"{record.set_size:.2f}")
    return table
