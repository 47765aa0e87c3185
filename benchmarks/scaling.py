"""How the time of our engines grows with T, K and the density of events, and how their memory grows
with T.

The memory of a pass is measured in a separate process: `python -m benchmarks.scaling MEMBERS BATCH
STEPS`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from agreestop.common import Booleans
from agreestop.engines.early_stopping import run_to_end
from agreestop.engines.protocol import CHUNK_STEPS, Engine
from agreestop.engines.runner import choose_engine
from agreestop.ensembles import load as load_ensemble
from agreestop.ensembles.files import save_members
from agreestop.networks.architectures import SpikingNetwork

from .preparation import (
    BERNOULLI,
    DENSITY,
    NoteCallback,
    PreparedMembers,
    engine_for,
    ours,
)
from .records import MEMORY, OURS, SECONDS, BenchRecord
from .results import version_of
from .timing import Conditions, TimedSystem, measure, synchronize

MIB = 1 << 20
ROOT = Path(__file__).parents[1]


def run_through(engine: Engine, inputs: NDArray[Any]) -> None:
    """Run all steps of inputs (n, T, ...), a chunk at a time, and keep none of the spikes."""
    run, left = engine.begin(inputs), inputs.shape[1]
    while left:
        run.advance(min(CHUNK_STEPS, left))
        left -= min(CHUNK_STEPS, left)


def bench_scaling(prepared: PreparedMembers) -> Iterator[list[BenchRecord]]:
    """Seconds for one batch to T, as one size grows and the others stay."""
    plan, network, batch = prepared.plan, prepared.network, prepared.plan.scaling_batch
    engine = engine_for(plan, network, DENSITY)

    def system(work: str, size: float, engine: Engine, inputs: Booleans) -> TimedSystem:
        return ours(
            work, f"{engine.name} engine", lambda: run_to_end(engine, inputs, batch), 1.0, size=size
        )

    fewer = {
        count: engine_for(plan, network.select_members(slice(count)), DENSITY)
        for count in plan.sizes
    }
    fitting = {density: engine_for(plan, network, density) for density in plan.densities}
    groups = (
        (
            BERNOULLI,
            [
                system("scaling-T", steps, engine, plan.bernoulli(batch, steps))
                for steps in plan.lengths
            ],
        ),
        (
            BERNOULLI,
            [
                system("scaling-K", count, some, plan.bernoulli(batch))
                for count, some in fewer.items()
            ],
        ),
        (
            "bernoulli",
            [
                system("scaling-density", d, fit, plan.bernoulli(batch, density=d))
                for d, fit in fitting.items()
            ],
        ),
    )
    for name, systems in groups:
        yield measure(systems, Conditions(name, SECONDS, batch), plan.repeats, plan.device)


# ---- memory


def bench_memory(prepared: PreparedMembers, folder: Path, note: NoteCallback) -> list[BenchRecord]:
    """Peak memory of a pass over one batch, without the inputs and the members, as T grows."""
    plan, batch = prepared.plan, prepared.plan.scaling_batch
    if plan.device == "cuda":
        engine = engine_for(plan, prepared.network, DENSITY)
        peaks = [_peak_on_gpu(engine, plan.bernoulli(batch, steps)) for steps in plan.lengths]
    else:
        members = folder / "memory.safetensors"
        save_members(members, prepared.network)
        try:
            peaks = [_peak_of_child(members, batch, steps) for steps in plan.lengths]
        except (OSError, subprocess.CalledProcessError) as error:
            note(f"memory-T is left out: its process ended with {type(error).__name__}.")
            return []
        finally:
            members.unlink(missing_ok=True)
    form = "without inputs and members"
    return [
        BenchRecord(
            "memory-T",
            BERNOULLI,
            OURS,
            version_of(OURS),
            MEMORY,
            peak,
            peak,
            peak,
            1,
            form,
            batch,
            float(steps),
        )
        for steps, peak in zip(plan.lengths, peaks, strict=True)
    ]


def _peak_on_gpu(engine: Engine, inputs: Booleans) -> float:
    run_through(engine, inputs)  # the first pass loads kernels, which stay in memory
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run_through(engine, inputs)
    synchronize("cuda")
    return (torch.cuda.max_memory_allocated() - before) / MIB


def _peak_of_child(members: Path, batch: int, steps: int) -> float:
    words = [
        sys.executable,
        "-m",
        "benchmarks.scaling",
        str(members.resolve()),
        str(batch),
        str(steps),
    ]
    # Freed memory goes back to the system at once. Otherwise a pass could reuse memory that was
    # freed before and seem to need none.
    settings = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run(
        words, capture_output=True, text=True, check=True, env={**os.environ, **settings}, cwd=ROOT
    )
    return float(json.loads(done.stdout))


def _probe(members: Path, batch: int, steps: int) -> float:
    """Peak memory of a pass in MiB, as the system counts it, after a short pass has loaded and
    compiled everything.
    """
    network = cast(SpikingNetwork, load_ensemble(members, device="cpu").network)
    inputs = (
        np.random.default_rng(0).random(
            (batch, steps, *network.config.input_shape), dtype=np.float32
        )
        < DENSITY
    )
    engine = choose_engine(network, "auto", DENSITY)
    run_through(engine, inputs[:2, : 2 * CHUNK_STEPS])
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _status("VmRSS")
    run_through(engine, inputs)
    return (_status("VmHWM") - before) / 1024


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


if __name__ == "__main__":
    print(_probe(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
