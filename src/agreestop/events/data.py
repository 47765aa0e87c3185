"""Labelled event streams, and their division into training, tuning and pool: the form of every data set, recorded or simulated.

Rows are drawn by a permutation that depends on the seed and not on the labels. So the inputs of a pool are exchangeable, as the guarantee
of a calibrated rule assumes, and in random order: any first rows of it are as good for calibration as any others.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from agreestop.common import InputError, Integers, is_integer
from agreestop.decide.checks import as_labels

from .container import Events, RowIndex, as_inputs

NUMBERS = (np.bool_, np.uint8, np.float32)
PARTS = ("training", "tuning", "pool")
MOST_CLASSES = 2**16  # without names
LEAST = 10  # inputs that make three parts

Sizes = tuple[int, int, int]


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

    def rows(self, index: RowIndex) -> Self:
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
    def of(cls, name: str, parts: Iterable[EventData]) -> Self:
        """Three parts, which are named after the data set and their use: "digits, pool"."""
        return cls(*(replace(data, name=f"{name}, {part}") for part, data in zip(PARTS, parts, strict=True)))

    def __iter__(self) -> Iterator[EventData]:
        return iter((self.training, self.tuning, self.pool))


def class_numbers(labels: Integers) -> tuple[str, ...]:
    """The numbers of the classes, from 0 to the largest label, as their names."""
    count = int(labels.max(initial=-1)) + 1
    if count > MOST_CLASSES:
        raise InputError(f"labels holds {count - 1}: without names of the classes, give labels below {MOST_CLASSES:,}.")
    return tuple(str(label) for label in range(count))


def as_sizes(sizes: Sequence[int]) -> Sizes:
    """How many inputs training, tuning and the pool have: three integers of at least 1."""
    if not isinstance(sizes, (tuple, list)) or len(sizes) != 3 or not all(is_integer(size) and size >= 1 for size in sizes):
        raise InputError(f"sizes is {sizes!r}: give how many inputs training, tuning and the pool have, for example (700, 100, 200).")
    return int(sizes[0]), int(sizes[1]), int(sizes[2])


def as_sizes_of(count: int, sizes: Sequence[int] | None, shares: tuple[float, float]) -> Sizes:
    """The sizes that are given; by default `count` inputs are divided by the shares of training and tuning, and the pool gets the rest."""
    if sizes is not None:
        return as_sizes(sizes)
    if count < LEAST:
        raise InputError(f"there are {count} inputs: at least {LEAST} are needed for training, tuning and a pool.")
    training, tuning = (round(count * share) for share in shares)
    return training, tuning, count - training - tuning


def draw(count: int, sizes: Sequence[int], rng: np.random.Generator, what: str) -> list[Integers]:
    """Parts of these sizes, which share no row, of `count` rows in random order; `what` names the rows in the error message."""
    if sum(sizes) > count:
        raise InputError(f"{sum(sizes):,} {what} are asked for, but there are {count:,}: ask for fewer.")
    return np.split(rng.permutation(count), np.cumsum(sizes))[: len(sizes)]


def draw_apart(known: int, count: int, sizes: Sizes, rng: np.random.Generator, whats: tuple[str, str], first: int = 2) -> list[Integers]:
    """Rows of the three parts: the `first` parts are drawn from the `known` rows, the others from the rows `known` to `count` - 1."""
    rows = draw(known, sizes[:first], rng, whats[0])
    return rows + [known + some for some in draw(count - known, sizes[first:], rng, whats[1])]
