"""The prefilter's compiled loop against the rule itself, over random shapes, ties, extremes and
all types of numbers: it passes on every input that the rule stops, and no clear other one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import agreestop as ag
from agreestop.common import Floats
from agreestop.engines.prefilter import prefilter_for
from tests.decide.strategies import at_threshold, reading_of

pytest.importorskip("numba", reason="numba, which compiles the prefilter, is not installed")

ROWS, LOOKS = 12, 5


def risk_of(
    kind: str, times: tuple[int, ...], size: int, r: float, temperature: float, weights: Floats
) -> Any:
    pooling = ag.MergeConfidence(r)
    plain = ag.TopMass(pooling, np.linspace(1, temperature, LOOKS), times)
    if kind == "shaped":
        return ag.ShapedRisk.per_time(plain, times, 0.7)
    if kind == "learned":
        return ag.LearnedRisk(plain, size, weights, -1.0, np.log(times), times)
    return plain


def numbers_of(rng: np.random.Generator, shape: tuple[int, ...], top: int) -> NDArray[Any]:
    """Counts from 0 to top. Some rows have few values, so that classes tie, and some are all 0."""
    counts = rng.integers(0, top + 1, shape)
    counts[::3] = rng.choice([0, 1, top], counts[::3].shape)
    counts[5] = 0
    return counts


@pytest.mark.filterwarnings("ignore::agreestop.CalibrationWarning")
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(["plain", "shaped", "learned"]),
    dtype=st.sampled_from([np.uint8, np.int64, np.float32, np.float64]),
    members=st.integers(1, 5),
    classes=st.integers(2, 9),
    size=st.integers(1, 9),
    steps=st.sampled_from([1, 7, 40, 255]),
    r=st.sampled_from([1.0, -np.inf, -1.0, 0.0, 1e-9, 3.0, np.inf]),
    temperature=st.sampled_from([1e-3, 0.3, 1.0, 30.0]),
    scale=st.sampled_from([1.0, 0.37, 1e5]),
    beside=st.sampled_from([-1, 0, 1]),
    seed=st.integers(0, 2**20),
)
def test_it_passes_on_what_the_rule_stops_and_no_clear_other_one(
    kind: str,
    dtype: Any,
    members: int,
    classes: int,
    size: int,
    steps: int,
    r: float,
    temperature: float,
    scale: float,
    beside: int,
    seed: int,
) -> None:
    rng, size, times = np.random.default_rng(seed), min(size, classes), tuple(range(256, 261))
    logits = np.issubdtype(dtype, np.floating)
    given_numbers = numbers_of(rng, (ROWS, LOOKS, members, classes), steps).astype(dtype)
    if logits:
        kind = kind.replace("learned", "plain")  # it has no prefilter on logits
        given_numbers = given_numbers * dtype(scale) - dtype(steps)
    scores = ag.log_confidence(given_numbers)
    risk = risk_of(kind, times, size, r, temperature, rng.normal(size=9))
    rule = ag.AgreeStop(0.5, times, size, risk=risk)
    known = rule.calibrate(scores, rng.integers(classes, size=ROWS), times)
    risks = reading_of(rule, scores).risk
    threshold = float(rng.choice(risks[:, 1:-1].ravel()))  # that of one of them, or just beside it
    threshold = float(np.nextafter(threshold, beside * np.inf)) if beside else threshold
    calibrated = at_threshold(known, threshold)
    prefilter = prefilter_for(calibrated, "logits" if logits else "spikes")
    assert prefilter is not None
    flags = prefilter.may_stop(given_numbers, np.arange(LOOKS))
    begun = calibrated.start(ROWS, 0)
    steps_of_rule = (calibrated.step(at, scores[:, at], begun).stop for at in range(LOOKS))
    stops = np.stack(list(steps_of_rule), axis=1)
    assert flags[stops].all() and flags[:, [0, -1]].all()
    vanish = r == 1 and (steps > 40 or (logits and scale > 1))  # such means go to the rule
    if kind != "learned" and not vanish:
        clear = risks > threshold + 1e-3 * (1 + abs(threshold))
        assert not flags[:, 1:-1][clear[:, 1:-1]].any()
    assert all(
        prefilter.may_stop_at(given_numbers[row, 2], 2) for row in np.flatnonzero(stops[:, 2])
    )
