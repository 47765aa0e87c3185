"""State and parameters of the SRM neuron, which `neurons` and the kernels share."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from .surrogates import Surrogate


class SRMState(NamedTuple):
    """State of a layer between time steps: i_t, m_t and h_t, each with the shape of one step of the currents."""

    synapse: Tensor
    membrane: Tensor
    refractory: Tensor


Constants = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""a, b, r, θ and c."""


@dataclass(frozen=True)
class SRMParameters:
    """a, b, r in (0, 1) and θ > 0 as tensors that broadcast against one step of the currents; the sum of the kernel; the surrogate."""

    membrane_decay: Tensor
    synapse_decay: Tensor
    refractory_decay: Tensor
    threshold: Tensor
    scale: float = 1.0
    surrogate: Surrogate = field(default_factory=Surrogate)

    @cached_property
    def constants(self) -> Constants:
        """a, b, r, θ and c."""
        a, b = self.membrane_decay, self.synapse_decay
        return a, b, self.refractory_decay, self.threshold, self.scale * (1 - a) * (1 - b)

    def to(self, dtype: torch.dtype) -> SRMParameters:
        """Convert to another data type; the same object if it has it, because it caches its constants."""
        values = (self.membrane_decay, self.synapse_decay, self.refractory_decay, self.threshold)
        if all(value.dtype == dtype for value in values):
            return self
        a, b, r, threshold = (value.to(dtype) for value in values)
        return SRMParameters(a, b, r, threshold, self.scale, self.surrogate)


def shaped_like(constants: Constants, sums: Tensor) -> list[Tensor]:
    """Sums (5, members) in float32 and in the shapes of the constants; a constant that the members share gets the sum over them."""
    return [(row if value.numel() > 1 else row.sum()).float().reshape(value.shape) for row, value in zip(sums, constants, strict=True)]


def empty_like(currents: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """An empty tensor with the memory order of `currents`, also when one step was expanded over time."""
    if currents.stride(0):
        return torch.empty_like(currents, dtype=dtype)
    order = sorted(range(1, currents.ndim), key=currents.stride, reverse=True)
    dense = torch.empty([len(currents), *(currents.shape[axis] for axis in order)], dtype=dtype or currents.dtype, device=currents.device)
    return dense.permute(0, *(1 + order.index(axis) for axis in range(1, currents.ndim)))
