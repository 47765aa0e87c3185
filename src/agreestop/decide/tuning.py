"""Choose and fit a score or a risk on the tuning split, for the lowest cost.

    cost = latency + price of size · classes beyond I in an answer + price of work · share of all members' steps

Where work has a price, the schedule at which members join is chosen first (`schedule_search`).

Every candidate is fitted on one half of the tuning rows and read off the other, and the other way round. On that evidence the rule is
calibrated with `n_calibration` random rows and decides on the rest, `repeats` times, always with the same random rows. The
candidates of lowest cost are then given offsets over time: the best power of t/T for each, and for the best of them a
seeded random search over a few knots, all for the same figure. The winner is fitted again on all tuning rows.
Calibration and test data take no part, so the guarantee of the rule is untouched.

The winner's figure is the best of many on the same rows, so it flatters. With few rows all of this is done on one half and compared
with the rule as it was given on the other half, and the other way round. A rule that does not gain there is left as it is.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import Booleans, Floats, InputError, is_number

from .agree_stop import AgreeStop
from .checks import columns_of
from .conditions import LabelledEvidence
from .evidence import Evidence
from .merging import MODEL_AVERAGE, MergeConfidence
from .risks import FixedTime, LearnedRisk, NothingToLearn, Risk, ShapedRisk, TopMass
from .rules import gather_evidence
from .schedule_search import as_price, best_schedule
from .schedules import Schedule
from .score_files import Scores, ScoresLike, as_scores, at_times, labels_of
from .scores import LogLoss, Score, Shaped, ShapedOverTime, Spread, Temperature, TuningRanks
from .spikecp import SpikeCP
from .splits import realisations
from .tuned_rows import TunedRows, sketch_rows

EXPONENTS = (-1.0, 0.0, 1.0, 2.0)
POWERS = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
KNOTS = 6
SEARCH_STEPS = 60
FINALISTS = 4
TRIMS = (1.0, 0.5, 0.25, 0.1, 0.0)
ENOUGH_ROWS = 1000  # from here on, tuning is trusted without a comparison


@dataclass(frozen=True)
class Trial:
    """A candidate and what it reached on the tuning split.

    latency and work are shares of T and of K·T member-steps; excess is the mean number of classes beyond I.
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
    """The tuned rule, ready to be calibrated, and every candidate that was tried, the one of lowest cost first.

    note  a sentence if tuning did not help and the rule decides as it was given; else empty
    """

    rule: SpikeCP | AgreeStop
    trials: tuple[Trial, ...]
    note: str = ""


Fit = Callable[[Scores], Score | Risk]
"""A way to make a score (for SpikeCP) or a risk (for AgreeStop) from tuning data."""


def _fixed(chosen: Score | Risk) -> Fit:
    return lambda data: chosen


def _spread(beta: float) -> Fit:
    return lambda data: Spread(Temperature.fit(data), beta)


def _candidates(rule: SpikeCP | AgreeStop, exponents: Sequence[float], members: int) -> Iterator[tuple[str, Fit]]:
    """All that is tried, each with its name."""
    for r in exponents if members > 1 else (1.0,):
        pooling = MergeConfidence(r)
        if isinstance(rule, AgreeStop):
            yield f"top mass, r={r:g}", _fixed(TopMass(pooling))
            yield f"top mass with temperatures, r={r:g}", partial(TopMass.fit, pooling=pooling)
        else:
            yield f"log-loss, r={r:g}", _fixed(LogLoss(pooling))
            yield f"temperatures, r={r:g}", partial(Temperature.fit, pooling=pooling)
            yield f"tuning ranks, r={r:g}", partial(TuningRanks.fit, pooling=pooling)
    if isinstance(rule, AgreeStop):
        if find_spec("sklearn"):
            yield "learned risk, r=1", partial(LearnedRisk.fit, max_set_size=rule.max_set_size)
    elif members > 1:
        for beta in (0.5, 1.0):
            yield f"temperatures, r=1, spread {beta:g}", _spread(beta)


def _with(
    rule: SpikeCP | AgreeStop,
    chosen: Score | Risk,
    rows: TunedRows | None = None,
    times: tuple[float, ...] | None = None,
    offsets: Floats | None = None,
) -> SpikeCP | AgreeStop:
    """The rule with another score or risk. With times (M,), it has offsets (M,) of 0 or as given, and remembers the tuning rows too."""
    if times is not None:
        heights = np.zeros(len(times)) if offsets is None else offsets
        if isinstance(rule, AgreeStop):
            chosen = ShapedRisk(cast(Risk, chosen), heights, times, rows)
        else:
            chosen = Shaped(cast(Score, chosen), heights, times, rows)
    if isinstance(rule, AgreeStop):
        return replace(rule, risk=cast(Risk, chosen))
    return replace(rule, pooling=None, score=cast(Score, chosen))


def tune(
    rule: SpikeCP | AgreeStop,
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
    """The rule with the score or risk that stops earliest on tuning scores, or on log-confidences (n, M, K, C) with labels (n,).

    n_calibration   the number of calibration examples that the rule will have later
    exponents       the r to try
    progress        is called with what is being tried and the share that is done
    price_of_work   the latency, as a share of T, that the steps of all members up to T are worth: with a price, a `Schedule` is chosen
                    too, at whose looks members join; it replaces the rule's checkpoints, and its times are among them
    price_of_size   the latency, as a share of T, that one class beyond max_set_size in an answer is worth: without a price, tuning buys
                    early stops with answers of many classes at T; with one, AgreeStop's trim factor is chosen too
    only_if_better  with fewer than 1,000 rows, leave the rule as it is where it gains no more than the error of the comparison

    Calibrate the result on other rows: it refuses these.
    """
    base = _untuned(rule)
    if not is_number(price_of_size) or price_of_size < 0:
        raise InputError(f"price_of_size is {price_of_size!r}: give the latency that one class is worth, such as 0.05, or 0.")
    price_of_work = as_price(price_of_work)
    if price_of_work and rule.target is None:
        raise InputError("a schedule is chosen for a target, and the rule has a loss instead: leave out price_of_work, or give a target.")
    wanted = tuple(dict.fromkeys(base.checkpoints)) if price_of_work else base.checkpoints
    data = at_times(as_scores(scores_or_log_confidence, labels, times, wanted), wanted)
    n = len(labels_of(data))
    if not 1 <= n_calibration <= n // 2:
        raise InputError(f"n_calibration is {n_calibration} and there are {n} tuning rows: give at least twice as many rows.")
    report = progress or (lambda what, share: None)
    compared = only_if_better and n < ENOUGH_ROWS and _reads(rule, data)
    rounds = 3 if compared else 1

    def choose(rows: Scores, number: int) -> _Choice:
        count, start = min(n_calibration, len(rows) // 2), base
        if price_of_work:
            report("schedule", number / rounds)
            schedule = best_schedule(rule.target, rule.delta, rule.max_set_size, rows, price_of_work, count, repeats, seed)
            start, rows = replace(base, checkpoints=schedule), rows.at(schedule)
        bench = _Bench(start, rows, count, repeats, seed, price_of_size, price_of_work)
        return bench.choose(exponents, lambda what, share: report(what, (number + share) / rounds))

    choice = choose(data, 0)
    tuned, note = choice.rule, ""
    if compared:
        half = np.random.default_rng([seed, 1]).permutation(n) % 2 == 0
        gains = []
        for number, rows in enumerate((half, ~half)):
            bench = _Bench(base, data.rows(~rows), min(n_calibration, int((~rows).sum()) // 2), repeats, seed, price_of_size, price_of_work)
            gains.append(bench.costs(rule) - bench.costs(choose(data.rows(rows), number + 1).rule))
        gain = np.concatenate(gains)
        error = float(gain.std(ddof=1)) / np.sqrt(n)
        if not gain.mean() > error:
            columns = columns_of(rule.checkpoints, data.times)
            tuned = _remembering(rule, TunedRows.of_rule(sketch_rows(data.log_confidence, columns), len(columns), data.ids))
            what = "latency" if price_of_size == price_of_work == 0 else "cost"
            note = (
                f"Tuning on {n} rows did not help: on rows that it had not seen, {what} changed by {-gain.mean():+.3f} ± {error:.3f} of T. "
                "The rule decides as it was given; more tuning rows may change that."
            )
        elif rule.tuned is not None and tuned.checkpoints == rule.checkpoints:  # its rows took part in the comparison
            tuned = _remembering(tuned, rule.tuned)
    report("done", 1.0)
    return Tuned(tuned, tuple(sorted(choice.trials, key=lambda trial: trial.cost(price_of_size, price_of_work))), note)


def _remembering(rule: SpikeCP | AgreeStop, rows: TunedRows) -> SpikeCP | AgreeStop:
    """The same rule, which remembers these rows too."""
    chosen = _score_of(rule)
    if isinstance(chosen, ShapedOverTime):
        return _with(rule, replace(chosen, rows=rows if chosen.rows is None else chosen.rows.also(rows)))
    return _with(rule, chosen, rows, tuple(rule.checkpoints))


def _reads(rule: SpikeCP | AgreeStop, data: Scores) -> bool:
    """Whether the rule can read the scores as it was given: SpikeCP without pooling cannot read several members."""
    return isinstance(rule, AgreeStop) or rule.pooling is not None or rule.score is not None or data.log_confidence.shape[2] == 1


def _score_of(rule: SpikeCP | AgreeStop) -> Score | Risk:
    """The score or risk of a rule that was not tuned."""
    if isinstance(rule, AgreeStop):
        return rule.risk
    return LogLoss(cast(MergeConfidence | None, rule.pooling) or MODEL_AVERAGE) if rule.score is None else rule.score


def _untuned(rule: SpikeCP | AgreeStop) -> SpikeCP | AgreeStop:
    """The rule without the score, risk or confidence merging that tuning will choose."""
    if getattr(rule, "gate", None) is not None:
        raise InputError("the rule has a gate, which holds its risk: tune the rule without it, then give the tuned risk to Gate.fit.")
    if isinstance(rule, AgreeStop):
        if isinstance(rule.risk, FixedTime):
            raise InputError("a fixed time has no risk to tune: calibrate it as it is, or tune AgreeStop with another risk.")
        return replace(rule, risk=TopMass())
    if not isinstance(rule, SpikeCP):
        raise InputError(f"{type(rule).__name__} has nothing to tune: give SpikeCP or AgreeStop.")
    if rule.pooling is not None and not isinstance(rule.pooling, MergeConfidence):
        raise InputError(f"tune chooses a score of pooled confidences, but pooling is {rule.pooling!r}: give MergeConfidence or None.")
    return replace(rule, pooling=None, score=LogLoss())


@dataclass(frozen=True, eq=False)
class _Shape:
    """Heights of the offsets at the knots, and what they reached."""

    heights: Floats
    trial: Trial


class _Choice(NamedTuple):
    """The rule that was chosen, and all that was tried."""

    rule: SpikeCP | AgreeStop
    trials: list[Trial]


@dataclass(frozen=True, eq=False)
class _Bench:
    """Measures candidates on the tuning split, all with the same random rows."""

    rule: SpikeCP | AgreeStop
    data: Scores
    n_calibration: int
    repeats: int
    seed: int
    price_of_size: float
    price_of_work: float = 0.0

    def choose(self, exponents: Sequence[float], progress: Callable[[str, float], None]) -> _Choice:
        """Try all candidates, shapes over time for the best of them, and trim factors where size has a price."""
        candidates = list(_candidates(self.rule, exponents, self.data.log_confidence.shape[2]))
        finalists = FINALISTS if self.has_one_threshold else 0
        total = len(candidates) + (finalists * len(POWERS) + SEARCH_STEPS if finalists else 0)
        steps = itertools.count()

        def count(what: str) -> None:
            progress(what, next(steps) / total)

        fits: list[Fit] = []
        evidences: list[Evidence] = []
        trials: list[Trial] = []
        for name, fit in candidates:
            count(name)
            with suppress(NothingToLearn):
                evidences.append(self.crossfit(fit))
                fits.append(fit)
                trials.append(self.figures(name, evidences[-1]))
        ranking = np.argsort([self.cost(trial) for trial in trials], kind="stable").tolist()
        best, shape = ranking[0], None
        if finalists:
            shapes = {one: self.best_power(evidences[one], trials[one], partial(count, trials[one].name)) for one in ranking[:finalists]}
            best = min(shapes, key=lambda one: self.cost(shapes[one].trial))
            shape = self.search(evidences[best], shapes.pop(best), lambda: count("shape over time"))
            trials += [other.trial for other in shapes.values()] + [shape.trial]
        chosen = fits[best](self.data)
        rows = None if chosen.tuned is not None else TunedRows.of(self.data.log_confidence, self.data.ids)
        offsets = None if shape is None else self.offsets(shape.heights)
        trimmed = self._best_trim(evidences[best].minus(0.0 if offsets is None else offsets), trials, trials[best if shape is None else -1])
        # Offsets of 0 change nothing, and remember the rows that chose among the candidates.
        return _Choice(_with(trimmed, chosen, rows, self.data.times if offsets is not None or rows is not None else None, offsets), trials)

    def _best_trim(self, evidence: Evidence, trials: list[Trial], plain: Trial) -> SpikeCP | AgreeStop:
        """The rule with the best trim factor, where size has a price and nothing else was asked for."""
        rule = self.rule
        if self.price_of_size == 0 or not isinstance(rule, AgreeStop) or rule.fill or rule.trim != 1 or rule.max_set_size == 1:
            return rule
        tried = {trim: replace(self, rule=replace(rule, trim=trim)).figures(f"{plain.name}, trim {trim:g}", evidence) for trim in TRIMS[1:]}
        trials += tried.values()
        best = min(tried, key=lambda trim: self.cost(tried[trim]))
        return replace(rule, trim=best) if self.cost(tried[best]) < self.cost(plain) else rule

    def cost(self, trial: Trial) -> float:
        return trial.cost(self.price_of_size, self.price_of_work)

    def costs(self, rule: SpikeCP | AgreeStop) -> Floats:
        """The cost of each row (n,) under a rule that was not tuned on it: the mean over the realisations that tested it."""
        pool = self._pool(gather_evidence(rule, self.data.log_confidence, columns_of(rule.checkpoints, self.data.times)))
        total, tested = np.zeros((2, len(pool)))
        waited = replace(self, rule=rule)._clock + (self.price_of_work * replace(self, rule=rule)._load if self.price_of_work else 0.0)
        for run in realisations(rule, pool, self.n_calibration, self.repeats, self.seed):
            total[run.test] += waited[run.stops] + self.price_of_size * self._excess(run.sets)
            tested[run.test] += 1
        return total / np.maximum(tested, 1)

    def _pool(self, evidence: Evidence) -> LabelledEvidence:
        return LabelledEvidence(evidence, labels_of(self.data), self.data.log_confidence.shape[3])

    def _excess(self, sets: Booleans) -> Floats:
        """The number of classes beyond I in each answer."""
        return np.maximum(np.count_nonzero(sets, axis=1) - float(self.rule.max_set_size), 0.0)

    @property
    def _clock(self) -> Floats:
        """t/T at the checkpoints."""
        return np.array(self.rule.checkpoints, dtype=np.float64) / float(self.rule.checkpoints[-1])

    @property
    def _load(self) -> Floats:
        """The share t·k/(T·K) of all work at the checkpoints; t/T without a schedule."""
        checkpoints = self.rule.checkpoints
        if not isinstance(checkpoints, Schedule):
            return self._clock
        return self._clock * np.array(checkpoints.members) / self.data.log_confidence.shape[2]

    @property
    def has_one_threshold(self) -> bool:
        """Whether one threshold serves all checkpoints, so that its shape over time matters."""
        return len(self.rule.checkpoints) > 1 and (isinstance(self.rule, AgreeStop) or self.rule.calibration != "bonferroni")

    def crossfit(self, fit: Fit) -> Evidence:
        """Evidence (n, M, ...) of every row under a fit on the other half of the rows."""
        half = np.random.default_rng(self.seed).permutation(len(self.data)) % 2 == 0
        columns = list(range(len(self.data.times)))
        parts = []
        for rows in (half, ~half):
            chosen = fit(self.data.rows(~rows))
            parts.append(gather_evidence(_with(self.rule, chosen), self.data.log_confidence[rows], columns))
        return Evidence.joined(parts, np.concatenate)[np.argsort(~half, kind="stable").argsort()]

    def figures(self, name: str, evidence: Evidence) -> Trial:
        """What the rule reaches with this evidence, on average over random calibration rows."""
        figures = np.empty((self.repeats, 4))
        for repeat, run in enumerate(realisations(self.rule, self._pool(evidence), self.n_calibration, self.repeats, self.seed)):
            sizes = np.count_nonzero(run.sets, axis=1)
            figures[repeat, :3] = self._clock[run.stops].mean(), sizes.mean(), self._excess(run.sets).mean()
            figures[repeat, 3] = self._load[run.stops].mean()
        return Trial(name, *(float(one.mean()) for one in figures.T.copy()))

    @property
    def clock(self) -> Floats:
        """log(t/T) at the checkpoints; with a schedule, the logarithm of the share of all work."""
        return np.log(self._load)

    @property
    def knots(self) -> Floats:
        """Points in log time between which offsets are interpolated."""
        return np.linspace(self.clock[0], 0.0, min(KNOTS, len(self.clock)))

    def offsets(self, heights: Floats) -> Floats:
        return np.asarray(np.interp(self.clock, self.knots, heights))

    def _try(self, evidence: Evidence, heights: Floats, shape: _Shape) -> _Shape:
        """The better of a shape and one with other heights."""
        trial = self.figures(shape.trial.name, evidence.minus(self.offsets(heights)))
        return _Shape(heights, trial) if self.cost(trial) < self.cost(shape.trial) else shape

    def best_power(self, evidence: Evidence, plain: Trial, progress: Callable[[], None]) -> _Shape:
        """Offsets in proportion to log time: the best power of t/T."""
        shape = _Shape(np.zeros(len(self.knots)), replace(plain, name=f"{plain.name}, shaped over time"))
        for power in POWERS:
            progress()
            shape = self._try(evidence, power * self.knots, shape)
        return shape

    def search(self, evidence: Evidence, shape: _Shape, progress: Callable[[], None]) -> _Shape:
        """Offsets that move freely at the knots, by random steps from the best so far. The last stays 0: a constant changes nothing."""
        rng = np.random.default_rng(self.seed)
        for _ in range(SEARCH_STEPS):
            progress()
            moved = rng.random(len(self.knots)) < 0.4
            moved[-1] = False
            steps = np.where(moved, rng.normal(scale=0.5, size=len(self.knots)), 0.0)
            shape = self._try(evidence, shape.heights + steps, shape)
        return shape
