"""The two kinds of ensembles, and `load`, which reads one from a file.

Members of a deep ensemble come from independent initialisations. Members of a variational ensemble
are drawn from a Gaussian posterior over the weights (see `agreestop.networks.posteriors`).
"""

from collections.abc import Sequence
from dataclasses import astuple
from functools import reduce
from os import PathLike
from typing import Any, Self, cast, final

import numpy as np
import torch

from agreestop.common import InputError
from agreestop.decide.leakage import TrainingRows
from agreestop.networks.architectures import ARCHITECTURES, SpikingNetwork
from agreestop.networks.modules import ModuleMembers
from agreestop.networks.posteriors import PRIOR_VARIANCE, ModulePosterior, Posterior

from .ensemble import Ensemble, NetworkSource
from .files import Epoch, OwnModules, fitting, read_file, restore_settings
from .training import TrainableMembers

MEMBERS = 6


@final
class DeepEnsemble(Ensemble):
    """K members from independent initialisations, trained on the same data.

    Members differ in nothing else.

    network  settings (`agreestop.networks.FullyConnected`, `Convolutional`, `ResNet18`); a function
             `() -> torch module`; or a list of K modules, which may score at once. A module has the
             form `(x_t, state) -> (output, state)`, see `agreestop.networks.ModuleMembers`
    members  K, by default 6; for a list of modules it is the length of the list
    seed     of the initial weights and of the order of the examples
    device   to train on: "cpu", "cuda", or "auto" for a GPU if there is one
    engine   that runs the members, by name; "auto" chooses
    output   of modules: "logits" or "spikes" (0 or 1)
    """

    kind = "deep"

    def __init__(
        self,
        network: NetworkSource,
        members: int | None = None,
        seed: int = 0,
        device: str = "auto",
        *,
        engine: str = "auto",
        output: str = "logits",
    ) -> None:
        listed = len(network) if isinstance(network, (list, tuple)) else 0
        if listed and members not in (None, listed):
            raise InputError(
                f"members is {members}, but network is a list of {listed} modules, one for each "
                "member: leave members out."
            )
        super().__init__(
            network,
            listed or (MEMBERS if members is None else members),
            seed,
            device,
            engine,
            output,
        )
        self._among: tuple[int, int] | None = None  # which member of how many an ensemble of one is
        if listed:
            self._keep(self._new_model(self.members, None))

    def member(self, index: int) -> "DeepEnsemble":
        """An ensemble of one member, not trained yet: `fit` trains it to the weights that it would
        have among all members.

        So members may train separately, and `join` puts them together. It is for built-in networks.
        """
        if self._config is None or not 0 <= index < self.members:
            raise InputError(
                f"there is no member {index} to train separately: give 0 to {self.members - 1}, of "
                "a built-in network."
            )
        single = DeepEnsemble(
            self._config, 1, self.seed, self.device, engine=self._engine_name, output=self.output
        )
        single._among = index, self.members
        return single

    def join(self, parts: Sequence["DeepEnsemble"]) -> Self:
        """Take over all K members, which were trained separately, in their order, and
        return the ensemble.
        """
        if (
            self._config is None
            or len(parts) != self.members
            or any(part.members != 1 for part in parts)
        ):
            raise InputError(
                f"{len(parts)} parts are given for {self.members} members: give one ensemble of "
                "one member for each."
            )
        together = SpikingNetwork.join_members(
            [cast(SpikingNetwork, part.network) for part in parts]
        )
        model = self._new_model(self.members, None, together.real_input)
        model.network.load_state_dict(together.state_dict())
        self._keep(model)
        epochs = zip(*(part.history for part in parts), strict=True)
        self.history = tuple(
            Epoch(*np.mean([astuple(one) for one in epoch], axis=0).tolist()) for epoch in epochs
        )
        self.class_names, self._density = parts[0].class_names, parts[0]._density
        known = [part.training_rows for part in parts if part.training_rows is not None]
        self.training_rows = reduce(TrainingRows.also, known) if len(known) == len(parts) else None
        return self

    def _new_model(
        self, members: int, input_shape: tuple[int, ...] | None, real_input: bool = False
    ) -> TrainableMembers[Any]:
        if self._config is not None:
            index, total = self._among or (None, members)
            network = SpikingNetwork(
                self._settings(total, real_input), torch.Generator().manual_seed(self.seed)
            )
            return TrainableMembers(
                network if index is None else network.select_members(slice(index, index + 1))
            )
        return TrainableMembers(ModuleMembers(self._build(members), self.output, input_shape))


@final
class VariationalEnsemble(Ensemble):
    """K members drawn from one posterior over the weights, which is trained on the ELBO.

    network            settings, or a function `() -> torch module`, as for `DeepEnsemble`; or a
                       list of one module
    members            K, the number of members that are drawn
    prior_variance     of the Gaussian prior over each weight
    initial_deviation  deviation of the posterior at the start, as a share of that of the initial
                       weights of the same layer
    fresh              False: K members are drawn once. True: new members are drawn for every input,
                       which needs a forward pass of its own for each input and is many times slower
    seed, device, engine, output   as for `DeepEnsemble`
    """

    kind = "variational"

    def __init__(
        self,
        network: NetworkSource,
        members: int = MEMBERS,
        seed: int = 0,
        device: str = "auto",
        *,
        prior_variance: float = PRIOR_VARIANCE,
        initial_deviation: float = 0.3,
        fresh: bool = False,
        engine: str = "auto",
        output: str = "logits",
    ) -> None:
        if isinstance(network, (list, tuple)) and len(network) > 1:
            raise InputError(
                f"network is a list of {len(network)} modules, but members are drawn from one "
                "posterior: give a function that builds a "
                "module, or a list of one module."
            )
        super().__init__(network, members, seed, device, engine, output)
        self.prior_variance = prior_variance
        self.initial_deviation = initial_deviation
        self.fresh = fresh

    def _new_model(
        self, members: int, input_shape: tuple[int, ...] | None, real_input: bool = False
    ) -> Posterior | ModulePosterior:
        prior = self.prior_variance, self.initial_deviation
        if self._config is not None:
            return Posterior(
                self._settings(members, real_input),
                torch.Generator().manual_seed(self.seed),
                None,
                *prior,
            )
        (module,) = self._build(1)
        return ModulePosterior(module, members, self.output, input_shape, *prior)


def load(
    path: str | PathLike[str],
    network: NetworkSource | None = None,
    *,
    device: str = "auto",
    engine: str = "auto",
) -> DeepEnsemble | VariationalEnsemble:
    """Read an ensemble that `ensemble.save` or `agreestop train` wrote, in this version or in 0.1.

    network: only for members that are modules of your own; the function that builds them, or the
    modules. A file that holds only a posterior (`posterior.safetensors`) gives a variational
    ensemble that draws new members for every input.
    """
    tensors, header = read_file(path, "ensemble", "members", "posterior")
    if header["kind"] != "ensemble":
        tensors = {f"{header['kind']}/{name}": value for name, value in tensors.items()}
        header = {
            "ensemble": "deep" if header["kind"] == "members" else "variational",
            "network": header,
        }
    with fitting(path):
        about: dict[str, Any] = header["network"]
        if about["architecture"] in ARCHITECTURES:
            if network is not None:
                raise InputError(
                    f"{path} names its own network ({about['architecture']}): leave network out."
                )
            network = restore_settings(about)
        if network is None:
            kind = (
                "modules of your own"
                if about["architecture"] is None
                else f"the architecture {about['architecture']}"
            )
            raise OwnModules(
                f"{path} holds members that are {kind}: give what builds them too, load(path, "
                "network=...)."
            )
        members, seed = header.get("members") or about["settings"]["members"], header.get("seed", 0)
        given: dict[str, Any] = {
            "device": device,
            "engine": engine,
            "output": header.get("output", "logits"),
        }
        ensemble: DeepEnsemble | VariationalEnsemble
        if header["ensemble"] == "deep":
            ensemble = DeepEnsemble(network, members, seed, **given)
        else:
            given |= {"prior_variance": about["prior_variance"], "fresh": header.get("fresh", True)}
            ensemble = VariationalEnsemble(network, members, seed, **given)
        ensemble.restore(tensors, header)
    return ensemble
