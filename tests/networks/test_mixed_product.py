"""Weights in three parts of bf16 are the weights themselves, and products with spikes those of float32."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
import torch

from agreestop.networks.layers import MemberConv2d, MemberLinear, draw_weights
from agreestop.networks.mixed_product import can_run, in_parts, mixed_product

from .plain import generator

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ON_GPU = pytest.mark.skipif(DEVICE == "cpu", reason="tensor cores are on a GPU")


def some(*shape: int) -> torch.Tensor:
    """Numbers of every size from 1e-12 to 1e6, of both signs."""
    numbers = torch.randn(shape, generator=generator(1))
    return numbers * 10.0 ** torch.randint(-12, 7, shape, generator=generator(2)).float()


def test_three_parts_hold_every_bit() -> None:
    values = torch.cat([some(1000), torch.tensor([0.0, 1.0, -1.0, 1 / 3, 2**-24, 1e30])])
    parts = in_parts(values)
    assert all(part.dtype == torch.bfloat16 for part in parts)
    assert torch.equal(sum((part.double() for part in parts), torch.zeros(())), values.double())


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_the_kernel_splits_without_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        import triton

        if not triton.knobs.runtime.interpret or os.environ.get("TRITON_INTERPRET") != "1":
            pytest.skip("Triton runs without its interpreter here")
    from agreestop.networks.parts_kernel import split

    values = some(3, 7, 101)  # the interpreter rounds towards zero and a GPU to the nearest: the parts differ, and their sum does not
    assert torch.equal(sum((part.cpu().double() for part in split(values.to(DEVICE))), torch.zeros(())), values.double())


def test_layers_take_spikes_in_bf16() -> None:
    spikes = (torch.rand(4, 3, 20, generator=generator(3)) < 0.3).float()
    linear = MemberLinear(2, 20, 7)
    draw_weights(linear, generator())
    assert torch.allclose(linear(spikes.bfloat16()), linear(spikes), rtol=1e-6, atol=1e-6)
    assert linear(spikes.bfloat16()).dtype == torch.float32
    images = (torch.rand(4, 3, 2, 5, 5, generator=generator(4)) < 0.3).float()
    convolution = MemberConv2d(2, 2, 3)
    draw_weights(convolution, generator())
    assert torch.equal(convolution(images.bfloat16()), convolution(images))


@ON_GPU
def test_products_and_gradients_are_those_of_float32() -> None:
    x = (torch.rand(1, 300, 200, generator=generator(5)) < 0.1).cuda()
    weight = (torch.randn(3, 200, 40, generator=generator(6)) * 0.05).cuda().requires_grad_()
    assert can_run(x.bfloat16(), weight)
    found = mixed_product(x.bfloat16(), weight)
    exact = torch.bmm(x.double().expand(3, -1, -1), weight.double())
    assert float((found - exact).detach().abs().max()) < 1e-6
    toward = torch.randn(found.shape, generator=generator(7)).cuda()
    (gradient,) = torch.autograd.grad(found, weight, toward)
    expected = torch.bmm(x.double().expand(3, -1, -1).transpose(1, 2), toward.double())
    assert float((gradient - expected).norm() / expected.norm()) < 1e-6


def test_training_sees_the_weights_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded step changes weights without PyTorch taking note: what was kept of them must not be used then."""
    plain = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda x, y, out_dtype=None: plain(x.float(), y.float()))  # a CPU sums no bf16 into float32
    x = (torch.rand(1, 6, 5, generator=generator(8)) < 0.5).bfloat16()
    weight = torch.randn(2, 5, 3, generator=generator(9), requires_grad=True)
    before = mixed_product(x, weight).detach()
    weight.data.mul_(2)
    torch.testing.assert_close(mixed_product(x, weight).detach(), 2 * before)
    with torch.no_grad():
        kept = mixed_product(x, weight)
        weight.add_(1)  # of which it does take note
        assert not torch.equal(mixed_product(x, weight), kept)
