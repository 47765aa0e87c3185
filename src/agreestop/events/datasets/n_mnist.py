"""n-mnist: MNIST's digits in front of an event camera that makes three quick movements (Orchard and others, 2015).

The files lie as they are published, 60,000 for training and 10,000 for the test, in the folder itself or in N-MNIST there:

    Train/<digit>/<number>.bin,  Test/<digit>/<number>.bin     their format: `agreestop.events.formats.n_mnist`

A recording lasts about 300 ms. It is binned into T = 80 steps of 4 ms, which end at 320 ms of the camera's time and are thus the same for
every recording; the few events in a thousand that come later are left out. A pixel of 2 × 34 × 34 fires in a step or not.

In a complete copy, training and tuning are drawn from the training recordings, 5,000 of them for tuning, and the pool are the test
recordings, all in an order drawn from the seed. In a partial copy all three parts are drawn from all recordings, 7 : 1 : 2, except where
the sizes that are asked for fit its two official parts. The description of the data says which. All of N-MNIST takes 13 GB of memory: ask
for fewer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from agreestop.common.arrays import Booleans, Integers, as_count, as_seed
from agreestop.common.errors import InputError
from agreestop.common.progress import ProgressCallback

from ..binning import bin_events
from ..data import EventData, EventSplits
from ..formats.n_mnist import EVENT, SIZE, read_n_mnist
from .data_set import DataSet, Findings, address_of, bin_files, check_each, compare_amount, find_folder
from .division import Done, Sizes, as_sizes, by_shares, draw, make_parts

STEPS = 80
SPAN = 320_000  # microseconds
TRAINING, TEST = 60_000, 10_000  # recordings of a complete copy
TUNING = 5_000
SHARES = (0.7, 0.1)
FOLDER = "N-MNIST"
PARTS = ("Train", "Test")
ADDRESS = address_of("n-mnist")

DESCRIPTION = "N-MNIST: MNIST's handwritten digits, recorded by a moving event camera"
OFFICIAL = "training and tuning are of the official training part, the pool of the official test part"
DRAWN = "training, tuning and pool are drawn at random from all recordings that are there"


@dataclass(frozen=True)
class Recordings:
    """The files of both parts, in the order of digit and number."""

    training: tuple[Path, ...]
    test: tuple[Path, ...]

    @property
    def complete(self) -> bool:
        return len(self.training) == TRAINING and len(self.test) == TEST


def load_n_mnist(
    folder: str | PathLike[str], sizes: Sizes | None = None, seed: int = 0, steps: int = STEPS, progress: ProgressCallback | None = None
) -> EventSplits:
    """Event streams (n, 80, 2, 34, 34).

    folder  holds Train and Test, or N-MNIST with both
    sizes   sizes of training, tuning and pool; by default all recordings are used
    seed    chooses the parts, and their order
    steps   T, over the same 320 ms
    """
    as_seed(seed)
    as_count(steps, "steps")
    files = find_recordings(folder)
    official = files.complete
    if sizes is not None:
        sizes = as_sizes(sizes)
        official = sizes[0] + sizes[1] <= len(files.training) and sizes[2] <= len(files.test)
    rng = np.random.default_rng(seed)
    everything = files.training + files.test
    if official:
        training, tuning, pool = sizes or (TRAINING - TUNING, TUNING, TEST)
        rows = draw(len(files.training), (training, tuning), rng, "training recordings")
        rows += [len(files.training) + some for some in draw(len(files.test), (pool,), rng, "test recordings")]
    else:
        rows = draw(len(everything), sizes or by_shares(len(everything), SHARES), rng, f"recordings of {folder}")

    def make(name: str, some: Integers, done: Done) -> EventData:
        paths = [everything[row] for row in some]
        frames = bin_files(paths, (len(paths), steps, 2, *SIZE), lambda path: _bin(path, steps), done)
        labels = np.array([int(path.parent.name) for path in paths])
        return EventData(name, False, frames, labels, tuple("0123456789"), f"{DESCRIPTION}; {OFFICIAL if official else DRAWN}")

    return make_parts("n-mnist", rows, make, progress)


def find_recordings(folder: str | PathLike[str]) -> Recordings:
    """The recordings in the folder; files with other names are ignored."""
    found = find_folder(Path(folder), FOLDER, lambda path: any(path.glob("T*/[0-9]/*.bin")))
    if found is None:
        names = "Train/<digit>/<number>.bin or Test/<digit>/<number>.bin"
        raise InputError(f"there are no recordings {names} in {folder}: get them from {ADDRESS}.")
    return Recordings(*(tuple(sorted((found / part).glob("[0-9]/*.bin"))) for part in PARTS))


def _bin(path: Path, steps: int) -> Booleans:
    recording = read_n_mnist(path)
    if recording.skipped.cut_bytes or recording.skipped.outside > len(recording):
        raise InputError(f"{path} is damaged or is no recording of N-MNIST: get it again from {ADDRESS}.")
    return bin_events(recording, steps, window=(0, SPAN))


def _check(folder: Path) -> Findings:
    files = find_recordings(folder)
    everything = files.training + files.test
    known = f"{len(files.training):,} of {TRAINING:,} training recordings"
    yield compare_amount(len(everything), TRAINING + TEST, f"{known} and {len(files.test):,} of {TEST:,} test recordings", ADDRESS)
    yield from check_each(everything, lambda path: (size := path.stat().st_size) > 0 and size % EVENT == 0, ADDRESS)


def _sources(folder: Path, options: Mapping[str, Any]) -> Iterable[Path]:
    files = find_recordings(folder)
    return files.training + files.test


DATA_SET = DataSet.recorded("n-mnist", load=load_n_mnist, check=_check, sources=_sources)
