"""How inputs are divided into training, tuning and pool: by a permutation drawn from the seed, which knows nothing of the labels.

So the inputs of a pool are exchangeable and in random order, as the guarantee of a calibrated rule assumes, and any first rows of it
are as good for calibration as any others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from agreestop.common.arrays import Integers, is_integer
from agreestop.common.errors import InputError
from agreestop.common.progress import ProgressCallback, no_progress

from ..data import PARTS, EventData, EventSplits

Sizes = tuple[int, int, int]
Done = Callable[[int], None]
Item = TypeVar("Item", bound=Sequence[object] | Integers)
LEAST = 10  # inputs that make three parts


def as_sizes(sizes: Sequence[int]) -> Sizes:
    """How many inputs training, tuning and the pool have: three integers of at least 1."""
    if not isinstance(sizes, (tuple, list)) or len(sizes) != 3 or not all(is_integer(size) and size >= 1 for size in sizes):
        raise InputError(f"sizes is {sizes!r}: give how many inputs training, tuning and the pool have, for example (700, 100, 200).")
    return int(sizes[0]), int(sizes[1]), int(sizes[2])


def by_shares(count: int, shares: tuple[float, float]) -> Sizes:
    """Sizes of the three parts of `count` inputs, from the shares of training and tuning; the pool has the rest."""
    if count < LEAST:
        raise InputError(f"there are {count} inputs: at least {LEAST} are needed for training, tuning and a pool.")
    training, tuning = (round(count * share) for share in shares)
    return training, tuning, count - training - tuning


def draw(count: int, sizes: Sequence[int], rng: np.random.Generator, what: str) -> list[Integers]:
    """Parts of these sizes, which share no row, of `count` rows in random order; `what` names the rows where there are too few."""
    if sum(sizes) > count:
        raise InputError(f"{sum(sizes):,} {what} are asked for, but there are {count:,}: ask for fewer.")
    order = rng.permutation(count)
    ends = np.cumsum(sizes)
    return [order[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def make_parts(
    name: str, selections: Sequence[Item], make: Callable[[str, Item, Done], EventData], progress: ProgressCallback | None = None
) -> EventSplits:
    """Training, tuning and pool, made one after the other.

    selections  the rows, files or numbers of each part
    make        makes one part from its name and its selection; it may call done(i) when i entries of the selection are finished
    """
    report = progress or no_progress
    total = max(1, sum(len(selection) for selection in selections))
    finished, parts = 0, []
    for part, selection in zip(PARTS, selections, strict=True):

        def done(count: int, what: str = f"{name}: {part}", before: int = finished) -> None:
            report(what, (before + count) / total)

        done(0)
        parts.append(make(f"{name}, {part}", selection, done))
        finished += len(selection)
    report(name, 1.0)
    return EventSplits(*parts)
