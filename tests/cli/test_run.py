"""The main job, small: it writes numbers, figures and score files, and its numbers are what the docs say they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import agreestop as ag
from agreestop.experiments import simulated
from agreestop.report.figures import draw_coverage_and_latency


def test_the_simulated_run_writes_its_records_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "N_TUNING", 110)
    monkeypatch.setattr(simulated, "N_POOL", 120)
    monkeypatch.setattr(simulated, "SIZES", (1, 6))
    monkeypatch.setattr(simulated, "TARGETS", (0.8, 0.9))
    monkeypatch.setattr(simulated, "EVERY", tuple(range(1, 81)))
    monkeypatch.setattr(simulated, "SPLITS", {"tuning": slice(0, 110), "calibration": slice(110, 160), "test": slice(160, None)})
    monkeypatch.setattr("agreestop.decide.tuning.SEARCH_STEPS", 1)
    monkeypatch.setattr("agreestop.decide.tuning.POWERS", (1.0,))
    monkeypatch.setattr("agreestop.decide.tuning.EXPONENTS", (1.0,))
    told: list[float] = []
    records = simulated.run_simulated(tmp_path / "run", seed=1, repeats=2, tell=lambda what, share: told.append(share))
    content = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert len(content["records"]) == len(records) == 27
    assert {record["rule"] for record in content["records"]} == {"dcsnn", "spikecp", "agreestop"}
    assert all(0 < record.latency <= 1 and 0 <= record.coverage <= 1 for record in records)
    assert told == sorted(told)
    single = {record.label: record.latency for record in records if record.K == 1}
    assert single["confidence merging"] == single["p-variable merging"]
    assert len(ag.load_scores(tmp_path / "run" / "calibration.npz", (20, 80))) == 50
    for path in draw_coverage_and_latency(records, tmp_path / "run", "small"):
        assert path.stat().st_size > 5000
