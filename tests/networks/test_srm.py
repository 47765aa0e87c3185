"""The SRM neuron equals its convolution, its gradients equal those of a plain loop, and chunks
equal the whole sequence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agreestop.kernels import SLOPES, SRMParameters, SRMState, Surrogate
from agreestop.networks import SRM, Neuron, srm
from tests.networks.plain import (
    convolution,
    generator,
    gradients,
    plain_loop,
    random_spikes,
    refused,
)

TIMES = [(8.0, 2.0), (2.0, 8.0), (5.0, 5.0)]


def currents_of(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 3) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64).to(dtype) + 0.2


def constants(neuron: Neuron, dtype: torch.dtype = torch.float64) -> SRMParameters:
    return SRM(1, neuron).to(dtype).parameters_for(torch.empty(1, 1))


@pytest.mark.parametrize("normalise", ["peak", "sum"])
@pytest.mark.parametrize(("membrane_time", "synapse_time"), TIMES)
def test_the_recursion_equals_the_convolution(
    membrane_time: float, synapse_time: float, normalise: str
) -> None:
    neuron = Neuron(
        membrane_time, synapse_time, refractory_time=3.0, threshold=0.8, normalise=normalise
    )
    lags = torch.arange(1, 400, dtype=torch.float64)
    if membrane_time == synapse_time:
        kernel = lags * torch.exp(-lags / membrane_time)
    else:
        kernel = (torch.exp(-lags / membrane_time) - torch.exp(-lags / synapse_time)) * (
            1 if membrane_time > synapse_time else -1
        )
    kernel = kernel / (kernel.max() if normalise == "peak" else kernel.sum())
    currents = currents_of(50, 4, 5) * (1 if normalise == "peak" else 5)
    spikes, _ = srm(currents, None, constants(neuron))
    torch.testing.assert_close(spikes, convolution(currents, kernel, 3.0, 0.8))
    assert 0.02 < spikes.mean() < 0.98


def test_without_gradient_the_spikes_are_the_same() -> None:
    currents = currents_of(20, 3, 4)
    parameters = constants(Neuron())
    spikes, state = srm(currents, None, parameters)
    with_gradient, state_with = srm(currents.requires_grad_(), None, parameters)
    assert with_gradient.requires_grad and not spikes.requires_grad
    torch.testing.assert_close(spikes, with_gradient.detach(), rtol=0, atol=0)
    torch.testing.assert_close(tuple(state), tuple(v.detach() for v in state_with), rtol=0, atol=0)


@pytest.mark.parametrize("name", SLOPES)
@pytest.mark.parametrize(("membrane_time", "synapse_time"), TIMES)
def test_gradients_equal_those_of_the_plain_loop(
    name: str, membrane_time: float, synapse_time: float
) -> None:
    """Gradients in currents, state, decays and threshold, of a loss of spikes and final state; the
    refractory path is included.
    """
    base = constants(Neuron(membrane_time, synapse_time, threshold=0.7))
    start = [
        torch.rand(3, 4, 5, generator=generator(seed), dtype=torch.float64) for seed in range(3)
    ]
    to_spikes = torch.randn(30, 3, 4, 5, generator=generator(7), dtype=torch.float64)
    names = ("membrane_decay", "synapse_decay", "refractory_decay", "threshold")
    results = []
    for run in (srm, plain_loop):
        currents = currents_of(30, 3, 4, 5).requires_grad_()
        state = SRMState(*(v.clone().requires_grad_() for v in start))
        shift = torch.tensor([0.0, 0.01, -0.01], dtype=torch.float64).view(3, 1, 1)
        leaves = {key: (getattr(base, key).detach() + shift).requires_grad_() for key in names}
        spikes, after = run(currents, state, replace(base, **leaves, surrogate=Surrogate(name)))
        loss = (spikes * to_spikes).sum() + sum(
            (v.square().sum() for v in after), torch.tensor(0.0)
        )
        results.append((spikes.detach(), gradients(loss, [currents, *state, *leaves.values()])))
    (spikes, found), (expected_spikes, expected) = results
    torch.testing.assert_close(spikes, expected_spikes, rtol=0, atol=0)
    assert 0.05 < spikes.mean() < 0.9
    for one, other in zip(found, expected, strict=True):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_gradients_do_not_depend_on_what_else_is_learned() -> None:
    fixed, learned = (SRM(2, Neuron(learned=learned)).double() for learned in (False, True))
    found = []
    for module in (fixed, learned):
        currents = currents_of(25, 2, 3, 4).requires_grad_()
        module(currents)[0].sum().backward()
        found.append(currents.grad)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    assert not list(fixed.parameters())
    for name, value in learned.named_parameters():
        assert value.grad is not None and value.grad.abs().min() > 0, name


def test_the_refractory_path_carries_gradient() -> None:
    """A current that acts on later spikes only through its own spike still has a gradient there:
    more firing now means less later.
    """
    parameters = constants(
        Neuron(membrane_time=1e-3, synapse_time=1e-3, refractory_time=4.0, normalise="sum")
    )
    currents = torch.full((2, 1, 1), 1.2, dtype=torch.float64, requires_grad=True)
    spikes, _ = srm(currents, None, parameters)
    assert gradients(spikes[1].sum(), [currents])[0][0].item() < 0


@pytest.mark.parametrize("cuts", [(1,), (7, 8), (1, 2, 3, 15)])
def test_a_sequence_in_chunks_gives_the_same_as_the_whole(cuts: tuple[int, ...]) -> None:
    currents = currents_of(20, 2, 3, 4, dtype=torch.float32).requires_grad_()
    module = SRM(2, Neuron(learned=True))
    whole, end = module(currents)
    parts, state = [], None
    for chunk in torch.tensor_split(currents, cuts):
        spikes, state = module(chunk, state)
        parts.append(spikes)
    assert state is not None
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=0)
    torch.testing.assert_close(tuple(state), tuple(end), rtol=0, atol=0)
    weights = torch.randn(whole.shape, generator=generator(5))
    leaves = [currents, *module.parameters()]
    for one, other in zip(
        gradients((whole * weights).sum(), leaves),
        gradients((torch.cat(parts) * weights).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 2, 3), (0, 2, 1, 3), (3, 2, 1, 0)])
def test_the_order_in_memory_does_not_matter(order: tuple[int, ...]) -> None:
    currents = currents_of(10, 2, 3, 4)
    back = [order.index(axis) for axis in range(4)]
    stored = currents.permute(order).contiguous().permute(back).requires_grad_()
    parameters = constants(Neuron())
    spikes, _ = srm(stored, None, parameters)
    torch.testing.assert_close(spikes, srm(currents, None, parameters)[0], rtol=0, atol=0)
    assert spikes.stride() == stored.stride()


def test_an_expanded_current_equals_the_repeated_current() -> None:
    step = currents_of(1, 2, 3, 4).transpose(1, 2)
    parameters = constants(Neuron(normalise="sum", threshold=0.1))
    found = []
    for make in (hold, repeat):
        x = step.clone().requires_grad_()
        spikes, _ = srm(make(x), None, parameters)
        found.append((spikes.detach(), *gradients(spikes.sum(), [x])))
    torch.testing.assert_close(found[0], found[1])


def hold(x: Tensor) -> Tensor:
    return x.expand(12, -1, -1, -1)


def repeat(x: Tensor) -> Tensor:
    return x.repeat(12, 1, 1, 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_spikes_have_the_dtype_of_the_currents_and_the_state_at_least_float32(
    dtype: torch.dtype,
) -> None:
    module = SRM(2, Neuron(learned=True)).to(dtype)
    currents = currents_of(10, 2, 3, 4, dtype=dtype).requires_grad_()
    spikes, state = module(currents)
    spikes.sum().backward()
    assert spikes.dtype == dtype and currents.grad is not None and currents.grad.dtype == dtype
    assert all(v.dtype == torch.promote_types(dtype, torch.float32) for v in state)
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in module.parameters())


def test_the_state_that_is_given_is_not_changed() -> None:
    module = SRM(1, Neuron())
    _, state = module(currents_of(5, 1, 2, 3))
    kept = [v.clone() for v in state]
    module(currents_of(5, 1, 2, 3, seed=4), state)
    torch.testing.assert_close(list(state), kept, rtol=0, atol=0)


def test_learned_constants_stay_in_range_whatever_training_does() -> None:
    module = SRM(1, Neuron(learned=True))
    with torch.no_grad():
        for value in module.parameters():
            value.fill_(-3.0)
    p = module.parameters_for(torch.empty(1, 1, 1))
    for decay in (p.membrane_decay, p.synapse_decay, p.refractory_decay):
        assert 0 < decay.item() < 1
    assert p.threshold.item() > 0


def test_bad_settings_and_shapes_are_refused() -> None:
    four: Any = np.float32(4)
    assert (
        Neuron(membrane_time=four) == Neuron(membrane_time=4.0)
        and type(Neuron(threshold=four).threshold) is float
    )
    assert Neuron(surrogate="triangle").surrogate == Surrogate("triangle")  # type: ignore[arg-type]
    refused(lambda: Neuron(surrogate=3), "surrogate is 3 and learned False: a Surrogate")  # type: ignore[arg-type]
    refused(lambda: Neuron(learned="yes"), "True or False are needed")  # type: ignore[arg-type]
    refused(
        lambda: Neuron(membrane_time=1_000_000),
        "membrane_time is 1000000: give a positive number of at most 10,000",
    )
    refused(
        lambda: Neuron(membrane_time=0.0),
        "membrane_time is 0.0: give a positive number of at most 10,000",
    )
    refused(lambda: Neuron(threshold=float("inf")), "threshold is inf")
    refused(lambda: Neuron(normalise="area"), "normalise is 'area': choose one of peak, sum")
    parameters = constants(Neuron())
    refused(lambda: srm(torch.zeros(3), None, parameters), r"currents has shape \(3,\)")
    refused(lambda: srm(torch.zeros(0, 3), None, parameters), "T ≥ 1")
    refused(lambda: srm(torch.zeros(3, 3, dtype=torch.int64), None, parameters), "int64")
    _, state = srm(random_spikes(3, 2, 4), None, parameters)
    refused(lambda: srm(random_spikes(3, 1, 4), state, parameters), r"state has shape \(2, 4\)")
