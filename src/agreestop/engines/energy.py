"""Energy, by the usual estimate for 45 nm: 4.6 pJ a multiply-accumulate, 0.9 pJ an accumulate (Horowitz 2014)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agreestop.decide.checks import Floats, Integers

from .dense import EnsembleRun, Operations

PICOJOULE_MULTIPLY, PICOJOULE_ACCUMULATE = 4.6, 0.9


@dataclass(frozen=True)
class Energy:
    """Mean energy of an input in nanojoule, all members together: up to the stop, and to the end."""

    stopped: float
    full: float

    @property
    def share(self) -> float:
        """What stopping leaves of the energy."""
        return self.stopped / self.full if self.full else 1.0


def running_energy(operations: Operations) -> Floats:
    """Energy (n, T, K) in nanojoule that each member has spent on each input up to each step."""
    spent = PICOJOULE_MULTIPLY * operations.multiplies + PICOJOULE_ACCUMULATE * operations.accumulates
    return np.cumsum(spent / 1000, axis=1)


def energy(run: EnsembleRun, stop_times: Integers) -> Energy:
    """The energy of inputs that stop after `stop_times` (n,) steps, against running all of them to the end."""
    running = running_energy(run.operations).sum(axis=2)
    stopped = running[np.arange(len(running)), np.asarray(stop_times, dtype=np.int64) - 1]
    return Energy(float(stopped.mean()), float(running[:, -1].mean()))
