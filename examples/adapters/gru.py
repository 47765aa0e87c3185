"""
GRUs as they come from torch
============================

For whoever has networks of torch that read whole recordings: a step function says how they go
from step to step. Recordings may end early. Simulated data.
"""

import numpy as np
import torch

import agreestop as ag


class Gru(torch.nn.Module):
    """A GRU that reads whole recordings (n, T, sensors) and gives logits (n, T, classes)."""

    def __init__(self):
        super().__init__()
        self.gru, self.read_out = torch.nn.GRU(12, 24, batch_first=True), torch.nn.Linear(24, 3)

    def forward(self, x):
        return self.read_out(self.gru(x)[0])


def step(net, x_t, state):  # state: (layers, batch, hidden), None at first
    output, state = net.gru(x_t[:, None], state)
    return net.read_out(output[:, 0]), state


rng = np.random.default_rng(0)
torch.manual_seed(0)  # of the weights
y = rng.integers(3, size=1000)
x = (
    rng.random((1000, 60, 12)) < (0.06 + 0.10 * (np.arange(12) % 3 == y[:, None]))[:, None]
).astype(np.float32)
# shuffled before they are divided
fitting, calibration, new = np.split(rng.permutation(1000), [600, 800])
nets = [Gru() for _ in range(3)]
for net in nets:  # training as ever
    optimiser = torch.optim.Adam(net.parameters(), 0.02)
    for rows in np.split(rng.permutation(fitting), 10) * 3:
        loss = torch.nn.functional.cross_entropy(
            net(torch.from_numpy(x[rows])).mT, torch.from_numpy(y[rows])[:, None].expand(-1, 60)
        )
        optimiser.zero_grad(), loss.backward(), optimiser.step()

engine = ag.adapters.from_module(nets, step=step, batch_axis=1)
lengths = rng.integers(30, 61, size=1000)  # where each recording ends
scores = engine.score(x[calibration], y[calibration], lengths=lengths[calibration])
rule = ag.AgreeStop(target=0.9, checkpoints=range(1, 61), max_set_size=1).calibrate(scores)
run = engine.decide(rule, x[new], lengths=lengths[new])
result = ag.evaluate(run.decisions, y[new])
print(
    f"coverage {result.coverage:.3f}, {run.computed.mean():.1f} of {lengths[new].mean():.1f} steps "
    "computed"
)

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
