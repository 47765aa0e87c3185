"""Rules for a page with int8 weights, which take a quarter of the bytes of float32.

A rule holds for the engine that it was calibrated with. So some of the inputs of the page are
scored with int8 weights and calibrate, and the page replays others.
"""

from collections.abc import Sequence
from os import PathLike
from typing import NamedTuple

import numpy as np

from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.scores import Scores
from agreestop.ensembles import load
from agreestop.ensembles.ensemble import Ensemble
from agreestop.events.container import Events

MOST_SHOWN, MOST_CALIBRATION = 300, 148


class SmallPage(NamedTuple):
    """The ensemble with int8 weights, scores that calibrate rules on it, and inputs to replay."""

    ensemble: Ensemble
    calibration: Scores
    inputs: Events


def int8_page(members: str | PathLike[str], inputs: Events) -> SmallPage:
    """The members of this file with int8 weights, and labelled inputs in two parts.

    The inputs are shuffled first. A third of them, at most 148, calibrate; at most 300 others are
    replayed.
    """
    ensemble = load(members, engine="event-driven-int8")
    n = min(MOST_CALIBRATION, len(inputs) // 3)
    order = np.random.default_rng(0).permutation(len(inputs))
    scores = ensemble.score(inputs.rows(order[:n]))
    return SmallPage(ensemble, scores, inputs.rows(order[n : n + MOST_SHOWN]))


def calibrate_again(rules: Sequence[CalibratedRule], scores: Scores) -> list[CalibratedRule] | None:
    """The same rules on other scores; None where one of them can no longer stop early."""
    needed = max(rule.examples_needed for rule in rules)
    if len(scores) < needed:
        return None
    found = [rule.rule.calibrate(scores) for rule in rules]
    before = zip(rules, found, strict=True)
    return None if any(new.never_stops > old.never_stops for old, new in before) else found
