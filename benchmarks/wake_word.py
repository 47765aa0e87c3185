"""`python -m benchmarks wake-word --data FOLDER`: spot "seven" in recordings without an end, then
name the digit that follows.

AudioMNIST (Becker et al., github.com/soerenab/AudioMNIST, MIT) as log-mel frames of 10 ms, in
`audiomnist.npz`. A spiking ensemble is trained on single digits of some speakers. Recordings of 30
to 60 s are put together from digits and pauses of the other speakers: some digits but "seven", then
"seven" and a digit, and so on. Frames become events where a band crosses a level. Speakers are
divided at random, again and again: some set the spotter's threshold, some calibrate the class rule
on alarms, and some are new.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import agreestop as ag
from agreestop.common import InputError, ProgressCallback
from agreestop.decide.spotting import Recordings
from agreestop.decide.spotting.alarms import with_rest
from agreestop.engines.watching import Heard

from .results import describe_run, write_results
from .spotting import Study, draw_study, measure_study, people_of, threshold_from_training

WORD, DIGITS = 7, 10
LEVELS = np.arange(50, 181, 20)  # of a band's log-energy, from 0 to 255
# frames between digits, and between "seven" and the next; spread of the noise in pauses
PAUSE, GAP, NOISE = (30, 150), (10, 30), 4.0
LENGTH, WORDS = (3000, 6000), 3  # frames of a recording, and how often "seven" is said in it
CLIP = 100  # frames of a training input
# steps that the spotter's score counts, and after a detection until the class rule has decided
WINDOW, SPAN = 45, 120
# steps of them that the class rule does not count: one is chosen on speakers of training
SKIPS = 0, 10, 20, 30, 40
NEAR = WITHIN = 30  # 300 ms
STEP_SECONDS = 0.01
TRAINING_SPEAKERS, TUNING_SHARE, RULE_SHARE, TEST_SHARE = 20, 0.2, 0.25, 0.25
CLIPS, EPOCHS, MEMBERS, HIDDEN = 4000, 6, 3, 128
FALSE_ALARMS, TARGET = 0.1, 0.8


@dataclass(frozen=True, eq=False)
class Spoken:
    """Spoken digits: log-mel frames of all (frames, bands), where each begins and ends, its digit
    and its speaker.
    """

    mel: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    label: NDArray[Any]
    speaker: NDArray[Any]

    @classmethod
    def load(cls, folder: Path) -> Spoken:
        path = folder / "audiomnist.npz"
        if not path.exists():
            raise InputError(
                f"{path} is missing: make it from AudioMNIST, github.com/soerenab/AudioMNIST."
            )
        with np.load(path) as content:
            return cls(content["mel"], content["offsets"], content["label"], content["speaker"])

    @classmethod
    def simulated(cls, speakers: int, repeats: int, seed: int = 0) -> Spoken:
        """Digits that each raise two of twenty bands, a little otherwise for each speaker."""
        rng = np.random.default_rng(seed)
        frames, labels, names = [], [], []
        for speaker in range(1, speakers + 1):
            voice = rng.normal(scale=6, size=20)
            for digit in np.repeat(np.arange(DIGITS), repeats):
                one = 40 + rng.normal(scale=NOISE, size=(int(rng.integers(35, 60)), 20))
                one[6:-6, 2 * digit : 2 * digit + 2] += 90
                frames.append(np.clip(one + voice * (one > 100), 0, 255).astype(np.uint8))
                labels.append(int(digit))
                names.append(speaker)
        return cls(
            np.concatenate(frames),
            np.cumsum([0, *map(len, frames)]),
            np.array(labels),
            np.array(names),
        )

    def clip(self, row: int) -> NDArray[np.uint8]:
        return self.mel[self.offsets[row] : self.offsets[row + 1]]

    def pick(self, rng: np.random.Generator, speaker: int, digit: int) -> NDArray[np.uint8]:
        return self.clip(
            int(rng.choice(np.flatnonzero((self.speaker == speaker) & (self.label == digit))))
        )


def pause(rng: np.random.Generator, near: NDArray[Any], frames: int) -> NDArray[np.uint8]:
    """Frames as quiet as the quietest of some digit, with noise."""
    quiet = near[near.sum(axis=1).argmin()].astype(float)
    return np.clip(quiet + rng.normal(scale=NOISE, size=(frames, len(quiet))), 0, 255).astype(
        np.uint8
    )


def crossings(mel: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Events (T, bands, levels, 2): a band goes above a level, or below it."""
    above = mel[:, :, None] > LEVELS
    before = np.concatenate([above[:1], above[:-1]])
    return np.stack([above & ~before, before & ~above], axis=-1)


def training_clips(
    spoken: Spoken, speakers: NDArray[Any], count: int, seed: int
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Events (n, CLIP, ...) of single digits after a pause, and the digits."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(np.flatnonzero(np.isin(spoken.speaker, speakers)))[:count]
    x = np.zeros((len(rows), CLIP, spoken.mel.shape[1], len(LEVELS), 2), dtype=bool)
    for place, row in enumerate(rows):
        clip = spoken.clip(int(row))
        frames = np.concatenate(
            [pause(rng, clip, int(rng.integers(2, 15))), clip, pause(rng, clip, CLIP)]
        )
        x[place] = crossings(frames)[:CLIP]
    return x, spoken.label[rows].astype(np.int64)


@dataclass(frozen=True, eq=False)
class Tape:
    """A recording put together: events of frames, where "seven" is, and the digit after each."""

    inputs: NDArray[np.bool_]
    words: list[tuple[int, int]]
    digits: list[int]


def tape(spoken: Spoken, speaker: int, rng: np.random.Generator) -> Tape:
    """A recording of one speaker."""
    length = int(rng.integers(*LENGTH))
    # of nine parts of the recording
    turns = np.sort(rng.choice(np.arange(1, 9), size=WORDS, replace=False))
    frames: list[NDArray[np.uint8]] = []
    words: list[tuple[int, int]] = []
    digits: list[int] = []
    time = 0
    others = [digit for digit in range(DIGITS) if digit != WORD]

    def add(part: NDArray[np.uint8]) -> None:
        nonlocal time
        frames.append(part)
        time += len(part)

    while time < length:
        near = spoken.pick(rng, speaker, int(rng.choice(others)))
        add(pause(rng, near, int(rng.integers(*PAUSE))))
        if len(words) < WORDS and time > turns[len(words)] * length / 9:
            word, digit = spoken.pick(rng, speaker, WORD), int(rng.choice(others))
            words.append((time, time + len(word)))
            digits.append(digit)
            add(word)
            add(pause(rng, word, int(rng.integers(*GAP))))
            add(spoken.pick(rng, speaker, digit))
            add(pause(rng, word, SPAN))
        else:
            add(near)
    return Tape(crossings(np.concatenate(frames)), words, digits)


def train(
    spoken: Spoken, speakers: NDArray[Any], clips: int, epochs: int, members: int, hidden: int
) -> ag.ensembles.DeepEnsemble:
    """A spiking ensemble on single digits."""
    x, y = training_clips(spoken, speakers, clips, seed=0)
    network = ag.networks.FullyConnected(x.shape[2:], classes=DIGITS, hidden=(hidden,))
    ensemble = ag.ensembles.DeepEnsemble(
        network, members=members, seed=0, engine="event-driven-int8"
    )
    return ensemble.fit(x, y, epochs, progress=False)


def run_wake_word(
    spoken: Spoken, draws: int, output: Path, progress: ProgressCallback, small: bool = False
) -> list[Path]:
    """Train, put recordings together, divide the speakers again and again, and write a JSON file
    and a figure.
    """
    rng = np.random.default_rng(0)
    speakers = rng.permutation(np.unique(spoken.speaker))
    seen = TRAINING_SPEAKERS if len(speakers) > 2 * TRAINING_SPEAKERS else len(speakers) // 3
    trained, others = speakers[:seen], speakers[seen:]
    tuning = trained[: round(seen * TUNING_SHARE)]
    progress("train", 0.0)
    settings = (700, 10, 2, 32) if small else (CLIPS, EPOCHS, MEMBERS, HIDDEN)
    ensemble = train(spoken, trained[len(tuning) :], *settings)
    tapes = {
        name: [tape(spoken, int(one), rng) for one in part for _ in range(6)]
        for name, part in (("old", trained), ("new", others))
    }
    heard = {
        name: ensemble.listen([one.inputs for one in part], window=WINDOW, event=WORD)
        for name, part in tapes.items()
    }
    study = study_of(tapes, heard, np.repeat(trained, 6), np.repeat(others, 6))
    tuned = len(tuning) * 6
    skips = try_skips(tapes["old"][:tuned], heard["old"], threshold_from_training(study))
    skip = int(max(skips, key=lambda one: one["right"])["skip"])
    study = replace(study, rule=ag.AgreeStop(TARGET, range(20, SPAN - skip + 1, 2), 1))
    cut = windows_of(tapes["new"], heard["new"], np.repeat(others, 6), skip)
    record = measure_study(study, draws, cut, progress)
    for name in ("seconds", "seconds_at_end"):  # of the rule; from the detection on
        record["named"][name] += skip * STEP_SECONDS
    progress("C", 1.0)
    content = {
        **describe_run(command=f"python -m benchmarks wake-word --data FOLDER --draws {draws}"),
        "data": "AudioMNIST, soerenab/AudioMNIST (MIT), Becker et al.",
        "speakers": {
            "training": len(trained) - len(tuning),
            "tuning": len(tuning),
            "threshold": study.threshold_people,
            "rule": study.rule_people,
            "others": len(others),
        },
        "recordings": len(tapes["new"]),
        "hours": sum(len(one.inputs) for one in tapes["new"]) * STEP_SECONDS / 3600,
        "within_seconds": WITHIN * STEP_SECONDS,
        **record,
        "clips_right": {
            name: clips_right(ensemble, spoken, part)
            for name, part in (("training", trained[len(tuning) :]), ("tuning", tuning))
        },
        "skips": skips,
        "skip": skip,
        "c": measure_c(ensemble, study, tapes["new"], cut, skip),
    }
    write_results(output, content)
    return [output, *draw_study(study, record, output.parent, output.stem)]


def study_of(
    tapes: dict[str, list[Tape]],
    heard: dict[str, Heard],
    trained: NDArray[Any],
    others: NDArray[Any],
) -> Study:
    """The study, with a rule that skips nothing."""
    old, new = (
        Recordings.of(heard[name].scores, [one.words for one in tapes[name]], people)
        for name, people in (("old", trained), ("new", others))
    )
    spotter = ag.Spotter(FALSE_ALARMS, 1, SPAN, within=WITHIN)
    rule = ag.AgreeStop(TARGET, range(20, SPAN + 1, 2), 1)
    people = len(np.unique(others))
    sizes = (
        people - round(people * RULE_SHARE) - round(people * TEST_SHARE),
        round(people * RULE_SHARE),
    )
    return Study(new, old, spotter, NEAR, STEP_SECONDS, rule, *sizes)


def windows_of(tapes: list[Tape], heard: Heard, people: NDArray[Any], skip: int) -> Any:
    """The function that cuts windows after alarms out of recordings."""

    def cut(
        rows: NDArray[Any], alarms: NDArray[Any], events: NDArray[Any]
    ) -> tuple[ag.Scores, NDArray[Any]]:
        part = [heard.outputs[row] for row in rows]
        some = replace(heard, outputs=tuple(part), scores=heard.scores.rows(rows))
        labels = np.array(
            [tapes[row].digits[event] for row, event in zip(rows, events, strict=True)]
        )
        used = (alarms >= 0) & (alarms < np.array([len(one) for one in part]) - SPAN)
        return some.after(alarms, labels, steps=SPAN - skip, skip=skip), people[rows][used]

    return cut


def try_skips(tapes: list[Tape], heard: Heard, threshold: float) -> list[dict[str, float]]:
    """For each number of steps that the rule does not count: how often the digit, or the word, is
    most probable at the end.
    """
    found: dict[int, list[int]] = {skip: [] for skip in SKIPS}
    truth = []
    for row, one in enumerate(tapes):
        alarms = with_rest(np.flatnonzero(heard.scores[row] > threshold), SPAN)
        for (start, end), digit in zip(one.words, one.digits, strict=True):
            own = alarms[(alarms >= start) & (alarms < end + WITHIN)]
            if len(own) and own[0] + SPAN < len(one.inputs):
                truth.append(digit)
                for skip in SKIPS:
                    counts = heard.outputs[row][own[0] + 1 + skip : own[0] + 1 + SPAN].sum(
                        axis=0, dtype=np.int64
                    )
                    found[skip].append(int(np.exp(ag.log_confidence(counts)).mean(axis=0).argmax()))
    digits = np.array(truth)
    return [
        {
            "skip": skip,
            "right": float((np.array(said) == digits).mean()),
            "word": float((np.array(said) == WORD).mean()),
            "windows": len(said),
        }
        for skip, said in found.items()
    ]


def clips_right(
    ensemble: ag.ensembles.DeepEnsemble, spoken: Spoken, speakers: NDArray[Any], count: int = 500
) -> float:
    """The share of single digits that the members name at their end."""
    x, y = training_clips(spoken, speakers, count, seed=1)
    last = ensemble.score(x, steps=None).log_confidence[:, -1]
    return float((np.exp(last).mean(axis=1).argmax(axis=1) == y).mean())


def measure_c(
    ensemble: ag.ensembles.DeepEnsemble, study: Study, tapes: list[Tape], cut: Any, skip: int
) -> dict[str, Any]:
    """The spotter and the rule of the first draw in C: bytes, and whether it finds on all
    recordings of new people what Python finds.
    """
    known, ruled, new = people_of(study, 0)
    spotter = study.spotter.calibrate(study.recordings.rows(known), near=study.near)
    scores, people = cut(ruled, *study.windows_after(spotter, ruled))
    rule = study.rule.calibrate(scores, people=people)
    streams = [tapes[row].inputs for row in new]
    with tempfile.TemporaryDirectory() as folder:
        made = ag.export.watch_to_c(
            spotter, rule, ensemble, folder, streams, window=WINDOW, event=WORD, skip=skip
        )
        sizes = object_sizes(Path(folder), "-Os")
        run(Path(folder), "make", "-s", "clean")
        run(Path(folder), "make", "-s", "replay")
        done = run(Path(folder), "./replay", "inputs.bin")
        expected = (Path(folder) / "expected.csv").read_text()
    step = re.search(r"steps, (\S+) us each", done.stderr)
    assert step is not None
    return {
        "weights": made.weights,
        **sizes,
        "streams": len(streams),
        "steps": sum(map(len, streams)),
        "detections": expected.count("detection"),
        "decisions": expected.count("decision"),
        "equal": done.stdout == expected,
        "nearest": made.nearest,
        "microseconds_a_step": float(step[1]),
    }


def object_sizes(folder: Path, *options: str) -> dict[str, int]:
    """Bytes of the parts that a device needs, compiled for this computer: code with all numbers, of
    which the numbers, and memory.
    """
    run(folder, "make", "-s", "objects", f"CFLAGS={' '.join(options)}")
    names = sorted(path.name for path in folder.glob("*.o"))
    rows = [
        list(map(int, line.split()[:3]))
        for line in run(folder, "size", *names).stdout.splitlines()[1:]
    ]
    text, data, bss = np.sum(rows, axis=0).tolist()
    return {
        "flash": text + data,
        "flash_of_model": rows[names.index("model.o")][0] + rows[names.index("model.o")][1],
        "ram": data + bss,
    }


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True)
