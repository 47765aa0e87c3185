"""Who cannot stop yet: a quick look at every input before the rule itself judges those that may.

At most checkpoints most inputs go on, and to find that out a rule need not be exact. For AgreeStop an approximate log-risk is computed in a
compiled loop, here, or in one kernel of a GPU (`fused_screen`), and an input may stop only where

    log e_t - offset_t  <  log λ + slack,        slack = SLACK (1 + |log λ + offset_t|) + doubt_t

and SLACK is far above the rounding of that arithmetic; `doubt` is what a large temperature, many steps or an exponent near 0 make of it.
The rule itself then judges each input at the first checkpoint where it may stop, all of them at once, and at the next one if it does not;
on a GPU only where stop or answer lie within the slack. So decisions are the rule's own, bit for bit, and the looking costs little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agreestop.common.arrays import Booleans, Floats, Integers
from agreestop.decide.agree_stop import AgreeStop
from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.confidence import log_softmax
from agreestop.decide.learned_risk import FEATURES, FLOOR, LearnedRisk
from agreestop.decide.policies import RiskThreshold, State, Verdict
from agreestop.decide.risks import ShapedRisk, TopMass

SLACK = 1e-9
EPSILON = float(np.finfo(np.float64).eps)
ROUNDINGS = 16
"""Roundings, with room, of numbers as large as the counts of a step, between spikes and the pooled log-confidence."""
EXPONENTS, LARGEST = (1e-3, 1e6), 1e6
"""Exponents, and numbers in a rule, that float32 can work with."""


@dataclass(frozen=True, eq=False)
class Screen:
    """What is known of a rule, an entry for each of its M checkpoints.

    exponent      of the generalised mean over members
    temperatures  (M,) of the pooled log-confidence
    bounds        (M,) log λ + offset: an input stops where its log-risk is below
    learned       (M, 2 + features): bias, log time and weights of a learned risk; no columns for the mass outside the best I classes
    """

    rule: AgreeStop
    policy: RiskThreshold
    exponent: float
    temperatures: Floats
    bounds: Floats
    learned: Floats

    @property
    def on_device(self) -> bool:
        """Whether the kernel for GPUs knows this risk, and float32 holds its numbers."""
        mean = self.exponent == 0 or math.isinf(self.exponent) or EXPONENTS[0] <= abs(self.exponent) <= EXPONENTS[1]
        bounds = self.bounds[np.isfinite(self.bounds)]
        held = all((np.abs(values) <= LARGEST).all() for values in (bounds, self.temperatures))
        return not self.learned.shape[1] and mean and held

    @property
    def times(self) -> list[int]:
        """The checkpoints, where they are whole steps."""
        return [int(time) for time in self.rule.checkpoints]

    @property
    def last(self) -> int:
        """The last checkpoint, at which every input stops."""
        return len(self.bounds) - 1

    def doubt(self, classes: int, epsilon: float) -> Floats:
        """How far rounding of relative size `epsilon` may move two tempered log-confidences apart, (M,): counts are at most their step."""
        sums = 8 / abs(self.exponent) if self.exponent and math.isfinite(self.exponent) else 0.0
        largest = np.array(self.rule.checkpoints, dtype=np.float64) + math.log(classes) + sums
        return np.asarray(2 * ROUNDINGS * epsilon * np.abs(self.temperatures) * largest)

    def slack(self, share: float, doubt: Floats) -> Floats:
        """Of the bounds, (M,), none of those that are infinite: `share` of their size and the doubt."""
        return np.where(np.isfinite(self.bounds), share * (1 + np.abs(self.bounds)) + doubt, 0)

    def answers(self, classes: int) -> int:
        """How many classes are answered at most."""
        return min(self.rule.max_set_size, classes)

    def may_stop(self, counts: NDArray[Any], checkpoints: Sequence[int]) -> Booleans:
        """Whether inputs with these spike counts (rows, len(checkpoints), K, C) may stop there, (rows, len(checkpoints))."""
        from agreestop.networks._kernels.prefilter_kernel import may_stop  # imported here since it compiles its loop

        flags = np.empty(counts.shape[:2], np.bool_)
        places = np.array(checkpoints, dtype=np.int64)
        counts = np.ascontiguousarray(counts, dtype=np.int64)
        bounds = self.bounds + self.slack(SLACK, self.doubt(counts.shape[3], EPSILON))
        may_stop(counts, places, self.exponent, self.temperatures, bounds, self.learned, self.rule.max_set_size, SLACK, FLOOR, flags)
        flags[:, places == self.last] = True
        return flags

    def judge(self, checkpoints: Integers, counts: NDArray[Any]) -> Verdict:
        """The rule's own verdict on inputs with spike counts (b, K, C), each at a checkpoint of its own, (b,)."""
        evidence = self.rule.evidence(checkpoints, log_softmax(counts.astype(np.float64)))
        return self.policy.judge(checkpoints, checkpoints == self.last, evidence, State(len(counts)))


def screen_of(calibrated: CalibratedRule) -> Screen | None:
    """The screen of a rule; None for one that has none."""
    rule, policy = calibrated.rule, calibrated.policy
    if not isinstance(rule, AgreeStop) or not isinstance(policy, RiskThreshold):
        return None
    risk, count = rule.risk, len(rule.checkpoints)
    offsets = np.zeros(count)
    while isinstance(risk, ShapedRisk):
        offsets, risk = offsets + risk.offsets, risk.base
    learned: Floats = np.empty((count, 0))
    if isinstance(risk, LearnedRisk):
        rows = np.broadcast_to(risk.weights, (count, len(FEATURES)))
        learned = np.column_stack([np.full(count, risk.bias), risk.log_times, rows])
        risk = risk.posterior
    if not isinstance(risk, TopMass):
        return None
    temperatures = np.ones(count) if risk.temperatures is None else np.asarray(risk.temperatures, np.float64)
    return Screen(rule, policy, risk.pooling.r, temperatures, policy.threshold + offsets, np.ascontiguousarray(learned))


def can_screen_here() -> bool:
    """Whether the loop can be compiled."""
    from agreestop.networks._kernels.numba_runtime import (
        numba_available,  # imported here since it brings PyTorch, which names of engines need not
    )

    return numba_available()
