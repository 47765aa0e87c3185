"""`python -m benchmarks transitions --data FOLDER`: spot changes of posture of new people, then
name the posture early.

HAPT (Reyes-Ortiz et al., UCI Machine Learning Repository, CC BY 4.0), in `hapt.npz`: continuous
recordings of 30 people who wear a smartphone, with accelerometer and gyroscope at 50 Hz. Events are
the labelled transitions, such as sit to stand; all other time counts as without events, also where
nobody wrote a label. Steps are a tenth of a second. Features are means and standard deviations over
the last 0.5, 1 and 2.5 s; boosted trees of some people score a transition at each step, and name
the posture after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import agreestop as ag
from agreestop.common import InputError, ProgressCallback
from agreestop.decide.spotting import Recordings

from .results import describe_run, write_results
from .spotting import Study, draw_study, measure_study

POSTURES = (4, 5, 6)  # sitting, standing, lying
FIRST_TRANSITION = 7
HERTZ, STRIDE = 50, 5
WINDOWS = (25, 50, 125)  # samples
STEP_SECONDS = STRIDE / HERTZ
NEAR = WITHIN = 10  # 1 s
REST, STEPS = 60, 50  # 6 s, and the 5 s that the class rule may take
FALSE_ALARMS, CAP, TARGET = 1, 10, 0.75
TRAINING_PEOPLE, RULE_SHARE, TEST_SHARE = 6, 0.25, 0.25


@dataclass(frozen=True, eq=False)
class Worn:
    """Recordings of a sensor: samples x (N, 6), a label and a person for each, and the recording
    that each belongs to.
    """

    x: NDArray[np.float32]
    label: NDArray[np.int16]
    user: NDArray[Any]
    experiment: NDArray[Any]

    @classmethod
    def load(cls, folder: Path) -> Worn:
        path = folder / "hapt.npz"
        if not path.exists():
            raise InputError(
                f"{path} is missing: make it from HAPT of the UCI Machine Learning Repository."
            )
        with np.load(path) as content:
            return cls(content["x"], content["label"], content["user"], content["exp"])

    @classmethod
    def simulated(cls, people: int, seed: int = 0) -> Worn:
        """Two recordings of each person: postures with a direction each, and transitions that
        shake.
        """
        rng = np.random.default_rng(seed)
        parts: list[tuple[NDArray[Any], int, int, int]] = []
        means = {4: (1, 0, 0), 5: (0, 1, 0), 6: (0, 0, 1)}
        for recording in range(2 * people):
            way = rng.normal(scale=0.1, size=6)
            posture = 5
            for _ in range(9):
                after = int(rng.choice([one for one in POSTURES if one != posture]))
                for label, length, noise in (
                    (posture, rng.integers(400, 700), 0.05),
                    (FIRST_TRANSITION, rng.integers(100, 160), 0.8),
                ):
                    here = (
                        np.array([*means[posture], 0, 0, 0])
                        + way
                        + rng.normal(scale=noise, size=(int(length), 6))
                    )
                    parts.append((here, label, recording // 2, recording))
                posture = after
        x, labels = (
            np.concatenate([one[0] for one in parts]),
            [np.full(len(one[0]), one[1]) for one in parts],
        )
        user, experiment = ([np.full(len(one[0]), one[place]) for one in parts] for place in (2, 3))
        return cls(
            x.astype(np.float32),
            np.concatenate(labels).astype(np.int16),
            np.concatenate(user),
            np.concatenate(experiment),
        )


@dataclass(frozen=True, eq=False)
class Wear:
    """One recording in steps: features, labels, transitions, and the posture after each step."""

    features: NDArray[np.float32]
    label: NDArray[np.int64]
    events: list[tuple[int, int]]
    posture: NDArray[np.int64]
    person: int


def features(x: NDArray[Any]) -> NDArray[np.float32]:
    """(steps, 36) means and standard deviations of the last samples of each window, past ones
    alone.
    """
    ends = np.arange(STRIDE, len(x) + 1, STRIDE)
    zeros: NDArray[np.float64] = np.zeros((1, x.shape[1]))
    sums, squares = (
        np.concatenate([zeros, np.cumsum(one.astype(np.float64), axis=0)]) for one in (x, x**2)
    )
    parts = []
    for window in WINDOWS:
        begins = np.maximum(ends - window, 0)
        count = (ends - begins)[:, None]
        mean = (sums[ends] - sums[begins]) / count
        parts += [mean, np.sqrt(np.maximum((squares[ends] - squares[begins]) / count - mean**2, 0))]
    return np.concatenate(parts, axis=1).astype(np.float32)


def recordings_of(worn: Worn) -> list[Wear]:
    """Every recording in steps. A recording is a run of one person and one experiment."""
    changes = np.flatnonzero((np.diff(worn.experiment) != 0) | (np.diff(worn.user) != 0)) + 1
    found = []
    for rows in np.split(np.arange(len(worn.x)), changes):
        label = worn.label[rows][STRIDE - 1 :: STRIDE].astype(np.int64)
        moving = np.concatenate([[0], (label >= FIRST_TRANSITION).astype(int), [0]])
        events = list(
            zip(
                np.flatnonzero(np.diff(moving) > 0).tolist(),
                np.flatnonzero(np.diff(moving) < 0).tolist(),
                strict=True,
            )
        )
        posture = np.where(np.isin(label, POSTURES), label - POSTURES[0], -1)
        for start, end in events:
            posture[start:end] = posture[min(end, len(label) - 1)]
        found.append(Wear(features(worn.x[rows]), label, events, posture, int(worn.user[rows[0]])))
    return found


def run_transitions(
    worn: Worn, draws: int, output: Path, progress: ProgressCallback, trees: int = 60
) -> list[Path]:
    """Train, divide the people again and again, and write a JSON file and a figure."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    every = recordings_of(worn)
    people = np.random.default_rng(0).permutation(np.unique([one.person for one in every]))
    trained = set(people[: min(TRAINING_PEOPLE, len(people) // 3)].tolist())
    old, new = ([one for one in every if (one.person in trained) == seen] for seen in (True, False))
    progress("train", 0.0)
    x = np.concatenate([one.features for one in old])
    moving = np.concatenate([one.label >= FIRST_TRANSITION for one in old])
    posture = np.concatenate([one.posture for one in old])
    spots = HistGradientBoostingClassifier(max_iter=trees, random_state=0).fit(x, moving)
    names = HistGradientBoostingClassifier(max_iter=trees, random_state=0).fit(
        x[posture >= 0], posture[posture >= 0]
    )

    def scored(some: list[Wear]) -> Recordings:
        scores = [spots.decision_function(one.features) for one in some]
        return Recordings.of(
            scores, [one.events for one in some], np.array([one.person for one in some])
        )

    fresh, named = scored(new), [names.predict_proba(one.features) for one in new]
    count = len(np.unique([one.person for one in new]))
    sizes = count - round(count * RULE_SHARE) - round(count * TEST_SHARE), round(count * RULE_SHARE)
    spotter = ag.Spotter(FALSE_ALARMS, CAP, REST, within=WITHIN)
    rule = ag.AgreeStop(TARGET, range(1, STEPS + 1), 1)
    study = Study(fresh, scored(old), spotter, NEAR, STEP_SECONDS, rule, *sizes)

    def cut(
        rows: NDArray[Any], alarms: NDArray[Any], events: NDArray[Any]
    ) -> tuple[ag.Scores, NDArray[Any]]:
        values, labels, who = [], [], []
        for row, alarm, event in zip(rows, alarms, events, strict=True):
            one = new[row]
            if (
                alarm < 0
                or alarm + STEPS >= len(one.label)
                or (posture := int(one.posture[one.events[event][0]])) < 0
            ):
                continue
            values.append(named[row][alarm + 1 : alarm + 1 + STEPS])
            labels.append(posture)
            who.append(one.person)
        confidence = np.log(np.clip(np.array(values), 1e-9, None))[:, :, None]
        return ag.Scores(confidence, np.array(labels), tuple(range(1, STEPS + 1))), np.array(who)

    record = measure_study(study, draws, cut, progress)
    content = {
        **describe_run(command=f"python -m benchmarks transitions --data FOLDER --draws {draws}"),
        "data": "HAPT, Reyes-Ortiz et al., UCI Machine Learning Repository (CC BY 4.0)",
        "people": {
            "training": len(trained),
            "threshold": sizes[0],
            "rule": sizes[1],
            "others": count,
        },
        "recordings": len(new),
        "hours": sum(len(one.label) for one in new) * STEP_SECONDS / 3600,
        "within_seconds": WITHIN * STEP_SECONDS,
        **record,
    }
    write_results(output, content)
    return [output, *draw_study(study, record, output.parent, output.stem)]
