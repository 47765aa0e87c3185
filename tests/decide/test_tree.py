"""Trees of classes: W and the promise against brute force over λ and bags, batches, streams and
files, names, and wrong input.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from agreestop.common import Floats
from tests.decide.strategies import (
    assert_one_sentence,
    assert_same_decisions,
    at_kth_values,
    calibrate_quietly,
)

TREE = ag.Tree({"animal": {"pet": ("cat", "dog"), "cow": None}, "vehicle": ("car", "ship")})
CLASSES = ("cat", "car", "dog", "ship", "cow")
GROUPS: list[list[set[str]]] = [
    [set(CLASSES)],
    [{"cat", "dog", "cow"}, {"car", "ship"}],
    [{"cat", "dog"}, {"car"}, {"ship"}, {"cow"}],
    [{"cat"}, {"car"}, {"dog"}, {"ship"}, {"cow"}],
]
DEPTHS = (1, 2, 3, None)


def make(n: int, steps: int = 3, seed: int = 0, tied: bool = False) -> ag.Scores:
    rng = np.random.default_rng([seed, n])
    labels = rng.integers(5, size=n)
    own = (
        np.eye(5)[labels][:, None]
        + 0.5 * np.isin(np.arange(5), (1, 3)) * np.isin(labels, (1, 3))[:, None, None]
    )
    logits = np.cumsum(own + rng.normal(size=(n, steps, 5)), axis=1)
    if tied:
        logits = np.log(rng.integers(1, 4, size=logits.shape) + 2 * own)
    return ag.Scores(ag.log_confidence(logits[:, :, None]), labels, range(1, steps + 1), CLASSES)  # type: ignore[arg-type]


def brute_force(log_confidence: Floats, limit: float, depth: int) -> tuple[int, set[str]]:
    """Where an input (M, C) stops at λ, and the node it answers, written down from the
    definition.
    """
    steps = len(log_confidence)
    for index, cell in enumerate(np.exp(log_confidence)):
        best: list[set[str]] = []
        risks: list[float] = []
        for groups in GROUPS:
            outside = [
                math.fsum(p for name, p in zip(CLASSES, cell, strict=True) if name not in group)
                for group in groups
            ]
            least = min(range(len(groups)), key=lambda one: (round(outside[one], 12), one))
            best.append(groups[least])
            risks.append(
                max(
                    [math.log(outside[least]) if outside[least] > 1e-15 else -math.inf, *risks[-1:]]
                )
            )
        opened = [level for level, risk in enumerate(risks) if risk < limit]
        if risks[depth] < limit or index == steps - 1:
            return index, best[max(opened, default=0)]
    raise AssertionError


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("tied", [False, True])
def test_w_is_where_brute_force_first_misses(depth: int, tied: bool) -> None:
    scores = make(30, tied=tied)
    names = [
        f"row {row:02}" for row in range(30)
    ]  # each row a group of its own, so that its W is the order statistic
    rule = ag.AgreeStop("1/2", scores.times, 1, tree=TREE, depth=depth)
    found = calibrate_quietly(rule, scores, groups=names).kth_values
    assert found is not None and scores.labels is not None
    missed = tight = 0
    for row in range(30):
        cells, label = scores.log_confidence[row, :, 0], CLASSES[scores.labels[row]]
        subsets = [
            list(some) for size in range(1, 5) for some in itertools.combinations(range(5), size)
        ]
        ends = np.unique(
            np.round([np.logaddexp.reduce(cell[some]) for cell in cells for some in subsets], 9)
        ).tolist()
        tried = [
            ends[0] - 1,
            *((low + high) / 2 for low, high in pairwise(ends) if high - low > 1e-7),
            1.0,
        ]
        wrong = [limit for limit in tried if label not in brute_force(cells, limit, depth)[1]]
        right = [limit for limit in tried if limit < min(wrong, default=math.inf)]
        assert found[row] <= min(wrong, default=math.inf) + 1e-8
        tight += max(right, default=-math.inf) <= found[row] + 1e-8
        missed += bool(wrong)
    # Where sums that tie differ in the last bit, W may be a little safer than exact arithmetic.
    assert missed > 5 and tight >= (27 if tied else 30)
    together = calibrate_quietly(replace(rule, depth=None), scores, groups=names).kth_values
    assert together is not None and (together <= found + 1e-12).all()


@pytest.mark.parametrize("depth", DEPTHS)
def test_misses_of_every_bag_stay_within_the_target(depth: int | None) -> None:
    """Few letters, so that most numbers tie; the new example is each of the bag in turn."""
    scores, rng, worst = make(12, steps=2, seed=5, tied=True), np.random.default_rng(2), 0.0
    for trial in range(40):
        size, target = [(3, "1/2"), (4, "3/4"), (5, "2/3")][trial % 3]
        few = rng.choice(12, rng.integers(1, 5))
        bag, missed = scores.rows(rng.choice(few, size)), {False: 0.0, True: 0.0}
        assert bag.labels is not None
        for new in range(size):
            others = bag.rows(np.arange(size) != new)
            calibrated = calibrate_quietly(
                ag.AgreeStop(target, scores.times, 1, tree=TREE, depth=depth), others
            )
            for plain in missed:
                decisions = (at_kth_values(calibrated) if plain else calibrated).decide(
                    bag.rows(np.array([new]))
                )
                missed[plain] += not decisions.sets[0, bag.labels[new]]
        assert max(missed.values()) / size <= float(1 - Fraction(target)) + 1e-12
        worst = max(worst, missed[True] / size)
    assert worst > 0


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("conditions", ["plain", "groups", "delta", "people", "final", "abstain"])
def test_batches_streams_files_and_brute_force_agree(
    depth: int | None, conditions: str, tmp_path: Path
) -> None:
    given: dict[str, dict[str, Any]] = {
        "groups": {"groups": np.arange(150) % 2},
        "people": {"people": np.arange(150) % 30},
    }
    settings: dict[str, dict[str, Any]] = {
        "delta": {"delta": 0.1},
        "abstain": {"at_end": "abstain"},
    }
    known = settings.get(conditions, {})
    scores, new = make(150), make(25, seed=1)
    rule = ag.AgreeStop(0.8, scores.times, 1, tree=TREE, depth=depth, **known)
    labels = "final" if conditions == "final" else None
    calibrated = rule.calibrate(scores, labels, **given.get(conditions, {}))
    calibrated.save(tmp_path / "rule")
    again, inside = (
        ag.load_rule(tmp_path / "rule"),
        np.arange(25) % 2 if conditions == "groups" else None,
    )
    decisions = calibrated.decide(new, groups=inside)
    assert_same_decisions(again.decide(new, groups=inside), decisions)
    for row in range(25):
        session = again.stream(group=None if inside is None else int(inside[row]))
        found = next(one for one in map(session.push, new.log_confidence[row]) if one is not None)
        assert found == decisions[row] and found.names == decisions[row].names
        limit = float(calibrated.thresholds[0 if inside is None else row % 2])
        index, node = brute_force(new.log_confidence[row, :, 0], limit, depth or 3)
        assert found.index == index
        names = {CLASSES[one] for one in found.classes}
        if found.answered and not (conditions == "final" and index == 2):
            assert names == node
    assert decisions.names == [one.names for one in decisions]
    for one in decisions:
        if one.answered:
            assert one.names in {
                (name,) for name in ("animal", "vehicle", "pet", "any class", *CLASSES)
            }
        else:
            assert one.names == () and one.classes == ()


@pytest.mark.parametrize(
    "conditions", ["plain", "groups", "delta", "people", "final", "abstain", "ties"]
)
def test_one_pass_gives_each_depth_the_decision_of_its_own_rule(
    conditions: str, tmp_path: Path
) -> None:
    given: dict[str, dict[str, Any]] = {
        "groups": {"groups": np.arange(150) % 2},
        "people": {"people": np.arange(150) % 30},
    }
    settings: dict[str, dict[str, Any]] = {
        "delta": {"delta": 0.1},
        "abstain": {"at_end": "abstain"},
        "ties": {"break_ties": True},
    }
    scores, new, labels = make(150), make(40, seed=1), "final" if conditions == "final" else None
    inside = np.arange(40) % 2 if conditions == "groups" else None

    def calibrate(depth: int | str) -> ag.CalibratedRule:
        rule = ag.AgreeStop(
            0.8, scores.times, 1, tree=TREE, depth=depth, **settings.get(conditions, {})
        )
        return rule.calibrate(scores, labels, **given.get(conditions, {}))

    calibrate("each").save(tmp_path / "rule")
    each = ag.load_rule(tmp_path / "rule")
    decisions = each.decide(new, groups=inside, first=0)
    found = ag.evaluate(decisions, new)
    assert (
        each.thresholds.shape == ((2, 3) if conditions == "groups" else (3,))
        and found.by_depth is not None
    )
    assert len({float(one) for one in each.thresholds.ravel()}) > 1
    for depth, one in enumerate(decisions.by_depth, 1):
        alone = calibrate(depth).decide(new, groups=inside, first=0)
        assert_same_decisions(
            replace(one, best=alone.best, draw=alone.draw, class_counts=alone.class_counts), alone
        )
        expected = ag.evaluate(alone, new)
        assert found.by_depth[depth - 1].key == depth
        assert float(found.by_depth[depth - 1].latency) == float(expected.latency)
        assert float(found.by_depth[depth - 1].coverage) == float(expected.coverage)
    assert np.array_equal(decisions.sets, decisions.by_depth[-1].sets)
    assert np.array_equal(
        decisions.stop_index, np.max([one.stop_index for one in decisions.by_depth], axis=0)
    )
    waited = 0
    for row in range(40):
        session, time = each.stream(row, group=None if inside is None else int(inside[row])), 0
        while session.decision is None:
            session.push(new.log_confidence[row, time])
            time += 1
            for depth, known in enumerate(session.by_depth):
                assert (known is None) == (decisions.by_depth[depth].stop_time[row] > time)
            waited += session.decision is None and session.by_depth[0] is not None
        assert session.decision == decisions[row] and session.by_depth == decisions[row].by_depth
        assert [one.names for one in decisions[row].by_depth] == [
            one[row].names for one in decisions.by_depth
        ]
    assert waited > 5, "the coarse answer often comes first"
    assert "depth 1" in str(found) and "depth 3" in str(found)


def test_one_threshold_for_all_depths_is_right_at_all_of_them() -> None:
    """With the λ of depth=None the first answers of every depth are right together as often as
    promised.
    """
    scores, test = make(300, seed=3), make(500, seed=4)
    rule = ag.AgreeStop(0.8, scores.times, 1, tree=TREE, depth=None).calibrate(scores)
    limit, right = float(rule.thresholds[0]), 0
    assert test.labels is not None
    for row in range(500):
        answers = [
            brute_force(test.log_confidence[row, :, 0], limit, depth)[1] for depth in (1, 2, 3)
        ]
        right += all(CLASSES[test.labels[row]] in answer for answer in answers)
    assert right / 500 > 0.75
    times = [
        ag.AgreeStop(0.8, scores.times, 1, tree=TREE, depth=depth)
        .calibrate(scores)
        .decide(test)
        .stop_time.mean()
        for depth in (1, 2, 3)
    ]
    assert times == sorted(times) and times[0] < times[2]


@pytest.mark.parametrize(
    ("depth", "words"),
    [
        (1, "node at depth 1 or finer"),
        ("each", "each depth by itself"),
        (None, "all depths together"),
    ],
)
def test_the_guarantee_names_the_depth(depth: Any, words: str) -> None:
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"people": np.arange(99), "for_people": 0.1},
        {"labels": "final"},
    )
    for conditions in kinds:
        rule = ag.AgreeStop(0.8, (1, 2, 3), 1, tree=TREE, depth=depth)
        assert words in rule.calibrate(make(99), **conditions).guarantee


def test_names_of_nodes() -> None:
    assert TREE.depth == 3 and TREE.classes == ("cat", "dog", "cow", "car", "ship")
    tree = TREE.for_classes(CLASSES)
    for depth, groups in enumerate(GROUPS):
        rows = tree.nodes[depth]
        assert {frozenset(np.array(CLASSES)[rows == node].tolist()) for node in rows} == {
            frozenset(group) for group in groups
        }
    assert (
        tree.name_of(np.isin(CLASSES, ["cat", "dog"])) == "pet"
        and tree.name_of(np.isin(CLASSES, ["cow"])) == "cow"
    )
    assert "coverage" in str(
        ag.evaluate(
            ag.AgreeStop(0.8, (1, 2, 3), 1, tree=TREE).calibrate(make(100)).decide(make(50)),
            make(50),
        )
    )


def rule(**options: Any) -> ag.AgreeStop:
    return ag.AgreeStop(
        0.8, (1, 2, 3), options.pop("max_set_size", 1), tree=options.pop("tree", TREE), **options
    )


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ag.Tree({"a": ("x", "y"), "b": ("x",)}), "class 'x' twice"),
        (lambda: ag.Tree({"a": ("x", "x")}), "class 'x' twice"),
        (lambda: ag.Tree({"a": None}), "1 classes"),
        (lambda: ag.Tree({"a": (), "b": None}), "group 'a'"),
        (lambda: ag.Tree({"": ("x", "y")}), "named"),
        (lambda: rule(tree={"a": ("x", "y")}), "give ag.Tree"),
        (lambda: rule(depth=4), "depth is 4"),
        (lambda: rule(depth=0), "depth is 0"),
        (lambda: rule(depth="all"), "depth is 'all': give a depth from 1 to 3, 'each', or None"),
        (
            lambda: rule(at_end="abstain", give_up=ag.GiveUp.fit(make(80), max_set_size=1)),
            "give_up",
        ),
        (lambda: ag.AdaptiveRule(rule(depth="each").calibrate(make(50))), "one threshold"),
        (lambda: rule(max_set_size=2), "max_set_size=2"),
        (lambda: rule(fill=True), "fill or trim"),
        (lambda: rule(risk=ag.FixedTime()), "risk=FixedTime"),
        (lambda: rule(accumulated=True, delta=0.1), "accumulated"),
        (lambda: rule().calibrate(replace(make(50), classes=None)), "no class names"),
        (
            lambda: rule().calibrate(
                replace(make(50), classes=("cat", "car", "dog", "ship", "bee"))
            ),
            "lacks class 'bee'",
        ),
        (
            lambda: rule(tree=ag.Tree({"a": (*CLASSES, "bee"), "b": ("fox",)})).calibrate(make(50)),
            "class 'bee'",
        ),
        (
            lambda: (
                rule().calibrate(make(50)).decide(replace(make(9), classes=tuple(sorted(CLASSES))))
            ),
            "in its order",
        ),
        (lambda: ag.tune(rule(), make(100), n_calibration=30), "has a tree"),
    ],
)
def test_wrong_input_is_one_sentence(call: Any, match: str) -> None:
    with pytest.raises(ag.InputError, match=match) as caught:
        call()
    assert_one_sentence(str(caught.value))


def test_nodes_that_rounding_may_swap_are_misses() -> None:
    """Where another run may answer the other group, the rule waits for what tells them apart."""

    def ahead(lead: float) -> ag.Scores:
        logits = np.zeros((60, 2, 1, 5))
        logits[:, 0, 0] = (0, -lead, -9, -9, -9)  # cat and car
        logits[:, 1, 0, 0] = 9
        logs, labels = ag.log_confidence(logits), np.zeros(60, int)
        return ag.Scores(logs, labels, (1, 2), CLASSES, rounding=1e-4)

    calibrated = ag.AgreeStop(0.9, (1, 2), 1, tree=TREE, depth=1).calibrate(ahead(1e-6))
    assert float(ag.evaluate(calibrated.decide(ahead(-1e-6)), ahead(-1e-6)).coverage) == 1
