"""Repeated divisions into calibration and test data: one entry a realisation, the same for the same
seed, and said if there are too few.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import agreestop as ag
from tests.decide.strategies import make_sample, student_quantile

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
    first, again, other = (
        ag.repeat_splits(RULE, *sample, n_calibration=60, repeats=5, seed=seed)
        for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(first.latencies, again.latencies)
    np.testing.assert_array_equal(first.coverages, again.coverages)
    assert (first.latencies != other.latencies).any()


def test_more_realisations_begin_with_the_same_ones() -> None:
    sample = make_sample(120)
    few, many = (
        ag.repeat_splits(RULE, *sample, n_calibration=60, repeats=repeats) for repeats in (3, 8)
    )
    np.testing.assert_array_equal(many.latencies[:3], few.latencies)


def test_all_but_one_row_may_calibrate() -> None:
    splits = ag.repeat_splits(RULE, *make_sample(30), n_calibration=29, repeats=4)
    assert set(splits.coverages.tolist()) <= {0.0, 1.0}


def test_too_few_calibration_rows_are_said_once() -> None:
    with pytest.warns(ag.CalibrationWarning, match="at least 4") as caught:
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
            "n_calibration is 20",
        ),
        (lambda: ag.repeat_splits(RULE, *make_sample(20), n_calibration=0), "n_calibration is 0"),
        (
            lambda: ag.repeat_splits(RULE, *make_sample(20), n_calibration=10, repeats=0),
            "repeats is 0",
        ),
        (
            lambda: ag.repeat_splits(RULE, *make_sample(20, checkpoints=2), n_calibration=10),
            "has 2 checkpoints and the rule has 3",
        ),
        (
            lambda: ag.repeat_splits(
                RULE, *make_sample(20, checkpoints=4), n_calibration=10, times=(1, 2, 4, 5)
            ),
            "lacks the rule's checkpoint 3",
        ),
        (
            lambda: ag.repeat_splits(
                ag.SpikeCP(0.8, (1, 2, 3), 1), *make_sample(20), n_calibration=16
            ),
            "2 members but pooling is None",
        ),
    ],
)
def test_repeat_splits_refuses(call: Callable[[], object], match: str) -> None:
    with pytest.raises(ag.InputError, match=match):
        call()


@pytest.mark.parametrize(
    "repeats", [1, 4]
)  # with 4, what calibration needs is computed once for all rows
def test_realisations_are_those_of_a_rule_calibrated_by_hand(repeats: int) -> None:
    """Rows are drawn by permutations of the seed, and the figures are means over the test rows."""
    log_confidence, labels = make_sample(90)
    splits = ag.repeat_splits(
        RULE, log_confidence, labels, n_calibration=60, repeats=repeats, seed=5
    )
    rng = np.random.default_rng(5)
    for index in range(repeats):
        order = rng.permutation(90)
        calibration, test = order[:60], order[60:]
        decisions = RULE.calibrate(log_confidence[calibration], labels[calibration]).decide(
            log_confidence[test]
        )
        assert splits.coverages[index] == decisions.sets[np.arange(30), labels[test]].mean()
        assert splits.set_sizes[index] == decisions.set_size.mean()
        assert splits.latencies[index] == pytest.approx(decisions.stop_time.mean() / 3)


# --------------------------------------------------------------------------------------------------
# intervals for the draw of a pool


@pytest.mark.parametrize(
    ("freedom", "expected"), [(3, 3.182), (5, 2.571), (15, 2.131), (1e9, 1.960)]
)
def test_quantiles_of_students_distribution(freedom: float, expected: float) -> None:
    assert student_quantile(0.95, freedom) == pytest.approx(expected, abs=0.03)


def test_intervals_stay_inside_the_bounds_of_a_figure() -> None:
    """Also where every realisation gives the same figure, which is then no proof that every pool
    would.
    """
    figures = np.array([[0.9] * 8, [1.0] * 8, [1.0] * 8])
    bounds = np.array([[0, 1], [0.1, 1], [1, 10]])

    def splits(values: np.ndarray, n: int, left_out: np.ndarray) -> ag.Splits:
        def without(rows: np.ndarray, repeats: int) -> ag.Splits:
            coverages, latencies, sizes = (left_out if rows[0] else figures)[:, :repeats]
            return ag.Splits(coverages, latencies, sizes)

        return ag.Splits(values[0], values[1], values[2], n=n, without=without, bounds=bounds)

    same = splits(figures, 60, figures).over_pools
    assert same.normalized_latency.high == 1 and 0.1 < same.normalized_latency.low < 1
    assert same.set_size.low == 1 and 1 < same.set_size.high < 3
    assert same.coverage.low == pytest.approx(same.coverage.high)
    wild = figures + np.array([[0.0], [-0.8], [8.9]]) * (np.arange(8) % 2)
    far = splits(wild, 10**6, wild).over_pools
    assert 0.1 <= far.normalized_latency.low < far.normalized_latency.high <= 1
    assert 1 <= far.set_size.low < far.set_size.high <= 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "n_calibration", "target"), [(60, 50, 0.9), (100, 50, 0.95), (120, 50, 0.9)]
)
def test_intervals_for_the_draw_of_small_pools_hold(
    n: int, n_calibration: int, target: float
) -> None:
    """0.95 of 80 pools hold the mean over pools, less four standard errors of 0.024, for latency,
    set size and coverage.

    Control: the symmetric interval of set sizes, with the degrees of freedom of the jackknife,
    holds fewer in the smallest pools.
    """
    source = ag.simulate_scores(20000, steps=8, K=2, C=10, signal=5.0, pace=4.0, seed=2)
    rule = ag.AgreeStop(target, range(1, 9), 1)
    rng, pools = np.random.default_rng(n), 80

    def figures(repeats: int) -> ag.Splits:
        pool = source.rows(rng.integers(len(source), size=n))
        return ag.repeat_splits(rule, pool, n_calibration=n_calibration, repeats=repeats)

    mean = np.mean([figures(2).figures.mean(axis=1) for _ in range(1500)], axis=0)
    held, symmetric = np.zeros(3), 0
    for _ in range(pools):
        found = figures(50).over_pools
        estimates = found.coverage, found.normalized_latency, found.set_size
        held += [one.low <= value <= one.high for one, value in zip(estimates, mean, strict=True)]
        symmetric += abs(found.set_size - mean[2]) <= student_quantile(0.95, 15) * found.set_size.se
    least = 0.95 - 4 * math.sqrt(0.95 * 0.05 / pools)
    assert (held / pools >= least).all()
    assert n > 60 or symmetric / pools < least
