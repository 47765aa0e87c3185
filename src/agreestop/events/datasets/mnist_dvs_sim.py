"""mnist-dvs-sim: MNIST's handwritten digits, moving in front of a simulated event camera; a stand-in for MNIST-DVS.

The images are real and the events simulated, as everywhere this data set is named. 8,000 digits for training and a pool of 2,000, as in
the paper, and 1,000 more for tuning; 2 × 26 × 26 pixels, T = 80. Each digit sets off on a circle from rest, some sooner and some
later. Training and tuning are the first of MNIST's training images, in an order drawn from the seed, and the pool are of its test images.
A training digit may be shown several times, with a motion and noise of its own each time.
"""

from __future__ import annotations

import gzip
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agreestop.common.arrays import Floats, Integers, as_count, as_seed
from agreestop.common.errors import InputError

from ..camera.paths import circular_path
from ..camera.simulator import Sensor, simulate_events
from ..data import EventData, EventSplits

STEPS = 80
SIZE = (26, 26)
SCALE = 0.85
SENSOR = Sensor(contrast=0.15, mismatch=0.03, refractory=1, leak=0.0005, shot_noise=0.001, dark=0.1)
RADIUS = (1.5, 2.5)
PERIOD = (50.0, 80.0)
ANGLE = (0.0, 0.25)
SLOW_START = (60.0, 240.0)
TRAINING, TUNING, POOL = 8_000, 1_000, 2_000
BATCH = 250  # simulated together: a frame of doubles for each stays in the cache
SOURCE = "https://yann.lecun.com/exdb/mnist, or any mirror of its four idx files"

DESCRIPTION = (
    "mnist-dvs-sim: MNIST's handwritten digits (real images) moving in front of a simulated event camera: "
    "the images and labels are real, the events are simulated"
)


def simulate_mnist(
    folder: str | PathLike[str], seed: int = 0, sizes: tuple[int, int, int] = (TRAINING, TUNING, POOL), views: int = 1
) -> EventSplits:
    """Event streams (n, 80, 2, 26, 26) of digits of MNIST, whose four idx files, gzipped or not, lie in `folder`.

    sizes: how many digits are for training, for tuning, and in the pool. views: how often each training digit is shown.
    """
    as_seed(seed)
    as_count(views, "views")
    training, tuning, pool = sizes
    rng = np.random.default_rng(seed)
    known, new = _load_part(folder, "train"), _load_part(folder, "t10k")
    for wanted, (images, _), name in ((training + tuning, known, "training"), (pool, new, "test")):
        if wanted > len(images):
            raise InputError(f"{wanted} {name} digits are asked for, but {folder} holds {len(images)}: ask for fewer.")
    order, others = rng.permutation(len(known[0])), rng.permutation(len(new[0]))
    digits = len(known[0]) + len(new[0])
    shown = np.concatenate([order[:training] + view * digits for view in range(views)])
    return EventSplits(
        training=_watch("mnist-dvs-sim, training", shown, np.tile(order[:training], views), *known, seed),
        tuning=_watch("mnist-dvs-sim, tuning", order[training : training + tuning], order[training : training + tuning], *known, seed),
        pool=_watch("mnist-dvs-sim, pool", others[:pool] + len(known[0]), others[:pool], *new, seed),
    )


def _watch(name: str, numbers: Integers, rows: Integers, images: NDArray[np.uint8], labels: Integers, seed: int) -> EventData:
    """The streams of these rows; no two inputs share their number, and so none their motion and noise."""
    events = np.empty((len(rows), STEPS, 2, *SIZE), dtype=bool)
    for start in range(0, len(rows), BATCH):
        some, numbered = rows[start : start + BATCH], numbers[start : start + BATCH]
        path = circular_path(numbered, STEPS, RADIUS, PERIOD, ANGLE, either_way=False, slow_start=SLOW_START, seed=seed)
        events[start : start + BATCH] = simulate_events(_bright(images[some]), path, SIZE, SENSOR, seed, numbered, SCALE)
    return EventData(name, True, events, labels[rows], tuple("0123456789"), DESCRIPTION)


def _bright(images: NDArray[np.uint8]) -> Floats:
    return images / 255.0


def _load_part(folder: str | PathLike[str], part: str) -> tuple[NDArray[np.uint8], Integers]:
    images = _read_idx(Path(folder), f"{part}-images-idx3-ubyte", 3)
    labels = _read_idx(Path(folder), f"{part}-labels-idx1-ubyte", 1)
    if len(images) != len(labels) or images.shape[1:] != (28, 28) or labels.max(initial=0) > 9:
        raise InputError(
            f"{folder} holds {part} images {images.shape} and labels {labels.shape}, which is not MNIST: get it from {SOURCE}."
        )
    return images, labels.astype(np.int64)


def _read_idx(folder: Path, name: str, axes: int) -> NDArray[np.uint8]:
    """An idx file of bytes: two zeros, 8, the number of axes, their lengths as big-endian 32-bit integers, the bytes."""
    path = next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
    if path is None:
        raise InputError(f"there is no file {name}, gzipped or not, in {folder}: get MNIST from {SOURCE}.")
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise InputError(f"{path} cannot be read ({error}): get it again from {SOURCE}.") from None
    head = 4 + 4 * axes
    shape = tuple(int(length) for length in np.frombuffer(content[4:head], ">u4")) if len(content) >= head else ()
    if content[:4] != bytes((0, 0, 8, axes)) or len(content) != head + int(np.prod(shape, dtype=np.int64)):
        raise InputError(f"{path} is damaged or is no idx file of bytes with {axes} axes: get it again from {SOURCE}.")
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)
