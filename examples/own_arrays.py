"""
Own recordings as arrays
========================

For whoever has recordings as arrays: here of twelve touch sensors, 60 time steps, three classes.
Any shape (n, T, ...) will do. Simulated data.
"""

import numpy as np

import agreestop as ag

rng = np.random.default_rng(0)


def record(n):
    """Events (n, T, sensors): the sensors of a class fire more often than the others."""
    labels = rng.integers(3, size=n)
    rates = 0.06 + 0.10 * (np.arange(12) % 3 == labels[:, None])
    return rng.random((n, 60, 12)) < rates[:, None, :], labels


x_train, y_train = record(600)
x_cal, y_cal = record(200)
x_new, y_new = record(400)

network = ag.networks.FullyConnected(x_train.shape[2:], classes=3, hidden=(32,))
ensemble = ag.ensembles.VariationalEnsemble(network, members=4).fit(x_train, y_train, epochs=8)
rule = ag.AgreeStop(target=0.9, checkpoints=range(1, 61), max_set_size=1).calibrate(
    ensemble.score(x_cal, y_cal)
)

run = ensemble.decide(rule, x_new)
result = ag.evaluate(run.decisions, y_new)
print(
    f"coverage {result.coverage:.3f}, stop after {result.normalized_latency:.2f} of the time, "
    f"{result.set_size:.2f} classes"
)

events = ag.events.Events.from_dense(x_new, y_new, classes=("smooth", "rough", "edge"))
events.save("touch.npz")  # sparse, with labels; `agreestop run` and `agreestop decide` read it
print(ag.events.load("touch.npz").shape)

# %%
# Coverage by stopping time:
ag.plot.coverage(result, target=0.9)

# %%
# The data above are simulated. Measured on real data: images of CIFAR-10, watched for T = 80 steps,
# beside simulated digits (more in :doc:`/paper`):
#
# .. include:: /paper.md
#    :parser: myst_parser.sphinx_
#    :start-after: <!-- results: begin -->
#    :end-before: <!-- results: end -->
