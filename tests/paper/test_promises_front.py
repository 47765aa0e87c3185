"""`python -m paper promises`: the front holds what its rules reach on the pool, and its file and
figure hold all of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="the figure needs matplotlib")

import agreestop as ag
from paper import fronts
from paper.fronts import ALL, ONE, FrontSetting
from paper.promise_drawing import draw_fronts
from paper.promises import save
from tests.decide.strategies import simulate_spikes, tune_quickly

TIMES = tuple(range(1, 9))


@pytest.fixture
def scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "gesture-sim" / "deep"
    folder.mkdir(parents=True)
    spikes, labels = simulate_spikes(240, steps=8, K=3, C=4, seed=1, pace=3.0)
    ag.save_spikes(folder / "tuning.npz", spikes[:80], labels[:80])
    ag.save_spikes(folder / "pool.npz", spikes[80:], labels[80:])
    for name, value in {
        "REALISATIONS": 3,
        "POOL_REPEATS": 2,
        "TUNING_REPEATS": 2,
        "TARGET": 0.8,
        "PRICES": (0.0, 1.0, 50.0, 50.0),
    }.items():
        monkeypatch.setattr(fronts, name, value)
    tune_quickly(monkeypatch, steps=5)
    return tmp_path


def test_the_front_is_measured_on_the_pool(scores: Path, tmp_path: Path) -> None:
    records = fronts.measure_front(scores, FrontSetting("gesture-sim", "deep", 1, 60))
    tuning, pool = (
        ag.load_scores(scores / "gesture-sim" / "deep" / f"{name}.npz")
        for name in ("tuning", "pool")
    )
    points = ag.front(
        ag.AgreeStop(0.8, TIMES, 1),
        tuning,
        n_calibration=40,
        prices=(0.0, 1.0, 50.0),
        repeats=2,
        seed=fronts.TUNING_SEED,
    )
    found = {(point.work, point.latency): point for point in points}
    for record in records:
        point = found[record.tuning_work, record.tuning_latency]
        splits = ag.repeat_splits(point.rule, pool, n_calibration=60, repeats=3)
        assert splits.work is not None and record.work == pytest.approx(float(splits.work))
        assert record.latency == pytest.approx(float(splits.normalized_latency))
        assert (record.coverage, record.set_size) == pytest.approx(
            (float(splits.coverage), float(splits.set_size))
        )
        assert (
            record.work_interval is not None
            and record.work_interval[0] <= record.work <= record.work_interval[1]
        )
    named = {record.name: record for record in records}
    assert records[0].name == ALL and records[-1].name == ONE
    assert named[ONE].joins == ((1, 1),) and named[ALL].joins == ((1, 3),)
    assert (
        named[ONE].work_share == pytest.approx(named[ONE].work / named[ALL].work)
        and named[ALL].ratio == 1.0
    )
    assert sorted({price for record in records for price in record.prices}) == [0.0, 1.0, 50.0]
    figures = [(record.tuning_work, record.tuning_latency) for record in records if record.prices]
    assert len(figures) == len(set(figures))  # prices that choose one schedule share a record

    save(tmp_path / "front.json", records, {"command": "x", "protocol": {}})
    again = fronts.load_fronts(tmp_path / "front.json")
    assert [one.work for one in again] == pytest.approx([one.work for one in records], abs=1e-6)
    assert [path.name for path in draw_fronts(again, tmp_path)] == ["front.png", "front.svg"]
    words = (tmp_path / "front.svg").read_text(encoding="utf-8")
    assert all(name in words for name in (ALL, ONE, "gesture-sim"))


def test_the_settings_are_all_large_data_and_the_small_ones_once() -> None:
    wanted = fronts.settings()
    assert len(wanted) == len(set(wanted)) == 11
    assert {one.n for one in wanted if one.data in ("cifar10", "mnist-dvs-sim")} == {200}


def test_joins_are_the_first_looks_of_each_number_of_members() -> None:
    assert fronts._joins(ag.Schedule([(1, 1), (2, 1), (2, 2), (3, 2), (3, 4)])) == (
        (1, 1),
        (2, 2),
        (3, 4),
    )
