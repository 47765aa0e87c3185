"""The architectures: shapes, state, members, permutations, supplied weights, and the counts of
operations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from agreestop.networks import (
    SRM,
    Architecture,
    Convolutional,
    FullyConnected,
    Neuron,
    Posterior,
    ResNet18,
    SpikingNetwork,
)
from agreestop.networks.architectures import BuiltIn, NetworkState
from agreestop.networks.layers import MemberLinear, SpikingLayer
from tests.networks.plain import generator, gradients, random_spikes, refused

EAGER = Neuron(membrane_time=1.0, synapse_time=0.5, threshold=0.1)
CONFIGS: dict[str, BuiltIn] = {
    "fully-connected": FullyConnected((2, 8, 8), 3, members=2, hidden=(12,), neuron=EAGER),
    "convolutional": Convolutional(
        (2, 8, 8), 3, members=2, channels=(4, 5), hidden=(7,), neuron=EAGER, real_input=False
    ),
    "resnet18": ResNet18((2, 8, 8), 3, members=2, width=3, neuron=EAGER, real_input=False),
    "resnet18, timed": ResNet18(
        (2, 8, 8), 3, members=2, width=3, neuron=EAGER, real_input=False, timed=3
    ),
}
every_architecture = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


def network_of(config: Architecture, seed: int = 0) -> SpikingNetwork:
    """A network in evaluation mode whose batch norms have different statistics and gains."""
    network = SpikingNetwork(config, generator(seed))
    draws = generator(seed + 100)
    with torch.no_grad():
        for name, value in network.state_dict().items():
            if name.endswith(("running_mean", "norm.bias")):
                value.normal_(0, 0.1, generator=draws)
            elif name.endswith(("running_var", "norm.weight")):
                value.uniform_(0.3, 0.6, generator=draws)
    return network.eval()


def frames(steps: int = 6, batch: int = 3, seed: int = 5) -> Tensor:
    return random_spikes(steps, batch, 2, 8, 8, seed=seed)


def assert_same(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def flat(state: Any) -> list[Tensor]:
    return [value for layer in state.layers for value in layer]


@every_architecture
def test_read_out_spikes_are_zeros_and_ones_for_each_member_and_class(config: Architecture) -> None:
    spikes, state = network_of(config)(frames())
    assert spikes.shape == (6, 2, 3, 3)
    assert set(spikes.unique().tolist()) == {0.0, 1.0}
    assert len(state.layers) == len(config.layers()) and state.time == len(frames())
    assert all(value.shape[:2] == (2, 3) for value in flat(state))


@every_architecture
def test_the_same_generator_gives_the_same_network(config: Architecture) -> None:
    one, other = (SpikingNetwork(config, generator(4)).eval()(frames())[0] for _ in range(2))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@every_architecture
def test_permuting_the_batch_permutes_the_outputs(config: Architecture) -> None:
    network, order = network_of(config), torch.tensor([2, 0, 1])
    spikes, state = network(frames())
    permuted, permuted_state = network(frames()[:, order])
    assert_same(permuted, spikes[:, :, order])
    assert_same(flat(permuted_state), [value[:, order] for value in flat(state)])


@every_architecture
def test_each_member_equals_a_network_with_one_member(config: Architecture) -> None:
    together = network_of(config)
    spikes, _ = together(frames())
    own, _ = together(torch.stack([frames(), frames(seed=6)], 1))
    assert not torch.equal(spikes[:, 0], spikes[:, 1])
    for k in range(2):
        single = SpikingNetwork(replace(config, members=1), generator()).eval()
        single.load_state_dict(
            {name: value[k : k + 1] for name, value in together.state_dict().items()}
        )
        assert_same(single(frames())[0], spikes[:, k : k + 1])
        assert_same(single(frames(seed=5 + k))[0], own[:, k : k + 1])


@every_architecture
def test_a_sequence_in_chunks_gives_the_same_as_the_whole(config: Architecture) -> None:
    network = network_of(config)
    whole, end, done = network.count(frames())
    state, parts, counts = None, [], []
    for chunk in torch.tensor_split(frames(), (1, 4)):
        spikes, state, activity = network.count(chunk, state)
        parts.append(spikes)
        counts.append(activity)
    assert_same(torch.cat(parts), whole)
    assert_same(flat(state), flat(end))
    for name in ("spikes", "accumulates", "multiplies"):
        assert torch.equal(
            torch.cat([getattr(part, name) for part in counts], 1), getattr(done, name)
        )


@every_architecture
def test_inputs_can_be_dropped(config: Architecture) -> None:
    network, keep = network_of(config), torch.tensor([2, 0])
    whole, _ = network(frames())
    _, state = network(frames()[:2])
    left = state.rows(keep)
    assert_same(network(frames()[2:, keep], left)[0], whole[2:, :, keep])


@every_architecture
@pytest.mark.parametrize("training", [True, False])
def test_a_held_image_equals_the_repeated_image(config: Architecture, training: bool) -> None:
    network = network_of(config).train(training)
    image = torch.rand(1, 3, 2, 8, 8, generator=generator(2))
    held, state = network(image, steps=5)
    if (
        isinstance(config, ResNet18) and config.timed
    ):  # an image is normalised once, with the statistics of the first step
        stem = network.layers[0].norm
        assert stem is not None
        for value in (stem.running_mean, stem.running_var):
            value[:] = value[:, :1].clone()
        held, state = network(image, steps=5)
    repeated, repeated_state = network(image.repeat(5, 1, 1, 1, 1))
    assert held.shape == (5, 2, 3, 3)
    assert_same(held, repeated)
    assert_same(flat(state), flat(repeated_state))


@every_architecture
def test_gradients_reach_every_weight(config: BuiltIn) -> None:
    network = SpikingNetwork(
        replace(config, neuron=replace(config.neuron, learned=True)), generator()
    )
    spikes, _ = network(frames())
    (spikes * torch.randn(spikes.shape, generator=generator(1))).sum().backward()
    for name, value in network.named_parameters():
        assert value.shape[0] == 2, name
        assert (
            value.grad is not None
            and bool(value.grad.isfinite().all())
            and value.grad.abs().sum() > 0
        ), name


@every_architecture
def test_supplied_weights_are_used_and_gradients_reach_them(config: Architecture) -> None:
    """Variational inference needs this: weights = mean + deviation · noise, with one draw for the
    whole sequence.
    """
    network, other = network_of(config), network_of(config, seed=1)
    means = {
        name: value.detach().clone().requires_grad_() for name, value in other.named_parameters()
    }
    deviations = {
        name: torch.full_like(value, 1e-8).requires_grad_() for name, value in means.items()
    }
    draws = generator(3)
    weights = {
        name: means[name] + deviations[name] * torch.randn(means[name].shape, generator=draws)
        for name in means
    }
    own = {name: value.clone() for name, value in network.named_parameters()}
    buffers = dict(other.named_buffers())
    spikes, state = functional_call(network, {**weights, **buffers}, (frames(),))
    assert_same(spikes, other(frames())[0])
    (spikes * torch.randn(spikes.shape, generator=draws)).sum().backward()
    for name in means:
        assert means[name].grad is not None and means[name].grad.abs().sum() > 0, name  # type: ignore[union-attr]
        assert deviations[name].grad is not None and deviations[name].grad.abs().sum() > 0, name  # type: ignore[union-attr]
    assert all(
        value.grad is None and torch.equal(value, own[name])
        for name, value in network.named_parameters()
    )
    assert len(state.layers) == len(network.layers)


def test_operations_of_a_fully_connected_network() -> None:
    network = network_of(CONFIGS["fully-connected"])
    spikes, _, done = network.count(frames())
    x = frames().flatten(2)
    assert len(done.spikes) == 2
    assert done.spikes.shape == done.accumulates.shape == done.multiplies.shape == (2, 6, 2, 3)
    assert torch.equal(done.spikes[1], spikes.sum(-1).long())
    assert torch.equal(done.accumulates[0], (12 * x.sum(-1).long()).unsqueeze(1).expand(-1, 2, -1))
    assert torch.equal(done.accumulates[1], 3 * done.spikes[0])
    assert done.spikes[0].sum() > 0
    assert not done.multiplies.any()


def test_operations_of_a_held_real_valued_image() -> None:
    network = network_of(replace(CONFIGS["fully-connected"], real_input=True))
    image = torch.rand(1, 3, 2, 8, 8, generator=generator(2)) + 0.1
    _, _, done = network.count(image, steps=4)
    assert torch.equal(done.multiplies[0, 0], torch.full((2, 3), 128 * 12))
    assert (
        not done.multiplies[0, 1:].any()
        and not done.multiplies[1].any()
        and not done.accumulates[0].any()
    )
    assert torch.equal(done.accumulates[1], 3 * done.spikes[0])


def test_operations_of_a_residual_network_include_shortcuts_and_the_average() -> None:
    """A convolution with weights of one counts each synapse that a spike reaches."""
    network = network_of(CONFIGS["resnet18"])
    seen: list[Tensor] = []

    def keep(module: nn.Module, given: tuple[Any, ...], found: Any) -> None:
        seen.append(found[0])

    for layer in network.layers:
        layer.register_forward_hook(keep)
    _, _, done = network.count(frames())
    ones = [spikes.flatten(3).sum(-1).long() for spikes in seen]
    assert torch.equal(done.spikes, torch.stack(ones))
    assert all(count.sum() > 0 for count in ones)
    assert torch.equal(done.accumulates[-1], 3 * ones[-2])

    def reached(spikes: Tensor, outputs: int, size: int, stride: int) -> Tensor:
        kernel = torch.ones(outputs, spikes.shape[3], size, size)
        images = nn.functional.conv2d(
            spikes.flatten(0, 2), kernel, stride=stride, padding=size // 2
        )
        return images.sum((1, 2, 3)).round().long().view(spikes.shape[:3])

    assert torch.equal(done.accumulates[2], reached(seen[1], 3, 3, 1) + ones[0])
    assert torch.equal(done.accumulates[4], reached(seen[3], 3, 3, 1) + ones[2])
    assert torch.equal(done.accumulates[5], reached(seen[4], 6, 3, 2))
    assert torch.equal(done.accumulates[6], reached(seen[5], 6, 3, 1) + reached(seen[4], 6, 1, 2))


def test_operations_of_a_convolutional_network_count_spikes_after_the_pool() -> None:
    _, _, done = network_of(CONFIGS["convolutional"]).count(frames())
    assert done.spikes.shape[0] == 4
    assert bool((done.accumulates[2] <= 7 * done.spikes[1]).all()) and done.accumulates[2].sum() > 0
    assert torch.equal(done.accumulates[3], 3 * done.spikes[2])


@every_architecture
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_run(config: Architecture, dtype: torch.dtype) -> None:
    network = SpikingNetwork(config, generator()).to(dtype)
    spikes, _ = network(frames().to(dtype))
    spikes.sum().backward()
    assert spikes.dtype == dtype
    assert all(
        value.grad is not None and bool(value.grad.isfinite().all())
        for value in network.parameters()
    )


def test_a_small_network_learns() -> None:
    """The network learns in a few steps which half of the input fires at a higher rate."""
    network = SpikingNetwork(FullyConnected((20,), 2, members=3, hidden=(16,)), generator())
    labels = torch.arange(40) % 2
    rates = torch.where((torch.arange(20) < 10) == (labels[:, None] == 0), 0.4, 0.1)
    x = (torch.rand(30, 40, 20, generator=generator(1)) < rates).float()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(30):
        counts = network(x)[0].sum(0)
        loss = nn.functional.cross_entropy(counts.flatten(0, 1), labels.repeat(3))
        for value, slope in zip(
            network.parameters(), gradients(loss, list(network.parameters())), strict=True
        ):
            value.grad = slope
        optimizer.step()
    counts = network(x)[0].sum(0)
    assert (counts.argmax(-1) == labels).float().mean() > 0.95


def test_the_sizes_of_the_paper() -> None:
    hidden, read_out = FullyConnected((2, 26, 26), 10, members=6).layers()
    assert hidden.synapses.weight.shape == (6, 1352, 1000) and read_out.synapses.weight.shape == (
        6,
        1000,
        10,
    )
    shapes = [
        tuple(layer.synapses.weight.shape[1:])
        for layer in Convolutional((2, 128, 128), 11).layers()
    ]
    assert shapes == [(128, 2, 3, 3), *[(128, 128, 3, 3)] * 4, (2048, 512), (512, 11)]
    deep = ResNet18((3, 32, 32), 10)
    assert len(deep.layers()) == 18
    # no bias in the head
    assert (
        sum(value.numel() for layer in deep.layers() for value in layer.parameters())
        == 11_173_962 - 10
    )


@pytest.mark.parametrize("shape", [(), (12,), (3, 4), (2, 3, 4, 5)])
def test_a_fully_connected_network_takes_any_number_of_axes(shape: tuple[int, ...]) -> None:
    network = SpikingNetwork(
        FullyConnected(shape, 3, members=2, hidden=(7,), neuron=EAGER), generator()
    )
    x = random_spikes(6, 4, *shape)
    spikes, state = network(x)
    assert spikes.shape == (6, 2, 4, 3) and spikes.any()
    assert (network.members, network.classes, network.input_shape, network.output) == (
        2,
        3,
        shape,
        "spikes",
    )
    assert_same(network(x[:, [2, 0]])[0], spikes[:, :, [2, 0]])
    assert_same(flat(state.rows(torch.tensor([2, 0]))), [value[:, [2, 0]] for value in flat(state)])
    refused(lambda: network(x[..., None]), r"\(T, 2, batch")


def test_settings_take_integers_of_numpy_and_lists() -> None:
    given = FullyConnected([2, 3], np.int64(4), members=np.int32(2), hidden=[5])  # type: ignore[arg-type]
    assert given == FullyConnected((2, 3), 4, members=2, hidden=(5,)) and type(given.classes) is int


@dataclass(frozen=True)
class OneLayer:
    """An architecture that the package does not know."""

    input_shape: tuple[int, ...]
    classes: int
    members: int = 1
    real_input: bool = False

    def layers(self) -> list[SpikingLayer]:
        return [
            SpikingLayer(
                MemberLinear(self.members, self.input_shape[0], self.classes),
                None,
                SRM(self.members, EAGER),
            )
        ]


def test_an_own_architecture_is_any_dataclass_with_layers() -> None:
    network = SpikingNetwork(OneLayer((12,), 3, members=3), generator())
    spikes, _, activity = network.count(random_spikes(6, 4, 12))
    assert spikes.shape == (6, 3, 4, 3) and len(activity.spikes) == 1
    assert_same(network.select_members(slice(1, 3))(random_spikes(6, 4, 12))[0], spikes[:, 1:])
    posterior = Posterior(OneLayer((12,), 3, members=2), generator())
    assert posterior.read_out(random_spikes(6, 4, 12), generator()).shape == (6, 2, 4, 3)
    assert (posterior.member_count, posterior.classes, posterior.input_shape, posterior.output) == (
        2,
        3,
        (12,),
        "spikes",
    )


def test_one_number_is_a_shape_of_one_axis() -> None:
    assert FullyConnected(12, 3, hidden=16) == FullyConnected((12,), 3, hidden=(16,))  # type: ignore[arg-type]
    assert FullyConnected(np.array([12]), 3, hidden=[np.int64(16)]) == FullyConnected(  # type: ignore[arg-type]
        (12,), 3, hidden=(16,)
    )
    assert Convolutional((1, 4, 4), 3, channels=5, hidden=8) == Convolutional(  # type: ignore[arg-type]
        (1, 4, 4), 3, channels=(5,), hidden=(8,)
    )


def test_bad_settings_and_shapes_are_refused() -> None:
    refused(lambda: FullyConnected((5,), 0), "classes is 0: give an integer of at least 1")
    refused(lambda: FullyConnected((5,), 2, hidden=(3, -1)), "hidden is")
    refused(lambda: Convolutional((2, 8, 8), 3), "height and width of at least 32")
    refused(lambda: ResNet18((8, 8), 3), "channels, height, width")  # type: ignore[arg-type]
    refused(lambda: ResNet18((3, 8, 8), 3, width=0), "width is 0")
    refused(lambda: ResNet18((3, 8, 8), 3, timed=-1), "timed is -1: give an integer of at least 0")
    refused(lambda: FullyConnected(None, 2), "input_shape is None")  # type: ignore[arg-type]
    refused(lambda: FullyConnected((5,), (2,)), r"classes is \(2,\): give an integer")  # type: ignore[arg-type]
    refused(lambda: FullyConnected((5,), 2, neuron="fast"), "neuron is 'fast': give a Neuron")  # type: ignore[arg-type]
    refused(lambda: SpikingNetwork(None, generator()), "config is a NoneType")  # type: ignore[arg-type]
    refused(lambda: SpikingNetwork(FullyConnected(5, 2), 0), "generator a int: settings such as")  # type: ignore[arg-type]
    refused(
        lambda: SpikingNetwork(FullyConnected(5, 2), generator(), "wide"),  # type: ignore[arg-type]
        "deviation is 'wide'",
    )
    network = network_of(CONFIGS["convolutional"])
    refused(lambda: network(frames().numpy()), "x is a ndarray and state a NoneType")
    refused(lambda: network(frames(), 3), "state a int: a tensor")
    refused(
        lambda: network(frames()[:, :, :1]),
        r"x has shape \(6, 3, 1, 8, 8\).*\(T, batch, 2, 8, 8\) or \(T, 2, batch, 2, 8, 8\)",
    )
    refused(lambda: network(frames().long()), "int64: floating-point numbers")
    refused(lambda: network(frames().unsqueeze(1)), r"\(T, 2, batch")
    refused(lambda: network(frames()[:0]), "holds nothing")
    refused(lambda: network(frames(), steps=4), "steps is 4 with 6 time steps in x")
    refused(lambda: network(frames()[:1], steps=0), "steps is 0")
    refused(
        lambda: network(frames(), state=NetworkState((), 0)), "state has 0 layers and the network 4"
    )
    refused(lambda: network.count(0.5 * frames()), "set real_input=True")


@pytest.mark.parametrize("rates", (False, True))
def test_members_in_turn_compute_what_they_compute_together(rates: bool) -> None:
    """Outputs, state, gradients, running statistics and observed currents; with learned constants,
    and from a state.
    """
    neuron = replace(EAGER, learned=True)
    config: BuiltIn = ResNet18((3, 8, 8), 4, 2, 3, neuron, timed=2)
    if rates:  # a deep network of rates magnifies rounding
        config = Convolutional((3, 8, 8), 4, 2, (4, 5), (7,), neuron)
    x, found = torch.rand(3, 2, 3, 8, 8, generator=generator(1)), []
    for in_turn in (False, True):
        network = SpikingNetwork(config, generator(0), deviation=0.5).train()
        for module in network.modules():
            if isinstance(module, SRM):
                module.rates = rates
        seen: list[torch.Tensor] = []
        network.layers[-1].observe = seen.append
        run = network._run_in_turn if in_turn else network
        with torch.no_grad():
            _, state = run(x, None, None)
        spikes, after = run(x, state, None)
        (spikes.sum() + seen[-1].square().sum()).backward()
        grads = [value.grad for value in network.parameters() if value.grad is not None]
        found.append([spikes, seen[-1], *after.layers[1], *grads, *network.buffers()])
        assert after.time == 6 and len(seen) == 2
    assert len(found[0]) == len(found[1]) > 20
    for together, alone in zip(*found, strict=True):
        torch.testing.assert_close(alone, together, rtol=1e-3, atol=1e-4)  # sums in another order


def test_members_that_were_trained_one_by_one_are_joined() -> None:
    single = [
        SpikingNetwork(
            ResNet18((3, 8, 8), 3, width=3, timed=4), torch.Generator().manual_seed(seed)
        ).eval()
        for seed in range(3)
    ]
    together = SpikingNetwork.join_members(single).eval()
    x = torch.rand(1, 4, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 255
    spikes, _ = together(x, steps=5)
    for index, member in enumerate(single):
        torch.testing.assert_close(spikes[:, index : index + 1], member(x, steps=5)[0])
        torch.testing.assert_close(
            together.select_members(slice(index, index + 1))(x, steps=5)[0], member(x, steps=5)[0]
        )
