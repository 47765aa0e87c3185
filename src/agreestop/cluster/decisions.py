"""Decisions on millions of recordings: `decide` on the actors of a cluster, from files to files.

Every shard of the source becomes one file of decisions. The driver hands out shards and keeps
nothing else, so it may be killed as well as any worker: the same call continues with the shards
that are missing. The decisions are those of one machine, bit for bit.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from agreestop.common import (
    InputError,
    ProgressCallback,
    as_count,
    folder_lock,
    make_folder,
    no_progress,
)
from agreestop.common.files import from_bytes
from agreestop.decide.calibrated import CalibratedRule, load_rule
from agreestop.decide.leakage import Overlap, TrainingRows, first_reuse
from agreestop.ensembles import Ensemble
from agreestop.ensembles import load as load_ensemble
from agreestop.events import input_ids

from .parts import (
    PLAN,
    PartSummary,
    assemble,
    columns_of_run,
    part_path,
    read_part,
    read_plan,
    rule_mark,
    write_part,
    write_plan,
)
from .pool import Actors, import_ray, run_on_actors
from .sources import Shard, Source, as_paths, check_apart, check_carried, import_parquet
from .workers import (
    FileReader,
    PlannedSource,
    check_terms,
    engine_of_all,
    members_bytes,
    rule_bytes,
)

OTHER_FORMATS = (".csv", ".json", ".npz")


@dataclass(frozen=True)
class ClusterRun:
    """What `decide` did.

    out         the file or folder of decisions
    recordings  how many were decided; mean_time, mean_set_size, mean_computed: of their answers
    shards      how many there are; resumed: how many were found finished
    damaged     a sentence for each file or shard that was skipped
    reuse       a sentence if the rule was tuned or calibrated on some of the recordings, else
                an empty string
    engine      the engine that ran
    seconds     that this call took
    """

    out: Path
    recordings: int
    mean_time: float
    mean_set_size: float
    mean_computed: float
    shards: int
    resumed: int
    damaged: tuple[str, ...]
    reuse: str
    engine: str
    seconds: float


@dataclass(frozen=True)
class DecisionSettings:
    """What a worker needs: the contents of the files of the rule and the members, and
    where decisions go.
    """

    rule: bytes
    members: bytes
    engine: str
    threads: int
    folder: str
    key: str
    any_engine: bool
    any_members: bool
    first: int


class DecisionWorker:
    """Decides on one shard after another, with one engine."""

    def __init__(self, settings: DecisionSettings) -> None:
        self._settings = settings
        self._rule = from_bytes(settings.rule, load_rule)
        self._mark = rule_mark(self._rule)
        self._reader = FileReader(settings.members, settings.engine, settings.threads)

    def __call__(self, shard: Shard) -> PartSummary | str:
        """Decide on a shard and write its file; a file that is there already is used.

        A sentence if the shard cannot be read.
        """
        path = part_path(Path(self._settings.folder), shard.number)
        if (found := read_part(path, self._settings.key)) is not None:
            return found
        try:
            columns, summary = self._decide(shard)
        except InputError as error:
            return str(error) if shard.path in str(error) else f"{shard}, cannot be used: {error}"
        write_part(path, columns, summary, self._settings.key, self._mark)
        return summary

    def _decide(self, shard: Shard) -> tuple[dict[str, Any], PartSummary]:
        """The columns of the decisions, and what they add up to."""
        settings, rule = self._settings, self._rule
        allowed = {"any_engine": settings.any_engine, "any_members": settings.any_members}
        runs, hashes, carried, summaries = [], [], [], []
        for first, part in self._reader.read(shard):
            groups = part.carried.get("group") if rule.group_names is not None else None
            steps = int(rule.checkpoints[-1]) if part.events.shape[1] == 1 else None
            runs.append(
                self._reader.ensemble.decide(
                    rule,
                    part.events,
                    steps=steps,
                    groups=groups,
                    first=settings.first + first,
                    **allowed,
                )
            )
            hashes.append(input_ids(part.events))
            carried.append(part.carried)
            seen = [overlap.seen for overlap in rule.overlaps(hashes[-1])]
            if (training := self._reader.ensemble.training_rows) is not None:
                seen.append(int(training.find(input_ids(part.events, as_float32=True)).sum()))
            summaries.append(PartSummary.of(runs[-1].decisions, runs[-1].computed, seen))
        columns = {name: np.concatenate([one[name] for one in carried]) for name in carried[0]}
        return columns_of_run(
            runs, shard.first, np.concatenate(hashes), columns
        ), PartSummary.joined(summaries)


def decide(
    rule: CalibratedRule | str | PathLike[str],
    members: Ensemble | str | PathLike[str],
    source: Source,
    out: str | PathLike[str],
    *,
    address: str = "local",
    actors: int | None = None,
    cpus: int = 1,
    gpus: float = 0.0,
    engine: str = "auto",
    shard_rows: int | None = None,
    skip_damaged: bool = False,
    any_engine: bool = False,
    any_members: bool = False,
    first: int | None = None,
    progress: ProgressCallback = no_progress,
) -> ClusterRun:
    """Decide on the recordings of a source, and write decisions as Parquet in the order
    of the source.

    rule, members  a calibrated rule and an ensemble, or their files
    source         a file, a folder, a pattern or a list: events files (.npz) or Parquet files;
                   see `agreestop.cluster.sources`. Workers read it, so all machines must see it
                   under the same path
    out            a name that ends in .parquet for one file; else a folder, with one file for each
                   shard. Its columns: `agreestop.cluster.parts`
    address        "local", "auto", or the address of a Ray cluster
    actors, cpus, gpus   how many actors (as many as there is room for), and the cores
                         and GPUs of each
    engine         as for `ensembles.load`; "auto" takes that of the rule
    shard_rows     recordings in a shard: what is lost at most when a worker dies, and what a file
                   of a folder holds
    skip_damaged   leave out files and shards that cannot be read, and name them in the result,
                   instead of stopping at the first
    any_engine, any_members   as for `ensemble.decide`
    first          the number of the first recording, on which members that are drawn for
                   every input and randomised merging depend. Without it numbers begin at
                   0; for randomised merging at a number of this job's own, so that no two
                   jobs use the same

    A call that was killed continues where it ended if it is repeated with the same arguments.
    """
    began = perf_counter()
    where = Actors(address, actors, cpus, gpus)
    if not isinstance(out, (str, PathLike)):
        raise InputError(
            f"out is {out!r}: give a path, the name of a .parquet file or of a folder."
        )
    if Path(out).suffix in OTHER_FORMATS:
        raise InputError(
            f"out is {out}, and only the command line writes {' and '.join(OTHER_FORMATS)}: give a "
            "name that ends in .parquet, or a folder."
        )
    source = as_paths(source)
    check_apart(source, target := Path(out))
    import_ray(), import_parquet()
    stored_rule, stored_members = rule_bytes(rule), members_bytes(members)
    calibrated = load_rule(rule) if isinstance(rule, (str, PathLike)) else rule
    check_terms(calibrated.rule.terms)
    if calibrated.start(1).depths:
        raise InputError(
            "the rule answers once for each depth of a tree, and these files hold one answer: give "
            "a rule with a depth such as 1, or None."
        )
    ensemble = (
        load_ensemble(members, engine=engine) if isinstance(members, (str, PathLike)) else members
    )
    planned = PlannedSource.of(source, shard_rows, skip_damaged)
    check_carried(shard.path for shard in planned.shards)
    wanted = calibrated.engine if engine == "auto" and calibrated.engine else engine
    name = engine_of_all(ensemble, wanted, planned)
    calibrated.check_source(name, ensemble.digest, any_engine, any_members)
    named = {} if first is None else {"first": as_count(first, "first", least=0)}
    key = planned.key(rule=stored_rule.hex(), members=ensemble.digest, engine=name, **named)
    start = named.get("first", int(key[:12], 16) if calibrated.randomized else 0)
    result = partial(_result, began, target, planned, calibrated, name, ensemble.training_rows)
    single = target.suffix == ".parquet"
    folder = (target.with_name(f"{target.name}.parts") if single else target).resolve()
    if single and (summary := read_part(target, key)) is not None and summary.rows == planned.total:
        return result(summary, len(planned.shards), planned.damaged)
    with _job_folder(folder, key):
        known = (
            (shard.number, read_part(part_path(folder, shard.number), key))
            for shard in planned.shards
        )
        parts = {number: summary for number, summary in known if summary is not None}
        resumed, damaged = len(parts), list(planned.damaged)
        left = [shard for shard in planned.shards if shard.number not in parts]
        settings = DecisionSettings(
            stored_rule,
            stored_members,
            name,
            cpus,
            str(folder),
            key,
            any_engine,
            any_members,
            start,
        )
        done = sum(part.rows for part in parts.values())
        # when the first shard came, and what was done by then: workers take a while to start
        pace: tuple[float, int] | None = None

        def report(what: str) -> None:
            progress(f"{done:,} of {planned.total:,} recordings{what}", done / planned.total)

        report("")
        for finished in run_on_actors(
            where, partial(DecisionWorker, settings), left, lambda sentence: report(f", {sentence}")
        ):
            shard, found = left[finished.index], finished.result
            if found is None:
                raise InputError(finished.error)
            if isinstance(found, str):
                if not skip_damaged:
                    raise InputError(found)
                damaged.append(found)
                part_path(folder, shard.number).unlink(missing_ok=True)
                continue
            parts[shard.number] = found
            done += found.rows
            now = perf_counter()
            rate = f"{(done - pace[1]) / (now - pace[0]):,.0f} a second" if pace else "started"
            pace = pace or (now, done)
            report(f", {rate}, actors at work: {finished.running}")
        if not parts:
            raise InputError(f"none of the {len(planned.shards)} shards can be read: {damaged[0]}")
        summary = PartSummary.joined([parts[number] for number in sorted(parts)])
        if single:
            assemble(
                [part_path(folder, number) for number in sorted(parts)],
                target,
                summary,
                key,
                rule_mark(calibrated),
            )
        else:
            write_plan(folder, key, sorted(parts))
    if single and summary.rows == planned.total:
        shutil.rmtree(folder)
    return result(summary, resumed, tuple(damaged))


@contextmanager
def _job_folder(folder: Path, key: str) -> Iterator[None]:
    """The folder of a job, locked. A folder of another job is refused."""
    make_folder(folder)
    with folder_lock(folder):
        mine, begun = read_plan(folder)[0] == key, any(folder.glob("part-*.parquet"))
        if begun and not (folder / PLAN).exists():
            raise InputError(
                f"{folder} holds files that this job did not write: give another name, or remove "
                "them."
            )
        if begun and not mine:
            raise InputError(
                f"{folder} holds decisions of another job (another rule, other members, other "
                "files or other versions): give another name, or remove it."
            )
        if not mine:
            write_plan(folder, key)
        yield


def _result(
    began: float,
    out: Path,
    planned: PlannedSource,
    rule: CalibratedRule,
    engine: str,
    training: TrainingRows | None,
    summary: PartSummary,
    resumed: int,
    damaged: tuple[str, ...],
) -> ClusterRun:
    rows, seconds = summary.rows, perf_counter() - began
    compared = rule.overlaps(np.empty(0, np.uint64)) + (
        [] if training is None else [Overlap("training", "ids", chance=training.chance)]
    )
    overlaps = [
        replace(one, seen=seen, total=rows)
        for one, seen in zip(compared, summary.seen, strict=True)
    ]
    reuse = first_reuse(sorted(overlaps, key=lambda overlap: overlap.use != "training"))
    means = summary.stop_time / rows, summary.set_size / rows, summary.computed / rows
    return ClusterRun(
        out, rows, *means, len(planned.shards), resumed, damaged, reuse, engine, seconds
    )
