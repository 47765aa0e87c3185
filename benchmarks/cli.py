"""`python -m benchmarks`: how fast our engines are, against other libraries in the same run."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from agreestop.cli.console import needing_networks, out, printed_warnings, progress_bar, say
from agreestop.common.errors import InputError

from .records import OURS, BenchRecord, load_benchmark


def bench(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    mnist: Annotated[Path | None, typer.Option(help="Folder with MNIST's four idx files; without it, Bernoulli inputs alone.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File. [default: results/bench/DEVICE.json; with --quick runs/bench/DEVICE.json]")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="Where trained members are kept. [default: runs/bench]")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: shows that all works; no result.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Peers without torch.compile, which takes minutes.")] = False,
    members: Annotated[Path | None, typer.Option(help="Trained members of a ResNet-18, for decide-resnet.")] = None,
    cifar10: Annotated[Path | None, typer.Option(help="Folder with CIFAR-10's binary files, for those members.")] = None,
    draw: Annotated[bool, typer.Option("--draw", help="Measure nothing: draw the figure of a file that is there.")] = False,
) -> None:
    """Time our engines against snnTorch, SpikingJelly, Norse and sinabs on the same inputs: decisions, streams, training.

    Writes the records, and beside them a figure. Peers that are not installed are named and left out. Quiet machines tell the truth.
    """
    if draw:
        if output is None:
            raise InputError("--draw needs the file to draw: give it with -o.")
        header, records = load_benchmark(output)
    else:
        with needing_networks():
            from . import run as benchmark
            from .setup import plan_for
        output = output or benchmark.default_output(device, quick)
        resnet = benchmark.resnet_files(members, cifar10)
        command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
        with printed_warnings(), progress_bar("bench") as tell:
            plan = plan_for(device, quick, plain)
            result = benchmark.run_benchmark(plan, mnist, output, folder or benchmark.FOLDER, command, tell, say, resnet)
        header, records = result.header, result.records
    for chosen in _parts(records):
        out.print(_table(chosen))
    for path in ([] if draw else [output]) + _draw(records, header, output):
        out.print(f"Wrote {path}", markup=False, soft_wrap=True)


def _parts(records: Sequence[BenchRecord]) -> list[list[BenchRecord]]:
    """Records that belong in one table: of the same unit, inputs and batch, and of works that share their peers."""
    groups: dict[tuple[object, ...], list[BenchRecord]] = {}
    for record in records:
        work = "decide" if record.work in ("decide-full", "decide-early") else record.work
        groups.setdefault((work, record.inputs, record.batch), []).append(record)
    return list(groups.values())


def _table(records: Sequence[BenchRecord]) -> Table:
    """Medians and spreads, 80 columns wide at most; ours with how many times as fast as the fastest peer they are."""
    first = records[0]
    batch = "" if first.batch in (None, 1) else f", batch {first.batch}"
    heading = f"{' and '.join(dict.fromkeys(record.work for record in records))}, {first.inputs}{batch}: {first.unit}"
    table = Table(title=heading, title_justify="left", title_style="bold", width=80, box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("system", ratio=1)
    for name in ("median", "10–90 %", "× fastest peer"):
        table.add_column(name, justify="right", no_wrap=True)
    for record in records:
        ratio = "" if record.times_fastest_peer is None else f"{record.times_fastest_peer:.3g} {record.fastest_peer}"
        name = f"{record.size:g}: {record.form}" if record.size is not None else f"{record.system}, {record.form}"
        spread = f"{_short(record.low)}–{_short(record.high)}"
        table.add_row(name, _short(record.median), spread, ratio, style="bold" if record.system == OURS else None)
    for work in dict.fromkeys(record.work for record in records):
        wanted = next((record.wanted for record in records if record.work == work and record.wanted), None)
        if wanted is not None:
            table.caption = f"{table.caption}; {work}: {wanted}" if table.caption else f"Wanted: {work}: {wanted}"
    return table


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _draw(records: Sequence[BenchRecord], header: dict[str, Any], output: Path) -> list[Path]:
    """The figure beside the file, or nothing and a sentence where matplotlib is missing."""
    try:
        from .drawing import draw_benchmark
    except ImportError as error:
        say(f"No figure: it needs matplotlib ({error}); install agreestop[figures].")
        return []
    machine, plan = header["machine"], header["plan"]
    where = f"{machine['cores']} cores of {machine['cpu']}" if machine["device"] == "cpu" else machine["device"]
    sizes = f"{math.prod(plan['shape'])} → {plan['hidden']} → {plan['classes']}, T = {plan['steps']}, K = {plan['members']}"
    return draw_benchmark(records, output.parent, f"{sizes}, float32 on {where}", output.stem)
