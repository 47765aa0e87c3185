"""The event-driven engine against the dense one, and against itself: chunks, threads, dropped rows,
batch and stream, precisions.
"""

from __future__ import annotations

import importlib
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from agreestop.common import Booleans
from agreestop.engines import Dense, EventDriven
from agreestop.engines.early_stopping import run_counted
from agreestop.engines.event_driven.engine import PRECISIONS
from agreestop.engines.protocol import EnsembleRun
from agreestop.networks import (
    Architecture,
    Convolutional,
    FullyConnected,
    Neuron,
    ResNet18,
    SpikingNetwork,
)
from agreestop.networks.layers import SpikingLayer
from tests.networks.plain import generator, refused

event_kernels = pytest.importorskip("agreestop.kernels.cpu.event_kernels")

STEPS, ROWS = 40, 6
CONFIGS: dict[str, tuple[Architecture, tuple[float, ...]]] = {
    "fully-connected": (FullyConnected((2, 9, 9), 5, members=3, hidden=(150,)), (3.5, 1.8)),
    "two hidden layers": (
        FullyConnected((2, 9, 9), 5, members=2, hidden=(40, 70)),
        (3.2, 2.2, 1.5),
    ),
    "convolutional": (
        Convolutional((2, 11, 13), 5, members=2, channels=(6, 20), hidden=(24,), real_input=False),
        (4.2, 4.0, 2.5, 2.2),
    ),
}
every_network = pytest.mark.parametrize("name", CONFIGS)


def is_fused() -> bool:
    """Whether PyTorch rounds once in addcmul, as it does on processors with a fused
    multiply-add.
    """
    x = torch.full((64,), 1 + 2**-12)
    return bool((torch.addcmul(-(x * x), x, x) != 0).all())


exactly = pytest.mark.skipif(
    not is_fused(), reason="PyTorch rounds twice here, and the engine once"
)


def layers_of(network: SpikingNetwork) -> list[SpikingLayer]:
    return list(network.layers)


def network_of(
    config: Architecture, gains: tuple[float, ...], unit: float | None = None, seed: int = 0
) -> SpikingNetwork:
    """A network in evaluation whose layers all spike; weights are multiples of `unit`, so that
    their sums are exact in any order.
    """
    network, draws = SpikingNetwork(config, generator(seed)).eval(), generator(seed + 1)
    with torch.no_grad():
        for layer, gain in zip(layers_of(network), gains, strict=True):
            layer.synapses.weight.mul_(gain)
            if unit is not None:
                layer.synapses.weight.div_(unit).round_().mul_(unit)
            if layer.norm is not None:
                layer.norm.running_mean.normal_(0, 0.1, generator=draws)
                layer.norm.bias.normal_(0.02, 0.05, generator=draws)
                layer.norm.running_var.uniform_(0.3, 0.6, generator=draws)
                layer.norm.weight.uniform_(0.3, 0.6, generator=draws)
    return network


def known(name: str, unit: float | None = None) -> SpikingNetwork:
    return network_of(*CONFIGS[name], unit=unit)


def frames(
    network: SpikingNetwork, rows: int = ROWS, steps: int = STEPS, rate: float = 0.05, seed: int = 0
) -> Booleans:
    return np.random.default_rng(seed).random((rows, steps, *network.config.input_shape)) < rate


def spikes_of(
    network: SpikingNetwork, inputs: NDArray[Any], precision: str = "float32", threads: int = 1
) -> Booleans:
    return EventDriven(network, precision, threads).begin(inputs).advance(inputs.shape[1])


def run_dense(network: SpikingNetwork, inputs: NDArray[Any]) -> EnsembleRun:
    return run_counted(Dense(network), inputs)


def rates_of(network: SpikingNetwork, inputs: Booleans) -> list[float]:
    """Spikes of each layer for each neuron and step."""
    rates: list[float] = []

    def keep(module: torch.nn.Module, given: tuple[Any, ...], found: Any) -> None:
        rates.append(float(found[0].mean()))

    hooks = [layer.register_forward_hook(keep) for layer in network.layers]
    run_dense(network, inputs)
    for hook in hooks:
        hook.remove()
    return rates


@every_network
def test_every_layer_of_these_networks_spikes(name: str) -> None:
    network = known(name)
    assert all(0.02 < rate < 0.2 for rate in rates_of(network, frames(network)))


@exactly
@every_network
def test_sums_that_are_exact_give_the_spikes_of_the_dense_engine_bit_for_bit(name: str) -> None:
    network = known(name, unit=2**-6)
    inputs = frames(network)
    assert np.array_equal(spikes_of(network, inputs), run_dense(network, inputs).spikes)


@every_network
def test_the_order_of_summation_moves_few_spikes(name: str) -> None:
    """A sum near the threshold may round to the other side, and what follows from that spike
    differs with it.
    """
    network = known(name)
    inputs = frames(network, rows=12)
    found = spikes_of(network, inputs)
    assert 0.02 < found.mean() < 0.2
    assert (found != run_dense(network, inputs).spikes).mean() < 1e-3
    with torch.no_grad():
        exact = network.double()(torch.as_tensor(np.moveaxis(inputs, 1, 0)).double())[0]
    assert (found != exact.permute(2, 0, 1, 3).bool().numpy()).mean() < 1e-3


@exactly
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    members=st.integers(1, 3),
    inputs=st.integers(1, 150),
    hidden=st.lists(st.sampled_from([1, 5, 16, 17, 33, 64, 65, 130]), min_size=1, max_size=2),
    classes=st.sampled_from([1, 2, 11, 17, 70]),
    rows=st.integers(1, 4),
    steps=st.integers(1, 24),
    rate=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    seed=st.integers(0, 2**20),
)
def test_any_size_gives_the_spikes_of_the_dense_engine(
    members: int,
    inputs: int,
    hidden: list[int],
    classes: int,
    rows: int,
    steps: int,
    rate: float,
    seed: int,
) -> None:
    config = FullyConnected(
        (inputs,), classes, members=members, hidden=tuple(hidden), neuron=Neuron(threshold=0.5)
    )
    network = network_of(config, (4.0,) * (len(hidden) + 1), unit=2**-6, seed=seed)
    given_frames = frames(network, rows, steps, rate, seed)
    assert np.array_equal(spikes_of(network, given_frames), run_dense(network, given_frames).spikes)


@exactly
@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    members=st.integers(1, 2),
    shape=st.tuples(st.integers(1, 3), st.integers(4, 9), st.integers(4, 9)),
    channels=st.lists(st.sampled_from([1, 4, 17, 66, 130]), min_size=1, max_size=2),
    real=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_any_convolution_gives_the_spikes_of_the_dense_engine(
    members: int, shape: tuple[int, int, int], channels: list[int], real: bool, seed: int
) -> None:
    config = Convolutional(
        shape, 3, members=members, channels=tuple(channels), hidden=(9,), real_input=real
    )
    network = network_of(config, (4.0,) * (len(channels) + 2), unit=2**-6, seed=seed)
    inputs: NDArray[Any] = frames(network, 2, 6, 0.2, seed)
    if real:
        inputs = inputs * np.random.default_rng(seed).integers(-4, 5, inputs.shape) / np.float32(4)
    assert np.array_equal(spikes_of(network, inputs), run_dense(network, inputs).spikes)


@exactly
@pytest.mark.parametrize("real", (False, True))
@every_network
def test_operations_are_counted_as_on_the_dense_engine(
    name: str, real: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a call is computed in several blocks of rows and steps."""
    config, gains = CONFIGS[name]
    network = network_of(replace(config, real_input=real), gains, unit=2**-6)
    inputs: NDArray[Any] = frames(network)
    if real:
        inputs = inputs * np.random.default_rng(1).integers(-4, 5, inputs.shape) / np.float32(4)
    expected = run_dense(network, inputs)
    for pairs in (8192, 50):
        monkeypatch.setattr("agreestop.engines.event_driven.engine.BLOCK_PAIRS", pairs)
        run = run_counted(EventDriven(network, threads=2), inputs, batch_size=4)
        assert np.array_equal(run.spikes, expected.spikes) and run.operations.emitted.any()
        for kind in ("emitted", "accumulates", "multiplies"):
            assert np.array_equal(
                getattr(run.operations, kind), getattr(expected.operations, kind)
            ), kind


SOME_SLOW = [
    pytest.param(name, marks=[pytest.mark.slow] if name == "bfloat16" else [])
    for name in PRECISIONS
]
"""Every precision is compiled by itself, for many seconds; float32 and int8 are the two ways to
read a weight.
"""


@pytest.mark.parametrize("precision", SOME_SLOW)
@every_network
def test_chunks_threads_dropped_rows_and_the_stream_change_nothing(
    name: str, precision: str
) -> None:
    network = known(name)
    inputs = frames(network)
    whole = spikes_of(network, inputs, precision)
    assert whole.any()

    for threads in (2, 5):
        assert np.array_equal(spikes_of(network, inputs, precision, threads), whole)

    engine = EventDriven(network, precision, threads=2)
    chunked = engine.begin(inputs)
    parts = [chunked.advance(steps) for steps in (7, 13, 1, 19)]
    assert np.array_equal(np.concatenate(parts, axis=1), whole)

    thinned = engine.begin(inputs)
    first = thinned.advance(10)
    thinned.keep(np.array([True, False, True, True, False, True]))
    second = thinned.advance(10)
    thinned.keep(np.array([False, True, False, True]))
    assert thinned.rows == 2
    assert np.array_equal(first, whole[:, :10])
    assert np.array_equal(second, whole[[0, 2, 3, 5], 10:20])
    assert np.array_equal(thinned.advance(20), whole[[2, 5], 20:])

    for row in range(2):
        live = engine.live()
        for t in range(STEPS):
            counts = live.push(np.flatnonzero(inputs[row, t]))
            assert np.array_equal(counts, whole[row, : t + 1].sum(0)), t


def test_blocks_of_rows_and_steps_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CONFIGS:
        network = known(name)
        inputs = frames(network)
        whole = spikes_of(network, inputs)
        for pairs in (1, 7, 50):
            monkeypatch.setattr("agreestop.engines.event_driven.engine.BLOCK_PAIRS", pairs)
            monkeypatch.setattr("agreestop.engines.event_driven.rows.BLOCK_STEPS", pairs)
            assert np.array_equal(spikes_of(network, inputs, threads=2), whole)
        monkeypatch.undo()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_convolution_too_large_for_the_cache_gives_the_same_spikes(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = known("convolutional")
    inputs, engine = frames(network), EventDriven(network, precision, 1)
    assert engine._network.by_rows
    found = run_counted(engine, inputs)
    monkeypatch.setattr("agreestop.engines.event_driven.layout.MOST_LANES", 0)
    assert not engine._network.by_rows
    layer_by_layer = run_counted(engine, inputs)
    assert np.array_equal(found.spikes, layer_by_layer.spikes)
    assert np.array_equal(found.operations.emitted, layer_by_layer.operations.emitted)


def test_memory_does_not_grow_with_time() -> None:
    network = known("fully-connected")
    peaks = []
    for steps in (200, 2000):
        inputs = frames(network, rows=2, steps=steps)
        tracemalloc.start()
        batch = EventDriven(network, threads=1).begin(inputs)
        for _ in range(steps // 100):
            batch.advance(100)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]


def test_all_rows_may_be_dropped() -> None:
    network = known("fully-connected")
    batch = EventDriven(network).begin(frames(network))
    batch.keep(np.zeros(ROWS, dtype=bool))
    assert batch.rows == 0 and batch.advance(4).shape == (0, 4, 3, 5)


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.float32, np.float64])
def test_the_type_of_the_input_does_not_matter(kind: Any) -> None:
    for name in CONFIGS:
        network = known(name)
        inputs = frames(network)
        whole = spikes_of(network, inputs)
        assert np.array_equal(spikes_of(network, inputs.astype(kind)), whole)
        assert np.array_equal(spikes_of(network, np.asfortranarray(inputs.astype(kind))), whole)


@pytest.mark.parametrize("precision", SOME_SLOW)
def test_real_inputs_are_weights_times_value_in_batch_and_stream(precision: str) -> None:
    for name in CONFIGS:
        config, gains = CONFIGS[name]
        network = network_of(replace(config, real_input=True), gains, unit=2**-6)
        inputs = frames(network) * np.random.default_rng(1).normal(
            1, 1, (ROWS, STEPS, *config.input_shape)
        ).astype(np.float32)
        whole = spikes_of(network, inputs, precision)
        if precision == "float32":
            assert (whole != run_dense(network, inputs).spikes).mean() < 1e-3
        live = EventDriven(network, precision).live()
        for frame in inputs[0]:
            counts = live.push(frame=frame)
        assert np.array_equal(counts, whole[0].sum(0))


def rounded(
    network: SpikingNetwork, change: Callable[[torch.Tensor], torch.Tensor]
) -> SpikingNetwork:
    other = SpikingNetwork(network.config, generator()).eval()
    other.load_state_dict(network.state_dict())
    with torch.no_grad():
        for layer in layers_of(other):
            layer.synapses.weight.copy_(change(layer.synapses.weight))
    return other


@every_network
def test_bfloat16_is_the_network_of_rounded_weights(name: str) -> None:
    network = known(name)
    inputs = frames(network)
    same = spikes_of(rounded(network, lambda weight: weight.bfloat16().float()), inputs)
    assert np.array_equal(spikes_of(network, inputs, "bfloat16"), same)


@every_network
def test_int8_is_the_network_of_weights_in_127_steps_for_each_output(name: str) -> None:
    """A power of two as the unit of every output makes both sums exact."""
    network = rounded(known(name, unit=1 / 64), in_full_steps)
    assert all(
        layer.synapses.weight.detach().abs().max().item() == 127 / 64
        for layer in layers_of(network)
    )
    inputs = frames(network)
    found = spikes_of(network, inputs, "int8")
    assert found.any() and np.array_equal(found, spikes_of(network, inputs))


def in_full_steps(weight: torch.Tensor) -> torch.Tensor:
    """The first weight of each output is 127/64, which makes the unit of that output 1/64."""
    weight = weight.clone()
    if weight.ndim == 3:
        weight[:, 0] = 127 / 64
    else:
        weight[:, :, 0, 0, 0] = 127 / 64
    return weight


def test_more_events_than_one_block_of_sums() -> None:
    config = FullyConnected((2000,), 3, members=2, hidden=(20,))
    network = rounded(network_of(config, (0.6, 3.0), unit=2**-6), in_full_steps)
    inputs = frames(network, rows=2, steps=20, rate=0.4)
    assert inputs[0, 0].sum() > 2 * event_kernels.EVENTS_IN_A_BLOCK
    whole = run_dense(network, inputs).spikes
    assert whole.any()
    for precision in ("float32", "int8"):
        assert (spikes_of(network, inputs, precision) != whole).mean() == 0 or not is_fused()


def test_a_stream_that_never_ends_stays_finite() -> None:
    config = FullyConnected((30,), 3, members=2, hidden=(20,))
    live = EventDriven(network_of(config, (3.0, 3.0))).live()
    events = [np.flatnonzero(row) for row in np.random.default_rng(0).random((100, 30)) < 0.1]
    before = 0
    for step in range(100_000):
        counts = live.push(events[step % 100] if step % 1000 < 500 else events[0][:0])
        if step % 10_000 == 9_999:
            assert counts.dtype == np.int64 and counts.sum() > before
            before = int(counts.sum())
    assert np.isfinite(live._state).all()


def test_a_step_of_a_stream_allocates_nothing() -> None:
    live = EventDriven(
        network_of(FullyConnected((50_000,), 3, members=2, hidden=(20,)), (1.0, 1.0))
    ).live()
    events = np.arange(0, 50_000, 5)
    live.push(events)
    tracemalloc.start()
    for _ in range(20):
        live.push(events)
    assert tracemalloc.get_traced_memory()[1] < 2000
    tracemalloc.stop()


def test_events_are_a_set() -> None:
    network = known("fully-connected")
    engine = EventDriven(network)
    one, other = engine.live(), engine.live()
    for t, frame in enumerate(frames(network)[0]):
        events = np.flatnonzero(frame)
        shuffled = np.random.default_rng(t).permutation(np.concatenate([events, events[:3]]))
        given_as: Any = [
            shuffled.astype(np.int32),
            shuffled.tolist(),
            tuple(shuffled),
            shuffled[::-1],
        ][t % 4]
        assert np.array_equal(one.push(events), other.push(given_as))
    many = np.tile(np.arange(3), 200)
    assert np.array_equal(one.push(many.astype(np.int16)), other.push([0, 1, 2]))
    assert one.push([]).any()


def test_the_engine_keeps_the_members_as_they_were() -> None:
    network = known("fully-connected")
    inputs = frames(network)
    engine = EventDriven(network)
    whole = engine.begin(inputs).advance(STEPS)
    with torch.no_grad():
        for value in network.parameters():
            value.zero_()
    assert np.array_equal(engine.begin(inputs).advance(STEPS), whole)
    assert (engine.name, engine.members, engine.classes) == ("event-driven", 3, 5)


def test_learned_constants_of_each_member_are_used() -> None:
    config, gains = CONFIGS["fully-connected"]
    network = network_of(replace(config, neuron=Neuron(learned=True)), gains, unit=2**-6)
    with torch.no_grad():
        for value in network.parameters():
            if value.ndim == 1:
                value.add_(torch.tensor([-0.2, 0.1, 0.3]))
    inputs = frames(network)
    found, wanted = spikes_of(network, inputs), run_dense(network, inputs).spikes
    assert np.array_equal(found, wanted) if is_fused() else (found != wanted).mean() < 1e-3


def test_bad_input_is_refused_with_a_sentence() -> None:
    network = known("fully-connected")
    inputs = frames(network)
    engine = EventDriven(network)
    refused(
        lambda: EventDriven(network, "float16"),
        "precision is 'float16': choose one of float32, bfloat16, int8",
    )
    refused(lambda: EventDriven(network, threads=0), "threads is 0")
    refused(
        lambda: EventDriven(SpikingNetwork(ResNet18((2, 8, 8), 3, width=2), generator())),
        "a ResNet18.*use the dense engine",
    )
    refused(lambda: engine.begin(inputs[0]), r"\(n, T, 2, 9, 9\), n and T at least 1")
    refused(lambda: engine.begin(inputs.astype(object)), "dtype object")
    refused(lambda: engine.begin(inputs[:0]), "n and T at least 1")
    refused(lambda: engine.begin(inputs * 2), "values other than 0 and 1: set real_input=True")
    refused(
        lambda: engine.begin(np.where(inputs, np.nan, 0)),
        "inputs holds nan at .*: every value must be finite",
    )
    refused(lambda: engine.begin(np.where(inputs, 1e300, 0)), "float32 cannot hold")
    batch = engine.begin(inputs)
    batch.advance(STEPS - 2)
    for steps in (0, 3, 1.0, True):
        refused(lambda steps=steps: batch.advance(steps), "2 of 40 time steps are left")  # type: ignore[misc]
    refused(
        lambda: batch.keep(np.ones(ROWS + 1, dtype=bool)), "one boolean for each of the 6 inputs"
    )
    refused(lambda: batch.keep(np.arange(ROWS)), "one boolean for each")  # type: ignore[arg-type]
    assert batch.advance(2).shape == (ROWS, 2, 3, 5)
    for value in (np.nan, np.inf):
        with torch.no_grad():
            layers_of(network)[1].synapses.weight[0, 0, 0] = value
        refused(lambda: EventDriven(network), "not finite")


def test_a_bad_step_of_a_stream_is_refused_and_changes_nothing() -> None:
    network = known("fully-connected")
    engine = EventDriven(network)
    one, other = engine.live(), engine.live()
    for t, frame in enumerate(frames(network)[0]):
        refused(
            lambda: one.push([3, 162]), "events holds 162, but the inputs are numbered 0 to 161"
        )
        refused(lambda: one.push(np.array([3, -1])), "events holds -1")
        refused(lambda: one.push(frame), "push\\(frame=array\\)")  # noqa: B023
        refused(lambda: one.push([0.5]), "dtype float64")
        refused(lambda: one.push(frame=2.0 * frame), "set real_input=True")  # noqa: B023
        refused(lambda: one.push(frame=frame[0]), "numbers of shape \\(2, 9, 9\\)")  # noqa: B023
        refused(lambda: one.push([1], frame=frame), "one of events and frame")  # noqa: B023
        refused(lambda: one.push(), "one of events and frame")
        assert np.array_equal(one.push(np.flatnonzero(frame)), other.push(np.flatnonzero(frame))), t
    real = EventDriven(network_of(replace(network.config, real_input=True), (1.0, 1.0))).live()
    for value, message in ((np.nan, "every value must be finite"), (1e300, "float32 cannot hold")):
        refused(lambda value=value: real.push(frame=np.full((2, 9, 9), value)), message)  # type: ignore[misc]


def test_numba_is_needed_only_by_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module(
        "agreestop.engines.event_driven.layout"
    ).load_kernels.cache_clear()  # an earlier test may have loaded them
    monkeypatch.setitem(sys.modules, "numba", None)
    for name in [name for name in sys.modules if name.startswith("agreestop.kernels.cpu.event_")]:
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.delattr(name)
    refused(
        lambda: EventDriven(known("fully-connected")),
        r"needs numba.*pip install 'agreestop\[engines\]'",
    )
