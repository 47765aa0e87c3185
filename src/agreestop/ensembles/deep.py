"""Deep ensembles: K members from independent initialisations, trained together as one batched program.

    loss = Σ_k mean over inputs and read-out times of -log softmax(r_t^k)_y,     r_t^k the spike counts of member k after t steps

Members share the order of the examples and nothing else: no gradient crosses from one to another.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from agreestop.networks.architectures import Architecture, SpikingNetwork
from agreestop.networks.posteriors import read_out


@final
class DeepEnsemble(nn.Module):
    """K members with weights drawn from the generator: PyTorch's default, or i.i.d. N(0, deviation²)."""

    def __init__(self, config: Architecture, generator: torch.Generator, deviation: float | None = None) -> None:
        super().__init__()
        self.config = config
        self.network = SpikingNetwork(config, generator, deviation)

    def read_out(self, x: Tensor, generator: torch.Generator, steps: int | None = None, burn_in: int = 0) -> Tensor:
        """Read-out spikes (T, K, batch, C) of every member; nothing is drawn.

        steps: for how many an image is held. burn_in: of these, how many come first, without gradient.
        """
        return read_out(self.network, x, steps, burn_in)

    def penalty(self) -> Tensor | None:
        """Nothing but the data moves a deep ensemble."""
        return None

    def members(self, generator: torch.Generator) -> SpikingNetwork:
        """The members themselves."""
        return self.network
