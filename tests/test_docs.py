"""The README's example runs as printed, and the pages that scripts write are up to date."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import agreestop as ag

ROOT = Path(__file__).parents[1]


def test_the_example_of_the_readme_runs(tmp_path: Path) -> None:
    code, _ = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)  # the other needs a finished run
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 0, result.stderr
    assert "at least 0.9" in result.stdout
    assert re.search(r"stopped at \d+ with classes \(", result.stdout)


@pytest.fixture(scope="module")
def api() -> str:
    """The API page as its script writes it now."""
    pytest.importorskip("torch", reason="the page describes the packages that need PyTorch")
    page: str = runpy.run_path(str(ROOT / "docs" / "make_api.py"))["page"]()
    return page


def test_the_api_page_is_up_to_date(api: str) -> None:
    assert (ROOT / "docs" / "api.md").read_text(encoding="utf-8") == api, "run make docs"


def test_the_api_page_has_every_public_name(api: str) -> None:
    for name in ag.__all__:
        assert f"### `{name}`" in api
    for package in ("events", "networks", "engines", "ensembles"):
        for name in getattr(ag, package).__all__:
            assert f"### `ag.{package}.{name}`" in api
    assert " at 0x" not in api and "<factory>" not in api


def test_the_reproduction_page_is_up_to_date() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "make_reproduction.py"))["page"]()
    assert (ROOT / "docs" / "reproduction.md").read_text() == page, "run make docs"


def test_links_of_the_pages_exist() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name} -> {target}"
