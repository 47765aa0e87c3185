"""Modules of the user as members: outputs, state, gradients, draws from a posterior, and one
sentence for each broken contract.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from agreestop.common import InputError
from agreestop.networks import ModuleMembers, ModulePosterior
from tests.networks.plain import generator, random_spikes, refused

INPUTS, CLASSES, BATCH, STEPS = 12, 3, 5, 6


class Leaky(nn.Module):
    """A leaky integrator of a linear layer; `form` names how it packs its state."""

    def __init__(self, seed: int = 0, form: str = "tensor", classes: int = CLASSES) -> None:
        super().__init__()
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            self.linear, self.form = nn.Linear(INPUTS, classes), form

    def forward(self, x: Tensor, state: Any) -> Any:
        before = torch.zeros(len(x), self.linear.out_features) if state is None else unpacked(state)
        after = 0.8 * before + self.linear(x)
        return after, FORMS[self.form](after)


class Stateless(nn.Module):
    """Another module without state; `returns` makes the returned value from its output."""

    def __init__(self, module: nn.Module, returns: Any = lambda value: (value, None)) -> None:
        super().__init__()
        self.module, self.returns = module, returns

    def forward(self, x: Tensor, state: Any) -> Any:
        return self.returns(self.module(x))


class Pair(NamedTuple):
    value: Tensor
    time: int


@dataclass
class Kept:
    value: Tensor
    name: str = "integral"


FORMS: dict[str, Any] = {
    "tensor": lambda value: value,
    "tuple": lambda value: (value, None),
    "list": lambda value: [value, 3],
    "dictionary": lambda value: {"value": value, "on": True},
    "named tuple": lambda value: Pair(value, 2),
    "dataclass": lambda value: Kept(value),
    "no rows": lambda value: (value, torch.zeros(())),
    "object": lambda value: (value, object()),
}


def unpacked(state: Any) -> Tensor:
    if isinstance(state, (Pair, Kept)):
        return state.value
    if isinstance(state, dict):
        return state["value"]
    return state if isinstance(state, Tensor) else state[0]


def frames(steps: int = STEPS, batch: int = BATCH) -> Tensor:
    return random_spikes(steps, batch, INPUTS)


def three(form: str = "tensor") -> ModuleMembers:
    return ModuleMembers([Leaky(seed, form) for seed in range(3)])


def test_outputs_are_those_of_each_module_run_by_hand() -> None:
    network, x = three(), frames()
    outputs, state = network(x)
    assert outputs.shape == (STEPS, 3, BATCH, CLASSES) and outputs.requires_grad
    for index, module in enumerate(network.each):
        current: Any = None
        for t in range(STEPS):
            value, current = module(x[t], current)
            torch.testing.assert_close(outputs[t, index], value)
        torch.testing.assert_close(state.members[index], current)


def test_a_sequence_in_chunks_gives_the_outputs_of_the_whole() -> None:
    network, x = three(), frames()
    first, state = network(x[:2])
    second, _ = network(x[2:], state)
    torch.testing.assert_close(torch.cat([first, second]), network(x)[0], rtol=0, atol=0)


def test_an_image_is_held_for_its_steps() -> None:
    network, image = three(), frames(1)
    held, state = network(image, steps=4)
    torch.testing.assert_close(held, network(image.expand(4, -1, -1))[0], rtol=0, atol=0)
    torch.testing.assert_close(
        network(image, state, 2)[0], network(image, steps=6)[0][4:], rtol=0, atol=0
    )


@pytest.mark.parametrize("form", [form for form in FORMS if form not in ("no rows", "object")])
def test_rows_that_are_dropped_do_not_change_the_others(form: str) -> None:
    network, x, kept = three(form), frames(), torch.tensor([4, 0, 2])
    _, state = network(x[:3])
    fewer = state.rows(kept)
    assert fewer.batch == 3 and type(fewer.members[0]) is type(state.members[0])
    torch.testing.assert_close(
        network(x[3:, kept], fewer)[0], network(x)[0][3:, :, kept], rtol=1e-6, atol=1e-6
    )


def test_members_train_independently() -> None:
    """The gradient of the summed loss is, for each member, the gradient of its own loss."""
    network, x = three(), frames()
    labels = torch.arange(BATCH) % CLASSES

    def loss(outputs: Tensor) -> Any:
        steps, members = outputs.shape[:2]
        return members * nn.functional.cross_entropy(
            outputs.reshape(-1, CLASSES), labels.repeat(steps * members)
        )

    loss(network(x)[0]).backward()
    for index, module in enumerate(network.each):
        single = ModuleMembers([copy.deepcopy(module)])
        single.zero_grad()
        loss(single(x)[0]).backward()
        for one, other in zip(network.each[index].parameters(), single.parameters(), strict=True):
            assert one.grad is not None and one.grad.any()
            torch.testing.assert_close(one.grad, other.grad)


def test_shape_and_classes_are_known_after_a_call_or_from_a_run_on_zeros() -> None:
    network = three()
    assert network.members == 3 and network.input_shape is None and network.output == "logits"
    refused(
        lambda: network.classes,
        "the number of classes is not known yet: give input_shape, the shape of one step",
    )
    network(frames())
    assert network.input_shape == (INPUTS,) and network.classes == CLASSES
    noisy = nn.Sequential(nn.Linear(INPUTS, 4), nn.BatchNorm1d(4), nn.Dropout())
    network = ModuleMembers([Stateless(noisy)], input_shape=(INPUTS,))
    before, random_state = copy.deepcopy(network.state_dict()), torch.get_rng_state()
    assert network.classes == 4 and network.training and noisy.training
    assert torch.equal(random_state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_spikes_are_zeros_and_ones() -> None:
    class Threshold(nn.Module):
        def forward(self, x: Tensor, state: Any) -> Any:
            return x[:, :CLASSES] > 0, state

    outputs, _ = ModuleMembers([Threshold()], output="spikes")(frames())
    assert outputs.dtype == torch.float32 and torch.equal(outputs[:, 0], frames()[..., :CLASSES])
    refused(
        lambda: ModuleMembers([Leaky()], output="spikes")(frames()),
        'values other than 0 and 1: give output="logits"',
    )


def test_a_broken_contract_is_refused_in_one_sentence() -> None:
    linear = nn.Linear(INPUTS, CLASSES)

    def call(returns: Any) -> Any:
        return lambda: ModuleMembers([Stateless(linear, returns)])(frames())

    refused(
        call(lambda value: value),
        r"module 0 returned a Tensor: it must return the pair \(output, state\)",
    )
    refused(call(lambda value: (None, None)), "output of module 0 is a NoneType")
    refused(call(lambda value: (value[0], None)), r"shape \(3,\): real numbers \(batch, classes\)")
    refused(
        call(lambda value: (value * 1j, None)), r"torch.complex64 of shape \(5, 3\): real numbers"
    )
    refused(call(lambda value: (value[:2], None)), r"here \(5, classes\)")
    refused(
        lambda: ModuleMembers([Leaky(), Leaky(classes=4)])(frames()),
        "the members give 3, 4 classes",
    )
    refused(
        lambda: three("no rows")(frames()),
        r"shape \(\) for 5 inputs: make the batch its first axis",
    )
    refused(lambda: three("object")(frames()), "the state holds a object")
    refused(
        lambda: ModulePosterior(Leaky(form="no rows"), 2).read_out(frames(), generator()),
        "make the batch its first axis",
    )
    refused(lambda: ModuleMembers([]), "give one torch.nn.Module for each member")
    refused(lambda: ModuleMembers(None), "modules is not a list of torch modules")  # type: ignore[arg-type]
    refused(lambda: ModuleMembers(Leaky()), r"\(it is a Leaky\): give one .* such as \[module\]")  # type: ignore[arg-type]
    refused(lambda: ModuleMembers([Leaky]), "modules is not a list of torch modules")  # type: ignore[list-item]
    refused(lambda: ModuleMembers([linear, linear]), "the same module more than once")
    refused(lambda: ModuleMembers([linear], output="rates"), "output is 'rates'")
    network = three()
    _, state = network(frames())
    refused(
        lambda: network(frames(batch=4), state),
        "state is for 5 inputs and 3 members, and x has 4 inputs",
    )
    refused(
        lambda: network(frames()[..., :3]), r"x has shape \(6, 5, 3\): \(T, batch, 12\) is needed"
    )
    refused(lambda: network(frames()[:0]), "at least one time step")
    refused(lambda: network(frames(), steps=3), "steps is 3 with 6 time steps in x")
    refused(lambda: network(frames(1), steps=0), "steps is 0")


@pytest.mark.parametrize(
    "module",
    [nn.Linear(INPUTS, CLASSES), Leaky(), nn.LSTM(INPUTS + 1, CLASSES), nn.LSTM(INPUTS, CLASSES)],
)
def test_a_module_that_takes_no_single_steps_is_refused_in_one_sentence(module: nn.Module) -> None:
    """One argument alone, inputs of another width, a layer for whole sequences: PyTorch's own error
    stays behind the sentence.
    """
    width = INPUTS + 2 if isinstance(module, Leaky) else INPUTS
    with pytest.raises(InputError, match=r"\(x_t, state\)|its first axis") as found:
        ModuleMembers([module])(random_spikes(STEPS, BATCH, width))
    assert len(str(found.value)) < 300
    assert "batch" in str(found.value) or isinstance(
        found.value.__cause__, (RuntimeError, TypeError, ValueError)
    )


def test_a_lack_of_memory_is_not_taken_for_a_broken_contract() -> None:
    class Hungry(nn.Module):
        def forward(self, x: Tensor, state: Any) -> Any:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    with pytest.raises(RuntimeError, match="allocate memory"):
        ModuleMembers([Hungry()])(frames())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_outputs_may_have_any_floating_type(dtype: torch.dtype) -> None:
    outputs, _ = ModuleMembers(
        [Stateless(nn.Linear(INPUTS, CLASSES), lambda value: (value.to(dtype), None))]
    )(frames())
    assert outputs.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_the_input_shape_may_be_one_number() -> None:
    assert (
        ModuleMembers([Leaky()], input_shape=INPUTS).input_shape
        == (INPUTS,)
        == ModulePosterior(Leaky(), 2, input_shape=INPUTS).input_shape
    )
    refused(
        lambda: ModuleMembers([Leaky()], input_shape=0), "input_shape is 0: integers of at least 1"
    )
    refused(lambda: ModuleMembers([Leaky()], input_shape="12"), "input_shape is '12'")  # type: ignore[arg-type]


# ---- a posterior over the weights of a module


def test_a_member_of_a_posterior_is_one_draw_for_the_whole_sequence() -> None:
    posterior, x = ModulePosterior(Leaky(), 4), frames()
    outputs, network = posterior.read_out(x, generator(7)), posterior.members(generator(7))
    assert outputs.shape == (STEPS, 4, BATCH, CLASSES) and network.members == 4
    torch.testing.assert_close(outputs, network(x)[0])
    assert not torch.equal(outputs[:, 0], outputs[:, 1]) and not torch.equal(
        outputs, posterior.read_out(x, generator(8))
    )
    assert (posterior.member_count, posterior.classes, posterior.input_shape, posterior.output) == (
        4,
        CLASSES,
        (INPUTS,),
        "logits",
    )


def test_weights_are_drawn_and_biases_are_point_estimates() -> None:
    posterior = ModulePosterior(Leaky(), 1000)
    drawn, mean = posterior.draw(generator()), dict(posterior.mean.named_parameters())
    assert torch.equal(drawn["linear.bias"], mean["linear.bias"].expand(1000, -1))
    weight = mean["linear.weight"]
    deviation = 0.3 * float(weight.detach().std())
    torch.testing.assert_close(
        drawn["linear.weight"].mean(0), weight, rtol=0, atol=5 * deviation / math.sqrt(1000)
    )
    torch.testing.assert_close(
        drawn["linear.weight"].std(0), torch.full_like(weight, deviation), rtol=0.15, atol=0
    )


def test_the_penalty_is_the_divergence_from_the_prior_and_all_parameters_have_a_gradient() -> None:
    module = Leaky()
    posterior = ModulePosterior(module, 2, prior_variance=0.1, initial_deviation=0.5)
    q = torch.distributions.Normal(
        module.linear.weight, posterior.log_deviation["linear/weight"].exp()
    )
    expected = torch.distributions.kl_divergence(
        q, torch.distributions.Normal(0.0, math.sqrt(0.1))
    ).sum()
    torch.testing.assert_close(posterior.penalty(), expected)
    loss: Any = posterior.read_out(frames(), generator()).square().sum() + posterior.penalty()
    loss.backward()
    assert all(value.grad is not None and value.grad.any() for value in posterior.parameters())


def test_an_image_is_held_and_its_burn_in_has_no_gradient() -> None:
    posterior, image = ModulePosterior(Leaky(), 2), frames(1)
    whole, burnt = (posterior.read_out(image, generator(), 6, burn_in) for burn_in in (0, 2))
    torch.testing.assert_close(burnt, whole)
    for outputs, expected in ((whole[:2], True), (burnt[:2], False), (burnt[2:], True)):
        (gradient,) = torch.autograd.grad(
            outputs.sum(),
            [posterior.log_deviation["linear/weight"]],
            retain_graph=True,
            allow_unused=True,
        )
        assert (gradient is not None and bool(gradient.any())) == expected


def test_another_number_of_members_comes_from_the_same_posterior() -> None:
    posterior = ModulePosterior(Leaky(), 2, input_shape=(INPUTS,))
    more = posterior.with_members(5)
    assert more.member_count == 5 and posterior.member_count == 2 and more.classes == CLASSES
    assert all(
        torch.equal(value, more.state_dict()[name])
        for name, value in posterior.state_dict().items()
    )
    assert more.members(generator()).input_shape == (INPUTS,)


def test_a_constant_weight_starts_with_the_deviation_of_the_prior() -> None:
    module = Leaky()
    nn.init.zeros_(module.linear.weight)
    posterior = ModulePosterior(module, 2, prior_variance=0.04)
    torch.testing.assert_close(
        posterior.log_deviation["linear/weight"].exp(), torch.full((CLASSES, INPUTS), 0.3 * 0.2)
    )


def test_a_module_without_weights_is_refused() -> None:
    refused(
        lambda: ModulePosterior(nn.BatchNorm1d(3), 2),
        "the module, a BatchNorm1d, has no trainable parameter with two axes or more",
    )
    refused(lambda: ModulePosterior(None, 2), "the module, a NoneType, has no trainable parameter")  # type: ignore[arg-type]
    refused(lambda: ModulePosterior(Leaky(), 2, prior_variance="1"), "prior_variance is '1'")  # type: ignore[arg-type]
    refused(lambda: ModulePosterior(Leaky(), 0), "member_count is 0: give an integer of at least 1")
    refused(
        lambda: ModulePosterior(Leaky(), 2, prior_variance=0.0),
        "prior_variance is 0.0: give a positive, finite number",
    )
    refused(lambda: ModulePosterior(Leaky(), 2, output="rates"), "output is 'rates'")
