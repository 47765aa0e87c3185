"""False alarms promised an hour: thresholds as defined, no bag of recordings of any lengths breaks
the promise, and evaluations count the same.
"""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag

STEP = "0.5"  # seconds
RESTS = 2
EVENT = [(3, 5)]


def slow_alarms(scores: Any, threshold: float) -> list[int]:
    found: list[int] = []
    for step, score in enumerate(scores):
        if score > threshold and not (found and step - found[-1] <= RESTS):
            found.append(step)
    return found


def slow_false(scores: Any, threshold: float) -> int:
    return sum(not any(a <= step < b for a, b in EVENT) for step in slow_alarms(scores, threshold))


def hours(scores: Any) -> Fraction:
    return len(scores) * Fraction(STEP) / 3600


def slow_threshold(recordings: list[Any], allowed: Fraction, cap: int, people: list[int]) -> float:
    """The least threshold with Σ (largest capped counts) + cap <= allowed · Σ hours."""
    most, best = [0] * len(recordings), math.inf
    share = [Fraction(1, people.count(one)) for one in people]
    budget = allowed * sum(part * hours(one) for part, one in zip(share, recordings, strict=True))
    for threshold in [*sorted({*np.concatenate(recordings).tolist()}, reverse=True), -math.inf]:
        counts = [min(slow_false(one, threshold), cap) for one in recordings]
        most = [max(pair) for pair in zip(most, counts, strict=True)]
        if sum(part * one for part, one in zip(share, most, strict=True)) + cap > budget:
            return best
        best = threshold
    return best


def bag(rng: np.random.Generator, n: int) -> list[Any]:
    return [rng.integers(6, size=int(size)).astype(float) for size in rng.integers(6, 30, size=n)]


@pytest.mark.filterwarnings("ignore::agreestop.CalibrationWarning")
@pytest.mark.parametrize("seed", range(20))
def test_thresholds_are_those_of_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    recordings, cap = bag(rng, 12), int(rng.integers(1, 4))
    people = rng.integers(6, size=12).tolist() if seed % 2 else list(range(12))
    allowed = Fraction(int(rng.integers(400, 4000)))
    spotter = ag.Spotter(allowed, cap, RESTS, per="hour", step_seconds=STEP)
    expected = slow_threshold(recordings, allowed, cap, people)
    marks = [EVENT] * 12
    if cap > allowed * sum(
        Fraction(1, people.count(p)) * hours(one) for p, one in zip(people, recordings, strict=True)
    ):
        with pytest.raises(ag.InputError, match="hours are needed"):
            spotter.calibrate(recordings, marks, people=people)
        return
    if expected == -math.inf:
        with pytest.raises(ag.InputError, match="cap"):
            spotter.calibrate(recordings, marks, people=people)
        return
    found = spotter.calibrate(recordings, marks, people=people)
    assert found.kth_value == expected <= found.threshold
    assert not any(expected < score <= found.threshold for score in np.concatenate(recordings))


def broken(bags: list[list[Any]], allowed: Fraction, threshold_of: Any) -> int:
    """The bags of which each recording is left out in turn, with more false alarms than
    promised.
    """
    count = 0
    for one in bags:
        losses = 0
        for row, left in enumerate(one):
            losses += min(slow_false(left, threshold_of(one[:row] + one[row + 1 :])), 2)
        count += losses > allowed * sum(map(hours, one))
    return count


@pytest.mark.filterwarnings("ignore::agreestop.CalibrationWarning")
def test_no_bag_of_recordings_of_any_lengths_breaks_the_promise() -> None:
    """As a control, thresholds that leave no room for the new recording do."""
    rng, allowed = np.random.default_rng(0), Fraction(400)
    bags = [bag(rng, 4) for _ in range(60)]
    spotter = ag.Spotter(allowed, 2, RESTS, per="hour", step_seconds=STEP)

    def ours(recordings: list[Any]) -> float:
        try:
            return spotter.calibrate(recordings, [EVENT] * len(recordings)).threshold
        except ag.InputError:  # too few hours
            return math.inf

    def control(recordings: list[Any]) -> float:
        budget = allowed * sum(map(hours, recordings))
        grid = sorted(set(np.concatenate(recordings).tolist()))
        return next(
            level
            for level in grid
            if sum(min(slow_false(one, level), 2) for one in recordings) <= budget
        )

    assert broken(bags, allowed, ours) == 0 < broken(bags, allowed, control)


def test_evaluations_count_the_promise_and_files_keep_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    spotter = ag.Spotter(100, 2, RESTS, per="hour", step_seconds=STEP)
    assert spotter.hours_needed == pytest.approx(0.02) and spotter.recordings_needed == 1
    spotter.calibrate([rng.normal(size=80) for _ in range(9)]).save(tmp_path / "rule")
    found = ag.Spotter.load(tmp_path / "rule")
    assert found.spotter == spotter and "100 false alarms an hour" in found.guarantee
    bold, fresh = found.with_threshold(1.0), [rng.normal(size=size) for size in (60, 90, 150)]
    result = bold.evaluate(fresh)
    counts = [len(bold.alarms(one)) for one in fresh]
    total = 300 * 0.5 / 3600
    assert result.per_hour == pytest.approx(sum(counts) / total)
    assert result.capped == pytest.approx(sum(min(one, 2) for one in counts) / total)
    assert result.target == "" and "promised" not in repr(result)  # its threshold is too low
    kept = found.evaluate(fresh)
    assert kept.target == "at most 100 an hour"
    assert f"counted; promised at most 100 an hour {kept.capped!r}" in repr(kept)
    assert bold.evaluate(fresh, step_seconds=1).per_hour == pytest.approx(sum(counts) / total / 2)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"per": "hour"}, "step_seconds is missing"),
        ({"per": "day", "step_seconds": 1}, "per is 'day'"),
        ({"step_seconds": 0}, "step_seconds is 0"),
        ({"step_seconds": math.nan}, "step_seconds is nan"),
        ({"false_alarms": 0, "per": "hour", "step_seconds": 1}, "false_alarms is 0"),
    ],
)
def test_bad_settings_get_a_sentence(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ag.InputError, match=words):
        ag.Spotter(**{"false_alarms": 0.1, **settings})


def test_few_hours_get_a_sentence() -> None:
    spotter = ag.Spotter("1/8", per="hour", step_seconds=3600)
    with pytest.raises(ag.InputError, match=r"of 6 hours .* at least 8 hours"):
        spotter.calibrate(list(np.zeros((3, 2))))


def test_a_cap_that_hides_false_alarms_is_refused() -> None:
    spotter = ag.Spotter("1/8", per="hour", step_seconds=3600)
    with pytest.raises(ag.InputError, match=r"recordings of 10 hours may have 1.25 .* cap=1"):
        spotter.calibrate(list(np.zeros((3, 10))))


def test_as_many_hours_as_are_needed_are_enough() -> None:
    """Eight for one false alarm in eight; and recordings of eight may have one each, as the cap."""
    spotter = ag.Spotter("1/8", per="hour", step_seconds=3600)
    found = spotter.calibrate(list(np.arange(8.0).reshape(2, 4)))
    assert found.kth_value == 7
    with pytest.raises(ag.InputError, match="may have 1 false alarms each"):
        spotter.calibrate(list(np.arange(24.0).reshape(3, 8)))
