"""Calibration examples, and what is known of them beside their scores: labels, groups and weights.

A promise for each group, or for each class, takes its threshold from the examples of that group or class (see `thresholds`).
"""

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import Booleans, Floats, InputError, Integers, as_array, as_floats, as_texts, is_number

from .evidence import Evidence
from .levels import in_words
from .rounding import Rounding


@dataclass(frozen=True, eq=False)
class Conditions:
    """What is known of n calibration examples beside their labels.

    groups       (n, G) which groups an example belongs to; None for one group that holds all
    group_names  (G,)
    weights      (n,) dQ/dP of each example; None for a weight of 1
    max_weight   the largest weight that any input can have
    final        whether the labels are the ensemble's own best classes at the last checkpoint
    """

    groups: Booleans | None = None
    group_names: tuple[str, ...] | None = None
    weights: Floats | None = None
    max_weight: float | None = None
    final: bool = False

    @classmethod
    def of(cls, n: int, groups: ArrayLike | None, weights: ArrayLike | None, max_weight: float | None, final: bool) -> Self:
        """Check what `calibrate` was given for n examples."""
        names = None if groups is None else name_groups(groups, n)
        members = None if groups is None or names is None else find_groups(groups, names, n)
        if weights is None:
            if max_weight is not None:
                raise InputError("max_weight is given without weights: give one weight for each calibration example.")
            return cls(members, names, final=final)
        array = as_floats(weights, "weights")
        if array.shape != (n,):
            raise InputError(f"weights has shape {array.shape} for {n} examples: give one weight for each.")
        if max_weight is None:
            raise InputError("weights needs max_weight, the largest weight that any input can have: it must be known beforehand.")
        if not is_number(max_weight) or not max_weight > 0:
            raise InputError(f"max_weight is {max_weight!r}: give a finite number above 0.")
        if not ((array >= 0) & (array <= max_weight)).all():
            wrong = array[~((array >= 0) & (array <= max_weight))][0]
            raise InputError(f"weights holds {wrong:g}: every weight must lie between 0 and max_weight, {max_weight:g}.")
        return cls(members, names, array, float(max_weight), final)

    def rows(self, rows: Integers | Booleans) -> Self:
        """Those of some of the examples."""
        chosen = {name: part[rows] for name in ("groups", "weights") if (part := getattr(self, name)) is not None}
        return replace(self, **chosen) if chosen else self

    @property
    def effective_size(self) -> float | None:
        """(Σw)²/Σw², the number of equally weighted examples that would say as much; None without weights."""
        if self.weights is None:
            return None
        largest = float(self.weights.max())
        shares = self.weights / largest if largest else self.weights  # so that squares of small weights do not vanish
        return float(shares.sum()) ** 2 / float((shares**2).sum()) if largest else 0.0

    def words(self, promise: str, delta: Fraction | None = None) -> str:
        """A promise, given the calibration data if there is a δ, with what the conditions change of it."""
        if self.final:
            promise = promise.replace("the true class", "the class that the ensemble itself answers best at the last checkpoint")
            promise = promise.replace("for each true class", "for each such class")
        if self.weights is not None:
            shifted = "a new example whose distribution has the given weights as its density against theirs"
            promise = promise.replace("a new example exchangeable with them.", f"{shifted}; estimated weights carry no promise.")
        if self.groups is None:
            return promise
        note = "" if delta is None else f" The probability {in_words(1 - delta)} is for each group by itself, not for all groups at once."
        return f"for each group, {promise}{note}"

    @property
    def used(self) -> str:
        """The names of the conditions that are more than plain labels, in words; empty for none."""
        parts = [name for name in ("groups", "weights") if getattr(self, name) is not None]
        return " and ".join(parts)


@dataclass(frozen=True, eq=False)
class LabelledEvidence:
    """Evidence of n examples at all M checkpoints, (n, M, ...), their labels (n,), and what else is known of them.

    rounding: of the log-confidences that the evidence was read from
    """

    evidence: Evidence
    labels: Integers
    classes: int
    conditions: Conditions = field(default_factory=Conditions)
    rounding: Rounding = field(default_factory=Rounding)

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, rows: Integers | Booleans) -> Self:
        """Some of the examples."""
        return replace(self, evidence=self.evidence[rows], labels=self.labels[rows], conditions=self.conditions.rows(rows))

    def cells(self, class_conditional: bool) -> list[Integers]:
        """The rows that share a quantile: all, or those of each class."""
        if not class_conditional:
            return [np.arange(len(self))]
        return [np.flatnonzero(self.labels == label) for label in range(self.classes)]


def name_groups(groups: ArrayLike, n: int) -> tuple[str, ...]:
    """The names of the groups of n inputs: each value of (n,), or numbers for the columns of (n, G) booleans."""
    array = _as_groups(groups, n)
    return tuple(map(str, range(array.shape[1]))) if array.ndim == 2 else tuple(np.unique(array.astype(np.str_)).tolist())


def find_groups(groups: ArrayLike, names: tuple[str, ...], n: int) -> Booleans:
    """(n, G): which of the named groups each input belongs to. An input of an unknown group belongs to none."""
    array = _as_groups(groups, n)
    if array.ndim == 1:
        if array.dtype.kind in "iu" and not any(_is_whole(name) for name in names):
            raise InputError(f"groups holds whole numbers, but the rule knows groups by name, such as {names[0]!r}: give names.")
        return np.asarray(array.astype(np.str_)[:, None] == np.array(names, dtype=np.str_))
    if names != tuple(map(str, range(len(names)))):
        raise InputError(f"groups has columns, but the rule knows groups by name, such as {names[0]!r}: give one name for each input.")
    if array.shape[1] != len(names):
        raise InputError(f"groups has {array.shape[1]} columns and the rule knows {len(names)} groups: give one column for each.")
    return array.astype(np.bool_)


def _is_whole(name: str) -> bool:
    return name.removeprefix("-").isdecimal()


def _as_groups(groups: ArrayLike, n: int) -> NDArray[Any]:
    array = as_texts(as_array(groups, "groups"), "groups")
    fits = (array.ndim == 1 and array.dtype.kind in "iuU") or (array.ndim == 2 and array.dtype == np.bool_ and array.shape[1] > 0)
    if not fits:
        raise InputError(f"groups has shape {array.shape} and dtype {array.dtype}: give (n,) whole numbers or strings, or (n, G) booleans.")
    if array.dtype.kind == "U" and any("\ud800" <= letter <= "\udfff" for name in np.unique(array).tolist() for letter in name):
        raise InputError("groups holds a name that is no valid text: give names that can be written to a file.")
    if len(array) != n:
        raise InputError(f"groups has {len(array)} entries for {n} inputs: give one for each.")
    return array
