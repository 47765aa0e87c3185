"""The data sets by name: how each is loaded, and whether its files are whole.

`data.DataSet` says what is known about each.

Binned and simulated frames are kept on disk, so that recordings are read once: one file for each
data set and way of reading it. A file is an `.npz` with a digest (`agreestop.common.npz`): the
key, and for each part the arrays of a file of events (`agreestop.events.files`), named
<part>.<array>. It is memory-mapped, so inputs are read from disk when they are used. Files of
earlier versions are not used.

The key is a fingerprint of the settings and of the names, sizes and times of the recordings: other
settings or other files make another key. Files appear whole or not at all, so several runs may
share a cache: the worst that can happen is that two make the same frames. A file that is cut off,
changed or of another kind causes a warning and is made again. Nothing is unpickled or executed.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from agreestop.common import Arrays, InputError, ProgressCallback, make_folder, read_npz, write_npz

from ..data import DAMAGED, FOUND, NO_EFFECT, PARTS, DataSet, EventData, EventSplits
from ..files import as_stored, part_arrays
from . import braille, cifar10, dvs_gesture, mnist_dvs, moving_digits, n_mnist

FORMAT = "agreestop frames 4"
_RECORDED = (
    mnist_dvs.DATA_SET,
    dvs_gesture.DATA_SET,
    cifar10.DATA_SET,
    n_mnist.DATA_SET,
    braille.DATA_SET,
)
DATA_SETS = (*_RECORDED, moving_digits.DIGITS_SET, moving_digits.MNIST_SET)
NAMES = tuple(entry.name for entry in DATA_SETS)


class CacheWarning(UserWarning):
    """A file of the cache could not be used or written; the message says which file, and what
    was done instead.
    """


@dataclass(frozen=True)
class Check:
    """Whether a data set's files are there and whole.

    Attributes
    ----------
    name
        The data set.
    found
        What is there, in sentences.
    problems
        What is missing or damaged, in sentences; empty where everything is whole.
    usable
        Whether `load_data_set` takes the files as they are: all of them, or a partial copy.

    Examples
    --------
    >>> import tempfile, agreestop as ag
    >>> check = ag.events.check_data_set("n-mnist", tempfile.mkdtemp())
    >>> check.name, check.usable, check.whole
    ('n-mnist', False, False)
    """

    name: str
    found: tuple[str, ...]
    problems: tuple[str, ...]
    usable: bool

    @property
    def whole(self) -> bool:
        return not self.problems


def find(name: str | DataSet) -> DataSet:
    """The data set of that name; a data set of one's own is itself."""
    if isinstance(name, DataSet):
        return name
    if name == "gesture-sim":
        raise InputError(
            "gesture-sim is part of the reproduction of the paper, which is not installed with the "
            "package: clone the repository and call `simulate_gestures` of paper.stand_ins."
        )
    for entry in DATA_SETS:
        if entry.name == name:
            return entry
    raise InputError(
        f"there is no data set {name!r}: choose one of {', '.join(NAMES)}; own data enter through "
        "ag.events.load_files."
    )


def load(
    name: str | DataSet,
    folder: str | PathLike[str] | None = None,
    seed: int = 0,
    cache: bool = True,
    progress: ProgressCallback | None = None,
    **settings: Any,
) -> EventSplits:
    """The three parts of a data set, each with its inputs in random order.

    name      one of `NAMES`, or a data set of one's own
    folder    the folder with its files, in the official layout; for mnist-dvs-sim those of MNIST;
              digits needs none
    seed      chooses the parts, and everything that is simulated
    cache     whether binned and simulated frames are kept for the next time, in `cache_folder()`
    progress  called with what is being made and the share that is finished
    settings  further options of the data set's own function, such as sizes=(700, 100, 200) for
              training, tuning and pool
    """
    entry = find(name)
    options = entry.options({"seed": seed, **settings})
    if "progress" in options:
        options["progress"] = progress
    if not entry.needs_files and folder is not None:
        raise InputError(f"a folder is given, {folder}, but {entry.name} needs none: leave it out.")
    root = entry.folder(None if folder is None else Path(folder)) if entry.needs_files else Path()
    make = partial(entry.load, *((root,) if entry.needs_files else ()), **options)
    if not cache or not entry.cached:
        return make()
    known = {option: value for option, value in options.items() if option not in NO_EFFECT}
    sources = (path for pattern in entry.sources for path in root.glob(pattern))
    return cached(None, fingerprint({"data set": entry.name, **known}, sources, root), make)


def check(name: str, folder: str | PathLike[str] | None = None) -> Check:
    """Whether the files of a data set are there and whole: their number, their length, and the
    checksums of the archives in the folder.
    """
    findings = list(find(name).findings(None if folder is None else Path(folder)))
    found = tuple(sentence for kind, sentence in findings if kind == FOUND)
    problems = tuple(sentence for kind, sentence in findings if kind != FOUND)
    return Check(name, found, problems, usable=all(kind != DAMAGED for kind, _ in findings))


def cached(
    folder: str | PathLike[str] | None, key: str, make: Callable[[], EventSplits]
) -> EventSplits:
    """What `make` gives: from the cache in `folder` (None: `cache_folder()`) if it was made before,
    else made and kept there.

    The cache only saves time: where it cannot be read or written, a warning says so and the
    frames are made.
    """
    path = (cache_folder() if folder is None else Path(folder)) / f"{key}.npz"
    if path.exists():
        try:
            return _read(path, key)
        except InputError as error:
            warnings.warn(f"frames are made again, because {error}", CacheWarning, stacklevel=2)
    data = make()
    try:
        make_folder(path.parent)
        _write(path, key, data)
    except InputError as error:
        sentence = (
            "the frames are not kept for the next time (AGREESTOP_CACHE may name another folder): "
            f"{error}"
        )
        warnings.warn(sentence, CacheWarning, stacklevel=2)
    return data


def cache_folder() -> Path:
    """The folder of the cache: AGREESTOP_CACHE, else agreestop in XDG_CACHE_HOME,
    else in ~/.cache.
    """
    if chosen := os.environ.get("AGREESTOP_CACHE"):
        return Path(chosen)
    shared = os.environ.get("XDG_CACHE_HOME", "")
    return (
        Path(shared) if Path(shared).is_absolute() else Path("~/.cache").expanduser()
    ) / "agreestop"


def fingerprint(
    settings: Mapping[str, object], files: Iterable[Path], root: str | PathLike[str]
) -> str:
    """A key for frames that are made with these settings from these files, whose names are
    relative to `root`.
    """
    sources = []
    for path in sorted(files):
        state = path.stat()
        sources.append((path.relative_to(root).as_posix(), state.st_size, state.st_mtime_ns))
    words = json.dumps(
        {"format": FORMAT, "settings": settings, "sources": sources}, sort_keys=True, default=str
    )
    return hashlib.sha256(words.encode()).hexdigest()


def _write(path: Path, key: str, data: EventSplits) -> None:
    arrays: Arrays = {"key": np.array(key)}
    for part, content in zip(PARTS, data, strict=True):
        arrays |= {f"{part}.{name}": array for name, array in part_arrays(content).items()}
    write_npz(path, arrays)


def _read(path: Path, key: str) -> EventSplits:
    arrays = read_npz(path, "file of this cache", "it is of no use", needed=("key",), mmap=True)
    if arrays.pop("key") != key:
        raise InputError(
            f"{path} was made from other files or with other settings: it is of no use."
        )

    def read_part(part: str) -> EventData:
        content = {
            name.removeprefix(f"{part}."): array
            for name, array in arrays.items()
            if name.startswith(f"{part}.")
        }
        return as_stored(path, content).labelled(path)

    return EventSplits(*map(read_part, PARTS))
