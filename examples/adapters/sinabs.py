"""
Networks of sinabs
==================

For whoever has networks of sinabs: three of them, whose neurons may spike several times in a
step. Simulated data.
"""

import numpy as np
import sinabs
import torch
from sinabs import layers
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
    return nn.Sequential(
        nn.Linear(12, 32),
        layers.LIF(tau_mem=10.0, norm_input=False),
        nn.Linear(32, 3),
        layers.IAF(),
    )


nets = [network() for _ in range(3)]
for net in nets:  # training as ever: spikes over the whole recording (batch, T, sensors)
    optimiser = torch.optim.Adam(net.parameters(), 0.02)
    for rows in np.split(rng.permutation(fitting), 10) * 3:
        sinabs.reset_states(net)
        sinabs.zero_grad(net)
        loss = nn.functional.cross_entropy(
            net(torch.from_numpy(x[rows])).mean(1) * 10, torch.from_numpy(y[rows])
        )
        optimiser.zero_grad(), loss.backward(), optimiser.step()

engine = ag.adapters.from_sinabs(nets)
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
# sinabs need not be installed where this page is built. `make peers` ran the script with it:
#
# .. literalinclude:: /_static/stored/sinabs.txt
#    :language: text
#
# .. image:: /_static/stored/sinabs.png
#    :alt: Coverage by stopping time.

# sphinx_gallery_thumbnail_path = '_static/stored/sinabs.png'
