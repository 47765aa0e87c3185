"""Mistakes of users with events: each is refused with a sentence that says what was given and what
to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from agreestop.common import InputError
from agreestop.events import EventData, Sensor, circular_path, simulate_events
from agreestop.events.camera.simulator import move_images
from tests.decide.strategies import assert_one_sentence

IMAGES = np.full((3, 4, 4), 0.5)
PATH = np.zeros((3, 6, 2))
INPUTS = np.zeros((3, 6, 2, 4, 4), dtype=bool)


def spoiled(array: Any, value: float) -> Any:
    copy = array.copy()
    copy.flat[1] = value
    return copy


def events(**changes: Any) -> object:
    settings: dict[str, Any] = {
        "images": IMAGES,
        "path": PATH,
        "size": (5, 5),
        "sensor": Sensor(),
        "seed": 0,
    }
    return simulate_events(**(settings | changes))


def data(**changes: Any) -> object:
    settings: dict[str, Any] = {
        "name": "some",
        "simulated": True,
        "inputs": INPUTS,
        "labels": [0, 1, 1],
        "classes": ("a", "b"),
    }
    return EventData(**(settings | changes))


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "contrast 0": (
        lambda: Sensor(contrast=0.0),
        "contrast is 0.0: give a positive number, for example 0.2",
    ),
    "contrast nan": (lambda: Sensor(contrast=math.nan), "contrast is nan"),
    "dark": (lambda: Sensor(dark=-0.1), "dark is -0.1: give a positive number"),
    "mismatch": (
        lambda: Sensor(mismatch=-1),
        "mismatch is -1: give a number of at least 0, 0 for pixels that are all alike",
    ),
    "shot noise": (
        lambda: Sensor(shot_noise=math.inf),
        "shot_noise is inf: give a number of at least 0, 0 for no noise",
    ),
    "leak": (
        lambda: Sensor(leak=1.0),
        "leak is 1.0: give the events per step, from 0 for none to less than 1",
    ),
    "refractory": (
        lambda: Sensor(refractory=1.5),  # type: ignore[arg-type]
        "refractory is 1.5: give the whole steps that a pixel rests",
    ),
    "refractory true": (lambda: Sensor(refractory=True), "refractory is True"),
    "one image": (
        lambda: events(images=IMAGES[0]),
        r"images has shape \(4, 4\): three axes \(n, h, w\)",
    ),
    "no images": (
        lambda: events(images=IMAGES[:0]),
        r"images has shape \(0, 4, 4\).* none of them empty",
    ),
    "words": (
        lambda: events(images="digit"),
        "images cannot be read as an array of numbers: give real numbers",
    ),
    "nan": (
        lambda: events(images=spoiled(IMAGES, math.nan)),
        r"images holds nan at \[0, 0, 1\]: every value must be finite",
    ),
    "bytes": (
        lambda: events(images=IMAGES * 255),
        "images reaches from 127.5 to 127.5: .* divide by the white level",
    ),
    "negative": (
        lambda: events(images=spoiled(IMAGES, -0.5)),
        "images reaches from -0.5 to 0.5: intensities from 0 to 1",
    ),
    "path of others": (
        lambda: events(path=PATH[:2]),
        r"path has shape \(2, 6, 2\) for 3 images: \(n, T\+1, 2\) is needed",
    ),
    "path of no step": (
        lambda: events(path=PATH[:, :1]),
        r"path has shape \(3, 1, 2\).* T at least 1",
    ),
    "path in space": (lambda: events(path=np.zeros((3, 6, 3))), r"path has shape \(3, 6, 3\)"),
    "path to infinity": (
        lambda: events(path=spoiled(PATH, math.inf)),
        r"path holds inf at \[0, 0, 1\]",
    ),
    "size": (
        lambda: events(size=20),
        r"size is 20: give the sensor's height and width in pixels, for example \(20, 20\)",
    ),
    "no size": (lambda: events(size=(0, 5)), r"size is \(0, 5\)"),
    "scale": (lambda: events(scale=0), "scale is 0: give how many of the sensor's pixels"),
    "background": (
        lambda: events(background=2.0),
        "background is 2.0: give the intensity beyond the image's edge, from 0 to 1",
    ),
    "seed": (lambda: events(seed=-1), r"seed is -1: give an integer from 0 to 2\^63 - 1"),
    "seed of half": (lambda: events(seed=0.5), "seed is 0.5"),
    "fewer numbers": (
        lambda: events(inputs=[0, 1]),
        "inputs has 2 numbers for 3 images: give one for each image",
    ),
    "negative number": (
        lambda: events(inputs=[0, -4, 1]),
        "inputs holds -4: number the inputs from 0",
    ),
    "half numbers": (
        lambda: events(inputs=[0.5, 1, 2]),
        r"inputs has shape \(3,\) and dtype float64: give how many inputs",
    ),
    "ragged numbers": (
        lambda: events(inputs=[[0], [1, 2]]),
        "inputs cannot be read as one array: give numbers of one shape",
    ),
    "at once": (lambda: move_images(IMAGES * 3, PATH, (5, 5)), "images reaches from 1.5 to 1.5"),
    "no inputs": (
        lambda: circular_path(0, 5),
        "inputs is 0: give how many inputs there are, at least 1",
    ),
    "no steps": (lambda: circular_path(2, 0), "steps is 0: give an integer of at least 1"),
    "angle": (
        lambda: circular_path(2, 5, angle=(2.0, 1.0)),
        r"angle is \(2.0, 1.0\): give one number of at least 0, or the lowest and",
    ),
    "radius": (
        lambda: circular_path(2, 5, radius=-1.0),
        "radius is -1.0: give one number of at least 0",
    ),
    "period": (
        lambda: circular_path(2, 5, period=0.5),
        "period is 0.5: give one number of at least 1",
    ),
    "slow start": (
        lambda: circular_path(2, 5, slow_start=math.nan),
        "slow_start is nan: give one number",
    ),
    "one axis": (
        lambda: data(inputs=INPUTS[0, 0, 0, 0]),
        r"inputs has shape \(4,\): \(n, T, \.\.\.\) is needed",
    ),
    "steps of an image": (
        lambda: data(held=80),
        r"inputs of 6 steps are held for 80: give an image one step",
    ),
    "wide counts": (
        lambda: data(inputs=INPUTS.astype(int)),
        "inputs has dtype int64: booleans, uint8 or float32 are needed",
    ),
    "fewer labels": (
        lambda: data(labels=[0, 1]),
        "labels has 2 entries for 3 inputs: give one label for each input",
    ),
    "unknown class": (lambda: data(labels=[0, 1, 2]), "labels holds 2, but there are 2 classes"),
}


@pytest.mark.parametrize(("call", "match"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_refused_in_one_sentence(call: Callable[[], object], match: str) -> None:
    with pytest.raises(InputError, match=match) as caught:
        call()
    assert_one_sentence(str(caught.value))


def test_event_data_has_its_length_steps_and_shape() -> None:
    some = EventData("some", False, INPUTS, np.array([0, 1, 1], dtype=np.uint8), ("a", "b"))
    assert (len(some), some.steps, some.shape) == (3, 6, (2, 4, 4))
    assert some.labels.dtype == np.int64
    assert repr(some) == "EventData('some', 3 inputs (6, 2, 4, 4), 2 classes, recorded)"
    named = EventData("some", False, INPUTS, ["b", "a", "a"], ("b", "a"))  # type: ignore[arg-type]
    np.testing.assert_array_equal(named.labels, some.labels)
