"""Members that join: engines run them only once they are asked for, and decide as on scores of all
members computed to the end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="engines run trained networks, which need PyTorch")

import agreestop as ag
from agreestop.common import Booleans
from agreestop.engines import (
    Dense,
    Engine,
    FreshMembers,
    Fused,
    LiveSession,
    RunOptions,
    decide_early,
    run_to_end,
    score,
)
from agreestop.engines.early_stopping import JoiningPass, MemberGroups
from agreestop.engines.live import JoiningLive
from agreestop.engines.prefilter import prefilter_for
from agreestop.networks import ModuleMembers, Posterior, SpikingNetwork
from tests.decide.strategies import at_threshold
from tests.engines.test_early_stopping import (
    CLASSES,
    CONFIGS,
    ENGINES,
    EVERY,
    MEMBERS,
    STEPS,
    modules,
    network,
    some_inputs,
)

LOOKS = [(2, 1), (3, 1), (3, 2), (6, 2), (9, 2), (9, 3), (14, 3), (24, 3)]
SCHEDULE = ag.Schedule(LOOKS)
RULES = {
    "AgreeStop": ag.AgreeStop(0.8, SCHEDULE, 2),
    "stop-aware": ag.SpikeCP(0.8, SCHEDULE, 2, ag.MergeConfidence(r=1), "stop-aware"),
    "simultaneous": ag.SpikeCP(0.8, SCHEDULE, 2, ag.MergeConfidence(r=1), "simultaneous"),
    "DC-SNN": ag.DCSNN(0.8, SCHEDULE, 2),
}
NAMES = [
    *((name, kind) for name in ENGINES for kind in CONFIGS),
    ("modules", "logits"),
    ("modules", "spikes"),
    ("fresh", "fully-connected"),
]


def engine_named(name: str, kind: str) -> Engine:
    if name == "modules":
        return Dense(modules(kind))
    if name == "fresh":
        return FreshMembers(
            Posterior(CONFIGS[kind], torch.Generator().manual_seed(0), 0.5).eval(), (3,)
        )
    return ENGINES[name](network(kind))


class Counted:
    """An engine that notes the steps of every member, as a total over inputs. With divides=False it
    cannot run some members alone.
    """

    def __init__(
        self, engine: Any, first: int = 0, steps: Any = None, divides: bool = True
    ) -> None:
        self.engine, self.first, self.divides = engine, first, divides
        self.name, self.members, self.output, self.reason = (
            engine.name,
            engine.members,
            engine.output,
            "",
        )
        self.copies_weights, self.classes = engine.copies_weights, engine.classes
        self.steps = np.zeros(engine.members, dtype=np.int64) if steps is None else steps

    def note(self, count: int) -> None:
        self.steps[self.first : self.first + self.members] += count

    def chunk_steps(self, rows: int) -> int:
        return int(self.engine.chunk_steps(rows))

    def begin(self, inputs: Any, first: int = 0) -> Any:
        run, note = self.engine.begin(inputs, first), self.note

        class Pass:
            rows = property(lambda self: run.rows)

            def advance(self, steps: int) -> Any:
                note(steps * run.rows)
                return run.advance(steps)

            def keep(self, rows: Booleans) -> None:
                run.keep(rows)

        return Pass()

    def live(self, number: int = 0) -> Any:
        live, note = self.engine.live(number), self.note

        class Live:
            def push(self, events: Any = None, *, frame: Any = None) -> Any:
                found = live.push(events, frame=frame)
                note(1)
                return found

        return Live()

    def members_slice(self, first: int, last: int) -> Any:
        if not self.divides:
            return None
        return Counted(self.engine.members_slice(first, last), self.first + first, self.steps)


@pytest.mark.parametrize(("name", "kind"), NAMES)
def test_some_members_do_what_they_do_among_all(name: str, kind: str) -> None:
    engine: Any = engine_named(name, kind)
    inputs, _ = some_inputs(20, 5)
    whole = run_to_end(engine, inputs)
    assert kind == "logits" or 0.005 < whole.mean() < 0.9
    for first, last in ((0, 1), (1, 2), (1, 3), (2, 3), (0, 3)):
        part = engine.members_slice(first, last)
        assert part.members == last - first and part.classes == CLASSES and part.name == engine.name
        np.testing.assert_array_equal(run_to_end(part, inputs), whole[:, :, first:last])
        live, all_live = part.live(0), engine.live(0)
        for frame in inputs[0]:
            np.testing.assert_array_equal(
                live.push(frame=frame), all_live.push(frame=frame)[first:last]
            )
    assert engine.members == MEMBERS
    np.testing.assert_array_equal(run_to_end(engine, inputs), whole)


def mark_slow(name: str, kind: str, label: str) -> Any:
    """Members that are drawn anew for every input take most of the time: one rule is enough."""
    slow = name == "fresh" and label != "AgreeStop"
    return pytest.param(
        name, kind, label, marks=[pytest.mark.slow] if slow else [], id=f"{name}-{kind}-{label}"
    )


@pytest.mark.parametrize(
    ("name", "kind", "label"), [mark_slow(*known, label) for known in NAMES for label in RULES]
)
def test_decisions_are_those_of_full_scores_and_members_work_only_when_asked(
    name: str, kind: str, label: str
) -> None:
    engine = engine_named(name, kind)
    known, truth = some_inputs(60)
    calibrated = RULES[label].calibrate(score(engine, known, truth))
    inputs, _ = some_inputs(50, 1)
    expected = calibrated.decide(score(engine, inputs))
    for chunk in (1, 5, STEPS, None):
        counted = Counted(engine)
        run = decide_early(
            counted,
            calibrated,
            inputs,
            RunOptions(batch_size=17 if name != "fresh" else 50, chunk=chunk),
        )
        np.testing.assert_array_equal(run.decisions.stop_index, expected.stop_index)
        np.testing.assert_array_equal(run.decisions.sets, expected.sets)
        np.testing.assert_array_equal(run.decisions.stop_members, expected.stop_members)
        assert (
            run.work.sum() == counted.steps.sum()
            and (run.work >= expected.work).all()
            and (run.computed >= expected.stop_time).all()
        )
        if chunk == 1:
            np.testing.assert_array_equal(run.work, expected.work)
            np.testing.assert_array_equal(run.computed, expected.stop_time)
            joined = expected.stop_members[:, None] > np.arange(MEMBERS)
            np.testing.assert_array_equal(
                counted.steps, (joined * expected.stop_time[:, None]).sum(axis=0)
            )


def test_members_that_never_join_never_run() -> None:
    engine = engine_named("dense", "fully-connected")
    known, truth = some_inputs(60)
    inputs, _ = some_inputs(30, 1)
    calibrated = ag.AgreeStop(0.8, ag.Schedule([(1, 1), (5, 2), (24, 2)]), 2).calibrate(
        score(engine, known, truth)
    )
    counted = Counted(engine)
    decisions = decide_early(counted, calibrated, inputs).decisions
    assert counted.steps[0] > 0 and counted.steps[1] > 0 and counted.steps[2] == 0
    counted = Counted(engine)
    session = LiveSession(counted, calibrated, 0)
    while session.decision is None:
        session.push(frame=inputs[0, session.time])
    assert session.decision == decisions[0] and counted.steps[2] == 0


@pytest.mark.parametrize("label", RULES)
def test_an_engine_that_cannot_be_divided_runs_all_members(label: str) -> None:
    engine = engine_named("dense", "fully-connected")
    known, truth = some_inputs(60)
    calibrated = RULES[label].calibrate(score(engine, known, truth))
    inputs, _ = some_inputs(50, 1)
    expected = calibrated.decide(score(engine, inputs))
    run = decide_early(Counted(engine, divides=False), calibrated, inputs, RunOptions(chunk=3))
    np.testing.assert_array_equal(run.decisions.stop_index, expected.stop_index)
    np.testing.assert_array_equal(run.decisions.sets, expected.sets)
    np.testing.assert_array_equal(run.work, MEMBERS * run.computed)
    session = LiveSession(Counted(engine, divides=False), calibrated, 0)
    while session.decision is None:
        session.push(frame=inputs[0, session.time])
    assert session.decision == expected[0]


@pytest.mark.parametrize(("name", "kind"), NAMES)
def test_a_live_input_is_replayed_to_members_that_join(name: str, kind: str) -> None:
    engine = engine_named(name, kind)
    known, truth = some_inputs(60)
    for label in ("AgreeStop", "DC-SNN"):
        calibrated = RULES[label].calibrate(score(engine, known, truth))
        inputs, _ = some_inputs(10, 2)
        expected = calibrated.decide(score(engine, inputs))
        for row, frames in enumerate(inputs):
            counted = Counted(engine)
            session, frame = (
                LiveSession(counted, calibrated, row),
                np.empty(frames.shape[1:], dtype=bool),
            )
            for step in frames[: int(expected.stop_time[row])]:
                assert session.decision is None
                frame[:] = step  # one buffer for all steps, as drivers have
                if session.time % 2 and name != "modules":
                    session.push(np.flatnonzero(frame))
                else:
                    session.push(frame=frame)
            assert (
                session.decision == expected[row]
                and session.decision.members == expected.stop_members[row]
            )
            joined = np.arange(MEMBERS) < expected.stop_members[row]
            np.testing.assert_array_equal(counted.steps, joined * expected.stop_time[row])


def test_images_are_held_for_members_that_join() -> None:
    engine = engine_named("dense", "fully-connected")
    rng = np.random.default_rng(0)
    images, labels = rng.random((60, 1, 2, 4, 4)) < 0.3, rng.integers(CLASSES, size=60)
    calibrated = RULES["AgreeStop"].calibrate(
        score(engine, images[:30], labels[:30], options=RunOptions(steps=STEPS))
    )
    expected = calibrated.decide(score(engine, images[30:], options=RunOptions(steps=STEPS)))
    run = decide_early(engine, calibrated, images[30:], RunOptions(steps=STEPS, chunk=1))
    np.testing.assert_array_equal(run.decisions.stop_index, expected.stop_index)
    np.testing.assert_array_equal(run.work, expected.work)


@pytest.mark.parametrize("name", ENGINES)
def test_all_members_at_every_look_is_the_plain_run(name: str) -> None:
    engine = engine_named(name, "fully-connected")
    scores, inputs = score(engine, *some_inputs(60)), some_inputs(30, 1)[0]
    plain, looks = (
        ag.AgreeStop(0.8, one, 2).calibrate(scores)
        for one in (EVERY, ag.Schedule([(time, MEMBERS) for time in EVERY]))
    )
    one, other = decide_early(engine, plain, inputs), decide_early(engine, looks, inputs)
    np.testing.assert_array_equal(one.decisions.stop_index, other.decisions.stop_index)
    np.testing.assert_array_equal(one.work, other.work)
    np.testing.assert_array_equal(one.work, MEMBERS * one.computed)


def test_groups_of_members_follow_the_schedule() -> None:
    engine = engine_named("dense", "fully-connected")
    groups = MemberGroups(engine, SCHEDULE.members)
    assert len(groups) == 3 and [groups.needed(look) for look in range(8)] == [
        1,
        1,
        2,
        2,
        2,
        3,
        3,
        3,
    ]
    assert [groups.run_length(look) for look in range(8)] == [2, 1, 3, 2, 1, 3, 2, 1]
    assert [groups.engine(group).members for group in range(3)] == [1, 1, 1] and groups.engine(
        1
    ) is groups.engine(1)
    whole = MemberGroups(engine, [MEMBERS] * len(EVERY))
    assert whole.engine(0) is engine and whole.needed(3) == 1
    assert whole.run_length(3) == len(EVERY) - 3


@pytest.mark.parametrize(
    ("name", "kind"), [("modules", "logits"), ("modules", "spikes"), ("dense", "fully-connected")]
)
def test_members_that_join_bring_their_evidence_of_that_time(name: str, kind: str) -> None:
    engine = engine_named(name, kind)
    inputs, _ = some_inputs(6, 4)
    outputs = run_to_end(engine, inputs)
    counts = outputs if engine.output == "logits" else np.cumsum(outputs, axis=1, dtype=np.int64)
    kept = np.array([True, False, True, True, False, True])
    run = JoiningPass(MemberGroups(engine, SCHEDULE.members), inputs, 0, engine.output)
    # logits are rounded differently in batches of another size
    error = 0 if engine.output == "spikes" else 1e-6
    # one member at checkpoints 0 and 1; two from checkpoint 2 on, which begins at the very time of
    # the one before
    found = run.advance_to(np.array([2, 5, 7]), 0)
    np.testing.assert_allclose(found, counts[:, [1, 4], :1], atol=error)
    run.keep(kept)
    np.testing.assert_allclose(
        run.advance_to(np.array([5, 7]), 2), counts[kept][:, [4, 6], :2], atol=error
    )
    np.testing.assert_array_equal(run.work, np.where(kept, 5 + 5 + 4, 5))


def test_a_live_input_is_held_only_while_members_may_join() -> None:
    engine = engine_named("dense", "fully-connected")
    inputs, _ = some_inputs(1, 4)
    counts = np.cumsum(run_to_end(engine, inputs)[0], axis=0, dtype=np.int64)
    groups = MemberGroups(engine, SCHEDULE.members)
    live = JoiningLive(groups, np.array(SCHEDULE).astype(int), 0)

    def evidence_of(members: int) -> np.ndarray:
        live.index = groups.members.tolist().index(members)
        return live.evidence

    for step in range(4):
        live.push(None, inputs[0, step])
    assert len(live._steps) == 4
    np.testing.assert_array_equal(evidence_of(1), counts[3, :1])
    np.testing.assert_array_equal(evidence_of(3), counts[3])
    np.testing.assert_array_equal(evidence_of(2), counts[3, :2])
    live.push(None, inputs[0, 4])
    assert not live._steps
    np.testing.assert_array_equal(evidence_of(3), counts[4])


def test_outputs_of_members_that_join_must_be_finite() -> None:
    """The second member is wrong only in steps that it replays, and that no look judges."""

    class Broken(torch.nn.Module):  # type: ignore[name-defined,misc]
        def forward(self, x: Any, state: Any) -> Any:
            time, logits = (0 if state is None else state) + 1, torch.zeros((len(x), CLASSES))
            logits[:, 0] = -float("inf") if time <= 2 else 0.0
            return logits, time

    calibrated = RULES["AgreeStop"].calibrate(
        score(engine_named("modules", "logits"), *some_inputs(60))
    )
    first, _, last = modules("logits").each
    broken, (inputs, _) = (
        Dense(ModuleMembers([first, Broken(), last], input_shape=(2, 4, 4))),
        some_inputs(50, 1),
    )
    for chunk in (1, None):
        with pytest.raises(ag.InputError, match=r"the output of the members .* finite"):
            decide_early(broken, calibrated, inputs, RunOptions(chunk=chunk))
    with pytest.raises(ag.InputError, match=r"the output of the members .* finite"):
        for row in range(50):
            session = LiveSession(broken, calibrated, row)
            while session.decision is None:
                session.push(frame=inputs[row, session.time])


def test_the_prefilter_of_a_gpu_needs_most_looks_before_members_join() -> None:
    scores = score(engine_named("dense", "fully-connected"), *some_inputs(60))
    few_then_all = ag.Schedule([*((time, 1) for time in EVERY), (STEPS, 3)])
    half = ag.Schedule([(1, 1), (2, 1), (2, 3), (3, 3)])
    for checkpoints, fits in ((EVERY, True), (few_then_all, True), (half, True), (SCHEDULE, False)):
        calibrated = ag.AgreeStop(0.8, checkpoints, 2).calibrate(scores)
        prefilter = prefilter_for(calibrated)
        assert prefilter is not None and prefilter.fits_gpu == fits
        never = at_threshold(calibrated, -np.inf)
        prefilter = prefilter_for(never)
        assert prefilter is not None and prefilter.fits_gpu == (checkpoints is EVERY), (
            "members that decide nothing are not run first"
        )


def test_a_checkpoint_at_which_nothing_stops_is_known_to_the_prefilter_for_any_threshold() -> None:
    scores = score(engine_named("dense", "fully-connected"), *some_inputs(60))
    risk = ag.ShapedRisk(ag.TopMass(), np.array([-np.inf, 0.0, 1.0]), (2, 9, 24))
    calibrated = ag.AgreeStop(0.8, (2, 9, 24), 2, risk=risk).calibrate(scores)
    for threshold in (-np.inf, -1.0, np.inf):
        prefilter = prefilter_for(at_threshold(calibrated, threshold))
        assert prefilter is not None
        np.testing.assert_array_equal(prefilter.bounds, [-np.inf, threshold, threshold + 1])


def test_fully_connected_members_are_divided_on_a_gpu_only_where_sums_are_exact() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    made = network("fully-connected")
    engine = Fused(made, device)
    first = engine.members_slice(0, 1)
    assert (
        first is not None
        and first is engine.members_slice(0, 1)
        and first.members == 1
        and first.members_slice(0, 1) is not first
    )
    assert Fused(made, device, bf16=True).members_slice(0, 1) is None
    real = SpikingNetwork(replace(made.config, real_input=True), torch.Generator().manual_seed(0))
    assert Fused(real, device).members_slice(0, 1) is None
    wide = SpikingNetwork(
        replace(made.config, input_shape=(40_000,)), torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        cast(Any, wide.layers[0]).synapses.weight[2] = (
            1.0  # so many inputs of the third member that a sum may pass 2^24
        )
    assert Fused(wide, device).members_slice(0, 1) is None


def test_a_gpu_divides_its_members() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    for kind in ("fully-connected", "convolutional"):
        engine = Fused(network(kind))
        known, truth = some_inputs(60)
        calibrated = RULES["AgreeStop"].calibrate(score(engine, known, truth))
        inputs, _ = some_inputs(50, 1)
        expected, run = (
            calibrated.decide(score(engine, inputs)),
            decide_early(engine, calibrated, inputs, RunOptions(chunk=1)),
        )
        np.testing.assert_array_equal(run.decisions.stop_index, expected.stop_index)
        np.testing.assert_array_equal(run.work, expected.work)


@pytest.mark.parametrize("kind", CONFIGS)
def test_event_driven_members_keep_their_own_gains_and_constants(kind: str) -> None:
    engine: Any = engine_named("event-driven", kind)
    rng, flat = np.random.default_rng(0), engine._network
    scale, bias, neurons = flat.constants[0], flat.constants[1], flat.constants[2:]
    scale *= rng.uniform(0.5, 2.0, scale.shape)
    bias += rng.normal(scale=0.1, size=bias.shape)
    neurons *= rng.uniform(0.8, 1.0, neurons.shape)
    inputs, _ = some_inputs(20, 5)
    whole = run_to_end(engine, inputs)
    for first, last in ((0, 1), (1, 2), (1, 3)):
        np.testing.assert_array_equal(
            run_to_end(engine.members_slice(first, last), inputs), whole[:, :, first:last]
        )
