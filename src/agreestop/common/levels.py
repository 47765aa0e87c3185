"""Ranks and levels, decided in exact rational arithmetic.

A conformal threshold is an order statistic, and its rank is an integer:

    k = ⌈(n + 1)·level⌉                                          marginal
    k = min{k : P(Binomial(n, level) ≥ k) ≤ δ}                   with probability 1 - δ

In floating point `1 - 0.9` is not `0.1`, which moves the rank by one where it matters most. So a
target is read as the user wrote it (`Fraction(str(target))`), and every rank below is exact.
"""

import math
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np

from agreestop.common import Floats, InputError
from agreestop.common.errors import quoted

Target = float | str | Fraction | Decimal

# Log-tails nearer than TIE to the bound are decided exactly, or on the safe side if there are more
# than EXACT_UP_TO examples.
TIE = 1e-9
EXACT_UP_TO = 2000
LONGEST = 7000  # bits of a denominator: 2,000 digits
# 1e-99999999 as a fraction has a denominator of 99999999 digits.
READABLE = re.compile(r"[^eE]{1,2000}([eE][+-]?\d{1,3})?")


def as_fraction(text: str) -> Fraction:
    """The number exactly as written; a ValueError if it is too long to compute with."""
    if not READABLE.fullmatch(text):
        raise ValueError(f"{quoted(text)} is too long, or no number")
    return Fraction(text)


def as_target(target: Target, name: str = "target") -> Fraction:
    """A probability strictly between 0 and 1, exactly as written.

    0.9, "0.9", "9/10" and Fraction(9, 10) are the same number.
    """
    try:
        value = target if isinstance(target, Fraction) else as_fraction(str(target).strip())
    except (ValueError, ZeroDivisionError):
        raise InputError(
            f"{name} is {quoted(target)}: give a probability such as 0.9, '0.9' or '9/10'."
        ) from None
    if value.denominator.bit_length() > LONGEST:
        raise InputError(
            f"{name} is a fraction of {value.denominator.bit_length():,} bits: give a probability "
            "such as 0.9 or '9/10'."
        )
    if not 0 < value < 1:
        example = "0.1" if name == "delta" else "0.9"
        raise InputError(
            f"{name} is {quoted(target)}: it must lie strictly between 0 and 1, for example "
            f"{example}."
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
