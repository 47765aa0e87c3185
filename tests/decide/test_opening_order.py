"""Streams count in the order of opening: numbers, decisions that are held back, skipped inputs,
files, and what is refused.
"""

from __future__ import annotations

import gzip
import math
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from agreestop.decide.rule_files import read_rule_file, write_rule_file
from tests.decide.strategies import RiskGrid, SavedMonitor, label_queue

TIMES, CLASSES = (1, 2, 4, 8), 4
OLD = Path(__file__).parent / "files_of_0_2"


def scores(n: int, seed: int = 0, quality: float = 1.0) -> ag.Scores:
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=n)
    logits = rng.normal(size=(n, len(TIMES), 2, CLASSES))
    logits[np.arange(n), :, :, labels] += quality * np.arange(1, len(TIMES) + 1)[None, :, None]
    return ag.Scores(ag.log_confidence(logits), labels, TIMES)


def agree_stop(**settings: Any) -> ag.CalibratedRule:
    return ag.AgreeStop(0.9, TIMES, 1, **settings).calibrate(scores(200))


def streamed(calibrated: ag.CalibratedRule, data: ag.Scores) -> list[ag.Decision]:
    """Decisions of streams that are all open at once, in the order in which they end."""
    sessions = [calibrated.stream() for _ in data.log_confidence]
    ended: list[ag.Decision] = []
    for look in range(len(TIMES)):
        for session, values in zip(sessions, data.log_confidence, strict=True):
            if session.decision is None and (decision := session.push(values[look])) is not None:
                ended.append(decision)
    return ended


def truth(data: ag.Scores) -> list[int]:
    assert data.labels is not None
    return [int(label) for label in data.labels]


def state(one: Any, path: Path) -> bytes:
    one.save(path)
    return path.read_bytes()


# --------------------------------------------------------------------------------------------------
# numbers


def test_streams_have_numbers_and_batches_have_none() -> None:
    calibrated, data = agree_stop(), scores(5, seed=1)
    ended = streamed(calibrated, data)
    assert sorted(one.number for one in ended if one.number is not None) == [0, 1, 2, 3, 4]
    assert [one.index for one in ended] == sorted(one.index for one in ended), (
        "in the order of ending"
    )
    batch = calibrated.decide(data)
    assert all(one.number is None for one in batch)
    by_number = {one.number: one for one in ended}
    assert [by_number[row] for row in range(5)] == list(batch), (
        "a number is no part of the decision"
    )
    assert calibrated.stream().number == 5 and calibrated.stream(number=3).number == 3


def test_a_stream_that_is_refused_takes_no_number() -> None:
    calibrated = agree_stop()
    with pytest.raises(ag.InputError, match="calibrated without"):
        calibrated.stream(group="left")
    assert calibrated.stream().number == 0


def test_a_session_is_closed_with_its_first_risk() -> None:
    calibrated, data = agree_stop(), scores(2, seed=1, quality=0.0)
    early, late = calibrated.stream(), calibrated.stream()
    assert early.first_risk is None and early.close() is None
    assert late.push(data.log_confidence[1, 0]) is None
    risk = calibrated.decide(data).first_risk
    assert risk is not None and late.close() == late.close() == late.first_risk == risk[1]
    with pytest.raises(ag.InputError, match="session was closed"):
        late.push(data.log_confidence[1, 1])


# --------------------------------------------------------------------------------------------------
# held back


@pytest.mark.parametrize("kind", [ag.DriftMonitor, ag.AdaptiveRule], ids=["monitor", "adaptive"])
def test_decisions_count_in_the_order_of_opening(kind: Any, tmp_path: Path) -> None:
    """In order, as they end, in any order, and with loads in between: all of it is the same."""
    calibrated, data = agree_stop(), scores(60, seed=1, quality=0.5)
    made = kind(calibrated)
    ended, labels = streamed(calibrated, data), truth(data)
    in_order = sorted(ended, key=lambda one: int(one.number or 0))
    assert ended != in_order
    for one in in_order:
        made.observe(one)
    for one in in_order:
        made.update(one, labels[one.number])  # type: ignore[index]
    assert made.waiting == ""
    expected = state(made, tmp_path / "expected")

    def take(one: Any, decision: ag.Decision, number: int) -> None:
        one.observe(decision)
        given: list[Any] = [decision, number, replace(decision)]
        one.update(given[number % 3], labels[number])

    for seed in range(3):
        other, order = kind(replace(calibrated)), list(ended)
        if seed:
            np.random.default_rng(seed).shuffle(order)
        for count, decision in enumerate(order):
            take(other, decision, int(decision.number or 0))
            if seed == 2 and count % 7 == 0:
                other.save(tmp_path / "other")
                other = kind.load(tmp_path / "other")
        assert other.waiting == "" and state(other, tmp_path / "other") == expected


def test_a_decision_is_held_back_until_the_earlier_ones_came() -> None:
    calibrated = agree_stop()
    monitor = ag.DriftMonitor(calibrated)
    first, second, third = (
        ag.Decision(1, 0, (0,), first_risk=-2.0, number=number) for number in range(3)
    )
    monitor.observe(third)
    monitor.update(third, 1)  # it may come while the decision is held back
    monitor.observe(second, key="second")
    words = (
        "2 later inputs are held back for number 0, which is neither observed nor skipped; "
        "after 10,000 later ones it is"
    )
    assert monitor.waiting == f"{words} an input without a miss" and repr(monitor).endswith(
        monitor.waiting
    )
    assert (monitor.observed, monitor.inputs.count, monitor.misses.count) == (0, 0, 0)
    monitor.update("second", 0)
    monitor.observe(first)
    assert (monitor.observed, monitor.inputs.count, monitor.misses.count) == (3, 3, 0)
    assert monitor.waiting == "2 labels wait for the label of decision 0: give it, or None"
    monitor.update(0, 0)
    assert (monitor.processed, monitor.misses.count, monitor.waiting) == (3, 3, "")


def test_a_skipped_number_is_an_input_without_a_miss_whose_first_risk_counts() -> None:
    calibrated = agree_stop()
    skipping, answering = ag.DriftMonitor(calibrated), ag.DriftMonitor(replace(calibrated))
    for number in range(40):
        decision = ag.Decision(1, 0, (0,), first_risk=-number / 10, number=number)
        if number % 4 == 3:
            skipping.skip(number, decision.first_risk)
            answering.update(decision, 0)
        else:
            for monitor in (skipping, answering):
                monitor.observe(decision)
                monitor.update(number, int(number % 8 == 0))
    for kind in ("misses", "inputs"):
        np.testing.assert_array_equal(
            getattr(skipping, kind).capital, getattr(answering, kind).capital
        )
        assert getattr(skipping, kind).count == 40
    assert skipping.labels == 30 and "30 labels processed, 10 inputs without a label" in repr(
        skipping
    )
    skipping.skip(40)  # closed before the first checkpoint
    assert (skipping.observed, skipping.inputs.count, skipping.misses.count) == (41, 40, 41)


def test_labels_that_never_come_are_inputs_without_a_miss() -> None:
    calibrated = agree_stop()
    by_none, by_hits, by_count = (ag.DriftMonitor(replace(calibrated)) for _ in range(3))
    for number in range(20):
        decision = ag.Decision(1, 0, (0,), number=number)
        for monitor, label in ((by_none, None), (by_hits, 0)):
            monitor.observe(decision)
            monitor.update(decision, 1 if number % 5 == 0 else label)
        by_count.observe(decision)
        if number % 5 == 0:
            by_count.update(number, 1)
    by_count.give_up(20)
    for monitor in (by_none, by_count):
        np.testing.assert_array_equal(monitor.misses.capital, by_hits.misses.capital)
        assert (monitor.processed, monitor.labels) == (20, 4)


def test_a_number_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_queue, "MOST_HELD", 5)
    monitor = ag.DriftMonitor(agree_stop())
    for number in (0, 2, 3, 5, 6):
        monitor.update(ag.Decision(1, 0, (0,), number=number), 0)
    assert monitor.observed == 1 and "after 5 later ones" in monitor.waiting
    monitor.update(ag.Decision(1, 0, (0,), number=7), 0)  # the fifth after number 1
    assert (monitor.observed, monitor.misses.count, monitor.labels) == (4, 4, 3)
    assert "3 later inputs are held back for number 4" in monitor.waiting
    with pytest.raises(ag.InputError, match="number 1 was observed"):
        monitor.observe(ag.Decision(1, 0, (0,), number=1))


def test_a_batch_counts_when_no_stream_is_open() -> None:
    calibrated, data = agree_stop(), scores(6, seed=1)
    monitor, batch = ag.DriftMonitor(calibrated), calibrated.decide(scores(3, seed=2))
    monitor.observe(batch)
    assert monitor.observed == 3
    sessions = [calibrated.stream() for _ in range(2)]
    monitor.skip(sessions[0].number)
    words = "1 streams that were opened before are neither observed nor skipped"
    with pytest.raises(ag.InputError, match=words):
        monitor.observe(calibrated.decide(data))
    monitor.skip(sessions[1].number)
    monitor.observe(calibrated.decide(data))
    assert monitor.observed == 11
    monitor.update(batch, None)


def test_a_monitor_begins_at_the_counter_of_its_rule() -> None:
    calibrated = agree_stop()
    before = calibrated.stream()
    monitor = ag.DriftMonitor(calibrated)
    after = calibrated.stream()
    monitor.skip(after.number)
    assert monitor.observed == 1 and monitor.waiting == ""
    with pytest.raises(ag.InputError, match="number 0 was opened before"):
        monitor.skip(before.number)


BAD: dict[str, tuple[Callable[[ag.DriftMonitor], Any], str]] = {
    "twice": (lambda one: one.observe(ag.Decision(1, 0, (0,), number=0)), "number 0 was observed"),
    "held back twice": (
        lambda one: one.observe(ag.Decision(1, 0, (0,), number=5)),
        "number 5 was observed",
    ),
    "skipped, though observed": (lambda one: one.skip(1), "number 1 was observed"),
    "skipped twice": (lambda one: one.skip(0), "number 0 was observed"),
    "far ahead": (lambda one: one.skip(10**9), "number 1000000000"),
    "no number": (lambda one: one.skip("a"), "number is 'a': give the number of a stream"),  # type: ignore[arg-type]
    "below 0": (lambda one: one.skip(-1), "number is -1"),
    "no risk": (lambda one: one.skip(2, "a"), "first_risk is 'a'"),  # type: ignore[arg-type]
    "a label before the decision": (
        lambda one: one.update(2, 0),
        "decision 2 does not wait for a label",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_in_this_order_is_refused(name: str, tmp_path: Path) -> None:
    monitor = ag.DriftMonitor(agree_stop())
    monitor.skip(0)
    monitor.observe(ag.Decision(1, 0, (0,), number=1))
    monitor.observe(ag.Decision(1, 0, (0,), number=5))
    before = state(monitor, tmp_path / "before")
    call, words = BAD[name]
    with pytest.raises(ag.InputError, match=re.escape(words)) as refused:
        call(monitor)
    assert len(str(refused.value)) < 300 and state(monitor, tmp_path / "after") == before


# --------------------------------------------------------------------------------------------------
# files


def test_numbers_go_on_after_a_load_and_open_streams_are_gone_after_a_restart(
    tmp_path: Path,
) -> None:
    calibrated, path = agree_stop(), tmp_path / "monitor"
    monitor = ag.DriftMonitor(calibrated)
    sessions = [calibrated.stream() for _ in range(4)]
    monitor.observe(ag.Decision(1, 0, (0,), number=sessions[2].number), key="third")
    monitor.save(path)
    loaded = ag.DriftMonitor.load(path)
    assert loaded.calibrated.stream().number == 4 and "held back for number 0" in loaded.waiting
    fresh = agree_stop()
    resumed = ag.DriftMonitor.resume(path, fresh)
    assert (resumed.observed, resumed.processed, fresh.stream().number) == (4, 2, 4)
    resumed.update("third", 1)
    assert (resumed.waiting, resumed.processed, resumed.labels) == ("", 4, 1)
    with pytest.raises(ag.InputError, match="after a load"):
        resumed.skip(0)


@pytest.mark.parametrize(
    "change",
    [
        {"streams": np.array([0, -1, 9])},
        {"streams": np.array([0, 7, 7])},
        {"streams": np.array([1, 7, 9])},
        {"streams": np.array([0, 9, 7])},
        {"streams": np.array([0, 7, 10**9])},
        {"streams": np.array([0, 7])},
        {"numbers": np.array([-1, 0, -1])},
        {"numbered": False},
        {"start": 3},
        {"next": -1},
        {"opened": -1},
    ],
    ids=str,
)
def test_a_forged_order_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    monitor, path = ag.DriftMonitor(agree_stop()), tmp_path / "monitor"
    for number in (0, 7, 9):
        monitor.observe(ag.Decision(1, 0, (0,), number=number))
    monitor.save(path)
    saved = read_rule_file(path, SavedMonitor, lambda saved: saved)
    write_rule_file(path, replace(saved, queue=replace(saved.queue, **change)), {})
    with pytest.raises(ag.InputError, match="does not hold a rule that can be built"):
        ag.DriftMonitor.load(path)


def test_files_of_0_2_still_load(tmp_path: Path) -> None:
    for name in ("monitor", "adaptive"):
        (tmp_path / name).write_bytes(gzip.decompress((OLD / f"{name}.gz").read_bytes()))
    monitor, adaptive = (
        ag.DriftMonitor.load(tmp_path / "monitor"),
        ag.AdaptiveRule.load(tmp_path / "adaptive"),
    )
    for one in (monitor, adaptive):
        assert one.waiting == "1 label waits for the label of decision 2 ('2'): give it, or None"
        one.update("2", None)
        one.update(4, 1)
    assert (monitor.observed, monitor.processed, monitor.labels) == (6, 5, 4)
    assert monitor.inputs.count == 6 and monitor.calibrated.stream().number == 0
    monitor.observe(ag.Decision(3, 2, (0,), first_risk=-1.0, number=0))
    assert monitor.observed == 7


# --------------------------------------------------------------------------------------------------
# risks on a grid


def test_shared_risks_stay_in_their_cell_and_others_do_not_move_the_grid() -> None:
    rng, eta = np.random.default_rng(0), 1e-5
    for shared in (-1.0, 0.0, 0.5 + 1e-6, -3.21987):
        risks = np.concatenate(
            [rng.normal(size=100), shared + rng.uniform(-eta / 2, eta / 2, size=100)]
        )
        grid = RiskGrid.of(risks, eta)
        moved = {grid.middle(shared + shift) for shift in np.linspace(-2 * eta, 2 * eta, 41)}
        assert len(moved) == 1 and grid.width == pytest.approx(64 * eta)
    alone = RiskGrid.of(rng.normal(size=2000), eta)
    assert alone == RiskGrid.of(None, eta) and alone.offset == 0
    assert RiskGrid.of(None, 1e-9).width == 1e-4
    for risk in (*rng.normal(size=50) * 30, -1e9, 1e306, -1e308, math.inf, -math.inf):
        assert alone.middle(alone.middle(risk)) == alone.middle(risk)
        assert (
            risk == alone.middle(risk) or abs(risk - alone.middle(risk)) <= alone.width / 2 + 1e-9
        )


def test_risks_that_rounding_moves_apart_raise_no_alarm() -> None:
    """All streams end on the other side of a value that most examples share; by rank alone they
    would differ from all of them.
    """
    rng = np.random.default_rng(0)
    for sign in (-1, 1):
        risks = np.where(rng.random(200) < 0.8, -0.7, rng.normal(size=200))
        calibrated = replace(agree_stop(), first_risks=risks)
        monitor, control = (
            ag.DriftMonitor(calibrated),
            ag.DriftMonitor(replace(calibrated, eta=1e-9, first_risks=risks * 1e4)),
        )
        for number in range(400):
            risk = -0.7 + sign * 9e-6 if rng.random() < 0.8 else rng.normal()
            monitor.skip(number, risk)
            control.skip(number, risk * 1e4)
        assert not monitor.alarms and [alarm.kind for alarm in control.alarms] == ["inputs"]


# --------------------------------------------------------------------------------------------------
# level of misses


def rare(n: int) -> ag.Scores:
    """Four classes, of which two have too few examples."""
    data = scores(n, quality=0.6)
    labels = np.array(truth(data))
    keep = (labels < 2) | (np.cumsum(labels >= 2) <= 6)
    return data.rows(np.flatnonzero(keep))


def calibrate(rule: Any, data: ag.Scores) -> ag.CalibratedRule:
    with pytest.warns(ag.CalibrationWarning):
        calibrated: ag.CalibratedRule = rule.calibrate(data)
    return calibrated


def test_classes_with_too_few_examples_do_not_make_a_rule_safe() -> None:
    """Such a rule never stops early, but its last answer may leave out the other classes, and
    misses as a calibration draw lets it.
    """
    rule = ag.SpikeCP(
        0.9, TIMES, 1, ag.MergeConfidence(r=1), "simultaneous", class_conditional=True
    )
    calibrated = calibrate(rule, rare(200))
    assert calibrated.never_stops and ag.DriftMonitor(calibrated).level is None
    fresh = scores(300, seed=3, quality=0.6)
    assert not calibrated.decide(fresh).sets[np.arange(300), truth(fresh)].all()
    one_threshold = calibrate(ag.AgreeStop(0.9, TIMES, 1, class_conditional=True), rare(200))
    assert one_threshold.decide(scores(30, seed=3)).sets.all() and ag.DriftMonitor(
        one_threshold
    ).level == pytest.approx(0.1)


def test_delta_is_counted_once_for_each_class_with_thresholds_of_its_own() -> None:
    def monitor(
        delta: float, data: ag.Scores, calibration: str = "simultaneous", target: float = 0.8
    ) -> ag.DriftMonitor:
        rule = ag.SpikeCP(
            target,
            TIMES,
            1,
            ag.MergeConfidence(r=1),
            calibration,
            class_conditional=True,
            delta=delta,
        )
        return ag.DriftMonitor(rule.calibrate(data))

    with pytest.warns(ag.CalibrationWarning):
        two = monitor(0.1, rare(400))
    assert (
        two.level == pytest.approx(0.2)
        and "at most 0.25: 0.05, and 0.2 for a calibration draw" in two.guarantee
    )
    four = monitor(0.02, scores(600), "bonferroni", 0.7)
    assert "at most 0.13: 0.05, and 0.08 for a calibration draw" in four.guarantee
    none = monitor(0.25, scores(600))
    assert (
        none.level is None
        and "delta=0.25 holds for each class by itself, so all 4 of them together" in none.guarantee
    )
    by_least = ag.AgreeStop(0.8, TIMES, 1, class_conditional=True, delta=0.1).calibrate(scores(600))
    assert "at most 0.15: 0.05, and 0.1" in ag.DriftMonitor(by_least).guarantee


def test_misses_of_a_rule_that_was_adapted_are_not_watched() -> None:
    adaptive = ag.AdaptiveRule(agree_stop(delta=0.1))
    monitor = ag.DriftMonitor(adaptive.calibrated)
    assert monitor.level is None and "an AdaptiveRule has moved the threshold" in monitor.guarantee
    session = adaptive.stream()
    monitor.skip(session.number, -1.0)
    assert monitor.inputs.count == 1, "its inputs are, under the same numbers"
    with pytest.raises(ag.InputError, match="An AdaptiveRule has moved the threshold"):
        monitor.update(ag.Decision(1, 0, (0,)), 0)
    assert ag.DriftMonitor(agree_stop(delta=0.1)).level == float(Fraction(1, 10))


# --------------------------------------------------------------------------------------------------
# adaptive


def test_a_stream_keeps_the_threshold_that_it_was_opened_with() -> None:
    adaptive, data = ag.AdaptiveRule(agree_stop(), rate=2.0), scores(30, seed=4, quality=0.5)
    first, second = adaptive.stream(), adaptive.stream()
    fixed = adaptive.calibrated.decide(data.rows(slice(0, 1)))[0]
    for number in (2, 3, 4):
        adaptive.observe(miss := ag.Decision(8, 3, (0,), number=number))
        adaptive.update(miss, 1)
    before = adaptive.threshold
    assert "3 later inputs are held back for number 0" in adaptive.waiting
    second.close()
    for values in data.log_confidence[0]:
        if first.push(values) is not None:
            break
    assert first.decision == fixed and adaptive.threshold == before, "labels wait for the first one"
    adaptive.update(first.decision, None)
    assert adaptive.waiting == "" and adaptive.threshold < before
    assert adaptive.calibrated.stream().number == 5 and "3 labels processed" in repr(adaptive)
