"""Figures and event frames as parts of a page: SVG that takes the page's colours, and small PNG as data addresses."""

from __future__ import annotations

import base64
import io
import re
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.image import imsave

from agreestop.common.arrays import Integers

# matplotlib writes these; the page gives them a value in light and one in dark.
PAGE_COLOURS = {
    "#000000": "currentColor",
    "#1a1a1a": "currentColor",
    "#ffffff": "var(--card)",
    "#b0b0b0": "var(--muted-ink)",
    "#0072b2": "var(--line-blue)",
}
ON, OFF = (43, 143, 214), (224, 98, 38)


def inline_svg(figure: Figure, prefix: str, words: str) -> str:
    """A figure as an SVG element: no metadata, letters as text, ids of its own, colours of the page; `words` say what it shows."""
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
    """What the page makes of a colour."""
    return PAGE_COLOURS.get(colour.lower(), colour)


def event_frame(events: Integers, most: int) -> str:
    """ON and OFF events (2, H, W) as a PNG data address, one pixel each: colour says which were more, strength how many of `most`."""
    on, off = events[0].astype(np.float64), events[1].astype(np.float64)
    total = on + off
    share = np.divide(on, total, out=np.zeros_like(on), where=total > 0)[..., None]
    strength = np.sqrt(np.minimum(total / max(most, 1), 1.0))
    pixels = np.zeros((*on.shape, 4), dtype=np.uint8)
    pixels[..., :3] = np.round(share * np.array(ON) + (1 - share) * np.array(OFF))
    pixels[..., 3] = np.round(255 * strength)
    buffer = io.BytesIO()
    imsave(buffer, pixels, format="png")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
