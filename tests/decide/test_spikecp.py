"""SpikeCP against its definition, word for word, on small data full of ties."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agreestop as ag
from agreestop.common import Floats, Integers
from tests.decide.strategies import Sample, at_kth_values, calibrate_quietly, make_sample

seeds = st.integers(0, 10_000)
targets = st.sampled_from(["0.5", "0.6", "0.75", "0.8", "0.9"])
sizes = st.integers(1, 4)
CHECKPOINTS = (1, 2, 3)
CLASSES = 4


def halves(seed: int, members: int = 1) -> tuple[Sample, Sample]:
    both = make_sample(52, 3, members, CLASSES, seed=seed)
    return both.rows(slice(40)), both.rows(slice(40, None))


def own_losses(losses: Floats, labels: Integers) -> Floats:
    """The label's loss at every checkpoint, (n, M), from losses (n, M, C)."""
    return losses[np.arange(len(losses)), :, labels]


def p_variable(calibration: list[float], loss: float) -> Fraction:
    return Fraction(1 + sum(loss <= other for other in calibration), len(calibration) + 1)


def first_small(sets: list[set[int]], max_set_size: int) -> tuple[int, set[int]]:
    """Stop at the first set of at most I classes, else at the last."""
    for index, classes in enumerate(sets):
        if len(classes) <= max_set_size or index == len(sets) - 1:
            return index, classes
    raise AssertionError


def assert_decides(decisions: ag.Decisions, expected: list[tuple[int, set[int]]]) -> None:
    assert [
        (decision.index, set(decision.classes))
        for decision in (decisions[i] for i in range(len(decisions)))
    ] == expected


@given(seeds, targets, sizes)
def test_bonferroni_keeps_classes_whose_p_variable_exceeds_alpha_over_m(
    seed: int, target: str, size: int
) -> None:
    calibration, test = halves(seed)
    own = own_losses(-calibration.log_confidence[:, :, 0], calibration.labels).T.tolist()
    level = (1 - Fraction(target)) / 3
    expected = []
    for losses in -test.log_confidence[:, :, 0]:
        sets = [
            {c for c in range(CLASSES) if p_variable(own[t], losses[t, c]) > level}
            for t in range(3)
        ]
        expected.append(first_small(sets, size))
    assert_decides(
        at_kth_values(calibrate_quietly(ag.SpikeCP(target, CHECKPOINTS, size), calibration)).decide(
            test.log_confidence
        ),
        expected,
    )


@given(seeds, targets, sizes)
def test_class_conditional_bonferroni_compares_with_examples_of_the_class_single(
    seed: int, target: str, size: int
) -> None:
    calibration, test = halves(seed)
    own = own_losses(-calibration.log_confidence[:, :, 0], calibration.labels)
    level = (1 - Fraction(target)) / 3
    expected = []
    for losses in -test.log_confidence[:, :, 0]:
        sets = [
            {
                c
                for c in range(CLASSES)
                if p_variable(own[calibration.labels == c, t].tolist(), losses[t, c]) > level
            }
            for t in range(3)
        ]
        expected.append(first_small(sets, size))
    rule = ag.SpikeCP(target, CHECKPOINTS, size, class_conditional=True)
    assert_decides(
        at_kth_values(calibrate_quietly(rule, calibration)).decide(test.log_confidence), expected
    )


@given(seeds, targets, sizes, st.booleans())
def test_simultaneous_sets_are_those_whose_running_maximum_stays_below_one_quantile(
    seed: int, target: str, size: int, class_conditional: bool
) -> None:
    calibration, test = halves(seed)
    worst = own_losses(-calibration.log_confidence[:, :, 0], calibration.labels).max(axis=1)
    groups = [
        worst[calibration.labels == c] if class_conditional else worst for c in range(CLASSES)
    ]
    ranks = [math.ceil((len(group) + 1) * Fraction(target)) for group in groups]
    quantiles = [
        sorted(group)[rank - 1] if rank <= len(group) else math.inf
        for group, rank in zip(groups, ranks, strict=True)
    ]
    expected = []
    for losses in -test.log_confidence[:, :, 0]:
        running = np.maximum.accumulate(losses, axis=0)
        index, classes = first_small(
            [{c for c in range(CLASSES) if running[t, c] <= quantiles[c]} for t in range(3)], size
        )
        expected.append((index, classes or {int(running[index].argmin())}))
    rule = ag.SpikeCP(
        target, CHECKPOINTS, size, calibration="simultaneous", class_conditional=class_conditional
    )
    assert_decides(
        at_kth_values(calibrate_quietly(rule, calibration)).decide(test.log_confidence), expected
    )


@given(seeds, targets)
def test_simultaneous_sets_hold_the_label_at_every_checkpoint_or_at_none_after_it_was_lost(
    seed: int, target: str
) -> None:
    calibration, test = halves(seed)
    calibrated = calibrate_quietly(
        ag.SpikeCP(target, CHECKPOINTS, 1, calibration="simultaneous"), calibration
    )
    state = calibrated.start(len(test.labels))
    before = np.ones((len(test.labels), CLASSES), dtype=bool)
    for index in range(3):
        verdict = calibrated.step(index, np.ascontiguousarray(test.log_confidence[:, index]), state)
        single = verdict.sets.sum(axis=1) == 1  # an empty set answers one class
        assert not (verdict.sets & ~before)[~single].any()
        before, state = verdict.sets | single[:, None], verdict.state


def bags_of(
    calibration: Sample, members: int, class_conditional: bool
) -> list[list[list[list[float]]]]:
    """For each class and member the losses at each checkpoint that a candidate of that class is
    compared with: of all, or of its class.
    """
    own = [
        own_losses(-calibration.log_confidence[:, :, k], calibration.labels) for k in range(members)
    ]
    rows = [
        calibration.labels == c
        if class_conditional
        else np.ones(len(calibration.labels), dtype=bool)
        for c in range(CLASSES)
    ]
    return [[losses[chosen].T.tolist() for losses in own] for chosen in rows]


@given(seeds, targets, sizes, st.integers(1, 5), st.booleans())
@settings(max_examples=60)
def test_majority_vote_keeps_classes_of_more_than_half_of_the_members_sets(
    seed: int, target: str, size: int, members: int, class_conditional: bool
) -> None:
    calibration, test = halves(seed, members)
    # so many members must miss for the vote to miss
    level = (1 - Fraction(target)) / 3 * math.ceil(Fraction(members, 2)) / members
    bags = bags_of(calibration, members, class_conditional)
    expected = []
    for losses in -test.log_confidence:
        sets = [
            {
                c
                for c in range(CLASSES)
                if 2
                * sum(p_variable(bags[c][k][t], losses[t, k, c]) > level for k in range(members))
                > members
            }
            for t in range(3)
        ]
        expected.append(first_small(sets, size))
    rule = ag.SpikeCP(
        target, CHECKPOINTS, size, pooling=ag.MajorityVote(), class_conditional=class_conditional
    )
    assert_decides(
        at_kth_values(calibrate_quietly(rule, calibration)).decide(test.log_confidence), expected
    )


def merged_p_variable(ranks: list[Fraction], r: float) -> Fraction:
    """a_{r,K} · M_r for the mean, the largest and the smallest of at least two p-variables."""
    if math.isinf(r):
        return max(ranks) if r > 0 else len(ranks) * min(ranks)
    assert r == 1
    return 2 * sum(ranks, Fraction(0)) / len(ranks)


@pytest.mark.parametrize("r", [1.0, math.inf, -math.inf])
@given(
    seed=seeds,
    target=targets,
    size=sizes,
    members=st.integers(2, 4),
    class_conditional=st.booleans(),
)
@settings(max_examples=40)
def test_merged_p_variables_are_compared_with_alpha_over_m(
    r: float, seed: int, target: str, size: int, members: int, class_conditional: bool
) -> None:
    calibration, test = halves(seed, members)
    level = (1 - Fraction(target)) / 3
    bags = bags_of(calibration, members, class_conditional)
    expected = []
    for losses in -test.log_confidence:
        sets = [
            {
                c
                for c in range(CLASSES)
                if merged_p_variable(
                    [p_variable(bags[c][k][t], losses[t, k, c]) for k in range(members)], r
                )
                > level
            }
            for t in range(3)
        ]
        expected.append(first_small(sets, size))
    rule = ag.SpikeCP(
        target, CHECKPOINTS, size, pooling=ag.MergePValues(r=r), class_conditional=class_conditional
    )
    assert_decides(calibrate_quietly(rule, calibration).decide(test.log_confidence), expected)


@given(
    seed=seeds,
    target=targets,
    size=sizes,
    members=st.integers(1, 3),
    class_conditional=st.booleans(),
)
@settings(max_examples=30)
def test_pooled_ranks_are_ranked_in_the_bag_of_the_candidate(
    seed: int, target: str, size: int, members: int, class_conditional: bool
) -> None:
    """Every example of the bag is ranked again with the candidate in it, and pooled by the sum of
    its ranks.
    """
    calibration, test = halves(seed, members)
    level = (1 - Fraction(target)) / 3
    bags = bags_of(calibration, members, class_conditional)

    def p_pooled(bag: list[list[float]]) -> Fraction:
        pooled = [
            sum(sum(other >= losses[z] for other in losses) for losses in bag)
            for z in range(len(bag[0]))
        ]
        return Fraction(sum(one <= pooled[-1] for one in pooled), len(pooled))

    expected = []
    for losses in -test.log_confidence:
        sets = [
            {
                c
                for c in range(CLASSES)
                if p_pooled([[*bags[c][k][t], losses[t, k, c]] for k in range(members)]) > level
            }
            for t in range(3)
        ]
        expected.append(first_small(sets, size))
    rule = ag.SpikeCP(
        target, CHECKPOINTS, size, pooling=ag.MergeRanks(), class_conditional=class_conditional
    )
    assert_decides(calibrate_quietly(rule, calibration).decide(test.log_confidence), expected)


RANKED = (
    ag.MergePValues(r=1),
    ag.MergePValues(r=0, form="randomized"),
    ag.MergeRanks(),
    ag.MajorityVote(),
)


@pytest.mark.parametrize("pooling", RANKED, ids=repr)
def test_a_class_without_examples_is_in_every_set(pooling: ag.MergePValues) -> None:
    calibration, test = (
        make_sample(400, 3, 3, CLASSES, seed=1),
        make_sample(30, 3, 3, CLASSES, seed=2),
    )
    known = calibration.rows(calibration.labels != 2)
    decisions, stuck = (
        calibrate_quietly(
            ag.SpikeCP(0.6, CHECKPOINTS, size, pooling=pooling, class_conditional=True), known
        )
        for size in (3, 1)
    )
    assert decisions.decide(test.log_confidence).sets[:, 2].all()
    assert "class 2 has 0" in decisions.shortage
    # one class is always kept, which leaves room for none but itself
    assert not decisions.never_stops and not stuck.never_stops
    none = known.rows(known.labels == 0)
    assert calibrate_quietly(
        ag.SpikeCP(0.6, CHECKPOINTS, 2, pooling=pooling, class_conditional=True), none
    ).never_stops


def test_a_promise_says_what_it_is_conditional_on() -> None:
    def promise(**settings: object) -> str:
        return ag.SpikeCP("0.9", CHECKPOINTS, 1, **settings).promise()  # type: ignore[arg-type]

    assert promise().startswith("the answer holds the true class with probability at least 0.9")
    assert promise(class_conditional=True).startswith("for each true class, the answer")
    assert "with probability at least 0.8 over the draw of the calibration examples" in promise(
        delta="1/5"
    )
    assert "exchangeable, in an order fixed before any data" in promise(
        pooling=ag.MergePValues(r=1, form="exchangeable")
    )
    assert "uniform number" in promise(pooling=ag.MergePValues(r=1, form="randomized"))
    assert (
        "no guarantee" in ag.DCSNN(0.9, CHECKPOINTS, 1).promise()
        and "no guarantee" in ag.SEENN(0.9, CHECKPOINTS, 1).promise()
    )
