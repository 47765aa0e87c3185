"""AgreeStop's calibration: where an example first fails.

For a threshold λ the rule stops at the first checkpoint with e_t < λ. Small λ is safe. For a calibration example let

    W(x, y) = inf{ λ : the answer at λ misses y },          k = ⌊(n+1)(1-p)⌋,          λ = the k-th smallest W.

The λ that miss y are a union of intervals (u, v], so no λ ≤ W misses; a miss of the new example needs W < W_(k), which by
exchangeability has probability at most k/(n+1) ≤ 1-p.

t is the stop for λ in (e_t, min of the earlier e], so only new minima of e matter. There, with `fill`, the answer misses if y is not
among the I most probable; without it, also as soon as λ > ρ_t(y) unless y is the most probable. If nothing stopped, the answer of the
last checkpoint misses y outside the I most probable for λ > ρ_M(y).
"""

from __future__ import annotations

import numpy as np

from agreestop.common.arrays import Floats, Integers

from .evidence import Evidence


def first_failures(evidence: Evidence, labels: Integers, max_set_size: int, fill: bool) -> Floats:
    """W(x, y) of every example, from evidence of all checkpoints: log ρ (n, M, C) and log e (n, M). ∞ if no λ misses."""
    rows = np.arange(len(labels))
    mass, risk = evidence.values, evidence.log_risk
    assert risk is not None
    own = mass[rows, :, labels]
    rank = (mass > own[:, :, None]).sum(axis=-1)
    lowest = np.minimum.accumulate(risk, axis=1)
    before = np.concatenate([np.full((len(labels), 1), np.inf), lowest[:, :-1]], axis=1)
    fails_from = np.where(rank >= max_set_size, risk, np.inf)
    if not fill:
        fails_from = np.where((rank > 0) & (rank < max_set_size), np.maximum(risk, own), fails_from)
    stopped = np.where(fails_from < before, fails_from, np.inf).min(axis=1)
    unstopped = np.where((rank[:, -1] >= max_set_size) & (own[:, -1] < lowest[:, -1]), own[:, -1], np.inf)
    return np.minimum(stopped, unstopped)
