"""Bonferroni sets from the ranks of each member: exact where integers allow it.

A member's p-variable is u/(n+1) with the integer rank u = 1 + #{i : s ≤ s_i}. With the integer-like level ℓ = α(n+1)/M a class
is kept iff

    a_{r,K} · M_r(u_1..u_K) > ℓ.

For every r this is `Σ_k g(u_k) > bound` with g increasing: u^r (r > 0), log u (r = 0), -u^r (r < 0), so a table of g over
1..n+1 decides. For a positive integer r, a^r is rational (K or r + 1): sums within rounding of the bound are decided in integers.
Elsewhere the constant is rounded up, which only keeps more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from .checks import Booleans, Floats, Integers
from .merging import merging_factor, prefix_factor
from .pooling import MergePValues
from .pvalues import ranks

ROUND_UP = 1 + 1e-12


def _table(n: int, level: Fraction, r: float) -> Floats:
    """g(u) for u = 0..n+1, with u measured in units of the level, so that the bound does not depend on it."""
    if math.isinf(r):
        return np.empty(0)
    u = np.arange(n + 2) / float(level)
    with np.errstate(divide="ignore", over="ignore"):
        if r == 0:
            return np.log(u)
        return u**r if r > 0 else -(u**r)


@dataclass(frozen=True, eq=False)
class MergedRanks:
    """PM(r) after calibration: each member's sorted calibration losses (M, K, n) and the level α(n+1)/M."""

    calibration: Floats
    level: Fraction
    merging: MergePValues

    @property
    def n(self) -> int:
        return int(self.calibration.shape[2])

    def __post_init__(self) -> None:
        object.__setattr__(self, "_g", _table(self.n, self.level, self.merging.r))

    def uniforms(self, count: int, first: int) -> Floats:
        """The uniform number of each input, (count, 1): a function of the seed and the input's number alone."""
        if self.merging.form != "randomized":
            return np.empty((count, 0))
        bits = np.random.PCG64(self.merging.seed)
        bits.advance(first)
        return np.random.Generator(bits).random((count, 1))

    def keeps(self, index: int, losses: Floats, uniforms: Floats) -> Booleans:
        """Which classes stay, (b, C), from the members' losses (b, K, C)."""
        r, form = self.merging.r, self.merging.form
        members = losses.shape[1]
        u = np.stack([ranks(self.calibration[index, k], losses[:, k]) for k in range(members)])
        if math.isinf(r) or (members == 1 and form == "any"):
            return self._extreme(u) >= math.floor(self.level) + 1
        table: Floats = self._g  # type: ignore[attr-defined]
        if form == "exchangeable":
            return self._keeps_all_prefixes(table[u])
        u.sort(axis=0)
        total = table[u[0]]
        for k in range(1, members):
            total += table[u[k]]
        if form == "any":
            return self._exceeds(total, u)
        bound = members * (-uniforms if r == 0 else 1 - uniforms / 2)
        return np.asarray(total > bound - 1e-12 * members)

    def _extreme(self, u: Integers) -> Integers:
        """a · M_r where it is an integer: one member, the first prefix, the maximum, or K times the minimum."""
        if len(u) == 1 or self.merging.form == "exchangeable":
            return u[0]
        return u.max(axis=0) if self.merging.r > 0 else len(u) * u.min(axis=0)

    def _bound(self, factor: float, members: int) -> float:
        """What Σ g(u_k / level) must exceed, for the constant `factor`."""
        r = self.merging.r
        return -members * math.log(factor) if r == 0 else math.copysign(members * factor**-r, r)

    def _keeps_all_prefixes(self, terms: Floats) -> Booleans:
        sums = np.add.accumulate(terms, axis=0)
        factor = prefix_factor(self.merging.r) * ROUND_UP
        bounds = [self._bound(factor, m + 1) for m in range(len(sums))]
        return np.asarray((sums > np.reshape(bounds, (-1, 1, 1))).all(axis=0))

    def _exceeds(self, total: Floats, u: Integers) -> Booleans:
        r, members = self.merging.r, len(u)
        factor = merging_factor(r, members, self.merging.table)
        if not (r > 0 and float(r).is_integer()):
            return np.asarray(total > self._bound(factor * ROUND_UP, members))
        bound = self._bound(factor, members)
        kept = total > bound
        close = np.abs(total - bound) <= 1e-9 * bound
        if close.any():
            cells, where = np.unique(u[:, close], axis=1, return_inverse=True)
            power = int(r)
            scaled = Fraction(members if power >= members - 1 else power + 1, members)
            exact = [scaled * sum(int(rank) ** power for rank in cell) > self.level**power for cell in cells.T]
            kept[close] = np.array(exact)[where.ravel()]
        return kept


@dataclass(frozen=True, eq=False)
class PooledRanks:
    """Rank pooling after calibration: the members' calibration losses (M, K, n), rows in one order for all members.

    In the bag of the n calibration examples and the candidate, u_k(z) = #{j : s_j ≥ s_z} is member k's rank of z; z's pooled value is
    Σ_k g(u_k(z)), with g increasing and integer-valued, so that ties stay ties. The candidate is kept iff
    1 + #{i : pooled(i) ≤ pooled(candidate)} > level.
    """

    calibration: Floats
    level: Fraction
    r: float

    def __post_init__(self) -> None:
        n = self.calibration.shape[2]
        ordered = np.sort(self.calibration, axis=2)
        inside = np.empty(self.calibration.shape, dtype=np.int64)  # ranks among the calibration examples alone
        for cell in np.ndindex(*inside.shape[:2]):
            inside[cell] = n - np.searchsorted(ordered[cell], self.calibration[cell], side="left")
        object.__setattr__(self, "_ordered", ordered)
        object.__setattr__(self, "_inside", inside)
        object.__setattr__(self, "_g", self._integer_table(n))

    def _integer_table(self, n: int) -> Integers:
        u = np.arange(1, n + 2, dtype=np.float64)
        if math.isinf(self.r) or self.r == 1:
            return np.arange(n + 2)
        values = np.log(u) / math.log(n + 2) if self.r == 0 else np.copysign((u / (n + 1 if self.r > 0 else 1)) ** self.r, self.r)
        return np.append(0, np.rint(values * 2**52).astype(np.int64))

    def keeps(self, index: int, losses: Floats) -> Booleans:
        """Which classes stay, (b, C), from the members' losses (b, K, C)."""
        batch, _, classes = losses.shape
        n = self.calibration.shape[2]
        rows = max(1, 2_000_000 // (n * classes))
        parts = [self._keeps_block(index, losses[start : start + rows]) for start in range(0, batch, rows)]
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def _keeps_block(self, index: int, losses: Floats) -> Booleans:
        ordered, inside, table = self._ordered[index], self._inside[index], self._g  # type: ignore[attr-defined]
        combine = np.add if not math.isinf(self.r) else np.maximum if self.r > 0 else np.minimum

        def terms(k: int) -> tuple[Integers, Integers]:
            raised = losses[:, k, :, None] >= self.calibration[index, k]
            return table[ranks(ordered[k], losses[:, k])], np.where(raised, table[inside[k] + 1], table[inside[k]])

        own, others = terms(0)
        for k in range(1, losses.shape[1]):
            mine, theirs = terms(k)
            own, others = combine(own, mine), combine(others, theirs)
        count = np.count_nonzero(others <= own[:, :, None], axis=2)
        return count + 1 >= math.floor(self.level) + 1
