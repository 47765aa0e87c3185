"""`agreestop data`: the list reads well on a narrow terminal, checks tell by their exit code,
simulated parts are files that load.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agreestop.cli import console
from agreestop.cli import data as verbs
from agreestop.events import DATA_SETS, EventSplits, load_events
from tests.cli.test_cli import call


def test_the_list_fits_eighty_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "out", console.PlainConsole(width=80))
    outcome = call(monkeypatch, capsys, "data", "list")
    assert outcome.code == 0, outcome.err
    assert max(map(len, outcome.out.splitlines())) <= 80
    words = " ".join(outcome.out.replace("│", " ").split())
    for entry in DATA_SETS:
        assert entry.name in words and (entry.address or "agreestop data simulate") in words
        assert " + ".join(f"{size:,}" for size in entry.sizes) in words
    assert words.count("(simulated)") == 2 and "(162 MB)" in words


def test_a_check_tells_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = call(monkeypatch, capsys, "data", "check", "digits")
    assert whole.code == 0 and "digits is whole." in whole.out
    missing = call(monkeypatch, capsys, "data", "check", "cifar10", tmp_path)
    assert missing.code == 1 and "Problem: there is no file test_batch.bin" in missing.out
    assert "md5 of cifar-10-binary.tar.gz is c32a1d4ab5d03f1284b67883e8d87530" in missing.out
    np.savez(tmp_path / "braille7.npz", x=np.zeros((20, 128, 2), bool), y=np.arange(20) % 7)
    found = call(monkeypatch, capsys, "data", "check", "braille", tmp_path)
    assert found.code == 0 and "Found: 20 spike trains of 7 classes." in found.out
    for digit in range(10):
        (tmp_path / "Test" / str(digit)).mkdir(parents=True)
        (tmp_path / "Test" / str(digit) / "00001.bin").write_bytes(b"12345")
    partial = call(monkeypatch, capsys, "data", "check", "n-mnist", tmp_path)
    assert (
        partial.code == 1
        and "10 of 10,000 test recordings" in partial.out
        and "can be used as it is" in partial.out
    )
    unknown = call(monkeypatch, capsys, "data", "check", "mnist")
    assert unknown.code == 2 and "there is no data set 'mnist'" in unknown.err


def test_simulated_parts_are_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = call(
        monkeypatch,
        capsys,
        "data",
        "simulate",
        "digits",
        "--small",
        "--seed",
        4,
        "-o",
        tmp_path / "new" / "digits",
    )
    assert outcome.code == 0, outcome.err
    for name, count in (("training", 90), ("tuning", 30), ("pool", 59)):
        part = load_events(tmp_path / "new" / "digits" / f"{name}.npz")
        assert len(part) == count and part.simulated and part.name == f"digits, {name}"
        assert f"{name}.npz: {count} simulated inputs of 2 × 16 × 16, T = 80" in outcome.out


def test_the_other_simulations_get_their_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[Any, ...]] = []

    def load(name: str, folder: Path | None, seed: int, **settings: Any) -> EventSplits:
        asked.append((name, folder, seed, settings["sizes"]))
        raise KeyboardInterrupt

    monkeypatch.setattr(verbs, "load", load)
    stopped = call(
        monkeypatch,
        capsys,
        "data",
        "simulate",
        "mnist-dvs-sim",
        "--mnist",
        tmp_path,
        "-o",
        tmp_path,
    )
    assert stopped.code == 130 and "no incomplete file was left behind" in stopped.err
    call(
        monkeypatch,
        capsys,
        "data",
        "simulate",
        "mnist-dvs-sim",
        "--mnist",
        tmp_path,
        "--seed",
        3,
        "--small",
        "-o",
        tmp_path,
    )
    assert asked == [
        ("mnist-dvs-sim", tmp_path, 0, (8_000, 1_000, 2_000)),
        ("mnist-dvs-sim", tmp_path, 3, (800, 100, 200)),
    ]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (
            ("mnist-dvs",),
            "mnist-dvs is recorded, not simulated: choose one of digits, mnist-dvs-sim",
        ),
        (
            ("mnist-dvs-sim",),
            "--mnist is missing: give the folder with MNIST's train-images-idx3-ubyte",
        ),
        (("digits", "--mnist", "."), "digits does not need MNIST: leave it out"),
        (("numbers",), "there is no data set 'numbers'"),
    ],
)
def test_what_cannot_be_simulated_is_said(
    words: tuple[str, ...],
    match: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcome = call(monkeypatch, capsys, "data", "simulate", *words, "-o", tmp_path / "new")
    assert outcome.code == 2 and match in outcome.err
    assert not (tmp_path / "new").exists()
