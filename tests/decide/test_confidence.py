"""Confidences keep what decisions need: the loss of a sure winner, ties that stay ties, and means
that do not depend on an order.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agreestop as ag
from tests.decide.strategies import EXPONENTS, exponents

POSITIVE = st.lists(st.floats(1e-12, 1.0), min_size=1, max_size=7)


def reference_log_softmax(counts: list[float]) -> list[Decimal]:
    """log-softmax with 400 digits."""
    with localcontext(prec=400):
        values = [Decimal(count) for count in counts]
        top = max(values)
        total = sum(((value - top).exp() for value in values), Decimal(0))
        return [value - top - total.ln() for value in values]


def reference_mean(values: list[float], r: float) -> Decimal:
    """M_r with 60 digits, and as many more as a small exponent takes away."""
    exact = [Decimal(value) for value in values]
    if math.isinf(r):
        return max(exact) if r > 0 else min(exact)
    lost = max(0, -math.floor(math.log10(abs(r)))) if r else 0
    with localcontext(prec=60 + lost):
        if r == 0:
            return (sum((value.ln() for value in exact), Decimal(0)) / len(exact)).exp()
        power = Decimal(r)
        mean = sum((value**power for value in exact), Decimal(0)) / len(exact)
        return mean ** (1 / power)


def mean_of(values: list[float], r: float) -> float:
    """`generalized_mean` of one list, as a row."""
    return float(ag.generalized_mean([values], r)[0])


@pytest.mark.parametrize(
    "counts",
    [
        [80.0, 0.0, 0.0],
        [80.0, 79.0, 3.0],
        [1.0, 1.0, 1.0],
        [700.0, 0.0, 1.0],
        [12.5, -3.25, 9.0],
        [7.0],
    ],
)
def test_log_confidence_matches_many_digits(counts: list[float]) -> None:
    computed = ag.log_confidence(counts)
    for mine, exact in zip(computed, reference_log_softmax(counts), strict=True):
        assert float(mine) == pytest.approx(float(exact), rel=4e-15, abs=0)


def test_a_sure_winner_keeps_its_loss() -> None:
    losses = -ag.log_confidence([[80.0, 0.0], [80.0, 1.0], [79.0, 2.0], [600.0, 0.0]])[:, 0]
    assert losses == pytest.approx(
        [math.exp(-80), math.exp(-79), math.exp(-77), math.exp(-600)], rel=1e-14
    )
    assert len(set(losses.tolist())) == 4


@pytest.mark.parametrize("scale", [1e3, 1e6, 1e15, 1e300])
def test_counts_far_beyond_stay_finite(scale: float) -> None:
    values = ag.log_confidence([scale, scale / 2, 0.0])
    assert -1e-200 < values[0] <= 0
    assert values[1:] == pytest.approx([-scale / 2, -scale], rel=1e-15)


@given(st.lists(st.integers(0, 80), min_size=1, max_size=8), st.data())
def test_ties_stay_ties_whatever_the_order_of_classes(
    counts: list[int], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(counts))))
    straight, moved = ag.log_confidence(counts), ag.log_confidence([counts[i] for i in order])
    assert moved.tolist() == straight[order].tolist()
    for value in set(counts):
        assert len({straight[i] for i in range(len(counts)) if counts[i] == value}) == 1


@given(st.lists(st.integers(0, 80), min_size=2, max_size=8), st.integers(1, 40))
def test_log_confidence_ignores_a_common_count(counts: list[int], more: int) -> None:
    assert ag.log_confidence(np.array(counts) + more).tolist() == ag.log_confidence(counts).tolist()


def test_log_confidence_works_along_any_axis_and_never_exceeds_zero() -> None:
    counts = np.random.default_rng(0).integers(0, 80, size=(3, 5, 4))
    last = ag.log_confidence(counts)
    assert last.dtype == np.float64
    assert last.max() <= 0
    assert np.exp(last).sum(axis=-1) == pytest.approx(np.ones((3, 5)))
    np.testing.assert_array_equal(
        ag.log_confidence(np.moveaxis(counts, 2, 0), axis=0), np.moveaxis(last, 2, 0)
    )


@pytest.mark.parametrize(
    ("counts", "match"),
    [
        (3.0, "at least one value"),
        (np.empty((2, 0)), "at least one value"),
        ([1.0, math.nan], "nan at"),
        ([[1.0, math.inf]], r"inf at \[0, 1\]"),
    ],
)
def test_log_confidence_refuses(counts: object, match: str) -> None:
    with pytest.raises(ag.InputError, match=match):
        ag.log_confidence(counts)  # type: ignore[arg-type]


@given(POSITIVE, exponents())
def test_generalized_mean_matches_many_digits(values: list[float], r: float) -> None:
    assert mean_of(values, r) == pytest.approx(float(reference_mean(values, r)), rel=1e-13)


def test_generalized_mean_of_whole_powers_is_the_rational_one() -> None:
    values = [Fraction(1, 8), Fraction(1, 2), Fraction(3, 4)]
    floats = [float(value) for value in values]
    assert mean_of(floats, 1) == pytest.approx(float(sum(values) / 3), rel=1e-15)
    assert mean_of(floats, -1) == pytest.approx(
        float(3 / sum(1 / value for value in values)), rel=1e-15
    )
    assert mean_of(floats, 2) ** 2 == pytest.approx(
        float(sum(value**2 for value in values) / 3), rel=1e-15
    )


@given(POSITIVE, st.data())
def test_generalized_mean_has_the_same_bits_in_any_order_of_members(
    values: list[float], data: st.DataObject
) -> None:
    moved = data.draw(st.permutations(values))
    for r in EXPONENTS:
        assert mean_of(values, r) == mean_of(moved, r)


@given(POSITIVE)
def test_generalized_mean_grows_with_r_between_min_and_max(values: list[float]) -> None:
    means = [mean_of(values, r) for r in EXPONENTS]
    slack = 1 + 1e-12
    assert all(low <= high * slack for low, high in pairwise(means))
    assert min(values) <= means[0] * slack
    assert means[-1] <= max(values) * slack


def test_generalized_mean_goes_to_its_limits() -> None:
    values = [0.2, 0.5, 0.9]
    assert mean_of(values, 1e-9) == pytest.approx(mean_of(values, 0), rel=1e-8)
    assert mean_of(values, -1e-9) == pytest.approx(mean_of(values, 0), rel=1e-8)
    assert mean_of(values, 1e5) == pytest.approx(0.9, rel=1e-4)
    assert mean_of(values, -1e5) == pytest.approx(0.2, rel=1e-4)


def test_generalized_mean_of_tiny_values_does_not_underflow() -> None:
    assert mean_of([1e-300, 1e-300], 45) == pytest.approx(1e-300, rel=1e-12)
    assert mean_of([1e-300, 1e-10], -45) == pytest.approx(1e-300 * 2 ** (1 / 45), rel=1e-12)


@pytest.mark.parametrize("r", EXPONENTS)
def test_a_zero_makes_small_means_zero(r: float) -> None:
    mean = mean_of([0.0, 0.5, 0.25], r)
    expected = 0.0 if r <= 0 else 0.5 if math.isinf(r) else ((0.5**r + 0.25**r) / 3) ** (1 / r)
    assert mean == pytest.approx(expected, rel=1e-13, abs=0)
    assert mean_of([0.0, 0.0], r) == 0


def test_generalized_mean_works_along_any_axis() -> None:
    values = np.random.default_rng(1).random((2, 3, 4))
    np.testing.assert_array_equal(
        ag.generalized_mean(values, 2.5, axis=1),
        ag.generalized_mean(np.moveaxis(values, 1, -1), 2.5),
    )
    assert ag.generalized_mean(values, 1, axis=0) == pytest.approx(values.mean(axis=0))


def test_generalized_mean_of_a_plain_list_is_a_number() -> None:
    for r in EXPONENTS:
        assert float(ag.generalized_mean([0.2, 0.9], r)) == mean_of([0.2, 0.9], r)


@pytest.mark.parametrize(("r", "pick"), [(math.inf, max), (-math.inf, min)])
def test_largest_and_smallest_are_the_values_themselves(r: float, pick: object) -> None:
    values = [(i / 51, i / 102) for i in range(1, 52)]
    assert ag.generalized_mean(values, r).tolist() == [pick(pair) for pair in values]  # type: ignore[operator]


@pytest.mark.parametrize("r", EXPONENTS)
def test_the_mean_of_one_value_is_that_value(r: float) -> None:
    values = [[i / 51] for i in range(1, 52)]
    assert ag.generalized_mean(values, r).tolist() == [value for (value,) in values]


@pytest.mark.parametrize(
    ("values", "r", "match"),
    [
        ([0.1, -0.2], 1, "values of at least 0"),
        ([0.1, math.nan], 1, "must be finite"),
        ([0.1, math.inf], 1, "must be finite"),
        ([], 1, "at least one value"),
        (0.5, 1, "at least one value"),
        ([0.5], math.nan, "r is nan"),
        ([0.5], "mean", "r is 'mean'"),
        ([0.5], None, "r is None"),
    ],
)
def test_generalized_mean_refuses(values: object, r: object, match: str) -> None:
    with pytest.raises(ag.InputError, match=match):
        ag.generalized_mean(values, r)  # type: ignore[arg-type]
