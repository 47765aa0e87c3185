"""
A classifier of scikit-learn
============================

For whoever has a classifier of scikit-learn: a forest that reads a time series only as far as it
needs to. Needs scikit-learn; simulated data.
"""

import numpy as np
from sklearn.ensemble import RandomForestClassifier

import agreestop as ag

rng = np.random.default_rng(0)
kinds = np.array(["falling", "flat", "rising"])
labels = rng.integers(3, size=1200)
# (n, T); (n, channels, T) is possible too
series = np.cumsum(rng.normal(size=(1200, 60)) + 0.4 * (labels[:, None] - 1), axis=1)
# shuffled before they are divided; EarlyClassifier divides the first part further
fitting, new = np.split(rng.permutation(1200), [600])
x_train, x_test, y_train, y_test = (
    series[fitting],
    series[new],
    kinds[labels[fitting]],
    kinds[labels[new]],
)

# a clone is fitted for each of five times: 12, 24, 36, 48, 60
forest = RandomForestClassifier(20, random_state=0)
early = ag.adapters.EarlyClassifier(forest, checkpoints=5, target=0.9, folds=0).fit(
    x_train, y_train
)
print(early.rule_.guarantee)
print(early.predict(x_test)[:4], early.score(x_test, y_test))

decisions = early.decide(x_test)  # where each series stopped, and the classes it answers with
print(decisions[0])
print(ag.evaluate(decisions, early.scores(x_test, y_test)))

# %%
# The share of series that have been answered by each time:
ag.plot.stopping(decisions)

# %%
# The data above are simulated. Measured on real data: time series of eight data sets, see
# :doc:`/time-series`.
#
# .. image:: /../results/early-classification/figure.png
#    :alt: Coverage and earliness of early classifiers.
