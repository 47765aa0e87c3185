"""The benchmark: our engines against snnTorch, SpikingJelly, Norse and sinabs, on the same inputs
in one run.

The network is 1352 → 1000 → 10 with T = 80 and K = 6 in float32. Peers have their LIF neuron, ours
have SRM neurons. Workloads:

    decide-full   decisions per second at T; ours also apply the rule at every step, peers only
                  compute the counts of their six members
    decide-early  the same, where ours stop with a calibrated AgreeStop, against the peers at T
    decide-joining  the same, where a few members watch alone, and the others are asked only about
    inputs that these do not decide
    stream-step   microseconds per step of one live input and all six members; ours without the
                  rule, and with it
    train         inputs per second in the training of the six members; ours with fixed neuron
                  constants, as in the peers, and learned ones
    scaling-T, scaling-K, scaling-density, memory-T    only ours
    srm-kernel    on a GPU: bytes per second that the neurons' kernel moves, beside a plain copy
    roof          on a GPU: decisions per second at T if only products ran, at the measured speed of
                  a large one

The inputs are mnist-dvs-sim, and Bernoulli inputs at 3 %. Our members are trained once on
mnist-dvs-sim, and peers get their weights. This module needs only numpy, PyTorch and safetensors,
so it also runs on a machine where nothing can be installed:

    python3 -m benchmarks.run --device cuda --mnist FOLDER -o FILE
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agreestop.common import Booleans, InputError, Integers, ProgressCallback, make_folder
from agreestop.events.data import EventSplits
from agreestop.events.datasets.moving_digits import simulate_mnist

from .kernel import bench_kernel, bench_roof
from .peers import PEERS, Weights, find_peers
from .preparation import (
    BERNOULLI,
    MNIST,
    N_CALIBRATION,
    BenchmarkPlan,
    NoteCallback,
    plan_for,
    prepare_members,
)
from .records import BenchRecord, load_benchmark, save_benchmark
from .results import describe_run
from .scaling import bench_memory, bench_scaling
from .workloads import Peers, bench_decisions, bench_streams, bench_training

PROTOCOL = (
    "each repeat gives every system a turn of a tenth of a second, or one run if that takes "
    "longer; the order moves on by one from repeat "
    "to repeat; medians over repeats, low and high are the 10 % and 90 % quantiles",
    "peers use their plain LIF neuron, without synapse or refractory time; ours are SRM neurons "
    "with both",
    "peers have the weights of our members and no biases; float32 everywhere; each peer runs in "
    "the fastest of its idiomatic forms",
    "peers compute the spike counts of six members at T; ours also apply the rule at every step",
    "peers decide on one large batch of the inputs, since they go batch by batch; ours decide on "
    "all inputs",
    "on a GPU, ours multiply spikes by weights of 22 bits in two parts of float16, whose sums in "
    "float32 are exact",
    "on a GPU, PyTorch has one CPU thread, since several threads lose more by waiting than they "
    "gain; ours copy with up to eight threads",
    "on a GPU, ours prepare the next inputs while the device computes; they compute at most one "
    "batch at a time",
    "decisions: ours find events in host memory, which they copy to the device; peers find dense "
    "float32 inputs in their own layout on the "
    "device, before the clock starts",
    "training: ours find booleans in host memory; peers again find dense float32 inputs on the "
    "device",
    "a live input is given to ours as the list of its events, and to peers as a dense frame that "
    "is made before the clock starts",
)
PLAIN = "torch.compile is not tried for the peers"


def benchmark(
    plan: BenchmarkPlan,
    data: EventSplits | None,
    folder: Path,
    progress: ProgressCallback,
    note: NoteCallback,
    done: Collection[tuple[str, str, int | None]] = (),
) -> Iterator[list[BenchRecord]]:
    """Yield records, one workload at a time. Trained members are stored in `folder`; `note` is
    called for everything left out.

    done: work, inputs and batch of workloads that are not run, since their records are there.
    """
    found = find_peers(PEERS)
    if found.missing:
        note(found.missing)
    if data is None:
        note(
            "without --mnist FOLDER, decide-early and everything on mnist-dvs-sim is left out, and "
            "the members are untrained."
        )
    prepared = prepare_members(plan, data, folder, progress)
    peers = Peers(plan, Weights.of(prepared.network), found, note)
    kinds: list[tuple[str, Booleans, Booleans, Integers]] = []
    count, chance = max(plan.batches) * plan.rounds, np.random.default_rng(plan.seed)
    if data is not None:
        timed = np.asarray(data.pool.inputs[N_CALIBRATION : N_CALIBRATION + plan.inputs])
        kinds.append(
            (MNIST, timed, np.asarray(data.training.inputs[:count]), data.training.labels[:count])
        )
    noise = plan.bernoulli(max(plan.inputs, count))
    kinds.append(
        (BERNOULLI, noise[: plan.inputs], noise[:count], chance.integers(plan.classes, size=count))
    )
    total, begun = len(kinds) * (2 * len(plan.batches) + 1) + 2, 0

    def next_part(what: str) -> None:
        nonlocal begun
        progress(what, begun / total)
        begun += 1

    for name, inputs, training, labels in kinds:
        for batch in plan.batches:
            next_part(f"decisions, {name}, batch {batch}")
            if ("decide-full", name, batch) not in done:
                yield bench_decisions(prepared, peers, name, inputs, batch, early=name == MNIST)
        next_part(f"streams, {name}")
        if ("stream-step", name, 1) not in done:
            yield bench_streams(prepared, peers, name, inputs[: plan.streams])
        for batch in plan.batches:
            next_part(f"training, {name}, batch {batch}")
            if ("train", name, batch) not in done:
                yield bench_training(
                    prepared,
                    peers,
                    name,
                    training[: batch * plan.rounds],
                    labels[: batch * plan.rounds],
                    batch,
                )
    works = {work for work, _, _ in done}
    if plan.device == "cuda" and find_spec("triton") is not None and "roof" not in works:
        yield [
            *bench_kernel(plan),
            *(record for name, inputs, _, _ in kinds for record in bench_roof(plan, name, inputs)),
        ]
    next_part("scaling")
    if "scaling-density" not in works:
        yield [record for part in bench_scaling(prepared) for record in part]
    next_part("memory")
    yield bench_memory(prepared, folder, note)


@dataclass(frozen=True, eq=False)
class BenchmarkResult:
    """The records, and a header with the machine, the protocol and what was left out."""

    header: dict[str, Any]
    records: list[BenchRecord]


def run_benchmark(
    plan: BenchmarkPlan,
    mnist: Path | None,
    output: Path,
    folder: Path,
    command: str,
    progress: ProgressCallback,
    note: NoteCallback,
) -> BenchmarkResult:
    """Run the whole benchmark. `output` is written after every workload, and a run that was stopped
    goes on where it ended.
    """
    make_folder(output.parent)
    make_folder(folder)
    if plan.device == "cuda":
        torch.set_num_threads(1)
    header, data = describe(plan, command), None
    if mnist is not None:
        progress("simulating the camera", 0.0)
        data = simulate_mnist(mnist, plan.seed, plan.parts)
        header["data"] = data.pool.description
    notes: list[str] = []

    def keep(sentence: str) -> None:
        notes.append(sentence)
        note(sentence)

    if header["machine"]["load"] > 0.3 * header["machine"]["cores"]:
        keep(
            f"the machine was busy at the start (load {header['machine']['load']:.1f}): do not "
            "trust these numbers."
        )
    records = unfinished_records(output, header)
    for part in benchmark(
        plan, data, folder, progress, keep, {(r.work, r.inputs, r.batch) for r in records}
    ):
        records += part
        save_benchmark(output, {**header, "notes": notes, "unfinished": True}, records)
    save_benchmark(output, {**header, "notes": notes}, records)
    return BenchmarkResult({**header, "notes": notes}, records)


def unfinished_records(output: Path, header: dict[str, Any]) -> list[BenchRecord]:
    """The records of a run with the same plan, versions and device that was stopped; none if there
    was no such run.
    """
    if not output.is_file():
        return []
    before, records = load_benchmark(output)
    same = (
        all(before.get(name) == header[name] for name in ("plan", "versions"))
        and before["machine"]["device"] == header["machine"]["device"]
    )
    return records if before.get("unfinished") and same else []


def describe(plan: BenchmarkPlan, command: str) -> dict[str, Any]:
    """The machine, the versions, the sizes and the protocol."""
    device = torch.cuda.get_device_name() if plan.device == "cuda" else "cpu"
    about = describe_run(
        ("agreestop", "torch", "numpy", "numba", "triton", *(peer.name for peer in PEERS)),
        device,
        command,
    )
    about["machine"]["torch_threads"] = torch.get_num_threads()
    sizes = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(plan).items()
    }
    return {
        **about,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "plan": sizes,
        "protocol": [*PROTOCOL, *([PLAIN] if plan.plain else [])],
    }


FOLDER = Path("runs/bench")
"""The folder of trained members, which are too large for results/."""


def default_output(device: str, quick: bool) -> Path:
    """The file of the records, if no other is given; quick records are not written to the
    results.
    """
    return (FOLDER if quick else Path("results/bench")) / f"{device}.json"


def main() -> None:
    """Run the command line, which needs neither typer nor rich."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description="Our engines against other libraries."
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--mnist", type=Path, help="folder with MNIST's four idx files")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        help="default: results/bench/DEVICE.json, with --quick runs/bench/DEVICE.json",
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder for trained members")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes: only shows that everything works"
    )
    parser.add_argument(
        "--plain", action="store_true", help="peers without torch.compile, which takes minutes"
    )
    options = parser.parse_args()
    try:
        plan = plan_for(options.device, options.quick, options.plain)
        output = options.output or default_output(options.device, options.quick)
        command = shlex.join(["python3", "-m", "benchmarks.run", *sys.argv[1:]])
        result = run_benchmark(
            plan, options.mnist, output, options.folder, command, _print_progress, _print_note
        )
    except InputError as error:
        sys.exit(f"agreestop: {error}")
    for record in result.records:
        print(in_words(record))
    print(f"Wrote {output}")


def in_words(record: BenchRecord) -> str:
    """A record in one line."""
    size = "" if record.size is None else f" {record.size:g}"
    batch = "" if record.batch is None else f", batch {record.batch}"
    ratio = (
        ""
        if record.times_fastest_peer is None
        else f"; {record.times_fastest_peer:.2f} × {record.fastest_peer}"
    )
    spread = f"{record.median:,.4g} [{record.low:,.4g}, {record.high:,.4g}] {record.unit}"
    return (
        f"{record.work}{size}, {record.inputs}{batch}, {record.system} ({record.form}): "
        f"{spread}{ratio}"
    )


def _print_progress(what: str, share: float) -> None:
    print(f"{share:4.0%} {what}", file=sys.stderr, flush=True)


def _print_note(sentence: str) -> None:
    print(f"Note: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
