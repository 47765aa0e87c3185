"""Data sets, recorded or simulated: labelled event streams, their division into training, tuning
and pool, and what their loaders share.

Rows are drawn by a permutation that depends on the seed and not on the labels. So the inputs of a
pool are exchangeable, as the guarantee of a calibrated rule assumes, and in random order: any first
rows of it are as good for calibration as any others.
"""

import hashlib
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import Any, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from agreestop.common import (
    InputError,
    Integers,
    ProgressCallback,
    as_labels,
    no_progress,
)
from agreestop.common.arrays import are_sizes

from .container import Events, Inputs, RowIndex, as_inputs, density_of

NUMBERS = (np.bool_, np.uint8, np.float32)
PARTS = ("training", "tuning", "pool")
MOST_CLASSES = 2**16  # without names
LEAST = 10  # inputs that make three parts
FOUND, PARTIAL, DAMAGED = "found", "partial", "damaged"
Findings: TypeAlias = Iterator[tuple[str, str]]  # one of the three words, and a sentence
NO_EFFECT = ("workers", "progress")  # options that leave the result as it is
DIGIT_NAMES = tuple("0123456789")

Sizes: TypeAlias = tuple[int, int, int]
Done: TypeAlias = Callable[[int], None]
Made: TypeAlias = tuple[Inputs, Integers]  # inputs and labels
Item = TypeVar("Item", bound=Sequence[object] | Integers)

with Path(__file__).with_suffix(".toml").open("rb") as _stream:
    _RECORDS: dict[str, dict[str, Any]] = tomllib.load(_stream)


@dataclass(frozen=True, eq=False)
class EventData:
    """Inputs of T steps, each with its label: one part of a data set.

    name         the name of the data set in records and figures
    simulated    True where a simulator made the events, False where a sensor recorded them
    inputs       (n, T, ...), `Events`, or an array where most cells are not zero, as in images:
                 bool where a cell fires or not, numbers where a step counts events or holds
                 intensities. An event camera has (n, T, 2, H, W), ON before OFF; a sensor of
                 channels has (n, T, channels)
    labels       (n,) int64, from 0 to C-1
    classes      the names of the C classes
    description  where inputs and labels come from, in a sentence
    held         for images, which have one step in `inputs`: for how many steps each is shown
    """

    name: str
    simulated: bool
    inputs: Any  # an array or `Events`: most callers know which
    labels: Integers
    classes: tuple[str, ...]
    description: str = ""
    held: int | None = None

    def __post_init__(self) -> None:
        inputs = as_inputs(self.inputs)
        if inputs.dtype not in NUMBERS:
            raise InputError(
                f"inputs has dtype {inputs.dtype}: booleans, uint8 or float32 are needed."
            )
        if self.held is not None and (inputs.shape[1] != 1 or self.held < 1):
            raise InputError(
                f"inputs of {inputs.shape[1]} steps are held for {self.held}: give an image one "
                "step, held for at least one."
            )
        object.__setattr__(self, "inputs", inputs)
        labels = as_labels(self.labels, len(inputs), len(self.classes), self.classes)
        object.__setattr__(self, "labels", labels)

    def __repr__(self) -> str:
        shape, made = self.inputs.shape, "simulated" if self.simulated else "recorded"
        return (
            f"EventData({self.name!r}, {shape[0]} inputs {tuple(shape[1:])}, "
            f"{len(self.classes)} classes, {made})"
        )

    def __len__(self) -> int:
        return len(self.inputs)

    def rows(self, index: RowIndex) -> Self:
        """Some of the inputs: a slice, integers or a mask."""
        inputs = self.inputs.rows(index) if isinstance(self.inputs, Events) else self.inputs[index]
        return replace(self, inputs=inputs, labels=self.labels[index])

    @property
    def density(self) -> float:
        """The share of cells that are not zero, over all inputs and steps."""
        return density_of(self.inputs)

    @property
    def steps(self) -> int:
        """T, the number of steps of each input."""
        return self.held or int(self.inputs.shape[1])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one step: (2, H, W) of an event camera."""
        return tuple(self.inputs.shape[2:])


@dataclass(frozen=True, eq=False)
class EventSplits:
    """The three parts of a data set: for training the members, for choosing and fitting scores,
    and the pool for calibration and test.
    """

    training: EventData
    tuning: EventData
    pool: EventData

    def __iter__(self) -> Iterator[EventData]:
        return iter((self.training, self.tuning, self.pool))


@dataclass(frozen=True)
class DataSet:
    """A data set: what is known about it (from data.toml), and how it is loaded and checked.

    name         the name for `load` and the command line
    simulated    True where a simulator makes the events
    what         what it is, in a sentence
    description  where inputs and labels come from: the description of the loaded data
    inputs       the shape of an input, and T
    classes      the number of classes
    sizes        sizes of training, tuning and pool, as `load` makes them from all files
    files        what must lie in the folder
    load         makes the three parts; its first argument is the folder, where files are needed
    check        yields what it finds about the files in the folder
    sources      patterns of the files in the folder that the frames are made from; the files are
                 part of the key of the cache
    cached       whether making the frames takes long enough to keep them in the cache
    address      its official home; None where no files are needed
    download     the size of the download; None where it is not published, or there is none
    archives     the MD5 of each official archive whose checksum is known
    """

    name: str
    simulated: bool
    what: str
    description: str
    inputs: str
    classes: int
    sizes: tuple[int, int, int]
    files: str
    load: Callable[..., EventSplits]
    check: Callable[[Path], Findings]
    sources: tuple[str, ...] = ()
    cached: bool = True
    address: str | None = None
    download: str | None = None
    archives: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def recorded(cls, name: str, record: Mapping[str, Any] | None = None, **functions: Any) -> Self:
        """The data set with this record, or with the one of that name in data.toml."""
        record = _RECORDS[name] if record is None else record
        lists = {field: tuple(value) for field, value in record.items() if isinstance(value, list)}
        return cls(name=name, **{**record, **lists}, **functions)

    @property
    def needs_files(self) -> bool:
        return self.address is not None

    def options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All options of `load`: those given, and the defaults of the others."""
        known = {
            option: value.default
            for option, value in list(signature(self.load).parameters.items())[self.needs_files :]
        }
        for option in given:
            if option not in known:
                names = ", ".join(name for name in known if name != "progress")
                raise InputError(f"{self.name} has no option {option!r}: it has {names}.")
        return known | dict(given)

    def folder(self, given: Path | None) -> Path:
        """The folder with the files, which must exist."""
        if given is None or not given.exists():
            what = "no folder is given" if given is None else f"there is no {given}"
            raise InputError(
                f"{what}: give the folder with the files of {self.name}, which come from "
                f"{self.address}."
            )
        return given

    def findings(self, given: Path | None) -> Findings:
        """What is found, missing or damaged."""
        try:
            folder = self.folder(given) if self.needs_files else Path()
            for name, right in self.archives.items():
                if (folder / name).is_file():
                    with (folder / name).open("rb") as stream:
                        md5 = hashlib.file_digest(stream, "md5").hexdigest()
                    wrong = (
                        f"{name} has the md5 {md5}, not {right}: get it again from {self.address}."
                    )
                    yield (
                        (FOUND, f"{name} has the right checksum, md5 {md5}.")
                        if md5 == right
                        else (DAMAGED, wrong)
                    )
            yield from self.check(folder)
        except InputError as error:
            yield DAMAGED, str(error)


def class_numbers(labels: Integers) -> tuple[str, ...]:
    """The numbers of the classes, from 0 to the largest label, as their names."""
    count = int(labels.max(initial=-1)) + 1
    if count > MOST_CLASSES:
        raise InputError(
            f"labels holds {count - 1}: without names of the classes, give labels below "
            f"{MOST_CLASSES:,}."
        )
    return tuple(str(label) for label in range(count))


def as_sizes(sizes: Sequence[int]) -> Sizes:
    """How many inputs training, tuning and the pool have: three integers of at least 1."""
    if not are_sizes(sizes, 3):
        raise InputError(
            f"sizes is {sizes!r}: give how many inputs training, tuning and the pool have, for "
            "example (700, 100, 200)."
        )
    return int(sizes[0]), int(sizes[1]), int(sizes[2])


def as_sizes_of(count: int, sizes: Sequence[int] | None, shares: tuple[float, float]) -> Sizes:
    """The sizes that are given.

    By default `count` inputs are divided by the shares of training and tuning, and the pool
    gets the rest.
    """
    if sizes is not None:
        return as_sizes(sizes)
    if count < LEAST:
        raise InputError(
            f"there are {count} inputs: at least {LEAST} are needed for training, tuning and a "
            "pool."
        )
    training, tuning = (round(count * share) for share in shares)
    return training, tuning, count - training - tuning


def draw(count: int, sizes: Sequence[int], rng: np.random.Generator, what: str) -> list[Integers]:
    """Parts of these sizes, which share no row, of `count` rows in random order; `what` names
    the rows in the error message.
    """
    if sum(sizes) > count:
        raise InputError(
            f"{sum(sizes):,} {what} are asked for, but there are {count:,}: ask for fewer."
        )
    return np.split(rng.permutation(count), np.cumsum(sizes))[: len(sizes)]


def divide(
    known: int,
    count: int,
    sizes: Sizes,
    rng: np.random.Generator,
    whats: tuple[str, str],
    first: int = 2,
) -> list[Integers]:
    """Rows of the three parts: the `first` parts are drawn from the `known` rows, the others from
    the rows after them.

    If no rows are known, all parts are drawn from all `count` rows. `whats` names both kinds of
    rows in the error message.
    """
    if not known:
        return draw(count, sizes, rng, whats[1])
    rows = draw(known, sizes[:first], rng, whats[0])
    return rows + [known + some for some in draw(count - known, sizes[first:], rng, whats[1])]


def address_of(name: str) -> str:
    """The official home of a data set."""
    return str(_RECORDS[name]["address"])


def as_finding(count: int, complete: int, sentence: str, address: str) -> tuple[str, str]:
    """A finding: all `complete` inputs are there, or enough for three parts, or too few;
    `sentence` says how many.
    """
    if count == complete:
        return FOUND, f"{sentence}."
    return PARTIAL if count >= LEAST else DAMAGED, f"{sentence}: get the others from {address}."


def check_each(paths: Iterable[Path], is_whole: Callable[[Path], bool], address: str) -> Findings:
    """A finding if any file is damaged."""
    wrong = [path for path in paths if not is_whole(path)]
    if wrong:
        yield (
            DAMAGED,
            (
                f"{len(wrong):,} files are damaged, the first of them {wrong[0]}: get them again "
                f"from {address}."
            ),
        )


def begins_with(path: Path, start: bytes) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(start)) == start


def find_folder(folder: Path, inner: str, holds: Callable[[Path], bool], missing: str) -> Path:
    """The folder itself, or the one that the archive makes in it, whichever holds the files;
    `missing` says what to do if none does.
    """
    for path in (folder, folder / inner):
        if holds(path):
            return path
    raise InputError(missing)


def make_splits(
    name: str,
    selections: Sequence[Item],
    make: Callable[[Item, Done], Made],
    classes: tuple[str, ...] = DIGIT_NAMES,
    progress: ProgressCallback | None = None,
    note: str = "",
    held: int | None = None,
    record: Mapping[str, Any] | None = None,
) -> EventSplits:
    """Training, tuning and pool of the data set of that name, made one after the other.

    selections  the rows, files or numbers of each part
    make        makes the inputs and labels of a selection; it may call done(i) when i entries of
                the selection are finished
    note        what the description of the data set says in addition
    record      what is known about a data set that data.toml does not name
    """
    record, report = _RECORDS[name] if record is None else record, progress or no_progress
    total = max(1, sum(len(selection) for selection in selections))
    finished, parts = 0, []
    for part, selection in zip(PARTS, selections, strict=True):

        def done(count: int, what: str = f"{name}: {part}", before: int = finished) -> None:
            report(what, (before + count) / total)

        done(0)
        inputs, labels = make(selection, done)
        description = "; ".join(filter(None, (record["description"], note)))
        parts.append(
            EventData(
                f"{name}, {part}", record["simulated"], inputs, labels, classes, description, held
            )
        )
        finished += len(selection)
    report(name, 1.0)
    return EventSplits(*parts)


def bin_files(
    name: str,
    files: Sequence[Path],
    labels: Integers,
    rows: Sequence[Integers],
    bin_file: Callable[[Path], NDArray[Any]],
    **options: Any,
) -> EventSplits:
    """Training, tuning and pool of recordings, whose rows are those of `files` and `labels`; the
    options are those of `make_splits`.
    """

    def make(some: Integers, done: Done) -> Made:
        return join_rows(
            (Events.from_dense(bin_file(files[row])[None]) for row in some), done
        ), labels[some]

    return make_splits(name, rows, make, **options)


def join_rows(rows: Iterable[Events], done: Done) -> Events:
    """The rows of all parts, which are made one after the other.

    No more than one of them is ever dense.
    """
    parts, count = [], 0
    for row in rows:
        parts.append(row)
        count += len(row)
        done(count)
    return Events.concatenate(parts)
