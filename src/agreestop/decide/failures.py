"""Where an example of AgreeStop fails, as a function of the threshold λ.

t is the stop for λ in (e_t, min of the earlier e], so only new minima of e matter. An answer at t misses the label y for λ > f_t:

    f_t = -∞            y is not among the I most probable classes
    f_t = ρ_t(y) / κ    y is among them, but not the first; κ is the trim factor, and 0 keeps them all
    f_t = ∞             y is the first

If nothing stopped, the answer of the last checkpoint misses y outside the I most probable for λ > ρ_M(y). All in logarithms.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from agreestop.common import Booleans, Floats, Integers

from .evidence import Evidence


@dataclass(frozen=True, eq=False)
class Failures:
    """log e (n, M), log f (n, M), and log ρ of the label at the last checkpoint, ∞ if it is among the I most probable there, (n,)."""

    risk: Floats
    fails_above: Floats
    last: Floats

    @classmethod
    def of(cls, evidence: Evidence, labels: Integers, max_set_size: int, log_trim: float) -> Self:
        """From evidence of all checkpoints: log ρ (n, M, C) and log e (n, M)."""
        assert evidence.log_risk is not None
        own = evidence.values[np.arange(len(labels)), :, labels]
        rank = (evidence.values > own[:, :, None]).sum(axis=-1)
        fails = np.where(rank >= max_set_size, -np.inf, np.where(rank > 0, own - log_trim, np.inf))
        return cls(evidence.log_risk, fails, np.where(rank[:, -1] >= max_set_size, own[:, -1], np.inf))

    def __len__(self) -> int:
        return len(self.risk)

    def rows(self, rows: Integers | Booleans) -> Self:
        """Some of the examples."""
        return type(self)(self.risk[rows], self.fails_above[rows], self.last[rows])

    def minus(self, offsets: Floats) -> Self:
        """With an offset (M,) taken from every logarithm of its checkpoint."""
        return type(self)(self.risk - offsets, self.fails_above - offsets, self.last - offsets[-1])

    def at(self, opened: Booleans) -> Self:
        """Only at some of the checkpoints, (n, M)."""
        return replace(self, risk=np.where(opened, self.risk, np.inf))

    def first(self) -> Floats:
        """W (n,): the least λ above which the answer misses; ∞ if there is none."""
        lowest = np.minimum.accumulate(self.risk, axis=1)
        before = np.concatenate([np.full((len(self), 1), np.inf), lowest[:, :-1]], axis=1)
        fails_from = np.maximum(self.risk, self.fails_above)
        stopped = np.where(fails_from < before, fails_from, np.inf).min(axis=1)
        unstopped = np.where(self.last < lowest[:, -1], self.last, np.inf)
        return np.minimum(stopped, unstopped)

    def stops(self, thresholds: Floats) -> Integers:
        """The checkpoint (n,) at which each example stops with its threshold, (n,)."""
        stopped = self.risk < thresholds[:, None]
        stopped[:, -1] = True
        return np.asarray(stopped.argmax(axis=1))
