"""
Networks of snnTorch
====================

For whoever has networks of snnTorch: three of them, whose neurons keep their state. Simulated
data.
"""

import numpy as np
import snntorch as snn
import torch
from snntorch import utils
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
    hidden, last = (
        snn.Leaky(beta=0.9, init_hidden=True),
        snn.Leaky(beta=0.9, init_hidden=True, output=True),
    )
    return nn.Sequential(nn.Linear(12, 32), hidden, nn.Linear(32, 3), last)


nets = [network() for _ in range(3)]
for net in nets:  # training as ever: the membrane potentials of the last layer, summed over time
    optimiser = torch.optim.Adam(net.parameters(), 0.01)
    for rows in np.split(rng.permutation(fitting), 10) * 3:
        utils.reset(net)
        potentials = sum(net(x_t)[1] for x_t in torch.from_numpy(x[rows]).unbind(1))
        loss = nn.functional.cross_entropy(potentials / 10, torch.from_numpy(y[rows]))
        optimiser.zero_grad(), loss.backward(), optimiser.step()

engine = ag.adapters.from_snntorch(nets)
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
# snnTorch need not be installed where this page is built. `make peers` ran the script with it:
#
# .. literalinclude:: /_static/stored/snntorch.txt
#    :language: text
#
# .. image:: /_static/stored/snntorch.png
#    :alt: Coverage by stopping time.

# sphinx_gallery_thumbnail_path = '_static/stored/snntorch.png'
