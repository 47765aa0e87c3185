"""Figures of the logs of drift monitors and adaptive rules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="figures need matplotlib")

import agreestop as ag
from agreestop.report.drift import drift_panels
from agreestop.report.figures import save_panels


def test_the_logs_are_drawn(tmp_path: Path) -> None:
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
    (evidence,) = drift_panels(monitor)
    lines = evidence.figure().axes[0].get_lines()
    assert len(lines) == 5  # two curves, two alarms, and the level of an alarm
    np.testing.assert_array_equal(np.asarray(lines[0].get_ydata()), monitor.misses.log.values[:, 0])
    assert repr(monitor) in evidence.words
    threshold, misses = drift_panels(adaptive)
    np.testing.assert_array_equal(np.asarray(threshold.figure().axes[0].get_lines()[0].get_ydata()), adaptive.log.values[:, 0])
    assert np.asarray(misses.figure().axes[0].get_lines()[0].get_ydata())[-1] == pytest.approx(0.1, abs=0.03)
    for name, panels in (("monitor", [evidence]), ("adaptive", [threshold, misses])):
        paths = save_panels(panels, tmp_path, "Drift", name)
        assert all(path.stat().st_size > 1000 for path in paths)


def test_an_empty_log_is_drawn() -> None:
    calibrated = ag.AgreeStop(0.9, (1, 2, 3), 1).calibrate(*_scores(np.random.default_rng(0), 100, 1.0))
    for watched in (ag.DriftMonitor(calibrated), ag.AdaptiveRule(calibrated)):
        for panel in drift_panels(watched):
            assert panel.figure().axes


def _scores(rng: np.random.Generator, n: int, quality: float) -> tuple[np.ndarray, np.ndarray]:
    labels = rng.integers(3, size=n)
    logits = rng.normal(size=(n, 3, 2, 3))
    logits[np.arange(n), :, :, labels] += quality
    return ag.log_confidence(logits), labels
