"""Score files from tiny data: they are made once, say how they came about, and the figures are drawn from them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="ensembles need PyTorch")

import agreestop as ag
from agreestop.common.errors import InputError
from agreestop.ensembles.files import load_members
from agreestop.ensembles.images import ImageTraining
from agreestop.events.data import EventData, EventSplits
from agreestop.networks.architectures import ResNet18, SpikingLayer
from agreestop.pipeline.config import EnsembleSettings, NetworkSettings
from paper import make_scores as module
from paper.figures import FIGURES, RULES, Figure
from paper.make_scores import RECIPES, Policies, Recipe, data_sets_of, make_scores
from paper.outcomes import Effort
from paper.reproduce import run_figure

FAST: dict[str, Any] = {"members": 2, "epochs": 1, "batch_size": 40}
ENSEMBLES = (EnsembleSettings("deep", **FAST), EnsembleSettings("variational", **FAST))
FIGURE = Figure("fig7", "real events", ("braille",), "", contenders=tuple(one for one in RULES if not one.tuned))


def nothing(what: str, share: float) -> None:
    """Hears what is being done."""


@pytest.fixture
def trains(tmp_path: Path) -> Path:
    """A file of spike trains that looks like that of the Braille letters."""
    rng = np.random.default_rng(0)
    labels = np.arange(220) % 4
    rates = np.where(np.arange(12) % 4 == labels[:, None], 0.3, 0.02)[:, None]
    folder = tmp_path / "data"
    folder.mkdir()
    np.savez(folder / "braille7.npz", x=rng.random((220, 128, 12)) < rates, y=labels)
    return folder


def test_scores_are_made_once_and_a_figure_comes_from_them(trains: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(NetworkSettings(hidden=(8,)), ENSEMBLES, {"sizes": (60, 40, 120)}, policies=Policies((1.0,), 1))
    monkeypatch.setitem(RECIPES["small"], "braille", recipe)
    monkeypatch.setattr(module, "_shows_seenn2", lambda name: True)
    told: list[str] = []
    scores = tmp_path / "scores"

    def make() -> list[Path]:
        told.clear()
        return make_scores("braille", "small", "cpu", trains, lambda what, share: told.append(what), scores, "by hand")

    written = make()
    assert [path.relative_to(scores).as_posix() for path in written] == [
        f"braille/{kind}/{part}.npz" for kind in ("deep", "variational") for part in ("tuning", "pool")
    ]
    assert sum("epoch" in what for what in told) == 2
    about = json.loads((scores / "braille" / "deep" / "about.json").read_text())
    assert (about["command"], about["scale"], about["device"], about["K"], about["n_pool"]) == ("by hand", "small", "cpu", 2, 120)
    assert about["simulated"] is False and "Braille" in about["description"] and len(about["member_accuracies"]) == 2
    assert about["configuration"]["network"]["hidden"] == [8] and about["configuration"]["ensemble"]["kind"] == "deep"
    pool = ag.load_scores(written[1], (32, 128))
    assert pool.log_confidence.shape == (120, 2, 2, 7) and pool.engine == about["engine"]
    seenn2 = json.loads((scores / "braille" / "deep" / "seenn2.json").read_text())
    assert {(one["K"], one["target"], one["n"]) for one in seenn2} >= {(1, 0.9, 50), (2, 0.9, 50), (2, 0.6, 50)}
    make()
    assert told == []
    written[0].unlink()
    make()
    assert told and not any("epoch" in what for what in told)  # the members were kept
    (scores / "braille" / "deep" / "seenn2.json").unlink()
    kept = written[0].stat().st_mtime_ns
    make()
    assert any("SEENN-II" in what for what in told) and not any("reading" in what for what in told)
    assert written[0].stat().st_mtime_ns == kept and (scores / "braille" / "deep" / "seenn2.json").is_file()
    numbers = run_figure(FIGURE, scores, tmp_path, "", nothing, effort=Effort(2))
    assert {record.K for record in numbers.records} == {1, 2} and numbers.header["sources"][0]["device"] == "cpu"
    monkeypatch.setitem(RECIPES["small"], "braille", replace(recipe, network=NetworkSettings(hidden=(9,))))
    make()
    assert sum("epoch" in what for what in told) == 2


@pytest.mark.parametrize("kind", ["deep", "variational"])
def test_images_are_held_and_settled(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)

    def part(name: str, n: int) -> EventData:
        images = rng.integers(0, 256, (n, 1, 3, 8, 8), np.uint8)
        return EventData(f"cifar10, {name}", False, images, rng.integers(10, size=n), tuple("0123456789"), "noise", held=8)

    data = EventSplits(part("training", 40), part("tuning", 10), part("pool", 12))
    training = ImageTraining(rate_epochs=1, epochs=1, batch_size=20, horizons=(2,))
    recipe = Recipe(
        NetworkSettings("resnet18", width=2, learned=False), ENSEMBLES, rows=(30, 10, 12), images={kind: training}, settling=(2, 10)
    )
    monkeypatch.setitem(RECIPES["full"], "cifar10", recipe)
    monkeypatch.setattr(module, "load", lambda name, folder: data)
    told: list[str] = []
    written = make_scores("cifar10", "full", "cpu", tmp_path, lambda what, share: told.append(what), tmp_path, "", (kind,))
    assert ag.load_scores(written[1]).log_confidence.shape == (12, 8, 2, 10)
    networks = {what.split(",")[2].strip() for what in told if "network" in what}
    assert networks == ({"network 1", "network 2"} if kind == "deep" else {"network 1"})
    members = next((tmp_path / ".work").glob(f"*/{kind}/members.safetensors"))
    network = load_members(members)
    assert isinstance(network.config, ResNet18) and network.config.timed == 8
    stem = network.layers[0]
    assert isinstance(stem, SpikingLayer) and stem.norm is not None and bool((stem.norm.running_var[:, 0] != 1).all())
    about = json.loads((tmp_path / "cifar10" / kind / "about.json").read_text())
    assert about["configuration"]["images"]["epochs"] == 1 and about["n_training"] == 30


def test_every_figure_has_its_recipes() -> None:
    for scale, recipes in RECIPES.items():
        assert set(recipes) == set(data_sets_of("all")), scale
        for recipe in recipes.values():
            assert [ensemble.kind for ensemble in recipe.ensembles] == ["deep", "variational"]
    assert data_sets_of("fig8") == ("mnist-dvs-sim", "cifar10") and data_sets_of("gesture-sim") == ("gesture-sim",)
    assert all(set(figure.data) <= set(data_sets_of("all")) for figure in FIGURES)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cifar10 needs its files: give --data with a folder that holds"):
        make_scores("fig6", "small", "cpu", None, nothing, tmp_path)
    with pytest.raises(InputError, match="scale is 'tiny': choose one of small, full"):
        make_scores("fig6", "tiny", "cpu", None, nothing, tmp_path)
    with pytest.raises(InputError, match="there is no figure 'fig9'"):
        make_scores("fig9", "small", "cpu", None, nothing, tmp_path)


def test_it_runs_where_nothing_is_installed_but_pytorch(tmp_path: Path) -> None:
    """The GPU machine has neither typer nor rich, and no scikit-learn, matplotlib or numba either."""
    code = (
        "import sys\n"
        "for name in ('typer', 'rich', 'sklearn', 'matplotlib', 'jinja2', 'numba'): sys.modules[name] = None\n"
        "from paper.make_scores import main\n"
        "sys.argv = ['make_scores', 'fig6', '--scale', 'small', '-o', 'nowhere']\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ended.returncode == 1 and ended.stderr.startswith("agreestop: cifar10 needs its files: give --data"), ended.stderr
