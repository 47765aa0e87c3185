"""The compiled CPU operators agree with PyTorch's: to the bit, or up to the order of a sum, for all
thread counts and memory layouts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from agreestop.kernels import SLOPES, Constants, Norm, SRMParameters, SRMState, Surrogate
from agreestop.networks import SRM, Convolutional, Neuron, SpikingNetwork, srm
from tests.networks.plain import generator, plain_loop, random_spikes

pytest.importorskip("numba", reason="numba, which compiles these operators, is not installed")

from agreestop.kernels.cpu import convolution as cpu_convolution
from agreestop.kernels.cpu import deep_training as cpu_deep_training
from agreestop.kernels.cpu import sparse_product as cpu_sparse
from agreestop.kernels.cpu import srm as cpu_srm

_NEAR = torch.full((40,), 1 + 2.0**-12)
FUSES = bool((torch.addcmul(torch.full((40,), -1 - 2.0**-11), _NEAR, _NEAR) == 2.0**-24).all())
same_roundings = pytest.mark.skipif(
    not FUSES, reason="PyTorch rounds a multiply-and-add twice on this processor"
)

MEMBERS_OUTERMOST, BATCH_OUTSIDE = (1, 0, 2, 3), (0, 2, 1, 3)
SHAPES = [
    ((20, 3, 5, 60), (0, 1, 2, 3)),
    ((20, 3, 5, 60), MEMBERS_OUTERMOST),
    ((20, 3, 5, 60), BATCH_OUTSIDE),
    ((20, 3, 5, 7), (3, 2, 1, 0)),
    ((9, 2, 3, 4, 5, 7), (0, 2, 1, 3, 4, 5)),
    ((1, 3, 2, 130), MEMBERS_OUTERMOST),
    ((7, 1, 3, 11), MEMBERS_OUTERMOST),
    ((6, 4, 1, 1), BATCH_OUTSIDE),
    ((8, 2, 5), (0, 1, 2)),
    ((8, 130), (0, 1)),
]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Set the number of threads, and use all of them for any amount of work."""
    before = torch.get_num_threads()
    for module in (cpu_srm, cpu_sparse, cpu_convolution, cpu_deep_training):
        monkeypatch.setattr(module, "WORTH_A_THREAD", 1)
    yield torch.set_num_threads
    torch.set_num_threads(before)


def stored(values: Tensor, order: tuple[int, ...]) -> Tensor:
    """The same values with this order of the axes in memory."""
    return (
        values.permute(order)
        .contiguous()
        .permute([order.index(axis) for axis in range(values.ndim)])
    )


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed))


def constants_of(parameters: SRMParameters) -> Constants:
    a, b = parameters.membrane_decay, parameters.synapse_decay
    return (
        a,
        b,
        parameters.refractory_decay,
        parameters.threshold,
        parameters.scale * (1 - a) * (1 - b),
    )


def fused(
    currents: Tensor, state: SRMState | None, parameters: SRMParameters
) -> tuple[Tensor, SRMState]:
    return cpu_srm.fused_srm(currents, state, constants_of(parameters), parameters.surrogate)


def unfused(
    currents: Tensor, state: SRMState | None, parameters: SRMParameters
) -> tuple[Tensor, SRMState]:
    return srm(currents, state, parameters, fused=False)


def parameters_of(
    members: int, steps: Tensor, name: str = "arctan", learned: bool = False
) -> SRMParameters:
    """Constants that differ slightly between members."""
    module = SRM(members, Neuron(threshold=0.8, surrogate=Surrogate(name), learned=learned))
    shift = torch.linspace(-0.1, 0.1, members) if members > 1 else torch.zeros(1)
    for value in module.state_dict().values():
        value.add_(shift)
    return module.parameters_for(steps)


def run(
    operator: Callable[..., Any],
    currents: Tensor,
    start: SRMState | None,
    parameters: SRMParameters,
    **leaves: Tensor,
) -> list[Tensor]:
    """Spikes, state after, and gradients in currents, state before and leaves, from a loss of
    spikes and of the state after.
    """
    x = currents.detach().requires_grad_()
    before = (
        None
        if start is None
        else SRMState(*(value.to(x.dtype).requires_grad_() for value in start))
    )
    spikes, after = operator(x, before, parameters)
    loss = (spikes * normal(*spikes.shape, seed=7)).sum() + sum(
        (value.square().sum() for value in after), torch.zeros(())
    )
    found = torch.autograd.grad(loss, [x, *(before or ()), *leaves.values()])
    return [value.detach() for value in (spikes, *after, *found)]


def start_of(currents: Tensor) -> SRMState:
    return SRMState(
        *(torch.rand(currents.shape[1:], generator=generator(seed)) for seed in range(3))
    )


def close(one: Tensor, other: Tensor, tolerance: float = 2e-6) -> None:
    """Check equality up to float32 precision relative to the largest value."""
    torch.testing.assert_close(
        one, other, rtol=10 * tolerance, atol=tolerance * max(1.0, other.abs().max().item())
    )


# ---- the neuron


@same_roundings
@pytest.mark.parametrize("name", SLOPES)
@pytest.mark.parametrize(("shape", "order"), SHAPES)
def test_spikes_state_and_gradients_equal_those_step_by_step(
    shape: tuple[int, ...], order: tuple[int, ...], name: str
) -> None:
    currents = stored(normal(*shape) + 0.2, order)
    parameters = parameters_of(shape[1] if len(shape) > 2 else 1, currents, name)
    for start in (None, start_of(currents)):
        found, expected = (
            run(operator, currents, start, parameters) for operator in (fused, unfused)
        )
        assert len(currents) == 1 or 0.05 < found[0].mean() < 0.95
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            if name == "sigmoid" and index > 3:
                close(one, other)
            else:
                torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("name", SLOPES)
@pytest.mark.parametrize("order", [MEMBERS_OUTERMOST, BATCH_OUTSIDE])
def test_gradients_equal_those_of_a_plain_loop_in_double_precision(
    order: tuple[int, ...], name: str
) -> None:
    """Gradients in currents, state, decays and threshold. With these seeds no potential is within
    float32 rounding of its threshold.
    """
    currents = stored(normal(20, 3, 5, 30, seed=1) + 0.2, order)
    results = []
    for operator, dtype in (
        (fused, torch.float32),
        (unfused, torch.float32),
        (plain_loop, torch.float64),
    ):
        base = parameters_of(3, currents, name)
        names = ("membrane_decay", "synapse_decay", "refractory_decay", "threshold")
        leaves = {key: getattr(base, key).detach().to(dtype).requires_grad_() for key in names}
        start = SRMState(*(value.to(dtype) for value in start_of(currents)))
        results.append(run(operator, currents.to(dtype), start, replace(base, **leaves), **leaves))
    found, without, expected = results
    assert torch.equal(found[0], expected[0].float())
    for one, other, exact in zip(found, without, expected, strict=True):
        assert one.abs().max() > 0
        close(one, exact.float(), 1e-5)
        close(one, other)


@same_roundings
def test_shared_constants_together_with_constants_per_member() -> None:
    currents = normal(20, 3, 4, 5) + 0.2
    for names in ((), ("threshold",), ("membrane_decay", "refractory_decay")):
        results = []
        for operator in (fused, unfused):
            base = parameters_of(1, currents)
            leaves = {
                key: (torch.linspace(-0.02, 0.02, 3).view(3, 1, 1) + getattr(base, key))
                .detach()
                .requires_grad_()
                for key in names
            }
            leaves["synapse_decay"] = base.synapse_decay.detach().requires_grad_()
            results.append(run(operator, currents, None, replace(base, **leaves), **leaves))
        for one, other in zip(*results, strict=True):
            assert one.shape == other.shape
            close(one, other)
        torch.testing.assert_close(results[0][:5], results[1][:5], rtol=0, atol=0)


@same_roundings
def test_expanded_currents_and_expanded_gradients() -> None:
    step = stored(normal(1, 3, 4, 10), BATCH_OUTSIDE)
    parameters = parameters_of(3, step)
    found = []
    for operator in (fused, unfused):
        x = step.detach().requires_grad_()
        spikes, after = operator(x.expand(12, -1, -1, -1), None, parameters)
        (gradient,) = torch.autograd.grad(spikes.sum() + after.membrane.sum(), [x])
        found.append((spikes.detach(), gradient))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    assert found[0][0].stride() == found[1][0].stride()


@same_roundings
def test_a_sequence_in_chunks_gives_the_same_as_the_whole() -> None:
    currents = stored(normal(20, 2, 3, 50), MEMBERS_OUTERMOST)
    parameters = parameters_of(2, currents)
    whole, end = fused(currents, None, parameters)
    parts, state = [], None
    for chunk in currents.tensor_split((1, 4, 11)):
        spikes, state = fused(chunk, state, parameters)
        parts.append(spikes)
    assert state is not None
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=0)
    torch.testing.assert_close(tuple(state), tuple(end), rtol=0, atol=0)


def test_spikes_have_the_memory_order_of_the_currents() -> None:
    for order in (MEMBERS_OUTERMOST, BATCH_OUTSIDE):
        currents = stored(normal(5, 2, 3, 4), order)
        spikes, state = fused(currents, None, parameters_of(2, currents))
        assert spikes.stride() == currents.stride()
        assert all(value.is_contiguous() == (order == MEMBERS_OUTERMOST) for value in state)


def test_results_do_not_depend_on_the_number_of_threads(threads: Callable[[int], None]) -> None:
    currents = stored(normal(30, 3, 4, 100), MEMBERS_OUTERMOST)
    results = []
    for count in (1, 2, 2, 3):
        threads(count)
        parameters = parameters_of(3, currents)
        threshold = parameters.threshold.detach().requires_grad_()
        results.append(
            run(
                fused,
                currents,
                start_of(currents),
                replace(parameters, threshold=threshold),
                threshold=threshold,
            )
        )
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, rtol=0, atol=0)


def test_the_exponential_of_the_sigmoid_slope_is_exact_for_large_arguments() -> None:
    """The slope is the gradient of one step from a zero state with an impulse as kernel; 0 ≤ |k v|
    ≤ 90.
    """
    v = torch.linspace(-22.5, 22.5, 2001)
    zero, one = torch.full((), 1e-30), torch.ones(())
    currents = (v + 1).view(1, 1, -1).requires_grad_()
    spikes, _ = cpu_srm.fused_srm(
        currents, None, (zero, zero, zero, one, one), Surrogate("sigmoid")
    )
    (found,) = torch.autograd.grad(spikes.sum(), [currents])
    x = 4.0 * (currents.detach() - 1).double()
    torch.testing.assert_close(
        found.double(), 4 * torch.sigmoid(x) * torch.sigmoid(-x), rtol=2e-6, atol=1e-37
    )


def test_unsupported_inputs_are_left_to_pytorch() -> None:
    currents = normal(8, 3, 4, 5)
    constants = constants_of(parameters_of(3, currents))
    assert cpu_srm.can_run(currents, None, constants)
    assert not cpu_srm.can_run(currents.double(), None, constants)
    assert not cpu_srm.can_run(currents[:2], None, constants)
    assert not cpu_srm.can_run(currents[:, :0], None, constants)
    assert not cpu_srm.can_run(
        currents, SRMState(*(value.double() for value in start_of(currents))), constants
    )
    assert not cpu_srm.can_run(currents, None, (torch.rand(4, 1), *constants[1:]))
    x, weight = random_spikes(20, 10, 100), normal(3, 100, 60)
    assert cpu_sparse.can_run(x, weight)
    assert not cpu_sparse.can_run(x.double(), weight.double())
    assert not cpu_sparse.can_run(x[:1], weight)
    assert not cpu_sparse.can_run(x.requires_grad_(), weight)
    assert cpu_sparse.can_run(random_spikes(20, 3, 10, 100).requires_grad_(), weight)


# ---- the product


def product(x: Tensor, weight: Tensor) -> Tensor:
    """The product of `MemberLinear` without this operator."""
    members, inputs, outputs = weight.shape
    rows = (
        x.reshape(1, -1, inputs).expand(members, -1, -1)
        if x.ndim == 3
        else x.transpose(0, 1).flatten(1, 2)
    )
    return torch.bmm(rows, weight).view(members, len(x), x.shape[-2], outputs).transpose(0, 1)


def sparse(x: Tensor, weight: Tensor) -> Tensor:
    """The sparse product for any density."""
    y = cpu_sparse.sparse_product(x, weight, max_density=1.0)
    assert y is not None
    return y


def both(x: Tensor, weight: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The product and its gradients, sparse and dense."""
    results = []
    for operator in (sparse, product):
        leaves = [
            weight.detach().requires_grad_(),
            *([x.detach().requires_grad_()] if x.ndim == 4 else []),
        ]
        y = operator(leaves[1] if x.ndim == 4 else x, leaves[0])
        to_y = stored(normal(*y.shape, seed=5), MEMBERS_OUTERMOST)
        results.append([y.detach(), *torch.autograd.grad(y, leaves, to_y)])
    return results[0], results[1]


def values_of(*shape: int, rate: float, binary: bool) -> Tensor:
    return random_spikes(*shape, rate=rate) * (1 if binary else normal(*shape, seed=3))


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("rate", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize(
    ("members", "steps", "batch", "inputs", "outputs"),
    [(3, 5, 4, 70, 130), (1, 1, 1, 64, 64), (2, 3, 2, 5, 3), (6, 4, 3, 129, 10), (2, 2, 2, 1, 33)],
)
def test_the_product_equals_that_of_torch(
    members: int,
    steps: int,
    batch: int,
    inputs: int,
    outputs: int,
    rate: float,
    binary: bool,
    threads: Callable[[int], None],
) -> None:
    threads(2)
    weight = normal(members, inputs, outputs, seed=1)
    shared = values_of(steps, batch, inputs, rate=rate, binary=binary)
    own = stored(
        values_of(steps, members, batch, inputs, rate=rate, binary=binary), MEMBERS_OUTERMOST
    )
    for x in (shared, own, own.contiguous(), stored(own, BATCH_OUTSIDE)):
        found, expected = both(x, weight)
        for one, other in zip(found, expected, strict=True):
            close(one, other)
        assert found[0].stride() == expected[0].stride()


def test_rows_inputs_and_members_without_a_spike() -> None:
    x = random_spikes(4, 3, 2, 80)
    x[1], x[:, 2], x[:, :, 1], x[..., 5:70] = 0, 0, 0, 0
    found, expected = both(x, normal(3, 80, 40))
    for one, other in zip(found, expected, strict=True):
        close(one, other)
    assert not found[0][1].any() and not found[1][2].any() and not found[1][:, 5:70].any()


def test_only_nonzero_entries_are_listed_and_a_dense_input_is_left_to_torch() -> None:
    x = torch.zeros(2, 3, 70)
    x[0, 1, [3, 66]], x[1, 2, 69], x[1, 0, 4] = torch.tensor([2.0, math.nan]), -1.0, -0.0
    active = cpu_sparse.Active.of(x, max_density=1.0)
    assert active is not None
    assert active.starts.tolist() == [0, 0, 2, 2, 2, 2, 3] and active.indices.tolist() == [
        3,
        66,
        69,
    ]
    assert active.values[[0, 2]].tolist() == [2.0, -1.0] and math.isnan(active.values[1])
    turned = active.transposed()
    assert (turned.rows, turned.width) == (70, 3)
    assert turned.indices.tolist() == [1, 1, 2] and turned.starts[-1] == 3
    assert cpu_sparse.Active.of(x, max_density=3 / 420 - 1e-9) is None
    assert cpu_sparse.sparse_product(random_spikes(4, 3, 50, rate=0.5), normal(2, 50, 4)) is None


def test_a_sum_has_the_same_bits_for_any_number_of_threads_and_any_batch(
    threads: Callable[[int], None],
) -> None:
    weight = normal(3, 90, 150)
    for x in (random_spikes(10, 4, 90, rate=0.1), random_spikes(10, 3, 4, 90, rate=0.1)):
        results = []
        for count in (1, 2, 2, 3):
            threads(count)
            results.append(both(x, weight)[0])
        for other in results[1:]:
            torch.testing.assert_close(results[0], other, rtol=0, atol=0)
        torch.testing.assert_close(sparse(x[3:4], weight), results[0][0][3:4], rtol=0, atol=0)


# ---- convolutions


def convolved(
    operator: Callable[[Tensor, Tensor], Tensor], images: Tensor, weight: Tensor
) -> list[Tensor]:
    """The result, and the gradients in images and weights."""
    x, w = images.detach().requires_grad_(), weight.detach().requires_grad_()
    y = operator(x, w)
    return [
        y.detach(),
        *torch.autograd.grad((y * normal(*y.shape, seed=3).to(y.dtype)).sum(), (x, w)),
    ]


@pytest.mark.parametrize(
    ("inputs", "outputs", "height", "width"),
    [(16, 16, 1, 4), (16, 32, 5, 8), (48, 16, 3, 4), (32, 64, 2, 12)],
)
def test_a_sparse_convolution_is_that_of_pytorch(
    inputs: int, outputs: int, height: int, width: int
) -> None:
    images = random_spikes(70, inputs, height, width, rate=0.2) * normal(
        70, inputs, height, width, seed=1
    )
    weight = normal(outputs, inputs, 3, 3)
    assert cpu_convolution.can_run(images, weight, 1)
    found = convolved(cpu_convolution.sparse_convolution, images, weight)
    exact = convolved(
        lambda x, w: torch.nn.functional.conv2d(x, w, padding=1), images.double(), weight.double()
    )
    for one, other in zip(found, exact, strict=True):
        assert one.shape == other.shape and one.abs().max() > 0
        close(one, other.float(), 1e-5)


def test_a_sparse_convolution_is_not_used_where_it_does_not_fit() -> None:
    images, weight = random_spikes(70, 2, 4, 4, rate=0.1), normal(16, 2, 3, 3)
    assert cpu_convolution.can_run(images, weight, 1)
    for wrong in (
        (images, weight, 2),
        (images[:3], weight, 1),
        (images, weight[:5], 1),
        (images, weight[..., :1], 1),
    ):
        assert not cpu_convolution.can_run(*wrong)
    assert not cpu_convolution.can_run(images.double(), weight.double(), 1)
    # its gradient needs 16 channels
    assert not cpu_convolution.can_run(images.requires_grad_(), weight, 1)


def trained(
    fused: bool | None, members: int, size: int, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Spikes, gradients of the parameters, and running statistics after one pass of a convolutional
    network.
    """
    config = Convolutional((2, size, size), 3, members, (16, 32), (8,), Neuron(2.0, 0.5, 2.0))
    network = SpikingNetwork(config, generator(1), deviation=1.5).to(dtype).train()
    for module in network.modules():
        if isinstance(module, SRM):
            module.fused = fused
    spikes, _ = network(random_spikes(9, 8, 2, size, size, rate=0.2).to(dtype), keep_state=False)
    (spikes * torch.linspace(-1, 1, spikes.numel()).view(spikes.shape)).sum().backward()
    assert 0.02 < spikes.mean() < 0.98
    gradients = {name: value.grad for name, value in network.named_parameters()}
    assert all(value is not None and value.abs().max() > 0 for value in gradients.values())
    return [
        spikes.detach(),
        *(value for value in gradients.values() if value is not None),
        *network.buffers(),
    ]


@pytest.mark.parametrize(("members", "size", "layers"), [(1, 8, 2), (2, 8, 2), (1, 10, 1)])
def test_a_convolutional_network_trains_as_with_separate_operators(
    members: int, size: int, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a layer of an odd size is left to PyTorch."""
    runs: list[int] = []
    run = cpu_deep_training.normalised_spikes

    def watched(*given: Any) -> Tensor:
        runs.append(1)
        return run(*given)

    monkeypatch.setattr(cpu_deep_training, "normalised_spikes", watched)
    found, expected = trained(None, members, size), trained(False, members, size)
    assert len(runs) == members * layers
    assert torch.equal(found[0], expected[0])
    for one, other in zip(found[1:], expected[1:], strict=True):
        torch.testing.assert_close(
            one, other, rtol=2e-3, atol=1e-4 * float(other.abs().max()) + 1e-6
        )


def test_these_operators_do_not_depend_on_the_number_of_threads(
    threads: Callable[[int], None],
) -> None:
    images, weight, y = (
        random_spikes(70, 16, 4, 4, rate=0.2),
        normal(32, 16, 3, 3),
        normal(6, 5, 4, 4, 32),
    )
    norm = Norm(torch.ones(32), torch.zeros(32), torch.zeros(32), torch.ones(32), 0.1, 1e-5)
    table = parameters_of(1, y).table

    def spikes(given: Tensor, gain: Tensor) -> Tensor:
        moving = norm._replace(
            weight=gain,
            running_mean=norm.running_mean.clone(),
            running_var=norm.running_var.clone(),
        )
        return cpu_deep_training.normalised_spikes(given, table, moving, Surrogate())

    results = []
    for count in (1, 2, 3):
        threads(count)
        results.append(
            [
                *convolved(cpu_convolution.sparse_convolution, images, weight),
                *convolved(spikes, y, norm.weight),
            ]
        )
    assert 0.02 < results[0][3].mean() < 0.98
    for found in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found, results[0], strict=True))
