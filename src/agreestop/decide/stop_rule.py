"""StopRule: when to stop, with any risk and any loss, and no classes at all.

At checkpoint t a model gives a risk, a number that falls as it becomes surer, and stopping there
costs a loss in [0, B], B fixed beforehand. Reasoning traces, cascades, detectors and summaries are
of this kind. The rule stops at the first checkpoint with risk_t < λ.

    loss in {0, 1}     W = inf{ λ : the rule stops where the loss is 1 }, λ ≤ the k-th smallest W
    any loss           λ = sup{ λ : (Σ_i L_i(λ) + B) / (n + 1) ≤ max_loss }, L_i the largest loss of
                       example i at any threshold up to λ

at_end="abstain": an input that nothing stopped is not answered and costs nothing, so that
P(answered and wrong) ≤ 1 - target is always within reach. at_end="answer": the last loss counts.
At λ = -∞ nothing stops and every input costs loss_M, so -∞ is one more threshold to choose from:
L_i(-∞) = loss_M. Where (Σ loss_M + B)/(n + 1) is above the promise and no λ > -∞ keeps it, the rule
is refused. What holds is E[loss; the rule was deployed] ≤ the promise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import (
    Floats,
    InputError,
    Integers,
    KeptInFiles,
    StrPath,
    as_checkpoints,
    as_floats,
    as_ids,
    as_times,
    check_finite,
    is_number,
    read_npz,
    set_fields,
)
from agreestop.common.levels import (
    REACH,
    UNIT,
    UNITS,
    Rounding,
    Target,
    apart,
    as_delta,
    as_exact,
    as_target,
    in_words,
)

from .answer_kinds import AnyRisk
from .calibrated import CalibratedRule
from .calibration import WithoutClasses
from .checkpoints import Evidence, Failures, Index, LabelledEvidence, Policy, lowest_before
from .leakage import risks_reversed
from .rule import Reduced, Terms, abstains, shortage
from .scores import Inputs, Scores, made_of, refuse_beside
from .thresholds import Allowed, LossSteps, allowed_threshold, fit_thresholds, spread_of

ROWS_COMPARED = 1000  # rows whose risks are compared with their losses
PARTS = 2**40  # losses are rounded up to whole multiples of B / 2^40
LARGEST_RISK = 1e150


@dataclass(frozen=True, eq=False, repr=False)
class Risks(Inputs):
    """Risks (n, M) of n inputs at M times, with losses (n, M) and ids (n,) where they are known.

    It has the fields of `Scores` that verbs of rules read.
    """

    risk: Floats
    loss: Floats | None = None
    times: tuple[float, ...] = ()
    ids: NDArray[Any] | None = None

    readers = "StopRule"
    labels = None
    has_classes = False
    by_time = ("risk", "loss")
    by_row = ("ids",)
    what = "risk"

    def __post_init__(self) -> None:
        risk = as_floats(self.risk, "risk")
        if risk.ndim != 2 or not risk.size:
            raise InputError(
                f"risk has shape {risk.shape}: one row for each input and one column for each "
                "checkpoint are needed."
            )
        if np.isnan(risk).any() or (np.abs(risk[np.isfinite(risk)]) > LARGEST_RISK).any():
            raise InputError(
                "risk holds nan, or a number that is too large: give numbers of at most "
                f"{LARGEST_RISK:g} in size, or inf."
            )
        n, steps = risk.shape
        times = as_times(self.times or range(1, steps + 1), steps, "risk")
        set_fields(self, risk=risk, times=times, ids=as_ids(self.ids, n))
        if self.loss is None:
            return
        loss = as_floats(self.loss, "loss")
        if loss.shape != risk.shape:
            raise InputError(
                f"loss has shape {loss.shape} and risk {risk.shape}: give one loss for each risk."
            )
        check_finite(loss, "loss")
        if loss.min() < 0:
            raise InputError(f"loss holds {loss.min():g}: give losses of at least 0.")
        set_fields(self, loss=loss)

    @property
    def cells(self) -> Floats:
        """(n, M, 1, 1): one number for each checkpoint."""
        return self.risk[:, :, None, None]


def load_risks(path: StrPath) -> Risks:
    """Read a `.npz` file with `risk` (n, M) and, where known, `loss` (n, M), `times` and `ids`."""
    content = read_npz(
        path, "file of risks", "write one with numpy.savez(path, risk=..., loss=...)"
    )
    if "risk" not in content:
        raise InputError(f"{path} holds {sorted(content)} but no 'risk': give risks (n, M).")
    return made_of(Risks, path, content, "risk", "loss", "ids")


@dataclass(frozen=True, eq=False, repr=False)
class StopRule(WithoutClasses, KeptInFiles):
    """Stop as soon as a risk is below a calibrated threshold; a loss says what that costs.

    Parameters
    ----------
    target : float, str or Fraction, optional
        For losses in {0, 1}: the probability that an input is not wrong.
    checkpoints : sequence of float, optional
        Times at which the rule may stop; the times of the calibration risks unless given.
    max_loss : float, optional
        In place of a target: the mean loss that is promised.
    largest_loss : float
        B, the largest loss there can be, fixed before the data are seen.
    at_end : {"answer", "abstain"}
        What becomes of an input that nothing stopped: it is answered at the last checkpoint and its
        last loss counts, or it is not answered and costs nothing.
    delta : float, optional
        δ: the promise given the calibration data, with probability ≥ 1 - δ over their draw; for a
        target.

    Notes
    -----
    *Guarantee.* With a target, P(the input is answered and its loss is 1) ≤ 1 - target; with
    max_loss, the mean loss is at most max_loss. Both are over the draw of the calibration examples
    and of a new example exchangeable with them.

    Examples
    --------
    >>> import numpy as np, agreestop as ag
    >>> rng = np.random.default_rng(0)
    >>> sure = np.cumsum(rng.random((400, 10)), axis=1)
    >>> risk, loss = np.exp(-sure), rng.random((400, 10)) < np.exp(-sure)
    >>> rule = ag.StopRule(target=0.9, at_end="abstain").calibrate(risk[:200], loss[:200])
    >>> decisions = rule.decide(risk[200:])
    >>> wrong = loss[200:][np.arange(200), decisions.stop_index] & decisions.answered
    >>> bool(wrong.mean() < 0.15)
    True
    """

    target: Target | None = None
    checkpoints: Sequence[float] = ()
    max_loss: Target | None = None
    largest_loss: float = 1.0
    at_end: str = "answer"
    delta: Target | None = None

    kinds: ClassVar = {"stop": ("target", "max_loss", "largest_loss", "at_end", "delta")}

    def __post_init__(self) -> None:
        if (self.target is None) == (self.max_loss is None):
            raise InputError(
                "give either a target, for losses of 0 and 1, or max_loss, the mean loss to "
                "promise."
            )
        abstains(self.at_end)
        if not is_number(self.largest_loss) or not 0 < self.largest_loss <= LARGEST_RISK:
            raise InputError(f"largest_loss is {self.largest_loss!r:.80}: give a number above 0.")
        if self.max_loss is not None:
            if self.delta is not None:
                raise InputError("max_loss is a mean over calibration draws: leave out delta.")
            most = as_exact(self.max_loss, "max_loss", "the mean loss to promise, for example 0.05")
            if not 0 < most < Fraction(str(self.largest_loss)):
                raise InputError(
                    f"max_loss is {in_words(most)}: it must lie strictly between 0 and "
                    f"largest_loss, {self.largest_loss:g}, for example 0.05."
                )
            set_fields(self, max_loss=most)
        elif self.largest_loss != 1:
            raise InputError("a target is for losses of 0 and 1: leave out largest_loss.")
        else:
            set_fields(self, target=as_target(self.target or 0))
        set_fields(self, delta=as_delta(self.delta))
        self.check_checkpoints()

    @cached_property
    def terms(self) -> Terms:
        target = None if self.target is None else as_target(self.target)
        loss = None if self.max_loss is None else Fraction(self.max_loss)
        largest = float(self.largest_loss)
        known = {"max_loss": loss, "largest_loss": largest, "abstains": abstains(self.at_end)}
        return Terms("stop", target, as_delta(self.delta), **known)  # type: ignore[arg-type]

    def answer(self, final: bool = False) -> AnyRisk:
        return AnyRisk(abstains(self.at_end))

    def read(
        self, given: Any, labels: ArrayLike | None = None, times: Sequence[float] | None = None
    ) -> Any:
        """Risks (n, M), with losses (n, M) in place of labels."""
        if isinstance(given, Risks):
            refuse_beside("risks", loss=labels, times=times)
            # Rows are recognised by all their risks together, so there must be no others.
            return self.at_checkpoints(given)
        if isinstance(given, Scores):
            raise InputError("a StopRule reads risks, and these are Scores: give risks (n, M).")
        risk = as_floats(given, "risk")
        if times is None and risk.ndim == 2 and len(self.checkpoints):
            times = as_times(None, risk.shape[1], "risk", self.checkpoints)
        known = () if times is None else as_checkpoints(times)
        return self.read(Risks(risk, labels, known))  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: StrPath, times: Sequence[float] | None = None) -> Any:
        return load_risks(path)

    @classmethod
    def load_labelled(
        cls, path: StrPath, purpose: str, times: Sequence[float] | None = None
    ) -> Any:
        if (data := load_risks(path)).loss is None:
            raise InputError(
                f"{path} has no losses: {purpose} needs 'loss', (n, M), beside 'risk'."
            )
        return data

    def read_one(self, given: ArrayLike) -> NDArray[Any]:
        risk = np.asarray(given)
        if risk.shape != () or risk.dtype.kind not in "fiu" or np.isnan(risk):
            raise InputError(f"risk is {given!r:.80}: push one number for each checkpoint.")
        if np.isfinite(risk) and abs(float(risk)) > LARGEST_RISK:
            raise InputError(
                f"risk is {given!r:.80}: push a number of at most {LARGEST_RISK:g} in size, or inf."
            )
        return risk.reshape(1, 1)

    def calibrate(  # type: ignore[override]
        self,
        risk: ArrayLike | Risks,
        loss: ArrayLike | None = None,
        times: Sequence[float] | None = None,
        **conditions: Any,
    ) -> CalibratedRule:
        """Calibrate on risks (n, M) and losses (n, M) that were used for nothing else.

        Parameters
        ----------
        risk, loss : arrays (n, M)
            The risk at each checkpoint, and what stopping there would cost.
        times : sequence of float, optional
            The times of the checkpoints; 1, 2, ..., M unless given.
        **conditions
            groups, weights, max_weight, people and for_people, as in `AgreeStop.calibrate`;
            weights and people for a target alone.

        Returns
        -------
        CalibratedRule
        """
        if conditions.get("labels") is not None:
            raise InputError("labels: a StopRule has losses in their place, so give loss.")
        data = self.read(risk, loss, times)
        rule = self.on(data)
        known = data.at(rule.checkpoints).rows(slice(ROWS_COMPARED))
        question = risks_reversed(known.risk, known.loss) if known.loss is not None else ""
        return super(StopRule, rule).calibrate(data, **conditions).noting(question)

    def evidence(self, index: Index, log_confidence: Floats) -> Evidence:
        risk = log_confidence[:, 0, 0]
        return Evidence(np.zeros((len(risk), 1)), risk)

    def rounding(self, base: Rounding) -> Rounding:
        return replace(base, absolute=0.0, breaks_ties=False)

    def reduce(self, examples: LabelledEvidence) -> Reduced:
        risk, loss = examples.evidence.risk, examples.loss
        if loss is None:
            raise InputError(
                "loss is missing: give one loss for each input and checkpoint, (n, M)."
            )
        if loss.max() > self.largest_loss:
            raise InputError(
                f"loss reaches {loss.max():g} and largest_loss is {self.largest_loss:g}: give the "
                "largest there can be."
            )
        if self.target is not None:
            if not np.isin(loss, (0.0, 1.0)).all():
                raise InputError("a target is for losses of 0 and 1: give max_loss in its place.")
            failures = self.answer().failures(examples.evidence, loss, None)
            return {"opens": risk, "fails": failures.fails, "fails_end": failures.fails_end}
        known = {"weights": examples.conditions.weights, "people": examples.conditions.people}
        for name, given in known.items():
            if given is not None:
                raise InputError(
                    f"max_loss has no promise with {name}: leave them out, or give a target."
                )
        whole = np.ceil(loss / self.largest_loss * PARTS).astype(np.int64)
        return {"opens": risk, "losses": whole}

    def fit(self, reduced: Reduced, examples: LabelledEvidence) -> Policy:
        opens = reduced["opens"]
        finite = opens[np.isfinite(opens)]
        spread = spread_of(finite) if len(finite) else 0.0
        exact = self._allowed(reduced, examples, None)
        # Where risks span orders of magnitude, the size of the order statistic says it better.
        sizes = np.abs([exact(np.flatnonzero(rows)) for rows in examples.groups.T])
        spread = float(np.min(sizes[np.isfinite(sizes) & (sizes > 0)], initial=spread))
        rounding = replace(self.rounding(examples.rounding), absolute=UNITS * UNIT * spread)
        safe = self._allowed(reduced, examples, rounding)
        numbers = {"numbers": opens}
        known = self.answer(), numbers, examples, rounding, (exact, safe)
        policy = fit_thresholds(*known, reach=REACH * spread)
        if self.at_end == "answer":
            self._check_end(reduced, examples, policy.values[:, 0])
        return policy

    def _check_end(self, reduced: Reduced, examples: LabelledEvidence, limits: Floats) -> None:
        """Refuse to deploy λ = -∞ where the losses at the last checkpoint break the promise."""
        group_names = examples.conditions.group_names
        # With -∞ as the only checkpoint, nothing is left but the end.
        only_end = {name: part[:, -1:] for name, part in reduced.items() if part.ndim == 2}
        only_end = {**reduced, **only_end, "opens": np.full((len(examples), 1), np.inf)}
        at_end = self._allowed(only_end, examples, None)
        for group in np.flatnonzero(limits == -np.inf):
            rows = np.flatnonzero(examples.groups[:, group])
            if at_end(rows) > -np.inf:
                continue
            whose = "" if group_names is None else f" of group {group_names[group]}"
            few = examples.without_evidence(rows)
            # Nothing is asked of other groups, which have no rows here.
            alone = replace(few.conditions, groups=None, group_names=None)
            if shortage(self, reduced, replace(few, conditions=alone), 1):
                needed = self.examples_needed()
                raise InputError(
                    f"with {len(rows)} calibration examples{whose} nothing can be promised: give "
                    f'at least {needed}, or at_end="abstain".'
                )
            raise InputError(
                f"the losses{whose} at the last checkpoint are above the promise already, so "
                'nothing can be promised: give a lower target, more examples, or at_end="abstain".'
            )

    def _allowed(
        self, reduced: Reduced, examples: LabelledEvidence, rounding: Rounding | None
    ) -> Allowed:
        """The threshold that some rows allow, exactly or with rounding."""
        opens = reduced["opens"]
        if self.target is None:
            return self._allowed_by_losses(opens, reduced["losses"], rounding)
        end = reduced["fails_end"]
        # A wrong last answer is a miss at λ = -∞ even where a risk of -∞ stops every λ above it.
        W = np.minimum(Failures(opens, reduced["fails"], end).first(rounding), end)
        known, target, delta = examples.conditions, self.exact_target, self.terms.delta
        return partial(allowed_threshold, W, known, target=target, delta=delta)

    def _allowed_by_losses(
        self, opens: Floats, losses: Integers, rounding: Rounding | None
    ) -> Allowed:
        breaks = _breaks(opens, 0.0)
        if rounding is not None:
            # Where numbers lie apart, a run costs what this one does at a λ within η.
            loose = _breaks(opens, rounding.at(opens))
            clear = apart(opens, rounding)[:, None]
            breaks = np.where(clear, breaks - rounding.at_most(breaks), loose)
        costs = np.where(breaks < np.inf, losses, 0)
        if self.at_end == "answer":
            breaks = np.concatenate([np.full((len(opens), 1), -np.inf), breaks], axis=1)
            costs = np.concatenate([losses[:, -1:], costs], axis=1)
        scale = PARTS / Fraction(str(self.largest_loss))
        steps = LossSteps.of(breaks, costs, scale, PARTS)
        return partial(steps.threshold, max_loss=Fraction(self.max_loss or 0))

    def promise(self) -> str:
        draw = (
            "over the draw of the calibration examples and of a new example exchangeable with them"
        )
        ends = "is not answered and costs nothing"
        if self.at_end == "answer":
            ends = "is answered at the last checkpoint, where its last loss counts"
        ends = f"An input that nothing stops {ends}."
        if self.at_end == "answer":
            ends += " A calibration that is refused counts as one without wrong answers."
        if self.max_loss is not None:
            most = in_words(Fraction(self.max_loss))
            return f"the mean loss of an input is at most {most}, {draw}. {ends}"
        alpha = in_words(1 - self.exact_target)
        wrong = f"is answered wrongly with probability at most {alpha}"
        if (delta := self.terms.delta) is None:
            return f"an input {wrong}, {draw}. {ends}"
        sure = f"with probability at least {in_words(1 - delta)} over the draw of the calibration"
        iid = "calibration and new examples must be i.i.d."
        return f"{sure} examples, a new input {wrong}; {iid} {ends}"

    def examples_needed(self, K: int = 1) -> int:
        if self.max_loss is not None:
            return math.ceil(Fraction(str(self.largest_loss)) / Fraction(self.max_loss)) - 1
        return super().examples_needed(K)


def _breaks(opens: Floats, eta: float | Floats) -> Floats:
    """The thresholds (n, M) from which on inputs may stop at each checkpoint; ∞ where never."""
    starts = opens - eta
    return np.where(starts < lowest_before(opens + eta)[:, :-1], starts, np.inf)
