"""Checkpoints, times, and schedules in which members join while an input is watched.

A checkpoint of a `Schedule` is a pair (time, members): the rule judges the first k members after t
steps. Checkpoints come in a fixed order in which neither number ever falls, so all that holds for
times holds for pairs. A member that joins late replays what it missed, so an input that stops at
(t, k) has cost t·k member-steps.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Self

from .arrays import is_integer, is_number
from .errors import InputError

EXAMPLE = "for example Schedule([(1, 1), (1, 2), (2, 3), (4, 6)])"
LATEST = 2**53  # floats hold every integer up to this one


def as_time(value: Any) -> float:
    """Check a time: a number above 0. Integral numbers become integers."""
    if not is_number(value) or value <= 0:
        raise InputError(
            f"checkpoints holds {value!r}: "
            "times must be positive and finite, so give times as numbers above 0."
        )
    if value > LATEST:
        raise InputError(
            f"checkpoints holds {value!r:.40}: times go up to 2^53, so count time in a larger unit."
        )
    return int(value) if float(value).is_integer() else float(value)


class Schedule(tuple[float, ...]):
    """Checkpoints of a rule as pairs (time, members), for members that join over time.

    A schedule is the tuple of its times, which may repeat.

    Parameters
    ----------
    looks : iterable of (float, int)
        The pairs (time, members), in an order in which neither number falls and no pair repeats.

    Attributes
    ----------
    looks : tuple of (float, int)
        The pairs (time, members).
    members : tuple of int
        The number of members at each checkpoint.
    times : tuple of float
        The times without repeats.

    Examples
    --------
    >>> import agreestop as ag
    >>> schedule = ag.Schedule([(1, 1), (1, 2), (2, 3)])
    >>> schedule.members, schedule.times
    ((1, 2, 3), (1, 2))
    >>> rule = ag.AgreeStop(0.9, checkpoints=schedule, max_set_size=1)
    """

    members: tuple[int, ...]

    def __new__(cls, looks: Iterable[tuple[float, int]]) -> Self:
        try:
            given = [(time, count) for time, count in looks]
        except (TypeError, ValueError):
            raise InputError(f"a schedule needs pairs (time, members), {EXAMPLE}.") from None
        if not given:
            raise InputError(
                f"the schedule is empty: give at least one pair (time, members), {EXAMPLE}."
            )
        schedule = super().__new__(cls, [as_time(time) for time, _ in given])
        for _, count in given:
            if not is_integer(count) or count < 1:
                raise InputError(
                    f"the schedule holds {count!r} members: give whole numbers of at least 1."
                )
        schedule.members = tuple(int(count) for _, count in given)
        for earlier, later in pairwise(schedule.looks):
            if later[0] < earlier[0] or later[1] < earlier[1] or later == earlier:
                raise InputError(
                    f"the schedule's look {later} follows {earlier}, but neither number may fall "
                    "and no look may repeat: put the looks in order."
                )
        return schedule

    @property
    def looks(self) -> tuple[tuple[float, int], ...]:
        """The pairs (time, members)."""
        return tuple(zip(self, self.members, strict=True))

    @property
    def times(self) -> tuple[float, ...]:
        """The times without repeats."""
        return tuple(dict.fromkeys(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.looks == other.looks

    def __ne__(self, other: object) -> bool:  # the inherited one compares only the times
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
        raise InputError(
            f"the schedule asks for {checkpoints.members[-1]} members and there are {members}: "
            f"ask for at most {members}."
        )


def members_at(checkpoints: Iterable[float], index: int) -> int | None:
    """The number of members at a checkpoint of a schedule; None for plain times (all members)."""
    return checkpoints.members[index] if isinstance(checkpoints, Schedule) else None


def as_checkpoints(checkpoints: Sequence[float]) -> tuple[float, ...]:
    """Check checkpoint times: positive, finite and strictly increasing, or a `Schedule`.

    Integral numbers become integers, and a schedule stays a schedule.
    """
    if isinstance(checkpoints, Schedule):
        return checkpoints
    try:
        times = tuple(map(as_time, tuple(checkpoints)))
    except TypeError:
        raise InputError(
            f"checkpoints is {checkpoints!r}: give a list of times, for example (20, 40, 60, 80)."
        ) from None
    if not times:
        raise InputError("checkpoints is empty: give at least one time at which the rule may stop.")
    for earlier, later in pairwise(times):
        if later <= earlier:
            raise InputError(
                f"checkpoints must increase, but {later} follows {earlier}: "
                "sort them and drop repeats."
            )
    return times


def as_times(
    times: Sequence[float] | None,
    available: int,
    what: str = "log_confidence",
    checkpoints: Sequence[float] = (),
) -> tuple[float, ...]:
    """Check the times of an array with `available` checkpoints; None: the rule's checkpoints."""
    if times is None and len(checkpoints) != available:
        raise InputError(
            f"{what} has {available} checkpoints and the rule has {len(checkpoints)}: "
            "give as many, or pass times= to have a longer array cut to the rule's checkpoints."
        )
    known = as_checkpoints(checkpoints if times is None else times)
    if len(known) != available:
        raise InputError(
            f"times names {len(known)} moments and {what} has {available} checkpoints: "
            "give one time for each."
        )
    return known


def as_max_set_size(size: int) -> int:
    """Check the largest set that may stop, I_th: an integer of at least 1."""
    if not is_integer(size) or size < 1:
        raise InputError(
            f"max_set_size is {size!r}: "
            "give the largest set that may stop, an integer of at least 1."
        )
    return int(size)


def columns_of(
    checkpoints: Sequence[float], times: Sequence[float], what: str = "log_confidence"
) -> list[int]:
    """The position of each checkpoint among the times.

    The checkpoints of a schedule are found by time, or by pair among those of another schedule.
    """
    wanted: Sequence[object] = checkpoints
    known: Sequence[object] = times
    if isinstance(times, Schedule):
        if not isinstance(checkpoints, Schedule):
            raise InputError(
                f"{what} is cut to the looks of a schedule, but the rule has plain checkpoints: "
                "give the rule the schedule."
            )
        wanted, known = checkpoints.looks, times.looks
    columns = {time: column for column, time in enumerate(known)}
    for time in wanted:
        if time not in columns:
            raise InputError(
                f"times lacks the rule's checkpoint {time}: "
                f"{what} must hold every checkpoint of the rule."
            )
    return [columns[time] for time in wanted]
