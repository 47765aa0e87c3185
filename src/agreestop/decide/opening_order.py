"""The order in which inputs count: streams in the order in which they were opened.

Streams side by side end in the order of their ease. A monitor that took them as they end would see
easy inputs first, and raise an alarm without any drift. So a decision with a number is held back
until every earlier number has arrived: its decision was observed, or it was skipped.

A number that does not arrive before MOST_HELD later ones have is given up: it keeps its turn, as an
input without a miss.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, Self

from agreestop.common import InputError

from .decisions import Decision, Decisions

MOST_HELD = 10_000
MOST_AHEAD = 100_000
"""How far a number may lie after the next one in turn."""
UNKNOWN, NEVER = -1, -2
"""Labels that are not known yet, or that will never be known."""


class Content(NamedTuple):
    """What is kept of a decision.

    Its row in a batch (-1: none), its checkpoint, its first risk (None: not known), its classes.
    """

    row: int
    checkpoint: int
    risk: float | None
    classes: tuple[int, ...]

    @classmethod
    def of(cls, decision: Decision) -> Self:
        row = -1 if decision.row is None else decision.row
        return cls(row, decision.index, as_risk(decision.first_risk), decision.classes)


def as_risk(risk: float | None) -> float | None:
    """A first risk; None where it is not known."""
    return None if risk is None or math.isnan(risk) else float(risk)


@dataclass(eq=False, slots=True)
class Observed:
    """A decision or a batch as it was observed, and how many of its labels are missing.

    It holds the object, so that no other one gets its id.
    """

    decision: Decision | Decisions
    numbers: range
    left: int


@dataclass(eq=False, slots=True)
class Waiting:
    """An input that is not processed yet, and whether its answer missed.

    number    of a stream: the order of opening; -1 for a decision without a number
    observed  None for a decision with a number, and for one that comes from a file
    """

    content: Content
    key: str
    number: int = -1
    observed: Observed | None = None
    miss: int = UNKNOWN

    @property
    def by_content(self) -> bool:
        """Whether an equal decision finds it: one from a file, or a row of a batch.

        A row of a batch is a new object each time it is read.
        """
        return self.number < 0 and (self.observed is None or self.content.row >= 0)

    @classmethod
    def without_answer(cls, number: int, risk: float | None = None) -> Self:
        """An input that was opened and got no answer."""
        return cls(Content(-1, 0, risk, ()), "", number, None, NEVER)


class OpeningOrder:
    """Holds decisions with numbers back until it is their turn.

    start     the first number that counts
    next      the number whose turn it is
    numbered  whether any decision had a number
    held      by number: those that came before their turn
    opened    the counter of the rule: the number of its next stream
    """

    def __init__(self, opened: list[int]) -> None:
        self.opened, self.numbered = opened, False
        self.start = self.next = opened[0]
        self.held: dict[int, Waiting] = {}

    def check(self, number: int) -> None:
        """Refuse a number that does not count any more, or that cannot be in this order."""
        if number < self.start:
            raise InputError(
                f"number {number} was opened before this monitor was made, which begins with "
                f"number {self.start}: make the monitor first, then open streams."
            )
        if self.has(number):
            raise InputError(
                f"number {number} was observed, skipped or given up before: observe or skip each "
                "input once; after a load, open streams with the rule of the monitor."
            )
        if number - self.next >= MOST_AHEAD:
            raise InputError(
                f"number {number} is far from number {self.next}, whose turn it is: number streams "
                "in the order of opening, or let the rule number them."
            )

    def has(self, number: int) -> bool:
        """Whether a number has arrived."""
        return number < self.next or number in self.held

    def check_batch(self) -> None:
        """Refuse decisions without a number while streams are open, since their turn comes first."""
        still_open = self.opened[0] - self.next
        if self.held or (self.numbered and still_open > 0):
            raise InputError(
                f"{max(still_open, 1)} streams that were opened before are neither observed nor "
                "skipped: a batch, or a decision without a number, counts after them, so give it then."
            )

    def hold(self, one: Waiting) -> None:
        """Take an input that was opened, before or at its turn."""
        self.numbered = True
        self.held[one.number] = one
        self.opened[0] = max(self.opened[0], one.number + 1)

    def release(self) -> list[Waiting]:
        """Inputs whose turn has come."""
        ready = []
        while self.next in self.held or len(self.held) >= MOST_HELD:
            ready.append(self.held.pop(self.next, Waiting.without_answer(self.next)))
            self.next += 1
        return ready

    def give_up_open(self) -> None:
        """Skip every number that is still open, because its session is gone.

        Where no decision ever had a number, the streams were not watched, and none is missing.
        """
        if not self.numbered:
            self.start = self.next = self.opened[0]
        end = min(self.opened[0], self.next + MOST_AHEAD)
        for number in range(self.next, end):
            if number not in self.held:
                self.held[number] = Waiting.without_answer(number)

    @property
    def stalled(self) -> str:
        """Which number the later ones are held back for, in words; empty if none is."""
        if not self.held:
            return ""
        some = f"{len(self.held):,} later inputs are" if len(self.held) > 1 else "1 later input is"
        first = f"number {self.next}, which is neither observed nor skipped"
        rest = f"after {MOST_HELD:,} later ones it is an input without a miss"
        return f"{some} held back for {first}; {rest}"
