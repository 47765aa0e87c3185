"""Alarms are false no more often than stated, a drift is found, and the adaptive rule keeps its
bound on every sequence.

Shares of false alarms are compared with their limit by exact binomial tails at 1e-5 a check: about
30 checks fail by chance with probability at most 3e-4 altogether. Seeds are fixed: the rate speaks
of a change of seeds. The bound of the adaptive rule is an inequality that holds for every sequence,
and has no false alarms.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import agreestop as ag
from agreestop.common import largest_miss_rate
from tests.decide.strategies import JUMP, SHARES, TILTS, betting, boldest_of

pytestmark = pytest.mark.slow

Floats = NDArray[np.float64]
SCORES = Path(__file__).parents[2] / "results" / "scores" / "cifar10"
STEPS, RUNS = 10_000, 2000
FALSE_ALARM = 1e-5


def is_at_most(alarms: int, runs: int, limit: float) -> bool:
    """Whether so many alarms are compatible with a probability of at most `limit`."""
    counts = np.arange(runs + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log((runs - counts[:-1]) / (counts[:-1] + 1)))])
    masses = np.exp(logs + counts * np.log(limit) + (runs - counts) * np.log1p(-limit))
    return bool(masses[alarms:].sum() > FALSE_ALARM)


def largest_evidence(
    factors: Callable[[int, Floats], Floats], runs: int, bets: int, jump: float, steps: int = STEPS
) -> Floats:
    """The largest E (runs,) that many monitors reach; `factors` gives (runs, B) for a step and the
    evidence so far, (runs,).
    """
    capital, evidence, largest = np.zeros((runs, bets)), np.ones(runs), np.ones(runs)
    for step in range(steps):
        shared = (jump * capital.sum(axis=1, keepdims=True) + betting.fresh(step)) / bets
        capital = ((1 - jump) * capital + shared) * factors(step, evidence)
        evidence = capital.sum(axis=1) + betting.cash(step + 1)
        largest = np.maximum(largest, evidence)
    return largest


def test_many_monitors_at_once_are_the_same_as_one() -> None:
    rng = np.random.default_rng(0)
    ranks = rng.random((400, 3))
    together = largest_evidence(
        lambda step, _: 1 + TILTS * (ranks[step][:, None] - 0.5), 3, len(TILTS), JUMP, 400
    )
    for run in range(3):
        wealth = betting.Wealth.of(len(TILTS), JUMP)
        assert together[run] == pytest.approx(
            max(1.0, *(wealth.bet(1 + TILTS * (rank - 0.5)) for rank in ranks[:, run]))
        )


@pytest.mark.parametrize("level", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("world", ["boundary", "hunting"])
def test_misses_at_the_level_raise_few_alarms(level: float, world: str) -> None:
    """In the hunting world an adversary rests when it is behind, and misses as often as it may when
    an alarm is near.
    """
    rng = np.random.default_rng(1)

    def factors(step: int, evidence: Floats) -> Floats:
        rate = level if world == "boundary" else np.where(evidence < 0.3, 0.0, level)
        return 1 + SHARES * ((rng.random(RUNS) < rate)[:, None] / level - 1)

    largest = largest_evidence(factors, RUNS, len(SHARES), 0.0)
    for delta in (0.05, 0.01):
        assert is_at_most(int((largest >= 1 / delta).sum()), RUNS, delta)


def test_exchangeable_inputs_raise_few_alarms() -> None:
    rng = np.random.default_rng(2)
    largest = largest_evidence(
        lambda step, _: 1 + TILTS * (rng.random(RUNS)[:, None] - 0.5), RUNS, len(TILTS), JUMP
    )
    for delta in (0.05, 0.01):
        assert is_at_most(int((largest >= 1 / delta).sum()), RUNS, delta)


def test_a_calibration_draw_above_the_target_is_no_drift() -> None:
    """The miss rate of a rule without delta is Beta(k, n+1-k): alarms about misses stay within
    twice delta. At α itself they do not.
    """
    rng, n, rank, delta = np.random.default_rng(3), 100, 91, 0.05
    rates = rng.beta(n + 1 - rank, rank, size=RUNS)

    def alarms(level: float) -> int:
        def factors(step: int, _: Floats) -> Floats:
            return 1 + SHARES * ((rng.random(RUNS) < rates)[:, None] / level - 1)

        return int((largest_evidence(factors, RUNS, len(SHARES), 0.0) >= 1 / delta).sum())

    assert is_at_most(alarms(largest_miss_rate(n, rank, Fraction("0.05"))), RUNS, 2 * delta)
    assert not is_at_most(alarms(0.1), RUNS, 2 * delta)


def calibrated_rule(
    n: int = 200, seed: int = 0, ties: bool = False, **settings: Any
) -> tuple[ag.CalibratedRule, Callable[[int], Floats]]:
    """A rule, and a source of inputs that are exchangeable with its calibration examples."""
    rng = np.random.default_rng(seed)

    def draw(count: int) -> Floats:
        logits = rng.normal(size=(count, 3, 2, 3)) * 1.5
        return ag.log_confidence(np.round(logits) if ties else logits)

    rule = ag.AgreeStop(0.9, (1, 2, 3), 1, **settings)
    return rule.calibrate(draw(n), rng.integers(3, size=n)), draw


def test_a_monitor_of_tied_inputs_raises_few_alarms() -> None:
    runs, alarms = 150, 0
    for seed in range(runs):
        calibrated, draw = calibrated_rule(30, seed, ties=True)
        monitor = ag.DriftMonitor(calibrated, seed=seed)
        monitor.observe(calibrated.decide(draw(800)))
        alarms += bool(monitor.alarms)
    assert is_at_most(alarms, runs, 0.05)


def test_misses_that_are_reported_first_do_not_raise_more_alarms() -> None:
    """Hits come 300 decisions late, misses at once. A monitor that took labels as they come would
    raise an alarm almost always.
    """
    runs, alarms, naive = 120, 0, 0
    calibrated = calibrated_rule(delta=0.1)[0]
    for seed in range(runs):
        misses = np.random.default_rng(seed).random(1000) < 0.1
        monitor, wealth = ag.DriftMonitor(calibrated), betting.Wealth.of(len(SHARES), 0.0)
        decisions = [ag.Decision(1, 0, (0,)) for _ in misses]
        largest = 0.0
        for number, decision in enumerate(decisions):
            monitor.observe(decision)
            due = [number] if misses[number] else []
            if number >= 300 and not misses[number - 300]:
                due.append(number - 300)
            for one in due:
                monitor.update(decisions[one], int(misses[one]))
                largest = max(largest, wealth.bet(1 + SHARES * (misses[one] / 0.1 - 1)))
        alarms += bool(monitor.alarms)
        naive += largest >= 20
        assert monitor.processed >= 700
    assert is_at_most(alarms, runs, 0.05)
    assert naive > 0.9 * runs


def test_a_doubled_miss_rate_is_found() -> None:
    """From the first decision on after a median of about 100 labels, and after 3,000 quiet
    decisions too.
    """
    rng = np.random.default_rng(4)
    for quiet, most in ((0, 130), (3000, 900)):
        found = np.full(500, -1)
        rates = np.r_[np.full(quiet, 0.08), np.full(4000, 0.2)]

        def factors(
            step: int, evidence: Floats, rates: Floats = rates, found: Any = found
        ) -> Floats:
            found[(evidence >= 20) & (found < 0)] = step
            return 1 + SHARES * ((rng.random(500) < rates[step])[:, None] / 0.1 - 1)

        largest_evidence(factors, 500, len(SHARES), 0.0, len(rates))
        in_drift = found[(found < 0) | (found > quiet)]
        assert (in_drift > 0).all() and len(in_drift) >= 475
        assert np.median(in_drift - quiet) < most


# --------------------------------------------------------------------------------------------------
# adaptive


def play(
    adaptive: ag.AdaptiveRule, attack: str, delay: int, inputs: int, seed: int
) -> NDArray[np.bool_]:
    """An adversary that misses when it likes, except where the answer holds every class, and
    reports labels late in its own order.
    """
    rng = np.random.default_rng(seed)
    boldest = boldest_of(adaptive.calibrated)
    misses, attacks = np.zeros(inputs, dtype=bool), attack == "always"
    waiting: list[tuple[int, ag.Decision]] = []
    for number in range(inputs):
        free = np.isfinite(adaptive.threshold)
        if attack == "random":
            attacks = rng.random() < 0.3
        elif attack == "bursts":
            attacks = number // 200 % 2 == 1
        elif (
            attack == "patient"
        ):  # it waits for the boldest threshold, and then misses until nothing may stop
            attacks = free and (attacks or adaptive.threshold == boldest)
        misses[number] = free and attacks
        decision = ag.Decision(3, 2, (0,) if free else (0, 1, 2))
        adaptive.observe(decision)
        waiting.append((number, decision))
        due = [one for one in waiting if one[0] <= number - delay or rng.random() < 0.1]
        waiting = [one for one in waiting if one not in due]
        for late, one in sorted(due, key=lambda one: not misses[one[0]]):  # misses first
            adaptive.update(one, int(misses[late]))
    return misses


@pytest.mark.parametrize("calibration", ["agreestop", "stop-aware"])
@pytest.mark.parametrize("delay", [0, 1, 20, 100])
@pytest.mark.parametrize("attack", ["always", "random", "bursts", "patient"])
def test_the_adaptive_rule_keeps_its_bound_on_every_window(
    calibration: str, delay: int, attack: str
) -> None:
    rng = np.random.default_rng(0)
    log_confidence, labels = (
        ag.log_confidence(rng.normal(size=(200, 3, 1, 3)) * 2),
        rng.integers(3, size=200),
    )
    rule: Any = (
        ag.AgreeStop(0.8, (1, 2, 3), 1)
        if calibration == "agreestop"
        else ag.SpikeCP(0.8, (1, 2, 3), 1, calibration="stop-aware")
    )
    calibrated = rule.calibrate(log_confidence, labels)
    adaptive = ag.AdaptiveRule(calibrated, rate=0.3)
    misses = play(adaptive, attack, delay, 1500, seed=delay)
    counts = np.concatenate([[0], np.cumsum(misses)])
    for window in (1, 10, 50, 200, 500, 1000, 1500):
        worst = int((counts[window:] - counts[:-window]).max())
        assert worst <= adaptive.bound(window, delay) * window + 1e-6
    if attack == "always":  # the bound is near: the adversary gets almost all that it allows
        assert counts[-1] > 0.2 * 1500


# --------------------------------------------------------------------------------------------------
# real scores


@pytest.mark.skipif(not SCORES.exists(), reason="the score files of results/ are not here")
def test_the_drift_of_cifar10_is_found_and_healed() -> None:
    """Deep members are replaced by variational ones from input 3,000 on; labels come 50 inputs
    late.
    """
    deep, variational = (
        ag.load_scores(SCORES / kind / "pool.npz") for kind in ("deep", "variational")
    )
    assert deep.labels is not None
    later, every = range(10, 81, 10), range(1, 81)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(10_000)
        calibration, before, after = order[:1000], order[1000:4000], order[4000:8000]
        # The first look of the rule at 10 steps: after one step the two kinds of members hardly
        # differ.
        calibrated = ag.AgreeStop(0.9, later, 1).calibrate(deep.rows(calibration))
        monitor = ag.DriftMonitor(calibrated, delta=0.01, seed=seed)
        monitor.observe(calibrated.decide(deep.rows(before)))
        assert not monitor.alarms
        alarm = monitor.observe(calibrated.decide(variational.rows(after)))
        assert alarm is not None and alarm.kind == "inputs" and 3000 < alarm.number <= 3500

        fixed = ag.AgreeStop(0.9, every, 1).calibrate(deep.rows(calibration))
        adaptive = ag.AdaptiveRule(fixed, rate=0.2)
        misses: dict[str, list[int]] = {"static": [], "adaptive": []}
        for scores, rows in ((deep, before), (variational, after)):
            for begin in range(0, len(rows), 50):
                batch, labels = (
                    scores.rows(rows[begin : begin + 50]),
                    deep.labels[rows[begin : begin + 50]],
                )
                healed = adaptive.decide(batch)
                for name, decisions in (("static", fixed.decide(batch)), ("adaptive", healed)):
                    misses[name] += (~decisions.sets[np.arange(len(labels)), labels]).tolist()
                adaptive.update(healed, labels)
        assert np.mean(misses["static"][3000:]) > 0.125
        assert np.mean(misses["adaptive"][3000:]) < 0.105
