"""`python -m paper`: the paper's figures, and two of ours, from score files."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from agreestop.cli.console import needing_networks, out, progress_bar, say, telling_warnings
from agreestop.common.cores import cores
from agreestop.common.errors import InputError
from agreestop.pipeline.measure import Tell
from agreestop.report.verdict import Z

from .figures import NAMES, find_figures
from .records import FigureNumbers, FigureRecord
from .reproduce import run_figure

FULL, SMALL = Path("results"), Path("runs/small")


def reproduce(
    figure: Annotated[str, typer.Argument(help=f"{', '.join(NAMES)} or all.", show_default=False)],
    scores: Annotated[Path | None, typer.Option(help="Folder of score files. [default: results/scores]")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder for the figures. [default: results]")] = None,
    from_scores: Annotated[bool, typer.Option("--from-scores", help="Train nothing: the score files must be there.")] = False,
    scale: Annotated[str | None, typer.Option(help="Make missing score files: small (minutes; goes to runs/small) or full.")] = None,
    data: Annotated[Path | None, typer.Option(help="With --scale: folder with the files of the data sets.")] = None,
    device: Annotated[str, typer.Option(help="With --scale: cpu or cuda.")] = "cpu",
) -> None:
    """Measure every rule on the score files of a figure; numbers.json, figure.png and figure.svg go to a folder of its name.

    What was measured before is used again, and a run that was stopped goes on.
    """
    wanted = find_figures(figure)
    if from_scores and scale is not None:
        raise InputError("--from-scores trains nothing and --scale does: leave one of the two out.")
    try:
        from .drawing import draw_numbers
    except ImportError as error:
        raise InputError(f"figures need matplotlib ({error}): install agreestop[figures].") from None
    root = SMALL if scale == "small" else FULL
    scores, output = scores or root / "scores", output or root
    command = shlex.join(["python", "-m", "paper", *sys.argv[1:]])
    missing = []
    for one in wanted:
        try:
            with telling_warnings(), progress_bar(one.name) as tell:
                if scale is not None:
                    _make(one.name, scale, device, data, tell, scores, command)
                numbers = run_figure(one, scores, output, command, tell, workers=cores())
        except InputError as error:
            if len(wanted) == 1:
                raise
            missing.append(str(error))
            continue
        _show(numbers, output / one.name, draw_numbers)
    if missing:
        raise InputError(" ".join(missing))


def _make(figure: str, scale: str, device: str, data: Path | None, tell: Tell, scores: Path, command: str) -> None:
    with needing_networks():
        from .make_scores import make_scores
    make_scores(figure, scale, device, data, tell, scores, command)


def _show(numbers: FigureNumbers, folder: Path, draw: Callable[[FigureNumbers, Path], Sequence[Path]]) -> None:
    """A table for each ensemble, what was left out, and the files."""
    for place in dict.fromkeys((record.data, record.ensemble) for record in numbers.records):
        out.print(_table(numbers.figure, [one for one in numbers.records if one.default and (one.data, one.ensemble) == place]))
    for sentence in numbers.header["notes"]:
        say(f"Note: {sentence}")
    for path in (folder / "numbers.json", *draw(numbers, folder)):
        out.print(f"Wrote {path}", markup=False, soft_wrap=True)


def _table(name: str, records: Sequence[FigureRecord]) -> Table:
    """Every rule at the default setting, with 95 % intervals."""
    first = records[-1]
    data = f"{first.data} (simulated)" if first.simulated else first.data
    heading = f"{name}, {data}, {first.ensemble}: target {first.target:g}, K = {first.K}, n = {first.n}"
    table = Table(title=heading, title_justify="left", title_style="bold", caption="± is the 95 % interval; * can exclude no class")
    for column in ("rule", "coverage", "latency / T", "set size"):
        table.add_column(column, justify="left" if column == "rule" else "right")
    for record in records:
        coverage = f"{record.coverage:.3f} ± {Z * record.coverage_se:.3f}"
        latency = f"{record.latency:.3f} ± {Z * record.latency_se:.3f}"
        table.add_row(record.label + "*" * record.vacuous, coverage, latency, f"{record.set_size:.2f}")
    return table
