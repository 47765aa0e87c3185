"""Coarse now, fine later: how early the first answer of each depth of a tree of classes comes.

CIFAR-10, animal or vehicle and then which: the stored scores of spiking ensembles. HAPT (UCI, CC BY
4.0), moving or resting and then which: logistic regressions of smartphone windows at each
checkpoint, fitted on ten people; rows of the other twenty are divided at random. There is a row for
each depth, for one threshold for all depths, and for one fixed time at which all inputs answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

import agreestop as ag
from agreestop.common import InputError, atomic_writer, make_folder
from agreestop.report.figures import ABOVE, BESIDE, save_figure, style_of, tidy

from .results import describe_run

TARGETS, N_CALIBRATION, REPEATS = (0.8, 0.9, 0.95), 300, 50
ANIMALS = ("bird", "cat", "deer", "dog", "frog", "horse")
CIFAR10 = ag.Tree({"animal": ANIMALS, "vehicle": ("airplane", "automobile", "ship", "truck")})
STEPS, ROWS = tuple(range(8, 81, 8)), 3000  # of the stored scores
ACTIVITIES = ("walk", "upstairs", "downstairs", "sit", "stand", "lie")
HAPT = ag.Tree({"moving": ACTIVITIES[:3], "resting": ACTIVITIES[3:]})
SAMPLES = (5, 10, 15, 20, 30, 40, 60, 80, 100, 128)  # at 50 Hz
TRAINING_PEOPLE = 10
STYLES = {
    "group": ("#56B4E9", "s", "-"),
    "class": (ABOVE, "v", "-"),
    "class, one threshold for all depths": (BESIDE, "D", ":"),
    "class, fixed time": (style_of("fixed time").colour, "H", "-"),
}


@dataclass(frozen=True)
class TreeRecord:
    """Coverage and the mean time of the first answer, as a share of the last checkpoint, with
    intervals of the means over divisions.
    """

    data: str
    target: float
    asked: str
    coverage: float
    coverage_interval: tuple[float, float]
    latency: float
    latency_interval: tuple[float, float]


def compare(
    data: str, scores: ag.Scores, tree: ag.Tree, risk: ag.TopMass, n_calibration: int, repeats: int
) -> list[TreeRecord]:
    """Each depth, all at once, and a fixed time for the classes."""
    records = []
    for target in TARGETS:
        rules = {
            "group": ag.AgreeStop(target, scores.times, 1, risk=risk, tree=tree, depth=1),
            "class": ag.AgreeStop(target, scores.times, 1, risk=risk, tree=tree, depth=tree.depth),
            "class, one threshold for all depths": ag.AgreeStop(
                target, scores.times, 1, risk=risk, tree=tree, depth=None
            ),
            "class, fixed time": ag.AgreeStop(
                target, scores.times, 1, fill=True, risk=ag.FixedTime()
            ),
        }
        for asked, rule in rules.items():
            found = ag.repeat_splits(rule, scores, n_calibration=n_calibration, repeats=repeats)
            coverage, latency = found.coverage, found.normalized_latency
            ends = (coverage.low, coverage.high), (latency.low, latency.high)
            records.append(
                TreeRecord(data, target, asked, float(coverage), ends[0], float(latency), ends[1])
            )
    return records


def read_hapt(folder: Path) -> tuple[ag.Scores, ag.Scores]:
    """Scores of windows of 128 samples: of ten people for the temperatures, cross-fitted, and of
    the other twenty.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    path = folder / "hapt.npz"
    if not path.exists():
        raise InputError(
            f"{path} is missing: give the folder that holds HAPT as hapt.npz with --data."
        )
    with np.load(path) as content:
        x, label, user = content["x"], content["label"], content["user"]
    length = SAMPLES[-1]
    starts = np.arange(0, len(x) - length, length)
    same = [
        len(set(label[one : one + length])) == 1
        and 1 <= label[one] <= 6
        and user[one] == user[one + length - 1]
        for one in starts
    ]
    starts = starts[np.array(same)]
    windows, labels, people = (
        np.stack([x[one : one + length] for one in starts]),
        label[starts] - 1,
        user[starts],
    )
    training = np.isin(
        people, np.random.default_rng(0).permutation(np.unique(people))[:TRAINING_PEOPLE]
    )
    cells = []
    for time in SAMPLES:
        seen = windows[:, :time]
        features = np.concatenate(
            [seen.mean(axis=1), seen.std(axis=1), np.abs(np.diff(seen, axis=1)).mean(axis=1)],
            axis=1,
        )
        model = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-2))
        given, truth = features[training], labels[training]
        folds: dict[str, Any] = {"groups": people[training], "cv": GroupKFold(4)}
        model.fit(given, truth)
        with np.errstate(divide="ignore"):  # a probability of 0 becomes -50 below
            own = cross_val_predict(model, given, truth, method="predict_log_proba", **folds)
            new = model.predict_log_proba(features[~training])
        cells.append(np.empty((len(windows), 1, 6)))
        cells[-1][training, 0], cells[-1][~training, 0] = own, new
    log_confidence = np.maximum(np.stack(cells, axis=1), -50.0)
    parts = (
        ag.Scores(log_confidence[rows], labels[rows], SAMPLES, ACTIVITIES)
        for rows in (training, ~training)
    )
    tuning, pool = parts
    return tuning, pool


def load_tree(path: Path) -> list[TreeRecord]:
    """The records of a file of `run_tree`."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return [TreeRecord(**one) for one in content["records"]]


def run_tree(
    scores: Path, folder: Path | None, output: Path, repeats: int = REPEATS
) -> list[TreeRecord]:
    """Measure on the stored scores, and on HAPT where its folder is given; write the records and a
    figure beside them.
    """
    records = []
    for kind in ("deep", "variational"):
        tuning, pool = (
            ag.load_scores(scores / "cifar10" / kind / f"{name}.npz", STEPS)
            for name in ("tuning", "pool")
        )
        risk, chosen = (
            ag.TopMass.fit(tuning),
            np.random.default_rng(0).permutation(len(pool))[:ROWS],
        )
        records += compare(
            f"cifar10, {kind}", pool.rows(chosen), CIFAR10, risk, N_CALIBRATION, repeats
        )
    if folder is not None:
        tuning, pool = read_hapt(folder)
        records += compare("hapt", pool, HAPT, ag.TopMass.fit(tuning), N_CALIBRATION, repeats)
    header = {
        "data": "CIFAR-10, stored scores of spiking ensembles; HAPT (UCI, CC BY 4.0)",
        "n_calibration": N_CALIBRATION,
        "repeats": repeats,
        **describe_run(),
    }
    make_folder(output.parent)
    with atomic_writer(output) as stream:
        stream.write(
            json.dumps({**header, "records": [asdict(one) for one in records]}, indent=1).encode()
        )
    save_figure(draw(records), output.parent, output.stem)
    return records


def draw(records: Sequence[TreeRecord]) -> Figure:
    """The time of the first answer against the target, a panel for each data set."""
    names = list(dict.fromkeys(one.data for one in records))
    figure = Figure(figsize=(3.6 * len(names), 3.7), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for asked in dict.fromkeys(one.asked for one in records):
            mine = [one for one in records if (one.data, one.asked) == (name, asked)]
            low, high = zip(*(one.latency_interval for one in mine), strict=True)
            colour, marker, line = STYLES[asked]
            targets = [one.target for one in mine]
            axes.plot(
                targets,
                [one.latency for one in mine],
                color=colour,
                marker=marker,
                linestyle=line,
                label=asked,
            )
            axes.fill_between(targets, low, high, alpha=0.15, color=colour, linewidth=0)
        axes.set_xticks(sorted({one.target for one in records}))
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        tidy(axes)
        axes.set(title=name, xlabel="target", ylabel="mean time of the answer / T", ylim=(0, 1.03))
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure
