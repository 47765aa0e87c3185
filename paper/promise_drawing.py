"""Figures of `promises`: coverage in the blocks of a gate, coverage of what was answered so far, and what the gate costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from agreestop.report.figures import save_figure, tidy

from .promises import ACCUMULATED_GATE, COUNTS, ENSEMBLES, FIXED, GATE, LARGE, MARGINAL, SIZES, SMALL, TARGETS, PromiseRecord

STYLES: dict[str, dict[str, Any]] = {
    MARGINAL: {"color": "#0072B2", "marker": "o"},
    GATE: {"color": "#D55E00", "marker": "s"},
    ACCUMULATED_GATE: {"color": "#009E73", "marker": "^"},
    FIXED: {"color": "#E69F00", "marker": "H"},
}
LABELS = {ACCUMULATED_GATE: "accumulated (Ringel et al. 2024), δ = 0.1"}
RARE = 0.005  # blocks with fewer of the inputs are not drawn
ASIDE = 0.14  # of the distance between blocks
RATIOS = {200: 1.2, 1000: 1.1}


def draw_promises(records: Sequence[PromiseRecord], folder: Path) -> list[Path]:
    """Write all figures; the paths written."""
    written = []
    for target in TARGETS:
        blocks = _grid(records, target, _blocks, "block of times in which the input first looked ready, and its share of the inputs")
        written += save_figure(blocks, folder, f"blocks-{target:g}")
        written += save_figure(_grid(records, target, _answered, "share of the inputs that are answered"), folder, f"answered-{target:g}")
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
            mine = [r for r in records if (r.data, r.ensemble, r.n, r.max_set_size, r.target) == (data, ensemble, n, size, target)]
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
    figure.suptitle(f"Coverage {_words(draw)}, target {first.target:g}, 95 % intervals in which every input of the pool counts once")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, title=f"x: {below}")
    return figure


def _words(draw: Any) -> str:
    return "in each block of a gate" if draw is _blocks else "of the answers that came so far"


def _blocks(panel: Axes, found: dict[str, PromiseRecord]) -> None:
    names = [part.name for part in found[GATE].blocks if part.share >= RARE]
    for place, rule in enumerate((MARGINAL, GATE)):
        parts = [part for part in found[rule].blocks if part.name in names]
        x = [names.index(part.name) + (2 * place - 1) * ASIDE for part in parts]
        low, high = [part.coverage - part.low for part in parts], [part.high - part.coverage for part in parts]
        panel.errorbar(x, [part.coverage for part in parts], (low, high), linestyle="", label=rule, **STYLES[rule])
    shares = {part.name: part.share for part in found[GATE].blocks}
    short = [name.replace("ready in ", "").replace("never ready", "never") for name in names]
    panel.set_xlim(-0.6, max(len(names), 3) - 0.4)
    panel.set_xticks(range(len(names)), [f"{words}\n{shares[name]:.0%}" for words, name in zip(short, names, strict=True)], fontsize=7)


def _answered(panel: Axes, found: dict[str, PromiseRecord]) -> None:
    for rule in (MARGINAL, GATE, ACCUMULATED_GATE, FIXED):
        parts = found[rule].answered
        style = {**STYLES[rule], "markersize": 3.5, "linewidth": 1.5}
        panel.plot([part.share for part in parts], [part.coverage for part in parts], label=LABELS.get(rule, rule), **style)
        if rule in (MARGINAL, GATE):
            colour = STYLES[rule]["color"]
            panel.fill_between(
                [p.share for p in parts], [p.low for p in parts], [p.high for p in parts], color=colour, alpha=0.15, linewidth=0
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
    for place, n in enumerate(counts):
        for kind, (size, target) in enumerate((size, target) for size in SIZES for target in TARGETS):
            mine = [r for r in found if (r.n, r.max_set_size, r.target) == (n, size, target)]
            x = [settings.index((r.data, r.ensemble)) + 0.2 * (kind - 1.5) for r in mine]
            colour = ("#56B4E9", "#D55E00", "#009E73")[counts.index(n)]
            label = f"n = {n}" if kind == 0 else None
            panel.plot(x, [r.ratio or 1.0 for r in mine], "osD^"[kind], color=colour, linestyle="", label=label, zorder=3 - place)
    for n, limit in RATIOS.items():
        panel.axhline(limit, color=("#D55E00", "#009E73")[n == 1000], linewidth=0.9, linestyle=":")
    panel.axhline(1.0, color="black", linewidth=1.0)
    panel.set_xticks(range(len(settings)), [f"{data}\n{ensemble}" for data, ensemble in settings], fontsize=8)
    panel.set_ylabel("latency with a gate / latency without")
    panel.set_title(
        "What the promise for each block costs; in each column from the left: (I, target) = (1, 0.9), (1, 0.95), (3, 0.9), (3, 0.95)",
        fontsize=10,
    )
    panel.legend(frameon=False)
    tidy(panel)
    return figure
