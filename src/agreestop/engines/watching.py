"""Watch, then decide: a network on an endless stream, a spotter, and a rule behind its alarms.

At step t, with the outputs z of the members and the last `window` steps,

    evidence_t = z_{t-window+1} + … + z_t         spike counts, or the logits of step t
    score_t    = log Σ_k p_k(event) - log Σ_k (1 - p_k(event))     p_k = softmax(evidence_t of k)

is the log-odds of the event in the members' mean confidence. A score above the spotter's threshold
is a detection at step t. It opens a window: the class rule counts from step t + skip + 1 on and
decides at its own checkpoints, while the spotter rests. An event is detected before it ends, so
`skip` keeps the rest of it out of the counts. The network never starts again, and neither time nor
memory of a step grows.

The alarms are those of `spotter.alarms` on the scores of the stream, so its promise holds: the rest
must be at least as long as `skip` and the rule's last checkpoint together. The rule keeps its own
promise for the windows that it was calibrated for, those at alarms of *other* recordings than set
the threshold, one alarm a recording (or with `people=`). The same recordings for both would break
it.
"""

import re
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import (
    Floats,
    InputError,
    as_array,
    as_count,
    as_labels,
    check_finite,
    warn_user,
)
from agreestop.common.errors import quoted
from agreestop.decide.calibrated import (
    BEHIND,
    CalibratedRule,
    Session,
    check_calibrated,
    check_heard,
    check_source,
)
from agreestop.decide.confidence import log_confidence, log_softmax
from agreestop.decide.decisions import Decision
from agreestop.decide.leakage import people_in_common
from agreestop.decide.scores import Scores
from agreestop.decide.spotting import CalibratedSpotter, Detection, Recordings
from agreestop.decide.spotting.recordings import hash_of
from agreestop.decide.spotting.spotter import check_clock

from .early_stopping import DEFAULTS, RunOptions, check_rule, checkpoint_steps
from .protocol import Engine

TOGETHER, CHUNK = 8, 64  # recordings that are computed together, and steps
Event = int | str | Sequence[int | str]


def event_columns(event: Event, names: Sequence[str] | None, classes: int) -> list[int]:
    """The classes of an event, from numbers or names."""
    found = []
    for one in event if np.iterable(event) and not isinstance(event, str) else [event]:
        if isinstance(one, str):
            if names is None or one not in names:
                known = "no names of classes are known" if names is None else f"choose of {names}"
                raise InputError(f"event is {one!r}: {known}, or give the number of a class.")
            found.append(list(names).index(one))
        else:
            found.append(as_count(one, "event", least=0))
    different = len(set(found))
    if not found or max(found) >= classes or different == classes or different < len(found):
        raise InputError(
            f"event is {event!r} of {classes} classes: give one of them, or some but not all, each "
            "once."
        )
    return found


def event_of(spotter: CalibratedSpotter) -> list[int]:
    """The classes of the event that a spotter listens for, as its scores named them."""
    said = re.search(r"event=(\d+(?:,\d+)*)", spotter.heard)
    if said is None:
        raise InputError(
            "event is missing, and the spotter was calibrated on scores that do not name one: give "
            "event=, the class (a number or a name) whose log-odds it watches, or calibrate it on "
            "what listen returns."
        )
    return [int(one) for one in said[1].split(",")]


def log_odds(evidence: NDArray[Any], columns: Sequence[int]) -> Floats:
    """The log-odds (...) of some classes in the mean confidence of evidence (..., K, C)."""
    confidence = log_softmax(evidence.astype(np.float64))
    others = [one for one in range(evidence.shape[-1]) if one not in columns]
    pooled = [
        np.logaddexp.reduce(confidence[..., part], axis=(-2, -1)) for part in (columns, others)
    ]
    return np.asarray(pooled[0] - pooled[1])


@dataclass(frozen=True, eq=False, repr=False)
class Heard:
    """What an ensemble made of n recordings: outputs, and scores for a `Spotter`.

    Attributes
    ----------
    outputs : n arrays (T_i, K, C)
        Read-out spikes, or logits, of every step.
    scores : n arrays (T_i,)
        The log-odds of the event at every step, over the last `window` steps, with what made
        them. Their `ids` are hashes of the recordings, which windows cut from them carry.
    """

    outputs: tuple[NDArray[Any], ...]
    scores: Recordings
    spikes: bool
    names: tuple[str, ...] | None

    def after(
        self,
        alarms: ArrayLike,
        labels: ArrayLike,
        *,
        steps: int,
        skip: int = 0,
        spotter: CalibratedSpotter | None = None,
    ) -> Scores:
        """Scores of the `steps` steps after an alarm in each recording, to calibrate a class rule.

        alarms (n,): the step of one alarm in each recording, -1 for none. labels (n,): the class
        after it. skip: steps after the alarm that are left out. spotter: whose alarms these are; a
        rule that is calibrated on the scores then knows it, and `watch` refuses another one.
        Recordings without an alarm, or that end before the window, are left out too. The ids of the
        scores are those of the recordings: a spotter that was calibrated on the same ones is
        refused by `watch`.
        """
        at, truth = as_array(alarms, "alarms"), as_array(labels, "labels")
        classes = self.outputs[0].shape[-1]
        steps, skip = as_count(steps, "steps"), as_count(skip, "skip", least=0)
        if at.dtype.kind not in "iu":
            raise InputError(
                f"alarms has dtype {at.dtype}: give whole steps, as spotter.alarms returns them."
            )
        if at.shape != (len(self.outputs),) or truth.shape != at.shape:
            raise InputError(
                f"alarms has shape {at.shape} and labels {truth.shape} for {len(self.outputs)} "
                "recordings: give one of each, with the alarm -1 where there is none."
            )
        used = [
            row
            for row, alarm in enumerate(at.tolist())
            if 0 <= alarm < len(self.outputs[row]) - skip - steps
        ]
        if not used:
            raise InputError(
                f"no recording has an alarm and {skip + steps} steps after it: give longer "
                "recordings, or fewer steps."
            )
        if spotter is not None:
            self._check_alarms(at, spotter)
        labels_used = as_labels(truth[used], len(used), classes)
        firsts = at + 1 + skip
        parts = np.stack([self.outputs[row][firsts[row] : firsts[row] + steps] for row in used])
        evidence = np.cumsum(parts, axis=1, dtype=np.int64) if self.spikes else parts
        times, cut = tuple(range(1, steps + 1)), self.scores.rows(np.array(used))
        known = times, self.names, cut.engine, cut.ensemble_digest, np.array(cut.ids)
        heard = _with_skip(cut.heard, skip, spotter)
        return Scores(log_confidence(evidence), labels_used, *known, heard=heard)

    def _check_alarms(self, alarms: NDArray[Any], spotter: CalibratedSpotter) -> None:
        """Refuse steps at which the spotter raises no alarm."""
        check_calibrated(spotter, CalibratedSpotter)
        check_heard("spotter", spotter.heard, self.scores.heard)
        for row in np.flatnonzero(alarms >= 0):
            if alarms[row] not in (own := spotter.alarms(self.scores[row])):
                raise InputError(
                    f"alarms: the spotter raises none at step {alarms[row]} of recording {row} "
                    f"(its alarms: {quoted(own.tolist())}): give steps of spotter.alarms(scores), "
                    "or the spotter that raised these."
                )


def listen(
    engine: Engine,
    recordings: Sequence[ArrayLike],
    window: int,
    event: Event,
    names: tuple[str, ...] | None,
    digest: str = "",
) -> Heard:
    """Run members over recordings, n arrays (T_i, ...), for a `Spotter` and for a class rule."""
    window, columns = as_count(window, "window"), event_columns(event, names, engine.classes)
    arrays = [as_array(one, f"recordings[{row}]") for row, one in enumerate(recordings)]
    if not arrays:
        raise InputError("recordings is empty: give a list of arrays (T_i, ...), one at least.")
    if empty := [row for row, one in enumerate(arrays) if not one.size]:
        raise InputError(
            f"recordings[{empty[0]}] has shape {arrays[empty[0]].shape}: give one step at least."
        )
    shapes = {one.shape[1:] for one in arrays}
    if len(shapes) > 1 or arrays[0].ndim < 2:
        raise InputError(
            f"recordings have steps of shapes {sorted(shapes)}: give a list of arrays (T_i, ...) "
            "with steps of one shape, one for each recording."
        )
    for row, one in enumerate(arrays):
        if one.dtype.kind == "f":
            check_finite(one, f"recordings[{row}]")
    outputs: list[NDArray[Any]] = []
    for first in range(0, len(arrays), TOGETHER):
        some = arrays[first : first + TOGETHER]
        longest = max(map(len, some))
        # a type that holds the numbers of all of them
        whole = np.zeros((len(some), longest, *some[0].shape[1:]), np.result_type(*some))
        for row, one in enumerate(some):
            whole[row, : len(one)] = one
        run, parts = engine.begin(whole), []
        for begin in range(0, longest, CHUNK):
            parts.append(run.advance(min(CHUNK, longest - begin)))
        found = np.concatenate(parts, axis=1)
        outputs += [found[row, : len(one)].copy() for row, one in enumerate(some)]
    spikes = engine.output == "spikes"
    for row, one in enumerate(() if spikes else outputs):
        check_finite(one, f"the output of the members for recordings[{row}]")
    scores = tuple(log_odds(_windowed(one, window) if spikes else one, columns) for one in outputs)
    heard = _in_words(engine, window, columns)
    inputs = tuple(map(hash_of, arrays))
    known = Recordings(
        scores, engine=engine.name, ensemble_digest=digest, heard=heard, inputs=inputs
    )
    return Heard(tuple(outputs), known, spikes, names)


def _in_words(engine: Engine, window: int, columns: Sequence[int]) -> str:
    """What decides the scores of a stream, as spotters and rules keep it; logits have no window."""
    event = f"event={','.join(map(str, sorted(columns)))}"
    return f"window={window}, {event}" if engine.output == "spikes" else event


def _with_skip(heard: str, skip: int, spotter: CalibratedSpotter | None) -> str:
    words = f"{heard}, skip={skip}"
    if spotter is None:
        return words
    return f"{words}{BEHIND}alarms above {spotter.threshold!r}, rest={spotter.spotter.rest}"


def _windowed(outputs: NDArray[Any], window: int) -> NDArray[Any]:
    """Counts (T, K, C) over the last `window` steps."""
    counts = np.cumsum(outputs, axis=0, dtype=np.int64)
    counts[window:] -= counts[:-window].copy()
    return np.asarray(counts)


@final
class WatchSession:
    """A stream without an end under watch: push each step; `ensemble.watch` opens one.

    Attributes
    ----------
    time : int
        Steps so far.
    calibrated : CalibratedRule
        The rule that decides after a detection.
    detection : Detection or None
        The detection whose window is open.
    score : float
        The spotter's score of the last step.
    note : str
        A sentence where the spotter or the rule does not know the window, event and skip that its
        scores were made with, so that they could not be compared; else "".
    """

    def __init__(
        self,
        engine: Engine,
        spotter: CalibratedSpotter,
        calibrated: CalibratedRule,
        window: int,
        event: Event | None = None,
        names: tuple[str, ...] | None = None,
        options: RunOptions = DEFAULTS,
        skip: int = 0,
        group: ArrayLike | None = None,
    ) -> None:
        check_calibrated(spotter, CalibratedSpotter)
        check_rule(calibrated, engine, options)
        terms = calibrated.rule.terms
        if terms.reads != "log_confidence":
            raise InputError(
                f"the rule reads {terms.reads}, and members that watch a stream give confidences "
                "of classes: give a rule for classes, such as ag.AgreeStop."
            )
        if calibrated.members_join:
            raise InputError(
                "the rule has a Schedule, and members do not join a stream that runs already: give "
                "a rule whose checkpoints are times."
            )
        self._times = checkpoint_steps(calibrated, engine, None)
        self._skip = as_count(skip, "skip", least=0)
        self._most = int(self._skip + self._times[-1])
        if self._most > spotter.spotter.rest:
            raise InputError(
                f"the rule may take {self._most} steps and the spotter rests for "
                f"{spotter.spotter.rest}: calibrate a Spotter with a rest of at least {self._most}."
            )
        _check_recordings(spotter, calibrated)
        _check_people(spotter, calibrated)
        wanted = event_of(spotter) if event is None else event
        self._columns = event_columns(wanted, names or calibrated.class_names, engine.classes)
        self._window = as_count(window, "window")
        known = spotter.engine, spotter.ensemble_digest
        allowed = options.any_engine, options.any_members
        check_source("spotter", known, (engine.name, options.digest), *allowed)
        self.note = _check_heard(
            spotter, calibrated, _in_words(engine, self._window, self._columns), self._skip
        )
        if calibrated.group_names is not None and group is None:
            raise InputError(
                "the rule has groups: give watch the group of this stream, group=, or calibrate "
                "the rule without groups."
            )
        calibrated.find_groups(None if group is None else np.asarray(group)[None], 1)
        self._group = group
        self._engine, self._watched, self.calibrated = engine, spotter, calibrated
        self._begin()

    def _begin(self) -> None:
        """The state before the first step."""
        self._live, self._spikes = self._engine.live(), self._engine.output == "spikes"
        shape = (self._engine.members, self._engine.classes)
        try:  # counts so far, by step
            self._ring = np.zeros((self._window, *shape), dtype=np.int64)
        except (MemoryError, ValueError):
            raise InputError(
                f"window is {self._window}, and counts of so many steps do not fit in memory: give "
                "a shorter one."
            ) from None
        self._opened = np.zeros(shape, dtype=np.int64)
        self._spotter = self._watched.stream()
        self._session: Session | None = None
        self._closed, self.time, self.score = False, 0, -np.inf
        self.detection: Detection | None = None

    def another(self) -> Self:
        """A session for another stream, of which nothing is checked again."""
        new = copy(self)
        new._begin()
        return new

    def push(
        self,
        events: ArrayLike | None = None,
        *,
        frame: ArrayLike | None = None,
        step: int | None = None,
    ) -> Detection | Decision | None:
        """Run the next step: a `Detection`, later the `Decision` on what follows it, or None.

        events: flat indices of the active inputs. frame: instead, one dense step of
        booleans or numbers. step: the step's number by the caller's clock, which must be the next
        one, `time`.
        """
        if self._closed:
            raise InputError("this stream was closed: open a new one with watch.")
        check_clock(step, self.time)
        evidence = self._live.push(events, frame=frame)
        place = self.time % self._window
        recent = evidence
        if self._spikes:
            recent = evidence - self._ring[place]
            self._ring[place] = evidence
        elif not np.isfinite(evidence).all():
            self._closed = True  # the members have made the step, and cannot take it back
            raise InputError(
                f"the output of the members is not finite at step {self.time}, so this stream was "
                "closed: check the members and this step's input, and open a new stream with watch."
            )
        self.time += 1
        self.score = float(log_odds(recent, self._columns))
        found = self._spotter.push(self.score)
        if self._session is not None:
            return self._judge(evidence, self._session)
        if found is not None:
            self.detection = found
            self._session = Session(self.calibrated, group=self._group)
            self._opened[:] = evidence if self._spikes else 0
        return found

    def _judge(self, evidence: NDArray[Any], session: Session) -> Decision | None:
        assert self.detection is not None
        counted_steps = self.time - 1 - self.detection.index - self._skip
        if counted_steps == 0 and self._spikes:
            self._opened[:] = evidence
        if self._times[session.index] != counted_steps:
            return None
        counted = evidence - self._opened if self._spikes else evidence
        decision = session.push(log_softmax(counted.astype(np.float64)))
        if decision is not None:
            self.detection = self._session = None
        return decision

    def close(self) -> str:
        """End the stream. Returns a sentence if a detection has no decision yet, else ""."""
        self._closed = True
        if self.detection is None:
            return ""
        return (
            f"the stream ended {self.time - 1 - self.detection.index} steps after the detection at "
            f"step {self.detection.index}, before the rule decided, which takes up to "
            f"{self._most}: this detection has no decision."
        )


def _check_heard(
    spotter: CalibratedSpotter, calibrated: CalibratedRule, heard: str, skip: int
) -> str:
    """Refuse another window, event or skip than calibrated with; what no file names is noted."""
    known = {
        "spotter": (spotter.heard, heard),
        "rule": (calibrated.heard, _with_skip(heard, skip, spotter)),
    }
    for what, (needed, given) in known.items():
        check_heard(what, needed, given)
    unknown = [what for what, (needed, _) in known.items() if not needed]
    if not unknown:
        if BEHIND in calibrated.heard:
            return ""
        return (
            "The rule cannot tell which spotter raised the alarms that it was calibrated after, so "
            "this is not checked: give that spotter to .after(..., spotter=)."
        )
    return (
        f"The {' and the '.join(unknown)} cannot tell with which window, event and skip the scores "
        "of calibration were made, so these are not checked: calibrate on what listen returns."
    )


def _check_recordings(spotter: CalibratedSpotter, calibrated: CalibratedRule) -> None:
    """Refuse a class rule that was calibrated on recordings that set the spotter's threshold."""
    if not calibrated.knows_ids:
        warn_user(
            "the rule was calibrated on scores without ids, so nobody knows whether the same "
            "recordings set the spotter's threshold, which would break the rule's promise: make "
            "its scores with listen(...).after(...)."
        )
        return
    used = sum(one.seen for one in calibrated.overlaps(np.array(spotter.ids)))
    if used:
        raise InputError(
            f"{used} of the recordings that set the spotter's threshold calibrated the rule too: "
            "calibrate the rule on alarms of other recordings."
        )


def _check_people(spotter: CalibratedSpotter, calibrated: CalibratedRule) -> None:
    """Refuse a class rule that was calibrated on people whose recordings set the threshold."""
    ours, theirs = spotter.known_people, calibrated.known_people
    if ours is None or theirs is None:
        return
    if used := people_in_common(ours, theirs):
        raise InputError(
            f"{used} of the people whose recordings set the spotter's threshold calibrated the "
            "rule too, and their recordings depend on each other: calibrate the rule on other "
            "people."
        )
