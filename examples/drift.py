"""Drift: an alarm when the promise ends, a rule calibrated again, and a rule that heals by itself. Scores are simulated."""

import numpy as np

import agreestop as ag

rng = np.random.default_rng(0)


def stream(n, quality):
    """Scores of n inputs; the members see the label worse when the quality falls."""
    labels = rng.integers(4, size=n)
    logits = rng.normal(size=(n, 6, 3, 4))
    logits[np.arange(n), :, :, labels] += quality * np.sqrt(np.arange(1, 7))[:, None]
    return ag.Scores(ag.log_confidence(logits), labels, range(1, 7))


rule = ag.AgreeStop(target=0.9, checkpoints=range(1, 7), max_set_size=1, delta=0.1).calibrate(stream(500, 1.0))
monitor, adaptive = ag.DriftMonitor(rule, delta=0.05), ag.AdaptiveRule(rule, rate=0.2)
print(monitor.guarantee)
print(f"a doubled miss rate is found after about {monitor.labels_to_alarm(0.2)} labels")

for quality in (1.0, 0.5):  # half way the sensor gets worse
    scores = stream(1000, quality)
    for decision, label in zip(rule.decide(scores), scores.labels, strict=True):
        alarm = monitor.update(decision, label)  # with late labels: observe(decision, key) now, update(key, label) later
        if alarm:
            print(alarm)
    for begin in range(0, 1000, 20):  # labels come up to 20 inputs late
        batch = scores.rows(slice(begin, begin + 20))
        adaptive.update(adaptive.decide(batch), batch.labels)
    print(f"misses: {1 - ag.evaluate(rule.decide(scores), scores).coverage:.3f}; {adaptive}")

monitor.save("monitor")  # all it knows; DriftMonitor.load goes on from here
recent = scores.rows(slice(1000 - monitor.since_alarm, None))  # inputs that came after the alarm
rule = monitor.recalibrate(recent)
fresh = stream(1000, 0.5)
print(f"misses of the rule calibrated again: {1 - ag.evaluate(rule.decide(fresh), fresh).coverage:.3f}")
