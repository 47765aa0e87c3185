"""An early decision ends the work, and is the decision that scores computed to the end
would give.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="engines run trained networks, which need PyTorch")

import agreestop as ag
from agreestop.common import Booleans, Integers
from agreestop.engines import (
    Dense,
    Engine,
    FreshMembers,
    LiveSession,
    RunOptions,
    decide_early,
    run_to_end,
    score,
)
from agreestop.engines.early_stopping import measure_saving, run_counted
from agreestop.engines.protocol import CHUNK_STEPS, CountingPass
from agreestop.events import Events, load_events
from agreestop.networks import (
    Architecture,
    Convolutional,
    FullyConnected,
    ModuleMembers,
    Neuron,
    Posterior,
    SpikingNetwork,
)
from tests.decide.strategies import at_kth_values

STEPS, MEMBERS, CLASSES = 24, 3, 4
CONFIGS: dict[str, Architecture] = {
    "fully-connected": FullyConnected((2, 4, 4), CLASSES, MEMBERS, (12,), Neuron(threshold=0.3)),
    "convolutional": Convolutional((2, 4, 4), CLASSES, MEMBERS, (5,), (8,), real_input=False),
}


def event_driven(network: SpikingNetwork) -> Engine:
    pytest.importorskip("numba", reason="the event-driven engine needs numba")
    from agreestop.engines import EventDriven

    return EventDriven(network)


ENGINES: dict[str, Callable[[SpikingNetwork], Engine]] = {
    "dense": Dense,
    "event-driven": event_driven,
}


def network(kind: str) -> SpikingNetwork:
    """An untrained network with weights that are large enough for the read-out to spike."""
    made = SpikingNetwork(CONFIGS[kind], torch.Generator().manual_seed(3), deviation=0.5)
    return made.eval()


def some_inputs(n: int, seed: int = 0) -> tuple[Booleans, Integers]:
    """Events whose rates depend weakly on the class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=n)
    rates = np.full((n, 4, 4), 0.1)
    rates[np.arange(n), labels] = 0.35
    return rng.random((n, STEPS, 2, 4, 4)) < rates[:, None, None], labels


def scores_to_the_end(engine: Engine, inputs: Booleans) -> Any:
    return ag.log_confidence(np.cumsum(engine.begin(inputs).advance(STEPS), axis=1))


EVERY, FEW = tuple(range(1, STEPS + 1)), (6, 12, 18, 24)
RULES = {
    "stop-aware": ag.SpikeCP(0.8, EVERY, 2, ag.MergeConfidence(r=1), "stop-aware"),
    "simultaneous": ag.SpikeCP(0.8, EVERY, 2, ag.MergeConfidence(r=1), "simultaneous"),
    "bonferroni": ag.SpikeCP(0.8, FEW, 2, ag.MergeConfidence(r=1)),
    "p-variables": ag.SpikeCP(0.2, FEW, 3, ag.MergePValues(r=-np.inf)),
    "randomised": ag.SpikeCP(0.2, FEW, 3, ag.MergePValues(r=1, form="randomized")),
    "ranks": ag.SpikeCP(0.8, FEW, 2, ag.MergeRanks()),
    "AgreeStop": ag.AgreeStop(0.8, EVERY, 2),
    "DC-SNN": ag.DCSNN(0.8, EVERY, 2),
}


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("label", RULES)
def test_early_decisions_are_those_of_the_full_scores(label: str, name: str, kind: str) -> None:
    engine = ENGINES[name](network(kind))
    known, truth = some_inputs(60)
    calibrated = RULES[label].calibrate(scores_to_the_end(engine, known), truth, EVERY)
    if kind == "convolutional" and label in ("stop-aware", "simultaneous", "AgreeStop"):
        # its risks differ by less than rounding, so thresholds in gaps stop nothing
        calibrated = at_kth_values(calibrated)
    inputs, _ = some_inputs(50, 1)
    expected = calibrated.decide(scores_to_the_end(engine, inputs), EVERY, first=0)
    assert len(np.unique(expected.stop_index)) > 1
    for chunk in (1, 5, STEPS):
        run = decide_early(
            engine, calibrated, inputs, RunOptions(batch_size=17, chunk=chunk, first=0)
        )
        np.testing.assert_array_equal(run.decisions.stop_index, expected.stop_index)
        np.testing.assert_array_equal(run.decisions.sets, expected.sets)
        assert (run.computed >= expected.stop_time).all()
        spacing = 1 if len(calibrated.checkpoints) == STEPS else 6
        assert (run.computed < expected.stop_time + max(chunk, spacing)).all()


@pytest.mark.parametrize("name", ENGINES)
def test_inputs_may_have_negative_strides(name: str) -> None:
    engine = ENGINES[name](network("fully-connected"))
    inputs, _ = some_inputs(3)
    for some in (inputs, inputs[:1], inputs[:, :1]):
        np.testing.assert_array_equal(
            engine.begin(some[::-1, ::-1]).advance(1),
            engine.begin(some[::-1, ::-1].copy()).advance(1),
        )


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_dense_engine_in_chunks_is_the_network_whole(kind: str) -> None:
    made = network(kind)
    inputs, _ = some_inputs(9)
    whole = run_counted(Dense(made), inputs).spikes
    assert 0.005 < whole.mean() < 0.6
    run = Dense(made).begin(inputs)
    kept = np.array([True, False, True, True, False, True, True, True, False])
    parts = [run.advance(5)[kept]]
    run.keep(kept)
    parts += [run.advance(steps) for steps in (1, 7, 11)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole[kept])
    with pytest.raises(ag.InputError, match="0 of 24 time steps are left"):
        run.advance(1)


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_dense_engine_computes_few_steps_at_a_time_so_that_memory_does_not_grow_with_them(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, _ = some_inputs(6)
    whole = run_to_end(Dense(network(kind)), inputs)
    monkeypatch.setattr("agreestop.engines.dense.NUMBERS", 10 * inputs[:, 0].size + 1)
    seen: list[int] = []
    members = network(kind)
    members.register_forward_pre_hook(lambda module, given: seen.append(len(given[0])))
    np.testing.assert_array_equal(run_to_end(Dense(members), inputs), whole)
    assert seen == [10, 10, 4]
    monkeypatch.setattr("agreestop.engines.dense.NUMBERS", 1)
    np.testing.assert_array_equal(run_to_end(Dense(members), inputs), whole)
    assert seen[3:] == [CHUNK_STEPS] * 3


def test_wrong_rules_inputs_and_weights_are_refused() -> None:
    engine = Dense(network("fully-connected"))
    inputs, labels = some_inputs(40)
    scores = scores_to_the_end(engine, inputs)
    halves = ag.AgreeStop(0.8, tuple(time / 2 for time in EVERY), 2).calibrate(scores, labels)
    with pytest.raises(ag.InputError, match="not whole steps"):
        decide_early(engine, halves, inputs)
    rule = RULES["AgreeStop"].calibrate(scores, labels)
    with pytest.raises(ag.InputError, match="the inputs have 10"):
        decide_early(engine, rule, inputs[:, :10])
    with pytest.raises(ag.InputError, match="was calibrated with 3"):
        decide_early(
            Dense(
                SpikingNetwork(
                    FullyConnected((2, 4, 4), CLASSES, 2, (3,)), torch.Generator().manual_seed(0)
                )
            ),
            rule,
            inputs,
        )
    with pytest.raises(ag.InputError, match="what these members take"):
        engine.begin(inputs[:, :, :1])
    with pytest.raises(ag.InputError, match="numbered 0 to 31"):
        engine.live().push([32])
    broken = network("fully-connected")
    with torch.no_grad():
        next(broken.parameters())[0, 0, 0] = float("nan")
    with pytest.raises(ag.InputError, match="not finite"):
        Dense(broken)


def test_another_engine_than_calibrated_with_is_refused_unless_allowed() -> None:
    engine = Dense(network("fully-connected"))
    inputs, labels = some_inputs(40)
    calibrated = replace(
        RULES["AgreeStop"].calibrate(scores_to_the_end(engine, inputs), labels),
        engine="event-driven",
    )
    with pytest.raises(ag.InputError, match="calibrated on scores of the event-driven"):
        decide_early(engine, calibrated, inputs)
    assert (
        len(decide_early(engine, calibrated, inputs, RunOptions(any_engine=True)).decisions) == 40
    )


def test_the_time_that_early_stopping_saves_is_measured() -> None:
    engine = Dense(network("fully-connected"))
    inputs, labels = some_inputs(60)
    calibrated = RULES["AgreeStop"].calibrate(scores_to_the_end(engine, inputs), labels)
    saved = measure_saving(engine, calibrated, inputs, repeats=1)
    expected = decide_early(engine, calibrated, inputs)
    assert saved.engine == "dense" and saved.early > 0 and saved.to_end > 0
    assert saved.computed == expected.computed.mean() / STEPS < 1


class Small:
    """The dense engine on a machine with memory for a few inputs."""

    def __init__(self, most: int) -> None:
        self._dense, self._most = Dense(network("fully-connected")), most
        self.name, self.members, self.classes, self.output, self.reason = (
            "dense",
            MEMBERS,
            CLASSES,
            "spikes",
            "",
        )
        self.copies_weights = False

    def chunk_steps(self, rows: int) -> int:
        return 4

    def begin(self, inputs: Any, first: int = 0) -> Any:
        if len(inputs) > self._most:
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return self._dense.begin(inputs)

    def live(self, number: int = 0) -> Any:
        return self._dense.live()


def test_batches_are_halved_where_memory_is_too_small_with_a_warning() -> None:
    inputs, labels = some_inputs(30)
    whole = scores_to_the_end(Dense(network("fully-connected")), inputs)
    calibrated = RULES["AgreeStop"].calibrate(whole, labels)
    with pytest.warns(UserWarning, match="run 7 at a time"):
        run = decide_early(Small(8), calibrated, inputs)
    np.testing.assert_array_equal(run.decisions.sets, calibrated.decide(whole).sets)
    with pytest.warns(UserWarning, match="run 1 at a time"):
        np.testing.assert_array_equal(
            ag.log_confidence(np.cumsum(run_to_end(Small(1), inputs), axis=1)), whole
        )
    with pytest.raises(ag.InputError, match="memory is too small for 3 members"):
        run_to_end(Small(0), inputs)


def test_rows_that_a_rule_was_tuned_on_are_recognised_and_class_names_are_kept() -> None:
    engine, names = Dense(network("fully-connected")), ("north", "east", "south", "west")
    tuning, tuning_labels = some_inputs(40, 5)
    known, labels = some_inputs(40)
    risk = ag.TopMass.fit(score(engine, tuning, tuning_labels))
    calibrated = ag.AgreeStop(0.8, EVERY, 2, risk=risk).calibrate(
        score(engine, known, labels, names, options=RunOptions(digest="abc"))
    )
    assert (calibrated.engine, calibrated.ensemble_digest, calibrated.class_names) == (
        "dense",
        "abc",
        names,
    )
    new, _ = some_inputs(10, 1)
    fresh = decide_early(engine, calibrated, new).decisions
    assert fresh.reuse == "" and set(fresh[0].names or ()) <= set(names)
    for reused in (
        np.concatenate([new, tuning[3:4]]),
        Events.from_dense(np.concatenate([new, tuning[3:4]])),
    ):
        decisions = decide_early(engine, calibrated, reused).decisions
        assert "1 of the 11" in decisions.reuse
        with pytest.raises(ag.InputError, match="tuning"):
            ag.evaluate(decisions, np.zeros(11, np.int64))
    with pytest.raises(ag.InputError, match="ensemble abc"):
        decide_early(engine, calibrated, new, RunOptions(digest="def"))
    assert (
        len(
            decide_early(
                engine, calibrated, new, RunOptions(digest="def", any_members=True)
            ).decisions
        )
        == 10
    )
    swapped, few = (
        Events.from_dense(new, classes=given) for given in ((*names[1::-1], *names[2:]), names[:3])
    )
    with pytest.raises(ag.InputError, match="class 'east' where the rule"):
        decide_early(engine, calibrated, swapped)
    for rule in (calibrated, replace(calibrated, class_names=None)):
        with pytest.raises(ag.InputError, match="the data have 3 classes, but the rule"):
            decide_early(engine, rule, few)


@pytest.mark.parametrize("name", ENGINES)
def test_sparse_inputs_give_what_dense_inputs_give(name: str) -> None:
    engine = ENGINES[name](network("fully-connected"))
    inputs, labels = some_inputs(30)
    events = Events.from_dense(inputs, labels, ("a", "b", "c", "d"))
    dense, sparse = score(engine, inputs, labels), score(engine, events)
    np.testing.assert_array_equal(sparse.log_confidence, dense.log_confidence)
    assert sparse.labels is not None and sparse.ids is not None and dense.ids is not None
    np.testing.assert_array_equal(sparse.labels, labels)
    np.testing.assert_array_equal(sparse.ids, dense.ids)
    assert (
        sparse.classes == ("a", "b", "c", "d") and sparse.times == EVERY and sparse.engine == name
    )
    calibrated = RULES["AgreeStop"].calibrate(sparse)
    np.testing.assert_array_equal(
        decide_early(engine, calibrated, events, RunOptions(7)).decisions.sets,
        decide_early(engine, calibrated, inputs).decisions.sets,
    )


@pytest.mark.parametrize("name", ENGINES)
def test_inputs_may_have_one_axis_and_images_are_held(name: str) -> None:
    settings = FullyConnected((12,), CLASSES, MEMBERS, (9,), Neuron(threshold=0.3), real_input=True)
    engine = ENGINES[name](
        SpikingNetwork(settings, torch.Generator().manual_seed(1), deviation=0.6).eval()
    )
    rng = np.random.default_rng(0)
    images, labels = rng.random((40, 1, 12), dtype=np.float32), rng.integers(CLASSES, size=40)
    held = score(engine, images, labels, options=RunOptions(steps=STEPS))
    repeated = score(engine, np.repeat(images, STEPS, axis=1), labels)
    np.testing.assert_array_equal(held.log_confidence, repeated.log_confidence)
    calibrated = ag.AgreeStop(0.5, EVERY, 2).calibrate(held)
    np.testing.assert_array_equal(
        decide_early(engine, calibrated, images, RunOptions(steps=STEPS)).decisions.stop_index,
        calibrated.decide(held).stop_index,
    )


class Recurrent(torch.nn.Module):  # type: ignore[name-defined, misc]
    """A recurrent module with logits, or with spikes where they are above 0."""

    def __init__(self, spikes: bool) -> None:
        super().__init__()
        self.inner, self.outer, self.spikes = (
            torch.nn.GRUCell(32, 8),
            torch.nn.Linear(8, CLASSES),
            spikes,
        )

    def forward(self, x: Any, state: Any) -> Any:
        state = self.inner(x.flatten(1), state)
        logits = 4 * self.outer(state)
        return (logits > 0).float() if self.spikes else logits, state


def modules(output: str) -> ModuleMembers:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return ModuleMembers([Recurrent(output == "spikes") for _ in range(MEMBERS)], output)


@pytest.mark.parametrize("output", ("logits", "spikes"))
@pytest.mark.parametrize("label", ("AgreeStop", "simultaneous", "stop-aware"))
def test_own_modules_stop_early(label: str, output: str) -> None:
    engine = Dense(modules(output))
    inputs, labels = some_inputs(90)
    scores = score(engine, inputs, labels)
    outputs = run_to_end(engine, inputs)
    assert outputs.dtype == (bool if output == "spikes" else np.float32) and outputs.shape == (
        90,
        STEPS,
        MEMBERS,
        CLASSES,
    )
    evidence = np.cumsum(outputs, axis=1) if output == "spikes" else outputs
    np.testing.assert_array_equal(scores.log_confidence, ag.log_confidence(evidence))
    calibrated = replace(RULES[label], target=0.5).calibrate(scores.rows(slice(0, 50)))  # type: ignore[type-var]
    expected = calibrated.decide(scores.rows(slice(50, 90)))
    run = decide_early(engine, calibrated, inputs[50:], RunOptions(batch_size=13, chunk=5))
    np.testing.assert_array_equal(run.decisions.stop_index, expected.stop_index)
    np.testing.assert_array_equal(run.decisions.sets, expected.sets)
    assert engine.output == output and len(np.unique(run.computed)) > 1
    with pytest.raises(ag.InputError, match="own modules cannot be counted"):
        run_counted(engine, inputs)


def test_draws_for_an_input_follow_from_its_number_alone() -> None:
    posterior = Posterior(CONFIGS["fully-connected"], torch.Generator().manual_seed(0), 0.5).eval()
    inputs, labels = np.repeat(some_inputs(1)[0], 6, axis=0), np.zeros(6, np.int64)
    engine = FreshMembers(posterior, (3,))
    whole = run_to_end(engine, inputs)
    assert (whole[0] != whole[1]).any(), "all inputs were given the same members"
    # also: a second call draws the same
    np.testing.assert_array_equal(run_to_end(engine, inputs, batch_size=4), whole)
    np.testing.assert_array_equal(engine.begin(inputs[:1], first=4).advance(STEPS)[0], whole[4])
    some = engine.begin(inputs)
    some.keep(np.arange(6) % 2 == 1)
    np.testing.assert_array_equal(some.advance(STEPS), whole[1::2])
    run = run_counted(engine, inputs, batch_size=2)
    np.testing.assert_array_equal(run.spikes, whole)
    np.testing.assert_array_equal(
        run.operations.emitted[4], run_counted(engine.draw(4), inputs[:1]).operations.emitted[0]
    )
    calibrated = ag.DCSNN(0.5, EVERY, 2).calibrate(
        ag.log_confidence(np.cumsum(whole, axis=1)), labels
    )
    expected = calibrated.decide(ag.log_confidence(np.cumsum(whole, axis=1)))
    np.testing.assert_array_equal(
        decide_early(engine, calibrated, inputs, RunOptions(4, 5)).decisions.stop_index,
        expected.stop_index,
    )
    for number in (0, 5):
        live = engine.live(number)
        counts = [live.push(frame=frame) for frame in inputs[0]]
        np.testing.assert_array_equal(counts[-1], whole[number].sum(axis=0))


# ---- what is not silently wrong


def calibrated_on(engine: Engine, rule: str = "AgreeStop") -> Any:
    known, truth = some_inputs(60)
    return RULES[rule].calibrate(score(engine, known, truth))


def test_logits_that_are_not_finite_are_refused_by_every_verb() -> None:
    class Broken(torch.nn.Module):  # type: ignore[name-defined,misc]
        def forward(self, x: Any, state: Any) -> Any:
            time = 0 if state is None else state
            value = x.flatten(1)[:, :CLASSES].float()
            return value / 0 if time == 3 else value, time + 1

    engine, inputs = (
        Dense(ModuleMembers([Broken() for _ in range(MEMBERS)], input_shape=(2, 4, 4))),
        some_inputs(5)[0],
    )
    calibrated = calibrated_on(Dense(modules("logits")), "bonferroni")
    assert calibrated.checkpoints[0] > 4
    session = LiveSession(engine, calibrated)

    def live() -> None:
        for frame in inputs[0]:
            session.push(frame=frame)

    for verb in (
        lambda: decide_early(engine, calibrated, inputs),
        lambda: score(engine, inputs),
        live,
    ):
        with pytest.raises(ag.InputError, match="finite"):
            verb()
    assert session.time == 4


@pytest.mark.parametrize("name", ENGINES)
def test_numbers_that_float32_cannot_hold_are_refused(name: str) -> None:
    engine, inputs = ENGINES[name](network("fully-connected")), some_inputs(2)[0]
    for wrong, message in ((1e300, "float32 cannot hold"), (np.nan, "every value must be finite")):
        with pytest.raises(ag.InputError, match=message):
            engine.begin(np.where(inputs, wrong, 0))
        with pytest.raises(ag.InputError, match=message):
            engine.live().push(frame=np.where(inputs[0, 0], wrong, 0))


@pytest.mark.parametrize("name", [*ENGINES, "dense-fresh"])
def test_real_values_are_refused_unless_the_network_takes_them(name: str) -> None:
    inputs = some_inputs(2)[0]
    half, two = np.where(inputs, 0.5, 0.0), np.where(inputs, 2, 0)
    for real in (False, True):
        config = replace(CONFIGS["fully-connected"], real_input=real)
        if name in ENGINES:
            engine = ENGINES[name](
                SpikingNetwork(config, torch.Generator().manual_seed(0), 0.4).eval()
            )
        else:
            engine = FreshMembers(Posterior(config, torch.Generator().manual_seed(0)).eval(), (0,))
        expected = run_to_end(engine, inputs)
        np.testing.assert_array_equal(run_to_end(engine, inputs.astype(np.float64)), expected)
        np.testing.assert_array_equal(run_to_end(engine, inputs.astype(np.int64)), expected)
        for values in (half, two, -1 * inputs):
            if real:
                assert engine.begin(values).advance(STEPS).shape == expected.shape
                assert engine.live().push(frame=values[0, 0]).shape == expected.shape[2:]
                continue
            with pytest.raises(ag.InputError, match="inputs holds values other than 0 and 1"):
                engine.begin(values)
            with pytest.raises(ag.InputError, match="frame holds values other than 0 and 1"):
                engine.live().push(frame=values[0, 0])


def test_tensors_and_lists_are_inputs() -> None:
    engine, inputs = Dense(network("fully-connected")), some_inputs(5)[0]
    calibrated = calibrated_on(engine)
    expected = decide_early(engine, calibrated, inputs).decisions
    tensor = torch.from_numpy(inputs)
    given: Any
    for given in (
        inputs.tolist(),
        tensor,
        tensor.bfloat16(),
        tensor.float().requires_grad_(),
        list(tensor),
    ):
        np.testing.assert_array_equal(
            decide_early(engine, calibrated, given).decisions.sets, expected.sets
        )
        np.testing.assert_array_equal(
            engine.begin(given).advance(STEPS), engine.begin(inputs).advance(STEPS)
        )


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "all"])
def test_counts_that_are_none_are_refused(wrong: Any) -> None:
    engine, inputs = Dense(network("fully-connected")), some_inputs(5)[0]
    calibrated = calibrated_on(engine)
    for name, verb in (
        (
            "batch_size",
            lambda: decide_early(engine, calibrated, inputs, RunOptions(batch_size=wrong)),
        ),
        ("batch_size", lambda: score(engine, inputs, options=RunOptions(batch_size=wrong))),
        ("batch_size", lambda: run_to_end(engine, inputs, wrong)),
        ("chunk", lambda: decide_early(engine, calibrated, inputs, RunOptions(chunk=wrong))),
        ("steps", lambda: score(engine, inputs[:, :1], options=RunOptions(steps=wrong))),
        ("steps", lambda: decide_early(engine, calibrated, inputs[:, :1], RunOptions(steps=wrong))),
    ):
        with pytest.raises(
            ag.InputError, match=f"{name} is {wrong!r}: give an integer of at least 1"
        ):
            verb()


def test_inputs_of_one_step_are_held_as_images_and_it_is_said() -> None:
    engine, images = Dense(network("fully-connected")), some_inputs(5)[0][:, :1]
    calibrated = calibrated_on(engine)
    expected = calibrated.decide(score(engine, images, options=RunOptions(steps=STEPS)))
    found = decide_early(engine, calibrated, images, RunOptions(steps=STEPS)).decisions
    np.testing.assert_array_equal(found.sets, expected.sets)
    with pytest.warns(
        UserWarning, match=f"held for {STEPS}: give steps={STEPS} if they are images"
    ):
        np.testing.assert_array_equal(
            decide_early(engine, calibrated, images).decisions.sets, expected.sets
        )
    with pytest.raises(ag.InputError, match="last checkpoint is step 24"):
        decide_early(engine, calibrated, images, RunOptions(steps=10))


def test_a_rule_that_is_not_calibrated_is_refused() -> None:
    engine, inputs = Dense(network("fully-connected")), some_inputs(5)[0]
    wrong: Any
    for wrong in (RULES["AgreeStop"], None):
        for verb in (
            lambda: decide_early(engine, wrong, inputs),  # noqa: B023
            lambda: LiveSession(engine, wrong),  # noqa: B023
        ):
            with pytest.raises(
                ag.InputError, match=f"of type {type(wrong).__name__}, which is not calibrated"
            ):
                verb()


def test_members_never_run_in_training_mode() -> None:
    made = ModuleMembers([Noisy() for _ in range(MEMBERS)], input_shape=(2, 4, 4))
    engine, inputs = Dense(made), some_inputs(5)[0]
    expected = run_to_end(engine, inputs)
    made.train()
    np.testing.assert_array_equal(run_to_end(engine, inputs), expected)
    made.train()
    live = engine.live()
    np.testing.assert_array_equal(live.push(frame=inputs[0, 0]), expected[0, 0])


class Noisy(torch.nn.Module):  # type: ignore[name-defined,misc]
    """Different at every call, except in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x: Any, state: Any) -> Any:
        return self.dropout(x.flatten(1)[:, :CLASSES] + 1.0), None


def test_inputs_in_a_mapped_file_are_scored_without_a_warning(tmp_path: Path) -> None:
    inputs, labels = some_inputs(6)
    np.savez(tmp_path / "dense.npz", inputs=inputs, labels=labels)
    mapped = load_events(tmp_path / "dense.npz").inputs
    assert isinstance(mapped, np.ndarray) and not mapped.flags.writeable
    engine = Dense(network("fully-connected"))
    np.testing.assert_array_equal(run_to_end(engine, mapped), run_to_end(engine, inputs))


VALUES = {
    "spikes": (np.bool_, 2),
    "ones": (np.uint8, 2),
    "counts": (np.uint8, 5),
    "numbers": (np.float64, 5),
}


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("held", [False, True])
def test_the_event_driven_engine_takes_events_as_they_are(
    kind: str, values: str, held: bool
) -> None:
    """Spikes and operations are those of the dense form bit for bit, for rows in any order, in
    chunks, and while rows stop.
    """
    dtype, largest = VALUES[values]
    rng = np.random.default_rng(2)
    shape = (9, 1 if held else STEPS, 2, 4, 4)
    x: Any = np.where(rng.random(shape) < 0.3, rng.integers(1, largest, shape), 0).astype(dtype)
    made = replace(cast(Any, CONFIGS[kind]), real_input=largest > 2)
    engine = event_driven(
        SpikingNetwork(made, torch.Generator().manual_seed(3), deviation=0.5).eval()
    )
    order = [7, 0, 3, 3, 8, 1]
    events = Events.from_dense(x).rows(order)
    runs = [engine.begin(events), engine.begin(x[order])]
    for steps in (5, 1, 8):
        sparse, dense = (cast(CountingPass, run).advance_counted(steps) for run in runs)
        np.testing.assert_array_equal(sparse.spikes, dense.spikes)
        for field, expected in vars(dense.operations).items():
            np.testing.assert_array_equal(getattr(sparse.operations, field), expected)
        for run in runs:
            run.keep(np.arange(run.rows) % 3 != 1)
    assert dense.spikes.any() and dense.operations.emitted.any()
    empty = np.zeros_like(x[:2])
    np.testing.assert_array_equal(
        engine.begin(Events.from_dense(empty)).advance(4), engine.begin(empty).advance(4)
    )


def test_events_that_members_cannot_take_are_refused() -> None:
    engine = event_driven(network("fully-connected"))
    for x, match in (
        (np.full((1, 3, 2, 4, 4), 2, np.uint8), "values other than 0 and 1"),
        (np.ones((1, 3, 2, 4), bool), "is what these members take"),
        (np.ones((0, 3, 2, 4, 4), bool), "n and T at least 1"),
    ):
        for inputs in (x, Events.from_dense(x)):
            with pytest.raises(ag.InputError, match=match):
                engine.begin(inputs)
    real = replace(cast(Any, CONFIGS["fully-connected"]), real_input=True)
    large = np.full((1, 3, 2, 4, 4), 1e39)
    for inputs in (large, Events.from_dense(large)):
        with pytest.raises(ag.InputError, match="which float32 cannot hold"):
            event_driven(SpikingNetwork(real, torch.Generator().manual_seed(3)).eval()).begin(
                inputs
            )
