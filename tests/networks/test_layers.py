"""Layers of K members: each member is the ordinary layer of torch with that member's weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agreestop.networks import layers
from agreestop.networks.layers import (
    MemberBatchNorm2d,
    MemberConv2d,
    MemberLinear,
    draw_weights,
    product_in_chunks,
)
from tests.networks.plain import generator, random_spikes, refused


def drawn(layer: nn.Module, seed: int = 0, deviation: float | None = None) -> nn.Module:
    draw_weights(layer, generator(seed), deviation)
    return layer


def image(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=generator(seed))


def test_linear_is_a_product_for_each_member() -> None:
    layer = MemberLinear(3, 5, 4)
    drawn(layer)
    shared, own = image(6, 2, 5), image(6, 3, 2, 5)
    for k in range(3):
        torch.testing.assert_close(layer(shared)[:, k], shared @ layer.weight[k])
        torch.testing.assert_close(layer(own)[:, k], own[:, k] @ layer.weight[k])


def test_a_product_in_chunks_equals_the_product() -> None:
    rows = torch.randn(3, 12, 5, generator=generator(1), dtype=torch.float64)
    weight = torch.randn(3, 5, 2, generator=generator(2), dtype=torch.float64).requires_grad_()
    whole, parts = torch.bmm(rows, weight), product_in_chunks(rows, weight, 4)
    torch.testing.assert_close(parts, whole)
    toward = torch.randn(whole.shape, generator=generator(3), dtype=torch.float64)
    torch.testing.assert_close(
        torch.autograd.grad(parts, weight, toward), torch.autograd.grad(whole, weight, toward)
    )


@pytest.mark.parametrize(("size", "stride"), [(3, 1), (3, 2), (1, 2)])
def test_convolution_is_one_for_each_member(size: int, stride: int) -> None:
    layer = MemberConv2d(3, 2, 4, size, stride)
    drawn(layer)
    shared, own = image(5, 2, 2, 7, 6), image(5, 3, 2, 2, 7, 6)
    for k in range(3):
        for given, x in ((shared, shared), (own, own[:, k])):
            expected = F.conv2d(x.flatten(0, 1), layer.weight[k], stride=stride, padding=size // 2)
            torch.testing.assert_close(layer(given)[:, k].flatten(0, 1), expected)


@pytest.mark.parametrize(("size", "stride"), [(3, 1), (3, 2), (1, 2)])
def test_convolution_counts_the_synapses_that_spikes_reach(size: int, stride: int) -> None:
    """A convolution with weights of one counts each synapse."""
    layer = MemberConv2d(2, 3, 4, size, stride)
    with torch.no_grad():
        layer.weight.fill_(1)
    x = random_spikes(5, 2, 2, 3, 7, 6)
    torch.testing.assert_close(layer.reached(x), layer(x).sum((-3, -2, -1)).round().long())


def test_linear_counts_the_synapses_that_spikes_reach() -> None:
    x = random_spikes(5, 2, 3, 6)
    torch.testing.assert_close(MemberLinear(2, 6, 4).reached(x), 4 * x.sum(-1).long())


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_is_one_for_each_member(training: bool) -> None:
    layer = MemberBatchNorm2d(2, 3).train(training)
    x = 2 * image(4, 2, 5, 3, 6, 6) + 1
    y = layer(x)
    for k in range(2):
        one = nn.BatchNorm2d(3).train(training)
        torch.testing.assert_close(y[:, k].flatten(0, 1), one(x[:, k].flatten(0, 1)))
        torch.testing.assert_close(layer.running_mean[k], one.running_mean)
        torch.testing.assert_close(layer.running_var[k], one.running_var)


def test_default_weights_have_the_distribution_of_torch() -> None:
    layer = MemberLinear(4, 100, 50)
    drawn(layer)
    bound = nn.Linear(100, 50).weight.abs().max().item()
    assert (
        layer.weight.abs().max().item()
        == pytest.approx(0.1, rel=1e-3)
        == pytest.approx(bound, rel=1e-2)
    )
    assert layer.weight.std().item() == pytest.approx(0.1 / 3**0.5, rel=0.02)
    wide = MemberConv2d(2, 50, 40)
    drawn(wide, deviation=0.03)
    assert wide.weight.std().item() == pytest.approx(0.03, rel=0.02)
    assert abs(wide.weight.mean().item()) < 5 * 0.03 / wide.weight.numel() ** 0.5


def test_the_generator_determines_the_weights_and_a_small_ensemble_is_part_of_a_large_one() -> None:
    def network(members: int, seed: int) -> nn.Module:
        return drawn(nn.Sequential(MemberLinear(members, 5, 4), MemberConv2d(members, 2, 3)), seed)

    same = zip(network(3, 0).parameters(), network(3, 0).parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in same)
    nested = zip(network(2, 0).parameters(), network(5, 0).parameters(), strict=True)
    assert all(torch.equal(one, other[:2]) for one, other in nested)
    assert not torch.equal(next(network(3, 0).parameters()), next(network(3, 1).parameters()))


def test_bad_shapes_and_deviations_are_refused() -> None:
    refused(
        lambda: MemberLinear(2, 5, 4)(image(3, 2, 6)),
        r"\(T, batch, 5\) or \(T, K, batch, 5\) is needed",
    )
    refused(
        lambda: MemberLinear(2, 5, 4)(image(3, 3, 2, 5)),
        "has 3 members along its second axis and the layer 2",
    )
    refused(lambda: MemberConv2d(2, 5, 4)(image(3, 2, 4, 6, 6)), r"\(T, batch, 5, H, W\)")
    refused(lambda: MemberConv2d(2, 5, 4)(image(3, 1, 2, 5, 6, 6)), "has 1 members")
    refused(
        lambda: MemberBatchNorm2d(2, 5)(image(3, 2, 2, 4, 6, 6)),
        r"\(T, 2, batch, 5, H, W\) is needed",
    )
    refused(
        lambda: drawn(MemberLinear(2, 5, 4), deviation=0.0), "deviation is 0.0: give a positive"
    )


@pytest.mark.parametrize("stride", (1, 2))
def test_a_convolution_of_few_channels_is_a_product_of_windows(
    stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU in training. The rows of the product are taken in several chunks."""
    monkeypatch.setattr(layers, "WINDOWS", 32)
    convolution = MemberConv2d(1, 3, 5, 3, stride)
    drawn(convolution, deviation=1.0)
    x = image(4, 2, 3, 9, 8)
    expected = convolution(x)
    to_y = image(*expected.shape, seed=2)
    (wanted,) = torch.autograd.grad(expected, convolution.weight, to_y)
    found = layers.members_first(convolution._by_windows(x), 4, 1)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, convolution.weight, to_y)[0], wanted, rtol=1e-4, atol=1e-4
    )
