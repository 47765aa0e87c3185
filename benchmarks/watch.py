"""`python -m benchmarks watch`: memory and time of a step of `ensemble.watch` over a long stream, at its beginning and at its end."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import agreestop as ag

from .results import describe_run, write_results

INPUTS, HIDDEN, MEMBERS, CLASSES = 40, 32, 3, 4
WINDOW, STEPS, REST, RATE = 20, 30, 40, 0.05
PARTS = 10


def run_watch(steps: int, output: Path) -> dict[str, Any]:
    """Push random events, a tenth of the steps after the other, and write a JSON file."""
    rng = np.random.default_rng(0)
    network = ag.networks.FullyConnected((INPUTS,), classes=CLASSES, hidden=(HIDDEN,))
    x, y = rng.random((400, STEPS, INPUTS)) < RATE, rng.integers(CLASSES, size=400)
    for row, label in enumerate(y):
        x[row, :, 10 * label : 10 * label + 5] |= rng.random((STEPS, 5)) < 0.4
    ensemble = ag.ensembles.DeepEnsemble(network, members=MEMBERS, seed=0).fit(x, y, 6, progress=False)
    first, second = ([rng.random((400, INPUTS)) < RATE for _ in range(60)] for _ in range(2))
    spotter = ag.Spotter(0.5, rest=REST).calibrate(ensemble.listen(first, window=WINDOW, event=0).scores)
    heard = ensemble.listen(second, window=WINDOW, event=0)
    labels = rng.integers(CLASSES, size=len(second))
    rule = ag.AgreeStop(0.5, range(1, STEPS + 1), 1).calibrate(heard.after(np.full(len(second), 100), labels, steps=STEPS))
    session = ensemble.watch(spotter, rule, window=WINDOW, event=0)
    events = [np.flatnonzero(rng.random(INPUTS) < RATE) for _ in range(10_000)]
    found = {"detections": 0, "decisions": 0}
    parts = []
    for _ in range(PARTS):
        begin, before = time.process_time(), sys.getallocatedblocks()
        for step in range(steps // PARTS):
            result = session.push(events[step % len(events)])
            if result is not None:
                found["detections" if isinstance(result, ag.Detection) else "decisions"] += 1
        parts.append(
            {
                "microseconds_a_step": (time.process_time() - begin) / (steps // PARTS) * 1e6,
                "blocks_more": sys.getallocatedblocks() - before,
                "peak_resident_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            }
        )
    size = {"inputs": INPUTS, "hidden": HIDDEN, "members": MEMBERS, "classes": CLASSES, "window": WINDOW}
    record = {**describe_run(), "steps": session.time, **size, **found, "parts": parts}
    write_results(output, record)
    return record
