"""An alarm when the promise of a calibrated rule ends: from labels that come late, and without labels.

Both alarms bet against "nothing has changed" (see `betting`), and are raised when the evidence E ≥ 1/δ. The factors of the bets, and the
share J of all capital that is divided among them at each step:

    misses      f_ν = 1 + ν·(miss - α'),   ν in [0, 1/α'),                                      J = 0
    inputs      f_ε = 1 + ε·(p - ½),       ε in {-1, 0, 1} (the Simple Jumper, Vovk et al.),    J = 0.001

By chance this ever happens with probability at most δ. For misses, by chance means that every decision misses with probability at most α',
given all before it. For inputs it means that they are exchangeable with the calibration examples: p is the smoothed rank of the input's
first risk among all before it, the calibration examples included, and such ranks are independent and uniform.

One calibration draw may sit above α without any drift. A rule that was calibrated with delta has α' = α, except with probability delta. For
a rule with one threshold, its miss rate given the calibration examples is at most Beta(k, n+1-k); α' is the 1-δ quantile.
"""

import math
from array import array
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from os import PathLike
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import GAMMA, Floats, InputError, as_seed, is_number, mix

from .betting import MOST_CAPITAL, Wealth, smoothed_rank
from .calibrated import CalibratedRule, try_out
from .decisions import Decision, Decisions
from .label_queue import FINAL_LABEL, LabelQueue, SavedQueue
from .levels import Target, as_delta, as_target, in_words, largest_miss_rate
from .rule_files import KeptInFiles, read_rule_file, write_rule_file
from .score_files import ScoresLike, as_scores

SHARES = 2.0 ** -np.arange(1.0, 9.0, 0.5)
"""The bets ν on misses as shares of 1/α', with which one hit would lose everything."""
TILTS = np.array([-1.0, 0.0, 1.0])
JUMP = 0.001
MOST_LABELS = 10**9
KINDS = {"misses": "the answers miss more often than promised", "inputs": "the inputs differ from the calibration examples"}


@dataclass(frozen=True)
class Alarm(KeptInFiles):
    """An alarm: its kind, "misses" or "inputs", the number of decisions that it rests on, and the evidence E when it was raised."""

    kind: str
    number: int
    evidence: float

    def __str__(self) -> str:
        return f"after {self.number} decisions, {KINDS[self.kind]} (evidence {self.evidence:.3g})"


def _signature(calibrated: CalibratedRule) -> tuple[object, ...]:
    """Values that differ between any two calibrated rules that decide differently."""
    settings = calibrated.fingerprint, calibrated.guarantee, calibrated.rule.max_set_size, calibrated.checkpoints
    return *settings, calibrated.thresholds.tobytes()


@dataclass(frozen=True, eq=False)
class SavedMonitor(KeptInFiles):
    """All that a monitor knows, as it goes into a file."""

    calibrated: CalibratedRule
    delta: Fraction
    seed: int
    queue: SavedQueue
    alarms: tuple[Alarm, ...]
    misses: Wealth
    inputs: Wealth
    bag: Floats


class DriftMonitor:
    """Watches the decisions of a calibrated rule and raises an alarm when its promise ends.

    Give every decision to `observe`, in order, and its label to `update` once it is known, in any order. Where each label is known before
    the next decision, only `update` is needed: it then takes each call for a new decision, so a decision given twice counts twice. There is
    one alarm of each kind: "misses" from labels, "inputs" without them. `guarantee` says in words how probable a false alarm is. For a rule
    calibrated with labels="final", give `decisions.final_best`: true labels would raise false alarms.

    delta  δ: the probability of a false alarm, of each kind
    seed   for the uniform numbers that break ties among risks
    level  α': the share of misses that the rule may have without drift; None where the rule allows no alarm from labels
    misses, inputs  the evidence: `log` holds log10 E over time

    The monitor keeps the first risk of each decision: 8 bytes, and about 0.3 ms to put it in order after a million decisions.
    """

    def __init__(self, calibrated: CalibratedRule, delta: Target = 0.05, *, seed: int = 0) -> None:
        if not isinstance(calibrated, CalibratedRule):
            raise InputError(f"calibrated is {calibrated!r}: give what rule.calibrate(...) returned.")
        self.calibrated, self.delta, self.seed = calibrated, as_target(delta, "delta"), as_seed(seed)
        self._limit, self._random = float(1 / self.delta), mix(np.array([self.seed], np.uint64))
        self.alarms: tuple[Alarm, ...] = ()
        self.misses, self.inputs = Wealth.of(len(SHARES), 0.0), Wealth.of(len(TILTS), JUMP)
        self.level, self._calibration_risk, self._unwatched = self._find_level()
        self._queue = LabelQueue(calibrated.classes)
        self._bag = array("d", () if calibrated.first_risks is None else np.sort(calibrated.first_risks).tolist())

    def _find_level(self) -> tuple[float | None, Fraction, str]:
        """α', the probability over calibration draws that it is too small, and else a sentence why there is none."""
        calibrated, rule = self.calibrated, self.calibrated.rule
        target = getattr(rule, "target", None)
        if target is None or not hasattr(rule, "delta"):
            return None, Fraction(0), f"this {type(rule).__name__} promises no share of hits, so labels cannot break it: only call observe."
        alpha, delta = 1 - as_target(target), as_delta(rule.delta)
        if calibrated.group_names is not None:
            return None, Fraction(0), "the rule has a promise for each group: calibrate one for each group, and watch each by itself."
        if calibrated.effective_size is not None:
            return None, Fraction(0), "the rule allows for a shift by weights, which no alarm from labels knows of: only call observe."
        if delta is not None:
            return float(alpha), delta, ""
        if calibrated.threshold_rank is not None:
            return largest_miss_rate(*calibrated.threshold_rank, self.delta), self.delta, ""
        if calibrated.never_stops and getattr(rule, "gate", None) is None:  # it answers all classes; with a gate the last block may not
            return float(alpha), Fraction(0), ""
        return None, Fraction(0), "the rule's promise is a mean over calibration draws: calibrate it with delta=0.05, for example."

    @property
    def observed(self) -> int:
        """The number of decisions so far."""
        return self._queue.observed

    @property
    def processed(self) -> int:
        """The number of decisions, from the first one on, that wait for no label."""
        return self._queue.processed

    @property
    def waiting(self) -> str:
        """How many labels wait for the label of which earlier decision, in words; empty if none waits."""
        return self._queue.stalled

    @property
    def guarantee(self) -> str:
        """How probable a false alarm is, in words."""
        delta = in_words(self.delta)
        known = "one another" if self.calibrated.first_risks is None else "the calibration inputs"
        words = f"an alarm about inputs is false with probability at most {delta}, if the inputs are exchangeable with {known}"
        if self.calibrated.first_risks is None:
            words += " (the rule is of version 0.1 and does not hold the risks of its calibration inputs)"
        if self.level is None:
            return f"{words}. No alarm about misses: {self._unwatched}"
        total = in_words(self.delta + self._calibration_risk)
        words += f"; an alarm about misses is false with probability at most {total}"
        if self._calibration_risk:
            words += f": {delta}, and {in_words(self._calibration_risk)} for a calibration draw that misses more than {self.level:.4g}"
        words += f". It watches for a share of misses above {self.level:.4g}."
        return f"{words} The label to give is {FINAL_LABEL}." if self.calibrated.final else words

    def observe(self, decision: Decision | Decisions, key: str = "") -> Alarm | None:
        """The next decision, or the decisions of a batch in their order, whose labels are not known. Returns an alarm if it is raised now.

        `key` is a name of yours under which `update` finds the decision, also after the monitor was saved and loaded.
        """
        alarm = self._observe(decision, key)
        self._queue.explicit = True
        return alarm

    def _observe(self, decision: Decision | Decisions, key: str = "") -> Alarm | None:
        if isinstance(decision, Decisions) and decision.reuse:
            raise InputError(f"a monitor watches new inputs: {decision.reuse}")
        number = self.observed
        self._queue.add(decision, key)
        risks: Sequence[float | None] = [decision.first_risk] if isinstance(decision, Decision) else [one.first_risk for one in decision]
        alarms = [self._watch(risk, count) for count, risk in enumerate(risks, number) if risk is not None and not math.isnan(risk)]
        return next((alarm for alarm in alarms if alarm is not None), None)

    def _watch(self, risk: float, number: int) -> Alarm | None:
        word = mix(self._random + np.array([number], np.uint64) * GAMMA)
        p = smoothed_rank(self._bag, risk, int(word[0]) / 2**64)
        insort(self._bag, risk)
        return self._raise("inputs", number + 1, self.inputs.bet(1 + TILTS * (p - 0.5)))

    def update(self, decision: Decision | Decisions | str | int, label: ArrayLike | None) -> Alarm | None:
        """The label of a decision, or the labels (n,) of a batch. Returns an alarm if it is raised now.

        A decision is given as the object, by its key, or by its number, from 0. For a row of a batch and after a load an equal object
        will do: the oldest decision like it gets the label. None is for a label that will never be known, for reasons that have
        nothing to do with the label. A label is processed once those of all earlier decisions are known; `waiting` says what lacks.
        """
        if self.level is None and label is not None:
            raise InputError(self._unwatched[0].upper() + self._unwatched[1:])
        labels = self._queue.check(decision, label)
        alarm = None
        if not self._queue.explicit and isinstance(decision, (Decision, Decisions)):
            alarm = self._observe(decision)
        for number, miss in self._queue.add_labels(decision, labels):
            assert self.level is not None, "without a level no label is taken"
            evidence = self.misses.bet(1 + SHARES * (miss / self.level - 1))
            alarm = self._raise("misses", number + 1, evidence) or alarm
        return alarm

    def _raise(self, kind: str, number: int, evidence: float) -> Alarm | None:
        if evidence < self._limit or any(alarm.kind == kind for alarm in self.alarms):
            return None
        alarm = Alarm(kind, number, evidence)
        self.alarms = (*self.alarms, alarm)
        return alarm

    def labels_to_alarm(self, miss_rate: float) -> float:
        """About how many more labels an alarm takes if this share of the decisions misses from now on; ∞ if it will not be found."""
        if not is_number(miss_rate) or not 0 <= miss_rate <= 1:
            raise InputError(f"miss_rate is {miss_rate!r}: give a share of the decisions, from 0 to 1.")
        if self.level is None:
            raise InputError(self._unwatched[0].upper() + self._unwatched[1:])
        if any(alarm.kind == "misses" for alarm in self.alarms):
            return 0
        growth = miss_rate * np.log1p(SHARES * (1 / self.level - 1)) + (1 - miss_rate) * np.log1p(-SHARES)
        low, high = 0, 1
        while self.misses.foresee(growth, high) < math.log(self._limit):
            low, high = high, 2 * high
            if high > MOST_LABELS:
                return math.inf
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.misses.foresee(growth, middle) >= math.log(self._limit) else (middle, high)
        return high

    @property
    def since_alarm(self) -> int:
        """The number of decisions that came after those on which the alarms rest; 0 without an alarm."""
        return self.observed - max((alarm.number for alarm in self.alarms), default=self.observed)

    def recalibrate(
        self,
        scores_or_log_confidence: ScoresLike,
        labels: ArrayLike | str | None = None,
        *,
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        max_weight: float | None = None,
    ) -> CalibratedRule:
        """The rule, calibrated on inputs that came since the alarm: at most the last `since_alarm` of them.

        Earlier ones raised the alarm, so they miss more often than others, and a rule calibrated on them would promise too much or
        too little. A rule about final answers stays one if no labels are given; one with groups or weights needs them again. Watch the
        new rule with a new monitor.
        """
        for name, given, known in (("groups", groups, self.calibrated.group_names), ("weights", weights, self.calibrated.effective_size)):
            if known is not None and given is None:
                raise InputError(f"the rule was calibrated with {name}, and without them it would promise something else: give {name}=.")
        if not self.alarms:
            raise InputError("there was no alarm: the calibrated rule stands.")
        rule = self.calibrated.rule
        rows = len(as_scores(scores_or_log_confidence, None, None, rule.checkpoints).log_confidence)
        if rows > self.since_alarm:
            raise InputError(f"there are {rows} rows, but {self.since_alarm} decisions came since the alarm: give only the rows of those.")
        final = self.calibrated.final and labels is None
        chosen = "final" if final else labels
        return rule.calibrate(  # type: ignore[attr-defined]
            scores_or_log_confidence, chosen, groups=groups, weights=weights, max_weight=max_weight
        )

    def __repr__(self) -> str:
        parts = "; ".join([*map(str, self.alarms)] or ["no alarm"]) + (self.waiting and f"; {self.waiting}")
        return f"DriftMonitor: {self.observed} decisions, {self.misses.count} labels processed; {parts}"

    def save(self, path: str | PathLike[str]) -> None:
        """Write all that the monitor knows to one file, which appears whole or not at all."""
        bag = np.array(self._bag)  # a copy: a view that lives on, as in the traceback of a failed write, would keep the list from growing
        saved = SavedMonitor(self.calibrated, self.delta, self.seed, self._queue.saved(), self.alarms, self.misses, self.inputs, bag)
        write_rule_file(path, saved, {"monitor": repr(self), "guarantee": self.guarantee})

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read a monitor, which goes on where it was."""
        return read_rule_file(path, SavedMonitor, cls._restored)

    @classmethod
    def resume(cls, path: str | PathLike[str], calibrated: CalibratedRule) -> Self:
        """The monitor of this rule in a file, or a new one if there is no such file. A monitor of another rule is refused."""
        if not Path(path).exists():
            return cls(calibrated)
        monitor = cls.load(path)
        if _signature(monitor.calibrated) != _signature(calibrated):
            raise InputError(f"{path} watches another rule: give the rule that it watches, or the name of a new file.")
        return monitor

    @classmethod
    def _restored(cls, saved: SavedMonitor) -> Self:
        try_out(saved.calibrated)
        monitor = cls(saved.calibrated, saved.delta, seed=saved.seed)
        for wealth, bets, jump in ((saved.misses, len(SHARES), 0.0), (saved.inputs, len(TILTS), JUMP)):
            counted = 0 <= wealth.count <= saved.queue.observed
            right = wealth.capital.shape == (bets,) and wealth.jump == jump and counted and wealth.log.rows.shape[1] == 2
            if not right or not ((wealth.capital >= 0) & (wealth.capital <= MOST_CAPITAL)).all():
                raise ValueError("evidence that no monitor has")
        if any(alarm.kind not in KINDS or not 0 < alarm.number <= saved.queue.observed for alarm in saved.alarms):
            raise ValueError("alarms that no monitor raises")
        if saved.bag.ndim != 1 or not (saved.bag[1:] >= saved.bag[:-1]).all() or np.isnan(saved.bag).any():
            raise ValueError("risks out of order")
        monitor.alarms, monitor.misses, monitor.inputs = saved.alarms, saved.misses, saved.inputs
        monitor._bag = array("d", saved.bag.tolist())
        monitor._queue = LabelQueue.restored(saved.queue, saved.calibrated.classes)
        return monitor
