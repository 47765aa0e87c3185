"""gesture-sim: eleven gestures of simulated people in front of a simulated event camera; a stand-in for DVS128 Gesture.

Nothing in it is recorded: the people are drawn figures, the events come from the camera model (`camera.simulator`),
and every description of the data says so. As in DVS128 Gesture there are 1,176 inputs of 23 people for training and a pool of 288 inputs
of 6 other people, under three lights, on 128 × 128 pixels; 120 inputs of 6 further people are for tuning. An input shows 2.4 seconds
in T = 80 frames of 30 ms, and a frame counts the events of 4 steps of the camera:

    x_t(p, v) = Σ_{steps of frame t} Σ_{pixels u of cell v} [pixel u fires with polarity p],     cells of downsample × downsample pixels

Everybody begins with hanging arms and starts to move sooner or later, so the classes become clear only with time.

Every input draws its gesture, its person among those of its part, its light, its position, speed and noise independently and from the
same distributions. So the inputs of a part are exchangeable, as the guarantee of a calibrated rule assumes; the six people of the pool
are fixed by the seed, and the guarantee is about further inputs of these six. An input depends only on the seed, its part and its index
in the part, not on the number of other inputs or on the process that makes it.

A person is made of joint angles, limbs and images:

    angles(t) = rest + posture + s(t) (gesture(φ(t)) - rest),   φ(t) = φ_0 + 2π f τ(t)
    elbow = shoulder + a d,   wrist = elbow + b d',   fingertip = wrist + c d',   d = (± sin lift cos swing, -cos lift, sin lift sin swing)
    I_t(u) = light(u) R_t(u),   R painted capsule over capsule from the farthest:  R ← R + k cover(u) (tone(u) - R)

An arm has five joint values: lift (0 hangs, π/2 is level, π points up) and swing (0 outwards, π/2 to the camera, π across the
body) of the upper arm, the same two of the forearm, and how far the shoulder is raised. d and d' are the directions of upper arm and
forearm. The lengths a, b and c belong to the person and never change. Everybody stands with hanging arms for a delay, then moves into
the gesture: s rises smoothly from 0 to 1 over the ramp, and the way τ gets faster over it as in `camera.simulator`.

Positions are in metres, (right, up, to the camera) from the point between the resting shoulders, and projected in perspective. `cover`
falls from 1 to 0 across the edge of a capsule (a line with round ends), so edges move smoothly by any fraction of a pixel.
Right and left are the person's, so the right arm is on the left of the image; clockwise is as the camera sees it.
"""

import multiprocessing
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import Floats, InputError, Integers, ProgressCallback, as_count, as_seed, is_integer

from ..camera.simulator import Purpose, Sensor, draw_uniforms, stream_keys, watch_frames
from ..container import Events
from ..data import FOUND, DataSet, Done, EventSplits, Findings, Made, Sizes, as_sizes, join_rows, make_splits

STEPS = 80
SIZE = (128, 128)
FRAME = 0.03  # seconds
MOMENTS = 4  # steps of the camera in a frame
SENSOR = Sensor(contrast=0.15, mismatch=0.03, refractory=1, leak=0.0002, shot_noise=0.0002, dark=0.1)
SIZES = (1_176, 120, 288)
PEOPLE = (23, 6, 6)  # in the three parts; nobody is in two of them
DOWNSAMPLES = (1, 2, 4, 8)  # a pixel makes at most two events in a frame, so the count of 8 × 8 pixels fits a byte
CHUNK = 4  # inputs that are sent to a process at a time

PART = 2**40  # the inputs of the parts are numbered from 0, 2^40 and 2^41, and people after all inputs
FIRST_PERSON = 2**61
MOST_DRAWS = 64  # more than a person or a performance needs

RIGHT, LEFT = 0, 1
SIDE = np.array([-1.0, 1.0])  # horizontal direction of the right and the left arm in the image
ARM_REST = np.array([0.15, 0.4, 0.25, 0.9, 0.0])
STILL = (0.0, 0.0, 0.0, 0.0, 0.0)
WANDERINGS = 20  # numbers that choose the motion of "other gestures"

CAMERA = 2.5  # metres from the person
SHADING = 0.4  # how much darker a limb's edge is than its middle
SHADOW_BLUR = 0.06  # metres over which a shadow's edge fades
SWAY = (0.008, 0.4)  # metres and cycles per second

_TABLE: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


@dataclass(frozen=True)
class Person:
    """Build, clothes and manner; lengths in metres, tones from 0 for black to 1 for white.

    shoulders  half the distance between them
    girth      thickness of limbs and trunk, 1 on average
    sleeve     tone of shirt and upper arms
    cuff       tone of the forearms: the sleeve's, or the skin's where sleeves are short
    reach      how wide the gestures are, 1 on average
    tempo      how fast they are, 1 on average
    posture    added to the five joint values of both arms
    """

    shoulders: float
    upper_arm: float
    forearm: float
    hand: float
    head: float
    girth: float
    skin: float
    sleeve: float
    cuff: float
    hair: float
    reach: float
    tempo: float
    posture: tuple[float, float, float, float, float]


@dataclass(frozen=True)
class Light:
    """An illumination.

    level   light on the middle of the image, at most 1
    slope   the share of the level by which it grows over the image's height downwards, and over its width to the right
    shadow  how dark the arms' shadow on the wall is, 0 for none
    offset  where the shadow falls, in metres to the right and up
    """

    name: str
    level: float
    slope: tuple[float, float]
    shadow: float
    offset: tuple[float, float]


LIGHTS = tuple(Light(**light) for light in _TABLE["lights"])


@dataclass(frozen=True)
class Performance:
    """One person's gesture in front of one camera; times in seconds.

    gesture   index into GESTURES
    metre     length of a metre, as a share of the image's smaller side
    position  the point between the shoulders in the image, as shares of its height and width from the top left
    cadence   cycles per second
    phase     where in its cycle the gesture starts, in turns
    reach     width of the motion, 1 on average
    wall      tone of the wall behind the person
    wander    numbers from 0 to 1 that shift the wall's texture and choose the motion of "other gestures"
    """

    gesture: int
    person: Person
    light: Light
    metre: float
    position: tuple[float, float]
    cadence: float
    phase: float
    delay: float
    ramp: float
    reach: float
    wall: float
    wander: tuple[float, ...]


Joints: TypeAlias = Sequence[float]  # the five joint values of an arm
Arms: TypeAlias = tuple[Floats, ...]  # the right arm, then the left arm
Motion: TypeAlias = Callable[[Floats, Performance], Arms]
"""Joint values (moments, 5) of the right and the left arm, from the phase at each moment."""


def simulate_gestures(
    seed: int = 0, sizes: Sizes = SIZES, downsample: int = 4, steps: int = STEPS, workers: int = 1, progress: ProgressCallback | None = None
) -> EventSplits:
    """Counts of events (n, steps, 2, 128 / downsample, 128 / downsample) as uint8, simulated on 128 × 128 pixels.

    seed        chooses the people, the performances and the noise
    sizes       how many inputs training, tuning and the pool have
    downsample  the width and height of a cell in pixels: 1, 2, 4 or 8
    steps       T, the frames of an input; with a smaller T the first frames are the same
    workers     processes that share the work; the result does not depend on it. A script that asks for several must start under
                `if __name__ == "__main__":`, because each process imports it
    """
    as_seed(seed)
    if not is_integer(downsample) or downsample not in DOWNSAMPLES:
        raise InputError(f"downsample is {downsample!r}: give the side of a cell in pixels, 1, 2, 4 or 8.")
    as_count(steps, "steps")
    as_count(workers, "workers")
    numbers = [part * PART + np.arange(size, dtype=np.int64) for part, size in enumerate(as_sizes(sizes))]
    make = partial(_watch_part, seed=seed, downsample=downsample, steps=steps, workers=workers)
    return make_splits("gesture-sim", numbers, make, GESTURES, progress)


def draw_performance(number: int, seed: int) -> Performance:
    """What input `number` shows; the parts' inputs are numbered from 0, 2^40 and 2^41."""
    between = _uniform_draws(seed, number)
    part = number // PART
    gesture = int(between(0, len(GESTURES)))
    person = draw_person(sum(PEOPLE[:part]) + int(between(0, PEOPLE[part])), seed)
    light = LIGHTS[int(between(0, len(LIGHTS)))]
    drawn = {name: between(*limits) for name, limits in _TABLE["performance"].items()}
    position = drawn.pop("down"), drawn.pop("right")
    cadence, reach = CADENCE[gesture] * person.tempo * drawn.pop("tempo"), person.reach * drawn.pop("reach")
    wander = tuple(between(0.0, 1.0) for _ in range(WANDERINGS))
    return Performance(gesture, person, light, position=position, cadence=cadence, reach=reach, wander=wander, **drawn)


def draw_person(number: int, seed: int) -> Person:
    """Person `number` of the 35: 23 of the training part, then 6 of tuning and 6 of the pool."""
    between = _uniform_draws(seed, FIRST_PERSON + number)
    skin, sleeve = (between(*_TABLE["person"][name]) for name in ("skin", "sleeve"))
    cuff = skin if between(0.0, 1.0) < 0.5 else sleeve
    lift, swing, fore_lift, fore_swing = (between(*_TABLE["person"]["posture"]) for _ in range(4))
    build = {name: between(*limits) for name, limits in _TABLE["build"].items()}
    return Person(skin=skin, sleeve=sleeve, cuff=cuff, posture=(lift, swing, fore_lift, fore_swing, 0.0), **build)


def _uniform_draws(seed: int, number: int) -> Callable[[float, float], float]:
    """A function that draws a uniform number between two bounds, one after the other from the stream of one input or person."""
    values = iter(draw_uniforms(stream_keys(seed, Purpose.PATH, [number]), 0, MOST_DRAWS)[0].tolist())
    return lambda low, high: low + (high - low) * next(values)


def _watch_part(numbers: Integers, done: Done, seed: int, downsample: int, steps: int, workers: int) -> Made:
    labels = np.array([draw_performance(number, seed).gesture for number in numbers.tolist()], dtype=np.int64)
    watch = partial(_watch_one, seed=seed, downsample=downsample, steps=steps)
    # Each process is spawned: a fork of a process that runs threads, as torch and numba do, can hang.
    with nullcontext() if workers == 1 else ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as processes:
        made = map(watch, numbers.tolist()) if processes is None else processes.map(watch, numbers.tolist(), chunksize=CHUNK)
        return join_rows(made, done), labels


def _watch_one(number: int, seed: int, downsample: int, steps: int) -> Events:
    """The counts (1, steps, 2, H, W) of one input."""
    times = np.arange(steps * MOMENTS + 1) * (FRAME / MOMENTS)
    pictures = (picture[None] for picture in render_frames(draw_performance(number, seed), times, SIZE))
    events = watch_frames(pictures, SENSOR, seed, np.array([number]))
    height, width = SIZE[0] // downsample, SIZE[1] // downsample
    counts = np.empty((1, steps, 2, height, width), dtype=np.uint8)
    for step in range(steps):
        fired = sum(next(events)[0].astype(np.uint8) for _ in range(MOMENTS))
        cells = np.asarray(fired).reshape(2, height, downsample, width, downsample)
        counts[0, step] = cells.sum(axis=(2, 4), dtype=np.uint8)
    return Events.from_dense(counts)


def joint_angles(performance: Performance, times: ArrayLike) -> Floats:
    """The joint values (moments, 2 arms, 5) at some times, the right arm before the left."""
    since = np.maximum(np.asarray(times, dtype=np.float64) - performance.delay, 0.0)
    ramp = performance.ramp
    way = np.where(since < ramp, since**2 / (2 * ramp), since - ramp / 2)
    phase = 2 * np.pi * (performance.phase + performance.cadence * way)
    part = np.minimum(since / ramp, 1.0)
    weight = (part**2 * (3 - 2 * part))[:, None, None]
    motion = np.stack(MOTIONS[performance.gesture](phase, performance), axis=1)
    return ARM_REST + np.array(performance.person.posture) + weight * (motion - ARM_REST)


def joint_positions(person: Person, angles: Floats) -> Floats:
    """Shoulder, elbow, wrist and fingertip of both arms, (moments, 2, 4, 3), in metres right, up and to the camera."""
    upper_lift, upper_swing, lift, swing, raised = np.moveaxis(angles, 2, 0)
    shoulder = np.stack(np.broadcast_arrays(SIDE * person.shoulders, raised, 0.0), axis=2)
    forearm = _direction(lift, swing)
    elbow = shoulder + person.upper_arm * _direction(upper_lift, upper_swing)
    wrist = elbow + person.forearm * forearm
    return np.stack([shoulder, elbow, wrist, wrist + person.hand * forearm], axis=2)


def render_frames(performance: Performance, times: ArrayLike, size: tuple[int, int]) -> Iterator[Floats]:
    """The intensities (H, W), from 0 to 1, at some times, one frame after the other."""
    moments = np.asarray(times, dtype=np.float64)
    joints = joint_positions(performance.person, joint_angles(performance, moments))
    sway, pace = SWAY  # nobody stands quite still: the whole person leans to the right and to the left
    joints[..., 0] += sway * np.sin(2 * np.pi * (pace * moments + performance.wander[2]))[:, None, None]
    wall, light = _wall(performance, size), _lighting(performance.light, size)
    for joint in joints:
        image = wall.copy()
        for capsule in (*_shadows(performance, joint), *_body(performance.person, joint)):
            capsule.paint(image, performance)
        yield image * light


@dataclass(frozen=True)
class _Capsule:
    """A line with round ends; its ends (2, 3) and radius in metres, its edge `blur` metres wide or at least a pixel."""

    ends: Floats
    radius: float
    tone: float
    cover: float = 1.0
    blur: float = 0.0

    def paint(self, image: Floats, performance: Performance) -> None:
        """Paint over the image (H, W), within the box that holds the capsule."""
        height, width = image.shape
        metre = performance.metre * min(height, width)
        nearness = CAMERA / (CAMERA - self.ends[:, 2])
        (x, x_end), (up, up_end) = self.ends[:, 0] * nearness * metre, self.ends[:, 1] * nearness * metre
        x, x_end = (performance.position[1] * width - 0.5 + right for right in (x, x_end))
        y, y_end = (performance.position[0] * height - 0.5 - above for above in (up, up_end))
        radius, blur = self.radius * nearness.mean() * metre, max(self.blur * metre, 1.0)
        margin = radius + blur
        rows = slice(max(0, int(min(y, y_end) - margin)), max(0, int(max(y, y_end) + margin) + 2))
        columns = slice(max(0, int(min(x, x_end) - margin)), max(0, int(max(x, x_end) + margin) + 2))
        patch = image[rows, columns]
        down = np.arange(rows.start, rows.start + patch.shape[0])[:, None] - y
        right = np.arange(columns.start, columns.start + patch.shape[1]) - x
        length, fall = x_end - x, y_end - y
        squared = max(length**2 + fall**2, 1e-9)
        along = np.minimum(np.maximum(right * (length / squared) + down * (fall / squared), 0.0), 1.0)
        distance = np.sqrt((right - along * length) ** 2 + (down - along * fall) ** 2)
        cover = np.minimum(np.maximum((radius - distance) / blur + 0.5, 0.0), 1.0)
        tone = self.tone * (1.0 - SHADING * np.minimum(distance / radius, 1.0) ** 2)
        patch += self.cover * cover * (tone - patch)


def _body(person: Person, joint: Floats) -> list[_Capsule]:
    """The figure at one moment, from the farthest capsule to the nearest."""
    girth, middle = person.girth, joint[:, 0].mean(axis=0)
    neck = middle + np.array([0.0, 0.05, 0.0])
    face = middle + np.array([0.0, 0.08 + person.head, 0.0])
    chest = middle + np.array([0.0, -0.15, 0.0])
    hips = np.array([middle[0], -1.2, 0.0])  # below the image: only the trunk shows
    up = np.array([0.0, 0.03, 0.0])
    trunk = [
        _Capsule(np.stack([chest, hips]), 0.165 * girth, person.sleeve),
        _Capsule(joint[:, 0] - np.array([0.0, 0.03, 0.0]), 0.065 * girth, person.sleeve),
        _Capsule(np.stack([middle, neck]), 0.05 * girth, person.skin),
        _Capsule(np.stack([face + up, face + 1.5 * up]), 1.05 * person.head, person.hair),
        _Capsule(np.stack([face - 1.5 * up, face]), 0.85 * person.head, person.skin),
    ]
    limbs = ((0.05, person.sleeve), (0.042, person.cuff), (0.046, person.skin))  # upper arm, forearm, hand
    arms = [_Capsule(arm[start : start + 2], radius * girth, tone) for arm in joint for start, (radius, tone) in enumerate(limbs)]
    return trunk + sorted(arms, key=lambda capsule: float(capsule.ends[:, 2].sum()))


def _shadows(performance: Performance, joint: Floats) -> list[_Capsule]:
    """The shadows of the arms on the wall."""
    light, girth = performance.light, performance.person.girth
    fallen = joint * np.array([1.0, 1.0, 0.0]) + np.array([*light.offset, 0.0])
    pairs = [arm[[start, end]] for arm in fallen for start, end in ((0, 1), (1, 3))]
    return [_Capsule(ends, 0.05 * girth, 0.0, light.shadow, SHADOW_BLUR) for ends in pairs]


def _wall(performance: Performance, size: tuple[int, int]) -> Floats:
    """A wall with faint broad stripes, which do not move."""
    down, right = np.arange(size[0])[:, None] / size[0], np.arange(size[1]) / size[1]
    first, second, *_ = performance.wander
    stripes = np.sin(2 * np.pi * (3.1 * right + 0.7 * down + first)) * np.sin(2 * np.pi * (1.9 * down - 0.6 * right + second))
    return np.asarray(performance.wall * (1.0 + 0.15 * stripes))


def _lighting(light: Light, size: tuple[int, int]) -> Floats:
    down, right = (np.arange(side) / side - 0.5 for side in size)
    return np.asarray(np.minimum(light.level * (1.0 + light.slope[0] * down[:, None] + light.slope[1] * right), 1.0))


def _direction(lift: Floats, swing: Floats) -> Floats:
    """Unit vectors (moments, 2, 3) of one limb of both arms."""
    return np.stack([SIDE * np.sin(lift) * np.cos(swing), -np.cos(lift), np.sin(lift) * np.sin(swing)], axis=2)


def _arm(phase: Floats, reach: float, middle: Joints, sine: Joints = STILL, cosine: Joints = STILL, pace: float = 1.0) -> Floats:
    """Joint values (moments, 5) of a swinging arm; gesture_sim.toml has the formula."""
    swing = np.outer(np.sin(pace * phase), sine) + np.outer(np.cos(pace * phase), cosine)
    return np.asarray(np.array(middle) + reach * swing)


def _from_table(name: str) -> Motion:
    """The motion of that name in gesture_sim.toml."""
    arms = [_TABLE["motions"][name].get(side, {"middle": ARM_REST}) for side in ("right", "left")]
    return lambda phase, performance: tuple(_arm(phase, performance.reach, **arm) for arm in arms)


def _clap(phase: Floats, performance: Performance) -> Arms:
    """The forearms swing in until the hands meet before the chest, and out again."""
    person, posture = performance.person, performance.person.posture
    upper_lift, upper_swing, lift, width = 0.55, 0.9, 1.75, 0.55
    elbow = person.shoulders + person.upper_arm * np.sin(upper_lift + posture[0]) * np.cos(upper_swing + posture[1])
    across = elbow / ((person.forearm + person.hand) * np.sin(lift + posture[2]))
    meet = np.arccos(-min(across, 1.0)) - posture[3]
    middle = (upper_lift, upper_swing, lift, meet - width * performance.reach, 0.0)
    arm = _arm(phase, performance.reach, middle, cosine=(0.0, 0.0, 0.0, width, 0.0))
    return arm, arm


def _point(phase: Floats, performance: Performance) -> Arms:
    """One arm, right or left, points aside and is drawn back."""
    return _from_table("point right" if performance.wander[4] < 0.5 else "point left")(phase, performance)


def _wander(phase: Floats, performance: Performance) -> Arms:
    """Every joint swings around its middle with its own pace and phase."""
    pace, start = np.array(performance.wander[4:]).reshape(2, 2, 4)
    swings = np.sin((0.4 + 0.8 * pace) * phase[:, None, None] + 2 * np.pi * start)
    values = np.array([1.0, 0.7, 1.7, 1.2]) + performance.reach * np.array([0.5, 0.5, 0.8, 0.8]) * swings
    right, left = np.moveaxis(np.pad(values, ((0, 0), (0, 0), (0, 1))), 1, 0)
    return right, left


def _other(phase: Floats, performance: Performance) -> Arms:
    """One of six further motions."""
    return OTHERS[int(performance.wander[3] * len(OTHERS))](phase, performance)


OTHERS: tuple[Motion, ...] = (_from_table("up and down"), _point, _from_table("cross"), _from_table("shrug"), _from_table("push"), _wander)
GESTURES, CADENCE = tuple(_TABLE["cadence"]), tuple(_TABLE["cadence"].values())
MOTIONS: tuple[Motion, ...] = (_clap, *map(_from_table, GESTURES[1:-1]), _other)


def _check(folder: Path) -> Findings:
    yield FOUND, "nothing is needed: everything is simulated."


DATA_SET = DataSet.recorded("gesture-sim", load=simulate_gestures, check=_check)
