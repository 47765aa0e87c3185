"""How the command line ends early: one sentence on standard error, no traceback, and no control
characters from files.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.table import Table

import agreestop as ag
from agreestop.cli import console
from tests.cli.test_cli import call

PROGRAM = "from agreestop.cli import main; main()"
RED = "\x1b[31m"


def start(
    *words: str, code: str = PROGRAM, stdout: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own; `code` may do something before."""
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("words", [("--help",), ("data", "list")])
def test_a_full_standard_output_is_one_sentence(words: tuple[str, ...]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        done = start(*words, stdout=full)
    finally:
        os.close(full)
    assert done.returncode == 1
    assert done.stderr == "agreestop: cannot use standard output: No space left on device.\n"


def test_ctrl_c_while_the_packages_load_leaves_no_traceback() -> None:
    """Ctrl-C comes while typer is imported. What is imported before the command line can catch it
    is small.
    """
    interrupt = """
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
"""
    done = start(code=interrupt + PROGRAM)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    loaded = start(
        code="import sys, agreestop.cli; print('numpy' in sys.modules, 'typer' in sys.modules)"
    )
    assert loaded.stdout.split() == ["False", "False"]


def test_text_is_printed_without_control_characters_and_markup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(
        console,
        "out",
        console.PlainConsole(file=screen, force_terminal=True, width=80, color_system=None),
    )
    table = Table(title=f"{RED}title")
    table.add_column(f"{RED}[bold]column")
    table.add_row("[red]cell\x9b1m\u202e")
    console.show(f"a line\n{RED}and [bold]another\x07", table)
    console.show_written(f"{RED}name")
    assert not {"\x1b", "\x9b", "\x07", "\u202e"} & set(screen.getvalue())
    shown = (
        r"\x1b[31mtitle",
        r"\x1b[31m[bold]column",
        r"[red]cell\x9b1m\u202e",
        "a line\n",
        r"another\x07",
        r"Wrote \x1b[31mname",
    )
    assert all(words in screen.getvalue() for words in shown)


def test_class_names_of_a_file_cannot_write_to_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether names with control characters are accepted or refused, they are not printed raw, in
    any format.
    """
    scores = ag.simulate_scores(120, C=2)
    times = np.array(scores.times)
    for name, rows in (("calibration", slice(0, 60)), ("test", slice(60, None))):
        assert scores.labels is not None
        arrays: dict[str, Any] = {
            "log_confidence": scores.log_confidence[rows],
            "labels": scores.labels[rows],
            "times": times,
        }
        np.savez(tmp_path / f"{name}.npz", **arrays, classes=np.array([f"{RED}a", "b\x9b1m"]))
    printed = ""
    for words in (
        ("calibrate", tmp_path / "calibration.npz", "-o", tmp_path / "rule"),
        ("decide", tmp_path / "rule", tmp_path / "test.npz"),
        ("evaluate", tmp_path / "rule", tmp_path / "test.npz"),
        ("evaluate", tmp_path / "rule", tmp_path / "test.npz", "--json"),
        ("calibrate", tmp_path / f"{RED}none.npz", "-o", tmp_path / "other"),
        ("data", "check", f"{RED}mnist"),
    ):
        outcome = call(monkeypatch, capsys, *words)
        printed += outcome.out + outcome.err
    assert not {"\x1b", "\x9b"} & set(printed)


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (("calibrate", "x.npz", "--alpha", "0.1"), "--target 0.9 (one minus alpha)"),
        (("calibrate", "x.npz", "--confidence-level=0.9"), "give --target 0.9"),
        (("calibrate", "x.npz", "--rule", "spotter", "--alpha", "0.1"), "--false-alarms"),
        (("evaluate", "x.rule", "x.npz", "--alpha", "0.1"), "the rule has its target"),
    ],
    ids=["alpha", "confidence-level", "spotter", "evaluate"],
)
def test_other_names_of_the_target_lead_to_it(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    advice: str,
) -> None:
    ended = call(monkeypatch, capsys, *words)
    assert ended.code == 2 and advice in ended.err
