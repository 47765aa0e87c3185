"""Labelled event streams: what every data set, recorded or simulated, is handed on as."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agreestop.decide.checks import Booleans, InputError, Integers, as_labels


@dataclass(frozen=True, eq=False)
class EventData:
    """Inputs of T steps on a sensor of H × W pixels, each with its label.

    name         what the data set is called in records and figures
    simulated    True where a simulator made the events, False where a camera recorded them
    inputs       (n, T, 2, H, W) bool: whether a pixel fired in a step, ON before OFF
    labels       (n,) int64, from 0 to C-1
    classes      the names of the C classes
    description  where inputs and labels come from, in a sentence
    """

    name: str
    simulated: bool
    inputs: Booleans
    labels: Integers
    classes: tuple[str, ...]
    description: str = ""

    def __post_init__(self) -> None:
        inputs = np.asarray(self.inputs)
        shape = inputs.shape
        if len(shape) != 5 or shape[2] != 2 or 0 in shape[1:]:
            raise InputError(f"inputs has shape {shape}: (n, T, 2, H, W) is needed, with the ON events before the OFF events.")
        if inputs.dtype != np.bool_:
            raise InputError(f"inputs has dtype {inputs.dtype}: booleans are needed, so compare counts with 0 first.")
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "labels", as_labels(self.labels, len(inputs), len(self.classes)))

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def steps(self) -> int:
        """T, the number of steps of each input."""
        return self.inputs.shape[1]

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
