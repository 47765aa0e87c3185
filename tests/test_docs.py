"""The blocks of README and guide and the examples run as printed, and the pages that scripts write
are up to date.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import agreestop as ag

from .scripts import lines_of_code

ROOT = Path(__file__).parents[1]


PRINTED = re.findall(
    r"```python\n(.*?)```\n+```text\n(.*?)```",
    (ROOT / "README.md").read_text(encoding="utf-8"),
    flags=re.DOTALL,
)
BLOCKS = re.findall(
    r"```python\n(.*?)```",
    (ROOT / "docs" / "guide.md").read_text(encoding="utf-8"),
    flags=re.DOTALL,
)
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that `make run` leaves and a block of the README reads: members,
    scores and inputs of the digits.
    """
    pytest.importorskip("torch", reason="the README trains networks, which need PyTorch")
    root = tmp_path_factory.mktemp("readme")
    run = root / "runs" / "digits"
    (run / "deep").mkdir(parents=True)
    data = ag.events.load_data_set("digits")
    network = ag.networks.FullyConnected(data.pool.shape, classes=10, hidden=(16,))
    ensemble = ag.ensembles.DeepEnsemble(network, members=2).fit(
        data.training.inputs[:200], data.training.labels[:200], 1, progress=False
    )
    ensemble.save(run / "deep" / "members.safetensors")
    ag.save_scores(
        run / "deep" / "calibration.npz",
        ensemble.score(data.pool.inputs[:60], data.pool.labels[:60]),
    )
    ag.events.Events.from_dense(data.pool.inputs[60:70]).save(run / "test-inputs.npz")
    return root


def run_code(code: str, folder: Path) -> str:
    """What a script prints; warnings are errors."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_readme_is_short_and_shows_what_its_code_prints(folder: Path) -> None:
    pytest.importorskip("sklearn", reason="the first example is a classifier of scikit-learn")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150 and text.count("```python") == len(PRINTED) == 2
    for code, printed in PRINTED:
        assert run_code(code, folder) == printed


def test_the_guide_has_a_block_for_each_use() -> None:
    assert len(BLOCKS) == 5
    assert sum("live(" in code for code in BLOCKS) == 1


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_blocks_of_the_guide_run(number: int, folder: Path) -> None:
    printed = run_code(BLOCKS[number], folder)
    if "stopped at" in BLOCKS[number]:
        assert re.search(r"stopped at \d+ with classes \(", printed)


RUN_AS_PRINTED = ("abstaining", "numbers", "people", "stop-rule", "time-series", "trees")
"""Pages whose blocks run one after the other; those with other packages or data are left out."""


@pytest.mark.parametrize("name", RUN_AS_PRINTED)
def test_the_blocks_of_a_page_run(name: str, tmp_path: Path) -> None:
    for package in ("matplotlib", "sklearn"):
        pytest.importorskip(package, reason="the pages draw, and some use scikit-learn")
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    code = "\n".join(block for block in blocks if "aeon" not in block)
    assert run_code(code, tmp_path)


# the main job on a file of one's own, which the tests of the command line run too
LONG = ("own_configuration",)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.slow] if path.stem in LONG else [])
        for path in EXAMPLES
    ],
    ids=lambda path: path.stem,
)
def test_the_examples_run_and_are_short(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="most examples train networks, which need PyTorch")
    pytest.importorskip("matplotlib", reason="most examples end in a figure")
    code = path.read_text(encoding="utf-8")
    assert lines_of_code(code) <= 40
    assert run_code(code, tmp_path)


@pytest.mark.parametrize(
    "path", [*EXAMPLES, *(ROOT / "examples" / "adapters").glob("*.py")], ids=lambda path: path.stem
)
def test_an_example_says_for_whom_it_is_draws_and_tells_of_real_data(path: Path) -> None:
    code = path.read_text(encoding="utf-8")
    first = code.split('"""')[1].split("\n\n")[1]
    assert first.startswith("For whoever ") and "ag.plot." in code
    if re.search(r"simulated", first, flags=re.IGNORECASE):
        assert "Measured on real data" in code


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", sorted((ROOT / "tutorials").glob("*.py")), ids=lambda path: path.stem
)
def test_the_tutorials_run(path: Path, tmp_path: Path) -> None:
    for package in ("torch", "matplotlib", "sklearn"):
        pytest.importorskip(package, reason="tutorials train models and draw")
    assert run_code(path.read_text(encoding="utf-8"), tmp_path)


def test_the_tables_of_the_pages_are_up_to_date() -> None:
    pages = runpy.run_path(str(ROOT / "docs" / "make_readme.py"))
    written = (
        "adapters",
        "drift",
        "engines",
        "language-models",
        "microcontroller",
        "nir",
        "promises-measured",
        "reliability-tests",
        "scale",
    )
    others = (
        *("serve-load", "speed", "guide", "paper", "shapes", "mistakes"),
        *("spotting", "spotting-measured"),
    )
    assert set(pages["PAGES"]) == {f"docs/{name}.md" for name in (*written, *others)}
    for path, write in pages["PAGES"].items():
        text = (ROOT / path).read_text(encoding="utf-8")
        assert write(text) == text, "run make docs"


def test_the_configuration_page_is_up_to_date() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "make_configuration.py"))["page"]()
    assert (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8") == page, "run make docs"
    assert all(
        f"## `{table}`" in page for table in ("[data]", "[network]", "[[ensembles]]", "[decide]")
    )


def test_the_reproduction_page_is_up_to_date() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "make_reproduction.py"))["page"]()
    assert (ROOT / "docs" / "reproduction.md").read_text() == page, "run make docs"


LONG_PAGES = ("reproduction",)  # tables of every claim
MOST_WORDS = 2000


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs").rglob("[!_]*.md")), ids=lambda path: path.stem
)
def test_a_page_says_for_whom_it_is_and_is_short(path: Path) -> None:
    title, blank, first, *_ = path.read_text(encoding="utf-8").splitlines()
    assert title.startswith("# ") and not blank and first.startswith("For ")
    words = re.sub(
        r"```.*?```|<!--.*?-->", "", path.read_text(encoding="utf-8"), flags=re.DOTALL
    ).split()
    assert len(words) <= MOST_WORDS or path.stem in LONG_PAGES, (
        "move a section to a page of its own"
    )


def anchors_of(page: Path) -> set[str]:
    """The names that a host of repositories gives to the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.strip().lower()).replace(" ", "-") for one in headings}


def test_links_of_the_pages_exist() -> None:
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        links = re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8"))
        for target, anchor in links:
            if target.startswith(("http", "mailto")):
                continue
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name} -> {target}"
            if anchor and file.suffix == ".md":
                assert anchor in anchors_of(file), f"{page.name} -> {target}#{anchor}"
