"""Decisions and how good they were: every figure against one counted by hand, every interval
against its formula.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agreestop as ag
from tests.decide.strategies import Estimate

Z = 1.959963984540054


def five_decisions() -> ag.Decisions:
    """Stops at 2, 2, 5, 10, 10; sets {0}, {1, 2}, {}, {0, 1, 2}, {2}."""
    sets = np.array([[1, 0, 0], [0, 1, 1], [0, 0, 0], [1, 1, 1], [0, 0, 1]], dtype=bool)
    return ag.Decisions(stop_index=np.array([0, 0, 1, 2, 2]), sets=sets, checkpoints=(2, 5, 10))


LABELS = np.array([0, 0, 1, 1, 2])  # hit, miss, miss, hit, hit


def test_decisions_say_where_each_input_stopped() -> None:
    decisions = five_decisions()
    assert len(decisions) == 5
    assert decisions.stop_time.tolist() == [2, 2, 5, 10, 10]
    assert decisions.set_size.tolist() == [1, 2, 0, 3, 1]
    assert decisions[1] == ag.Decision(time=2, index=0, classes=(1, 2))
    assert decisions[-3] == ag.Decision(time=5, index=1, classes=())
    assert [decision.time for decision in decisions] == [2, 2, 5, 10, 10]
    with pytest.raises(IndexError):
        decisions[5]


def test_evaluation_counts() -> None:
    evaluation = ag.evaluate(five_decisions(), LABELS)
    assert evaluation.n == 5
    assert evaluation.coverage == 3 / 5
    assert evaluation.latency == 29 / 5
    assert evaluation.normalized_latency == pytest.approx(0.58)
    assert evaluation.set_size == 7 / 5


def test_evaluation_by_stop_time_and_by_class() -> None:
    evaluation = ag.evaluate(five_decisions(), LABELS)
    assert [
        (group.key, group.n, float(group.coverage), float(group.set_size))
        for group in evaluation.by_stop_time
    ] == [
        (2, 2, 0.5, 1.5),
        (5, 1, 0.0, 0.0),
        (10, 2, 1.0, 2.0),
    ]
    assert [(group.key, group.n, float(group.coverage)) for group in evaluation.by_class] == [
        (0, 2, 0.5),
        (1, 2, 0.5),
        (2, 1, 1.0),
    ]
    assert [float(group.normalized_latency) for group in evaluation.by_class] == pytest.approx(
        [0.2, 0.75, 1.0]
    )


def test_times_and_classes_that_do_not_occur_have_no_group() -> None:
    decisions = ag.Decisions(np.array([2, 2]), np.ones((2, 3), dtype=bool), (2, 5, 10))
    evaluation = ag.evaluate(decisions, [1, 1])
    assert [group.key for group in evaluation.by_stop_time] == [10]
    assert [group.key for group in evaluation.by_class] == [1]


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"),
    [
        (8, 10, 0.49016, 0.94331),
        (0, 10, 0.0, 0.27753),
        (10, 10, 0.72247, 1.0),
        (81, 263, 0.25528, 0.36621),
    ],
)
def test_coverage_has_wilsons_interval(hits: int, count: int, low: float, high: float) -> None:
    """81 of 263 is the worked example of Newcombe (1998)."""
    sets = np.zeros((count, 2), dtype=bool)
    sets[:hits, 0] = True
    coverage = ag.evaluate(
        ag.Decisions(np.zeros(count, dtype=np.int64), sets, (1,)), np.zeros(count, dtype=int)
    ).coverage
    assert (coverage.low, coverage.high) == pytest.approx((low, high), abs=1e-5)
    assert coverage.se == pytest.approx(math.sqrt(coverage * (1 - coverage) / count))


def log_capital(values: list[float], mean: float, alpha: float) -> float:
    """What bets that the mean is larger have made of 1, value by value, as the docstring of
    `estimates` states it.
    """
    total, seen, squares, n = 0.0, 0.5, 0.25, len(values)
    for index, value in enumerate(values):
        bet = min(math.sqrt(2 * math.log(2 / alpha) / (n * squares / (index + 1))), 0.75 / mean)
        total += math.log(1 + bet * (value - mean))
        seen += value
        squares += (value - seen / (index + 2)) ** 2
    return total


@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_means_have_the_betting_interval(confidence: float) -> None:
    """Every mean below the interval is refuted by bets that it is larger, and no mean just above
    its lower end is; and the mirror image.
    """
    times = [2, 2, 5, 10, 10] * 12
    decisions = ag.Decisions(
        np.searchsorted((2, 5, 10), times), np.ones((60, 3), dtype=bool), (2, 5, 10)
    )
    latency = ag.evaluate(decisions, np.zeros(60, dtype=int), confidence).latency
    shares = np.random.default_rng(0).permutation(np.sort((np.array(times) - 2) / 8))
    for values, end in ((shares, (latency.low - 2) / 8), (1 - shares, (10 - latency.high) / 8)):
        assert log_capital(values.tolist(), end - 1e-9, 1 - confidence) >= math.log(
            2 / (1 - confidence)
        )
        assert log_capital(values.tolist(), end + 2e-6, 1 - confidence) < math.log(
            2 / (1 - confidence)
        )
    normalized = ag.evaluate(decisions, np.zeros(60, dtype=int), confidence).normalized_latency
    assert (normalized.low, normalized.high, normalized.se) == pytest.approx(
        (latency.low / 10, latency.high / 10, latency.se / 10)
    )
    assert latency.se == pytest.approx(np.std(times, ddof=1) / math.sqrt(60))


def test_intervals_do_not_depend_on_the_order_of_the_inputs() -> None:
    order, decisions = np.array([4, 2, 0, 3, 1]), five_decisions()
    moved = ag.Decisions(decisions.stop_index[order], decisions.sets[order], decisions.checkpoints)
    for name in ("latency", "set_size", "coverage"):
        first, second = (
            getattr(ag.evaluate(*both), name)
            for both in ((decisions, LABELS), (moved, LABELS[order]))
        )
        assert (float(first), first.low, first.high) == (float(second), second.low, second.high)


def rare_costs(n: int, rng: np.random.Generator) -> ag.Evaluation:
    """Answers {0} that miss class 1 (cost 10) in 2 of 1,000 inputs and class 2 (cost 0.1) in one of
    10: 0.03 in the mean.
    """
    loss = np.array([[0, 1, 1], [10, 0, 1], [0.1, 1, 0]])
    decisions = ag.Decisions(
        np.zeros(n, dtype=int), np.tile([True, False, False], (n, 1)), (1, 2), loss=loss
    )
    return ag.evaluate(decisions, rng.choice(3, size=n, p=[0.898, 0.002, 0.1]))


@pytest.mark.parametrize("n", [50, 200, 500])
def test_the_interval_of_a_rare_large_cost_holds(n: int) -> None:
    """0.95 of 40 evaluations hold the mean cost less four standard errors of 0.034. Control: the
    normal interval holds fewer than that.
    """
    rng, repeats = np.random.default_rng(n), 40
    found = [cost for _ in range(repeats) if (cost := rare_costs(n, rng).cost) is not None]
    least = 0.95 - 4 * math.sqrt(0.95 * 0.05 / repeats)
    assert np.mean([cost.low <= 0.03 <= cost.high for cost in found]) >= least
    assert np.mean([abs(cost - 0.03) <= Z * cost.se for cost in found]) < least


@pytest.mark.slow
@pytest.mark.parametrize("n", [50, 200, 500])
@pytest.mark.parametrize("rare", [0.002, 0.01, 0.05])
def test_intervals_of_bounded_means_hold(n: int, rare: float) -> None:
    """0.95 of 1,000 samples hold the mean, less four standard errors of 0.0069: a rare large cost,
    a frequent one, and sizes of sets.
    """
    rng, repeats = np.random.default_rng(n), 1000
    for most, values, shares in (
        (10.0, [0.0, 0.1, 10.0], [0.9 - rare, 0.1, rare]),
        (1.0, [0.0, 1.0], [0.5 + rare, 0.5 - rare]),
        (10.0, [1.0, 2.0, 10.0], [0.8, 0.2 - rare, rare]),
    ):
        mean = float(np.dot(values, shares))
        drawn = (
            Estimate.of_bounded(rng.choice(values, size=n, p=shares), 0, most, 0.95)
            for _ in range(repeats)
        )
        held = np.mean([one.low <= mean <= one.high for one in drawn])
        assert held >= 0.95 - 4 * math.sqrt(0.95 * 0.05 / repeats)


def test_betting_intervals_are_not_much_wider_than_normal_ones() -> None:
    """At most 1.8 times as wide for ordinary sizes and times of 200 inputs, and 1.5 times for
    5,000.
    """
    rng = np.random.default_rng(0)
    for n, most in ((200, 1.8), (5000, 1.5)):
        sets = (
            np.arange(10) < rng.choice([1, 2, 3, 10], size=n, p=[0.75, 0.15, 0.08, 0.02])[:, None]
        )
        decisions = ag.Decisions(
            np.minimum(rng.geometric(0.06, size=n), 80) - 1, sets, tuple(range(1, 81))
        )
        result = ag.evaluate(decisions, np.zeros(n, dtype=int))
        for estimate in (result.latency, result.set_size):
            assert 1 < (estimate.high - estimate.low) / (2 * Z * estimate.se) < most


def test_another_level_gives_wider_or_narrower_intervals() -> None:
    widths = [
        ag.evaluate(five_decisions(), LABELS, confidence=level).latency
        for level in (0.5, 0.95, 0.999)
    ]
    spans = [estimate.high - estimate.low for estimate in widths]
    assert spans[0] < spans[1] < spans[2]


def test_one_decision_has_no_standard_error() -> None:
    evaluation = ag.evaluate(ag.Decisions(np.array([0]), np.array([[True, False]]), (4,)), [0])
    assert float(evaluation.latency) == 4
    assert math.isnan(evaluation.latency.se)
    assert 0 < evaluation.coverage.low < evaluation.coverage.high == 1


@given(st.floats(-5, 5), st.floats(0.1, 9))
def test_an_estimate_is_a_number(value: float, scale: float) -> None:
    estimate = Estimate(value, value - 1, value + 1, 0.5)
    assert isinstance(estimate, float)
    assert estimate == value
    assert estimate + 1 == value + 1
    other = estimate.over(scale)
    assert (float(other), other.low, other.high, other.se) == (
        value / scale,
        (value - 1) / scale,
        (value + 1) / scale,
        0.5 / scale,
    )
    assert json.loads(json.dumps(estimate)) == value


def test_an_estimate_shows_its_interval() -> None:
    assert repr(Estimate(0.91234, 0.9, 0.95, 0.01)) == "0.9123 [0.9, 0.95]"


@pytest.mark.parametrize(
    "again",
    [copy.deepcopy, lambda estimate: pickle.loads(pickle.dumps(estimate))],
    ids=["copy", "pickle"],
)
def test_an_estimate_can_be_copied(again: Callable[[Estimate], Estimate]) -> None:
    estimate = Estimate(0.9, 0.8, 0.95, 0.02)
    copied = again(estimate)
    assert (float(copied), copied.low, copied.high, copied.se) == (0.9, 0.8, 0.95, 0.02)


def test_an_evaluation_becomes_a_dictionary() -> None:
    assert dataclasses.asdict(ag.evaluate(five_decisions(), LABELS))["coverage"] == 0.6


@pytest.mark.parametrize(
    ("decisions", "labels", "match"),
    [
        (five_decisions(), [0, 1], "2 entries for 5 inputs"),
        (five_decisions(), [0, 1, 2, 3, 0], "labels holds 3"),
        (five_decisions(), [0.0, 1, 2, 0, 0], "dtype float64"),
        (
            ag.Decisions(np.empty(0, dtype=np.int64), np.empty((0, 2), dtype=bool), (1,)),
            [],
            "no decisions to evaluate",
        ),
        (
            dataclasses.replace(
                five_decisions(), reuse="5 of the 5 rows were used for tuning: keep them apart."
            ),
            LABELS,
            "^evaluation: 5 of the 5",
        ),
    ],
)
def test_evaluate_refuses(decisions: ag.Decisions, labels: list[int], match: str) -> None:
    with pytest.raises(ag.InputError, match=match):
        ag.evaluate(decisions, labels)


@pytest.mark.parametrize("confidence", [0, 1, -0.5, 95, math.nan])
def test_evaluate_refuses_a_level_that_is_no_probability(confidence: float) -> None:
    with pytest.raises(ag.InputError, match="confidence is"):
        ag.evaluate(five_decisions(), LABELS, confidence=confidence)


# --------------------------------------------------------------------------------------------------
# groups and people


def test_coverage_by_group_for_a_rule_without_groups() -> None:
    result = ag.evaluate(five_decisions(), LABELS, groups=["b", "a", "a", "b", "b"])
    assert result.by_group is not None
    assert [(one.name, one.n, float(one.coverage)) for one in result.by_group] == [
        ("a", 2, 0.0),
        ("b", 3, 1.0),
    ]
    assert all(one.coverage.low < one.coverage.high for one in result.by_group)
    overlapping = ag.evaluate(
        five_decisions(),
        LABELS,
        groups=np.array([[1, 1], [1, 0], [0, 0], [0, 1], [0, 1]], dtype=bool),
    ).by_group
    assert overlapping is not None
    assert [(one.name, one.n, float(one.coverage)) for one in overlapping] == [
        ("0", 2, 0.5),
        ("1", 3, 1.0),
    ]
    assert "group b" in str(result)


def test_groups_that_are_given_replace_those_of_the_rule() -> None:
    known = dataclasses.replace(
        five_decisions(), groups=np.ones((5, 1), dtype=bool), group_names=("all",)
    )
    assert [one.name for one in ag.evaluate(known, LABELS).by_group or ()] == ["all"]
    assert [
        one.name for one in ag.evaluate(known, LABELS, groups=[7, 7, 7, 8, 8]).by_group or ()
    ] == ["7", "8"]
    assert ag.evaluate(five_decisions(), LABELS).by_group is None


def test_coverage_by_person() -> None:
    result = ag.evaluate(five_decisions(), LABELS, people=[12, 3, 3, 12, 3])
    assert result.by_person is not None
    assert [(one.name, one.n, float(one.coverage)) for one in result.by_person] == [
        ("3", 3, 1 / 3),
        ("12", 2, 1.0),
    ]
    assert str(result).index("person 3") < str(result).index("person 12")
    assert ag.evaluate(five_decisions(), LABELS).by_person is None


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"groups": [1, 2]}, "groups has 2 entries for 5 inputs"),
        ({"groups": [0.5] * 5}, "groups has shape"),
        ({"people": [1, 2]}, "people has 2 entries for 5 inputs"),
        ({"people": np.ones((5, 2), dtype=bool)}, "people has shape"),
    ],
)
def test_groups_and_people_are_refused(options: dict[str, object], match: str) -> None:
    with pytest.raises(ag.InputError, match=match):
        ag.evaluate(five_decisions(), LABELS, **options)  # type: ignore[arg-type]


def test_an_index_is_the_number_of_one_input() -> None:
    decisions: Any = five_decisions()
    assert decisions[np.int64(1)] == decisions[1] == list(decisions)[-4]
    for several in (slice(5), [0, 1], 1.0):
        with pytest.raises(ag.InputError, match="the number of one input"):
            decisions[several]


def test_labels_may_be_names_of_classes() -> None:
    scores = ag.simulate_scores(300)
    names = tuple("abcdefghij")[: scores.log_confidence.shape[3]]
    named = dataclasses.replace(scores, classes=names)
    decisions = (
        ag.AgreeStop(0.9, scores.times, 1)
        .calibrate(named.rows(slice(0, 100)))
        .decide(named.rows(slice(100, None)))
    )
    labels = scores.labels
    assert labels is not None
    found = ag.evaluate(decisions, np.array(names)[labels[100:]])
    assert found.coverage == ag.evaluate(decisions, labels[100:]).coverage
    with pytest.raises(ag.InputError, match="labels holds 'z'"):
        ag.evaluate(decisions, ["z"] * 200)


def test_names_of_classes_are_labels_of_scores_and_of_a_monitor() -> None:
    scores = ag.simulate_scores(300, C=3)
    names, labels = np.array(["walk", "run", "sit"]), scores.labels  # not in alphabetical order
    assert labels is not None
    named = dataclasses.replace(scores, labels=names[labels], classes=tuple(names))
    assert named.labels is not None
    np.testing.assert_array_equal(named.labels, labels)
    with pytest.raises(ag.InputError, match="labels has dtype <U4"):  # no names to find them by
        dataclasses.replace(scores, labels=names[labels])

    calibrated = ag.AgreeStop(0.9, scores.times, 1).calibrate(named.rows(slice(0, 100)))
    new = named.rows(slice(100, None))
    by_name, by_index = ag.DriftMonitor(calibrated), ag.DriftMonitor(calibrated)
    by_name.update(calibrated.decide(new), names[labels[100:]])
    by_index.update(calibrated.decide(new), labels[100:])
    assert by_name.misses.count == 200
    np.testing.assert_array_equal(by_name.misses.capital, by_index.misses.capital)

    moved = [ag.AdaptiveRule(calibrated, rate=0.5) for _ in range(2)]
    for one, truth in zip(moved, (names[labels], labels), strict=True):
        for row in range(100, 130):
            label = truth[row]
            one.update(one.decide(named.rows(slice(row, row + 1)))[0], label)
    assert moved[0].threshold == moved[1].threshold != calibrated.thresholds[0]
    with pytest.raises(ag.InputError, match="labels holds 'swim', which is not among the classes"):
        by_name.update(calibrated.decide(new)[0], "swim")


def test_a_decision_shows_what_is_known_of_it() -> None:
    assert repr(ag.Decision(20, 19, (4,))) == "Decision(time=20, index=19, classes=(4,))"
    shown = repr(ag.Decision(5, 4, (), members=3, row=0, answered=False, by_depth=()))
    assert shown == "Decision(time=5, index=4, classes=(), members=3, row=0, answered=False)"
    assert eval(shown, {"Decision": ag.Decision}) == ag.Decision(5, 4, (), answered=False)
