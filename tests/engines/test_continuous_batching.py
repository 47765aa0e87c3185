"""The fused engine on a GPU, or with Triton's interpreter: continuous batching decides as the rule
does on scores to the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="engines run trained networks, which need PyTorch")

import agreestop as ag
from agreestop.common import Booleans
from agreestop.engines import Dense, Fused, RunOptions, decide_early
from agreestop.engines.early_stopping import run_counted
from agreestop.engines.gpu import continuous_batching as batching
from agreestop.engines.prefilter import Prefilter, prefilter_for
from agreestop.kernels import TRITON_AVAILABLE
from agreestop.networks import Convolutional, FullyConnected, Neuron, ResNet18, SpikingNetwork
from agreestop.networks.layers import MemberBatchNorm2d
from tests.decide.strategies import at_kth_values

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


KERNELS = pytest.mark.skipif(
    not TRITON_AVAILABLE, reason="there are no kernels for GPUs, or Triton is not installed"
)


def fused(real: bool = False) -> Fused:
    config = FullyConnected((2, 3, 3), 5, 3, (20,), Neuron(threshold=0.3), real)
    return Fused(SpikingNetwork(config, torch.Generator().manual_seed(1), deviation=0.6), DEVICE)


def events(n: int, seed: int) -> tuple[Booleans, Any]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(5, size=n)
    rates = np.where(np.arange(9).reshape(3, 3) == labels[:, None, None], 0.6, 0.1)
    return rng.random((n, 40, 2, 3, 3)) < rates[:, None, None], labels


@KERNELS
@pytest.mark.parametrize("r", (-np.inf, 0.0, 1.0, 3.0, np.inf))
def test_the_fused_engine_decides_as_the_rule_on_its_scores(r: float) -> None:
    checkpoints, fill = (tuple(range(1, 21)), True) if r == 1.0 else ((3, 9, 20), r == 3.0)
    engine, every = fused(), tuple(range(1, 21))
    (known, labels), (inputs, _) = events(60, 0), events(9, 1)
    scores = ag.log_confidence(np.cumsum(engine.begin(known).advance(20), axis=1))
    # the network is untrained
    rule = ag.AgreeStop(0.35, checkpoints, 2, fill, ag.TopMass(ag.MergeConfidence(r)))
    calibrated = rule.calibrate(scores, labels, every)
    expected = calibrated.decide(
        ag.log_confidence(np.cumsum(engine.begin(inputs).advance(20), axis=1)), every
    )
    assert len(np.unique(expected.stop_index)) > 1
    for chunk in (None, 7):
        run = decide_early(engine, calibrated, inputs, RunOptions(batch_size=5, chunk=chunk))
        np.testing.assert_array_equal(run.decisions.stop_index, expected.stop_index)
        np.testing.assert_array_equal(run.decisions.sets, expected.sets)


@KERNELS
def test_spikes_that_are_computed_as_bits_are_decided_on_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU, booleans always are."""
    engine, (known, labels), (inputs, _) = fused(), events(60, 0), events(9, 1)
    scores = ag.log_confidence(np.cumsum(engine.begin(known).advance(20), axis=1))
    calibrated = ag.AgreeStop(0.35, tuple(range(1, 21)), 2).calibrate(scores, labels)
    expected = decide_early(engine, calibrated, inputs, RunOptions(batch_size=5))
    monkeypatch.setattr(batching, "frames_dtype", lambda inputs, device: torch.float16)
    found = decide_early(
        fused(), calibrated, ag.events.Events.from_dense(inputs), RunOptions(batch_size=5)
    )
    np.testing.assert_array_equal(found.decisions.stop_index, expected.decisions.stop_index)
    np.testing.assert_array_equal(found.decisions.sets, expected.decisions.sets)
    np.testing.assert_array_equal(found.computed, expected.computed)


@KERNELS
@pytest.mark.parametrize("fill", (False, True))
def test_the_rule_makes_every_decision_and_judges_few_rows_twice(
    fill: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of its answers have fewer classes than allowed."""
    engine, every = fused(), tuple(range(1, 21))
    (known, labels), (inputs, _) = events(60, 0), events(24, 1)
    scores = ag.log_confidence(np.cumsum(engine.begin(known).advance(20), axis=1))
    calibrated = ag.AgreeStop(0.35, every, 3, fill).calibrate(scores, labels)
    expected = calibrated.decide(
        ag.log_confidence(np.cumsum(engine.begin(inputs).advance(20), axis=1))
    )
    judged, step = [], ag.CalibratedRule.step

    def count(rule: ag.CalibratedRule, index: Any, log_confidence: Any, state: Any) -> Any:
        judged.append(len(log_confidence))
        return step(rule, index, log_confidence, state)

    monkeypatch.setattr(ag.CalibratedRule, "step", count)
    run = decide_early(engine, calibrated, inputs)
    np.testing.assert_array_equal(run.decisions.stop_index, expected.stop_index)
    np.testing.assert_array_equal(run.decisions.sets, expected.sets)
    assert 24 <= sum(judged) < 40
    assert fill or len(np.unique(expected.set_size[expected.stop_index < 19])) > 1


@KERNELS
@pytest.mark.slow  # a minute in Triton's interpreter
def test_rows_that_the_rule_does_not_stop_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, every = fused(), tuple(range(1, 21))
    (known, labels), (inputs, _) = events(60, 0), events(5, 1)
    calibrated = ag.AgreeStop(0.35, every, 2).calibrate(
        ag.log_confidence(np.cumsum(engine.begin(known).advance(20), axis=1)), labels
    )
    strict = decide_early(engine, calibrated, inputs, RunOptions(4))
    monkeypatch.setattr("agreestop.engines.gpu.continuous_batching.KERNEL_SLACK", 0.2)
    lax = decide_early(fused(), calibrated, inputs, RunOptions(4))
    np.testing.assert_array_equal(lax.decisions.stop_index, strict.decisions.stop_index)
    np.testing.assert_array_equal(lax.decisions.sets, strict.decisions.sets)
    assert lax.computed.sum() > strict.computed.sum()


@KERNELS
@pytest.mark.parametrize(("chunk", "slots"), ((None, 3), (4, 7), (9, 40), (20, 2)))
def test_inputs_run_to_the_end_of_the_chunk_they_stop_in(chunk: int | None, slots: int) -> None:
    """The last segment may be shorter."""
    engine, every = fused(), tuple(range(1, 20))
    (known, labels), (inputs, _) = events(60, 0), events(11, 1)
    scores = ag.log_confidence(np.cumsum(engine.begin(known).advance(19), axis=1))
    calibrated = ag.AgreeStop(0.35, every, 2).calibrate(scores, labels)
    expected = calibrated.decide(
        ag.log_confidence(np.cumsum(engine.begin(inputs).advance(19), axis=1))
    )
    run = decide_early(engine, calibrated, inputs[:, :19], RunOptions(slots, chunk))
    np.testing.assert_array_equal(run.decisions.stop_index, expected.stop_index)
    np.testing.assert_array_equal(run.decisions.sets, expected.sets)
    steps = chunk or 16  # the length of a segment
    np.testing.assert_array_equal(
        run.computed, np.minimum(-(-(expected.stop_index + 1) // steps) * steps, 19)
    )


@KERNELS
@pytest.mark.parametrize("values", (False, True))
def test_events_are_decided_as_their_dense_form(
    values: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events arrive in pieces, in blocks of rows, and with values."""
    engine, every = fused(real=values), tuple(range(1, 21))
    (known, labels), (inputs, _) = events(60, 0), events(9, 1)
    given = (
        inputs * np.random.default_rng(2).choice([0.5, 1.5], inputs.shape).astype(np.float32)
        if values
        else inputs
    )
    calibrated = ag.AgreeStop(0.35, every, 2).calibrate(
        ag.log_confidence(np.cumsum(engine.begin(known).advance(20), axis=1)), labels
    )
    expected = calibrated.decide(
        ag.log_confidence(np.cumsum(engine.begin(given).advance(20), axis=1))
    )
    assert len(np.unique(expected.stop_index)) > 2
    monkeypatch.setattr("agreestop.engines.gpu.device_inputs.PIECE", 1000)
    for block in (1000,) if values else (1 << 31, 1000):
        monkeypatch.setattr(batching, "BLOCK_BYTES", block)
        for form in (given, ag.events.Events.from_dense(given)):
            run = decide_early(engine, calibrated, form, RunOptions(batch_size=4))
            np.testing.assert_array_equal(run.decisions.stop_index, expected.stop_index)
            np.testing.assert_array_equal(run.decisions.sets, expected.sets)
    if not values:
        with pytest.raises(ag.InputError, match="other than 0 and 1"):
            decide_early(engine, calibrated, ag.events.Events.from_dense(inputs * 2))
    with pytest.raises(ag.InputError, match="is what these members take"):
        decide_early(engine, calibrated, ag.events.Events.from_dense(inputs[..., :2]))


def deep_network(kind: str) -> SpikingNetwork:
    """Two members, with statistics that make most layers spike."""
    shape = (2, 9, 10)
    config = (
        Convolutional(shape, 3, 2, (5, 4), (6,))
        if kind == "convolutional"
        else ResNet18(shape, 3, 2, 3, timed=3 * (kind == "timed"))
    )
    network = SpikingNetwork(config, torch.Generator().manual_seed(1), deviation=0.6).eval()
    chance = torch.Generator().manual_seed(3)
    for module in network.modules():
        if isinstance(module, MemberBatchNorm2d):
            module.running_mean.uniform_(-0.2, 0.2, generator=chance)
            module.running_var.uniform_(0.5, 2.0, generator=chance)
            module.bias.data.uniform_(0.1, 0.5, generator=chance)
    return network


@KERNELS
@pytest.mark.slow  # minutes in Triton's interpreter
@pytest.mark.parametrize("kind", ("convolutional", "resnet", "timed"))
def test_deep_members_spike_as_on_the_dense_engine_and_decide_in_slots(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots are reused, so inputs are at different steps; odd sizes are pooled; an image is held.

    Convolutions must not round to TF32: two libraries' convolutions would then differ so much that
    spikes do.
    """
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    network = deep_network(kind)
    engine, reference, rng = (
        Fused(network, DEVICE),
        Dense(network, DEVICE),
        np.random.default_rng(0),
    )
    inputs = rng.random((12, 12, 2, 9, 10)) < 0.3
    expected, run = reference.begin(inputs[:5]).advance(12), engine.begin(inputs[:5])
    assert 0.02 < expected.mean() < 0.98
    np.testing.assert_array_equal(run.advance(5), expected[:, :5])
    run.keep(np.array([True, False, True, True, False]))
    np.testing.assert_array_equal(run.advance(7), expected[[0, 2, 3], 5:])
    images = rng.random((6, 1, 2, 9, 10), dtype=np.float32)
    np.testing.assert_array_equal(
        engine.begin(images).advance(18), reference.begin(images).advance(18)
    )
    scores = ag.log_confidence(np.cumsum(engine.begin(inputs).advance(12), axis=1))
    found = scores[:, -1].mean(axis=1).argmax(axis=1)
    # the members miss a third of them, so some inputs stop early
    labels = np.where(np.arange(12) % 3 == 0, (found + 1) % 3, found)
    calibrated = ag.AgreeStop(0.75, tuple(range(1, 13)), 1).calibrate(scores, labels)
    decisions = calibrated.decide(scores)
    assert len(np.unique(decisions.stop_index)) > 1
    for given in (inputs, ag.events.Events.from_dense(inputs)):
        early = decide_early(engine, calibrated, given, RunOptions(batch_size=5))
        np.testing.assert_array_equal(early.decisions.stop_index, decisions.stop_index)
        np.testing.assert_array_equal(early.decisions.sets, decisions.sets)
        assert (early.computed >= np.minimum(2 * (decisions.stop_index // 2 + 1), 12)).all()
    held = calibrated.decide(ag.log_confidence(np.cumsum(engine.begin(images).advance(12), axis=1)))
    np.testing.assert_array_equal(
        decide_early(engine, calibrated, images, RunOptions(5, steps=12)).decisions.sets, held.sets
    )
    run = engine.begin(inputs)
    run.advance(1)
    with pytest.raises(ag.InputError, match="counted from the first step"):
        run.advance_counted(1)


@KERNELS
@pytest.mark.parametrize(
    "kind", (pytest.param("convolutional", marks=pytest.mark.slow), "fully-connected")
)
def test_the_first_members_of_a_schedule_run_in_slots_and_the_others_only_where_these_do_not_decide(
    kind: str,
) -> None:
    neuron, generator = Neuron(threshold=0.4), torch.Generator().manual_seed(1)
    config: Any = (
        Convolutional((2, 4, 4), 3, 3, (4,), (6,), neuron)
        if kind == "convolutional"
        else FullyConnected((2, 4, 4), 3, 3, (6,))
    )
    network = SpikingNetwork(config, generator, None if kind == "convolutional" else 0.4).eval()
    engine, rng = Fused(network, DEVICE), np.random.default_rng(0)
    inputs = rng.random((14, 8, 2, 4, 4)) < 0.4
    every = tuple(range(1, 9))
    scores = ag.Scores(
        ag.log_confidence(np.cumsum(engine.begin(inputs).advance(8), axis=1)), None, every
    )
    schedule = ag.Schedule([*((time, 1) for time in every[:6]), (6, 2), (7, 3), (8, 3)])
    # those of later looks would stop other inputs
    offsets = np.array([0.05, 0.1, -0.1, -np.inf, 0.05, 0.1, 0.0, -3.0, 0.2])
    risk = ag.ShapedRisk(ag.TopMass(), offsets, schedule)
    calibrated = ag.AgreeStop(0.6, schedule, 1, risk=risk).calibrate(scores, "final")
    expected = calibrated.decide(scores)
    few = expected.stop_members == 1
    assert (
        2 <= few.sum() <= 12
        and len(np.unique(expected.stop_index[few])) > 1
        and len(np.unique(expected.stop_members)) == 3
    )
    for given, chunk in ((inputs, None), (ag.events.Events.from_dense(inputs), 3), (inputs, 8)):
        early = decide_early(engine, calibrated, given, RunOptions(batch_size=5, chunk=chunk))
        np.testing.assert_array_equal(early.decisions.stop_index, expected.stop_index)
        np.testing.assert_array_equal(early.decisions.sets, expected.sets)
        np.testing.assert_array_equal(early.decisions.best, expected.best)
        assert (early.work[few] == early.computed[few]).all() and (early.computed[few] <= 6).all()
        assert (
            chunk is None
            or (
                early.computed[few] == np.minimum(-(-expected.stop_time[few] // chunk) * chunk, 6)
            ).all()
        )
        # The others ran 6 steps with one member in slots, and from the first step again with the
        # members that joined.
        assert (early.computed[~few] <= 8).all() and (early.work[~few] >= 6 + 2 * 6).all()
    joins_at_once = ag.Schedule([(1, 1), *((time, 3) for time in every)])
    assert not prefilter_of(ag.AgreeStop(0.6, joins_at_once, 1).calibrate(scores, "final")).fits_gpu
    assert prefilter_of(calibrated).fits_gpu


def prefilter_of(calibrated: ag.CalibratedRule) -> Prefilter:
    found = prefilter_for(calibrated)
    assert found is not None
    return found


@KERNELS
def test_a_long_chunk_ends_where_it_should_and_slots_are_reused() -> None:
    engine, every = fused(), tuple(range(1, 41))
    (known, labels), (inputs, _) = events(60, 0), events(5, 1)
    scores = ag.log_confidence(np.cumsum(engine.begin(known).advance(40), axis=1))
    calibrated = ag.AgreeStop(0.35, every, 2).calibrate(scores, labels)
    expected = calibrated.decide(
        ag.log_confidence(np.cumsum(engine.begin(inputs).advance(40), axis=1))
    )
    for order in (slice(None), slice(None, None, -1)):  # the second order has negative strides
        run = decide_early(engine, calibrated, inputs[order], RunOptions(4, 20))
        np.testing.assert_array_equal(run.decisions.stop_index, expected.stop_index[order])
        np.testing.assert_array_equal(
            run.computed, np.where(expected.stop_index[order] < 20, 20, 40)
        )


@KERNELS
@pytest.mark.parametrize(
    "chunk",
    (
        None,
        6,
        pytest.param(20, marks=pytest.mark.slow),
        pytest.param(10007, marks=pytest.mark.slow),
    ),
)
def test_no_more_are_computed_together_than_allowed(
    chunk: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two groups has half of the slots. Where a segment reaches the end, each has all slots
    and waits for the other.
    """
    engine, every = fused(), tuple(range(1, 21))
    (known, labels), (inputs, _) = events(60, 0), events(9, 1)
    calibrated = ag.AgreeStop(0.35, every, 2).calibrate(
        ag.log_confidence(np.cumsum(engine.begin(known).advance(20), axis=1)), labels
    )
    expected = calibrated.decide(
        ag.log_confidence(np.cumsum(engine.begin(inputs).advance(20), axis=1))
    )
    computed: dict[object, int] = {}
    waited, taken = [], []
    start, finish = batching._SlotGroup.start, batching._SlotGroup.finish

    def starting(group: Any, source: Any, assignment: Any, behind: Any) -> None:
        assert behind is None or behind in computed
        waited.append(behind is not None)
        taken.append(int(assignment._taken.sum()))
        computed[group] = taken[-1]
        assert sum(count for one, count in computed.items() if one is not behind) <= 4
        start(group, source, assignment, behind)

    def finishing(group: Any) -> Any:
        computed.pop(group)
        return finish(group)

    monkeypatch.setattr(batching._SlotGroup, "start", starting)
    monkeypatch.setattr(batching._SlotGroup, "finish", finishing)
    # some inputs run again
    monkeypatch.setattr("agreestop.engines.gpu.continuous_batching.KERNEL_SLACK", 0.1)
    run = decide_early(fused(), calibrated, inputs, RunOptions(4, chunk))
    np.testing.assert_array_equal(run.decisions.stop_index, expected.stop_index)
    np.testing.assert_array_equal(run.decisions.sets, expected.sets)
    to_end = chunk in (20, 10007)
    assert any(waited) == to_end and max(taken) == (4 if to_end else 2)
    assert not to_end or run.computed.sum() > 20 * len(inputs), "none ran again"


@KERNELS
def test_later_training_does_not_change_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its scores nor its decisions. Decisions are also the same where memory is too small
    for continuous batching.
    """
    config = FullyConnected((2, 3, 3), 5, 3, (20,), Neuron(threshold=0.3))
    network = SpikingNetwork(config, torch.Generator().manual_seed(1), deviation=0.6)
    engine, every = Fused(network, DEVICE), tuple(range(1, 21))
    (known, labels), (inputs, _) = events(60, 0), events(6, 1)
    before = engine.begin(inputs).advance(20)
    with torch.no_grad():
        for value in network.parameters():
            value.mul_(-1)
    np.testing.assert_array_equal(engine.begin(inputs).advance(20), before)
    calibrated = ag.AgreeStop(0.35, every, 2).calibrate(
        ag.log_confidence(np.cumsum(engine.begin(known).advance(20), axis=1)), labels
    )
    expected = calibrated.decide(ag.log_confidence(np.cumsum(before, axis=1)))
    np.testing.assert_array_equal(
        decide_early(engine, calibrated, inputs).decisions.sets, expected.sets
    )

    def full(*given: object) -> object:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr("agreestop.engines.gpu.continuous_batching.ContinuousBatching._run", full)
    with pytest.warns(UserWarning, match="memory is too small for 256 inputs"):
        again = decide_early(engine, calibrated, inputs)
    np.testing.assert_array_equal(again.decisions.sets, expected.sets)


def test_live_inputs_are_independent_and_slots_are_reused() -> None:
    engine, (inputs, _) = fused(), events(3, 4)
    counts = np.cumsum(engine.begin(inputs).advance(12), axis=1)
    first, second = engine.live(), engine.live()
    for step in range(12):
        for row, live in enumerate((first, second)):
            np.testing.assert_array_equal(
                live.push(np.flatnonzero(inputs[row, step])), counts[row, step]
            )
    del first, live
    third = engine.live()
    for step in range(12):
        np.testing.assert_array_equal(third.push(np.flatnonzero(inputs[2, step])), counts[2, step])
    with pytest.raises(ag.InputError, match="numbered 0 to 17"):
        third.push([18])


def test_spikes_are_the_same_in_parts() -> None:
    """Chunks of any length, with rows dropped in between, give the spikes of one call."""
    engine, (inputs, _) = fused(), events(6, 2)
    whole = engine.begin(inputs).advance(40)
    rng, run, rows, time = np.random.default_rng(0), engine.begin(inputs), np.arange(6), 0
    while time < 40 and len(rows):
        steps = min(int(rng.integers(1, 14)), 40 - time)
        np.testing.assert_array_equal(run.advance(steps), whole[rows, time : time + steps])
        kept = rng.random(len(rows)) < 0.9
        run.keep(kept)
        rows, time = rows[kept], time + steps
    with pytest.raises(ag.InputError, match="40 of 40 time steps are left"):
        engine.begin(inputs).advance(41)
    with pytest.raises(ag.InputError, match="one boolean for each"):
        engine.begin(inputs).keep(np.ones(5, dtype=bool))


def test_an_image_is_held() -> None:
    engine, rng = fused(real=True), np.random.default_rng(3)
    images = rng.random((4, 1, 2, 3, 3), dtype=np.float32)
    held = engine.begin(images)
    parts = np.concatenate([held.advance(5), held.advance(9)], axis=1)
    np.testing.assert_array_equal(parts, engine.begin(np.repeat(images, 14, axis=1)).advance(14))


def test_an_engine_takes_inputs_of_several_dtypes() -> None:
    engine, (inputs, _) = fused(real=True), events(6, 5)
    engine.begin(inputs).advance(40)
    real = inputs * np.random.default_rng(6).random(inputs.shape, dtype=np.float32)
    np.testing.assert_array_equal(
        engine.begin(real).advance(40), fused(real=True).begin(real).advance(40)
    )
    np.testing.assert_array_equal(
        engine.begin(inputs).advance(40), fused(real=True).begin(inputs).advance(40)
    )


@pytest.mark.parametrize("convolutional", (False, pytest.param(True, marks=KERNELS)))
def test_operations_are_counted_as_on_the_dense_engine(convolutional: bool) -> None:
    config = (
        Convolutional((2, 5, 4), 3, 2, (5,), (6,))
        if convolutional
        else FullyConnected((2, 5, 4), 3, 2, (9,), Neuron(threshold=0.3))
    )
    network = SpikingNetwork(config, torch.Generator().manual_seed(1), deviation=0.6).eval()
    inputs = np.random.default_rng(0).random((5, 30, 2, 5, 4)) < 0.2
    fused_run, dense_run = (
        run_counted(Fused(network, DEVICE), inputs),
        run_counted(Dense(network), inputs),
    )
    np.testing.assert_array_equal(fused_run.spikes, dense_run.spikes)
    for name in ("emitted", "accumulates", "multiplies"):
        np.testing.assert_array_equal(
            getattr(fused_run.operations, name), getattr(dense_run.operations, name)
        )


def test_a_live_slot_takes_frames() -> None:
    engine, (inputs, _) = fused(), events(1, 4)
    counts = np.cumsum(engine.begin(inputs).advance(5), axis=1)
    live = engine.live()
    for step in range(5):
        np.testing.assert_array_equal(live.push(frame=inputs[0, step]), counts[0, step])
    with pytest.raises(ag.InputError, match="other than 0 and 1"):
        live.push(frame=inputs[0, 0] * 2)
    images = np.random.default_rng(5).random((1, 6, 2, 3, 3), dtype=np.float32)
    real = fused(real=True)
    expected, live = np.cumsum(real.begin(images).advance(6), axis=1), real.live()
    for step in range(6):
        np.testing.assert_array_equal(live.push(frame=images[0, step]), expected[0, step])


@KERNELS
def test_inputs_that_tie_with_the_threshold_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one member, many inputs have the very risk that the threshold is at, and do not stop
    there.
    """
    config = FullyConnected((2, 3, 3), 5, 1, (20,), Neuron(threshold=0.3))
    network = SpikingNetwork(config, torch.Generator().manual_seed(1), deviation=0.6)
    (known, _), (inputs, _) = events(60, 0), events(24, 1)
    scores = ag.log_confidence(np.cumsum(Fused(network, DEVICE).begin(known).advance(20), axis=1))
    calibrated = at_kth_values(ag.AgreeStop(0.7, tuple(range(1, 21)), 1).calibrate(scores, "final"))
    computed = []
    for looks in (1, batching.LOOKS):
        monkeypatch.setattr(batching, "LOOKS", looks)
        engine = Fused(network, DEVICE)
        expected = calibrated.decide(
            ag.log_confidence(np.cumsum(engine.begin(inputs).advance(20), axis=1))
        )
        run = decide_early(engine, calibrated, inputs)
        np.testing.assert_array_equal(run.decisions.stop_index, expected.stop_index)
        np.testing.assert_array_equal(run.decisions.sets, expected.sets)
        computed.append(run.computed)
    assert computed[0].sum() > computed[1].sum()
    np.testing.assert_array_equal(computed[1], np.where(expected.stop_index < 16, 16, 20))
