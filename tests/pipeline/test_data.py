"""The data of a run: own files of any shape, the data sets of other shapes, and what products
depend on.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch", reason="ensembles need PyTorch")

import agreestop as ag
from agreestop.common import no_progress
from agreestop.events import EventData, Events, EventSplits
from agreestop.pipeline import (
    DataSettings,
    DecideSettings,
    EnsembleSettings,
    NetworkSettings,
    RunConfig,
    run,
)
from agreestop.pipeline import data as pipeline_data
from agreestop.pipeline.data import data_key, load_data
from agreestop.report import Report
from tests.decide.strategies import measure_quickly

CLASSES = ("left", "right", "up")


def sensor(
    n: int, seed: int, channels: int = 6, steps: int = 10
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Spikes (n, T, channels) of a one-dimensional sensor whose active channels depend on the
    class.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=n)
    rates = np.full((n, channels), 0.1)
    rates[np.arange(n), 2 * labels] = 0.8
    return rng.random((n, steps, channels)) < rates[:, None], labels


def config(data: DataSettings, **network: Any) -> RunConfig:
    settings = NetworkSettings(**{"hidden": (8,), **network})
    decide = DecideSettings(
        max_set_size=1, n_calibration=20, realisations=2, checkpoints=(5, 10), targets=()
    )
    return RunConfig(
        "own", data, settings, (EnsembleSettings("deep", members=2, epochs=2),), decide
    )


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_quickly(monkeypatch, learned=False)


def page_of(report: Report, folder: Path) -> str:
    pytest.importorskip("jinja2", reason="the report needs jinja2")
    from agreestop.report.page import write_report_folder

    return write_report_folder(report, folder)[-1].read_text(encoding="utf-8")


def test_too_few_inputs_for_tuning_are_refused_before_training(tmp_path: Path) -> None:
    ag.events.Events.from_dense(*sensor(200, 0)).save(tmp_path / "sensor.npz")
    settings = config(DataSettings("files", file=str(tmp_path / "sensor.npz")))
    with pytest.raises(ag.InputError, match="30 inputs for tuning, and twice as many"):
        run.run_config(settings, tmp_path / "run", "", no_progress)
    assert not (tmp_path / "run").exists()


def test_own_files_of_a_one_dimensional_sensor_run_from_training_to_report(
    tmp_path: Path, quick: None
) -> None:
    """Sparse and dense files, with the names of the classes in one of them only."""
    paths: dict[str, Any] = {}
    for number, (part, n) in enumerate((("training", 60), ("tuning", 50), ("pool", 60))):
        x, y = sensor(n, number)
        paths[part] = str(tmp_path / f"{part}.npz")
        if part == "pool":
            np.savez(paths[part], inputs=x, labels=y)
        else:
            Events.from_dense(x, y, CLASSES).save(paths[part])
    finished = run.run_config(
        config(DataSettings("files", **paths)),
        tmp_path / "run",
        "agreestop run own.toml",
        no_progress,
    )
    report, (page_path,) = (
        finished.report,
        [path for path in finished.written if path.name == "report.html"],
    )
    page = page_path.read_text(encoding="utf-8")
    (section,) = report.sections
    assert section.classes == CLASSES and len(section.records) == 21
    assert section.examples is not None
    assert section.examples.shown[0].whole.shape == (1, 6, 10)
    assert dict(report.settings)["inputs"] == "10 steps, 6 values in each step, 3 classes"
    content = json.loads((tmp_path / "run" / "metrics.json").read_text())
    for record in content[
        "records"
    ]:  # the rules with all members have the interval for the draw of the pool
        for name in ("coverage", "latency"):
            low, high = record[f"{name}_pool"] or (record[name], record[name])
            assert low <= record[name] <= high and (record[f"{name}_pool"] is None) == (
                record["K"] == 1
            )
    assert content["simulated"] is False and all(
        0 < record["energy"] <= 1 for record in content["records"] if record["energy"]
    )
    assert "each row is a channel, each column a step" in page and "ON events" not in page


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


@pytest.mark.parametrize("architecture", ["convolutional", "resnet18"])
def test_images_that_are_held_run_like_other_data(
    architecture: str, tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)

    def part(name: str, n: int) -> EventData:
        labels = rng.integers(3, size=n)
        images = rng.integers(0, 60, (n, 1, 3, 8, 8)).astype(np.uint8)
        images[np.arange(n), 0, labels] += 150
        return EventData(f"cifar10, {name}", False, images, labels, CLASSES, "photographs", held=12)

    small = EventSplits(part("training", 40), part("tuning", 50), part("pool", 50))
    monkeypatch.setattr(pipeline_data, "load", lambda name, folder, seed, progress=None: small)
    settings = config(
        DataSettings("cifar10", folder=str(tmp_path)),
        architecture=architecture,
        channels=(4,),
        width=2,
    )
    report = run.run_config(
        settings, tmp_path / "run", "agreestop run cifar10.toml", no_progress, pages=False
    ).report
    page = page_of(report, tmp_path / "run")
    (section,) = report.sections
    assert section.examples is not None and section.examples.shown[0].whole.shape == (3, 8, 8)
    scores: Any = ag.load_scores(tmp_path / "run" / "deep" / "pool.npz")
    assert scores.log_confidence.shape == (50, 12, 2, 3)
    assert "more ON events" not in page
