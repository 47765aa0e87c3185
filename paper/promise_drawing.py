"""Figures of `promises`: coverage in the blocks of a gate and of the answers so far, what the gate
costs, and latency against work.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from agreestop.report.figures import log_axes, save_figure, style_of, tidy

from .fronts import ALL, ONE, FrontRecord
from .promises import (
    ACCUMULATED_GATE,
    COUNTS,
    ENSEMBLES,
    FIXED,
    GATE,
    LARGE,
    MARGINAL,
    SIZES,
    SMALL,
    TARGETS,
    PromiseRecord,
)

STYLES: dict[str, dict[str, Any]] = {
    MARGINAL: {"color": style_of("AgreeStop").colour, "marker": "o"},
    GATE: {"color": style_of("AgreeStop with a gate").colour, "marker": "s"},
    ACCUMULATED_GATE: {"color": "#D55E00", "marker": "^"},
    FIXED: {"color": style_of("fixed time").colour, "marker": "H"},
}
LABELS = {ACCUMULATED_GATE: "accumulated (Ringel et al. 2024), δ = 0.1"}
POINTS = {ONE: "s", ALL: "D", "schedule": "o"}
RARE = 0.005  # blocks with fewer of the inputs are not drawn
ASIDE = 0.14  # how far markers are moved aside, as a share of the distance between blocks
RATIOS = {200: 1.2, 1000: 1.1}


def draw_promises(records: Sequence[PromiseRecord], folder: Path) -> list[Path]:
    """Write all figures; the paths written."""
    written = []
    for target in TARGETS:
        blocks = _grid(
            records,
            target,
            _blocks,
            "block of times in which the input first looked ready, and its share of the inputs",
        )
        written += save_figure(blocks, folder, f"blocks-{target:g}")
        written += save_figure(
            _grid(records, target, _answered, "share of the inputs that are answered"),
            folder,
            f"answered-{target:g}",
        )
    return [*written, *save_figure(_latencies(records), folder, "latency")]


def _grid(records: Sequence[PromiseRecord], target: float, draw: Any, below: str) -> Figure:
    """A column for each large data set and ensemble, a row for each n and largest set."""
    columns = [(data, ensemble) for data in LARGE for ensemble in ENSEMBLES]
    rows = [(n, size) for n in COUNTS for size in SIZES]
    figure = Figure(figsize=(13, 11.5), layout="constrained")
    axes = figure.subplots(len(rows), len(columns), sharey=True)
    for row, (n, size) in enumerate(rows):
        for column, (data, ensemble) in enumerate(columns):
            panel: Axes = axes[row, column]
            mine = [
                r
                for r in records
                if (r.data, r.ensemble, r.n, r.max_set_size, r.target)
                == (data, ensemble, n, size, target)
            ]
            panel.axhline(target, color="black", linewidth=1.2, zorder=0.5)
            draw(panel, {r.rule: r for r in mine})
            tidy(panel)
            panel.yaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10]))
            panel.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
            panel.set_ylim(target - 2.2 * (1 - target), 1.01)
            if row == 0:
                name = f"{data} (simulated)" if mine and mine[0].simulated else data
                panel.set_title(f"{name}\n{ensemble} ensemble", fontsize=10)
            if column == 0:
                panel.set_ylabel(f"n = {n}, I = {size}\ncoverage")
    first = next(r for r in records if r.target == target)
    figure.suptitle(
        f"Coverage {_words(draw)}, target {first.target:g}, 95 % intervals in which every input of "
        "the pool counts once"
    )
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=4, frameon=False, title=f"x: {below}"
    )
    return figure


def _words(draw: Any) -> str:
    return "in each block of a gate" if draw is _blocks else "of the answers that came so far"


def _blocks(panel: Axes, found: dict[str, PromiseRecord]) -> None:
    names = [part.name for part in found[GATE].blocks if part.share >= RARE]
    for index, rule in enumerate((MARGINAL, GATE)):
        parts = [part for part in found[rule].blocks if part.name in names]
        x = [names.index(part.name) + (2 * index - 1) * ASIDE for part in parts]
        low, high = (
            [part.coverage - part.low for part in parts],
            [part.high - part.coverage for part in parts],
        )
        panel.errorbar(
            x,
            [part.coverage for part in parts],
            (low, high),
            linestyle="",
            label=rule,
            **STYLES[rule],
        )
    shares = {part.name: part.share for part in found[GATE].blocks}
    short = [name.replace("ready in ", "").replace("never ready", "never") for name in names]
    panel.set_xlim(-0.6, max(len(names), 3) - 0.4)
    panel.set_xticks(
        range(len(names)),
        [f"{words}\n{shares[name]:.0%}" for words, name in zip(short, names, strict=True)],
        fontsize=7,
    )


def _answered(panel: Axes, found: dict[str, PromiseRecord]) -> None:
    for rule in (MARGINAL, GATE, ACCUMULATED_GATE, FIXED):
        parts = found[rule].answered
        style = {**STYLES[rule], "markersize": 3.5, "linewidth": 1.5}
        panel.plot(
            [part.share for part in parts],
            [part.coverage for part in parts],
            label=LABELS.get(rule, rule),
            **style,
        )
        if rule in (MARGINAL, GATE):
            colour = STYLES[rule]["color"]
            panel.fill_between(
                [p.share for p in parts],
                [p.low for p in parts],
                [p.high for p in parts],
                color=colour,
                alpha=0.15,
                linewidth=0,
            )
    panel.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    panel.set_xlim(0, 1.02)


def _latencies(records: Sequence[PromiseRecord]) -> Figure:
    """The latency of the gate over that of the marginal rule, at every setting."""
    found = [r for r in records if r.rule == GATE]
    settings = [(data, ensemble) for data in (*LARGE, *SMALL) for ensemble in ENSEMBLES]
    figure = Figure(figsize=(10, 5.5), layout="constrained")
    panel = figure.subplots()
    counts = sorted({r.n for r in found})
    for index, n in enumerate(counts):
        for kind, (size, target) in enumerate(
            (size, target) for size in SIZES for target in TARGETS
        ):
            mine = [r for r in found if (r.n, r.max_set_size, r.target) == (n, size, target)]
            x = [settings.index((r.data, r.ensemble)) + 0.2 * (kind - 1.5) for r in mine]
            colour = ("#56B4E9", "#0072B2", "#1A1A1A")[counts.index(n)]
            label = f"n = {n}" if kind == 0 else None
            panel.plot(
                x,
                [r.ratio or 1.0 for r in mine],
                "osD^"[kind],
                color=colour,
                linestyle="",
                label=label,
                zorder=3 - index,
            )
    for n, limit in RATIOS.items():
        panel.axhline(limit, color=("#0072B2", "#1A1A1A")[n == 1000], linewidth=0.9, linestyle=":")
    panel.axhline(1.0, color="black", linewidth=1.0)
    panel.set_xticks(
        range(len(settings)), [f"{data}\n{ensemble}" for data, ensemble in settings], fontsize=8
    )
    panel.set_ylabel("latency with a gate / latency without")
    panel.set_title(
        "What the promise for each block costs; in each column from the left: (I, target) = (1, "
        "0.9), (1, 0.95), (3, 0.9), (3, 0.95)",
        fontsize=10,
    )
    panel.legend(frameon=False)
    tidy(panel)
    return figure


def draw_fronts(records: Sequence[FrontRecord], folder: Path) -> list[Path]:
    """Write the figure of latency against work; the paths written."""
    settings = list(dict.fromkeys((record.data, record.ensemble) for record in records))
    rows = -(-len(settings) // 4)
    figure = Figure(figsize=(15, 4.0 * rows + 0.7), layout="constrained")
    panels = list(figure.subplots(rows, min(4, len(settings)), squeeze=False).flat)
    for panel in panels[len(settings) :]:
        panel.set_axis_off()
    handles: dict[str, Any] = {}
    for panel, (data, ensemble) in zip(panels, settings, strict=False):
        mine = [record for record in records if (record.data, record.ensemble) == (data, ensemble)]
        for size in sorted({record.max_set_size for record in mine}):
            _front(
                panel,
                [record for record in mine if record.max_set_size == size],
                ("#0072B2", "#56B4E9")[size > 1],
            )
        log_axes(panel, [record.work for record in mine], [record.latency for record in mine])
        name = f"{data} (simulated)" if mine[0].simulated else data
        panel.set_title(f"{name}, {ensemble}, n = {mine[0].n}", fontsize=10)
        panel.set(xlabel="member-steps behind an answer", ylabel="latency / T")
        tidy(panel)
        handles |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    figure.suptitle(
        f"What latency costs in work, target {records[0].target:g}. Labels: the lowest price of "
        "work that chose a schedule"
    )
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=6, frameon=False
    )
    return save_figure(figure, folder, "front")


def _front(panel: Axes, records: Sequence[FrontRecord], colour: str) -> None:
    joined = sorted((record for record in records if record.prices), key=lambda record: record.work)
    panel.plot(
        [record.work for record in joined],
        [record.latency for record in joined],
        color=colour,
        linewidth=1.0,
        alpha=0.6,
    )
    ends = {(record.work, record.latency) for record in records if not record.prices}
    for record in records:
        look: dict[str, Any] = {
            "color": colour,
            "marker": POINTS[record.name],
            "markersize": 6,
            "linestyle": "",
            "elinewidth": 0.8,
        }
        reach = [
            None
            if bounds is None
            else [[max(0.0, value - bounds[0])], [max(0.0, bounds[1] - value)]]
            for value, bounds in (
                (record.work, record.work_interval),
                (record.latency, record.latency_interval),
            )
        ]
        label = f"{record.name}, I = {record.max_set_size}"
        panel.errorbar(
            record.work, record.latency, xerr=reach[0], yerr=reach[1], label=label, **look
        )
        if record.prices and (record.work, record.latency) in ends:  # this point has a name already
            continue
        words, offset = (
            (f"{record.prices[0]:g}", (4, 4))
            if record.prices
            else (record.name.partition(" ")[0], (-4, -11))
        )
        side = "left" if record.prices else "right"
        panel.annotate(
            words,
            (record.work, record.latency),
            textcoords="offset points",
            xytext=offset,
            fontsize=8,
            color=colour,
            ha=side,
        )
