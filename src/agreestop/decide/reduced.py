"""Exact calibration on examples that are stored in parts, for example on several machines.

Every part is reduced by itself, and the parts become one rule.

An example is reduced to what the threshold needs (W of `AgreeStop`, V of `SpikeCP`; see `reduce` of the rule), to its label, and to what
recognises it later: the sketch and the mark of its scores, its id, and its risk at the first checkpoint. The rule is the one that
`calibrate` would make of all scores together.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from agreestop.common import Floats, InputError, Integers

from .calibrated import CalibratedRule
from .calibration import calibrated_rule
from .checks import CalibrationWarning
from .conditions import LabelledEvidence
from .evidence import Evidence
from .rounding import Rounding
from .rules import Rule, gather_evidence, refuse_used, shortage
from .score_files import Scores, at_times, labels_of, training_overlap
from .tuned_rows import Marks, Overlap, ReadRows, ScoredRows, Sketches, TunedRows, kind_of_ids


@dataclass(frozen=True, eq=False)
class ReducedExamples:
    """n examples after reduction: the rule's own numbers, labels (n,), sketches (n, NUMBERS), marks (n,), ids (n,), first risks
    (n,); and their source.

    settings: those of the rule that the numbers depend on. training: how many of the rows the members were trained on.
    """

    settings: tuple[object, ...]
    numbers: dict[str, NDArray[Any]]
    labels: Integers
    sketches: Sketches
    marks: Marks
    ids: NDArray[Any] | None
    first_risks: Floats
    members: int
    class_count: int
    engine: str
    ensemble_digest: str
    classes: tuple[str, ...] | None
    lengths: Integers | None
    rounding: Rounding
    training: Overlap | None = None


def check_reducible(rule: Rule) -> None:
    """Refuse a rule whose calibration needs more than a few numbers of each example."""
    if not getattr(rule, "reducible", False):
        needed = "AgreeStop without gate, loss and accumulated, or SpikeCP with calibration='simultaneous' or 'stop-aware'"
        raise InputError(f"this {type(rule).__name__} needs all scores of its examples in one place: use rule.calibrate, or give {needed}.")


def reduce_examples(rule: Rule, scores: Scores) -> ReducedExamples:
    """Reduce labelled scores to what the calibration of the rule needs of them."""
    check_reducible(rule)
    data, reducible = at_times(scores, rule.checkpoints), cast(Any, rule)
    _, checkpoints, members, classes = data.log_confidence.shape
    evidence, labels = gather_evidence(rule, data.log_confidence, range(checkpoints)), labels_of(data)
    scored = ScoredRows(data.log_confidence, range(checkpoints))
    rounding = Rounding.of(data.log_confidence, data.rounding)
    numbers = reducible.reduce(LabelledEvidence(evidence, labels, classes, rounding=rounding))
    known = members, classes, data.engine, data.ensemble_digest, data.classes, data.lengths, rounding
    sketches, marks, first_risks = scored.sketches, scored.marks, evidence[:, 0].level
    found = ReducedExamples(_settings(rule), numbers, labels, sketches, marks, data.ids, first_risks, *known)
    return replace(found, training=training_overlap(data))


def _settings(rule: Rule) -> tuple[object, ...]:
    options = (getattr(rule, name, None) for name in ("calibration", "fill", "trim"))
    return type(rule).__name__, rule.checkpoints, rule.max_set_size, *options


def calibrate_reduced(rule: Rule, parts: Sequence[ReducedExamples]) -> CalibratedRule:
    """The rule that `rule.calibrate` would make of the scores of all parts, one after the other."""
    check_reducible(rule)
    if not parts:
        raise InputError("there are no parts: give at least one that reduce_examples made.")
    first = parts[0]
    if any(part.settings != _settings(rule) for part in parts):
        raise InputError("a part was reduced for a rule with other checkpoints or settings: reduce every part for the rule to calibrate.")
    for name in ("members", "class_count", "engine", "ensemble_digest", "classes", "rounding"):
        if any(getattr(part, name) != getattr(first, name) for part in parts):
            raise InputError(f"the parts have different {name}: score all of them with one ensemble on one engine.")
    names = ("labels", "sketches", "marks", "first_risks")
    labels, sketches, marks, first_risks = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
    given = [part.ids for part in parts if part.ids is not None]
    if len({kind_of_ids(some) for some in given}) > 1:
        raise InputError("the parts have ids of different kinds: give numbers to all, or text to all.")
    ids = np.concatenate(given) if len(given) == len(parts) else None
    refuse_used(rule, ids, ReadRows(sketches, marks), _training(parts), "calibration")
    rows = TunedRows.of_rule(sketches, len(rule.checkpoints), ids)
    numbers = {name: np.concatenate([part.numbers[name] for part in parts]) for name in first.numbers}
    nothing = Evidence(np.empty((len(labels), 0, 0)))
    examples = LabelledEvidence(nothing, labels, first.class_count, rounding=first.rounding)
    policy = cast(Any, rule).fit_reduced(numbers, examples)
    if sentence := shortage(rule, examples, first.members):
        warnings.warn(sentence, CalibrationWarning, stacklevel=3)
    source = next((part for part in parts if part.lengths is not None), first)  # one input that may end early is enough for the guarantee
    return calibrated_rule(rule, policy, examples, first.members, sentence, source, rows, marks, first_risks)


def _training(parts: Sequence[ReducedExamples]) -> Overlap | None:
    """How many rows of all parts the members were trained on; None where one part does not know."""
    known = [part.training for part in parts if part.training is not None]
    if len(known) < len(parts):
        return None
    return replace(known[0], seen=sum(part.seen for part in known), total=sum(part.total for part in known), rows=())
