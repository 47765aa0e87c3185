"""What a user may do in good faith and would break a promise, or be misread, without a word."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from agreestop.decide.spotting import Recordings
from tests.decide.strategies import assert_one_sentence

RULE = ag.AgreeStop(0.9, range(1, 11), 1)
POOL = ag.simulate_scores(500, steps=10, K=2, C=4, seed=1)
CALIBRATION, TEST = POOL.rows(slice(0, 300)), POOL.rows(slice(300, 500))


def refused(match: str, call: Callable[..., object], *given: Any, **named: Any) -> None:
    with pytest.raises(ag.InputError, match=match) as caught:
        call(*given, **named)
    assert_one_sentence(str(caught.value))


# --- decisions and what they are compared with


@pytest.mark.parametrize("kind", [np.int64, np.uint64, np.str_])
def test_decisions_are_not_compared_with_other_rows(kind: Any) -> None:
    """Scores in another order, or of other rows, have labels of the wrong inputs."""
    named = replace(TEST, ids=np.arange(200).astype(kind))
    decisions = RULE.calibrate(CALIBRATION).decide(named)
    known = ag.evaluate(decisions, named)
    assert TEST.labels is not None
    assert known.coverage == ag.evaluate(decisions, TEST.labels).coverage
    assert known.coverage == ag.evaluate(decisions, TEST).coverage  # these rows have no ids
    refused("id 199", ag.evaluate, decisions, named.rows(np.arange(200)[::-1]))
    unlike = replace(TEST, ids=np.array([f"a{row}" for row in range(200)]))
    if kind is not np.str_:
        ag.evaluate(decisions, unlike)  # ids of another kind say nothing


def test_decisions_are_not_compared_with_other_classes() -> None:
    names = ("a", "b", "c", "d")
    calibrated = RULE.calibrate(replace(CALIBRATION, classes=names))
    decisions = calibrated.decide(replace(TEST, classes=names))
    ag.evaluate(decisions, TEST)
    moved = replace(TEST, classes=("b", "a", "c", "d"))
    refused("the classes", ag.evaluate, decisions, moved)


def test_open_answers_are_compared_with_their_own_questions() -> None:
    rng = np.random.default_rng(0)
    samples = [rng.choice(["1", "2", "3"], size=6, p=(0.8, 0.1, 0.1)).tolist() for _ in range(200)]
    answers = ag.Answers(samples, labels=["1"] * 200)
    rule = ag.AgreeStop(0.8, range(1, 6), 1).calibrate(answers.rows(slice(0, 100)), "final")
    new = answers.rows(slice(100, 200))
    decisions = rule.decide(new)
    assert ag.evaluate(decisions, new).n == 100
    for other in (new.rows(np.arange(100)[::-1]), new.rows(slice(0, 50)), POOL.rows(slice(0, 100))):
        refused("not the Answers", ag.evaluate, decisions, other)


def test_evaluate_names_the_type_of_what_it_was_given() -> None:
    refused("of type CalibratedRule", ag.evaluate, RULE.calibrate(CALIBRATION), TEST)


# --- people


@pytest.mark.parametrize("before", [np.int64, np.str_])
@pytest.mark.parametrize("after", [np.int32, np.uint64, np.str_])
def test_people_are_known_as_numbers_and_as_text(before: Any, after: Any) -> None:
    people = np.arange(300) // 6
    rule = RULE.calibrate(CALIBRATION, people=people.astype(before))
    decisions = rule.decide(TEST)
    same = (np.arange(200) // 4).astype(after)
    refused("50 of the 50 people", ag.evaluate, decisions, TEST, people=same)
    others = (1000 + np.arange(200) // 4).astype(after)
    assert ag.evaluate(decisions, TEST, people=others).by_person is not None


def test_people_who_are_not_given_cannot_be_compared() -> None:
    decisions = RULE.calibrate(CALIBRATION, people=np.arange(300) // 6).decide(TEST)
    assert any("give people=" in note for note in ag.evaluate(decisions, TEST).notes)
    named = ag.evaluate(decisions, TEST, people=1000 + np.arange(200) // 4)
    assert not any("give people=" in note for note in named.notes)
    plain = ag.evaluate(RULE.calibrate(CALIBRATION).decide(TEST), TEST)
    assert not any("give people=" in note for note in plain.notes)


# --- calibration rows


def test_copied_rows_are_noted() -> None:
    """Oversampling, or a file read twice; counts that are alike by chance are not copies."""
    twice = CALIBRATION.rows(np.r_[0:300, 0:60])
    (note,) = RULE.calibrate(twice).notes
    assert "60 of the 360 calibration rows are copies" in note
    assert RULE.calibrate(CALIBRATION).notes == ()
    assert RULE.calibrate(CALIBRATION.rows(np.r_[0:300, 0:20])).notes == ()
    rng = np.random.default_rng(0)
    spikes = np.cumsum(rng.random((300, 10, 1, 2)) < 0.2, axis=1)
    counts = ag.Scores(ag.log_confidence(spikes), rng.integers(2, size=300), tuple(range(1, 11)))
    assert not any("copies" in note for note in RULE.calibrate(counts).notes)


def test_hashes_of_inputs_tell_whether_rows_are_copies() -> None:
    """Different inputs may have equal scores, where networks rarely spike."""
    alike, hashes = CALIBRATION.rows(np.arange(300) % 200), np.arange(300, dtype=np.uint64)
    assert RULE.calibrate(replace(alike, ids=hashes)).notes == ()
    for same in (hashes % 200, np.arange(300)):  # a number of one's own says nothing
        (note,) = RULE.calibrate(replace(alike, ids=same)).notes
        assert "100 of the 300 calibration rows are copies" in note


def test_a_target_that_looks_like_a_share_of_misses_is_noted() -> None:
    (note,) = ag.AgreeStop(0.1, range(1, 11), 1).calibrate(CALIBRATION).notes
    assert "give 0.9" in note
    assert ag.AgreeStop(0.3, range(1, 11), 1).calibrate(CALIBRATION).notes == ()


def test_a_risk_that_is_a_confidence_is_noted() -> None:
    rng = np.random.default_rng(0)
    risk = rng.random((300, 5))
    loss = rng.random((300, 5)) < risk
    rule = ag.StopRule(0.8, at_end="abstain")
    assert rule.calibrate(risk, loss).notes == ()
    for given in ((1 - risk, loss), (risk, ~loss)):
        (note,) = rule.calibrate(*given).notes
        assert "is the risk a confidence" in note
    assert rule.calibrate(risk, rng.random((300, 5)) < 0.5).notes == ()


# --- arrays that a user goes on using


def test_a_rule_does_not_follow_arrays_that_change_later() -> None:
    loss = 1.0 - np.eye(4)
    rule = ag.AgreeStop(None, range(1, 11), 1, loss=loss, max_loss=0.1)
    loss[:] = 7.0
    assert rule.loss is not None and rule.loss.max() == 1.0
    calibrated = RULE.calibrate(CALIBRATION)
    before = calibrated.decide(TEST).stop_index
    calibrated.thresholds[:] = 0.0
    kth = calibrated.kth_values
    assert kth is not None
    kth[:] = 0.0
    np.testing.assert_array_equal(calibrated.decide(TEST).stop_index, before)
    assert calibrated.thresholds[0] < 0 and calibrated.kth_values[0] < 0  # type: ignore[index]


# --- windows of streams


def test_windows_that_were_made_otherwise_are_refused(tmp_path: Path) -> None:
    known = "window=8, event=0, skip=3"
    behind = f"{known}, behind alarms above 1.5, rest=40"
    for made, others in (
        (known, ("window=8, event=0, skip=0", "window=9, event=0, skip=3")),
        (behind, ("window=8, event=0, skip=0", behind.replace("1.5", "1.6"))),
    ):
        RULE.calibrate(replace(CALIBRATION, heard=made)).save(tmp_path / "rule")
        rule = ag.load_rule(tmp_path / "rule")
        for same in (known, behind, ""):
            rule.decide(replace(TEST, heard=same))
        for other in others:
            refused("is given", rule.decide, replace(TEST, heard=other))
    RULE.calibrate(CALIBRATION).decide(replace(TEST, heard=known))


def recordings(n: int, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=100) for _ in range(n)]


def test_recordings_that_set_the_threshold_are_known_in_float32() -> None:
    first = recordings(40, 0)
    spotter = ag.Spotter(0.1).calibrate(first)
    for same in (first, [one.astype(np.float32) for one in first]):
        refused("40 of the 40", spotter.evaluate, same)
    spotter.evaluate(recordings(40, 1))


def test_a_spotter_is_evaluated_on_new_people_and_on_scores_of_its_kind(tmp_path: Path) -> None:
    source: dict[str, Any] = {
        "engine": "dense",
        "ensemble_digest": "a" * 20,
        "heard": "window=8, event=0",
    }
    data = replace(Recordings.of(recordings(40, 0), people=np.arange(40) // 2), **source)
    ag.Spotter(0.1).calibrate(data).save(tmp_path / "spotter")
    spotter, new = ag.Spotter.load(tmp_path / "spotter"), recordings(40, 1)
    refused("20 of the 20 people", spotter.evaluate, new, people=np.arange(40) // 2)
    texts = [str(row // 2) for row in range(40)]
    refused("20 of the 20 people", spotter.evaluate, new, people=texts)
    spotter.evaluate(new, people=100 + np.arange(40) // 2)
    other = replace(Recordings.of(new), **source)
    spotter.evaluate(other)
    for name in source:
        foreign = replace(other, **{name: "another"})  # type: ignore[arg-type]
        refused("was calibrated on scores", spotter.evaluate, foreign)
