"""
Time series with scikit-learn
=============================

For whoever has a classifier of scikit-learn and series that arrive step by step. Ten minutes; the
data come with scikit-learn.

You will make a random forest answer as soon as it has seen enough, with a *guarantee*: the answer
holds the true class at least as often as you ask. The data are real: scans of handwritten digits
that arrive row by row, as from a scanner. Each is a series of 8 steps with 8 channels, one for each
column of pixels.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier

import agreestop as ag

digits = load_digits()
# (n, channels, steps): rows arrive one after another
x, y = digits.images.swapaxes(1, 2), digits.target
# shuffle before you divide
fitting, new = np.split(np.random.default_rng(0).permutation(len(y)), [1200])
print(x.shape, "in", len(fitting), "series to learn from and", len(new), "new ones")

# %%
# One line makes the forest stop early
# ------------------------------------
#
# A *checkpoint* is a time at which the rule may stop; here it is each of the 8 rows. A clone of the
# forest is fitted for each checkpoint, on the rows up to there. ``target=0.9`` is the guarantee.
# ``max_set_size=1`` is the default: an early answer is a single class.
early = ag.adapters.EarlyClassifier(
    RandomForestClassifier(50, random_state=0), checkpoints=8, target=0.9
)
early.fit(x[fitting], y[fitting])
print(early.rule_.guarantee)

# %%
# ``fit`` divides its rows: some fit the forests, others *calibrate* the rule, which means that
# they are labelled and used for nothing else. The guarantee rests on this. It asks that calibration
# rows and new rows are *exchangeable*: as if one had shuffled them together.

decisions = early.decide(x[new])
for number in range(5):
    decision = decisions[number]
    print(f"stopped after row {decision.time:.0f} with {decision.names}")

# %%
# Was the guarantee kept, and what was won?
# -----------------------------------------
#
# Coverage is the share of answers that hold the true class, with an interval for the number of
# rows. Latency is the mean stopping time.
result = ag.evaluate(decisions, early.scores(x[new], y[new]))
print(result)

# %%
# A single test may end somewhat below or above the target, since 597 rows are a sample and since
# the calibration rows were one draw. The figure shows when the series were answered. Those that
# reach the last row are answered with as many classes as the guarantee needs.
ag.plot.stopping(decisions)

# %%
# What the target costs
# ---------------------
#
# A higher target waits longer. Never choose it on the rows that you judge it with; look at the
# price, and then fix it. The target is promised on average over draws of the calibration rows. One
# draw may end below it: ``draw_range`` says where coverage lies for nearly all draws.
for target in (0.8, 0.9, 0.95, 0.98):
    stricter = ag.adapters.EarlyClassifier(
        RandomForestClassifier(50, random_state=0), checkpoints=8, target=target
    )
    stricter.fit(x[fitting], y[fitting])
    result = ag.evaluate(stricter.decide(x[new]), stricter.scores(x[new], y[new]))
    low, high = result.draw_range or (0, 1)
    print(
        f"target {target}: {result.latency:.2f} rows, coverage {result.coverage:.3f}; "
        f"one draw may give {low:.3f} to {high:.3f}"
    )

# %%
# A series that arrives
# ---------------------
#
# In production rows come one at a time. The program pushes each row; the forest of that checkpoint
# is asked, and no further forest once there is a decision.
session = early.stream()
for row in x[new[0]].T:
    decision = session.push(row)
    if decision is not None:
        print(f"after row {decision.time:.0f} of 8: {decision.names}; the label is {y[new[0]]}")
        break

# %%
# Where to go on
# --------------
#
# Series of different people, patients or sensors: :doc:`/people`. Series of aeon, and a comparison
# with published early classifiers on eight data sets: :doc:`/time-series`. What goes wrong most
# often: :doc:`/mistakes`.
