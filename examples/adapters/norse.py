"""
Networks of Norse
=================

For whoever has networks of Norse: three of them, which pass their state by hand; a leaky
integrator gives logits. Simulated data.
"""

import norse.torch as norse
import numpy as np
import torch
from torch import nn

import agreestop as ag

rng = np.random.default_rng(0)
torch.manual_seed(0)  # of the weights
y = rng.integers(3, size=1000)
x = (
    rng.random((1000, 60, 12)) < (0.06 + 0.10 * (np.arange(12) % 3 == y[:, None]))[:, None]
).astype(np.float32)
# shuffled before they are divided
fitting, calibration, new = np.split(rng.permutation(1000), [600, 800])


def network():
    return norse.SequentialState(
        nn.Linear(12, 32), norse.LIFCell(), nn.Linear(32, 3), norse.LICell()
    )


nets = [network() for _ in range(3)]
for net in nets:  # training as ever: the state goes in and comes out
    nn.init.uniform_(net[0].weight, -10, 20)
    optimiser = torch.optim.Adam(net.parameters(), 0.03)
    for rows in np.split(rng.permutation(fitting), 10) * 3:
        state, loss = None, 0.0
        for x_t in torch.from_numpy(x[rows]).unbind(1):
            logits, state = net(x_t, state)
            loss = loss + nn.functional.cross_entropy(logits, torch.from_numpy(y[rows])) / 60
        optimiser.zero_grad(), loss.backward(), optimiser.step()

engine = ag.adapters.from_norse(nets, output="logits")
rule = ag.AgreeStop(target=0.9, checkpoints=range(1, 61), max_set_size=1).calibrate(
    engine.score(x[calibration], y[calibration])
)
# really stops: an input is computed to the end of the few steps in which it is decided
run = engine.decide(rule, x[new])
result = ag.evaluate(run.decisions, y[new])
print(f"coverage {result.coverage:.3f}, {run.computed.mean():.1f} of 60 steps computed")

# %%
# Coverage by stopping time:
ag.plot.coverage(result, target=0.9)

# %%
# The data above are simulated. Measured on real data, with networks that others trained (more in
# :doc:`/nir`):
#
# .. include:: /nir.md
#    :parser: myst_parser.sphinx_
#    :start-after: <!-- measured: begin -->
#    :end-before: <!-- measured: end -->
#
# Norse need not be installed where this page is built. `make peers` ran the script with it:
#
# .. literalinclude:: /_static/stored/norse.txt
#    :language: text
#
# .. image:: /_static/stored/norse.png
#    :alt: Coverage by stopping time.

# sphinx_gallery_thumbnail_path = '_static/stored/norse.png'
