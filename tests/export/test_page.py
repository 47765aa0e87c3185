"""The exported page in a browser: it loads nothing, decides as Python does, takes drawings, and
raises the alarms of Python.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="an export needs trained networks, which need PyTorch")
pytest.importorskip("numba", reason="the event-driven engine needs numba")

import agreestop as ag
from agreestop.common import Booleans, InputError, Integers
from agreestop.ensembles import save_members
from agreestop.export import to_page
from agreestop.networks import Convolutional, FullyConnected, Neuron, SpikingNetwork
from tests.cli.test_cli import call

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
STEPS, CLASSES, SHAPE = 16, 4, (2, 16, 16)
NAMES = ("zero", "one", "</script><b>two", "three & 'more'")
EVERY = range(1, STEPS + 1)
SCHEDULE = ag.Schedule([(2, 1), (3, 1), (3, 2), (6, 2), (9, 3), (16, 3)])
RULES: dict[str, Any] = {
    "every step": ag.AgreeStop(0.8, EVERY, 1),
    "few": ag.AgreeStop(0.9, (4, 8, 12, 16), 1),
    "members that join": ag.AgreeStop(0.85, SCHEDULE, 2, trim=0.5),
    "geometric": ag.AgreeStop(0.82, EVERY, 1, risk=ag.TopMass(ag.MergeConfidence(r=0))),
    "stop-aware": ag.SpikeCP(0.84, EVERY, 2, ag.MergeConfidence(r=1), "stop-aware"),
    "Bonferroni": ag.SpikeCP(0.7, (8, 16), 2, ag.MergeConfidence(r=1)),
    "simultaneous": ag.SpikeCP(0.81, EVERY, 2, ag.MergeConfidence(r=2), "simultaneous"),
    "no promise": ag.DCSNN(0.83, EVERY, 2),
}


def some_inputs(n: int, seed: int = 0) -> tuple[Booleans, Integers]:
    """Events whose rates depend on the class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=n)
    rates = np.full((n, 16, 16), 0.008)
    for row, label in enumerate(labels):
        rates[row, 4 * label : 4 * label + 4] = 0.024
    return rng.random((n, STEPS, *SHAPE)) < rates[:, None, None], labels


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Any:
    x, y = some_inputs(300, 1)
    network = FullyConnected(SHAPE, CLASSES, 3, (24, 12), Neuron(threshold=0.3))
    path = tmp_path_factory.mktemp("members") / "members"
    trained = ag.ensembles.DeepEnsemble(network, members=3, seed=0, device="cpu")
    trained.fit(x, y, epochs=6, batch_size=30, learning_rate=0.01, progress=False).save(path)
    return ag.ensembles.load(path, engine="event-driven")


@pytest.fixture(scope="module")
def rules(ensemble: Any) -> list[ag.CalibratedRule]:
    """In the order of the page: by target."""
    x, y = some_inputs(60, 2)
    scores = ensemble.score(x, y)
    return sorted(
        (rule.calibrate(scores) for rule in RULES.values()),
        key=lambda rule: float(rule.rule.target),
    )


@pytest.fixture(scope="module")
def test_inputs() -> Any:
    x, y = some_inputs(120, 3)
    return ag.events.Events.from_dense(x, y, NAMES)


@pytest.fixture(scope="module")
def written(
    ensemble: Any,
    rules: list[ag.CalibratedRule],
    test_inputs: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    path = tmp_path_factory.mktemp("page") / "demo.html"
    made = to_page(rules, ensemble, path, test_inputs, first=2)
    assert (
        made.inputs == 120
        and made.size == path.stat().st_size < 1_000_000
        and 0 < made.nearest < np.inf
    )
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install 'agreestop[test]'"
    )
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine, which shows the page")
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


def index_of(name: str) -> int:
    """Where a rule stands in the page."""
    return sorted(RULES, key=lambda one: float(RULES[one].target)).index(name)


def choose(tab: Any, name: str) -> None:
    """Move the switch and the slider to a rule."""
    rule, same = (
        RULES[name],
        sorted(
            one.target for one in RULES.values() if one.max_set_size == RULES[name].max_set_size
        ),
    )
    tab.check(f"#sizes input[value='{rule.max_set_size}']")
    tab.focus("#target")
    tab.keyboard.press("Home")
    for _ in range(same.index(rule.target)):
        tab.keyboard.press("ArrowRight")


def open_page(browser: Any, path: Path, address: str = "", **options: Any) -> Any:
    """The page, in a window that notes requests and what the console says. Other than the page
    itself, nothing may be loaded.
    """
    tab = browser.new_context(offline=False, **options).new_page()
    tab.said, tab.asked = [], []
    tab.on("console", lambda message: tab.said.append(message.text))
    tab.on("pageerror", lambda error: tab.said.append(str(error)))
    tab.on("request", lambda request: tab.asked.append(request.url))
    tab.goto(address or path.as_uri())
    return tab


def close_page(tab: Any, path: Path) -> None:
    assert tab.said == [] and [one.split("#")[0] for one in tab.asked] == [path.as_uri()]
    tab.context.close()


@pytest.fixture
def tab(browser: Any, written: Path) -> Iterator[Any]:
    found = open_page(browser, written, reduced_motion="reduce")
    yield found
    close_page(found, written)


def wait_for(tab: Any, selector: str, pattern: str) -> str:
    """The text of an element once it matches. The page's policy forbids `wait_for_function`, which
    evaluates text.
    """
    from playwright.sync_api import expect

    expect(tab.locator(selector)).to_contain_text(re.compile(pattern), timeout=60_000)
    return str(tab.inner_text(selector))


DECIDE = """([rule, n]) =>
    Array.from({length: n}, (_, i) => agreestop.decide(i, agreestop.rules[rule]))"""
COUNTS = """n => agreestop.members.map((layers) => Array.from({length: n}, (_, i) => {
    const member = new agreestop.Member(layers, 4);
    return agreestop.recorded[i].map((events) => {
        member.step(events);
        return [...member.counts];
    });
}))"""


def test_read_out_spikes_are_those_of_python(tab: Any, ensemble: Any, test_inputs: Any) -> None:
    from agreestop.engines import run_to_end

    spikes = np.asarray(run_to_end(ensemble.engine, test_inputs.rows(slice(0, 20)))).astype(
        np.int64
    )  # (n, T, K, C)
    counts = np.array(tab.evaluate(COUNTS, 20)).transpose(1, 2, 0, 3)
    np.testing.assert_array_equal(counts, spikes.cumsum(axis=1))
    assert counts[:, -1].sum() > 100


@pytest.mark.parametrize("index", range(len(RULES)))
def test_decisions_are_those_of_python(
    index: int, tab: Any, ensemble: Any, rules: list[ag.CalibratedRule], test_inputs: Any
) -> None:
    check_decisions(tab, index, rules[index], ensemble, test_inputs, 20)


def check_decisions(
    tab: Any, index: int, rule: ag.CalibratedRule, ensemble: Any, inputs: Any, n: int
) -> None:
    expected = rule.decide(ensemble.score(inputs.rows(slice(0, n))))
    found = tab.evaluate(DECIDE, [index, n])
    assert [one["time"] for one in found] == expected.stop_time.tolist()
    assert [one["classes"] for one in found] == [
        np.flatnonzero(row).tolist() for row in expected.sets
    ]
    assert expected.first_risk is not None
    np.testing.assert_allclose([one["firstRisk"] for one in found], expected.first_risk, rtol=1e-12)


def test_a_multiply_add_is_rounded_once(tab: Any) -> None:
    """Random numbers, and sums that lie next to the middle between two float32, where rounding
    twice would be wrong.
    """
    rng = np.random.default_rng(0)
    numbers = (rng.standard_normal((500, 3)) * 10.0 ** rng.integers(-6, 6, (500, 3))).astype(
        np.float32
    )
    ulp, half = 2.0**-23, 2.0**-12
    near = [
        (1 + ulp, half * (1 + k * ulp), sign * (1 + odd * ulp))
        for k in (0, 1, 2**21)
        for sign in (1, -1)
        for odd in (0, 1)
    ]
    near += [(2.0**-30, sign * 2.0**-40, 1 + odd * ulp + 0.0) for sign in (1, -1) for odd in (0, 1)]
    near += [
        (1 + 2.0**-12, 1 + 2.0**-12, sign * 2.0**-60) for sign in (1, -1)
    ]  # 1 + 2^-11 + 2^-24: half way but for the last term
    cases = np.concatenate([numbers, np.array(near, np.float32)]).astype(np.float64)
    found = tab.evaluate(
        "cases => cases.map(([a, b, c]) => agreestop.fma(a, b, c))", cases.tolist()
    )
    assert found == [nearest_float32(Fraction(a) * Fraction(b) + Fraction(c)) for a, b, c in cases]
    twice = [float(np.float32(a * b + c)) for a, b, c in cases]
    assert found != twice  # the cases tell the two apart


def nearest_float32(value: Fraction) -> float:
    """The float32 nearest to an exact value, the even one on ties."""
    first = np.float32(float(value))
    around = [
        first,
        np.nextafter(first, np.float32(-np.inf)),
        np.nextafter(first, np.float32(np.inf)),
    ]
    distances = [abs(Fraction(float(one)) - value) for one in around]
    best = [
        one for one, distance in zip(around, distances, strict=True) if distance == min(distances)
    ]
    return float(min(best, key=lambda one: int(one.view(np.int32)) & 1))


def test_a_risk_next_to_its_threshold_is_a_tie(tab: Any) -> None:
    compared = "values => values.map((value) => agreestop.rules[0].compare(value, -0.7))"
    assert tab.evaluate(compared, [-0.7 * (1 + 2e-16), -0.7 - 1e-12, -0.7 - 1e-9, -0.7 + 1e-9]) == [
        0,
        0,
        -1,
        1,
    ]
    margin = tab.evaluate("() => agreestop.rules[0].margin")
    assert margin["ties"] == 2 and margin["nearest"] == pytest.approx(1e-9, rel=1e-3)


def test_alarms_and_the_healing_threshold_are_those_of_python(
    tab: Any, rules: list[ag.CalibratedRule], ensemble: Any, test_inputs: Any
) -> None:
    index = next(index for index, rule in enumerate(rules) if rule.rule is RULES["every step"])
    expected = rules[index].decide(ensemble.score(test_inputs))
    monitor, adaptive = ag.DriftMonitor(rules[index]), ag.AdaptiveRule(rules[index], rate=1.0)
    wrong = (
        test_inputs.labels + np.arange(120) % 2
    ) % CLASSES  # half of the labels are wrong, so that there is an alarm
    for decision, label in zip(expected, wrong.tolist(), strict=True):
        monitor.update(decision, label)
        adaptive.update(decision, label)
    inputs, misses, raised, thresholds = tab.evaluate(
        """([index, labels]) => {
            const rule = agreestop.rules[index];
            const monitor = new agreestop.DriftMonitor(rule.monitor);
            const adaptive = new agreestop.AdaptiveRule(rule.adaptive);
            labels.forEach((label, i) => {
                const decision = agreestop.decide(i, rule);
                monitor.add(decision, !decision.classes.includes(label));
                adaptive.update(!decision.classes.includes(label));
            });
            const missed = monitor.alarms.misses.number;
            return [monitor.inputs.log, monitor.misses.log, missed, adaptive.log];
        }""",
        [index, wrong.tolist()],
    )
    np.testing.assert_allclose(inputs, monitor.inputs.log.values[:, 0], atol=1e-9)
    np.testing.assert_allclose(misses, monitor.misses.log.values[:, 0], atol=1e-9)
    assert [alarm.number for alarm in monitor.alarms if alarm.kind == "misses"] == [raised]
    np.testing.assert_allclose(thresholds, adaptive.log.values[:, 0], atol=1e-9)


def test_a_broken_camera_raises_the_alarm_and_healing_brings_coverage_back(
    tab: Any, rules: list[ag.CalibratedRule]
) -> None:
    choose(tab, "few")  # it first looks after a few steps, when inputs differ
    tab.click("#many")
    wait_for(tab, "#coverage-words", "of 50 answers hold")
    assert tab.inner_text("#alarm") == "No alarm" and "%" in tab.inner_text("#coverage")
    words = (
        r"most probable class is wrong: [\d.]+ %\. .*calibration on examples .*: below [\d.]+ %\.$"
    )
    assert re.search(words, tab.inner_text("#risk-words"))
    tab.focus("#drift")
    tab.keyboard.press("End")
    assert tab.inner_text("#break") == "Repair the camera"
    for answers in (50, 100):
        tab.click("#many")
        wait_for(tab, "#coverage-words", f"of {answers} answers since the last change")
    assert "ended when the camera broke" in tab.inner_text("#coverage-words")
    assert wait_for(tab, "#alarm", "Drift") and "After" in tab.inner_text("#alarm-words")
    before = float(tab.inner_text("#coverage").split()[0])
    assert "does not hold" in tab.inner_text(
        "#guarantee"
    )  # the page promises nothing that has ended
    tab.click("#heal")  # it shows 120 inputs, which is all of them
    assert "given way" in tab.inner_text("#guarantee")
    assert tab.inner_text("#alarm") == "Healing"
    wait_for(tab, "#coverage-words", "of 120 answers since the last change")
    assert float(tab.inner_text("#coverage").split()[0]) > before + 5
    assert "brings 90 % back in the long run" in tab.inner_text("#coverage-words")
    adaptive = ag.AdaptiveRule(rules[index_of("few")], rate=1.0)
    most = int(100 * adaptive.bound(100, delay=0))
    words = wait_for(tab, "#adaptive-words", "was calibrated to")
    assert adaptive.guarantee in words and f"of any 100 answers at most {most} miss" in words
    tab.click("#break")
    assert (
        tab.inner_text("#drift-words") == "The inputs are as recorded."
        and tab.inner_text("#break") == "Break the camera"
    )
    tab.click("#heal")
    wait_for(tab, "#coverage-words", "of 50 answers since the last change")
    assert tab.inner_text("#alarm") == "No alarm"  # repaired: the alarm has gone
    assert tab.inner_text("#guarantee").startswith("The answer holds the true class")


def test_a_repaired_camera_clears_the_alarm(tab: Any) -> None:
    choose(tab, "few")
    tab.focus("#drift")
    tab.keyboard.press("End")
    for answers in (50, 100):
        tab.click("#many")
        wait_for(tab, "#coverage-words", f"of {answers} answers")
    assert wait_for(tab, "#alarm", "Drift")
    tab.click("#break")  # it shows 50 inputs
    wait_for(tab, "#coverage-words", "of 50 answers since the last change")
    assert tab.inner_text("#alarm") == "No alarm"
    ends = tab.locator("#alarm-chart .line").first.get_attribute("points").split()
    at = [float(end.split(",")[0]) for end in (ends[0], ends[-1])]
    assert at[0] > 34 + 280 * 100 / 150 and at[1] == pytest.approx(314)  # from answer 101 on


def test_colours_of_controls_and_marks_have_a_contrast_of_3(browser: Any, written: Path) -> None:
    def light(colour: str) -> float:
        shares = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
        linear = [
            one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in shares
        ]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722))) + 0.05

    for scheme in ("light", "dark"):
        found = open_page(browser, written, color_scheme=scheme)
        value = (
            "name => "
            "getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()"
        )
        for below in ("card", "paper"):
            ground = light(found.evaluate(value, below))
            for above in ("control", "accent", "other", "soft"):
                ends = sorted((ground, light(found.evaluate(value, above))))
                assert ends[1] / ends[0] >= (4.5 if above == "soft" else 3), (scheme, above, below)
        close_page(found, written)


def test_no_input_is_counted_twice(tab: Any) -> None:
    for answers in (50, 100, 120):
        tab.click("#many")
        wait_for(tab, "#coverage-words", f"of {answers} answers hold")
    assert "All inputs have been counted" in wait_for(tab, "#coverage-words", "All inputs")


GREY = """() => {
    const canvas = document.getElementById("camera");
    const copy = new OffscreenCanvas(canvas.width, canvas.height);
    const context = copy.getContext("2d", { willReadFrequently: true });
    context.drawImage(canvas, 0, 0);
    const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
    let grey = 0;
    for (let at = 0; at < data.length; at += 4) {
        const values = [data[at], data[at + 1], data[at + 2]];
        grey += data[at + 3] > 40 && Math.max(...values) - Math.min(...values) < 40;
    }
    return 4 * grey / data.length;
}"""


def test_it_moves_by_itself_and_hides_the_label_until_it_stops(browser: Any, written: Path) -> None:
    found = open_page(browser, written, viewport={"width": 390, "height": 800}, color_scheme="dark")
    wait_for(found, "#step", r"step [1-9]\d* of 16")
    begun = int(re.findall(r"^input (\d+) of 120$", found.inner_text("#which"))[0]) - 1
    assert found.locator("#agreement .token").count() == 3
    words = wait_for(found, "#verdict", r"It is .*\. Step \d+ of 16\. (Right|Wrong): the label is")
    stopped = int(re.findall(r"Step (\d+) of", words)[0])
    assert ("not computed" in found.inner_text("#saved-words")) == (stopped < 16)
    right = """() => agreestop.recorded.map((_, i) => agreestop.decide(i, agreestop.rules[2]))
        .map(({time, classes}, i) => [time, i, classes.includes(agreestop.labels[i])])
        .filter(([time, i, hit]) => hit && time < 16).map(([time, i]) => [time, i])"""
    order = sorted(found.evaluate(right))
    assert [stopped, begun] == order[3 * len(order) // 4] and "Right" in words
    assert found.inner_text("#coverage") == "1 of 1"
    assert found.inner_text("#coverage-words").startswith("answer holds the right class")
    grey = found.evaluate(GREY)
    assert found.is_visible("#later") and grey > 0.05  # what came after the answer
    hidden = "document.getElementById('next').click(), document.getElementById('later').hidden"
    assert found.evaluate(hidden)
    assert found.evaluate("document.documentElement.scrollWidth") <= 390
    names = found.locator("#agreement").text_content()
    assert NAMES[2] in names and found.locator("#agreement b").count() == 0
    pad, stage = (found.locator(one).bounding_box()["y"] for one in ("#drawing", "#camera"))
    assert pad < stage  # a phone shows the pad first
    found.click("#play")
    choose(found, "Bonferroni")
    assert "70 %" in found.inner_text("#target-value") and "target=0.7" in found.url
    found.click("#reset")
    assert found.inner_text("#coverage-words").startswith("No answer yet: press Play")
    close_page(found, written)


def test_the_target_moves_the_threshold_through_the_calibration_examples(
    browser: Any, ensemble: Any, test_inputs: Any, tmp_path: Path
) -> None:
    x, y = some_inputs(60, 2)
    scores, path = ensemble.score(x, y), tmp_path / "demo.html"
    rules = [
        ag.AgreeStop(target, EVERY, size).calibrate(scores)
        for size in (1, 2)
        for target in (0.7, 0.8, 0.9)
    ]
    fixed = ag.AgreeStop(0.9, EVERY, 1, True, ag.FixedTime()).calibrate(scores)
    with pytest.raises(InputError, match="other rows"):
        to_page(rules, ensemble, path, test_inputs, calibration=ensemble.score(*some_inputs(60, 7)))
    to_page(
        rules,
        ensemble,
        path,
        test_inputs,
        first=2,
        calibration=scores,
        beside={"fixed time": fixed},
    )
    found = open_page(browser, path, reduced_motion="reduce")
    missed = np.count_nonzero(~rules[2].decide(scores).sets[np.arange(60), y])
    wait_for(
        found,
        "#missed-words",
        f"misses {missed} of the 60 calibration examples; a guarantee of 90 % allows at most 5",
    )
    assert found.locator("#calibration .missed").count() == missed
    found.locator("#calibration").scroll_into_view_if_needed()
    line = found.locator("#calibration .grip").bounding_box()
    found.mouse.move(line["x"] + 4, line["y"] + 4)
    found.mouse.down()
    found.mouse.move(line["x"] + 4, line["y"] - 80, steps=4)
    found.mouse.up()
    assert "70 %" in wait_for(found, "#target-value", "70 %") and found.url.endswith(
        "#target=0.7&size=1"
    )
    found.check("#sizes input[value='2']")
    assert found.url.endswith("#target=0.7&size=2")
    found.click("#race")
    wait_for(found, "#lanes", "of 20")
    decided = fixed.decide(ensemble.score(test_inputs.rows(slice(0, 20)))).stop_time.mean()
    assert f"{decided:.1f}" in found.inner_text("#lanes") and "fixed time" in found.inner_text(
        "#lanes"
    )
    assert "Ours stops" in wait_for(found, "#race-result", "Of 20 answers")
    address = found.url
    close_page(found, path)
    again = open_page(browser, path, address=address, reduced_motion="reduce")
    assert "70 %" in again.inner_text("#target-value") and again.is_checked(
        "#sizes input[value='2']"
    )
    again.evaluate("location.hash = '#target=0.8&size=1'")  # somebody edits the address
    wait_for(again, "#target-value", "80 %")
    assert again.is_checked("#sizes input[value='1']")
    close_page(again, path)


@pytest.mark.parametrize("width", [390, 1200])
def test_labels_of_controls_stay_on_one_line(width: int, browser: Any, written: Path) -> None:
    found = open_page(
        browser, written, viewport={"width": width, "height": 900}, reduced_motion="reduce"
    )
    lines = """[...document.querySelectorAll("label.inline")].map((label) => {
        const range = document.createRange();
        range.selectNode(label.firstChild);
        return [label.firstChild.textContent.trim(), range.getClientRects().length];
    })"""
    assert found.evaluate(lines) == [["Pace", 1], ["Kind", 1], ["Strength", 1]]
    close_page(found, written)


def test_a_finger_drags_the_threshold_and_does_not_scroll_the_page(
    browser: Any, ensemble: Any, test_inputs: Any, tmp_path: Path
) -> None:
    scores, path = ensemble.score(*some_inputs(60, 2)), tmp_path / "demo.html"
    rules = [ag.AgreeStop(target, EVERY, 1).calibrate(scores) for target in (0.7, 0.8, 0.9)]
    to_page(rules, ensemble, path, test_inputs, first=2, calibration=scores)
    phone = {"width": 390, "height": 800}
    found = open_page(browser, path, viewport=phone, has_touch=True, is_mobile=True)
    found.locator("#calibration").scroll_into_view_if_needed()
    place = "document.querySelector('#calibration .grip').getBoundingClientRect().toJSON()"
    line = found.evaluate(place)
    fingers = found.context.new_cdp_session(found)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        at = [{"x": line["x"] + x, "y": line["y"] + y} for x, y in points]
        fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": at})

    touch("touchStart", (7, 7))
    for moved in range(1, 21):  # while the page plays, and draws the line anew
        touch("touchMove", (7, 7 - 5 * moved))
        found.wait_for_timeout(20)
    touch("touchEnd")
    assert "70 %" in wait_for(found, "#target-value", "70 %")
    assert abs(found.evaluate(place)["x"] - line["x"]) < 1
    close_page(found, path)


def test_classes_that_tie_are_possible_together(tab: Any) -> None:
    """Before any spike all classes are alike, and so all are shown as possible."""
    silent = """() => agreestop.rules.filter((rule) => rule.policy === "AG_RISK").map((rule) => {
        const watch = new agreestop.Watch(agreestop.members, rule);
        while (!watch.last) watch.push([]);
        return watch.last.set;
    })"""
    assert tab.evaluate(silent) == [[0, 1, 2, 3]] * 4


def test_a_digit_drawn_with_the_mouse_or_the_keyboard_gets_a_decision(tab: Any) -> None:
    tab.click("#show")
    wait_for(tab, "#verdict", "nothing to see yet")
    box = tab.locator("#drawing").bounding_box()
    tab.mouse.move(box["x"] + 30, box["y"] + 30)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 90, box["y"] + 30, steps=4)
    tab.mouse.move(box["x"] + 50, box["y"] + 120, steps=4)
    tab.mouse.up()
    wait_for(tab, "#verdict", r"It is .* Step \d+ of 16")  # by itself, after a moment
    assert tab.inner_text("#which") == "your drawing" and tab.inner_text("#coverage") == "–"
    assert tab.inner_text("#drawn") == tab.inner_text("#verdict")
    tab.click("#next")
    assert re.search(r"#.*draw=[0-9a-z]{64}$", tab.url)
    wait_for(tab, "#verdict", "Right|Wrong")
    tab.focus("#drawing")
    tab.keyboard.press("ArrowLeft")
    at = tab.locator("#pen").bounding_box()
    tab.keyboard.press("ArrowLeft")
    assert (
        tab.locator("#pen").bounding_box()["x"] < at["x"]
    )  # one sees where the pen is before it is down
    for key in (" ", *["ArrowDown"] * 12, " ", "Enter"):
        tab.keyboard.press(key)
    wait_for(tab, "#which", "your drawing")
    wait_for(tab, "#verdict", r"It is .* Step \d+ of 16")


def test_it_is_written_on_the_command_line(
    ensemble: Any,
    rules: list[ag.CalibratedRule],
    test_inputs: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    ensemble.save("members")
    rules[0].save("a.rule")
    rules[-1].save("b.rule")
    test_inputs.rows(slice(0, 3)).save("inputs.npz")
    ag.save_scores("calibration.npz", ensemble.score(*some_inputs(60, 2)))
    words = (
        "export",
        "b.rule",
        "a.rule",
        "--members",
        "members",
        "--to",
        "page",
        "-o",
        "demo.html",
    )
    refused = call(monkeypatch, capsys, *words)
    assert refused.code == 2 and "--inputs is missing" in refused.err
    done = call(
        monkeypatch, capsys, *words, "--inputs", "inputs.npz", "--calibration", "calibration.npz"
    )
    assert done.code == 0, done.err
    said = " ".join(done.out.split())
    assert (
        "with 3 inputs to replay" in said
        and "smallest distance of a risk or score to its threshold" in said
    )
    other = call(
        monkeypatch, capsys, *words[:-4], "--to", "c", "-o", "c", "--calibration", "calibration.npz"
    )
    assert other.code == 2 and "--calibration" in other.err
    assert '"examples":[' in Path("demo.html").read_text()
    names = re.findall(r'"name":"([^"]*)"', Path("demo.html").read_text())
    assert names == ["70 %, SpikeCP", "90 %, AgreeStop"]


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_small_weights_give_the_spikes_of_python(
    weights: str, browser: Any, ensemble: Any, test_inputs: Any, tmp_path: Path
) -> None:
    ensemble.save(tmp_path / "members")
    small, path = (
        ag.ensembles.load(tmp_path / "members", engine=f"event-driven-{weights}"),
        tmp_path / "demo.html",
    )
    rule = RULES["every step"].calibrate(small.score(*some_inputs(60, 2)))
    to_page([rule], small, path, test_inputs.rows(slice(0, 20)))
    found = open_page(browser, path, reduced_motion="reduce")
    test_read_out_spikes_are_those_of_python(found, small, test_inputs)
    check_decisions(found, 0, rule, small, test_inputs, 20)
    close_page(found, path)


def test_a_page_of_the_command_line_has_at_most_3_mb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    network = FullyConnected(SHAPE, CLASSES, 3, (450,), Neuron(threshold=0.3))
    save_members("members", SpikingNetwork(network, torch.Generator().manual_seed(0)).eval())
    x, y = some_inputs(90, 3)
    rule = ag.AgreeStop(0.8, EVERY, 1).calibrate(
        ag.ensembles.load("members", engine="event-driven").score(*some_inputs(60, 2))
    )
    rule.save("a.rule")
    ag.events.Events.from_dense(x, y).save("inputs.npz")
    ag.events.Events.from_dense(x[:9], y[:9]).save("few.npz")
    ag.events.Events.from_dense(x).save("unlabelled.npz")
    words = (
        "export",
        "a.rule",
        "--members",
        "members",
        "--to",
        "page",
        "-o",
        "demo.html",
        "--inputs",
    )

    def printed(*more: str) -> str:
        done = call(monkeypatch, capsys, *words, *more)
        assert done.code == 0, done.err
        return " ".join(done.out.split())

    said = printed("inputs.npz")
    assert (
        "60 of 90 inputs" in said
        and "30 other inputs calibrated the rule anew" in said
        and "--engine event-driven keeps" in said
    )
    assert (
        Path("demo.html").stat().st_size < 3_000_000
        and '"type":"int8"' in Path("demo.html").read_text()
    )
    for more, stable in (
        (("inputs.npz", "--engine", "event-driven"), "leave out --engine"),
        (("few.npz",), "give more inputs"),
        (("unlabelled.npz",), "with labels"),
    ):
        assert stable in printed(*more)
        assert (
            Path("demo.html").stat().st_size > 3_000_000
            and '"type":"int8"' not in Path("demo.html").read_text()
        )


def test_what_a_page_cannot_run_is_refused(
    ensemble: Any, rules: list[ag.CalibratedRule], tmp_path: Path
) -> None:
    x, y = some_inputs(60, 2)
    path = tmp_path / "demo.html"

    def refused(match: str, rule: Any = rules[0], given: Any = ensemble, inputs: Any = x) -> None:
        with pytest.raises(InputError, match=match):
            to_page(rule, given, path, inputs, any_engine=True, any_members=True)

    config = Convolutional(SHAPE, CLASSES, 3, (2,), (4,), real_input=False)
    save_members(
        tmp_path / "convolutional", SpikingNetwork(config, torch.Generator().manual_seed(0)).eval()
    )
    refused(
        "fully connected members of SRM neurons",
        given=ag.ensembles.load(tmp_path / "convolutional", engine="event-driven"),
    )
    ensemble.save(tmp_path / "members")
    refused(
        "run on the dense engine", given=ag.ensembles.load(tmp_path / "members", engine="dense")
    )
    refused("0 rules are given", [])
    refused("is not calibrated", RULES["every step"])
    refused("path, digits.rule", ["digits.rule"])
    with pytest.raises(InputError, match="scores of the ensemble 000000000000"):
        to_page(replace(rules[0], ensemble_digest="0" * 64), ensemble, path, x)
    named = RULES["every step"].calibrate(ensemble.score(x, y, classes=NAMES))
    refused("have class", named, inputs=ag.events.Events.from_dense(x, y, NAMES[::-1]))
    refused("5 classes", inputs=ag.events.Events.from_dense(x, y, (*NAMES, "four")))
    refused("images, and the page shows events", inputs=x[:, :1])
    refused("own last answer", RULES["every step"].calibrate(ensemble.score(x), labels="final"))
    scores, tuning = ensemble.score(x, y), ensemble.score(*some_inputs(60, 5))
    refused(
        "exported code does not know",
        ag.AgreeStop(0.8, EVERY, 1, risk=ag.LearnedRisk.fit(tuning, max_set_size=1)).calibrate(
            scores
        ),
    )
    assert not path.exists()
    with (
        pytest.MonkeyPatch.context() as patched,
        pytest.raises(InputError, match="choose the name of a file"),
    ):
        patched.setattr(
            type(ensemble),
            "score",
            lambda *_, **__: pytest.fail("the path is checked before the work"),
        )
        to_page(rules, ensemble, tmp_path, x)


@pytest.mark.slow
def test_decisions_on_the_digits_are_those_of_python(browser: Any, tmp_path: Path) -> None:
    digits = ag.events.load_data_set("digits")
    network = ag.networks.FullyConnected(digits.pool.inputs.shape[2:], classes=10, hidden=(64,))
    trained = ag.ensembles.DeepEnsemble(network, members=4, seed=0, device="cpu")
    trained.fit(digits.training.inputs, digits.training.labels, epochs=3, progress=False).save(
        tmp_path / "members"
    )
    ensemble = ag.ensembles.load(tmp_path / "members", engine="event-driven")
    x, y = digits.pool.inputs, digits.pool.labels
    scores = ensemble.score(x.rows(slice(0, 100)), y[:100])
    calibrated = [ag.AgreeStop(target, range(1, 81), 3).calibrate(scores) for target in (0.8, 0.9)]
    inputs = ag.events.Events.from_dense(x.rows(slice(100, 300)).to_dense(), y[100:300])
    to_page(calibrated, ensemble, tmp_path / "demo.html", inputs)
    found = open_page(browser, tmp_path / "demo.html")
    for index, rule in enumerate(calibrated):
        check_decisions(found, index, rule, ensemble, inputs, 200)
    close_page(found, tmp_path / "demo.html")
