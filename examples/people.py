"""
New people
==========

For whoever meets people whom calibration never saw: a rule that promises for them, and one that
takes their rows as exchangeable. Simulated data.
"""

import numpy as np

import agreestop as ag

rng = np.random.default_rng(0)
times, persons, rows = range(1, 21), 120, 40
people = np.repeat(np.arange(persons), rows)
scores = ag.simulate_scores(persons * rows, steps=20, K=3, C=4, pace=5.0)
odd = rng.beta(0.5, 2.5, size=persons)[
    people
]  # some people do many things that the model takes for another class
labels = np.where(rng.random(len(people)) < odd, rng.integers(4, size=len(people)), scores.labels)
scores = ag.Scores(scores.log_confidence, labels, times)

calibration, new = people < 40, people >= 40
rule = ag.AgreeStop(target=0.8, checkpoints=times, max_set_size=1)
promises = {
    "rows as exchangeable": {},
    "a row of a new person": {"people": people[calibration]},
    "nine in ten new people": {"people": people[calibration], "for_people": 0.9},
}
results = {}
for name, known in promises.items():
    calibrated = rule.calibrate(scores.rows(calibration), **known)
    result = results[name] = ag.evaluate(
        calibrated.decide(scores.rows(new)), scores.rows(new), people=people[new]
    )
    print(
        f"{name}: {result.people_below:.0%} of new people under 0.8, coverage "
        f"{result.coverage:.3f}, {result.latency:.1f} steps"
    )

# %%
# Coverage over the rows of new people, against how long each promise makes them wait:
ag.plot.compare(results, target=0.8)

# %%
# The data above are simulated. Measured on real data: 60 speakers and 30 wearers, see
# :doc:`/people`.
#
# .. image:: /../results/people.png
#    :alt: The share of new people under the target, for three promises.
