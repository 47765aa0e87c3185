"""The embedded data: scikit-learn's handwritten digits, moving in front of a simulated event camera.

The 1,797 images of 8 × 8 pixels are real (written by people, scanned for the UCI data set of Alpaydin and Kaynak); the events are
simulated. Each digit stands on a dark ground in front of 16 × 16 pixels and starts from rest to move on a circle, some sooner and
some later, for T = 80 steps. Few pixels fire at first, so the classes become clear only with time.

The division into training, tuning and pool is a permutation that knows nothing of images and labels, so the inputs of the pool are
exchangeable, as the guarantee of a calibrated rule assumes. An input's events depend only on the seed, on the digit's index in
scikit-learn's data and, in training, on the view.
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from agreestop.common.arrays import Floats, Integers, as_count, as_seed
from agreestop.common.errors import InputError
from agreestop.common.progress import ProgressCallback

from ..camera.paths import circular_path
from ..camera.simulator import Sensor, simulate_events
from ..data import EventData, EventSplits
from .data_set import DAMAGED, FOUND, DataSet, Findings
from .division import Done, make_parts

STEPS = 80
SIZE = (16, 16)
SCALE = 1.75  # 8 pixels of the image cover 14 of the sensor, and the whole circle stays in view
SENSOR = Sensor(contrast=0.15, mismatch=0.03, refractory=1, leak=0.0005, shot_noise=0.001, dark=0.1)
RADIUS = (1.1, 1.35)
PERIOD = 60.0
ANGLE = (0.0, 0.03)
SLOW_START = (100.0, 400.0)  # more than T: every digit gets faster until the end
TRAINING, TUNING = 900, 300
WHITE = 16.0  # the largest value in scikit-learn's images

DESCRIPTION = (
    "scikit-learn's handwritten digits (UCI, 1,797 real images of 8 × 8 pixels) moving in front of a simulated event camera: "
    "the images and labels are real, the events are simulated"
)


def simulate_digits(seed: int = 0, views: int = 1, sensor: Sensor = SENSOR, progress: ProgressCallback | None = None) -> EventSplits:
    """The 1,797 digits as event streams (n, 80, 2, 16, 16), in parts of 900, 300 and 597; needs scikit-learn.

    seed    chooses the parts, the motions and the noise
    views   how often each training digit is shown, every time with its own motion and noise
    sensor  the camera
    """
    as_seed(seed)
    as_count(views, "views")
    images, labels = _load_images()
    order = np.random.default_rng(seed).permutation(len(labels))
    first, tuning, pool = np.split(order, [TRAINING, TRAINING + TUNING])
    training = np.concatenate([first + view * len(labels) for view in range(views)])
    make = partial(_watch, images=images, labels=labels, sensor=sensor, seed=seed)
    return make_parts("digits", (training, tuning, pool), make, progress)


def _watch(name: str, numbers: Integers, done: Done, images: Floats, labels: Integers, sensor: Sensor, seed: int) -> EventData:
    """The inputs with these numbers: number i shows digit i modulo 1,797."""
    rows = numbers % len(labels)
    path = circular_path(numbers, STEPS, RADIUS, PERIOD, ANGLE, either_way=False, slow_start=SLOW_START, seed=seed)
    events = simulate_events(images[rows], path, SIZE, sensor, seed, inputs=numbers, scale=SCALE)
    return EventData(name, True, events, labels[rows], tuple("0123456789"), DESCRIPTION)


def _load_images() -> tuple[Floats, Integers]:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise InputError("simulate_digits needs scikit-learn, which holds the images: install agreestop[learn].") from None
    digits = load_digits()
    return digits.images / WHITE, digits.target.astype(np.int64)


def _check(folder: Path) -> Findings:
    if find_spec("sklearn") is None:
        yield DAMAGED, "scikit-learn, which holds the images, is missing: install agreestop[learn]."
    else:
        yield FOUND, "scikit-learn, which holds the images, is installed."


DATA_SET = DataSet.recorded("digits", load=simulate_digits, check=_check, cached=False)
