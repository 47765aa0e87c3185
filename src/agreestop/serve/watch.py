"""The drift monitor behind the server: it sees every decision, gets labels that come later, and is kept in a file.

A label is processed once those of all earlier decisions are known, or are given up. A label is given up when it has not come within
`Limits.label_seconds`, or when more than `Limits.labels_waiting` decisions came since. That must have nothing to do with the label itself:
clients that report only misses would raise a false alarm.

All of it runs in one thread, which is not the thread that computes: neither a long list of labels nor a slow disk delays a decision.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic
from typing import final

from agreestop.common import InputError, file_lock
from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.decisions import Decision
from agreestop.decide.drift import DriftMonitor

from .limits import Limits


@final
class Watch:
    """A monitor and its file, which belongs to it until `close`. hits, labels: those of decisions since the start."""

    def __init__(self, calibrated: CalibratedRule, path: Path | None, limits: Limits) -> None:
        self._path, self._limits = path, limits
        with ExitStack() as held:
            if path is not None:
                held.enter_context(file_lock(path))  # two servers would write over each other's evidence
            self.monitor = DriftMonitor(calibrated) if path is None else DriftMonitor.resume(path, calibrated)
            self._answers: dict[str, tuple[int, ...]] = {}  # the classes of the decisions since the start that wait for their labels
            self._marks = deque([(monotonic(), self.monitor.observed)])  # how many decisions there were at some times
            self._changed, self._given_up = True, self.monitor.processed
            self.labels = self.hits = 0
            self.save()  # now rather than later it shows that the file cannot be written
            self._lock = held.pop_all()

    def observe(self, decided: Sequence[tuple[str, Decision]]) -> None:
        """Take decisions under their keys, in their order."""
        for key, decision in decided:
            self.monitor.observe(decision, key)
            self._answers[key] = decision.classes
        while len(self._answers) > self._limits.labels_waiting:
            del self._answers[next(iter(self._answers))]
        self._changed = True
        if self.monitor.observed - self._given_up > 2 * self._limits.labels_waiting:  # not one by one
            self._give_up(self.monitor.observed - self._limits.labels_waiting)

    def label(self, key: str, label: int | None) -> tuple[str, ...]:
        """Take the label of a decision. Returns the alarms so far, in words."""
        classes = self.monitor.calibrated.classes
        if label is not None and label >= classes:
            raise InputError(f"label is {label}: give a class index from 0 to {classes - 1}, or null if it will never be known.")
        watched = label is None or self.monitor.level is not None
        if watched:
            self.monitor.update(key, label)
        elif key not in self._answers:
            raise InputError(f"no decision with the key {key!r} waits for a label: give each label once, and in time.")
        answer = self._answers.pop(key, None)
        if answer is not None and label is not None:
            self.labels, self.hits = self.labels + 1, self.hits + (label in answer)
        self._changed = True
        return tuple(map(str, self.monitor.alarms))

    def keep(self) -> None:
        """Give up labels that are late, and save what has changed; to be called every now and then."""
        now = monotonic()
        self._marks.append((now, self.monitor.observed))
        late = 0
        while self._marks and self._marks[0][0] <= now - self._limits.label_seconds:
            late = self._marks.popleft()[1]
        self._give_up(late)
        self.save()

    def save(self) -> None:
        """Write the monitor to its file, if it has one and has changed."""
        if self._path is not None and self._changed:
            self.monitor.save(self._path)
        self._changed = False

    def close(self) -> None:
        """Save the monitor, and let another server have its file."""
        with self._lock:
            self.save()

    def _give_up(self, before: int) -> None:
        """Give up the labels of the decisions with smaller numbers."""
        for number in range(max(self._given_up, self.monitor.processed), before):
            with suppress(InputError):  # its label has come
                self.monitor.update(number, None)
            self._changed = True
        self._given_up = max(self._given_up, before)
