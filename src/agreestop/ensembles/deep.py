"""Deep ensembles: K members from independent initialisations."""

from typing import Any, final

import torch

from agreestop.networks.architectures import SpikingNetwork
from agreestop.networks.modules import ModuleMembers

from .ensemble import Ensemble
from .sources import NetworkSource
from .training import TrainableMembers


@final
class DeepEnsemble(Ensemble):
    """K members from independent initialisations, trained on the same data. Members differ in nothing else.

    network  settings (`agreestop.networks.FullyConnected`, `Convolutional`, `ResNet18`); a function `() -> torch module`; or a list of K
             modules, which may score at once. A module has the form `(x_t, state) -> (output, state)`, see
             `agreestop.networks.ModuleMembers`
    members  K; for a list of modules its length
    seed     of the initial weights and of the order of the examples
    device   to train on: "cpu", "cuda", or "auto" for a GPU if there is one
    engine   that runs the members, by name; "auto" chooses
    output   of modules: "logits" or "spikes" (0 or 1)
    """

    kind = "deep"

    def __init__(
        self,
        network: NetworkSource,
        members: int = 6,
        seed: int = 0,
        device: str = "auto",
        *,
        engine: str = "auto",
        output: str = "logits",
    ) -> None:
        members = len(network) if isinstance(network, (list, tuple)) and network else members
        super().__init__(network, members, seed, device, engine, output)
        if self._source.modules is not None:
            self._keep(self._new_model(self.members, None))

    def _new_model(self, members: int, input_shape: tuple[int, ...] | None, real_input: bool = False) -> TrainableMembers[Any]:
        if self._source.config is not None:
            config = self._source.settings(members, real_input)
            return TrainableMembers(SpikingNetwork(config, torch.Generator().manual_seed(self.seed)))
        return TrainableMembers(ModuleMembers(self._source.build(members, self.seed), self.output, input_shape))
