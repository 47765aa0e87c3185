"""
A live input
============

For whoever has a sensor that reports step by step: push each step until there is a decision.
Simulated data.
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
ensemble = ag.ensembles.DeepEnsemble(
    ag.networks.FullyConnected((12,), classes=3, hidden=(32,)), members=4
)
ensemble.fit(x_train, y_train, epochs=6, progress=False)
rule = ag.AgreeStop(target=0.9, checkpoints=range(1, 61), max_set_size=1).calibrate(
    ensemble.score(*record(200))
)

(stream,), (label,) = record(1)
session = ensemble.live(rule)  # one session for each input
for frame in stream:
    # which sensors fired in this step; or push(frame=frame)
    decision = session.push(frame.nonzero()[0])
    if decision:
        print(
            f"stopped at step {decision.time} with classes {decision.classes}; the label is {label}"
        )
        break

# %%
# Of many inputs at once, the share that has been answered by each step:
ag.plot.stopping(ensemble.decide(rule, record(200)[0]))

# %%
# The data above are simulated. Measured on real data: images of CIFAR-10, watched for T = 80 steps,
# beside simulated digits (more in :doc:`/paper`):
#
# .. include:: /paper.md
#    :parser: myst_parser.sphinx_
#    :start-after: <!-- results: begin -->
#    :end-before: <!-- results: end -->
