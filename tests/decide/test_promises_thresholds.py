"""Every threshold against its definition: the answers are run at each value that λ can change at,
and sums are exact fractions.

The definitions say what happens to one input in plain Python. L_i(λ) is the largest cost of example
i at any threshold up to λ (from λ on, for stop-aware SpikeCP). One condition then serves all
promises: Σ_i w_i L_i(λ) + w_max B ≤ level · (Σ_i w_i + w_max).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import agreestop as ag
from agreestop.common import Booleans, Floats, Integers
from tests.decide.strategies import (
    RiskTable,
    TableRisk,
    TableScore,
    between,
    breaking_points,
    calibrate_quietly,
    risk_tables,
    value_of_each,
)

TARGETS = ("1/3", "1/2", "2/3", "3/4")
# a risk of exactly 1 - target is above the limit of `accumulated` in every run
BESIDE = 64 * 2.0**-24
LOG_TRIMS = (0.0, -0.5, -1.0, -2.0, -math.inf)
Answer = Callable[[int, float], tuple[int, set[int]]]
"""Where input i stops with threshold λ, and what it answers."""


def trim_of(log_trim: float) -> float:
    trim = math.exp(log_trim)
    assert not trim or math.log(trim) == log_trim
    return trim


class Doors(NamedTuple):
    """What a gate says of n inputs: the first checkpoint that counts (M if none does), the block,
    and how many blocks there are.
    """

    opens: list[int]
    blocks: list[int]
    block_count: int


def doors_of(gate: ag.Gate | None, risk: Floats) -> Doors:
    """The definition of a gate; without one all checkpoints count, and there is one block."""
    n, checkpoints = risk.shape
    if gate is None:
        return Doors([0] * n, [0] * n, 1)
    assert gate.times is not None
    opens = [
        next((index for index in range(checkpoints) if row[index] < gate.slack), checkpoints)
        for row in risk.tolist()
    ]
    ends = gate.ends
    blocks = [
        len(ends)
        if index == checkpoints
        else min(b for b, end in enumerate(ends) if gate.times[index] <= end)
        for index in opens
    ]
    return Doors(opens, blocks, len(ends) + 1)


def agree_answers(table: RiskTable, log_trim: float, final: bool, opens: Sequence[int]) -> Answer:
    """AgreeStop in the words of its definition."""
    masses, risks = table.mass.tolist(), table.risk.tolist()

    def answer(i: int, threshold: float) -> tuple[int, set[int]]:
        for index, (mass, risk) in enumerate(zip(masses[i], risks[i], strict=True)):
            ranked = sorted(range(len(mass)), key=lambda label: -mass[label])
            best = set(ranked[: table.max_set_size])
            if index >= opens[i] and risk < threshold:
                if log_trim == -math.inf:
                    return index, best
                return index, best & (
                    {ranked[0]} | {label for label in ranked if mass[label] - log_trim >= threshold}
                )
        return index, {ranked[0]} if final else best | {
            label for label in ranked if mass[label] >= threshold
        }

    return answer


def stop_aware_answers(table: RiskTable, final: bool, opens: Sequence[int]) -> Answer:
    """Stop-aware SpikeCP in the words of its definition; the values of the table are
    scores here.
    """
    scores = table.mass.tolist()

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
    left = (
        sum(w * cost for w, cost in zip(weights, worst, strict=True))
        + level.max_weight * level.largest
    )
    return left <= level.level * (sum(weights) + level.max_weight)


def largest_safe(
    level: Level, rows: Sequence[int], answer: Answer, points: Sequence[float]
) -> float:
    """sup of the thresholds that may be used. Everything is constant on (previous v, v]."""
    found = -math.inf
    tried: list[float] = []
    for value in (*points, math.inf):
        tried.append(value)
        if not keeps(level, rows, answer, tried):
            break
        found = value
    return found


def smallest_safe(
    level: Level, rows: Sequence[int], answer: Answer, points: Sequence[float]
) -> float:
    """inf of the thresholds that may be used. Everything is constant on [v, next v)."""
    found = math.inf
    tried: list[float] = []
    for value in reversed((-math.inf, *points)):
        tried.append(value)
        if not keeps(level, rows, answer, tried):
            break
        found = value
    return found


def cells_of(
    labels: Integers, classes: int, class_conditional: bool, rows: Booleans
) -> list[list[int]]:
    """The rows that a quantile is taken over."""
    inside = np.flatnonzero(rows).tolist()
    return (
        [[i for i in inside if labels[i] == label] for label in range(classes)]
        if class_conditional
        else [inside]
    )


@st.composite
def gates(draw: st.DrawFn, checkpoints: int) -> ag.Gate:
    """Gates that open early, late, always or never, with blocks of all sizes."""
    times = tuple(range(1, checkpoints + 1))
    ends = tuple(sorted(draw(st.sets(st.sampled_from(times))) | {checkpoints}))
    slack = draw(st.sampled_from([-5.0, -3.0, -2.0, -1.0, 0.5, math.inf]))
    return ag.Gate(TableRisk(), np.zeros(checkpoints), times, None, slack, ends)


class Setup(NamedTuple):
    """A table, what is known of its rows, and the settings of a rule."""

    table: RiskTable
    given_groups: Booleans | None
    weights: Floats | None
    max_weight: float | None
    final: bool
    gate: ag.Gate | None
    target: str
    class_conditional: bool

    @property
    def classes(self) -> int:
        return int(self.table.mass.shape[2])

    @property
    def groups(self) -> Booleans:
        """(n, G), one column for all without groups."""
        return (
            np.ones((len(self.table.labels), 1), dtype=bool)
            if self.given_groups is None
            else self.given_groups
        )

    def calibrate(self, rule: ag.AgreeStop | ag.SpikeCP) -> ag.CalibratedRule:
        """The rule, calibrated on the table."""
        labels: Integers | str = "final" if self.final else self.table.labels
        options = {
            "groups": self.given_groups,
            "weights": self.weights,
            "max_weight": self.max_weight,
        }
        return calibrate_quietly(rule, self.table.log_confidence, labels, **options)

    def of_each_cell(self, values: Floats) -> Floats:
        """(G, B): numbers of a calibrated rule, which leaves out the axes that it does not have."""
        return values.reshape(self.groups.shape[1], -1)

    def level(self) -> Level:
        n, weights = len(self.table.labels), self.weights
        exact = [Fraction(1)] * n if weights is None else [Fraction(w) for w in weights.tolist()]
        largest = Fraction(1 if self.max_weight is None else self.max_weight)
        return Level(
            1 - Fraction(self.target), missing(self.table.labels), Fraction(1), exact, largest
        )

    def each_cell(self, blocks: Sequence[int], count: int) -> list[list[list[list[int]]]]:
        """The rows of each group, block and class."""
        inside = [np.array(blocks) == block for block in range(count)]
        return [
            [
                cells_of(self.table.labels, self.classes, self.class_conditional, group & block)
                for block in inside
            ]
            for group in self.groups.T
        ]

    def check_decisions(
        self, calibrated: ag.CalibratedRule, answer: Answer, doors: Doors, safest: float
    ) -> None:
        """The rule answers as defined, for every input, and notes its block; inputs of no group are
        as safe as can be.
        """
        decisions = calibrated.decide(self.table.log_confidence, groups=self.given_groups)
        thresholds = self.of_each_cell(calibrated.thresholds)
        pick = min if safest < 0 else max
        for i in range(len(self.table.labels)):
            own = [
                float(thresholds[g, doors.blocks[i]])
                for g in range(len(thresholds))
                if self.groups[i, g]
            ]
            expected = answer(i, pick(own, default=safest))
            assert (
                int(decisions.stop_index[i]),
                set(np.flatnonzero(decisions.sets[i]).tolist()),
            ) == expected
        if self.gate is None:
            assert decisions.block is None
        else:
            assert decisions.block is not None and decisions.block.tolist() == doors.blocks


@st.composite
def setups(draw: st.DrawFn, weighted: bool = True) -> Setup:
    """Mostly one condition at a time, since many together leave few rows for each threshold."""
    table = draw(risk_tables(most_rows=8))
    n, checkpoints, _ = table.mass.shape
    used = draw(
        st.sampled_from(
            [(), (), ("groups",), ("weights",), ("classes",), ("groups", "weights", "classes")]
        )
    )
    groups = draw(hnp.arrays(np.bool_, (n, draw(st.integers(1, 3))))) if "groups" in used else None
    weights = largest = None
    if weighted and "weights" in used:
        weights = draw(
            hnp.arrays(np.float64, n, elements=st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0]))
        )
        largest = draw(st.sampled_from([2.0, 2.5]))
    final = draw(st.sampled_from([False, False, True]))
    gate = draw(gates(checkpoints)) if draw(st.booleans()) else None
    return Setup(
        table,
        groups,
        weights,
        largest,
        final,
        gate,
        draw(st.sampled_from(TARGETS)),
        "classes" in used,
    )


def as_final(setup: Setup, labels: Integers) -> Setup:
    """With the ensemble's own best class at the last checkpoint as the label, if that is what is
    asked for.
    """
    return setup._replace(table=setup.table._replace(labels=labels)) if setup.final else setup


def agree_points(table: RiskTable, log_trim: float) -> tuple[float, ...]:
    return breaking_points(
        np.concatenate([table.mass.ravel(), (table.mass - log_trim).ravel(), table.risk.ravel()])
    )


def kth_of(calibrated: ag.CalibratedRule, groups: int = 1) -> list[list[float]]:
    """(G, B) order statistics."""
    assert calibrated.kth_values is not None
    found: list[list[float]] = calibrated.kth_values.reshape(groups, -1).tolist()
    return found


def assert_just_below(calibrated: ag.CalibratedRule) -> None:
    """AgreeStop: the thresholds lie close to the order statistics, on the safe side."""
    kth, thresholds = calibrated.kth_values, calibrated.thresholds
    assert kth is not None
    finite = np.isfinite(kth)
    assert (thresholds[~finite] == kth[~finite]).all()
    assert (thresholds[finite] < kth[finite]).all() and (
        thresholds[finite] > kth[finite] - 0.03
    ).all()


def agreestop(setup: Setup, log_trim: float, **options: Any) -> ag.AgreeStop:
    """AgreeStop on the table: it uses the risk of the gate where there is one."""
    table, gate = setup.table, setup.gate
    given = {"class_conditional": setup.class_conditional, "trim": trim_of(log_trim), **options}
    if gate is not None:
        return ag.AgreeStop(
            given.pop("target", setup.target), table.times, table.max_set_size, gate=gate, **given
        )
    return ag.AgreeStop(
        given.pop("target", setup.target),
        table.times,
        table.max_set_size,
        risk=TableRisk(),
        **given,
    )


@given(setups(), st.sampled_from(LOG_TRIMS))
@settings(max_examples=250)
def test_agreestop_takes_the_largest_safe_threshold(setup: Setup, log_trim: float) -> None:
    setup = as_final(setup, setup.table.mass[:, -1].argmax(axis=1))
    table, gate = setup.table, setup.gate
    doors = doors_of(gate, table.risk)
    answer = agree_answers(table, log_trim, setup.final, doors.opens)
    calibrated = setup.calibrate(agreestop(setup, log_trim))
    points, level = agree_points(table, log_trim), setup.level()
    expected = [
        [min(largest_safe(level, cell, answer, points) for cell in cells) for cells in row]
        for row in setup.each_cell(doors.blocks, doors.block_count)
    ]
    assert kth_of(calibrated, setup.groups.shape[1]) == expected
    assert_just_below(calibrated)
    setup.check_decisions(calibrated, answer, doors, -math.inf)


@given(setups())
@settings(max_examples=250)
def test_stop_aware_takes_the_earliest_of_the_safe_thresholds(setup: Setup) -> None:
    setup = as_final(setup, setup.table.mass[:, -1].argmin(axis=1))
    table, gate = setup.table, setup.gate
    doors = doors_of(gate, table.risk)
    answer = stop_aware_answers(table, setup.final, doors.opens)
    options: dict[str, Any] = {
        "score": TableScore(),
        "class_conditional": setup.class_conditional,
        "gate": gate,
    }
    calibrated = setup.calibrate(
        ag.SpikeCP(setup.target, table.times, table.max_set_size, None, "stop-aware", **options)
    )
    points, level = breaking_points(table.mass), setup.level()

    def floor(cells: list[list[int]]) -> float:
        return max(smallest_safe(level, cell, answer, points) for cell in cells)

    def earliest(cells: list[list[int]]) -> float:
        rows = [i for cell in cells for i in cell]
        candidates = (floor(cells), *(point for point in points if point > floor(cells)))
        return (
            min(candidates, key=lambda value: (sum(answer(i, value)[0] for i in rows), value))
            if rows
            else candidates[0]
        )

    each = setup.each_cell(doors.blocks, doors.block_count)
    assert kth_of(calibrated, setup.groups.shape[1]) == [
        [floor(cells) for cells in row] for row in each
    ]
    for found, cells in zip(
        np.ravel(calibrated.thresholds).tolist(),
        (cells for row in each for cells in row),
        strict=True,
    ):
        best = earliest(cells)
        assert best <= found <= best + 0.03, "in a gap above the earliest"
    setup.check_decisions(calibrated, answer, doors, math.inf)


@given(st.data())
@settings(max_examples=200)
def test_a_loss_takes_the_largest_safe_threshold(data: st.DataObject) -> None:
    setup = data.draw(setups(weighted=False).filter(lambda found: found.classes > 1))
    log_trim = data.draw(st.sampled_from(LOG_TRIMS))
    setup = as_final(setup, setup.table.mass[:, -1].argmax(axis=1))
    table, classes = setup.table, setup.classes
    costs = data.draw(
        hnp.arrays(
            np.float64, (classes, classes), elements=st.sampled_from([0.0, 0.1, 0.3, 1.0, 2.5])
        )
    )
    np.fill_diagonal(costs, 0.0)
    if not costs.any():
        costs[0, 1] = 0.3
    largest = Fraction(str(costs.max()))
    max_loss = largest * data.draw(
        st.sampled_from([Fraction(1, 7), Fraction(1, 4), Fraction(1, 3), Fraction(2, 3)])
    )
    doors = doors_of(setup.gate, table.risk)
    answer = agree_answers(table, log_trim, setup.final, doors.opens)

    def cost(i: int, classes: set[int]) -> Fraction:
        return min(Fraction(str(costs[table.labels[i], label])) for label in classes)

    level = setup.level()._replace(level=max_loss, cost=cost, largest=largest)
    calibrated = setup.calibrate(
        agreestop(setup, log_trim, target=None, loss=costs, max_loss=max_loss)
    )
    points = agree_points(table, log_trim)
    expected = [
        [min(largest_safe(level, cell, answer, points) for cell in cells) for cells in row]
        for row in setup.each_cell(doors.blocks, doors.block_count)
    ]
    assert kth_of(calibrated, setup.groups.shape[1]) == expected
    assert_just_below(calibrated)


def binomial_at_most(successes: int, n: int, p: Fraction) -> Fraction:
    return Fraction(sum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(successes + 1)))


@given(risk_tables(most_rows=9), st.data())
@settings(max_examples=200)
def test_accumulated_opens_checkpoints_while_exact_tests_pass(
    table: RiskTable, data: st.DataObject
) -> None:
    n, checkpoints, _ = table.mass.shape
    target, delta = (
        Fraction(data.draw(st.sampled_from(TARGETS))),
        Fraction(data.draw(st.sampled_from(["1/20", "1/4", "1/2", "3/4"]))),
    )
    final, gated = data.draw(st.booleans()), data.draw(st.booleans())
    if final:
        table = table._replace(labels=table.mass[:, -1].argmax(axis=1))
    log_trim = data.draw(st.sampled_from(LOG_TRIMS))
    times = tuple(range(1, checkpoints + 1))
    risk: Any = (
        ag.Gate(TableRisk(), np.zeros(checkpoints), times, None, 0.5, (checkpoints,))
        if gated
        else TableRisk()
    )
    rule = ag.AgreeStop(
        target,
        times,
        table.max_set_size,
        risk=risk,
        delta=delta,
        accumulated=True,
        trim=trim_of(log_trim),
    )
    limit = (0.0 if gated else math.log(1 - target)) - BESIDE
    expected = [-math.inf] * checkpoints
    for first in reversed(range(checkpoints)):
        answer = agree_answers(table, log_trim, final, [first] * n)
        answers = [answer(i, limit) for i in range(n)]
        by = {t: [i for i in range(n) if answers[i][0] <= t] for t in range(first, checkpoints)}
        missed = {
            t: sum(int(table.labels[i]) not in answers[i][1] for i in rows)
            for t, rows in by.items()
        }
        if not all(
            rows and binomial_at_most(missed[t], len(rows), 1 - target) <= delta
            for t, rows in by.items()
        ):
            break
        expected[first] = limit
    calibrated = calibrate_quietly(rule, table.log_confidence, "final" if final else table.labels)
    assert calibrated.thresholds.tolist() == pytest.approx(expected, abs=1e-12)
    opened = next((index for index, value in enumerate(expected) if value > -math.inf), checkpoints)
    answer = agree_answers(table, log_trim, final, [opened] * n)
    decisions = calibrated.decide(table.log_confidence)
    for i in range(n):
        expected_answer = answer(i, limit if opened < checkpoints else -math.inf)
        assert (
            int(decisions.stop_index[i]),
            set(np.flatnonzero(decisions.sets[i]).tolist()),
        ) == expected_answer


@given(risk_tables(), st.sampled_from(LOG_TRIMS), st.data())
@settings(max_examples=200)
def test_first_failure_with_trim_and_gate_is_the_infimum_of_the_thresholds_that_miss(
    table: RiskTable, log_trim: float, data: st.DataObject
) -> None:
    gate = data.draw(gates(table.mass.shape[1]))
    doors = doors_of(gate, table.risk)
    answer = agree_answers(table, log_trim, False, doors.opens)
    rule = ag.AgreeStop("1/2", table.times, table.max_set_size, gate=gate, trim=trim_of(log_trim))
    each = value_of_each(rule, table.log_confidence, table.labels)
    failures = each[np.arange(len(each)), doors.blocks]
    assert np.isneginf(
        np.delete(each, np.ravel_multi_index((np.arange(len(each)), doors.blocks), each.shape))
    ).all(), "empty blocks"
    points = agree_points(table, log_trim)
    for i, failure in enumerate(failures.tolist()):
        label = int(table.labels[i])
        values = sorted({*points, *between(points), math.inf})
        assert all(label in answer(i, value)[1] for value in values if value <= failure)
        above = [value for value in values if value > failure]
        assert not above or label not in answer(i, above[0])[1]


@pytest.mark.parametrize("n", [38, 37])
def test_a_gate_with_delta_divides_it_among_its_blocks(n: int) -> None:
    """0.9^n ≤ 0.1/5 from n = 38 on: four blocks and "never" share δ = 0.1."""
    times = (1, 2, 3, 4)
    gate = ag.Gate(TableRisk(), np.zeros(4), times, None, math.inf, (1, 2, 3, 4))
    rule = ag.AgreeStop(0.9, times, 1, gate=gate, delta=0.1)
    assert rule.examples_needed() == 38
    assert (
        ag.SpikeCP(0.9, times, 1, calibration="stop-aware", gate=gate, delta=0.1).examples_needed()
        == 38
    )
    table = RiskTable(
        np.tile([0.0, -1.0], (n, 4, 1)), np.full((n, 4), -1.0), np.ones(n, dtype=np.int64), 1
    )
    calibrated = calibrate_quietly(rule, table.log_confidence, table.labels)
    (kth,) = kth_of(calibrated)
    assert kth == [-1.0 if n == 38 else -math.inf, *[-math.inf] * 4], (
        "all open at once and fail from e on"
    )


@given(st.data())
@settings(max_examples=400)
def test_the_weighted_threshold_is_its_definition(data: st.DataObject) -> None:
    """Inputs that miss from e on, so that W = e, or never."""
    n, alpha = (
        data.draw(st.integers(1, 8)),
        Fraction(data.draw(st.sampled_from(["1/4", "1/3", "1/2", "3/4"]))),
    )
    failures = data.draw(
        hnp.arrays(
            np.float64,
            n,
            elements=st.sampled_from([-math.inf, -4.0, -3.0, -2.0, -1.0, 0.0, math.inf]),
        )
    )
    weights = data.draw(hnp.arrays(np.float64, n, elements=st.sampled_from([0.0, 1.0, 2.0, 3.0])))
    largest = data.draw(st.sampled_from([3.0, 4.0]))
    expected = -math.inf
    for value in (-4.0, -3.0, -2.0, -1.0, 0.0, math.inf):
        below = sum(
            Fraction(w)
            for w, failure in zip(weights.tolist(), failures.tolist(), strict=True)
            if failure < value
        )
        if below + Fraction(largest) <= alpha * (
            sum(map(Fraction, weights.tolist())) + Fraction(largest)
        ):
            expected = value
    never = failures == math.inf
    mass = np.tile([0.0, -9.0], (n, 2, 1))
    mass[:, 1] = [-9.0, 0.0]  # the label is the best class at the end
    table = RiskTable(
        mass,
        np.column_stack([np.where(never, 0.0, failures), np.zeros(n)]),
        np.where(never, 0, 1),
        1,
    )
    table.mass[never, 1] = [0.0, -9.0]
    rule = ag.AgreeStop(1 - alpha, (1, 2), 1, risk=TableRisk())
    calibrated = calibrate_quietly(
        rule, table.log_confidence, table.labels, weights=weights, max_weight=largest
    )
    assert calibrated.kth_values == expected


def test_a_last_answer_that_no_threshold_reaches_costs_nothing() -> None:
    """Up to λ = -3 the last answer holds the label; above it the input stops at once, and
    is right.
    """
    table = RiskTable(
        np.array([[[0.0, -1.0, -2.0], [-3.0, 0.0, -5.0]]]),
        np.array([[-3.0, 0.0]]),
        np.array([0]),
        1,
    )
    rule = ag.AgreeStop(None, (1, 2), 1, risk=TableRisk(), loss=1 - np.eye(3), max_loss=0.5)
    assert kth_of(calibrate_quietly(rule, table.log_confidence, table.labels)) == [[math.inf]]


def test_a_class_that_is_just_kept_is_no_miss_in_the_accumulated_test() -> None:
    gate = ag.Gate(TableRisk(), np.zeros(2), (1, 2), None, 0.5, (2,))
    rule = ag.AgreeStop(
        "1/2", (1, 2), 2, risk=gate, accumulated=True, delta="1/20", trim=trim_of(-1.0)
    )
    table = RiskTable(
        np.tile([0.0, -1.0, -2.0], (10, 2, 1)),
        np.full((10, 2), -2.0),
        np.ones(10, dtype=np.int64),
        2,
    )
    calibrated = calibrate_quietly(rule, table.log_confidence, table.labels)
    assert calibrated.thresholds == pytest.approx([-BESIDE, -BESIDE], abs=1e-12)


def test_the_last_checkpoint_counts_for_inputs_whose_gate_never_opens() -> None:
    """Their last answer holds the label for λ ≥ -1, and the block of those that are ready
    is empty.
    """
    gate = ag.Gate(TableRisk(), np.zeros(2), (1, 2), None, -5.0, (2,))
    rule = ag.SpikeCP("1/2", (1, 2), 1, None, "stop-aware", score=TableScore(), gate=gate)
    table = RiskTable(
        np.tile([-2.0, -1.0, 0.0], (5, 2, 1)), np.zeros((5, 2)), np.ones(5, dtype=np.int64), 1
    )
    assert kth_of(calibrate_quietly(rule, table.log_confidence, table.labels)) == [[math.inf, -1.0]]
