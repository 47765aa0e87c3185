"""The README's example runs as printed, and the API page is the one that the docstrings make."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_example_of_the_readme_runs(tmp_path: Path) -> None:
    code, _ = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)  # the other needs a finished run
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 0, result.stderr
    assert "at least 0.9" in result.stdout
    assert re.search(r"stopped at \d+ with classes \(", result.stdout)


def test_the_api_page_is_up_to_date(tmp_path: Path) -> None:
    page = ROOT / "docs" / "api.md"
    script = (ROOT / "docs" / "make_api.py").read_text()
    copy = tmp_path / "make_api.py"
    copy.write_text(script)
    subprocess.run([sys.executable, copy], check=True)
    assert (tmp_path / "api.md").read_text() == page.read_text(), "run make docs"


def test_the_reproduction_page_is_that_of_the_results() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "make_reproduction.py"))["page"]()
    assert (ROOT / "docs" / "reproduction.md").read_text() == page, "run make docs"


def test_links_of_the_pages_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name} -> {target}"
