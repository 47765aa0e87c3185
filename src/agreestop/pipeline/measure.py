"""Measure every family of rules on one ensemble's scores, as the paper does: over targets, and over
the number of members.

The rules look at a few checkpoints or at every step. Each number is a mean over many random
divisions of the pool into calibration and test rows. Stop-aware calibration and AgreeStop are tuned
on separate rows, once for each number of members.

`run_simulated` does so on simulated scores: 600 tuning rows and a pool of 2,000, from members that
count spikes for 80 steps.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from agreestop.common import (
    Floats,
    ProgressCallback,
    Stages,
    atomic_writer,
    folder_lock,
    make_folder,
    run_tasks,
)
from agreestop.common.errors import no_calibration_warnings
from agreestop.common.estimates import Estimate
from agreestop.decide.agree_stop import AgreeStop
from agreestop.decide.answer_kinds import Tree
from agreestop.decide.confidence import Pooling, log_confidence
from agreestop.decide.risks import Gate
from agreestop.decide.rule import Rule, build_rule
from agreestop.decide.scores import Scores, save_spikes
from agreestop.decide.tuning.gate_fit import LEAST_ROWS
from agreestop.decide.tuning.simulated import simulate_spikes
from agreestop.decide.tuning.splits import repeat_splits
from agreestop.decide.tuning.tune import tune
from agreestop.report.contents import GATED, Report, describe_ensemble, versions
from agreestop.report.records import MeasurementSettings, Record

ENERGY_REALISATIONS = 5
POOL_REPEATS = 5  # realisations without each part of the pool
# log-confidences times realisations times costs; with less work than this, starting
# processes hardly pays
SMALL_WORK = 1e10
STEPS, N_TUNING, N_POOL = 80, 600, 2000  # the sizes of simulated scores
SPLITS = {
    "tuning": slice(0, N_TUNING),
    "calibration": slice(N_TUNING, N_TUNING + 300),
    "test": slice(N_TUNING + 300, None),
}


TUNED = ("stop-aware", "AgreeStop", "stop-aware, every step", "AgreeStop, every step")
"""The rules whose score or risk is tuned first."""


RULE_LABELS = (
    *("DC-SNN", "confidence merging", "p-variable merging", "rank pooling", "simultaneous"),
    *("stop-aware", "AgreeStop", "stop-aware, every step", "AgreeStop, every step"),
    *("fixed time, every step", GATED),
)
"""The names of the rules that every page shows."""


def _rules(target: float, settings: MeasurementSettings, every: Sequence[float]) -> dict[str, Rule]:
    """The rules that are measured, by label, before tuning."""
    few = settings.checkpoints

    def rule(kind: str, checkpoints: Sequence[float], **options: Any) -> Rule:
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
    """AgreeStop at every step with a gate, for the main target.

    None where the tuning rows or the classes are too few for one.
    """
    target, size, every = settings.targets[0], settings.max_set_size, tuning.times
    if len(tuning) < LEAST_ROWS or size >= tuning.log_confidence.shape[3]:
        return None
    blocks = min(Gate.count_blocks(settings.n_calibration, target), len(every))
    return AgreeStop(
        target, every, size, gate=Gate.fit(tuning, target=target, max_set_size=size, blocks=blocks)
    )


@dataclass(frozen=True, eq=False)
class Measurement:
    """Records of every rule, and by its label each rule at the main target and for all
    members, after tuning.
    """

    records: tuple[Record, ...]
    rules: dict[str, Rule]


@dataclass(frozen=True)
class _Task:
    """A rule with one number of members, at each of its targets.

    It is tuned once, at the first target.
    """

    label: str
    members: int
    rules: dict[float, Rule]

    @property
    def is_tuned(self) -> bool:
        """Whether the rule is tuned before it is measured."""
        return self.label in TUNED

    @property
    def cost(self) -> float:
        """The time that it takes, roughly, as a multiple of the time of measuring a rule
        that is not tuned.
        """
        rule = next(iter(self.rules.values()))
        return len(self.rules) + (5.0 + 0.5 * len(rule.checkpoints) if self.is_tuned else 0.0)


@dataclass(frozen=True, eq=False)
class _Measured:
    """The records of one task, and its rule at the first target, after tuning."""

    records: tuple[Record, ...]
    rule: Rule


@dataclass(frozen=True, eq=False)
class _Measurer:
    """All that is needed to measure the rules on one ensemble's scores; `spent` (n, T, K) is the
    energy up to each step.
    """

    ensemble: str
    tuning: Scores
    pool: Scores
    settings: MeasurementSettings
    spent: Floats | None

    def prepare(self) -> Callable[[_Task], _Measured]:
        return self.measure

    def measure(self, task: _Task) -> _Measured:
        """Measure one rule at its targets.

        What it lacks is said in its records, so it does not warn.
        """
        with no_calibration_warnings():
            rules = task.rules
            first: Any = next(iter(rules.values()))
            if task.is_tuned:
                rows, settings = first_members(self.tuning, task.members), self.settings
                given: dict[str, Any] = {"seed": settings.seed, "only_if_better": False}
                tuned: Any = tune(first, rows, n_calibration=settings.n_calibration, **given).rule
                rules = {target: replace(tuned, target=target) for target in rules}
            pooling = first.terms.pooling  # tuning replaces it by a score
            records = [self._record(task, target, rule, pooling) for target, rule in rules.items()]
            return _Measured(tuple(records), next(iter(rules.values())))

    def _record(self, task: _Task, target: float, rule: Rule, pooling: Pooling | None) -> Record:
        settings, n = self.settings, self.settings.n_calibration
        scores = first_members(self.pool, task.members)
        splits = repeat_splits(
            rule, scores, n_calibration=n, repeats=settings.realisations, seed=settings.seed
        )
        record = Record(
            ensemble=self.ensemble,
            label=task.label,
            rule=rule.terms.kind,
            pooling=None if pooling is None else type(pooling).__name__,
            r=None if pooling is None else pooling.r,
            calibration=rule.terms.calibration,
            K=task.members,
            target=target,
            checkpoints=tuple(rule.checkpoints),
            coverage=float(splits.coverage),
            coverage_se=splits.coverage.se,
            latency=float(splits.normalized_latency),
            latency_se=splits.normalized_latency.se,
            set_size=float(splits.set_size),
            examples_needed=needed if (needed := rule.examples_needed(task.members)) > n else None,
        )
        if (target, task.members) == (settings.targets[0], max(settings.sizes)):
            # it takes longer than the rest, so only where the report states it
            pools = splits.pool_figures(POOL_REPEATS)
            record = replace(
                record,
                coverage_pool=bounds(pools.coverage),
                latency_pool=bounds(pools.normalized_latency),
            )
            if self.spent is not None:
                record = replace(
                    record, energy=_energy(rule, self.pool, self.spent.sum(axis=2), settings)
                )
        return record


def measure_rules(
    ensemble: str,
    tuning: Scores,
    pool: Scores,
    settings: MeasurementSettings,
    progress: ProgressCallback,
    spent: Floats | None = None,
    workers: int = 1,
    own: Mapping[str, Rule] | None = None,
) -> Measurement:
    """Measure all rules on one ensemble's scores; `spent` (n, T, K) is the energy that the pool's
    inputs take up to each step.

    The records are sorted by target and number of members. The results do not depend on the number
    of `workers`, which are processes. `own`: further rules by label, for the main target, which
    are measured as they are.
    """
    largest, main = max(settings.sizes), settings.targets[0]
    cases = {largest: settings.targets} | {
        size: (main,) for size in settings.sizes if size != largest
    }
    rules = {target: _rules(target, settings, pool.times) for target in settings.targets}
    tasks = [
        _Task(label, members, {target: rules[target][label] for target in targets})
        for members, targets in cases.items()
        for label in rules[main]
    ]
    if (gated := _gated(settings, tuning)) is not None:
        tasks.append(_Task(GATED, largest, {main: gated}))
    tasks += [_Task(label, largest, {main: rule}) for label, rule in (own or {}).items()]
    total, done, found = sum(task.cost for task in tasks), 0.0, dict[tuple[str, int], _Measured]()
    progress(f"{len(tasks)} rules", 0.0)
    if total * settings.realisations * pool.log_confidence.size < SMALL_WORK:
        workers = 1
    # so that no process is left with a slow one at the end
    slowest_first = sorted(tasks, key=lambda task: -task.cost)
    for task, measured in run_tasks(
        _Measurer(ensemble, tuning, pool, settings, spent).prepare, slowest_first, workers
    ):
        found[task.label, task.members], done = measured, done + task.cost
        many = f"{task.members} member{'s' if task.members > 1 else ''}"
        progress(f"{task.label}, {many}", done / total)
    records = [record for task in tasks for record in found[task.label, task.members].records]
    order = [(target, members) for members, targets in cases.items() for target in targets]
    records.sort(key=lambda record: (record.label == GATED, order.index((record.target, record.K))))
    return Measurement(
        tuple(records),
        {label: one.rule for (label, members), one in found.items() if members == largest},
    )


def _energy(rule: Rule, pool: Scores, spent: Floats, settings: MeasurementSettings) -> float:
    """The energy spent until the stop as a share of the energy to T, over a few realisations."""
    shares = []
    for repeat in range(ENERGY_REALISATIONS):
        order = np.random.default_rng([settings.seed, repeat]).permutation(len(pool))
        calibration, test = order[: settings.n_calibration], order[settings.n_calibration :]
        decisions = rule.calibrate(pool.rows(calibration)).decide(pool.rows(test), first=0)
        step = np.searchsorted(pool.times, decisions.stop_time)
        shares.append(spent[test, step].mean() / spent[test, -1].mean())
    return float(np.mean(shares))


def bounds(estimate: Estimate) -> tuple[float, float] | None:
    """The interval of an estimate; None where it has none."""
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
    """A sentence that names the rules that can never stop with so few calibration examples, and
    how many they need; empty for none.
    """
    target, n = settings.targets[0], settings.n_calibration
    rules = _rules(target, settings, settings.checkpoints).items()
    needed = {
        label: rule.examples_needed(max(settings.sizes))
        for label, rule in rules
        if "every step" not in label
    }
    short = [f"{label} needs {least}" for label, least in needed.items() if least > n]
    if not short:
        return ""
    return (
        f"With {n} calibration examples these rules can never stop early at target {target:g}: "
        f"{', '.join(short)}."
    )


@contextmanager
def locked_folder(folder: Path, progress: ProgressCallback) -> Iterator[None]:
    """Make the folder of a run, and keep other runs out of it.

    A run that finds it in use says so and waits.

    A shortage of calibration examples was said before the run (`shortage_in_words`), so the rules
    do not warn of it again.
    """
    make_folder(folder)
    with folder_lock(folder, lambda sentence: progress(sentence, 0.0)), no_calibration_warnings():
        yield


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """The report of a run, and the pages and figures that were written of it."""

    report: Report
    written: Sequence[Path] = ()


def run_simulated(
    folder: Path,
    measured: MeasurementSettings,
    command: str,
    progress: ProgressCallback,
    workers: int = 1,
    pages: bool = True,
) -> FinishedRun:
    """Measure on simulated scores and write the scores, for the other verbs, and the report.

    `command` is the command line that asked for it. pages=False: only numbers are written.
    """
    with locked_folder(folder, progress):
        stages = Stages(progress, (1.0, 12.0, 1.0))
        stages.begin("simulated")("drawing scores", 0.0)
        members = max(measured.sizes)
        spikes, labels = simulate_spikes(N_TUNING + N_POOL, STEPS, members, seed=measured.seed)
        for name, rows in SPLITS.items():
            save_spikes(folder / f"{name}.npz", spikes[rows], labels[rows])
        scores = Scores(
            log_confidence(np.cumsum(spikes, axis=1, dtype=np.int32)),
            labels,
            tuple(range(1, STEPS + 1)),
        )
        tuning, pool = scores.rows(slice(0, N_TUNING)), scores.rows(slice(N_TUNING, None))
        report = report_measured(
            tuning,
            pool,
            measured,
            stages,
            "simulated",
            workers,
            name="simulated scores",
            kind="simulated scores",
            description=(
                f"scores drawn from a generator, {members} simulated members that count spikes "
                f"for {STEPS} steps; there are no inputs and no networks behind them"
            ),
            command=command,
            settings=(("seed", str(measured.seed)),),
        )
        sizes = {"repeats": measured.realisations, "n_calibration": measured.n_calibration}
        save_records(
            folder / "metrics.json",
            report.sections[0].records,
            data="simulated scores",
            seed=measured.seed,
            **sizes,
        )
        return FinishedRun(report, write_pages(report, folder, progress) if pages else ())


def write_pages(report: Report, folder: Path, progress: ProgressCallback) -> list[Path]:
    """Write the figures of a report and its page."""
    from agreestop.report.page import write_report_folder  # matplotlib and jinja2 are slow

    progress("writing the report", 1.0)
    return write_report_folder(report, folder)


def report_measured(
    tuning: Scores,
    pool: Scores,
    measured: MeasurementSettings,
    stages: Stages,
    ensemble: str = "",
    workers: int = 1,
    groups: Sequence[str] | None = None,
    own: Mapping[str, Rule] | None = None,
    people: Sequence[str] | None = None,
    tree: Tree | None = None,
    **header: Any,
) -> Report:
    """Measure all rules on scores, and collect the report.

    `ensemble` is their name in the records; `header`: its other fields.
    """
    measurement = measure_rules(
        ensemble,
        tuning,
        pool,
        measured,
        stages.begin(ensemble or "rules"),
        workers=workers,
        own=own,
    )
    results = measurement.records, measurement.rules, measured, stages.begin("report")
    section = describe_ensemble("", pool, *results, groups=groups, people=people, tree=tree)
    made_with = versions("agreestop", "numpy")
    return Report(
        measured=measured,
        n_tuning=len(tuning),
        n_pool=len(pool),
        sections=[section],
        versions=made_with,
        **header,
    )
