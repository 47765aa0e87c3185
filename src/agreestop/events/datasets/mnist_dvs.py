"""mnist-dvs: 10,000 of MNIST's digits moving on a screen in front of an event camera (Serrano-Gotarredona and Linares-Barranco, 2015).

The recordings, AEDAT 2.0 of 128 × 128 pixels, are published as ten archives, one for each digit, of which each digit was shown at
three scales. They may lie in any folders below the one that is given, if their names are the official ones:

    grabbed_data<digit>/scale<N>/mnist_<digit>_scale<NN>_<number>.aedat       scales 04, 08 and 16, numbers 0001 to 1000

The first 2 seconds become T = 80 steps, which are 25 ms each, and a window about the place where the digits move becomes 26 × 26
pixels: itself at scale 4, halved at scale 8, quartered at scale 16. Window and steps are the same for all recordings. A pixel of either
polarity fires in a step or not.

The data set has no division of its own. Training, tuning and pool are drawn from all recordings of a scale: 7,000, 1,000 and 2,000 of the
10,000, as in the paper, which has 8,000 for training and 2,000 else; 7 : 1 : 2 of a partial copy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import numpy as np

from agreestop.common.arrays import as_count, as_seed
from agreestop.common.errors import InputError

from ..binning import bin_events
from ..data import EventData, EventSplits
from ..formats.aedat2 import read_aedat2
from .division import Sizes, as_sizes, by_shares, draw

STEPS = 80
SPAN = 2_000_000  # microseconds
SIZE = (26, 26)
CENTRE = (61, 67)  # row and column about which the digits move
SCALES = (4, 8, 16)
SHARES = (0.7, 0.1)
OF_EACH_DIGIT = 1_000
ADDRESS = "http://www2.imse-cnm.csic.es/caviar/MNISTDVS.html"
NAME = re.compile(r"mnist_(?P<digit>[0-9])_scale(?P<scale>[0-9]+)_(?P<number>[0-9]+)(?P<rest>.*)\.aedat", re.IGNORECASE)

DESCRIPTION = "MNIST-DVS: MNIST's handwritten digits, moving on a screen and recorded by an event camera"


def load_mnist_dvs(
    folder: str | PathLike[str], scale: int = 4, sizes: Sizes | None = None, seed: int = 0, steps: int = STEPS
) -> EventSplits:
    """Event streams (n, 80, 2, 26, 26).

    folder  the recordings lie in it, or in any folder below
    scale   how large the digits were shown: 4, 8 or 16
    sizes   of the parts for training, for tuning, and of the pool; all recordings unless told
    seed    chooses the parts, and their order
    steps   T, over the same 2 seconds
    """
    as_seed(seed)
    as_count(steps, "steps")
    files = find_recordings(folder, scale)
    wanted = by_shares(len(files), SHARES) if sizes is None else as_sizes(sizes)
    rows = draw(len(files), wanted, np.random.default_rng(seed), f"recordings of scale {scale} in {folder}")
    parts = {
        name: _bin(f"mnist-dvs, {name}", [files[row] for row in some], scale, steps)
        for name, some in zip(("training", "tuning", "pool"), rows, strict=True)
    }
    return EventSplits(**parts)


def find_recordings(folder: str | PathLike[str], scale: int = 4) -> tuple[Path, ...]:
    """The recordings of a scale, in the order of digit and number.

    Where a recording lies there several times, as a whole and in pieces whose names go on after the number, the whole one is
    taken, and of several alike the first: no digit may come twice, for that would not be exchangeable.
    """
    if scale not in SCALES:
        raise InputError(f"scale is {scale!r}: give {', '.join(map(str, SCALES[:-1]))} or {SCALES[-1]}.")
    chosen: dict[tuple[int, int], tuple[str, Path]] = {}
    for path in sorted(Path(folder).rglob("*.[aA][eE][dD][aA][tT]")):
        name = NAME.fullmatch(path.name)
        if name is None or int(name["scale"]) != scale:
            continue
        which = int(name["digit"]), int(name["number"])
        if which not in chosen or name["rest"] < chosen[which][0]:
            chosen[which] = name["rest"], path
    if not chosen:
        raise InputError(f"there are no recordings mnist_<digit>_scale{scale:02d}_<number>.aedat in {folder}: get them from {ADDRESS}.")
    return tuple(chosen[which][1] for which in sorted(chosen))


def _bin(name: str, paths: Sequence[Path], scale: int, steps: int) -> EventData:
    side = SIZE[0] * scale // SCALES[0]
    crop = (CENTRE[0] - side // 2, CENTRE[1] - side // 2, side, side)
    events = np.empty((len(paths), steps, 2, *SIZE), dtype=bool)
    for row, path in enumerate(paths):
        recording = read_aedat2(path)
        start = recording.span[0]
        events[row] = bin_events(recording, steps, crop=crop, size=SIZE, window=(start, start + SPAN))
    return EventData(name, False, events, np.array([digit_of(path) for path in paths]), tuple("0123456789"), DESCRIPTION)


def digit_of(path: Path) -> int:
    """The digit that a recording shows, by its name."""
    name = NAME.fullmatch(path.name)
    assert name is not None
    return int(name["digit"])
