"""Logs that a client cannot fill: of an event that comes again and again, a few records a
minute, with a count of the others.
"""

import logging
from collections.abc import Callable
from time import monotonic
from typing import final

AT_ONCE, SECONDS = 5, 60.0  # records of one kind, in that time
KINDS = 200  # that are counted apart; all further ones count as one kind


@final
class FewOfAKind(logging.Filter):
    """Passes AT_ONCE records of a kind in SECONDS.

    The next one that passes says how many were left out.

    A kind is a message before its arguments are filled in, and the type of its exception.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock = clock
        # when its time began, records since, records left out
        self._kinds: dict[object, list[float]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        fault = record.exc_info[0] if record.exc_info else None
        kind: object = (str(record.msg)[:100], fault)
        if kind not in self._kinds and len(self._kinds) >= KINDS:
            kind = None
        now = self._clock()
        counts = self._kinds.setdefault(kind, [now, 0, 0])
        if now - counts[0] > SECONDS:
            if counts[2]:
                record.msg = (
                    f"{record.getMessage()} (and {int(counts[2])} times more in the last "
                    f"{now - counts[0]:.0f} seconds)"
                )
                record.args = ()
            counts[:] = [now, 0, 0]
        counts[1] += 1
        counts[2] += counts[1] > AT_ONCE
        return counts[1] <= AT_ONCE


FEW = FewOfAKind()
"""One for all servers of a process."""
