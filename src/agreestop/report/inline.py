"""Figures and pictures of inputs as parts of a page: SVG in the colours of the page, and small PNG as data addresses."""

import base64
import io
import re
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.image import imsave

from agreestop.common import Floats

# matplotlib writes these colours; the page defines each for light and dark screens.
PAGE_COLOURS = {
    "#000000": "currentColor",
    "#1a1a1a": "currentColor",
    "#ffffff": "var(--card)",
    "#b0b0b0": "var(--muted-ink)",
    "#0072b2": "var(--line-blue)",
}
FIRST, SECOND = (43, 143, 214), (224, 98, 38)  # ON and OFF events, or positive and negative values


def inline_svg(figure: Figure, prefix: str, words: str) -> str:
    """A figure as an SVG element without metadata, with letters as text, unique ids and the colours of the page; `words` describe it."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    for element in root.iter():
        element.tag = _local(element.tag)
        for child in [child for child in element if _local(child.tag) in ("metadata", "style")]:
            element.remove(child)
        element.attrib = {_local(name): _page_value(_local(name), value, prefix) for name, value in element.attrib.items()}
        element.text, element.tail = _unless_blank(element.text), _unless_blank(element.tail)
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib |= {"role": "img", "aria-label": words}
    return ElementTree.tostring(root, encoding="unicode")


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _unless_blank(text: str | None) -> str | None:
    return text if text and text.strip() else None


def _page_value(name: str, value: str, prefix: str) -> str:
    if name == "id":
        return f"{prefix}-{value}"
    if name == "href":
        return value.replace("#", f"#{prefix}-")
    value = re.sub(r"url\(#", f"url(#{prefix}-", value)
    if name == "style":
        value = re.sub(r"font-family: [^;]*", "font-family: inherit", value)
        value = re.sub("#[0-9a-f]{6}", lambda found: on_page(found[0]), value, flags=re.IGNORECASE)
    return value


def on_page(colour: str) -> str:
    """The colour as the page writes it."""
    return PAGE_COLOURS.get(colour.lower(), colour)


def input_picture(planes: Floats, most: float) -> str:
    """A picture (planes, H, W) of an input as a PNG data address, one pixel for each cell.

    Three planes are red, green and blue from 0 to 255. With one or two, the colour says which plane is larger at a cell, and the
    opacity how large their sum is compared with `most`.
    """
    pixels = np.zeros((*planes.shape[1:], 4), dtype=np.uint8)
    if len(planes) == 3:
        pixels[..., :3], pixels[..., 3] = np.moveaxis(planes, 0, 2), 255
    else:
        first, total = planes[0], planes.sum(axis=0)
        share = np.divide(first, total, out=np.zeros_like(first), where=total > 0)[..., None]
        pixels[..., :3] = np.round(share * np.array(FIRST) + (1 - share) * np.array(SECOND))
        pixels[..., 3] = np.round(255 * np.sqrt(np.minimum(total / (most or 1.0), 1.0)))
    buffer = io.BytesIO()
    imsave(buffer, pixels, format="png")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
