"""The site: `make site` builds these pages with Sphinx into site/. Nothing in it is loaded from another host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

import agreestop

ROOT = Path(__file__).parents[1]

project = "agreestop"
author = "The agreestop authors"
version = release = agreestop.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc"]
exclude_patterns = ["Thumbs.db", "_build"]
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
