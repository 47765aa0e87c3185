"""NIR graphs on our engines: NIR's equations, both engines alike, and decisions that stop."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="adapters need PyTorch")
nir = pytest.importorskip("nir", reason="agreestop[nir] is not installed")

import agreestop as ag
from agreestop.adapters import compare, from_nir, to_nir
from tests.adapters.nir_reference import Array, chain, neurons, simulate, weights
from tests.networks.plain import refused

KINDS = ("IF", "LIF", "CubaLIF")
RESETS = ("graph", "zero", "subtract")


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def linear(rng: np.random.Generator, inputs: int, outputs: int, bias: bool = False) -> Any:
    weight = weights(rng, outputs, inputs)
    return (
        nir.Affine(weight=weight, bias=weights(rng, outputs, spread=0.1))
        if bias
        else nir.Linear(weight=weight)
    )


def conv(
    rng: np.random.Generator,
    inputs: int,
    outputs: int,
    size: int = 3,
    side: Any = None,
    **given: Any,
) -> Any:
    groups = given.get("groups", 1)
    options: dict[str, Any] = {
        "stride": (1, 1),
        "padding": (1, 1),
        "dilation": (1, 1),
        "groups": 1,
        "bias": np.zeros(outputs),
        **given,
    }
    return nir.Conv2d(
        input_shape=side,
        weight=weights(rng, outputs, inputs // groups, size, size, spread=0.4),
        **options,
    )


def pool(kind: str = "SumPool2d", size: int = 2, stride: int = 2, padding: int = 0) -> Any:
    return getattr(nir, kind)(
        kernel_size=np.full(2, size), stride=np.full(2, stride), padding=np.full(2, padding)
    )


def flatten(*shape: int) -> Any:
    return nir.Flatten(input_type={"input": np.array(shape)}, start_dim=0, end_dim=-1)


def recurrent(
    rng: np.random.Generator,
    kind: str = "CubaLIF",
    inputs: int = 9,
    hidden: int = 20,
    classes: int = 4,
) -> Any:
    """The form of the published Braille networks: one layer whose spikes come back through weights
    with a bias.
    """
    nodes = {
        "input": nir.Input(np.array([inputs])),
        "fc1": linear(rng, inputs, hidden),
        "lif1": neurons(kind, (hidden,), rng),
        "back": linear(rng, hidden, hidden, bias=True),
        "fc2": linear(rng, hidden, classes),
        "lif2": neurons(kind, (classes,), rng),
        "output": nir.Output(np.array([classes])),
    }
    edges = [
        ("input", "fc1"),
        ("fc1", "lif1"),
        ("lif1", "back"),
        ("back", "lif1"),
        ("lif1", "fc2"),
        ("fc2", "lif2"),
        ("lif2", "output"),
    ]
    return nir.NIRGraph(nodes, edges)


def convolutional(
    rng: np.random.Generator, kind: str = "IF", pooling: str = "SumPool2d", uniform: bool = True
) -> Any:
    """The form of the published N-MNIST network: strides, pooling between layers, and fully
    connected layers at the end.
    """
    return chain(
        nir.Input(np.array([2, 11, 10])),
        conv(rng, 2, 6, 5, stride=(2, 2)),
        neurons(kind, (6, 5, 4), rng, uniform),
        conv(rng, 6, 5, side=(5, 4)),
        neurons(kind, (5, 5, 4), rng, uniform),
        pool(pooling),
        conv(rng, 5, 4, side=(2, 2)),
        neurons(kind, (4, 2, 2), rng, uniform),
        flatten(4, 2, 2),
        linear(rng, 16, 20),
        neurons(kind, (20,), rng),
        linear(rng, 20, 3),
        neurons(kind, (3,), rng),
    )


def counts(
    shape: tuple[int, ...], rows: int = 3, steps: int = 40, rate: float = 0.15, seed: int = 0
) -> Array:
    """Counts of events, some of them above 1."""
    return generator(seed).poisson(rate, (rows, steps, *shape)).astype(np.uint8)


def outputs_of(engine: Any, x: Array) -> Array:
    return np.asarray(ag.engines.run_to_end(engine.engine, x))


# ---- NIR's equations

GRAPHS = {
    "fully connected": lambda rng, kind: chain(
        linear(rng, 9, 12, True),
        neurons(kind, (12,), rng),
        linear(rng, 12, 4),
        neurons(kind, (4,), rng),
    ),
    "convolutional": lambda rng, kind: convolutional(rng, kind, "AvgPool2d", uniform=False),
}


@pytest.mark.parametrize("reset", RESETS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", GRAPHS)
def test_spikes_are_those_of_the_equations(form: str, kind: str, reset: str) -> None:
    graph = GRAPHS[form](generator(1), kind)
    x = counts(tuple(graph.nodes["input"].input_type["input"]))
    found = outputs_of(from_nir(graph, dt=1e-3, reset=reset, engine="dense"), x)
    expected = np.stack([simulate(graph, one, 1e-3, reset) for one in x])
    assert 0.01 < expected.mean() < 0.9
    np.testing.assert_array_equal(found[:, :, 0], expected)


@pytest.mark.parametrize("kind", ["LI", "I", "CubaLI"])
def test_read_outs_are_those_of_the_equations(kind: str) -> None:
    rng = generator(1)
    graph = chain(
        linear(rng, 9, 12), neurons("LIF", (12,), rng), linear(rng, 12, 4), neurons(kind, (4,), rng)
    )
    engine, x = from_nir(graph, dt=1e-3), counts((9,))
    assert engine.engine.output == "logits" and "neurons that spike" in engine.engine.reason
    np.testing.assert_allclose(
        outputs_of(engine, x)[:, :, 0], [simulate(graph, one) for one in x], rtol=1e-4, atol=1e-4
    )


def one_dimensional(rng: np.random.Generator) -> Any:
    weight = weights(rng, 4, 1, 3)
    layer = nir.Conv1d(
        input_shape=None, weight=weight, stride=2, padding=1, dilation=1, groups=2, bias=np.zeros(4)
    )
    scale = nir.Scale(scale=weights(rng, 2, 9))
    return chain(
        nir.Input(np.array([2, 9])),
        scale,
        layer,
        neurons("IF", (4, 5), rng),
        flatten(4, 5),
        linear(rng, 20, 3),
        nir.Threshold(np.full(3, 0.2)),
    )


def test_scale_conv1d_threshold_and_groups() -> None:
    graph = one_dimensional(generator(3))
    x = counts((2, 9), rate=0.3)
    expected = np.stack([simulate(graph, one) for one in x])
    assert 0.02 < expected.mean() < 0.9
    for engine in ("dense", "event-driven"):
        np.testing.assert_array_equal(
            outputs_of(from_nir(graph, engine=engine), x)[:, :, 0], expected
        )


def test_spikes_that_go_round_a_cycle_arrive_one_step_later() -> None:
    graph = recurrent(generator(5))
    x = counts((9,), rows=1, steps=60, rate=0.2)
    first, second = (simulate_step(graph, name) for name in ("lif1", "lif2"))
    last, expected = np.zeros(20), []
    for frame in x[0].astype(float):
        back = graph.nodes["back"]
        # the bias acts from the first step on
        last = first(graph.nodes["fc1"].weight @ frame + back.weight @ last + back.bias)
        expected.append(second(graph.nodes["fc2"].weight @ last))
    assert 0.02 < np.mean(expected) < 0.9
    for engine in ("dense", "event-driven"):
        np.testing.assert_array_equal(
            outputs_of(from_nir(graph, dt=1e-3, engine=engine), x)[0, :, 0], expected
        )


def simulate_step(graph: Any, name: str) -> Any:
    from tests.adapters.nir_reference import Reference

    return Reference(graph.nodes[name], 1e-3, "graph").step


def test_the_published_single_neuron_follows_its_exact_solution() -> None:
    """One LIF neuron as in the NIR paper, with many small steps: the potential is that of the
    differential equation.
    """
    tau, steps = 2.5e-3, 2000
    graph = chain(
        nir.Affine(weight=np.ones((1, 1)), bias=np.zeros(1)),
        nir.LI(tau=np.array([tau]), r=np.ones(1), v_leak=np.zeros(1)),
    )
    dt = 1e-6
    found = outputs_of(from_nir(graph, dt=dt), np.ones((1, steps, 1), np.uint8))[0, -1, 0, 0]
    assert found == pytest.approx(1 - np.exp(-steps * dt / tau), rel=1e-3)


# ---- both engines


def event_cases() -> dict[str, Any]:
    rng = generator(11)
    same = conv(rng, 2, 5, 3, stride=(1, 1), padding="same")
    return {
        **{f"recurrent {kind}": recurrent(rng, kind) for kind in KINDS},
        **{f"convolutional {kind}": convolutional(rng, kind) for kind in KINDS},
        "own constants at each position": convolutional(rng, "LIF", uniform=False),
        "average": convolutional(rng, "IF", "AvgPool2d"),
        "wide": chain(
            linear(rng, 9, 150, True),
            neurons("LIF", (150,), rng),
            linear(rng, 150, 70),
            neurons("IF", (70,), rng),
        ),
        "dilated and grouped": chain(
            nir.Input(np.array([4, 9, 7])),
            conv(rng, 4, 6, dilation=(2, 2), groups=2),
            neurons("LIF", (6, 7, 5), rng, True),
            flatten(6, 7, 5),
            linear(rng, 210, 3),
            neurons("IF", (3,), rng),
        ),
        "same padding": chain(
            nir.Input(np.array([2, 6, 5])), same, neurons("IF", (5, 6, 5), rng, True)
        ),
        # the last row and column reach no window of the pooling, though the convolution has padding
        "pool with a rest": chain(
            nir.Input(np.array([2, 7, 7])),
            pool(),
            conv(rng, 2, 3, side=(3, 3)),
            neurons("IF", (3, 3, 3), rng, True),
            flatten(3, 3, 3),
            linear(rng, 27, 3),
            neurons("IF", (3,), rng),
        ),
        "between two windows": chain(
            nir.Input(np.array([2, 9, 8])),
            conv(rng, 2, 40, 2, stride=(3, 3), padding=(0, 0)),
            neurons("IF", (40, 3, 3), rng, True),
            flatten(40, 3, 3),
            linear(rng, 360, 3),
            neurons("IF", (3,), rng),
        ),
        "overlapping pool": chain(
            nir.Input(np.array([2, 7, 7])),
            pool(size=3, stride=2, padding=1),
            neurons("IF", (2, 4, 4), rng, True),
            flatten(2, 4, 4),
            linear(rng, 32, 3),
            neurons("IF", (3,), rng),
        ),
    }


EVENT_CASES = event_cases()


@pytest.mark.parametrize("name", EVENT_CASES)
def test_the_event_driven_engine_gives_what_the_dense_one_gives(name: str) -> None:
    """Weights have exact sums; constants do not, so a spike may move where a potential meets the
    threshold to the last bit.
    """
    pytest.importorskip("numba", reason="the event-driven engine needs numba")
    graph = EVENT_CASES[name]
    shape = tuple(graph.nodes["input"].input_type["input"])
    for reset in RESETS:
        dense, events = (
            from_nir(graph, dt=1e-3, reset=reset, engine=engine)
            for engine in ("dense", "event-driven")
        )
        for x in (counts(shape, rows=4, steps=150), counts(shape, rows=4, seed=1) > 0):
            report = compare(dense, events, x)
            assert report.equal, report
            assert 0 < report.totals[0].sum() < report.totals[0].size * 4 * events.classes


def test_chunks_live_inputs_and_dropped_rows_give_the_same() -> None:
    pytest.importorskip("numba", reason="the event-driven engine needs numba")
    for graph in (EVENT_CASES["recurrent CubaLIF"], EVENT_CASES["convolutional IF"]):
        engine: Any = from_nir(graph, dt=1e-3, engine="event-driven").engine
        x = counts(tuple(graph.nodes["input"].input_type["input"]), rows=5, steps=30)
        whole = engine.begin(x).advance(30)
        run = engine.begin(x)
        parts = [run.advance(7), run.advance(1)]
        run.keep(np.array([True, False, True, False, True]))
        np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole[:, :8])
        np.testing.assert_array_equal(run.advance(22), whole[::2, 8:])
        live = engine.live()
        for frame in x[2]:
            evidence = live.push(frame=frame)
        np.testing.assert_array_equal(evidence, whole[2].sum(axis=0))


def test_an_event_that_is_repeated_counts_every_time() -> None:
    pytest.importorskip("numba", reason="the event-driven engine needs numba")
    rng = generator(3)
    for graph in (EVENT_CASES["recurrent CubaLIF"], EVENT_CASES["convolutional IF"]):
        x = counts(tuple(graph.nodes["input"].input_type["input"]), rows=3, steps=30, rate=0.3)
        steps = [
            [
                rng.permutation(np.repeat(np.arange(frame.size), frame.reshape(-1).astype(int)))
                for frame in row
            ]
            for row in x
        ]
        assert max(len(step) - len(np.unique(step)) for row in steps for step in row) > 1
        for name in ("event-driven", "dense"):
            engine: Any = from_nir(graph, dt=1e-3, engine=name).engine
            expected = np.cumsum(engine.begin(x).advance(30), axis=1)
            for row, counted in zip(steps, expected, strict=True):
                live = engine.live()
                for step, spikes in zip(row, counted, strict=True):
                    np.testing.assert_array_equal(live.push(step), spikes)
            if name == "event-driven":
                slots = engine.live_slots(3, np.arange(1, 31))
                for step in zip(*steps, strict=True):
                    pointers = np.cumsum([0, *map(len, step)])
                    _, evidence = slots.push(np.arange(3), pointers, np.concatenate(step), True)
                np.testing.assert_array_equal(evidence, expected[:, -1])


def test_two_graphs_of_different_sizes_and_resets_are_an_ensemble() -> None:
    rng = generator(7)
    graphs = [recurrent(rng, hidden=20), recurrent(rng, "LIF", hidden=33)]
    engine = from_nir(graphs, dt=1e-3, reset=["subtract", "graph"])
    x, y = counts((9,), rows=300, steps=30), generator(8).integers(0, 4, 300)
    alone = [
        outputs_of(from_nir(graph, dt=1e-3, reset=reset), x)
        for graph, reset in zip(graphs, ("subtract", "graph"), strict=True)
    ]
    np.testing.assert_array_equal(outputs_of(engine, x), np.concatenate(alone, axis=2))
    scores = engine.score(x, y)
    for checkpoints in (range(1, 31), ag.Schedule([(5, 1), (10, 2), (30, 2)])):
        rule = ag.AgreeStop(target=0.3, checkpoints=checkpoints, max_set_size=1).calibrate(
            scores.rows(slice(0, 150))
        )
        run = engine.decide(rule, x[150:])
        expected = rule.decide(scores.rows(slice(150, 300)))
        np.testing.assert_array_equal(run.decisions.stop_time, expected.stop_time)
        np.testing.assert_array_equal(run.decisions.sets, expected.sets)
        assert run.computed.mean() < 30
        session = engine.live(rule)
        decision = next(found for frame in x[150] if (found := session.push(frame=frame)))
        assert (
            decision.classes == run.decisions[0].classes and decision.time == run.decisions[0].time
        )


@pytest.mark.parametrize("name", ("event-driven", "event-driven-int8"))
def test_graphs_that_differ_in_their_numbers_alone_run_as_one_network(name: str) -> None:
    """Also live inputs, which are then computed together."""
    pytest.importorskip("numba", reason="the event-driven engine needs numba")
    from agreestop.engines import EventDriven, LiveBatch, Push, Steps

    makers: dict[str, Any] = {
        "fully connected": lambda rng: GRAPHS["fully connected"](rng, "LIF"),
        "recurrent": recurrent,
        "convolutional": convolutional,
    }
    for label, make in makers.items():
        graphs = [make(generator(seed)) for seed in range(3)]
        shape = tuple(graphs[0].nodes["input"].input_type["input"])
        engine, x = from_nir(graphs, dt=1e-3, engine=name), counts(shape, rows=60, steps=30) > 0
        assert isinstance(engine.engine, EventDriven) and engine.engine.members == 3
        alone = [outputs_of(from_nir(graph, dt=1e-3, engine=name), x) for graph in graphs]
        np.testing.assert_array_equal(outputs_of(engine, x), np.concatenate(alone, axis=2))
        scores = engine.score(x[:40], generator(8).integers(0, alone[0].shape[-1], 40))
        rule = ag.AgreeStop(0.3, range(1, 31), 1).calibrate(scores)
        batch = LiveBatch(rule, engine.engine, 20)
        rows, expected = [batch.open(number) for number in range(20)], engine.decide(rule, x[40:])
        for frames in x[40:].swapaxes(0, 1):
            steps = [Steps.of([np.flatnonzero(frame)]) for frame in frames]
            batch.push([Push(row, one) for row, one in zip(rows, steps, strict=True)])
        assert [row.decision for row in rows] == list(expected.decisions), label
        assert len({row.decision.time for row in rows if row.decision is not None}) > 1
        resets = ["subtract", "zero"]
        other = from_nir(graphs[:2], dt=1e-3, reset=resets, engine=name)
        alone = [
            outputs_of(from_nir(graph, dt=1e-3, reset=reset, engine=name), x)
            for graph, reset in zip(graphs[:2], resets, strict=True)
        ]
        np.testing.assert_array_equal(outputs_of(other, x), np.concatenate(alone, axis=2))


def test_the_digest_tells_graphs_resets_and_steps_apart() -> None:
    graph = EVENT_CASES["recurrent LIF"]
    digests = [
        from_nir(graph, dt=dt, reset=reset).digest
        for dt in (1e-3, 5e-4)
        for reset in ("graph", "subtract")
    ]
    assert len(set(digests)) == 4 and from_nir(graph, dt=1e-3).digest == digests[0]


def test_other_connections_run_on_the_dense_engine() -> None:
    """A feedback over two layers and a skip connection, against plain numpy; the event-driven
    engine says why it cannot.
    """
    rng = generator(4)
    nodes = {
        "input": nir.Input(np.array([6])),
        "in": linear(rng, 6, 8),
        "a": neurons("LIF", (8,), rng),
        "ab": linear(rng, 8, 8),
        "b": neurons("LIF", (8,), rng),
        "ba": linear(rng, 8, 8),
        "out": linear(rng, 8, 3),
        "c": neurons("IF", (3,), rng),
        "skip": linear(rng, 6, 3),
        "output": nir.Output(np.array([3])),
    }
    edges = [
        ("input", "in"),
        ("in", "a"),
        ("a", "ab"),
        ("ab", "b"),
        ("b", "ba"),
        ("ba", "a"),
        ("b", "out"),
        ("out", "c"),
    ]
    graph = nir.NIRGraph(nodes, [*edges, ("input", "skip"), ("skip", "c"), ("c", "output")])
    engine = from_nir(graph, dt=1e-3)
    assert engine.engine.name == "dense" and "chains of layers" in engine.engine.reason
    refused(lambda: from_nir(graph, dt=1e-3, engine="event-driven"), "chains of layers")
    x = counts((6,), rows=1, rate=0.4)
    a, b, c = (simulate_step(graph, name) for name in "abc")
    feedback, expected = np.zeros(8), []
    for frame in x[0].astype(float):
        feedback = b(
            nodes["ab"].weight @ a(nodes["in"].weight @ frame + nodes["ba"].weight @ feedback)
        )
        expected.append(c(nodes["out"].weight @ feedback + nodes["skip"].weight @ frame))
    np.testing.assert_array_equal(outputs_of(engine, x)[0, :, 0], expected)


def test_subgraphs_are_as_their_nodes() -> None:
    rng = generator(6)
    first, second = linear(rng, 9, 12), linear(rng, 12, 4)
    inner, last = neurons("CubaLIF", (12,), rng), neurons("CubaLIF", (4,), rng)
    flat = chain(first, inner, second, last)
    nested = nir.NIRGraph(
        {
            "input": nir.Input(np.array([9])),
            "sub": chain(first, inner),
            "second": second,
            "last": last,
            "output": nir.Output(np.array([4])),
        },
        [("input", "sub"), ("sub", "second"), ("second", "last"), ("last", "output")],
    )
    x = counts((9,))
    report = compare(from_nir(flat, dt=1e-3), from_nir(nested, dt=1e-3), x)
    assert report.equal and "equal" in str(report)


def test_a_comparison_tells_where_engines_part() -> None:
    graph = EVENT_CASES["recurrent CubaLIF"]
    x = counts((9,), rows=6, steps=50)
    report = compare(from_nir(graph, dt=1e-3), from_nir(graph, dt=1e-3, reset="subtract"), x)
    assert not report.equal and (report.difference == 1).any() and report.same_class[-1] < 1
    first = report.first_difference[report.first_difference > 0].min()
    assert report.difference[first - 1] == 1 and not report.difference[: first - 1].any()
    assert f"first at step {first}" in str(report) and len(str(report).splitlines()) <= 11
    refused(
        lambda: compare(from_nir(graph, dt=1e-3), from_nir(EVENT_CASES["wide"], dt=1e-3), x),
        "classes",
    )


# ---- our networks in NIR

EQUAL_TIMES = ag.networks.Neuron(membrane_time=6.0, synapse_time=2.0, refractory_time=6.0)


@pytest.mark.parametrize("name", ["fully connected", "resnet"])
def test_our_networks_are_the_same_in_nir(name: str, tmp_path: Path) -> None:
    """Up to the roundings of other constants: a spike in a thousand may move."""
    import torch

    settings: Any = ag.networks.FullyConnected(
        (2, 4, 4), 3, members=2, hidden=(30,), neuron=EQUAL_TIMES
    )
    if name == "resnet":
        settings = ag.networks.ResNet18(
            (2, 8, 8), 3, members=2, width=2, neuron=EQUAL_TIMES, real_input=False
        )
    network = ag.networks.SpikingNetwork(settings, torch.Generator().manual_seed(0)).eval()
    with torch.no_grad():
        parts: list[Any] = list(network.modules())
        for part in parts:
            if hasattr(part, "running_mean"):
                part.running_mean.normal_(0, 0.1)
                part.bias.uniform_(0.0, 0.4)
        layers: list[Any] = list(network.layers)
        for index, layer in enumerate(layers):
            layer.synapses.weight.mul_(
                4.0 if name == "fully connected" or index == len(layers) - 1 else 1.0
            )
    graphs = to_nir(network, dt=1e-3)
    for number, graph in enumerate(graphs):
        nir.write(tmp_path / f"{number}.nir", graph)
    engine = from_nir([tmp_path / "0.nir", tmp_path / "1.nir"], dt=1e-3, reset="subtract")
    assert engine.engine.name == ("dense" if name == "resnet" else "event-driven")
    x = generator(0).random((6, 60, *settings.input_shape)) < 0.3
    report = compare(ag.engines.Dense(network), engine, x)
    assert report.totals[0].sum() > 100
    assert (
        np.abs(report.totals[0] - report.totals[1]).sum() < 2e-3 * report.totals[0].sum()
        and report.same_class.mean() > 0.99
    )


def test_what_nir_cannot_say_is_refused() -> None:
    import torch

    def network(settings: Any) -> Any:
        return ag.networks.SpikingNetwork(settings, torch.Generator().manual_seed(0))

    refused(
        lambda: to_nir(network(ag.networks.FullyConnected((4,), 3))), "refractory time of its own"
    )
    refused(
        lambda: to_nir(
            network(
                ag.networks.Convolutional(
                    (1, 4, 4), 3, channels=(2,), hidden=(4,), neuron=EQUAL_TIMES
                )
            )
        ),
        "no max-pool",
    )
    refused(
        lambda: to_nir(
            network(ag.networks.ResNet18((1, 4, 4), 3, width=1, neuron=EQUAL_TIMES, timed=2))
        ),
        "timed=0",
    )
    refused(lambda: to_nir(torch.nn.Linear(2, 2)), "is a Linear")
    refused(
        lambda: to_nir(network(ag.networks.FullyConnected((4,), 3, neuron=EQUAL_TIMES)), dt=0),
        "dt is 0",
    )


# ---- networks published with the NIR paper

FOLDER = Path(os.environ.get("AGREESTOP_NIR", "missing"))
published = pytest.mark.skipif(
    not FOLDER.is_dir(),
    reason="the .nir files of the NIR paper are not here: make peers NIR=FOLDER",
)


@published
@pytest.mark.parametrize(
    ("name", "reset", "least"),
    [("bias_zero", "graph", 0.93), ("noBias_subtract", "subtract", 0.93)],
)
def test_published_braille_networks_run_alike_on_both_engines(
    name: str, reset: str, least: float
) -> None:
    path = FOLDER / f"braille_noDelay_{name}.nir"
    dense, events = (
        from_nir(path, dt=1e-4, reset=reset, engine=engine) for engine in ("dense", "event-driven")
    )
    assert compare(dense, events, counts((12,), rows=20, steps=256) > 0).equal
    if (data := os.environ.get("AGREESTOP_BRAILLE")) is None:
        pytest.skip(
            "both engines agree; the accuracy needs the Braille letters: make peers NIR=FOLDER "
            "BRAILLE=FILE"
        )
    file = np.load(data)
    assert (
        outputs_of(events, file["x_test"]).sum(axis=1)[:, 0].argmax(axis=1) == file["y_test"]
    ).mean() >= least
