"""AgreeStop: answer the best I classes as soon as the estimated risk e that they miss is small enough.

For a threshold λ the rule stops at the first checkpoint with e_t < λ. Small λ is safe. A calibration example first fails at

    W(x, y) = inf{ λ : the answer at λ misses y },          k = ⌊(n+1)(1-p)⌋,          λ = the k-th smallest W.

The λ that miss y are a union of intervals (u, v], so no λ ≤ W misses; a miss of the new example needs W < W_(k), which by
exchangeability has probability at most k/(n+1) ≤ 1-p.

t is the stop for λ in (e_t, min of the earlier e], so only new minima of e matter. There, with `fill`, the answer misses if y is not
among the I most probable; without it, also as soon as λ > ρ_t(y) unless y is the most probable. If nothing stopped, the answer of the
last checkpoint misses y outside the I most probable for λ > ρ_M(y).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from agreestop.common import Floats, InputError, Integers

from .calibrated import Uncalibrated, coverage_promise, groups_of, validate
from .levels import Target, as_delta, as_target, least_n, order_statistic, quantile_rank
from .policies import Evidence, Policy, RiskThreshold
from .ranking import Index
from .risks import Risk, TopMass
from .rule_files import KeptInFiles
from .tuned_rows import TunedRows


def first_failures(evidence: Evidence, labels: Integers, max_set_size: int, fill: bool) -> Floats:
    """W(x, y) of every example, from evidence of all checkpoints: log ρ (n, M, C) and log e (n, M). ∞ if no λ misses."""
    rows = np.arange(len(labels))
    mass, risk = evidence.values, evidence.log_risk
    assert risk is not None
    own = mass[rows, :, labels]
    rank = (mass > own[:, :, None]).sum(axis=-1)
    lowest = np.minimum.accumulate(risk, axis=1)
    before = np.concatenate([np.full((len(labels), 1), np.inf), lowest[:, :-1]], axis=1)
    fails_from = np.where(rank >= max_set_size, risk, np.inf)
    if not fill:
        fails_from = np.where((rank > 0) & (rank < max_set_size), np.maximum(risk, own), fails_from)
    stopped = np.where(fails_from < before, fails_from, np.inf).min(axis=1)
    unstopped = np.where((rank[:, -1] >= max_set_size) & (own[:, -1] < lowest[:, -1]), own[:, -1], np.inf)
    return np.minimum(stopped, unstopped)


@dataclass(frozen=True, eq=False)
class AgreeStop(Uncalibrated, KeptInFiles):
    """Stop when the best `max_set_size` classes are sure enough: the estimated risk that they miss falls under a calibrated threshold.

    fill=False answers, of those classes, only the ones that the threshold keeps (smaller sets); fill=True answers all of them and
    stops a little earlier. Targets and the conditional variants are those of SpikeCP.
    """

    target: Target
    checkpoints: Sequence[float]
    max_set_size: int
    fill: bool = False
    risk: Risk = field(default_factory=TopMass)
    class_conditional: bool = False
    delta: Target | None = None

    def __post_init__(self) -> None:
        validate(self)
        if isinstance(self.risk, type) or not hasattr(self.risk, "evidence"):
            raise InputError(f"risk is {self.risk!r}: give a risk such as TopMass(...), TopMass.fit(...) or LearnedRisk.fit(...).")
        self.risk.check_size(self.max_set_size)
        object.__setattr__(self, "risk", self.risk.cut(tuple(self.checkpoints)))

    @property
    def tuned(self) -> TunedRows | None:
        return self.risk.tuned

    def evidence(self, index: Index, log_confidence: Floats) -> Evidence:
        return self.risk.evidence(index, log_confidence, self.max_set_size)

    def fit(self, evidence: Evidence, labels: Integers, classes: int) -> Policy:
        failures = first_failures(evidence, labels, self.max_set_size, self.fill)
        thresholds = []
        for rows in groups_of(labels, classes, self.class_conditional):
            n = len(rows)
            allowed = n + 1 - quantile_rank(n, as_target(self.target), as_delta(self.delta))
            thresholds.append(order_statistic(failures[rows], allowed))
        return RiskThreshold(min(thresholds), self.max_set_size, self.fill)

    def promise(self) -> str:
        return coverage_promise(as_target(self.target), self.class_conditional, as_delta(self.delta))

    def examples_needed(self, K: int = 1) -> int:
        """The least n with which the rule could ever stop early; with class_conditional, of each class."""
        return least_n(as_target(self.target), as_delta(self.delta))
