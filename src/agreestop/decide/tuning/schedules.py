"""Choose when members join: the schedule of lowest cost, and the front of latency against work.

    cost = mean of t/T + price of work · mean of t·k/(T·K)        t, k: time and members at the stop

A schedule is the number of members at the first checkpoint and the time at which each other member
joins. Families of such schedules are tried on the tuning split: some members for good, some and
later all, members that join after waits that grow. From the best one a seeded random search moves
the joins, and the shape of the threshold with them: e_t < λ·(t·k/(T·K))^power. Inputs stop as with
AgreeStop, whose risk is the mass outside the best classes, with and without temperatures, which are
fitted on the other half of the rows.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import Floats, InputError, Integers, Schedule, is_number
from agreestop.common.levels import order_statistic, quantile_rank

from ..answer_kinds import BestClasses
from ..checkpoints import Failures
from ..leakage import TunedRows
from ..risks import TopMass
from ..rule import Rule
from ..scores import Scores, ScoresLike, as_scores, labels_of
from .splits import divisions

SEARCH_STEPS = 120
MOST_ROWS = 2000  # tuning rows that the search reads, unless calibration needs more
POWERS = (-0.5, 0.0, 0.5, 1.0)
PRICES = (0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 16.0, 50.0)


@dataclass(frozen=True, eq=False)
class FrontPoint:
    """A rule on the front of latency against work.

    Attributes
    ----------
    name
        What was chosen.
    price
        The price of work for which it was chosen; None for one member and for all members at every
        time.
    rule
        The rule, ready to be calibrated.
    latency, work
        Normalised latency and mean member-steps on the tuning split.

    Examples
    --------
    >>> import agreestop as ag
    >>> FrontPoint("one member", None, ag.AgreeStop(0.9, (10, 20), 1), 0.5, 10.0).latency
    0.5
    """

    name: str
    price: float | None
    rule: Any
    latency: float
    work: float


def front(
    rule: Rule,
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
    """What latency costs in work: all members, schedules for prices of work, and one member.

    Parameters
    ----------
    rule : AgreeStop
        Its checkpoints are the times at which members may join and inputs may stop.
    scores_or_log_confidence : Scores, or array (n, M, K, C)
        Tuning scores with labels. Calibrate the rules on other rows.
    labels, times : optional
        For log-confidences.
    n_calibration : int
        The number of calibration examples that the rules will have later.
    prices : sequence of float
        The latency, as a share of T, that the steps of all members up to T are worth.
    repeats, seed : int
        Random divisions for each figure, and what decides them.
    progress : callable, optional
        It is called with what is being tried and the share that is done.

    Returns
    -------
    tuple of FrontPoint

    Examples
    --------
    >>> import agreestop as ag
    >>> tuning = ag.simulate_scores(120, steps=4, K=2, C=3)
    >>> rule = ag.AgreeStop(0.8, range(1, 5), 1)
    >>> points = ag.front(rule, tuning, n_calibration=20, prices=(1.0,), repeats=2)
    >>> [point.name for point in points]
    ['all members', 'price of work 1', 'one member']
    """
    answer = rule.answer()
    if rule.terms.block_names is not None:
        raise InputError("the rule has a gate, which holds its risk: give the rule without it.")
    wanted = tuple(dict.fromkeys(rule.checkpoints))
    data = as_scores(scores_or_log_confidence, labels, times, wanted).at(wanted)
    known = [as_price(price) for price in prices]
    search = _Search.of(rule, answer, data, n_calibration, repeats, seed)
    report = progress or (lambda what, share: None)
    everybody = search.best_shape(_Plan(search.members, (), 0.0, False))
    never = (len(wanted),) * (search.members - 1)
    single = search.best_shape(_Plan(1, never, 0.0, False))
    for number, price in enumerate(known):
        report(f"price of work {price:g}", number / len(known))
        search.best(price)
    plans: list[tuple[str, float | None, _Plan]] = [("all members", None, everybody)]
    plans += [(f"price of work {price:g}", price, search.cheapest(price)) for price in known]
    plans.append(("one member", None, single))
    points = []
    for name, paid, plan in plans:
        latency, work = search.figures(plan)
        steps = work * search.members * float(wanted[-1])
        points.append(FrontPoint(name, paid, search.rule_of(rule, data, plan), latency, steps))
    report("done", 1.0)
    return tuple(points)


def best_schedule(
    rule: Rule, data: Scores, price: float, n_calibration: int, repeats: int, seed: int
) -> Schedule:
    """The schedule of lowest cost on tuning scores, for the rule's target and size of answers."""
    answer = BestClasses(rule.max_set_size)
    search = _Search.of(rule, answer, data, n_calibration, repeats, seed)
    return search.schedule(search.best(price))


def check_rows(data: Scores, n_calibration: int) -> int:
    """The number of tuning rows, which are at least twice as many as calibration examples."""
    n = len(labels_of(data))
    if not 1 <= n_calibration <= n // 2:
        raise InputError(
            f"n_calibration is {n_calibration} and there are {n} tuning rows: give at least twice "
            "as many rows."
        )
    return n


def as_price(price: float) -> float:
    """A price of work: a finite number of at least 0."""
    if not is_number(price) or price < 0:
        raise InputError(
            f"price_of_work is {price!r}: give the latency that all members' work is worth, such "
            "as 1, or 0."
        )
    return float(price)


class _Plan(NamedTuple):
    """A schedule as numbers.

    start     members at the first checkpoint
    joins     the index of the time at which each other one joins (M: never)
    power     the shape of the threshold
    tempered  whether the risk has temperatures
    """

    start: int
    joins: tuple[int, ...]
    power: float
    tempered: bool


@dataclass(frozen=True, eq=False)
class _Search:
    """Where tuning rows fail with each number of members, plain and with temperatures.

    Both have opens and fails (n, T, K), and fails_end (n, K).
    """

    times: tuple[float, ...]
    members: int
    failures: tuple[Failures, Failures]
    splits: tuple[tuple[Integers, Integers], ...]
    rank: int
    seed: int
    known: dict[_Plan, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        rule: Rule,
        answer: BestClasses,
        data: Scores,
        n_calibration: int,
        repeats: int,
        seed: int,
    ) -> Self:
        """From tuning scores."""
        terms = rule.terms
        if terms.target is None:
            raise InputError(
                "a schedule is chosen for a target, and the rule has a loss instead: leave out "
                "price_of_work, give the schedule yourself, or give a target."
            )
        n, members = check_rows(data, n_calibration), data.sizes[0]
        most = max(MOST_ROWS, 4 * n_calibration)
        rows = data.rows(np.sort(np.random.default_rng(seed).permutation(n)[:most]))
        rank = n_calibration + 1 - quantile_rank(n_calibration, terms.target, terms.delta)
        splits = tuple(divisions(len(rows), n_calibration, repeats, seed))
        failures = _failures(rows, answer, False), _failures(rows, answer, True)
        return cls(data.times, members, failures, splits, rank, seed)

    def checkpoints(self, plan: _Plan) -> tuple[Integers, Integers]:
        """Indices of the times and numbers of members of the checkpoints."""
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
        """The schedule of a plan."""
        pairs = zip(*self.checkpoints(plan), strict=True)
        return Schedule([(self.times[index], int(count)) for index, count in pairs])

    def _load(self, indices: Integers, counts: Integers) -> Floats:
        """The share t·k/(T·K) of all work at each checkpoint."""
        times = np.array(self.times, dtype=np.float64)
        return times[indices] * counts / (float(self.times[-1]) * self.members)

    def figures(self, plan: _Plan) -> tuple[float, float]:
        """Mean t/T and mean t·k/(T·K) over random calibration rows."""
        if plan in self.known:
            return self.known[plan]
        indices, counts = self.checkpoints(plan)
        load, found = self._load(indices, counts), self.failures[plan.tempered]
        at = np.s_[:, indices, counts - 1]
        end = found.fails_end[:, counts[-1] - 1]
        failures = Failures(found.opens[at], found.fails[at], end).minus(plan.power * np.log(load))
        clock = np.array(self.times, dtype=np.float64)[indices] / float(self.times[-1])
        first, sums = failures.first(), np.zeros(2)
        lowest = np.minimum.accumulate(failures.opens, axis=1)
        for calibration, test in self.splits:
            threshold = order_statistic(first[calibration], self.rank)
            stops = np.count_nonzero(lowest >= threshold, axis=1)
            stops = np.minimum(stops, len(load) - 1)[test]
            sums += clock[stops].mean(), load[stops].mean()
        latency, work = (sums / len(self.splits)).tolist()
        self.known[plan] = latency, work
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
        settings = itertools.product(POWERS, (False, True))
        shapes = [plan._replace(power=power, tempered=tempered) for power, tempered in settings]
        return min(shapes, key=lambda shape: self.figures(shape)[0])

    def _families(self) -> Iterator[_Plan]:
        """Schedules to begin with."""
        never, times = len(self.times), np.array(self.times, dtype=np.float64)
        doublings = range(int(np.log2(times[-1] / times[0])) + 1)
        waits = [times[0] * 2.0**power for power in doublings]
        for tempered, start in itertools.product((False, True), range(1, self.members + 1)):
            others = self.members - start
            for joined in range(others + 1):  # some members at the first time, one after the other
                yield _Plan(start, (0,) * joined + (never,) * (others - joined), 0.0, tempered)
            growths = (1.0, 2.0**0.5, 2.0)
            for wait, growth in itertools.product(waits if others else (), growths):
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
        # Members next to each other often move together.
        last = int(rng.integers(member, len(plan.joins))) + 1
        moved = np.array(plan.joins)
        for one in range(member, last):
            time = times[min(moved[one], never - 1)] * 2.0 ** rng.normal()
            if time > times[-1]:
                moved[one] = never
            elif rng.random() < 0.8:
                moved[one] = np.searchsorted(times, time)
            else:
                moved[one] = max(0, moved[one] - 1)
        return plan._replace(joins=tuple(np.sort(moved).tolist()))

    def rule_of(self, rule: Any, data: Scores, plan: _Plan) -> Rule:
        """The rule with the schedule and the risk of the plan, fitted on all tuning rows."""
        schedule = self.schedule(plan)
        cut = data.at(schedule)
        base = TopMass.fit(cut) if plan.tempered else TopMass()
        rows = None if plan.tempered else TunedRows.of(cut.log_confidence, cut.ids)
        offsets = plan.power * np.log(self._load(*self.checkpoints(plan)))
        risk = base.shaped(offsets, schedule, rows)
        found: Rule = replace(rule, checkpoints=schedule, risk=risk)
        return found


def _failures(data: Scores, answer: BestClasses, tempered: bool) -> Failures:
    """Where the rows fail with each number of members: arrays (n, T, K), and (n, K) at the end."""
    n, times, members, _ = data.log_confidence.shape
    half = np.random.default_rng(0).permutation(n) % 2 == 0
    opens, fails = np.empty((2, n, times, members))
    fails_end = np.empty((n, members))
    for member, rows in itertools.product(range(members), (half, ~half)):
        few = replace(data, log_confidence=data.log_confidence[:, :, : member + 1])
        risk = TopMass.fit(few.rows(~rows)) if tempered else TopMass()
        some = few.rows(rows)
        evidence = risk.over_time(some, answer.max_set_size)
        part = answer.failures(evidence, labels_of(some), None)
        opens[rows, :, member], fails[rows, :, member] = part.opens, part.fails
        fails_end[rows, member] = part.fails_end
    return Failures(opens, fails, fails_end)
