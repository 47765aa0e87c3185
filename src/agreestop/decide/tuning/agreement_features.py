"""How the members agree, as numbers, and the logistic regression that `LearnedRisk` learns on them.

scikit-learn fits it; plain weights are returned.
"""

import numpy as np

from agreestop.common import Booleans, Floats, InputError, needs

from ..answer_kinds import Tails

FEATURES = (
    "log mass outside the best I classes",
    "log mass outside the best class",
    "log ratio of the masses from rank I and from rank I + 1 on",
    "members' mean log mass outside the best I classes",
    "members' largest log mass outside the best I classes",
    "members' spread of the log mass outside the best I classes",
    "share of members with another best class",
    "log time",
    "log time × log mass outside the best I classes",
)
FLOOR = -30.0  # log masses below this are as good as none
# How many log masses the rounding of each feature is made of; the last has log time of them.
MASSES = (1, 1, 2, 1, 1, 2, 0, 0)


class NothingToLearn(InputError):
    """Tuning data on which the best classes never miss, or always."""


def agreement_features(
    log_confidence: Floats, tails: Tails, max_set_size: int, log_time: float | Floats
) -> Floats:
    """The features (b, len(FEATURES)) of log-confidences (b, K, C) and their pooled order.

    They are the same for any order of the members.
    """
    batch, members, classes = log_confidence.shape
    best = tails.order[:, :max_set_size]
    outside = np.ones((batch, classes), dtype=bool)
    outside[np.arange(batch)[:, None], best] = False
    peak = log_confidence.max(axis=2, keepdims=True)
    mass = np.where(outside[:, None], np.exp(log_confidence - peak), 0.0)
    total = np.add.accumulate(np.sort(mass, axis=2), axis=2)[:, :, -1]
    own = np.log(np.maximum(total, 1e-300)) + peak[:, :, 0]
    own = np.sort(np.maximum(own, FLOOR), axis=1)
    mean = np.add.accumulate(own, axis=1)[:, -1] / members
    squares = np.add.accumulate((own - mean[:, None]) ** 2, axis=1)[:, -1]
    tail, beyond_first, from_last = (
        np.maximum(tails.outside(count), FLOOR) for count in (max_set_size, 1, max_set_size - 1)
    )
    dissent = np.count_nonzero(log_confidence.argmax(axis=2) != tails.order[:, :1], axis=1)
    columns = [tail, beyond_first, from_last - tail, mean, own[:, -1], np.sqrt(squares / members)]
    columns += [dissent / members, np.broadcast_to(log_time, batch), log_time * tail]
    return np.stack(columns, axis=1)


def fit_logistic(features: Floats, misses: Booleans) -> tuple[Floats, float]:
    """The weights of the features (n, len(FEATURES)), and the constant, for misses (n,)."""
    with needs("LearnedRisk.fit", advice="use TopMass.fit"):
        from sklearn.linear_model import LogisticRegression
    if misses.all() or not misses.any():
        state = "always" if misses.all() else "never"
        raise NothingToLearn(
            f"the best classes {state} miss the label on the tuning data, so there is nothing to "
            "learn: use TopMass.fit."
        )
    centre, scale = features.mean(axis=0), features.std(axis=0)
    scale[scale == 0] = 1.0
    model = LogisticRegression(max_iter=1000).fit((features - centre) / scale, misses)
    weights = np.asarray(model.coef_[0], dtype=np.float64) / scale
    return weights, float(model.intercept_[0] - weights @ centre)
