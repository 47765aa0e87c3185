"""Calibration: what every rule can do before it, and the calibrated rule that it makes."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Self, cast

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import Floats, InputError

from .calibrated import ENDED_INPUTS, CalibratedRule, data_fingerprint
from .checks import CalibrationWarning
from .conditions import Conditions, LabelledEvidence
from .evidence import Policy
from .exchangeability import labels_in_blocks, labels_misplaced, labels_unrelated
from .levels import as_delta
from .reprs import short_repr
from .rounding import Rounding
from .rules import Rule, gather_evidence, refuse_used, warn_of
from .score_files import ScoresLike, as_scores, at_times, labels_of, training_overlap
from .tuned_rows import Marks, ScoredRows, TunedRows


def _refused(verb: str) -> Callable[..., NoReturn]:
    """A method that only a calibrated rule has."""

    def refuse(rule: object, *arguments: object, **options: object) -> NoReturn:
        kind = type(rule).__name__
        raise InputError(f"this {kind} is not calibrated yet: call calibrate(log_confidence, labels), then {verb} what it returns.")

    return refuse


class Uncalibrated:
    """The verbs of every rule before calibration; rules build on it and change nothing of it."""

    decide, save, stream = _refused("decide on"), _refused("save"), _refused("stream from")

    def __repr__(self) -> str:
        return short_repr(self)

    def __sklearn_clone__(self) -> Self:
        """What `sklearn.base.clone` returns: a rule holds nothing that calibration changes, so a copy with the same settings will do."""
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
    ) -> CalibratedRule:
        """Calibrate on a `Scores` with labels, or on log-confidences (n, M, K, C) with labels (n,): data that were used for nothing else.

        A `Scores`, or an array with `times`, may have more checkpoints than the rule; it is cut to
        the rule's. Warns if n is too small for the rule ever to exclude a label, and if labels and
        columns of the scores are not in the same order. `notes` of what it returns say if the labels
        come in blocks, as in rows that were not shuffled before they were divided. The rule keeps
        the names of the engine, the ensemble and the classes, where a `Scores` has them.

        labels="final"  no labels are needed: the promise is about the ensemble's own best class at the last checkpoint
        groups          (n,) whole numbers or strings, or (n, G) booleans where groups overlap: the promise for each group by itself
        weights         (n,) dQ/dP of each input, none above max_weight: the promise under the shifted distribution Q
        """
        rule = cast(Rule, self)
        final = _asks_for_final(labels)
        data = at_times(as_scores(scores_or_log_confidence, None if final else labels, times, rule.checkpoints), rule.checkpoints)
        n, checkpoints, members, classes = data.log_confidence.shape
        conditions = Conditions.of(n, groups, weights, max_weight, final)
        if (final or conditions.used) and not hasattr(rule, "delta"):
            what = conditions.used or "final labels"
            raise InputError(f"{type(rule).__name__} promises nothing, so {what} have no use: give SpikeCP or AgreeStop.")
        if weights is not None and getattr(rule, "delta", None) is not None:
            raise InputError("there is no promise with both weights and delta: leave one of them out.")
        scored = ScoredRows(data.log_confidence, range(checkpoints))
        refuse_used(rule, data.ids, scored, training_overlap(data), "calibration")
        evidence = gather_evidence(rule, data.log_confidence, range(checkpoints))
        truth = rule.best(evidence[:, -1]) if final else labels_of(data)
        if (truth < 0).any():
            raise InputError("the risk has no best class at the last checkpoint, where its offset is -inf: give a number there.")
        rounding = Rounding.of(data.log_confidence, data.rounding)
        examples = LabelledEvidence(evidence, truth, classes, conditions, rounding)
        policy = rule.fit(examples)
        sentence = warn_of(rule, examples, members, policy)
        rows = TunedRows.of_rule(scored.sketches, checkpoints, data.ids)
        first_risks = evidence[:, 0].level
        calibrated = calibrated_rule(rule, policy, examples, members, sentence, data, rows, scored.marks, first_risks)
        if final:
            return calibrated
        best = rule.best(evidence[:, -1])
        misplaced = labels_misplaced(best, truth, classes)
        if misplaced:
            warnings.warn(misplaced, CalibrationWarning, stacklevel=2)
        return calibrated.noting(misplaced or labels_unrelated(best, truth, classes))


def calibrated_rule(
    rule: Rule,
    policy: Policy,
    examples: LabelledEvidence,
    members: int,
    shortage: str,
    source: Any,
    rows: TunedRows,
    marks: Marks,
    first_risks: Floats,
) -> CalibratedRule:
    """The calibrated rule from its policy; source: a `Scores`, or what has its fields from `classes` on; marks (n,): of the rows."""
    conditions, fingerprint = examples.conditions, data_fingerprint(marks, examples.labels)
    guarantee = conditions.words(rule.promise(), as_delta(getattr(rule, "delta", None)))
    guarantee += ENDED_INPUTS if source.lengths is not None else ""
    about = len(examples), members, examples.classes, guarantee, shortage, fingerprint
    known = source.engine, source.ensemble_digest, source.classes, rows
    counts = None if conditions.final else np.bincount(examples.labels, minlength=examples.classes)
    eta = first_rounding(rule, examples.rounding, first_risks)
    sizes = conditions.effective_size, conditions.final
    calibrated = CalibratedRule(rule, policy, *about, *known, first_risks, *sizes, class_counts=counts, eta=eta)
    return calibrated if conditions.final else calibrated.noting(labels_in_blocks(examples.labels))


def first_rounding(rule: Rule, base: Rounding, first_risks: Floats) -> float:
    """η: how far the log-risk of one input at the first checkpoint may differ between two runs."""
    rounding = rule.rounding(base)
    finite = np.abs(first_risks[np.isfinite(first_risks)])
    return rounding.at_checkpoint(0).largest(-float(finite.max(initial=0.0)))


def _asks_for_final(labels: ArrayLike | str | None) -> bool:
    if isinstance(labels, str) and labels != "final":
        advice = "give one class index for each input, or 'final' for the ensemble's own best class at the last checkpoint"
        raise InputError(f"labels is {labels!r}: {advice}.")
    return isinstance(labels, str)
