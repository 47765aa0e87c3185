"""Giving up: an input with little hope of an answer ends early, with an abstention.

    hope_t    the log-odds that the answer at the last checkpoint would be right, given log e_t; a
              logistic curve for each checkpoint, fitted on one half of the tuning rows
    W'        min over t < M of hope_t if the answer at M is right, else ∞
    line      the k-th smallest W' of the other half, k = ⌊(n+1)·share⌋

An input is given up at the first t < M with hope_t < line, unless it is answered there. It is given
up too early if its answer at M would be right, which implies W' < line, so by exchangeability

    P(given up, though the answer at M would be right) ≤ share.

Hope falls as the risk grows, so the line is a ceiling for log e_t at each checkpoint. From the next
checkpoint on `opens` is ∞, and `fails_end` is ∞ too: with W of these numbers calibration promises
P(answered and wrong) ≤ 1 - target, on rows that did not fix the line.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import (
    Booleans,
    Floats,
    InputError,
    KeptInFiles,
    as_floats,
    as_max_set_size,
    as_seed,
    set_fields,
)
from agreestop.common.levels import Rounding, Target, as_target, in_gap, least_n

from ..answer_kinds import BestClasses
from ..checkpoints import Conditions
from ..leakage import TunedRows, cut_fitted
from ..risks import Risk, TopMass
from ..scores import ScoresLike, as_scores, labels_of
from ..thresholds import allowed_threshold
from .logistic import regress

LEAST_ROWS = 20
LARGEST_LOG_RISK = 30.0  # beyond it risks count alike while the curves are fitted


@dataclass(frozen=True, eq=False)
class GiveUp(KeptInFiles):
    """When an input has too little hope of an answer. Make one with `GiveUp.fit`, on tuning data.

    Parameters
    ----------
    risk : Risk or None
        The risk, which the rule uses too; None inside a rule, for the risk of the rule.
    ceilings : array (M,)
        An input whose log-risk is above the ceiling of a checkpoint is given up there.
    times : tuple of float, optional
        The times of the checkpoints.
    rows : TunedRows, optional
        The tuning rows.

    Notes
    -----
    Premature give-ups are rare: P(an input is given up, though its answer at the last checkpoint
    would be right) ≤ share, over the draw of the tuning rows and of a new row exchangeable with
    them. The promise of the rule itself, P(answered and wrong) ≤ 1 - target, does not depend on it.

    Examples
    --------
    >>> import agreestop as ag
    >>> scores = ag.simulate_scores(600, steps=20, K=3, C=4, pace=5.0)
    >>> tuning, calibration, new = scores.split(0.3, 0.3, 0.4)
    >>> give_up = ag.GiveUp.fit(tuning, share=0.1, max_set_size=1)
    >>> rule = ag.AgreeStop(0.95, range(1, 21), 1, at_end="abstain", give_up=give_up)
    >>> decisions = rule.calibrate(calibration).decide(new)
    >>> bool((decisions.stop_time[~decisions.answered] < 20).any())
    True
    """

    risk: Risk | None
    ceilings: Floats = field(metadata={"per_checkpoint": True})
    times: tuple[float, ...] | None = None
    rows: TunedRows | None = None

    def __post_init__(self) -> None:
        set_fields(self, ceilings=as_floats(self.ceilings, "ceilings"))
        if not isinstance(self.risk, Risk | None) or self.ceilings.ndim != 1:
            raise InputError(
                f"ceilings has shape {self.ceilings.shape} and risk is {self.risk!r:.60}: give "
                "what GiveUp.fit returned, or a risk and one ceiling for each checkpoint."
            )

    def __repr__(self) -> str:
        return f"GiveUp({len(self.ceilings)} checkpoints)"

    def cut(self, checkpoints: tuple[float, ...]) -> Self:
        """The same at some of the checkpoints."""
        risk = None if self.risk is None else self.risk.cut(checkpoints)
        return replace(cut_fitted(self, checkpoints), risk=risk)

    def running(self, log_risk: Floats, rounding: Rounding | None = None) -> Booleans:
        """Which checkpoints an input reaches before it is given up, (n, M).

        With a rounding, those that it may reach in some run.
        """
        ceilings = self.ceilings if rounding is None else self.ceilings + rounding.at(log_risk)
        over = np.logical_or.accumulate(log_risk > ceilings, axis=1)
        return ~np.concatenate([np.zeros((len(over), 1), dtype=bool), over[:, :-1]], axis=1)

    @classmethod
    def fit(
        cls,
        scores_or_log_confidence: ScoresLike,
        labels: ArrayLike | None = None,
        times: Sequence[float] | None = None,
        *,
        max_set_size: int,
        share: Target = 0.05,
        risk: Risk | None = None,
        people: ArrayLike | None = None,
        seed: int = 0,
    ) -> Self:
        """When to give up, from tuning data. Calibration and test must not use these rows.

        Parameters
        ----------
        scores_or_log_confidence : Scores, or array (n, M, K, C)
            Tuning scores, or log-confidences with labels (n,). One half of the calibration data
            may serve, if only the other half calibrates.
        labels, times : optional
            For log-confidences.
        max_set_size : int
            As in the rule.
        share : float
            The share of inputs that may be given up too early.
        risk : Risk
            `TopMass()` unless another is given, such as the gate of the rule.
        people : array (n,), optional
            The person of each row: the share is then about rows of new people.
        seed : int
            Which half of the rows, or of the people, fits the curves of hope.
        """
        premature = as_target(share, "share")
        data, size = (
            as_scores(scores_or_log_confidence, labels, times),
            as_max_set_size(max_set_size),
        )
        truth, known = labels_of(data), data.times
        base = TopMass() if risk is None else risk
        fitted = base.cut(known)  # the base is kept as fitted, so that rules may cut it themselves
        evidence = fitted.over_time(data, size)
        right = BestClasses(size).failures(evidence, truth, None).fails[:, -1] > -np.inf
        conditions = Conditions.of(len(truth), people=people)
        units = np.arange(len(truth)) if conditions.people is None else conditions.people
        count = int(units.max()) + 1
        fits = np.random.default_rng(as_seed(seed)).permutation(count)[units] < count // 2
        needed = max(LEAST_ROWS, 2 * least_n(1 - premature, None))
        given = "rows" if people is None else "people"
        if count < needed:
            raise InputError(
                f"there are {count} tuning {given}, and half of them fit hope: a share of "
                f"{float(premature):g} needs at least {needed}."
            )
        level, slope = _fit_curves(evidence.risk[fits], right[fits])
        hope = _hope(evidence.risk, level, slope)
        least = hope[:, :-1].min(axis=1, initial=np.inf)
        line = allowed_threshold(
            np.where(right, least, np.inf), conditions, np.flatnonzero(~fits), 1 - premature, None
        )
        rounding = fitted.rounding(Rounding.of(data.log_confidence, data.rounding))
        with np.errstate(divide="ignore", invalid="ignore"):
            highest = np.where(slope > 0, (level - line) / slope, np.inf)
        # Up into a gap: a higher ceiling gives up less.
        ceilings = [
            -in_gap(-ceiling, -numbers, rounding)
            for ceiling, numbers in zip(highest.tolist(), evidence.risk.T, strict=True)
        ]
        return cls(base, np.array(ceilings), known, TunedRows.of(data.log_confidence, data.ids))


def _hope(log_risk: Floats, level: Floats, slope: Floats) -> Floats:
    """Log-odds (n, M); ∞ at checkpoints where the risk says nothing."""
    with np.errstate(invalid="ignore"):
        return np.where(slope > 0, level - slope * log_risk, np.inf)


def _fit_curves(log_risk: Floats, right: Booleans) -> tuple[Floats, Floats]:
    """Level and slope (M,) of log-odds, level - slope · log e_t, that the last answer is right."""
    risks = np.clip(log_risk, -LARGEST_LOG_RISK, LARGEST_LOG_RISK)
    slope, level = np.transpose([regress(risk[:, None], right) for risk in risks.T])
    return level, -slope
