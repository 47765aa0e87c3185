"""The core's tests in environments of their own, which hold agreestop, its three dependencies and
what the tests need.

    python tests/core_check.py lowest          with the lowest supported versions of the
                                               dependencies: those that pyproject.toml names
    python tests/core_check.py 3.11 3.12 3.13  on these Pythons; one that is not installed here is
    skipped with a sentence
    --quick                                    only the tests of the command line and of files

`make lowest` and `make pythons` run this file. The environments are kept in .venv-core and made
again when pyproject.toml changes.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv-core"
QUICK = (
    "tests/cli/test_cli.py",
    "tests/decide/test_score_files.py",
    "tests/decide/test_rule_files.py",
)
# the tests of learned risks need scikit-learn
TOOLS = "pytest>=8", "hypothesis>=6.100", "scikit-learn>=1.4"
TESTS = (
    "tests/decide",
    "tests/cli/test_cli.py",
    "tests/cli/test_console.py",
    "tests/test_public_names.py",
)


def floors() -> list[str]:
    """The dependencies at their lowest supported versions: "numpy==2.1"."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [requirement.replace(">=", "==") for requirement in project["dependencies"]]


def find_python(version: str) -> str | None:
    """The path of a Python of this version, on the search path or among those of pyenv."""
    candidates = [
        f"python{version}",
        *map(str, sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))),
    ]
    for candidate in candidates:
        try:
            done = subprocess.run(
                [candidate, "-c", "import sys; print(sys.executable)"],
                capture_output=True,
                text=True,
                check=True,
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return done.stdout.strip()
    return None


def environment(name: str, python: str, requirements: Sequence[str]) -> str:
    """Make an environment, unless it is there already; the path of its Python."""
    folder, settings = FOLDER / name, (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    inside, stamp = str(folder / "bin" / "python"), folder / "made-with.toml"
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != settings:
        subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--editable", str(ROOT), *requirements, *TOOLS], check=True)
        stamp.write_text(settings, encoding="utf-8")
    return inside


def check(name: str, python: str, requirements: Sequence[str], tests: Sequence[str]) -> int:
    """Run the tests in an environment; the exit code. Old packages may use what newer ones
    deprecate.
    """
    inside = environment(name, python, requirements)
    listed = subprocess.run(
        [inside, "-m", "pip", "list", "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    versions = [
        " ".join(line.split()[:2])
        for line in listed.splitlines()
        if line.split()[0] in ("numpy", "typer", "rich")
    ]
    print(f"{name}: {python}, {', '.join(versions)}", flush=True)
    quiet = ("-p", "no:cacheprovider", "-W", "ignore::DeprecationWarning")
    return subprocess.run(
        [inside, "-m", "pytest", *quiet, *tests], cwd=ROOT, check=False
    ).returncode


def main(words: Sequence[str]) -> int:
    tests = QUICK if "--quick" in words else TESTS
    failed = 0
    for name in words:
        if name == "--quick":
            continue
        python = sys.executable if name == "lowest" else find_python(name)
        if python is None:
            print(f"Python {name} is not installed here: the core was not tested on it.")
            continue
        failed |= check(name, python, floors() if name == "lowest" else [], tests)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
