"""`python -m paper promises`: its records are those of the rules that they name, and files hold
them unchanged.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import agreestop as ag
from paper import promises
from paper.promises import ACCUMULATED, FIXED, GATE, MARGINAL, Part
from tests.decide.strategies import simulate_spikes

TIMES = tuple(range(1, 9))


@pytest.fixture
def scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "gesture-sim" / "deep"
    folder.mkdir(parents=True)
    spikes, labels = simulate_spikes(240, steps=8, K=2, C=4, seed=1, pace=3.0)
    ag.save_spikes(folder / "tuning.npz", spikes[:80], labels[:80])
    ag.save_spikes(folder / "pool.npz", spikes[80:], labels[80:])
    monkeypatch.setattr(promises, "REALISATIONS", 3)
    monkeypatch.setattr(promises, "FEW", 60)
    monkeypatch.setattr(promises, "TARGETS", (0.8,))
    monkeypatch.setattr(promises, "SIZES", (1,))
    return tmp_path


@pytest.mark.filterwarnings("ignore::agreestop.CalibrationWarning")
def test_records_are_those_of_the_rules(scores: Path, tmp_path: Path) -> None:
    records = promises.measure(scores, "gesture-sim", "deep")
    found = {record.rule: record for record in records}
    tuning, pool = (
        ag.load_scores(scores / "gesture-sim" / "deep" / f"{name}.npz")
        for name in ("tuning", "pool")
    )
    gate = ag.Gate.fit(tuning, target=0.8, max_set_size=1, blocks=ag.Gate.count_blocks(60, 0.8))
    rules = {
        MARGINAL: ag.AgreeStop(0.8, TIMES, 1),
        GATE: ag.AgreeStop(0.8, TIMES, 1, gate=gate),
        FIXED: ag.AgreeStop(0.8, TIMES, 1, fill=True, risk=ag.FixedTime()),
        ACCUMULATED: ag.AgreeStop(0.8, TIMES, 1, accumulated=True, delta=0.1),
    }
    for name, rule in rules.items():
        splits = ag.repeat_splits(rule, pool, n_calibration=60, repeats=3)
        record = found[name]
        assert record.coverage == pytest.approx(
            float(splits.coverage)
        ) and record.latency == pytest.approx(float(splits.normalized_latency))
        assert record.set_size == pytest.approx(float(splits.set_size)) and record.ratio is not None
        assert record.ratio == pytest.approx(record.latency / found[MARGINAL].latency)
        assert sum(part.share for part in record.blocks) == pytest.approx(1.0)
        assert sum(part.share * part.coverage for part in record.blocks) == pytest.approx(
            record.coverage
        )
        assert record.answered[-1].share == 1.0 and record.answered[-1].coverage == pytest.approx(
            record.coverage
        )
    promises.save(tmp_path / "numbers.json", records, {"command": "x", "protocol": {}})
    again = promises.load(tmp_path / "numbers.json")
    assert [(one.rule, one.n, len(one.blocks)) for one in again] == [
        (one.rule, one.n, len(one.blocks)) for one in records
    ]
    assert [one.latency for one in again] == pytest.approx(
        [one.latency for one in records], abs=1e-6
    )


def test_a_realisation_breaks_the_accumulated_promise_only_where_it_clearly_does() -> None:
    stops = np.array([[0] * 60 + [1] * 140])
    for misses, broken in ((6, False), (20, True)):
        hits = np.ones((1, 200), dtype=bool)
        hits[0, :misses] = False
        runs = promises._Runs(
            np.ones((1, 200), dtype=bool), hits, stops, np.ones((1, 200), dtype=np.int64)
        )
        assert runs._breaks(0, 0.9, 1) is broken


def test_few_of_the_times_are_kept_and_the_last_one_always() -> None:
    parts = [
        Part(str(step), share, 0.9, 0.8, 1.0)
        for step, share in enumerate((0.1, 0.11, 0.12, 0.2, 0.99, 1.0))
    ]
    assert [part.share for part in promises._thin(parts)] == [0.1, 0.2, 0.99, 1.0]


def test_missing_score_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ag.InputError, match="promises needs"):
        promises.run_promises(tmp_path, tmp_path, "x", lambda what, share: None)
