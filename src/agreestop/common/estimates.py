"""A number with its confidence interval: shares, bounded means, and means of realisations.

The mean m of independent values in [a, b] has a betting interval (Waudby-Smith and Ramdas 2023).
Scale the values to [0, 1]. Bets λ_i that depend only on earlier values multiply a capital by
1 + λ_i (x_i - m), whose mean is 1 if m is the true mean, so that by Markov

    P( Π_i (1 + λ_i (x_i - m)) ≥ 2/α ) ≤ α/2,

and the m with a smaller capital are the interval from below; the values 1 - x give it from above.
It holds at the stated level for every number of values and every distribution on [a, b]. The normal
interval does not: it has no width if a rare, large cost was not seen. The price is a width of about
1.4 times the normal one where both hold.

    λ_i = min( √(2·log(2/α) / (n·σ²_{i-1})), ¾/m )
    σ²_i = (¼ + Σ_{j≤i} (x_j - μ_j)²)/(i + 1)
    μ_i = (½ + Σ_{j≤i} x_j)/(i + 1)

Values are sorted and then shuffled with a fixed seed, so the interval does not depend on their
order.
"""

import math
from numbers import Real
from statistics import NormalDist
from typing import Self

import numpy as np

from .arrays import Floats, Integers
from .errors import InputError, quoted

PRECISION = 1e-6  # bounds are found to this share of [a, b]
TOGETHER = 1 << 10  # values times means tried at once: few values are faster with many means
LARGEST_BET = 0.75  # as a share of 1/m, with which one value could lose all capital


class Estimate(float):
    """A number with a confidence interval and a standard error.

    Attributes
    ----------
    low, high : float
        The ends of the interval.
    se : float
        The standard error; nan for the mean of a single value.

    Examples
    --------
    >>> coverage = Estimate.of_share(90, 100, confidence=0.95)
    >>> coverage
    0.9 [0.8256, 0.9448]
    >>> coverage > 0.85, round(coverage.se, 3)
    (True, 0.03)
    """

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

    def in_words(self, form: str = ".3f") -> str:
        """The number in this format, and its interval where it has one."""
        ends = "" if math.isnan(self.low) else f" [{self.low:{form}}, {self.high:{form}}]"
        return f"{float(self):{form}}{ends}"

    @classmethod
    def of_mean(cls, values: Floats | Integers, confidence: float) -> Self:
        """A mean of many realisations, with the normal interval."""
        mean, se = float(np.mean(values)), _standard_error(values)
        half = _z(confidence) * se
        return cls(mean, mean - half, mean + half, se)

    @classmethod
    def of_bounded(
        cls, values: Floats | Integers, least: float, most: float, confidence: float
    ) -> Self:
        """A mean of independent values that lie in [least, most], with its betting interval."""
        _z(confidence)  # refuses a confidence that is no probability
        mean, se, spread = float(np.mean(values)), _standard_error(values), most - least
        if not spread > 0:
            return cls(mean, mean, mean, se)
        shares = np.clip(np.sort((np.asarray(values, dtype=np.float64) - least) / spread), 0, 1)
        shares = np.random.default_rng(0).permutation(shares)
        log_needed = math.log(2 / (1 - confidence))
        bets = _bets(shares, log_needed)
        low = least + spread * _lower_bound(shares, bets, log_needed)
        high = most - spread * _lower_bound(1 - shares, bets, log_needed)
        return cls(mean, min(low, mean), max(high, mean), se)  # rounding must not exclude the mean

    @classmethod
    def of_share(cls, hits: float, count: float, confidence: float) -> Self:
        """A proportion, with Wilson's interval."""
        z = _z(confidence)
        share = hits / count
        variance = share * (1 - share) / count
        scale = 1 + z * z / count
        centre = (share + z * z / (2 * count)) / scale
        half = z / scale * math.sqrt(variance + z * z / (4 * count * count))
        low = min(share, max(0.0, centre - half))  # rounding must not exclude the share
        high = max(share, min(1.0, centre + half))
        return cls(share, low, high, math.sqrt(variance))

    def within(self, least: float, most: float) -> Self:
        """The same number, whose interval ends at the values that are possible."""
        return type(self)(float(self), max(self.low, least), min(self.high, most), self.se)

    def over(self, scale: float) -> Self:
        """The same quantity in another unit."""
        return type(self)(*(part / scale for part in self.__getnewargs__()))


def _standard_error(values: Floats | Integers) -> float:
    """The standard error of the mean; nan for a single value."""
    if len(values) < 2:
        return math.nan
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


def _z(confidence: float) -> float:
    """The normal quantile of a two-sided interval."""
    if not isinstance(confidence, Real) or not 0 < confidence < 1:
        raise InputError(
            f"confidence is {quoted(confidence)}: give the level of the intervals, between 0 and 1."
        )
    return NormalDist().inv_cdf((1 + confidence) / 2)


def student_quantile(confidence: float, freedom: float) -> float:
    """The quantile of Student's distribution for a two-sided interval.

    From 3 degrees of freedom on it is right to the second digit.
    """
    z = _z(confidence)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))


def _bets(values: Floats, log_needed: float) -> Floats:
    """λ (n,) before it is limited by m: each from the values before it."""
    counts = np.arange(2, len(values) + 2)
    means = (0.5 + np.cumsum(values)) / counts
    variances = (0.25 + np.cumsum((values - means) ** 2)) / counts
    before = np.concatenate([[0.25], variances[:-1]])
    return np.asarray(np.sqrt(2 * log_needed / (len(values) * before)))


def _lower_bound(values: Floats, bets: Floats, log_needed: float) -> float:
    """The largest m, to about 1e-6, at and below which bets on a larger mean refute every mean.

    It is 0 if they refute none. The capital falls as m grows, so the range is divided repeatedly.
    """
    low, high = 0.0, float(values.mean())
    points = min(max(TOGETHER // len(values), 1), 8)
    while high - low > PRECISION:
        grid = np.linspace(low, high, points + 2)
        means = grid[1:-1, None]
        capital = np.log1p(np.minimum(bets, LARGEST_BET / means) * (values - means)).sum(axis=1)
        refuted = np.count_nonzero(capital >= log_needed)
        low, high = grid[refuted : refuted + 2].tolist()
    return low
