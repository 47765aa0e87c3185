"""The site builds without a warning, and what it shows comes from itself."""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import agreestop as ag
from tests.export.test_page import browser  # noqa: F401, a fixture
from tests.test_docs import LONG_PAGES, MOST_WORDS

MADE = ("genindex", "py-modindex", "search", "demo", "report")
"""Pages that are not written for the site."""

ROOT = Path(__file__).parents[1]
GROUPS = ("Start", "Watch", "Guides", "Guarantee", "Engines and deployment", "Reproduction")
RAN = "own_arrays"
UNTRACKED = ("gallery", "tutorials", "generated", "__pycache__")
LOADED = re.compile(
    r"<(?:script|link|img|iframe|source|video|audio|object|embed)\b[^>]*?(?:src|href|data)=[\"'](https?:)?//",
    re.IGNORECASE,
)
LOADED_BY_STYLE = re.compile(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", re.IGNORECASE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, where only one script of the gallery runs."""
    pytest.importorskip("sphinx", reason="the site is built by Sphinx")
    pytest.importorskip("torch", reason="the site describes packages that need PyTorch")
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns(*UNTRACKED))
    for path in ROOT.iterdir():  # pages without output never lie beside those of `make site`
        if path.is_dir() and path.name not in ("docs", "build", "site"):
            (folder / path.name).symlink_to(path)
        elif (
            path.suffix == ".md"
        ):  # copied, because a link to a page is followed from where the page lies
            shutil.copy(path, folder)
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-E",
        "-W",
        "-D",
        rf"sphinx_gallery_conf.filename_pattern=/{RAN}\.py",
        "--keep-going",
        "-q",
        "-d",
        str(folder / "doctrees"),
        "docs",
        str(folder / "site"),
    ]
    built = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert built.returncode == 0, built.stderr
    return folder / "site"


@pytest.mark.slow
def test_the_site_has_its_groups_and_loads_nothing_from_elsewhere(site: Path) -> None:
    first = (site / "index.html").read_text(encoding="utf-8")
    shown = re.findall(
        r'class="nav-link nav-internal" href="groups/[^"]*">\s*([^<]*?)\s*</a>', first
    )
    assert tuple(dict.fromkeys(shown)) == GROUPS
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    assert [page.name for page in pages if LOADED.search(page.read_text(encoding="utf-8"))] == []
    assert [
        style.name
        for style in site.rglob("*.css")
        if LOADED_BY_STYLE.search(style.read_text(encoding="utf-8"))
    ] == []


@pytest.mark.slow
def test_buttons_have_names_that_screen_readers_say(site: Path) -> None:
    page = (site / "api" / "generated" / "agreestop.AgreeStop.html").read_text(encoding="utf-8")
    arrows = re.findall(r"<summary\b[^>]*>", page)
    assert arrows and all("aria-label=" in arrow for arrow in arrows)
    assert not re.search(
        r'search-button__button[^>]*aria-label="Search"[^>]*>\s*<i[^>]*></i>\s*<span', page
    )


def test_the_list_of_the_decision_layer_has_every_public_name() -> None:
    listed = re.findall(
        r"^   (\w+)$",
        (ROOT / "docs" / "api" / "decide.rst").read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    assert sorted(listed) == sorted([*ag.__all__, "write_report"])


@pytest.mark.slow
def test_every_public_name_has_a_page_with_the_types_of_the_source(site: Path) -> None:
    pages = site / "api" / "generated"
    for package in (
        "",
        "adapters.",
        "cluster.",
        "engines.",
        "ensembles.",
        "events.",
        "export.",
        "networks.",
        "plot.",
        "serve.",
    ):
        names = (getattr(ag, package[:-1]) if package else ag).__all__
        assert [
            name for name in names if not (pages / f"agreestop.{package}{name}.html").exists()
        ] == []
    for page in pages.glob("*.html"):
        assert not re.search(
            r" at 0x|&lt;factory&gt;|numpy\._typing|Union\[", page.read_text(encoding="utf-8")
        ), page.name


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://x.org/a.js">',
        "<img alt='' src='//x.org/a.png'>",
        '<link rel="stylesheet" href="http://x.org/a.css">',
    ],
)
def test_what_is_loaded_from_elsewhere_is_found(text: str) -> None:
    assert (
        LOADED.search(text)
        and not LOADED.search('<a href="https://x.org/">')
        and LOADED_BY_STYLE.search("url('https://x.org/f.woff')")
    )


class Page(HTMLParser):
    """The names, links, and text of a page's article without its code."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.text: list[str] = []
        self.inside: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.names |= {value for name in ("id", "name") if (value := given.get(name))}
        self.links += [value for name in ("href", "src") if (value := given.get(name))]
        if tag in ("article", "pre"):
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.inside:
            self.inside.remove(tag)

    def handle_data(self, data: str) -> None:
        if self.inside == ["article"]:
            self.text.append(data)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    return {path.relative_to(site).as_posix(): Page(path) for path in site.rglob("*.html")}


@pytest.mark.slow
def test_links_within_the_site_lead_somewhere(site: Path, pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        for link in page.links:
            path, _, part = unquote(link).partition("#")
            if re.match(r"[a-z]+:", path) or path in ("demo.html", "../demo.html"):
                continue
            target = (
                posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
            )
            assert (site / target.partition("?")[0]).exists(), f"{name} -> {link}"
            assert not part or target not in pages or part in pages[target].names, (
                f"{name} -> {link}"
            )


@pytest.mark.slow
def test_every_page_says_for_whom_it_is_and_is_short(pages: dict[str, Page]) -> None:
    made = [
        name
        for name in pages
        if not name.startswith("api/generated") and Path(name).stem not in MADE
    ]
    for name in made:
        lines = [line for text in "".join(pages[name].text).split("\n") if (line := text.strip())]
        assert any(line.startswith("For ") for line in lines[:4]), name
        if Path(name).stem not in LONG_PAGES:
            assert len(" ".join(lines).split()) <= MOST_WORDS, name


@pytest.mark.slow
def test_the_first_mention_of_a_word_leads_to_the_glossary(
    site: Path, pages: dict[str, Page]
) -> None:
    for name, term in (
        ("guide.html", "checkpoint-look"),
        ("shapes.html", "guarantee-promise"),
        ("tutorials/embedded.html", "checkpoint-look"),
    ):
        assert [link for link in pages[name].links if link.endswith(f"glossary.html#{term}")] != []
        written = (site / name).read_text(encoding="utf-8")
        assert len(re.findall(rf'glossary.html#{term}" title="[A-Z]', written)) == 1
    assert pages["speed.html"].links.count("_images/cpu.png") == 2  # the picture, and a link to it
    ran = (site / "gallery" / f"{RAN}.html").read_text(encoding="utf-8")
    blocks = re.findall(r"<pre\b.*?</pre>", ran, flags=re.DOTALL)
    assert "checkpoints" in "".join(blocks) and "sphx-glr-backref" in "".join(blocks)
    assert not any("glossary.html" in block for block in blocks)  # code is no text


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_axe_finds_no_serious_fault(
    site: Path,
    pages: dict[str, Page],
    browser: Any,  # noqa: F811
    width: int,
    scheme: str,
) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.base", reason="axe is missing: pip install 'agreestop[test]'"
    ).AXE_FILE_PATH
    view = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True
    )
    tab, found, one = view.new_page(), {}, "api/generated/agreestop.AgreeStop.html"
    for name in pages:
        if name == one or not name.startswith(("api/generated", "_")):
            tab.goto((site / name).as_uri())
            tab.add_script_tag(path=axe)
            faults = tab.evaluate("axe.run()")["violations"]
            found[name] = [
                (fault["id"], fault["nodes"][0]["target"])
                for fault in faults
                if fault["impact"] in ("serious", "critical")
            ]
    view.close()
    assert {name: faults for name, faults in found.items() if faults} == {}
