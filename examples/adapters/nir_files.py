"""
Networks in NIR files
=====================

For whoever has spiking networks in files: read them, compare them with what they were,
calibrate, and stop. Simulated data.
"""

import nir
import numpy as np

import agreestop as ag

rng = np.random.default_rng(0)
y = rng.integers(0, 3, 900)
# three kinds of touch, twelve sensors
x = rng.random((900, 40, 12)) < np.where(np.arange(12) // 4 == y[:, None], 0.35, 0.1)[:, None]
# shuffled before they are divided
fitting, calibration, new = np.split(rng.permutation(900), [300, 600])

# someone's trained networks: here two of our own, as files
# as the membrane time: NIR's CubaLIF has no refractory time of its own
neuron = ag.networks.Neuron(refractory_time=8.0)
settings = ag.networks.FullyConnected((12,), classes=3, hidden=(32,), neuron=neuron)
ours = ag.ensembles.DeepEnsemble(settings, members=2, device="cpu").fit(
    x[fitting], y[fitting], epochs=4, progress=False
)
for number, graph in enumerate(ag.adapters.to_nir(ours, dt=1e-3)):
    nir.write(f"member-{number}.nir", graph)

engine = ag.adapters.from_nir(["member-0.nir", "member-1.nir"], dt=1e-3, reset="subtract")
print(engine.engine.reason)
print(ag.adapters.compare(engine, ours.engine, x[calibration[:50]]))

rule = ag.AgreeStop(target=0.9, checkpoints=range(1, 41), max_set_size=1).calibrate(
    engine.score(x[calibration], y[calibration])
)
run = engine.decide(rule, x[new])
result = ag.evaluate(run.decisions, y[new])
print(f"coverage {result.coverage}, {run.computed.mean():.1f} of 40 steps computed")

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
