"""`agreestop data list`, `agreestop data check` and `agreestop data simulate`: the known data
sets and their files.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from agreestop.common import InputError, ProgressCallback, make_folder
from agreestop.events.data import PARTS, DataSet, EventSplits
from agreestop.events.datasets.catalogue import DATA_SETS, check, find, load
from agreestop.events.files import save_events

from .console import progress_bar, show, show_written

NOT_WHOLE = 1
SIMULATING = 0.9  # share of the time that the simulation takes; the rest is writing files
SIMULATED = tuple(entry.name for entry in DATA_SETS if entry.simulated)
Name = Annotated[
    str, typer.Argument(help=f"{', '.join(entry.name for entry in DATA_SETS)}.", show_default=False)
]


def list_data_sets() -> None:
    """List the data sets: what each one is, its size, and where to get it."""
    table = Table(show_lines=True)
    for column in ("name", "what it is", "input\ntraining + tuning + pool"):
        table.add_column(column)
    for entry in DATA_SETS:
        name = f"{entry.name}\n(simulated)" if entry.simulated else entry.name
        sizes = " + ".join(f"{size:,}" for size in entry.sizes)
        table.add_row(name, entry.what, f"{entry.inputs}\n{entry.classes} classes\n{sizes}")
    show(table, "Where to get them, and the size of the download where it is published:")
    for entry in DATA_SETS:
        source = entry.address or f"agreestop data simulate {entry.name}"
        show(
            f"  {entry.name:<14}{source}{f' ({entry.download})' if entry.download else ''}",
            unbroken=True,
        )
    show('Your own data: [data] name = "files" in a configuration; see `agreestop run --help`.')


def check_data_set(
    name: Name,
    folder: Annotated[
        Path | None,
        typer.Argument(help="Folder with its files (mnist-dvs-sim: of MNIST).", show_default=False),
    ] = None,
) -> None:
    """Check whether the files of a data set are there and whole; the exit code is 1
    where they are not.
    """
    entry, result = find(name), check(name, folder)
    show(*(f"Found: {sentence}" for sentence in result.found), unbroken=True)
    show(*(f"Problem: {sentence}" for sentence in result.problems), unbroken=True)
    if result.whole:
        show(f"{name} is whole.")
        return
    if result.usable:
        show(f"{name} is a partial copy, which can be used as it is.")
    else:
        show(f"{name} cannot be used. It needs {entry.files}.")
        show(*(f"The md5 of {archive} is {md5}." for archive, md5 in entry.archives.items()))
        if entry.address and not entry.archives:
            show("No checksum is published.")
    raise typer.Exit(NOT_WHOLE)


def simulate_data_set(
    name: Annotated[str, typer.Argument(help=f"{', '.join(SIMULATED)}.", show_default=False)],
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            help="Folder for training.npz, tuning.npz and pool.npz.",
            show_default=False,
        ),
    ],
    mnist: Annotated[
        Path | None, typer.Option(help="For mnist-dvs-sim: the folder with MNIST's four files.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Chooses the parts, the motions and the noise.")] = 0,
    small: Annotated[
        bool, typer.Option("--small", help="Make only a tenth of the inputs.")
    ] = False,
) -> None:
    """Simulate a data set and write its three parts as files of events."""
    entry = find(name)
    if not entry.simulated:
        raise InputError(
            f"{name} is recorded, not simulated: choose one of {', '.join(SIMULATED)}."
        )
    if mnist is not None and name != "mnist-dvs-sim":
        raise InputError(f"--mnist is given, but {name} does not need MNIST: leave it out.")
    if mnist is None and name == "mnist-dvs-sim":
        raise InputError(
            f"--mnist is missing: give the folder with {entry.files}; get them from "
            f"{entry.address}."
        )
    make_folder(output)
    paths = [output / f"{part}.npz" for part in PARTS]
    with progress_bar(name) as progress:
        progress(f"simulating {name}", 0.0)
        data = _simulate(
            entry, mnist, seed, small, lambda what, share: progress(what, SIMULATING * share)
        )
        for number, (path, part) in enumerate(zip(paths, data, strict=True)):
            progress(f"writing {path.name}", SIMULATING + (1 - SIMULATING) * number / len(paths))
            save_events(path, part)
    for path, part in zip(paths, data, strict=True):
        show_written(
            f"{path}: {len(part):,} simulated inputs of {' × '.join(map(str, part.shape))}, T = "
            f"{part.steps}"
        )


def _simulate(
    entry: DataSet, mnist: Path | None, seed: int, small: bool, progress: ProgressCallback
) -> EventSplits:
    sizes = tuple(size // 10 if small else size for size in entry.sizes)
    if entry.name == "digits":
        data = load(entry.name, seed=seed, progress=progress)
        return EventSplits(
            *(part.rows(slice(size)) for part, size in zip(data, sizes, strict=True))
        )
    return load(entry.name, mnist, seed, sizes=sizes, cache=False, progress=progress)
