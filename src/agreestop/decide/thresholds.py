"""W to thresholds: ranks, weights, people, losses, and gaps between the numbers compared with λ.

Small thresholds are safe: a miss at λ implies W < λ. With α = 1 - target:

    rows        λ = the k-th smallest W, k = ⌊(n+1)α⌋, or the k of a promise with δ
    weights     λ = sup{ λ : Σ_{W_i < λ} w_i + w_max ≤ α·(Σ_i w_i + w_max) }
    people      the same with w_i = 1/N_j for the N_j rows of person j, and w_max = 1
    for people  w_j = the (⌊αN_j⌋ + 1)-th smallest W of person j (∞ if there are fewer rows),
                λ = the ⌊(K+1)β⌋-th smallest of the K numbers w_j
    losses      λ = sup{ λ : (Σ_i L_i(λ) + B) / (n + 1) ≤ max_loss },   L_i(λ) = the largest loss of
                example i at any threshold up to λ, B the largest loss there can be

Weights hold under a covariate shift with known w = dQ/dP ≤ w_max: the same with the new input's
weight in place of w_max is the threshold of weighted exchangeability on all n + 1, and the left
side less the right one grows with that weight. People promise P(miss) ≤ α for a row of a new person
(hierarchical conformal prediction), or that at most a share β of new people see more than a share
α of misses. Losses are conformal risk control; with a loss of 1 for a miss it is the first line.

**Gaps.** A miss at λ' ≤ λ gives W < λ' ≤ λ, so every smaller threshold keeps the promise too. A
threshold that many inputs share a number with would put all of them on the other side in float32,
in another batch or on another machine. So thresholds come from W_η, which allows for rounding up
to η (see `checkpoints`), and move down into the first gap (b, a) wider than 2η between the numbers
that calibration rows compare with λ:

    λ = a - min((a - b)/2, reach)     a within reach of the k-th smallest W_η; if no gap is, λ - η
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import Booleans, Floats, InputError, Integers, KeptInFiles, as_floats
from agreestop.common.levels import (
    REACH,
    Rounding,
    Target,
    apart,
    as_exact,
    in_gap,
    order_statistic,
    quantile_rank,
)

from .answer_kinds import Answer, BestClasses, NestedSets, NodeOfTree
from .checkpoints import (
    Conditions,
    Evidence,
    Index,
    LabelledEvidence,
    Policy,
    State,
    Verdict,
    uniforms,
)
from .rule_files import reads_old

TIES = 0.02  # width of the random numbers that break ties: 2 % of a risk, as risks are logarithms
ORDINARY = 8.0  # the size of a log-risk that breaking ties allows for
OF_A_DEPTH = ("W", "rounded", "lowest", "highest")
"""What calibration needs of an example for one depth."""
LARGEST_SUM = 2**62  # sums of whole numbers stay inside 64 bits

Allowed = Callable[[Integers], float]
"""The largest safe threshold from some rows."""


def allowed_threshold(
    failures: Floats,
    conditions: Conditions,
    rows: Integers,
    target: Fraction,
    delta: Fraction | None,
) -> float:
    """The largest safe threshold from the W (n,) of some rows."""
    chosen = failures[rows]
    if conditions.weights is not None and conditions.max_weight is not None:
        weights = [Fraction(weight) for weight in conditions.weights[rows].tolist()]
        return weighted_threshold(chosen, weights, Fraction(conditions.max_weight), 1 - target)
    if conditions.people is None:
        rank = quantile_rank(len(rows), target, delta)
        return order_statistic(chosen, len(rows) + 1 - rank)
    _, person, counts = np.unique(conditions.people[rows], return_inverse=True, return_counts=True)
    if conditions.for_people is None:
        shares = [Fraction(1, int(count)) for count in counts]
        weights = [shares[one] for one in person.tolist()]
        return weighted_threshold(chosen, weights, Fraction(1), 1 - target)
    own = [chosen[person == one] for one in range(len(counts))]
    worst = [order_statistic(W, math.floor((1 - target) * len(W)) + 1) for W in own]
    rank = math.floor((len(worst) + 1) * (1 - conditions.for_people))
    return order_statistic(np.array(worst), rank)


def useful_range(reduced: dict[str, NDArray[Any]]) -> tuple[float, float] | None:
    """The smallest W, or the smallest risk if nothing fails, and the largest risk.

    Thresholds beyond them change nothing.
    """
    failing = reduced["W"][np.isfinite(reduced["W"])]
    lowest, highest = reduced["lowest"].min(initial=np.inf), reduced["highest"].max(initial=-np.inf)
    if not lowest <= highest:
        return None
    return float(failing.min() if len(failing) else lowest), float(highest)


def weighted_threshold(
    failures: Floats, weights: Sequence[Fraction], max_weight: Fraction, alpha: Fraction
) -> float:
    """sup{ λ : Σ_{W_i < λ} w_i + w_max ≤ α·(Σ w_i + w_max) }, or -∞. Sums are exact."""
    scale = math.lcm(max_weight.denominator, *(weight.denominator for weight in set(weights)))
    whole = [int(weight * scale) for weight in weights]
    largest = max_weight * scale
    allowed = alpha * (sum(whole) + largest) - largest
    return crossing(failures, whole, allowed)


def crossing(levels: Floats, weights: Sequence[Fraction | int], allowed: Fraction) -> float:
    """The largest λ for which the weights of all levels below λ are at most `allowed`, or -∞."""
    if allowed < 0:
        return -math.inf
    order = np.argsort(levels, kind="stable")
    sums = itertools.accumulate(weights[row] for row in order.tolist())
    for level, below in zip(levels[order].tolist(), sums, strict=True):
        if below > allowed:
            return float(level)
    return math.inf


def spread_of(numbers: Floats) -> float:
    """The distance of the quartiles, which says what is near among numbers of any scale."""
    low, high = np.quantile(numbers, (0.25, 0.75))
    return float(high - low)


def tie_width(rounding: Rounding) -> float:
    """The width of the interval of random numbers that break ties: far above the rounding.

    It does not depend on the examples, since a new input would then not be exchangeable with them.
    """
    return max(TIES, 32 * rounding.largest(-ORDINARY))


def with_broken_ties(
    reduced: dict[str, NDArray[Any]], width: float, seed: int
) -> dict[str, NDArray[Any]]:
    """Every number that is compared with λ moved up by a random number of its example.

    A new input is compared with λ - u, so a miss implies W + u < λ, and W_i + u_i are exchangeable.
    """
    moved = dict(reduced)
    u = width * np.random.default_rng([seed, 2]).random(len(reduced["numbers"]))
    for name in ("W", "rounded", "lowest", "highest", "numbers", "breaks", "rounded_breaks"):
        if name in reduced:
            moved[name] = reduced[name] + u.reshape(-1, *(1,) * (reduced[name].ndim - 1))
    return moved


@dataclass(frozen=True, eq=False)
class LossSteps:
    """Losses of n examples as λ grows: L_i rises by `rises` at `breaks`, both (n, steps).

    Losses are whole numbers of which `scale` make 1; `largest` is B.
    """

    breaks: Floats
    rises: Integers
    scale: Fraction
    largest: int

    @classmethod
    def of(cls, breaks: Floats, losses: Integers, scale: Fraction, largest: int) -> Self:
        """From the loss (n, steps) above each threshold."""
        if largest * (len(losses) + 1) >= LARGEST_SUM:
            raise InputError(
                "loss holds numbers with too many digits to be added exactly: round them."
            )
        order = np.argsort(breaks, axis=1, kind="stable")
        breaks = np.take_along_axis(breaks, order, axis=1)
        losses = np.take_along_axis(losses, order, axis=1)
        rises = np.diff(np.maximum.accumulate(losses, axis=1), axis=1, prepend=0)
        return cls(breaks, rises, scale, largest)

    def threshold(self, rows: Integers, max_loss: Fraction) -> float:
        """λ from some of the examples."""
        allowed = max_loss * (len(rows) + 1) * self.scale - self.largest
        if allowed < 0:
            return -math.inf
        where = self.breaks[rows].ravel()
        together = np.argsort(where, kind="stable")
        sums = np.cumsum(self.rises[rows].ravel()[together])
        too_many = np.flatnonzero(sums > math.floor(allowed))
        return float(where[together][too_many[0]]) if len(too_many) else math.inf


@dataclass(frozen=True, eq=False)
class OneThreshold(Policy, KeptInFiles):
    """An answer behind thresholds: one, or one for each group and block, (G, B).

    An input has the smallest threshold of its groups. An input without a known group never stops
    early and answers what -∞ answers. With a gate, checkpoints do not count before it opens, where
    log e_t < slack. `blocks` (M,) is the block of an input whose gate opens at a checkpoint; inputs
    whose gate never opens are in the last block, B - 1. With `by_checkpoint` there is one threshold
    for each checkpoint, (1, M). `reach` are the safest and the boldest threshold that were of any
    use for the calibration examples. An input decides with λ - u, u uniform on [0, width). One that
    does not stop where its risk is above the `ceilings` (M,) is given up there, without an answer.
    """

    answer: Answer
    values: Floats
    order_statistics: Floats | None = None
    group_names: tuple[str, ...] | None = None
    blocks: Integers | None = None
    slack: float = 0.0
    by_checkpoint: bool = False
    reach: tuple[float, ...] | None = None
    width: float = 0.0
    seed: int = 0
    ceilings: Floats | None = None

    def __post_init__(self) -> None:
        groups = 1 if self.group_names is None else len(self.group_names)
        if self.values.ndim != 2 or len(self.values) != groups or not self.values.shape[1]:
            raise ValueError(f"thresholds of shape {self.values.shape} for {groups} groups")
        count = self.values.shape[1]
        if self.blocks is not None and not ((self.blocks >= 0) & (self.blocks < count)).all():
            raise ValueError(f"a block outside the {count} that have thresholds")

    @property
    def is_single(self) -> bool:
        """Whether one threshold decides for all inputs at all checkpoints."""
        return self.group_names is None and self.blocks is None and not self.by_checkpoint

    @property
    def one_order_statistic(self) -> bool:
        return self.is_single

    @property
    def thresholds(self) -> Floats:
        return self._shown(self.values)

    @property
    def kth_values(self) -> Floats | None:
        return None if self.order_statistics is None else self._shown(self.order_statistics)

    def _shown(self, values: Floats) -> Floats:
        """(G, B) numbers in the scale of users, without the axes that the rule does not have."""
        shown = self.answer.shown(values)
        if self.group_names is None:
            return shown[0]
        return shown[:, 0] if self.blocks is None else shown

    @property
    def never_opens(self) -> bool:
        """Whether no checkpoint before the last can open."""
        divided = self.blocks is not None or self.by_checkpoint
        early = self.values[:, :-1] if divided else self.values
        return bool((early == -np.inf).all())

    def never_stops(self, needed: int | None) -> bool:
        return self.never_opens

    @property
    def meaning(self) -> str:
        return self.answer.meaning

    def kept(self, values: Floats) -> Booleans:
        return self.answer.kept(values, float(self.values[0, 0]))

    @property
    def movable_range(self) -> tuple[float, float] | None:
        known = self.reach is not None and len(self.reach) == 2 and np.isfinite(self.reach).all()
        if not known or not self.is_single or self.reach is None:
            return None
        return self.reach[0], self.reach[1]

    def moved(self, threshold: float) -> Policy:
        return replace(self, values=np.array([[threshold]]))

    def inner(self, thresholds: Floats) -> Floats:
        return self.answer.shown(thresholds)

    def check_blocks(self, count: int) -> None:
        divided = (self.blocks is None) == (count > 0)
        if not self.by_checkpoint and (divided or self.values.shape[1] != max(count, 1)):
            raise ValueError("blocks that the rule does not have")
        names, kth = self.group_names or (), self.order_statistics
        if len(set(names)) < len(names):
            raise ValueError("a group that occurs twice")
        if kth is not None and (kth.shape != self.values.shape or np.isnan(kth).any()):
            raise ValueError("order statistics that do not belong to the thresholds")

    def start(self, count: int, classes: int, first: int | None) -> State:
        if self.by_checkpoint or (self.is_single and not self.width):
            return State(count)
        if self.group_names is None:
            limits = np.broadcast_to(self.values[0], (count, self.values.shape[1]))
            return self._start(limits, first)
        return self.start_in(np.zeros((count, len(self.group_names)), dtype=bool), first)

    def start_in(self, groups: Booleans, first: int | None = None) -> State:
        """The state of inputs that belong to these groups, (count, G)."""
        limits = np.where(groups[:, :, None], self.values, np.inf).min(axis=1)
        limits[~groups.any(axis=1)] = -np.inf
        return self._start(limits, first)

    def _start(self, limits: Floats, first: int | None) -> State:
        count, u = len(limits), None
        if self.width:
            # Calibration examples have another sequence, see `with_broken_ties`.
            u = self.width * uniforms((self.seed, 1), count, first)
            limits = limits - u
        block = np.full(count, 0 if self.blocks is None else -1)
        return State(count, uniforms=u, limits=limits, block=block)

    def judge(
        self, index: Index, last: bool | Booleans, evidence: Evidence, state: State
    ) -> Verdict:
        verdict = self._judge(index, last, evidence, state)
        if self.ceilings is None:
            return verdict
        given_up = ~verdict.stop & (evidence.risk > self.ceilings[index])
        state = verdict.state
        if self.blocks is not None and state.block is not None:
            never = given_up & (state.block < 0)
            state = replace(state, block=np.where(never, self.values.shape[1] - 1, state.block))
        return Verdict(verdict.stop | given_up, verdict.sets, state)

    def _judge(
        self, index: Index, last: bool | Booleans, evidence: Evidence, state: State
    ) -> Verdict:
        if state.limits is None:
            limit = self.values[0, 0]
            if self.by_checkpoint:
                limit = np.broadcast_to(self.values[0, index], len(evidence))
            return self.answer.judge(limit, last, evidence, state)
        limits = state.limits
        assert state.block is not None
        if self.blocks is None:
            return self.answer.judge(limits[:, 0], last, evidence, state)
        block, closed = state.block, state.block < 0
        if np.count_nonzero(closed):
            opens = closed & (evidence.risk < self.slack)
            closed = closed & ~opens
            if last is not False or np.count_nonzero(opens):
                block = np.where(opens, self.blocks[index], block)
                block = np.where(closed & last, self.values.shape[1] - 1, block)
                state = replace(state, block=block)
            evidence = self.answer.closed(evidence, closed, last)
        limits = limits[np.arange(len(block)), block]
        return self.answer.judge(limits, last, evidence, state)

    def stopping(self, evidence: Evidence) -> Booleans | None:
        if not self.is_single or self.width:
            return None
        stops = self.answer.stopping(self.values[0, 0], evidence)
        return stops if self.ceilings is None else stops | (evidence.risk > self.ceilings)


@dataclass(frozen=True, eq=False)
class EachDepth(Policy, KeptInFiles):
    """A threshold, or one for each group, of its own for each depth of a tree, from depth 1 on.

    An input stops when it has an answer at every depth. The set of the stop is the answer at the
    deepest; the first answers of all depths are in the state. They are judged apart, because a
    coarse answer that follows from a finer one would break the promise of the coarse depth.
    """

    depths: tuple[OneThreshold, ...]

    def __post_init__(self) -> None:
        if not self.depths or not all(isinstance(one.answer, NodeOfTree) for one in self.depths):
            raise ValueError("thresholds that do not belong to the depths of a tree")

    @property
    def thresholds(self) -> Floats:
        """(D,), or (G, D) with groups."""
        return self._together([one.thresholds for one in self.depths])

    @property
    def kth_values(self) -> Floats | None:
        known = [one.kth_values for one in self.depths]
        return self._together([one for one in known if one is not None])

    def _together(self, parts: Sequence[Floats]) -> Floats:
        return np.concatenate(parts) if self.group_names is None else np.stack(parts, axis=1)

    @property
    def group_names(self) -> tuple[str, ...] | None:
        return self.depths[-1].group_names

    @property
    def one_order_statistic(self) -> bool:
        return self.depths[-1].one_order_statistic

    @property
    def meaning(self) -> str:
        return self.depths[-1].meaning

    def never_stops(self, needed: int | None) -> bool:
        return all(one.never_stops(needed) for one in self.depths)

    def start(self, count: int, classes: int, first: int | None) -> State:
        limits = []
        for one in self.depths:
            own = one.start(count, classes, first).limits
            limits.append(np.full(count, one.values[0, 0]) if own is None else own[:, 0])
        return self._start(limits, classes)

    def start_in(self, groups: Booleans, first: int | None = None) -> State:
        limits = [one.start_in(groups, first).limits for one in self.depths]
        classes = self._answers[-1].nodes.shape[1]
        return self._start([own[:, 0] for own in limits if own is not None], classes)

    def _start(self, limits: Sequence[Floats], classes: int) -> State:
        shape = len(limits[0]), len(limits)
        answers = np.full(shape, -1), np.zeros((*shape, classes), dtype=bool)
        return State(
            shape[0], limits=np.stack(limits, 1), depth_index=answers[0], depth_sets=answers[1]
        )

    @property
    def _answers(self) -> tuple[NodeOfTree, ...]:
        return tuple(one.answer for one in self.depths if isinstance(one.answer, NodeOfTree))

    def judge(
        self, index: Index, last: bool | Booleans, evidence: Evidence, state: State
    ) -> Verdict:
        assert state.limits is not None
        assert state.depth_index is not None and state.depth_sets is not None
        found, sets = state.depth_index.copy(), state.depth_sets.copy()
        for depth, answer in enumerate(self._answers):
            own = answer.at_own_depth(evidence)
            verdict = answer.judge(state.limits[:, depth], last, own, state)
            new = verdict.stop & (found[:, depth] < 0)
            found[new, depth] = index if isinstance(index, int) else index[new]
            sets[new, depth] = verdict.sets[new]
        answered = replace(state, depth_index=found, depth_sets=sets)
        return Verdict(np.asarray((found >= 0).all(axis=1)), sets[:, -1], answered)


def refuse_never(policy: OneThreshold, reason: str = "") -> None:
    """Refuse λ = -∞ where an input that nothing stopped may be answered wrongly."""
    if (policy.values == -np.inf).any():
        raise InputError(
            "with these examples nothing may stop, and an input that nothing stops may be wrong, "
            f"so nothing can be promised{reason}: give more examples, or a lower target; some "
            'rules take at_end="abstain", or labels="final".'
        )


def allowed_by_failures(
    reduced: dict[str, NDArray[Any]],
    examples: LabelledEvidence,
    target: Fraction,
    delta: Fraction | None = None,
) -> list[Allowed]:
    """The thresholds that some rows allow, from W and from W_η."""
    known = examples.conditions
    return [
        partial(allowed_threshold, reduced[name], known, target=target, delta=delta)
        for name in ("W", "rounded")
    ]


def fit_thresholds(
    answer: Answer,
    reduced: dict[str, NDArray[Any]],
    examples: LabelledEvidence,
    rounding: Rounding,
    allowed: Sequence[Allowed],
    class_conditional: bool = False,
    gate: Any = None,
    refine: Callable[[float, Integers], float] | None = None,
    reach: float = REACH,
) -> OneThreshold:
    """An answer behind the thresholds that the rows of each group and block allow.

    allowed: the thresholds that some rows allow, from W and from W_η. In `reduced`, numbers
    (n, ...) are all that are compared with a threshold, and with a gate blocks (n,) are the blocks
    of the examples. With class_conditional a threshold is the least over the classes. `refine` may
    replace a threshold by a safer one, given the rows of the group and block.
    """
    (exact, rounded), numbers = allowed, reduced["numbers"]
    blocks, slack, inside = None, 0.0, np.ones((len(examples), 1), dtype=bool)
    if gate is not None:
        blocks, slack = gate.blocks, gate.slack
        inside = reduced["blocks"][:, None] == np.arange(len(gate.ends) + 1)
    cells = examples.cells(class_conditional)

    def least(allowed: Allowed, rows: Booleans) -> float:
        return min(allowed(cell[rows[cell]]) for cell in cells)

    def safe(rows: Booleans, compared: Floats) -> float:
        value = least(rounded, rows)
        if refine is not None and rows.any():
            value = refine(value, np.flatnonzero(rows))
        return in_gap(value, compared, rounding, reach)

    values, kth = [], []
    for group in examples.groups.T:
        compared = (numbers if group.all() else numbers[group]).ravel()
        each = [group & block for block in inside.T]
        values.append([safe(rows, compared) for rows in each])
        kth.append([least(exact, rows) for rows in each])
    names = examples.conditions.group_names
    known = useful_range(reduced) if "W" in reduced else None
    return OneThreshold(answer, np.array(values), np.array(kth), names, blocks, slack, reach=known)


def _read_one(
    answer: Answer,
    threshold: float,
    reach: tuple[float, ...] | None = None,
    kth_values: Floats | None = None,
) -> OneThreshold:
    """Older formats keep one threshold in the scale that users see."""
    kth = None if kth_values is None else answer.shown(kth_values.reshape(1, 1))
    ends = None if reach is None else tuple(answer.shown(np.array(reach)).tolist())
    return OneThreshold(answer, answer.shown(np.array([[float(threshold)]])), kth, reach=ends)


@reads_old("RiskThreshold")
def _read_risk_threshold(
    max_set_size: int, fill: bool, log_trim: float = 0.0, final: bool = False, **known: Any
) -> OneThreshold:
    trim = -math.inf if fill else float(log_trim)
    return _read_one(BestClasses(max_set_size, trim, final), **known)


@reads_old("StoppingThreshold")
def _read_stopping_threshold(max_set_size: int, final: bool = False, **known: Any) -> OneThreshold:
    return _read_one(NestedSets(max_set_size, final), **known)


@reads_old("CheckpointRisks")
def _read_checkpoint_risks(
    base: OneThreshold, thresholds: Floats, kth_values: Floats | None = None
) -> OneThreshold:
    kth = None if kth_values is None else kth_values[None]
    return OneThreshold(base.answer, thresholds[None], kth, by_checkpoint=True)


@reads_old("ConditionalThresholds")
def _read_conditional_thresholds(
    base: OneThreshold,
    thresholds: Floats,
    group_names: tuple[str, ...] | None = None,
    blocks: Integers | None = None,
    slack: float = 0.0,
    kth_values: Floats | None = None,
) -> OneThreshold:
    shown = base.answer.shown
    kth = None if kth_values is None else shown(kth_values)
    return OneThreshold(base.answer, shown(thresholds), kth, group_names, blocks, float(slack))


def as_loss(loss: ArrayLike) -> Floats:
    """A cost matrix (C, C): cost[y, d] of answering d where y is true; 0 on the diagonal."""
    array = as_floats(loss, "loss")
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        raise InputError(
            f"loss has shape {array.shape}: give one row for each true class and one column for "
            "each answered class."
        )
    if not (np.isfinite(array).all() and (array >= 0).all()):
        raise InputError(
            "loss holds a negative, infinite or missing number: give costs of at least 0."
        )
    if np.diagonal(array).any():
        raise InputError(
            "loss has a cost for the right answer, so that even an answer of all classes costs: "
            "give a diagonal of zeros."
        )
    if not array.any():
        raise InputError("loss holds only zeros: give the cost of at least one wrong answer.")
    return array.copy()


def as_max_loss(max_loss: Target, loss: Floats) -> Fraction:
    """The mean cost to promise, exactly as written; it must be less than the largest cost."""
    value = as_exact(max_loss, "max_loss", "the mean cost to promise, for example 0.05")
    if not 0 < value < Fraction(str(float(loss.max()))):
        raise InputError(
            f"max_loss is {max_loss!r:.80}: it must lie between 0 and the largest cost, "
            f"{loss.max():g}."
        )
    return value


def check_costs(loss: Floats, examples: LabelledEvidence) -> None:
    """Refuse a matrix for other classes, and conditions without a proof."""
    if len(loss) != examples.classes:
        raise InputError(
            f"loss is for {len(loss)} classes and there are {examples.classes}: give a row and a "
            "column for each."
        )
    if examples.conditions.weights is not None or examples.conditions.people is not None:
        used = examples.conditions.used
        raise InputError(
            f"a promise about loss with {used} is not offered: leave out {used}, or give a target."
        )


def reduce_costs(
    loss: Floats, answer: BestClasses, evidence: Evidence, labels: Integers, rounding: Rounding
) -> dict[str, Any]:
    """The costs (n, steps) above each threshold of `breaks`, exactly and with rounding."""
    plain, costs = answer.costs(evidence, labels, loss, None)
    breaks, worst = answer.costs(evidence, labels, loss, rounding)
    # Where numbers lie apart, a run costs what this one does at a λ within η.
    clear = apart(answer.cost_numbers(evidence), rounding)[:, None]
    breaks = np.where(clear, plain - rounding.at_most(plain), breaks)
    worst = np.where(clear, costs, worst)
    return {"breaks": plain, "costs": costs, "rounded_breaks": breaks, "rounded_costs": worst}


def allowed_by_costs(
    reduced: dict[str, NDArray[Any]], loss: Floats, max_loss: Fraction
) -> list[Allowed]:
    """The thresholds that some rows allow, from the costs exactly and with rounding."""
    exact = {cost: Fraction(str(cost)) for cost in np.unique(loss).tolist()}
    scale = math.lcm(*(cost.denominator for cost in exact.values()))
    whole = np.array([int(cost * scale) for cost in exact.values()])
    allowed: list[Allowed] = []
    for name in ("", "rounded_"):
        costs = whole[np.searchsorted(np.array(list(exact)), reduced[f"{name}costs"])]
        steps = LossSteps.of(reduced[f"{name}breaks"], costs, Fraction(scale), int(whole.max()))
        allowed.append(partial(steps.threshold, max_loss=max_loss))
    return allowed
