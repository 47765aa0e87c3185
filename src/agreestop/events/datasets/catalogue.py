"""The data sets by name: how each is loaded, and whether its files are whole. `data_set.DataSet` says what is known about each."""

from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from agreestop.common import InputError, ProgressCallback

from ..data import EventSplits
from . import braille, cifar10, dvs_gesture, gesture_sim, mnist_dvs, moving_digits, n_mnist
from .cache import cached, fingerprint
from .data_set import DAMAGED, FOUND, NO_EFFECT, DataSet

_RECORDED = (mnist_dvs.DATA_SET, dvs_gesture.DATA_SET, cifar10.DATA_SET, n_mnist.DATA_SET, braille.DATA_SET)
DATA_SETS = (*_RECORDED, moving_digits.DIGITS_SET, moving_digits.MNIST_SET, gesture_sim.DATA_SET)
NAMES = tuple(entry.name for entry in DATA_SETS)


@dataclass(frozen=True)
class Check:
    """Whether a data set's files are there and whole.

    found     what is there, in sentences
    problems  what is missing or damaged, in sentences; empty where everything is whole
    usable    whether `load` takes the files as they are: all of them, or a partial copy
    """

    name: str
    found: tuple[str, ...]
    problems: tuple[str, ...]
    usable: bool

    @property
    def whole(self) -> bool:
        return not self.problems


def find(name: str) -> DataSet:
    """The record of that name."""
    for entry in DATA_SETS:
        if entry.name == name:
            return entry
    raise InputError(f"there is no data set {name!r}: choose one of {', '.join(NAMES)}; own data enter through load_files.")


def load(
    name: str,
    folder: str | PathLike[str] | None = None,
    seed: int = 0,
    cache: bool = True,
    progress: ProgressCallback | None = None,
    **settings: Any,
) -> EventSplits:
    """The three parts of a data set, each with its inputs in random order.

    name      one of `NAMES`
    folder    the folder with its files, in the official layout; for mnist-dvs-sim those of MNIST; digits and gesture-sim need none
    seed      chooses the parts, and everything that is simulated
    cache     whether binned and simulated frames are kept for the next time, in `cache.cache_folder()`
    progress  called with what is being made and the share that is finished
    settings  further options of the data set's own function, such as sizes=(700, 100, 200)
    """
    entry = find(name)
    options = entry.options({"seed": seed, **settings})
    if "progress" in options:
        options["progress"] = progress
    if not entry.needs_files and folder is not None:
        raise InputError(f"a folder is given, {folder}, but {name} needs none: leave it out.")
    root = entry.folder(None if folder is None else Path(folder)) if entry.needs_files else Path()
    make = partial(entry.load, *((root,) if entry.needs_files else ()), **options)
    if not cache or not entry.cached:
        return make()
    known = {option: value for option, value in options.items() if option not in NO_EFFECT}
    sources = (path for pattern in entry.sources for path in root.glob(pattern))
    return cached(None, fingerprint({"data set": name, **known}, sources, root), make)


def check(name: str, folder: str | PathLike[str] | None = None) -> Check:
    """Whether the files of a data set are there and whole: their number, their length, and the checksums of the archives in the folder."""
    findings = list(find(name).findings(None if folder is None else Path(folder)))
    found = tuple(sentence for kind, sentence in findings if kind == FOUND)
    problems = tuple(sentence for kind, sentence in findings if kind != FOUND)
    return Check(name, found, problems, usable=all(kind != DAMAGED for kind, _ in findings))
