"""What is packed and what it needs: the source distribution is small, and the lowest supported
versions are known to the tests.
"""

from __future__ import annotations

import datetime
import re
import tomllib
from pathlib import Path

import pytest

import agreestop as ag
from tests.core_check import TESTS, floors

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_source_distribution_holds_the_source_but_no_results(tmp_path: Path) -> None:
    sdist = pytest.importorskip("hatchling.builders.sdist", reason="packing needs hatchling")
    builder = sdist.SdistBuilder(str(ROOT))
    files = {str(one.relative_path) for one in builder.recurse_included_files()}
    assert {
        "src/agreestop/__init__.py",
        "src/agreestop/report/page.html.j2",
        "tests/core_check.py",
        "README.md",
        "LICENSE",
    } <= files
    assert not [name for name in files if name.startswith(("results", "runs", ".venv"))]
    (archive,) = builder.build(directory=str(tmp_path), versions=["standard"])
    assert Path(archive).stat().st_size < 2_000_000  # of the file that is fetched


def test_every_dependency_has_a_lowest_version_that_is_tested() -> None:
    assert all(re.fullmatch(r"[a-z]+==[\d.]+", floor) for floor in floors())
    assert {floor.partition("==")[0] for floor in floors()} == {"numpy", "typer", "rich"}
    assert all((ROOT / name).exists() for name in TESTS)


def test_the_supported_pythons_are_those_that_are_tested() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    listed = [
        name.rpartition(" ")[2]
        for name in PROJECT["classifiers"]
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", name)
    ]
    assert f"PYTHONS := {' '.join(listed)}\n" in makefile
    assert PROJECT["requires-python"] == f">={listed[0]}"


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_file_names_the_same_version_and_date() -> None:
    version = PROJECT["version"]
    assert ag.__version__ == version, "install the package anew"
    assert re.search(r'^  version: "(.*)"$', read("conda/meta.yaml"), re.MULTILINE)[1] == version  # type: ignore[index]
    assert re.search(r"^version: (.*)$", read("CITATION.cff"), re.MULTILINE)[1] == version  # type: ignore[index]
    top = re.search(r"^## (\S+), (\S+)$", read("CHANGELOG.md"), re.MULTILINE)
    assert top is not None and top[1] == version
    assert f'date-released: "{datetime.date.fromisoformat(top[2])}"' in read("CITATION.cff")


def test_the_conda_recipe_needs_what_the_package_needs() -> None:
    listed = {line.strip(" -").replace(" ", "") for line in read("conda/meta.yaml").splitlines()}
    assert set(PROJECT["dependencies"]) <= listed
    assert f"python{PROJECT['requires-python']}" in listed
    assert {f"{name}={function}" for name, function in PROJECT["scripts"].items()} <= listed
    extras = {
        one.partition(";")[0]
        for name in ("networks", "engines", "learn", "serve")
        for one in PROJECT["optional-dependencies"][name]
    }
    conda = {"torch>=2.6": "pytorch>=2.6"}
    assert {conda.get(one, one) for one in extras if not one.startswith("agreestop")} <= listed


def test_packages_whose_inner_parts_are_used_have_upper_bounds() -> None:
    extras = [one for some in PROJECT["optional-dependencies"].values() for one in some]
    for name in ("numba", "uvicorn", "websockets", "triton"):
        given = [one for one in extras if re.match(rf"{name}\b", one)]
        assert given and all(re.search(r",<\d", one) for one in given), name


def test_the_image_of_the_server_gets_what_it_needs() -> None:
    recipe = read("Dockerfile")
    assert (
        {*re.findall(r"'\.\[(\w+)\]'", recipe)}
        == {"serve"}
        <= PROJECT["optional-dependencies"].keys()
    )
    python = re.search(r"^FROM python:(.*)-slim$", recipe, re.MULTILINE)
    assert (
        python is not None
        and f"Programming Language :: Python :: {python[1]}" in PROJECT["classifiers"]
    )
    sent = {line.strip("!") for line in read(".dockerignore").splitlines() if line.startswith("!")}
    copied = {
        name
        for line in re.findall(r"^COPY (.*) \S+$", recipe, re.MULTILINE)
        for name in line.split()
    }
    assert copied == sent and all((ROOT / name).exists() for name in sent)


def test_no_page_installs_from_pypi_before_the_release() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    for page in pages:
        if page.name in ("CHANGELOG.md", "CONTRIBUTING.md"):  # these say how a release is made
            continue
        text = page.read_text(encoding="utf-8")
        for found in re.finditer(r"pip install '?agreestop", text):
            around = text[max(found.start() - 60, 0) : found.end() + 60]
            assert re.search(r"\brelease\b", around), f"{page.name}: {around}"
