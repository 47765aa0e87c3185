"""Bets against "nothing has changed": evidence that grows when something has, and a log of it.

A bet b multiplies its capital C_b by a factor f_b whose mean is at most 1 as long as nothing has
changed. New bets begin at every step with a little of the cash that was held back, so a change is
found long after the beginning too:

    C_b ← ((1-J)·C_b + (J·ΣC + w_s)/B)·f_b,    E = ΣC + cash_s,
    cash_s = 1/(1 + log(1+s)),                 w_s = cash_(s-1) - cash_s

E begins at 1 and has no upward drift, so the probability that it ever reaches 1/δ by chance is at
most δ (Ville).
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from agreestop.common import Floats
from agreestop.common.kept import KeptInFiles

MOST_CAPITAL = 1e200  # far beyond any alarm
POINTS = 1000  # a log holds fewer rows than this


@dataclass(eq=False)
class Log(KeptInFiles):
    """Numbers over time, for the report: fewer than POINTS rows (count, values...), thinned."""

    rows: Floats
    size: int = 0
    stride: int = 1

    @classmethod
    def of(cls, values: int) -> Self:
        """An empty log of some values for each count."""
        return cls(np.zeros((POINTS, 1 + values)))

    def __post_init__(self) -> None:
        shape, inside = self.rows.shape, 0 <= self.size < POINTS
        if len(shape) != 2 or shape[0] != POINTS or not inside or self.stride < 1:
            raise ValueError("a log of another size")

    def add(self, count: int, *values: float) -> None:
        """Note values after `count` decisions; most of them are left out once the log is long."""
        if count % self.stride:
            return
        self.rows[self.size] = (count, *values)
        self.size += 1
        if self.size == POINTS:
            self.size, self.stride = POINTS // 2, 2 * self.stride
            self.rows[: self.size] = self.rows[1::2]

    @property
    def counts(self) -> Floats:
        return self.rows[: self.size, 0]

    @property
    def values(self) -> Floats:
        """(points, values)."""
        return self.rows[: self.size, 1:]


def cash(count: int) -> float:
    """What is left to begin new bets with after `count` steps."""
    return 1 / (1 + math.log1p(count))


def fresh(count: int) -> float:
    """w: what new bets begin with in step `count` + 1, cash(count) - cash(count + 1)."""
    return math.log1p(1 / (1 + count)) * cash(count) * cash(count + 1)


@dataclass(eq=False)
class Wealth(KeptInFiles):
    """What B bets have made of 1: their capital (B,) after `count` steps; the log holds log10 E."""

    capital: Floats
    jump: float
    count: int = 0
    log: Log = field(default_factory=lambda: Log.of(1))

    @classmethod
    def of(cls, bets: int, jump: float) -> Self:
        """Before the first step: all is cash."""
        return cls(np.zeros(bets), jump)

    def bet(self, factors: Floats) -> float:
        """Let each bet have its factor (B,). Returns E."""
        shared = (self.jump * float(self.capital.sum()) + fresh(self.count)) / len(self.capital)
        self.capital = np.minimum(((1 - self.jump) * self.capital + shared) * factors, MOST_CAPITAL)
        self.count += 1
        evidence = self.evidence
        self.log.add(self.count, math.log10(evidence))
        return evidence

    def check(self, new: Self, most: int) -> None:
        """Refuse what cannot have become of the wealth `new` in at most `most` steps."""
        shapes = [(one.capital.shape, one.jump, one.log.rows.shape) for one in (self, new)]
        inside = (self.capital >= 0) & (self.capital <= MOST_CAPITAL)
        if shapes[0] != shapes[1] or not inside.all() or not 0 <= self.count <= most:
            raise ValueError("evidence that no monitor has")

    @property
    def evidence(self) -> float:
        """E: all capital, and the cash."""
        return float(self.capital.sum()) + cash(self.count)

    def foresee(self, log_growth: Floats, steps: int) -> float:
        """Log E after more steps at which each bet grows by e^g, g = log_growth (B,).

        New bets count a little less than they bring.
        """
        grow, bets = log_growth > 0, len(log_growth)
        growth = log_growth[grow]
        first = np.log(self.capital[grow] + fresh(self.count) / bets) + steps * growth
        terms = [*first, math.log(cash(self.count + steps))]
        if steps > 1:  # the sum of e^(g·j), j = 1..steps-1, for bets that begin later
            sums = np.log(-np.expm1((1 - steps) * growth)) - np.log(-np.expm1(-growth))
            sums += (steps - 1) * growth + math.log(fresh(self.count + steps - 1) / bets)
            terms += [*sums]
        return float(np.logaddexp.reduce(terms))


def smoothed_rank(bag: Sequence[float], value: float, uniform: float) -> float:
    """(values below + uniform·(equal values and this one))/(size + 1), in a sorted bag.

    It is uniform if all values are exchangeable.
    """
    below, above = bisect_left(bag, value), bisect_right(bag, value)
    return (below + uniform * (above - below + 1)) / (len(bag) + 1)
