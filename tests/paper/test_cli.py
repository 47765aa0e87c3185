"""`agreestop reproduce` on tiny score files: it writes numbers and figures, and says what is missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="figures need matplotlib")

import agreestop as ag
from paper import cli as verb
from paper import figures
from paper.figures import RULES
from tests.cli.test_cli import call


@pytest.fixture
def scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Score files of fig3 alone, and rules that are quickly measured."""
    monkeypatch.setattr(verb, "cores", lambda: 1)
    untuned = tuple(one for one in RULES if not one.tuned)
    small = tuple(replace(figure, contenders=untuned) for figure in figures.FIGURES if figure.name in ("fig3", "fig7"))
    monkeypatch.setattr(figures, "FIGURES", small)
    for seed, ensemble in enumerate(("deep", "variational")):
        place = tmp_path / "scores" / "mnist-dvs-sim" / ensemble
        place.mkdir(parents=True)
        spikes, labels = ag.simulate_spikes(20 + 110, 12, 2, 5, seed=seed, pace=3.0)
        ag.save_spikes(place / "tuning.npz", spikes[:20], labels[:20])
        ag.save_spikes(place / "pool.npz", spikes[20:], labels[20:])
    return tmp_path / "scores"


def test_a_figure_is_measured_and_drawn(
    scores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("reproduce", "fig3", "--scores", scores, "-o", tmp_path / "new" / "results", "--from-scores")
    outcome = call(monkeypatch, capsys, *words)
    assert outcome.code == 0, outcome.err
    folder = tmp_path / "new" / "results" / "fig3"
    content = json.loads((folder / "numbers.json").read_text())
    assert content["command"] == " ".join(["agreestop", *map(str, words)]) and content["protocol"]["realisations"] == 50
    assert len(content["records"]) == 2 * (1 + 2 * 3)
    for name in ("numbers.json", "figure.png", "figure.svg"):
        assert (folder / name).stat().st_size > 3000 and f"Wrote {folder / name}" in outcome.out
    assert "mnist-dvs-sim (simulated), deep: target 0.9, K = 2, n = 50" in outcome.out
    assert "p-variable merging (PM)" in outcome.out


def test_what_is_missing_is_said_and_the_rest_is_done(
    scores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = call(monkeypatch, capsys, "reproduce", "fig7", "--scores", scores, "-o", tmp_path)
    assert alone.code == 2 and "fig7 needs" in alone.err and "the full run makes them" in alone.err
    both = call(monkeypatch, capsys, "reproduce", "all", "--scores", scores, "-o", tmp_path)
    assert both.code == 2 and "fig7 needs" in both.err and (tmp_path / "fig3" / "figure.png").is_file()
    unknown = call(monkeypatch, capsys, "reproduce", "fig1")
    assert unknown.code == 2 and "there is no figure 'fig1': choose one of fig2" in unknown.err
    torn = call(monkeypatch, capsys, "reproduce", "fig3", "--from-scores", "--scale", "small")
    assert torn.code == 2 and "leave one of the two out" in torn.err
