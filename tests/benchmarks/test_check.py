"""The gate of speed lets a workload pass that is as fast as stored, and fails one that is
slower.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

import agreestop as ag
from benchmarks import check
from benchmarks.workers import ROOT


def busy(times: int) -> None:
    for _ in range(times):
        check.reference()


def test_a_workload_that_became_slower_fails_and_others_pass(tmp_path: Path) -> None:
    path = tmp_path / "check.json"
    said: list[str] = []
    check.store({"one": partial(busy, 1), "two": partial(busy, 1)}, path, rounds=4)
    stored = check.stored_ratios(path)
    now = {"one": partial(busy, 1), "two": partial(busy, 4)}
    assert check.check(
        now, {name: 0.5 * ratio for name, ratio in stored.items()}, 3, said.append
    ) == ["two"]
    assert "too slow" in said[1] and "too slow" not in said[0]
    added = check.store(
        {"one": partial(busy, 4), "new": partial(busy, 1)},
        path,
        1,
        known={"one": stored["one"], "gone": 1.0},
    )
    assert added["one"] == stored["one"] and set(check.stored_ratios(path)) == {"one", "new"}
    with pytest.raises(ag.InputError, match="two"):
        check.check({"one": now["one"]}, stored, 1, said.append)


def test_a_missing_file_says_how_to_write_it(tmp_path: Path) -> None:
    with pytest.raises(ag.InputError, match="--store"):
        check.stored_ratios(tmp_path / "none.json")


@pytest.mark.slow
def test_an_older_version_takes_turns_with_this_one(tmp_path: Path) -> None:
    pytest.importorskip("numba", reason="the event-driven engine needs numba")
    found = check.compare(ROOT, tmp_path / "versions.json", 2)
    written = json.loads((tmp_path / "versions.json").read_text())
    assert written["workloads"] == found and "live batch" in found
    assert all(one["ratio"] == one["seconds_before"] / one["seconds"] for one in found.values())
    assert check.seconds_of({"gone": lambda: check.missing}, "gone") == float("inf")  # type: ignore[attr-defined]
    with pytest.raises(ag.InputError, match="src/agreestop"):
        check.compare(tmp_path, tmp_path / "versions.json", 2)
