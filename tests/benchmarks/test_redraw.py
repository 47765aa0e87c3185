"""Stored figures have the colours that are drawn today, and are drawn again from stored numbers."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="figures need matplotlib")
pytest.importorskip("torch", reason="the benchmarks need PyTorch")

from agreestop.common import InputError
from benchmarks.redraw import redraw

RESULTS = Path(__file__).parents[2] / "results"
NUMBERS = (
    "answers.json",
    "bench/live.json",
    "early-classification/numbers.json",
    "fig7/numbers.json",
    "numbers.json",
    "people.json",
    "tree.json",
)


def colours_of(path: Path) -> set[str]:
    return set(re.findall("#[0-9a-f]{6}", path.read_text(encoding="utf-8").lower()))


def test_stored_figures_have_the_colours_of_today(tmp_path: Path) -> None:
    for name in NUMBERS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(RESULTS / name, tmp_path / name)
    written = redraw(tmp_path)
    drawn = [path for path in written if path.suffix == ".svg"]
    assert len(drawn) == len(NUMBERS) and all(path.stat().st_size for path in written)
    for path in drawn:
        assert colours_of(path) == colours_of(RESULTS / path.relative_to(tmp_path)), path


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no stored results"):
        redraw(tmp_path)
