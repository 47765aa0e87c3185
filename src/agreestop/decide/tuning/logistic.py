"""Logistic regression, by Newton's method: what needs no scikit-learn.

least  Σ_i log-loss(y_i, σ(w·z_i + b)) + RIDGE/2·|w|²        z_i: standardised features
"""

import numpy as np

from agreestop.common import Booleans, Floats

RIDGE, STEPS = 1.0, 50
LEAST_CURVE = 1e-9  # relative to the constant, where the outcomes are separable
LONGEST_STEP, LARGEST_LOGIT = 5.0, 30.0


def regress(features: Floats, outcomes: Booleans) -> Floats:
    """Weights of the features (n, q), and last the constant, for the log-odds of outcomes (n,)."""
    centre, scale = features.mean(axis=0), features.std(axis=0)
    scale[scale < 1e-12] = 1.0
    inputs = np.column_stack([(features - centre) / scale, np.ones(len(features))])
    ridge = np.diag([*([RIDGE] * features.shape[1]), LEAST_CURVE])
    weights = np.zeros(inputs.shape[1])
    for _ in range(STEPS):
        logits = np.clip(inputs @ weights, -LARGEST_LOGIT, LARGEST_LOGIT)
        chance = 1 / (1 + np.exp(-logits))
        slope = inputs.T @ (chance - outcomes) + ridge @ weights
        curve = (inputs * (chance * (1 - chance))[:, None]).T @ inputs + ridge
        step = np.linalg.solve(curve, slope)
        longest = float(np.abs(step).max())
        weights -= step * min(1.0, LONGEST_STEP / max(longest, 1e-12))
        if longest < 1e-9:
            break
    own = weights[:-1] / scale
    return np.append(own, weights[-1] - own @ centre)
