"""The paper's protocol: many random divisions of a pool into calibration and test data, and the rule's figures on each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import Booleans, Floats, InputError, Integers, as_count

from .calibrated import Rule, gather_evidence, refuse_tuned, warn_of
from .checks import columns_of
from .decisions import Estimate
from .policies import Evidence, run_policy
from .score_files import ScoresLike, as_scores, labels_of
from .tuned_rows import mark_rows


@dataclass(frozen=True, eq=False)
class Splits:
    """One entry for each realisation: coverage, normalised latency and mean set size on its test data."""

    coverages: Floats
    latencies: Floats
    set_sizes: Floats
    confidence: float = 0.95

    @property
    def coverage(self) -> Estimate:
        return Estimate.of_mean(self.coverages, self.confidence)

    @property
    def normalized_latency(self) -> Estimate:
        return Estimate.of_mean(self.latencies, self.confidence)

    @property
    def set_size(self) -> Estimate:
        return Estimate.of_mean(self.set_sizes, self.confidence)


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
    refuse_tuned(rule, data.ids, lambda: mark_rows(data.log_confidence, columns), "repeat_splits")
    evidence = gather_evidence(rule, data.log_confidence, columns)
    rows = np.random.default_rng(seed).permutation(n)[:n_calibration]
    warn_of(rule, truth[rows], members, classes)
    return split_figures(rule, evidence, truth, classes, n_calibration, repeats, seed)


@dataclass(frozen=True, eq=False)
class Realisation:
    """One random division of a pool: its calibration rows and test rows, and for each test row the stop index (b,) and the set (b, C)."""

    calibration: Integers
    test: Integers
    stops: Integers
    sets: Booleans


def divisions(n: int, n_calibration: int, repeats: int, seed: int) -> Iterator[tuple[Integers, Integers]]:
    """Random calibration rows and test rows out of n, `repeats` times. They depend only on the seed; more repeats begin alike."""
    rng = np.random.default_rng(seed)
    for _ in range(repeats):
        order = rng.permutation(n)
        yield order[:n_calibration], order[n_calibration:]


def realisations(
    rule: Rule, evidence: Evidence, labels: Integers, classes: int, n_calibration: int, repeats: int, seed: int
) -> Iterator[Realisation]:
    """Fit the rule on the calibration rows of each division and decide on its test rows, from evidence (n, M, ...) of the whole pool.

    This is the one loop over realisations: `repeat_splits`, `tune`, the report and the paper's figures all use it.
    """
    for calibration, test in divisions(len(labels), n_calibration, repeats, seed):
        policy = rule.fit(evidence[calibration], labels[calibration], classes)
        stops, sets = run_policy(policy, evidence[test], policy.start(len(test), classes, 0), classes)
        yield Realisation(calibration, test, stops, sets)


def split_figures(rule: Rule, evidence: Evidence, labels: Integers, classes: int, n_calibration: int, repeats: int, seed: int) -> Splits:
    """The figures of every realisation, from evidence (n, M, ...) of the whole pool."""
    clock = np.array(rule.checkpoints, dtype=np.float64) / float(rule.checkpoints[-1])
    coverages, latencies, set_sizes = np.empty(repeats), np.empty(repeats), np.empty(repeats)
    for repeat, run in enumerate(realisations(rule, evidence, labels, classes, n_calibration, repeats, seed)):
        coverages[repeat] = run.sets[np.arange(len(run.test)), labels[run.test]].mean()
        latencies[repeat] = clock[run.stops].mean()
        set_sizes[repeat] = np.count_nonzero(run.sets, axis=1).mean()
    return Splits(coverages, latencies, set_sizes)
