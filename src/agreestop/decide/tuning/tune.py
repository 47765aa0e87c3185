"""Choose and fit a score or a risk on the tuning split, for the lowest cost.

    cost = latency + price of size · classes beyond I in an answer
                   + price of work · share of all members' steps

Where work has a price, the schedule at which members join is chosen first (`schedules`).

Every candidate is fitted on one half of the tuning rows and read off the other, and the other way
round. On that evidence the rule is calibrated with `n_calibration` random rows and decides on the
rest, `repeats` times, always with the same random rows. The candidates of lowest cost then get
offsets over time: the best power of t/T for each, and for the best of them a seeded random search
over a few knots, all for the same figure. The winner is fitted again on all tuning rows.
Calibration and test data take no part, so the guarantee of the rule is untouched.

The winner's figure is the best of many on the same rows, so it flatters. With few rows all of this
is done on one half and compared with the rule as it was given on the other half, and the other way
round. A rule that does not gain there is left as it is.
"""

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import Booleans, Floats, InputError, columns_of, is_number, join_parts

from ..answers import Answers, VoteRisk
from ..calibrated import CalibratedRule
from ..checkpoints import Evidence, LabelledEvidence
from ..leakage import TunedRows, sketch_rows
from ..rule import Fit, Rule, gather_evidence
from ..scores import Scores, ScoresLike, as_scores, labels_of
from .agreement_features import NothingToLearn
from .schedules import as_price, best_schedule, check_rows
from .splits import Pool, realisations, repeat_splits

EXPONENTS = (-1.0, 0.0, 1.0, 2.0)
POWERS = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
KNOTS = 6
SEARCH_STEPS = 60
FINALISTS = 4
ENOUGH_ROWS = 1000  # from here on, tuning is trusted without a comparison


@dataclass(frozen=True)
class Trial:
    """A candidate and what it reached on the tuning split.

    Attributes
    ----------
    name
        The candidate.
    latency, work
        Shares of T and of K·T member-steps.
    set_size, excess
        Mean number of classes in an answer, and of classes beyond I.

    Examples
    --------
    >>> Trial("top mass", latency=0.4, set_size=1.5, excess=0.5).cost(price_of_size=0.1)
    0.45
    """

    name: str
    latency: float
    set_size: float
    excess: float = 0.0
    work: float = 0.0

    def cost(self, price_of_size: float, price_of_work: float = 0.0) -> float:
        """What tuning minimises."""
        return self.latency + price_of_size * self.excess + price_of_work * self.work


@dataclass(frozen=True, eq=False)
class Tuned:
    """What `tune` returns.

    Attributes
    ----------
    rule
        The tuned rule, ready to be calibrated.
    trials
        Every candidate that was tried, the one of lowest cost first.
    note
        A sentence if tuning did not help and the rule decides as it was given; else empty.

    Examples
    --------
    >>> import agreestop as ag
    >>> rule = ag.AgreeStop(0.9, (10, 20), 1)
    >>> ag.Tuned(rule, ()).note
    ''
    """

    rule: Any
    trials: tuple[Trial, ...]
    note: str = ""


def tune(
    rule: Rule,
    scores_or_log_confidence: ScoresLike,
    labels: ArrayLike | None = None,
    times: Sequence[float] | None = None,
    n_calibration: int = 50,
    exponents: Sequence[float] = EXPONENTS,
    repeats: int = 20,
    seed: int = 0,
    progress: Callable[[str, float], None] | None = None,
    *,
    price_of_work: float = 0.0,
    price_of_size: float = 0.0,
    only_if_better: bool = True,
) -> Tuned:
    """The rule with the score or risk that stops earliest on tuning data.

    Parameters
    ----------
    rule : SpikeCP or AgreeStop
        The rule to tune.
    scores_or_log_confidence : Scores, Answers, or array (n, M, K, C)
        Tuning scores with labels. Calibrate the result on other rows: it refuses these. For open
        answers, with labels="final" or right answers, the Beta criterion, the share and a learned
        risk are compared.
    labels, times : optional
        For log-confidences.
    n_calibration : int
        The number of calibration examples that the rule will have later.
    exponents : sequence of float
        The exponents r of confidence merging to try.
    repeats, seed : int
        Random divisions for each figure, and what decides them.
    progress : callable, optional
        It is called with what is being tried and the share that is done.
    price_of_work : float
        The latency, as a share of T, that the steps of all members up to T are worth. With a price,
        a `Schedule` is chosen too, at whose checkpoints members join; it replaces the rule's
        checkpoints, and its times are among them.
    price_of_size : float
        The latency, as a share of T, that one class beyond max_set_size in an answer is worth.
        Without a price, tuning buys early stops with answers of many classes at T; with one,
        AgreeStop's trim factor is chosen too.
    only_if_better : bool
        With fewer than 1,000 rows, leave the rule as it is where it gains no more than the error of
        the comparison.

    Returns
    -------
    Tuned

    Examples
    --------
    >>> import agreestop as ag
    >>> tuning = ag.simulate_scores(120, steps=4, K=1, C=3)
    >>> tuned = ag.tune(ag.AgreeStop(0.8, range(1, 5), 1), tuning, repeats=2, only_if_better=False)
    >>> tuned.trials[0].latency <= tuned.trials[-1].latency
    True
    """
    if isinstance(rule, CalibratedRule):
        raise InputError(
            "rule is calibrated, and tune takes one before calibration: give rule, not "
            "rule.calibrate(...), and calibrate what tune returns, on other rows."
        )
    if isinstance(scores_or_log_confidence, Answers):
        return _tune_votes(rule, scores_or_log_confidence, labels, n_calibration, repeats, seed)
    base = rule.untuned()
    if not is_number(price_of_size) or price_of_size < 0:
        raise InputError(
            f"price_of_size is {price_of_size!r}: give the latency that one class is worth, such "
            "as 0.05, or 0."
        )
    price_of_work = as_price(price_of_work)
    wanted = tuple(dict.fromkeys(base.checkpoints)) if price_of_work else base.checkpoints
    data = as_scores(scores_or_log_confidence, labels, times, wanted).at(wanted)
    n = check_rows(data, n_calibration)
    report = progress or (lambda what, share: None)
    compared = only_if_better and n < ENOUGH_ROWS and rule.reads(data.log_confidence.shape[2])
    rounds = 3 if compared else 1

    def bench(start: Rule, rows: Scores) -> _Bench:
        count = min(n_calibration, len(rows) // 2)
        return _Bench(start, rows, count, repeats, seed, price_of_size, price_of_work)

    def choose(rows: Scores, number: int) -> Tuned:
        start = base
        if price_of_work:
            report("schedule", number / rounds)
            count = min(n_calibration, len(rows) // 2)
            schedule = best_schedule(base, rows, price_of_work, count, repeats, seed)
            start, rows = replace(base, checkpoints=schedule), rows.at(schedule)  # type: ignore[type-var]

        def report_part(what: str, share: float) -> None:
            report(what, (number + share) / rounds)

        return bench(start, rows).choose(exponents, report_part)

    choice = choose(data, 0)
    tuned, note = choice.rule, ""
    if compared:
        half = np.random.default_rng([seed, 1]).permutation(n) % 2 == 0
        gains = []
        for number, rows in enumerate((half, ~half)):
            other = bench(base, data.rows(~rows))
            found = choose(data.rows(rows), number + 1).rule
            gains.append(other.costs(rule) - other.costs(found))
        gain = np.concatenate(gains)
        error = float(gain.std(ddof=1)) / np.sqrt(n)
        if not gain.mean() > error:
            columns = columns_of(rule.checkpoints, data.times)
            sketches = sketch_rows(data.log_confidence, columns)
            tuned = _remembering(rule, TunedRows.of_rule(sketches, len(columns), data.ids))
            what = "latency" if price_of_size == price_of_work == 0 else "cost"
            note = (
                f"Tuning on {n} rows did not help: on rows that it had not seen, {what} changed by "
                f"{-gain.mean():+.3f} ± {error:.3f} of T. The rule decides as it was given; more "
                "tuning rows may change that."
            )
        elif rule.tuned is not None and tuned.checkpoints == rule.checkpoints:
            tuned = _remembering(tuned, rule.tuned)  # its rows took part in the comparison
    report("done", 1.0)
    order = sorted(choice.trials, key=lambda trial: trial.cost(price_of_size, price_of_work))
    return Tuned(tuned, tuple(order), note)


def _remembering(rule: Rule, rows: TunedRows) -> Rule:
    """The same rule, which remembers these rows too."""
    return rule.with_reader(rule.reader.remembering(rows, tuple(rule.checkpoints)))


@dataclass(frozen=True, eq=False)
class _Shape:
    """Heights of the offsets at the knots, and what they reached."""

    heights: Floats
    trial: Trial


def _tune_votes(
    rule: Rule, answers: Answers, labels: Any, n_calibration: int, repeats: int, seed: int
) -> Tuned:
    """The rule with the risk of open answers that stops earliest on halves it was not fitted on."""
    data = answers.at(rule.checkpoints)
    if not 1 <= n_calibration <= len(data) // 4:
        raise InputError(
            f"n_calibration is {n_calibration} and there are {len(data)} tuning rows: give at "
            "least four times as many rows."
        )
    fits: dict[str, Callable[[Answers], Any]] = {
        "votes, Beta criterion": lambda part: VoteRisk(),
        "votes, share": lambda part: VoteRisk("share"),
        "votes, learned": lambda part: VoteRisk.fit(part, labels, rule.checkpoints),
    }
    half = np.random.default_rng([seed, 1]).permutation(len(data)) % 2 == 0
    trials = []
    for name, fit in fits.items():
        with suppress(InputError):  # nothing to learn, or weights that counts do not read
            latency = []
            for rows in (half, ~half):
                fitted = rule.with_reader(fit(data.rows(rows)))
                other = data.rows(~rows)
                found = repeat_splits(fitted, other, labels, n_calibration, repeats, seed)
                latency.append(float(found.normalized_latency))
            trials.append(Trial(name, float(np.mean(latency)), 1.0))
    if not trials:
        raise InputError("no risk of open answers fits these rows: give more rows, or labels.")
    trials.sort(key=lambda one: one.latency)
    chosen = fits[trials[0].name](data).remembering_ids(data)
    return Tuned(rule.with_reader(chosen), tuple(trials))


@dataclass(frozen=True, eq=False)
class _Bench:
    """Measures candidates on the tuning split, all with the same random rows."""

    rule: Rule
    data: Scores
    n_calibration: int
    repeats: int
    seed: int
    price_of_size: float
    price_of_work: float = 0.0

    def choose(self, exponents: Sequence[float], progress: Callable[[str, float], None]) -> Tuned:
        """Try all candidates, shapes over time for the best, and sizes where size has a price."""
        candidates = list(self.rule.candidates(exponents, self.data.log_confidence.shape[2]))
        shaped = self.rule.one_threshold and len(self.rule.checkpoints) > 1
        finalists = FINALISTS if shaped else 0
        total = len(candidates) + (finalists * len(POWERS) + SEARCH_STEPS if finalists else 0)
        steps = itertools.count()

        def count(what: str) -> None:
            progress(what, next(steps) / total)

        found: list[tuple[Fit, Evidence, Trial]] = []
        for name, fit in candidates:
            count(name)
            with suppress(NothingToLearn):
                evidence = self.crossfit(fit)
                found.append((fit, evidence, self.figures(name, evidence)))
        trials = [trial for *_, trial in found]
        found.sort(key=lambda one: self.cost(one[2]))
        (fit, evidence, plain), offsets = found[0], None
        if finalists:
            shapes = [
                self.best_power(read, trial, partial(count, trial.name))
                for _, read, trial in found[:finalists]
            ]
            best = int(np.argmin([self.cost(shape.trial) for shape in shapes]))
            fit, evidence, _ = found[best]
            shape = self.search(evidence, shapes.pop(best), partial(count, "shape over time"))
            trials += [one.trial for one in (*shapes, shape)]
            plain, offsets = shape.trial, self.offsets(shape.heights)
            evidence = evidence.minus(offsets)
        rule, chosen, rows = self._best_size(evidence, trials, plain), fit(self.data), None
        # Offsets of 0 change nothing, and remember the rows that chose among the candidates.
        if chosen.tuned is None:
            rows = TunedRows.of(self.data.log_confidence, self.data.ids)
        if offsets is not None or rows is not None:
            flat = np.zeros(len(self.data.times)) if offsets is None else offsets
            chosen = chosen.shaped(flat, self.data.times, rows)
        return Tuned(rule.with_reader(chosen), tuple(trials))

    def _best_size(self, evidence: Evidence, trials: list[Trial], plain: Trial) -> Rule:
        """The variant of the rule with the best size of answers, where size has a price."""
        if self.price_of_size == 0:
            return self.rule
        variants = list(self.rule.smaller_answers())
        found = [
            replace(self, rule=variant).figures(f"{plain.name}, {name}", evidence)
            for name, variant in variants
        ]
        trials += found
        costs = [self.cost(trial) for trial in found]
        if not costs or not min(costs) < self.cost(plain):
            return self.rule
        return variants[int(np.argmin(costs))][1]

    def cost(self, trial: Trial) -> float:
        """What tuning minimises."""
        return trial.cost(self.price_of_size, self.price_of_work)

    def costs(self, rule: Rule) -> Floats:
        """The cost of each row (n,) under a rule that was not tuned on it.

        It is the mean over the realisations that tested the row.
        """
        columns = columns_of(rule.checkpoints, self.data.times)
        own = replace(self, rule=rule)
        pool = own._pool(gather_evidence(rule, self.data.log_confidence, columns))
        total, tested = np.zeros((2, len(pool)))
        waited = own.latencies + (self.price_of_work * own.loads if self.price_of_work else 0.0)
        for run in realisations(rule, pool, self.n_calibration, self.repeats, self.seed):
            total[run.test] += waited[run.stops] + self.price_of_size * self._excess(run.sets)
            tested[run.test] += 1
        return total / np.maximum(tested, 1)

    def _pool(self, evidence: Evidence) -> Pool:
        classes = self.data.log_confidence.shape[3]
        examples = LabelledEvidence(evidence, labels_of(self.data), classes)
        return Pool.of(self.rule, examples)

    def _excess(self, sets: Booleans) -> Floats:
        """The number of classes beyond I in each answer."""
        return np.maximum(np.count_nonzero(sets, axis=1) - float(self.rule.max_set_size), 0.0)

    @cached_property
    def latencies(self) -> Floats:
        """t/T at the checkpoints."""
        times = np.array(self.rule.checkpoints, dtype=np.float64)
        return times / times[-1]

    @cached_property
    def loads(self) -> Floats:
        """The share t·k/(T·K) of all work at the checkpoints; t/T without a schedule."""
        joined = self.rule.joined_members
        if joined is None:
            return self.latencies
        return self.latencies * np.array(joined) / self.data.log_confidence.shape[2]

    def crossfit(self, fit: Fit) -> Evidence:
        """Evidence (n, M, ...) of every row under a fit on the other half of the rows."""
        half = np.random.default_rng(self.seed).permutation(len(self.data)) % 2 == 0
        columns = list(range(len(self.data.times)))
        parts = []
        for rows in (half, ~half):
            rule = self.rule.with_reader(fit(self.data.rows(~rows)))
            parts.append(gather_evidence(rule, self.data.log_confidence[rows], columns))
        order = np.argsort(~half, kind="stable").argsort()
        return join_parts(parts)[order]

    def figures(self, name: str, evidence: Evidence) -> Trial:
        """What the rule reaches with this evidence, on average over random calibration rows."""
        figures, pool = np.empty((self.repeats, 4)), self._pool(evidence)
        runs = realisations(self.rule, pool, self.n_calibration, self.repeats, self.seed)
        for repeat, run in enumerate(runs):
            sizes = np.count_nonzero(run.sets, axis=1)
            waited, worked = self.latencies[run.stops].mean(), self.loads[run.stops].mean()
            figures[repeat] = waited, sizes.mean(), self._excess(run.sets).mean(), worked
        return Trial(name, *(float(one.mean()) for one in figures.T.copy()))

    @property
    def clock(self) -> Floats:
        """log(t/T) at the checkpoints; with a schedule, the logarithm of the share of all work."""
        return np.log(self.loads)

    @property
    def knots(self) -> Floats:
        """Points in log time between which offsets are interpolated."""
        return np.linspace(self.clock[0], 0.0, min(KNOTS, len(self.clock)))

    def offsets(self, heights: Floats) -> Floats:
        """Offsets (M,) from their heights at the knots."""
        return np.asarray(np.interp(self.clock, self.knots, heights))

    def _try(self, evidence: Evidence, heights: Floats, shape: _Shape) -> _Shape:
        """The better of a shape and one with other heights."""
        trial = self.figures(shape.trial.name, evidence.minus(self.offsets(heights)))
        return _Shape(heights, trial) if self.cost(trial) < self.cost(shape.trial) else shape

    def best_power(self, evidence: Evidence, plain: Trial, progress: Callable[[], None]) -> _Shape:
        """Offsets in proportion to log time: the best power of t/T."""
        named = replace(plain, name=f"{plain.name}, shaped over time")
        shape = _Shape(np.zeros(len(self.knots)), named)
        for power in POWERS:
            progress()
            shape = self._try(evidence, power * self.knots, shape)
        return shape

    def search(self, evidence: Evidence, shape: _Shape, progress: Callable[[], None]) -> _Shape:
        """Offsets that move freely at the knots, by random steps from the best so far.

        The last stays 0: a constant changes nothing.
        """
        rng = np.random.default_rng(self.seed)
        for _ in range(SEARCH_STEPS):
            progress()
            moved = rng.random(len(self.knots)) < 0.4
            moved[-1] = False
            steps = np.where(moved, rng.normal(scale=0.5, size=len(self.knots)), 0.0)
            shape = self._try(evidence, shape.heights + steps, shape)
        return shape
