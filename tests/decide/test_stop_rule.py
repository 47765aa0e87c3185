"""StopRule: the promise over enumerated bags with ties, batches and streams, files, evaluation, and
wrong input.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from agreestop.common import Floats
from tests.decide.strategies import (
    Risks,
    assert_one_sentence,
    assert_same_decisions,
    at_kth_values,
    calibrate_quietly,
)

INF = math.inf
RISKS = ((0.0, 1.0), (1.0, 0.0), (1.0, 1.0), (-INF, 1.0), (INF, 0.0), (INF, INF))
ENDS = ("answer", "abstain")


def letters(
    losses: tuple[float, ...], risks: tuple[tuple[float, ...], ...] = RISKS
) -> list[tuple[Any, Any]]:
    """Examples with few risks and losses, so that most of them tie."""
    return [(risk, loss) for risk in risks for loss in itertools.product(losses, repeat=2)]


def bags(alphabet: list[Any], size: int, most: int, seed: int = 0) -> Iterator[list[Any]]:
    """All bags of `size` examples, or `most` random ones where there are more."""
    count = math.comb(len(alphabet) + size - 1, size)
    if count <= most:
        yield from map(list, itertools.combinations_with_replacement(alphabet, size))
        return
    rng = np.random.default_rng(seed)
    for _ in range(most):
        few = rng.choice(len(alphabet), rng.integers(1, 5))  # few letters in a bag: ties
        yield [alphabet[one] for one in rng.choice(few, size)]


def as_arrays(bag: list[Any]) -> tuple[Floats, Floats]:
    return np.array([risk for risk, _ in bag], dtype=float), np.array(
        [loss for _, loss in bag], dtype=float
    )


def paid(rule: ag.CalibratedRule, risk: Floats, loss: Floats, **groups: Any) -> Floats:
    """What decisions cost, (n,)."""
    decisions = rule.decide(risk, **groups)
    return np.where(decisions.answered, loss[np.arange(len(loss)), decisions.stop_index], 0.0)


def deployed(rule: ag.StopRule, *data: Any, **conditions: Any) -> ag.CalibratedRule | None:
    """The calibrated rule; None where nothing can be promised."""
    try:
        return calibrate_quietly(rule, *data, **conditions)
    except ag.InputError as refused:
        assert_one_sentence(str(refused))
        return None


def mean_cost(rule: ag.StopRule, bag: list[Any], at_order_statistics: bool = False) -> float:
    """The mean cost over which example of the bag is the new one; a refusal costs nothing."""
    risk, loss = as_arrays(bag)
    total = 0.0
    for new in range(len(bag)):
        others = np.arange(len(bag)) != new
        calibrated = deployed(rule, risk[others], loss[others])
        if calibrated is not None:
            calibrated = at_kth_values(calibrated) if at_order_statistics else calibrated
            total += float(paid(calibrated, risk[new : new + 1], loss[new : new + 1])[0])
    return total / len(bag)


@pytest.mark.parametrize("at_end", ENDS)
@pytest.mark.parametrize(("size", "target"), [(2, "1/2"), (4, "1/2"), (4, "3/4"), (6, "2/3")])
def test_misses_of_every_bag_stay_within_the_target(at_end: str, size: int, target: str) -> None:
    rule, worst = ag.StopRule(target=target, at_end=at_end), 0.0
    for bag in bags(letters((0.0, 1.0)), size, 120):
        worst = max(worst, mean_cost(rule, bag))
        assert worst <= float(1 - Fraction(target)) + 1e-12, bag
    assert worst > 0


@pytest.mark.parametrize("at_end", ENDS)
@pytest.mark.parametrize(
    ("largest", "max_loss", "losses"), [(1.0, "1/2", (0.0, 0.5, 1.0)), (4.0, "1", (0.0, 1.0, 4.0))]
)
def test_the_mean_loss_of_every_bag_stays_within_max_loss(
    at_end: str, largest: float, max_loss: str, losses: tuple[float, ...]
) -> None:
    rule, worst = ag.StopRule(max_loss=max_loss, largest_loss=largest, at_end=at_end), 0.0
    for bag in bags(letters(losses), 4, 150, seed=1):
        worst = max(worst, mean_cost(rule, bag))
        assert worst <= float(Fraction(max_loss)) + 1e-9, bag
    assert worst > 0


def test_a_threshold_without_the_new_example_breaks_the_promise() -> None:
    """The control: the share of misses among the calibration examples themselves is no promise."""
    broken = 0
    for bag in bags(letters((0.0, 1.0), RISKS[:3]), 3, 400):
        risk, loss = as_arrays(bag)
        total = 0.0
        for new in range(3):
            others = np.arange(3) != new
            found = [t for t in (0.5, 1.5) if _misses(risk[others], loss[others], t).mean() <= 0.5]
            total += _misses(risk[[new]], loss[[new]], max(found, default=-1.0))[0]
        broken += total / 3 > 0.5
    assert broken


def _misses(risk: Floats, loss: Floats, limit: float) -> Floats:
    opens = risk < limit
    return np.where(opens.any(axis=1), loss[np.arange(len(loss)), opens.argmax(axis=1)], 0.0)


@pytest.mark.parametrize("at_end", ENDS)
def test_groups_keep_the_promise_by_themselves(at_end: str) -> None:
    rule = ag.StopRule(target="1/2", at_end=at_end)
    alphabet = [
        (letter, group) for letter in letters((0.0, 1.0), RISKS[:4]) for group in ("a", "b")
    ]
    for bag in bags(alphabet, 5, 150, seed=2):
        risk, loss = as_arrays([letter for letter, _ in bag])
        groups = np.array([group for _, group in bag])
        for name in np.unique(groups):
            inside, total = np.flatnonzero(groups == name), 0.0
            if len(inside) == 1:
                continue  # calibration never sees this group, and nothing is promised for it
            for new in inside:
                others = np.arange(5) != new
                calibrated = deployed(rule, risk[others], loss[others], groups=groups[others])
                if calibrated is not None:
                    total += float(paid(calibrated, risk[[new]], loss[[new]], groups=[name])[0])
            assert total / len(inside) <= 0.5, bag


def test_weights_keep_the_promise_under_the_shift() -> None:
    """The new example is example i with probability proportional to its weight."""
    rule = ag.StopRule(target="1/2", at_end="abstain")
    alphabet = [
        (letter, weight) for letter in letters((0.0, 1.0), RISKS[:4]) for weight in (1.0, 2.0)
    ]
    for bag in bags(alphabet, 4, 150, seed=3):
        risk, loss = as_arrays([letter for letter, _ in bag])
        weights = np.array([weight for _, weight in bag])
        total = 0.0
        for new in range(4):
            others = np.arange(4) != new
            calibrated = calibrate_quietly(
                rule, risk[others], loss[others], weights=weights[others], max_weight=2.0
            )
            total += weights[new] * float(paid(calibrated, risk[[new]], loss[[new]])[0])
        assert total / weights.sum() <= 0.5 + 1e-12, bag


@pytest.mark.parametrize("at_end", ENDS)
def test_delta_holds_over_draws_of_few_letters(at_end: str) -> None:
    """Exactly: over all draws of n letters, P(deployed, and the misses of a new letter are more
    than α) ≤ δ.
    """
    alphabet = [((0.0, 1.0), (1.0, 0.0)), ((1.0, 0.0), (0.0, 1.0)), ((1.0, 1.0), (0.0, 0.0))]
    chances, n, alpha, delta = np.array([0.3, 0.2, 0.5]), 7, 0.25, 0.5
    risk, loss = as_arrays(alphabet)
    rule, bad = ag.StopRule(target=1 - alpha, delta=delta, at_end=at_end), 0.0
    for draw in itertools.combinations_with_replacement(range(3), n):
        counts = np.bincount(draw, minlength=3)
        ways = math.factorial(n) / math.prod(math.factorial(count) for count in counts.tolist())
        calibrated = deployed(rule, risk[list(draw)], loss[list(draw)])
        if calibrated is not None and paid(calibrated, risk, loss) @ chances > alpha:
            bad += ways * float(np.prod(chances**counts))
    assert 0 < bad <= delta


def make(n: int, steps: int = 6, seed: int = 0) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    risk = np.exp(-np.cumsum(rng.random((n, steps)), axis=1))
    return risk, (rng.random((n, steps)) < risk).astype(float)


@pytest.mark.parametrize(
    "rule",
    [
        ag.StopRule(0.8),
        ag.StopRule(0.8, at_end="abstain"),
        ag.StopRule(max_loss=0.2),
        ag.StopRule(0.8, delta=0.1),
    ],
    ids=str,
)
def test_batches_streams_files_and_repeats_agree(rule: ag.StopRule, tmp_path: Path) -> None:
    calibrated = rule.calibrate(*make(150))
    risk, loss = make(60, seed=1)
    risk[0], risk[1], risk[2] = INF, -INF, np.where(np.arange(6) == 4, 0.0, INF)
    decisions = calibrated.decide(risk)
    assert_same_decisions(calibrated.decide(risk), decisions)
    assert_same_decisions(rule.calibrate(*make(150)).decide(risk), decisions)
    assert_same_decisions(calibrated.decide(risk.tolist()), decisions)
    calibrated.save(tmp_path / "rule")
    again = ag.load_rule(tmp_path / "rule")
    assert_same_decisions(again.decide(risk), decisions)
    assert again.guarantee == calibrated.guarantee and repr(again.rule) == repr(calibrated.rule)
    for row in range(60):
        session = again.stream()
        found = next(one for one in map(session.push, risk[row]) if one is not None)
        assert found == decisions[row]
    assert (
        decisions.stop_index[1] == 0
        and decisions.stop_index[2] == 4
        and decisions.stop_index[0] == 5
    )
    assert decisions[0].answered == (rule.at_end == "answer")
    limit = calibrated.thresholds[0]
    assert calibrated.kth_values is not None and limit <= calibrated.kth_values[0]
    np.testing.assert_array_equal(decisions.sets[:, 0], decisions.answered)
    result = ag.evaluate(decisions, loss)
    assert result.answered == decisions.answered.mean()
    expected = np.where(decisions.answered, loss[np.arange(60), decisions.stop_index], 0)
    assert (result.wrong is None) == (rule.max_loss is not None)
    assert result.wrong in (None, pytest.approx(expected.mean())) and result.kept == pytest.approx(
        1 - expected.mean()
    )
    assert result.coverage == pytest.approx(result.answered - expected.mean())
    assert (result.cost is None) == (rule.max_loss is None)
    assert result.by_class == () and sum(one.n for one in result.by_stop_time) == 60


@pytest.mark.parametrize(
    "rule",
    [ag.StopRule(0.75), ag.StopRule(max_loss=0.25), ag.StopRule(0.75, at_end="abstain")],
    ids=str,
)
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e6])
def test_float32_and_float64_decide_alike(rule: ag.StopRule, scale: float) -> None:
    """Few values, each shared by many inputs: thirds are not the same number in float32."""
    differ = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        risk = rng.integers(0, 9, (80, 4)) / 3 * scale
        loss = (rng.random((80, 4)) < risk / scale / 8).astype(float)
        loss[:, -1] = 0
        calibrated = calibrate_quietly(rule, risk[:50], loss[:50])
        rounded = calibrate_quietly(rule, risk[:50].astype(np.float32), loss[:50])
        expected = calibrated.decide(risk[50:])
        for one in (
            calibrated.decide(risk[50:].astype(np.float32)),
            rounded.decide(risk[50:]),
            rounded.decide(risk[50:].astype(np.float32)),
        ):
            assert_same_decisions(one, expected)
        plain = at_kth_values(calibrated)
        differ += (
            plain.decide(risk[50:]).stop_index
            != plain.decide(risk[50:].astype(np.float32)).stop_index
        ).any()
    assert differ, "the control: on order statistics themselves they differ"


def test_thresholds_lie_in_gaps() -> None:
    risk = np.repeat([[0.2], [0.4], [0.6], [0.8]], 10, axis=0)
    loss = (risk > 0.5).astype(float)
    calibrated = ag.StopRule(0.8, at_end="abstain").calibrate(risk, loss)
    assert calibrated.kth_values is not None and calibrated.kth_values[0] == 0.6
    assert 0.4 < calibrated.thresholds[0] < 0.6


def test_equal_risks_of_one_input_stay_equal() -> None:
    """A risk that stays where it is stops at its first checkpoint, so that later losses never
    count.
    """
    risk, loss = np.tile([[0.5, 0.5, 0.5]], (40, 1)), np.tile([[0.0, 1.0, 0.0]], (40, 1))
    for rule in (ag.StopRule(0.9), ag.StopRule(max_loss=0.1)):
        assert (rule.calibrate(risk, loss).decide(risk + 0.0).stop_index == 0).all()


def test_risks_of_minus_infinity_and_the_end() -> None:
    """Wrong at a risk of -∞ and right at the end: λ = -∞ keeps the promise, so it is deployed."""
    risk, loss = np.tile([[-INF, 1.0]], (40, 1)), np.tile([[1.0, 0.0]], (40, 1))
    for rule in (ag.StopRule(0.9), ag.StopRule(max_loss=0.1)):
        decisions = rule.calibrate(risk, loss).decide(risk[:5])
        assert (decisions.stop_index == 1).all() and decisions.answered.all()


def test_infinite_risks_alone() -> None:
    risk = np.full((40, 3), INF)
    calibrated = ag.StopRule(0.9, at_end="abstain").calibrate(risk, np.ones((40, 3)))
    decisions = calibrated.decide(risk)
    assert not decisions.answered.any() and (decisions.stop_index == 2).all()
    monitor = ag.DriftMonitor(calibrated)
    assert monitor.observe(decisions) is None


def test_rows_used_twice_are_refused() -> None:
    calibrated = ag.StopRule(0.8).calibrate(*make(100))
    risk, loss = make(100)
    assert calibrated.saw(risk, loss)
    with pytest.raises(ag.InputError, match="used for calibration"):
        ag.evaluate(calibrated.decide(risk[:30]), loss[:30])
    with pytest.raises(ag.InputError, match="used for calibration"):
        ag.evaluate(calibrated.decide(risk[:30].astype(np.float32)), loss[:30])
    other = make(300, seed=5)
    assert not calibrated.decide(other[0]).reuse and not calibrated.saw(*other)
    assert not any("compared" in note for note in calibrated.decide(other[0]).notes)


def test_evaluation_by_group_and_person() -> None:
    calibrated = ag.StopRule(0.8, at_end="abstain").calibrate(*make(150))
    risk, loss = make(60, seed=1)
    result = ag.evaluate(
        calibrated.decide(risk), loss, groups=np.arange(60) % 2, people=np.arange(60) % 6
    )
    assert result.by_group is not None and [one.n for one in result.by_group] == [30, 30]
    assert (
        result.by_person is not None
        and len(result.by_person) == 6
        and result.people_below is not None
    )
    assert "wrong" in str(result) and "set size" not in str(result) and "answered=" in repr(result)


def test_repeated_splits_count_losses() -> None:
    splits = ag.repeat_splits(
        ag.StopRule(0.8, at_end="abstain"), *make(300), n_calibration=100, repeats=20
    )
    assert 0.75 < splits.coverage < 0.95 and splits.normalized_latency < 1


GOOD = make(60)
HALF = np.repeat([0, 1], 30)


def test_a_loss_counts_where_rounding_may_bring_it_about() -> None:
    """Two risks of an input lie so near each other that another run may stop at the second one."""
    rng = np.random.default_rng(0)
    risk = 1 + rng.random((60, 1)) + [0.0, 1e-9]
    loss = np.array([[0.0, 1.0]]).repeat(60, axis=0)
    rule = ag.StopRule(max_loss=0.2, at_end="abstain").calibrate(risk, loss)
    assert rule.kth_values is not None and np.isinf(rule.kth_values).all()
    assert np.isfinite(rule.thresholds).all()


@pytest.mark.parametrize(
    ("loss", "all_may_stop"), [(0.1199, True), (0.1201, False), (0.12 + 1e-13, False)]
)
def test_losses_are_added_without_rounding_down(loss: float, all_may_stop: bool) -> None:
    """(10 losses + 1) / 11 is just below 0.2, or just above it."""
    risk = np.arange(1.0, 11.0)[:, None] * [1.0, 0.5]
    rule = ag.StopRule(max_loss=0.2, at_end="abstain").calibrate(risk, np.full((10, 2), loss))
    assert np.isinf(rule.thresholds[0]) == all_may_stop


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ag.StopRule(), "either a target"),
        (lambda: ag.StopRule(0.9, max_loss=0.1), "either a target"),
        (lambda: ag.StopRule(1.5), "target is 1.5"),
        (lambda: ag.StopRule(0.9, at_end="stop"), "at_end is 'stop'"),
        (lambda: ag.StopRule(0.9, largest_loss=2.0), "leave out largest_loss"),
        (lambda: ag.StopRule(max_loss=2.0), "max_loss is 2"),
        (lambda: ag.StopRule(max_loss="x"), "max_loss is 'x'"),
        (lambda: ag.StopRule(max_loss=0.1, largest_loss=-1.0), "largest_loss is -1.0"),
        (lambda: ag.StopRule(max_loss=0.1, delta=0.1), "leave out delta"),
        (lambda: ag.StopRule(0.9, checkpoints=ag.Schedule([(1, 1), (2, 2)])), "no members to join"),
        (lambda: ag.StopRule(0.9).calibrate(GOOD[0]), "loss is missing"),
        (lambda: ag.StopRule(0.9).calibrate(GOOD[0], GOOD[1][:, :2]), "one loss for each risk"),
        (lambda: ag.StopRule(0.9).calibrate(GOOD[0], GOOD[1][:, 0]), "one loss for each risk"),
        (lambda: ag.StopRule(0.9).calibrate(GOOD[0][:, 0], GOOD[1][:, 0]), "risk has shape"),
        (lambda: ag.StopRule(0.9).calibrate(GOOD[0], GOOD[1] / 2), "losses of 0 and 1"),
        (lambda: ag.StopRule(0.9).calibrate(GOOD[0], 2 * GOOD[1]), "loss reaches 2"),
        (lambda: ag.StopRule(max_loss=0.5).calibrate(GOOD[0], 2 * GOOD[1]), "loss reaches 2"),
        (lambda: ag.StopRule(0.9).calibrate(GOOD[0], -GOOD[1]), "loss holds -1"),
        (lambda: ag.StopRule(0.9).calibrate(GOOD[0], GOOD[1] * np.nan), "loss holds nan"),
        (lambda: ag.StopRule(0.9).calibrate(GOOD[0] * np.nan, GOOD[1]), "risk holds nan"),
        (lambda: ag.StopRule(0.9).calibrate(GOOD[0] * 1e200, GOOD[1]), "too large"),
        (lambda: ag.StopRule(0.9).calibrate(*GOOD, times=(1, 2)), "times names 2"),
        (
            lambda: ag.StopRule(0.9, (1, 9)).calibrate(*GOOD, times=range(1, 7)),
            "lacks the rule's checkpoint 9",
        ),
        (lambda: ag.StopRule(0.9).calibrate(GOOD[0][:8], GOOD[1][:8]), "at least 9"),
        (lambda: ag.StopRule(max_loss=0.1).calibrate(GOOD[0][:8], GOOD[1][:8]), "at least 9"),
        (
            lambda: ag.StopRule(0.9).calibrate(GOOD[0], np.ones_like(GOOD[1])),
            "last checkpoint are above the promise",
        ),
        (
            lambda: ag.StopRule(0.5).calibrate(GOOD[0], GOOD[1] * 0 + HALF[:, None], groups=HALF),
            "group 1 at the last checkpoint are above the promise",
        ),
        (
            lambda: ag.StopRule(max_loss=0.1).calibrate(*GOOD, groups=["a"] * 55 + ["b"] * 5),
            "examples of group b",
        ),
        (
            lambda: ag.StopRule(max_loss=0.1).calibrate(*GOOD, weights=np.ones(60), max_weight=1.0),
            "no promise with weights",
        ),
        (
            lambda: ag.StopRule(max_loss=0.1).calibrate(*GOOD, people=np.arange(60) % 20),
            "no promise with people",
        ),
        (lambda: ag.StopRule(0.9).calibrate(ag.simulate_scores(20)), "these are Scores"),  # type: ignore[arg-type]
        (lambda: ag.StopRule(0.9).calibrate(GOOD[0], labels=GOOD[1]), "labels"),
        (lambda: ag.StopRule(max_loss=5, largest_loss=1.0), "max_loss is 5"),
        (lambda: ag.StopRule(0.8).calibrate(*GOOD).decide(*make(9, seed=4)), "checkpoints holds"),  # type: ignore[arg-type]
        (lambda: ag.StopRule(0.9).decide(GOOD[0]), "not calibrated yet"),
        (lambda: ag.tune(ag.StopRule(0.9), *GOOD), "nothing to tune"),
        (lambda: ag.AdaptiveRule(ag.StopRule(0.8).calibrate(*GOOD)), "does not have"),
        (lambda: ag.StopRule(0.8).calibrate(*GOOD).decide(GOOD[0][:, :3]), "the rule has 6"),
        (lambda: ag.StopRule(0.8).calibrate(*GOOD).stream().push([1.0, 2.0]), "push one number"),
        (lambda: ag.StopRule(0.8).calibrate(*GOOD).stream().push(math.nan), "push one number"),
        (
            lambda: ag.evaluate(
                ag.StopRule(0.8).calibrate(*GOOD).decide(make(9, seed=4)[0]), np.zeros(9, int)
            ),
            "shape",
        ),
        (
            lambda: ag.evaluate(
                ag.StopRule(0.8).calibrate(*GOOD).decide(make(9, seed=4)[0]), np.full((9, 6), 0.5)
            ),
            "0 and 1",
        ),
        (
            lambda: ag.evaluate(
                ag.StopRule(0.8).calibrate(*GOOD).decide(make(9, seed=4)[0]), np.zeros((9, 5))
            ),
            "shape",
        ),
        (lambda: ag.StopRule(0.8).calibrate(*GOOD).stream().push(1e200), "at most 1e.150 in size"),
        (lambda: ag.StopRule(0.8).calibrate(*GOOD).stream().push(-1e200), "at most 1e.150 in size"),
    ],
)
def test_wrong_input_is_one_sentence(call: Any, match: str) -> None:
    with pytest.raises(ag.InputError, match=match) as caught:
        call()
    assert_one_sentence(str(caught.value))


def test_too_few_examples_to_stop_are_said_where_abstaining_is_possible() -> None:
    with pytest.warns(ag.CalibrationWarning, match="can never stop anything: it needs at least 9"):
        calibrated = ag.StopRule(0.9, at_end="abstain").calibrate(GOOD[0][:8], GOOD[1][:8])
    assert not calibrated.decide(GOOD[0][8:]).answered.any()


def test_labels_give_no_alarm() -> None:
    calibrated = ag.StopRule(0.8).calibrate(*GOOD)
    monitor = ag.DriftMonitor(calibrated)
    decisions = calibrated.decide(make(9, seed=4)[0])
    monitor.observe(decisions)
    with pytest.raises(ag.InputError, match="losses in place of labels"):
        monitor.update(decisions, np.zeros(9, int))


def test_a_wrong_last_answer_counts_where_an_early_one_would_be_wrong_too() -> None:
    """Each of four examples in turn is the new one. A rule that forgot the end would be wrong in
    all of them.
    """
    risk = np.array([[-math.inf, 1.0]] * 4)
    loss = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    paid = []
    for new in range(4):
        others = np.arange(4) != new
        try:
            calibrated = calibrate_quietly(ag.StopRule("1/2"), risk[others], loss[others])
        except ag.InputError:
            paid.append(0.0)
            continue
        paid.append(loss[new, calibrated.decide(risk[new : new + 1]).stop_index[0]])
    assert np.mean(paid) <= 0.5


def test_risks_over_orders_of_magnitude_still_stop() -> None:
    rng = np.random.default_rng(0)
    logs = rng.uniform(-10, 0, (600, 4))
    loss = rng.random((600, 4)) < 0.5 * np.exp(logs / 5)
    for risk in (logs, np.exp(logs), np.exp(2 * logs) * 1e6):
        decisions = (
            ag.StopRule(0.8, at_end="abstain").calibrate(risk[:300], loss[:300]).decide(risk[300:])
        )
        assert decisions.answered.mean() > 0.3
    group = np.arange(600) % 2
    scaled = np.exp(logs) * np.where(group == 1, 1e6, 1.0)[:, None]
    calibrated = ag.StopRule(0.8, at_end="abstain").calibrate(
        scaled[:300], loss[:300], groups=group[:300]
    )
    assert (
        calibrated.decide(scaled[300:], groups=group[300:]).answered[group[300:] == 0].mean() > 0.3
    )


def test_losses_beside_risks_that_hold_their_own_are_refused() -> None:
    risk, loss = GOOD
    data = Risks(risk, loss, tuple(range(1, risk.shape[1] + 1)))
    for given in ((data, loss), (data, None, tuple(range(1, risk.shape[1] + 1)))):
        with pytest.raises(ag.InputError, match="hold their own"):
            ag.StopRule(0.8).calibrate(*given)


def test_a_stream_takes_risks_of_any_type_of_numbers() -> None:
    risk, loss = make(200)
    calibrated = ag.StopRule(0.75, at_end="abstain").calibrate(risk, loss)
    row = risk[:1].astype(np.float32)
    (expected,) = calibrated.decide(row)
    session = calibrated.stream()
    found = next(one for value in row[0] if (one := session.push(value)) is not None)
    assert (found.time, found.answered) == (expected.time, expected.answered)
