"""Labelled event streams: every data set, recorded or simulated, is handed on in this form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from agreestop.common.arrays import Integers
from agreestop.common.errors import InputError
from agreestop.decide.checks import as_labels

from .container import Events, RowIndex, as_inputs

NUMBERS = (np.bool_, np.uint8, np.float32)
PARTS = ("training", "tuning", "pool")


@dataclass(frozen=True, eq=False)
class EventData:
    """Inputs of T steps, each with its label: one part of a data set.

    name         the name of the data set in records and figures
    simulated    True where a simulator made the events, False where a sensor recorded them
    inputs       (n, T, ...), an array or `Events`: bool where a cell fires or not, numbers where a step counts events or holds
                 intensities. An event camera has (n, T, 2, H, W), ON before OFF; a sensor of channels has (n, T, channels)
    labels       (n,) int64, from 0 to C-1
    classes      the names of the C classes
    description  where inputs and labels come from, in a sentence
    held         for images, which have one step in `inputs`: for how many steps each is shown
    """

    name: str
    simulated: bool
    inputs: Any  # an array or `Events`: most callers know which
    labels: Integers
    classes: tuple[str, ...]
    description: str = ""
    held: int | None = None

    def __post_init__(self) -> None:
        inputs = as_inputs(self.inputs)
        if inputs.dtype not in NUMBERS:
            raise InputError(f"inputs has dtype {inputs.dtype}: booleans, uint8 or float32 are needed.")
        if self.held is not None and (inputs.shape[1] != 1 or self.held < 1):
            raise InputError(f"inputs of {inputs.shape[1]} steps are held for {self.held}: give an image one step, held for at least one.")
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "labels", as_labels(self.labels, len(inputs), len(self.classes)))

    def __len__(self) -> int:
        return len(self.inputs)

    def rows(self, index: RowIndex) -> EventData:
        """Some of the inputs: a slice, integers or a mask."""
        inputs = self.inputs.rows(index) if isinstance(self.inputs, Events) else self.inputs[index]
        return replace(self, inputs=inputs, labels=self.labels[index])

    @property
    def density(self) -> float:
        """The share of cells that are not zero, over all inputs and steps."""
        if isinstance(self.inputs, Events):
            return self.inputs.density
        return float(np.count_nonzero(self.inputs) / max(1, self.inputs.size))

    @property
    def steps(self) -> int:
        """T, the number of steps of each input."""
        return self.held or int(self.inputs.shape[1])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one step: (2, H, W) of an event camera."""
        return tuple(self.inputs.shape[2:])


@dataclass(frozen=True, eq=False)
class EventSplits:
    """The three parts of a data set: for training the members, for choosing and fitting scores, and the pool for calibration and test."""

    training: EventData
    tuning: EventData
    pool: EventData

    @classmethod
    def of(cls, name: str, parts: Iterable[EventData]) -> EventSplits:
        """Three parts, which are named after the data set and their use: "digits, pool"."""
        return cls(*(replace(data, name=f"{name}, {part}") for part, data in zip(PARTS, parts, strict=True)))

    def __iter__(self) -> Iterator[EventData]:
        return iter((self.training, self.tuning, self.pool))
