"""The camera, one pixel at a time in plain Python: what the simulator must agree with, event for
event.
"""

from __future__ import annotations

import math

import numpy as np

from agreestop.common import Booleans, Floats
from agreestop.events import Sensor
from agreestop.events.camera.simulator import Purpose

GAMMA = 0x9E3779B97F4A7C15
WORD = 2**64


def mix(word: int) -> int:
    """SplitMix64's finaliser on a Python integer."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) % WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % WORD
    return word ^ (word >> 31)


def draw(seed: int, purpose: Purpose, number: int, index: int) -> int:
    """Draw `index` of the stream of input `number`."""
    key = mix((mix((seed + GAMMA * (purpose + 1)) % WORD) + GAMMA * (number + 1)) % WORD)
    return mix((key + GAMMA * (index + 1)) % WORD)


def intensity(image: Floats, y: float, x: float, background: float) -> float:
    """Bilinear interpolation between the four neighbours of the position (y, x) in the image."""
    top, left = math.floor(y), math.floor(x)

    def at(row: int, column: int) -> float:
        inside = 0 <= row < image.shape[0] and 0 <= column < image.shape[1]
        return float(image[row, column]) if inside else background

    upper = (1 - (x - left)) * at(top, left) + (x - left) * at(top, left + 1)
    lower = (1 - (x - left)) * at(top + 1, left) + (x - left) * at(top + 1, left + 1)
    return (1 - (y - top)) * upper + (y - top) * lower


def watch(
    image: Floats,
    path: Floats,
    size: tuple[int, int],
    sensor: Sensor,
    seed: int,
    number: int,
    scale: float,
    background: float,
) -> Booleans:
    """The events (T, 2, H, W) of one input."""
    height, width = size
    threshold = sensor.thresholds(size, seed)
    events = np.zeros((len(path) - 1, 2, height, width), dtype=bool)
    chance = (1 - math.exp(-2 * sensor.shot_noise)) / 2
    for row in range(height):
        for column in range(width):
            pixel = row * width + column
            up, down = threshold[0, row, column], threshold[1, row, column]
            memory, rest = 0.0, 0
            for moment, (dy, dx) in enumerate(path):
                y = (row - (height - 1) / 2 - dy) / scale + (image.shape[0] - 1) / 2
                x = (column - (width - 1) / 2 - dx) / scale + (image.shape[1] - 1) / 2
                level = math.log(sensor.dark + intensity(image, y, x, background))
                if moment == 0:
                    share = (
                        (draw(seed, Purpose.LEAK, number, pixel) >> 11) / 2**53
                        if sensor.leak
                        else 0.0
                    )
                    memory = level - share * up
                    continue
                if rest:
                    rest, memory = rest - 1, level
                    continue
                memory -= sensor.leak * up
                noise = (
                    draw(seed, Purpose.SHOT_NOISE, number, (moment - 1) * height * width + pixel)
                    / WORD
                )
                if level - memory >= up:
                    polarity = 0
                elif level - memory <= -down:
                    polarity = 1
                elif noise < chance:
                    polarity = 0
                elif noise >= 1 - chance:
                    polarity = 1
                else:
                    continue
                events[moment - 1, polarity, row, column] = True
                rest, memory = sensor.refractory, level
    return events
