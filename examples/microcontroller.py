"""
A microcontroller
=================

For whoever puts a model next to a sensor: members with int8 weights, a rule calibrated on their
scores, and both as C sources. On the embedded digits.
"""

import shutil
import subprocess

import numpy as np

import agreestop as ag

data = ag.events.load_data_set("digits")
x, y = data.pool.inputs, data.pool.labels
# shuffled before they are divided
calibration, new = np.split(np.random.default_rng(0).permutation(len(y)), [200])

# The engine stores weights as the C code does, so that the rule is calibrated on what the device
# computes.
network = ag.networks.FullyConnected(x.shape[2:], classes=10, hidden=(64,))
ensemble = ag.ensembles.DeepEnsemble(network, members=3, seed=0, engine="event-driven-int8")
ensemble.fit(data.training.inputs, data.training.labels, epochs=2, progress=False)
rule = ag.AgreeStop(target=0.9, checkpoints=range(1, 81), max_set_size=1).calibrate(
    ensemble.score(x[calibration], y[calibration])
)

made = ag.export.to_c(rule, ensemble, "firmware", inputs=x[new[:200]])
print(
    f"{made.weights} weights: {made.flash:,} bytes of flash, {made.ram:,} bytes of RAM, besides "
    "code and stack"
)
print(
    f"{made.inputs} inputs to check with: nearest to a threshold {made.nearest:.2g}, ties "
    f"{made.ties}"
)

if shutil.which("make") and shutil.which(
    "cc"
):  # compile, replay the inputs, and compare with the decisions of Python
    subprocess.run(["make", "-s", "-C", "firmware", "check"], check=True)
    print("the C code made the same decisions")

# %%
# The share of inputs that the device has answered by each step:
ag.plot.stopping(ensemble.decide(rule, x[new[:200]]))
