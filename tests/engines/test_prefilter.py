"""The prefilter passes on every input that the rule would stop, and few others; decisions are those
of the rule.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="engines run trained networks, which need PyTorch")

import agreestop as ag
from agreestop.common import Booleans
from agreestop.engines import decide_early
from agreestop.engines.prefilter import can_prefilter_on_cpu, prefilter_for
from agreestop.kernels import TRITON_AVAILABLE
from tests.decide.strategies import at_threshold, reading_of, simulate_spikes

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
    **{
        f"temperatures, r={r}": lambda r=r: top_mass(r)
        for r in (-np.inf, -1.0, 0.0, 1.0, 2.0, np.inf)
    },
    "shaped": lambda: ag.ShapedRisk.per_time(top_mass(1.0), EVERY, 0.7),
    "learned": learned,
    "learned, shaped": lambda: ag.ShapedRisk.per_time(learned(), EVERY, -0.5),
}


class Replay:
    """An engine that replays given spikes."""

    name, members, classes, output, reason = "replay", MEMBERS, SPIKES.shape[3], "spikes", ""
    copies_weights = True

    def __init__(self, chunk: int) -> None:
        self._chunk = chunk

    def chunk_steps(self, rows: int) -> int:
        return self._chunk

    def begin(self, inputs: Any, first: int = 0) -> Any:
        return ReplayPass(inputs)

    def live(self, number: int = 0) -> Any:
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


@pytest.mark.skipif(
    not can_prefilter_on_cpu(), reason="the prefilter's loop is compiled with numba"
)
@pytest.mark.parametrize("risk", RISKS)
@pytest.mark.parametrize("checkpoints", (EVERY, FEW))
def test_prefiltered_decisions_are_those_of_the_rule(
    risk: str, checkpoints: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrated = ag.AgreeStop(0.8, checkpoints, 2, risk=RISKS[risk]()).calibrate(
        SCORES[KNOWN], LABELS[KNOWN], EVERY
    )
    expected = calibrated.decide(SCORES[NEW], EVERY)
    for compiled in (True, False):
        monkeypatch.setattr(
            "agreestop.engines.early_stopping.can_prefilter_on_cpu",
            lambda compiled=compiled: compiled,
        )
        run = decide_early(Replay(8), calibrated, SPIKES[NEW])
        np.testing.assert_array_equal(run.decisions.stop_index, expected.stop_index)
        np.testing.assert_array_equal(run.decisions.sets, expected.sets)
    prefilter = prefilter_for(calibrated)
    assert prefilter is not None
    counts = np.cumsum(SPIKES[NEW], axis=1, dtype=np.int64)[:, [time - 1 for time in checkpoints]]
    flags = prefilter.may_stop(counts, np.arange(len(checkpoints)))
    stops = np.stack(
        [
            calibrated.step(
                index, ag.log_confidence(counts[:, index]), calibrated.start(len(counts))
            ).stop
            for index in range(len(checkpoints))
        ],
        axis=1,
    )
    assert flags[stops].all() and flags[:, -1].all()
    stops[:, 0] = True  # the rule notes the risk of every input there
    if "learned" not in risk:  # a learned risk passes ties on to the rule
        np.testing.assert_array_equal(flags, stops)


@pytest.mark.skipif(
    not can_prefilter_on_cpu(), reason="the prefilter's loop is compiled with numba"
)
def test_where_two_best_classes_tie_the_rule_decides_which_is_first() -> None:
    """A learned risk counts the members with another best class than the first, and sums of
    confidences round by their order.
    """
    rng = np.random.default_rng(0)
    tops = np.array([(0, 0, 0, 1, 1), (0, 0, 1, 2, 3)])[
        np.arange(60) % 2
    ]  # two and three of five dissent
    known = ag.log_confidence(np.stack([10 * np.eye(4, dtype=np.int64)[tops]] * 3, axis=1))
    weights = 20.0 * (np.arange(9) == 6)
    risk = ag.LearnedRisk(ag.TopMass(), 2, weights, -10.0, np.log([10, 20, 30]), (10, 20, 30))
    calibrated = ag.AgreeStop(0.9, (10, 20, 30), 2, risk=risk).calibrate(
        known, 3 * (np.arange(60) % 2), (10, 20, 30)
    )
    counts = np.zeros((200, 5, 4), dtype=np.int64)
    counts[:, :4, :2] = rng.integers(5, 20, (200, 4, 2))
    counts[:, 1:4:2, :2] = counts[:, :4:2, 1::-1]  # pairs of members with two classes exchanged
    counts[:, 4, :2] = 12  # the first of them, to one member
    tied = counts[:, rng.permutation(5)]
    stops = calibrated.step(1, ag.log_confidence(tied), calibrated.start(200)).stop
    prefilter = prefilter_for(calibrated)
    assert prefilter is not None and stops.all()
    assert prefilter.may_stop(tied[:, None], np.array([1])).all()


@pytest.mark.skipif(
    not can_prefilter_on_cpu(), reason="the prefilter's loop is compiled with numba"
)
@pytest.mark.parametrize("risk", ["plain", "temperatures, r=0.0", "temperatures, r=2.0", "shaped"])
@pytest.mark.parametrize("scale", [1.0, 1e5])
def test_logits_are_prefiltered_too(risk: str, scale: float) -> None:
    logits = scale * (
        np.cumsum(SPIKES, axis=1) - 20 + 0.1 * np.random.default_rng(0).normal(size=SPIKES.shape)
    )
    scores = ag.log_confidence(logits)
    calibrated = ag.AgreeStop(0.8, EVERY, 2, risk=RISKS[risk]()).calibrate(
        scores[KNOWN], LABELS[KNOWN], EVERY
    )
    prefilter = prefilter_for(calibrated, "logits")
    assert prefilter is not None
    flags = prefilter.may_stop(logits[NEW], np.arange(STEPS))
    looks = (
        calibrated.step(at, scores[NEW][:, at], calibrated.start(200)).stop for at in range(STEPS)
    )
    stops = np.stack(list(looks), axis=1)
    assert flags[stops].all() and flags.mean() < 0.9
    wrong = logits[NEW].copy()
    wrong[0, 3, 1, 2] = np.nan
    assert prefilter.may_stop(wrong, np.arange(STEPS))[0, 3], "the rule must see it, to refuse it"


def test_a_learned_risk_has_no_prefilter_on_logits() -> None:
    calibrated = ag.AgreeStop(0.8, EVERY, 2, risk=learned()).calibrate(
        SCORES[KNOWN], LABELS[KNOWN], EVERY
    )
    assert prefilter_for(calibrated) is not None and prefilter_for(calibrated, "logits") is None


def test_other_rules_have_no_prefilter() -> None:
    rule = ag.SpikeCP(0.8, FEW, 2, ag.MergeConfidence(r=1), "stop-aware")
    assert prefilter_for(rule.calibrate(SCORES[KNOWN], LABELS[KNOWN], EVERY)) is None


def test_a_rule_that_never_stops_early_runs_to_the_last_checkpoint() -> None:
    with pytest.warns(ag.CalibrationWarning):
        calibrated = ag.AgreeStop(0.99, EVERY, 2).calibrate(SCORES[KNOWN], LABELS[KNOWN])
    run = decide_early(Replay(8), calibrated, SPIKES[NEW])
    assert (run.decisions.stop_index == STEPS - 1).all()


# ---- the GPU kernel, on a GPU or in Triton's interpreter

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
KERNELS = pytest.mark.skipif(
    not TRITON_AVAILABLE, reason="there are no kernels for GPUs, or Triton is not installed"
)


@KERNELS
@pytest.mark.filterwarnings("ignore::agreestop.CalibrationWarning")
@pytest.mark.parametrize("seed", range(20))
def test_the_kernel_finds_the_first_step_where_the_rule_may_stop(seed: int) -> None:
    """Few steps and similar classes, so that counts tie in many ways."""
    from agreestop.engines.gpu.continuous_batching import LOOKS, GpuPrefilter

    rng = np.random.default_rng(seed)
    n, steps, members, classes = 42, 8, int(rng.integers(1, 5)), int(rng.integers(2, 7))
    size, r, fill = (
        int(rng.integers(1, classes + 1)),
        float(rng.choice([-np.inf, -1, 0, 1, 3, np.inf])),
        bool(rng.integers(2)),
    )
    rates = rng.uniform(0.05, 0.6, (n, 1, 1, classes))
    spikes, labels = rng.random((n, steps, members, classes)) < rates, rates[:, 0, 0].argmax(axis=1)
    sums = np.cumsum(spikes, axis=1)
    scores = ag.log_confidence(sums)
    rule = ag.AgreeStop(
        rng.uniform(0.2, 0.8),
        tuple(range(1, steps + 1)),
        size,
        fill,
        ag.TopMass(ag.MergeConfidence(r)),
    )
    calibrated = rule.calibrate(scores[:30], labels[:30])
    expected, prefilter = calibrated.decide(scores[30:]), prefilter_for(calibrated)
    assert prefilter is not None
    begins, time, counts, outcome = (
        torch.zeros((12, *shape), dtype=torch.int32, device=DEVICE)
        for shape in ((), (), (members, classes), (2 + LOOKS * (1 + members * classes),))
    )
    fresh = torch.from_numpy(spikes[30:]).permute(1, 2, 0, 3).float().to(DEVICE)
    GpuPrefilter(prefilter, classes, steps, DEVICE)(fresh, begins, time, counts, outcome)
    found = outcome.cpu().numpy()
    looks = found[:, 2:].reshape(12, LOOKS, -1)
    steps_of = looks[:, :, 0] - 1
    stops = steps_of[:, 0]
    assert (found[:, 0] < 0).all() and (stops <= expected.stop_index).all()
    for row, seen in enumerate(
        -found[:, 0]
    ):  # the rule's step is kept, unless there were too many before it
        assert expected.stop_index[row] in steps_of[row, :seen] or (
            seen == LOOKS and steps_of[row, -1] < expected.stop_index[row]
        )
        np.testing.assert_array_equal(
            looks[row, :seen, 1:], sums[30 + row, steps_of[row, :seen]].reshape(seen, -1)
        )
    threshold = float(calibrated.thresholds[0])
    risks = reading_of(rule, scores[30:]).risk
    # far above the margin, so earlier steps must have been ruled out
    near = risks < threshold + 0.01 * (1 + abs(threshold))
    near[:, -1] = True
    assert (stops >= near.argmax(axis=1)).all()
    np.testing.assert_array_equal(counts.cpu().numpy(), sums[30:, -1])


HOSTILE = (
    (-1.0, 1000.0, -2.948892845482078, [[6, 12, 12], [12, 12, 6], [13, 6, 12]]),
    (-1.0, 999.99989707, -0.8485395605475787, [[20, 18, 20], [7, 20, 18], [18, 8, 8]]),
    (1e-3, 10.0, -0.4228177601851826, [[1, 10, 1], [11, 1, 11], [10, 11, 10]]),
    (0.01, 100.0, -0.46713307732707676, [[2, 6, 2], [6, 4, 4], [4, 2, 6]]),
)


@KERNELS
@pytest.mark.parametrize(("r", "temperature", "threshold", "counts"), HOSTILE)
def test_the_margin_covers_rounding_that_is_amplified(
    r: float, temperature: float, threshold: float, counts: Any
) -> None:
    """A risk within float64's rounding of the threshold, and a temperature or an exponent that
    amplifies float32's rounding.
    """
    from agreestop.engines.gpu.continuous_batching import LOOKS, GpuPrefilter

    given, times = np.array([counts]), (80, 81)
    rule = ag.AgreeStop(
        0.5, times, 1, True, ag.TopMass(ag.MergeConfidence(r), np.full(2, temperature), times)
    )
    calibrated = rule.calibrate(ag.log_confidence(np.stack([given] * 2, axis=1)), [0])
    prefilter = prefilter_for(at_threshold(calibrated, threshold))
    assert prefilter is not None and prefilter.fits_gpu
    begins, time = (torch.full((1,), value, dtype=torch.int32, device=DEVICE) for value in (-1, 79))
    before, outcome = (
        torch.tensor(given, dtype=torch.int32, device=DEVICE),
        torch.zeros((1, 2 + 10 * LOOKS), dtype=torch.int32, device=DEVICE),
    )
    GpuPrefilter(prefilter, 3, 1, DEVICE)(
        torch.zeros((1, 3, 1, 3), device=DEVICE), begins, time, before, outcome
    )
    assert outcome[0, 2] == 80
    np.testing.assert_array_equal(outcome[0, 3:12].cpu().numpy(), given.ravel())


@pytest.mark.parametrize("r", (1e39, -1e39, 1e-46))
def test_exponents_outside_the_range_of_float32_stay_on_the_cpu(r: float) -> None:
    rule = ag.AgreeStop(0.8, EVERY, 2, risk=ag.TopMass(ag.MergeConfidence(r)))
    prefilter = prefilter_for(rule.calibrate(SCORES[KNOWN], LABELS[KNOWN], EVERY))
    assert prefilter is not None and not prefilter.fits_gpu
