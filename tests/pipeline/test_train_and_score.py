"""Training and scoring in a run: products are made, used again while their settings stay the same,
and made again when they change.
"""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="ensembles need PyTorch")

import agreestop as ag
from agreestop.common import ProgressCallback, no_progress
from agreestop.decide.scores import load_spikes
from agreestop.engines import FreshMembers, run_to_end
from agreestop.engines.protocol import running_energy
from agreestop.ensembles import Ensemble
from agreestop.events import EventData, EventSplits
from agreestop.networks import Neuron
from agreestop.networks.architectures import QUICK
from agreestop.pipeline import (
    DecideSettings,
    EnsembleSettings,
    NetworkSettings,
    RunConfig,
    products,
)
from agreestop.pipeline.data import check_classes
from agreestop.pipeline.products import (
    EnsembleFiles,
    build_network,
    load_operations,
    scores_are_current,
    train_ensemble,
)


def few(name: str, n: int, seed: int) -> EventData:
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=n)
    rates = np.full((n, 4, 4), 0.05)
    rates[np.arange(n), labels] = 0.6
    events = rng.random((n, 12, 2, 4, 4)) < rates[:, None, None]
    return EventData(name, True, events, labels, ("a", "b", "c"))


DATA = EventSplits(few("training", 60, 0), few("tuning", 20, 1), few("pool", 30, 2))


def score_ensemble(
    config: RunConfig,
    ensemble: EnsembleSettings,
    files: EnsembleFiles,
    progress: ProgressCallback = no_progress,
    data: EventSplits = DATA,
) -> None:
    """Train and score, as a run does."""
    if not scores_are_current(config, ensemble, files):
        train_ensemble(config, ensemble, data, files, progress)
    products.score_ensemble(config, ensemble, data, files, progress)


@pytest.mark.parametrize("kind", ["deep", "variational"])
def test_products_are_made_once_and_again_when_settings_change(kind: str, tmp_path: Path) -> None:
    ensemble = EnsembleSettings(kind, members=2, epochs=2, batch_size=20)
    config = RunConfig(
        network=NetworkSettings(hidden=(8,)),
        ensembles=(ensemble,),
        decide=DecideSettings(n_calibration=10),
    )
    files = EnsembleFiles(tmp_path / kind)
    reported: list[str] = []

    def progress(what: str, share: float) -> None:
        reported.append(what)

    score_ensemble(config, ensemble, files, progress)
    assert sum("epoch" in what for what in reported) == 2
    first = [path.read_bytes() for path in (files.members, files.pool)]
    reported.clear()
    score_ensemble(config, ensemble, files, progress)
    assert reported == []
    files.pool.unlink()
    score_ensemble(config, ensemble, files, progress)
    assert not any("epoch" in what for what in reported)
    assert [path.read_bytes() for path in (files.members,)] == first[:1]
    other = replace(ensemble, epochs=3)
    reported.clear()
    score_ensemble(replace(config, ensembles=(other,)), other, files, progress)
    assert sum("epoch" in what for what in reported) == 3


def test_scores_are_spikes_at_every_step_and_carry_their_energy(tmp_path: Path) -> None:
    ensemble = EnsembleSettings("deep", members=2, epochs=1)
    files = EnsembleFiles(tmp_path)
    config = RunConfig(
        network=NetworkSettings(hidden=(8,)), decide=DecideSettings(n_calibration=10)
    )
    score_ensemble(config, ensemble, files)
    assert (len(ag.load_scores(files.calibration)), len(ag.load_scores(files.test))) == (10, 20)
    scores: Any = ag.load_scores(files.pool)
    assert scores.log_confidence.shape == (30, 12, 2, 3)
    assert scores.classes == ("a", "b", "c")
    np.testing.assert_array_equal(scores.labels, DATA.pool.labels)
    spent = running_energy(load_operations(files))
    assert spent.shape == (30, 12, 2)
    assert (np.diff(spent, axis=1) >= 0).all() and (spent[:, -1] > spent[:, 0]).all()


def test_a_product_whose_run_was_killed_before_its_key_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings A, then B killed as its members were just written, then A again: A's members, not
    B's.
    """
    first = EnsembleSettings("deep", members=1, epochs=1)
    second = replace(first, seed=1)
    config = RunConfig(
        network=NetworkSettings(hidden=(8,)), decide=DecideSettings(n_calibration=10)
    )
    files = EnsembleFiles(tmp_path)
    made = train_ensemble(config, first, DATA, files, no_progress)

    save = Ensemble.save

    def killed(ensemble: Ensemble, path: Path) -> None:
        save(ensemble, path)
        raise KeyboardInterrupt

    monkeypatch.setattr(Ensemble, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        train_ensemble(config, second, DATA, files, no_progress)
    monkeypatch.undo()
    again = train_ensemble(config, first, DATA, files, no_progress)
    assert again.digest == made.digest


def test_fresh_members_are_drawn_for_every_input_and_follow_from_its_row(tmp_path: Path) -> None:
    """The same input in two rows gets different members; the members of a row do not depend on the
    number of rows.
    """
    ensemble = EnsembleSettings(
        "variational", members=2, epochs=1, fresh=True, prior_variance=1.0, initial_deviation=3.0
    )
    config = RunConfig(
        network=NetworkSettings(hidden=(8,)),
        ensembles=(ensemble,),
        decide=DecideSettings(n_calibration=10),
    )
    files = EnsembleFiles(tmp_path)
    score_ensemble(config, ensemble, files)
    posterior: Any = ag.ensembles.load(files.members).network
    same = np.repeat(DATA.pool.inputs[:1], 6, axis=0)
    spikes = run_to_end(FreshMembers(posterior, (0, 1)), same)
    assert len(np.unique(spikes.reshape(6, -1), axis=0)) > 1
    np.testing.assert_array_equal(run_to_end(FreshMembers(posterior, (0, 1)), same[:2]), spikes[:2])
    kept = load_spikes(files.pool).spikes
    np.testing.assert_array_equal(
        run_to_end(FreshMembers(posterior, (ensemble.seed, 1)), DATA.pool.inputs), kept
    )


@pytest.mark.parametrize(
    "settings",
    [
        NetworkSettings("convolutional", (8,), (4,)),
        NetworkSettings("resnet18", width=2, learned=False),
    ],
)
def test_every_architecture_runs_from_a_configuration(
    settings: NetworkSettings, tmp_path: Path
) -> None:
    ensemble = EnsembleSettings("deep", members=2, epochs=1)
    config = RunConfig(
        network=settings, ensembles=(ensemble,), decide=DecideSettings(n_calibration=10)
    )
    score_ensemble(config, ensemble, EnsembleFiles(tmp_path))
    members: Any = ag.ensembles.load(EnsembleFiles(tmp_path).members).network
    assert members.config == build_network(settings, DATA.training, 2)
    assert not members.config.real_input


def test_times_left_out_are_the_architectures_own() -> None:
    assert build_network(
        NetworkSettings(learned=False, threshold=0.5), DATA.training, 1
    ).neuron == Neuron(threshold=0.5)
    deep = build_network(NetworkSettings("resnet18", learned=True), DATA.training, 1)
    assert deep.neuron == replace(QUICK, learned=True)


def test_a_class_that_training_never_shows_is_named() -> None:
    training = replace(DATA.training, labels=np.minimum(DATA.training.labels, 1))
    with pytest.raises(ag.InputError, match="tuning holds the classes c"):
        check_classes(replace(DATA, training=training))


def test_a_full_disk_gives_a_sentence_and_training_continues_from_the_last_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensemble = EnsembleSettings("deep", members=1, epochs=3)
    config = RunConfig(network=NetworkSettings(hidden=(8,)))
    undisturbed = train_ensemble(
        config, ensemble, DATA, EnsembleFiles(tmp_path / "whole"), no_progress
    )
    sync, calls = os.fsync, []

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    files = EnsembleFiles(tmp_path / "full")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ag.InputError, match="No space left on device; free some space"):
        train_ensemble(config, ensemble, DATA, files, no_progress)
    assert not list(files.folder.glob("*.part"))
    monkeypatch.undo()
    reported: list[str] = []
    after = train_ensemble(config, ensemble, DATA, files, lambda what, share: reported.append(what))
    assert sum("epoch" in what for what in reported) == 2  # the first epoch was kept
    assert after.digest == undisturbed.digest
