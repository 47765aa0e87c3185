"""`python -m paper` on tiny score files: it writes numbers and figures, and names what is
missing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="figures need matplotlib")

import agreestop as ag
from agreestop.cli.app import run_app
from paper import cli, figures
from paper.figures import RULES
from tests.cli.test_cli import Outcome
from tests.decide.strategies import simulate_spikes

ROOT = Path(__file__).parents[2]


def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object
) -> Outcome:
    """The exit code and the output of `python -m paper` with these words."""
    monkeypatch.setattr(sys, "argv", ["paper", *(str(word) for word in words)])
    try:
        run_app(cli.app)
    except SystemExit as ended:
        code = int(ended.code or 0)
    else:
        code = 0
    captured = capsys.readouterr()
    return Outcome(code, " ".join(captured.out.split()), " ".join(captured.err.split()))


@pytest.fixture
def scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Score files of fig3 only, and rules that are measured quickly."""
    monkeypatch.setattr(cli, "cores", lambda: 1)
    untuned = tuple(rule for rule in RULES if not rule.tuned)
    small = tuple(
        replace(figure, rules=untuned)
        for figure in figures.FIGURES
        if figure.name in ("fig3", "fig7")
    )
    monkeypatch.setattr(figures, "FIGURES", small)
    for seed, ensemble in enumerate(("deep", "variational")):
        folder = tmp_path / "scores" / "mnist-dvs-sim" / ensemble
        folder.mkdir(parents=True)
        spikes, labels = simulate_spikes(20 + 110, 12, 2, 5, seed=seed, pace=3.0)
        ag.save_spikes(folder / "tuning.npz", spikes[:20], labels[:20])
        ag.save_spikes(folder / "pool.npz", spikes[20:], labels[20:])
    return tmp_path / "scores"


def test_a_figure_is_measured_and_drawn(
    scores: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("fig3", "--scores", scores, "-o", tmp_path / "new" / "results", "--from-scores")
    outcome = call(monkeypatch, capsys, *words)
    assert outcome.code == 0, outcome.err
    folder = tmp_path / "new" / "results" / "fig3"
    content = json.loads((folder / "numbers.json").read_text())
    assert (
        content["command"] == " ".join(["python -m paper", *map(str, words)])
        and content["protocol"]["realisations"] == 50
    )
    assert len(content["records"]) == 2 * (1 + 2 * 4)
    for name in ("numbers.json", "figure.png", "figure.svg"):
        assert (folder / name).stat().st_size > 3000 and f"Wrote {folder / name}" in outcome.out
    assert "mnist-dvs-sim (simulated), deep: target 0.9, K = 2, n = 50" in outcome.out
    assert "p-variable merging (PM)" in outcome.out
    # progress is shown from the start
    assert "fig3" in outcome.err and "mnist-dvs-sim, deep: reading scores" in outcome.err


def test_missing_scores_are_named_and_the_other_figures_are_made(
    scores: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = call(monkeypatch, capsys, "fig7", "--scores", scores, "-o", tmp_path)
    assert one.code == 2 and "fig7 needs" in one.err and "make them with --scale full" in one.err
    both = call(monkeypatch, capsys, "all", "--scores", scores, "-o", tmp_path)
    assert (
        both.code == 2 and "fig7 needs" in both.err and (tmp_path / "fig3" / "figure.png").is_file()
    )
    unknown = call(monkeypatch, capsys, "fig1")
    assert unknown.code == 2 and "there is no figure 'fig1': choose one of fig2" in unknown.err
    contradiction = call(monkeypatch, capsys, "fig3", "--from-scores", "--scale", "small")
    assert contradiction.code == 2 and "leave one of the two out" in contradiction.err


def test_the_command_runs_from_the_root_of_the_repository() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "paper", "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Usage: python -m paper [OPTIONS]" in ended.stdout
    for words in ("--from-scores", "--scale", "fig2, fig3", "paper/recipes"):
        assert words in ended.stdout
