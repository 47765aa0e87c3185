"""`python -m benchmarks`: how fast our engines are, against other libraries in the same run; and
smaller studies.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from inspect import getdoc
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from agreestop.cli.app import new_app
from agreestop.cli.console import out, printed_warnings, progress_bar, say, show_written
from agreestop.common import InputError

from .records import OURS, BenchRecord, load_benchmark

File = Annotated[Path, typer.Option("-o", "--output", help="File.")]
Repeats = Annotated[int, typer.Option(min=1, help="How often each measurement is repeated.")]
Previous = Annotated[
    Path | None, typer.Option(help="A checkout of an older version, to time beside this one.")
]


def bench(
    context: typer.Context,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    mnist: Annotated[
        Path | None,
        typer.Option(help="Folder with MNIST's four idx files; without it, only Bernoulli inputs."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="File. [default: results/bench/DEVICE.json; with --quick runs/bench/DEVICE.json]",
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder for trained members. [default: runs/bench]")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes: only shows that everything works.")
    ] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Peers without torch.compile, which takes minutes.")
    ] = False,
    draw: Annotated[
        bool,
        typer.Option("--draw", help="Measure nothing: draw the figure of the file given by -o."),
    ] = False,
) -> None:
    """Time our engines against snnTorch, SpikingJelly, Norse and sinabs on the same inputs:
    decisions, live streams, training.

    Writes the records and a figure beside them. Peers that are not installed are named and left
    out. Run it on an idle machine. The commands below are separate studies, with options of their
    own.
    """
    if context.invoked_subcommand is not None:
        if sys.argv[1] != context.invoked_subcommand:
            raise InputError(
                f"there are options before {context.invoked_subcommand}: give its own options, "
                "after it."
            )
        return
    if draw:
        if output is None:
            raise InputError("--draw needs the file to draw: give it with -o.")
        header, records = load_benchmark(output)
    else:
        from . import run as benchmark
        from .preparation import plan_for

        output = output or benchmark.default_output(device, quick)
        command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
        with printed_warnings(), progress_bar("benchmark") as progress:
            plan = plan_for(device, quick, plain)
            result = benchmark.run_benchmark(
                plan, mnist, output, folder or benchmark.FOLDER, command, progress, say
            )
        header, records = result.header, result.records
    for chosen in _parts(records):
        out.print(_table(chosen))
    show_written(*([] if draw else [output]), *_draw(records, header, output))


def decide(
    inputs: Annotated[int, typer.Option(min=1, help="How many inputs are decided on.")] = 100_000,
    rounds: Repeats = 5,
    output: File = Path("results/bench/decide.json"),
) -> None:
    """Time the decision layer against crepes and numpy.sort."""
    from .decide import run_decide

    run_decide(inputs, rounds, output)


def adapters(
    repeats: Repeats = 9,
    output: File = Path("results/bench/adapters.json"),
) -> None:
    """Time modules stepped by an adapter against the bare loop over them."""
    from .adapters import run_adapters

    run_adapters(repeats, output)


def deep(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    data: Annotated[
        Path,
        typer.Option(
            help=(
                "Folder that keeps simulated inputs and trained members; on a GPU with "
                "CIFAR-10's data_batch_*.bin."
            )
        ),
    ] = Path("runs/bench"),
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help=(
                "File. [default: results/bench/DEVICE-deep.json; with --only "
                "results/bench/DEVICE-NETWORK.json]"
            ),
        ),
    ] = None,
    draw: Annotated[
        bool,
        typer.Option("--draw", help="Measure nothing: draw the figure of the file given by -o."),
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(help="One network: gestures, digits (on a CPU) or resnet (on a GPU)."),
    ] = None,
) -> None:
    """Time convolutional networks, and on a GPU a ResNet-18 where CIFAR-10 is there, against other
    libraries.
    """
    from .deep import deep as run

    run(device, data, output, draw, shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]), only)


def events(
    distinct: Annotated[
        int, typer.Option(min=1, help="How many different inputs are simulated.")
    ] = 48,
    inputs: Annotated[int, typer.Option(min=1, help="How many inputs the data set has.")] = 1_584,
    rounds: Annotated[int, typer.Option(min=1, help="How often each time is measured.")] = 5,
    output: File = Path("results/bench/events.json"),
) -> None:
    """Compare memory and time of a data set as events with its dense array."""
    from .events import run_events

    for record in run_events(distinct, inputs, rounds, output):
        out.print(
            f"{record.work}, {record.unit}: dense {record.dense:,.4g}, events "
            f"{record.events:,.4g}, ratio {record.ratio:.1f}"
        )
    show_written(output)


def cluster(
    recordings: Annotated[
        int, typer.Option(min=1, help="How many recordings are decided on.")
    ] = 32_768,
    rounds: Repeats = 5,
    output: File = Path("results/cluster/scaling.json"),
) -> None:
    """Time decisions on one and on two actors of a local Ray cluster; needs agreestop[cluster]."""
    from .cluster import run_cluster

    found = run_cluster(recordings, rounds, output)["decisions_a_second"]
    out.print(
        f"decisions a second: one process {found['process']:,.0f}, one actor {found['one']:,.0f}, "
        f"two actors {found['two']:,.0f}"
    )
    show_written(output)


def serve(
    sessions: Annotated[int, typer.Option(min=1, help="Sessions at once.")] = 1000,
    rounds: Repeats = 3,
    previous: Previous = None,
    output: File = Path("results/serve/load.json"),
) -> None:
    """Load the server with many sessions at once, and compare every decision with the engine's;
    needs agreestop[serve].
    """
    from .serve import run_serve

    found = run_serve(sessions, rounds, output, previous)
    for name, rate in found["session_steps_a_second"].items():
        p50, p99 = found["push_to_decision_ms"][name]
        out.print(
            f"{name}: {rate:,.0f} session-steps a second, push to decision {p50:.1f} ms, p99 "
            f"{p99:.1f} ms"
        )
    out.print(f"{found['decisions']} decisions, {found['lost']} lost, {found['wrong']} wrong")
    if "previous" in found:
        for name in found["session_steps_a_second"]:
            ratio = (
                found["session_steps_a_second"][name]
                / found["previous"]["session_steps_a_second"][name]
            )
            out.print(f"{name}: {ratio:.2f} times the speed of {found['previous']['version']}")
    show_written(output)


def soak(
    seconds: Annotated[float, typer.Option(min=1, help="How long sessions come and go.")] = 600.0,
    output: File = Path("results/serve/soak.json"),
) -> None:
    """Let sessions come and go for ten minutes, and read the memory of the server meanwhile; needs
    agreestop[serve].
    """
    from .soak import run_soak

    found = run_soak(seconds, output)
    sizes = [reading["bytes"] / 1e6 for reading in found["readings"]]
    out.print(
        f"{found['decisions']:,} decisions, {found['errors']:,} messages refused, which were wrong "
        f"on purpose; memory {sizes[0]:.0f} MB at first, {sizes[-1]:.0f} MB at the end"
    )
    show_written(output)


def drift(
    runs: Annotated[int, typer.Option(min=1, help="Runs of each world.")] = 100,
    inputs: Annotated[int, typer.Option(min=1, help="Inputs of a run.")] = 2000,
    output: File = Path("results/drift.json"),
) -> None:
    """Count the alarms of a drift monitor over streams side by side, in the order of opening and in
    that of ending.
    """
    from .drift import run_drift

    for one in run_drift(runs, inputs, output)["results"]:
        opening, ending = (
            [one[f"{order}_{kind}"] for kind in ("inputs", "misses")]
            for order in ("opening", "ending")
        )
        out.print(
            f"{one['world']}: alarms about inputs and misses {opening}, in the order of ending "
            f"{ending}, of {one['runs']}"
        )
    show_written(output)


def answers(
    data: Annotated[
        Path,
        typer.Option(
            help=(
                "File of JSON Lines with answers, and optionally gold and tokens "
                "(docs/language-models.md)."
            )
        ),
    ],
    draws: Annotated[int, typer.Option(min=1, help="Random divisions of the questions.")] = 100,
    output: File = Path("results/answers.json"),
) -> None:
    """When to stop sampling a language model: ours against published rules, replayed on the same
    answers. Writes figures, and no data.
    """
    from .answers import FIGURES, run_answers

    with progress_bar("answers") as progress:
        record = run_answers(data, draws, output, progress)
    for one in record["records"]:
        if "number" not in one:
            known = ", ".join(f"{name} {one[name]['mean']:.4g}" for name in FIGURES if name in one)
            target = "" if one["target"] is None else f" at {one['target']}"
            out.print(f"{one['rule']}{target}: {known}")
    show_written(output)


def attacks(
    seconds: Annotated[float, typer.Option(min=0.1, help="How long each attack lasts.")] = 5.0,
    output: File = Path("results/serve/attacks.json"),
) -> None:
    """Attack the server with one hostile client of each kind, and time the pushes of an honest one;
    needs agreestop[serve].
    """
    from .attacks import run_attacks

    for one in run_attacks(seconds, output)["attacks"]:
        alone, attacked = one["p95_ms"]["alone"], one["p95_ms"]["attacked"]
        out.print(
            f"{one['attack']}: p95 of a push {alone:.1f} ms alone, {attacked:.1f} ms attacked, "
            f"{one['ratio']:.1f} times as long"
        )
    show_written(output)


def shapes(
    repeats: Annotated[int, typer.Option(min=2, help="Realisations of each stream.")] = 50,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for numbers.json.")] = Path(
        "results/shapes"
    ),
    page: Annotated[Path, typer.Option(help="Page whose table is written again.")] = Path(
        "docs/shapes.md"
    ),
) -> None:
    """Compare how early each shape of score or risk stops."""
    from .shapes import run_shapes

    run_shapes(repeats, output, page)


def checkpoints(
    repeats: Annotated[int, typer.Option(min=2, help="Realisations of each stream.")] = 50,
    scores: Annotated[
        Path, typer.Option(help="Folder with the stored scores of the paper's data sets.")
    ] = Path("results/scores"),
    output: File = Path("results/checkpoints.json"),
) -> None:
    """Compare few checkpoints with many, for raw scores and for fitted ones."""
    from .checkpoints import run_checkpoints

    run_checkpoints(repeats, scores, output)
    show_written(output)


def people(
    data: Annotated[Path, typer.Option(help="Folder with audiomnist.npz and hapt.npz.")],
    draws: Annotated[
        int,
        typer.Option(
            min=2, help="Random divisions of the people into training, calibration and test."
        ),
    ] = 50,
    output: File = Path("results/people.json"),
) -> None:
    """Compare what a rule promises for new people with what it keeps; about two minutes on one
    core.
    """
    from .people import run_people

    for one in run_people(data, output, draws):
        out.print(
            f"{one.data}, {one.way}: coverage {one.coverage:.3f}, {one.below:.0%} of people under "
            f"the target, latency {one.latency:.3f}"
        )
    show_written(output)


def early_classification(
    resamples: Annotated[
        int,
        typer.Option(
            min=2, help="Random divisions of each data set into training and test halves."
        ),
    ] = 10,
    data: Annotated[
        list[str] | None,
        typer.Option(help="A data set that aeon brings along; may be repeated. [default: eight]"),
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder.")] = Path(
        "results/early-classification"
    ),
    page: Annotated[Path, typer.Option(help="Page whose table is written again.")] = Path(
        "docs/time-series.md"
    ),
) -> None:
    """Compare early classifiers of aeon with ours."""
    from .early_classification import DATA_SETS, run_early_classification

    with printed_warnings(), progress_bar("early classification") as progress:
        written = run_early_classification(resamples, data or DATA_SETS, output, page, progress)
    show_written(*written)


Draws = Annotated[int, typer.Option(min=1, help="Random divisions of the people.")]


def wake_word(
    data: Annotated[Path, typer.Option(help="Folder with audiomnist.npz.")],
    draws: Draws = 50,
    output: File = Path("results/wake-word.json"),
) -> None:
    """Spot "seven" in recordings of new speakers, then name the digit after it; false alarms
    against what is promised.
    """
    from .wake_word import Spoken, run_wake_word

    with printed_warnings(), progress_bar("wake word") as progress:
        written = run_wake_word(Spoken.load(data), draws, output, progress)
    show_written(*written)


def transitions(
    data: Annotated[Path, typer.Option(help="Folder with hapt.npz.")],
    draws: Draws = 50,
    output: File = Path("results/transitions.json"),
) -> None:
    """Spot changes of posture in recordings of new people, then name the posture; false alarms
    against what is promised.
    """
    from .transitions import Worn, run_transitions

    with printed_warnings(), progress_bar("transitions") as progress:
        written = run_transitions(Worn.load(data), draws, output, progress)
    show_written(*written)


def watch(
    steps: Annotated[int, typer.Option(min=1, help="Steps of the stream.")] = 1_000_000,
    output: File = Path("results/watch.json"),
) -> None:
    """Memory and time of a step of `ensemble.watch` over a long stream."""
    from .watch import run_watch

    run_watch(steps, output)
    show_written(output)


def nir(
    networks: Annotated[Path, typer.Option(help="Folder with the .nir files of the NIR paper.")],
    n_mnist: Annotated[Path | None, typer.Option(help="Folder with N-MNIST recordings.")] = None,
    braille: Annotated[
        Path | None, typer.Option(help="File of Braille letters, x_test and y_test.")
    ] = None,
    output: File = Path("results/nir/numbers.json"),
    speed: Annotated[
        Path | None,
        typer.Option(
            help="File for the speed against other libraries, e.g. results/bench/nir.json."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only the speed, on few recordings.")
    ] = False,
) -> None:
    """Networks published in NIR: how good and how early they are on our engines, and how fast
    against other libraries.
    """
    from .nir import run_nir

    run_nir(networks, n_mnist, braille, output, speed, quick)


def c(
    inputs: Annotated[int, typer.Option(min=1, help="How many inputs are decided on.")] = 547,
    rounds: Repeats = 5,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of training.")] = 6,
    output: File = Path("results/bench/c.json"),
) -> None:
    """Time the exported C code beside the event-driven engine, and compare all decisions; needs
    make and a C compiler.
    """
    from .c import run_c

    run_c(inputs, rounds, epochs, output)


def live(
    hidden: Annotated[
        list[int] | None,
        typer.Option(
            help="Neurons of the hidden layer; give it several times.  [default: 256, 1000]"
        ),
    ] = None,
    inputs: Annotated[int, typer.Option(min=1, help="Inputs in each round.")] = 40,
    rounds: Repeats = 15,
    previous: Previous = None,
    python: Annotated[
        Path | None,
        typer.Option(
            help="An interpreter that has the other libraries, as .venv-peers/bin/python."
        ),
    ] = None,
    output: File = Path("results/bench/live.json"),
) -> None:
    """Time live inputs: a step, opening, deciding and whole inputs, beside the bare network, an
    older version and the peers' own loops.
    """
    from .live import LiveSettings, run_live

    settings = LiveSettings(
        tuple(hidden or (256, 1000)), inputs, rounds, previous=previous, python=python
    )
    records, title, missing = run_live(settings, output)
    for part in _parts(records):
        out.print(_table(part))
    if missing:
        say(missing)
    from .drawing import draw_live

    for path in [output, *draw_live(records, output.parent, title, output.stem)]:
        show_written(path)


def check(
    rounds: Repeats = 15,
    store: Annotated[
        bool, typer.Option("--store", help="Write the ratios that later runs are compared with.")
    ] = False,
    add: Annotated[
        bool,
        typer.Option("--add", help="Write ratios of workloads that have none; the others stay."),
    ] = False,
    previous: Previous = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="File.  [default: results/bench/check.json; versions.json with --previous]",
        ),
    ] = None,
) -> None:
    """Fail where a key workload is slower than 0.8 of the stored ratio to a reference workload, or
    with --previous than 0.8 of an older version.
    """
    from . import check as gate

    if previous is not None:
        output = output or Path("results/bench/versions.json")
        found = gate.compare(previous, output, rounds)
        for name, times in found.items():
            say(f"{name}: {times['ratio']:.2f} times the speed of the older version")
        show_written(output)
        if min(times["ratio"] for times in found.values()) < gate.LEAST:
            raise typer.Exit(1)
        return
    output = output or Path("results/bench/check.json")
    if store or add:
        gate.store(gate.workloads(), output, rounds, gate.stored_ratios(output) if add else None)
        show_written(output)
        return
    stored = gate.stored_ratios(output)
    if gate.check(gate.workloads(), stored, rounds, say):
        raise typer.Exit(1)


def numbers(
    data: Annotated[Path, typer.Option("--data", help="Folder that holds audiomnist.npz.")],
    draws: Annotated[int, typer.Option(min=1, help="Divisions of the rows.")] = 50,
    output: File = Path("results/numbers.json"),
) -> None:
    """Predict how long a spoken digit lasts from its first frames: intervals that stop early,
    against Bonferroni and a fixed time.
    """
    from .numbers import run_numbers

    for one in run_numbers(data, output, draws):
        figures = f"coverage {one.coverage:.3f}, width {one.width:.1f}, heard {one.time:.1f} frames"
        out.print(f"{one.method}, at most {one.max_width:g} frames wide: {figures}")
    show_written(output)


def tree(
    scores: Annotated[Path, typer.Option(help="Folder of stored scores.")] = Path("results/scores"),
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Folder that holds hapt.npz; without it, CIFAR-10 alone."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Divisions of the rows.")] = 50,
    output: File = Path("results/tree.json"),
) -> None:
    """The time of the first answer at each depth of a tree of classes: CIFAR-10 from stored scores,
    and HAPT.
    """
    from .tree import run_tree

    for one in run_tree(scores, data, output, repeats):
        out.print(
            f"{one.data}, {one.target:g}, {one.asked}: coverage {one.coverage:.3f}, time "
            f"{one.latency:.3f} of T"
        )
    show_written(output)


def draw(
    results: Annotated[
        Path, typer.Argument(help="Folder of stored results.", show_default=True)
    ] = Path("results"),
) -> None:
    """Draw the figures of stored results again. Measures nothing, and needs no data.

    Left out are the figures of spotting, whose fronts need the recordings.
    """
    from .redraw import redraw

    show_written(*redraw(results))


STUDIES: dict[str, tuple[Callable[..., None], str]] = {
    "decide": (decide, "The decision layer against crepes and numpy.sort."),
    "draw": (draw, "The figures of stored results once more, without measuring."),
    "check": (check, "Whether key workloads are as fast as they were."),
    "live": (live, "Live inputs: a step, opening, deciding, whole inputs."),
    "adapters": (adapters, "An adapter against the bare loop over modules."),
    "deep": (deep, "Deep networks against other libraries."),
    "events": (events, "Events against dense arrays: memory and time."),
    "cluster": (cluster, "One and two actors of a local Ray cluster."),
    "serve": (serve, "Many sessions of the server at once."),
    "soak": (soak, "The memory of the server over ten minutes."),
    "answers": (answers, "When to stop sampling a language model, against published rules."),
    "drift": (drift, "False alarms of a drift monitor over streams side by side."),
    "attacks": (attacks, "Hostile clients of the server, beside an honest one."),
    "shapes": (shapes, "How early each shape of score or risk stops."),
    "checkpoints": (checkpoints, "Few checkpoints or many, with raw scores and with fitted ones."),
    "people": (people, "Promises for new people, kept and broken, on real speakers and wearers."),
    "early-classification": (early_classification, "Early classifiers of aeon, and ours."),
    "numbers": (numbers, "The length of a spoken digit, with intervals that stop early."),
    "tree": (tree, "The first answer of each depth of a tree of classes."),
    "wake-word": (wake_word, "Spotting a word in recordings of new speakers."),
    "transitions": (transitions, "Spotting changes of posture of new people."),
    "watch": (watch, "A stream of a million steps: memory and time of a step."),
    "nir": (nir, "Networks published in NIR: accuracy and speed."),
    "c": (c, "The exported C code beside the event-driven engine."),
}
app = new_app(getdoc(bench) or "", STUDIES)
app.callback(invoke_without_command=True, no_args_is_help=True, subcommand_metavar="[COMMAND]")(
    bench
)


def _parts(records: Sequence[BenchRecord]) -> list[list[BenchRecord]]:
    """The records of each table. Records with the same inputs and batch are in one table, if their
    workloads have the same peers.
    """
    groups: dict[tuple[object, ...], list[BenchRecord]] = {}
    for record in records:
        work = "decide" if record.work in ("decide-full", "decide-early") else record.work
        groups.setdefault((work, record.inputs, record.batch), []).append(record)
    return list(groups.values())


def _table(records: Sequence[BenchRecord]) -> Table:
    """Medians and spreads, at most 80 columns wide; ours with their ratio to the fastest peer."""
    first = records[0]
    batch = "" if first.batch in (None, 1) else f", batch {first.batch}"
    heading = (
        f"{' and '.join(dict.fromkeys(record.work for record in records))}, "
        f"{first.inputs}{batch}: {first.unit}"
    )
    table = Table(
        title=heading,
        title_justify="left",
        title_style="bold",
        width=80,
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("system", ratio=1)
    for name in ("median", "10–90 %", "× fastest peer"):
        table.add_column(name, justify="right", no_wrap=True)
    for record in records:
        ratio = (
            ""
            if record.times_fastest_peer is None
            else f"{record.times_fastest_peer:.3g} {record.fastest_peer}"
        )
        name = (
            f"{record.size:g}: {record.form}"
            if record.size is not None
            else f"{record.system}, {record.form}"
        )
        spread = f"{_short(record.low)}–{_short(record.high)}"
        table.add_row(
            name,
            _short(record.median),
            spread,
            ratio,
            style="bold" if record.system == OURS else None,
        )
    for work in dict.fromkeys(record.work for record in records):
        wanted = next(
            (record.wanted for record in records if record.work == work and record.wanted), None
        )
        if wanted is not None:
            table.caption = (
                f"{table.caption}; {work}: {wanted}"
                if table.caption
                else f"Wanted: {work}: {wanted}"
            )
    return table


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _draw(records: Sequence[BenchRecord], header: dict[str, Any], output: Path) -> list[Path]:
    """Draw the figure beside the file. Without matplotlib, say so."""
    try:
        from .drawing import draw_benchmark, title_of
    except ImportError as error:
        say(f"No figure: it needs matplotlib ({error}): pip install '.[figures]'.")
        return []
    return draw_benchmark(records, output.parent, title_of(header), output.stem)
