"""Members of every kind behind the server: those that read numbers, adapted networks, members drawn
for every input, failing ones.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

for _name in ("torch", "numba", "starlette", "uvicorn", "websockets"):
    pytest.importorskip(_name, reason=f"the server needs {_name}: install agreestop[serve]")

import torch

import agreestop as ag
from agreestop.serve import AsyncClient, Client, Server

from .served import SHAPE, STEPS, Served, some_inputs, steps_of

EVERY = range(1, STEPS + 1)


def first_decision(session: Any, steps: list[Any], name: str = "frame") -> ag.Decision:
    """Push step after step, of a live session or of a client."""
    return next(
        decision for step in steps if (decision := session.push(**{name: step})) is not None
    )


class Summing(torch.nn.Module):
    """Logits that grow with the inputs seen so far. A number above 100 is too much for it."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(
            torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))
        )

    def forward(self, x_t: torch.Tensor, state: Any) -> Any:
        if bool((x_t > 100).any()):
            raise RuntimeError("too much")
        state = x_t @ self.weight + (0 if state is None else state)
        return state, state


@pytest.fixture(scope="module")
def numbers() -> tuple[Any, Any]:
    """An engine of modules that read numbers, and its rule."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((90, STEPS, 8)).astype(np.float32)
    engine = ag.adapters.from_module([Summing(0), Summing(1)], input_shape=8)
    truth = engine.score(x).log_confidence[:, -1].mean(axis=1).argmax(axis=1)
    return engine, ag.AgreeStop(0.8, EVERY, 1, delta=0.2).calibrate(
        engine.score(x[:60], truth[:60])
    )


def test_frames_of_numbers_are_decided_as_in_a_live_session(numbers: tuple[Any, Any]) -> None:
    engine, rule = numbers
    inputs = np.random.default_rng(1).standard_normal((6, STEPS, 8)).astype(np.float32)
    expected = [first_decision(engine.live(rule, number=0), list(frames)) for frames in inputs]
    assert len({decision.time for decision in expected}) > 1

    async def packed(url: str) -> list[ag.Decision | None]:
        async with AsyncClient(url) as client:
            sessions = [await client.open() for _ in inputs]
            await asyncio.gather(
                *(
                    one.push_steps(frames=frames[:2])
                    for one, frames in zip(sessions, inputs, strict=True)
                )
            )
            left = [
                (one, frames[2:])
                for one, frames in zip(sessions, inputs, strict=True)
                if one.decision is None
            ]
            await asyncio.gather(*(one.push_steps(frames=frames) for one, frames in left))
            return [one.decision for one in sessions]

    with Server(rule, engine, port=0).background() as url, Client(url) as client:
        assert (client.about["shape"], client.about["inputs"]) == ([8], 8)
        assert [first_decision(client.open(), list(frames)) for frames in inputs] == expected
        assert asyncio.run(packed(url)) == expected
        short = client.open()
        short.push(frame=inputs[0, 0])
        live = engine.live(rule, number=0)
        live.push(frame=inputs[0, 0])
        assert short.end() == live.last_decision()


def test_a_step_that_the_members_cannot_read_costs_its_session_alone(
    numbers: tuple[Any, Any],
) -> None:
    engine, rule = numbers
    inputs = np.random.default_rng(1).standard_normal((STEPS, 8)).astype(np.float32)
    with Server(rule, engine, port=0).background() as url, Client(url) as client:
        good = client.open()
        for frame, sentence in (
            (np.zeros(7), "shape"),
            (np.full(8, 1e5), "module 0 failed.*too much"),
        ):
            with pytest.raises(ag.InputError, match=sentence):
                client.open().push(frame=frame)
        here: list[tuple[Any, str]] = [
            (np.full(8, np.nan), "not finite"),
            (np.full(8, 1e300), "not finite"),
            (["a"] * 8, "no lists of"),
        ]
        for frame, sentence in here:
            session = client.open()
            with pytest.raises(
                ag.InputError, match=sentence
            ):  # the client says so before it sends anything
                session.push(frame=frame)
            assert session.push(frame=np.zeros(8)) is None or session.decision is not None
        with pytest.raises(ag.InputError, match=r"push\(frame=array\)"):
            client.open().push(np.zeros(8))
        mixed = client.open()
        if mixed.push(frame=np.zeros(8)) is None:
            with pytest.raises(ag.InputError, match="got frames and events"):
                mixed.push([1])
        for given in ({}, {"step": [1], "frame": np.zeros(8)}):
            with pytest.raises(ag.InputError, match="one of indices, frame and log_confidence"):
                client.open().push(**given)  # type: ignore[arg-type]
        with pytest.raises(ag.InputError, match="one of steps and frames"):
            client.open().push_steps()
        assert first_decision(good, list(inputs)) == first_decision(
            engine.live(rule, number=0), list(inputs)
        )


def test_graphs_of_nir_read_events_and_counts(served: Served) -> None:
    pytest.importorskip("nir", reason="agreestop[nir] is not installed")
    from tests.adapters import nir_reference as graphs
    from tests.adapters.test_nir import linear

    rng = np.random.default_rng(0)
    layers = [(linear(rng, 32, 4), graphs.neurons("LIF", (4,), rng)) for _ in range(2)]
    engine = ag.adapters.from_nir([graphs.chain(*one) for one in layers], dt=1e-3)
    # counts of events
    x = some_inputs(60, 3)[0].reshape(60, STEPS, 32) * rng.integers(1, 4, (60, STEPS, 32))
    rule = ag.AgreeStop(0.8, EVERY, 1, delta=0.2).calibrate(engine.score(x[:50]), labels="final")
    with Server(rule, engine, port=0).background() as url, Client(url) as client:
        for frames in x[50:53]:
            assert first_decision(client.open(), list(frames)) == first_decision(
                engine.live(rule, number=0), list(frames)
            )
            events = steps_of(frames)
            assert client.open().push_steps(events) == first_decision(
                engine.live(rule, number=0), events, "events"
            )


def test_members_that_are_drawn_for_every_input(served: Served) -> None:
    x, y = some_inputs(60)
    network = ag.networks.FullyConnected(SHAPE, 4, hidden=(8,))
    ensemble = ag.ensembles.VariationalEnsemble(network, members=2, fresh=True, seed=1).fit(
        ~x, y, epochs=1, progress=False
    )
    rule = ag.AgreeStop(0.8, EVERY, 1, delta=0.2).calibrate(ensemble.score(x, y))
    with Server(rule, ensemble, port=0).background() as url, Client(url) as client:
        for number, frames in enumerate(served.inputs[:3]):
            session = client.open()
            assert session.number == number
            assert session.push_steps(steps_of(frames)) == first_decision(
                ensemble.live(rule, number=number), steps_of(frames), "events"
            )
    assert ensemble.engine.name == "dense-fresh"


def test_other_members_than_those_of_the_rule_are_not_served_unless_allowed(served: Served) -> None:
    rule = replace(served.rule, ensemble_digest="0" * 64)
    with pytest.raises(ag.InputError, match="scores of the ensemble 000000000000"):
        Server(rule, served.ensemble, port=0)
    with Server(rule, served.ensemble, port=0, any_members=True).background() as url:
        assert url.startswith("ws:")


def test_modules_whose_inputs_are_not_known_are_not_served(numbers: tuple[Any, Any]) -> None:
    with pytest.raises(ag.InputError, match="call score once, then serve"):
        Server(numbers[1], ag.adapters.from_module([Summing(0), Summing(1)]), port=0)
