"""The products of a run for one ensemble: its trained members, their scores, and the operations
that they take.

    members.safetensors          the trained ensemble: its K members, and the posterior that they
                                 were drawn from
    training.safetensors         the state of training after its last whole epoch
    tuning.npz, pool.npz         read-out spikes at every step, as packed bits
    calibration.npz, test.npz    the pool, divided
    energy.npz                   operations (n, T, K) on the pool, for the estimate of energy

Each product is made once, and used again until the settings that it depends on change. Beside it
lies `<product>.key`: a digest of the product, and a hash of these settings. A product that was
damaged, or whose key was, is made again.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np

from agreestop.common import ProgressCallback, atomic_writer, make_folder, no_progress, read_npz
from agreestop.decide.scores import load_spikes, save_spikes
from agreestop.engines.dense import FreshMembers
from agreestop.engines.early_stopping import run_counted, run_to_end
from agreestop.engines.protocol import Engine, Operations
from agreestop.engines.runner import choose_engine
from agreestop.ensembles import DeepEnsemble, Ensemble, VariationalEnsemble, load
from agreestop.events.container import input_ids
from agreestop.events.data import EventData, EventSplits
from agreestop.networks import Surrogate
from agreestop.networks.architectures import QUICK, BuiltIn, Convolutional, FullyConnected, ResNet18
from agreestop.networks.neurons import Neuron
from agreestop.networks.posteriors import Posterior

from .config import EnsembleSettings, NetworkSettings, RunConfig
from .data import data_key, file_digest
from .workers import MapTasks, fit_on_workers, fit_with_checkpoint, score_on_workers


@final
class EnsembleFiles:
    """Paths of the files of one ensemble."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.members = folder / "members.safetensors"
        self.posterior = folder / "posterior.safetensors"  # only of version 0.1
        self.checkpoint = folder / "training.safetensors"
        self.tuning, self.pool = folder / "tuning.npz", folder / "pool.npz"
        self.calibration, self.test = folder / "calibration.npz", folder / "test.npz"
        self.energy = folder / "energy.npz"


def _is_current(path: Path, settings: Sequence[object]) -> bool:
    """Whether the product exists, was made with these settings, and is as it was written.

    Keys of version 0.1 hold no digest.
    """
    try:
        *digest, known = _key_file(path).read_bytes().split() or [b""]
        return known == _hash(settings) and digest in ([], [file_digest(path).encode()])
    except OSError:
        return False


@contextmanager
def _recorded(path: Path, settings: Sequence[object]) -> Iterator[None]:
    """Record the settings of a product that is written meanwhile.

    A run that is killed leaves no product under a wrong key.
    """
    _key_file(path).unlink(missing_ok=True)
    yield
    with atomic_writer(_key_file(path)) as stream:
        # The hash stands last, because a key of version 0.1 is only the hash: a key that is cut is
        # never taken for one.
        stream.write(file_digest(path).encode() + b"\n" + _hash(settings) + b"\n")


def _key_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.key")


def _hash(settings: Sequence[object]) -> bytes:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest().encode()


def build_network(settings: NetworkSettings, data: EventData, members: int) -> BuiltIn:
    """The architecture that the settings name, for these inputs."""
    times = {
        name: getattr(settings, name)
        for name in ("membrane_time", "synapse_time", "refractory_time", "threshold")
    }
    given: dict[str, Any] = {name: value for name, value in times.items() if value is not None}
    if settings.surrogate is not None:
        given["surrogate"] = Surrogate(settings.surrogate)
    shape, classes, real = data.inputs.shape[2:], len(data.classes), data.inputs.dtype != np.bool_
    if settings.architecture == "fully-connected":
        neuron = replace(Neuron(), **given, learned=settings.learned)
        return FullyConnected(shape, classes, members, settings.hidden, neuron, real)
    neuron = replace(QUICK, **given, learned=settings.learned)
    if settings.architecture == "convolutional":
        return Convolutional(
            shape, classes, members, settings.channels, settings.hidden, neuron, real
        )
    return ResNet18(shape, classes, members, settings.width, neuron, real)


def new_ensemble(settings: EnsembleSettings, network: BuiltIn) -> Ensemble:
    """The ensemble that the settings name, before training."""
    made_from = network, settings.members, settings.seed, settings.device
    if settings.kind == "deep":
        return DeepEnsemble(*made_from)
    deviation = settings.initial_deviation
    return VariationalEnsemble(
        *made_from,
        prior_variance=settings.prior_variance,
        initial_deviation=deviation,
        fresh=settings.fresh,
    )


def _training_key(config: RunConfig, ensemble: EnsembleSettings) -> list[object]:
    """The settings that the members depend on."""
    return [data_key(config.data), asdict(config.network), asdict(ensemble)]


def members_are_current(
    config: RunConfig, ensemble: EnsembleSettings, files: EnsembleFiles
) -> bool:
    """Whether the same settings trained this ensemble before."""
    return _is_current(files.members, _training_key(config, ensemble))


def train_ensemble(
    config: RunConfig,
    ensemble: EnsembleSettings,
    data: EventSplits,
    files: EnsembleFiles,
    progress: ProgressCallback,
    run: MapTasks | None = None,
) -> Ensemble:
    """Train the ensemble, or load what the same settings made before; a killed training continues
    from its last whole epoch.

    run: trains the members on other machines; see `workers`.
    """
    if members_are_current(config, ensemble, files):
        return load_ensemble(ensemble, files)
    training = data.training
    make_folder(files.folder)
    progress("training", 0.0)

    def report(what: str, share: float) -> None:
        if share:  # the sentence that `fit` begins with is among `notes_before_training`
            progress(what, share)

    def new() -> Ensemble:
        return new_ensemble(ensemble, build_network(config.network, training, ensemble.members))

    names = ("epochs", "batch_size", "learning_rate", "readouts", "kl_weight", "warm_up", "bf16")
    options = {name: getattr(ensemble, name) for name in names}
    if run is None:
        made = fit_with_checkpoint(new, training, files.checkpoint, {**options, "progress": report})
    else:
        made = fit_on_workers(run, new(), training, files.folder, options, report)
    with _recorded(files.members, _training_key(config, ensemble)):
        made.save(files.members)
    return made


def load_ensemble(settings: EnsembleSettings, files: EnsembleFiles) -> Ensemble:
    """The trained ensemble. Version 0.1 kept the posterior of fresh members in a
    file of its own.
    """
    return load(
        files.posterior if settings.fresh and files.posterior.is_file() else files.members,
        device=settings.device,
    )


def _score_key(config: RunConfig, ensemble: EnsembleSettings) -> list[object]:
    return ["scores", *_training_key(config, ensemble), config.decide.engine]


def scores_are_current(config: RunConfig, ensemble: EnsembleSettings, files: EnsembleFiles) -> bool:
    """Whether the same settings scored this ensemble before."""
    return all(
        _is_current(path, _score_key(config, ensemble))
        for path in (files.tuning, files.pool, files.energy)
    )


def needs_training(config: RunConfig, ensemble: EnsembleSettings, files: EnsembleFiles) -> bool:
    """Whether the members are missing or damaged. Where there are none, their scores are enough."""
    if members_are_current(config, ensemble, files):
        return False
    return files.members.exists() or not scores_are_current(config, ensemble, files)


def score_ensemble(
    config: RunConfig,
    ensemble: EnsembleSettings,
    data: EventSplits,
    files: EnsembleFiles,
    progress: ProgressCallback,
    run: MapTasks | None = None,
) -> None:
    """Score the trained members on the tuning split and the pool, unless the same settings
    did so before.

    The pool is also written as two parts: its first `decide.n_calibration` rows for calibration,
    the others for the test. run: scores on other machines; see `workers`.
    """
    if not scores_are_current(config, ensemble, files):
        members, settings = load_ensemble(ensemble, files), _score_key(config, ensemble)
        progress(f"scoring {data.tuning.name}", 0.0)
        engine, spikes = _run_split(members, config.decide.engine, 0, data.tuning, False, run)
        with _recorded(files.tuning, settings):
            _save_scores(files.tuning, members, engine, data.tuning, spikes)
        progress(f"scoring {data.pool.name}", 0.5)
        engine, counted = _run_split(members, config.decide.engine, 1, data.pool, True, run)
        with _recorded(files.pool, settings):
            _save_scores(files.pool, members, engine, data.pool, counted.spikes)
        with _recorded(files.energy, settings), atomic_writer(files.energy) as stream:
            np.savez_compressed(stream, **asdict(counted.operations))
    pool = load_spikes(files.pool)  # it is in random order already
    for path, rows in (
        (files.calibration, slice(0, config.decide.n_calibration)),
        (files.test, slice(config.decide.n_calibration, None)),
    ):
        save_spikes(path, pool.rows(rows))


def _run_split(
    members: Ensemble, name: str, split: int, part: EventData, counted: bool, run: MapTasks | None
) -> tuple[str, Any]:
    """The name of the engine, and its outputs for all inputs, with their operations if
    they are counted.
    """
    make = partial(_scoring_engine, members, name, split, part)
    engine = make()
    if run is not None:
        return engine.name, score_on_workers(run, make, part, counted, no_progress)
    return engine.name, (run_counted if counted else run_to_end)(
        engine, part.inputs, steps=part.held
    )


def _scoring_engine(members: Ensemble, name: str, split: int, part: EventData) -> Engine:
    network = members.network
    if isinstance(network, Posterior):  # every split has draws of its own
        return FreshMembers(network, (members.seed, split), members.device)
    return choose_engine(network, name, part.density)


def _save_scores(path: Path, members: Ensemble, engine: str, part: EventData, spikes: Any) -> None:
    rows = members.training_rows
    trained = (
        () if rows is None else (rows.find(input_ids(part.inputs, as_float32=True)), rows.chance)
    )
    save_spikes(
        path,
        spikes,
        part.labels,
        part.classes,
        engine,
        members.digest,
        input_ids(part.inputs),
        *trained,
    )


def load_operations(files: EnsembleFiles) -> Operations:
    """The operations on the pool."""
    names = ("emitted", "accumulates", "multiplies")
    content = read_npz(files.energy, "file of operations", "remove it, and run again", needed=names)
    return Operations(*(content[name] for name in names))
