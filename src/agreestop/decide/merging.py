"""How the K members of an ensemble become one: confidence merging, and merging of conformal p-variables.

`MergeConfidence` pools before calibration and costs nothing. The others calibrate each member by itself and pool the results at each
checkpoint.

    p_c = (1 + #{i : s_c ≤ s_i}) / (n + 1)          ties count

If (x, c) is exchangeable with the n calibration examples, P(p_c ≤ α) ≤ α for every α. Members give one p-variable each, and

    F(p_1..p_K) = min(1, a_{r,K} · M_r(p_1..p_K))

is a p-variable under any dependence between the p_k when a_{r,K} is the constant of Vovk and Wang (2020). For
r ≥ 1/(K-1) it is known in closed form: (r+1)^(1/r) up to r = K-1 and K^(1/r) from there on. Below, the exact constant is
1 / M_r(c, d, …, d) with d = 1 - (K-1)c and c in (0, 1/K) the root of

    c^r + (K-1) d^r = K/(d-c) · ∫_c^d u^r du.

With d/c = e^y it becomes one equation in y that holds for every r (`_balance`), limits at r = 0 and r = -1 included.

Other dependence, other prices (Gasparin, Wang and Ramdas 2024):
- exchangeable members in an order fixed before any data: min_m (r+1)^(1/r) · M_r(p_1..p_m), r > -1;
- any dependence and one uniform number u per input: 2/(2-u) · mean, e^u · geometric mean;
- majority vote: classes in more than half of the members' level-α' sets miss with probability at most 2α', or 2α'·K/(K+1) for odd K.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import Booleans, Floats, InputError, Integers, as_count, as_floats, check_finite, is_integer, with_axis

from .confidence import as_exponent, generalized_mean, pool_logs
from .rule_files import KeptInFiles


def ranks(sorted_scores: Floats, scores: Floats) -> Integers:
    """1 + #{i : s ≤ s_i} for every score s: the numerator of the p-variable."""
    counts = np.searchsorted(sorted_scores, scores, side="left")
    np.subtract(len(sorted_scores) + 1, counts, out=counts)
    return counts


def p_values(calibration_scores: ArrayLike, scores: ArrayLike) -> Floats:
    """Conformal p-variable of every score, shape of `scores`, against n calibration scores; larger scores conform less.

    Assumes that the calibration scores are exchangeable with the score of a true label. Ties count for the label.
    """
    calibration = as_floats(calibration_scores, "calibration_scores")
    values = as_floats(scores, "scores")
    if calibration.ndim != 1 or len(calibration) == 0:
        raise InputError(f"calibration_scores has shape {calibration.shape}: one axis with at least one score is needed.")
    check_finite(calibration, "calibration_scores")
    check_finite(values, "scores")
    counts = ranks(np.sort(calibration), np.atleast_1d(values)).reshape(values.shape)
    return np.asarray(counts / (len(calibration) + 1.0))


def merging_factor(r: float, K: int, table: bool = False) -> float:
    """The constant a_{r,K}: the smallest one valid under any dependence, or with `table=True` the one printed in Table 1."""
    r = as_exponent(r)
    if not is_integer(K) or K < 1:
        raise InputError(f"K is {K!r}: give the number of p-variables, an integer of at least 1.")
    return _factor(r, int(K), bool(table))


@lru_cache(maxsize=4096)
def _factor(r: float, K: int, table: bool) -> float:
    if K == 1 or r == math.inf:
        return 1.0
    if r == -math.inf:
        return float(K)
    if r >= K - 1:
        return K ** (1 / r)
    if r >= 1 / (K - 1):
        return simple_factor(r)
    if K == 2:
        return 2.0
    if not table:
        return _exact_factor(r, K)
    if r > -1:
        return simple_factor(r)
    if r == -1:
        return math.e * math.log(K)
    return r / (r + 1) * K ** (1 + 1 / r)


def simple_factor(r: float) -> float:
    """(r+1)^(1/r), r > -1: valid for every K; e at r = 0 and 1 at r = ∞."""
    if r == math.inf:
        return 1.0
    return math.e if r == 0 else math.exp(math.log1p(r) / r)


def _balance(y: float, r: float, K: int) -> float:
    """(left - right side of the root equation) / (r·c^r), with d = c·e^y; written so that nothing cancels near r = 0 or -1."""
    growth = math.expm1(r * y) / r if r else y
    shrink = -math.expm1(-y)
    if r > -0.5:
        return (K - 1) * growth + K * (1 - growth / shrink) / (r + 1)
    s = r + 1
    integral = math.exp(-y) * (math.expm1(s * y) / s if s else y)
    return (K - 1) * growth + K * (integral - shrink) / (shrink * -r)


def _exact_factor(r: float, K: int) -> float:
    low = 1e-2 / (1 + abs(r))
    sign = math.copysign(1.0, _balance(low, r, K))
    high = low
    while sign * _balance(high, r, K) > 0:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if sign * _balance(middle, r, K) > 0:
            low = middle
        else:
            high = middle
    y = (low + high) / 2
    share = (K - 1) / K
    log_mean = math.log1p(share * math.expm1(r * y)) / r if r else share * y
    return math.exp(float(np.logaddexp(y, math.log(K - 1))) - log_mean)


def _as_p_values(p: ArrayLike, axis: int) -> Floats:
    array = with_axis(p, axis, "p")
    if array.size and not (array.min() >= 0 and array.max() <= 1):
        wrong = array[~((array >= 0) & (array <= 1))][0]
        raise InputError(f"p holds {wrong}: p-variables lie between 0 and 1.")
    return array


def merge_p_values(p: ArrayLike, r: float, axis: int = -1, table: bool = False) -> Floats:
    """min(1, a_{r,K} · M_r(p)) along `axis`: a p-variable, whatever the dependence between the K given."""
    array = _as_p_values(p, axis)
    merged = merging_factor(r, array.shape[axis], table) * generalized_mean(array, r, axis)
    return np.minimum(1.0, merged)


def merge_exchangeable(p: ArrayLike, r: float, axis: int = -1) -> Floats:
    """min over prefixes m of (r+1)^(1/r) · M_r(p_1..p_m), r > -1: a p-variable if the K members are exchangeable.

    Exchangeable means: variational draws, or members from independent seeds, in an order fixed before any data were seen.
    Members sorted by p-value break the promise, which is over the draw of the members, not for the ensemble in hand.
    """
    r = as_prefix_exponent(r)
    array = np.moveaxis(_as_p_values(p, axis), axis, -1)
    prefixes = [generalized_mean(array[..., : m + 1], r) for m in range(array.shape[-1])]
    return np.minimum(1.0, simple_factor(r) * np.minimum.reduce(prefixes))


def merge_randomized(p: ArrayLike, r: float, uniform: ArrayLike, axis: int = -1) -> Floats:
    """2/(2-u) · mean (r = 1) or e^u · geometric mean (r = 0): a p-variable under any dependence between the members.

    `uniform` holds one U(0, 1) number for each merged value (it broadcasts), drawn independently of the p-variables.
    Use one number per input, shared by its classes and checkpoints.
    """
    r = as_randomized_exponent(r)
    array = _as_p_values(p, axis)
    u = np.asarray(uniform, dtype=np.float64)
    if not ((u >= 0) & (u <= 1)).all():
        raise InputError("uniform must hold numbers between 0 and 1, one for each input.")
    factor = np.exp(u) if r == 0 else 2 / (2 - u)
    return np.minimum(1.0, factor * generalized_mean(array, r, axis))


def majority_vote(sets: NDArray[np.bool_], axis: int = -1) -> Booleans:
    """True where more than half of the members' sets along `axis` hold the class.

    Members' sets that each miss with probability at most α' give a set that misses with probability at most 2α', or 2α'·K/(K+1)
    where the number K of members is odd, whatever the dependence between members.
    """
    votes = np.asarray(sets)
    if votes.dtype != np.bool_:
        raise InputError(f"sets has dtype {votes.dtype}: give booleans, True where a member's set holds the class.")
    return np.asarray(2 * votes.sum(axis=axis) > votes.shape[axis])


def as_prefix_exponent(r: float) -> float:
    """An exponent for which prefix minima are valid: r > -1."""
    r = as_exponent(r)
    if r <= -1:
        raise InputError(f"r is {r}: merging exchangeable p-variables needs r > -1, for example 1 (mean) or 0 (geometric).")
    return r


def as_randomized_exponent(r: float) -> float:
    """An exponent with a randomised form: 0 or 1."""
    r = as_exponent(r)
    if r not in (0.0, 1.0):
        raise InputError(f"r is {r}: randomised merging is known for r = 1 (mean) and r = 0 (geometric mean).")
    return r


@dataclass(frozen=True)
class MergeConfidence(KeptInFiles):
    """Confidence merging, CM(r): the generalised mean of the members' confidences; r = 1 is model averaging.

    Assumes nothing: the pooled confidence is a score like any other. It is not renormalised over classes.
    """

    r: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "r", as_exponent(self.r))

    def pool(self, log_confidence: NDArray[np.floating]) -> Floats:
        """(..., K, C) log-confidences to (..., C)."""
        return pool_logs(log_confidence, self.r, axis=-2)


MODEL_AVERAGE = MergeConfidence(r=1)

FORMS = ("any", "exchangeable", "randomized")


@dataclass(frozen=True)
class MergePValues(KeptInFiles):
    """P-variable merging, PM(r): a conformal p-variable for each member, then a_{r,K} · M_r of them.

    form "any" (default) assumes nothing about the dependence between members; `table=True` takes the printed constants.
    form "exchangeable" takes prefix minima, r > -1: members must be exchangeable, in an order fixed before any data; the promise
    is then over the draw of the members too. form "randomized", r = 0 or 1: any dependence, with one uniform
    number per input. It is fresh, so that two calls may answer differently, unless the input has a number (`decide(first=)`,
    `stream(number)`); then it follows from the seed and that number.

    For r ≥ K - 1 the merged set contains the union of the members' sets: it cannot stop before its slowest member.
    """

    r: float
    form: str = "any"
    table: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise InputError(f"form is {self.form!r}: choose one of {', '.join(FORMS)}.")
        check = {"any": as_exponent, "exchangeable": as_prefix_exponent, "randomized": as_randomized_exponent}[self.form]
        object.__setattr__(self, "r", check(self.r))
        if self.table and self.form != "any":
            raise InputError(f"table=True goes only with form='any': form {self.form!r} has one constant.")
        object.__setattr__(self, "seed", as_count(self.seed, "seed", least=0))

    def least_factor(self, K: int) -> float:
        """The constant of K p-variables; for the randomised form, the smallest it can be."""
        if self.form == "any":
            return merging_factor(self.r, K, self.table)
        return simple_factor(self.r) if self.form == "exchangeable" else 1.0


@dataclass(frozen=True)
class MergeRanks(KeptInFiles):
    """Rank pooling: p-variable merging without its price.

    Each member ranks the candidate among the n calibration examples, itself included; the generalised mean of the ranks is
    a score, and its conformal p-variable is taken in the same bag. Exactly valid by symmetry, no constant a_{r,K}.
    Costs n·K operations for each candidate class.
    """

    r: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "r", as_exponent(self.r))


@dataclass(frozen=True)
class MajorityVote(KeptInFiles):
    """Classes in more than half of the members' sets, under any dependence.

    A miss needs K/2 members to miss, or (K+1)/2 where K is odd, so each member works at the miscoverage α/2M, or α(K+1)/2KM.
    """


Pooling = MergeConfidence | MergePValues | MergeRanks | MajorityVote
