"""A gate: the promise for each block of times at which an input first looked ready.

A marginal promise is kept on average, and early answers may pay for late ones. A gate is fixed on tuning data:

    κ_t      a threshold for log e_t, one for each block of times: the largest with a share of misses of at most share·α among the tuning
             inputs that stop in the block
    G(x)     the first checkpoint with log e_t - κ_t < slack. Its block is the input's block, and "never" is a block of its own.

A larger slack opens the gate earlier and leaves more to calibration, a smaller one separates the blocks better: for a stop at τ,
P(miss | τ ≤ t) ≤ α·P(G ≤ t)/P(τ ≤ t) at every end t of a block. Of a few shares and slacks, those of least latency on the other half of
the tuning rows are taken, among the ones whose ratio P(G ≤ t)/P(τ ≤ t) is at most (1 + blocks)/2 and at most LARGEST_RATIO there.
Without that limit a gate that is open at once for all inputs would often win, and its promise by block would be the marginal one.

Checkpoints before G(x) do not count. From there on AgreeStop, or stop-aware SpikeCP, has the threshold of the input's block, calibrated on
the examples of that block. Block and failure are fixed functions of an example, so the examples of one block are exchangeable, and
P(miss | block) ≤ α for every block.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, cast

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import Booleans, Floats, InputError, Integers, as_count, is_integer, is_number

from .checkpoints import Failures
from .checks import as_checkpoints, as_max_set_size
from .evidence import Evidence
from .levels import Target, as_target, order_statistic
from .risks import Risk, ShapedRisk, TopMass
from .rounding import Rounding, rounding_of
from .rule_files import KeptInFiles
from .score_files import ScoresLike, as_scores, at_checkpoint, labels_of
from .thresholds import in_gap
from .tuned_rows import TunedRows

SHARES, SLACKS = (0.95, 0.85, 1.05), (0.5, 0.1, 0.25, 0.75, 1.0)  # the first of each where there are too few rows to choose
MISSES, FEWEST, MOST = 6, 2, 4  # calibration examples that may miss for each block; numbers of blocks
CANDIDATES = 200  # thresholds that are tried for each block
LEAST_ROWS, ROWS_TO_CHOOSE = 20, 200  # tuning rows
LARGEST_RATIO = 2.0
REPEATS = 10  # divisions into calibration and test rows, for each latency


@dataclass(frozen=True, eq=False, repr=False)
class Gate(ShapedRisk, KeptInFiles):
    """When an input first looks ready: make one with `Gate.fit`, on tuning data.

    base     the risk
    offsets  (M,) κ at each checkpoint
    slack    the gate opens where log e_t - κ_t is below this
    ends     the last time of each block
    """

    slack: float = SLACKS[0]
    ends: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.times is None or not self.ends or list(self.ends) != sorted(set(self.ends)) or self.ends[-1] < self.times[-1]:
            raise InputError(f"ends is {self.ends}: give times in increasing order, the last one not before the last checkpoint.")
        if not (is_number(self.slack) or self.slack == np.inf):
            raise InputError(f"slack is {self.slack!r}: give a number.")

    def __repr__(self) -> str:
        return f"Gate(base={type(self.base).__name__}, ends={self.ends}, slack={self.slack:g})"

    @property
    def blocks(self) -> Integers:
        """(M,) the block of each checkpoint; an input whose gate never opens is in block len(ends)."""
        return np.searchsorted(np.array(self.ends), np.array(self.times))

    def opened(self, log_risk: Floats) -> tuple[Booleans, Integers]:
        """At which checkpoints the gate is open, (n, M), and the block of each input (n,), from shaped log-risks (n, M)."""
        return _opened(log_risk, self.slack, self.blocks, len(self.ends))

    @property
    def block_names(self) -> tuple[str, ...]:
        """The blocks in words: "ready in (0, 10]", "ready in (10, 20]", ..., "never ready"."""
        starts = (0, *self.ends[:-1])
        return (*(f"ready in ({start:g}, {end:g}]" for start, end in zip(starts, self.ends, strict=True)), "never ready")

    @staticmethod
    def count_blocks(n_calibration: int, target: Target) -> int:
        """A number of blocks for n calibration examples: from 2 to 4, with n·α/blocks at least 6 where it can be.

        Fewer examples in a block make its threshold, which is the ⌊(n_b + 1)α⌋-th smallest of n_b, needlessly safe.
        """
        allowed = as_count(n_calibration, "n_calibration") * (1 - as_target(target))
        return min(max(int(allowed / MISSES), FEWEST), MOST)

    @classmethod
    def fit(
        cls,
        scores_or_log_confidence: ScoresLike,
        labels: ArrayLike | None = None,
        times: Sequence[float] | None = None,
        *,
        target: Target,
        max_set_size: int,
        blocks: int | Sequence[float] = 4,
        risk: Risk | None = None,
    ) -> Self:
        """A gate from tuning scores, or log-confidences (n, M, K, C) with labels (n,). Calibration and test must not use these rows.

        blocks is a number of blocks, which then hold about as many tuning inputs each, or the ends of the blocks: (10, 20, 40) divides the
        times into (0, 10], (10, 20], (20, 40] and (40, T]. `Gate.count_blocks` says how many blocks suit how many calibration examples.
        risk is TopMass() where it is None.
        """
        alpha, size = float(1 - as_target(target)), as_max_set_size(max_set_size)
        data = as_scores(scores_or_log_confidence, labels, times)
        truth, known = labels_of(data), data.times
        if len(truth) < LEAST_ROWS:
            raise InputError(f"there are {len(truth)} tuning rows: a gate needs at least {LEAST_ROWS}.")
        base = TopMass() if risk is None else risk
        fitted = base.cut(known)  # the gate keeps the base as it was fitted, so that rules may cut it to their own checkpoints
        evidence = Evidence.stack([fitted.evidence(index, at_checkpoint(data, index), size) for index in range(len(known))])
        examples = Failures.of(evidence, truth, size, 0.0)
        ends = _block_ends(blocks, known, examples, alpha)
        inside = np.searchsorted(np.array(ends), np.array(known))
        share, slack = _choose(examples, inside, alpha)
        rows = TunedRows.of(data.log_confidence, data.ids)
        offsets = _offsets(examples, inside, share * alpha)
        rounding = rounding_of(fitted, Rounding.of(data.log_confidence, data.rounding))
        for block in range(len(ends)):  # the gate opens below κ + slack, which must not be a risk that many inputs share
            columns = inside == block
            offsets[columns] = in_gap(float(offsets[columns][0]) + slack, examples.opens[:, columns], rounding) - slack
        return cls(base, offsets, known, rows, slack, ends)


def _opened(log_risk: Floats, slack: float, blocks: Integers, never: int) -> tuple[Booleans, Integers]:
    opened = np.maximum.accumulate(log_risk < slack, axis=1)
    return opened, np.where(opened[:, -1], blocks[opened.argmax(axis=1)], never)


def _choose(examples: Failures, blocks: Integers, alpha: float) -> tuple[float, float]:
    """The share and the slack of least latency, for thresholds κ from one half of the rows and decisions on the other half.

    If no ratio is small enough, those of the smallest ratio.
    """
    if len(examples) < ROWS_TO_CHOOSE:
        return SHARES[0], SLACKS[0]
    half = np.random.default_rng(0).permutation(len(examples)) % 2 == 0
    largest = min(LARGEST_RATIO, (2.0 + float(blocks[-1])) / 2)
    found = []
    for share in SHARES:
        shaped = [examples.rows(rows).minus(_offsets(examples.rows(~rows), blocks, share * alpha)) for rows in (half, ~half)]
        for slack in SLACKS:
            latencies, ratios = zip(*(_measure(part, slack, blocks, alpha) for part in shaped), strict=True)
            found.append((max(max(ratios), largest), sum(latencies), share, slack))
    return min(found)[2:]


def _measure(shaped: Failures, slack: float, blocks: Integers, alpha: float) -> tuple[float, float]:
    """The mean stop index of a rule with this gate that is calibrated on half of the rows and decides on the others, and the largest ratio
    P(G ≤ t)/P(τ ≤ t) over the ends t of all blocks but the last.
    """
    never = int(blocks[-1]) + 1
    opened, block = _opened(shaped.opens, slack, blocks, never)
    shaped = shaped.at(opened)
    failures, rng, total = shaped.first(), np.random.default_rng(1), 0.0
    ready, stopped = np.zeros((2, never - 1))
    for _ in range(REPEATS):
        order = rng.permutation(len(shaped))
        calibration, test = order[: len(order) // 2], order[len(order) // 2 :]
        own = [failures[calibration[block[calibration] == one]] for one in range(never + 1)]
        thresholds = np.array([order_statistic(values, int((len(values) + 1) * alpha + 1e-9)) for values in own])
        stops = shaped.rows(test).stops(thresholds[block[test]])
        total += float(stops.mean())
        ready += (block[test, None] <= np.arange(never - 1)).mean(axis=0)
        stopped += (blocks[stops][:, None] <= np.arange(never - 1)).mean(axis=0)
    ratios = np.where(ready > 0, ready / np.maximum(stopped, 1e-9), 1.0)
    return total / REPEATS, float(ratios.max(initial=1.0))


def _block_ends(blocks: int | Sequence[float], times: tuple[float, ...], examples: Failures, alpha: float) -> tuple[float, ...]:
    """The last time of each block. T is the last of them."""
    if not is_integer(blocks):
        try:
            ends = as_checkpoints(cast(Sequence[float], blocks))
        except InputError:
            raise InputError(
                f"blocks is {blocks!r}: give a number of blocks, or their ends as increasing times such as (10, 20, 40)."
            ) from None
        if ends[-1] > times[-1] or ends[0] < times[0]:
            raise InputError(f"blocks ends at {ends[0]} to {ends[-1]}, but times run from {times[0]} to {times[-1]}: give ends among them.")
        return ends if ends[-1] == times[-1] else (*ends, times[-1])
    if as_count(blocks, "blocks") > len(times):
        raise InputError(f"blocks is {blocks}: give a number up to {len(times)}, the number of checkpoints, or the ends of the blocks.")
    threshold = order_statistic(examples.first(), int(alpha * (len(examples) + 1)))
    stops = examples.stops(np.full(len(examples), threshold))
    inner = np.quantile(stops, np.arange(1, blocks) / blocks, method="inverted_cdf").astype(int)
    return tuple(dict.fromkeys(times[index] for index in sorted({*inner.tolist(), len(times) - 1})))


def _offsets(examples: Failures, blocks: Integers, share: float) -> Floats:
    """κ (M,): in each block the largest threshold with at most this share of misses among the inputs that stop in it."""
    offsets, running = np.empty(len(blocks)), np.arange(len(examples))
    for block in range(blocks[-1] + 1):
        columns = np.flatnonzero(blocks == block)
        risk, fails = examples.opens[np.ix_(running, columns)], examples.fails[np.ix_(running, columns)]
        offsets[columns] = chosen = _largest_threshold(risk, fails, share)
        running = running[~(risk < chosen).any(axis=1)]
    return offsets


def _largest_threshold(risk: Floats, fails_above: Floats, share: float) -> float:
    """The largest of CANDIDATES thresholds with at most this share of misses; one at which nothing stops if there is none."""
    if not len(risk):
        return 0.0
    lowest = risk.min(axis=1)
    candidates = np.unique(np.quantile(lowest, np.linspace(0, 1, CANDIDATES), method="inverted_cdf"))
    for threshold in (lowest.max() + 1.0, *candidates[::-1]):
        stopped = risk < threshold
        rows = np.flatnonzero(stopped.any(axis=1))
        if len(rows) and (fails_above[rows, stopped[rows].argmax(axis=1)] < threshold).mean() <= share:
            return float(threshold)
    return float(lowest.min()) - 1.0
