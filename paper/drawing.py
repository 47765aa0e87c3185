"""The paper's figures, drawn from `numbers.json`: coverage above, latency below, a column for each
data set and ensemble.

The paper's rules are grey, rules without a guarantee are brown, and ours are in colour: solid at
the paper's four checkpoints, dashed at every step. Bars are 95 % intervals, for the draw of the
pool where these were measured; the title says which. A hollow marker is a rule that has too few
examples to exclude any class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, PercentFormatter
from matplotlib.transforms import ScaledTranslation

from agreestop.report.figures import Dashes, save_figure, style_of, tidy
from agreestop.report.records import Z

from .records import SWEPT, FigureNumbers, FigureRecord

HEADINGS = {
    "paper": "the paper's rules",
    "ours": "ours",
    "fixed": "without adapting",
    "baseline": "no promise",
}
PROMISE: dict[str, Any] = {"color": "black", "linewidth": 1.2, "zorder": 0.5}
COLUMNS, HEIGHT, LEGEND = {1: 6.0, 2: 4.4}, 6.9, 2.6  # inches
NARROW = 3.3  # inches of a column, if there are more than two
LOGARITHMIC_BELOW = 0.05  # the axis of latency is logarithmic if some latency is lower
ASIDE = 0.7  # points between neighbouring rules, so that their bars do not hide each other
END = 7.0  # points between the rules that are drawn at the right edge


@dataclass(frozen=True)
class LineStyle:
    """How one rule is drawn."""

    label: str
    family: str
    colour: str
    marker: str
    dashes: Dashes

    @classmethod
    def of(cls, record: FigureRecord) -> LineStyle:
        style = style_of(record.rule)
        dashes: Dashes = (
            ":"
            if record.family in ("baseline", "fixed")
            else "--"
            if record.checkpoints == "every"
            else "-"
        )
        return cls(record.label, record.family, style.colour, style.marker, dashes)

    @property
    def options(self) -> dict[str, Any]:
        """Options for matplotlib."""
        width = 1.9 if self.family == "ours" else 1.5
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": self.dashes,
            "linewidth": width,
            "markersize": 5.5,
        }

    def handle(self) -> Line2D:
        """The line in the legend."""
        return Line2D([], [], label=self.label, **self.options)


def draw_numbers(numbers: FigureNumbers, folder: Path) -> list[Path]:
    """Write the figure as PNG and SVG; the paths written."""
    figure = _dots(numbers) if not numbers.swept else _curves(numbers)
    return save_figure(figure, folder, "figure")


def _columns(numbers: FigureNumbers) -> list[tuple[str, list[FigureRecord]]]:
    """The records of each data set and ensemble, under a heading."""
    pairs = list(dict.fromkeys((record.data, record.ensemble) for record in numbers.records))
    several = len({data for data, _ in pairs}) > 1
    columns = []
    for data, ensemble in pairs:
        mine = [
            record
            for record in numbers.records
            if (record.data, record.ensemble) == (data, ensemble)
        ]
        columns.append(
            (f"{_named(mine[0])}\n{ensemble} ensemble" if several else f"{ensemble} ensemble", mine)
        )
    return columns


def _named(record: FigureRecord) -> str:
    return f"{record.data} (simulated)" if record.simulated else record.data


def _title(numbers: FigureNumbers) -> str:
    """What is shown on which data, and the setting that all points share."""
    first = numbers.records[0]
    data = " and ".join(dict.fromkeys(_named(record) for record in numbers.records))
    usual = [record for record in numbers.records if record.default and record.rule != "spikecp"]
    members = " or ".join(
        str(count) for count in sorted({record.K for record in usual}, reverse=True)
    )
    shared = {
        "target": f"target {usual[0].target:g}",
        "K": f"K = {members}",
        "n": f"n = {usual[0].n}",
    }
    parts = [words for name, words in shared.items() if name != numbers.swept]
    small = any(
        source["about"].get("scale") == "small" for source in numbers.header.get("sources", ())
    )
    parts += [
        f"{first.realisations} realisations",
        f"95 % intervals {first.interval_of}{_other_intervals(numbers)}",
        *(["small networks: no result"] if small else []),
    ]
    return f"{numbers.figure}, {data}: {numbers.title}\n{', '.join(parts)}"


def _other_intervals(numbers: FigureNumbers) -> str:
    """The rules whose intervals are about something else than those of the first record, in
    brackets.
    """
    first = numbers.records[0].interval_of
    others = dict.fromkeys(
        f"{record.label}: {record.interval_of}"
        for record in numbers.records
        if record.interval_of != first
    )
    return f" ({', '.join(others)})" if others else ""


def _styles(numbers: FigureNumbers) -> list[LineStyle]:
    """The style of every rule, the families in the order of HEADINGS."""
    styles = list(dict.fromkeys(LineStyle.of(record) for record in numbers.records))
    return sorted(styles, key=lambda style: list(HEADINGS).index(style.family))


def _legend(figure: Figure, numbers: FigureNumbers) -> None:
    """A column to the right, each family under its heading."""
    handles: list[Line2D] = []
    for family, heading in HEADINGS.items():
        mine = [style.handle() for style in _styles(numbers) if style.family == family]
        if mine:
            handles += [Line2D([], [], linestyle="", label=heading), *mine]
    handles += [
        Line2D([], [], linestyle="", label=""),
        Line2D([], [], label="promised coverage", **PROMISE),
    ]
    if any(record.vacuous for record in numbers.records):
        handles.append(
            Line2D(
                [],
                [],
                linestyle="",
                label="hollow: n is too small for\nthe rule ever to stop early",
            )
        )
    legend = figure.legend(
        handles=handles,
        loc="outside right center",
        frameon=False,
        fontsize=9,
        handlelength=2.8,
        labelspacing=0.65,
    )
    for text in legend.get_texts():
        if text.get_text() in HEADINGS.values():
            text.set_fontweight("bold")


def _curves(numbers: FigureNumbers) -> Figure:
    columns, styles = _columns(numbers), _styles(numbers)
    figure = Figure(
        figsize=(COLUMNS.get(len(columns), NARROW) * len(columns) + LEGEND, HEIGHT),
        layout="constrained",
    )
    panels = figure.subplots(2, len(columns), sharex=True, sharey="row", squeeze=False)
    for (above, below), (heading, records) in zip(panels.T, columns, strict=True):
        above.set_title(heading)
        for axes, what in ((above, "coverage"), (below, "latency")):
            constant = [
                style
                for style in styles
                if any(LineStyle.of(record) == style for record in records if record.x is None)
            ]
            for index, style in enumerate(styles):
                mine = [record for record in records if LineStyle.of(record) == style]
                end = 1 + constant[::-1].index(style) if style in constant else 0
                shift = _Shift(
                    _right(figure, ASIDE * (index - len(styles) / 2)), _right(figure, -END * end)
                )
                _curve(axes, style, mine, what, _positions(numbers), shift)
            tidy(axes)
        _promise(above, records, numbers)
        _x_axis(below, numbers)
    panels[0, 0].set_ylabel("coverage")
    panels[1, 0].set_ylabel("latency / T")
    for axes in panels[:, 0]:
        _in_percent(axes.yaxis)
    low = min(
        min(record.coverage - Z * record.coverage_error, record.target)
        for record in numbers.records
    )
    panels[0, 0].set_ylim(max(0.0, low - 0.012), 1.008)
    _latency_axis(panels[1, 0], min(record.latency for record in numbers.records))
    figure.suptitle(_title(numbers), fontsize=12)
    _legend(figure, numbers)
    return figure


@dataclass(frozen=True, eq=False)
class _Shift:
    """How far the points of a rule are moved, those on its curve and the one at the right edge."""

    aside: ScaledTranslation
    from_edge: ScaledTranslation


def _right(figure: Figure, points: float) -> ScaledTranslation:
    return ScaledTranslation(points / 72, 0, figure.dpi_scale_trans)


def _in_percent(axis: Axis) -> None:
    axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _latency_axis(axes: Axes, least: float) -> None:
    """From 0 to 1, or on a logarithmic scale if some rules stop so early that they would be drawn
    on the axis.
    """
    if least > LOGARITHMIC_BELOW:
        axes.set_ylim(0, 1.03)
        return
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator([0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_ylim(0.8 * least, 1.15)


def _positions(numbers: FigureNumbers) -> dict[float, float]:
    """The position of each value on the x-axis. Exponents are infinite at both ends, so they have
    equal distances.
    """
    values = sorted({record.x for record in numbers.records if record.x is not None})
    return {
        value: float(index) if numbers.swept == "r" else value for index, value in enumerate(values)
    }


def _curve(
    axes: Axes,
    style: LineStyle,
    records: Sequence[FigureRecord],
    what: str,
    positions: dict[float, float],
    shift: _Shift,
) -> None:
    """Means with intervals. A rule that does not depend on x is a horizontal line, with its
    interval at the right edge.
    """
    for record in (record for record in records if record.x is None):
        value, reach = getattr(record, what), Z * getattr(record, f"{what}_error")
        axes.axhline(
            value,
            color=style.colour,
            linestyle=style.dashes,
            linewidth=style.options["linewidth"],
            zorder=1,
        )
        where = axes.get_yaxis_transform() + shift.from_edge
        axes.errorbar(
            1,
            value,
            yerr=reach,
            capsize=2,
            elinewidth=1,
            transform=where,
            zorder=2,
            **style.options,
        )
    swept = sorted(
        (record for record in records if record.x is not None), key=lambda record: record.x or 0.0
    )
    if not swept:
        return
    x = [positions[record.x] for record in swept if record.x is not None]
    y = [getattr(record, what) for record in swept]
    reaches = [Z * getattr(record, f"{what}_error") for record in swept]
    where = axes.transData + shift.aside
    axes.errorbar(
        x, y, yerr=reaches, capsize=2, elinewidth=1, zorder=2, transform=where, **style.options
    )
    hollow = [index for index, record in enumerate(swept) if record.vacuous]
    if hollow and style.marker != "x":
        options = {
            **style.options,
            "linestyle": "",
            "markerfacecolor": "white",
            "zorder": 3,
            "transform": where,
        }
        axes.plot([x[index] for index in hollow], [y[index] for index in hollow], **options)


def _promise(axes: Axes, records: Sequence[FigureRecord], numbers: FigureNumbers) -> None:
    """The target: a diagonal if it is swept."""
    if numbers.swept == "target":
        targets = sorted({record.target for record in records})
        axes.plot(targets, targets, **PROMISE)
    else:
        axes.axhline(records[0].target, **PROMISE)


def _x_axis(axes: Axes, numbers: FigureNumbers) -> None:
    positions = _positions(numbers)
    axes.set_xlabel(
        f"{SWEPT[numbers.swept]}, %" if numbers.swept == "target" else SWEPT[numbers.swept]
    )
    first, last = min(positions.values()), max(positions.values())
    if numbers.swept == "n":
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(first / 1.15, last * 1.15)
    else:
        axes.set_xlim(
            first - 0.05 * (last - first),
            last + (0.31 if numbers.swept == "r" else 0.05) * (last - first),
        )
    axes.xaxis.set_major_locator(FixedLocator(list(positions.values())))
    axes.set_xticklabels(
        [_short(100 * value if numbers.swept == "target" else value) for value in positions],
        fontsize=9,
    )


def _short(value: float) -> str:
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:g}"


def _dots(numbers: FigureNumbers) -> Figure:
    """One setting: a line for each rule, coverage to the left and latency to the right of each
    column.
    """
    columns, styles = _columns(numbers), _styles(numbers)
    figure = Figure(
        figsize=(2.9 * len(columns) + 2.4, 1.1 + 2 * (0.28 * len(styles) + 0.6)),
        layout="constrained",
    )
    panels = figure.subplots(2, len(columns), sharex="row", sharey=True, squeeze=False)
    positions = {style: len(styles) - index for index, style in enumerate(styles)}
    for (above, below), (heading, records) in zip(panels.T, columns, strict=True):
        above.set_title(heading, fontsize=11)
        for axes, what in ((above, "coverage"), (below, "latency")):
            for record in records:
                style = LineStyle.of(record)
                options = {**style.options, "linestyle": "", "markersize": 7}
                if style.dashes == "--":
                    options["markerfacecolor"] = "white"
                value, se = getattr(record, what), getattr(record, f"{what}_error")
                axes.errorbar(
                    value, positions[style], xerr=Z * se, capsize=2.5, elinewidth=1.4, **options
                )
            tidy(axes)
            _in_percent(axes.xaxis)
        above.axvline(records[0].target, **PROMISE)
        above.set_xlabel("coverage (line: promised)")
        below.set_xlabel("latency / T")
    for axes in panels[:, 0]:
        axes.set_yticks(list(positions.values()), [style.label for style in positions], fontsize=9)
        for text, style in zip(axes.get_yticklabels(), positions, strict=True):
            text.set_color("#555555" if style.family == "paper" else style.colour)
    panels[1, 0].set_xlim(0, 1.03)
    figure.suptitle(_title(numbers), fontsize=12)
    return figure
