"""Bets against "nothing has changed": evidence that grows when something has, and a log of it for the report.

A bet b multiplies its capital C_b by a factor f_b whose mean is at most 1 as long as nothing has changed. New bets begin at every step with
a little of the cash that was held back, so a change is found long after the beginning too:

    C_b ← ((1-J)·C_b + (J·ΣC + w_s)/B)·f_b,    cash_s = 1/(1 + log(1+s)),    w_s = cash_(s-1) - cash_s,    E = ΣC + cash

E begins at 1 and has no upward drift, so that it ever reaches 1/δ by chance has probability at most δ (Ville).
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from agreestop.common import Floats

from .rule_files import KeptInFiles

MOST_CAPITAL = 1e200  # far beyond any alarm
POINTS = 1000  # a log holds fewer rows than this


@dataclass(eq=False)
class Log(KeptInFiles):
    """How numbers went, for the report: at most POINTS rows (count, values...), thinned as they grow."""

    rows: Floats
    size: int = 0
    stride: int = 1

    @classmethod
    def of(cls, values: int) -> Self:
        """An empty log of some values for each count."""
        return cls(np.zeros((POINTS, 1 + values)))

    def __post_init__(self) -> None:
        if self.rows.ndim != 2 or len(self.rows) != POINTS or not 0 <= self.size < POINTS or self.stride < 1:
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

    @property
    def evidence(self) -> float:
        """E: all capital, and the cash."""
        return float(self.capital.sum()) + cash(self.count)

    def foresee(self, log_growth: Floats, steps: int) -> float:
        """log E after more steps at which each bet grows by e^g, g = log_growth (B,); new bets count a little less than they bring."""
        grow, bets = log_growth > 0, len(log_growth)
        growth = log_growth[grow]
        first = np.log(self.capital[grow] + fresh(self.count) / bets) + steps * growth
        terms = [*first, math.log(cash(self.count + steps))]
        if steps > 1:  # the sum of e^(g·j), j = 1..steps-1, for bets that begin later
            sums = (steps - 1) * growth + np.log(-np.expm1((1 - steps) * growth)) - np.log(-np.expm1(-growth))
            terms += [*(sums + math.log(fresh(self.count + steps - 1) / bets))]
        return float(np.logaddexp.reduce(terms))


def smoothed_rank(bag: Sequence[float], value: float, uniform: float) -> float:
    """(values below + uniform·(equal values and this one))/(size + 1), in a sorted bag: uniform if all are exchangeable."""
    below, above = bisect_left(bag, value), bisect_right(bag, value)
    return (below + uniform * (above - below + 1)) / (len(bag) + 1)
