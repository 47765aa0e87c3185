"""Two float16 parts hold a weight up to its last bit, and products with spikes equal those in
float32.
"""

from __future__ import annotations

import pytest
import torch

from agreestop.kernels import TRITON_AVAILABLE
from agreestop.kernels.mixed_product import SHIFT, can_run, mixed_product, split_float16
from agreestop.networks.layers import MemberConv2d, MemberLinear, draw_weights
from tests.networks.plain import generator

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ON_GPU = pytest.mark.skipif(DEVICE == "cpu", reason="tensor cores are on a GPU")


def some(*shape: int) -> torch.Tensor:
    """Numbers of every size from 1e-12 to 1e4, of both signs."""
    numbers = torch.randn(shape, generator=generator(1))
    return numbers * 10.0 ** torch.randint(-12, 5, shape, generator=generator(2)).float()


def joined(parts: torch.Tensor) -> torch.Tensor:
    return parts[:, 0].cpu().double() + parts[:, 1].cpu().double() * 2.0**-SHIFT


def check_parts(values: torch.Tensor, parts: torch.Tensor, nearest: bool = True) -> None:
    assert parts.dtype == torch.float16
    error = (joined(parts) - values.double()).abs()
    last = torch.exp2(torch.floor(torch.log2(values.double().abs())) - 23)
    assert bool((error <= (1 if nearest else 4) * last.clamp(min=2.0**-35)).all())
    if nearest:
        assert 0.7 < float((error == 0)[values.abs() > 1e-4].double().mean()) < 0.8


def test_two_parts_hold_all_but_the_last_bit() -> None:
    values = some(1, 4000)
    check_parts(values, split_float16(values))
    assert torch.equal(
        joined(split_float16(torch.tensor([[0.0, 1.0, -1.0, 2**-24, 65504]]))),
        torch.tensor([[0.0, 1, -1, 2**-24, 65504]]).double(),
    )
    scaled = split_float16(values * 2**-40, torch.tensor(2.0**40))
    assert torch.equal(joined(scaled), joined(split_float16(values)))


@pytest.mark.skipif(
    not TRITON_AVAILABLE, reason="there are no kernels for GPUs, or Triton is not installed"
)
def test_the_kernel_splits_without_loss() -> None:
    from agreestop.kernels.gpu.triton_kernels import split

    values = some(3, 7, 101)  # the interpreter rounds towards zero, a GPU to the nearest
    check_parts(values, split(values.to(DEVICE), 2.0**SHIFT), nearest=DEVICE == "cuda")
    scaled = split((values * 2**-40).to(DEVICE), 2.0**SHIFT, torch.tensor(2.0**40, device=DEVICE))
    assert torch.equal(joined(scaled), joined(split(values.to(DEVICE), 2.0**SHIFT)))


def test_layers_accept_float16_spikes() -> None:
    spikes = (torch.rand(4, 3, 20, generator=generator(3)) < 0.3).float()
    linear = MemberLinear(2, 20, 7)
    draw_weights(linear, generator())
    assert torch.allclose(linear(spikes.half()), linear(spikes), rtol=1e-6, atol=1e-6)
    assert linear(spikes.half()).dtype == torch.float32
    images = (torch.rand(4, 3, 2, 5, 5, generator=generator(4)) < 0.3).float()
    convolution = MemberConv2d(2, 2, 3)
    draw_weights(convolution, generator())
    assert torch.equal(convolution(images.half()), convolution(images))


@pytest.fixture
def summed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU has no float16 product with a float32 result."""
    plain = torch.bmm
    if DEVICE == "cpu":
        monkeypatch.setattr(torch, "bmm", lambda x, y, out_dtype=None: plain(x.float(), y.float()))


@pytest.mark.usefixtures("summed")
@pytest.mark.parametrize("shared", [True, False])
def test_products_equal_those_of_float32(shared: bool) -> None:
    x = (torch.rand(1 if shared else 3, 300, 200, generator=generator(5)) < 0.1).to(DEVICE)
    weight = (torch.randn(3, 200, 40, generator=generator(6)) * 0.05).to(DEVICE)
    exact = torch.bmm(x.double().expand(3, -1, -1), weight.double())
    assert float((mixed_product(x.half(), weight) - exact).abs().max()) < 1e-6
    weight[0, 0, 0] = 1e6  # too large for float16; the other neurons keep their precision
    error = (
        mixed_product(x.half(), weight) - torch.bmm(x.double().expand(3, -1, -1), weight.double())
    ).abs()
    assert (
        float(error[0, :, 0].max()) < 200 * 1e6 * 2.0**-21 and float(error[:, :, 1:].max()) < 1e-6
    )
    weight[0, 0, 0] = float("inf")  # computed in float32
    assert torch.equal(
        mixed_product(x.half(), weight).isfinite(),
        torch.bmm(x.float().expand(3, -1, -1), weight).isfinite(),
    )


@pytest.mark.usefixtures("summed")
def test_results_do_not_depend_on_the_batch() -> None:
    x = (torch.rand(2, 300, 200, generator=generator(5)) < 0.1).half().to(DEVICE)
    weight = (torch.randn(2, 200, 40, generator=generator(6)) * 0.05).to(DEVICE)
    order = torch.randperm(200, generator=generator(7)).to(DEVICE)
    assert torch.equal(mixed_product(x[:, :7], weight), mixed_product(x, weight)[:, :7])
    assert torch.equal(mixed_product(x[:, :, order], weight[:, order]), mixed_product(x, weight))


@pytest.mark.usefixtures("summed")
@pytest.mark.parametrize("size", [1.0, 1e-12, 0.0])
def test_gradients_equal_those_of_float32(size: float) -> None:
    x = (torch.rand(1, 300, 200, generator=generator(5)) < 0.1).to(DEVICE)
    weight = (torch.randn(3, 200, 40, generator=generator(6)) * 0.05).to(DEVICE).requires_grad_()
    found = mixed_product(x.half(), weight)
    toward = size * torch.randn(found.shape, generator=generator(7)).to(DEVICE)
    (gradient,) = torch.autograd.grad(found, weight, toward)
    expected = torch.bmm(x.double().expand(3, -1, -1).transpose(1, 2), toward.double())
    assert float((gradient - expected).norm()) <= 1e-6 * float(expected.norm())


@ON_GPU
def test_can_run_on_a_gpu() -> None:
    x, weight = (
        torch.ones(1, 3, 4, dtype=torch.float16, device=DEVICE),
        torch.ones(2, 4, 5, device=DEVICE),
    )
    assert can_run(x, weight)
    assert not can_run(x.requires_grad_(), weight)


@pytest.mark.usefixtures("summed")
def test_training_uses_the_current_weights() -> None:
    """A CUDA graph changes weights without a new version number, so cached parts must not be used
    in training.
    """
    x = (torch.rand(1, 6, 5, generator=generator(8)) < 0.5).half().to(DEVICE)
    weight = torch.randn(2, 5, 3, generator=generator(9)).to(DEVICE).requires_grad_()
    before = mixed_product(x, weight).detach()
    weight.data.mul_(2)
    torch.testing.assert_close(mixed_product(x, weight).detach(), 2 * before)
    with torch.no_grad():
        kept = mixed_product(x, weight)
        weight.add_(1)  # this changes the version number
        assert not torch.equal(mixed_product(x, weight), kept)
