"""What a report shows, as plain data, collected from scores and records.

`figures` and `page` draw it and lay it out.

The headline rule is calibrated again on the same realisations as in the records, so its parts add
up to the coverage there.
"""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Self

import numpy as np

from agreestop.common import Booleans, Floats, Integers, ProgressCallback, columns_of
from agreestop.common.errors import visible
from agreestop.common.estimates import Estimate
from agreestop.decide.answer_kinds import Tree
from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.checkpoints import LabelledEvidence
from agreestop.decide.confidence import MODEL_AVERAGE
from agreestop.decide.rule import Rule, gather_evidence
from agreestop.decide.scores import Scores
from agreestop.decide.tuning.splits import Pool, Realisation, divisions, realisations
from agreestop.engines.early_stopping import TimeSaved

from .pictures import InputPictures
from .promises import (
    AbstainingPoint,
    DepthPoint,
    PeoplePoint,
    measure_abstaining,
    measure_depths,
    measure_people,
)
from .records import EnsembleSummary, MeasurementSettings, Record, summarise
from .work import WorkPoint, measure_work

BARS = 10  # the most groups of stopping times in a figure
WIDTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
GATED = "AgreeStop with a gate, every step"
ABSTAINS = "AgreeStop, every step"
# with fewer inputs than this in a realisation, a bar at either end is joined to its neighbour
RARE = 2.0
MOMENTS = 5
ACCURACY_SHARES = (0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class GroupCoverage:
    """Coverage in a group of inputs: those that stopped at certain times, or those of one class.

    inputs    the number of inputs in one realisation, on average
    coverage  with Wilson's interval, in which every input of the pool counts once, however many
              realisations tested it
    """

    name: str
    inputs: float
    coverage: Estimate


@dataclass(frozen=True)
class Breakdown:
    """The coverage of one rule by groups, over all realisations; `lowest` and `highest` are those
    of single realisations.

    ties      the share of answers of the first realisation that name one class and leave out
              another with the same pooled confidence
    by_group  for the groups that were given with the pool
    """

    overall: Estimate
    lowest: float
    highest: float
    ties: float
    by_time: tuple[GroupCoverage, ...]
    by_class: tuple[GroupCoverage, ...]
    by_group: tuple[GroupCoverage, ...] = ()


@dataclass(frozen=True)
class GateBreakdown:
    """The coverage of a rule with a gate, which it promises for each block, and of the same rule
    without the gate in the same groups.
    """

    by_block: tuple[GroupCoverage, ...]
    plain_by_block: tuple[GroupCoverage, ...]
    by_time: tuple[GroupCoverage, ...]
    plain_by_time: tuple[GroupCoverage, ...]


@dataclass(frozen=True, eq=False)
class Moment:
    """One input at one time: a picture (planes, H, W) of it so far, and which classes
    are in the sets.

    sets  (K + 1, C), one for each member by itself, then that of all members together
    tied  (K + 1,), whether the scores do not tell the classes apart; such a set holds all classes
    """

    time: float
    picture: Floats
    sets: Booleans
    tied: Booleans


@dataclass(frozen=True, eq=False)
class Example:
    """One input until it stops: why it was chosen, its row in the pool, its true class, and moments
    up to its stop.

    whole  a picture (planes, H, W) of the input up to T
    """

    why: str
    row: int
    label: int
    hit: bool
    moments: tuple[Moment, ...]
    whole: Floats


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples of one realisation and its coverage; `meaning` says in words what a member's set
    is, `legend` what each colour is.
    """

    shown: tuple[Example, ...]
    meaning: str
    coverage: float
    legend: tuple[str, ...]


@dataclass(frozen=True)
class Accuracy:
    """How often the most confident class was right at a time: for single members
    (mean, least, greatest), and for their average.
    """

    time: float
    mean: float
    least: float
    greatest: float
    together: float


@dataclass(frozen=True, eq=False)
class Section:
    """The results of one ensemble, whose name is empty where there is only one.

    `settings` say how it was made.

    saved  the time that early stopping saved, where the members were run
    gated  the coverage with a gate and without it, where a rule with a gate was measured
    work   latency against member-steps, where there are several members
    abstaining  the share answered and the share answered wrongly, by target
    people      ways to calibrate, tested on new people, where people were given
    depths      the first answers at each depth, where a tree was given
    """

    name: str
    records: tuple[Record, ...]
    summary: EnsembleSummary
    breakdown: Breakdown
    accuracies: tuple[Accuracy, ...]
    classes: tuple[str, ...]
    examples: Examples | None = None
    saved: TimeSaved | None = None
    settings: tuple[tuple[str, str], ...] = ()
    gated: GateBreakdown | None = None
    work: tuple[WorkPoint, ...] = ()
    abstaining: tuple[AbstainingPoint, ...] = ()
    people: tuple[PeoplePoint, ...] = ()
    depths: tuple[DepthPoint, ...] = ()


@dataclass(frozen=True, eq=False)
class Report:
    """A whole report.

    kind         the kind of inputs in two words, such as "simulated events"; the first word is
                 "simulated" where a simulator made them
    description  where the inputs come from, in a sentence
    n_tuning     inputs that rules were tuned on; n_pool: inputs that were divided into
                 calibration and test
    command      the command that writes this report again
    notes        further sentences for the fine print
    folder       whether metrics.json and the figures are written beside the page
    demo         whether demo.html, in which one watches the members decide, is written
                 beside the page
    """

    name: str
    kind: str
    description: str
    measured: MeasurementSettings
    n_tuning: int
    n_pool: int
    sections: Sequence[Section]
    command: str
    versions: tuple[tuple[str, str], ...]
    settings: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    folder: bool = True
    demo: bool = False


def versions(*packages: str) -> tuple[tuple[str, str], ...]:
    """The version of Python, and of those of the packages that are installed."""
    found = [("Python", ".".join(str(part) for part in sys.version_info[:3]))]
    for package in packages:
        try:
            found.append((package, version(package)))
        except PackageNotFoundError:
            continue
    return tuple(found)


def settings_in_words(
    settings: Any, leave_out: Collection[str] = ()
) -> tuple[tuple[str, str], ...]:
    """The names and values of a dataclass of settings, as text, but for the fields to leave out."""

    def value_in_words(value: object) -> str:
        if isinstance(value, (tuple, list)):
            return ", ".join(value_in_words(entry) for entry in value)
        if isinstance(value, float):
            return f"{value:g}"
        return {"None": "default", "True": "yes", "False": "no"}.get(str(value), str(value))

    return tuple(
        (name.replace("_", " "), value_in_words(value))
        for name, value in asdict(settings).items()
        if name not in leave_out
    )


def describe_ensemble(
    name: str,
    pool: Scores,
    records: tuple[Record, ...],
    rules: Mapping[str, Rule],
    measured: MeasurementSettings,
    progress: ProgressCallback,
    pictures: InputPictures | None = None,
    settings: tuple[tuple[str, str], ...] = (),
    groups: Sequence[str] | None = None,
    people: Sequence[str] | None = None,
    tree: Tree | None = None,
) -> Section:
    """The section of one ensemble; `rules` are those of the records by label. Examples are shown
    where there are pictures of the pool and the headline rule can stop. `groups` and `people` (n,)
    name a group and the person of each input of the pool, and a tree groups the classes, where
    figures for them are wanted.
    """
    assert pool.labels is not None
    summary = summarise(records)
    rule = rules[summary.headline.label]
    progress("coverage by time and class", 0.0)
    # SVG holds no control characters
    classes = tuple(map(visible, pool.classes or map(str, range(pool.log_confidence.shape[3]))))
    breakdown = _break_down(rule, pool, measured, classes, groups)
    gated = _compare_gate(rules[GATED], pool, measured) if GATED in rules else None
    progress("latency against work", 0.4)
    work = measure_work(pool, measured)
    abstaining = measure_abstaining(rules[ABSTAINS], pool, measured) if ABSTAINS in rules else ()
    progress("people and depths", 0.45)
    persons = () if people is None else measure_people(rules[ABSTAINS], pool, people, measured)
    depths = () if tree is None else measure_depths(tree, pool, measured)
    progress("examples", 0.5)
    stops = summary.headline.examples_needed is None
    examples = _examples(rule, pool, pictures, measured) if pictures is not None and stops else None
    return Section(
        name,
        records,
        summary,
        breakdown,
        tuple(_accuracies(pool)),
        classes,
        examples,
        None,
        settings,
        gated,
        work,
        abstaining,
        persons,
        depths,
    )


@dataclass(frozen=True, eq=False)
class _Outcomes:
    """Which inputs of the pool were tested in each realisation, where they stopped and whether
    they were covered, all (R, n).
    """

    runs: list[Realisation]
    tested: Booleans
    hits: Booleans
    stops: Integers

    @classmethod
    def of(cls, rule: Rule, pool: Scores, measured: MeasurementSettings) -> Self:
        assert pool.labels is not None
        columns = columns_of(rule.checkpoints, pool.times)
        examples = LabelledEvidence(
            gather_evidence(rule, pool.log_confidence, columns),
            pool.labels,
            pool.log_confidence.shape[3],
        )
        runs = list(
            realisations(
                rule,
                Pool.of(rule, examples),
                measured.n_calibration,
                measured.realisations,
                measured.seed,
            )
        )
        shape = len(runs), len(pool)
        tested = np.zeros(shape, dtype=bool)
        hits = np.zeros(shape, dtype=bool)
        stops = np.zeros(shape, dtype=np.int64)
        for repeat, one in enumerate(runs):
            tested[repeat, one.test], stops[repeat, one.test] = True, one.stops
            hits[repeat, one.test] = one.sets[np.arange(len(one.test)), pool.labels[one.test]]
        return cls(runs, tested, hits, stops)

    def groups(self, named: Iterable[tuple[str, Booleans]]) -> tuple[GroupCoverage, ...]:
        """The coverage of named groups of inputs, (R, n) or (n,), that were tested at all."""
        chosen = [(name, self.tested & rows) for name, rows in named if (self.tested & rows).any()]
        return tuple(
            GroupCoverage(name, float(rows.sum()) / len(rows), coverage_of_inputs(self.hits, rows))
            for name, rows in chosen
        )

    def by_time(
        self, checkpoints: Sequence[float], spans: Sequence[tuple[int, int]]
    ) -> tuple[GroupCoverage, ...]:
        """The coverage of the inputs that stopped in each span of checkpoints."""
        named = []
        for first, last in spans:
            name = (
                f"{checkpoints[first]:g}"
                if first == last
                else f"{checkpoints[first]:g}–{checkpoints[last]:g}"
            )
            named.append((name, (self.stops >= first) & (self.stops <= last)))
        return self.groups(named)


def _break_down(
    rule: Rule,
    pool: Scores,
    measured: MeasurementSettings,
    classes: Sequence[str],
    groups: Sequence[str] | None,
) -> Breakdown:
    assert pool.labels is not None
    found = _Outcomes.of(rule, pool, measured)
    coverages = [
        float(hit[chosen].mean()) for hit, chosen in zip(found.hits, found.tested, strict=True)
    ]
    by_time = found.by_time(
        rule.checkpoints, _spans(found.stops[found.tested], len(rule.checkpoints), len(found.runs))
    )
    by_class = found.groups((name, pool.labels == label) for label, name in enumerate(classes))
    named = np.array([] if groups is None else [visible(name) for name in groups], dtype=object)
    by_group = found.groups((name, named == name) for name in sorted(set(named.tolist())))
    ties = _ties(found.runs[0], np.array(columns_of(rule.checkpoints, pool.times)), pool)
    overall = coverage_of_inputs(found.hits, found.tested)
    return Breakdown(overall, min(coverages), max(coverages), ties, by_time, by_class, by_group)


def _compare_gate(rule: Any, pool: Scores, measured: MeasurementSettings) -> GateBreakdown:
    """The coverage of a rule with a gate, and of the same rule without it, by the blocks of the
    gate and by stopping time.
    """
    gate, checkpoints = rule.gate, rule.checkpoints
    gated = _Outcomes.of(rule, pool, measured)
    plain = _Outcomes.of(replace(rule, gate=None, risk=gate.base), pool, measured)
    risk = gather_evidence(rule, pool.log_confidence, columns_of(checkpoints, pool.times)).log_risk
    assert risk is not None
    blocks = [(name, gate.opened(risk)[1] == block) for block, name in enumerate(gate.block_names)]
    spans = _spans(gated.stops[gated.tested], len(checkpoints), len(gated.runs))
    return GateBreakdown(
        gated.groups(blocks),
        plain.groups(blocks),
        gated.by_time(checkpoints, spans),
        plain.by_time(checkpoints, spans),
    )


def _spans(stops: Integers, checkpoints: int, realisations: int) -> list[tuple[int, int]]:
    """First and last checkpoints that share a bar: few bars, and none at either end with
    hardly an input.
    """
    low, high = np.quantile(stops, (0.005, 0.995)).astype(int)
    width = next((width for width in WIDTHS if high // width - low // width < BARS), checkpoints)
    spans = [(first, min(first + width, checkpoints) - 1) for first in range(0, checkpoints, width)]
    counts = np.bincount(stops // width, minlength=len(spans)) / realisations
    taken = np.flatnonzero(counts)
    spans, counts = spans[taken[0] : taken[-1] + 1], counts[taken[0] : taken[-1] + 1]
    while len(spans) > 1 and counts[0] < RARE:
        spans[:2], counts = [(spans[0][0], spans[1][1])], np.append(counts[:2].sum(), counts[2:])
    while len(spans) > 1 and counts[-1] < RARE:
        spans[-2:], counts = (
            [(spans[-2][0], spans[-1][1])],
            np.append(counts[:-2], counts[-2:].sum()),
        )
    return spans


def _ties(run: Realisation, columns: Integers, pool: Scores) -> float:
    """The share of answers of a realisation that name a class and leave out another with the
    same averaged confidence.
    """
    pooled = MODEL_AVERAGE.pool(
        np.asarray(pool.log_confidence[run.test, columns[run.stops]], dtype=np.float64)
    )
    least = np.where(run.sets, pooled, np.inf).min(axis=1)
    most = np.where(run.sets, -np.inf, pooled).max(axis=1)
    return float(np.isclose(least, most, rtol=0, atol=1e-9).mean())


def coverage_of_inputs(hits: Booleans, chosen: Booleans) -> Estimate:
    """Coverage over the chosen entries of (R, n), with Wilson's interval.

    An input that many realisations tested is still one input. Kish's effective size, (Σw)²/Σw² for
    inputs chosen w times, counts it once.
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
        yield Accuracy(
            pool.times[max(index, 0)],
            float(single.mean()),
            float(single.min()),
            float(single.max()),
            together,
        )


def _examples(
    rule: Rule, pool: Scores, pictures: InputPictures, measured: MeasurementSettings
) -> Examples:
    """Four test inputs of the first realisation, chosen by their rank in the order of
    stopping times.
    """
    assert pool.labels is not None
    calibration, test = next(divisions(len(pool), measured.n_calibration, 1, measured.seed))
    calibrated = rule.calibrate(pool.rows(calibration))
    decisions = calibrated.decide(pool.rows(test), first=0)
    hits = decisions.sets[np.arange(len(test)), pool.labels[test]]
    by_time = np.lexsort((test, decisions.stop_index))
    right, missed = by_time[hits[by_time]], by_time[~hits[by_time]]
    wanted = [
        ("early", right, 0.1),
        ("ordinary", right, 0.5),
        ("late", right, 0.9),
        ("missed", missed, 0.5),
    ]
    examples = []
    for why, order, rank in wanted:
        if len(order):
            chosen = int(order[int(rank * (len(order) - 1))])
            sets = decisions.sets[chosen]
            examples.append(
                _example(
                    why,
                    int(test[chosen]),
                    calibrated,
                    int(decisions.stop_index[chosen]),
                    sets,
                    pool,
                    pictures,
                )
            )
    return Examples(tuple(examples), calibrated.policy.meaning, float(hits.mean()), pictures.legend)


def _example(
    why: str,
    row: int,
    calibrated: CalibratedRule,
    stop: int,
    answer: Booleans,
    pool: Scores,
    pictures: InputPictures,
) -> Example:
    assert pool.labels is not None
    columns = columns_of(calibrated.checkpoints, pool.times)
    watched = np.asarray(pool.log_confidence[row, columns[: stop + 1]], dtype=np.float64)
    sets = np.stack([_sets_at(calibrated, index, scores) for index, scores in enumerate(watched)])
    tied = np.ptp(watched, axis=2) == 0
    tied = np.column_stack([tied, tied.all(axis=1)])
    sets[tied] = True
    sets[stop, -1] = answer
    moments = []
    for index in _moments(sets):
        time = calibrated.checkpoints[index]
        moments.append(Moment(time, pictures.until(row, time), sets[index], tied[index]))
    label = int(pool.labels[row])
    return Example(
        why, row, label, bool(answer[label]), tuple(moments), pictures.until(row, np.inf)
    )


def _sets_at(calibrated: CalibratedRule, index: int, scores: Floats) -> Booleans:
    """The sets (K + 1, C) at a checkpoint from log-confidences (K, C): one for each member by
    itself, then that of all together.

    A member by itself is treated as an ensemble of one, under the threshold that was calibrated
    for all of them.
    """
    evidence = calibrated.rule.evidence
    parts = [
        evidence(index, scores[None, member : member + 1]).values[0]
        for member in range(len(scores))
    ]
    values = np.stack([*parts, evidence(index, scores[None]).values[0]])
    return calibrated.policy.kept(values)


def _moments(sets: Booleans) -> list[int]:
    """Some of the checkpoints at which a set changed, up to the stop.

    Where these are few, others before the stop too.
    """
    changed = np.flatnonzero((sets[1:] != sets[:-1]).any(axis=(1, 2))) + 1
    stop = len(sets) - 1
    known = np.union1d(changed, [stop])
    chosen = set(
        known[np.linspace(0, len(known) - 1, min(MOMENTS, len(known))).round().astype(int)].tolist()
    )
    for index in np.linspace(0, stop, MOMENTS).round().astype(int).tolist():
        if len(chosen) < MOMENTS:
            chosen.add(index)
    return sorted(chosen)
