"""Every rule that promises coverage keeps it: exact checks on bags, Monte-Carlo checks on fresh
draws, and controls that must fail.

Rows come from a finite pool that one of the simulated worlds below made; a rule meets calibration
rows and test rows drawn from it.

Bags (no false alarms). For n + 1 exchangeable rows the promise holds given the bag of their values:
calibrate on all but one, decide on that one, for each in turn, and at most α(n + 1) of the n + 1
labels may be missed. This is an inequality between integers, true for every bag.

Monte Carlo (one-sided). Each repetition draws a fresh calibration set of n rows and some test rows,
all independent; its coverage is one number, and repetitions are independent. A rule fails if their
mean lies more than Z standard errors, between repetitions, under the target. Z is the normal
quantile of 1e-4 / CHECKS: if the means were exactly normal, CHECKS checks would raise a false alarm
with probability at most 1e-4 altogether. They are means of at least 400 numbers between 0 and 1,
and the factor of ten up to the stated family-wise rate of 1e-3 allows for their skewness. Where the
exact coverage is known it is checked on both sides with the same Z. Training-conditional promises
are checked with exact binomial tails at 1e-4 / CHECKS. A test counts the checks. Seeds are fixed:
the rate speaks of a change of seeds.

Controls. Rules without a promise go through the same checkers, and must fail: Fisher's combination
of dependent members, prefix minima of sorted members, constants that are too small, Bonferroni
without its M, a quantile without the (n + 1), a quantile per class in the stop-aware rule, a
marginal rule asked for its coverage by class or given the calibration data.

Worlds
    counted    small spike counts: heavy ties; members from independent to identical
    misled     some inputs are recognised at once, some are confidently wrong at first, some tie in
               all classes until late
    hunted     the label's loss is in its tail at exactly one checkpoint, and just there the other
               classes leave, so that the rule stops and misses wherever it can: with no ties the
               coverage is exactly what the calibration bought
    coupled    true labels' ranks under a worst coupling of the members, found by rearrangement
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

import agreestop as ag
from agreestop.common import quantile_rank
from agreestop.decide.confidence import Pooling
from tests.decide.strategies import (
    Shaped,
    Trials,
    calibrate_quietly,
    merge_exchangeable,
    value_of_each,
)

pytestmark = pytest.mark.slow

Rule: TypeAlias = ag.SpikeCP | ag.AgreeStop
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

CHECKS = 1000
CONDITIONAL_REPEATS = 600
CALIBRATIONS = ("bonferroni", "simultaneous", "stop-aware")
FALSE_ALARM = 1e-4 / CHECKS
Z = -NormalDist().inv_cdf(FALSE_ALARM)
CLASSES = 5
MEMBERS = 4


@dataclass(frozen=True, eq=False)
class Pool:
    """The rows of a world: log-confidences (N, M, K, C) and labels (N,)."""

    log_confidence: Floats
    labels: Integers

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        return int(self.log_confidence.shape[3])


@dataclass(frozen=True)
class Setting:
    """How many calibration rows, the target, how many checkpoints, and the largest set that may
    stop.
    """

    n: int
    target: str
    checkpoints: int
    size: int

    @property
    def alpha(self) -> Fraction:
        return 1 - Fraction(self.target)

    @property
    def p(self) -> float:
        return float(self.target)

    @property
    def times(self) -> range:
        return range(1, self.checkpoints + 1)


# With four members even the minimum of the p-variables, at four times its price, can exclude a
# label in each of these.
SETTINGS = (
    Setting(8, "0.5", 1, 1),
    Setting(20, "0.6", 2, 2),
    Setting(60, "0.8", 3, 1),
    Setting(200, "0.9", 4, 3),
    Setting(500, "0.9", 5, 2),
)


# --------------------------------------------------------------------------------------------------
# worlds

World = Callable[[np.random.Generator, int, int, int, int], Pool]


def counted(dependence: float) -> World:
    def world(
        rng: np.random.Generator, rows: int, checkpoints: int, members: int, classes: int
    ) -> Pool:
        labels = rng.integers(classes, size=rows)
        rates = np.full((rows, checkpoints, members, classes), 0.25)
        quality = np.linspace(0.3, 1.1, members) if members > 1 else np.ones(1)
        hardness = rng.gamma(2.0, 0.5, size=rows)
        rates[np.arange(rows), :, :, labels] += (hardness[:, None] * quality)[:, None]
        shared = rng.random((rows, checkpoints, 1, 1)) < dependence
        counts = np.where(shared, rng.poisson(rates[:, :, :1]), rng.poisson(rates))
        return Pool(ag.log_confidence(np.cumsum(counts, axis=1)), labels)

    return world


def misled(
    rng: np.random.Generator, rows: int, checkpoints: int, members: int, classes: int
) -> Pool:
    labels = rng.integers(classes, size=rows)
    rival = (labels + rng.integers(1, classes, size=rows)) % classes
    kind = rng.choice(3, p=[0.45, 0.3, 0.25], size=rows)
    # a misled input comes to its senses here; never, if past the end
    switch = rng.integers(checkpoints + 1, size=rows)
    at = np.arange(rows)
    logits = np.zeros((rows, checkpoints, members, classes))
    noise = rng.normal(size=(rows, checkpoints, 1, classes)) + rng.normal(
        size=(rows, checkpoints, members, classes)
    )
    for t in range(checkpoints):
        told, wrong = kind == 0, (kind == 1) & (t < switch)
        right = (kind == 1) & (t >= switch)
        logits[at[told], t, :, labels[told]] += 5
        logits[at[wrong], t, :, rival[wrong]] += 7 - t
        logits[at[right], t, :, labels[right]] += 2 + t
        talks = (kind < 2) | (t == checkpoints - 1)
        logits[talks, t] += 0.5 * noise[talks, t]
    late = kind == 2
    logits[at[late], -1, :, labels[late]] += 1
    return Pool(ag.log_confidence(logits), labels)


def hunted(
    rng: np.random.Generator, rows: int, checkpoints: int, members: int, classes: int
) -> Pool:
    labels = rng.integers(classes, size=rows)
    rival = (labels + 1) % classes
    at = np.arange(rows)
    # One uniform number, shifted: its tails {loss > 1 - 1/M} at the M checkpoints are disjoint and
    # cover everything.
    losses = (rng.random((rows, 1)) + np.arange(checkpoints) / checkpoints) % 1
    tail = losses > 1 - 1 / checkpoints
    scores = np.where(tail[:, :, None], 5.0, 0.0) * np.ones(classes)
    scores[at, :, rival] = 0
    scores[at, :, labels] = losses
    return Pool(np.repeat(-scores[:, :, None], members, axis=2), labels)


def by_class(world: World) -> World:
    """Classes unlike each other: the second has its confidences spoilt, and only every third row of
    the last is kept.
    """

    def unlike(
        rng: np.random.Generator, rows: int, checkpoints: int, members: int, classes: int
    ) -> Pool:
        pool = world(rng, 3 * rows, checkpoints, members, classes)
        keep = np.flatnonzero((pool.labels != classes - 1) | (np.arange(3 * rows) % 3 == 0))[:rows]
        labels, values = pool.labels[keep], pool.log_confidence[keep]
        hard = labels == 1
        values[hard] = np.minimum(values[hard], 0.0) * (1 + rng.random((hard.sum(), 1, 1, 1)))
        values[hard, :, :, 1] -= 0.7
        return Pool(values, labels)

    return unlike


def hunted_mass(
    rng: np.random.Generator, rows: int, checkpoints: int, members: int, classes: int
) -> Pool:
    """For AgreeStop with I = 2: at one checkpoint the best two classes are wrong, with a risk
    between 0 and 0.3; later all is clear.
    """
    labels = rng.integers(classes, size=rows)
    risk, moment = 0.3 * rng.random(rows), rng.integers(checkpoints, size=rows)
    order = (
        labels[:, None] + np.array([1, 2, 0, *range(3, classes)])
    ) % classes  # two rivals, the label, the others
    at = np.arange(rows)
    logits = np.zeros((rows, checkpoints, classes))
    mass = np.concatenate(
        [
            np.outer(1 - risk, [0.6, 0.4]),
            np.outer(risk, [0.8] + [0.2 / (classes - 3)] * (classes - 3)),
        ],
        axis=1,
    )
    for t in range(checkpoints):
        now, after = moment == t, moment < t
        logits[at[now, None], t, order[now]] = np.log(mass[now])
        logits[at[after], t, labels[after]] = 6
    return Pool(np.repeat(ag.log_confidence(logits)[:, :, None], members, axis=2), labels)


def coupled(r: float, members: int, allowed: int, rows: int, factor: float) -> tuple[Pool, int]:
    """Ranks 1..rows of the true label's loss for each member, coupled so that as many rows as
    possible have factor·M_r(ranks) ≤ allowed.

    Also that number. `rearrange` orders each member oppositely to the sum of the others.
    """
    rng = np.random.default_rng(0)

    def rearrange(count: int) -> tuple[Integers, float]:
        ranks = np.stack([rng.permutation(count) for _ in range(members)]) + 1
        values = np.arange(1.0, count + 1)
        g = np.log(values) if r == 0 else math.copysign(1, r) * (values / count) ** r
        for _ in range(50):
            for k in range(members):
                others = g[ranks - 1].sum(axis=0) - g[ranks[k] - 1]
                ranks[k, np.argsort(others, kind="stable")] = np.arange(count, 0, -1)
        return ranks, float(factor * ag.generalized_mean(ranks, r, axis=0).max())

    head = np.empty((members, 0), dtype=np.int64)
    low, high = 0, rows
    while high - low > 1:
        middle = (low + high) // 2
        ranks, largest = rearrange(middle)
        if largest <= allowed * (1 - 1e-9):
            low, head = middle, ranks
        else:
            high = middle
    rest = np.stack([low + 1 + rng.permutation(rows - low) for _ in range(members)])
    ranks = np.concatenate([head, rest], axis=1).T
    scores = np.zeros((rows, 1, members, 2))
    labels = rng.integers(2, size=rows)
    scores[np.arange(rows), 0, :, labels] = 1 - ranks / (rows + 1)
    return Pool(-scores, labels), low


# --------------------------------------------------------------------------------------------------
# checkers

Decider = Callable[[Integers, Integers, int], Booleans]
"""Calibrate on some rows of a pool, decide on others, in the repetition of that number: which
labels are held.
"""


def deciding(rule: Rule, pool: Pool, members: Callable[[int], Integers] | None = None) -> Decider:
    """A rule on a pool. `members(number)` names the members of a repetition, in order."""
    trials = Trials(rule, pool.log_confidence, pool.labels)

    def decide(calibration: Integers, test: Integers, number: int) -> Booleans:
        chosen = trials if members is None else trials.of_members(members(number))
        sets = chosen.run(chosen.fit(calibration), test, first=number * len(test)).sets
        return np.asarray(sets[np.arange(len(test)), pool.labels[test]])

    return decide


@dataclass(frozen=True, eq=False)
class Draw:
    """One repetition: its number, rows to calibrate on and rows to decide on."""

    number: int
    calibration: Integers
    test: Integers


def draws(
    pool: Pool, n: int, tests: int, repeats: int, seed: int, distinct: bool = False
) -> Iterator[Draw]:
    """Independent rows, or `distinct` ones, which are exchangeable and never tie."""
    rng = np.random.default_rng(seed)
    for number in range(repeats):
        rows = (
            rng.choice(len(pool), n + tests, replace=False)
            if distinct
            else rng.integers(len(pool), size=n + tests)
        )
        yield Draw(number, rows[:n], rows[n:])


def repeats_for(setting: Setting) -> int:
    """Enough repetitions for a standard error of about 0.0025, but at least 400."""
    p = float(setting.alpha)
    return int(np.clip(p * (1 - p) / (setting.n + 2) / 0.0025**2, 400, 4000))


def coverages(
    decide: Decider,
    pool: Pool,
    setting: Setting,
    tests: int = 100,
    seed: int = 1,
    distinct: bool = False,
) -> Floats:
    """The coverage of each repetition."""
    plan = draws(pool, setting.n, tests, repeats_for(setting), seed, distinct)
    return np.array([decide(draw.calibration, draw.test, draw.number).mean() for draw in plan])


def class_coverages(
    decide: Decider, pool: Pool, setting: Setting, label: int, seed: int = 1
) -> Floats:
    """The coverage among test rows of one class, where a repetition has any."""
    values = []
    for draw in draws(pool, setting.n, 100, repeats_for(setting), seed):
        test = draw.test[pool.labels[draw.test] == label]
        if len(test):
            values.append(decide(draw.calibration, test, draw.number).mean())
    return np.array(values)


def standard_error(values: Floats) -> float:
    return float(values.std(ddof=1)) / math.sqrt(len(values))


def keeps(values: Floats, target: float) -> bool:
    """The one-sided check: the mean is not more than Z standard errors under the target."""
    return float(values.mean()) >= target - Z * standard_error(values)


def equals(values: Floats, exact: float) -> bool:
    """The two-sided check, where the coverage is known."""
    return abs(float(values.mean()) - exact) <= Z * standard_error(values) + 1e-12


def bag_keeps(decide: Decider, rows: Integers, allowed: Fraction) -> bool:
    """The exact check: leaving each row of a bag out in turn misses at most `allowed` of them."""
    return bag_misses(decide, rows) <= allowed


def bag_misses(decide: Decider, rows: Integers) -> int:
    return sum(not decide(np.delete(rows, i), rows[i : i + 1], i)[0] for i in range(len(rows)))


def binomial_tail(count: int, trials: int, p: float) -> float:
    """P(Binomial(trials, p) ≥ count)."""
    ks = np.arange(count, trials + 1)
    logs = [
        math.lgamma(trials + 1)
        - math.lgamma(k + 1)
        - math.lgamma(trials - k + 1)
        + k * math.log(p)
        + (trials - k) * math.log1p(-p)
        for k in ks
    ]
    return float(np.exp(logs).sum())


def shortfalls(
    decide: Decider, pool: Pool, setting: Setting, repeats: int = CONDITIONAL_REPEATS
) -> int:
    """How many calibration draws cover too little of the whole pool: this is the conditional
    coverage, without a sampling error.
    """
    everything = np.arange(len(pool))
    needed = Fraction(setting.target) * len(pool)
    return sum(
        int(decide(draw.calibration, everything, draw.number).sum()) < needed
        for draw in draws(pool, setting.n, 0, repeats, seed=3)
    )


def keeps_given_calibration(count: int, repeats: int, delta: float) -> bool:
    """The exact binomial check of a training-conditional promise."""
    return binomial_tail(count, repeats, delta) > FALSE_ALARM


# --------------------------------------------------------------------------------------------------
# cases

POOLINGS: tuple[Pooling | None, ...] = (
    None,
    *(ag.MergeConfidence(r) for r in (-math.inf, -2, 0, 1, math.inf)),
    *(ag.MergePValues(r) for r in (-math.inf, -2, -1, -0.5, 0, 0.2, 1, 2.5, 3, 45, math.inf)),
    *(ag.MergePValues(r, table=True) for r in (-2, -1, -0.5, 0, 0.2)),
    *(ag.MergePValues(r, form="exchangeable") for r in (-0.5, 0, 1, 3, math.inf)),
    *(ag.MergePValues(r, form="randomized", seed=5) for r in (0, 1)),
    *(ag.MergeRanks(r) for r in (-math.inf, -1, 0, 1, 2, math.inf)),
    ag.MajorityVote(),
)
SCORES: dict[str, Callable[[Pool], Any]] = {
    "raw": lambda tuning: ag.LogLoss(ag.MergeConfidence(0)),
    "fixed temperature": lambda tuning: ag.Temperature(
        ag.MergeConfidence(1), np.linspace(2.0, 0.5, tuning.log_confidence.shape[1])
    ),
    "fitted temperature": lambda tuning: ag.Temperature.fit(tuning.log_confidence, tuning.labels),
    "spread": lambda tuning: ag.Spread(ag.LogLoss(), 0.7),
    "shaped": lambda tuning: Shaped(
        ag.LogLoss(), np.linspace(1.5, -1.5, tuning.log_confidence.shape[1])
    ),
    "ranks": lambda tuning: ag.TuningRanks.fit(tuning.log_confidence, tuning.labels),
}
RISKS: dict[str, Callable[[Pool, Setting], Any]] = {
    "plain": lambda tuning, setting: ag.TopMass(ag.MergeConfidence(0)),
    "temperatures": lambda tuning, setting: ag.TopMass.fit(tuning.log_confidence, tuning.labels),
    "shaped": lambda tuning, setting: ag.ShapedRisk.per_time(ag.TopMass(), setting.times),
    "learned": lambda tuning, setting: ag.LearnedRisk.fit(
        tuning.log_confidence, tuning.labels, max_set_size=setting.size
    ),
}
CASES: tuple[tuple[str, World, Setting], ...] = (
    ("counted, identical members", counted(1.0), SETTINGS[0]),
    ("counted", counted(0.5), SETTINGS[1]),
    ("counted, independent members", counted(0.0), SETTINGS[2]),
    ("counted", counted(0.5), SETTINGS[3]),
    ("counted, nearly identical members", counted(0.9), SETTINGS[4]),
    ("misled", misled, Setting(8, "0.5", 2, 1)),
    ("misled", misled, SETTINGS[1]),
    ("misled", misled, SETTINGS[2]),
    ("misled", misled, SETTINGS[3]),
    ("misled", misled, SETTINGS[4]),
    ("hunted", hunted, SETTINGS[1]),
    ("hunted", hunted, SETTINGS[3]),
    ("hunted", hunted, SETTINGS[4]),
)


MASS_CASES = (*CASES, ("hunted", hunted_mass, Setting(50, "0.9", 4, 2)))


def name_of(value: object) -> str:
    return str(value).replace(" ", "")


def pool_of(
    world: World,
    setting: Setting,
    members: int = MEMBERS,
    classes: int = CLASSES,
    rows: int = 2000,
    seed: int = 0,
) -> Pool:
    return world(np.random.default_rng(seed), rows, setting.checkpoints, members, classes)


def shuffled(seed: int, members: int = MEMBERS) -> Callable[[int], Integers]:
    """The members of each repetition in a random order: exchangeable, however unlike they are."""
    return lambda number: np.random.default_rng([seed, number]).permutation(members)


def always(order: Integers) -> Callable[[int], Integers]:
    return lambda number: order


def order_of(pooling: object) -> Callable[[int], Integers] | None:
    return (
        shuffled(9)
        if isinstance(pooling, ag.MergePValues) and pooling.form == "exchangeable"
        else None
    )


def describe(what: str, values: Floats) -> str:
    return f"{what}: covers {values.mean():.4f} ± {standard_error(values):.4f}"


@pytest.mark.parametrize("pooling", POOLINGS, ids=name_of)
def test_bonferroni_covers_with_every_pooling(pooling: Pooling | None) -> None:
    for what, world, setting in CASES:
        pool = pool_of(world, setting, 1 if pooling is None else MEMBERS)
        rule = ag.SpikeCP(setting.target, setting.times, setting.size, pooling)
        tests = 25 if isinstance(pooling, ag.MergeRanks) else 100
        values = coverages(deciding(rule, pool, order_of(pooling)), pool, setting, tests)
        assert keeps(values, setting.p), describe(f"{what} {setting}", values)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("calibration", CALIBRATIONS)
def test_every_calibration_covers_with_every_score(calibration: str, score: str) -> None:
    for what, world, setting in CASES:
        fitted = SCORES[score](pool_of(world, setting, rows=300, seed=77))
        pool = pool_of(world, setting)
        rule = ag.SpikeCP(
            setting.target, setting.times, setting.size, calibration=calibration, score=fitted
        )
        values = coverages(deciding(rule, pool), pool, setting)
        assert keeps(values, setting.p), describe(f"{what} {setting}", values)


@pytest.mark.parametrize("risk", RISKS)
@pytest.mark.parametrize("fill", [False, True], ids=["kept", "filled"])
def test_agreestop_covers(fill: bool, risk: str) -> None:
    for what, world, setting in MASS_CASES:
        pool = pool_of(world, setting)
        fitted = RISKS[risk](pool_of(world, setting, rows=300, seed=77), setting)
        rule = ag.AgreeStop(setting.target, setting.times, setting.size, fill, fitted)
        values = coverages(deciding(rule, pool), pool, setting)
        assert keeps(values, setting.p), describe(f"{what} {setting}", values)


def of_each_kind(
    setting: Setting, class_conditional: bool = False, delta: str | None = None
) -> dict[str, Rule]:
    """The rules that make conditional promises."""
    target, times, size = setting.target, setting.times, setting.size
    pooling = ag.MergeConfidence(1)
    rules: dict[str, Rule] = {
        calibration: ag.SpikeCP(
            target,
            times,
            size,
            pooling,
            calibration,
            class_conditional=class_conditional,
            delta=delta,
        )
        for calibration in CALIBRATIONS
    }
    for fill in (False, True):
        name = "agreestop, filled" if fill else "agreestop"
        rules[name] = ag.AgreeStop(
            target, times, size, fill, class_conditional=class_conditional, delta=delta
        )
    return rules


KINDS = tuple(of_each_kind(SETTINGS[0]))
CLASS_CASES: tuple[tuple[str, World, Setting], ...] = (
    ("counted", by_class(counted(0.5)), Setting(30, "0.7", 2, 1)),
    ("misled", by_class(misled), Setting(200, "0.8", 3, 1)),
    ("hunted", by_class(hunted), Setting(200, "0.8", 2, 1)),
)


@pytest.mark.parametrize("kind", KINDS)
def test_class_conditional_rules_cover_each_class(kind: str) -> None:
    """Three classes: a common one, one that is hard, one that is rare."""
    for what, world, setting in CLASS_CASES:
        pool = pool_of(world, setting, classes=3)
        decide = deciding(of_each_kind(setting, class_conditional=True)[kind], pool)
        for label in range(3):
            values = class_coverages(decide, pool, setting, label)
            assert keeps(values, setting.p), describe(f"{what} {setting} class {label}", values)


CONDITIONAL_CASES: tuple[tuple[str, World, Setting, str], ...] = (
    ("counted", counted(0.5), Setting(200, "0.8", 3, 2), "0.1"),
    ("misled", misled, Setting(150, "0.8", 3, 1), "0.2"),
    ("hunted", hunted, Setting(200, "0.9", 1, 2), "0.05"),
    ("hunted", hunted, Setting(120, "0.8", 3, 2), "0.1"),
    ("hunted", hunted_mass, Setting(50, "0.9", 3, 2), "0.1"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_training_conditional_rules_cover_given_the_calibration_data(kind: str) -> None:
    for what, world, setting, delta in CONDITIONAL_CASES:
        pool = pool_of(world, setting)
        count = shortfalls(deciding(of_each_kind(setting, delta=delta)[kind], pool), pool, setting)
        assert keeps_given_calibration(count, CONDITIONAL_REPEATS, float(delta)), (
            f"{what} {setting}: {count} draws of {CONDITIONAL_REPEATS} fall short"
        )


def test_monte_carlo_checks_are_counted() -> None:
    checks = len(CASES) * (len(POOLINGS) + len(CALIBRATIONS) * len(SCORES)) + len(
        MASS_CASES
    ) * 2 * len(RISKS)
    # the exact coverages below
    checks += len(KINDS) * (3 * len(CLASS_CASES) + len(CONDITIONAL_CASES)) + 50
    assert checks <= CHECKS


# --------------------------------------------------------------------------------------------------
# exact coverage

EXACT_SETTINGS = (
    Setting(8, "0.5", 1, 2),
    Setting(17, "0.9", 1, 2),
    Setting(31, "0.7", 3, 2),
    Setting(50, "0.9", 4, 2),
    Setting(7, "0.9", 1, 2),
)


@pytest.mark.parametrize("setting", EXACT_SETTINGS, ids=name_of)
@pytest.mark.parametrize("kind", KINDS)
def test_coverage_is_exactly_what_the_ranks_say(kind: str, setting: Setting) -> None:
    """No ties and nothing wasted: ⌈(n+1)p⌉/(n+1), and with Bonferroni 1 - M·⌊(n+1)α/M⌋/(n+1)."""
    pool = pool_of(hunted_mass if "agreestop" in kind else hunted, setting)
    values = coverages(deciding(of_each_kind(setting)[kind], pool), pool, setting, distinct=True)
    parts = setting.checkpoints if kind == "bonferroni" else 1
    exact = 1 - parts * math.floor((setting.n + 1) * setting.alpha / parts) / (setting.n + 1)
    assert exact >= setting.p
    assert equals(values, exact), describe(f"{exact} expected", values)


@pytest.mark.parametrize(
    ("members", "setting"),
    [(2, Setting(99, "0.9", 1, 2)), (4, Setting(99, "0.8", 1, 2)), (2, Setting(50, "0.9", 1, 2))],
)
def test_majority_vote_can_spend_all_it_is_allowed(members: int, setting: Setting) -> None:
    """Two camps of members that miss on different inputs: either camp is half of the votes, and
    half is not a majority.
    """
    rng = np.random.default_rng(0)
    losses = rng.random(2000)
    both = np.stack([losses, (losses + 0.5) % 1], axis=1)[:, np.arange(members) % 2]
    scores = np.zeros((2000, 1, members, 2))
    labels = rng.integers(2, size=2000)
    scores[np.arange(2000), 0, :, labels] = both
    pool = Pool(-scores, labels)
    rule = ag.SpikeCP(setting.target, setting.times, setting.size, ag.MajorityVote())
    values = coverages(deciding(rule, pool), pool, setting, distinct=True)
    exact = 1 - 2 * math.floor((setting.n + 1) * setting.alpha / 2) / (setting.n + 1)
    assert equals(values, exact), describe(f"{exact} expected", values)


def test_an_odd_majority_vote_keeps_its_promise_and_spends_nearly_all_of_it() -> None:
    """On every input two of three members share a loss and the third has none, so each loss above
    the thresholds is a miss.
    """
    setting = Setting(299, "0.8", 1, 2)
    rng = np.random.default_rng(0)
    labels, losses = rng.integers(2, size=4000), rng.random(4000)
    scores = np.zeros((4000, 1, 3, 2))
    scores[np.arange(4000), 0, :, labels] = np.where(
        np.arange(3) == rng.integers(3, size=4000)[:, None], 0.0, losses[:, None]
    )
    pool = Pool(-scores, labels)
    values = coverages(
        deciding(ag.SpikeCP(setting.target, setting.times, setting.size, ag.MajorityVote()), pool),
        pool,
        setting,
    )
    assert keeps(values, setting.p), describe("odd vote", values)
    assert not keeps(values, setting.p + 0.03), describe("odd vote, room", values)


@pytest.mark.parametrize(
    "pooling",
    [ag.MergePValues(1), ag.MergePValues(0, "randomized"), ag.MergeRanks(1), ag.MajorityVote()],
    ids=repr,
)
def test_class_conditional_ranks_and_votes_cover_each_class(pooling: Pooling) -> None:
    for what, world, setting in CLASS_CASES:
        pool = pool_of(world, setting, classes=3)
        decide = deciding(
            ag.SpikeCP(
                setting.target, setting.times, setting.size, pooling, class_conditional=True
            ),
            pool,
        )
        for label in range(3):
            values = class_coverages(decide, pool, setting, label)
            assert keeps(values, setting.p), describe(f"{what} {setting} class {label}", values)


@pytest.mark.parametrize("calibration", ["bonferroni", "simultaneous"])
def test_class_conditional_coverage_is_exactly_what_the_ranks_say(calibration: str) -> None:
    setting = Setting(60, "0.8", 1, 1)
    pool = pool_of(by_class(hunted), setting, classes=3)
    decide = deciding(of_each_kind(setting, class_conditional=True)[calibration], pool)
    for label in range(3):
        surplus = []
        for draw in draws(pool, setting.n, 100, 1500, seed=4, distinct=True):
            test = draw.test[pool.labels[draw.test] == label]
            size = int((pool.labels[draw.calibration] == label).sum()) + 1
            if len(test):
                surplus.append(
                    decide(draw.calibration, test, draw.number).mean()
                    - math.ceil(size * (1 - setting.alpha)) / size
                )
        assert equals(np.array(surplus), 0.0), describe(f"class {label}", np.array(surplus))


@pytest.mark.parametrize(
    ("n", "target", "delta"),
    [(50, "0.9", "0.1"), (100, "0.8", "0.05"), (30, "0.9", "0.05"), (29, "0.5", "0.3")],
)
def test_training_conditional_shortfall_is_exactly_the_binomial_tail(
    n: int, target: str, delta: str
) -> None:
    """One checkpoint, a uniform loss of the label: the conditional coverage is the threshold
    itself.
    """
    rule = ag.SpikeCP(target, (1,), 1, delta=delta)
    rng = np.random.default_rng(n)
    thresholds = []
    for _ in range(1000):
        losses = rng.random((n, 1, 1, 1)) * np.ones(2)
        calibrated = calibrate_quietly(rule, -losses, np.zeros(n, dtype=np.int64))
        assert calibrated.kth_values is not None
        thresholds.append(float(calibrated.kth_values[0, 0]))
    p = float(target)
    rank = next(k for k in range(1, n + 2) if k == n + 1 or binomial_tail(k, n, p) <= float(delta))
    exact = binomial_tail(rank, n, p) if rank <= n else 0.0
    assert exact <= float(delta)
    assert equals((np.array(thresholds) < p).astype(float), exact)


# --------------------------------------------------------------------------------------------------
# bags

BAG_SETTINGS = (Setting(8, "0.5", 1, 1), Setting(24, "0.6", 2, 2), Setting(39, "0.7", 3, 1))
BAGS = 20


def assert_bags_keep(rule: Rule, world: World, setting: Setting, members: int) -> None:
    pool = pool_of(world, setting, members, rows=BAGS * (setting.n + 1))
    decide = deciding(rule, pool)
    for rows in np.arange(len(pool)).reshape(BAGS, -1):
        assert bag_keeps(decide, rows, setting.alpha * len(rows)), f"{setting}"


def bag_worlds() -> tuple[World, ...]:
    return counted(0.0), counted(0.9), misled, hunted


@pytest.mark.parametrize(
    "pooling",
    [pooling for pooling in POOLINGS if getattr(pooling, "form", "any") == "any"],
    ids=name_of,
)
def test_no_bag_is_missed_too_often_with_any_pooling(pooling: Pooling | None) -> None:
    for setting in BAG_SETTINGS:
        for world in bag_worlds():
            rule = ag.SpikeCP(setting.target, setting.times, setting.size, pooling)
            assert_bags_keep(rule, world, setting, 1 if pooling is None else MEMBERS)


@pytest.mark.parametrize("kind", KINDS)
def test_no_bag_is_missed_too_often_with_any_calibration(kind: str) -> None:
    for setting in BAG_SETTINGS:
        for world in (*bag_worlds(), hunted_mass):
            assert_bags_keep(of_each_kind(setting)[kind], world, setting, MEMBERS)


@pytest.mark.parametrize("kind", KINDS)
def test_no_class_of_a_bag_is_missed_too_often(kind: str) -> None:
    """Class-conditional promises hold for the rows of one class given all others."""
    setting = Setting(39, "0.7", 2, 1)
    for world in bag_worlds():
        pool = pool_of(by_class(world), setting, classes=3, rows=BAGS * (setting.n + 1))
        decide = deciding(of_each_kind(setting, class_conditional=True)[kind], pool)
        for rows in np.arange(len(pool)).reshape(BAGS, -1):
            missed = np.array(
                [not decide(np.delete(rows, i), rows[i : i + 1], i)[0] for i in range(len(rows))]
            )
            for label in range(3):
                own = pool.labels[rows] == label
                assert missed[own].sum() <= setting.alpha * int(own.sum())


@pytest.mark.parametrize("r", [-0.5, 0, 1, 3])
def test_no_bag_is_missed_too_often_over_all_orders_of_the_members(r: float) -> None:
    """Prefix minima promise over the draw of the members: here all orders of three unlike
    members.
    """
    orders = [np.array(order) for order in permutations(range(3))]
    bags = BAGS // 4
    for setting in BAG_SETTINGS:
        rule = ag.SpikeCP(
            setting.target, setting.times, setting.size, ag.MergePValues(r, form="exchangeable")
        )
        for world in bag_worlds():
            pool = pool_of(world, setting, 3, rows=bags * (setting.n + 1))
            deciders = [deciding(rule, pool, always(order)) for order in orders]
            for rows in np.arange(len(pool)).reshape(bags, -1):
                misses = sum(bag_misses(decide, rows) for decide in deciders)
                assert misses <= setting.alpha * len(rows) * len(orders)


@pytest.mark.parametrize("r", [-20, -2, -1, -0.5, 0, 0.2, 0.5, 1, 2, 3, 5])
def test_worst_coupling_of_the_members_spends_nearly_all_that_is_allowed(r: float) -> None:
    """600 rows, 10 % may be missed: the exact constant lets a worst coupling of four members miss
    most of those 60, and no more.
    """
    rows, allowed = 600, 60
    pool, expected = coupled(r, MEMBERS, allowed, rows, ag.merging_factor(r, MEMBERS))
    decide = deciding(ag.SpikeCP("0.9", (1,), 2, ag.MergePValues(r)), pool)
    assert 0.85 * allowed <= expected <= bag_misses(decide, np.arange(rows)) <= allowed


@pytest.mark.parametrize(
    "pooling",
    [
        *(ag.MergePValues(r, form="randomized") for r in (0, 1)),
        *(ag.MergePValues(r, form="exchangeable") for r in (-0.5, 0, 1, 3)),
    ],
    ids=name_of,
)
def test_worst_coupling_spends_nearly_all_in_the_other_forms_too(pooling: ag.MergePValues) -> None:
    """The coupled rows fall for any uniform number and any order; the others have all ranks above
    theirs, and stand.
    """
    rows, allowed, r = 600, 60, pooling.r
    # This constant is valid for any number of members, so it is a little larger than four members
    # need.
    constant = math.e if r == 0 else (r + 1) ** (1 / r)
    pool, expected = coupled(r, MEMBERS, allowed, rows, constant)
    decide = deciding(ag.SpikeCP("0.9", (1,), 2, pooling), pool, order_of(pooling))
    assert (
        0.85 * allowed * ag.merging_factor(r, MEMBERS) / constant
        <= expected
        <= bag_misses(decide, np.arange(rows))
        <= allowed
    )


# A coupling made for a constant smaller by this share holds more rows than may be missed: the true
# constant must let them stand.
SHARES = (0.93, 0.8, 0.6)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("table", [False, True], ids=["exact", "printed"])
@pytest.mark.parametrize("r", [-20, -2, -1, -0.5, 0, 0.2, 0.5, 1, 2, 3, 5])
def test_no_coupling_of_the_members_is_missed_too_often(
    r: float, table: bool, share: float
) -> None:
    rows, allowed = 800, 80
    pool, tempted = coupled(r, MEMBERS, allowed, rows, share * ag.merging_factor(r, MEMBERS))
    assert tempted > allowed
    decide = deciding(ag.SpikeCP("0.9", (1,), 2, ag.MergePValues(r, table=table)), pool)
    assert bag_keeps(decide, np.arange(rows), Fraction(allowed))


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("r", [-0.5, 0, 1, 3])
def test_no_coupling_is_missed_too_often_over_all_orders_of_the_members(
    r: float, share: float
) -> None:
    rows, allowed = 200, 20
    pool, _ = coupled(r, MEMBERS, allowed, rows, share * (math.e if r == 0 else (r + 1) ** (1 / r)))
    rule = ag.SpikeCP("0.9", (1,), 2, ag.MergePValues(r, form="exchangeable"))
    orders = [np.array(order) for order in permutations(range(MEMBERS))]
    misses = sum(
        bag_misses(deciding(rule, pool, always(order)), np.arange(rows)) for order in orders
    )
    assert misses <= allowed * len(orders)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("r", [0, 1])
def test_no_coupling_is_missed_too_often_over_the_uniform_number(r: float, share: float) -> None:
    """A smaller uniform number misses more, so numbers rounded up to a grid count too few misses,
    never too many.
    """
    rows, allowed = 300, 30
    pool, _ = coupled(r, MEMBERS, allowed, rows, share * (math.e if r == 0 else 2.0))
    rule = ag.SpikeCP("0.9", (1,), 2, ag.MergePValues(r, form="randomized"))
    trials = Trials(rule, pool.log_confidence, pool.labels)
    uniforms = np.arange(1, 101)[:, None] / 100
    misses = 0.0
    for row in range(rows):
        others = np.delete(np.arange(rows), row)
        sets = trials.with_uniforms(trials.fit(others), row, uniforms)
        misses += 1 - sets[:, pool.labels[row]].mean()
    assert misses <= allowed + 1e-9


# --------------------------------------------------------------------------------------------------
# controls


def from_p_values(pool: Pool, alpha: float, combine: Callable[[Floats], Floats]) -> Decider:
    """A control: the label is held where the members' p-variables (b, K) at the last checkpoint
    combine to more than α.
    """
    own = -pool.log_confidence[np.arange(len(pool)), -1, :, pool.labels]

    def decide(calibration: Integers, test: Integers, number: int) -> Booleans:
        p = np.stack(
            [ag.p_values(own[calibration, k], own[test, k]) for k in range(own.shape[1])], axis=1
        )
        return np.asarray(combine(p) > alpha)

    return decide


def fisher(p: Floats) -> Floats:
    """P(χ²(2K) > -2 Σ log p), the p-variable of independent members."""
    half = -np.log(p).sum(axis=1)
    terms = [half**j / math.factorial(j) for j in range(p.shape[1])]
    return np.asarray(np.exp(-half) * np.sum(terms, axis=0))


def continuous(dependence: float) -> World:
    """Losses without ties, for controls that ties would hide."""

    def world(
        rng: np.random.Generator, rows: int, checkpoints: int, members: int, classes: int
    ) -> Pool:
        shared = rng.normal(size=(rows, checkpoints, 1, classes))
        own = rng.normal(size=(rows, checkpoints, members, classes))
        logits = math.sqrt(dependence) * shared + math.sqrt(1 - dependence) * own
        return Pool(ag.log_confidence(logits), rng.integers(classes, size=rows))

    return world


CONTROL = Setting(100, "0.9", 1, 1)


@pytest.mark.parametrize("dependence", [0.5, 1.0])
def test_control_fisher_fails_for_dependent_members(dependence: float) -> None:
    pool = pool_of(continuous(dependence), CONTROL)
    assert not keeps(coverages(from_p_values(pool, 0.1, fisher), pool, CONTROL), 0.9)
    assert not bag_keeps(from_p_values(pool, 0.1, fisher), np.arange(300), Fraction(30))
    twice_the_mean = from_p_values(pool, 0.1, lambda p: ag.merge_p_values(p, 1))
    assert keeps(coverages(twice_the_mean, pool, CONTROL), 0.9)
    assert bag_keeps(twice_the_mean, np.arange(300), Fraction(30))


def test_control_sorted_members_break_prefix_minima() -> None:
    pool = pool_of(continuous(0.0), CONTROL, members=6)
    in_order = from_p_values(pool, 0.1, lambda p: merge_exchangeable(p, 1))
    in_sorted_order = from_p_values(pool, 0.1, lambda p: merge_exchangeable(np.sort(p, axis=1), 1))
    assert keeps(coverages(in_order, pool, CONTROL), 0.9)
    values = coverages(in_sorted_order, pool, CONTROL)
    assert not keeps(values, 0.9)
    assert 0.65 < values.mean() < 0.8  # six chances at half the level


def test_control_prefix_minima_need_one_constant_for_all_prefixes() -> None:
    """The constants of m members at every m spend the whole level on the first member already."""
    pool = pool_of(continuous(0.0), CONTROL, members=12)

    def by_prefix(p: Floats) -> Floats:
        return np.min(
            [
                ag.merging_factor(-0.9, m) * ag.generalized_mean(p[:, :m], -0.9)
                for m in range(1, 13)
            ],
            axis=0,
        )

    assert not keeps(coverages(from_p_values(pool, 0.1, by_prefix), pool, CONTROL), 0.9)
    assert keeps(
        coverages(from_p_values(pool, 0.1, lambda p: merge_exchangeable(p, -0.9)), pool, CONTROL),
        0.9,
    )


def test_control_mean_of_p_values_needs_its_constant() -> None:
    pool, expected = coupled(1, MEMBERS, 30, 300, 1.0)
    assert expected > 50
    assert not bag_keeps(
        from_p_values(pool, 0.1, lambda p: p.mean(axis=1)), np.arange(300), Fraction(30)
    )
    assert bag_keeps(
        from_p_values(pool, 0.1, lambda p: ag.merge_p_values(p, 1)), np.arange(300), Fraction(30)
    )


@pytest.mark.parametrize("r", [-2, -1, -0.5, 0, 0.2, 2])
def test_control_constants_that_are_ten_percent_too_small_fail(r: float) -> None:
    small = 0.9 * ag.merging_factor(r, MEMBERS)
    pool, expected = coupled(r, MEMBERS, 60, 600, small)
    assert expected > 60
    decide = from_p_values(
        pool, 0.1 * (1 + 1e-9), lambda p: np.minimum(1, small * ag.generalized_mean(p, r))
    )
    assert not bag_keeps(decide, np.arange(600), Fraction(60))


def test_control_bonferroni_without_its_factor_fails() -> None:
    """Four checkpoints at the level of one: the hunted label is missed up to four times
    as often.
    """
    setting = Setting(200, "0.9", 4, 2)
    pool = pool_of(hunted, setting)
    # α/M = 0.1
    at_level_of_one = ag.SpikeCP("0.6", setting.times, setting.size, ag.MergeConfidence(1))
    values = coverages(deciding(at_level_of_one, pool), pool, setting)
    assert not keeps(values, setting.p)
    assert keeps(values, 0.6)


@pytest.mark.parametrize(
    "setting", [Setting(20, "0.9", 1, 1), Setting(8, "0.5", 1, 1)], ids=name_of
)
def test_control_quantile_without_the_correction_fails(setting: Setting) -> None:
    pool = pool_of(continuous(0.0), setting, members=1)
    own = -pool.log_confidence[np.arange(len(pool)), 0, 0, pool.labels]

    def decide(calibration: Integers, test: Integers, number: int) -> Booleans:
        rank = math.ceil(setting.n * (1 - setting.alpha))
        return np.asarray(own[test] <= np.sort(own[calibration])[rank - 1])

    assert not keeps(coverages(decide, pool, setting), setting.p)
    assert not bag_keeps(decide, np.arange(setting.n + 1), setting.alpha * (setting.n + 1))


def test_control_quantile_per_class_breaks_the_stop_aware_rule() -> None:
    """Class 0 needs a high threshold; applied only to class 0, it stops inputs of class 1 at once,
    with class 0 as the answer.
    """
    setting = Setting(60, "0.8", 2, 1)
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=2000)
    scores = np.where(
        labels[:, None, None] == 0,
        np.array([[9.0, 9.0], [5.0, 1.0]]),
        np.array([[4.0, 3.0], [8.0, 0.5]]),
    )
    scores += 0.1 * rng.random(scores.shape)
    pool = Pool(-scores[:, :, None], labels)

    each = value_of_each(
        ag.SpikeCP("1/2", setting.times, setting.size, None, "stop-aware"),
        pool.log_confidence,
        labels,
    )

    def per_class(calibration: Integers, test: Integers, number: int) -> Booleans:
        truth = labels[calibration]
        thresholds = []
        for label in range(2):
            own = np.sort(each[calibration][truth == label])
            rank = quantile_rank(len(own), 1 - setting.alpha)
            thresholds.append(own[rank - 1] if rank <= len(own) else np.inf)
        sets = scores[test] <= np.array(thresholds)
        sizes = sets.sum(axis=2)
        stops = (sizes[:, 0] >= 1) & (sizes[:, 0] <= setting.size)
        last = np.where(
            sizes[:, 1:] == 0,
            scores[test][:, 1] == scores[test][:, 1].min(axis=1, keepdims=True),
            sets[:, 1],
        )
        answers = np.where(stops[:, None], sets[:, 0], last)
        return np.asarray(answers[np.arange(len(test)), labels[test]])

    ours = deciding(
        ag.SpikeCP(
            setting.target, setting.times, setting.size, None, "stop-aware", class_conditional=True
        ),
        pool,
    )
    for label in range(2):
        assert keeps(class_coverages(ours, pool, setting, label), setting.p)
    assert keeps(class_coverages(per_class, pool, setting, 0), setting.p)
    assert not keeps(class_coverages(per_class, pool, setting, 1), setting.p)
    assert not keeps(coverages(per_class, pool, setting), setting.p)


@pytest.mark.parametrize("kind", KINDS)
def test_control_marginal_rules_do_not_cover_each_class(kind: str) -> None:
    setting = Setting(200, "0.8", 1, 1)
    pool = pool_of(by_class(counted(0.5)), setting, classes=3)
    decide = deciding(of_each_kind(setting)[kind], pool)
    assert keeps(coverages(decide, pool, setting), setting.p)
    assert not all(
        keeps(class_coverages(decide, pool, setting, label), setting.p) for label in range(3)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_control_marginal_rules_do_not_cover_given_the_calibration_data(kind: str) -> None:
    setting = Setting(200, "0.9", 1, 2)
    pool = pool_of(hunted_mass if "agreestop" in kind else hunted, setting)
    count = shortfalls(deciding(of_each_kind(setting)[kind], pool), pool, setting)
    assert not keeps_given_calibration(count, CONDITIONAL_REPEATS, 0.1)
