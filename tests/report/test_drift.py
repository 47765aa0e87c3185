"""Figures of the logs of drift monitors and adaptive rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="figures need matplotlib")

from matplotlib.axes import Axes
from matplotlib.figure import Figure

import agreestop as ag
from tests.decide.strategies import Alarm


def drawn(watched: Any, **options: Any) -> Axes:
    axes = Figure().subplots()
    assert ag.plot.drift(watched, axes, **options) is axes
    return axes


def test_the_logs_are_drawn() -> None:
    rng = np.random.default_rng(0)
    calibrated = ag.AgreeStop(0.9, (1, 2, 3), 1, delta=0.1).calibrate(*_scores(rng, 300, 1.5))
    monitor, adaptive = ag.DriftMonitor(calibrated), ag.AdaptiveRule(calibrated)
    for quality in (1.5, 0.2):
        values, labels = _scores(rng, 1500, quality)
        for decision, label in zip(calibrated.decide(values), labels.tolist(), strict=True):
            monitor.update(decision, label)
        for begin in range(0, 1500, 20):
            adaptive.update(adaptive.decide(values[begin : begin + 20]), labels[begin : begin + 20])
    assert len(monitor.alarms) == 2
    evidence = drawn(monitor)
    lines = evidence.get_lines()
    assert len(lines) == 5  # two curves, two alarms, and the level of an alarm
    np.testing.assert_array_equal(np.asarray(lines[0].get_ydata()), monitor.misses.log.values[:, 0])
    assert [text.get_text().strip() for text in evidence.texts] == [
        f"after {alarm.number:,}" for alarm in _sorted(monitor.alarms)
    ]
    legend = evidence.get_legend()
    assert legend is not None and [text.get_text() for text in legend.get_texts()] == [
        "from labels",
        "without labels",
        "alarm at 20",
    ]
    np.testing.assert_array_equal(
        np.asarray(drawn(adaptive).get_lines()[0].get_ydata()), adaptive.log.values[:, 0]
    )
    misses = drawn(adaptive, misses=True)
    assert np.asarray(misses.get_lines()[0].get_ydata())[-1] == pytest.approx(0.1, abs=0.03)
    assert misses.get_ylabel() == "share of misses so far" and misses.get_legend() is not None


def test_a_saved_log_is_drawn_as_it_was(tmp_path: Path) -> None:
    values, labels = _scores(np.random.default_rng(0), 300, 1.5)
    calibrated = ag.AgreeStop(0.9, (1, 2, 3), 1).calibrate(values[:200], labels[:200])
    monitor = ag.DriftMonitor(calibrated)
    monitor.update(calibrated.decide(values[200:]), labels[200:])
    monitor.save(tmp_path / "monitor")
    one, other = (
        drawn(watched).get_lines()[0].get_ydata()
        for watched in (monitor, ag.DriftMonitor.load(tmp_path / "monitor"))
    )
    np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    assert len(np.asarray(one)) == 100


def test_an_empty_log_is_drawn_and_other_things_are_refused() -> None:
    calibrated = ag.AgreeStop(0.9, (1, 2, 3), 1).calibrate(
        *_scores(np.random.default_rng(0), 100, 1.0)
    )
    assert (
        drawn(ag.DriftMonitor(calibrated)).get_lines()
        and drawn(ag.AdaptiveRule(calibrated)).get_lines()
    )
    with pytest.raises(ag.InputError, match="drift got a CalibratedRule"):
        ag.plot.drift(calibrated)  # type: ignore[arg-type]


def _sorted(alarms: tuple[Alarm, ...]) -> list[Alarm]:
    """Misses first, as they are drawn."""
    return sorted(alarms, key=lambda alarm: alarm.kind, reverse=True)


def _scores(rng: np.random.Generator, n: int, quality: float) -> tuple[np.ndarray, np.ndarray]:
    labels = rng.integers(3, size=n)
    logits = rng.normal(size=(n, 3, 2, 3))
    logits[np.arange(n), :, :, labels] += quality
    return ag.log_confidence(logits), labels
