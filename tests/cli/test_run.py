"""The main job, small: it writes numbers, figures and score files, and its numbers are what the
docs say they are.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

import agreestop as ag
from agreestop.cli import main
from agreestop.cli.run import next_steps, show_files
from agreestop.pipeline import measure
from agreestop.report import MeasurementSettings
from agreestop.report.figures import coverage_and_latency_panels, save_panels
from tests.decide.strategies import measure_quickly


def test_the_simulated_run_writes_its_records_and_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "N_TUNING", 110)
    monkeypatch.setattr(measure, "N_POOL", 120)
    monkeypatch.setattr(
        measure,
        "SPLITS",
        {"tuning": slice(0, 110), "calibration": slice(110, 160), "test": slice(160, None)},
    )
    measure_quickly(monkeypatch)
    reported: list[tuple[str, float]] = []
    measured = MeasurementSettings(targets=(0.9, 0.8), sizes=(1, 6), realisations=2, seed=1)
    finished = measure.run_simulated(
        tmp_path / "run",
        measured,
        "agreestop run",
        lambda what, share: reported.append((what, share)),
        pages=False,
    )
    records = finished.report.sections[0].records
    content = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert len(content["records"]) == len(records) == 31
    assert {record["rule"] for record in content["records"]} == {
        "dcsnn",
        "spikecp",
        "agreestop",
        "fixedtime",
        "gatedagreestop",
    }
    assert all(0 < record.latency <= 1 and 0 <= record.coverage <= 1 for record in records)
    shares = [share for _, share in reported]
    assert len(shares) > 20 and shares == sorted(shares) and shares[-1] < 1
    assert [what.split(",")[0] for what, _ in (reported[0], reported[1], reported[-1])] == [
        "1 of 3",
        "2 of 3",
        "3 of 3",
    ]
    single = {record.label: record.latency for record in records if record.K == 1}
    assert single["confidence merging"] == single["p-variable merging"]
    assert len(ag.load_scores(tmp_path / "run" / "calibration.npz", (20, 80))) == 50
    monkeypatch.chdir(tmp_path)
    folder, made = Path("run"), sorted(Path("run").glob("*.npz"))
    show_files(folder, (folder / "report.html", folder / "metrics.json", *made))
    assert capsys.readouterr().out == "Wrote run: metrics.json, report.html, 3 .npz\n"
    _, page, *commands = next_steps(folder, made, measured)
    assert "run/report.html" in page and len(commands) == 2
    for command in commands:  # they run as they are shown
        monkeypatch.setattr("sys.argv", shlex.split(command.replace("\\\n", "")))
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
    assert "Target 0.9: " in capsys.readouterr().out
    for path in save_panels(
        coverage_and_latency_panels(records), tmp_path / "run", "small", "small"
    ):
        assert path.stat().st_size > 5000
