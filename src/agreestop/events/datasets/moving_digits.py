"""digits and mnist-dvs-sim: handwritten digits that move in front of a simulated event camera.

The images are real, the events are simulated, and every description of the data says so. Each digit
starts from rest to move on a circle, some sooner and some later, for T = 80 steps. Few pixels fire
at first, so the classes become clear only with time.

    digits         the 1,797 images of scikit-learn (8 × 8 pixels, the UCI data set of
                   Alpaydin and Kaynak) in front of 16 × 16 pixels: 900 for training, 300 for
                   tuning and a pool of 597
    mnist-dvs-sim  images of MNIST in front of 26 × 26 pixels, a stand-in for MNIST-DVS: 8,000
                   for training and a pool of 2,000, as in the paper, and 1,000 more for
                   tuning. Training and tuning are drawn from the training images, the pool
                   from the test images

A training digit may be shown several times, every time with its own motion and noise. The events of
an input depend only on the seed, on the index of the digit and, in training, on the view.
"""

import gzip
import math
import tomllib
import zlib
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agreestop.common import (
    Floats,
    InputError,
    Integers,
    ProgressCallback,
    as_count,
    as_seed,
    needs,
    open_file,
)
from agreestop.common.errors import install_extra

from ..camera.simulator import Range, Sensor, circular_path, simulate_events
from ..container import Events
from ..data import (
    DAMAGED,
    FOUND,
    DataSet,
    Done,
    EventSplits,
    Findings,
    Made,
    Sizes,
    address_of,
    as_sizes,
    divide,
    join_rows,
    make_splits,
)


class Scene(NamedTuple):
    """How the digits move in front of the camera: white level of the images, options of
    `simulate_events` and of `circular_path`.
    """

    white: float
    size: tuple[int, int]
    scale: float
    radius: Range
    period: Range
    angle: Range
    slow_start: Range


STEPS = 80
MOST_BYTES = 2**26  # the largest idx file that is read; the largest of MNIST has 47 million bytes
SENSOR = Sensor(contrast=0.15, mismatch=0.03, refractory=1, leak=0.0005, shot_noise=0.001, dark=0.1)
BATCH = 250  # inputs simulated together: their frames of float64 fit the processor's cache
DIGITS, MNIST = (
    Scene(**scene)
    for scene in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).values()
)
TRAINING, TUNING = 900, 300  # the other digits of scikit-learn are the pool
MNIST_SIZES = (8_000, 1_000, 2_000)
SOURCE = f"{address_of('mnist-dvs-sim')}, or any mirror of its four idx files"


def simulate_digits(
    seed: int = 0, views: int = 1, sensor: Sensor = SENSOR, progress: ProgressCallback | None = None
) -> EventSplits:
    """The 1,797 digits as event streams (n, 80, 2, 16, 16), in parts of 900, 300 and 597.

    Needs scikit-learn.

    seed    chooses the parts, the motions and the noise
    views   how often each training digit is shown, every time with its own motion and noise
    sensor  the camera
    """
    rng = np.random.default_rng(as_seed(seed))
    as_count(views, "views")
    images, labels = _load_images()
    first, tuning, pool = np.split(rng.permutation(len(labels)), [TRAINING, TRAINING + TUNING])
    make = partial(_watch, images=images, labels=labels, scene=DIGITS, sensor=sensor, seed=seed)
    return make_splits(
        "digits", (_repeat(first, views, len(labels)), tuning, pool), make, progress=progress
    )


def simulate_mnist(
    folder: Path,
    seed: int = 0,
    sizes: Sizes = MNIST_SIZES,
    views: int = 1,
    progress: ProgressCallback | None = None,
) -> EventSplits:
    """Event streams (n, 80, 2, 26, 26) of digits of MNIST, whose four idx files, gzipped or not,
    lie in `folder`.

    seed   chooses the parts, the motions and the noise
    sizes  how many digits training, tuning and the pool have
    views  how often each training digit is shown
    """
    rng = np.random.default_rng(as_seed(seed))
    as_count(views, "views")
    (known, known_labels), (new, new_labels) = (
        _load_part(folder, "train"),
        _load_part(folder, "t10k"),
    )
    whats = ("training digits", "test digits")
    first, second, third = divide(len(known), len(known) + len(new), as_sizes(sizes), rng, whats)
    images, labels = np.concatenate((known, new)), np.concatenate((known_labels, new_labels))
    make = partial(_watch, images=images, labels=labels, scene=MNIST, sensor=SENSOR, seed=seed)
    return make_splits(
        "mnist-dvs-sim",
        (_repeat(first, views, len(labels)), second, third),
        make,
        progress=progress,
    )


def _repeat(digits: Integers, views: int, count: int) -> Integers:
    """The numbers of several views: number i shows digit i modulo `count`, and chooses the
    motion and the noise.
    """
    return np.concatenate([digits + view * count for view in range(views)])


def _watch(
    numbers: Integers,
    done: Done,
    images: NDArray[Any],
    labels: Integers,
    scene: Scene,
    sensor: Sensor,
    seed: int,
) -> Made:
    rows = numbers % len(labels)

    def watch(start: int) -> Events:
        part = slice(start, start + BATCH)
        path = circular_path(
            numbers[part],
            STEPS,
            scene.radius,
            scene.period,
            scene.angle,
            False,
            scene.slow_start,
            seed,
        )
        fired = simulate_events(
            images[rows[part]] / scene.white,
            path,
            scene.size,
            sensor,
            seed,
            numbers[part],
            scene.scale,
        )
        return Events.from_dense(fired)

    return join_rows(map(watch, range(0, len(rows), BATCH)), done), labels[rows]


def _load_images() -> tuple[Floats, Integers]:
    with needs("simulate_digits"):  # scikit-learn holds the images
        from sklearn.datasets import load_digits
    digits = load_digits()
    return digits.images, digits.target.astype(np.int64)


def _load_part(folder: Path, part: str) -> tuple[NDArray[np.uint8], Integers]:
    images = _read_idx(folder, f"{part}-images-idx3-ubyte", 3)
    labels = _read_idx(folder, f"{part}-labels-idx1-ubyte", 1)
    if len(images) != len(labels) or images.shape[1:] != (28, 28) or labels.max(initial=0) > 9:
        raise InputError(
            f"{folder} holds {part} images {images.shape} and labels {labels.shape}, which is not "
            f"MNIST: get it from {SOURCE}."
        )
    return images, labels.astype(np.int64)


def _read_idx(folder: Path, name: str, axes: int) -> NDArray[np.uint8]:
    """An idx file of bytes: two zeros, 8, the number of axes, their lengths as big-endian 32-bit
    integers, the bytes.
    """
    path = next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
    if path is None:
        raise InputError(
            f"there is no file {name}, gzipped or not, in {folder}: get MNIST from {SOURCE}."
        )
    head = 4 + 4 * axes
    try:
        with open_file(path) as file, gzip.open(file) if path.suffix == ".gz" else file as stream:
            start = stream.read(head)
            shape = (
                tuple(int(length) for length in np.frombuffer(start[4:], ">u4"))
                if len(start) == head
                else ()
            )
            size = math.prod(shape)
            content = (
                stream.read(size + 1)
                if start[:4] == bytes((0, 0, 8, axes)) and size <= MOST_BYTES
                else b""
            )
    except (EOFError, zlib.error):  # the .gz file is damaged
        content, size = b"", -1
    if len(content) != size:
        raise InputError(
            f"{path} is damaged or is no idx file of bytes with {axes} axes: get it again from "
            f"{SOURCE}."
        )
    return np.frombuffer(content, np.uint8).reshape(shape)


def _check_digits(folder: Path) -> Findings:
    if find_spec("sklearn") is None:
        yield (
            DAMAGED,
            f"scikit-learn, which holds the images, is missing: {install_extra('learn')}.",
        )
    else:
        yield FOUND, "scikit-learn, which holds the images, is installed."


def _check_mnist(folder: Path) -> Findings:
    for part in ("train", "t10k"):
        _load_part(folder, part)
    yield FOUND, "MNIST's four files are whole."


DIGITS_SET = DataSet.recorded("digits", load=simulate_digits, check=_check_digits, cached=False)
MNIST_SET = DataSet.recorded("mnist-dvs-sim", load=simulate_mnist, check=_check_mnist)
