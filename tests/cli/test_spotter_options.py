"""Options of a spotter on the command line: those it takes, and those that are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import agreestop as ag
from agreestop.decide.spotting import Recordings, load_recordings

from .test_cli import call


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Recordings of twelve people, with an event each, and a spotter on others."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    scores = list(rng.normal(size=(48, 200)))
    for one in scores:
        one[50:60] += 5
    Recordings.of(scores, [[(50, 60)]] * 48).save("all.npz")
    Path("people.txt").write_text("".join(f"p{row // 4}\n" for row in range(48)))
    ag.Spotter(0.1).calibrate(list(rng.normal(size=(20, 200)))).save("rule")
    ag.save_scores("scores.npz", ag.simulate_scores(60, steps=5))
    ag.AgreeStop(0.9, (1, 2, 3), 1).calibrate(ag.load_scores("scores.npz")).save("other")
    return tmp_path


HOUR = ("--per", "hour", "--step-seconds", "1")


def test_people_and_hours_are_what_python_makes_of_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: tuple[str, ...] = (
        "--false-alarms",
        "1/2",
        "--near",
        "5",
        "--rest",
        "3",
        "--people",
        "people.txt",
    )
    made = call(monkeypatch, capsys, "calibrate", "all.npz", "--rule", "spotter", *given, "-o", "a")
    assert made.code == 0 and "12 people" in made.out and "new person" in made.out
    data, names = load_recordings("all.npz"), [f"p{row // 4}" for row in range(48)]
    own = ag.Spotter("1/2", rest=3).calibrate(data, near=5, people=names)
    assert ag.Spotter.load("a").threshold == own.threshold
    given = ("--false-alarms", "4", *HOUR, "--near", "5", "-o", "b")
    made = call(monkeypatch, capsys, "calibrate", "all.npz", "--rule", "spotter", *given)
    assert made.code == 0 and "at most 4 false alarms an hour" in made.out
    shown = call(monkeypatch, capsys, "evaluate", "rule", "all.npz", "--people", "people.txt").out
    expected = ag.Spotter.load("rule").evaluate(data, people=names)
    assert repr(expected.any_false_alarm) in shown
    given = ("--people", "people.txt", "--near", "5", *HOUR, "-o", "page.html")
    shown = call(monkeypatch, capsys, "report", "all.npz", *given).out
    assert "an hour" in shown and "Events found against" in (folder / "page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            (
                "calibrate",
                "all.npz",
                "--rule",
                "spotter",
                "--false-alarms",
                "0.1",
                "--delta",
                "0.1",
                "-o",
                "a",
            ),
            "--delta cannot be given",
        ),
        (
            (
                "calibrate",
                "all.npz",
                "--rule",
                "spotter",
                "--false-alarms",
                "0.1",
                "--per",
                "hour",
                "-o",
                "a",
            ),
            "--step-seconds is missing",
        ),
        (
            (
                "calibrate",
                "all.npz",
                "--rule",
                "spotter",
                "--false-alarms",
                "1/8",
                *HOUR,
                "-o",
                "a",
            ),
            "at least 8 hours",
        ),
        (("calibrate", "scores.npz", "--cap", "3", "-o", "a"), "--cap is for --rule spotter"),
        (("decide", "rule", "all.npz", "--groups", "people.txt"), "--groups cannot be given"),
        (("evaluate", "rule", "all.npz", "--groups", "people.txt"), "--groups cannot be given"),
        (("evaluate", "other", "scores.npz", "--within", "3"), "--within is for a spotter"),
        (("report", "all.npz", "--target", "0.9", "-o", "a.html"), "--target cannot be given"),
        (("report", "scores.npz", "--near", "3", "-o", "a.html"), "--near is for recordings"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    result = call(monkeypatch, capsys, *arguments)
    assert result.code == 2 and words in " ".join(result.err.split())
