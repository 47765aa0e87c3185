"""The steps of a run up to its scores: data → train → score.

Each product is a file, made once and used again while nothing it depends on changed.

    <folder>/<ensemble>/members.safetensors     the K members
    <folder>/<ensemble>/posterior.safetensors   of a variational ensemble: what its members are drawn from
    <folder>/<ensemble>/tuning.npz, pool.npz    read-out spikes at every step, as packed bits
    <folder>/<ensemble>/calibration.npz, test.npz    the pool, divided
    <folder>/<ensemble>/energy.npz              operations (n, T, K) of the pool, for the estimate of energy

Beside each product lies `<product>.key`, a fingerprint of the settings it was made with.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agreestop.common.errors import InputError
from agreestop.common.files import atomic_writer, make_folder
from agreestop.decide.score_files import load_spikes, save_spikes
from agreestop.engines.choice import choose_engine
from agreestop.engines.dense import FreshMembers, Operations, run_dense, run_fresh
from agreestop.engines.early_stopping import Engine, run_to_end
from agreestop.ensembles.files import load_members, load_posterior, save_members, save_posterior
from agreestop.ensembles.streams import StreamTraining
from agreestop.ensembles.trainable import TrainableMembers
from agreestop.ensembles.training import Epoch, train
from agreestop.events.data import EventData, EventSplits
from agreestop.events.datasets.catalogue import load
from agreestop.events.files import save_events
from agreestop.networks.architectures import QUICK, BuiltIn, Convolutional, FullyConnected, ResNet18, SpikingNetwork
from agreestop.networks.neurons import Neuron
from agreestop.networks.posteriors import Posterior
from agreestop.networks.surrogates import Surrogate

from .config import SHOWN_AGAIN, EnsembleSettings, NetworkSettings, RunConfig

Tell = Callable[[str, float], None]


@dataclass(frozen=True)
class EnsembleFiles:
    """Where the products of one ensemble lie."""

    folder: Path

    @property
    def members(self) -> Path:
        return self.folder / "members.safetensors"

    @property
    def posterior(self) -> Path:
        return self.folder / "posterior.safetensors"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "training.safetensors"

    @property
    def tuning(self) -> Path:
        return self.folder / "tuning.npz"

    @property
    def pool(self) -> Path:
        return self.folder / "pool.npz"

    @property
    def calibration(self) -> Path:
        return self.folder / "calibration.npz"

    @property
    def test(self) -> Path:
        return self.folder / "test.npz"

    @property
    def energy(self) -> Path:
        return self.folder / "energy.npz"


def load_data(config: RunConfig) -> EventSplits:
    """The data of a run, which must be long and many enough for its decisions, and hold no class that training never shows."""
    chosen, decide = config.data, config.decide
    views: dict[str, Any] = {"views": chosen.views} if chosen.name in SHOWN_AGAIN else {}
    data = load(chosen.name, chosen.folder, chosen.seed, **views)
    if decide.checkpoints[-1] > data.pool.steps:
        raise InputError(f"decide.checkpoints ends at {decide.checkpoints[-1]}, but the data have {data.pool.steps} steps: end earlier.")
    if decide.n_calibration >= len(data.pool):
        raise InputError(f"decide.n_calibration is {decide.n_calibration}, but the pool has {len(data.pool)} inputs: give fewer.")
    check_classes(data)
    return data


def check_classes(data: EventSplits) -> None:
    """Refuse a label that no training input has: nothing could be learned of it, and it would be missed for certain."""
    for part in (data.tuning, data.pool):
        unseen = np.setdiff1d(part.labels, data.training.labels)
        if len(unseen):
            names = ", ".join(part.classes[label] for label in unseen)
            raise InputError(f"{part.name} holds the classes {names}, which training never shows: train on them, or leave them out.")


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


def train_ensemble(config: RunConfig, ensemble: EnsembleSettings, data: EventSplits, files: EnsembleFiles, tell: Tell) -> SpikingNetwork:
    """Train the ensemble, or take the members that the same settings made before; a killed training goes on where it was."""
    settings = [asdict(config.data), asdict(config.network), asdict(ensemble)]
    if _is_fresh(files.members, settings):
        return load_members(files.members)
    make_folder(files.folder)
    if not _is_fresh(files.checkpoint, settings):
        files.checkpoint.unlink(missing_ok=True)
        _mark(files.checkpoint, settings)
    generator = torch.Generator().manual_seed(ensemble.seed)
    network = build_network(config.network, data.training, ensemble.members)
    names = ("epochs", "batch_size", "learning_rate", "seed", "readouts", "kl_weight", "warm_up", "device", "bf16")
    training = StreamTraining(**{name: getattr(ensemble, name) for name in names})

    def report(epoch: int, figures: Epoch) -> None:
        what = f"{ensemble.kind} ensemble, epoch {epoch + 1}: loss {figures.loss:.3f}, accuracy {figures.accuracy:.3f}"
        tell(what, (epoch + 1) / training.epochs)

    if ensemble.kind == "deep":
        model: TrainableMembers | Posterior = TrainableMembers(network, generator)
    else:
        # One draw a step is enough to learn the posterior; K are drawn when it is learned.
        deviation = ensemble.initial_deviation
        model = Posterior(replace(network, members=1), generator, None, ensemble.prior_variance, deviation)
    train(model, data.training.inputs, data.training.labels, training, files.checkpoint, report)
    if isinstance(model, Posterior):
        model = model.to("cpu").with_members(ensemble.members)
        save_posterior(files.posterior, model)
    members = model.members(torch.Generator().manual_seed(ensemble.seed + 1)).cpu().eval()
    _unmark(files.members)  # so that a run killed in between leaves no product under another's key
    save_members(files.members, members)
    _mark(files.members, settings)
    return members


def score_ensemble(config: RunConfig, ensemble: EnsembleSettings, data: EventSplits, files: EnsembleFiles, tell: Tell) -> None:
    """Run the members over the tuning split and the pool and keep their read-out spikes, unless that was done before.

    The pool is kept whole and divided: its first `decide.n_calibration` rows for calibration, the others for the test.
    """
    settings = ["scores", asdict(config.data), asdict(config.network), asdict(ensemble), config.decide.engine]
    if not all(_is_fresh(path, settings) for path in (files.tuning, files.pool, files.energy)):
        members = train_ensemble(config, ensemble, data, files, tell)
        _read_members(members, config.decide.engine, ensemble, data, files, settings, tell)
    _split_pool(files, config.decide.n_calibration)


def engine_for(members: SpikingNetwork, name: str, part: EventData) -> Engine:
    """The engine of that name, or the one that fits these inputs."""
    return choose_engine(members, name, part.density)


def _read_members(
    members: SpikingNetwork,
    engine: str,
    ensemble: EnsembleSettings,
    data: EventSplits,
    files: EnsembleFiles,
    settings: Sequence[object],
    tell: Tell,
) -> None:
    for share, (path, part) in enumerate(((files.tuning, data.tuning), (files.pool, data.pool))):
        tell(f"{ensemble.kind} ensemble: reading {part.name}", share / 2)
        counted = None
        if ensemble.fresh:
            counted = run_fresh(load_posterior(files.posterior), part.inputs, (ensemble.seed, share), ensemble.device)
            spikes, name = counted.spikes, FreshMembers.name
        else:
            chosen = engine_for(members, engine, part)
            spikes, name = run_to_end(chosen, part.inputs), chosen.name
        _unmark(path)
        save_spikes(path, spikes, part.labels, part.classes, name)
        if part is data.pool:
            counted = counted or run_dense(members, part.inputs, device=ensemble.device)
            _unmark(files.energy)
            with atomic_writer(files.energy) as stream:
                np.savez_compressed(stream, **asdict(counted.operations))
            _mark(files.energy, settings)
        _mark(path, settings)


def _split_pool(files: EnsembleFiles, n_calibration: int) -> None:
    """The pool as two score files; it is in random order already."""
    pool = load_spikes(files.pool)
    for path, rows in ((files.calibration, slice(0, n_calibration)), (files.test, slice(n_calibration, None))):
        save_spikes(path, pool.spikes[rows], None if pool.labels is None else pool.labels[rows], pool.classes, pool.engine)


def save_test_inputs(path: Path, data: EventSplits, n_calibration: int) -> None:
    """The inputs behind `test.npz`, for `agreestop decide` with members."""
    pool = data.pool
    save_events(path, replace(pool, inputs=pool.inputs[n_calibration:], labels=pool.labels[n_calibration:]))


def load_energy(files: EnsembleFiles) -> Operations:
    """The operations of the pool."""
    with np.load(files.energy, allow_pickle=False) as content:
        return Operations(content["emitted"], content["accumulates"], content["multiplies"])


def ensemble_files(config: RunConfig, folder: Path) -> list[EnsembleFiles]:
    """A folder for each ensemble, named by its kind, and numbered where there are several of one."""
    kinds = [ensemble.kind for ensemble in config.ensembles]
    names = [kind if kinds.count(kind) == 1 else f"{kind}-{kinds[: place + 1].count(kind)}" for place, kind in enumerate(kinds)]
    return [EnsembleFiles(folder / name) for name in names]


def _key(settings: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _is_fresh(path: Path, settings: Sequence[object]) -> bool:
    """Whether the product is there and was made with these settings."""
    key = _key_file(path)
    return path.is_file() and key.is_file() and key.read_text() == _key(settings)


def _key_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.key")


def _mark(path: Path, settings: Sequence[object]) -> None:
    with atomic_writer(_key_file(path)) as stream:
        stream.write(_key(settings).encode())


def _unmark(path: Path) -> None:
    _key_file(path).unlink(missing_ok=True)
