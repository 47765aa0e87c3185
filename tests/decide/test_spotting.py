"""Spotters: thresholds against their definition, the promise on every small bag, and controls that
must break it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import combinations_with_replacement, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from agreestop.common.levels import Rounding
from agreestop.decide.spotting import Recordings, load_recordings

Floats = np.ndarray[Any, np.dtype[np.float64]]
Marks = list[tuple[int, int]]


def slow_alarms(scores: Floats, threshold: float, rest: int) -> list[int]:
    """Alarms step by step, as the definition says."""
    alarms: list[int] = []
    for step, score in enumerate(scores):
        if score > threshold and (not alarms or step - alarms[-1] > rest):
            alarms.append(step)
    return alarms


def slow_false(scores: Floats, events: Marks, near: int, alarms: list[int]) -> int:
    return sum(
        not any(start - near <= step < end + near for start, end in events) for step in alarms
    )


def slow_missed(events: Marks, within: int, alarms: list[int]) -> Fraction:
    found = sum(any(start <= step < end + within for step in alarms) for start, end in events)
    return Fraction(len(events) - found, max(len(events), 1))


def thresholds_of(recordings: list[Floats]) -> list[float]:
    """All thresholds that differ, from the boldest."""
    return [-math.inf, *sorted(set(np.concatenate(recordings).tolist()))]


def slow_threshold(
    spotter: ag.Spotter, recordings: list[Floats], events: list[Marks], near: int, people: list[int]
) -> float:
    """The least threshold at which the means over people of the largest capped counts keep the
    promise.
    """
    grid = thresholds_of(recordings)
    K = len(set(people))
    best = math.inf
    most = [0] * len(recordings)
    for threshold in reversed(grid):
        for row, (scores, marks) in enumerate(zip(recordings, events, strict=True)):
            count = slow_false(scores, marks, near, slow_alarms(scores, threshold, spotter.rest))
            most[row] = max(most[row], min(count, spotter.cap))
        total = sum(
            (Fraction(most[row], people.count(people[row])) for row in range(len(most))),
            Fraction(0),
        )
        if (total + spotter.cap) / (K + 1) > spotter.allowed:
            return best
        best = threshold
    return best


def slow_limit(
    spotter: ag.Spotter, recordings: list[Floats], events: list[Marks], people: list[int]
) -> float:
    """The threshold that every one must be below so that the means over people of the largest
    shares of missed events keep the promise, from recordings with events alone.
    """
    some = [row for row, marks in enumerate(events) if marks]
    recordings, events = [recordings[row] for row in some], [events[row] for row in some]
    people = [people[row] for row in some]
    worst = [Fraction(0)] * len(recordings)
    for threshold in thresholds_of(recordings):
        for row, (scores, marks) in enumerate(zip(recordings, events, strict=True)):
            worst[row] = max(
                worst[row],
                slow_missed(marks, spotter.within, slow_alarms(scores, threshold, spotter.rest)),
            )
        means = [one / people.count(people[row]) for row, one in enumerate(worst)]
        if (sum(means) + 1) / (len(set(people)) + 1) > Fraction(str(spotter.missed)):
            return threshold
    return math.inf


def test_scores_that_rounding_may_swap_leave_room_between_two_promises() -> None:
    """No gap but the one that is all of both: between 1 and the limit lies a score, nearer than
    rounding.
    """
    eta = Rounding().largest(1.0)
    recordings = [
        np.array([event, 0.0, false])
        for event, false in [(1 + 1.5 * eta, 0), (1 + 3 * eta, 0), (7, 1), (8, 5)]
    ]
    found = ag.Spotter("1/2", 1, rest=0, missed="1/2").calibrate(recordings, [[(0, 1)]] * 4)
    assert found.kth_value == 1 and found.kth_value < found.threshold < 1 + 3 * eta


@pytest.mark.parametrize(("second", "kept"), [(2.4, True), (1.5, False)])
def test_a_threshold_stays_clear_of_the_limit_by_rounding(second: float, kept: bool) -> None:
    """No gap near 1, and the limit `second` roundings above: one rounding is left on each side, or
    there is no threshold.
    """
    eta = Rounding().largest(1.0)
    places = [(0.7, 0), (second, 0), (2.6, 1), (3.7, 5)]
    recordings = [
        np.array([1 + place * eta, *np.zeros(8), false], dtype=float) for place, false in places
    ]
    spotter, marks = ag.Spotter("1/2", 1, rest=0, missed="1/2"), [[(0, 1)]] * 4
    if not kept:
        with pytest.raises(ag.InputError, match="no threshold keeps both"):
            spotter.calibrate(recordings, marks)
        return
    found = spotter.calibrate(recordings, marks)
    assert found.limit is not None and found.kth_value == 1
    assert 0.9 * eta < found.threshold - 1 < found.limit - 1 - 0.9 * eta


def draw_marks(rng: np.random.Generator, steps: int) -> Marks:
    starts = np.flatnonzero(rng.random(steps) < 0.15)
    return [(int(start), min(int(start) + int(rng.integers(1, 4)), steps)) for start in starts]


@pytest.mark.parametrize("seed", range(60))
def test_thresholds_are_those_of_the_definition(seed: int) -> None:
    """With ties, events, rests, caps and people; alarms of a batch and of a stream are the same."""
    rng = np.random.default_rng(seed)
    values = [3, 6, 1000][seed % 3]
    recordings = [rng.integers(values, size=rng.integers(8, 25)).astype(float) for _ in range(9)]
    events = [draw_marks(rng, len(one)) for one in recordings]
    people = rng.permutation([0, 0, 1, 2, 3, 3, 3, 4, 5]).tolist() if seed % 2 else list(range(9))
    cap, rest, near, within = (int(rng.integers(low, 4)) for low in (1, 0, 0, 0))
    spotter = (
        ag.Spotter(Fraction(cap, int(rng.integers(2, 7))), cap, rest)
        if cap > 1
        else ag.Spotter("2/7", 1, rest)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ag.CalibrationWarning)
        found = spotter.calibrate(recordings, events, near, people)
        assert found.kth_value == slow_threshold(spotter, recordings, events, near, people)
        sure = ag.Spotter(cap - Fraction(1, 10), cap, rest, missed="9/10", within=within)
        limit = slow_limit(sure, recordings, events, people)
        lowest = slow_threshold(sure, recordings, events, near, people)
        try:
            both = sure.calibrate(recordings, events, near, people)
        except ag.InputError as refused:
            assert "no threshold keeps both" in str(refused) and not lowest < limit
        else:
            assert both.limit == limit and lowest <= both.threshold < limit
    for scores in recordings[:3]:
        expected = slow_alarms(scores, found.threshold, rest)
        assert found.alarms(scores).tolist() == expected
        stream = found.stream()
        detections = [one for one in map(stream.push, scores) if one is not None]
        assert [one.index for one in detections] == expected
        assert [one.number for one in detections] == list(range(len(expected)))


PLAIN = ag.Spotter("1/4", 1, rest=3)
MARKS: Marks = [(0, 1)]
KINDS = [
    np.array([first, second, 0, 0, last], dtype=float)
    for first, second, last in product(range(3), range(3), (0, 2))
]


def calibrated_threshold(recordings: list[Floats]) -> float:
    return PLAIN.calibrate(recordings, [MARKS] * len(recordings)).threshold


def without_the_envelope(recordings: list[Floats]) -> float:
    """A control: the boldest threshold at which the counts themselves keep the promise."""
    for threshold in thresholds_of(recordings):
        false = [
            slow_false(one, MARKS, 0, slow_alarms(one, threshold, PLAIN.rest)) for one in recordings
        ]
        if (sum(map(bool, false)) + 1) / (len(recordings) + 1) <= PLAIN.allowed:
            return threshold
    return math.inf


def broken_bags(threshold_of: Callable[[list[Floats]], float]) -> int:
    """In how many of all bags of four recordings, each left out in turn, more than one has a false
    alarm.
    """
    triples = combinations_with_replacement(range(len(KINDS)), 3)
    thresholds: dict[tuple[int, ...], float] = {}
    for triple in triples:
        thresholds[triple] = threshold_of([KINDS[kind] for kind in triple])
    broken = 0
    for bag in combinations_with_replacement(range(len(KINDS)), 4):
        losses = 0
        for place, kind in enumerate(bag):
            alarms = slow_alarms(
                KINDS[kind], thresholds[bag[:place] + bag[place + 1 :]], PLAIN.rest
            )
            losses += bool(slow_false(KINDS[kind], MARKS, 0, alarms))
        broken += losses > 1
    return broken


@pytest.mark.filterwarnings("ignore::agreestop.CalibrationWarning")
def test_no_bag_of_recordings_breaks_the_promise_and_without_the_envelope_some_do() -> None:
    assert broken_bags(calibrated_threshold) == 0
    assert broken_bags(without_the_envelope) > 0


def missed_too_often(event_free: int) -> int:
    """In how many bags of four recordings with one event, and of some without, each with an event
    left out in turn, more than a third of the left-out events are not found.
    """
    spotter = ag.Spotter("4/5", 1, rest=1, missed="1/3", within=1)
    kinds = [np.array(one, dtype=float) for one in product(range(3), range(3), (0, 1))]
    quiet = [np.zeros(3)] * event_free
    limits: dict[tuple[int, ...], float | None] = {}
    for others in combinations_with_replacement(range(len(kinds)), 3):
        marks = [[(1, 2)]] * 3 + [[]] * event_free
        try:
            found = spotter.calibrate([kinds[kind] for kind in others] + quiet, marks)
            limits[others] = found.threshold
        except ag.InputError:  # no threshold keeps both, so no event goes by unnoticed
            limits[others] = None
    broken = 0
    for bag in combinations_with_replacement(range(len(kinds)), 4):
        missed = Fraction(0)
        for place, kind in enumerate(bag):
            threshold = limits[bag[:place] + bag[place + 1 :]]
            if threshold is not None:
                alarms = slow_alarms(kinds[kind], threshold, spotter.rest)
                missed += slow_missed([(1, 2)], spotter.within, alarms)
        broken += missed > Fraction(4, 3)
    return broken


@pytest.mark.filterwarnings("ignore::agreestop.CalibrationWarning")
@pytest.mark.parametrize("event_free", [0, 1, 5])
def test_no_bag_misses_more_events_than_promised_whatever_recordings_have_none(
    event_free: int,
) -> None:
    assert missed_too_often(event_free) == 0


def noisy_recordings(rng: np.random.Generator, n: int, steps: int = 200) -> list[Floats]:
    """Recordings whose steps depend on each other: each has a level of its own."""
    return list(rng.normal(size=(n, steps)) + 2 * rng.normal(size=(n, 1)))


@pytest.mark.slow
@pytest.mark.parametrize(("allowed", "cap", "n"), [("1/10", 1, 29), ("1/2", 4, 31)])
def test_new_recordings_have_no_more_false_alarms_than_promised(
    allowed: str, cap: int, n: int
) -> None:
    """Over 400 draws; as a control, a quantile of the steps of two long recordings, which takes
    steps as exchangeable.
    """
    rng = np.random.default_rng(cap)
    losses: dict[str, list[float]] = {"spotter": [], "steps": []}
    spotter = ag.Spotter(allowed, cap, rest=10)
    share = float(Fraction(allowed))
    for _ in range(400):
        new = noisy_recordings(rng, 20)
        found = spotter.calibrate(noisy_recordings(rng, n))
        steps = np.concatenate(noisy_recordings(rng, 2, 200 * n))
        fixed = float(np.sort(steps)[-math.floor((len(steps) + 1) * share / 200)])
        for name, threshold in (("spotter", found.threshold), ("steps", fixed)):
            counts = [min(len(found.with_threshold(threshold).alarms(one)), cap) for one in new]
            losses[name].append(float(np.mean(counts)))
    error = {name: np.std(one, ddof=1) / math.sqrt(len(one)) for name, one in losses.items()}
    assert np.mean(losses["spotter"]) < share + 4 * error["spotter"]
    assert np.mean(losses["spotter"]) > share / 3  # it is not idle
    assert np.mean(losses["steps"]) > share + 4 * error["steps"]


def test_scores_that_another_run_rounds_otherwise_keep_the_promise() -> None:
    """Without events: each score of calibration and of the new recording moves by up to the
    rounding.
    """
    rng, size = np.random.default_rng(0), 1.8e-6
    spotter = ag.Spotter("1/5", 1, rest=2)
    broken = 0
    for _ in range(100):
        bag = [rng.integers(4, size=6) + rng.integers(-1, 2, size=6) * 1e-6 for _ in range(5)]
        losses = 0
        for row, one in enumerate(bag):
            others = [
                other + rng.uniform(-size, size, 6) / 2
                for number, other in enumerate(bag)
                if number != row
            ]
            found = spotter.calibrate(others)
            losses += bool(len(found.alarms(one + rng.uniform(-size, size, 6) / 2)))
        broken += losses > 1
    assert broken == 0


def test_an_evaluation_counts_what_the_definition_says() -> None:
    rng = np.random.default_rng(3)
    spotter = ag.Spotter("1/4", 1, rest=3, within=2).calibrate(
        [rng.normal(size=50) for _ in range(9)], near=1
    )
    recordings = [rng.normal(size=60) for _ in range(30)]
    events = [draw_marks(rng, 60) for _ in recordings]
    bold = spotter.with_threshold(1.2)
    result = bold.evaluate(recordings, events, step_seconds=0.1)
    alarms = [slow_alarms(one, 1.2, 3) for one in recordings]
    pairs = list(zip(events, alarms, strict=True))
    missed = sum(slow_missed(marks, 2, own) * len(marks) for marks, own in pairs)
    count = sum(map(len, events))
    delays = [
        min(step for step in own if step >= start) - start
        for marks, own in pairs
        for start, end in marks
        if any(start <= step < end + 2 for step in own)
    ]
    false = [
        slow_false(one, marks, 0, own) for one, (marks, own) in zip(recordings, pairs, strict=True)
    ]
    assert result.found is not None and result.delay is not None and result.per_hour is not None
    assert result.events == count and result.found == pytest.approx(1 - float(missed) / count)
    assert result.delay == pytest.approx(np.mean(delays))
    near_one = [
        slow_false(one, marks, spotter.near, own)
        for one, (marks, own) in zip(recordings, pairs, strict=True)
    ]
    assert spotter.near == 1 and sum(near_one) < sum(false)
    assert result.false_alarms == pytest.approx(np.mean(near_one))
    assert result.any_false_alarm == pytest.approx(np.mean([one > 0 for one in near_one]))
    assert result.per_hour == pytest.approx(sum(near_one) / (30 * 60 * 0.1 / 3600))
    assert result.false_alarms.low < result.false_alarms < result.false_alarms.high
    silent = spotter.with_threshold(99.0).evaluate(recordings, events)
    assert silent.found is not None and silent.delay is None
    assert float(silent.found) == 0 and silent.found.high > 0 and silent.any_false_alarm.high > 0


def uneven(rng: np.random.Generator, n: int) -> list[Floats]:
    """Recordings of unequal length, some of which are louder than others."""
    levels = rng.lognormal(0, 0.25, size=n)
    return [level * rng.normal(size=rng.integers(100, 300)) for level in levels]


@pytest.mark.slow
def test_intervals_of_ten_recordings_hold_the_true_rate_nearly_as_often_as_they_say() -> None:
    """Percentiles of the bootstrap alone hold it in about 84 % of the draws."""
    rng = np.random.default_rng(0)
    bold = ag.Spotter("1/4").calibrate(uneven(rng, 9)).with_threshold(2.5)
    truth = np.mean([len(bold.alarms(one)) for one in uneven(rng, 20_000)])
    found = [bold.evaluate(uneven(rng, 10)).false_alarms for _ in range(200)]
    assert np.mean([one.low <= truth <= one.high for one in found]) > 0.89


def test_one_recording_says_nothing_about_others() -> None:
    bold = ag.Spotter("1/4").calibrate(example(9)).with_threshold(0.0)
    result = bold.evaluate([np.ones(30), np.ones(20)], people=["a", "a"], step_seconds=1)
    assert result.per_hour is not None and result.per_hour.low == 0
    assert math.inf in (result.false_alarms.high, result.per_hour.high)
    assert result.any_false_alarm.low < 0.5


def test_files_give_back_spotters_and_recordings(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    recordings = [rng.normal(size=steps) for steps in (30, 50, 40)]
    events = [[(3, 5)], [], [(1, 4), (20, 30)]]
    data = Recordings.of(recordings, events, ["a", "b", "b"])
    data.save(tmp_path / "recordings.npz")
    again = load_recordings(tmp_path / "recordings.npz")
    assert (
        again.people is not None
        and again.ids == data.ids
        and again.people.tolist() == ["a", "b", "b"]
    )
    assert again.events is not None and data.events is not None
    assert all(np.array_equal(*pair) for pair in zip(again.events, data.events, strict=True))
    spotter = ag.Spotter(0.5, rest=3).calibrate(data)
    spotter.save(tmp_path / "rule")
    loaded = ag.Spotter.load(tmp_path / "rule")
    assert (loaded.threshold, loaded.ids, loaded.people) == (spotter.threshold, spotter.ids, 2)
    assert loaded.guarantee == spotter.guarantee and "new person" in loaded.guarantee
    with pytest.raises(ag.InputError, match=r"holds a spotter, .* ag\.Spotter\.load"):
        ag.load_rule(tmp_path / "rule")
    ag.AgreeStop(0.9, (1, 2), 1).calibrate(ag.simulate_scores(20, steps=2)).save(tmp_path / "rule")
    with pytest.raises(ag.InputError, match=r"holds a rule, and a spotter .* ag\.load_rule"):
        ag.Spotter.load(tmp_path / "rule")


def example(n: int = 20, steps: int = 40) -> list[Floats]:
    return list(np.random.default_rng(0).normal(size=(n, steps)))


IN_WORDS: Any = "0.9"
SEVERAL: Any = np.array([0, 1])
REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "few recordings": (lambda: ag.Spotter(0.05).calibrate(example(18)), "at least 19"),
    "few people": (lambda: ag.Spotter(0.1).calibrate(example(20), people=[0, 1] * 10), "2 people"),
    "nan": (
        lambda: ag.Spotter(0.1).calibrate([*example(), np.full(9, np.nan)]),
        r"recordings\[20\]",
    ),
    "nan in a stream": (
        lambda: ag.Spotter(0.1).calibrate(example()).stream().push(math.nan),
        "score is nan",
    ),
    "infinite in a stream": (
        lambda: ag.Spotter(0.1).calibrate(example()).stream().push(math.inf),
        "score is inf",
    ),
    "no number in a stream": (
        lambda: ag.Spotter(0.1).calibrate(example()).stream().push("a"),  # type: ignore[arg-type]
        "score is 'a'",
    ),
    "a jump": (
        lambda: ag.Spotter(0.1).calibrate(example()).stream().push(0.0, step=3),
        "step is 3",
    ),
    "short": (lambda: ag.Spotter(0.1, rest=40).calibrate(example()), "the rest is 40"),
    "events everywhere": (
        lambda: ag.Spotter(0.1).calibrate(example(), [[(0, 40)]] * 20),
        "every step",
    ),
    "an event outside": (
        lambda: ag.Spotter(0.1).calibrate(example(), [[(0, 41)]] * 20),
        "of 40 steps",
    ),
    "an event before the first step": (
        lambda: ag.Spotter(0.1).calibrate(example(), [[(-1, 3)]] * 20),
        r"holds \(-1, 3\)",
    ),
    "an event without a step": (
        lambda: ag.Spotter(0.1).calibrate(example(), [[(5, 5)]] * 20),
        r"holds \(5, 5\)",
    ),
    "as many as the cap": (lambda: ag.Spotter(1), "below the cap, 1"),
    "no cap": (lambda: ag.Spotter(0.1, cap=0), "cap is 0"),
    "a rest before": (lambda: ag.Spotter(0.1, rest=-1), "rest is -1"),
    "within before": (lambda: ag.Spotter(0.1, within=-1), "within is -1"),
    "events of more": (
        lambda: ag.Spotter(0.1).calibrate(example(), [[]] * 21),
        "events has 21 entries for 20",
    ),
    "events of others": (lambda: ag.Spotter(0.1).calibrate(example(), [[]]), "events has 1"),
    "one recording": (lambda: ag.Spotter(0.1).calibrate(example()[0]), "list of arrays"),
    "no recordings": (lambda: ag.Spotter(0.1).calibrate(None), "recordings is None"),
    "a number of events": (lambda: ag.Spotter(0.1).calibrate(example(), 3), "events is 3"),  # type: ignore[arg-type]
    "none": (lambda: ag.Spotter(0.1).calibrate([]), "empty"),
    "above the cap": (lambda: ag.Spotter(1.5), "false_alarms is 1.5"),
    "no number": (lambda: ag.Spotter("many"), "false_alarms is 'many'"),
    "missed without events": (lambda: ag.Spotter(0.1, missed=0.1).calibrate(example()), "missed"),
    "few recordings for missed": (
        lambda: ag.Spotter(0.5, missed="1/6").calibrate(example(4), [[(0, 1)]] * 4),
        r"4 recordings with events cannot promise .* 1/6 of the events are missed: at least 5",
    ),
    "complex scores": (
        lambda: ag.Spotter(0.1).calibrate([one + 1j for one in example()]),
        r"recordings\[0\] has dtype complex128",
    ),
    "near without an end": (
        lambda: ag.Spotter(0.1).calibrate(example(), [[(3, 5)]] * 20, near=10**30),
        "every step",
    ),
    "a clock of texts": (
        lambda: ag.Spotter(0.1).calibrate(example()).stream().push(0.0, step="0"),  # type: ignore[arg-type]
        "step is '0'",
    ),
    "a path": (lambda: ag.Spotter(0.1).calibrate("a.npz"), "recordings is 'a.npz'"),
    "no threshold": (
        lambda: ag.Spotter(0.1).calibrate(example()).with_threshold(math.nan),
        "threshold is nan",
    ),
    "a threshold of truth": (
        lambda: ag.Spotter(0.1).calibrate(example()).with_threshold(True),
        "threshold is True",
    ),
    "no level": (
        lambda: ag.Spotter(0.1).calibrate(example()).evaluate([np.zeros(9)], confidence=2),
        "confidence is 2",
    ),
    "confidence in words": (
        lambda: ag.Spotter(0.1).calibrate(example()).evaluate(np.eye(40), confidence=IN_WORDS),
        "confidence is '0.9'",
    ),
    "a score that no float holds": (
        lambda: ag.Spotter(0.1).calibrate(example()).stream().push(10**400),
        "give one number for each step",
    ),
    "several clocks": (
        lambda: ag.Spotter(0.1).calibrate(example()).stream().push(0.1, step=SEVERAL),
        "where step 0 is next",
    ),
    "not calibrated": (lambda: ag.Spotter(0.1).stream(), "not calibrated yet"),
    "used recordings": (
        lambda: ag.Spotter(0.1).calibrate(example()).evaluate(example()),
        "set the threshold",
    ),
}


def test_silent_recordings_differ_and_near_counts_from_the_first_and_last_step() -> None:
    silent = np.zeros(40)
    spotter = ag.Spotter(0.1).calibrate([*example(), silent], [[]] * 21, near=2)
    found = spotter.evaluate([silent + 0.0, *np.eye(40)[5:12] * 99], [[]] + [[(7, 10)]] * 7)
    assert float(found.false_alarms) == 0  # steps 5 to 11, for an event of steps 7 to 9


def test_a_stream_without_an_end_does_not_suit_a_rule_for_finite_inputs() -> None:
    risk = np.random.default_rng(0).random((40, 5))
    session = ag.StopRule(target=0.8).calibrate(risk, risk > 0.9).stream()
    with pytest.raises(ag.InputError, match="without an end"):
        for _ in range(6):
            session.push(0.5)


def windows(streams: list[Floats], step: int) -> list[Floats]:
    return [one[at : at + 100] for one in streams for at in range(0, len(one) - 99, step)]


WALKS = [one.cumsum() for one in np.random.default_rng(0).normal(size=(40, 400))]
SHARED: dict[str, tuple[list[Floats], Any, str]] = {
    "whole recordings": (WALKS, None, ""),
    "windows that do not overlap": (windows(WALKS, 100), None, ""),
    "windows that overlap": (windows(WALKS, 50), None, " of 280 recordings share"),
    "windows of one person": (windows(WALKS, 50), np.repeat(np.arange(40), 7), ""),
    "copies of other people": ([*WALKS, *WALKS[:30]], np.arange(70), "60 of 70 people share"),
    "copies in another type": (
        [*WALKS[:20], *(one.astype(np.float32) for one in WALKS[:15])],
        None,
        "30 of 35 recordings share",
    ),
    "a few copies": ([*WALKS, *WALKS[:5]], None, ""),
    "silence before": ([np.concatenate([np.zeros(99), one]) for one in WALKS], None, ""),
    "short ones": ([one[:31] for one in WALKS[:20]] * 2, None, ""),
}


@pytest.mark.parametrize("case", SHARED)
def test_recordings_that_share_scores_are_noted(case: str) -> None:
    recordings, people, words = SHARED[case]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ag.Spotter(0.2).calibrate(recordings, people=people)
    said = [str(one.message) for one in caught if "share scores" in str(one.message)]
    assert bool(said) == bool(words) and all(words in one for one in said)
    assert all(one.filename == __file__ for one in caught)


@pytest.mark.parametrize("threshold", [2.0, math.inf, -math.inf])
def test_a_score_at_the_threshold_is_no_alarm(threshold: float) -> None:
    spotter = ag.Spotter(0.1).calibrate(example()).with_threshold(threshold)
    scores, stream = [1.0, 2.0, np.nextafter(2.0, 3.0)], spotter.stream()
    expected = [step for step, score in enumerate(scores) if score > threshold]
    assert spotter.alarms(scores).tolist() == expected
    assert [step for step, score in enumerate(scores) if stream.push(score)] == expected


def test_another_threshold_promises_only_what_it_keeps() -> None:
    """Stricter than calibrated, few false alarms; below the limit, few missed events."""
    rng = np.random.default_rng(3)
    recordings = [rng.normal(size=40) for _ in range(40)]
    for scores in recordings:
        scores[10] += 8
    spotter = ag.Spotter("1/4", missed="1/4", within=2).calibrate(recordings, [[(10, 12)]] * 40)
    assert spotter.limit is not None and spotter.kth_value < spotter.threshold < spotter.limit
    for threshold, few_false, few_missed in [
        (spotter.kth_value, True, True),
        (spotter.kth_value - 0.01, False, False),
        (spotter.limit, True, False),
    ]:
        said = spotter.with_threshold(threshold).guarantee
        assert ("any false alarm with probability at most 0.25" in said) == few_false
        assert ("not found within 2 steps" in said) == few_missed
        assert ("nothing is promised" in said) != few_false


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_gets_a_sentence(case: str) -> None:
    call, words = REFUSED[case]
    with pytest.raises(ag.InputError, match=words):
        call()


def test_a_score_with_two_values_that_often_reaches_the_higher_one_is_said_to_raise_no_alarm() -> (
    None
):
    recordings = [(one > 1).astype(float) for one in example()]
    with pytest.warns(ag.CalibrationWarning, match="highest score, 1, occurs in"):
        assert not len(ag.Spotter(0.1).calibrate(recordings).alarms(recordings[0]))


def test_as_many_recordings_as_missed_needs_are_enough() -> None:
    recordings = [np.array([9.0, 0.0, float(row)]) for row in range(5)]
    found = ag.Spotter("1/2", missed="1/6").calibrate(recordings, [[(0, 1)]] * 5)
    assert found.limit == 9 and found.threshold < 9


def test_an_alarm_finds_an_event_however_late_it_may_come() -> None:
    spotter = ag.Spotter(0.1).calibrate(example()).with_threshold(5.0)
    late = np.append(np.zeros(30), 9.0)
    assert float(spotter.evaluate([late], [[(0, 1)]], within=10**30).found or 0) == 1
    assert float(spotter.evaluate([late], [[(0, 1)]], within=29).found or 0) == 0


def test_scores_of_another_engine_are_evaluated_if_that_is_allowed() -> None:
    known = replace(Recordings.of(example()), engine="dense", ensemble_digest="a" * 20)
    spotter = ag.Spotter(0.1).calibrate(known)
    new = Recordings.of([one + 1e-3 for one in example()])
    for name, allowed in (("engine", "any_engine"), ("ensemble_digest", "any_members")):
        changed: Any = {name: "another"}
        given: Any = {allowed: True}
        other = replace(new, **changed)
        with pytest.raises(ag.InputError, match=allowed):
            spotter.evaluate(other)
        assert spotter.evaluate(other, **given).recordings == 20


def test_people_of_calibration_are_not_evaluated(tmp_path: Path) -> None:
    spotter = ag.Spotter("1/4").calibrate(example(), people=np.arange(20) // 4)
    spotter.save(tmp_path / "rule")
    new = [one + 1e-3 for one in example(4)]
    for one in (spotter, ag.Spotter.load(tmp_path / "rule")):
        with pytest.raises(ag.InputError, match="2 of the 4 people"):
            one.evaluate(new, people=[3, 4, 5, 6])
        assert one.evaluate(new, people=[5, 6, 7, 8]).recordings == 4


def test_a_threshold_that_recordings_share_below_a_higher_score_needs_no_warning() -> None:
    recordings = [np.array([0.0, top]) for top in (2.0, 1.0, 1.0, 1.0)]
    found = ag.Spotter("1/2").calibrate(recordings)
    assert found.kth_value == 1 and found.alarms(recordings[0]).tolist() == [1]


def test_a_threshold_lies_in_a_gap_near_the_least_one_that_keeps_the_promise() -> None:
    """A hundredth of the spread above it; without a gap, two roundings: one for the scores of
    calibration and one for those of a stream.
    """
    recordings = [np.array([0.0, 10.0, 20.0, 30.0 + row]) for row in range(20)]
    spread = float(np.subtract(*np.percentile(np.concatenate(recordings), [75, 25])))
    found = ag.Spotter(0.1).calibrate(recordings)
    assert found.kth_value == 48
    assert found.threshold == pytest.approx(48 + spread / 100, abs=1e-3)
    eta = Rounding().largest(1.0)
    dense = [np.append(np.zeros(40), 1 + place * eta) for place in (0, 1.2, 2.4, 3.6, 4.8, 6.0)]
    found = ag.Spotter("6/7", cap=1).calibrate(dense)  # all but one may have a false alarm
    assert found.kth_value == 1
    assert found.threshold - 1 == pytest.approx(2 * eta, rel=1e-3)


def test_files_keep_spotters_whose_settings_come_from_arrays(tmp_path: Path) -> None:
    """Also the threshold by which a rule knows the spotter before it."""
    numbers: Any = {"cap": np.int64(2), "rest": np.int32(3), "within": np.int16(4)}
    levels: Any = (np.float64(0.5), np.float32(0.1))
    thresholds: Any = (np.float32(0.1), np.float64(0.3), 2, math.inf)
    for allowed in levels:
        spotter = ag.Spotter(allowed, **numbers).calibrate(example())
        assert spotter.spotter == ag.Spotter(float(str(allowed)), cap=2, rest=3, within=4)
        for threshold in (spotter.threshold, *thresholds):
            moved = spotter.with_threshold(threshold)
            moved.save(tmp_path / "rule")
            loaded = ag.Spotter.load(tmp_path / "rule")
            assert loaded.spotter == moved.spotter
            assert repr(loaded.threshold) == repr(moved.threshold) == repr(float(threshold))


@pytest.mark.parametrize(
    "wrong", [{"threshold": math.nan}, {"near": -1}, {"n": 19}], ids=["threshold", "near", "n"]
)
def test_a_file_with_numbers_that_no_calibration_has_is_refused(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    replace(ag.Spotter(0.1).calibrate(example()), **wrong).save(tmp_path / "rule")
    with pytest.raises(ag.InputError, match="rule"):
        ag.Spotter.load(tmp_path / "rule")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"offsets": [1, 5, 9]}, "offsets must rise"),
        ({"offsets": [0, 5, 8]}, "offsets must rise"),
        ({"offsets": [0, 5, 5, 9]}, "offsets must rise"),
        ({"offsets": [0, 7, 5, 9]}, "offsets must rise"),
        ({"offsets": [0.0, 5.0, 9.0]}, "offsets must rise"),
        ({"events": [[2, 0, 1]]}, "a recording outside 0 to 1"),
        ({"events": [[-1, 0, 1]]}, "a recording outside 0 to 1"),
        ({"events": [[0, 1]]}, "recording, start and end"),
        ({"events": [[0, math.nan, 1]]}, "as whole numbers"),
    ],
)
def test_a_wrong_file_of_recordings_gets_a_sentence(
    tmp_path: Path, wrong: dict[str, Any], words: str
) -> None:
    np.savez(tmp_path / "new.npz", **{"scores": np.arange(9.0), "offsets": [0, 5, 9], **wrong})
    with pytest.raises(ag.InputError, match=words):
        load_recordings(tmp_path / "new.npz")


def test_events_of_a_recording_are_kept_in_their_order() -> None:
    events = [[(20, 30), (1, 4)], [], [(2, 9), (0, 9)]]
    data = Recordings.of(example(3), events)
    assert [one.tolist() for one in data.events or ()] == [[[1, 4], [20, 30]], [], [[0, 9], [2, 9]]]
