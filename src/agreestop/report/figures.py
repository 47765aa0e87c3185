"""Figures, drawn with matplotlib and written as PNG and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from agreestop.decide.atomic import atomic_writer

from .records import Record

COLOURS = ("#999999", "#56B4E9", "#CC79A7", "#009E73", "#0072B2", "#E69F00", "#D55E00", "#E69F00", "#D55E00", "#000000")
MARKERS = ("x", "s", "D", "P", "^", "o", "v", "o", "v", "*")


@dataclass(frozen=True)
class _Style:
    label: str
    colour: str
    marker: str
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


def draw_coverage_and_latency(records: Sequence[Record], folder: Path, title: str, name: str) -> list[Path]:
    """Coverage against the target, latency and set size against the number of members, a line for each rule; the paths written."""
    labels = list(dict.fromkeys(record.label for record in records))
    members = max(record.K for record in records)
    figure = Figure(figsize=(12.5, 4.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.1, 1.1, 0.9))
    for place, label in enumerate(labels):
        mine = [record for record in records if record.label == label]
        over_targets = sorted((one for one in mine if members == one.K), key=lambda one: one.target)
        over_members = sorted((one for one in mine if one.target == 0.9), key=lambda one: one.K)
        style = _Style(label, COLOURS[place], MARKERS[place], "--" if "every" in label else "-")
        targets, sizes = [one.target for one in over_targets], [one.K for one in over_members]
        style.line(left, targets, [one.coverage for one in over_targets], [one.coverage_se for one in over_targets])
        style.line(middle, sizes, [one.latency for one in over_members], [one.latency_se for one in over_members])
        style.line(right, sizes, [one.set_size for one in over_members], [0.0] * len(sizes))
    targets = sorted({record.target for record in records})
    left.plot(targets, targets, color="black", linewidth=1, zorder=0)
    left.annotate("promised", (targets[-1], targets[-1]), textcoords="offset points", xytext=(-26, -20), fontsize=9)
    left.set(xlabel="target", ylabel="coverage", title=f"Is the promise kept? ({members} members)")
    middle.set(xlabel="members K", ylabel="latency / T", title="How early does it stop? (target 0.9)", ylim=(0, 1.03))
    right.set(xlabel="members K", ylabel="mean set size", title="How large are the answers?", ylim=(0, None))
    for axes in (middle, right):
        axes.set_xticks(sorted({record.K for record in records}))
    for axes in (left, middle, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=13)
    handles, names = right.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return save_figure(figure, folder, name)


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and SVG."""
    paths = [folder / f"{name}.{kind}" for kind in ("png", "svg")]
    for path in paths:
        with atomic_writer(path) as stream:
            figure.savefig(stream, format=path.suffix[1:], dpi=150)
    return paths
