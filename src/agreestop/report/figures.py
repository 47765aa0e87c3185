"""Figures, drawn with matplotlib: whole ones as PNG and SVG files, and single panels for the page, where they wrap on narrow screens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from agreestop.common.files import atomic_writer

from .contents import Breakdown, GroupCoverage
from .records import Record
from .styles import RuleStyle, style_of
from .summary import Z

ABOVE, BELOW, MUTED = "#0072B2", "#D55E00", "#B0B0B0"
PANEL, WIDE_PANEL = (4.3, 3.5), (5.0, 3.7)  # inches


@dataclass(frozen=True, eq=False)
class Panel:
    """One figure of the page with its heading; `words` describe what it shows."""

    heading: str
    words: str
    figure: Figure


def styles_of(records: Sequence[Record]) -> dict[str, RuleStyle]:
    """The style of each rule by its label, in the order of the records."""
    return {record.label: style_of(record.label) for record in records}


def _line(axes: Axes, label: str, x: Sequence[float], y: Sequence[float], se: Sequence[float]) -> None:
    """Draw the means of one rule with 95 % intervals."""
    style = style_of(label)
    look: dict[str, Any] = {"color": style.colour, "marker": style.marker, "linestyle": style.dashes}
    axes.errorbar(x, y, yerr=[Z * value for value in se], label=label, linewidth=1.6, markersize=5, capsize=2, **look)


def draw_coverage_and_latency(records: Sequence[Record], folder: Path, title: str, name: str) -> list[Path]:
    """Coverage against the target, latency and set size against the number of members, a line for each rule. Returns the paths written."""
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
    """The three parts of `draw_coverage_and_latency`, as separate figures."""
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
    """One panel as a figure; `in_percent` names the axes that are in per cent."""
    figure = Figure(figsize=PANEL, layout="constrained")
    axes = figure.subplots()
    draw(axes, records)
    for axis in (axis for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)) if name in in_percent):
        axis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10]))
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return figure


def _coverage(axes: Axes, records: Sequence[Record]) -> None:
    members = max(record.K for record in records)
    for label in styles_of(records):
        mine = [one for one in records if one.label == label and members == one.K]
        mine.sort(key=lambda one: one.target)
        _line(axes, label, [one.target for one in mine], [one.coverage for one in mine], [one.coverage_se for one in mine])
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
    for label in styles_of(records):
        mine = [one for one in records if one.label == label and one.target == records[0].target]
        mine.sort(key=lambda one: one.K)
        _line(axes, label, [one.K for one in mine], [value(one) for one in mine], [se(one) for one in mine])
    axes.set_xticks(sorted({record.K for record in records}))
    axes.set_xlabel("members K")
    tidy(axes)


def tidy(axes: Axes) -> None:
    """Draw a light grid, and no frame at the top and on the right."""
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def draw_breakdown(breakdown: Breakdown, target: float, folder: Path, title: str, name: str) -> list[Path]:
    """Coverage by stopping time and by class, with intervals and the number of inputs. Returns the paths written."""
    figure = Figure(figsize=(10.5, 4.6), layout="constrained")
    ((left, right),) = figure.subfigures(1, 2, squeeze=False)
    _draw_groups(left, breakdown.by_time, target, "stopping time")
    _draw_groups(right, breakdown.by_class, target, "true class")
    figure.suptitle(title, fontsize=13)
    return save_figure(figure, folder, name)


def breakdown_panels(breakdown: Breakdown, target: float) -> list[Panel]:
    """The two parts of `draw_breakdown`, as separate figures."""
    parts = (("By stopping time", breakdown.by_time, "stopping time"), ("By true class", breakdown.by_class, "true class"))
    panels = []
    for heading, groups, xlabel in parts:
        figure = Figure(figsize=WIDE_PANEL, layout="constrained")
        _draw_groups(figure, groups, target, xlabel)
        listed = "; ".join(f"{group.name}: {group.coverage:.1%} of {group.inputs:.0f} inputs" for group in groups)
        panels.append(Panel(heading, f"Coverage {heading.lower()}. {listed}", figure))
    return panels


def _draw_groups(figure: Figure | SubFigure, groups: Sequence[GroupCoverage], target: float, xlabel: str) -> None:
    """Draw coverage above and the number of inputs below; a group is orange where its whole interval lies below the target."""
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    positions = range(len(groups))
    for position, group in enumerate(groups):
        value, colour = float(group.coverage), BELOW if group.coverage.high < target else ABOVE
        reach = [[max(0.0, value - group.coverage.low)], [max(0.0, group.coverage.high - value)]]
        marker = "v" if colour == BELOW else "o"
        above.errorbar(position, value, yerr=reach, color=colour, marker=marker, markersize=6, capsize=3, linewidth=1.6)
    above.axhline(target, color="black", linewidth=1, zorder=0)
    above.annotate("promised", (1, target), xycoords=("axes fraction", "data"), xytext=(5, 0), **_SMALL, va="center", ha="left")
    above.set(ylabel="coverage", ylim=(max(0.0, min(target, *(group.coverage.low for group in groups)) - 0.04), 1.02))
    above.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    below.bar(positions, [group.inputs for group in groups], color=MUTED, width=0.7)
    for position, group in enumerate(groups):
        words = f"{group.inputs:.0f}" if group.inputs >= 0.95 else f"{group.inputs:.1f}"
        below.annotate(words, (position, group.inputs), xytext=(0, 2), **_SMALL, va="bottom", ha="center")
    below.set(xlabel=xlabel, ylabel="inputs", ylim=(0, 1.35 * max(group.inputs for group in groups)), yticks=[])
    names = [group.name for group in groups]
    letters = sum(len(name) for name in names)
    turned: dict[str, Any] = {"rotation": 30, "ha": "right"} if letters > 50 else {"ha": "center"}
    below.set_xticks(list(positions), names, fontsize=9 if letters <= 34 else 8, **turned)
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
            undated: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {}  # so that the same figure gives the same bytes
            with mpl.rc_context({"svg.hashsalt": name}):
                figure.savefig(stream, format=path.suffix[1:], dpi=150, metadata=undated)
    return paths
