"""Ranks are integers decided in exact arithmetic, and the number of examples a rule needs follows
from them.
"""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agreestop as ag
from agreestop.common import Target, as_delta, as_target, least_n, order_statistic, quantile_rank
from agreestop.common.levels import in_words
from tests.decide.strategies import Sample, calibrate_quietly

PAPER = (20, 40, 60, 80)
NINE_TENTHS = Fraction(9, 10)


def upper_tail(n: int, p: Fraction, k: int) -> Fraction:
    """P(Binomial(n, p) ≥ k) = P(Beta(k, n + 1 - k) < p), exactly."""
    return sum((comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(k, n + 1)), Fraction(0))


def rank_by_definition(n: int, p: Fraction, delta: Fraction) -> int:
    return next((k for k in range(1, n + 1) if upper_tail(n, p, k) <= delta), n + 1)


@pytest.mark.parametrize(
    "target",
    [
        0.9,
        "0.9",
        " 0.9 ",
        "9/10",
        "9e-1",
        Fraction(9, 10),
        Decimal("0.9"),
        np.float64(0.9),
        np.float32(0.9),
        np.float16(0.9),
    ],
)
def test_a_target_is_read_as_written(target: Target) -> None:
    assert as_target(target) == NINE_TENTHS
    assert ag.SpikeCP(target, PAPER, 3).target == NINE_TENTHS
    assert ag.AgreeStop(target, PAPER, 3, delta=target).delta == NINE_TENTHS


@pytest.mark.parametrize(
    "target",
    [
        0,
        1,
        0.0,
        1.0,
        -0.1,
        1.5,
        "1",
        "0/3",
        True,
        math.nan,
        math.inf,
        "often",
        "",
        None,
        "1/0",
        (0.9,),
    ],
)
def test_other_targets_are_refused(target: object) -> None:
    with pytest.raises(ag.InputError, match="target is"):
        as_target(target)  # type: ignore[arg-type]
    if target is not None:
        with pytest.raises(ag.InputError, match="delta is"):
            as_delta(target)  # type: ignore[arg-type]


@given(st.integers(0, 500), st.integers(1, 999))
def test_rank_is_exact(n: int, thousandths: int) -> None:
    rank = quantile_rank(n, as_target(thousandths / 1000))
    assert rank * 1000 >= (n + 1) * thousandths > (rank - 1) * 1000


def test_ranks_where_floats_go_astray() -> None:
    assert quantile_rank(9, as_target(0.9)) == 9
    assert quantile_rank(49, as_target(0.9)) == 45
    assert quantile_rank(99, 1 - (1 - as_target(0.9)) / 4) == 98
    assert quantile_rank(8, as_target(0.9)) == 9, "no score of 8 is high enough"


def test_training_conditional_ranks_of_the_paper_setting() -> None:
    rank = quantile_rank(50, NINE_TENTHS, Fraction(1, 10))
    assert rank == 49
    assert 50 + 1 - rank == 2
    assert upper_tail(50, NINE_TENTHS, 49) <= Fraction(1, 10) < upper_tail(50, NINE_TENTHS, 48)


@pytest.mark.parametrize(
    "p", [Fraction(1, 10), Fraction(1, 2), Fraction(2, 3), NINE_TENTHS, Fraction(39, 40)]
)
@pytest.mark.parametrize(
    "delta",
    [Fraction(1, 1001), Fraction(1, 41), Fraction(1, 11), Fraction(3, 10), Fraction(97, 100)],
)
def test_training_conditional_rank_matches_exact_binomials(p: Fraction, delta: Fraction) -> None:
    for n in (0, 1, 2, 3, 7, 20, 45, 50, 90):
        assert quantile_rank(n, p, delta) == rank_by_definition(n, p, delta), n


def test_training_conditional_rank_where_the_tail_is_delta_exactly() -> None:
    half = Fraction(1, 2)
    for n in range(1, 12):
        assert quantile_rank(n, half, half**n) == rank_by_definition(n, half, half**n) == n
        assert quantile_rank(n, NINE_TENTHS, NINE_TENTHS**n) == n


@given(st.integers(1, 60), st.integers(1, 19), st.integers(1, 19))
def test_training_conditional_rank_is_never_too_low(n: int, p: int, delta: int) -> None:
    level, risk = Fraction(p, 20), Fraction(delta, 20)
    rank = quantile_rank(n, level, risk)
    assert rank == n + 1 or upper_tail(n, level, rank) <= risk


@pytest.mark.parametrize(
    "level", [Fraction(1, 10), Fraction(1, 2), NINE_TENTHS, Fraction(39, 40), Fraction(79, 80)]
)
@pytest.mark.parametrize("delta", [None, Fraction(1, 11), Fraction(1, 40)])
def test_least_n_is_the_least(level: Fraction, delta: Fraction | None) -> None:
    n = least_n(level, delta)
    assert quantile_rank(n, level, delta) <= n
    assert all(quantile_rank(fewer, level, delta) > fewer for fewer in range(n))


@pytest.mark.parametrize("digits", [3, 5, 8, 15, 300])
def test_least_n_with_delta_needs_no_memory(digits: int) -> None:
    """p^n ≤ δ decides, so n is about log(1/δ)/(1 - p), however near p is to 1."""
    n = least_n(1 - Fraction(1, 10**digits), Fraction(1, 10))
    assert math.isclose(n / 10**digits, math.log(10), rel_tol=2 * 10.0 ** -min(digits, 9))


def test_a_fraction_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(ag.InputError, match="bits"):
        as_target(1 - Fraction(1, 10**5000))


def test_order_statistic_counts_from_one_and_goes_to_infinity() -> None:
    values = np.array([3.0, 1.0, 2.0, 2.0])
    assert [order_statistic(values, rank) for rank in range(-1, 7)] == [
        -math.inf,
        -math.inf,
        1.0,
        2.0,
        2.0,
        3.0,
        math.inf,
        math.inf,
    ]
    assert values.tolist() == [3.0, 1.0, 2.0, 2.0]
    assert order_statistic(np.empty(0), 1) == math.inf


def test_probabilities_in_words() -> None:
    assert [in_words(Fraction(text)) for text in ("9/10", "1/3", "0.975", "2/7", "1/8")] == [
        "0.9",
        "1/3",
        "0.975",
        "2/7",
        "0.125",
    ]


@pytest.mark.parametrize(
    ("pooling", "K", "needed"),
    [
        (None, 1, 39),
        (ag.MergeConfidence(r=1), 6, 39),
        (ag.MergeRanks(r=1), 6, 39),
        (ag.MergePValues(r=1), 1, 39),
        (ag.MergePValues(r=1), 6, 79),
        (ag.MergePValues(r=0), 6, 108),
        (ag.MergePValues(r=-1), 6, 153),
        (ag.MergePValues(r=-math.inf), 6, 239),
        (ag.MergePValues(r=math.inf), 6, 39),
        (ag.MajorityVote(), 6, 79),
        (ag.MajorityVote(), 1, 39),
        (ag.MajorityVote(), 3, 59),
        (ag.MajorityVote(), 5, 66),
    ],
)
def test_examples_needed_at_the_paper_setting(
    pooling: ag.MergeConfidence | None, K: int, needed: int
) -> None:
    assert ag.SpikeCP(0.9, PAPER, 3, pooling=pooling).examples_needed(K) == needed


@pytest.mark.parametrize(
    "rule",
    [
        ag.SpikeCP(0.9, PAPER, 3, pooling=ag.MergeConfidence(), calibration="simultaneous"),
        ag.SpikeCP(0.9, PAPER, 3, pooling=ag.MergeConfidence(), calibration="stop-aware"),
        ag.AgreeStop(0.9, PAPER, 3),
    ],
)
def test_rules_of_our_own_need_nine(rule: ag.SpikeCP | ag.AgreeStop) -> None:
    assert rule.examples_needed(6) == 9


def test_printed_constants_need_more() -> None:
    assert [
        ag.SpikeCP(0.9, PAPER, 3, pooling=ag.MergePValues(r=r, table=True)).examples_needed(6)
        for r in (0, -1)
    ] == [108, 194]


def test_with_bonferroni_a_target_too_high_is_vacuous_for_fifty_examples() -> None:
    assert (
        ag.SpikeCP("0.9215", PAPER, 3).examples_needed()
        <= 50
        < ag.SpikeCP("0.9216", PAPER, 3).examples_needed()
    )


def easy_data(n: int, checkpoints: int, members: int) -> Sample:
    """Two classes; class 0 is the label everywhere, at no loss."""
    log_confidence = np.zeros((n, checkpoints, members, 2))
    log_confidence[..., 1] = -1000.0
    return Sample(log_confidence, np.zeros(n, dtype=np.int64))


def excludes(rule: ag.SpikeCP, n: int, members: int) -> bool:
    """Whether the rule, calibrated with n examples, excludes a class that fits worse than every one
    of them.
    """
    data = easy_data(n, len(rule.checkpoints), members)
    decisions = calibrate_quietly(rule, data).decide(data.log_confidence[:1])
    return bool((~decisions.sets).any())


@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize(
    ("r", "K"),
    [
        *((r, K) for r in (-math.inf, 1.0, 2.0, 3.0, 5.0, 45.0, math.inf) for K in (1, 2, 3, 6)),
        *((r, K) for r in (-2.0, -1.0, 0.0, 0.1) for K in (1, 3, 6)),
    ],
)
def test_a_merged_rule_excludes_from_the_stated_number_on(r: float, K: int, table: bool) -> None:
    rule = ag.SpikeCP(0.9, (1, 2, 3, 4), 1, pooling=ag.MergePValues(r=r, table=table))
    needed = rule.examples_needed(K)
    assert not excludes(rule, needed - 1, K)
    assert excludes(rule, needed, K)


@pytest.mark.parametrize(
    ("pooling", "K"),
    [
        *((ag.MergePValues(r=r), 2) for r in (-2.0, -1.0, 0.0, 0.5)),
        *((ag.MergePValues(r=0.5), K) for K in (3, 6)),
        (ag.MergePValues(r=-0.5, table=True), 6),
        (ag.MergePValues(r=1.0, form="exchangeable"), 3),
    ],
)
def test_a_rational_constant_excludes_from_the_stated_number_on(
    pooling: ag.MergePValues, K: int
) -> None:
    rule = ag.SpikeCP(0.9, (1, 2, 3, 4), 1, pooling=pooling)
    needed = rule.examples_needed(K)
    assert not excludes(rule, needed - 1, K)
    assert excludes(rule, needed, K)


@pytest.mark.parametrize(
    ("rule", "K"),
    [
        (ag.SpikeCP(0.8, (1, 2), 1), 1),
        (ag.SpikeCP(0.8, (1, 2), 1, delta=0.3), 1),
        (ag.SpikeCP(0.8, (1, 2), 1, class_conditional=False, calibration="simultaneous"), 1),
        (ag.SpikeCP(0.8, (1, 2), 1, calibration="stop-aware", delta=0.3), 1),
        (ag.SpikeCP(0.8, (1, 2), 1, pooling=ag.MajorityVote()), 3),
        (ag.SpikeCP(0.8, (1, 2), 1, pooling=ag.MajorityVote()), 4),
        (ag.SpikeCP(0.8, (1, 2), 1, pooling=ag.MergeRanks()), 3),
        (ag.SpikeCP(0.8, (1, 2), 1, pooling=ag.MergePValues(r=0, form="exchangeable")), 3),
        (ag.SpikeCP(0.8, (1, 2), 1, pooling=ag.MergePValues(r=-0.3, form="exchangeable")), 3),
        (ag.SpikeCP(0.8, (1, 2), 1, pooling=ag.MergePValues(r=-0.3, form="exchangeable")), 1),
        (ag.SpikeCP(0.8, (1, 2), 1, pooling=ag.MergePValues(r=math.inf, form="exchangeable")), 3),
    ],
)
def test_every_other_rule_excludes_from_the_stated_number_on(rule: ag.SpikeCP, K: int) -> None:
    needed = rule.examples_needed(K)
    assert not excludes(rule, needed - 1, K)
    assert excludes(rule, needed, K)


def test_a_delta_below_the_floats_still_has_a_number_of_examples() -> None:
    assert ag.SpikeCP(0.9, (1,), 1, delta="1e-400").examples_needed() == math.ceil(
        400 * math.log(10) / -math.log(0.9)
    )


def test_too_few_examples_are_said_in_a_sentence_and_give_full_sets() -> None:
    rule = ag.SpikeCP(0.9, (1, 2, 3, 4), 1)
    data = easy_data(38, 4, 1)
    with pytest.warns(ag.CalibrationWarning, match=r"With 38 calibration examples .* it needs"):
        calibrated = rule.calibrate(*data)
    assert "39" in calibrated.shortage
    decisions = calibrated.decide(data.log_confidence)
    assert decisions.sets.all()
    assert (decisions.stop_index == 3).all()


def test_a_rare_class_is_named() -> None:
    data = easy_data(60, 2, 1)
    data.labels[:] = np.arange(60) % 2
    data.labels[:6] = 0
    rule = ag.SpikeCP(0.9, (1, 2), 1, class_conditional=True, calibration="stop-aware")
    assert rule.calibrate(*data).shortage == ""
    data.labels[:50] = 0
    with pytest.warns(ag.CalibrationWarning, match="at least 9 examples of each class"):
        rule.calibrate(*data)
