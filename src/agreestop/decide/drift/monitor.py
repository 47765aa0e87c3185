"""An alarm when the promise of a calibrated rule ends: from late labels, and without labels.

Both alarms bet against "nothing has changed" (see `betting`). An alarm is raised when the evidence
E ≥ 1/δ. The factors of the bets, and the share J of all capital that is divided among them at each
step:

    misses    f_ν = 1 + ν·(miss - α'),   ν in [0, 1/α'),                                  J = 0
    inputs    f_ε = 1 + ε·(p - ½),       ε in {-1, 0, 1} (Simple Jumper, Vovk et al.),    J = 0.001

By chance this ever happens with probability at most δ. For misses, "by chance" means that every
decision misses with probability at most α', given all before it. For inputs it means that they are
exchangeable with the calibration examples: p is the smoothed rank of the input's first risk (on the
grid of `risk_grid`) among all earlier ones, the calibration examples included, and such ranks are
independent and uniform.

Both need an order of the inputs that does not depend on the data: streams count in the order in
which they were opened, whatever follows (see `label_queue`). An input without an answer, or whose
label will never be known, is an input without a miss.

One calibration draw may miss more often than α without any drift, so α' comes from
`miss_level`.
"""

import math
from array import array
from bisect import bisect_left, insort
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import GAMMA, Floats, InputError, StrPath, as_seed, is_number, mix
from agreestop.common.kept import KeptInFiles
from agreestop.common.levels import Target, as_target, in_words

from ..calibrated import CalibratedRule, check_calibrated, try_out
from ..decisions import Decision, Decisions
from ..rule_files import read_rule_file, write_rule_file
from ..scores import ScoresLike
from .betting import Wealth, smoothed_rank
from .label_queue import FINAL_LABEL, Given, LabelQueue, SavedQueue
from .miss_level import miss_level
from .risk_grid import RiskGrid

SHARES = 2.0 ** -np.arange(1.0, 9.0, 0.5)
"""The bets ν on misses as shares of 1/α', with which one hit would lose everything."""
TILTS = np.array([-1.0, 0.0, 1.0])
JUMP = 0.001
MOST_LABELS = 10**9
KINDS = {
    "misses": "the answers miss more often than promised",
    "inputs": "the inputs differ from the calibration examples",
}


@dataclass(frozen=True)
class Alarm(KeptInFiles):
    """An alarm of a `DriftMonitor`. It prints as a sentence.

    Attributes
    ----------
    kind : str
        "misses", from labels, or "inputs", without labels.
    number : int
        The number of decisions that the alarm rests on.
    evidence : float
        The evidence E when the alarm was raised.

    Examples
    --------
    >>> print(Alarm("misses", 120, 23.5))
    after 120 decisions, the answers miss more often than promised (evidence 23.5)
    """

    kind: str
    number: int
    evidence: float

    def __str__(self) -> str:
        return f"after {self.number} decisions, {KINDS[self.kind]} (evidence {self.evidence:.3g})"


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
    """Watch the decisions of a calibrated rule, and raise an alarm when its promise ends.

    Make the monitor before the first stream is opened. Give every decision to `observe`, and its
    label to `update` once it is known. Both may come in any order: streams count in the order in
    which they were opened, `Decision.number`, and are held back until it is their turn. A stream
    that gets no answer goes to `skip`. The decisions of a batch count in the order given; a batch
    is refused while streams that were opened before it are neither observed nor skipped.

    Where the label is known with the decision, `update` alone is enough. Without numbers it then
    takes each call for a new decision, so a decision of a batch that is given twice counts twice.

    Parameters
    ----------
    calibrated : CalibratedRule
        The rule whose decisions are watched.
    delta : float, str or Fraction
        δ: the probability of a false alarm, of each kind.
    seed : int
        For the uniform numbers that break ties among risks.

    Attributes
    ----------
    alarms : tuple of Alarm
        At most one of each kind: "misses" from labels, "inputs" without them.
    level : float or None
        α': the share of misses that the rule may have without drift. None where the rule allows no
        alarm from labels; `guarantee` says why.
    misses, inputs : Wealth
        The evidence: `log` holds log10 E over time.

    Notes
    -----
    `guarantee` says how probable a false alarm is. It assumes that inputs are opened, closed and
    tried again whatever is in them, and that every input is observed or skipped. For a rule
    calibrated with labels="final", give `decisions.final_best` as labels: true labels would raise
    false alarms.

    The monitor keeps the first risk of each decision: 8 bytes, and about 0.3 ms to put it in order
    after a million decisions.

    Examples
    --------
    >>> import agreestop as ag
    >>> data = ag.simulate_scores(600, steps=20, C=4, seed=1)
    >>> rule = ag.AgreeStop(0.9, (5, 10, 20), 1).calibrate(data.rows(slice(0, 300)))
    >>> monitor = ag.DriftMonitor(rule, delta=0.05)
    >>> new = data.rows(slice(300, 600))
    >>> decisions = rule.decide(new)
    >>> monitor.observe(decisions)
    >>> monitor.update(decisions, new.labels)
    >>> monitor
    DriftMonitor: 300 decisions, 300 labels processed; no alarm
    >>> noise = ag.simulate_scores(200, steps=20, C=4, seed=2, signal=0.0)
    >>> print(monitor.observe(rule.decide(noise)))
    after 360 decisions, the inputs differ from the calibration examples (evidence 20.5)
    """

    def __init__(self, calibrated: CalibratedRule, delta: Target = 0.05, *, seed: int = 0) -> None:
        check_calibrated(calibrated)
        self.calibrated = calibrated
        self.delta, self.seed = as_target(delta, "delta"), as_seed(seed)
        self._limit = float(1 / self.delta)
        self._random = mix(np.array([self.seed], np.uint64))
        self.alarms: tuple[Alarm, ...] = ()
        self.misses, self.inputs = Wealth.of(len(SHARES), 0.0), Wealth.of(len(TILTS), JUMP)
        self._promise = miss_level(calibrated, self.delta)
        self.level = self._promise.level
        self._given_up = 0
        self._queue = LabelQueue(
            calibrated.rule.terms, calibrated.classes, calibrated.opened, calibrated.class_names
        )
        known = calibrated.first_risks
        self._grid = RiskGrid.of(known, calibrated.eta)
        self._bag = self._on_grid(np.empty(0) if known is None else known)

    def _on_grid(self, risks: Floats) -> "array[float]":
        return array("d", sorted(map(self._grid.middle, risks.tolist())))

    @property
    def observed(self) -> int:
        """The number of inputs so far; a decision that is held back counts when its turn comes."""
        return self._queue.observed

    @property
    def processed(self) -> int:
        """The number of inputs, from the first one on, that wait for no label."""
        return self._queue.processed

    @property
    def labels(self) -> int:
        """The number of labels that were processed, without inputs that have none."""
        return self.misses.count - self._given_up

    @property
    def waiting(self) -> str:
        """Which earlier decision or label the others wait for; empty if nothing waits."""
        return self._queue.stalled

    @property
    def since_alarm(self) -> int:
        """The number of decisions since the last alarm; 0 without an alarm."""
        return self.observed - max((alarm.number for alarm in self.alarms), default=self.observed)

    @property
    def guarantee(self) -> str:
        """How probable a false alarm is, as a sentence."""
        delta, risk = in_words(self.delta), self._promise.risk
        known = "the calibration inputs"
        if self.calibrated.first_risks is None:
            known = (
                "one another (the rule is of version 0.1 and does not hold the risks of its "
                "calibration inputs)"
            )
        words = (
            f"an alarm about inputs is false with probability at most {delta}, "
            f"if the inputs are exchangeable with {known}"
        )
        if self.level is None:
            return f"{words}. No alarm about misses: {self._promise.reason}"
        both = in_words(self.delta + risk)
        words += f"; an alarm about misses is false with probability at most {both}"
        if risk:
            words += (
                f": {delta}, and {in_words(risk)} for a calibration draw "
                f"that misses more than {self.level:.4g}"
            )
        words += f". It watches for a share of misses above {self.level:.4g}."
        return f"{words} The label to give is {FINAL_LABEL}." if self.calibrated.final else words

    def observe(self, decision: Decision | Decisions, key: str = "") -> Alarm | None:
        """Take a decision, or the decisions of a batch, whose labels are not known yet.

        Parameters
        ----------
        decision : Decision or Decisions
            Decisions of streams may come in any order, and count in the order of opening.
        key : str
            A name of yours for one decision, under which `update` finds it.

        Returns
        -------
        Alarm or None
            An alarm if it is raised now.

        Examples
        --------
        >>> import agreestop as ag
        >>> rule = ag.AgreeStop(0.9, (5, 10), 1).calibrate(ag.simulate_scores(100, steps=10, C=4))
        >>> monitor = ag.DriftMonitor(rule)
        >>> monitor.observe(ag.Decision(5, 0, (2,), first_risk=-1.0), key="input 17")
        >>> monitor.update("input 17", 2)
        >>> monitor.labels
        1
        """
        _check_new(decision)
        self._queue.add(decision, key)
        return self._proceed()

    def skip(self, number: int, first_risk: float | None = None) -> Alarm | None:
        """Take a stream that gets no answer: closed, over its deadline, or gone.

        It is an input without a miss.

        Parameters
        ----------
        number : int
            The number of the stream, `session.number`.
        first_risk : float, optional
            Its risk at the first checkpoint, where it is known: it counts as any other. For a
            session, `session.close()` returns it.

        Returns
        -------
        Alarm or None
            An alarm if it is raised now.

        Examples
        --------
        >>> import agreestop as ag
        >>> rule = ag.AgreeStop(0.9, (5, 10), 1).calibrate(ag.simulate_scores(100, steps=10, C=4))
        >>> monitor = ag.DriftMonitor(rule)
        >>> session = rule.stream()
        >>> monitor.skip(session.number, session.close())
        >>> monitor.observed
        1
        """
        if first_risk is not None and not isinstance(first_risk, (float, int, np.number)):
            raise InputError(
                f"first_risk is {first_risk!r}: give session.first_risk, or leave it out."
            )
        self._queue.skip(number, first_risk)
        return self._proceed()

    def give_up(self, count: int) -> Alarm | None:
        """Give up the labels, among the first `count` inputs, that have not come.

        They are inputs without a miss. `observed` counts these inputs. Returns an alarm if it is
        raised now.

        Examples
        --------
        >>> import agreestop as ag
        >>> rule = ag.AgreeStop(0.9, (5, 10), 1).calibrate(ag.simulate_scores(100, steps=10, C=4))
        >>> monitor = ag.DriftMonitor(rule)
        >>> monitor.observe(rule.decide(ag.simulate_scores(8, steps=10, C=4, seed=1)))
        >>> monitor.give_up(monitor.observed)
        >>> monitor
        DriftMonitor: 8 decisions, 0 labels processed, 8 inputs without a label; no alarm
        """
        self._queue.give_up(count)
        return self._proceed()

    def update(self, decision: Given, label: ArrayLike | None) -> Alarm | None:
        """Take the label of a decision, or the labels of a batch.

        A label may come while its decision is held back. It is processed when the labels of all
        earlier inputs are known; `waiting` says what is missing.

        Parameters
        ----------
        decision : Decision, Decisions, str or int
            The object that was observed, its key, or its number: `Decision.number`, or, where all
            decisions came in batches, their order from 0. A row `decisions[i]` is found if only one
            batch waits for the label of this row. After a load, give keys or numbers.
        label : int or array of int, shape (n,)
            The class index, or one for each row of a batch. None for a label that will never be
            known: an input without a miss. For open answers a string, for intervals the true
            number, or one for each row of a batch; give the decision itself.

        Returns
        -------
        Alarm or None
            An alarm if it is raised now.

        Examples
        --------
        >>> import agreestop as ag
        >>> rule = ag.AgreeStop(0.9, (5, 10), 1).calibrate(ag.simulate_scores(100, steps=10, C=4))
        >>> monitor = ag.DriftMonitor(rule)
        >>> decisions = rule.decide(ag.simulate_scores(2, steps=10, C=4, seed=1))
        >>> monitor.observe(decisions)
        >>> monitor.update(1, 3)
        >>> monitor.waiting
        '1 label waits for the label of decision 0: give it, or None'
        >>> monitor.update(decisions[0], None)
        >>> monitor.processed
        2
        """
        if label is not None:
            self._level()
        _check_new(decision)
        self._queue.update(decision, label)
        return self._proceed()

    def _level(self) -> float:
        """The share of misses that is watched for; where there is no share, a sentence says why."""
        if self.level is None:
            raise InputError(self._promise.reason[0].upper() + self._promise.reason[1:])
        return self.level

    def _proceed(self) -> Alarm | None:
        """Bet on inputs whose turn has come, and on misses that are known. Returns a new alarm."""
        before, (found, ready) = self.alarms, self._queue.take()
        for position, risk in found:
            if not math.isnan(risk):
                factors = 1 + TILTS * (self._rank(position, risk) - 0.5)
                self._raise("inputs", position, self.inputs.bet(factors))
        for position, miss in ready if self.level is not None else ():
            self._given_up += miss is None
            factors = 1 + SHARES * (bool(miss) / self._level() - 1)
            self._raise("misses", position, self.misses.bet(factors))
        return self.alarms[-1] if self.alarms != before else None

    def _rank(self, position: int, risk: float) -> float:
        """The rank of a first risk among all before it, which it joins."""
        word = mix(self._random + np.array([position], np.uint64) * GAMMA)
        middle = self._grid.middle(risk)
        rank = smoothed_rank(self._bag, middle, int(word[0]) / 2**64)
        insort(self._bag, middle)
        return rank

    def _raise(self, kind: str, position: int, evidence: float) -> None:
        """Raise an alarm if there is enough evidence and none of its kind was raised before."""
        if evidence >= self._limit and not self._alarmed(kind):
            self.alarms = (*self.alarms, Alarm(kind, position + 1, evidence))

    def _alarmed(self, kind: str) -> bool:
        return any(alarm.kind == kind for alarm in self.alarms)

    def labels_to_alarm(self, miss_rate: float) -> float:
        """About how many more labels an alarm takes, if decisions miss at a rate from now on.

        Parameters
        ----------
        miss_rate : float
            The share of the decisions that miss.

        Returns
        -------
        float
            The number of labels; ∞ if the alarm will not be raised.

        Examples
        --------
        >>> import agreestop as ag
        >>> rule = ag.AgreeStop(0.9, (5, 10), 1, delta=0.1)
        >>> calibrated = rule.calibrate(ag.simulate_scores(100, steps=10, C=4))
        >>> ag.DriftMonitor(calibrated).labels_to_alarm(0.3)
        36
        """
        if not is_number(miss_rate) or not 0 <= miss_rate <= 1:
            raise InputError(
                f"miss_rate is {miss_rate!r}: give a share of the decisions, from 0 to 1."
            )
        won, lost = np.log1p(SHARES * (1 / self._level() - 1)), np.log1p(-SHARES)
        growth = miss_rate * won + (1 - miss_rate) * lost
        if self._alarmed("misses"):
            return 0

        def found(labels: int) -> bool:
            return self.misses.foresee(growth, labels) >= math.log(self._limit)

        most = 1
        while not found(most):
            most *= 2
            if most > MOST_LABELS:
                return math.inf
        return bisect_left(range(most), True, most // 2 + 1, most, key=found)

    def recalibrate(
        self,
        scores_or_log_confidence: ScoresLike,
        labels: ArrayLike | str | None = None,
        *,
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        max_weight: float | None = None,
    ) -> CalibratedRule:
        """Calibrate the rule again, on inputs that came since the alarm.

        Earlier inputs raised the alarm, so they miss more often than others, and a rule calibrated
        on them would promise too much or too little. Watch the new rule with a new monitor.

        Parameters
        ----------
        scores_or_log_confidence : Scores or array
            Rows of at most the last `since_alarm` inputs.
        labels, groups, weights, max_weight
            As in `calibrate`. A rule about final answers stays one if no labels are given; a rule
            with groups or weights needs them again.

        Returns
        -------
        CalibratedRule
            The new rule.

        Examples
        --------
        >>> import agreestop as ag
        >>> rule = ag.AgreeStop(0.9, (5, 10), 1).calibrate(ag.simulate_scores(100, steps=10, C=4))
        >>> monitor = ag.DriftMonitor(rule)
        >>> noise = ag.simulate_scores(200, steps=10, C=4, seed=2, signal=0.0)
        >>> alarm = monitor.update(rule.decide(noise), noise.labels)
        >>> monitor.recalibrate(noise.rows(slice(200 - monitor.since_alarm, 200))).n
        123
        """
        rule, old = self.calibrated.rule, self.calibrated
        known = {"groups": (groups, old.group_names), "weights": (weights, old.effective_size)}
        for name, (given, before) in known.items():
            if before is not None and given is None:
                raise InputError(
                    f"the rule was calibrated with {name}, and without them it would promise "
                    f"something else: give {name}=."
                )
        if old.people is not None:
            raise InputError(
                "the rule's promise is about new people, and these rows name none: call "
                "rule.calibrate(..., people=) yourself."
            )
        if not self.alarms:
            raise InputError("there was no alarm: the calibrated rule stands.")
        rows = len(rule.read(scores_or_log_confidence))
        if rows > self.since_alarm:
            raise InputError(
                f"there are {rows} rows, but {self.since_alarm} decisions came since the alarm: "
                "give only the rows of those."
            )
        chosen = "final" if old.final and labels is None else labels
        return rule.calibrate(
            scores_or_log_confidence, chosen, groups=groups, weights=weights, max_weight=max_weight
        )

    def __repr__(self) -> str:
        without = f", {self._given_up} inputs without a label" if self._given_up else ""
        parts = [*map(str, self.alarms)] or ["no alarm"]
        words = "; ".join([*parts, self.waiting] if self.waiting else parts)
        counts = f"{self.observed} decisions, {self.labels} labels processed{without}"
        return f"DriftMonitor: {counts}; {words}"

    def save(self, path: StrPath) -> None:
        """Write all that the monitor knows to one file, which appears whole or not at all.

        Examples
        --------
        >>> import os, tempfile, agreestop as ag
        >>> rule = ag.AgreeStop(0.9, (5, 10), 1).calibrate(ag.simulate_scores(100, steps=10, C=4))
        >>> monitor = ag.DriftMonitor(rule)
        >>> monitor.observe(rule.decide(ag.simulate_scores(8, steps=10, C=4, seed=1)))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "monitor")
        ...     monitor.save(path)
        ...     print(ag.DriftMonitor.load(path))
        ...     print(ag.DriftMonitor.resume(path, rule))
        DriftMonitor: 8 decisions, 0 labels processed; no alarm
        DriftMonitor: 8 decisions, 0 labels processed; no alarm
        """
        # A copy: a view that lives on, as in the traceback of a failed write, would keep the array
        # from growing.
        bag = np.array(self._bag)
        saved = SavedMonitor(
            self.calibrated,
            self.delta,
            self.seed,
            self._queue.saved(),
            self.alarms,
            self.misses,
            self.inputs,
            bag,
            self._given_up,
        )
        write_rule_file(path, saved, {"monitor": repr(self), "guarantee": self.guarantee})

    @classmethod
    def load(cls, path: StrPath) -> Self:
        """Read a monitor, which goes on where it was; see `save` for an example.

        Open streams with its rule, `monitor.calibrated`, whose numbers go on.
        """
        return read_rule_file(path, SavedMonitor, cls._restored)

    @classmethod
    def resume(cls, path: StrPath, calibrated: CalibratedRule) -> Self:
        """Read the monitor of this rule, or make a new one if there is no such file.

        The numbers of the rule's streams go on where they were. Streams that were open when the
        file was written are gone with their process: they are skipped. See `save` for an example.

        Parameters
        ----------
        path : str or path
            The file of the monitor. A monitor of another rule is refused.
        calibrated : CalibratedRule
            The rule whose decisions are watched.

        Returns
        -------
        DriftMonitor
            The monitor.
        """
        if not Path(path).exists():
            return cls(calibrated)
        monitor = cls.load(path)
        if _signature(monitor.calibrated) != _signature(calibrated):
            raise InputError(
                f"{path} watches another rule: give the rule that it watches, or the name of a new "
                "file."
            )
        monitor._queue.skip_open()
        monitor._proceed()
        monitor._queue.share_counter(calibrated.opened)
        monitor.calibrated = calibrated
        return monitor

    @classmethod
    def _restored(cls, saved: SavedMonitor) -> Self:
        """Build a monitor from a file; raise ValueError for one that nobody saved."""
        monitor = cls(try_out(saved.calibrated), saved.delta, seed=saved.seed)
        observed, bag = saved.queue.observed, saved.bag
        saved.misses.check(monitor.misses, observed)
        saved.inputs.check(monitor.inputs, observed)
        if any(one.kind not in KINDS or not 0 < one.number <= observed for one in saved.alarms):
            raise ValueError("alarms that no monitor raises")
        if bag.ndim != 1 or np.isnan(bag).any() or not (bag[1:] >= bag[:-1]).all():
            raise ValueError("risks out of order")
        if not 0 <= saved.given_up <= saved.misses.count:
            raise ValueError("labels that no monitor gave up")
        monitor.alarms, monitor.misses, monitor.inputs = saved.alarms, saved.misses, saved.inputs
        monitor._bag, monitor._given_up = monitor._on_grid(bag), saved.given_up
        monitor._queue.restore(saved.queue)
        return monitor


def _check_new(decision: object) -> None:
    """Refuse decisions about inputs that the rule was tuned or calibrated on."""
    if isinstance(decision, Decisions) and decision.reuse:
        raise InputError(f"a monitor watches new inputs: {decision.reuse}")


def _signature(calibrated: CalibratedRule) -> tuple[object, ...]:
    """Values that differ between any two calibrated rules that decide differently."""
    return (
        calibrated.fingerprint,
        calibrated.guarantee,
        calibrated.rule.max_set_size,
        calibrated.checkpoints,
        calibrated.thresholds.tobytes(),
    )
