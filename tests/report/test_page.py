"""The report: its numbers are those of the records, whatever it is handed is escaped, and the page
loads nothing from anywhere.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jinja2", reason="the report needs jinja2")
pytest.importorskip("matplotlib", reason="the report needs matplotlib")

import agreestop as ag
from agreestop.common import no_progress
from agreestop.engines.early_stopping import TimeSaved
from agreestop.pipeline.measure import measure_rules
from agreestop.report import (
    InputPictures,
    MeasurementSettings,
    Record,
    Report,
    Section,
    describe_ensemble,
    interval,
    promise_of,
    settings_in_words,
    summarise,
    versions,
)
from agreestop.report.page import (
    PAPER,
    give_or_take,
    percent,
    render_page,
    summary_in_words,
    write_report_folder,
)
from tests.decide.strategies import simulate_spikes, tune_quickly

STEPS, MEMBERS = 10, 2
MEASURED = MeasurementSettings(
    targets=(0.8,),
    sizes=(1, MEMBERS),
    checkpoints=(5, 10),
    max_set_size=2,
    n_calibration=20,
    realisations=4,
)
NASTY = "<script>alert('x')</script>"
ODD = "\x1b[31m $\\frac$"  # an escape sequence, and what matplotlib would take for a formula


def scores_of(n: int, seed: int) -> ag.Scores:
    spikes, labels = simulate_spikes(n, STEPS, MEMBERS, C=4, seed=seed, pace=3.0)
    counts = np.cumsum(spikes, axis=1, dtype=np.int32)
    return ag.Scores(
        ag.log_confidence(counts), labels, tuple(range(1, STEPS + 1)), ("a", "b", ODD, NASTY)
    )


@contextmanager
def short_search() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        tune_quickly(patch, steps=2, learned=False)
        patch.setattr("agreestop.report.work.LEAST_MEMBERS", MEMBERS)
        yield


@pytest.fixture(scope="module")
def report() -> Iterator[Report]:
    with short_search():
        tuning, pool = scores_of(60, 1), scores_of(90, 2)
        inputs = np.random.default_rng(0).random((len(pool), STEPS, 2, 4, 4)) < 0.1
        spent = np.cumsum(np.ones((len(pool), STEPS, MEMBERS)), axis=1)
        measurement = measure_rules("deep", tuning, pool, MEASURED, no_progress, spent)
        results = pool, measurement.records, measurement.rules
        section = describe_ensemble(
            "deep",
            *results,
            MEASURED,
            no_progress,
            InputPictures(inputs),
            settings_in_words(MEASURED),
        )
        yield Report(
            name="small & <b>bold</b>",
            kind="simulated events",
            description=f"inputs of {NASTY}",
            measured=MEASURED,
            n_tuning=len(tuning),
            n_pool=len(pool),
            sections=[section],
            command="agreestop run 'a <b>.toml'",
            versions=versions("numpy", "a package that is not there"),
            notes=(NASTY,),
        )


@pytest.fixture(scope="module")
def written(report: Report, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_report_folder(report, tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def page(written: list[Path]) -> str:
    return written[-1].read_text(encoding="utf-8")


class _Reader(HTMLParser):
    """The tags, the visible text and every address of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[tuple[str, str]] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [
            (tag, value or "")
            for name, value in attrs
            if name in ("src", "href", "srcset", "action", "data", "poster")
        ]

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] != ["style"]:
            self.text.append(data)


def text_of(page: str) -> str:
    return re.sub(r"[ \n]+", " ", " ".join(_Reader(page).text))


def test_the_summary_is_that_of_the_records(report: Report, page: str) -> None:
    summary = report.sections[0].summary
    headline, words = summary.headline, text_of(page)
    assert headline.K == MEMBERS and headline.target == 0.8
    for record in summary.rules:
        coverage = interval(record.coverage, record.coverage_se)
        latency = interval(record.latency, record.latency_se)
        assert f"{percent(coverage)} {give_or_take(coverage)}" in words, record.label
        assert f"{percent(latency)} {give_or_take(latency)}" in words, record.label
        assert f"{record.set_size:.2f}" in words
    assert headline.energy is not None and percent(1 - headline.energy) in words
    assert f"≥ {percent(0.8, 0)}" in words
    assert summary.paper is not None and summary.one_member is not None
    assert summary.paper.earlier == pytest.approx(
        1 - headline.latency / summary.paper.other.latency
    )
    assert summary.one_member.other.K == 1 and summary.one_member.other.label == headline.label
    assert percent(abs(summary.paper.earlier), 0) in words
    assert "picked after measuring" in words
    # the pool's draw is measured for the table
    assert headline.coverage_pool is not None and headline.latency_pool is not None
    assert headline.coverage_pool[0] < headline.coverage < headline.coverage_pool[1]
    assert all(
        record.coverage_pool is None
        for record in report.sections[0].records
        if record not in summary.rules
    )
    assert "; pool" in words
    assert "DC-SNN promises nothing" in words and "none made" in words
    assert "simulated events" in words


def test_latency_against_work_is_shown_where_it_was_measured(report: Report, page: str) -> None:
    (section,) = report.sections
    one, together = section.work[:2]
    assert (one.name, together.name) == ("one member", "all members")
    words = text_of(page)
    assert (
        f"One member stops at {percent(one.latency)} of T after {one.work:.1f} member-steps"
        in words
    )
    assert f"all members stop at {percent(together.latency)} after {together.work:.1f}" in words
    assert "member-steps" not in text_of(
        render_page(replace(report, sections=[replace(section, work=())]))
    )


def test_the_breakdown_of_the_headline_adds_up_to_what_was_measured(report: Report) -> None:
    """Coverage by time and by class adds up to the record's coverage, to the last digit but
    rounding.
    """
    section = report.sections[0]
    headline, breakdown = section.summary.headline, section.breakdown
    assert breakdown.overall == pytest.approx(headline.coverage, abs=1e-12)
    assert breakdown.lowest <= headline.coverage <= breakdown.highest
    for shares in (breakdown.by_time, breakdown.by_class):
        inputs = sum(share.inputs for share in shares)
        assert inputs == pytest.approx(70)
        assert sum(share.inputs * share.coverage for share in shares) / inputs == pytest.approx(
            headline.coverage
        )
        assert all(share.coverage.low <= share.coverage <= share.coverage.high for share in shares)
    assert [share.name for share in breakdown.by_class] == [
        "a",
        "b",
        ODD.replace("\x1b", r"\x1b"),
        NASTY,
    ]


def test_examples_end_with_their_answers(report: Report) -> None:
    section = report.sections[0]
    assert section.examples is not None
    assert [example.why for example in section.examples.shown] == [
        "early",
        "ordinary",
        "late",
        "missed",
    ]
    stops = [example.moments[-1].time for example in section.examples.shown[:3]]
    assert stops == sorted(stops)
    for example in section.examples.shown:
        times = [moment.time for moment in example.moments]
        assert times == sorted(set(times)) and len(times) <= 5
        assert (
            example.moments[-1].sets[-1, example.label] == example.hit == (example.why != "missed")
        )
        assert all(
            moment.sets.shape == (MEMBERS + 1, 4) and len(moment.tied) == MEMBERS + 1
            for moment in example.moments
        )
        seen = [int(moment.picture.sum()) for moment in example.moments]
        assert seen == sorted(seen) and seen[-1] <= example.whole.sum()


def test_whatever_it_is_handed_is_escaped(page: str) -> None:
    reader = _Reader(page)
    assert reader.tags.count("script") == page.count("<script") == 1, (
        "only the script of the page itself"
    )
    assert NASTY in unescape(page)
    assert "b" in reader.tags and "bold</b>" not in page
    assert page.count("<!DOCTYPE html>") == 1 and "<?xml" not in page


def test_it_loads_nothing(page: str) -> None:
    for tag, address in _Reader(page).addresses:
        assert address.startswith(("data:", "#")) or (tag, address) == ("a", PAPER), (tag, address)
    assert set(re.findall(r"https?://[^\s\"'<)]*", page)) == {PAPER}
    assert not re.search(r"@import|url\((?!#)", page)
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids))


def test_fixed_time_and_the_gate_stand_beside_the_rules_and_are_never_the_headline(
    report: Report, page: str
) -> None:
    (section,) = report.sections
    extra = {
        record.rule: record
        for record in section.summary.rules
        if record.rule in ("fixedtime", "gatedagreestop")
    }
    assert (
        set(extra) == {"fixedtime", "gatedagreestop"}
        and section.summary.headline not in extra.values()
    )
    assert all(record.target == 0.8 and record.K == MEMBERS for record in extra.values())
    earliest = replace(extra["fixedtime"], latency=0.01, coverage=0.99)
    assert summarise((*section.records, earliest)).headline == section.summary.headline
    for label in ("fixed time, every step", "AgreeStop with a gate, every step"):
        assert label in text_of(page)


def test_the_coverage_by_block_is_that_of_the_rule_with_a_gate(report: Report, page: str) -> None:
    (section,) = report.sections
    gated = section.gated
    assert gated is not None
    tuning, pool = scores_of(60, 1), scores_of(90, 2)
    blocks = ag.Gate.count_blocks(MEASURED.n_calibration, 0.8)
    gate = ag.Gate.fit(tuning, target=0.8, max_set_size=2, blocks=blocks)
    rules = ag.AgreeStop(0.8, pool.times, 2, gate=gate), ag.AgreeStop(0.8, pool.times, 2)
    assert pool.labels is not None
    for rule, groups in zip(rules, (gated.by_block, gated.plain_by_block), strict=True):
        found: dict[str, list[bool]] = {}
        rng = np.random.default_rng(MEASURED.seed)
        for _ in range(MEASURED.realisations):
            order = rng.permutation(len(pool))
            calibration, test = order[: MEASURED.n_calibration], order[MEASURED.n_calibration :]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ag.CalibrationWarning)
                decisions = rule.calibrate(pool.rows(calibration)).decide(pool.rows(test))
                inside = rules[0].calibrate(pool.rows(calibration)).decide(pool.rows(test)).block
            assert inside is not None
            for block, hit in zip(
                inside.tolist(),
                decisions.sets[np.arange(len(test)), pool.labels[test]].tolist(),
                strict=True,
            ):
                found.setdefault(gate.block_names[block], []).append(hit)
        assert {group.name: float(group.coverage) for group in groups} == pytest.approx(
            {name: np.mean(hits) for name, hits in found.items()}
        )
    for words in (
        "By the time it first looked ready",
        "Diamonds are the same rule without the gate",
    ):
        assert words in text_of(page)


def test_the_files_are_written(written: list[Path]) -> None:
    assert written[-1].name == "report.html" and written[-1].stat().st_size < 3_000_000
    names = {
        f"coverage-{what}-deep.{kind}"
        for what in ("and-latency", "by-time-and-class", "by-block")
        for kind in ("png", "svg")
    }
    names |= {"work-deep.png", "work-deep.svg"}
    assert {path.name for path in written[-1].parent.iterdir()} == names | {"report.html"}
    assert {path.name for path in written[:-1]} == names


def test_the_terminal_gets_two_lines_and_a_third_where_answers_say_little(report: Report) -> None:
    section = report.sections[0]
    many = replace(section, classes=tuple(str(label) for label in range(40)))
    few = replace(section, classes=("a", "b"))
    lines = summary_in_words(many)
    assert len(lines) == 2 and max(len(line) for line in lines) <= 80
    assert "of at least 80 %" in lines[0]
    paper = section.summary.paper
    assert (
        paper is not None
        and f"{abs(paper.earlier):.0%}".replace("%", " %") + f" earlier than {paper.other.label}"
        in lines[1]
    )
    later = replace(section.summary, paper=replace(paper, earlier=interval(-0.25, 0.01)))
    said = summary_in_words(replace(many, summary=later))[1]
    assert f"25 % later than {paper.other.label}" in said
    assert summary_in_words(few)[:2] == lines and "tell little apart" in summary_in_words(few)[2]


def test_a_report_without_inputs_and_energy_has_neither(report: Report) -> None:
    section = report.sections[0]
    bare = [replace(record, energy=None) for record in section.records]
    other = replace(
        section, name="", records=tuple(bare), summary=summarise(bare), examples=None, settings=()
    )
    words = text_of(render_page(replace(report, sections=[other])))
    assert "Watching it decide" not in words and "nergy" not in words
    assert "ensemble kept its promise" in words or "did not keep" in words


def record(
    label: str,
    coverage: float,
    latency: float,
    rule: str = "spikecp",
    calibration: str | None = "stop-aware",
    K: int = 2,
) -> Record:
    pooling = "MergeConfidence" if calibration == "bonferroni" else None
    return Record(
        "deep",
        label,
        rule,
        pooling,
        1,
        calibration,
        K,
        0.9,
        (5, 10),
        coverage,
        0.01,
        latency,
        0.01,
        2.0,
    )


def test_the_earliest_of_ours_that_keeps_the_promise_is_the_headline() -> None:
    paper = record("paper", 0.95, 0.5, calibration="bonferroni")
    broken, within = record("broken", 0.85, 0.1), record("within", 0.89, 0.3, "agreestop", None)
    late, none = record("late", 0.95, 0.4), record("DC-SNN", 0.95, 0.05, "dcsnn", None)
    summary = summarise(
        [none, paper, broken, within, late, record("within", 0.9, 0.4, "agreestop", None, K=1)]
    )
    assert summary.headline is within and summary.kept
    assert [promise_of(rule) for rule in summary.rules] == [
        "none made",
        "kept",
        "not kept",
        "within its interval",
        "kept",
    ]
    assert (
        summary.paper is not None
        and summary.paper.other is paper
        and summary.paper.earlier == pytest.approx(0.4)
    )
    assert summary.one_member is not None and summary.one_member.earlier == pytest.approx(0.25)
    assert summary.same_checkpoints is None


def test_a_broken_promise_is_said(report: Report) -> None:
    summary = summarise([record("broken", 0.7, 0.1), record("nearly", 0.85, 0.2)])
    assert not summary.kept and summary.headline.label == "nearly"
    assert summary.paper is None and summary.one_member is None
    section: Section = replace(report.sections[0], summary=summary)
    words = text_of(render_page(replace(report, sections=[section])))
    assert "did not keep its promise" in words and "None of our rules kept the promise" in words
    assert "NOT kept" in summary_in_words(section)[0]


def test_a_rule_that_can_never_stop_is_not_praised(report: Report) -> None:
    """With too few calibration examples a rule answers every class at the end. That is neither a
    promise kept nor a weak ensemble.
    """
    vacuous = replace(record("stuck", 1.0, 1.0), examples_needed=99, set_size=4.0, energy=1.0)
    others = [
        replace(vacuous, label="later", examples_needed=399),
        record("paper", 1.0, 1.0, calibration="bonferroni"),
    ]
    summary = summarise([*others, vacuous])
    assert summary.headline is vacuous and not summary.kept and promise_of(vacuous) == "cannot stop"
    saved = TimeSaved("dense", 1.0, 0.5, 0.9)
    section = replace(
        report.sections[0], summary=summary, records=summary.rules, saved=saved, examples=None
    )
    assert summary_in_words(section) == [
        "deep: cannot stop early",
        "  stuck needs 99 calibration examples for a target of 90 %",
    ]
    words = text_of(render_page(replace(report, sections=[section])))
    assert (
        "The deep ensemble cannot stop early" in words
        and "stuck needs at least 99" in words
        and "needs n = 399" in words
    )
    for praise in (
        "kept its promise",
        "✓ kept",
        "Energy saved",
        "Time saved",
        "tell the classes apart",
        "earlier",
    ):
        assert praise not in words.partition("Every rule that was measured")[0], praise
    stopping = record("stops", 0.95, 0.4)
    assert summarise([*others, vacuous, stopping]).headline is stopping
    broken = record("broken", 0.5, 0.4)
    assert summarise([*others, vacuous, broken]).headline is broken


def test_a_page_explains_only_what_it_shows(report: Report, page: str, tmp_path: Path) -> None:
    """Where no rule can stop there is no coverage by group, no range under “Kept” and no
    comparison, so none of them is explained.
    """
    vacuous = replace(record("stuck", 1.0, 1.0), examples_needed=99, set_size=4.0)
    section = replace(
        report.sections[0],
        summary=summarise([vacuous]),
        records=(vacuous,),
        saved=None,
        examples=None,
    )
    *figures, path = write_report_folder(replace(report, sections=[section]), tmp_path)
    stuck, stopping = path.read_text(encoding="utf-8"), text_of(page)
    for early in ("Who gets the promise", "“Kept”", "“Earlier”"):
        assert early in stopping and early not in text_of(stuck), early
    for shortage in ("hollow marker", "“Cannot stop” means"):
        assert shortage in text_of(stuck) and shortage not in stopping, shortage
    assert 'class="headline"' in page and 'class="headline"' not in stuck
    assert "“Within its interval” means" not in text_of(stuck)
    assert [figure.name for figure in figures] == [
        "coverage-and-latency-deep.png",
        "coverage-and-latency-deep.svg",
    ]


def test_settings_of_one_ensemble_alone_are_shown_beside_it(report: Report) -> None:
    """Each ensemble lists the settings that it uses; a setting that another does not have is empty
    there.
    """
    first = replace(report.sections[0], settings=(("members", "6"), ("epochs", "2")))
    other = replace(first, name="other", settings=(("members", "3"), ("warm up", "0.5")))
    words = text_of(render_page(replace(report, sections=[first, other])))
    assert re.search(
        r"members 6 3 epochs 2 warm up 0\.5 How to",
        words.partition("How the ensembles were made")[2],
    )


def test_claims_are_judged_by_the_interval_for_the_draw_of_the_pool(report: Report) -> None:
    """Realisations share one pool, so their spread is too small. Both intervals are shown, and each
    is named.
    """
    narrow = replace(record("short", 0.87, 0.3), coverage_se=0.005)
    wide = replace(narrow, coverage_pool=(0.83, 0.91), latency_pool=(0.24, 0.36))
    assert (promise_of(narrow), promise_of(wide)) == ("not kept", "within its interval")
    section = replace(report.sections[0], summary=summarise([wide]), records=(wide,))
    words = text_of(render_page(replace(report, sections=[section])))
    plain = words.replace("\N{NO-BREAK SPACE}", " ")
    assert "± 1.0; pool ± 4.0" in plain and "± 2.0; pool ± 6.0" in plain
    assert "it holds for the draw of the pool too" in words
    assert "87.0 % ± 4.0 of at least 90 %" in summary_in_words(section)[0]


def test_measuring_knows_which_rules_can_never_stop() -> None:
    measured = replace(MEASURED, targets=(0.99,), sizes=(MEMBERS,), realisations=2)
    pool = scores_of(90, 2)
    with short_search():
        measurement = measure_rules("deep", scores_of(60, 1), pool, measured, no_progress)
        inputs = InputPictures(np.zeros((len(pool), STEPS, 2, 4, 4), dtype=bool))
        section = describe_ensemble(
            "deep", pool, measurement.records, measurement.rules, measured, no_progress, inputs
        )
    needed = {record.label: record.examples_needed for record in measurement.records}
    assert (
        needed["AgreeStop"] == 99
        and needed["confidence merging"] == 199
        and needed["DC-SNN"] is None
    )
    assert all(
        record.latency == 1 and record.set_size == 4
        for record in measurement.records
        if record.examples_needed
    )
    assert section.summary.headline.examples_needed == 99 and section.examples is None


def test_smaller_answers_that_come_as_early_are_named() -> None:
    small = replace(record("small", 0.95, 0.31), set_size=1.2)
    assert summarise([record("first", 0.95, 0.3), small]).smaller is small
    assert summarise([record("first", 0.95, 0.3), replace(small, latency=0.4)]).smaller is None


def test_one_realisation_has_no_interval() -> None:
    single = replace(record("one", 0.95, 0.3), coverage_se=float("nan"), latency_se=float("nan"))
    assert give_or_take(interval(single.coverage, single.coverage_se)) == ""
    assert summarise([single]).kept


def test_a_report_needs_records() -> None:
    with pytest.raises(ag.InputError, match="no records"):
        summarise([])
    with pytest.raises(ag.InputError, match="stop-aware calibration or AgreeStop"):
        summarise([record("paper", 0.95, 0.5, calibration="bonferroni")])


CHROMIUM = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on this machine: the page is not seen in a browser"
)


def browse(page: Path, folder: Path, *what: str) -> str:
    """Open a page in Chromium without a network, and hand back what it prints."""
    assert CHROMIUM is not None
    quiet = (
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
    )
    offline = (
        "--disable-sync",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={folder / 'profile'}",
        "--hide-scrollbars",
    )
    command = (CHROMIUM, "--headless", "--no-sandbox", *quiet, *offline, *what, page.as_uri())
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return result.stdout


def asked_for(log: Path) -> list[str]:
    """The addresses that the page, not the browser by itself, asked for."""
    text = log.read_text().rstrip().rstrip(",")
    content: dict[str, Any] = json.loads(text if text.endswith("}") else text + "]}")
    asked = [
        event["params"] for event in content["events"] if "initiator" in event.get("params", {})
    ]
    return [params["url"] for params in asked if params["initiator"] != "not an origin"]


@needs_chromium
def test_chromium_shows_it_and_fetches_nothing(
    report: Report, written: list[Path], tmp_path: Path
) -> None:
    from matplotlib.image import imread

    dom = browse(written[-1], tmp_path, "--dump-dom", f"--log-net-log={tmp_path / 'net.json'}")
    assert asked_for(tmp_path / "net.json") == []
    headline = report.sections[0].summary.headline
    assert percent(headline.coverage) in unescape(dom) and dom.rstrip().endswith("</html>")
    examples = report.sections[0].examples
    assert examples is not None and dom.count("<img") == sum(
        len(example.moments) + 1 for example in examples.shown
    )
    assert dom.count("<svg") == 9
    for width in (500, 1200):
        shot = tmp_path / f"{width}.png"
        browse(written[-1], tmp_path, f"--screenshot={shot}", f"--window-size={width},3000")
        pixels = imread(shot)
        assert pixels.shape[:2] == (3000, width)
        grey = (255 * pixels[:, :, :3].mean(axis=2)).astype(np.uint8)
        assert len(np.unique(grey)) > 50 and (grey == grey[0, 0]).mean() < 0.9


@needs_chromium
def test_the_test_above_would_notice(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<img src="https://example.com/picture.png">')
    browse(page, tmp_path, "--dump-dom", f"--log-net-log={tmp_path / 'net.json'}")
    assert asked_for(tmp_path / "net.json") == ["https://example.com/picture.png"]


def axe_core() -> Path | None:
    """axe-core of npm: in `node_modules` of this folder, or of a folder of NODE_PATH."""
    folders = [
        *filter(None, os.environ.get("NODE_PATH", "").split(os.pathsep)),
        str(Path(__file__).parents[2] / "node_modules"),
    ]
    return next(
        (path for folder in folders if (path := Path(folder, "axe-core", "axe.min.js")).exists()),
        None,
    )


@pytest.mark.slow
@needs_chromium
@pytest.mark.skipif(
    axe_core() is None,
    reason="checks with axe-core: npm install axe-core, or give its folder in NODE_PATH",
)
@pytest.mark.parametrize("dark", [False, True])
def test_two_ensembles_have_tabs_and_axe_finds_no_fault(
    report: Report, tmp_path: Path, dark: bool
) -> None:
    two = [replace(report.sections[0], name=name) for name in ("deep", "variational")]
    path, page = axe_core(), render_page(replace(report, sections=two))
    assert path is not None
    run = (
        "axe.run().then((found) => { document.title = "
        "JSON.stringify(found.violations.map((one) => [one.id, one.impact])); });"
    )
    if dark:
        page = page.replace("@media screen and (prefers-color-scheme: dark)", "@media screen")
    for broken in (False, not dark):
        shown = page.replace("<main>", "<main><img src='data:,'>") if broken else page
        (tmp_path / "page.html").write_text(
            shown.replace(
                "</body>", f"<script>{path.read_text()}</script><script>{run}</script></body>"
            )
        )
        dom = browse(
            tmp_path / "page.html",
            tmp_path,
            "--dump-dom",
            "--virtual-time-budget=20000",
            "--window-size=1400,1000",
        )
        found = re.search("<title>(.*?)</title>", dom)
        assert found is not None
        assert [kind for kind, _ in json.loads(unescape(found[1]))] == (
            ["image-alt"] if broken else []
        )
