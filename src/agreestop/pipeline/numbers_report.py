"""A report from numbers: how early an `IntervalStop` answers at several targets and widths, how
often its intervals hold the true number, and how wide they are, against one time for all inputs.

A third of the rows fixes which widths are shown. The others are divided many times at random into
calibration and test rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FuncFormatter

from agreestop.common import (
    InputError,
    ProgressCallback,
    as_count,
    names_in,
    no_progress,
)
from agreestop.common.errors import no_calibration_warnings
from agreestop.common.estimates import Estimate
from agreestop.common.levels import Target, as_target
from agreestop.decide.intervals import IntervalStop, Numbers
from agreestop.decide.tuning.splits import PoolFigures, repeat_splits
from agreestop.report.figures import ABOVE, BESIDE, WIDE_PANEL, Panel, reach_of, tidy, true_percent
from agreestop.report.page import write_small_page

OTHER_TARGETS = (0.8, 0.9, 0.95)
REPEATS, POOL_REPEATS, LEAST_ROWS, MOST_CALIBRATION = 30, 5, 60, 1000
WIDTHS, MOST_TIMES, TUNING_SHARE = 3, 8, 1 / 3
TITLES = (
    "target",
    "narrower than",
    "coverage",
    "mean time",
    "mean width",
    "the same width, one time",
)


@dataclass(frozen=True)
class NumbersPoint:
    """An `IntervalStop` at one target and width, or one time for all, whose `max_width` is None."""

    target: float
    max_width: float | None
    coverage: Estimate
    time: Estimate
    width: float


@dataclass(frozen=True)
class NumbersReport:
    """What was measured; the first target is the main one.

    fixed    one time for all inputs, at the main target
    needed   what says why nothing was measured at a target, by target
    ends     whether the model gives lower and upper ends
    """

    points: tuple[NumbersPoint, ...]
    fixed: tuple[NumbersPoint, ...]
    needed: dict[float, str]
    ends: bool

    @property
    def main(self) -> list[NumbersPoint]:
        """The points at the main target, from narrow to wide."""
        target = self.fixed[0].target
        return [point for point in self.points if point.target == target]

    def same_width(self, point: NumbersPoint) -> float | None:
        """The time at which all intervals together would be as narrow on average, at the main
        target; None where that is never so, or for another target.
        """
        if point.target != self.fixed[0].target:
            return None
        return next((float(one.time) for one in self.fixed if one.width <= point.width), None)


def holds_numbers(path: str | PathLike[str]) -> bool:
    """Whether a file is an `.npz` file of numbers."""
    names = names_in(path)
    return {"centre", "scale"} <= names or {"lower", "upper"} <= names


def measure_numbers(
    data: Numbers,
    target: Target = 0.9,
    n_calibration: int | None = None,
    seed: int = 0,
    progress: ProgressCallback = no_progress,
) -> NumbersReport:
    """Figures of an `IntervalStop` at some targets and widths, and of single times."""
    if data.labels is None:
        raise InputError("the numbers have no labels: a report needs 'labels', the true numbers.")
    if len(data) < LEAST_ROWS:
        raise InputError(f"there are {len(data)} rows of numbers: a report needs {LEAST_ROWS}.")
    order = np.random.default_rng(seed).permutation(len(data))
    rows, others = np.split(order, [round(TUNING_SHARE * len(data))])
    tuning, pool = data.rows(rows), data.rows(others)
    n = min(len(pool) // 2, MOST_CALIBRATION) if n_calibration is None else n_calibration
    if as_count(n, "n_calibration") >= len(pool):
        raise InputError(f"n_calibration is {n} of {len(pool)} rows: leave some to test.")
    main, few = float(as_target(target)), np.linspace(0, len(data.times) - 1, MOST_TIMES)
    times = [data.times[index] for index in sorted(set(few.round().astype(int).tolist()))]
    targets = (main, *(other for other in OTHER_TARGETS if other != main))
    if n < (least := IntervalStop(main, max_width=1.0).examples_needed()):
        raise InputError(f"n_calibration is {n}: a target of {main:g} needs {least}.")

    def figures(some: Numbers, rule: IntervalStop, many: int) -> PoolFigures:
        with no_calibration_warnings():
            splits = repeat_splits(rule, some, n_calibration=many, repeats=REPEATS, seed=seed)
        return splits.pool_figures(POOL_REPEATS)

    def point(rule: IntervalStop) -> NumbersPoint:
        found = figures(pool, rule, n)
        last = float((rule.checkpoints or data.times)[-1])
        time = found.normalized_latency.over(1 / last)
        width, width_given = float(found.set_size), rule.max_width if not rule.checkpoints else None
        coverage = found.coverage.within(0.0, 1.0)
        return NumbersPoint(float(rule.terms.target or 0), width_given, coverage, time, width)

    progress("widths", 0.0)
    ends = [
        float(
            figures(tuning, IntervalStop(main, (time,), max_width=1.0), len(tuning) // 2).set_size
        )
        for time in (times[0], times[-1])
    ]
    widths = _widths(*ends)
    fixed = []
    for number, time in enumerate(times):
        progress(f"one time, {time:g}", 0.1 + 0.3 * number / len(times))
        fixed.append(point(IntervalStop(main, (time,), max_width=1.0)))
    cases, points, needed = [(one, w) for one in targets for w in widths], [], {}
    for number, (one, width) in enumerate(cases):
        progress(f"target {one:g}, width {width:g}", 0.4 + 0.6 * number / len(cases))
        rule = IntervalStop(one, max_width=width)
        if n < rule.examples_needed():
            needed[one] = f"needs {rule.examples_needed()} calibration rows"
            continue
        points.append(point(rule))
    return NumbersReport(tuple(points), tuple(fixed), needed, data.has_ends)


def _widths(first: float, last: float) -> list[float]:
    """Widths to show, of two digits: between those at the last time and at the first."""
    low, high = (last, first) if 1.05 * last < first else (0.7 * last, 1.4 * last)
    between = np.geomspace(low, high, WIDTHS + 2)[1:-1].tolist()
    return sorted({float(f"{width:.2g}") for width in between})


def table_of_numbers(found: NumbersReport) -> list[tuple[str, ...]]:
    """A row of text for each target and width, as `TITLES` say."""
    rows: list[tuple[str, ...]] = []
    for one in found.points:
        same = found.same_width(one)
        figures = one.coverage.in_words(), one.time.in_words(".4g"), f"{one.width:.3g}"
        other = "" if same is None else f"{same:.4g}"
        rows.append((f"{one.target:g}", f"{one.max_width:g}", *figures, other))
    rows += [(f"{target:g}", words, "", "", "", "") for target, words in found.needed.items()]
    return rows


def advise_on_numbers(found: NumbersReport) -> list[str]:
    """What the figures say, in sentences."""
    middle = found.main[len(found.main) // 2]
    said = [
        "Give the width that your use needs as max_width: the promise holds at every width. With "
        f"{middle.max_width:g}, intervals come at {middle.time:.4g} on average and are "
        f"{middle.width:.3g} wide."
    ]
    low = [one for one in found.points if one.coverage.high < one.target]
    if low:
        said.append(
            f"At target {low[0].target:g} only {low[0].coverage:.1%} of the intervals hold the "
            "true number, less than chance explains. Rows may not be exchangeable: check whether "
            "rows repeat, come from one recording, or are sorted by time."
        )
    same = found.same_width(middle)
    if same is None:
        said.append(
            "At no single time are all intervals so narrow on average: stopping each input when "
            "its own interval is narrow is worth it."
        )
    elif same > middle.time.high:
        said.append(
            f"One time for all inputs would have to be {same:.4g} for intervals as narrow on "
            "average: stopping each input when its own interval is narrow is worth it."
        )
    else:
        said.append(
            f"One time for all inputs, {same:.4g}, gives intervals as narrow on average, and is "
            "simpler; the intervals of hard inputs are then wider than max_width."
        )
    return said


def numbers_in_code(found: NumbersReport) -> str:
    """Lines of Python that calibrate the rule that the advice speaks of."""
    middle = found.main[len(found.main) // 2]
    fields = "lower=lower, upper=upper" if found.ends else "centre, scale"
    return (
        f"rule = ag.IntervalStop(target={middle.target:g}, max_width={middle.max_width:g})\n"
        f"calibrated = rule.calibrate(ag.Numbers({fields}, labels=labels))\n"
        "decision = calibrated.decide(new)[0]  # decision.time, .lower, .upper"
    )


def numbers_panels(found: NumbersReport) -> list[Panel]:
    """Width against time beside single times, and coverage against the target."""
    target = found.fixed[0].target
    listed = "; ".join(f"{one.width:.3g} at {one.time:.4g}" for one in found.main)
    coverage = "; ".join(
        f"target {one.target:g}, width {one.max_width:g}: {one.coverage:.1%}"
        for one in found.points
    )
    return [
        Panel(
            f"Mean width against mean time (target {target:g})",
            f"Mean width against mean time. IntervalStop: {listed}",
            WIDE_PANEL,
            partial(_draw_widths, found),
        ),
        Panel(
            "Is the promise kept?",
            f"Coverage. {coverage}",
            WIDE_PANEL,
            partial(_draw_coverage, found.points),
        ),
    ]


def _draw_widths(found: NumbersReport, figure: Figure | SubFigure) -> None:
    axes = figure.subplots()
    for some, colour, marker, name in (
        (found.fixed, BESIDE, "", "one time for all"),
        (found.main, ABOVE, "o", "IntervalStop"),
    ):
        points = [float(one.time) for one in some], [one.width for one in some]
        axes.plot(*points, color=colour, marker=marker, label=name, linewidth=1.5)
    axes.set(xlabel="mean time", ylabel="mean width", ylim=(0, None))
    axes.legend(frameon=False, fontsize=9)
    tidy(axes)


def _draw_coverage(points: Sequence[NumbersPoint], figure: Figure | SubFigure) -> None:
    axes = figure.subplots()
    targets = sorted({one.target for one in points})
    widths = sorted({one.max_width or 0.0 for one in points})
    for shift, (width, marker) in enumerate(zip(widths, "o^sD"[: len(widths)], strict=True)):
        some = [one for one in points if one.max_width == width]
        at = [targets.index(one.target) + 0.15 * (shift - (len(widths) - 1) / 2) for one in some]
        mean, reach = [float(one.coverage) for one in some], reach_of(one.coverage for one in some)
        style: Any = {"color": ABOVE, "capsize": 2, "linestyle": "", "marker": marker}
        axes.errorbar(at, mean, yerr=reach, label=f"narrower than {width:g}", **style)
    for place, target in enumerate(targets):
        axes.hlines(target, place - 0.4, place + 0.4, color="black", linewidth=1, zorder=0)
    axes.set_xticks(range(len(targets)), [true_percent(target) for target in targets])
    axes.set(xlabel="target (black line)", ylabel="coverage")
    axes.yaxis.set_major_formatter(FuncFormatter(true_percent))
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    tidy(axes)


def write_numbers_page(found: NumbersReport, path: Path, name: str) -> Path:
    """Write advice, figures and the table as one HTML page that loads nothing."""
    notes = (
        f"Means over {REPEATS} random divisions into calibration and test rows, with intervals for "
        "the draw of the rows. A third of the rows fixed which widths are shown, and nothing else.",
        "Promised: the interval holds the true number with probability at least the target, at "
        "whatever time it stops, for a new row exchangeable with the calibration rows. An input "
        "that is never narrow enough is answered at the last time, whatever its width.",
        "As narrow at one time: the first of the times tried at which the intervals of all "
        "inputs together, calibrated for this time alone, are as narrow on average.",
    )
    return write_small_page(
        path,
        f"How early is the interval narrow? {name}",
        [TITLES, *table_of_numbers(found)],
        notes,
        advise_on_numbers(found),
        numbers_in_code(found),
        numbers_panels(found),
    )
