"""What the page says beyond one promise for all inputs: abstaining instead of a weak answer, new
people, and coarse answers first.

Each part divides the pool as the other figures do, over at most ten realisations.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from agreestop.common import Floats
from agreestop.common.errors import CalibrationWarning
from agreestop.common.estimates import Estimate
from agreestop.decide.scores import Scores
from agreestop.decide.tuning.splits import repeat_splits

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


@contextmanager
def _quiet() -> Iterator[None]:
    """The page says what cannot stop, so calibration does not warn of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        yield


def measure_abstaining(
    rule: Any, pool: Scores, measured: MeasurementSettings
) -> tuple[AbstainingPoint, ...]:
    """The front of an AgreeStop at the targets for which there are enough examples."""
    points = []
    sizes = {
        "n_calibration": measured.n_calibration,
        "repeats": min(measured.realisations, REALISATIONS),
        "seed": measured.seed,
    }
    for target in sorted({*measured.targets, *MORE_TARGETS}):
        own = replace(rule, target=target)
        if own.examples_needed(pool.log_confidence.shape[2]) > measured.n_calibration:
            continue
        with _quiet():
            abstains = repeat_splits(replace(own, at_end="abstain"), pool, **sizes)
            answers = repeat_splits(own, pool, **sizes)
        assert abstains.kepts is not None
        wrong = 1 - abstains.kepts
        means = (abstains.coverages + wrong, wrong, 1 - answers.coverages, abstains.latencies)
        points.append(AbstainingPoint(target, *map(_mean, means)))
    return tuple(points)


def _mean(values: Floats) -> Estimate:
    return Estimate.of_mean(np.asarray(values), 0.95)
