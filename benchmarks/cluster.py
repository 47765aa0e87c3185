"""Decisions on a local Ray cluster: how the speed grows from one actor to two, and the pieces from
which docs/scale.md computes.

Six members of 256 neurons on the embedded digits in front of a simulated event camera, T = 80. One
actor has one core. Runs with one actor, with two, and with one process without Ray take turns; each
rate is the best of its rounds, because other work on the machine only makes a run slower. The start
of the workers is measured separately.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch

import agreestop as ag
from agreestop.cluster.pool import import_ray
from agreestop.common import InputError, cores

from .digits import DigitsStudy
from .results import PACKAGES, describe_run, write_results

SHARD_ROWS = 1024


def run_cluster(recordings: int, rounds: int, output: Path) -> dict[str, Any]:
    """Measure, and write a JSON file."""
    ray = import_ray()
    if cores() < 2:
        raise InputError("two actors need two cores: run this on a larger machine.")
    study = DigitsStudy.make()
    ensemble, rule = study.ensemble, study.rule
    events = _different(study.inputs, recordings)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        events.save(folder / "recordings.npz")
        ag.cluster.save_recordings(folder / "recordings.parquet", events)
        rule.save(folder / "rule")
        ensemble.save(folder / "members")
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
        try:
            measured = [_round(folder, ensemble, rule, events) for _ in range(rounds)]
        finally:
            ray.shutdown()
        expected = ensemble.decide(rule, events).decisions
        same = np.array_equal(ag.cluster.load_decisions(folder / "out", rule).sets, expected.sets)
        sizes = {
            name: (folder / f"recordings.{name}").stat().st_size / recordings
            for name in ("npz", "parquet")
        }
        written = sum(path.stat().st_size for path in (folder / "out").glob("part-*")) / recordings
    best = {name: max(one[name] for one in measured) for name in ("process", "one", "two")}
    record = {
        **describe_run((*PACKAGES, "ray")),
        "recordings": recordings,
        "rounds": rounds,
        "same_decisions": bool(same),
        "mean_stop": float(expected.stop_time.mean()),
        "decisions_a_second": best,
        "start_seconds": min(one["start"] for one in measured),
        "bytes_in": sizes,
        "bytes_out": written,
        "events_a_recording": len(events.compact().indices) / recordings,
        "measured": measured,
    }
    write_results(output, record)
    return record


def _different(inputs: Any, count: int) -> ag.events.Events:
    """So many recordings: the inputs over and over, each time without one event in fifty, so that
    no two are the same.
    """
    rng, parts = np.random.default_rng(0), []
    for begin in range(0, count, len(inputs)):
        x = ag.events.dense_rows(inputs, slice(0, min(len(inputs), count - begin)))
        parts.append(ag.events.Events.from_dense(x & (rng.random(x.shape, np.float32) > 0.02)))
    return ag.events.Events.concatenate(parts)


def _round(
    folder: Path,
    ensemble: ag.ensembles.DeepEnsemble,
    rule: ag.CalibratedRule,
    events: ag.events.Events,
) -> dict[str, float]:
    """Recordings decided in a second by one process with one thread, by one actor and by two; and
    the seconds until workers decide.
    """
    found = {}
    ensemble.engine.threads = 1  # type: ignore[attr-defined]
    torch.set_num_threads(1)  # as many as other loops use
    part = events.rows(slice(0, len(events) // 2))
    ensemble.decide(rule, part.rows(slice(0, 256)))  # warm-up
    began = perf_counter()
    ensemble.decide(rule, part)
    found["process"] = len(part) / (perf_counter() - began)
    for name, actors in (("one", 1), ("two", 2)):
        shutil.rmtree(folder / "out", ignore_errors=True)
        times: list[float] = []
        shares: list[float] = []

        def note(
            what: str, share: float, times: list[float] = times, shares: list[float] = shares
        ) -> None:
            times.append(perf_counter())
            shares.append(share)

        source = folder / "recordings.parquet"
        ag.cluster.decide(
            folder / "rule",
            folder / "members",
            source,
            folder / "out",
            actors=actors,
            shard_rows=SHARD_ROWS,
            progress=note,
        )
        # From the first shard of the last actor to the end: before, an actor was still starting.
        found[name] = (shares[-1] - shares[actors]) * len(events) / (times[-1] - times[actors])
        found["start"] = times[1] - times[0]
    return found
