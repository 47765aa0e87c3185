"""Rules from plain words: each word gives the setting that it names, and an option of another rule
is refused.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest

import agreestop as ag
from agreestop.decide.confidence import Pooling
from tests.decide.strategies import KINDS, assert_one_sentence, build_rule, parse_pooling


@pytest.mark.parametrize(
    ("text", "pooling"),
    [
        ("none", None),
        ("vote", ag.MajorityVote()),
        ("confidence", ag.MergeConfidence(1)),
        (" confidence:-2.5 ", ag.MergeConfidence(-2.5)),
        ("ranks:0", ag.MergeRanks(0)),
        ("p-values:45", ag.MergePValues(45)),
        ("p-values:-inf", ag.MergePValues(-math.inf)),
        ("p-values:1:exchangeable", ag.MergePValues(1, "exchangeable")),
        ("p-values:0:randomized", ag.MergePValues(0, "randomized")),
        ("p-values:-2:table", ag.MergePValues(-2, table=True)),
    ],
)
def test_poolings(text: str, pooling: Pooling | None) -> None:
    assert parse_pooling(text) == pooling


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mean",
        "vote:1",
        "none:1",
        "confidence:x",
        "confidence:1:2",
        "p-values",
        "p-values:1:any:2",
        "ranks:1:2",
    ],
)
def test_words_that_are_no_pooling_are_refused(text: str) -> None:
    with pytest.raises(ag.InputError, match=r"pooling is .*: give confidence:R") as caught:
        parse_pooling(text)
    assert_one_sentence(str(caught.value))


def test_a_form_that_does_not_exist_lists_those_that_do() -> None:
    with pytest.raises(ag.InputError, match="any, exchangeable, randomized"):
        parse_pooling("p-values:1:sorted")


def test_every_kind_of_rule() -> None:
    spikecp = build_rule("spikecp", "0.8", (1, 2), 2, pooling="ranks:1")
    assert isinstance(spikecp, ag.SpikeCP)
    assert (spikecp.target, spikecp.pooling, spikecp.calibration) == (
        Fraction(4, 5),
        ag.MergeRanks(1),
        "bonferroni",
    )
    plain = build_rule(
        "spikecp",
        0.8,
        (1, 2),
        2,
        pooling="none",
        calibration="simultaneous",
        class_conditional=True,
        delta=0.1,
    )
    assert isinstance(plain, ag.SpikeCP)
    assert (plain.pooling, plain.calibration, plain.class_conditional, plain.delta) == (
        None,
        "simultaneous",
        True,
        Fraction(1, 10),
    )
    agreestop = build_rule("agreestop", None, (1, 2), 2, fill=True, pooling=ag.MergeConfidence(0))
    assert isinstance(agreestop, ag.AgreeStop) and isinstance(agreestop.risk, ag.TopMass)
    assert (agreestop.target, agreestop.fill, agreestop.risk.pooling) == (
        Fraction(9, 10),
        True,
        ag.MergeConfidence(0),
    )
    dcsnn = build_rule("dcsnn", 0.7, (1, 2), 2)
    assert isinstance(dcsnn, ag.DCSNN) and dcsnn.target == Fraction(7, 10)
    seenn = build_rule("seenn", None, (1, 2), 2, threshold=0.6)
    assert isinstance(seenn, ag.SEENN) and seenn.threshold == 0.6
    for rule in (spikecp, plain, agreestop, dcsnn, seenn):
        assert (rule.checkpoints, rule.max_set_size) == ((1, 2), 2)


@pytest.mark.parametrize("kind", ["spikecp", "agreestop"])
def test_members_are_averaged_if_no_pooling_is_named(kind: str) -> None:
    rule = build_rule(kind, 0.8, (1, 2), 1)
    average = ag.MergeConfidence(1)
    assert (rule.pooling if isinstance(rule, ag.SpikeCP) else rule.risk.pooling) == average  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kind", "target", "options", "words"),
    [
        ("bayes", 0.9, {}, f"rule is 'bayes': choose one of {', '.join(KINDS)}"),
        ("seenn", 0.9, {"threshold": 0.9}, "target belongs .*not to seenn"),
        ("seenn", None, {}, "give a threshold"),
        ("dcsnn", 0.9, {"pooling": "vote"}, "pooling belongs .*not to dcsnn"),
        ("agreestop", 0.9, {"calibration": "stop-aware"}, "calibration belongs .*not to agreestop"),
        ("agreestop", 0.9, {"pooling": "vote"}, "agreestop pools confidences"),
        ("spikecp", 0.9, {"fill": True}, "fill belongs .*not to spikecp"),
        ("spikecp", 0.9, {"threshold": 0.5}, "threshold belongs to the rule seenn"),
        ("dcsnn", 0.9, {"delta": 0.1}, "delta belongs"),
        ("dcsnn", 0.9, {"class_conditional": True}, "class_conditional belongs"),
    ],
)
def test_options_of_other_rules_are_refused(
    kind: str, target: float | None, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ag.InputError, match=words) as caught:
        build_rule(kind, target, (1, 2), 1, **options)
    assert_one_sentence(str(caught.value))


def test_switches_that_are_off_belong_to_every_rule() -> None:
    for kind in ("spikecp", "dcsnn"):
        build_rule(kind, 0.9, (1, 2), 1, fill=False, class_conditional=False)
