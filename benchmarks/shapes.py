"""Which shape of score or risk stops earliest? Every candidate on three kinds of stream, with the
paper's protocol.

Real data: scikit-learn's 1,797 digits, shown as random pixel events to six small perceptrons (they
do not spike; any model will do). Simulated data: the package's generator, once slow, and once fast
with members that know the class early. There are 50 calibration examples, target 0.9, at most three
classes and 50 realisations. Everything that is fitted is fitted on separate tuning rows.

`python -m benchmarks shapes` writes results/shapes/numbers.json and the table in docs/shapes.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

import agreestop as ag
from agreestop.common import Floats
from agreestop.decide.risks import Shaped

from .results import write_results

STEPS, MEMBERS, SIZE, TARGET, N_CALIBRATION = 80, 6, 3, 0.9, 50
FOUR, EVERY = (20, 40, 60, 80), tuple(range(1, STEPS + 1))
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


@dataclass(frozen=True)
class ShapeRecord:
    """One rule with one shape on one stream; `looks` is the number of checkpoints."""

    data: str
    simulated: bool
    rule: str
    shape: str
    looks: int
    coverage: float
    coverage_se: float
    latency: float
    latency_se: float
    set_size: float


@dataclass(frozen=True, eq=False)
class TunedStream:
    """A tuning split and a pool for calibration and test."""

    name: str
    simulated: bool
    tuning: ag.Scores
    pool: ag.Scores


def simulated_stream(name: str, pace: float, signal: float, seed: int) -> TunedStream:
    scores = ag.simulate_scores(2600, STEPS, MEMBERS, seed=seed, pace=pace, signal=signal)
    return TunedStream(name, True, scores.rows(slice(0, 600)), scores.rows(slice(600, None)))


def digits_stream(seed: int) -> TunedStream:
    """Digits as events: a pixel is active with probability 0.06 · intensity at each step; members
    see the rates so far and the time.
    """
    rng = np.random.default_rng(seed)
    images, labels = load_digits(return_X_y=True)
    order = rng.permutation(len(images))
    images, labels = images[order] / 16, labels[order].astype(np.int64)
    counts = np.cumsum(rng.random((len(images), STEPS, 64)) < 0.06 * images[:, None], axis=1)
    clock = np.arange(1, STEPS + 1)[:, None]
    seen: Floats = np.concatenate(
        [counts / clock * 10, np.broadcast_to(np.log(clock), (len(images), STEPS, 1))], axis=2
    )
    train, tuning, pool = slice(0, 700), slice(700, 1150), slice(1150, None)
    members = []
    for member in range(MEMBERS):
        model = MLPClassifier((48,), max_iter=25, random_state=seed + member)
        shown = rng.integers(STEPS, size=(700, 8))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(
                seen[train][np.arange(700)[:, None], shown].reshape(-1, 65),
                np.repeat(labels[train], 8),
            )
        members.append(
            np.maximum(model.predict_log_proba(seen[700:].reshape(-1, 65)), -700).reshape(
                -1, STEPS, 10
            )
        )
    scores = ag.Scores(np.minimum(np.stack(members, axis=2), 0), labels[700:], EVERY)
    return TunedStream(
        "digits",
        False,
        scores.rows(slice(0, tuning.stop - 700)),
        scores.rows(slice(pool.start - 700, None)),
    )


def candidates(
    stream: TunedStream, checkpoints: tuple[int, ...]
) -> Iterator[tuple[str, str, ag.SpikeCP | ag.AgreeStop]]:
    """The name of each rule, the name of its shape, and the rule itself."""
    lc, labels, times = stream.tuning.log_confidence, stream.tuning.labels, stream.tuning.times
    assert labels is not None
    average = ag.MergeConfidence(r=1)
    if len(checkpoints) == 4:
        yield (
            "Bonferroni, confidence merging",
            "log-loss",
            ag.SpikeCP(TARGET, checkpoints, SIZE, average),
        )
        yield (
            "Bonferroni, p-variable merging",
            "log-loss",
            ag.SpikeCP(TARGET, checkpoints, SIZE, ag.MergePValues(r=45)),
        )
    temperature = ag.Temperature.fit(lc, labels, average, times)
    ranks = ag.TuningRanks.fit(lc, labels, average, times)
    looser_early = -np.log(np.array(times) / times[-1])
    shapes: dict[str, ag.LogLoss | ag.Temperature | ag.TuningRanks | Shaped] = {
        "log-loss": ag.LogLoss(average),
        "temperatures": temperature,
        "tuning ranks": ranks,
        "temperatures, threshold falls as 1/t": Shaped(temperature, looser_early, times),
    }
    for name, score in shapes.items():
        yield "stop-aware", name, ag.SpikeCP(TARGET, checkpoints, SIZE, None, "stop-aware", score)
    plain = ag.SpikeCP(TARGET, checkpoints, SIZE, None, "stop-aware")
    yield "stop-aware", "tuned", _tuned(plain, stream)
    top = ag.TopMass.fit(lc, labels, average, times)
    risks: dict[str, ag.TopMass | ag.LearnedRisk | ag.ShapedRisk] = {
        "top mass": ag.TopMass(average),
        "top mass with temperatures": top,
        "the same, tolerance grows as t": ag.ShapedRisk.per_time(top, times),
        "learned risk": ag.LearnedRisk.fit(lc, labels, average, SIZE, times),
    }
    for fill in (False, True):
        rule = "AgreeStop, filled" if fill else "AgreeStop"
        for name, risk in risks.items():
            yield rule, name, ag.AgreeStop(TARGET, checkpoints, SIZE, fill, risk)
        yield rule, "tuned", _tuned(ag.AgreeStop(TARGET, checkpoints, SIZE, fill), stream)


def _tuned(rule: ag.SpikeCP | ag.AgreeStop, stream: TunedStream) -> ag.SpikeCP | ag.AgreeStop:
    assert stream.tuning.labels is not None
    return ag.tune(
        rule,
        stream.tuning.log_confidence,
        stream.tuning.labels,
        stream.tuning.times,
        N_CALIBRATION,
        only_if_better=False,
    ).rule


def measure(stream: TunedStream, repeats: int) -> Iterator[ShapeRecord]:
    assert stream.pool.labels is not None
    for checkpoints in (FOUR, EVERY):
        for rule_name, shape, rule in candidates(stream, checkpoints):
            splits = ag.repeat_splits(
                rule,
                stream.pool.log_confidence,
                stream.pool.labels,
                N_CALIBRATION,
                repeats,
                0,
                stream.pool.times,
            )
            coverage, latency = splits.coverage, splits.normalized_latency
            yield ShapeRecord(
                *(stream.name, stream.simulated, rule_name, shape, len(checkpoints)),
                *(float(coverage), coverage.se, float(latency), latency.se, float(splits.set_size)),
            )


def table(records: list[ShapeRecord]) -> str:
    """Latency over T, with coverage and set size in brackets; the lowest latency of each column is
    bold.
    """
    streams = list(dict.fromkeys(record.data for record in records))
    lines = []
    for looks in (4, STEPS):
        mine = [record for record in records if record.looks == looks]
        best = {
            name: min(record.latency for record in mine if record.data == name) for name in streams
        }
        lines += [
            f"\n{'Four checkpoints' if looks == 4 else 'Every step'}:\n",
            f"| rule | shape | {' | '.join(streams)} |",
        ]
        lines.append("|---" * (2 + len(streams)) + "|")
        for key in dict.fromkeys((record.rule, record.shape) for record in mine):
            cells = []
            for name in streams:
                (record,) = [
                    one for one in mine if (one.rule, one.shape) == key and one.data == name
                ]
                latency = f"{record.latency:.3f}"
                bold = f"**{latency}**" if record.latency == best[name] else latency
                cells.append(f"{bold} ({record.coverage:.2f}, {record.set_size:.1f})")
            lines.append(f"| {key[0]} | {key[1]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def run_shapes(repeats: int, output: Path, page: Path) -> None:
    """Measure every candidate, print it, and write `numbers.json` and the table of the page."""
    streams = [
        digits_stream(0),
        simulated_stream("simulated, slow", 15.0, 2.6, 0),
        simulated_stream("simulated, fast", 2.0, 1.6, 0),
    ]
    records = []
    for stream in streams:
        for record in measure(stream, repeats):
            records.append(record)
            figures = f"{record.coverage:.3f} {record.latency:.4f} {record.set_size:.2f}"
            print(
                f"{record.data:16} {record.rule:31} {record.shape:37} {record.looks:3} {figures}",
                flush=True,
            )
    content = {
        "command": "make shapes",
        "repeats": repeats,
        "records": [asdict(record) for record in records],
    }
    write_results(output / "numbers.json", content)
    if page.exists():
        text = page.read_text(encoding="utf-8")
        before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
        page.write_text(f"{before}\n{table(records)}\n\n{after}", encoding="utf-8")
