"""
Promises by group and by time
=============================

For whoever needs more than a promise on average, in which the right answers of one group may pay
for the wrong ones of another. Groups and a gate have promises of their own. Simulated data.
"""

import matplotlib.pyplot as plt
import numpy as np

import agreestop as ag

times = range(1, 21)
scores = ag.simulate_scores(4000, steps=20, K=3, C=4, pace=5.0)
rng = np.random.default_rng(0)
groups = np.where(rng.random(4000) < 0.3, "night", "day")
# at night some inputs look like another class
noisy = (groups == "night") & (rng.random(4000) < 0.35)
labels = np.where(noisy, rng.integers(4, size=4000), scores.labels)
scores = ag.Scores(scores.log_confidence, labels, times)
# shuffled before they are divided
tuning, calibration, new = np.split(rng.permutation(4000), [800, 1600])

plain = ag.AgreeStop(0.8, times, max_set_size=1).calibrate(
    scores.rows(calibration), groups=groups[calibration]
)
gate = ag.Gate.fit(scores.rows(tuning), target=0.8, max_set_size=1)
gated = ag.AgreeStop(0.8, times, max_set_size=1, gate=gate).calibrate(scores.rows(calibration))
average = ag.AgreeStop(0.8, times, max_set_size=1).calibrate(scores.rows(calibration))

test = scores.rows(new)
by_group = ag.evaluate(plain.decide(test, groups=groups[new]), test)
by_time = ag.evaluate(gated.decide(test), test)
night = test.rows(groups[new] == "night")
print(ag.evaluate(average.decide(test), test).coverage, "on average, for everybody together")
print(ag.evaluate(average.decide(night), night).coverage, "of them at night")
for part in by_group.by_group:
    print(f"{part.name}: coverage {part.coverage}")
for part in by_time.by_block:
    print(f"{part.name}: coverage {part.coverage}")

# %%
# Groups and blocks keep their promise on average over draws of the calibration rows. This is one
# draw, and the brackets show how much the number of inputs leaves open: a block of few inputs may
# end below 0.8. Coverage by group, and by the time at which an input first looked ready:
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
ag.plot.coverage(by_group, left, by="group", target=0.8)
ag.plot.coverage(by_time, right, by="block", target=0.8)

# %%
# The data above are simulated. Measured on real data: stored scores of four data sets, see
# :doc:`/promises`.
#
# .. image:: /../results/promises/blocks-0.9.png
#    :alt: Coverage by block of times, with and without a gate.
