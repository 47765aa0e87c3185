"""How sure the best I classes are, for AgreeStop: fixed before calibration.

    π_t(c)   posterior: softmax(τ_t · g_t), g_t the pooled log-confidence; classes ordered by it, ties by lowest index
    ρ_t(c)   π_t-mass of c and of all classes ranked after it
    e_t      risk that the label is not among the I most probable classes; TopMass: their missing mass, ρ_t of rank I + 1

All in logarithms and as sums of the tail: 1 - Σ would cancel to 0 for confident networks, and then nothing stops.
A risk gives the rule an `Evidence`: its values are log ρ of every class, its log_risk is log e.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

import numpy as np

from agreestop.common import Floats, InputError, Integers

from .checks import as_checkpoints
from .evidence import Evidence, Index
from .pooling import MODEL_AVERAGE, MergeConfidence
from .rule_files import KeptInFiles
from .scores import Fitted, ShapedOverTime, Tunable, fit_temperatures, pooling_of
from .tuned_rows import TunedRows


class Risk(Tunable, Protocol):
    """Anything that turns the log-confidences of one checkpoint into an order of the classes and a risk."""

    def check_size(self, max_set_size: int) -> None:
        """Refuse another I than the risk was learned for."""
        ...

    def evidence(self, index: Index, log_confidence: Floats, max_set_size: int) -> Evidence:
        """log ρ (b, C) and log e (b,) from log-confidences (b, K, C) at one checkpoint, or at one checkpoint for each input."""
        ...


@dataclass(frozen=True, eq=False)
class Tails:
    """Classes in order of probability, and the log-mass of each and of all after it, both (b, C)."""

    order: Integers
    log_mass: Floats

    @classmethod
    def of(cls, logits: Floats) -> Tails:
        order = np.argsort(np.negative(logits), axis=-1, kind="stable")
        ranked = logits[np.arange(len(logits))[:, None], order]
        mass = np.logaddexp.accumulate(ranked[:, ::-1], axis=-1)[:, ::-1]
        return cls(order, mass - mass[:, :1])

    def outside(self, count: int) -> Floats:
        """Log-mass of all but the `count` most probable classes; -∞ if there are no others."""
        if count >= self.log_mass.shape[1]:
            return np.full(len(self.log_mass), -np.inf)
        return self.log_mass[:, count]

    def evidence(self, log_risk: Floats) -> Evidence:
        """log ρ in the order of the class indices, with the risk (b,)."""
        by_class = np.empty(self.log_mass.shape)
        by_class[np.arange(len(by_class))[:, None], self.order] = self.log_mass
        return Evidence(by_class, log_risk)


@dataclass(frozen=True, eq=False)
class TopMass(Fitted, KeptInFiles):
    """The posterior mass of all but the I most probable classes; `TopMass.fit` gives the posterior a temperature per checkpoint."""

    pooling: MergeConfidence = MODEL_AVERAGE
    temperatures: Floats | None = field(default=None, metadata={"per_checkpoint": True})
    times: tuple[float, ...] | None = None
    tuned: TunedRows | None = None

    _learn = staticmethod(fit_temperatures)

    def __post_init__(self) -> None:
        pooling_of(self.pooling)

    def check_size(self, max_set_size: int) -> None:
        """Any I will do."""

    def tails(self, index: Index, log_confidence: Floats) -> Tails:
        pooled = self.pooling.pool(log_confidence)
        return Tails.of(pooled if self.temperatures is None else np.asarray(self.temperatures[index])[..., None] * pooled)

    def evidence(self, index: Index, log_confidence: Floats, max_set_size: int) -> Evidence:
        tails = self.tails(index, log_confidence)
        return tails.evidence(tails.outside(max_set_size))

    def cut(self, checkpoints: tuple[float, ...]) -> Self:
        return self if self.temperatures is None else super().cut(checkpoints)


class ShapedRisk(ShapedOverTime[Risk], KeptInFiles):
    """A risk whose threshold is shaped over time: stop when e_t < λ · exp(offset_t), keep classes with ρ_t ≥ λ · exp(offset_t).

    `ShapedRisk.per_time(base, times)` tolerates a risk in proportion to the time waited, e_t < λ·(t/T)^power; `tune` finds freer shapes.
    `rows` are the tuning rows the offsets were fitted on, where the base risk does not know them already.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.offsets < np.inf).all():
            raise InputError("offsets holds nan or inf: give numbers, or -inf for a checkpoint at which nothing stops.")

    @classmethod
    def per_time(cls, base: Risk, times: Sequence[float], power: float = 1.0) -> ShapedRisk:
        """The shape (t/T)^power at the given times."""
        known = as_checkpoints(times)
        return cls(base, power * np.log(np.array(known) / known[-1]), known)

    def check_size(self, max_set_size: int) -> None:
        self.base.check_size(max_set_size)

    def evidence(self, index: Index, log_confidence: Floats, max_set_size: int) -> Evidence:
        return self.base.evidence(index, log_confidence, max_set_size).minus(self.offsets[index])
