"""The section of a report about one ensemble, from its scores and records: coverage by groups, examples of decisions, accuracies.

The headline rule is calibrated again on the same realisations as in the records, so its parts add up to the coverage there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agreestop.common import Booleans, Floats, Integers, ProgressCallback
from agreestop.decide.agree_stop import AgreeStop
from agreestop.decide.build import AnyRule
from agreestop.decide.calibrated import CalibratedRule, gather_evidence
from agreestop.decide.checks import columns_of
from agreestop.decide.decisions import Estimate
from agreestop.decide.merging import MODEL_AVERAGE
from agreestop.decide.policies import RiskThreshold, StoppingThreshold
from agreestop.decide.score_files import Scores
from agreestop.decide.spikecp import SpikeCP
from agreestop.decide.splits import divisions, realisations

from .contents import Accuracy, Breakdown, ClassSet, Example, Examples, GroupCoverage, Moment, Section
from .pictures import InputPictures
from .records import MeasurementSettings, Record
from .summary import summarise

BARS = 10  # the most groups of stopping times in a figure
WIDTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
RARE = 2.0  # with fewer inputs than this in a realisation, a bar at either end is joined to its neighbour
MOMENTS = 5
ACCURACY_SHARES = (0.25, 0.5, 0.75, 1.0)


def describe_ensemble(
    name: str,
    pool: Scores,
    records: tuple[Record, ...],
    rules: Mapping[str, AnyRule],
    measured: MeasurementSettings,
    progress: ProgressCallback,
    pictures: InputPictures | None = None,
    settings: tuple[tuple[str, str], ...] = (),
) -> Section:
    """The section of one ensemble; `rules` are those of the records by label. Examples are shown where there are pictures of the pool."""
    assert pool.labels is not None
    summary = summarise(records)
    rule = rules[summary.headline.label]
    assert isinstance(rule, (SpikeCP, AgreeStop))  # a rule that promises nothing is never the headline
    progress("coverage by time and class", 0.0)
    classes = pool.classes or tuple(str(label) for label in range(pool.log_confidence.shape[3]))
    breakdown = _break_down(_repeat(rule, pool, measured), rule.checkpoints, pool, classes)
    progress("examples", 0.5)
    examples = None if pictures is None else _examples(rule, pool, pictures, measured)
    return Section(name, records, summary, breakdown, tuple(_accuracies(pool)), classes, examples, settings=settings)


@dataclass(frozen=True, eq=False)
class _Runs:
    """The outcome of every input in every realisation, each (R, n): whether it was tested, whether its answer held, where it stopped.

    first  the answers (n, C) of the first realisation
    """

    tested: Booleans
    hits: Booleans
    stops: Integers
    first: Booleans


def _repeat(rule: SpikeCP | AgreeStop, pool: Scores, measured: MeasurementSettings) -> _Runs:
    assert pool.labels is not None
    n, available, _, classes = pool.log_confidence.shape
    evidence = gather_evidence(rule, pool.log_confidence, columns_of(rule.checkpoints, available, pool.times))
    shape = (measured.realisations, n)
    answers = np.zeros((n, classes), dtype=bool)
    runs = _Runs(np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool), np.zeros(shape, dtype=np.int64), answers)
    division = measured.n_calibration, measured.realisations, measured.seed
    for repeat, one in enumerate(realisations(rule, evidence, pool.labels, classes, *division)):
        runs.tested[repeat, one.test] = True
        runs.hits[repeat, one.test] = one.sets[np.arange(len(one.test)), pool.labels[one.test]]
        runs.stops[repeat, one.test] = one.stops
        if repeat == 0:
            answers[one.test] = one.sets
    return runs


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
        by_time=tuple(_group(name, runs.hits, chosen) for name, chosen in by_time if chosen.any()),
        by_class=tuple(_group(name, runs.hits, chosen) for name, chosen in by_class if chosen.any()),
    )


def _spans(stops: Integers, checkpoints: int, realisations: int) -> list[tuple[int, int]]:
    """First and last checkpoints that share a bar: few bars, and none at either end with hardly an input."""
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
    """The share of answers of the first realisation that name a class and leave out another with the same averaged confidence."""
    rows = np.flatnonzero(runs.tested[0])
    columns = np.array(columns_of(checkpoints, len(pool.times), pool.times))
    pooled = MODEL_AVERAGE.pool(np.asarray(pool.log_confidence[rows, columns[runs.stops[0, rows]]], dtype=np.float64))
    named = runs.first[rows]
    least = np.where(named, pooled, np.inf).min(axis=1)
    most = np.where(named, -np.inf, pooled).max(axis=1)
    return float(np.isclose(least, most, rtol=0, atol=1e-9).mean())


def _group(name: str, hits: Booleans, chosen: Booleans) -> GroupCoverage:
    return GroupCoverage(name, float(chosen.sum()) / len(chosen), _coverage(hits, chosen))


def _coverage(hits: Booleans, chosen: Booleans) -> Estimate:
    """Coverage over the chosen entries of (R, n), with Wilson's interval.

    An input that many realisations tested is still one input. Kish's effective size, (Σw)²/Σw² for inputs chosen w times, counts it once.
    """
    times = chosen.sum(axis=0, dtype=np.float64)
    count = float(times.sum() ** 2 / (times**2).sum())
    share = float(hits[chosen].mean())
    return Estimate.of_share(share * count, count, 0.95)


def _accuracies(pool: Scores) -> Iterator[Accuracy]:
    """The accuracies at each quarter of the time."""
    assert pool.labels is not None
    for share in ACCURACY_SHARES:
        index = round(share * len(pool.times)) - 1
        scores = np.asarray(pool.log_confidence[:, max(index, 0)])
        single = (scores.argmax(axis=2) == pool.labels[:, None]).mean(axis=0)
        together = float((MODEL_AVERAGE.pool(scores).argmax(axis=1) == pool.labels).mean())
        yield Accuracy(pool.times[max(index, 0)], float(single.mean()), float(single.min()), float(single.max()), together)


def _examples(rule: SpikeCP | AgreeStop, pool: Scores, pictures: InputPictures, measured: MeasurementSettings) -> Examples:
    """Four test inputs of the first realisation, chosen by their rank in the order of stopping times."""
    assert pool.labels is not None
    calibration, test = next(divisions(len(pool), measured.n_calibration, 1, measured.seed))
    calibrated = rule.calibrate(pool.rows(calibration))
    decisions = calibrated.decide(pool.rows(test))
    hits = decisions.sets[np.arange(len(test)), pool.labels[test]]
    by_time = np.lexsort((test, decisions.stop_index))
    right, missed = by_time[hits[by_time]], by_time[~hits[by_time]]
    wanted = [("early", right, 0.1), ("ordinary", right, 0.5), ("late", right, 0.9), ("missed", missed, 0.5)]
    examples = []
    for why, order, rank in wanted:
        if len(order):
            chosen = int(order[int(rank * (len(order) - 1))])
            sets = decisions.sets[chosen]
            examples.append(_example(why, int(test[chosen]), calibrated, int(decisions.stop_index[chosen]), sets, pool, pictures))
    return Examples(tuple(examples), _meaning(rule), float(hits.mean()), pictures.legend)


def _meaning(rule: SpikeCP | AgreeStop) -> str:
    """In words, what a set before the stop means."""
    if isinstance(rule, AgreeStop):
        return (
            "the classes that the calibrated threshold keeps: a class is removed once it and all less likely classes together are "
            "improbable enough"
        )
    return "the classes whose loss is within the calibrated threshold: a class is removed once its loss is too large"


def _example(why: str, row: int, calibrated: CalibratedRule, stop: int, answer: Booleans, pool: Scores, pictures: InputPictures) -> Example:
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
        moments.append(Moment(time, pictures.until(row, time), tuple(kinds[:-1]), kinds[-1]))
    label = int(pool.labels[row])
    return Example(why, row, label, bool(answer[label]), tuple(moments), pictures.until(row, np.inf))


def _sets_at(calibrated: CalibratedRule, index: int, scores: Floats) -> Booleans:
    """The sets (K + 1, C) at a checkpoint from log-confidences (K, C): one for each member by itself, then that of all together.

    A member by itself is treated as an ensemble of one, under the threshold that was calibrated for all of them.
    """
    evidence = calibrated.rule.evidence
    parts = [evidence(index, scores[None, member : member + 1]).values[0] for member in range(len(scores))]
    values = np.stack([*parts, evidence(index, scores[None]).values[0]])
    match calibrated.policy:
        case StoppingThreshold(threshold=threshold):
            return np.asarray(values <= threshold)
        case RiskThreshold(threshold=threshold):
            return np.asarray(values >= threshold)
        case policy:
            raise TypeError(f"{type(policy).__name__} has no sets before it stops.")


def _moments(sets: Booleans) -> list[int]:
    """Some of the checkpoints at which a set changed, up to the stop; where these are few, others before the stop too."""
    changed = np.flatnonzero((sets[1:] != sets[:-1]).any(axis=(1, 2))) + 1
    stop = len(sets) - 1
    known = np.union1d(changed, [stop])
    chosen = set(known[np.linspace(0, len(known) - 1, min(MOMENTS, len(known))).round().astype(int)].tolist())
    for index in np.linspace(0, stop, MOMENTS).round().astype(int).tolist():
        if len(chosen) < MOMENTS:
            chosen.add(index)
    return sorted(chosen)
