"""The form of a data set, and what the loaders and checks of several data sets share."""

import hashlib
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from agreestop.common import InputError, Integers, ProgressCallback, no_progress

from ..data import LEAST, PARTS, EventData, EventSplits

FOUND, PARTIAL, DAMAGED = "found", "partial", "damaged"
Findings = Iterator[tuple[str, str]]  # one of the three words, and a sentence
NO_EFFECT = ("workers", "progress")  # options that leave the result as it is
DIGIT_NAMES = tuple("0123456789")

Done = Callable[[int], None]
Made: TypeAlias = tuple[NDArray[Any], Integers]  # inputs and labels
Item = TypeVar("Item", bound=Sequence[object] | Integers)

with Path(__file__).with_name("records.toml").open("rb") as _stream:
    _RECORDS: dict[str, dict[str, Any]] = tomllib.load(_stream)


@dataclass(frozen=True)
class DataSet:
    """A data set: what is known about it (from records.toml), and how it is loaded and checked.

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
    sources      patterns of the files in the folder that the frames are made from; the files are part of the key of the cache
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
    def recorded(cls, name: str, **functions: Any) -> Self:
        """The data set with the record of that name."""
        record = _RECORDS[name]
        lists = {field: tuple(value) for field, value in record.items() if isinstance(value, list)}
        return cls(name=name, **record | lists, **functions)

    @property
    def needs_files(self) -> bool:
        return self.address is not None

    def options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All options of `load`: those given, and the defaults of the others."""
        known = {option: value.default for option, value in list(signature(self.load).parameters.items())[self.needs_files :]}
        for option in given:
            if option not in known:
                names = ", ".join(name for name in known if name != "progress")
                raise InputError(f"{self.name} has no option {option!r}: it has {names}.")
        return known | dict(given)

    def folder(self, given: Path | None) -> Path:
        """The folder with the files, which must exist."""
        if given is None or not given.exists():
            what = "no folder is given" if given is None else f"there is no {given}"
            raise InputError(f"{what}: give the folder with the files of {self.name}, which come from {self.address}.")
        return given

    def findings(self, given: Path | None) -> Findings:
        """What is found, missing or damaged."""
        try:
            folder = self.folder(given) if self.needs_files else Path()
            yield from self._check_archives(folder)
            yield from self.check(folder)
        except InputError as error:
            yield DAMAGED, str(error)

    def _check_archives(self, folder: Path) -> Findings:
        for name, right in self.archives.items():
            if (folder / name).is_file():
                with (folder / name).open("rb") as stream:
                    md5 = hashlib.file_digest(stream, "md5").hexdigest()
                if md5 == right:
                    yield FOUND, f"{name} has the right checksum, md5 {md5}."
                else:
                    yield DAMAGED, f"{name} has the md5 {md5}, not {right}: get it again from {self.address}."


def address_of(name: str) -> str:
    """The official home of a data set."""
    return str(_RECORDS[name]["address"])


def compare_amount(count: int, complete: int, sentence: str, address: str) -> tuple[str, str]:
    """A finding: all `complete` inputs are there, or enough for three parts, or too few; `sentence` says how many."""
    if count == complete:
        return FOUND, f"{sentence}."
    return PARTIAL if count >= LEAST else DAMAGED, f"{sentence}: get the others from {address}."


def check_each(paths: Iterable[Path], is_whole: Callable[[Path], bool], address: str) -> Findings:
    """A finding if any file is damaged."""
    wrong = [path for path in paths if not is_whole(path)]
    if wrong:
        yield DAMAGED, f"{len(wrong):,} files are damaged, the first of them {wrong[0]}: get them again from {address}."


def begins_with(path: Path, start: bytes) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(start)) == start


def find_folder(folder: Path, inner: str, holds: Callable[[Path], bool], missing: str) -> Path:
    """The folder itself, or the one that the archive makes in it, whichever holds the files; `missing` says what to do if none does."""
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
) -> EventSplits:
    """Training, tuning and pool of the data set of that name, made one after the other.

    selections  the rows, files or numbers of each part
    make        makes the inputs and labels of a selection; it may call done(i) when i entries of the selection are finished
    note        what the description of the data set says in addition
    """
    record, report = _RECORDS[name], progress or no_progress
    total = max(1, sum(len(selection) for selection in selections))
    finished, parts = 0, []
    for part, selection in zip(PARTS, selections, strict=True):

        def done(count: int, what: str = f"{name}: {part}", before: int = finished) -> None:
            report(what, (before + count) / total)

        done(0)
        inputs, labels = make(selection, done)
        description = "; ".join(filter(None, (record["description"], note)))
        parts.append(EventData(f"{name}, {part}", record["simulated"], inputs, labels, classes, description, held))
        finished += len(selection)
    report(name, 1.0)
    return EventSplits(*parts)


def stack_rows(rows: Iterable[NDArray[Any]], count: int, done: Done) -> NDArray[Any]:
    """One array of `count` rows, which are stored as they are made."""
    stacked = np.empty(0)
    for number, row in enumerate(rows):
        if not number:
            stacked = np.empty((count, *row.shape), row.dtype)
        stacked[number] = row
        done(number + 1)
    return stacked
