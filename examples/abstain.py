"""
I don't know
============

For whoever would rather have no answer than a wrong one: wrong answers are as rare as promised,
and inputs without hope end early. Simulated data.
"""

import numpy as np

import agreestop as ag

times = range(1, 21)
scores = ag.simulate_scores(3000, steps=20, K=3, C=4, pace=5.0)
rng = np.random.default_rng(0)
noisy = rng.random(3000) < 0.3  # nobody can tell the class of these
labels = np.where(noisy, rng.integers(4, size=3000), scores.labels)
tuning, calibration, new = ag.Scores(scores.log_confidence, labels, times).split(0.3, 0.3, 0.4)

answering = ag.AgreeStop(0.9, times, max_set_size=1).calibrate(calibration)
abstaining = ag.AgreeStop(0.9, times, max_set_size=1, at_end="abstain").calibrate(calibration)
give_up = ag.GiveUp.fit(tuning, share=0.1, max_set_size=1)
giving_up = ag.AgreeStop(0.9, times, max_set_size=1, at_end="abstain", give_up=give_up).calibrate(
    calibration
)

print(giving_up.guarantee)
rules = {"answering": answering, "abstaining": abstaining, "giving up": giving_up}
results = {name: ag.evaluate(rule.decide(new), new) for name, rule in rules.items()}
for name, result in results.items():
    print(
        f"{name}: {result.answered:.1%} answered, {result.wrong:.1%} wrong, set size "
        f"{result.set_size:.2f}, {result.latency:.1f} steps"
    )

# %%
# The share answered against the share answered wrongly; the line is what the target allows:
ag.plot.answered(results, target=0.9)

# %%
# The data above are simulated. Measured on real data: 40 sampled answers of a language model to
# each question of GSM8K (more in :doc:`/language-models`):
#
# .. include:: /language-models.md
#    :parser: myst_parser.sphinx_
#    :start-after: <!-- refusals: begin -->
#    :end-before: <!-- refusals: end -->
