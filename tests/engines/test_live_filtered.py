"""A live step with the prefilter inside the compiled call: spikes and decisions are those of the
network and the rule by themselves.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="engines run trained networks, which need PyTorch")
pytest.importorskip("numba", reason="the event-driven engine needs numba")

import agreestop as ag
from agreestop.engines import EventDriven, LiveSession, score
from agreestop.networks import Architecture, Convolutional, FullyConnected, Neuron, SpikingNetwork
from tests.engines.test_early_stopping import CLASSES, some_inputs

NETWORKS: dict[str, Architecture] = {
    "fully-connected": FullyConnected((2, 4, 4), CLASSES, 3, (12,), Neuron(threshold=0.3)),
    "one member": FullyConnected((2, 4, 4), CLASSES, 1, (12, 7), Neuron(threshold=0.3)),
    "numbers": FullyConnected((2, 4, 4), CLASSES, 3, (12,), Neuron(threshold=0.3), real_input=True),
    "convolutional": Convolutional((2, 4, 4), CLASSES, 2, (5,), (8,), real_input=False),
}
TREE = ag.Tree({"low": ("0", "1"), "high": ("2", "3")})


def random_rule(kind: str, seed: int, scores: list[ag.Scores]) -> Any:
    """A calibrated rule of this kind with settings drawn from the seed."""
    rng = np.random.default_rng(seed)
    fit, more, known = scores
    every = tuple(np.flatnonzero(rng.random(24) < rng.choice([0.3, 1.0])).tolist())
    checkpoints: Any = tuple(sorted({1 + at for at in every} | {24}))
    size, options, groups = int(rng.integers(1, 4)), dict[str, Any](), None
    target = float(rng.uniform(0.3, 0.9))
    pooling = ag.MergeConfidence(float(rng.choice([-np.inf, -1, 0, 0.5, 1, 2, np.inf])))
    if kind == "top mass":
        options["risk"] = (
            ag.TopMass.fit(fit, pooling=pooling) if rng.random() < 0.7 else ag.TopMass()
        )
    elif kind == "shaped":
        options["risk"] = ag.ShapedRisk.per_time(ag.TopMass(), checkpoints, float(rng.normal()))
    elif kind == "learned":
        pytest.importorskip("sklearn", reason="a learned risk is fitted with scikit-learn")
        options["risk"] = ag.LearnedRisk.fit(fit, max_set_size=size)
    elif kind == "gate":
        options["gate"] = ag.Gate.fit(
            more, target=target, max_set_size=size, blocks=int(rng.integers(2, 5))
        )
    elif kind == "groups":
        groups = np.arange(50) % 2
    elif kind == "tree":
        size, options["tree"] = 1, TREE
    elif kind == "schedule":
        checkpoints = ag.Schedule(
            [*((time, 1) for time in range(2, 20)), (20, 2), (20, 3), (24, 3)]
        )
    elif kind == "gives up":
        options["at_end"] = "abstain"
    elif kind == "other":
        return ag.SpikeCP(0.8, checkpoints, size, ag.MergeConfidence(1), "stop-aware").calibrate(
            known
        )
    return ag.AgreeStop(target, checkpoints, size, **options).calibrate(known, groups=groups)


KINDS = ("top mass", "shaped", "learned", "gate", "groups", "tree", "schedule", "gives up", "other")


@pytest.mark.filterwarnings("ignore::agreestop.CalibrationWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_live_decisions_are_those_of_the_network_and_then_the_rule(name: str, kind: str) -> None:
    config = NETWORKS[name]
    if kind == "schedule" and config.members < 3:
        pytest.skip("no members could join")
    made = SpikingNetwork(config, torch.Generator().manual_seed(3), deviation=0.5).eval()
    engine = EventDriven(made, "int8" if kind == "gives up" else "float32")
    scores = [
        score(engine, *some_inputs(50, part), classes=("0", "1", "2", "3")) for part in range(3)
    ]
    stopped = set()
    for seed in range(6):
        calibrated = random_rule(kind, seed, scores)
        group = seed % 2 if kind == "groups" else None
        for number, frames in enumerate(some_inputs(4, 10 + seed)[0]):
            frames = frames.copy()
            frames[number : 2 * number] = False  # pauses
            last = 24 if number < 3 else int(np.random.default_rng(seed).integers(1, 24))
            live, stream, session = (
                engine.live(),
                calibrated.stream(number, group=group),
                LiveSession(engine, calibrated, number, group),
            )
            decision: Any = None

            def judge() -> ag.Decision | None:
                joined = (
                    calibrated.checkpoints.members[stream.index]  # noqa: B023
                    if kind == "schedule"
                    else config.members
                )
                return stream.push(ag.log_confidence(counts[:joined]))  # noqa: B023

            for time, frame in enumerate(frames[:last], start=1):
                events = np.flatnonzero(frame)
                given = (
                    lambda: session.push(events),  # noqa: B023
                    lambda: session.push(frame=frame),  # noqa: B023
                    lambda: session.push(events.tolist()),  # noqa: B023
                )
                counts = live.push(events).copy()
                found: Any = given[time % 3]()
                while stream.decision is None and calibrated.checkpoints[stream.index] == time:
                    decision = judge()
                assert (found, session.time) == (decision, time)
                if decision is not None:
                    break
            if decision is None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = session.end()
                while stream.decision is None:
                    decision = judge()
            stopped.add(decision.time)
            assert (
                found == decision
                and found.first_risk == decision.first_risk == session.first_risk
                and found.block == decision.block
            )
    assert len(stopped) > 1 or name == "convolutional"  # its risks differ by less than rounding
