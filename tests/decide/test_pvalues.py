"""Conformal p-variables: (1 + the number of calibration scores at least as large) / (n + 1), ties
included.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agreestop as ag
from agreestop.decide.merging import ranks

FEW = st.integers(0, 6).map(float)


@given(st.lists(FEW, min_size=1, max_size=12), st.lists(FEW, min_size=1, max_size=6))
def test_p_values_match_their_definition(calibration: list[float], scores: list[float]) -> None:
    n = len(calibration)
    expected = [
        float(Fraction(1 + sum(score <= other for other in calibration), n + 1)) for score in scores
    ]
    assert ag.p_values(calibration, scores).tolist() == expected


@given(st.lists(FEW, min_size=1, max_size=12), st.data())
def test_the_order_of_calibration_scores_does_not_matter(
    calibration: list[float], data: st.DataObject
) -> None:
    moved = data.draw(st.permutations(calibration))
    scores = np.arange(-1, 8)
    assert ag.p_values(moved, scores).tolist() == ag.p_values(calibration, scores).tolist()


@given(st.lists(FEW, min_size=1, max_size=12))
def test_larger_scores_conform_less(calibration: list[float]) -> None:
    p = ag.p_values(calibration, np.linspace(-1, 7, 33))
    assert (np.diff(p) <= 0).all()
    assert p[0] == 1
    assert p[-1] == 1 / (len(calibration) + 1)


@given(st.lists(FEW, min_size=2, max_size=10))
def test_at_most_a_share_alpha_of_a_bag_has_a_p_value_of_at_most_alpha(bag: list[float]) -> None:
    """Each score against the others: that is why the p-variable is valid for exchangeable
    scores.
    """
    p = np.array([ag.p_values(bag[:i] + bag[i + 1 :], [bag[i]])[0] for i in range(len(bag))])
    for rank in range(1, len(bag) + 1):
        assert np.count_nonzero(p <= rank / len(bag)) <= rank


def test_shape_is_that_of_the_scores() -> None:
    scores = np.random.default_rng(0).random((2, 3, 4))
    assert ag.p_values([0.5], scores).shape == (2, 3, 4)
    assert ag.p_values([0.5], np.empty((0, 3))).shape == (0, 3)


def test_one_score_gives_one_number() -> None:
    assert ag.p_values([0.5, 0.1, 0.3], 0.2).tolist() == 0.75


def test_ranks_are_integers() -> None:
    computed = ranks(np.array([1.0, 2.0, 2.0, 3.0]), np.array([[0.0, 1.0, 2.0], [2.5, 3.0, 4.0]]))
    assert computed.dtype == np.int64
    assert computed.tolist() == [[5, 5, 4], [2, 2, 1]]


@pytest.mark.parametrize(
    ("calibration", "scores", "match"),
    [
        ([], [1.0], "at least one score"),
        ([[1.0]], [1.0], "one axis"),
        (1.0, [1.0], "one axis"),
        ([1.0, math.nan], [1.0], "calibration_scores holds nan"),
        ([math.inf], [1.0], "calibration_scores holds inf"),
        ([1.0], [math.nan], "scores holds nan"),
        ([1.0], [[0.0], [-math.inf]], r"scores holds -inf at \[1, 0\]"),
    ],
)
def test_p_values_refuse(calibration: object, scores: object, match: str) -> None:
    with pytest.raises(ag.InputError, match=match):
        ag.p_values(calibration, scores)  # type: ignore[arg-type]
