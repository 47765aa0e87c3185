"""Small score makers, hypothesis strategies and helpers that the tests of the decision layer share."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import agreestop as ag
from agreestop.common import Booleans, Floats, Integers
from agreestop.decide.evidence import Evidence
from agreestop.decide.policies import RiskThreshold, RunningThreshold, StoppingThreshold

Rule = ag.SpikeCP | ag.AgreeStop | ag.DCSNN | ag.SEENN

EXPONENTS = (-math.inf, -45.0, -2.0, -1.0, -0.5, 0.0, 0.3, 1.0, 2.0, 5.0, 45.0, math.inf)


def exponents() -> st.SearchStrategy[float]:
    """Exponents of a generalised mean: the named ones, whole and broken, positive and negative."""
    return st.one_of(st.sampled_from(EXPONENTS), st.floats(-20, 20).filter(lambda r: abs(r) > 1e-200))


class Sample(NamedTuple):
    """Log-confidences (n, M, K, C) and labels (n,)."""

    log_confidence: Floats
    labels: Integers

    def rows(self, rows: slice | Integers) -> Sample:
        return Sample(self.log_confidence[rows], self.labels[rows])


def make_sample(n: int, checkpoints: int = 3, members: int = 2, classes: int = 4, seed: int = 0, tied: bool = True) -> Sample:
    """Members that count spikes, many of them in common, in favour of the label; every class is the label equally often.

    `tied=False` adds noise, so that no two scores tie.
    """
    rng = np.random.default_rng([seed, n, checkpoints, members, classes])
    labels = rng.permutation(np.arange(n) % classes)
    rates = np.full((n, 1, 1, classes), 0.25)
    rates[np.arange(n), 0, 0, labels] = rng.uniform(0.15, 0.8, size=n)
    common = rng.binomial(2, rates, size=(n, checkpoints, 1, classes))
    own = rng.binomial(2, rates, size=(n, checkpoints, members, classes))
    seen = np.where(rng.random(own.shape) < 0.7, common, own)
    counts = seen.cumsum(axis=1).astype(np.float64)
    if not tied:
        counts += rng.normal(scale=0.3, size=counts.shape)
    return Sample(ag.log_confidence(counts), labels)


def at_kth_values(calibrated: ag.CalibratedRule) -> ag.CalibratedRule:
    """The rule with the order statistics themselves as thresholds, which rounding may put on either side."""
    policy: Any = calibrated.policy
    if isinstance(policy, (RiskThreshold, StoppingThreshold)):
        assert policy.kth_values is not None
        return replace(calibrated, policy=replace(policy, threshold=float(policy.kth_values[0])))
    name = "threshold" if isinstance(policy, RunningThreshold) else "thresholds"
    return replace(calibrated, policy=replace(policy, **{name: policy.kth_values}))


def calibrate_quietly(rule: Rule, sample: Sample, times: Sequence[float] | None = None) -> ag.CalibratedRule:
    """Calibrate with examples that may be too few to exclude anything: that warning, and no other, is passed over."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ag.CalibrationWarning)
        return rule.calibrate(sample.log_confidence, sample.labels, times=times)


def sets_at_checkpoints(calibrated: ag.CalibratedRule, log_confidence: Floats) -> Booleans:
    """The set of every input at every checkpoint, (n, M, C): what it would answer if that one were the last."""
    state = calibrated.start(len(log_confidence), 0)
    sets = []
    for index in range(log_confidence.shape[1]):
        evidence = calibrated.rule.evidence(index, np.ascontiguousarray(log_confidence[:, index]))
        verdict = calibrated.policy.judge(index, True, evidence, state)
        sets.append(verdict.sets)
        state = verdict.state
    return np.stack(sets, axis=1)


def assert_same_decisions(first: ag.Decisions, second: ag.Decisions) -> None:
    np.testing.assert_array_equal(first.stop_index, second.stop_index)
    np.testing.assert_array_equal(first.sets, second.sets)
    assert first.checkpoints == second.checkpoints


def assert_same_evidence(first: Evidence, second: Evidence) -> None:
    np.testing.assert_array_equal(first.values, second.values)
    assert (first.log_risk is None) == (second.log_risk is None)
    if first.log_risk is not None and second.log_risk is not None:
        np.testing.assert_array_equal(first.log_risk, second.log_risk)


def risk_of(evidence: Evidence) -> Floats:
    """log e of a rule that estimates it."""
    assert evidence.log_risk is not None
    return evidence.log_risk


def assert_one_sentence(message: str) -> None:
    """The message that a user reads: one sentence with a full stop."""
    assert message.endswith("."), message
    assert not re.search(r"[.!?]\s", message), message
    assert "\n" not in message, message


class ScoreTable(NamedTuple):
    """Scores (n, M, C), labels (n,) and the largest set that may stop."""

    scores: Floats
    labels: Integers
    max_set_size: int


def _few_values(shape: tuple[int, ...]) -> st.SearchStrategy[Floats]:
    return hnp.arrays(np.float64, shape, elements=st.integers(0, 5).map(float))


@st.composite
def score_tables(draw: st.DrawFn, most_rows: int = 4) -> ScoreTable:
    """Tiny score tables full of ties: M = 1..4, C = 1..5, I = 1..C + 1."""
    n, checkpoints, classes = draw(st.integers(1, most_rows)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    scores = draw(_few_values((n, checkpoints, classes)))
    labels = draw(hnp.arrays(np.int64, n, elements=st.integers(0, classes - 1)))
    return ScoreTable(scores, labels, draw(st.integers(1, classes + 1)))


class RiskTable(NamedTuple):
    """Evidence of all checkpoints, labels (n,) and the largest set that may stop."""

    evidence: Evidence
    labels: Integers
    max_set_size: int


@st.composite
def risk_tables(draw: st.DrawFn, most_rows: int = 4) -> RiskTable:
    """Tiny tables of ρ (distinct inside a cell, as masses of tails are; heavy ties between cells) and of a risk e.

    The risk is the mass of all but the I most probable classes, or any number, minus infinity among them.
    """
    n, checkpoints, classes = draw(st.integers(1, most_rows)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    max_set_size = draw(st.integers(1, classes + 1))
    cells = st.permutations(range(-7, 0)).map(lambda values: values[:classes])
    evidence = Evidence(np.empty((n, checkpoints, classes)), np.empty((n, checkpoints)))
    assert evidence.log_risk is not None
    any_risk = draw(st.booleans())
    for row in range(n):
        for index in range(checkpoints):
            mass = np.array(draw(cells), dtype=np.float64)
            mass[mass.argmax()] = 0.0
            tail = np.sort(mass)[::-1][max_set_size] if max_set_size < classes else -np.inf
            evidence.values[row, index] = mass
            evidence.log_risk[row, index] = draw(st.sampled_from([-np.inf, -6.0, -4.0, -3.0, -2.0, -1.0, 0.0])) if any_risk else tail
    labels = draw(hnp.arrays(np.int64, n, elements=st.integers(0, classes - 1)))
    return RiskTable(evidence, labels, max_set_size)


def breaking_points(values: Floats) -> tuple[float, ...]:
    """All finite values in order: what a comparison with λ can change at."""
    return tuple(np.unique(values[np.isfinite(values)]).tolist())


def between(points: Sequence[float]) -> list[float]:
    """A number below all points, between each two neighbours, and above all."""
    if not points:
        return [0.0]
    inner = [(low + high) / 2 for low, high in pairwise(points)]
    return [points[0] - 1.0, *inner, points[-1] + 1.0]
