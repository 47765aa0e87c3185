"""The benchmark of live inputs on a small network: every workload of every system, and a sentence
about what is missing.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="engines run trained networks, which need PyTorch")
pytest.importorskip("numba", reason="the event-driven engine needs numba")
pytest.importorskip("matplotlib", reason="figures need matplotlib")

import agreestop as ag
from benchmarks.drawing import draw_live
from benchmarks.live import LiveSettings, run_live, systems
from benchmarks.records import load_benchmark
from benchmarks.workers import ROOT
from tests.networks.plain import refused


@pytest.mark.slow
def test_a_version_is_timed_beside_an_older_one(tmp_path: Path) -> None:
    settings = LiveSettings((16,), inputs=4, rounds=2, epochs=1, previous=ROOT)
    records, title, missing = run_live(settings, tmp_path / "live.json")
    header, written = load_benchmark(tmp_path / "live.json")
    assert written == records and header["missing"] == missing and "6 members" in title
    ours = [one for one in records if one.system == "agreestop"]
    works = {one.work for one in ours}
    assert works == {
        f"live-{work}"
        for work in ("network", "steps", "open", "first", "push", "decide", "input", "batch")
    }
    assert {one.form for one in ours} == {"this version", "before"} and len(ours) == 2 * len(works)
    assert all(0 < one.low <= one.median <= one.high for one in records)
    assert [path.stat().st_size > 1000 for path in draw_live(records, tmp_path, title, "live")] == [
        True,
        True,
    ]


def test_a_folder_without_the_package_is_refused_and_missing_libraries_are_named(
    tmp_path: Path,
) -> None:
    refused(lambda: systems(LiveSettings(previous=tmp_path)), "holds no src/agreestop")
    found, missing = systems(LiveSettings(python=Path(shutil.which("false") or "false")))
    assert (
        [one.name for one in found] == ["agreestop"]
        and "norse" in missing
        and "older version" in missing
    )
    assert found[0].version == ag.__version__
