"""An own torch module on recordings that begin with an empty step: live decisions are those of the
batch, and keep the promise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import agreestop as ag
from agreestop.common import Integers

torch = pytest.importorskip("torch", reason="adapters need PyTorch")

TARGET, CLASSES, TIMES = 0.8, 5, (1, 2, 3)
RULES: dict[str, Any] = {
    "agreestop": ag.AgreeStop(TARGET, TIMES, 1),
    "ranks": ag.SpikeCP(TARGET, TIMES, 1, ag.MergeRanks()),
    "bonferroni": ag.SpikeCP(TARGET, TIMES, 1, ag.MergeConfidence()),
    "simultaneous": ag.SpikeCP(TARGET, TIMES, 1, ag.MergeConfidence(), calibration="simultaneous"),
}


class Own(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A recurrent network; its logits after an empty step are the same for all inputs, up to the
    rounding of a batch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = torch.nn.GRUCell(8, 64), torch.nn.Linear(64, CLASSES)


def step(module: Any, x: Any, state: Any) -> tuple[Any, Any]:
    state = module.cell(x, state)
    return module.out(state), state


def record(rng: np.random.Generator, n: int) -> tuple[Any, Integers]:
    """Recordings (n, 3, 8) that begin with an empty step, and labels."""
    inputs = rng.normal(size=(n, len(TIMES), 8)).astype(np.float32)
    inputs[:, 0] = 0
    return inputs, rng.integers(CLASSES, size=n)


def live_coverage(name: str, seed: int, inputs: int) -> float:
    """The share of live answers that hold the label; they must be the answers of the batch."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    engine = ag.adapters.from_module([Own().eval() for _ in range(2)], step=step)
    calibrated = RULES[name].calibrate(engine.score(*record(rng, 200)))
    new, labels = record(rng, inputs)
    batch, held = calibrated.decide(engine.score(new)), 0
    for row, (recording, label) in enumerate(zip(new, labels.tolist(), strict=True)):
        session = engine.live(calibrated)
        decision = None
        for frame in recording:
            decision = session.push(frame=frame)
            if decision is not None:
                break
        assert decision is not None
        assert decision.index == batch.stop_index[row]
        assert list(decision.classes) == np.flatnonzero(batch.sets[row]).tolist()
        held += label in decision.classes
    return held / inputs


@pytest.mark.parametrize("name", ["agreestop", "ranks"])
def test_live_decisions_are_those_of_the_batch(name: str) -> None:
    """One network and 20 inputs; whether the promise holds takes many."""
    assert live_coverage(name, 0, 20) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_every_network_keeps_the_promise_live(name: str) -> None:
    """24 networks: at least 0.8 less 0.03 on average, and none below 0.8 less 0.25, with 60 inputs
    and 200 examples each.
    """
    found = [live_coverage(name, seed, 60) for seed in range(24)]
    assert np.mean(found) >= TARGET - 0.03
    assert min(found) >= TARGET - 0.25
