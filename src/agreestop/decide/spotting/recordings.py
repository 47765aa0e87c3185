"""Recordings: scores of streams, what is marked in them, and their files.

What is exchangeable is the recording (a day of a device, a file), never the step. An alarm is false
outside [start - near, end + near) of all events. With people, all recordings of one person count as
one: each of its N_j recordings counts 1/N_j.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import (
    Booleans,
    Floats,
    InputError,
    Integers,
    StrPath,
    as_array,
    as_floats,
    as_row_names,
    mix,
    read_npz,
    read_text,
    write_npz,
)
from agreestop.common.errors import quoted

HOW = "write one with scores (steps of all recordings), offsets (n + 1,) and events (E, 3)"
RUN, EVERY = 32, 8  # scores in a row by which copies are found, and which share of them is compared
LEAST_SHARED = 0.5  # share of the recordings: in fewer, members may have counted the same by chance
SOURCE = "engine", "ensemble_digest", "heard"  # what made the scores, as text


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

    def save(self, path: StrPath, events: Any = None, people: ArrayLike | None = None) -> None:
        """Write them as one `.npz` file, with events and people where these are known."""
        data = self.of(self, events, people)
        lengths = [len(one) for one in data.scores]
        arrays: dict[str, NDArray[Any]] = {
            "scores": np.concatenate(data.scores),
            "offsets": np.cumsum([0, *lengths]),
        }
        if data.events is not None:
            rows = [np.full(len(one), row) for row, one in enumerate(data.events)]
            pairs = np.concatenate(data.events)
            arrays["events"] = np.column_stack([np.concatenate(rows), pairs]).astype(np.int64)
        if data.people is not None:
            arrays["people"] = data.people
        if data.inputs:
            arrays["inputs"] = np.array(data.inputs)
        texts = {name: getattr(data, name) for name in SOURCE}
        write_npz(path, arrays | {name: np.array(one) for name, one in texts.items() if one})

    @property
    def ids(self) -> tuple[str, ...]:
        """A hash of each recording, by which it is recognised."""
        return self.inputs or tuple(map(hash_of, self.scores))

    def units(self) -> Integers:
        """The person of each recording, from 0, or its own number."""
        if self.people is None:
            return np.arange(len(self))
        return np.unique(self.people, return_inverse=True)[1].astype(np.int64)

    @property
    def count(self) -> int:
        """The number of people, or of recordings where each stands for itself."""
        return len(self) if self.people is None else len(np.unique(self.people))

    @cached_property
    def shares(self) -> list[Fraction]:
        """What each recording counts, (n,): 1 over the number of recordings of its person."""
        units = self.units()
        counts = np.bincount(units).tolist()
        return [Fraction(1, counts[unit]) for unit in units.tolist()]

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


def load_recordings(path: StrPath) -> Recordings:
    """Read recordings that `Recordings.save` or `numpy.savez` wrote.

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
