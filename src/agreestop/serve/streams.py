"""Streams without an end behind the server: scores under a spotter, or an ensemble that watches.

    scores            each is pushed to `CalibratedSpotter.stream`
    events, frames    each step is pushed to a session of `ensemble.watch`

A push finds any number of detections, and decisions on what follows them. The state of a stream
has a fixed size, however long it lasts. It has no drift monitor: detections have no labels, and
what follows the alarms of one recording is not exchangeable.
"""

from collections.abc import Sequence
from typing import Any, final

from numpy.typing import ArrayLike

from agreestop.common import InputError
from agreestop.decide.calibrated import check_calibrated
from agreestop.decide.decisions import Decision
from agreestop.decide.spotting import CalibratedSpotter, Detection, SpotterStream
from agreestop.engines.live_batch import LiveInput, Push, Reading
from agreestop.engines.watching import WatchSession

Found = tuple[Detection | Decision, ...]
"""What a push found, in the order of the steps."""
PUSH_STEPS = "this server watches with members: push the events, or a frame, of every step."
PUSH_SCORES = "this server reads scores: push one number for each step."


@final
class Streams:
    """Streams of one spotter, or like a `WatchSession`. It belongs to one thread.

    It has the methods of `LiveBatch`, but a push returns what it found, and goes on.
    """

    def __init__(self, spotter: CalibratedSpotter, watching: WatchSession | None = None) -> None:
        check_calibrated(spotter, CalibratedSpotter)
        self._spotter, self._watching = spotter, watching
        self._open: dict[LiveInput, SpotterStream | WatchSession] = {}

    @property
    def promise(self) -> str:
        """What is promised, in words."""
        words = f"{self._spotter.guarantee[0].upper()}{self._spotter.guarantee[1:]}"
        if self._watching is None:
            return words
        words = f"{words} After a detection, {self._watching.calibrated.guarantee}"
        return f"{words} {self._watching.note}".rstrip()

    def open(self, number: int, group: ArrayLike | None = None, fresh: bool = False) -> LiveInput:
        """Begin a stream."""
        if group is not None:
            raise InputError("a stream without an end has no group: leave it out.")
        row = LiveInput(number, -1, None)
        watching = self._watching
        self._open[row] = self._spotter.stream() if watching is None else watching.another()
        return row

    def check(self, one: Push) -> InputError | None:
        """What is wrong with a push as a whole, if it is."""
        if self._watching is not None:
            return InputError(PUSH_STEPS) if one.steps is None and one.frames is None else None
        for reading in one.evidence or (Reading(None),):
            if not isinstance(reading.value, (int, float)):
                return InputError(PUSH_SCORES)
        return None

    def push(self, pushes: Sequence[Push]) -> list[Found]:
        """Run the pushes in their order, each up to a step that is wrong: `row.failed` says why."""
        return [self._push(one) for one in pushes]

    def _push(self, one: Push) -> Found:
        row = one.row
        if row.failed is None:
            row.failed = self.check(one)
        found: list[Detection | Decision] = []
        try:
            steps = one.content if one.steps is None else one.steps.each()
            for step in steps if row.failed is None else ():
                result = self._step(self._open[row], step, one)
                row.time += 1
                if result is not None:
                    found.append(result)
        except InputError as error:
            row.failed = error
        return tuple(found)

    def _step(self, stream: Any, step: Any, one: Push) -> Detection | Decision | None:
        if one.evidence is not None:
            return stream.push(step.value)
        return stream.push(step) if one.frames is None else stream.push(frame=step)

    def end(self, row: LiveInput, most: int | None = None) -> Decision | None:
        """A stream without an end has none."""
        raise InputError("this stream has no end that could be answered: close it.")

    def close(self, row: LiveInput) -> float | None:
        """Forget a stream; its `note` says whether a detection has no decision."""
        stream = self._open.pop(row)
        row.note = stream.close() if isinstance(stream, WatchSession) else ""
        return None
