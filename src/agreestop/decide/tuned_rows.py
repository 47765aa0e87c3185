"""Which rows a tuned object has seen, so that calibration and evaluation can refuse them.

A row is marked by a 64-bit hash of its log-confidences at each checkpoint. Rate-coded rows may repeat by chance, silent ones above all; how
often is seen inside the tuning split itself: a row repeats at most as often as its cells do at the checkpoint where they repeat
least, and no rate below 4/n can be told from 0 by n rows. Only more overlap than that is called reuse; where no cell ever
repeats, as with scores that are not counts, a single row is enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agreestop.common.arrays import Booleans
from agreestop.common.errors import InputError
from agreestop.common.splitmix import mix

Marks = NDArray[np.uint64]


def _weights(count: int) -> Marks:
    return mix(np.arange(1, count + 1, dtype=np.uint64)) | np.uint64(1)


def mark_cells(log_confidence: NDArray[np.floating]) -> Marks:
    """One mark for each leading entry of an array (..., K, C), the same in float32 and float64."""
    flat = np.ascontiguousarray(log_confidence, dtype=np.float32).reshape(*log_confidence.shape[:-2], -1)
    bits = flat.view(np.uint32).astype(np.uint64)
    return np.asarray((mix(bits) * _weights(flat.shape[-1])).sum(axis=-1, dtype=np.uint64))


def join_marks(marks: Marks) -> Marks:
    """(n, M) marks of cells to (n,) marks of rows."""
    return np.asarray((mix(marks) * _weights(marks.shape[-1])).sum(axis=-1, dtype=np.uint64))


def mark_rows(log_confidence: NDArray[np.floating], columns: Sequence[int]) -> Marks:
    """One mark for each row of an array (n, ..., K, C), read at some of its checkpoints."""
    return join_marks(np.stack([mark_cells(log_confidence[:, column]) for column in columns], axis=1))


def _twin_rate(marks: Marks) -> float:
    """The share of entries that occur more than once, and four standard errors of it; 0 if none does."""
    _, counts = np.unique(marks, return_counts=True)
    share = float(counts[counts > 1].sum()) / len(marks)
    return min(1.0, share + 4 * math.sqrt(share / len(marks)))


@dataclass(frozen=True, eq=False)
class TunedRows:
    """Rows that something was tuned on: marks of their cells, (n, M), or, once cut to a rule's checkpoints, of the rows, (n,).

    `chance` is the rate at which fresh rows may repeat them, known once they are cut.
    """

    marks: Marks
    chance: float = 0.0

    @classmethod
    def of(cls, log_confidence: NDArray[np.floating]) -> TunedRows:
        """Marks of an array (n, M, K, C), in blocks."""
        blocks = range(0, len(log_confidence), 256)
        return cls(np.concatenate([mark_cells(log_confidence[start : start + 256]) for start in blocks]))

    @property
    def rows(self) -> Marks:
        """One mark for each row."""
        return self.marks if self.marks.ndim == 1 else join_marks(self.marks)

    def cut(self, columns: Sequence[int], fitted: int) -> TunedRows:
        """The same rows at some of the `fitted` checkpoints."""
        if self.marks.ndim == 2:
            some = self.marks[:, list(columns)]
            rates = [_twin_rate(column) for column in some.T]
            return TunedRows(join_marks(some), max(min(rates), 4 / len(some)) if any(rates) else 0.0)
        if list(columns) != list(range(fitted)):
            raise InputError("this score or risk was taken from a rule with other checkpoints: give it as it was fitted.")
        return self

    def also(self, other: TunedRows | None) -> TunedRows:
        """These rows and those of another tuned object with the same checkpoints."""
        if other is None:
            return self
        return TunedRows(np.concatenate([self.marks, other.marks[~self.seen(other.rows)]]), max(self.chance, other.chance))

    def seen(self, rows: Marks) -> Booleans:
        """Which of the given rows are among the tuned ones."""
        return np.isin(rows, self.rows)

    def reuse(self, rows: Marks) -> str:
        """A sentence if more of these rows than chance explains were tuned on, else an empty string."""
        seen, total, rate = int(self.seen(rows).sum()), len(rows), self.chance
        if seen <= total * rate + 4 * math.sqrt(total * rate * (1 - rate)):
            return ""
        return f"{seen} of the {total} rows were used for tuning: keep tuning, calibration and test data apart."
