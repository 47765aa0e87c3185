"""IntervalStop: a number instead of a class, answered with an interval as soon as it is narrow.

At checkpoint t a model gives a centre m_t and a scale s_t > 0, or the ends lo_t ≤ hi_t of an
interval, such as two quantiles. With ℓ = -λ, so that small λ is safe:

    answer                opens_t                    fails_t                    stops where it is
    m ± ℓs                -w/(2s)                    -|y - m|/s                 narrower than w
    at most m + ℓs        (m - D)/s                  -(y - m)/s                 below D
    at least m - ℓs       (D - m)/s                  (y - m)/s                  above D
    lo - ℓ to hi + ℓ      (hi - lo - w)/2            -max(lo - y, y - hi)       narrower than w
    at most hi + ℓ        hi - D                     -(y - hi)                  below D
    at least lo - ℓ       D - lo                     y - lo                     above D

An input that nothing stopped is answered at the last checkpoint, whatever the width: fails_end =
fails_M. Two-sided answers have λ ≤ 0, since intervals could be empty above. W and λ follow as for
every rule (see `checkpoints`). λ = -∞ answers all numbers, and is never wrong.

Several members are pooled: the centre is their mean, and the square of the scale is the mean of
s² plus the variance of m, as for a mixture of them; ends are means.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import (
    Booleans,
    Floats,
    InputError,
    KeptInFiles,
    StrPath,
    as_floats,
    as_ids,
    as_times,
    check_finite,
    is_number,
    read_npz,
    set_fields,
    warn_user,
)
from agreestop.common.errors import shortened
from agreestop.common.levels import REACH, Rounding, Target, as_delta, as_target

from .answer_kinds import StopsOnRisk, Thresholds
from .calibrated import CalibratedRule
from .calibration import WithoutClasses
from .checkpoints import Evidence, Failures, Index, LabelledEvidence, Policy, State, Verdict
from .rule import Reduced, Terms, coverage_promise, gather_evidence
from .scores import Inputs, made_of, refuse_beside
from .thresholds import allowed_by_failures, fit_thresholds, spread_of

SIDES = ("both", "upper", "lower")
LARGEST = 1e150
FORMS = {False: ("centre", "scale"), True: ("lower", "upper")}


@dataclass(frozen=True, eq=False, repr=False)
class Numbers(Inputs):
    """A number that a model expects at each checkpoint, and how far it may be off.

    Parameters
    ----------
    centre, scale : arrays (n, M)
        The expected number, and a scale above 0, such as a standard deviation. With K members,
        (n, M, K).
    labels : array (n,), optional
        The true numbers.
    times : sequence of float, optional
        The times of the checkpoints; 1, 2, ..., M unless given.
    lower, upper : arrays (n, M), optional
        In place of centre and scale: the ends of an interval, such as two quantiles.
    ids : array (n,), optional
        A hash of each input, or whole numbers or strings of your own.
    engine, ensemble_digest : str
        What computed the numbers, where it is known.
    rounding : float
        How far the numbers of one input may differ between runs, as a share of their size.

    Examples
    --------
    >>> import agreestop as ag
    >>> ag.Numbers([[5.1, 4.2]], [[2.0, 0.5]], labels=[4.0])
    Numbers(1 inputs at 2 times, centre and scale, with labels)
    """

    centre: Any = None
    scale: Any = None
    labels: Any = None
    times: Any = None
    lower: Any = None
    upper: Any = None
    ids: NDArray[Any] | None = None
    engine: str = ""
    ensemble_digest: str = ""
    rounding: float = 0.0

    has_classes = False
    readers = "IntervalStop"
    by_time = ("centre", "scale", "lower", "upper")
    what = "numbers"

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) is not None for name in FORMS[False] + FORMS[True]}
        names = FORMS[self.has_ends]
        if tuple(name for name, known in given.items() if known) != names:
            words = " and ".join(name for name, one in given.items() if one) or "nothing"
            raise InputError(f"{words} is given: give centre and scale, or lower and upper.")
        pair = [as_floats(getattr(self, name), name) for name in names]
        for name, array in zip(names, pair, strict=True):
            if array.ndim not in (2, 3) or not array.size:
                raise InputError(
                    f"{name} has shape {array.shape}: (n, M) is needed, or (n, M, K) for K members."
                )
            if array.shape != pair[0].shape:
                raise InputError(
                    f"{' and '.join(names)} have shapes {pair[0].shape} and {array.shape}: give "
                    "one for each."
                )
            check_finite(array, name)
            if np.abs(array).max() > LARGEST:
                raise InputError(f"{name} holds a number above {LARGEST:g}: give smaller ones.")
        if sentence := _disorder(np.stack(pair, axis=-1), self.has_ends):
            raise InputError(sentence)
        n, steps = pair[0].shape[:2]
        times = as_times(self.times, steps, names[0], tuple(range(1, steps + 1)))
        known: dict[str, Any] = {"times": times, "ids": as_ids(self.ids, n)}
        known |= zip(names, pair, strict=True)
        if self.labels is not None:
            known["labels"] = labels = as_floats(self.labels, "labels")
            if labels.shape != (n,):
                raise InputError(
                    f"labels has shape {labels.shape}: one number for each of {n} inputs is needed."
                )
            check_finite(labels, "labels")
        set_fields(self, **known)

    def __repr__(self) -> str:
        words = " and ".join(FORMS[self.has_ends])
        known = ", with labels" if self.labels is not None else ""
        return f"Numbers({len(self)} inputs at {len(self.times)} times, {words}{known})"

    @property
    def has_ends(self) -> bool:
        """Whether ends are given in place of a centre and a scale."""
        return self.lower is not None or self.upper is not None

    @cached_property
    def cells(self) -> Floats:
        """What rules read, (n, M, K, 2): centre and scale, or lower and upper."""
        pair = np.stack([getattr(self, name) for name in FORMS[self.has_ends]], axis=-1)
        return pair if pair.ndim == 4 else pair[:, :, None]

    @property
    def loss(self) -> Floats | None:
        """The labels as a column: they stand where other rules have losses."""
        return None if self.labels is None else np.asarray(self.labels)[:, None]


def _disorder(pairs: Floats, ends: bool) -> str:
    """One sentence if a scale is not above 0, or a lower end is above its upper end; else empty."""
    first, second = pairs[..., 0], pairs[..., 1]
    if ends and (wrong := first > second).any():
        pair = f"{first[wrong][0]:g} and {second[wrong][0]:g}"
        return f"lower is above upper for some inputs, such as {pair}: give the lower end first."
    if not ends and not (second > 0).all():
        return f"scale holds {second[~(second > 0)][0]:g}: give numbers above 0."
    return ""


def load_numbers(path: StrPath) -> Numbers:
    """Read a `.npz` file with the fields of `Numbers` as arrays."""
    how = "write one with numpy.savez(path, centre=..., scale=..., labels=...)"
    content = read_npz(path, "file of numbers", how)
    if "centre" not in content and "lower" not in content:
        held = shortened(sorted(content))
        raise InputError(f"{path} holds {held} but no numbers: {how}.")
    return made_of(Numbers, path, content, *FORMS[False], *FORMS[True], "labels", "ids")


@dataclass(frozen=True, eq=False)
class Interval(StopsOnRisk, KeptInFiles):
    """An interval around what the model expects; see the module for the three sides.

    Evidence holds (centre, scale), or with `ends` (lower, upper), as values, and opens as the risk.
    Sets say that everything is answered; the interval itself is in the state.
    """

    side: str
    ends: bool

    meaning = "the numbers between which the true one lies"

    def interval(self, pairs: Floats, reach: Thresholds) -> Floats:
        """(..., 2): lower and upper end, from pairs (..., 2) and ℓ."""
        first, second = pairs[..., 0], pairs[..., 1]
        if not self.ends:
            first, second, reach = first, first, reach * second
        lower = first - reach if self.side != "upper" else np.full(first.shape, -np.inf)
        upper = second + reach if self.side != "lower" else np.full(first.shape, np.inf)
        return np.stack([lower, upper], axis=-1)

    def judge(
        self, limits: Thresholds, last: bool | Booleans, evidence: Evidence, state: State
    ) -> Verdict:
        stop = evidence.risk < limits
        found = self.interval(evidence.values, -np.asarray(limits))
        sets = np.ones(found.shape, dtype=bool)
        return Verdict(stop | last, sets, replace(state, interval=found))

    def failures(
        self, evidence: Evidence, labels: NDArray[Any], rounding: Rounding | None
    ) -> Failures:
        first, second = evidence.values[..., 0], evidence.values[..., 1]
        scale = 1.0 if self.ends else second
        below, above = (first - labels) / scale, (labels - (second if self.ends else first)) / scale
        outside = {"both": np.maximum(below, above), "upper": above, "lower": below}
        fails = -outside[self.side]
        return Failures(evidence.risk, fails, fails[:, -1])

    def shown(self, thresholds: Floats) -> Floats:
        return -thresholds


@dataclass(frozen=True, eq=False, repr=False)
class IntervalStop(WithoutClasses, KeptInFiles):
    """Predict a number: stop as soon as a calibrated interval is narrow enough.

    Parameters
    ----------
    target : float, str or Fraction
        The probability that the interval holds the true number.
    checkpoints : sequence of float, optional
        Times at which the rule may stop; the times of the calibration numbers unless given.
    max_width : float
        For side "both": an interval must be narrower to stop early. The last one may be wider.
    side : {"both", "upper", "lower"}
        An interval, or only an upper or a lower bound.
    limit : float
        For one side: an upper bound must be below it, or a lower bound above it, to stop early.
    delta : float, optional
        δ: the promise given the calibration data, with probability ≥ 1 - δ over their draw.
    ends : bool, optional
        Whether the model gives lower and upper ends in place of a centre and a scale; taken from
        the calibration numbers.

    Notes
    -----
    *Guarantee.* P(the interval, or the half-line of a bound, holds the true number) ≥ target, over
    the draw of the calibration examples and of a new example exchangeable with them, at whatever
    time it stops. The model may be anything that was fitted on other rows.

    Examples
    --------
    >>> import numpy as np, agreestop as ag
    >>> rng = np.random.default_rng(0)
    >>> truth, scale = rng.normal(size=(600, 1)), 1 / np.arange(1, 11)
    >>> centre = truth + scale * rng.normal(size=(600, 10))
    >>> numbers = ag.Numbers(centre, np.broadcast_to(scale, centre.shape), truth[:, 0])
    >>> rule = ag.IntervalStop(0.9, max_width=1.0).calibrate(numbers.rows(slice(300)))
    >>> decision = rule.decide(numbers.rows(slice(300, 600)))[0]
    >>> decision.time < 10, decision.upper - decision.lower < 1
    (True, True)
    """

    target: Target
    checkpoints: Sequence[float] = ()
    max_width: float | None = None
    side: str = "both"
    limit: float | None = None
    delta: Target | None = None
    ends: bool | None = None

    kinds: ClassVar = {"interval": ("target", "max_width", "side", "limit", "delta")}

    def __post_init__(self) -> None:
        if self.side not in SIDES:
            raise InputError(f"side is {self.side!r:.80}: choose one of {', '.join(SIDES)}.")
        needed, other = ("max_width", "limit")[:: 1 if self.side == "both" else -1]
        value = getattr(self, needed)
        if value is None:
            what = "below which an interval" if needed == "max_width" else "below or above which it"
            raise InputError(
                f"{needed} is missing: give the number {what} may stop, such as {needed}=2."
            )
        if getattr(self, other) is not None:
            raise InputError(f"{other} has no use for side {self.side!r}: give {needed}.")
        if not is_number(value) or abs(value) > LARGEST or (needed == "max_width" and value <= 0):
            number = "a number above 0" if needed == "max_width" else "a number"
            raise InputError(f"{needed} is {value!r:.80}: give {number} for side {self.side!r}.")
        set_fields(self, target=as_target(self.target), delta=as_delta(self.delta))
        self.check_checkpoints()

    @cached_property
    def terms(self) -> Terms:
        return Terms("interval", as_target(self.target), as_delta(self.delta), numbers=True)

    def answer(self, final: bool = False) -> Interval:
        return Interval(self.side, bool(self.ends))

    def read(
        self, given: Any, labels: ArrayLike | None = None, times: Sequence[float] | None = None
    ) -> Any:
        """`Numbers`, in the form that the rule was calibrated on."""
        if not isinstance(given, Numbers):
            kind = type(given).__name__
            raise InputError(
                f"an IntervalStop reads Numbers, and this is of type {kind}: give ag.Numbers("
                "centre, scale, labels)."
            )
        refuse_beside("Numbers", labels=labels, times=times)
        if self.ends is not None and given.has_ends != self.ends:
            words = [" and ".join(FORMS[one]) for one in (given.has_ends, self.ends)]
            raise InputError(
                f"these Numbers have {words[0]}, and the rule was calibrated with {words[1]}: give "
                "the same."
            )
        return self.at_checkpoints(given)

    @classmethod
    def load(cls, path: StrPath, times: Sequence[float] | None = None) -> Any:
        return load_numbers(path)

    def on(self, data: Any) -> Self:
        return replace(super().on(data), ends=data.has_ends)

    def read_one(self, given: ArrayLike) -> NDArray[Any]:
        """(centre, scale) or (lower, upper) of one checkpoint, or (K, 2) of K members."""
        pairs = np.asarray(given)
        if pairs.dtype.kind not in "fiu" or pairs.shape[-1:] != (2,) or pairs.ndim > 2:
            words = ", ".join(FORMS[bool(self.ends)])
            raise InputError(f"{given!r:.80} is pushed: push a pair ({words}).")
        return self.read_outputs(pairs.reshape(-1, 2).astype(np.float64))

    def read_outputs(self, outputs: NDArray[Any]) -> Floats:
        """The numbers (..., K, 2) that members give."""
        names = " or ".join(FORMS[bool(self.ends)])
        check_finite(outputs, names)
        if float(np.abs(outputs).max(initial=0.0)) > LARGEST:
            raise InputError(f"{names} holds a number above {LARGEST:g}: give smaller ones.")
        if sentence := _disorder(outputs, bool(self.ends)):
            raise InputError(sentence)
        return np.asarray(outputs, dtype=np.float64)

    def calibrate(  # type: ignore[override]
        self, numbers: Numbers, labels: str | None = None, **conditions: Any
    ) -> CalibratedRule:
        """Calibrate on numbers that were used for nothing else.

        Parameters
        ----------
        numbers : Numbers
            With labels.
        labels : "final", optional
            No labels are needed: the promise is about the number that the model itself gives at
            the last checkpoint (its centre, or the middle of its ends).
        **conditions
            groups, weights, max_weight, people and for_people, as in `AgreeStop.calibrate`.

        Returns
        -------
        CalibratedRule
            Its thresholds are ℓ: how many scales, or how much beyond the ends, the interval
            reaches.
        """
        data = self.read(numbers)
        if labels is not None and not (isinstance(labels, str) and labels == "final"):
            raise InputError("labels belong to the Numbers: give them there, or labels='final'.")
        if labels is None and data.labels is None:
            raise InputError(
                "labels are missing: give one true number for each input, or labels='final'."
            )
        calibrated = super(IntervalStop, self.on(data)).calibrate(data, labels, **conditions)
        rule: Any = calibrated.rule
        early = gather_evidence(rule, data.cells, range(len(data.times))).risk[:, :-1]
        boldest = float(-calibrated.thresholds.min())
        if early.size and boldest > -np.inf and not (early < boldest).any():
            which = "max_width" if self.side == "both" else "limit"
            sentence = (
                f"{which} is {getattr(self, which):g}, which no calibration row reaches before the "
                "last checkpoint, so nothing stops early: give another, or a lower target."
            )
            warn_user(sentence)
            calibrated.noting(sentence)
        return calibrated

    def evidence(self, index: Index, log_confidence: Floats) -> Evidence:
        pairs = _pooled(log_confidence, bool(self.ends))
        first, second = pairs[:, 0], pairs[:, 1]
        if self.max_width is not None:
            width = self.max_width
            opens = (second - first - width) / 2 if self.ends else -width / (2 * second)
        else:
            assert self.limit is not None
            scale: float | Floats = 1.0 if self.ends else second
            upper = self.side == "upper"
            gap = (second if self.ends else first) - self.limit if upper else self.limit - first
            opens = gap / scale
        return Evidence(pairs, opens)

    def rounding(self, base: Rounding) -> Rounding:
        return replace(base, absolute=0.0, relative=float(np.max(base.absolute)), breaks_ties=False)

    def reduce(self, examples: LabelledEvidence) -> Reduced:
        evidence, answer, truth = examples.evidence, self.answer(), examples.loss
        pairs = evidence.values
        if examples.conditions.final:
            truth = pairs[:, -1:].mean(axis=-1) if self.ends else pairs[:, -1:, 0]
        if truth is None:
            raise InputError("labels are missing: give one true number for each input.")
        found = answer.failures(evidence, truth, None)
        # How many units a rounding of the numbers themselves moves what is compared with λ.
        size = np.maximum(np.abs(pairs).max(axis=(1, 2)), np.abs(truth[:, 0]))
        size = size if self.ends else size / pairs[..., 1].min(axis=1)
        return {"opens": found.opens, "fails": found.fails, "size": size}

    def fit(self, reduced: Reduced, examples: LabelledEvidence) -> Policy:
        opens, fails, size = (reduced[name] for name in ("opens", "fails", "size"))
        failures = Failures(opens, fails, fails[:, -1])
        # Most rows move by no more than this; a few with tiny scales must not decide for all.
        rounding = self.rounding(examples.rounding)
        moved = rounding.relative * float(np.quantile(size, 0.9))
        rounding = replace(rounding, absolute=moved)
        W, most = failures.first(), 0.0 if self.side == "both" else np.inf
        found = {"W": W, "rounded": failures.first(rounding, W)}
        found = {name: np.minimum(values, most) for name, values in found.items()}
        allowed = allowed_by_failures(found, examples, self.exact_target, self.terms.delta)
        numbers = np.concatenate([opens, fails], axis=1)
        known = self.answer(), {"numbers": numbers}, examples, rounding, allowed
        return fit_thresholds(*known, reach=REACH * spread_of(numbers))

    def promise(self) -> str:
        whole = coverage_promise(self.exact_target, False, self.terms.delta)
        return whole.replace("the true class", "the true number")


def _pooled(pairs: Floats, ends: bool) -> Floats:
    """One pair (b, 2) from the pairs of K members (b, K, 2)."""
    members = pairs.shape[1]
    if members == 1:
        return pairs[:, 0]
    mean = _total(pairs) / members
    if ends:
        return mean
    around = pairs[:, :, 0] - mean[:, None, 0]
    variance = _total(pairs[:, :, 1] ** 2 + around**2) / members
    return np.stack([mean[:, 0], np.sqrt(variance)], axis=1)


def _total(values: Floats) -> Floats:
    """The sum over axis 1, one after the other, so that it is the same in a batch of any size."""
    return np.add.accumulate(values, axis=1)[:, -1]
