"""Rules that use only the confidence, for comparison: DC-SNN and SEENN-I. Neither has a guarantee.

stop at the first t with max_c f_c ≥ p_th, else at the last; answer the top I classes, lowest index on ties
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from agreestop.common import Floats, InputError, Integers, as_floats

from .calibration import Uncalibrated
from .conditions import LabelledEvidence
from .evidence import Evidence, Policy
from .levels import Target, as_target
from .merging import MODEL_AVERAGE
from .policies import ConfidenceThreshold
from .ranking import Index
from .rounding import Rounding
from .rule_files import KeptInFiles
from .rules import validate

GRID = tuple(i / 100 for i in range(1, 100))


class ConfidenceRule(Uncalibrated):
    """What both rules share: they read the members' average confidence, and nothing of them is tuned."""

    tuned: ClassVar[None] = None

    def evidence(self, index: Index, log_confidence: Floats) -> Evidence:
        return Evidence(MODEL_AVERAGE.pool(log_confidence))

    def best(self, evidence: Evidence) -> Integers:
        """The class (b,) of the largest averaged confidence, from evidence of one checkpoint."""
        return evidence.values.argmax(axis=-1)

    def rounding(self, base: Rounding) -> Rounding:
        """How far averaged confidences of one input may differ between two runs."""
        return base

    def examples_needed(self, K: int = 1) -> int:
        """One example is enough to have a threshold; no number of them makes it a guarantee."""
        return 1


@dataclass(frozen=True, eq=False, repr=False)
class DCSNN(ConfidenceRule, KeptInFiles):
    """Stop when the top confidence reaches p_th: the smallest of the grid whose calibration accuracy is at least the target.

    If none is, the smallest p_th of greatest calibration accuracy. Ensembles average their confidences. It answers its top
    `max_set_size` classes. There is no guarantee: the accuracy is that of the calibration data.
    """

    target: Target
    checkpoints: Sequence[float]
    max_set_size: int
    grid: Sequence[float] = GRID

    def __post_init__(self) -> None:
        validate(self)
        grid = tuple(as_floats(self.grid, "grid").ravel().tolist())
        if not grid or not all(0 < value <= 1 for value in grid) or list(grid) != sorted(set(grid)):
            raise InputError("grid must hold increasing confidences between 0 and 1, for example (0.5, 0.6, 0.7, 0.8, 0.9).")
        object.__setattr__(self, "grid", grid)

    def fit(self, examples: LabelledEvidence) -> Policy:
        confidence, labels = examples.evidence.values, examples.labels
        top, right = confidence.max(axis=2), confidence.argmax(axis=2) == labels[:, None]
        rows = np.arange(len(labels))
        best, chosen = -1, self.grid[0]
        for threshold in self.grid:
            reached = top >= math.log(threshold)
            reached[:, -1] = True
            correct = int(right[rows, reached.argmax(axis=1)].sum())
            if correct >= as_target(self.target) * len(labels):
                chosen = threshold
                break
            if correct > best:
                best, chosen = correct, threshold
        return ConfidenceThreshold(math.log(chosen), self.max_set_size)

    def promise(self) -> str:
        return "no guarantee: the confidence threshold met the target accuracy on the calibration data, or came as near as it could."


@dataclass(frozen=True, eq=False, repr=False)
class SEENN(ConfidenceRule, KeptInFiles):
    """SEENN-I: stop when the top confidence reaches a threshold that the user fixed for a time budget; answer the top classes.

    Calibration data only say how many members and classes there are. There is no guarantee.
    """

    threshold: float
    checkpoints: Sequence[float]
    max_set_size: int

    def __post_init__(self) -> None:
        validate(self)
        if isinstance(self.threshold, bool) or not isinstance(self.threshold, (int, float)) or not 0 < self.threshold <= 1:
            raise InputError(f"threshold is {self.threshold!r}: give the confidence at which to stop, between 0 and 1.")

    def fit(self, examples: LabelledEvidence) -> Policy:
        return ConfidenceThreshold(math.log(self.threshold), self.max_set_size)

    def promise(self) -> str:
        return "no guarantee: the confidence threshold was fixed by hand."
