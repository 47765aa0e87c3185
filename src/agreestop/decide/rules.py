"""What a rule offers before calibration, and what all rules share: reading evidence, checks of settings, promises and shortages in words.

A `Rule` is settings: what it reads off an input, how labelled evidence becomes a policy, and what then holds.
"""

import math
import warnings
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import Booleans, Floats, InputError, Integers

from .checks import CalibrationWarning, as_checkpoints, as_max_set_size
from .conditions import LabelledEvidence
from .evidence import Evidence, Policy
from .levels import as_delta, as_target, in_words
from .policies import CheckpointRisks
from .ranking import Index
from .rounding import Rounding
from .schedules import Schedule
from .tuned_rows import Overlap, RowScores, TunedRows, first_reuse


class Rule(Protocol):
    """A rule before calibration. `evidence` is fixed before any calibration data are seen."""

    @property
    def checkpoints(self) -> Sequence[float]: ...

    @property
    def max_set_size(self) -> int: ...

    @property
    def tuned(self) -> TunedRows | None: ...

    def evidence(self, index: Index, log_confidence: Floats) -> Evidence:
        """What the rule reads off log-confidences (b, K, C) at one checkpoint, or at one checkpoint for each input."""
        ...

    def fit(self, examples: LabelledEvidence) -> Policy:
        """The policy learned from calibration examples."""
        ...

    def best(self, evidence: Evidence) -> Integers:
        """The best class (b,) by evidence of one checkpoint."""
        ...

    def rounding(self, base: Rounding) -> Rounding:
        """How far the numbers of one input may differ between two runs, from the rounding of log-confidences."""
        ...

    def promise(self) -> str:
        """What holds after calibration, in words."""
        ...

    def examples_needed(self, K: int = 1) -> int:
        """The least n with which K members could ever exclude a label or stop early."""
        ...


def coverage_promise(target: Fraction, class_conditional: bool, delta: Fraction | None) -> str:
    """The coverage guarantee in words."""
    whom = "for each true class, " if class_conditional else ""
    if delta is None:
        return (
            f"{whom}the answer holds the true class with probability at least {in_words(target)}, over the draw of the calibration "
            "examples and of a new example exchangeable with them."
        )
    separate = f" The probability {in_words(1 - delta)} is for each class by itself, not for all classes at once." if whom else ""
    return (
        f"{whom}with probability at least {in_words(1 - delta)} over the draw of the calibration examples, the answer holds the true class "
        f"of a new example with probability at least {in_words(target)}; calibration and new examples must be i.i.d.{separate}"
    )


def shortage(rule: Rule, examples: LabelledEvidence, members: int) -> str:
    """One sentence if the rule can never exclude a label with these examples, or with those of some class, group or block; else empty."""
    needed: float = rule.examples_needed(members)
    n, conditions, unit = len(examples), examples.conditions, "examples"
    counts = np.ones(n)
    if conditions.weights is not None and conditions.max_weight is not None:
        target = as_target(rule.target)  # type: ignore[attr-defined]
        needed, unit = float(target / (1 - target)), "times max_weight, as the sum of the weights,"
        counts = conditions.weights / conditions.max_weight
    parts: list[tuple[str, Sequence[object], Integers | Booleans]] = []
    if getattr(rule, "class_conditional", False):
        parts.append(("class", range(examples.classes), examples.labels))
    elif math.fsum(counts) < needed:
        if conditions.weights is None:
            return (
                f"With {n} calibration examples this rule can never exclude a label, so its sets stay full and nothing stops early: "
                f"it needs at least {needed}."
            )
        return (
            f"The weights sum to {math.fsum(counts):.4g} times max_weight, so this rule can never exclude a label and nothing stops "
            f"early: they must sum to at least {needed:.4g} times max_weight."
        )
    if conditions.groups is not None and conditions.group_names is not None:
        parts.append(("group", conditions.group_names, conditions.groups))
    gate = getattr(rule, "gate", None)
    if gate is not None and examples.evidence.log_risk is not None:
        early = gate.block_names[:-1]  # inputs that never look ready do not stop early anyway
        parts.append(("block", early, gate.opened(examples.evidence.log_risk)[1]))
    for what, names, cells in parts:
        inside = cells if cells.ndim == 2 else cells[:, None] == np.arange(len(names))
        totals = [math.fsum(counts[rows]) for rows in inside.T]
        rare = [f"{what} {name} has {total:g}" for name, total in zip(names, totals, strict=True) if total < needed]
        if rare:
            short = ", ".join(rare[:5]) + (", …" if len(rare) > 5 else "")
            return (
                f"{what.capitalize()}-conditional calibration needs at least {needed:g} {unit} of each {what}, but {short}: "
                f"the rule can never exclude a label by what it knows of such a {what}."
            )
    return ""


def warn_of(rule: Rule, examples: LabelledEvidence, members: int, policy: Policy | None = None) -> str:
    """Warn of what makes the rule useless with these calibration examples; the sentence of `shortage`, or why the policy stops nothing."""
    sentence, size, classes = shortage(rule, examples, members), rule.max_set_size, examples.classes
    if not sentence and isinstance(policy, CheckpointRisks) and policy.never_stops:
        sentence = (
            f"With these {len(examples)} calibration examples no checkpoint before the last one passes the test of accumulated, so nothing "
            "stops early: give more examples, a lower target or a larger delta."
        )
    if size >= classes:
        pointless = f"max_set_size is {size} and there are {classes} classes, so an answer may hold all of them and says nothing"
        warnings.warn(f"{pointless}: give at most {max(classes - 1, 1)}.", CalibrationWarning, stacklevel=3)
    if sentence:
        warnings.warn(sentence, CalibrationWarning, stacklevel=3)
    return sentence


def validate(rule: Any) -> None:
    """Check the settings that all rules share, and bring them to one form."""
    object.__setattr__(rule, "checkpoints", as_checkpoints(rule.checkpoints))
    object.__setattr__(rule, "max_set_size", as_max_set_size(rule.max_set_size))
    if hasattr(rule, "target") and getattr(rule, "loss", None) is None:
        object.__setattr__(rule, "target", as_target(rule.target))
    if hasattr(rule, "delta"):
        object.__setattr__(rule, "delta", as_delta(rule.delta))


def gather_evidence(rule: Rule, array: NDArray[Any], columns: Sequence[int]) -> Evidence:
    """The rule's evidence (n, M, ...) of inputs (n, ..., K, C), one checkpoint after another."""
    inputs = (np.ascontiguousarray(array[:, column], dtype=np.float64) for column in columns)
    return Evidence.stack([read_evidence(rule, index, values) for index, values in enumerate(inputs)])


def read_evidence(rule: Rule, index: Index, log_confidence: Floats) -> Evidence:
    """What the rule reads off its inputs; with a `Schedule`, off the members that have joined.

    nan is refused, because comparisons with it would silently drop classes.
    """
    evidence = _joined_evidence(rule, index, log_confidence)
    if _has_nan(evidence.values) or (evidence.log_risk is not None and _has_nan(evidence.log_risk)):
        raise InputError(f"the score or risk of this {type(rule).__name__} is nan for some inputs: check its constants.")
    return evidence


def _has_nan(values: Floats) -> bool:
    return bool(np.count_nonzero(np.isnan(values)))


def _joined_evidence(rule: Rule, index: Index, log_confidence: Floats) -> Evidence:
    """Evidence of the first k members at the look (t, k), and of all members without a schedule."""
    schedule = rule.checkpoints
    if not isinstance(schedule, Schedule):
        return rule.evidence(index, log_confidence)
    if not isinstance(index, np.ndarray):
        return rule.evidence(index, _first_members(log_confidence, schedule.members[index]))
    members = np.array(schedule.members)[index]
    parts = [np.flatnonzero(members == count) for count in np.unique(members)]
    if len(parts) <= 1:
        return rule.evidence(index, _first_members(log_confidence, int(members.max(initial=1))))
    evidence = [rule.evidence(index[rows], _first_members(log_confidence[rows], int(members[rows[0]]))) for rows in parts]
    return Evidence.joined(evidence, np.concatenate)[np.argsort(np.concatenate(parts))]


def _first_members(log_confidence: Floats, count: int) -> Floats:
    if log_confidence.shape[1] < count:
        given = log_confidence.shape[1]
        raise InputError(f"log_confidence has {given} members and the schedule looks at {count}: give all that have joined.")
    return np.ascontiguousarray(log_confidence[:, :count])


def refuse_used(rule: Rule, ids: ArrayLike | None, scored: RowScores, training: Overlap | None, what: str) -> None:
    """Refuse rows, by their ids or by their scores, that the rule's score or risk was tuned on, or that the members were trained on."""
    found = [] if rule.tuned is None else rule.tuned.overlaps("tuning", ids, scored)
    if reuse := first_reuse(found if training is None else [training, *found]):
        raise InputError(f"{what}: {reuse}")
