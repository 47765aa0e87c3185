"""Scores that are rounded otherwise in another run: thresholds keep clear of the values that many
inputs share.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from agreestop.common import Floats, InputError
from tests.decide.strategies import (
    RiskTable,
    TableRisk,
    assert_same_decisions,
    at_kth_values,
    calibrate_quietly,
    reading_of,
    rounded_value_of_each,
    value_of_each,
    without_rounding,
)

ROUNDING = 1e-4
STEPS, CLASSES, MEMBERS = 6, 5, 1
MANY = 10  # inputs of 300: many share the value that an order statistic is
REACH = 0.01  # how far a threshold may move to find a gap


def shared_scores(n: int, seed: int, rounding: float = ROUNDING) -> ag.Scores:
    """Log-confidences from few counts of spikes, so that many inputs share each value, among them
    all at the first step.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, n)
    spikes = (
        rng.random((n, STEPS, MEMBERS, CLASSES))
        < np.where(np.arange(CLASSES) == labels[:, None], 0.7, 0.2)[:, None, None]
    )
    spikes[:, 0] = False
    values = ag.log_confidence(np.cumsum(spikes, axis=1))
    return ag.Scores(values, labels, tuple(range(1, STEPS + 1)), rounding=rounding)


def rounded_otherwise(scores: ag.Scores, seed: int) -> Floats:
    """The log-confidences as another run might compute them: none moves by more than ROUNDING / 4.

    Each input has a factor near 1, as a temperature. Numbers of an input that tie still do, and
    shares of classes move too: a shift that is equal for all classes would cancel in them.
    """
    values = np.asarray(scores.log_confidence)
    largest = np.abs(values).max(axis=(1, 2, 3), keepdims=True)
    noise = np.random.default_rng(seed).uniform(-ROUNDING / 4, ROUNDING / 4, largest.shape)
    return np.asarray(values * (1 + noise / largest))


EVERY = range(1, STEPS + 1)
RULES: dict[str, Any] = {
    "agreestop": ag.AgreeStop(0.8, EVERY, 1),
    "agreestop, fill": ag.AgreeStop(0.8, EVERY, 2, fill=True),
    "stop-aware": ag.SpikeCP(0.8, EVERY, 1, ag.MergeConfidence(), calibration="stop-aware"),
    "simultaneous": ag.SpikeCP(0.8, EVERY, 1, ag.MergeConfidence(), calibration="simultaneous"),
    "bonferroni": ag.SpikeCP(0.8, (2, 4, 6), 1, ag.MergeConfidence()),
    "p-values": ag.SpikeCP(0.8, (2, 4, 6), 1, ag.MergePValues(r=45)),
    "p-values by class": ag.SpikeCP(0.8, (3, 6), 1, ag.MergePValues(r=45), class_conditional=True),
    "votes": ag.SpikeCP(0.8, (2, 4, 6), 1, ag.MajorityVote()),
    "ranks": ag.SpikeCP(0.8, (2, 4, 6), 1, ag.MergeRanks()),
}


@pytest.mark.parametrize("name", RULES)
def test_rounding_does_not_break_ties(name: str) -> None:
    rule, calibration, test = RULES[name], shared_scores(400, 0), shared_scores(300, 1)
    calibrated = rule.calibrate(calibration)
    plain = np.asarray(test.log_confidence)
    columns = [time - 1 for time in rule.checkpoints]
    moved = rounded_otherwise(test, 2)[:, columns]
    assert_same_decisions(calibrated.decide(plain[:, columns]), calibrated.decide(moved))
    assert (calibrated.decide(plain[:, columns]).stop_index < len(rule.checkpoints) - 1).any()
    if not name.startswith(("p-values", "ranks")):
        # On the order statistics themselves the shared values fall on either side, so the check
        # above can fail.
        exact = at_kth_values(calibrated)
        first, second = exact.decide(plain[:, columns]), exact.decide(moved)
        differ = (first.stop_index != second.stop_index) | (first.sets != second.sets).any(axis=1)
        assert np.count_nonzero(differ) >= MANY


def test_rounding_would_break_p_variables_that_do_not_allow_for_it() -> None:
    calibration, test = shared_scores(400, 0), shared_scores(300, 1)
    for name in ("p-values", "ranks"):
        rule = RULES[name]
        columns = [time - 1 for time in rule.checkpoints]
        exact = without_rounding(rule.calibrate(calibration), ROUNDING)
        plain, moved = (
            np.asarray(test.log_confidence)[:, columns],
            rounded_otherwise(test, 2)[:, columns],
        )
        assert not np.array_equal(exact.decide(moved).sets, exact.decide(plain).sets)


def atoms(n: int, seed: int) -> tuple[Floats, Any]:
    """Scores with few different values, such as those of a network that gives one of a few outputs:
    (n, 4, 1, 3), labels (n,).
    """
    rng = np.random.default_rng(seed)
    sure = np.array([0.35, 0.5, 0.6, 0.7, 0.8, 0.9])[
        np.minimum(rng.integers(0, 3, (n, 4)).cumsum(axis=1), 5)
    ]
    labels = rng.integers(0, 3, n)
    right = rng.random((n, 4)) < sure + 0.08
    best = np.where(right, labels[:, None], (labels[:, None] + 1 + (rng.random((n, 4)) < 0.5)) % 3)
    values = np.repeat(((1 - sure) / 2)[:, :, None], 3, axis=2)
    np.put_along_axis(values, best[:, :, None], sure[:, :, None], axis=2)
    return np.log(values)[:, :, None], labels


def coverage(calibrated: ag.CalibratedRule, values: Any, labels: Any) -> float:
    return float(calibrated.decide(values).sets[np.arange(len(labels)), labels].mean())


DRAWS = 12
TARGET = 0.8
FLOATS: dict[str, Any] = {
    "agreestop": ag.AgreeStop(TARGET, (1, 2, 3, 4), 1),
    "agreestop, two classes": ag.AgreeStop(TARGET, (1, 2, 3, 4), 2),
    "stop-aware": ag.SpikeCP(TARGET, (1, 2, 3, 4), 1, calibration="stop-aware"),
    "simultaneous": ag.SpikeCP(TARGET, (1, 2, 3, 4), 1, calibration="simultaneous"),
    "bonferroni": ag.SpikeCP(TARGET, (2, 4), 1),
    "ranks": ag.SpikeCP(TARGET, (2, 4), 1, ag.MergeRanks()),
    "p-values": ag.SpikeCP(TARGET, (2, 4), 1, ag.MergePValues(r=45)),
    "votes": ag.SpikeCP(TARGET, (2, 4), 1, ag.MajorityVote()),
    "groups": ag.AgreeStop(TARGET, (1, 2, 3, 4), 1),
    "cost": ag.AgreeStop(None, (1, 2, 3, 4), 1, loss=1.0 - np.eye(3), max_loss=0.2),
}


@pytest.mark.parametrize("name", FLOATS)
def test_float32_decides_as_float64(name: str) -> None:
    """Mean coverage over 12 draws is at least 0.8 less 0.03, four standard errors of 12 times 400
    inputs and 200 examples.
    """
    rule = FLOATS[name]
    columns = [time - 1 for time in rule.checkpoints]
    found = []
    for seed in range(DRAWS):
        values, labels = atoms(200, seed)
        groups = {"groups": np.arange(200) % 2} if name == "groups" else {}
        new, truth = atoms(400, 1000 + seed)
        given, asked = values[:, columns], new[:, columns]
        inside = {"groups": np.arange(400) % 2} if name == "groups" else {}
        double = rule.calibrate(given, labels, **groups)
        single = rule.calibrate(given.astype(np.float32), labels, **groups)
        answers = double.decide(asked, **inside)
        assert_same_decisions(answers, double.decide(asked.astype(np.float32), **inside))
        assert_same_decisions(answers, single.decide(asked, **inside))
        found.append(float(answers.sets[np.arange(400), truth].mean()))
    assert np.mean(found) >= TARGET - 0.03


def test_order_statistics_as_thresholds_break_in_float32() -> None:
    """A control: on the order statistics themselves, decisions in float32 miss far more often than
    promised.
    """
    lowest = {}
    for name in ("agreestop", "simultaneous", "bonferroni"):
        rule = FLOATS[name]
        columns = [time - 1 for time in rule.checkpoints]
        shares = []
        for seed in range(DRAWS):
            values, labels = atoms(200, seed)
            new, truth = atoms(400, 1000 + seed)
            exact = at_kth_values(rule.calibrate(values[:, columns], labels))
            shares.append(coverage(exact, new[:, columns].astype(np.float32), truth))
        lowest[name] = min(shares)
    assert min(lowest.values()) < TARGET - 0.1, lowest


@pytest.mark.parametrize("temperature", [1.0, 32.0])
def test_the_stated_rounding_is_allowed_for(temperature: float) -> None:
    """Every log-confidence moves by up to what was stated. Mean coverage over 12 draws is at least
    0.8 less 0.03.
    """
    stated, found, broken = 1e-3, [], []
    times = (1, 2, 3, 4)
    risk = ag.TopMass(temperatures=np.full(4, temperature), times=times)
    for seed in range(DRAWS):
        values, labels = atoms(200, seed)
        values = np.log(
            np.exp(values / temperature) / np.exp(values / temperature).sum(axis=-1, keepdims=True)
        )
        new, truth = atoms(400, 1000 + seed)
        new = np.log(
            np.exp(new / temperature) / np.exp(new / temperature).sum(axis=-1, keepdims=True)
        )
        calibrated = ag.AgreeStop(TARGET, times, 1, risk=risk).calibrate(
            ag.Scores(values, labels, times, rounding=stated)
        )
        noise = np.random.default_rng(seed).uniform(-stated / 2, stated / 2, new.shape)
        found.append(coverage(calibrated, np.minimum(new + noise, 0), truth))
        broken.append(coverage(at_kth_values(calibrated), np.minimum(new + noise, 0), truth))
    assert np.mean(found) >= TARGET - 0.03
    assert np.mean(broken) < np.mean(found), "a control: the order statistics themselves"


def test_thresholds_lie_between_the_numbers_that_inputs_share() -> None:
    values, labels = atoms(400, 0)
    calibrated = ag.AgreeStop(TARGET, (1, 2, 3, 4), 1).calibrate(values, labels)
    shared = np.unique(np.round(np.log(1 - np.array([0.35, 0.5, 0.6, 0.7, 0.8, 0.9])), 9))
    assert np.abs(shared - calibrated.thresholds).min() > 1e-3
    assert calibrated.kth_values is not None and calibrated.thresholds < calibrated.kth_values


def test_thresholds_by_group_and_block_keep_clear_too() -> None:
    calibration = shared_scores(400, 0)
    groups = np.arange(400) % 2
    calibrated = ag.AgreeStop(0.8, EVERY, 1).calibrate(calibration, groups=groups)
    assert (
        calibrated.kth_values is not None
        and calibrated.kth_values.shape == calibrated.thresholds.shape == (2,)
    )
    assert (calibrated.thresholds <= calibrated.kth_values - ROUNDING).all()


def test_rounding_travels_in_files(tmp_path: Path) -> None:
    ag.save_scores(tmp_path / "scores.npz", shared_scores(20, 0).rows(slice(0, 10)))
    assert ag.load_scores(tmp_path / "scores.npz").rounding == ROUNDING
    ag.save_scores(tmp_path / "exact.npz", shared_scores(20, 0, rounding=0.0))
    assert ag.load_scores(tmp_path / "exact.npz").rounding == 0.0


@pytest.mark.parametrize("rounding", [-1e-9, 1.0, float("nan"), "0.1", [0.0, 0.0]])
def test_bad_rounding_is_refused(rounding: Any) -> None:
    with pytest.raises(InputError, match="rounding is"):
        shared_scores(5, 0, rounding)


STATED, ROWS, TABLES, RUNS = 0.01, 100, 60, 4


def tied_confidences(rng: np.random.Generator, checkpoints: int, classes: int) -> Floats:
    """Log-confidences (n, M, K, C) of few values: many are equal, and many others differ by about
    the rounding that is stated.
    """
    shape = (ROWS, checkpoints, int(rng.integers(1, 3)), classes)
    steps = (
        rng.choice([0.0, 0.4, 1.0, 2.0], shape)
        if rng.integers(2)
        else rng.integers(0, 2, shape) * rng.choice([0.5, 2.0])
    )
    values = rng.integers(1, 4, shape) * np.exp(steps * STATED)
    return np.asarray(np.log(values / values.sum(axis=-1, keepdims=True)))


def another_run(rng: np.random.Generator, values: Floats) -> Floats:
    """Every log-confidence may differ by up to what is stated, often by all of it."""
    if rng.integers(2):
        return np.asarray(values + rng.choice([-STATED, 0.0, STATED], values.shape))
    return np.asarray(values + rng.uniform(-STATED, STATED, values.shape))


def closed(rng: np.random.Generator, checkpoints: int) -> Floats:
    """Offsets of a risk: at some checkpoints before the last nothing stops."""
    offsets = np.where(rng.random(checkpoints) < rng.choice([0.6, 1.0]), 0.0, -np.inf)
    offsets[-1] = 0.0
    return offsets


def random_agreestop(rng: np.random.Generator, checkpoints: int, classes: int) -> ag.AgreeStop:
    times = tuple(range(1, checkpoints + 1))
    temperatures = rng.choice([0.3, 1.0, 4.0], checkpoints)
    risk: Any = (
        ag.TopMass(temperatures=temperatures, times=times) if rng.integers(2) else ag.TopMass()
    )
    shape = rng.integers(3)
    if shape == 1:
        risk = ag.ShapedRisk(risk, rng.choice([-1.0, 0.0, 0.5], checkpoints), times)
    elif shape == 2:
        risk = ag.FixedTime()
    risk = ag.ShapedRisk(risk, closed(rng, checkpoints), times)
    return ag.AgreeStop(
        0.8,
        times,
        int(rng.integers(1, min(3, classes) + 1)),
        risk=risk,
        trim=float(rng.choice([0.0, 0.3, 1.0])),
    )


def held(calibrated: ag.CalibratedRule, values: Floats, labels: Any) -> Any:
    """Whether the answer to each input holds its label (n,); each input is a group of its own."""
    decisions = calibrated.decide(values, groups=NAMES)
    return decisions.sets[np.arange(len(labels)), labels]


NAMES = [f"row {row:06}" for row in range(ROWS)]


def test_no_run_misses_at_or_below_the_first_failure_under_rounding() -> None:
    """AgreeStop: in every run the first failure is not below W_η, and the answer is right; exact
    thresholds are overtaken.
    """
    rng, overtaken, missed = np.random.default_rng(0), 0, 0
    for _ in range(TABLES):
        checkpoints, classes, final = (
            int(rng.integers(1, 4)),
            int(rng.integers(2, 5)),
            bool(rng.integers(2)),
        )
        rule, values = (
            random_agreestop(rng, checkpoints, classes),
            tied_confidences(rng, checkpoints, classes),
        )
        best = reading_of(rule, values).values[:, -1].argmax(axis=1)
        labels = best if final else rng.integers(0, classes, ROWS)
        first = rounded_value_of_each(rule, values, labels, STATED, final)
        exact = value_of_each(rule, values, "final" if final else labels)
        given = ag.Scores(
            values, None if final else labels, tuple(rule.checkpoints), rounding=STATED
        )
        calibrated = calibrate_quietly(
            replace(rule, target="1/2"), given, *["final"] * final, groups=NAMES
        )
        for _ in range(RUNS):
            moved = another_run(rng, values)
            same = (reading_of(rule, moved).values[:, -1].argmax(axis=1) == labels) | (not final)
            there = value_of_each(rule, moved, "final" if final else labels)
            assert (there >= first - 1e-9)[same].all(), (rule, final)
            overtaken += int((there < exact - 1e-9)[same].sum())
            assert held(calibrated, moved, labels)[same].all(), (rule, final)
            missed += int((~held(at_kth_values(calibrated), moved, labels))[same].sum())
    assert overtaken > 300
    assert missed > 100, "a control: the order statistics themselves"


def test_no_run_costs_more_than_is_allowed_under_rounding() -> None:
    """AgreeStop with a loss: each input is a group of its own, and may cost as much as `max_loss`
    leaves, in every run.
    """
    rng, over = np.random.default_rng(2), 0
    for _ in range(TABLES):
        checkpoints, classes = int(rng.integers(1, 4)), int(rng.integers(2, 5))
        plain, values = (
            random_agreestop(rng, checkpoints, classes),
            tied_confidences(rng, checkpoints, classes),
        )
        labels, loss = (
            rng.integers(0, classes, ROWS),
            rng.integers(1, 3, (classes, classes)) * (1.0 - np.eye(classes)),
        )
        for allowed in (0.0, 1.0):
            # With one example, cost + largest ≤ 2 · max_loss.
            largest = float(loss.max())
            if allowed >= largest:
                continue
            rule = replace(plain, target=None, loss=loss, max_loss=(largest + allowed) / 2)
            calibrated = calibrate_quietly(
                rule,
                ag.Scores(values, labels, tuple(rule.checkpoints), rounding=STATED),
                groups=NAMES,
            )
            for _ in range(RUNS // 2):
                moved = another_run(rng, values)

                def cost(
                    one: ag.CalibratedRule,
                    moved: Floats = moved,
                    loss: Floats = loss,
                    labels: Any = labels,
                ) -> Floats:
                    sets = one.decide(moved, groups=NAMES).sets
                    return np.where(sets, loss[labels], np.inf).min(axis=1)

                assert (cost(calibrated) <= allowed).all(), rule
                over += int((cost(at_kth_values(calibrated)) > allowed).sum())
    assert over > 100, "a control: the order statistics themselves"


def test_no_run_misses_at_or_above_the_last_failure_under_rounding() -> None:
    """Stop-aware sets: in every run the last failure is not above V_η, and the answer is right;
    exact thresholds are overtaken.
    """
    rng, overtaken, missed = np.random.default_rng(1), 0, 0
    for turn in range(TABLES):
        checkpoints, classes, final = (
            int(rng.integers(1, 4)),
            int(rng.integers(2, 5)),
            bool(rng.integers(2)),
        )
        times, size = tuple(range(1, checkpoints + 1)), int(rng.integers(1, min(3, classes) + 1))
        temperatures = rng.choice([0.3, 1.0, 4.0], checkpoints)
        scores: list[Any] = [
            ag.LogLoss(),
            ag.Spread(ag.LogLoss(), 0.5),
            ag.Temperature(ag.MergeConfidence(), temperatures, times),
        ]
        rule = ag.SpikeCP("1/2", times, size, calibration="stop-aware", score=scores[turn % 3])
        values = tied_confidences(rng, checkpoints, classes)
        best = reading_of(rule, values).values[:, -1].argmin(axis=1)
        labels = best if final else rng.integers(0, classes, ROWS)
        last = rounded_value_of_each(rule, values, labels, STATED, final)
        exact = value_of_each(rule, values, "final" if final else labels)
        given = ag.Scores(values, None if final else labels, times, rounding=STATED)
        calibrated = calibrate_quietly(rule, given, *["final"] * final, groups=NAMES)
        for _ in range(RUNS):
            moved = another_run(rng, values)
            same = (reading_of(rule, moved).values[:, -1].argmin(axis=1) == labels) | (not final)
            there = value_of_each(rule, moved, "final" if final else labels)
            assert (there <= last + 1e-9)[same].all(), (rule, final)
            overtaken += int((there > exact + 1e-9)[same].sum())
            assert held(calibrated, moved, labels)[same].all(), (rule, final)
            missed += int((~held(at_kth_values(calibrated), moved, labels))[same].sum())
    assert overtaken > 300
    assert missed > 100, "a control: the order statistics themselves"


# η of a log-risk of -1: twice 32 units of 2^-24, and 8 units for its size
ETA = 8 * 2.0**-24 * (8 + 1)


def test_equal_numbers_of_one_input_stay_equal_unless_ties_break() -> None:
    """An input that opens twice, and fails only at the second checkpoint."""

    def first(second: float, breaks_ties: bool) -> float:
        mass, risk = (
            np.array([[[0.0, -9.0], [-9.0, 0.0], [0.0, -9.0]]]),
            np.array([[-1.0, -1.0 + second, 0.0]]),
        )
        table = RiskTable(mass, risk, np.array([0]), 1)
        stated = 1e-9 if breaks_ties else 0.0  # far below float32, but stated
        rule = ag.AgreeStop("1/2", (1, 2, 3), 1, fill=True, risk=TableRisk())
        return float(rounded_value_of_each(rule, table.log_confidence, table.labels, stated)[0])

    assert first(0.0, False) == np.inf and first(0.0, True) == pytest.approx(
        -1.0 - ETA, abs=ETA / 100
    )
    assert first(1.5 * ETA, False) < -1.0 + ETA, (
        "different numbers nearer than 2η may change places"
    )
    assert first(3 * ETA, False) == first(3 * ETA, True) == np.inf
    assert first(-3 * ETA, False) == pytest.approx(-1.0 - 4 * ETA, abs=ETA / 100), (
        "η below where it fails in this run"
    )


def threshold_among(numbers: Floats, rounding: float = 0.0) -> float:
    """The threshold of examples with these log-risks, of which the first, with a risk of -1, misses
    from there on.
    """
    n = len(numbers) + 1
    mass = np.tile([0.0, -99.0], (n, 2, 1))
    mass[0, 0] = [-99.0, 0.0]
    risk = np.column_stack([np.append(-1.0, numbers), np.zeros(n)])
    table = RiskTable(mass, risk, np.zeros(n, dtype=np.int64), 1)
    rule = ag.AgreeStop(Fraction(n, n + 1), (1, 2), 1, fill=True, risk=TableRisk())
    calibrated = calibrate_quietly(
        rule, ag.Scores(table.log_confidence, table.labels, (1, 2), rounding=rounding)
    )
    assert calibrated.kth_values == -1.0
    return float(calibrated.thresholds[0])


def test_a_threshold_takes_the_first_gap_within_reach() -> None:
    assert threshold_among(np.array([-1.5])) == pytest.approx(-1.0 - REACH, abs=2 * ETA)
    dense = np.asarray(-1.0 - ETA * np.arange(-4000, 8000) * 1.5, dtype=np.float64)
    dense = dense[dense <= 0]
    assert threshold_among(dense) == pytest.approx(-1.0 - 2 * ETA, abs=ETA / 10), (
        "no gap is wider than 2η"
    )
    middle = dense[(dense > -1.004) | (dense < -1.006)]
    assert threshold_among(middle) == pytest.approx(-1.005, abs=4 * ETA), "in the middle of the gap"


@pytest.mark.parametrize("stated", [1e-6, 0.002, 0.025])
def test_a_threshold_keeps_more_than_eta_from_every_number_if_a_gap_is_near(stated: float) -> None:
    eta = max(2 * stated, 2 * 32 * 2.0**-24) + 8 * 2.0**-24
    numbers = np.array([-1.0 - 2.5 * eta, -0.5])
    found = threshold_among(numbers, stated)
    assert found <= -1.0 - eta and np.abs(np.append(numbers, -1.0) - found).min() > eta
    crowded = np.linspace(-1.2, -0.8, 10_001)
    assert threshold_among(crowded, 1e-3) == pytest.approx(-1.0 - 2 * 2e-3, rel=1e-5), (
        "no gap: W less the rounding, twice"
    )


def test_rounding_is_never_below_that_of_float32() -> None:
    rule = ag.SpikeCP(0.8, EVERY, 1, calibration="simultaneous")
    values, labels = np.asarray(shared_scores(400, 0).log_confidence), shared_scores(400, 0).labels

    def moved(values: Any, stated: float = 0.0) -> float:
        calibrated = rule.calibrate(ag.Scores(values, labels, tuple(EVERY), rounding=stated))
        assert calibrated.kth_values is not None
        return float((calibrated.thresholds - calibrated.kth_values).min())

    for stated in (0.0, 1e-9):
        assert moved(values, stated) > 8 * np.finfo(np.float32).eps
    assert moved(values.astype(np.float16)) > np.finfo(np.float16).eps / 2
    assert moved(values, 0.01) == pytest.approx(0.01, rel=1e-3)
