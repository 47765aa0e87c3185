"""Batch normalisation on a GPU, or in Triton's interpreter, equals PyTorch's: output, gradients and
running statistics.
"""

from __future__ import annotations

import pytest
import torch

from agreestop.kernels import TRITON_AVAILABLE, Norm

if not TRITON_AVAILABLE:
    pytest.skip(
        "there are no kernels for GPUs, or Triton is not installed: pip install triton, 300 MB to "
        "fetch",
        allow_module_level=True,
    )


from agreestop.kernels.gpu import batchnorm as gpu_batchnorm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(
    ("dtype", "channels"), ((torch.float32, 5), (torch.bfloat16, 5), (torch.float32, 131))
)
def test_it_normalises_as_pytorch(
    dtype: torch.dtype, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean is far from zero, and the numbers of positions and channels are odd."""
    monkeypatch.setattr(gpu_batchnorm, "SHARES", 4)
    monkeypatch.setattr(gpu_batchnorm, "VALUES", 64)
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(7, channels, 3, 3, generator=generator) for _ in range(2)]
    x, to_y = (
        value.to(DEVICE, dtype, memory_format=torch.channels_last)
        for value in (drawn[0] + 20, drawn[1])
    )
    weight, bias = (
        torch.linspace(0.5, 2, channels, device=DEVICE),
        torch.linspace(-1, 1, channels, device=DEVICE),
    )
    found = []
    for ours in (True, False):
        leaves = [value.clone().requires_grad_() for value in (x, weight, bias)]
        running = [torch.full((channels,), 0.5, device=DEVICE), torch.ones(channels, device=DEVICE)]
        image, mean, var, gain, shift = leaves[0], *running, *leaves[1:]
        if ours:
            y = gpu_batchnorm.batch_norm(image, Norm(gain, shift, mean, var, 0.3, 1e-3))
        else:
            y = torch.nn.functional.batch_norm(image, mean, var, gain, shift, True, 0.3, 1e-3)
        y.backward(to_y)  # type: ignore[no-untyped-call]
        assert y.is_contiguous(memory_format=torch.channels_last) and y.dtype == dtype
        found.append([y.detach(), *running, *(leaf.grad for leaf in leaves)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(
            ours,
            theirs,
            rtol=2e-2 if dtype == torch.bfloat16 else 1e-4,
            atol=1e-2 if dtype == torch.bfloat16 else 5e-5,
        )


def test_it_says_what_it_can_run() -> None:
    images, weight = torch.zeros(2, 3, 4, 4), torch.ones(3)
    assert not gpu_batchnorm.can_run(images, weight)
    last = images.to(memory_format=torch.channels_last)
    assert gpu_batchnorm.can_run(last, weight) and not gpu_batchnorm.can_run(last, weight.double())
