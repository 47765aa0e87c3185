"""
Streams without an end
======================

For whoever listens or watches without pause: alarms with a promise about false alarms, live and
on whole recordings. Scores are simulated.
"""

import numpy as np

import agreestop as ag

rng = np.random.default_rng(0)


def record(steps=3000, words=4):
    """Scores of a recording, and its events (start, end): words of 40 steps, most of them heard."""
    scores = rng.normal(scale=rng.uniform(0.7, 1.1), size=steps)
    starts = np.sort(rng.choice(np.arange(1, steps // 100), size=words, replace=False)) * 100
    for start in starts:
        scores[start : start + 40] += rng.uniform(2, 7)
    return scores, [(start, start + 40) for start in starts]


def several(n):
    return zip(*(record() for _ in range(n)), strict=True)


recordings, events = several(99)
spotter = ag.Spotter(false_alarms=0.05, rest=60).calibrate(recordings, events, near=20)
print(spotter.guarantee)
print(spotter.evaluate(*several(200), within=20, step_seconds=0.01))
# 0.05 is promised on average over draws of the 99 recordings: this is one of them, and another may
# alarm more or less often.
stream = spotter.stream()
scores, words = record()
for score in scores:
    detection = stream.push(score)
    if detection:
        print("alarm at step", detection.index)
print("words from", *(start for start, _ in words))
spotter.save("spotter.rule")
assert (ag.Spotter.load("spotter.rule").alarms(scores) == spotter.alarms(scores)).all()

# %%
# Events found against false alarms, over thresholds:
ag.plot.spotting(spotter, *several(100), within=20)

# %%
# The data above are simulated. Measured on real data: a wake word of 60 speakers, see
# :doc:`/spotting`.
#
# .. image:: /../results/wake-word.svg
#    :alt: Events found against false alarms a recording, for four ways to a threshold.
