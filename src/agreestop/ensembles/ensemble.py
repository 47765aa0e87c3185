"""What every ensemble can do: train, score, decide, watch a live input, save.

    ensemble = DeepEnsemble(network, members=6, seed=0)      or VariationalEnsemble
    ensemble.fit(x_train, y_train, epochs=6)
    rule = AgreeStop(target=0.9, checkpoints=range(1, 81), max_set_size=1)
    rule = rule.calibrate(ensemble.score(x_cal, y_cal))
    run = ensemble.decide(rule, x_new)      stops computing an input soon after the rule stops

Inputs are arrays (n, T, ...) of booleans or numbers, an `Events`, or images (n, 1, ...) that are
held for a number of steps. Members, engine and rule belong together: scores carry the engine's name
and the ensemble's digest, and a rule refuses others.
"""

import reprlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from os import PathLike
from typing import Any, Self, TypeAlias, cast

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
from agreestop.engines.choice import choose_engine
from agreestop.engines.devices import check_device
from agreestop.engines.protocol import Engine
from agreestop.engines.runner import Runner
from agreestop.events.container import Events, Inputs, as_inputs, dense_rows, input_ids
from agreestop.networks.architectures import Architecture, ResNet18, SpikingNetwork
from agreestop.networks.digests import Runnable, network_settings
from agreestop.networks.modules import ModuleMembers
from agreestop.networks.posteriors import ModulePosterior, Posterior

from .files import Epoch, check_shapes, select, write_file
from .images import ImageTraining, reestimate_batchnorm
from .streams import StreamTraining, kl_note
from .training import Trainable, TrainableMembers, TrainingSettings, show_progress, train

LEARNING_RATE = 5e-3

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
        self._model: Trainable | None = None
        self._members: SpikingNetwork | ModuleMembers | None = None
        self._engine_name = engine
        self._density: float | None = None

    @abstractmethod
    def _new_model(
        self, members: int, input_shape: tuple[int, ...] | None, real_input: bool = False
    ) -> Any:
        """A model for the training loop.

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

    def _keep(self, model: Trainable) -> None:
        """Keep a model that was trained, and its K members."""
        if isinstance(model, (Posterior, ModulePosterior)) and model.member_count != self.members:
            model = model.to("cpu").with_members(self.members)
        self._model = model.to("cpu").eval()
        self._members = self._model.members(torch.Generator().manual_seed(self.seed + 1)).eval()
        self._engine = None

    @property
    def network(self) -> Runnable:
        if self._members is None or self._model is None:
            raise InputError(
                "this ensemble is not trained yet: call fit first, or load one with "
                "agreestop.ensembles.load."
            )
        return (
            self._model
            if self.fresh and not isinstance(self._model, TrainableMembers)
            else self._members
        )

    @property
    def _more_settings(self) -> dict[str, Any]:
        return {"seed": self.seed} if self.fresh else {}

    @property
    def engine(self) -> Engine:
        """The engine that runs the members. It is chosen once, and its `reason` says why."""
        if self._engine is None:
            made = choose_engine(
                self.network, self._engine_name, self._density or 0.0, self.seed, self.device
            )
            # the digest of the weights that the engine may have copied
            self._digest, self._engine = self.digest, made
        return self._engine

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
        model = self._new_model(members, tuple(inputs.shape[2:]), inputs.dtype != np.bool_)
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
        self._keep(model)
        self.history, self.class_names, self._density = tuple(history), names, _density(inputs)
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
        if isinstance(self._model, (Posterior, ModulePosterior)):
            network = self._model
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
        write_file(path, tensors, header)

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
            self._density = _density(inputs)
        if network.input_shape is None:
            network.input_shape = tuple(inputs.shape[2:])
        return self.engine

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


def _density(inputs: Inputs) -> float:
    """The share of inputs that are not zero."""
    return (
        inputs.density
        if isinstance(inputs, Events)
        else float(np.count_nonzero(inputs) / inputs.size)
    )
