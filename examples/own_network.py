"""
Your own torch network
======================

For whoever has a torch module: as a member it sees one time step, and its state goes in and
comes out. On the embedded digits.
"""

import numpy as np
import torch

import agreestop as ag


class Recurrent(torch.nn.Module):
    """A GRU cell with a linear read-out: (x_t, state) -> (logits, state); the first state
    is None.
    """

    def __init__(self):
        super().__init__()
        self.cell, self.read_out = torch.nn.GRUCell(512, 48), torch.nn.Linear(48, 10)

    def forward(self, x_t, state):
        state = self.cell(x_t.flatten(1), state)  # two polarities of 16 x 16 pixels
        return self.read_out(state), state


data = ag.events.load_data_set("digits")
x, y = data.pool.inputs, data.pool.labels
# shuffled before they are divided
calibration, new = np.split(np.random.default_rng(0).permutation(len(y)), [200])

ensemble = ag.ensembles.DeepEnsemble(Recurrent, members=3)  # a builder: called once for each member
ensemble.fit(data.training.inputs[:600], data.training.labels[:600], epochs=6, progress=False)
rule = ag.AgreeStop(target=0.9, checkpoints=range(1, 81), max_set_size=1).calibrate(
    ensemble.score(x[calibration], y[calibration])
)
run = ensemble.decide(rule, x[new])
result = ag.evaluate(run.decisions, y[new])
print(ensemble)
print(f"{run.computed.mean():.1f} of 80 steps computed, coverage {result.coverage:.3f}")

ensemble.save("recurrent.safetensors")
# the builder makes the modules, the file holds their weights
same = ag.ensembles.load("recurrent.safetensors", network=Recurrent)

# %%
# Coverage by stopping time:
ag.plot.coverage(result, target=0.9)
