"""
A spiking ensemble, end to end
==============================

For whoever trains spiking networks: train a deep ensemble on the embedded digits, calibrate a
rule, and decide while computing no further than needed.
"""

import numpy as np

import agreestop as ag

# scikit-learn's digits, moving in front of a simulated event camera
data = ag.events.load_data_set("digits")
# a part of them, so that this takes about half a minute
x_train, y_train = data.training.inputs[:600], data.training.labels[:600]
x, y = data.pool.inputs, data.pool.labels
# shuffled before they are divided
calibration, new = np.split(np.random.default_rng(0).permutation(len(y)), [200])

network = ag.networks.FullyConnected(x.shape[2:], classes=10, hidden=(128,))
ensemble = ag.ensembles.DeepEnsemble(network, members=3, seed=0)
ensemble.fit(x_train, y_train, epochs=4)

# calibration data: labelled, and used for nothing else
scores = ensemble.score(x[calibration], y[calibration])
rule = ag.AgreeStop(target=0.9, checkpoints=range(1, 81), max_set_size=1).calibrate(scores)
print(rule.guarantee)

run = ensemble.decide(rule, x[new])  # each input is computed until its decision, and no further
result = ag.evaluate(run.decisions, y[new])
print(
    f"coverage {result.coverage:.3f}, mean stop at step {result.latency:.1f} of 80, "
    f"{run.computed.mean():.1f} steps computed"
)

# %%
# The share of inputs that have been answered by each step:
ag.plot.stopping(run)
