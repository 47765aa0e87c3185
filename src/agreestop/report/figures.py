"""Figures, drawn with matplotlib: as PNG and SVG files, and panel by panel for the page, where they wrap on narrow screens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from agreestop.common.files import atomic_writer

from .contents import Breakdown, Share
from .records import Record

COLOURS = ("#8C6D46", "#7A7A7A", "#1A1A1A", "#CC79A7", "#009E73", "#0072B2", "#D55E00", "#0072B2", "#D55E00", "#B4B4B4")
MARKERS = ("<", "s", "D", "P", "^", "o", "v", "o", "v", "x")
GLYPHS = ("◀", "■", "◆", "✚", "▲", "●", "▼", "●", "▼", "✕")
"""In the order of the rules of `agreestop run`, which look the same in `paper_figures`."""
ABOVE, BELOW, MUTED = "#0072B2", "#D55E00", "#B0B0B0"
PANEL, WIDE_PANEL = (4.3, 3.5), (5.0, 3.7)  # inches


@dataclass(frozen=True)
class Style:
    """How the line of one rule looks; `glyph` is its marker in a text."""

    label: str
    colour: str
    marker: str
    glyph: str
    dashes: Literal["-", "--"]

    def line(self, axes: Axes, x: Sequence[float], y: Sequence[float], se: Sequence[float]) -> None:
        """Means with 95 % intervals."""
        axes.errorbar(
            *(x, y),
            yerr=[1.96 * value for value in se],
            label=self.label,
            color=self.colour,
            marker=self.marker,
            linestyle=self.dashes,
            linewidth=1.6,
            markersize=5,
            capsize=2,
        )


@dataclass(frozen=True, eq=False)
class Panel:
    """One figure of the page, with its heading and what it shows in words."""

    heading: str
    words: str
    figure: Figure


def styles_of(records: Sequence[Record]) -> list[Style]:
    """A style for each rule, in the order of the records."""
    labels = list(dict.fromkeys(record.label for record in records))
    kinds = zip(labels, range(len(labels)), strict=True)
    turns = ((label, place % len(COLOURS)) for label, place in kinds)
    return [Style(label, COLOURS[at], MARKERS[at], GLYPHS[at], "--" if "every" in label else "-") for label, at in turns]


def draw_coverage_and_latency(records: Sequence[Record], folder: Path, title: str, name: str) -> list[Path]:
    """Coverage against the target, latency and set size against the number of members, a line for each rule; the paths written."""
    target, members = records[0].target, max(record.K for record in records)
    figure = Figure(figsize=(12.5, 4.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.1, 1.1, 0.9))
    _coverage(left, records)
    _latency(middle, records)
    _set_size(right, records)
    left.set_title(f"Is the promise kept? ({members} members)")
    middle.set_title(f"How early does it stop? (target {target:g})")
    right.set_title("How large are the answers?")
    figure.suptitle(title, fontsize=13)
    handles, names = right.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return save_figure(figure, folder, name)


def coverage_and_latency_panels(records: Sequence[Record]) -> list[Panel]:
    """The three parts of `draw_coverage_and_latency`, each a figure of its own."""
    target, members = records[0].target, max(record.K for record in records)
    at_main = [record for record in records if (record.target, record.K) == (target, members)]

    def listed(what: Callable[[Record], str]) -> str:
        return "; ".join(f"{record.label} {what(record)}" for record in at_main)

    coverage = f"At target {target:.0%}: " + listed(lambda record: f"{record.coverage:.1%}")
    latency = f"With {members} members: " + listed(lambda record: f"{record.latency:.1%}")
    size = f"With {members} members: " + listed(lambda record: f"{record.set_size:.2f}")
    return [
        Panel(f"Is the promise kept? ({members} members)", f"Coverage against the target. {coverage}", _single(_coverage, records, "xy")),
        Panel(f"How early does it stop? (target {target:.0%})", f"Latency against the members. {latency}", _single(_latency, records, "y")),
        Panel("How large are the answers?", f"Mean set size against the members. {size}", _single(_set_size, records, "")),
    ]


def _single(draw: Callable[[Axes, Sequence[Record]], None], records: Sequence[Record], in_percent: str) -> Figure:
    """One panel by itself, the named axes in per cent."""
    figure = Figure(figsize=PANEL, layout="constrained")
    axes = figure.subplots()
    draw(axes, records)
    for axis in (axis for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)) if name in in_percent):
        axis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10]))
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return figure


def _coverage(axes: Axes, records: Sequence[Record]) -> None:
    members = max(record.K for record in records)
    for style in styles_of(records):
        mine = [one for one in records if one.label == style.label and members == one.K]
        mine.sort(key=lambda one: one.target)
        style.line(axes, [one.target for one in mine], [one.coverage for one in mine], [one.coverage_se for one in mine])
    targets = sorted({record.target for record in records})
    axes.plot(targets, targets, color="black", linewidth=1, zorder=0)
    axes.annotate("promised", (targets[-1], targets[-1]), textcoords="offset points", xytext=(-26, -20), fontsize=9)
    axes.set(xlabel="target", ylabel="coverage")
    tidy(axes)


def _latency(axes: Axes, records: Sequence[Record]) -> None:
    _over_members(axes, records, lambda record: record.latency, lambda record: record.latency_se)
    axes.set(ylabel="latency / T", ylim=(0, 1.03))


def _set_size(axes: Axes, records: Sequence[Record]) -> None:
    _over_members(axes, records, lambda record: record.set_size, lambda record: 0.0)
    axes.set(ylabel="mean set size", ylim=(0, None))


def _over_members(axes: Axes, records: Sequence[Record], value: Callable[[Record], float], se: Callable[[Record], float]) -> None:
    for style in styles_of(records):
        mine = [one for one in records if one.label == style.label and one.target == records[0].target]
        mine.sort(key=lambda one: one.K)
        style.line(axes, [one.K for one in mine], [value(one) for one in mine], [se(one) for one in mine])
    axes.set_xticks(sorted({record.K for record in records}))
    axes.set_xlabel("members K")
    tidy(axes)


def tidy(axes: Axes) -> None:
    """A light grid, and no frame above and to the right."""
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def draw_breakdown(breakdown: Breakdown, target: float, folder: Path, title: str, name: str) -> list[Path]:
    """Coverage by stopping time and by class, with intervals and the number of inputs; the paths written."""
    figure = Figure(figsize=(10.5, 4.6), layout="constrained")
    ((left, right),) = figure.subfigures(1, 2, squeeze=False)
    _shares(left, breakdown.by_time, target, "stopping time")
    _shares(right, breakdown.by_class, target, "true class")
    figure.suptitle(title, fontsize=13)
    return save_figure(figure, folder, name)


def breakdown_panels(breakdown: Breakdown, target: float) -> list[Panel]:
    """The two parts of `draw_breakdown`, each a figure of its own."""
    parts = (("By stopping time", breakdown.by_time, "stopping time"), ("By true class", breakdown.by_class, "true class"))
    panels = []
    for heading, shares, xlabel in parts:
        figure = Figure(figsize=WIDE_PANEL, layout="constrained")
        _shares(figure, shares, target, xlabel)
        listed = "; ".join(f"{share.name}: {share.coverage:.1%} of {share.inputs:.0f} inputs" for share in shares)
        panels.append(Panel(heading, f"Coverage {heading.lower()}. {listed}", figure))
    return panels


def _shares(figure: Figure | SubFigure, shares: Sequence[Share], target: float, xlabel: str) -> None:
    """Coverage above, the number of inputs below; orange where the whole interval lies under the target."""
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    places = range(len(shares))
    for place, share in enumerate(shares):
        value, colour = float(share.coverage), BELOW if share.coverage.high < target else ABOVE
        reach = [[max(0.0, value - share.coverage.low)], [max(0.0, share.coverage.high - value)]]
        marker = "v" if colour == BELOW else "o"
        above.errorbar(place, value, yerr=reach, color=colour, marker=marker, markersize=6, capsize=3, linewidth=1.6)
    above.axhline(target, color="black", linewidth=1, zorder=0)
    above.annotate("promised", (1, target), xycoords=("axes fraction", "data"), xytext=(5, 0), **_SMALL, va="center", ha="left")
    above.set(ylabel="coverage", ylim=(max(0.0, min(target, *(share.coverage.low for share in shares)) - 0.04), 1.02))
    above.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    below.bar(places, [share.inputs for share in shares], color=MUTED, width=0.7)
    for place, share in enumerate(shares):
        words = f"{share.inputs:.0f}" if share.inputs >= 0.95 else f"{share.inputs:.1f}"
        below.annotate(words, (place, share.inputs), xytext=(0, 2), **_SMALL, va="bottom", ha="center")
    below.set(xlabel=xlabel, ylabel="inputs", ylim=(0, 1.35 * max(share.inputs for share in shares)), yticks=[])
    names = [share.name for share in shares]
    letters = sum(len(name) for name in names)
    long = letters > 50
    below.set_xticks(list(places), names, rotation=30 if long else 0, ha="right" if long else "center", fontsize=9 if letters <= 34 else 8)
    for axes in (above, below):
        tidy(axes)
        axes.grid(visible=False, axis="x")
    below.grid(visible=False)


_SMALL = {"textcoords": "offset points", "fontsize": 8.5}


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and SVG."""
    paths = [folder / f"{name}.{kind}" for kind in ("png", "svg")]
    for path in paths:
        with atomic_writer(path) as stream:
            undated: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {}  # the same figure, the same bytes
            with mpl.rc_context({"svg.hashsalt": name}):
                figure.savefig(stream, format=path.suffix[1:], dpi=150, metadata=undated)
    return paths
