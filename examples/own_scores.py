"""
Your own scores
===============

For whoever has the scores of any model: here logistic regression on what was seen so far of a
time series. Needs scikit-learn; simulated data.
"""

import numpy as np
from sklearn.linear_model import LogisticRegression

import agreestop as ag

rng = np.random.default_rng(0)
times = (5, 10, 20, 40, 60)
labels = rng.integers(3, size=1500)
series = np.cumsum(rng.normal(size=(1500, 60)) + 0.35 * (labels[:, None] - 1), axis=1)
fitting, others = np.split(rng.permutation(1500), [600])

# inputs, checkpoints, members (here one), classes
log_confidence = np.empty((900, len(times), 1, 3))
for index, time in enumerate(times):
    model = LogisticRegression(max_iter=1000).fit(series[fitting, :time], labels[fitting])
    log_confidence[:, index, 0] = model.predict_log_proba(series[others, :time])

scores = ag.Scores(log_confidence, labels[others], times, classes=("falling", "flat", "rising"))
calibration, test = scores.split(1 / 3, 2 / 3, seed=0)  # shuffled before they are divided

rule = ag.AgreeStop(target=0.9, checkpoints=times, max_set_size=1).calibrate(calibration)
decisions = rule.decide(test)
print(decisions[0])
result = ag.evaluate(decisions, test)
print(
    f"coverage {result.coverage:.3f}, latency {result.normalized_latency:.2f} of T, set size "
    f"{result.set_size:.2f}"
)

# %%
# The share of series that have been answered by each time:
ag.plot.stopping(decisions)

# %%
# The data above are simulated. Measured on real data: time series of eight data sets, see
# :doc:`/time-series`.
#
# .. image:: /../results/early-classification/figure.png
#    :alt: Coverage and earliness of early classifiers.
