"""Networks of snnTorch, SpikingJelly, Norse and sinabs: the libraries' own outputs, really stopped,
and no state that leaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="adapters need PyTorch")
from torch import Tensor, nn

import agreestop as ag
from agreestop.adapters import AdaptedEngine
from agreestop.common import InputError

from .peers import library

STEPS, SENSORS, HIDDEN, CLASSES = 16, 6, 12, 3


@dataclass(frozen=True)
class Case:
    """Networks of a library, as its users write them.

    full: outputs (n, T, C) of a network for inputs (n, T, sensors), by the library's own means.
    """

    adapter: str
    build: Callable[[], nn.Module]
    full: Callable[[nn.Module, Tensor], Tensor]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def spikes(self) -> bool:
        return self.options.get("output", "spikes") == "spikes"

    def networks(self) -> list[nn.Module]:
        """Two networks with weights that make their neurons spike."""
        torch.manual_seed(0)
        return [self.build().eval() for _ in range(2)]

    def engine(self, networks: list[nn.Module]) -> AdaptedEngine:
        return getattr(ag.adapters, f"from_{self.adapter}")(networks, **self.options)


def linear(inputs: int, outputs: int, scale: float) -> nn.Linear:
    """A linear layer with large weights, more of them positive, and a small drive of its own."""
    layer = nn.Linear(inputs, outputs)
    with torch.no_grad():
        layer.weight.add_(0.3 / inputs**0.5).mul_(scale)
        layer.bias.abs_()
    return layer


def stepped(network: Any, x: Tensor) -> list[Any]:
    return [network(x[:, step]) for step in range(x.shape[1])]


# ---- snnTorch


def snn_hidden() -> nn.Module:
    snn = library("snntorch")
    first, last = (
        snn.Leaky(beta=0.8, init_hidden=True),
        snn.Synaptic(alpha=0.5, beta=0.8, init_hidden=True, output=True),
    )
    return nn.Sequential(linear(SENSORS, HIDDEN, 3), first, linear(HIDDEN, CLASSES, 3), last)


def snn_hidden_full(network: nn.Module, x: Tensor) -> list[Any]:
    library("snntorch.utils").reset(network)
    return stepped(network, x)


class SnnByHand(nn.Module):
    """One step with states that are passed by hand. One neuron module serves both layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.neuron = (
            linear(SENSORS, CLASSES, 4),
            linear(CLASSES, CLASSES, 4),
            library("snntorch").Leaky(beta=0.7),
        )

    def forward(self, x: Tensor, first: Any, last: Any) -> tuple[Any, ...]:
        spikes, first = self.neuron(self.first(x), first)
        spikes, last = self.neuron(self.last(spikes), mem=last)
        return spikes, first, last


def snn_by_hand_full(network: nn.Module, x: Tensor) -> Tensor:
    first = last = torch.zeros(len(x), CLASSES)
    outputs = []
    for step in range(x.shape[1]):
        spikes, first, last = network(x[:, step], first, last)
        outputs.append(spikes)
    return torch.stack(outputs, 1)


class SnnLoop(nn.Module):
    """Several steps (T, batch, sensors), with a loop and first states of its own."""

    def __init__(self) -> None:
        super().__init__()
        snn = library("snntorch")
        self.first, self.last = linear(SENSORS, HIDDEN, 3), linear(HIDDEN, CLASSES, 4)
        self.middle, self.end = (
            snn.Alpha(alpha=0.9, beta=0.7),
            snn.RLeaky(beta=0.8, linear_features=CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        excited, inhibited, potential = self.middle.init_alpha()
        spikes, read_out = self.end.init_rleaky()
        outputs = []
        for step in range(x.shape[0]):
            found, excited, inhibited, potential = self.middle(
                self.first(x[step]), excited, inhibited, potential
            )
            spikes, read_out = self.end(self.last(found), spikes, read_out)
            outputs.append(spikes)
        return torch.stack(outputs)


# ---- SpikingJelly


def jelly(mode: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        neuron = library("spikingjelly.activation_based.neuron")
        network = nn.Sequential(
            linear(SENSORS, HIDDEN, 4),
            neuron.LIFNode(),
            linear(HIDDEN, CLASSES, 5),
            neuron.ParametricLIFNode(),
        )
        library("spikingjelly.activation_based.functional").set_step_mode(network, mode)
        return network

    return build


def jelly_full(network: nn.Module, x: Tensor) -> Tensor:
    library("spikingjelly.activation_based.functional").reset_net(network)
    if network[1].step_mode == "m":  # type: ignore[index]
        return network(x.transpose(0, 1)).transpose(0, 1)
    return torch.stack(stepped(network, x), 1)


# ---- Norse


def norse_cells() -> nn.Module:
    norse = library("norse.torch")
    return norse.SequentialState(
        linear(SENSORS, HIDDEN, 60), norse.LIFCell(), linear(HIDDEN, CLASSES, 80), norse.LIFCell()
    )


def norse_cells_full(network: Any, x: Tensor) -> Tensor:
    state, outputs = None, []
    for step in range(x.shape[1]):
        spikes, state = network(x[:, step], state)
        outputs.append(spikes)
    return torch.stack(outputs, 1)


def norse_in_time() -> nn.Module:
    norse = library("norse.torch")
    return norse.SequentialState(
        norse.Lift(linear(SENSORS, HIDDEN, 60)),
        norse.LIF(),
        linear(HIDDEN, CLASSES, 40),
        norse.LI(),
    )


class NorseLoop(nn.Module):
    """Several steps (T, batch, sensors), with a loop over recurrent cells."""

    def __init__(self) -> None:
        super().__init__()
        norse = library("norse.torch")
        self.first, self.middle, self.end = (
            linear(SENSORS, HIDDEN, 40),
            norse.LIFRecurrentCell(HIDDEN, HIDDEN),
            norse.LIFCell(),
        )
        self.last = linear(HIDDEN, CLASSES, 80)

    def forward(self, x: Tensor) -> Tensor:
        middle = end = None
        outputs = []
        for step in range(len(x)):
            spikes, middle = self.middle(self.first(x[step]), middle)
            spikes, end = self.end(self.last(spikes), end)
            outputs.append(spikes)
        return torch.stack(outputs)


# ---- sinabs


def sinabs_layers() -> nn.Module:
    layers = library("sinabs.layers")
    return nn.Sequential(
        linear(SENSORS, HIDDEN, 6),
        layers.LIF(tau_mem=8.0),
        linear(HIDDEN, CLASSES, 3),
        layers.IAF(),
    )


def sinabs_squeezed() -> nn.Module:
    layers = library("sinabs.layers")
    last = layers.LIFSqueeze(tau_mem=8.0, tau_syn=4.0, batch_size=7)
    network = nn.Sequential(
        linear(SENSORS, HIDDEN, 2),
        layers.IAFSqueeze(batch_size=7),
        linear(HIDDEN, CLASSES, 9),
        last,
    )
    return library("sinabs").network.Network(spiking_model=network)


def sinabs_squeezed_full(network: Any, x: Tensor) -> Tensor:
    library("sinabs").reset_states(network)
    for layer in (network.spiking_model[1], network.spiking_model[3]):
        layer.batch_size = len(x)
    found = network(x.flatten(0, 1)).unflatten(0, x.shape[:2])
    for layer in (network.spiking_model[1], network.spiking_model[3]):
        layer.batch_size = 7
    return found


def sinabs_recurrent() -> nn.Module:
    layers = library("sinabs.layers")
    middle = layers.LIFRecurrent(tau_mem=8.0, rec_connect=nn.Linear(HIDDEN, HIDDEN))
    return nn.Sequential(
        linear(SENSORS, HIDDEN, 6),
        middle,
        linear(HIDDEN, CLASSES, 30),
        layers.ALIF(tau_mem=8.0, tau_adapt=9.0),
    )


def sinabs_full(network: nn.Module, x: Tensor) -> Tensor:
    library("sinabs").reset_states(network)
    return network(x)


class SinabsUnflattened(nn.Module):
    """Layers that flatten and unflatten batch and time, for a fixed batch."""

    def __init__(self) -> None:
        super().__init__()
        layers = library("sinabs.layers")
        self.network = nn.Sequential(
            layers.FlattenTime(), linear(SENSORS, CLASSES, 6), layers.UnflattenTime(7), layers.IAF()
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


def sinabs_unflattened_full(network: Any, x: Tensor) -> Tensor:
    library("sinabs").reset_states(network)
    network.network[2].batch_size = len(x)
    found = network(x)
    network.network[2].batch_size = 7
    return found


def in_time(network: nn.Module, x: Tensor) -> Tensor:
    """The outputs of a network that takes (T, batch, ...)."""
    found = network(x.transpose(0, 1))
    return (found[0] if isinstance(found, tuple) else found).transpose(0, 1)


CASES = {
    "snntorch hidden": Case(
        "snntorch",
        snn_hidden,
        lambda net, x: torch.stack([one[0] for one in snn_hidden_full(net, x)], 1),
    ),
    "snntorch potentials": Case(
        "snntorch",
        snn_hidden,
        lambda net, x: torch.stack([one[-1] for one in snn_hidden_full(net, x)], 1),
        {"output": "logits"},
    ),
    "snntorch by hand": Case("snntorch", SnnByHand, snn_by_hand_full),
    "snntorch loop": Case("snntorch", SnnLoop, in_time, {"time_axis": 0}),
    "spikingjelly single-step": Case("spikingjelly", jelly("s"), jelly_full),
    "spikingjelly multi-step": Case("spikingjelly", jelly("m"), jelly_full),
    "norse cells": Case("norse", norse_cells, norse_cells_full),
    "norse in time": Case("norse", norse_in_time, in_time, {"output": "logits"}),
    "norse loop": Case("norse", NorseLoop, in_time, {"time_axis": 0}),
    "sinabs": Case("sinabs", sinabs_layers, sinabs_full),
    "sinabs squeezed": Case("sinabs", sinabs_squeezed, sinabs_squeezed_full),
    "sinabs recurrent": Case("sinabs", sinabs_recurrent, sinabs_full),
    "sinabs unflattened": Case(
        "sinabs", SinabsUnflattened, sinabs_unflattened_full, {"time_axis": 1}
    ),
}


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    chosen = CASES[request.param]
    library(chosen.adapter)
    yield chosen


def inputs(n: int, seed: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    rates = 0.15 + 0.5 * (np.arange(SENSORS) % CLASSES == rng.integers(CLASSES, size=n)[:, None])
    return (rng.random((n, STEPS, SENSORS)) < rates[:, None]).astype(np.float32)


def evidence(case: Case, network: nn.Module, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What the library itself computes, (n, T, C): spike counts so far, or logits."""
    with torch.no_grad():
        found = case.full(network, torch.from_numpy(x))
    if case.spikes:
        assert found.sum() > 0.05 * found.numel(), "the case must spike"
    return (found.cumsum(1) if case.spikes else found).numpy()


def test_read_outs_are_those_of_the_library(case: Case) -> None:
    networks, x = case.networks(), inputs(9)
    scores = case.engine(networks).score(x)
    assert scores.log_confidence.shape == (9, STEPS, 2, CLASSES)
    for member, network in enumerate(networks):
        expected, found = (
            ag.log_confidence(evidence(case, network, x)[:, :, None]),
            scores.log_confidence[:, :, member : member + 1],
        )
        assert (
            np.array_equal(found, expected)
            if case.spikes
            else np.allclose(found, expected, atol=1e-5)
        )


def test_decisions_are_those_on_full_scores_and_cost_less(case: Case) -> None:
    engine, rule = (
        case.engine(case.networks()),
        ag.AgreeStop(target=0.7, checkpoints=range(1, STEPS + 1), max_set_size=1),
    )
    calibrated = rule.calibrate(engine.score(inputs(60)), labels="final")
    new = inputs(40, 1)
    run, expected = (
        engine.decide(calibrated, new, batch_size=17),
        calibrated.decide(engine.score(new)),
    )
    assert np.array_equal(run.decisions.stop_index, expected.stop_index) and np.array_equal(
        run.decisions.sets, expected.sets
    )
    assert (
        run.computed == np.minimum(8 * -(-run.decisions.stop_time // 8), STEPS)
    ).all()  # whole chunks of 8 steps
    assert run.computed.mean() < STEPS


def test_no_input_meets_the_state_of_another(case: Case) -> None:
    """Inputs in turn and alone, in batches of other sizes, and two live inputs step by step in
    turn.
    """
    networks = case.networks()
    engine, x = case.engine(networks), inputs(6)
    together = engine.score(x).log_confidence
    for rows in ([4], [0, 3], [4]):
        assert np.allclose(engine.score(x[rows]).log_confidence, together[rows], atol=1e-5)
    lives = [engine.engine.live() for _ in range(2)]
    for step in range(STEPS):
        for row, live in enumerate(lives):
            found = ag.log_confidence(live.push(frame=x[row, step])[None, None])[0, 0]
            assert np.allclose(found, together[row, step], atol=1e-5)


def test_a_network_is_left_as_it_was(case: Case) -> None:
    networks, x = case.networks(), inputs(7)
    engine = case.engine(networks)
    before, digest = evidence(case, networks[0], x), engine.digest
    with torch.no_grad():
        case.full(networks[1], torch.from_numpy(x))  # a run that leaves its state in the network
    used = engine.score(inputs(5, 1))
    assert used.ensemble_digest == digest == engine.digest == case.engine(case.networks()).digest
    assert np.array_equal(evidence(case, networks[0], x), before)
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in networks[0].modules()
    )


def test_an_input_that_ends_early_keeps_its_last_read_out(case: Case) -> None:
    engine, x = case.engine(case.networks()), inputs(4)
    found, whole = (
        engine.score(x, lengths=[3, 16, 9, 3]).log_confidence,
        engine.score(x).log_confidence,
    )
    for row, length in enumerate([3, 16, 9, 3]):
        assert np.allclose(found[row, :length], whole[row, :length], atol=1e-5)
        assert (found[row, length:] == found[row, length - 1]).all()


def test_other_networks_and_axes_are_refused() -> None:
    library("snntorch")
    with pytest.raises(InputError, match="network 1, a Linear, holds no neurons"):
        ag.adapters.from_snntorch([snn_hidden(), nn.Linear(2, 2)])
    for axis in (2, True):
        with pytest.raises(InputError, match=f"time_axis is {axis}: choose 0"):
            ag.adapters.from_snntorch([snn_hidden()], time_axis=axis)

    class FixedLoop(SnnLoop):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.expand(5, *x.shape[1:]))

    with pytest.raises(InputError, match="for one step, which has no time axis 0"):
        ag.adapters.from_snntorch([FixedLoop()], time_axis=0).score(inputs(2))


def test_a_time_axis_that_is_not_given_is_named() -> None:
    library("snntorch")
    for wrong in (None, 1):
        with pytest.raises(InputError, match="for 5 inputs"):
            ag.adapters.from_snntorch([SnnLoop()], time_axis=wrong).score(inputs(5))


def snn_reset() -> Callable[[nn.Module], None]:
    return library("snntorch.utils").reset


def jelly_reset() -> Callable[[nn.Module], None]:
    return library("spikingjelly.activation_based.functional").reset_net


class ResetFirst(nn.Module):
    """A network that resets its neurons before each run over time, (T, batch, sensors)."""

    def __init__(self, network: nn.Module, reset: Callable[[nn.Module], None], loop: bool) -> None:
        super().__init__()
        self.network, self._reset, self._loop = network, reset, loop

    def forward(self, x: Tensor) -> Any:
        self._reset(self.network)
        return torch.stack([self.network(x_t)[0] for x_t in x]) if self._loop else self.network(x)


@pytest.mark.parametrize(
    ("adapter", "build", "reset"),
    [("snntorch", snn_hidden, snn_reset), ("spikingjelly", jelly("m"), jelly_reset)],
)
def test_a_warning_says_that_steps_at_once_give_something_else(
    adapter: str, build: Any, reset: Any
) -> None:
    library(adapter)
    network = ResetFirst(build(), reset(), adapter == "snntorch")
    engine = getattr(ag.adapters, f"from_{adapter}")([network], time_axis=0)
    with pytest.warns(UserWarning, match="network 0 gives other outputs step"):
        engine.score(inputs(20))


def test_a_potential_that_the_network_keeps_itself_is_refused() -> None:
    snn = library("snntorch")

    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.neuron, self.mem = (
                linear(SENSORS, CLASSES, 3),
                snn.Leaky(beta=0.8),
                torch.zeros(()),
            )

        def forward(self, x: Tensor) -> Tensor:
            spikes, self.mem = self.neuron(self.first(x), self.mem)
            return spikes

    with pytest.raises(InputError, match="module 0 gives another output"):
        ag.adapters.from_snntorch([Keeping()]).score(inputs(5))


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "snntorch", None)
    with pytest.raises(ImportError, match="needs snntorch"):
        ag.adapters.from_snntorch([nn.Identity()])
