"""The log of a drift monitor, or of an adaptive rule, as figures."""

import math
from collections.abc import Callable
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from agreestop.decide.adaptive import AdaptiveRule
from agreestop.decide.drift import DriftMonitor

from .figures import ABOVE, BELOW, MUTED, WIDE_PANEL, Panel, tidy


def drift_panels(watched: DriftMonitor | AdaptiveRule) -> list[Panel]:
    """The evidence of a monitor with its alarms; or the threshold of an adaptive rule, and the share of its answers that missed."""
    if isinstance(watched, DriftMonitor):
        words = f"Evidence that something has changed, against an alarm at {float(1 / watched.delta):g}. {watched!r}."
        return [Panel("Evidence of drift", words, WIDE_PANEL, partial(_on_figure, partial(draw_evidence, watched)))]
    return [
        Panel("Threshold", f"The threshold over time. {watched!r}.", WIDE_PANEL, partial(_on_figure, partial(draw_adaptive, watched, 0))),
        Panel(
            "Misses",
            f"The share of misses so far, over time. {watched!r}.",
            WIDE_PANEL,
            partial(_on_figure, partial(draw_adaptive, watched, 1)),
        ),
    ]


def _on_figure(draw: Callable[[Axes], None], figure: Figure | SubFigure) -> None:
    axes = figure.subplots()
    draw(axes)
    if not isinstance(figure, SubFigure) and axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize=9)


def draw_evidence(monitor: DriftMonitor, axes: Axes) -> None:
    """Draw the evidence of a monitor and its alarms."""
    kinds = {"misses": (monitor.misses, BELOW, "from labels"), "inputs": (monitor.inputs, ABOVE, "without labels")}
    for kind, (wealth, colour, name) in kinds.items():
        if not wealth.log.size:
            continue
        axes.plot(wealth.log.counts, wealth.log.values[:, 0], color=colour, label=name)
        for alarm in monitor.alarms:
            if alarm.kind == kind:
                axes.axvline(alarm.number, color=colour, linestyle=":")
                words, above = f"after {alarm.number:,} ", axes.get_xaxis_transform()
                axes.text(alarm.number, 1, words, transform=above, color=colour, ha="right", va="top", rotation=90, fontsize=8.5)
    axes.axhline(math.log10(1 / monitor.delta), color=MUTED, linestyle="--", label=f"alarm at {float(1 / monitor.delta):g}")
    axes.set_xlabel("decisions")
    axes.set_ylabel("evidence, powers of ten")
    tidy(axes)


def draw_adaptive(adaptive: AdaptiveRule, column: int, axes: Axes) -> None:
    """Draw the threshold (column 0) or the share of misses (column 1) of an adaptive rule."""
    axes.plot(adaptive.log.counts, adaptive.log.values[:, column], color=(ABOVE, BELOW)[column])
    if column:
        axes.axhline(adaptive.miss_target, color=MUTED, linestyle="--", label=f"1 - target, {adaptive.miss_target:g}")
        axes.set_ylim(bottom=0)
    axes.set_xlabel("decisions")
    axes.set_ylabel(("threshold", "share of misses so far")[column])
    tidy(axes)
