"""Memory and time of a data set as events, beside the dense array that it stands for.

`python -m benchmarks events` writes results/bench/events.json. The data set is gesture-sim at its
full number of inputs. Simulating all of them takes half an hour and changes nothing here, so
`distinct` inputs are simulated and repeated.

    bytes   of the file of the data set
    load    seconds to load that file, and the peak of the memory that loading takes
    pass    peak of the memory of loading and one pass over all inputs, 64 at a time as dense
            arrays, as training reads them
    score   seconds in which the event-driven engine runs one member over 256 inputs

The dense form is the array of uint8 that the cache held before, written and read by the same
functions. Times are medians of rounds in which both forms take turns; memory is what tracemalloc
sees, so pages of a mapped file, which the system can drop, do not count.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from agreestop.common import read_npz, write_npz
from agreestop.engines.early_stopping import run_to_end
from agreestop.engines.event_driven.engine import EventDriven
from agreestop.events.container import Inputs, dense_rows
from agreestop.events.files import load
from agreestop.networks.architectures import FullyConnected, SpikingNetwork
from paper.stand_ins import simulate_gestures

from .results import describe_run, write_results

BATCH, SCORED = 64, 256


@dataclass(frozen=True)
class FormRecord:
    """One measurement of both forms, and how many times smaller or faster events are."""

    work: str
    unit: str
    dense: float
    events: float

    @property
    def ratio(self) -> float:
        return self.dense / self.events


def read_dense(path: Path) -> Any:
    """The dense array of a file."""
    return read_npz(path, "file", "write it again")["inputs"]


def run_events(distinct: int, inputs: int, rounds: int, output: Path) -> list[FormRecord]:
    """Measure both forms of `inputs` inputs, of which `distinct` differ, and write the records."""
    part = simulate_gestures(0, (distinct, 1, 1)).training.inputs
    events = part.rows(np.arange(inputs) % distinct).compact()
    network = SpikingNetwork(
        FullyConnected(events.shape[2:], 11, 1, (256,), real_input=True),
        torch.Generator().manual_seed(0),
    ).eval()
    engine = EventDriven(network)
    with TemporaryDirectory() as folder:
        paths = {"dense": Path(folder) / "dense.npz", "events": Path(folder) / "events.npz"}
        write_npz(paths["dense"], {"inputs": events.to_dense()})
        events.save(paths["events"])
        loads: dict[str, Callable[[], Inputs]] = {
            "dense": partial(read_dense, paths["dense"]),
            "events": partial(load, paths["events"]),
        }
        scored = {form: read()[:SCORED] for form, read in loads.items()}
        runs = {form: partial(run_to_end, engine, some) for form, some in scored.items()}
        records = [
            FormRecord("file", "bytes", *(float(paths[form].stat().st_size) for form in loads)),
            FormRecord("load", "seconds", *_seconds(loads, rounds)),
            FormRecord("load", "bytes", *(_peak(read) for read in loads.values())),
            FormRecord("pass", "bytes", *(_peak(partial(_pass, read)) for read in loads.values())),
            FormRecord("score", "seconds", *_seconds(runs, rounds)),
        ]
    about = {
        **describe_run(),
        "data": "gesture-sim (simulated)",
        "shape": events.shape,
        "distinct": distinct,
        "density": events.density,
        "rounds": rounds,
    }
    write_results(
        output,
        {**about, "records": [asdict(record) | {"ratio": record.ratio} for record in records]},
    )
    return records


def _pass(read: Callable[[], Inputs]) -> None:
    inputs = read()
    for start in range(0, len(inputs), BATCH):
        dense_rows(inputs, slice(start, start + BATCH))


def _seconds(works: Mapping[str, Callable[[], object]], rounds: int) -> list[float]:
    """The median of each, taken in turn after one round that is not counted."""
    times: dict[str, list[float]] = {form: [] for form in works}
    for _ in range(rounds + 1):
        for form, work in works.items():
            begin = time.perf_counter()
            work()
            times[form].append(time.perf_counter() - begin)
    return [median(some[1:]) for some in times.values()]


def _peak(work: Callable[[], object]) -> float:
    """The most bytes that were allocated at once."""
    tracemalloc.start()
    try:
        work()
        return float(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
