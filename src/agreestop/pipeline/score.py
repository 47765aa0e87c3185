"""Run the members of an ensemble over the tuning split and the pool, and keep their scores and their operations."""

from dataclasses import asdict
from pathlib import Path

import numpy as np

from agreestop.common import ProgressCallback, atomic_writer
from agreestop.decide.score_files import load_spikes, save_spikes
from agreestop.engines.choice import choose_engine
from agreestop.engines.dense import FreshMembers
from agreestop.engines.early_stopping import run_counted, run_to_end
from agreestop.engines.protocol import Engine, Operations
from agreestop.ensembles import Ensemble
from agreestop.ensembles.files import Runnable
from agreestop.events.container import input_ids
from agreestop.events.data import EventData, EventSplits
from agreestop.events.files import save_events
from agreestop.networks.posteriors import Posterior

from .config import EnsembleSettings, RunConfig
from .files import EnsembleFiles, is_current, mark, unmark
from .train import load_ensemble, training_key


def scores_are_current(config: RunConfig, ensemble: EnsembleSettings, files: EnsembleFiles) -> bool:
    """Whether the same settings scored this ensemble before."""
    settings = _score_key(config, ensemble)
    return all(is_current(path, settings) for path in (files.tuning, files.pool, files.energy))


def score_ensemble(
    config: RunConfig, ensemble: EnsembleSettings, data: EventSplits, files: EnsembleFiles, progress: ProgressCallback
) -> None:
    """Score the trained members on the tuning split and the pool, unless the same settings did so before.

    The pool is also written as two parts: its first `decide.n_calibration` rows for calibration, the others for the test.
    """
    if not scores_are_current(config, ensemble, files):
        members, settings = load_ensemble(ensemble, files), _score_key(config, ensemble)
        for split, (path, part) in enumerate(((files.tuning, data.tuning), (files.pool, data.pool))):
            progress(f"scoring {part.name}", split / 2)
            _score_part(members, config.decide.engine, split, part, files, path)
            mark(path, settings)
        mark(files.energy, settings)
    pool = load_spikes(files.pool)  # it is in random order already
    for path, rows in ((files.calibration, slice(0, config.decide.n_calibration)), (files.test, slice(config.decide.n_calibration, None))):
        save_spikes(path, pool.rows(rows))


def _score_key(config: RunConfig, ensemble: EnsembleSettings) -> list[object]:
    return ["scores", *training_key(config, ensemble), config.decide.engine]


def engine_for(network: Runnable, name: str, part: EventData) -> Engine:
    """The engine of that name, or for "auto" the one that suits these inputs."""
    return choose_engine(network, name, part.density)


def _score_part(members: Ensemble, engine: str, split: int, part: EventData, files: EnsembleFiles, path: Path) -> None:
    """Write the scores of one part, and for the pool its operations too."""
    network = members.network
    if isinstance(network, Posterior):  # every split has draws of its own
        chosen: Engine = FreshMembers(network, (members.seed, split), members.device)
    else:
        chosen = engine_for(network, engine, part)
    counted = run_counted(chosen, part.inputs, steps=part.held) if path == files.pool else None
    spikes = run_to_end(chosen, part.inputs, steps=part.held) if counted is None else counted.spikes
    unmark(path)
    save_spikes(path, spikes, part.labels, part.classes, chosen.name, members.digest, input_ids(part.inputs))
    if counted is not None:
        unmark(files.energy)
        with atomic_writer(files.energy) as stream:
            np.savez_compressed(stream, **asdict(counted.operations))


def save_test_inputs(path: Path, data: EventSplits, n_calibration: int) -> None:
    """Write the inputs behind `test.npz`, for `agreestop decide --members`."""
    save_events(path, data.pool.rows(slice(n_calibration, None)))


def load_operations(files: EnsembleFiles) -> Operations:
    """The operations on the pool."""
    with np.load(files.energy, allow_pickle=False) as content:
        return Operations(content["emitted"], content["accumulates"], content["multiplies"])
