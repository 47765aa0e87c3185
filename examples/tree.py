"""
Coarse now, fine later
======================

For whoever has classes in groups: animal or vehicle first, then which. Simulated scores of an
ensemble.
"""

from dataclasses import replace

import agreestop as ag

tree = ag.Tree({"animal": ("cat", "dog", "horse"), "vehicle": ("car", "ship", "truck")})
scores = replace(ag.simulate_scores(1500, steps=60, K=3, C=6, signal=1.5), classes=tree.classes)
calibration, test = scores.split(0.4, 0.6, seed=0)

rules = [
    ag.AgreeStop(0.9, range(1, 61), 1, tree=tree, depth=depth).calibrate(calibration)
    for depth in (1, 2)
]
for rule, what in zip(rules, ("group", "class"), strict=True):  # both read the same scores
    decisions = rule.decide(test)
    ag.plot.stopping(decisions, label=what)  # a curve for each depth
    result = ag.evaluate(decisions, test)
    # the promise is a mean over draws of the calibration rows; this is one of them
    low, high = result.draw_range or (
        0,
        1,
    )
    print(
        f"the {what}: mean stop at {result.latency:.1f} of 60, coverage {result.coverage:.3f}; one "
        f"draw may give {low:.3f} to {high:.3f}"
    )

sessions = [rule.stream() for rule in rules]  # one input, watched for both answers
for step, members in enumerate(test.log_confidence[0], 1):
    for session in sessions:
        if session.decision is None and (decision := session.push(members)) is not None:
            print(f"step {step}: {decision.names}")

# %%
# The data above are simulated. Measured on real data: CIFAR-10 and activities, see :doc:`/trees`.
#
# .. image:: /../results/tree.png
#    :alt: Stopping time by depth of the tree.
