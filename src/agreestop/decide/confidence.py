"""Confidences, generalised means, and how the members of an ensemble become one.

    f_c = exp(r_c) / Σ_c' exp(r_c')                 confidence: softmax of the spike counts r so far
    M_r(f) = (1/K · Σ_k f_k^r)^(1/r)                generalised mean; r = 0 geometric, ±∞ max, min

A pooling says how the K members become one: `MergeConfidence` takes the generalised mean of their
confidences, and the poolings of `merging` compare each member with calibration data first.

Confidences are kept as float64 logarithms: powers of f underflow, and the loss of a sure winner
(1e-35, say) would round to 0 and tie with others. `log1p` and `expm1` preserve it. Sums run over
sorted values, so the order of members and classes never changes a bit: scores from spike counts
tie often, and a tie must stay a tie.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import (
    Floats,
    InputError,
    check_finite,
    set_fields,
    with_axis,
)
from agreestop.common.kept import KeptInFiles

LARGEST_LOGIT = 1e300


def log_softmax(logits: Floats) -> Floats:
    """Log-softmax over the last axis, with the same bits for any order of the classes."""
    ordered = np.sort(logits, axis=-1)
    top = ordered[..., -1:]
    parts = np.exp(ordered - top)
    parts[..., -1] = 0.0  # log1p adds the winner's own 1
    logs: Floats = logits - top
    logs -= np.log1p(np.add.accumulate(parts, axis=-1)[..., -1:])
    return logs


def log_confidence(counts: ArrayLike, axis: int = -1) -> Floats:
    """Log-confidence of every class: the log-softmax of spike counts or logits.

    Parameters
    ----------
    counts : array_like
        Spike counts or logits, finite.
    axis : int
        The axis of the classes.

    Returns
    -------
    ndarray of float64
        Logarithms of confidences, of the same shape as `counts`. Equal counts give equal numbers.

    Examples
    --------
    >>> import agreestop as ag
    >>> ag.log_confidence([3, 1, 1]).round(3).tolist()
    [-0.24, -2.24, -2.24]
    """
    array = with_axis(counts, axis, "counts")
    check_finite(array, "counts")
    largest = np.abs(array).max(initial=0.0)
    if largest > LARGEST_LOGIT:
        raise InputError(
            f"counts reaches {largest:.3g}, which no logarithm of a confidence can hold: "
            "rescale the logits."
        )
    logs = log_softmax(np.moveaxis(array, axis, -1))
    return np.ascontiguousarray(np.moveaxis(logs, -1, axis))


def tempered(temperature: Floats, pooled: Floats) -> Floats:
    """τ · g for log-confidences g (..., C), kept finite."""
    with np.errstate(over="ignore"):
        return np.maximum(temperature * pooled, -LARGEST_LOGIT)


def as_exponent(r: float) -> float:
    """Check the exponent of a generalised mean: any number in [-∞, ∞]."""
    try:
        value = float(r)
    except (TypeError, ValueError):
        raise InputError(f"r is {r!r}: give a number, or inf or -inf.") from None
    if math.isnan(value):
        raise InputError("r is nan: give a number, or inf or -inf.")
    return value


def pool_logs(log_values: NDArray[np.floating], r: float, axis: int = -1) -> Floats:
    """log M_r along `axis` of values that are given by their logarithms; finite for every r."""
    members = log_values.shape[axis]
    if members == 1:
        return np.squeeze(np.asarray(log_values, dtype=np.float64), axis=axis)
    # np.moveaxis and np.errstate cost as much as all the rest for one input of a stream.
    rest = [other for other in range(log_values.ndim) if other != axis % log_values.ndim]
    parts: Floats = np.array(log_values.transpose(axis, *rest), dtype=np.float64, order="C")
    parts.sort(axis=0)
    if math.isinf(r):
        return parts[-1 if r > 0 else 0].copy()
    if r == 0:
        with np.errstate(over="ignore"):
            mean = parts.sum(axis=0) / members
        return mean if np.isfinite(mean).all() else (parts / members).sum(axis=0)
    # The largest term is factored out, so the sum neither overflows nor underflows.
    top, others = (parts[-1], parts[:-1]) if r > 0 else (parts[0], parts[1:])
    gaps = others - top
    if r != 1:
        with np.errstate(over="ignore"):
            gaps *= r
    # In place: new arrays would cost as much as the logarithm.
    total: Floats = np.add.reduce(np.expm1(gaps, out=gaps), axis=0)
    total /= members
    np.log1p(total, out=total)
    if r != 1:
        total /= r
    total += top
    return total


def generalized_mean(values: ArrayLike, r: float, axis: int = -1) -> Floats:
    """Generalised mean M_r of non-negative values.

    Parameters
    ----------
    values : array_like
        Numbers of at least 0.
    r : float
        The exponent, in [-∞, ∞]: 1 is the mean, 0 the geometric mean, -1 the harmonic mean,
        inf the maximum, -inf the minimum.
    axis : int
        The axis that is averaged.

    Returns
    -------
    ndarray of float64
        The means, of the shape of `values` without `axis`.

    Examples
    --------
    >>> import agreestop as ag
    >>> [round(float(ag.generalized_mean([1, 4], r)), 3) for r in (-1, 0, 1, float("inf"))]
    [1.6, 2.0, 2.5, 4.0]
    """
    r = as_exponent(r)
    array = np.moveaxis(with_axis(values, axis, "values"), axis, -1)
    check_finite(array, "values")
    if (array < 0).any():
        raise InputError(
            f"values holds {array.min():.6g}: "
            "a generalised mean is defined for values of at least 0."
        )
    if array.shape[-1] == 1 or math.isinf(r):
        return np.asarray(array.max(axis=-1) if r > 0 else array.min(axis=-1))
    rows = array.reshape(-1, array.shape[-1])
    zero = rows == 0
    if r > 0 and zero.any():
        top = rows.max(axis=-1, keepdims=True)
        shares = np.divide(rows, top, out=np.zeros_like(rows), where=top > 0)
        means = top[:, 0] * np.sort(shares**r, axis=-1).mean(axis=-1) ** (1 / r)
    else:  # for r ≤ 0, one zero makes the mean zero
        pooled = np.exp(pool_logs(np.log(np.where(zero, 1.0, rows)), r))
        means = np.where(zero.any(axis=-1), 0.0, pooled)
    return means.reshape(array.shape[:-1])


class Pooling(ABC):
    """How the members of an ensemble become one.

    Attributes
    ----------
    r : float or None
        The exponent of the generalised mean; None for a pooling without one.
    by_rank : bool
        Whether each member is compared with calibration data before the members are pooled.
    """

    r: float | None
    by_rank: ClassVar[bool] = True

    @property
    @abstractmethod
    def words(self) -> str:
        """A short text for tables, such as "confidence, r = 1"."""

    @property
    def assumes(self) -> str:
        """A sentence on what the guarantee assumes of the members, after a space; often empty."""
        return ""

    def pool(self, log_confidence: NDArray[np.floating]) -> Floats:
        """Pool log-confidences (..., K, C) to (..., C)."""
        raise InputError(f"pooling is {self!r}, which pools no confidences: give MergeConfidence.")


@dataclass(frozen=True)
class MergeConfidence(Pooling, KeptInFiles):
    """Confidence merging, CM(r): the generalised mean of the members' confidences.

    Parameters
    ----------
    r : float
        The exponent, in [-∞, ∞]; 1 is model averaging.

    Notes
    -----
    It assumes nothing about the members: the pooled confidence is a score like any other. Pooled
    confidences need not sum to 1 over the classes.

    Examples
    --------
    >>> import numpy as np
    >>> import agreestop as ag
    >>> members = np.log([[0.9, 0.1], [0.5, 0.5]])
    >>> np.exp(ag.MergeConfidence(r=1).pool(members)).round(3).tolist()
    [0.7, 0.3]
    """

    r: float = 1.0
    by_rank: ClassVar[bool] = False

    def __post_init__(self) -> None:
        set_fields(self, r=as_exponent(self.r))

    @property
    def words(self) -> str:
        return f"confidence, r = {self.r:g}"

    def pool(self, log_confidence: NDArray[np.floating]) -> Floats:
        return pool_logs(log_confidence, self.r, axis=-2)


MODEL_AVERAGE = MergeConfidence(r=1)


@dataclass(frozen=True, eq=False)
class RiskNumbers:
    """A risk or a score as plain numbers.

    exponent       r of the generalised mean over members
    temperatures   (M,), or None
    offsets        (M,) what is taken from it
    learned        (M, 2 + features) bias, log time and weights of a learned risk; else no columns
    fixed_time     whether the risk only falls with time
    """

    exponent: float
    temperatures: Floats | None
    offsets: Floats
    learned: Floats
    fixed_time: bool = False

    @classmethod
    def of(
        cls,
        pooling: MergeConfidence,
        temperatures: Floats | None,
        count: int,
        fixed_time: bool = False,
    ) -> Self:
        """A pooled and tempered confidence at `count` checkpoints, without offsets."""
        nothing = np.zeros(count), np.empty((count, 0))
        return cls(pooling.r, temperatures, *nothing, fixed_time)


def pooling_of(pooling: Pooling | None) -> MergeConfidence:
    """The confidence merging that a score or risk works on; model averaging if it is None."""
    if pooling is None:
        return MODEL_AVERAGE
    if not isinstance(pooling, MergeConfidence):
        raise InputError(
            f"pooling is {pooling!r}: scores and risks pool confidences; "
            "give MergeConfidence(r=...)."
        )
    return pooling
