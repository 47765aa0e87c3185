"""Schedules: members that join while an input is watched.

A look is a pair (time, members): the rule judges the first k members after t steps. Looks come in a fixed order in which neither number
ever falls, so everything that holds for checkpoints holds for looks. A member that joins late replays what it missed, so an input that
stops at the look (t, k) has cost t·k member-steps.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Self

from agreestop.common import InputError, is_integer, is_number

EXAMPLE = "for example Schedule([(1, 1), (1, 2), (2, 3), (4, 6)])"

LATEST = 2**53  # the last whole number before which a float holds all


def as_time(value: Any) -> float:
    """A time as a number above 0; a whole number becomes an integer."""
    if not is_number(value) or value <= 0:
        raise InputError(f"checkpoints holds {value!r}: times must be positive and finite, so give times as numbers above 0.")
    if value > LATEST:
        raise InputError(f"checkpoints holds {value!r:.40}: times go up to 2^53, so count time in a larger unit.")
    return int(value) if float(value).is_integer() else float(value)


class Schedule(tuple[float, ...]):
    """The looks of a rule, pairs (time, members), instead of checkpoints: `AgreeStop(target, checkpoints=Schedule([...]), ...)`.

    It is the tuple of its times, which may repeat. `members` (M,) is the number of members at each look.
    """

    members: tuple[int, ...]

    def __new__(cls, looks: Iterable[tuple[float, int]]) -> Self:
        try:
            pairs = [(time, count) for time, count in looks]
        except (TypeError, ValueError):
            raise InputError(f"a schedule needs pairs (time, members), {EXAMPLE}.") from None
        if not pairs:
            raise InputError(f"the schedule is empty: give at least one pair (time, members), {EXAMPLE}.")
        times = [as_time(time) for time, _ in pairs]
        for _, count in pairs:
            if not is_integer(count) or count < 1:
                raise InputError(f"the schedule holds {count!r} members: give whole numbers of at least 1.")
        members = [int(count) for _, count in pairs]
        for (time, count), (later, more) in pairwise(zip(times, members, strict=True)):
            if later < time or more < count or (later, more) == (time, count):
                advice = "neither number may fall and no look may repeat"
                raise InputError(f"the schedule's look ({later}, {more}) follows ({time}, {count}), but {advice}: put the looks in order.")
        schedule = super().__new__(cls, times)
        schedule.members = tuple(members)
        return schedule

    @property
    def looks(self) -> tuple[tuple[float, int], ...]:
        """The pairs (time, members)."""
        return tuple(zip(self, self.members, strict=True))

    @property
    def times(self) -> tuple[float, ...]:
        """The times, each of them once."""
        return tuple(dict.fromkeys(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.looks == other.looks

    def __ne__(self, other: object) -> bool:  # a tuple has one of its own
        return not self == other

    def __hash__(self) -> int:
        return hash(self.looks)

    def __repr__(self) -> str:
        return f"Schedule({list(self.looks)})"

    def __getnewargs__(self) -> tuple[tuple[tuple[float, int], ...]]:
        return (self.looks,)


def check_members(checkpoints: Iterable[float], members: int) -> None:
    """Refuse a schedule that asks for more members than there are."""
    if isinstance(checkpoints, Schedule) and checkpoints.members[-1] > members:
        raise InputError(f"the schedule asks for {checkpoints.members[-1]} members and there are {members}: ask for at most {members}.")


def members_at(checkpoints: Iterable[float], index: int) -> int | None:
    """The number of members at one look of a schedule; None for checkpoints, which look at all members."""
    return checkpoints.members[index] if isinstance(checkpoints, Schedule) else None
