"""A threshold that heals: it follows the labels, and keeps the share of misses near α whatever the inputs do.

With ℓ the threshold of AgreeStop, a logarithm of the risk, and η the rate:

    ℓ ← min(ℓ_max, ℓ + η·(α - miss)),    decide with ℓ if ℓ > ℓ_min, else with -∞: nothing stops, and the last answer holds every class

Stop-aware SpikeCP has it mirrored, because its large thresholds are the safe ones: ℓ is the threshold, negated.

*Guarantee*, for any sequence of inputs and labels: if labels come at most D inputs late, then in every window of N inputs

    share of misses ≤ α + ((ℓ_max - ℓ_min)/η + (1-α)(D+1))/N.

For a rule calibrated with labels="final" the label is the ensemble's own best class at the last checkpoint, and with -∞ the last answer is
only that class: it never misses either.

The steps of the window telescope. ℓ is at most ℓ_max before them, the cap only lowers it, and nothing misses while ℓ ≤ ℓ_min, so ℓ stays
above ℓ_min - η(1-α)(D+1): only decisions that wait for their labels can lower it further. From the first input on, ℓ_1 stands for ℓ_max.
Inputs count in the order of opening: a stream keeps the threshold that it was opened with, and
labels are processed in that order (see `opening_order`). D counts the inputs that are opened before a label is processed. An input whose
label will never be known moves nothing and does not count.

ℓ_min is one hit below the smallest W of the calibration examples, and ℓ_max the largest risk seen there (stop-aware: the threshold of least
mean stopping time): thresholds beyond them would change nothing there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import InputError, as_count, is_number

from .betting import Log
from .calibrated import CalibratedRule, Session, try_out
from .decisions import Decision, Decisions
from .label_queue import FINAL_LABEL, LabelQueue, Ready, SavedQueue
from .levels import as_target, in_words
from .policies import RiskThreshold, StoppingThreshold
from .rule_files import KeptInFiles, read_rule_file, write_rule_file
from .score_files import ScoresLike


@dataclass(frozen=True, eq=False)
class SavedAdaptive(KeptInFiles):
    """All that an adaptive rule knows, as it goes into a file."""

    calibrated: CalibratedRule
    rate: float
    queue: SavedQueue
    position: float
    misses: int
    labels: int
    log: Log


class AdaptiveRule:
    """A calibrated AgreeStop or stop-aware SpikeCP whose threshold follows the labels.

    `decide` and `stream` decide with the threshold of the moment and note the decisions; `update` takes their labels, in any order.
    A decision that was made with `calibrated`, by an engine for example, goes to `observe`, or with its label to `update`. If only
    `update` is used, it takes each call for a new decision, so a decision given twice counts twice.

    rate        η: how far one miss moves the threshold, which is a logarithm of the risk for AgreeStop and a score for SpikeCP
    calibrated  the rule with the threshold of the moment
    log         the threshold and the share of misses so far, over time

    For a rule calibrated with labels="final", give `decisions.final_best` as labels.
    """

    def __init__(self, calibrated: CalibratedRule, rate: float = 0.2) -> None:
        if not isinstance(calibrated, CalibratedRule):
            raise InputError(f"calibrated is {calibrated!r}: give what rule.calibrate(...) returned.")
        if not is_number(rate) or not rate > 0:
            raise InputError(f"rate is {rate!r}: give how far one miss moves the threshold, a finite number above 0.")
        policy = calibrated.policy
        if not isinstance(policy, (RiskThreshold, StoppingThreshold)) or getattr(calibrated.rule, "target", None) is None:
            advice = "give AgreeStop or stop-aware SpikeCP with a target, without gate, groups and accumulated"
            raise InputError(f"an adaptive rule moves one threshold, which this {type(calibrated.rule).__name__} does not have: {advice}.")
        if policy.reach is None or not np.isfinite(policy.reach).all() or len(policy.reach) != 2:
            raise InputError("the rule does not say between which thresholds it may move, as files of version 0.1: calibrate it again.")
        self._start, self._policy, self.rate = calibrated, policy, float(rate)
        self._alpha = 1 - as_target(calibrated.rule.target)  # type: ignore[attr-defined]
        self._sign = -1.0 if policy.safest > 0 else 1.0
        safe, bold = (self._sign * end for end in policy.reach)
        self._low = safe - self.rate * float(self._alpha)
        self._high = max(safe, bold)
        self._position = min(max(self._sign * policy.threshold, self._low), self._high)
        self._misses = self._labels = 0
        self._opened = [0]  # streams of this rule are numbered by themselves
        self._queue = LabelQueue(calibrated.classes, self._opened)
        self.log = Log.of(2)

    @property
    def miss_target(self) -> float:
        """α: the share of misses that the threshold is steered to."""
        return float(self._alpha)

    @property
    def threshold(self) -> float:
        """The threshold that the next decision is made with; -∞, or ∞ for SpikeCP, if nothing may stop."""
        return self._sign * self._position if self._position > self._low else self._policy.safest

    @property
    def calibrated(self) -> CalibratedRule:
        """A rule with the threshold of the moment, for engines and files."""
        policy = replace(self._policy, threshold=self.threshold)
        moved = replace(self._start, policy=policy, guarantee=self.guarantee, shortage="", adapted=True)
        object.__setattr__(moved, "opened", self._opened)
        return moved

    @property
    def waiting(self) -> str:
        """What waits for which earlier decision or label, in words; empty if nothing waits."""
        return self._queue.stalled

    @property
    def guarantee(self) -> str:
        """What holds, in words."""
        reach, label = (self._high - self._low) / self.rate, FINAL_LABEL if self._start.final else "the label"
        return (
            f"of any N inputs in a row, whose labels come at most D inputs late, at most {in_words(self._alpha)} + "
            f"({reach:.1f} + {in_words(1 - self._alpha)} * (D + 1)) / N of the answers miss {label}, whatever the inputs are."
        )

    def bound(self, inputs: int, delay: int = 0) -> float:
        """The largest share of misses among any `inputs` inputs in a row, whose labels come at most `delay` inputs late."""
        count, late = as_count(inputs, "inputs"), as_count(delay, "delay", least=0)
        return self.miss_target + ((self._high - self._low) / self.rate + float(1 - self._alpha) * (late + 1)) / count

    def decide(
        self,
        scores_or_log_confidence: ScoresLike,
        times: Sequence[float] | None = None,
        *,
        any_engine: bool = False,
        any_members: bool = False,
    ) -> Decisions:
        """Decide for a batch with the threshold of the moment; the order of the rows is the order of the inputs."""
        decisions = self.calibrated.decide(scores_or_log_confidence, times, any_engine=any_engine, any_members=any_members)
        self.observe(decisions)
        return decisions

    def stream(self) -> Session:
        """Watch one input with the threshold of the moment; how late its label comes counts from here.

        Close a session that gets no decision: `session.close()`.
        """
        return Session(self.calibrated, notify=self.observe, skip=self.skip)

    def observe(self, decision: Decision | Decisions, key: str = "") -> None:
        """A decision, if neither `decide` nor `stream` made it. `update` finds it under `key` too."""
        self._queue.add(decision, key)
        self._queue.explicit = True
        self._follow(self._queue.take())

    def skip(self, number: int) -> None:
        """A stream that gets no decision, and so moves nothing; closed sessions of `stream` are skipped by themselves."""
        self._queue.skip(number, None)
        self._follow(self._queue.take())

    def update(self, decision: Decision | Decisions | str | int, label: ArrayLike | None) -> str:
        """The label of a decision, or the labels (n,) of a batch; None for one that will never be known. Returns `waiting`.

        A decision is given as the object, by its key, or by its number: `Decision.number`, or where all decisions came in batches their
        order from 0. For a row of a batch and after a load an equal object will do: the oldest decision like it gets the label. A label
        is processed once those of all earlier inputs are known.
        """
        labels = self._queue.check(decision, label)
        if self._queue.is_new(decision) and isinstance(decision, (Decision, Decisions)):
            self._queue.add(decision)
        self._follow(self._queue.add_labels(decision, labels))
        return self.waiting

    def _follow(self, ready: Sequence[Ready]) -> None:
        """Move the threshold by inputs whose labels are known, in the order of opening."""
        for number, missed in ready:
            if missed is None:
                continue
            self._position = min(self._high, self._position + self.rate * (self.miss_target - missed))
            self._misses, self._labels = self._misses + missed, self._labels + 1
            self.log.add(number + 1, self._sign * max(self._position, self._low), self._misses / self._labels)

    def __repr__(self) -> str:
        share = f", {self._misses / self._labels:.3g} of them missed" if self._labels else ""
        share += self.waiting and f"; {self.waiting}"
        return f"AdaptiveRule: threshold {self.threshold:.4g}; {self._queue.observed} decisions, {self._labels} labels processed{share}"

    def save(self, path: str | PathLike[str]) -> None:
        """Write all that the rule knows to one file, which appears whole or not at all."""
        counts = self._misses, self._labels
        saved = SavedAdaptive(self._start, self.rate, self._queue.saved(), self._position, *counts, self.log)
        write_rule_file(path, saved, {"adaptive_rule": repr(self), "guarantee": self.guarantee})

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read an adaptive rule, which goes on where it was."""
        return read_rule_file(path, SavedAdaptive, cls._restored)

    @classmethod
    def _restored(cls, saved: SavedAdaptive) -> Self:
        adaptive = cls(try_out(saved.calibrated), saved.rate)
        if not 0 <= saved.misses <= saved.labels <= saved.queue.observed or saved.log.rows.shape[1] != 3:
            raise ValueError("counts that no adaptive rule has")
        if not -math.inf < saved.position <= adaptive._high:
            raise ValueError(f"a threshold of {saved.position}")
        adaptive._queue = LabelQueue.restored(saved.queue, saved.calibrated.classes, adaptive._opened)
        adaptive._position, adaptive._misses, adaptive._labels, adaptive.log = saved.position, saved.misses, saved.labels, saved.log
        return adaptive
