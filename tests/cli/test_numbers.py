"""The command line for numbers: from a file to decisions and figures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import agreestop as ag
from tests.cli.test_cli import call


def test_numbers_from_file_to_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    truth, scale = rng.normal(size=400), 1 / np.arange(1, 9) * rng.uniform(0.5, 2, (400, 1))
    centre = truth[:, None] + scale * rng.normal(size=scale.shape)
    parts = {"calibration": slice(200), "test": slice(200, 400)}
    for name, rows in parts.items():
        np.savez(
            tmp_path / f"{name}.npz",
            centre=centre[rows],
            scale=scale[rows],
            labels=truth[rows],
            ids=np.arange(400)[rows],
        )
    np.savez(tmp_path / "unknown.npz", centre=centre[200:], scale=scale[200:])
    rule, test = tmp_path / "rule", tmp_path / "test.npz"
    words = ("--rule", "interval", "--target", "0.8", "--max-width", "1", "-o", rule)
    made = call(monkeypatch, capsys, "calibrate", tmp_path / "calibration.npz", *words)
    assert made.code == 0 and "the true number" in " ".join(made.out.split())
    decided = call(monkeypatch, capsys, "decide", rule, tmp_path / "unknown.npz").out.splitlines()
    assert decided[0] == "input,stop_time,lower,upper" and len(decided) == 201
    assert call(monkeypatch, capsys, "decide", rule, test, "-o", tmp_path / "d.npz").code == 0
    decisions = ag.load_rule(rule).decide(ag.Numbers(centre[200:], scale[200:]))
    with np.load(tmp_path / "d.npz") as written:
        np.testing.assert_array_equal(written["lower"], decisions.lower)
    shown = call(monkeypatch, capsys, "evaluate", rule, test)
    assert (
        shown.code == 0
        and "width" in shown.out
        and "set size" not in shown.out
        and "coverage" in shown.out
    )
    figures = json.loads(call(monkeypatch, capsys, "evaluate", rule, test, "--json").out)
    result = ag.evaluate(decisions, truth[200:])
    assert (
        figures["coverage"] == result.coverage
        and figures["width"] == result.width
        and figures["by_class"] == []
    )
    for wrong, match in (
        (("calibrate", tmp_path / "unknown.npz", *words), "no labels"),
        (
            ("calibrate", tmp_path / "calibration.npz", "--target", "0.8", "-o", rule),
            "--rule interval",
        ),
        (
            ("calibrate", tmp_path / "calibration.npz", "--rule", "interval", "-o", rule),
            "such as --max-width 2",
        ),
    ):
        refused = call(monkeypatch, capsys, *wrong)
        assert refused.code == 2 and match in " ".join(refused.err.split())
