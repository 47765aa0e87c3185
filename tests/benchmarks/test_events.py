"""The comparison of events with dense arrays runs, and events take less of everything that does not
depend on the machine's load.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the comparison runs an engine, which needs PyTorch")
pytest.importorskip("numba", reason="the event-driven engine needs numba")

from benchmarks.events import run_events


def test_the_comparison_writes_its_records(tmp_path: Path) -> None:
    records = run_events(1, 130, 1, tmp_path / "new" / "events.json")
    written = json.loads((tmp_path / "new" / "events.json").read_text())
    assert [(record.work, record.unit) for record in records] == [
        (entry["work"], entry["unit"]) for entry in written["records"]
    ]
    assert written["shape"] == [130, 80, 2, 32, 32] and written["distinct"] == 1
    assert all(
        record.ratio > (5 if record.work == "file" else 1)
        for record in records
        if record.unit == "bytes"
    )
