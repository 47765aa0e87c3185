"""Ranks and levels in exact rational arithmetic, and how far numbers of two runs may differ.

A conformal threshold is an order statistic, and its rank is an integer:

    k = ⌈(n + 1)·level⌉                                          marginal
    k = min{k : P(Binomial(n, level) ≥ k) ≤ δ}                   with probability 1 - δ

In floating point `1 - 0.9` is not `0.1`, which moves the rank by one where it matters most. So a
target is read as the user wrote it (`Fraction(str(target))`), and every rank below is exact.

Numbers of an input are rounded. In another batch, in float32 or on another machine a number v of
checkpoint t may move by up to

    η(v) = absolute_t + relative · |v|.

The log-confidences that a model writes differ by at least a few units of float32, and by what
`Scores.rounding` says if that is more. A risk or a score passes that on: a temperature τ multiplies
it, a difference of two log-masses doubles it, and an offset adds the rounding of its own size. A
generalised mean of members moves no further than the member that moves most. Thresholds stay clear
of all that (`in_gap`).
"""

import math
import re
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .arrays import Booleans, Floats
from .errors import InputError, quoted

Target = float | str | Fraction | Decimal

# Log-tails nearer than TIE to the bound are decided exactly, or on the safe side if there are more
# than EXACT_UP_TO examples.
TIE = 1e-9
EXACT_UP_TO = 2000
LONGEST = 7000  # bits of a denominator: 2,000 digits
# 1e-99999999 as a fraction has a denominator of 99999999 digits.
READABLE = re.compile(r"[^eE]{1,2000}([eE][+-]?\d{1,3})?")

UNIT = 2.0**-24  # half a unit in the last place of a float32 near 1


UNITS = 32  # absolute rounding in units: log-confidences come from logits of about this size


HALF_UNIT = 2.0**-11  # the same for float16


# How far a threshold may move to find a gap: 1 % of a risk, since risks are logarithms.
REACH = 0.01


EQUAL = 1e-11  # log-masses nearer than this are equal: their float64 sums are rounded


def as_fraction(text: str) -> Fraction:
    """The number exactly as written; a ValueError if it is too long to compute with."""
    if not READABLE.fullmatch(text):
        raise ValueError(f"{quoted(text)} is too long, or no number")
    return Fraction(text)


def as_exact(value: Target, name: str, example: str) -> Fraction:
    """A number exactly as written, for example "0.9" or "9/10"."""
    try:
        exact = value if isinstance(value, Fraction) else as_fraction(str(value).strip())
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{name} is {quoted(value)}: give {example}.") from None
    if (bits := exact.denominator.bit_length()) > LONGEST:
        raise InputError(f"{name} is a fraction of {bits:,} bits: give {example}.")
    return exact


def as_target(target: Target, name: str = "target") -> Fraction:
    """A probability strictly between 0 and 1, exactly as written.

    0.9, "0.9", "9/10" and Fraction(9, 10) are the same number.
    """
    value = as_exact(target, name, "a probability such as 0.9, '0.9' or '9/10'")
    if not 0 < value < 1:
        example = {"delta": "0.1", "share": "0.05"}.get(name, "0.9")
        given = in_words(target) if isinstance(target, Fraction) else quoted(target)
        raise InputError(
            f"{name} is {given}: it must lie strictly between 0 and 1, for example {example}."
        )
    return value


def as_delta(delta: Target | None) -> Fraction | None:
    """The δ of a training-conditional promise, exactly as written; None stays None."""
    return None if delta is None else as_target(delta, "delta")


def quantile_rank(n: int, level: Fraction, delta: Fraction | None = None) -> int:
    """Rank k such that the k-th smallest of n scores is at least a new one with P ≥ level.

    Without `delta`, for exchangeable scores: ⌈(n+1)·level⌉. With it, for i.i.d. scores: the
    smallest k with P(Beta(k, n+1-k) < level) ≤ delta, so that with probability ≥ 1 - delta over
    the n scores the coverage given them is ≥ level. n + 1 means that no score is high enough.
    """
    if delta is None:
        return math.ceil((n + 1) * level)
    # P(Beta(k, n+1-k) < p) = P(Binomial(n, p) ≥ k). The tail is summed in logs from k = n down.
    log_hit, log_miss = _log(level), _log(1 - level)
    steps = np.arange(n, 0, -1)
    ratios = np.log(steps / (n - steps + 1.0)) + log_miss - log_hit
    masses = n * log_hit + np.concatenate([[0.0], np.cumsum(ratios)])
    tails = np.logaddexp.accumulate(masses)[:n]
    bound = _log(delta)
    below = int(np.searchsorted(tails, bound - TIE, side="right"))
    is_tie = below < n <= EXACT_UP_TO and tails[below] < bound + TIE
    if is_tie and _tail(n, level, n - below) <= delta:
        below += 1
    return n + 1 - below


def _log(value: Fraction) -> float:
    """log of a probability, however near to 0 or 1."""
    if value > Fraction(1, 2):
        return math.log1p(-float(1 - value))
    return math.log(value.numerator) - math.log(value.denominator)


def _tail(n: int, p: Fraction, k: int) -> Fraction:
    """P(Binomial(n, p) ≥ k), exactly."""
    hit, whole = p.numerator, p.denominator
    ways = (math.comb(n, j) * hit**j * (whole - hit) ** (n - j) for j in range(k, n + 1))
    return Fraction(sum(ways), whole**n)


def order_statistic(values: Floats, rank: int) -> float:
    """The rank-th smallest value, counted from 1; ∞ above the last, -∞ below the first."""
    if not 1 <= rank <= len(values):
        return -math.inf if rank < 1 else math.inf
    return float(np.partition(values, rank - 1)[rank - 1])


def least_n(level: Fraction, delta: Fraction | None = None) -> int:
    """The smallest n at which `quantile_rank` is at most n, so that a threshold can be finite."""
    if delta is None:
        return math.ceil(level / (1 - level))
    bound, log_hit = _log(delta), _log(level)
    n = max(1, math.ceil(bound / log_hit) - 1)
    # P(Binomial(n, p) ≥ n) = p^n decides whether rank n is enough. The long sum is needed only
    # where ties are decided exactly.
    while n * log_hit > bound - TIE if n > EXACT_UP_TO else quantile_rank(n, level, delta) > n:
        n += max(1, n >> 50)
    return n


def largest_miss_rate(n: int, rank: int, delta: Fraction) -> float:
    """The 1 - delta quantile of Beta(n+1-rank, rank), rounded up.

    That is the law of the miss rate given the examples, if the threshold is the rank-th smallest
    of n. The quantile is the least a with P(Binomial(n, a) ≤ n - rank) ≤ delta.
    """
    misses = np.arange(n - rank + 1)
    steps = misses[:-1]
    # log of n over m, m = 0..n-rank
    choices = np.concatenate([[0.0], np.cumsum(np.log((n - steps) / (steps + 1.0)))])
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        masses = choices + misses * math.log(middle) + (n - misses) * math.log1p(-middle)
        if np.logaddexp.reduce(masses) <= _log(delta):
            high = middle
        else:
            low = middle
    return min(high + TIE, 1 - TIE)


def coverage_draws(n: int, rank: int, tests: int) -> Floats:
    """P(at most h of `tests` answers hold the label), h = 0..tests.

    The probability is over draws of n calibration examples and of the test inputs. The threshold
    is the rank-th smallest of n continuous numbers, so coverage given them is Beta(rank, n+1-rank)
    and the number of hits is beta-binomial. Coverage is no less if the numbers tie or the rule
    keeps more classes.
    """
    hits = np.arange(tests)
    left = tests - hits
    steps = np.log(left * (rank + hits)) - np.log((hits + 1.0) * (left + n - rank))
    masses = np.concatenate([[0.0], np.cumsum(steps)])
    shares = np.cumsum(np.exp(masses - masses.max()))
    return np.asarray(shares / shares[-1])


def in_words(value: Fraction) -> str:
    """A probability as a person writes it: 0.9, or 1/3 where the decimals do not end."""
    text = str(Decimal(value.numerator) / Decimal(value.denominator))
    return text if Fraction(text) == value else str(value)


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
    """Whether all different numbers (n, m) of an example lie more than 2η apart, (n,).

    Equal ones stay equal in another run, unless the rounding breaks ties: then nothing is apart.
    """
    if rounding.breaks_ties:
        return np.zeros(len(numbers), dtype=bool)
    ordered = np.sort(numbers, axis=1)
    with np.errstate(invalid="ignore"):
        steps = np.diff(ordered, axis=1)
    close = (steps > EQUAL) & (steps <= 2 * rounding.at_most(ordered[:, 1:]))
    return np.asarray(~close.any(axis=1))


def same_number(one: Floats, other: Floats) -> Booleans:
    """Whether finite numbers are equal but for the rounding of float64 sums."""
    with np.errstate(invalid="ignore"):
        return np.abs(one - other) <= EQUAL
