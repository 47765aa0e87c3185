"""How far the numbers of one input may differ between two runs: in another batch, in float32, on another machine.

    η(v) = absolute_t + relative · |v|          for a number v that checkpoint t compares with a threshold

The log-confidences that a model writes differ by at least a few units of float32, and by what `Scores.rounding` says if that is
more. A risk or a score passes that on: a temperature τ multiplies it, a difference of two log-masses doubles it, and an offset
adds the rounding of its own size. A generalised mean of members changes nothing, whatever its exponent: it moves no further than
the member that moves most. Thresholds stay clear of numbers by more than η (see `thresholds`).
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from agreestop.common import Floats

UNIT = 2.0**-24  # half a unit in the last place of a float32 near 1
UNITS = 32  # absolute rounding in units: log-confidences come from logits of about this size
HALF_UNIT = 2.0**-11  # the same for float16
EQUAL = 1e-11  # log-masses nearer than this are equal: their float64 sums are rounded


@dataclass(frozen=True)
class Rounding:
    """Bounds of rounding: `absolute` for all checkpoints or for each, (M,), and `relative` to the size of a number.

    exact_above  numbers above it are computed without rounding
    breaks_ties  whether equal numbers of one input, such as confidences of two classes, may differ in another run, so that the
                 classes change places. Counts of spikes stay equal, and so do numbers that are only stored in another precision
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
        """The rounding of a log-softmax of logits that are multiplied by a factor, such as a temperature.

        Two sums of logits are subtracted, so it counts twice.
        """
        return replace(self, absolute=2 * self.absolute * factor, relative=2 * self.relative)

    def plus(self, absolute: float | Floats) -> Self:
        """With more absolute rounding."""
        return replace(self, absolute=self.absolute + absolute)

    def at(self, values: Floats) -> Floats:
        """η of numbers (n, M), or (n, M, C), of all checkpoints or of the first ones; 0 where a number is infinite."""
        count = values.shape[1]
        absolute = np.broadcast_to(np.atleast_1d(self.absolute)[:count], count)
        absolute = absolute.reshape(1, -1, *(1,) * (values.ndim - 2))
        with np.errstate(invalid="ignore"):
            eta = absolute + self.relative * np.abs(values)
        return np.where(np.isfinite(values) & (values <= self.exact_above), eta, 0.0)

    def at_last(self, values: Floats) -> Floats:
        """η of numbers (n,) at the last checkpoint."""
        last = replace(self, absolute=float(np.ravel(self.absolute)[-1]))
        return last.at(values[:, None])[:, 0]

    def at_most(self, values: Floats) -> Floats:
        """The largest η of numbers of any shape, whatever their checkpoint; 0 where a number is infinite."""
        finite = np.isfinite(values) & (values <= self.exact_above)
        return np.where(finite, np.max(self.absolute) + self.relative * np.where(finite, np.abs(values), 0.0), 0.0)

    def at_checkpoint(self, index: int) -> Self:
        """The rounding of one checkpoint."""
        return self if np.ndim(self.absolute) == 0 else replace(self, absolute=float(np.asarray(self.absolute)[index]))

    def largest(self, value: float) -> float:
        """The largest η of numbers near a finite value, whatever their checkpoint."""
        return float(self.at_most(np.array(value)))


def rounding_of(part: object, base: Rounding) -> Rounding:
    """How a risk or a score passes the rounding of log-confidences on: by its method `rounding`, else as a log-softmax does."""
    method = getattr(part, "rounding", None)
    return base.scaled(1.0) if method is None else method(base)
