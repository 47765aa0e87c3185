"""The command line for trees of classes: one pass gives the first answer of each depth."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import agreestop as ag
from tests.cli.test_cli import call
from tests.decide.test_tree import CLASSES, make


def test_each_depth_from_file_to_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ag.save_scores(tmp_path / "calibration.npz", make(200))
    ag.save_scores(tmp_path / "test.npz", make(100, seed=1))
    groups = {"animal": {"pet": ["cat", "dog"], "cow": None}, "vehicle": ["car", "ship"]}
    (tmp_path / "tree.json").write_text(json.dumps(groups))
    rule, test = tmp_path / "rule", tmp_path / "test.npz"
    words = (
        tmp_path / "calibration.npz",
        "--tree",
        tmp_path / "tree.json",
        "--target",
        "0.8",
        "-o",
        rule,
    )
    assert call(monkeypatch, capsys, "calibrate", *words, "--depth", "each").code == 0
    decisions = ag.load_rule(rule).decide(make(100, seed=1))
    rows = list(csv.DictReader(call(monkeypatch, capsys, "decide", rule, test).out.splitlines()))
    for depth in (1, 2, 3):
        own = decisions.by_depth[depth - 1]
        assert [row[f"depth_{depth}_answer"] for row in rows] == [
            one.names[0] for one in own if one.names
        ]
        assert [float(row[f"depth_{depth}_time"]) for row in rows] == own.stop_time.tolist()
    assert {row["answer"] for row in rows} <= {*CLASSES, "any class", "animal", "vehicle", "pet"}
    assert call(monkeypatch, capsys, "decide", rule, test, "-o", tmp_path / "d.npz").code == 0
    with np.load(tmp_path / "d.npz") as written:
        np.testing.assert_array_equal(written["depth_sets"], decisions.depth_sets)
    shown = call(monkeypatch, capsys, "evaluate", rule, test)
    assert shown.code == 0 and "First answer at each depth" in shown.out
    figures = json.loads(call(monkeypatch, capsys, "evaluate", rule, test, "--json").out)
    found = ag.evaluate(decisions, make(100, seed=1)).by_depth
    assert found is not None
    assert [one["latency"] for one in figures["by_depth"]] == [
        float(one.normalized_latency) for one in found
    ]
    assert call(monkeypatch, capsys, "calibrate", *words, "--depth", "all").code == 0
    assert ag.load_rule(rule).rule.depth is None  # type: ignore[attr-defined]
    for wrong, match in (
        ("deep", "--depth is 'deep'"),
        ("4", "--depth is 4"),
        ("0", "--depth is 0"),
    ):
        refused = call(monkeypatch, capsys, "calibrate", *words, "--depth", wrong)
        assert refused.code == 2 and match in " ".join(refused.err.split())
    ag.save_scores(tmp_path / "calibration.npz", replace(make(200), classes=None))
    nameless = call(monkeypatch, capsys, "calibrate", *words)
    assert nameless.code == 2 and "put `classes`" in " ".join(nameless.err.split())
    alone = call(
        monkeypatch, capsys, "calibrate", tmp_path / "calibration.npz", "--depth", "1", "-o", rule
    )
    assert alone.code == 2 and "--tree" in alone.err


def test_an_empty_line_of_people_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scores, people = tmp_path / "scores.npz", tmp_path / "people.txt"
    ag.save_scores(scores, make(20))
    people.write_text("p1\n\n" * 10)
    answer = call(
        monkeypatch, capsys, "calibrate", scores, "-o", tmp_path / "rule", "--people", people
    )
    assert answer.code != 0 and "line 2 is empty" in answer.err
