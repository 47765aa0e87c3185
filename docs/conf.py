"""The site: `make site` builds these pages with Sphinx into site/. Nothing in it is loaded from another host."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

import agreestop

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from api_pages import process_docstring, process_signature, skip_member  # noqa: E402

sys.modules["agreestop.plot"] = agreestop.plot  # its public name; the module lies in agreestop.report

project = "agreestop"
author = "The agreestop authors"
version = release = agreestop.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc"]
exclude_patterns = ["Thumbs.db", "_build"]
templates_path = ["_templates"]
autosummary_generate = True
autosummary_ignore_module_all = False
autosummary_imported_members = True
numpydoc_show_class_members = False
default_role = "code"
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # transcripts of terminals are no valid source

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


def _write_math(as_block: bool) -> Any:
    """A visitor that writes a formula as MathML, which browsers draw without a script."""

    def visit(translator: Any, node: Any) -> None:
        translator.body.append(tex2mathml(node.astext(), as_block=as_block))
        raise SkipNode

    return visit


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.add_html_math_renderer("mathml", (_write_math(False), None), (_write_math(True), None))
    app.connect("autodoc-process-docstring", process_docstring, priority=400)  # before numpydoc
    app.connect("autodoc-process-signature", process_signature)
    app.connect("autodoc-skip-member", skip_member)
