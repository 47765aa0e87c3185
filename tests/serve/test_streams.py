"""Streams without an end behind the server: what their own sessions find, a state that does not
grow, and what is refused.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

for _name in ("torch", "numba", "starlette", "uvicorn", "websockets"):
    pytest.importorskip(_name, reason=f"the server needs {_name}: install agreestop[serve]")

import agreestop as ag
from agreestop.engines import Push, Reading
from agreestop.serve import AsyncClient, Client, Limits, Server
from agreestop.serve.protocol import LARGEST, step_after, write
from agreestop.serve.streams import Streams
from tests.cli.test_cli import call
from tests.engines.test_watching import WINDOW, parts, recordings  # noqa: F401

from .served import Served, until
from .test_serve import get, raw, status

OPTIONS: Any = {"window": WINDOW, "event": 0}


@pytest.fixture(scope="module")
def spotter() -> Any:
    rng = np.random.default_rng(0)
    return ag.Spotter(0.2, rest=5).calibrate([rng.normal(size=200) for _ in range(30)])


@pytest.mark.parametrize(
    "wrong",
    [{"spotter": ag.Spotter(0.2)}, {"rule": ag.AgreeStop(0.9, (1, 2), 1)}, {"rule": "digits.rule"}],
)
def test_a_server_needs_what_calibrate_returned(wrong: dict[str, Any]) -> None:
    with pytest.raises(ag.InputError, match=r"is not calibrated|path, digits\.rule"):
        Server(**wrong, port=0)


def some_scores(steps: int = 400) -> list[float]:
    return list(map(float, np.random.default_rng(1).normal(size=steps) * 1.5))


def test_scores_are_spotted_as_in_a_stream(spotter: Any) -> None:
    scores, stream = some_scores(), spotter.stream()
    expected = [stream.push(score) for score in scores]
    alarms = [one for one in expected if one is not None]
    assert len(alarms) > 2

    async def push_all(url: str) -> list[Any]:
        async with AsyncClient(url) as client:
            first, second = await client.watch(), await client.watch()
            pushed = [await first.push(score) for score in scores[:200]]
            assert await second.push_steps(scores) == alarms
            assert await first.close() == ""
            return pushed

    with Server(spotter=spotter, port=0).background() as url, Client(url) as client:
        assert (client.about["reads"], client.about["endless"], client.about["label"]) == (
            "scores",
            True,
            None,
        )
        session = client.watch()
        assert [session.push(score) for score in scores] == expected
        packed = client.watch()
        assert packed.push_steps(scores) == alarms and packed.push_steps([0.0]) == []
        assert asyncio.run(push_all(url)) == expected[:200]
        found = status(url)
        assert (found["detections"], found["endless"], found["alarms"]) == (
            3 * len(alarms) + sum(map(bool, expected[:200])),
            True,
            [],
        )
        assert f"agreestop_detections_total {found['detections']}\n" in get(url, "/metrics")
        with pytest.raises(ag.InputError, match=r"client\.watch"):
            client.open()
        assert packed.close() == ""
        with pytest.raises(ag.InputError, match="the client closed it"):
            packed.push(0.0)


def test_a_score_that_no_float_holds_costs_its_own_stream_alone(spotter: Any) -> None:
    """JSON has numbers of any length."""
    server = Server(spotter=spotter, port=0)
    with server.background() as url, Client(url) as client, raw(url) as talk:
        other = client.watch()
        for text in (
            '{"type":"open","session":1}',
            f'{{"type":"push","session":1,"step":1,"evidence":[1{"0" * 400}]}}',
        ):
            talk.send(text)
            answer = talk.recv()
        assert "give one number for each step" in answer
        assert other.push(0.0) is None


async def push_wrong(url: str, steps: list[Any]) -> list[Any]:
    async with AsyncClient(url) as client:
        session = await client.watch()
        found = await session.push_steps([*steps, [99]])
        with pytest.raises(ag.InputError, match="numbered 0 to 7"):
            await session.push([])
        return found


def test_members_watch_and_decide_as_in_their_own_session(parts: Any, served: Served) -> None:  # noqa: F811
    ensemble, watcher, rule, _, _ = parts
    x = np.concatenate(recordings(np.random.default_rng(5), 3)[0])
    own = ensemble.watch(watcher, rule, **OPTIONS)
    expected = [own.push(frame=frame) for frame in x]
    found = [one for one in expected if one is not None]
    assert {type(one) for one in found} == {ag.Detection, ag.Decision}
    server = Server(
        rule, ensemble, spotter=watcher, port=0, limits=Limits(session_seconds=0.2), **OPTIONS
    )
    with server.background() as url, Client(url) as client:
        assert client.about["shape"] == [8] and rule.guarantee in client.about["promise"]
        session, frames, packed = client.watch(), client.watch(), client.watch()
        steps = [np.flatnonzero(frame) for frame in x]
        assert [session.push(step) for step in steps] == expected
        assert [frames.push(frame=frame) for frame in x[:60]] == expected[:60]
        parts_of = [
            packed.push_steps(steps[first:last]) for first, last in pairwise([0, 30, 200, len(x)])
        ]
        assert [one for part in parts_of for one in part] == found
        first = next(step for step, one in enumerate(expected) if one is not None)
        wrong = client.watch()
        assert wrong.push_steps([*steps, [99]]) == found  # an alarm is told, whatever follows it
        with pytest.raises(ag.InputError, match="numbered 0 to 7"):
            wrong.push([])
        assert asyncio.run(push_wrong(url, steps)) == found
        short = client.watch()
        short.push_steps(steps[: first + 2])
        assert "this detection has no decision" in short.close()
        with pytest.raises(ag.InputError, match="step 1 came where step"):  # a clock that jumps
            session._step = 1
            session.push([])
    other = Server(served.rule, served.ensemble, port=0).background()
    with other as url, Client(url) as client, pytest.raises(ag.InputError, match=r"client\.open"):
        client.watch()


def test_a_rule_that_skips_steps_is_served_with_its_skip(parts: Any) -> None:  # noqa: F811
    ensemble, watcher, rule, _, _ = parts
    skips, options = (
        replace(rule, heard=rule.heard.replace("skip=0", "skip=5")),
        {"skip": 5, **OPTIONS},
    )
    x = np.concatenate(recordings(np.random.default_rng(5), 3)[0])
    own = ensemble.watch(watcher, skips, **options)
    found = [one for frame in x if (one := own.push(frame=frame)) is not None]
    with (
        Server(skips, ensemble, spotter=watcher, port=0, **options).background() as url,
        Client(url) as client,
    ):
        assert client.watch().push_steps(list(map(np.flatnonzero, x))) == found
    assert any(isinstance(one, ag.Decision) for one in found)


def test_the_state_of_a_stream_does_not_grow(spotter: Any, parts: Any) -> None:  # noqa: F811
    """Neither what a stream holds, nor the numbers of its steps."""
    import tracemalloc

    ensemble, watcher, rule, _, _ = parts
    streams = Streams(spotter), Streams(watcher, ensemble.watch(watcher, rule, **OPTIONS))
    steps = np.zeros((200, 8), dtype=bool)
    for one, content in zip(
        streams, ({"evidence": [Reading(0.5)] * 1000}, {"frames": steps}), strict=True
    ):
        row = one.open(0)
        one.push([Push(row, **content)])  # type: ignore[arg-type]
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(20):
                assert one.push([Push(row, **content)]) == [()]  # type: ignore[arg-type]
            assert tracemalloc.get_traced_memory()[0] - before < 10_000
        finally:
            tracemalloc.stop()
        one.close(row)
        assert not one._open
    assert (step_after(7, 3), step_after(LARGEST, 1), step_after(LARGEST - 1, 3)) == (10, 1, 2)


BAD: dict[str, tuple[str, str]] = {
    "a word": ('{"type":"push","session":1,"step":1,"evidence":["a"]}', "push one number"),
    "a list": ('{"type":"push","session":1,"step":1,"evidence":[[1.0]]}', "push one number"),
    "no score": ('{"type":"push","session":1,"step":1,"evidence":[NaN]}', "no JSON"),
    "log-confidences": (
        '{"type":"push","session":1,"step":1,"log_confidence":[[-1.0,-1.0]]}',
        "push one number",
    ),
    "events": ('{"type":"push","session":1,"step":1,"events":[1]}', "push one number"),
    "a step again": ('{"type":"push","session":1,"step":2,"evidence":[1]}', "step 1 is due"),
    "too many": (write(type="push", session=1, step=1, evidence=[0.0] * 1025), "at most 1024"),
    "an end": ('{"type":"end","session":1}', "no end"),
    "a label": ('{"type":"label","decision":"a","label":1}', "has no labels"),
    "a label that is unknown": ('{"type":"label","decision":"a","label":null}', "has no labels"),
    "a group": ('{"type":"open","session":2,"group":"left"}', "has no group"),
}


def test_bad_steps_get_a_sentence_and_cost_their_stream_alone(spotter: Any, parts: Any) -> None:  # noqa: F811
    with Server(spotter=spotter, port=0).background() as url, Client(url) as other:
        good = other.watch()
        for name, (message, sentence) in BAD.items():
            with raw(url) as talk:
                talk.send(write(type="open", session=1))
                talk.recv()
                talk.send(message)
                answer = json.loads(talk.recv())
                assert (
                    answer["type"] == "error"
                    and sentence in answer["error"]
                    and len(answer["error"]) < 300
                ), (name, answer)
        for score in (float("nan"), "a", [1.0]):
            with pytest.raises(ag.InputError, match="a number is needed"):
                good.push(score)
        assert isinstance(good.push(1e9), ag.Detection)
    ensemble, watcher, rule, _, _ = parts
    with (
        Server(rule, ensemble, spotter=watcher, port=0, **OPTIONS).background() as url,
        Client(url) as other,
    ):
        good = other.watch()
        for given, sentence in (
            ({"step": [99]}, "numbered 0 to 7"),
            ({"frame": np.zeros(7)}, "shape"),
        ):
            with pytest.raises(ag.InputError, match=sentence):
                other.watch().push(**given)
        assert good.push([1]) is None
        until(lambda: status(url)["sessions"] == 1)


def test_a_server_of_streams_is_started_with_all_that_it_needs(
    spotter: Any,
    parts: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    ensemble, watcher, rule, _, _ = parts
    with pytest.raises(ag.InputError, match="leave out monitor"):
        Server(spotter=spotter, monitor=tmp_path / "monitor", port=0)
    with pytest.raises(ag.InputError, match="give a rule, or a spotter"):
        Server(port=0)
    with pytest.raises(ag.InputError, match="give a rule, or a spotter"):
        Server(rule, ensemble, window=8, port=0)
    with pytest.raises(ag.InputError, match="window and event are needed"):
        Server(rule, ensemble, spotter=watcher, port=0)
    with pytest.raises(ag.InputError, match="rests for"):
        Server(rule, ensemble, spotter=spotter, port=0, **OPTIONS)
    with pytest.raises(ag.InputError, match="give a rule, or a spotter"):
        Server(rule, ensemble, skip=2, port=0)
    with pytest.raises(ag.InputError, match="skip=2 is given"):
        Server(rule, ensemble, spotter=watcher, port=0, skip=2, **OPTIONS)


def test_the_command_line_names_what_is_missing(
    spotter: Any,
    parts: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    ensemble, watcher, rule, _, _ = parts
    for name, one in (("spotter", watcher), ("rule", rule), ("members", ensemble)):
        one.save(tmp_path / name)
    paths = {name: str(tmp_path / name) for name in ("spotter", "rule", "members")}
    served: list[str] = []

    def run(server: Server) -> None:
        served.append(server.hub.offer.about["reads"])
        server._socket.close()

    monkeypatch.setattr(Server, "run", run)
    assert call(monkeypatch, capsys, "serve", paths["spotter"], "--port", "0").code == 0
    watching = [
        "serve",
        paths["rule"],
        "--members",
        paths["members"],
        "--spotter",
        paths["spotter"],
        "--port",
        "0",
    ]
    assert call(monkeypatch, capsys, *watching, "--window", str(WINDOW), "--event", "0").code == 0
    replace(rule, heard=rule.heard.replace("skip=0", "skip=2")).save(tmp_path / "skips")
    skips = [
        "serve",
        str(tmp_path / "skips"),
        *watching[2:],
        "--window",
        str(WINDOW),
        "--event",
        "0",
        "--skip",
        "2",
    ]
    assert call(monkeypatch, capsys, *skips).code == 0
    assert served == ["scores", "events", "events"]
    replace(watcher, heard="").save(tmp_path / "unknown")
    unknown = [*watching[:5], str(tmp_path / "unknown"), *watching[6:]]
    shown = call(monkeypatch, capsys, *unknown, "--window", str(WINDOW), "--event", "0").out
    assert "not checked" in " ".join(shown.split())
    for command, sentence in (
        (watching, "window and event are needed"),
        (
            [*watching, "--window", str(WINDOW), "--event", "1"],
            f"--window {WINDOW}, --event 1 is given",
        ),
        ([*watching, "--window", str(WINDOW), "--event", "0", "--skip", "2"], "--skip 2 is given"),
        (["serve", paths["spotter"], "--members", paths["members"]], "is a spotter"),
        (["serve", paths["spotter"], "--monitor", str(tmp_path / "m"), "--port", "0"], "leave out"),
    ):
        refused = call(monkeypatch, capsys, *command)
        assert refused.code == 2 and sentence in refused.err, refused.err
