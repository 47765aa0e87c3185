"""Drift monitors and adaptive rules: exact properties of their bets, the order of labels, saving in
the middle, and bad input.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from agreestop.common import Integers, largest_miss_rate
from agreestop.decide.rule_files import read_rule_file, write_rule_file
from tests.decide.strategies import (
    JUMP,
    SHARES,
    TILTS,
    Alarm,
    SavedAdaptive,
    SavedMonitor,
    betting,
    boldest_of,
    label_queue,
    make_sample,
    processed_by,
)

TIMES = (1, 2, 4, 8)
CLASSES = 4
TERMS = ag.AgreeStop(0.9, TIMES, 1).terms


def scores(n: int, seed: int = 0, quality: float = 1.5) -> ag.Scores:
    """Scores whose members come to see the label better with time."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=n)
    logits = rng.normal(size=(n, len(TIMES), 2, CLASSES))
    logits[np.arange(n), :, :, labels] += quality * np.arange(1, len(TIMES) + 1)[None, :, None]
    return ag.Scores(ag.log_confidence(logits), labels, TIMES)


def agree_stop(n: int = 200, **settings: Any) -> ag.CalibratedRule:
    return ag.AgreeStop(0.9, TIMES, 1, **settings).calibrate(scores(n))


def stop_aware(n: int = 200) -> ag.CalibratedRule:
    rule = ag.SpikeCP(0.9, TIMES, 1, pooling=ag.MergeConfidence(r=1), calibration="stop-aware")
    return rule.calibrate(scores(n))


RULES = {"AgreeStop": agree_stop, "stop-aware": stop_aware}


def truth(data: ag.Scores) -> np.ndarray[Any, Any]:
    assert data.labels is not None
    return data.labels


# --------------------------------------------------------------------------------------------------
# bets


@pytest.mark.parametrize("level", [0.05, 0.1, 0.37])
def test_the_evidence_of_misses_has_mean_one_at_the_boundary_and_less_below(level: float) -> None:
    for rate in (level, 0.6 * level):
        mean = 0.0
        for path in itertools.product((0, 1), repeat=8):
            wealth = betting.Wealth.of(len(SHARES), 0.0)
            for miss in path:
                evidence = wealth.bet(1 + SHARES * (miss / level - 1))
            mean += evidence * math.prod(rate if miss else 1 - rate for miss in path)
        assert mean == pytest.approx(1, abs=1e-12) if rate == level else mean < 1


def test_the_evidence_of_inputs_has_mean_one_for_uniform_ranks() -> None:
    """The evidence is linear in each rank, so ranks of 0 and 1 with equal probability have the mean
    of uniform ones.
    """
    mean = 0.0
    for path in itertools.product((0.0, 1.0), repeat=10):
        wealth = betting.Wealth.of(len(TILTS), JUMP)
        for rank in path:
            evidence = wealth.bet(1 + TILTS * (rank - 0.5))
        mean += evidence / 2**10
    assert mean == pytest.approx(1, abs=1e-12)


def test_bets_can_lose_all_but_never_more_and_cash_is_spent_as_stated() -> None:
    assert ((SHARES > 0) & (SHARES < 1)).all()
    counts = np.arange(1000)
    assert betting.cash(0) == 1
    np.testing.assert_allclose(
        [betting.fresh(int(s)) for s in counts],
        [betting.cash(int(s)) - betting.cash(int(s) + 1) for s in counts],
        rtol=1e-9,
    )
    wealth = betting.Wealth.of(len(SHARES), 0.0)
    for _ in range(5000):
        evidence = wealth.bet(1 - SHARES)
    # so a drift after many quiet inputs is found too
    assert betting.cash(5000) < evidence < 2 * betting.cash(5000)


def test_evidence_stays_finite_long_after_an_alarm() -> None:
    wealth = betting.Wealth.of(len(SHARES), 0.0)
    for _ in range(2000):
        assert math.isfinite(wealth.bet(1 + SHARES * (1 / 0.01 - 1)))


@pytest.mark.parametrize("bag", [[1.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0, 2.0, 2.0]])
def test_smoothed_ranks_are_uniform_for_any_bag(bag: list[float]) -> None:
    """Each of the values may be the new one: its rank is uniform on an interval, and the intervals
    tile [0, 1] with equal density.
    """
    density = np.zeros(len(bag))
    for index, value in enumerate(bag):
        others = sorted(bag[:index] + bag[index + 1 :])
        low, high = (
            betting.smoothed_rank(others, value, uniform) * len(bag) for uniform in (0.0, 1.0)
        )
        density[round(low) : round(high)] += 1 / (high - low)
    np.testing.assert_allclose(density, 1)


def test_the_level_is_the_quantile_of_the_miss_rate_of_a_calibration_draw() -> None:
    rng = np.random.default_rng(0)
    for n, rank in ((50, 46), (200, 181), (1000, 901), (19, 19)):
        level = largest_miss_rate(n, rank, Fraction(1, 20))
        draws = rng.beta(n + 1 - rank, rank, size=200_000)
        assert (draws > level).mean() == pytest.approx(0.05, abs=0.003)
        tail = sum(math.comb(n, m) * level**m * (1 - level) ** (n - m) for m in range(n - rank + 1))
        assert 0.05 - 2e-6 < tail <= 0.05
    assert ag.DriftMonitor(agree_stop()).level == largest_miss_rate(200, 181, Fraction("0.05"))
    assert ag.DriftMonitor(agree_stop(delta=0.1)).level == pytest.approx(0.1)


def test_a_monitor_states_its_budget() -> None:
    assert (
        "at most 0.1: 0.05, and 0.05 for a calibration draw"
        in ag.DriftMonitor(agree_stop(), delta=0.05).guarantee
    )
    assert (
        "at most 0.11: 0.01, and 0.1 for a calibration draw"
        in ag.DriftMonitor(agree_stop(delta=0.1), delta=0.01).guarantee
    )


def test_the_number_of_labels_until_an_alarm_is_about_what_simulation_shows() -> None:
    calibrated, rng = agree_stop(delta=0.1), np.random.default_rng(1)
    for quiet, rate in ((0, 0.2), (0, 0.4), (1000, 0.25)):
        found = []
        for _ in range(60):
            wealth = betting.Wealth.of(len(SHARES), 0.0)
            for miss in rng.random(quiet) < 0.08:
                wealth.bet(1 + SHARES * (miss / 0.1 - 1))
            count = 0
            while wealth.bet(1 + SHARES * ((rng.random() < rate) / 0.1 - 1)) < 20:
                count += 1
            found.append(count + 1)
        monitor = ag.DriftMonitor(calibrated)
        for index in range(quiet):
            monitor.update(ag.Decision(1, 0, (0,)), int(index % 25 == 0))
        expected = monitor.labels_to_alarm(rate)
        assert 0.6 < expected / np.median(found) < 1.6, (quiet, rate, expected, np.median(found))
    assert ag.DriftMonitor(calibrated).labels_to_alarm(0.1) == math.inf
    assert ag.DriftMonitor(calibrated).labels_to_alarm(0.2) < 150


# --------------------------------------------------------------------------------------------------
# order of labels


def run(
    monitor: ag.DriftMonitor, decisions: list[ag.Decision], labels: list[int], order: list[int]
) -> list[tuple[str, int]]:
    for decision in decisions:
        monitor.observe(decision)
    for index in order:
        monitor.update(decisions[index], labels[index])
    return [(alarm.kind, alarm.number) for alarm in monitor.alarms]


def test_labels_are_processed_in_the_order_of_the_decisions() -> None:
    calibrated, rng = agree_stop(), np.random.default_rng(0)
    decisions = [ag.Decision(1, 0, (0,)) for _ in range(300)]
    labels = (rng.random(300) < 0.35).astype(int).tolist()
    in_order = ag.DriftMonitor(calibrated)
    expected = run(in_order, decisions, labels, list(range(300)))
    assert expected and expected[0][1] < 300
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(300).tolist()
        late = ag.DriftMonitor(calibrated)
        assert run(late, decisions, labels, order) == expected
        np.testing.assert_array_equal(late.misses.capital, in_order.misses.capital)
    misses_first = sorted(range(300), key=lambda index: -labels[index])
    assert run(ag.DriftMonitor(calibrated), decisions, labels, misses_first) == expected
    alone = ag.DriftMonitor(calibrated)
    for decision, label in zip(decisions, labels, strict=True):
        alone.update(decision, label)
    assert [(alarm.kind, alarm.number) for alarm in alone.alarms] == expected


def test_an_alarm_names_the_decision_that_raised_it() -> None:
    monitor, wealth = ag.DriftMonitor(agree_stop()), betting.Wealth.of(len(SHARES), 0.0)
    assert monitor.level is not None
    needed = 1
    while wealth.bet(1 + SHARES * (1 / monitor.level - 1)) < 20:
        needed += 1
    decisions = [ag.Decision(8, 3, (0,)) for _ in range(30)]
    for decision in decisions:
        monitor.observe(decision)
    alarms = [monitor.update(decision, 1) for decision in decisions]
    assert [index for index, alarm in enumerate(alarms) if alarm] == [needed - 1]
    assert monitor.alarms[0].number == needed and monitor.since_alarm == 30 - needed


def test_a_label_waits_for_the_earlier_ones_and_none_lets_it_pass() -> None:
    monitor = ag.DriftMonitor(agree_stop())
    first, second = ag.Decision(1, 0, (0,)), ag.Decision(1, 0, (0,))
    monitor.observe(first, key="first")
    monitor.observe(second)
    monitor.update(second, 1)
    assert (monitor.observed, monitor.processed, monitor.misses.count) == (2, 0, 0)
    monitor.update("first", None)
    assert (monitor.observed, monitor.processed, monitor.misses.count) == (2, 2, 2)
    assert monitor.labels == 1 and "1 labels processed, 1 inputs without a label" in repr(monitor)


def test_a_batch_is_the_same_as_its_rows() -> None:
    calibrated, data = agree_stop(), scores(120, seed=3, quality=0.4)
    decisions = calibrated.decide(data)
    batch, rows = ag.DriftMonitor(calibrated), ag.DriftMonitor(calibrated)
    batch.observe(decisions)
    batch.update(decisions, truth(data))
    for decision, label in zip(decisions, truth(data).tolist(), strict=True):
        rows.update(decision, label)
    assert set(batch.alarms) == set(rows.alarms)
    np.testing.assert_array_equal(batch.misses.capital, rows.misses.capital)
    np.testing.assert_array_equal(batch.inputs.capital, rows.inputs.capital)
    assert batch.misses.count == batch.inputs.count == 120
    wealth = betting.Wealth.of(len(SHARES), 0.0)
    assert batch.level is not None
    for hit in decisions.sets[np.arange(120), truth(data)]:
        wealth.bet(1 + SHARES / batch.level * (float(not hit) - batch.level))
    np.testing.assert_allclose(batch.misses.capital, wealth.capital)
    bag, wealth = sorted(calibrated.first_risks.tolist()), betting.Wealth.of(len(TILTS), JUMP)  # type: ignore[union-attr]
    for risk in decisions.first_risk:  # type: ignore[union-attr]
        # without ties the uniform number hardly matters
        wealth.bet(1 + TILTS * (betting.smoothed_rank(bag, risk, 0.5) - 0.5))
        bag = sorted([*bag, risk])
    np.testing.assert_allclose(np.log(batch.inputs.evidence), np.log(wealth.evidence), atol=0.2)


def processed_now(queue: Any, decision: Any, label: Any) -> Any:
    """The inputs that can be processed once this label is known: their positions, and whether they
    missed.
    """
    queue.update(decision, label)
    return queue.take()[1]


def test_more_decisions_than_can_wait_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_queue, "MOST_WAITING", 3)
    queue = label_queue.LabelQueue(TERMS, CLASSES, [0])
    decisions = [ag.Decision(1, 0, (0,)) for _ in range(7)]
    for decision in decisions[:5]:
        queue.add(decision)
    queue.take()
    assert len(queue) == 3 and queue.observed == 5
    with pytest.raises(ag.InputError, match="at most 3 can wait"):
        queue.update(decisions[4], 0)
    again = label_queue.LabelQueue(TERMS, CLASSES, [0])
    again.restore(queue.saved())
    with pytest.raises(ag.InputError, match="2 decisions were not kept"):
        again.update(7, 0)
    assert processed_now(queue, decisions[1], 1) == []
    assert processed_now(queue, decisions[0], 0) == [(0, False), (1, True)]
    queue.add(decisions[5])
    queue.take()
    assert processed_now(queue, decisions[2], 0) == [(2, False)] and queue.processed == 5
    assert processed_now(queue, decisions[5], 1) == [(5, True)] and queue.processed == 6
    batch = ag.Decisions(
        np.zeros(5, dtype=int), np.eye(CLASSES, dtype=bool)[[0, 1, 2, 3, 0]], TIMES
    )
    queue.add(batch)  # its last rows are not kept
    queue.take()
    assert processed_now(queue, batch, np.array([0, 1, 3, 0, 0])) == [
        (6, False),
        (7, False),
        (8, True),
    ]
    assert queue.processed == 11


# --------------------------------------------------------------------------------------------------
# drift


def test_both_alarms_find_a_drift_and_the_rule_is_calibrated_again() -> None:
    calibrated = agree_stop(delta=0.1)
    monitor = ag.DriftMonitor(calibrated, delta=0.01)
    before, after, later = (
        scores(600, seed=1),
        scores(600, seed=2, quality=0.3),
        scores(300, seed=3, quality=0.3),
    )
    for data in (before, after):
        for decision, label in zip(calibrated.decide(data), truth(data).tolist(), strict=True):
            monitor.update(decision, label)
    assert {alarm.kind for alarm in monitor.alarms} == {"misses", "inputs"}
    assert all(600 < alarm.number < 900 for alarm in monitor.alarms)
    assert monitor.since_alarm == 1200 - max(alarm.number for alarm in monitor.alarms)
    with pytest.raises(ag.InputError, match="decisions came since the alarm"):
        monitor.recalibrate(after)
    for decision in calibrated.decide(later):
        monitor.update(decision, 0)
    again = monitor.recalibrate(later)
    assert again.n == 300 and again.thresholds < calibrated.thresholds
    assert "1500 decisions, 1500 labels processed; after" in repr(monitor)


def test_an_alarm_can_rest_on_inputs_alone() -> None:
    calibrated = agree_stop()
    monitor = ag.DriftMonitor(calibrated)
    alarms = [
        monitor.observe(decision)
        for decision in calibrated.decide(scores(500, seed=2, quality=0.0))
    ]
    assert [alarm.kind for alarm in alarms if alarm] == ["inputs"]
    assert monitor.processed == 0 and monitor.misses.count == 0


def test_a_log_is_thinned_and_keeps_its_ends() -> None:
    log = betting.Log.of(1)
    for count in range(1, 5001):
        log.add(count, float(count))
    assert log.size < betting.POINTS and log.counts[-1] > 4990
    np.testing.assert_array_equal(log.counts, log.values[:, 0])
    assert (np.diff(log.counts) == log.stride).all()


# --------------------------------------------------------------------------------------------------
# adaptive


@pytest.mark.parametrize("name", RULES)
def test_an_adaptive_rule_moves_by_the_rate_and_stays_between_its_ends(name: str) -> None:
    calibrated = RULES[name]()
    (threshold,) = calibrated.thresholds
    adaptive = ag.AdaptiveRule(calibrated, rate=0.5)
    sign = 1 if name == "AgreeStop" else -1
    assert adaptive.threshold == threshold
    adaptive.update(ag.Decision(8, 3, (0,)), 1)
    assert adaptive.threshold == pytest.approx(threshold - sign * 0.5 * 0.9)
    adaptive.update(ag.Decision(8, 3, (0,)), 0)
    assert adaptive.threshold == pytest.approx(threshold - sign * 0.5 * 0.8)
    for _ in range(2000):
        adaptive.update(ag.Decision(8, 3, (0,)), 0)
    assert adaptive.threshold == pytest.approx(boldest_of(calibrated))
    for _ in range(2000):
        adaptive.update(ag.Decision(8, 3, (0,)), 1)
    assert adaptive.threshold == -sign * math.inf
    answers = adaptive.calibrated.decide(scores(50, seed=5))
    assert answers.sets.all() and (answers.stop_time == TIMES[-1]).all()


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("delay", [0, 7])
def test_batch_stream_and_engine_decisions_are_the_same(name: str, delay: int) -> None:
    calibrated, data = RULES[name](), scores(60, seed=4, quality=0.5)
    batch, stream, other = (ag.AdaptiveRule(calibrated) for _ in range(3))
    waiting: list[tuple[Any, ...]] = []
    for row in range(60):
        decisions = batch.decide(data.rows(slice(row, row + 1)))
        session, by_engine = stream.stream(), other.calibrated.stream()
        for values in data.log_confidence[row]:
            if session.push(values) is not None:
                break
        for values in data.log_confidence[row]:
            if by_engine.push(values) is not None:
                break
        assert session.decision is not None and by_engine.decision is not None
        assert f"; {row + 1} decisions" in repr(stream) and f"; {row + 1} decisions" in repr(batch)
        assert decisions[0] == session.decision == by_engine.decision
        other.observe(by_engine.decision)
        waiting.append((decisions, session.decision, by_engine.decision, int(truth(data)[row])))
        if len(waiting) > delay:
            one, two, three, label = waiting.pop(0)
            batch.update(one, [label])
            stream.update(two, label)
            other.update(three, label)
        assert batch.threshold == stream.threshold == other.threshold
    assert batch.log.size == 60 - delay


def test_a_moved_threshold_has_its_own_promise() -> None:
    adaptive = ag.AdaptiveRule(agree_stop(), rate=0.2)
    moved = adaptive.calibrated
    assert moved.adapted and moved.draw is None and "whatever the inputs are" in moved.guarantee
    assert (
        moved.decide(scores(10, seed=1)).draw is None
        and agree_stop().decide(scores(10, seed=1)).draw is not None
    )
    with pytest.warns(ag.CalibrationWarning):
        few = agree_stop(5)
    adaptive = ag.AdaptiveRule(few)
    assert adaptive.threshold == -math.inf and not adaptive.calibrated.never_stops
    for _ in range(10):
        adaptive.update(ag.Decision(8, 3, (0, 1, 2, 3)), 0)
    assert adaptive.threshold > -math.inf


# --------------------------------------------------------------------------------------------------
# files


def steps(n: int) -> Iterator[tuple[str, int, int]]:
    """Decisions with keys, and labels that come up to 20 decisions late, in any order: (what,
    number, label).
    """
    rng = np.random.default_rng(7)
    due = sorted((number + int(rng.integers(20)) + rng.random(), number) for number in range(n))
    for number in range(n):
        yield "observe", number, 0
        while due and due[0][0] <= number:
            yield "update", due.pop(0)[1], int(rng.random() < 0.3)
    for _, number in due:
        yield "update", number, 0


@pytest.mark.parametrize("kind", ["monitor", "adaptive"])
def test_saving_in_the_middle_changes_nothing(kind: str, tmp_path: Path) -> None:
    calibrated, path = agree_stop(), tmp_path / "state"
    decisions = list(calibrated.decide(scores(200, seed=6)))
    make: Any = {"monitor": ag.DriftMonitor, "adaptive": ag.AdaptiveRule}[kind]
    straight, broken = make(calibrated), make(calibrated)
    for what, number, label in steps(200):
        for one in (straight, broken):
            if what == "observe":
                one.observe(decisions[number], key=f"input {number}")
            else:
                one.update(f"input {number}", label)
        if number % 3 == 0:
            broken.save(path)
            broken = make.load(path)
    for one in (straight, broken):
        one.save(path.with_name(str(id(one))))
    assert (
        path.with_name(str(id(straight))).read_bytes()
        == path.with_name(str(id(broken))).read_bytes()
    )
    assert repr(straight) == repr(broken)


KINDS: dict[str, Any] = {"monitor": ag.DriftMonitor, "adaptive": ag.AdaptiveRule}


def state(one: Any, path: Path) -> bytes:
    """All that a monitor or an adaptive rule knows."""
    one.save(path)
    return path.read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_labels_after_loading_find_decisions_by_number(kind: str, tmp_path: Path) -> None:
    """Batches and single decisions, in any order: what comes out is what it would be without the
    load.
    """
    calibrated, path, data = agree_stop(), tmp_path / "state", scores(90, seed=6, quality=0.4)
    labels = truth(data)
    given = [calibrated.decide(data.rows(slice(begin, begin + 30))) for begin in (0, 30)]
    straight = KINDS[kind](calibrated)
    for decision in (*given, *calibrated.decide(data.rows(slice(60, 90)))):
        straight.observe(decision)
    straight.save(path)
    loaded = KINDS[kind].load(path)
    loaded.save(path)
    loaded = KINDS[kind].load(path)  # a second load loses nothing either
    for one in (straight, loaded):
        for number in (30 + np.random.default_rng(0).permutation(60)).tolist():
            one.update(number, int(labels[number]))
        assert one.waiting == "60 labels wait for the label of decision 0: give it, or None"
        if one is straight:
            one.update(given[0], labels[:30])  # the very object of the batch
        else:
            for number in range(30):
                one.update(number, int(labels[number]))
        assert one.waiting == ""
        with pytest.raises(ag.InputError, match="does not wait"):
            one.update(0, 0)
    assert state(loaded, path) == state(straight, tmp_path / "straight")


@pytest.mark.parametrize("kind", KINDS)
def test_keys_and_numbers_find_decisions_after_loading(kind: str, tmp_path: Path) -> None:
    one, path = KINDS[kind](agree_stop()), tmp_path / "state"
    for key in ("", "named", ""):
        one.observe(ag.Decision(8, 3, (0,)), key=key)
    one.save(path)
    loaded = KINDS[kind].load(path)
    loaded.update("named", 1)
    assert loaded.waiting == "1 label waits for the label of decision 0: give it, or None"
    loaded.update(0, 1)
    assert loaded.waiting == "" and processed_by(loaded) == 2
    with pytest.raises(ag.InputError, match="does not wait"):
        loaded.update(ag.Decision(8, 3, (1,)), 1)
    loaded.update(2, None)
    assert processed_by(loaded) == 3
    with pytest.raises(ag.InputError, match="decision 2 does not wait"):
        loaded.update(2, None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_label_is_named(kind: str) -> None:
    one = KINDS[kind](agree_stop())
    for number in range(1412):
        one.observe(ag.Decision(8, 3, (0,)), key="lost" if number == 12 else f"{number}")
    for number in range(1412):
        result = one.update(f"{number}", 0) if number != 12 else None
    words = "1,399 labels wait for the label of decision 12 ('lost'): give it, or None"
    assert (
        one.waiting == words
        and repr(one).endswith(f"; {words}")
        and result == (words if kind == "adaptive" else None)
    )
    one.update("lost", None)
    assert one.waiting == "" and "wait" not in repr(one)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_batch_get_their_labels_one_by_one(kind: str, tmp_path: Path) -> None:
    calibrated, data = agree_stop(), scores(40, seed=3, quality=0.4)
    decisions = calibrated.decide(data)
    together, rows = (KINDS[kind](calibrated) for _ in range(2))
    for one in (together, rows):
        one.observe(decisions)
    together.update(decisions, truth(data))
    rows.update(39, int(truth(data)[-1]))
    with pytest.raises(ag.InputError, match="have labels already"):
        rows.update(decisions, truth(data))
    for row in range(38, -1, -1):
        rows.update(row, int(truth(data)[row]))
    assert state(rows, tmp_path / "rows") == state(together, tmp_path / "together")
    rows.observe(decisions)  # no label lacks, so it may come again
    alone = calibrated.decide(data.rows(slice(0, 1)))
    rows.observe(alone)
    rows.update(decisions, None)
    rows.update(alone, 3)
    assert processed_by(rows) == 81


def test_rows_with_equal_contents_are_told_apart() -> None:
    """Misses that are reported first must not take the turn of hits, though all decisions look
    alike.
    """
    queue = label_queue.LabelQueue(TERMS, CLASSES, [0])
    batch = ag.Decisions(np.zeros(3, dtype=int), np.eye(CLASSES, dtype=bool)[[0, 0, 0]], TIMES)
    queue.add(batch)
    assert processed_now(queue, batch[2], 1) == processed_now(queue, 1, 0) == []
    assert processed_now(queue, batch[0], 0) == [(0, False), (1, False), (2, True)]


def test_a_row_that_two_batches_have_is_asked_for() -> None:
    queue = label_queue.LabelQueue(TERMS, CLASSES, [0])
    first, second = (
        ag.Decisions(np.zeros(3, dtype=int), np.eye(CLASSES, dtype=bool)[[0, 0, 0]], TIMES)
        for _ in range(2)
    )
    queue.add(first)
    queue.add(second)
    with pytest.raises(ag.InputError, match="row 1 of 2 batches"):
        queue.update(second[1], 0)
    queue.update(first, [0, 0, 0])
    queue.update(second[1], 0)
    with pytest.raises(ag.InputError, match="have labels"):
        queue.update(second, [0, 0, 0])


# --------------------------------------------------------------------------------------------------
# final answers


def final_labels(calibrated: ag.CalibratedRule, data: ag.Scores) -> Integers:
    labels = calibrated.decide(data).final_best
    assert labels is not None
    return labels


@pytest.mark.parametrize("name", RULES)
def test_a_rule_about_final_answers_is_watched_with_final_labels(name: str) -> None:
    rule = RULES[name]().rule
    calibrated = rule.calibrate(scores(300, quality=0.2), "final")
    data = scores(1000, seed=1, quality=0.2)
    labels = final_labels(calibrated, data)
    assert calibrated.saw(
        ag.Scores(
            scores(300, quality=0.2).log_confidence,
            final_labels(calibrated, scores(300, quality=0.2)),
            TIMES,
        )
    )
    by_final, by_truth = ag.DriftMonitor(calibrated), ag.DriftMonitor(calibrated)
    by_final.update(calibrated.decide(data), labels)
    by_truth.update(calibrated.decide(data), truth(data))
    assert not by_final.alarms and [alarm.kind for alarm in by_truth.alarms] == ["misses"]
    said = "the class that the ensemble itself answers best at the last checkpoint"
    assert said in by_final.guarantee and said not in ag.DriftMonitor(RULES[name]()).guarantee
    by_truth.observe(calibrated.decide(data))
    assert by_truth.recalibrate(data).final


@pytest.mark.parametrize("name", RULES)
def test_an_adaptive_rule_about_final_answers_keeps_its_bound(name: str) -> None:
    calibrated = RULES[name]().rule.calibrate(scores(300), "final")
    adaptive = ag.AdaptiveRule(calibrated, rate=2.0)
    assert (
        "miss the class that the ensemble itself answers best at the last checkpoint, whatever"
        in adaptive.guarantee
    )
    assert "miss the label, whatever" in ag.AdaptiveRule(RULES[name]()).guarantee
    data, misses = scores(600, seed=2, quality=0.0), []
    for row in range(600):
        one = data.rows(slice(row, row + 1))
        decisions, label = adaptive.decide(one), final_labels(calibrated, one)
        misses.append(int(label[0]) not in decisions[0].classes)
        adaptive.update(decisions, label)
    assert 0 < np.mean(misses[-200:]) <= adaptive.bound(200)
    for _ in range(600):
        adaptive.observe(miss := ag.Decision(8, 3, (0,)))
        adaptive.update(miss, 1)
    answers = adaptive.calibrated.decide(data)
    assert adaptive.threshold == (-math.inf if name == "AgreeStop" else math.inf)
    np.testing.assert_array_equal(
        answers.sets, np.eye(CLASSES, dtype=bool)[final_labels(calibrated, data)]
    )


def test_a_monitor_goes_on_after_a_save_that_failed(tmp_path: Path) -> None:
    calibrated = agree_stop()
    decisions = list(calibrated.decide(scores(3, seed=6)))
    monitor, other = ag.DriftMonitor(calibrated), ag.DriftMonitor(calibrated)
    for number, decision in enumerate(decisions):
        with pytest.raises(
            ag.InputError, match="cannot write"
        ) as kept:  # its traceback holds what was being saved
            monitor.save(tmp_path / "no" / "monitor")
        for one in (monitor, other):
            one.observe(decision)
        assert kept.tb is not None and monitor.observed == number + 1
    assert monitor.inputs.evidence == other.inputs.evidence != 1


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system cannot kill so")
def test_a_kill_during_a_save_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "monitor"
    monitor = ag.DriftMonitor(agree_stop())
    for number in range(50):
        monitor.update(ag.Decision(8, 3, (0,)), number % 3)
    monitor.save(path)
    before = path.read_bytes()
    code = (
        "import os, signal, sys, agreestop as ag\n"
        "monitor = ag.DriftMonitor.load(sys.argv[1])\n"
        "monitor.update(ag.Decision(8, 3, (0,)), 1)\n"
        "os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)\n"
        "monitor.save(sys.argv[1])\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", code, str(path)], check=False, env=dict(os.environ)
    )
    assert killed.returncode == -signal.SIGKILL
    assert path.read_bytes() == before
    assert repr(ag.DriftMonitor.load(path)) == repr(monitor)


def test_files_of_another_kind_are_refused_with_a_sentence(tmp_path: Path) -> None:
    calibrated, path = agree_stop(), tmp_path / "file"
    calibrated.save(path)
    with pytest.raises(ag.InputError, match="a drift monitor is needed"):
        ag.DriftMonitor.load(path)
    ag.DriftMonitor(calibrated).save(path)
    with pytest.raises(ag.InputError, match="a rule is needed"):
        ag.load_rule(path)


FORGED: dict[str, tuple[str, dict[str, Any]]] = {
    "observed fewer than processed": ("queue", {"observed": 1}),
    "too many observed": ("queue", {"observed": 10**13}),
    "negative count": ("queue", {"processed": -1}),
    "numbers in no order": ("queue", {"numbers": np.array([5, 4])}),
    "numbers twice": ("queue", {"numbers": np.array([4, 4])}),
    "numbers processed": ("queue", {"numbers": np.array([1, 4])}),
    "numbers to come": ("queue", {"numbers": np.array([4, 6])}),
    "other labels": ("queue", {"misses": np.array([2, 0])}),
    "fewer labels": ("queue", {"misses": np.array([0])}),
    "fewer risks": ("queue", {"risks": np.array([0.5])}),
    "dropped more than observed": ("queue", {"dropped": 7}),
    "a first one with a label": ("queue", {"misses": np.array([1, -1])}),
    "a gap before the first": ("queue", {"processed": 3}),
    "fewer keys": ("queue", {"keys": ("a",)}),
    "a key twice": ("queue", {"keys": ("a", "a"), "misses": np.array([-1, -1])}),
    "other classes": ("queue", {"sets": np.zeros((2, CLASSES + 1), dtype=bool)}),
    "more bets": ("misses", {"capital": np.zeros(3)}),
    "negative capital": ("misses", {"capital": np.full(len(SHARES), -1.0)}),
    "nan capital": ("inputs", {"capital": np.full(3, np.nan)}),
    "another jump": ("inputs", {"jump": 0.5}),
    "more steps than decisions": ("inputs", {"count": 7}),
    "another log": ("misses", {"log": betting.Log.of(2)}),
    "an unknown alarm": ("", {"alarms": (Alarm("noise", 1, 30.0),)}),
    "an alarm to come": ("", {"alarms": (Alarm("misses", 7, 30.0),)}),
    "risks in no order": ("", {"bag": np.array([1.0, 0.0])}),
    "nan risks": ("", {"bag": np.array([np.nan])}),
    "risks of two axes": ("", {"bag": np.zeros((2, 2))}),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_monitor_is_refused(name: str, tmp_path: Path) -> None:
    monitor, path = ag.DriftMonitor(agree_stop()), tmp_path / "monitor"
    for number in range(6):
        monitor.observe(ag.Decision(8, 3, (0,), first_risk=0.5), key=f"{number}")
    for number in (0, 1, 2, 3):
        monitor.update(f"{number}", 0)
    monitor.save(path)
    saved = read_rule_file(path, SavedMonitor, lambda saved: saved)
    part, change = FORGED[name]
    forged = replace(saved, **({part: replace(getattr(saved, part), **change)} if part else change))
    write_rule_file(path, forged, {})
    with pytest.raises(ag.InputError, match="does not hold a rule that can be built"):
        ag.DriftMonitor.load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"position": 1e9},
        {"position": math.nan},
        {"misses": 3},
        {"labels": 7},
        {"log": betting.Log.of(1)},
    ],
    ids=str,
)
def test_a_forged_adaptive_rule_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    adaptive, path = ag.AdaptiveRule(agree_stop()), tmp_path / "adaptive"
    for label in (0, 1):
        adaptive.update(ag.Decision(8, 3, (0,)), label)
    adaptive.save(path)
    write_rule_file(
        path, replace(read_rule_file(path, SavedAdaptive, lambda saved: saved), **change), {}
    )
    with pytest.raises(ag.InputError, match="does not hold a rule that can be built"):
        ag.AdaptiveRule.load(path)


# --------------------------------------------------------------------------------------------------
# bad input


NONE: Any = [None]


def make_bad() -> dict[str, tuple[Any, str]]:
    calibrated = agree_stop()
    decision = ag.Decision(1, 0, (0,))
    grouped = ag.AgreeStop(0.9, TIMES, 1).calibrate(scores(200), groups=np.arange(200) % 2)
    weighted = ag.AgreeStop(0.9, TIMES, 1).calibrate(
        scores(200), weights=np.ones(200), max_weight=1.0
    )
    bonferroni = ag.SpikeCP(0.8, TIMES, 1, pooling=ag.MergeConfidence(r=1)).calibrate(scores(200))
    confidence = ag.DCSNN(0.9, TIMES, 1).calibrate(scores(200))
    lossy = ag.AgreeStop(None, TIMES, 1, loss=1.0 - np.eye(CLASSES), max_loss=0.1).calibrate(
        scores(200)
    )

    def twice() -> None:
        monitor = ag.DriftMonitor(calibrated)
        monitor.observe(decision)
        monitor.observe(decision)

    def labelled_twice() -> None:
        monitor = ag.DriftMonitor(calibrated)
        monitor.observe(decision)
        monitor.update(decision, 0)
        monitor.update(decision, 0)

    def monitor() -> ag.DriftMonitor:
        return ag.DriftMonitor(calibrated)

    return {
        "no rule": (
            lambda: ag.DriftMonitor(ag.AgreeStop(0.9, TIMES, 1)),  # type: ignore[arg-type]
            "of type AgreeStop, which is not calibrated: call rule.calibrate",
        ),
        "delta": (lambda: ag.DriftMonitor(calibrated, delta=0), "strictly between 0 and 1"),
        "seed": (lambda: ag.DriftMonitor(calibrated, seed=-1), "seed is -1"),
        "no decision": (lambda: monitor().observe(3), "give a Decision"),  # type: ignore[arg-type]
        "other classes": (
            lambda: monitor().observe(ag.Decision(1, 0, (4,))),
            "more than 4 classes",
        ),
        "key of a batch": (
            lambda: monitor().observe(calibrated.decide(scores(3)), key="a"),
            "one by one",
        ),
        "observed twice": (twice, "give each decision once"),
        "labelled twice": (labelled_twice, "does not wait for a label: it has its label already"),
        "unknown key": (lambda: monitor().update("a", 0), "no decision with the key 'a' waits"),
        "label too large": (
            lambda: monitor().update(decision, 4),
            "label is 4: give a class index from 0 to 3",
        ),
        "label of another type": (lambda: monitor().update(decision, 1.0), "label is 1.0"),
        "labels of a batch": (
            lambda: monitor().update(calibrated.decide(scores(3)), [1, 2]),
            "labels has 2 entries for 3 inputs",
        ),
        "None among labels": (
            lambda: monitor().update(calibrated.decide(scores(1)), NONE),
            "labels holds None: give None for the whole",
        ),
        "neither decision nor key": (
            lambda: monitor().update(1.5, 0),  # type: ignore[arg-type]
            "decision is 1.5: give a Decision",
        ),
        "unknown number": (lambda: monitor().update(0, 0), "decision 0 does not wait"),
        "miss rate": (lambda: monitor().labels_to_alarm(1.5), "miss_rate is 1.5"),
        "no alarm": (lambda: monitor().recalibrate(scores(3)), "there was no alarm"),
        "groups": (
            lambda: ag.DriftMonitor(grouped).update(decision, 0),
            "calibrate one for each group",
        ),
        "weights": (lambda: ag.DriftMonitor(weighted).update(decision, 0), "shift by weights"),
        "bonferroni": (
            lambda: ag.DriftMonitor(bonferroni).update(decision, 0),
            "calibrate it with delta",
        ),
        "confidence": (
            lambda: ag.DriftMonitor(confidence).update(decision, 0),
            "promises no share of hits",
        ),
        "loss": (lambda: ag.DriftMonitor(lossy).labels_to_alarm(0.5), "promises no share of hits"),
        "adaptive, no rule": (lambda: ag.AdaptiveRule(None), "call rule.calibrate"),  # type: ignore[arg-type]
        "adaptive, rate": (lambda: ag.AdaptiveRule(calibrated, rate=0), "rate is 0"),
        "adaptive, bonferroni": (lambda: ag.AdaptiveRule(bonferroni), "moves one threshold"),
        "adaptive, groups": (lambda: ag.AdaptiveRule(grouped), "moves one threshold"),
        "adaptive, loss": (lambda: ag.AdaptiveRule(lossy), "moves one threshold"),
        "adaptive, bound": (lambda: ag.AdaptiveRule(calibrated).bound(0), "inputs is 0"),
        "adaptive, label": (
            lambda: ag.AdaptiveRule(calibrated).update(decision, -1),
            "label is -1",
        ),
    }


@pytest.mark.parametrize("name", list(make_bad()))
def test_bad_input_is_refused_with_a_sentence(name: str) -> None:
    wrong, words = make_bad()[name]
    with pytest.raises(ag.InputError, match=re.escape(words)) as refused:
        wrong()
    assert len(str(refused.value)) < 300


def test_inputs_that_the_rule_was_calibrated_on_are_not_watched() -> None:
    calibrated = agree_stop()
    monitor, known = ag.DriftMonitor(calibrated), calibrated.decide(scores(200))
    words = "a monitor watches new inputs: 200 of the 200 rows were used for calibration"
    with pytest.raises(ag.InputError, match=words):
        monitor.observe(known)
    with pytest.raises(ag.InputError, match=words):
        monitor.update(known, truth(scores(200)))
    assert monitor.observed == monitor.inputs.count == 0


def test_a_refused_label_changes_nothing() -> None:
    monitor, adaptive = ag.DriftMonitor(agree_stop()), ag.AdaptiveRule(agree_stop())
    for one in (monitor, adaptive):
        with pytest.raises(ag.InputError):
            one.update(ag.Decision(1, 0, (0,), first_risk=0.5), 9)
    assert monitor.observed == monitor.inputs.count == 0 and "0 decisions" in repr(adaptive)


def test_a_gate_that_never_lets_inputs_stop_early_may_still_miss_at_the_end() -> None:
    sample = make_sample(400, checkpoints=3, members=1)
    times = (1, 2, 3)
    closed = ag.Gate(ag.TopMass(), np.zeros(3), times, None, slack=-1e6, ends=(3,))
    with pytest.warns(ag.CalibrationWarning):
        calibrated = ag.AgreeStop(0.8, times, 1, gate=closed).calibrate(
            sample.log_confidence[:200], sample.labels[:200]
        )
    assert calibrated.never_stops and ag.DriftMonitor(calibrated).level is None


def test_a_rule_with_groups_is_calibrated_again_with_groups() -> None:
    sample = make_sample(400, checkpoints=3, members=1)
    groups = np.arange(200) % 2
    calibrated = ag.AgreeStop(0.8, (1, 2, 3), 1).calibrate(
        sample.log_confidence[:200], sample.labels[:200], groups=groups
    )
    monitor = ag.DriftMonitor(calibrated)
    decisions = calibrated.decide(sample.log_confidence[200:], groups=groups)
    monitor.observe(decisions)
    monitor.alarms = (Alarm("inputs", 1, 100.0),)
    rest = sample.log_confidence[201:], sample.labels[201:]
    with pytest.raises(ag.InputError, match="was calibrated with groups"):
        monitor.recalibrate(*rest)
    assert monitor.recalibrate(*rest, groups=groups[1:]).group_names == ("0", "1")
