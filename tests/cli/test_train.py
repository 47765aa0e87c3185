"""From a configuration to a decision, on the command line: train, score, calibrate, evaluate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="ensembles need PyTorch")

import numpy as np

import agreestop as ag
from agreestop.ensembles import save_members
from agreestop.events import EventData, save_events
from tests.cli.test_cli import call
from tests.decide.strategies import measure_quickly

SMALL = """
name = "small"
[data]
views = 1
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


def test_from_a_configuration_to_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
    result = json.loads(
        call(monkeypatch, capsys, "evaluate", "rule", folder / "test.npz", "--json").out
    )
    assert result["n"] == 547


def test_members_run_no_further_than_their_decisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Decisions from inputs and members equal those from scores and those of a live input; other
    engines and members are refused.
    """
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(SMALL)
    assert call(monkeypatch, capsys, "score", "small.toml").code == 0
    deep = Path("runs/small/deep")
    assert (
        call(
            monkeypatch,
            capsys,
            "calibrate",
            deep / "calibration.npz",
            "--max-set-size",
            3,
            "-o",
            "rule",
        ).code
        == 0
    )
    from_scores = call(monkeypatch, capsys, "decide", "rule", deep / "test.npz")
    words = (
        "decide",
        "rule",
        "runs/small/test-inputs.npz",
        "--members",
        deep / "members.safetensors",
    )
    from_inputs = call(monkeypatch, capsys, *words)
    assert from_inputs.code == 0, from_inputs.err
    assert from_inputs.out == from_scores.out
    assert "of the 80 steps" in from_inputs.err
    made_by = ag.load_rule("rule").engine
    other = {"dense": "event-driven", "event-driven": "dense"}[made_by]
    if other == "dense":
        refused = call(monkeypatch, capsys, *words, "--engine", other)
        assert refused.code == 2 and f"calibrated on scores of the {made_by} engine" in refused.err
        assert call(monkeypatch, capsys, *words, "--engine", other, "--any-engine").code == 0
    ensemble = ag.ensembles.load(deep / "members.safetensors")
    assert (
        ag.load_rule("rule").ensemble_digest
        == ensemble.digest
        == ag.load_scores(deep / "test.npz").ensemble_digest
    )
    inputs = ag.events.load("runs/small/test-inputs.npz")
    session = ensemble.live(ag.load_rule("rule"))
    (frames,) = inputs.rows([0]).to_dense()
    decision = next(one for frame in frames if (one := session.push(frame=frame)) is not None)
    assert from_inputs.out.splitlines()[1].startswith(f"0,{decision.time},")
    others = (*words[:-1], Path("runs/small/variational/members.safetensors"))
    refused = call(monkeypatch, capsys, *others)
    assert refused.code == 2 and "--any-members" in refused.err
    assert call(monkeypatch, capsys, *others, "--any-members").code == 0
    assert "Not checked" not in from_scores.err + from_inputs.err
    wrong = call(monkeypatch, capsys, "evaluate", "rule", "runs/small/variational/test.npz")
    assert wrong.code == 2 and "--any-members" in wrong.err
    assert (
        call(
            monkeypatch,
            capsys,
            "evaluate",
            "rule",
            "runs/small/variational/test.npz",
            "--any-members",
        ).code
        == 0
    )
    scored = call(
        monkeypatch,
        capsys,
        "score",
        "runs/small/test-inputs.npz",
        "--members",
        deep / "members.safetensors",
        "-o",
        "own.npz",
    )
    assert scored.code == 0 and "Wrote own.npz" in scored.out, scored.err
    own, test = ag.load_scores("own.npz"), ag.load_scores(deep / "test.npz")
    np.testing.assert_array_equal(own.log_confidence, test.log_confidence)
    np.testing.assert_array_equal(own.labels, test.labels)
    assert (own.times, own.classes, own.ensemble_digest) == (
        test.times,
        test.classes,
        test.ensemble_digest,
    )
    for given, match in (
        ((), "no file of inputs: give both"),
        (("runs/small/test-inputs.npz",), "no score file to write (-o): give both"),
    ):
        refused = call(
            monkeypatch, capsys, "score", *given, "--members", deep / "members.safetensors"
        )
        assert refused.code == 2 and match in refused.err


def test_a_wrong_key_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text("[decide]\ntargt = 0.9\n")
    outcome = call(monkeypatch, capsys, "train", path)
    assert outcome.code == 2
    assert "decide.targt is not known: did you mean target" in outcome.err


TINY = """
name = "tiny"
[data]
views = 1
[network]
hidden = [8]
[[ensembles]]
kind = "deep"
members = 1
epochs = 1
[decide]
realisations = 2
targets = []
"""


def test_the_main_job_measures_every_rule_and_uses_again_what_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    measure_quickly(monkeypatch)
    Path("tiny.toml").write_text(TINY)
    first = call(monkeypatch, capsys, "run", "tiny.toml")
    assert first.code == 0, first.err
    assert "AgreeStop, every step" in first.out
    content = json.loads(Path("runs/tiny/metrics.json").read_text())
    assert content["simulated"] is True
    assert len(content["records"]) == 11
    assert all(
        0 < record["energy"] <= 1 and 0 < record["latency"] <= 1 for record in content["records"]
    )
    report = Path("runs/tiny/report.html").read_text()
    assert report.count("Time saved") == 1
    # which runs in a page too
    watched = ag.load_scores("runs/tiny/deep/test.npz").engine == "event-driven"
    assert report.count('href="demo.html"') == Path("runs/tiny/demo.html").exists() == watched
    members = Path("runs/tiny/deep/members.safetensors")
    made = members.stat().st_mtime_ns
    assert call(monkeypatch, capsys, "run", "tiny.toml").code == 0
    assert members.stat().st_mtime_ns == made
    assert json.loads(Path("runs/tiny/metrics.json").read_text()) == content


@pytest.mark.parametrize(
    ("text", "words", "match"),
    [
        ("[decide]\ncheckpoints = [40, 90]", (), "the data have 80 steps"),
        ("[decide]\nn_calibration = 597", (), "the pool has 597 inputs"),
        ("", ("--simulated",), "--simulated takes no configuration"),
    ],
)
def test_a_run_that_cannot_be_is_said_before_it_trains(
    text: str,
    words: tuple[str, ...],
    match: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(text)
    outcome = call(monkeypatch, capsys, "run", "run.toml", *words)
    assert outcome.code == 2
    assert match in outcome.err
    assert not Path("runs").exists()


FRESH = """
name = "fresh"
[data]
views = 1
[network]
hidden = [4]
[[ensembles]]
kind = "variational"
members = 2
epochs = 1
fresh = true
"""


def test_fresh_members_are_drawn_for_decisions_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rule calibrated on fresh members needs the posterior, and refuses members that were drawn
    once.
    """
    monkeypatch.chdir(tmp_path)
    Path("fresh.toml").write_text(FRESH)
    assert call(monkeypatch, capsys, "score", "fresh.toml").code == 0
    folder = Path("runs/fresh/variational")
    assert (
        call(
            monkeypatch,
            capsys,
            "calibrate",
            folder / "calibration.npz",
            "--checkpoints",
            "40,80",
            "-o",
            "rule",
        ).code
        == 0
    )
    assert ag.load_rule("rule").engine == "dense-fresh"
    words = ("decide", "rule", "runs/fresh/test-inputs.npz", "--members")
    drawn = call(monkeypatch, capsys, *words, folder / "members.safetensors")
    assert drawn.code == 0 and "The dense-fresh engine" in drawn.err, drawn.err
    assert len(drawn.out.splitlines()) == 548
    posterior: Any = ag.ensembles.load(folder / "members.safetensors").network
    save_members("once.safetensors", posterior.members(torch.Generator().manual_seed(0)))
    refused = call(monkeypatch, capsys, *words, "once.safetensors")
    assert refused.code == 2 and "give the posterior, not members drawn from it" in refused.err
    refused = call(monkeypatch, capsys, *words, folder / "members.safetensors", "--engine", "dense")
    assert refused.code == 2 and "a posterior runs on dense-fresh" in refused.err


def test_files_of_the_wrong_kind_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    scores = ag.simulate_scores(60)
    ag.save_scores("scores.npz", scores)
    assert (
        call(
            monkeypatch, capsys, "calibrate", "scores.npz", "--checkpoints", "40,80", "-o", "rule"
        ).code
        == 0
    )
    save_events(
        "inputs.npz",
        EventData("some", True, np.zeros((2, 3, 2, 2, 2), bool), np.zeros(2, np.int64), ("a",)),
    )
    for words, match in (
        (("decide", "rule", "inputs.npz"), "holds inputs, not scores"),
        (("decide", "rule", "scores.npz", "--members", "none"), "holds scores, not inputs"),
        (("decide", "rule", "scores.npz", "--engine", "dense"), "without --members nothing is run"),
        (("run", "."), "is a folder, a pipe or a device: give a file"),
        (("train", "inputs.npz"), "holds inputs: give a configuration (.toml)"),
        (("score", "inputs.npz"), "holds inputs: give the members that score them (--members)"),
        (("score", "scores.npz"), "holds scores already"),
        (
            ("score", ".", "--ray", "local"),
            "holds inputs: give the members that score them (--members)",
        ),
        (
            ("score", "inputs.npz", "--members", "m", "-o", "inputs.npz"),
            "is read and would be replaced",
        ),
    ):
        outcome = call(monkeypatch, capsys, *words)
        assert outcome.code == 2 and match in outcome.err, outcome.err


def test_an_interrupted_verb_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("agreestop.pipeline.run.load_data", interrupted)
    outcome = call(monkeypatch, capsys, "train")
    assert outcome.code == 130 and "the same command continues" in " ".join(outcome.err.split())
