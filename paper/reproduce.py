"""One figure from score files (`sources`): every rule of the figure on every ensemble, over random
divisions of the pool.

    <output>/<figure>/numbers.json, figure.png, figure.svg
    <output>/.parts/<key>.json    what one rule reached on one ensemble at one setting; a run that
                                  was stopped continues from these

The key is a hash of the two score files, the rule, the setting, the protocol and the code that
decides.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from agreestop.common import (
    InputError,
    ProgressCallback,
    Stages,
    atomic_writer,
    make_folder,
    run_tasks,
)
from agreestop.report.contents import versions

from .figures import EVERY, MAX_SET_SIZE, SEENN2, Figure, FigureRule, Point, Setting, points_of
from .outcomes import (
    MEASURED,
    MeasureSettings,
    MeasureTask,
    RuleMeasurer,
    RuleOutcome,
    code_fingerprint,
)
from .records import FigureNumbers, FigureRecord, save_numbers
from .sources import SEENN2_FILE, ScoreSource, check_present, load_source, read_json

PARTS = ".parts"
PROTOCOL = MeasureSettings()


def run_figure(
    figure: Figure,
    scores: Path,
    output: Path,
    command: str,
    progress: ProgressCallback,
    workers: int = 1,
    settings: MeasureSettings = PROTOCOL,
) -> FigureNumbers:
    """Measure every rule of the figure and write `numbers.json`; what was measured before is used
    again.

    workers: processes that share the work. A script that asks for several must start under `if
    __name__ == "__main__":`.
    """
    check_present(figure, scores)
    make_folder(output / figure.name)
    make_folder(output / PARTS)
    folders = {
        (data, ensemble): scores / data / ensemble
        for data in figure.data
        for ensemble in figure.ensembles
    }
    stages = Stages(progress, [1.0] * len(folders))
    records: list[FigureRecord] = []
    sources: list[dict[str, Any]] = []
    notes: list[str] = []
    for (data, ensemble), folder in folders.items():
        report = stages.begin(f"{data}, {ensemble}")
        report("reading scores", 0.0)
        source = load_source(folder, data, ensemble)
        sources.append(source.describe())
        pool = min(len(source.pool.spikes), figure.pool or len(source.pool.spikes))
        points = points_of(figure, source.members, pool)
        found = _from_file(source, points, notes) | _measured(
            source, pool, points, output / PARTS, settings, workers, report
        )
        records += [
            _record(source, point, found[point], settings) for point in points if point in found
        ]
    header = {
        "command": command,
        "protocol": {
            **asdict(settings),
            "max_set_size": MAX_SET_SIZE,
            **asdict(Setting()),
            "largest_pool": figure.pool,
        },
        "sources": sources,
        "notes": notes,
        "versions": dict(versions("agreestop", "numpy", "scikit-learn")),
    }
    numbers = FigureNumbers(figure.name, figure.title, figure.swept, header, tuple(records))
    save_numbers(output / figure.name / "numbers.json", numbers)
    return numbers


def _record(
    source: ScoreSource, point: Point, outcome: RuleOutcome, settings: MeasureSettings
) -> FigureRecord:
    rule, setting = point.rule, point.setting
    return FigureRecord(
        data=source.data,
        simulated=source.simulated,
        ensemble=source.ensemble,
        label=rule.label,
        family=rule.family,
        rule=rule.rule,
        r=rule.r,
        checkpoints=rule.checkpoints,
        K=setting.K,
        target=setting.target,
        n=setting.n,
        x=point.x,
        default=point.default,
        realisations=settings.realisations,
        **asdict(outcome),
    )


def _from_file(
    source: ScoreSource, points: Sequence[Point], notes: list[str]
) -> dict[Point, RuleOutcome]:
    """SEENN-II from `seenn2.json`; without this file, a note says that it is left out."""
    wanted = [point for point in points if point.rule.rule == SEENN2]
    path = source.folder / SEENN2_FILE
    if not wanted:
        return {}
    if not path.is_file():
        notes.append(
            f"SEENN-II is left out for {source.data}, {source.ensemble}: it reads the inputs "
            f"themselves, and there is no {path}."
        )
        return {}
    known: dict[Setting, RuleOutcome] = {}
    try:
        for entry in read_json(path, list):
            coverage, coverage_se, latency, latency_se, set_size = (
                float(entry[name]) for name in MEASURED
            )
            setting = Setting(float(entry["target"]), int(entry["K"]), int(entry["n"]))
            known[setting] = RuleOutcome(coverage, coverage_se, latency, latency_se, set_size)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} is no list of SEENN-II's records ({error}): make it again."
        ) from None
    return {point: known[point.setting] for point in wanted if point.setting in known}


def _measured(
    source: ScoreSource,
    pool: int,
    points: Sequence[Point],
    folder: Path,
    settings: MeasureSettings,
    workers: int,
    progress: ProgressCallback,
) -> dict[Point, RuleOutcome]:
    """The outcomes of all points: read from files, or measured and written to files."""
    groups: dict[tuple[FigureRule, int], list[Point]] = {}
    found: dict[Point, RuleOutcome] = {}
    files = {
        point: folder / f"{_key(source, pool, point, settings)}.json"
        for point in points
        if point.rule.rule != SEENN2
    }
    for point, path in files.items():
        if (outcome := _load_outcome(path)) is not None:
            found[point] = outcome
        else:
            groups.setdefault((point.rule, point.setting.K), []).append(point)
    # The slowest tasks come first, so that no process is left with one at the end.
    order = sorted(groups, key=lambda group: -_cost(group[0]))
    tasks = [
        MeasureTask(rule, members, tuple(point.setting for point in groups[rule, members]))
        for rule, members in order
    ]
    total, done = sum(_cost(task.rule) for task in tasks), 0.0
    progress(f"{len(tasks)} measurements to do", 0.0)
    prepare = partial(_prepare, source.folder, source.data, source.ensemble, pool, settings)
    for task, outcomes in run_tasks(prepare, tasks, workers):
        for point, outcome in zip(groups[task.rule, task.members], outcomes, strict=True):
            _save_outcome(files[point], outcome)
            found[point] = outcome
        done += _cost(task.rule)
        progress(f"{task.rule.label}, K = {task.members}", done / total)
    return found


def _cost(rule: FigureRule) -> float:
    """How long a rule takes to measure, roughly, in any unit: for the order of the tasks and for
    the estimate of the time left.
    """
    return (9.0 if rule.checkpoints == EVERY else 1.0) * (15.0 if rule.tuned else 1.0)


def _prepare(
    folder: Path, data: str, ensemble: str, pool: int, settings: MeasureSettings
) -> Callable[[MeasureTask], Sequence[RuleOutcome]]:
    return RuleMeasurer.of(load_source(folder, data, ensemble), pool, settings).measure


def _key(source: ScoreSource, pool: int, point: Point, settings: MeasureSettings) -> str:
    rule = point.rule.build(point.setting.target, source.steps)
    asked = (repr(rule), point.rule.tuned, asdict(point.setting), asdict(settings))
    used = (source.fingerprint, pool, asked, code_fingerprint(), versions("numpy", "scikit-learn"))
    return hashlib.sha256(json.dumps(used, sort_keys=True).encode()).hexdigest()


def _load_outcome(path: Path) -> RuleOutcome | None:
    """What was measured before; None if nothing was, or if the file is damaged."""
    try:
        return RuleOutcome(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _save_outcome(path: Path, outcome: RuleOutcome) -> None:
    with atomic_writer(path) as stream:
        stream.write(json.dumps(asdict(outcome)).encode() + b"\n")
