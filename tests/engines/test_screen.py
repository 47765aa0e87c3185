"""The screen lets every input through that the rule would stop, and few others; decisions stay the rule's own."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="engines run trained networks, which need PyTorch")

import agreestop as ag
from agreestop.common.arrays import Booleans
from agreestop.decide.policies import RiskThreshold
from agreestop.decide.risks import ShapedRisk
from agreestop.decide.simulated import simulate_spikes
from agreestop.engines.early_stopping import decide_early
from agreestop.engines.gpu import continuous_batching as flow
from agreestop.engines.gpu.engine import Fused
from agreestop.engines.prefilter import Screen, can_screen_here, screen_of
from agreestop.networks.architectures import FullyConnected, SpikingNetwork
from agreestop.networks.neurons import Neuron
from tests.decide.strategies import risk_of

STEPS, MEMBERS = 30, 4
SPIKES, LABELS = simulate_spikes(400, STEPS, MEMBERS, seed=4)
SCORES = ag.log_confidence(np.cumsum(SPIKES, axis=1, dtype=np.int64))
EVERY, FEW = tuple(range(1, STEPS + 1)), (7, 15, 30)
TUNING, KNOWN, NEW = slice(0, 150), slice(150, 200), slice(200, 400)


def top_mass(r: float) -> Any:
    return ag.TopMass.fit(SCORES[TUNING], LABELS[TUNING], ag.MergeConfidence(r), EVERY)


def learned() -> Any:
    pytest.importorskip("sklearn", reason="a learned risk is fitted with scikit-learn")
    return ag.LearnedRisk.fit(SCORES[TUNING], LABELS[TUNING], max_set_size=2, times=EVERY)


RISKS: dict[str, Any] = {
    "plain": ag.TopMass,
    **{f"temperatures, r={r}": lambda r=r: top_mass(r) for r in (-np.inf, -1.0, 0.0, 1.0, 2.0, np.inf)},
    "shaped": lambda: ShapedRisk.per_time(top_mass(1.0), EVERY, 0.7),
    "learned": learned,
    "learned, shaped": lambda: ShapedRisk.per_time(learned(), EVERY, -0.5),
}


class Replay:
    """An engine that shows spikes recorded before."""

    name, members, classes = "replay", MEMBERS, SPIKES.shape[3]

    def __init__(self, chunk: int) -> None:
        self._chunk = chunk

    def chunk_of(self, rows: int) -> int:
        return self._chunk

    def begin(self, inputs: Any) -> Any:
        return ReplayPass(inputs)

    def live(self) -> Any:
        raise NotImplementedError


class ReplayPass:
    def __init__(self, spikes: Booleans) -> None:
        self._spikes, self._time = spikes, 0

    @property
    def rows(self) -> int:
        return len(self._spikes)

    def advance(self, steps: int) -> Booleans:
        self._time += steps
        return self._spikes[:, self._time - steps : self._time]

    def keep(self, rows: Booleans) -> None:
        self._spikes = self._spikes[rows]


@pytest.mark.skipif(not can_screen_here(), reason="the screen's loop is compiled with numba")
@pytest.mark.parametrize("risk", RISKS)
@pytest.mark.parametrize("checkpoints", (EVERY, FEW))
def test_screened_decisions_are_those_of_the_rule(risk: str, checkpoints: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    calibrated = ag.AgreeStop(0.8, checkpoints, 2, risk=RISKS[risk]()).calibrate(SCORES[KNOWN], LABELS[KNOWN], EVERY)
    expected = calibrated.decide(SCORES[NEW], EVERY)
    for compiled in (True, False):
        monkeypatch.setattr("agreestop.engines.early_stopping.can_screen_here", lambda compiled=compiled: compiled)
        run = decide_early(Replay(8), calibrated, SPIKES[NEW])
        np.testing.assert_array_equal(run.decisions.stop_index, expected.stop_index)
        np.testing.assert_array_equal(run.decisions.sets, expected.sets)
    screen = screen_of(calibrated)
    assert screen is not None
    counts = np.cumsum(SPIKES[NEW], axis=1, dtype=np.int64)[:, [time - 1 for time in checkpoints]]
    flags = screen.may_stop(counts, range(len(checkpoints)))
    risks = [calibrated.rule.evidence(place, ag.log_confidence(counts[:, place])) for place in range(len(checkpoints))]
    stops = np.stack([risk_of(evidence) for evidence in risks], axis=1) < screen.policy.threshold
    assert flags[stops].all() and flags[:, -1].all()
    if "learned" not in risk:  # which leaves ties to the rule
        np.testing.assert_array_equal(flags[:, :-1], stops[:, :-1])


def test_other_rules_have_no_screen() -> None:
    rule = ag.SpikeCP(0.8, FEW, 2, ag.MergeConfidence(r=1), "stop-aware")
    assert screen_of(rule.calibrate(SCORES[KNOWN], LABELS[KNOWN], EVERY)) is None


def test_a_rule_that_never_stops_early_screens_all_but_the_last() -> None:
    with pytest.warns(ag.CalibrationWarning):
        calibrated = ag.AgreeStop(0.99, EVERY, 2).calibrate(SCORES[KNOWN], LABELS[KNOWN])
    run = decide_early(Replay(8), calibrated, SPIKES[NEW])
    assert (run.decisions.stop_index == STEPS - 1).all()


# ---- on a GPU, or in Triton's interpreter

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


KERNELS = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def fused(real: bool = False) -> Fused:
    config = FullyConnected((2, 3, 3), 5, 3, (20,), Neuron(threshold=0.3), real)
    return Fused(SpikingNetwork(config, torch.Generator().manual_seed(1), deviation=0.6), DEVICE)


def events(n: int, seed: int) -> tuple[Booleans, Any]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(5, size=n)
    rates = np.where(np.arange(9).reshape(3, 3) == labels[:, None, None], 0.6, 0.1)
    return rng.random((n, 40, 2, 3, 3)) < rates[:, None, None], labels


@KERNELS
@pytest.mark.parametrize("fill", (False, True))
@pytest.mark.parametrize(("r", "checkpoints"), ((1.0, tuple(range(1, 21))), *((r, (3, 9, 20)) for r in (-np.inf, 0.0, 3.0, np.inf))))
def test_the_fused_engine_decides_as_the_rule_on_its_scores(r: float, checkpoints: tuple[int, ...], fill: bool) -> None:
    engine, every = fused(), tuple(range(1, 21))
    (known, labels), (inputs, _) = events(60, 0), events(9, 1)
    scores = ag.log_confidence(np.cumsum(engine.begin(known).advance(20), axis=1))
    rule = ag.AgreeStop(0.35, checkpoints, 2, fill, ag.TopMass(ag.MergeConfidence(r)))  # the network is untrained
    calibrated = rule.calibrate(scores, labels, every)
    expected = calibrated.decide(ag.log_confidence(np.cumsum(engine.begin(inputs).advance(20), axis=1)), every)
    assert len(np.unique(expected.stop_index)) > 1
    for chunk in (None, 7):
        run = decide_early(engine, calibrated, inputs, batch_size=5, chunk=chunk)
        np.testing.assert_array_equal(run.decisions.stop_index, expected.stop_index)
        np.testing.assert_array_equal(run.decisions.sets, expected.sets)


@KERNELS
@pytest.mark.parametrize("fill", (False, True))
def test_the_rule_is_asked_where_the_kernel_is_not_sure(fill: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its answers are the same where it is not asked, of which some are smaller than allowed."""
    engine, every = fused(), tuple(range(1, 21))
    (known, labels), (inputs, _) = events(60, 0), events(60, 1)
    scores = ag.log_confidence(np.cumsum(engine.begin(known).advance(20), axis=1))
    calibrated = ag.AgreeStop(0.35, every, 3, fill).calibrate(scores, labels)
    expected = calibrated.decide(ag.log_confidence(np.cumsum(engine.begin(inputs).advance(20), axis=1)))
    asked, judge = [], Screen.judge

    def count(screen: Screen, checkpoints: Any, counts: Any) -> Any:
        asked.append(len(counts))
        return judge(screen, checkpoints, counts)

    monkeypatch.setattr(Screen, "judge", count)
    run = decide_early(engine, calibrated, inputs)
    np.testing.assert_array_equal(run.decisions.stop_index, expected.stop_index)
    np.testing.assert_array_equal(run.decisions.sets, expected.sets)
    assert sum(asked) < 40
    assert fill or len(np.unique(expected.set_size[expected.stop_index < 19])) > 1


@KERNELS
@pytest.mark.filterwarnings("ignore::agreestop.CalibrationWarning")
@pytest.mark.parametrize("seed", range(20))
def test_what_the_kernel_is_sure_of_is_what_the_rule_does(seed: int) -> None:
    """On few steps and alike classes, whose counts tie in every way."""
    from agreestop.engines.gpu.prefilter import DeviceScreen

    rng = np.random.default_rng(seed)
    n, steps, members, classes = 60, 8, int(rng.integers(1, 5)), int(rng.integers(2, 7))
    size, r, fill = int(rng.integers(1, classes + 1)), float(rng.choice([-np.inf, -1, 0, 1, 3, np.inf])), bool(rng.integers(2))
    rates = rng.uniform(0.05, 0.6, (n, 1, 1, classes))
    spikes, labels = rng.random((n, steps, members, classes)) < rates, rates[:, 0, 0].argmax(axis=1)
    scores = ag.log_confidence(np.cumsum(spikes, axis=1))
    rule = ag.AgreeStop(rng.uniform(0.2, 0.8), tuple(range(1, steps + 1)), size, fill, ag.TopMass(ag.MergeConfidence(r)))
    calibrated = rule.calibrate(scores[:30], labels[:30])
    expected, screen = calibrated.decide(scores[30:]), screen_of(calibrated)
    assert screen is not None
    begins, time, counts, outcome = (
        torch.zeros((30, *shape), dtype=torch.int32, device=DEVICE)
        for shape in ((), (), (members, classes), (2 + size + members * classes,))
    )
    fresh = torch.from_numpy(spikes[30:]).permute(1, 2, 0, 3).float().to(DEVICE)
    DeviceScreen(screen, classes, steps, torch.device(DEVICE))(fresh, begins, time, counts, outcome)
    found = outcome.cpu().numpy()
    stops, sure, answers = found[:, 0] - 1, found[:, 1] > 0, found[:, 2 : 2 + size, None]
    assert (stops <= expected.stop_index).all() and sure.any()
    np.testing.assert_array_equal(stops[sure], expected.stop_index[sure])
    np.testing.assert_array_equal((answers == np.arange(classes)).any(axis=1)[sure], expected.sets[sure])


HOSTILE = (
    (-1.0, 1000.0, -2.948892845482078, [[6, 12, 12], [12, 12, 6], [13, 6, 12]]),
    (-1.0, 999.99989707, -0.8485395605475787, [[20, 18, 20], [7, 20, 18], [18, 8, 8]]),
    (1e-3, 10.0, -0.4228177601851826, [[1, 10, 1], [11, 1, 11], [10, 11, 10]]),
    (0.01, 100.0, -0.46713307732707676, [[2, 6, 2], [6, 4, 4], [4, 2, 6]]),
)


@KERNELS
@pytest.mark.parametrize(("r", "temperature", "threshold", "counts"), HOSTILE)
def test_rounding_that_is_made_large_leaves_the_kernel_in_doubt(r: float, temperature: float, threshold: float, counts: Any) -> None:
    """A risk within float64's rounding of the threshold, and a temperature or an exponent that magnifies float32's."""
    from agreestop.engines.gpu.prefilter import DeviceScreen

    given, times = np.array([counts]), (80, 81)
    rule = ag.AgreeStop(0.5, times, 1, True, ag.TopMass(ag.MergeConfidence(r), np.full(2, temperature), times))
    calibrated = rule.calibrate(ag.log_confidence(np.stack([given] * 2, axis=1)), [0])
    screen = screen_of(replace(calibrated, policy=RiskThreshold(threshold, 1, True)))
    assert screen is not None and screen.on_device
    begins, time = (torch.full((1,), value, dtype=torch.int32, device=DEVICE) for value in (-1, 79))
    before, outcome = torch.tensor(given, dtype=torch.int32, device=DEVICE), torch.zeros((1, 12), dtype=torch.int32, device=DEVICE)
    DeviceScreen(screen, 3, 1, torch.device(DEVICE))(torch.zeros((1, 3, 1, 3), device=DEVICE), begins, time, before, outcome)
    assert outcome[0, :2].tolist() == [80, 0]


@pytest.mark.parametrize("r", (1e39, -1e39, 1e-46))
def test_exponents_that_float32_does_not_hold_are_the_hosts(r: float) -> None:
    rule = ag.AgreeStop(0.8, EVERY, 2, risk=ag.TopMass(ag.MergeConfidence(r)))
    screen = screen_of(rule.calibrate(SCORES[KNOWN], LABELS[KNOWN], EVERY))
    assert screen is not None and not screen.on_device


@KERNELS
def test_what_a_lax_screen_lets_through_the_rule_decides_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, every = fused(), tuple(range(1, 21))
    (known, labels), (inputs, _) = events(60, 0), events(9, 1)
    calibrated = ag.AgreeStop(0.35, every, 2).calibrate(ag.log_confidence(np.cumsum(engine.begin(known).advance(20), axis=1)), labels)
    strict = decide_early(engine, calibrated, inputs)
    monkeypatch.setattr("agreestop.engines.gpu.prefilter.SLACK", 0.5)
    lax = decide_early(fused(), calibrated, inputs)
    np.testing.assert_array_equal(lax.decisions.stop_index, strict.decisions.stop_index)
    np.testing.assert_array_equal(lax.decisions.sets, strict.decisions.sets)
    assert lax.computed.sum() > strict.computed.sum()


@KERNELS
@pytest.mark.parametrize(("chunk", "places"), ((None, 3), (4, 7), (9, 40), (20, 2)))
def test_inputs_run_to_the_end_of_the_chunk_they_stop_in(chunk: int | None, places: int) -> None:
    """Whatever part of a segment is left at the end."""
    engine, every = fused(), tuple(range(1, 20))
    (known, labels), (inputs, _) = events(60, 0), events(11, 1)
    scores = ag.log_confidence(np.cumsum(engine.begin(known).advance(19), axis=1))
    calibrated = ag.AgreeStop(0.35, every, 2).calibrate(scores, labels)
    expected = calibrated.decide(ag.log_confidence(np.cumsum(engine.begin(inputs).advance(19), axis=1)))
    run = decide_early(engine, calibrated, inputs[:, :19], places, chunk)
    np.testing.assert_array_equal(run.decisions.stop_index, expected.stop_index)
    np.testing.assert_array_equal(run.decisions.sets, expected.sets)
    steps = chunk or 16  # of a segment
    np.testing.assert_array_equal(run.computed, np.minimum(-(-(expected.stop_index + 1) // steps) * steps, 19))


@KERNELS
def test_a_long_chunk_ends_where_it_should_and_places_serve_again() -> None:
    engine, every = fused(), tuple(range(1, 41))
    (known, labels), (inputs, _) = events(60, 0), events(5, 1)
    scores = ag.log_confidence(np.cumsum(engine.begin(known).advance(40), axis=1))
    calibrated = ag.AgreeStop(0.35, every, 2).calibrate(scores, labels)
    expected = calibrated.decide(ag.log_confidence(np.cumsum(engine.begin(inputs).advance(40), axis=1)))
    for order in (slice(None), slice(None, None, -1)):  # the second time backwards, which numpy does without moving anything
        run = decide_early(engine, calibrated, inputs[order], 4, 20)
        np.testing.assert_array_equal(run.decisions.stop_index, expected.stop_index[order])
        np.testing.assert_array_equal(run.computed, np.where(expected.stop_index[order] < 20, 20, 40))


@KERNELS
@pytest.mark.parametrize("chunk", (None, 6, 20, 10007))
def test_no_more_are_computed_together_than_allowed(chunk: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of them in each of two groups; or, where a segment reaches the end, all in each, of which one waits for the other."""
    engine, every = fused(), tuple(range(1, 21))
    (known, labels), (inputs, _) = events(60, 0), events(11, 1)
    calibrated = ag.AgreeStop(0.35, every, 2).calibrate(ag.log_confidence(np.cumsum(engine.begin(known).advance(20), axis=1)), labels)
    expected = calibrated.decide(ag.log_confidence(np.cumsum(engine.begin(inputs).advance(20), axis=1)))
    computed: dict[object, int] = {}
    waited, taken = [], []
    start, finish, rows = flow._Group.start, flow._Group.finish, flow._Seats.rows

    def seated(seats: Any) -> Any:
        taken.append(int(seats._taken.sum()))
        return rows(seats)

    def starting(group: Any, frames: Any, places: Any, begins: Any, behind: Any) -> None:
        assert behind is None or behind in computed
        waited.append(behind is not None)
        computed[group] = taken[-1]
        assert sum(count for one, count in computed.items() if one is not behind) <= 4
        start(group, frames, places, begins, behind)

    def finishing(group: Any) -> Any:
        computed.pop(group)
        return finish(group)

    monkeypatch.setattr(flow._Seats, "rows", seated)
    monkeypatch.setattr(flow._Group, "start", starting)
    monkeypatch.setattr(flow._Group, "finish", finishing)
    monkeypatch.setattr("agreestop.engines.gpu.prefilter.SLACK", 0.5)  # some run again
    run = decide_early(fused(), calibrated, inputs, 4, chunk)
    np.testing.assert_array_equal(run.decisions.stop_index, expected.stop_index)
    np.testing.assert_array_equal(run.decisions.sets, expected.sets)
    to_end = chunk in (20, 10007)
    assert any(waited) == to_end and max(taken) == (4 if to_end else 2)
    assert not to_end or run.computed.sum() > 20 * len(inputs), "none ran again"


@KERNELS
def test_an_engine_is_as_its_members_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training that goes on reaches neither scores nor decisions; nor does a place that memory did not hold."""
    config = FullyConnected((2, 3, 3), 5, 3, (20,), Neuron(threshold=0.3))
    network = SpikingNetwork(config, torch.Generator().manual_seed(1), deviation=0.6)
    engine, every = Fused(network, DEVICE), tuple(range(1, 21))
    (known, labels), (inputs, _) = events(60, 0), events(6, 1)
    before = engine.begin(inputs).advance(20)
    with torch.no_grad():
        for value in network.parameters():
            value.mul_(-1)
    np.testing.assert_array_equal(engine.begin(inputs).advance(20), before)
    calibrated = ag.AgreeStop(0.35, every, 2).calibrate(ag.log_confidence(np.cumsum(engine.begin(known).advance(20), axis=1)), labels)
    expected = calibrated.decide(ag.log_confidence(np.cumsum(before, axis=1)))
    np.testing.assert_array_equal(decide_early(engine, calibrated, inputs).decisions.sets, expected.sets)

    def full(*given: object) -> object:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr("agreestop.engines.gpu.continuous_batching.Flow._run", full)
    with pytest.warns(UserWarning, match="memory did not hold 256 inputs at once"):
        again = decide_early(engine, calibrated, inputs)
    np.testing.assert_array_equal(again.decisions.sets, expected.sets)


def test_live_inputs_keep_apart_and_a_place_is_used_again() -> None:
    engine, (inputs, _) = fused(), events(3, 4)
    counts = np.cumsum(engine.begin(inputs).advance(12), axis=1)
    first, second = engine.live(), engine.live()
    for step in range(12):
        for place, live in enumerate((first, second)):
            np.testing.assert_array_equal(live.push(np.flatnonzero(inputs[place, step])), counts[place, step])
    del first, live
    third = engine.live()
    for step in range(12):
        np.testing.assert_array_equal(third.push(np.flatnonzero(inputs[2, step])), counts[2, step])
    with pytest.raises(ag.InputError, match="numbered 0 to 17"):
        third.push([18])


def test_spikes_are_the_same_in_parts() -> None:
    """Whatever lengths are asked for and whoever stops between, the spikes are those of one go."""
    engine, (inputs, _) = fused(), events(6, 2)
    whole = engine.begin(inputs).advance(40)
    rng, run, rows, time = np.random.default_rng(0), engine.begin(inputs), np.arange(6), 0
    while time < 40 and len(rows):
        steps = min(int(rng.integers(1, 14)), 40 - time)
        np.testing.assert_array_equal(run.advance(steps), whole[rows, time : time + steps])
        kept = rng.random(len(rows)) < 0.9
        run.keep(kept)
        rows, time = rows[kept], time + steps
    with pytest.raises(ag.InputError, match="40 are left of 40"):
        engine.begin(inputs).advance(41)
    with pytest.raises(ag.InputError, match="a boolean for each"):
        engine.begin(inputs).keep(np.ones(5, dtype=bool))


def test_an_image_is_held() -> None:
    engine, rng = fused(real=True), np.random.default_rng(3)
    images = rng.random((4, 1, 2, 3, 3), dtype=np.float32)
    held = engine.begin(images)
    parts = np.concatenate([held.advance(5), held.advance(9)], axis=1)
    np.testing.assert_array_equal(parts, engine.begin(np.repeat(images, 14, axis=1)).advance(14))


def test_an_engine_serves_inputs_of_another_type() -> None:
    engine, (inputs, _) = fused(real=True), events(6, 5)
    engine.begin(inputs).advance(40)
    real = inputs * np.random.default_rng(6).random(inputs.shape, dtype=np.float32)
    np.testing.assert_array_equal(engine.begin(real).advance(40), fused(real=True).begin(real).advance(40))
    np.testing.assert_array_equal(engine.begin(inputs).advance(40), fused(real=True).begin(inputs).advance(40))
