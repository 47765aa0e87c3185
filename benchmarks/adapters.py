"""What an adapter costs: K torch modules stepped by `from_module`, beside the bare loop over the
same modules, and with early stopping.

The bare loop calls each module T times on the batch and keeps its outputs. `to T` is
`engine.engine.begin(x).advance(T)`, and `decided` is `engine.decide`, whose time should fall with
the share of the steps that it computes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import agreestop as ag

from .preparation import ours
from .records import SECONDS
from .results import describe_run, write_results
from .timing import Conditions, measure

STEPS, SENSORS, CLASSES, MEMBERS, BATCH = 60, 64, 10, 3, 256
WANTED = 1.2
"""Stepping to T may take this many times as long as the bare loop."""


class Gru(nn.Module):
    """A GRU cell with a linear read-out."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.read_out = nn.GRUCell(SENSORS, 128), nn.Linear(128, CLASSES)

    def forward(self, x_t: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        state = self.cell(x_t, state)
        return 3 * self.read_out(state), state


class Convolution(nn.Module):
    """A convolution and a leaky sum over time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * SENSORS, CLASSES),
        )

    def forward(self, x_t: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        found = self.layers(x_t.view(-1, 1, 8, 8))
        state = found if state is None else 0.9 * state + found
        return 3 * state, state


class ThreeConvolutions(Convolution):
    """The same with two larger convolutions, which take nearly all of the time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers.insert(
            2,
            nn.Sequential(
                nn.Conv2d(16, 64, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(64, 16, 3, padding=1),
                nn.ReLU(),
            ),
        )


@torch.no_grad()
def bare_loop(modules: list[nn.Module], x: Tensor) -> Tensor:
    """Outputs (K, T, batch, C) of the modules, without anything around them."""
    outputs = []
    for module in modules:
        state, found = None, []
        for x_t in x.unbind(1):
            output, state = module(x_t, state)
            found.append(output)
        outputs.append(torch.stack(found))
    return torch.stack(outputs)


def bench_adapters(repeats: int) -> dict[str, Any]:
    """Times of the bare loop, of stepping to T and of deciding, for each kind of module and for a
    batch and one input.
    """
    rng, entries = np.random.default_rng(0), []
    torch.manual_seed(0)
    for kind in (Gru, Convolution, ThreeConvolutions):
        modules: list[nn.Module] = [kind().eval() for _ in range(MEMBERS)]
        engine = ag.adapters.from_module(modules)
        rates = 0.1 + 0.3 * (rng.random((BATCH, 1, SENSORS)) < 0.3)
        inputs = (rng.random((BATCH, STEPS, SENSORS)) < rates).astype(np.float32)
        rule = ag.AgreeStop(target=0.6, checkpoints=range(1, STEPS + 1), max_set_size=1).calibrate(
            engine.score(inputs), labels="final"
        )
        for batch in (BATCH, 1):
            x = inputs[:batch]
            given = torch.from_numpy(x)

            def bare(given: Tensor = given, modules: list[nn.Module] = modules) -> object:
                return bare_loop(modules, given)

            def to_the_end(x: Any = x, engine: Any = engine) -> object:
                return engine.engine.begin(x).advance(STEPS)

            def decided(x: Any = x, engine: Any = engine, rule: Any = rule) -> object:
                return engine.decide(rule, x)

            runs = {"bare loop": bare, "to T": to_the_end, "decided": decided}
            systems = [ours(kind.__name__, name, run, 1) for name, run in runs.items()]
            records = measure(systems, Conditions("Bernoulli", SECONDS, batch), repeats)
            times = {record.form: record.median for record in records}
            computed = float(engine.decide(rule, x).computed.mean()) / STEPS
            entry: dict[str, Any] = {"module": kind.__name__, "batch": batch, "seconds": times}
            entry |= {
                "times_bare_loop": times["to T"] / times["bare loop"],
                "wanted_at_most": WANTED,
            }
            entries.append(
                entry
                | {"computed": computed, "decided_times_to_T": times["decided"] / times["to T"]}
            )
    sizes = {"steps": STEPS, "members": MEMBERS, "sensors": SENSORS, "classes": CLASSES}
    return {**describe_run(), "sizes": sizes, "results": entries}


def run_adapters(repeats: int, output: Path) -> None:
    """Measure, print one line for each kind of module and batch, and write the file."""
    found = bench_adapters(repeats)
    for entry in found["results"]:
        cost = f"{entry['times_bare_loop']:.2f} × the bare loop at T"
        saved = (
            f"{entry['computed']:.0%} of the steps computed in "
            f"{entry['decided_times_to_T']:.0%} of the time"
        )
        print(f"{entry['module']}, batch {entry['batch']}: {cost}; {saved}")
    write_results(output, found)
    print(f"Wrote {output}")
