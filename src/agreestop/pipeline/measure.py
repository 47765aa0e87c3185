"""Measure every family of rules on one ensemble's scores, as the paper does: over targets, and over the number of members.

The rules look at a few checkpoints or at every step. Each number is a mean over many random divisions of the pool into calibration and
test rows. Stop-aware calibration and AgreeStop are tuned on separate rows, once for each number of members.

`run_simulated` does so on simulated scores: 600 tuning rows and a pool of 2,000, from members that count spikes for 80 steps.
"""

import json
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from agreestop.common import Floats, ProgressCallback, Stages, atomic_writer, folder_lock, make_folder
from agreestop.decide.agree_stop import AgreeStop
from agreestop.decide.build import AnyRule, build_rule
from agreestop.decide.checks import CalibrationWarning
from agreestop.decide.confidence import log_confidence
from agreestop.decide.decisions import Estimate
from agreestop.decide.gates import LEAST_ROWS, Gate
from agreestop.decide.risks import FixedTime
from agreestop.decide.score_files import Scores, save_spikes
from agreestop.decide.simulated import simulate_spikes
from agreestop.decide.spikecp import SpikeCP
from agreestop.decide.splits import repeat_splits
from agreestop.decide.tuning import tune
from agreestop.report.contents import GATED, Report, describe_ensemble, versions
from agreestop.report.records import MeasurementSettings, Record

ENERGY_REALISATIONS = 5
POOL_REPEATS = 5  # realisations without each part of the pool
STEPS, N_TUNING, N_POOL = 80, 600, 2000  # the sizes of simulated scores
SPLITS = {
    "tuning": slice(0, N_TUNING),
    "calibration": slice(N_TUNING, N_TUNING + 300),
    "test": slice(N_TUNING + 300, None),
}


def _rules(target: float, settings: MeasurementSettings, every: Sequence[float]) -> dict[str, AnyRule]:
    """The rules that are measured, by label, before tuning."""
    few = settings.checkpoints

    def rule(kind: str, checkpoints: Sequence[float], **options: Any) -> AnyRule:
        return build_rule(kind, target, checkpoints, settings.max_set_size, **options)

    return {
        "DC-SNN": rule("dcsnn", every),
        "confidence merging": rule("spikecp", few),
        "p-variable merging": rule("spikecp", few, pooling="p-values:45"),
        "rank pooling": rule("spikecp", few, pooling="ranks:1"),
        "simultaneous": rule("spikecp", few, calibration="simultaneous"),
        "stop-aware": rule("spikecp", few, calibration="stop-aware"),
        "AgreeStop": rule("agreestop", few),
        "stop-aware, every step": rule("spikecp", every, calibration="stop-aware"),
        "AgreeStop, every step": rule("agreestop", every),
        "fixed time, every step": rule("fixed-time", every),
    }


def _gated(settings: MeasurementSettings, tuning: Scores) -> AgreeStop | None:
    """AgreeStop at every step with a gate, for the main target; None where the tuning rows or the classes are too few for one."""
    target, size, every = settings.targets[0], settings.max_set_size, tuning.times
    if len(tuning) < LEAST_ROWS or size >= tuning.log_confidence.shape[3]:
        return None
    blocks = min(Gate.count_blocks(settings.n_calibration, target), len(every))
    return AgreeStop(target, every, size, gate=Gate.fit(tuning, target=target, max_set_size=size, blocks=blocks))


def _is_tuned(rule: AnyRule) -> bool:
    if isinstance(rule, AgreeStop):
        return not isinstance(rule.risk, (FixedTime, Gate))
    return isinstance(rule, SpikeCP) and rule.calibration == "stop-aware"


def _kind(rule: AnyRule) -> str:
    """What a record calls the rule: fixed time and the rule with a gate are baseline and variant, not AgreeStop itself."""
    if isinstance(rule, AgreeStop) and isinstance(rule.risk, (FixedTime, Gate)):
        return "fixedtime" if isinstance(rule.risk, FixedTime) else "gatedagreestop"
    return type(rule).__name__.lower()


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
    jobs = [(target, members, *named) for target, members in cases for named in _rules(target, settings, pool.times).items()]
    if (gated := _gated(settings, tuning)) is not None:
        jobs.append((main, largest, GATED, gated))
    # The time of tuning, as a multiple of the time of measuring a rule that is not tuned.
    costs = [5.0 + 0.5 * len(rule.checkpoints) if _is_tuned(rule) and target == main else 1.0 for target, _, _, rule in jobs]
    tuned: dict[tuple[str, int], SpikeCP | AgreeStop] = {}
    records, rules = [], {}
    for index, (target, members, label, rule) in enumerate(jobs):
        words, done, cost = f"{label}, target {target:g}, K = {members}", sum(costs[:index]), costs[index]

        def report(what: str, share: float, words: str = words, done: float = done, cost: float = cost) -> None:
            progress(words, (done + cost * share) / sum(costs))

        report("", 0.0)
        pooling = rule.pooling if isinstance(rule, SpikeCP) else None  # tuning puts a score in its place
        if _is_tuned(rule):
            if target == main:
                tuned[label, members] = _tune(rule, first_members(tuning, members), settings, report)
            rule = replace(tuned[label, members], target=target)
        scores, n, repeats = first_members(pool, members), settings.n_calibration, settings.realisations
        with warnings.catch_warnings():
            if label == GATED:  # a block with few inputs is shown in the report
                warnings.simplefilter("ignore", CalibrationWarning)
            splits = repeat_splits(rule, scores, n_calibration=n, repeats=repeats, seed=settings.seed)
        record = Record(
            ensemble=ensemble,
            label=label,
            rule=_kind(rule),
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
            examples_needed=needed if (needed := rule.examples_needed(members)) > settings.n_calibration else None,
        )
        if (target, members) == (main, largest):
            rules[label] = rule
            pools = splits.pool_figures(POOL_REPEATS)  # it takes longer than the rest, so only where the report states it
            record = replace(record, coverage_pool=_bounds(pools.coverage), latency_pool=_bounds(pools.normalized_latency))
            if spent is not None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", CalibrationWarning)
                    record = replace(record, energy=_energy(rule, pool, spent.sum(axis=2), settings))
        records.append(record)
    return Measurement(tuple(records), rules)


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


def _bounds(estimate: Estimate) -> tuple[float, float] | None:
    return None if math.isnan(estimate.low) else (estimate.low, estimate.high)


def save_records(path: Path, records: Sequence[Record], **header: object) -> None:
    """Write `metrics.json`: the header, then the records."""
    content = {**header, "records": [asdict(record) for record in records]}
    with atomic_writer(path) as stream:
        stream.write(json.dumps(content, indent=1).encode() + b"\n")


def first_members(scores: Scores, members: int) -> Scores:
    """The scores of the first members only."""
    return replace(scores, log_confidence=scores.log_confidence[:, :, :members])


def shortage_in_words(settings: MeasurementSettings) -> str:
    """A sentence that names the rules that can never stop with so few calibration examples, and how many they need; empty for none."""
    target, n = settings.targets[0], settings.n_calibration
    rules = _rules(target, settings, settings.checkpoints).items()
    needed = {label: rule.examples_needed(max(settings.sizes)) for label, rule in rules if "every step" not in label}
    short = [f"{label} needs {least}" for label, least in needed.items() if least > n]
    if not short:
        return ""
    return f"With {n} calibration examples these rules can never stop early at target {target:g}: {', '.join(short)}."


@contextmanager
def locked_folder(folder: Path, progress: ProgressCallback) -> Iterator[None]:
    """Make the folder of a run, and keep other runs out of it. A run that finds it in use says so and waits.

    A shortage of calibration examples was said before the run (`shortage_in_words`), so the rules do not warn of it again.
    """
    make_folder(folder)
    with folder_lock(folder, lambda sentence: progress(sentence, 0.0)), warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        yield


@contextmanager
def run_simulated(folder: Path, measured: MeasurementSettings, command: str, progress: ProgressCallback) -> Iterator[Report]:
    """Measure on simulated scores; `command` is the command line that asked for it. The scores are written too, for the other verbs.

    The folder is locked until the report is written, as with `run_config`.
    """
    with locked_folder(folder, progress):
        stages = Stages(progress, (1.0, 12.0, 1.0))
        stages.begin("simulated")("drawing scores", 0.0)
        members = max(measured.sizes)
        spikes, labels = simulate_spikes(N_TUNING + N_POOL, STEPS, members, seed=measured.seed)
        for name, rows in SPLITS.items():
            save_spikes(folder / f"{name}.npz", spikes[rows], labels[rows])
        scores = Scores(log_confidence(np.cumsum(spikes, axis=1, dtype=np.int32)), labels, tuple(range(1, STEPS + 1)))
        tuning, pool = scores.rows(slice(0, N_TUNING)), scores.rows(slice(N_TUNING, None))
        measurement = measure_rules("simulated", tuning, pool, measured, stages.begin("simulated"))
        sizes = {"repeats": measured.realisations, "n_calibration": measured.n_calibration}
        save_records(folder / "metrics.json", measurement.records, data="simulated scores", seed=measured.seed, **sizes)
        yield Report(
            name="simulated scores",
            kind="simulated scores",
            description=f"scores drawn from a generator, {members} simulated members that count spikes for {STEPS} steps; "
            "there are no inputs and no networks behind them",
            measured=measured,
            n_tuning=N_TUNING,
            n_pool=N_POOL,
            sections=[describe_ensemble("", pool, measurement.records, measurement.rules, measured, stages.begin("report"))],
            command=command,
            versions=versions("agreestop", "numpy"),
            settings=(("seed", str(measured.seed)),),
        )


def _tune(rule: AnyRule, tuning: Scores, settings: MeasurementSettings, progress: ProgressCallback) -> SpikeCP | AgreeStop:
    assert isinstance(rule, (SpikeCP, AgreeStop))
    return tune(rule, tuning, n_calibration=settings.n_calibration, seed=settings.seed, progress=progress, only_if_better=False).rule
