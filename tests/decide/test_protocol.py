"""One protocol for every rule: calibrate, decide, stream, save, load, cut, evaluate and repeat,
over every pooling and calibration.

Each case is a rule that is calibrated with enough examples to exclude labels, so that no equality
below is one of full sets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pytest

import agreestop as ag
from agreestop.common import Floats
from agreestop.decide.confidence import Pooling
from tests.decide.strategies import (
    Rule,
    Sample,
    Shaped,
    assert_same_decisions,
    make_sample,
    parts_of_state,
)

TIMES = (1, 2.5, 4, 7, 10)
CHECKPOINTS = (2.5, 4, 10)
COLUMNS = [1, 2, 4]
CLASSES = 4
TARGET = 0.8
LARGEST = 1

POOLINGS: dict[str, Pooling] = {
    "CM(1)": ag.MergeConfidence(r=1),
    "CM(0)": ag.MergeConfidence(r=0),
    "CM(-2.5)": ag.MergeConfidence(r=-2.5),
    "CM(inf)": ag.MergeConfidence(r=math.inf),
}
RANKED: dict[str, Pooling] = {
    **{f"PM({r})": ag.MergePValues(r=r) for r in (-math.inf, -1, 0, 0.7, 1, 45, math.inf)},
    **{f"PM({r}, table)": ag.MergePValues(r=r, table=True) for r in (-2, -1, 0)},
    **{
        f"PM({r}, exchangeable)": ag.MergePValues(r=r, form="exchangeable")
        for r in (-0.5, 0, 1, math.inf)
    },
    **{f"PM({r}, randomized)": ag.MergePValues(r=r, form="randomized", seed=3) for r in (0, 1)},
    **{f"ranks({r})": ag.MergeRanks(r=r) for r in (-math.inf, -1, 0, 1, 2)},
    "votes": ag.MajorityVote(),
}
CALIBRATIONS = ("bonferroni", "simultaneous", "stop-aware")


class Conditions(TypedDict):
    """What a promise may be conditional on."""

    class_conditional: bool
    delta: float | None


CONDITIONS = {
    "class-conditional": Conditions(class_conditional=True, delta=None),
    "training-conditional": Conditions(class_conditional=False, delta=0.3),
    "class- and training-conditional": Conditions(class_conditional=True, delta=0.3),
}


@dataclass(frozen=True)
class Data:
    """Tuning data, a pool for calibration and test data, all at five times, for one number of
    members.
    """

    members: int

    @cached_property
    def tuning(self) -> Sample:
        return make_sample(120, len(TIMES), self.members, CLASSES, seed=1)

    @cached_property
    def calibration(self) -> Sample:
        return make_sample(160, len(TIMES), self.members, CLASSES, seed=2)

    @cached_property
    def test(self) -> Sample:
        return make_sample(50, len(TIMES), self.members, CLASSES, seed=3)


DATA = {members: Data(members) for members in (1, 2, 6)}


def scores(members: int) -> dict[str, Any]:
    tuning = DATA[members].tuning
    temperature = ag.Temperature.fit(*tuning, pooling=ag.MergeConfidence(r=1), times=TIMES)
    return {
        "log-loss": ag.LogLoss(ag.MergeConfidence(r=2)),
        "temperature": temperature,
        "ranks": ag.TuningRanks.fit(*tuning, pooling=ag.MergeConfidence(r=0), times=TIMES),
        "spread": ag.Spread(temperature, beta=0.4),
        "shaped": Shaped(temperature, np.array([0.0, 0.1, 0.3, 0.2, 0.4]), times=TIMES),
    }


def risks(members: int) -> dict[str, Any]:
    tuning = DATA[members].tuning
    return {
        "top mass": ag.TopMass(pooling=ag.MergeConfidence(r=1)),
        "fitted top mass": ag.TopMass.fit(*tuning, pooling=ag.MergeConfidence(r=0.5), times=TIMES),
        "learned risk": ag.LearnedRisk.fit(*tuning, max_set_size=LARGEST, times=TIMES),
        "fixed time": ag.FixedTime(),
        "shaped risk": ag.ShapedRisk.per_time(
            ag.TopMass(pooling=ag.MergeConfidence(r=0)), TIMES, power=0.5
        ),
    }


def promising_rules(members: int, risk: Any) -> dict[str, Rule]:
    """Rules with a gate, a loss, a trim factor, and the published promise by stopping time."""
    gate = ag.Gate(
        risk,
        np.array([-0.5, -0.6, -0.7, -0.8, -1.0]),
        TIMES,
        None,
        -0.2 if members < 6 else -1.0,
        (3, 10),
    )
    every_loss = np.abs(np.arange(CLASSES)[:, None] - np.arange(CLASSES)) / 2
    pooling, sparing = POOLINGS["CM(1)"], Conditions(class_conditional=False, delta=0.3)
    return {
        "AgreeStop with a gate": ag.AgreeStop(TARGET, CHECKPOINTS, LARGEST, gate=gate),
        "AgreeStop with a gate, fill, given the data": ag.AgreeStop(
            TARGET, CHECKPOINTS, LARGEST, True, gate=gate, **sparing
        ),
        "AgreeStop, trim": ag.AgreeStop(TARGET, CHECKPOINTS, LARGEST, risk=risk, trim=0.4),
        "AgreeStop, abstains": ag.AgreeStop(
            TARGET, CHECKPOINTS, LARGEST, risk=risk, at_end="abstain"
        ),
        "AgreeStop, abstains, loss": ag.AgreeStop(
            None, CHECKPOINTS, LARGEST, risk=risk, loss=every_loss, max_loss=0.2, at_end="abstain"
        ),
        "AgreeStop, loss": ag.AgreeStop(
            None, CHECKPOINTS, LARGEST, risk=risk, loss=every_loss, max_loss=0.2
        ),
        "AgreeStop, accumulated": ag.AgreeStop(
            0.6, CHECKPOINTS, LARGEST, risk=risk, accumulated=True, delta=0.3
        ),
        "AgreeStop, accumulated, shaped": ag.AgreeStop(
            0.6, CHECKPOINTS, LARGEST, risk=gate, accumulated=True, delta=0.3
        ),
        "SpikeCP, stop-aware with a gate": ag.SpikeCP(
            TARGET, CHECKPOINTS, LARGEST, pooling, "stop-aware", gate=gate
        ),
    }


@dataclass(frozen=True, eq=False)
class Case:
    """A rule, the number of members it is used with, and what it has learned."""

    name: str
    rule: Rule
    members: int
    in_order: bool = False

    @property
    def data(self) -> Data:
        return DATA[self.members]

    @cached_property
    def calibrated(self) -> ag.CalibratedRule:
        return self.rule.calibrate(*self.data.calibration, times=TIMES)

    @cached_property
    def decisions(self) -> ag.Decisions:
        return self.calibrated.decide(self.data.test.log_confidence, times=TIMES, first=0)

    def decide_after(self, calibration: Sample, log_confidence: Floats) -> ag.Decisions:
        """Decisions of the same rule, calibrated on other data."""
        return self.rule.calibrate(*calibration, times=TIMES).decide(
            log_confidence, times=TIMES, first=0
        )


def spike_cases(members: int) -> Iterator[Case]:
    for calibration in CALIBRATIONS:
        for name, pooling in [("plain", None)] * (members == 1) + list(POOLINGS.items()):
            yield Case(
                f"SpikeCP {name}, {calibration}, K={members}",
                ag.SpikeCP(TARGET, CHECKPOINTS, LARGEST, pooling, calibration),
                members,
            )
        for name, score in scores(members).items():
            yield Case(
                f"SpikeCP {name}, {calibration}, K={members}",
                ag.SpikeCP(TARGET, CHECKPOINTS, LARGEST, None, calibration, score),
                members,
            )
        for words, conditions in CONDITIONS.items():
            rule = ag.SpikeCP(
                TARGET, CHECKPOINTS, LARGEST, POOLINGS["CM(1)"], calibration, None, **conditions
            )
            yield Case(f"SpikeCP CM(1), {calibration}, {words}, K={members}", rule, members)
    for name, pooling in RANKED.items():
        in_order = isinstance(pooling, ag.MergePValues) and pooling.form == "exchangeable"
        yield Case(
            f"SpikeCP {name}, K={members}",
            ag.SpikeCP(TARGET, CHECKPOINTS, LARGEST, pooling),
            members,
            in_order,
        )
        if name in ("PM(1)", "PM(inf, exchangeable)", "PM(1, randomized)", "ranks(1)", "votes"):
            rule = ag.SpikeCP(TARGET, CHECKPOINTS, LARGEST, pooling, class_conditional=True)
            yield Case(f"SpikeCP {name}, class-conditional, K={members}", rule, members, in_order)


def other_cases(members: int) -> Iterator[Case]:
    every_risk = risks(members)
    for fill in (False, True):
        words = f"{', fill' * fill}, K={members}"
        for name, risk in every_risk.items():
            yield Case(
                f"AgreeStop {name}{words}",
                ag.AgreeStop(TARGET, CHECKPOINTS, LARGEST, fill, risk),
                members,
            )
        for name, conditions in CONDITIONS.items():
            rule = ag.AgreeStop(
                TARGET, CHECKPOINTS, LARGEST, fill, every_risk["fitted top mass"], **conditions
            )
            yield Case(f"AgreeStop {name}{words}", rule, members)
    for name, promising in promising_rules(members, every_risk["fitted top mass"]).items():
        yield Case(f"{name}, K={members}", promising, members)
    yield Case(f"DCSNN, K={members}", ag.DCSNN(TARGET, CHECKPOINTS, LARGEST), members)
    yield Case(f"SEENN, K={members}", ag.SEENN(0.7, CHECKPOINTS, LARGEST), members)


CASES = {
    case.name: case for members in DATA for case in (*spike_cases(members), *other_cases(members))
}
EVERY = 4  # with fewer than six members, this share of the cases is tried in the fast run
FAST = {
    name
    for number, (name, case) in enumerate(CASES.items())
    if case.members == 6 or number % EVERY == 0
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(case, id=name, marks=() if name in FAST else pytest.mark.slow)
        for name, case in CASES.items()
    ],
)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


def test_calibrate_and_decide(case: Case) -> None:
    calibrated, decisions = case.calibrated, case.decisions
    assert (calibrated.n, calibrated.members, calibrated.classes) == (160, case.members, CLASSES)
    assert calibrated.checkpoints == decisions.checkpoints == CHECKPOINTS
    assert calibrated.guarantee.endswith(".")
    assert calibrated.shortage == ""
    assert decisions.sets.shape == (50, CLASSES)
    assert decisions.sets.dtype == np.bool_
    assert (
        decisions.stop_index.shape == decisions.stop_time.shape == decisions.set_size.shape == (50,)
    )
    assert set(decisions.stop_time.tolist()) <= set(CHECKPOINTS)
    assert (~decisions.sets).any(), "no label is ever excluded"
    assert decisions.first_risk is not None and np.isfinite(decisions.first_risk).all()
    assert decisions.best is not None
    if isinstance(case.rule, ag.AgreeStop):
        assert (decisions.sets[np.arange(50), decisions.best] == decisions.answered).all()


def test_stopped_sets_are_small(case: Case) -> None:
    early = case.decisions.stop_index < len(CHECKPOINTS) - 1
    assert (case.decisions.set_size[early] <= LARGEST).all()


def test_stream_equals_batch(case: Case) -> None:
    for number, row in enumerate(case.data.test.log_confidence[:, COLUMNS]):
        session = case.calibrated.stream(number)
        expected = case.decisions[number]
        for index, values in enumerate(row):
            decision = session.push(values)
            assert (decision is None) == (index < expected.index)
            if decision is not None:
                assert decision == expected
                assert (decision.first_risk, decision.block) == (
                    expected.first_risk,
                    expected.block,
                )
                break


def test_inputs_may_stand_at_different_checkpoints(case: Case) -> None:
    """One step over inputs at different checkpoints gives what a step for each checkpoint gives,
    state and all.
    """
    values = np.ascontiguousarray(case.data.test.log_confidence[:, COLUMNS])
    rows = np.arange(len(values))
    for indices in (rows % 3, np.zeros(50, dtype=np.int64), np.full(50, 2)):
        state = case.calibrated.start(50)
        together = case.calibrated.step(indices, values[rows, indices], state)
        for index in np.unique(indices).tolist():
            chosen = indices == index
            apart = case.calibrated.step(index, values[chosen, index], state.rows(chosen))
            np.testing.assert_array_equal(together.stop[chosen], apart.stop)
            np.testing.assert_array_equal(
                together.sets[chosen & together.stop], apart.sets[apart.stop]
            )
            assert len(apart.state) == chosen.sum()
            kept = parts_of_state(together.state.rows(chosen))
            np.testing.assert_equal(
                parts_of_state(together.state.rows(np.flatnonzero(chosen))), kept
            )
            np.testing.assert_equal(kept, parts_of_state(apart.state))
        assert together.stop[indices == 2].all()


def test_no_inputs_may_be_judged(case: Case) -> None:
    none = np.empty((0, case.members, CLASSES))
    for index in (0, np.empty(0, dtype=np.int64)):
        verdict = case.calibrated.step(index, none, case.calibrated.start(0))
        assert (verdict.stop.shape, verdict.sets.shape, len(verdict.state)) == (
            (0,),
            (0, CLASSES),
            0,
        )


def test_order_of_calibration_rows_does_not_matter(case: Case) -> None:
    order = np.random.default_rng(5).permutation(case.calibrated.n)
    moved = case.rule.calibrate(*case.data.calibration.rows(order), times=TIMES)
    assert_same_decisions(
        moved.decide(case.data.test.log_confidence, times=TIMES, first=0), case.decisions
    )
    assert moved.fingerprint == case.calibrated.fingerprint


def test_order_of_members_does_not_matter(case: Case) -> None:
    if case.in_order or case.members == 1:
        return
    order = np.random.default_rng(6).permutation(case.members)[::-1]
    calibration, test = case.data.calibration, case.data.test
    moved = case.decide_after(
        Sample(calibration.log_confidence[:, :, order], calibration.labels),
        test.log_confidence[:, :, order],
    )
    assert_same_decisions(moved, case.decisions)


def test_saved_rule_decides_identically(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "rule"
    case.calibrated.save(path)
    loaded = ag.load_rule(path)
    assert_same_decisions(
        loaded.decide(case.data.test.log_confidence, times=TIMES, first=0), case.decisions
    )
    for name in ("n", "members", "classes", "guarantee", "shortage", "fingerprint", "checkpoints"):
        assert getattr(loaded, name) == getattr(case.calibrated, name)
    again = tmp_path / "again"
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()


def test_times_cut_as_by_hand(case: Case) -> None:
    calibration, test = case.data.calibration, case.data.test
    by_hand = case.rule.calibrate(calibration.log_confidence[:, COLUMNS], calibration.labels)
    assert by_hand.fingerprint == case.calibrated.fingerprint
    assert_same_decisions(by_hand.decide(test.log_confidence[:, COLUMNS], first=0), case.decisions)
    assert_same_decisions(
        case.calibrated.decide(test.log_confidence[:, COLUMNS], times=CHECKPOINTS, first=0),
        case.decisions,
    )


def test_parts_of_a_batch_decide_as_the_batch(case: Case) -> None:
    values = case.data.test.log_confidence
    for begin, end in ((0, 1), (1, 8), (8, 50)):
        part = case.calibrated.decide(values[begin:end], times=TIMES, first=begin)
        np.testing.assert_array_equal(part.stop_index, case.decisions.stop_index[begin:end])
        np.testing.assert_array_equal(part.sets, case.decisions.sets[begin:end])


@pytest.mark.parametrize(
    "name", [name for name in CASES if name.endswith("K=6") and ("gate" in name or "PM(1" in name)]
)
def test_large_batches_decide_as_small_ones(name: str) -> None:
    """A batch of this size is judged in several blocks."""
    case, copies = CASES[name], 240
    values = np.tile(case.data.test.log_confidence, (copies, 1, 1, 1))
    large = case.calibrated.decide(values, times=TIMES, first=0)
    for copy in range(0, copies, 17):
        rows = slice(50 * copy, 50 * copy + 50)
        small = case.calibrated.decide(case.data.test.log_confidence, times=TIMES, first=50 * copy)
        np.testing.assert_array_equal(large.stop_index[rows], small.stop_index)
        np.testing.assert_array_equal(large.sets[rows], small.sets)


def test_float32_is_taken_at_its_value(case: Case) -> None:
    calibration, test = case.data.calibration, case.data.test.log_confidence.astype(np.float32)
    narrow = Sample(calibration.log_confidence.astype(np.float32), calibration.labels)
    wide = Sample(narrow.log_confidence.astype(np.float64), calibration.labels)
    first = case.rule.calibrate(*narrow, times=TIMES).decide(test, times=TIMES, first=0)
    assert_same_decisions(first, case.decide_after(wide, test.astype(np.float64)))


def test_inputs_are_left_alone(case: Case) -> None:
    frozen = case.data.calibration.log_confidence.copy(), case.data.test.log_confidence.copy()
    for array in frozen:
        array.setflags(write=False)
    assert_same_decisions(
        case.decide_after(Sample(frozen[0], case.data.calibration.labels), frozen[1]),
        case.decisions,
    )


def test_evaluate(case: Case) -> None:
    labels = case.data.test.labels
    evaluation = ag.evaluate(case.decisions, labels)
    assert evaluation.n == 50
    right = np.array(
        [label in one.classes for label, one in zip(labels.tolist(), case.decisions, strict=True)]
    )
    assert evaluation.coverage == np.mean(right)
    assert evaluation.kept == np.mean(right | ~case.decisions.answered)
    assert evaluation.latency == pytest.approx(case.decisions.stop_time.mean())
    assert evaluation.normalized_latency == pytest.approx(case.decisions.stop_time.mean() / 10)
    assert evaluation.set_size == pytest.approx(case.decisions.set_size.mean())
    assert (
        sum(group.n for group in evaluation.by_stop_time)
        == sum(group.n for group in evaluation.by_class)
        == 50
    )


def test_repeated_splits_equal_a_loop(case: Case) -> None:
    pool, repeats, n = case.data.calibration, 3, 150
    splits = ag.repeat_splits(
        case.rule, *pool, n_calibration=n, repeats=repeats, seed=11, times=TIMES
    )
    rng = np.random.default_rng(11)
    for repeat in range(repeats):
        order = rng.permutation(len(pool.labels))
        rest = pool.rows(order[n:])
        evaluation = ag.evaluate(
            case.decide_after(pool.rows(order[:n]), rest.log_confidence), rest.labels
        )
        assert splits.coverages[repeat] == pytest.approx(evaluation.coverage)
        assert splits.latencies[repeat] == pytest.approx(evaluation.normalized_latency)
        assert splits.set_sizes[repeat] == pytest.approx(evaluation.set_size)


def test_cases_stop_at_different_times() -> None:
    """The cases are worth comparing: most of them stop some inputs early and some late."""
    varied = [len(np.unique(CASES[name].decisions.stop_index)) > 1 for name in FAST]
    assert np.mean(varied) > 0.9
