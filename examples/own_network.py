"""An own torch module as a member: it sees one time step, and its state goes in and comes out."""

import numpy as np
import torch

import agreestop as ag


class Recurrent(torch.nn.Module):
    """A GRU cell with a linear read-out: (x_t, state) -> (logits, state); the first state is None."""

    def __init__(self):
        super().__init__()
        self.cell, self.read_out = torch.nn.GRUCell(12, 32), torch.nn.Linear(32, 3)

    def forward(self, x_t, state):
        state = self.cell(x_t, state)
        return self.read_out(state), state


rng = np.random.default_rng(0)
labels = rng.integers(3, size=1000)
rates = 0.06 + 0.10 * (np.arange(12) % 3 == labels[:, None])
x = (rng.random((1000, 60, 12)) < rates[:, None, :]).astype(np.float32)
fitting, calibration, new = np.split(rng.permutation(1000), [600, 800])  # shuffled before they are divided

ensemble = ag.ensembles.DeepEnsemble(Recurrent, members=3)  # a builder: called once for each member
ensemble.fit(x[fitting], labels[fitting], epochs=8)
rule = ag.AgreeStop(target=0.9, checkpoints=range(1, 61), max_set_size=1).calibrate(ensemble.score(x[calibration], labels[calibration]))
run = ensemble.decide(rule, x[new])
print(ensemble)
print(f"{run.computed.mean():.1f} of 60 steps computed, coverage {ag.evaluate(run.decisions, labels[new]).coverage:.3f}")

ensemble.save("recurrent.safetensors")
same = ag.ensembles.load("recurrent.safetensors", network=Recurrent)  # the builder makes the modules, the file holds their weights
