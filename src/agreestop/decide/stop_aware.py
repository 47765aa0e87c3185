"""Stop-aware calibration: only the set at the moment of stopping must hold the label.

For a threshold λ the rule stops at the first checkpoint with 1 ≤ #{c : S_t(c) ≤ λ} ≤ I, else at the last one, where an empty
set becomes the best-scored class. For a calibration example let

    V(x, y) = sup{ λ : the answer at λ misses y },          q = the ⌈(n+1)p⌉-th smallest V.

V_1..V_n and the new V are exchangeable, so V ≤ q with probability ≥ p; every comparison is S ≤ λ, so the λ that miss y are a
union of intervals [u, v), and V ≤ λ means that the answer at λ holds y. Hence every λ ≥ q keeps the promise, even one that was
chosen by looking at the calibration inputs: we take the smallest λ ≥ q of least mean stopping time there.

With a_t the smallest and b_t the (I+1)-th smallest score, t is the stop exactly for λ in [a_t, b_t) outside the intervals
of earlier checkpoints. All is constant between neighbouring breakpoints, so V is exact; there is no grid.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agreestop.common.arrays import Floats, Integers


@dataclass(frozen=True, eq=False)
class StopProfile:
    """Where each input stops as a function of λ: at checkpoint `stops[i, j]` for λ in [breaks[i, j], breaks[i, j + 1])."""

    breaks: Floats
    stops: Integers

    @classmethod
    def of(cls, scores: Floats, max_set_size: int) -> StopProfile:
        """From scores (n, M, C)."""
        n, checkpoints, classes = scores.shape
        last = checkpoints - 1
        ordered = np.sort(scores[:, :last], axis=-1)
        opens = ordered[:, :, 0]
        closes = ordered[:, :, max_set_size] if max_set_size < classes else np.full((n, last), np.inf)
        breaks = np.concatenate([np.full((n, 1), -np.inf), np.sort(np.concatenate([opens, closes], axis=1), axis=1)], axis=1)
        stops = np.full(breaks.shape, last)
        for index in range(last - 1, -1, -1):
            inside = (opens[:, index, None] <= breaks) & (breaks < closes[:, index, None])
            stops[inside] = index
        return cls(breaks, stops)


def last_failures(scores: Floats, labels: Integers, profile: StopProfile) -> Floats:
    """V(x, y) of every example: the right end of the last interval of thresholds whose answer misses the label."""
    rows = np.arange(len(labels))
    own = scores[rows, :, labels]
    # At the last checkpoint an empty set answers the best class, so its own label is never missed there.
    own[:, -1] = np.where(scores[:, -1].argmin(axis=-1) == labels, -np.inf, own[:, -1])
    ends = np.concatenate([profile.breaks[:, 1:], np.full((len(labels), 1), np.inf)], axis=1)
    misses_until = np.minimum(ends, own[rows[:, None], profile.stops])
    return np.where(misses_until > profile.breaks, misses_until, -np.inf).max(axis=1)


def earliest_threshold(profile: StopProfile, times: Floats, floor: float) -> float:
    """The smallest λ ≥ floor of least mean stopping time over the profile's inputs."""
    stop_times = times[profile.stops]
    breaks = profile.breaks[:, 1:].ravel()
    order = np.argsort(breaks, kind="stable")
    breaks = breaks[order]
    # Total stopping time just from each break onwards: what holds at -∞ plus all jumps up to there.
    totals = stop_times[:, 0].sum() + np.cumsum(np.diff(stop_times, axis=1).ravel()[order])
    above = np.searchsorted(breaks, floor, side="right")
    at_floor = totals[above - 1] if above else stop_times[:, 0].sum()
    ends = np.append(breaks[1:] > breaks[:-1], True) if len(breaks) else np.zeros(0, dtype=bool)
    ends[:above] = False
    candidates = np.append(floor, breaks[ends])
    values = np.append(at_floor, totals[ends])
    best = values.min()
    tolerance = 1e-9 * abs(best)
    return float(candidates[np.argmax(values <= best + tolerance)])
