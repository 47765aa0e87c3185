"""
Answers of a language model
===========================

For whoever samples a language model: sample until the answer is the one that 20 samples would
give. The model is simulated.
"""

import numpy as np

import agreestop as ag

rng = np.random.default_rng(0)


def sample(ease: float) -> str:
    """One sampled answer to a question; put your own client here."""
    return "42" if rng.random() < ease else str(rng.integers(5))


questions = rng.beta(3.0, 0.7, size=600)  # how often a sample has the most frequent answer
known = ag.Answers([[sample(ease) for _ in range(20)] for ease in questions], ids=np.arange(600))
calibration, test = known.split(0.5, 0.5)

# no labels are needed
rule = ag.AgreeStop(0.97, range(1, 21), 1, break_ties=True).calibrate(calibration, "final")
print(rule.guarantee)
decisions = rule.decide(test)
print(ag.evaluate(decisions, test))

decision = ag.sample_until(rule, lambda: sample(0.9))  # a live question
print(f"answer {decision.names[0]} after {decision.time} of 20 samples")

# %%
# The share of questions that have been answered after each sample:
ag.plot.stopping(decisions)

# %%
# The data above are simulated. Measured on real data: 20 answers to each question of GSM8K, see
# :doc:`/language-models`.
#
# .. image:: /../results/answers.png
#    :alt: Samples and agreement of ours and of published rules.
