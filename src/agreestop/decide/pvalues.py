"""Conformal p-variables.

    p_c = (1 + #{i : s_c ≤ s_i}) / (n + 1)          ties count

If (x, c) is exchangeable with the n calibration examples, P(p_c ≤ α) ≤ α for every α.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common.arrays import Floats, Integers, as_floats, check_finite
from agreestop.common.errors import InputError


def ranks(sorted_scores: Floats, scores: Floats) -> Integers:
    """1 + #{i : s ≤ s_i} for every score s: the numerator of the p-variable."""
    counts = np.searchsorted(sorted_scores, scores, side="left")
    np.subtract(len(sorted_scores) + 1, counts, out=counts)
    return counts


def p_values(calibration_scores: ArrayLike, scores: ArrayLike) -> Floats:
    """Conformal p-variable of every score, shape of `scores`, against n calibration scores; larger scores conform less.

    Assumes that the calibration scores are exchangeable with the score of a true label. Ties count for the label.
    """
    calibration = as_floats(calibration_scores, "calibration_scores")
    values = as_floats(scores, "scores")
    if calibration.ndim != 1 or len(calibration) == 0:
        raise InputError(f"calibration_scores has shape {calibration.shape}: one axis with at least one score is needed.")
    check_finite(calibration, "calibration_scores")
    check_finite(values, "scores")
    counts = ranks(np.sort(calibration), np.atleast_1d(values)).reshape(values.shape)
    return np.asarray(counts / (len(calibration) + 1.0))
