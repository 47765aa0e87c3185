"""The files of one ensemble in a run. Each product is made once and used again until the settings that it depends on change.

    members.safetensors          the trained ensemble: its K members, and the posterior that they were drawn from
    training.safetensors         the state of training after its last whole epoch
    tuning.npz, pool.npz         read-out spikes at every step, as packed bits
    calibration.npz, test.npz    the pool, divided
    energy.npz                   operations (n, T, K) on the pool, for the estimate of energy

Beside each product lies `<product>.key`, a hash of the settings that the product was made with.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import final

from agreestop.common import atomic_writer

from .config import RunConfig


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


def ensemble_files(config: RunConfig, folder: Path) -> list[EnsembleFiles]:
    """The files of each ensemble, in a folder named after its kind, with a number where there are several of one kind."""
    kinds = [ensemble.kind for ensemble in config.ensembles]
    names = [kind if kinds.count(kind) == 1 else f"{kind}-{kinds[: index + 1].count(kind)}" for index, kind in enumerate(kinds)]
    return [EnsembleFiles(folder / name) for name in names]


def is_current(path: Path, settings: Sequence[object]) -> bool:
    """Whether the product exists and was made with these settings."""
    key = _key_file(path)
    return path.is_file() and key.is_file() and key.read_text() == _key(settings)


def mark(path: Path, settings: Sequence[object]) -> None:
    """Record the settings of a product that is complete."""
    with atomic_writer(_key_file(path)) as stream:
        stream.write(_key(settings).encode())


def unmark(path: Path) -> None:
    """Forget the settings of a product before it is replaced, so that a run killed meanwhile leaves no product under a wrong key."""
    _key_file(path).unlink(missing_ok=True)


def _key_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.key")


def _key(settings: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
