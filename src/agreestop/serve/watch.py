"""The drift monitor behind the server: it sees every decision, gets labels that come later, and is
kept in a file.

Sessions count in the order in which they were opened, whatever order they end in. A session that
ends without a decision, because it was closed, idle, over its deadline or lost with its connection,
is an input without a miss; so are those that were open when the server ended.

A label is processed once those of all earlier decisions are known, or are given up. A label is
given up when it has not come within `Limits.label_seconds`, or when more than
`Limits.labels_waiting` decisions came since. It is then an input without a miss. After a restart
the labels of earlier decisions may come for `Limits.restart_seconds`: those of the last second
before a kill may be lost, and others must not wait for them.

All of it runs in one thread, which is not the thread that computes: neither a long list of labels
nor a slow disk delays a decision.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic, time
from typing import Any, final

from agreestop.common import InputError, file_lock
from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.decisions import Decision
from agreestop.decide.drift.monitor import Alarm, DriftMonitor

from .limits import Limits

RECENT_LABELS = 400


@final
class Watch:
    """A monitor and its file, which belongs to it until `close`. hits, labels: those of
    decisions since the start.
    """

    def __init__(self, calibrated: CalibratedRule, path: Path | None, limits: Limits) -> None:
        self._path, self._limits = path, limits
        # with a counter of its own: sessions of this server are numbered without a gap
        calibrated = replace(calibrated)
        with ExitStack() as held:
            if path is not None:
                # two servers would write over each other's evidence
                held.enter_context(file_lock(path))
            self.monitor = (
                DriftMonitor(calibrated) if path is None else DriftMonitor.resume(path, calibrated)
            )
            # the decisions since the start that wait for their labels
            self._answers: dict[str, Decision] = {}
            # How many inputs there were at some times; those of an earlier run are due after
            # restart_seconds.
            early = limits.label_seconds - min(limits.label_seconds, limits.restart_seconds)
            self._marks = deque([(monotonic() - early, self.monitor.observed)])
            self._changed, self._given_up = True, self.monitor.processed
            self.labels = self.hits = 0
            # labels that were taken and whether they were hits, in case they are sent again
            self.taken: dict[str, tuple[Any, bool | None]] = {}
            self.recent_hits: deque[bool] = deque(maxlen=RECENT_LABELS)
            # when alarms were raised, in seconds since 1970; None: before this server started
            self.alarm_times: dict[str, float | None] = {
                alarm.kind: None for alarm in self.monitor.alarms
            }
            self.save()  # now rather than later it shows that the file cannot be written
            self._lock = held.pop_all()

    @property
    def next_number(self) -> int:
        """The number of the next session: numbers go on after a restart."""
        return self.monitor.calibrated.opened[0]

    def observe(
        self,
        decided: Sequence[tuple[str, Decision]],
        skipped: Sequence[tuple[int, float | None]] = (),
    ) -> list[Alarm]:
        """Take decisions under their keys, and sessions without one: their numbers
        and first risks. Returns new alarms.
        """
        # a number is refused that was given up because very many later ones came before it
        for key, decision in decided:
            with suppress(InputError):
                self.monitor.observe(decision, key)
                self._answers[key] = decision
        for number, risk in skipped:
            with suppress(InputError):
                self.monitor.skip(number, risk)
        while len(self._answers) > self._limits.labels_waiting:
            del self._answers[next(iter(self._answers))]
        self._changed = True
        # not one by one
        if self.monitor.observed - self._given_up > 2 * self._limits.labels_waiting:
            self._give_up(self.monitor.observed - self._limits.labels_waiting)
        return self._new_alarms()

    def label(self, key: str, label: Any) -> tuple[bool | None, list[Alarm]]:
        """Take the label of a decision.

        Returns whether the decision holds it, None where that is not known, and new alarms.
        """
        calibrated = self.monitor.calibrated
        terms, classes = calibrated.rule.terms, calibrated.classes
        decision = self._answers.get(key)
        if label is not None and terms.reads == "log_confidence" and label >= classes:
            raise InputError(
                f"label is {label}: give a class index from 0 to {classes - 1}, or null if it will "
                "never be known."
            )
        watched = label is None or self.monitor.level is not None
        # a text or a number is compared with the answer, which is not kept over a restart
        by_answer = label is not None and terms.reads != "log_confidence"
        if decision is None and label is not None and (by_answer or not watched):
            raise InputError(
                f"no decision with the key {key!r} waits for a label: it has its label already, "
                "its time is over, or the key is unknown."
            )
        if watched:
            self.monitor.update(decision if by_answer and decision else key, label)
        self._answers.pop(key, None)
        hit = None
        if decision is not None and label is not None:
            hit = _is_hit(decision, label)
            self.labels, self.hits = self.labels + 1, self.hits + hit
            self.recent_hits.append(hit)
        self._changed, self.taken[key] = True, (label, hit)
        if len(self.taken) > self._limits.labels_waiting:
            del self.taken[next(iter(self.taken))]
        return hit, self._new_alarms()

    def _new_alarms(self) -> list[Alarm]:
        """The alarms that were raised since the last call."""
        new = [alarm for alarm in self.monitor.alarms if alarm.kind not in self.alarm_times]
        self.alarm_times.update({alarm.kind: time() for alarm in new})
        return new

    def keep(self) -> None:
        """Give up labels that are late, and save what has changed; to be called
        every now and then.
        """
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
        """Give up the labels of the first inputs."""
        if before > self.monitor.processed:
            self.monitor.give_up(before)
            self._changed = True
        self._given_up = max(self._given_up, before)


def _is_hit(decision: Decision, label: Any) -> bool:
    """Whether a label does not show that a decision is wrong."""
    if isinstance(label, str):
        return not decision.answered or label in (decision.names or ())
    if decision.lower is not None and decision.upper is not None:
        return bool(decision.lower <= label <= decision.upper)
    return not decision.answered or label in decision.classes
