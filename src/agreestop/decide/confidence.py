"""Confidence, in logarithms.

    f_c = exp(r_c) / Σ_c' exp(r_c')                 softmax of the spike counts r so far
    M_r(f) = (1/K · Σ_k f_k^r)^(1/r)                generalised mean; r = 0 geometric, ±∞ max and min

Everything is float64 and logarithmic: powers of f underflow, and the loss of a sure winner (1e-35, say) would round to 0
and tie with others. `log1p` and `expm1` keep it. Sums run over sorted values, so equal cells give equal bits in any order:
rate-coded scores tie heavily, and a tie must stay a tie.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import Floats, InputError, check_finite, with_axis

LARGEST_LOGIT = 1e300


def log_softmax(logits: Floats) -> Floats:
    """log-softmax over the last axis; equal bits for equal values, whatever the order of the classes."""
    ordered = np.sort(logits, axis=-1)
    top = ordered[..., -1:]
    parts = np.exp(ordered - top)
    parts[..., -1] = 0.0  # the winner's own 1 goes into log1p
    logs: Floats = logits - top
    logs -= np.log1p(np.add.accumulate(parts, axis=-1)[..., -1:])
    return logs


def log_confidence(counts: ArrayLike, axis: int = -1) -> Floats:
    """Log-confidence of every class from spike counts or logits: the log-softmax along `axis`, in float64."""
    array = with_axis(counts, axis, "counts")
    check_finite(array, "counts")
    if array.size and np.abs(array).max() > LARGEST_LOGIT:
        raise InputError(f"counts reaches {np.abs(array).max():.3g}, which no logarithm of a confidence can hold: rescale the logits.")
    return np.ascontiguousarray(np.moveaxis(log_softmax(np.moveaxis(array, axis, -1)), -1, axis))


def tempered(temperature: Floats, pooled: Floats) -> Floats:
    """τ · g for log-confidences g (..., C), kept finite."""
    with np.errstate(over="ignore"):
        return np.maximum(temperature * pooled, -LARGEST_LOGIT)


def as_exponent(r: float) -> float:
    """The exponent of a generalised mean, any number in [-∞, ∞]."""
    try:
        value = float(r)
    except (TypeError, ValueError):
        raise InputError(f"r is {r!r}: give a number, or inf or -inf.") from None
    if math.isnan(value):
        raise InputError("r is nan: give a number, or inf or -inf.")
    return value


def pool_logs(log_values: NDArray[np.floating], r: float, axis: int = -1) -> Floats:
    """log M_r of values given by their finite logarithms, along `axis`: finite for every r."""
    members = log_values.shape[axis]
    if members == 1:
        return np.squeeze(np.asarray(log_values, dtype=np.float64), axis=axis)
    others = [other for other in range(log_values.ndim) if other != axis % log_values.ndim]
    parts: Floats = np.array(log_values.transpose(axis, *others), dtype=np.float64, order="C")
    parts.sort(axis=0)
    if r == math.inf:
        return parts[-1].copy()
    if r == -math.inf:
        return parts[0].copy()
    if r == 0:
        with np.errstate(over="ignore"):
            mean = parts.sum(axis=0) / members
        return mean if np.isfinite(mean).all() else (parts / members).sum(axis=0)
    top, lower = (parts[-1], parts[:-1]) if r > 0 else (parts[0], parts[1:])
    gaps = lower - top
    if r != 1:
        with np.errstate(over="ignore"):
            gaps *= r
    total: Floats = np.add.reduce(np.expm1(gaps, out=gaps), axis=0)
    total /= members
    np.log1p(total, out=total)
    if r != 1:
        total /= r
    total += top
    return total


def generalized_mean(values: ArrayLike, r: float, axis: int = -1) -> Floats:
    """Generalised mean M_r of non-negative values along `axis`, r in [-∞, ∞]; 0 is geometric, ±∞ are max and min."""
    r = as_exponent(r)
    array = np.moveaxis(with_axis(values, axis, "values"), axis, -1)
    check_finite(array, "values")
    if (array < 0).any():
        raise InputError(f"values holds {array.min():.6g}: a generalised mean is defined for values of at least 0.")
    if array.shape[-1] == 1 or math.isinf(r):
        return np.asarray(array.max(axis=-1) if r > 0 else array.min(axis=-1))
    return np.reshape(_mean(np.reshape(array, (-1, array.shape[-1])), r), array.shape[:-1])


def _mean(array: Floats, r: float) -> Floats:
    """Generalised mean of finite exponent over the last axis of (n, K)."""
    zero = array == 0
    logs = np.log(np.where(zero, 1.0, array))
    if not zero.any():
        return np.exp(pool_logs(logs, r))
    if r <= 0:  # one zero makes the mean zero
        return np.where(zero.any(axis=-1), 0.0, np.exp(pool_logs(logs, r)))
    top = array.max(axis=-1, keepdims=True)
    scaled = np.sort(np.divide(array, top, out=np.zeros_like(array), where=top > 0) ** r, axis=-1)
    return top[:, 0] * scaled.mean(axis=-1) ** (1 / r)
