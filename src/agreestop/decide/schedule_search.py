"""Choose when members join: the schedule of lowest cost, and the front of latency against work.

    cost = mean of t/T + price of work · mean of t·k/(T·K)                  t, k: time and members at the stop

A schedule is the number of members at the first look and the time at which each other member joins. Families of such schedules are tried
on the tuning split: some members for good, some and later all, members that join after waits that grow. From the best one a seeded
random search moves the joins, and the shape of the threshold with them: e_t < λ·(t·k/(T·K))^power. Stops are those of AgreeStop with the
mass outside the best classes as risk, with and without temperatures, which are fitted on the other half of the rows.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import Floats, InputError, Integers, is_number

from .agree_stop import AgreeStop
from .checkpoints import Failures
from .evidence import Evidence
from .levels import Target, as_delta, as_target, order_statistic, quantile_rank
from .risks import ShapedRisk, TopMass
from .schedules import Schedule
from .score_files import Scores, ScoresLike, as_scores, at_checkpoint, at_times, labels_of
from .splits import divisions
from .tuned_rows import TunedRows

SEARCH_STEPS = 120
MOST_ROWS = 2000  # tuning rows that the search reads, unless calibration needs more
POWERS = (-0.5, 0.0, 0.5, 1.0)
PRICES = (0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 16.0, 50.0)


@dataclass(frozen=True, eq=False)
class FrontPoint:
    """A rule on the front of latency against work, with its normalised latency and its mean member-steps on the tuning split.

    price  the price of work for which it was chosen; None for one member and for all members at every time
    """

    name: str
    price: float | None
    rule: AgreeStop
    latency: float
    work: float


def front(
    rule: AgreeStop,
    scores_or_log_confidence: ScoresLike,
    labels: ArrayLike | None = None,
    times: Sequence[float] | None = None,
    *,
    n_calibration: int = 50,
    prices: Sequence[float] = PRICES,
    repeats: int = 20,
    seed: int = 0,
    progress: Callable[[str, float], None] | None = None,
) -> tuple[FrontPoint, ...]:
    """What latency costs in work: all members, the best schedule for each price of work, and one member, each as a rule to calibrate.

    The rule's checkpoints are the times at which members may join and inputs may stop. Calibrate on rows other than these tuning rows.
    """
    if not isinstance(rule, AgreeStop):
        raise InputError(f"the rule is a {type(rule).__name__}: the front is that of AgreeStop, so give one.")
    if rule.gate is not None:
        raise InputError("the rule has a gate, which holds its risk: give the rule without it.")
    prices, wanted = [as_price(price) for price in prices], tuple(dict.fromkeys(rule.checkpoints))
    data = at_times(as_scores(scores_or_log_confidence, labels, times, wanted), wanted)
    search = _Search.of(rule, data, n_calibration, repeats, seed)
    report = progress or (lambda what, share: None)
    everybody = search.best_shape(_Plan(search.members, (), 0.0, False))
    single = search.best_shape(_Plan(1, (len(wanted),) * (search.members - 1), 0.0, False))
    for number, price in enumerate(prices):
        report(f"price of work {price:g}", number / len(prices))
        search.best(price)
    plans: list[tuple[str, float | None, _Plan]] = [("all members", None, everybody)]
    plans += [(f"price of work {price:g}", price, search.cheapest(price)) for price in prices]
    plans.append(("one member", None, single))
    points = []
    for name, paid, plan in plans:
        latency, work = search.figures(plan)
        points.append(FrontPoint(name, paid, search.rule_of(rule, data, plan), latency, work * search.members * float(wanted[-1])))
    report("done", 1.0)
    return tuple(points)


def best_schedule(
    target: Target | None, delta: Target | None, size: int, data: Scores, price: float, n_calibration: int, repeats: int, seed: int
) -> Schedule:
    """The schedule of lowest cost on tuning scores, for answers of `size` classes with this target."""
    search = _Search.of(AgreeStop(target, data.times, size, delta=delta), data, n_calibration, repeats, seed)
    return search.schedule(search.best(price))


def as_price(price: float) -> float:
    """A price of work: a finite number of at least 0."""
    if not is_number(price) or price < 0:
        raise InputError(f"price_of_work is {price!r}: give the latency that all members' work is worth, such as 1, or 0.")
    return float(price)


class _Plan(NamedTuple):
    """A schedule as numbers: members at the first look, and the index of the time at which each other one joins (M: never).

    power shapes the threshold, and `tempered` says whether the risk has temperatures.
    """

    start: int
    joins: tuple[int, ...]
    power: float
    tempered: bool


@dataclass(frozen=True, eq=False)
class _Search:
    """Log-risk and log f (n, T, K) of the tuning rows with each number of members, plain and with temperatures, and log f at the end."""

    times: tuple[float, ...]
    members: int
    risks: tuple[Failures, Failures]
    splits: tuple[tuple[Integers, Integers], ...]
    rank: int
    seed: int
    known: dict[_Plan, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, rule: AgreeStop, data: Scores, n_calibration: int, repeats: int, seed: int) -> "_Search":
        if rule.target is None:
            raise InputError("a schedule is chosen for a target, but the rule has a loss: give the schedule yourself.")
        n, _, members, _ = data.log_confidence.shape
        if not 1 <= n_calibration <= n // 2:
            raise InputError(f"n_calibration is {n_calibration} and there are {n} tuning rows: give at least twice as many rows.")
        chosen = np.random.default_rng(seed).permutation(n)[: max(MOST_ROWS, 4 * n_calibration)]
        rows = data.rows(np.sort(chosen))
        rank = n_calibration + 1 - quantile_rank(n_calibration, as_target(rule.target), as_delta(rule.delta))
        splits = tuple(divisions(len(rows), n_calibration, repeats, seed))
        risks = (_failures(rows, rule, False), _failures(rows, rule, True))
        return cls(data.times, members, risks, splits, rank, seed)

    def looks(self, plan: _Plan) -> tuple[Integers, Integers]:
        """Indices of the times and numbers of members (L,) of the looks."""
        found, count, joins = [], plan.start, list(plan.joins)
        for index in range(len(self.times)):
            found.append((index, count))
            while joins and joins[0] == index:
                count += 1
                found.append((index, count))
                joins.pop(0)
        indices, counts = np.array(found).T
        return indices, counts

    def schedule(self, plan: _Plan) -> Schedule:
        return Schedule([(self.times[index], int(count)) for index, count in zip(*self.looks(plan), strict=True)])

    def _load(self, indices: Integers, counts: Integers) -> Floats:
        """The share t·k/(T·K) of all work at each look."""
        return np.array(self.times, dtype=np.float64)[indices] * counts / (float(self.times[-1]) * self.members)

    def figures(self, plan: _Plan) -> tuple[float, float]:
        """Mean t/T and mean t·k/(T·K) over random calibration rows."""
        if plan not in self.known:
            self.known[plan] = self._measure(plan)
        return self.known[plan]

    def _measure(self, plan: _Plan) -> tuple[float, float]:
        indices, counts = self.looks(plan)
        load, whole = self._load(indices, counts), self.risks[plan.tempered]
        at = np.s_[:, indices, counts - 1]
        failures = Failures(whole.opens[at], whole.fails[at], whole.fails_end[:, counts[-1] - 1]).minus(plan.power * np.log(load))
        first, clock = failures.first(), np.array(self.times, dtype=np.float64)[indices] / float(self.times[-1])
        lowest, sums = np.minimum.accumulate(failures.opens, axis=1), np.zeros(2)
        for calibration, test in self.splits:
            threshold = order_statistic(first[calibration], self.rank)
            stops = np.minimum(np.count_nonzero(lowest >= threshold, axis=1), len(load) - 1)[test]
            sums += clock[stops].mean(), load[stops].mean()
        latency, work = (sums / len(self.splits)).tolist()
        return latency, work

    def best(self, price: float) -> _Plan:
        """The plan of lowest cost for a price of work."""

        for plan in self._families():
            self.figures(plan)
        best, rng = self.cheapest(price), np.random.default_rng(self.seed)
        for _ in range(SEARCH_STEPS):
            best = min(best, self._moved(best, rng), key=partial(self._cost, price))
        return best

    def cheapest(self, price: float) -> _Plan:
        """The plan of lowest cost among all that were tried, for this price and for others."""
        return min(self.known, key=partial(self._cost, price))

    def _cost(self, price: float, plan: _Plan) -> float:
        latency, work = self.figures(plan)
        return latency + price * work

    def best_shape(self, plan: _Plan) -> _Plan:
        """The plan of least latency with the same schedule."""
        shapes = [plan._replace(power=power, tempered=tempered) for power in POWERS for tempered in (False, True)]
        return min(shapes, key=lambda shape: self.figures(shape)[0])

    def _families(self) -> Iterator[_Plan]:
        """Schedules to begin with."""
        never, times = len(self.times), np.array(self.times, dtype=np.float64)
        waits = [times[0] * 2.0**power for power in range(int(np.log2(times[-1] / times[0])) + 1)]
        for tempered, start in itertools.product((False, True), range(1, self.members + 1)):
            others = self.members - start
            for joined in range(others + 1):  # some members at the first time, one after the other
                yield _Plan(start, (0,) * joined + (never,) * (others - joined), 0.0, tempered)
            for wait, growth in itertools.product(waits if others else (), (1.0, 2.0**0.5, 2.0)):
                joins = np.searchsorted(times, wait * growth ** np.arange(others))
                yield _Plan(start, tuple(joins.tolist()), 0.0, tempered)

    def _moved(self, plan: _Plan, rng: np.random.Generator) -> _Plan:
        """A plan near this one."""
        never, times = len(self.times), np.array(self.times, dtype=np.float64)
        kind = rng.random()
        if kind < 0.15:
            return plan._replace(power=POWERS[int(rng.integers(len(POWERS)))])
        if kind < 0.2:
            return plan._replace(tempered=not plan.tempered)
        joins = [0] * (plan.start - 1) + list(plan.joins)
        if kind < 0.3:
            start = int(np.clip(plan.start + rng.choice((-1, 1)), 1, self.members))
            return plan._replace(start=start, joins=tuple(joins[start - 1 :]))
        if not plan.joins:
            return plan
        member = int(rng.integers(len(plan.joins)))
        last = int(rng.integers(member, len(plan.joins))) + 1  # members next to each other often move together
        moved = np.array(plan.joins)
        for one in range(member, last):
            time = times[min(moved[one], never - 1)] * 2.0 ** rng.normal()
            moved[one] = never if time > times[-1] else np.searchsorted(times, time) if rng.random() < 0.8 else max(0, moved[one] - 1)
        return plan._replace(joins=tuple(np.sort(moved).tolist()))

    def rule_of(self, rule: AgreeStop, data: Scores, plan: _Plan) -> AgreeStop:
        """The rule with the schedule, and with the risk of the plan, fitted on all tuning rows."""
        schedule = self.schedule(plan)
        cut = data.at(schedule)
        rows = TunedRows.of(cut.log_confidence, cut.ids)
        base = TopMass.fit(cut) if plan.tempered else TopMass()
        offsets = plan.power * np.log(self._load(*self.looks(plan)))
        risk = ShapedRisk(base, offsets, schedule, None if plan.tempered else rows)
        return replace(rule, checkpoints=schedule, risk=risk)


def _failures(data: Scores, rule: AgreeStop, tempered: bool) -> Failures:
    """Where the rows fail with each number of members: arrays (n, T, K), and (n, K) for the last time."""
    half = np.random.default_rng(0).permutation(len(data)) % 2 == 0
    found = []
    for count in range(1, data.log_confidence.shape[2] + 1):
        few = replace(data, log_confidence=data.log_confidence[:, :, :count])
        parts: list[Failures] = []
        for rows in (half, ~half):
            risk = TopMass.fit(few.rows(~rows)) if tempered else TopMass()
            some = few.rows(rows)
            looks = range(len(some.times))
            evidence = Evidence.stack([risk.evidence(index, at_checkpoint(some, index), rule.max_set_size) for index in looks])
            parts.append(Failures.of(evidence, labels_of(some), rule.max_set_size, rule._log_trim))
        order = np.argsort(np.concatenate([np.flatnonzero(half), np.flatnonzero(~half)]))
        found.append([np.concatenate([getattr(part, name) for part in parts])[order] for name in ("opens", "fails", "fails_end")])
    return Failures(*(np.stack(arrays, axis=-1) for arrays in zip(*found, strict=True)))
