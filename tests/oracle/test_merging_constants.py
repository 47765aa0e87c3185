"""The merging constants a_{r,K}, checked without trusting a table.

What has to hold. For U_1..U_K uniform on (0, 1) under any dependence, F = a·M_r(U) is a p-variable
iff P(a·M_r(U) ≤ ε) ≤ ε for every ε. To break this at level ε, an adversary wants an event A of
probability ε on which M_r(U) stays as low as it can. Only the values on A matter, M_r increases in
each argument, and the smallest that U_k can be on A is U(0, ε). M_r is homogeneous, so with U_k =
ε·V_k on A

    smallest valid a  =  1 / min over couplings of V_k ~ U(0, 1) of  ess sup M_r(V_1..V_K),
    the same for every ε.

With g increasing (u^r for r > 0, log u for r = 0, -u^r for r < 0) this minimises the essential
supremum of Σ_k g(V_k). For r < 0 it is, in u^r itself, the largest essential infimum of Σ_k V_k^r.

From below, "some coupling reaches it". Put V_k on the N points 1/N, 2/N, .., 1 and rearrange: order
each column oppositely to the sum of the others, until nothing moves. Every row of the table stands
for the box of side 1/N below it, so the table is a true coupling of uniforms whose ess sup M_r is
at most the largest row. Hence 1 / largest row ≤ a_{r,K} always, and a constant that is too small is
caught.

From above, "none passes it". For t = 1/a and any d in (t, 1] let

    f(u) = min(K, max(0, g(d) - g(u)) / (g(d) - g(t))).

If M_r(v) ≤ t then mean_k f(v_k) ≥ 1: either some f(v_k) is K, or f(v_k) ≥ (g(d) - g(v_k)) / (g(d) -
g(t)) for all k, whose mean is at least 1. So under every coupling P(M_r(U) ≤ εt) ≤ mean_k E
f(U_k/ε) = ε·∫f, and a is valid as soon as ∫_0^1 f ≤ 1 for one d. The test searches d; the root
equation of the package is not used. At the ends no search is needed: from r = K - 1 on a·M_r = (Σ_k
p_k^r)^(1/r) ≥ max_k p_k, and for K = 2 and r < 1 it is 2·M_r ≥ 2·min_k p_k, which is Bonferroni's.
f grows with K, so what proves a constant for K proves it for every smaller K: the constant cannot
fall as K grows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

import agreestop as ag

Floats = NDArray[np.float64]

EXPONENTS = (
    -30.0,
    -5.0,
    -2.0,
    -1.5,
    -1.0,
    -0.75,
    -0.5,
    -0.1,
    0.0,
    0.05,
    0.2,
    0.5,
    1.0,
    1.7,
    2.0,
    4.0,
    5.0,
    9.0,
    45.0,
)
MEMBERS = (2, 3, 4, 6, 10)
PAIRS = [(r, K) for K in MEMBERS for r in EXPONENTS]
POINTS = 10_000


def increasing(u: Floats, r: float) -> Floats:
    """g(u): u^r, log u or -u^r."""
    return np.asarray(np.log(u) if r == 0 else math.copysign(1.0, r) * u**r)


def mean_of(u: Floats, r: float) -> Floats:
    """M_r of every row."""
    return np.asarray(np.exp(np.log(u).mean(axis=1)) if r == 0 else (u**r).mean(axis=1) ** (1 / r))


def rearranged(r: float, K: int, points: int, rounds: int = 60) -> Floats:
    """A coupling (points, K) of U(0, 1), each rounded up to a multiple of 1/points, that keeps the
    largest M_r of a row low.
    """
    rng = np.random.default_rng(K)
    grid = np.arange(1, points + 1) / points
    cells = increasing(grid, r)
    positions = np.stack([rng.permutation(points) for _ in range(K)])
    for _ in range(rounds):
        before = positions.copy()
        total = cells[positions].sum(axis=0)
        for k in range(K):
            others = total - cells[positions[k]]
            positions[k, np.argsort(others)] = np.arange(points - 1, -1, -1)
            total = others + cells[positions[k]]
        if (positions == before).all():
            break
    return grid[positions.T]


def reached(r: float, K: int, points: int = POINTS) -> float:
    """The constant that one coupling makes necessary: never above the smallest valid one."""
    return float(1 / mean_of(rearranged(r, K, points), r).max())


def certificate(r: float, K: int, a: float) -> float:
    """The least ∫_0^1 f over d: at most 1 proves that a is valid."""
    t = 1 / a

    def g(u: float) -> float:
        return math.log(u) if r == 0 else math.copysign(1.0, r) * u**r

    def area(u: float) -> float:
        """∫ g up to u, from any fixed start."""
        if r == 0:
            return u * math.log(u) - u if u else 0.0
        return math.copysign(1.0, r) * (math.log(u) if r == -1 else u ** (r + 1) / (r + 1))

    def integral(d: float) -> float:
        slope = g(d) - g(t)
        height = g(d) - K * slope  # g where f reaches K
        cut = math.exp(height) if r == 0 else abs(height) ** (1 / r) if height * r > 0 else 0.0
        return K * cut + ((d - cut) * g(d) - (area(d) - area(cut))) / slope

    grid = t + (1 - t) * np.linspace(0, 1, 2001)[1:]
    values = [integral(float(d)) for d in grid]
    best = int(np.argmin(values))
    low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, len(grid) - 1)])
    for _ in range(100):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        if integral(left) <= integral(right):
            high = right
        else:
            low = left
    return min(values[best], integral((low + high) / 2))


def bisect(f: Callable[[float], float], low: float, high: float) -> float:
    """The root of f between two points of opposite sign."""
    rising = f(high) > 0
    assert (f(low) > 0) != rising
    for _ in range(200):
        middle = (low + high) / 2
        if (f(middle) > 0) == rising:
            high = middle
        else:
            low = middle
    return (low + high) / 2


def harmonic(K: int) -> float:
    """(y+K)² / ((y+1)K), y² = K((y+1)ln(y+1) - y)."""
    y = bisect(lambda y: y * y - K * ((y + 1) * math.log1p(y) - y), 1e-3 * K, 1e3 * K)
    return (y + K) ** 2 / ((y + 1) * K)


def geometric(K: int) -> float:
    """(1/c)·exp(-(K-1)(1-Kc)), c = 1/(y+K), ln(y+1) = K - K²/(y+K)."""
    y = math.exp(
        bisect(lambda z: math.log1p(math.exp(z)) - K + K * K / (math.exp(z) + K), -5.0, 2.0 * K)
    )
    return (y + K) * math.exp(-(K - 1) * y / (y + K))  # 1 - Kc = y/(y+K)


@pytest.mark.parametrize(("r", "K"), PAIRS)
def test_some_coupling_reaches_the_constant_and_none_passes_it(r: float, K: int) -> None:
    constant = ag.merging_factor(r, K)
    found = reached(r, K)
    assert found <= constant * (1 + 1e-12)
    assert found >= constant * (1 - 1.2e-3)
    p = np.random.default_rng(0).random((500, K))
    if r >= K - 1:
        assert (constant * mean_of(p, r) >= p.max(axis=1) * (1 - 1e-12)).all()
    elif K == 2:
        assert (constant * mean_of(p, r) >= K * p.min(axis=1) * (1 - 1e-12)).all()
    else:
        assert certificate(r, K, constant) <= 1 + 1e-9
        # no smaller constant has this proof
        assert certificate(r, K, constant * (1 - 1e-5)) > 1 + 1e-9


@pytest.mark.parametrize(
    ("r", "K"), [(-1.0, 6), (0.0, 6), (-2.0, 6), (-0.5, 6), (0.0, 3), (-1.0, 10)]
)
def test_a_finer_coupling_comes_nearer(r: float, K: int) -> None:
    constant = ag.merging_factor(r, K)
    gaps = [constant - reached(r, K, points) for points in (300, 3000, 30_000)]
    # the gap is one cell wide
    assert all(0 <= finer < 0.15 * coarser for coarser, finer in pairwise(gaps))
    # Rounding to the middle of a cell takes its width away: three decimals.
    middles = rearranged(r, K, 30_000) - 0.5 / 30_000
    assert 1 / mean_of(middles, r).max() == pytest.approx(constant, abs=5e-4)


@pytest.mark.parametrize(
    ("r", "K"),
    [
        (-math.inf, 4),
        (-2.0, 6),
        (-1.0, 3),
        (0.0, 6),
        (0.2, 4),
        (1.0, 5),
        (3.0, 6),
        (45.0, 6),
        (math.inf, 3),
    ],
)
def test_merged_p_values_of_the_worst_coupling_break_every_smaller_constant(
    r: float, K: int
) -> None:
    level = 0.05
    p = level * rearranged(r if math.isfinite(r) else math.copysign(60.0, r), K, POINTS)
    merged = ag.merge_p_values(p, r)
    # These rows have probability `level` altogether, so they must not all be merged to well below
    # it.
    assert merged.max() > level * (1 - 1e-12)
    if math.isfinite(r):
        assert merged.max() < level * (1 + 1.2e-3)


@pytest.mark.parametrize("K", [2, 3, 7])
def test_the_minimum_costs_K_and_the_maximum_nothing(K: int) -> None:
    for table in (False, True):
        assert ag.merging_factor(-math.inf, K, table) == K
        assert ag.merging_factor(math.inf, K, table) == 1


def test_checker_catches_constants_that_are_too_small() -> None:
    for r, K in PAIRS:
        small = ag.merging_factor(r, K) * 0.99
        assert reached(r, K, 2000) > small
        if r < K - 1 and K > 2:
            assert certificate(r, K, small) > 1


@pytest.mark.parametrize(
    ("r", "K", "value"),
    [
        (-1, 3, 2.746),
        (-1, 6, 3.836),
        (-1, 10, 4.560),
        (0, 3, 2.524),
        (0, 6, 2.711),
        (0, 10, 2.718),
        (-2, 6, 4.472),
        (-0.5, 6, 3.333),
    ],
)
def test_reference_values(r: float, K: int, value: float) -> None:
    assert ag.merging_factor(r, K) == pytest.approx(value, abs=5.1e-4)


@pytest.mark.parametrize("K", [3, 4, 6, 10, 50, 200])
def test_closed_forms_of_the_harmonic_and_the_geometric_mean(K: int) -> None:
    assert ag.merging_factor(-1, K) == pytest.approx(harmonic(K), rel=1e-10)
    assert ag.merging_factor(0, K) == pytest.approx(geometric(K), rel=1e-10)


@pytest.mark.parametrize("K", [3, 4, 6, 10, 50, 200])
def test_printed_constants(K: int) -> None:
    assert ag.merging_factor(-1, K, table=True) == pytest.approx(math.e * math.log(K), rel=1e-12)
    assert ag.merging_factor(0, K, table=True) == pytest.approx(math.e, rel=1e-12)
    assert ag.merging_factor(-2, K, table=True) == pytest.approx(2 * math.sqrt(K), rel=1e-12)
    assert ag.merging_factor(-0.5, K, table=True) == pytest.approx(4, rel=1e-12)
    for r in (1 / (K - 1), 1.0, 1.5, K - 1.0):
        assert (
            ag.merging_factor(r, K, table=True)
            == ag.merging_factor(r, K)
            == pytest.approx((r + 1) ** (1 / r), rel=1e-12)
        )
    for r in (K - 1.0, K + 0.5, 300.0):
        assert (
            ag.merging_factor(r, K, table=True)
            == ag.merging_factor(r, K)
            == pytest.approx(K ** (1 / r), rel=1e-12)
        )


@pytest.mark.parametrize("K", [3, 4, 6, 10, 50])
def test_exact_constant_is_continuous_where_its_formula_changes(K: int) -> None:
    for r in (0.0, -1.0, -0.5, 1 / (K - 1), K - 1.0):
        here = ag.merging_factor(r, K)
        for step in (1e-5, 1e-8, 1e-11, 1e-14):
            for nearby in (r - step, r + step):
                assert ag.merging_factor(nearby, K) == pytest.approx(here, rel=10 * step + 1e-9)
    assert ag.merging_factor(-1e6, K) == pytest.approx(K, rel=1e-4)
    assert ag.merging_factor(1e9, K) == pytest.approx(1, rel=1e-8)


@pytest.mark.parametrize("K", [2, 3, 4, 6, 10, 50])
def test_constant_falls_as_r_grows(K: int) -> None:
    grid = np.concatenate(
        [
            [-math.inf],
            -np.geomspace(1e4, 1e-6, 200),
            [0.0],
            np.geomspace(1e-6, 1e4, 200),
            [math.inf],
        ]
    )
    values = np.array([ag.merging_factor(float(r), K) for r in grid])
    assert (np.diff(values) <= 1e-10 * values[:-1]).all()
    assert values[0] == K
    assert values[-1] == 1
    if K > 2:
        assert (np.diff(values[1:-1]) < 0).mean() > 0.95


@pytest.mark.parametrize("r", EXPONENTS)
def test_constant_grows_with_K(r: float) -> None:
    values = np.array([ag.merging_factor(r, K) for K in range(1, 40)])
    assert (np.diff(values) >= -1e-10).all()


@pytest.mark.parametrize("r", [*EXPONENTS, -math.inf, math.inf, -1.001, -0.999, -1e-7, 1e-7])
def test_printed_constant_is_never_below_the_exact_one(r: float) -> None:
    for K in range(1, 30):
        exact, printed = ag.merging_factor(r, K), ag.merging_factor(r, K, table=True)
        assert printed >= exact * (1 - 1e-12)
        if 3 <= K <= 10 and math.isfinite(r) and r < 0.5 / (K - 1):
            assert printed > exact


@pytest.mark.parametrize("r", [*EXPONENTS, -math.inf, math.inf])
def test_one_and_two_members(r: float) -> None:
    for table in (False, True):
        assert ag.merging_factor(r, 1, table) == 1
        two = ag.merging_factor(r, 2, table)
        assert two == pytest.approx(2 if r < 1 else 1 if r == math.inf else 2 ** (1 / r), rel=1e-14)
