"""The benchmark of deep networks: decisions and training of a convolutional network and of a
ResNet-18, against the same peers.

    decide-full     decisions per second at T; ours also apply the rule at every step
    decide-early    ours stop with AgreeStop (at most one class, target 0.95 for the ensemble's own
                    answer at T). Peers run to T, and, as "stopped", to the fixed time at which our
                    ensemble is as accurate as the early decisions
    decide-joining  the same, where a few members watch alone, and the others are asked only about
    inputs that these do not decide
    train           inputs per second: one step of T = 16 (gestures) or T = 4 (resnet18) on a GPU,
                    of T = 80 on a CPU
    roof, roof-train    on a GPU, see `deep_roof`

`deep_cases` describes the networks and the rules.

On a GPU all systems run in bfloat16 with channels innermost. Peers find their inputs on the device
as bytes, ours in host memory.

    python -m benchmarks deep --device cuda --data FOLDER -o FILE
    python -m benchmarks deep --draw -o FILE                           measures nothing: draws the
                                                                       figure of the file

Where typer is not installed, as on a bare GPU machine, `python -m benchmarks.deep` is the same
command. Simulated inputs and trained members are kept in FOLDER. It may hold files
`data_batch_*.bin` of CIFAR-10, without which the ResNet-18 is left out.
"""

from __future__ import annotations

import argparse
import gc
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch

from agreestop.common import InputError, make_folder
from agreestop.engines.early_stopping import EarlyRun, RunOptions, decide_early
from agreestop.ensembles.images import ImageRecipe, ImageTraining
from agreestop.ensembles.streams import StreamRecipe, StreamTraining
from agreestop.ensembles.training import TrainableMembers
from agreestop.networks.architectures import SpikingNetwork

from .deep_cases import (
    REPEATS,
    STEPS,
    DeepCase,
    EarlyRule,
    PreparedCase,
    as_given,
    digits,
    gestures,
    members_of,
    prepare,
    resnet,
)
from .deep_peers import DeepForm, DeepPeer
from .deep_roof import bench_roof
from .peers import LEARNING_RATE, PEERS, FoundPeers, Peer, find_peers
from .preparation import NoteCallback, ours
from .records import DECISIONS, OURS, TRAINED, BenchRecord, compared, load_networks, save_benchmark
from .run import FOLDER, describe, in_words
from .timing import Conditions, TimedSystem, measure

# at K = 6 only the peers are run that take at most this many times as long as the fastest at K = 1
RIVAL = 1.2
WANTED = {
    ("cuda", "decide-full"): "at least 3 × the fastest peer",
    ("cuda", "decide-early"): "at least 20 × the fastest peer at T",
    ("cuda", "train"): "at least 3 × the fastest peer",
    ("cpu", "decide-full"): "at least 10 × the fastest peer",
    ("cuda", "decide-joining"): "at least 20 × the fastest peer at T",
    ("cpu", "decide-early"): "at least 20 × the fastest peer at T",
    ("cpu", "decide-joining"): "at least 20 × the fastest peer at T",
}
PROTOCOL = (
    "each repeat gives every system a turn; medians over repeats, low and high are the 10 % and "
    "90 % quantiles",
    "peers use their plain LIF neuron, ours are SRM neurons; peers have the weights and "
    "statistics of our members",
    "on a GPU: bfloat16, channels innermost; peers without training have batch normalisation "
    "folded into their convolutions",
    "on a GPU: peers find dense inputs on the device as bytes; ours find events, or images, in "
    "host memory",
    "on a GPU, each peer runs as a CUDA graph where it can be captured; torch.compile is not tried",
)


@dataclass(eq=False)
class DeepPeers:
    """The installed peers, and the form of each: a CUDA graph on a GPU if it can be captured, which
    is the fastest by far.
    """

    found: FoundPeers
    device: str
    note: NoteCallback
    forms: dict[tuple[str, ...], DeepForm] = field(default_factory=dict)

    def systems(
        self,
        key: tuple[str, ...],
        work: str,
        peers: list[Peer],
        amount: float,
        make: Callable[[Peer, DeepForm], Callable[[], object]],
        words: str = "",
    ) -> list[TimedSystem]:
        """Every peer at a workload; `make` gives what it runs."""
        systems = []
        for peer in peers:
            forms = (DeepForm(graph=True), DeepForm()) if self.device == "cuda" else (DeepForm(),)
            for form in (
                (self.forms[*key, peer.name],) if (*key, peer.name) in self.forms else forms
            ):
                try:
                    run = make(peer, form)
                    run()
                except (
                    Exception
                ) as error:  # a library that does not fit this machine may raise anything
                    self.note(
                        f"{peer.name}, {work}, {form}: does not work on this machine "
                        f"({type(error).__name__}: {error}"[:300]
                        + ")."
                    )
                    free(self.device)
                    continue
                self.forms[*key, peer.name] = form
                systems.append(
                    TimedSystem(work, peer.name, peer.version, f"{form}{words}", run, amount)
                )
                break
        return systems


def free(device: str) -> None:
    """Give unused memory back."""
    if device == "cuda":
        gc.collect()  # peers keep graphs and tensors in cycles
        torch.cuda.empty_cache()


def near_fastest(peers: list[Peer], records: list[BenchRecord]) -> list[Peer]:
    """The peers that take at most RIVAL times as long as the fastest of these records."""
    speeds = {record.system: record.median for record in records if record.system != OURS}
    return [
        peer
        for peer in peers
        if speeds.get(peer.name, 0) * RIVAL >= max(speeds.values(), default=0)
    ]


def bench_case(
    case: DeepCase, prepared: PreparedCase, peers: DeepPeers, rivals: dict[str, list[Peer]]
) -> Iterator[list[BenchRecord]]:
    """All workloads of one network with K members; rivals: the peers of each workload."""
    network, device, K = prepared.network, peers.device, prepared.network.members
    name, batch, key = f"{case.name}, K = {K}", case.batch, (case.name,)
    slots = (8 if case.held else 4) * batch  # the state of six members must fit into memory
    some = slice((8 if K > 1 else 16) * batch)  # fewer inputs suffice where all run to T

    def finish(records: list[BenchRecord]) -> list[BenchRecord]:
        others = [
            record for record in records if record.system != OURS and "stopped" not in record.form
        ]
        return [
            replace(compared(r, others), wanted=WANTED.get((device, r.work)))
            if r.system == OURS
            else r
            for r in records
        ]

    def decide(
        rule: EarlyRule, inputs: Any, together: int, chunk: int | None
    ) -> Callable[[], EarlyRun]:
        return lambda: decide_early(
            prepared.engine,
            rule.calibrated,
            inputs,
            RunOptions(together, chunk, any_engine=True, steps=case.held),
        )

    def peer_decides(steps: int) -> Callable[[Peer, DeepForm], Callable[[], object]]:
        def make(peer: Peer, form: DeepForm) -> Callable[[], object]:
            members = DeepPeer(
                peer, form, network, steps if case.held else None, device, trained=False
            )
            x = members.prepare(
                prepared.dense[:batch] if case.held else prepared.dense[:batch, :steps]
            )
            return lambda: members.decide(x)

        return make

    to_end = prepared.timed[some] if case.held else prepared.timed.rows(some)
    full = decide(prepared.early, to_end, slots if case.held else slots // 2, STEPS)
    rules = {"decide-early": prepared.early} | (
        {} if prepared.joining is None else {"decide-joining": prepared.joining}
    )
    early = {work: decide(rule, prepared.timed, slots, None) for work, rule in rules.items()}
    engine, timed = f"{prepared.engine.name} engine", len(prepared.timed)
    systems = [
        ours("decide-full", f"{engine}, the rule at every step", full, len(to_end)),
        *(ours(work, f"{engine}, {rules[work].form}", run, timed) for work, run in early.items()),
        *peers.systems(
            (*key, "decide"), "decide-full", rivals["decide-full"], batch, peer_decides(STEPS)
        ),
    ]
    records = finish(measure(systems, Conditions(name, DECISIONS, batch), REPEATS, device))
    for at, (work, rule) in enumerate(rules.items(), start=1):
        run = early[work]()
        computed = float(run.work.mean()) / (STEPS * K)
        records[at] = replace(records[at], computed=computed, **cast(Any, rule.facts))
    yield records
    del systems
    free(device)
    fastest = max((r for r in records if r.system != OURS), key=lambda r: r.median, default=None)
    stopped = [
        peer
        for peer in rivals["decide-full"]
        if fastest is not None and peer.name == fastest.system
    ]
    fixed = prepared.early.fixed
    words = f", stopped at step {fixed}"
    again = peers.systems(
        (*key, "decide"), "decide-early", stopped, batch, peer_decides(fixed), words
    )
    yield measure(again, Conditions(name, DECISIONS, batch), REPEATS, device) if again else []
    del again
    free(device)
    if device == "cuda":
        yield bench_roof(case, prepared, name)
        free(device)

    count, steps = case.trained
    rows, truth = case.training[:count], case.labels[:count]

    def train_ours() -> Callable[[], object]:
        model: Any = TrainableMembers(
            SpikingNetwork(network.config, torch.Generator().manual_seed(0))
        )
        model.network.load_state_dict(network.state_dict())
        x = torch.from_numpy(as_given(case, rows if case.held else rows[:, :steps])).to(device)
        if case.held:
            settings: Any = ImageTraining(
                4,
                count,
                LEARNING_RATE,
                0,
                device=device,
                bf16=True,
                rate_epochs=0,
                horizons=(steps,),
            )
            recipe: Any = ImageRecipe(model.train(), settings, count)
            return lambda: recipe.step(x, truth, 0.5, 0)
        recipe = StreamRecipe(
            model.train(),
            StreamTraining(1, count, LEARNING_RATE, 0, device=device, bf16=device == "cuda"),
            count,
        )
        return lambda: recipe.step(x, truth, 0.5)

    def peer_trains(peer: Peer, form: DeepForm) -> Callable[[], object]:
        members = DeepPeer(peer, form, network, steps if case.held else None, device, trained=True)
        x, labels = (
            members.prepare(rows if case.held else rows[:, :steps]),
            torch.from_numpy(truth).to(device),
        )
        return lambda: members.train_step(x, labels)

    systems = [ours("train", "weights", train_ours(), count)]
    systems += peers.systems((*key, "train"), "train", rivals["train"], count, peer_trains)
    for system in systems[:1] * 5:
        system.run()  # the CUDA graph is captured after a few steps
    yield finish(measure(systems, Conditions(name, TRAINED, count), REPEATS, device))
    free(device)


def cases_of(device: str, folder: Path, only: str | None, note: NoteCallback) -> Iterator[DeepCase]:
    """The networks of this device, or only the one of this name."""
    names = ("gestures", "digits" if device == "cpu" else "resnet")
    if only is not None and only not in names:
        raise InputError(f"--only is {only!r}: on this device give {' or '.join(names)}.")
    for name in names if only is None else (only,):
        if name == "gestures":
            yield gestures(device, folder)
        elif name == "digits":
            yield digits()
        elif (images := resnet(folder)) is not None:
            yield images
        else:
            note("ResNet-18 is left out: the folder holds no data_batch_*.bin of CIFAR-10.")


def run_deep(
    device: str, folder: Path, output: Path, command: str, only: str | None = None
) -> list[BenchRecord]:
    """Run everything, or only one network; `output` is written after every workload."""
    notes: list[str] = []

    def note(sentence: str) -> None:
        notes.append(sentence)
        print(f"Note: {sentence}", file=sys.stderr, flush=True)

    if device == "cuda":
        torch.set_num_threads(1)
    found = find_peers(PEERS)
    if found.missing:
        note(found.missing)
    cases = list(cases_of(device, folder, only, note))
    from .preparation import BenchmarkPlan

    header = {**describe(BenchmarkPlan(device, plain=True), command), "protocol": list(PROTOCOL)}
    header.pop("plan")
    records: list[BenchRecord] = []
    for case in cases:
        network = members_of(case, device, folder, print)
        peers = DeepPeers(found, device, note)
        rivals = {work: list(found.peers) for work in ("decide-full", "train")}
        for members in (1, 6):
            prepared = prepare(case, network.select_members(slice(0, members)), device, note)
            for part in bench_case(case, prepared, peers, rivals):
                records += part
                for record in part:
                    print(in_words(record), flush=True)
                save_benchmark(output, {**header, "notes": notes}, records)
            if members == 1:
                rivals = {
                    work: near_fastest(
                        some,
                        [r for r in records if (r.work, r.inputs) == (work, f"{case.name}, K = 1")],
                    )
                    for work, some in rivals.items()
                }
            del prepared
            free(device)
        for work, some in rivals.items():
            if len(some) < len(found.peers):
                left = ", ".join(peer.name for peer in found.peers if peer not in some)
                words = f"since they take more than {RIVAL} times as long as the fastest at K = 1"
                note(f"{case.name}, {work}: {left} are left out at K = 6, {words}.")
                save_benchmark(output, {**header, "notes": notes}, records)
    return records


def deep(
    device: str,
    data: Path,
    output: Path | None,
    draw: bool,
    command: str,
    only: str | None = None,
) -> None:
    """Run the benchmark, or with `draw` only draw its figure."""
    if device not in ("cpu", "cuda"):
        raise InputError(f"--device is {device!r}: give cpu or cuda.")
    output = output or Path("results/bench") / f"{device}-{only or 'deep'}.json"
    if draw:
        from .drawing import draw_deep

        header, records = load_networks(output)
        for path in draw_deep(records, output.parent, title_of(header), output.stem):
            print(f"Wrote {path}")
        return
    make_folder(data)
    run_deep(device, data, output, command, only)


def title_of(header: dict[str, Any]) -> str:
    """The title of the figure."""
    machine = header["machine"]
    if machine["device"] == "cpu":
        return f"Deep networks on {machine['cores']} cores, three convolutions, T = {STEPS}"
    what = "bfloat16: the network of DVS128 Gesture and a ResNet-18"
    return f"Deep networks on {machine['device']}, {what}, T = {STEPS}"


def main() -> None:
    """`python -m benchmarks.deep`: the same command where typer and rich are not installed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.deep", description="Deep networks against other libraries."
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument(
        "--data", type=Path, default=FOLDER, help="folder of inputs and trained members"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        help="default: results/bench/DEVICE-deep.json, or DEVICE-NETWORK.json with --only",
    )
    parser.add_argument(
        "--draw",
        action="store_true",
        help="measure nothing: draw the figure of the file given by -o",
    )
    parser.add_argument("--only", help="one network: gestures, digits (on a CPU) or resnet")
    options = parser.parse_args()
    try:
        deep(
            **vars(options), command=shlex.join(["python", "-m", "benchmarks.deep", *sys.argv[1:]])
        )
    except InputError as error:
        sys.exit(f"agreestop: {error}")


if __name__ == "__main__":
    main()
