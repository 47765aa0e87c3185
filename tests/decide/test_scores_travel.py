"""Every verb takes a `Scores`, and a rule knows the engine, the ensemble, the classes and the tuned
rows that it comes from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from agreestop.decide.scores import load_spikes
from tests.decide.strategies import (
    assert_one_sentence,
    assert_same_decisions,
    make_sample,
    uniforms_of,
)

TIMES = (1, 2.5, 4)
CHECKPOINTS = (1, 4)
NAMES = ("cat", "dog", "fox", "owl")
DIGEST = "0123456789abcdef" * 4


def make_scores(n: int, seed: int, tied: bool = True, **known: Any) -> ag.Scores:
    return ag.Scores(*make_sample(n, seed=seed, tied=tied), TIMES, **known)


def changed(scores: ag.Scores, **changes: Any) -> ag.Scores:
    return replace(scores, **changes)


TUNING, CALIBRATION, TEST = make_scores(120, 1), make_scores(160, 2), make_scores(60, 3)
RULE = ag.AgreeStop(0.8, CHECKPOINTS, 1)
KNOWN: dict[str, Any] = {"classes": NAMES, "engine": "dense", "ensemble_digest": DIGEST}


def arrays(scores: ag.Scores) -> tuple[Any, Any, Any]:
    return scores.log_confidence, scores.labels, scores.times


def reuse_of(rule: ag.CalibratedRule, ids: Any) -> str:
    """The first sentence that says that inputs with these ids were used before."""
    return next((overlap.reuse for overlap in rule.overlaps(ids) if overlap.reuse), "")


# --------------------------------------------------------------------------------------------------
# a Scores or its arrays


@pytest.mark.parametrize(
    "rule", [RULE, ag.SpikeCP(0.8, CHECKPOINTS, 1, ag.MergeRanks(1)), ag.DCSNN(0.8, CHECKPOINTS, 1)]
)
def test_calibrate_decide_evaluate_and_repeat_take_scores(
    rule: ag.AgreeStop | ag.SpikeCP | ag.DCSNN,
) -> None:
    whole, apart = rule.calibrate(CALIBRATION), rule.calibrate(*arrays(CALIBRATION))
    assert whole.fingerprint == apart.fingerprint
    decisions = whole.decide(TEST)
    assert_same_decisions(decisions, apart.decide(TEST.log_confidence, TEST.times))
    assert ag.evaluate(decisions, TEST).coverage == ag.evaluate(decisions, TEST.labels).coverage  # type: ignore[arg-type]
    assert whole.saw(CALIBRATION) and apart.saw(CALIBRATION) and not whole.saw(TEST)
    first = ag.repeat_splits(rule, CALIBRATION, n_calibration=60, repeats=3)
    second = ag.repeat_splits(
        rule, CALIBRATION.log_confidence, CALIBRATION.labels, 60, 3, times=TIMES
    )
    np.testing.assert_array_equal(first.latencies, second.latencies)


def test_fits_and_tune_take_scores() -> None:
    for kind in (ag.Temperature, ag.TopMass):
        np.testing.assert_array_equal(
            kind.fit(TUNING).temperatures, kind.fit(*arrays(TUNING)[:2], times=TIMES).temperatures
        )
    np.testing.assert_array_equal(
        ag.TuningRanks.fit(TUNING).quantiles, ag.TuningRanks.fit(*arrays(TUNING)[:2]).quantiles
    )
    learned = ag.LearnedRisk.fit(TUNING, max_set_size=1)
    np.testing.assert_array_equal(
        learned.weights,
        ag.LearnedRisk.fit(*arrays(TUNING)[:2], max_set_size=1, times=TIMES).weights,
    )
    assert learned.times == TIMES
    whole, apart = (
        ag.tune(RULE, TUNING, n_calibration=40, repeats=2),
        ag.tune(RULE, *arrays(TUNING), n_calibration=40, repeats=2),
    )
    assert whole.trials == apart.trials
    assert_same_decisions(
        whole.rule.calibrate(CALIBRATION).decide(TEST),
        apart.rule.calibrate(CALIBRATION).decide(TEST),
    )


UNLABELLED = changed(CALIBRATION, labels=None)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: RULE.calibrate(CALIBRATION, CALIBRATION.labels),
            "labels are given together with scores",
        ),
        (lambda: RULE.calibrate(CALIBRATION, times=TIMES), "times are given together with scores"),
        (
            lambda: RULE.calibrate(CALIBRATION).decide(TEST, TIMES),
            "times are given together with scores",
        ),
        (lambda: ag.tune(RULE, TUNING, TUNING.labels), "labels are given together with scores"),
        (
            lambda: ag.repeat_splits(RULE, CALIBRATION, times=TIMES),
            "times are given together with scores",
        ),
        (lambda: ag.TopMass.fit(TUNING, TUNING.labels), "labels are given together with scores"),
        (lambda: RULE.calibrate(UNLABELLED), "labels are missing"),
        (lambda: RULE.calibrate(CALIBRATION.log_confidence, times=TIMES), "labels are missing"),
        (lambda: ag.tune(RULE, UNLABELLED), "labels are missing"),
        (lambda: ag.repeat_splits(RULE, UNLABELLED), "labels are missing"),
        (lambda: ag.Temperature.fit(UNLABELLED), "labels are missing"),
        (
            lambda: ag.evaluate(
                RULE.calibrate(CALIBRATION).decide(TEST), changed(TEST, labels=None)
            ),
            "the scores hold no labels",
        ),
        (
            lambda: ag.evaluate(RULE.calibrate(CALIBRATION).decide(TEST), CALIBRATION),
            "labels has 160 entries for 60 inputs",
        ),
        (
            lambda: ag.AgreeStop(0.8, (1, 3), 1).calibrate(CALIBRATION),
            "times lacks the rule's checkpoint 3",
        ),
        (lambda: changed(TEST, ids=range(59)), "ids has 59 entries for 60 inputs"),
        (lambda: changed(TEST, ids=np.zeros(60)), r"ids has shape \(60,\) and dtype float64"),
        (lambda: changed(TEST, ids=np.zeros((60, 1), int)), r"ids has shape \(60, 1\)"),
        (lambda: changed(TEST, classes=NAMES[:3]), "classes names 3 classes"),
    ],
)
def test_one_clear_sentence(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ag.InputError, match=words) as caught:
        call()
    assert_one_sentence(str(caught.value))


def test_rows_keep_labels_and_ids() -> None:
    scores = changed(TEST, ids=[f"input {i}" for i in range(60)], **KNOWN)
    mask = np.arange(60) % 3 == 0
    for rows in (slice(0, 60, 3), np.flatnonzero(mask), mask):
        part = scores.rows(rows)
        assert part.ids is not None and part.labels is not None and scores.labels is not None
        assert part.ids.tolist() == [f"input {i}" for i in range(0, 60, 3)]
        np.testing.assert_array_equal(part.labels, scores.labels[::3])
        assert (part.classes, part.engine, part.ensemble_digest) == (NAMES, "dense", DIGEST)


def test_scores_of_lists_become_arrays() -> None:
    scores = ag.Scores([[[[-1.0, -2.0]]]], [1], [3], ["a", "b"], ids=[7])  # type: ignore[arg-type]
    assert scores.log_confidence.shape == (1, 1, 1, 2)
    assert (scores.times, scores.classes) == ((3,), ("a", "b"))


# -------------------------------------------------------------------------------------------------
# engine, members and names


def test_a_rule_knows_where_its_scores_come_from_and_keeps_it_in_its_file(tmp_path: Path) -> None:
    calibrated = RULE.calibrate(changed(CALIBRATION, **KNOWN))
    calibrated.save(tmp_path / "rule")
    for rule in (calibrated, ag.load_rule(tmp_path / "rule")):
        assert (rule.engine, rule.ensemble_digest, rule.class_names) == ("dense", DIGEST, NAMES)


@pytest.mark.parametrize("way", ["fresh", "loaded"])
def test_scores_of_another_engine_or_ensemble_are_refused(way: str, tmp_path: Path) -> None:
    rule = RULE.calibrate(changed(CALIBRATION, **KNOWN))
    if way == "loaded":
        rule.save(tmp_path / "rule")
        rule = ag.load_rule(tmp_path / "rule")
    expected = rule.decide(changed(TEST, **KNOWN))
    other_engine, other_members = (
        changed(TEST, engine="event-driven"),
        changed(TEST, ensemble_digest="f" * 64),
    )
    for scores, words in (
        (
            other_engine,
            r"the dense engine, and these are of the event-driven one: .*any_engine=True",
        ),
        (
            other_members,
            r"the ensemble 0123456789ab, and these are of ffffffffffff: .*any_members=True",
        ),
    ):
        with pytest.raises(ag.InputError, match=words) as caught:
            rule.decide(scores)
        assert_one_sentence(str(caught.value))
    assert_same_decisions(rule.decide(other_engine, any_engine=True), expected)
    assert_same_decisions(rule.decide(other_members, any_members=True), expected)
    with pytest.raises(ag.InputError, match="any_members"):
        rule.decide(other_members, any_engine=True)
    with pytest.raises(ag.InputError, match="any_engine"):
        rule.decide(other_engine, any_members=True)


def test_what_is_unknown_is_not_refused() -> None:
    known, unknown = RULE.calibrate(changed(CALIBRATION, **KNOWN)), RULE.calibrate(CALIBRATION)
    assert_same_decisions(known.decide(TEST), unknown.decide(changed(TEST, **KNOWN)))
    assert_same_decisions(known.decide(TEST.log_confidence, TIMES), unknown.decide(TEST))
    known.check_source("dense", DIGEST)
    known.check_source()


def test_decisions_know_the_names_of_classes() -> None:
    calibrated = RULE.calibrate(changed(CALIBRATION, **KNOWN))
    decisions = calibrated.decide(TEST)
    assert decisions.class_names == NAMES
    for number in range(10):
        decision = decisions[number]
        assert decision.names == tuple(NAMES[label] for label in decision.classes) != ()
        session = calibrated.stream()
        answers = [
            session.push(values)
            for values in TEST.log_confidence[number, [0, 2]][: decision.index + 1]
        ]
        assert answers[-1] == decision
    assert RULE.calibrate(CALIBRATION).decide(TEST)[0].names is None


def test_the_same_number_gives_the_same_random_number_in_batch_and_stream() -> None:
    rule = ag.SpikeCP(0.8, CHECKPOINTS, 1, ag.MergePValues(1, "randomized")).calibrate(CALIBRATION)
    numbers = [uniforms_of(session) for session in (rule.stream(0), rule.stream(7), rule.stream(2))]
    batch = uniforms_of(rule.start(8, 0))
    assert len(np.unique(batch)) == 8
    np.testing.assert_array_equal(np.concatenate(numbers)[:, 0], batch[[0, 7, 2], 0])
    np.testing.assert_array_equal(uniforms_of(rule.start(3, 5)), batch[5:])
    for first in (0, 5):
        expected = rule.decide(TEST, first=first)
        for number, row in enumerate(TEST.log_confidence[:, [0, 2]]):
            session = rule.stream(first + number)
            found = session.push(row[0]) or session.push(row[1])
            assert found == expected[number]


def test_random_numbers_are_fresh_without_a_number(tmp_path: Path) -> None:
    """Also after the rule was loaded again, as by a program that runs once for each input."""
    rule = ag.SpikeCP(0.8, CHECKPOINTS, 1, ag.MergePValues(1, "randomized")).calibrate(CALIBRATION)
    rule.save(tmp_path / "rule")
    rules = [rule, ag.load_rule(tmp_path / "rule"), ag.load_rule(tmp_path / "rule")]
    streams = [one.stream() for one in (*rules, rule)]
    assert len({float(uniforms_of(session)[0, 0]) for session in streams}) == 4
    assert [session.number for session in streams] == [0, 0, 0, 1]
    assert len(np.unique(np.concatenate([uniforms_of(one.start(5)) for one in rules]))) == 15
    with pytest.raises(ag.InputError, match="first is -1"):
        rule.decide(TEST, first=-1)
    assert rule.randomized and not RULE.calibrate(CALIBRATION).randomized


# 0.637, the random number of input 0 with the default seed
FIRST_NUMBER = float(np.random.Generator(np.random.PCG64(0)).random())


def coupled(n: int) -> ag.Scores:
    """Two members whose p-variables p and q of the label have p + q = c for p < c = 0.133, else q =
    p; p is spread evenly.

    The merged p-variable of inputs with p < c is then (just below) 0.1 · (2 - u)^-1 · (2 - u_0):
    they miss iff u is at most about u_0.
    """
    p = (np.arange(n) + 0.5) / n
    level = 0.1 * (2 - FIRST_NUMBER) - 0.003
    label = np.exp(np.stack([p, np.where(p < level, level - p, p)], axis=1)[:, None] - 1)
    return ag.Scores(
        np.log(np.stack([label, 1 - label + 1e-9], axis=-1)), np.zeros(n, dtype=int), (1,)
    )


def test_one_call_for_each_input_keeps_the_promise_of_randomised_merging() -> None:
    """0.1 of 600 inputs miss at most: 0.089 in the mean, and 0.12 with probability 1e-5. Control:
    each as input 0, 0.133 miss.
    """
    with pytest.warns(ag.CalibrationWarning, match="max_set_size is 2"):
        calibrated = ag.SpikeCP(0.9, (1,), 2, ag.MergePValues(1, "randomized")).calibrate(
            coupled(2000)
        )
    inputs = coupled(600).log_confidence

    def misses(first: int | None) -> float:
        return float(
            np.mean(
                [
                    not calibrated.decide(inputs[row : row + 1], first=first).sets[0, 0]
                    for row in range(len(inputs))
                ]
            )
        )

    assert misses(None) <= 0.12 < 0.13 <= misses(0)


# --------------------------------------------------------------------------------------------------
# reuse, seen by ids


@pytest.mark.parametrize(
    "ids",
    [
        np.arange(120, dtype=np.uint64) << np.uint64(50),
        np.arange(-60, 60),
        [f"row {i}" for i in range(120)],
    ],
)
@pytest.mark.parametrize("way", ["fresh", "loaded"])
def test_one_row_that_was_tuned_on_is_recognised_by_its_id(
    ids: Any, way: str, tmp_path: Path
) -> None:
    """Even where its scores are others: the input was computed again, on another engine."""
    tuning = changed(TUNING, ids=ids)
    fresh = [f"new {i}" for i in range(220)] if isinstance(ids, list) else np.arange(1000, 1220)
    calibration = changed(CALIBRATION, ids=fresh[60:])
    rule = ag.AgreeStop(0.8, CHECKPOINTS, 1, risk=ag.TopMass.fit(tuning)).calibrate(calibration)
    if way == "loaded":
        rule.save(tmp_path / "rule")
        rule = ag.load_rule(tmp_path / "rule")
    assert tuning.ids is not None
    mixed = np.array(fresh[:60])
    mixed = mixed.astype(np.uint64) if tuning.ids.dtype == np.uint64 else mixed
    assert rule.decide(changed(TEST, ids=mixed)).reuse == reuse_of(rule, mixed) == ""
    mixed[5] = tuning.ids[17]
    decisions = rule.decide(changed(TEST, ids=mixed))
    for found in (decisions.reuse, reuse_of(rule, mixed)):
        assert found.startswith("1 of the 60 rows were used for tuning (row 5)")
    own = tuning.ids.dtype != np.uint64  # hashes are never numbered again
    assert (
        "by their ids, but their scores are others: if each part counts its ids" in decisions.reuse
    ) == own
    with pytest.raises(ag.InputError, match="evaluation: 1 of the 60 rows"):
        ag.evaluate(decisions, TEST)
    with pytest.raises(ag.InputError, match="calibration: 1 of the 60 rows"):
        rule.rule.calibrate(changed(TEST, ids=mixed))
    with pytest.raises(ag.InputError, match="repeat_splits: 1 of the 60 rows"):
        ag.repeat_splits(rule.rule, changed(TEST, ids=mixed))


def test_tuned_rules_know_the_ids_of_their_rows() -> None:
    rule = ag.tune(RULE, changed(TUNING, ids=range(120)), n_calibration=40, repeats=2).rule
    calibrated = rule.calibrate(changed(CALIBRATION, ids=range(500, 660)))
    assert reuse_of(calibrated, [119, 800]) != ""
    assert reuse_of(calibrated, [120, 800]) == ""


def test_without_ids_on_both_sides_rows_are_recognised_by_their_scores() -> None:
    for tuned_ids, test_ids in ((None, range(120)), (range(120), None), (None, None)):
        tuning = changed(make_scores(120, 1, tied=False), ids=tuned_ids)
        rule = ag.AgreeStop(0.8, CHECKPOINTS, 1, risk=ag.TopMass.fit(tuning)).calibrate(
            make_scores(160, 2, tied=False)
        )
        assert rule.decide(changed(tuning, ids=test_ids)).reuse.startswith("120 of the 120 rows")
        assert reuse_of(rule, None) == ""


def test_rows_with_other_ids_are_recognised_by_their_scores() -> None:
    """Ids may be numbered again after a second shuffle: they do not switch the comparison of
    scores off.
    """
    rule = ag.AgreeStop(
        0.8, CHECKPOINTS, 1, risk=ag.TopMass.fit(changed(TUNING, ids=range(120)))
    ).calibrate(CALIBRATION)
    assert rule.decide(changed(TUNING, ids=range(200, 320))).reuse.startswith(
        "120 of the 120 rows were used for tuning"
    )
    assert rule.decide(changed(TEST, ids=range(200, 260))).reuse == ""


def test_ids_that_repeat_inside_the_tuning_split_may_repeat_outside_it() -> None:
    """Equal inputs have equal hashes: what repeats by chance is not called reuse, and what repeats
    more often is.
    """
    ids = np.arange(120)
    ids[60:84] = 0
    rule = ag.AgreeStop(
        0.8, CHECKPOINTS, 1, risk=ag.TopMass.fit(changed(TUNING, ids=ids))
    ).calibrate(CALIBRATION)
    assert reuse_of(rule, np.r_[np.zeros(12, int), 1000:1048]) == ""
    assert reuse_of(rule, ids) != ""


# --------------------------------------------------------------------------------------------------
# files


@pytest.mark.parametrize(
    "ids", [None, np.arange(60, dtype=np.uint64) << np.uint64(58), [f"é{i}" for i in range(60)]]
)
def test_score_files_keep_everything(ids: Any, tmp_path: Path) -> None:
    scores = changed(TEST, ids=ids, **KNOWN)
    ag.save_scores(tmp_path / "scores.npz", scores)
    spikes = np.random.default_rng(0).random((60, 5, 2, 4)) < 0.3
    ag.save_spikes(tmp_path / "spikes.npz", spikes, TEST.labels, NAMES, "dense", DIGEST, ids)
    kept = load_spikes(tmp_path / "spikes.npz")
    ag.save_spikes(tmp_path / "again.npz", kept)
    assert kept.rows(slice(0, 7)).spikes.shape == (7, 5, 2, 4)
    for loaded in (
        ag.load_scores(tmp_path / "scores.npz"),
        kept,
        ag.load_scores(tmp_path / "again.npz", times=(2, 4)),
    ):
        assert (loaded.classes, loaded.engine, loaded.ensemble_digest) == (NAMES, "dense", DIGEST)
        assert loaded.labels is not None
        np.testing.assert_array_equal(loaded.labels, TEST.labels)
        assert (loaded.ids is None) == (ids is None)
        if loaded.ids is not None:
            assert loaded.ids.tolist() == np.asarray(ids).tolist()
