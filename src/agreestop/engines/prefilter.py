"""The prefilter: a fast test that finds inputs that cannot stop yet, so that the rule judges
only the others.

At most checkpoints most inputs continue, and an approximate risk is enough to see that. For
AgreeStop an approximate log-risk is computed in a compiled loop, here on the CPU, or in one GPU
kernel (`gpu.prefilter`). An input may stop at checkpoint t only where

    log e_t - offset_t  <  log λ + margin
    margin = SLACK (1 + |log λ + offset_t|) + rounding_bound_t

SLACK is far above the rounding error of that arithmetic. `rounding_bound` adds the error that a
large temperature, many steps or an exponent near 0 amplify. The prefilter only says "cannot stop
here". Every other input goes to `calibrated.step`, so decisions are those of the rule, bit for bit.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agreestop.common import Booleans, Floats, Integers, parallel_for
from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.risks import LARGEST_CONSTANT
from agreestop.decide.tuning.agreement_features import FLOOR

SLACK = 1e-9
EPSILON = float(np.finfo(np.float64).eps)
# an upper bound on the number of roundings between spike counts or logits and the pooled
# log-confidence
ROUNDINGS = 16
WORTH_A_THREAD = 1 << 14  # counts or logits: about 0.2 ms of work
# the range of exponents, and the largest number in a rule, for which float32 is precise enough
EXPONENTS, LARGEST = (1e-3, 1e6), 1e6


@dataclass(frozen=True, eq=False)
class Prefilter:
    """The numbers of a calibrated rule that the test needs, one entry for each of its
    M checkpoints.

    max_set_size  I: the risk is the mass outside the best I classes
    exponent      of the generalised mean over members
    temperatures  (M,) of the pooled log-confidence
    bounds        (M,) log λ + offset: an input stops where its log-risk is below
    learned       (M, 2 + features) bias, log time and weights of a learned risk; no
                  columns for TopMass
    """

    calibrated: CalibratedRule
    max_set_size: int
    exponent: float
    temperatures: Floats
    bounds: Floats
    learned: Floats

    @property
    def first_looks(self) -> int:
        """The number of looks before more members join: all of them without a `Schedule`."""
        return self.calibrated.judged_members.count(self.first_members)

    @property
    def first_members(self) -> int:
        """The number of members at the first looks."""
        return self.calibrated.judged_members[0]

    @property
    def fits_gpu(self) -> bool:
        """Whether the GPU kernel knows this risk, and float32 is precise enough for its numbers.

        Where members join, most looks must come before, and inputs must be able to stop there.
        """
        exponent_fits = (
            self.exponent == 0
            or math.isinf(self.exponent)
            or EXPONENTS[0] <= abs(self.exponent) <= EXPONENTS[1]
        )
        bounds = self.bounds[np.isfinite(self.bounds)]
        known = self.calibrated.policy.one_order_statistic and not self.learned.shape[1]
        first = self.first_looks
        worth_it = 2 * first >= len(self.bounds) and (
            first == len(self.bounds) or bool((self.bounds[:first] > -np.inf).any())
        )
        return (
            known
            and worth_it
            and exponent_fits
            and all((np.abs(part) <= LARGEST).all() for part in (bounds, self.temperatures))
        )

    def rounding_bound(self, classes: int, epsilon: float, logit: float = 0.0) -> Floats:
        """A bound (M,) on how far rounding of relative size `epsilon` moves two tempered
        log-confidences apart.

        It uses that a count is at most its number of steps, and a logit at most `logit` in size.
        """
        sums = 8 / abs(self.exponent) if self.exponent and math.isfinite(self.exponent) else 0.0
        counts = np.array(self.calibrated.checkpoints, dtype=np.float64)
        largest = np.maximum(counts, 2 * logit) + math.log(classes) + sums
        return np.asarray(2 * ROUNDINGS * epsilon * np.abs(self.temperatures) * largest)

    def bounds_with_margin(
        self, slack: float, classes: int, epsilon: float, logit: float = 0.0
    ) -> Floats:
        """Bounds (M,) raised by the margin; an infinite bound stays as it is."""
        margin = slack * (1 + np.abs(self.bounds)) + self.rounding_bound(classes, epsilon, logit)
        return self.bounds + np.where(np.isfinite(self.bounds), margin, 0)

    def numbers(self, bounds: Floats) -> tuple[Any, ...]:
        """What the compiled loops take, with bounds that include a margin."""
        tempered = self.exponent, self.temperatures, bounds
        return *tempered, self.learned, self.max_set_size, SLACK, FLOOR

    @cached_property
    def numbers_of_counts(self) -> tuple[Any, ...]:
        """The same for spike counts."""
        return self.numbers(self.bounds_with_margin(SLACK, self.calibrated.classes, EPSILON))

    @cached_property
    def _numbers_of_logits(self) -> dict[int, tuple[Any, ...]]:
        """What the loops take, for logits below each power of two."""
        return {}

    def may_stop_at(self, evidence: NDArray[Any], checkpoint: int) -> bool:
        """Whether one input with spike counts or finite logits (K, C) may stop at a checkpoint."""
        # imported here since numba compiles it on import
        from agreestop.kernels.cpu.prefilter import may_stop

        if checkpoint in (0, len(self.bounds) - 1):
            return True
        given, flags = np.ascontiguousarray(evidence, np.float64), np.empty((1, 1), np.bool_)
        numbers = self.numbers_of_counts
        if evidence.dtype.kind not in "iu":
            power = math.frexp(np.abs(given).max())[1]
            if power not in self._numbers_of_logits:
                wider = self.bounds_with_margin(SLACK, given.shape[1], EPSILON, 2.0**power)
                self._numbers_of_logits[power] = self.numbers(wider)
            numbers = self._numbers_of_logits[power]
        may_stop(given[None, None], np.array([checkpoint]), *numbers, flags)
        return bool(flags[0, 0])

    def may_stop(self, evidence: NDArray[Any], checkpoints: Integers) -> Booleans:
        """Whether inputs with spike counts or logits (rows, m, K, C) at these m checkpoints may
        stop there, (rows, m).
        """
        # imported here since numba compiles it on import
        from agreestop.kernels.cpu.prefilter import may_stop

        flags = np.empty(evidence.shape[:2], np.bool_)
        numbers = np.ascontiguousarray(evidence, dtype=np.float64)
        numbers_of_rule = self.numbers_of_counts
        if evidence.dtype.kind not in "iu":
            largest = float(np.abs(numbers).max(initial=0.0))
            wider = self.bounds_with_margin(SLACK, evidence.shape[3], EPSILON, largest)
            numbers_of_rule = self.numbers(wider)

        def run(_: int, first: int, last: int) -> None:
            may_stop(numbers[first:last], checkpoints, *numbers_of_rule, flags[first:last])

        if numbers.size < 2 * WORTH_A_THREAD:
            run(0, 0, len(numbers))
        else:
            # imported here since it loads PyTorch
            from agreestop.kernels.cpu.numba_runtime import threads_for

            parallel_for(run, len(numbers), threads_for(numbers.size, WORTH_A_THREAD))
        # Every input stops at the last checkpoint, and its risk at the first one is noted.
        flags[:, (checkpoints == len(self.bounds) - 1) | (checkpoints == 0)] = True
        return flags


def prefilter_for(calibrated: CalibratedRule, output: str = "spikes") -> Prefilter | None:
    """The prefilter of a rule on engines with this output, spikes or logits.

    None for a rule that has none.
    """
    found = calibrated.rule.prefilter(calibrated.policy)
    if found is None:
        return None
    limits, numbers = found
    # There is no bound on how far learned weights carry the rounding of large logits.
    if numbers.learned.shape[1] and output != "spikes":
        return None
    count, offsets = len(limits), numbers.offsets
    temperatures = np.ones(count)
    if numbers.temperatures is not None:
        temperatures = np.asarray(numbers.temperatures, np.float64)
    bounds = np.where(offsets > -np.inf, limits + np.maximum(offsets, -LARGEST_CONSTANT), -np.inf)
    size = calibrated.rule.max_set_size
    return Prefilter(calibrated, size, numbers.exponent, temperatures, bounds, numbers.learned)


def can_prefilter_on_cpu() -> bool:
    """Whether the compiled loop is available."""
    # imported here since it loads PyTorch
    from agreestop.kernels.cpu.numba_runtime import numba_available

    return numba_available()
