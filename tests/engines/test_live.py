"""A live input is decided step by step as in a batch, whether events or frames are pushed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="engines run trained networks, which need PyTorch")

from torch import Tensor, nn

import agreestop as ag
from agreestop.engines import (
    Dense,
    Engine,
    FreshMembers,
    LiveBatch,
    LiveSession,
    Push,
    RunOptions,
    Steps,
    decide_early,
    score,
)
from agreestop.networks import ModuleMembers, Posterior, SpikingNetwork
from tests.engines.test_early_stopping import (
    CONFIGS,
    ENGINES,
    EVERY,
    RULES,
    modules,
    network,
    some_inputs,
)


def engine_named(name: str) -> Engine:
    if name in ENGINES:
        return ENGINES[name](network("fully-connected"))
    return Dense(modules(name))


@pytest.mark.parametrize("name", (*ENGINES, "logits", "spikes"))
def test_a_live_input_is_decided_as_in_a_batch(name: str) -> None:
    engine = engine_named(name)
    known, truth = some_inputs(60)
    for rule in (RULES["AgreeStop"], RULES["bonferroni"]):
        calibrated = rule.calibrate(score(engine, known, truth))
        inputs, _ = some_inputs(8, 2)
        expected = decide_early(engine, calibrated, inputs).decisions
        for row, frames in enumerate(inputs):
            by_events, by_frames = (LiveSession(engine, calibrated, row) for _ in range(2))
            decisions = []
            for frame in frames[: int(expected.stop_time[row])]:
                decisions.append(by_events.push(np.flatnonzero(frame)))
                assert by_frames.push(frame=frame) == decisions[-1]
            assert decisions[-1] == expected[row] and not any(decisions[:-1])
            with pytest.raises(ag.InputError, match="open a new session"):
                by_events.push([])


@pytest.mark.parametrize("kind", ["0 and 1", "numbers", "convolutional"])
@pytest.mark.parametrize("name", ENGINES)
def test_what_an_event_means_that_is_named_several_times(name: str, kind: str) -> None:
    """Alone and together with others: once for members of 0 and 1, every time for numbers, and
    refused where it is not known.
    """
    config = replace(
        CONFIGS["convolutional" if kind == "convolutional" else "fully-connected"],
        real_input=kind != "0 and 1",
    )
    made = SpikingNetwork(config, torch.Generator().manual_seed(3), deviation=0.5).eval()
    engine = ENGINES[name](made)
    inputs, truth = some_inputs(60)
    calibrated = ag.AgreeStop(0.9, (24,), 1).calibrate(score(engine, inputs, truth))
    session, live = LiveSession(engine, calibrated), engine.live()
    batch = LiveBatch(calibrated, engine, slots=1)
    row = batch.open(0)
    for number, frame in enumerate(inputs[0]):
        events = np.flatnonzero(frame)
        named = np.concatenate([events[::-1], events, events[:2]])
        if kind == "convolutional" and len(named):
            for push in (session.push, live.push):
                with pytest.raises(
                    ag.InputError, match=f"events names {events[0]} more than once in a step"
                ):
                    push(named)
            if number == 23:
                (refused,) = batch.push([Push(row, Steps.of([named]))])
                assert isinstance(refused, ag.InputError) and "more than once in a step" in str(
                    refused
                )
                return
            named = events
        factor = 2 if kind == "numbers" else 1
        dense = factor * frame.reshape(-1).astype(np.float32)
        dense[events[:2]] += factor - 1
        evidence = live.push(frame=dense)
        decision = session.push(named)
        (together,) = batch.push([Push(row, Steps.of([named]))])
        assert decision == together
        inside: Any = session
        np.testing.assert_array_equal(inside._live.evidence, evidence)
    assert decision is not None


@pytest.mark.parametrize("name", ENGINES)
def test_a_wrong_step_is_refused_and_changes_nothing(name: str) -> None:
    engine = engine_named(name)
    known, truth = some_inputs(60)
    session = LiveSession(engine, RULES["AgreeStop"].calibrate(score(engine, known, truth)))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"events": [32]}, "numbered 0 to 31"),
        ({"events": [0.5]}, "dtype float64"),
        ({"events": np.arange(32) % 2}, "push\\(frame=array\\)"),
        ({"events": np.zeros((2, 4, 4), int)}, "push\\(frame=array\\)"),
        ({"frame": np.zeros((2, 4))}, "shape \\(2, 4, 4\\)"),
        ({"frame": np.full((2, 4, 4), np.nan)}, "finite"),
        ({}, "one of events and frame"),
        ({"events": [1], "frame": np.zeros((2, 4, 4))}, "one of events and frame"),
    ]
    for given, message in wrong:
        with pytest.raises(ag.InputError, match=message):
            session.push(**given)
    assert session.time == 0


@pytest.mark.parametrize("name", ENGINES)
def test_steps_may_be_tensors(name: str) -> None:
    frame = some_inputs(1)[0][0, 0]
    expected = engine_named(name).live().push(np.flatnonzero(frame)).copy()
    for given in (
        torch.from_numpy(frame),
        torch.from_numpy(frame).bfloat16(),
        torch.from_numpy(frame).float().requires_grad_(),
    ):
        np.testing.assert_array_equal(engine_named(name).live().push(frame=given), expected)
    np.testing.assert_array_equal(
        engine_named(name).live().push(torch.from_numpy(np.flatnonzero(frame))), expected
    )


def test_another_engine_than_calibrated_with_is_refused_unless_allowed() -> None:
    engine = engine_named("dense")
    known, truth = some_inputs(60)
    calibrated = replace(
        RULES["AgreeStop"].calibrate(score(engine, known, truth)), engine="event-driven"
    )
    with pytest.raises(ag.InputError, match="calibrated on scores of the event-driven"):
        LiveSession(engine, calibrated)
    assert LiveSession(engine, calibrated, options=RunOptions(any_engine=True)).push([]) is None


def test_sessions_are_numbered_and_fresh_members_follow_the_number() -> None:
    posterior = Posterior(CONFIGS["fully-connected"], torch.Generator().manual_seed(0), 0.5).eval()
    inputs, labels = np.repeat(some_inputs(1)[0], 20, axis=0), np.arange(20) % 4
    engine = FreshMembers(posterior, (3,))
    scores = score(engine, inputs, labels)
    np.testing.assert_array_equal(
        score(engine, inputs, options=RunOptions(batch_size=3)).log_confidence,
        scores.log_confidence,
    )
    calibrated = ag.AgreeStop(0.5, EVERY, 2).calibrate(scores)
    expected = decide_early(engine, calibrated, inputs).decisions
    assert len(np.unique(expected.stop_index)) > 2
    in_batches = decide_early(engine, calibrated, inputs, RunOptions(batch_size=3)).decisions
    np.testing.assert_array_equal(in_batches.stop_index, expected.stop_index)
    for row in range(4):
        session = LiveSession(engine, calibrated)
        while session.decision is None:
            session.push(frame=inputs[row, session.time])
        assert session.decision == expected[row]


def test_events_need_a_known_input_shape() -> None:
    engine = Dense(ModuleMembers([*modules("logits").each]))
    with pytest.raises(ag.InputError, match="push\\(frame=array\\)"):
        engine.live().push([1])
    live = engine.live()
    assert live.push(frame=np.zeros((2, 4, 4))).shape == (3, 4)
    assert live.push([1]).shape == (3, 4)


class Spoiled(nn.Module):
    """Logits of the sum of the inputs so far; an input of 77 makes them NaN for one step."""

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        total = x if state is None else state + x
        return torch.where(x[:, :1] == 77, torch.nan, total), total


@pytest.mark.parametrize("wrong", [1, 2])
def test_an_output_that_is_not_finite_ends_the_input(wrong: int) -> None:
    """At a checkpoint (step 2) or before it: a session that went on would never decide."""
    engine = ag.adapters.from_module([Spoiled(), Spoiled()], input_shape=(3,))
    x = np.random.default_rng(0).normal(size=(40, 4, 3)).astype(np.float32)
    rule = ag.AgreeStop(0.6, (2, 4), 1).calibrate(engine.score(x, np.arange(40) % 3))
    session = engine.live(rule)
    for step in range(1, wrong):
        assert session.push(frame=x[0, step]) is None
    words = f"not finite at step {wrong}, .* open a new session"
    with pytest.raises(ag.InputError, match=words):
        session.push(frame=np.full(3, 77, np.float32))
    for go_on in (lambda: session.push(frame=x[0, 0]), session.last_decision):
        later: Any = go_on
        with pytest.raises(ag.InputError, match=words):
            later()
    assert session.decision is None


def test_a_session_that_was_given_up_has_no_end() -> None:
    """A monitor counts it as an input without a decision, so it must not get one later."""
    engine = engine_named("dense")
    known, truth = some_inputs(60)
    session = LiveSession(engine, RULES["AgreeStop"].calibrate(score(engine, known, truth)))
    session.push([])
    session.close()
    with pytest.raises(ag.InputError, match="this session was closed"):
        session.end()
    assert session.decision is None
