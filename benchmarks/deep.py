"""The benchmark of deep networks: decisions and training of a convolutional network and of a ResNet-18, against the same peers.

    gestures   the network of DVS128 Gesture (Fang et al. 2021) on gesture-sim, 128 × 128 pixels, T = 80; on a CPU a small one, 16 × 16
    digits     the same small network on the embedded digits, 16 × 16 pixels, T = 80; on a CPU
    resnet18   ResNet-18 on 32 × 32 images of CIFAR-10 that are held for T = 80 steps; on a GPU

    decide-full   decisions per second at T; ours also apply the rule at every step
    decide-early  ours stop with AgreeStop (at most one class, target 0.95 for the ensemble's own answer at T). Peers run to T, and, as
                  "stopped", to the fixed time at which our ensemble is as accurate as the early decisions
    train         inputs per second: one step of T = 16 (gestures) or T = 4 (resnet18)
    roof          on a GPU: decisions per second at T if only the same convolutions ran, and at the measured peak of a matrix product
    roof-train    on a GPU: inputs per second of training if its bytes moved at the speed of a copy, and its operations ran at that peak.
                  Bytes: each kernel reads and writes its tensors once, see `training_bytes`

On a GPU all systems run in bfloat16 with channels innermost. Peers find their inputs on the device as bytes, ours in host memory.

    python -m benchmarks deep --device cuda --data FOLDER -o FILE
    python -m benchmarks deep --draw -o FILE                           measures nothing: draws the figure of the file

Where typer is not installed, as on a bare GPU machine, `python -m benchmarks.deep` is the same command. FOLDER holds
`gestures-training.npz`, `gestures-tuning.npz` and `gestures-pool.npz`, files of `Events.save`, which are simulated if they are not there.
It may hold files `data_batch_*.bin` of CIFAR-10, without which the ResNet-18 is left out. Members are trained once and kept in the folder.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from agreestop.common import InputError, Integers, cores, make_folder
from agreestop.decide.agree_stop import AgreeStop
from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.confidence import log_confidence
from agreestop.decide.risks import TopMass
from agreestop.engines.choice import choose_engine
from agreestop.engines.early_stopping import EarlyRun, decide_early, run_to_end
from agreestop.engines.protocol import Engine
from agreestop.ensembles import load as load_ensemble
from agreestop.ensembles.files import save_members
from agreestop.ensembles.images import ImageRecipe, ImageTraining, reestimate_batchnorm
from agreestop.ensembles.streams import StreamRecipe, StreamTraining
from agreestop.ensembles.training import TrainableMembers, train
from agreestop.events import load_data_set
from agreestop.events.container import Events
from agreestop.events.files import load as load_inputs
from agreestop.networks._kernels.gpu_runtime import capture_cuda_graph
from agreestop.networks.architectures import Convolutional, ResNet18, SpikingNetwork

from .deep_peers import DeepForm, DeepPeer
from .peers import LEARNING_RATE, PEERS, FoundPeers, Peer, find_peers
from .preparation import NoteCallback, ours
from .records import DECISIONS, OURS, TRAINED, BenchRecord, compared, load_benchmark, save_benchmark
from .run import FOLDER, describe, in_words
from .timing import Conditions, TimedSystem, measure

STEPS, TARGET, N_CALIBRATION, REPEATS = 80, 0.95, 90, 3
RIVAL = 1.2  # at K = 6 only the peers are run that take at most this many times as long as the fastest at K = 1
WANTED = {
    ("cuda", "decide-full"): "at least 3 × the fastest peer",
    ("cuda", "decide-early"): "at least 20 × the fastest peer at T",
    ("cuda", "train"): "at least 3 × the fastest peer",
    ("cpu", "decide-full"): "at least 10 × the fastest peer",
    ("cpu", "decide-early"): "at least 20 × the fastest peer at T",
}
PROTOCOL = (
    "each repeat gives every system a turn; medians over repeats, low and high are the 10 % and 90 % quantiles",
    "peers use their plain LIF neuron, ours are SRM neurons; peers have the weights and statistics of our members",
    "on a GPU: bfloat16, channels innermost; peers without training have batch normalisation folded into their convolutions",
    "on a GPU: peers find dense inputs on the device as bytes; ours find events, or images, in host memory",
    "on a GPU, each peer runs as a CUDA graph where it can be captured; torch.compile is not tried",
)


@dataclass(frozen=True, eq=False)
class DeepCase:
    """One network, its inputs, and the sizes of its workloads.

    held       the steps for which images are held, None for streams
    batch      inputs that are decided on together
    trained    inputs and steps of a training step
    training, tuning, pool   inputs (n, T, ...) as bytes, dense: for the members, for the risk of the rule, and for calibration and the
               timed runs
    epochs     epochs of training
    together   inputs of a batch when the members are trained. On a CPU, it and `epochs` were chosen on the tuning digits, and on 80 of the
               training gestures, which were left out for that
    """

    name: str
    config: Any
    held: int | None
    batch: int
    trained: tuple[int, int]
    training: NDArray[np.uint8]
    labels: Integers
    tuning: NDArray[np.uint8]
    pool: NDArray[np.uint8]
    truth: Integers
    epochs: int
    together: int = 8


def gestures(device: str, folder: Path) -> DeepCase:
    """gesture-sim: the large network on all pixels, or on a CPU a small one on cells of 8 × 8 pixels."""
    parts = []
    for part, (name, size) in enumerate((("training", 320), ("tuning", 64), ("pool", 160))):
        path = folder / f"gestures-{name}.npz"
        if not path.is_file():
            from agreestop.events.datasets.gesture_sim import simulate_gestures

            first, second, third = (size if other == part else 1 for other in range(3))
            splits = simulate_gestures(sizes=(first, second, third), downsample=1, workers=cores())
            chosen = (splits.training, splits.tuning, splits.pool)[part]
            Events.from_dense(chosen.inputs, chosen.labels, chosen.classes).save(path)
        parts.append(load_inputs(path))
    dense, labels = [events.to_dense() for events in parts], [cast(Integers, events.labels) for events in parts]
    if device == "cuda":
        config: Any = Convolutional((2, 128, 128), 11, 6)
        return DeepCase("gestures, 128 × 128", config, None, 8, (16, 16), dense[0], labels[0], dense[1], dense[2], labels[2], 12)
    small = [x.reshape(*x.shape[:3], 16, 8, 16, 8).sum((4, 6), dtype=np.uint8) for x in dense]
    return DeepCase("gestures, 16 × 16", small_network(11), None, 32, (32, 80), small[0], labels[0], small[1], small[2], labels[2], 40)


def small_network(classes: int) -> Convolutional:
    """Three convolutions and two fully connected layers, on 16 × 16 pixels."""
    return Convolutional((2, 16, 16), classes, 6, (16, 32, 64), (128,))


def digits() -> DeepCase:
    """The embedded digits, whose classes are clear earlier than those of gestures."""
    data = load_data_set("digits")
    x, tuning, pool = (part.inputs.to_dense().astype(np.uint8) for part in (data.training, data.tuning, data.pool))
    return DeepCase(
        "digits, 16 × 16", small_network(10), None, 32, (32, STEPS), x, data.training.labels, tuning, pool, data.pool.labels, 10, 16
    )


def resnet(folder: Path) -> DeepCase | None:
    """ResNet-18 on what there is of CIFAR-10's training images."""
    files = sorted(folder.glob("data_batch_*.bin"))
    if not files:
        return None
    rows = np.concatenate([np.fromfile(path, np.uint8) for path in files])
    rows = rows[: len(rows) // 3073 * 3073].reshape(-1, 3073)
    images, labels = rows[:, 1:].reshape(-1, 1, 3, 32, 32), rows[:, 0].astype(np.int64)
    first, last = len(images) - 1800, len(images) - 1200
    name, config, tuning = "ResNet-18, 32 × 32", ResNet18((3, 32, 32), 10, 6), images[first:last]
    return DeepCase(name, config, STEPS, 128, (256, 4), images[:first], labels[:first], tuning, images[last:], labels[last:], 30)


def as_given(case: DeepCase, inputs: NDArray[np.uint8]) -> NDArray[Any]:
    """Images as numbers around zero; counts of events as they are."""
    return inputs if case.held is None else (inputs.astype(np.float32) - 120) / 64


def members_of(case: DeepCase, device: str, folder: Path, progress: Callable[[str], None]) -> SpikingNetwork:
    """The members: trained, or read if they are there."""
    training = f"-{case.epochs}-{case.together}" if device == "cpu" else ""
    path = folder / f"members-{case.name.split(',')[0]}-{device}{training}.safetensors"
    if path.is_file():
        return cast(SpikingNetwork, load_ensemble(path, device="cpu").network)
    model: Any = TrainableMembers(SpikingNetwork(case.config, torch.Generator().manual_seed(0)))
    settings: Any = StreamTraining(case.epochs, case.together, 2e-3, 0, device=device, bf16=device == "cuda")
    if case.held:
        rates = case.epochs - 8
        settings = ImageTraining(8, 128, 0.05, 0, device=device, bf16=True, rate_epochs=rates, horizons=(2, 4), rate_learning_rate=0.1)
    inputs = as_given(case, case.training)
    train(model, inputs, case.labels, settings, None, lambda epoch, found: progress(f"{case.name}: epoch {epoch + 1}, {found}"))
    if case.held:
        reestimate_batchnorm(model, inputs, 8, bf16=True)
    network = cast(SpikingNetwork, model.network.cpu().eval())
    save_members(path, network)
    return network


@dataclass(frozen=True, eq=False)
class PreparedCase:
    """Members, engine and rule of a case; the inputs for ours and for peers; and what the early decisions are like."""

    network: SpikingNetwork
    engine: Engine
    calibrated: CalibratedRule
    timed: Any
    dense: NDArray[np.uint8]
    fixed: int
    facts: dict[str, float]


def prepare(case: DeepCase, network: SpikingNetwork, device: str, note: NoteCallback) -> PreparedCase:
    """The rule is about the ensemble's own answer at T, so that it does not depend on how well the members were trained."""
    engine = choose_engine(network, "fused-bfloat16" if device == "cuda" else "event-driven", 0.01, device=device)

    def scored(inputs: NDArray[np.uint8]) -> tuple[Any, Integers]:
        """Log-confidences at every step, and the ensemble's answer at T."""
        spikes = run_to_end(engine, as_given(case, inputs), 8 * case.batch if case.held else case.batch, case.held)
        scores = log_confidence(np.cumsum(spikes, axis=1, dtype=np.int64))
        return scores, scores[:, -1].mean(1).argmax(-1)

    rule = AgreeStop(TARGET, tuple(range(1, STEPS + 1)), 1, risk=TopMass.fit(*scored(case.tuning)))
    (scores, answers), last = scored(case.pool), N_CALIBRATION
    calibrated = replace(rule.calibrate(scores[:last], "final"), engine=engine.name)
    decisions = calibrated.decide(scores[last:])
    truth = case.truth[last:]
    accuracy = float((decisions.sets[np.arange(len(truth)), truth] & (decisions.set_size == 1)).mean())
    correct = (scores[last:].mean(2).argmax(-1) == truth[:, None]).mean(0)
    fixed = int(np.argmax(correct >= min(accuracy, correct.max()))) + 1
    agrees = float(decisions.sets[np.arange(len(truth)), answers[last:]].mean())
    facts = {"latency": float(decisions.stop_time.mean()) / STEPS, "coverage": agrees, "set_size": float(decisions.set_size.mean())}
    note(f"{case.name}, K = {network.members}: {correct[-1]:.3f} of {len(truth)} test inputs are right at T, {accuracy:.3f} early.")
    count = case.batch * ((16 if network.members > 1 else 32) if case.held else 32)
    dense = np.concatenate([case.pool[last:]] * -(-count // len(truth)))[:count]
    timed = as_given(case, dense) if case.held else Events.from_dense(dense)
    return PreparedCase(network, engine, calibrated, timed, dense, fixed, facts)


@dataclass(eq=False)
class DeepPeers:
    """The installed peers, and the form of each: a CUDA graph on a GPU if it can be captured, which is the fastest by far."""

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
            for form in (self.forms[*key, peer.name],) if (*key, peer.name) in self.forms else forms:
                try:
                    run = make(peer, form)
                    run()
                except Exception as error:  # a library that does not fit this machine may raise anything
                    self.note(f"{peer.name}, {work}, {form}: does not work on this machine ({type(error).__name__}: {error}"[:300] + ").")
                    free(self.device)
                    continue
                self.forms[*key, peer.name] = form
                systems.append(TimedSystem(work, peer.name, peer.version, f"{form}{words}", run, amount))
                break
        return systems


def free(device: str) -> None:
    """Give unused memory back."""
    if device == "cuda":
        torch.cuda.empty_cache()


def near_fastest(peers: list[Peer], records: list[BenchRecord]) -> list[Peer]:
    """The peers that take at most RIVAL times as long as the fastest of these records."""
    speeds = {record.system: record.median for record in records if record.system != OURS}
    return [peer for peer in peers if speeds.get(peer.name, 0) * RIVAL >= max(speeds.values(), default=0)]


def bench_case(case: DeepCase, prepared: PreparedCase, peers: DeepPeers, rivals: dict[str, list[Peer]]) -> Iterator[list[BenchRecord]]:
    """All workloads of one network with K members; rivals: the peers of each workload."""
    network, device, K = prepared.network, peers.device, prepared.network.members
    name, batch, key = f"{case.name}, K = {K}", case.batch, (case.name,)
    slots = (4 if K > 1 else 8) * batch if case.held else 4 * batch  # the state of six members must fit into memory
    some = slice((8 if K > 1 else 16) * batch)  # fewer inputs suffice where all run to T

    def finish(records: list[BenchRecord]) -> list[BenchRecord]:
        others = [record for record in records if record.system != OURS and "stopped" not in record.form]
        return [replace(compared(r, others), wanted=WANTED.get((device, r.work))) if r.system == OURS else r for r in records]

    def decide(inputs: Any, together: int, chunk: int | None) -> Callable[[], EarlyRun]:
        return lambda: decide_early(prepared.engine, prepared.calibrated, inputs, together, chunk, any_engine=True, steps=case.held)

    def peer_decides(steps: int) -> Callable[[Peer, DeepForm], Callable[[], object]]:
        def make(peer: Peer, form: DeepForm) -> Callable[[], object]:
            members = DeepPeer(peer, form, network, steps if case.held else None, device, trained=False)
            x = members.prepare(prepared.dense[:batch] if case.held else prepared.dense[:batch, :steps])
            return lambda: members.decide(x)

        return make

    to_end = prepared.timed[some] if case.held else prepared.timed.rows(some)
    full, early = decide(to_end, slots if case.held else slots // 2, STEPS), decide(prepared.timed, slots, None)
    systems = [
        ours("decide-full", f"{prepared.engine.name} engine, the rule at every step", full, len(to_end)),
        ours("decide-early", f"{prepared.engine.name} engine, stops with AgreeStop", early, len(prepared.timed)),
        *peers.systems((*key, "decide"), "decide-full", rivals["decide-full"], batch, peer_decides(STEPS)),
    ]
    records = finish(measure(systems, Conditions(name, DECISIONS, batch), REPEATS, device))
    records[1] = replace(records[1], computed=float(early().computed.mean()) / STEPS, **cast(Any, prepared.facts))
    yield records
    del systems
    free(device)
    fastest = max((r for r in records if r.system != OURS), key=lambda r: r.median, default=None)
    stopped = [peer for peer in rivals["decide-full"] if fastest is not None and peer.name == fastest.system]
    words = f", stopped at step {prepared.fixed}"
    again = peers.systems((*key, "decide"), "decide-early", stopped, batch, peer_decides(prepared.fixed), words)
    yield measure(again, Conditions(name, DECISIONS, batch), REPEATS, device) if again else []
    del again
    free(device)
    if device == "cuda":
        yield bench_roof(case, prepared, name)
        free(device)

    count, steps = case.trained
    rows, truth = case.training[:count], case.labels[:count]

    def train_ours() -> Callable[[], object]:
        model: Any = TrainableMembers(SpikingNetwork(network.config, torch.Generator().manual_seed(0)))
        model.network.load_state_dict(network.state_dict())
        x = torch.from_numpy(as_given(case, rows if case.held else rows[:, :steps])).to(device)
        if case.held:
            settings: Any = ImageTraining(4, count, LEARNING_RATE, 0, device=device, bf16=True, rate_epochs=0, horizons=(steps,))
            recipe: Any = ImageRecipe(model.train(), settings, count)
            return lambda: recipe.step(x, truth, 0.5, 0)
        recipe = StreamRecipe(model.train(), StreamTraining(1, count, LEARNING_RATE, 0, device=device, bf16=device == "cuda"), count)
        return lambda: recipe.step(x, truth, 0.5)

    def peer_trains(peer: Peer, form: DeepForm) -> Callable[[], object]:
        members = DeepPeer(peer, form, network, steps if case.held else None, device, trained=True)
        x, labels = members.prepare(rows if case.held else rows[:, :steps]), torch.from_numpy(truth).to(device)
        return lambda: members.train_step(x, labels)

    systems = [ours("train", "weights", train_ours(), count)]
    systems += peers.systems((*key, "train"), "train", rivals["train"], count, peer_trains)
    for system in systems[:1] * 5:
        system.run()  # the CUDA graph is captured after a few steps
    yield finish(measure(systems, Conditions(name, TRAINED, count), REPEATS, device))
    free(device)


def bench_roof(case: DeepCase, prepared: PreparedCase, name: str) -> list[BenchRecord]:
    """Decisions per second at T if only the convolutions and products of one member's pass ran, K times; and at the peak of a product."""
    import agreestop.engines.gpu.deep as deep

    seen: list[tuple[Any, torch.Size, torch.Size]] = []
    currents, K = deep._Synapses.currents, prepared.network.members
    member = deep.DeepMember(prepared.network.select_members(slice(0, 1)).to("cuda").eval(), bf16=True)
    steps, rows = 16, case.batch
    frames = torch.zeros((1 if case.held else steps, rows, *prepared.network.input_shape), device="cuda")

    def watch(synapses: Any, x: torch.Tensor) -> torch.Tensor:
        y = currents(synapses, x)
        seen.append((synapses, x.shape, y.shape))
        return y

    deep._Synapses.currents = watch  # type: ignore[method-assign, assignment]
    try:
        member(frames, None, steps if case.held else None)
    finally:
        deep._Synapses.currents = currents  # type: ignore[method-assign]
    work = [(one, (torch.rand(given, device="cuda") < 0.1).to(one.weight.dtype)) for one, given, _ in seen]

    @torch.inference_mode()
    def convolve() -> None:
        for one, x in work:
            currents(one, x)

    side, (count, trained) = 8192, case.trained
    left, right = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    runs, share = 10, 16 / STEPS / K
    operations = sum(2 * np.prod(out) * np.prod(one.weight.shape[1:]) for one, _, out in seen) / (steps * rows)

    def often(run: Callable[[], object]) -> Callable[[], object]:
        def repeat() -> None:
            for _ in range(runs):
                run()

        return capture_cuda_graph(repeat)

    source = torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    moved = training_bytes(seen, steps * rows) * trained * K
    version = torch.__version__
    systems = [
        TimedSystem("roof", "PyTorch", version, "the same convolutions alone", often(convolve), runs * rows * share),
        TimedSystem("roof", "PyTorch", version, "", often(lambda: left @ right), runs * 2 * side**3 / (operations * STEPS * K)),
        TimedSystem("roof-train", "PyTorch", version, "", often(lambda: target.copy_(source)), runs * 2 * source.nbytes / moved),
    ]
    alone, peak, copied = measure(systems, Conditions(name, DECISIONS, case.batch), REPEATS, "cuda")
    rate, speed = peak.median * operations * STEPS * K / 1e12, copied.median * moved / 1e12
    words = f"at the measured peak of {rate:.0f} TFLOP/s"
    times = STEPS / (3 * trained)  # backward, a convolution takes twice the operations of forward
    step = replace(
        peak, work="roof-train", unit=TRAINED, batch=count, median=peak.median * times, low=peak.low * times, high=peak.high * times
    )
    return [
        alone,
        replace(peak, form=f"{operations / 1e9:.2f} GFLOP an input, member and step {words}"),
        replace(
            copied, unit=TRAINED, batch=count, form=f"{moved / 1e6:.0f} MB of bytes an input at the measured {speed:.2f} TB/s of a copy"
        ),
        replace(step, form=f"{3 * operations * trained * K / 1e9:.0f} GFLOP an input {words}"),
    ]


def training_bytes(seen: Sequence[tuple[Any, torch.Size, torch.Size]], frames: int) -> float:
    """Bytes that the convolutional layers of one member move in training, for a frame of one input.

    In bfloat16, with N outputs, M inputs and Z spikes after the pool: forward, the convolution reads M and writes N, batch normalisation
    reads N, and the neurons read N and write Z. Backward, the neurons read N and Z and write N, batch normalisation reads 2 N and writes N,
    and the convolution reads 2 N and M and writes M, but for the first layer, which passes no gradient on.
    """
    total, last = 0.0, len(seen) - 1
    for index, (one, given, out) in enumerate(seen):
        if one.affine is None:
            continue  # a product: few bytes
        inputs, outputs = float(np.prod(given)), float(np.prod(out))
        spikes = float(np.prod(seen[index + 1][1])) if index < last else outputs
        total += 10 * outputs + 3 * inputs + 2 * min(spikes, outputs) - (outputs + inputs if index == 0 else 0)
    return 2 * total / frames


def run_deep(device: str, folder: Path, output: Path, command: str) -> list[BenchRecord]:
    """Run everything; `output` is written after every workload."""
    notes: list[str] = []

    def note(sentence: str) -> None:
        notes.append(sentence)
        print(f"Note: {sentence}", file=sys.stderr, flush=True)

    if device == "cuda":
        torch.set_num_threads(1)
    found = find_peers(PEERS)
    if found.missing:
        note(found.missing)
    cases = [gestures(device, folder)]
    if device == "cpu":
        cases.append(digits())
    else:
        images = resnet(folder)
        cases += [] if images is None else [images]
        if images is None:
            note("ResNet-18 is left out: the folder holds no data_batch_*.bin of CIFAR-10.")
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
                    work: near_fastest(some, [r for r in records if (r.work, r.inputs) == (work, f"{case.name}, K = 1")])
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


def deep(device: str, data: Path, output: Path | None, draw: bool, command: str) -> None:
    """Run the benchmark, or with `draw` only draw its figure."""
    if device not in ("cpu", "cuda"):
        raise InputError(f"--device is {device!r}: give cpu or cuda.")
    output = output or Path("results/bench") / f"{device}-deep.json"
    if draw:
        from .drawing import draw_deep

        header, records = load_benchmark(output)
        where = header["machine"]["device"]
        what = "three convolutions" if where == "cpu" else "bfloat16: the network of DVS128 Gesture and a ResNet-18"
        title = f"Deep networks on {header['machine']['cores']} cores, {what}" if where == "cpu" else f"Deep networks on {where}, {what}"
        title += f", T = {STEPS}"
        for path in draw_deep(records, output.parent, title, output.stem):
            print(f"Wrote {path}")
        return
    make_folder(data)
    run_deep(device, data, output, command)


def main() -> None:
    """`python -m benchmarks.deep`: the same command where typer and rich are not installed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deep", description="Deep networks against other libraries.")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--data", type=Path, default=FOLDER, help="folder of inputs and trained members")
    parser.add_argument("-o", "--output", type=Path, help="default: results/bench/DEVICE-deep.json")
    parser.add_argument("--draw", action="store_true", help="measure nothing: draw the figure of the file given by -o")
    options = parser.parse_args()
    try:
        deep(**vars(options), command=shlex.join(["python", "-m", "benchmarks.deep", *sys.argv[1:]]))
    except InputError as error:
        sys.exit(f"agreestop: {error}")


if __name__ == "__main__":
    main()
