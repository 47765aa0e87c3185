"""Rows that were used before are found by their ids and by their scores, whatever happened to
either in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from agreestop.decide.leakage import SLACKS, ScoredRows, TunedRows, near
from tests.decide.strategies import assert_one_sentence, make_sample

TIMES = (1, 2, 3)
RULE = ag.AgreeStop(0.8, TIMES, 1)
POOL = ag.Scores(*make_sample(240, seed=3, tied=False), TIMES)
COUNTS = ag.simulate_scores(600, steps=12, K=3, C=5, seed=4)


def with_ids(scores: ag.Scores, ids: Any) -> ag.Scores:
    return replace(scores, ids=np.asarray(ids))


def again(scores: ag.Scores, change: Callable[[Any], Any]) -> ag.Scores:
    return replace(scores, log_confidence=np.minimum(change(scores.log_confidence), 0))


def reuse(calibrated: ag.CalibratedRule, scores: ag.Scores) -> str:
    return calibrated.decide(scores, any_engine=True).reuse


CHANGES: dict[str, Callable[[Any], Any]] = {
    "the same": lambda values: values,
    "float32": lambda values: values.astype(np.float32),
    "another batch size": lambda values: (
        values + np.random.default_rng(0).uniform(-1e-6, 1e-6, values.shape)
    ),
    "shifted": lambda values: values - 1e-6,
    "float16": lambda values: values.astype(np.float16),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize(
    "ids", ["none", "kept", "numbered again", "repeated", "hashes of other arrays"]
)
def test_rows_that_were_scored_again_are_found(change: Callable[[Any], Any], ids: str) -> None:
    """Ids never switch the comparison of scores off."""
    named: dict[str, Any] = {
        "none": (None, None),
        "kept": (np.arange(240), np.arange(240)),
        "numbered again": (np.arange(240), 1000 + np.arange(240)),
        "repeated": (np.arange(240) % 4, np.arange(240) % 4),
        "hashes of other arrays": (
            np.arange(240, dtype=np.uint64),
            np.arange(240, 480, dtype=np.uint64),
        ),
    }
    before, after = named[ids]
    used, rest = replace(POOL, ids=before).rows(slice(0, 100)), replace(POOL, ids=after)
    given = again(rest, change)
    calibrated = RULE.calibrate(used)
    assert reuse(calibrated, given.rows(slice(0, 60))).startswith(
        "60 of the 60 rows were used for calibration"
    )
    assert reuse(calibrated, given.rows(slice(70, 130))).startswith(
        "30 of the 60 rows were used for calibration (rows 0, 1, 2, 3, 4, …)"
    )
    assert reuse(calibrated, given.rows(slice(140, 240))) == ""
    tuned = replace(RULE, risk=ag.TopMass.fit(used))
    with pytest.raises(ag.InputError, match="calibration: 60 of the 60 rows were used") as caught:
        tuned.calibrate(given.rows(slice(0, 60)))
    assert_one_sentence(str(caught.value))
    assert tuned.calibrate(given.rows(slice(140, 240))).n == 100


def test_ids_numbered_anew_after_a_second_shuffle() -> None:
    """Every part has rows 0, 1, 2, …: equal ids are not equal rows, and the sentence says what to
    do.
    """
    order = np.random.default_rng(1).permutation(240)
    tuning, calibration = (
        with_ids(POOL.rows(slice(0, 100)), range(100)),
        POOL.rows(order[order >= 100]),
    )
    tuned = replace(RULE, risk=ag.TopMass.fit(tuning))
    with pytest.raises(ag.InputError, match="100 of the 140 rows were used for tuning") as caught:
        tuned.calibrate(with_ids(calibration, range(140)))
    assert (
        "by their ids, but their scores are others: if each part counts its ids from 0, give "
        "others or leave" in str(caught.value)
    )
    assert_one_sentence(str(caught.value))
    assert tuned.calibrate(calibration).n == 140  # without ids, as the sentence says
    mixed = POOL.rows(order[:140])
    with pytest.raises(ag.InputError, match="of the 140 rows were used for tuning") as caught:
        tuned.calibrate(with_ids(mixed, range(1000, 1140)))
    assert f"{np.sum(order[:140] < 100)} of the 140 rows" in str(
        caught.value
    ) and "counts its ids" not in str(caught.value)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_counts_that_repeat_by_chance_are_told_from_reuse(change: Callable[[Any], Any]) -> None:
    """Rows of spike counts, a third of them silent: 200 fresh rows are taken in every one of 5
    draws, 40 reused ones in 200 are found.
    """
    for seed in range(5):
        rng = np.random.default_rng(seed)
        scores = COUNTS.rows(rng.permutation(600))
        values = scores.log_confidence.copy()
        values[rng.random(600) < 1 / 3] = -np.log(5)
        scores = replace(scores, log_confidence=values)
        used, fresh = scores.rows(slice(0, 300)), again(scores.rows(slice(300, 500)), change)
        calibrated = ag.AgreeStop(0.8, scores.times, 1).calibrate(used)
        assert reuse(calibrated, fresh) == ""
        heard = np.flatnonzero((values != -np.log(5)).any(axis=(1, 2, 3)))
        mixed = np.r_[heard[heard < 300][:120], 300:380]
        assert "rows were used for calibration" in reuse(
            calibrated, again(scores.rows(mixed), change)
        )


def test_scores_that_are_merely_near_each_other_are_fresh() -> None:
    """One member, two classes, one checkpoint: one number a row, so that 5,000 fresh rows come near
    100 known ones again and again.
    """
    rng = np.random.default_rng(0)

    def drawn(n: int) -> ag.Scores:
        odds = rng.normal(size=(n, 1, 1, 1)) * [0, 1]
        return ag.Scores(ag.log_confidence(odds), rng.integers(2, size=n), (1,))

    for _ in range(20):
        used = drawn(100)
        calibrated = ag.AgreeStop(0.8, (1,), 1).calibrate(used)
        fresh = drawn(5000)
        assert calibrated.rows is not None and calibrated.rows.sketches is not None
        sketches = ScoredRows(fresh.log_confidence, [0]).sketches
        # the control: nearness alone would refuse them
        assert near(sketches, calibrated.rows.sketches, SLACKS[1]).sum() > 50
        assert reuse(calibrated, fresh) == ""
        assert reuse(calibrated, again(used, CHANGES["float16"])).startswith("100 of the 100 rows")


def test_a_search_finds_what_comparing_all_pairs_finds() -> None:
    rng = np.random.default_rng(0)
    for width in (0.01, 0.3, 3.0):
        known, others = (rng.normal(size=(n, 8), scale=width).astype(np.float32) for n in (80, 70))
        known[40:60] = known[7]
        others[:20] = known[5:25]
        for slack in (1e-5, 1.5e-3, 0.2):
            gaps = np.abs(others[:, None] - known).max(axis=2)
            np.testing.assert_array_equal(near(others, known, slack), (gaps <= slack).any(axis=1))
            own = np.abs(known[:, None] - known).max(axis=2) + np.eye(80) * 9
            np.testing.assert_array_equal(
                near(known, known, slack, others=True), (own <= slack).any(axis=1)
            )


@pytest.mark.parametrize("kind", ["risk", "score"])
def test_tuning_that_did_not_help_is_remembered_beside_what_was_fitted_before(kind: str) -> None:
    """With a target of 0.95 and 10 calibration examples nothing stops, so no tuning helps."""
    first, second, third = (POOL.rows(slice(start, start + 80)) for start in (0, 80, 160))
    few: dict[str, Any] = {"n_calibration": 10, "repeats": 2, "exponents": (1.0,)}
    score = ag.SpikeCP(0.95, TIMES, 1, None, "stop-aware", ag.Temperature.fit(first))
    given: Any = (
        score if kind == "score" else ag.AgreeStop(0.95, TIMES, 1, risk=ag.TopMass.fit(first))
    )
    tuned = ag.tune(given, second, **few)
    assert "did not help" in tuned.note
    for rows in (first, second):
        with pytest.raises(ag.InputError, match="80 of the 80 rows were used for tuning"):
            tuned.rule.calibrate(rows)
    assert np.array_equal(
        tuned.rule.calibrate(third).decide(third).sets, given.calibrate(third).decide(third).sets
    )


def test_rows_that_a_tuned_rule_was_compared_with_are_remembered() -> None:
    """Tuning helps here; the rows of the risk that it replaced took part in the choice."""
    times = (4, 8, 12)
    first, second, third = (
        COUNTS.at(times).rows(slice(start, start + 200)) for start in (0, 200, 400)
    )
    late = ag.ShapedRisk(ag.TopMass.fit(first), np.array([-9.0, -9.0, 0.0]), times)
    given = ag.AgreeStop(0.8, times, 1, risk=late)
    tuned = ag.tune(given, second, n_calibration=40, repeats=2, exponents=(1.0,))
    assert tuned.note == ""
    for rows in (first, second):
        with pytest.raises(ag.InputError, match="200 of the 200 rows were used for tuning"):
            tuned.rule.calibrate(rows)
    assert tuned.rule.calibrate(third).n == 200


def test_rules_of_0_2_compare_as_they_did(tmp_path: Path) -> None:
    """They have exact marks: equal scores are found, in float32 too, and ids are compared beside
    them.
    """
    from agreestop.decide.leakage import mark_rows

    marks = mark_rows(POOL.log_confidence[:100], range(3))
    old = replace(
        RULE.calibrate(POOL.rows(slice(0, 100))),
        rows=TunedRows(marks, 0.0, np.arange(100, dtype=np.uint64), "number"),
    )
    old.save(tmp_path / "rule")
    for rule in (old, ag.load_rule(tmp_path / "rule")):
        for change in ("the same", "float32"):
            assert reuse(rule, again(POOL.rows(slice(50, 150)), CHANGES[change])).startswith(
                "50 of the 100 rows"
            )
        assert reuse(rule, again(POOL.rows(slice(50, 150)), CHANGES["shifted"])) == ""
        assert reuse(
            rule, with_ids(again(POOL.rows(slice(50, 150)), CHANGES["shifted"]), range(50, 150))
        ).startswith("50 of the 100 rows")
        assert reuse(rule, with_ids(POOL.rows(slice(50, 150)), range(500, 600))).startswith(
            "50 of the 100 rows"
        )


def test_rule_files_keep_the_rows(tmp_path: Path) -> None:
    tuned = ag.tune(
        RULE,
        with_ids(POOL.rows(slice(0, 80)), range(80)),
        n_calibration=30,
        repeats=2,
        exponents=(1.0,),
    ).rule
    tuned.calibrate(with_ids(POOL.rows(slice(80, 160)), range(80, 160))).save(tmp_path / "rule")
    rule = ag.load_rule(tmp_path / "rule")
    assert reuse(rule, again(POOL.rows(slice(0, 80)), CHANGES["float16"])).startswith(
        "80 of the 80 rows were used for tuning"
    )
    assert reuse(rule, again(POOL.rows(slice(80, 160)), CHANGES["float16"])).startswith(
        "80 of the 80 rows were used for calibration"
    )
    assert reuse(rule, POOL.rows(slice(160, 240))) == ""


def test_a_search_reads_four_checkpoints_at_most() -> None:
    """So it costs little beside deciding, which hashes of all checkpoints doubled."""
    values = COUNTS.log_confidence.copy()
    values[:, [0, 1, 3, 4, 6, 7, 9, 10]] = np.nan
    expected = ScoredRows(COUNTS.log_confidence, range(12)).sketches
    np.testing.assert_array_equal(ScoredRows(values, range(12)).sketches, expected)
    assert expected.shape == (600, 8) and np.isfinite(expected).all()


def test_rows_and_ids_that_are_given_twice_stay_on_one_side_and_are_found() -> None:
    scores = ag.simulate_scores(300)
    twice = scores.rows(np.tile(np.arange(300), 2))
    named = replace(twice, ids=np.tile(np.arange(300), 2))
    calibration, test = named.split(0.3, 0.7)
    assert test.ids is not None and calibration.ids is not None
    assert not np.isin(test.ids, calibration.ids).any() and len(calibration) + len(test) == 600
    rule = ag.AgreeStop(0.9, scores.times, 1)
    rows = np.random.default_rng(0).permutation(600)
    decisions = rule.calibrate(named.rows(rows[:200])).decide(named.rows(rows[200:]))
    with pytest.raises(ag.InputError, match="were used for calibration"):
        ag.evaluate(decisions, named.rows(rows[200:]))
