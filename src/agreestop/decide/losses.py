"""A threshold for any cost matrix: the mean cost of answers is at most `max_loss`.

An answer costs the least of the true class's row over the classes that it names. For a threshold λ let ℓ_i(λ) be the cost of example i, and
L_i(λ) the largest cost at any threshold up to λ. With B the largest cost in the matrix,

    λ = sup{ λ : (Σ_i L_i(λ) + B) / (n + 1) ≤ max_loss }          (conformal risk control; -∞ if there is none)

promises a mean cost of at most max_loss: nothing costs anything at λ = -∞, where all classes are answered. With a cost of 1 for every
miss this is the λ of AgreeStop. Sums are exact: costs are read as they are written and brought to one denominator.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import Floats, InputError, Integers, as_floats

from .checkpoints import apart, same_number, single_masses
from .evidence import Evidence
from .levels import LONGEST, Target, as_fraction
from .rounding import EQUAL, Rounding


def as_loss(loss: ArrayLike) -> Floats:
    """A cost matrix (C, C): cost[y, d] of answering d where y is true; finite, not negative, 0 on the diagonal."""
    array = as_floats(loss, "loss")
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        raise InputError(f"loss has shape {array.shape}: give one row for each true class and one column for each answered class.")
    if not (np.isfinite(array).all() and (array >= 0).all()):
        raise InputError("loss holds a negative, infinite or missing number: give costs of at least 0.")
    if np.diagonal(array).any():
        raise InputError("loss has a cost for the right answer, so that even an answer of all classes costs: give a diagonal of zeros.")
    if not array.any():
        raise InputError("loss holds only zeros: give the cost of at least one wrong answer.")
    return array


@dataclass(frozen=True, eq=False)
class CostSteps:
    """The costs of n examples as λ grows: L_i rises by `rises` at `breaks`, both (n, steps).

    Costs are whole numbers, `scale` times as large as given; `largest` is B.
    """

    breaks: Floats
    rises: Integers
    scale: int
    largest: int

    @classmethod
    def of(
        cls,
        evidence: Evidence,
        labels: Integers,
        loss: Floats,
        max_set_size: int,
        log_trim: float,
        rounding: Rounding | None = None,
    ) -> Self:
        """From evidence of all checkpoints, log ρ (n, M, C) and log e (n, M), with labels (n,).

        With a rounding: the largest costs that a run of the same input with other rounding may have.
        """
        breaks, costs = _cost_steps(evidence, labels, loss, max_set_size, log_trim, rounding)
        if rounding is not None and not rounding.breaks_ties:
            # Equal numbers of one input stay equal, so where different ones lie apart a run costs what this one does at a λ within η.
            lowest, known = _cost_steps(evidence, labels, loss, max_set_size, log_trim, None)
            clear = apart(_numbers(evidence, max_set_size, log_trim), rounding).reshape(-1, 1)
            breaks, costs = np.where(clear, lowest - rounding.at_most(lowest), breaks), np.where(clear, known, costs)
        order = np.argsort(breaks, axis=1, kind="stable")
        breaks, costs = np.take_along_axis(breaks, order, axis=1), np.take_along_axis(costs, order, axis=1)
        exact = {cost: Fraction(str(cost)) for cost in np.unique(loss).tolist()}
        scale = math.lcm(*(cost.denominator for cost in exact.values()))
        if scale * max(exact.values()) * (len(labels) + 1) >= 2**62:
            raise InputError("loss holds numbers with too many digits to be added exactly: round them to a few digits.")
        values = np.array(list(exact))
        whole = np.array([int(cost * scale) for cost in exact.values()])[np.searchsorted(values, costs)]
        rises = np.diff(np.maximum.accumulate(whole, axis=1), axis=1, prepend=0)
        return cls(breaks, rises, scale, int(exact[float(loss.max())] * scale))

    def threshold(self, rows: Integers, max_loss: Fraction) -> float:
        """λ from some of the examples."""
        allowed = max_loss * (len(rows) + 1) * self.scale - self.largest
        if allowed < 0:
            return -math.inf
        where = self.breaks[rows].ravel()
        together = np.argsort(where, kind="stable")
        too_many = np.flatnonzero(np.cumsum(self.rises[rows].ravel()[together]) > math.floor(allowed))
        return float(where[together][too_many[0]]) if len(too_many) else math.inf


def _numbers(evidence: Evidence, max_set_size: int, log_trim: float) -> Floats:
    """The numbers (n, ...) of an example that are compared with λ: risks, masses of the best classes, and those beyond them at the end."""
    risk, ranked = evidence.log_risk, -np.sort(-evidence.values, axis=-1)
    assert risk is not None
    kept = (ranked[:, :, 1:max_set_size] - log_trim).reshape(len(ranked), -1)
    return np.concatenate([risk, kept, ranked[:, -1, max_set_size:]], axis=1)


def _cost_steps(
    evidence: Evidence, labels: Integers, loss: Floats, max_set_size: int, log_trim: float, rounding: Rounding | None
) -> tuple[Floats, Floats]:
    """For each example the thresholds above which its answer costs something new, and those costs, both (n, steps).

    At a stop, the answer loses its least probable class as λ passes ρ/κ of that class. If nothing stopped, the last answer loses a class
    beyond the best I as λ passes its ρ.
    """
    mass, risk = evidence.values, evidence.log_risk
    assert risk is not None
    n, checkpoints, classes = mass.shape
    size = min(max_set_size, classes)
    order = np.argsort(-mass, axis=-1, kind="stable")
    ranked = np.take_along_axis(mass, order, axis=-1)
    paid = np.minimum.accumulate(loss[labels[:, None, None], order], axis=-1)  # the cost of answering the best 1, 2, ... classes
    opens, surely_open = risk, risk
    if rounding is not None:
        if rounding.breaks_ties:
            paid = _paid_among_ties(paid, ranked, loss[labels].max(axis=1), rounding)
        eta = rounding.at(risk)
        opens, surely_open = risk - eta, risk + eta
        # ρ of the first class outside is the risk itself: where it is too small to be kept, the input has stopped.
        itself = same_number(ranked[:, -1, size:], risk[:, -1:])
        ranked = ranked - rounding.at(ranked)
        ranked[:, -1, size:][itself] = np.inf
    lowest = np.minimum.accumulate(surely_open, axis=1)
    before = np.concatenate([np.full((n, 1), np.inf), lowest[:, :-1]], axis=1)
    # The answer at a stop has j classes for λ above the ρ/κ of class j + 1; all `size` of them from e_t on.
    drops = np.concatenate([ranked[:, :, 1:size] - log_trim, np.full((n, checkpoints, 1), -np.inf)], axis=-1)
    starts = np.maximum(drops, opens[:, :, None])
    stopped = np.where(starts < before[:, :, None], starts, np.inf)
    # Nothing stopped for λ ≤ lowest: the last answer has j ≥ I classes for λ above the ρ of class j + 1.
    tail = np.where(ranked[:, -1, size:] < lowest[:, -1:], ranked[:, -1, size:], np.inf)
    breaks = np.concatenate([stopped.reshape(n, -1), tail], axis=1)
    costs = np.concatenate([paid[:, :, :size].reshape(n, -1), paid[:, -1, size - 1 : classes - 1]], axis=1)
    return breaks, np.where(breaks < np.inf, costs, 0.0)


def _paid_among_ties(paid: Floats, ranked: Floats, most: Floats, rounding: Rounding) -> Floats:
    """The cost of answering the best 1, 2, ... classes (n, M, C) where classes that tie up to rounding may come in any order.

    A class is surely among the best j if fewer than j others are as probable; an answer without a sure class may cost `most`, (n,).
    """
    places, single = np.arange(ranked.shape[-1]), single_masses(ranked)
    with np.errstate(invalid="ignore"):  # masses are infinite where nothing stops
        swaps = single[:, :, :, None] - single[:, :, None, :] <= rounding.at(ranked)[..., None] + EQUAL
    later = places + np.count_nonzero(swaps & (places > places[:, None]), axis=-1)
    last_place = np.maximum.accumulate(later, axis=-1)
    sure = np.count_nonzero(last_place[:, :, None, :] <= places[:, None], axis=-1)
    costs = np.take_along_axis(paid, np.maximum(sure - 1, 0), axis=-1)
    return np.where(sure > 0, costs, most[:, None, None])


def as_max_loss(max_loss: Target, loss: Floats) -> Fraction:
    """The mean cost to promise, exactly as written; it must be less than the largest cost."""
    try:
        value = max_loss if isinstance(max_loss, Fraction) else as_fraction(str(max_loss).strip())
    except (ValueError, ZeroDivisionError):
        raise InputError(f"max_loss is {max_loss!r}: give the mean cost to promise, for example 0.05.") from None
    if value.denominator.bit_length() > LONGEST:
        raise InputError(f"max_loss is a fraction of {value.denominator.bit_length():,} bits: give a number such as 0.05.")
    if not 0 < value < Fraction(str(float(loss.max()))):
        raise InputError(f"max_loss is {max_loss!r}: it must lie between 0 and the largest cost, {loss.max():g}.")
    return value
