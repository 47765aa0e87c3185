"""The people of gesture-sim: what they do, and how they look to a camera.

A person is made of joint angles, limbs and images:

    angles(t) = rest + posture + s(t) (gesture(φ(t)) - rest),   φ(t) = φ_0 + 2π f τ(t)
    elbow = shoulder + a d,   wrist = elbow + b d',   fingertip = wrist + c d'
    d = (± sin lift cos swing, -cos lift, sin lift sin swing)
    I_t(u) = light(u) R_t(u)

R is painted capsule over capsule, from the farthest: R ← R + k cover(u) (tone(u) - R).

An arm has five joint values: lift (0 hangs, π/2 is level, π points up) and swing (0 outwards, π/2
to the camera, π across the body) of the upper arm, the same two of the forearm, and how far the
shoulder is raised. d and d' are the directions of upper arm and forearm. The lengths a, b and c
belong to the person and never change. Everybody stands with hanging arms for a delay, then moves
into the gesture: s rises smoothly from 0 to 1 over the ramp, and the way τ gets faster over it as
in `camera.simulator`.

Positions are in metres, (right, up, to the camera) from the point between the resting shoulders,
and projected in perspective. `cover` falls from 1 to 0 across the edge of a capsule
(a line with round ends), so edges move smoothly by any fraction of a pixel. Right and left are the
person's, so the right arm is on the left of the image; clockwise is as the camera sees it.
"""

import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import Floats

RIGHT, LEFT = 0, 1
SIDE = np.array([-1.0, 1.0])  # horizontal direction of the right and the left arm in the image
ARM_REST = np.array([0.15, 0.4, 0.25, 0.9, 0.0])
STILL = (0.0, 0.0, 0.0, 0.0, 0.0)
WANDERINGS = 20  # numbers that choose the motion of "other gestures"

CAMERA = 2.5  # metres from the person
SHADING = 0.4  # how much darker a limb's edge is than its middle
SHADOW_BLUR = 0.06  # metres over which a shadow's edge fades
SWAY = (0.008, 0.4)  # metres and cycles per second

TABLE: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("gesture_sim.toml").read_text("utf-8")
)


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
    slope   the share of the level by which it grows over the image's height downwards, and over its
            width to the right
    shadow  how dark the arms' shadow on the wall is, 0 for none
    offset  where the shadow falls, in metres to the right and up
    """

    name: str
    level: float
    slope: tuple[float, float]
    shadow: float
    offset: tuple[float, float]


LIGHTS = tuple(Light(**light) for light in TABLE["lights"])


@dataclass(frozen=True)
class Performance:
    """One person's gesture in front of one camera; times in seconds.

    gesture   index into GESTURES
    metre     length of a metre, as a share of the image's smaller side
    position  the point between the shoulders in the image, as shares of its height and width
              from the top left
    cadence   cycles per second
    phase     where in its cycle the gesture starts, in turns
    reach     width of the motion, 1 on average
    wall      tone of the wall behind the person
    wander    numbers from 0 to 1 that shift the wall's texture and choose the motion of
              "other gestures"
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
    """Shoulder, elbow, wrist and fingertip of both arms, (moments, 2, 4, 3), in metres right, up
    and to the camera.
    """
    upper_lift, upper_swing, lift, swing, raised = np.moveaxis(angles, 2, 0)
    shoulder = np.stack(np.broadcast_arrays(SIDE * person.shoulders, raised, 0.0), axis=2)
    forearm = _direction(lift, swing)
    elbow = shoulder + person.upper_arm * _direction(upper_lift, upper_swing)
    wrist = elbow + person.forearm * forearm
    return np.stack([shoulder, elbow, wrist, wrist + person.hand * forearm], axis=2)


def render_frames(
    performance: Performance, times: ArrayLike, size: tuple[int, int]
) -> Iterator[Floats]:
    """The intensities (H, W), from 0 to 1, at some times, one frame after the other."""
    moments = np.asarray(times, dtype=np.float64)
    joints = joint_positions(performance.person, joint_angles(performance, moments))
    # nobody stands quite still: the whole person leans to the right and to the left
    sway, pace = SWAY
    joints[..., 0] += (
        sway * np.sin(2 * np.pi * (pace * moments + performance.wander[2]))[:, None, None]
    )
    wall, light = _wall(performance, size), _lighting(performance.light, size)
    for joint in joints:
        image = wall.copy()
        for capsule in (*_shadows(performance, joint), *_body(performance.person, joint)):
            capsule.paint(image, performance)
        yield image * light


@dataclass(frozen=True)
class _Capsule:
    """A line with round ends; its ends (2, 3) and radius in metres, its edge `blur` metres wide
    or at least a pixel.
    """

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
        (x, x_end), (up, up_end) = (
            self.ends[:, 0] * nearness * metre,
            self.ends[:, 1] * nearness * metre,
        )
        x, x_end = (performance.position[1] * width - 0.5 + right for right in (x, x_end))
        y, y_end = (performance.position[0] * height - 0.5 - above for above in (up, up_end))
        radius, blur = self.radius * nearness.mean() * metre, max(self.blur * metre, 1.0)
        margin = radius + blur
        rows = slice(max(0, int(min(y, y_end) - margin)), max(0, int(max(y, y_end) + margin) + 2))
        columns = slice(
            max(0, int(min(x, x_end) - margin)), max(0, int(max(x, x_end) + margin) + 2)
        )
        patch = image[rows, columns]
        down = np.arange(rows.start, rows.start + patch.shape[0])[:, None] - y
        right = np.arange(columns.start, columns.start + patch.shape[1]) - x
        length, fall = x_end - x, y_end - y
        squared = max(length**2 + fall**2, 1e-9)
        along = np.minimum(
            np.maximum(right * (length / squared) + down * (fall / squared), 0.0), 1.0
        )
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
    # upper arm, forearm, hand
    limbs = ((0.05, person.sleeve), (0.042, person.cuff), (0.046, person.skin))
    arms = [
        _Capsule(arm[start : start + 2], radius * girth, tone)
        for arm in joint
        for start, (radius, tone) in enumerate(limbs)
    ]
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
    stripes = np.sin(2 * np.pi * (3.1 * right + 0.7 * down + first)) * np.sin(
        2 * np.pi * (1.9 * down - 0.6 * right + second)
    )
    return np.asarray(performance.wall * (1.0 + 0.15 * stripes))


def _lighting(light: Light, size: tuple[int, int]) -> Floats:
    down, right = (np.arange(side) / side - 0.5 for side in size)
    return np.asarray(
        np.minimum(
            light.level * (1.0 + light.slope[0] * down[:, None] + light.slope[1] * right), 1.0
        )
    )


def _direction(lift: Floats, swing: Floats) -> Floats:
    """Unit vectors (moments, 2, 3) of one limb of both arms."""
    return np.stack(
        [SIDE * np.sin(lift) * np.cos(swing), -np.cos(lift), np.sin(lift) * np.sin(swing)], axis=2
    )


def _arm(
    phase: Floats,
    reach: float,
    middle: Joints,
    sine: Joints = STILL,
    cosine: Joints = STILL,
    pace: float = 1.0,
) -> Floats:
    """Joint values (moments, 5) of a swinging arm; gesture_sim.toml has the formula."""
    swing = np.outer(np.sin(pace * phase), sine) + np.outer(np.cos(pace * phase), cosine)
    return np.asarray(np.array(middle) + reach * swing)


def _from_table(name: str) -> Motion:
    """The motion of that name in gesture_sim.toml."""
    arms = [TABLE["motions"][name].get(side, {"middle": ARM_REST}) for side in ("right", "left")]
    return lambda phase, performance: tuple(_arm(phase, performance.reach, **arm) for arm in arms)


def _clap(phase: Floats, performance: Performance) -> Arms:
    """The forearms swing in until the hands meet before the chest, and out again."""
    person, posture = performance.person, performance.person.posture
    upper_lift, upper_swing, lift, width = 0.55, 0.9, 1.75, 0.55
    elbow = person.shoulders + person.upper_arm * np.sin(upper_lift + posture[0]) * np.cos(
        upper_swing + posture[1]
    )
    across = elbow / ((person.forearm + person.hand) * np.sin(lift + posture[2]))
    meet = np.arccos(-min(across, 1.0)) - posture[3]
    middle = (upper_lift, upper_swing, lift, meet - width * performance.reach, 0.0)
    arm = _arm(phase, performance.reach, middle, cosine=(0.0, 0.0, 0.0, width, 0.0))
    return arm, arm


def _point(phase: Floats, performance: Performance) -> Arms:
    """One arm, right or left, points aside and is drawn back."""
    return _from_table("point right" if performance.wander[4] < 0.5 else "point left")(
        phase, performance
    )


def _wander(phase: Floats, performance: Performance) -> Arms:
    """Every joint swings around its middle with its own pace and phase."""
    pace, start = np.array(performance.wander[4:]).reshape(2, 2, 4)
    swings = np.sin((0.4 + 0.8 * pace) * phase[:, None, None] + 2 * np.pi * start)
    values = (
        np.array([1.0, 0.7, 1.7, 1.2]) + performance.reach * np.array([0.5, 0.5, 0.8, 0.8]) * swings
    )
    right, left = np.moveaxis(np.pad(values, ((0, 0), (0, 0), (0, 1))), 1, 0)
    return right, left


def _other(phase: Floats, performance: Performance) -> Arms:
    """One of six further motions."""
    return OTHERS[int(performance.wander[3] * len(OTHERS))](phase, performance)


OTHERS: tuple[Motion, ...] = (
    _from_table("up and down"),
    _point,
    _from_table("cross"),
    _from_table("shrug"),
    _from_table("push"),
    _wander,
)
GESTURES, CADENCE = tuple(TABLE["cadence"]), tuple(TABLE["cadence"].values())
MOTIONS: tuple[Motion, ...] = (_clap, *map(_from_table, GESTURES[1:-1]), _other)
