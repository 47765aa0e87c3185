"""Calibration examples, and what is known of them beside their scores.

Labels, groups, weights and people. A promise for each group, or for each class, takes its threshold
from the examples of that group or class (see `thresholds`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import (
    Booleans,
    Floats,
    InputError,
    Integers,
    as_array,
    as_floats,
    as_row_names,
    as_texts,
    is_number,
)
from agreestop.common.levels import Target, as_target, in_words
from agreestop.common.rounding import Rounding

from .checkpoints import Evidence


@dataclass(frozen=True, eq=False)
class Conditions:
    """What is known of n calibration examples beside their labels.

    groups       (n, G) which groups an example belongs to; None for one group that holds all
    group_names  (G,)
    weights      (n,) dQ/dP of each example; None for a weight of 1
    max_weight   the largest weight that any input can have
    people       (n,) the person of each example, from 0; None where rows are exchangeable
    for_people   the share of new people for whom the promise holds; None for a promise about rows
    final        whether labels are the ensemble's own best classes at the last checkpoint
    """

    groups: Booleans | None = None
    group_names: tuple[str, ...] | None = None
    weights: Floats | None = None
    max_weight: float | None = None
    people: Integers | None = None
    for_people: Fraction | None = None
    final: bool = False

    @classmethod
    def of(
        cls,
        n: int,
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        max_weight: float | None = None,
        people: ArrayLike | None = None,
        for_people: Target | None = None,
        final: bool = False,
    ) -> Self:
        """Check what `calibrate` was given for n examples."""
        names = None if groups is None else name_groups(groups, n)
        members = None if groups is None or names is None else find_groups(groups, names, n)
        found = cls(members, names, final=final)
        if weights is not None:
            found = replace(
                found, weights=_as_weights(weights, max_weight, n), max_weight=max_weight
            )
        elif max_weight is not None:
            raise InputError(
                "max_weight is given without weights: give one weight for each calibration example."
            )
        if people is None and for_people is not None:
            raise InputError("for_people is given without people: give the person of each example.")
        if people is None:
            return found
        if weights is not None:
            raise InputError("there is no promise with both people and weights: leave one out.")
        found = replace(found, people=as_people(people, n))
        return found if for_people is None else replace(found, for_people=_as_share(for_people))

    def rows(self, rows: Integers | Booleans) -> Self:
        """What is known of some of the examples."""
        return type(self)(
            None if self.groups is None else self.groups[rows],
            self.group_names,
            None if self.weights is None else self.weights[rows],
            self.max_weight,
            None if self.people is None else self.people[rows],
            self.for_people,
            self.final,
        )

    @property
    def effective_size(self) -> float | None:
        """(Σw)²/Σw², the number of equally weighted examples that would say as much, or None."""
        if self.weights is None:
            return None
        largest = float(self.weights.max())
        if not largest:
            return 0.0
        shares = self.weights / largest  # so that squares of small weights do not vanish
        return float(shares.sum()) ** 2 / float((shares**2).sum())

    @property
    def used(self) -> str:
        """The names of the conditions that are more than plain labels, in words."""
        known = {"groups": self.groups, "weights": self.weights, "people": self.people}
        return " and ".join(name for name, part in known.items() if part is not None)

    def words(self, promise: str, target: Fraction | None, delta: Fraction | None) -> str:
        """A promise with what the conditions change of it."""
        if self.people is not None and target is not None:
            promise = _words_for_people(promise, target, self.for_people)
        if self.final:
            class_at_end = "the class that the ensemble itself answers best at the last checkpoint"
            promise = promise.replace("the true class", class_at_end)
            promise = promise.replace("for each true class", "for each such class")
        if self.weights is not None:
            shifted = (
                "a new example whose distribution has the given weights as its density against "
                "theirs; estimated weights carry no promise."
            )
            promise = promise.replace("a new example exchangeable with them.", shifted)
        if self.groups is None:
            return promise
        note = ""
        if delta is not None:
            each = "is for each group by itself, not for all groups at once."
            note = f" The probability {in_words(1 - delta)} {each}"
        return f"for each group, {promise}{note}"


def _words_for_people(promise: str, target: Fraction, for_people: Fraction | None) -> str:
    draw = "over the draw of the calibration people and of a new person exchangeable with them"
    rows = "the rows of one person must be exchangeable with each other"
    if for_people is None:
        old = (
            "over the draw of the calibration examples and of a new example exchangeable with them."
        )
        return f"for a row of a new person, {promise.replace(old, f'{draw}; {rows}.')}"
    wrong = "miss the true class" if "the true class" in promise else "are wrong"
    _, _, more = promise.partition(". ")
    return (
        f"with probability at least {in_words(for_people)}, {draw}, at most a share "
        f"{in_words(1 - target)} of the answers for the new person {wrong}; {rows}, and a new "
        f"person must have as many rows as those of calibration.{' ' * bool(more)}{more}"
    )


@dataclass(frozen=True, eq=False)
class LabelledEvidence:
    """Evidence of n examples at all M checkpoints, (n, M, ...), and their labels (n,).

    conditions  what else is known of the examples
    rounding    of the log-confidences that the evidence was read from
    loss        (n, M) what stopping at each checkpoint costs, for rules without classes
    """

    evidence: Evidence
    labels: Integers
    classes: int
    conditions: Conditions = field(default_factory=Conditions)
    rounding: Rounding = field(default_factory=Rounding)
    loss: Floats | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, rows: Integers | Booleans) -> Self:
        """Some of the examples."""
        evidence, loss = self.evidence[rows], None if self.loss is None else self.loss[rows]
        known = self.conditions.rows(rows)
        return replace(
            self, evidence=evidence, labels=self.labels[rows], conditions=known, loss=loss
        )

    def without_evidence(self, rows: Integers) -> Self:
        """Some of the examples, of which only labels and conditions are needed."""
        labels, known = self.labels[rows], self.conditions.rows(rows)
        nothing = Evidence(np.empty((len(labels), 0, 0)))
        return replace(self, evidence=nothing, labels=labels, conditions=known, loss=None)

    def cells(self, class_conditional: bool) -> list[Integers]:
        """The rows that share a quantile: all, or the rows of each class."""
        if not class_conditional:
            return [np.arange(len(self))]
        return [np.flatnonzero(self.labels == label) for label in range(self.classes)]


def name_groups(groups: ArrayLike, n: int) -> tuple[str, ...]:
    """The names of the groups of n inputs: each value of (n,), or numbers for columns of (n, G)."""
    array = _as_groups(groups, n)
    if array.ndim == 2:
        return tuple(map(str, range(array.shape[1])))
    return tuple(np.unique(array.astype(np.str_)).tolist())


def find_groups(groups: ArrayLike, names: Sequence[str], n: int) -> Booleans:
    """(n, G): which of the named groups each input belongs to; unknown groups are left out."""
    array = _as_groups(groups, n)
    if array.ndim == 1:
        if array.dtype.kind in "iu" and not any(_is_whole(name) for name in names):
            known = f"the rule knows groups by name, such as {names[0]!r}"
            raise InputError(f"groups holds whole numbers, but {known}: give names.")
        return np.asarray(array.astype(np.str_)[:, None] == np.array(names, dtype=np.str_))
    if tuple(names) != tuple(map(str, range(len(names)))):
        known = f"the rule knows groups by name, such as {names[0]!r}"
        raise InputError(f"groups has columns, but {known}: give one name for each input.")
    if array.shape[1] != len(names):
        given = f"groups has {array.shape[1]} columns and the rule knows {len(names)} groups"
        raise InputError(f"{given}: give one column for each.")
    return array.astype(np.bool_)


def _is_whole(name: str) -> bool:
    return name.removeprefix("-").isdecimal()


def _as_groups(groups: ArrayLike, n: int) -> NDArray[Any]:
    array = as_texts(as_array(groups, "groups"), "groups")
    columns = array.ndim == 2 and array.dtype == np.bool_ and array.shape[1] > 0
    if not columns and not (array.ndim == 1 and array.dtype.kind in "iuU"):
        given = f"groups has shape {array.shape} and dtype {array.dtype}"
        raise InputError(f"{given}: give (n,) whole numbers or strings, or (n, G) booleans.")
    if not columns:
        return as_row_names(array, n, "groups")
    if len(array) != n:
        raise InputError(f"groups has {len(array)} entries for {n} inputs: give one for each.")
    return array


def _as_weights(weights: ArrayLike, max_weight: float | None, n: int) -> Floats:
    array = as_floats(weights, "weights")
    if array.shape != (n,):
        raise InputError(f"weights has shape {array.shape} for {n} examples: give one for each.")
    if max_weight is None:
        known = "it must be known beforehand"
        raise InputError(
            f"weights needs max_weight, the largest weight that any input can have: {known}."
        )
    if not is_number(max_weight) or not max_weight > 0:
        raise InputError(f"max_weight is {max_weight!r}: give a finite number above 0.")
    inside = (array >= 0) & (array <= max_weight)
    if not inside.all():
        limit = f"every weight must lie between 0 and max_weight, {max_weight:g}"
        raise InputError(f"weights holds {array[~inside][0]:g}: {limit}.")
    return array


def as_people(people: ArrayLike, n: int) -> Integers:
    """The person of each of n inputs, numbered from 0."""
    _, numbers = np.unique(as_row_names(people, n, "people"), return_inverse=True)
    if numbers.max(initial=0) == 0:
        raise InputError(
            "people names one person alone: give the person of each row, and rows of at least two."
        )
    return np.asarray(numbers, dtype=np.int64)


def _as_share(for_people: Target) -> Fraction:
    return as_target(for_people, "for_people")
