"""What the training loop trains: K members from independent initialisations, as one batched program, or a posterior over their weights.

    loss of K members = Σ_k mean over inputs and read-out times of -log softmax(r_t^k)_y

r_t^k are the spike counts of member k after t steps, or its logits at step t. Members share the order of the examples and nothing
else: no gradient passes from one to another.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from agreestop.networks.architectures import Architecture, SpikingNetwork
from agreestop.networks.posteriors import read_out


class Trainable(Protocol):
    """A model that the training loop can train: `TrainableMembers` or a posterior."""

    config: Architecture

    def read_out(self, x: Tensor, generator: torch.Generator, steps: int | None = None, burn_in: int = 0) -> Tensor:
        """Outputs (T, K, batch, C) for inputs (T, batch, ...); weights are drawn from the generator where there is a posterior."""
        ...

    def penalty(self) -> Tensor | None:
        """What is added to the loss, before division by the number of examples; None for nothing."""
        ...

    def members(self, generator: torch.Generator) -> SpikingNetwork:
        """K members, ready to run."""
        ...

    def train(self, mode: bool = True) -> Any: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def buffers(self) -> Iterator[Tensor]: ...
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> Any: ...
    def to(self, device: Any) -> Any: ...


@final
class TrainableMembers(nn.Module):
    """K members with weights drawn from the generator: PyTorch's default, or i.i.d. N(0, deviation²)."""

    def __init__(self, config: Architecture, generator: torch.Generator, deviation: float | None = None) -> None:
        super().__init__()
        self.config = config
        self.network = SpikingNetwork(config, generator, deviation)

    def read_out(self, x: Tensor, generator: torch.Generator, steps: int | None = None, burn_in: int = 0) -> Tensor:
        """Read-out spikes (T, K, batch, C) of every member; nothing is drawn.

        An image is held for `steps` steps. The first `burn_in` of these steps have no gradient.
        """
        return read_out(self.network, x, steps, burn_in)

    def penalty(self) -> Tensor | None:
        """None: a deep ensemble is trained on the data alone."""
        return None

    def members(self, generator: torch.Generator) -> SpikingNetwork:
        """The members themselves."""
        return self.network
