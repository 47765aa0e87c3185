"""Which rows were used for tuning or for calibration, so that calibration and evaluation can refuse them.

Rows are recognised by their ids, where both sides have ids of one kind. A fresh row has an id of its own unless ids repeat among the rows
that were used.

Without ids, a row is marked by a 64-bit hash of its log-confidences at each checkpoint. Rate-coded rows may repeat by chance, silent ones
above all. The tuning split itself shows how often: a row repeats at most as often as its cells do at the checkpoint where they repeat
least, and n rows cannot distinguish a rate below 4/n from 0. Only more overlap than that is called reuse. Where no cell ever repeats, as
with scores that are not counts, a single row is enough.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import Booleans, InputError, mix

from .checks import as_times, columns_of
from .rule_files import KeptInFiles
from .schedules import Schedule

Marks = NDArray[np.uint64]


def _weights(count: int) -> Marks:
    return mix(np.arange(1, count + 1, dtype=np.uint64)) | np.uint64(1)


def mark_cells(log_confidence: NDArray[np.floating]) -> Marks:
    """One mark for each leading entry of an array (..., K, C), the same in float32 and float64."""
    with np.errstate(over="ignore"):
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


def kind_of_ids(ids: ArrayLike) -> str:
    """ "hash" for 64-bit hashes, which are unsigned, "number" for other whole numbers, "text" for strings."""
    dtype = np.asarray(ids).dtype
    return "hash" if dtype == np.uint64 else "number" if dtype.kind in "iu" else "text"


def _twin_rate(marks: Marks) -> float:
    """The share of entries that occur more than once, and four standard errors of it; 0 if none does."""
    _, counts = np.unique(marks, return_counts=True)
    share = float(counts[counts > 1].sum()) / len(marks)
    return min(1.0, share + 4 * math.sqrt(share / len(marks)))


def _chance(rates: Sequence[float], n: int) -> float:
    """The rate at which fresh rows may repeat n rows whose parts repeat at these rates."""
    return min(1.0, max(min(rates), 4 / n)) if any(rates) else 0.0


@dataclass(frozen=True)
class Overlap:
    """How many of `total` rows are among the rows that were used for something, `use`.

    by       what was compared: "ids", "scores", or "" where nothing could be
    chance   the rate at which fresh rows may look like those
    """

    use: str
    by: str = ""
    seen: int = 0
    total: int = 0
    chance: float = 0.0

    @property
    def by_chance(self) -> float:
        """The most rows that chance explains."""
        return self.total * self.chance + 4 * math.sqrt(self.total * self.chance * (1 - self.chance))

    @property
    def reuse(self) -> str:
        """A sentence if more rows were used than chance explains, else an empty string."""
        if self.seen <= self.by_chance:
            return ""
        return f"{self.seen} of the {self.total} rows were used for {self.use}: keep tuning, calibration and test data apart."

    @property
    def note(self) -> str:
        """A sentence on what could not be checked, else an empty string."""
        if not self.by:
            return f"Rows could not be compared with those used for {self.use}: there are no ids, or ids of another kind."
        if self.reuse or not self.chance:
            return ""
        if self.by == "ids":
            return f"{self.seen} of the {self.total} rows have ids of rows used for {self.use}; repeats among those explain as many."
        return (
            f"Rows were compared with those used for {self.use} by their scores, which repeat by chance: "
            f"up to {math.floor(self.by_chance)} reused rows would not be noticed; ids would show them."
        )


@dataclass(frozen=True, eq=False)
class TunedRows(KeptInFiles):
    """Rows that something was fitted on: marks of their cells, (n, M), or, once cut to a rule's checkpoints, of the rows, (n,).

    `chance` is the rate at which fresh rows may repeat them, known once they are cut. `ids` (n,) are marks of the rows' ids, where known,
    and `id_kind` says what the ids are: hashes and numbers of one's own cannot be compared.
    """

    marks: Marks
    chance: float = 0.0
    ids: Marks | None = None
    id_kind: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.chance <= 1:
            raise ValueError(f"a chance of {self.chance}")

    @classmethod
    def of(cls, log_confidence: NDArray[np.floating], ids: ArrayLike | None = None) -> Self:
        """Marks of an array (n, M, K, C), one checkpoint after another."""
        marks = np.stack([mark_cells(log_confidence[:, column]) for column in range(log_confidence.shape[1])], axis=1)
        return cls(marks) if ids is None else cls(marks, ids=mark_ids(ids), id_kind=kind_of_ids(ids))

    def __repr__(self) -> str:
        return f"TunedRows(n={len(self.marks)})"

    @property
    def rows(self) -> Marks:
        """One mark for each row."""
        return self.marks if self.marks.ndim == 1 else join_marks(self.marks)

    def cut(self, columns: Sequence[int], fitted: int) -> Self:
        """The same rows at some of the `fitted` checkpoints."""
        if self.marks.ndim == 2:
            chosen = self.marks[:, list(columns)]
            chance = _chance([_twin_rate(column) for column in chosen.T], len(chosen))
            return replace(self, marks=join_marks(chosen), chance=chance)
        if list(columns) != list(range(fitted)):
            raise InputError("this score or risk was taken from a rule with other checkpoints: give it as it was fitted.")
        return self

    def also(self, other: Self | None) -> Self:
        """These rows and those of another tuned object with the same checkpoints."""
        if other is None:
            return self
        marks = np.concatenate([self.marks, other.marks[~self.seen(other.rows)]])
        comparable = self.ids is not None and other.ids is not None and self.id_kind == other.id_kind
        ids = np.union1d(self.ids, other.ids) if comparable else None  # type: ignore[arg-type]
        return replace(self, marks=marks, chance=max(self.chance, other.chance), ids=ids)

    def seen(self, rows: Marks) -> Booleans:
        """Which of the given rows are among these."""
        return np.isin(rows, self.rows, kind="sort")  # the other method overflows on 64-bit words in numpy 2.0

    def overlap(self, use: str, ids: ArrayLike | None, marks: Callable[[], Marks] | None = None) -> Overlap:
        """Compare rows with these, which were used for `use`: by ids of the same kind, else by `marks()` of their scores."""
        if ids is not None and self.ids is not None and self.id_kind in ("", kind_of_ids(ids)):
            seen = np.isin(mark_ids(ids), self.ids, kind="sort")
            return Overlap(use, "ids", int(seen.sum()), len(seen), _chance([_twin_rate(self.ids)], len(self.ids)))
        if marks is None:
            return Overlap(use)
        seen = self.seen(marks())
        return Overlap(use, "scores", int(seen.sum()), len(seen), self.chance)


Fitted = TypeVar("Fitted", bound=Any)


def cut_fitted(fitted: Fitted, checkpoints: tuple[float, ...]) -> Fitted:
    """A fitted score or risk restricted to a rule's checkpoints: every field with an axis of checkpoints is cut.

    Without named times the object must have been fitted for exactly as many checkpoints as the rule has.
    """
    per_checkpoint = [field.name for field in fields(fitted) if field.metadata.get("per_checkpoint")]
    available = len(getattr(fitted, per_checkpoint[0]))
    kind = type(fitted).__name__
    if isinstance(checkpoints, Schedule) and fitted.times is not None and not isinstance(fitted.times, Schedule):
        raise InputError(
            f"the {kind} was fitted with all members at every time, but the rule has a schedule: fit it on scores.at(schedule)."
        )
    columns = columns_of(checkpoints, as_times(fitted.times, available, kind, checkpoints), kind)
    changes: dict[str, Any] = {"times": checkpoints, **{name: getattr(fitted, name)[columns] for name in per_checkpoint}}
    for field in fields(fitted):
        if isinstance(rows := getattr(fitted, field.name), TunedRows):
            changes[field.name] = rows.cut(columns, available)
    return replace(fitted, **changes)
