"""Spotter: alarms in streams without an end, with a promise about false alarms.

An alarm is a score above a threshold θ; after it the spotter rests. What is exchangeable is the
recording (a day of a device, a file), never the step. With n recordings, a cap B and
λ = -θ, so that small λ is safe,

    L_i(λ) = the most false alarms of recording i at any λ' ≤ λ, but at most B
    λ      = sup{ λ : (Σ_i L_i(λ) + B) / (n + 1) ≤ ε }             E min(false alarms, B) ≤ ε

With B = 1 that is P(any false alarm in a recording) ≤ ε. It needs n ≥ B/ε - 1 recordings. With
K people of N_j recordings each, person j counts by its mean: (Σ_j Σ_i L_ji(λ)/N_j + B)/(K + 1) ≤ ε
holds for a recording of a new person.

False alarms can be promised an hour instead. Recording i lasts H_i hours, and L_i(λ) - ε·H_i rises
with λ and is at most B, whatever the law of lengths, so the same proof gives

    λ = sup{ λ : Σ_i L_i(λ) + B ≤ ε·Σ_i H_i }                 E min(false alarms, B) ≤ ε·E[hours]

It needs B/ε hours of recordings.

Why the largest at any stricter threshold: with marked events, what lies near an event does not
count, and an alarm there rests over scores that would be false alarms at a stricter threshold. So
the count may fall as λ grows, and the proof needs it to rise. (Without events it rises by itself:
the first score above θ, the first after its rest and so on are the most that can be chosen.)

"Not found within D steps" is safe on the other side. Only the n' recordings with events count,
since others would promise that nothing is missed where nothing can be. M_i(θ), the largest share of
the events of recording i missed at any bolder threshold, gives
θ_det = sup{ θ : (Σ_i M_i(θ) + 1)/(n' + 1) ≤ β }. Both promises hold for every threshold from -λ up
to, but not at, θ_det.

Thresholds lie in gaps (see `thresholds`): every smaller λ keeps the first promise. A shift of the
scores of a recording by up to η moves every level by η; without events that covers every rounding.

After an alarm at step i the next is at i + rest + 1 at the earliest. So the alarms of a recording
depend on θ through the set {i : s_i > θ}, and change only where θ passes a score that no alarm or
rest covers (`alarm_sets`).

    false alarm    an alarm outside [start - near, end + near) of all events
    found          an alarm in [start, end + within) of an event
    delay          steps from the start of a found event to its first alarm

Intervals are for the draw of the recordings, or of the people if these are given: percentiles of a
bootstrap, which few recordings make too narrow, and at least Student's interval of the logarithm,
or of the log-odds of a share; Wilson's for the recordings in which something happened at all, where
it happened in all of them or in none. One recording says nothing about others.
"""

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from numbers import Real
from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import (
    Booleans,
    Floats,
    InputError,
    Integers,
    KeptInFiles,
    as_array,
    as_count,
    as_floats,
    as_row_names,
    mix,
    read_npz,
    read_text,
    warn_user,
    write_npz,
)
from agreestop.common.errors import quoted
from agreestop.common.estimates import Estimate, student_quantile
from agreestop.common.levels import REACH, Rounding, Target, as_exact, as_target, in_gap, in_words

from .calibrated import check_heard, check_source, refused
from .leakage import Marks, mark_ids, refuse_known_people
from .rule_files import read_rule_file, write_rule_file

HOW = "write one with scores (steps of all recordings), offsets (n + 1,) and events (E, 3)"
SOURCE = "engine", "ensemble_digest", "heard"  # what made the scores, as text
BOOTSTRAPS = 2000
HOUR = 3600
RUN, EVERY = 32, 8  # scores in a row by which copies are found, and which share of them is compared
LEAST_SHARED = 0.5  # of the recordings: in fewer, members may have counted the same by chance
LONGEST = 1 << 62  # steps: more are as good as without an end
RECORDING, IN_AN_HOUR = "recording", "hour"  # what false alarms are promised for


@dataclass(frozen=True, eq=False, repr=False)
class Recordings:
    """n recordings of scores.

    scores   n arrays (T_i,)
    events   n arrays (E_i, 2) of events [start, end) in steps, in order; None where none are marked
    people   (n,) names of the people that recordings are of; None where each stands for itself
    engine, ensemble_digest   what computed the scores, where it is known
    heard    the window and event that `listen` made them with; "" for scores of another detector
    inputs   hashes of what the engine ran on, by which recordings are recognised; () without one
    """

    scores: tuple[Floats, ...]
    events: tuple[Integers, ...] | None = None
    people: NDArray[Any] | None = None
    engine: str = ""
    ensemble_digest: str = ""
    heard: str = ""
    inputs: tuple[str, ...] = ()

    @classmethod
    def of(cls, scores: Any, events: Any = None, people: ArrayLike | None = None) -> Self:
        """Check recordings as users give them."""
        if isinstance(scores, cls):
            given = scores.events if events is None else events
            data = cls.of(scores.scores, given, scores.people if people is None else people)
            return replace(scores, events=data.events, people=data.people)
        if isinstance(scores, np.ndarray) and scores.ndim == 1 and scores.dtype != object:
            raise InputError(
                f"recordings has shape {scores.shape}: give a list of arrays, one for each "
                "recording."
            )
        listed = _as_list(scores, "recordings")
        arrays = tuple(as_scores(one, f"recordings[{row}]") for row, one in enumerate(listed))
        if not arrays:
            raise InputError("recordings is empty: give at least one recording.")
        marks = None
        if events is not None:
            marked = _as_list(events, "events")
            if len(marked) != len(arrays):
                raise InputError(
                    f"events has {len(marked)} entries for {len(arrays)} recordings: give a list "
                    "of (start, end) for each, which may be empty."
                )
            marks = tuple(
                _as_events(one, len(array), row)
                for row, (one, array) in enumerate(zip(marked, arrays, strict=True))
            )
        names = None if people is None else as_row_names(people, len(arrays), "people")
        return cls(arrays, marks, names)

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, row: Any) -> Any:
        """The scores (T_i,) of one recording; with a slice, some of the recordings."""
        if isinstance(row, slice):
            return self.rows(np.arange(len(self))[row])
        return self.scores[row]

    def __iter__(self) -> Iterator[Floats]:
        return iter(self.scores)

    def rows(self, rows: Integers) -> Self:
        """Some of the recordings."""
        events = None if self.events is None else tuple(self.events[row] for row in rows)
        people = None if self.people is None else self.people[rows]
        scores = tuple(self.scores[row] for row in rows)
        inputs = tuple(self.inputs[row] for row in rows) if self.inputs else ()
        return replace(self, scores=scores, events=events, people=people, inputs=inputs)

    def save(
        self, path: str | PathLike[str], events: Any = None, people: ArrayLike | None = None
    ) -> None:
        """Write them as one `.npz` file, with events and people where these are known."""
        save_recordings(path, self.of(self, events, people))

    @property
    def ids(self) -> tuple[str, ...]:
        """A hash of each recording, by which it is recognised."""
        return self.inputs or tuple(map(hash_of, self.scores))

    def units(self) -> Integers:
        """The person of each recording, from 0, or its own number."""
        if self.people is None:
            return np.arange(len(self))
        return np.unique(self.people, return_inverse=True)[1].astype(np.int64)

    def shares(self) -> list[Fraction]:
        """How much each recording counts: 1 over the number of those of its person."""
        units = self.units()
        counts = np.bincount(units)
        return [Fraction(1, int(counts[unit])) for unit in units]

    def with_events(self) -> Self:
        """The recordings in which events are marked."""
        rows = [row for row in range(len(self)) if len(self.marked(row))]
        return self.rows(np.array(rows, dtype=np.int64))

    def marked(self, row: int) -> Integers:
        """The events (E, 2) of one recording."""
        return np.empty((0, 2), dtype=np.int64) if self.events is None else self.events[row]

    def counted(self, row: int, near: int) -> Booleans:
        """The steps of a recording at which an alarm is false: those that lie near no event."""
        steps = np.ones(len(self.scores[row]), dtype=bool)
        near = min(near, len(steps))
        for start, end in self.marked(row):
            steps[max(start - near, 0) : end + near] = False
        return steps


def hash_of(array: NDArray[Any]) -> str:
    """A hash of the numbers of an array, in float32 whatever their type."""
    if array.dtype.kind in "biuf":
        with np.errstate(over="ignore"):
            array = array.astype(np.float32)
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:24]


def shared_scores(data: Recordings) -> str:
    """A sentence if many recordings have scores in a row that others have too.

    Copies do, and windows that overlap. Of RUN scores at least half must differ, since silence is
    everywhere alike. Which runs are compared depends on their scores alone, so it is the same in
    all recordings.
    """
    units, marks, owners = data.units(), [], []
    weights = mix(np.arange(1, RUN + 1, dtype=np.uint64)) | np.uint64(1)
    for unit, scores in zip(units, data.scores, strict=True):
        if len(scores) < RUN:
            continue
        with np.errstate(over="ignore"):
            numbers = mix(scores.astype(np.float32).view(np.uint32).astype(np.uint64))
        runs = np.zeros(len(scores) - RUN + 1, np.uint64)
        for place, weight in enumerate(weights):
            runs += numbers[place : place + len(runs)] * weight
        chosen = np.flatnonzero((runs >> np.uint64(32)) % np.uint64(EVERY) == 0)
        ordered = np.sort(np.lib.stride_tricks.sliding_window_view(scores, RUN)[chosen], axis=1)
        differ = np.count_nonzero(np.diff(ordered, axis=1), axis=1) >= RUN // 2
        marks.append(np.unique(runs[chosen[differ]]))
        owners.append(np.full(len(marks[-1]), unit, np.uint64))
    if not marks:
        return ""
    pairs = np.unique(np.column_stack([np.concatenate(marks), np.concatenate(owners)]), axis=0)
    _, which, counts = np.unique(pairs[:, 0], return_inverse=True, return_counts=True)
    shared, many = len(np.unique(pairs[counts[which] > 1, 1])), int(units.max()) + 1
    if shared < LEAST_SHARED * many:
        return ""
    what = "recordings" if data.people is None else "people"
    return (
        f"{shared} of {many} {what} share scores in a row with others, as copies do, and windows "
        "that overlap. New ones do not, so the promise does not cover them: give whole recordings, "
        "each once, or the person of each recording (people=)."
    )


def _as_list(given: Any, name: str) -> list[Any]:
    if not np.iterable(given) or isinstance(given, (str, dict)):
        raise InputError(f"{name} is {quoted(given)}: give a list with one entry per recording.")
    return list(given)


def as_scores(scores: ArrayLike, name: str) -> Floats:
    """The scores (T,) of one recording."""
    array = as_floats(scores, name)
    if array.ndim != 1 or not array.size:
        raise InputError(f"{name} has shape {array.shape}: give one score for each step, (T,).")
    if not np.isfinite(array).all():
        step = int(np.flatnonzero(~np.isfinite(array))[0])
        raise InputError(
            f"{name} holds {array[step]} at step {step}: every step needs a finite score; repeat "
            "the last one where a sensor is silent."
        )
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
    (recording, start, end), people (n,), inputs (n,) and the texts engine, ensemble_digest and
    heard.
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
        if (broken := ~(np.isfinite(table) & (np.trunc(table) == table))).any():
            raise InputError(
                f"{path}: events holds {table[broken][0]}: give recordings, starts and ends as "
                "whole numbers."
            )
        table = table.astype(np.int64)
        if ((table[:, 0] < 0) | (table[:, 0] >= n)).any():
            raise InputError(f"{path}: events name a recording outside 0 to {n - 1}.")
        events = [table[table[:, 0] == row, 1:] for row in range(n)]
    data = Recordings.of(np.split(scores, offsets[1:-1]), events, content.get("people"))
    texts: Any = {name: read_text(path, content, name) for name in SOURCE}
    inputs = as_row_names(content["inputs"], n, "inputs").tolist() if "inputs" in content else ()
    return replace(data, inputs=tuple(map(str, inputs)), **texts)


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
    if recordings.inputs:
        arrays["inputs"] = np.array(recordings.inputs)
    texts = {name: getattr(recordings, name) for name in SOURCE}
    write_npz(path, arrays | {name: np.array(one) for name, one in texts.items() if one})


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
    found = first < events[:, 1] + min(within, LONGEST)
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
        The same with at most `cap` of them in a recording; an hour, where that is promised.
    any_false_alarm
        The share of recordings with a false alarm.
    per_hour
        False alarms an hour, where the length of a step is known.

    Examples
    --------
    >>> import numpy as np, agreestop as ag
    >>> rng = np.random.default_rng(0)
    >>> recordings = [rng.normal(size=500) for _ in range(120)]
    >>> calibrated = ag.Spotter(false_alarms=0.05, rest=20).calibrate(recordings[:99])
    >>> for scores in recordings[99:]:
    ...     scores[200:210] += 9
    >>> result = calibrated.evaluate(recordings[99:], [[(200, 210)]] * 21, within=20)
    >>> result.recordings, result.events, float(result.found)
    (21, 21, 1.0)
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
    step_hours: float | None,
    confidence: float,
    per: str,
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

    hours = None if step_hours is None else steps * step_hours
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
        rate(np.minimum(false, cap), weights if per == RECORDING else hours, False),
        rate(some, weights, True),
        None if hours is None else rate(false, hours, False),
    )


def _ratio(
    totals: NDArray[Any], bases: NDArray[Any], units: Integers, confidence: float, share: bool
) -> Estimate:
    """Σ totals / Σ bases over recordings, with an interval for the draw of their units."""
    total, base = np.bincount(units, totals), np.bincount(units, bases)
    value, used = float(total.sum() / base.sum()), int(np.count_nonzero(base))
    wilson = Estimate.of_share(value * used if share else 0, used, confidence)
    draws = np.random.default_rng(0).multinomial(
        len(total), np.full(len(total), 1 / len(total)), size=BOOTSTRAPS
    )
    bases_drawn = draws @ base
    ratios = (draws @ total)[bases_drawn > 0] / bases_drawn[bases_drawn > 0]
    tail = 50 * (1 - confidence)
    low, high = np.percentile(ratios, [tail, 100 - tail]).tolist()
    error = float(np.std(ratios))
    if share and value in (0, 1):
        low, high = min(low, wilson.low), max(high, wilson.high)
    elif not total.any():  # nothing happened, so there is nothing to draw from again
        high = max(high, wilson.high * used / float(base.sum()))
    elif used == 1:
        low, high = 0.0, 1.0 if share else math.inf
    else:
        rest = 1 - value if share else 1.0
        reach = student_quantile(confidence, used - 1) * error
        factor = math.exp(-min(reach / (value * rest), 700.0))
        low = min(low, value * factor / (value * factor + rest if share else 1))
        high = max(high, value / (value + rest * factor if share else factor))
    return Estimate(value, min(low, value), max(high, value), error)


@dataclass(frozen=True)
class Detection:
    """An alarm of a spotter.

    Attributes
    ----------
    index : int
        The step of the stream, counted from 0.
    score : float
        The score that was above the threshold.
    number : int
        How many alarms the stream had before.

    Examples
    --------
    >>> import agreestop as ag
    >>> ag.Detection(index=120, score=0.97)
    Detection(index=120, score=0.97, number=0)
    """

    index: int
    score: float
    number: int = 0


@dataclass(frozen=True)
class Spotter(KeptInFiles):
    """Raise an alarm where a score is above a calibrated threshold, in streams without an end.

    Parameters
    ----------
    false_alarms : float, str or Fraction
        ε: the mean number of false alarms in a recording that is promised, counted up to `cap`.
        With a cap of 1 it is the probability of any false alarm in a recording.
    cap : int
        B: false alarms of one recording above it do not count.
    rest : int
        Steps without an alarm after an alarm: after one at step i the next is at i + rest + 1 at
        the earliest.
    missed : float, str or Fraction, optional
        A second promise: the mean share of its events that are not found in a recording with
        events.
    within : int
        An alarm from its start to fewer than this many steps after its end finds an event.
    per : {"recording", "hour"}
        What `false_alarms` are counted for. "hour" needs `step_seconds`.
    step_seconds : float, str or Fraction, optional
        The length of a step. Evaluations then count false alarms an hour too.

    Notes
    -----
    *Guarantee.* E min(false alarms, cap) ≤ false_alarms, times E[hours] with per="hour", over the
    draw of the calibration recordings and of a new recording exchangeable with them: the same law
    of lengths, and events as often. Any score will do: a pooled confidence, a statistic of drift,
    another detector's output.

    Examples
    --------
    >>> import numpy as np, agreestop as ag
    >>> rng = np.random.default_rng(0)
    >>> recordings = [rng.normal(size=500) for _ in range(99)]
    >>> spotter = ag.Spotter(false_alarms=0.05, rest=20).calibrate(recordings)
    >>> scores = rng.normal(size=500)
    >>> scores[200:210] += 9
    >>> spotter.alarms(scores)
    array([200])

    At most one false alarm in eight hours, from twelve hours in recordings of any lengths:

    >>> recordings = [rng.normal(size=steps) for steps in rng.integers(10_000, 80_000, size=12)]
    >>> spotter = ag.Spotter("1/8", per="hour", step_seconds=0.08).calibrate(recordings)
    >>> "at most 0.125 false alarms an hour" in spotter.guarantee
    True
    """

    false_alarms: Target
    cap: int = 1
    rest: int = 0
    missed: Target | None = None
    within: int = 50
    per: str = RECORDING
    step_seconds: Target | None = None

    def __post_init__(self) -> None:
        for field in fields(self):  # files hold no numbers of numpy
            if isinstance(value := getattr(self, field.name), np.generic):
                plain = float(str(value)) if isinstance(value, np.floating) else value.item()
                object.__setattr__(self, field.name, plain)
        as_count(self.cap, "cap")
        as_count(self.rest, "rest", least=0)
        as_count(self.within, "within", least=0)
        if self.per not in (RECORDING, IN_AN_HOUR):
            raise InputError(f"per is {quoted(self.per)}: choose '{RECORDING}' or '{IN_AN_HOUR}'.")
        below = self.cap if self.per == RECORDING else math.inf
        if not 0 < self.allowed < below:
            limit = f" and below the cap, {self.cap}" if self.per == RECORDING else ""
            raise InputError(
                f"false_alarms is {quoted(self.false_alarms)}: give a number above 0{limit}."
            )
        if self.step_seconds is not None:
            as_seconds(self.step_seconds)
        elif self.per == IN_AN_HOUR:
            raise InputError(
                "step_seconds is missing for false alarms an hour: give the length of a step, "
                "such as 0.08."
            )
        if self.missed is not None:
            as_target(self.missed, "missed")

    @property
    def allowed(self) -> Fraction:
        """ε, exactly as written."""
        return as_exact(self.false_alarms, "false_alarms", "a number such as 0.05 or '1/20'")

    @property
    def recordings_needed(self) -> int:
        """The fewest recordings, or people, with which the promise can be kept.

        Examples
        --------
        >>> Spotter(0.05).recordings_needed
        19
        """
        return -(-self.cap // self.allowed) - 1 if self.per == RECORDING else 1

    @property
    def hours_needed(self) -> float:
        """With per="hour": the fewest hours of recordings with which the promise can be kept.

        Examples
        --------
        >>> Spotter("1/8", per="hour", step_seconds=0.08).hours_needed
        8.0
        """
        return float(self.cap / self.allowed) if self.per == IN_AN_HOUR else 0.0

    def _budget(self, data: Recordings, share: Sequence[Fraction], many: int) -> Fraction:
        """The sum of capped counts that calibration recordings may have."""
        if self.per == RECORDING:
            return self.allowed * (many + 1) - self.cap
        return self.allowed * self._hours(data, share) - self.cap

    def _hours(self, data: Recordings, share: Sequence[Fraction]) -> Fraction:
        """Hours of all recordings; of a mean recording of each person where there are people."""
        assert self.step_seconds is not None
        steps = [part * len(one) for part, one in zip(share, data.scores, strict=True)]
        return sum(steps, Fraction(0)) * as_seconds(self.step_seconds) / HOUR

    def calibrate(
        self,
        recordings: Any,
        events: Sequence[ArrayLike] | None = None,
        near: int = 0,
        people: ArrayLike | None = None,
    ) -> "CalibratedSpotter":
        """Find the threshold from recordings that are used for nothing else.

        Parameters
        ----------
        recordings : list of (T_i,) arrays
            The scores of each recording, or `scores` of what `ensemble.listen` returns: the
            spotter then knows the window and event of its scores, and `watch` refuses others.
        events : list of lists of (start, end), optional
            The events of each recording, in steps; `end` is the first step after it. Without them
            every alarm is false.
        near : int
            Alarms at most this many steps before the first step of an event, or after its last
            step, are not false.
        people : (n,), optional
            The person of each recording: the promise is then for a recording of a new person.

        Returns
        -------
        CalibratedSpotter
        """
        data = Recordings.of(recordings, events, people)
        near, share = as_count(near, "near", least=0), data.shares()
        self._check(data, near, share)
        if shared := shared_scores(data):
            warn_user(shared)
        rows, many = range(len(data)), int(data.units().max()) + 1
        levels = [
            false_alarm_levels(data.scores[row], data.counted(row, near), self.rest, self.cap)
            for row in rows
        ]
        weights = [one for one in share for _ in range(self.cap)]
        kth = -_crossing(-np.concatenate(levels), weights, self._budget(data, share, many))
        scores = np.concatenate(data.scores)
        threshold = _above(kth, scores)
        limit = None if self.missed is None else self._limit(data.with_events())
        if limit is not None:
            eta = Rounding().largest(kth) if np.isfinite(kth) else 0.0
            threshold = threshold if threshold < limit - eta else kth + eta
            if not threshold < limit - eta:
                raise InputError(
                    f"no threshold keeps both promises: false_alarms needs one of at least "
                    f"{kth:.6g} and missed one below {limit:.6g}; allow more of one, or give a "
                    "better score."
                )
        if kth == scores.max() and (same := sum(one.max() == kth for one in data.scores)) > 1:
            warn_user(
                f"the highest score, {kth:g}, occurs in {same} of {len(data)} recordings, so only "
                "a higher one raises an alarm: give a score with more values, or allow more "
                "false_alarms."
            )
        known = None if data.people is None else many
        marks = None if data.people is None else np.unique(mark_ids(data.people))
        source = data.engine, data.ensemble_digest, data.heard, marks
        own = len(data), data.ids, limit, known
        return CalibratedSpotter(self, threshold, kth, near, *own, *source)

    def _check(self, data: Recordings, near: int, share: Sequence[Fraction]) -> None:
        many = int(data.units().max()) + 1
        needed, what = self.recordings_needed, "recordings" if data.people is None else "people"
        if many < needed:
            raise InputError(
                f"{many} {what} cannot promise {in_words(self.allowed)} false alarms a recording: "
                f"at least {needed} are needed (cap / false_alarms - 1)."
            )
        held = self._hours(data, share) if self.per == IN_AN_HOUR else Fraction(0)
        if self.allowed * held >= self.cap * many:
            raise InputError(
                f"recordings of {float(held / many):.3g} hours may have "
                f"{float(self.allowed * held / many):.3g} false alarms each, and cap={self.cap} "
                "counts no more: give a cap above that."
            )
        if self.per == IN_AN_HOUR and self.allowed * held < self.cap:
            mean = "" if data.people is None else ", with the mean of each person counted,"
            raise InputError(
                f"{len(data)} recordings of {float(held):.3g} hours in all{mean} cannot promise "
                f"{in_words(self.allowed)} false alarms an hour: at least "
                f"{self.hours_needed:.6g} hours are needed (cap / false_alarms)."
            )
        short = [row for row, one in enumerate(data.scores) if len(one) <= self.rest]
        if short:
            raise InputError(
                f"recordings[{short[0]}] has {len(data.scores[short[0]])} steps and the rest is "
                f"{self.rest}: give longer recordings, or a shorter rest."
            )
        if not any(data.counted(row, near).any() for row in range(len(data))):
            raise InputError(
                f"every step of every recording lies near an event, with near={near}: no alarm can "
                "be false, so give recordings with steps away from events."
            )
        if self.missed is None:
            return
        some = data.with_events()
        if not len(some):
            raise InputError("missed is given without events: mark the events of the recordings.")
        missed, many = as_target(self.missed, "missed"), int(some.units().max()) + 1
        if many < (least := math.ceil(1 / missed) - 1):
            raise InputError(
                f"{many} {what} with events cannot promise that at most {in_words(missed)} of the "
                f"events are missed: at least {least} are needed (1 / missed - 1)."
            )

    def _limit(self, data: Recordings) -> float:
        """θ_det, which every threshold must be below, from recordings with events."""
        assert self.missed is not None
        levels, weights, share, many = [], [], data.shares(), int(data.units().max()) + 1
        for row, scores in enumerate(data.scores):
            marked = data.marked(row)
            for level, rise in miss_levels(scores, marked, self.rest, self.within):
                levels.append(level)
                weights.append(share[row] * Fraction(rise, len(marked)))
        allowed = as_target(self.missed, "missed") * (many + 1) - 1
        return _crossing(np.array(levels), weights, allowed)

    alarms, evaluate = refused("find alarms with"), refused("evaluate")
    save, stream = refused("save"), refused("stream from")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "CalibratedSpotter":
        """Read a calibrated spotter that `save` wrote."""
        return read_rule_file(path, CalibratedSpotter, _check_loaded)


def _crossing(levels: Floats, weights: Sequence[Fraction], allowed: Fraction) -> float:
    """The largest x for which the weights of all levels below x are at most `allowed`."""
    total = Fraction(0)
    if allowed < 0:
        return -np.inf
    for row in np.argsort(levels, kind="stable"):
        total += weights[row]
        if total > allowed:
            return float(levels[row])
    return np.inf


def as_seconds(step_seconds: Target) -> Fraction:
    """The length of a step, exactly as written."""
    seconds = as_exact(step_seconds, "step_seconds", "a number above 0, such as 0.08")
    if seconds <= 0:
        raise InputError(f"step_seconds is {quoted(step_seconds)}: give a number above 0.")
    return seconds


def _above(kth: float, scores: Floats) -> float:
    """The threshold, moved up into a gap between the scores of calibration."""
    if not np.isfinite(kth):
        return kth
    rounding = Rounding()
    quarters = np.percentile(scores, [25, 75])
    reach = REACH * float(quarters[1] - quarters[0])
    return -in_gap(-kth - rounding.largest(kth), -scores, rounding, reach)


@dataclass(frozen=True, eq=False, repr=False)
class CalibratedSpotter(KeptInFiles):
    """A spotter with its threshold. Make one with `Spotter.calibrate`.

    Attributes
    ----------
    spotter
        The settings.
    threshold
        The score above which there is an alarm; it lies in a gap between calibration scores.
    kth_value
        The least threshold that keeps the promise, which `threshold` is no smaller than.
    near
        Alarms at most this many steps before the first step of an event, or after its last step,
        are not false.
    n
        The number of calibration recordings.
    ids : (n,)
        A hash of each calibration recording.
    limit
        With `missed`: every threshold below it keeps that promise.
    people
        The number of people in calibration, where the promise is for new people.
    engine, ensemble_digest, heard
        What made the scores it was calibrated on, where `ensemble.listen` did.
    known_people
        Marks of the people in calibration; `evaluate` refuses them.

    Examples
    --------
    >>> import numpy as np, agreestop as ag
    >>> rng = np.random.default_rng(0)
    >>> recordings = [rng.normal(size=500) for _ in range(99)]
    >>> calibrated = ag.Spotter(false_alarms=0.05, rest=20).calibrate(recordings)
    >>> calibrated.n, 2.5 < calibrated.threshold < 6
    (99, True)
    >>> scores = rng.normal(size=500)
    >>> scores[200:210] += 9
    >>> stream = calibrated.stream()
    >>> [found.index for score in scores if (found := stream.push(score))]
    [200]
    """

    spotter: Spotter
    threshold: float
    kth_value: float
    near: int
    n: int
    ids: tuple[str, ...]
    limit: float | None = None
    people: int | None = None
    engine: str = ""
    ensemble_digest: str = ""
    heard: str = ""
    known_people: Marks | None = None

    @property
    def guarantee(self) -> str:
        """What is promised, in words."""
        spotter = self.spotter
        if self.threshold < self.kth_value:
            return (
                f"nothing is promised of false alarms: the threshold, {self.threshold:g}, is below "
                f"the least one that keeps the promise, {self.kth_value:g}."
            )
        most, cap = in_words(spotter.allowed), spotter.cap
        new = "a recording" if self.people is None else "a recording of a new person"
        words = f"{new} has on average at most {most} false alarms (at most {cap} are counted)"
        if spotter.per == IN_AN_HOUR:
            ours = "new recordings" if self.people is None else "recordings of new people"
            words = (
                f"{ours} have on average at most {most} false alarms an hour (at most {cap} of "
                "each recording are counted)"
            )
        elif cap == 1:
            words = f"{new} has any false alarm with probability at most {most}"
        draw = "recordings and of a new recording exchangeable with them"
        if self.people is not None:
            draw = "people and of a new person exchangeable with them"
        found = ""
        if spotter.missed is not None and self.limit is not None and self.threshold < self.limit:
            found = (
                f" In {new} with events, the mean share of them that are not found within "
                f"{spotter.within} steps after their end is at most "
                f"{in_words(as_target(spotter.missed))}."
            )
        return f"{words}, over the draw of the calibration {draw}.{found}"

    def __repr__(self) -> str:
        return (
            f"CalibratedSpotter(false_alarms={self.spotter.false_alarms} a {self.spotter.per}, "
            f"cap={self.spotter.cap}, "
            f"rest={self.spotter.rest}, threshold={self.threshold:.6g}, n={self.n}"
            f"{self.heard and f', {self.heard}'})"
        )

    def alarms(self, scores: ArrayLike) -> Integers:
        """The steps of one recording, counted from 0, at which there is an alarm."""
        above = np.flatnonzero(as_scores(scores, "scores") > self.threshold)
        return with_rest(above, self.spotter.rest)

    def check_scores(
        self, recordings: Recordings, any_engine: bool = False, any_members: bool = False
    ) -> None:
        """Refuse scores of another engine or ensemble, or with another window or event, than
        calibrated with, where these are known.
        """
        known, given = ((one.engine, one.ensemble_digest) for one in (self, recordings))
        check_source("spotter", known, given, any_engine, any_members)
        check_heard("spotter", self.heard, recordings.heard)

    def stream(self) -> "SpotterStream":
        """Watch one stream, score by score."""
        return SpotterStream(self)

    def evaluate(
        self,
        recordings: Any,
        events: Sequence[ArrayLike] | None = None,
        within: int | None = None,
        *,
        people: ArrayLike | None = None,
        step_seconds: Target | None = None,
        confidence: float = 0.95,
        any_engine: bool = False,
        any_members: bool = False,
    ) -> SpottingEvaluation:
        """How many events are found, how late, and how many alarms are false.

        Parameters
        ----------
        recordings, events, people
            As for `calibrate`. Recordings that set the threshold are refused, and people whose
            recordings did.
        within : int, optional
            An event is found by an alarm less than so many steps after its end; what the spotter
            says unless given.
        step_seconds : float, str or Fraction, optional
            The length of a step, for false alarms an hour; what the spotter says unless given.
        confidence : float
            The level of the intervals.
        any_engine, any_members : bool
            Allow scores of another engine, or of other members, than calibrated with.

        Returns
        -------
        SpottingEvaluation
        """
        data = Recordings.of(recordings, events, people)
        self.check_scores(data, any_engine, any_members)
        if data.people is not None:
            refuse_known_people(data.people, self.known_people)
        # Silent recordings of one length are the same without being used twice.
        pairs = zip(data.ids, data.scores, strict=True)
        used = len({name for name, one in pairs if np.ptp(one)} & set(self.ids))
        if used:
            raise InputError(
                f"{used} of the {len(data)} recordings set the threshold: evaluate on others."
            )
        seconds = self.spotter.step_seconds if step_seconds is None else step_seconds
        hours = None if seconds is None else float(as_seconds(seconds) / HOUR)
        chosen = self.spotter.within if within is None else as_count(within, "within", least=0)
        alarms = [self.alarms(one) for one in data.scores]
        cap, per, threshold = self.spotter.cap, self.spotter.per, self.threshold
        return evaluate_alarms(
            data, alarms, self.near, chosen, cap, threshold, hours, confidence, per
        )

    def with_threshold(self, threshold: float) -> Self:
        """The spotter with another threshold; `guarantee` says what it still promises."""
        wrong = isinstance(threshold, (bool, np.bool_)) or not isinstance(threshold, Real)
        if wrong or math.isnan(threshold):
            raise InputError(f"threshold is {quoted(threshold)}: give a number.")
        return replace(self, threshold=float(threshold))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the spotter to one file: a readable header and plain arrays, all or nothing."""
        summary = {"guarantee": self.guarantee, "calibration_recordings": self.n}
        write_rule_file(path, self, summary)


def _check_loaded(spotter: CalibratedSpotter) -> CalibratedSpotter:
    if np.isnan(spotter.threshold) or spotter.near < 0 or len(spotter.ids) != spotter.n:
        raise ValueError("numbers that no calibration has")
    return spotter


def check_clock(step: int | None, index: int) -> None:
    """Refuse a step that is not the next one."""
    if step is None:
        return
    try:
        is_next = bool(step == index)
    except (TypeError, ValueError, RuntimeError):  # arrays and tensors of several numbers
        is_next = False
    if not is_next:
        raise InputError(
            f"step is {quoted(step)} where step {index} is next: push every step once and in "
            "order, or open a new stream after a jump of the clock."
        )


class SpotterStream:
    """One stream under watch, pushed one score at a time. `calibrated.stream()` opens one.

    Its size does not grow.

    Attributes
    ----------
    index : int
        The next step.

    Examples
    --------
    >>> import numpy as np, agreestop as ag
    >>> rng = np.random.default_rng(0)
    >>> recordings = [rng.normal(size=500) for _ in range(99)]
    >>> stream = ag.Spotter(false_alarms=0.05, rest=20).calibrate(recordings).stream()
    >>> stream.push(0.3), stream.push(9.0).index, stream.index
    (None, 1, 2)
    """

    __slots__ = ("_alarms", "_calibrated", "_free", "index")

    def __init__(self, calibrated: CalibratedSpotter) -> None:
        self._calibrated, self.index, self._free, self._alarms = calibrated, 0, 0, 0

    def push(self, score: float, step: int | None = None) -> Detection | None:
        """The score of the next step; a `Detection` if there is an alarm.

        step: the step's number by the caller's clock, which must be the next one.
        """
        try:
            score = float(score)
        except (TypeError, ValueError, OverflowError):
            raise InputError(
                f"score is {quoted(score)} at step {self.index}: give one number for each step."
            ) from None
        if not math.isfinite(score):
            raise InputError(
                f"score is {score} at step {self.index}: every step needs a finite score; repeat "
                "the last one where a sensor is silent."
            )
        index = self.index
        check_clock(step, index)
        self.index = index + 1
        if index < self._free or not score > self._calibrated.threshold:
            return None
        return self.alarm(score)

    def alarm(self, score: float) -> Detection:
        """Note an alarm at the step that was pushed last, and rest."""
        detection = Detection(self.index - 1, score, self._alarms)
        self._free, self._alarms = self.index + self._calibrated.spotter.rest, self._alarms + 1
        return detection
