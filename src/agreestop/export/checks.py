"""What C and the page are compared on: inputs, the decisions of Python on them, and how near these
came to others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from agreestop.adapters.engine import AdaptedEngine
from agreestop.common import Floats, InputError
from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.decisions import Decisions
from agreestop.decide.rule import read_evidence
from agreestop.decide.scores import Scores
from agreestop.engines.early_stopping import BATCH_SIZE
from agreestop.ensembles.ensemble import Ensemble
from agreestop.events.container import Events, as_inputs

from .rules import ExportedRule

TIED = 1e-11  # that of rule.c and rule.js


@dataclass(frozen=True)
class NearTies:
    """How near decisions came to others, as in `CExport`."""

    inputs: int = 0
    nearest: float | None = None
    ties: int = 0
    rounded: int = 0


def as_events(inputs: ArrayLike | Events, shape: tuple[int, ...], steps: int) -> Events:
    """The inputs as events.

    Those that are not as long as the rule, or that hold other values than 0 and 1, are refused.
    """
    given = as_inputs(inputs)
    events = given if isinstance(given, Events) else Events.from_dense(given)
    if (
        events.shape[2:] != shape
        or len(events) < 1
        or events.shape[1] not in (1, *range(steps, events.shape[1] + 1))
    ):
        raise InputError(
            f"the inputs have shape {events.shape}: at least one input of shape {shape} at each of "
            f"{steps} or more steps, or an image of that shape is needed."
        )
    compact = events.compact()
    if compact.values is not None and not (compact.values == 1).all():
        raise InputError(
            "the inputs hold values other than 0 and 1, and exported code takes events: threshold "
            "them, and train on the result."
        )
    return compact


def score_in_batches(
    ensemble: Ensemble | AdaptedEngine, events: Events, steps: int
) -> list[Scores]:
    """The scores of the inputs; an image is held for `steps` steps."""
    held = steps if events.shape[1] == 1 else None
    firsts = range(0, len(events), BATCH_SIZE)
    return [
        ensemble.score(events.rows(slice(first, first + BATCH_SIZE)), steps=held)
        for first in firsts
    ]


def check_decisions(
    rule: CalibratedRule, known: ExportedRule, batches: Sequence[Scores]
) -> tuple[Decisions, NearTies]:
    """The decisions of Python, and how near they came to others."""
    parts, near, ties, rounded = [], np.inf, 0, 0
    for scores in batches:
        parts.append(rule.decide(scores, any_engine=True, any_members=True))
        for index, time in enumerate(known.times):
            running = parts[-1].stop_index >= index
            evidence = read_evidence(
                rule.rule, index, np.ascontiguousarray(scores.log_confidence[running, time - 1])
            )
            values = evidence.values if evidence.log_risk is None else evidence.log_risk[:, None]
            distance, *found = _distances(known, index, values)
            near, ties, rounded = min(near, distance), ties + found[0], rounded + found[1]
    stops, sets = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("stop_index", "sets")
    )
    decisions = Decisions(stops, sets, rule.checkpoints)
    return decisions, NearTies(len(decisions), float(near), ties, rounded)


def _distances(known: ExportedRule, index: int, values: Floats) -> tuple[float, int, int]:
    """The smallest distance of values (b, columns) to the thresholds of a look, ties left out,
    the number of ties, and of rounded ones.
    """
    rows = (
        known.thresholds
        if known.blocks is not None
        else known.thresholds[[index if len(known.thresholds) > 1 else 0]]
    )
    if known.policy == "AG_CONFIDENCE":
        values = values.max(axis=1, keepdims=True)
    if known.blocks is not None:
        rows = np.append(rows, [[known.slack]], axis=0)
    limits = rows[:, None, :]  # (blocks, 1, columns)
    gaps = np.where(
        np.isfinite(limits) & np.isfinite(values),
        np.abs(values - np.where(np.isfinite(limits), limits, 0)),
        np.inf,
    )
    tied = gaps <= TIED * (1 + np.abs(np.where(np.isfinite(limits), limits, 0)))
    return (
        float(np.where(tied, np.inf, gaps).min(initial=np.inf)),
        int(np.count_nonzero(tied)),
        int(np.count_nonzero(tied & (gaps > 0))),
    )
