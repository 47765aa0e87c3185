"""A number with its confidence interval: shares, means of bounded values, and means of many realisations.

The mean m of independent values in [a, b] has a betting interval (Waudby-Smith and Ramdas 2023).
Scale the values to [0, 1]. Bets λ_i that depend only on earlier values multiply a capital by 1 +
λ_i (x_i - m), whose mean is 1 if m is the true mean, so that by Markov

    P( Π_i (1 + λ_i (x_i - m)) ≥ 2/α ) ≤ α/2,

and the m with a smaller capital are the interval from below; the values 1 - x give it from above.
It holds at the stated level for every number of values and every distribution on [a, b], where the
normal interval fails: a rare, large cost that was not seen leaves it no width. The price is a width
of about 1.4 times that of the normal interval where both hold.

    λ_i = min( √(2·log(2/α) / (n·σ²_{i-1})), ¾/m ),    σ²_i = (¼ + Σ_{j≤i} (x_j - μ_j)²)/(i + 1),    μ_i = (½ + Σ_{j≤i} x_j)/(i + 1)

Values are sorted and then shuffled with a fixed seed, so the interval does not depend on their
order.
"""

import math
from statistics import NormalDist
from typing import Self

import numpy as np

from agreestop.common import Floats, InputError, Integers

PRECISION = 1e-6  # bounds are found to this share of [a, b]
TOGETHER = 1 << 10  # values times means that are tried together: many means at once are faster where the values are few
LARGEST_BET = 0.75  # of 1/m, with which one value could lose all capital


class Estimate(float):
    """A number with a confidence interval, `low` to `high`, and a standard error, `se`."""

    low: float
    high: float
    se: float

    def __new__(cls, value: float, low: float, high: float, se: float) -> Self:
        estimate = super().__new__(cls, value)
        estimate.low, estimate.high, estimate.se = low, high, se
        return estimate

    def __getnewargs__(self) -> tuple[float, float, float, float]:  # type: ignore[override]
        return float(self), self.low, self.high, self.se

    def __repr__(self) -> str:
        return f"{float(self):.4g} [{self.low:.4g}, {self.high:.4g}]"

    @classmethod
    def of_mean(cls, values: Floats | Integers, confidence: float) -> Self:
        """A mean of many realisations, with the normal interval."""
        mean, se = float(np.mean(values)), _standard_error(values)
        half = _z(confidence) * se
        return cls(mean, mean - half, mean + half, se)

    @classmethod
    def of_bounded(cls, values: Floats | Integers, least: float, most: float, confidence: float) -> Self:
        """A mean of independent values that lie in [least, most], with its betting interval."""
        _z(confidence)
        mean, spread = float(np.mean(values)), most - least
        if not spread > 0:
            return cls(mean, mean, mean, _standard_error(values))
        shares = np.sort((np.asarray(values, dtype=np.float64) - least) / spread)
        shares = np.random.default_rng(0).permutation(np.clip(shares, 0.0, 1.0))
        bets, log_needed = _bets(shares, 1 - confidence), math.log(2 / (1 - confidence))
        low = least + spread * _lower_bound(shares, bets, log_needed)
        high = most - spread * _lower_bound(1 - shares, bets, log_needed)
        return cls(mean, min(low, mean), max(high, mean), _standard_error(values))  # rounding must not shut the mean out

    @classmethod
    def of_share(cls, hits: float, count: float, confidence: float) -> Self:
        """A proportion, with Wilson's interval."""
        z = _z(confidence)
        share = hits / count
        centre = (share + z * z / (2 * count)) / (1 + z * z / count)
        half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
        low, high = min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half))  # rounding must not shut the share out
        return cls(share, low, high, math.sqrt(share * (1 - share) / count))

    def over(self, scale: float) -> Self:
        """The same quantity in another unit."""
        return type(self)(self / scale, self.low / scale, self.high / scale, self.se / scale)


def _standard_error(values: Floats | Integers) -> float:
    return float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def _z(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise InputError(f"confidence is {confidence}: give the level of the intervals, between 0 and 1.")
    return NormalDist().inv_cdf((1 + confidence) / 2)


def _bets(values: Floats, alpha: float) -> Floats:
    """λ (n,) before it is limited by m: each from the values before it."""
    counts = np.arange(2, len(values) + 2)
    means = (0.5 + np.cumsum(values)) / counts
    variances = (0.25 + np.cumsum((values - means) ** 2)) / counts
    before = np.concatenate([[0.25], variances[:-1]])
    return np.asarray(np.sqrt(2 * math.log(2 / alpha) / (len(values) * before)))


def _lower_bound(values: Floats, bets: Floats, log_needed: float) -> float:
    """The largest m, to about 1e-6, at and below which every mean is refuted by bets that it is larger; 0 if none is.

    The capital falls as m grows, so the bound is found by dividing its range again and again.
    """
    low, high = 0.0, float(values.mean())
    points = min(max(TOGETHER // len(values), 1), 8)
    while high - low > PRECISION:
        grid = np.linspace(low, high, points + 2)
        means = grid[1:-1, None]
        capital = np.log1p(np.minimum(bets, LARGEST_BET / means) * (values - means)).sum(axis=1)
        refuted = int(np.count_nonzero(capital >= log_needed))
        low, high = float(grid[refuted]), float(grid[refuted + 1])
    return low
