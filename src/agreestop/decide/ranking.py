"""Bonferroni sets from the ranks of each member: exact where integers allow it.

A member's p-variable is u/(n+1) with the integer rank u = 1 + #{i : s ≤ s_i}. With the level ℓ = α(n+1)/M a class is kept iff

    a · M_r(u_1..u_K) > ℓ,     that is     Σ_k g(u_k) > 0,     g(u) = ((a·u/ℓ)^r - 1) / r     (log at r = 0),

and g grows with u for every r, so a table of it over 1..n+1 decides. For a positive integer r, a^r is rational (K or r + 1), and
sums within rounding of 0 are decided in integers. Elsewhere the constant is rounded up, which only keeps more.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from agreestop.common import Booleans, Floats, Integers

from .merging import MergePValues, ranks
from .rule_files import KeptInFiles

ROUND_UP = 1 + 1e-12
TIE = 1e-9  # sums nearer to 0 than this for each member are decided in integers
LARGEST_POWER = 1000  # beyond it integers grow too long to compare, and the mean is all but the maximum
BLOCK_NUMBERS = 1 << 18  # ranks pooled together: a block stays in the cache

Index: TypeAlias = int | Integers
"""The checkpoint of a whole batch, or one checkpoint for each of its inputs, (b,)."""

Number = TypeVar("Number", bound=np.generic)


def at_checkpoints(index: Index, inputs: Floats, read: Callable[[int, Floats], NDArray[Number]]) -> NDArray[Number]:
    """`read(checkpoint, inputs)` for one checkpoint, or for inputs at different checkpoints, one checkpoint after another."""
    if not isinstance(index, np.ndarray):
        return read(index, inputs)
    parts = [(index == checkpoint, int(checkpoint)) for checkpoint in np.unique(index)]
    if not parts:
        return read(0, inputs)
    results = [read(checkpoint, inputs[rows]) for rows, checkpoint in parts]
    joined = np.empty((len(inputs), *results[0].shape[1:]), results[0].dtype)
    for (rows, _), result in zip(parts, results, strict=True):
        joined[rows] = result
    return joined


def _is_exact(merging: MergePValues) -> bool:
    """Whether a^r is rational, so that ties can be decided in integers."""
    return merging.form != "randomized" and 0 < merging.r <= LARGEST_POWER and merging.r.is_integer()


def _factor(merging: MergePValues, members: int) -> float:
    """The constant a, rounded up unless ties are decided in integers."""
    factor = merging.least_factor(members)
    single = members == 1 and merging.form == "any"
    return factor if single or math.isinf(merging.r) or _is_exact(merging) else factor * ROUND_UP


def least_n_merged(merging: MergePValues, members: int, alpha: Fraction) -> int:
    """The least n with which a/(n+1) ≤ alpha, so that the smallest p-variables can exclude a label."""
    return max(1, math.ceil(Fraction(_factor(merging, members)) / alpha - 1))


def _table(n: int, level: Fraction, r: float, factor: float) -> Floats:
    """g(u) for u = 0..n+1."""
    if math.isinf(r):
        return np.empty(0)
    with np.errstate(divide="ignore", over="ignore"):
        x = np.log(np.arange(n + 2)) + math.log(factor) - math.log(float(level))
        return x if r == 0 else np.expm1(r * x) / r


@dataclass(frozen=True, eq=False)
class MergedRanks(KeptInFiles):
    """PM(r) after calibration: each member's sorted calibration losses (M, K, n) and the level α(n+1)/M."""

    calibration: Floats
    level: Fraction
    merging: MergePValues

    def __post_init__(self) -> None:
        _, members, n = self.calibration.shape
        object.__setattr__(self, "_g", _table(n, self.level, self.merging.r, _factor(self.merging, members)))

    def uniforms(self, count: int, first: int | None) -> Floats:
        """The uniform number of each input, (count, 1): a function of only the seed and the input's number; None for fresh ones."""
        if first is None:
            return np.random.default_rng().random((count, 1))
        bits = np.random.PCG64(self.merging.seed)
        bits.advance(first)
        return np.random.Generator(bits).random((count, 1))

    def keeps(self, index: Index, losses: Floats, uniforms: Floats | None = None) -> Booleans:
        """Which classes stay, (b, C), from the members' losses (b, K, C)."""
        r, form = self.merging.r, self.merging.form
        members = losses.shape[1]
        u = at_checkpoints(index, losses, self._ranks).swapaxes(0, 1)
        if math.isinf(r) or (members == 1 and form == "any"):
            return self._extreme(u) >= math.floor(self.level) + 1
        table: Floats = self._g  # type: ignore[attr-defined]
        if form == "exchangeable":
            sums = np.add.accumulate(table[u], axis=0)
            if not (_is_exact(self.merging) and (np.abs(sums) <= TIE * members).any()):
                return np.asarray((sums > 0).all(axis=0))
            return np.logical_and.reduce([self._positive(sums[m], u[: m + 1]) for m in range(members)])
        u.sort(axis=0)
        total = table[u[0]]
        for k in range(1, members):
            total += table[u[k]]
        if form == "any":
            return self._positive(total, u)
        assert uniforms is not None
        return total > members * -uniforms * (1.0 if r == 0 else 0.5)

    def _ranks(self, index: int, losses: Floats) -> Integers:
        """The members' ranks (b, K, C) at one checkpoint; in memory the members come first."""
        return np.stack([ranks(self.calibration[index, k], losses[:, k]) for k in range(losses.shape[1])]).swapaxes(0, 1)

    def _extreme(self, u: Integers) -> Integers:
        """a · M_r where it is an integer: one member, the first prefix, the maximum, or K times the minimum."""
        if len(u) == 1 or self.merging.form == "exchangeable":
            return u[0]
        return u.max(axis=0) if self.merging.r > 0 else len(u) * u.min(axis=0)

    def _positive(self, total: Floats, u: Integers) -> Booleans:
        """total > 0, where total = Σ_k g(u_k) for ranks u (m, ...)."""
        kept = total > 0
        if not _is_exact(self.merging):
            return kept
        close = np.abs(total) <= TIE * len(u)
        if close.any():
            cells, where = np.unique(u[:, close], axis=1, return_inverse=True)
            power, members = int(self.merging.r), self.calibration.shape[1]
            is_maximum = self.merging.form == "any" and power >= members - 1
            scaled = Fraction(members if is_maximum else power + 1, len(u))
            exact = [scaled * sum(int(rank) ** power for rank in cell) > self.level**power for cell in cells.T]
            kept[close] = np.array(exact)[where.ravel()]
        return kept


@dataclass(frozen=True, eq=False)
class PooledRanks(KeptInFiles):
    """Rank pooling after calibration: the members' calibration losses (M, K, n), rows in one order for all members.

    In the bag of the n calibration examples and the candidate, u_k(z) = #{j : s_j ≥ s_z - η} is member k's rank of z; z's pooled value is
    Σ_k g(u_k(z)), with g increasing and integer-valued, so that ties stay ties. The candidate is kept iff
    1 + #{i : pooled(i) ≤ pooled(candidate)} > level.

    η (M, K) is the rounding of losses, so that losses which tie in one run tie in every run; None, in files of version 0.2, is 0.
    """

    calibration: Floats
    level: Fraction
    r: float
    eta: Floats | None = None

    def __post_init__(self) -> None:
        n = self.calibration.shape[2]
        if self.eta is not None and (self.eta.shape != self.calibration.shape[:2] or not (np.isfinite(self.eta) & (self.eta >= 0)).all()):
            raise ValueError("a rounding that no calibration gives")
        ordered = np.sort(self.calibration, axis=2)
        below = self.calibration - (0.0 if self.eta is None else self.eta[:, :, None])
        inside = np.empty(self.calibration.shape, dtype=np.int64)  # ranks among the calibration examples only
        for cell in np.ndindex(*inside.shape[:2]):
            inside[cell] = n - np.searchsorted(ordered[cell], below[cell], side="left")
        object.__setattr__(self, "_below", below)
        object.__setattr__(self, "_ordered", ordered)
        object.__setattr__(self, "_inside", inside)
        object.__setattr__(self, "_g", self._integer_table(n))

    def _integer_table(self, n: int) -> Integers:
        ranks = np.arange(n + 2)
        if math.isinf(self.r) or self.r == 1:
            return ranks
        u = np.maximum(ranks, 1)
        values = np.log(u) / math.log(n + 2) if self.r == 0 else np.copysign((u / (n + 1 if self.r > 0 else 1)) ** self.r, self.r)
        # The rank itself comes second, so that g grows strictly even where the power cannot separate ranks.
        scale = min(2**40, 2**61 // (self.calibration.shape[1] * (n + 2)))  # sums over members stay inside 64 bits
        return np.rint(values * scale).astype(np.int64) * (n + 2) + ranks

    def keeps(self, index: Index, losses: Floats) -> Booleans:
        """Which classes stay, (b, C), from the members' losses (b, K, C)."""
        return at_checkpoints(index, losses, self._keeps_at)

    def _keeps_at(self, index: int, losses: Floats) -> Booleans:
        batch, _, classes = losses.shape
        n = self.calibration.shape[2]
        rows = max(1, BLOCK_NUMBERS // max(n * classes, 1))  # a class may have no examples
        parts = [self._keeps_block(index, losses[start : start + rows]) for start in range(0, max(batch, 1), rows)]
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def _keeps_block(self, index: int, losses: Floats) -> Booleans:
        ordered, inside, table = self._ordered[index], self._inside[index], self._g  # type: ignore[attr-defined]
        below: Floats = self._below[index]  # type: ignore[attr-defined]
        combine = np.add if not math.isinf(self.r) else np.maximum if self.r > 0 else np.minimum

        def terms(k: int) -> tuple[Integers, Integers]:
            raised = losses[:, k, :, None] >= below[k]
            lowered = losses[:, k] if self.eta is None else losses[:, k] - self.eta[index, k]
            return table[ranks(ordered[k], lowered)], np.where(raised, table[inside[k] + 1], table[inside[k]])

        own, others = terms(0)
        for k in range(1, losses.shape[1]):
            mine, theirs = terms(k)
            own, others = combine(own, mine), combine(others, theirs)
        count = np.count_nonzero(others <= own[:, :, None], axis=2)
        return count + 1 >= math.floor(self.level) + 1
