"""The identities that every implementation of the rules must satisfy, one test each."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agreestop as ag
from agreestop.common import Booleans, Floats, order_statistic, quantile_rank
from agreestop.decide.confidence import Pooling
from tests.decide.strategies import (
    Rule,
    Sample,
    assert_same_decisions,
    at_kth_values,
    calibrate_quietly,
    exponents,
    make_sample,
    sets_at_checkpoints,
)

seeds = st.integers(0, 10_000)
CHECKPOINTS = (1, 2, 3)
SYMMETRIC: tuple[Pooling, ...] = (
    ag.MergeConfidence(r=1),
    ag.MergeConfidence(r=-0.5),
    ag.MergePValues(r=1),
    ag.MergePValues(r=-1),
    ag.MergePValues(r=45),
    ag.MergePValues(r=0, form="randomized"),
    ag.MergeRanks(r=1),
    ag.MergeRanks(r=-2),
    ag.MajorityVote(),
)


def member(sample: Sample, k: int) -> Sample:
    """One member by itself."""
    return Sample(sample.log_confidence[:, :, k : k + 1], sample.labels)


def decide(rule: Rule, calibration: Sample, test: Sample) -> ag.Decisions:
    return calibrate_quietly(rule, calibration).decide(test.log_confidence, first=0)


def halves(
    seed: int, members: int = 3, tied: bool = True, checkpoints: int = 3, classes: int = 4
) -> tuple[Sample, Sample]:
    """Calibration and test data of one draw."""
    both = make_sample(130, checkpoints, members, classes, seed=seed, tied=tied)
    return both.rows(slice(100)), both.rows(slice(100, None))


@given(seeds, exponents(), st.sampled_from([0.6, 0.8, 0.9, 0.95]))
def test_with_one_member_all_mergings_are_plain_spike_cp(
    seed: int, r: float, target: float
) -> None:
    calibration, test = halves(seed, members=1)
    plain = decide(ag.SpikeCP(target, CHECKPOINTS, 1), calibration, test)
    for pooling in (
        ag.MergeConfidence(r=r),
        ag.MergePValues(r=r),
        ag.MergePValues(r=r, table=True),
        ag.MergeRanks(r=math.copysign(1, r)),
    ):
        assert_same_decisions(
            decide(ag.SpikeCP(target, CHECKPOINTS, 1, pooling=pooling), calibration, test), plain
        )


@given(seeds, st.integers(1, 5))
def test_the_largest_p_value_gives_the_union_of_the_members_sets(seed: int, members: int) -> None:
    calibration, test = halves(seed, members)
    merged = calibrate_quietly(
        ag.SpikeCP(0.8, CHECKPOINTS, 1, pooling=ag.MergePValues(r=math.inf)), calibration
    )
    single = ag.SpikeCP(0.8, CHECKPOINTS, 1)
    each = [
        sets_at_checkpoints(
            calibrate_quietly(single, member(calibration, k)), member(test, k).log_confidence
        )
        for k in range(members)
    ]
    np.testing.assert_array_equal(
        sets_at_checkpoints(merged, test.log_confidence), np.logical_or.reduce(each)
    )


@pytest.mark.parametrize("members", [1, 2, 6])
@pytest.mark.parametrize(
    ("target", "checkpoints"), [("0.9", 4), ("0.8", 3), ("2/3", 1), ("0.93", 2)]
)
def test_the_smallest_p_value_excludes_from_k_times_m_over_alpha_minus_one_on(
    members: int, target: str, checkpoints: int
) -> None:
    needed = math.ceil(members * checkpoints / (1 - Fraction(target)) - 1)
    rule = ag.SpikeCP(target, range(1, checkpoints + 1), 1, pooling=ag.MergePValues(r=-math.inf))
    assert rule.examples_needed(members) == needed
    for n in (needed - 1, needed):
        easy = Sample(np.zeros((n, checkpoints, members, 2)), np.zeros(n, dtype=np.int64))
        easy.log_confidence[..., 1] = -9.0
        kept = decide(rule, easy, easy.rows(slice(1))).sets[0]
        assert kept.tolist() == [True, n < needed]


@given(seeds, st.permutations(range(100)))
@settings(max_examples=20)
def test_order_of_calibration_rows_does_not_matter(seed: int, order: list[int]) -> None:
    calibration, test = halves(seed)
    for pooling in SYMMETRIC:
        rule = ag.SpikeCP(0.8, CHECKPOINTS, 1, pooling=pooling)
        assert_same_decisions(
            decide(rule, calibration.rows(np.array(order)), test), decide(rule, calibration, test)
        )


@given(seeds, st.permutations(range(4)))
@settings(max_examples=20)
def test_order_of_members_does_not_matter(seed: int, order: list[int]) -> None:
    calibration, test = halves(seed, members=4)
    moved = [
        Sample(sample.log_confidence[:, :, order], sample.labels) for sample in (calibration, test)
    ]
    for pooling in SYMMETRIC:
        rule = ag.SpikeCP(0.8, CHECKPOINTS, 1, pooling=pooling)
        assert_same_decisions(decide(rule, *moved), decide(rule, calibration, test))


def test_a_fixed_order_of_members_does_matter_to_the_exchangeable_form() -> None:
    calibration, test = halves(0, members=4)
    rule = ag.SpikeCP(0.5, CHECKPOINTS, 1, pooling=ag.MergePValues(r=1, form="exchangeable"))
    backwards = [
        Sample(sample.log_confidence[:, :, ::-1], sample.labels) for sample in (calibration, test)
    ]
    assert (decide(rule, *backwards).sets != decide(rule, calibration, test).sets).any()


RELABELLED: tuple[Rule, ...] = (
    *(ag.SpikeCP(0.8, CHECKPOINTS, 1, pooling=pooling) for pooling in SYMMETRIC),
    ag.SpikeCP(0.8, CHECKPOINTS, 1, pooling=ag.MergeConfidence(r=0), calibration="simultaneous"),
    ag.SpikeCP(0.8, CHECKPOINTS, 1, pooling=ag.MergeConfidence(r=0), calibration="stop-aware"),
    ag.SpikeCP(
        0.8,
        CHECKPOINTS,
        1,
        pooling=ag.MergeConfidence(r=0),
        calibration="simultaneous",
        class_conditional=True,
    ),
    ag.SpikeCP(
        0.8,
        CHECKPOINTS,
        1,
        score=ag.Temperature(ag.MergeConfidence(r=1), np.array([1.5, 1.0, 0.5])),
        calibration="stop-aware",
    ),
    ag.AgreeStop(0.8, CHECKPOINTS, 1),
    ag.AgreeStop(0.8, CHECKPOINTS, 2, fill=True),
    ag.DCSNN(0.8, CHECKPOINTS, 1),
    ag.SEENN(0.6, CHECKPOINTS, 2),
)


@given(seeds, st.permutations(range(4)))
@settings(max_examples=20)
def test_relabelling_classes_changes_nothing_where_none_tie(seed: int, order: list[int]) -> None:
    calibration, test = halves(seed, tied=False)
    names = np.argsort(order)
    moved = [
        Sample(sample.log_confidence[..., order], names[sample.labels])
        for sample in (calibration, test)
    ]
    for rule in RELABELLED:
        before, after = decide(rule, calibration, test), decide(rule, *moved)
        np.testing.assert_array_equal(after.stop_index, before.stop_index)
        np.testing.assert_array_equal(after.sets, before.sets[:, order])


@given(seeds, st.sampled_from([0.5, 0.7, 0.9, 0.95]), st.integers(1, 4))
def test_with_one_checkpoint_bonferroni_and_simultaneous_agree_on_sets_that_are_not_empty(
    seed: int, target: float, size: int
) -> None:
    calibration, test = halves(seed, checkpoints=1)
    bonferroni, simultaneous = (
        decide(
            ag.SpikeCP(target, (1,), size, pooling=ag.MergeConfidence(), calibration=name),
            calibration,
            test,
        )
        for name in ("bonferroni", "simultaneous")
    )
    filled = bonferroni.sets.any(axis=1)
    np.testing.assert_array_equal(simultaneous.sets[filled], bonferroni.sets[filled])
    assert (simultaneous.set_size >= 1).all()


def pooled_scores(sample: Sample) -> Floats:
    return -ag.MergeConfidence().pool(sample.log_confidence)


def stop_aware(sample: Sample, target: str, max_set_size: int) -> ag.CalibratedRule:
    """Its `kth_values` are q, the smallest threshold that keeps the promise."""
    times = range(1, sample.log_confidence.shape[1] + 1)
    return calibrate_quietly(
        ag.SpikeCP(target, times, max_set_size, ag.MergeConfidence(), "stop-aware"), sample
    )


@given(seeds, st.sampled_from(["0.5", "0.7", "0.9", "0.95"]), st.integers(1, 4))
def test_with_one_checkpoint_the_stop_aware_set_at_its_floor_is_contained(
    seed: int, target: str, size: int
) -> None:
    calibration, test = halves(seed, checkpoints=1)
    sets = at_kth_values(stop_aware(calibration, target, size)).decide(test.log_confidence).sets
    simultaneous = ag.SpikeCP(
        target, (1,), size, pooling=ag.MergeConfidence(), calibration="simultaneous"
    )
    assert not (sets & ~decide(simultaneous, calibration, test).sets).any()


@given(seeds, st.sampled_from(["0.5", "0.7", "0.9", "0.95"]), st.integers(1, 4))
def test_the_stop_aware_floor_is_never_above_the_simultaneous_threshold(
    seed: int, target: str, size: int
) -> None:
    calibration, _ = halves(seed)
    own = pooled_scores(calibration)[np.arange(100), :, calibration.labels].max(axis=1)
    floor = stop_aware(calibration, target, size).kth_values
    assert floor is not None and floor[0] <= order_statistic(
        own, quantile_rank(100, Fraction(target))
    )


MONOTONE: tuple[dict[str, Any], ...] = (
    *(
        {"pooling": pooling}
        for pooling in (*SYMMETRIC, ag.MergePValues(r=0.5, form="exchangeable"))
    ),
    {"pooling": ag.MergeConfidence(), "class_conditional": True},
    {"pooling": ag.MergeConfidence(), "delta": 0.2},
    {"pooling": ag.MergeConfidence(), "calibration": "simultaneous"},
    {"pooling": ag.MergeConfidence(), "calibration": "simultaneous", "delta": 0.2},
    {"pooling": ag.MergeConfidence(), "calibration": "stop-aware"},
)
TARGETS = ("0.3", "0.5", "0.62", "0.8", "0.9", "0.95", "0.99")


def assert_growing(sets: list[Booleans]) -> None:
    for smaller, larger in pairwise(sets):
        assert not (smaller & ~larger).any()
    assert sets[0].sum() < sets[-1].sum()


@pytest.mark.parametrize("settings_", MONOTONE, ids=str)
def test_raising_the_target_never_shrinks_a_set_at_a_checkpoint(settings_: dict[str, Any]) -> None:
    for seed in range(3):
        calibration, test = halves(seed)
        rules = [ag.SpikeCP(target, CHECKPOINTS, 1, **settings_) for target in TARGETS]
        assert_growing(
            [
                sets_at_checkpoints(calibrate_quietly(rule, calibration), test.log_confidence)
                for rule in rules
            ]
        )


@pytest.mark.parametrize("fill", [False, True])
def test_raising_the_target_never_shrinks_a_set_of_agree_stop(fill: bool) -> None:
    for seed in range(3):
        calibration, test = halves(seed)
        rules = [ag.AgreeStop(target, CHECKPOINTS, 2, fill=fill) for target in TARGETS]
        assert_growing(
            [
                sets_at_checkpoints(calibrate_quietly(rule, calibration), test.log_confidence)
                for rule in rules
            ]
        )


@given(seeds)
@settings(max_examples=20)
def test_streaming_one_checkpoint_at_a_time_gives_the_batch_answer(seed: int) -> None:
    calibration, test = halves(seed)
    for rule in RELABELLED:
        calibrated = calibrate_quietly(rule, calibration)
        batch = calibrated.decide(test.log_confidence[:8], first=0)
        for number in range(8):
            session = calibrated.stream(number)
            answers = [
                session.push(values)
                for values in test.log_confidence[number, : batch[number].index + 1]
            ]
            assert answers == [None] * batch[number].index + [batch[number]]


SHIFTED: tuple[Rule, ...] = (
    *(
        ag.SpikeCP(0.8, CHECKPOINTS, 1, pooling=pooling)
        for pooling in SYMMETRIC
        if not isinstance(pooling, ag.MergeConfidence)
    ),
    *(
        ag.SpikeCP(0.8, CHECKPOINTS, 1, pooling=ag.MergeConfidence(r=r), calibration=calibration)
        for r in (-math.inf, 0, math.inf)
        for calibration in ("bonferroni", "simultaneous", "stop-aware")
    ),
)


@given(seeds, st.integers(1, 200))
@settings(max_examples=30)
def test_adding_a_constant_to_every_score_changes_nothing(seed: int, shift: int) -> None:
    """On a grid of 1/64 the sum and the mean of two members are exact, so that ties stay what they
    were.
    """
    coarse = [
        Sample(np.ceil(sample.log_confidence * 64) / 64, sample.labels)
        for sample in halves(seed, members=2)
    ]
    moved = [Sample(sample.log_confidence - shift / 64, sample.labels) for sample in coarse]
    for rule in SHIFTED:
        assert_same_decisions(decide(rule, *moved), decide(rule, *coarse))


@pytest.mark.parametrize("r", [5.0, 5.5, 7.0, 45.0, math.inf])
@pytest.mark.parametrize("max_set_size", [1, 3])
def test_merged_p_values_from_k_minus_one_on_never_stop_before_the_slowest_member(
    r: float, max_set_size: int
) -> None:
    simulated = ag.simulate_scores(
        260, steps=40, K=6, C=10, seed=4, dependence=0.9, signal=4.0, pace=10.0
    )
    assert simulated.labels is not None
    sample = Sample(simulated.log_confidence[:, 9::10], simulated.labels)
    calibration, test = sample.rows(slice(160)), sample.rows(slice(160, None))
    times = (10, 20, 30, 40)
    merged = decide(
        ag.SpikeCP(0.8, times, max_set_size, pooling=ag.MergePValues(r=r)), calibration, test
    )
    single = ag.SpikeCP(0.8, times, max_set_size)
    members = [decide(single, member(calibration, k), member(test, k)) for k in range(6)]
    slowest = np.max([decisions.stop_index for decisions in members], axis=0)
    assert (merged.stop_index >= slowest).all()
    assert (slowest < 3).any()
    assert len(np.unique(slowest)) > 1
