"""Scores that are rounded otherwise in another run: thresholds keep clear of the values that many inputs share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from agreestop.common import Floats, InputError
from agreestop.decide.reduced import calibrate_reduced, reduce_examples
from tests.decide.strategies import assert_same_decisions

ROUNDING = 1e-4
STEPS, CLASSES, MEMBERS = 6, 5, 1


def shared_scores(n: int, seed: int, rounding: float = ROUNDING) -> ag.Scores:
    """Log-confidences from few counts of spikes, so that many inputs share each value, among them all at the first step."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, n)
    spikes = rng.random((n, STEPS, MEMBERS, CLASSES)) < np.where(np.arange(CLASSES) == labels[:, None], 0.7, 0.2)[:, None, None]
    spikes[:, 0] = False
    values = ag.log_confidence(np.cumsum(spikes, axis=1))
    return ag.Scores(values, labels, tuple(range(1, STEPS + 1)), rounding=rounding)


def rounded_otherwise(scores: ag.Scores, seed: int) -> Floats:
    """The log-confidences as another run might compute them. All scores of an input move together, so that classes which tie still do."""
    noise = np.random.default_rng(seed).uniform(-ROUNDING / 4, ROUNDING / 4, (len(scores), 1, 1, 1))
    return np.asarray(scores.log_confidence + noise)


EVERY = range(1, STEPS + 1)
RULES: dict[str, Any] = {
    "agreestop": ag.AgreeStop(0.8, EVERY, 1),
    "agreestop, fill": ag.AgreeStop(0.8, EVERY, 2, fill=True),
    "stop-aware": ag.SpikeCP(0.8, EVERY, 1, ag.MergeConfidence(), calibration="stop-aware"),
    "simultaneous": ag.SpikeCP(0.8, EVERY, 1, ag.MergeConfidence(), calibration="simultaneous"),
    "bonferroni": ag.SpikeCP(0.8, (2, 4, 6), 1, ag.MergeConfidence()),
    "p-values": ag.SpikeCP(0.8, (2, 4, 6), 1, ag.MergePValues(r=45)),
    "p-values by class": ag.SpikeCP(0.8, (3, 6), 1, ag.MergePValues(r=45), class_conditional=True),
    "votes": ag.SpikeCP(0.8, (2, 4, 6), 1, ag.MajorityVote()),
}


@pytest.mark.parametrize("name", RULES)
def test_rounding_does_not_break_ties(name: str) -> None:
    rule, calibration, test = RULES[name], shared_scores(400, 0), shared_scores(300, 1)
    calibrated, exact = rule.calibrate(calibration), rule.calibrate(shared_scores(400, 0, rounding=0.0))
    plain = np.asarray(test.log_confidence)
    columns = [time - 1 for time in rule.checkpoints]
    assert_same_decisions(calibrated.decide(plain[:, columns]), calibrated.decide(rounded_otherwise(test, 2)[:, columns]))
    assert (calibrated.decide(plain[:, columns]).stop_index < len(rule.checkpoints) - 1).any()
    # Without the margin the shared values fall on either side, which shows that the check above can fail.
    moved = exact.decide(rounded_otherwise(test, 2)[:, columns])
    assert not np.array_equal(moved.sets, exact.decide(plain[:, columns]).sets)


def test_thresholds_by_group_and_block_keep_clear_too() -> None:
    calibration = shared_scores(400, 0)
    groups = np.arange(400) % 2
    rule = ag.AgreeStop(0.8, EVERY, 1)
    exact = rule.calibrate(shared_scores(400, 0, rounding=0.0), groups=groups)
    assert np.allclose(rule.calibrate(calibration, groups=groups).thresholds, exact.thresholds - ROUNDING, rtol=0, atol=1e-12)


def test_parts_of_the_calibration_data_make_the_same_rule() -> None:
    scores, rule = shared_scores(200, 0), ag.AgreeStop(0.8, EVERY, 1)
    parts = [reduce_examples(rule, scores.rows(rows)) for rows in (slice(0, 80), slice(80, None))]
    assert calibrate_reduced(rule, parts).thresholds == rule.calibrate(scores).thresholds
    exact = reduce_examples(rule, shared_scores(50, 3, rounding=0.0))
    with pytest.raises(InputError, match="different rounding"):
        calibrate_reduced(rule, [parts[0], exact])


def test_rounding_travels_in_files(tmp_path: Path) -> None:
    ag.save_scores(tmp_path / "scores.npz", shared_scores(20, 0).rows(slice(0, 10)))
    assert ag.load_scores(tmp_path / "scores.npz").rounding == ROUNDING
    ag.save_scores(tmp_path / "exact.npz", shared_scores(20, 0, rounding=0.0))
    assert ag.load_scores(tmp_path / "exact.npz").rounding == 0.0


@pytest.mark.parametrize("rounding", [-1e-9, 1.0, float("nan"), "0.1", [0.0, 0.0]])
def test_bad_rounding_is_refused(rounding: Any) -> None:
    with pytest.raises(InputError, match=r"rounding is .*: a number from 0 to 0.1 is needed"):
        shared_scores(5, 0, rounding)
