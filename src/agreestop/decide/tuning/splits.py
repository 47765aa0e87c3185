"""The paper's protocol: divide a pool at random into calibration and test data, many times.

On each division the rule is calibrated and decides; its figures are kept.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import Booleans, Floats, InputError, Integers, as_count, columns_of
from agreestop.common.estimates import Estimate, student_quantile
from agreestop.common.levels import Rounding, Target

from ..checkpoints import Conditions, LabelledEvidence, run_policy
from ..leakage import training_overlap
from ..rule import (
    Reduced,
    Rule,
    check_conditions,
    gather_evidence,
    refuse_used,
    shortage,
    warn_of_sizes,
)
from ..scores import ScoresLike, labels_of

GROUPS = 16  # the rows are divided into this many groups, and each group is left out once
GROUP_REPEATS = 20  # realisations without each group
ROWS_PER_DEGREE, LEAST_FREEDOM = 40, 3  # with these, intervals for small pools hold in simulations
MOST_LOGIT = 100.0  # beyond it a bound is reached


@dataclass(frozen=True)
class PoolFigures:
    """Mean figures with intervals for the draw of the pool; see `Splits.over_pools`.

    Attributes
    ----------
    coverage, normalized_latency, set_size, kept
        As in `Evaluation`.
    work
        The mean number of member-steps.

    Examples
    --------
    >>> import agreestop as ag
    >>> scores = ag.simulate_scores(200, steps=8, K=2, C=3)
    >>> splits = ag.repeat_splits(ag.AgreeStop(0.9, range(1, 9), 1), scores, repeats=20)
    >>> figures = splits.over_pools
    >>> bool(figures.coverage.low < figures.coverage < figures.coverage.high)
    True
    """

    coverage: Estimate
    normalized_latency: Estimate
    set_size: Estimate
    kept: Estimate
    work: Estimate | None = None


@dataclass(frozen=True, eq=False)
class Splits:
    """The figures of every realisation: one random division of a pool. `repeat_splits` makes them.

    Attributes
    ----------
    coverages, latencies, set_sizes : (repeats,)
        Coverage, normalised latency and mean set size on the test rows of each realisation. As in
        `evaluate`, an input that abstains has no answer, and is not covered.
    kepts : (repeats,), or None
        For a rule that abstains: the share of test rows that abstain or are covered.
    confidence : float
        The level of the intervals.
    n : int
        The number of rows in the pool, or of people.
    without : callable or None
        The figures of the first realisations without some rows; None where the pool is too small.
    works : (repeats,), or None
        The mean member-steps behind an answer, where the number of members is known.
    bounds : (3 or 4, 2), or None
        The least and the largest possible value of each figure, and of the work.

    Notes
    -----
    The intervals of `coverage`, `normalized_latency` and `set_size` are over realisations of this
    one pool. Another pool would give other figures: the intervals of `over_pools` allow for that.

    Examples
    --------
    >>> import agreestop as ag
    >>> pool = ag.simulate_scores(300, steps=20, K=3, C=4)
    >>> splits = ag.repeat_splits(ag.AgreeStop(0.9, range(1, 21), 1), pool, repeats=10)
    >>> splits.coverages.shape, bool(splits.normalized_latency < 1)
    ((10,), True)
    """

    coverages: Floats
    latencies: Floats
    set_sizes: Floats
    confidence: float = 0.95
    n: int = 0
    without: Callable[[Booleans, int], "Splits"] | None = field(default=None, repr=False)
    works: Floats | None = None
    bounds: Floats | None = None
    kepts: Floats | None = None

    @property
    def kept(self) -> Estimate:
        """The mean share for which the promise is kept: coverage, and abstentions."""
        return Estimate.of_mean(self._kepts, self.confidence)

    @property
    def _kepts(self) -> Floats:
        return self.coverages if self.kepts is None else self.kepts

    @property
    def coverage(self) -> Estimate:
        """The mean coverage, with its interval over realisations."""
        return Estimate.of_mean(self.coverages, self.confidence)

    @property
    def normalized_latency(self) -> Estimate:
        """The mean normalised latency, with its interval over realisations."""
        return Estimate.of_mean(self.latencies, self.confidence)

    @property
    def set_size(self) -> Estimate:
        """The mean set size, with its interval over realisations."""
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
    def _all_figures(self) -> Floats:
        """Coverage, what is kept, latency, set size, and work if it is known, (4 or 5, repeats)."""
        rows = [self.coverages, self._kepts, self.latencies, self.set_sizes]
        return np.stack(rows if self.works is None else [*rows, self.works])

    @cached_property
    def over_pools(self) -> PoolFigures:
        """The same means with intervals for the draw of the pool. It takes seconds.

        The intervals are nan where the pool is too small to leave rows out. They are meant to hold
        the mean over all pools of this size, drawn from the same source, in 95 % of pools. In
        simulations with pools of 60 to 120 rows they did in 94 % to 100 % of 100 pools (a slow test
        repeats it). Nothing is proven about them, and below 60 rows they were not tried.
        """
        return self.pool_figures(GROUP_REPEATS)

    def pool_figures(self, repeats: int) -> PoolFigures:
        """`over_pools` from this many realisations without each group of rows.

        Fewer realisations take less time and widen the intervals. The first ones are repeated
        without each of G groups of rows. This is the jackknife, V = (G-1)/G Σ_g d_g², where d_g is
        the mean over realisations of what leaving group g out changes. The variance of d_g over
        realisations is subtracted, and the variance of the means themselves is added.

        Coverage has the interval of Student's distribution with G - 1 degrees of freedom. Latency,
        set size and work depend on the few rows that decide the threshold. In small pools they are
        therefore skewed, and V is small where they are small. So they have one degree of freedom
        for every 40 rows, from 3 to G - 1, and their interval contains both the one on the scale of
        the figure and the one on the logit scale between the bounds of the figure.
        """
        figures, repeats = self._all_figures, min(len(self.coverages), repeats)
        means = figures.mean(axis=1)
        if self.without is None:
            return _pool_figures([Estimate(mean, *[math.nan] * 3) for mean in means.tolist()])
        groups = np.random.default_rng(0).permutation(self.n) % GROUPS
        changes = np.stack(
            [self.without(groups == group, repeats)._all_figures for group in range(GROUPS)]
        )
        changes -= changes.mean(axis=0)
        noise = changes.var(axis=2) / max(repeats - 1, 1)
        by_pool = (GROUPS - 1) / GROUPS * (changes.mean(axis=2) ** 2 - noise).sum(axis=0)
        errors = np.sqrt(
            np.maximum(by_pool, 0.0) + figures.var(axis=1) / max(len(self.coverages) - 1, 1)
        )
        half = student_quantile(self.confidence, GROUPS - 1) * errors
        shares = [
            Estimate(*numbers)
            for numbers in np.stack([means, means - half, means + half, errors])[:, :2].T.tolist()
        ]
        bounds = (
            np.array([[-np.inf, np.inf]] * (len(means) - 1)) if self.bounds is None else self.bounds
        )
        freedom = min(max(self.n / ROWS_PER_DEGREE, LEAST_FREEDOM), GROUPS - 1)
        reach = student_quantile(self.confidence, freedom)
        others = zip(means[2:].tolist(), errors[2:].tolist(), bounds[1:].tolist(), strict=True)
        skewed = (_skewed(mean, error, reach, ends, 0.5 / self.n) for mean, error, ends in others)
        return _pool_figures([*shares, *skewed])


def _pool_figures(rows: list[Estimate]) -> PoolFigures:
    """From the rows of `Splits._all_figures`."""
    coverage, kept, latency, size, *work = rows
    return PoolFigures(coverage, latency, size, kept, *work)


def _skewed(
    mean: float, error: float, reach: float, ends: Sequence[float], margin: float
) -> Estimate:
    """An interval around the symmetric one and the one symmetric on the logit scale in `ends`.

    margin: half a row, as a share of the range. A mean at a bound is taken to lie this far from it,
    and no error is taken to be smaller.
    """
    (least, most), low, high = ends, mean - reach * error, mean + reach * error
    spread = most - least
    if not 0 < spread < math.inf:
        return Estimate(mean, low, high, error)
    share = min(max((mean - least) / spread, margin), 1 - margin)
    half = reach * math.hypot(error / spread, margin) / (share * (1 - share))
    odds = (math.log(share / (1 - share)) + side * min(half, MOST_LOGIT) for side in (-1, 1))
    lower, upper = (least + spread / (1 + math.exp(-logit)) for logit in odds)
    return Estimate(
        mean, min(mean, lower, max(low, least)), max(mean, upper, min(high, most)), error
    )


def repeat_splits(
    rule: Rule,
    scores_or_log_confidence: ScoresLike,
    labels: ArrayLike | str | None = None,
    n_calibration: int = 50,
    repeats: int = 50,
    seed: int = 0,
    times: Sequence[float] | None = None,
    *,
    people: ArrayLike | None = None,
    for_people: Target | None = None,
) -> Splits:
    """Calibrate on random rows of a pool and decide on the others, many times.

    Parameters
    ----------
    rule : Rule
        A rule before calibration.
    scores_or_log_confidence : Scores, or array (n, M, K, C)
        The pool, with labels. What the rule reads off the inputs is computed once for all of it.
        For a `StopRule`, risks (n, M) and losses (n, M) in place of labels: coverage is then the
        share answered without a loss, and set size the share answered. For `AgreeStop` also
        `Answers`. For an `IntervalStop`, `Numbers` with labels: set size is then the width.
    labels, times : optional
        For log-confidences. With labels="final", coverage is of the answer at the last checkpoint.
    n_calibration : int
        The number of calibration rows in each realisation.
    repeats, seed : int
        The number of realisations, and what decides their rows.
    people, for_people : optional
        As in `calibrate`. Each realisation then divides people, not rows: n_calibration is a number
        of people, nobody is in both parts, and in coverage people count equally.

    A rule that abstains promises `kept`, the share that is not answered wrongly.

    Returns
    -------
    Splits

    Examples
    --------
    >>> import agreestop as ag
    >>> pool = ag.simulate_scores(300, steps=20, K=3, C=4)
    >>> splits = ag.repeat_splits(ag.AgreeStop(0.9, range(1, 21), 1), pool, repeats=10)
    >>> bool(splits.coverage > 0.85)
    True
    """
    final = isinstance(labels, str) and labels == "final"
    data = rule.read(scores_or_log_confidence, None if final else labels, times)
    rule = rule.on(data)
    columns = columns_of(rule.checkpoints, data.times)
    members, classes = data.sizes
    known = Conditions.of(len(data), people=people, for_people=for_people, final=final)
    check_conditions(rule.terms, known, type(rule).__name__)
    n = len(data) if known.people is None else int(known.people.max()) + 1
    as_count(repeats, "repeats")
    if as_count(n_calibration, "n_calibration") >= n:
        what = "rows" if people is None else "people"
        raise InputError(
            f"n_calibration is {n_calibration} and the pool has {n} {what}: choose from 1 to "
            f"{n - 1}, so that test rows remain."
        )
    training = training_overlap(data.trained, data.trained_chance)
    refuse_used(rule, data.ids, data.scored(columns), training, "repeat_splits")
    evidence = gather_evidence(rule, data.cells, columns)
    truth = rule.best(evidence[:, -1]) if final else labels_of(data)
    rounding = Rounding.of(data.cells, data.rounding)
    examples = LabelledEvidence(evidence, truth, classes, known, rounding, data.loss)
    pool = Pool.of(rule, examples)
    rows, _ = next(pool.divisions(n_calibration, 1, seed))
    sentence = shortage(rule, pool.reduced_rows(rows), examples.without_evidence(rows), members)
    warn_of_sizes(rule, classes, sentence)
    return split_figures(rule, pool, n_calibration, repeats, seed, members=members)


@dataclass(frozen=True, eq=False)
class Pool:
    """Examples, and what calibration needs of each of them, which is computed at most once."""

    rule: Rule
    examples: LabelledEvidence
    reduced: Reduced
    known: Booleans

    @classmethod
    def of(cls, rule: Rule, examples: LabelledEvidence) -> Self:
        """The examples, to be reduced for the rule."""
        return cls(rule, examples, {}, np.zeros(len(examples), dtype=bool))

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def units(self) -> int:
        """The number of rows, or of people where these are known."""
        people = self.examples.conditions.people
        return len(self) if people is None else int(people.max()) + 1

    def divisions(
        self, n_calibration: int, repeats: int, seed: int, out: Booleans | None = None
    ) -> Iterator[tuple[Integers, Integers]]:
        """`divisions` of the rows, or of the people with all their rows."""
        people = self.examples.conditions.people
        for parts in divisions(self.units, n_calibration, repeats, seed, out):
            if people is None:
                yield parts
            else:
                calibration, test = (np.flatnonzero(np.isin(people, part)) for part in parts)
                yield calibration, test

    def mean(self, values: NDArray[Any], rows: Integers) -> float:
        """The mean of the values of some rows; people count equally."""
        people = self.examples.conditions.people
        if people is None:
            return float(values.mean())
        return float(np.average(values, weights=1 / np.bincount(people[rows])[people[rows]]))

    def reduced_rows(self, rows: Integers) -> Reduced:
        """What calibration needs of some of the examples."""
        new = rows[~self.known[rows]]
        if len(new):
            for name, values in self.rule.reduce(self.examples.rows(new)).items():
                empty = np.empty((len(self), *values.shape[1:]), values.dtype)
                self.reduced.setdefault(name, empty)[new] = values
            self.known[new] = True
        return {name: values[rows] for name, values in self.reduced.items()}


@dataclass(frozen=True, eq=False)
class Realisation:
    """One random division of a pool: calibration rows and test rows.

    For each test row it has the stop index, the set and the block.
    """

    calibration: Integers
    test: Integers
    stops: Integers
    sets: Booleans
    blocks: Integers
    interval: Floats


def divisions(
    n: int, n_calibration: int, repeats: int, seed: int, out: Booleans | None = None
) -> Iterator[tuple[Integers, Integers]]:
    """Random calibration rows and test rows out of n, `repeats` times, without some rows `out`.

    They depend only on the seed; more repeats begin alike, and without some rows the others keep
    their order.
    """
    rng = np.random.default_rng(seed)
    for _ in range(repeats):
        order = rng.permutation(n)
        order = order if out is None else order[~out[order]]
        yield order[:n_calibration], order[n_calibration:]


def realisations(
    rule: Rule,
    pool: Pool,
    n_calibration: int,
    repeats: int,
    seed: int,
    out: Booleans | None = None,
) -> Iterator[Realisation]:
    """Fit the rule on the calibration rows of each division of a pool; decide on its test rows.

    This is the one loop over realisations: `repeat_splits`, `tune`, the report and the paper's
    figures all use it.
    """
    examples = pool.examples
    if repeats * n_calibration >= pool.units:  # nearly all of them will be needed
        pool.reduced_rows(np.arange(len(pool)))
    for calibration, test in pool.divisions(n_calibration, repeats, seed, out):
        few = examples.without_evidence(calibration)
        policy = rule.fit(pool.reduced_rows(calibration), few)
        stops = run_policy(policy, examples.evidence, test, examples.classes)
        yield Realisation(calibration, test, stops.index, stops.sets, stops.block, stops.interval)


def split_figures(
    rule: Rule,
    pool: Pool,
    n_calibration: int,
    repeats: int,
    seed: int,
    out: Booleans | None = None,
    members: int | None = None,
) -> Splits:
    """The figures of every realisation of a pool, or of the pool without some rows.

    Without a schedule, work needs the number of members.
    """
    times = np.array(rule.checkpoints, dtype=np.float64)
    clock, figures, works = times / times[-1], np.empty((3, repeats)), np.empty(repeats)
    kepts = np.empty(repeats)
    joined = rule.joined_members or members
    costs = None if joined is None else times * joined
    least, labels = float(not rule.terms.numbers), pool.examples.labels
    for repeat, run in enumerate(realisations(rule, pool, n_calibration, repeats, seed, out)):
        sizes = np.count_nonzero(run.sets, axis=1)
        least = min(least, int(sizes.min()))
        hits = run.sets[np.arange(len(run.test)), labels[run.test]]
        abstains = (sizes == 0) & rule.terms.abstains
        if rule.terms.numbers and pool.examples.loss is not None:
            (lower, upper), true = run.interval.T, pool.examples.loss[run.test, 0]
            hits = (lower <= true) & (true <= upper)
            sizes = upper - lower
        elif pool.examples.loss is not None:
            abstains = ~run.sets[:, 0]
            hits = run.sets[:, 0] & (pool.examples.loss[run.test, run.stops] == 0)
        kepts[repeat] = pool.mean(hits | abstains, run.test)
        figures[:, repeat] = pool.mean(hits, run.test), clock[run.stops].mean(), sizes.mean()
        works[repeat] = np.nan if costs is None else costs[run.stops].mean()

    def without(rows: Booleans, repeats: int) -> Splits:
        return split_figures(rule, pool, n_calibration, repeats, seed, rows, members)

    # Rows must remain for the test without any group.
    enough = n_calibration < pool.units - math.ceil(pool.units / GROUPS)
    most = math.inf if rule.terms.numbers else pool.examples.classes
    bounds = [(0.0, 1.0), (float(clock[0]), 1.0), (least, most)]
    bounds += [] if costs is None else [(float(costs[0]), float(costs[-1]))]
    return Splits(
        figures[0],
        figures[1],
        figures[2],
        n=pool.units,
        without=without if enough else None,
        works=None if costs is None else works,
        bounds=np.array(bounds, dtype=np.float64),
        kepts=kepts if rule.terms.abstains else None,
    )
