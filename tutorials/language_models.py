"""
Language models
===============

For whoever samples a language model several times and takes the most frequent answer. Ten minutes;
the model is simulated, so that this page needs no network and no key.

Sampling 40 answers to each question and voting is accurate and dear. Most questions are settled
after two or three samples. You will calibrate a rule that stops sampling as soon as the answer is
the one that all 40 samples would give, as often as you ask. No labels, no logits and no list of
classes are needed.
"""

import numpy as np

import agreestop as ag

rng = np.random.default_rng(0)


def sample(ease):
    """One sampled answer. Put your own client here: a function that returns the answer as
    a string.
    """
    return "18" if rng.random() < ease else str(rng.integers(9))


# how often a sample has the most frequent answer, different for each question
ease = rng.beta(4.0, 0.8, size=1600)
samples = [[sample(one) for _ in range(40)] for one in ease]
print(samples[0][:8])

# %%
# Calibrate on questions without labels
# -------------------------------------
#
# For some questions all 40 samples are drawn once. They *calibrate* the rule and are used for
# nothing else. A *checkpoint* is a number of samples after which it may stop. ``"final"`` is the
# *guarantee*: the early answer is the answer of all 40 samples.
answers = ag.Answers(samples)
calibration, test = answers.rows(slice(0, 800)), answers.rows(slice(800, 1600))
rule = ag.AgreeStop(0.98, range(1, 41), 1, break_ties=True).calibrate(calibration, "final")
print(rule.guarantee)

# %%
# How many samples are saved?
# ---------------------------
#
# Votes take few values, so many questions tie. ``break_ties=True`` draws a random number for each
# question, which brings the rule to the target and not above it. So one calibration draw and one
# test end a little above or below 0.98; the guarantee is the mean over draws. ``first=0`` numbers
# the questions, so that a second run decides the same.
decisions = rule.decide(test, first=0)
result = ag.evaluate(decisions, test)
print(f"agreement with 40 samples: {result.coverage}")
print(f"samples: {result.latency} of 40")

# %%
ag.plot.stopping(decisions)

# %%
# Ask a live question
# -------------------
#
# ``sample_until`` calls your function until the rule stops. It is called no more often than needed.
decision = ag.sample_until(rule, lambda: sample(0.9))
print(f"answer {decision.names[0]} after {decision.time:.0f} samples")

# %%
# Wrong answers instead of other answers
# --------------------------------------
#
# To agree with 40 samples is not to be right. With right answers for the calibration questions, a
# rule can abstain: it answers only what is settled, and promises that few questions are answered
# wrongly. Here "18" is right, and one question in ten fools the model.
fooled = rng.random(1600) < 0.1
graded = ag.Answers(samples, labels=np.where(fooled, "72", "18"))
careful = ag.AgreeStop(0.9, range(1, 41), 1, break_ties=True, at_end="abstain").calibrate(
    graded.rows(slice(0, 800))
)
judged = ag.evaluate(
    careful.decide(graded.rows(slice(800, 1600)), first=0), graded.rows(slice(800, 1600))
)
print(f"answered {judged.answered}, wrong {judged.wrong}")

# %%
# Measured on a real model
# ------------------------
#
# The samples above are simulated. The figure shows questions of GSM8K with stored samples of a
# language model; :doc:`/language-models` has the numbers and the published rules beside it.
#
# .. image:: /../results/answers.png
#    :alt: Samples and agreement of ours and of published rules.
#
# What goes wrong most often: :doc:`/mistakes`.
