"""Measure every family of rules on one ensemble's scores, as the paper does: over targets, and over the number of members.

The rules look at a few checkpoints or at every step. Each number is a mean over many random divisions of the pool into calibration and
test rows. Stop-aware calibration and AgreeStop are tuned on separate rows, once for each number of members.
"""

import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from agreestop.common import Floats, ProgressCallback, atomic_writer
from agreestop.decide.agree_stop import AgreeStop
from agreestop.decide.build import AnyRule, build_rule
from agreestop.decide.checks import CalibrationWarning
from agreestop.decide.score_files import Scores
from agreestop.decide.spikecp import SpikeCP
from agreestop.decide.splits import Splits, repeat_splits
from agreestop.decide.tuning import tune
from agreestop.report.records import MeasurementSettings, Record

ENERGY_REALISATIONS = 5


@dataclass(frozen=True, eq=False)
class _Entry:
    label: str
    rule: AnyRule
    tuned: bool


def _entries(target: float, settings: MeasurementSettings, every: Sequence[float]) -> list[_Entry]:
    few = settings.checkpoints

    def entry(label: str, kind: str, checkpoints: Sequence[float], tuned: bool = False, **options: Any) -> _Entry:
        return _Entry(label, build_rule(kind, target, checkpoints, settings.max_set_size, **options), tuned)

    return [
        entry("DC-SNN", "dcsnn", every),
        entry("confidence merging", "spikecp", few),
        entry("p-variable merging", "spikecp", few, pooling="p-values:45"),
        entry("rank pooling", "spikecp", few, pooling="ranks:1"),
        entry("simultaneous", "spikecp", few, calibration="simultaneous"),
        entry("stop-aware", "spikecp", few, tuned=True, calibration="stop-aware"),
        entry("AgreeStop", "agreestop", few, tuned=True),
        entry("stop-aware, every step", "spikecp", every, tuned=True, calibration="stop-aware"),
        entry("AgreeStop, every step", "agreestop", every, tuned=True),
    ]


@dataclass(frozen=True, eq=False)
class Measurement:
    """Records of every rule, and by its label each rule at the main target and for all members, after tuning."""

    records: tuple[Record, ...]
    rules: dict[str, AnyRule]


def measure_rules(
    ensemble: str, tuning: Scores, pool: Scores, settings: MeasurementSettings, progress: ProgressCallback, spent: Floats | None = None
) -> Measurement:
    """Measure all rules on one ensemble's scores; `spent` (n, T, K) is the energy that the pool's inputs take up to each step."""
    largest, main = max(settings.sizes), settings.targets[0]
    cases = [(target, largest) for target in settings.targets] + [(main, size) for size in settings.sizes if size != largest]
    jobs = [(target, members, entry) for target, members in cases for entry in _entries(target, settings, pool.times)]
    costs = [_tuning_cost(entry.rule) if entry.tuned and target == main else 1.0 for target, _, entry in jobs]
    tuned: dict[tuple[str, int], SpikeCP | AgreeStop] = {}
    records, rules = [], {}
    for index, (target, members, entry) in enumerate(jobs):
        words, done, cost = f"{entry.label}, target {target:g}, K = {members}", sum(costs[:index]), costs[index]
        report = partial(_report_job, progress, words, done / sum(costs), cost / sum(costs))
        report("", 0.0)
        rule = entry.rule
        if entry.tuned:
            if target == main:
                tuned[entry.label, members] = _tune(rule, first_members(tuning, members), settings, report)
            rule = replace(tuned[entry.label, members], target=target)
        record = _measure(ensemble, entry, rule, target, members, first_members(pool, members), settings)
        if (target, members) == (main, largest):
            rules[entry.label] = rule
            if spent is not None:
                record = replace(record, energy=_energy(rule, pool, spent.sum(axis=2), settings))
        records.append(record)
    return Measurement(tuple(records), rules)


def _tuning_cost(rule: AnyRule) -> float:
    """The time that tuning takes, as a multiple of the time of measuring a rule that is not tuned."""
    return 5.0 + 0.5 * len(rule.checkpoints)


def _report_job(progress: ProgressCallback, words: str, done: float, weight: float, what: str, share: float) -> None:
    """Report the share of one job, of this weight, as a share of all jobs."""
    progress(words, done + weight * share)


def _energy(rule: AnyRule, pool: Scores, spent: Floats, settings: MeasurementSettings) -> float:
    """The energy spent until the stop as a share of the energy to T, over a few realisations."""
    shares = []
    for repeat in range(ENERGY_REALISATIONS):
        order = np.random.default_rng([settings.seed, repeat]).permutation(len(pool))
        calibration, test = order[: settings.n_calibration], order[settings.n_calibration :]
        decisions = rule.calibrate(pool.rows(calibration)).decide(pool.rows(test))
        step = np.searchsorted(pool.times, decisions.stop_time)
        shares.append(spent[test, step].mean() / spent[test, -1].mean())
    return float(np.mean(shares))


def save_records(path: Path, records: Sequence[Record], **header: object) -> None:
    """Write `metrics.json`: the header, then the records."""
    content = {**header, "records": [asdict(record) for record in records]}
    with atomic_writer(path) as stream:
        stream.write(json.dumps(content, indent=1).encode() + b"\n")


def first_members(scores: Scores, members: int) -> Scores:
    """The scores of the first members only."""
    return replace(scores, log_confidence=scores.log_confidence[:, :, :members])


def _tune(rule: AnyRule, tuning: Scores, settings: MeasurementSettings, progress: ProgressCallback) -> SpikeCP | AgreeStop:
    assert isinstance(rule, (SpikeCP, AgreeStop))
    return tune(rule, tuning, n_calibration=settings.n_calibration, seed=settings.seed, progress=progress).rule


def _measure(
    ensemble: str, entry: _Entry, rule: AnyRule, target: float, members: int, pool: Scores, settings: MeasurementSettings
) -> Record:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CalibrationWarning)
        splits = repeat_splits(rule, pool, n_calibration=settings.n_calibration, repeats=settings.realisations, seed=settings.seed)
    for warning in caught:
        warnings.warn(f"{ensemble}: {entry.label}, target {target:g}, K = {members}: {warning.message}", CalibrationWarning, stacklevel=2)
    pooling = entry.rule.pooling if isinstance(entry.rule, SpikeCP) else None
    return Record(
        ensemble=ensemble,
        label=entry.label,
        rule=type(rule).__name__.lower(),
        pooling=None if pooling is None else type(pooling).__name__,
        r=getattr(pooling, "r", None),
        calibration=rule.calibration if isinstance(rule, SpikeCP) else None,
        K=members,
        target=target,
        checkpoints=tuple(rule.checkpoints),
        **figures_of(splits),
    )


def figures_of(splits: Splits) -> dict[str, float]:
    """The figures of a record: means over the realisations, and the standard errors of coverage and latency."""
    return {
        "coverage": float(splits.coverage),
        "coverage_se": splits.coverage.se,
        "latency": float(splits.normalized_latency),
        "latency_se": splits.normalized_latency.se,
        "set_size": float(splits.set_size),
    }
