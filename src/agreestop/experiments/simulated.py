"""The main job on simulated scores: every family of rules at the paper's setting, over targets and over the number of members.

T = 80, four checkpoints 20/40/60/80 or every step, at most three classes, 50 calibration examples, many random realisations.
Stop-aware and AgreeStop are tuned on 600 rows held apart, once for each number of members.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from agreestop.decide.agree_stop import AgreeStop
from agreestop.decide.atomic import atomic_writer
from agreestop.decide.checks import CalibrationWarning, InputError
from agreestop.decide.confidence import log_confidence
from agreestop.decide.confidence_rules import DCSNN
from agreestop.decide.pooling import MergeConfidence, MergePValues, MergeRanks
from agreestop.decide.score_files import Scores, save_spikes
from agreestop.decide.simulated import simulate_spikes
from agreestop.decide.spikecp import SpikeCP
from agreestop.decide.splits import repeat_splits
from agreestop.decide.tuning import tune
from agreestop.report.records import Record

STEPS, MEMBERS, MAX_SET_SIZE, N_CALIBRATION, N_TUNING, N_POOL = 80, 6, 3, 50, 600, 2000
FOUR, EVERY = (20, 40, 60, 80), tuple(range(1, STEPS + 1))
SPLITS = {
    "tuning": slice(0, N_TUNING),
    "calibration": slice(N_TUNING, N_TUNING + 300),
    "test": slice(N_TUNING + 300, None),
}
TARGET = 0.9
TARGETS = (0.8, 0.85, TARGET, 0.92)
SIZES = (1, 2, 4, 6)


@dataclass(frozen=True, eq=False)
class _Entry:
    label: str
    rule: SpikeCP | AgreeStop | DCSNN
    tuned: bool = False


def _entries(target: float) -> list[_Entry]:
    average = MergeConfidence(r=1)
    return [
        _Entry("DC-SNN", DCSNN(target, EVERY, MAX_SET_SIZE)),
        _Entry("confidence merging", SpikeCP(target, FOUR, MAX_SET_SIZE, average)),
        _Entry("p-variable merging", SpikeCP(target, FOUR, MAX_SET_SIZE, MergePValues(r=45))),
        _Entry("rank pooling", SpikeCP(target, FOUR, MAX_SET_SIZE, MergeRanks(r=1))),
        _Entry("simultaneous", SpikeCP(target, FOUR, MAX_SET_SIZE, average, "simultaneous")),
        _Entry("stop-aware", SpikeCP(target, FOUR, MAX_SET_SIZE, average, "stop-aware"), tuned=True),
        _Entry("AgreeStop", AgreeStop(target, FOUR, MAX_SET_SIZE), tuned=True),
        _Entry("stop-aware, every step", SpikeCP(target, EVERY, MAX_SET_SIZE, average, "stop-aware"), tuned=True),
        _Entry("AgreeStop, every step", AgreeStop(target, EVERY, MAX_SET_SIZE), tuned=True),
    ]


def run_simulated(folder: Path, seed: int, repeats: int, tell: Callable[[str, float], None]) -> list[Record]:
    """Measure every rule; write `metrics.json` and, as score files, one division of the rows. Tell progress as it goes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}.") from None
    spikes, labels = simulate_spikes(N_TUNING + N_POOL, STEPS, MEMBERS, seed=seed)
    for name, rows in SPLITS.items():
        save_spikes(folder / f"{name}.npz", spikes[rows], labels[rows])
    scores = Scores(log_confidence(np.cumsum(spikes, axis=1, dtype=np.int32)), labels, EVERY)
    settings = [(target, MEMBERS) for target in TARGETS] + [(TARGET, size) for size in SIZES if size != MEMBERS]
    jobs = [(target, members, entry) for target, members in settings for entry in _entries(target)]
    tuned: dict[tuple[str, int], SpikeCP | AgreeStop | DCSNN] = {}
    records = []
    for index, (target, members, entry) in enumerate(jobs):
        tell(f"{entry.label}, target {target:g}, K = {members}", index / len(jobs))
        some = replace(scores, log_confidence=scores.log_confidence[:, :, :members])
        rule = entry.rule
        if entry.tuned:
            if (entry.label, members) not in tuned:
                tuned[entry.label, members] = _tune(replace(rule, target=TARGET), some.rows(slice(0, N_TUNING)), seed)
            rule = replace(tuned[entry.label, members], target=target)
        records.append(_measure(entry, rule, target, members, some.rows(slice(N_TUNING, None)), repeats, seed))
    content = {"data": "simulated scores", "seed": seed, "repeats": repeats, "n_calibration": N_CALIBRATION}
    with atomic_writer(folder / "metrics.json") as stream:
        stream.write(json.dumps({**content, "records": [asdict(record) for record in records]}, indent=1).encode() + b"\n")
    return records


def _tune(rule: SpikeCP | AgreeStop | DCSNN, tuning: Scores, seed: int) -> SpikeCP | AgreeStop:
    assert tuning.labels is not None and not isinstance(rule, DCSNN)
    return tune(rule, tuning.log_confidence, tuning.labels, tuning.times, N_CALIBRATION, seed=seed).rule


def _measure(
    entry: _Entry, rule: SpikeCP | AgreeStop | DCSNN, target: float, members: int, pool: Scores, repeats: int, seed: int
) -> Record:
    assert pool.labels is not None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CalibrationWarning)
        splits = repeat_splits(rule, pool.log_confidence, pool.labels, N_CALIBRATION, repeats, seed, pool.times)
    for warning in caught:
        warnings.warn(f"{entry.label}, target {target:g}, K = {members}: {warning.message}", CalibrationWarning, stacklevel=2)
    pooling = entry.rule.pooling if isinstance(entry.rule, SpikeCP) else None
    return Record(
        ensemble="simulated",
        label=entry.label,
        rule=type(rule).__name__.lower(),
        pooling=None if pooling is None else type(pooling).__name__,
        r=getattr(pooling, "r", None),
        calibration=rule.calibration if isinstance(rule, SpikeCP) else None,
        K=members,
        target=target,
        checkpoints=tuple(rule.checkpoints),
        coverage=float(splits.coverage),
        coverage_se=splits.coverage.se,
        latency=float(splits.normalized_latency),
        latency_se=splits.normalized_latency.se,
        set_size=float(splits.set_size),
    )
