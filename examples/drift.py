"""
Drift: an alarm, and a rule that heals
======================================

For whoever runs a rule for weeks: an alarm when the promise ends, a rule calibrated again, and a
rule that heals by itself. On the embedded digits; half way somebody turns the camera.
"""

import numpy as np

import agreestop as ag

data = ag.events.load_data_set("digits")
rng = np.random.default_rng(0)
ensemble = ag.ensembles.DeepEnsemble(
    ag.networks.FullyConnected(data.pool.shape, classes=10, hidden=(64,)), members=2
)
ensemble.fit(data.training.inputs, data.training.labels, epochs=3, progress=False)

inputs = np.asarray(data.pool.inputs).copy()
calibration, before, after, fresh = np.split(rng.permutation(len(inputs)), [200, 300, 500])
turned = np.concatenate([after, fresh])
inputs[turned] = np.rot90(inputs[turned], axes=(3, 4))
scores = ensemble.score(inputs, data.pool.labels)

rule = ag.AgreeStop(target=0.9, checkpoints=range(1, 81), max_set_size=1, delta=0.1)
rule = rule.calibrate(scores.rows(calibration))
monitor, adaptive = ag.DriftMonitor(rule, delta=0.05), ag.AdaptiveRule(rule, rate=0.2)
print(monitor.guarantee)
print(f"a doubled miss rate is found after about {monitor.labels_to_alarm(0.2)} labels")

for rows in (before, after):
    seen = scores.rows(rows)
    for decision, label in zip(rule.decide(seen), seen.labels, strict=True):
        # with late labels: observe(decision, key) now, update(key, label) later
        alarm = monitor.update(decision, label)
        if alarm:
            print(alarm)
    for begin in range(0, len(rows), 20):  # labels come up to 20 inputs late
        batch = seen.rows(slice(begin, begin + 20))
        adaptive.update(adaptive.decide(batch), batch.labels)
    print(f"misses: {1 - ag.evaluate(rule.decide(seen), seen).coverage:.3f}; {adaptive}")

monitor.save("monitor")  # all it knows; DriftMonitor.load goes on from here
recent = scores.rows(after[-monitor.since_alarm :])  # inputs that came after the alarm
rule = monitor.recalibrate(recent)
coverage = ag.evaluate(rule.decide(scores.rows(fresh)), scores.rows(fresh)).coverage
print(f"misses of the rule calibrated again: {1 - coverage:.3f}")

# %%
# The threshold of the rule that heals, over its decisions:
ag.plot.drift(adaptive)
