"""The event-driven engine against the dense one where one expects neither to be tested: sizes of
one, no spikes, only spikes, tiny and huge weights, a potential that just reaches its threshold.

Weights are integers of at most 127 times a power of two, and each output has one of 127. So every
precision holds them exactly, and sums are exact in any order: the spikes must be the same to the
last bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import agreestop as ag
from agreestop.common import Booleans
from agreestop.engines import Dense, EventDriven
from agreestop.networks import Architecture, Convolutional, FullyConnected, Neuron, SpikingNetwork
from tests.engines.test_event_driven import exactly
from tests.networks.plain import generator

pytest.importorskip(
    "numba", reason="numba, which compiles the event-driven engine, is not installed"
)

PRECISIONS = ("float32", "bfloat16", "int8")


def network_of(config: Architecture, unit: float, seed: int) -> SpikingNetwork:
    """A network in evaluation whose weights every precision holds."""
    network, draws = SpikingNetwork(config, generator(seed)).eval(), np.random.default_rng(seed)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if name.endswith("synapses.weight"):
                whole = torch.from_numpy(draws.integers(-127, 128, tuple(weight.shape)))
                (whole[:, :, 0, 0, 0] if whole.ndim == 5 else whole[:, 0]).fill_(127)
                weight.copy_(whole * unit)
    return network


def inputs_of(
    network: SpikingNetwork, rows: int, steps: int, rate: float, seed: int
) -> NDArray[Any]:
    draws = np.random.default_rng(seed)
    spikes = draws.random((rows, steps, *network.config.input_shape)) < rate
    return (
        spikes * draws.integers(-4, 5, spikes.shape) / np.float32(4)
        if network.config.real_input
        else spikes
    )


def check_every_way(
    network: SpikingNetwork, inputs: NDArray[Any], steps: int, expected: Booleans
) -> None:
    """Whole, from sparse inputs, in chunks with rows that leave, and live: the spikes (rows, steps,
    K, C) expected.

    Each precision is compiled by itself, for seconds, so bfloat16, which reads weights as float32
    does, runs in one way only.
    """
    last = len(inputs) - 1
    for precision in PRECISIONS:
        engine = EventDriven(network, precision, threads=2)
        assert np.array_equal(engine.begin(inputs).advance(steps), expected), precision
        if precision == "bfloat16":
            continue
        batch = engine.begin(ag.events.Events.from_dense(inputs))
        first = batch.advance(max(1, steps // 3))
        assert np.array_equal(first, expected[:, : first.shape[1]]), precision
        batch.keep(np.arange(len(inputs)) == last)
        if steps > first.shape[1]:
            assert np.array_equal(
                batch.advance(steps - first.shape[1]), expected[[last], first.shape[1] :]
            ), precision
        live = engine.live()
        for t in range(steps):
            counts = live.push(frame=inputs[last, min(t, inputs.shape[1] - 1)])
        assert np.array_equal(counts, expected[last].sum(0)), precision


@exactly
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    members=st.integers(1, 3),
    inputs=st.sampled_from([1, 2, 63, 64, 65, 140]),
    hidden=st.lists(st.sampled_from([1, 16, 17, 64, 129]), max_size=2),
    classes=st.sampled_from([1, 2, 64, 65]),
    rows=st.integers(1, 3),
    steps=st.sampled_from([1, 2, 17, 65]),
    rate=st.sampled_from([0.0, 0.1, 0.4, 1.0]),
    exponent=st.sampled_from([-100, -20, -6, 2, 100]),
    spikes_needed=st.sampled_from([1, 60]),
    real=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_fully_connected_layers(
    members: int,
    inputs: int,
    hidden: list[int],
    classes: int,
    rows: int,
    steps: int,
    rate: float,
    exponent: int,
    spikes_needed: int,
    real: bool,
    seed: int,
) -> None:
    neuron = Neuron(threshold=min(1e4, 2.0**exponent * spikes_needed))
    config = FullyConnected(
        (inputs,), classes, members=members, hidden=tuple(hidden), neuron=neuron, real_input=real
    )
    network = network_of(config, 2.0**exponent, seed)
    given_inputs = inputs_of(network, rows, steps, rate, seed)
    check_every_way(network, given_inputs, steps, Dense(network).begin(given_inputs).advance(steps))


@exactly
@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    members=st.integers(1, 2),
    shape=st.sampled_from([(1, 4, 4), (2, 5, 4), (66, 4, 6)]),
    channels=st.lists(st.sampled_from([1, 17, 65]), min_size=1, max_size=2),
    steps=st.sampled_from([1, 9]),
    rate=st.sampled_from([0.0, 0.2, 1.0]),
    exponent=st.sampled_from([-20, -6, 20]),
    real=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_convolutions(
    members: int,
    shape: tuple[int, int, int],
    channels: list[int],
    steps: int,
    rate: float,
    exponent: int,
    real: bool,
    seed: int,
) -> None:
    config = Convolutional(
        shape,
        2,
        members=members,
        channels=tuple(channels),
        hidden=(5,),
        neuron=Neuron(threshold=0.5),
        real_input=real,
    )
    network = network_of(config, 2.0**exponent, seed)
    given_inputs = inputs_of(network, 2, steps, rate, seed)
    check_every_way(network, given_inputs, steps, Dense(network).begin(given_inputs).advance(steps))


HELD: list[Architecture] = [
    FullyConnected((3,), 2, members=2, hidden=(20,)),
    Convolutional((2, 6, 6), 2, members=2, channels=(4,), hidden=(), real_input=False),
    Convolutional((2, 6, 6), 2, members=2, channels=(130,), hidden=(), real_input=False),
]


@exactly
@pytest.mark.parametrize("config", HELD, ids=["fully-connected", "convolutional", "many channels"])
def test_an_image_is_held_for_any_number_of_steps(config: Architecture) -> None:
    network = network_of(config, 2.0**-6, 3)
    image = inputs_of(network, 3, 1, 0.5, 4)
    expected = Dense(network).begin(image).advance(20)
    assert expected[:, -3:].any()  # the image stays
    check_every_way(network, image, 20, expected)


@exactly
@pytest.mark.parametrize("above", [False, True])
def test_a_potential_that_just_reaches_the_threshold_is_a_spike(above: bool) -> None:
    """One input spike, one neuron, one step: u = c w, and w is the smallest weight with c w ≥ θ, or
    the largest one below.
    """
    network = SpikingNetwork(FullyConnected((1,), 1, members=1, hidden=()), generator()).eval()
    frame = np.ones((1, 1, 1), bool)
    (weight,) = (
        value for name, value in network.named_parameters() if name.endswith("synapses.weight")
    )

    def spikes(engine: Any) -> bool:
        return bool(engine.begin(frame).advance(1)[0, 0, 0, 0])

    low, high = 1.0, 100.0  # the dense engine is silent at the one and spikes at the other
    while np.nextafter(np.float32(low), np.float32(math.inf)) < np.float32(high):
        middle = float(np.float32((low + high) / 2))
        with torch.no_grad():
            weight.fill_(middle)
        low, high = (low, middle) if spikes(Dense(network)) else (middle, high)
    with torch.no_grad():
        weight.fill_(high if above else low)
    assert spikes(EventDriven(network)) == above
    live = EventDriven(network).live()
    assert bool(live.push([0])[0, 0]) == above
