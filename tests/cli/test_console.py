"""Progress: stages share one bar that fits 80 columns, with the time left; in a log it is a line
now and then.
"""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console
from rich.table import Table

from agreestop.cli import console
from agreestop.common import Stages


def test_stages_are_counted_and_weighed() -> None:
    reported: list[tuple[str, float]] = []
    stages = Stages(lambda what, share: reported.append((what, share)), (6.0, 0.0, 2.0))
    for name in ("deep", "deep", "variational"):
        stage = stages.begin(name)
        stage("first half", 0.0)
        stage("second half", 0.5)
    assert reported == [
        ("1 of 3, deep: first half", 0.0),
        ("1 of 3, deep: second half", 0.375),
        ("2 of 3, deep: first half", 0.75),
        ("2 of 3, deep: second half", 0.75),
        ("3 of 3, variational: first half", 0.75),
        ("3 of 3, variational: second half", 0.875),
    ]


def test_stages_without_weight_can_be_reported() -> None:
    shares: list[float] = []
    Stages(lambda what, share: shares.append(share), (0.0,)).begin("deep")("loading", 0.5)
    assert shares == [0.0]


@pytest.mark.parametrize(
    ("seconds", "share", "words"),
    [
        (9.0, 0.5, ""),
        (60.0, 0.09, ""),
        (30.0, 0.25, "1:30 left"),
        (3600.0, 0.25, "3:00:00 left"),
        (50.0, 1.0, "0:00 left"),
    ],
)
def test_the_time_left_is_estimated_once_it_can_be(
    seconds: float, share: float, words: str
) -> None:
    assert console.TimeLeft(0.0).report(seconds, share) == words


def test_a_slow_start_does_not_count_for_the_time_left() -> None:
    estimate = console.TimeLeft(100.0)
    reports = ((0.0, 0.0), (20.0, 0.01), (28.0, 0.08), (60.0, 0.48), (180.0, 0.48))
    assert [estimate.report(100.0 + seconds, share) for seconds, share in reports] == [
        "",
        "",
        "",
        "0:42 left",
        "",
    ]
    # After 60 seconds, 40 % were done in the last 32. After 180 seconds, nothing was done in the
    # last 120.


def test_a_bar_fits_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(
        console, "err", Console(file=screen, force_terminal=True, width=80, highlight=False)
    )
    monkeypatch.setattr(console, "LEAST_SECONDS", 0.0)
    long = (
        "3 of 8, variational: AgreeStop, every step, target 0.925, K = 16, and words without "
        "an end [bold]"
    )
    with console.progress_bar("digits") as progress:
        progress("3 of 8, variational: epoch 12/18, loss 12.34, accuracy 0.71", 0.5)
        progress(long, 0.6)
        time.sleep(0.15)  # it is drawn ten times a second
    lines = (
        re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).replace("\r", "\n").splitlines()
    )
    assert max(len(line) for line in lines) <= 80
    assert any("3 of 8, variational" in line and " left " in line for line in lines)


def test_a_log_gets_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 0.0, 1.0, 20.0, 21.0])
    monkeypatch.setattr(console, "monotonic", lambda: next(clock))
    monkeypatch.setattr(console, "err", Console(stderr=True, width=200, highlight=False))
    with console.progress_bar("digits") as progress:
        for share in (0.0, 0.1, 0.25, 0.3):
            progress(f"epoch {share:g}", share)
    assert capsys.readouterr().err.splitlines() == [
        "digits, 0%: epoch 0",
        "digits, 25%, 1:35 left: epoch 0.25",
    ]


def test_a_bar_is_full_only_when_the_work_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(
        console, "err", Console(file=screen, force_terminal=True, width=80, highlight=False)
    )
    with console.progress_bar("digits") as progress:
        progress("writing the report", 1.0)
        time.sleep(0.15)  # it is drawn ten times a second
        before = screen.getvalue()
    assert " 99%" in before and "100%" not in before and "100%" in screen.getvalue()
    monkeypatch.setattr(console, "err", Console(stderr=True, width=80, highlight=False))
    with console.progress_bar("digits") as progress:
        progress("writing the report", 1.0)
    assert capsys.readouterr().err == "digits, 99%: writing the report\n"


def test_a_bar_writes_control_characters_out(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(
        console, "err", Console(file=screen, force_terminal=True, width=80, highlight=False)
    )
    with console.progress_bar("title\x1b[35m"):
        pass
    with console.progress_bar("digits") as progress:
        progress("what\x1b[36m\x9b1m", 0.5)
    shown = screen.getvalue()
    assert r"title\x1b[35m" in shown and r"what\x1b[36m\x9b1m" in shown
    assert not any(code in shown for code in ("\x1b[35m", "\x1b[36m", "\x9b"))


def lines_of(table: Table, width: int) -> list[str]:
    """What a terminal of this width shows."""
    screen = io.StringIO()
    console.PlainConsole(file=screen, width=width).print(table)
    return screen.getvalue().splitlines()


def test_a_table_has_no_empty_column_and_breaks_no_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    titles = ("target", "coverage of new inputs", "cost", "mean width", "one time for all of them")
    rows = [("0.9", "0.964 [0.959, 0.970]", "", "2.49 [2.40, 2.51]", "9 [8.25, 9.75]")] * 2
    for width, lines in ((120, 1), (72, 2)):
        monkeypatch.setattr(console, "out", console.PlainConsole(width=width))
        shown = lines_of(console.small_table("rows", titles, rows), width)
        assert max(map(len, shown)) <= width and "cost" not in " ".join(shown)
        for interval in ("[0.959, 0.970]", "[2.40, 2.51]", "[8.25, 9.75]"):
            assert sum(interval in line for line in shown) == len(rows)
        assert sum("0.964 [" in line for line in shown) == len(rows) * (lines == 1)


@pytest.mark.parametrize("columns", ["0", "00", "-5", "\u00b2", "9" * 30, "3"])
def test_useless_sizes_in_the_environment_are_ignored(
    columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 0 columns rich prints nothing at all, and some signs are digits but no numbers."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", columns)
    written = io.StringIO()
    made = console.PlainConsole(file=written, force_terminal=False)
    assert made.width >= 20
    made.print("One sentence.")
    assert written.getvalue() == "One sentence.\n"


def test_a_usual_size_in_the_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "37")
    assert console.PlainConsole(file=io.StringIO(), force_terminal=False).width == 37
