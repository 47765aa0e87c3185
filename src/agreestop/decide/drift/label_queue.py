"""Inputs in the order in which they were opened, and the labels that they wait for.

Streams that run side by side end in the order of their ease, and labels come late and in any order.
Both would look like drift, so inputs are processed in an order that does not depend on the data:

    streams    in the order of opening, `Decision.number`. A decision is held back until every
               earlier number was observed or skipped
    batches    in the order given, when no earlier stream is open

A label waits until the labels of all earlier inputs are known. An input without an answer, such as
a session that was closed, keeps its turn, and so does an input whose label will never be known:
leaving them out would make the share of misses too large. A number that does not arrive before
MOST_HELD later ones is given up, as an input without an answer.

A label finds its decision by key, by number, or by the object that was observed. `decisions[i]` is
a new object each time: it is found by its row, if only one batch waits for the label of this row.
After a load only keys and numbers find decisions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import (
    Booleans,
    Floats,
    InputError,
    Integers,
    as_labels,
    is_integer,
    is_number,
    without_names,
)
from agreestop.common.kept import KeptInFiles

from ..decisions import Decision, Decisions, covered
from ..rule import Terms
from ..scores import classes_of_texts

MOST_WAITING = 100_000  # decisions that wait for labels; later ones are not kept
MOST_HELD = 10_000
MOST_AHEAD = 100_000  # how far a number may lie after the next one in turn
MOST_OBSERVED = 10**12  # in a file
UNKNOWN, NEVER = -1, -2  # labels that are not known yet, or will never be known
FINAL_LABEL = "the class that the ensemble itself answers best at the last checkpoint"
"""The label to give where the promise is about the final answer."""

Given = Decision | Decisions | str | int
"""How `update` gets a decision: the object, its key, or its number."""
Turn = tuple[int, float]
"""An input whose turn has come: its position and its first risk, nan where it is not known."""
Ready = tuple[int, bool | None]
"""An input that is processed now: its position, and whether it missed; None if nobody will know."""


COUNTS = ("observed", "processed", "dropped", "explicit", "start", "next", "numbered")
"""The numbers of a queue that a file holds as they are."""


@dataclass(eq=False, slots=True)
class Waiting:
    """An input that is not processed yet.

    classes  the answer
    risk     the first risk; nan where it is not known
    key      given by the user, or empty
    number   the place of a stream in the order of opening; -1 for a decision without a number
    miss     whether the answer missed: 0, 1, UNKNOWN or NEVER
    ends     the id of the object of which it is the last row, or 0
    """

    classes: tuple[int, ...]
    risk: float
    key: str
    number: int
    miss: int = UNKNOWN
    ends: int = 0

    @property
    def names(self) -> list[str | int]:
        """The key and the number by which a label finds it, where it has them."""
        return [name for name in (self.key, self.number) if name not in ("", -1)]


@dataclass(frozen=True, eq=False)
class SavedQueue(KeptInFiles):
    """A queue in a file.

    Each of the w inputs has its position in `numbers`, its first risk (nan: not known), whether it
    missed, and its number in `streams` (-1: none), all (w,), its set (w, C) and its key. Decisions
    that are held back come last and have position -1. Version 0.2 also wrote rows and checkpoints.
    """

    observed: int
    processed: int
    dropped: int
    explicit: bool
    numbers: Integers
    risks: Floats
    misses: Integers
    sets: Booleans
    keys: tuple[str, ...]
    streams: Integers | None = None
    start: int = 0
    next: int = 0
    opened: int = 0
    numbered: bool = False
    rows: Integers | None = None
    checkpoints: Integers | None = None


class LabelQueue:
    """Inputs in their order, and what is known of their labels.

    Parameters
    ----------
    terms, classes
        What the rule promises, and the number of classes.
    opened
        The counter of the rule: the number of its next stream.
    names
        The names of the classes, where they are known.

    Attributes
    ----------
    observed
        The number of inputs whose turn has come. Their positions count from 0.
    processed
        The number of inputs, from the first one on, that wait no longer.
    dropped
        The number of decisions that were not kept, because MOST_WAITING others wait.
    explicit
        Whether decisions are observed by themselves; otherwise each one comes with its label.
    start, next
        The first number that counts, and the number whose turn it is.
    numbered
        Whether any decision had a number.
    """

    def __init__(
        self, terms: Terms, classes: int, opened: list[int], names: Sequence[str] | None = None
    ) -> None:
        self.terms, self.classes, self.opened, self.names = terms, classes, opened, names
        self.explicit = self.numbered = False
        self.observed = self.processed = self.dropped = 0
        self.start = self.next = self.opened[0]
        self._labels = 0  # labels that wait for an earlier one
        self._found: list[Turn] = []  # inputs whose turn has come since the last `take`
        self._held: dict[int, Waiting] = {}  # by number: inputs that came before their turn
        self._waiting: dict[int, Waiting] = {}  # by position
        self._names: dict[str | int, Waiting] = {}  # by key and by number: inputs without a label
        # By id: an object, which is kept so that no other one gets its id, and its rows' positions.
        self._objects: dict[int, tuple[object, dict[int | None, int]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def stalled(self) -> str:
        """Which number and which label the others wait for; empty if nothing waits."""
        words = []
        if held := len(self._held):
            some = f"{held:,} later inputs are" if held > 1 else "1 later input is"
            words.append(
                f"{some} held back for number {self.next}, which is neither observed nor skipped; "
                f"after {MOST_HELD:,} later ones it is an input without a miss"
            )
        if self._labels:
            one = self._waiting[self.processed]
            number = self.processed if one.number < 0 else one.number
            named = f" ({one.key!r})" if one.key else ""
            some = f"{self._labels:,} labels wait" if self._labels > 1 else "1 label waits"
            words.append(f"{some} for the label of decision {number}{named}: give it, or None")
        return "; ".join(words)

    def add(self, decision: object, key: str = "") -> None:
        """Take a decision, or the decisions of a batch, whose labels come later."""
        self._add(decision, key)
        self.explicit = True

    def _add(self, decision: object, key: str = "") -> None:
        """Take a decision, or the decisions of a batch, without labels."""
        given = _checked(decision)
        rows = [given] if isinstance(given, Decision) else [*given]
        if not isinstance(key, str) or (key and isinstance(given, Decisions)):
            raise InputError(
                "key must be a string, for one decision: "
                "give decisions[i] one by one to name each of them."
            )
        if key in self._names or id(given) in self._objects:
            what = f"the key {key!r}" if key in self._names else "this decision"
            raise InputError(f"{what} waits for a label already: give each decision once.")
        if any(max(row.classes, default=0) >= self.classes for row in rows):
            raise InputError(
                f"the decision is among more than {self.classes} classes: "
                "give decisions of the rule that is watched."
            )
        inputs = [self._without_label(row, key) for row in rows]
        if isinstance(given, Decision) and given.number is not None:
            return self._hold(inputs[0])
        still_open = self.opened[0] - self.next
        if self._held or (self.numbered and still_open > 0):
            raise InputError(
                f"{max(still_open, 1)} streams that were opened before are neither observed nor "
                "skipped: a batch, or a decision without a number, counts after them, so give it "
                "then."
            )
        kept = [row.row for row in rows[: MOST_WAITING - len(self)]]
        if kept:
            self._objects[id(given)] = given, dict(zip(kept, count(self.observed), strict=False))
            inputs[len(kept) - 1].ends = id(given)
        for one in inputs:
            self._take_turn(self._name(one))
        return None

    def skip(self, number: int, risk: float | None = None) -> None:
        """Take a stream that gets no answer."""
        if not is_integer(number) or number < 0:
            raise InputError(f"number is {number!r}: give the number of a stream, session.number.")
        if number in self._names:
            raise InputError(
                f"number {number} was observed, and waits for its label: give its label, or "
                f"update({number}, None)."
            )
        self._hold(_without_answer(int(number), risk))

    def skip_open(self) -> None:
        """Skip every stream that is still open.

        Where no decision ever had a number, streams were not watched, and none is missing.
        """
        if not self.numbered:
            self.start = self.next = self.opened[0]
        for number in range(self.next, min(self.opened[0], self.next + MOST_AHEAD)):
            self._held.setdefault(number, _without_answer(number))
        self._release()

    def share_counter(self, opened: list[int]) -> None:
        """Count with the counter of another rule object, from the larger number on."""
        opened[0] = max(opened[0], self.opened[0])
        self.opened = opened

    def _hold(self, one: Waiting) -> None:
        """Take an input with a number, at its turn or before."""
        number = one.number
        if number < self.start:
            raise InputError(
                f"number {number} was opened before this monitor was made, which begins with "
                f"number {self.start}: make the monitor first, then open streams."
            )
        if self._arrived(number):
            raise InputError(
                f"number {number} was observed, skipped or given up before: observe or skip each "
                "input once; after a load, open streams with the rule of the monitor."
            )
        if number - self.next >= MOST_AHEAD:
            raise InputError(
                f"number {number} is far from number {self.next}, whose turn it is: number streams "
                "in the order of opening, or let the rule number them."
            )
        self.numbered = True
        self.opened[0] = max(self.opened[0], number + 1)
        self._held[number] = self._name(one)
        self._release()

    def _arrived(self, number: int) -> bool:
        """Whether a number was observed, skipped or given up."""
        return number < self.next or number in self._held

    def _release(self) -> None:
        """Take the inputs whose turn has come."""
        while self.next in self._held or len(self._held) >= MOST_HELD:
            one = self._held.pop(self.next, _without_answer(self.next))
            self.next += 1
            self._take_turn(one)

    def _take_turn(self, one: Waiting) -> None:
        """Give an input its position. It is not waited for if too many others are."""
        self._found.append((self.observed, one.risk))
        if len(self) < MOST_WAITING:
            self._waiting[self.observed] = one
            self._labels += one.miss >= 0
        else:
            self._forget(one)
            self.dropped += 1
        self.observed += 1

    def _name(self, one: Waiting) -> Waiting:
        """Let a label find a decision that has none."""
        if one.miss == UNKNOWN:
            self._names.update(dict.fromkeys(one.names, one))
        return one

    def _forget(self, one: Waiting) -> None:
        """Let no further label find a decision."""
        for name in one.names:
            self._names.pop(name, None)

    def update(self, decision: Given, label: ArrayLike | None) -> None:
        """Take the label of a decision, or the labels of a batch; None if nobody will know them.

        A decision that was not observed is added first. The number of a stream tells whether it
        was. Others were not, unless decisions are observed by themselves.
        """
        labels = self._check(decision, self._as_classes(decision, label))
        number = decision.number if isinstance(decision, Decision) else None
        known = self.explicit if number is None else self._arrived(number)
        if not known and isinstance(decision, (Decision, Decisions)):
            self._add(decision)
        # The last rows of a batch may not have been kept.
        for one, truth in zip(self._find(decision), labels, strict=False):
            self._label(one, NEVER if truth == NEVER else int(truth not in one.classes))

    def _as_classes(self, decision: Given, label: Any) -> Any:
        """Labels as classes.

        The index of the name of a class; for open answers the class of a text among the answers of
        an input; for intervals 0 where they hold the number and 1 where they do not.
        """
        terms, never = self.terms, self.classes - 1
        if terms.has_classes and not terms.open_answers:
            found = without_names(label, self.names)
            return int(found) if isinstance(label, str) else found
        is_text = terms.open_answers and np.asarray(label).dtype.kind == "U"
        if terms.open_answers and isinstance(decision, Decision) and is_number(label):
            raise InputError(f"label is {label!r:.80}: give the right answer as text.")
        if label is None or not (is_text or terms.numbers):
            return label
        if not isinstance(decision, (Decision, Decisions)):
            raise InputError(
                "label is about an answer that keys and numbers do not tell: give the decision "
                "itself."
            )
        if terms.numbers:
            if isinstance(decision, Decision) and not is_number(label):
                raise InputError(f"label is {label!r:.80}: give the true number.")
            lower, upper = decision.lower, decision.upper
            if lower is None or upper is None:
                raise InputError("decision has no interval: give one of the rule that is watched.")
            inside = covered(np.atleast_1d(lower), np.atleast_1d(upper), np.atleast_1d(label))
            found = np.where(inside, 0, 1)
            return found if isinstance(decision, Decisions) else int(found[0])
        if isinstance(decision, Decision):
            known = dict(zip(decision.names or (), decision.classes, strict=True))
            return known.get(label, never)
        texts = decision.texts or ()
        if len(np.atleast_1d(label)) != len(texts):
            raise InputError(f"label must be a text for each of {len(texts)} rows: give as many.")
        return classes_of_texts(texts, np.atleast_1d(label).tolist(), never)

    def _check(self, decision: Given, label: ArrayLike | None) -> list[int]:
        """Return the labels of a decision or a batch, which may be NEVER."""
        rows = len(decision) if isinstance(decision, Decisions) else 1
        if label is None:
            return [NEVER] * rows
        if isinstance(decision, Decisions) and not (rows == 1 and is_integer(label)):
            if isinstance(label, (Sequence, np.ndarray)) and any(one is None for one in label):
                raise InputError(
                    "labels holds None: give None for the whole batch, or labels one by one, "
                    "as update(decisions[i], None)."
                )
            return as_labels(label, rows, self.classes).tolist()
        if not is_integer(label) or not 0 <= label < self.classes:
            raise InputError(
                f"label is {label!r}: give a class index from 0 to {self.classes - 1}, "
                "or None if it will never be known."
            )
        return [label]

    def give_up(self, before: int) -> None:
        """Give up the labels of inputs at positions below `before`."""
        for position, one in self._waiting.items():
            if position < before and one.miss == UNKNOWN:
                self._label(one, NEVER)

    def _label(self, one: Waiting, miss: int) -> None:
        """Note whether a decision missed."""
        self._forget(one)
        one.miss = miss
        self._labels += miss >= 0 and one.number not in self._held

    def _find(self, decision: Given) -> list[Waiting]:
        """Find a decision, or the rows of a batch; all of them wait for labels."""
        name = decision.number if isinstance(decision, Decision) else decision
        advice = "it has its label already, or it was never observed"
        if isinstance(name, str):
            what, found = f"no decision with the key {name!r} waits", [self._names.get(name)]
        elif is_integer(name):
            by_position = not self.numbered and name is decision
            one = self._waiting.get(name) if by_position else self._names.get(name)
            what, found = f"decision {name} does not wait", [one]
        else:
            what, found = "this decision does not wait", self._find_object(_checked(decision))
            advice += "; after a load, give its number or its key"
        waiting = [one for one in found if one is not None and one.miss == UNKNOWN]
        if not waiting:
            if self.dropped:
                advice += f". {self.dropped:,} decisions were not kept, "
                advice += f"because at most {MOST_WAITING:,} can wait"
            raise InputError(f"{what} for a label: {advice}.")
        if len(waiting) < len(found):
            raise InputError(
                f"{len(found) - len(waiting)} of these decisions have labels already: "
                "give the others, as update(decisions[i], label)."
            )
        return waiting

    def _find_object(self, decision: Decision | Decisions) -> list[Waiting | None]:
        """Find the inputs of an object that was observed, or else the input of a row."""
        if id(decision) in self._objects:
            return [self._waiting.get(one) for one in self._objects[id(decision)][1].values()]
        if isinstance(decision, Decisions) or (row := decision.row) is None:
            return []
        batches = [rows[row] for _, rows in self._objects.values() if row in rows]
        known = [self._waiting[position] for position in batches if position in self._waiting]
        found = [one for one in known if one.miss == UNKNOWN]
        if len(found) > 1:
            raise InputError(
                f"row {row} of {len(found)} batches waits for a label: "
                "give the number of the decision, its key, or all labels of its batch."
            )
        risk = decision.first_risk
        same = [one for one in found if one.classes == self._answer(decision)]
        return [one for one in same if risk is None or one.risk in (None, risk)]

    def _answer(self, decision: Decision) -> tuple[int, ...]:
        """The classes that are no miss: all of them for an input that abstains."""
        return decision.classes if decision.answered else tuple(range(self.classes))

    def _without_label(self, decision: Decision, key: str) -> Waiting:
        number = -1 if decision.number is None else decision.number
        return Waiting(self._answer(decision), as_risk(decision.first_risk), key, number)

    def take(self) -> tuple[list[Turn], list[Ready]]:
        """Return the inputs whose turn has come since the last call, and those to process now."""
        found, self._found = self._found, []
        ready: list[Ready] = []
        while self._waiting:
            if self.processed not in self._waiting:  # it was not kept: go to the next one that was
                self.processed = next(iter(self._waiting))
            one = self._waiting[self.processed]
            if one.miss == UNKNOWN:
                break
            del self._waiting[self.processed]
            self._objects.pop(one.ends, None)
            self._labels -= one.miss >= 0
            ready.append((self.processed, None if one.miss == NEVER else bool(one.miss)))
            self.processed += 1
        else:
            self.processed = self.observed
        return found, ready

    @property
    def inputs(self) -> list[Waiting]:
        """The inputs that wait, in their order, and then those that are held back."""
        return [where[one] for where in (self._waiting, self._held) for one in sorted(where)]

    def saved(self) -> SavedQueue:
        """Return the queue as it goes into a file."""
        positions, inputs = [*sorted(self._waiting), *[-1] * len(self._held)], self.inputs
        sets = np.zeros((len(inputs), self.classes), dtype=bool)
        for row, one in enumerate(inputs):
            sets[row, list(one.classes)] = True
        return SavedQueue(
            **{name: getattr(self, name) for name in COUNTS},
            opened=self.opened[0],
            numbers=np.array(positions, np.int64),
            risks=np.array([one.risk for one in inputs], np.float64),
            misses=np.array([one.miss for one in inputs], np.int64),
            streams=np.array([one.number for one in inputs], np.int64),
            keys=tuple(one.key for one in inputs),
            sets=sets,
        )

    def restore(self, saved: SavedQueue) -> None:
        """Let a new queue go on where another was saved, and the counter of the rule with it.

        Raises ValueError for what no queue can have written.
        """
        for name in COUNTS:
            setattr(self, name, getattr(saved, name))
        start, next_, streams = saved.start, saved.next, saved.streams
        streams = np.full(len(saved.keys), -1) if streams is None else streams
        arrays = saved.numbers, streams, saved.risks, saved.misses
        columns = zip(*(one.tolist() for one in arrays), saved.keys, saved.sets, strict=True)
        opened, right = self.opened, 0 <= start <= next_ and 0 <= saved.dropped <= saved.observed
        for position, number, risk, miss, key, answer in columns:
            one = Waiting(tuple(np.flatnonzero(answer).tolist()), risk, key, number, miss)
            right &= miss in (NEVER, UNKNOWN, 0, 1) and self._names.keys().isdisjoint(one.names)
            if position < 0:
                right &= next_ < number < next_ + MOST_AHEAD
                self._held[number] = self._name(one)
            else:
                right &= saved.processed <= position < saved.observed
                right &= number == -1 or start <= number < next_
                self._waiting[position] = self._name(one)
                self._labels += miss >= 0
            self.numbered |= number >= 0
            opened[0] = max(opened[0], number + 1)
        opened[0] = max(opened[0], saved.opened, next_)
        # A queue that is right has nothing to release or to process, and is saved as it was.
        self._release()
        self.take()
        again = self.saved()
        names = (*COUNTS, "numbers", "misses", "sets", "keys")
        right &= all(np.array_equal(getattr(again, name), getattr(saved, name)) for name in names)
        right &= [one.number for one in self.inputs] == streams.tolist()
        right &= saved.opened >= 0 and max(opened[0], saved.observed) <= MOST_OBSERVED
        if not right:
            raise ValueError("decisions in an order that no queue has")


def as_risk(risk: float | None) -> float:
    """Return a first risk; nan where it is not known."""
    return math.nan if risk is None else float(risk)


def _checked(decision: object) -> Decision | Decisions:
    """Refuse what is not a decision."""
    if not isinstance(decision, (Decision, Decisions)):
        raise InputError(f"decision is {decision!r}: give a Decision, or the Decisions of a batch.")
    return decision


def _without_answer(number: int, risk: float | None = None) -> Waiting:
    """A stream that was opened and got no answer."""
    return Waiting((), as_risk(risk), "", number, NEVER)
