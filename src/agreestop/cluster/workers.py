"""What the workers of every job share: the ensemble, the file that is open, and how rules and
members travel.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path

from agreestop.common import InputError, read_file
from agreestop.common.files import as_bytes, from_bytes
from agreestop.decide.calibrated import CalibratedRule, check_calibrated
from agreestop.decide.rule import Terms
from agreestop.ensembles import Ensemble
from agreestop.ensembles import load as load_ensemble

from .pool import versions
from .sources import (
    CarriedEvents,
    EventsFile,
    ParquetFile,
    Shard,
    Source,
    check_ids,
    count_rows,
    find_files,
    open_recordings,
    plan_shards,
)


class FileReader:
    """An ensemble and the file that it reads: one engine and one open file at a time."""

    def __init__(self, members: bytes, engine: str, threads: int) -> None:
        self.ensemble = from_bytes(members, partial(load_ensemble, engine=engine))
        self._threads = threads
        self._file: EventsFile | ParquetFile | None = None

    def read(self, shard: Shard) -> Iterator[tuple[int, CarriedEvents]]:
        """The recordings of a shard in blocks that fit into memory, each with the number of its
        first recording.
        """
        if self._file is None or self._file.path != shard.path:
            self._file = open_recordings(shard.path, self.ensemble.network.input_shape or ())
        for begin, end in shard.blocks():
            part = self._file.read(begin, end)
            engine = self.ensemble.engine_for(part.events)
            if hasattr(engine, "threads"):
                engine.threads = self._threads
            yield shard.first + begin - shard.begin, part


@dataclass(frozen=True)
class PlannedSource:
    """The files of a source with their numbers of recordings, its shards, and a sentence for
    each file that is skipped.
    """

    counts: tuple[tuple[str, int], ...]
    shards: tuple[Shard, ...]
    damaged: tuple[str, ...]

    @classmethod
    def of(cls, source: Source, shard_rows: int | None, skip_damaged: bool) -> "PlannedSource":
        """Look at the headers of all files.

        A damaged one is refused, or left out if it may be skipped.
        """
        counts, damaged = [], []
        for file in map(str, map(Path.resolve, map(Path, find_files(source)))):
            try:
                counts.append((file, count_rows(file)))
            except InputError as error:
                if not skip_damaged:
                    raise
                damaged.append(str(error))
        check_ids(file for file, _ in counts)
        shards = tuple(plan_shards(counts, shard_rows))
        if not shards:
            raise InputError("the source holds no recordings: give files with at least one.")
        return cls(tuple(counts), shards, tuple(damaged))

    @property
    def total(self) -> int:
        """The number of recordings."""
        return sum(count for _, count in self.counts)

    def key(self, **settings: object) -> str:
        """A hash of what the results follow from: the files, the shards, the versions and
        these settings.
        """
        files = [
            (file, rows, Path(file).stat().st_size, Path(file).stat().st_mtime_ns)
            for file, rows in self.counts
        ]
        ranges = [(shard.path, shard.begin, shard.end) for shard in self.shards]
        return hashlib.sha256(
            json.dumps([files, ranges, versions(), settings], sort_keys=True).encode()
        ).hexdigest()


def engine_of_all(ensemble: Ensemble, wanted: str, planned: PlannedSource) -> str:
    """The name of the engine that all workers use.

    "auto" chooses it once, from the members and the first recordings that can be read.
    """
    if wanted != "auto":
        return wanted
    errors = []
    for shard in planned.shards:
        try:
            file = open_recordings(shard.path, ensemble.network.input_shape or ())
            return ensemble.engine_for(file.read(*next(shard.blocks())).events).name
        except InputError as error:
            errors.append(error)
    raise errors[0]


def check_terms(terms: Terms) -> None:
    """Refuse rules that read no classes: members on a cluster give scores of classes."""
    if terms.open_answers or not terms.has_classes:
        raise InputError(
            "on a cluster ensembles give scores of classes, which this rule does not read: give "
            "AgreeStop or SpikeCP, or call rule.decide on your own numbers or answers."
        )


def rule_bytes(rule: CalibratedRule | str | PathLike[str]) -> bytes:
    """The content of a rule file, of a rule in memory or in a file."""
    if isinstance(rule, (str, PathLike)):
        if Path(rule).is_dir():
            raise InputError(
                f"the rule is {rule}, a folder: give a rule file, and the folder as the source."
            )
        return read_file(rule, "calibrate a rule first")
    check_calibrated(rule)
    return as_bytes(rule.save)


def members_bytes(members: Ensemble | str | PathLike[str]) -> bytes:
    """The content of an ensemble file, of an ensemble in memory or in a file."""
    if isinstance(members, (str, PathLike)):
        return read_file(members, "check the path, or train first")
    if not isinstance(members, Ensemble):
        raise InputError(
            f"members is of type {type(members).__name__}: give an ensemble, or a file that "
            "ensemble.save wrote."
        )
    return as_bytes(members.save)
