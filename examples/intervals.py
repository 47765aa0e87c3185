"""
Numbers with an interval
========================

For whoever predicts numbers: stop as soon as a calibrated interval is narrow enough. Simulated
estimates that become better with time.
"""

import numpy as np

import agreestop as ag

rng = np.random.default_rng(0)
truth = rng.normal(size=1500)
# what the model believes: it is too sure
scale = rng.uniform(0.5, 2.0, (1500, 1)) / np.sqrt(np.arange(1, 31))
centre = truth[:, None] + 1.5 * scale * rng.normal(size=(1500, 30))

numbers = ag.Numbers(centre, scale, labels=truth)  # (n, M) each, one column for each time
calibration, test = numbers.split(1 / 3, 2 / 3, seed=0)

rule = ag.IntervalStop(target=0.9, max_width=2.0).calibrate(calibration)
print(rule.guarantee)
print(f"an interval reaches {rule.thresholds[0]:.2f} scales to each side")
decisions = rule.decide(test)
result = ag.evaluate(decisions, test)
print(
    f"coverage {result.coverage:.3f}, width {result.width:.2f}, mean stop at {result.latency:.1f} "
    "of 30"
)

session = rule.stream()  # one input, one pair after another
for pair in zip(test.centre[0], test.scale[0], strict=True):
    decision = session.push(pair)
    if decision is not None:
        print(f"at time {decision.time}: between {decision.lower:.2f} and {decision.upper:.2f}")
        break

# %%
# The share of inputs whose interval was narrow enough by each time:
ag.plot.stopping(decisions)

# %%
# The data above are simulated. Measured on real data: how long a spoken digit will last, see
# :doc:`/numbers`.
#
# .. image:: /../results/numbers.png
#    :alt: Coverage and time of the interval rule beside others.
