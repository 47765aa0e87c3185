"""One system of `python -m benchmarks live`: a process that times one round of live inputs whenever
a line asks for it.

    python -m benchmarks.live_worker FOLDER SYSTEM        SYSTEM: agreestop, or a name of
                                                          `peers.PEERS`

It answers a line `NAME` with the times of one round on FOLDER/NAME, in one thread. The version of
agreestop is the one that the process imports, so an older checkout is timed by the same code.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import Any, cast

import numpy as np
import torch

import agreestop as ag
from agreestop.engines.live_batch import LiveBatch, Push, Steps
from agreestop.networks.architectures import SpikingNetwork

from .workers import MARK, stopping_rule

Round = dict[str, float]
"""By workload: µs for a step or an input, or session-steps a second."""


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """µs of one call, and what it returns."""
    begin = perf_counter()
    found = run()
    return 1e6 * (perf_counter() - begin), found


def worked(run: Callable[[], Any]) -> float:
    """µs of processor time of one long call, which other work on the machine interrupts but does
    not lengthen.
    """
    begin = thread_time()
    run()
    return 1e6 * (thread_time() - begin)


class Ours:
    """The network alone, live sessions under the rule, and a batch of them."""

    def __init__(self, folder: Path) -> None:
        self._ensemble = ag.ensembles.load(folder / "members", engine="event-driven")
        self._rule = stopping_rule(ag.load_scores(folder / "scores.npz"))
        data = np.load(folder / "inputs.npz")
        self._events = [[np.flatnonzero(frame) for frame in row] for row in data["x"]]
        self._ends = data["ends"].tolist()

    def round(self) -> Round:
        ensemble, rule = self._ensemble, self._rule
        found: dict[str, list[float]] = {
            name: [] for name in ("network", "steps", "open", "first", "push", "decide", "input")
        }
        for events, end in zip(self._events, self._ends, strict=True):
            live = ensemble.engine.live()
            found["network"] += [timed(lambda: live.push(step))[0] for step in events[:end]]  # noqa: B023
            live = ensemble.engine.live()
            found["steps"].append(worked(lambda: [live.push(step) for step in events[:end]]))  # noqa: B023
            taken, session = timed(lambda: ensemble.live(rule))
            found["open"].append(taken)
            for at, step in enumerate(events[:end]):
                taken, decision = timed(lambda: session.push(step))  # noqa: B023
                found["decide" if decision is not None else "push" if at else "first"].append(taken)
            assert decision is not None and decision.time == end, (
                "another version decided otherwise"
            )
            found["input"].append(worked(lambda: self._whole(events)))  # noqa: B023
        return {name: median(times) for name, times in found.items()} | {"batch": self._batch()}

    def _whole(self, events: list[Any]) -> None:
        session = self._ensemble.live(self._rule)
        for step in events:
            if session.push(step) is not None:
                return

    def _batch(self) -> float:
        """Session-steps a second of all inputs side by side, with a step of each in one call."""
        batch = LiveBatch(
            self._rule, self._ensemble.engine, len(self._events), self._ensemble.options()
        )
        running = {batch.open(number): events for number, events in enumerate(self._events)}
        time, begin = 0, thread_time()
        while running:
            batch.push([Push(row, Steps.of([events[time]])) for row, events in running.items()])
            time += 1
            running = {row: events for row, events in running.items() if row.decision is None}
        return sum(self._ends) / (thread_time() - begin)


class Others:
    """A peer's own loop over steps, as its tutorials write it, and the rule in numpy, in its faster
    form.
    """

    def __init__(self, folder: Path, name: str) -> None:
        from .peers import PEERS, PeerEnsemble, Weights, live_forms

        peer = next(peer for peer in PEERS if peer.name == name)
        weights = Weights.of(cast(SpikingNetwork, ag.ensembles.load(folder / "members").network))
        self._forms = [PeerEnsemble(peer, form, weights) for form in live_forms()]
        data = np.load(folder / "inputs.npz")
        self._frames = [
            [torch.from_numpy(frame).flatten()[None].float() for frame in row] for row in data["x"]
        ]
        self._ends, self._limit = data["ends"].tolist(), float(data["limit"])

    def round(self) -> Round:
        rounds = [self._times(form) for form in self._forms]
        return min(rounds, key=lambda times: times["push"])

    def _times(self, members: Any) -> Round:
        found: dict[str, list[float]] = {"network": [], "steps": [], "push": [], "input": []}
        for frames, end in zip(self._frames, self._ends, strict=True):
            members.begin()
            found["network"] += [timed(lambda: members.step(frame))[0] for frame in frames[:end]]  # noqa: B023
            members.begin()
            found["steps"].append(worked(lambda: [members.step(frame) for frame in frames[:end]]))  # noqa: B023
            members.begin()
            counts, begin = 0, thread_time()
            for frame in frames[:end]:
                pushed = perf_counter()
                counts = counts + members.step(frame).numpy()
                parts = np.exp(counts - counts.max(axis=1, keepdims=True))
                pooled = np.sort((parts / parts.sum(axis=1, keepdims=True)).mean(axis=0))
                # its neurons spike otherwise: it runs as long as ours
                _ = np.log(pooled[:-1].sum()) < self._limit
                found["push"].append(1e6 * (perf_counter() - pushed))
            found["input"].append(1e6 * (thread_time() - begin))
        return {name: median(times) for name, times in found.items()}


def main() -> None:
    folder, system = Path(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    systems: dict[str, Ours | Others] = {}
    for line in sys.stdin:
        name = line.strip()
        if name not in systems:
            systems[name] = (
                Ours(folder / name) if system == "agreestop" else Others(folder / name, system)
            )
            systems[name].round()  # compiles and loads
        print(f"{MARK}{json.dumps(systems[name].round())}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
