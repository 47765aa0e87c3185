"""The paper's protocol: many random divisions of a pool into calibration and test data, and the rule's figures on each."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import NormalDist
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import Booleans, Floats, InputError, Integers, as_count

from .checks import columns_of
from .conditions import LabelledEvidence
from .estimates import Estimate
from .evidence import Policy, run_policy
from .rounding import Rounding
from .rules import Rule, gather_evidence, refuse_used, warn_of
from .schedules import Schedule
from .score_files import ScoresLike, as_scores, labels_of, training_overlap
from .tuned_rows import ScoredRows

GROUPS = 16  # the rows are divided into this many groups, and each group is left out once
GROUP_REPEATS = 20  # realisations without each group
ROWS_PER_DEGREE, LEAST_FREEDOM = 40, 3  # with these, intervals for small pools hold in simulations
MOST_LOGIT = 100.0  # beyond it a bound is reached


@dataclass(frozen=True)
class PoolFigures:
    """Coverage, normalised latency, mean set size and member-steps with intervals for the draw of the pool; see `Splits.over_pools`."""

    coverage: Estimate
    normalized_latency: Estimate
    set_size: Estimate
    work: Estimate | None = None


@dataclass(frozen=True, eq=False)
class Splits:
    """One entry for each realisation: coverage, normalised latency and mean set size on its test data, and the mean member-steps.

    The intervals of `coverage`, `normalized_latency` and `set_size` are over realisations of this one pool. They leave out that another
    pool would give other figures; the intervals of `over_pools` take that in. bounds (3 or 4, 2): between which values each of the figures,
    and the work, must lie.
    """

    coverages: Floats
    latencies: Floats
    set_sizes: Floats
    confidence: float = 0.95
    n: int = 0
    without: Callable[[Booleans, int], "Splits"] | None = field(default=None, repr=False)
    works: Floats | None = None
    bounds: Floats | None = None

    @property
    def coverage(self) -> Estimate:
        return Estimate.of_mean(self.coverages, self.confidence)

    @property
    def normalized_latency(self) -> Estimate:
        return Estimate.of_mean(self.latencies, self.confidence)

    @property
    def set_size(self) -> Estimate:
        return Estimate.of_mean(self.set_sizes, self.confidence)

    @property
    def work(self) -> Estimate | None:
        """Mean member-steps behind an answer; None where the number of members is not known."""
        return None if self.works is None else Estimate.of_mean(self.works, self.confidence)

    @property
    def figures(self) -> Floats:
        """Coverages, latencies and set sizes as one array, (3, repeats)."""
        return np.stack([self.coverages, self.latencies, self.set_sizes])

    @property
    def _with_work(self) -> Floats:
        """The figures, and the work where it is known, (3 or 4, repeats)."""
        return self.figures if self.works is None else np.vstack([self.figures, self.works])

    @cached_property
    def over_pools(self) -> PoolFigures:
        """The same means with intervals for the draw of the pool; nan where the pool is too small to leave rows out. It takes seconds.

        They are meant to hold the mean over all pools of this size, drawn from the same source, in
        95 % of pools. In simulations with pools of 60 to 120 rows they did in 94 % to 100 % of 100
        pools (a slow test repeats it). Nothing is proven about them, and below 60 rows they were not
        tried.
        """
        return self.pool_figures(GROUP_REPEATS)

    def pool_figures(self, repeats: int) -> PoolFigures:
        """`over_pools` from this many realisations without each group of rows: fewer take less time and widen the intervals.

        The first realisations are repeated without each of G groups of rows. This is the jackknife, V = (G-1)/G Σ_g d_g² with d_g the
        mean over realisations of what leaving group g out changes. The variance of d_g over realisations is subtracted, and the
        variance of the means themselves is added.

        Coverage has the interval of Student's distribution with G - 1 degrees of freedom. Latency, set size and work depend on the few
        rows that decide the threshold, so that in small pools they are skewed and V is small where they are: they have one degree of
        freedom for every 40 rows, 3 to G - 1, and their interval holds that on the scale of the figure and that on the logit scale between
        the bounds of the figure.
        """
        figures = self._with_work
        if self.without is None:
            return PoolFigures(*(Estimate(mean, math.nan, math.nan, math.nan) for mean in figures.mean(axis=1).tolist()))
        means, repeats = figures.mean(axis=1), min(len(self.coverages), repeats)
        groups = np.random.default_rng(0).permutation(self.n) % GROUPS
        changes = np.stack([self.without(groups == group, repeats)._with_work for group in range(GROUPS)])
        changes -= changes.mean(axis=0)
        noise = changes.var(axis=2) / max(repeats - 1, 1)
        by_pool = (GROUPS - 1) / GROUPS * (changes.mean(axis=2) ** 2 - noise).sum(axis=0)
        errors = np.sqrt(np.maximum(by_pool, 0.0) + figures.var(axis=1) / max(len(self.coverages) - 1, 1))
        half = student_quantile(self.confidence, GROUPS - 1) * errors
        coverage = Estimate(*(float(value[0]) for value in (means, means - half, means + half, errors)))
        bounds = np.array([[-np.inf, np.inf]] * len(means)) if self.bounds is None else self.bounds
        freedom = min(max(self.n / ROWS_PER_DEGREE, LEAST_FREEDOM), GROUPS - 1)
        reach = student_quantile(self.confidence, freedom)
        others = zip(means[1:].tolist(), errors[1:].tolist(), bounds[1:].tolist(), strict=True)
        return PoolFigures(coverage, *(_skewed(mean, error, reach, ends, 0.5 / self.n) for mean, error, ends in others))


def student_quantile(confidence: float, freedom: float) -> float:
    """The quantile of Student's distribution for a two-sided interval, to the second digit from 3 degrees of freedom on."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))


def _skewed(mean: float, error: float, reach: float, ends: Sequence[float], margin: float) -> Estimate:
    """An interval that holds both the symmetric one and the one that is symmetric on the logit scale between the `ends`.

    margin: the share of the range, half a row, that a mean at a bound is taken to lie away from it, and that no error is smaller than.
    """
    (least, most), low, high = ends, mean - reach * error, mean + reach * error
    spread = most - least
    if not 0 < spread < math.inf:
        return Estimate(mean, low, high, error)
    share = min(max((mean - least) / spread, margin), 1 - margin)
    half = reach * math.hypot(error / spread, margin) / (share * (1 - share))
    odds = (math.log(share / (1 - share)) + side * min(half, MOST_LOGIT) for side in (-1, 1))
    lower, upper = (least + spread / (1 + math.exp(-logit)) for logit in odds)
    return Estimate(mean, min(mean, lower, max(low, least)), max(mean, upper, min(high, most)), error)


def repeat_splits(
    rule: Rule,
    scores_or_log_confidence: ScoresLike,
    labels: ArrayLike | None = None,
    n_calibration: int = 50,
    repeats: int = 50,
    seed: int = 0,
    times: Sequence[float] | None = None,
) -> Splits:
    """Calibrate on `n_calibration` random rows of a pool and decide on the others, `repeats` times.

    The pool is a `Scores` with labels, or log-confidences (n, M, K, C) with labels (n,). The evidence that the rule reads off the inputs
    is computed once for the whole pool.
    """
    data = as_scores(scores_or_log_confidence, labels, times, rule.checkpoints)
    truth, columns = labels_of(data), columns_of(rule.checkpoints, data.times)
    n, _, members, classes = data.log_confidence.shape
    as_count(repeats, "repeats")
    if as_count(n_calibration, "n_calibration") >= n:
        raise InputError(f"n_calibration is {n_calibration} and the pool has {n} rows: choose from 1 to {n - 1}, so that test rows remain.")
    refuse_used(rule, data.ids, ScoredRows(data.log_confidence, columns), training_overlap(data), "repeat_splits")
    evidence = gather_evidence(rule, data.log_confidence, columns)
    rounding = Rounding.of(data.log_confidence, data.rounding)
    examples = LabelledEvidence(evidence, truth, classes, rounding=rounding)
    rows = np.random.default_rng(seed).permutation(n)[:n_calibration]
    warn_of(rule, examples.rows(rows), members)
    return split_figures(rule, examples, n_calibration, repeats, seed, members=members)


@dataclass(frozen=True, eq=False)
class Realisation:
    """One random division of a pool: its calibration rows and test rows, and for each test row the stop index, the set and the block."""

    calibration: Integers
    test: Integers
    stops: Integers
    sets: Booleans
    blocks: Integers


def divisions(n: int, n_calibration: int, repeats: int, seed: int, out: Booleans | None = None) -> Iterator[tuple[Integers, Integers]]:
    """Random calibration rows and test rows out of n, `repeats` times, without the rows of the mask `out`.

    They depend only on the seed; more repeats begin alike, and without some rows the others keep their order.
    """
    rng = np.random.default_rng(seed)
    for _ in range(repeats):
        order = rng.permutation(n)
        order = order if out is None else order[~out[order]]
        yield order[:n_calibration], order[n_calibration:]


def realisations(
    rule: Rule, pool: LabelledEvidence, n_calibration: int, repeats: int, seed: int, out: Booleans | None = None
) -> Iterator[Realisation]:
    """Fit the rule on the calibration rows of each division of a pool, and decide on its test rows.

    This is the one loop over realisations: `repeat_splits`, `tune`, the report and the paper's figures all use it.
    """
    fit = _fits(rule, pool, n_calibration * repeats)
    for calibration, test in divisions(len(pool), n_calibration, repeats, seed, out):
        policy = fit(calibration)
        stops = run_policy(policy, pool.evidence, policy.start(len(test), pool.classes, 0), pool.classes, test)
        yield Realisation(calibration, test, stops.index, stops.sets, stops.block)


def _fits(rule: Rule, pool: LabelledEvidence, used: int) -> Callable[[Integers], Policy]:
    """The fit on some rows of the pool. Where `used` rows in all are more than the pool has, what a fit needs of a row is computed once."""
    if used < len(pool) or not getattr(rule, "reducible", False):
        return lambda rows: rule.fit(pool.rows(rows))
    reducible = cast(Any, rule)
    numbers = reducible.reduce(pool)

    def fit(rows: Integers) -> Policy:
        examples = replace(pool, evidence=pool.evidence[rows, :0], labels=pool.labels[rows], conditions=pool.conditions.rows(rows))
        policy: Policy = reducible.fit_reduced({name: values[rows] for name, values in numbers.items()}, examples)
        return policy

    return fit


def split_figures(
    rule: Rule,
    pool: LabelledEvidence,
    n_calibration: int,
    repeats: int,
    seed: int,
    out: Booleans | None = None,
    members: int | None = None,
) -> Splits:
    """The figures of every realisation of a pool, or of the pool without some rows. Without a schedule, work needs the `members`."""
    times = np.array(rule.checkpoints, dtype=np.float64)
    clock, figures, works = times / times[-1], np.empty((3, repeats)), np.empty(repeats)
    joined = rule.checkpoints.members if isinstance(rule.checkpoints, Schedule) else members
    costs = None if joined is None else times * joined
    least = 1
    for repeat, run in enumerate(realisations(rule, pool, n_calibration, repeats, seed, out)):
        sizes = np.count_nonzero(run.sets, axis=1)
        least = min(least, int(sizes.min()))
        coverage = run.sets[np.arange(len(run.test)), pool.labels[run.test]].mean()
        figures[:, repeat] = coverage, clock[run.stops].mean(), sizes.mean()
        works[repeat] = np.nan if costs is None else costs[run.stops].mean()

    def without(rows: Booleans, repeats: int) -> Splits:
        return split_figures(rule, pool, n_calibration, repeats, seed, rows, members)

    enough = n_calibration < len(pool) - math.ceil(len(pool) / GROUPS)  # rows remain for the test without any group
    bounds = [(0.0, 1.0), (float(clock[0]), 1.0), (least, pool.classes), *([] if costs is None else [(costs[0], costs[-1])])]
    return Splits(
        *(figures[0], figures[1], figures[2]),
        n=len(pool),
        without=without if enough else None,
        works=None if costs is None else works,
        bounds=np.array(bounds, dtype=np.float64),
    )
