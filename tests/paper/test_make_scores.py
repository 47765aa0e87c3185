"""Score files from tiny data: they are made once, say how they were made, and the figures are drawn
from them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="ensembles need PyTorch")

import agreestop as ag
from agreestop.common import InputError, no_progress
from agreestop.ensembles import load as load_ensemble
from agreestop.events import EventData, EventSplits
from agreestop.networks import ResNet18, SpikingNetwork
from agreestop.networks.layers import SpikingLayer
from paper import make_scores as module
from paper.figures import FIGURES, RULES, Figure
from paper.make_scores import data_sets_of, make_scores
from paper.outcomes import MeasureSettings
from paper.recipe import fingerprint, load_recipes
from paper.reproduce import run_figure

ROOT = Path(__file__).parents[2]
FIGURE = Figure(
    "fig7", "real events", ("braille",), "", rules=tuple(rule for rule in RULES if not rule.tuned)
)
ENSEMBLES = """
[[SCALE.ensembles]]
kind = "deep"
members = 2
epochs = 1
batch_size = 40

[[SCALE.ensembles]]
kind = "variational"
members = 2
epochs = 1
batch_size = 40
"""
BRAILLE = """
folders = ["braille"]

[small]
network.hidden = [8]
data.sizes = [60, 40, 120]
seenn2.betas = [1.0]
seenn2.epochs = 1
[full]
network.hidden = [8]
"""
IMAGES = """
folders = ["cifar10"]

[small]
network.architecture = "resnet18"
[full]
network.architecture = "resnet18"
network.width = 2
network.learned = false
rows = [30, 10, 12]
images.deep = { rate_epochs = 1, epochs = 1, batch_size = 20, horizons = [2] }
images.variational = { rate_epochs = 1, epochs = 1, batch_size = 20, horizons = [2] }
batchnorm.batches = 2
batchnorm.batch_size = 10
"""


def write_recipe(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.toml").write_text(
        text + "".join(ENSEMBLES.replace("SCALE", scale) for scale in ("small", "full"))
    )


@pytest.fixture
def trains(tmp_path: Path) -> Path:
    """A folder with a file of spike trains in the format of the Braille letters."""
    rng = np.random.default_rng(0)
    labels = np.arange(220) % 4
    rates = np.where(np.arange(12) % 4 == labels[:, None], 0.3, 0.02)[:, None]
    folder = tmp_path / "data"
    folder.mkdir()
    np.savez(folder / "braille7.npz", x=rng.random((220, 128, 12)) < rates, y=labels)
    return folder


def test_scores_are_made_once_and_a_figure_comes_from_them(
    trains: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes = tmp_path / "recipes"
    write_recipe(recipes, "braille", BRAILLE)
    monkeypatch.setattr(module, "_shows_seenn2", lambda name: True)
    words: list[str] = []
    shares: list[float] = []
    scores = tmp_path / "scores"

    def make() -> list[Path]:
        words.clear()
        shares.clear()

        def progress(what: str, share: float) -> None:
            words.append(what)
            shares.append(share)

        return make_scores(
            "braille", "small", "cpu", trains, progress, scores, "by hand", recipes=recipes
        )

    written = make()
    assert [path.relative_to(scores).as_posix() for path in written] == [
        f"braille/{kind}/{part}.npz"
        for kind in ("deep", "variational")
        for part in ("tuning", "pool")
    ]
    assert sum("epoch" in what for what in words) == 2
    assert (
        words[0] == "1 of 7, braille: loading the data"
        and shares == sorted(shares)
        and shares[-1] > 0.8
    )
    about = json.loads((scores / "braille" / "deep" / "about.json").read_text())
    assert (about["command"], about["scale"], about["device"], about["K"], about["n_pool"]) == (
        "by hand",
        "small",
        "cpu",
        2,
        120,
    )
    assert (
        about["simulated"] is False
        and "Braille" in about["description"]
        and len(about["member_accuracies"]) == 2
    )
    assert (
        about["configuration"]["network"]["hidden"] == [8]
        and about["configuration"]["ensemble"]["kind"] == "deep"
    )
    pool = ag.load_scores(written[1], (32, 128))
    assert pool.log_confidence.shape == (120, 2, 2, 7) and pool.engine == about["engine"]
    seenn2 = json.loads((scores / "braille" / "deep" / "seenn2.json").read_text())
    assert {(one["K"], one["target"], one["n"]) for one in seenn2} >= {
        (1, 0.9, 50),
        (2, 0.9, 50),
        (2, 0.6, 50),
    }
    make()
    assert words == []
    written[0].unlink()
    make()
    assert words and not any("epoch" in what for what in words)  # the members are still there
    (scores / "braille" / "deep" / "seenn2.json").unlink()
    before = written[0].stat().st_mtime_ns
    make()
    assert any("SEENN-II" in what for what in words) and not any(
        "scoring" in what for what in words
    )
    assert (
        written[0].stat().st_mtime_ns == before
        and (scores / "braille" / "deep" / "seenn2.json").is_file()
    )
    numbers = run_figure(FIGURE, scores, tmp_path, "", no_progress, settings=MeasureSettings(2))
    assert {record.K for record in numbers.records} == {1, 2} and numbers.header["sources"][0][
        "device"
    ] == "cpu"
    write_recipe(recipes, "braille", BRAILLE.replace("[8]", "[9]"))
    make()
    assert sum("epoch" in what for what in words) == 2


@pytest.mark.parametrize("kind", ["deep", "variational"])
def test_images_are_held_and_their_batchnorm_is_estimated_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)

    def part(name: str, n: int) -> EventData:
        images = rng.integers(0, 256, (n, 1, 3, 8, 8), np.uint8)
        return EventData(
            f"cifar10, {name}",
            False,
            images,
            rng.integers(10, size=n),
            tuple("0123456789"),
            "noise",
            held=8,
        )

    data = EventSplits(part("training", 40), part("tuning", 10), part("pool", 12))
    recipes = tmp_path / "recipes"
    write_recipe(recipes, "cifar10", IMAGES)
    monkeypatch.setattr(module, "load", lambda name, folder: data)
    words: list[str] = []
    written = make_scores(
        "cifar10",
        "full",
        "cpu",
        tmp_path,
        lambda what, share: words.append(what),
        tmp_path,
        ensembles=(kind,),
        recipes=recipes,
    )
    assert ag.load_scores(written[1]).log_confidence.shape == (12, 8, 2, 10)
    networks = {
        what.partition(": network ")[2].partition(",")[0] for what in words if "network" in what
    }
    assert networks == ({"1 of 2", "2 of 2"} if kind == "deep" else {"1 of 1"})
    members = next((tmp_path / ".work").glob(f"*/{kind}/members.safetensors"))
    network = load_ensemble(members, device="cpu").network
    assert isinstance(network, SpikingNetwork)
    assert isinstance(network.config, ResNet18) and network.config.timed == 8
    stem = network.layers[0]
    assert (
        isinstance(stem, SpikingLayer)
        and stem.norm is not None
        and bool((stem.norm.running_var[:, 0] != 1).all())
    )
    about = json.loads((tmp_path / "cifar10" / kind / "about.json").read_text())
    assert about["configuration"]["images"]["epochs"] == 1 and about["n_training"] == 30


def test_every_figure_has_its_recipes() -> None:
    assert data_sets_of("fig8") == ("mnist-dvs-sim", "cifar10") and data_sets_of("gesture-sim") == (
        "gesture-sim",
    )
    assert all(set(figure.data) <= set(data_sets_of("all")) for figure in FIGURES)
    for name in data_sets_of("all"):
        recipes = load_recipes(name)
        assert recipes.at("small") != recipes.at("full") == recipes.full
        assert bool(recipes.folders) == (name != "gesture-sim")


def test_the_stored_score_files_are_those_of_the_recipes() -> None:
    """Their fingerprints must not change, or hours of training would be repeated."""
    stored = sorted((ROOT / "results" / "scores").glob("*/*/about.json"))
    assert len(stored) == 2 * len(data_sets_of("all"))
    for path in stored:
        about, name = json.loads(path.read_text()), path.parts[-3]
        assert about["fingerprint"] == fingerprint(name, load_recipes(name).at(about["scale"])), (
            path
        )


def test_a_changed_recipe_has_another_fingerprint() -> None:
    recipe = load_recipes("cifar10").full
    changed = [
        replace(recipe, network=replace(recipe.network, width=3)),
        replace(recipe, ensembles=(replace(recipe.ensembles[0], seed=1), recipe.ensembles[1])),
        replace(recipe, data=replace(recipe.data, views=2)),
        replace(recipe, rows=(1, 2, 3)),
        replace(recipe, images=None),
        replace(recipe, batchnorm=replace(recipe.batchnorm, timed_steps=3)),
        replace(recipe, seenn2=replace(recipe.seenn2, epochs=1)),
    ]
    assert (
        len(
            {fingerprint("cifar10", one) for one in (recipe, *changed)}
            | {fingerprint("other", recipe)}
        )
        == 9
    )


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "network.hidden",
            "network.hiden",
            "the key small.network.hiden is not known: did you mean hidden",
        ),
        (
            "data.sizes = [60, 40, 120]",
            "data.sizes = 60",
            "small.data.sizes is 60: a list of whole numbers is needed",
        ),
        ("data.sizes = [60, 40, 120]", "rows = [1, 2]", "rows has 2 numbers: three are needed"),
        ('folders = ["braille"]', "folders = [1]", r"folders is \[1\]: a list of texts is needed"),
        ("[small]", "[tiny]", "the key tiny is not known"),
    ],
)
def test_a_wrong_recipe_is_refused(old: str, new: str, sentence: str, tmp_path: Path) -> None:
    write_recipe(tmp_path, "braille", BRAILLE.replace(old, new, 1))
    with pytest.raises(InputError, match=rf"braille\.toml: {sentence}"):
        load_recipes("braille", tmp_path)


def test_an_ensemble_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "braille.toml").write_text(
        '[small]\nnetwork.hidden = [8]\n[[small.ensembles]]\nkind = "deep"\n'
    )
    with pytest.raises(InputError, match="ensembles are deep"):
        load_recipes("braille", tmp_path)
    with pytest.raises(InputError, match="there is no file"):
        load_recipes("n-mnist", tmp_path)


def test_missing_files_and_wrong_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cifar10 needs its files"):
        make_scores("fig6", "small", "cpu", None, no_progress, tmp_path)
    with pytest.raises(InputError, match="scale is 'tiny'"):
        make_scores("fig6", "tiny", "cpu", None, no_progress, tmp_path)
    with pytest.raises(InputError, match="there is no figure 'fig9'"):
        make_scores("fig9", "small", "cpu", None, no_progress, tmp_path)


def test_it_runs_where_nothing_is_installed_but_pytorch(tmp_path: Path) -> None:
    """A GPU machine may have no typer, rich, scikit-learn, matplotlib or numba."""
    code = (
        "import sys\n"
        "for name in ('typer', 'rich', 'sklearn', 'matplotlib', 'jinja2', 'numba'): "
        "sys.modules[name] = None\n"
        "from paper.make_scores import main\n"
        "sys.argv = ['make_scores', 'fig6', '--scale', 'small', '-o', 'nowhere']\n"
        "main()\n"
    )
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert ended.returncode == 1 and ended.stderr.startswith(
        "agreestop: cifar10 needs its files: give --data"
    ), ended.stderr
