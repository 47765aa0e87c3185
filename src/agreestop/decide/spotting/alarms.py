"""Where a recording has alarms, at every threshold at once, and which events they find.

An alarm is a score above a threshold θ. After an alarm at step i the next is at i + rest + 1 at the
earliest. So the alarms of a recording depend on θ through the set {i : s_i > θ}, and change only
where θ passes a score that no alarm or rest covers (`alarm_sets`).

    found   an alarm in [start, end + within) of an event
    delay   steps from the start of a found event to its first alarm
"""

from bisect import bisect_right
from collections.abc import Iterator

import numpy as np

from agreestop.common import Booleans, Floats, Integers

LONGEST = 1 << 62  # steps: more are as good as without an end


def with_rest(steps: Integers, rest: int) -> Integers:
    """The steps at which there is an alarm, from the steps (in order) with a score above θ."""
    alarms, place = [], 0
    while place < len(steps):
        alarms.append(int(steps[place]))
        place = int(np.searchsorted(steps, alarms[-1] + rest, side="right"))
    return np.array(alarms, dtype=np.int64)


def alarm_sets(scores: Floats, rest: int) -> Iterator[tuple[float, list[int]]]:
    """All sets of alarms of a recording, from the strictest threshold to the boldest.

    Each comes with the score that every threshold must be below for it. Steps join in the order of
    their scores. One that an alarm or its rest covers changes nothing; another one is an alarm and
    moves those after it, as far as they overlap. The list changes with the next set.
    """
    order = np.argsort(-scores, kind="stable")
    levels, above = scores[order].tolist(), np.zeros(len(scores), dtype=bool)
    alarms: list[int] = []
    changed = False
    for place, step in enumerate(order.tolist()):
        above[step] = True
        at = bisect_right(alarms, step)
        if not at or step - alarms[at - 1] > rest:
            _insert(step, at, alarms, above, rest)
            changed = True
        if changed and (place + 1 == len(levels) or levels[place + 1] != levels[place]):
            yield levels[place], alarms
            changed = False


def _insert(step: int, at: int, alarms: list[int], above: Booleans, rest: int) -> None:
    """Add an alarm before alarms[at], and move the alarms that its rest covers."""
    moved, end = [step], at
    while end < len(alarms) and alarms[end] <= moved[-1] + rest:
        while end < len(alarms) and alarms[end] <= moved[-1] + rest:
            end += 1
        # scores above the threshold that the covered alarm kept from being alarms
        until = min(alarms[end - 1] + rest + 1, *alarms[end : end + 1], len(above))
        free = above[moved[-1] + rest + 1 : until]
        if not free.any():
            break
        moved.append(moved[-1] + rest + 1 + int(free.argmax()))
    alarms[at:end] = moved


def false_alarm_levels(scores: Floats, counted: Booleans, rest: int, cap: int) -> Floats:
    """(cap,): the thresholds below which there are 1, 2, ... false alarms at some stricter one."""
    levels, most = np.full(cap, -np.inf), 0
    for level, alarms in alarm_sets(scores, rest):
        false = min(int(np.count_nonzero(counted[alarms])), cap)
        if false > most:
            levels[most:false], most = level, false
        if most == cap:
            break
    return levels


def miss_levels(
    scores: Floats, events: Integers, rest: int, within: int
) -> list[tuple[float, int]]:
    """(threshold, events): from it on, this many more events are missed at a bolder threshold."""
    if not len(events):
        return []
    levels, missed = [], []
    for level, alarms in alarm_sets(scores, rest):
        levels.append(level)
        missed.append(len(events) - len(found_delays(np.array(alarms), events, within)))
    # from the strictest set of alarms on there are none; the sets are now read from the boldest on
    most = np.maximum.accumulate(np.array([len(events), *missed])[::-1])
    rises = np.diff(most, prepend=0)
    below = [-np.inf, *levels[::-1]]
    return [(level, int(rise)) for level, rise in zip(below, rises, strict=True) if rise]


def found_delays(alarms: Integers, events: Integers, within: int) -> Integers:
    """Steps from the start of each event that is found to its first alarm."""
    first = np.append(alarms, np.iinfo(np.int64).max)[np.searchsorted(alarms, events[:, 0])]
    found = first < events[:, 1] + min(within, LONGEST)
    return np.asarray((first - events[:, 0])[found])
