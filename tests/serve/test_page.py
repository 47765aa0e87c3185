"""The server's page in a browser: it shows sessions, throughput, latency, coverage and alarms as they change, and asks nobody else."""

from __future__ import annotations

from typing import Any

import pytest

for _name in ("torch", "numba", "starlette", "uvicorn", "websockets"):
    pytest.importorskip(_name, reason=f"the server needs {_name}: install agreestop[serve]")

from agreestop.serve import Client, Server
from tests.export.test_page import browser, wait_for  # noqa: F401

from .served import Served, steps_of


def test_the_page_shows_what_happens(served: Served, browser: Any) -> None:  # noqa: F811
    with Server(served.rule, served.ensemble, port=0, token="s3cret").background() as url, Client(url, token="s3cret") as client:
        address = url.replace("ws:", "http:")
        tab = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark").new_page()
        said: list[str] = []
        asked: list[str] = []
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(address + "/?token=s3cret")
        wait_for(tab, "#sessions", "^0")
        assert served.rule.guarantee in tab.inner_text("#promise")
        assert "no label yet" in tab.inner_text("#coverage") and tab.inner_text("#alarms").startswith("No alarm.")
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
        alarms: tuple[str, ...] = ()
        while not alarms:  # every other answer misses
            session = client.open()
            decision = session.push_steps(steps_of(served.inputs[0]))
            assert decision is not None
            alarms = session.label((decision.classes[0] + 1) % 4)
        assert "miss more often than promised" in wait_for(tab, "#alarms", "^Alarm: ")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        kept.close()
        wait_for(tab, "#sessions", "^0")
        assert tab.inner_text("#state") == "serving" and tab.locator("svg polyline").count() == 3
        assert said == [] and set(asked) <= {address + "/?token=s3cret", address + "/status?token=s3cret", "data:,"}
        tab.route("**/status*", lambda route: route.abort())
        assert "these numbers are old" in wait_for(tab, "#state", "^no answer")
        tab.context.close()
