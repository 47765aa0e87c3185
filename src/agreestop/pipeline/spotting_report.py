"""A report from recordings: what a `Spotter` finds and how often it raises a false alarm, at
several promises.

The recordings, or the people if they are given, are divided many times at random into halves: one
sets the threshold, the other is new.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from os import PathLike
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import PercentFormatter

from agreestop.common import InputError, ProgressCallback, names_in, no_progress
from agreestop.common.errors import no_calibration_warnings
from agreestop.common.estimates import Estimate
from agreestop.decide.spotting import Recordings, Spotter
from agreestop.decide.spotting.spotter import RECORDING, as_seconds
from agreestop.report.figures import ABOVE, BELOW, WIDE_PANEL, Panel, reach_of, tidy
from agreestop.report.page import write_small_page

PROMISES = {"recording": ("0.5", "0.2", "0.1", "0.05", "0.01"), "hour": ("4", "1", "1/4", "1/8")}
REPEATS = 20


@dataclass(frozen=True)
class SpottingPoint:
    """What a `Spotter` did: the false alarms that it promises, all of them an hour, and events."""

    spotter: Spotter
    false_alarms: Estimate
    per_hour: Estimate | None
    found: Estimate | None
    delay: Estimate | None

    @property
    def promised(self) -> float:
        """False alarms a recording, or an hour."""
        return float(self.spotter.allowed)


@dataclass(frozen=True)
class SpottingReport:
    """What was measured.

    points    from the boldest promise to the strictest
    refused   the sentence of `calibrate` for each promise that it could not keep
    near      as for `calibrate`
    """

    points: tuple[SpottingPoint, ...]
    refused: dict[str, str]
    near: int

    @property
    def main(self) -> SpottingPoint:
        """The point that the advice speaks of."""
        return self.points[len(self.points) // 2]


def holds_recordings(path: str | PathLike[str]) -> bool:
    """Whether a file is an `.npz` file of recordings."""
    return {"scores", "offsets"} <= names_in(path)


def measure_recordings(
    data: Recordings,
    make: Callable[[str], Spotter] = Spotter,
    near: int = 0,
    seed: int = 0,
    progress: ProgressCallback = no_progress,
) -> SpottingReport:
    """Figures at several promises; `make` gives the spotter for one."""
    units = data.units()
    many = int(units.max()) + 1
    if many < 4:
        raise InputError(f"there are {many} recordings or people: a report needs 4.")
    points, refused = [], {}
    promises = PROMISES[make("0.5").per]
    for number, promise in enumerate(promises):
        progress(f"false alarms {promise}", number / len(promises))
        rng, found, spotter = np.random.default_rng(seed), [], make(promise)
        try:
            for _ in range(REPEATS):
                inside = np.isin(units, rng.permutation(many)[: many // 2])
                with no_calibration_warnings():  # nothing is found then
                    own = spotter.calibrate(data.rows(np.flatnonzero(inside)), near=near)
                found.append(own.evaluate(data.rows(np.flatnonzero(~inside))))
        except InputError as error:
            refused[promise] = str(error)
            continue
        some = [[one.per_hour for one in found], [one.found for one in found]]
        others = [_mean(one) for one in (*some, [one.delay for one in found])]
        false = _mean([one.capped for one in found])
        assert false is not None
        points.append(SpottingPoint(spotter, false, *others))
    if not points:
        raise InputError(f"with half of the recordings, {next(iter(refused.values()))}")
    return SpottingReport(tuple(points), refused, near)


def _mean(estimates: Sequence[Estimate | None]) -> Estimate | None:
    """The mean of all divisions, and of the ends of their intervals."""
    known = [(float(one), one.low, one.high, one.se) for one in estimates if one is not None]
    return Estimate(*np.mean(known, axis=0).tolist()) if known else None


def titles_of(report: SpottingReport) -> tuple[str, ...]:
    """The names of the columns of `table_of_recordings`."""
    spotter = report.main.spotter
    seconds = "s" if spotter.step_seconds is not None else "steps"
    capped = f"false alarms, at most {spotter.cap} of each recording"
    if spotter.per == RECORDING and spotter.cap == 1:
        capped = "recordings with a false alarm"
    return f"promised {_per(spotter)}", capped, "an hour, all", "events found", f"delay, {seconds}"


def table_of_recordings(report: SpottingReport) -> list[tuple[str, ...]]:
    """A row of text for each promise, as `titles_of` says."""
    rows: list[tuple[str, ...]] = []
    for one in report.points:
        delay = None if one.delay is None else one.delay.over(1 / _seconds(one.spotter))
        figures = (one.false_alarms, one.per_hour, one.found, delay)
        words = ("" if figure is None else figure.in_words(".3g") for figure in figures)
        rows.append((f"{one.promised:g}", *words))
    return rows


def _per(spotter: Spotter) -> str:
    return "a recording" if spotter.per == RECORDING else "an hour"


def _seconds(spotter: Spotter) -> float:
    """The length of a step; 1 where only steps are known."""
    return 1.0 if spotter.step_seconds is None else float(as_seconds(spotter.step_seconds))


def advise_on_recordings(report: SpottingReport) -> list[str]:
    """What the figures say, in sentences."""
    main, spotter = report.main, report.main.spotter
    said = ["Give what your users bear as false_alarms; each promise has its own threshold."]
    if main.found is None:
        said.append("No events are marked, so nothing is known of what is found: mark some.")
    elif spotter.within > report.near:
        said.append(
            f"An alarm finds an event less than {spotter.within} steps after its end, and counts "
            f"as false from {report.near} steps on: give near={spotter.within} if such an alarm is "
            "no false one."
        )
    if main.found is not None:
        found = f"{main.found:.0%} of the events are found"
        said.append(f"With {main.promised:g} false alarms {_per(spotter)}, {found} here.")
    broken = [one for one in report.points if one.false_alarms.low > one.promised]
    if broken:
        said.append(
            f"At {broken[0].promised:g} there are {broken[0].false_alarms:.3g}, more than chance "
            "explains. Recordings may not be exchangeable: check whether several are of one person "
            "or one day, and give people."
        )
    said += [f"With half of the recordings: {words}" for words in report.refused.values()]
    return said


def recordings_in_code(report: SpottingReport) -> str:
    """Lines of Python that calibrate the spotter that the advice speaks of."""
    marks = "recordings" if report.main.found is None else "recordings, events"
    near = f", near={report.near}" if report.near else ""
    spotter = report.main.spotter
    given = ", ".join(
        f"{one.name}={value!r}"
        for one in fields(spotter)
        if (value := getattr(spotter, one.name)) != one.default
    )
    return (
        f"spotter = ag.Spotter({given}).calibrate({marks}{near})\n"
        "stream = spotter.stream()\n"
        "detection = stream.push(score)  # at each step: ag.Detection or None"
    )


def recordings_panels(report: SpottingReport) -> list[Panel]:
    """False alarms against the promise, and events found against false alarms."""
    kept = "; ".join(f"{one.promised:g}: {one.false_alarms:.3g}" for one in report.points)
    panels = [
        Panel(
            "Is the promise kept?",
            f"False alarms by promise. {kept}",
            WIDE_PANEL,
            partial(_draw_kept, report),
        )
    ]
    if report.main.found is not None:
        found = "; ".join(f"{one.promised:g}: {one.found:.0%}" for one in report.points)
        panels.append(
            Panel(
                "Events found against false alarms",
                f"Events found by promise. {found}",
                WIDE_PANEL,
                partial(_draw_front, report),
            )
        )
    return panels


def _draw_kept(report: SpottingReport, figure: Figure | SubFigure) -> None:
    axes = figure.subplots()
    for place, one in enumerate(report.points):
        colour = BELOW if one.false_alarms.low > one.promised else ABOVE
        false = one.false_alarms
        reach = reach_of([false])
        axes.errorbar([place], [false], yerr=reach, fmt="o", color=colour, capsize=2)
        axes.hlines(one.promised, place - 0.3, place + 0.3, color="black", linewidth=1)
    axes.set_xticks(range(len(report.points)), [f"{one.promised:g}" for one in report.points])
    per = _per(report.main.spotter)
    axes.set(xlabel="promised (black line)", ylabel=f"false alarms {per}", ylim=(0, None))
    tidy(axes)


def _draw_front(report: SpottingReport, figure: Figure | SubFigure) -> None:
    axes = figure.subplots()
    points = [(one, one.found) for one in report.points if one.found is not None]
    axes.plot([p.false_alarms for p, _ in points], [f for _, f in points], "o-", color=ABOVE)
    for one, found in points:
        axes.annotate(
            f"{one.promised:g}", (one.false_alarms, found), (5, -11), textcoords="offset points"
        )
    axes.set(xlabel=f"false alarms {_per(report.main.spotter)} (named: promised)", ylabel="found")
    axes.set(xlim=(0, None), ylim=(0, 1.02))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    tidy(axes)


def write_recordings_page(report: SpottingReport, path: Path, name: str) -> Path:
    """Write advice, figures and the table as one HTML page that loads nothing."""
    spotter = report.main.spotter
    notes = (
        f"Means over {REPEATS} random divisions of the recordings (of the people, where they are "
        "given) into halves: one sets the threshold, the other is new. Intervals: what one half "
        "says of other recordings.",
        f"Promised: false alarms {_per(spotter)} on average, at most {spotter.cap} of each "
        f"recording counted, over the draw of recordings. Rest {spotter.rest} steps, near "
        f"{report.near}, found less than {spotter.within} steps after the event's end.",
    )
    return write_small_page(
        path,
        f"False alarms and events found: {name}",
        [titles_of(report), *table_of_recordings(report)],
        notes,
        advise_on_recordings(report),
        recordings_in_code(report),
        recordings_panels(report),
    )
