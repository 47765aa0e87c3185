"""The gate of speed lets a workload pass that is as fast as stored, and fails one that is
slower.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import agreestop as ag
from benchmarks import check


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
