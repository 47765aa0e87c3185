"""AgreeStop: answer the best I classes as soon as the estimated risk e that they miss is small enough.

For a threshold λ the rule stops at the first checkpoint with e_t < λ. Small λ is safe. A calibration example first fails at

    W(x, y) = inf{ λ : the answer at λ misses y },          k = ⌊(n+1)(1-p)⌋,          λ ≤ the k-th smallest W.

The λ that miss y are a union of intervals (u, v], so no λ ≤ W misses; a miss of the new example needs W < W_(k), which by
exchangeability has probability at most k/(n+1) ≤ 1-p. `checkpoints` computes W, `thresholds` puts λ into a gap, `gates` divides
examples into blocks, `conditions` into groups and classes, and `losses` replaces the miss by a cost.

`accumulated` is the published promise P(miss | stopped by t) ≤ α for every t, with probability ≥ 1-δ over i.i.d. calibration data (Ringel
et al. 2024). Candidate j may stop from checkpoint j on, where e_t < α; where the risk is a `Gate`, where it is open without slack. j falls
from the last checkpoint, and candidates are accepted until one fails: for every t ≥ j some examples stopped by t, and
P(Bin(m_t, α) ≤ misses_t) ≤ δ.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial

import numpy as np

from agreestop.common import Floats, InputError, Integers, is_number

from .calibration import Uncalibrated
from .checkpoints import Failures
from .checks import as_checkpoints
from .conditions import LabelledEvidence
from .evidence import Evidence, Policy
from .gates import Gate
from .levels import Target, as_delta, as_target, in_words, least_n, quantile_rank
from .losses import CostSteps, as_loss, as_max_loss
from .merging import MODEL_AVERAGE
from .policies import CheckpointRisks, ConditionalThresholds, RiskThreshold
from .ranking import Index
from .risks import FixedTime, Risk, TopMass
from .rounding import UNIT, UNITS, Rounding, rounding_of
from .rule_files import KeptInFiles
from .rules import coverage_promise, validate
from .thresholds import Thresholds, allowed_threshold, find_thresholds
from .tuned_rows import TunedRows

BESIDE = 2 * UNITS * UNIT
"""`accumulated` has a fixed limit: a risk of exactly 1 - target, such as 1/10 without any evidence, is above it in every run."""


@dataclass(frozen=True, eq=False, repr=False)
class AgreeStop(Uncalibrated, KeptInFiles):
    """Stop when the best `max_set_size` classes are sure enough: the estimated risk that they miss falls under a calibrated threshold.

    fill               False answers, of those classes, only the ones that the threshold keeps (smaller sets); True answers all of them
                       and stops a little earlier
    trim               between the two: the share of the threshold that a class must reach; 1 is fill=False and 0 is fill=True
    class_conditional  the promise for each true class by itself
    delta              δ: the promise given the calibration data, with probability ≥ 1 - δ over their draw
    gate               a `Gate`: the promise for each block of times at which an input first looked ready; the rule uses the gate's risk
    loss, max_loss     in place of a target (target=None): a cost matrix (C, C), and the mean cost that is promised
    accumulated        the published promise for the inputs that stopped by each time, which needs delta
    """

    target: Target | None
    checkpoints: Sequence[float]
    max_set_size: int
    fill: bool = False
    risk: Risk = field(default_factory=TopMass)
    class_conditional: bool = False
    delta: Target | None = None
    gate: Gate | None = None
    loss: Floats | None = None
    max_loss: Target | None = None
    accumulated: bool = False
    trim: float = 1.0

    def __post_init__(self) -> None:
        validate(self)
        if self.gate is not None:
            self._use_gate(self.gate)
        if isinstance(self.risk, type) or not hasattr(self.risk, "evidence"):
            raise InputError(f"risk is {self.risk!r}: give a risk such as TopMass(...), TopMass.fit(...) or LearnedRisk.fit(...).")
        self.risk.check_size(self.max_set_size)
        object.__setattr__(self, "risk", self.risk.cut(as_checkpoints(self.checkpoints)))
        if not (is_number(self.trim) and 0 <= self.trim <= 1):
            raise InputError(f"trim is {self.trim!r}: give a share of the threshold, from 0 to 1.")
        if self.fill and self.trim not in (0, 1):
            raise InputError(f"fill=True answers all of the best classes, so trim={self.trim!r} has no use: give one of them.")
        if (self.target is None) == (self.loss is None) or (self.loss is None) != (self.max_loss is None):
            raise InputError("give either a target, or target=None with loss, a cost matrix, and max_loss, the mean cost to promise.")
        if self.loss is not None and self.max_loss is not None:
            if self.delta is not None:
                raise InputError("a promise about loss is a mean over calibration draws: leave out delta, or give a target.")
            object.__setattr__(self, "loss", as_loss(self.loss))
            object.__setattr__(self, "max_loss", as_max_loss(self.max_loss, self.loss))
        if self.accumulated and (self.delta is None or self.gate is not None or self.class_conditional or self.loss is not None):
            raise InputError("accumulated=True needs delta, for example 0.1, and goes without gate, loss and class_conditional.")
        if self.accumulated and isinstance(self.risk, FixedTime):
            raise InputError("accumulated=True stops where the risk is below 1 - target, which a fixed time never is: give another risk.")

    def _use_gate(self, gate: Gate) -> None:
        if not isinstance(gate, Gate):
            raise InputError(f"gate is {gate!r}: give what Gate.fit returned.")
        plain = isinstance(self.risk, TopMass) and self.risk.temperatures is None and self.risk.pooling == MODEL_AVERAGE
        if not plain and not isinstance(self.risk, Gate):
            raise InputError("a rule with a gate uses the risk of the gate: give the risk to Gate.fit, and leave it out here.")
        object.__setattr__(self, "gate", gate.cut(as_checkpoints(self.checkpoints)))
        object.__setattr__(self, "risk", self.gate)

    @property
    def tuned(self) -> TunedRows | None:
        return self.risk.tuned

    @property
    def _target(self) -> Fraction:
        assert self.target is not None
        return as_target(self.target)

    @property
    def _log_trim(self) -> float:
        return -math.inf if self.fill or self.trim == 0 else math.log(self.trim)

    @property
    def _delta(self) -> Fraction | None:
        """δ, divided among the blocks of a gate."""
        delta = as_delta(self.delta)
        return delta if delta is None or self.gate is None else delta / (len(self.gate.ends) + 1)

    def evidence(self, index: Index, log_confidence: Floats) -> Evidence:
        return self.risk.evidence(index, log_confidence, self.max_set_size)

    @property
    def reducible(self) -> bool:
        """Whether a few numbers of each example are enough for calibration."""
        return self.gate is None and self.loss is None and not self.accumulated

    def reduce(self, examples: LabelledEvidence) -> dict[str, Floats]:
        """What calibration needs of each example: W and W_η (n,), the numbers compared with λ (n, ...), and the range of its risks."""
        evidence, rounding = examples.evidence, self.rounding(examples.rounding)
        failures = self._failures(examples, None)
        known = np.isfinite(failures.opens)
        lowest = np.where(known, failures.opens, np.inf).min(axis=1)
        highest = np.where(known, failures.opens, -np.inf).max(axis=1)
        W = failures.first()
        rounded = self._failures(examples, rounding).first(rounding, W)
        numbers = self._compared(evidence, examples.conditions.final)
        return {"W": W, "rounded": rounded, "numbers": numbers, "lowest": lowest, "highest": highest}

    def fit_reduced(self, numbers: dict[str, Floats], examples: LabelledEvidence) -> Policy:
        """The policy learned from what `reduce` gave; the evidence of the examples is not used."""
        reach = _reach(numbers["W"], np.column_stack([numbers["lowest"], numbers["highest"]]))
        policy = replace(self._untaught(examples), reach=reach)
        exact, rounded = (partial(self._coverage, numbers[name], examples) for name in ("W", "rounded"))
        rounding = self.rounding(examples.rounding)
        found = find_thresholds(examples, exact, rounded, numbers["numbers"], rounding, self.class_conditional)
        return self._taught(policy, found, examples)

    def rounding(self, base: Rounding) -> Rounding:
        """How far log-risks and log-masses of one input may differ between two runs, from the rounding of log-confidences."""
        rounding = rounding_of(self.risk, base)
        trimmed = -math.inf < self._log_trim < 0  # masses over the trim factor may lie among the risks that are exact
        return replace(rounding, exact_above=math.inf) if trimmed else rounding

    def _failures(self, examples: LabelledEvidence, rounding: Rounding | None) -> Failures:
        final = examples.conditions.final
        return Failures.of(examples.evidence, examples.labels, self.max_set_size, self._log_trim, rounding, final)

    def _compared(self, evidence: Evidence, final: bool) -> Floats:
        """The numbers (n, ...) that are compared with λ: risks, masses of the best classes at a stop, and all masses at the end."""
        assert evidence.log_risk is not None
        parts = [evidence.log_risk]
        if self.max_set_size > 1 and self._log_trim > -math.inf:
            ranked = -np.sort(-evidence.values, axis=-1)[:, :, 1 : self.max_set_size]
            parts.append(ranked.reshape(len(evidence), -1) - self._log_trim)
        return np.concatenate(parts if final else [*parts, evidence.values[:, -1]], axis=1)

    def _untaught(self, examples: LabelledEvidence) -> RiskThreshold:
        return RiskThreshold(-math.inf, self.max_set_size, self._log_trim == -math.inf, self._log_trim, examples.conditions.final)

    def _taught(self, policy: RiskThreshold, found: Thresholds, examples: LabelledEvidence) -> Policy:
        names, gate = examples.conditions.group_names, self.gate
        if gate is not None:
            return ConditionalThresholds(policy, found.values, names, gate.blocks, gate.slack, found.kth)
        if names is not None:
            return ConditionalThresholds(policy, found.values, names, kth_values=found.kth)
        return replace(policy, threshold=float(found.values[0, 0]), kth_values=found.kth[0])

    def fit(self, examples: LabelledEvidence) -> Policy:
        if self.reducible:
            return self.fit_reduced(self.reduce(examples), examples)
        policy, rounding = self._untaught(examples), self.rounding(examples.rounding)
        failures, rounded = self._failures(examples, None), self._failures(examples, rounding)
        if self.accumulated:
            return self._accumulate(failures, policy, examples)
        blocks, gate, count = None, self.gate, 1
        if gate is not None:
            opened, blocks = gate.opened(failures.opens)
            failures, rounded = failures.at(opened), rounded.at(opened)
            count = len(gate.ends) + 1
        exact: Callable[[Integers], float]
        safe: Callable[[Integers], float]
        if self.loss is not None:
            exact = self._costs(examples, failures.opens, None)
            safe = self._costs(examples, failures.opens, rounding)
        else:
            first = failures.first()
            exact, safe = (partial(self._coverage, W, examples) for W in (first, rounded.first(rounding)))
            policy = replace(policy, reach=_reach(first, failures.opens))
        numbers = self._compared(examples.evidence, examples.conditions.final)
        found = find_thresholds(examples, exact, safe, numbers, rounding, self.class_conditional, blocks, count)
        return self._taught(policy, found, examples)

    def _coverage(self, failures: Floats, examples: LabelledEvidence, rows: Integers) -> float:
        return allowed_threshold(failures, examples.conditions, rows, self._target, self._delta)

    def _costs(self, examples: LabelledEvidence, risk: Floats, rounding: Rounding | None) -> Callable[[Integers], float]:
        """The threshold that the costs of some rows allow, exactly or with rounding."""
        assert self.loss is not None
        if len(self.loss) != examples.classes:
            raise InputError(f"loss is for {len(self.loss)} classes and there are {examples.classes}: give a row and a column for each.")
        if examples.conditions.weights is not None:
            raise InputError("a promise about loss under weights is not offered: leave out weights, or give a target.")
        evidence = replace(examples.evidence, log_risk=risk)
        costs = CostSteps.of(evidence, examples.labels, self.loss, self.max_set_size, self._log_trim, rounding)
        return partial(costs.threshold, max_loss=Fraction(self.max_loss or 0))

    def _accumulate(self, failures: Failures, policy: RiskThreshold, examples: LabelledEvidence) -> Policy:
        """Open one checkpoint after another, from the last one backwards, until a test fails."""
        if examples.conditions.used:
            raise InputError(f"accumulated=True has no promise with {examples.conditions.used}: leave them out.")
        target, delta, checkpoints = self._target, as_delta(self.delta), failures.opens.shape[1]
        limit = 0.0 if isinstance(self.risk, Gate) else math.log(1 - target)
        limit -= BESIDE
        rows, thresholds = np.arange(len(failures)), np.full(checkpoints, -np.inf)
        for first in range(checkpoints - 1, -1, -1):
            ready = failures.opens < limit
            ready[:, :first] = False
            stops = np.where(ready.any(axis=1), ready.argmax(axis=1), checkpoints - 1)
            fails_above = np.where(ready[rows, stops], failures.fails[rows, stops], failures.fails_end)
            stopped = np.cumsum(np.bincount(stops, minlength=checkpoints))[first:].tolist()
            misses = np.cumsum(np.bincount(stops[fails_above < limit], minlength=checkpoints))[first:].tolist()
            counts = dict.fromkeys(zip(stopped, misses, strict=True))
            if not all(m and m - missed >= quantile_rank(m, target, delta) for m, missed in counts):
                break
            thresholds[first] = limit
        return CheckpointRisks(policy, thresholds, thresholds)

    def promise(self) -> str:
        if self.max_loss is not None:
            whom = "for each true class, " if self.class_conditional else ""
            words = (
                f"{whom}the mean cost of an answer is at most {in_words(Fraction(self.max_loss))}, over the draw of the calibration "
                "examples and of a new example exchangeable with them; an answer costs what the best of its "
                "classes costs in place of the true class."
            )
        elif self.accumulated:
            confidence = 1 - as_target(self.delta or 0)
            return (
                f"with probability at least {in_words(confidence)} over the draw of the calibration examples, for every "
                f"time, the answers that came by then hold the true class with probability at least {in_words(self._target)}; "
                "calibration and new examples must be i.i.d."
            )
        else:
            words = coverage_promise(self._target, self.class_conditional, as_delta(self.delta))
        return words if self.gate is None else f"for each block of times at which an input first looked ready, {words}"

    def examples_needed(self, K: int = 1) -> int:
        """The least n with which the rule could ever stop early; of each class, group and block where the promise is for each of them."""
        if self.loss is not None and self.max_loss is not None:
            return math.ceil(Fraction(str(float(self.loss.max()))) / Fraction(self.max_loss)) - 1
        return least_n(self._target, self._delta)

    def best(self, evidence: Evidence) -> Integers:
        """The most probable class (b,), from evidence of one checkpoint; -1 where an offset of -∞ leaves no order."""
        best = evidence.values.argmax(axis=-1)
        return np.where(evidence.values[np.arange(len(best)), best] < np.inf, best, -1)


def _reach(first: Floats, risk: Floats) -> tuple[float, float] | None:
    """The smallest W (n,), or the smallest risk if nothing fails, and the largest risk (n, M): thresholds beyond them change nothing."""
    failing, known = first[np.isfinite(first)], risk[np.isfinite(risk)]
    if not len(known):
        return None
    return float((failing if len(failing) else known).min()), float(known.max())
