"""Networks published with the NIR paper, on our engines: how good and how early they are, and how
fast against four libraries.

    python -m benchmarks nir --networks FOLDER --n-mnist FOLDER --braille FILE --speed
    results/bench/nir.json

writes results/nir/numbers.json and, where the libraries are installed, the file of the speed (`make
bench` makes that environment). The networks are files of the NIR repository,
github.com/neuromorphs/NIR, in one folder: paper/02_cnn/cnn_sinabs.nir and
paper/03_rnn/braille_noDelay_*.nir.

For the speed, every library runs the convolutional network with its own IF neurons, reset to zero,
on the same 1 ms bins: layer by layer where it can take a sequence, and step by step. The linear
maps are PyTorch's in all of them. Ours reads `Events`, and the libraries dense frames that are
ready before the clock starts; early decisions include the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import agreestop as ag
from agreestop.adapters.engine import AdaptedEngine
from agreestop.adapters.nir_nodes import build_network
from agreestop.adapters.nir_sources import read_source
from agreestop.cli.console import say
from agreestop.common import InputError, Integers, cores
from agreestop.networks.graphs import GraphNetwork, Integrator

from .peers import _quiet as quiet
from .records import DECISIONS, OURS, BenchRecord, compared, save_benchmark
from .results import PACKAGES, describe_run, version_of, write_results
from .timing import Conditions, FormTrial, TimedSystem, fastest_form, measure

CNN, BRAILLE = (
    "cnn_sinabs.nir",
    {"braille_noDelay_bias_zero.nir": "graph", "braille_noDelay_noBias_subtract.nir": "subtract"},
)
STEPS, BIN = 300, 1000  # steps of an N-MNIST recording, and microseconds of each
RECORDINGS, CALIBRATION, SPLITS = 500, 100, 50
TARGETS = (0.9, 0.95)
TIMED, BATCH, REPEATS = 128, 16, 5
LIBRARIES = ("snntorch", "spikingjelly", "norse", "sinabs")
WANTED = {"nir-full": "at least 10", "nir-early": "at least 20"}


def load_recordings(folder: Path, count: int, seed: int = 0) -> tuple[NDArray[np.uint8], Integers]:
    """Counts of events (n, 300, 2, 34, 34) in bins of 1 ms, OFF before ON as the network was
    trained, and the digits (n,).
    """
    files = sorted(folder.rglob("*.bin"))
    if len(files) < count:
        raise InputError(f"{folder} holds {len(files)} N-MNIST recordings: {count} are needed.")
    chosen = [files[index] for index in np.random.default_rng(seed).permutation(len(files))[:count]]
    x = np.empty((count, STEPS, 2, 34, 34), np.uint8)
    for row, path in zip(x, chosen, strict=True):
        row[:] = ag.events.bin_events(
            ag.events.read_n_mnist(path), STEPS, binary=False, window=(0, STEPS * BIN)
        )[:, ::-1]
    return x, np.array([int(path.parent.name) for path in chosen])


# ---- how good, and how early


@dataclass(frozen=True)
class Stopping:
    """A rule on the network: coverage, stopping time over T and set size, means over random choices
    of the calibration recordings.

    computed: the share of the steps that the engine computed, for one choice.
    """

    rule: str
    target: float
    coverage: float
    latency: float
    set_size: float
    computed: float | None = None


def measure_cnn(path: Path, x: NDArray[np.uint8], y: Integers) -> dict[str, Any]:
    """Accuracy at T with both resets, and where rules stop that answer one class."""
    found: dict[str, Any] = {
        "recordings": len(x),
        "calibration": CALIBRATION,
        "choices_of_calibration": SPLITS,
        "accuracy": {},
    }
    engines = {reset: ag.adapters.from_nir(path, reset=reset) for reset in ("graph", "subtract")}
    for reset, engine in engines.items():
        scores = engine.score(x, y)
        found["accuracy"][reset] = float(
            (scores.log_confidence[:, -1, 0].argmax(axis=1) == y).mean()
        )
        say(f"cnn, reset {reset}: accuracy {found['accuracy'][reset]:.3f}")
        if reset == "graph":
            found["stopping"] = [asdict(one) for one in stopping_times(engine, scores, x)]
    return found


def stopping_times(
    engine: AdaptedEngine, scores: ag.Scores, x: NDArray[np.uint8]
) -> list[Stopping]:
    """AgreeStop at every step, also run on the engine, and SpikeCP at four checkpoints."""
    known, test = scores.rows(slice(0, CALIBRATION)), scores.rows(slice(CALIBRATION, len(x)))
    found = []
    for target in TARGETS:
        every = ag.AgreeStop(target, range(1, STEPS + 1), max_set_size=1)
        four = ag.SpikeCP(
            target, tuple(range(STEPS // 4, STEPS + 1, STEPS // 4)), 1, ag.MergeConfidence(r=1)
        )
        calibrated = every.calibrate(known)
        run = engine.decide(calibrated, x[CALIBRATION:])
        if not np.array_equal(run.decisions.stop_time, calibrated.decide(test).stop_time):
            raise AssertionError("decisions of the engine that stops are not those on full scores")
        for name, rule, computed in (
            ("AgreeStop, every step", every, float(run.computed.mean()) / STEPS),
            ("SpikeCP, four checkpoints", four, None),
        ):
            splits = ag.repeat_splits(rule, scores, n_calibration=CALIBRATION, repeats=SPLITS)
            coverage, latency, set_size = (
                float(values.mean())
                for values in (splits.coverages, splits.latencies, splits.set_sizes)
            )
            found.append(Stopping(name, target, coverage, latency, set_size, computed))
            say(
                f"cnn, {name}, target {target}: stops at {found[-1].latency:.3f} T, coverage "
                f"{found[-1].coverage:.3f}"
            )
    return found


def measure_braille(folder: Path, file: Path) -> dict[str, Any]:
    """Accuracies at T on the test split, and the largest difference between the engines."""
    data = np.load(file)
    found = {}
    for name, reset in BRAILLE.items():
        events, dense = (
            ag.adapters.from_nir(folder / name, dt=1e-4, reset=reset, engine=engine)
            for engine in ("event-driven", "dense")
        )
        scores = events.score(data["x_test"], data["y_test"])
        accuracy = float((scores.log_confidence[:, -1, 0].argmax(axis=1) == data["y_test"]).mean())
        equal = ag.adapters.compare(events, dense, data["x_test"]).equal
        found[name] = {
            "reset": reset,
            "accuracy": accuracy,
            "recordings": len(scores.log_confidence),
            "engines_equal": equal,
        }
        say(f"{name}, reset {reset}: accuracy {accuracy:.3f}")
    return found


# ---- how fast


class PeerIF(nn.Module):
    """IF neurons of a library, reset to zero: `sequence` takes currents (T, batch, ...), `step` one
    step, `rest` starts again.
    """

    def __init__(self, library: str) -> None:
        super().__init__()
        self.library = library
        self.state: Any = None
        if library == "snntorch":
            import snntorch

            self.neurons: Any = snntorch.Leaky(beta=1.0, reset_mechanism="zero")
        elif library == "spikingjelly":
            from spikingjelly.activation_based import neuron

            self.neurons = neuron.IFNode(v_threshold=1.0, v_reset=0.0, step_mode="m")
        elif library == "norse":
            import norse.torch as norse

            self.neurons = norse.IAFCell()
        else:
            import sinabs.activation
            import sinabs.layers

            reset = sinabs.activation.MembraneReset()
            self.neurons = sinabs.layers.IAF(spike_fn=sinabs.activation.SingleSpike, reset_fn=reset)

    def rest(self) -> None:
        self.state = self.neurons.reset_mem() if self.library == "snntorch" else None
        if self.library == "spikingjelly":
            self.neurons.reset()
        elif self.library == "sinabs":
            self.neurons.reset_states()

    def step(self, currents: Tensor) -> Tensor:
        if self.library == "sinabs":
            return cast(Tensor, self.neurons(currents[:, None])[:, 0])
        if self.library == "spikingjelly":
            return cast(Tensor, self.neurons(currents[None])[0])
        spikes, self.state = self.neurons(currents, self.state)
        return cast(Tensor, spikes)

    def sequence(self, currents: Tensor) -> Tensor:
        if self.library == "sinabs":
            return cast(Tensor, self.neurons(currents.transpose(0, 1)).transpose(0, 1))
        if self.library == "spikingjelly":
            return cast(Tensor, self.neurons(currents))
        return torch.stack([self.step(current) for current in currents.unbind(0)])


class PeerNetwork(nn.Module):
    """The chain of a graph with the neurons of a library."""

    def __init__(self, network: GraphNetwork, library: str) -> None:
        super().__init__()
        parts = [
            PeerIF(library) if isinstance(node.part, Integrator) else node.part
            for node in network.nodes
        ]
        self.parts = nn.ModuleList(parts)

    @torch.inference_mode()
    def decide(self, x: Tensor, stepwise: bool) -> Tensor:
        """Spike counts (batch, classes) of inputs (T, batch, ...)."""
        for part in self.parts:
            if isinstance(part, PeerIF):
                part.rest()
        if stepwise:
            return torch.stack(
                [self._one(frame, lambda part, value: part.step(value)) for frame in x.unbind(0)]
            ).sum(0)
        return self._one(x, lambda part, value: part.sequence(value), folded=True).sum(0)

    def _one(
        self, x: Tensor, neurons: Callable[[PeerIF, Tensor], Tensor], folded: bool = False
    ) -> Tensor:
        for part in self.parts:
            if isinstance(part, PeerIF):
                x = neurons(part, x)
                continue
            x = part(x.flatten(0, 1)).unflatten(0, x.shape[:2]) if folded else part(x)
        return x


def bench_speed(
    path: Path, x: NDArray[np.uint8], y: Integers, note: Callable[[str], None]
) -> list[BenchRecord]:
    """Decisions per second: ours at T and early, the libraries at T, in turn."""
    network = build_network(read_source(path), None, "graph")
    engine = ag.adapters.from_nir(path)
    rule = ag.AgreeStop(TARGETS[0], range(1, STEPS + 1), max_set_size=1).calibrate(
        engine.score(x[:CALIBRATION], y[:CALIBRATION])
    )
    timed = ag.events.Events.from_dense(x[CALIBRATION : CALIBRATION + TIMED])
    expected = engine.score(timed).log_confidence[:, -1, 0].argmax(axis=1)
    version = version_of("agreestop")
    systems = [
        TimedSystem(
            "nir-full",
            OURS,
            version,
            "event-driven, at T",
            lambda: ag.engines.run_to_end(engine.engine, timed),
            TIMED,
        ),
        TimedSystem(
            "nir-early",
            OURS,
            version,
            f"event-driven, AgreeStop at {TARGETS[0]}",
            lambda: engine.decide(rule, timed),
            TIMED,
        ),
    ]
    frames = torch.from_numpy(timed.to_dense()).transpose(0, 1).float().contiguous()
    batches = frames.split(BATCH, 1)  # type: ignore[no-untyped-call]
    for library in LIBRARIES:
        try:
            with quiet():
                peer = PeerNetwork(network, library)
                agree = float(
                    (peer.decide(batches[0], True).argmax(1).numpy() == expected[:BATCH]).mean()
                )
        except ImportError as error:
            note(f"{library} is left out ({error}).")
            continue
        note(f"{library}: {agree:.0%} of the answers at T are those of ours.")
        forms = {"layer by layer": False, "step by step": True}
        trials = {
            name: FormTrial(partial(partial, peer.decide, batches[0], way))
            for name, way in forms.items()
        }
        chosen = fastest_form(trials).form or "layer by layer"
        work = partial(_run_batches, peer, batches, forms[chosen])
        systems.append(TimedSystem("nir-full", library, version_of(library), chosen, work, TIMED))
    records = measure(systems, Conditions(f"N-MNIST, {CNN}", DECISIONS, BATCH), REPEATS)
    peers = [record for record in records if record.system != OURS]
    share = float(engine.decide(rule, timed).computed.mean()) / STEPS
    return [_finished(record, peers, share) for record in records]


def _run_batches(network: PeerNetwork, batches: Sequence[Tensor], stepwise: bool) -> None:
    for batch in batches:
        network.decide(batch, stepwise)


def _finished(record: BenchRecord, peers: list[BenchRecord], share: float) -> BenchRecord:
    if record.system != OURS:
        return record
    named = replace(
        record, wanted=WANTED[record.work], computed=share if record.work == "nir-early" else None
    )
    return compared(named, peers)


def run_nir(
    networks: Path,
    n_mnist: Path | None,
    braille: Path | None,
    output: Path,
    speed: Path | None,
    quick: bool = False,
) -> None:
    """Measure what the given data allow, and write it."""
    found: dict[str, Any] = {
        "networks": "github.com/neuromorphs/NIR, paper/02_cnn and paper/03_rnn"
    }
    if braille is not None:
        found["braille"] = measure_braille(networks, braille)
    if n_mnist is not None:
        x, y = load_recordings(n_mnist, CALIBRATION + TIMED if quick else RECORDINGS)
        if not quick:
            found["n_mnist"] = measure_cnn(networks / CNN, x, y)
        if speed is not None:
            torch.set_num_threads(cores())
            notes: list[str] = []

            def note(text: str) -> None:
                say(text)
                notes.append(text)

            records = bench_speed(networks / CNN, x, y, note)
            for record in records:
                times = (
                    ""
                    if record.times_fastest_peer is None
                    else f", {record.times_fastest_peer:.1f} × {record.fastest_peer}"
                )
                say(
                    f"{record.work}, {record.system}, {record.form}: {record.median:.1f} "
                    f"decisions/s{times}"
                )
            save_benchmark(
                speed, {**describe_run((*PACKAGES, *LIBRARIES)), "notes": notes}, records
            )
    if not quick:
        write_results(output, {**describe_run(), **found})
