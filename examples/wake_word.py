"""
Watch, then decide
==================

For whoever waits for a wake word and then decides: spot a word in a stream without an end, name
the command after it, and bring both to C. Events are simulated.
"""

import numpy as np

import agreestop as ag

rng = np.random.default_rng(0)
NAMES = "computer", "lights", "music", "stop"


def record(*words, steps=400):
    """Events (T, 24) with words (start, word): 30 steps of events on six inputs of the word."""
    x = rng.random((steps, 24)) < 0.03
    for start, word in words:
        events = rng.random((30, 6)) < rng.uniform(0.2, 0.5)
        x[start : start + 30, 6 * word : 6 * word + 6] |= events
    return x


def several(n):
    commands = rng.integers(1, 4, size=n)  # of each recording, after another word and the wake word
    return [record((40, 3), (200, 0), (235, command)) for command in commands], commands


y = rng.integers(4, size=400)
x = np.stack([record((rng.integers(15), word), steps=50) for word in y])
network = ag.networks.FullyConnected((24,), classes=4, hidden=(32,))
ensemble = ag.ensembles.DeepEnsemble(network, members=3, engine="event-driven-int8")
ensemble.fit(x, y, epochs=5, progress=False)
heard = ensemble.listen(several(60)[0], window=15, event=0)
spotter = ag.Spotter(0.1, rest=80).calibrate(heard.scores, [[(200, 230)]] * 60, near=20)
recordings, commands = several(100)  # others than set the threshold
heard = ensemble.listen(recordings, window=15, event=0)
alarms = [spotter.alarms(scores) for scores in heard.scores]
first = [next((step for step in steps if step >= 200), -1) for steps in alarms]
examples = heard.after(first, commands, steps=50, skip=30, spotter=spotter)
rule = ag.AgreeStop(0.9, range(10, 51), 1).calibrate(examples)
# %%
# The word is detected before it ends, so the rule skips the rest of it and names what follows:
stream = several(4)[0]
windows = {"window": 15, "event": 0, "skip": 30}
session = ensemble.watch(spotter, rule, **windows)
for frame in np.concatenate(stream):
    found = session.push(np.flatnonzero(frame))
    if isinstance(found, ag.Detection):
        print(f"step {session.time}: computer")
    elif found is not None:
        print(f"step {session.time}:", " or ".join(NAMES[one] for one in found.classes))
# `make check` in the folder compares the C code with Python
print(ag.export.watch_to_c(spotter, rule, ensemble, "firmware", stream, **windows))
# %%
# Wake words found against false alarms, over all thresholds:
ag.plot.spotting(spotter, heard.scores, [[(200, 230)]] * 100)

# %%
# The events above are simulated. Measured on real data: a wake word of 60 speakers, see
# :doc:`/spotting`.
#
# .. image:: /../results/wake-word.svg
#    :alt: Events found against false alarms a recording, for four ways to a threshold.
