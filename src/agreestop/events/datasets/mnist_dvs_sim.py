"""mnist-dvs-sim: MNIST's handwritten digits, moving in front of a simulated event camera; a stand-in for MNIST-DVS.

The images are real, the events are simulated, and every description of the data says so. There are 8,000 digits for training and a pool
of 2,000, as in the paper, and 1,000 more for tuning; 2 × 26 × 26 pixels, T = 80. Each digit starts from rest to move on a circle, some
sooner and some later. Training and tuning are drawn from MNIST's training images, the pool from its test images, in an order drawn from
the seed. A training digit may be shown several times, every time with its own motion and noise.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agreestop.common.arrays import Integers, as_count, as_seed
from agreestop.common.errors import InputError
from agreestop.common.progress import ProgressCallback

from ..camera.paths import circular_path
from ..camera.simulator import Sensor, simulate_events
from ..data import EventData, EventSplits
from .data_set import FOUND, DataSet, Findings, address_of
from .division import Done, Sizes, as_sizes, draw, make_parts

STEPS = 80
SIZE = (26, 26)
SCALE = 0.85
SENSOR = Sensor(contrast=0.15, mismatch=0.03, refractory=1, leak=0.0005, shot_noise=0.001, dark=0.1)
RADIUS = (1.5, 2.5)
PERIOD = (50.0, 80.0)
ANGLE = (0.0, 0.25)
SLOW_START = (60.0, 240.0)
TRAINING, TUNING, POOL = 8_000, 1_000, 2_000
BATCH = 250  # inputs simulated together: their frames of float64 fit the processor's cache
ADDRESS = address_of("mnist-dvs-sim")
SOURCE = f"{ADDRESS}, or any mirror of its four idx files"
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

DESCRIPTION = (
    "mnist-dvs-sim: MNIST's handwritten digits (real images) moving in front of a simulated event camera: "
    "the images and labels are real, the events are simulated"
)


def simulate_mnist(
    folder: str | PathLike[str],
    seed: int = 0,
    sizes: Sizes = (TRAINING, TUNING, POOL),
    views: int = 1,
    progress: ProgressCallback | None = None,
) -> EventSplits:
    """Event streams (n, 80, 2, 26, 26) of digits of MNIST, whose four idx files, gzipped or not, lie in `folder`.

    seed   chooses the parts, the motions and the noise
    sizes  how many digits training, tuning and the pool have
    views  how often each training digit is shown
    """
    as_seed(seed)
    as_count(views, "views")
    training, tuning, pool = as_sizes(sizes)
    rng = np.random.default_rng(seed)
    (known, known_labels), (new, new_labels) = _load_part(folder, "train"), _load_part(folder, "t10k")
    first, second = draw(len(known), (training, tuning), rng, "training digits")
    (third,) = draw(len(new), (pool,), rng, "test digits")
    # An input's number chooses its motion and noise: MNIST's training digits are numbered first, then its test digits, then further views.
    digits = len(known) + len(new)
    numbers = (np.concatenate([first + view * digits for view in range(views)]), second, third + len(known))
    images, labels = np.concatenate((known, new)), np.concatenate((known_labels, new_labels))
    return make_parts("mnist-dvs-sim", numbers, partial(_watch, images=images, labels=labels, seed=seed), progress)


def _watch(name: str, numbers: Integers, done: Done, images: NDArray[np.uint8], labels: Integers, seed: int) -> EventData:
    """The streams of the inputs with these numbers: number i shows digit i modulo the number of digits."""
    rows = numbers % len(labels)
    events = np.empty((len(rows), STEPS, 2, *SIZE), dtype=bool)
    for start in range(0, len(rows), BATCH):
        part = slice(start, start + BATCH)
        path = circular_path(numbers[part], STEPS, RADIUS, PERIOD, ANGLE, either_way=False, slow_start=SLOW_START, seed=seed)
        events[part] = simulate_events(images[rows[part]] / 255.0, path, SIZE, SENSOR, seed, numbers[part], SCALE)
        done(min(start + BATCH, len(rows)))
    return EventData(name, True, events, labels[rows], tuple("0123456789"), DESCRIPTION)


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


def _check(folder: Path) -> Findings:
    for part in ("train", "t10k"):
        _load_part(folder, part)
    yield FOUND, "MNIST's four files are whole."


def _sources(folder: Path, options: Mapping[str, Any]) -> Iterable[Path]:
    return [path for name in FILES for path in (folder / name, folder / f"{name}.gz") if path.is_file()]


DATA_SET = DataSet.recorded("mnist-dvs-sim", load=simulate_mnist, check=_check, sources=_sources)
