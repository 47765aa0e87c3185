"""Figures, drawn with matplotlib: whole ones as PNG and SVG files, and single panels for the page,
where they wrap on narrow screens.

A colour and a marker belong to a rule, wherever it is drawn and whatever is drawn beside it. Blue
is ours, or a promise that is kept; orange is what lies below its target, and nothing else.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from agreestop.common import atomic_writer
from agreestop.common.estimates import Estimate

from .contents import Breakdown, GateBreakdown, GroupCoverage
from .promises import AbstainingPoint, DepthPoint, PeoplePoint
from .records import Record, Z
from .work import WorkPoint

ABOVE, BELOW, BESIDE, MUTED = "#0072B2", "#D55E00", "#1A1A1A", "#B0B0B0"
MOST_NAMES = 12  # people who are named in a figure
PANEL, WIDE_PANEL, WORK_PANEL = (4.3, 3.5), (5.0, 3.7), (6.0, 3.7)  # inches
_SMALL: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8.5}
Dashes = Literal["-", "--", ":"]


@dataclass(frozen=True)
class RuleStyle:
    """Colour, matplotlib marker, the same marker as a character, and the line: solid,
    dashed or dotted.
    """

    colour: str
    marker: str
    glyph: str
    dashes: Dashes = "-"


_STYLES = {
    "spikecp": RuleStyle("#B4B4B4", "x", "✕"),
    "confidencemerging": RuleStyle("#7A7A7A", "s", "■"),
    "pvariablemerging": RuleStyle("#1A1A1A", "D", "◆"),
    "rankpooling": RuleStyle("#CC79A7", "P", "✚"),
    "simultaneous": RuleStyle("#009E73", "^", "▲"),
    "stopaware": RuleStyle("#56B4E9", "o", "●"),
    "agreestop": RuleStyle("#0072B2", "v", "▼"),
    "agreestopwithagate": RuleStyle("#882255", "*", "★"),
    "fixedtime": RuleStyle("#999933", "H", "⬣"),
    "dcsnn": RuleStyle("#8C6D46", "<", "◀"),
    "seenn1": RuleStyle("#B58F5C", ">", "▶"),
    "seenn2": RuleStyle("#D9BE94", "p", "⬟"),
}
_UNKNOWN = RuleStyle("#8172B3", "h", "⬢")


def style_of(rule: str) -> RuleStyle:
    """The style of a rule, by its label ("AgreeStop, every step") or its key ("agreestop").

    Rules at every step are dashed.
    """
    name, _, checkpoints = rule.partition(",")
    style = _STYLES.get(re.sub("[^a-z0-9]", "", name.lower()), _UNKNOWN)
    return replace(style, dashes="--") if "every" in checkpoints else style


def styles_of(rules: Iterable[str]) -> dict[str, RuleStyle]:
    """The style of each rule. Names that are not known take, in order, the styles that no rule here
    has.
    """
    styles = {rule: style_of(rule) for rule in rules}
    taken = {style.marker for style in styles.values()}
    bold = reversed(_STYLES.values())
    free = cycle([_UNKNOWN, *(style for style in bold if style.marker not in taken)])
    return {
        rule: next(free) if style.marker == _UNKNOWN.marker else style
        for rule, style in styles.items()
    }


@dataclass(frozen=True, eq=False)
class Panel:
    """One part of a figure: its heading, words that describe it, its size in inches, and a
    function that draws it.
    """

    heading: str
    words: str
    size: tuple[float, float]
    draw: Callable[[Figure | SubFigure], None]

    def figure(self) -> Figure:
        """The panel as a figure of its own."""
        figure = Figure(figsize=self.size, layout="constrained")
        self.draw(figure)
        return figure


def save_panels(panels: Sequence[Panel], folder: Path, title: str, name: str) -> list[Path]:
    """Draw panels side by side, with one legend for all, and write the figure as PNG and SVG.

    Returns the paths written.
    """
    width, height = sum(panel.size[0] for panel in panels), panels[0].size[1] + 1.1
    figure = Figure(figsize=(width, height), layout="constrained")
    (parts,) = figure.subfigures(1, len(panels), squeeze=False)
    for part, panel in zip(parts, panels, strict=True):
        panel.draw(part)
        part.suptitle(panel.heading)
    figure.suptitle(title, fontsize=13, parse_math=False)
    handles, names = parts[-1].axes[0].get_legend_handles_labels()
    if names:
        figure.legend(
            handles,
            names,
            loc="outside lower center",
            ncols=min(5, int(width // 2)),
            frameon=False,
            fontsize=9,
        )
    return save_figure(figure, folder, name)


def coverage_and_latency_panels(records: Sequence[Record]) -> list[Panel]:
    """Coverage against the target, and latency and set size against the number of members, with
    a line for each rule.
    """
    target, members = records[0].target, max(record.K for record in records)
    at_target = [record for record in records if record.target == target]
    of_all = [record for record in records if members == record.K]

    def words(value: str, form: str) -> str:
        return "; ".join(
            f"{record.label} {getattr(record, value):{form}}"
            for record in of_all
            if record.target == target
        )

    def draw_coverage(figure: Figure | SubFigure) -> None:
        axes, targets = figure.subplots(), sorted({record.target for record in records})
        _lines(axes, of_all, "target", "coverage", "judged_coverage")
        promised = targets if len(targets) > 1 else [targets[0] - 0.02, min(targets[0] + 0.02, 1.0)]
        axes.plot(promised, promised, color="black", linewidth=1, zorder=0)
        axes.annotate(
            "promised",
            (targets[-1], targets[-1]),
            textcoords="offset points",
            xytext=(8, -3),
            annotation_clip=False,
            fontsize=9,
        )
        axes.set(xlabel="target", ylabel="coverage")
        _in_percent(axes.xaxis)
        _in_percent(axes.yaxis)

    def draw_latency(figure: Figure | SubFigure) -> None:
        axes = figure.subplots()
        _lines(axes, at_target, "K", "latency", "judged_latency")
        axes.set(
            xlabel="members K",
            ylabel="latency / T",
            ylim=(0, 1.03),
            xticks=sorted({record.K for record in records}),
        )
        _in_percent(axes.yaxis)

    def draw_size(figure: Figure | SubFigure) -> None:
        axes = figure.subplots()
        _lines(axes, at_target, "K", "set_size")
        axes.set(
            xlabel="members K",
            ylabel="mean set size",
            ylim=(0, None),
            xticks=sorted({record.K for record in records}),
        )

    coverage = words("coverage", ".1%")
    latency = words("latency", ".1%")
    size = words("set_size", ".2f")
    return [
        Panel(
            f"Is the promise kept? ({members} members)",
            f"Coverage at target {target:.0%}: {coverage}",
            PANEL,
            draw_coverage,
        ),
        Panel(
            f"How early does it stop? (target {target:.0%})",
            f"Latency with {members} members: {latency}",
            PANEL,
            draw_latency,
        ),
        Panel(
            "How large are the answers?",
            f"Mean set size with {members} members: {size}",
            PANEL,
            draw_size,
        ),
    ]


def _lines(
    axes: Axes, records: Sequence[Record], x: str, y: str, judged: str | None = None
) -> None:
    """Draw a line for each rule, of the fields x and y of its records, and where `judged` is given
    the two 95 % intervals.

    A hollow marker is a rule with too few examples to ever stop. The whiskers are over the
    realisations. The bar, wide and pale, is for the draw of the pool, where it is known.
    """
    for label in dict.fromkeys(record.label for record in records):
        style = style_of(label)
        mine = sorted(
            (record for record in records if record.label == label),
            key=lambda record: getattr(record, x),
        )
        at, mean = ([getattr(record, name) for record in mine] for name in (x, y))
        look: dict[str, Any] = {
            "color": style.colour,
            "marker": style.marker,
            "linestyle": style.dashes,
        }
        half = [Z * getattr(record, judged).se if judged else 0.0 for record in mine]
        axes.errorbar(
            at, mean, yerr=half, label=label, linewidth=1.6, markersize=5, capsize=2, **look
        )
        stuck = [
            (getattr(record, x), getattr(record, y))
            for record in mine
            if record.examples_needed is not None
        ]
        if stuck:
            axes.plot(
                *zip(*stuck, strict=True),
                style.marker,
                color=style.colour,
                markerfacecolor="white",
                markersize=5,
                zorder=3,
            )
        for record in mine:
            if judged and getattr(record, f"{y}_pool") is not None:
                axes.vlines(
                    getattr(record, x),
                    *getattr(record, f"{y}_pool"),
                    color=style.colour,
                    linewidth=5,
                    alpha=0.3,
                )
    tidy(axes)


def reach_of(values: Iterable[Estimate]) -> list[list[float]]:
    """How far intervals reach below and above their numbers, for error bars."""
    return [list(part) for part in zip(*((x - x.low, x.high - x) for x in values), strict=True)]


def true_percent(value: float, _: object = None) -> str:
    """A share in per cent with as many digits as it has: 0.975 is 97.5%, not 98%."""
    return f"{100 * value:.6g}%"


def _in_percent(axis: Axis) -> None:
    axis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(true_percent))


def tidy(axes: Axes) -> None:
    """Draw a light grid, and no frame at the top and on the right."""
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def breakdown_panels(breakdown: Breakdown, target: float) -> list[Panel]:
    """Coverage by stopping time, by class and by group where there are groups, with intervals
    and the number of inputs.
    """
    panels = []
    parts = {
        "stopping time": breakdown.by_time,
        "true class": breakdown.by_class,
        "group": breakdown.by_group,
    }
    for xlabel, groups in parts.items():
        if not groups:
            continue
        listed = "; ".join(
            f"{group.name}: {group.coverage:.1%} of {group.inputs:.0f} inputs" for group in groups
        )
        panels.append(
            Panel(
                f"By {xlabel}",
                f"Coverage by {xlabel}. {listed}",
                WIDE_PANEL,
                partial(_draw_groups, groups, target, xlabel),
            )
        )
    return panels


def gate_panels(gated: GateBreakdown, target: float) -> list[Panel]:
    """Coverage with a gate and without it: by block, which the gate promises, and by stopping
    time, which nothing promises.
    """
    panels = []
    for heading, xlabel, groups, others in (
        (
            "By the time it first looked ready",
            "first looked ready",
            gated.by_block,
            gated.plain_by_block,
        ),
        ("By stopping time", "stopping time", gated.by_time, gated.plain_by_time),
    ):
        without = {group.name: group for group in others}
        listed = "; ".join(
            f"{group.name}: {group.coverage:.1%} of {group.inputs:.0f} inputs"
            + (
                f", without the gate {without[group.name].coverage:.1%}"
                if group.name in without
                else ""
            )
            for group in groups
        )
        draw = partial(_draw_groups, groups, target, xlabel, others=others)
        panels.append(Panel(heading, f"{heading}. {listed}", WIDE_PANEL, draw))
    return panels


def _draw_groups(
    groups: Sequence[GroupCoverage],
    target: float,
    xlabel: str,
    figure: Figure | SubFigure,
    others: Sequence[GroupCoverage] = (),
) -> None:
    """Draw coverage above and the number of inputs below; others: the same groups under another
    rule, drawn as hollow diamonds.
    """
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    draw_coverage(above, groups, target)
    names = [group.name for group in groups]
    for other in others:
        if other.name in names:
            value, reach = float(other.coverage), reach_of([other.coverage])
            look: dict[str, Any] = {
                "color": BESIDE,
                "marker": "D",
                "markerfacecolor": "white",
                "markersize": 5,
                "linewidth": 1.2,
            }
            above.errorbar(names.index(other.name) + 0.22, value, yerr=reach, capsize=3, **look)
    lowest = min(target, *(group.coverage.low for group in (*groups, *others)))
    above.set(ylim=(max(0.0, lowest - 0.04), 1.02))
    below.bar(range(len(groups)), [group.inputs for group in groups], color=MUTED, width=0.7)
    for position, group in enumerate(groups):
        words = f"{group.inputs:.0f}" if group.inputs >= 0.95 else f"{group.inputs:.1f}"
        below.annotate(
            words, (position, group.inputs), xytext=(0, 2), **_SMALL, va="bottom", ha="center"
        )
    below.set(
        xlabel=xlabel,
        ylabel="inputs",
        ylim=(0, 1.35 * max(group.inputs for group in groups)),
        yticks=[],
    )
    name_groups(below, names)
    for axes in (above, below):
        tidy(axes)
        axes.grid(visible=False, axis="x")
    below.grid(visible=False)


def draw_coverage(axes: Axes, groups: Sequence[GroupCoverage], target: float | None) -> None:
    """Draw the coverage of each group with its interval; a group is orange where its whole
    interval lies below the target.
    """
    for position, group in enumerate(groups):
        value = float(group.coverage)
        colour = BELOW if target is not None and group.coverage.high < target else ABOVE
        reach = [[max(0.0, value - group.coverage.low)], [max(0.0, group.coverage.high - value)]]
        marker = "v" if colour == BELOW else "o"
        axes.errorbar(
            position,
            value,
            yerr=reach,
            color=colour,
            marker=marker,
            markersize=6,
            capsize=3,
            linewidth=1.6,
        )
    if target is not None:
        axes.axhline(target, color="black", linewidth=1, zorder=0)
        axes.annotate(
            "promised",
            (1, target),
            xycoords=("axes fraction", "data"),
            xytext=(5, 0),
            **_SMALL,
            va="center",
            ha="left",
        )
    axes.set(ylabel="coverage")
    axes.yaxis.set_major_formatter(FuncFormatter(true_percent))


def name_groups(axes: Axes, names: Sequence[str]) -> None:
    """Write the names of groups under an axis, turned where they are long."""
    letters = sum(len(name) for name in names)
    turned: dict[str, Any] = {"rotation": 30, "ha": "right"} if letters > 40 else {"ha": "center"}
    axes.set_xticks(
        range(len(names)), names, fontsize=9 if letters <= 34 else 8, parse_math=False, **turned
    )


def work_panel(points: Sequence[WorkPoint]) -> Panel:
    """Latency against member-steps on logarithmic axes, with a point for each schedule."""
    listed = "; ".join(
        f"{point.name}: {point.work:.1f} member-steps, {point.latency:.1%} of T" for point in points
    )
    return Panel(
        "Latency against work",
        f"Latency against work. {listed}",
        WORK_PANEL,
        partial(_draw_work, points),
    )


def _draw_work(points: Sequence[WorkPoint], figure: Figure | SubFigure) -> None:
    axes = figure.subplots()
    for point, colour, marker in zip(
        points, (MUTED, BESIDE, ABOVE, ABOVE, ABOVE), "sDP^o", strict=True
    ):
        across, up = reach_of([point.work]), reach_of([point.latency])
        look: dict[str, Any] = {
            "color": colour,
            "marker": marker,
            "linestyle": "",
            "capsize": 3,
            "markersize": 7,
            "elinewidth": 1.2,
        }
        axes.errorbar(
            float(point.work), float(point.latency), xerr=across, yerr=up, label=point.name, **look
        )
    axes.set(xlabel="member-steps behind an answer", ylabel="mean stopping time, share of T")
    log_axes(axes, [point.work for point in points], [point.latency for point in points])
    if not isinstance(figure, SubFigure):
        figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    tidy(axes)


def abstaining_panel(points: Sequence[AbstainingPoint]) -> Panel:
    """The share answered against the share answered wrongly, with a point for each target."""
    heading = "Answered, against answered wrongly"
    listed = "; ".join(
        f"target {one.target:g}: {one.answered:.1%} answered, {one.wrong:.1%} wrongly"
        for one in points
    )
    return Panel(heading, f"{heading}. {listed}", WORK_PANEL, partial(_draw_abstaining, points))


def _draw_abstaining(points: Sequence[AbstainingPoint], figure: Figure | SubFigure) -> None:
    axes = figure.subplots()
    front = [float(one.wrong) for one in points], [float(one.answered) for one in points]
    every = [float(one.wrong_of_all) for one in points]
    across, up = reach_of(one.wrong for one in points), reach_of(one.answered for one in points)
    look: dict[str, Any] = {"marker": "o", "capsize": 2, "label": "abstains at the end"}
    axes.errorbar(*front, xerr=across, yerr=up, color=ABOVE, **look)
    axes.plot(every, [1.0] * len(every), "D", color=MUTED, label="answers everything")
    for one in points:
        place = (float(one.wrong), float(one.answered))
        axes.annotate(f"{100 * one.target:g}%", place, xytext=(7, -11), **_SMALL)
    axes.set(xlabel="answered and wrong", ylabel="answered", xlim=(0, None), ylim=(0, 1.06))
    _in_percent(axes.xaxis)
    _in_percent(axes.yaxis)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    tidy(axes)


def people_panel(point: PeoplePoint, target: float) -> Panel:
    """The share kept for each person, from the least to the greatest; orange where the whole
    interval lies below the target.
    """
    ordered = sorted(point.people, key=lambda person: float(person[1]))
    groups = [GroupCoverage(name, float(rows), kept) for name, kept, rows in ordered]
    heading = f"By person: {point.name}"
    listed = "; ".join(f"{group.name}: {group.coverage:.1%}" for group in groups[:MOST_NAMES])
    words = f"{heading}. The least: {listed}"
    return Panel(heading, words, WIDE_PANEL, partial(_draw_people, groups, target))


def _draw_people(
    groups: Sequence[GroupCoverage], target: float, figure: Figure | SubFigure
) -> None:
    axes = figure.subplots()
    draw_coverage(axes, groups, target)
    if len(groups) <= MOST_NAMES:
        name_groups(axes, [group.name for group in groups])
        axes.set(xlabel="person")
    else:
        axes.set(xlabel=f"{len(groups)} people, from the least kept", xticks=[])
    axes.set(ylabel="kept")
    tidy(axes)


def depths_panel(points: Sequence[DepthPoint]) -> Panel:
    """The share of inputs answered by each time, with a line for each depth."""
    heading = "Answered by each time, at each depth"
    listed = "; ".join(f"depth {one.depth}: {one.latency:.1%} of T on average" for one in points)
    return Panel(heading, f"{heading}. {listed}", WORK_PANEL, partial(_draw_depths, points))


def _draw_depths(points: Sequence[DepthPoint], figure: Figure | SubFigure) -> None:
    axes = figure.subplots()
    for number, one in enumerate(points):
        share = number / max(len(points) - 1, 1)
        look: dict[str, Any] = {"alpha": 0.55 + 0.45 * share, "linewidth": 1.4 + share}
        style = "--" if one.depth < len(points) else "-"
        at = [0.0, *one.times], [0.0, *one.answered]
        axes.step(
            *at, where="post", color=ABOVE, linestyle=style, label=f"depth {one.depth}", **look
        )
    axes.set(xlabel="time", ylabel="inputs answered", ylim=(0, 1.03), xlim=(0, None))
    _in_percent(axes.yaxis)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    tidy(axes)


def log_axes(axes: Axes, x: Sequence[float], y: Sequence[float]) -> None:
    """Make both axes logarithmic, with a margin around the points and plain
    numbers at the ticks.
    """
    axes.set(xscale="log", yscale="log")
    for axis, values, limit in ((axes.xaxis, x, axes.set_xlim), (axes.yaxis, y, axes.set_ylim)):
        low, high = min(values), max(values)
        margin = max((high / low) ** 0.2, 1.2)
        limit(low / margin, high * margin)
        axis.set_major_locator(
            LogLocator(subs=(1, 2, 5) if high / low > 3 else (1, 1.5, 2, 3, 4, 5, 6, 8))
        )
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and SVG."""
    paths = [folder / f"{name}.{kind}" for kind in ("png", "svg")]
    for path in paths:
        with atomic_writer(path) as stream:
            # so that the same figure gives the same bytes
            undated: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {}
            with mpl.rc_context({"svg.hashsalt": name}):
                figure.savefig(stream, format=path.suffix[1:], dpi=150, metadata=undated)
    return paths
