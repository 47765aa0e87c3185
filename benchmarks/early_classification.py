"""`python -m benchmarks early-classification`: early classifiers of aeon against ours, on the data
sets that aeon brings along.

All see the same training half and the same base classifier, a forest on the prefixes at ten times:
TEASER, ProbabilityThreshold, one fixed time and AgreeStop. Ours is measured at several targets, so
that it can be compared with a peer at the peer's accuracy:

    earliness           the mean share of a series that was seen
    accuracy            the share of series whose most probable class at the stop is right
    harmonic mean       of accuracy and 1 - earliness
    coverage            ours and fixed time: the share of answers that hold the true class; at least
                        the target is promised
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

import agreestop as ag
from agreestop.common import Floats, InputError, ProgressCallback, atomic_writer
from agreestop.report.figures import BELOW, MUTED, save_figure, style_of, tidy

from .results import write_results

DATA_SETS = (
    "ItalyPowerDemand",
    "GunPoint",
    "ArrowHead",
    "OSULeaf",
    "JapaneseVowels",
    "ACSF1",
    "BasicMotions",
    "PickupGestureWiimoteZ",
)
TARGETS = (0.9, 0.5, 0.6, 0.7, 0.8, 0.95)  # the first is the main one
OURS, FIXED, TEASER, THRESHOLD = "AgreeStop", "fixed time", "TEASER", "ProbabilityThreshold"
CHECKPOINTS, TREES, LEAST_TIME = 10, 30, 3


@dataclass(frozen=True)
class EarlyRecord:
    """One method on one data set: means over the resamples and their standard errors; a target and
    coverage for those that promise one.
    """

    data: str
    method: str
    target: float | None
    accuracy: float
    accuracy_se: float
    earliness: float
    earliness_se: float
    harmonic_mean: float
    coverage: float | None
    coverage_se: float | None
    set_size: float | None
    resamples: int


@dataclass(frozen=True)
class Outcome:
    """One method on one resample."""

    method: str
    target: float | None
    accuracy: float
    earliness: float
    coverage: float | None = None
    set_size: float | None = None


def run_early_classification(
    resamples: int, data_sets: Sequence[str], output: Path, page: Path, progress: ProgressCallback
) -> list[Path]:
    """Measure, write numbers.json and the figure, and the table of the page. Returns the paths
    written.
    """
    records: list[EarlyRecord] = []
    sizes = {}
    for number, name in enumerate(data_sets):
        series, labels = _load(name)
        sizes[name] = {
            "series": len(series),
            "channels": series.shape[1],
            "times": series.shape[2],
            "classes": len(np.unique(labels)),
        }
        outcomes: list[Outcome] = []
        for seed in range(resamples):
            progress(f"{name}, resample {seed + 1}", (number + seed / resamples) / len(data_sets))
            outcomes += _resample(series, labels, seed)
        records += _summarise(name, outcomes)
    content = {
        "aeon": version("aeon"),
        "base": f"extremely randomised trees, {TREES}",
        "checkpoints": CHECKPOINTS,
        "resamples": resamples,
        "data": sizes,
        "records": [asdict(record) for record in records],
    }
    write_results(output / "numbers.json", content)
    written = [output / "numbers.json", *save_figure(draw(records), output, "figure")]
    if page.exists():
        write_table(page, records)
        written.append(page)
    return written


def _load(name: str) -> tuple[Floats, Any]:
    """All series of a data set, (n, channels, T), and labels. Shorter series are continued with
    their last value.
    """
    try:
        from aeon.datasets import load_classification
    except ImportError:
        raise InputError(
            "this compares with aeon, which is not installed: pip install aeon."
        ) from None
    series, labels = load_classification(name)
    length = max(one.shape[1] for one in series)
    return np.stack(
        [np.pad(one, ((0, 0), (0, length - one.shape[1])), mode="edge") for one in series]
    ), labels


def _flat(series: Floats) -> Floats:
    return series.reshape(len(series), -1)


def _resample(series: Floats, labels: Any, seed: int) -> Iterator[Outcome]:
    """Every method on one random division into a training half and a test half."""
    from aeon.classification.early_classification import TEASER as Teaser
    from aeon.classification.early_classification import ProbabilityThresholdEarlyClassifier
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    length = series.shape[2]
    times = sorted(
        {max(LEAST_TIME, round(length * part / CHECKPOINTS)) for part in range(1, CHECKPOINTS + 1)}
    )
    order = np.random.default_rng(seed).permutation(len(series))
    train, test = np.array_split(order, 2)
    forest = make_pipeline(
        FunctionTransformer(_flat), ExtraTreesClassifier(TREES, random_state=seed)
    )
    for name, kind in ((TEASER, Teaser), (THRESHOLD, ProbabilityThresholdEarlyClassifier)):
        peer = kind(estimator=forest, classification_points=times, random_state=seed).fit(
            series[train], labels[train]
        )
        found, _ = peer.predict(series[test])
        seen = np.array(times)[peer.state_info[:, 0]]
        yield Outcome(
            name, None, float(np.mean(found == labels[test])), float(seen.mean() / length)
        )
    with warnings.catch_warnings():
        # few rows: the record shows what that costs
        warnings.simplefilter("ignore", ag.CalibrationWarning)
        early = ag.adapters.EarlyClassifier(forest, times, TARGETS[0], seed=seed).fit(
            series[train], labels[train]
        )
        rows, tuned = early.calibration_rows_, early.rule_.rule
        assert isinstance(tuned, ag.AgreeStop)
        known = replace(early.scores(series[train[rows]], labels[train[rows]]), ids=rows)
        shown = replace(
            early.scores(series[test], labels[test]), ids=len(train) + np.arange(len(test))
        )
        for target in TARGETS:
            fixed = ag.AgreeStop(target, times, 1, fill=True, risk=ag.FixedTime())
            for name, rule in ((OURS, replace(tuned, target=target)), (FIXED, fixed)):
                result = ag.evaluate(rule.calibrate(known).decide(shown), shown)
                assert result.accuracy is not None
                seen_share = float(result.latency) / length
                yield Outcome(
                    name,
                    target,
                    float(result.accuracy),
                    seen_share,
                    float(result.coverage),
                    float(result.set_size),
                )


def _summarise(data: str, outcomes: Sequence[Outcome]) -> Iterator[EarlyRecord]:
    for method, target in dict.fromkeys((one.method, one.target) for one in outcomes):
        mine = [one for one in outcomes if (one.method, one.target) == (method, target)]
        accuracy, accuracy_se = _mean([one.accuracy for one in mine])
        earliness, earliness_se = _mean([one.earliness for one in mine])
        coverage, coverage_se = (
            (None, None) if target is None else _mean([one.coverage or 0.0 for one in mine])
        )
        size = None if target is None else _mean([one.set_size or 0.0 for one in mine])[0]
        harmonic = 2 * accuracy * (1 - earliness) / (accuracy + 1 - earliness)
        spread = accuracy, accuracy_se, earliness, earliness_se
        yield EarlyRecord(
            data, method, target, *spread, harmonic, coverage, coverage_se, size, len(mine)
        )


def _mean(values: Sequence[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(
        values
    ) > 1 else math.nan


def at_equal_accuracy(records: Sequence[EarlyRecord], data: str, peer: str) -> float | None:
    """The earliness of ours where its accuracy is that of the peer, between targets; None where
    ours does not reach it.
    """
    (other,) = (record for record in records if (record.data, record.method) == (data, peer))
    mine = sorted(
        (record.accuracy, record.earliness)
        for record in records
        if (record.data, record.method) == (data, OURS)
    )
    accuracies, earliness = (np.array(values) for values in zip(*mine, strict=True))
    earliness = np.minimum.accumulate(earliness[::-1])[
        ::-1
    ]  # a target that is later and no more accurate is not taken
    return (
        None
        if other.accuracy > accuracies[-1]
        else float(np.interp(other.accuracy, accuracies, earliness))
    )


def write_table(page: Path, records: Sequence[EarlyRecord]) -> None:
    """Write the table between the marks of the page."""
    before, _, rest = page.read_text(encoding="utf-8").partition("<!-- peers: begin -->")
    _, _, after = rest.partition("<!-- peers: end -->")
    with atomic_writer(page) as stream:
        table = f"<!-- peers: begin -->\n{table_of(records)}\n<!-- peers: end -->"
        stream.write(f"{before}{table}{after}".encode())


def table_of(records: Sequence[EarlyRecord]) -> str:
    """A row for each data set: ours at the main target, and the peers."""
    lines = [
        "| data set | coverage | ours: accuracy, earliness | fixed time | ProbabilityThreshold | "
        "TEASER | ours at TEASER's accuracy |",
        "|---|---|---|---|---|---|---|",
    ]
    for data in dict.fromkeys(record.data for record in records):
        here = {(record.method, record.target): record for record in records if record.data == data}
        ours = here[OURS, TARGETS[0]]
        others = [here[FIXED, TARGETS[0]], here[THRESHOLD, None], here[TEASER, None]]
        cells = [f"{one.accuracy:.2f}, {one.earliness:.2f}" for one in (ours, *others)]
        equal = at_equal_accuracy(records, data, TEASER)
        last = (
            "not reached"
            if equal is None
            else f"{equal:.2f} instead of {here[TEASER, None].earliness:.2f}"
        )
        lines.append(
            f"| {data} | {ours.coverage:.3f} ± {ours.coverage_se:.3f} | {' | '.join(cells)} | "
            f"{last} |"
        )
    count = min(record.resamples for record in records)
    names = list(dict.fromkeys(record.data for record in records))
    teaser = {record.data: record.earliness for record in records if record.method == TEASER}
    no_later = sum(
        (mine := at_equal_accuracy(records, name, TEASER)) is not None and mine <= teaser[name]
        for name in names
    )
    words = f"Means over {count} resamples; target {TARGETS[0]:g}; ± is one standard error."
    return "\n".join(
        [
            *lines,
            "",
            f"*{words} At equal accuracy ours is no later than TEASER on {no_later} of "
            f"{len(names)} data sets.*",
        ]
    )


def draw(records: Sequence[EarlyRecord]) -> Figure:
    """Accuracy against earliness, a panel for each data set: ours and fixed time as curves over
    targets, peers as points.
    """
    names = list(dict.fromkeys(record.data for record in records))
    columns = min(4, len(names))
    figure = Figure(
        figsize=(3.6 * columns, 3.2 * math.ceil(len(names) / columns) + 0.5), layout="constrained"
    )
    panels = figure.subplots(math.ceil(len(names) / columns), columns, squeeze=False).ravel()
    colours: dict[str, str] = {
        OURS: style_of(OURS).colour,
        FIXED: style_of(FIXED).colour,
        TEASER: BELOW,
        THRESHOLD: MUTED,
    }
    for axes, name in zip(panels, names, strict=False):
        for method, colour in colours.items():
            mine = sorted(
                (one.earliness, one.accuracy)
                for one in records
                if (one.data, one.method) == (name, method)
            )
            x, y = zip(*mine, strict=True)
            axes.plot(
                x,
                y,
                color=colour,
                marker={OURS: "v", FIXED: "H", TEASER: "s", THRESHOLD: "D"}[method],
                label=method,
                markersize=6,
            )
        axes.set(title=name, xlabel="earliness", ylabel="accuracy", xlim=(0, 1.03))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        tidy(axes)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure
