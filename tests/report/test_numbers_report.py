"""A report from numbers: coverage, time and width of intervals at some targets and widths. Answers
and numbers are reported as files of them are.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("jinja2", reason="the report needs jinja2")
pytest.importorskip("matplotlib", reason="the report needs matplotlib")

import agreestop as ag
from agreestop.pipeline import numbers_report
from tests.cli.test_cli import call


def some_numbers(n: int = 240, ends: bool = False) -> ag.Numbers:
    """Centres that near the truth; a third of the inputs are hard."""
    rng = np.random.default_rng(0)
    truth, hard = rng.normal(size=n), rng.choice([1, 1, 3], size=n)
    scale = hard[:, None] / np.sqrt(np.arange(1, 11)) * np.ones((n, 1))
    centre = truth[:, None] + scale * rng.normal(size=scale.shape)
    if ends:
        return ag.Numbers(lower=centre - scale, upper=centre + scale, labels=truth)
    return ag.Numbers(centre, scale, labels=truth)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers_report, "REPEATS", 6)
    monkeypatch.setattr(numbers_report, "POOL_REPEATS", 2)
    monkeypatch.setattr(numbers_report, "MOST_TIMES", 4)


def test_wider_intervals_come_earlier_and_hold_the_number() -> None:
    found = numbers_report.measure_numbers(some_numbers(600), 0.8)
    main = found.main
    assert [point.max_width for point in main] == sorted(
        {point.max_width or 0 for point in main}
    ) and len(main) == 3
    assert main[0].time > main[-1].time and main[0].width < main[-1].width
    assert {point.target for point in found.points} == {0.8, 0.9, 0.95}
    assert all(1 >= point.coverage.high >= point.target for point in found.points)
    widths = [point.width for point in found.fixed]
    assert widths[0] > widths[-1] and [float(point.time) for point in found.fixed] == [1, 4, 7, 10]


@pytest.mark.parametrize("ends", [False, True])
def test_the_command_and_the_function_write_a_page_with_code_to_copy(
    tmp_path: Path, ends: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = some_numbers(ends=ends)
    names = ("lower", "upper") if ends else ("centre", "scale")
    np.savez(
        tmp_path / "numbers.npz",
        labels=numbers.labels,
        **{name: getattr(numbers, name) for name in names},
    )
    path = tmp_path / "page.html"
    result = call(
        monkeypatch, capsys, "report", tmp_path / "numbers.npz", "-o", path, "--target", "0.8"
    )
    assert result.code == 0 and "max_width" in result.out and "page.html" in result.out
    page = path.read_text()
    for words in (
        "ag.IntervalStop(target=0.8, max_width=",
        'class="copy"',
        "<svg",
        f"{names[0]}",
        'scope="col"',
        "prefers-color-scheme",
    ):
        assert words in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert (
        ag.write_report(tmp_path / "numbers.npz", tmp_path / "two.html", target=0.8).read_text()
        == page
    )


def test_write_report_takes_numbers_and_answers_as_it_takes_files_of_them(tmp_path: Path) -> None:
    numbers, rng = some_numbers(), np.random.default_rng(0)
    known = {"labels": numbers.labels, "centre": numbers.centre, "scale": numbers.scale}
    np.savez(tmp_path / "numbers.npz", **known)
    samples = [["18" if right else "17" for right in row] for row in rng.random((80, 6)) < 0.8]
    lines = [json.dumps({"answers": row, "gold": "18"}) for row in samples]
    (tmp_path / "answers.jsonl").write_text("\n".join(lines))
    for given, name, words in (
        (numbers, "numbers.npz", "IntervalStop"),
        (ag.Answers(samples, ["18"] * 80), "answers.jsonl", "adaptive consistency"),
    ):
        page = ag.write_report(given, tmp_path / "object.html").read_text()
        file = ag.write_report(tmp_path / name, tmp_path / "file.html").read_text()
        assert words in page and name in file
        assert page.replace(f"your {name.split('.')[0]}", name) == file


def test_targets_without_enough_examples_say_what_they_need() -> None:
    found = numbers_report.measure_numbers(some_numbers(), 0.8, n_calibration=12)
    assert found.needed == {0.95: "needs 19 calibration rows"}
    assert numbers_report.table_of_numbers(found)[-1][:2] == ("0.95", "needs 19 calibration rows")
    assert "less than chance explains" not in " ".join(numbers_report.advise_on_numbers(found))


def test_numbers_that_cannot_be_reported_are_refused_in_a_sentence() -> None:
    numbers = some_numbers()
    with pytest.raises(ag.InputError, match="have no labels"):
        numbers_report.measure_numbers(ag.Numbers(numbers.centre, numbers.scale))
    for n_calibration, words in ((160, "leave some to test"), (3, "needs 9")):
        with pytest.raises(ag.InputError, match=words):
            numbers_report.measure_numbers(numbers, 0.9, n_calibration=n_calibration)
    with pytest.raises(ag.InputError, match="a report needs 60"):
        numbers_report.measure_numbers(numbers.rows(slice(50)))
