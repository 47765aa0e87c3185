"""The report in a browser: contents beside the text or above it, and tables that fit a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="the report needs matplotlib")

from agreestop.report import Report
from agreestop.report.page import render_page, with_code
from tests.export.test_page import browser  # noqa: F401, a fixture

from .test_page import report  # noqa: F401, a fixture

PLACES = """() => Object.fromEntries([".contents", "main", ".rules"].map((name) => {
    const {x, y, right, bottom} = document.querySelector(name).getBoundingClientRect();
    return [name, {x, y, right, bottom}];
}))"""
CUT_OFF = """() => [...document.querySelectorAll(".tile .big, .rules td, .rules th")]
    .filter((one) => one.clientWidth && one.scrollWidth > one.clientWidth + 1)
    .map((one) => one.textContent)"""
UNREACHABLE = """() => [...document.querySelectorAll(".scroll")]
    .filter((one) => one.tabIndex < 0 || !one.ariaLabel).length"""


@pytest.mark.parametrize("width", [390, 1280])
def test_contents_and_tables_fit_the_window(
    report: Report,  # noqa: F811
    browser: Any,  # noqa: F811
    tmp_path: Path,
    width: int,
) -> None:
    (tmp_path / "report.html").write_text(render_page(report), encoding="utf-8")
    tab = browser.new_context(viewport={"width": width, "height": 900}).new_page()
    tab.goto((tmp_path / "report.html").as_uri())
    places = tab.evaluate(PLACES)
    contents, text = places[".contents"], places["main"]
    assert contents["right"] <= text["x"] if width > 1000 else contents["bottom"] <= text["y"]
    assert tab.locator(".contents a").count() > 4
    assert places[".rules"]["right"] <= width
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate(CUT_OFF) == [] and tab.evaluate(UNREACHABLE) == 0
    tab.context.close()


def test_options_in_advice_are_code_and_nothing_else_is() -> None:
    assert "take <code>at_end=&#34;abstain&#34;</code>:" in with_code('take at_end="abstain":')
    written = with_code("Less than 90 % <b>: give delta=0.1 or groups= to calibrate.")
    assert written == (
        "Less than 90\N{NO-BREAK SPACE}% &lt;b&gt;: give <code>delta=0.1</code> or "
        "<code>groups=</code> to calibrate."
    )
