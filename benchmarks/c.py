"""The exported C code beside the event-driven engine, in one run and one thread: time of a step,
memory, and equal decisions.

    python -m benchmarks c        writes results/bench/c.json

Both decide on the same inputs of the digits, step by step, with the rule at every step, until it
stops. The time of C is the processor time of `replay`, which includes reading the inputs and
printing; that of the engine is `LiveSession.push`, and `push` of only the engine. `batch_step` is
the engine without a rule on all inputs to their ends as one batch, which C does not do: one read of
a weight serves many inputs.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from rich.table import Table

import agreestop as ag
from agreestop.cli.console import out, say
from agreestop.engines.event_driven.engine import EventDriven
from agreestop.export.rules import exported_rule

from .results import describe_run, write_results

PRECISIONS = ("float32", "bfloat16", "int8")
NETWORKS = (((64,), 3), ((256,), 6), ((128, 64), 4))  # hidden layers, members
CALIBRATION = 200


@dataclass(frozen=True)
class CRecord:
    """One ensemble in C. Sizes are in bytes, times in µs for a step of all members, medians over
    rounds that take turns.

    code   of agreestop.c, network.c and rule.c, compiled for this computer with -Os
    equal  of `inputs` inputs, those whose line of the CSV is the same as that of Python
    """

    hidden: tuple[int, ...]
    members: int
    weights: str
    flash: int
    ram: int
    code: int
    inputs: int
    equal: int
    nearest: float
    ties: int
    c_step: float
    live_step: float
    live_step_without_rule: float
    batch_step: float


def time_live(
    ensemble: Any, rule: ag.CalibratedRule | None, rows: list[list[Any]], ends: list[int]
) -> float:
    """µs of processor time for a step of live inputs, each of which is pushed up to its end;
    without a rule, only the engine.
    """
    begin = process_time()
    for row, end in zip(rows, ends, strict=True):
        session = ensemble.engine.live() if rule is None else ensemble.live(rule)
        for events in row[:end]:
            session.push(events)
    return 1e6 * (process_time() - begin) / sum(ends)


def time_batch(ensemble: Any, x: Any) -> float:
    """µs of processor time for a step of an input among all inputs at once, in one thread, without
    a rule.
    """
    engine = EventDriven(ensemble.network, ensemble.engine.precision, threads=1)
    begin = process_time()
    engine.begin(x).advance(x.shape[1])
    return 1e6 * (process_time() - begin) / (len(x) * x.shape[1])


def compile_c(folder: Path) -> int:
    """Build `replay`, and return the bytes of the code that a device needs, compiled with -Os."""
    for words in (["clean"], ["objects", "CFLAGS=-Os"]):
        subprocess.run(["make", "-s", "-C", str(folder), *words], check=True)
    lines = subprocess.run(
        ["size", "agreestop.o", "network.o", "rule.o"],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    code = sum(int(line.split()[0]) for line in lines[1:])
    for words in (["clean"], ["replay"]):
        subprocess.run(["make", "-s", "-C", str(folder), *words], check=True)
    return code


def replay(folder: Path) -> tuple[float, list[str]]:
    """µs of a step, and the lines of the CSV."""
    done = subprocess.run(
        [str(folder / "replay"), "inputs.bin"],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    found = re.search(r"steps, (\S+) us each", done.stderr)
    assert found is not None
    return float(found[1]), done.stdout.splitlines()


def measure(ensemble: Any, data: Any, inputs: int, rounds: int, folder: Path) -> CRecord:
    """Calibrate, export and time one ensemble."""
    x, y = data.pool.inputs, data.pool.labels
    rule = ag.AgreeStop(0.9, range(1, x.shape[1] + 1), 1).calibrate(
        ensemble.score(x[:CALIBRATION], y[:CALIBRATION])
    )
    chosen = x[CALIBRATION : CALIBRATION + inputs]
    made = ag.export.to_c(rule, ensemble, folder, chosen)
    code = compile_c(folder)
    rule_bytes = exported_rule(rule).flash
    assert made.nearest is not None
    decisions = ensemble.decide(rule, chosen).decisions
    rows = [[np.flatnonzero(frame) for frame in row] for row in np.asarray(chosen)]
    ends = [int(time) for time in decisions.stop_time]
    times: list[tuple[float, ...]] = []
    for _ in range(rounds + 1):
        step, lines = replay(folder)
        live = time_live(ensemble, rule, rows, ends), time_live(ensemble, None, rows, ends)
        times.append((step, *live, time_batch(ensemble, chosen)))
    # the first round compiles kernels
    medians = map(statistics.median, zip(*times[1:], strict=True))
    expected = (folder / "expected.csv").read_text().splitlines()
    equal = sum(mine == theirs for mine, theirs in zip(lines[1:], expected[1:], strict=True))
    network = ensemble.network.config
    sizes = (
        made.weights,
        made.flash,
        made.ram,
        code - rule_bytes,
        len(decisions),
        equal,
        made.nearest,
        made.ties,
    )
    return CRecord(network.hidden, network.members, *sizes, *medians)


def run_c(inputs: int, rounds: int, epochs: int, output: Path) -> None:
    """Train, export, compile, replay and time; print a table and write `output`."""
    data, records = ag.events.load_data_set("digits"), []
    with tempfile.TemporaryDirectory() as folder:
        for hidden, members in NETWORKS:
            network = ag.networks.FullyConnected(
                data.pool.inputs.shape[2:], classes=10, hidden=hidden
            )
            trained = ag.ensembles.DeepEnsemble(network, members, seed=0, device="cpu")
            trained.fit(data.training.inputs, data.training.labels, epochs=epochs, progress=False)
            trained.save(Path(folder) / "members")
            for weights in PRECISIONS:
                engine = "event-driven" if weights == "float32" else f"event-driven-{weights}"
                ensemble = ag.ensembles.load(Path(folder) / "members", engine=engine)
                records.append(measure(ensemble, data, inputs, rounds, Path(folder) / "c"))
                say(
                    f"{hidden} × {members}, {weights}: {records[-1].equal} of {records[-1].inputs} "
                    "decisions are equal."
                )
    content = {
        **describe_run(),
        "compiler": subprocess.run(
            ["cc", "--version"], capture_output=True, text=True, check=True
        ).stdout.splitlines()[0],
        "records": [asdict(record) for record in records],
    }
    write_results(output, content)
    table = Table(
        "hidden × members",
        "weights",
        "flash",
        "RAM",
        "C",
        "engine and rule",
        "engine",
        "in a batch",
    )
    for one in records:
        name = f"{'-'.join(map(str, one.hidden))} × {one.members}"
        times = (
            f"{value:.1f} µs"
            for value in (one.c_step, one.live_step, one.live_step_without_rule, one.batch_step)
        )
        table.add_row(name, one.weights, f"{one.flash:,}", f"{one.ram:,}", *times)
    out.print(table)
    out.print(f"Wrote {output}", markup=False, soft_wrap=True)
