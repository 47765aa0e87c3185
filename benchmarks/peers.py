"""Peers of the benchmark: K members of the same architecture in other libraries, behind the same
verbs.

    members = PeerEnsemble(peer, form, weights, device)
    inputs = members.prepare(events)                 booleans (n, T, inputs), once, in the layout of
                                                     the library
    members.decide(inputs)                           spike counts (n, K, C) at T
    members.begin(); members.step(frame)             one live input: spikes (K, C) of all members in
                                                     this step
    members.train_step(inputs, labels)               forward, log-loss of the counts at 8 read-out
                                                     times, backward, Adam

Each library uses its plain leaky integrate-and-fire neuron. It has no synapse and no refractory
time, so it has less to compute than ours. The weights are those of our members, without biases.
Which form of use is fastest depends on workload and device. All idiomatic forms are tried, and the
benchmark uses the fastest:

    six networks        one network for each member, run one after the other
    one wide network    the members side by side in one network with K times the neurons, its
                        read-out in K groups
    layer by layer      a layer takes the whole sequence at once: one matrix product, then the
                        neurons
    step by step        the whole network takes one step after another, as in the tutorials of
                        snnTorch and Norse
    compiled, graph     torch.compile and a CUDA graph, which SpikingJelly's own trainer offers; on
                        a GPU
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, cast, final

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from agreestop.networks.architectures import SpikingNetwork

from .results import version_of

MEMBRANE_TIME = 8.0
LEARNING_RATE = 1e-4  # so small that the repeats hardly change the members and how often they spike
READOUTS = 8
WARM_UPS = 3  # runs before a CUDA graph is captured, as in SpikingJelly's trainer


class Neurons(Protocol):
    """A layer of a library's neurons. time_axis: the axis of time in a sequence."""

    time_axis: int

    def rest(self) -> None:
        """Reset the state."""
        ...

    def sequence(self, currents: Tensor) -> Tensor:
        """Spikes of a whole sequence, from rest."""
        ...

    def step(self, currents: Tensor) -> Tensor:
        """Spikes of the next step, currents (batch, neurons)."""
        ...


@final
class SnnTorchNeurons(nn.Module):
    """snnTorch: Leaky, which takes and returns its membrane; over a sequence the loop of its
    tutorials.
    """

    time_axis = 0

    def __init__(self) -> None:
        super().__init__()
        import snntorch

        self.neurons = snntorch.Leaky(beta=1 - 1 / MEMBRANE_TIME)
        self.membrane: Tensor | None = None

    def rest(self) -> None:
        self.membrane = self.neurons.reset_mem()

    def step(self, currents: Tensor) -> Tensor:
        spikes, self.membrane = self.neurons(currents, self.membrane)
        return cast(Tensor, spikes)

    def sequence(self, currents: Tensor) -> Tensor:
        return torch.stack([self.step(current) for current in currents.unbind(0)])


@final
class SpikingJellyNeurons(nn.Module):
    """SpikingJelly: LIFNode, multi-step over a sequence, which picks the fastest kernels of the
    device; single-step for a live input.
    """

    time_axis = 0

    def __init__(self) -> None:
        super().__init__()
        from spikingjelly.activation_based import neuron, surrogate

        self.neurons = neuron.LIFNode(
            MEMBRANE_TIME,
            False,
            v_reset=None,
            surrogate_function=surrogate.ATan(),
            detach_reset=True,
        )

    def rest(self) -> None:
        self.neurons.reset()

    def step(self, currents: Tensor) -> Tensor:
        self.neurons.step_mode = "s"
        return cast(Tensor, self.neurons(currents))

    def sequence(self, currents: Tensor) -> Tensor:
        self.neurons.step_mode = "m"
        return cast(Tensor, self.neurons(currents))


@final
class NorseNeurons(nn.Module):
    """Norse: LIFBoxCell, its neuron without a synaptic current; Norse's own Lift runs it
    over time.
    """

    time_axis = 0

    def __init__(self) -> None:
        super().__init__()
        import norse.torch as norse

        # v += (x - v) / τ with threshold 1/τ: a spike raises the membrane by its weight, as in the
        # other libraries
        rate = torch.tensor(1 / MEMBRANE_TIME)
        self.neurons = norse.LIFBoxCell(
            norse.LIFBoxParameters(tau_mem_inv=rate, v_th=rate.clone()), dt=1.0
        )
        self.lifted = norse.Lift(self.neurons)
        self.state: Any = None

    def rest(self) -> None:
        self.state = None

    def step(self, currents: Tensor) -> Tensor:
        spikes, self.state = self.neurons(currents, self.state)
        return cast(Tensor, spikes)

    def sequence(self, currents: Tensor) -> Tensor:
        return cast(Tensor, self.lifted(currents)[0])


@final
class SinabsNeurons(nn.Module):
    """sinabs: LIF on (batch, time, neurons), with at most one spike per step."""

    time_axis = 1

    def __init__(self) -> None:
        super().__init__()
        import sinabs.layers
        from sinabs.activation import SingleSpike

        self.neurons = sinabs.layers.LIF(MEMBRANE_TIME, spike_fn=SingleSpike, norm_input=False)
        self.neurons.tau_mem.requires_grad_(False)  # the other libraries train only weights

    def rest(self) -> None:
        self.neurons.reset_states()

    def step(self, currents: Tensor) -> Tensor:
        return cast(Tensor, self.neurons(currents[:, None])[:, 0])

    def sequence(self, currents: Tensor) -> Tensor:
        return cast(Tensor, self.neurons(currents))


@dataclass(frozen=True)
class Peer:
    """A library: its name for pip, its neurons, whether its tutorials go step by step, and whether
    it offers compiled forms.
    """

    name: str
    neurons: Callable[[], Neurons]
    stepwise: bool = False
    compiles: bool = False

    @property
    def version(self) -> str:
        return version_of(self.name)


PEERS = (
    Peer("snntorch", SnnTorchNeurons, stepwise=True),
    Peer("spikingjelly", SpikingJellyNeurons, compiles=True),
    Peer("norse", NorseNeurons, stepwise=True),
    Peer("sinabs", SinabsNeurons),
)


@dataclass(frozen=True)
class FoundPeers:
    """The peers that are installed, and a sentence about those that are not."""

    peers: tuple[Peer, ...]
    missing: str


def find_peers(peers: Sequence[Peer] = PEERS) -> FoundPeers:
    """The peers that are installed."""
    found, missing = [], []
    for peer in peers:
        try:
            with _quiet():
                # some libraries load their parts at the first call
                peer.neurons().sequence(torch.zeros(2, 1, 1))
        except ImportError as error:
            missing.append(f"{peer.name} ({error})")
        else:
            found.append(peer)
    advice = "`make bench` installs all peers in .venv-peers; they are the extra agreestop[bench]"
    return FoundPeers(
        tuple(found),
        f"left out, since they cannot be imported: {', '.join(missing)}. {advice}."
        if missing
        else "",
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the messages that libraries print while they are loaded."""
    log = logging.getLogger("torch._library.triton")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


@dataclass(frozen=True, eq=False)
class Weights:
    """Synapses of K members: into the hidden layer (K, inputs, H) and into the read-out
    (K, H, C).
    """

    hidden: Tensor
    readout: Tensor

    @classmethod
    def of(cls, network: SpikingNetwork) -> Weights:
        """The weights of our members, which must have one hidden layer."""
        hidden, readout = (layer.synapses.weight.detach().cpu().clone() for layer in network.layers)
        return cls(hidden, readout)

    @property
    def members(self) -> int:
        return len(self.hidden)


def _linear(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[0], weight.shape[1], bias=False)
    with torch.no_grad():
        layer.weight.copy_(weight.T)
    return layer


@final
class _Grouped(nn.Module):
    """K products side by side: (..., K · H) with weights (K, H, C) to (..., K · C)."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())

    def forward(self, x: Tensor) -> Tensor:
        members, hidden, classes = self.weight.shape
        rows = x.reshape(-1, members, hidden).transpose(0, 1)
        return (
            torch.bmm(rows, self.weight).transpose(0, 1).reshape(*x.shape[:-1], members * classes)
        )


@final
class _Network(nn.Module):
    """Synapses, neurons, synapses, neurons: one member, or all of them side by side."""

    def __init__(
        self, synapses: tuple[nn.Module, nn.Module], neurons: Callable[[], Neurons]
    ) -> None:
        super().__init__()
        self.to_hidden, self.to_readout = synapses
        self.hidden, self.readout = neurons(), neurons()

    def rest(self) -> None:
        self.hidden.rest()
        self.readout.rest()

    def forward(self, x: Tensor) -> Tensor:
        """Read-out spikes of a sequence, layer by layer."""
        return self.readout.sequence(self.to_readout(self.hidden.sequence(self.to_hidden(x))))

    def step(self, frame: Tensor) -> Tensor:
        """Read-out spikes of one step."""
        return self.readout.step(self.to_readout(self.hidden.step(self.to_hidden(frame))))

    def stepwise(self, x: Tensor) -> Tensor:
        """Read-out spikes of a sequence, step by step."""
        axis = self.hidden.time_axis
        return torch.stack([self.step(frame) for frame in x.unbind(axis)], axis)


@dataclass(frozen=True)
class Form:
    """One way to use a library. runs: "eager", "compiled" or "graph"."""

    wide: bool = False
    stepwise: bool = False
    runs: str = "eager"

    @property
    def warm_ups(self) -> int:
        """Runs until it has its full speed: a graph is captured after a few runs, and compiled code
        may be specialised again.
        """
        return {"eager": 1, "compiled": 3, "graph": WARM_UPS + 2}[self.runs]

    def __str__(self) -> str:
        words = [
            "one wide network" if self.wide else "six networks",
            "step by step" if self.stepwise else "layer by layer",
        ]
        return ", ".join(
            words + {"eager": [], "compiled": ["torch.compile"], "graph": ["CUDA graph"]}[self.runs]
        )


def forms_of(peer: Peer, device: str, plain: bool = False) -> list[Form]:
    """The forms to try for decisions and training; plain=True leaves out torch.compile, which takes
    minutes.
    """
    forms = [
        Form(wide, stepwise)
        for wide in (False, True)
        for stepwise in ((False, True) if peer.stepwise else (False,))
    ]
    if peer.compiles and device.startswith("cuda"):
        # only the wide network is compiled: it has the fewest kernels, and six networks would take
        # six times as long to compile
        forms += [Form(False, runs="graph"), Form(True, runs="graph")] + [
            Form(True, runs="compiled")
        ] * (not plain)
    return forms


def live_forms() -> list[Form]:
    """The forms to try for one live input."""
    return [Form(wide, stepwise=True) for wide in (False, True)]


@final
class PeerEnsemble:
    """K members in a peer's library, used in one form."""

    def __init__(self, peer: Peer, form: Form, weights: Weights, device: str = "cpu") -> None:
        self._form, self._device, self._members = form, device, weights.members
        if form.wide:
            pairs: list[tuple[nn.Module, nn.Module]] = [
                (_linear(weights.hidden.transpose(0, 1).flatten(1)), _Grouped(weights.readout))
            ]
        else:
            pairs = [
                (_linear(hidden), _linear(readout))
                for hidden, readout in zip(weights.hidden, weights.readout, strict=True)
            ]
        with _quiet():
            self._networks = [_Network(pair, peer.neurons).to(device) for pair in pairs]
        self._axis = self._networks[0].hidden.time_axis
        self._runs: list[Callable[[Tensor], Tensor]] = [
            network.stepwise
            if form.stepwise
            else torch.compile(network)
            if form.runs == "compiled"
            else network
            for network in self._networks
        ]
        self._optimisers = [
            torch.optim.Adam(network.parameters(), lr=LEARNING_RATE) for network in self._networks
        ]
        self._count: Callable[[Tensor], Tensor] = self._counts
        self._backward: Callable[[Tensor, Tensor], Tensor] = self._gradients
        if form.runs == "graph":
            from spikingjelly.activation_based._cuda_graph import StaticCudaGraph

            self._count, self._backward = (
                StaticCudaGraph(self._counts, WARM_UPS),
                StaticCudaGraph(self._gradients, WARM_UPS),
            )
        self._times: Tensor | None = None

    def prepare(self, events: NDArray[Any]) -> Tensor:
        """Inputs (n, T, ...) in float32, in the layout of this library, on the device: nothing is
        left to copy or to convert.
        """
        x = torch.from_numpy(events).flatten(2)
        return (x if self._axis else x.transpose(0, 1)).contiguous().to(self._device).float()

    @torch.inference_mode()
    def decide(self, inputs: Tensor) -> Tensor:
        """Spike counts (n, K, C) of every member at T."""
        return self._count(inputs).cpu()

    @torch.inference_mode()
    def begin(self) -> None:
        """Start on one live input."""
        for network in self._networks:
            network.rest()

    @torch.inference_mode()
    def step(self, frame: Tensor) -> Tensor:
        """Spikes (K, C) of every member in the next step of one live input (1, inputs)."""
        frame = frame.to(self._device)
        return (
            torch.cat([network.step(frame) for network in self._networks])
            .view(self._members, -1)
            .cpu()
        )

    def train_step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """One training step for every member; returns the sum of their losses, on the device."""
        truth = labels.to(self._device)
        if self._times is None:
            steps = inputs.shape[self._axis]
            times = torch.linspace(steps / READOUTS, steps, min(READOUTS, steps)).round().long() - 1
            self._times = times.clamp(min=0).to(self._device)
        for optimiser in self._optimisers:
            optimiser.zero_grad(set_to_none=self._form.runs != "graph")
        loss = self._backward(inputs, truth)
        for optimiser in self._optimisers:
            optimiser.step()
        return loss

    def _counts(self, x: Tensor) -> Tensor:
        counts = []
        for network, run in zip(self._networks, self._runs, strict=True):
            network.rest()
            counts.append(run(x).sum(self._axis))
        return torch.stack(counts, 1).view(len(counts[0]), self._members, -1)

    def _gradients(self, x: Tensor, truth: Tensor) -> Tensor:
        assert self._times is not None
        total = torch.zeros((), device=x.device)
        for network, run in zip(self._networks, self._runs, strict=True):
            network.rest()
            counts = run(x).cumsum(self._axis).index_select(self._axis, self._times)
            if self._axis:
                counts = counts.transpose(0, 1)
            chosen = counts.reshape(
                len(self._times), len(truth), self._members if self._form.wide else 1, -1
            )
            logits = chosen.transpose(1, 2).flatten(0, 2)
            wanted = truth.repeat(chosen.shape[0] * chosen.shape[2])
            loss = nn.functional.cross_entropy(logits, wanted, reduction="sum") / (
                len(self._times) * len(truth)
            )
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total
