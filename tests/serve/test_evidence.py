"""A server without members: clients send open answers, numbers or risks, and get what a stream
decides.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

for _name in ("torch", "numba", "starlette", "uvicorn", "websockets"):
    pytest.importorskip(_name, reason=f"the server needs {_name}: install agreestop[serve]")

import agreestop as ag
from agreestop.serve import AsyncClient, Client, Server
from agreestop.serve.protocol import read_decision, write, write_decision

from .test_serve import raw, status

STEPS = 12


def some_answers(n: int, seed: int) -> ag.Answers:
    """Questions of different difficulty, with the tokens of each sample."""
    rng = np.random.default_rng(seed)
    samples = [
        rng.choice(["18", "17", "3"], STEPS, p=(q, 0.8 * (1 - q), 0.2 * (1 - q))).tolist()
        for q in rng.uniform(0.5, 1, n)
    ]
    return ag.Answers(samples, ["18"] * n, cost=rng.integers(20, 90, (n, STEPS)).tolist())


def some_numbers(n: int, seed: int) -> ag.Numbers:
    rng = np.random.default_rng(seed)
    truth, scale = rng.normal(size=(n, 1)), np.broadcast_to(1 / np.arange(1, STEPS + 1), (n, STEPS))
    return ag.Numbers(truth + scale * rng.normal(size=(n, STEPS)), scale, truth[:, 0])


def some_risks(n: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    risk = np.exp(-np.cumsum(rng.random((n, STEPS)), axis=1))
    return risk, (rng.random((n, STEPS)) < risk).astype(float)


@contextmanager
def serving(rule: ag.CalibratedRule, **options: Any) -> Iterator[tuple[str, Client]]:
    with Server(rule, port=0, **options).background() as url, Client(url) as client:
        yield url, client


def first(session: Any, values: Any, **each: Any) -> ag.Decision:
    """Push value after value, to a stream or to a client's session."""
    pushes = (
        session.push(value, **{name: some[step] for name, some in each.items()})
        for step, value in enumerate(values)
    )
    return next(decision for decision in pushes if decision is not None)


@pytest.fixture(scope="module")
def answers_rule() -> ag.CalibratedRule:
    return ag.AgreeStop(0.9, range(1, STEPS + 1), 1, delta=0.2).calibrate(
        some_answers(150, 0), "final"
    )


def test_answers_are_decided_as_in_a_stream(answers_rule: ag.CalibratedRule) -> None:
    new = some_answers(8, 1)
    with serving(answers_rule) as (_, client):
        assert (client.about["reads"], client.about["classes"], client.about["inputs"]) == (
            "answers",
            None,
            None,
        )
        for number, samples in enumerate(new.samples):
            expected = first(answers_rule.stream(number), samples, cost=range(STEPS))
            found = first(client.open(), samples, cost=range(STEPS))
            assert (found.names, found.time, found.cost) == (
                expected.names,
                expected.time,
                expected.cost,
            )
            packed = client.open()
            assert (
                packed.push_steps(samples, cost=range(STEPS)) is not None
                and packed.decision is not None
            )
            assert packed.decision.answered


def test_labels_of_answers_are_strings_that_feed_the_monitor(
    answers_rule: ag.CalibratedRule,
) -> None:
    server = Server(answers_rule, port=0)
    with server.background() as url, Client(url) as client:
        for row, samples in enumerate(some_answers(40, 2).samples):
            session = client.open()
            decision = first(session, samples)
            assert decision.names is not None
            session.label(decision.names[0] if row % 2 else "an answer that nobody gave")
            with pytest.raises(ag.InputError, match="give the right answer, a string"):
                session.label(3)
        found = status(url)
        assert (found["labels"], found["processed"], found["coverage"][0]) == (40, 40, 0.5)
        assert server.hub.watch is not None
        assert "misses" in {alarm.kind for alarm in server.hub.watch.monitor.alarms}
        with pytest.raises(ag.InputError, match="waits for a label: it has its label already"):
            session.label("18")


def test_numbers_are_answered_with_intervals() -> None:
    data, new = some_numbers(300, 0), some_numbers(5, 1)
    for options in ({"max_width": 1.0}, {"side": "upper", "limit": 1.0}):
        rule = ag.IntervalStop(0.9, **options).calibrate(data)
        with serving(rule) as (url, client):
            for row in range(5):
                pairs = list(zip(new.centre[row], new.scale[row], strict=True))
                session = client.open()
                found = first(session, pairs)
                assert found == first(rule.stream(), pairs) and found.upper is not None
                assert session.label(float(new.labels[row])) == ()
                assert client.open().push_steps(pairs) == found
            inside = sum(
                rule.decide(new)[row].lower <= new.labels[row] <= rule.decide(new)[row].upper
                for row in range(5)
            )
            assert status(url)["coverage"][0] == pytest.approx(inside / 5)
            assert status(url)["processed"] == 1  # the others wait for the label of the packed one
            short = client.open()
            short.push(pairs[0])
            assert short.end().time <= STEPS


def test_members_that_give_numbers_are_served() -> None:
    from tests.adapters.test_numbers import RunningMean

    rng = np.random.default_rng(0)
    truth = rng.normal(size=200)
    x = (truth[:, None] + rng.normal(size=(200, 30)))[:, :, None].astype(np.float32)
    engine = ag.adapters.from_module([RunningMean(-0.1), RunningMean(0.1)], output="numbers")
    rule = ag.IntervalStop(0.9, max_width=1.5).calibrate(engine.numbers(x[:150], truth[:150]))
    with Server(rule, engine, port=0).background() as url, Client(url) as client:
        assert (client.about["reads"], client.about["label"]) == ("events", "number")
        for frames, true in zip(x[150:155], truth[150:155], strict=True):
            live, session = engine.live(rule), client.open()
            expected = next(
                one for one in (live.push(frame=frame) for frame in frames) if one is not None
            )
            assert session.push_steps(frames=frames) == expected and expected.upper is not None
            assert session.label(float(true)) == ()


def test_risks_are_judged_and_have_no_labels() -> None:
    rule = ag.StopRule(target=0.8, at_end="abstain").calibrate(*some_risks(200, 0))
    with serving(rule) as (_, client):
        for row in some_risks(6, 1)[0]:
            session = client.open()
            assert first(session, row) == first(rule.stream(), row)
            with pytest.raises(ag.InputError, match="has no labels"):
                session.label(1)


def test_a_decision_about_a_tree_names_its_node_at_every_depth() -> None:
    names = ("cat", "dog", "car", "bus")
    scores = ag.simulate_scores(300, steps=STEPS, K=2, C=4, seed=1)
    scores = ag.Scores(scores.log_confidence, scores.labels, scores.times, names)
    tree, named = ag.Tree({"animal": names[:2], "vehicle": names[2:]}), set()
    for depth in (1, "each"):
        rule = ag.AgreeStop(0.8, range(1, STEPS + 1), 1, tree=tree, depth=depth).calibrate(
            scores.rows(slice(200))
        )
        with serving(rule) as (_, client):
            for row in range(200, 210):
                cells = scores.log_confidence[row].astype(np.float64)
                found, expected = (
                    client.open().push(log_confidence=cells),
                    first(rule.stream(), cells),
                )
                assert (
                    found == expected and found is not None and found.by_depth == expected.by_depth
                )
                assert found.names == expected.names and found.names is not None
                named.add(found.names[0])
    assert named & {"animal", "vehicle"} and named & {"cat", "dog", "car", "bus"}


def test_sessions_of_async_clients_are_pushed_side_by_side(answers_rule: ag.CalibratedRule) -> None:
    new = some_answers(6, 3)

    async def one(client: AsyncClient, samples: tuple[str, ...]) -> ag.Decision:
        session = await client.open()
        for text in samples:
            if (decision := await session.push(text)) is not None:
                await session.label("18")
                return decision
        raise AssertionError

    async def every(url: str) -> list[ag.Decision]:
        async with AsyncClient(url) as client:
            return await asyncio.gather(*(one(client, samples) for samples in new.samples))

    with Server(answers_rule, port=0).background() as url:
        found = asyncio.run(every(url))
    assert [one.names for one in found] == [
        first(answers_rule.stream(), samples).names for samples in new.samples
    ]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({"evidence": []}, "evidence is empty"),
    "no list": ({"evidence": "18"}, "as a list"),
    "a number": ({"evidence": [18]}, "an answer must be a string"),
    "an object": ({"evidence": [{}]}, "no regular list"),
    "a boolean": ({"evidence": [True]}, "no regular list"),
    "an empty answer": ({"evidence": [" "]}, "give a text"),
    "a whole text": ({"evidence": ["a" * 1001]}, "1001 characters"),
    "too many": ({"evidence": ["18"] * (STEPS + 1)}, "decides within 12"),
    "costs of others": ({"evidence": ["18"], "cost": [1, 2]}, "cost has 2 numbers for 1"),
    "a cost of words": ({"evidence": ["18"], "cost": ["a"]}, "cost is no list of numbers"),
    "a cost below 0": ({"evidence": ["18"], "cost": [-1]}, "at least 0"),
    "a weight without use": ({"evidence": ["18"], "weight": [0.5]}, "calibrated without weights"),
    "log-confidences": ({"log_confidence": [[-1.0, -1.0]]}, "push answers"),
    "events": ({"events": [1]}, "no members here"),
}


def test_bad_evidence_gets_a_sentence_and_costs_its_session_alone(
    answers_rule: ag.CalibratedRule,
) -> None:
    samples = some_answers(1, 4).samples[0]
    with serving(answers_rule) as (url, other):
        good = other.open()
        for name, (content, sentence) in BAD.items():
            with raw(url) as talk:
                talk.send(write(type="open", session=1))
                talk.recv()
                talk.send(json.dumps({"type": "push", "session": 1, "step": 1, **content}))
                answer = json.loads(talk.recv())
                assert (
                    answer["type"] == "error"
                    and answer["session"] == 1
                    and sentence in answer["error"]
                ), (name, answer)
        short = other.open()
        if short.push("1") is None:
            with pytest.raises(ag.InputError, match="no early end"):
                short.end()
        for given in (18, None, b"18"):
            with pytest.raises(ag.InputError, match=r"push a string|is needed"):
                good.push(given)
        assert first(good, samples).names == first(answers_rule.stream(), samples).names
    with serving(ag.IntervalStop(0.9, max_width=1.0).calibrate(some_numbers(100, 0))) as (
        url,
        other,
    ):
        good = other.open()
        for pair, sentence in (
            ((0.0, 0.0), "above 0"),
            ((1e999, 1), "finite"),
            ((1,), "push a pair"),
            ("18", "pushed"),
            ([1.0], "pair"),
        ):
            with pytest.raises(ag.InputError, match=sentence):
                other.open().push(pair)
        with pytest.raises(ag.InputError, match="belong to open answers"):
            good.push((0.0, 1.0), cost=2.0)
        with raw(url) as talk:
            for session, evidence in enumerate(
                ("[[1e999,1]]", '["18"]', "[3]", "[[[1,2],[3,4]]]", "[[1,2,3]]")
            ):
                talk.send(write(type="open", session=session))
                talk.recv()
                talk.send(f'{{"type":"push","session":{session},"step":1,"evidence":{evidence}}}')
                answer = json.loads(talk.recv())
                assert answer["type"] == "error" and len(answer["error"]) < 300, evidence
        assert good.push((0.0, 0.01)) is not None


def test_intervals_survive_their_message() -> None:
    for lower, upper in ((1.5, 2.5), (-np.inf, 3.0), (2.0, np.inf)):
        decision = ag.Decision(3, 2, (0,), None, 0.5, 2, lower=lower, upper=upper)
        assert read_decision(json.loads(write_decision(7, "key", decision, "promise"))) == decision
