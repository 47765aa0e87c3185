"""Promises by block, by group, under shift, about a loss, without labels and by stopping time: kept
on draws of calibration data.

Rows come from a finite pool that one of the worlds of `test_validity` made. A repetition draws n
calibration rows from it, independently and with replacement, and decides on the whole pool: what it
finds is exact given the draw, and repetitions are independent. A promise about a mean fails if the
mean of the repetitions lies more than Z standard errors on the wrong side. A promise with δ fails
if the number of draws that break it has a binomial tail under δ of at most FALSE_ALARM. Z and
FALSE_ALARM are those of `test_validity`, made for a thousand checks. This file makes fewer than 600
more, so that a change of seeds raises a false alarm here with probability below 1e-3.

Controls go through the same checkers and must fail: the marginal rule asked for its blocks and
groups; a quantile for each stopping time from the calibration data that also decided which of them
stopped when; the plain rule under a shift; a loss without its correction; and shares of misses by
stopping time without a test.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from agreestop.common import order_statistic
from tests.decide.strategies import Ended, Trials, reading_of, value_of_each
from tests.statistical.test_validity import (
    FALSE_ALARM,
    Booleans,
    Floats,
    Integers,
    Pool,
    World,
    binomial_tail,
    counted,
    describe,
    hunted_mass,
    keeps,
    misled,
)

pytestmark = pytest.mark.slow

CHECKPOINTS, CLASSES, MEMBERS, SIZE = 4, 5, 2, 2
TIMES = tuple(range(1, CHECKPOINTS + 1))
ROWS = 700
WORLDS: dict[str, World] = {"counted": counted(0.5), "misled": misled, "hunted": hunted_mass}
# calibration rows, target, repetitions
SIZES = (20, "0.8", 800), (100, "0.9", 400), (1000, "0.9", 150)
each_world = pytest.mark.parametrize("name", WORLDS)
each_size = pytest.mark.parametrize(("n", "target", "repeats"), SIZES)


def pool_named(name: str, seed: int = 0) -> Pool:
    return WORLDS[name](np.random.default_rng(seed), ROWS, CHECKPOINTS, MEMBERS, CLASSES)


def trials_of(
    rule: Any,
    pool: Pool,
    groups: Booleans | None = None,
    weights: Floats | None = None,
    final: bool = False,
) -> Trials:
    return Trials(rule, pool.log_confidence, pool.labels, groups, weights, final)


def repeat(
    trials: Trials, n: int, repeats: int, fit: Callable[[Integers], Any] | None = None
) -> list[Ended]:
    """How the pool ends after each of many draws of n calibration rows."""
    rng = np.random.default_rng(7)
    return [
        trials.run((fit or trials.fit)(rng.integers(len(trials), size=n))) for _ in range(repeats)
    ]


def holds(trials: Trials, run: Ended) -> Booleans:
    return np.asarray(run.sets[np.arange(len(trials)), trials.labels])


Inside = Callable[[Ended], Booleans]
"""Which rows of the pool are looked at, given how they ended."""


def in_block(block: int) -> Inside:
    return lambda run: run.block == block


def at_time(index: int) -> Inside:
    return lambda run: run.index == index


def among(rows: Booleans) -> Inside:
    return lambda run: rows


def coverages(trials: Trials, runs: list[Ended], inside: Inside) -> Floats:
    """The coverage of each repetition among the rows that `inside` names, where there are any."""
    values = [holds(trials, run)[rows].mean() for run in runs if (rows := inside(run)).any()]
    return np.array(values)


def keeps_delta(broken: int, repeats: int, delta: float) -> bool:
    return binomial_tail(broken, repeats, delta) > FALSE_ALARM


# --------------------------------------------------------------------------------------------------
# blocks of a gate


def gates_for(name: str, target: str) -> dict[str, ag.Gate]:
    """A fitted gate, one by hand that opens for many inputs at each time, and one whose blocks are
    rare: it opens for few.
    """
    tuning = pool_named(name, seed=99)
    fitted = ag.Gate.fit(
        tuning.log_confidence, tuning.labels, TIMES, target=target, max_set_size=SIZE, blocks=3
    )
    even, rare = np.quantile(
        reading_of(ag.AgreeStop(0.5, TIMES, SIZE), tuning.log_confidence).risk, [0.35, 0.03], axis=0
    )
    by_hand = {
        name: ag.Gate(ag.TopMass(), offsets, TIMES, None, 0.0, TIMES)
        for name, offsets in (("even", even), ("rare", rare))
    }
    return {"fitted": fitted, **by_hand}


def gated_rules(gate: ag.Gate, target: str, **settings: Any) -> dict[str, Any]:
    pooled = ag.MergeConfidence()
    return {
        "agreestop": ag.AgreeStop(target, TIMES, SIZE, gate=gate, **settings),
        "stop-aware": ag.SpikeCP(target, TIMES, SIZE, pooled, "stop-aware", gate=gate, **settings),
    }


@each_world
@each_size
def test_every_block_of_a_gate_keeps_its_promise(
    name: str, n: int, target: str, repeats: int
) -> None:
    pool = pool_named(name)
    for kind, gate in gates_for(name, target).items():
        for which, rule in gated_rules(gate, target).items():
            trials = trials_of(rule, pool)
            runs = repeat(trials, n, repeats)
            for block in range(len(gate.ends) + 1):
                if (runs[0].block == block).any():
                    values = coverages(trials, runs, in_block(block))
                    assert keeps(values, float(target)), describe(
                        f"{name} {n}, {which}, {kind} gate, block {block}", values
                    )


@pytest.mark.parametrize("name", ["misled", "hunted"])
def test_control_the_marginal_rule_does_not_keep_its_promise_in_every_block(name: str) -> None:
    pool, gate = pool_named(name), gates_for(name, "0.9")["even"]
    gated, marginal = (
        trials_of(gated_rules(gate, "0.9")["agreestop"], pool),
        trials_of(ag.AgreeStop("0.9", TIMES, SIZE), pool),
    )
    blocks = repeat(gated, 1000, 1)[0].block
    runs = repeat(marginal, 1000, 400)
    assert keeps(coverages(marginal, runs, among(np.ones(ROWS, dtype=bool))), 0.9)
    kept = [
        keeps(coverages(marginal, runs, among(blocks == block)), 0.9) for block in np.unique(blocks)
    ]
    assert not all(kept)


@pytest.mark.parametrize("name", ["counted", "misled"])
def test_control_quantiles_for_each_stopping_time_fail(name: str) -> None:
    """Each time gets a quantile of the calibration examples that stop then, which the same examples
    chose: early answers miss too often.
    """
    trials = trials_of(ag.AgreeStop("0.9", TIMES, SIZE), pool_named(name))

    pool = pool_named(name)
    failures = value_of_each(trials.rule, pool.log_confidence, pool.labels)

    def naive(rows: Integers) -> Any:
        first = failures[rows]
        overall = order_statistic(first, int(0.1 * (len(rows) + 1)))
        stops = trials.run(trials.at_thresholds(np.full(CHECKPOINTS, overall)), rows).index
        thresholds = [
            order_statistic(first[stops == t], int(0.1 * ((stops == t).sum() + 1)))
            for t in range(CHECKPOINTS)
        ]
        return trials.at_thresholds(np.array(thresholds))

    runs = repeat(trials, 1000, 200, naive)
    found = [coverages(trials, runs, at_time(t)) for t in range(CHECKPOINTS)]
    assert not all(keeps(values, 0.9) for values in found if len(values) > 50)


@pytest.mark.parametrize("name", ["misled", "hunted"])
def test_all_blocks_cover_at_once_given_the_calibration_data(name: str) -> None:
    pool, gate = pool_named(name), gates_for(name, "0.9")["even"]
    for which, rule in gated_rules(gate, "0.9", delta=0.1).items():
        trials = trials_of(rule, pool)
        runs = repeat(trials, 400, 500)
        short = [
            any(
                holds(trials, run)[run.block == block].mean() < 0.9
                for block in np.unique(run.block)
            )
            for run in runs
        ]
        assert keeps_delta(sum(short), 500, 0.1), (
            f"{name}, {which}: {sum(short)} of 500 draws fall short"
        )
    plain = trials_of(gated_rules(gate, "0.9")["agreestop"], pool)
    short = [
        any(holds(plain, run)[run.block == block].mean() < 0.9 for block in np.unique(run.block))
        for run in repeat(plain, 400, 500)
    ]
    assert not keeps_delta(sum(short), 500, 0.1), "control: without delta many draws fall short"


# --------------------------------------------------------------------------------------------------
# groups


def groups_of(pool: Pool, rng: np.random.Generator) -> Booleans:
    """Overlapping groups: a common one, a hard one (the best class at the end is wrong in most of
    it), a rare one, and all.
    """
    wrong = pool.log_confidence[:, -1].mean(axis=1).argmax(axis=1) != pool.labels
    hard = np.where(wrong, rng.random(len(pool)) < 0.8, rng.random(len(pool)) < 0.1)
    return np.stack(
        [
            rng.random(len(pool)) < 0.5,
            hard,
            rng.random(len(pool)) < 0.02,
            np.ones(len(pool), dtype=bool),
        ],
        axis=1,
    )


@each_world
@each_size
def test_every_group_keeps_its_promise(name: str, n: int, target: str, repeats: int) -> None:
    pool = pool_named(name)
    overlapping = groups_of(pool, np.random.default_rng(5))
    apart = np.eye(3, dtype=bool)[np.where(overlapping[:, 2], 2, overlapping[:, 1])]
    for groups in (overlapping, apart):
        for rule in (
            ag.AgreeStop(target, TIMES, SIZE),
            ag.SpikeCP(target, TIMES, SIZE, ag.MergeConfidence(), "stop-aware"),
        ):
            trials = trials_of(rule, pool, groups)
            runs = repeat(trials, n, repeats)
            for number, members in enumerate(groups.T):
                values = coverages(trials, runs, among(members))
                assert keeps(values, float(target)), describe(
                    f"{name} {n}, {type(rule).__name__}, group {number}", values
                )


def test_control_a_rule_without_groups_does_not_keep_a_promise_for_each() -> None:
    pool = pool_named("misled")
    trials, hard = (
        trials_of(ag.AgreeStop("0.9", TIMES, SIZE), pool),
        groups_of(pool, np.random.default_rng(5))[:, 1],
    )
    assert not keeps(coverages(trials, repeat(trials, 100, 800), among(hard)), 0.9)


# --------------------------------------------------------------------------------------------------
# shift


def shifted(pool: Pool) -> Floats:
    """Weights dQ/dP of the rows, at most 4: Q prefers inputs that look unsure at first."""
    risk = reading_of(ag.AgreeStop(0.5, TIMES, SIZE), pool.log_confidence).risk
    ranks = np.argsort(np.argsort(risk[:, 0] + 1e-9 * np.arange(len(pool)))) / len(pool)
    return np.minimum(0.2 + 4.0 * ranks**3, 4.0)


@each_world
@each_size
def test_weights_keep_the_promise_under_the_shifted_distribution(
    name: str, n: int, target: str, repeats: int
) -> None:
    pool = pool_named(name)
    weights = shifted(pool)
    for rule in (
        ag.AgreeStop(target, TIMES, SIZE),
        ag.SpikeCP(target, TIMES, SIZE, ag.MergeConfidence(), "stop-aware"),
    ):
        trials = trials_of(rule, pool, weights=weights)
        values = np.array(
            [
                (holds(trials, run) * weights).sum() / weights.sum()
                for run in repeat(trials, n, repeats)
            ]
        )
        assert keeps(values, float(target)), describe(f"{name} {n}, {type(rule).__name__}", values)


def test_control_the_plain_rule_fails_under_the_shift() -> None:
    pool = pool_named("misled")
    # confident at once: often wrong in this world
    risky = 1.0 + 3.0 * (pool.log_confidence[:, 0].mean(axis=1).max(axis=1) > -0.5)
    plain, weighted = (
        trials_of(ag.AgreeStop("0.9", TIMES, SIZE), pool),
        trials_of(ag.AgreeStop("0.9", TIMES, SIZE), pool, weights=risky),
    )
    for trials, kept in ((plain, False), (weighted, True)):
        values = np.array(
            [(holds(trials, run) * risky).sum() / risky.sum() for run in repeat(trials, 200, 800)]
        )
        assert keeps(values, 0.9) == kept, describe("shift", values)


# --------------------------------------------------------------------------------------------------
# loss

COSTS = np.abs(np.arange(CLASSES)[:, None] - np.arange(CLASSES)) / 4 + np.triu(
    np.full((CLASSES, CLASSES), 0.3), 1
)


def costs_of(trials: Trials, run: Ended, loss: Floats) -> Floats:
    return np.asarray(np.where(run.sets, loss[trials.labels], np.inf).min(axis=1))


@each_world
@each_size
def test_the_mean_cost_is_at_most_what_is_promised(
    name: str, n: int, target: str, repeats: int
) -> None:
    pool = pool_named(name)
    max_loss = round((1 - float(target)) * COSTS.max(), 3)
    for settings in ({}, {"fill": True}, {"trim": 0.3}):
        trials = trials_of(
            ag.AgreeStop(None, TIMES, SIZE, loss=COSTS, max_loss=max_loss, **settings), pool
        )
        values = np.array(
            [-costs_of(trials, run, COSTS).mean() for run in repeat(trials, n, repeats)]
        )
        assert keeps(values, -max_loss), describe(f"{name} {n} {settings}", values)


def test_control_a_loss_without_its_correction_fails() -> None:
    """The largest threshold whose calibration cost is at most max_loss, without the one largest
    cost of the new example.
    """
    pool, max_loss = pool_named("hunted"), 0.2
    miss = 1.0 - np.eye(CLASSES)
    trials = trials_of(ag.AgreeStop("0.8", TIMES, SIZE), pool)

    failures = value_of_each(trials.rule, pool.log_confidence, pool.labels)

    def naive(rows: Integers) -> Any:
        return trials.at_thresholds(
            np.full(CHECKPOINTS, order_statistic(failures[rows], int(max_loss * len(rows)) + 1))
        )

    assert not keeps(
        np.array([-costs_of(trials, run, miss).mean() for run in repeat(trials, 20, 3000, naive)]),
        -max_loss,
    )
    right = trials_of(ag.AgreeStop(None, TIMES, SIZE, loss=miss, max_loss=max_loss), pool)
    assert keeps(
        np.array([-costs_of(right, run, miss).mean() for run in repeat(right, 20, 3000)]), -max_loss
    )


# --------------------------------------------------------------------------------------------------
# final labels, stopping times


@each_world
@each_size
def test_the_answer_holds_what_the_ensemble_would_have_said(
    name: str, n: int, target: str, repeats: int
) -> None:
    pool = pool_named(name)
    for rule in (
        ag.AgreeStop(target, TIMES, 1),
        ag.AgreeStop(target, TIMES, SIZE),
        ag.SpikeCP(target, TIMES, 1, ag.MergeConfidence(), "stop-aware"),
    ):
        trials = trials_of(rule, pool, final=True)
        runs = repeat(trials, n, repeats)
        values = coverages(trials, runs, among(np.ones(ROWS, dtype=bool)))
        assert keeps(values, float(target)), describe(f"{name} {n}, {type(rule).__name__}", values)
        accuracy = float((trials.labels == pool.labels).mean())
        truths = np.array([run.sets[np.arange(len(pool)), pool.labels].mean() for run in runs])
        assert keeps(truths, accuracy - (1 - float(target))), describe("accuracy", truths)


def breaks_by_time(trials: Trials, run: Ended, alpha: float) -> bool:
    """Whether the answers that came by some time miss more than α of their labels."""
    missed = ~holds(trials, run)
    shares = [missed[run.index <= t].mean() for t in range(CHECKPOINTS) if (run.index <= t).any()]
    return bool(max(shares) > alpha)


@each_world
@pytest.mark.parametrize(("n", "target"), [(60, "0.8"), (200, "0.9"), (1000, "0.9")])
def test_accumulated_coverage_holds_for_all_times_at_once(name: str, n: int, target: str) -> None:
    pool, alpha, repeats = pool_named(name), 1 - float(target) + 1e-12, 500
    for risk in (ag.TopMass(), gates_for(name, target)["fitted"]):
        trials = trials_of(
            ag.AgreeStop(target, TIMES, SIZE, risk=risk, accumulated=True, delta=0.1), pool
        )
        broken = sum(breaks_by_time(trials, run, alpha) for run in repeat(trials, n, repeats))
        assert keeps_delta(broken, repeats, 0.1), (
            f"{name} {n}: {broken} of {repeats} draws break it"
        )


def test_control_shares_of_misses_without_a_test_break_the_accumulated_promise() -> None:
    """Accept a candidate if its calibration examples miss at most α by every time: about half of
    the draws at the edge break it.
    """
    pool = pool_named("hunted")
    trials, alpha, n = trials_of(ag.AgreeStop("0.9", TIMES, SIZE), pool), 0.1, 200

    def naive(rows: Integers) -> Any:
        """The boldest of many thresholds from safe to bold whose shares are small enough."""
        chosen = trials.at_thresholds(np.full(CHECKPOINTS, -math.inf))
        for threshold in np.linspace(-8, 0, 81).tolist():
            bolder = trials.at_thresholds(np.full(CHECKPOINTS, threshold))
            run = trials.run(bolder, rows)
            missed = ~run.sets[np.arange(n), trials.labels[rows]]
            if any(
                missed[run.index <= t].mean() > alpha
                for t in range(CHECKPOINTS)
                if (run.index <= t).any()
            ):
                break
            chosen = bolder
        return chosen

    broken = sum(breaks_by_time(trials, run, alpha) for run in repeat(trials, n, 200, naive))
    assert not keeps_delta(broken, 200, 0.1), f"{broken} of 200 draws break it"
