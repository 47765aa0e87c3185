"""A threshold that heals: it follows the labels, and keeps the share of misses near α.

With ℓ the threshold in a scale where small is safe, and η the rate:

    ℓ ← min(ℓ_max, ℓ + η·(α - miss)),    decide with ℓ if ℓ > ℓ_min, else with -∞

With -∞ nothing stops, and the last answer holds every class. For AgreeStop ℓ is a logarithm of the
risk. Large thresholds of stop-aware SpikeCP are the safe ones, so there ℓ is the negated threshold.

*Guarantee*, for any sequence of inputs and labels: if labels come at most D inputs late, then in
every window of N inputs

    share of misses ≤ α + ((ℓ_max - ℓ_min)/η + (1-α)(D+1))/N.

For a rule calibrated with labels="final" the label is the ensemble's own best class at the last
checkpoint, and with -∞ the last answer is only that class: it never misses either.

The steps of the window telescope. ℓ is at most ℓ_max before them, the cap only lowers it, and
nothing misses while ℓ ≤ ℓ_min, so ℓ stays above ℓ_min - η(1-α)(D+1): only decisions that wait for
their labels can lower it further. From the first input on, ℓ_1 stands for ℓ_max. Inputs count in
the order of opening: a stream keeps the threshold that it was opened with, and labels are processed
in that order (see `label_queue`). D counts the inputs that are opened before a label is processed.
An input whose label will never be known moves nothing and does not count.

ℓ_min is one hit below the smallest W of the calibration examples, and ℓ_max the largest risk seen
there (stop-aware: the threshold of least mean stopping time): thresholds beyond them would change
nothing there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from numpy.typing import ArrayLike

from agreestop.common import InputError, StrPath, as_count, is_number, set_fields
from agreestop.common.kept import KeptInFiles
from agreestop.common.levels import in_words

from ..calibrated import CalibratedRule, Session, check_calibrated, try_out
from ..decisions import Decision, Decisions
from ..rule_files import read_rule_file, write_rule_file
from ..scores import ScoresLike
from .betting import Log
from .label_queue import FINAL_LABEL, Given, LabelQueue, SavedQueue


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

    `decide` and `stream` decide with the threshold of the moment and note the decisions; `update`
    takes their labels, in any order. A decision that was made with `calibrated`, by an engine for
    example, goes to `observe`, or with its label to `update`. If only `update` is used, it takes
    each call for a new decision, so a decision that is given twice counts twice.

    Parameters
    ----------
    calibrated : CalibratedRule
        A rule with one threshold, which is where the threshold begins.
    rate : float
        η: how far one miss moves the threshold, which is a logarithm of the risk for AgreeStop and
        a score for SpikeCP.

    Attributes
    ----------
    log : Log
        The threshold and the share of misses so far, over time.

    Notes
    -----
    For any inputs and labels, the share of misses in a window of inputs is at most `bound`. For a
    rule calibrated with labels="final", give `decisions.final_best` as labels.

    Examples
    --------
    >>> import agreestop as ag
    >>> rule = ag.AgreeStop(0.9, (5, 10, 20), 1).calibrate(ag.simulate_scores(200, steps=20, C=4))
    >>> adaptive = ag.AdaptiveRule(rule, rate=0.2)
    >>> noise = ag.simulate_scores(100, steps=20, C=4, seed=2, signal=0.5)
    >>> for row in range(100):
    ...     one = noise.rows(slice(row, row + 1))
    ...     words = adaptive.update(adaptive.decide(one), one.labels)
    >>> adaptive.threshold < float(rule.thresholds[0])
    True
    """

    def __init__(self, calibrated: CalibratedRule, rate: float = 0.2) -> None:
        check_calibrated(calibrated)
        if not is_number(rate) or not rate > 0:
            raise InputError(
                f"rate is {rate!r}: give how far one miss moves the threshold, a finite number "
                "above 0."
            )
        if calibrated.reach is None:
            raise InputError(
                "an adaptive rule moves one threshold of classes or open answers, which this "
                f"{type(calibrated.rule).__name__} does not have: give AgreeStop or stop-aware "
                "SpikeCP with a target, without gate, groups, accumulated and depth='each'; for a "
                "rule in files of version 0.1: calibrate it again."
            )
        terms = calibrated.rule.terms
        if terms.open_answers and not (calibrated.final or terms.abstains):
            raise InputError(
                "an adaptive rule must be able to avoid misses, and the last of open answers may "
                'be wrong: calibrate with labels="final", or with at_end="abstain".'
            )
        self._start, self.rate = calibrated, float(rate)
        self._alpha = 1 - calibrated.rule.exact_target
        safe, bold = calibrated.reach
        self._low, self._high = safe - self.rate * self.miss_target, max(safe, bold)
        self._position = min(max(calibrated.safe_threshold, self._low), self._high)
        self._misses = self._labels = 0
        self._opened = [0]  # streams of this rule have numbers of their own
        self._queue = LabelQueue(terms, calibrated.classes, self._opened, calibrated.class_names)
        self.log = Log.of(2)

    @property
    def miss_target(self) -> float:
        """α: the share of misses that the threshold is steered to."""
        return float(self._alpha)

    @property
    def _threshold(self) -> float:
        """The threshold of the moment, where small is safe."""
        return self._position if self._position > self._low else -math.inf

    @property
    def threshold(self) -> float:
        """The threshold of the next decision; -∞, or ∞ for SpikeCP, if nothing may stop."""
        return self._start.shown(self._threshold)

    @property
    def calibrated(self) -> CalibratedRule:
        """A rule with the threshold of the moment, for engines and files."""
        moved = self._start.with_threshold(self._threshold)
        moved = replace(moved, guarantee=self.guarantee, shortage="")
        set_fields(moved, opened=self._opened)
        return moved

    @property
    def waiting(self) -> str:
        """Which earlier decision or label the others wait for; empty if nothing waits."""
        return self._queue.stalled

    @property
    def guarantee(self) -> str:
        """What holds, as a sentence."""
        reach = (self._high - self._low) / self.rate
        label = FINAL_LABEL if self._start.final else "the label"
        alpha, target = in_words(self._alpha), in_words(1 - self._alpha)
        return (
            "of any N inputs in a row, whose labels come at most D inputs late, at most "
            f"{alpha} + ({reach:.1f} + {target} * (D + 1)) / N of the answers miss {label}, "
            "whatever the inputs are."
        )

    def bound(self, inputs: int, delay: int = 0) -> float:
        """The largest share of misses among any inputs in a row.

        Parameters
        ----------
        inputs : int
            N: how many inputs.
        delay : int
            D: how many inputs late their labels come at most.

        Returns
        -------
        float
            The share, which may be above 1 for few inputs.

        Examples
        --------
        >>> import agreestop as ag
        >>> rule = ag.AgreeStop(0.9, (5, 10), 1).calibrate(ag.simulate_scores(100, steps=10, C=4))
        >>> 0.1 < ag.AdaptiveRule(rule).bound(10_000, delay=5) < 0.11
        True
        """
        count, late = as_count(inputs, "inputs"), as_count(delay, "delay", least=0)
        excess = (self._high - self._low) / self.rate + float(1 - self._alpha) * (late + 1)
        return self.miss_target + excess / count

    def decide(
        self,
        scores_or_log_confidence: ScoresLike,
        times: Sequence[float] | None = None,
        *,
        any_engine: bool = False,
        any_members: bool = False,
    ) -> Decisions:
        """Decide for a batch with the threshold of the moment, as `CalibratedRule.decide` does.

        The order of the rows is the order of the inputs.

        Examples
        --------
        >>> import agreestop as ag
        >>> rule = ag.AgreeStop(0.9, (5, 10), 1).calibrate(ag.simulate_scores(100, steps=10, C=4))
        >>> adaptive = ag.AdaptiveRule(rule)
        >>> new = ag.simulate_scores(8, steps=10, C=4, seed=1)
        >>> adaptive.update(adaptive.decide(new), new.labels)
        ''
        """
        decisions = self.calibrated.decide(
            scores_or_log_confidence, times, any_engine=any_engine, any_members=any_members
        )
        self.observe(decisions)
        return decisions

    def stream(self) -> Session:
        """Watch one input with the threshold of the moment.

        The delay of its label counts from here. Close a session that gets no decision.

        Examples
        --------
        >>> import agreestop as ag
        >>> rule = ag.AgreeStop(0.9, (5, 10), 1).calibrate(ag.simulate_scores(100, steps=10, C=4))
        >>> adaptive = ag.AdaptiveRule(rule)
        >>> session = adaptive.stream()
        >>> session.close()
        """
        return Session(self.calibrated, notify=self.observe, skip=self.skip)

    def observe(self, decision: Decision | Decisions, key: str = "") -> None:
        """Take a decision that neither `decide` nor `stream` made. `update` finds it by `key` too.

        Examples
        --------
        >>> import agreestop as ag
        >>> rule = ag.AgreeStop(0.9, (5, 10), 1).calibrate(ag.simulate_scores(100, steps=10, C=4))
        >>> adaptive = ag.AdaptiveRule(rule)
        >>> adaptive.observe(ag.Decision(5, 0, (2,)), key="input 17")
        >>> adaptive.update("input 17", 2)
        ''
        """
        self._queue.add(decision, key)
        self._follow()

    def skip(self, number: int) -> None:
        """Take a stream that gets no decision, and so moves nothing.

        A session of `stream` that is closed is skipped by itself.
        """
        self._queue.skip(number)
        self._follow()

    def update(self, decision: Given, label: ArrayLike | None) -> str:
        """Take the label of a decision, or the labels of a batch.

        A label is processed when the labels of all earlier inputs are known.

        Parameters
        ----------
        decision : Decision, Decisions, str or int
            The object that was observed, its key, or its number, as in `DriftMonitor.update`.
        label : int or array of int, shape (n,)
            The class index, or one for each row of a batch; None for a label that will never be
            known. For open answers a string, as in `DriftMonitor.update`.

        Returns
        -------
        str
            `waiting`.

        Examples
        --------
        >>> import agreestop as ag
        >>> rule = ag.AgreeStop(0.9, (5, 10), 1).calibrate(ag.simulate_scores(100, steps=10, C=4))
        >>> adaptive = ag.AdaptiveRule(rule)
        >>> decisions = adaptive.decide(ag.simulate_scores(2, steps=10, C=4, seed=1))
        >>> adaptive.update(decisions[1], 3)
        '1 label waits for the label of decision 0: give it, or None'
        """
        self._queue.update(decision, label)
        self._follow()
        return self.waiting

    def _follow(self) -> None:
        """Move the threshold by inputs whose labels are known, in the order of opening."""
        for number, missed in self._queue.take()[1]:
            if missed is None:
                continue
            step = self.rate * (self.miss_target - missed)
            self._position = min(self._high, self._position + step)
            self._misses += missed
            self._labels += 1
            shown = self._start.shown(max(self._position, self._low))
            self.log.add(number + 1, shown, self._misses / self._labels)

    def __repr__(self) -> str:
        words = f"{self._queue.observed} decisions, {self._labels} labels processed"
        if self._labels:
            words += f", {self._misses / self._labels:.3g} of them missed"
        words += self.waiting and f"; {self.waiting}"
        return f"AdaptiveRule: threshold {self.threshold:.4g}; {words}"

    def save(self, path: StrPath) -> None:
        """Write all that the rule knows to one file, which appears whole or not at all.

        Examples
        --------
        >>> import os, tempfile, agreestop as ag
        >>> rule = ag.AgreeStop(0.9, (5, 10), 1).calibrate(ag.simulate_scores(100, steps=10, C=4))
        >>> adaptive = ag.AdaptiveRule(rule)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "adaptive")
        ...     adaptive.save(path)
        ...     ag.AdaptiveRule.load(path).threshold == adaptive.threshold
        True
        """
        queue, counts = self._queue.saved(), (self._misses, self._labels)
        saved = SavedAdaptive(self._start, self.rate, queue, self._position, *counts, self.log)
        write_rule_file(path, saved, {"adaptive_rule": repr(self), "guarantee": self.guarantee})

    @classmethod
    def load(cls, path: StrPath) -> Self:
        """Read an adaptive rule, which goes on where it was; see `save` for an example."""
        return read_rule_file(path, SavedAdaptive, cls._restored)

    @classmethod
    def _restored(cls, saved: SavedAdaptive) -> Self:
        """Build an adaptive rule from a file; raise ValueError for one that nobody saved."""
        rule = cls(try_out(saved.calibrated), saved.rate)
        counts = 0 <= saved.misses <= saved.labels <= saved.queue.observed
        position = -math.inf < saved.position <= rule._high
        if not counts or not position or saved.log.rows.shape[1] != 3:
            raise ValueError("counts or a threshold that no adaptive rule has")
        rule._queue.restore(saved.queue)
        rule._position, rule.log = saved.position, saved.log
        rule._misses, rule._labels = saved.misses, saved.labels
        return rule
