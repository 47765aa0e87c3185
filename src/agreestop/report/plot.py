"""Figures as functions that draw on matplotlib axes: `ag.plot`.

coverage(evaluation)          coverage by stopping time, class, block or group, with intervals
                              and the target
stopping(decisions)           the share of inputs that have been answered by each time
compare({name: evaluation})   coverage against latency, with a point for each rule
answered({name: evaluation})  the share answered against the share answered wrongly: the front of
                              rules that abstain, such as one rule at several targets
spotting(spotter, recordings) events found against false alarms, over thresholds
drift(monitor)                the evidence of a drift monitor; the threshold or the misses of
                              an adaptive rule

Each takes `axes`, the current ones if none are given, and returns them.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from agreestop.common import InputError
from agreestop.common.levels import as_target
from agreestop.common.tables import few_times
from agreestop.decide.decisions import Decisions, Evaluation
from agreestop.decide.drift.adaptive import AdaptiveRule
from agreestop.decide.drift.monitor import DriftMonitor
from agreestop.decide.spotting import CalibratedSpotter, Recordings

from .contents import GroupCoverage
from .drift import draw_adaptive, draw_evidence
from .figures import ABOVE, draw_coverage, name_groups, reach_of, styles_of, tidy

__all__ = ["answered", "compare", "coverage", "drift", "spotting", "stopping"]

FRONT_POINTS = 60
REACH = 5  # of the promised false alarms, in the front of found events
PARTS = {
    "time": "stopping time",
    "class": "true class",
    "block": "first looked ready",
    "group": "group",
}


def coverage(
    evaluation: Evaluation,
    axes: Axes | None = None,
    *,
    by: str = "time",
    target: float | None = None,
) -> Axes:
    """Coverage with its intervals, by "time", "class", "block" or "group".

    With a target, what lies below it is orange, and a rule that abstains shows what a target
    promises: the share of inputs that abstain, or whose answer holds the label.
    """
    if by not in PARTS:
        raise InputError(f"by is {by!r}: choose one of {', '.join(PARTS)}.")
    _check(evaluation, Evaluation, "coverage", "an Evaluation, which ag.evaluate returns")
    groups = tuple(few_times(evaluation)) if by == "time" else getattr(evaluation, f"by_{by}")
    if not groups:
        raise InputError(
            f"this evaluation has no {by}s: a rule has them if it has a gate, or was calibrated "
            "with groups."
        )
    abstains = target is not None and (evaluation.answered or 1.0) < 1.0
    shown = [
        GroupCoverage(
            group.name or f"{group.key:g}", group.n, group.kept if abstains else group.coverage
        )
        for group in groups
    ]
    axes = _current(axes)
    draw_coverage(axes, shown, None if target is None else float(as_target(target)))
    name_groups(axes, [group.name for group in shown])
    axes.set(xlabel=PARTS[by], ylabel="covered or unanswered" if abstains else "coverage")
    tidy(axes)
    return axes


def stopping(decisions: Decisions, axes: Axes | None = None, *, label: str | None = None) -> Axes:
    """The share of inputs that have been answered by each time, as a curve with a name
    for the legend.
    """
    decisions = getattr(decisions, "decisions", decisions)
    _check(decisions, Decisions, "stopping", "Decisions, which calibrated.decide returns")
    axes, times = _current(axes), np.unique(np.array(decisions.checkpoints, dtype=np.float64))
    ended = decisions.stop_time[decisions.answered]
    counts = np.bincount(np.searchsorted(times, ended), minlength=len(times))
    axes.step([0.0, *times], [0.0, *np.cumsum(counts) / len(decisions)], where="post", label=label)
    axes.set(xlabel="time", ylabel="inputs answered", ylim=(0, 1.02))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    tidy(axes)
    return axes


def compare(
    evaluations: Mapping[str, Evaluation], axes: Axes | None = None, *, target: float | None = None
) -> Axes:
    """Coverage against latency as a share of T, with intervals, a point for each
    named evaluation.
    """
    axes = _points(evaluations, axes, "compare", "normalized_latency", "coverage")
    if target is not None:
        axes.axhline(float(as_target(target)), color="black", linewidth=1, zorder=0)
    axes.set(xlabel="latency / T", ylabel="coverage")
    return axes


def answered(
    evaluations: Mapping[str, Evaluation], axes: Axes | None = None, *, target: float | None = None
) -> Axes:
    """The share answered against the share answered wrongly, with intervals, a point for each named
    evaluation. The target, if given, is a line at the share of wrong answers that it allows.
    """
    axes = _points(evaluations, axes, "answered", "wrong", "answered")
    if target is not None:
        axes.axvline(1 - float(as_target(target)), color="black", linewidth=1, zorder=0)
    axes.set(xlabel="answered and wrong", ylabel="answered")
    return axes


def _points(
    evaluations: Mapping[str, Evaluation], axes: Axes | None, function: str, across: str, up: str
) -> Axes:
    """Two figures of each named evaluation against each other."""
    _check(evaluations, Mapping, function, "a dictionary of names and evaluations")
    axes, styles = _current(axes), styles_of(evaluations)
    for name, result in evaluations.items():
        _check(result, Evaluation, function, "an Evaluation for each name")
        style, (x, y) = styles[name], (getattr(result, across), getattr(result, up))
        if x is None or y is None:
            raise InputError(
                f"ag.plot.{function} needs rules about right and wrong answers: {name!r} is about "
                "a mean loss."
            )
        axes.errorbar(
            [x],
            [y],
            xerr=reach_of([x]),
            yerr=reach_of([y]),
            color=style.colour,
            marker=style.marker,
            linestyle="",
            capsize=2,
            label=name,
        )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.legend(frameon=False, fontsize=9)
    tidy(axes)
    return axes


def drift(
    watched: DriftMonitor | AdaptiveRule, axes: Axes | None = None, *, misses: bool = False
) -> Axes:
    """The evidence of a `DriftMonitor` with its alarms, or the threshold of an `AdaptiveRule`, over
    the decisions.

    misses: of an `AdaptiveRule`, the share of answers that missed instead.
    """
    _check(watched, (DriftMonitor, AdaptiveRule), "drift", "a DriftMonitor or an AdaptiveRule")
    axes = _current(axes)
    if isinstance(watched, DriftMonitor):
        draw_evidence(watched, axes)
    else:
        draw_adaptive(watched, misses, axes)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize=9)
    return axes


def spotting(
    spotter: CalibratedSpotter,
    recordings: Any,
    events: Any = None,
    axes: Axes | None = None,
    *,
    within: int | None = None,
) -> Axes:
    """The share of events found against false alarms a recording, over thresholds, on recordings
    with events that did not set the threshold.

    The point with intervals is the spotter's own threshold; the dashed line is its promise. The
    axis ends where false alarms are `REACH` times those promised.
    """
    _check(spotter, CalibratedSpotter, "spotting", "a Spotter that was calibrated")
    axes, data = _current(axes), Recordings.of(recordings, events)
    own = spotter.evaluate(data, within=within)
    if own.found is None:
        raise InputError("ag.plot.spotting got recordings without events: mark some.")
    scores = np.concatenate(data.scores)
    shares = np.geomspace(1 / len(scores), 0.5, FRONT_POINTS)
    grid = np.unique([*np.quantile(scores, 1 - shares), spotter.threshold])
    points = [spotter.with_threshold(one).evaluate(data, within=within) for one in grid.tolist()]
    found = [0.0 if one.found is None else float(one.found) for one in points]
    axes.plot([float(one.capped) for one in points], found, color=ABOVE, linewidth=1)
    across, up = reach_of([own.capped]), reach_of([own.found])
    style: dict[str, Any] = {"fmt": "o", "color": ABOVE, "capsize": 2, "label": "the spotter"}
    axes.errorbar([own.capped], [own.found], xerr=across, yerr=up, **style)
    promised, per = float(spotter.spotter.allowed), spotter.spotter.per
    axes.axvline(promised, color="black", linestyle="--", linewidth=1)
    counted = f"at most {spotter.spotter.cap} of each recording counted"
    axes.set(xlabel=f"false alarms {'an' if per == 'hour' else 'a'} {per}, {counted}")
    most = max(float(one.capped) for one in points)
    right = min(max(REACH * promised, own.capped.high), most or math.inf)
    axes.set(ylabel="found", xlim=(-0.02 * right, 1.02 * right))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    tidy(axes)
    return axes


def _check(given: object, kind: Any, function: str, needed: str) -> None:
    if not isinstance(given, kind):
        raise InputError(f"ag.plot.{function} got a {type(given).__name__}: give {needed}.")


def _current(axes: Axes | None) -> Axes:
    if axes is not None:
        if not isinstance(axes, Axes):
            raise InputError(
                f"axes is a {type(axes).__name__}: give one pair of axes, such as axes[0, 1] of "
                "plt.subplots(2, 2)."
            )
        return axes
    from matplotlib import pyplot  # slow to import, and only needed for the current axes

    return pyplot.gca()
