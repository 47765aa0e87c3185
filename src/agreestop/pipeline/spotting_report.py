"""A report from recordings: what a `Spotter` finds and how often it raises a false alarm, at
several promises.

The recordings, or the people if they are given, are divided many times at random into halves: one
sets the threshold, the other is new.
"""

from os import PathLike
from pathlib import Path

import numpy as np

from agreestop.common import InputError, ProgressCallback, names_in, no_progress
from agreestop.decide.spotting import Recordings, Spotter
from agreestop.report.page import write_small_page

PROMISES = ("0.5", "0.2", "0.1", "0.05", "0.01")
REPEATS = 20
TITLES = ("promised", "recordings with a false alarm", "events found", "delay in steps")

Rows = list[tuple[str, ...]]


def holds_recordings(path: str | PathLike[str]) -> bool:
    """Whether a file is an `.npz` file of recordings."""
    return {"scores", "offsets"} <= names_in(path)


def measure_recordings(
    data: Recordings, seed: int = 0, progress: ProgressCallback = no_progress
) -> Rows:
    """A row of text for each probability of a false alarm, as `TITLES` say."""
    units = data.units()
    many = int(units.max()) + 1
    if many < 4:
        raise InputError(f"there are {many} recordings or people: a report needs 4.")
    rows: Rows = []
    for number, promise in enumerate(PROMISES):
        progress(f"false alarms {promise}", number / len(PROMISES))
        spotter = Spotter(promise)
        if many // 2 < spotter.recordings_needed:
            needed = f"needs {spotter.recordings_needed} recordings or people for the threshold"
            rows.append((promise, needed, "", ""))
            continue
        rng, found = np.random.default_rng(seed), []
        for _ in range(REPEATS):
            inside = np.isin(units, rng.permutation(many)[: many // 2])
            calibrated = spotter.calibrate(data.rows(np.flatnonzero(inside)))
            found.append(calibrated.evaluate(data.rows(np.flatnonzero(~inside))))
        columns = [
            [one.any_false_alarm for one in found],
            [one.found for one in found if one.found is not None],
            [one.delay for one in found if one.delay is not None],
        ]
        rows.append((promise, *(f"{np.mean(one):.3f}" if one else "" for one in columns)))
    return rows


def write_recordings_page(rows: Rows, path: Path, name: str) -> Path:
    """Write the table as one HTML page that loads nothing."""
    notes = (
        f"Means over {REPEATS} random divisions of the recordings (of the people, where they are "
        "given) into halves: one sets the threshold, the other is new. No rest, cap 1, near 0.",
        "Promised: the probability of any false alarm in a recording.",
    )
    return write_small_page(path, f"False alarms and events found: {name}", [TITLES, *rows], notes)
