"""How the K members of an ensemble become one: the poolings, and sets from the members' ranks.

A member's p-value is u/(n+1) with the integer rank u = 1 + #{i : s ≤ s_i}. With the level
ℓ = α(n+1)/M, p-value merging keeps a class iff

    a · M_r(u_1..u_K) > ℓ,  that is  Σ_k g(u_k) > 0,  g(u) = ((a·u/ℓ)^r - 1) / r  (log at r = 0).

g grows with u for every r, so a table of g over 1..n+1 decides. For a positive integer r, a^r is
rational (K or r + 1), and sums within rounding of 0 are decided in integers. Elsewhere the constant
is rounded up, which can only keep more classes.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from agreestop.common import Booleans, Floats, InputError, Integers, as_count
from agreestop.common.kept import KeptInFiles

from .checkpoints import Index, at_checkpoints, uniforms
from .confidence import (
    MergeConfidence,
    Pooling,
    as_exponent,
    as_prefix_exponent,
    as_randomized_exponent,
    merging_factor,
    ranks,
    simple_factor,
)

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
        object.__setattr__(self, "r", FORMS[self.form](self.r))
        if self.table and self.form != "any":
            raise InputError(
                f"table=True goes only with form='any': form {self.form!r} has one constant."
            )
        object.__setattr__(self, "seed", as_count(self.seed, "seed", least=0))

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
        object.__setattr__(self, "r", as_exponent(self.r))

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
        object.__setattr__(self, "_table", table)

    def uniforms(self, count: int, first: int | None) -> Floats | None:
        """The uniform numbers (count, 1) of inputs first, first + 1, …; other forms have none."""
        if self.merging.form != "randomized":
            return None
        return uniforms(self.merging.seed, count, first)

    def keeps(self, index: Index, losses: Floats, uniforms: Floats | None = None) -> Booleans:
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
        object.__setattr__(self, "_ordered", ordered)
        object.__setattr__(self, "_ranks", inside)
        object.__setattr__(self, "_table", self._integer_table(n))

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

    def keeps(self, index: Index, losses: Floats, uniforms: Floats | None = None) -> Booleans:
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
