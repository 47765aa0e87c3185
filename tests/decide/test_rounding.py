"""Scores that are rounded otherwise in another run: thresholds keep clear of the values that many inputs share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from agreestop.common import Floats, InputError
from agreestop.decide.checkpoints import Failures
from agreestop.decide.evidence import Evidence
from agreestop.decide.losses import CostSteps
from agreestop.decide.reduced import calibrate_reduced, reduce_examples
from agreestop.decide.rounding import Rounding
from agreestop.decide.rules import gather_evidence
from agreestop.decide.scores import LogLoss, Spread, Temperature
from agreestop.decide.spikecp import last_failures
from agreestop.decide.thresholds import REACH, in_gap
from tests.decide.strategies import assert_same_decisions, at_kth_values, risk_of

ROUNDING = 1e-4
STEPS, CLASSES, MEMBERS = 6, 5, 1


def shared_scores(n: int, seed: int, rounding: float = ROUNDING) -> ag.Scores:
    """Log-confidences from few counts of spikes, so that many inputs share each value, among them all at the first step."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, n)
    spikes = rng.random((n, STEPS, MEMBERS, CLASSES)) < np.where(np.arange(CLASSES) == labels[:, None], 0.7, 0.2)[:, None, None]
    spikes[:, 0] = False
    values = ag.log_confidence(np.cumsum(spikes, axis=1))
    return ag.Scores(values, labels, tuple(range(1, STEPS + 1)), rounding=rounding)


def rounded_otherwise(scores: ag.Scores, seed: int) -> Floats:
    """The log-confidences as another run might compute them. All scores of an input move together, so that classes which tie still do."""
    noise = np.random.default_rng(seed).uniform(-ROUNDING / 4, ROUNDING / 4, (len(scores), 1, 1, 1))
    return np.asarray(scores.log_confidence + noise)


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
        # On the order statistics themselves the shared values fall on either side, so the check above can fail.
        exact = at_kth_values(calibrated)
        assert not np.array_equal(exact.decide(moved).sets, exact.decide(plain[:, columns]).sets)


def test_rounding_would_break_p_variables_that_do_not_allow_for_it() -> None:
    calibration, test = shared_scores(400, 0), shared_scores(300, 1)
    for name in ("p-values", "ranks"):
        rule = RULES[name]
        columns = [time - 1 for time in rule.checkpoints]
        policy: Any = rule.calibrate(calibration).policy
        ranks = policy.ranks
        lowered = replace(ranks, eta=None) if name == "ranks" else replace(ranks, calibration=ranks.calibration - ROUNDING)
        exact = replace(rule.calibrate(calibration), policy=replace(policy, ranks=lowered))
        plain, moved = np.asarray(test.log_confidence)[:, columns], rounded_otherwise(test, 2)[:, columns]
        assert not np.array_equal(exact.decide(moved).sets, exact.decide(plain).sets)


def atoms(n: int, seed: int) -> tuple[Floats, Any]:
    """Scores with few different values, such as those of a network that gives one of a few outputs: (n, 4, 1, 3), labels (n,)."""
    rng = np.random.default_rng(seed)
    sure = np.array([0.35, 0.5, 0.6, 0.7, 0.8, 0.9])[np.minimum(rng.integers(0, 3, (n, 4)).cumsum(axis=1), 5)]
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
    """Mean coverage over 12 draws is at least 0.8 less 0.03, four standard errors of 12 times 400 inputs and 200 examples."""
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
    """A control: on the order statistics themselves, decisions in float32 miss far more often than promised."""
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
    """Every log-confidence moves by up to what was stated. Mean coverage over 12 draws is at least 0.8 less 0.03."""
    stated, found, broken = 1e-3, [], []
    times = (1, 2, 3, 4)
    risk = ag.TopMass(temperatures=np.full(4, temperature), times=times)
    for seed in range(DRAWS):
        values, labels = atoms(200, seed)
        values = np.log(np.exp(values / temperature) / np.exp(values / temperature).sum(axis=-1, keepdims=True))
        new, truth = atoms(400, 1000 + seed)
        new = np.log(np.exp(new / temperature) / np.exp(new / temperature).sum(axis=-1, keepdims=True))
        calibrated = ag.AgreeStop(TARGET, times, 1, risk=risk).calibrate(ag.Scores(values, labels, times, rounding=stated))
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
    assert calibrated.kth_values is not None and calibrated.kth_values.shape == calibrated.thresholds.shape == (2,)
    assert (calibrated.thresholds <= calibrated.kth_values - ROUNDING).all()


def test_parts_of_the_calibration_data_make_the_same_rule() -> None:
    scores, rule = shared_scores(200, 0), ag.AgreeStop(0.8, EVERY, 1)
    parts = [reduce_examples(rule, scores.rows(rows)) for rows in (slice(0, 80), slice(80, None))]
    assert calibrate_reduced(rule, parts).thresholds == rule.calibrate(scores).thresholds
    exact = reduce_examples(rule, shared_scores(50, 3, rounding=0.0))
    with pytest.raises(InputError, match="different rounding"):
        calibrate_reduced(rule, [parts[0], exact])


def test_rounding_travels_in_files(tmp_path: Path) -> None:
    ag.save_scores(tmp_path / "scores.npz", shared_scores(20, 0).rows(slice(0, 10)))
    assert ag.load_scores(tmp_path / "scores.npz").rounding == ROUNDING
    ag.save_scores(tmp_path / "exact.npz", shared_scores(20, 0, rounding=0.0))
    assert ag.load_scores(tmp_path / "exact.npz").rounding == 0.0


@pytest.mark.parametrize("rounding", [-1e-9, 1.0, float("nan"), "0.1", [0.0, 0.0]])
def test_bad_rounding_is_refused(rounding: Any) -> None:
    with pytest.raises(InputError, match=r"rounding is .*: a number from 0 to 0.1 is needed"):
        shared_scores(5, 0, rounding)


STATED, ROWS, TABLES, RUNS = 0.01, 100, 60, 12


def tied_confidences(rng: np.random.Generator, checkpoints: int, classes: int) -> Floats:
    """Log-confidences (n, M, K, C) of few values: many are equal, and many others differ by about the rounding that is stated."""
    shape = (ROWS, checkpoints, int(rng.integers(1, 3)), classes)
    steps = rng.choice([0.0, 0.4, 1.0, 2.0], shape) if rng.integers(2) else rng.integers(0, 2, shape) * rng.choice([0.5, 2.0])
    values = rng.integers(1, 4, shape) * np.exp(steps * STATED)
    return np.asarray(np.log(values / values.sum(axis=-1, keepdims=True)))


def another_run(rng: np.random.Generator, values: Floats) -> Floats:
    """Every log-confidence may differ by up to what is stated, often by all of it."""
    if rng.integers(2):
        return np.asarray(values + rng.choice([-STATED, 0.0, STATED], values.shape))
    return np.asarray(values + rng.uniform(-STATED, STATED, values.shape))


def gates(rng: np.random.Generator, checkpoints: int) -> Any:
    """From which checkpoint on inputs count, (n, M)."""
    return np.maximum.accumulate(rng.random((ROWS, checkpoints)) < rng.choice([0.6, 1.0]), axis=1)


def random_agreestop(rng: np.random.Generator, checkpoints: int, classes: int) -> ag.AgreeStop:
    times = tuple(range(1, checkpoints + 1))
    temperatures = rng.choice([0.3, 1.0, 4.0], checkpoints)
    risk: Any = ag.TopMass(temperatures=temperatures, times=times) if rng.integers(2) else ag.TopMass()
    shape = rng.integers(3)
    if shape == 1:
        risk = ag.ShapedRisk(risk, rng.choice([-1.0, 0.0, 0.5], checkpoints), times)
    elif shape == 2:
        risk = ag.FixedTime()
    return ag.AgreeStop(0.8, times, int(rng.integers(1, min(3, classes) + 1)), risk=risk, trim=float(rng.choice([0.0, 0.3, 1.0])))


def cost_above(steps: CostSteps, thresholds: Floats) -> Any:
    """The cost (n,) of each example just above its threshold."""
    return np.where(steps.breaks < thresholds[:, None] + 1e-8, steps.rises, 0).sum(axis=1)


def test_no_run_misses_at_or_below_the_first_failure_under_rounding() -> None:
    """AgreeStop: in every run the first failure is not below W_η, and the cost not above its bound; exact ones are overtaken."""
    rng, overtaken = np.random.default_rng(0), 0
    for _ in range(TABLES):
        checkpoints, classes, final = int(rng.integers(1, 4)), int(rng.integers(2, 5)), bool(rng.integers(2))
        rule, open_from = random_agreestop(rng, checkpoints, classes), gates(rng, checkpoints)
        size, log_trim, loss = rule.max_set_size, rule._log_trim, rng.integers(1, 3, (classes, classes)) * (1.0 - np.eye(classes))
        values = tied_confidences(rng, checkpoints, classes)

        def gated(values: Floats, rule: ag.AgreeStop = rule, open_from: Any = open_from) -> Evidence:
            evidence = gather_evidence(rule, values, list(range(len(rule.checkpoints))))
            return replace(evidence, log_risk=np.where(open_from, risk_of(evidence), np.inf))

        evidence, rounding = gated(values), rule.rounding(Rounding.of(values, STATED))
        labels = evidence.values[:, -1].argmax(axis=1) if final else rng.integers(0, classes, ROWS)
        first = Failures.of(evidence, labels, size, log_trim, rounding, final).first(rounding)
        exact = Failures.of(evidence, labels, size, log_trim, None, final).first()
        bound = CostSteps.of(evidence, labels, loss, size, log_trim, rounding)
        for _ in range(RUNS):
            moved = gated(another_run(rng, values))
            same = (moved.values[:, -1].argmax(axis=1) == labels) | (not final)
            there = Failures.of(moved, labels, size, log_trim, None, final).first()
            assert (there >= first - 1e-9)[same].all(), (rule, final)
            overtaken += int((there < exact - 1e-9)[same].sum())
            costs = CostSteps.of(moved, labels, loss, size, log_trim)
            for breaks in costs.breaks.T:
                assert (cost_above(costs, breaks) <= cost_above(bound, breaks))[np.isfinite(breaks)].all(), rule
    assert overtaken > 1000


def test_no_run_misses_at_or_above_the_last_failure_under_rounding() -> None:
    """Stop-aware sets: in every run the last failure is not above V_η; exact ones are overtaken."""
    rng, overtaken = np.random.default_rng(1), 0
    for turn in range(TABLES):
        checkpoints, classes, final = int(rng.integers(1, 4)), int(rng.integers(2, 5)), bool(rng.integers(2))
        times, size, open_from = tuple(range(1, checkpoints + 1)), int(rng.integers(1, min(3, classes) + 1)), gates(rng, checkpoints)
        open_from[:, -1] = True
        given: Any = [LogLoss(), Spread(LogLoss(), 0.5), Temperature(ag.MergeConfidence(), rng.choice([0.3, 1.0, 4.0], checkpoints), times)]
        rule = ag.SpikeCP(0.8, times, size, calibration="stop-aware", score=given[turn % 3])
        values = tied_confidences(rng, checkpoints, classes)

        def gated(values: Floats, rule: ag.SpikeCP = rule, open_from: Any = open_from) -> Floats:
            scores = gather_evidence(rule, values, list(range(len(rule.checkpoints)))).values
            return np.where(open_from[:, :, None], scores, np.inf)

        scores, rounding = gated(values), rule.rounding(Rounding.of(values, STATED))
        labels = scores[:, -1].argmin(axis=1) if final else rng.integers(0, classes, ROWS)
        last, exact = last_failures(scores, labels, size, rounding, final), last_failures(scores, labels, size, None, final)
        for _ in range(RUNS):
            moved = gated(another_run(rng, values))
            same = (moved[:, -1].argmin(axis=1) == labels) | (not final)
            there = last_failures(moved, labels, size, None, final)
            assert (there <= last + 1e-9)[same].all(), (rule, final)
            overtaken += int((there > exact + 1e-9)[same].sum())
    assert overtaken > 1000


def test_equal_numbers_of_one_input_stay_equal_unless_ties_break() -> None:
    """An input that opens twice, and fails only at the second checkpoint."""

    def first(second: float, rounding: Rounding) -> float:
        opens, fails = np.array([[-1.0, -1.0 + second]]), np.array([[np.inf, -np.inf]])
        return float(Failures(opens, fails, np.array([np.inf])).first(rounding)[0])

    kept, broken = Rounding(), Rounding(breaks_ties=True)
    eta = kept.largest(-1.0)
    assert first(0.0, kept) == np.inf and first(0.0, broken) == -1.0 - eta
    assert first(1.5 * eta, kept) < -1.0 + eta, "different numbers nearer than 2η may change places"
    assert first(3 * eta, kept) == first(3 * eta, broken) == np.inf
    assert first(-3 * eta, kept) == pytest.approx(-1.0 - 4 * eta, abs=eta / 100), "η below where it fails in this run"


def test_a_threshold_takes_the_first_gap_within_reach() -> None:
    rounding = Rounding()
    eta = rounding.largest(-1.0)
    assert in_gap(-1.0, np.array([-1.0, -1.5]), rounding) == pytest.approx(-1.0 - REACH, abs=2 * eta)
    dense = np.asarray(-1.0 - eta * np.arange(-4000, 8000) * 1.5, dtype=np.float64)
    assert in_gap(-1.0, dense, rounding) == -1.0 - eta, "no gap is wider than 2η"
    middle = dense[(dense > -1.004) | (dense < -1.006)]
    assert in_gap(-1.0, middle, rounding) == pytest.approx(-1.005, abs=4 * eta), "in the middle of the gap"
    assert in_gap(-np.inf, dense, rounding) == -np.inf and in_gap(np.inf, dense, rounding) == np.inf


@pytest.mark.parametrize("eta", [1e-6, 0.004, 0.05])
def test_a_threshold_keeps_more_than_eta_from_every_number_if_a_gap_is_near(eta: float) -> None:
    numbers = np.array([-1.0 - 2.5 * eta, -1.0, -0.5])
    found = in_gap(-1.0 - eta, numbers, Rounding(eta, 0.0))
    assert found <= -1.0 - eta and np.abs(numbers - found).min() > eta
    crowded = np.linspace(-1.2, -0.8, 100_001)
    assert in_gap(-1.0, crowded, Rounding(1e-4, 0.0)) == pytest.approx(-1.0001), "no gap: the threshold less the rounding"


def test_rounding_is_never_below_that_of_float32() -> None:
    for stated in (0.0, 1e-9):
        assert Rounding.of(np.zeros(1), stated).largest(0.0) > 8 * np.finfo(np.float32).eps
    assert Rounding.of(np.zeros(1, np.float16)).largest(0.0) > np.finfo(np.float16).eps / 2
    assert Rounding.of(np.zeros(1), 0.01).largest(0.0) == 0.01
