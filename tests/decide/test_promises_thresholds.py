"""Every threshold against its definition: the answers are run at each value that λ can change at, and sums are exact fractions.

The definitions say what happens to one input in plain Python. L_i(λ) is the largest cost of example i at any threshold up to λ (from λ on,
for stop-aware SpikeCP). One condition then serves all promises: Σ_i w_i L_i(λ) + w_max B ≤ level · (Σ_i w_i + w_max).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import agreestop as ag
from agreestop.common import Booleans, Floats, Integers
from agreestop.decide.agree_stop import BESIDE
from agreestop.decide.checkpoints import Failures
from agreestop.decide.conditions import Conditions, LabelledEvidence
from agreestop.decide.evidence import Evidence, run_policy
from agreestop.decide.policies import CheckpointRisks, ConditionalThresholds, RiskThreshold, StoppingThreshold
from agreestop.decide.thresholds import weighted_threshold
from tests.decide.strategies import RiskTable, between, breaking_points, risk_of, risk_tables

TARGETS = ("1/3", "1/2", "2/3", "3/4")
LOG_TRIMS = (0.0, -0.5, -1.0, -2.0, -math.inf)
Answer = Callable[[int, float], tuple[int, set[int]]]
"""Where input i stops with threshold λ, and what it answers."""


def trim_of(log_trim: float) -> float:
    trim = math.exp(log_trim)
    assert not trim or math.log(trim) == log_trim
    return trim


class Doors(NamedTuple):
    """What a gate says of n inputs: the first checkpoint that counts (M if none does), the block, and how many blocks there are."""

    opens: list[int]
    blocks: list[int]
    block_count: int


def doors_of(gate: ag.Gate | None, risk: Floats) -> Doors:
    """The definition of a gate; without one all checkpoints count, and there is one block."""
    n, checkpoints = risk.shape
    if gate is None:
        return Doors([0] * n, [0] * n, 1)
    assert gate.times is not None
    opens = [next((index for index in range(checkpoints) if row[index] < gate.slack), checkpoints) for row in risk.tolist()]
    ends = gate.ends
    blocks = [len(ends) if index == checkpoints else min(b for b, end in enumerate(ends) if gate.times[index] <= end) for index in opens]
    return Doors(opens, blocks, len(ends) + 1)


def agree_answers(table: RiskTable, log_trim: float, final: bool, opens: Sequence[int]) -> Answer:
    """AgreeStop in the words of its definition."""
    masses, risks = table.evidence.values.tolist(), risk_of(table.evidence).tolist()

    def answer(i: int, threshold: float) -> tuple[int, set[int]]:
        for index, (mass, risk) in enumerate(zip(masses[i], risks[i], strict=True)):
            ranked = sorted(range(len(mass)), key=lambda label: -mass[label])
            best = set(ranked[: table.max_set_size])
            if index >= opens[i] and risk < threshold:
                if log_trim == -math.inf:
                    return index, best
                return index, best & ({ranked[0]} | {label for label in ranked if mass[label] - log_trim >= threshold})
        return index, {ranked[0]} if final else best | {label for label in ranked if mass[label] >= threshold}

    return answer


def stop_aware_answers(table: RiskTable, final: bool, opens: Sequence[int]) -> Answer:
    """Stop-aware SpikeCP in the words of its definition; the values of the table are scores here."""
    scores = table.evidence.values.tolist()

    def answer(i: int, threshold: float) -> tuple[int, set[int]]:
        last = len(scores[i]) - 1
        for index, row in enumerate(scores[i]):
            classes = {label for label, score in enumerate(row) if score <= threshold}
            small = 1 <= len(classes) <= table.max_set_size
            if index == last:
                best = {row.index(min(row))}
                return last, best if not classes or (final and not small) else classes
            if index >= opens[i] and small:
                return index, classes
        raise AssertionError

    return answer


class Level(NamedTuple):
    """The promise: the level, what a wrong answer costs, and weights."""

    level: Fraction
    cost: Callable[[int, set[int]], Fraction]
    largest: Fraction
    weights: list[Fraction]
    max_weight: Fraction


def missing(labels: Integers) -> Callable[[int, set[int]], Fraction]:
    return lambda i, answer: Fraction(int(labels[i] not in answer))


def keeps(level: Level, rows: Sequence[int], answer: Answer, tried: Sequence[float]) -> bool:
    """Whether a threshold may be used: `tried` are it and all that are safer."""
    worst = [max(level.cost(i, answer(i, value)[1]) for value in tried) for i in rows]
    weights = [level.weights[i] for i in rows]
    left = sum(w * cost for w, cost in zip(weights, worst, strict=True)) + level.max_weight * level.largest
    return left <= level.level * (sum(weights) + level.max_weight)


def largest_safe(level: Level, rows: Sequence[int], answer: Answer, points: Sequence[float]) -> float:
    """sup of the thresholds that may be used. Everything is constant on (previous v, v]."""
    found = -math.inf
    tried: list[float] = []
    for value in (*points, math.inf):
        tried.append(value)
        if not keeps(level, rows, answer, tried):
            break
        found = value
    return found


def smallest_safe(level: Level, rows: Sequence[int], answer: Answer, points: Sequence[float]) -> float:
    """inf of the thresholds that may be used. Everything is constant on [v, next v)."""
    found = math.inf
    tried: list[float] = []
    for value in reversed((-math.inf, *points)):
        tried.append(value)
        if not keeps(level, rows, answer, tried):
            break
        found = value
    return found


def cells_of(labels: Integers, classes: int, class_conditional: bool, rows: Booleans) -> list[list[int]]:
    """The rows that a quantile is taken over."""
    inside = np.flatnonzero(rows).tolist()
    return [[i for i in inside if labels[i] == label] for label in range(classes)] if class_conditional else [inside]


@st.composite
def gates(draw: st.DrawFn, checkpoints: int) -> ag.Gate:
    """Gates that open early, late, always or never, with blocks of all sizes."""
    times = tuple(range(1, checkpoints + 1))
    ends = tuple(sorted(draw(st.sets(st.sampled_from(times))) | {checkpoints}))
    slack = draw(st.sampled_from([-5.0, -3.0, -2.0, -1.0, 0.5, math.inf]))
    return ag.Gate(ag.TopMass(), np.zeros(checkpoints), times, None, slack, ends)


class Setup(NamedTuple):
    """A table, what is known of its rows, and the settings of a rule."""

    table: RiskTable
    conditions: Conditions
    gate: ag.Gate | None
    target: str
    class_conditional: bool

    @property
    def classes(self) -> int:
        return int(self.table.evidence.values.shape[2])

    @property
    def times(self) -> range:
        return range(1, self.table.evidence.values.shape[1] + 1)

    @property
    def examples(self) -> LabelledEvidence:
        return LabelledEvidence(self.table.evidence, self.table.labels, self.classes, self.conditions)

    @property
    def groups(self) -> Booleans:
        """(n, G), one column for all without groups."""
        return np.ones((len(self.table.labels), 1), dtype=bool) if self.conditions.groups is None else self.conditions.groups

    def level(self) -> Level:
        n, weights = len(self.table.labels), self.conditions.weights
        exact = [Fraction(1)] * n if weights is None else [Fraction(w) for w in weights.tolist()]
        largest = Fraction(1 if self.conditions.max_weight is None else self.conditions.max_weight)
        return Level(1 - Fraction(self.target), missing(self.table.labels), Fraction(1), exact, largest)

    def each_cell(self, blocks: Sequence[int], count: int) -> list[list[list[list[int]]]]:
        """The rows of each group, block and class."""
        inside = [np.array(blocks) == block for block in range(count)]
        return [
            [cells_of(self.table.labels, self.classes, self.class_conditional, group & block) for block in inside]
            for group in self.groups.T
        ]

    def check_policy(self, policy: ConditionalThresholds | RiskThreshold | StoppingThreshold, answer: Answer, doors: Doors) -> None:
        """The policy answers as defined, for every input, and notes its block; inputs of no group are as safe as can be."""
        n = len(self.table.labels)
        groups = self.conditions.groups
        conditional = isinstance(policy, ConditionalThresholds)
        state = policy.start_in(groups, n) if isinstance(policy, ConditionalThresholds) else policy.start(n, self.classes, 0)
        stops = run_policy(policy, self.table.evidence, state, self.classes)
        safest = policy.base.safest if isinstance(policy, ConditionalThresholds) else policy.safest
        pick = min if safest < 0 else max
        for i in range(n):
            if isinstance(policy, ConditionalThresholds):
                own = [policy.thresholds[g, doors.blocks[i]] for g in range(len(policy.thresholds)) if self.groups[i, g]]
                limit = float(pick(own, default=safest))
            else:
                limit = policy.threshold
            assert (int(stops.index[i]), set(np.flatnonzero(stops.sets[i]).tolist())) == answer(i, limit)
            assert stops.block[i] == (doors.blocks[i] if conditional else -1)


@st.composite
def setups(draw: st.DrawFn, weighted: bool = True) -> Setup:
    """Mostly one condition at a time, since many together leave few rows for each threshold."""
    table = draw(risk_tables(most_rows=8))
    n, checkpoints, _ = table.evidence.values.shape
    used = draw(st.sampled_from([(), (), ("groups",), ("weights",), ("classes",), ("groups", "weights", "classes")]))
    groups = draw(hnp.arrays(np.bool_, (n, draw(st.integers(1, 3))))) if "groups" in used else None
    names = None if groups is None else tuple(map(str, range(groups.shape[1])))
    weights = largest = None
    if weighted and "weights" in used:
        weights = draw(hnp.arrays(np.float64, n, elements=st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0])))
        largest = draw(st.sampled_from([2.0, 2.5]))
    conditions = Conditions(groups, names, weights, largest, draw(st.sampled_from([False, False, True])))
    gate = draw(gates(checkpoints)) if draw(st.booleans()) else None
    return Setup(table, conditions, gate, draw(st.sampled_from(TARGETS)), "classes" in used)


def as_final(setup: Setup, labels: Integers) -> Setup:
    """With the ensemble's own best class at the last checkpoint as the label, if that is what is asked for."""
    return setup._replace(table=setup.table._replace(labels=labels)) if setup.conditions.final else setup


def agree_points(table: RiskTable, log_trim: float) -> tuple[float, ...]:
    values = table.evidence.values
    return breaking_points(np.concatenate([values.ravel(), (values - log_trim).ravel(), risk_of(table.evidence).ravel()]))


def kth_of(policy: object, base: type[RiskThreshold | StoppingThreshold]) -> list[list[float]]:
    """(G, B) order statistics, which the thresholds lie close to, on the safe side. A rule without conditions has the plain policy."""
    if isinstance(policy, base):
        thresholds, kth, safest = np.array([[policy.threshold]]), policy.kth_values, policy.safest
        kth = None if kth is None else kth[None]
    else:
        assert isinstance(policy, ConditionalThresholds) and isinstance(policy.base, base)
        thresholds, kth, safest = policy.thresholds, policy.kth_values, policy.base.safest
    assert kth is not None
    if safest < 0:
        finite = np.isfinite(kth)
        assert (thresholds[~finite] == kth[~finite]).all()
        assert (thresholds[finite] < kth[finite]).all() and (thresholds[finite] > kth[finite] - 0.03).all()
    return [[float(value) for value in row] for row in kth]


@given(setups(), st.sampled_from(LOG_TRIMS))
@settings(max_examples=250)
def test_agreestop_takes_the_largest_safe_threshold(setup: Setup, log_trim: float) -> None:
    setup = as_final(setup, setup.table.evidence.values[:, -1].argmax(axis=1))
    table, gate = setup.table, setup.gate
    doors = doors_of(gate, risk_of(table.evidence))
    answer = agree_answers(table, log_trim, setup.conditions.final, doors.opens)
    rule = ag.AgreeStop(
        setup.target, setup.times, table.max_set_size, class_conditional=setup.class_conditional, gate=gate, trim=trim_of(log_trim)
    )
    policy = rule.fit(setup.examples)
    points, level = agree_points(table, log_trim), setup.level()
    expected = [
        [min(largest_safe(level, cell, answer, points) for cell in cells) for cells in row]
        for row in setup.each_cell(doors.blocks, doors.block_count)
    ]
    assert kth_of(policy, RiskThreshold) == expected
    assert isinstance(policy, (RiskThreshold, ConditionalThresholds))
    setup.check_policy(policy, answer, doors)


@given(setups())
@settings(max_examples=250)
def test_stop_aware_takes_the_earliest_of_the_safe_thresholds(setup: Setup) -> None:
    setup = as_final(setup, setup.table.evidence.values[:, -1].argmin(axis=1))
    table, gate = setup.table, setup.gate
    doors = doors_of(gate, risk_of(table.evidence))
    answer = stop_aware_answers(table, setup.conditions.final, doors.opens)
    rule = ag.SpikeCP(
        setup.target, setup.times, table.max_set_size, None, "stop-aware", class_conditional=setup.class_conditional, gate=gate
    )
    policy = rule.fit(setup.examples)
    points, level = breaking_points(table.evidence.values), setup.level()

    def floor(cells: list[list[int]]) -> float:
        return max(smallest_safe(level, cell, answer, points) for cell in cells)

    def earliest(cells: list[list[int]]) -> float:
        rows = [i for cell in cells for i in cell]
        candidates = (floor(cells), *(point for point in points if point > floor(cells)))
        return min(candidates, key=lambda value: (sum(answer(i, value)[0] for i in rows), value)) if rows else candidates[0]

    each = setup.each_cell(doors.blocks, doors.block_count)
    assert kth_of(policy, StoppingThreshold) == [[floor(cells) for cells in row] for row in each]
    thresholds = policy.thresholds if isinstance(policy, ConditionalThresholds) else [[policy.threshold]]  # type: ignore[attr-defined]
    for found, cells in zip(np.ravel(thresholds).tolist(), (cells for row in each for cells in row), strict=True):
        best = earliest(cells)
        assert best <= found <= best + 0.03, "in a gap above the earliest"
    assert isinstance(policy, (StoppingThreshold, ConditionalThresholds))
    setup.check_policy(policy, answer, doors)


@given(st.data())
@settings(max_examples=200)
def test_a_loss_takes_the_largest_safe_threshold(data: st.DataObject) -> None:
    setup = data.draw(setups(weighted=False).filter(lambda found: found.classes > 1))
    log_trim = data.draw(st.sampled_from(LOG_TRIMS))
    setup = as_final(setup, setup.table.evidence.values[:, -1].argmax(axis=1))
    table, classes = setup.table, setup.classes
    costs = data.draw(hnp.arrays(np.float64, (classes, classes), elements=st.sampled_from([0.0, 0.1, 0.3, 1.0, 2.5])))
    np.fill_diagonal(costs, 0.0)
    if not costs.any():
        costs[0, 1] = 0.3
    largest = Fraction(str(costs.max()))
    max_loss = largest * data.draw(st.sampled_from([Fraction(1, 7), Fraction(1, 4), Fraction(1, 3), Fraction(2, 3)]))
    doors = doors_of(setup.gate, risk_of(table.evidence))
    answer = agree_answers(table, log_trim, setup.conditions.final, doors.opens)

    def cost(i: int, classes: set[int]) -> Fraction:
        return min(Fraction(str(costs[table.labels[i], label])) for label in classes)

    level = setup.level()._replace(level=max_loss, cost=cost, largest=largest)
    rule = ag.AgreeStop(
        None,
        setup.times,
        table.max_set_size,
        class_conditional=setup.class_conditional,
        gate=setup.gate,
        trim=trim_of(log_trim),
        loss=costs,
        max_loss=max_loss,
    )
    points = agree_points(table, log_trim)
    expected = [
        [min(largest_safe(level, cell, answer, points) for cell in cells) for cells in row]
        for row in setup.each_cell(doors.blocks, doors.block_count)
    ]
    assert kth_of(rule.fit(setup.examples), RiskThreshold) == expected


def binomial_at_most(successes: int, n: int, p: Fraction) -> Fraction:
    return Fraction(sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(successes + 1)))


@given(risk_tables(most_rows=9), st.data())
@settings(max_examples=200)
def test_accumulated_opens_checkpoints_while_exact_tests_pass(table: RiskTable, data: st.DataObject) -> None:
    n, checkpoints, classes = table.evidence.values.shape
    target, delta = Fraction(data.draw(st.sampled_from(TARGETS))), Fraction(data.draw(st.sampled_from(["1/20", "1/4", "1/2", "3/4"])))
    final, gated = data.draw(st.booleans()), data.draw(st.booleans())
    if final:
        table = table._replace(labels=table.evidence.values[:, -1].argmax(axis=1))
    log_trim = data.draw(st.sampled_from(LOG_TRIMS))
    times = tuple(range(1, checkpoints + 1))
    risk = ag.Gate(ag.TopMass(), np.zeros(checkpoints), times, None, 0.5, (checkpoints,)) if gated else ag.TopMass()
    rule = ag.AgreeStop(target, times, table.max_set_size, risk=risk, delta=delta, accumulated=True, trim=trim_of(log_trim))
    limit = (0.0 if gated else math.log(1 - target)) - BESIDE
    expected = [-math.inf] * checkpoints
    for first in reversed(range(checkpoints)):
        answer = agree_answers(table, log_trim, final, [first] * n)
        answers = [answer(i, limit) for i in range(n)]
        by = {t: [i for i in range(n) if answers[i][0] <= t] for t in range(first, checkpoints)}
        missed = {t: sum(int(table.labels[i]) not in answers[i][1] for i in rows) for t, rows in by.items()}
        if not all(rows and binomial_at_most(missed[t], len(rows), 1 - target) <= delta for t, rows in by.items()):
            break
        expected[first] = limit
    policy = rule.fit(LabelledEvidence(table.evidence, table.labels, classes, Conditions(final=final)))
    assert isinstance(policy, CheckpointRisks)
    assert policy.thresholds.tolist() == expected
    opened = next((index for index, value in enumerate(expected) if value > -math.inf), checkpoints)
    answer = agree_answers(table, log_trim, final, [opened] * n)
    stops = run_policy(policy, table.evidence, policy.start(n, classes, 0), classes)
    for i in range(n):
        expected_answer = answer(i, limit if opened < checkpoints else -math.inf)
        assert (int(stops.index[i]), set(np.flatnonzero(stops.sets[i]).tolist())) == expected_answer


@given(risk_tables(), st.sampled_from(LOG_TRIMS), st.data())
@settings(max_examples=200)
def test_first_failure_with_trim_and_gate_is_the_infimum_of_the_thresholds_that_miss(
    table: RiskTable, log_trim: float, data: st.DataObject
) -> None:
    doors = doors_of(data.draw(gates(table.evidence.values.shape[1])), risk_of(table.evidence))
    answer = agree_answers(table, log_trim, False, doors.opens)
    checkpoints = np.arange(table.evidence.values.shape[1])
    failures = Failures.of(table.evidence, table.labels, table.max_set_size, log_trim).at(checkpoints >= np.array(doors.opens)[:, None])
    points = agree_points(table, log_trim)
    for i, failure in enumerate(failures.first().tolist()):
        label = int(table.labels[i])
        values = sorted({*points, *between(points), math.inf})
        assert all(label in answer(i, value)[1] for value in values if value <= failure)
        above = [value for value in values if value > failure]
        assert not above or label not in answer(i, above[0])[1]


@pytest.mark.parametrize("n", [38, 37])
def test_a_gate_with_delta_divides_it_among_its_blocks(n: int) -> None:
    """0.9^n ≤ 0.1/5 from n = 38 on: four blocks and "never" share δ = 0.1."""
    times = (1, 2, 3, 4)
    gate = ag.Gate(ag.TopMass(), np.zeros(4), times, None, math.inf, (1, 2, 3, 4))
    rule = ag.AgreeStop(0.9, times, 1, gate=gate, delta=0.1)
    assert rule.examples_needed() == 38
    assert ag.SpikeCP(0.9, times, 1, calibration="stop-aware", gate=gate, delta=0.1).examples_needed() == 38
    values = np.tile([0.0, -1.0], (n, 4, 1))
    policy = rule.fit(LabelledEvidence(Evidence(values, np.full((n, 4), -1.0)), np.ones(n, dtype=np.int64), 2))
    assert isinstance(policy, ConditionalThresholds)
    assert policy.kth_values is not None
    assert policy.kth_values[0].tolist() == [-1.0 if n == 38 else -math.inf, *[-math.inf] * 4], "all open at once and fail from e on"


@given(st.data())
@settings(max_examples=400)
def test_the_weighted_threshold_is_its_definition(data: st.DataObject) -> None:
    n, alpha = data.draw(st.integers(1, 8)), Fraction(data.draw(st.sampled_from(["1/4", "1/3", "1/2", "3/4"])))
    failures = data.draw(hnp.arrays(np.float64, n, elements=st.sampled_from([-math.inf, -1.0, 0.0, 1.0, 2.0, 3.0, math.inf])))
    weights = data.draw(hnp.arrays(np.float64, n, elements=st.sampled_from([0.0, 1.0, 2.0, 3.0])))
    largest = data.draw(st.sampled_from([3.0, 4.0]))
    expected = -math.inf
    for value in (-1.0, 0.0, 1.0, 2.0, 3.0, math.inf):
        below = sum(Fraction(w) for w, failure in zip(weights.tolist(), failures.tolist(), strict=True) if failure < value)
        if below + Fraction(largest) <= alpha * (sum(map(Fraction, weights.tolist())) + Fraction(largest)):
            expected = value
    assert weighted_threshold(failures, weights, largest, alpha) == expected


def test_a_last_answer_that_no_threshold_reaches_costs_nothing() -> None:
    """Up to λ = -3 the last answer holds the label; above it the input stops at once, and is right."""
    evidence = Evidence(np.array([[[0.0, -1.0, -2.0], [-3.0, 0.0, -5.0]]]), np.array([[-3.0, 0.0]]))
    rule = ag.AgreeStop(None, (1, 2), 1, loss=1 - np.eye(3), max_loss=0.5)
    assert kth_of(rule.fit(LabelledEvidence(evidence, np.array([0]), 3)), RiskThreshold) == [[math.inf]]


def test_a_class_that_is_just_kept_is_no_miss_in_the_accumulated_test() -> None:
    gate = ag.Gate(ag.TopMass(), np.zeros(2), (1, 2), None, 0.5, (2,))
    rule = ag.AgreeStop("1/2", (1, 2), 2, risk=gate, accumulated=True, delta="1/20", trim=trim_of(-1.0))
    evidence = Evidence(np.tile([0.0, -1.0, -2.0], (10, 2, 1)), np.full((10, 2), -2.0))
    policy = rule.fit(LabelledEvidence(evidence, np.ones(10, dtype=np.int64), 3))
    assert isinstance(policy, CheckpointRisks)
    assert policy.thresholds.tolist() == [-BESIDE, -BESIDE]


def test_the_last_checkpoint_counts_for_inputs_whose_gate_never_opens() -> None:
    """Their last answer holds the label for λ ≥ 1, and the block of those that are ready is empty."""
    gate = ag.Gate(ag.TopMass(), np.zeros(2), (1, 2), None, -5.0, (2,))
    rule = ag.SpikeCP("1/2", (1, 2), 1, None, "stop-aware", gate=gate)
    evidence = Evidence(np.tile([0.0, 1.0, 2.0], (5, 2, 1)), np.zeros((5, 2)))
    policy = rule.fit(LabelledEvidence(evidence, np.ones(5, dtype=np.int64), 3))
    assert kth_of(policy, StoppingThreshold) == [[math.inf, 1.0]]
