"""A risk that is learned: logistic regression on how the members agree.

    e_t = σ(b + Σ_j w_j φ_j(x, t))

It is fitted on the tuning split to "the label is not among the I most probable classes".
scikit-learn fits it; plain arrays are kept, and numpy evaluates it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import Floats, InputError, KeptInFiles, as_max_set_size, is_number
from agreestop.common.levels import Rounding

from ..checkpoints import Evidence, Index
from ..confidence import MergeConfidence, RiskNumbers
from ..leakage import TunedRows, cut_fitted
from ..risks import Risk, TopMass, fix_numbers
from ..scores import ScoresLike, as_scores, at_checkpoint, labels_of
from .agreement_features import FEATURES, FLOOR, MASSES, agreement_features, fit_logistic

# A feature that hardly varies in the tuning rows may get a large weight; far larger ones overflow.
LARGEST_WEIGHT = 1e30


@dataclass(frozen=True, eq=False)
class LearnedRisk(Risk, KeptInFiles):
    """The risk that the best I classes miss, learned from how the members agree.

    Make one with `LearnedRisk.fit`, which needs scikit-learn.

    Parameters
    ----------
    posterior : TopMass
        The order of the classes.
    max_set_size : int
        I.
    weights, bias
        Of the features, and the constant.
    log_times : array (M,)
        log(t/T) of each checkpoint.
    times : tuple of float, optional
        The times of the checkpoints.

    Examples
    --------
    >>> import agreestop as ag
    >>> tuning = ag.simulate_scores(300, steps=20, K=3, C=4)
    >>> risk = ag.LearnedRisk.fit(tuning, max_set_size=1)  # doctest: +SKIP
    """

    posterior: TopMass
    max_set_size: int
    weights: Floats
    bias: float
    log_times: Floats = field(metadata={"per_checkpoint": True})
    times: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        fix_numbers(self, "weights", largest=LARGEST_WEIGHT)
        fix_numbers(self, "log_times")
        if not is_number(self.bias) or abs(self.bias) > LARGEST_WEIGHT:
            raise InputError(
                f"bias is {self.bias!r}: give a number of at most {LARGEST_WEIGHT:g} in size."
            )

    @classmethod
    def fit(
        cls,
        scores_or_log_confidence: ScoresLike,
        labels: ArrayLike | None = None,
        pooling: MergeConfidence | None = None,
        max_set_size: int = 3,
        times: Sequence[float] | None = None,
    ) -> Self:
        """Learn on tuning scores, or log-confidences (n, M, K, C) with labels (n,)."""
        size = as_max_set_size(max_set_size)
        posterior = TopMass.fit(scores_or_log_confidence, labels, pooling, times)
        data = as_scores(scores_or_log_confidence, labels, times)
        clock = np.array(data.times, dtype=np.float64)
        log_times = np.log(clock / clock[-1])
        features, misses = [], []
        for index, log_time in enumerate(log_times.tolist()):
            values = at_checkpoint(data, index)
            tails = posterior.tails(index, values)
            features.append(agreement_features(values, tails, size, log_time))
            misses.append((tails.order[:, :size] != labels_of(data)[:, None]).all(axis=1))
        weights, bias = fit_logistic(np.concatenate(features), np.concatenate(misses))
        return cls(posterior, size, weights, bias, log_times, posterior.times)

    @property
    def tuned(self) -> TunedRows | None:
        return self.posterior.tuned

    def check_size(self, max_set_size: int) -> None:
        if max_set_size != self.max_set_size:
            raise InputError(
                f"the risk was learned for sets of {self.max_set_size} classes, but max_set_size "
                f"is {max_set_size}: fit it again."
            )

    def evidence(self, index: Index, log_confidence: Floats, max_set_size: int) -> Evidence:
        tails = self.posterior.tails(index, log_confidence)
        log_time = self.log_times[index]
        features = agreement_features(log_confidence, tails, max_set_size, log_time)
        logit = np.full(len(features), self.bias)
        for column, weight in zip(features.T, self.weights, strict=True):
            logit += weight * column
        return tails.evidence(-np.logaddexp(0.0, -logit))

    def rounding(self, base: Rounding) -> Rounding:
        """What the weights make of the rounding of log-masses, which are at least FLOOR."""
        temperatures = self.posterior.temperatures
        steepest = np.maximum(1.0 if temperatures is None else temperatures, 1.0)
        mass = 2 * (np.asarray(base.absolute) - base.relative * FLOOR) * steepest
        sizes = np.abs(self.weights)
        masses = sizes[:-1] @ np.array(MASSES) + sizes[-1] * np.abs(self.log_times)
        return Rounding(mass * masses, base.relative)

    def cut(self, checkpoints: tuple[float, ...]) -> Self:
        return replace(cut_fitted(self, checkpoints), posterior=self.posterior.cut(checkpoints))

    def numbers(self, count: int) -> RiskNumbers | None:
        posterior = self.posterior.numbers(count)
        assert posterior is not None
        weights = np.broadcast_to(self.weights, (count, len(FEATURES)))
        learned = np.column_stack([np.full(count, self.bias), self.log_times, weights])
        return replace(posterior, learned=np.ascontiguousarray(learned))
