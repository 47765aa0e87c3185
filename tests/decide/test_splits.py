"""Repeated divisions into calibration and test data: one entry a realisation, the same for the same seed, and said if there are too few."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import agreestop as ag
from agreestop.decide.conditions import LabelledEvidence
from agreestop.decide.rules import gather_evidence
from agreestop.decide.splits import divisions, realisations
from tests.decide.strategies import make_sample

RULE = ag.SpikeCP(0.8, (1, 2, 3), 1, pooling=ag.MergeConfidence(), calibration="stop-aware")


def test_one_entry_for_each_realisation() -> None:
    splits = ag.repeat_splits(RULE, *make_sample(120), n_calibration=60, repeats=7)
    for figures in (splits.coverages, splits.latencies, splits.set_sizes):
        assert figures.shape == (7,)
    assert ((splits.coverages >= 0) & (splits.coverages <= 1)).all()
    assert ((splits.latencies > 0) & (splits.latencies <= 1)).all()
    assert len(np.unique(splits.latencies)) > 1


def test_estimates_are_means_over_realisations() -> None:
    splits = ag.repeat_splits(RULE, *make_sample(120), n_calibration=60, repeats=9)
    for estimate, figures in (
        (splits.coverage, splits.coverages),
        (splits.normalized_latency, splits.latencies),
        (splits.set_size, splits.set_sizes),
    ):
        assert estimate == pytest.approx(figures.mean())
        assert estimate.se == pytest.approx(figures.std(ddof=1) / 3)
        assert estimate.low < estimate < estimate.high


def test_the_seed_decides() -> None:
    sample = make_sample(120)
    first, again, other = (ag.repeat_splits(RULE, *sample, n_calibration=60, repeats=5, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.latencies, again.latencies)
    np.testing.assert_array_equal(first.coverages, again.coverages)
    assert (first.latencies != other.latencies).any()


def test_more_realisations_begin_with_the_same_ones() -> None:
    sample = make_sample(120)
    few, many = (ag.repeat_splits(RULE, *sample, n_calibration=60, repeats=repeats) for repeats in (3, 8))
    np.testing.assert_array_equal(many.latencies[:3], few.latencies)


def test_all_but_one_row_may_calibrate() -> None:
    splits = ag.repeat_splits(RULE, *make_sample(30), n_calibration=29, repeats=4)
    assert set(splits.coverages.tolist()) <= {0.0, 1.0}


def test_too_few_calibration_rows_are_said_once() -> None:
    with pytest.warns(ag.CalibrationWarning, match=r"With 3 calibration examples .* at least 4") as caught:
        splits = ag.repeat_splits(RULE, *make_sample(60), n_calibration=3, repeats=5)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert (splits.coverages == 1).all()
    assert (splits.latencies == 1).all()


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda: ag.repeat_splits(RULE, *make_sample(20), n_calibration=20),
            "n_calibration is 20 and the pool has 20 rows: choose from 1 to 19",
        ),
        (lambda: ag.repeat_splits(RULE, *make_sample(20), n_calibration=0), "n_calibration is 0"),
        (lambda: ag.repeat_splits(RULE, *make_sample(20), n_calibration=10, repeats=0), "repeats is 0"),
        (lambda: ag.repeat_splits(RULE, *make_sample(20, checkpoints=2), n_calibration=10), "has 2 checkpoints and the rule has 3"),
        (
            lambda: ag.repeat_splits(RULE, *make_sample(20, checkpoints=4), n_calibration=10, times=(1, 2, 4, 5)),
            "lacks the rule's checkpoint 3",
        ),
        (lambda: ag.repeat_splits(ag.SpikeCP(0.8, (1, 2, 3), 1), *make_sample(20), n_calibration=16), "2 members but pooling is None"),
    ],
)
def test_repeat_splits_refuses(call: Callable[[], object], match: str) -> None:
    with pytest.raises(ag.InputError, match=match):
        call()


@pytest.mark.parametrize("repeats", [1, 4])  # with 4, what calibration needs is computed once for all rows
def test_realisations_name_their_rows_and_what_was_decided(repeats: int) -> None:
    """One calibrated by hand on the same rows decides the same, and the figures are means over its test rows."""
    log_confidence, labels = make_sample(90)
    evidence = gather_evidence(RULE, log_confidence, [0, 1, 2])
    splits = ag.repeat_splits(RULE, log_confidence, labels, n_calibration=60, repeats=repeats, seed=5)
    runs = list(realisations(RULE, LabelledEvidence(evidence, labels, 4), 60, repeats, 5))
    assert len(runs) == repeats
    for index, (run, (calibration, test)) in enumerate(zip(runs, divisions(90, 60, repeats, 5), strict=True)):
        np.testing.assert_array_equal(run.calibration, calibration)
        np.testing.assert_array_equal(run.test, test)
        assert sorted([*calibration, *test]) == list(range(90))
        decisions = RULE.calibrate(log_confidence[calibration], labels[calibration]).decide(log_confidence[test])
        np.testing.assert_array_equal(run.stops, decisions.stop_index)
        np.testing.assert_array_equal(run.sets, decisions.sets)
        assert splits.coverages[index] == run.sets[np.arange(30), labels[test]].mean()
        assert splits.set_sizes[index] == decisions.set_size.mean()
