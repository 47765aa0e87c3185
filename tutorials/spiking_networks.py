"""
Spiking networks
================

For whoever trains spiking networks and pays for every time step. Ten minutes; the data are embedded
in the package.

You will train an ensemble of small spiking networks, calibrate a rule that says when they have seen
enough, and let an engine really stop computing there. The inputs are scikit-learn's digits, which
move in front of a simulated event camera for T = 80 steps.
"""

import numpy as np

import agreestop as ag

data = ag.events.load_data_set("digits")
x, y = data.pool.inputs, data.pool.labels
# shuffle before you divide
calibration, new = np.split(np.random.default_rng(0).permutation(len(y)), [200])
print("inputs (n, T, polarities, height, width):", x.shape)

# %%
# Train members
# -------------
#
# The networks of an ensemble are its *members*. They differ in their random numbers alone. Where
# they disagree, an answer is unsure.
network = ag.networks.FullyConnected(data.pool.shape, classes=10, hidden=(96,))
ensemble = ag.ensembles.DeepEnsemble(network, members=3, seed=0)
ensemble.fit(data.training.inputs, data.training.labels, epochs=4, progress=False)

# %%
# Calibrate a rule
# ----------------
#
# A *checkpoint* is a step at which the rule may stop. Calibration examples are labelled and used
# for nothing else. The *guarantee*: the answer at the moment of stopping holds the true class with
# probability at least 0.9.
# what each member believes after every step
scores = ensemble.score(x[calibration], y[calibration])
rule = ag.AgreeStop(target=0.9, checkpoints=range(1, 81), max_set_size=1).calibrate(scores)
print(rule.guarantee)

# %%
# Decide, and compute no further
# ------------------------------
#
# ``score`` computed all 80 steps. ``decide`` computes in chunks of a few steps and drops every
# input that has stopped.
run = ensemble.decide(rule, x[new])
result = ag.evaluate(run.decisions, y[new])
print(f"coverage {result.coverage}, mean stop at step {result.latency} of 80")
print(f"computed: {run.computed.mean():.1f} steps of 80")

# %%
# More checkpoints cost the guarantee nothing. They cost time where scores are not comparable
# over time: then temperatures help, which are fitted on a third part of the data.
tuning = ensemble.score(data.tuning.inputs, data.tuning.labels)
tempered = ag.AgreeStop(0.9, range(1, 81), 1, risk=ag.TopMass.fit(tuning)).calibrate(scores)
with_temperatures = ag.evaluate(tempered.decide(ensemble.score(x[new], y[new])), y[new])
print(f"with temperatures: mean stop at step {with_temperatures.latency} of 80")

# %%
# What it does is best seen on the two rules beside one another.
ag.plot.compare({"AgreeStop": result, "with temperatures": with_temperatures}, target=0.9)

# %%
# One input, live
# ---------------
#
# Push what the sensor reports in each step. The session computes that step and says when it is
# enough.
session = ensemble.live(rule)
for frame in x[new[0]]:
    decision = session.push(frame=frame)
    if decision is not None:
        print(f"step {decision.time:.0f}: class {decision.classes}; the label is {y[new[0]]}")
        break

# %%
# Keep it
# -------
#
# Members and rule are two files. The rule knows the members that it was calibrated with and refuses
# others.
ensemble.save("members.safetensors")
rule.save("digits.rule")
again = ag.ensembles.load("members.safetensors").decide(ag.load_rule("digits.rule"), x[new[:5]])
print("the same decisions:", (again.decisions.stop_time == run.decisions.stop_time[:5]).all())

# %%
# Where to go on
# --------------
#
# Networks of snnTorch, SpikingJelly, Norse and sinabs: :doc:`/adapters`. How engines stop, and how
# fast they are: :doc:`/engines`. Real event streams and the paper's rules: :doc:`/paper`. What goes
# wrong most often: :doc:`/mistakes`.
