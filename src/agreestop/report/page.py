"""The report as one HTML file that contains its style, figures and pictures and loads nothing.

write_report_folder(report, folder)  folder/report.html, and the figures beside it as PNG and SVG
write_page(report, path)             the page alone
write_small_page(path, title, ...)   a page of one table, for data other than scores of classes
summary_in_words(section)            the summary in two or three lines, for a terminal
"""

import base64
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.image import imsave

from agreestop.common import Floats, atomic_writer
from agreestop.common.errors import visible
from agreestop.common.estimates import Estimate
from agreestop.common.tables import filled_columns

from .advice import advise, rule_in_code
from .contents import Example, Report, Section
from .figures import (
    Panel,
    abstaining_panel,
    breakdown_panels,
    coverage_and_latency_panels,
    depths_panel,
    gate_panels,
    people_panel,
    save_panels,
    style_of,
    true_percent,
    work_panel,
)
from .records import interval, promise_of

PAPER = "https://doi.org/10.3390/e26020126"
SPACE = "\N{NO-BREAK SPACE}"
# matplotlib writes these colours; the page defines each for light and dark screens.
PAGE_COLOURS = {
    "#000000": "currentColor",
    "#1a1a1a": "currentColor",
    "#ffffff": "var(--card)",
    "#b0b0b0": "var(--muted-ink)",
    "#0072b2": "var(--line-blue)",
    "#d55e00": "var(--line-orange)",
}
FIRST, SECOND = (43, 143, 214), (224, 98, 38)  # ON and OFF events, or positive and negative values


def write_report_folder(report: Report, folder: Path) -> list[Path]:
    """Write the figures and `report.html` to an existing folder.

    Returns the paths written, the page last.
    """
    written: list[Path] = []
    for section in report.sections:
        headline, ending = section.summary.headline, f"-{section.name}" if section.name else ""
        title = visible(
            ", ".join(
                dict.fromkeys(
                    (
                        report.name,
                        *([f"{section.name} ensemble"] if section.name else []),
                        report.kind,
                    )
                )
            )
        )
        written += save_panels(
            coverage_and_latency_panels(section.records),
            folder,
            title,
            f"coverage-and-latency{ending}",
        )
        if headline.examples_needed is None:
            if section.work:
                written += save_panels([work_panel(section.work)], folder, title, f"work{ending}")
            groups = breakdown_panels(section.breakdown, headline.target)
            written += save_panels(
                groups, folder, f"{title}: {headline.label}", f"coverage-by-time-and-class{ending}"
            )
            if section.gated is not None:
                gate = gate_panels(section.gated, headline.target)
                written += save_panels(
                    gate,
                    folder,
                    f"{title}: with a gate, and without it (diamonds)",
                    f"coverage-by-block{ending}",
                )
    return [*written, write_page(report, folder / "report.html")]


def write_page(report: Report, path: Path) -> Path:
    """Write the page alone."""
    with atomic_writer(path) as stream:
        stream.write(render_page(report).encode())
    return path


def write_small_page(
    path: Path,
    title: str,
    table: Sequence[Sequence[str]],
    notes: Sequence[str],
    advice: Sequence[str] = (),
    code: str = "",
    panels: Sequence[Panel] = (),
) -> Path:
    """Write a page of one table, whose first row names the columns, with advice and figures.

    Columns in which nothing stands are left out.
    """
    (titles, *rows) = filled_columns(table)
    page = _environment().get_template("small.html.j2")
    text = page.render(
        title=title,
        titles=titles,
        rows=rows,
        notes=notes,
        advice=advice,
        code=code,
        panels=panels,
    )
    with atomic_writer(path) as stream:
        stream.write(text.encode())
    return path


def render_page(report: Report) -> str:
    """The page as text."""
    return _environment().get_template("page.html.j2").render(report=report, paper=PAPER)


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("agreestop", "report"),
        extensions=["jinja2.ext.do"],
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (
        percent,
        target_percent,
        give_or_take,
        number,
        with_code,
        plain,
        times,
        inline_svg,
        on_page,
        style_of,
        promise_of,
    )
    functions = (
        promise_of,
        interval,
        says_little,
        coverage_and_latency_panels,
        breakdown_panels,
        gate_panels,
        work_panel,
        abstaining_panel,
        people_panel,
        depths_panel,
        frames_of,
    )
    environment.filters |= {helper.__name__: helper for helper in filters}
    environment.globals |= {
        helper.__name__: helper for helper in (*functions, advise, rule_in_code)
    }
    return environment


def summary_in_words(section: Section) -> list[str]:
    """The summary for a terminal, in lines of at most 80 columns."""
    summary, headline = section.summary, section.summary.headline
    name = section.name or "promise"
    if headline.examples_needed is not None:
        needed = (
            f"{headline.examples_needed} calibration examples for a target of "
            f"{target_percent(headline.target)}"
        )
        return [
            f"{name}: cannot stop early",
            f"  {headline.label} needs {needed}".replace(SPACE, " "),
        ]
    coverage, kept = headline.judged_coverage, "kept" if summary.kept else "NOT kept"
    if summary.kept and headline.coverage < headline.target:
        kept = "kept within its interval"
    first = (
        f"{kept}, {percent(coverage)}{give_or_take(coverage)} of at least "
        f"{target_percent(headline.target)}, with {headline.label}"
    )
    second = f"  stops at {percent(summary.share_of_horizon(headline))} of T"
    if summary.paper is not None:
        earlier = summary.paper.earlier
        second += (
            f", {percent(abs(earlier), 0)} {'earlier' if earlier >= 0 else 'later'} than "
            f"{summary.paper.other.label}"
        )
    if headline.energy is not None:
        second += f"; {percent(1 - headline.energy, 0)} less energy"
    lines = [f"{name}: {first}", second]
    if says_little(section):
        named = f"{number(headline.set_size, 1)} of {len(section.classes)}"
        lines.append(f"  its answers name {named} classes: these members tell little apart")
    return [line.replace(SPACE, " ") for line in lines]


def says_little(section: Section) -> bool:
    """Whether an answer names more than half of the classes on average.

    Such a promise is easy to keep.
    """
    return section.summary.headline.set_size > len(section.classes) / 2


def percent(value: float, digits: int = 1) -> str:
    """A share in per cent."""
    return f"{100 * value:.{digits}f}{SPACE}%"


def target_percent(value: float) -> str:
    """A share in per cent with as many digits as it has: 0.975 is 97.5 %, not 98 %."""
    return true_percent(value).replace("%", f"{SPACE}%")


def give_or_take(estimate: Estimate) -> str:
    """Half an interval in per cent, where it is known."""
    half = (estimate.high - estimate.low) / 2
    return "" if math.isnan(half) else f"{SPACE}±{SPACE}{100 * half:.1f}"


def number(value: float, digits: int = 2) -> str:
    return f"{value:.{digits}f}"


def with_code(sentence: str) -> Markup:
    """A sentence for the page: options such as delta=0.1 as code, and no break before "%"."""
    text = str(escape(sentence)).replace(" %", f"{SPACE}%")
    option = r"\b[a-z_]+=(?:&#34;\w+&#34;|[\w.]*\w)?"
    return Markup(re.sub(option, r"<code>\g<0></code>", text))


def plain(time: float) -> str:
    """A time as a person writes it: 80, or 0.25."""
    return f"{time:.10g}"


def times(checkpoints: Sequence[float]) -> str:
    """Checkpoints in words: their number, and the times themselves where they are few."""
    if len(checkpoints) > 8:
        return f"{len(checkpoints)} checkpoints"
    return (
        f"{len(checkpoints)} checkpoint{'s' * (len(checkpoints) > 1)}: "
        f"{', '.join(f'{time:g}' for time in checkpoints)}"
    )


def frames_of(example: Example) -> list[str]:
    """Pictures of the example at each moment, all on the scale of the last, and then of
    the whole input.
    """
    most = float(example.moments[-1].picture.sum(axis=0).max())
    whole = input_picture(example.whole, float(example.whole.sum(axis=0).max()))
    return [*(input_picture(moment.picture, most) for moment in example.moments), whole]


def inline_svg(panel: Panel, prefix: str) -> Markup:
    """A panel as an SVG element without metadata, with letters as text, ids that begin with the
    prefix, and the colours of the page.
    """
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        panel.figure().savefig(buffer, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    for element in root.iter():
        element.tag = _local(element.tag)
        for child in [child for child in element if _local(child.tag) in ("metadata", "style")]:
            element.remove(child)
        element.attrib = {
            _local(name): _page_value(_local(name), value, prefix)
            for name, value in element.attrib.items()
        }
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib |= {"role": "img", "aria-label": panel.words}
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _local(name: str) -> str:
    return name.rpartition("}")[2]


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

    Three planes are red, green and blue from 0 to 255. With one or two, the colour says which plane
    is larger at a cell, and the opacity how large their sum is compared with `most`.
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
