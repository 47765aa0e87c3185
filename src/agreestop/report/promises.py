"""What the page says beyond one promise for all inputs: abstaining instead of a weak answer, new
people, and coarse answers first.

Each part divides the pool as the other figures do, over at most ten realisations.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from agreestop.common import Floats
from agreestop.common.errors import no_calibration_warnings
from agreestop.common.estimates import Estimate
from agreestop.decide.agree_stop import AgreeStop
from agreestop.decide.answer_kinds import Tree
from agreestop.decide.decisions import evaluate
from agreestop.decide.scores import Scores
from agreestop.decide.tuning.splits import divisions, repeat_splits

from .records import MeasurementSettings

REALISATIONS = 10
MORE_TARGETS = (0.8, 0.9, 0.95, 0.98, 0.99)


@dataclass(frozen=True)
class AbstainingPoint:
    """One target: the share answered and the share answered wrongly with at_end="abstain", and the
    share that is wrong where everything is answered.
    """

    target: float
    answered: Estimate
    wrong: Estimate
    wrong_of_all: Estimate
    latency: Estimate


@dataclass(frozen=True)
class PeoplePoint:
    """One way to calibrate, tested on people who took no part in it.

    kept    the mean over people of the share of their rows for which the promise is kept
    below   the share of people for whom it is kept less often than the target
    people  for each person: name, share kept, and rows
    """

    name: str
    kept: Estimate
    below: Estimate
    latency: Estimate
    people: tuple[tuple[str, Estimate, int], ...]


@dataclass(frozen=True)
class DepthPoint:
    """The first answers at one depth of a tree; `answered` is the share answered by each time."""

    depth: int
    nodes: tuple[str, ...]
    coverage: Estimate
    latency: Estimate
    times: tuple[float, ...]
    answered: tuple[float, ...]


def measure_abstaining(
    rule: Any, pool: Scores, measured: MeasurementSettings
) -> tuple[AbstainingPoint, ...]:
    """The front of an AgreeStop at the targets for which there are enough examples."""
    points = []
    sizes: dict[str, Any] = {
        "n_calibration": measured.n_calibration,
        "repeats": min(measured.realisations, REALISATIONS),
        "seed": measured.seed,
    }
    for target in sorted({*measured.targets, *MORE_TARGETS}):
        own = replace(rule, target=target)
        if own.examples_needed(pool.log_confidence.shape[2]) > measured.n_calibration:
            continue
        with no_calibration_warnings():
            abstains = repeat_splits(replace(own, at_end="abstain"), pool, **sizes)
            answers = repeat_splits(own, pool, **sizes)
        assert abstains.kepts is not None
        wrong = 1 - abstains.kepts
        means = (abstains.coverages + wrong, wrong, 1 - answers.coverages, abstains.latencies)
        points.append(AbstainingPoint(target, *map(_mean, means)))
    return tuple(points)


def measure_people(
    rule: Any, pool: Scores, people: Sequence[str], measured: MeasurementSettings
) -> tuple[PeoplePoint, ...]:
    """Half of the people calibrate, and the rule is tested on the others: with rows taken as
    exchangeable, and with both promises for new people.
    """
    whose = np.array(people, dtype=np.str_)
    names, half = np.unique(whose), len(np.unique(whose)) // 2
    ways: dict[str, dict[str, Any]] = {
        "rows taken as exchangeable": {},
        "a row of a new person": {"people": True},
        "nine in ten new people": {"people": True, "for_people": 0.9},
    }
    kept = {way: np.full((REALISATIONS, len(names)), np.nan) for way in ways}
    latency: dict[str, list[float]] = {way: [] for way in ways}
    for repeat, (some, _) in enumerate(divisions(len(names), half, REALISATIONS, measured.seed)):
        inside = np.isin(whose, names[some])
        for way, given in ways.items():
            known = given | ({"people": whose[inside]} if given else {})
            with no_calibration_warnings():
                calibrated = rule.calibrate(pool.rows(np.flatnonzero(inside)), **known)
                rest = pool.rows(np.flatnonzero(~inside))
                result = evaluate(calibrated.decide(rest), rest, people=whose[~inside])
            latency[way].append(float(result.normalized_latency))
            for person in result.by_person or ():
                kept[way][repeat, np.searchsorted(names, person.name)] = person.kept
    target = float(rule.terms.target)
    points = []
    for way, shares in kept.items():
        tested = np.isfinite(shares)
        each = np.nanmean(shares[:, tested.any(axis=0)], axis=0)
        below, total = tested & (shares < target), tested.sum(axis=0)
        # a person who was tested many times is still one person, as in `coverage_of_inputs`
        count = float(total.sum() ** 2 / (total**2).sum())
        share = Estimate.of_share(float(below.sum() / total.sum()) * count, count, 0.95)
        found = []
        for name, value in zip(names[tested.any(axis=0)].tolist(), each.tolist(), strict=True):
            rows = int(np.count_nonzero(whose == name))
            found.append((name, Estimate.of_share(value * rows, rows, 0.95), rows))
        taken = _mean(np.array(latency[way]))
        points.append(PeoplePoint(way, _mean(each), share, taken, tuple(found)))
    return tuple(points)


def measure_depths(
    tree: Tree, pool: Scores, measured: MeasurementSettings
) -> tuple[DepthPoint, ...]:
    """The first answer at each depth of a tree, from AgreeStop with depth="each"."""
    rule = AgreeStop(measured.targets[0], pool.times, 1, tree=tree, depth="each")
    found, repeats = [], min(measured.realisations, REALISATIONS)
    for rows, rest in divisions(len(pool), measured.n_calibration, repeats, measured.seed):
        with no_calibration_warnings():
            decisions = rule.calibrate(pool.rows(rows)).decide(pool.rows(rest))
        groups = evaluate(decisions, pool.rows(rest)).by_depth or ()
        for depth, (one, group) in enumerate(zip(decisions.by_depth, groups, strict=True)):
            by_time = (one.stop_time[:, None] <= np.array(pool.times)).mean(axis=0)
            found.append((depth, group.coverage, group.normalized_latency, by_time))
    points = []
    for depth in range(tree.depth):
        some = [one for one in found if one[0] == depth]
        coverage, latency = (_mean(np.array([float(one[i]) for one in some])) for i in (1, 2))
        answered = np.mean([one[3] for one in some], axis=0).tolist()
        nodes = tuple(dict.fromkeys(path[depth] for path in tree.paths))
        times = tuple(map(float, pool.times))
        points.append(DepthPoint(depth + 1, nodes, coverage, latency, times, tuple(answered)))
    return tuple(points)


def _mean(values: Floats) -> Estimate:
    return Estimate.of_mean(np.asarray(values), 0.95)
