"""The paper's protocol: many random divisions of a pool into calibration and test data, and the rule's figures on each."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common.arrays import Floats, Integers
from agreestop.common.errors import InputError

from .calibrated import gather_evidence, refuse_tuned
from .checks import CalibrationWarning, as_labels, as_log_confidence, columns_of
from .decisions import Estimate
from .policies import run_policy
from .rule import Rule, shortage


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
    log_confidence: ArrayLike,
    labels: ArrayLike,
    n_calibration: int = 50,
    repeats: int = 50,
    seed: int = 0,
    times: Sequence[float] | None = None,
) -> Splits:
    """Calibrate on `n_calibration` random rows of the pool (n, M, K, C), decide on the others; `repeats` times.

    What the rule reads off each input is computed once for the whole pool; a realisation costs a fit and a verdict.
    """
    array = as_log_confidence(log_confidence)
    n, available, members, classes = array.shape
    truth = as_labels(labels, n, classes)
    columns = columns_of(rule.checkpoints, available, times)
    for name, value in (("n_calibration", n_calibration), ("repeats", repeats)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise InputError(f"{name} is {value!r}: an integer is needed.")
    if not 1 <= n_calibration < n:
        raise InputError(f"n_calibration is {n_calibration} and the pool has {n} rows: choose from 1 to {n - 1}, so that test rows remain.")
    if repeats < 1:
        raise InputError(f"repeats is {repeats}: at least one realisation is needed.")
    if rule.tuned is not None:
        refuse_tuned(rule.tuned, array, columns, "repeat_splits")
    evidence = gather_evidence(rule, array, columns)
    rows = np.random.default_rng(seed).permutation(n)[:n_calibration]
    if sentence := shortage(rule, truth[rows], members, classes):
        warnings.warn(sentence, CalibrationWarning, stacklevel=2)
    return split_figures(rule, evidence, truth, classes, n_calibration, repeats, seed)


def _rows_at(evidence: Floats, index: int, active: Integers) -> Floats:
    return evidence[active, index]


def split_figures(rule: Rule, evidence: Floats, labels: Integers, classes: int, n_calibration: int, repeats: int, seed: int) -> Splits:
    """The figures of every realisation, from evidence (n, M, ...) that is at hand."""
    clock = np.array(rule.checkpoints, dtype=np.float64) / float(rule.checkpoints[-1])
    rng = np.random.default_rng(seed)
    coverages, latencies, set_sizes = np.empty(repeats), np.empty(repeats), np.empty(repeats)
    for repeat in range(repeats):
        order = rng.permutation(len(labels))
        calibration, test = order[:n_calibration], order[n_calibration:]
        policy = rule.fit(evidence[calibration], labels[calibration], classes)
        state = policy.start(len(test), classes, 0)
        stops, sets = run_policy(policy, partial(_rows_at, evidence[test]), state, len(clock), classes)
        coverages[repeat] = sets[np.arange(len(test)), labels[test]].mean()
        latencies[repeat] = clock[stops].mean()
        set_sizes[repeat] = np.count_nonzero(sets, axis=1).mean()
    return Splits(coverages, latencies, set_sizes)
