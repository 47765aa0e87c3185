"""gesture-sim: eleven gestures of simulated people in front of a simulated event camera; a stand-in
for DVS128 Gesture.

Nothing in it is recorded: the people are drawn figures, the events come from the camera model
(`camera.simulator`), and every description of the data says so. As in DVS128 Gesture there are
1,176 inputs of 23 people for training and a pool of 288 inputs of 6 other people, under three
lights, on 128 × 128 pixels; 120 inputs of 6 further people are for tuning. An input shows 2.4
seconds in T = 80 frames of 30 ms, and a frame counts the events of 4 steps of the camera:

    x_t(p, v) = Σ_{steps of frame t} Σ_{pixels u of cell v} [pixel u fires with polarity p]

A cell has downsample × downsample pixels. Everybody begins with hanging arms and starts to move
sooner or later, so the classes become clear only with time.

Every input draws its gesture, its person among those of its part, its light, its position, speed
and noise independently and from the same distributions. So the inputs of a part are exchangeable,
as the guarantee of a calibrated rule assumes; the six people of the pool are fixed by the seed, and
the guarantee is about further inputs of these six. An input depends only on the seed, its part and
its index in the part, not on the number of other inputs or on the process that makes it.

`gesture_figures` draws the people.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from agreestop.common import (
    InputError,
    Integers,
    ProgressCallback,
    as_count,
    as_seed,
    is_integer,
    run_tasks,
)
from agreestop.events.camera.simulator import (
    Purpose,
    Sensor,
    draw_uniforms,
    stream_keys,
    watch_frames,
)
from agreestop.events.container import Events
from agreestop.events.data import (
    FOUND,
    DataSet,
    Done,
    EventSplits,
    Findings,
    Made,
    Sizes,
    as_sizes,
    join_rows,
    make_splits,
)

from .gesture_figures import (
    CADENCE,
    GESTURES,
    LIGHTS,
    TABLE,
    WANDERINGS,
    Performance,
    Person,
    render_frames,
)

STEPS = 80
SIZE = (128, 128)
FRAME = 0.03  # seconds
MOMENTS = 4  # steps of the camera in a frame
SENSOR = Sensor(
    contrast=0.15, mismatch=0.03, refractory=1, leak=0.0002, shot_noise=0.0002, dark=0.1
)
SIZES = (1_176, 120, 288)
PEOPLE = (23, 6, 6)  # in the three parts; nobody is in two of them
# a pixel makes at most two events in a frame, so the count of 8 × 8 pixels fits a byte
DOWNSAMPLES = (1, 2, 4, 8)

# the inputs of the parts are numbered from 0, 2^40 and 2^41, and people after all inputs
PART = 2**40
FIRST_PERSON = 2**61
MOST_DRAWS = 64  # more than a person or a performance needs


def simulate_gestures(
    seed: int = 0,
    sizes: Sizes = SIZES,
    downsample: int = 4,
    steps: int = STEPS,
    workers: int = 1,
    progress: ProgressCallback | None = None,
) -> EventSplits:
    """Counts of events (n, steps, 2, 128 / downsample, 128 / downsample) as uint8, simulated on
    128 × 128 pixels.

    seed        chooses the people, the performances and the noise
    sizes       how many inputs training, tuning and the pool have
    downsample  the width and height of a cell in pixels: 1, 2, 4 or 8
    steps       T, the frames of an input; with a smaller T the first frames are the same
    workers     processes that share the work; the result does not depend on it. A script that
                asks for several must start under `if __name__ == "__main__":`, because each
                process imports it
    """
    as_seed(seed)
    if not is_integer(downsample) or downsample not in DOWNSAMPLES:
        raise InputError(
            f"downsample is {downsample!r}: give the side of a cell in pixels, 1, 2, 4 or 8."
        )
    as_count(steps, "steps")
    as_count(workers, "workers")
    numbers = [
        part * PART + np.arange(size, dtype=np.int64) for part, size in enumerate(as_sizes(sizes))
    ]
    make = partial(_watch_part, seed=seed, downsample=downsample, steps=steps, workers=workers)
    return make_splits("gesture-sim", numbers, make, GESTURES, progress, record=TABLE["record"])


def draw_performance(number: int, seed: int) -> Performance:
    """What input `number` shows; the parts' inputs are numbered from 0, 2^40 and 2^41."""
    between = _uniform_draws(seed, number)
    part = number // PART
    gesture = int(between(0, len(GESTURES)))
    person = draw_person(sum(PEOPLE[:part]) + int(between(0, PEOPLE[part])), seed)
    light = LIGHTS[int(between(0, len(LIGHTS)))]
    drawn = {name: between(*limits) for name, limits in TABLE["performance"].items()}
    position = drawn.pop("down"), drawn.pop("right")
    cadence = CADENCE[gesture] * person.tempo * drawn.pop("tempo")
    reach = person.reach * drawn.pop("reach")
    wander = tuple(between(0.0, 1.0) for _ in range(WANDERINGS))
    return Performance(
        gesture,
        person,
        light,
        position=position,
        cadence=cadence,
        reach=reach,
        wander=wander,
        **drawn,
    )


def draw_person(number: int, seed: int) -> Person:
    """Person `number` of the 35: 23 of the training part, then 6 of tuning and 6 of the pool."""
    between = _uniform_draws(seed, FIRST_PERSON + number)
    skin, sleeve = (between(*TABLE["person"][name]) for name in ("skin", "sleeve"))
    cuff = skin if between(0.0, 1.0) < 0.5 else sleeve
    lift, swing, fore_lift, fore_swing = (between(*TABLE["person"]["posture"]) for _ in range(4))
    build = {name: between(*limits) for name, limits in TABLE["build"].items()}
    return Person(
        skin=skin,
        sleeve=sleeve,
        cuff=cuff,
        posture=(lift, swing, fore_lift, fore_swing, 0.0),
        **build,
    )


def _uniform_draws(seed: int, number: int) -> Callable[[float, float], float]:
    """A function that draws a uniform number between two bounds, one after the other from the
    stream of one input or person.
    """
    values = iter(
        draw_uniforms(stream_keys(seed, Purpose.PATH, [number]), 0, MOST_DRAWS)[0].tolist()
    )
    return lambda low, high: low + (high - low) * next(values)


def _watch_part(
    numbers: Integers, done: Done, seed: int, downsample: int, steps: int, workers: int
) -> Made:
    labels = np.array(
        [draw_performance(number, seed).gesture for number in numbers.tolist()], dtype=np.int64
    )
    prepare = partial(_watcher, seed, downsample, steps)
    made = run_tasks(prepare, numbers.tolist(), workers, in_order=True)
    return join_rows((events for _, events in made), done), labels


def _watcher(seed: int, downsample: int, steps: int) -> Callable[[int], Events]:
    return partial(_watch_one, seed=seed, downsample=downsample, steps=steps)


def _watch_one(number: int, seed: int, downsample: int, steps: int) -> Events:
    """The counts (1, steps, 2, H, W) of one input."""
    times = np.arange(steps * MOMENTS + 1) * (FRAME / MOMENTS)
    pictures = (
        picture[None] for picture in render_frames(draw_performance(number, seed), times, SIZE)
    )
    events = watch_frames(pictures, SENSOR, seed, np.array([number]))
    height, width = SIZE[0] // downsample, SIZE[1] // downsample
    counts = np.empty((1, steps, 2, height, width), dtype=np.uint8)
    for step in range(steps):
        fired = sum(next(events)[0].astype(np.uint8) for _ in range(MOMENTS))
        cells = np.asarray(fired).reshape(2, height, downsample, width, downsample)
        counts[0, step] = cells.sum(axis=(2, 4), dtype=np.uint8)
    return Events.from_dense(counts)


def _check(folder: Path) -> Findings:
    yield FOUND, "nothing is needed: everything is simulated."


DATA_SET = DataSet.recorded("gesture-sim", TABLE["record"], load=simulate_gestures, check=_check)
