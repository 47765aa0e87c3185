"""Ensembles, deep and variational: train, score, decide, watch a live input, save, load.

    ensemble = DeepEnsemble(network, members=6, seed=0)      or VariationalEnsemble
    ensemble.fit(x_train, y_train, epochs=6)
    rule = AgreeStop(target=0.9, checkpoints=range(1, 81), max_set_size=1)
    rule = rule.calibrate(ensemble.score(x_cal, y_cal))
    run = ensemble.decide(rule, x_new)      stops computing an input soon after the rule stops

Inputs are arrays (n, T, ...) of booleans or numbers, an `Events`, or images (n, 1, ...) that are
held for a number of steps. Members of a deep ensemble come from independent initialisations.
Members of a variational ensemble are drawn from a Gaussian posterior over the weights (see
`agreestop.networks.posteriors`).

Members, engine and rule belong together: scores carry the engine's name
and the ensemble's digest, and a rule refuses others.
"""

import reprlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, is_dataclass, replace
from functools import reduce
from os import PathLike
from typing import Any, Self, TypeAlias, cast, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from agreestop.common import (
    InputError,
    ProgressCallback,
    as_count,
    as_labels,
    as_seed,
    check_finite,
    time_last,
    warn_of_time_last,
)
from agreestop.decide.leakage import TrainingRows
from agreestop.engines.inputs import check_device, check_shape
from agreestop.engines.protocol import Engine
from agreestop.engines.runner import Runner, choose_engine
from agreestop.events.container import Events, Inputs, as_inputs, dense_rows, density_of, input_ids
from agreestop.networks.architectures import ARCHITECTURES, Architecture, ResNet18, SpikingNetwork
from agreestop.networks.digests import Runnable, network_settings
from agreestop.networks.modules import ModuleMembers
from agreestop.networks.posteriors import PRIOR_VARIANCE, ModulePosterior, Posterior

from .files import (
    Epoch,
    OwnModules,
    check_shapes,
    fitting,
    read_tensors,
    restore_settings,
    select,
    write_tensors,
)
from .images import ImageTraining, reestimate_batchnorm
from .streams import StreamTraining, kl_note
from .training import TrainableMembers, TrainingSettings, show_progress, train

LEARNING_RATE, MEMBERS = 5e-3, 6

NetworkSource: TypeAlias = Architecture | Callable[[], nn.Module] | Sequence[nn.Module]
"""Settings of an architecture, a function `() -> torch module`, or a list of modules."""


class Ensemble(Runner):
    """K members that watch the same inputs.

    `DeepEnsemble` and `VariationalEnsemble` are the two kinds.
    """

    kind: str

    def __init__(
        self, network: NetworkSource, members: int, seed: int, device: str, engine: str, output: str
    ) -> None:
        super().__init__()
        # Exactly one of the three is not None.
        self._config: Architecture | None = None
        self._builder: Callable[[], nn.Module] | None = None
        self._modules: tuple[nn.Module, ...] | None = None
        if (
            is_dataclass(network)
            and not isinstance(network, (type, nn.Module))
            and hasattr(network, "layers")
        ):
            self._config = network
        elif (
            isinstance(network, (list, tuple))
            and network
            and all(isinstance(module, nn.Module) for module in network)
        ):
            self._modules = tuple(network)
        elif callable(network) and not isinstance(network, nn.Module):
            self._builder = network
        else:
            given = (
                f"one {type(network).__name__}"
                if isinstance(network, nn.Module)
                else reprlib.repr(network)
            )
            raise InputError(
                f"network is {given}: give settings such as "
                "agreestop.networks.FullyConnected(...), a function that builds one module "
                "and is called for each member, or a list of torch modules."
            )
        self.members, self.seed = as_count(members, "members"), as_seed(seed)
        self.device, self.output = check_device(device), output
        self.history: tuple[Epoch, ...] = ()
        self._members: SpikingNetwork | ModuleMembers | None = None
        self._posterior: Posterior | ModulePosterior | None = None  # of which members are drawn
        self._engine_name = engine
        self._density: float | None = None

    @abstractmethod
    def _new_model(
        self, members: int, input_shape: tuple[int, ...] | None, real_input: bool = False
    ) -> Any:
        """New members, or the posterior from which they are drawn.

        input_shape: the shape of an input at one time step. real_input: the inputs hold values
        other than 0 and 1.
        """

    def _settings(self, members: int, real_input: bool) -> Architecture:
        """The settings of the network, for this number of members."""
        config: Any = self._config
        return cast(
            Architecture,
            replace(config, members=members, real_input=config.real_input or real_input),
        )

    def _build(self, count: int) -> list[nn.Module]:
        """The modules of the user: those given, or new ones of the builder.

        Random numbers that the builder of member k draws from torch follow from (seed, k), and
        torch's own are left as they were.
        """
        if self._modules is not None:
            return list(self._modules)
        assert self._builder is not None
        built = []
        for member in range(count):
            with torch.random.fork_rng(range(torch.cuda.device_count())):
                torch.manual_seed(
                    int(
                        np.random.SeedSequence((self.seed, member)).generate_state(1, np.uint64)[0]
                        >> 1
                    )
                )
                module = self._builder()
            if not isinstance(module, nn.Module):
                raise InputError(
                    f"the builder returned a {type(module).__name__}: it must return a "
                    "torch.nn.Module."
                )
            built.append(module)
        return built

    def _keep(self, model: SpikingNetwork | ModuleMembers | Posterior | ModulePosterior) -> None:
        """Keep members that were trained, or a posterior and the K members drawn from it."""
        if isinstance(model, (Posterior, ModulePosterior)):
            if model.member_count != self.members:
                model = model.to("cpu").with_members(self.members)
            self._posterior = model.to("cpu").eval()
            model = self._posterior.members(torch.Generator().manual_seed(self.seed + 1))
        self._members = model.to("cpu").eval()
        self._engine, self._ran = None, ""

    @property
    def network(self) -> Runnable:
        if self._members is None:
            raise InputError(
                "this ensemble is not trained yet: call fit first, or load one with "
                "agreestop.ensembles.load."
            )
        return self._posterior if self.fresh and self._posterior is not None else self._members

    @property
    def _more_settings(self) -> dict[str, Any]:
        return {"seed": self.seed} if self.fresh else {}

    def _make_engine(self) -> Engine:
        return choose_engine(
            self.network, self._engine_name, self._density or 0.0, self.seed, self.device
        )

    def fit(
        self,
        x: ArrayLike | Events,
        y: ArrayLike | None = None,
        epochs: int = 6,
        *,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        readouts: int = 8,
        kl_weight: float = 1.0,
        warm_up: float = 1.0,
        bf16: bool = False,
        checkpoint: str | PathLike[str] | None = None,
        progress: bool | ProgressCallback = True,
        remember_rows: bool = True,
    ) -> Self:
        """Train all members on inputs (n, T, ...) with labels (n,), and return the ensemble.

        A second call trains new members; modules that were given as a list are trained further.

        y              labels from 0 to C-1; may be left out if x is an `Events` with labels
        steps          for images (n, 1, ...): the number of steps for which each is held. A
                       ResNet18 is then trained with the recipe of `ensembles.images`, which spends
                       the first three fifths of the epochs on firing rates
        batch_size     64 by default; 256 for a ResNet18 on images
        learning_rate  5e-3 by default; 0.05 for a ResNet18 on images. It falls to 0 along a cosine
        readouts       the log-loss is taken at this many steps, evenly spread up to the last
        kl_weight      of a variational ensemble: weight of the divergence from the prior; 1
                       is the true ELBO
        warm_up        of a variational ensemble: share of the epochs in which that
                       weight grows from 0
        bf16           compute matrix products in bfloat16
        checkpoint     path of a file that is written after every epoch. A run that finds the file
                       continues after the last epoch in it, and ends with the same numbers as an
                       uninterrupted run
        progress       True for a bar on a terminal, and for lines about epochs on standard error
                       elsewhere; or a function `(what, share)`
        remember_rows  keep a hash of each input, here and in the file of the members, so that
                       calibration and evaluation can refuse these rows. False for those who may not
                       keep hashes: then nothing notices
        """
        inputs, given, names = as_inputs(x), y, None
        if isinstance(inputs, Events):
            given, names = inputs.labels if y is None else y, inputs.classes
        if given is None:
            raise InputError("there are no labels: give y, or an Events with labels.")
        self._check_inputs(inputs, steps)
        warn_of_time_last(inputs.shape, inputs.dtype.kind)
        # one draw for each step is enough to train a posterior
        members = self.members if self.kind == "deep" else 1
        made = self._new_model(members, tuple(inputs.shape[2:]), inputs.dtype != np.bool_)
        model = made if self.kind == "variational" else TrainableMembers(made)
        labels = as_labels(given, len(inputs), model.classes)
        if names is not None and len(names) != model.classes:
            raise InputError(
                f"x names {len(names)} classes, but the network has {model.classes}: give the "
                f"network {len(names)} classes."
            )
        chosen: dict[str, Any] = {
            "seed": self.seed,
            "device": self.device,
            "bf16": bf16,
            "kl_weight": kl_weight,
        }
        chosen |= {
            name: value
            for name, value in {"batch_size": batch_size, "learning_rate": learning_rate}.items()
            if value is not None
        }
        settings: TrainingSettings
        config, note = self._config, ""
        if steps is not None and isinstance(config, ResNet18):
            settings, inputs = (
                ImageTraining.for_steps(epochs, steps, **chosen),
                dense_rows(inputs, slice(None)),
            )
        else:
            chosen = {"learning_rate": LEARNING_RATE, **chosen}
            settings = StreamTraining(
                epochs, steps=steps, readouts=readouts, warm_up=warm_up, **chosen
            )
            note = kl_note(kl_weight, warm_up) if self.kind == "variational" else ""
        with show_progress(progress, note) as report:

            def on_epoch(epoch: int, figures: Epoch) -> None:
                what = (
                    f"epoch {epoch + 1} of {settings.total_epochs}: loss {figures.loss:.2f}, "
                    f"accuracy {figures.accuracy:.2f}"
                )
                report(what, (epoch + 1) / settings.total_epochs)

            try:
                history = train(model, inputs, labels, settings, checkpoint, on_epoch)
                if (
                    steps is not None
                    and isinstance(config, ResNet18)
                    and isinstance(inputs, np.ndarray)
                ):
                    reestimate_batchnorm(
                        model,
                        inputs,
                        config.timed or steps,
                        self.seed,
                        settings.batch_size,
                        bf16=bf16,
                    )
            finally:  # modules that were given are used again even if training was interrupted
                model.to("cpu").eval()
        self._keep(made)
        self.history, self.class_names, self._density = tuple(history), names, density_of(inputs)
        # modules of a list are trained further
        before = self.training_rows if self._modules is not None else None
        self.training_rows = _remember(inputs).also(before) if remember_rows else None
        return self

    def save(self, path: str | PathLike[str]) -> None:
        """Write the ensemble to one file, which `agreestop.ensembles.load` reads.

        The file appears whole or not at all.
        """
        network = self.network
        tensors = {
            f"members/{name}": value
            for name, value in cast(nn.Module, self._members).state_dict().items()
        }
        if self._posterior is not None:
            network = self._posterior
            tensors |= {f"posterior/{name}": value for name, value in network.state_dict().items()}
        names = ("members", "seed", "output", "fresh", "class_names")
        header = {
            "kind": "ensemble",
            "ensemble": self.kind,
            "density": self._density,
            "network": network_settings(network),
        }
        header |= {name: getattr(self, name) for name in names} | {
            "history": [asdict(epoch) for epoch in self.history]
        }
        if (rows := self.training_rows) is not None:
            tensors["training_rows"] = torch.from_numpy(rows.ids.view(np.int64))
            header["training_chance"] = rows.chance
        write_tensors(path, tensors, header)

    def restore(self, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
        """Take over what `save` wrote; `agreestop.ensembles.load` calls this."""
        shape, names = header["network"].get("input_shape"), header.get("class_names")
        posterior, members = select(tensors, "posterior/"), select(tensors, "members/")
        if self._config is not None:
            check_shapes(
                self._settings(self.members, False), members or select(posterior, "frame.")
            )
        model = self._new_model(self.members, None if shape is None else tuple(shape))
        if posterior:
            model.load_state_dict(posterior)
        self._keep(model)
        if members:
            cast(nn.Module, self._members).load_state_dict(members)
        self.class_names = None if names is None else tuple(names)
        self._density = header.get("density")
        self.history = tuple(Epoch.of(entry) for entry in header.get("history", ()))
        if (hashes := tensors.get("training_rows")) is not None:
            self.training_rows = TrainingRows(
                hashes.numpy().view(np.uint64), float(header["training_chance"])
            )

    def engine_for(self, inputs: Inputs, steps: int | None = None) -> Engine:
        # without a density from training, these inputs decide which engine it is
        network = self.network
        self._check_inputs(inputs, steps)
        if self._density is None:
            self._density = density_of(inputs)
        if network.input_shape is None:
            network.input_shape = tuple(inputs.shape[2:])
        check_shape(inputs.shape, network.input_shape)
        return self.current_engine()

    def _check_inputs(self, inputs: Inputs, steps: int | None) -> None:
        shape, config = tuple(inputs.shape), self._config
        if config is not None and shape[2:] != tuple(config.input_shape):
            sizes = "".join(f", {size}" for size in config.input_shape)
            hint = (
                time_last(shape, config.input_shape)
                or ", so reshape x or change input_shape of the network"
            )
            raise InputError(f"x has shape {shape}: the network takes (n, T{sizes}){hint}.")
        if not shape[0]:
            raise InputError("x holds no inputs: give at least one.")
        if steps is not None and shape[1] != 1:
            raise InputError(
                f"steps is {steps!r}, but x has {shape[1]} steps of its own: leave steps out, or "
                "give images (n, 1, ...)."
            )
        if steps is not None:
            as_count(steps, "steps")
        if isinstance(inputs, np.ndarray) and inputs.dtype.kind == "f":
            check_finite(inputs, "x")

    def __repr__(self) -> str:
        members = f"{self.members} member{'s' if self.members > 1 else ''}"
        try:
            state = self.engine.reason or f"The {self.engine.name} engine was named."
        except InputError as error:
            state = str(error)
        source = self._builder or type(self._config or cast(Any, self._modules)[0])
        return (
            f"<{type(self).__name__} of {members}, {getattr(source, '__name__', 'builder')}. "
            f"{state[0].upper()}{state[1:]}>"
        )


def _remember(inputs: Inputs) -> TrainingRows:
    """Hashes of the inputs, without that of an empty input, which repeats by nature."""
    ids = input_ids(inputs, as_float32=True)
    empty = input_ids(np.zeros((1, *inputs.shape[1:]), bool))
    return TrainingRows.of(ids[ids != empty])


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
        model.load_state_dict(together.state_dict())
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
    ) -> SpikingNetwork | ModuleMembers:
        if self._config is not None:
            index, total = self._among or (None, members)
            network = SpikingNetwork(
                self._settings(total, real_input), torch.Generator().manual_seed(self.seed)
            )
            return network if index is None else network.select_members(slice(index, index + 1))
        return ModuleMembers(self._build(members), self.output, input_shape)


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
    tensors, header = read_tensors(path, "ensemble", "members", "posterior")
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
