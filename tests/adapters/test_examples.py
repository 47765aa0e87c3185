"""The scripts of examples/adapters run and are short."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.scripts import lines_of_code

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples" / "adapters").glob("*.py")), ids=lambda path: path.stem
)
def test_an_example_runs_and_is_short(path: Path, tmp_path: Path) -> None:
    code = path.read_text(encoding="utf-8")
    assert lines_of_code(code) <= 40
    nodes = list(ast.walk(ast.parse(code)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    missing = sorted(
        name for name in {name.partition(".")[0] for name in names} if find_spec(name) is None
    )
    if missing and not os.environ.get("AGREESTOP_PEERS"):
        pytest.skip(f"{', '.join(missing)} is not installed: `make peers` runs this example")
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "coverage" in result.stdout
