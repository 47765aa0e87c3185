"""The steps of a run: products are made, used again while nothing changed, and made anew when something did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="ensembles need PyTorch")

import agreestop as ag  # noqa: E402
from agreestop.engines.energy import running_energy  # noqa: E402
from agreestop.ensembles.files import save_members  # noqa: E402
from agreestop.events.data import EventData  # noqa: E402
from agreestop.events.digits import DigitsSplits  # noqa: E402
from agreestop.experiments import steps  # noqa: E402
from agreestop.experiments.config import DecideSettings, EnsembleSettings, NetworkSettings, RunConfig  # noqa: E402
from agreestop.experiments.steps import EnsembleFiles, load_energy, score_ensemble, train_ensemble  # noqa: E402


def few(name: str, n: int, seed: int) -> EventData:
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=n)
    rates = np.full((n, 4, 4), 0.05)
    rates[np.arange(n), labels] = 0.6
    events = rng.random((n, 12, 2, 4, 4)) < rates[:, None, None]
    return EventData(name, True, events, labels, ("a", "b", "c"))


DATA = DigitsSplits(few("training", 60, 0), few("tuning", 20, 1), few("pool", 30, 2))


@pytest.mark.parametrize("kind", ["deep", "variational"])
def test_products_are_made_once_and_anew_when_settings_change(kind: str, tmp_path: Path) -> None:
    ensemble = EnsembleSettings(kind, members=2, epochs=2, batch_size=20)
    config = RunConfig(network=NetworkSettings(hidden=(8,)), ensembles=(ensemble,), decide=DecideSettings(n_calibration=10))
    files = EnsembleFiles(tmp_path / kind)
    told: list[str] = []

    def tell(what: str, share: float) -> None:
        told.append(what)

    score_ensemble(config, ensemble, DATA, files, tell)
    assert sum("epoch" in what for what in told) == 2
    first = [path.read_bytes() for path in (files.members, files.pool)]
    told.clear()
    score_ensemble(config, ensemble, DATA, files, tell)
    assert told == []
    files.pool.unlink()
    score_ensemble(config, ensemble, DATA, files, tell)
    assert not any("epoch" in what for what in told)
    assert [path.read_bytes() for path in (files.members,)] == first[:1]
    other = replace(ensemble, epochs=3)
    told.clear()
    score_ensemble(replace(config, ensembles=(other,)), other, DATA, files, tell)
    assert sum("epoch" in what for what in told) == 3


def test_scores_are_spikes_at_every_step_and_carry_their_energy(tmp_path: Path) -> None:
    ensemble = EnsembleSettings("deep", members=2, epochs=1)
    files = EnsembleFiles(tmp_path)
    config = RunConfig(network=NetworkSettings(hidden=(8,)), decide=DecideSettings(n_calibration=10))
    score_ensemble(config, ensemble, DATA, files, lambda what, share: None)
    assert (len(ag.load_scores(files.calibration)), len(ag.load_scores(files.test))) == (10, 20)
    scores: Any = ag.load_scores(files.pool)
    assert scores.log_confidence.shape == (30, 12, 2, 3)
    assert scores.classes == ("a", "b", "c")
    np.testing.assert_array_equal(scores.labels, DATA.pool.labels)
    spent = running_energy(load_energy(files))
    assert spent.shape == (30, 12, 2)
    assert (np.diff(spent, axis=1) >= 0).all() and (spent[:, -1] > spent[:, 0]).all()


def test_a_product_whose_run_was_killed_before_its_key_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings A, then B killed as its members were just written, then A again: A's members, not B's."""
    first = EnsembleSettings("deep", members=1, epochs=1)
    second = replace(first, seed=1)
    config = RunConfig(network=NetworkSettings(hidden=(8,)), decide=DecideSettings(n_calibration=10))
    files = EnsembleFiles(tmp_path)
    made = train_ensemble(config, first, DATA, files, lambda what, share: None)

    def killed(path: Path, network: Any) -> None:
        save_members(path, network)
        raise KeyboardInterrupt

    monkeypatch.setattr(steps, "save_members", killed)
    with pytest.raises(KeyboardInterrupt):
        train_ensemble(config, second, DATA, files, lambda what, share: None)
    monkeypatch.undo()
    again = train_ensemble(config, first, DATA, files, lambda what, share: None)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in made.state_dict().items())
