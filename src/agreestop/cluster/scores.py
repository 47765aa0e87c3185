"""Scores and calibration on a cluster: the members run where the recordings are, and the results
come back in the order of the source.
"""

from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Any

from agreestop.common import InputError, ProgressCallback, join_parts, no_progress
from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.calibration import (
    ReducedExamples,
    calibrate_reduced,
    reduce_examples,
)
from agreestop.decide.rule import Rule
from agreestop.decide.scores import Scores
from agreestop.ensembles import Ensemble
from agreestop.ensembles import load as load_ensemble

from .pool import Actors, import_ray, map_tasks
from .sources import Shard, Source
from .workers import FileReader, PlannedSource, check_terms, engine_of_all, members_bytes


@dataclass(frozen=True)
class ScoreSettings:
    """What a worker needs: the content of the file of the members, and how to score. rule:
    reduce the scores for its calibration.
    """

    members: bytes
    engine: str
    threads: int
    steps: int | None
    rule: Rule | None = None


class ScoreWorker:
    """Scores one shard after another, with one engine."""

    def __init__(self, settings: ScoreSettings) -> None:
        self._settings = settings
        self._reader = FileReader(settings.members, settings.engine, settings.threads)

    def __call__(self, shard: Shard) -> list[Scores | ReducedExamples]:
        """The scores of a shard, or with a rule what its calibration needs of them."""
        steps, rule = self._settings.steps, self._settings.rule
        scored: list[Scores | ReducedExamples] = []
        for first, part in self._reader.read(shard):
            scores = self._reader.ensemble.score(
                part.events, part.carried.get("label"), steps=steps, first=first
            )
            if "id" in part.carried:
                scores = replace(scores, ids=part.carried["id"])
            scored.append(scores if rule is None else reduce_examples(rule, scores))
        return scored


def score(
    members: Ensemble | str | PathLike[str],
    source: Source,
    *,
    address: str = "local",
    actors: int | None = None,
    cpus: int = 1,
    gpus: float = 0.0,
    engine: str = "auto",
    steps: int | None = None,
    shard_rows: int | None = None,
    progress: ProgressCallback = no_progress,
) -> Scores:
    """Log-confidences of every member after every step, as `ensemble.score` gives them for all
    recordings of the source.

    The arguments are those of `decide` and of `ensemble.score`. All scores come into the memory
    of the driver.
    """
    parts = _run(
        Actors(address, actors, cpus, gpus),
        members,
        source,
        engine,
        steps,
        shard_rows,
        progress,
        None,
    )
    first: Scores = parts[0]
    names = ("log_confidence", "labels", "ids", "trained")
    joined: dict[str, Any] = {
        name: join_parts([getattr(part, name) for part in parts]) for name in names
    }
    return replace(first, **joined)


def calibrate(
    rule: Rule,
    members: Ensemble | str | PathLike[str],
    source: Source,
    *,
    address: str = "local",
    actors: int | None = None,
    cpus: int = 1,
    gpus: float = 0.0,
    engine: str = "auto",
    steps: int | None = None,
    shard_rows: int | None = None,
    progress: ProgressCallback = no_progress,
) -> CalibratedRule:
    """Calibrate a rule on the labelled recordings of a source: the same rule, exactly, as
    `rule.calibrate(ensemble.score(...))`.

    Scores stay on the workers, which reduce each example to what calibration needs of it, such as
    W. The other arguments are described in `decide` and `ensemble.score`.
    """
    if not isinstance(rule, Rule):
        raise InputError(
            f"the rule is a {type(rule).__name__}: give a rule that is to be calibrated, such as "
            "AgreeStop(...), and then the members."
        )
    check_terms(rule.terms)
    parts = _run(
        Actors(address, actors, cpus, gpus),
        members,
        source,
        engine,
        steps,
        shard_rows,
        progress,
        rule,
    )
    return calibrate_reduced(rule, parts)


def _run(
    where: Actors,
    members: Ensemble | str | PathLike[str],
    source: Source,
    engine: str,
    steps: int | None,
    shard_rows: int | None,
    progress: ProgressCallback,
    rule: Rule | None,
) -> list[Any]:
    """The results of all shards, in the order of the source."""
    import_ray()
    stored = members_bytes(members)
    ensemble = (
        load_ensemble(members, engine=engine) if isinstance(members, (str, PathLike)) else members
    )
    planned = PlannedSource.of(source, shard_rows, skip_damaged=False)
    settings = ScoreSettings(
        stored, engine_of_all(ensemble, engine, planned), where.cpus, steps, rule
    )
    parts = map_tasks(where, partial(ScoreWorker, settings), planned.shards, progress, "shards")
    return [block for part in parts for block in part]
