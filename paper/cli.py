"""`python -m paper`: the paper's figures, and two of ours, from score files."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from agreestop.cli.app import new_app
from agreestop.cli.console import out, printed_warnings, progress_bar, say
from agreestop.common import InputError, Stages, cores
from agreestop.report.records import Z

from .figures import NAMES, find_figures
from .records import FigureNumbers, FigureRecord
from .reproduce import run_figure

FULL, SMALL = Path("results"), Path("runs/small")
PROMISES = "promises"


def reproduce(
    figure: Annotated[
        str,
        typer.Argument(
            metavar="FIGURE", help=f"{', '.join(NAMES)} or all; or promises.", show_default=False
        ),
    ],
    from_scores: Annotated[
        bool, typer.Option("--from-scores", help="Train nothing: use the score files as they are.")
    ] = False,
    scale: Annotated[
        str | None,
        typer.Option(
            help=(
                "Train first, where score files are missing: small (minutes, into runs/small) "
                "or full (a GPU)."
            )
        ),
    ] = None,
    scores: Annotated[
        Path | None, typer.Option(help="Folder of the score files. [default: results/scores]")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder for the figures. [default: results]"),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="With --scale: folder with the files of the data sets.")
    ] = None,
    device: Annotated[str, typer.Option(help="With --scale: cpu or cuda.")] = "cpu",
) -> None:
    """Measure every rule of a figure, and draw it.

    Writes numbers.json, figure.png and figure.svg into a folder of the figure's name. What was
    measured before is used again, so a run that was stopped continues. The recipes of the score
    files are in paper/recipes. `promises` measures what the promises by block, without labels and
    for accumulated errors keep and cost, and what latency costs in work; it needs the score files.
    """
    if figure == PROMISES:
        _promises(scores or FULL / "scores", output or FULL)
        return
    wanted = find_figures(figure)
    if from_scores and scale is not None:
        raise InputError(
            "--from-scores trains nothing, but --scale trains: leave one of the two out."
        )
    from .drawing import draw_numbers

    root = SMALL if scale == "small" else FULL
    scores, output = scores or root / "scores", output or root
    command = shlex.join(["python", "-m", "paper", *sys.argv[1:]])
    failures = []
    for one in wanted:
        try:
            numbers = _measure(one.name, scores, output, command, scale, device, data)
        except InputError as error:
            if len(wanted) == 1:
                raise
            failures.append(str(error))
            continue
        _show(numbers, output / one.name, draw_numbers)
    if failures:
        raise InputError(" ".join(failures))


def _promises(scores: Path, output: Path) -> None:
    """Measure the promises on all score files, draw them, and print the gate beside the rule
    without one.
    """
    from .fronts import run_fronts
    from .promise_drawing import draw_fronts, draw_promises
    from .promises import GATE, MARGINAL, run_promises

    with progress_bar("measuring") as progress:
        stages = Stages(progress, (1.0, 1.0))
        command = f"python -m paper {PROMISES}"
        records = run_promises(scores, output, command, stages.begin("promises"), workers=cores())
        fronts = run_fronts(scores, output, command, stages.begin("fronts"), workers=cores())
    table = Table(
        "data",
        "ensemble",
        "I",
        "target",
        "n",
        "latency",
        "with a gate",
        "ratio",
        "lowest block",
        title_justify="left",
    )
    marginal = {
        (r.data, r.ensemble, r.max_set_size, r.target, r.n): r
        for r in records
        if r.rule == MARGINAL
    }
    for key, plain in marginal.items():
        (gate,) = (
            r
            for r in records
            if r.rule == GATE and (r.data, r.ensemble, r.max_set_size, r.target, r.n) == key
        )
        lowest = min(gate.blocks, key=lambda part: part.high)
        words = f"{lowest.coverage:.3f} [{lowest.low:.3f}, {lowest.high:.3f}]"
        table.add_row(
            *map(str, key),
            f"{plain.latency:.3f}",
            f"{gate.latency:.3f}",
            f"{gate.ratio:.2f}",
            words,
        )
    out.print(table)
    folder = output / PROMISES
    drawn = (*draw_promises(records, folder), *draw_fronts(fronts, folder))
    for path in (folder / "numbers.json", folder / "front.json", *drawn):
        out.print(f"Wrote {path}", markup=False, soft_wrap=True)


app = new_app("")
app.command()(reproduce)


def _measure(
    name: str,
    scores: Path,
    output: Path,
    command: str,
    scale: str | None,
    device: str,
    data: Path | None,
) -> FigureNumbers:
    """Make the score files that are missing, where --scale was given, and measure one figure."""
    (figure,) = find_figures(name)
    if scale is not None:
        from .make_scores import make_scores

        with progress_bar("training") as progress:
            make_scores(name, scale, device, data, progress, scores, command)
    with printed_warnings(), progress_bar("measuring") as progress:
        return run_figure(
            figure,
            scores,
            output,
            command,
            lambda what, share: progress(f"{name}, {what}", share),
            workers=cores(),
        )


def _show(
    numbers: FigureNumbers, folder: Path, draw: Callable[[FigureNumbers, Path], Sequence[Path]]
) -> None:
    """Print a table for each ensemble, what was left out, and the files."""
    for column in dict.fromkeys((record.data, record.ensemble) for record in numbers.records):
        out.print(
            _table(
                numbers.figure,
                [
                    one
                    for one in numbers.records
                    if one.default and (one.data, one.ensemble) == column
                ],
            )
        )
    for sentence in numbers.header["notes"]:
        say(f"Note: {sentence}")
    for path in (folder / "numbers.json", *draw(numbers, folder)):
        out.print(f"Wrote {path}", markup=False, soft_wrap=True)


def _table(name: str, records: Sequence[FigureRecord]) -> Table:
    """Every rule at the default setting, with 95 % intervals."""
    first = records[-1]
    data = f"{first.data} (simulated)" if first.simulated else first.data
    heading = (
        f"{name}, {data}, {first.ensemble}: target {first.target:g}, K = {first.K}, n = {first.n}"
    )
    table = Table(
        title=heading,
        title_justify="left",
        title_style="bold",
        caption=f"± is the 95 % interval {first.interval_of}; * can exclude no class",
    )
    for column in ("rule", "coverage", "latency / T", "set size"):
        table.add_column(column, justify="left" if column == "rule" else "right")
    for record in records:
        coverage = f"{record.coverage:.3f} ± {Z * record.coverage_error:.3f}"
        latency = f"{record.latency:.3f} ± {Z * record.latency_error:.3f}"
        table.add_row(
            record.label + "*" * record.vacuous, coverage, latency, f"{record.set_size:.2f}"
        )
    return table
