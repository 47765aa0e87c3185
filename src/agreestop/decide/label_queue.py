"""Decisions that wait for their labels.

Labels may come late and in any order. They are processed in the order of the decisions, because misses that are reported sooner than hits
would look like drift: a label waits until the labels of all earlier decisions are known.

A decision is found by its key, by its number, by the object itself, or, if it is a row of a batch or comes from a file, by an equal
decision: the oldest one of the same row, checkpoint, first risk and classes. A batch from a file is found by its rows in their order.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import Booleans, Floats, InputError, Integers, is_integer

from .checks import as_labels
from .decisions import Decision, Decisions
from .rule_files import KeptInFiles

MOST_WAITING = 100_000
MOST_OBSERVED = 10**12  # in a file
UNKNOWN, NEVER = -1, -2
"""Labels that are not known yet, or that will never be known."""
FINAL_LABEL = "the class that the ensemble itself answers best at the last checkpoint"
"""The label to give where the promise is about the final answer, in words."""


class Content(NamedTuple):
    """A decision as it is recognised: its row in a batch (-1: none), its checkpoint, its first risk (None: not known), its classes."""

    row: int
    checkpoint: int
    risk: float | None
    classes: tuple[int, ...]

    @classmethod
    def of(cls, decision: Decision) -> Self:
        risk = decision.first_risk
        row = -1 if decision.row is None else decision.row
        return cls(row, decision.index, None if risk is None or math.isnan(risk) else float(risk), decision.classes)


@dataclass(eq=False, slots=True)
class Observed:
    """A decision or a batch as it was observed: the object, held so that no other one gets its id, and how many labels are missing."""

    decision: Decision | Decisions
    numbers: range
    left: int


@dataclass(eq=False, slots=True)
class Waiting:
    """A decision that is not processed yet, and whether it missed; `observed` is None for one that comes from a file."""

    content: Content
    key: str
    observed: Observed | None
    miss: int = UNKNOWN

    @property
    def by_content(self) -> bool:
        """Whether an equal decision finds it: one from a file, or a row of a batch, which is a new object each time it is read."""
        return self.observed is None or self.content.row >= 0


@dataclass(frozen=True, eq=False)
class SavedQueue(KeptInFiles):
    """A queue in a file. Each of the w decisions that wait has its number, row, checkpoint, first risk (nan: not known), whether it
    missed, all (w,), its set (w, C) and its key."""

    observed: int
    processed: int
    dropped: int
    explicit: bool
    numbers: Integers
    rows: Integers
    checkpoints: Integers
    risks: Floats
    misses: Integers
    sets: Booleans
    keys: tuple[str, ...]


class LabelQueue:
    """Decisions in their order, and what is known of their labels. At most MOST_WAITING decisions wait; further ones are not kept.

    observed   the number of decisions so far; they are numbered from 0
    processed  the number of decisions, from the first one on, that wait no longer
    dropped    the number of decisions that were not kept
    explicit   whether decisions are given to `add`; otherwise each comes with its label, in order
    """

    def __init__(self, classes: int) -> None:
        self.classes, self.observed, self.processed, self.dropped, self.explicit = classes, 0, 0, 0, False
        self._labels = 0  # the number of labels that wait for the label of an earlier decision
        self._waiting: dict[int, Waiting] = {}
        # Where decisions without a label are found: by their key, by the id of the object, and by their content, the oldest first.
        self._keys: dict[str, int] = {}
        self._objects: dict[int, Observed] = {}
        self._alike: dict[Content, deque[int]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def stalled(self) -> str:
        """Which decision's label the others wait for, in words; empty if none waits."""
        if not self._labels:
            return ""
        one = self._waiting[self.processed]
        named = f" ({one.key!r})" if one.key else ""
        some = f"{self._labels:,} labels wait" if self._labels > 1 else "1 label waits"
        return f"{some} for that of decision {self.processed}{named}: give it, or None"

    def add(self, decision: Decision | Decisions, key: str = "") -> None:
        """The next decision, or the next ones, whose labels are not known yet."""
        contents = _contents(decision)
        if not isinstance(key, str) or (key and isinstance(decision, Decisions)):
            raise InputError("key must be a string, for one decision: give decisions[i] one by one to name each of them.")
        if key in self._keys or id(decision) in self._objects:
            what = f"the key {key!r}" if key in self._keys else "this decision"
            raise InputError(f"{what} waits for a label already: give each decision once.")
        if any(one.classes and max(one.classes) >= self.classes for one in contents):
            raise InputError(f"the decision is among more than {self.classes} classes: give decisions of the rule that is watched.")
        first, kept = self.observed, contents[: MOST_WAITING - len(self)]
        self.observed += len(contents)
        self.dropped += len(contents) - len(kept)
        if not kept:
            return
        observed = Observed(decision, range(first, first + len(kept)), len(kept))
        self._objects[id(decision)] = observed
        for number, content in zip(observed.numbers, kept, strict=True):
            self._await(number, Waiting(content, key, observed))

    def _await(self, number: int, one: Waiting) -> None:
        self._waiting[number] = one
        if one.miss != UNKNOWN:
            self._labels += one.miss != NEVER
            return
        if one.key:
            self._keys[one.key] = number
        if one.by_content:
            self._alike.setdefault(one.content, deque()).append(number)

    def check(self, decision: Decision | Decisions | str | int, label: ArrayLike | None) -> Integers | None:
        """The label of a decision, or the labels of a batch, as an array; None for labels that will never be known."""
        if label is None:
            return None
        if isinstance(decision, Decisions) and not (len(decision) == 1 and is_integer(label)):
            if isinstance(label, (Sequence, np.ndarray)) and any(one is None for one in label):
                raise InputError("labels holds None: give None for the whole batch, or labels one by one, as update(decisions[i], None).")
            return as_labels(label, len(decision), self.classes)
        if not is_integer(label) or not 0 <= label < self.classes:
            raise InputError(f"label is {label!r}: give a class index from 0 to {self.classes - 1}, or None if it will never be known.")
        return np.array([label])

    def add_labels(self, decision: Decision | Decisions | str | int, labels: Integers | None) -> list[tuple[int, bool]]:
        """Take checked labels of a decision or a batch, which is given as the object, or by key or number.

        Returns, for each decision that can be processed now, its number and whether it missed.
        """
        numbers = self._find(decision)
        known = [NEVER] * len(numbers) if labels is None else labels.tolist()
        for number, truth in zip(numbers, known, strict=False):  # the last ones of a batch may not have been kept
            if number in self._waiting:
                self._label(number, NEVER if labels is None else int(truth not in self._waiting[number].content.classes))
        return self._advance()

    def _find(self, decision: Decision | Decisions | str | int) -> Sequence[int]:
        """The numbers of a decision, or of a batch, that waits for labels."""
        numbers: Sequence[int] = ()
        if isinstance(decision, str):
            what = f"no decision with the key {decision!r} waits"
            numbers = [self._keys[decision]] if decision in self._keys else ()
        elif is_integer(decision):
            what = f"decision {decision} does not wait"
            numbers = [decision] if decision in self._waiting else ()
        else:
            what, observed = "this decision does not wait", self._objects.get(id(decision))
            numbers = self._find_alike(_contents(decision)) if observed is None else observed.numbers
        labelled = sum(number in self._waiting and self._waiting[number].miss != UNKNOWN for number in numbers)
        if 0 < labelled < len(numbers):
            raise InputError(f"{labelled} of these decisions have labels already: give the others, as update(decisions[i], label).")
        if not numbers or labelled:
            limit = f" {self.dropped:,} decisions were not kept, because at most {MOST_WAITING:,} can wait." if self.dropped else ""
            raise InputError(f"{what} for a label: observe every decision once, and update it once.{limit}")
        return numbers

    def _find_alike(self, contents: list[Content]) -> Sequence[int]:
        """The oldest decisions in a row with these contents; decisions that were not kept may have any."""
        for first in self._alike.get(contents[0], ()) if contents else ():
            numbers = range(first, first + len(contents))
            found = [self._waiting.get(number) for number in numbers]
            same = all(one is None or one.content == content for one, content in zip(found, contents, strict=True))
            if same and numbers[-1] < self.observed:
                return numbers
        return ()

    def _label(self, number: int, miss: int) -> None:
        one = self._waiting[number]
        if one.by_content:
            alike = self._alike[one.content]
            alike.remove(number)
            if not alike:
                del self._alike[one.content]
        self._keys.pop(one.key, None)
        if one.observed is not None:
            one.observed.left -= 1
            if not one.observed.left:
                del self._objects[id(one.observed.decision)]
        one.miss, one.observed = miss, None
        self._labels += miss != NEVER

    def _advance(self) -> list[tuple[int, bool]]:
        ready: list[tuple[int, bool]] = []
        while self.processed < self.observed:
            one = self._waiting.get(self.processed)
            if one is None and self._waiting:  # decisions that were not kept, up to the next one that was
                self.processed = next(iter(self._waiting))
                continue
            if one is None:
                self.processed = self.observed
                break
            if one.miss == UNKNOWN:
                break
            if one.miss != NEVER:
                ready.append((self.processed, bool(one.miss)))
            del self._waiting[self.processed]
            self.processed += 1
        self._labels -= len(ready)
        return ready

    def saved(self) -> SavedQueue:
        """The queue as it goes into a file."""
        waiting = list(self._waiting.values())
        contents = [one.content for one in waiting]
        sets = np.zeros((len(waiting), self.classes), dtype=bool)
        for row, content in enumerate(contents):
            sets[row, list(content.classes)] = True
        columns = list(self._waiting), [one.row for one in contents], [one.checkpoint for one in contents], [one.miss for one in waiting]
        numbers, rows, checkpoints, misses = (np.array(values, dtype=np.int64) for values in columns)
        risks = np.array([math.nan if one.risk is None else one.risk for one in contents], dtype=np.float64)
        counts = self.observed, self.processed, self.dropped
        return SavedQueue(*counts, self.explicit, numbers, rows, checkpoints, risks, misses, sets, tuple(one.key for one in waiting))

    @classmethod
    def restored(cls, saved: SavedQueue, classes: int) -> Self:
        """A queue that was saved; a ValueError for one that no queue can have written."""
        count, numbers = len(saved.keys), saved.numbers
        if saved.misses.shape != (count,) or not np.isin(saved.misses, (NEVER, UNKNOWN, 0, 1)).all():
            raise ValueError("labels that no queue has")
        named = [key for key, miss in zip(saved.keys, saved.misses.tolist(), strict=True) if key and miss == UNKNOWN]
        inside = numbers.shape == (count,) and (numbers >= saved.processed).all() and (numbers < saved.observed).all()
        if not inside or (np.diff(numbers) <= 0).any() or saved.sets.shape != (count, classes) or count > MOST_WAITING:
            raise ValueError("decisions that wait in no order")
        if count and (numbers[0] != saved.processed or saved.misses[0] != UNKNOWN):
            raise ValueError("a first decision that does not wait")
        if any(values.shape != (count,) for values in (saved.rows, saved.checkpoints, saved.risks)):
            raise ValueError("contents of another number of decisions")
        if not 0 <= saved.processed <= saved.observed <= MOST_OBSERVED or not 0 <= saved.dropped <= saved.observed:
            raise ValueError("counts that no queue has")
        if len(set(named)) < len(named):
            raise ValueError("a key that two decisions have")
        queue = cls(classes)
        queue.observed, queue.processed, queue.dropped, queue.explicit = saved.observed, saved.processed, saved.dropped, saved.explicit
        arrays = (numbers, saved.rows, saved.checkpoints, saved.risks, saved.misses)
        for number, row, checkpoint, risk, miss, key, answer in zip(*(one.tolist() for one in arrays), saved.keys, saved.sets, strict=True):
            content = Content(row, checkpoint, None if math.isnan(risk) else risk, tuple(np.flatnonzero(answer).tolist()))
            queue._await(number, Waiting(content, key, None, miss))
        return queue


def _contents(decision: object) -> list[Content]:
    if not isinstance(decision, (Decision, Decisions)):
        raise InputError(f"decision is {decision!r}: give a Decision, or the Decisions of a batch.")
    return [Content.of(one) for one in (decision if isinstance(decision, Decisions) else (decision,))]
