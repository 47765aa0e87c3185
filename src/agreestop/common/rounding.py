"""How far numbers of one input may differ between two runs, and thresholds that stay clear of it.

In another batch, in float32 or on another machine a number v of checkpoint t may move by up to

    η(v) = absolute_t + relative · |v|.

The log-confidences that a model writes differ by at least a few units of float32, and by what
`Scores.rounding` says if that is more. A risk or a score passes that on: a temperature τ multiplies
it, a difference of two log-masses doubles it, and an offset adds the rounding of its own size. A
generalised mean of members moves no further than the member that moves most.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .arrays import Booleans, Floats

UNIT = 2.0**-24  # half a unit in the last place of a float32 near 1
UNITS = 32  # absolute rounding in units: log-confidences come from logits of about this size
HALF_UNIT = 2.0**-11  # the same for float16
REACH = (
    0.01  # how far a threshold may move to find a gap: 1 % of a risk, since risks are logarithms
)
EQUAL = 1e-11  # log-masses nearer than this are equal: their float64 sums are rounded


@dataclass(frozen=True)
class Rounding:
    """How far numbers of one input may differ between two runs.

    absolute     for all checkpoints, or (M,) for each
    relative     to the size of a number
    exact_above  numbers above it are computed without rounding
    breaks_ties  whether equal numbers of one input, such as confidences of two classes, may differ
                 in another run, so that the classes change places. Counts of spikes stay equal, and
                 so do numbers that are only stored in another precision
    """

    absolute: float | Floats = UNITS * UNIT
    relative: float = 4 * UNIT
    exact_above: float = math.inf
    breaks_ties: bool = False

    @classmethod
    def of(cls, log_confidence: NDArray[Any], stated: float = 0.0) -> Self:
        """The rounding of log-confidences as they are stored, or as stated if that is more."""
        if log_confidence.dtype == np.float16:
            return cls(max(stated, 2 * HALF_UNIT), HALF_UNIT, breaks_ties=stated > 0)
        return cls(max(stated, UNITS * UNIT), breaks_ties=stated > 0)

    def scaled(self, factor: float | Floats) -> Self:
        """The rounding of a log-softmax of logits that are multiplied by a factor.

        Two sums of logits are subtracted, so it counts twice.
        """
        return replace(self, absolute=2 * self.absolute * factor, relative=2 * self.relative)

    def plus(self, absolute: float | Floats) -> Self:
        """With more absolute rounding."""
        return replace(self, absolute=self.absolute + absolute)

    def at(self, values: Floats) -> Floats:
        """η of numbers (n, M) or (n, M, C); 0 where a number is infinite."""
        count = values.shape[1]
        absolute = np.broadcast_to(np.atleast_1d(self.absolute)[:count], count)
        return self._eta(values, absolute.reshape(1, -1, *(1,) * (values.ndim - 2)))

    def at_last(self, values: Floats) -> Floats:
        """η of numbers (n,) at the last checkpoint."""
        return self._eta(values, float(np.ravel(self.absolute)[-1]))

    def at_most(self, values: Floats) -> Floats:
        """The largest η of numbers of any shape, whatever their checkpoint."""
        return self._eta(values, float(np.max(self.absolute)))

    def _eta(self, values: Floats, absolute: float | Floats) -> Floats:
        known = np.isfinite(values) & (values <= self.exact_above)
        return np.where(known, absolute + self.relative * np.where(known, np.abs(values), 0.0), 0.0)

    def at_first(self, values: Floats) -> float:
        """The largest η of numbers (n,) at the first checkpoint."""
        finite = np.abs(values[np.isfinite(values)])
        first = replace(self, absolute=float(np.ravel(self.absolute)[0]))
        return first.largest(-float(finite.max(initial=0.0)))

    def largest(self, value: float) -> float:
        """The largest η of numbers near a finite value, whatever their checkpoint."""
        return float(self.at_most(np.array(value)))


def in_gap(threshold: float, numbers: Floats, rounding: Rounding, reach: float = REACH) -> float:
    """The threshold, or a smaller one near it, with no number nearer than η if that can be."""
    if not math.isfinite(threshold):
        return threshold
    eta = rounding.largest(threshold)
    reach = max(reach, 2 * eta)
    near = numbers[(numbers >= threshold - 3 * reach) & (numbers <= threshold + eta)]
    points = np.unique(np.append(near, threshold + eta))[::-1]
    below = np.append(points[1:], -np.inf)
    found = np.flatnonzero((points - below > 2 * eta) & (points >= threshold - reach))
    if not len(found):
        return threshold - eta
    upper, lower = float(points[found[0]]), float(below[found[0]])
    return upper - min((upper - lower) / 2, reach)


def apart(numbers: Floats, rounding: Rounding) -> Booleans:
    """Whether all different numbers (n, m) of an example lie more than 2η apart, (n,)."""
    ordered = np.sort(numbers, axis=1)
    with np.errstate(invalid="ignore"):
        steps = np.diff(ordered, axis=1)
    close = (steps > EQUAL) & (steps <= 2 * rounding.at_most(ordered[:, 1:]))
    return np.asarray(~close.any(axis=1))


def same_number(one: Floats, other: Floats) -> Booleans:
    """Whether finite numbers are equal but for the rounding of float64 sums."""
    with np.errstate(invalid="ignore"):
        return np.abs(one - other) <= EQUAL
