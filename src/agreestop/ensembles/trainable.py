"""What the training loop trains: K members from independent initialisations, as one batched program, or a posterior over their weights.

    loss of K members = Σ_k mean over inputs and read-out times of -log softmax(r_t^k)_y

r_t^k are the spike counts of member k after t steps, or its logits at step t. Members share the order of the examples and nothing
else: no gradient passes from one to another.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar, final

import torch
from torch import Tensor, nn

from agreestop.networks.architectures import SpikingNetwork
from agreestop.networks.modules import ModuleMembers
from agreestop.networks.posteriors import read_out

Members = SpikingNetwork | ModuleMembers
"""K members, ready to run: of our architectures, or modules of the user."""
MembersType = TypeVar("MembersType", SpikingNetwork, ModuleMembers)


class Trainable(Protocol):
    """A model that the training loop can train: `TrainableMembers`, `Posterior` or `ModulePosterior`.

    member_count: members K that a pass computes. output: "spikes" or "logits".
    """

    @property
    def member_count(self) -> int: ...
    @property
    def classes(self) -> int: ...
    @property
    def output(self) -> str: ...
    def read_out(self, x: Tensor, generator: torch.Generator, steps: int | None = None, burn_in: int = 0) -> Tensor:
        """Outputs (T, K, batch, C) for inputs (T, batch, ...); a posterior draws its weights from the generator."""
        ...

    def penalty(self) -> Tensor | None:
        """A term that is added to the loss, before division by the number of examples; None for no term."""
        ...

    def members(self, generator: torch.Generator) -> Members:
        """K members, ready to run."""
        ...

    def train(self, mode: bool = True) -> Any: ...
    def modules(self) -> Iterator[nn.Module]: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def buffers(self) -> Iterator[Tensor]: ...
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> Any: ...
    def to(self, device: Any) -> Any: ...


@final
class TrainableMembers(nn.Module, Generic[MembersType]):
    """K members that are trained as they are: a deep ensemble."""

    def __init__(self, network: MembersType) -> None:
        super().__init__()
        self.network: MembersType = network

    @property
    def member_count(self) -> int:
        """The number of members K."""
        return self.network.members

    @property
    def classes(self) -> int:
        """The number of classes C."""
        return self.network.classes

    @property
    def output(self) -> str:
        """What the members give at each step: "spikes" or "logits"."""
        return self.network.output

    def read_out(self, x: Tensor, generator: torch.Generator, steps: int | None = None, burn_in: int = 0) -> Tensor:
        """Outputs (T, K, batch, C) of every member; nothing is drawn.

        An image is held for `steps` steps. The first `burn_in` of these steps have no gradient.
        """
        return read_out(self.network, x, steps, burn_in)

    def penalty(self) -> Tensor | None:
        """None: a deep ensemble is trained on the data alone."""
        return None

    def members(self, generator: torch.Generator) -> MembersType:
        """The members themselves."""
        return self.network
