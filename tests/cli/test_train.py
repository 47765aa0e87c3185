"""From a configuration to a decision, on the command line: train, score, calibrate, evaluate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="ensembles need PyTorch")

import agreestop as ag

from .test_cli import call

SMALL = """
name = "small"
[network]
hidden = [8]
[[ensembles]]
kind = "deep"
members = 2
epochs = 1
[[ensembles]]
kind = "variational"
members = 2
epochs = 1
"""


def test_from_a_configuration_to_an_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(SMALL)
    trained = call(monkeypatch, capsys, "train", "small.toml")
    assert trained.code == 0, trained.err
    assert Path("runs/small/deep/members.safetensors").exists()
    scored = call(monkeypatch, capsys, "score", "small.toml")
    assert scored.code == 0, scored.err
    folder = Path("runs/small/variational")
    assert len(ag.load_scores(folder / "calibration.npz", (80,))) == 50
    assert len(ag.load_scores(folder / "test.npz", (80,))) == 547
    words = ("--checkpoints", "20,40,60,80", "--max-set-size", 3, "-o", "rule")
    assert call(monkeypatch, capsys, "calibrate", folder / "calibration.npz", *words).code == 0
    result = json.loads(call(monkeypatch, capsys, "evaluate", "rule", folder / "test.npz", "--json").out)
    assert result["n"] == 547


def test_a_wrong_key_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text("[decide]\ntargt = 0.9\n")
    outcome = call(monkeypatch, capsys, "train", path)
    assert outcome.code == 2
    assert "decide.targt is not known: did you mean target" in outcome.err
