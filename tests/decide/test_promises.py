"""Promises by block, by group, under shift, about a loss and without labels: identities, streams,
files, words, and wrong input.

`test_promises_thresholds` compares the thresholds with their definitions.
"""

from __future__ import annotations

import math
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from agreestop.common import Floats
from tests.decide.strategies import (
    Estimate,
    Sample,
    assert_one_sentence,
    assert_same_decisions,
    at_threshold,
    best_classes,
    decisions_of_an_engine,
    make_sample,
    reading_of,
    with_thresholds,
)

TIMES = (1, 2, 3, 4)
TUNING = make_sample(200, 4, 2, 4, seed=1, tied=False)
KNOWN = make_sample(150, 4, 2, 4, seed=2)
NEW = make_sample(80, 4, 2, 4, seed=3)
SITES = np.array(["north", "south", "sea"])[np.arange(150) % 3]
NEW_SITES = np.array(["sea", "north", "moon", "south"])[np.arange(80) % 4]
RISK = ag.TopMass.fit(*TUNING, times=TIMES)
OPEN = ag.Gate(RISK, np.zeros(4), TIMES, None, math.inf, (4,))
GATE = ag.Gate(RISK, np.array([-1.5, -1.6, -1.7, -1.8]), TIMES, None, 0.3, (2, 4))
POOLED = ag.MergeConfidence()
MISS = 1.0 - np.eye(4)


def agree(**settings: Any) -> ag.AgreeStop:
    return ag.AgreeStop(
        **{"target": 0.8, "checkpoints": TIMES, "max_set_size": 2, "risk": RISK, **settings}
    )


def gated(gate: ag.Gate, **settings: Any) -> ag.AgreeStop:
    return ag.AgreeStop(0.8, TIMES, 2, gate=gate, **settings)


def stop_aware(**settings: Any) -> ag.SpikeCP:
    return ag.SpikeCP(0.8, TIMES, 2, POOLED, "stop-aware", **settings)


def decide(rule: ag.AgreeStop | ag.SpikeCP, **conditions: Any) -> ag.Decisions:
    return rule.calibrate(*KNOWN, **conditions).decide(NEW.log_confidence)


def test_the_sample_stops_at_several_times() -> None:
    for rule in (agree(), stop_aware()):
        assert (np.bincount(decide(rule).stop_index) > 0).sum() > 2


# --------------------------------------------------------------------------------------------------
# identities


@pytest.mark.filterwarnings(
    "ignore::agreestop.CalibrationWarning"
)  # no input is in the block "never ready"
@pytest.mark.parametrize(
    "conditions", [{}, {"class_conditional": True}], ids=["marginal", "by class"]
)
def test_a_gate_that_is_open_from_the_first_look_is_marginal(conditions: dict[str, Any]) -> None:
    plain, opened = agree(**conditions), gated(OPEN, **conditions)
    assert_same_decisions(decide(opened), decide(plain))
    assert opened.calibrate(*KNOWN).thresholds[0] == plain.calibrate(*KNOWN).thresholds[0]
    assert_same_decisions(
        decide(stop_aware(gate=OPEN, **conditions)), decide(stop_aware(**conditions))
    )


@pytest.mark.parametrize("weight", [1.0, 0.1, 3e-7, 1e200])
def test_equal_weights_are_the_plain_rule(weight: float) -> None:
    for rule in (agree(), agree(target="2/3"), stop_aware()):
        calibrated = rule.calibrate(*KNOWN, weights=np.full(150, weight), max_weight=weight)
        assert calibrated.thresholds == rule.calibrate(*KNOWN).thresholds
        assert calibrated.effective_size == pytest.approx(150)


@pytest.mark.parametrize(
    "options", [{}, {"fill": True}, {"trim": 0.4}, {"class_conditional": True}], ids=str
)
def test_a_loss_of_one_for_every_miss_is_agreestop(options: dict[str, Any]) -> None:
    for gate in (None, GATE):
        shared = {**options, "risk": RISK} if gate is None else {**options, "gate": gate}
        plain = ag.AgreeStop("0.8", TIMES, 2, **shared)
        loss = ag.AgreeStop(None, TIMES, 2, loss=MISS, max_loss="0.2", **shared)
        scaled = ag.AgreeStop(None, TIMES, 2, loss=0.7 * MISS, max_loss="0.14", **shared)
        expected = plain.calibrate(*KNOWN).thresholds
        for rule in (loss, scaled):
            np.testing.assert_array_equal(rule.calibrate(*KNOWN).thresholds, expected)
            assert rule.examples_needed() == plain.examples_needed()


def test_one_group_is_the_plain_rule() -> None:
    for rule in (agree(), gated(GATE), stop_aware(), stop_aware(gate=GATE)):
        plain = rule.calibrate(*KNOWN)
        for groups, new in (
            (["all"] * 150, ["all"] * 80),
            (np.ones((150, 1), bool), np.ones((80, 1), bool)),
        ):
            grouped = rule.calibrate(*KNOWN, groups=groups)
            assert_same_decisions(
                grouped.decide(NEW.log_confidence, groups=new), plain.decide(NEW.log_confidence)
            )
            np.testing.assert_array_equal(np.ravel(grouped.thresholds), plain.thresholds)


def test_trim_goes_from_kept_to_filled() -> None:
    assert_same_decisions(decide(agree(trim=1.0)), decide(agree(fill=False)))
    assert_same_decisions(decide(agree(trim=0.0)), decide(agree(fill=True)))
    thresholds = [
        agree(max_set_size=3, trim=trim).calibrate(*KNOWN).thresholds[0] for trim in (1.0, 0.6, 0.0)
    ]
    assert thresholds[0] < thresholds[1] < thresholds[2]


# --------------------------------------------------------------------------------------------------
# groups


@pytest.mark.parametrize(
    "rule", [agree(), gated(GATE), stop_aware()], ids=["agree", "gate", "stop-aware"]
)
def test_each_group_has_the_rule_of_its_own_examples(rule: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ag.CalibrationWarning)
        grouped = rule.calibrate(*KNOWN, groups=SITES)
        assert grouped.group_names == ("north", "sea", "south")
        decisions = grouped.decide(NEW.log_confidence, groups=NEW_SITES)
        for index, site in enumerate(grouped.group_names):
            own = rule.calibrate(*KNOWN.rows(np.flatnonzero(site == SITES)))
            np.testing.assert_array_equal(
                grouped.thresholds[index], own.thresholds if rule.gate else own.thresholds[0]
            )
            rows = np.flatnonzero(site == NEW_SITES)
            expected = own.decide(NEW.log_confidence[rows])
            np.testing.assert_array_equal(decisions.stop_index[rows], expected.stop_index)
            np.testing.assert_array_equal(decisions.sets[rows], expected.sets)
    moon = NEW_SITES == "moon"
    assert decisions.sets[moon].all() and (decisions.stop_index[moon] == 3).all()
    assert any(
        "20 of the 80 inputs are of no group" in note and "all classes" in note
        for note in decisions.notes
    )
    assert_same_decisions(
        grouped.decide(NEW.log_confidence), grouped.decide(NEW.log_confidence, groups=["moon"] * 80)
    )
    assert grouped.guarantee.startswith("for each group, ")
    by_group = ag.evaluate(decisions, NEW.labels).by_group
    assert by_group is not None and [(group.name, group.n) for group in by_group] == [
        ("north", 20),
        ("sea", 20),
        ("south", 20),
    ]


def test_groups_are_given_as_they_were_in_calibration() -> None:
    """A column, or a number, says nothing about groups that have names; text files may hold
    numbers.
    """
    named = agree().calibrate(*KNOWN, groups=SITES)
    with pytest.raises(ag.InputError, match=r"whole numbers, but .*'north'"):
        named.decide(NEW.log_confidence, groups=np.arange(80) % 3)
    with pytest.raises(ag.InputError, match=r"columns, but .*'north'"):
        named.decide(NEW.log_confidence, groups=np.ones((80, 3), dtype=bool))
    with pytest.raises(ag.InputError, match="whole numbers, but"):
        named.stream(group=1)
    numbered = agree().calibrate(*KNOWN, groups=np.arange(150) % 3)
    numbers = np.arange(80) % 3
    for other in (numbers.astype(str), numbers[:, None] == np.arange(3)):
        assert_same_decisions(
            numbered.decide(NEW.log_confidence, groups=numbers),
            numbered.decide(NEW.log_confidence, groups=other),
        )
    odd = agree().calibrate(*KNOWN, groups=np.arange(150) % 3 - 1)
    assert odd.group_names == ("-1", "0", "1")
    with pytest.raises(ag.InputError, match="columns, but"):
        odd.decide(NEW.log_confidence, groups=np.ones((80, 3), dtype=bool))


def test_a_promise_with_delta_says_that_it_is_for_each_group_by_itself() -> None:
    alone = "The probability 0.9 is for each group by itself, not for all groups at once."
    assert agree(delta="0.1").calibrate(*KNOWN, groups=SITES).guarantee.endswith(alone)
    assert (
        "by itself"
        not in agree(delta="0.1").calibrate(*KNOWN).guarantee
        + agree().calibrate(*KNOWN, groups=SITES).guarantee
    )


@pytest.mark.parametrize("rule", [agree(), stop_aware()], ids=["agree", "stop-aware"])
def test_overlapping_groups_take_the_safest_of_their_thresholds(rule: Any) -> None:
    members = np.stack(
        [np.arange(150) % 2 == 0, np.arange(150) % 3 == 0, np.ones(150, dtype=bool)], axis=1
    )
    calibrated = rule.calibrate(*KNOWN, groups=members)
    limits = calibrated.thresholds
    assert len(set(limits.tolist())) > 1
    pick, safest = (min, -math.inf) if isinstance(rule, ag.AgreeStop) else (max, math.inf)
    for mask in np.ndindex(2, 2, 2):
        groups = np.tile(np.array(mask, dtype=bool), (80, 1))
        limit = pick((limits[g] for g in range(3) if mask[g]), default=safest)
        expected = at_threshold(rule.calibrate(*KNOWN), limit)
        assert_same_decisions(
            calibrated.decide(NEW.log_confidence, groups=groups),
            expected.decide(NEW.log_confidence),
        )


def test_groups_may_be_numbers_and_keep_their_names() -> None:
    calibrated = agree().calibrate(*KNOWN, groups=np.arange(150) % 2 + 7)
    assert calibrated.group_names == ("7", "8")
    by_number = calibrated.decide(NEW.log_confidence, groups=np.full(80, 8))
    assert_same_decisions(by_number, calibrated.decide(NEW.log_confidence, groups=["8"] * 80))
    with pytest.warns(ag.CalibrationWarning, match="at least 4 .*group b has 3"):
        agree().calibrate(*KNOWN, groups=["a"] * 147 + ["b"] * 3)


# --------------------------------------------------------------------------------------------------
# shift and final labels


def test_weights_say_how_much_they_are_worth() -> None:
    weights = np.where(np.arange(150) < 30, 4.0, 0.0)
    calibrated = agree().calibrate(*KNOWN, weights=weights, max_weight=4.0)
    assert calibrated.effective_size == pytest.approx(30)
    assert calibrated.kth_values == agree().calibrate(*KNOWN.rows(slice(0, 30))).kth_values
    assert "estimated weights carry no promise" in calibrated.guarantee
    assert calibrated.decide(NEW.log_confidence).draw is None


@pytest.mark.parametrize(("count", "short"), [(6, False), (5, True)])
def test_weights_that_are_too_small_are_said(count: int, short: bool) -> None:
    """At 0.85 the weights must sum to 17/3 times the largest: six examples of full weight do, and
    five do not.
    """
    rule = agree(target=0.85)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        calibrated = rule.calibrate(
            *KNOWN.rows(slice(0, 6)),
            weights=np.where(np.arange(6) < count, 2.0, 0.0),
            max_weight=2.0,
        )
        half = rule.calibrate(*KNOWN.rows(slice(0, 12)), weights=np.full(12, 0.48), max_weight=1.0)
    assert (
        ("5.667 times max_weight" in calibrated.shortage)
        == short
        == (calibrated.thresholds[0] == -math.inf)
        == calibrated.never_stops
    )
    assert not half.shortage and half.thresholds[0] > -math.inf, (
        "12 times 0.48 is above 5.667 and below 6"
    )
    assert [str(warning.message) for warning in caught] == [calibrated.shortage] * short


def test_weights_count_in_each_group() -> None:
    weights = np.where(SITES == "sea", 0.05, 1.0)
    with pytest.warns(ag.CalibrationWarning, match="max_weight.*group sea has 2.5"):
        calibrated = agree().calibrate(*KNOWN, groups=SITES, weights=weights, max_weight=1.0)
    assert (calibrated.thresholds == -math.inf).tolist() == [False, True, False]


@pytest.mark.parametrize(
    "rule", [agree(), agree(max_set_size=1), gated(GATE), stop_aware(), stop_aware(gate=GATE)]
)
def test_final_labels_are_the_best_classes_at_the_end(rule: Any) -> None:
    """The stops are those of a rule that is calibrated on these labels, unless the last answer
    holds more than the best class.
    """
    labels = best_classes(rule, KNOWN.log_confidence)[:, -1]
    calibrated = rule.calibrate(KNOWN.log_confidence, "final")
    assert (
        "the class that the ensemble itself answers best at the last checkpoint"
        in calibrated.guarantee
    )
    assert "true class" not in calibrated.guarantee
    decisions = calibrated.decide(NEW.log_confidence)
    assert decisions.draw is None
    assert_same_decisions(
        rule.calibrate(ag.Scores(KNOWN.log_confidence, KNOWN.labels, TIMES), "final").decide(
            NEW.log_confidence
        ),
        decisions,
    )
    final = best_classes(rule, NEW.log_confidence)[:, -1]
    late = np.flatnonzero(decisions.stop_index == 3)
    assert (
        decisions.sets[late, final[late]].all() and (decisions.set_size <= rule.max_set_size).all()
    )
    assert (labels != KNOWN.labels).any()


def test_an_input_of_no_group_answers_its_best_class_where_labels_are_final() -> None:
    decisions = (
        agree()
        .calibrate(KNOWN.log_confidence, "final", groups=SITES)
        .decide(NEW.log_confidence, groups=NEW_SITES)
    )
    moon = NEW_SITES == "moon"
    assert (decisions.stop_index[moon] == 3).all() and (decisions.set_size[moon] == 1).all()
    assert any("they answer their best class at the end" in note for note in decisions.notes)


def test_a_loss_about_final_labels_says_so() -> None:
    guarantee = (
        agree(target=None, loss=MISS, max_loss=0.2)
        .calibrate(KNOWN.log_confidence, "final")
        .guarantee
    )
    assert "in place of the class that the ensemble itself answers best" in guarantee


# --------------------------------------------------------------------------------------------------
# gates, streams and files


def test_decisions_know_their_block() -> None:
    rule = gated(GATE)
    decisions = decide(rule)
    risk = reading_of(rule, NEW.log_confidence).risk
    assert decisions.block is not None
    opens = [next((t for t in range(4) if row[t] < 0.3), None) for row in risk.tolist()]
    assert decisions.block.tolist() == [
        2 if t is None else 0 if TIMES[t] <= 2 else 1 for t in opens
    ]
    assert all(
        stop == 3 if t is None else stop >= t
        for stop, t in zip(decisions.stop_index.tolist(), opens, strict=True)
    )
    evaluation = ag.evaluate(decisions, NEW.labels)
    assert evaluation.by_block is not None
    assert [group.name for group in evaluation.by_block] == [
        "ready in (0, 2]",
        "ready in (2, 4]",
        "never ready",
    ]
    assert [group.n for group in evaluation.by_block] == np.bincount(decisions.block).tolist()
    hits = NEW.labels[:, None] == np.arange(4)
    assert [group.coverage for group in evaluation.by_block] == [
        (decisions.sets & hits).any(axis=1)[decisions.block == b].mean() for b in range(3)
    ]
    assert ag.evaluate(decide(agree()), NEW.labels).by_block is None


def test_evaluation_adds_accuracy_and_single_answers() -> None:
    for rule in (agree(), gated(GATE), stop_aware()):
        decisions = decide(rule)
        evaluation = ag.evaluate(decisions, NEW.labels)
        best = best_classes(rule, NEW.log_confidence)[np.arange(80), decisions.stop_index]
        assert evaluation.accuracy == (best == NEW.labels).mean()
        assert evaluation.singles == (decisions.set_size == 1).mean()


def test_evaluation_of_a_loss_shows_the_mean_cost() -> None:
    loss = np.abs(np.arange(4)[:, None] - np.arange(4)) / 3
    decisions = decide(agree(target=None, loss=loss, max_loss=0.1))
    costs = np.array(
        [
            min(loss[label, c] for c in one.classes)
            for one, label in zip(decisions, NEW.labels.tolist(), strict=True)
        ]
    )
    evaluation = ag.evaluate(decisions, NEW.labels)
    assert evaluation.cost is not None and evaluation.agreement is None
    assert float(evaluation.cost) == pytest.approx(costs.mean())
    assert evaluation.cost.se == pytest.approx(costs.std(ddof=1) / np.sqrt(80))
    assert 0 <= evaluation.cost.low < costs.mean() < evaluation.cost.high <= 1
    assert "cost=" in repr(evaluation) and "agreement" not in repr(evaluation)
    for group in evaluation.by_class:
        assert group.cost is not None and float(group.cost) == pytest.approx(
            costs[NEW.labels == group.key].mean()
        )
    assert ag.evaluate(decide(agree()), NEW.labels).cost is None


@pytest.mark.parametrize(
    "rule", [agree(), agree(target=None, loss=MISS, max_loss=0.2), gated(GATE), stop_aware()]
)
def test_evaluation_of_final_answers_shows_the_agreement(rule: Any) -> None:
    calibrated = rule.calibrate(KNOWN.log_confidence, "final")
    decisions = calibrated.decide(NEW.log_confidence)
    final = best_classes(rule, NEW.log_confidence)[:, -1]
    assert decisions.final_best is not None and decisions.final_best.tolist() == final.tolist()
    evaluation = ag.evaluate(decisions, NEW.labels)
    agreed = decisions.sets[np.arange(80), final]
    assert evaluation.agreement == agreed.mean() != evaluation.coverage
    assert evaluation.by_final_class is not None
    assert [(one.key, one.agreement) for one in evaluation.by_final_class] == [
        (c, agreed[final == c].mean()) for c in np.unique(final)
    ]
    if rule.target is None:  # a cost of 1 for each miss, of the final class
        assert evaluation.cost is not None and float(evaluation.cost) == pytest.approx(
            1 - agreed.mean()
        )


def test_what_engines_do_not_know_of_final_answers_is_said() -> None:
    rule = agree(target=None, loss=MISS, max_loss=0.2).calibrate(KNOWN.log_confidence, "final")
    decisions = decisions_of_an_engine(rule, 80)
    assert decisions.final_best is None and any(
        "the engine stopped before" in note for note in decisions.notes
    )
    evaluation = ag.evaluate(decisions, NEW.labels)
    # the cost would be that of the label
    assert evaluation.agreement is None and evaluation.cost is None
    assert not any(
        "the engine stopped before" in note
        for note in decisions_of_an_engine(agree().calibrate(*KNOWN), 80).notes
    )


@pytest.mark.parametrize("labels", [KNOWN.labels, "final"], ids=["true", "final"])
def test_answers_are_counted_by_the_time_they_came(labels: Any) -> None:
    rule = agree(target=0.6, accumulated=True, delta=0.3)
    decisions = rule.calibrate(KNOWN.log_confidence, labels).decide(NEW.log_confidence)
    evaluation = ag.evaluate(decisions, NEW.labels, confidence=0.8)
    hits = decisions.sets[np.arange(80), NEW.labels]
    assert len(evaluation.answered_by) > 1
    for group in evaluation.answered_by:
        came = decisions.stop_time <= group.key
        expected = Estimate.of_share(int(hits[came].sum()), int(came.sum()), 0.8)
        assert (group.n, group.coverage, group.coverage.low) == (came.sum(), expected, expected.low)
        assert (group.agreement is None) == (decisions.final_best is None)
        if decisions.final_best is not None:
            assert (
                group.agreement == decisions.sets[np.arange(80), decisions.final_best][came].mean()
            )


def test_a_promise_under_weights_is_about_the_shifted_inputs() -> None:
    guarantee = agree().calibrate(*KNOWN, weights=np.ones(150), max_weight=1.0).guarantee
    assert "exchangeable" not in guarantee and guarantee.count(". ") == 0
    assert guarantee.endswith(
        "has the given weights as its density against theirs; estimated weights carry no promise."
    )


def test_decisions_without_groups_show_their_note() -> None:
    decisions = agree().calibrate(*KNOWN, groups=SITES).decide(NEW.log_confidence)
    said = (
        "80 of the 80 inputs are of no group that calibration saw: they answer all classes at "
        "the end; give their groups if"
    )
    assert any(note.startswith(said) for note in decisions.notes)
    assert said in repr(decisions) and said in repr(ag.evaluate(decisions, NEW.labels))
    quiet = ag.AgreeStop(0.8, TIMES, 2).calibrate(*TUNING).decide(NEW.log_confidence)
    assert "notes" not in repr(quiet) and "notes" not in repr(ag.evaluate(quiet, NEW.labels))


def test_rules_are_printed_in_a_line() -> None:
    gate = ag.Gate.fit(*TUNING, times=TIMES, target=0.8, max_set_size=2, blocks=(2, 4))
    assert repr(gate) == f"Gate(base=TopMass, ends=(2, 4), slack={gate.slack:g})"
    assert "TunedRows(n=200)" in repr(RISK) and len(repr(gated(gate))) < 600
    assert (
        repr(agree().calibrate(*KNOWN))
        == "CalibratedRule(AgreeStop, target=0.8, n=150, members=2, classes=4)"
    )
    both = repr(gated(GATE).calibrate(*KNOWN, groups=np.arange(150) % 2))
    assert both.startswith(
        "CalibratedRule(AgreeStop, target=0.8, gate with 2 blocks, 2 groups, n=150"
    )
    assert ", max_loss=0.2, final answers, " in repr(
        agree(target=None, loss=MISS, max_loss=0.2).calibrate(KNOWN.log_confidence, "final")
    )
    looks = ag.AgreeStop(0.8, ag.Schedule([(1, 1), (4, 2)]), 2, class_conditional=True, delta=0.3)
    assert ", delta=0.3, class_conditional, schedule of 2 checkpoints, " in repr(
        looks.calibrate(ag.Scores(*KNOWN, TIMES))
    )


PROMISES: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "gate": (gated(GATE), {}, None),
    "gate, stop-aware": (stop_aware(gate=GATE), {}, None),
    "groups": (agree(), {"groups": SITES}, NEW_SITES),
    "groups, stop-aware": (stop_aware(), {"groups": SITES}, NEW_SITES),
    "groups that overlap": (
        agree(),
        {"groups": np.arange(300).reshape(150, 2) % 3 > 0},
        np.arange(160).reshape(80, 2) % 5 > 1,
    ),
    "groups and gate": (gated(GATE), {"groups": np.arange(150) % 2}, np.arange(80) % 3),
    "accumulated": (agree(target=0.6, accumulated=True, delta=0.3), {}, None),
    "accumulated, shaped": (agree(target=0.6, accumulated=True, delta=0.3, risk=GATE), {}, None),
    "weights": (agree(), {"weights": np.arange(150) / 150, "max_weight": 1.0}, None),
    "loss": (
        agree(
            target=None,
            loss=np.abs(np.arange(4)[:, None] - np.arange(4)) / 3,
            max_loss=0.1,
            trim=0.5,
        ),
        {},
        None,
    ),
    "final": (gated(GATE), {"labels": "final"}, None),
    "final, stop-aware": (stop_aware(), {"labels": "final"}, None),
}


def calibrated_for(name: str) -> ag.CalibratedRule:
    rule, conditions, _ = PROMISES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ag.CalibrationWarning)
        result: ag.CalibratedRule = rule.calibrate(
            KNOWN.log_confidence, **{"labels": KNOWN.labels, **conditions}
        )
    return result


@pytest.mark.parametrize("name", PROMISES)
def test_stream_equals_batch_and_files_keep_everything(name: str, tmp_path: Path) -> None:
    calibrated, groups = calibrated_for(name), PROMISES[name][2]
    decisions = calibrated.decide(NEW.log_confidence, groups=groups)
    assert len(np.unique(decisions.stop_index)) > 2
    calibrated.save(tmp_path / "rule")
    loaded = ag.load_rule(tmp_path / "rule")
    again = loaded.decide(NEW.log_confidence, groups=groups)
    assert_same_decisions(again, decisions)
    for part in ("best", "block", "groups", "first_risk"):
        np.testing.assert_equal(getattr(again, part), getattr(decisions, part))
    for part in (
        "guarantee",
        "shortage",
        "effective_size",
        "group_names",
        "never_stops",
        "examples_needed",
    ):
        assert getattr(loaded, part) == getattr(calibrated, part)
    for part in ("thresholds", "first_risks"):
        np.testing.assert_array_equal(getattr(loaded, part), getattr(calibrated, part))
    assert again.block_names == decisions.block_names and again.notes == decisions.notes
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "rule").read_bytes()
    for i, row in enumerate(NEW.log_confidence):
        session = loaded.stream(group=None if groups is None else groups[i])
        found = [
            decision
            for values in row[: decisions.stop_index[i] + 1]
            if (decision := session.push(values)) is not None
        ]
        assert found == [decisions[i]]
        assert (found[0].first_risk, found[0].block) == (
            decisions[i].first_risk,
            decisions[i].block,
        )


def test_the_first_risk_is_that_of_the_first_checkpoint() -> None:
    rules: dict[str, Any] = {"agree": agree(), "gate": gated(GATE), "stop-aware": stop_aware()}
    rules["simultaneous"] = ag.SpikeCP(0.8, TIMES, 2, POOLED, "simultaneous")
    for name, rule in rules.items():
        decisions = decide(rule)
        assert decisions.first_risk is not None and (decisions.stop_index > 0).any()
        evidence = rule.evidence(0, np.ascontiguousarray(NEW.log_confidence[:, 0]))
        expected = evidence.values.min(axis=1) if evidence.log_risk is None else evidence.log_risk
        np.testing.assert_array_equal(decisions.first_risk, expected, err_msg=name)
        np.testing.assert_array_equal(
            rule.calibrate(*KNOWN).first_risks,
            rule.evidence(0, np.ascontiguousarray(KNOWN.log_confidence[:, 0])).level,
        )


def test_rows_that_a_gate_was_fitted_on_are_refused_for_calibration() -> None:
    other = make_sample(90, 4, 2, 4, seed=9, tied=False)
    gate = ag.Gate.fit(*other, TIMES, target=0.8, max_set_size=2, blocks=2, risk=RISK)
    for rule in (gated(gate), stop_aware(gate=gate)):
        for reused in (other, TUNING):
            with pytest.raises(ag.InputError, match="were used for tuning"):
                rule.calibrate(*reused)


@pytest.mark.filterwarnings("ignore::agreestop.CalibrationWarning")
def test_a_gate_serves_rules_with_fewer_checkpoints() -> None:
    gate = ag.Gate.fit(*TUNING, TIMES, target=0.8, max_set_size=1, blocks=(1, 2), risk=RISK)
    assert gate.ends == (1, 2, 4)
    rule = ag.AgreeStop(0.8, (2, 4), 1, gate=gate)
    assert rule.gate is not None and rule.gate.blocks.tolist() == [1, 2]
    np.testing.assert_array_equal(rule.gate.offsets, gate.offsets[[1, 3]])
    assert rule.calibrate(*KNOWN, times=TIMES).thresholds[0] == -math.inf, (
        "no look is left in the first block"
    )


def test_a_gate_is_fitted_by_its_definition() -> None:
    """In each block the largest threshold with a share of misses of at most 0.95 α among those that
    stop in it.

    There are too few rows to choose another share.
    """
    sample = TUNING.rows(slice(0, 199))
    gate = ag.Gate.fit(*sample, TIMES, target=0.7, max_set_size=1, blocks=(2, 4))
    rule = ag.AgreeStop(0.7, TIMES, 1)
    reading = reading_of(rule, sample.log_confidence)
    risk = reading.risk
    misses = reading.values.argmax(axis=2) != sample.labels[:, None]

    def share(
        rows: np.ndarray[Any, Any], columns: list[int], threshold: float
    ) -> tuple[float, np.ndarray[Any, Any]]:
        below = risk[np.ix_(rows, np.array(columns))] < threshold
        stops = below.any(axis=1)
        at = np.array(columns)[below.argmax(axis=1)]
        return float(misses[rows, at][stops].mean()) if stops.any() else 0.0, rows[~stops]

    rows = np.arange(199)
    for columns in ([0, 1], [2, 3]):
        kappa = gate.offsets[columns[0]]
        assert (gate.offsets[columns] == kappa).all()
        found, rest = share(rows, columns, kappa)
        assert found <= 0.95 * 0.3 and len(rest) < len(rows)
        larger = np.unique(risk[np.ix_(rows, np.array(columns))].min(axis=1))
        gap = 0.03  # κ lies in a gap, a little below the largest
        assert all(
            share(rows, columns, value)[0] > 0.95 * 0.3 for value in larger if value > kappa + gap
        )
        rows = rest


# --------------------------------------------------------------------------------------------------
# wrong input


def refuse(match: str, call: Any) -> None:
    with pytest.raises(ag.InputError, match=match) as caught:
        call()
    assert_one_sentence(str(caught.value))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"gate": "open"}, "gate is 'open': give what Gate.fit returned"),
        ({"gate": GATE}, "uses the risk of the gate"),
        ({"trim": 1.5}, "trim is 1.5"),
        ({"trim": math.nan}, "trim is nan"),
        ({"trim": True}, "trim is True"),
        ({"target": None}, "target is None"),
        ({"loss": MISS, "max_loss": 0.1}, "give either a target, or target=None with loss"),
        ({"loss": MISS, "target": None}, "give either a target"),
        ({"max_loss": 0.1}, "give either a target"),
        ({"target": None, "loss": np.ones((4, 4)), "max_loss": 0.1}, "a cost for the right answer"),
        ({"target": None, "loss": MISS[:3], "max_loss": 0.1}, r"loss has shape \(3, 4\)"),
        ({"target": None, "loss": -MISS, "max_loss": 0.1}, "negative"),
        (
            {"target": None, "loss": np.where(MISS > 0, np.inf, 0.0), "max_loss": 0.1},
            "negative, infinite or missing",
        ),
        ({"target": None, "loss": 0 * MISS, "max_loss": 0.1}, "only zeros"),
        ({"target": None, "loss": MISS, "max_loss": 1}, "between 0 and the largest cost, 1"),
        ({"target": None, "loss": MISS, "max_loss": 0}, "between 0 and the largest cost"),
        ({"target": None, "loss": MISS, "max_loss": "some"}, "max_loss is 'some'"),
        ({"target": None, "loss": MISS, "max_loss": 0.1, "delta": 0.1}, "leave out delta"),
        (
            {"target": None, "loss": MISS, "max_loss": 0.1, "delta": 0.1, "accumulated": True},
            "leave out delta",
        ),
        ({"accumulated": True}, "accumulated=True needs delta"),
        (
            {"accumulated": True, "delta": 0.1, "risk": ag.FixedTime()},
            "which a fixed time never is",
        ),
        (
            {"accumulated": True, "delta": 0.1, "class_conditional": True},
            "goes without gate, loss and class_conditional",
        ),
    ],
    ids=str,
)
def test_wrong_settings(settings: dict[str, Any], match: str) -> None:
    refuse(match, lambda: agree(**settings))


def test_wrong_settings_with_a_gate() -> None:
    refuse("goes without gate", lambda: gated(GATE, accumulated=True, delta=0.1))
    refuse("gate is 7", lambda: stop_aware(gate=7))
    for calibration in ("bonferroni", "simultaneous"):
        refuse(
            "a gate needs one threshold",
            lambda calibration=calibration: ag.SpikeCP(
                0.8, TIMES, 2, POOLED, calibration, gate=GATE
            ),
        )
    refuse("ends is", lambda: ag.Gate(RISK, np.zeros(4), TIMES))
    refuse("ends is", lambda: ag.Gate(RISK, np.zeros(4), TIMES, None, 0.5, (3, 2, 4)))
    refuse("ends is", lambda: ag.Gate(RISK, np.zeros(4), TIMES, None, 0.5, (2, 3)))
    refuse("slack is nan", lambda: ag.Gate(RISK, np.zeros(4), TIMES, None, math.nan, (4,)))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"blocks": 0}, "blocks is 0"),
        ({"blocks": 5}, "blocks is 5: give a number up to 4"),
        ({"blocks": (1, 9)}, "blocks ends at 1 to 9, but times run from 1 to 4"),
        ({"blocks": (0.5, 2)}, "blocks ends at 0.5"),
        ({"blocks": (2, 1)}, "increas"),
        ({"target": 1}, "target is 1"),
        ({"max_set_size": 0}, "max_set_size is 0"),
    ],
    ids=str,
)
def test_wrong_blocks(options: dict[str, Any], match: str) -> None:
    refuse(
        match, lambda: ag.Gate.fit(*TUNING, TIMES, **{"target": 0.8, "max_set_size": 2, **options})
    )


def test_a_gate_needs_some_rows() -> None:
    refuse(
        "there are 19 tuning rows: a gate needs at least 20",
        lambda: ag.Gate.fit(*TUNING.rows(slice(0, 19)), target=0.8, max_set_size=2),
    )


WEIGHTS: Floats = np.ones(150)
WRONG_CONDITIONS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "few groups": (agree(), {"groups": SITES[:9]}, "groups has 9 entries for 150 inputs"),
    "broken numbers": (agree(), {"groups": np.ones(150)}, "dtype float64: give"),
    "matrix of numbers": (
        agree(),
        {"groups": np.ones((150, 2), dtype=int)},
        "or \\(n, G\\) booleans",
    ),
    "no columns": (agree(), {"groups": np.ones((150, 0), dtype=bool)}, "or \\(n, G\\) booleans"),
    "one name": (agree(), {"groups": "north"}, "shape \\(\\)"),
    "mixed names": (agree(), {"groups": [None] * 150}, "dtype object"),
    "no largest weight": (agree(), {"weights": WEIGHTS}, "weights needs max_weight"),
    "largest weight alone": (agree(), {"max_weight": 2.0}, "max_weight is given without weights"),
    "largest weight of 0": (agree(), {"weights": 0 * WEIGHTS, "max_weight": 0}, "max_weight is 0"),
    "largest weight without end": (
        agree(),
        {"weights": WEIGHTS, "max_weight": math.inf},
        "max_weight is inf",
    ),
    "above": (
        agree(),
        {"weights": 3 * WEIGHTS, "max_weight": 2.0},
        "weights holds 3: every weight must lie between 0 and max_weight, 2",
    ),
    "below": (agree(), {"weights": -WEIGHTS, "max_weight": 2.0}, "weights holds -1"),
    "missing": (agree(), {"weights": math.nan * WEIGHTS, "max_weight": 2.0}, "weights holds nan"),
    "few weights": (
        agree(),
        {"weights": WEIGHTS[:9], "max_weight": 2.0},
        r"weights has shape \(9,\) for 150 examples",
    ),
    "weights, delta": (
        agree(delta=0.1),
        {"weights": WEIGHTS, "max_weight": 2.0},
        "no promise with both weights and delta",
    ),
    "weights, loss": (
        agree(target=None, loss=MISS, max_loss=0.1),
        {"weights": WEIGHTS, "max_weight": 2.0},
        "loss with weights",
    ),
    "loss of other classes": (
        agree(target=None, loss=1 - np.eye(3), max_loss=0.1),
        {},
        "loss is for 3 classes and there are 4",
    ),
    "loss of many digits": (
        agree(target=None, loss=np.where(np.eye(4)[::-1] > 0, 1e-12, MISS * 1e9), max_loss=0.1),
        {},
        "too many digits|round them",
    ),
    "accumulated, groups": (
        agree(accumulated=True, delta=0.1),
        {"groups": SITES},
        "no promise with groups",
    ),
    "accumulated, weights": (
        stop_aware(delta=0.1),
        {"weights": WEIGHTS, "max_weight": 2.0},
        "both weights and delta",
    ),
    "bonferroni, groups": (
        ag.SpikeCP(0.8, TIMES, 2, POOLED),
        {"groups": SITES},
        "groups need a rule with one threshold",
    ),
    "simultaneous, weights": (
        ag.SpikeCP(0.8, TIMES, 2, POOLED, "simultaneous"),
        {"weights": WEIGHTS, "max_weight": 2.0, "groups": SITES},
        "groups and weights need a rule with one threshold",
    ),
    "no promise, groups": (
        ag.DCSNN(0.8, TIMES, 2),
        {"groups": SITES},
        "DCSNN promises nothing, so groups have no use",
    ),
    "no promise, final": (
        ag.SEENN(0.8, TIMES, 2),
        {"labels": "final"},
        "SEENN promises nothing, so final labels have no use",
    ),
    "other word": (agree(), {"labels": "first"}, "labels is 'first'"),
    "no last answer": (
        agree(risk=ag.ShapedRisk(RISK, np.array([0.0, 0.0, 0.0, -np.inf]), TIMES)),
        {"labels": "final"},
        "no best class at the last checkpoint",
    ),
}


@pytest.mark.parametrize("name", WRONG_CONDITIONS)
def test_wrong_conditions(name: str) -> None:
    rule, conditions, match = WRONG_CONDITIONS[name]
    refuse(
        match,
        lambda: rule.calibrate(KNOWN.log_confidence, **{"labels": KNOWN.labels, **conditions}),
    )


def test_wrong_groups_of_new_inputs() -> None:
    plain, named = agree().calibrate(*KNOWN), agree().calibrate(*KNOWN, groups=SITES)
    crossed = agree().calibrate(*KNOWN, groups=np.ones((150, 2), dtype=bool))
    refuse("calibrated without", lambda: plain.decide(NEW.log_confidence, groups=NEW_SITES))
    refuse("calibrated without", lambda: plain.stream(group="north"))
    refuse(
        "groups has 3 entries for 80 inputs",
        lambda: named.decide(NEW.log_confidence, groups=NEW_SITES[:3]),
    )
    refuse(
        "groups has 3 columns and the rule knows 2",
        lambda: crossed.decide(NEW.log_confidence, groups=np.ones((80, 3), dtype=bool)),
    )
    refuse("groups has 1 columns and the rule knows 2", lambda: crossed.stream(group=[True]))
    refuse("dtype float64", lambda: named.stream(group=0.5))


def test_thresholds_for_other_groups_are_refused() -> None:
    calibrated = calibrated_for("groups and gate")
    for thresholds in (calibrated.thresholds[:1], calibrated.thresholds[0]):
        with pytest.raises(ValueError, match="thresholds"):
            with_thresholds(calibrated, thresholds)


def test_rules_that_never_stop_say_so() -> None:
    few = Sample(KNOWN.log_confidence[:30], KNOWN.labels[:30])
    with pytest.warns(ag.CalibrationWarning, match="Group-conditional"):
        calibrated = agree(target=0.95).calibrate(*few, groups=np.arange(30) % 3)
    assert calibrated.never_stops and "never stops early" in repr(calibrated)
    with pytest.warns(ag.CalibrationWarning, match="group 1 has 10"):
        part = agree(target=0.95).calibrate(*few, groups=np.where(np.arange(30) % 3 > 1, 1, 0))
    assert not part.never_stops
    assert not agree().calibrate(*KNOWN, groups=["a"] * 146 + ["b"] * 4).shortage, (
        "four are just enough"
    )
    shut = ag.Gate(RISK, np.zeros(4), TIMES, None, -50.0, (2, 4))
    with pytest.warns(ag.CalibrationWarning, match="Block-conditional"):
        waiting = gated(shut).calibrate(*KNOWN)
    assert waiting.never_stops and waiting.thresholds[-1] > -math.inf, (
        "the last block never stops early"
    )


@pytest.mark.parametrize("calibration", ["simultaneous", "stop-aware"])
def test_rules_about_final_answers_state_no_range_of_coverages(calibration: str) -> None:
    sample = make_sample(120, checkpoints=3, members=1)
    rule = ag.SpikeCP(0.8, (1, 2, 3), 1, calibration=calibration)
    assert rule.calibrate(sample.log_confidence, sample.labels).draw is not None
    assert rule.calibrate(sample.log_confidence, "final").draw is None


def test_fill_and_trim_exclude_each_other() -> None:
    ag.AgreeStop(0.9, (1, 2), 2, fill=True, trim=0)
    with pytest.raises(ag.InputError, match="give one of them"):
        ag.AgreeStop(0.9, (1, 2), 2, fill=True, trim=0.5)


def test_names_of_groups_come_back_from_files_as_they_were(tmp_path: Path) -> None:
    sample = make_sample(120, checkpoints=3, members=1)
    names = ["[a  b]", "c\n d"] * 60
    calibrated = ag.AgreeStop(0.8, (1, 2, 3), 1).calibrate(
        sample.log_confidence, sample.labels, groups=names
    )
    calibrated.save(tmp_path / "rule")
    assert (
        ag.load_rule(tmp_path / "rule").group_names == calibrated.group_names == ("[a  b]", "c\n d")
    )


def test_what_cannot_be_written_or_added_is_refused() -> None:
    sample = make_sample(120, checkpoints=3, members=1)
    with pytest.raises(ag.InputError, match="groups holds codes"):
        ag.AgreeStop(0.8, (1, 2, 3), 1).calibrate(
            sample.log_confidence, sample.labels, groups=["\ud800", "b"] * 60
        )
    tiny = ag.AgreeStop(
        None, (1, 2, 3), 1, loss=(1 - np.eye(4)) * 5e-324, max_loss="1e-324"
    ).calibrate(*sample)
    plain = ag.AgreeStop(None, (1, 2, 3), 1, loss=1 - np.eye(4), max_loss="0.2").calibrate(*sample)
    np.testing.assert_array_equal(tiny.thresholds, plain.thresholds)
    with pytest.raises(ag.InputError, match="max_loss"):
        ag.AgreeStop(None, (1, 2, 3), 1, loss=1 - np.eye(4), max_loss=Fraction(1, 10**8000))
    with pytest.raises(ag.InputError, match="blocks is 2"):
        ag.Gate.fit(sample.log_confidence, sample.labels, target=0.8, max_set_size=1, blocks=2.5)  # type: ignore[arg-type]
    fixed = ag.AgreeStop(0.8, (1, 2, 3), 1, fill=True, risk=ag.FixedTime())
    with pytest.raises(ag.InputError, match="no risk to tune"):
        ag.tune(fixed, sample.log_confidence, sample.labels)
    with pytest.raises(ag.InputError, match="chosen for a target"):
        costly = ag.AgreeStop(None, (1, 2, 3), 1, loss=1 - np.eye(4), max_loss=0.1)
        ag.tune(costly, sample.log_confidence, sample.labels, price_of_work=0.5)


def test_a_forged_rule_with_other_blocks_is_refused(tmp_path: Path) -> None:
    sample = make_sample(300, checkpoints=3, members=1)
    gate = ag.Gate.fit(
        sample.log_confidence[:100], sample.labels[:100], target=0.8, max_set_size=1, blocks=2
    )
    whole = ag.AgreeStop(0.8, (1, 2, 3), 1, gate=gate).calibrate(
        sample.log_confidence[100:], sample.labels[100:]
    )
    known = whole.thresholds[None]
    for thresholds in (known[:, :1], np.column_stack([known, known]), known * np.nan):
        with_thresholds(whole, thresholds).save(tmp_path / "rule")
        with pytest.raises(ag.InputError, match="does not hold a rule"):
            ag.load_rule(tmp_path / "rule")
