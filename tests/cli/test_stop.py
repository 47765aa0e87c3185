"""The command line for risks and losses, and for people; and the pages about them."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

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
    np.savez(
        folder / "test.npz",
        risk=risk[200:],
        loss=loss[200:],
        times=np.arange(1, 9),
        ids=np.arange(200),
    )
    np.savez(folder / "unknown.npz", risk=risk[200:])
    calibration, test = ag.simulate_scores(400, steps=8, K=2, C=3).split(0.5, 0.5)
    ag.save_scores(folder / "scores.npz", calibration)
    ag.save_scores(folder / "others.npz", test)
    (folder / "people.txt").write_text("".join(f"p{row % 20}\n" for row in range(200)))
    (folder / "new-people.txt").write_text("".join(f"q{row % 20}\n" for row in range(200)))
    return folder


def test_risks_from_file_to_evaluation(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = folder / "rule"
    made = call(
        monkeypatch,
        capsys,
        "calibrate",
        folder / "calibration.npz",
        "--rule",
        "stop",
        "--target",
        "0.9",
        "--at-end",
        "abstain",
        "-o",
        rule,
    )
    assert made.code == 0 and "at most 0.1" in " ".join(made.out.split())
    decided = call(monkeypatch, capsys, "decide", rule, folder / "unknown.npz")
    assert (
        decided.out.splitlines()[0] == "input,stop_time,answered"
        and len(decided.out.splitlines()) == 201
    )
    assert (
        call(monkeypatch, capsys, "decide", rule, folder / "test.npz", "-o", folder / "d.npz").code
        == 0
    )
    with np.load(folder / "d.npz") as written:
        assert sorted(written) == ["answered", "stop_index", "stop_time"]
    shown = call(
        monkeypatch,
        capsys,
        "evaluate",
        rule,
        folder / "test.npz",
        "--people",
        folder / "people.txt",
    )
    assert (
        shown.code == 0
        and "wrong" in shown.out
        and "set size" not in shown.out
        and "of the 20 people" in shown.out
    )
    figures = json.loads(
        call(monkeypatch, capsys, "evaluate", rule, folder / "test.npz", "--json").out
    )
    with np.load(folder / "test.npz") as data:
        result = ag.evaluate(ag.load_rule(rule).decide(data["risk"]), data["loss"])
    assert (
        figures["wrong"] == result.wrong
        and figures["answered"] == result.answered
        and figures["by_class"] == []
    )


def test_people_from_file_to_evaluation(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert (
        made.code == 0
        and "20 people" in made.out
        and "with probability at least 0.9" in " ".join(made.out.split())
    )
    figures = call(
        monkeypatch,
        capsys,
        "evaluate",
        folder / "people",
        folder / "others.npz",
        "--people",
        folder / "new-people.txt",
        "--json",
    )
    assert (
        len(json.loads(figures.out)["by_person"]) == 20
        and 0 <= json.loads(figures.out)["people_below"] <= 1
    )


def test_a_report_on_risks(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = call(
        monkeypatch,
        capsys,
        "report",
        folder / "test.npz",
        "-o",
        folder / "page.html",
        "--n-calibration",
        "60",
    )
    assert made.code == 0 and "needs 99" in made.out
    page = (folder / "page.html").read_text(encoding="utf-8")
    again = call(monkeypatch, capsys, "report", folder / "test.npz", "--n-calibration", "60")
    assert again.out.replace("test.html", "page.html") == made.out
    assert (folder / "test.html").read_text(encoding="utf-8") == page
    assert page.startswith("<!doctype html>") and "one time for all" in page and "http" not in page
    code = unescape(re.findall(r"<code>(import .*?)</code>", page, flags=re.DOTALL)[0])
    with np.load(folder / "test.npz") as stored:
        names: dict[str, Any] = {name: stored[name] for name in ("risk", "loss")}
    exec(code, names | {"new_risk": names["risk"]})
    assert "inputs stop at" in page


def test_a_report_on_answers_begins_with_advice_and_code_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    samples = [[str(rng.integers(2) * (rng.random() < 0.3)) for _ in range(8)] for _ in range(80)]
    lines = (json.dumps({"answers": some}) for some in samples)
    (tmp_path / "some.jsonl").write_text("\n".join(lines))
    assert call(monkeypatch, capsys, "report", tmp_path / "some.jsonl").code == 0
    page = (tmp_path / "some.html").read_text(encoding="utf-8")
    advice, table = page.index("the one that all 8 samples give"), page.index("<table")
    code = unescape(re.findall(r"<code>(import .*?)</code>", page, flags=re.DOTALL)[0])
    names: dict[str, Any] = {"answers": ag.Answers(samples), "ask": lambda: "0"}
    exec(code, names)
    assert advice < table and names["decision"].names == ("0",)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("calibrate", "{}/unknown.npz", "--rule", "stop"), "has no losses"),
        (("calibrate", "{}/scores.npz", "--rule", "stop"), "no 'risk'"),
        (
            ("calibrate", "{}/calibration.npz", "--rule", "stop", "--labels", "final"),
            "--labels is for classes",
        ),
        (
            ("calibrate", "{}/calibration.npz", "--rule", "stop", "--max-set-size", "2"),
            "--max-set-size has no use",
        ),
        (
            (
                "calibrate",
                "{}/calibration.npz",
                "--rule",
                "stop",
                "--target",
                "0.9",
                "--max-loss",
                "0.1",
            ),
            "--max-loss",
        ),
        (
            ("calibrate", "{}/calibration.npz", "--rule", "stop", "--at-end", "never"),
            "--at-end is 'never'",
        ),
        (
            ("calibrate", "{}/calibration.npz", "--rule", "stop", "--fill"),
            "--fill belongs to the rule agreestop",
        ),
        (("calibrate", "{}/scores.npz", "--for-people", "0.9"), "without people"),
        (
            ("calibrate", "{}/scores.npz", "--people", "{}/people.txt", "--delta", "0.1"),
            "people and --delta",
        ),
    ],
)
def test_mistakes_are_one_sentence(
    words: tuple[str, ...],
    match: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [word.format(folder) for word in words]
    ended = call(monkeypatch, capsys, *given, "-o", folder / "never")
    assert ended.code == 2 and match in ended.err and not (folder / "never").exists()
    assert_one_sentence(
        ended.err.removeprefix("agreestop: ").replace(str(folder), "folder").replace(".npz", "")
    )


@pytest.mark.parametrize("page", ["stop-rule.md", "promises.md"])
def test_the_blocks_of_the_pages_run(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert blocks
    exec("\n".join(blocks), {})
    assert capsys.readouterr().out


def test_giving_up_from_file_to_decisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tuning, calibration, test = ag.simulate_scores(600, steps=20, K=3, C=4, pace=5.0).split(
        0.3, 0.3, 0.4
    )
    ag.save_scores(tmp_path / "tuning.npz", tuning)
    ag.save_scores(tmp_path / "calibration.npz", calibration)
    words = ("calibrate", tmp_path / "calibration.npz", "--target", "0.95", "-o", tmp_path / "rule")
    given = ("--at-end", "abstain", "--give-up", "0.1", "--tuning", tmp_path / "tuning.npz")
    made = call(monkeypatch, capsys, *words, *given)
    assert made.code == 0 and "Give-up line" in made.out
    give_up = ag.GiveUp.fit(tuning, share=0.1, max_set_size=1)
    rule = ag.AgreeStop(0.95, range(1, 21), 1, at_end="abstain", give_up=give_up)
    expected, found = (
        rule.calibrate(calibration).decide(test),
        ag.load_rule(tmp_path / "rule").decide(test),
    )
    assert found.stop_index.tolist() == expected.stop_index.tolist()
    assert (found.stop_time[~found.answered] < 20).any()
    for wrong in (given[:4], given[2:], (*given, "--gate")):
        refused = call(monkeypatch, capsys, *words, *wrong)
        assert refused.code == 2 and "give-up" in refused.err.replace("_", "-")


@pytest.mark.parametrize("risk", ["beta", "share", "learned"])
def test_the_risk_of_answers(
    risk: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{name}.jsonl" for name in ("calibration", "tuning", "test")]
    for start, path in enumerate(paths):
        samples = [
            np.where(rng.random(8) < ease, "7", rng.integers(5, size=8).astype(str)).tolist()
            for ease in rng.beta(2.0, 0.5, size=80)
        ]
        path.write_text(
            "\n".join(
                json.dumps({"id": 80 * start + row, "answers": some})
                for row, some in enumerate(samples)
            )
        )
    words = ("calibrate", paths[0], "--labels", "final", "--risk", risk, "-o", tmp_path / "rule")
    tuning = ("--tuning", paths[1])
    assert call(monkeypatch, capsys, *words, *(tuning if risk == "learned" else ())).code == 0
    learned, answers = (
        ag.VoteRisk.fit(ag.Answers.load(paths[1]), "final"),
        ag.Answers.load(paths[2]),
    )
    own = learned if risk == "learned" else ag.VoteRisk(risk)
    rule = ag.AgreeStop(0.9, range(1, 9), 1, risk=own).calibrate(ag.Answers.load(paths[0]), "final")
    assert (
        ag.load_rule(tmp_path / "rule").decide(answers).stop_index.tolist()
        == rule.decide(answers).stop_index.tolist()
    )
    refused = call(monkeypatch, capsys, *words, *(() if risk == "learned" else tuning))
    assert refused.code == 2 and "--risk" in refused.err
    if risk == "beta":
        tuned = call(monkeypatch, capsys, *words[:4], *tuning, "-o", tmp_path / "tuned")
        assert tuned.code == 0 and "votes" in tuned.out
        assert (
            "--risk"
            in call(monkeypatch, capsys, *words[:4], "--risk", "vote", "-o", tmp_path / "rule").err
        )
