"""References for the tests: the neuron as an explicit convolution, and as a plain loop under
autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from agreestop.common import InputError
from agreestop.kernels import SRMParameters, SRMState
from agreestop.networks import Surrogate
from tests.decide.strategies import assert_one_sentence


def refused(call: Callable[[], object], match: str) -> None:
    """Check that the call raises an InputError whose message is one sentence and matches."""
    with pytest.raises(InputError, match=match) as caught:
        call()
    assert_one_sentence(str(caught.value))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_spikes(
    *shape: int, rate: float = 0.3, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    return (torch.rand(*shape, generator=generator(seed)) < rate).to(dtype)


def gradients(loss: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The gradient of the loss in each of the leaves."""
    return torch.autograd.grad(loss, list(leaves))


class _Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: Tensor, surrogate: Surrogate) -> Tensor:
        ctx.save_for_backward(v)
        ctx.surrogate = surrogate
        return (v >= 0).to(v.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (v,) = ctx.saved_tensors
        return gradients[0] * ctx.surrogate.slope(v), None


def plain_loop(currents: Tensor, state: SRMState, p: SRMParameters) -> tuple[Tensor, SRMState]:
    """The recursion in plain operations, differentiated by autograd."""
    a, b, r = p.membrane_decay, p.synapse_decay, p.refractory_decay
    gain = p.scale * (1 - a) * (1 - b)
    i, m, h = state
    spikes = []
    for x in currents.unbind(0):
        i = b * i + x
        m = a * m + i
        z = _Spike.apply(gain * m - p.threshold * r * h - p.threshold, p.surrogate)  # type: ignore[no-untyped-call]
        h = r * h + z
        spikes.append(z)
    return torch.stack(spikes), SRMState(i, m, h)


def convolution(
    currents: Tensor, kernel: Tensor, refractory_time: float, threshold: float
) -> Tensor:
    """Spikes of the neuron from explicit sums over the past; `kernel[n]` is ε(n + 1)."""
    spikes = torch.zeros_like(currents)
    for t in range(len(currents)):
        u = torch.zeros_like(currents[0])
        for s in range(t + 1):
            u = u + kernel[t - s] * currents[s]
        for s in range(t):
            u = u - threshold * torch.exp(torch.tensor(-(t - s) / refractory_time)) * spikes[s]
        spikes[t] = (u >= threshold).to(u.dtype)
    return spikes
