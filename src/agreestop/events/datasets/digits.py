"""The embedded data: scikit-learn's handwritten digits, moving in front of a simulated event camera.

The 1,797 images of 8 × 8 pixels are real (written by people, scanned for the UCI data set of Alpaydin and Kaynak); the events are
simulated. Each digit stands on a dark ground in front of 16 × 16 pixels and sets off on a circle from rest, some sooner and
some later, for T = 80 steps. Few pixels fire at first, so the classes become clear only with time.

The division into training, tuning and pool is a permutation that knows nothing of images and labels, so that the inputs of the
pool are exchangeable, as the guarantee of a calibrated rule assumes. An input's events follow from the seed and from the
digit's place in scikit-learn's data, and for training from the view, alone.
"""

from __future__ import annotations

import numpy as np

from agreestop.common.arrays import Floats, Integers, as_count, as_seed
from agreestop.common.errors import InputError

from ..camera.paths import circular_path
from ..camera.simulator import Sensor, simulate_events
from ..data import EventData, EventSplits

STEPS = 80
SIZE = (16, 16)
SCALE = 1.75  # 8 pixels of the image over 14 of the sensor, which with the radius keeps every one of them in view
SENSOR = Sensor(contrast=0.15, mismatch=0.03, refractory=1, leak=0.0005, shot_noise=0.001, dark=0.1)
RADIUS = (1.1, 1.35)
PERIOD = 60.0
ANGLE = (0.0, 0.03)
SLOW_START = (100.0, 400.0)  # beyond T: every digit gathers speed to the end
TRAINING, TUNING = 900, 300
WHITE = 16.0  # the largest value in scikit-learn's images

DESCRIPTION = (
    "scikit-learn's handwritten digits (UCI, 1,797 real images of 8 × 8 pixels) moving in front of a simulated event camera: "
    "the images and labels are real, the events are simulated"
)


def simulate_digits(seed: int = 0, views: int = 1, sensor: Sensor = SENSOR) -> EventSplits:
    """The 1,797 digits as event streams (n, 80, 2, 16, 16), in parts of 900, 300 and 597; needs scikit-learn.

    seed    chooses the parts, the motions and the noise
    views   how often each digit of the training part is shown, every time with a motion and noise of its own
    sensor  the camera
    """
    as_seed(seed)
    as_count(views, "views")
    images, labels = _load_images()
    order = np.random.default_rng(seed).permutation(len(labels))
    first, tuning, pool = np.split(order, [TRAINING, TRAINING + TUNING])
    training = np.concatenate([first + view * len(labels) for view in range(views)])
    return EventSplits(
        training=_watch("digits, training", training, images, labels, sensor, seed),
        tuning=_watch("digits, tuning", tuning, images, labels, sensor, seed),
        pool=_watch("digits, pool", pool, images, labels, sensor, seed),
    )


def _watch(name: str, numbers: Integers, images: Floats, labels: Integers, sensor: Sensor, seed: int) -> EventData:
    """The inputs of these numbers: number i shows digit i modulo 1,797."""
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
