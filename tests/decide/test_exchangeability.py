"""Rows that are not exchangeable are asked about: sorted rows, labels of another order, inputs of
another kind; fair rows almost never.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import agreestop as ag
from agreestop.decide import leakage as exchangeability

SCORES = replace(
    ag.simulate_scores(900, steps=10, K=2, C=6, pace=3.0, signal=4.0), ids=np.arange(900)
)
RULE = ag.AgreeStop(0.9, range(1, 11), 1)
SHUFFLED = "were the rows shuffled before they were divided"


def with_labels(scores: ag.Scores, labels: np.ndarray) -> ag.Scores:
    return replace(scores, labels=labels)


def labels_of(scores: ag.Scores) -> np.ndarray:
    assert scores.labels is not None
    return scores.labels


def said(notes: tuple[str, ...], words: str) -> bool:
    return any(words in note for note in notes)


# --------------------------------------------------------------------------------------------------
# sorted rows


def test_rows_sorted_by_class_and_divided_by_position_are_asked_about() -> None:
    """In calibration, because labels come in blocks, and in evaluation, because other classes come
    there.
    """
    scores = SCORES.rows(np.argsort(labels_of(SCORES), kind="stable"))
    calibrated = RULE.calibrate(scores.rows(slice(0, 270)))
    assert (
        len(calibrated.notes) == 1
        and SHUFFLED in calibrated.notes[0]
        and "come in blocks" in calibrated.notes[0]
    )
    assert SHUFFLED in repr(calibrated)
    test = scores.rows(slice(270, 900))
    decisions = calibrated.decide(test)
    assert said(decisions.notes, "come in blocks")
    result = ag.evaluate(decisions, test)
    assert said(
        result.notes, "The classes are not as frequent as in calibration"
    ) and SHUFFLED in str(result)


def test_divided_at_random_they_are_not() -> None:
    for seed in range(5):
        calibration, test = SCORES.split(0.3, 0.7, seed=seed)
        calibrated = RULE.calibrate(calibration)
        assert (
            calibrated.notes
            == calibrated.decide(test).notes
            == ag.evaluate(calibrated.decide(test), test).notes
            == ()
        )


def test_sorted_after_it_was_drawn_a_calibration_set_does_no_harm() -> None:
    calibration, test = SCORES.split(0.3, 0.7)
    calibrated = RULE.calibrate(calibration.rows(np.argsort(labels_of(calibration))))
    assert "only sorted afterwards, this does no harm" in calibrated.notes[0]
    assert ag.evaluate(calibrated.decide(test), test).notes == calibrated.notes


def test_a_rule_for_new_people_keeps_the_note() -> None:
    calibration, _ = SCORES.split(0.3, 0.7)
    sorted_rows = calibration.rows(np.argsort(labels_of(calibration)))
    calibrated = RULE.calibrate(sorted_rows, people=np.arange(len(sorted_rows)) // 2)
    assert "does no harm" in calibrated.notes[0]


@pytest.mark.parametrize(("classes", "n"), [(2, 20), (2, 100), (10, 50), (100, 200)])
def test_labels_in_random_order_do_not_come_in_blocks(classes: int, n: int) -> None:
    """The stated rate is 1e-4, so of 500 orders more than one has a probability of 0.0012
    at most.
    """
    rng = np.random.default_rng(classes + n)
    assert (
        sum(
            bool(exchangeability.labels_in_blocks(rng.integers(classes, size=n)))
            for _ in range(500)
        )
        <= 1
    )
    assert exchangeability.labels_in_blocks(np.sort(rng.integers(classes, size=n)))


def test_labels_of_one_class_are_no_block() -> None:
    assert (
        exchangeability.labels_in_blocks(np.zeros(50, dtype=int))
        == exchangeability.labels_in_blocks(np.array([0, 0]))
        == ""
    )


# --------------------------------------------------------------------------------------------------
# labels in another order


@pytest.mark.parametrize("way", ["off by one", "columns in another order"])
def test_labels_and_columns_in_another_order_are_asked_about(way: str) -> None:
    """Answers grow to most of the classes, and both calibration and evaluation ask why."""
    calibration, test = SCORES.split(0.3, 0.7)
    order = np.array([3, 0, 5, 1, 4, 2])

    def wrong(scores: ag.Scores) -> ag.Scores:
        if way == "off by one":
            return with_labels(scores, (labels_of(scores) + 1) % 6)
        return replace(scores, log_confidence=scores.log_confidence[..., order])

    with pytest.warns(ag.CalibrationWarning, match="in the same order") as caught:
        calibrated = RULE.calibrate(wrong(calibration))
    assert [warning.filename for warning in caught] == [__file__]
    assert calibrated.notes == (str(caught[0].message),)
    result = ag.evaluate(calibrated.decide(wrong(test)), wrong(test))
    assert result.set_size > 4
    assert "Are the labels and the columns of the scores in the same order" in result.notes[0]


def test_labels_of_other_rows_are_asked_about() -> None:
    calibration, test = SCORES.split(0.3, 0.7)
    calibrated = RULE.calibrate(calibration)
    moved = np.random.default_rng(0).permutation(labels_of(test))
    notes = ag.evaluate(calibrated.decide(test), moved).notes
    assert "Coverage is" in notes[0] and said(notes, "hardly more often than by chance")


@pytest.mark.parametrize(
    ("classes", "n", "accuracy"), [(10, 100, 0.0), (10, 100, 0.3), (3, 60, 0.5), (2, 60, 0.9)]
)
def test_labels_in_the_same_order_are_not_called_misplaced(
    classes: int, n: int, accuracy: float
) -> None:
    """The stated rate is 1e-4, so of 200 samples none is called so, with probability 0.98 at least.
    A useless model is not either.
    """
    rng = np.random.default_rng(n + classes)
    for _ in range(200):
        labels = rng.integers(classes, size=n)
        best = np.where(rng.random(n) < accuracy, labels, rng.integers(classes, size=n))
        assert not exchangeability.labels_misplaced(best, labels, classes)
        assert accuracy == 0 or not exchangeability.labels_unrelated(best, labels, classes)


def test_classes_that_do_not_occur_are_not_named() -> None:
    labels = np.arange(100) % 3
    sentence = exchangeability.labels_misplaced((labels + 1) % 3 + 4, labels + 4, 9)
    assert (
        "label 4 mostly has class 5, label 5 mostly has class 6, label 6 mostly has class 4."
        in sentence
    )
    assert "for 0 of 100 rows" in sentence


# --------------------------------------------------------------------------------------------------
# inputs and classes


def test_inputs_of_another_kind_are_asked_about_without_labels(tmp_path: Path) -> None:
    calibration, test = SCORES.split(0.3, 0.7)
    RULE.calibrate(calibration).save(tmp_path / "rule")
    calibrated = ag.load_rule(tmp_path / "rule")
    other = replace(
        ag.simulate_scores(300, steps=10, K=2, C=6, pace=0.5, signal=6.0, seed=1),
        ids=np.arange(900, 1200),
    )
    assert said(calibrated.decide(other).notes, "These inputs differ from the calibration inputs")
    assert not calibrated.decide(test).notes
    assert not calibrated.decide(other.rows(slice(0, 19))).notes  # too few for the test
    # promises for each class, however frequent
    by_class = replace(RULE, class_conditional=True).calibrate(calibration)
    assert not by_class.decide(other).notes and by_class.decide(other).class_counts is None


@pytest.mark.parametrize("tied", [False, True])
def test_inputs_alike_are_not_asked_about(tied: bool) -> None:
    """The stated rate is 0.01, so of 400 batches 4 in the mean and more than 14 with probability
    4e-5.
    """
    rng = np.random.default_rng(0)

    def risks(n: int) -> np.ndarray:
        drawn = rng.normal(size=n)
        return np.round(drawn) if tied else drawn

    alarms = [
        bool(exchangeability.inputs_differ(risks(100), risks(int(m))))
        for m in rng.integers(20, 500, size=400)
    ]
    assert sum(alarms) <= 14
    assert exchangeability.inputs_differ(risks(100), risks(200) + 1.5)


def test_rounding_of_a_risk_that_all_inputs_share_is_no_difference() -> None:
    """As for recordings that begin with an empty step, computed again with other batch sizes."""
    known = np.full(100, -0.5)
    assert (
        exchangeability.inputs_differ(known, np.full(300, -0.5 + 1e-6))
        == exchangeability.inputs_differ(known, np.full(300, -0.5 - 1e-3))
        == ""
    )
    assert (
        exchangeability.inputs_differ(known, np.full(300, -0.4))
        and exchangeability.inputs_differ(None, known)
        == exchangeability.inputs_differ(known, None)
        == ""
    )


@pytest.mark.parametrize("classes", [2, 10, 200])
def test_classes_as_frequent_as_in_calibration_are_not_asked_about(classes: int) -> None:
    """The stated rate is 1e-3, so of 300 batches more than 4 have a probability of 2e-5."""
    rng = np.random.default_rng(classes)
    shares = rng.dirichlet(np.ones(classes))
    batches = (
        (
            np.bincount(rng.choice(classes, 200, p=shares), minlength=classes),
            rng.choice(classes, 400, p=shares),
        )
        for _ in range(300)
    )
    assert (
        sum(bool(exchangeability.classes_differ(known, labels, None)) for known, labels in batches)
        <= 4
    )
    other = exchangeability.classes_differ(
        np.bincount(np.arange(200) % classes, minlength=classes),
        np.zeros(50, dtype=int),
        [f"c{i}" for i in range(classes)],
    )
    assert "class 'c0'" in other


def test_coverage_that_no_draw_explains_is_said_first() -> None:
    """Control: coverage inside the range is not mentioned."""
    calibration, test = SCORES.split(0.3, 0.7)
    decisions = RULE.calibrate(calibration).decide(test)
    labels = labels_of(test).copy()
    fair = ag.evaluate(decisions, labels)
    assert fair.draw_range is not None and fair.coverage >= fair.draw_range[0] and fair.notes == ()
    hits = np.flatnonzero(decisions.sets[np.arange(len(test)), labels])
    short = math.ceil((fair.coverage - fair.draw_range[0]) * len(test)) + 1
    labels[hits[:short]] = (decisions.sets[hits[:short]].argmin(axis=1)) % 6
    low = ag.evaluate(decisions, labels)
    assert (
        low.notes[0].startswith(f"Coverage is {low.coverage:.3f}, below {fair.draw_range[0]:.3f}")
        and SHUFFLED in low.notes[0]
    )
    assert exchangeability.coverage_too_low(0.9, 0.9, 0.95) == ""


# --------------------------------------------------------------------------------------------------
# what is promised, in words


def test_accumulated_that_never_stops_says_so() -> None:
    """There are examples enough, but answers at the last checkpoint miss too often for the test, or
    only that checkpoint passes it.
    """
    calibration, test = ag.simulate_scores(200, steps=4, K=1, C=6, pace=3.0).split(0.5, 0.5)
    with pytest.warns(ag.CalibrationWarning, match="accumulated"):
        calibrated = ag.AgreeStop(0.99, range(1, 5), 1, accumulated=True, delta=0.5).calibrate(
            calibration
        )
    assert (
        calibrated.never_stops
        and "nothing stops early" in calibrated.shortage
        and "never stops early" in repr(calibrated)
    )
    assert (calibrated.decide(test).stop_index == 3).all()


def test_delta_says_that_it_is_for_each_class_by_itself() -> None:
    words = "is for each class by itself, not for all classes at once"
    by_class = ag.AgreeStop(0.8, range(1, 11), 1, class_conditional=True, delta=0.2)
    assert f"The probability 0.8 {words}." in by_class.calibrate(SCORES).guarantee
    assert words not in replace(by_class, class_conditional=False).calibrate(SCORES).guarantee
    assert words not in replace(by_class, delta=None).calibrate(SCORES).guarantee


def test_a_risk_that_never_stops_at_the_end_leaves_nothing_to_ask() -> None:
    """An offset of -∞ at the last checkpoint leaves the classes without an order there."""
    rng = np.random.default_rng(0)
    values, labels = ag.log_confidence(rng.normal(size=(400, 2, 1, 3))), rng.integers(0, 3, 400)
    risk = ag.ShapedRisk(ag.TopMass(), np.array([0.0, -np.inf]), (1, 2))
    calibrated = ag.AgreeStop(0.8, (1, 2), 1, risk=risk).calibrate(values[:200], labels[:200])
    assert ag.evaluate(calibrated.decide(values[200:]), labels[200:]).n == 200
