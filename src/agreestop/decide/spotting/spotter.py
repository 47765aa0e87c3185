"""Spotter: alarms in streams without an end, with a promise about false alarms.

An alarm is a score above a threshold θ; after it the spotter rests. With n recordings, a cap B and
λ = -θ, so that small λ is safe,

    L_i(λ) = the most false alarms of recording i at any λ' ≤ λ, but at most B
    λ      = sup{ λ : (Σ_i L_i(λ) + B) / (n + 1) ≤ ε }             E min(false alarms, B) ≤ ε

With B = 1 that is P(any false alarm in a recording) ≤ ε. It needs n ≥ B/ε - 1 recordings. With
K people of N_j recordings each, person j counts by its mean: (Σ_j Σ_i L_ji(λ)/N_j + B)/(K + 1) ≤ ε
holds for a recording of a new person.

False alarms can be promised an hour instead. Recording i lasts H_i hours, and L_i(λ) - ε·H_i rises
with λ and is at most B, whatever the law of lengths, so the same proof gives

    λ = sup{ λ : Σ_i L_i(λ) + B ≤ ε·Σ_i H_i }                 E min(false alarms, B) ≤ ε·E[hours]

It needs B/ε hours of recordings.

Why the largest at any stricter threshold: with marked events, what lies near an event does not
count, and an alarm there rests over scores that would be false alarms at a stricter threshold. So
the count may fall as λ grows, and the proof needs it to rise. (Without events it rises by itself:
the first score above θ, the first after its rest and so on are the most that can be chosen.)

"Not found within D steps" is safe on the other side. Only the n' recordings with events count,
since others would promise that nothing is missed where nothing can be. M_i(θ), the largest share of
the events of recording i missed at any bolder threshold, gives
θ_det = sup{ θ : (Σ_i M_i(θ) + 1)/(n' + 1) ≤ β }. Both promises hold for every threshold from -λ up
to, but not at, θ_det.

Thresholds lie in gaps (see `thresholds`): every smaller λ keeps the first promise. A shift of the
scores of a recording by up to η moves every level by η; without events that covers every rounding.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import (
    Floats,
    InputError,
    Integers,
    KeptInFiles,
    StrPath,
    as_count,
    set_fields,
    warn_user,
)
from agreestop.common.errors import quoted
from agreestop.common.levels import REACH, Rounding, Target, as_exact, as_target, in_gap, in_words

from ..calibrated import check_heard, check_source, refused
from ..leakage import Marks, mark_ids, refuse_known_people
from ..rule_files import read_rule_file, write_rule_file
from ..thresholds import crossing, spread_of
from .alarms import false_alarm_levels, miss_levels, with_rest
from .evaluation import SpottingEvaluation, evaluate_alarms
from .recordings import Recordings, as_scores, shared_scores

HOUR = 3600
RECORDING, IN_AN_HOUR = "recording", "hour"  # what false alarms are promised for


@dataclass(frozen=True)
class Detection:
    """An alarm of a spotter.

    Attributes
    ----------
    index : int
        The step of the stream, counted from 0.
    score : float
        The score that was above the threshold.
    number : int
        How many alarms the stream had before.

    Examples
    --------
    >>> import agreestop as ag
    >>> ag.Detection(index=120, score=0.97)
    Detection(index=120, score=0.97, number=0)
    """

    index: int
    score: float
    number: int = 0


@dataclass(frozen=True)
class Spotter(KeptInFiles):
    """Raise an alarm where a score is above a calibrated threshold, in streams without an end.

    Parameters
    ----------
    false_alarms : float, str or Fraction
        ε: the mean number of false alarms in a recording that is promised, counted up to `cap`.
        With a cap of 1 it is the probability of any false alarm in a recording.
    cap : int
        B: false alarms of one recording above it do not count.
    rest : int
        Steps without an alarm after an alarm: after one at step i the next is at i + rest + 1 at
        the earliest.
    missed : float, str or Fraction, optional
        A second promise: the mean share of its events that are not found in a recording with
        events.
    within : int
        An alarm from its start to fewer than this many steps after its end finds an event.
    per : {"recording", "hour"}
        What `false_alarms` are counted for. "hour" needs `step_seconds`.
    step_seconds : float, str or Fraction, optional
        The length of a step. Evaluations then count false alarms an hour too.

    Notes
    -----
    *Guarantee.* E min(false alarms, cap) ≤ false_alarms, times E[hours] with per="hour", over the
    draw of the calibration recordings and of a new recording exchangeable with them: the same law
    of lengths, and events as often. Any score will do: a pooled confidence, a statistic of drift,
    another detector's output.

    Examples
    --------
    >>> import numpy as np, agreestop as ag
    >>> rng = np.random.default_rng(0)
    >>> recordings = [rng.normal(size=500) for _ in range(99)]
    >>> spotter = ag.Spotter(false_alarms=0.05, rest=20).calibrate(recordings)
    >>> scores = rng.normal(size=500)
    >>> scores[200:210] += 9
    >>> spotter.alarms(scores)
    array([200])

    At most one false alarm in eight hours, from twelve hours in recordings of any lengths:

    >>> recordings = [rng.normal(size=steps) for steps in rng.integers(10_000, 80_000, size=12)]
    >>> spotter = ag.Spotter("1/8", per="hour", step_seconds=0.08).calibrate(recordings)
    >>> "at most 0.125 false alarms an hour" in spotter.guarantee
    True
    """

    false_alarms: Target
    cap: int = 1
    rest: int = 0
    missed: Target | None = None
    within: int = 50
    per: str = RECORDING
    step_seconds: Target | None = None

    def __post_init__(self) -> None:
        for field in fields(self):  # files hold no numbers of numpy
            if isinstance(value := getattr(self, field.name), np.generic):
                plain = float(str(value)) if isinstance(value, np.floating) else value.item()
                set_fields(self, **{field.name: plain})
        as_count(self.cap, "cap")
        as_count(self.rest, "rest", least=0)
        as_count(self.within, "within", least=0)
        if self.per not in (RECORDING, IN_AN_HOUR):
            raise InputError(f"per is {quoted(self.per)}: choose '{RECORDING}' or '{IN_AN_HOUR}'.")
        below = self.cap if self.per == RECORDING else math.inf
        if not 0 < self.allowed < below:
            limit = f" and below the cap, {self.cap}" if self.per == RECORDING else ""
            raise InputError(
                f"false_alarms is {quoted(self.false_alarms)}: give a number above 0{limit}."
            )
        if self.step_seconds is not None:
            as_seconds(self.step_seconds)
        elif self.per == IN_AN_HOUR:
            raise InputError(
                "step_seconds is missing for false alarms an hour: give the length of a step, "
                "such as 0.08."
            )
        if self.missed is not None:
            as_target(self.missed, "missed")

    @property
    def allowed(self) -> Fraction:
        """ε, exactly as written."""
        return as_exact(self.false_alarms, "false_alarms", "a number such as 0.05 or '1/20'")

    @property
    def recordings_needed(self) -> int:
        """The fewest recordings, or people, with which the promise can be kept.

        Examples
        --------
        >>> Spotter(0.05).recordings_needed
        19
        """
        return -(-self.cap // self.allowed) - 1 if self.per == RECORDING else 1

    @property
    def hours_needed(self) -> float:
        """With per="hour": the fewest hours of recordings with which the promise can be kept.

        Examples
        --------
        >>> Spotter("1/8", per="hour", step_seconds=0.08).hours_needed
        8.0
        """
        return float(self.cap / self.allowed) if self.per == IN_AN_HOUR else 0.0

    def _budget(self, data: Recordings) -> Fraction:
        """The sum of capped counts that calibration recordings may have."""
        promised = data.count + 1 if self.per == RECORDING else self._hours(data)
        return self.allowed * promised - self.cap

    def _hours(self, data: Recordings) -> Fraction:
        """Hours of all recordings; of a mean recording of each person where there are people."""
        assert self.step_seconds is not None
        steps = [part * len(one) for part, one in zip(data.shares, data.scores, strict=True)]
        return sum(steps, Fraction(0)) * as_seconds(self.step_seconds) / HOUR

    def calibrate(
        self,
        recordings: Any,
        events: Sequence[ArrayLike] | None = None,
        near: int = 0,
        people: ArrayLike | None = None,
    ) -> "CalibratedSpotter":
        """Find the threshold from recordings that are used for nothing else.

        Parameters
        ----------
        recordings : list of (T_i,) arrays
            The scores of each recording, or `scores` of what `ensemble.listen` returns: the
            spotter then knows the window and event of its scores, and `watch` refuses others.
        events : list of lists of (start, end), optional
            The events of each recording, in steps; `end` is the first step after it. Without them
            every alarm is false.
        near : int
            Alarms at most this many steps before the first step of an event, or after its last
            step, are not false.
        people : (n,), optional
            The person of each recording: the promise is then for a recording of a new person.

        Returns
        -------
        CalibratedSpotter
        """
        data, near = Recordings.of(recordings, events, people), as_count(near, "near", least=0)
        self._check(data, near)
        if shared := shared_scores(data):
            warn_user(shared)
        levels = [
            false_alarm_levels(one, data.counted(row, near), self.rest, self.cap)
            for row, one in enumerate(data.scores)
        ]
        weights = [share for share in data.shares for _ in range(self.cap)]
        kth = -crossing(-np.concatenate(levels), weights, self._budget(data))
        scores = np.concatenate(data.scores)
        threshold = _above(kth, scores)
        limit = None if self.missed is None else self._limit(data.with_events())
        if limit is not None:
            eta = Rounding().largest(kth) if np.isfinite(kth) else 0.0
            threshold = threshold if threshold < limit - eta else kth + eta
            if not threshold < limit - eta:
                raise InputError(
                    f"no threshold keeps both promises: false_alarms needs one of at least "
                    f"{kth:.6g} and missed one below {limit:.6g}; allow more of one, or give a "
                    "better score."
                )
        if kth == scores.max() and (same := sum(one.max() == kth for one in data.scores)) > 1:
            warn_user(
                f"the highest score, {kth:g}, occurs in {same} of {len(data)} recordings, so only "
                "a higher one raises an alarm: give a score with more values, or allow more "
                "false_alarms."
            )
        known = None if data.people is None else data.count
        marks = None if data.people is None else np.unique(mark_ids(data.people))
        source = data.engine, data.ensemble_digest, data.heard, marks
        own = len(data), data.ids, limit, known
        return CalibratedSpotter(self, threshold, kth, near, *own, *source)

    def _check(self, data: Recordings, near: int) -> None:
        many, needed = data.count, self.recordings_needed
        what = "recordings" if data.people is None else "people"
        if many < needed:
            raise InputError(
                f"{many} {what} cannot promise {in_words(self.allowed)} false alarms a recording: "
                f"at least {needed} are needed (cap / false_alarms - 1)."
            )
        if self.per == IN_AN_HOUR:
            self._check_hours(data)
        short = [row for row, one in enumerate(data.scores) if len(one) <= self.rest]
        if short:
            raise InputError(
                f"recordings[{short[0]}] has {len(data.scores[short[0]])} steps and the rest is "
                f"{self.rest}: give longer recordings, or a shorter rest."
            )
        if not any(data.counted(row, near).any() for row in range(len(data))):
            raise InputError(
                f"every step of every recording lies near an event, with near={near}: no alarm can "
                "be false, so give recordings with steps away from events."
            )
        if self.missed is None:
            return
        some = data.with_events()
        if not len(some):
            raise InputError("missed is given without events: mark the events of the recordings.")
        missed = as_target(self.missed)
        if some.count < (least := math.ceil(1 / missed) - 1):
            raise InputError(
                f"{some.count} {what} with events cannot promise that at most {in_words(missed)} "
                f"of the events are missed: at least {least} are needed (1 / missed - 1)."
            )

    def _check_hours(self, data: Recordings) -> None:
        held, many = self._hours(data), data.count
        promised = self.allowed * held
        if promised >= self.cap * many:
            raise InputError(
                f"recordings of {float(held / many):.3g} hours may have "
                f"{float(promised / many):.3g} false alarms each, and cap={self.cap} counts no "
                "more: give a cap above that."
            )
        if promised < self.cap:
            mean = "" if data.people is None else ", with the mean of each person counted,"
            raise InputError(
                f"{len(data)} recordings of {float(held):.3g} hours in all{mean} cannot promise "
                f"{in_words(self.allowed)} false alarms an hour: at least "
                f"{self.hours_needed:.6g} hours are needed (cap / false_alarms)."
            )

    def _limit(self, data: Recordings) -> float:
        """θ_det, which every threshold must be below, from recordings with events."""
        assert self.missed is not None
        levels, weights = [], []
        for row, scores in enumerate(data.scores):
            marked = data.marked(row)
            for level, rise in miss_levels(scores, marked, self.rest, self.within):
                levels.append(level)
                weights.append(data.shares[row] * Fraction(rise, len(marked)))
        return crossing(np.array(levels), weights, as_target(self.missed) * (data.count + 1) - 1)

    alarms, evaluate = refused("find alarms with"), refused("evaluate")
    save, stream = refused("save"), refused("stream from")

    @classmethod
    def load(cls, path: StrPath) -> "CalibratedSpotter":
        """Read a calibrated spotter that `save` wrote."""
        return read_rule_file(path, CalibratedSpotter, _check_loaded)


def as_seconds(step_seconds: Target) -> Fraction:
    """The length of a step, exactly as written."""
    seconds = as_exact(step_seconds, "step_seconds", "a number above 0, such as 0.08")
    if seconds <= 0:
        raise InputError(f"step_seconds is {quoted(step_seconds)}: give a number above 0.")
    return seconds


def _above(kth: float, scores: Floats) -> float:
    """The threshold, moved up into a gap between the scores of calibration."""
    if not np.isfinite(kth):
        return kth
    rounding = Rounding()
    return -in_gap(-kth - rounding.largest(kth), -scores, rounding, REACH * spread_of(scores))


@dataclass(frozen=True, eq=False, repr=False)
class CalibratedSpotter(KeptInFiles):
    """A spotter with its threshold. Make one with `Spotter.calibrate`.

    Attributes
    ----------
    spotter
        The settings.
    threshold
        The score above which there is an alarm; it lies in a gap between calibration scores.
    kth_value
        The least threshold that keeps the promise, which `threshold` is no smaller than.
    near
        Alarms at most this many steps before the first step of an event, or after its last step,
        are not false.
    n
        The number of calibration recordings.
    ids : (n,)
        A hash of each calibration recording.
    limit
        With `missed`: every threshold below it keeps that promise.
    people
        The number of people in calibration, where the promise is for new people.
    engine, ensemble_digest, heard
        What made the scores it was calibrated on, where `ensemble.listen` did.
    known_people
        Marks of the people in calibration; `evaluate` refuses them.

    Examples
    --------
    >>> import numpy as np, agreestop as ag
    >>> rng = np.random.default_rng(0)
    >>> recordings = [rng.normal(size=500) for _ in range(99)]
    >>> calibrated = ag.Spotter(false_alarms=0.05, rest=20).calibrate(recordings)
    >>> calibrated.n, 2.5 < calibrated.threshold < 6
    (99, True)
    >>> scores = rng.normal(size=500)
    >>> scores[200:210] += 9
    >>> stream = calibrated.stream()
    >>> [found.index for score in scores if (found := stream.push(score))]
    [200]
    """

    spotter: Spotter
    threshold: float
    kth_value: float
    near: int
    n: int
    ids: tuple[str, ...]
    limit: float | None = None
    people: int | None = None
    engine: str = ""
    ensemble_digest: str = ""
    heard: str = ""
    known_people: Marks | None = None

    @property
    def guarantee(self) -> str:
        """What is promised, in words."""
        spotter = self.spotter
        if self.threshold < self.kth_value:
            return (
                f"nothing is promised of false alarms: the threshold, {self.threshold:g}, is below "
                f"the least one that keeps the promise, {self.kth_value:g}."
            )
        most, cap = in_words(spotter.allowed), spotter.cap
        new = "a recording" if self.people is None else "a recording of a new person"
        words = f"{new} has on average at most {most} false alarms (at most {cap} are counted)"
        if spotter.per == IN_AN_HOUR:
            ours = "new recordings" if self.people is None else "recordings of new people"
            words = (
                f"{ours} have on average at most {most} false alarms an hour (at most {cap} of "
                "each recording are counted)"
            )
        elif cap == 1:
            words = f"{new} has any false alarm with probability at most {most}"
        draw = "recordings and of a new recording exchangeable with them"
        if self.people is not None:
            draw = "people and of a new person exchangeable with them"
        found = ""
        if spotter.missed is not None and self.limit is not None and self.threshold < self.limit:
            found = (
                f" In {new} with events, the mean share of them that are not found within "
                f"{spotter.within} steps after their end is at most "
                f"{in_words(as_target(spotter.missed))}."
            )
        return f"{words}, over the draw of the calibration {draw}.{found}"

    def __repr__(self) -> str:
        return (
            f"CalibratedSpotter(false_alarms={self.spotter.false_alarms} a {self.spotter.per}, "
            f"cap={self.spotter.cap}, "
            f"rest={self.spotter.rest}, threshold={self.threshold:.6g}, n={self.n}"
            f"{self.heard and f', {self.heard}'})"
        )

    def alarms(self, scores: ArrayLike) -> Integers:
        """The steps of one recording, counted from 0, at which there is an alarm."""
        above = np.flatnonzero(as_scores(scores, "scores") > self.threshold)
        return with_rest(above, self.spotter.rest)

    def check_scores(
        self, recordings: Recordings, any_engine: bool = False, any_members: bool = False
    ) -> None:
        """Refuse scores of another engine or ensemble, or with another window or event, than
        calibrated with, where these are known.
        """
        known, given = ((one.engine, one.ensemble_digest) for one in (self, recordings))
        check_source("spotter", known, given, any_engine, any_members)
        check_heard("spotter", self.heard, recordings.heard)

    def stream(self) -> "SpotterStream":
        """Watch one stream, score by score."""
        return SpotterStream(self)

    def evaluate(
        self,
        recordings: Any,
        events: Sequence[ArrayLike] | None = None,
        within: int | None = None,
        *,
        people: ArrayLike | None = None,
        step_seconds: Target | None = None,
        confidence: float = 0.95,
        any_engine: bool = False,
        any_members: bool = False,
    ) -> SpottingEvaluation:
        """How many events are found, how late, and how many alarms are false.

        Parameters
        ----------
        recordings, events, people
            As for `calibrate`. Recordings that set the threshold are refused, and people whose
            recordings did.
        within : int, optional
            An event is found by an alarm fewer than this many steps after its end; what the spotter
            says unless given.
        step_seconds : float, str or Fraction, optional
            The length of a step, for false alarms an hour; what the spotter says unless given.
        confidence : float
            The level of the intervals.
        any_engine, any_members : bool
            Allow scores of another engine, or of other members, than calibrated with.

        Returns
        -------
        SpottingEvaluation
        """
        data = Recordings.of(recordings, events, people)
        self.check_scores(data, any_engine, any_members)
        if data.people is not None:
            refuse_known_people(data.people, self.known_people)
        # Silent recordings of one length are the same without being used twice.
        pairs = zip(data.ids, data.scores, strict=True)
        used = len({name for name, one in pairs if np.ptp(one)} & set(self.ids))
        if used:
            raise InputError(
                f"{used} of the {len(data)} recordings set the threshold: evaluate on others."
            )
        seconds = self.spotter.step_seconds if step_seconds is None else step_seconds
        hours = None if seconds is None else float(as_seconds(seconds) / HOUR)
        chosen = self.spotter.within if within is None else as_count(within, "within", least=0)
        alarms = [self.alarms(one) for one in data.scores]
        cap, per, threshold = self.spotter.cap, self.spotter.per, self.threshold
        known = data, alarms, self.near, chosen, cap, threshold
        unit = "an hour" if per == IN_AN_HOUR else "a recording"
        kept = threshold >= self.kth_value
        target = f"at most {in_words(self.spotter.allowed)} {unit}" if kept else ""
        return evaluate_alarms(*known, hours, confidence, per == IN_AN_HOUR, target)

    def with_threshold(self, threshold: float) -> Self:
        """The spotter with another threshold; `guarantee` says what it still promises."""
        wrong = isinstance(threshold, (bool, np.bool_)) or not isinstance(threshold, Real)
        if wrong or math.isnan(threshold):
            raise InputError(f"threshold is {quoted(threshold)}: give a number.")
        return replace(self, threshold=float(threshold))

    def save(self, path: StrPath) -> None:
        """Write the spotter to one file: a readable header and plain arrays, all or nothing."""
        summary = {"guarantee": self.guarantee, "calibration_recordings": self.n}
        write_rule_file(path, self, summary)


def _check_loaded(spotter: CalibratedSpotter) -> CalibratedSpotter:
    if np.isnan(spotter.threshold) or spotter.near < 0 or len(spotter.ids) != spotter.n:
        raise ValueError("numbers that no calibration has")
    return spotter


def check_clock(step: int | None, index: int) -> None:
    """Refuse a step that is not the next one."""
    if step is None:
        return
    try:
        is_next = bool(step == index)
    except (TypeError, ValueError, RuntimeError):  # arrays and tensors of several numbers
        is_next = False
    if not is_next:
        raise InputError(
            f"step is {quoted(step)} where step {index} is next: push every step once and in "
            "order, or open a new stream after a jump of the clock."
        )


class SpotterStream:
    """One stream under watch, pushed one score at a time. `calibrated.stream()` opens one.

    Its size does not grow.

    Attributes
    ----------
    index : int
        The next step.

    Examples
    --------
    >>> import numpy as np, agreestop as ag
    >>> rng = np.random.default_rng(0)
    >>> recordings = [rng.normal(size=500) for _ in range(99)]
    >>> stream = ag.Spotter(false_alarms=0.05, rest=20).calibrate(recordings).stream()
    >>> stream.push(0.3), stream.push(9.0).index, stream.index
    (None, 1, 2)
    """

    __slots__ = ("_alarms", "_calibrated", "_free", "index")

    def __init__(self, calibrated: CalibratedSpotter) -> None:
        self._calibrated, self.index, self._free, self._alarms = calibrated, 0, 0, 0

    def push(self, score: float, step: int | None = None) -> Detection | None:
        """The score of the next step; a `Detection` if there is an alarm.

        step: the step's number by the caller's clock, which must be the next one.
        """
        try:
            score = float(score)
        except (TypeError, ValueError, OverflowError):
            raise InputError(
                f"score is {quoted(score)} at step {self.index}: give one number for each step."
            ) from None
        if not math.isfinite(score):
            raise InputError(
                f"score is {score} at step {self.index}: every step needs a finite score; repeat "
                "the last one where a sensor is silent."
            )
        index = self.index
        check_clock(step, index)
        self.index = index + 1
        if index < self._free or not score > self._calibrated.threshold:
            return None
        return self.alarm(score)

    def alarm(self, score: float) -> Detection:
        """Note an alarm at the step that was pushed last, and rest."""
        detection = Detection(self.index - 1, score, self._alarms)
        self._free, self._alarms = self.index + self._calibrated.spotter.rest, self._alarms + 1
        return detection
