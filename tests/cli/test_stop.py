"""The command line for risks and losses, and for people; and the pages about them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import agreestop as ag
from tests.cli.test_cli import call
from tests.decide.strategies import assert_one_sentence

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("risks"), np.random.default_rng(0)
    risk = np.exp(-np.cumsum(rng.random((400, 8)), axis=1))
    loss = rng.random((400, 8)) < risk
    np.savez(folder / "calibration.npz", risk=risk[:200], loss=loss[:200])
    np.savez(folder / "test.npz", risk=risk[200:], loss=loss[200:], times=np.arange(1, 9), ids=np.arange(200))
    np.savez(folder / "unknown.npz", risk=risk[200:])
    calibration, test = ag.simulate_scores(400, steps=8, K=2, C=3).split(0.5, 0.5)
    ag.save_scores(folder / "scores.npz", calibration)
    ag.save_scores(folder / "others.npz", test)
    (folder / "people.txt").write_text("".join(f"p{row % 20}\n" for row in range(200)))
    (folder / "new-people.txt").write_text("".join(f"q{row % 20}\n" for row in range(200)))
    return folder


def test_risks_from_file_to_evaluation(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rule = folder / "rule"
    made = call(
        monkeypatch, capsys, "calibrate", folder / "calibration.npz", "--rule", "stop", "--target", "0.9", "--at-end", "abstain", "-o", rule
    )
    assert made.code == 0 and "at most 0.1" in " ".join(made.out.split())
    decided = call(monkeypatch, capsys, "decide", rule, folder / "unknown.npz")
    assert decided.out.splitlines()[0] == "input,stop_time,answered" and len(decided.out.splitlines()) == 201
    assert call(monkeypatch, capsys, "decide", rule, folder / "test.npz", "-o", folder / "d.npz").code == 0
    with np.load(folder / "d.npz") as written:
        assert sorted(written) == ["answered", "stop_index", "stop_time"]
    shown = call(monkeypatch, capsys, "evaluate", rule, folder / "test.npz", "--people", folder / "people.txt")
    assert shown.code == 0 and "wrong" in shown.out and "set size" not in shown.out and "of the 20 people" in shown.out
    figures = json.loads(call(monkeypatch, capsys, "evaluate", rule, folder / "test.npz", "--json").out)
    data = np.load(folder / "test.npz")
    result = ag.evaluate(ag.load_rule(rule).decide(data["risk"]), data["loss"])
    assert figures["wrong"] == result.wrong and figures["answered"] == result.answered and figures["by_class"] == []


def test_people_from_file_to_evaluation(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "calibrate",
        folder / "scores.npz",
        "--people",
        folder / "people.txt",
        "--for-people",
        "0.9",
        "--target",
        "0.8",
        "-o",
        folder / "people",
    )
    made = call(monkeypatch, capsys, *words)
    assert made.code == 0 and "20 people" in made.out and "with probability at least 0.9" in " ".join(made.out.split())
    figures = call(
        monkeypatch, capsys, "evaluate", folder / "people", folder / "others.npz", "--people", folder / "new-people.txt", "--json"
    )
    assert len(json.loads(figures.out)["by_person"]) == 20 and 0 <= json.loads(figures.out)["people_below"] <= 1


def test_a_report_on_risks(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    made = call(monkeypatch, capsys, "report", folder / "test.npz", "-o", folder / "page.html", "--n-calibration", "60")
    assert made.code == 0 and "needs 99" in made.out
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "one time for all" in page and "http" not in page


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("calibrate", "{}/unknown.npz", "--rule", "stop"), "has no losses"),
        (("calibrate", "{}/scores.npz", "--rule", "stop"), "no 'risk'"),
        (("calibrate", "{}/calibration.npz", "--rule", "stop", "--labels", "final"), "--labels is for classes"),
        (("calibrate", "{}/calibration.npz", "--rule", "stop", "--max-set-size", "2"), "--max-set-size has no use"),
        (("calibrate", "{}/calibration.npz", "--rule", "stop", "--target", "0.9", "--max-loss", "0.1"), "--max-loss"),
        (("calibrate", "{}/calibration.npz", "--rule", "stop", "--at-end", "never"), "--at-end is 'never'"),
        (("calibrate", "{}/calibration.npz", "--rule", "stop", "--fill"), "--fill belongs to the rule agreestop"),
        (("calibrate", "{}/scores.npz", "--for-people", "0.9"), "without people"),
        (("calibrate", "{}/scores.npz", "--people", "{}/people.txt", "--delta", "0.1"), "people and --delta"),
    ],
)
def test_mistakes_are_one_sentence(
    words: tuple[str, ...], match: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word.format(folder) for word in words]
    ended = call(monkeypatch, capsys, *given, "-o", folder / "never")
    assert ended.code == 2 and match in ended.err and not (folder / "never").exists()
    assert_one_sentence(ended.err.removeprefix("agreestop: ").replace(str(folder), "folder").replace(".npz", ""))


@pytest.mark.parametrize("page", ["stop-rule.md", "promises.md"])
def test_the_blocks_of_the_pages_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert blocks
    exec("\n".join(blocks), {})
    assert capsys.readouterr().out
