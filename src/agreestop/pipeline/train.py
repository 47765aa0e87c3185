"""Train the ensembles of a run, or take the members that the same settings made before."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from agreestop.common import ProgressCallback, make_folder
from agreestop.ensembles import DeepEnsemble, Ensemble, VariationalEnsemble, load
from agreestop.events.data import EventData, EventSplits
from agreestop.networks.architectures import QUICK, BuiltIn, Convolutional, FullyConnected, ResNet18
from agreestop.networks.neurons import Neuron
from agreestop.networks.surrogates import Surrogate

from .config import EnsembleSettings, NetworkSettings, RunConfig
from .data import data_key
from .files import EnsembleFiles, ensemble_files, is_current, mark, unmark


def build_network(settings: NetworkSettings, data: EventData, members: int) -> BuiltIn:
    """The architecture that the settings name, for these inputs."""
    times = {name: getattr(settings, name) for name in ("membrane_time", "synapse_time", "refractory_time", "threshold")}
    given: dict[str, Any] = {name: value for name, value in times.items() if value is not None}
    if settings.surrogate is not None:
        given["surrogate"] = Surrogate(settings.surrogate)
    shape, classes, real = data.inputs.shape[2:], len(data.classes), data.inputs.dtype != np.bool_
    if settings.architecture == "fully-connected":
        neuron = replace(Neuron(), **given, learned=settings.learned)
        return FullyConnected(shape, classes, members, settings.hidden, neuron, real)
    neuron = replace(QUICK, **given, learned=settings.learned)
    if settings.architecture == "convolutional":
        return Convolutional(shape, classes, members, settings.channels, settings.hidden, neuron, real)
    return ResNet18(shape, classes, members, settings.width, neuron, real)


def training_key(config: RunConfig, ensemble: EnsembleSettings) -> list[object]:
    """The settings that the members depend on."""
    return [data_key(config.data), asdict(config.network), asdict(ensemble)]


def training_notes(config: RunConfig, folder: Path) -> list[str]:
    """Sentences to show before training: why the loss of a variational ensemble rises on purpose, where one is to be trained."""
    return [
        f"The loss of the {files.folder.name} ensemble may rise while it trains: the weight of its KL term grows from 0 to "
        f"{ensemble.kl_weight:g} over {'all' if ensemble.warm_up == 1 else f'the first {ensemble.warm_up:.0%} of the'} epochs."
        for ensemble, files in zip(config.ensembles, ensemble_files(config, folder), strict=True)
        if ensemble.kind == "variational" and ensemble.kl_weight and ensemble.warm_up
        if not is_current(files.members, training_key(config, ensemble))
    ]


def train_ensemble(
    config: RunConfig, ensemble: EnsembleSettings, data: EventSplits, files: EnsembleFiles, progress: ProgressCallback
) -> Ensemble:
    """Train the ensemble, or load what the same settings made before; a killed training continues from its last whole epoch."""
    settings = training_key(config, ensemble)
    if is_current(files.members, settings):
        return load_ensemble(ensemble, files)
    make_folder(files.folder)
    if not is_current(files.checkpoint, settings):
        files.checkpoint.unlink(missing_ok=True)
        mark(files.checkpoint, settings)
    progress("training", 0.0)

    def report(what: str, share: float) -> None:
        if share:  # the sentence that `fit` begins with is among `training_notes`
            progress(what, share)

    training = data.training
    made = new_ensemble(ensemble, build_network(config.network, training, ensemble.members))
    names = ("epochs", "batch_size", "learning_rate", "readouts", "kl_weight", "warm_up", "bf16")
    options = {name: getattr(ensemble, name) for name in names}
    made.fit(training.inputs, training.labels, steps=training.held, checkpoint=files.checkpoint, progress=report, **options)
    unmark(files.members)
    made.save(files.members)
    mark(files.members, settings)
    return made


def new_ensemble(settings: EnsembleSettings, network: BuiltIn) -> Ensemble:
    """The ensemble that the settings name, before training."""
    made_from = network, settings.members, settings.seed, settings.device
    if settings.kind == "deep":
        return DeepEnsemble(*made_from)
    deviation = settings.initial_deviation
    return VariationalEnsemble(*made_from, prior_variance=settings.prior_variance, initial_deviation=deviation, fresh=settings.fresh)


def load_ensemble(settings: EnsembleSettings, files: EnsembleFiles) -> Ensemble:
    """The trained ensemble. Version 0.1 kept the posterior of fresh members in a file of its own."""
    return load(files.posterior if settings.fresh and files.posterior.is_file() else files.members, device=settings.device)
