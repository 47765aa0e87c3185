"""W to thresholds: ranks, weights, and gaps between the numbers that are compared with a threshold. Small thresholds are safe.

    plain       λ = the k-th smallest W, k = ⌊(n+1)α⌋, or the k of a promise with δ
    weighted    λ = sup{ λ : Σ_{W_i < λ} w_i + w_max ≤ α·(Σ_i w_i + w_max) }

The second holds under a covariate shift with known weights w = dQ/dP ≤ w_max: the same with the new input's weight in place of
w_max is the threshold of weighted exchangeability on all n + 1, and the left side less the right one grows with that weight.

**Gaps.** A miss at λ' ≤ λ gives W < λ' ≤ λ, so every smaller threshold keeps the promise too. A threshold that many inputs share
a number with would put all of them on the other side in float32, in another batch or on another machine. So thresholds are taken
from W_η, which allows for rounding up to η (see `checkpoints`), and then moved down into the first gap (b, a) wider than 2η
between the numbers that calibration rows compare with λ:

    λ = a - min((a - b)/2, REACH)          where a is within REACH of the k-th smallest W_η; λ - η where there is no such gap
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from agreestop.common import Booleans, Floats, Integers

from .conditions import Conditions, LabelledEvidence
from .levels import order_statistic, quantile_rank
from .rounding import Rounding

REACH = 0.01  # how far a threshold may move to find a gap: 1 % of a risk, since thresholds are logarithms


def weighted_threshold(failures: Floats, weights: Floats, max_weight: float, alpha: Fraction) -> float:
    """sup{ λ : Σ_{W_i < λ} w_i + w_max ≤ α·(Σ w_i + w_max) }, or -∞. Sums are exact, so equal weights give the plain threshold."""
    order = np.argsort(failures, kind="stable")
    exact = [Fraction(weight) for weight in weights[order].tolist()]
    allowed = alpha * (sum(exact) + Fraction(max_weight)) - Fraction(max_weight)
    if allowed < 0:
        return -math.inf
    for failure, below in zip(failures[order].tolist(), itertools.accumulate(exact), strict=True):
        if below > allowed:
            return float(failure)
    return math.inf


def allowed_threshold(failures: Floats, conditions: Conditions, rows: Integers, target: Fraction, delta: Fraction | None) -> float:
    """The largest safe threshold from the W (n,) of some rows."""
    if conditions.weights is not None and conditions.max_weight is not None:
        weights = conditions.weights[rows]
        return weighted_threshold(failures[rows], weights, conditions.max_weight, 1 - target)
    rank = quantile_rank(len(rows), target, delta)
    return order_statistic(failures[rows], len(rows) + 1 - rank)


def in_gap(threshold: float, numbers: Floats, rounding: Rounding) -> float:
    """The threshold, or a smaller one near it, with no number nearer than η if that can be."""
    if not math.isfinite(threshold):
        return threshold
    eta = rounding.largest(threshold)
    reach = max(REACH, 2 * eta)
    near = numbers[(numbers >= threshold - 3 * reach) & (numbers <= threshold + eta)]
    points = np.unique(np.append(near, threshold + eta))[::-1]
    below = np.append(points[1:], -np.inf)
    found = np.flatnonzero((points - below > 2 * eta) & (points >= threshold - reach))
    if not len(found):
        return threshold - eta
    upper, lower = float(points[found[0]]), float(below[found[0]])
    return upper - min((upper - lower) / 2, reach)


@dataclass(frozen=True, eq=False)
class Thresholds:
    """(G, B) thresholds in gaps, one for each group and block, and the k-th smallest W (or what replaces it) behind each."""

    values: Floats
    kth: Floats


def find_thresholds(
    examples: LabelledEvidence,
    exact: Callable[[Integers], float],
    rounded: Callable[[Integers], float],
    numbers: Floats,
    rounding: Rounding,
    class_conditional: bool = False,
    blocks: Integers | None = None,
    count: int = 1,
    refine: Callable[[float, Integers], float] | None = None,
) -> Thresholds:
    """The thresholds that the rows of each group and block allow.

    exact and rounded give the threshold that some rows allow, from W and from W_η. With class_conditional a threshold is the
    least over the classes. numbers (n, ...) are all that are compared with a threshold. blocks (n,) are the blocks of the
    examples; None for one block. `refine` may replace a threshold by a safer one, given the rows of the group and block.
    """
    everybody = np.ones((len(examples), 1), dtype=bool)
    groups = everybody if examples.conditions.groups is None else examples.conditions.groups
    inside = everybody if blocks is None else blocks[:, None] == np.arange(count)
    cells = examples.cells(class_conditional)

    def least(allowed: Callable[[Integers], float], rows: Booleans) -> float:
        return min(allowed(cell[rows[cell]]) for cell in cells)

    def safe(rows: Booleans, compared: Floats) -> float:
        value = least(rounded, rows)
        if refine is not None and rows.any():
            value = refine(value, np.flatnonzero(rows))
        return in_gap(value, compared, rounding)

    values, kth = [], []
    for group in groups.T:
        compared = (numbers if group.all() else numbers[group]).ravel()
        each = [group & block for block in inside.T]
        values.append([safe(rows, compared) for rows in each])
        kth.append([least(exact, rows) for rows in each])
    return Thresholds(np.array(values), np.array(kth))
