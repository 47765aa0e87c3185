"""IntervalStop: W and the promise against brute force over λ and enumerated bags, batches and
streams, files, figures, and wrong input.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from agreestop.common import Floats
from tests.decide.strategies import (
    assert_one_sentence,
    assert_same_decisions,
    at_kth_values,
    calibrate_quietly,
)

FORMS = ("scale", "ends")
SETTINGS: dict[str, dict[str, Any]] = {
    "both": {"max_width": 3.0},
    "upper": {"side": "upper", "limit": 1.0},
    "lower": {"side": "lower", "limit": 0.0},
}
CASES = [(form, side) for form in FORMS for side in SETTINGS]


def make(
    n: int, form: str = "scale", steps: int = 4, seed: int = 0, tied: bool = False
) -> ag.Numbers:
    """Estimates that become better with time; with `tied` only a few different numbers."""
    rng = np.random.default_rng([seed, n])
    truth = rng.normal(size=n) * 2
    scale = 2 / np.arange(1, steps + 1) * rng.uniform(0.5, 1.5, size=(n, steps))
    centre = truth[:, None] + scale * rng.normal(size=(n, steps))
    if tied:
        truth, centre, scale = np.round(truth), np.round(centre), np.ceil(scale)
    if form == "scale":
        return ag.Numbers(centre, scale, truth)
    return ag.Numbers(lower=centre - scale, upper=centre + scale, labels=truth)


def pairs_of(numbers: ag.Numbers) -> Floats:
    return np.stack(
        [numbers.centre, numbers.scale]
        if numbers.scale is not None
        else [numbers.lower, numbers.upper],
        axis=-1,
    )


def brute_force(
    numbers: ag.Numbers, row: int, reach: float, side: str, setting: float
) -> tuple[int, float, float]:
    """Where a row stops at ℓ, and its interval, written down as a user would."""
    for index, (first, second) in enumerate(pairs_of(numbers)[row].tolist()):
        lower, upper = (
            (first - reach * second, first + reach * second)
            if numbers.scale is not None
            else (first - reach, second + reach)
        )
        narrow = {
            "both": upper - lower < setting,
            "upper": upper < setting,
            "lower": lower > setting,
        }[side]
        if narrow or index == len(numbers.times) - 1:
            return (
                index,
                lower if side != "upper" else -math.inf,
                upper if side != "lower" else math.inf,
            )
    raise AssertionError


@pytest.mark.parametrize(("form", "side"), CASES)
@pytest.mark.parametrize("tied", [False, True])
def test_w_is_where_brute_force_first_misses(form: str, side: str, tied: bool) -> None:
    numbers, setting = make(25, form, tied=tied), next(reversed(SETTINGS[side].values()))
    # Each row is a group of its own, and with target 1/2 the order statistic of one value is that
    # value.
    names = [f"row {row:02}" for row in range(25)]
    calibrated = calibrate_quietly(ag.IntervalStop("1/2", **SETTINGS[side]), numbers, groups=names)
    found = calibrated.kth_values
    assert found is not None and np.isfinite(found).all()
    for row in range(25):
        first, second = pairs_of(numbers)[row].T
        truth, scale = numbers.labels[row], second if form == "scale" else np.ones(4)
        upper = first if form == "scale" else second
        # All ℓ at which anything changes: an end meets the truth or the limit, or the width meets
        # max_width.
        meets = [truth, setting] if side != "both" else [truth]
        points = [
            value for y in meets for value in (*((y - upper) / scale), *((first - y) / scale))
        ]
        if side == "both":
            points += [*((setting - (upper - first)) / (2 * scale))]
        ends = np.unique([*points, 0.0]).tolist()
        tried = [ends[0] - 1, *((low + high) / 2 for low, high in pairwise(ends)), ends[-1] + 1]
        tried = [reach for reach in tried if side != "both" or reach > 0]
        missed = [
            reach
            for reach in tried
            if not _covers(brute_force(numbers, row, reach, side, setting), truth)
        ]
        above = [reach for reach in tried if reach > max(missed, default=-math.inf)]
        # Below W in λ, that is at every larger ℓ, nothing misses; just below it in ℓ, something
        # does.
        assert min(above) >= found[row] - 1e-9
        if missed:
            assert max(missed) <= found[row] + 1e-9


def _covers(stop: tuple[int, float, float], truth: float) -> bool:
    return stop[1] <= truth <= stop[2]


@pytest.mark.parametrize(("form", "side"), CASES)
def test_misses_of_every_bag_stay_within_the_target(form: str, side: str) -> None:
    """Few letters, so that most numbers tie; the new example is each of the bag in turn."""
    alphabet = [
        (pair, later, truth)
        for pair, later in itertools.product([(0.0, 1.0), (1.0, 2.0)], [(0.0, 1.0), (2.0, 4.0)])
        for truth in (-1.0, 0.0, 3.0)
    ]
    rng, worst = np.random.default_rng(1), 0.0
    for trial in range(30):
        size, target = [(3, "1/2"), (4, "3/4"), (5, "2/3")][trial % 3]
        few = rng.choice(len(alphabet), rng.integers(1, 5))
        bag = [alphabet[one] for one in rng.choice(few, size)]
        pairs = np.array([letter[:2] for letter in bag])
        truth = np.array([letter[2] for letter in bag])
        known: dict[str, Any] = {"centre": pairs[..., 0], "scale": pairs[..., 1]}
        if form == "ends":
            known = {"lower": pairs[..., 0], "upper": pairs[..., 1]}
        numbers, missed = ag.Numbers(**known, labels=truth), {False: 0.0, True: 0.0}
        for new in range(size):
            others = numbers.rows(np.arange(size) != new)
            calibrated = calibrate_quietly(ag.IntervalStop(target, **SETTINGS[side]), others)
            for plain in missed:
                decisions = (at_kth_values(calibrated) if plain else calibrated).decide(
                    numbers.rows(np.array([new]))
                )
                assert decisions.lower is not None and decisions.upper is not None
                missed[plain] += not decisions.lower[0] <= truth[new] <= decisions.upper[0]
        assert max(missed.values()) / size <= float(1 - Fraction(target)) + 1e-12, bag
        worst = max(worst, missed[True] / size)
    assert worst > 0


def test_a_fixed_reach_breaks_the_promise() -> None:
    """The control: two standard deviations, stopped where they are narrow, miss more than one in
    ten.
    """
    numbers = make(2000, seed=3)
    biased = replace(numbers, centre=numbers.centre + numbers.scale)
    missed = [
        not _covers(brute_force(biased, row, 1.645, "both", 3.0), biased.labels[row])
        for row in range(2000)
    ]
    assert np.mean(missed) > 0.15
    rule = ag.IntervalStop(0.9, max_width=3.0).calibrate(biased.rows(slice(1000)))
    test = biased.rows(slice(1000, 2000))
    assert ag.evaluate(rule.decide(test), test).coverage.high > 0.9


@pytest.mark.parametrize(("form", "side"), CASES)
@pytest.mark.parametrize("conditions", ["plain", "groups", "delta", "weights", "people", "final"])
def test_batches_streams_files_and_brute_force_agree(
    form: str, side: str, conditions: str, tmp_path: Path
) -> None:
    n, groups = 120, np.arange(120) % 2
    given: dict[str, dict[str, Any]] = {
        "groups": {"groups": groups},
        "weights": {"weights": 1 + groups * 1.0, "max_weight": 2.0},
        "people": {"people": np.arange(n) % 30},
        "final": {"labels": "final"},
    }
    rule = ag.IntervalStop(0.8, **SETTINGS[side], delta=0.1 if conditions == "delta" else None)
    calibrated = calibrate_quietly(rule, make(n, form), **given.get(conditions, {}))
    calibrated.save(tmp_path / "rule")
    again, new = ag.load_rule(tmp_path / "rule"), make(20, form, seed=1)
    inside = np.arange(20) % 2 if conditions == "groups" else None
    decisions = calibrated.decide(new, groups=inside)
    assert_same_decisions(again.decide(new, groups=inside), decisions)
    assert again.guarantee == calibrated.guarantee and repr(again.rule) == repr(calibrated.rule)
    setting = next(reversed(SETTINGS[side].values()))
    for row in range(20):
        session = again.stream(group=None if inside is None else int(inside[row]))
        found = next(one for one in map(session.push, pairs_of(new)[row]) if one is not None)
        assert found == decisions[row] and (found.lower, found.upper) == (
            decisions[row].lower,
            decisions[row].upper,
        )
        reach = float(calibrated.thresholds[0 if inside is None else row % 2])
        expected = brute_force(new, row, reach, side, setting)
        assert expected[0] == found.index and expected[1:] == pytest.approx(
            (found.lower, found.upper)
        )


def test_members_are_pooled_as_a_mixture() -> None:
    numbers = make(100)
    centres, scales = (
        np.stack(parts, axis=-1)
        for parts in ([numbers.centre - 1, numbers.centre, numbers.centre + 1], [numbers.scale] * 3)
    )
    three = ag.Numbers(centres, scales, numbers.labels)
    one = ag.Numbers(numbers.centre, np.sqrt(numbers.scale**2 + 2 / 3), numbers.labels)
    rules = [ag.IntervalStop(0.8, max_width=4.0).calibrate(some) for some in (three, one)]
    np.testing.assert_allclose(rules[0].thresholds, rules[1].thresholds)
    assert rules[0].members == 3 and rules[0].stream().push(np.ones((3, 2))) is not None


def test_float32_and_float64_decide_alike() -> None:
    """Few values, each shared by many inputs: 5/3 is another number in float32."""
    differ = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        scale, truth = rng.choice([5 / 3, 10 / 3, 20 / 3], (80, 2)), rng.integers(-6, 7, 80) / 3
        centre = truth[:, None] + [50, 0]  # an early stop misses, so it decides about W
        exact = ag.Numbers(centre, scale, truth)
        rounded = ag.Numbers(
            centre.astype(np.float32), scale.astype(np.float32), truth.astype(np.float32)
        )
        rules = [
            calibrate_quietly(ag.IntervalStop(0.5, max_width=1.0), some.rows(slice(50)))
            for some in (exact, rounded)
        ]
        expected = rules[0].decide(exact.rows(slice(50, 80))).stop_index
        for rule, some in itertools.product(rules, (exact, rounded)):
            np.testing.assert_array_equal(
                rule.decide(some.rows(slice(50, 80))).stop_index, expected
            )
        plain = at_kth_values(rules[0])
        differ += (plain.decide(exact).stop_index != plain.decide(rounded).stop_index).any()
    assert differ, "the control: on order statistics themselves they differ"


def test_large_numbers_of_small_scales_leave_room_for_their_own_rounding() -> None:
    """Centres near a million are rounded by more than an interval is wide, and many inputs share a
    distance.
    """
    small = make(200, tied=True)
    large = ag.Numbers(small.centre + 2.0**20, small.scale, small.labels + 2.0**20)
    rules = [ag.IntervalStop(0.9, max_width=20.0).calibrate(numbers) for numbers in (small, large)]
    kth = [float(np.atleast_1d(np.asarray(rule.kth_values))[0]) for rule in rules]
    assert kth[0] == kth[1]
    assert rules[0].thresholds[0] < kth[0] + 0.1
    assert rules[1].thresholds[0] > kth[1] + 1  # at least a few units of float32


def test_intervals_between_ends_are_never_empty() -> None:
    """Ends that hold every number would allow less than nothing to be added to them."""
    labels = np.random.default_rng(0).normal(size=200)
    wide, narrow = np.full((200, 3), 9.0), np.full((200, 3), 0.1)
    calibrated = ag.IntervalStop(0.9, max_width=30.0).calibrate(
        ag.Numbers(lower=-wide, upper=wide, labels=labels)
    )
    assert 0 <= calibrated.thresholds[0] < 1
    decisions = calibrated.decide(ag.Numbers(lower=-narrow, upper=narrow))
    assert decisions.lower is not None and (decisions.width > 0).all()


def test_figures_of_intervals() -> None:
    rule, new = ag.IntervalStop(0.8, max_width=3.0).calibrate(make(300)), make(200, seed=1)
    decisions = rule.decide(new)
    result = ag.evaluate(decisions, new, groups=np.arange(200) % 2, people=np.arange(200) % 10)
    assert decisions.lower is not None and decisions.upper is not None
    width = decisions.upper - decisions.lower
    assert result.coverage == np.mean(
        (decisions.lower <= new.labels) & (new.labels <= decisions.upper)
    )
    assert (
        result.width == pytest.approx(width.mean()) and (width[decisions.stop_index < 3] < 3).all()
    )
    assert (
        result.answered is None
        and result.by_class == ()
        and result.draw_range is not None
        and result.by_person is not None
    )
    assert "width" in str(result) and "set size" not in str(result) and "width" in repr(decisions)
    assert ag.evaluate(decisions, new.labels).coverage == result.coverage
    with pytest.raises(ag.InputError, match="used for calibration"):
        ag.evaluate(rule.decide(make(300)), make(300))
    splits = ag.repeat_splits(
        ag.IntervalStop(0.8, max_width=3.0), make(400, seed=2), n_calibration=100, repeats=20
    )
    assert 0.78 < splits.coverage < 0.9 and splits.normalized_latency < 1
    monitor = ag.DriftMonitor(rule)
    assert monitor.observe(decisions) is None and monitor.level is not None


def test_the_promise_for_groups_that_calibration_did_not_see() -> None:
    rule = ag.IntervalStop(0.8, max_width=3.0).calibrate(make(100), groups=["a", "b"] * 50)
    decisions = rule.decide(make(3, seed=1), groups=["c"] * 3)
    assert (
        decisions.lower is not None
        and np.isneginf(decisions.lower).all()
        and (decisions.stop_index == 3).all()
    )
    assert ag.evaluate(decisions, make(3, seed=1)).width is None


GOOD = make(60)
RULE = ag.IntervalStop(0.8, max_width=3.0)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ag.Numbers(GOOD.centre), "centre is given"),
        (lambda: ag.Numbers(GOOD.centre, lower=GOOD.centre), "centre and lower"),
        (lambda: ag.Numbers(), "nothing is given"),
        (lambda: ag.Numbers(GOOD.centre * np.nan, GOOD.scale), "centre holds nan"),
        (lambda: ag.Numbers(GOOD.centre, GOOD.scale * 0), "scale holds 0"),
        (lambda: ag.Numbers(GOOD.centre, GOOD.scale[:, :2]), "shapes"),
        (lambda: ag.Numbers(GOOD.centre[0], GOOD.scale[0]), "centre has shape"),
        (lambda: ag.Numbers(GOOD.centre * 1e200, GOOD.scale), "above 1e"),
        (lambda: ag.Numbers(lower=GOOD.centre + 1, upper=GOOD.centre), "lower is above upper"),
        (lambda: ag.Numbers(GOOD.centre, GOOD.scale, GOOD.centre), "labels has shape"),
        (lambda: ag.Numbers(GOOD.centre, GOOD.scale, times=(1, 2)), "times names 2"),
        (lambda: ag.IntervalStop(0.9), "max_width is missing"),
        (lambda: ag.IntervalStop(0.9, max_width=-1.0), "max_width is -1"),
        (lambda: ag.IntervalStop(0.9, side="upper"), "limit is missing"),
        (
            lambda: ag.IntervalStop(0.9, side="upper", max_width=1.0, limit=1.0),
            "max_width has no use",
        ),
        (lambda: ag.IntervalStop(0.9, max_width=1.0, limit=1.0), "limit has no use"),
        (lambda: ag.IntervalStop(0.9, max_width=1.0, side="left"), "side is 'left'"),
        (
            lambda: ag.IntervalStop(0.9, ag.Schedule([(1, 1), (2, 2)]), max_width=1.0),
            "no members to join",
        ),
        (lambda: RULE.calibrate(ag.Numbers(GOOD.centre, GOOD.scale)), "labels are missing"),
        (lambda: RULE.calibrate(GOOD, "last"), "labels belong"),
        (lambda: RULE.calibrate(GOOD, GOOD.labels), "labels belong"),
        (lambda: RULE.calibrate(GOOD.centre, GOOD.labels), "reads Numbers"),
        (lambda: RULE.calibrate(GOOD, times=GOOD.times), "times"),
        (lambda: RULE.calibrate(ag.simulate_scores(20)), "reads Numbers"),  # type: ignore[arg-type]
        (lambda: RULE.decide(GOOD), "not calibrated yet"),
        (lambda: RULE.calibrate(GOOD).decide(make(9, "ends")), "calibrated with centre and scale"),
        (lambda: RULE.calibrate(GOOD).stream().push(1.0), "push a pair"),
        (lambda: RULE.calibrate(GOOD).stream().push((math.nan, 1.0)), "holds nan"),
        (lambda: RULE.calibrate(GOOD).stream().push((1.0, 0.0)), "scale holds 0"),
        (lambda: RULE.calibrate(GOOD).stream().push((-1e200, 1.0)), "a number above 1e.150"),
        (lambda: RULE.calibrate(GOOD).stream().push((1.0, 1e200)), "a number above 1e.150"),
        (
            lambda: RULE.calibrate(make(60, "ends")).stream().push((1.0, 0.0)),
            "lower is above upper",
        ),
        (lambda: ag.evaluate(RULE.calibrate(GOOD).decide(make(9)), np.zeros(8)), "true numbers"),
        (lambda: ag.AdaptiveRule(RULE.calibrate(GOOD)), "does not have"),
        (lambda: ag.tune(RULE, GOOD), "nothing to tune"),
    ],
)
def test_wrong_input_is_one_sentence(call: Any, match: str) -> None:
    with pytest.raises(ag.InputError, match=match) as caught:
        call()
    assert_one_sentence(str(caught.value))


@pytest.mark.parametrize(
    ("rule", "match"),
    [
        (ag.IntervalStop(0.9, max_width=1e-9), "max_width"),
        (ag.IntervalStop(0.9, side="lower", limit=1e9), "limit"),
    ],
)
def test_a_width_that_no_checkpoint_reaches_is_said_at_calibration(
    rule: ag.IntervalStop, match: str
) -> None:
    with pytest.warns(ag.CalibrationWarning, match=match):
        calibrated = rule.calibrate(GOOD)
    assert (calibrated.decide(GOOD).stop_index == 3).all() and calibrated.notes
