"""Live inputs that are computed together are decided as each would be alone."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="engines run trained networks, which need PyTorch")
pytest.importorskip("numba", reason="the event-driven engine needs numba")

import agreestop as ag
from agreestop.decide.checkpoints import in_rounds
from agreestop.engines import (
    Engine,
    EventDriven,
    LiveBatch,
    LiveInput,
    LiveSession,
    Push,
    Reading,
    RunOptions,
    Steps,
    decide_early,
    score,
)
from agreestop.engines.inputs import check_events
from agreestop.networks import SpikingNetwork
from tests.decide.strategies import parts_of_state, uniforms_of
from tests.engines.test_early_stopping import CONFIGS, ENGINES, EVERY, RULES, network, some_inputs

ALL_RULES = RULES | {
    "schedule": ag.AgreeStop(0.8, ag.Schedule([(2, 1), (2, 2), (5, 3), (9, 3), (24, 3)]), 2),
    "gate": ag.AgreeStop(0.8, EVERY, 2),
    "groups": ag.AgreeStop(0.8, EVERY, 2),
}


def calibrated_on(engine: Engine, label: str) -> ag.CalibratedRule:
    known, truth = some_inputs(90)
    scores = score(engine, known, truth)
    if label == "gate":
        half = score(engine, known[:45], truth[:45])
        gate = ag.Gate.fit(half, target=0.8, max_set_size=2, blocks=3)
        return ag.AgreeStop(0.8, EVERY, 2, gate=gate).calibrate(
            score(engine, known[45:], truth[45:])
        )
    return ALL_RULES[label].calibrate(
        scores, groups=np.arange(90) % 2 if label == "groups" else None
    )


def steps_of(frames: np.ndarray) -> list[np.ndarray]:
    return [np.flatnonzero(frame) for frame in frames]


@pytest.mark.filterwarnings("ignore::agreestop.CalibrationWarning")
@pytest.mark.parametrize("label", ALL_RULES)
@pytest.mark.parametrize("kind", CONFIGS)
def test_inputs_at_different_times_are_decided_as_each_alone(label: str, kind: str) -> None:
    engine = ENGINES["event-driven"](network(kind))
    calibrated = calibrated_on(engine, label)
    inputs, _ = some_inputs(10, 2)
    rng = np.random.default_rng(4)
    batch, found = LiveBatch(calibrated, engine, slots=4), dict[int, ag.Decision]()
    waiting, running, pushed = list(range(len(inputs))), dict[int, LiveInput](), dict[int, int]()
    group = (lambda row: row % 2) if label == "groups" else (lambda row: None)
    while waiting or running:
        while (
            waiting and len(running) < 4 and rng.random() < 0.7
        ):  # inputs begin at different ticks, and slots are used again
            row = waiting.pop(0)
            running[row], pushed[row] = batch.open(row, group(row)), 0
        pushes, rows = [], []
        for row, one in running.items():
            for _ in range(
                rng.integers(3)
            ):  # none, one or two pushes in a tick, of one to three steps
                count = int(rng.integers(1, 4))
                part = inputs[row, pushed[row] : pushed[row] + count]
                if len(part):
                    pushes.append(Push(one, Steps.of(steps_of(part))))
                    rows.append(row)
                pushed[row] += len(part)
        for row, result in zip(rows, batch.push(pushes), strict=True):
            assert result is None or isinstance(result, ag.Decision)
            if result is not None:
                assert row not in found
                found[row] = result
                batch.close(running.pop(row))
    for row, frames in enumerate(inputs):
        alone = LiveSession(engine, calibrated, row, group=group(row))
        expected = next(
            decision
            for frame in frames
            if (decision := alone.push(np.flatnonzero(frame))) is not None
        )
        assert (
            found[row] == expected
            and found[row].first_risk == expected.first_risk
            and found[row].block == expected.block
        )


@pytest.mark.parametrize("precision", ("float32", "bfloat16", "int8"))
@pytest.mark.parametrize("hidden", ((8,), (130, 70)))
def test_counts_of_inputs_together_are_those_of_each_alone(
    hidden: tuple[int, ...], precision: str
) -> None:
    """Also where an input has several steps, one after another or between those of others."""
    config = replace(CONFIGS["fully-connected"], hidden=hidden)
    made = SpikingNetwork(config, torch.Generator().manual_seed(5), deviation=2.0).eval()
    engine, rng = EventDriven(made, precision), np.random.default_rng(1)
    slots = engine.live_slots(5, np.arange(1, 100))  # every step is a checkpoint
    alone = [engine.live() for _ in range(5)]
    for _ in range(12):
        rows = rng.permutation(np.repeat(np.arange(5), rng.integers(0, 3, 5)))
        steps = [np.flatnonzero(rng.random(slots.inputs) < 0.3) for _ in rows]
        pointers = np.cumsum([0, *map(len, steps)])
        events = np.concatenate([np.zeros(0, np.int64), *steps])
        pushed = slots.push(rows, pointers, events)
        assert pushed is not None
        judged, found = pushed
        assert judged[:, 0].tolist() == list(range(len(rows)))
        expected = [alone[row].push(step).copy() for row, step in zip(rows, steps, strict=True)]
        np.testing.assert_array_equal(found, np.reshape(expected, found.shape))
    assert all(slots.evidence(row).any() for row in range(5))


@pytest.mark.filterwarnings("ignore::agreestop.CalibrationWarning")
@pytest.mark.parametrize("label", ("AgreeStop", "randomised", "schedule", "DC-SNN"))
def test_log_confidences_are_judged_as_in_a_stream(label: str) -> None:
    engine = ENGINES["event-driven"](network("fully-connected"))
    calibrated = calibrated_on(engine, label)
    values = calibrated_columns(score(engine, some_inputs(6, 2)[0]), calibrated)
    for batch in (LiveBatch(calibrated, engine, 6), LiveBatch(calibrated, None, 6)):
        rows, found = [batch.open(number) for number in range(6)], dict[int, ag.Decision]()
        for first in range(0, values.shape[1], 3):
            results = batch.push(
                [
                    Push(row, log_confidence=values[n, first : first + 3])
                    for n, row in enumerate(rows)
                ]
            )
            found |= {
                n: result for n, result in enumerate(results) if isinstance(result, ag.Decision)
            }
        for number in range(6):
            stream = calibrated.stream(number)
            assert found[number] == next(
                decision for value in values[number] if (decision := stream.push(value)) is not None
            )


def test_random_numbers_are_fresh_for_the_inputs_of_a_server() -> None:
    """A server that starts again counts from 0 again; a number that was given decides the random
    number as in a batch.
    """
    rule = ag.SpikeCP(0.8, (1, 2, 3), 1, ag.MergePValues(1, "randomized"))
    calibrated = rule.calibrate(ag.simulate_scores(100, steps=3, K=2, C=3))
    drawn = []
    for fresh in (True, True, False, False):
        batch = LiveBatch(calibrated, None, 1)
        batch.open(0, fresh=fresh)
        drawn.append(float(uniforms_of(batch)[0, 0]))
    expected = uniforms_of(calibrated.start(1, 0))
    assert drawn[2] == drawn[3] == expected[0, 0]
    assert len(set(drawn)) == 3


def calibrated_columns(scores: ag.Scores, calibrated: ag.CalibratedRule) -> np.ndarray:
    return scores.log_confidence[
        :, [scores.times.index(int(time)) for time in calibrated.checkpoints]
    ]


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("label", ("AgreeStop", "schedule"))
def test_a_stream_that_is_over_is_answered_as_alone(name: str, label: str) -> None:
    engine = ENGINES[name](network("fully-connected"))
    calibrated = calibrated_on(engine, label)
    batch, inputs = LiveBatch(calibrated, engine, 5), some_inputs(5, 2)[0]
    for number, frames in enumerate(inputs):
        row, alone = batch.open(number), LiveSession(engine, calibrated, number)
        with pytest.raises(ag.InputError, match="before its first step"):
            batch.end(row)
        (found,) = batch.push([Push(row, Steps.of(steps_of(frames[:2])))])
        for frame in frames[:2]:
            expected = alone.decision or alone.push(np.flatnonzero(frame))
        assert (
            found == expected
            and batch.end(row) == alone.last_decision()
            and row.decision == alone.decision
        )
        cut = LiveBatch(calibrated, engine, 1)
        row = cut.open(number)
        cut.push([Push(row, Steps.of(steps_of(frames[:2])))])
        while row.decision is None:
            cut.end(row, 1)
        assert row.decision == alone.decision


def test_the_log_confidences_of_a_stream_that_is_over_stand_for_the_rest() -> None:
    engine = ENGINES["event-driven"](network("fully-connected"))
    for label in ("AgreeStop", "schedule"):
        calibrated = calibrated_on(engine, label)
        value = score(engine, some_inputs(1, 2)[0]).log_confidence[0, :1]
        batch, stream = LiveBatch(calibrated, None, 1), calibrated.stream(0)
        row = batch.open(0)
        batch.push([Push(row, log_confidence=value)])
        while stream.decision is None:
            stream.push(value[0])
        assert batch.end(row) == stream.decision


def test_a_wrong_push_costs_its_own_input_alone() -> None:
    engine = ENGINES["event-driven"](network("fully-connected"))
    calibrated = calibrated_on(engine, "AgreeStop")
    batch = LiveBatch(calibrated, engine, 8)
    good, *bad = (batch.open(number) for number in range(8))
    flat = np.zeros((1, calibrated.members, calibrated.classes))
    wrong = [
        (Push(bad[0], Steps.of([[0], [32]])), "numbered 0 to 31"),
        (Push(bad[1], Steps.of([[-1]])), "numbered 0 to 31"),
        (Push(bad[2], Steps.of([np.arange(32) % 2])), "frame"),
        (Push(bad[3], log_confidence=flat[:, :1]), "members"),
        (Push(bad[4], log_confidence=flat + 0.5), "numpy.log"),
        (Push(bad[5]), "one of steps, frames and log_confidence"),
        (Push(bad[6], Steps.of([[0]]), flat), "one of steps, frames and log_confidence"),
    ]
    frames = some_inputs(1, 2)[0][0]
    pushes = [one for one, _ in wrong] + [Push(good, Steps.of(steps_of(frames)))]
    *errors, decision = batch.push(pushes)
    for error, (_, message) in zip(errors, wrong, strict=True):
        assert isinstance(error, ag.InputError) and message in str(error)
    alone = LiveSession(engine, calibrated, 0)
    assert decision == next(
        found for frame in frames if (found := alone.push(np.flatnonzero(frame))) is not None
    )
    (again,) = batch.push([Push(bad[0], Steps.of([[0]]))])
    assert again is errors[0]
    (again,) = batch.push([Push(bad[3], log_confidence=flat)])
    assert again is errors[3]
    (later,) = batch.push([Push(good, Steps.of([[0]]))])  # after the decision: not run, not refused
    assert later is None
    with pytest.raises(ag.InputError, match="all slots are in use"):
        batch.open(9)
    with pytest.raises(ag.InputError, match="flat indices"):
        Steps.of([[0.5]])
    (mixed,) = LiveBatch(calibrated, None, 1).push([Push(LiveInput(0, 0, None), Steps.of([[1]]))])
    assert "no members here" in str(mixed)
    fresh = LiveBatch(calibrated, engine, 1)
    row = fresh.open(0)
    fresh.push([Push(row, Steps.of([[1]]))])
    (mixed,) = fresh.push([Push(row, log_confidence=flat)])
    assert "one session for each" in str(mixed)


def test_an_input_that_is_given_up_early_has_no_risk_of_the_one_before() -> None:
    engine = ENGINES["event-driven"](network("fully-connected"))
    calibrated = calibrated_on(engine, "AgreeStop")
    flat = np.full((1, calibrated.members, calibrated.classes), -np.log(calibrated.classes))
    for batch in (LiveBatch(calibrated, engine, 1), LiveBatch(calibrated, None, 1)):
        row = batch.open(0)
        batch.push([Push(row, log_confidence=flat)])
        assert batch.close(row) is not None and batch.close(batch.open(1)) is None


def test_steps_are_refused_as_one_by_one() -> None:
    rng = np.random.default_rng(0)
    found = set()
    for _ in range(400):
        inputs, repeats = int(rng.integers(2, 7)), str(rng.choice(["once", "each", "refused"]))
        steps = [
            rng.integers(-(rng.random() < 0.1), inputs + (rng.random() < 0.1), size=rng.integers(7))
            for _ in range(rng.integers(1, 5))
        ]
        if rng.random() < 0.3:
            steps.append(rng.integers(2, size=inputs))  # like a frame
        expected = None
        for step in steps:
            try:
                check_events(step, inputs, repeats)
            except ag.InputError as error:
                expected = str(error)
                break
        try:
            Steps.of(steps).check(inputs, repeats)
            assert expected is None
        except ag.InputError as error:
            assert str(error) == expected
        found.add(None if expected is None else expected.split()[2])
    assert len(found) >= 4, "steps of every kind were tried"


def test_rounds_hold_every_place_once_and_those_of_an_input_in_order() -> None:
    rng = np.random.default_rng(0)
    for n in (0, 1, 7, 200):
        inputs, index, where = rng.integers(5, size=n), rng.integers(3, size=n), rng.permutation(n)
        rounds = list(in_rounds(index, inputs, where))
        assert sorted(place for _, _, places in rounds for place in places.tolist()) == list(
            range(n)
        )
        assert all(len(set(some.tolist())) == len(some) for _, some, _ in rounds)
        for one in range(5):
            order = [place for _, some, places in rounds for place in places[some == one].tolist()]
            assert order == where[inputs == one].tolist()
        for at, _, places in rounds:
            assert (index[np.argsort(where)][places] == at).all()
    assert len(list(in_rounds(*np.zeros((3, 1000), np.int64)))) == 1000


def test_an_input_costs_nothing_for_the_other_slots() -> None:
    """Memory that opening, pushing and closing an input takes at once, with few slots and with
    many; a copy of the state would show.
    """
    log_confidence = np.log(np.random.default_rng(0).dirichlet(np.ones(20), size=(60, 8, 2)))
    labels = np.arange(60) % 20
    rule = ag.SpikeCP(0.8, range(1, 9), 3, calibration="simultaneous", pooling=ag.MergeConfidence())
    calibrated = rule.calibrate(log_confidence, labels)
    taken = {}
    for slots in (100, 20_000):
        batch = LiveBatch(calibrated, None, slots)
        size = max(
            part.nbytes for part in parts_of_state(batch._state).values() if part is not None
        )
        for _ in range(2):  # the first makes what is made once
            tracemalloc.start()
            rows = [batch.open(number) for number in range(5)]
            batch.push(
                [
                    Push(row, log_confidence=log_confidence[number, :4])
                    for number, row in enumerate(rows)
                ]
            )
            batch.end(rows[0])
            for row in rows:
                batch.close(row)
            taken[slots] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert slots == 100 or taken[slots] < size / 10, (
            "less than a tenth of the state of all slots"
        )
    assert taken[20_000] < 1.5 * taken[100] + 10_000
    before = calibrated.start(20_000, 0, calibrated.find_groups(None, 20_000))
    tracemalloc.start()
    before.rows(np.arange(20_000))  # the control: a copy for every input
    assert tracemalloc.get_traced_memory()[1] > size
    tracemalloc.stop()


def test_the_end_of_an_input_may_be_judged_in_parts() -> None:
    log_confidence = np.log(np.random.default_rng(0).dirichlet(np.ones(5), size=(60, 8, 2)))
    calibrated = ag.AgreeStop(0.8, range(1, 9), 1).calibrate(log_confidence, np.arange(60) % 5)
    parts = set()
    for number in range(20):
        whole, cut = LiveBatch(calibrated, None, 1), LiveBatch(calibrated, None, 1)
        rows = whole.open(0), cut.open(0)
        for batch, row in zip((whole, cut), rows, strict=True):
            batch.push([Push(row, log_confidence=log_confidence[number, :1])])
        if rows[0].decision is not None:
            continue
        expected, calls = whole.end(rows[0]), 1
        while (found := cut.end(rows[1], 2)) is None:
            calls += 1
        assert found == expected
        parts.add(calls)
    assert max(parts) > 1


def test_events_that_are_named_again_and_again_are_computed_once() -> None:
    steps = Steps.of([[1, 1], [], [3, 0, 3, 3, 3, 0, 3], [2]])
    once = steps.each_once(5)
    assert once.counts.tolist() == [2, 0, 2, 1] and once.indices.tolist() == [1, 1, 0, 3, 2]


def test_engines_answer_each_depth_of_a_tree_as_the_scores_do() -> None:
    engine, tree = (
        ENGINES["event-driven"](network("fully-connected")),
        ag.Tree({"even": ("c", "a"), "odd": ("d", "b")}),
    )
    known, truth = some_inputs(90)
    scores = replace(score(engine, known, truth), classes=("a", "b", "c", "d"))
    calibrated = ag.AgreeStop(0.6, EVERY, 1, tree=tree, depth="each").calibrate(scores)
    inputs, _ = some_inputs(30, 2)
    expected = calibrated.decide(score(engine, inputs))
    for options in (RunOptions(), RunOptions(batch_size=7, chunk=5)):
        run = decide_early(engine, calibrated, inputs, options)
        np.testing.assert_array_equal(run.decisions.depth_index, expected.depth_index)
        np.testing.assert_array_equal(run.decisions.depth_sets, expected.depth_sets)
    batch, early = LiveBatch(calibrated, engine, 30), 0
    rows = [batch.open(number) for number in range(30)]
    found = batch.push(
        [Push(row, Steps.of(steps_of(frames))) for row, frames in zip(rows, inputs, strict=True)]
    )
    for row, frames in enumerate(inputs):
        live = LiveSession(engine, calibrated, row)
        for frame in frames:
            if live.push(np.flatnonzero(frame)) is not None:
                break
            early += live.by_depth[0] is not None
        assert live.decision == found[row] == expected[row]
    assert early > 0


@pytest.mark.parametrize("label", ("AgreeStop", "schedule"))
def test_an_input_that_was_closed_touches_no_other(label: str) -> None:
    """Neither a later push nor a second close reaches the slot of another input."""
    engine = ENGINES["event-driven"](network("fully-connected"))
    calibrated = calibrated_on(engine, label)
    batch, frames = LiveBatch(calibrated, engine, 2), some_inputs(1, 2)[0][0]
    closed, open_ = batch.open(0), batch.open(1)
    batch.close(closed)
    (refused,) = batch.push([Push(closed, Steps.of([[0, 1, 2]]))])
    assert isinstance(refused, ag.InputError) and "was closed" in str(refused)
    for wrong in (batch.close, batch.end):
        with pytest.raises(ag.InputError, match="was closed"):
            wrong(closed)
    (decision,) = batch.push([Push(open_, Steps.of(steps_of(frames)))])
    alone = LiveSession(engine, calibrated, 1)
    assert decision == next(
        found for frame in frames if (found := alone.push(np.flatnonzero(frame))) is not None
    )
    assert batch.open(2).slot == 0
    with pytest.raises(ag.InputError, match="all slots are in use"):
        batch.open(3)


def test_a_batch_needs_a_calibrated_rule() -> None:
    rule: Any = ALL_RULES["AgreeStop"]
    with pytest.raises(ag.InputError, match="not calibrated"):
        LiveBatch(rule, None, 1)


@pytest.mark.filterwarnings("ignore::agreestop.CalibrationWarning")
def test_open_answers_have_no_early_end() -> None:
    answers = ag.Answers([["a", "b"] * 4] * 40)
    batch = LiveBatch(ag.AgreeStop(0.8, range(1, 9), 1).calibrate(answers, "final"), None, 1)
    row = batch.open(0)
    batch.push([Push(row, evidence=[Reading("a")])])
    with pytest.raises(ag.InputError, match="no early end"):
        batch.end(row)


def test_what_another_rule_reads_is_refused() -> None:
    scores = ag.simulate_scores(60, steps=3, K=2, C=3)
    loss = np.random.default_rng(0).random((60, 3))
    rules = {
        "log_confidence": ag.AgreeStop(0.8, (1, 2, 3), 1).calibrate(scores),
        "risk": ag.StopRule(target=0.8).calibrate(loss, loss > 0.9),
    }
    for reads, rule in rules.items():
        batch = LiveBatch(rule, None, 1)
        row = batch.open(0)
        wrong = (
            Push(row, evidence=[Reading(0.5)])
            if reads == "log_confidence"
            else Push(row, log_confidence=scores.log_confidence[0])
        )
        (refused,) = batch.push([wrong])
        assert isinstance(refused, ag.InputError) and f"the rule reads {reads}" in str(refused)


def test_more_steps_than_the_decision_needs_may_be_pushed_together() -> None:
    """As frames, which have a session of their own, and as events, also if a step names events
    more often than there are inputs.
    """
    engine = ENGINES["event-driven"](network("fully-connected"))
    calibrated = calibrated_on(engine, "AgreeStop")
    for frames in some_inputs(6, 2)[0]:
        alone = LiveSession(engine, calibrated, 0)
        expected = next(
            found for frame in frames if (found := alone.push(np.flatnonzero(frame))) is not None
        )
        named = [np.tile(step, 40) for step in steps_of(frames)]
        for given in ({"frames": frames}, {"steps": Steps.of(named)}):
            batch, push = LiveBatch(calibrated, engine, 1), dict[str, Any](given)
            (decision,) = batch.push([Push(batch.open(0), **push)])
            assert decision == expected


def test_the_last_log_confidences_of_a_push_stand_for_the_rest() -> None:
    log_confidence = np.log(np.random.default_rng(0).dirichlet(np.ones(5), size=(60, 8, 2)))
    calibrated = ag.AgreeStop(0.8, range(1, 9), 1).calibrate(log_confidence, np.arange(60) % 5)
    for values in log_confidence[:20]:
        stream, batch = calibrated.stream(0), LiveBatch(calibrated, None, 1)
        row = batch.open(0)
        batch.push([Push(row, log_confidence=values[:2])])
        for value in (*values[:2], *[values[1]] * 6):
            if stream.push(value) is not None:
                break
        assert batch.end(row) == stream.decision
        longer = LiveBatch(calibrated, None, 1)
        (found,) = longer.push([Push(longer.open(0), log_confidence=[*values, *values])])
        assert found == calibrated.decide(values[None], range(1, 9))[0]
