"""Two numbers a checkpoint, and W: where an example first fails, as a function of the threshold λ. Small λ is safe.

    opens_t     the rule stops at checkpoint t iff opens_t < λ ≤ closes_t, and no earlier checkpoint was open; closes_t is often ∞
    fails_t     an answer at t misses the label for λ > fails_t
    fails_end   an input that nothing stopped misses it for λ > fails_end

    W = inf{ λ : the answer at λ misses }          a miss at λ implies W < λ

Without `closes`, R_t = min(opens_1 … opens_t) says that the rule stops at t for λ in (R_t, R_{t-1}], so

    W = min{ max(opens_t, fails_t) : it is < R_{t-1} }, and fails_end if it is < R_M.

Another run of the same input may round every number by up to η. W_η is below every λ at which some such run misses: what can
open may open from opens_t - η on, what surely opens does so above opens_t + η, and fails_t may be as low as fails_t - η.

AgreeStop, with the I most probable classes and trim factor κ (all in logarithms):

    opens_t = e_t,      fails_t = -∞ if y is not among them,   ρ_t(y)/κ if it is not the first,   else ∞

and fails_end = ρ_M(y) if y is not among the I most probable classes at M, else ∞. Classes that tie up to rounding may come in
another order in another run: under rounding y stands behind all that may change places with it.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from agreestop.common import Booleans, Floats, Integers

from .evidence import Evidence
from .rounding import EQUAL, Rounding


@dataclass(frozen=True, eq=False)
class Failures:
    """opens and fails (n, M), fails_end (n,), and closes (n, M) where checkpoints close again."""

    opens: Floats
    fails: Floats
    fails_end: Floats
    closes: Floats | None = None

    @classmethod
    def of(
        cls,
        evidence: Evidence,
        labels: Integers,
        max_set_size: int,
        log_trim: float,
        rounding: Rounding | None = None,
        final: bool = False,
    ) -> Self:
        """For AgreeStop, from evidence of all checkpoints: log ρ (n, M, C) and log e (n, M).

        final: the label is the answer of an input that nothing stopped.
        """
        assert evidence.log_risk is not None
        rank, mass = _standing(evidence.values, labels, rounding)
        kept = np.where(rank > 0, mass - log_trim, np.inf)
        fails = np.where(rank >= max_set_size, -np.inf, kept)
        outside = (rank[:, -1] >= max_set_size) & (not final)
        return cls(evidence.log_risk, fails, np.where(outside, mass[:, -1], np.inf))

    def __len__(self) -> int:
        return len(self.opens)

    def rows(self, rows: Integers | Booleans) -> Self:
        """Some of the examples."""
        closes = None if self.closes is None else self.closes[rows]
        return type(self)(self.opens[rows], self.fails[rows], self.fails_end[rows], closes)

    def minus(self, offsets: Floats) -> Self:
        """With an offset (M,) taken from every logarithm of its checkpoint."""
        ends = self.fails_end - offsets[-1]
        return replace(self, opens=self.opens - offsets, fails=self.fails - offsets, fails_end=ends)

    def at(self, opened: Booleans) -> Self:
        """Only at some of the checkpoints, (n, M)."""
        return replace(self, opens=np.where(opened, self.opens, np.inf))

    def first(self, rounding: Rounding | None = None, exact: Floats | None = None) -> Floats:
        """W (n,), ∞ where nothing fails; with a rounding W_η. exact: W, where it is known already."""
        if rounding is None or rounding.breaks_ties:
            return self._first(rounding)
        # Equal numbers of one input stay equal, so where different ones lie apart a run decides as this one does at a λ within η.
        first = self._first(None) if exact is None else exact
        first = first - rounding.at_most(first)
        parts = [self.opens, self.fails, self.fails_end[:, None]]
        parts += [] if self.closes is None else [self.closes]
        close = np.flatnonzero(~apart(np.concatenate(parts, axis=1), rounding))
        first[close] = np.minimum(first[close], self.rows(close)._first(rounding))
        return first

    def _first(self, rounding: Rounding | None) -> Floats:
        opens, fails, end = self.opens, self.fails, self.fails_end
        may_open, surely_open = opens, opens
        if rounding is not None:
            eta = rounding.at(opens)
            may_open, surely_open = opens - eta, opens + eta
            if self.closes is None:
                # ρ of the first class outside is the risk itself: where it is too small to be kept, the input has stopped.
                end = np.where(same_number(end, opens[:, -1]), np.inf, end)
            fails, end = fails - rounding.at(fails), end - rounding.at_last(end)
        starts = np.maximum(may_open, fails)
        if self.closes is not None:
            return self._first_in_windows(starts, end, surely_open, rounding)
        lowest = np.minimum.accumulate(surely_open, axis=1)
        before = np.concatenate([np.full((len(self), 1), np.inf), lowest[:, :-1]], axis=1)
        stopped = np.where(starts < before, starts, np.inf).min(axis=1)
        return np.minimum(stopped, np.where(end < lowest[:, -1], end, np.inf))

    def _first_in_windows(self, starts: Floats, end: Floats, surely_open: Floats, rounding: Rounding | None) -> Floats:
        """W where checkpoint t is open for λ in (opens_t, closes_t] alone.

        For each t: the least λ above starts_t that no earlier checkpoint surely stops, if t may still be open there.
        """
        assert self.closes is not None
        may_close, surely_close = self.closes, self.closes
        if rounding is not None:
            eta = rounding.at(self.closes)
            may_close, surely_close = self.closes + eta, self.closes - eta
        least = np.full(len(self), np.inf)
        for index in range(starts.shape[1]):
            free = _skip(starts[:, index], surely_open[:, :index], surely_close[:, :index])
            least = np.minimum(least, np.where(free < may_close[:, index], free, np.inf))
        return np.minimum(least, _skip(end, surely_open, surely_close))

    def stops(self, thresholds: Floats) -> Integers:
        """The checkpoint (n,) at which each example stops with its threshold, (n,)."""
        stopped = self.opens < thresholds[:, None]
        stopped[:, -1] = True
        return np.asarray(stopped.argmax(axis=1))


def apart(numbers: Floats, rounding: Rounding) -> Booleans:
    """Whether all different numbers of an example lie more than 2η apart, (n,), from numbers (n, m)."""
    ordered = np.sort(numbers, axis=1)
    with np.errstate(invalid="ignore"):
        steps = np.diff(ordered, axis=1)
    close = (steps > EQUAL) & (steps <= 2 * rounding.at_most(ordered[:, 1:]))
    return np.asarray(~close.any(axis=1))


def _skip(start: Floats, lows: Floats, highs: Floats) -> Floats:
    """The least u ≥ start (n,) such that numbers just above u are in none of the intervals (low, high], (n, m)."""
    found = start.copy()
    rows = np.arange(len(found))
    while len(rows):
        at = found[rows, None]
        covered = (lows[rows] <= at) & (at < highs[rows])
        higher = np.where(covered, highs[rows], -np.inf).max(axis=1, initial=-np.inf)
        moved = higher > found[rows]
        rows = rows[moved]
        found[rows] = higher[moved]
    return found


def _standing(values: Floats, labels: Integers, rounding: Rounding | None) -> tuple[Integers, Floats]:
    """The rank of the label, from 0, and log ρ at that rank, both (n, M), from log ρ (n, M, C).

    With a rounding that breaks ties, the last rank that the label may have among classes that tie with it.
    """
    own = values[np.arange(len(labels)), :, labels]
    rank: Integers = np.count_nonzero(values > own[:, :, None], axis=-1)
    if rounding is None or not rounding.breaks_ties:
        return rank, own
    finite = np.isfinite(own)
    following = np.where(values < own[:, :, None], values, -np.inf).max(axis=-1)
    beyond = np.where(values < following[:, :, None], values, -np.inf).max(axis=-1)
    eta = rounding.at(own) + EQUAL
    tied = finite & (log_difference(own, following) - log_difference(following, beyond) <= eta)
    if not tied.any():
        return rank, own
    ranked = -np.sort(-values[tied], axis=-1)
    single = single_masses(ranked)
    cells, ahead = np.arange(len(ranked)), rank[tied]
    swaps = single[cells, ahead][:, None] - single <= eta[tied][:, None]
    last = ahead + np.count_nonzero(swaps & (np.arange(values.shape[2]) > ahead[:, None]), axis=-1)
    mass = own.copy()
    rank[tied], mass[tied] = last, ranked[cells, last]
    return rank, mass


def single_masses(ranked: Floats) -> Floats:
    """log π of classes in order, from log ρ (..., C) in falling order."""
    following = np.append(ranked[..., 1:], np.full((*ranked.shape[:-1], 1), -np.inf), axis=-1)
    return log_difference(ranked, following)


def same_number(one: Floats, other: Floats) -> Booleans:
    """Whether finite numbers are equal but for the rounding of float64 sums."""
    with np.errstate(invalid="ignore"):
        return np.abs(one - other) <= EQUAL


def log_difference(larger: Floats, smaller: Floats) -> Floats:
    """log(e^larger - e^smaller), for larger ≥ smaller; -∞ where they are equal."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        gap = np.where(np.isneginf(smaller), -np.inf, smaller - larger)
        return np.asarray(larger + np.log(-np.expm1(np.minimum(gap, 0.0))))
