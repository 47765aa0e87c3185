"""What is packed and what it needs: the source distribution is small, and the lowest supported versions are known to the tests."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.core_check import TESTS, floors

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_source_distribution_holds_the_source_but_no_results(tmp_path: Path) -> None:
    sdist = pytest.importorskip("hatchling.builders.sdist", reason="packing needs hatchling")
    builder = sdist.SdistBuilder(str(ROOT))
    files = {str(one.relative_path) for one in builder.recurse_included_files()}
    assert {"src/agreestop/__init__.py", "src/agreestop/report/page.html.j2", "tests/core_check.py", "README.md", "LICENSE"} <= files
    assert not [name for name in files if name.startswith(("results", "runs", ".venv"))]
    (archive,) = builder.build(directory=str(tmp_path), versions=["standard"])
    assert Path(archive).stat().st_size < 2_000_000  # of the file that is fetched


def test_every_dependency_has_a_lowest_version_that_is_tested() -> None:
    assert all(re.fullmatch(r"[a-z]+==[\d.]+", floor) for floor in floors())
    assert {floor.partition("==")[0] for floor in floors()} == {"numpy", "typer", "rich"}
    assert all((ROOT / name).exists() for name in TESTS)


def test_the_supported_pythons_are_those_that_are_tested() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    listed = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", name)]
    assert f"PYTHONS := {' '.join(listed)}\n" in makefile
    assert PROJECT["requires-python"] == f">={listed[0]}"
