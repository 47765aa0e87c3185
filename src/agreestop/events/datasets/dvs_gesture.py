"""dvs-gesture: eleven gestures of 29 people in front of an event camera, under three lights (Amir and others, 2017).

The files lie as they are published, in one folder or in DvsGesture there:

    trials_to_train.txt, trials_to_test.txt     the names of the recordings of either part, one a line: 98 of 23 people, 24 of 6 others
    user<NN>_<light>.aedat                      a recording, AEDAT 3.1 of 128 × 128 pixels: one person's gestures one after the other
    user<NN>_<light>_labels.csv                 which gesture is when: class (1 to 11), start and end in microseconds

Each labelled gesture is an input: 1,176 of the training part and 288 of the test part. Its first 2.4 seconds become T = 80 steps of
30 ms, the same for every input, and each step counts the events of 4 × 4 pixels as one, which makes 2 × 32 × 32 numbers up to 255; steps
after a gesture's end hold nothing.

The pool are all gestures of the test part, in an order drawn from the seed. Tuning are all gestures of some people of the training part,
4 of 23 unless told, whom the seed chooses: so the people are new to the members there as they are in the pool.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from agreestop.common.arrays import as_count, as_seed
from agreestop.common.errors import InputError

from ..binning import bin_events
from ..camera.gestures import GESTURES
from ..data import EventData, EventSplits
from ..formats.aedat3 import GestureLabel, read_aedat3, read_gesture_labels

STEPS = 80
STEP = 30_000  # microseconds
SIDE = 128
DOWNSAMPLES = (1, 2, 4, 8, 16)
TUNING_PEOPLE = 4
FOLDER = "DvsGesture"
LISTS = ("trials_to_train.txt", "trials_to_test.txt")
COMPLETE = (1_176, 288)  # gestures of either part
ADDRESS = "https://research.ibm.com/interactive/dvsgesture/"
NAME = re.compile(r"(user\d+)_\w+\.aedat")

DESCRIPTION = "DVS128 Gesture: eleven gestures of 29 people, recorded by an event camera under three lights"


@dataclass(frozen=True)
class Trial:
    """One recording: of whom, the file, and the file with its labels."""

    person: str
    recording: Path
    labels: Path


def load_dvs_gesture(
    folder: str | PathLike[str], tuning: int = TUNING_PEOPLE, seed: int = 0, downsample: int = 4, steps: int = STEPS
) -> EventSplits:
    """Counts of events (n, steps, 2, 128 / downsample, 128 / downsample) as uint8, in steps of 30 ms.

    folder      holds the files, or DvsGesture with them
    tuning      how many people of the training part are held back for tuning
    seed        chooses whom, and the order of every part
    downsample  how many pixels a cell is wide and high: 1, 2, 4, 8 or 16
    """
    as_seed(seed)
    as_count(steps, "steps")
    as_count(tuning, "tuning")
    if downsample not in DOWNSAMPLES:
        raise InputError(f"downsample is {downsample!r}: give the side of a cell in pixels, {', '.join(map(str, DOWNSAMPLES[:-1]))} or 16.")
    known, new = (find_trials(folder, name) for name in LISTS)
    if shared := {trial.recording for trial in known} & {trial.recording for trial in new}:
        raise InputError(f"{min(shared).name} is in both {LISTS[0]} and {LISTS[1]}: get the lists again from {ADDRESS}.")
    rng = np.random.default_rng(seed)
    people = sorted({trial.person for trial in known})
    if tuning >= len(people):
        raise InputError(f"tuning is {tuning}, but the training part has {len(people)} people: hold back fewer.")
    held_back = {people[place] for place in rng.permutation(len(people))[:tuning]}
    parts = {
        "training": [trial for trial in known if trial.person not in held_back],
        "tuning": [trial for trial in known if trial.person in held_back],
        "pool": new,
    }
    return EventSplits(**{name: _bin(f"dvs-gesture, {name}", trials, downsample, steps, rng) for name, trials in parts.items()})


def find_trials(folder: str | PathLike[str], name: str) -> list[Trial]:
    """The recordings that a list names, each with its labels."""
    place = find_place(folder)
    lines = (line.strip() for line in (place / name).read_text(errors="replace").splitlines())
    trials = []
    for line in filter(None, lines):
        match = NAME.fullmatch(line)
        if match is None:
            raise InputError(f"{place / name} names {line[:80]!r}, which is no user<NN>_<light>.aedat: get it again from {ADDRESS}.")
        trial = Trial(match[1], place / line, place / f"{line.removesuffix('.aedat')}_labels.csv")
        for path in (trial.recording, trial.labels):
            if not path.is_file():
                raise InputError(f"there is no file {path}, which {name} asks for: get it from {ADDRESS}.")
        trials.append(trial)
    if not trials:
        raise InputError(f"{place / name} names no recordings: get it again from {ADDRESS}.")
    return trials


def find_place(folder: str | PathLike[str]) -> Path:
    """Where the files lie: the folder itself, or the one that the archive makes in it."""
    for place in (Path(folder), Path(folder) / FOLDER):
        if all((place / name).is_file() for name in LISTS):
            return place
    raise InputError(f"there are no files {LISTS[0]} and {LISTS[1]} in {folder} or in {FOLDER} there: get them from {ADDRESS}.")


def _bin(name: str, trials: Sequence[Trial], downsample: int, steps: int, rng: np.random.Generator) -> EventData:
    """The gestures of these recordings, in random order."""
    gestures = [read_gesture_labels(trial.labels) for trial in trials]
    count = sum(len(some) for some in gestures)
    places = iter(rng.permutation(count))
    counts = np.empty((count, steps, 2, SIDE // downsample, SIDE // downsample), np.uint8)
    labels = np.empty(count, np.int64)
    for trial, some in zip(trials, gestures, strict=True):
        recording = read_aedat3(trial.recording)
        for gesture in some:
            row = next(places)
            inside = recording.between(gesture.start, gesture.stop)
            counts[row] = bin_events(inside, steps, size=counts.shape[3:], binary=False, window=_window(gesture, steps))
            labels[row] = gesture.gesture - 1
    return EventData(name, False, counts, labels, GESTURES, DESCRIPTION)


def _window(gesture: GestureLabel, steps: int) -> tuple[int, int]:
    return gesture.start, gesture.start + steps * STEP
