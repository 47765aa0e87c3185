"""A report from scores alone: it shows every rule, groups and advice; and the figures of `ag.plot`
draw what an evaluation says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jinja2", reason="the report needs jinja2")
pytest.importorskip("matplotlib", reason="the report needs matplotlib")

import itertools
from typing import Any, cast

from matplotlib.figure import Figure
from typer.testing import CliRunner

import agreestop as ag
from agreestop.cli.app import app
from agreestop.common import Estimate
from agreestop.pipeline import scores_report
from agreestop.report import GroupCoverage, Report
from agreestop.report.advice import advise, rule_in_code
from agreestop.report.promises import measure_abstaining, measure_depths, measure_people
from tests.decide.strategies import measure_quickly

SCORES = ag.simulate_scores(240, steps=8, K=2, C=4, signal=5.0, pace=2.0)
SCORES = replace(
    SCORES, classes=("a", "b", "c", "<d>"), times=tuple(time / 4 for time in SCORES.times)
)
REST = SCORES.rows(slice(100, None))
GROUPS = np.where(np.arange(len(SCORES)) % 3 == 0, "few", "many")


@pytest.fixture(scope="module")
def quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        measure_quickly(patch, learned=False)
        patch.setattr(scores_report, "REALISATIONS", 3)
        patch.setattr(scores_report, "OTHER_TARGETS", ())
        yield


@pytest.fixture(scope="module")
def report(quick: None) -> Report:
    return scores_report.report_scores(SCORES, "0.8", 2, GROUPS)


def test_the_rows_are_divided_and_every_rule_is_measured(report: Report) -> None:
    assert (report.n_tuning, report.n_pool, report.measured.n_calibration) == (80, 160, 40)
    assert report.measured.checkpoints == (0.5, 1.0, 1.5, 2.0) and report.measured.targets[0] == 0.8
    labels = {record.label for record in report.sections[0].records}
    assert {
        "AgreeStop, every step",
        "stop-aware",
        "p-variable merging",
        "fixed time, every step",
        "DC-SNN",
    } <= labels


def test_groups_are_those_of_the_rows(report: Report) -> None:
    groups = {group.name: group for group in report.sections[0].breakdown.by_group}
    assert set(groups) == {"few", "many"}
    total = groups["few"].inputs + groups["many"].inputs
    assert total == pytest.approx(160 - 40) and groups["few"].inputs < groups["many"].inputs
    both = sum(float(group.coverage) * group.inputs for group in groups.values()) / total
    assert both == pytest.approx(float(report.sections[0].breakdown.overall), abs=1e-9)


def test_the_front_of_abstaining_is_measured_and_shown(report: Report) -> None:
    from agreestop.report.page import render_page

    assert [point.target for point in report.sections[0].abstaining] == [0.8, 0.9, 0.95]
    hard = ag.simulate_scores(400, steps=8, K=2, C=4, signal=3.0)
    measured = replace(report.measured, n_calibration=100)
    front = measure_abstaining(ag.AgreeStop(0.9, hard.times, 1), hard, measured)
    for easy, strict in itertools.pairwise(front):
        assert easy.wrong > strict.wrong and 0 < strict.answered < easy.answered
    assert all(point.wrong.low <= 1 - point.target and point.answered < 1 for point in front[1:])
    page = render_page(report)
    assert (
        page.index("who-gets-the-promise") < page.index("instead-of-a-weak-answer")
        and "of wrong answers that you can bear" in page
    )


def test_new_people_and_depths_are_measured_on_rows_that_took_no_part(report: Report) -> None:
    scores = ag.simulate_scores(480, steps=8, K=2, C=4, signal=5.0, pace=2.0)
    people = np.array([f"p{row % 24}" for row in range(480)])
    hard = np.isin(people, ["p1", "p2", "p3"])  # people for whom the model is wrong
    right = np.asarray(scores.labels)
    labels = np.where(hard, (right + 1) % 4, right)
    scores, measured = replace(scores, labels=labels), replace(report.measured, n_calibration=60)
    rule = ag.AgreeStop(0.8, scores.times, 1)
    rows, new, nine = measure_people(rule, scores, people.tolist(), measured)
    assert rows.below > nine.below and rows.kept < new.kept and rows.latency < new.latency
    assert {name for name, _, _ in sorted(rows.people, key=lambda person: person[1])[:3]} == {
        "p1",
        "p2",
        "p3",
    }
    assert all(count == 20 for _, _, count in rows.people) and len(rows.people) == 24
    tree = ag.Tree({"left": ("a", "b"), "right": ("c", "d")})
    coarse, fine = measure_depths(tree, replace(scores.rows(~hard), classes=tree.classes), measured)
    assert coarse.nodes == ("left", "right") and fine.nodes == tree.classes
    assert coarse.latency < fine.latency and coarse.answered[-1] == fine.answered[-1] == 1
    assert all(early >= late for early, late in zip(coarse.answered, fine.answered, strict=True))
    assert coarse.coverage.high >= 0.8 <= fine.coverage.high


def test_the_page_shows_people_and_depths(quick: None, tmp_path: Path) -> None:
    scores, people = (
        replace(SCORES, classes=("a", "b", "c", "d")),
        [f"p{row % 24}" for row in range(len(SCORES))],
    )
    ag.save_scores(tmp_path / "scores.npz", scores)
    (tmp_path / "people.txt").write_text("\n".join(people))
    (tmp_path / "tree.json").write_text('{"left": ["a", "b"], "right": ["c", "d"]}')
    options = [
        "--target",
        "0.8",
        "--people",
        str(tmp_path / "people.txt"),
        "--tree",
        str(tmp_path / "tree.json"),
    ]
    result = CliRunner().invoke(
        app, ["report", str(tmp_path / "scores.npz"), "-o", str(tmp_path / "page.html"), *options]
    )
    assert result.exit_code == 0
    page = (tmp_path / "page.html").read_text()
    for words in (
        'id="new-people"',
        "new people under 80\xa0%",
        "nine in ten new people",
        'id="coarse-first"',
        "1: left, right",
        options[-1],
    ):
        assert words in page
    for given, words in (
        ({"people": people[:5]}, r"people has shape \(5,\)"),
        ({"people": ["a", "b"] * 120}, "names 2 people"),
    ):
        with pytest.raises(ag.InputError, match=words):
            ag.write_report(scores, tmp_path / "two.html", **given)  # type: ignore[arg-type]
    with pytest.raises(ag.InputError, match="tree lacks class"):
        ag.write_report(
            SCORES, tmp_path / "two.html", tree=ag.Tree({"left": ("a", "b"), "right": ("c", "d")})
        )


def test_the_command_and_the_function_write_one_page_with_groups_times_and_advice(
    quick: None, tmp_path: Path
) -> None:
    ag.save_scores(tmp_path / "scores.npz", SCORES)
    (tmp_path / "groups.txt").write_text("\n".join(GROUPS))
    options = ["--target", "0.8", "--max-set-size", "2", "--groups", str(tmp_path / "groups.txt")]
    result = CliRunner().invoke(
        app, ["report", str(tmp_path / "scores.npz"), "-o", str(tmp_path / "one.html"), *options]
    )
    assert result.exit_code == 0 and "Take " in result.output and "one.html" in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "groups.txt",
        "one.html",
        "scores.npz",
    ]
    page = (tmp_path / "one.html").read_text()
    for words in (
        "Which rule to take",
        "By group",
        "&lt;d&gt;",
        "t = 0.5",
        "ag.tune(rule",
        "agreestop report",
        "of 2, on average",
    ):
        assert words in page
    # these are about digits and networks of a paper
    assert "paper's" not in page and "Agreeing to" not in page
    assert "metrics.json" not in page and "<d>" not in page and " ".join(options) in page
    assert (
        ag.write_report(SCORES, tmp_path / "two.html", target=0.8, max_set_size=2, groups=GROUPS)
        == tmp_path / "two.html"
    )
    assert "Which rule to take" in (tmp_path / "two.html").read_text()


def test_advice_follows_the_numbers(report: Report) -> None:
    section = report.sections[0]
    summary, low = section.summary, GroupCoverage("rare", 9.0, Estimate(0.5, 0.4, 0.6, 0.05))
    headline = summary.headline
    measured, parts = (
        report.measured,
        replace(section.breakdown, by_class=(low,), by_group=(low,), by_time=(low,), lowest=0.6),
    )
    words = " ".join(advise(replace(section, breakdown=parts), measured))
    for said in (
        "class rare (50 %)",
        "class_conditional=True",
        "group rare",
        "groups=",
        "accumulated=True",
        "as low as 60.0 %",
        "delta=0.1",
    ):
        assert said in words
    quiet = replace(parts, by_class=(), by_group=(), by_time=(), lowest=0.8)
    assert (
        "rare" not in " ".join(shown := advise(replace(section, breakdown=quiet), measured))
        and f"Take {headline.label}" in shown[0]
    )
    late, early = (
        replace(
            headline,
            label="fixed time, every step",
            rule="fixedtime",
            latency=value,
            latency_se=0.0,
        )
        for value in (1.0, 0.01)
    )
    for fixed, said_of_it in ((late, "Adapting to each input is worth it"), (early, "and simpler")):
        with_fixed = replace(
            section, summary=replace(summary, rules=(headline, fixed)), breakdown=quiet
        )
        assert said_of_it in " ".join(advise(with_fixed, measured))
    broken = replace(section, summary=replace(summary, kept=False))
    assert "exchangeable" in advise(broken, measured)[0]
    stuck = replace(
        section, summary=replace(summary, headline=replace(headline, examples_needed=99))
    )
    assert advise(stuck, measured)[0].startswith("Label at least 99 examples")
    tuning, calibration = SCORES.split(0.5, 0.5)
    for rule, made in (("agreestop", ag.AgreeStop), ("spikecp", ag.SpikeCP)):
        names: dict[str, Any] = {"tuning_scores": tuning, "calibration_scores": calibration}
        exec(rule_in_code(replace(headline, rule=rule), 2), names)
        assert isinstance(names["calibrated"].rule, made)
    rare = replace(section, breakdown=parts)
    for rule, advised in (
        ("agreestop", "give accumulated"),
        ("spikecp", "take AgreeStop with"),
    ):
        of_rule = replace(rare, summary=replace(summary, headline=replace(headline, rule=rule)))
        assert advised in " ".join(advise(of_rule, measured))  # SpikeCP has no such option
    needed = ag.AgreeStop(headline.target, (1,), 1, class_conditional=True).examples_needed()
    assert words.count(f"at least {needed} calibration examples of each") == 2


@pytest.mark.parametrize(
    ("scores", "options", "words"),
    [
        (replace(SCORES, labels=None), {}, "hold no labels"),
        (SCORES.rows(slice(0, 30)), {}, "30 rows are too few"),
        (SCORES.at(ag.Schedule([(0.5, 1), (2, 2)])), {}, "looks of a schedule"),
        (SCORES, {"max_set_size": 4}, "max_set_size is 4 of 4 classes"),
        (SCORES, {"n_calibration": 41}, "give at most 40"),
        (SCORES, {"groups": ["a", "b"]}, r"groups has shape \(2,\)"),
    ],
)
def test_what_cannot_be_reported_is_refused_in_a_sentence(
    scores: ag.Scores, options: dict[str, object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ag.InputError, match=words):
        ag.write_report(scores, tmp_path / "page.html", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "page.html").exists()


def test_a_path_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # would be called for the work
    monkeypatch.setattr("agreestop.pipeline.scores_report.report_scores", None)
    for path in (tmp_path / "none" / "page.html", tmp_path):
        with pytest.raises(ag.InputError, match="cannot write"):
            ag.write_report(SCORES, path)
    assert not list(tmp_path.iterdir())
    missing, output = str(tmp_path / "missing"), ["-o", str(tmp_path / "none" / "one.csv")]
    for words in (
        ["report", missing],
        ["calibrate", missing],
        ["decide", missing, missing],
        ["score", missing, "--members", missing],
    ):
        # what is read is missing too, and would be named if it were read first
        result = CliRunner().invoke(app, [*words, *output])
        assert isinstance(result.exception, ag.InputError) and "cannot write" in str(
            result.exception
        )


def test_with_a_target_coverage_of_a_rule_that_abstains_is_what_the_target_promises() -> None:
    calibration, test = ag.simulate_scores(400, steps=10, K=2, C=4, seed=3).split(0.5, 0.5)
    result = ag.evaluate(
        ag.AgreeStop(0.95, range(1, 11), 1, at_end="abstain").calibrate(calibration).decide(test),
        test,
    )
    assert (
        result.answered is not None
        and result.kept is not None
        and result.answered < 1
        and result.kept > result.coverage
    )
    kept, covered = (
        ag.plot.coverage(result, Figure().subplots(), by="class", target=target)
        for target in (0.8, None)
    )
    shown = [
        [one.lines[0].get_ydata()[0] for one in cast(Any, axes).containers]
        for axes in (kept, covered)
    ]
    assert shown == [
        [float(one.kept or 0) for one in result.by_class],
        [float(one.coverage) for one in result.by_class],
    ]
    assert "kept" in str(result)


def test_figures_draw_on_the_axes_that_they_are_given() -> None:
    rule = ag.AgreeStop(0.8, SCORES.times, 1).calibrate(
        SCORES.rows(slice(0, 100)), groups=GROUPS[:100]
    )
    decisions = rule.decide(SCORES.rows(slice(100, None)), groups=GROUPS[100:])
    result = ag.evaluate(decisions, SCORES.rows(slice(100, None)))
    for by, count in {"class": 4, "group": 2, "time": len(result.by_stop_time)}.items():
        axes: Any = Figure().subplots()
        assert ag.plot.coverage(result, axes, by=by, target=0.8) is axes
        assert len(axes.containers) == count == len(axes.get_xticks())
    values = [container.lines[0].get_ydata()[0] for container in axes.containers]
    assert values == [float(group.coverage) for group in result.by_stop_time]
    (line,) = ag.plot.stopping(decisions, Figure().subplots()).lines
    answered = np.asarray(line.get_ydata())
    assert answered[-1] == 1 and answered[3] == np.mean(decisions.stop_time <= SCORES.times[2])
    axes = ag.plot.compare(
        {"AgreeStop": result, "fixed time": result}, Figure().subplots(), target=0.8
    )
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "AgreeStop",
        "fixed time",
    ]
    names = ("AgreeStop", "mine", "theirs", "yours, every step")
    compared: Any = ag.plot.compare(dict.fromkeys(names, result), Figure().subplots())
    drawn = [container.lines[0] for container in compared.containers]
    assert (
        len({line.get_color() for line in drawn})
        == len({line.get_marker() for line in drawn})
        == len(names)
    )
    # a known rule keeps its own
    assert drawn[0].get_color() == axes.containers[0].lines[0].get_color()
    plain = ag.AgreeStop(0.8, SCORES.times, 1).calibrate(SCORES.rows(slice(0, 100)))
    monitor = ag.DriftMonitor(plain)
    monitor.observe(plain.decide(SCORES.rows(slice(100, None))))
    assert ag.plot.drift(monitor, Figure().subplots()).lines
    assert ag.plot.drift(ag.AdaptiveRule(plain), Figure().subplots()).get_ylabel() == "threshold"


def test_what_cannot_be_drawn_or_saved_is_refused_in_a_sentence(tmp_path: Path) -> None:
    draw: Any = ag.plot
    for function, given in (
        (draw.coverage, 3),
        (draw.stopping, SCORES),
        (draw.compare, [1]),
        (draw.compare, {"a": 1}),
    ):
        with pytest.raises(ag.InputError, match=r"ag\.plot\.\w+ got a \w+: give "):
            function(given)
    result = ag.evaluate(
        ag.AgreeStop(0.8, SCORES.times, 1).calibrate(SCORES.rows(slice(0, 100))).decide(REST), REST
    )
    for draw_result in (
        draw.coverage,
        lambda one, *axes, **options: draw.compare({"a": one}, *axes, **options),
    ):
        with pytest.raises(ag.InputError, match="axes is a Figure: give one pair of axes"):
            draw_result(result, Figure())
        with pytest.raises(ag.InputError, match="target is 90"):
            draw_result(result, Figure().subplots(), target=90)
    wrongs: Any = ((SCORES.log_confidence, tmp_path / "page.html"), (SCORES, None))
    for wrong in wrongs:
        with pytest.raises(ag.InputError, match=r"write_report got a (ndarray|NoneType)"):
            ag.write_report(*wrong)
    save: Any = ag.save_scores
    with pytest.raises(ag.InputError, match="give the path first, then a Scores"):
        save(SCORES, tmp_path / "scores.npz")


def test_a_figure_of_groups_that_are_not_there_is_refused() -> None:
    result = ag.evaluate(
        ag.AgreeStop(0.8, SCORES.times, 1).calibrate(SCORES.rows(slice(0, 100))).decide(REST), REST
    )
    with pytest.raises(ag.InputError, match="has no blocks"):
        ag.plot.coverage(result, by="block")
    with pytest.raises(ag.InputError, match="by is 'day': choose one of time, class"):
        ag.plot.coverage(result, by="day")


def test_ticks_are_true_and_the_advice_comes_first(report: Report) -> None:
    from agreestop.report.figures import true_percent
    from agreestop.report.page import render_page

    assert [true_percent(value) for value in (0.975, 0.98, 1.0, 0.9999)] == [
        "97.5%",
        "98%",
        "100%",
        "99.99%",
    ]
    page = render_page(report)
    headings = [
        page.index(f'id="{name}"')
        for name in ("which-rule-to-take", "what-was-measured", "fine-print")
    ]
    assert headings == sorted(headings) and 'class="copy"' in page and 'class="contents"' in page
