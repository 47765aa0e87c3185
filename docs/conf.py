"""The site: `make site` builds these pages with Sphinx into site/. Nothing in it is loaded from
another host.
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

import agreestop

HERE = Path(__file__).parent
ROOT = HERE.parent
SCRIPTS = {"examples": "gallery", "tutorials": "tutorials"}
"""Folders of scripts, and the folders of their pages."""
NOT_RUN = {"own_configuration"}  # the main job on own data, minutes
sys.path.insert(0, str(HERE))
from api_pages import process_docstring, process_signature, skip_member  # noqa: E402

# its public name; the module lies in agreestop.report
sys.modules["agreestop.plot"] = agreestop.plot

project = "agreestop"
author = "The agreestop authors"
version = release = agreestop.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["Thumbs.db", "_build"]
templates_path = ["_templates"]
autosummary_generate = True
autosummary_ignore_module_all = False
autosummary_imported_members = True
numpydoc_show_class_members = False
default_role = "code"
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist", "attrs_block"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # transcripts of terminals are no valid source

_RUN = ROOT / "runs" / "digits"  # `make site` makes it where it is missing
html_extra_path = [
    str(_RUN / name) for name in ("demo.html", "report.html") if (_RUN / name).is_file()
]
if len(html_extra_path) == 2:
    tags.add("run")  # noqa: F821, Sphinx gives it

html_theme = "pydata_sphinx_theme"
html_title = "agreestop"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_math_renderer = "mathml"
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "navbar_center": ["navbar-nav", "api-link"],
    "navbar_end": ["theme-switcher"],
    "show_prev_next": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
copyright = "The agreestop authors. Apache-2.0"


def _runs(script: Path) -> bool:
    """Whether all that a script imports is installed."""
    nodes = list(ast.walk(ast.parse(script.read_text(encoding="utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return script.stem not in NOT_RUN and all(find_spec(name.partition(".")[0]) for name in names)


scripts = [path for folder in SCRIPTS for path in (ROOT / folder).rglob("*.py")]
COPIES = ROOT / "build" / "scripts"
for folder in SCRIPTS:  # scripts write files beside them
    shutil.rmtree(COPIES / folder, ignore_errors=True)
    shutil.copytree(
        ROOT / folder, COPIES / folder, ignore=shutil.ignore_patterns("*.toml", "__pycache__")
    )
newest = max(path.stat().st_mtime for path in (ROOT / "src").rglob("*.py"))
for folder in SCRIPTS.values():
    for ran in (HERE / folder).rglob("*.md5"):  # without it sphinx-gallery runs a script again
        if ran.stat().st_mtime < newest:
            ran.unlink()
sphinx_gallery_conf = {
    "examples_dirs": [str(COPIES / folder) for folder in SCRIPTS],
    "gallery_dirs": list(SCRIPTS.values()),
    "filename_pattern": "|".join(rf"/{path.stem}\.py" for path in scripts if _runs(path)),
    "within_subsection_order": "ExampleTitleSortKey",
    "capture_repr": ("_repr_html_",),
    "write_computation_times": False,
    "download_all_examples": False,
    "show_signature": False,
}


def _link_scripts(app: Sphinx, name: str, source: list[str]) -> None:
    """Links of pages to a script lead to its page, which shows what it prints and draws."""
    for folder, pages in SCRIPTS.items():
        source[0] = re.sub(rf"\]\(\.\./{folder}/(\w[\w/]*)\.py\)", rf"]({pages}/\1.rst)", source[0])
        source[0] = re.sub(rf"\]\(\.\./{folder}\)", rf"]({pages}/index.rst)", source[0])


def _write_math(as_block: bool) -> Any:
    """A visitor that writes a formula as MathML, which browsers draw without a script."""

    def visit(translator: Any, node: Any) -> None:
        written = tex2mathml(node.astext(), as_block=as_block)
        translator.body.append(f'<div class="formula">{written}</div>' if as_block else written)
        raise SkipNode

    return visit


def _name_buttons(app: Sphinx, exception: Exception | None) -> None:
    """Give the theme's arrows the name that screen readers say, and the search button all of its
    text.
    """
    for page in Path(app.outdir).rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        named = text.replace("<summary><span", '<summary aria-label="Pages below"><span')
        named = named.replace(
            'aria-label="Search" data-bs-placement', 'aria-label="Search Ctrl+K" data-bs-placement'
        )
        if named != text:
            page.write_text(named, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.connect("build-finished", _name_buttons)
    app.add_html_math_renderer("mathml", (_write_math(False), None), (_write_math(True), None))
    app.connect("source-read", _link_scripts)
    app.connect("autodoc-process-docstring", process_docstring, priority=400)  # before numpydoc
    app.connect("autodoc-process-signature", process_signature)
    app.connect("autodoc-skip-member", skip_member)
