"""What every rule is: settings that know what to read off an input, how labelled evidence becomes a policy, and what then holds."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from agreestop.common import Floats, Integers

from .checks import as_checkpoints, as_max_set_size
from .evidence import Evidence, Index
from .levels import as_delta, as_target, in_words
from .policies import Policy
from .tuned_rows import TunedRows


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

    def fit(self, evidence: Evidence, labels: Integers, classes: int) -> Policy:
        """The policy learned from calibration evidence of all checkpoints, (n, M, ...), with labels (n,)."""
        ...

    def promise(self) -> str:
        """What holds after calibration, in words."""
        ...

    def examples_needed(self, K: int = 1) -> int:
        """The least n with which K members could ever exclude a label or stop early."""
        ...


def groups_of(labels: Integers, classes: int, class_conditional: bool) -> list[Integers]:
    """The rows that share a quantile: all, or one group for each class."""
    if not class_conditional:
        return [np.arange(len(labels))]
    return [np.flatnonzero(labels == label) for label in range(classes)]


def coverage_promise(target: Fraction, class_conditional: bool, delta: Fraction | None) -> str:
    """The coverage guarantee in words."""
    whom = "for each true class, " if class_conditional else ""
    if delta is None:
        return (
            f"{whom}the answer holds the true class with probability at least {in_words(target)}, over the draw of the calibration "
            "examples and of a new example exchangeable with them."
        )
    return (
        f"{whom}with probability at least {in_words(1 - delta)} over the draw of the calibration examples, the answer holds the true class "
        f"of a new example with probability at least {in_words(target)}; calibration and new examples must be i.i.d."
    )


def shortage(rule: Rule, labels: Integers, members: int, classes: int) -> str:
    """One sentence if the rule can never exclude a label with these calibration examples, else an empty string."""
    needed = rule.examples_needed(members)
    if not getattr(rule, "class_conditional", False):
        if len(labels) >= needed:
            return ""
        return (
            f"With {len(labels)} calibration examples this rule can never exclude a label, so its sets stay full and nothing stops early: "
            f"it needs at least {needed}."
        )
    counts = np.bincount(labels, minlength=classes)
    rare = np.flatnonzero(counts < needed)
    if not len(rare):
        return ""
    names = ", ".join(f"class {label} has {counts[label]}" for label in rare[:5]) + (", …" if len(rare) > 5 else "")
    return (
        f"Class-conditional calibration needs at least {needed} examples of each class, but {names}: "
        "the rule can never exclude a label by what it knows of such a class."
    )


def validate(rule: Any) -> None:
    """Check the settings that all rules share, and bring them to one form."""
    object.__setattr__(rule, "checkpoints", as_checkpoints(rule.checkpoints))
    object.__setattr__(rule, "max_set_size", as_max_set_size(rule.max_set_size))
    if hasattr(rule, "target"):
        object.__setattr__(rule, "target", as_target(rule.target))
    if hasattr(rule, "delta"):
        object.__setattr__(rule, "delta", as_delta(rule.delta))
