"""The data of a run: a data set by name or the user's own files, checked against the settings
before anything is trained.
"""

import hashlib
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from agreestop.common import InputError, ProgressCallback
from agreestop.events.data import EventSplits
from agreestop.events.datasets.catalogue import load
from agreestop.events.files import load_files

from .config import FILE_KEYS, OWN_FILES, WITH_VIEWS, DataSettings, RunConfig


def load_data(config: RunConfig, progress: ProgressCallback | None = None) -> EventSplits:
    """The three parts of the data, with enough steps and inputs for the decisions, and no class
    that training never shows.
    """
    chosen, decide = config.data, config.decide
    if chosen.name == OWN_FILES:
        data = load_files(**{name: getattr(chosen, name) for name in FILE_KEYS}, seed=chosen.seed)
    else:
        views: dict[str, Any] = {"views": chosen.views} if chosen.name in WITH_VIEWS else {}
        data = load(chosen.name, chosen.folder, chosen.seed, progress=progress, **views)
    if decide.checkpoints is not None and decide.checkpoints[-1] > data.pool.steps:
        raise InputError(
            f"decide.checkpoints ends at {decide.checkpoints[-1]}, but the data have "
            f"{data.pool.steps} steps: end earlier."
        )
    if decide.n_calibration >= len(data.pool):
        raise InputError(
            f"decide.n_calibration is {decide.n_calibration}, but the pool has {len(data.pool)} "
            "inputs: give fewer."
        )
    check_classes(data)
    return data


def check_classes(data: EventSplits) -> None:
    """Refuse a label that no training input has: the members could not learn it, and every such
    input would be missed.
    """
    for part in (data.tuning, data.pool):
        unseen = np.setdiff1d(part.labels, data.training.labels)
        if len(unseen):
            names = ", ".join(part.classes[label] for label in unseen)
            raise InputError(
                f"{part.name} holds the classes {names}, which training never shows: train on "
                "them, or leave them out."
            )


def data_key(settings: DataSettings) -> dict[str, object]:
    """What products depend on: the settings that are given, and the contents of own files."""
    values = {
        name: value
        for name, value in asdict(settings).items()
        if value is not None or name not in FILE_KEYS
    }
    paths = [Path(path) for name in FILE_KEYS if isinstance(path := getattr(settings, name), str)]
    digests = [file_digest(path) for path in paths if path.is_file()]
    return values | ({"digests": digests} if digests else {})


def file_digest(path: Path) -> str:
    """The SHA-256 of a file, which is computed again when its time or size has changed."""
    about = path.stat()
    return _digest(path, about.st_ino, about.st_mtime_ns, about.st_size)


@lru_cache
def _digest(path: Path, *about: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
