"""Answers beyond classes: each mistake is refused with one sentence, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from tests.decide.strategies import assert_one_sentence

RNG = np.random.default_rng(0)
SAMPLES = [[str(one) for one in row] for row in (RNG.random((60, 6)) < 0.3).astype(int)]
IDS = [f"q{row}" for row in range(60)]
VOTES = ag.AgreeStop(0.9, range(1, 7), 1)
SCORES = replace(ag.simulate_scores(100, steps=8, K=2, C=4), classes=("a", "b", "c", "d"))
CLASSES = ag.AgreeStop(0.9, range(1, 9), 1)
CENTRE, SCALE = RNG.normal(size=(60, 4)), np.ones((60, 4))
TRUTH = CENTRE[:, -1] + RNG.normal(size=60)
TREE = {"x": ("a", "b"), "y": ("c", "d")}


def changed(array: Any, value: float) -> Any:
    copy = array.copy()
    copy[3, 2] = value
    return copy


def numbers(value: float = 1.0, **known: Any) -> ag.Numbers:
    return ag.Numbers(CENTRE, changed(SCALE, value), TRUTH, **known)


def with_tree(groups: dict[str, Any]) -> ag.AgreeStop:
    return replace(CLASSES, tree=ag.Tree(groups))


def fails(text: str) -> str:
    raise KeyError(text)


def asked_again() -> object:
    answers = ag.Answers(SAMPLES, ids=IDS)
    rule = VOTES.calibrate(answers.rows(slice(40)), "final")
    again = answers.rows(slice(39, 60))
    return ag.evaluate(rule.decide(again), ["0"] * 21)


def known_people() -> object:
    people = np.array([f"p{row % 20}" for row in range(100)])
    rule = CLASSES.calibrate(SCORES.rows(slice(50)), people=people[:50])
    test = SCORES.rows(slice(50, 100))
    return ag.evaluate(rule.decide(test), test, people=people[50:])


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "no questions": (lambda: ag.Answers([]), "samples is empty"),
    "a question without answers": (lambda: ag.Answers([["a"], []]), "row 1 has no answers"),
    "an empty answer": (lambda: ag.Answers([["a", " "]]), "row 0, answer 1"),
    "an answer that is a number": (lambda: ag.Answers([[18, 18]]), "must be a string"),  # type: ignore[list-item]
    "a text for a list": (lambda: ag.Answers(["abc"]), "row 0 is 'abc'"),
    "a normaliser that fails": (lambda: ag.Answers([["a"]], normalise=fails), "normalise fails"),
    "nothing left of an answer": (
        lambda: ag.Answers([["a"]], normalise=lambda _: ""),
        "after normalise",
    ),
    "too few samples": (
        lambda: VOTES.calibrate(ag.Answers([*SAMPLES, ["0"] * 3]), "final"),
        "row 60 has 3 samples",
    ),
    "asked in calibration and test": (asked_again, "used for calibration"),
    "no right answers": (lambda: VOTES.calibrate(ag.Answers(SAMPLES)), "labels are missing"),
    "right answers never sampled": (
        lambda: VOTES.calibrate(ag.Answers(SAMPLES, ["7"] * 60)),
        "60 of the 60 questions was never sampled",
    ),
    "answers for a rule of classes": (
        lambda: ag.SpikeCP(0.9, range(1, 7), 1).calibrate(ag.Answers(SAMPLES)),
        "Answers are for AgreeStop",
    ),
    "answers with a tree": (
        lambda: replace(VOTES, tree=ag.Tree(TREE)).calibrate(ag.Answers(SAMPLES), "final"),
        "leave the tree out",
    ),
    "one person": (lambda: CLASSES.calibrate(SCORES, people=["a"] * 100), "one person alone"),
    "people in both parts": (known_people, "20 of the 20 people"),
    "people without names": (lambda: CLASSES.calibrate(SCORES, people=[None] * 100), "people has"),  # type: ignore[arg-type]
    "for_people without people": (
        lambda: CLASSES.calibrate(SCORES, for_people=0.9),
        "for_people is given without people",
    ),
    "a centre of nan": (lambda: ag.Numbers(changed(CENTRE, np.nan), SCALE), "centre holds nan"),
    "a scale of 0": (lambda: numbers(0.0), "scale holds 0"),
    "a scale of nan": (lambda: numbers(np.nan), "scale holds nan"),
    "an end alone": (lambda: ag.Numbers(lower=CENTRE), "lower is given"),
    "ends the wrong way": (
        lambda: ag.Numbers(lower=CENTRE + 1, upper=CENTRE),
        "lower is above upper",
    ),
    "a width of 0": (lambda: ag.IntervalStop(0.9, max_width=0), "max_width is 0"),
    "numbers for a rule of classes": (
        lambda: CLASSES.calibrate(numbers()),
        "Numbers are for IntervalStop",
    ),
    "scores for intervals": (
        lambda: ag.IntervalStop(0.9, max_width=1).calibrate(SCORES),  # type: ignore[arg-type]
        "reads Numbers",
    ),
    "a tree of nothing": (lambda: ag.Tree(None), "branches is None"),  # type: ignore[arg-type]
    "a class twice": (lambda: ag.Tree({"x": ("a", "b"), "y": ("b", "c")}), "'b' twice"),
    "a class that the tree lacks": (
        lambda: with_tree({"x": ("a", "b"), "c": None}).calibrate(SCORES),
        "lacks class 'd'",
    ),
    "a class that scores lack": (
        lambda: with_tree({**TREE, "e": None}).calibrate(SCORES),
        "has class 'e'",
    ),
    "classes without names": (
        lambda: with_tree(TREE).calibrate(replace(SCORES, classes=None)),
        "no class names",
    ),
}


@pytest.mark.parametrize(("mistake", "match"), BAD.values(), ids=BAD.keys())
def test_refused(mistake: Callable[[], object], match: str) -> None:
    with pytest.raises(ag.InputError, match=match) as caught:
        mistake()
    assert_one_sentence(str(caught.value))


def test_fewer_people_than_needed_is_said_with_the_number() -> None:
    people = [f"p{row % 5}" for row in range(100)]
    with pytest.warns(ag.CalibrationWarning, match="needs at least 9 people"):
        CLASSES.calibrate(SCORES, people=people)
    with pytest.warns(ag.CalibrationWarning, match="needs at least 99 people"):
        CLASSES.calibrate(SCORES, people=people, for_people=0.99)


def test_a_width_that_no_checkpoint_reaches_is_said() -> None:
    with pytest.warns(ag.CalibrationWarning, match="max_width is 1e-06"):
        rule = ag.IntervalStop(0.9, max_width=1e-6).calibrate(numbers())
    assert "max_width" in rule.notes[0]


def test_questions_of_different_length_are_read_as_far_as_all_go() -> None:
    assert ag.Answers(SAMPLES).unread == ""
    uneven = ag.Answers([*SAMPLES, ["0"] * 3])
    assert uneven.times == (1, 2, 3) and "first 3" in uneven.unread


def test_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "numbers.npz"
    np.savez(path, centre=CENTRE, scale=changed(SCALE, 0.0))
    interval = ag.IntervalStop(0.9, max_width=1.0)
    with pytest.raises(ag.InputError, match=r"numbers\.npz: scale"):
        interval.load(path)
    ag.save_scores(tmp_path / "scores.npz", SCORES)
    with pytest.raises(ag.InputError, match="no numbers"):
        interval.load(tmp_path / "scores.npz")
    with pytest.raises(ag.InputError, match="open answers"):
        ag.load_scores(tmp_path / "answers.jsonl")
    with pytest.raises(ag.InputError, match="there is no file"):
        ag.Tree.load(tmp_path / "tree.json")
