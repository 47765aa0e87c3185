"""Recordings of scores with events in them, what alarms do in one, and how good alarms were.

An alarm is a score above a threshold θ, and after an alarm at step i the next is at i + rest + 1 at
the earliest. So the alarms of a recording depend on θ through the set {i : s_i > θ}, and change
only where θ passes a score that no alarm or rest covers (`alarm_sets`).

    false alarm    an alarm outside [start - near, end + near) of all events
    found          an alarm in [start, end + within) of an event
    delay          steps from the start of a found event to its first alarm

Intervals are for the draw of the recordings, or of the people if these are given: percentiles of a
bootstrap, and no narrower than Wilson's interval for the recordings in which it happened at all.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import (
    Booleans,
    Floats,
    InputError,
    Integers,
    as_array,
    as_floats,
    as_row_names,
    check_finite,
    read_npz,
    write_npz,
)
from agreestop.common.estimates import Estimate

HOW = "write one with scores (steps of all recordings), offsets (n + 1,) and events (E, 3)"
BOOTSTRAPS = 2000
HOUR = 3600.0


@dataclass(frozen=True, eq=False, repr=False)
class Recordings:
    """n recordings of scores.

    scores   n arrays (T_i,)
    events   n arrays (E_i, 2) of events [start, end) in steps, in order; None where none are marked
    people   (n,) names of the people that recordings are of; None where each stands for itself
    """

    scores: tuple[Floats, ...]
    events: tuple[Integers, ...] | None = None
    people: NDArray[Any] | None = None

    @classmethod
    def of(cls, scores: Any, events: Any = None, people: ArrayLike | None = None) -> Self:
        """Check recordings as users give them."""
        if isinstance(scores, cls):
            given = scores.events if events is None else events
            return cls.of(scores.scores, given, scores.people if people is None else people)
        if isinstance(scores, np.ndarray) and scores.ndim == 1 and scores.dtype != object:
            raise InputError(
                f"recordings has shape {scores.shape}: give a list of arrays, one for each "
                "recording."
            )
        arrays = tuple(as_scores(one, f"recordings[{row}]") for row, one in enumerate(scores))
        if not arrays:
            raise InputError("recordings is empty: give at least one recording.")
        marks = None
        if events is not None:
            if len(events) != len(arrays):
                raise InputError(
                    f"events has {len(events)} entries for {len(arrays)} recordings: give a list "
                    "of (start, end) for each, which may be empty."
                )
            marks = tuple(
                _as_events(one, len(array), row)
                for row, (one, array) in enumerate(zip(events, arrays, strict=True))
            )
        names = None if people is None else as_row_names(people, len(arrays), "people")
        return cls(arrays, marks, names)

    def __len__(self) -> int:
        return len(self.scores)

    def rows(self, rows: Integers) -> Self:
        """Some of the recordings."""
        events = None if self.events is None else tuple(self.events[row] for row in rows)
        people = None if self.people is None else self.people[rows]
        return type(self)(tuple(self.scores[row] for row in rows), events, people)

    @property
    def ids(self) -> tuple[str, ...]:
        """A hash of each recording, by which it is recognised."""
        return tuple(hashlib.sha256(one.tobytes()).hexdigest()[:24] for one in self.scores)

    def units(self) -> Integers:
        """The person of each recording, from 0, or its own number."""
        if self.people is None:
            return np.arange(len(self))
        return np.unique(self.people, return_inverse=True)[1].astype(np.int64)

    def marked(self, row: int) -> Integers:
        """The events (E, 2) of one recording."""
        return np.empty((0, 2), dtype=np.int64) if self.events is None else self.events[row]

    def counted(self, row: int, near: int) -> Booleans:
        """The steps of a recording at which an alarm is false: those that lie near no event."""
        steps = np.ones(len(self.scores[row]), dtype=bool)
        for start, end in self.marked(row):
            steps[max(start - near, 0) : end + near] = False
        return steps


def as_scores(scores: ArrayLike, name: str) -> Floats:
    """The scores (T,) of one recording."""
    array = as_floats(scores, name)
    if array.ndim != 1 or not array.size:
        raise InputError(f"{name} has shape {array.shape}: give one score for each step, (T,).")
    check_finite(array, name)
    return np.ascontiguousarray(array)


def _as_events(events: ArrayLike, steps: int, row: int) -> Integers:
    array = as_array(events, f"events[{row}]")
    if not array.size:
        return np.empty((0, 2), dtype=np.int64)
    if array.ndim != 2 or array.shape[1] != 2 or array.dtype.kind not in "iu":
        raise InputError(
            f"events[{row}] has shape {array.shape} and dtype {array.dtype}: give a list of "
            "(start, end) in whole steps."
        )
    wrong = (array[:, 0] < 0) | (array[:, 1] <= array[:, 0]) | (array[:, 1] > steps)
    if wrong.any():
        start, end = array[wrong][0].tolist()
        raise InputError(
            f"events[{row}] holds ({start}, {end}) in a recording of {steps} steps: an event has "
            f"0 <= start < end <= {steps}."
        )
    return array[np.argsort(array[:, 0], kind="stable")].astype(np.int64)


def load_recordings(path: str | PathLike[str]) -> Recordings:
    """Read recordings that `save_recordings` or `numpy.savez` wrote.

    scores (sum of all T_i,), offsets (n + 1,), and where known events (E, 3), of which each is
    (recording, start, end), and people (n,).
    """
    content = read_npz(path, "file of recordings", HOW, needed=("scores", "offsets"))
    offsets, scores = content["offsets"], as_floats(content["scores"], "scores")
    whole = offsets.ndim == 1 and offsets.dtype.kind in "iu" and len(offsets) > 1
    if not whole or offsets[0] != 0 or offsets[-1] != len(scores) or (np.diff(offsets) < 1).any():
        raise InputError(
            f"{path}: offsets must rise from 0 to the number of scores, {len(scores)}, as whole "
            "numbers."
        )
    n, events = len(offsets) - 1, None
    if "events" in content:
        table = (
            content["events"].reshape(-1, 3) if not content["events"].size else content["events"]
        )
        if table.ndim != 2 or table.shape[1] != 3 or table.dtype.kind not in "iuf":
            raise InputError(f"{path}: events must be (E, 3): recording, start and end of each.")
        table = table.astype(np.int64)
        if ((table[:, 0] < 0) | (table[:, 0] >= n)).any():
            raise InputError(f"{path}: events name a recording outside 0 to {n - 1}.")
        events = [table[table[:, 0] == row, 1:] for row in range(n)]
    return Recordings.of(np.split(scores, offsets[1:-1]), events, content.get("people"))


def save_recordings(path: str | PathLike[str], recordings: Recordings) -> None:
    """Write recordings as one `.npz` file."""
    lengths = [len(one) for one in recordings.scores]
    arrays: dict[str, NDArray[Any]] = {
        "scores": np.concatenate(recordings.scores),
        "offsets": np.cumsum([0, *lengths]),
    }
    if recordings.events is not None:
        rows = [np.full(len(one), row) for row, one in enumerate(recordings.events)]
        pairs = np.concatenate(recordings.events)
        arrays["events"] = np.column_stack([np.concatenate(rows), pairs]).astype(np.int64)
    if recordings.people is not None:
        arrays["people"] = recordings.people
    write_npz(path, arrays)


# --- alarms in one recording


def with_rest(steps: Integers, rest: int) -> Integers:
    """The steps at which there is an alarm, from the steps (in order) with a score above θ."""
    alarms, place = [], 0
    while place < len(steps):
        alarms.append(int(steps[place]))
        place = int(np.searchsorted(steps, alarms[-1] + rest, side="right"))
    return np.array(alarms, dtype=np.int64)


def alarm_sets(scores: Floats, rest: int) -> Iterator[tuple[float, list[int]]]:
    """All sets of alarms of a recording, from the strictest threshold to the boldest.

    Each comes with the score that every threshold must be below for it. Steps join in the order of
    their scores. One that an alarm or its rest covers changes nothing; another one is an alarm and
    moves those after it, as far as they overlap. The list changes with the next set.
    """
    order = np.argsort(-scores, kind="stable")
    levels, above = scores[order].tolist(), np.zeros(len(scores), dtype=bool)
    alarms: list[int] = []
    changed = False
    for place, step in enumerate(order.tolist()):
        above[step] = True
        at = bisect_right(alarms, step)
        if not at or step - alarms[at - 1] > rest:
            _insert(step, at, alarms, above, rest)
            changed = True
        if changed and (place + 1 == len(levels) or levels[place + 1] != levels[place]):
            yield levels[place], alarms
            changed = False


def _insert(step: int, at: int, alarms: list[int], above: Booleans, rest: int) -> None:
    """Add an alarm before alarms[at], and move the alarms that its rest covers."""
    moved, end = [step], at
    while end < len(alarms) and alarms[end] <= moved[-1] + rest:
        while end < len(alarms) and alarms[end] <= moved[-1] + rest:
            end += 1
        # scores above the threshold that the covered alarm kept from being alarms
        until = min(alarms[end - 1] + rest + 1, *alarms[end : end + 1], len(above))
        free = above[moved[-1] + rest + 1 : until]
        if not free.any():
            break
        moved.append(moved[-1] + rest + 1 + int(free.argmax()))
    alarms[at:end] = moved


def false_alarm_levels(scores: Floats, counted: Booleans, rest: int, cap: int) -> Floats:
    """(cap,): the thresholds below which there are 1, 2, ... false alarms at some stricter one."""
    levels, most = np.full(cap, -np.inf), 0
    for level, alarms in alarm_sets(scores, rest):
        false = min(int(np.count_nonzero(counted[alarms])), cap)
        if false > most:
            levels[most:false], most = level, false
        if most == cap:
            break
    return levels


def miss_levels(
    scores: Floats, events: Integers, rest: int, within: int
) -> list[tuple[float, int]]:
    """(threshold, events): from it on, so many more events are missed at some bolder threshold."""
    if not len(events):
        return []
    levels, missed = [], []
    for level, alarms in alarm_sets(scores, rest):
        levels.append(level)
        missed.append(len(events) - len(found_delays(np.array(alarms), events, within)))
    # from the strictest set of alarms on there are none; the sets are now read from the boldest on
    most = np.maximum.accumulate(np.array([len(events), *missed])[::-1])
    rises = np.diff(most, prepend=0)
    below = [-np.inf, *levels[::-1]]
    return [(level, int(rise)) for level, rise in zip(below, rises, strict=True) if rise]


def found_delays(alarms: Integers, events: Integers, within: int) -> Integers:
    """Steps from the start of each event that is found to its first alarm."""
    first = np.append(alarms, np.iinfo(np.int64).max)[np.searchsorted(alarms, events[:, 0])]
    found = first < events[:, 1] + within
    return np.asarray((first - events[:, 0])[found])


# --- how good alarms were


@dataclass(frozen=True, repr=False)
class SpottingEvaluation:
    """How good the alarms of a spotter were, with intervals for the draw of the recordings.

    Attributes
    ----------
    recordings, events, steps
        How many there were.
    threshold
        The score above which there is an alarm.
    found
        The share of events that were found; None without events.
    delay
        Mean steps from the start of a found event to its alarm; None if none was found.
    false_alarms
        False alarms a recording.
    capped
        The same with at most `cap` of them in a recording: what is promised.
    any_false_alarm
        The share of recordings with a false alarm.
    per_hour
        False alarms an hour, where the length of a step is known.
    """

    recordings: int
    events: int
    steps: int
    threshold: float
    found: Estimate | None
    delay: Estimate | None
    false_alarms: Estimate
    capped: Estimate
    any_false_alarm: Estimate
    per_hour: Estimate | None

    def __repr__(self) -> str:
        shown = {
            "events found": self.found,
            "delay in steps": self.delay,
            "false alarms a recording": self.false_alarms,
            "recordings with a false alarm": self.any_false_alarm,
            "false alarms an hour": self.per_hour,
        }
        lines = [f"{name:30} {value!r}" for name, value in shown.items() if value is not None]
        head = f"{self.recordings} recordings, {self.events} events, threshold {self.threshold:.6g}"
        return "\n".join([head, *lines])


def evaluate_alarms(
    recordings: Recordings,
    alarms: Sequence[Integers],
    near: int,
    within: int,
    cap: int,
    threshold: float,
    step_seconds: float | None,
    confidence: float,
) -> SpottingEvaluation:
    """What `SpottingEvaluation` holds, from the alarms of each recording."""
    n = len(recordings)
    rows = range(n)
    events = np.array([len(recordings.marked(row)) for row in rows])
    delays = [found_delays(alarms[row], recordings.marked(row), within) for row in rows]
    found = np.array([len(one) for one in delays])
    false = np.array([recordings.counted(row, near)[alarms[row]].sum() for row in rows])
    units, weights = recordings.units(), np.ones(n)
    steps = np.array([len(one) for one in recordings.scores])
    some = np.minimum(false, 1)

    def rate(total: Any, base: Any, share: bool) -> Estimate:
        return _ratio(np.asarray(total), np.asarray(base), units, confidence, share)

    hours = None if step_seconds is None else steps * step_seconds / HOUR
    waited = np.array([one.sum() for one in delays])
    alarmed = rate(false, weights, False)
    return SpottingEvaluation(
        n,
        int(events.sum()),
        int(steps.sum()),
        threshold,
        rate(found, events, True) if events.any() else None,
        rate(waited, found, False) if found.any() else None,
        alarmed,
        rate(np.minimum(false, cap), weights, False),
        rate(some, weights, True),
        None if hours is None else rate(false, hours, False),
    )


def _ratio(
    totals: NDArray[Any], bases: NDArray[Any], units: Integers, confidence: float, share: bool
) -> Estimate:
    """Σ totals / Σ bases over recordings, with an interval for the draw of their units."""
    total, base = np.bincount(units, totals), np.bincount(units, bases)
    value, used = float(total.sum() / base.sum()), int(np.count_nonzero(base))
    draws = np.random.default_rng(0).multinomial(
        len(total), np.full(len(total), 1 / len(total)), size=BOOTSTRAPS
    )
    bases_drawn = draws @ base
    ratios = (draws @ total)[bases_drawn > 0] / bases_drawn[bases_drawn > 0]
    tail = 50 * (1 - confidence)
    low, high = np.percentile(ratios, [tail, 100 - tail]).tolist()
    if share and value in (0, 1):
        wilson = Estimate.of_share(value * used, used, confidence)
        low, high = min(low, wilson.low), max(high, wilson.high)
    elif not total.any():  # nothing happened, so there is nothing to draw from again
        some = Estimate.of_share(0, used, confidence).high
        high = max(high, some * used / float(base.sum()))
    return Estimate(value, min(low, value), max(high, value), float(np.std(ratios)))
