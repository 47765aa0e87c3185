"""`python -m benchmarks watch`: memory and time of a step under watch over a long stream, at its
beginning and at its end.

The same random events go to an ensemble, to its exported C code (a call from Python for each step),
to NIR graphs and to a torch module. What the ensemble and the C code find is compared step by step.
"""

from __future__ import annotations

import ctypes
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import agreestop as ag

from .results import describe_run, write_results

INPUTS, HIDDEN, MEMBERS, CLASSES = 40, 32, 3, 4
WINDOW, STEPS, REST, RATE = 20, 30, 40, 0.05
PARTS, SHARE = 10, 10  # parts of the stream; torch is slow, so the module sees one step in so many
DECISION, DETECTION = 1, 2  # as AG_DECIDED and AG_DETECTED
SOURCES = ("watch.c", "spotter.c", "network.c", "rule.c", "model.c")
LIBRARY = ("-std=c99", "-O2", "-ffp-contract=off", "-shared", "-fPIC")


def run_watch(steps: int, output: Path) -> dict[str, Any]:
    """Push random events, a tenth of the steps after the other, and write a JSON file."""
    rng = np.random.default_rng(0)
    ensemble = trained(rng)
    spotter, rule = calibrated(ensemble, rng)
    events = [np.flatnonzero(rng.random(INPUTS) < RATE) for _ in range(10_000)]
    watched = {
        "ensemble": stream(
            ensemble.watch(spotter, rule, window=WINDOW, event=0).push, events, steps
        )
    }
    if shutil.which("cc"):
        with tempfile.TemporaryDirectory() as folder:
            ag.export.watch_to_c(spotter, rule, ensemble, folder, window=WINDOW, event=0)
            watched["C"] = stream(in_c(Path(folder)), events, steps)
        watched["C"]["equal"] = bool((watched["C"]["found"] == watched["ensemble"]["found"]).all())
    for name, engine, some in (
        ("NIR", of_nir(rng), steps),
        ("torch module", of_torch(), steps // SHARE),
    ):
        own = engine.watch(*calibrated(engine, rng), window=WINDOW, event=0)
        watched[name] = stream(own.push, events, some)
    for one in watched.values():
        del one["found"]
    size = {
        "inputs": INPUTS,
        "hidden": HIDDEN,
        "members": MEMBERS,
        "classes": CLASSES,
        "window": WINDOW,
    }
    record = {**describe_run(), **size, "watched": watched}
    write_results(output, record)
    return record


def stream(
    push: Callable[[NDArray[Any]], Any], events: Sequence[NDArray[Any]], steps: int
) -> dict[str, Any]:
    """Push the events again and again; time and memory for each tenth, and what was found."""
    # full touches its memory at once
    found, length = np.full(steps, 0, dtype=np.uint8), steps // PARTS
    parts = []
    for first in range(0, PARTS * length, length):
        begin, before = time.process_time(), sys.getallocatedblocks()
        for step in range(first, first + length):
            result = push(events[step % len(events)])
            if result is not None:
                found[step] = DETECTION if isinstance(result, ag.Detection) else DECISION
        parts.append(
            {
                "microseconds_a_step": (time.process_time() - begin) / length * 1e6,
                "blocks_more": sys.getallocatedblocks() - before,
                "peak_resident_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            }
        )
    counts = {
        "detections": int((found == DETECTION).sum()),
        "decisions": int((found == DECISION).sum()),
    }
    return {"steps": steps, **counts, "parts": parts, "found": found}


def trained(rng: np.random.Generator) -> Any:
    """Members with int8 weights that know four patterns."""
    network = ag.networks.FullyConnected((INPUTS,), classes=CLASSES, hidden=(HIDDEN,))
    x, y = rng.random((400, STEPS, INPUTS)) < RATE, rng.integers(CLASSES, size=400)
    for row, label in enumerate(y):
        x[row, :, 10 * label : 10 * label + 5] |= rng.random((STEPS, 5)) < 0.4
    ensemble = ag.ensembles.DeepEnsemble(
        network, members=MEMBERS, seed=0, engine="event-driven-int8"
    )
    return ensemble.fit(x, y, 6, progress=False)


def calibrated(watcher: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """A spotter on noise, and a rule on other recordings."""
    heard, other = (
        watcher.listen(
            [rng.random((400, INPUTS)) < RATE for _ in range(60)], window=WINDOW, event=0
        )
        for _ in range(2)
    )
    spotter = ag.Spotter(0.5, rest=REST).calibrate(heard.scores)
    labels = rng.integers(CLASSES, size=len(other.scores))
    scores = other.after(np.full(len(labels), 100), labels, steps=STEPS)
    return spotter, ag.AgreeStop(0.5, range(1, STEPS + 1), 1).calibrate(scores)


def in_c(folder: Path) -> Callable[[NDArray[Any]], Any]:
    """The push of the exported code; its detections and decisions are told apart by their type
    alone.
    """
    subprocess.run(["cc", *LIBRARY, *SOURCES, "-o", "watch.so", "-lm"], cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "watch.so"))
    says = {DECISION: "decision", DETECTION: ag.Detection(0, 0.0)}

    def push(events: NDArray[Any]) -> Any:
        given = events.astype(np.uint16)
        return says.get(
            library.ag_watch_push(ctypes.c_void_p(given.ctypes.data), ctypes.c_size_t(len(given)))
        )

    return push


def of_nir(rng: np.random.Generator) -> Any:
    """Graphs of leaky neurons with random weights."""
    import nir

    def neurons(n: int) -> Any:
        return nir.LIF(
            tau=np.full(n, 0.005),
            r=np.ones(n),
            v_leak=np.zeros(n),
            v_threshold=np.full(n, 0.2),
            v_reset=np.zeros(n),
        )

    def member() -> Any:
        first, last = rng.normal(size=(HIDDEN, INPUTS)), rng.normal(size=(CLASSES, HIDDEN))
        chain = nir.Linear(weight=first), neurons(HIDDEN), nir.Linear(weight=last), neurons(CLASSES)
        return nir.NIRGraph.from_list(
            nir.Input(input_type=np.array([INPUTS])),
            *chain,
            nir.Output(output_type=np.array([CLASSES])),
        )

    return ag.adapters.from_nir([member() for _ in range(MEMBERS)], dt=1e-3)


class Leaky(torch.nn.Module):
    """Logits that are the sums of a leaky trace of the inputs of each class."""

    def forward(self, x: torch.Tensor, state: Any) -> Any:
        trace = x.float() if state is None else 0.8 * state + x
        return trace.reshape(len(x), CLASSES, -1).sum(2), trace


def of_torch() -> Any:
    return ag.adapters.from_module([Leaky() for _ in range(MEMBERS)])
