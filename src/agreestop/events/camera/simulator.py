"""An event camera in front of a moving image: each pixel reports when its log-intensity has
changed enough.

    L_t(u) = log(dark + I_t(u)),     d_t(u) = L_t(u) - m_{t-1}(u) + leak θ_on(u)
    ON  at step t:  d_t(u) >= θ_on(u),     OFF at step t:  d_t(u) <= -θ_off(u)
    and both at random, at the rate of the shot noise
    m_t(u) = L_t(u) where pixel u fires or rests,  m_{t-1}(u) - leak θ_on(u) elsewhere

Here m is the level that a pixel remembers from its last event, and θ_on, θ_off are the contrast
threshold with the mismatch of that pixel: one pattern for the camera, the same for every input. A
pixel that has fired rests for the refractory time: it is silent and its memory follows the light.
It makes at most one event in a step, so a change of many thresholds within a step is one event.
The model is that of Lichtsteiner, Posch and Delbruck (2008), with the noise of Hu, Liu and
Delbruck (2021).

Images can move along any path, the shift (down, right) in pixels at the times 0..T. `circular_path`
makes circles around the centre:

    s(t) = ρ (sin α, cos α),   α = φ ± 2π τ(t)/P,   τ(t) = t²/(2a) up to t = a, t - a/2 after

τ(t) is the way of a motion that gets faster over its first a steps, the slow start. Every input
draws its angle φ, radius ρ, period P, direction ± and slow start a uniformly from the given range.

The path and the events of an input depend on the seed and on the input's number, never on the batch
it is in: number j of the stream of random numbers of input i depends only on (seed, purpose, i, j),
and is computed for all inputs at once.

    key_i = mix(mix(seed + γ (purpose + 1)) + γ (i + 1)),   draw_{i,j} = mix(key_i + γ (j + 1))

with `common.mix`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import (
    GAMMA,
    Booleans,
    Floats,
    InputError,
    Integers,
    Words,
    as_array,
    as_count,
    as_floats,
    as_seed,
    as_size,
    check_finite,
    is_integer,
    is_number,
    mix,
)

# one number for all inputs, or the lowest and the highest
Range: TypeAlias = float | tuple[float, float]

ON, OFF = 0, 1  # the channels
LEAST_THRESHOLD = 0.1  # the lowest threshold of a pixel, as a share of the contrast


@dataclass(frozen=True)
class Sensor:
    """An event camera's settings; times are in steps, rates in events per pixel and step.

    contrast    change of log-intensity that makes an event, θ
    mismatch    standard deviation of θ between pixels, in the same unit
    refractory  steps that a pixel rests after an event, 0 for none
    leak        rate of the ON events of a pixel that sees no change: its memory falls by this share
                of θ_on in each step
    shot_noise  rate of noise events of either polarity (Poisson; a pixel that draws several in a
                step shows one)
    dark        light that reaches a pixel where the image is black; where it is white, 1 more does
    """

    contrast: float = 0.2
    mismatch: float = 0.03
    refractory: int = 1
    leak: float = 0.001
    shot_noise: float = 0.001
    dark: float = 0.1

    def __post_init__(self) -> None:
        for name, hint in (("contrast", "for example 0.2"), ("dark", "for example 0.1")):
            value = getattr(self, name)
            if not is_number(value) or value <= 0:
                raise InputError(f"{name} is {value!r}: give a positive number, {hint}.")
        for name, hint in (
            ("mismatch", "0 for pixels that are all alike"),
            ("shot_noise", "0 for no noise"),
        ):
            value = getattr(self, name)
            if not is_number(value) or value < 0:
                raise InputError(f"{name} is {value!r}: give a number of at least 0, {hint}.")
        if not is_number(self.leak) or not 0 <= self.leak < 1:
            raise InputError(
                f"leak is {self.leak!r}: give the events per step, from 0 for none to less than 1."
            )
        if not is_integer(self.refractory) or not 0 <= self.refractory < 2**15:
            raise InputError(
                f"refractory is {self.refractory!r}: give the whole steps that a pixel rests, 0 "
                "for none, below 32768."
            )

    def thresholds(self, size: tuple[int, int], seed: int) -> Floats:
        """θ of every pixel, (2, H, W), ON before OFF: contrast + mismatch · normal, at least a
        tenth of the contrast.
        """
        height, width = as_size(size)
        pattern = draw_normals(stream_keys(seed, Purpose.MISMATCH, 1), 0, 2 * height * width)
        return np.maximum(
            self.contrast + self.mismatch * pattern, LEAST_THRESHOLD * self.contrast
        ).reshape(2, height, width)


def simulate_events(
    images: ArrayLike,
    path: ArrayLike,
    size: tuple[int, int],
    sensor: Sensor,
    seed: int,
    inputs: Sequence[int] | Integers | None = None,
    scale: float = 1.0,
    background: float = 0.0,
) -> Booleans:
    """Events (n, T, 2, H, W), ON before OFF, of images (n, h, w) that move along a path
    (n or 1, T+1, 2).

    size    the sensor's (H, W)
    inputs  the numbers of the inputs (n,), which choose their noise; default: 0..n-1

    See `move_images` for images, path, scale and background. In addition to the result,
    memory holds one frame of intensities and of each state for every input, independent of
    the number of steps.
    """
    frames = move_images(images, path, size, scale, background)
    n, steps = len(np.asarray(images)), np.shape(path)[1] - 1
    numbers = as_numbers(n if inputs is None else inputs)
    if len(numbers) != n:
        raise InputError(
            f"inputs has {len(numbers)} numbers for {n} images: give one for each image."
        )
    events = np.empty((n, steps, 2, *as_size(size)), dtype=bool)
    for step, fired in enumerate(watch_frames(frames, sensor, seed, numbers)):
        events[:, step] = fired
    return events


def watch_frames(
    frames: Iterator[Floats], sensor: Sensor, seed: int, numbers: Integers
) -> Iterator[Booleans]:
    """The events (n, 2, H, W) of the steps 1..T, one after the other, of frames of intensities
    (n, H, W) at the times 0..T.

    The numbers of the inputs (n,) choose their noise. Only one frame of each state is kept
    for every input.
    """
    level = np.log(next(frames) + sensor.dark)
    threshold = sensor.thresholds((level.shape[1], level.shape[2]), seed)
    fall = sensor.leak * threshold[ON]
    memory = level - _leaked_before(level, threshold, sensor, seed, numbers)
    rest = np.zeros(level.shape, dtype=np.int16)
    noise = stream_keys(seed, Purpose.SHOT_NOISE, numbers)
    for step, frame in enumerate(frames):
        level = np.log(frame + sensor.dark)
        memory -= fall
        change = level - memory
        ready = rest == 0
        events = np.empty((len(level), 2, *level.shape[1:]), dtype=bool)
        on, off = events[:, ON], events[:, OFF]
        np.logical_and(change >= threshold[ON], ready, out=on)
        np.logical_and(change <= -threshold[OFF], ready, out=off)
        if sensor.shot_noise:
            _add_shot_noise(on, off, ready, sensor.shot_noise, noise, step)
        fired = on | off
        np.copyto(memory, level, where=fired | ~ready)
        rest -= ~ready
        rest[fired] = sensor.refractory
        yield events


def move_images(
    images: ArrayLike,
    path: ArrayLike,
    size: tuple[int, int],
    scale: float = 1.0,
    background: float = 0.0,
) -> Iterator[Floats]:
    """The intensities (n, H, W) that the sensor sees at times 0..T, one frame after the other.

    images      (n, h, w), from 0 for black to 1 for white
    path        (n, T+1, 2), or (1, T+1, 2) where all images move alike: the offset (down, right),
                in the sensor's pixels, of the image's centre from the sensor's centre at each time
    size        the sensor's (H, W)
    scale       how many of the sensor's pixels a pixel of the image is wide
    background  the intensity beyond an image's edge

    I_t(y, x) = Σ_{j,k} Λ((y - y_{t,j}) / scale) Λ((x - x_{t,k}) / scale) image(j, k), with
    Λ(z) = max(0, 1 - |z|) and (y_{t,j}, x_{t,k}) the position of the image's pixel (j, k) at time
    t: bilinear interpolation, for any fraction of a pixel.
    """
    pictures = as_floats(images, "images")
    if pictures.ndim != 3 or pictures.size == 0:
        raise InputError(
            f"images has shape {pictures.shape}: three axes (n, h, w), none of them empty, are "
            "needed."
        )
    check_finite(pictures, "images")
    low, high = pictures.min(), pictures.max()
    if low < 0 or high > 1:
        raise InputError(
            f"images reaches from {low:.6g} to {high:.6g}: intensities from 0 to 1 are needed, so "
            "divide by the white level."
        )
    if not is_number(background) or not 0 <= background <= 1:
        raise InputError(
            f"background is {background!r}: give the intensity beyond the image's edge, from 0 to "
            "1."
        )
    if not is_number(scale) or scale <= 0:
        raise InputError(
            f"scale is {scale!r}: give how many of the sensor's pixels a pixel of the image is "
            "wide, for example 1."
        )
    shifts = as_floats(path, "path")
    if (
        shifts.ndim != 3
        or shifts.shape[2] != 2
        or shifts.shape[1] < 2
        or shifts.shape[0] not in (1, len(pictures))
    ):
        raise InputError(
            f"path has shape {shifts.shape} for {len(pictures)} images: (n, T+1, 2) is needed, the "
            "shift (down, right) of each image, "
            "or of all where n is 1, at the times 0 to T, T at least 1."
        )
    check_finite(shifts, "path")
    return _frames(pictures, shifts, as_size(size), scale, background)


def circular_path(
    inputs: int | Sequence[int] | Integers,
    steps: int,
    radius: Range = (1.0, 2.0),
    period: Range = (60.0, 80.0),
    angle: Range = (0.0, 1.0),
    either_way: bool = True,
    slow_start: Range = 0.0,
    seed: int = 0,
) -> Floats:
    """Circles (n, T+1, 2) of `inputs`, their count or their numbers; radius in pixels, period in
    steps, first angle in turns.
    """
    drawn = draw_uniforms(stream_keys(seed, Purpose.PATH, inputs), 0, 5)
    turn, start, cycle, reach, first = (drawn[:, [column]] for column in range(5))
    time = np.arange(as_count(steps, "steps") + 1, dtype=np.float64)
    pickup = _between(start, slow_start, "slow_start")
    way = np.where(time < pickup, time**2 / (2 * np.maximum(pickup, 1e-9)), time - pickup / 2)
    turns = (
        np.where((turn < 0.5) & either_way, -1.0, 1.0)
        * way
        / _between(cycle, period, "period", least=1.0)
    )
    distance = _between(reach, radius, "radius")
    angles = 2 * np.pi * (_between(first, angle, "angle") + turns)
    return np.stack([distance * np.sin(angles), distance * np.cos(angles)], axis=2)


def _between(share: Floats, values: Range, name: str, least: float = 0.0) -> Floats:
    """Uniform numbers of [0, 1), stretched to the range."""
    ends = values if isinstance(values, (tuple, list)) else (values, values)
    if len(ends) != 2 or not all(is_number(end) for end in ends) or not least <= ends[0] <= ends[1]:
        raise InputError(
            f"{name} is {values!r}: give one number of at least {least:g}, or the lowest and the "
            "highest as a pair."
        )
    return ends[0] + (ends[1] - ends[0]) * share


def _frames(
    pictures: Floats, shifts: Floats, size: tuple[int, int], scale: float, background: float
) -> Iterator[Floats]:
    pictures = pictures - background
    for moment in range(shifts.shape[1]):
        rows = _hat_weights(size[0], pictures.shape[1], shifts[:, moment, 0], scale)
        columns = _hat_weights(size[1], pictures.shape[2], shifts[:, moment, 1], scale)
        # rounding could make it negative
        yield np.maximum(rows @ pictures @ columns.swapaxes(1, 2) + background, 0.0)


def _hat_weights(pixels: int, points: int, shift: Floats, scale: float) -> Floats:
    """Λ((y - y_j) / scale) along one axis, (n or 1, pixels, points), for the sensor's pixels y
    and the image's points j.
    """
    position = (np.arange(pixels) - (pixels - 1) / 2 - shift[:, None]) / scale + (points - 1) / 2
    return np.maximum(0.0, 1.0 - np.abs(position[:, :, None] - np.arange(points)))


def _leaked_before(
    level: Floats, threshold: Floats, sensor: Sensor, seed: int, numbers: Integers
) -> Floats:
    """How far each memory has fallen before the recording begins: the camera was on, and each
    pixel is between two leak events.
    """
    if not sensor.leak:
        return np.zeros_like(level)
    share = draw_uniforms(stream_keys(seed, Purpose.LEAK, numbers), 0, level[0].size)
    return share.reshape(level.shape) * threshold[ON]


def _add_shot_noise(
    on: Booleans, off: Booleans, ready: Booleans, rate: float, streams: Words, step: int
) -> None:
    """Noise events where a pixel is ready and has not fired: each polarity with probability
    (1 - exp(-2 rate)) / 2.
    """
    pixels = ready[0].size
    words = draw_words(streams, step * pixels, pixels).reshape(ready.shape)
    bound = int(-math.expm1(-2.0 * rate) / 2.0 * 2.0**64)
    free = ready & ~(on | off)
    on |= free & (words < np.uint64(bound))
    off |= free & (words >= np.uint64(2**64 - max(bound, 1)))


class Purpose(IntEnum):
    """The purpose of a stream: numbers drawn for one purpose are independent of
    those for another.
    """

    MISMATCH = 0
    LEAK = 1
    SHOT_NOISE = 2
    PATH = 3


def as_numbers(inputs: int | Sequence[int] | Integers) -> Integers:
    """Input numbers (n,): those given, or 0..n-1 where only their count n is given."""
    if is_integer(inputs):
        if inputs < 1:
            raise InputError(
                f"inputs is {inputs}: give how many inputs there are, at least 1, or a list of "
                "their numbers."
            )
        return np.arange(inputs, dtype=np.int64)
    numbers = as_array(inputs, "inputs")
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or not len(numbers):
        raise InputError(
            f"inputs has shape {numbers.shape} and dtype {numbers.dtype}: give how many inputs "
            "there are, or a list of their numbers."
        )
    if numbers.min() < 0 or numbers.max() >= 2**62:
        wrong = numbers[(numbers < 0) | (numbers >= 2**62)][0]
        raise InputError(f"inputs holds {wrong}: number the inputs from 0 to 2^62 - 1.")
    return numbers.astype(np.int64)


def stream_keys(seed: int, purpose: Purpose, inputs: int | Sequence[int] | Integers) -> Words:
    """The state at which the stream of every input starts, (n,)."""
    start = mix(
        np.array([as_seed(seed)], dtype=np.uint64)
        + GAMMA * np.array([purpose + 1], dtype=np.uint64)
    )
    return mix(start + GAMMA * (as_numbers(inputs).astype(np.uint64) + np.uint64(1)))


def draw_words(keys: Words, first: int, count: int) -> Words:
    """Draws first..first+count-1 of every stream, (n, count): integers, uniform on 0..2^64-1."""
    return mix(keys[:, None] + GAMMA * np.arange(first + 1, first + count + 1, dtype=np.uint64))


def draw_uniforms(keys: Words, first: int, count: int) -> Floats:
    """The same draws as numbers in [0, 1), (n, count)."""
    return (draw_words(keys, first, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw_normals(keys: Words, first: int, count: int) -> Floats:
    """Standard normal numbers (n, count) by Box and Muller, from draws 2 first..2
    (first+count)-1.
    """
    pairs = draw_uniforms(keys, 2 * first, 2 * count).reshape(len(keys), count, 2)
    return np.sqrt(-2.0 * np.log1p(-pairs[..., 0])) * np.cos(2.0 * np.pi * pairs[..., 1])
