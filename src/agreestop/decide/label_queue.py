"""Inputs in the order in which they were opened, and the labels that they wait for.

Streams side by side end in the order of their ease, and labels may come late and in any order. Both would look like drift, so inputs are
processed in an order that does not depend on the data:

    streams     in the order of opening: a decision with a number is held back until every earlier number was observed or skipped
    batches     in the order given

A label waits until the labels of all earlier inputs are known. An input without an answer, such as a session that was closed, and an input
whose label will never be known keep their turn: dropping them would leave too large a share of misses.

A decision is found by its key, by its number, by the object itself, or, if it is a row of a batch or comes from a file without a number, by
an equal decision: the oldest one of the same row, checkpoint, first risk and classes. A batch from a file is found by its rows in their
order.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import Booleans, Floats, InputError, Integers, is_integer

from .checks import as_labels
from .decisions import Decision, Decisions
from .opening_order import (
    MOST_AHEAD,
    MOST_HELD,
    NEVER,
    UNKNOWN,
    Content,
    Observed,
    OpeningOrder,
    Waiting,
)
from .rule_files import KeptInFiles

MOST_WAITING = 100_000
MOST_OBSERVED = 10**12  # in a file
FINAL_LABEL = "the class that the ensemble itself answers best at the last checkpoint"
"""The label to give where the promise is about the final answer, in words."""

Ready = tuple[int, bool | None]
"""An input that is processed now: its position, and whether it missed, None if nobody will know."""
Found = tuple[int, float | None]
"""An input whose turn has come: its position, and its first risk where it is known."""


@dataclass(frozen=True, eq=False)
class SavedQueue(KeptInFiles):
    """A queue in a file.

    Each of the w decisions that wait has its position, row, checkpoint, first risk (nan: not known),
    whether it missed, all (w,), its set (w, C), its key, and the number of its stream (-1: none).
    Decisions that are held back come last and have position -1.
    """

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
    streams: Integers | None = None
    start: int = 0
    next: int = 0
    opened: int = 0
    numbered: bool = False


class LabelQueue:
    """Inputs in their order, and what is known of their labels.

    At most MOST_WAITING decisions wait; further ones are not kept. `opened` is the counter of the rule.

    observed   the number of inputs so far whose turn has come; their positions count from 0
    processed  the number of inputs, from the first one on, that wait no longer
    dropped    the number of decisions that were not kept
    explicit   whether decisions are given to `add`; otherwise each comes with its label
    """

    def __init__(self, classes: int, opened: list[int] | None = None) -> None:
        self.classes, self.explicit = classes, False
        self.observed = self.processed = self.dropped = 0
        self._order = OpeningOrder([0] if opened is None else opened)
        self._labels = 0  # the number of labels that wait for the label of an earlier decision
        self._waiting: dict[int, Waiting] = {}
        # Where decisions without a label are found: by their key, by the number of their stream, by
        # the id of the object, and by their content, the oldest first.
        self._keys: dict[str, Waiting] = {}
        self._streams: dict[int, Waiting] = {}
        self._objects: dict[int, Observed] = {}
        self._alike: dict[Content, deque[int]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def stalled(self) -> str:
        """Which input the others wait for, in words; empty if none waits."""
        words = [self._order.stalled] if self._order.held else []
        if self._labels:
            one = self._waiting[self.processed]
            named = f" ({one.key!r})" if one.key else ""
            number = self.processed if one.number < 0 else one.number
            some = f"{self._labels:,} labels wait" if self._labels > 1 else "1 label waits"
            words.append(f"{some} for that of decision {number}{named}: give it, or None")
        return "; ".join(words)

    def add(self, decision: Decision | Decisions, key: str = "") -> list[Found]:
        """A decision, or the decisions of a batch, whose labels are not known yet.

        Returns the inputs whose turn has come: later ones may have waited for this one.
        """
        contents = _contents(decision)
        if not isinstance(key, str) or (key and isinstance(decision, Decisions)):
            raise InputError("key must be a string, for one decision: give decisions[i] one by one to name each of them.")
        if key in self._keys or id(decision) in self._objects:
            what = f"the key {key!r}" if key in self._keys else "this decision"
            raise InputError(f"{what} waits for a label already: give each decision once.")
        if any(one.classes and max(one.classes) >= self.classes for one in contents):
            raise InputError(f"the decision is among more than {self.classes} classes: give decisions of the rule that is watched.")
        if isinstance(decision, Decision) and decision.number is not None:
            return self._hold(Waiting(contents[0], key, decision.number))
        self._order.check_batch()
        first, kept = self.observed, contents[: MOST_WAITING - len(self)]
        self.observed += len(contents)
        self.dropped += len(contents) - len(kept)
        if kept:
            observed = Observed(decision, range(first, first + len(kept)), len(kept))
            self._objects[id(decision)] = observed
            for position, content in zip(observed.numbers, kept, strict=True):
                one = Waiting(content, key, -1, observed)
                self._index(one)
                self._await(position, one)
        return [(first + row, content.risk) for row, content in enumerate(contents)]

    def skip(self, number: int, risk: float | None) -> list[Found]:
        """A stream that gets no answer. Returns the inputs whose turn has come."""
        if not is_integer(number) or number < 0:
            raise InputError(f"number is {number!r}: give the number of a stream, session.number.")
        if number in self._streams:
            advice = f"give its label, or update({number}, None)"
            raise InputError(f"number {number} was observed, and waits for its label: {advice}.")
        return self._hold(Waiting.without_answer(int(number), risk))

    def skip_open(self) -> list[Found]:
        """Skip every stream that is still open. Returns the inputs whose turn has come."""
        self._order.give_up_open()
        return self._release()

    def share_counter(self, opened: list[int]) -> None:
        """Count with the counter of another rule object, from the later of both on."""
        opened[0] = max(opened[0], self._order.opened[0])
        self._order.opened = opened

    def _hold(self, one: Waiting) -> list[Found]:
        self._order.check(one.number)
        self._order.hold(one)
        self._index(one)
        return self._release()

    def _release(self) -> list[Found]:
        found: list[Found] = []
        for one in self._order.release():
            if len(self) < MOST_WAITING:
                self._await(self.observed, one)
            else:
                self._forget(one)
                self.dropped += 1
            found.append((self.observed, one.content.risk))
            self.observed += 1
        return found

    def _index(self, one: Waiting) -> None:
        """Let a label find a decision that has none."""
        if one.miss == UNKNOWN and one.key:
            self._keys[one.key] = one
        if one.miss == UNKNOWN and one.number >= 0:
            self._streams[one.number] = one

    def _forget(self, one: Waiting) -> None:
        """Let no further label find a decision."""
        self._keys.pop(one.key, None)
        self._streams.pop(one.number, None)

    def _await(self, position: int, one: Waiting) -> None:
        self._waiting[position] = one
        self._labels += one.miss not in (UNKNOWN, NEVER)
        if one.miss == UNKNOWN and one.by_content:
            self._alike.setdefault(one.content, deque()).append(position)

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

    def add_labels(self, decision: Decision | Decisions | str | int, labels: Integers | None) -> list[Ready]:
        """Take checked labels of a decision or a batch, which is given as the object, or by key or number.

        Returns, for each input that can be processed now, its position and whether it missed.
        """
        found = self._find(decision)
        known = [NEVER] * len(found) if labels is None else labels.tolist()
        for one, truth in zip(found, known, strict=False):  # the last ones of a batch may not have been kept
            if one is not None:
                self._label(one, NEVER if labels is None else int(truth not in one.content.classes))
        return self.take()

    def give_up(self, before: int) -> list[Ready]:
        """Give up the labels of the inputs at positions below `before`. Returns as `add_labels`."""
        late = [position for position in self._waiting if position < before]
        for one in (self._waiting[position] for position in late):
            if one.miss == UNKNOWN:
                self._label(one, NEVER)
        return self.take()

    def is_new(self, decision: Decision | Decisions | str | int) -> bool:
        """Whether a label comes with a decision that was not observed: `add` must be called first.

        The number of a stream tells. Others are new where no decision was ever observed by itself.
        """
        if isinstance(decision, Decision) and decision.number is not None:
            return not self._order.has(decision.number)
        return not self.explicit and isinstance(decision, (Decision, Decisions))

    def _find(self, decision: Decision | Decisions | str | int) -> list[Waiting | None]:
        """A decision, or those of a batch, that waits for labels; None for one that was not kept."""
        found: list[Waiting | None] = []
        if isinstance(decision, str):
            what = f"no decision with the key {decision!r} waits"
            found = [self._keys[decision]] if decision in self._keys else []
        elif is_integer(decision) or (isinstance(decision, Decision) and decision.number is not None):
            number = decision.number if isinstance(decision, Decision) else decision
            what = f"decision {number} does not wait"
            by_stream = self._order.numbered or isinstance(decision, Decision)
            one = (self._streams if by_stream else self._waiting).get(number)  # type: ignore[arg-type]
            found = [one] if one is not None else []
        else:
            what, observed = "this decision does not wait", self._objects.get(id(decision))
            numbers = self._find_alike(_contents(decision)) if observed is None else observed.numbers
            found = [self._waiting.get(number) for number in numbers]
        labelled = sum(one is not None and one.miss != UNKNOWN for one in found)
        if 0 < labelled < len(found):
            raise InputError(f"{labelled} of these decisions have labels already: give the others, as update(decisions[i], label).")
        if not found or labelled:
            limit = f" {self.dropped:,} decisions were not kept, because at most {MOST_WAITING:,} can wait." if self.dropped else ""
            raise InputError(f"{what} for a label: observe every decision once, and update it once.{limit}")
        return found

    def _find_alike(self, contents: list[Content]) -> Sequence[int]:
        """The oldest decisions in a row with these contents; decisions that were not kept may have any."""
        for first in self._alike.get(contents[0], ()) if contents else ():
            numbers = range(first, first + len(contents))
            found = [self._waiting.get(number) for number in numbers]
            same = all(one is None or one.content == content for one, content in zip(found, contents, strict=True))
            if same and numbers[-1] < self.observed:
                return numbers
        return ()

    def _label(self, one: Waiting, miss: int) -> None:
        if one.observed is not None or one.by_content:
            self._forget_object(one)
        self._forget(one)
        one.miss, one.observed = miss, None
        if one.number < self._order.next:  # it is not held back
            self._labels += miss != NEVER

    def _forget_object(self, one: Waiting) -> None:
        if one.by_content:
            alike = self._alike[one.content]
            position = next(number for number in alike if self._waiting[number] is one)
            alike.remove(position)
            if not alike:
                del self._alike[one.content]
        if one.observed is not None:
            one.observed.left -= 1
            if not one.observed.left:
                del self._objects[id(one.observed.decision)]

    def take(self) -> list[Ready]:
        """The inputs that can be processed now, in their order."""
        ready: list[Ready] = []
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
            ready.append((self.processed, None if one.miss == NEVER else bool(one.miss)))
            self._labels -= one.miss != NEVER
            del self._waiting[self.processed]
            self.processed += 1
        return ready

    def saved(self) -> SavedQueue:
        """The queue as it goes into a file."""
        order = self._order
        held = [order.held[number] for number in sorted(order.held)]
        waiting = [*self._waiting.values(), *held]
        contents = [one.content for one in waiting]
        sets = np.zeros((len(waiting), self.classes), dtype=bool)
        for row, content in enumerate(contents):
            sets[row, list(content.classes)] = True
        positions = [*self._waiting, *[-1] * len(held)]
        return SavedQueue(
            self.observed,
            self.processed,
            self.dropped,
            self.explicit,
            _integers(positions),
            _integers(content.row for content in contents),
            _integers(content.checkpoint for content in contents),
            np.array([math.nan if content.risk is None else content.risk for content in contents], np.float64),
            _integers(one.miss for one in waiting),
            sets,
            tuple(one.key for one in waiting),
            _integers(one.number for one in waiting),
            order.start,
            order.next,
            order.opened[0],
            order.numbered,
        )

    @classmethod
    def restored(cls, saved: SavedQueue, classes: int, opened: list[int] | None = None) -> Self:
        """A queue that was saved; a ValueError for one that no queue can have written.

        The counter of the rule goes on where it was.
        """
        positions, streams = _checked(saved, classes)
        counter = [0] if opened is None else opened
        queue = cls(classes, counter)
        queue.observed, queue.processed, queue.dropped, queue.explicit = saved.observed, saved.processed, saved.dropped, saved.explicit
        order = queue._order
        order.start, order.next, order.numbered = saved.start, saved.next, saved.numbered
        counter[0] = max(counter[0], saved.opened, saved.next)
        arrays = (positions, streams, saved.rows, saved.checkpoints, saved.risks, saved.misses)
        columns = zip(*(one.tolist() for one in arrays), saved.keys, saved.sets, strict=True)
        for position, stream, row, checkpoint, risk, miss, key, answer in columns:
            classes_of = tuple(np.flatnonzero(answer).tolist())
            content = Content(row, checkpoint, None if math.isnan(risk) else risk, classes_of)
            one = Waiting(content, key, stream, None, miss)
            queue._index(one)
            if position < 0:
                order.hold(one)
            else:
                queue._await(position, one)
        return queue


def _checked(saved: SavedQueue, classes: int) -> tuple[Integers, Integers]:
    """The positions and the stream numbers in a file, if a queue can have written them."""
    count, positions = len(saved.keys), saved.numbers
    streams = np.full(count, -1) if saved.streams is None else saved.streams
    arrays = (positions, streams, saved.rows, saved.checkpoints, saved.risks, saved.misses)
    if any(values.shape != (count,) for values in arrays) or saved.sets.shape != (count, classes):
        raise ValueError("contents of another number of decisions")
    if not np.isin(saved.misses, (NEVER, UNKNOWN, 0, 1)).all():
        raise ValueError("labels that no queue has")
    held = positions < 0
    waiting = positions[~held]
    inside = ((waiting >= saved.processed) & (waiting < saved.observed)).all()
    if not inside or (np.diff(waiting) <= 0).any() or held[: len(waiting)].any() or len(waiting) > MOST_WAITING:
        raise ValueError("decisions that wait in no order")
    if len(waiting) and (waiting[0] != saved.processed or saved.misses[0] != UNKNOWN):
        raise ValueError("a first decision that does not wait")
    if not 0 <= saved.processed <= saved.observed <= MOST_OBSERVED or not 0 <= saved.dropped <= saved.observed:
        raise ValueError("counts that no queue has")
    unlabelled = zip(saved.keys, saved.misses.tolist(), strict=True)
    named = [key for key, miss in unlabelled if key and miss == UNKNOWN]
    if len(set(named)) < len(named):
        raise ValueError("a key that two decisions have")
    if not 0 <= saved.start <= saved.next <= MOST_OBSERVED or not 0 <= saved.opened <= MOST_OBSERVED:
        raise ValueError("numbers of streams that no rule has")
    behind, ahead = streams[~held], streams[held]
    behind = behind[behind >= 0]
    in_turn = ((behind >= saved.start) & (behind < saved.next)).all()
    in_reach = ((ahead > saved.next) & (ahead < saved.next + MOST_AHEAD)).all()
    numbered = saved.numbered or not (len(behind) or len(ahead))
    if not in_turn or not in_reach or not numbered or len(ahead) >= MOST_HELD:
        raise ValueError("streams that are held back in no order")
    if (np.diff(behind) <= 0).any() or (np.diff(ahead) <= 0).any() or (streams < -1).any():
        raise ValueError("streams in no order of opening")
    return positions, streams


def _integers(values: Iterable[int]) -> Integers:
    return np.array(list(values), dtype=np.int64)


def _contents(decision: object) -> list[Content]:
    if not isinstance(decision, (Decision, Decisions)):
        raise InputError(f"decision is {decision!r}: give a Decision, or the Decisions of a batch.")
    return [Content.of(one) for one in (decision if isinstance(decision, Decisions) else (decision,))]
