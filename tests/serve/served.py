"""What the tests serve: a small ensemble, its rule and its inputs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import agreestop as ag
from agreestop.ensembles import DeepEnsemble
from agreestop.networks import FullyConnected

SHAPE, CLASSES, STEPS = (2, 4, 4), 4, 24
INPUTS = 32


def some_inputs(n: int, seed: int = 0) -> tuple[Any, Any]:
    """Events whose rates depend weakly on the class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=n)
    rates = np.full((n, 4, 4), 0.1)
    rates[np.arange(n), labels] = 0.5
    return rng.random((n, STEPS, *SHAPE)) < rates[:, None, None], labels


def steps_of(frames: Any) -> list[Any]:
    return [np.flatnonzero(frame) for frame in frames]


class Served:
    """What the tests serve: an ensemble, its rule, and what a live session decides on the
    inputs.
    """

    def __init__(self) -> None:
        x, y = some_inputs(120)
        self.ensemble = DeepEnsemble(
            FullyConnected(SHAPE, CLASSES, hidden=(24,)), members=3, engine="event-driven"
        )
        self.ensemble.fit(x, y, epochs=8, progress=False)
        x, y = some_inputs(80, 1)
        self.rule = ag.AgreeStop(0.8, range(1, STEPS + 1), 1, delta=0.2).calibrate(
            self.ensemble.score(x, y)
        )
        self.inputs, self.labels = some_inputs(20, 2)
        self.expected = [self.decide(steps_of(frames)) for frames in self.inputs]

    def decide(self, steps: list[Any], number: int = 0) -> ag.Decision:
        live = self.ensemble.live(self.rule, number=number)
        return next(decision for step in steps if (decision := live.push(step)) is not None)


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until something is so; a test fails if it is not after a long time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
