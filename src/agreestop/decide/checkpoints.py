"""Two numbers a checkpoint, and W: where an example first fails, as a function of the threshold λ.

Small λ is safe.

    opens_t     the rule stops at checkpoint t iff opens_t < λ ≤ closes_t, unless it did before
    fails_t     an answer at t misses the label for λ > fails_t
    fails_end   an input that nothing stopped misses it for λ > fails_end

    W = inf{ λ : the answer at λ misses }          a miss at λ implies W < λ

closes_t is ∞ in most families. Then the rule stops at t for λ in (R_t, R_{t-1}], where
R_t = min(opens_1 … opens_t), so

    W = min{ max(opens_t, fails_t) : it is < R_{t-1} }, and fails_end if it is < R_M.

Another run of the same input may move every number by up to η (see `common.levels`). W_η is below
every λ at which some such run misses: what can open may open from opens_t - η on, what surely opens
does so above opens_t + η, and fails_t may be as low as fails_t - η.

`Evidence` is what a rule reads off an input at a checkpoint, `State` what is remembered of inputs
that still run, and `Policy.judge` turns both into a `Verdict`. Batches, streams and engines share
it, so they cannot disagree.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import (
    Booleans,
    Floats,
    InputError,
    Integers,
    as_floats,
    as_people,
    find_groups,
    is_number,
    join_parts,
    name_groups,
)
from agreestop.common.levels import Rounding, Target, apart, as_target, in_words, same_number

Row = TypeVar("Row")
Found = TypeVar("Found")
Index: TypeAlias = int | Integers
"""The checkpoint of a whole batch, or one checkpoint for each of its inputs, (b,)."""


@dataclass(frozen=True, eq=False, slots=True)
class Evidence:
    """What a rule reads off b inputs at a checkpoint, or off n inputs at all M checkpoints.

    In the second case the second axis is the checkpoint.

    values    (b, C) for each class, or (b, K, C) for each member and class
    log_risk  (b,) log e, the risk that the best classes miss; None for rules that estimate no risk
    """

    values: Floats
    log_risk: Floats | None = None

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> Self:
        """Some inputs, or with two indices some inputs at some checkpoints."""
        return type(self)(self.values[key], None if self.log_risk is None else self.log_risk[key])

    @property
    def risk(self) -> Floats:
        """log_risk, for rules that have one."""
        assert self.log_risk is not None
        return self.log_risk

    @property
    def level(self) -> Floats:
        """One number for each input (b,): the log-risk, or without one the least score."""
        if self.log_risk is None:
            return self.values.min(axis=tuple(range(1, self.values.ndim)))
        return self.log_risk

    def minus(self, offsets: float | Floats) -> Self:
        """Subtract an offset from all parts: one number, or one for each input or checkpoint.

        An offset of -∞ makes all parts ∞, so that nothing stops there.
        """
        risk = self.log_risk
        if np.ndim(offsets) == 0 and offsets > -np.inf:  # by far the most frequent case
            return type(self)(self.values - offsets, None if risk is None else risk - offsets)
        finite = np.where(np.isneginf(offsets), 0.0, offsets)
        lift = np.where(np.isneginf(offsets), np.inf, 0.0)
        values = self.values - finite[..., None] + lift[..., None]
        return type(self)(
            values, None if risk is None else np.where(lift > 0, np.inf, risk - finite)
        )

    @classmethod
    def stack(cls, parts: Sequence[Self]) -> Self:
        """The evidence of one checkpoint after another, as (n, M, ...)."""
        return join_parts([part[:, None] for part in parts], 1)


NO_EVIDENCE = Evidence(np.empty((0, 0, 0)))
"""Of examples of which only what `reduce` found is needed."""


@dataclass(frozen=True, eq=False, slots=True)
class State:
    """What a policy remembers of `count` inputs. Most policies remember nothing.

    largest     (count, C) the largest score of each class so far, for simultaneous calibration
    uniforms    (count, 1) the uniform number of each input, for randomised merging
    limits      (count, B) the threshold of each input for each block, with groups or a gate
    block       (count,) the block of each input; -1 before its gate opens
    first_risk  (count,) the log-risk, or the least score, at the first checkpoint
    interval    (count, 2) the interval around the number that is answered now
    depth_index, depth_sets
                (count, D) and (count, D, C) the checkpoint of the first answer at each depth of a
                tree, -1 before it, and that answer
    """

    count: int
    largest: Floats | None = None
    uniforms: Floats | None = None
    limits: Floats | None = None
    block: Integers | None = None
    first_risk: Floats | None = None
    interval: Floats | None = None
    depth_index: Integers | None = None
    depth_sets: Booleans | None = None

    def __len__(self) -> int:
        return self.count

    @property
    def depths(self) -> int:
        """D, the number of depths of a tree with an answer each; 0 where there is one answer."""
        return 0 if self.depth_index is None else self.depth_index.shape[1]

    def rows(self, rows: Booleans | Integers) -> Self:
        """The state of some of the inputs, by a mask or by their positions."""
        count = int(np.count_nonzero(rows)) if rows.dtype == np.bool_ else len(rows)
        return type(self)(count, *(None if part is None else part[rows] for part in self._parts))

    def overwrite(self, rows: Integers, other: Self) -> Self:
        """Replace some rows in place. The state must own its arrays."""
        parts = list(self._parts)
        for index, new in enumerate(other._parts):
            if new is None:
                continue
            own = parts[index]
            if own is None:
                own = parts[index] = np.full((self.count, *new.shape[1:]), np.nan, new.dtype)
            own[rows] = new
        return type(self)(self.count, *parts)

    @property
    def _parts(self) -> tuple[NDArray[Any] | None, ...]:
        return (
            *(self.largest, self.uniforms, self.limits),
            *(self.block, self.first_risk, self.interval),
            *(self.depth_index, self.depth_sets),
        )


class Verdict(NamedTuple):
    """For each input of a batch: whether it stops (b,), its answer (b, C), its best class (b,).

    Answer and best class have a meaning only where the input stops. A policy by itself leaves the
    best class to the rule. `state` is the next state.
    """

    stop: Booleans
    sets: Booleans
    state: State
    best: Integers | None = None


class Policy(ABC):
    """What calibration learned: a way to stop. It holds nothing else."""

    @property
    def kth_values(self) -> Floats | None:
        """The order statistics behind the thresholds; None in files of version 0.2."""
        return np.empty(0)

    @property
    def thresholds(self) -> Floats:
        """The thresholds in the scale that users see; empty where there are none."""
        return np.empty(0)

    @property
    def group_names(self) -> tuple[str, ...] | None:
        """The groups that have thresholds of their own."""
        return None

    @property
    def one_order_statistic(self) -> bool:
        """Whether one threshold, an order statistic of all examples, decides for all inputs."""
        return False

    def start(self, count: int, classes: int, first: int | None) -> State:
        """The state of `count` inputs before their first checkpoint.

        Random numbers follow from the numbers `first`, `first` + 1, …; they are fresh for None.
        """
        return State(count)

    def start_in(self, groups: Booleans, first: int | None = None) -> State:
        """The state of inputs that belong to these groups, (count, G); first as in `start`."""
        raise TypeError(f"{type(self).__name__} has no groups")

    @abstractmethod
    def judge(
        self, index: Index, last: bool | Booleans, evidence: Evidence, state: State
    ) -> Verdict:
        """The verdict at checkpoint `index`, one for all inputs or one for each.

        An input at its `last` checkpoint always stops.
        """

    @property
    def meaning(self) -> str:
        """In words, what the set of an input that still runs means."""
        return "the classes that the rule has not excluded"

    def kept(self, values: Floats) -> Booleans:
        """The classes (..., C) that are not excluded yet, from values of the evidence."""
        return np.ones(values.shape, dtype=bool)

    def stopping(self, evidence: Evidence) -> Booleans | None:
        """Where inputs with evidence (n, M, ...) would stop, (n, M); None if that needs a state."""
        return None

    @property
    def joint_promises(self) -> int:
        """The number of promises that must hold at once: one, or one for each class.

        One threshold for all classes is the least over the classes, so the class that needs the
        safest one decides for all. A class with too few examples is in every set.
        """
        return 1

    @property
    def movable_range(self) -> tuple[float, float] | None:
        """The safest and the boldest useful threshold, small being safe; None: nothing to move."""
        return None

    def moved(self, threshold: float) -> "Policy":
        """The policy with another threshold, where small is safe."""
        raise TypeError(f"{type(self).__name__} has no threshold to move")

    def inner(self, thresholds: Floats) -> Floats:
        """From the scale that users see to the one in which small is safe, and back."""
        return thresholds

    def check_blocks(self, count: int) -> None:
        """Refuse a policy whose blocks are not the `count` blocks of its rule."""
        if count:
            raise ValueError("a gate without thresholds for its blocks")

    def never_stops(self, needed: int | None) -> bool:
        """Whether no input can stop early; needed: examples, where there were fewer than these."""
        return needed is not None


@dataclass(frozen=True, eq=False)
class Stops:
    """How n inputs ended.

    index       (n,) the checkpoint at which each stopped; -1 before it does
    sets        (n, C) the answers
    best        (n,) the best class at the stop; -1 where it is not known
    block       (n,) the block of the gate; -1 without a gate
    first_risk  (n,) the log-risk, or the least score, at the first checkpoint; nan if not known
    interval    (n, 2) the interval that is answered; nan for answers of another kind
    depth_index, depth_sets
                as in `State`, where each depth of a tree has an answer; else D is 0
    """

    index: Integers
    sets: Booleans
    best: Integers
    block: Integers
    first_risk: Floats
    interval: Floats
    depth_index: Integers
    depth_sets: Booleans

    @classmethod
    def empty(cls, n: int, classes: int, depths: int = 0) -> Self:
        """Room for n inputs."""
        sets = np.empty((n, classes), dtype=bool)
        unknown = np.full(n, np.nan), np.full((n, 2), np.nan)
        by_depth = np.full((n, depths), -1), np.zeros((n, depths, classes), dtype=bool)
        return cls(np.full(n, -1), sets, np.full(n, -1), np.full(n, -1), *unknown, *by_depth)

    def put(self, rows: Integers, index: Index, verdict: Verdict) -> None:
        """Note which of the inputs `rows`, judged at checkpoint `index`, stop."""
        stop, state = verdict.stop, verdict.state
        done = rows[stop]
        self.index[done] = index if isinstance(index, int) else index[stop]
        self.sets[done] = verdict.sets[stop]
        known = (
            (self.best, verdict.best),
            (self.block, state.block),
            (self.first_risk, state.first_risk),
            (self.interval, state.interval),
            (self.depth_index, state.depth_index),
            (self.depth_sets, state.depth_sets),
        )
        for array, values in known:
            if values is not None:
                array[done] = values[stop]


At = TypeVar("At", int, Integers, Index)
"""The checkpoint of a round: one for all of its inputs, or one for each."""


def run_rounds(
    judge: Callable[[At, Integers, State], Verdict],
    state: State,
    rounds: Iterable[tuple[At, Integers, Integers]],
    note: Callable[[Integers, Index, Verdict], None],
) -> tuple[State, Booleans]:
    """Judge inputs round by round and leave out those that have stopped.

    This loop judges batches, engines and live inputs. A round is (index, inputs, where): at which
    checkpoint, which inputs, each once, and where their scores are. `judge(index, where, state)`
    gives a verdict, and `note(where, index, verdict)` is told of it. Returns the state of all
    inputs, and which still run.
    """
    state = state.rows(np.arange(len(state)))  # arrays of its own, which are overwritten
    running = np.ones(len(state), dtype=bool)
    for index, inputs, where in rounds:
        left = np.flatnonzero(running[inputs])
        if len(left) < len(inputs):
            alike = where is inputs
            inputs = inputs[left]
            where = inputs if alike else where[left]
            index = index if isinstance(index, int) else index[left]
        if len(inputs):
            before = state.rows(inputs)
            verdict = judge(index, where, before)
            note(where, index, verdict)
            if verdict.state is not before:
                state = state.overwrite(inputs, verdict.state)
            running[inputs[verdict.stop]] = False
    return state, running


def in_rounds(
    index: Integers, inputs: Integers, where: Integers
) -> Iterator[tuple[Index, Integers, Integers]]:
    """Rounds over inputs (n,) at checkpoints (n,), where the checkpoints of an input come in order.

    They are sorted once, so a round costs the same however many there are.
    """
    if len(set(inputs.tolist())) == len(inputs):  # as most often: one round
        yield _shared(index), inputs, where
        return
    order = np.argsort(inputs, kind="stable")
    begins = np.flatnonzero(np.diff(inputs[order], prepend=-1))
    # 0, 1, … for the checkpoints of each input
    turn = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    by_turn = order[np.argsort(turn, kind="stable")]
    for chosen in np.split(by_turn, np.cumsum(np.bincount(turn))[:-1]):
        yield _shared(index[chosen]), inputs[chosen], where[chosen]


def _shared(index: Integers) -> Index:
    """One checkpoint where all inputs of a round are at the same."""
    return int(index[0]) if len(index) and (index == index[0]).all() else index


def run_checkpoints(
    judge: Callable[[int, Integers, State], Verdict], state: State, checkpoints: int, classes: int
) -> Stops:
    """Judge a batch checkpoint by checkpoint.

    `judge(index, active, state)` is called only with the inputs that are still running.
    """
    stops, active = Stops.empty(len(state), classes, state.depths), np.arange(len(state))

    def note(rows: Integers, index: Index, verdict: Verdict) -> None:
        nonlocal active
        stops.put(rows, index, verdict)
        active = rows[~verdict.stop]

    run_rounds(judge, state, ((index, active, active) for index in range(checkpoints)), note)
    return stops


def run_policy(policy: Policy, evidence: Evidence, rows: Integers, classes: int) -> Stops:
    """How the inputs `rows` end, whose evidence (n, M, ...) at every checkpoint is known.

    Where the policy knows at which checkpoints inputs would stop, each is judged only at the first
    of them, with the same results.
    """
    last, state = evidence.values.shape[1] - 1, policy.start(len(rows), classes, 0)
    would = policy.stopping(evidence)
    if would is not None:
        would = would[rows]
        would[:, last] = True
        index, stops = would.argmax(axis=1), Stops.empty(len(rows), classes)
        verdict = policy.judge(index, index == last, evidence[rows, index], state)
        stops.put(np.arange(len(rows)), index, verdict)
        return stops

    def judge(index: int, active: Integers, state: State) -> Verdict:
        return policy.judge(index, index == last, evidence[rows[active], index], state)

    return run_checkpoints(judge, state, last + 1, classes)


def uniforms(seed: int | Sequence[int], count: int, first: int | None) -> Floats:
    """The uniform numbers (count, 1) of inputs first, first + 1, …; fresh ones for None.

    The number of an input depends on only the seed and `first`.
    """
    if first is None:
        return np.random.default_rng().random((count, 1))
    bits = np.random.PCG64(seed)
    bits.advance(first)
    return np.random.Generator(bits).random((count, 1))


def at_checkpoints(index: Index, inputs: Floats, read: Callable[[int, Floats], Found]) -> Found:
    """`read(checkpoint, inputs)` for one checkpoint, or for inputs at different checkpoints."""
    if not isinstance(index, np.ndarray):
        return read(index, inputs)
    checkpoints = np.unique(index).tolist() or [0]  # without inputs, the shape still counts
    joined: Any = join_parts([read(one, inputs[index == one]) for one in checkpoints])
    return joined[index.argsort(kind="stable").argsort()]


def select(data: Row, rows: Any, *names: str) -> Row:
    """A dataclass with some of the rows in the fields that are named; None stays None."""
    parts = {name: getattr(data, name) for name in names}
    known = {name: part[rows] for name, part in parts.items() if part is not None}
    return replace(cast(Any, data), **known)


@dataclass(frozen=True, eq=False)
class Failures:
    """opens and fails (n, M), fails_end (n,), and closes (n, M) where checkpoints close again."""

    opens: Floats
    fails: Floats
    fails_end: Floats
    closes: Floats | None = None

    def __len__(self) -> int:
        return len(self.opens)

    def rows(self, rows: Integers | Booleans) -> Self:
        """Some of the examples."""
        return select(self, rows, "opens", "fails", "fails_end", "closes")

    def minus(self, offsets: Floats) -> Self:
        """With an offset (M,) taken from every number of its checkpoint."""
        end = self.fails_end - offsets[-1]
        return replace(self, opens=self.opens - offsets, fails=self.fails - offsets, fails_end=end)

    def at(self, opened: Booleans) -> Self:
        """Only at some of the checkpoints, (n, M)."""
        return replace(self, opens=np.where(opened, self.opens, np.inf))

    def stops(self, thresholds: Floats) -> Integers:
        """The checkpoint (n,) at which each example stops with its threshold, (n,)."""
        stopped = self.opens < thresholds[:, None]
        stopped[:, -1] = True
        return np.asarray(stopped.argmax(axis=1))

    def first(self, rounding: Rounding | None = None, exact: Floats | None = None) -> Floats:
        """W (n,), ∞ where nothing fails; with a rounding W_η. exact: W, where it is known."""
        if rounding is None or rounding.breaks_ties:
            return self._first(rounding)
        # Equal numbers of one input stay equal, so where different ones lie apart a run decides as
        # this one does at a λ within η.
        first = self._first(None) if exact is None else exact
        first = first - rounding.at_most(first)
        parts = [self.opens, self.fails, self.fails_end[:, None]]
        parts += [] if self.closes is None else [self.closes]
        close = np.flatnonzero(~apart(np.concatenate(parts, axis=1), rounding))
        first[close] = np.minimum(first[close], self.rows(close)._first(rounding))
        return first

    def _first(self, rounding: Rounding | None) -> Floats:
        opens, fails, end = self.opens, self.fails, self.fails_end
        may_open, surely_open = opens, opens
        if rounding is not None:
            eta = rounding.at(opens)
            may_open, surely_open = opens - eta, opens + eta
            if self.closes is None:
                # ρ of the first class outside is the risk itself: where it is too small to be kept,
                # the input has stopped.
                end = np.where(same_number(end, opens[:, -1]), np.inf, end)
            fails, end = fails - rounding.at(fails), end - rounding.at_last(end)
        starts = np.maximum(may_open, fails)
        if self.closes is not None:
            return self._first_in_windows(starts, end, surely_open, rounding)
        before = lowest_before(surely_open)
        starts = np.concatenate([starts, end[:, None]], axis=1)
        return np.where(starts < before, starts, np.inf).min(axis=1)

    def _first_in_windows(
        self, starts: Floats, end: Floats, surely_open: Floats, rounding: Rounding | None
    ) -> Floats:
        """W where checkpoint t is open for λ in (opens_t, closes_t] alone.

        For each t: the least λ above starts_t that no earlier checkpoint surely stops, if t may
        still be open there.
        """
        assert self.closes is not None
        eta = 0.0 if rounding is None else rounding.at(self.closes)
        may_close, surely_close = self.closes + eta, self.closes - eta
        least = np.full(len(self), np.inf)
        for index in range(starts.shape[1]):
            free = _skip(starts[:, index], surely_open[:, :index], surely_close[:, :index])
            least = np.minimum(least, np.where(free < may_close[:, index], free, np.inf))
        return np.minimum(least, _skip(end, surely_open, surely_close))


def lowest_before(opens: Floats) -> Floats:
    """(n, M + 1) the least number of the checkpoints before each, and of all; ∞ at first."""
    nothing = np.full((len(opens), 1), np.inf)
    return np.minimum.accumulate(np.concatenate([nothing, opens], axis=1), axis=1)


def _skip(start: Floats, lows: Floats, highs: Floats) -> Floats:
    """The least u ≥ start (n,) with numbers just above u in no interval (low, high], (n, m)."""
    found, rows = start.copy(), np.arange(len(start))
    while len(rows):
        at = found[rows, None]
        covered = (lows[rows] <= at) & (at < highs[rows])
        higher = np.where(covered, highs[rows], -np.inf).max(axis=1, initial=-np.inf)
        moved = higher > found[rows]
        rows = rows[moved]
        found[rows] = higher[moved]
    return found


@dataclass(frozen=True, eq=False)
class Conditions:
    """What is known of n calibration examples beside their labels.

    groups       (n, G) which groups an example belongs to; None for one group that holds all
    group_names  (G,)
    weights      (n,) dQ/dP of each example; None for a weight of 1
    max_weight   the largest weight that any input can have
    people       (n,) the person of each example, from 0; None where rows are exchangeable
    for_people   the share of new people for whom the promise holds; None for a promise about rows
    final        whether labels are the ensemble's own best classes at the last checkpoint
    """

    groups: Booleans | None = None
    group_names: tuple[str, ...] | None = None
    weights: Floats | None = None
    max_weight: float | None = None
    people: Integers | None = None
    for_people: Fraction | None = None
    final: bool = False

    @classmethod
    def of(
        cls,
        n: int,
        groups: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        max_weight: float | None = None,
        people: ArrayLike | None = None,
        for_people: Target | None = None,
        final: bool = False,
    ) -> Self:
        """Check what `calibrate` was given for n examples."""
        names = members = None
        if groups is not None:
            names = name_groups(groups, n)
            members = find_groups(groups, names, n)
        if weights is None and max_weight is not None:
            raise InputError(
                "max_weight is given without weights: give one weight for each calibration example."
            )
        if people is None and for_people is not None:
            raise InputError("for_people is given without people: give the person of each example.")
        if people is not None and weights is not None:
            raise InputError("there is no promise with both people and weights: leave one out.")
        return cls(
            members,
            names,
            None if weights is None else _as_weights(weights, max_weight, n),
            max_weight,
            None if people is None else as_people(people, n),
            None if for_people is None else as_target(for_people, "for_people"),
            final,
        )

    def __getitem__(self, rows: Integers | Booleans) -> Self:
        """What is known of some of the examples."""
        return select(self, rows, "groups", "weights", "people")

    @property
    def effective_size(self) -> float | None:
        """(Σw)²/Σw², the number of equally weighted examples that would say as much, or None."""
        if self.weights is None:
            return None
        largest = float(self.weights.max())
        if not largest:
            return 0.0
        shares = self.weights / largest  # so that squares of small weights do not vanish
        return float(shares.sum()) ** 2 / float((shares**2).sum())

    @property
    def used(self) -> str:
        """The names of the conditions that are more than plain labels, in words."""
        known = {"groups": self.groups, "weights": self.weights, "people": self.people}
        return " and ".join(name for name, part in known.items() if part is not None)

    def words(self, promise: str, target: Fraction | None, delta: Fraction | None) -> str:
        """A promise with what the conditions change of it."""
        if self.people is not None and target is not None:
            promise = _words_for_people(promise, target, self.for_people)
        if self.final:
            class_at_end = "the class that the ensemble itself answers best at the last checkpoint"
            promise = promise.replace("the true class", class_at_end)
            promise = promise.replace("for each true class", "for each such class")
            number_at_end = "the number that the model itself gives at the last checkpoint"
            promise = promise.replace("the true number", number_at_end)
        if self.weights is not None:
            shifted = (
                "a new example whose distribution has the given weights as its density against "
                "theirs; estimated weights carry no promise."
            )
            promise = promise.replace("a new example exchangeable with them.", shifted)
        if self.groups is None:
            return promise
        note = ""
        if delta is not None:
            each = "is for each group by itself, not for all groups at once."
            note = f" The probability {in_words(1 - delta)} {each}"
        return f"for each group, {promise}{note}"


def _words_for_people(promise: str, target: Fraction, for_people: Fraction | None) -> str:
    draw = "over the draw of the calibration people and of a new person exchangeable with them"
    rows = "the rows of one person must be exchangeable with each other"
    if for_people is None:
        old = (
            "over the draw of the calibration examples and of a new example exchangeable with them."
        )
        return f"for a row of a new person, {promise.replace(old, f'{draw}; {rows}.')}"
    known = [what for what in ("the true class", "the true number") if what in promise]
    wrong = f"miss {known[0]}" if known else "are wrong"
    _, _, more = promise.partition(". ")
    return (
        f"with probability at least {in_words(for_people)}, {draw}, at most a share "
        f"{in_words(1 - target)} of the answers for the new person {wrong}; {rows}, and a new "
        f"person must have as many rows as those of calibration.{' ' * bool(more)}{more}"
    )


@dataclass(frozen=True, eq=False)
class LabelledEvidence:
    """Evidence of n examples at all M checkpoints, (n, M, ...), and their labels (n,).

    conditions  what else is known of the examples
    rounding    of the log-confidences that the evidence was read from
    loss        (n, M) what stopping at each checkpoint costs, or (n, 1) the true numbers, for rules
                without classes
    """

    evidence: Evidence
    labels: Integers
    classes: int
    conditions: Conditions = field(default_factory=Conditions)
    rounding: Rounding = field(default_factory=Rounding)
    loss: Floats | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def groups(self) -> Booleans:
        """(n, G) the groups of each example: one that holds all, unless others are known."""
        known = self.conditions.groups
        return np.ones((len(self), 1), dtype=bool) if known is None else known

    def rows(self, rows: Integers | Booleans) -> Self:
        """Some of the examples."""
        return select(self, rows, "evidence", "labels", "conditions", "loss")

    def without_evidence(self, rows: Integers) -> Self:
        """Some of the examples, of which only labels and conditions are needed."""
        some = select(self, rows, "labels", "conditions")
        return replace(some, evidence=NO_EVIDENCE, loss=None)

    def cells(self, class_conditional: bool) -> list[Integers]:
        """The rows that share a quantile: all, or the rows of each class."""
        if not class_conditional:
            return [np.arange(len(self))]
        return [np.flatnonzero(self.labels == label) for label in range(self.classes)]


def _as_weights(weights: ArrayLike, max_weight: float | None, n: int) -> Floats:
    array = as_floats(weights, "weights")
    if array.shape != (n,):
        raise InputError(f"weights has shape {array.shape} for {n} examples: give one for each.")
    if max_weight is None:
        raise InputError(
            "weights needs max_weight, the largest weight that any input can have: it must be "
            "known beforehand."
        )
    if not is_number(max_weight) or not max_weight > 0:
        raise InputError(f"max_weight is {max_weight!r}: give a finite number above 0.")
    inside = (array >= 0) & (array <= max_weight)
    if not inside.all():
        raise InputError(
            f"weights holds {array[~inside][0]:g}: every weight must lie between 0 and max_weight, "
            f"{max_weight:g}."
        )
    return array
