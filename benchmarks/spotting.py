"""What both studies of streams share: four ways to a threshold, over random divisions of the
people, and a figure.

    spotter      ag.Spotter with the people as units
    training     the boldest threshold with no more false alarms than promised on the recordings of
                 training
    fixed 0.5    a confidence of one half, log-odds of 0
    Bonferroni   a conformal p-value of every step, with all calibration steps away from events
                 taken as exchangeable, at most ε over the steps of a recording

People who train see no other use. In each draw the others are divided: some set the threshold, some
calibrate the class rule on one alarm of each of their recordings, and the rest are new.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

import agreestop as ag
from agreestop.decide.spotting import CalibratedSpotter, Recordings
from agreestop.decide.spotting.alarms import false_alarm_levels, found_delays
from agreestop.report.figures import ABOVE, BESIDE, save_figure, tidy

SPOTTER, TRAINING, FIXED, BONFERRONI = "spotter", "training", "fixed 0.5", "Bonferroni"
METHODS = (SPOTTER, TRAINING, FIXED, BONFERRONI)
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Study:
    """Recordings with events and people, those of training, and what is promised."""

    recordings: Recordings
    training: Recordings
    spotter: ag.Spotter
    near: int
    step_seconds: float
    rule: ag.AgreeStop
    threshold_people: int
    rule_people: int

    def windows_after(
        self, spotter: CalibratedSpotter, rows: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """For each of the recordings the step of the first alarm that finds an event, -1 for none,
        and which event it is.
        """
        alarms, events = np.full(len(rows), -1), np.zeros(len(rows), dtype=np.int64)
        for place, row in enumerate(rows):
            own = spotter.alarms(self.recordings.scores[row])
            for number, event in enumerate(self.recordings.marked(row)):
                if alarms[place] < 0 and len(
                    delay := found_delays(own, event[None], self.spotter.within)
                ):
                    alarms[place], events[place] = event[0] + delay[0], number
        return alarms, events


def threshold_from_training(study: Study) -> float:
    """The least threshold with a mean of at most ε capped false alarms on the recordings of
    training.
    """
    data, spotter = study.training, study.spotter
    levels = [
        false_alarm_levels(
            data.scores[row], data.counted(row, study.near), spotter.rest, spotter.cap
        )
        for row in range(len(data))
    ]
    ordered = np.sort(np.concatenate(levels))[::-1]
    return float(ordered[min(math.floor(spotter.allowed * len(data)), len(ordered) - 1)])


def threshold_of_steps(study: Study, data: Recordings) -> float:
    """The score whose p-value among all steps away from events is ε over the steps of the longest
    recording.
    """
    steps = np.sort(
        np.concatenate(
            [data.scores[row][data.counted(row, study.near)] for row in range(len(data))]
        )
    )
    longest = max(map(len, data.scores))
    rank = math.floor((len(steps) + 1) * study.spotter.allowed / longest)
    return float(steps[-rank]) if rank else math.inf


def people_of(study: Study, seed: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Rows of recordings that set the threshold, that calibrate the rule, and that are new."""
    units = study.recordings.units()
    order = np.random.default_rng(seed).permutation(np.unique(units))
    parts = np.split(order, [study.threshold_people, study.threshold_people + study.rule_people])
    first, second, third = (np.flatnonzero(np.isin(units, part)) for part in parts)
    return first, second, third


def measure_study(study: Study, draws: int, cut: Any, progress: Any) -> dict[str, Any]:
    """Figures of each method over the draws. cut(rows, alarms, events) -> Scores with labels, and
    the rows that have them.
    """
    found: dict[str, list[dict[str, float]]] = {name: [] for name in METHODS}
    named: list[dict[str, float]] = []
    for draw in range(draws):
        progress(f"draw {draw + 1}", draw / draws)
        known, ruled, new = people_of(study, draw)
        data, fresh = study.recordings.rows(known), study.recordings.rows(new)
        spotter = study.spotter.calibrate(data, near=study.near)
        thresholds = {
            SPOTTER: spotter.threshold,
            TRAINING: threshold_from_training(study),
            FIXED: 0.0,
            BONFERRONI: threshold_of_steps(study, data),
        }
        for name, threshold in thresholds.items():
            result = spotter.with_threshold(threshold).evaluate(
                fresh, step_seconds=study.step_seconds
            )
            assert result.found is not None and result.per_hour is not None
            found[name].append(
                {
                    "threshold": threshold,
                    "capped": float(result.capped),
                    "any": float(result.any_false_alarm),
                    "per_hour": float(result.per_hour),
                    "found": float(result.found),
                    "delay_seconds": float(result.delay) * study.step_seconds
                    if result.delay is not None
                    else math.nan,
                }
            )
        named.append(_name(study, spotter, ruled, new, cut))
    allowed = float(study.spotter.allowed)
    return {
        "promised": allowed,
        "cap": study.spotter.cap,
        "draws": draws,
        "rule_target": float(study.rule.target or 0),
        "methods": {
            name: {**_means(rows), "kept_on_average": _mean(rows, "capped") <= allowed}
            for name, rows in found.items()
        },
        "named": _means(named),
    }


def _name(
    study: Study, spotter: CalibratedSpotter, ruled: NDArray[Any], new: NDArray[Any], cut: Any
) -> dict[str, float]:
    """How often the class rule is right behind the first alarm at an event of each new recording,
    and when it decides.
    """
    calibration, people = cut(ruled, *study.windows_after(spotter, ruled))
    rule = study.rule.calibrate(calibration, people=people)
    test, _ = cut(new, *study.windows_after(spotter, new))
    result = ag.evaluate(rule.decide(test), test)
    at_end = float(test.log_confidence.shape[1]) * study.step_seconds
    return {
        "coverage": float(result.coverage),
        "set_size": float(result.set_size),
        "seconds": float(result.latency) * study.step_seconds,
        "seconds_at_end": at_end,
        "windows": float(len(test)),
    }


def _mean(rows: Sequence[dict[str, float]], key: str) -> float:
    return float(np.nanmean([row[key] for row in rows]))


def _means(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each figure over the draws, and its standard error as if draws were
    independent.
    """
    result = {}
    for key in rows[0]:
        values = np.array([row[key] for row in rows])
        values = values[np.isfinite(values)]
        if len(values):
            result[key] = float(values.mean())
            result[f"{key}_se"] = (
                float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0
            )
    return result


def draw_study(study: Study, record: dict[str, Any], folder: Path, name: str) -> list[Path]:
    """False alarms and events found by each method, and the front of the first draw."""
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    alarms, front = figure.subplots(1, 2)
    methods = record["methods"]
    for place, one in enumerate(METHODS):
        values = methods[one]
        alarms.errorbar(
            [place],
            [values["capped"]],
            yerr=[2 * values["capped_se"]],
            fmt="o",
            color=ABOVE if one == SPOTTER else BESIDE,
            capsize=3,
        )
        alarms.annotate(
            f"{values['found']:.0%} found",
            (place, values["capped"]),
            (7, 4),
            textcoords="offset points",
            size=8,
        )
    alarms.axhline(record["promised"], color="black", linewidth=1)
    alarms.set_xticks(range(len(METHODS)), METHODS)
    alarms.set(ylabel="false alarms a recording", xlim=(-0.5, len(METHODS) - 0.2), ylim=(0, None))
    alarms.margins(y=0.2)
    known, _, new = people_of(study, 0)
    spotter = study.spotter.calibrate(study.recordings.rows(known), near=study.near)
    ag.plot.spotting(spotter, study.recordings.rows(new), axes=front)
    for axes in (alarms, front):
        tidy(axes)
    return save_figure(figure, folder, name)
