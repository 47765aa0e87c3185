"""The command line for recordings: from a file to a spotter, its alarms, an evaluation
and a page.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from agreestop.decide.spotting import Recordings
from tests.cli.test_cli import call


def recordings(n: int, seed: int) -> Recordings:
    rng = np.random.default_rng(seed)
    scores, events = list(rng.normal(size=(n, 200))), []
    for one in scores:
        start = int(rng.integers(10, 150))
        one[start : start + 10] += 5
        events.append([(start, start + 10)])
    return Recordings.of(scores, events)


def test_recordings_from_file_to_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, rule = tmp_path / "old.npz", tmp_path / "new.npz", tmp_path / "rule"
    recordings(40, 0).save(old)
    recordings(20, 1).save(new)
    options = (
        "--rule",
        "spotter",
        "--false-alarms",
        "0.1",
        "--rest",
        "20",
        "--near",
        "5",
        "-o",
        rule,
    )
    made = call(monkeypatch, capsys, "calibrate", old, *options)
    assert (
        made.code == 0
        and "Guarantee: a recording has any false alarm with probability at most 0.1"
        in " ".join(made.out.split())
    )
    spotter = ag.Spotter.load(rule)
    lines = call(monkeypatch, capsys, "decide", rule, new).out.splitlines()
    assert lines[0] == "recording,step,score"
    own = [
        (row, step)
        for row, one in enumerate(recordings(20, 1).scores)
        for step in spotter.alarms(one)
    ]
    assert [tuple(map(int, line.split(",")[:2])) for line in lines[1:]] == own
    assert call(monkeypatch, capsys, "decide", rule, new, "-o", tmp_path / "alarms.csv").code == 0
    assert (tmp_path / "alarms.csv").read_text().splitlines() == lines
    shown = json.loads(
        call(monkeypatch, capsys, "evaluate", rule, new, "--step-seconds", "0.01", "--json").out
    )
    expected = spotter.evaluate(recordings(20, 1), step_seconds=0.01)
    assert (
        expected.found is not None
        and shown["found"]["value"] == float(expected.found)
        and "per_hour" in shown
    )
    assert "events found" in call(monkeypatch, capsys, "evaluate", rule, new).out
    assert call(monkeypatch, capsys, "report", old, "-o", tmp_path / "page.html").code == 0
    assert "at least 99" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("calibrate", "old.npz", "--rule", "spotter", "-o", "other"), "--false-alarms"),
        (
            ("calibrate", "old.npz", "--rule", "spotter", "--false-alarms", "0.01", "-o", "other"),
            "at least 99",
        ),
        (
            ("calibrate", "none.npz", "--rule", "spotter", "--false-alarms", "0.1", "-o", "other"),
            "offsets",
        ),
        (("calibrate", "scores.npz", "--false-alarms", "0.1", "-o", "other"), "--rule spotter"),
        (("calibrate", "old.npz", "--max-set-size", "1", "-o", "other"), "without an end"),
        (("decide", "rule", "nan.npz"), "recordings[0] holds nan"),
        (
            (
                "calibrate",
                "old.npz",
                "--rule",
                "spotter",
                "--false-alarms",
                "0.1",
                "--rest",
                "200",
                "-o",
                "other",
            ),
            "the rest is 200",
        ),
        (("evaluate", "rule", "old.npz"), "set the threshold"),
        (
            (
                *("calibrate", "parts.npz", "--rule", "spotter", "--false-alarms", "0.1"),
                *("-o", "other"),
            ),
            "events holds 5.5: give recordings, starts and ends as whole numbers",
        ),
        (
            (
                *("calibrate", "old.npz", "--rule", "spotter", "--false-alarms", "0.1"),
                *("--rest", "-1", "-o", "other"),
            ),
            "--rest is -1",
        ),
        (
            ("export", "rule", "--to", "c", "-o", "c", "--window", "3", "--skip", "1"),
            "--window, --skip cannot be given for a spotter",
        ),
        (("export", "rule", "--to", "c", "-o", "c", "--members", "m"), "give it alone"),
        (("export", "rule", "--to", "page", "-o", "page"), "give --to c"),
        (
            ("export", "class.rule", "--members", "m", "--to", "c", "-o", "c", "--skip", "3"),
            "--skip is for --spotter",
        ),
        (("decide", "rule", "old.npz", "-o", "alarms.json"), "alarms are written as .csv"),
    ],
)
def test_wrong_files_and_options_get_a_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    recordings(20, 0).save("old.npz")
    np.savez("none.npz", scores=np.zeros(9))
    np.savez("nan.npz", scores=np.full(9, np.nan), offsets=[0, 9])
    ag.save_scores("scores.npz", ag.simulate_scores(40, steps=5))
    ag.Spotter(0.1).calibrate(recordings(20, 0)).save("rule")
    ag.AgreeStop(0.9, (1, 2), 1).calibrate(ag.simulate_scores(20, steps=2)).save("class.rule")
    np.savez("parts.npz", scores=np.zeros(9), offsets=[0, 9], events=[[0, 5.5, 7.0]])
    result = call(monkeypatch, capsys, *arguments)
    assert result.code != 0 and words in " ".join((result.out + result.err).split())


@pytest.mark.parametrize(
    ("changed", "option"),
    [
        ({"engine": "fused"}, "--any-engine"),
        ({"ensemble_digest": "b"}, "--any-members"),
        ({"heard": "window=9, event=0"}, ""),
    ],
)
def test_scores_that_were_made_otherwise_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changed: dict[str, str],
    option: str,
) -> None:
    """By decide and evaluate alike, unless it is allowed."""
    made: Any = {"engine": "dense", "ensemble_digest": "a", "heard": "window=8, event=0"}
    rule, new = tmp_path / "rule", tmp_path / "new.npz"
    ag.Spotter(0.1).calibrate(replace(recordings(20, 0), **made)).save(rule)
    replace(recordings(20, 1), **{**made, **changed}).save(new)
    for verb in ("decide", "evaluate"):
        result = call(monkeypatch, capsys, verb, rule, new)
        words = " ".join((result.out + result.err).split())
        assert result.code == 2 and "calibrated on scores" in words and option in words
        if option:
            assert call(monkeypatch, capsys, verb, rule, new, option).code == 0
