"""Rules that use only the confidence, for comparison: DC-SNN and SEENN-I. Neither has a guarantee.

stop at the first t with max_c f_c ≥ p_th, else at the last; answer the top I classes, lowest
index on ties
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from agreestop.common import (
    Booleans,
    Floats,
    InputError,
    KeptInFiles,
    as_floats,
    is_number,
    set_fields,
)
from agreestop.common.levels import Rounding, Target, as_target

from .calibration import Uncalibrated
from .checkpoints import Evidence, Index, LabelledEvidence, Policy, State, Verdict
from .confidence import MODEL_AVERAGE
from .rule import PlainRule, Reduced, Rule, Terms, validate

GRID = tuple(i / 100 for i in range(1, 100))


@dataclass(frozen=True, eq=False)
class ConfidenceThreshold(Policy, KeptInFiles):
    """Stop once the largest pooled log-confidence reaches the threshold; answer I classes."""

    threshold: float
    max_set_size: int

    @property
    def thresholds(self) -> Floats:
        return np.array([self.threshold])

    def judge(
        self, index: Index, last: bool | Booleans, evidence: Evidence, state: State
    ) -> Verdict:
        confidence = evidence.values
        order = np.argsort(np.negative(confidence), axis=1, kind="stable")[:, : self.max_set_size]
        sets = np.zeros(confidence.shape, dtype=bool)
        sets[np.arange(len(sets))[:, None], order] = True
        return Verdict((confidence.max(axis=1) >= self.threshold) | last, sets, state)

    def stopping(self, evidence: Evidence) -> Booleans | None:
        return np.asarray(evidence.values.max(axis=-1) >= self.threshold)


class ConfidenceRule(Uncalibrated):
    """What both rules share: they read the members' average confidence and promise nothing."""

    def evidence(self, index: Index, log_confidence: Floats) -> Evidence:
        return Evidence(MODEL_AVERAGE.pool(log_confidence))

    def rounding(self, base: Rounding) -> Rounding:
        return base

    def examples_needed(self, K: int = 1) -> int:
        """One example is enough for a threshold; no number of them makes it a guarantee."""
        return 1

    def plain(self, policy: Policy) -> PlainRule:
        offsets = np.zeros(len(self.checkpoints))
        threshold = np.atleast_2d(policy.thresholds)
        return PlainRule("confidence", MODEL_AVERAGE.r, None, offsets, threshold)


@dataclass(frozen=True, eq=False, repr=False)
class DCSNN(ConfidenceRule, KeptInFiles):
    """Stop when the top confidence reaches p_th.

    p_th is the smallest of the grid whose calibration accuracy is at least the target, or if there
    is none, the smallest of greatest calibration accuracy. Ensembles average their confidences.

    Parameters
    ----------
    target : float, str or Fraction
        The accuracy to reach on the calibration data.
    checkpoints : sequence of float
        Times at which the rule may stop.
    max_set_size : int
        It answers its top `max_set_size` classes.
    grid : sequence of float
        The p_th that are tried.

    Notes
    -----
    There is no guarantee: the accuracy is the one on the calibration data.

    Examples
    --------
    >>> import agreestop as ag
    >>> scores = ag.simulate_scores(200, steps=20, K=3, C=4)
    >>> ag.DCSNN(0.9, range(1, 21), 1).calibrate(scores).guarantee[:12]
    'no guarantee'
    """

    target: Target
    checkpoints: Sequence[float]
    max_set_size: int
    grid: Sequence[float] = GRID

    kinds: ClassVar = {"dcsnn": ("target",)}

    def __post_init__(self) -> None:
        validate(self)
        grid = tuple(as_floats(self.grid, "grid").ravel().tolist())
        inside = all(0 < value <= 1 for value in grid)
        if not grid or not inside or list(grid) != sorted(set(grid)):
            raise InputError(
                "grid must hold increasing confidences between 0 and 1, for example (0.5, 0.6, "
                "0.7, 0.8, 0.9)."
            )
        set_fields(self, grid=grid)

    @property
    def terms(self) -> Terms:
        return Terms("dcsnn", as_target(self.target), promises=False)

    def reduce(self, examples: LabelledEvidence) -> Reduced:
        confidence = examples.evidence.values
        right = confidence.argmax(axis=2) == examples.labels[:, None]
        return {"top": confidence.max(axis=2), "right": right}

    def fit(self, reduced: Reduced, examples: LabelledEvidence) -> Policy:
        rows, target = np.arange(len(examples)), self.exact_target
        best, chosen = -1, self.grid[0]
        for threshold in self.grid:
            reached = reduced["top"] >= math.log(threshold)
            reached[:, -1] = True
            correct = int(reduced["right"][rows, reached.argmax(axis=1)].sum())
            if correct >= target * len(rows):
                chosen = threshold
                break
            if correct > best:
                best, chosen = correct, threshold
        return ConfidenceThreshold(math.log(chosen), self.max_set_size)

    def promise(self) -> str:
        return (
            "no guarantee: the confidence threshold met the target accuracy on the calibration "
            "data, or came as near as it could."
        )


@dataclass(frozen=True, eq=False, repr=False)
class SEENN(ConfidenceRule, KeptInFiles):
    """SEENN-I: stop when the top confidence reaches a threshold that the user fixed.

    Parameters
    ----------
    threshold : float
        The confidence at which to stop, for a time budget.
    checkpoints : sequence of float
        Times at which the rule may stop.
    max_set_size : int
        It answers its top `max_set_size` classes.

    Notes
    -----
    Calibration data only say how many members and classes there are. There is no guarantee.

    Examples
    --------
    >>> import agreestop as ag
    >>> scores, test = ag.simulate_scores(200, steps=20, K=3, C=4).split(0.5, 0.5)
    >>> len(ag.SEENN(0.8, range(1, 21), 1).calibrate(scores).decide(test))
    100
    """

    threshold: float
    checkpoints: Sequence[float]
    max_set_size: int

    kinds: ClassVar = {"seenn": ("threshold",)}

    def __post_init__(self) -> None:
        validate(self)
        if not is_number(self.threshold) or not 0 < self.threshold <= 1:
            raise InputError(
                f"threshold is {self.threshold!r:.80}: give the confidence at which to stop, "
                "between 0 and 1."
            )

    @property
    def terms(self) -> Terms:
        return Terms("seenn", promises=False)

    def reduce(self, examples: LabelledEvidence) -> Reduced:
        return {}

    def fit(self, reduced: Reduced, examples: LabelledEvidence) -> Policy:
        return ConfidenceThreshold(math.log(self.threshold), self.max_set_size)

    def promise(self) -> str:
        return "no guarantee: the confidence threshold was fixed by hand."

    @classmethod
    def build(cls, kind: str, **settings: Any) -> Rule:
        if "threshold" not in settings:
            raise InputError(
                "the rule seenn stops at a confidence that you fix: give a threshold, for example "
                "0.9."
            )
        return cls(**settings)
