"""The site: `make site` builds these pages with Sphinx into site/. Nothing in it is loaded from
another host.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util.osutil import relative_uri

import agreestop

HERE = Path(__file__).parent
ROOT = HERE.parent
SCRIPTS = {"examples": "gallery", "tutorials": "tutorials"}
"""Folders of scripts, and the folders of their pages."""
sys.path.insert(0, str(HERE))
# scripts call `agreestop`, also where the environment is not activated
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
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
toc_object_entries_show_parents = "hide"
copyright = "The agreestop authors. Apache-2.0"


def _runs(script: Path) -> bool:
    """Whether all that a script imports is installed."""
    nodes = list(ast.walk(ast.parse(script.read_text(encoding="utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return all(find_spec(name.partition(".")[0]) for name in names)


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
    "remove_config_comments": True,
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
        translator.body.append(
            f'<div class="formula" tabindex="0">{written}</div>' if as_block else written
        )
        raise nodes.SkipNode

    return visit


GLOSSARY = "glossary"
EXPLAINED = {
    "guarantee-promise": re.compile(r"\b(?:guarantees?|promise)\b"),
    "checkpoint-look": re.compile(r"\bcheckpoints?\b"),
}
"""Terms of the glossary, and the words that a page explains where they stand first."""
NO_TEXT = (nodes.title, nodes.literal, nodes.literal_block, nodes.reference, nodes.table, nodes.raw)
CODE_OF_GALLERY = "code_links_block"  # sphinx-gallery's own node for code whose names are links


def _explain_words(app: Sphinx, page: nodes.document, name: str) -> None:
    """Let the first mention of a word in the text of a page lead to the glossary.

    Its tooltip is the first sentence there.
    """
    if name == GLOSSARY:
        for term in page.findall(nodes.term):
            term["ids"].append(nodes.make_id(term.astext()))
        return
    known = {
        nodes.make_id(item[0].astext()): item[1].astext().partition(".")[0].replace("\n", " ")
        for item in app.env.get_doctree(GLOSSARY).findall(nodes.definition_list_item)
    }
    for term, word in EXPLAINED.items():
        for text in page.findall(nodes.Text):
            found = word.search(text)
            if found is None or _stands_in_no_text(text):
                continue
            target = f"{app.builder.get_relative_uri(name, GLOSSARY)}#{term}"
            link = nodes.reference("", found[0], refuri=target, internal=True, reftitle=known[term])
            around = (nodes.Text(text[: found.start()]), link, nodes.Text(text[found.end() :]))
            text.parent.replace(text, list(around))
            break


def _stands_in_no_text(node: nodes.Node) -> bool:
    """Whether a node is part of a title, of code, of a link or of a table."""
    while (node := node.parent) is not None:
        if isinstance(node, NO_TEXT) or node.tagname == CODE_OF_GALLERY:
            return True
    return False


def _link_pictures(app: Sphinx, page: nodes.document, name: str) -> None:
    """Let every picture of a page lead to its file, where a wide figure can be read."""
    for picture in list(page.findall(nodes.image)):
        known = app.env.images.get(picture["uri"])
        named = picture.get("alt")  # thumbnails of the gallery have none, and are links already
        if known is None or not named or isinstance(picture.parent, nodes.reference):
            continue
        file = relative_uri(app.builder.get_target_uri(name), f"{app.builder.imagedir}/{known[1]}")
        link = nodes.reference("", "", refuri=file, internal=True, classes=["image-reference"])
        picture.replace_self(link)
        link += picture


def _drop_notes(app: Sphinx, page: nodes.document) -> None:
    """Take away sphinx-gallery's note above a title, "Go to the end": a page begins with its title
    and whom it is for, and the downloads at its end are easy to find.
    """
    for note in list(page.findall(nodes.note)):
        if "sphx-glr-download-link-note" in note["classes"]:
            note.parent.remove(note)


def _name_buttons(app: Sphinx, exception: Exception | None) -> None:
    """Give the theme's arrows the name that screen readers say, and the search button all of its
    text; leave out a template that the theme ships as if it were a page.
    """
    (Path(app.outdir) / "_static" / "webpack-macros.html").unlink(missing_ok=True)
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
    app.connect("doctree-read", _drop_notes)
    app.connect("doctree-resolved", _explain_words)
    app.connect("doctree-resolved", _link_pictures)
    app.connect("autodoc-process-docstring", process_docstring, priority=400)  # before numpydoc
    app.connect("autodoc-process-signature", process_signature)
    app.connect("autodoc-skip-member", skip_member)
