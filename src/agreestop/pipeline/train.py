"""Train the ensembles of a run, or take the members that the same settings made before."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agreestop.common.files import make_folder
from agreestop.common.progress import ProgressCallback
from agreestop.ensembles.files import load_members, save_members, save_posterior
from agreestop.ensembles.streams import StreamTraining
from agreestop.ensembles.training import Epoch, TrainableMembers, train
from agreestop.events.data import EventData, EventSplits
from agreestop.networks.architectures import QUICK, BuiltIn, Convolutional, FullyConnected, ResNet18, SpikingNetwork
from agreestop.networks.neurons import Neuron
from agreestop.networks.posteriors import Posterior
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
) -> SpikingNetwork:
    """Train the ensemble, or load the members that the same settings made before; a killed training continues from its last whole epoch."""
    settings = training_key(config, ensemble)
    if is_current(files.members, settings):
        return load_members(files.members)
    make_folder(files.folder)
    if not is_current(files.checkpoint, settings):
        files.checkpoint.unlink(missing_ok=True)
        mark(files.checkpoint, settings)
    generator = torch.Generator().manual_seed(ensemble.seed)
    network = build_network(config.network, data.training, ensemble.members)
    names = ("epochs", "batch_size", "learning_rate", "seed", "readouts", "kl_weight", "warm_up", "device", "bf16")
    training = StreamTraining(**{name: getattr(ensemble, name) for name in names}, steps=data.training.held)

    def report(epoch: int, figures: Epoch) -> None:
        what = f"epoch {epoch + 1}/{training.epochs}, loss {figures.loss:.2f}, accuracy {figures.accuracy:.2f}"
        progress(what, (epoch + 1) / training.epochs)

    progress("training", 0.0)
    if ensemble.kind == "deep":
        model: TrainableMembers[SpikingNetwork] | Posterior = TrainableMembers(SpikingNetwork(network, generator))
    else:
        # One draw a step is enough to learn the posterior; K members are drawn after training.
        model = Posterior(replace(network, members=1), generator, None, ensemble.prior_variance, ensemble.initial_deviation)
    train(model, data.training.inputs, data.training.labels, training, files.checkpoint, report)
    if isinstance(model, Posterior):
        model = model.to("cpu").with_members(ensemble.members)
        save_posterior(files.posterior, model)
    members = model.members(torch.Generator().manual_seed(ensemble.seed + 1)).cpu().eval()
    unmark(files.members)
    save_members(files.members, members)
    mark(files.members, settings)
    return members
