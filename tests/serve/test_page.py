"""The server's page in a browser: it shows sessions, throughput, latency, coverage and alarms as
they change, and asks nobody else.
"""

from __future__ import annotations

from typing import Any

import pytest

for _name in ("torch", "numba", "starlette", "uvicorn", "websockets"):
    pytest.importorskip(_name, reason=f"the server needs {_name}: install agreestop[serve]")

import numpy as np

import agreestop as ag
from agreestop.serve import Client, Server, metrics
from tests.export.test_page import browser, wait_for  # noqa: F401

from .served import Served, steps_of


def test_the_page_shows_what_happens(served: Served, browser: Any) -> None:  # noqa: F811
    with (
        Server(served.rule, served.ensemble, port=0, token="s3cret").background() as url,
        Client(url, token="s3cret") as client,
    ):
        address = url.replace("ws:", "http:")
        tab = browser.new_context(
            viewport={"width": 390, "height": 800}, color_scheme="dark"
        ).new_page()
        said: list[str] = []
        asked: list[str] = []
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(address + "/?token=s3cret")
        wait_for(tab, "#sessions", "^0")
        assert served.rule.guarantee in tab.inner_text("#promise")
        assert "no label yet" in tab.inner_text("#coverage") and tab.inner_text(
            "#alarms"
        ).startswith("No alarm.")
        kept = client.open()
        kept.push([1])
        session = client.open()
        session.push_steps(steps_of(served.inputs[0]))
        session.label(served.expected[0].classes[0])
        wait_for(tab, "#sessions", "^1")
        wait_for(tab, "#rate", "at most [1-9]")
        wait_for(tab, "#decisions", "^1")
        wait_for(tab, "#latency", r"^\d+\.\d ms")
        wait_for(tab, "#coverage", r"^100\.0 %[\s\S]*1 label, promised 80\.0 %")
        assert tab.locator("#strip rect.hit").count() == 1 and "holds its label" in tab.inner_text(
            "#newest"
        )
        kept.close()
        wait_for(tab, "#sessions", "^0")
        alarms: tuple[str, ...] = ()
        while not alarms:  # every other answer misses
            session = client.open()
            decision = session.push_steps(steps_of(served.inputs[0]))
            assert decision is not None
            alarms = session.label((decision.classes[0] + 1) % 4)
        said_of_it = wait_for(tab, "#alarms", r"^Alarm, .*\d:\d\d")
        assert (
            "miss more often than promised" in said_of_it
            and "Calibrate the rule again" in said_of_it
        )
        assert (
            tab.locator("#strip rect.miss").count() > 0
            and tab.locator("#coverage-chart polygon").count() == 1
        )
        assert tab.locator("#stopping-chart rect").count() == 20
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        assert tab.inner_text("#state") == "serving" and tab.locator("svg polyline").count() == 4
        assert said == [] and set(asked) <= {
            address + "/?token=s3cret",
            address + "/status?token=s3cret",
            "data:,",
        }
        tab.route("**/status*", lambda route: route.abort())
        assert "these numbers are old" in wait_for(tab, "#state", "^no answer")
        tab.context.close()


def test_the_page_of_a_spotter_shows_detections(browser: Any) -> None:  # noqa: F811
    rng = np.random.default_rng(0)
    spotter = ag.Spotter(0.2, rest=5).calibrate([rng.normal(size=200) for _ in range(30)])
    with Server(spotter=spotter, port=0).background() as url, Client(url) as client:
        tab = browser.new_page()
        said: list[str] = []
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.goto(url.replace("ws:", "http:"))
        session = client.watch()
        assert session.push(1e9) is not None
        wait_for(tab, "#newest", "detection at step 0")
        wait_for(tab, "#decisions", "1 detection, 1 stream opened")
        assert "no drift monitor" in tab.inner_text("#alarms") and not tab.is_visible("#evidence")
        assert said == []
        tab.close()


def test_what_the_page_shows_is_bounded_and_right() -> None:
    found = metrics.Metrics()
    for number in range(60):
        found.answered(
            str(number), ag.Decision(number % 24 + 1, 0, (1,), ("a" * 80,), number=number)
        )
        found.decided(0.001, number % 24 + 1)
    found.answered("interval", ag.Decision(3, 2, (0,), lower=1.25, upper=np.inf))
    found.answered("none", ag.Decision(24, 23, (), answered=False))
    found.labelled("interval", False)
    assert len(found.strip) == 50 and [one["words"] for one in list(found.strip)[-2:]] == [
        "1.25 to inf",
        "no answer",
    ]
    assert (
        len(found.strip[0]["words"]) == 40
        and found.strip[-2]["hit"] is False
        and found.strip[-1]["hit"] is None
    )
    windows = metrics._windows([True] * 150 + [False] * 50)
    assert (
        windows[-1][0] == 0.5
        and windows[0][0] == 1.0
        and all(low <= share <= high for share, low, high in windows)
    )
    assert (
        metrics._windows([]) == []
        and len(metrics._windows([True] * 400)) <= 70
        and len(metrics._windows([True, False])) == 2
    )
