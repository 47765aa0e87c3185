"""Risks: masses of tails that do not cancel, and the features and shapes built on them."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agreestop as ag
from agreestop.common import Floats
from tests.decide.strategies import Reading, assert_same_reading, make_sample, reading_at

TIMES = (2, 4, 6)
every_kind = pytest.mark.parametrize("kind", ["top mass", "learned", "shaped"])
LOGITS = st.lists(st.integers(-12, 0).map(float), min_size=1, max_size=7)


def reference_log_masses(logits: list[float]) -> list[float]:
    """log of the mass of each class and all after it, in order of probability, with 60 digits."""
    with localcontext(prec=60):
        parts = [Decimal(value).exp() for value in sorted(logits, reverse=True)]
        return [
            float((sum(parts[rank:], Decimal(0)) / sum(parts, Decimal(0))).ln())
            for rank in range(len(parts))
        ]


def masses_of(logits: list[float]) -> Floats:
    """log ρ (C,) of one input with these logits."""
    return reading_at(ag.TopMass(), 0, np.array([[logits]]), 1).values[0]


@given(LOGITS)
def test_masses_match_many_digits(logits: list[float]) -> None:
    masses = sorted(masses_of(logits).tolist(), reverse=True)
    assert masses == pytest.approx(reference_log_masses(logits), rel=1e-13, abs=1e-15)
    assert masses[0] == 0


@given(LOGITS)
def test_classes_are_ordered_by_probability_and_ties_by_index(logits: list[float]) -> None:
    masses = masses_of(logits)
    order = np.argsort(-masses)
    assert order.tolist() == sorted(range(len(logits)), key=lambda label: (-logits[label], label))
    assert (np.diff(masses[order]) < 0).all()


def test_a_sure_network_keeps_a_risk_above_zero() -> None:
    """1 - Σ would cancel to 0 here; the sum of the tail does not."""
    values = ag.log_confidence([[80.0, 0.0, 0.0], [75.0, 0.0, 0.0]])[:, None]
    evidence = reading_at(ag.TopMass(), 0, values, 1)
    log_risk = evidence.risk
    assert log_risk == pytest.approx([math.log(2) - 80, math.log(2) - 75], rel=1e-14)
    assert log_risk[0] < log_risk[1]


@pytest.mark.parametrize("max_set_size", [1, 2, 3])
def test_evidence_is_the_mass_of_each_tail_and_the_mass_outside(max_set_size: int) -> None:
    values = make_sample(40, members=3, tied=False).log_confidence[:, 0]
    evidence = reading_at(ag.TopMass(ag.MergeConfidence(r=1)), 0, values, max_set_size)
    probabilities = np.exp(values).mean(axis=1)
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    later = probabilities[:, :, None] >= probabilities[:, None, :]
    assert np.exp(evidence.values) == pytest.approx((later * probabilities[:, None, :]).sum(axis=2))
    assert np.exp(evidence.risk) == pytest.approx(
        np.sort(probabilities, axis=1)[:, : 4 - max_set_size].sum(axis=1)
    )


@pytest.mark.parametrize("max_set_size", [4, 5])
def test_nothing_is_outside_all_classes(max_set_size: int) -> None:
    evidence = reading_at(ag.TopMass(), 0, make_sample(4).log_confidence[:, 0], max_set_size)
    assert (evidence.risk == -math.inf).all()


def test_temperatures_of_top_mass_are_those_of_the_score() -> None:
    tuning = make_sample(80, members=3)
    risk, score = (
        kind.fit(*tuning, pooling=ag.MergeConfidence(r=0)) for kind in (ag.TopMass, ag.Temperature)
    )
    assert risk.temperatures is not None
    np.testing.assert_array_equal(risk.temperatures, score.temperatures)
    flat = reading_at(
        ag.TopMass(ag.MergeConfidence(r=0), np.full(3, 1e-3)), 1, tuning.log_confidence[:, 1], 1
    )
    assert np.exp(flat.risk) == pytest.approx(np.full(80, 0.75), abs=0.01)


def make_risk(kind: str) -> ag.TopMass | ag.LearnedRisk | ag.ShapedRisk:
    """A risk of each kind, fitted for three members and sets of two classes."""
    tuning = make_sample(120, members=3, seed=1)
    if kind == "learned":
        return ag.LearnedRisk.fit(*tuning, max_set_size=2, times=TIMES)
    top_mass = ag.TopMass.fit(*tuning, times=TIMES)
    return (
        top_mass
        if kind == "top mass"
        else ag.ShapedRisk(top_mass, np.array([0.3, 0.2, 0.0]), TIMES)
    )


@every_kind
def test_a_risk_is_cut_to_the_checkpoints_of_its_rule(kind: str) -> None:
    whole, values = make_risk(kind), make_sample(9, members=3, seed=2).log_confidence
    cut = ag.AgreeStop(0.9, (4, 6), 2, risk=whole).risk
    for index, column in enumerate((1, 2)):
        assert_same_reading(
            reading_at(cut, index, values[:, column], 2),
            reading_at(whole, column, values[:, column], 2),
        )
    with pytest.raises(ag.InputError, match="times lacks the rule's checkpoint 3"):
        ag.AgreeStop(0.9, (2, 3), 2, risk=whole)


@every_kind
def test_evidence_has_the_same_bits_for_one_input_and_many_and_in_any_order_of_members(
    kind: str,
) -> None:
    risk, values = make_risk(kind), make_sample(30, members=3, seed=2).log_confidence[:, 1]
    whole = reading_at(risk, 1, values, 2)
    assert whole.values.shape == (30, 4) and whole.risk.shape == (30,)
    rows = [reading_at(risk, 1, values[row : row + 1], 2) for row in range(30)]
    assert_same_reading(
        whole,
        Reading(
            np.concatenate([row.values for row in rows]), np.concatenate([row.risk for row in rows])
        ),
    )
    assert_same_reading(whole, reading_at(risk, 1, np.ascontiguousarray(values[:, ::-1]), 2))


def test_a_learned_risk_tells_misses_from_hits() -> None:
    tuning, fresh = (make_sample(400, members=3, seed=seed) for seed in (1, 2))
    risk = ag.LearnedRisk.fit(*tuning, max_set_size=1)
    log_risk, missed = [], []
    for index in range(3):
        evidence = reading_at(risk, index, fresh.log_confidence[:, index], 1)
        log_risk.append(evidence.risk)
        missed.append(evidence.values.argmax(axis=1) != fresh.labels)
    estimate, truth = np.exp(np.concatenate(log_risk)), np.concatenate(missed)
    assert estimate[truth].mean() > estimate[~truth].mean() + 0.1
    assert estimate.mean() == pytest.approx(truth.mean(), abs=0.05)


def test_a_learned_risk_is_for_one_size_of_sets() -> None:
    risk = ag.LearnedRisk.fit(*make_sample(120, members=3), max_set_size=2)
    with pytest.raises(ag.InputError, match="max_set_size is 1"):
        ag.AgreeStop(0.9, TIMES, 1, risk=risk)
    with pytest.raises(ag.InputError, match="learned for sets of 2 classes"):
        ag.AgreeStop(0.9, TIMES, 1, risk=ag.ShapedRisk.per_time(risk, TIMES))


@pytest.mark.parametrize(("right", "state"), [(True, "never"), (False, "always")])
def test_a_risk_cannot_be_learned_without_both_hits_and_misses(right: bool, state: str) -> None:
    values: Floats = np.log(np.tile([0.9, 0.06, 0.04], (6, 2, 1, 1)))
    with pytest.raises(ag.InputError, match=f"{state} miss the label"):
        ag.LearnedRisk.fit(values, np.full(6, 0 if right else 2), max_set_size=1)


def test_a_shape_over_time_tolerates_risk_in_proportion_to_the_time_waited() -> None:
    base, values = ag.TopMass(), make_sample(10).log_confidence
    shaped = ag.ShapedRisk.per_time(base, TIMES, power=2.0)
    for index, time in enumerate(TIMES):
        plain, found = (
            reading_at(base, index, values[:, index], 1),
            reading_at(shaped, index, values[:, index], 1),
        )
        assert found.values == pytest.approx(plain.values - 2 * math.log(time / 6))
        assert found.risk == pytest.approx(plain.risk - 2 * math.log(time / 6))


@pytest.mark.parametrize("pooling", [ag.MergePValues(r=1), ag.MajorityVote(), "mean"])
def test_risks_pool_confidences_only(pooling: object) -> None:
    with pytest.raises(ag.InputError, match="scores and risks pool confidences"):
        ag.TopMass(pooling=pooling)  # type: ignore[arg-type]
    with pytest.raises(ag.InputError, match="scores and risks pool confidences"):
        ag.TopMass.fit(*make_sample(20), pooling=pooling)  # type: ignore[arg-type]


def test_what_is_no_risk_is_refused() -> None:
    with pytest.raises(ag.InputError, match="give a risk such as TopMass"):
        ag.AgreeStop(0.9, TIMES, 1, risk="top mass")  # type: ignore[arg-type]


@pytest.mark.parametrize("offset", (np.nan, np.inf, 1e12, -1e12))
def test_offsets_that_no_risk_can_be_shaped_with_are_refused(offset: float) -> None:
    with pytest.raises(ag.InputError, match="nan, inf or a number that is too large"):
        ag.ShapedRisk(ag.TopMass(), np.array([0.3, offset]))


def test_a_fixed_time_stops_all_inputs_at_the_earliest_time_that_is_good_enough() -> None:
    sample = make_sample(400, checkpoints=6, members=2, classes=4)
    times = tuple(range(1, 7))
    rule = ag.AgreeStop(0.8, times, 2, fill=True, risk=ag.FixedTime())
    calibrated = rule.calibrate(sample.log_confidence[:200], sample.labels[:200])
    stops = np.unique(calibrated.decide(sample.log_confidence[200:]).stop_index)
    assert len(stops) == 1
    pooled = (
        ag.MergeConfidence(r=1)
        .pool(sample.log_confidence[:200].reshape(-1, 2, 4))
        .reshape(200, 6, 4)
    )
    best = np.argsort(-pooled, axis=2, kind="stable")[:, :, :2]
    misses = (best != sample.labels[:200, None, None]).all(axis=2)
    allowed = int(201 * 0.2)
    # The rule may stop at t if fewer than k = ⌊(n+1)α⌋ examples miss at t or at a later checkpoint.
    fails = np.array([np.count_nonzero(misses[:, t:].any(axis=1)) for t in range(6)])
    assert stops[0] == next(t for t in range(6) if fails[t] < allowed)
