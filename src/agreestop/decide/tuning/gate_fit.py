"""The numbers of a gate, from tuning rows: thresholds κ for each block of times, and the slack.

    κ_t      the largest threshold with a share of misses of at most share·α among the tuning inputs
             that stop in the block
    G(x)     the first checkpoint with log e_t - κ_t < slack

A larger slack opens the gate earlier and leaves more to calibration, a smaller one separates the
blocks better: for a stop at τ, P(miss | τ ≤ t) ≤ α·P(G ≤ t)/P(τ ≤ t) at every end t of a block.
Among a few shares and slacks, the pair of least latency on the other half of the tuning rows is
taken, if its ratio P(G ≤ t)/P(τ ≤ t) there is at most (1 + blocks)/2 and at most LARGEST_RATIO.
Without that limit a gate that is open at once for all inputs would often win, and its promise by
block would be the marginal one.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np

from agreestop.common import (
    Booleans,
    Floats,
    InputError,
    Integers,
    as_checkpoints,
    as_count,
    is_integer,
)
from agreestop.common.levels import Rounding, in_gap, order_statistic

from ..checkpoints import Failures

# The first of each are taken where there are too few rows to choose.
SHARES, SLACKS = (0.95, 0.85, 1.05), (0.5, 0.1, 0.25, 0.75, 1.0)
CANDIDATES = 200  # thresholds that are tried for each block
LEAST_ROWS, ROWS_TO_CHOOSE = 20, 200  # tuning rows
LARGEST_RATIO = 2.0
REPEATS = 10  # divisions into calibration and test rows, for each latency


def opened_at(
    log_risk: Floats, slack: float, blocks: Integers, never: int
) -> tuple[Booleans, Integers]:
    """Where a gate is open, (n, M), and the block of each input (n,)."""
    opened = np.maximum.accumulate(log_risk < slack, axis=1)
    return opened, np.where(opened[:, -1], blocks[opened.argmax(axis=1)], never)


def fit_gate(
    examples: Failures,
    times: tuple[float, ...],
    blocks: int | Sequence[float],
    alpha: float,
    rounding: Rounding,
) -> tuple[Floats, float, tuple[float, ...]]:
    """κ (M,), the slack, and the last time of each block."""
    ends = _block_ends(blocks, times, examples, alpha)
    inside = np.searchsorted(np.array(ends), np.array(times))
    share, slack = _choose(examples, inside, alpha)
    offsets = _offsets(examples, inside, share * alpha)
    for block in range(len(ends)):
        # The gate opens below κ + slack, which must not be a risk that many inputs share.
        columns = inside == block
        limit = float(offsets[columns][0]) + slack
        offsets[columns] = in_gap(limit, examples.opens[:, columns], rounding) - slack
    return offsets, slack, ends


def _choose(examples: Failures, blocks: Integers, alpha: float) -> tuple[float, float]:
    """The share and the slack of least latency.

    Thresholds κ come from one half of the rows, and decisions are made on the other half. If no
    ratio is small enough, the pair of the smallest ratio is taken.
    """
    if len(examples) < ROWS_TO_CHOOSE:
        return SHARES[0], SLACKS[0]
    half = np.random.default_rng(0).permutation(len(examples)) % 2 == 0
    largest = min(LARGEST_RATIO, (2.0 + float(blocks[-1])) / 2)
    found = []
    for share in SHARES:
        shaped = []
        for rows in (half, ~half):
            offsets = _offsets(examples.rows(~rows), blocks, share * alpha)
            shaped.append(examples.rows(rows).minus(offsets))
        for slack in SLACKS:
            measured = (_measure(part, slack, blocks, alpha) for part in shaped)
            latencies, ratios = zip(*measured, strict=True)
            found.append((max(max(ratios), largest), sum(latencies), share, slack))
    return min(found)[2:]


def _measure(shaped: Failures, slack: float, blocks: Integers, alpha: float) -> tuple[float, float]:
    """The mean stop index of a rule with this gate, and the largest ratio P(G ≤ t)/P(τ ≤ t).

    The rule is calibrated on half of the rows and decides on the others. t runs over the ends of
    all blocks but the last.
    """
    never = int(blocks[-1]) + 1
    opened, block = opened_at(shaped.opens, slack, blocks, never)
    shaped = shaped.at(opened)
    failures, rng, total = shaped.first(), np.random.default_rng(1), 0.0
    ready, stopped = np.zeros((2, never - 1))
    for _ in range(REPEATS):
        order = rng.permutation(len(shaped))
        calibration, test = order[: len(order) // 2], order[len(order) // 2 :]
        own = [failures[calibration[block[calibration] == one]] for one in range(never + 1)]
        ranks = [int((len(values) + 1) * alpha + 1e-9) for values in own]
        thresholds = np.array([order_statistic(*pair) for pair in zip(own, ranks, strict=True)])
        stops = shaped.rows(test).stops(thresholds[block[test]])
        total += float(stops.mean())
        ready += (block[test, None] <= np.arange(never - 1)).mean(axis=0)
        stopped += (blocks[stops][:, None] <= np.arange(never - 1)).mean(axis=0)
    ratios = np.where(ready > 0, ready / np.maximum(stopped, 1e-9), 1.0)
    return total / REPEATS, float(ratios.max(initial=1.0))


def _block_ends(
    blocks: int | Sequence[float], times: tuple[float, ...], examples: Failures, alpha: float
) -> tuple[float, ...]:
    """The last time of each block. T is the last of them."""
    if not is_integer(blocks):
        try:
            ends = as_checkpoints(cast(Sequence[float], blocks))
        except InputError:
            raise InputError(
                f"blocks is {blocks!r:.80}: give a number of blocks, or their ends as increasing "
                "times such as (10, 20)."
            ) from None
        if ends[-1] > times[-1] or ends[0] < times[0]:
            raise InputError(
                f"blocks ends at {ends[0]} to {ends[-1]}, but times run from {times[0]} to "
                f"{times[-1]}: give ends among them."
            )
        return ends if ends[-1] == times[-1] else (*ends, times[-1])
    if as_count(blocks, "blocks") > len(times):
        raise InputError(
            f"blocks is {blocks}: give a number up to {len(times)}, the number of checkpoints, or "
            "the ends of the blocks."
        )
    threshold = order_statistic(examples.first(), int(alpha * (len(examples) + 1)))
    stops = examples.stops(np.full(len(examples), threshold))
    shares = np.arange(1, blocks) / blocks
    inner = np.quantile(stops, shares, method="inverted_cdf").astype(int)
    indices = sorted({*inner.tolist(), len(times) - 1})
    return tuple(dict.fromkeys(times[index] for index in indices))


def _offsets(examples: Failures, blocks: Integers, share: float) -> Floats:
    """κ (M,): in each block the largest threshold with at most this share of misses in it."""
    offsets, running = np.empty(len(blocks)), np.arange(len(examples))
    for block in range(blocks[-1] + 1):
        columns = np.flatnonzero(blocks == block)
        chosen = np.ix_(running, columns)
        risk = examples.opens[chosen]
        limit = _largest_threshold(risk, examples.fails[chosen], share)
        offsets[columns] = limit
        running = running[~(risk < limit).any(axis=1)]
    return offsets


def _largest_threshold(risk: Floats, fails: Floats, share: float) -> float:
    """The largest of CANDIDATES thresholds with at most this share of misses.

    If there is none, a threshold at which nothing stops.
    """
    if not len(risk):
        return 0.0
    lowest = risk.min(axis=1)
    shares = np.linspace(0, 1, CANDIDATES)
    candidates = np.unique(np.quantile(lowest, shares, method="inverted_cdf"))
    for threshold in (lowest.max() + 1.0, *candidates[::-1]):
        stopped = risk < threshold
        rows = np.flatnonzero(stopped.any(axis=1))
        if not len(rows):
            continue
        missed = fails[rows, stopped[rows].argmax(axis=1)] < threshold
        if missed.mean() <= share:
            return float(threshold)
    return float(lowest.min()) - 1.0
