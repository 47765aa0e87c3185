"""
Embedded devices
================

For whoever puts a model next to a sensor, where every step costs energy. Ten minutes; the data are
embedded in the package.

You will train members, store their weights as int8, calibrate the rule on exactly those weights,
and write both as C99 sources without allocation. Where a C compiler is found, the code is compiled
and makes the decisions of Python, one by one.
"""

import shutil
import subprocess

import numpy as np

import agreestop as ag

data = ag.events.load_data_set("digits")
x, y = data.pool.inputs, data.pool.labels
# shuffle before you divide
calibration, new = np.split(np.random.default_rng(0).permutation(len(y)), [200])

# %%
# Calibrate what the device computes
# ----------------------------------
#
# The rule must be calibrated on the scores of the device. The engine ``event-driven-int8`` stores
# weights and adds them up as the C code does. Take few and small members: flash grows with the
# hidden neurons, time with the members.
network = ag.networks.FullyConnected(x.shape[2:], classes=10, hidden=(48,))
ensemble = ag.ensembles.DeepEnsemble(network, members=2, seed=0, engine="event-driven-int8")
ensemble.fit(data.training.inputs, data.training.labels, epochs=3, progress=False)

# %%
# A *checkpoint* is a step at which the rule may stop. The *guarantee*: the answer holds the true
# class with probability at least 0.9. ``delta=0.1`` makes it hold for this one device too: in nine
# calibration draws of ten the device is right at least nine times in ten.
scores = ensemble.score(x[calibration], y[calibration])
rule = ag.AgreeStop(target=0.9, checkpoints=range(1, 81), max_set_size=1, delta=0.1).calibrate(
    scores
)
print(rule.guarantee)

# %%
# How long does the sensor stay awake?
# ------------------------------------
#
run = ensemble.decide(rule, x[new])
result = ag.evaluate(run.decisions, y[new])
print(f"coverage {result.coverage}, awake for {result.latency} of 80 steps on average")

# %%
ag.plot.stopping(run)

# %%
# Write C
# -------
#
# The inputs that are given become a test on the device: the C code replays them and compares its
# decisions with those of Python.
made = ag.export.to_c(rule, ensemble, "firmware", inputs=x[new[:100]])
print(
    f"{made.flash / 1024:.0f} KiB of flash, {made.ram / 1024:.1f} KiB of RAM, besides code and "
    "stack"
)

# %%
if shutil.which("make") and shutil.which("cc"):
    checked = subprocess.run(
        ["make", "-s", "-C", "firmware", "check"], check=True, capture_output=True, text=True
    )
    print(checked.stdout)

# %%
# On the device, three calls are all there is: ``ag_init``, ``ag_push`` for the events of each
# step, and ``ag_decision`` once ``ag_push`` says that it has decided. Then the sensor may sleep.
#
# Where to go on
# --------------
#
# Sizes and times of larger networks, and a loop of a device: :doc:`/microcontroller`. When the
# world changes after the device was shipped: :doc:`/drift`. What goes wrong most often:
# :doc:`/mistakes`.
