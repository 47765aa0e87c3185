"""The measurement of every rule on one ensemble's scores."""

import numpy as np
import pytest

import agreestop as ag
from agreestop.common import no_progress
from agreestop.pipeline import measure
from agreestop.report import MeasurementSettings
from agreestop.report.contents import GATED
from tests.decide.strategies import simulate_spikes


def simulated(n: int, seed: int) -> ag.Scores:
    spikes, labels = simulate_spikes(n, 6, 3, C=4, seed=seed)
    return ag.Scores(
        ag.log_confidence(np.cumsum(spikes, axis=1, dtype=np.int32)), labels, tuple(range(1, 7))
    )


def test_processes_give_the_records_of_one_process_in_the_same_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "SMALL_WORK", 0)
    rules = measure._rules
    few = ("confidence merging", "rank pooling", "fixed time, every step")
    monkeypatch.setattr(
        measure,
        "_rules",
        lambda *of: {label: rule for label, rule in rules(*of).items() if label in few},
    )
    settings = MeasurementSettings((0.8, 0.6), (1, 3), (2, 4, 6), 2, 20, 3, 0)
    one, two = (
        measure.measure_rules(
            "deep", simulated(40, 1), simulated(90, 2), settings, no_progress, None, workers
        )
        for workers in (1, 2)
    )
    assert one.records == two.records and one.rules.keys() == two.rules.keys()
    cases = [(0.8, 3), (0.6, 3), (0.8, 1)]
    assert [(record.target, record.K, record.label) for record in one.records] == [
        *((*case, label) for case in cases for label in few),
        (0.8, 3, GATED),
    ]
    assert float(one.rules["rank pooling"].target) == 0.8  # type: ignore[attr-defined]
