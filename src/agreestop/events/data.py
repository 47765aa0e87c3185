"""Labelled event streams: what every data set, recorded or simulated, is handed on as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agreestop.common.arrays import Integers
from agreestop.common.errors import InputError
from agreestop.decide.checks import as_labels

NUMBERS = (np.uint8, np.float32)


@dataclass(frozen=True, eq=False)
class EventData:
    """Inputs of T steps on a sensor of H × W pixels, each with its label.

    name         what the data set is called in records and figures
    simulated    True where a simulator made the events, False where a sensor recorded them
    inputs       (n, T, channels, H, W): bool where a step is the pixels that fired, numbers of at least 0 where it counts events or holds
                 intensities; ON before OFF where there are two channels
    labels       (n,) int64, from 0 to C-1
    classes      the names of the C classes
    description  where inputs and labels come from, in a sentence
    held         for images, which have one step in `inputs`: for how many steps each is shown
    """

    name: str
    simulated: bool
    inputs: NDArray[Any]
    labels: Integers
    classes: tuple[str, ...]
    description: str = ""
    held: int | None = None

    def __post_init__(self) -> None:
        inputs = np.asarray(self.inputs)
        shape = inputs.shape
        if len(shape) != 5 or 0 in shape[1:]:
            raise InputError(f"inputs has shape {shape}: (n, T, channels, H, W) is needed, with the ON events before the OFF events.")
        if inputs.dtype != np.bool_ and inputs.dtype not in NUMBERS:
            raise InputError(f"inputs has dtype {inputs.dtype}: booleans, uint8 or float32 are needed.")
        if self.held is not None and (shape[1] != 1 or self.held < 1):
            raise InputError(f"inputs of {shape[1]} steps are held for {self.held}: give an image one step, held for at least one.")
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "labels", as_labels(self.labels, len(inputs), len(self.classes)))

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def density(self) -> float:
        """The share of inputs that are active in a step."""
        return float(np.count_nonzero(self.inputs) / self.inputs.size)

    @property
    def steps(self) -> int:
        """T, the number of steps of each input."""
        return self.held or self.inputs.shape[1]

    @property
    def size(self) -> tuple[int, int]:
        """(H, W), the sensor's height and width in pixels."""
        return self.inputs.shape[3], self.inputs.shape[4]


@dataclass(frozen=True, eq=False)
class EventSplits:
    """The three parts of a data set: for training the members, for choosing and fitting scores, and the pool for calibration and test."""

    training: EventData
    tuning: EventData
    pool: EventData
