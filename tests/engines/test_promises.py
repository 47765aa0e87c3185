"""Rules with a gate, groups, and the promise by stopping time decide on engines and live as they do
on scores.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="engines run trained networks, which need PyTorch")

import agreestop as ag
from agreestop.engines import LiveSession, RunOptions, decide_early, score
from agreestop.engines.prefilter import prefilter_for
from tests.engines.test_early_stopping import ENGINES, STEPS, network, some_inputs

EVERY = tuple(range(1, STEPS + 1))
KNOWN, NEW = 120, 25


def gate(risk: Any) -> ag.Gate:
    return ag.Gate(risk, np.linspace(-0.8, -1.6, STEPS), EVERY, None, 0.3, (8, 16, STEPS))


def promises() -> dict[str, tuple[Any, Any]]:
    """A rule, and the groups of the known and of the new inputs."""
    sides = np.stack([np.arange(KNOWN) % 2 == 0, np.arange(KNOWN) % 3 == 0], axis=1)
    names = (
        np.array(["left", "right"])[np.arange(KNOWN) % 2],
        np.array(["right", "left", "above"])[np.arange(NEW) % 3],
    )
    pooled = ag.MergeConfidence()
    return {
        "gate": (ag.AgreeStop(0.7, EVERY, 1, gate=gate(ag.TopMass())), (None, None)),
        "gate, stop-aware": (
            ag.SpikeCP(0.7, EVERY, 1, pooled, "stop-aware", gate=gate(ag.TopMass())),
            (None, None),
        ),
        "groups": (ag.AgreeStop(0.7, EVERY, 1), names),
        "groups that overlap": (ag.AgreeStop(0.7, EVERY, 1), (sides, sides[3 : NEW + 3])),
        "groups and gate": (ag.AgreeStop(0.7, EVERY, 1, gate=gate(ag.TopMass())), names),
        "accumulated": (ag.AgreeStop(0.6, EVERY, 1, accumulated=True, delta=0.4), (None, None)),
    }


@pytest.mark.filterwarnings("ignore::agreestop.CalibrationWarning")
@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("name", promises())
def test_engines_and_live_inputs_are_decided_as_scores(kind: str, name: str) -> None:
    engine = ENGINES[kind](network("fully-connected"))
    rule, (known_groups, groups) = promises()[name]
    (known, _), (inputs, _) = some_inputs(KNOWN), some_inputs(NEW, 2)
    values = score(engine, known).log_confidence
    # the network is not trained, and guesses labels at random
    likely = values[:, -1].mean(axis=1).argmax(axis=1)
    calibrated = rule.calibrate(values, likely, EVERY, groups=known_groups)
    assert (prefilter_for(calibrated) is None) == ("stop-aware" in name)
    expected = calibrated.decide(score(engine, inputs), groups=groups)
    assert len(np.unique(expected.stop_index)) > 2 and (expected.stop_index < STEPS - 1).sum() > 3
    for chunk in (1, 7, None):
        run = decide_early(
            engine, calibrated, inputs, RunOptions(batch_size=10, chunk=chunk, groups=groups)
        ).decisions
        for part in ("stop_index", "sets", "best", "block", "groups", "first_risk"):
            np.testing.assert_equal(getattr(run, part), getattr(expected, part), err_msg=part)
        assert [note for note in run.notes if "group" in note] == [
            note for note in expected.notes if "group" in note
        ]
    for row, frames in enumerate(inputs):
        session = LiveSession(engine, calibrated, group=None if groups is None else groups[row])
        decisions = [session.push(frame=frame) for frame in frames[: int(expected.stop_time[row])]]
        found = decisions[-1]
        assert found == expected[row] and not any(decisions[:-1])
        assert found is not None and (found.first_risk, found.block) == (
            expected[row].first_risk,
            expected[row].block,
        )
