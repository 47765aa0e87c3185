"""Promises for new people: both formulas over enumerated bags of people, every rule that has them,
words, files and wrong input.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from agreestop.common import Floats, Integers
from tests.decide.strategies import assert_one_sentence, assert_same_decisions, calibrate_quietly

VALUES = (0.0, 1.0, 2.0)
People = list[tuple[float, ...]]


def persons(sizes: tuple[int, ...]) -> list[tuple[float, ...]]:
    """Each kind of person: the W of its rows, which tie with other rows."""
    return [
        person for size in sizes for person in itertools.combinations_with_replacement(VALUES, size)
    ]


def bags(kinds: list[tuple[float, ...]], count: int, most: int) -> Iterator[People]:
    """All bags of `count` people, or `most` random ones where there are more."""
    if math.comb(len(kinds) + count - 1, count) <= most:
        yield from map(list, itertools.combinations_with_replacement(kinds, count))
        return
    rng = np.random.default_rng(0)
    for _ in range(most):
        few = rng.choice(len(kinds), rng.integers(1, 5))
        yield [kinds[one] for one in rng.choice(few, count)]


# Inputs with a given W: they are wrong from that risk on, or never (W = 2 stands for a risk of 2
# that is right).


def stop_rule(target: Fraction) -> tuple[Any, Callable[[Floats], tuple[Floats, Any]]]:
    def data(W: Floats) -> tuple[Floats, Any]:
        return W[:, None], (W < 2)[:, None].astype(float)

    return ag.StopRule(target, at_end="abstain"), data


def classes(W: Floats) -> tuple[Floats, Integers]:
    """Log-confidences (n, 2, 1, 3) whose first checkpoint is wrong for W < 2, surer for smaller W;
    the last is right.
    """
    logits = np.zeros((len(W), 2, 1, 3))
    logits[:, 0, 0, 0] = 3.0 - W
    logits[:, 1, 0, 1] = 9.0
    labels = np.where(W < 2, 1, 0)
    logits[W == 2, 1, 0] = [9.0, 0.0, 0.0]
    return ag.log_confidence(logits), labels


def agree_stop(target: Fraction) -> tuple[Any, Callable[[Floats], tuple[Floats, Any]]]:
    return ag.AgreeStop(target, (1, 2), 1), classes


def stop_aware(target: Fraction) -> tuple[Any, Callable[[Floats], tuple[Floats, Any]]]:
    return ag.SpikeCP(target, (1, 2), 1, ag.MergeConfidence(), "stop-aware"), classes


RULES = {"stop": stop_rule, "agreestop": agree_stop, "stop-aware": stop_aware}


def misses(calibrated: ag.CalibratedRule, data: Any, W: Floats) -> Floats:
    given, labels = data(W)
    decisions = calibrated.decide(given)
    if calibrated.classes == 1:
        return np.asarray(decisions.answered & (labels[:, 0] > 0))
    return ~decisions.sets[np.arange(len(W)), labels]


def shares(
    rule: Any, data: Any, bag: People, by_person: bool = True, **options: Any
) -> list[float]:
    """For each person of a bag as the new one: the share of its rows that miss."""
    found = []
    for new, own in enumerate(bag):
        others = [person for number, person in enumerate(bag) if number != new]
        W = np.array([value for person in others for value in person])
        people = np.repeat(np.arange(len(others)), [len(person) for person in others])
        known = {"people": people, **options} if by_person else {}
        calibrated = calibrate_quietly(rule, *data(W), **known)
        found.append(float(misses(calibrated, data, np.array(own)).mean()))
    return found


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("count", "alpha"), [(3, "1/2"), (4, "1/3"), (5, "1/2")])
def test_a_row_of_a_new_person_is_missed_with_probability_alpha(
    name: str, count: int, alpha: str
) -> None:
    rule, data = RULES[name](1 - Fraction(alpha))
    worst = 0.0
    for bag in bags(persons((1, 2, 3)), count, 60):
        worst = max(worst, float(np.mean(shares(rule, data, bag))))
        assert worst <= float(Fraction(alpha)) + 1e-12, bag
    assert worst > 0


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_few_new_people_see_more_than_a_share_of_misses(name: str, size: int) -> None:
    alpha, beta = Fraction(1, 3), Fraction(1, 2)
    rule, data = RULES[name](1 - alpha)
    worst = 0.0
    for bag in bags(persons((size,)), 4, 60):
        above = np.mean(
            [one > float(alpha) + 1e-12 for one in shares(rule, data, bag, for_people=1 - beta)]
        )
        worst = max(worst, float(above))
        assert worst <= float(beta), bag
    assert worst > 0


def test_rows_taken_as_exchangeable_break_both_promises() -> None:
    """The controls."""
    rule, data = stop_rule(Fraction(1, 2))
    kinds = [(0.0,), (2.0,), (0.0, 0.0, 0.0), (2.0, 2.0, 2.0), (1.0, 1.0)]
    assert any(
        np.mean(shares(rule, data, bag, by_person=False)) > 0.5 for bag in bags(kinds, 3, 100)
    )
    rule, data = stop_rule(Fraction(2, 3))
    above = [
        np.mean([one > 1 / 3 for one in shares(rule, data, bag, by_person=False)])
        for bag in bags(persons((3,)), 4, 100)
    ]
    assert max(above) > 0.25, "β would be 1/4"
    kept = [
        np.mean([one > 1 / 3 for one in shares(rule, data, bag, for_people="3/4")])
        for bag in bags(persons((3,)), 4, 100)
    ]
    assert max(kept) <= 0.25


@pytest.mark.parametrize("cell", ["group", "class"])
def test_groups_and_classes_have_promises_of_their_own(cell: str) -> None:
    """People with rows in the cell alone count there; the row is a random one of the new person's
    in the cell.
    """
    alpha = 0.5
    rng = np.random.default_rng(3)
    kinds = [
        ((0.0, 0),),
        ((0.0, 1), (2.0, 0)),
        ((2.0, 1),),
        ((0.0, 0), (0.0, 1), (1.0, 1)),
        ((1.0, 0), (2.0, 0)),
    ]
    for _ in range(60):
        bag = [kinds[one] for one in rng.choice(len(kinds), 5)]
        missed: dict[int, list[float]] = {0: [], 1: []}
        for new in range(5):
            rows = [
                (value, where, number)
                for number, one in enumerate(bag)
                if number != new
                for value, where in one
            ]
            W, inside, people = (np.array(part) for part in zip(*rows, strict=True))
            own, own_inside = (np.array(part) for part in zip(*bag[new], strict=True))
            if cell == "group":
                given = calibrate_quietly(
                    ag.AgreeStop(1 - alpha, (1, 2), 1), *classes(W), groups=inside, people=people
                )
                decisions = given.decide(classes(own)[0], groups=own_inside)
            else:
                swapped = [
                    _swapped(*classes(one), where)
                    for one, where in ((W, inside), (own, own_inside))
                ]
                rule = ag.AgreeStop(1 - alpha, (1, 2), 1, class_conditional=True)
                given = calibrate_quietly(rule, *swapped[0], people=people)
                decisions = given.decide(swapped[1][0])
            labels = classes(own)[1] if cell == "group" else swapped[1][1]
            wrong = ~decisions.sets[np.arange(len(own)), labels]
            for name, values in missed.items():
                if (own_inside == name).any():
                    values.append(float(wrong[own_inside == name].mean()))
        for values in missed.values():
            assert not values or np.mean(values) <= alpha + 1e-12, bag


def _swapped(scores: Floats, labels: Integers, inside: Integers) -> tuple[Floats, Integers]:
    """The classes moved so that `inside` is the label."""
    order = (np.arange(3)[None] + (labels - inside)[:, None]) % 3
    return np.take_along_axis(scores, order[:, None, None], axis=3), inside


SCORES = ag.simulate_scores(400, steps=10, K=2, C=4)
NAMES = np.array([f"p{number % 40:02}" for number in range(400)])


@pytest.mark.parametrize(
    "rule",
    [
        ag.AgreeStop(0.8, range(1, 11), 1),
        ag.SpikeCP(0.8, range(1, 11), 1, ag.MergeConfidence(), "stop-aware"),
    ],
    ids=["agree", "aware"],
)
@pytest.mark.parametrize("for_people", [None, 0.9])
def test_words_files_and_monitors(rule: Any, for_people: float | None, tmp_path: Path) -> None:
    options = {} if for_people is None else {"for_people": for_people}
    calibrated = rule.calibrate(SCORES, people=NAMES, **options)
    assert calibrated.people == 40 and "40 people" in repr(calibrated)
    assert "of a new person" in calibrated.guarantee and calibrated.guarantee.count("..") == 0
    assert ("as many rows" in calibrated.guarantee) == (for_people is not None)
    assert calibrated.threshold_rank is None and calibrated.draw is None
    new = ag.simulate_scores(100, steps=10, K=2, C=4, seed=9)
    decisions = calibrated.decide(new)
    result = ag.evaluate(decisions, new, people=np.arange(100) % 5)
    assert result.draw_range is None and result.people_below is not None
    calibrated.save(tmp_path / "rule")
    again = ag.load_rule(tmp_path / "rule")
    assert again.people == 40 and again.guarantee == calibrated.guarantee
    assert_same_decisions(again.decide(new), decisions)
    monitor = ag.DriftMonitor(again)
    monitor.observe(decisions)
    with pytest.raises(ag.InputError, match="about new people") as caught:
        monitor.update(decisions, new.labels)
    assert_one_sentence(str(caught.value))
    with pytest.raises(ag.InputError, match="people="):
        monitor.recalibrate(new)


def test_too_few_people_are_counted() -> None:
    rule = ag.AgreeStop(0.9, range(1, 11), 1)
    with pytest.warns(ag.CalibrationWarning, match="of 8 people .* at least 9 people"):
        assert rule.calibrate(SCORES, people=np.arange(400) % 8).never_stops
    with pytest.warns(ag.CalibrationWarning, match="at least 19 people"):
        rule.calibrate(SCORES, people=np.arange(400) % 18, for_people=0.95)
    groups = np.where(np.arange(400) % 40 < 5, "a", "b")
    with pytest.warns(
        ag.CalibrationWarning, match="at least 9 people with rows of each group, but group a has 5"
    ):
        rule.calibrate(SCORES, people=np.arange(400) % 40, groups=groups)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rule.calibrate(SCORES, people=np.arange(400) % 9)


TIMES = range(1, 11)


@pytest.mark.parametrize(
    ("rule", "conditions", "match"),
    [
        (ag.AgreeStop(0.9, TIMES, 1), {"people": ["one"] * 400}, "one person alone"),
        (ag.AgreeStop(0.9, TIMES, 1), {"people": [1, 2]}, "people has 2 entries"),
        (ag.AgreeStop(0.9, TIMES, 1), {"people": np.ones(400)}, "whole number or one string"),
        (ag.AgreeStop(0.9, TIMES, 1), {"for_people": 0.9}, "without people"),
        (ag.AgreeStop(0.9, TIMES, 1), {"people": NAMES, "for_people": 1.5}, "for_people is 1.5"),
        (ag.AgreeStop(0.9, TIMES, 1, delta=0.1), {"people": NAMES}, "people and delta"),
        (
            ag.AgreeStop(0.9, TIMES, 1, delta=0.1, accumulated=True),
            {"people": NAMES},
            "people and delta",
        ),
        (
            ag.AgreeStop(0.9, TIMES, 1),
            {"people": NAMES, "weights": np.ones(400), "max_weight": 1.0},
            "people and weights",
        ),
        (
            ag.AgreeStop(None, TIMES, 1, loss=1 - np.eye(4), max_loss=0.1),
            {"people": NAMES},
            "loss with people",
        ),
        (
            ag.SpikeCP(0.9, (5, 10), 1, ag.MergeConfidence()),
            {"people": NAMES},
            "people need a rule with one threshold",
        ),
        (
            ag.SpikeCP(0.9, (5, 10), 1, ag.MergeConfidence(), "simultaneous"),
            {"people": NAMES},
            "people need a rule with one threshold",
        ),
        (ag.SEENN(0.9, TIMES, 1), {"people": NAMES}, "promises nothing"),
        (
            ag.AgreeStop(0.9, TIMES, 1),
            {"people": NAMES, "for_people": 0.9, "groups": NAMES},
            "for_people has no promise with groups",
        ),
        (
            ag.AgreeStop(0.9, TIMES, 1, class_conditional=True),
            {"people": NAMES, "for_people": 0.9},
            "for_people has no promise",
        ),
    ],
)
def test_what_has_no_proof_is_refused(rule: Any, conditions: dict[str, Any], match: str) -> None:
    with pytest.raises(ag.InputError, match=match) as caught:
        calibrate_quietly(rule, SCORES, **conditions)
    assert_one_sentence(str(caught.value))


def test_a_gate_goes_with_people_and_not_with_for_people() -> None:
    gate = ag.Gate.fit(
        ag.simulate_scores(300, steps=10, K=2, C=4, seed=5), target=0.8, max_set_size=1, blocks=2
    )
    rule = ag.AgreeStop(0.8, TIMES, 1, gate=gate)
    assert "first looked ready" in calibrate_quietly(rule, SCORES, people=NAMES).guarantee
    with pytest.raises(ag.InputError, match="for_people has no promise"):
        calibrate_quietly(rule, SCORES, people=NAMES, for_people=0.9)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "least", "most"), [(10, 0.0, 0.05), (40, 0.05, 0.1)])
def test_people_with_effects_of_their_own(count: int, least: float, most: float) -> None:
    """α = 0.1: rows taken as exchangeable miss more often than that, people do not."""
    rng = np.random.default_rng(0)
    rates: dict[bool, list[float]] = {True: [], False: []}
    rule, data = stop_rule(Fraction(9, 10))
    for _ in range(400):
        effect = rng.normal(size=count + 1)
        rows = [effect[one] + 0.5 * rng.normal(size=20) for one in range(count + 1)]
        W = np.minimum(np.concatenate(rows[:-1]), 1.99)
        for by_person, found in rates.items():
            known = {"people": np.repeat(np.arange(count), 20)} if by_person else {}
            calibrated = calibrate_quietly(rule, *data(W), **known)
            new = np.minimum(effect[-1] + 0.5 * rng.normal(size=500), 1.99)
            found.append(float(misses(calibrated, data, new).mean()))
    means = {name: np.mean(found) for name, found in rates.items()}
    spread = 3 * np.std(rates[True]) / 20
    assert least - spread < means[True] < most + spread
    assert means[False] > means[True]


def rule_of_values(values: list[list[float]], target: str, for_people: str | None = None) -> float:
    """The threshold of a StopRule whose W are these numbers, a list for each person;
    at_end="abstain" and one checkpoint.
    """
    flat = [value for own in values for value in own]
    people = [person for person, own in enumerate(values) for _ in own]
    rule = ag.StopRule(target, at_end="abstain")
    calibrated = calibrate_quietly(
        rule, np.array(flat)[:, None], np.ones((len(flat), 1)), people=people, for_people=for_people
    )
    assert calibrated.kth_values is not None
    return float(calibrated.kth_values[0])


def test_a_person_with_many_rows_counts_once() -> None:
    """Σ_j (1/N_j)·#{W < λ} + 1 ≤ α(K + 1) with α = 1/2, K = 3: at most one person's worth of
    misses.
    """
    assert rule_of_values([[1.0] * 6, [2.0], [3.0]], "1/2") == 2.0
    assert rule_of_values([[1.0], [2.0, 2.5], [3.0] * 4], "1/2") == 2.0
    assert rule_of_values([[1.0, 9.0, 9.0, 9.0], [2.0, 9.0], [3.0, 9.0]], "1/2") == 3.0


def test_the_rank_among_people_counts_the_new_one() -> None:
    """⌊(K+1)β⌋ of K = 2 people at β = 1/4 is 0: nothing may stop; of K = 3 it is the first."""
    assert rule_of_values([[1.0], [2.0]], "1/2", "3/4") == -math.inf
    assert rule_of_values([[1.0], [2.0], [3.0]], "1/2", "3/4") == 1.0


def test_people_of_the_calibration_cannot_be_evaluated(tmp_path: Path) -> None:
    rule = ag.AgreeStop(0.8, TIMES, 1).calibrate(SCORES, people=NAMES)
    rule.save(tmp_path / "rule")
    new = ag.simulate_scores(100, steps=10, K=2, C=4, seed=9)
    for known in (rule, ag.load_rule(tmp_path / "rule")):
        with pytest.raises(ag.InputError, match="1 of the 5 people") as caught:
            ag.evaluate(
                known.decide(new),
                new,
                people=np.array(["p07", "new 1", "new 2", "new 3", "new 4"])[np.arange(100) % 5],
            )
        assert_one_sentence(str(caught.value))
        assert ag.evaluate(known.decide(new), new, people=["new"] * 100).by_person is not None


def test_repeated_splits_divide_people_and_let_them_count_equally() -> None:
    people = np.repeat(np.arange(30), np.arange(1, 31))
    pool = ag.simulate_scores(len(people), steps=10, K=2, C=4, seed=3)
    rule, rng = ag.AgreeStop(0.8, TIMES, 1), np.random.default_rng(5)
    splits = ag.repeat_splits(rule, pool, n_calibration=15, repeats=4, seed=5, people=people)
    for coverage in splits.coverages.tolist():
        order = rng.permutation(30)
        known, new = np.isin(people, order[:15]), np.isin(people, order[15:])
        decisions = rule.calibrate(pool.rows(known), people=people[known]).decide(pool.rows(new))
        result = ag.evaluate(decisions, pool.rows(new), people=people[new])
        assert coverage == pytest.approx(
            np.mean([float(one.coverage) for one in result.by_person or ()])
        )
    assert splits.n == 30
    assert np.isfinite(
        ag.repeat_splits(
            rule, pool, n_calibration=15, repeats=3, people=people, for_people=0.9
        ).coverages
    ).all()
    for wrong, words in (
        ({"n_calibration": 30, "people": people}, "has 30 people"),
        ({"for_people": 0.9}, "without people"),
        ({"people": people[:3]}, "people has 3"),
        ({"people": people, "rule": ag.AgreeStop(0.8, TIMES, 1, delta=0.1)}, "people and delta"),
    ):
        with pytest.raises(ag.InputError, match=words):
            given: dict[str, Any] = {"rule": rule, "scores_or_log_confidence": pool, **wrong}
            ag.repeat_splits(**given)
