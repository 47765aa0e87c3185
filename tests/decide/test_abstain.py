"""Inputs that are not answered: W at every threshold by definition, bags, figures, monitors, files,
and what is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agreestop as ag
from agreestop.common import Floats
from tests.decide.strategies import (
    RiskTable,
    TableRisk,
    assert_same_decisions,
    at_threshold,
    between,
    breaking_points,
    calibrate_quietly,
    risk_tables,
    value_of_each,
)

Ending = tuple[int, set[int]]


def ends(
    mass: Floats, risk: Floats, threshold: float, max_set_size: int, ceilings: Floats
) -> Ending:
    """Where one input ends, and what it answers, in the words of the definition; an empty set: it
    abstains, or is given up.
    """
    last = len(risk) - 1
    for index, (masses, log_risk) in enumerate(zip(mass.tolist(), risk.tolist(), strict=True)):
        ranked = sorted(range(len(masses)), key=lambda label: -masses[label])
        if log_risk < threshold:
            return index, {ranked[0]} | {
                label for label in ranked[:max_set_size] if masses[label] >= threshold
            }
        if index == last or log_risk > ceilings[index]:
            return index, set()
    raise AssertionError


def rule_of(table: RiskTable, ceilings: Floats, target: str = "1/2") -> ag.AgreeStop:
    give_up = None if np.isinf(ceilings).all() else ag.GiveUp(None, ceilings, table.times)
    return ag.AgreeStop(
        target, table.times, table.max_set_size, risk=TableRisk(), at_end="abstain", give_up=give_up
    )


@st.composite
def tables(draw: st.DrawFn, most_rows: int = 4) -> tuple[RiskTable, Floats]:
    """A table of risks, and the ceilings above which an input is given up; ∞: never."""
    table = draw(risk_tables(most_rows))
    values = st.sampled_from([-6.0, -4.0, -2.5, -1.0, math.inf])
    return table, np.array([draw(values) for _ in table.times])


def is_wrong(ending: Ending, label: int) -> bool:
    return bool(ending[1]) and label not in ending[1]


def points_of(*values: Floats) -> Sequence[float]:
    points = breaking_points(np.concatenate([one.ravel() for one in values]))
    return (-math.inf, *sorted([*points, *between(points)]), math.inf)


@given(drawn=tables())
@settings(max_examples=200)
def test_every_threshold_decides_as_defined_and_w_is_where_it_first_fails(
    drawn: tuple[RiskTable, Floats],
) -> None:
    table, ceilings = drawn
    rule = rule_of(table, ceilings)
    W = value_of_each(rule, table.log_confidence, table.labels)
    calibrated = calibrate_quietly(rule, table.log_confidence, table.labels)
    wrong = {}
    for threshold in points_of(table.mass, table.risk):
        decisions = at_threshold(calibrated, threshold).decide(table.log_confidence)
        for row, label in enumerate(table.labels.tolist()):
            ending = ends(table.mass[row], table.risk[row], threshold, table.max_set_size, ceilings)
            assert (
                int(decisions.stop_index[row]),
                set(np.flatnonzero(decisions.sets[row]).tolist()),
            ) == ending
            assert decisions.answered[row] == bool(ending[1])
            wrong[row, threshold] = is_wrong(ending, label)
    for (row, threshold), missed in wrong.items():
        assert not (missed and threshold <= W[row]), "a miss at λ implies W < λ"
    for row, value in enumerate(W.tolist()):
        later = [
            missed for (one, threshold), missed in wrong.items() if one == row and threshold > value
        ]
        assert value == math.inf or later[0], "just above W it fails"


@given(drawn=tables(most_rows=6), target=st.sampled_from(["1/2", "2/3", "3/4"]))
@settings(max_examples=50)
def test_no_bag_is_answered_wrongly_too_often(drawn: tuple[RiskTable, Floats], target: str) -> None:
    """Each row in turn is the new one."""
    table, ceilings = drawn
    n = len(table.labels)
    if n < 2:
        return
    wrong = 0
    for new in range(n):
        others = np.arange(n) != new
        calibrated = calibrate_quietly(
            rule_of(table, ceilings, target), table.log_confidence[others], table.labels[others]
        )
        decision = calibrated.decide(table.log_confidence[new : new + 1])[0]
        wrong += decision.answered and int(table.labels[new]) not in decision.classes
    assert wrong <= n * (1 - Fraction(target))


def hard(n: int, seed: int) -> ag.Scores:
    """Half of the inputs never show their class."""
    scores = ag.simulate_scores(n, steps=12, K=2, C=4, seed=seed, pace=4.0)
    rng = np.random.default_rng(seed)
    assert scores.labels is not None
    labels = np.where(rng.random(n) < 0.4, rng.integers(0, 4, n), scores.labels)
    return ag.Scores(scores.log_confidence, labels, scores.times)


TIMES = range(1, 13)
CALIBRATION, TEST = hard(400, 1), hard(400, 2)


def test_abstaining_stops_what_must_run_to_the_end_with_answers() -> None:
    """The control: with 40 % of noise, answers at the end must hold many classes; the wrong ones
    are as rare as promised.
    """
    abstaining, answering = (
        calibrate_quietly(ag.AgreeStop(0.9, TIMES, 1, at_end=at_end), CALIBRATION)
        for at_end in ("abstain", "answer")
    )
    results = [ag.evaluate(rule.decide(TEST), TEST) for rule in (abstaining, answering)]
    assert results[0].wrong is not None and results[0].answered is not None
    assert 0.02 < results[0].wrong < 0.16 and 0.2 < results[0].answered < 0.9
    assert results[0].kept == pytest.approx(1 - results[0].wrong)
    assert results[0].coverage == pytest.approx(results[0].answered - results[0].wrong)
    assert results[1].kept == results[1].coverage
    assert (
        results[1].answered is not None and results[1].answered >= 1 and results[1].set_size > 1.5
    )
    assert results[0].answered.low < results[0].answered < results[0].answered.high
    assert "answered" in str(results[0]) and "wrong" in str(results[0])
    assert "not answered" in abstaining.guarantee and "not answered" not in answering.guarantee


def test_files_streams_and_monitors(tmp_path: Path) -> None:
    rule = ag.AgreeStop(0.9, TIMES, 1, at_end="abstain").calibrate(CALIBRATION)
    decisions = rule.decide(TEST)
    rule.save(tmp_path / "rule")
    assert_same_decisions(ag.load_rule(tmp_path / "rule").decide(TEST), decisions)
    row = int(np.flatnonzero(~decisions.answered)[0])
    session, found = rule.stream(), None
    for values in TEST.log_confidence[row]:
        found = session.push(values)
    assert found is not None and found.classes == () and not found.answered
    assert found.index == len(TIMES) - 1 == decisions.stop_index[row]
    monitor = ag.DriftMonitor(rule)
    assert TEST.labels is not None
    for one, label in zip(decisions, TEST.labels.tolist(), strict=True):
        monitor.update(one, label)
    assert not monitor.alarms, "an abstention is no miss"
    for one, label in zip(rule.decide(hard(400, 3)), hard(400, 3).labels.tolist(), strict=True):  # type: ignore[union-attr]
        monitor.update(ag.Decision(one.time, one.index, one.classes), label)
    assert [alarm.kind for alarm in monitor.alarms] == ["misses"], "the control: empty answers are"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"at_end": "perhaps"}, "at_end is 'perhaps'"),
        ({"at_end": "abstain", "accumulated": True, "delta": 0.1}, "at_end"),
    ],
)
def test_what_has_no_proof_is_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ag.InputError, match=match):
        ag.AgreeStop(0.9, TIMES, 1, **options)


PREMATURE = 0.1


def too_early(give_up: ag.GiveUp, scores: ag.Scores) -> float:
    """The share that is given up before the end by a rule that answers nothing, though its last
    answer would be right.
    """
    rule = calibrate_quietly(
        ag.AgreeStop("0.999", TIMES, 1, at_end="abstain", give_up=give_up), CALIBRATION
    )
    assert rule.thresholds[0] == -math.inf
    early = rule.decide(scores).stop_index < len(TIMES) - 1
    best = scores.log_confidence[:, -1].astype(float)
    right = np.log(np.exp(best).mean(axis=1)).argmax(axis=-1) == scores.labels
    return float((early & right).mean())


def test_few_inputs_are_given_up_too_early() -> None:
    """Over draws of the tuning rows. The control: ceilings that are a little lower break the
    promise.
    """
    pool = hard(6000, 7)
    shares, lower = [], []
    for draw in range(40):
        rows = np.random.default_rng(draw).permutation(6000)
        give_up = ag.GiveUp.fit(pool.rows(rows[:150]), share=PREMATURE, max_set_size=1, seed=draw)
        shares.append(too_early(give_up, pool.rows(rows[150:1150])))
        lower.append(
            too_early(replace(give_up, ceilings=give_up.ceilings - 0.3), pool.rows(rows[150:1150]))
        )
    error = 3 * np.std(shares) / np.sqrt(len(shares))
    assert PREMATURE / 3 < np.mean(shares) <= PREMATURE + error
    assert np.mean(lower) > PREMATURE + error


def noise(n: int, checkpoints: int, seed: int) -> tuple[ag.Scores, Floats]:
    """Scores that say nothing about the label, and their log-risk (n, checkpoints)."""
    rng = np.random.default_rng(seed)
    values = ag.log_confidence(rng.normal(size=(n, checkpoints, 1, 2)))
    return ag.Scores(values, rng.integers(2, size=n), tuple(range(1, checkpoints + 1))), values[
        :, :, 0
    ].min(axis=-1)


def test_rows_that_fit_hope_have_no_part_in_the_promise_about_giving_up() -> None:
    """Many curves on 20 rows of noise fit them too well: a line that counted these rows would break
    the promise.
    """
    shares = []
    for seed in range(40):
        scores, risk = noise(340, 80, seed)
        give_up = ag.GiveUp.fit(scores.rows(slice(0, 40)), share=0.25, max_set_size=1, seed=seed)
        right = scores.log_confidence[:, -1, 0].argmax(axis=-1) == scores.labels
        shares.append((right & ~give_up.running(risk)[:, -1])[40:].mean())
    assert 0.15 < np.mean(shares) < 0.25 + 2 * np.std(shares) / np.sqrt(len(shares))


def test_ceilings_lie_in_gaps_between_the_risks_of_tuning() -> None:
    scores, risk = noise(60, 6, 0)
    ceilings = ag.GiveUp.fit(scores, share=0.2, max_set_size=1).ceilings
    assert np.isfinite(ceilings[:-1]).any() and np.abs(risk - ceilings)[:, :-1].min() > 1e-9


def test_a_miss_counts_where_rounding_decides_whether_an_input_is_given_up() -> None:
    """The first risk is a hair above the ceiling; in another run the input may go on, to a wrong
    answer.
    """
    rng = np.random.default_rng(0)
    mass, risk = np.full((60, 3, 2), -9.0), -2 - rng.random((60, 3))
    mass[:, 0, 1], mass[:, 1:, 0], risk[:, 0] = -0.1, -0.1, -1 + 1e-9
    table = RiskTable(mass, risk, np.ones(60, dtype=int), 1)
    rule = calibrate_quietly(
        rule_of(table, np.array([-1.0, np.inf, np.inf])), table.log_confidence, table.labels
    )
    assert rule.kth_values is not None and np.isinf(rule.kth_values).all()
    assert (rule.thresholds < -2).all()


def test_giving_up_saves_time_and_changes_no_answer(tmp_path: Path) -> None:
    give_up = ag.GiveUp.fit(hard(600, 5), share=0.2, max_set_size=1)
    rule = ag.AgreeStop(0.9, TIMES, 1, at_end="abstain", give_up=give_up).calibrate(CALIBRATION)
    decisions = rule.decide(TEST)
    early = ~decisions.answered & (decisions.stop_index < len(TIMES) - 1)
    assert early.mean() > 0.1 and not decisions.sets[early].any()
    rule.save(tmp_path / "rule")
    assert_same_decisions(ag.load_rule(tmp_path / "rule").decide(TEST), decisions)
    for row in np.flatnonzero(early)[:5]:
        session, found = rule.stream(), None
        for values in TEST.log_confidence[row]:
            found = session.push(values)
            if found is not None:
                break
        assert found is not None and (found.index, found.answered) == (
            decisions.stop_index[row],
            False,
        )
    splits = ag.repeat_splits(rule.rule, TEST, n_calibration=100, repeats=20)
    assert splits.coverage < splits.kept and splits.kept.high > 0.9
    assert splits.over_pools.kept == pytest.approx(float(splits.kept))
    groups = np.arange(400) % 2
    grouped = rule.rule.calibrate(CALIBRATION, groups=groups, people=np.arange(400) % 40).decide(
        TEST, groups=groups
    )
    assert (~grouped.answered & (grouped.stop_index < len(TIMES) - 1)).any()


def test_a_gate_may_be_given_up_too() -> None:
    gate = ag.Gate.fit(hard(600, 6), target=0.9, max_set_size=1, blocks=2)
    give_up = ag.GiveUp.fit(hard(600, 5), share=0.2, max_set_size=1, risk=gate)
    rule = ag.AgreeStop(0.9, TIMES, 1, gate=gate, at_end="abstain", give_up=give_up)
    decisions = calibrate_quietly(rule, hard(2000, 8)).decide(TEST)
    assert decisions.block is not None and (decisions.block >= 0).all()
    result = ag.evaluate(decisions, TEST)
    assert all(one.wrong is not None and one.wrong.low <= 0.1 for one in result.by_block or ())
    early = ~decisions.answered & (decisions.stop_index < len(TIMES) - 1)
    assert early.any()


def test_an_engine_stops_computing_what_is_given_up() -> None:
    torch = pytest.importorskip("torch")

    class Adds(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return x

    def step(module: Any, x: Any, state: Any) -> Any:
        state = x if state is None else state + x
        return state, state

    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 900)
    signal = np.where(rng.random(900) < 0.5, 0.8, 0.0)
    x = rng.normal(size=(900, 10, 3)) + signal[:, None, None] * np.eye(3)[labels][:, None]
    engine = ag.adapters.from_module([Adds()], step=step, output="logits")
    scores = engine.score(x.astype(np.float32), labels)
    give_up = ag.GiveUp.fit(scores.rows(slice(0, 300)), share=0.3, max_set_size=1)
    rule = ag.AgreeStop(0.8, range(1, 11), 1, at_end="abstain", give_up=give_up).calibrate(
        scores.rows(slice(300, 600))
    )
    run = engine.decide(rule, x[600:].astype(np.float32))
    assert_same_decisions(run.decisions, rule.decide(scores.rows(slice(600, 900))))
    early = ~run.decisions.answered & (run.decisions.stop_index < 9)
    assert early.sum() > 20
    soon = early & (run.decisions.stop_time <= 7)  # engines compute a few steps at a time
    assert soon.sum() > 5 and (run.computed[soon] < 10).all()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"at_end": "answer"}, "give_up ends inputs"),
        ({"risk": ag.ShapedRisk.per_time(ag.TopMass(), TIMES)}, "give_up uses its risk"),
        ({"target": None, "loss": 1 - np.eye(4), "max_loss": 0.1}, "give_up ends inputs"),
        ({"give_up": 0.05}, "give_up is 0.05"),
    ],
)
def test_giving_up_without_a_proof_is_refused(options: dict[str, Any], match: str) -> None:
    known = {
        "target": 0.9,
        "at_end": "abstain",
        "give_up": ag.GiveUp(ag.TopMass(), np.zeros(12), tuple(TIMES)),
    }
    with pytest.raises(ag.InputError, match=match):
        ag.AgreeStop(checkpoints=TIMES, max_set_size=1, **{**known, **options})


def test_a_give_up_line_needs_rows_of_its_own() -> None:
    with pytest.raises(ag.InputError, match="needs at least 38"):
        ag.GiveUp.fit(hard(30, 1), share=0.05, max_set_size=1)
    with pytest.raises(ag.InputError, match="share is"):
        ag.GiveUp.fit(CALIBRATION, share="much", max_set_size=1)
    with pytest.raises(ag.InputError, match=r"share is 5: it must lie .* for example 0\.05"):
        ag.GiveUp.fit(CALIBRATION, share=5, max_set_size=1)
    give_up = ag.GiveUp.fit(CALIBRATION, max_set_size=1)
    with pytest.raises(ag.InputError, match="tuning"):
        ag.AgreeStop(0.9, TIMES, 1, at_end="abstain", give_up=give_up).calibrate(CALIBRATION)
    with pytest.raises(ag.InputError, match="give_up"):
        ag.tune(ag.AgreeStop(0.9, TIMES, 1, at_end="abstain", give_up=give_up), TEST)
