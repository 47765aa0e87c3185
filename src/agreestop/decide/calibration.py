"""Calibration: an example is reduced to a few numbers, and these become a calibrated rule.

Every part of the examples can be reduced by itself, for example on several machines: the rule that
`calibrate_reduced` makes of all parts is the one that `calibrate` makes of all scores together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import (
    Floats,
    InputError,
    Integers,
    as_checkpoints,
    join_parts,
    set_fields,
    warn_user,
)
from agreestop.common.levels import Rounding, Target, as_target, in_words, least_n

from .answer_kinds import Answer, BestClasses
from .calibrated import ENDED_INPUTS, CalibratedRule, refused
from .checkpoints import (
    NO_EVIDENCE,
    Conditions,
    Evidence,
    LabelledEvidence,
    Policy,
    run_policy,
)
from .leakage import (
    Marks,
    Overlap,
    ReadRows,
    Sketches,
    TunedRows,
    data_fingerprint,
    kind_of_ids,
    labels_in_blocks,
    labels_misplaced,
    labels_unrelated,
    mark_ids,
    rows_copied,
    training_overlap,
)
from .rule import (
    Reduced,
    Rule,
    Terms,
    check_conditions,
    coverage_promise,
    gather_evidence,
    refuse_used,
    shortage,
    validate,
    warn_of_sizes,
)
from .scores import Scores, ScoresLike, labels_of
from .thresholds import (
    allowed_by_failures,
    fit_thresholds,
    refuse_never,
)

QUARTERS = 1, 2, 3, 4
ROWS_THAT_STOP = 1000  # rows whose stops are compared
UNLIKELY = Fraction(1, 4)  # a target below it is rather the share of misses
LATER = 0.05  # of the last checkpoint: a smaller difference is no reason for a note

SAME = {
    "sizes": "members or classes",
    "source": "engines, ensembles, classes or windows",
    "rounding": "rounding",
    "weighted": "weights of answers, as some have none",
}
"""What all parts of the examples must have in common."""


@dataclass(frozen=True, eq=False)
class ReducedExamples:
    """n examples after reduction, and where they come from.

    reduced      what the rule needs of each example
    labels       (n,), or the best classes at the last checkpoint for labels="final"
    best         (n,) the best class at the last checkpoint
    sketches     (n, NUMBERS), marks (n,), ids (n,): what recognises the rows later
    first_risks  (n,) their risk at the first checkpoint
    sizes        the number of members and of classes
    source       the engine, the ensemble, the classes, and how streams were heard
    rule         the rule, with what it takes from the scores, such as the order of their classes
    training     how many of the rows the members were trained on
    weighted     whether samples of open answers have weights
    """

    reduced: Reduced
    labels: Integers
    best: Integers
    sketches: Sketches | None
    marks: Marks
    ids: NDArray[Any] | None
    first_risks: Floats
    sizes: tuple[int, int]
    source: tuple[str, str, tuple[str, ...] | None, str]
    lengths: Integers | None
    rounding: Rounding
    settings: str
    rule: Rule
    training: Overlap | None = None
    weighted: bool | None = None


def reduce_examples(rule: Rule, scores: Scores) -> ReducedExamples:
    """Reduce scores to what the calibration of the rule needs of them."""
    return _read_examples(rule, scores, Conditions())[0]


def _read_examples(
    rule: Rule, scores: Scores, known: Conditions
) -> tuple[ReducedExamples, LabelledEvidence]:
    """The examples after reduction, and before it."""
    settings, rule = repr(rule), rule.on(scores)
    data = scores.at(rule.checkpoints)
    columns = range(len(data.times))
    scored = data.scored(columns)
    training = training_overlap(data.trained, data.trained_chance)
    refuse_used(rule, data.ids, scored, training, "calibration")
    evidence = gather_evidence(rule, data.cells, columns)
    best = rule.best(evidence[:, -1])
    truth = best if known.final else labels_of(data)
    if (truth < 0).any():
        raise InputError(
            "the risk has no best class at the last checkpoint, where its offset is -inf: give a "
            "number there."
        )
    rounding = Rounding.of(data.cells, data.rounding)
    members, classes = data.sizes
    examples = LabelledEvidence(evidence, truth, classes, known, rounding, data.loss)
    reduced = ReducedExamples(
        rule.reduce(examples),
        truth,
        best,
        scored.sketches,
        scored.marks,
        data.ids,
        evidence[:, 0].level,
        (members, classes),
        (data.engine, data.ensemble_digest, data.classes, data.heard),
        data.lengths,
        rounding,
        settings,
        rule,
        training,
        data.weighted,
    )
    return reduced, examples


def calibrate_reduced(
    rule: Rule, parts: Sequence[ReducedExamples], conditions: Conditions | None = None
) -> CalibratedRule:
    """The rule that `rule.calibrate` would make of the scores of all parts, one after the other."""
    if not parts:
        raise InputError("there are no parts: give at least one that reduce_examples made.")
    first, known = parts[0], Conditions() if conditions is None else conditions
    if any(part.settings != repr(rule) for part in parts):
        raise InputError(
            "a part was reduced for a rule with other checkpoints or settings: reduce every part "
            "for the rule to calibrate."
        )
    for name, words in SAME.items():
        if any(getattr(part, name) != getattr(first, name) for part in parts):
            raise InputError(
                f"the parts have different {words}: score all of them with one ensemble on one "
                "engine."
            )
    rule = first.rule
    joined = first if len(parts) == 1 else _joined(rule, parts)
    members, classes = joined.sizes
    examples = LabelledEvidence(NO_EVIDENCE, joined.labels, classes, known, joined.rounding)
    policy = rule.fit(joined.reduced, examples)
    sentence = shortage(rule, joined.reduced, examples, members)
    terms = rule.terms
    if not sentence and terms.accumulated and policy.never_stops(None):
        sentence = (
            f"With these {len(examples)} calibration examples no checkpoint before the last one "
            "passes the test of accumulated, so nothing stops early: give more examples, a lower "
            "target or a larger delta."
        )
    warn_of_sizes(rule, classes, sentence)
    by_class = not (known.final or terms.open_answers)
    guarantee = rule.worded(known.words(rule.promise(), terms.target, terms.delta))
    # One input that may end early is enough for the guarantee to say so.
    guarantee += ENDED_INPUTS if any(part.lengths is not None for part in parts) else ""
    calibrated = CalibratedRule(
        rule,
        policy,
        len(examples),
        members,
        classes,
        guarantee,
        sentence,
        data_fingerprint(joined.marks, joined.labels),
        *joined.source,
        TunedRows.of_rule(joined.sketches, len(rule.checkpoints), joined.ids),
        joined.first_risks,
        known.effective_size,
        known.final,
        class_counts=np.bincount(joined.labels, minlength=classes) if by_class else None,
        eta=rule.rounding(joined.rounding).at_first(joined.first_risks),
        people=None if known.people is None else len(np.unique(known.people)),
        weighted=joined.weighted,
    )
    calibrated = calibrated.noting(
        rows_copied(joined.sketches, len(rule.checkpoints), joined.ids), _low_target(terms)
    )
    if not by_class or not terms.has_classes:
        return calibrated
    calibrated = calibrated.noting(labels_in_blocks(joined.labels))
    misplaced = labels_misplaced(joined.best, joined.labels, classes)
    if misplaced:
        warn_user(misplaced)
    return calibrated.noting(misplaced or labels_unrelated(joined.best, joined.labels, classes))


def _low_target(terms: Terms) -> str:
    """A sentence if the target looks like a share of misses."""
    if not terms.promises or terms.target is None or terms.target >= UNLIKELY:
        return ""
    target = in_words(terms.target)
    return (
        f"The target is {target}, so an answer must be right with probability {target} alone: if "
        f"that is the share of misses that you allow, give {in_words(1 - terms.target)}."
    )


def later_than_quarters(rule: Rule, policy: Policy, examples: LabelledEvidence) -> str:
    """One sentence if the rule stops much later than with the four quarters of its checkpoints.

    That happens with risks that are not comparable across times; for those that were fitted nothing
    is said. Both rules are calibrated and stopped on the same rows, so only a large difference
    counts.
    """
    times, known = rule.checkpoints, examples.conditions
    terms, fitted = rule.terms, rule.tuned is not None
    other = not terms.has_classes or terms.open_answers or terms.is_divided or terms.abstains
    if fitted or other or known.used or not rule.one_threshold or rule.joined_members:
        return ""
    if len(times) < 2 * len(QUARTERS):
        return ""
    quarters = [len(times) * quarter // 4 - 1 for quarter in QUARTERS]
    few = replace(cast(Any, rule), checkpoints=[times[index] for index in quarters])
    rows, classes = np.arange(min(len(examples), ROWS_THAT_STOP)), examples.classes
    evidence, labels = examples.evidence[: len(rows), quarters], examples.labels[rows]
    own = replace(examples, evidence=evidence, labels=labels)
    clock = np.array(times) / times[-1]
    every = clock[run_policy(policy, examples.evidence, rows, classes).index]
    fewer = run_policy(few.fit(few.reduce(own), own), own.evidence, rows, classes).index
    later = every - clock[quarters][fewer]
    if later.mean() < max(LATER, 3 * later.std() / math.sqrt(len(rows))):
        return ""
    mean = every.mean() * times[-1]
    return (
        f"this rule stops {later.mean() * times[-1]:.3g} later on the calibration rows (at "
        f"{mean:.3g}) than with {', '.join(f'{time:g}' for time in few.checkpoints)} as its only "
        f"checkpoints, since what it reads is not comparable across its {len(times)} times: fit "
        "that on other rows (ag.tune, TopMass.fit or Temperature.fit), or take fewer checkpoints, "
        "and calibrate on new rows."
    )


def _joined(rule: Rule, parts: Sequence[ReducedExamples]) -> ReducedExamples:
    """All parts as one."""
    first = parts[0]
    if len({kind_of_ids(part.ids) for part in parts if part.ids is not None}) > 1:
        raise InputError("the parts have ids of different kinds: give numbers to all, or text.")
    names = ("labels", "best", "marks", "first_risks", "sketches", "ids")
    arrays: dict[str, Any] = {
        name: join_parts([getattr(part, name) for part in parts]) for name in names
    }
    trained = [part.training for part in parts if part.training is not None]
    training = None
    if len(trained) == len(parts):
        seen, total = sum(part.seen for part in trained), sum(part.total for part in trained)
        training = replace(trained[0], seen=seen, total=total, rows=())
    rows = ReadRows(arrays["sketches"], arrays["marks"])
    refuse_used(rule, arrays["ids"], rows, training, "calibration")
    reduced = {name: join_parts([part.reduced[name] for part in parts]) for name in first.reduced}
    return replace(first, reduced=reduced, training=training, **arrays)


class Uncalibrated(Rule):
    """The verbs of every rule before calibration; rules build on it and change nothing of it."""

    decide, save, stream = refused("decide on"), refused("save"), refused("stream from")

    def best(self, evidence: Evidence) -> Integers:
        """The class of the largest value."""
        return evidence.values.argmax(axis=-1)

    def examples_needed(self, K: int = 1) -> int:
        return least_n(self.exact_target, self.terms.delta)

    def __sklearn_clone__(self) -> Self:
        """A copy with the same settings: a rule holds nothing that calibration changes."""
        return replace(cast(Any, self))

    def calibrate(
        self,
        scores_or_log_confidence: ScoresLike,
        labels: ArrayLike | str | None = None,
        times: Sequence[float] | None = None,
        *,
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        max_weight: float | None = None,
        people: ArrayLike | None = None,
        for_people: Target | None = None,
    ) -> CalibratedRule:
        """Calibrate on data that were used for nothing else.

        Parameters
        ----------
        scores_or_log_confidence : Scores, or array (n, M, K, C)
            What the model says. A `Scores`, or an array with `times`, may have more checkpoints
            than the rule; it is cut to the rule's. The calibrated rule keeps the names of the
            engine, the ensemble and the classes, where a `Scores` has them.
        labels : array (n,) or "final", optional
            Labels for an array. With "final" no labels are needed: the promise is about the
            ensemble's own best class at the last checkpoint.
        times : sequence of float, optional
            The times of an array.
        groups : array, optional
            (n,) whole numbers or strings, or (n, G) booleans where groups overlap: the promise for
            each group by itself.
        weights, max_weight : array (n,) and float, optional
            dQ/dP of each input, none above max_weight: the promise under the shifted distribution.
        people : array (n,), optional
            The person (patient, sensor, recording) of each row: the promise is for a row of a new
            person, people counting equally. Rows of two people may differ.
        for_people : float, optional
            With people: for this share of new people, at most a share 1 - target of their answers
            misses.

        Returns
        -------
        CalibratedRule

        Notes
        -----
        Warns if n is too small for the rule ever to exclude a label, and if labels and columns of
        the scores are not in the same order. `notes` of what it returns say if the labels come in
        blocks, as in rows that were not shuffled before they were divided, and if the rule stops
        much later with all its checkpoints than with four of them.
        """
        if isinstance(labels, str) and labels != "final":
            raise InputError(
                f"labels is {labels!r:.80}: give one class index for each input, or 'final' for "
                "the ensemble's own best class at the last checkpoint."
            )
        final = isinstance(labels, str)
        data = self.read(scores_or_log_confidence, None if final else labels, times)
        given = groups, weights, max_weight, people, for_people
        conditions = Conditions.of(len(data), *given, final=final)
        rule = self.on(data)
        check_conditions(rule.terms, conditions, type(rule).__name__)
        reduced, examples = _read_examples(rule, data, conditions)
        calibrated = calibrate_reduced(rule, [reduced], conditions)
        if people is None:
            late = later_than_quarters(reduced.rule, calibrated.policy, examples)
            return calibrated.noting(late)
        known = replace(calibrated, known_people=np.unique(mark_ids(people)))
        return known.noting(*calibrated.notes)


class WithoutClasses(Uncalibrated):
    """A rule whose inputs have losses or numbers in place of classes.

    Without checkpoints of its own, it takes the times of the calibration data.
    """

    max_set_size = 1

    def check_checkpoints(self) -> None:
        """Check the checkpoints, if there are any, and bring them to one form."""
        name = type(self).__name__
        if len(self.checkpoints):
            set_fields(self, checkpoints=as_checkpoints(self.checkpoints))
        if self.joined_members:
            raise InputError(f"checkpoints: {name} has no members to join, so give times.")

    def at_checkpoints(self, data: Any) -> Any:
        """The inputs at the checkpoints, if there are any."""
        return data.at(self.checkpoints) if len(self.checkpoints) else data

    def on(self, data: Any) -> Self:
        known = self.checkpoints if len(self.checkpoints) else data.times
        return replace(cast(Any, self), checkpoints=known)

    def best(self, evidence: Evidence) -> Integers:
        return np.zeros(len(evidence), dtype=np.int64)

    @classmethod
    def build(cls, kind: str, **settings: Any) -> Rule:
        if settings.pop("max_set_size") != 1:
            raise InputError(f"max_set_size has no use for a {cls.__name__}: leave it out.")
        return cls(**settings)


class ThresholdRule(Uncalibrated):
    """A rule that stops as soon as a risk is below one calibrated threshold.

    A rule of your own says what it reads (`evidence`), and has the fields `target`, `checkpoints`
    and `max_set_size`. Unless it overrides `answer`, it answers its `max_set_size` best classes.
    """

    target: Target

    def __post_init__(self) -> None:
        validate(self)

    @property
    def terms(self) -> Terms:
        return Terms(type(self).__name__.lower(), as_target(self.target))

    def answer(self, final: bool = False) -> Answer:
        return BestClasses(self.max_set_size, -math.inf, final)

    def rounding(self, base: Rounding) -> Rounding:
        return base.scaled(1.0)

    def reduce(self, examples: LabelledEvidence) -> Reduced:
        answer, evidence = self.answer(examples.conditions.final), examples.evidence
        rounding = self.rounding(examples.rounding)
        found = answer.reduce(evidence, examples.labels, rounding)
        return {"numbers": answer.compared(evidence), **found}

    def fit(self, reduced: Reduced, examples: LabelledEvidence) -> Policy:
        answer, rounding = self.answer(examples.conditions.final), self.rounding(examples.rounding)
        allowed = allowed_by_failures(reduced, examples, self.exact_target)
        policy = fit_thresholds(answer, reduced, examples, rounding, allowed)
        if not answer.always_right_at_end:
            refuse_never(policy)
        return policy

    def promise(self) -> str:
        return coverage_promise(self.exact_target, False, None)

    @property
    def one_threshold(self) -> bool:
        return True
