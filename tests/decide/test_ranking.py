"""Sets from members' ranks: merged ranks against exact arithmetic, rank pooling against a bag
written out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import agreestop as ag
from agreestop.common import Floats, Integers
from agreestop.decide import merging_factor
from agreestop.decide.merging import MergedRanks, PooledRanks
from tests.decide.strategies import merge_exchangeable, merge_randomized

NO_UNIFORMS = np.empty((1, 0))


def losses_of_rank(n: int, ranks: Integers) -> Floats:
    """Losses with these ranks among the calibration losses 1..n: rank 1 is worse than all, n + 1
    better than all.
    """
    return (n + 2 - ranks).astype(np.float64)


def keeps(
    n: int,
    cells: Sequence[Sequence[int]],
    level: Fraction,
    merging: ag.MergePValues,
    uniform: float | None = None,
) -> list[bool]:
    """What MergedRanks decides for members' ranks (cells, K), each cell a class of one input."""
    ranks = np.array(cells, dtype=np.int64).T
    calibration = np.tile(np.arange(1.0, n + 1), (1, len(ranks), 1))
    uniforms = NO_UNIFORMS if uniform is None else np.array([[uniform]])
    kept: list[bool] = (
        MergedRanks(calibration, level, merging)
        .keeps(0, losses_of_rank(n, ranks)[None], uniforms)[0]
        .tolist()
    )
    return kept


def kept_exactly(cell: Sequence[int], level: Fraction, r: int) -> bool:
    """a_{r,K} · M_r(u) > level in integers: a^r is K from r = K - 1 on, and r + 1 before."""
    members = len(cell)
    constant = members if r >= members - 1 else r + 1
    return bool(Fraction(constant, members) * sum(rank**r for rank in cell) > level**r)


@st.composite
def rank_cells(draw: st.DrawFn) -> tuple[int, list[list[int]]]:
    n, members = draw(st.integers(1, 50)), draw(st.integers(1, 7))
    cell = st.lists(st.integers(1, n + 1), min_size=members, max_size=members)
    return n, draw(st.lists(cell, min_size=1, max_size=6))


LEVELS = st.fractions(Fraction(1, 40), 12, max_denominator=60)


@given(rank_cells(), st.sampled_from([1, 2, 3, 5, 7, 45, 200, 1000]), LEVELS)
@settings(max_examples=200)
def test_whole_exponents_are_decided_exactly(
    drawn: tuple[int, list[list[int]]], r: int, level: Fraction
) -> None:
    n, cells = drawn
    assert keeps(n, cells, level, ag.MergePValues(r=r)) == [
        kept_exactly(cell, level, r) for cell in cells
    ]


@given(rank_cells())
def test_the_mean_at_exactly_the_level_is_not_kept(drawn: tuple[int, list[list[int]]]) -> None:
    n, cells = drawn
    for cell in cells:
        constant = 1 if len(cell) == 1 else 2
        level = Fraction(constant * sum(cell), len(cell))
        assert keeps(n, [cell], level, ag.MergePValues(r=1)) == [False]
        assert keeps(n, [cell], level * (1 - Fraction(1, 10**14)), ag.MergePValues(r=1)) == [True]


def test_a_quadratic_mean_at_exactly_the_level_is_not_kept() -> None:
    assert keeps(10, [[3, 4], [3, 5]], Fraction(5), ag.MergePValues(r=2)) == [False, True], (
        "9 + 16 = 25"
    )
    assert keeps(10, [[2, 3, 6], [2, 4, 6]], Fraction(7), ag.MergePValues(r=2)) == [False, True], (
        "4 + 9 + 36 = 49"
    )


@given(st.lists(st.integers(1, 51), min_size=6, max_size=6))
def test_r_45_is_decided_exactly_right_next_to_the_level(cell: list[int]) -> None:
    scale = 10**15
    total = sum(rank**45 for rank in cell) * scale**45
    low, high = 0, 60 * scale
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**45 < total else (low, middle)
    assert keeps(50, [cell], Fraction(low, scale), ag.MergePValues(r=45)) == [True]
    assert keeps(50, [cell], Fraction(high, scale), ag.MergePValues(r=45)) == [False]


def test_r_45_is_the_largest_rank_at_the_paper_setting() -> None:
    """n = 50, M = 4, p = 0.9: the level is 1.275, and only a class that every member puts last is
    excluded.
    """
    level = Fraction(1, 40) * 51
    cells = [[1, 1, 1, 1, 1, 1], [2, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 51]]
    assert (
        keeps(50, cells, level, ag.MergePValues(r=45))
        == keeps(50, cells, level, ag.MergePValues(r=math.inf))
        == [False, True, True]
    )


@given(rank_cells(), LEVELS)
def test_infinite_exponents_compare_integers(
    drawn: tuple[int, list[list[int]]], level: Fraction
) -> None:
    n, cells = drawn
    assert keeps(n, cells, level, ag.MergePValues(r=math.inf)) == [
        max(cell) > level for cell in cells
    ]
    assert keeps(n, cells, level, ag.MergePValues(r=-math.inf)) == [
        len(cell) * min(cell) > level for cell in cells
    ]
    assert keeps(n, cells, level, ag.MergePValues(r=math.inf, form="exchangeable")) == [
        cell[0] > level for cell in cells
    ]


@given(
    rank_cells(),
    st.sampled_from([-45.0, -3.0, -1.0, -0.5, 0.0, 0.1, 0.5, 1.5, 7.5]),
    LEVELS,
    st.booleans(),
)
@settings(max_examples=150)
def test_other_exponents_agree_with_merged_p_values_and_err_on_keeping(
    drawn: tuple[int, list[list[int]]], r: float, level: Fraction, table: bool
) -> None:
    n, cells = drawn
    kept = keeps(n, cells, level, ag.MergePValues(r=r, table=table))
    factor = merging_factor(r, len(cells[0]), table)
    merged = factor * ag.generalized_mean(np.array(cells, dtype=np.float64), r)
    for answer, value in zip(kept, merged.tolist(), strict=True):
        if abs(value - float(level)) > 1e-9 * float(level):
            assert answer == (value > level)
        elif value > float(level) * (1 - 1e-13) and len(cells[0]) > 1:
            assert answer


@given(rank_cells(), st.sampled_from([-0.5, 0.0, 0.5, 1.0, 3.0]), LEVELS)
def test_the_exchangeable_form_agrees_with_its_p_values(
    drawn: tuple[int, list[list[int]]], r: float, level: Fraction
) -> None:
    n, cells = drawn
    merged = merge_exchangeable(np.array(cells) / 100, r) * 100
    for answer, value in zip(
        keeps(n, cells, level, ag.MergePValues(r=r, form="exchangeable")),
        merged.tolist(),
        strict=True,
    ):
        if abs(value - float(level)) > 1e-9 * float(level):
            assert answer == (value > level)


@given(rank_cells(), st.sampled_from([0.0, 1.0]), LEVELS, st.floats(0, 1))
def test_the_randomised_form_agrees_with_its_p_values(
    drawn: tuple[int, list[list[int]]], r: float, level: Fraction, u: float
) -> None:
    n, cells = drawn
    merged = merge_randomized(np.array(cells) / 200, r, u) * 200
    for answer, value in zip(
        keeps(n, cells, level, ag.MergePValues(r=r, form="randomized"), u),
        merged.tolist(),
        strict=True,
    ):
        if abs(value - float(level)) > 1e-9 * float(level):
            assert answer == (value > level)


def test_uniform_numbers_belong_to_an_input_and_a_seed() -> None:
    ranks = MergedRanks(
        np.zeros((1, 2, 5)), Fraction(1), ag.MergePValues(r=1, form="randomized", seed=7)
    )
    whole = ranks.uniforms(20, 0)
    assert whole is not None and whole.shape == (20, 1)
    assert len(np.unique(whole)) == 20
    np.testing.assert_array_equal(ranks.uniforms(5, 9), whole[9:14])
    other = MergedRanks(
        np.zeros((1, 2, 5)), Fraction(1), ag.MergePValues(r=1, form="randomized", seed=8)
    )
    drawn = other.uniforms(20, 0)
    assert drawn is not None and not np.isin(drawn, whole).any()


@pytest.mark.parametrize("r", [-400.0, -5000.0])
def test_very_negative_exponents_are_nearly_the_minimum(r: float) -> None:
    cells = [[1, 50, 50, 50, 50, 50], [3, 3, 3, 3, 3, 3]]
    assert keeps(50, cells, Fraction(13, 2), ag.MergePValues(r=r)) == [False, True]


@pytest.mark.parametrize("r", [-1e-17, 1e-17, 1e-300])
def test_exponents_next_to_zero_are_nearly_geometric(r: float) -> None:
    cells = [[50, 50, 50], [20, 30, 40], [1, 2, 1]]
    assert (
        keeps(50, cells, Fraction(5), ag.MergePValues(r=r))
        == keeps(50, cells, Fraction(5), ag.MergePValues(r=0))
        == [True, True, False]
    )


@pytest.mark.parametrize("r", [1e9, 1e17])
def test_huge_whole_exponents_are_nearly_the_maximum(r: float) -> None:
    cells = [[1, 50, 50], [3, 3, 2], [1, 2, 1]]
    assert keeps(50, cells, Fraction(5, 2), ag.MergePValues(r=r)) == [True, True, False]


def pool_exactly(ranks: list[int], r: float) -> Fraction:
    """A number that orders cells of ranks as M_r does."""
    if math.isinf(r):
        return Fraction(max(ranks) if r > 0 else min(ranks))
    if r == 0:
        return Fraction(math.prod(ranks))
    return sum((Fraction(u) ** int(r) for u in ranks), Fraction(0)) * (1 if r > 0 else -1)


def bag_of(calibration: Floats, candidate: Floats) -> list[list[int]]:
    """The sorted members' ranks of the n calibration examples (K, n) and, last, of the candidate
    (K,), in the bag of them all.
    """
    bag = np.vstack([calibration.T, candidate])
    return [
        sorted(int((bag[:, k] >= value).sum()) for k, value in enumerate(row))
        for row in bag.tolist()
    ]


def bag_keeps(calibration: Floats, candidate: Floats, level: Fraction, r: float) -> bool:
    """Rank pooling written out: the pooled values of a bag, and the p-variable of the
    last of them.
    """
    pooled = [pool_exactly(ranks, r) for ranks in bag_of(calibration, candidate)]
    return sum(value <= pooled[-1] for value in pooled) > level


def different_ranks_tie(calibration: Floats, candidate: Floats, r: float) -> bool:
    """Whether cells tie by a coincidence of arithmetic, as 1 + 1 + 25 = 9 + 9 + 9 does
    for r = 2.
    """
    cells = {tuple(ranks) for ranks in bag_of(calibration, candidate)}
    return len({pool_exactly(list(ranks), r) for ranks in cells}) < len(cells)


@st.composite
def bags(draw: st.DrawFn) -> tuple[Floats, Floats]:
    """Calibration losses (K, n) and candidates (b, C, K), full of ties."""
    members, n = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    few = st.integers(0, 4).map(float)
    return draw(hnp.arrays(np.float64, (members, n), elements=few)), draw(
        hnp.arrays(np.float64, (2, 3, members), elements=few)
    )


@pytest.mark.parametrize("r", [-math.inf, 1.0, math.inf])
@given(bag=bags(), level=st.fractions(Fraction(1, 9), 8, max_denominator=9))
def test_rank_pooling_is_what_the_bag_says(
    r: float, bag: tuple[Floats, Floats], level: Fraction
) -> None:
    calibration, candidates = bag
    kept = PooledRanks(calibration[None], level, r).keeps(0, np.moveaxis(candidates, -1, 1))
    assert kept.tolist() == [
        [bag_keeps(calibration, one, level, r) for one in row] for row in candidates
    ]


@pytest.mark.parametrize("r", [-2.0, -1.0, 0.0, 2.0, 3.0])
@given(bag=bags(), level=st.fractions(Fraction(1, 9), 8, max_denominator=9))
def test_rank_pooling_by_other_means_is_what_the_bag_says(
    r: float, bag: tuple[Floats, Floats], level: Fraction
) -> None:
    calibration, candidates = bag
    kept = PooledRanks(calibration[None], level, r).keeps(0, np.moveaxis(candidates, -1, 1))
    for answers, row in zip(kept.tolist(), candidates, strict=True):
        for answer, one in zip(answers, row, strict=True):
            assert different_ranks_tie(calibration, one, r) or answer == bag_keeps(
                calibration, one, level, r
            )


@pytest.mark.parametrize("r", [-45.0, -2.0, 0.0, 0.5, 1.0, 2.0, 45.0, math.inf])
@given(bag=bags())
def test_pooled_ranks_miss_at_most_as_often_as_allowed_whatever_the_mean(
    r: float, bag: tuple[Floats, Floats]
) -> None:
    """Each of a bag of n + 1 takes its turn as the candidate: at most ⌊level⌋ of them are
    excluded.
    """
    whole = np.concatenate([bag[0], bag[1][0].T], axis=1)
    size = whole.shape[1]
    for level in (Fraction(1), Fraction(3, 2), Fraction(size, 2)):
        excluded = 0
        for left_out in range(size):
            pooled = PooledRanks(np.delete(whole, left_out, axis=1)[None], level, r)
            excluded += not pooled.keeps(0, whole[None, :, left_out, None])[0, 0]
        assert excluded <= level


@pytest.mark.parametrize("r", [-2.0, 0.0, 1.0, 2.0, math.inf])
def test_one_member_pools_to_its_own_ranks(r: float) -> None:
    n = 40
    calibration, candidates = np.arange(1.0, n + 1), np.arange(0.5, n + 2, 0.5)
    level = Fraction(41, 4)
    kept = PooledRanks(calibration[None, None], level, r).keeps(0, candidates[:, None, None])[:, 0]
    assert kept.tolist() == [1 + int((calibration >= value).sum()) > level for value in candidates]


@pytest.mark.parametrize("r", [-45.0, 45.0])
def test_one_member_pools_to_its_own_ranks_for_large_exponents(r: float) -> None:
    n = 40
    calibration, candidates = np.arange(1.0, n + 1), np.arange(0.5, n + 2, 0.5)
    for level in (Fraction(41, 10), Fraction(41, 4), Fraction(41, 2)):
        kept = PooledRanks(calibration[None, None], level, r).keeps(0, candidates[:, None, None])[
            :, 0
        ]
        assert kept.tolist() == [
            1 + int((calibration >= value).sum()) > level for value in candidates
        ]


def test_rank_pooling_in_blocks_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    calibration, losses = (
        rng.integers(0, 30, size=(1, 3, 700)).astype(float),
        rng.integers(0, 30, size=(700, 3, 5)).astype(float),
    )
    pooled = PooledRanks(calibration, Fraction(701, 10), 1.0)
    whole = pooled.keeps(0, losses)
    assert 0 < whole.mean() < 1
    np.testing.assert_array_equal(
        whole, np.concatenate([pooled.keeps(0, losses[row : row + 1]) for row in range(700)])
    )
