"""Small score makers, hypothesis strategies and helpers that the tests share.

The tests use public names. The few things that have no public name stand at the end of this file,
and nowhere else.
"""

from __future__ import annotations

import copy
import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import agreestop as ag
from agreestop.common import Booleans, Floats, Integers, Rounding
from agreestop.common import Estimate as Estimate
from agreestop.common.estimates import student_quantile as student_quantile
from agreestop.decide import agree_stop
from agreestop.decide.answer_kinds import BestClasses
from agreestop.decide.calibration import calibrate_reduced as calibrate_reduced
from agreestop.decide.calibration import reduce_examples as reduce_examples
from agreestop.decide.checkpoints import (
    Conditions,
    Evidence,
    LabelledEvidence,
    State,
    Stops,
    run_checkpoints,
)
from agreestop.decide.drift import betting as betting
from agreestop.decide.drift import label_queue as label_queue
from agreestop.decide.drift.adaptive import SavedAdaptive as SavedAdaptive
from agreestop.decide.drift.monitor import JUMP as JUMP
from agreestop.decide.drift.monitor import SHARES as SHARES
from agreestop.decide.drift.monitor import TILTS as TILTS
from agreestop.decide.drift.monitor import Alarm as Alarm
from agreestop.decide.drift.monitor import SavedMonitor as SavedMonitor
from agreestop.decide.drift.risk_grid import RiskGrid as RiskGrid
from agreestop.decide.merging import parse_pooling as parse_pooling
from agreestop.decide.risks import Risk
from agreestop.decide.risks import Score as Score
from agreestop.decide.risks import Shaped as Shaped
from agreestop.decide.rule import build_rule as build_rule
from agreestop.decide.rule import gather_evidence, read_evidence, rule_kinds
from agreestop.decide.stop_rule import Risks as Risks
from agreestop.decide.thresholds import OneThreshold
from agreestop.decide.tuning import schedules as schedule_search
from agreestop.decide.tuning import tune as tuning
from agreestop.decide.tuning.simulated import simulate_spikes as simulate_spikes
from agreestop.decide.tuning.tune import Trial as Trial

KINDS = rule_kinds()
Rule = ag.SpikeCP | ag.AgreeStop | ag.DCSNN | ag.SEENN

EXPONENTS = (-math.inf, -45.0, -2.0, -1.0, -0.5, 0.0, 0.3, 1.0, 2.0, 5.0, 45.0, math.inf)


def exponents() -> st.SearchStrategy[float]:
    """Exponents of a generalised mean: the named ones, whole and broken, positive and negative."""
    return st.one_of(
        st.sampled_from(EXPONENTS), st.floats(-20, 20).filter(lambda r: abs(r) > 1e-200)
    )


class Sample(NamedTuple):
    """Log-confidences (n, M, K, C) and labels (n,)."""

    log_confidence: Floats
    labels: Integers

    def rows(self, rows: slice | Integers) -> Sample:
        return Sample(self.log_confidence[rows], self.labels[rows])


def make_sample(
    n: int,
    checkpoints: int = 3,
    members: int = 2,
    classes: int = 4,
    seed: int = 0,
    tied: bool = True,
) -> Sample:
    """Members that count spikes, many of them in common, in favour of the label; every class is the
    label equally often.

    `tied=False` adds noise, so that no two scores tie.
    """
    rng = np.random.default_rng([seed, n, checkpoints, members, classes])
    labels = rng.permutation(np.arange(n) % classes)
    rates = np.full((n, 1, 1, classes), 0.25)
    rates[np.arange(n), 0, 0, labels] = rng.uniform(0.15, 0.8, size=n)
    common = rng.binomial(2, rates, size=(n, checkpoints, 1, classes))
    own = rng.binomial(2, rates, size=(n, checkpoints, members, classes))
    seen = np.where(rng.random(own.shape) < 0.7, common, own)
    counts = seen.cumsum(axis=1).astype(np.float64)
    if not tied:
        counts += rng.normal(scale=0.3, size=counts.shape)
    return Sample(ag.log_confidence(counts), labels)


def calibrate_quietly(rule: Any, *data: Any, **options: Any) -> ag.CalibratedRule:
    """Calibrate with examples that may be too few to exclude anything: such warnings, and no
    others, are passed over.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ag.CalibrationWarning)
        given = data[0] if len(data) == 1 and isinstance(data[0], Sample) else data
        calibrated: ag.CalibratedRule = rule.calibrate(*given, **options)
        return calibrated


def value_of_each(rule: Any, log_confidence: Floats, labels: Any) -> Floats:
    """W, or V, of every example (n,): each is a group of its own, and with target 1/2 the order
    statistic of one value is that value.
    """
    rows = [f"row {row:06}" for row in range(len(log_confidence))]
    calibrated = calibrate_quietly(replace(rule, target="1/2"), log_confidence, labels, groups=rows)
    assert calibrated.kth_values is not None and calibrated.group_names == tuple(rows)
    return calibrated.kth_values


def assert_same_decisions(first: ag.Decisions, second: ag.Decisions) -> None:
    np.testing.assert_array_equal(first.stop_index, second.stop_index)
    np.testing.assert_array_equal(first.sets, second.sets)
    assert first.checkpoints == second.checkpoints


def assert_one_sentence(message: str) -> None:
    """The message that a user reads: one sentence with a full stop."""
    assert message.endswith("."), message
    assert not re.search(r"[.!?]\s", message), message
    assert "\n" not in message, message


class ScoreTable(NamedTuple):
    """Scores (n, M, C), labels (n,) and the largest set that may stop."""

    scores: Floats
    labels: Integers
    max_set_size: int


def _few_values(shape: tuple[int, ...]) -> st.SearchStrategy[Floats]:
    return hnp.arrays(np.float64, shape, elements=st.integers(0, 5).map(float))


@st.composite
def score_tables(draw: st.DrawFn, most_rows: int = 4) -> ScoreTable:
    """Tiny score tables full of ties: M = 1..4, C = 1..5, I = 1..C + 1."""
    n, checkpoints, classes = (
        draw(st.integers(1, most_rows)),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 5)),
    )
    scores = draw(_few_values((n, checkpoints, classes)))
    labels = draw(hnp.arrays(np.int64, n, elements=st.integers(0, classes - 1)))
    return ScoreTable(scores, labels, draw(st.integers(1, classes + 1)))


class RiskTable(NamedTuple):
    """log ρ (n, M, C) and log e (n, M) of all checkpoints, labels (n,) and the largest set that may
    stop.
    """

    mass: Floats
    risk: Floats
    labels: Integers
    max_set_size: int

    @property
    def log_confidence(self) -> Floats:
        """(n, M, 2, C): what `TableRisk` and `TableScore` read the table from."""
        risk = np.maximum(self.risk, NOTHING)
        return np.stack([self.mass, np.broadcast_to(risk[:, :, None], self.mass.shape)], axis=2)

    @property
    def times(self) -> tuple[int, ...]:
        return tuple(range(1, self.mass.shape[1] + 1))


@st.composite
def risk_tables(draw: st.DrawFn, most_rows: int = 4) -> RiskTable:
    """Tiny tables of ρ (distinct inside a cell, as masses of tails are; heavy ties between cells)
    and of a risk e.

    The risk is the mass of all but the I most probable classes, or any number, minus infinity among
    them.
    """
    n, checkpoints, classes = (
        draw(st.integers(1, most_rows)),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 5)),
    )
    max_set_size = draw(st.integers(1, classes + 1))
    cells = st.permutations(range(-7, 0)).map(lambda values: values[:classes])
    masses, risks = np.empty((n, checkpoints, classes)), np.empty((n, checkpoints))
    any_risk = draw(st.booleans())
    for row in range(n):
        for index in range(checkpoints):
            mass = np.array(draw(cells), dtype=np.float64)
            mass[mass.argmax()] = 0.0
            tail = np.sort(mass)[::-1][max_set_size] if max_set_size < classes else -np.inf
            masses[row, index] = mass
            risks[row, index] = (
                draw(st.sampled_from([-np.inf, -6.0, -4.0, -3.0, -2.0, -1.0, 0.0]))
                if any_risk
                else tail
            )
    labels = draw(hnp.arrays(np.int64, n, elements=st.integers(0, classes - 1)))
    return RiskTable(masses, risks, labels, max_set_size)


def breaking_points(values: Floats) -> tuple[float, ...]:
    """All finite values in order: what a comparison with λ can change at."""
    return tuple(np.unique(values[np.isfinite(values)]).tolist())


def between(points: Sequence[float]) -> list[float]:
    """A number below all points, between each two neighbours, and above all."""
    if not points:
        return [0.0]
    inner = [(low + high) / 2 for low, high in pairwise(points)]
    return [points[0] - 1.0, *inner, points[-1] + 1.0]


# ------------------------------------------------------------------------------------------ what
# has no public name


LEARNED = "policy"  # where a rule file keeps what calibration learned
NOTHING = -1e6  # stands for a risk of minus infinity, since log-confidences are finite


class TableRisk(Risk):
    """A risk that is written down: member 0 of the log-confidences is log ρ of each class, member 1
    is log e.
    """

    def evidence(self, index: Any, log_confidence: Floats, max_set_size: int) -> Evidence:
        risk = log_confidence[:, 1, 0]
        return Evidence(log_confidence[:, 0], np.where(risk <= NOTHING, -np.inf, risk))


class TableScore(Score):
    """A score that is written down: member 0 of the log-confidences is the score of each class."""

    def losses(self, index: int, log_confidence: Floats) -> Floats:
        return log_confidence[:, 0]


class Reading(NamedTuple):
    """What a rule reads off n inputs at all M checkpoints: numbers of the classes (n, M, C) or (n,
    M, K, C), and log e (n, M).
    """

    values: Floats
    log_risk: Floats | None

    @property
    def risk(self) -> Floats:
        """log e of a rule that estimates it."""
        assert self.log_risk is not None
        return self.log_risk

    @property
    def level(self) -> Floats:
        """One number for each input: log e, or without it the least score."""
        return self.values.min(axis=-1) if self.log_risk is None else self.log_risk


def reading_of(rule: Any, log_confidence: Floats) -> Reading:
    """What the rule reads off log-confidences (n, M, K, C) at its checkpoints."""
    evidence = gather_evidence(rule, log_confidence, range(len(rule.checkpoints)))
    return Reading(evidence.values, evidence.log_risk)


def reading_at(risk: Any, index: Any, log_confidence: Floats, max_set_size: int) -> Reading:
    """What a risk reads off log-confidences (b, K, C) at one checkpoint, or at one checkpoint for
    each input.
    """
    evidence = risk.evidence(index, log_confidence, max_set_size)
    return Reading(evidence.values, evidence.log_risk)


def rule_reads(rule: Any, index: Any, log_confidence: Floats) -> Reading:
    """What a rule reads off log-confidences (b, K, C) at one checkpoint, or at one checkpoint for
    each input.
    """
    evidence = read_evidence(rule, index, log_confidence)
    return Reading(evidence.values, evidence.log_risk)


def best_classes(rule: Any, log_confidence: Floats) -> Integers:
    """The best class of every input at every checkpoint of the rule, (n, M)."""
    evidence = gather_evidence(rule, log_confidence, range(len(rule.checkpoints)))
    return np.stack(
        [rule.best(evidence[:, index]) for index in range(len(rule.checkpoints))], axis=1
    )


def decisions_of_an_engine(calibrated: ag.CalibratedRule, n: int) -> ag.Decisions:
    """Decisions of an engine that knows neither the scores of its inputs nor their ids."""
    return calibrated.decisions(Stops.empty(n, calibrated.classes), None)


def parts_of_state(state: Any) -> dict[str, Any]:
    """What a rule remembers of its inputs between two checkpoints: an array for each thing, or
    None.
    """
    names = [field.name for field in fields(state) if field.name not in ("count", "first_risk")]
    return {name: getattr(state, name) for name in names}


def uniforms_of(session_or_state: Any) -> Floats:
    """The random numbers of a stream, or of inputs before their first checkpoint."""
    found: Floats = getattr(session_or_state, "_state", session_or_state).uniforms
    return found


def boldest_of(calibrated: ag.CalibratedRule) -> float:
    """The boldest threshold that was of any use for the calibration examples."""
    assert calibrated.reach is not None
    return calibrated.shown(calibrated.reach[1])


def processed_by(monitor_or_adaptive: Any) -> int:
    """How many decisions have had their turn, with a label or without."""
    return int(monitor_or_adaptive._queue.processed)


def calibration_risk_of(monitor: ag.DriftMonitor) -> float:
    """The probability that a calibration draw misses more than the level of the monitor."""
    return float(monitor._promise.risk)


def with_thresholds(calibrated: ag.CalibratedRule, thresholds: Floats) -> ag.CalibratedRule:
    """A rule with groups or a gate, with other thresholds (G, B), which may be damaged."""
    policy: Any = calibrated.policy
    return replace(
        calibrated,
        policy=replace(policy, values=policy.answer.shown(thresholds), order_statistics=None),
    )


QUICK_REPEATS = 3  # of a candidate, in tests of jobs


def tune_quickly(
    patch: Any,
    *,
    steps: int = 1,
    powers: tuple[float, ...] = (1.0,),
    learned: bool = True,
    **constants: Any,
) -> None:
    """Make `tune` and `front` search little. `learned=False` leaves out the learned risk, since
    scikit-learn is slow to load.
    """
    patch.setattr(tuning, "SEARCH_STEPS", steps)
    patch.setattr(tuning, "POWERS", powers)
    patch.setattr(schedule_search, "SEARCH_STEPS", steps)
    for name, value in constants.items():
        patch.setattr(tuning, name, value)
    if not learned:
        patch.setattr(agree_stop, "find_spec", lambda name: None)


def measure_quickly(patch: Any, **settings: Any) -> None:
    """`tune_quickly` for jobs that measure every rule: what they tune tries one exponent and few
    divisions.
    """
    tune_quickly(patch, **{"FINALISTS": 1, **settings})
    patch.setattr(
        "agreestop.pipeline.measure.tune",
        partial(tuning.tune, exponents=(1.0,), repeats=QUICK_REPEATS),
    )


def assert_same_reading(first: Reading, second: Reading) -> None:
    np.testing.assert_array_equal(first.values, second.values)
    assert (first.log_risk is None) == (second.log_risk is None)
    if first.log_risk is not None and second.log_risk is not None:
        np.testing.assert_array_equal(first.log_risk, second.log_risk)


def rounded_value_of_each(
    rule: Any, log_confidence: Floats, labels: Integers, stated: float, final: bool = False
) -> Floats:
    """W_η, or V_η, of every example (n,): what no run of the same input that is rounded otherwise
    goes beyond.
    """
    evidence = gather_evidence(rule, log_confidence, range(len(rule.checkpoints)))
    rounding = Rounding.of(log_confidence, stated)
    classes = log_confidence.shape[-1]
    examples = LabelledEvidence(evidence, labels, classes, Conditions(final=final), rounding)
    reduced = rule.reduce(examples)
    if "above" in reduced:  # simultaneous
        return np.asarray(reduced["above"])
    return np.asarray(reduced["rounded"] * (-1.0 if "stops" in reduced else 1.0))


@dataclass(frozen=True, eq=False)
class Ended:
    """How n inputs ended: at which checkpoint (n,), with which answer (n, C), and in which block of
    a gate (n,).
    """

    index: Integers
    sets: Booleans
    block: Integers


class Trials:
    """A rule on a pool of rows that are read once, to be calibrated on some rows and run on others
    many times.

    It does what `calibrate` and `decide` do, without the checks of their input, and so much faster.
    What `fit` returns is for `run` alone.
    """

    def __init__(
        self,
        rule: Any,
        log_confidence: Floats,
        labels: Integers,
        groups: Booleans | None = None,
        weights: Floats | None = None,
        final: bool = False,
    ) -> None:
        self.rule, self.groups, self.classes = rule, groups, log_confidence.shape[-1]
        self._evidence = gather_evidence(rule, log_confidence, range(log_confidence.shape[1]))
        self.labels: Integers = rule.best(self._evidence[:, -1]) if final else labels
        names = None if groups is None else tuple(map(str, range(groups.shape[1])))
        largest = None if weights is None else float(weights.max())
        conditions = Conditions(groups, names, weights, largest, final=final)
        self._examples = LabelledEvidence(self._evidence, self.labels, self.classes, conditions)

    def __len__(self) -> int:
        return len(self.labels)

    def of_members(self, members: Integers) -> Trials:
        """The same trials with some of the members, in this order, of a rule that reads each member
        by itself.
        """
        other = copy.copy(self)
        other._evidence = Evidence(self._evidence.values[:, :, members])
        other._examples = replace(self._examples, evidence=other._evidence)
        return other

    def fit(self, rows: Integers) -> Any:
        """What calibration on these rows learns."""
        examples = self._examples.rows(rows)
        return self.rule.fit(self.rule.reduce(examples), examples)

    def run(self, fitted: Any, rows: Integers | None = None, first: int = 0) -> Ended:
        """How the rows, or all, end; `first` is the number of the first of them, for random
        numbers.
        """
        chosen = np.arange(len(self)) if rows is None else rows
        if self.groups is not None and fitted.group_names is not None:
            state = fitted.start_in(self.groups[chosen])
        else:
            state = fitted.start(len(chosen), self.classes, first)
        last = self._evidence.values.shape[1] - 1

        def judge(index: int, active: Integers, state: State) -> Any:
            return fitted.judge(index, index == last, self._evidence[chosen[active], index], state)

        stops = run_checkpoints(judge, state, last + 1, self.classes)
        return Ended(stops.index, stops.sets, stops.block)

    def with_uniforms(self, fitted: Any, row: int, uniforms: Floats) -> Booleans:
        """The sets (b, C) of one row at the only checkpoint, with each of these random numbers (b,
        1).
        """
        evidence = self._evidence[np.full(len(uniforms), row), 0]
        sets: Booleans = fitted.judge(
            0, True, evidence, State(len(uniforms), uniforms=uniforms)
        ).sets
        return sets

    def at_thresholds(self, thresholds: Floats) -> Any:
        """AgreeStop with one threshold for each checkpoint, in place of what `fit` returns."""
        return OneThreshold(
            BestClasses(self.rule.max_set_size), thresholds[None], by_checkpoint=True
        )


def at_threshold(calibrated: ag.CalibratedRule, threshold: float) -> ag.CalibratedRule:
    """The rule with another threshold, of a rule that has one."""
    return replace(calibrated, policy=calibrated.policy.moved(calibrated.shown(threshold)))


def at_kth_values(calibrated: ag.CalibratedRule) -> ag.CalibratedRule:
    """The rule with the order statistics themselves as thresholds, which rounding may put on either
    side.
    """
    policy: Any = calibrated.policy
    return replace(calibrated, policy=replace(policy, values=policy.order_statistics))


def without_rounding(calibrated: ag.CalibratedRule, rounding: float) -> ag.CalibratedRule:
    """A rule of p-variables or ranks that does not allow for rounding."""
    policy: Any = calibrated.policy
    pooled = hasattr(policy.ranks, "eta")
    changes: dict[str, Any] = (
        {"eta": None} if pooled else {"calibration": policy.ranks.calibration - rounding}
    )
    return replace(calibrated, policy=replace(policy, ranks=replace(policy.ranks, **changes)))


def sets_at_checkpoints(calibrated: ag.CalibratedRule, log_confidence: Floats) -> Booleans:
    """The set of every input at every checkpoint, (n, M, C): what it would answer if that one were
    the last.
    """
    state = calibrated.start(len(log_confidence), 0)
    sets = []
    for index in range(log_confidence.shape[1]):
        evidence = calibrated.rule.evidence(index, np.ascontiguousarray(log_confidence[:, index]))
        verdict = calibrated.policy.judge(index, True, evidence, state)
        sets.append(verdict.sets)
        state = verdict.state
    return np.stack(sets, axis=1)


def merge_exchangeable(p: Any, r: float) -> Floats:
    """The least over prefixes of (r+1)^(1/r) · M_r, from p-values (..., K): what
    form="exchangeable" promises.
    """
    array = np.asarray(p)
    constant = math.e if r == 0 else 1.0 if math.isinf(r) else (1 + r) ** (1 / r)
    means = [ag.generalized_mean(array[..., :m], r) for m in range(1, array.shape[-1] + 1)]
    return np.minimum(1.0, constant * np.minimum.reduce(means))


def merge_randomized(p: Any, r: float, u: float) -> Floats:
    """2/(2-u) · mean for r = 1, e^u · geometric mean for r = 0: what form="randomized" promises."""
    factor = math.exp(u) if r == 0 else 2 / (2 - u)
    return np.minimum(1.0, factor * ag.generalized_mean(p, r))
