"""Energy by the usual estimate for 45 nm: 4.6 pJ for a multiply-accumulate, 0.9 pJ for an accumulate (Horowitz 2014)."""

import numpy as np

from agreestop.common import Floats

from .protocol import Operations

PICOJOULE_MULTIPLY, PICOJOULE_ACCUMULATE = 4.6, 0.9


def running_energy(operations: Operations) -> Floats:
    """Energy (n, T, K) in nanojoules that each member has spent on each input up to each step."""
    spent = PICOJOULE_MULTIPLY * operations.multiplies + PICOJOULE_ACCUMULATE * operations.accumulates
    return np.cumsum(spent / 1000, axis=1)
