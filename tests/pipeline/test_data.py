"""The data of a run: own files of any shape, the data sets of other shapes, and what products depend on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch", reason="ensembles need PyTorch")

import agreestop as ag
from agreestop.common.progress import no_progress
from agreestop.events.container import Events
from agreestop.pipeline import run
from agreestop.pipeline.config import DataSettings, DecideSettings, EnsembleSettings, NetworkSettings, RunConfig
from agreestop.pipeline.data import data_key, load_data

CLASSES = ("left", "right", "up")


def sensor(n: int, seed: int, channels: int = 6, steps: int = 10) -> tuple[NDArray[Any], NDArray[Any]]:
    """Spikes (n, T, channels) of a one-dimensional sensor whose active channels depend on the class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=n)
    rates = np.full((n, channels), 0.1)
    rates[np.arange(n), 2 * labels] = 0.8
    return rng.random((n, steps, channels)) < rates[:, None], labels


def config(data: DataSettings, **network: Any) -> RunConfig:
    settings = NetworkSettings(**{"hidden": (8,), **network})
    decide = DecideSettings(max_set_size=1, n_calibration=20, realisations=2, checkpoints=(5, 10))
    return RunConfig("own", data, settings, (EnsembleSettings("deep", members=2, epochs=2),), decide)


def test_one_file_is_divided_by_shares(tmp_path: Path) -> None:
    x, y = sensor(200, 0)
    Events.from_dense(x, y, CLASSES).save(tmp_path / "all.npz")
    settings = DataSettings("files", file=str(tmp_path / "all.npz"), shares=(0.5, 0.2, 0.3))
    data = load_data(config(settings))
    assert [len(part) for part in data] == [100, 40, 60]
    again = load_data(config(settings))
    np.testing.assert_array_equal(data.pool.labels, again.pool.labels)
    other = load_data(config(replace(settings, seed=1)))
    assert not np.array_equal(data.pool.labels, other.pool.labels)


def test_files_must_have_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", inputs=sensor(200, 0)[0])
    with pytest.raises(ag.InputError, match="has no labels"):
        load_data(config(DataSettings("files", file=str(tmp_path / "all.npz"))))


def test_products_depend_on_the_contents_of_own_files(tmp_path: Path) -> None:
    path = tmp_path / "all.npz"
    settings = DataSettings("files", file=str(path))
    keys = []
    for seed in (0, 1, 0):
        x, y = sensor(30, seed)
        np.savez(path, inputs=x, labels=y)
        keys.append(data_key(settings))
    assert keys[0] == keys[2] != keys[1]


def test_keys_of_runs_made_before_own_files_stay_the_same() -> None:
    """Members and scores that version 0.1 made are used again."""
    assert data_key(DataSettings()) == {"name": "digits", "seed": 0, "views": 3, "folder": None}


def test_braille_letters_run_like_other_data(tmp_path: Path) -> None:
    x, y = sensor(120, 0, channels=12, steps=256)
    np.savez(tmp_path / "braille7.npz", x=x, y=y)
    settings = config(DataSettings("braille", folder=str(tmp_path)))
    (files,) = run.score_ensembles(settings, tmp_path / "run", no_progress)
    scores: Any = ag.load_scores(files.pool)
    assert scores.log_confidence.shape == (30, 128, 2, 7)
