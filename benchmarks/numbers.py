"""Numbers: the length of a spoken digit, predicted from its first frames, and how early an interval
is narrow enough.

The data are AudioMNIST (Becker et al., soerenab/AudioMNIST, MIT) as log-mel frames of 10 ms. Ridge
regressions of the length, and of their error, at each checkpoint are fitted on the rows of 20
speakers. The rows of the other 40 are drawn again and again into calibration and test rows. Four
methods answer with intervals for the same target:

    ours          IntervalStop
    Bonferroni    a conformal interval of each checkpoint at level 1 - α/M; the first that is narrow
                  enough
    fixed time    one conformal interval, at the checkpoint from which training intervals are as
                  narrow as ours on average
    first narrow  a conformal interval of each checkpoint at level 1 - α; the first that is narrow
    enough: a control without a promise
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

import agreestop as ag
from agreestop.common import Booleans, Floats, InputError, Integers, atomic_writer, make_folder
from agreestop.report.figures import ABOVE, BELOW, save_figure, style_of, tidy

from .results import describe_run

CHECKPOINTS = tuple(range(5, 75, 5))
TARGET, WIDTHS = 0.9, (10.0, 15.0, 20.0, 30.0)
TRAINING_SPEAKERS, N_CALIBRATION, DRAWS = 20, 500, 50
ROWS_EACH = 10  # recordings of each digit of each speaker
PENALTY, LEAST_SCALE = 10.0, 0.5
STYLES = {
    "ours": (ABOVE, "v"),
    "Bonferroni": ("#7A7A7A", "s"),
    "first narrow": (BELOW, "o"),
    "fixed time": (style_of("fixed time").colour, "H"),
}


@dataclass(frozen=True, eq=False)
class Recordings:
    """Features (n, M, d) of what was heard by each checkpoint, whether it was over (n, M), lengths
    (n,) in frames, and speakers (n,).
    """

    features: list[Floats]
    over: Booleans
    lengths: Floats
    speakers: Integers


@dataclass(frozen=True)
class NumbersRecord:
    """Means over draws of a method, and the range in which 95 % of the draws lie."""

    method: str
    max_width: float
    coverage: float
    coverage_range: tuple[float, float]
    width: float
    width_range: tuple[float, float]
    time: float
    time_range: tuple[float, float]
    draws: int


def read_recordings(folder: Path, rows_each: int = ROWS_EACH) -> Recordings:
    """The recordings of `audiomnist.npz` in a folder."""
    path = folder / "audiomnist.npz"
    if not path.exists():
        raise InputError(
            f"{path} is missing: give the folder that holds AudioMNIST as audiomnist.npz with "
            "--data."
        )
    with np.load(path) as content:
        chosen = np.flatnonzero(content["rep"] < content["rep"].min() + rows_each)
        mel, offsets, speakers = content["mel"], content["offsets"], content["speaker"][chosen]
        clips = [mel[offsets[row] : offsets[row + 1]].astype(np.float64) / 255 for row in chosen]
    return recordings_of(clips, speakers)


def recordings_of(clips: Sequence[Floats], speakers: Integers) -> Recordings:
    """Means over five frames each, zero after the end."""
    lengths = np.array([len(clip) for clip in clips], dtype=np.float64)
    steps, bands = len(CHECKPOINTS), clips[0].shape[1]
    blocks = np.zeros((len(clips), steps, bands))
    for row, clip in enumerate(clips):
        padded = np.zeros((CHECKPOINTS[-1], bands))
        padded[: len(clip)] = clip[: CHECKPOINTS[-1]]
        blocks[row] = padded.reshape(steps, -1, bands).mean(axis=1)
    features = [blocks[:, : index + 1].reshape(len(clips), -1) for index in range(steps)]
    return Recordings(features, lengths[:, None] <= np.array(CHECKPOINTS), lengths, speakers)


def _ridge(x: Floats, y: Floats) -> Callable[[Floats], Floats]:
    mean, spread = x.mean(axis=0), x.std(axis=0) + 1e-9
    scaled = (x - mean) / spread
    weights = np.linalg.solve(
        scaled.T @ scaled + PENALTY * np.eye(x.shape[1]), scaled.T @ (y - y.mean())
    )
    return lambda new: (new - mean) / spread @ weights + y.mean()


def predict(data: Recordings, training: Booleans) -> ag.Numbers:
    """A centre and a scale for every row at every checkpoint, from models of the training rows
    alone.
    """
    pairs = []
    halves = np.arange(int(training.sum())) % 2 == 0
    for index, x in enumerate(data.features):
        known, y = x[training], data.lengths[training]
        running = ~data.over[training, index]
        if running.sum() < 50:  # hardly any recording is as long
            pairs.append((np.full(len(x), y.mean()), np.full(len(x), y.std())))
        else:
            errors = np.empty(len(y))
            for half in (halves, ~halves):
                errors[half] = np.abs(
                    y - _ridge(known[~half & running], y[~half & running])(known)
                )[half]
            scale = _ridge(known[running], errors[running])(x)
            pairs.append((_ridge(known[running], y[running])(x), np.maximum(scale, LEAST_SCALE)))
        centre, scale = pairs[-1]
        # What is over has a known length, and what is not has at least the frames heard so far.
        centre = np.where(
            data.over[:, index], data.lengths, np.maximum(centre, CHECKPOINTS[index] + 1)
        )
        pairs[-1] = centre, np.where(data.over[:, index], LEAST_SCALE, scale)
    centres, scales = (np.stack(parts, axis=1) for parts in zip(*pairs, strict=True))
    return ag.Numbers(centres, scales, data.lengths, CHECKPOINTS)


def _quantiles(numbers: ag.Numbers, rows: Integers, alpha: float) -> Floats:
    """The split-conformal reach of each checkpoint by itself, in scales."""
    scores = np.sort(
        np.abs(numbers.labels[rows, None] - numbers.centre[rows]) / numbers.scale[rows], axis=0
    )
    rank = int(np.ceil((len(rows) + 1) * (1 - alpha)))
    return scores[rank - 1] if rank <= len(rows) else np.full(scores.shape[1], np.inf)


def _answer(
    numbers: ag.Numbers, rows: Integers, reach: Floats, stops: Integers
) -> tuple[Floats, Floats, Integers]:
    """Misses, widths and stops where rows stop at checkpoints with the reach of these."""
    here = (rows, stops)
    half = reach[stops] * numbers.scale[here]
    return np.abs(numbers.labels[rows] - numbers.centre[here]) > half, 2 * half, stops


def compare(
    numbers: ag.Numbers,
    training: Booleans,
    max_width: float,
    n_calibration: int,
    draws: int,
    seed: int = 0,
) -> list[NumbersRecord]:
    """Every method over random divisions of the rows that are not for training."""
    rng, last, alpha = np.random.default_rng(0), len(numbers.times) - 1, 1 - TARGET
    others, own = np.flatnonzero(~training), np.flatnonzero(training)
    found: dict[str, list[tuple[float, float, float]]] = {}
    for _ in range(draws):
        order = rng.permutation(others)
        rows, test = order[:n_calibration], order[n_calibration:]
        rule = ag.IntervalStop(TARGET, max_width=max_width).calibrate(numbers.rows(rows))
        decisions = rule.decide(numbers.rows(test))
        assert decisions.lower is not None and decisions.upper is not None
        missed = (numbers.labels[test] < decisions.lower) | (numbers.labels[test] > decisions.upper)
        answers: dict[str, Any] = {"ours": (missed, decisions.width, decisions.stop_index)}
        for name, level in (("Bonferroni", alpha / (last + 1)), ("first narrow", alpha)):
            reach = _quantiles(numbers, rows, level)
            narrow = 2 * reach * numbers.scale[test] < max_width
            narrow[:, -1] = True
            answers[name] = _answer(numbers, test, reach, narrow.argmax(axis=1))
        reach = _quantiles(numbers, rows, alpha)
        widths = (2 * reach * numbers.scale[own]).mean(axis=0)
        early = np.flatnonzero(widths <= decisions.width.mean())
        time = int(early[0]) if len(early) else last
        answers["fixed time"] = _answer(numbers, test, reach, np.full(len(test), time))
        for name, (misses, width, stops) in answers.items():
            heard = np.minimum(np.array(numbers.times)[stops], numbers.labels[test])
            found.setdefault(name, []).append(
                (1 - float(np.mean(misses)), float(np.mean(width)), float(np.mean(heard)))
            )
    return [_summarise(name, max_width, np.array(values)) for name, values in found.items()]


def _summarise(name: str, max_width: float, values: Floats) -> NumbersRecord:
    low, high = np.quantile(values, (0.025, 0.975), axis=0).tolist()
    means = values.mean(axis=0).tolist()
    coverage, width, time = ((means[one], (low[one], high[one])) for one in range(3))
    return NumbersRecord(name, max_width, *coverage, *width, *time, len(values))


def load_numbers(path: Path) -> list[NumbersRecord]:
    """The records of a file of `run_numbers`."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return [NumbersRecord(**one) for one in content["records"]]


def run_numbers(folder: Path, output: Path, draws: int = DRAWS) -> list[NumbersRecord]:
    """Measure, and write the records and a figure beside them."""
    data = read_recordings(folder)
    speakers = np.random.default_rng(0).permutation(np.unique(data.speakers))
    training = np.isin(data.speakers, speakers[:TRAINING_SPEAKERS])
    numbers = predict(data, training)
    records = [
        one for width in WIDTHS for one in compare(numbers, training, width, N_CALIBRATION, draws)
    ]
    header = {
        "data": (
            "AudioMNIST (Becker et al., soerenab/AudioMNIST, MIT); lengths and times in frames "
            "of 10 ms"
        ),
        "rows": {
            "training": int(training.sum()),
            "calibration": N_CALIBRATION,
            "test": int((~training).sum()) - N_CALIBRATION,
        },
        "target": TARGET,
        **describe_run(),
    }
    make_folder(output.parent)
    with atomic_writer(output) as stream:
        stream.write(
            json.dumps({**header, "records": [asdict(one) for one in records]}, indent=1).encode()
        )
    save_figure(draw(records), output.parent, output.stem)
    return records


def draw(records: Sequence[NumbersRecord]) -> Figure:
    """Coverage, and the time of an answer, against the width that is asked."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name in dict.fromkeys(one.method for one in records):
        mine = [one for one in records if one.method == name]
        widths = [10 * one.max_width for one in mine]
        low, high = zip(*(one.coverage_range for one in mine), strict=True)
        colour, marker = STYLES[name]
        look: dict[str, Any] = {"color": colour, "marker": marker, "label": name}
        left.plot(widths, [one.coverage for one in mine], **look)
        left.fill_between(widths, low, high, alpha=0.15, color=colour, linewidth=0)
        right.plot(widths, [10 * one.time for one in mine], **look)
    left.axhline(TARGET, color="black", linewidth=0.8, linestyle="--")
    left.set(xlabel="widest early interval, ms", ylabel="coverage")
    right.set(xlabel="widest early interval, ms", ylabel="mean time heard, ms")
    right.legend(frameon=False)
    left.yaxis.set_major_formatter(PercentFormatter(1.0))
    for axes in (left, right):
        tidy(axes)
    return figure
