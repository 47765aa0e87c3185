"""New people: what rules promise for speakers and wearers that training and calibration never saw.

Each draw divides the people at random into three parts: training, calibration and test. A linear
discriminant for each checkpoint reads means of the signal over blocks of time, up to that
checkpoint. One in five of the training people sets the temperatures. AgreeStop then calibrates in
three ways: on rows taken as exchangeable, for a row of a new person, and for nine in ten new
people. Test people say who keeps which promise.

    AudioMNIST   30,000 spoken digits of 60 speakers, as log-mel frames (MIT, soerenab/AudioMNIST;
                 Becker et al.)
    HAPT         smartphone accelerometer and gyroscope of 30 people, windows of one activity (UCI,
                 CC BY 4.0; Reyes-Ortiz et al.)

`python -m benchmarks people --data FOLDER` writes results/people.json and results/people.png.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import agreestop as ag
from agreestop.common import Floats, InputError, Integers
from agreestop.report.figures import ABOVE, BELOW, save_figure, tidy

from .results import describe_run, write_results

TARGET, FOR_PEOPLE, ROWS = 0.9, 0.9, 100
WAYS: dict[str, dict[str, Any]] = {
    "rows taken as exchangeable": {},
    "a row of a new person": {"people": True},
    "nine in ten new people": {"people": True, "for_people": FOR_PEOPLE},
}


@dataclass(frozen=True, eq=False)
class PeopleData:
    """Rows of people: what is seen at each checkpoint, a list of (n, F_t); labels and people (n,);
    times in `unit`.
    """

    name: str
    seen: list[Floats]
    labels: Integers
    people: Integers
    times: tuple[float, ...]
    unit: str


@dataclass(frozen=True)
class PeopleRecord:
    """One way to calibrate, over all draws: means, and standard deviations over draws.

    coverage  of a row of a test person, people counting equally
    below     the share of test people whose coverage is under the target
    latency   the mean stopping time as a share of the last one
    """

    data: str
    way: str
    draws: int
    people: int
    coverage: float
    coverage_sd: float
    below: float
    below_sd: float
    latency: float
    latency_sd: float


def block_means(series: Floats, blocks: int) -> list[Floats]:
    """The means (n, b · F) of the first b = 1 … blocks parts of series (n, T, F)."""
    n, length, width = series.shape
    means = series[:, : length // blocks * blocks].reshape(n, blocks, -1, width).mean(axis=2)
    return [means[:, : count + 1].reshape(n, -1) for count in range(blocks)]


def read_audiomnist(folder: Path) -> PeopleData:
    """Some rows of each speaker, the same number of each digit; the first 600 ms in six blocks."""
    with np.load(_file(folder, "audiomnist.npz")) as content:
        mel, offsets, label, speaker, rep = (
            content[name] for name in ("mel", "offsets", "label", "speaker", "rep")
        )
    chosen = np.flatnonzero(rep < rep.min() + ROWS // 10)
    series = np.empty((len(chosen), 60, mel.shape[1]))
    for row, one in enumerate(chosen.tolist()):
        frames = mel[offsets[one] : min(offsets[one + 1], offsets[one] + 60)]
        series[row] = np.pad(frames, ((0, 60 - len(frames)), (0, 0)), mode="edge") / 255.0
    times = tuple(range(100, 601, 100))
    return PeopleData(
        "AudioMNIST",
        block_means(series, 6),
        label[chosen].astype(int),
        speaker[chosen].astype(int),
        times,
        "ms",
    )


def read_hapt(folder: Path) -> PeopleData:
    """Windows of 2.56 s inside one of the six activities, at most `ROWS` of each person: means,
    spreads and steps of eight blocks.
    """
    with np.load(_file(folder, "hapt.npz")) as content:
        x, label, user, exp = (content[name] for name in ("x", "label", "user", "exp"))
    change = np.flatnonzero((np.diff(label) != 0) | (np.diff(exp) != 0)) + 1
    starts = [
        start
        for first, end in zip([0, *change.tolist()], [*change.tolist(), len(label)], strict=True)
        if 1 <= label[first] <= 6
        for start in range(first, end - 127, 128)
    ]
    order = np.random.default_rng(0).permutation(starts)
    owner = user[order]
    kept = np.sort(np.concatenate([order[owner == one][:ROWS] for one in np.unique(owner)]))
    windows = np.stack([x[start : start + 128] for start in kept.tolist()]).astype(np.float64)
    steps = np.abs(np.diff(windows, axis=1, prepend=windows[:, :1]))
    signal = np.concatenate([windows, windows**2, steps], axis=2)
    means = block_means(signal, 8)
    seen = [part.reshape(len(part), -1, signal.shape[2]).mean(axis=1) for part in means]
    spread = [np.sqrt(np.maximum(part[:, 6:12] - part[:, :6] ** 2, 0.0)) for part in seen]
    features = [
        np.concatenate([part, np.log(own + 1e-3)], axis=1)
        for part, own in zip(seen, spread, strict=True)
    ]
    times = tuple(range(320, 2561, 320))
    return PeopleData(
        "HAPT", features, label[kept].astype(int) - 1, user[kept].astype(int), times, "ms"
    )


def simulated(people: int = 30, rows: int = 60, seed: int = 0) -> PeopleData:
    """People whose signal is moved by an amount of their own; three classes, four checkpoints."""
    rng = np.random.default_rng(seed)
    person = np.repeat(np.arange(people), rows)
    labels = rng.integers(3, size=len(person))
    moved = rng.normal(size=(people, 3)) * 0.7
    centre = 2.0 * np.eye(3)[labels] + moved[person]
    series = centre[:, None] + 2.0 * rng.normal(size=(len(person), 4, 3))
    return PeopleData("simulated", block_means(series, 4), labels, person, (1, 2, 3, 4), "steps")


def _file(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise InputError(f"--data is {folder}, which has no {name}: give the folder that holds it.")
    return path


def discriminant(x: Floats, labels: Integers, classes: int) -> Callable[[Floats], Floats]:
    """Log-posteriors (m, C) of a linear discriminant with a shrunk covariance, fitted on (n, F)."""
    centre, scale = x.mean(axis=0), x.std(axis=0) + 1e-9
    z = (x - centre) / scale
    means = np.stack([z[labels == label].mean(axis=0) for label in range(classes)])
    inside = z - means[labels]
    inverse = np.linalg.inv(inside.T @ inside / len(z) + 0.05 * np.eye(z.shape[1]))
    weights = means @ inverse
    bias = np.log(np.bincount(labels, minlength=classes) / len(labels)) - 0.5 * (
        weights * means
    ).sum(axis=1)

    def predict(new: Floats) -> Floats:
        return ag.log_confidence((new - centre) / scale @ weights.T + bias)

    return predict


def one_draw(
    data: PeopleData, rng: np.random.Generator, parts: Sequence[float]
) -> list[tuple[float, float, float]]:
    """Coverage, share of people under the target, and latency on the test people, for each way to
    calibrate.
    """
    everybody = rng.permutation(np.unique(data.people))
    ends = (np.cumsum((0, *parts)) * len(everybody)).round().astype(int)
    training, calibration, test = (everybody[start:end] for start, end in pairwise(ends))
    tunes = max(2, len(training) // 5)
    classes = int(data.labels.max()) + 1
    fitting = np.isin(data.people, training[tunes:])
    models = [discriminant(seen[fitting], data.labels[fitting], classes) for seen in data.seen]

    def scores(people: Integers) -> tuple[ag.Scores, NDArray[Any]]:
        rows = np.isin(data.people, people)
        found = np.stack(
            [model(seen[rows]) for model, seen in zip(models, data.seen, strict=True)], axis=1
        )
        return ag.Scores(found[:, :, None], data.labels[rows], data.times), data.people[rows]

    risk = ag.TopMass.fit(scores(training[:tunes])[0])
    rule = ag.AgreeStop(TARGET, data.times, max_set_size=1, risk=risk)
    known, persons = scores(calibration)
    new, new_people = scores(test)
    found = []
    for options in WAYS.values():
        given = {**options, **({"people": persons} if options else {})}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ag.CalibrationWarning)
            calibrated = rule.calibrate(known, **given)
        result = ag.evaluate(calibrated.decide(new), new, people=new_people)
        assert result.by_person is not None and result.people_below is not None
        coverage = float(np.mean([float(one.coverage) for one in result.by_person]))
        found.append((coverage, float(result.people_below), float(result.normalized_latency)))
    return found


def measure(
    data: PeopleData, draws: int, seed: int = 0, parts: Sequence[float] = (1 / 3, 1 / 3, 1 / 3)
) -> list[PeopleRecord]:
    """All ways to calibrate, over draws of the people."""
    figures = np.array(
        [one_draw(data, np.random.default_rng([seed, draw]), parts) for draw in range(draws)]
    )
    people = round(parts[1] * len(np.unique(data.people)))
    return [
        PeopleRecord(
            data.name,
            way,
            draws,
            people,
            *(number for pair in zip(mean, spread, strict=True) for number in pair),
        )
        for way, mean, spread in zip(
            WAYS, figures.mean(axis=0).tolist(), figures.std(axis=0, ddof=1).tolist(), strict=True
        )
    ]


def draw_people(records: Sequence[PeopleRecord], path: Path) -> list[Path]:
    """For each data set: people under the target, and latency, for each way to calibrate."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    names = list(dict.fromkeys(record.data for record in records))
    figure = Figure(figsize=(4.6 * len(names), 3.4), layout="constrained")
    for axes, name in zip(
        np.atleast_1d(np.array(figure.subplots(1, len(names)))), names, strict=True
    ):
        for record, colour, marker in zip(
            [one for one in records if one.data == name],
            (BELOW, ABOVE, "#56B4E9"),
            "vos",
            strict=True,
        ):
            axes.errorbar(
                record.latency,
                record.below,
                xerr=record.latency_sd,
                yerr=record.below_sd,
                fmt=marker,
                color=colour,
                capsize=2,
                label=record.way,
            )
        axes.axhline(1 - FOR_PEOPLE, color="black", linewidth=1, linestyle=":")
        axes.set(
            title=name, xlabel="latency / T", ylabel="new people under the target", ylim=(0, None)
        )
        axes.xaxis.set_major_locator(MaxNLocator(5))
        tidy(axes)
    axes.legend(frameon=False, fontsize=8)
    return save_figure(figure, path.parent, path.stem)


def run_people(folder: Path, output: Path, draws: int) -> list[PeopleRecord]:
    """Measure both data sets, and write the records and the figure."""
    records = [
        record for read in (read_audiomnist, read_hapt) for record in measure(read(folder), draws)
    ]
    command = f"python -m benchmarks people --data FOLDER --draws {draws}"
    content = {
        "target": TARGET,
        "for_people": FOR_PEOPLE,
        **describe_run(command=command),
        "records": [asdict(record) for record in records],
    }
    write_results(output, content)
    draw_people(records, output)
    return records
