"""The log of a drift monitor, or of an adaptive rule, drawn over the decisions.

`ag.plot.drift` calls these functions.
"""

import math

from matplotlib.axes import Axes

from agreestop.decide.drift.adaptive import AdaptiveRule
from agreestop.decide.drift.monitor import DriftMonitor

from .figures import ABOVE, BELOW, MUTED, tidy


def draw_evidence(monitor: DriftMonitor, axes: Axes) -> None:
    """Draw the evidence of a monitor and its alarms."""
    kinds = {
        "misses": (monitor.misses, BELOW, "from labels"),
        "inputs": (monitor.inputs, ABOVE, "without labels"),
    }
    for kind, (wealth, colour, name) in kinds.items():
        if not wealth.log.size:
            continue
        axes.plot(wealth.log.counts, wealth.log.values[:, 0], color=colour, label=name)
        for alarm in monitor.alarms:
            if alarm.kind == kind:
                axes.axvline(alarm.number, color=colour, linestyle=":")
                words, above = f"after {alarm.number:,} ", axes.get_xaxis_transform()
                axes.text(
                    alarm.number,
                    1,
                    words,
                    transform=above,
                    color=colour,
                    ha="right",
                    va="top",
                    rotation=90,
                    fontsize=8.5,
                )
    axes.axhline(
        math.log10(1 / monitor.delta),
        color=MUTED,
        linestyle="--",
        label=f"alarm at {float(1 / monitor.delta):g}",
    )
    axes.set_xlabel("decisions")
    axes.set_ylabel("evidence, powers of ten")
    tidy(axes)


def draw_adaptive(adaptive: AdaptiveRule, misses: bool, axes: Axes) -> None:
    """Draw the threshold of an adaptive rule, or the share of its answers that missed."""
    column = int(misses)
    axes.plot(adaptive.log.counts, adaptive.log.values[:, column], color=(ABOVE, BELOW)[column])
    if misses:
        axes.axhline(
            adaptive.miss_target,
            color=MUTED,
            linestyle="--",
            label=f"1 - target, {adaptive.miss_target:g}",
        )
        axes.set_ylim(bottom=0)
    axes.set_xlabel("decisions")
    axes.set_ylabel(("threshold", "share of misses so far")[column])
    tidy(axes)
