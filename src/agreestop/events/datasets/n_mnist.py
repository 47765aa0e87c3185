"""n-mnist: MNIST's digits in front of an event camera that makes three quick movements (Orchard and others, 2015).

The files lie as they are published, 60,000 for training and 10,000 for the test, at once in the folder or in N-MNIST there:

    Train/<digit>/<number>.bin,  Test/<digit>/<number>.bin     see `n_mnist_files`

A recording lasts about 300 ms. It is binned into T = 80 steps, which for 80 are of 4 ms and end at 320 ms, in the time of the camera and
thus the same for every recording; what comes later, a few of a thousand events, is left out. A pixel of 2 × 34 × 34 fires in a step or not.

Of a complete copy, training and tuning are drawn from the training recordings, tuning 5,000 of them, and the pool are the test
recordings, all in an order drawn from the seed. Of a partial copy all three are drawn from all recordings, 7 : 1 : 2, unless sizes are
asked for which its own two parts can give. The description of the data says which. All of N-MNIST takes 13 GB of memory: ask for fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from agreestop.common.arrays import as_count, as_seed
from agreestop.common.errors import InputError

from ..binning import bin_events
from ..data import EventData, EventSplits
from ..formats.n_mnist import SIZE, read_n_mnist
from .division import Sizes, as_sizes, by_shares, draw

STEPS = 80
SPAN = 320_000  # microseconds
TRAINING, TEST = 60_000, 10_000  # recordings of a complete copy
TUNING = 5_000
SHARES = (0.7, 0.1)
FOLDER = "N-MNIST"
PARTS = ("Train", "Test")
ADDRESS = "https://www.garrickorchard.com/datasets/n-mnist"

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


def load_n_mnist(folder: str | PathLike[str], sizes: Sizes | None = None, seed: int = 0, steps: int = STEPS) -> EventSplits:
    """Event streams (n, 80, 2, 34, 34).

    folder  holds Train and Test, or N-MNIST with both
    sizes   of the parts for training, for tuning, and of the pool; everything that is there unless told
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
    words = f"{DESCRIPTION}; {OFFICIAL if official else DRAWN}"
    parts = {
        name: _bin(f"n-mnist, {name}", [everything[row] for row in some], steps, words)
        for name, some in zip(("training", "tuning", "pool"), rows, strict=True)
    }
    return EventSplits(**parts)


def find_recordings(folder: str | PathLike[str]) -> Recordings:
    """The recordings in the folder; of files that are no recordings by name nothing is said."""
    for place in (Path(folder), Path(folder) / FOLDER):
        if any((place / part).is_dir() for part in PARTS):
            training, test = (
                tuple(path for digit in range(10) for path in sorted((place / part / str(digit)).glob("*.bin"))) for part in PARTS
            )
            if training or test:
                return Recordings(training, test)
    raise InputError(
        f"there are no recordings Train/<digit>/<number>.bin or Test/<digit>/<number>.bin in {folder}: get them from {ADDRESS}."
    )


def _bin(name: str, paths: Sequence[Path], steps: int, description: str) -> EventData:
    events = np.empty((len(paths), steps, 2, *SIZE), dtype=bool)
    for row, path in enumerate(paths):
        recording = read_n_mnist(path)
        if recording.skipped.cut_bytes or recording.skipped.outside > len(recording):
            raise InputError(f"{path} is damaged or is no recording of N-MNIST: get it again from {ADDRESS}.")
        events[row] = bin_events(recording, steps, window=(0, SPAN))
    labels = np.array([int(path.parent.name) for path in paths])
    return EventData(name, False, events, labels, tuple("0123456789"), description)
