"""Layers trained in one kernel, on a GPU or in Triton's interpreter, have the spikes, gradients and
statistics of separate kernels.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agreestop.kernels import TRITON_AVAILABLE

if not TRITON_AVAILABLE:
    pytest.skip(
        "there are no kernels for GPUs, or Triton is not installed: pip install triton, 300 MB to "
        "fetch",
        allow_module_level=True,
    )

from agreestop.kernels.gpu import batchnorm as gpu_batchnorm
from agreestop.kernels.gpu import deep_training as gpu_deep_training
from agreestop.networks import SRM, Convolutional, Neuron, ResNet18, SpikingNetwork

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
QUICK = Neuron(2.0, 0.5, 2.0)


@pytest.fixture(autouse=True)
def small_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several programs and several turns of each, in small layers."""
    for module, name, value in (
        (gpu_batchnorm, "SHARES", 4),
        (gpu_deep_training, "SHARES", 4),
        (gpu_deep_training, "NEURONS", 32),
    ):
        monkeypatch.setattr(module, name, value)


def trained(config: Any, x: torch.Tensor, steps: int | None, fused: bool) -> list[torch.Tensor]:
    """Spikes, gradients of the parameters, and running statistics after one pass."""
    network = (
        SpikingNetwork(config, torch.Generator().manual_seed(1), deviation=1.5).to(DEVICE).train()
    )
    for module in network.modules():
        if isinstance(module, SRM):
            module.fused = fused
    with torch.backends.cudnn.flags(allow_tf32=False):
        spikes, _ = network(x.to(DEVICE), None, steps, keep_state=False)
        weights = torch.linspace(-1, 1, spikes.numel(), device=DEVICE).view(spikes.shape)
        (spikes * weights).sum().backward()
    assert 0.02 < spikes.mean() < 0.98
    return [
        spikes.detach(),
        *(value.grad for value in network.parameters() if value.grad is not None),
        *network.buffers(),
    ]


CASES: dict[str, tuple[Any, int, int | None]] = {
    "odd sizes, one segment": (Convolutional((2, 5, 7), 3, 1, (3, 2), (4,), QUICK), 6, None),
    "two segments": (Convolutional((2, 4, 4), 3, 1, (3,), (4,), QUICK), 20, None),
    "shortcuts, a held image": (ResNet18((2, 4, 4), 3, 1, 2, QUICK), 1, 4),
}


@pytest.mark.parametrize("case", CASES)
def test_one_kernel_trains_as_separate_ones(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config, length, steps = CASES[case]
    x = torch.rand((length, 2, *config.input_shape), generator=torch.Generator().manual_seed(0))
    x = x if steps else (x < 0.4).float()
    pools: list[int] = []
    run = gpu_deep_training.normalised_spikes

    def watched(*given: Any) -> torch.Tensor:
        pools.append(given[-1])
        return run(*given)

    monkeypatch.setattr(gpu_deep_training, "normalised_spikes", watched)
    ours, theirs = (trained(config, x, steps, fused) for fused in (True, False))
    assert len(pools) == (17 if steps else len(config.channels)) and (2 in pools) == (steps is None)
    assert torch.equal(ours[0], theirs[0])
    for one, other in zip(ours[1:], theirs[1:], strict=True):
        torch.testing.assert_close(
            one, other, rtol=2e-3, atol=1e-4 * float(other.abs().max()) + 1e-6
        )


def test_a_network_without_its_state_cannot_be_continued() -> None:
    network = SpikingNetwork(
        Convolutional((2, 4, 4), 3, 1, (3,), (4,)), torch.Generator().manual_seed(1)
    )
    _, state = network(torch.zeros(2, 1, 2, 4, 4), keep_state=False)
    with pytest.raises(ValueError, match="state has 0 layers"):
        network(torch.zeros(2, 1, 2, 4, 4), state)


def test_it_says_what_it_can_run() -> None:
    currents = torch.zeros(34, 2, 3, 3, 4)
    assert gpu_deep_training.can_run(
        currents[:16], currents[:16], 16
    ) and gpu_deep_training.can_run(currents[:1], None, 4)
    assert not gpu_deep_training.can_run(currents[:1], currents[:1], 4)  # a shortcut of one image
    assert not gpu_deep_training.can_run(currents, None, 34)  # segments of two steps
    assert not gpu_deep_training.can_run(currents.double(), None, 34)
