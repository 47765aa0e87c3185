"""How good the alarms of a spotter were.

Intervals are for the draw of the recordings, or of the people if these are given: percentiles of a
bootstrap, which few recordings make too narrow, and at least Student's interval of the logarithm,
or of the log-odds of a share; Wilson's for the recordings in which something happened at all, where
it happened in all of them or in none. One recording says nothing about others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agreestop.common import Integers
from agreestop.common.estimates import Estimate, student_quantile

from .alarms import found_delays
from .recordings import Recordings

BOOTSTRAPS = 2000


@dataclass(frozen=True, repr=False)
class SpottingEvaluation:
    """How good the alarms of a spotter were, with intervals for the draw of the recordings.

    Attributes
    ----------
    recordings, events, steps
        How many there were.
    threshold
        The score above which there is an alarm.
    found
        The share of events that were found; None without events.
    delay
        Mean steps from the start of a found event to its alarm; None if none was found.
    false_alarms
        False alarms a recording.
    capped
        The same with at most `cap` of them in a recording; an hour, where that is promised.
    any_false_alarm
        The share of recordings with a false alarm.
    per_hour
        False alarms an hour, where the length of a step is known.
    target
        What is promised of `capped`, in words; empty where the threshold promises nothing.

    Examples
    --------
    >>> import numpy as np, agreestop as ag
    >>> rng = np.random.default_rng(0)
    >>> recordings = [rng.normal(size=500) for _ in range(120)]
    >>> calibrated = ag.Spotter(false_alarms=0.05, rest=20).calibrate(recordings[:99])
    >>> for scores in recordings[99:]:
    ...     scores[200:210] += 9
    >>> result = calibrated.evaluate(recordings[99:], [[(200, 210)]] * 21, within=20)
    >>> result.recordings, result.events, float(result.found)
    (21, 21, 1.0)
    >>> result.target
    'at most 0.05 a recording'
    """

    recordings: int
    events: int
    steps: int
    threshold: float
    found: Estimate | None
    delay: Estimate | None
    false_alarms: Estimate
    capped: Estimate
    any_false_alarm: Estimate
    per_hour: Estimate | None
    target: str

    def __repr__(self) -> str:
        shown = {
            "events found": self.found,
            "delay in steps": self.delay,
            "false alarms a recording": self.false_alarms,
            "recordings with a false alarm": self.any_false_alarm,
            "false alarms an hour": self.per_hour,
            f"counted; promised {self.target}": self.capped if self.target else None,
        }
        width = max(30, *map(len, shown))
        lines = [f"{name:{width}} {value!r}" for name, value in shown.items() if value is not None]
        head = f"{self.recordings} recordings, {self.events} events, threshold {self.threshold:.6g}"
        return "\n".join([head, *lines])


def evaluate_alarms(
    recordings: Recordings,
    alarms: Sequence[Integers],
    near: int,
    within: int,
    cap: int,
    threshold: float,
    step_hours: float | None,
    confidence: float,
    by_hour: bool,
    target: str,
) -> SpottingEvaluation:
    """What `SpottingEvaluation` holds, from the alarms of each recording.

    step_hours: the length of a step, where it is known; by_hour: whether the promise is for an hour
    """
    n = len(recordings)
    rows = range(n)
    events = np.array([len(recordings.marked(row)) for row in rows])
    delays = [found_delays(alarms[row], recordings.marked(row), within) for row in rows]
    found = np.array([len(one) for one in delays])
    false = np.array([recordings.counted(row, near)[alarms[row]].sum() for row in rows])
    units, weights = recordings.units(), np.ones(n)
    steps = np.array([len(one) for one in recordings.scores])
    some = np.minimum(false, 1)

    def rate(total: Any, base: Any, share: bool) -> Estimate:
        return _ratio(np.asarray(total), np.asarray(base), units, confidence, share)

    hours = None if step_hours is None else steps * step_hours
    waited = np.array([one.sum() for one in delays])
    alarmed = rate(false, weights, False)
    return SpottingEvaluation(
        n,
        int(events.sum()),
        int(steps.sum()),
        threshold,
        rate(found, events, True) if events.any() else None,
        rate(waited, found, False) if found.any() else None,
        alarmed,
        rate(np.minimum(false, cap), hours if by_hour else weights, False),
        rate(some, weights, True),
        None if hours is None else rate(false, hours, False),
        target,
    )


def _ratio(
    totals: NDArray[Any], bases: NDArray[Any], units: Integers, confidence: float, share: bool
) -> Estimate:
    """Σ totals / Σ bases over recordings, with an interval for the draw of their units."""
    total, base = np.bincount(units, totals), np.bincount(units, bases)
    value, used = float(total.sum() / base.sum()), int(np.count_nonzero(base))
    wilson = Estimate.of_share(value * used if share else 0, used, confidence)
    draws = np.random.default_rng(0).multinomial(
        len(total), np.full(len(total), 1 / len(total)), size=BOOTSTRAPS
    )
    bases_drawn = draws @ base
    ratios = (draws @ total)[bases_drawn > 0] / bases_drawn[bases_drawn > 0]
    tail = 50 * (1 - confidence)
    low, high = np.percentile(ratios, [tail, 100 - tail]).tolist()
    error = float(np.std(ratios))
    if share and value in (0, 1):
        low, high = min(low, wilson.low), max(high, wilson.high)
    elif not total.any():  # nothing happened, so there is nothing to draw from again
        high = max(high, wilson.high * used / float(base.sum()))
    elif used == 1:
        low, high = 0.0, 1.0 if share else math.inf
    else:
        rest = 1 - value if share else 1.0
        reach = student_quantile(confidence, used - 1) * error
        factor = math.exp(-min(reach / (value * rest), 700.0))
        low = min(low, value * factor / (value * factor + rest if share else 1))
        high = max(high, value / (value + rest * factor if share else factor))
    return Estimate(value, min(low, value), max(high, value), error)
