"""The paper's figures from score files (`sources`): every rule of a figure on every ensemble, over random divisions of the pool.

    <output>/<figure>/numbers.json, figure.png, figure.svg
    <output>/.parts/<fingerprint>.json    a rule on an ensemble at one setting: a run that was stopped goes on from these

The fingerprint is of the two score files, the rule, the setting, the protocol and the code that decides.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agreestop.common.errors import InputError
from agreestop.common.files import atomic_writer, make_folder
from agreestop.pipeline.gather import versions
from agreestop.pipeline.measure import Tell

from .figures import EVERY, MAX_SET_SIZE, SEENN2, Contender, Figure, Point, Setting, points_of
from .outcomes import EFFORT, MEASURED, Effort, Outcome, Part, Ready, code_fingerprint
from .records import FigureNumbers, FigureRecord, save_numbers
from .sources import SEENN2_FILE, Source, check_there, load_source, read_json

PARTS = ".parts"


def run_figure(
    figure: Figure, scores: Path, output: Path, command: str, tell: Tell, workers: int = 1, effort: Effort = EFFORT
) -> FigureNumbers:
    """Measure every rule of the figure and write `numbers.json`; what was measured before is used again.

    workers: processes that share the work; a script that asks for several must start under `if __name__ == "__main__":`.
    """
    check_there(figure, scores)
    make_folder(output / figure.name)
    make_folder(output / PARTS)
    places = [(data, ensemble) for data in figure.data for ensemble in figure.ensembles]
    records: list[FigureRecord] = []
    sources: list[dict[str, Any]] = []
    notes: list[str] = []
    for place, (data, ensemble) in enumerate(places):
        source = load_source(scores / data / ensemble, data, ensemble)
        sources.append(source.describe())

        def share(what: str, done: float, first: int = place, name: str = f"{data}, {ensemble}") -> None:
            tell(f"{name}: {what}" if what else name, (first + done) / len(places))

        pool = min(len(source.pool.spikes), figure.pool or len(source.pool.spikes))
        points = points_of(figure, source.members, pool)
        found = _from_file(source, points, notes) | _measured(source, pool, points, output / PARTS, effort, workers, share)
        records += [_record(source, point, found[point], effort) for point in points if point in found]
    header = {
        "command": command,
        "protocol": {**asdict(effort), "max_set_size": MAX_SET_SIZE, **asdict(Setting()), "largest_pool": figure.pool},
        "sources": sources,
        "notes": notes,
        "versions": dict(versions("agreestop", "numpy", "scikit-learn")),
    }
    numbers = FigureNumbers(figure.name, figure.title, figure.swept, header, tuple(records))
    save_numbers(output / figure.name / "numbers.json", numbers)
    return numbers


def _record(source: Source, point: Point, outcome: Outcome, effort: Effort) -> FigureRecord:
    contender, setting = point.contender, point.setting
    return FigureRecord(
        data=source.data,
        simulated=source.simulated,
        ensemble=source.ensemble,
        label=contender.label,
        family=contender.family,
        rule=contender.rule,
        r=contender.r,
        checkpoints=contender.checkpoints,
        K=setting.K,
        target=setting.target,
        n=setting.n,
        x=point.x,
        default=point.default,
        realisations=effort.realisations,
        **asdict(outcome),
    )


def _from_file(source: Source, points: Sequence[Point], notes: list[str]) -> dict[Point, Outcome]:
    """What `seenn2.json` says of SEENN-II, where it is there; else a note."""
    wanted = [point for point in points if point.contender.rule == SEENN2]
    path = source.folder / SEENN2_FILE
    if not wanted:
        return {}
    if not path.is_file():
        notes.append(f"SEENN-II is left out for {source.data}, {source.ensemble}: it reads the inputs themselves, and there is no {path}.")
        return {}
    known: dict[Setting, Outcome] = {}
    try:
        for entry in read_json(path, list):
            coverage, coverage_se, latency, latency_se, set_size = (float(entry[name]) for name in MEASURED)
            setting = Setting(float(entry["target"]), int(entry["K"]), int(entry["n"]))
            known[setting] = Outcome(coverage, coverage_se, latency, latency_se, set_size)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is no list of SEENN-II's records ({error}): make it again.") from None
    return {point: known[point.setting] for point in wanted if point.setting in known}


def _measured(
    source: Source, pool: int, points: Sequence[Point], folder: Path, effort: Effort, workers: int, tell: Tell
) -> dict[Point, Outcome]:
    """Outcomes of all points, from the files that are there and, where they are not, measured and kept."""
    groups: dict[tuple[Contender, int], list[Point]] = {}
    found: dict[Point, Outcome] = {}
    files = {point: folder / f"{_key(source, pool, point, effort)}.json" for point in points if point.contender.rule != SEENN2}
    for point, path in files.items():
        if (outcome := _load_part(path)) is not None:
            found[point] = outcome
        else:
            groups.setdefault((point.contender, point.setting.K), []).append(point)
    # what is tuned at every step takes longest, and is not left for one process to do alone at the end
    order = sorted(groups, key=lambda group: (not group[0].tuned, group[0].checkpoints != EVERY))
    parts = [Part(contender, members, tuple(point.setting for point in groups[contender, members])) for contender, members in order]
    tell("", 0.0)
    for done, (part, outcomes) in enumerate(_measure_parts(source, pool, parts, effort, workers)):
        for point, outcome in zip(groups[part.contender, part.members], outcomes, strict=True):
            _save_part(files[point], outcome)
            found[point] = outcome
        tell(f"{part.contender.label}, K = {part.members}", (done + 1) / len(parts))
    return found


def _measure_parts(
    source: Source, pool: int, parts: Sequence[Part], effort: Effort, workers: int
) -> Iterator[tuple[Part, Sequence[Outcome]]]:
    """Each part with its outcomes, as they come; `workers` processes share the work, which leaves the numbers as they are."""
    if min(workers, len(parts)) <= 1:
        ready = Ready.of(source, pool, effort) if parts else None
        for part in parts:
            assert ready is not None
            yield part, ready.measure(part)
        return
    # fresh processes: a fork of one that runs threads, as scikit-learn does, can hang
    context = multiprocessing.get_context("spawn")
    place = (source.folder, source.data, source.ensemble)
    executor = ProcessPoolExecutor(min(workers, len(parts)), context, _begin_worker, (*place, pool, effort))
    try:
        waiting = {executor.submit(_measure_in_worker, part): part for part in parts}
        for future in as_completed(waiting):
            yield waiting[future], future.result()
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    executor.shutdown()


_in_worker: list[Ready] = []
"""What a worker process measures on; empty in any other."""


def _begin_worker(folder: Path, data: str, ensemble: str, pool: int, effort: Effort) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that waits for the workers ends them
    _in_worker.append(Ready.of(load_source(folder, data, ensemble), pool, effort))


def _measure_in_worker(part: Part) -> Sequence[Outcome]:
    return _in_worker[0].measure(part)


def _key(source: Source, pool: int, point: Point, effort: Effort) -> str:
    rule = point.contender.build(point.setting.target, source.steps)
    asked = (repr(rule), point.contender.tuned, asdict(point.setting), asdict(effort))
    used = (source.fingerprint, pool, asked, code_fingerprint(), versions("numpy", "scikit-learn"))
    return hashlib.sha256(json.dumps(used, sort_keys=True).encode()).hexdigest()


def _load_part(path: Path) -> Outcome | None:
    """What was measured before; None where nothing was, or somebody damaged it."""
    try:
        return Outcome(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _save_part(path: Path, outcome: Outcome) -> None:
    with atomic_writer(path) as stream:
        stream.write(json.dumps(asdict(outcome)).encode() + b"\n")
