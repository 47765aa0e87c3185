"""Decisions that wait for their labels.

Labels may come late and in any order. They are processed in the order of the decisions, because misses that are reported sooner than hits
would look like drift: a label waits until the labels of all earlier decisions are known.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import Booleans, InputError, Integers, is_integer

from .checks import as_labels
from .decisions import Decision, Decisions
from .rule_files import KeptInFiles

MOST_WAITING = 100_000
MOST_OBSERVED = 10**12  # in a file
UNKNOWN, NEVER, LOST = -1, -2, -3
"""Labels that are not known yet, that will never be known, or that a loaded queue cannot get because the decision has no key."""


@dataclass(eq=False, slots=True)
class Waiting:
    """A decision that is not processed yet: its classes, its key, whether it missed, and the object that came from the rule."""

    classes: tuple[int, ...]
    key: str
    miss: int = UNKNOWN
    source: object = None  # held here so that no other object can get the same id


@dataclass(frozen=True, eq=False)
class SavedQueue(KeptInFiles):
    """A queue in a file: of each decision that waits its number (w,), its set (w, C), its key, and whether it missed, (w,)."""

    observed: int
    processed: int
    explicit: bool
    numbers: Integers
    misses: Integers
    sets: Booleans
    keys: tuple[str, ...]


class LabelQueue:
    """Decisions in their order, and what is known of their labels. At most MOST_WAITING decisions wait; further ones are not added.

    observed   the number of decisions so far
    processed  the number of decisions, from the first one on, that wait no longer
    explicit   whether decisions are given to `add`; otherwise `settle` alone gets them, in order, each with its label
    """

    def __init__(self, classes: int) -> None:
        self.classes, self.observed, self.processed, self.explicit = classes, 0, 0, False
        self._waiting: dict[int, Waiting] = {}
        self._numbers: dict[str | int, range] = {}  # by the key, or by the id of the object

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, decision: Decision | Decisions, key: str = "") -> None:
        """The next decision, or the next ones, whose labels are not known yet."""
        if not isinstance(decision, (Decision, Decisions)):
            raise InputError(f"decision is {decision!r}: give a Decision, or the Decisions of a batch.")
        if not isinstance(key, str) or (key and isinstance(decision, Decisions)):
            raise InputError("key must be a string, for one decision: give decisions[i] one by one to name each of them.")
        name = key or id(decision)
        if name in self._numbers:
            raise InputError(f"{f'the key {key!r}' if key else 'this decision'} waits for a label already: give each decision once.")
        answers = [one.classes for one in (decision if isinstance(decision, Decisions) else (decision,))]
        if any(classes and max(classes) >= self.classes for classes in answers):
            raise InputError(f"the decision is among more than {self.classes} classes: give decisions of the rule that is watched.")
        first, room = self.observed, MOST_WAITING - len(self)
        self.observed += len(answers)
        for number, classes in enumerate(answers[:room], first):
            self._waiting[number] = Waiting(classes, key, source=decision)
        if answers[:room]:
            self._numbers[name] = range(first, first + len(answers[:room]))

    def check(self, decision: Decision | Decisions | str, label: ArrayLike | None) -> Integers | None:
        """The label of a decision, or the labels of a batch, as an array; None for labels that will never be known."""
        if label is None:
            return None
        if isinstance(decision, Decisions):
            return as_labels(label, len(decision), self.classes)
        if not is_integer(label) or not 0 <= label < self.classes:
            raise InputError(f"label is {label!r}: give a class index from 0 to {self.classes - 1}, or None if it will never be known.")
        return np.array([label])

    def settle(self, decision: Decision | Decisions | str, labels: Integers | None) -> list[tuple[int, bool | None]]:
        """Take checked labels of a decision, which is given as the object or by its key, or of a batch.

        Returns, for each decision that can be processed now, its number and whether it missed; None where the label is lost.
        """
        name = decision if isinstance(decision, str) else id(decision)
        if name not in self._numbers:
            what = f"no decision with the key {decision!r} waits" if isinstance(decision, str) else "this decision does not wait"
            most = f"no more than {MOST_WAITING:,} wait"
            raise InputError(f"{what} for a label: observe every decision once, and update it once; after a load, by its key. {most}.")
        numbers = self._numbers.pop(name)
        known = [NEVER] * len(numbers) if labels is None else labels.tolist()
        for number, truth in zip(numbers, known, strict=False):
            one = self._waiting[number]
            one.miss = NEVER if labels is None else int(truth not in one.classes)
            one.source = None
        return self._advance()

    def _advance(self) -> list[tuple[int, bool | None]]:
        ready: list[tuple[int, bool | None]] = []
        while self.processed < self.observed:
            one = self._waiting.get(self.processed)
            if one is None and self._waiting:  # decisions that were not added, up to the next one that was
                self.processed = next(iter(self._waiting))
                continue
            if one is None:
                self.processed = self.observed
                break
            if one.miss == UNKNOWN:
                break
            if one.miss != NEVER:
                ready.append((self.processed, None if one.miss == LOST else bool(one.miss)))
            del self._waiting[self.processed]
            self.processed += 1
        return ready

    def saved(self) -> SavedQueue:
        """The queue as it goes into a file."""
        waiting = list(self._waiting.values())
        sets = np.zeros((len(waiting), self.classes), dtype=bool)
        for row, one in enumerate(waiting):
            sets[row, list(one.classes)] = True
        numbers = np.array(list(self._waiting), dtype=np.int64)
        misses = np.array([one.miss for one in waiting], dtype=np.int64)
        misses[misses == LOST] = UNKNOWN
        return SavedQueue(self.observed, self.processed, self.explicit, numbers, misses, sets, tuple(one.key for one in waiting))

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
        if not 0 <= saved.processed <= saved.observed <= MOST_OBSERVED:
            raise ValueError("counts that no queue has")
        if len(set(named)) < len(named):
            raise ValueError("a key that two decisions have")
        queue = cls(classes)
        queue.observed, queue.processed, queue.explicit = saved.observed, saved.processed, saved.explicit
        for number, key, miss, row in zip(numbers.tolist(), saved.keys, saved.misses.tolist(), saved.sets, strict=True):
            queue._waiting[number] = Waiting(tuple(np.flatnonzero(row).tolist()), key, miss if key or miss != UNKNOWN else LOST)
            if key and miss == UNKNOWN:
                queue._numbers[key] = range(number, number + 1)
        return queue
