"""dvs-gesture: eleven gestures of 29 people in front of an event camera, under three lights
(Amir and others, 2017).

The files lie as they are published, in the folder itself or in DvsGesture there:

    trials_to_train.txt, trials_to_test.txt     the recordings of either part, one name on each
                                                line: 98 of 23 people, 24 of 6 others
    user<NN>_<light>.aedat                      a recording, AEDAT 3.1 of 128 × 128 pixels: one
                                                person's gestures one after the other
    user<NN>_<light>_labels.csv                 the gestures in it: class (1 to 11), start and end
                                                in microseconds

Each labelled gesture is an input: 1,176 of the training part and 288 of the test part. Its
first 2.4 seconds become T = 80 steps of 30 ms, the same for every input. Each step counts the
events of 4 × 4 pixels together, which makes 2 × 32 × 32 numbers up to 255; steps after a
gesture's end are zero.

The pool are all gestures of the test part, in an order drawn from the seed. Tuning gets all
gestures of some people of the training part (4 of 23 by default), whom the seed chooses: the
members have seen none of these people, as they have seen nobody of the pool.
"""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from agreestop.common import InputError, ProgressCallback, as_count, as_seed, read_file
from agreestop.common.errors import quoted

from ..container import Events
from ..data import (
    DataSet,
    Done,
    EventSplits,
    Findings,
    Made,
    address_of,
    as_finding,
    begins_with,
    check_each,
    find_folder,
    make_splits,
)
from ..formats.aedat import VERSIONS, read_aedat3
from ..formats.recording import bin_events

STEPS = 80
STEP = 30_000  # microseconds
SIDE = 128
DOWNSAMPLES = (1, 2, 4, 8, 16)
FOLDER = "DvsGesture"
GESTURES = (
    "hand clapping",
    "right hand wave",
    "left hand wave",
    "right arm clockwise",
    "right arm counter-clockwise",
    "left arm clockwise",
    "left arm counter-clockwise",
    "arm roll",
    "air drums",
    "air guitar",
    "other gestures",
)
LABEL_COLUMNS = "class,startTime_usec,endTime_usec"
MOST_LINES = 2**20  # bytes of a table
LISTS = ("trials_to_train.txt", "trials_to_test.txt")
COMPLETE = (1_176, 288)  # gestures of either part
ADDRESS = address_of("dvs-gesture")
NAME = re.compile(r"(user\d{1,9})_\w{1,50}\.aedat")


class GestureRecording(NamedTuple):
    """One recording: the person, the file, and the file with its labels."""

    person: str
    recording: Path
    labels: Path


class GestureLabel(NamedTuple):
    """One gesture of a recording: its class, from 1 to 11 as in the file, and its window start
    <= time < stop in microseconds.
    """

    gesture: int
    start: int
    stop: int


def load_dvs_gesture(
    folder: Path,
    tuning: int = 4,
    seed: int = 0,
    downsample: int = 4,
    steps: int = STEPS,
    progress: ProgressCallback | None = None,
) -> EventSplits:
    """Counts of events (n, steps, 2, 128 / downsample, 128 / downsample) as uint8, in
    steps of 30 ms.

    tuning      how many people of the training part are kept for tuning
    seed        chooses whom, and the order of every part
    downsample  the width and height of a cell in pixels: 1, 2, 4, 8 or 16
    """
    rng = np.random.default_rng(as_seed(seed))
    as_count(steps, "steps")
    as_count(tuning, "tuning")
    if downsample not in DOWNSAMPLES:
        raise InputError(
            f"downsample is {downsample!r}: give the side of a cell in pixels, "
            f"{', '.join(map(str, DOWNSAMPLES[:-1]))} or 16."
        )
    known, new = (find_recordings(folder, name) for name in LISTS)
    if shared := {one.recording for one in known} & {one.recording for one in new}:
        raise InputError(
            f"{min(shared).name} is in both {LISTS[0]} and {LISTS[1]}: get the lists again from "
            f"{ADDRESS}."
        )
    people = sorted({one.person for one in known})
    if tuning >= len(people):
        raise InputError(
            f"tuning is {tuning}, but the training part has {len(people)} people: hold back fewer."
        )
    tuned = {people[index] for index in rng.permutation(len(people))[:tuning]}
    parts = (
        [one for one in known if one.person not in tuned],
        [one for one in known if one.person in tuned],
        new,
    )
    make = partial(_bin, side=SIDE // downsample, steps=steps, rng=rng)
    return make_splits("dvs-gesture", parts, make, GESTURES, progress)


def find_recordings(folder: Path, name: str) -> list[GestureRecording]:
    """The recordings that a list names, each with its labels."""
    missing = (
        f"there are no files {LISTS[0]} and {LISTS[1]} in {folder} or in {FOLDER} there: get them "
        f"from {ADDRESS}."
    )
    path = find_folder(
        folder, FOLDER, lambda path: all((path / name).is_file() for name in LISTS), missing
    )
    lines = (
        line.strip()
        for line in read_file(path / name, most=MOST_LINES).decode(errors="replace").splitlines()
    )
    recordings = []
    for line in filter(None, lines):
        match = NAME.fullmatch(line)
        if match is None:
            raise InputError(
                f"{path / name} names {quoted(line)}, which is no user<NN>_<light>.aedat: get it "
                f"again from {ADDRESS}."
            )
        one = GestureRecording(
            match[1], path / line, path / f"{line.removesuffix('.aedat')}_labels.csv"
        )
        for file in (one.recording, one.labels):
            if not file.is_file():
                raise InputError(
                    f"there is no file {file}, which {name} asks for: get it from {ADDRESS}."
                )
        recordings.append(one)
    if not recordings:
        raise InputError(f"{path / name} names no recordings: get it again from {ADDRESS}.")
    return recordings


def read_gesture_labels(path: Path) -> tuple[GestureLabel, ...]:
    """The gestures of a recording of DVS128 Gesture, from its table: a line of column names,
    then a line for each gesture.
    """
    lines = read_file(path, most=MOST_LINES).decode("utf-8-sig", errors="replace").splitlines()
    if not lines or lines[0].strip() != LABEL_COLUMNS:
        raise InputError(f"{path} is no table of gestures: its first line must be {LABEL_COLUMNS}.")
    labels = []
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        row = re.fullmatch(r"\s*([0-9]{1,18})\s*,\s*([0-9]{1,18})\s*,\s*([0-9]{1,18})\s*", line)
        if row is None:
            raise InputError(
                f"{path} has {quoted(line)} in line {number}: give three whole numbers, "
                f"{LABEL_COLUMNS}."
            )
        gesture, start, stop = (int(value) for value in row.groups())
        if not 1 <= gesture <= len(GESTURES) or start >= stop:
            raise InputError(
                f"{path} has {quoted(line)} in line {number}: give a class from 1 to "
                f"{len(GESTURES)}, and a start before its end."
            )
        labels.append(GestureLabel(gesture, start, stop))
    return tuple(labels)


def _bin(
    recordings: Sequence[GestureRecording],
    done: Done,
    side: int,
    steps: int,
    rng: np.random.Generator,
) -> Made:
    """Counts of events and labels of the gestures in these recordings, in random order."""
    gestures = [read_gesture_labels(one.labels) for one in recordings]
    count = sum(len(some) for some in gestures)
    rows = rng.permutation(count)
    counts, labels = [], []
    for number, (one, some) in enumerate(zip(recordings, gestures, strict=True)):
        recording = read_aedat3(one.recording)
        for gesture in some:
            window = (gesture.start, gesture.start + steps * STEP)
            inside = recording.between(gesture.start, gesture.stop)
            counts.append(
                Events.from_dense(
                    bin_events(inside, steps, size=(side, side), binary=False, window=window)[None]
                )
            )
            labels.append(gesture.gesture - 1)
        done(number + 1)
    if not counts:
        raise InputError(
            f"the labels of {len(recordings)} recordings name no gesture: get them again from "
            f"{ADDRESS}."
        )
    order = np.argsort(rows)  # gesture i becomes row rows[i]
    return Events.concatenate([counts[index] for index in order]), np.array(labels, np.int64)[order]


def _check(folder: Path) -> Findings:
    for name, part, complete in zip(LISTS, ("training", "test"), COMPLETE, strict=True):
        recordings = find_recordings(folder, name)
        count = sum(len(read_gesture_labels(one.labels)) for one in recordings)
        sentence = (
            f"{count:,} of {complete:,} gestures of the {part} part, in {len(recordings)} "
            "recordings"
        )
        yield as_finding(count, complete, sentence, ADDRESS)
        yield from check_each(
            [one.recording for one in recordings],
            lambda path: begins_with(path, VERSIONS["3.1"]),
            ADDRESS,
        )


DATA_SET = DataSet.recorded("dvs-gesture", load=load_dvs_gesture, check=_check)
