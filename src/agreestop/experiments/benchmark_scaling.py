"""How the cost of our engines grows: with T, with K, with the density of events; their memory with T; and time saved on a ResNet-18.

The memory of a pass is measured in a process of its own: `python -m agreestop.experiments.benchmark_scaling MEMBERS BATCH STEPS`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from agreestop.decide.agree_stop import AgreeStop
from agreestop.decide.checks import Booleans, InputError
from agreestop.decide.confidence import log_confidence
from agreestop.decide.score_files import Spikes, load_spikes
from agreestop.decide.tuning import tune
from agreestop.engines.choice import choose_engine
from agreestop.engines.drive import CHUNK, Engine, Live, Pass, decide_early
from agreestop.ensembles.files import load_members, save_members
from agreestop.networks.architectures import ResNet18, SpikingNetwork
from agreestop.report.benchmark_records import DECISIONS, MEMORY, OURS, SECONDS, BenchRecord

from .benchmark_peers import version_of
from .benchmark_protocol import Contender, Where, finish, measure
from .benchmark_setup import BERNOULLI, DENSITY, MAX_SET_SIZE, N_CALIBRATION, TARGET, Note, Plan, Ready, engine_for, ours

RESNET_BATCH, RESNET_INPUTS = 32, 256
MIB = 1 << 20


def run_through(engine: Engine, inputs: NDArray[Any]) -> None:
    """All steps of inputs (n, T, ...), a chunk at a time, as a decision at T needs them."""
    run, left = engine.begin(inputs), inputs.shape[1]
    while left:
        run.advance(min(CHUNK, left))
        left -= min(CHUNK, left)


def some_members(network: SpikingNetwork, count: int) -> SpikingNetwork:
    """The first of the members: every parameter has the member axis first."""
    fewer = SpikingNetwork(replace(network.config, members=count), torch.Generator().manual_seed(0))
    fewer.load_state_dict({name: value[:count] for name, value in network.state_dict().items()})
    return fewer.eval()


def bench_scaling(ready: Ready) -> Iterator[list[BenchRecord]]:
    """Seconds of one batch to T as one size grows, the others as they are."""
    plan, network, batch = ready.plan, ready.network, min(ready.plan.batches)
    engine = engine_for(plan, network, DENSITY)

    def contender(work: str, size: float, engine: Engine, inputs: Booleans) -> Contender:
        return ours(work, f"{engine.name} engine", lambda: run_through(engine, inputs), 1.0, size=size)

    fewer = {count: engine_for(plan, some_members(network, count), DENSITY) for count in plan.sizes}
    fitting = {density: engine_for(plan, network, density) for density in plan.densities}
    groups = (
        (BERNOULLI, [contender("scaling-T", steps, engine, plan.bernoulli(batch, steps)) for steps in plan.lengths]),
        (BERNOULLI, [contender("scaling-K", count, some, plan.bernoulli(batch)) for count, some in fewer.items()]),
        ("bernoulli", [contender("scaling-density", d, fit, plan.bernoulli(batch, density=d)) for d, fit in fitting.items()]),
    )
    for name, contenders in groups:
        yield measure(contenders, Where(name, SECONDS, batch), plan.repeats, plan.device)


# ---- memory


def bench_memory(ready: Ready, folder: Path, note: Note) -> list[BenchRecord]:
    """Peak memory of a pass over one batch, beside the inputs and the members, as T grows."""
    plan, batch = ready.plan, min(ready.plan.batches)
    if plan.device == "cuda":
        engine = engine_for(plan, ready.network, DENSITY)
        peaks = [_peak_on_gpu(engine, plan.bernoulli(batch, steps)) for steps in plan.lengths]
    else:
        members = folder / "memory.safetensors"
        save_members(members, ready.network)
        try:
            peaks = [_peak_of_child(members, batch, steps) for steps in plan.lengths]
        except (OSError, subprocess.CalledProcessError) as error:
            note(f"memory-T is left out: its process ended with {type(error).__name__}.")
            return []
        finally:
            members.unlink(missing_ok=True)
    form = "beside inputs and members"
    return [
        BenchRecord("memory-T", BERNOULLI, OURS, version_of(OURS), MEMORY, peak, peak, peak, 1, form, batch, float(steps))
        for steps, peak in zip(plan.lengths, peaks, strict=True)
    ]


def _peak_on_gpu(engine: Engine, inputs: Booleans) -> float:
    run_through(engine, inputs[:, : 2 * CHUNK])
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run_through(engine, inputs)
    finish("cuda")
    return (torch.cuda.max_memory_allocated() - before) / MIB


def _peak_of_child(members: Path, batch: int, steps: int) -> float:
    words = [sys.executable, "-m", "agreestop.experiments.benchmark_scaling", str(members), str(batch), str(steps)]
    # what is freed goes back at once, or a pass would find room that was used before and seem to need none
    settings = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, **settings})
    return float(json.loads(done.stdout))


def _probe(members: Path, batch: int, steps: int) -> float:
    """Peak memory of a pass in MiB, as the system counts it, after a short pass has loaded and compiled what there is to."""
    network = load_members(members)
    inputs = np.random.default_rng(0).random((batch, steps, *network.config.input_shape), dtype=np.float32) < DENSITY
    engine = choose_engine(network, "auto", DENSITY)
    run_through(engine, inputs[:2, : 2 * CHUNK])
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again here
    before = _status("VmRSS")
    run_through(engine, inputs)
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


# ---- ResNet-18


@final
class Replayed:
    """An engine that computes as it would, and answers with spikes recorded before: right stopping times whatever the inputs hold."""

    def __init__(self, engine: Engine, spikes: Booleans) -> None:
        self._engine, self._spikes, self._first = engine, spikes, 0
        self.name, self.members, self.classes, self.chunk_of = engine.name, engine.members, engine.classes, engine.chunk_of

    def begin(self, inputs: NDArray[Any]) -> Pass:
        """The next of the recorded inputs, from the first again once all have been."""
        rows = self._spikes[self._first : self._first + len(inputs)]
        self._first = (self._first + len(inputs)) % len(self._spikes)
        return ReplayedPass(self._engine.begin(inputs), rows)

    def live(self) -> Live:
        """As the engine."""
        return self._engine.live()


@final
class ReplayedPass:
    """Some inputs under way."""

    def __init__(self, run: Pass, spikes: Booleans) -> None:
        self._run, self._spikes, self._time = run, spikes, 0

    @property
    def rows(self) -> int:
        return self._run.rows

    def advance(self, steps: int) -> Booleans:
        self._run.advance(steps)
        self._time += steps
        return self._spikes[:, self._time - steps : self._time]

    def keep(self, rows: Booleans) -> None:
        self._run.keep(rows)
        self._spikes = self._spikes[rows]


def bench_resnet(plan: Plan, members: Path, scores: Path) -> list[BenchRecord]:
    """What stopping early saves on a ResNet-18: images held for T steps, with the stopping times that its recorded spikes lead to."""
    network, recorded = load_members(members), load_spikes(scores)
    if not isinstance(network.config, ResNet18):
        raise InputError(f"{members} holds a {type(network.config).__name__}: give the members of a ResNet-18.")
    tuning, calibration, test = _thirds(recorded, scores)
    steps = recorded.spikes.shape[1]
    rule = AgreeStop(TARGET, tuple(range(1, steps + 1)), MAX_SET_SIZE)
    tuned = tune(rule, *_scored(tuning), n_calibration=N_CALIBRATION, seed=plan.seed).rule
    calibrated = tuned.calibrate(*_scored(calibration))
    count = min(len(test.spikes), plan.inputs, RESNET_INPUTS) // RESNET_BATCH * RESNET_BATCH
    if not count:
        raise InputError(f"{scores} leaves {len(test.spikes)} inputs to decide on: give a file with at least {RESNET_BATCH} more.")
    images = np.random.default_rng(plan.seed).random((count, 1, *network.config.input_shape), dtype=np.float32)
    inputs = np.repeat(images, steps, axis=1)
    plain = engine_for(plan, network, 1.0)
    engine = Replayed(plain, test.spikes[:count])

    def early() -> object:
        return decide_early(engine, calibrated, inputs, RESNET_BATCH, any_engine=True)

    def to_end() -> None:
        for start in range(0, count, RESNET_BATCH):
            run_through(plain, inputs[start : start + RESNET_BATCH])

    contenders: Sequence[tuple[str, Callable[[], object]]] = (("stops with AgreeStop", early), ("to T", to_end))
    runs = [ours("decide-resnet", f"{plain.name} engine, {form}", run, count) for form, run in contenders]
    first, last = measure(runs, Where("images of 32 × 32, held", DECISIONS, RESNET_BATCH), plan.repeats, plan.device)
    run = decide_early(engine, calibrated, inputs, RESNET_BATCH, any_engine=True)
    latency = float(np.mean(run.decisions.stop_time)) / steps
    saved = 1 - last.median / first.median
    computed = float(run.computed.mean()) / steps
    return [replace(first, latency=latency, computed=computed, saved=saved, wanted_saved=0.8 * (1 - latency)), last]


def _thirds(recorded: Spikes, path: Path) -> tuple[Spikes, Spikes, Spikes]:
    """The first inputs for calibration, and halves of the others for tuning and test."""
    if recorded.labels is None or len(recorded.spikes) < 4 * N_CALIBRATION:
        raise InputError(f"{path} needs labels and at least {4 * N_CALIBRATION} inputs: give the score file of a pool.")
    half = (len(recorded.spikes) - N_CALIBRATION) // 2 + N_CALIBRATION
    slices = (slice(N_CALIBRATION, half), slice(0, N_CALIBRATION), slice(half, None))
    tuning, calibration, test = (replace(recorded, spikes=recorded.spikes[rows], labels=recorded.labels[rows]) for rows in slices)
    return tuning, calibration, test


def _scored(recorded: Spikes) -> tuple[Any, Any]:
    return log_confidence(np.cumsum(recorded.spikes, axis=1, dtype=np.int64)), recorded.labels


if __name__ == "__main__":
    print(_probe(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
