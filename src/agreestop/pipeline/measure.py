"""Every family of rules on one stream, with the paper's protocol: over targets, and over the number of members.

T = 80, four checkpoints 20/40/60/80 or every step, at most three classes, 50 calibration examples, many random realisations. Stop-aware and
AgreeStop are tuned on rows held apart, once for each number of members.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from agreestop.common.arrays import Floats
from agreestop.common.files import atomic_writer
from agreestop.decide.agree_stop import AgreeStop
from agreestop.decide.checks import CalibrationWarning
from agreestop.decide.confidence_rules import DCSNN
from agreestop.decide.pooling import MergeConfidence, MergePValues, MergeRanks
from agreestop.decide.score_files import Scores
from agreestop.decide.spikecp import SpikeCP
from agreestop.decide.splits import Splits, repeat_splits
from agreestop.decide.tuning import tune
from agreestop.report.records import Record

Tell = Callable[[str, float], None]
Rule: TypeAlias = SpikeCP | AgreeStop | DCSNN


@dataclass(frozen=True)
class Protocol:
    """What is promised and how it is measured. The first target is the one at which numbers of members are compared."""

    targets: tuple[float, ...] = (0.9, 0.8, 0.85, 0.92)
    sizes: tuple[int, ...] = (1, 2, 4, 6)
    few: tuple[float, ...] = (20, 40, 60, 80)
    max_set_size: int = 3
    n_calibration: int = 50
    repeats: int = 50
    seed: int = 0


@dataclass(frozen=True, eq=False)
class _Entry:
    label: str
    rule: Rule
    tuned: bool = False


def _entries(target: float, protocol: Protocol, every: Sequence[float]) -> list[_Entry]:
    average, few, size = MergeConfidence(r=1), protocol.few, protocol.max_set_size
    return [
        _Entry("DC-SNN", DCSNN(target, every, size)),
        _Entry("confidence merging", SpikeCP(target, few, size, average)),
        _Entry("p-variable merging", SpikeCP(target, few, size, MergePValues(r=45))),
        _Entry("rank pooling", SpikeCP(target, few, size, MergeRanks(r=1))),
        _Entry("simultaneous", SpikeCP(target, few, size, average, "simultaneous")),
        _Entry("stop-aware", SpikeCP(target, few, size, average, "stop-aware"), tuned=True),
        _Entry("AgreeStop", AgreeStop(target, few, size), tuned=True),
        _Entry("stop-aware, every step", SpikeCP(target, every, size, average, "stop-aware"), tuned=True),
        _Entry("AgreeStop, every step", AgreeStop(target, every, size), tuned=True),
    ]


@dataclass(frozen=True, eq=False)
class Measurement:
    """Records of every rule, and the rules themselves, tuned where they are, at the main target and for all members, by their labels."""

    records: tuple[Record, ...]
    rules: dict[str, Rule]


def measure_stream(ensemble: str, tuning: Scores, pool: Scores, protocol: Protocol, tell: Tell, spent: Floats | None = None) -> Measurement:
    """All rules on one ensemble's scores; `spent` (n, T, K) is the energy of the pool's inputs up to each step. Tell progress."""
    largest, main = max(protocol.sizes), protocol.targets[0]
    settings = [(target, largest) for target in protocol.targets] + [(main, size) for size in protocol.sizes if size != largest]
    jobs = [(target, members, entry) for target, members in settings for entry in _entries(target, protocol, pool.times)]
    tuned: dict[tuple[str, int], Rule] = {}
    records, rules = [], {}
    for index, (target, members, entry) in enumerate(jobs):
        tell(f"{ensemble}: {entry.label}, target {target:g}, K = {members}", index / len(jobs))
        rule = entry.rule
        if entry.tuned:
            if (entry.label, members) not in tuned:
                tuned[entry.label, members] = _tune(replace(rule, target=main), first_members(tuning, members), protocol)
            rule = replace(tuned[entry.label, members], target=target)
        record = _measure(ensemble, entry, rule, target, members, first_members(pool, members), protocol)
        if (target, members) == (main, largest):
            rules[entry.label] = rule
            if spent is not None:
                record = replace(record, energy=_energy(rule, pool, spent.sum(axis=2), protocol))
        records.append(record)
    return Measurement(tuple(records), rules)


def _energy(rule: Rule, pool: Scores, spent: Floats, protocol: Protocol) -> float:
    """The share of the energy to T that stopping leaves, over a few realisations."""
    assert pool.labels is not None
    shares = []
    for repeat in range(5):
        order = np.random.default_rng([protocol.seed, repeat]).permutation(len(pool))
        calibration, test = order[: protocol.n_calibration], order[protocol.n_calibration :]
        calibrated = rule.calibrate(pool.log_confidence[calibration], pool.labels[calibration], pool.times)
        decisions = calibrated.decide(pool.log_confidence[test], pool.times)
        place = np.searchsorted(pool.times, decisions.stop_time)
        shares.append(spent[test, place].mean() / spent[test, -1].mean())
    return float(np.mean(shares))


def save_records(path: Path, records: Sequence[Record], **header: object) -> None:
    """Write `metrics.json`: what was run, then the records."""
    content = {**header, "records": [asdict(record) for record in records]}
    with atomic_writer(path) as stream:
        stream.write(json.dumps(content, indent=1).encode() + b"\n")


def first_members(scores: Scores, members: int) -> Scores:
    """The scores of the first members alone."""
    return replace(scores, log_confidence=scores.log_confidence[:, :, :members])


def _tune(rule: Rule, tuning: Scores, protocol: Protocol) -> SpikeCP | AgreeStop:
    assert tuning.labels is not None and not isinstance(rule, DCSNN)
    return tune(rule, tuning.log_confidence, tuning.labels, tuning.times, protocol.n_calibration, seed=protocol.seed).rule


def _measure(ensemble: str, entry: _Entry, rule: Rule, target: float, members: int, pool: Scores, protocol: Protocol) -> Record:
    assert pool.labels is not None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CalibrationWarning)
        splits = repeat_splits(rule, pool.log_confidence, pool.labels, protocol.n_calibration, protocol.repeats, protocol.seed, pool.times)
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
    """What a record says of many realisations: means, and the standard errors of two of them."""
    return {
        "coverage": float(splits.coverage),
        "coverage_se": splits.coverage.se,
        "latency": float(splits.normalized_latency),
        "latency_se": splits.normalized_latency.se,
        "set_size": float(splits.set_size),
    }
