"""An alarm when the promise of a calibrated rule ends: from labels that come late, and without labels.

Both alarms bet against "nothing has changed" (see `betting`), and are raised when the evidence E ≥ 1/δ. The factors of the bets, and the
share J of all capital that is divided among them at each step:

    misses      f_ν = 1 + ν·(miss - α'),   ν in [0, 1/α'),                                      J = 0
    inputs      f_ε = 1 + ε·(p - ½),       ε in {-1, 0, 1} (the Simple Jumper, Vovk et al.),    J = 0.001

By chance this ever happens with probability at most δ. For misses, by chance means that every decision misses with probability at most α',
given all before it. For inputs it means that they are exchangeable with the calibration examples: p is the smoothed rank of the input's
first risk (on the grid of `risk_grid`) among all before it, the calibration examples included, and such ranks are independent and uniform.

Both need an order of the inputs that does not depend on the data: streams count in the order in which they were opened, whatever follows
(see `opening_order`). An input without an answer, or whose label will never be known, is an input without a miss.

One calibration draw may sit above α without any drift. A rule that was calibrated with delta has α' = α, except with probability delta. For
a rule with one threshold, its miss rate given the calibration examples is at most Beta(k, n+1-k); α' is the 1-δ quantile. Where each class
has thresholds of its own, delta is the probability for one class, and all of them hold at once except with probability C·delta.
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
from .label_queue import FINAL_LABEL, Found, LabelQueue, Ready, SavedQueue
from .levels import Target, as_delta, as_target, in_words, largest_miss_rate
from .opening_order import as_risk
from .policies import CheckpointThresholds, RunningThreshold
from .risk_grid import RiskGrid
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
    given_up: int = 0


class DriftMonitor:
    """Watches the decisions of a calibrated rule and raises an alarm when its promise ends.

    Make the monitor before the first stream is opened. Give every decision to `observe`, and its label to `update` once it is known. Both
    may come in any order: streams count in the order in which they were opened, `Decision.number`, and are held back until it is their
    turn. A stream that gets no answer goes to `skip`. The decisions of a batch count in the order given; a batch is refused while streams
    that were opened before it are neither observed nor skipped. `waiting` says what is held back, and for which input.

    Where the label is known with the decision, only `update` is needed. Without numbers it then takes
    each call for a new decision, so a decision of a batch given twice counts twice. There is one alarm
    of each kind: "misses" from labels, "inputs" without them. `guarantee` says in words how probable a
    false alarm is. For a rule calibrated with labels="final", give `decisions.final_best`: true labels
    would raise false alarms.

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
        self._queue = LabelQueue(calibrated.classes, calibrated.opened)
        self._given_up = 0
        self._grid = RiskGrid.of(calibrated.first_risks, calibrated.eta)
        self._bag = self._on_grid([] if calibrated.first_risks is None else calibrated.first_risks.tolist())

    def _on_grid(self, risks: Sequence[float]) -> "array[float]":
        return array("d", sorted(self._grid.middle(risk) for risk in risks))

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
        if calibrated.adapted:
            words = "an AdaptiveRule has moved the threshold, whose promise is another one: only call observe, or watch the rule itself."
            return None, Fraction(0), words
        if delta is not None:
            risk = delta * self._joint_thresholds()
            if risk + self.delta < 1:
                return float(alpha), risk, ""
            words = f"delta={in_words(delta)} holds for each class by itself, so all {self._joint_thresholds()} of them together"
            return None, Fraction(0), f"{words} promise nothing: calibrate with a smaller delta."
        if calibrated.threshold_rank is not None:
            return largest_miss_rate(*calibrated.threshold_rank, self.delta), self.delta, ""
        if self._answers_all_classes():
            return float(alpha), Fraction(0), ""
        return None, Fraction(0), "the rule's promise is a mean over calibration draws: calibrate it with delta=0.05, for example."

    def _joint_thresholds(self) -> int:
        """The number of promises with delta that must hold at once: one, or one for each class that has thresholds of its own.

        The one threshold of AgreeStop and of stop-aware SpikeCP is the least over the classes, so the class that needs the safest one
        decides for all. A class with too few examples is in every set.
        """
        policy = self.calibrated.policy
        if not isinstance(policy, (CheckpointThresholds, RunningThreshold)):
            return 1
        limits = np.atleast_2d(policy.thresholds if isinstance(policy, CheckpointThresholds) else policy.threshold)
        return max(1, int(np.isfinite(limits).any(axis=0).sum()))

    def _answers_all_classes(self) -> bool:
        """Whether nothing is ever excluded, because there were too few calibration examples; with a gate the last block may differ."""
        calibrated, rule = self.calibrated, self.calibrated.rule
        if not calibrated.never_stops or getattr(rule, "gate", None) is not None:
            return False
        one_threshold = len(calibrated.thresholds) == 1 and calibrated.thresholds.ndim == 1
        return one_threshold or not getattr(rule, "class_conditional", False)

    @property
    def observed(self) -> int:
        """The number of inputs so far; a decision that is held back counts once it is its turn."""
        return self._queue.observed

    @property
    def processed(self) -> int:
        """The number of inputs, from the first one on, that wait for no label."""
        return self._queue.processed

    @property
    def labels(self) -> int:
        """The number of labels that were processed; inputs without one are not counted."""
        return self.misses.count - self._given_up

    @property
    def waiting(self) -> str:
        """What waits for which earlier decision or label, in words; empty if nothing waits."""
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
        """A decision, or the decisions of a batch, whose labels are not known. Returns an alarm if it is raised now.

        Decisions of streams may come in any order, and count in the order of opening. `key` is a name of yours under which `update` finds
        the decision, also after the monitor was saved and loaded.
        """
        alarm = self._observe(decision, key)
        self._queue.explicit = True
        return alarm

    def _observe(self, decision: Decision | Decisions, key: str = "") -> Alarm | None:
        if isinstance(decision, Decisions) and decision.reuse:
            raise InputError(f"a monitor watches new inputs: {decision.reuse}")
        return self._count(self._queue.add(decision, key))

    def skip(self, number: int, first_risk: float | None = None) -> Alarm | None:
        """A stream that gets no answer: closed, over its deadline, or gone. Returns an alarm if it is raised now.

        It is an input without a miss, and its risk at the first checkpoint, where it is known, counts as that of any other:

            monitor.skip(session.number, session.close())
        """
        if first_risk is not None and not isinstance(first_risk, (float, int, np.number)):
            raise InputError(f"first_risk is {first_risk!r}: give session.first_risk, or leave it out.")
        return self._count(self._queue.skip(number, as_risk(first_risk)))

    def give_up(self, count: int) -> Alarm | None:
        """Give up the labels, among the first `count` inputs, that have not come: inputs without a miss.

        `observed` counts these inputs. Returns an alarm if it is raised now.
        """
        return self._bet(self._queue.give_up(count))

    def _count(self, found: Sequence[Found]) -> Alarm | None:
        """Take inputs whose turn has come."""
        alarms = [self._rank(risk, position) for position, risk in found if risk is not None]
        alarms.append(self._bet(self._queue.take()))
        return next((alarm for alarm in alarms if alarm is not None), None)

    def _rank(self, risk: float, position: int) -> Alarm | None:
        word = mix(self._random + np.array([position], np.uint64) * GAMMA)
        risk = self._grid.middle(risk)
        p = smoothed_rank(self._bag, risk, int(word[0]) / 2**64)
        insort(self._bag, risk)
        return self._raise("inputs", position + 1, self.inputs.bet(1 + TILTS * (p - 0.5)))

    def _bet(self, ready: Sequence[Ready]) -> Alarm | None:
        """Take inputs of which it is known whether they missed, or that it will never be known."""
        alarm = None
        for position, miss in ready if self.level is not None else ():
            assert self.level is not None
            self._given_up += miss is None
            evidence = self.misses.bet(1 + SHARES * (bool(miss) / self.level - 1))
            alarm = self._raise("misses", position + 1, evidence) or alarm
        return alarm

    def update(self, decision: Decision | Decisions | str | int, label: ArrayLike | None) -> Alarm | None:
        """The label of a decision, or the labels (n,) of a batch. Returns an alarm if it is raised now.

        A decision is given as the object, by its key, or by its number: `Decision.number`, or where all decisions came in batches their
        order from 0. For a row of a batch and after a load an equal object will do: the oldest decision like it gets the label. None is
        for a label that will never be known, and counts as an input without a miss. A label may come while its decision is held back. It
        is processed once those of all earlier inputs are known; `waiting` says what is missing.
        """
        if self.level is None and label is not None:
            raise InputError(self._unwatched[0].upper() + self._unwatched[1:])
        labels = self._queue.check(decision, label)
        alarm = None
        if self._queue.is_new(decision) and isinstance(decision, (Decision, Decisions)):
            alarm = self._observe(decision)
        return self._bet(self._queue.add_labels(decision, labels)) or alarm

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
        without = f", {self._given_up} inputs without a label" if self._given_up else ""
        return f"DriftMonitor: {self.observed} decisions, {self.labels} labels processed{without}; {parts}"

    def save(self, path: str | PathLike[str]) -> None:
        """Write all that the monitor knows to one file, which appears whole or not at all."""
        bag = np.array(self._bag)  # a copy: a view that lives on, as in the traceback of a failed write, would keep the list from growing
        known = self._queue.saved(), self.alarms, self.misses, self.inputs, bag, self._given_up
        saved = SavedMonitor(self.calibrated, self.delta, self.seed, *known)
        write_rule_file(path, saved, {"monitor": repr(self), "guarantee": self.guarantee})

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read a monitor, which goes on where it was. Open streams with its rule, `monitor.calibrated`, whose numbers go on."""
        return read_rule_file(path, SavedMonitor, cls._restored)

    @classmethod
    def resume(cls, path: str | PathLike[str], calibrated: CalibratedRule) -> Self:
        """The monitor of this rule in a file, or a new one if there is no such file. A monitor of another rule is refused.

        The numbers of the rule's streams go on where they were. Streams that were open when the file was written are gone with their
        process: they are skipped.
        """
        if not Path(path).exists():
            return cls(calibrated)
        monitor = cls.load(path)
        if _signature(monitor.calibrated) != _signature(calibrated):
            raise InputError(f"{path} watches another rule: give the rule that it watches, or the name of a new file.")
        monitor._count(monitor._queue.skip_open())
        monitor._queue.share_counter(calibrated.opened)
        monitor.calibrated = calibrated
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
        if not 0 <= saved.given_up <= saved.misses.count:
            raise ValueError("labels that no monitor gave up")
        monitor._bag, monitor._given_up = monitor._on_grid(saved.bag.tolist()), saved.given_up
        monitor._queue = LabelQueue.restored(saved.queue, saved.calibrated.classes, saved.calibrated.opened)
        return monitor
