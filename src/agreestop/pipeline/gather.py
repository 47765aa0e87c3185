"""What a report needs beyond the records: how the headline rule's coverage splits, and examples of how it decides.

The headline rule is calibrated again on the very same realisations, so that its parts add up to the coverage in the records.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from agreestop.common.arrays import Booleans, Floats, Integers
from agreestop.decide.agree_stop import AgreeStop
from agreestop.decide.calibrated import CalibratedRule, gather_evidence
from agreestop.decide.checks import columns_of
from agreestop.decide.confidence_rules import DCSNN
from agreestop.decide.decisions import Estimate
from agreestop.decide.policies import RiskThreshold, StoppingThreshold, run_policy
from agreestop.decide.pooling import MODEL_AVERAGE
from agreestop.decide.score_files import Scores
from agreestop.decide.spikecp import SpikeCP
from agreestop.report.contents import Accuracy, Breakdown, ClassSet, Example, Measured, Moment, Section, Share, Strip
from agreestop.report.verdict import verdict_of

from .measure import Measurement, Protocol, Tell

BARS = 10  # stopping times are shown in at most so many groups
WIDTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
RARE = 2.0  # with fewer inputs than this in a realisation, a bar at either end is joined to its neighbour
MOMENTS = 5
ACCURACY_SHARES = (0.25, 0.5, 0.75, 1.0)


def gather_section(
    name: str,
    pool: Scores,
    measurement: Measurement,
    protocol: Protocol,
    tell: Tell,
    inputs: Booleans | None = None,
    settings: tuple[tuple[str, str], ...] = (),
) -> Section:
    """The section of one ensemble, from its scores and measurement; with the pool's inputs (n, T, 2, H, W) it has examples."""
    assert pool.labels is not None
    verdict = verdict_of(measurement.records)
    rule = measurement.rules[verdict.headline.label]
    assert not isinstance(rule, DCSNN)  # it promises nothing, so it is no headline
    tell(f"{name}: report, coverage by time and class", 0.0)
    classes = pool.classes or tuple(str(place) for place in range(pool.log_confidence.shape[3]))
    breakdown = _break_down(_repeat(rule, pool, protocol), rule.checkpoints, pool, classes)
    tell(f"{name}: report, examples", 0.5)
    strip = None if inputs is None else _strip(rule, pool, inputs, protocol)
    accuracies = tuple(_accuracies(pool))
    tell(f"{name}: report", 1.0)
    return Section(name, measurement.records, verdict, breakdown, accuracies, classes, strip, settings=settings)


def measured(protocol: Protocol, n_tuning: int, n_pool: int) -> Measured:
    """The protocol in numbers."""
    return Measured(protocol.max_set_size, protocol.n_calibration, protocol.repeats, n_tuning, n_pool)


def versions(*packages: str) -> tuple[tuple[str, str], ...]:
    """The versions that a run was made with, of Python and of the packages that are installed."""
    found = [("Python", ".".join(str(part) for part in sys.version_info[:3]))]
    for package in packages:
        try:
            found.append((package, version(package)))
        except PackageNotFoundError:
            continue
    return tuple(found)


def in_words(settings: Any) -> tuple[tuple[str, str], ...]:
    """A dataclass of settings as words and values."""
    return tuple((name.replace("_", " "), _value_in_words(value)) for name, value in asdict(settings).items())


def _value_in_words(value: object) -> str:
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        return ", ".join(_value_in_words(entry) for entry in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _realisations(n: int, protocol: Protocol) -> Iterator[tuple[Integers, Integers]]:
    """Calibration and test rows, in the order in which `repeat_splits` draws them."""
    rng = np.random.default_rng(protocol.seed)
    for _ in range(protocol.repeats):
        order = rng.permutation(n)
        yield order[: protocol.n_calibration], order[protocol.n_calibration :]


@dataclass(frozen=True, eq=False)
class _Runs:
    """What became of every input in every realisation, each (R, n): whether it was tested, whether its answer held, where it stopped.

    first holds the answers (n, C) of the first realisation.
    """

    tested: Booleans
    hits: Booleans
    stops: Integers
    first: Booleans


def _repeat(rule: SpikeCP | AgreeStop, pool: Scores, protocol: Protocol) -> _Runs:
    assert pool.labels is not None
    n, available, _, classes = pool.log_confidence.shape
    evidence = gather_evidence(rule, pool.log_confidence, columns_of(rule.checkpoints, available, pool.times))
    shape = (protocol.repeats, n)
    answers = np.zeros((n, classes), dtype=bool)
    runs = _Runs(np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool), np.zeros(shape, dtype=np.int64), answers)
    for repeat, (calibration, test) in enumerate(_realisations(n, protocol)):
        policy = rule.fit(evidence[calibration], pool.labels[calibration], classes)
        rows_at = partial(_rows_at, evidence[test])
        stops, sets = run_policy(policy, rows_at, policy.start(len(test), classes, 0), len(rule.checkpoints), classes)
        runs.tested[repeat, test] = True
        runs.hits[repeat, test] = sets[np.arange(len(test)), pool.labels[test]]
        runs.stops[repeat, test] = stops
        if repeat == 0:
            answers[test] = sets
    return runs


def _rows_at(evidence: Floats, index: int, active: Integers) -> Floats:
    return evidence[active, index]


def _break_down(runs: _Runs, checkpoints: Sequence[float], pool: Scores, classes: Sequence[str]) -> Breakdown:
    coverages = np.array([hits[tested].mean() for hits, tested in zip(runs.hits, runs.tested, strict=True)])
    by_time = []
    for first, last in _spans(runs.stops[runs.tested], len(checkpoints), len(runs.tested)):
        name = f"{checkpoints[first]:g}" if first == last else f"{checkpoints[first]:g}–{checkpoints[last]:g}"
        by_time.append((name, runs.tested & (runs.stops >= first) & (runs.stops <= last)))
    by_class = [(name, runs.tested & (pool.labels == label)) for label, name in enumerate(classes)]
    return Breakdown(
        overall=_coverage(runs.hits, runs.tested),
        lowest=float(coverages.min()),
        highest=float(coverages.max()),
        ties=_ties(runs, checkpoints, pool),
        by_time=tuple(_share(name, runs.hits, chosen) for name, chosen in by_time if chosen.any()),
        by_class=tuple(_share(name, runs.hits, chosen) for name, chosen in by_class if chosen.any()),
    )


def _spans(stops: Integers, checkpoints: int, realisations: int) -> list[tuple[int, int]]:
    """First and last checkpoints that share a bar: few bars, and at either end none with hardly an input."""
    low, high = np.quantile(stops, (0.005, 0.995)).astype(int)
    width = next((width for width in WIDTHS if high // width - low // width < BARS), checkpoints)
    spans = [(first, min(first + width, checkpoints) - 1) for first in range(0, checkpoints, width)]
    counts = np.bincount(stops // width, minlength=len(spans)) / realisations
    taken = np.flatnonzero(counts)
    spans, counts = spans[taken[0] : taken[-1] + 1], counts[taken[0] : taken[-1] + 1]
    while len(spans) > 1 and counts[0] < RARE:
        spans[:2], counts = [(spans[0][0], spans[1][1])], np.append(counts[:2].sum(), counts[2:])
    while len(spans) > 1 and counts[-1] < RARE:
        spans[-2:], counts = [(spans[-2][0], spans[-1][1])], np.append(counts[:-2], counts[-2:].sum())
    return spans


def _ties(runs: _Runs, checkpoints: Sequence[float], pool: Scores) -> float:
    """The share of first answers with a class in them whose averaged confidence is that of a class left out."""
    rows = np.flatnonzero(runs.tested[0])
    columns = np.array(columns_of(checkpoints, len(pool.times), pool.times))
    pooled = MODEL_AVERAGE.pool(np.asarray(pool.log_confidence[rows, columns[runs.stops[0, rows]]], dtype=np.float64))
    named = runs.first[rows]
    least = np.where(named, pooled, np.inf).min(axis=1)
    most = np.where(named, -np.inf, pooled).max(axis=1)
    return float(np.isclose(least, most, rtol=0, atol=1e-9).mean())


def _share(name: str, hits: Booleans, chosen: Booleans) -> Share:
    return Share(name, float(chosen.sum()) / len(chosen), _coverage(hits, chosen))


def _coverage(hits: Booleans, chosen: Booleans) -> Estimate:
    """Coverage over the chosen of (R, n), with Wilson's interval.

    An input that many realisations tested is still one input. Kish's effective size, (Σw)²/Σw² for inputs chosen w times, counts it once.
    """
    times = chosen.sum(axis=0, dtype=np.float64)
    count = float(times.sum() ** 2 / (times**2).sum())
    share = float(hits[chosen].mean())
    return Estimate.of_share(share * count, count, 0.95)


def _accuracies(pool: Scores) -> Iterator[Accuracy]:
    """At each quarter of the time."""
    assert pool.labels is not None
    for share in ACCURACY_SHARES:
        index = round(share * len(pool.times)) - 1
        scores = np.asarray(pool.log_confidence[:, max(index, 0)])
        alone = (scores.argmax(axis=2) == pool.labels[:, None]).mean(axis=0)
        together = float((MODEL_AVERAGE.pool(scores).argmax(axis=1) == pool.labels).mean())
        yield Accuracy(pool.times[max(index, 0)], float(alone.mean()), float(alone.min()), float(alone.max()), together)


def _strip(rule: SpikeCP | AgreeStop, pool: Scores, inputs: Booleans, protocol: Protocol) -> Strip:
    """Four test inputs of the first realisation, chosen by their place in the order of stopping times."""
    assert pool.labels is not None
    calibration, test = next(_realisations(len(pool), protocol))
    calibrated = rule.calibrate(pool.log_confidence[calibration], pool.labels[calibration], pool.times)
    decisions = calibrated.decide(pool.log_confidence[test], pool.times)
    hits = decisions.sets[np.arange(len(test)), pool.labels[test]]
    by_time = np.lexsort((test, decisions.stop_index))
    right, missed = by_time[hits[by_time]], by_time[~hits[by_time]]
    wanted = [("early", right, 0.1), ("ordinary", right, 0.5), ("late", right, 0.9), ("missed", missed, 0.5)]
    examples = []
    for why, order, place in wanted:
        if len(order):
            chosen = int(order[int(place * (len(order) - 1))])
            sets = decisions.sets[chosen]
            examples.append(_example(why, int(test[chosen]), calibrated, int(decisions.stop_index[chosen]), sets, pool, inputs))
    return Strip(tuple(examples), _meaning(rule), float(hits.mean()))


def _meaning(rule: SpikeCP | AgreeStop) -> str:
    """What a set is before the stop, in words."""
    if isinstance(rule, AgreeStop):
        return (
            "the classes that the calibrated threshold keeps: a class goes once it and all less likely ones together are improbable enough"
        )
    return "the classes whose loss is within the calibrated threshold: a class goes once it fits too badly"


def _example(why: str, row: int, calibrated: CalibratedRule, stop: int, answer: Booleans, pool: Scores, inputs: Booleans) -> Example:
    assert pool.labels is not None
    columns = columns_of(calibrated.checkpoints, len(pool.times), pool.times)
    watched = np.asarray(pool.log_confidence[row, columns[: stop + 1]], dtype=np.float64)
    sets = np.stack([_sets_at(calibrated, index, scores) for index, scores in enumerate(watched)])
    tied = np.ptp(watched, axis=2) == 0
    tied = np.column_stack([tied, tied.all(axis=1)])
    sets[tied] = True
    sets[stop, -1] = answer
    moments = []
    for index in _moments(sets):
        kinds = [ClassSet(tuple(kept.tolist()), bool(alike)) for kept, alike in zip(sets[index], tied[index], strict=True)]
        time = calibrated.checkpoints[index]
        moments.append(Moment(time, inputs[row, : int(time)].sum(axis=0), tuple(kinds[:-1]), kinds[-1]))
    label = int(pool.labels[row])
    return Example(why, row, label, bool(answer[label]), tuple(moments), inputs[row].sum(axis=0))


def _sets_at(calibrated: CalibratedRule, index: int, scores: Floats) -> Booleans:
    """The sets (K + 1, C) at a checkpoint from log-confidences (K, C): of each member by itself, then of all together.

    A member by itself is read as the rule reads an ensemble of one, under the threshold calibrated for all of them.
    """
    evidence = calibrated.rule.evidence
    parts = [evidence(index, scores[None, member : member + 1])[0] for member in range(len(scores))]
    values = np.stack([*parts, evidence(index, scores[None])[0]])
    match calibrated.policy:
        case StoppingThreshold(threshold=threshold):
            return np.asarray(values <= threshold)
        case RiskThreshold(threshold=threshold):
            return np.asarray(values[:, :-1] >= threshold)
        case policy:
            raise TypeError(f"{type(policy).__name__} has no sets before it stops.")


def _moments(sets: Booleans) -> list[int]:
    """Checkpoints spread over those at which a set changed, up to the stop; where they are few, others on the way."""
    changed = np.flatnonzero((sets[1:] != sets[:-1]).any(axis=(1, 2))) + 1
    stop = len(sets) - 1
    known = np.union1d(changed, [stop])
    chosen = set(known[np.linspace(0, len(known) - 1, min(MOMENTS, len(known))).round().astype(int)].tolist())
    for place in np.linspace(0, stop, MOMENTS).round().astype(int).tolist():
        if len(chosen) < MOMENTS:
            chosen.add(place)
    return sorted(chosen)
