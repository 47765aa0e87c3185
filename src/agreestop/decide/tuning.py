"""Choose and fit a score or a risk on the tuning split, for the lowest latency.

Every candidate is fitted on one half of the tuning rows and read off the other, and the other way round. On that evidence the rule is
calibrated with `n_calibration` random rows and decides on the rest, `repeats` times, always with the same random rows. The
candidates that stop earliest are then given offsets over time: the best power of t/T for each, and for the best of them a
seeded random search over a few knots, all for the same figure. The winner is fitted again on all tuning rows.
Calibration and test data take no part, so the guarantee of the rule is untouched.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import Floats, InputError

from .agree_stop import AgreeStop
from .calibrated import gather_evidence
from .conditions import LabelledEvidence
from .merging import MergeConfidence
from .policies import Evidence
from .risks import LearnedRisk, NothingToLearn, Risk, ShapedRisk, TopMass
from .score_files import Scores, ScoresLike, as_scores, at_times, labels_of
from .scores import LogLoss, Score, Shaped, Spread, Temperature, TuningRanks
from .spikecp import SpikeCP
from .splits import split_figures
from .tuned_rows import TunedRows

EXPONENTS = (-1.0, 0.0, 1.0, 2.0)
POWERS = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
KNOTS = 6
SEARCH_STEPS = 60
FINALISTS = 4


@dataclass(frozen=True)
class Trial:
    """A candidate and what it reached on the tuning split: normalised latency and mean set size."""

    name: str
    latency: float
    set_size: float


@dataclass(frozen=True, eq=False)
class Tuned:
    """The tuned rule, ready to be calibrated, and every candidate that was tried, the earliest first."""

    rule: SpikeCP | AgreeStop
    trials: tuple[Trial, ...]


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


def _with(rule: SpikeCP | AgreeStop, chosen: Score | Risk) -> SpikeCP | AgreeStop:
    """The rule with another score or risk."""
    if isinstance(rule, AgreeStop):
        return replace(rule, risk=cast(Risk, chosen))
    return replace(rule, score=cast(Score, chosen))


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
) -> Tuned:
    """The rule with the score or risk that stops earliest on tuning scores, or on log-confidences (n, M, K, C) with labels (n,).

    n_calibration is the number of calibration examples that the rule will have later. exponents are the r to try. `progress` is called
    with what is being tried and the share that is done. Calibrate the result on other rows: it refuses these.
    """
    base = _untuned(rule)
    data = at_times(as_scores(scores_or_log_confidence, labels, times, base.checkpoints), base.checkpoints)
    n = len(labels_of(data))
    if not 1 <= n_calibration <= n // 2:
        raise InputError(f"n_calibration is {n_calibration} and there are {n} tuning rows: give at least twice as many rows.")
    report = progress or (lambda what, share: None)
    bench = _Bench(base, data, n_calibration, repeats, seed)
    candidates = list(_candidates(base, exponents, data.log_confidence.shape[2]))
    finalists = FINALISTS if bench.has_one_threshold else 0
    total = len(candidates) + (finalists * len(POWERS) + SEARCH_STEPS if finalists else 0)
    steps = itertools.count()

    def count(what: str) -> None:
        report(what, next(steps) / total)

    fits: list[Fit] = []
    evidences: list[Evidence] = []
    trials: list[Trial] = []
    for name, fit in candidates:
        count(name)
        with suppress(NothingToLearn):
            evidences.append(bench.crossfit(fit))
            fits.append(fit)
            trials.append(Trial(name, *bench.figures(evidences[-1])))
    ranking = np.argsort([trial.latency for trial in trials], kind="stable").tolist()
    best, shape = ranking[0], None
    if finalists:
        shapes = {one: bench.best_power(evidences[one], trials[one], partial(count, trials[one].name)) for one in ranking[:finalists]}
        best = min(shapes, key=lambda one: shapes[one].trial.latency)
        shape = bench.search(evidences[best], shapes.pop(best), lambda: count("shape over time"))
        trials += [other.trial for other in shapes.values()] + [shape.trial]
    chosen = fits[best](data)
    rows = None if chosen.tuned is not None else TunedRows.of(data.log_confidence, data.ids)
    if shape is not None or rows is not None:  # offsets of 0 change nothing, and remember the rows that chose among the candidates
        offsets, known = np.zeros(len(data.times)) if shape is None else bench.offsets(shape.heights), data.times
        if isinstance(base, AgreeStop):
            chosen = ShapedRisk(cast(Risk, chosen), offsets, known, rows)
        else:
            chosen = Shaped(cast(Score, chosen), offsets, known, rows)
    report("done", 1.0)
    return Tuned(_with(base, chosen), tuple(sorted(trials, key=lambda trial: trial.latency)))


def _untuned(rule: SpikeCP | AgreeStop) -> SpikeCP | AgreeStop:
    """The rule without the score, risk or confidence merging that tuning will choose."""
    if isinstance(rule, AgreeStop):
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


@dataclass(frozen=True, eq=False)
class _Bench:
    """Measures candidates on the tuning split, all with the same random rows."""

    rule: SpikeCP | AgreeStop
    data: Scores
    n_calibration: int
    repeats: int
    seed: int

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

    def figures(self, evidence: Evidence) -> tuple[float, float]:
        """Mean normalised latency and set size over random calibration rows."""
        pool = LabelledEvidence(evidence, labels_of(self.data), self.data.log_confidence.shape[3])
        splits = split_figures(self.rule, pool, self.n_calibration, self.repeats, self.seed)
        return float(splits.latencies.mean()), float(splits.set_sizes.mean())

    @property
    def clock(self) -> Floats:
        """log(t/T) at the checkpoints."""
        times = np.array(self.rule.checkpoints, dtype=np.float64)
        return np.log(times / times[-1])

    @property
    def knots(self) -> Floats:
        """Points in log time between which offsets are interpolated."""
        return np.linspace(self.clock[0], 0.0, min(KNOTS, len(self.clock)))

    def offsets(self, heights: Floats) -> Floats:
        return np.asarray(np.interp(self.clock, self.knots, heights))

    def _try(self, evidence: Evidence, heights: Floats, shape: _Shape) -> _Shape:
        """The better of a shape and one with other heights."""
        latency, size = self.figures(evidence.minus(self.offsets(heights)))
        return shape if latency >= shape.trial.latency else _Shape(heights, replace(shape.trial, latency=latency, set_size=size))

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
