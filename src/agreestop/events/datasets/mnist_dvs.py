"""mnist-dvs: 10,000 of MNIST's digits moving on a screen in front of an event camera
(Serrano-Gotarredona and Linares-Barranco, 2015).

The recordings, AEDAT 2.0 of 128 × 128 pixels, are published as ten archives, one for each digit,
and every digit was shown at three scales. They may lie in any folders below the one that is given,
under their official names:

    grabbed_data<digit>/scale<N>/mnist_<digit>_scale<NN>_<number>.aedat

Scales are 04, 08 and 16, and numbers run from 0001 to 1000.

The first 2 seconds become T = 80 steps of 25 ms, and a window around the centre of the motion
becomes 26 × 26 pixels: unchanged at scale 4, halved at scale 8, quartered at scale 16. Window and
steps are the same for all recordings. A pixel of either polarity fires in a step or not.

The data set has no division of its own. Training, tuning and pool are drawn from all recordings of
a scale: 7,000, 1,000 and 2,000 of the 10,000 (the paper has 8,000 for training and 2,000 for the
rest), and 7 : 1 : 2 of a partial copy.
"""

import re
from pathlib import Path

import numpy as np

from agreestop.common import Booleans, InputError, ProgressCallback, as_seed

from ..data import (
    DataSet,
    EventSplits,
    Findings,
    Sizes,
    address_of,
    as_finding,
    as_sizes_of,
    begins_with,
    bin_files,
    check_each,
    draw,
)
from ..formats.aedat import VERSIONS, read_aedat2
from ..formats.recording import bin_events

STEPS = 80
SPAN = 2_000_000  # microseconds
SIZE = (26, 26)
CENTRE = (61, 67)  # row and column around which the digits move
SCALES = (4, 8, 16)
SHARES = (0.7, 0.1)
OF_EACH_DIGIT = 1_000
ADDRESS = address_of("mnist-dvs")
NAME = re.compile(
    r"mnist_(?P<digit>[0-9])_scale(?P<scale>[0-9]+)_(?P<number>[0-9]+)(?P<rest>.*)\.aedat",
    re.IGNORECASE,
)


def load_mnist_dvs(
    folder: Path,
    scale: int = 4,
    sizes: Sizes | None = None,
    seed: int = 0,
    steps: int = STEPS,
    progress: ProgressCallback | None = None,
) -> EventSplits:
    """Event streams (n, 80, 2, 26, 26).

    scale  how large the digits were shown: 4, 8 or 16
    sizes  sizes of training, tuning and pool; by default all recordings are used
    steps  T, over the same 2 seconds
    """
    rng = np.random.default_rng(as_seed(seed))
    files = find_recordings(folder, scale)
    rows = draw(
        len(files),
        as_sizes_of(len(files), sizes, SHARES),
        rng,
        f"recordings of scale {scale} in {folder}",
    )
    labels = np.array([int(path.name[len("mnist_")]) for path in files])
    return bin_files(
        "mnist-dvs", files, labels, rows, lambda path: _bin(path, scale, steps), progress=progress
    )


def find_recordings(folder: Path, scale: int = 4) -> tuple[Path, ...]:
    """The recordings of a scale, in the order of digit and number.

    A recording may be there several times: whole, and in pieces whose names go on after the number.
    Then the whole one is taken, and the first of several equal names: if a digit came twice, the
    inputs would not be exchangeable.
    """
    if scale not in SCALES:
        raise InputError(
            f"scale is {scale!r}: give {', '.join(map(str, SCALES[:-1]))} or {SCALES[-1]}."
        )
    chosen: dict[tuple[int, int], tuple[str, Path]] = {}
    for path in sorted(folder.rglob("*.[aA][eE][dD][aA][tT]")):
        name = NAME.fullmatch(path.name)
        if name is None or int(name["scale"]) != scale:
            continue
        which = int(name["digit"]), int(name["number"])
        if which not in chosen or name["rest"] < chosen[which][0]:
            chosen[which] = name["rest"], path
    if not chosen:
        raise InputError(
            f"there are no recordings mnist_<digit>_scale{scale:02d}_<number>.aedat in {folder}: "
            f"get them from {ADDRESS}."
        )
    return tuple(chosen[which][1] for which in sorted(chosen))


def _bin(path: Path, scale: int, steps: int) -> Booleans:
    side = SIZE[0] * scale // SCALES[0]
    crop = (CENTRE[0] - side // 2, CENTRE[1] - side // 2, side, side)
    recording = read_aedat2(path)
    start = recording.span[0]
    return bin_events(recording, steps, crop=crop, size=SIZE, window=(start, start + SPAN))


def _check(folder: Path) -> Findings:
    empty = True
    for scale in SCALES:
        try:
            paths = find_recordings(folder, scale)
        except InputError:  # not every scale must be there
            continue
        empty, complete = False, 10 * OF_EACH_DIGIT
        yield as_finding(
            len(paths),
            complete,
            f"{len(paths):,} of {complete:,} recordings of scale {scale}",
            ADDRESS,
        )
        yield from check_each(paths, lambda path: begins_with(path, VERSIONS["2.0"]), ADDRESS)
    if empty:
        raise InputError(
            f"there are no recordings mnist_<digit>_scale<NN>_<number>.aedat in {folder}: get them "
            f"from {ADDRESS}."
        )


DATA_SET = DataSet.recorded("mnist-dvs", load=load_mnist_dvs, check=_check)
