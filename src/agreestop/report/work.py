"""What the latency of an ensemble costs in work: one member, all members, and a few fixed schedules
in which members join.

A member-step is one member run for one step, so an input that stops after t steps with k members
has cost t·k member-steps. All points are AgreeStop as it is, not tuned, with a look at every step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agreestop.common import Schedule
from agreestop.common.errors import no_calibration_warnings
from agreestop.common.estimates import Estimate
from agreestop.decide.agree_stop import AgreeStop
from agreestop.decide.scores import Scores
from agreestop.decide.tuning.splits import repeat_splits

from .records import MeasurementSettings

LEAST_MEMBERS = 3
REALISATIONS = 10
ONE, ALL, HALF = "one member", "all members", "half of the members"


@dataclass(frozen=True)
class WorkPoint:
    """Mean member-steps behind an answer, mean stopping time over T, and coverage,
    over realisations.
    """

    name: str
    work: Estimate
    latency: Estimate
    coverage: Estimate


def measure_work(pool: Scores, measured: MeasurementSettings) -> tuple[WorkPoint, ...]:
    """The points at the main target.

    None with fewer than three members, or with too few calibration examples to stop.
    """
    members = pool.log_confidence.shape[2]
    if members < LEAST_MEMBERS:
        return ()
    points = []
    for name, schedule in fixed_schedules(pool.times, members).items():
        rule = AgreeStop(measured.targets[0], schedule, measured.max_set_size)
        if rule.examples_needed(members) > measured.n_calibration:
            return ()
        repeats = min(measured.realisations, REALISATIONS)
        with no_calibration_warnings():
            splits = repeat_splits(
                rule,
                pool,
                n_calibration=measured.n_calibration,
                repeats=repeats,
                seed=measured.seed,
            )
        assert splits.work is not None
        points.append(WorkPoint(name, splits.work, splits.normalized_latency, splits.coverage))
    return tuple(points)


def fixed_schedules(times: Sequence[float], members: int) -> dict[str, Schedule]:
    """Schedules by name.

    Where members join, each of them is asked only if those before it have not stopped the input.
    """
    first, last, others = times[0], times[-1], range(members - 1)
    fixed = {
        name: Schedule([(time, count) for time in times])
        for name, count in ((ONE, 1), (ALL, members), (HALF, (members + 1) // 2))
    }
    doubling = [first * 2**number for number in others]
    up_to_half = [last / 2 ** (number + 1) for number in others]
    return fixed | {
        "joining as time doubles": _joining(times, doubling),
        "joining until T/2": _joining(times, up_to_half),
    }


def _joining(times: Sequence[float], joins: Sequence[float]) -> Schedule:
    """One member from the start, and another from each time of `joins` on, first looked at
    without and then with it.
    """
    looks = []
    for index, time in enumerate(times):
        before = 1 + (sum(join <= times[index - 1] for join in joins) if index else 0)
        looks += [(time, count) for count in range(before, 2 + sum(join <= time for join in joins))]
    return Schedule(looks)
