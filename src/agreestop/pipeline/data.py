"""The data of a run: loaded by name or from the user's own files, and checked against the settings before anything is trained."""

from __future__ import annotations

from typing import Any

import numpy as np

from agreestop.common.errors import InputError
from agreestop.events.data import EventSplits
from agreestop.events.datasets.catalogue import load

from .config import WITH_VIEWS, RunConfig


def load_data(config: RunConfig) -> EventSplits:
    """The three parts of the data, with enough steps and inputs for the decisions, and no class that training never shows."""
    chosen, decide = config.data, config.decide
    views: dict[str, Any] = {"views": chosen.views} if chosen.name in WITH_VIEWS else {}
    data = load(chosen.name, chosen.folder, chosen.seed, **views)
    if decide.checkpoints[-1] > data.pool.steps:
        raise InputError(f"decide.checkpoints ends at {decide.checkpoints[-1]}, but the data have {data.pool.steps} steps: end earlier.")
    if decide.n_calibration >= len(data.pool):
        raise InputError(f"decide.n_calibration is {decide.n_calibration}, but the pool has {len(data.pool)} inputs: give fewer.")
    check_classes(data)
    return data


def check_classes(data: EventSplits) -> None:
    """Refuse a label that no training input has: the members could not learn it, and every such input would be missed."""
    for part in (data.tuning, data.pool):
        unseen = np.setdiff1d(part.labels, data.training.labels)
        if len(unseen):
            names = ", ".join(part.classes[label] for label in unseen)
            raise InputError(f"{part.name} holds the classes {names}, which training never shows: train on them, or leave them out.")
