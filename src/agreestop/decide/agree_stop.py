"""AgreeStop: answer the best I classes as soon as the estimated risk that they miss is small enough.

Calibrated where each example first fails; see `first_failures`. The risk is `TopMass` unless another is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agreestop.common.arrays import Floats, Integers
from agreestop.common.errors import InputError

from .calibrated import Uncalibrated
from .evidence import Evidence, Index
from .first_failures import first_failures
from .levels import Target, as_delta, as_target, least_n, order_statistic, quantile_rank
from .policies import Policy, RiskThreshold
from .risks import Risk, TopMass
from .rule import coverage_promise, groups_of, validate
from .rule_files import kept_in_files
from .tuned_rows import TunedRows


@kept_in_files
@dataclass(frozen=True, eq=False)
class AgreeStop(Uncalibrated):
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
