"""Variational ensembles: K members drawn from a Gaussian posterior over the weights (see `agreestop.networks.posteriors`)."""

from typing import final

import torch

from agreestop.common import InputError
from agreestop.networks.posteriors import PRIOR_VARIANCE, ModulePosterior, Posterior

from .ensemble import Ensemble
from .sources import NetworkSource


@final
class VariationalEnsemble(Ensemble):
    """K members drawn from one posterior over the weights, which is trained on the ELBO.

    network            settings, or a function `() -> torch module`, as for `DeepEnsemble`; or a list of one module
    members            K, the number of members that are drawn
    prior_variance     of the Gaussian prior over each weight
    initial_deviation  deviation of the posterior at the start, as a share of that of the initial weights of the same layer
    fresh              False: K members are drawn once. True: new members are drawn for every input, which needs a forward pass of its own
                       for each input and is many times slower
    seed, device, engine, output   as for `DeepEnsemble`
    """

    kind = "variational"

    def __init__(
        self,
        network: NetworkSource,
        members: int = 6,
        seed: int = 0,
        device: str = "auto",
        *,
        prior_variance: float = PRIOR_VARIANCE,
        initial_deviation: float = 0.3,
        fresh: bool = False,
        engine: str = "auto",
        output: str = "logits",
    ) -> None:
        super().__init__(network, members, seed, device, engine, output)
        if self._source.modules is not None and len(self._source.modules) > 1:
            raise InputError(
                f"network is a list of {len(self._source.modules)} modules, but members are drawn from one posterior: "
                "give a function that builds a module, or a list of one module."
            )
        self.prior_variance, self.initial_deviation, self.fresh = prior_variance, initial_deviation, fresh

    def _new_model(self, members: int, input_shape: tuple[int, ...] | None, real_input: bool = False) -> Posterior | ModulePosterior:
        if self._source.config is not None:
            config, generator = self._source.settings(members, real_input), torch.Generator().manual_seed(self.seed)
            return Posterior(config, generator, None, self.prior_variance, self.initial_deviation)
        (module,) = self._source.build(1, self.seed)
        return ModulePosterior(module, members, self.output, input_shape, self.prior_variance, self.initial_deviation)
