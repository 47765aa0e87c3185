"""P-values, and how the p-values, ranks or votes of K members merge.

    p = (1 + #{i : s ≤ s_i}) / (n + 1)              p-value of a score s among n calibration scores

Three ways to merge the p-values p_1..p_K of one class into one, limited to 1:

    a_{r,K} · M_r(p_1..p_K)                         under any dependence between members
    min over m of (r+1)^(1/r) · M_r(p_1..p_m)       exchangeable members, r > -1
    2/(2-u) · mean(p) or e^u · geometric mean(p)    under any dependence; u uniform on (0, 1)

The constant a_{r,K} of Vovk and Wang (2020) is K^(1/r) for r ≥ K-1, and (r+1)^(1/r) for r between
1/(K-1) and K-1. Below that, find c in (0, 1/K) with d = 1 - (K-1)c and

    c^r + (K-1)·d^r = K/(d-c) · ∫_c^d u^r du         (log u in place of u^r at r = 0);

then a_{r,K} = 1/M_r(c, d, …, d). A majority vote keeps the classes that are in more than half of
the members' sets.

Some poolings make sets from the members' ranks: a member's p-value is u/(n+1) with the integer rank
u = 1 + #{i : s ≤ s_i}. With the level ℓ = α(n+1)/M, p-value merging keeps a class iff

    a · M_r(u_1..u_K) > ℓ,  that is  Σ_k g(u_k) > 0,  g(u) = ((a·u/ℓ)^r - 1) / r  (log at r = 0).

g grows with u for every r, so a table of g over 1..n+1 decides. For a positive integer r, a^r is
rational (K or r + 1), and sums within rounding of 0 are decided in integers. Elsewhere the constant
is rounded up, which can only keep more classes.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import (
    Booleans,
    Floats,
    InputError,
    Integers,
    as_count,
    as_floats,
    check_finite,
    is_integer,
    set_fields,
    with_axis,
)
from agreestop.common.kept import KeptInFiles

from .checkpoints import at_checkpoints, uniforms
from .confidence import (
    MergeConfidence,
    Pooling,
    as_exponent,
    generalized_mean,
)


def as_prefix_exponent(r: float) -> float:
    """Check an exponent for the minimum over prefixes, which needs r > -1."""
    r = as_exponent(r)
    if r <= -1:
        raise InputError(
            f"r is {r}: merging exchangeable p-variables needs r > -1, "
            "for example 1 (mean) or 0 (geometric)."
        )
    return r


def as_randomized_exponent(r: float) -> float:
    """Check an exponent for randomised merging, which needs r = 0 or 1."""
    r = as_exponent(r)
    if r not in (0.0, 1.0):
        raise InputError(
            f"r is {r}: randomised merging is known for r = 1 (mean) and r = 0 (geometric mean)."
        )
    return r


def ranks(sorted_scores: Floats, scores: Floats) -> Integers:
    """1 + #{i : s ≤ s_i} for every score s: the numerator of the p-value."""
    return len(sorted_scores) + 1 - np.searchsorted(sorted_scores, scores, side="left")


def p_values(calibration_scores: ArrayLike, scores: ArrayLike) -> Floats:
    """Conformal p-value of every score, where larger scores conform less.

    Parameters
    ----------
    calibration_scores : array_like of shape (n,)
        Scores of the true labels of n calibration examples.
    scores : array_like
        Scores of any shape, for example of the classes of new inputs.

    Returns
    -------
    ndarray of float64
        (1 + #{i : s ≤ s_i}) / (n + 1) for every score s, of the shape of `scores`.

    Notes
    -----
    If the score of the true label is exchangeable with the calibration scores, its p-value is at
    most α with probability at most α, for every α. Ties count in favour of the label.

    Examples
    --------
    >>> import agreestop as ag
    >>> ag.p_values([0.1, 0.2, 0.3, 0.4], [0.0, 0.3, 9.0]).tolist()
    [1.0, 0.6, 0.2]
    """
    calibration = as_floats(calibration_scores, "calibration_scores")
    values = as_floats(scores, "scores")
    if calibration.ndim != 1 or len(calibration) == 0:
        raise InputError(
            f"calibration_scores has shape {calibration.shape}: "
            "one axis with at least one score is needed."
        )
    check_finite(calibration, "calibration_scores")
    check_finite(values, "scores")
    return np.asarray(ranks(np.sort(calibration), values) / (len(calibration) + 1.0))


def merging_factor(r: float, K: int, table: bool = False) -> float:
    """The constant a_{r,K} that makes a generalised mean of K p-values a p-value.

    Parameters
    ----------
    r : float
        The exponent of the mean, in [-∞, ∞].
    K : int
        The number of p-values.
    table : bool
        Whether to take the constant printed in Table 1 of Vovk and Wang (2020), which is larger
        for some r < 1/(K-1).

    Returns
    -------
    float
        The constant; by default the smallest one that is valid under any dependence.

    Examples
    --------
    >>> import agreestop as ag
    >>> [round(ag.merging_factor(r, 6), 3) for r in (-1, 0, 1, 45, float("inf"))]
    [3.836, 2.711, 2.0, 1.041, 1.0]
    >>> round(ag.merging_factor(0, 6, table=True), 3)
    2.718
    """
    r = as_exponent(r)
    if not is_integer(K) or K < 1:
        raise InputError(f"K is {K!r}: give the number of p-variables, an integer of at least 1.")
    return _factor(r, int(K), bool(table))


@lru_cache(maxsize=4096)
def _factor(r: float, K: int, table: bool) -> float:
    if K == 1:
        return 1.0
    if r >= K - 1:
        return K ** (1 / r)
    if K == 2 or r == -math.inf:
        return float(K)
    if r >= 1 / (K - 1) or (table and r > -1):
        return simple_factor(r)
    if not table:
        return _exact_factor(r, K)
    return math.e * math.log(K) if r == -1 else r / (r + 1) * K ** (1 + 1 / r)


def simple_factor(r: float) -> float:
    """(r+1)^(1/r) for r > -1, which is valid for every K; e at r = 0 and 1 at r = ∞."""
    if r == math.inf:
        return 1.0
    return math.e if r == 0 else math.exp(math.log1p(r) / r)


def _balance(y: float, r: float, K: int) -> float:
    """(left - right side of the equation for c) / (r·c^r), with d = c·e^y.

    It is written so that nothing cancels near r = 0 or -1.
    """
    growth = math.expm1(r * y) / r if r else y
    shrink = -math.expm1(-y)
    if r > -0.5:
        return (K - 1) * growth + K * (1 - growth / shrink) / (r + 1)
    s = r + 1
    integral = math.exp(-y) * (math.expm1(s * y) / s if s else y)
    return (K - 1) * growth + K * (integral - shrink) / (shrink * -r)


def _exact_factor(r: float, K: int) -> float:
    """a_{r,K} from the root y of `_balance`: a bracket by doubling, then bisection."""
    low = high = 1e-2 / (1 + abs(r))
    sign = math.copysign(1.0, _balance(low, r, K))
    while sign * _balance(high, r, K) > 0:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if sign * _balance(middle, r, K) > 0:
            low = middle
        else:
            high = middle
    y = (low + high) / 2
    share = (K - 1) / K
    log_mean = math.log1p(share * math.expm1(r * y)) / r if r else share * y
    return math.exp(float(np.logaddexp(y, math.log(K - 1))) - log_mean)


def _as_p_values(p: ArrayLike, axis: int) -> Floats:
    """Check p-values: numbers between 0 and 1, at least one along `axis`."""
    array = with_axis(p, axis, "p")
    wrong = array[~((array >= 0) & (array <= 1))]
    if wrong.size:
        raise InputError(f"p holds {wrong[0]}: p-variables lie between 0 and 1.")
    return array


def merge_p_values(p: ArrayLike, r: float, axis: int = -1, table: bool = False) -> Floats:
    """Merge the p-values of K members: min(1, a_{r,K} · M_r(p)).

    Parameters
    ----------
    p : array_like
        P-values, between 0 and 1.
    r : float
        The exponent of the generalised mean, in [-∞, ∞].
    axis : int
        The axis of the members.
    table : bool
        Whether to take the printed constants; see `merging_factor`.

    Returns
    -------
    ndarray of float64
        The merged p-values, of the shape of `p` without `axis`.

    Notes
    -----
    The result is a p-value whatever the dependence between the K given.

    Examples
    --------
    >>> import agreestop as ag
    >>> ag.merge_p_values([[0.01, 0.03], [0.4, 0.8]], r=1).round(3).tolist()
    [0.04, 1.0]
    """
    array = _as_p_values(p, axis)
    factor = merging_factor(r, array.shape[axis], table)
    return np.minimum(1.0, factor * generalized_mean(array, r, axis))


FORMS = {
    "any": as_exponent,
    "exchangeable": as_prefix_exponent,
    "randomized": as_randomized_exponent,
}
"""The forms of p-value merging, each with the check of its exponent."""

POOLINGS = (
    "confidence:R, p-values:R, p-values:R:exchangeable, p-values:R:randomized, p-values:R:table, "
    "ranks:R, vote or none"
)
ROUND_UP = 1 + 1e-12
TIE = 1e-9  # sums nearer to 0 than this for each member are decided in integers
LARGEST_POWER = 1000  # larger powers make integers too long, and the mean is almost the maximum
BLOCK_NUMBERS = 1 << 18  # ranks pooled together: a block stays in the cache


@dataclass(frozen=True)
class MergePValues(Pooling, KeptInFiles):
    """P-value merging, PM(r): a conformal p-value for each member, then a_{r,K} · M_r of them.

    Parameters
    ----------
    r : float
        The exponent, in [-∞, ∞]; above -1 for "exchangeable", 0 or 1 for "randomized".
    form : {"any", "exchangeable", "randomized"}
        How p-values merge. "any" is `merge_p_values`. "exchangeable" takes the least over prefixes
        of the members, (r+1)^(1/r) · M_r(p_1..p_m), for r > -1. "randomized" draws a number u and
        takes 2/(2-u) times the mean (r = 1), or e^u times the geometric mean (r = 0).
    table : bool
        Whether "any" takes the printed constants, which may be larger; see `merging_factor`.
    seed : int
        The seed of the random numbers of "randomized".

    Notes
    -----
    "any" and "randomized" assume nothing about the dependence between members. "exchangeable"
    needs members that are exchangeable, in an order fixed before any data; its promise is over the
    draw of the members, too.

    "randomized" draws a fresh number for every input, so two calls may answer differently. An input
    with a number of its own (`decide(first=)`, `stream(number)`) has a draw that depends on only
    the seed and that number.

    For r ≥ K - 1 the merged set contains the union of the members' sets, so it cannot stop before
    the slowest member.

    Examples
    --------
    >>> import agreestop as ag
    >>> scores, fresh = (ag.simulate_scores(300, steps=40, K=3, C=4, seed=seed) for seed in (1, 2))
    >>> rule = ag.SpikeCP(0.9, (20, 40), 1, pooling=ag.MergePValues(r=1)).calibrate(scores)
    >>> rule.decide(fresh).sets.shape
    (300, 4)
    """

    r: float
    form: str = "any"
    table: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise InputError(f"form is {self.form!r}: choose one of {', '.join(FORMS)}.")
        if self.table and self.form != "any":
            raise InputError(
                f"table=True goes only with form='any': form {self.form!r} has one constant."
            )
        seed = as_count(self.seed, "seed", least=0)
        set_fields(self, r=FORMS[self.form](self.r), seed=seed)

    @property
    def words(self) -> str:
        form = "" if self.form == "any" else f", {self.form}"
        return f"p-values, r = {self.r:g}{form}{', printed constants' * self.table}"

    @property
    def assumes(self) -> str:
        if self.form == "exchangeable":
            return (
                " The members must be exchangeable, in an order fixed before any data; the "
                "probability is over their draw too."
            )
        if self.form == "randomized":
            return " The probability is over the input's uniform number too."
        return ""

    @property
    def is_exact(self) -> bool:
        """Whether a^r is rational, so that ties can be decided in integers."""
        return self.form != "randomized" and 0 < self.r <= LARGEST_POWER and self.r.is_integer()

    def least_factor(self, K: int) -> float:
        """The constant for K p-values; for the randomised form, the smallest possible one."""
        if self.form == "any":
            return merging_factor(self.r, K, self.table)
        return simple_factor(self.r) if self.form == "exchangeable" else 1.0


@dataclass(frozen=True)
class MergeRanks(Pooling, KeptInFiles):
    """Rank pooling: p-value merging without the constant a_{r,K}.

    Parameters
    ----------
    r : float
        The exponent of the generalised mean of the ranks, in [-∞, ∞].

    Notes
    -----
    Each member ranks the candidate among the n calibration examples, itself included. The
    generalised mean of the ranks is a score, and its conformal p-value is taken in the same bag.
    That is exactly valid by symmetry. It costs n·K operations for each candidate class.

    Examples
    --------
    >>> import agreestop as ag
    >>> scores, fresh = (ag.simulate_scores(300, steps=40, K=3, C=4, seed=seed) for seed in (1, 2))
    >>> rule = ag.SpikeCP(0.9, (20, 40), 1, pooling=ag.MergeRanks()).calibrate(scores)
    >>> rule.decide(fresh).sets.shape
    (300, 4)
    """

    r: float = 1.0

    def __post_init__(self) -> None:
        set_fields(self, r=as_exponent(self.r))

    @property
    def words(self) -> str:
        return f"ranks, r = {self.r:g}"


@dataclass(frozen=True)
class MajorityVote(Pooling, KeptInFiles):
    """Classes in more than half of the members' sets.

    Notes
    -----
    It is valid under any dependence between the members. A miss needs K/2 members to miss, or
    (K+1)/2 if K is odd, so each member works at the miscoverage α/(2M), or α(K+1)/(2KM).

    Examples
    --------
    >>> import agreestop as ag
    >>> scores, fresh = (ag.simulate_scores(300, steps=40, K=3, C=4, seed=seed) for seed in (1, 2))
    >>> rule = ag.SpikeCP(0.9, (20, 40), 1, pooling=ag.MajorityVote()).calibrate(scores)
    >>> rule.decide(fresh).sets.shape
    (300, 4)
    """

    r = None

    @property
    def words(self) -> str:
        return "majority vote"


def parse_pooling(text: str) -> Pooling | None:
    """A pooling from words: 'confidence:1', 'p-values:45', 'ranks:1', 'vote', 'none'."""
    try:
        match text.strip().split(":"):
            case ["none"]:
                return None
            case ["vote"]:
                return MajorityVote()
            case ["confidence", *r] if len(r) <= 1:
                return MergeConfidence(*map(float, r))
            case ["ranks", *r] if len(r) <= 1:
                return MergeRanks(*map(float, r))
            case ["p-values", r, "table"]:
                return MergePValues(float(r), table=True)
            case ["p-values", r]:
                return MergePValues(float(r))
            case ["p-values", r, form]:
                return MergePValues(float(r), form)
    except InputError:
        raise
    except ValueError:
        pass
    raise InputError(f"pooling is {text!r}: give {POOLINGS}, where R is a number, inf or -inf.")


def as_pooling(pooling: "str | Pooling | None") -> Pooling | None:
    """A pooling, or the one that words such as 'confidence:1' name."""
    return parse_pooling(pooling) if isinstance(pooling, str) else pooling


def _safe_factor(merging: MergePValues, members: int) -> float:
    """The constant a, rounded up unless comparisons are exact."""
    exact = merging.is_exact or math.isinf(merging.r) or (members == 1 and merging.form == "any")
    return merging.least_factor(members) * (1.0 if exact else ROUND_UP)


def least_n_merged(merging: MergePValues, members: int, alpha: Fraction) -> int:
    """The least n with a/(n+1) ≤ alpha, so that the smallest p-values can exclude a label."""
    return max(1, math.ceil(Fraction(_safe_factor(merging, members)) / alpha - 1))


@dataclass(frozen=True, eq=False)
class MergedRanks(KeptInFiles):
    """PM(r) after calibration.

    Attributes
    ----------
    calibration : ndarray of shape (M, K, n)
        The sorted calibration losses of each member.
    level : Fraction
        α(n+1)/M.
    merging : MergePValues
    """

    calibration: Floats
    level: Fraction
    merging: MergePValues
    _table: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Fill the table of g(u), u = 0..n+1."""
        _, members, n = self.calibration.shape
        r, factor = self.merging.r, _safe_factor(self.merging, members)
        with np.errstate(divide="ignore", over="ignore"):
            table = np.log(np.arange(n + 2)) + math.log(factor) - math.log(float(self.level))
            if r and not math.isinf(r):  # infinite exponents compare ranks, without a table
                table = np.expm1(r * table) / r
        set_fields(self, _table=table)

    def uniforms(self, count: int, first: int | None) -> Floats | None:
        """The uniform numbers (count, 1) of inputs first, first + 1, …; other forms have none."""
        if self.merging.form != "randomized":
            return None
        return uniforms(self.merging.seed, count, first)

    def keeps(
        self, index: int | Integers, losses: Floats, uniforms: Floats | None = None
    ) -> Booleans:
        """Which classes stay, (b, C), from the members' losses (b, K, C)."""
        r, form = self.merging.r, self.merging.form
        members = losses.shape[1]
        u = at_checkpoints(index, losses, self._ranks).swapaxes(0, 1)
        if math.isinf(r) or (members == 1 and form == "any"):
            return self._extreme(u) > math.floor(self.level)
        if form == "exchangeable":
            sums = np.add.accumulate(self._table[u], axis=0)
            prefixes = [self._positive(sums[m], u[: m + 1]) for m in range(members)]
            return np.logical_and.reduce(prefixes)
        u.sort(axis=0)  # the sum is the same for any order of the members
        total: Floats = self._table[u[0]]
        for k in range(1, members):  # much faster than all sums up to each member
            total += self._table[u[k]]
        if form == "any":
            return self._positive(total, u)
        assert uniforms is not None
        return np.asarray(total > members * -uniforms * (1.0 if r == 0 else 0.5))

    def _ranks(self, index: int, losses: Floats) -> Integers:
        """The members' ranks (b, K, C) at one checkpoint; in memory the members come first."""
        members = zip(self.calibration[index], losses.swapaxes(0, 1), strict=True)
        return np.stack([ranks(*member) for member in members]).swapaxes(0, 1)

    def _extreme(self, u: Integers) -> Integers:
        """a · M_r where it is an integer: one member, a maximum, or K times a minimum."""
        if len(u) == 1 or self.merging.form == "exchangeable":  # the first prefix decides
            return u[0]
        return u.max(axis=0) if self.merging.r > 0 else len(u) * u.min(axis=0)

    def _positive(self, total: Floats, u: Integers) -> Booleans:
        """total > 0, where total = Σ_k g(u_k) for ranks u (m, ...)."""
        kept = total > 0
        close = np.abs(total) <= TIE * len(u)
        if self.merging.is_exact and close.any():
            cells, where = np.unique(u[:, close], axis=1, return_inverse=True)
            power, members = int(self.merging.r), self.calibration.shape[1]
            is_maximum = self.merging.form == "any" and power >= members - 1
            factor = Fraction(members if is_maximum else power + 1, len(u))
            sums = [sum(rank**power for rank in cell) for cell in cells.T.tolist()]
            exact = [factor * total > self.level**power for total in sums]
            kept[close] = np.array(exact)[where.ravel()]
        return kept


@dataclass(frozen=True, eq=False)
class PooledRanks(KeptInFiles):
    """Rank pooling after calibration.

    In the bag of the n calibration examples and the candidate, u_k(z) = #{j : s_j ≥ s_z - η} is
    member k's rank of z. The pooled value of z is Σ_k g(u_k(z)), with g increasing and
    integer-valued, so that ties stay ties. The candidate is kept iff
    1 + #{i : pooled(i) ≤ pooled(candidate)} > level.

    Attributes
    ----------
    calibration : ndarray of shape (M, K, n)
        The members' calibration losses, with the examples in one order for all members.
    level : Fraction
        α(n+1)/M.
    r : float
        The exponent.
    eta : ndarray of shape (M, K), optional
        The rounding η of losses, so that losses that tie in one run tie in every run. None, in
        files of version 0.2, is 0.
    """

    calibration: Floats
    level: Fraction
    r: float
    eta: Floats | None = None
    _ordered: Floats = field(init=False, repr=False)
    _ranks: Integers = field(init=False, repr=False)  # 1 + rank among the calibration examples
    _table: Integers = field(init=False, repr=False)  # g(u), u = 0..n+1

    def __post_init__(self) -> None:
        *shape, n = self.calibration.shape
        eta = np.zeros(shape) if self.eta is None else self.eta
        if eta.shape != tuple(shape) or not (np.isfinite(eta) & (eta >= 0)).all():
            raise ValueError("a rounding that no calibration gives")
        ordered = np.sort(self.calibration, axis=2)
        inside = np.empty(self.calibration.shape, dtype=np.int64)
        for cell in np.ndindex(*shape):
            inside[cell] = ranks(ordered[cell], self.calibration[cell] - eta[cell])
        set_fields(self, _ordered=ordered, _ranks=inside, _table=self._integer_table(n))

    def _integer_table(self, n: int) -> Integers:
        """g(u), u = 0..n+1, in integers."""
        u = np.arange(n + 2)
        if math.isinf(self.r) or self.r == 1:
            return u
        positive = np.maximum(u, 1)
        if self.r == 0:
            values = np.log(positive) / math.log(n + 2)
        else:
            values = np.copysign((positive / (n + 1 if self.r > 0 else 1)) ** self.r, self.r)
        # Sums over members must fit into 64 bits. The rank itself comes second, so that g grows
        # strictly even where the power cannot separate ranks.
        scale = min(2**40, 2**61 // (self.calibration.shape[1] * (n + 2)))
        return np.rint(values * scale).astype(np.int64) * (n + 2) + u

    def uniforms(self, count: int, first: int | None) -> Floats | None:
        """Nothing here is random."""
        return None

    def keeps(
        self, index: int | Integers, losses: Floats, uniforms: Floats | None = None
    ) -> Booleans:
        """Which classes stay, (b, C), from the members' losses (b, K, C)."""
        return at_checkpoints(index, losses, self._keeps_at)

    def _keeps_at(self, index: int, losses: Floats) -> Booleans:
        batch, _, classes = losses.shape
        n = self.calibration.shape[2]
        rows = max(1, BLOCK_NUMBERS // max(n * classes, 1))  # a class may have no examples
        starts = range(0, max(batch, 1), rows)
        return np.concatenate([self._block(index, losses[at : at + rows]) for at in starts])

    def _block(self, index: int, losses: Floats) -> Booleans:
        """`keeps` at one checkpoint, for few enough inputs."""
        pool = np.add if not math.isinf(self.r) else np.maximum if self.r > 0 else np.minimum
        own, others = self._terms(index, 0, losses[:, 0])
        for k in range(1, losses.shape[1]):
            mine, theirs = self._terms(index, k, losses[:, k])
            pool(own, mine, out=own)  # in place: these arrays fill the cache
            pool(others, theirs, out=others)
        count = np.count_nonzero(others <= own[:, :, None], axis=2)
        return count >= math.floor(self.level)

    def _terms(self, index: int, k: int, losses: Floats) -> tuple[Integers, Integers]:
        """g of member k's ranks: of the candidates (b, C), and of the examples beside each."""
        eta = 0.0 if self.eta is None else self.eta[index, k]
        own = self._table[ranks(self._ordered[index, k], losses - eta)]
        inside = self._ranks[index, k]
        counted = losses[:, :, None] >= self.calibration[index, k] - eta
        return own, np.where(counted, self._table[inside], self._table[inside - 1])
