"""Merging p-variables: one p-variable out of K, symmetric, monotone and never above one; its
constants are tested elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agreestop as ag
from tests.decide.strategies import EXPONENTS, exponents

P_VALUES = st.lists(st.integers(1, 50).map(lambda rank: rank / 50), min_size=1, max_size=6)


def merged(p: list[float], r: float, table: bool = False) -> float:
    """`merge_p_values` of one list, as a row."""
    return float(ag.merge_p_values([p], r, table=table)[0])


@given(P_VALUES, exponents(), st.booleans())
def test_merged_value_is_the_constant_times_the_mean(p: list[float], r: float, table: bool) -> None:
    expected = min(1.0, ag.merging_factor(r, len(p), table) * float(ag.generalized_mean([p], r)[0]))
    assert merged(p, r, table) == pytest.approx(expected, rel=1e-14)


@given(P_VALUES, st.data())
def test_any_order_gives_the_same_bits(p: list[float], data: st.DataObject) -> None:
    moved = data.draw(st.permutations(p))
    for r in EXPONENTS:
        assert merged(p, r) == merged(moved, r)


@given(P_VALUES, exponents(), st.data())
def test_larger_p_values_never_merge_to_less(p: list[float], r: float, data: st.DataObject) -> None:
    chosen = data.draw(st.integers(0, len(p) - 1))
    larger = [min(1.0, value + 0.3) if i == chosen else value for i, value in enumerate(p)]
    assert merged(larger, r) >= merged(p, r) * (1 - 1e-13)


@given(P_VALUES)
def test_from_k_minus_one_on_the_merged_value_is_no_less_than_the_largest(p: list[float]) -> None:
    """Why such a merged set contains the union of the members' sets."""
    for r in (max(1, len(p) - 1), len(p) + 0.5, 45.0, math.inf):
        assert merged(p, r) >= max(p) * (1 - 1e-13)


def test_known_merged_values() -> None:
    assert merged([0.1, 0.3], 1) == pytest.approx(0.4)
    assert merged([0.01, 0.5, 0.5], -math.inf) == pytest.approx(0.03)
    assert merged([0.01, 0.2, 0.5], math.inf) == pytest.approx(0.5)
    assert merged([0.8, 0.9], 1) == 1
    assert merged([0.0, 0.9], 1) == pytest.approx(0.9)
    assert merged([0.0, 0.9], 0) == 0


def test_p_values_merge_along_any_axis() -> None:
    p = np.random.default_rng(0).random((4, 3, 2))
    np.testing.assert_array_equal(
        ag.merge_p_values(p, 2, axis=0), ag.merge_p_values(np.moveaxis(p, 0, -1), 2)
    )


def test_a_plain_list_of_p_values_merges_to_a_number() -> None:
    assert float(ag.merge_p_values([0.1, 0.3], 1)) == pytest.approx(0.4)


def test_no_inputs_give_no_merged_values() -> None:
    assert ag.merge_p_values(np.empty((0, 3)), 1).shape == (0,)


@pytest.mark.parametrize(
    ("p", "match"),
    [
        ([0.1, 1.2], "p holds 1.2"),
        ([-0.1], "p holds -0.1"),
        ([0.1, math.nan], "p holds nan"),
        ([], "at least one"),
        (0.5, "at least one"),
    ],
)
def test_merging_refuses_what_is_no_p_value(p: object, match: str) -> None:
    with pytest.raises(ag.InputError, match=match):
        ag.merge_p_values(p, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ag.merge_p_values([[0.1]], math.nan), "r is nan"),
        (lambda: ag.merging_factor(1, 0), "K is 0"),
        (lambda: ag.merging_factor(1, True), "K is True"),
        (lambda: ag.merging_factor(1, 2.5), "K is 2.5"),  # type: ignore[arg-type]
        (lambda: ag.merging_factor("x", 2), "r is 'x'"),  # type: ignore[arg-type]
        (lambda: ag.MergePValues(r=-1, form="exchangeable"), "needs r > -1"),
        (lambda: ag.MergePValues(r=3, form="randomized"), "r = 1 .* and r = 0"),
        (lambda: ag.MergePValues(r=1, form="lucky"), "choose one of any, exchangeable, randomized"),
        (lambda: ag.MergePValues(r=1, form="randomized", table=True), "only with form='any'"),
        (lambda: ag.MergePValues(r=1, form="randomized", seed=-1), "seed is -1"),
        (lambda: ag.MergeConfidence(r=math.nan), "r is nan"),
        (lambda: ag.MergeRanks(r="one"), "r is 'one'"),  # type: ignore[arg-type]
    ],
)
def test_merging_refuses_other_settings(call: Callable[[], object], match: str) -> None:
    with pytest.raises(ag.InputError, match=match):
        call()
