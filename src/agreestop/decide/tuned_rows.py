"""Which rows a tuned object has seen, so that calibration and evaluation can refuse them.

Rows are recognised by their ids, where both sides have ids. A fresh row has an id of its own unless ids repeat inside the tuning split.

Without ids, a row is marked by a 64-bit hash of its log-confidences at each checkpoint. Rate-coded rows may repeat by chance, silent ones
above all. The tuning split itself shows how often: a row repeats at most as often as its cells do at the checkpoint where they repeat
least, and n rows cannot distinguish a rate below 4/n from 0. Only more overlap than that is called reuse. Where no cell ever repeats, as
with scores that are not counts, a single row is enough.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import Booleans, InputError, mix

from .checks import columns_of
from .rule_files import KeptInFiles

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


def mark_ids(ids: ArrayLike) -> Marks:
    """Ids as 64-bit numbers: whole numbers stay what they are, strings are hashed."""
    array = np.asarray(ids)
    if array.dtype.kind in "iu":
        return array.astype(np.uint64)
    digests = b"".join(hashlib.blake2b(str(text).encode(), digest_size=8).digest() for text in array)
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def _twin_rate(marks: Marks) -> float:
    """The share of entries that occur more than once, and four standard errors of it; 0 if none does."""
    _, counts = np.unique(marks, return_counts=True)
    share = float(counts[counts > 1].sum()) / len(marks)
    return min(1.0, share + 4 * math.sqrt(share / len(marks)))


def _chance(rates: Sequence[float], n: int) -> float:
    """The rate at which fresh rows may repeat n rows whose parts repeat at these rates."""
    return max(min(rates), 4 / n) if any(rates) else 0.0


def _sentence(seen: int, total: int, rate: float) -> str:
    """A sentence if more rows were seen than chance explains, else an empty string."""
    if seen <= total * rate + 4 * math.sqrt(total * rate * (1 - rate)):
        return ""
    return f"{seen} of the {total} rows were used for tuning: keep tuning, calibration and test data apart."


@dataclass(frozen=True, eq=False)
class TunedRows(KeptInFiles):
    """Rows that something was tuned on: marks of their cells, (n, M), or, once cut to a rule's checkpoints, of the rows, (n,).

    `chance` is the rate at which fresh rows may repeat them, known once they are cut. `ids` (n,) are marks of the rows' ids, where known.
    """

    marks: Marks
    chance: float = 0.0
    ids: Marks | None = None

    @classmethod
    def of(cls, log_confidence: NDArray[np.floating], ids: ArrayLike | None = None) -> TunedRows:
        """Marks of an array (n, M, K, C), in blocks."""
        blocks = range(0, len(log_confidence), 256)
        marks = np.concatenate([mark_cells(log_confidence[start : start + 256]) for start in blocks])
        return cls(marks, ids=None if ids is None else mark_ids(ids))

    @property
    def rows(self) -> Marks:
        """One mark for each row."""
        return self.marks if self.marks.ndim == 1 else join_marks(self.marks)

    def cut(self, columns: Sequence[int], fitted: int) -> TunedRows:
        """The same rows at some of the `fitted` checkpoints."""
        if self.marks.ndim == 2:
            chosen = self.marks[:, list(columns)]
            return TunedRows(join_marks(chosen), _chance([_twin_rate(column) for column in chosen.T], len(chosen)), self.ids)
        if list(columns) != list(range(fitted)):
            raise InputError("this score or risk was taken from a rule with other checkpoints: give it as it was fitted.")
        return self

    def also(self, other: TunedRows | None) -> TunedRows:
        """These rows and those of another tuned object with the same checkpoints."""
        if other is None:
            return self
        marks = np.concatenate([self.marks, other.marks[~self.seen(other.rows)]])
        ids = None if self.ids is None or other.ids is None else np.union1d(self.ids, other.ids)
        return TunedRows(marks, max(self.chance, other.chance), ids)

    def seen(self, rows: Marks) -> Booleans:
        """Which of the given rows are among the tuned ones."""
        return np.isin(rows, self.rows)

    def reuse(self, rows: Marks) -> str:
        """A sentence if more of these rows than chance explains were tuned on, else an empty string."""
        return _sentence(int(self.seen(rows).sum()), len(rows), self.chance)

    def knows(self, ids: ArrayLike | None) -> bool:
        """Whether rows with these ids can be recognised by them."""
        return ids is not None and self.ids is not None

    def reuse_of(self, ids: ArrayLike | None) -> str:
        """The same from the rows' ids; an empty string if either side has none."""
        if ids is None or self.ids is None:
            return ""
        marks = mark_ids(ids)
        return _sentence(int(np.isin(marks, self.ids).sum()), len(marks), _chance([_twin_rate(self.ids)], len(self.ids)))


Fitted = TypeVar("Fitted", bound=Any)


def cut_fitted(fitted: Fitted, checkpoints: tuple[float, ...]) -> Fitted:
    """A fitted score or risk restricted to a rule's checkpoints: every field with an axis of checkpoints is cut.

    Without named times the object must have been fitted for exactly as many checkpoints as the rule has.
    """
    per_checkpoint = [field.name for field in fields(fitted) if field.metadata.get("per_checkpoint")]
    available = len(getattr(fitted, per_checkpoint[0]))
    columns = columns_of(checkpoints, available, fitted.times, type(fitted).__name__)
    changes: dict[str, Any] = {"times": checkpoints, **{name: getattr(fitted, name)[columns] for name in per_checkpoint}}
    for field in fields(fitted):
        if isinstance(rows := getattr(fitted, field.name), TunedRows):
            changes[field.name] = rows.cut(columns, available)
    return replace(fitted, **changes)
