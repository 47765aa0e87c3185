"""The command line on files: what the verbs write, and that every mistake is one sentence and exit
code 2.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import agreestop as ag
from agreestop.cli import main
from agreestop.cli.texts import parse_checkpoints
from tests.decide.strategies import Trial, parse_pooling, simulate_spikes

NAMES = ("left", "right", "up")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Score files of a small stream: log-confidences for tuning and calibration, packed spikes for
    the test.
    """
    folder = tmp_path_factory.mktemp("scores")
    spikes, labels = simulate_spikes(420, steps=12, K=2, C=3, seed=5, pace=3.0)
    for name, rows in (
        ("tuning", slice(0, 120)),
        ("calibration", slice(120, 220)),
        ("test", slice(220, None)),
    ):
        counts = np.cumsum(spikes[rows], axis=1)
        ag.save_scores(
            folder / f"{name}.npz",
            ag.Scores(ag.log_confidence(counts), labels[rows], tuple(range(1, 13)), NAMES),
        )
    ag.save_spikes(folder / "spikes.npz", spikes[220:], labels[220:], NAMES)
    ag.save_spikes(folder / "unlabelled.npz", spikes[220:])
    ag.save_spikes(folder / "words.npz", spikes[:2], labels[:2])
    (folder / "words.txt").write_text("north\nsouth\n")
    (folder / "row.txt").write_text("0 1 2\n")
    (folder / "costs.txt").write_text("0 1 2\n1 0 1\n4 1 0\n")
    (folder / "lines.txt").write_text("north\n" * 200)
    return folder


class Outcome:
    """What a call printed, standard error unwrapped, and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object
) -> Outcome:
    monkeypatch.setattr(sys, "argv", ["agreestop", *(str(word) for word in words)])
    with pytest.raises(SystemExit) as ended:
        main()
        sys.exit(0)
    printed = capsys.readouterr()
    return Outcome(int(ended.value.code or 0), printed.out, " ".join(printed.err.split()))


Call = pytest.MonkeyPatch, pytest.CaptureFixture[str]


@pytest.fixture
def rule(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    path = folder / "rule"
    if not path.exists():
        words = (
            "--target",
            "0.8",
            "--checkpoints",
            "3,6,9,12",
            "--max-set-size",
            "2",
            "--pooling",
            "confidence:1",
        )
        outcome = call(
            monkeypatch,
            capsys,
            "calibrate",
            folder / "calibration.npz",
            *words,
            "--calibration",
            "stop-aware",
            "-o",
            path,
        )
        assert outcome.code == 0, outcome.err
        assert "at least 0.8" in " ".join(outcome.out.split())
    return path


def test_a_calibrated_file_decides_as_python_does(rule: Path, folder: Path) -> None:
    calibration = ag.load_scores(folder / "calibration.npz")
    assert calibration.labels is not None
    here = ag.SpikeCP("0.8", (3, 6, 9, 12), 2, ag.MergeConfidence(r=1), "stop-aware")
    calibrated = here.calibrate(calibration.log_confidence, calibration.labels, calibration.times)
    test = ag.load_scores(folder / "test.npz", (3, 6, 9, 12))
    mine, theirs = (
        calibrated.decide(test.log_confidence),
        ag.load_rule(rule).decide(test.log_confidence),
    )
    np.testing.assert_array_equal(mine.sets, theirs.sets)
    np.testing.assert_array_equal(mine.stop_index, theirs.stop_index)


@pytest.mark.parametrize("scores", ["test.npz", "spikes.npz"])
def test_decisions_are_written_alike_in_every_format(
    rule: Path,
    folder: Path,
    scores: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for kind in ("csv", "json", "npz"):
        outcome = call(
            monkeypatch, capsys, "decide", rule, folder / scores, "-o", tmp_path / f"d.{kind}"
        )
        assert outcome.code == 0 and "200 decisions" in outcome.err
    test = ag.load_scores(folder / "test.npz", (3, 6, 9, 12))
    decisions = ag.load_rule(rule).decide(test.log_confidence)
    named = [[NAMES[label] for label in decisions[row].classes] for row in range(200)]
    with (tmp_path / "d.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["classes"].split(";") for row in rows] == named
    assert [int(row["stop_time"]) for row in rows] == decisions.stop_time.tolist()
    records = json.loads((tmp_path / "d.json").read_text())
    assert [record["classes"] for record in records] == named
    with np.load(tmp_path / "d.npz") as arrays:
        np.testing.assert_array_equal(arrays["sets"], decisions.sets)
    outcome = call(monkeypatch, capsys, "decide", rule, folder / scores)
    assert outcome.out == (tmp_path / "d.csv").read_text()


def test_evaluate_prints_tables_and_json(
    rule: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = call(monkeypatch, capsys, "evaluate", rule, folder / "test.npz")
    assert tables.code == 0
    for word in (
        "Guarantee",
        "coverage",
        "By stopping time, without a promise",
        "By true class",
        "left",
        "member-steps",
    ):
        assert word in " ".join(tables.out.split())
    machine = json.loads(
        call(monkeypatch, capsys, "evaluate", rule, folder / "test.npz", "--json").out
    )
    test = ag.load_scores(folder / "test.npz", (3, 6, 9, 12))
    assert test.labels is not None
    result = ag.evaluate(ag.load_rule(rule).decide(test.log_confidence), test.labels)
    assert machine["coverage"] == float(result.coverage)
    assert result.draw_range is not None and machine["draw_range"] == list(result.draw_range)
    low, high = result.draw_range
    assert f"can move the coverage of 200 inputs between {low:.3f} and {high:.3f}" in " ".join(
        tables.out.split()
    )
    assert machine["latency"] == float(result.normalized_latency)
    assert result.accuracy is not None and result.singles is not None and result.work is not None
    for name, value in (
        ("accuracy", result.accuracy),
        ("singles", result.singles),
        ("work", result.work),
    ):
        assert machine[name] == float(value) and machine[f"{name}_interval"] == [
            value.low,
            value.high,
        ]
    assert f"The best class is right for {result.accuracy:.3f}" in " ".join(tables.out.split())
    assert 0 <= machine["latency"] <= 1
    assert [group["class"] for group in machine["by_class"]] == list(NAMES)


@pytest.mark.parametrize(
    "words",
    [
        ("--rule", "agreestop", "--max-set-size", 2),
        ("--rule", "agreestop", "--max-set-size", 2, "--fill", "--pooling", "confidence:0"),
        ("--rule", "dcsnn"),
        ("--rule", "seenn", "--threshold", "0.7"),
        ("--rule", "spikecp", "--pooling", "p-values:45", "--checkpoints", "6,12"),
        ("--rule", "spikecp", "--pooling", "p-values:1:exchangeable", "--checkpoints", "12"),
        ("--rule", "spikecp", "--pooling", "ranks:1", "--checkpoints", "12"),
        ("--rule", "spikecp", "--pooling", "vote", "--checkpoints", "12"),
        (),
        ("--calibration", "simultaneous", "--class-conditional"),
        ("--calibration", "stop-aware", "--delta", "0.1", "--target", "4/5"),
        ("--target", "0.7", "--gate", "--tuning", "{}/tuning.npz"),
        (
            "--target",
            "0.7",
            "--gate",
            "--blocks",
            "3",
            "--tuning",
            "{}/tuning.npz",
            "--calibration",
            "stop-aware",
        ),
        ("--target", "0.7", "--accumulated", "--delta", "0.2"),
        ("--trim", "0.5", "--max-set-size", "2"),
        ("--schedule", "1:1,3:1, 3:2,12:2"),
        (
            "--rule",
            "spikecp",
            "--pooling",
            "vote",
            "--checkpoints",
            "12",
            "--class-conditional",
            "--target",
            "0.8",
        ),
        ("--price-of-size", "0.1", "--tuning", "{}/tuning.npz", "--checkpoints", "6,12"),
    ],
)
def test_every_rule_can_be_calibrated_and_evaluated(
    words: tuple[object, ...],
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "rule"
    outcome = call(
        monkeypatch,
        capsys,
        "calibrate",
        folder / "calibration.npz",
        "-o",
        path,
        *(str(word).format(folder) for word in words),
    )
    assert outcome.code == 0, outcome.err
    assert call(monkeypatch, capsys, "evaluate", path, folder / "spikes.npz").code == 0


def test_a_gate_of_the_command_line_is_that_of_python(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = (
        "--target",
        "0.7",
        "--gate",
        "--blocks",
        "3,7",
        "--tuning",
        folder / "tuning.npz",
        "--pooling",
        "confidence:0",
    )
    outcome = call(
        monkeypatch,
        capsys,
        "calibrate",
        folder / "calibration.npz",
        *words,
        "-o",
        tmp_path / "rule",
    )
    assert outcome.code == 0 and "ready in (3, 7], ready in (7, 12], never ready" in " ".join(
        outcome.out.split()
    ), outcome.err
    tuning, calibration, test = (
        ag.load_scores(folder / f"{name}.npz") for name in ("tuning", "calibration", "test")
    )
    gate = ag.Gate.fit(
        tuning, target="0.7", max_set_size=1, blocks=(3, 7), risk=ag.TopMass(ag.MergeConfidence(0))
    )
    with pytest.warns(ag.CalibrationWarning, match="block"):
        expected = ag.AgreeStop("0.7", range(1, 13), 1, gate=gate).calibrate(calibration)
    np.testing.assert_array_equal(ag.load_rule(tmp_path / "rule").thresholds, expected.thresholds)
    result = ag.evaluate(expected.decide(test), test)
    machine = json.loads(
        call(monkeypatch, capsys, "evaluate", tmp_path / "rule", folder / "test.npz", "--json").out
    )
    assert result.by_block is not None
    assert [(one["block"], one["coverage"]) for one in machine["by_block"]] == [
        (one.name, one.coverage) for one in result.by_block
    ]
    tables = " ".join(
        call(monkeypatch, capsys, "evaluate", tmp_path / "rule", folder / "test.npz").out.split()
    )
    assert "first looked ready, 0.7 is promised for each" in tables and "ready in (3, 7]" in tables


def test_groups_weights_losses_and_final_labels_come_from_the_command_line(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    calibration, test = (
        ag.load_scores(folder / "calibration.npz"),
        ag.load_scores(folder / "test.npz"),
    )
    names = ["north", "south"]
    inside, later = ([names[row % 2] for row in range(len(part))] for part in (calibration, test))
    later[0] = "west"
    weights, costs = (
        np.linspace(0.5, 1.5, len(calibration)),
        np.array([[0, 1, 2], [1, 0, 1], [4, 1, 0]], dtype=float),
    )
    # with a byte order mark, as some editors write it
    (tmp_path / "groups.txt").write_text("\n".join(inside) + "\n", encoding="utf-8-sig")
    (tmp_path / "later.txt").write_text("\n".join(later))
    (tmp_path / "weights.txt").write_text("\n".join(map(str, weights)))
    (tmp_path / "costs.csv").write_text("0,1,2\n1,0,1\n4,1,0\n", encoding="utf-8-sig")
    rule = ag.AgreeStop("0.8", calibration.times, 1)
    cases: dict[str, tuple[tuple[object, ...], ag.CalibratedRule]] = {
        "groups": (
            ("--target", "0.8", "--groups", tmp_path / "groups.txt"),
            rule.calibrate(calibration, groups=inside),
        ),
        "weights": (
            ("--target", "0.8", "--weights", tmp_path / "weights.txt", "--max-weight", "2"),
            rule.calibrate(calibration, weights=weights, max_weight=2.0),
        ),
        "loss": (
            ("--loss", tmp_path / "costs.csv", "--max-loss", "0.5"),
            ag.AgreeStop(None, calibration.times, 1, loss=costs, max_loss="0.5").calibrate(
                calibration
            ),
        ),
        "final": (("--target", "0.8", "--labels", "final"), rule.calibrate(calibration, "final")),
    }
    for name, (words, expected) in cases.items():
        outcome = call(
            monkeypatch,
            capsys,
            "calibrate",
            folder / "calibration.npz",
            *words,
            "-o",
            tmp_path / name,
        )
        assert outcome.code == 0, outcome.err
        found = ag.load_rule(tmp_path / name)
        np.testing.assert_array_equal(found.thresholds, expected.thresholds)
        assert found.guarantee == expected.guarantee and found.guarantee in " ".join(
            outcome.out.split()
        )
    assert (
        call(
            monkeypatch,
            capsys,
            "calibrate",
            folder / "unlabelled.npz",
            "--labels",
            "final",
            "-o",
            tmp_path / "new",
        ).code
        == 0
    )

    decided = call(
        monkeypatch,
        capsys,
        "decide",
        tmp_path / "groups",
        folder / "test.npz",
        "--groups",
        tmp_path / "later.txt",
    )
    assert (
        decided.code == 0
        and "1 of the 200 inputs are of no group that calibration saw" in decided.err
    )
    assert decided.out.splitlines()[1] == "0,12,3,left;right;up"
    refused = call(monkeypatch, capsys, "decide", tmp_path / "groups", folder / "test.npz")
    assert refused.code == 2 and "with --groups" in refused.err and not refused.out
    words = (
        "evaluate",
        tmp_path / "groups",
        folder / "test.npz",
        "--groups",
        tmp_path / "later.txt",
    )
    machine = json.loads(call(monkeypatch, capsys, *words, "--json").out)
    result = ag.evaluate(cases["groups"][1].decide(test, groups=later), test)
    assert result.by_group is not None
    assert [(one["group"], one["n"]) for one in machine["by_group"]] == [
        (one.name, one.n) for one in result.by_group
    ]
    assert "By group, 0.8 is promised for each" in " ".join(
        call(monkeypatch, capsys, *words).out.split()
    )


def test_evaluate_shows_what_is_promised(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A rule's tables name its promise, show the figure that it is about, and call all others by
    what they are.
    """
    (tmp_path / "groups.txt").write_text("north\nsouth\n" * 50)
    cases: dict[str, tuple[tuple[object, ...], list[str], list[str]]] = {
        "plain": (
            (),
            [
                "All inputs ",
                "By stopping time, without a promise",
                "By true class, without a promise",
            ],
            ["is promised", "agreement", "cost", "Answers that came by"],
        ),
        "each class": (
            ("--class-conditional",),
            ["By true class, 0.8 is promised for each", "By stopping time, without a promise"],
            [],
        ),
        "loss": (
            ("--loss", folder / "costs.txt", "--max-loss", "0.5"),
            [
                "All inputs: a mean cost of at most 0.5 is promised, nothing about coverage",
                " cost ",
                "By true class, without a promise",
            ],
            ["agreement"],
        ),
        "final": (
            ("--labels", "final"),
            [
                "All inputs: agreement with the final class of 0.8 is promised, nothing about "
                "coverage",
                " agreement ",
                "class, without a",
            ],
            ["By final class", "cost"],
        ),
        "each final class": (
            ("--labels", "final", "--class-conditional"),
            [
                "By final class, agreement with the final class of 0.8 is promised for each",
                "By true class, without a promise",
            ],
            [],
        ),
        "accumulated": (
            ("--accumulated", "--delta", "0.1"),
            [
                "Answers that came by a time, 0.8 is promised for each",
                "By true class, without a promise",
            ],
            [],
        ),
        "groups": (("--groups", tmp_path / "groups.txt"), ["All inputs"], ["By group"]),
    }
    for name, (words, present, absent) in cases.items():
        target = () if name == "loss" else ("--target", "0.8")
        made = call(
            monkeypatch,
            capsys,
            "calibrate",
            folder / "calibration.npz",
            *words,
            *target,
            "-o",
            tmp_path / name,
        )
        assert made.code == 0, made.err
        told = call(monkeypatch, capsys, "evaluate", tmp_path / name, folder / "test.npz")
        tables = " ".join(told.out.split("All inputs", 1)[1].split())
        assert all(
            part in f"All inputs {tables}".replace("All inputs :", "All inputs:")
            for part in present
        ), (name, tables)
        assert not any(part in tables for part in absent), (name, tables)
        machine = json.loads(
            call(
                monkeypatch, capsys, "evaluate", tmp_path / name, folder / "test.npz", "--json"
            ).out
        )
        test = ag.load_scores(folder / "test.npz")
        result = ag.evaluate(ag.load_rule(tmp_path / name).decide(test), test)
        assert machine.get("cost") == result.cost and machine.get("agreement") == result.agreement
        assert (result.cost is None, result.agreement is None) == (
            name != "loss",
            "final" not in name,
        )
        if name == "accumulated":
            assert [(one["time"], one["n"], one["coverage"]) for one in machine["answered_by"]] == [
                (one.key, one.n, one.coverage) for one in result.answered_by
            ]
        if name == "groups":
            assert (
                "200 of the 200 inputs are of no group that calibration saw" in told.err
                and "give their groups" in told.err
            )


@pytest.mark.parametrize(
    ("words", "told"), [(("--trim", "0.5"), True), (("--fill",), True), ((), False)]
)
def test_what_has_no_effect_on_single_answers_is_said(
    words: tuple[str, ...],
    told: bool,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = f"{words[0] if words else ''} has no effect with --max-set-size 1"
    for size in (1, 2):
        path, plain = tmp_path / f"rule{size}", tmp_path / f"plain{size}"
        made = call(
            monkeypatch,
            capsys,
            "calibrate",
            folder / "calibration.npz",
            *words,
            "--max-set-size",
            size,
            "-o",
            path,
        )
        assert made.code == 0 and (said in made.err) == (told and size == 1)
        call(
            monkeypatch,
            capsys,
            "calibrate",
            folder / "calibration.npz",
            "--max-set-size",
            size,
            "-o",
            plain,
        )
        ours, others = (
            ag.load_rule(one).decide(ag.load_scores(folder / "test.npz")).sets
            for one in (path, plain)
        )
        assert size > 1 or np.array_equal(ours, others)


def test_warnings_name_options(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcome = call(
        monkeypatch,
        capsys,
        "calibrate",
        folder / "calibration.npz",
        "--max-set-size",
        3,
        "-o",
        tmp_path / "rule",
    )
    assert "Warning: --max-set-size is 3 and there are 3 classes" in outcome.err


def test_tuning_that_does_not_help_is_said(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        "agreestop.cli.tuning.tune",
        lambda rule, *_, **__: ag.Tuned(rule, (Trial("x", 1.0, 1.0),), "It did not help."),
    )
    words = ("--tuning", folder / "tuning.npz", "-o", tmp_path / "rule")
    outcome = call(monkeypatch, capsys, "calibrate", folder / "calibration.npz", *words)
    assert outcome.code == 0 and "It did not help." in outcome.out and "Tuned on" not in outcome.out


def test_tuning_from_a_file(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = (
        "--rule",
        "agreestop",
        "--checkpoints",
        "3,6,12",
        "--tuning",
        folder / "tuning.npz",
        "--pooling",
        "confidence:1",
    )
    outcome = call(
        monkeypatch,
        capsys,
        "calibrate",
        folder / "calibration.npz",
        *words,
        "-o",
        tmp_path / "rule",
    )
    assert outcome.code == 0, outcome.err
    assert "Tuned on" in outcome.out
    refused = call(monkeypatch, capsys, "evaluate", tmp_path / "rule", folder / "tuning.npz")
    assert (
        refused.code == 2
        and f"agreestop: {folder / 'tuning.npz'}: 120 of the 120 rows were used for tuning"
        in refused.err
    )
    again = call(
        monkeypatch, capsys, "calibrate", folder / "tuning.npz", *words, "-o", tmp_path / "again"
    )
    assert again.code == 2 and not (tmp_path / "again").exists()


def test_too_few_examples_are_told_in_a_sentence(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--rule", "spikecp", "--pooling", "vote")
    outcome = call(
        monkeypatch,
        capsys,
        "calibrate",
        folder / "calibration.npz",
        *words,
        "-o",
        tmp_path / "rule",
    )
    assert outcome.code == 0
    assert "never" not in outcome.out  # the warning has said it
    needed = "can never stop early: it was calibrated on 100 examples, and needs at least 239."
    assert needed in call(monkeypatch, capsys, "decide", tmp_path / "rule", folder / "test.npz").err
    assert needed in " ".join(
        call(monkeypatch, capsys, "evaluate", tmp_path / "rule", folder / "test.npz").out.split()
    )
    assert (
        "Warning: With 100 calibration examples this rule can never exclude a label" in outcome.err
    )


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("calibrate", "none.npz", "-o", "x"), "there is no file none.npz"),
        (
            ("calibrate", "{}/calibration.npz", "-o", "no/such/folder/x"),
            "cannot write no/such/folder/x",
        ),
        (("calibrate", "{}/unlabelled.npz", "-o", "x"), "has no labels"),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--target", "1.5"),
            "agreestop: --target is '1.5'",
        ),
        (("calibrate", "{}/calibration.npz", "-o", "x", "--target", ""), "target is ''"),
        (("score", "--engine", "dense"), "without --members the configuration names it"),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--target", "1e-99999999"),
            "target is '1e-99999999'",
        ),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--checkpoints", "20"),
            "the file has times 1 to 12",
        ),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--checkpoints", "6,3"),
            "checkpoints must increase",
        ),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--checkpoints", "often"),
            "give times such as",
        ),
        (("calibrate", "{}/calibration.npz", "-o", "x", "--pooling", "mean"), "pooling is 'mean'"),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--pooling", "confidence:x"),
            "pooling is 'confidence:x'",
        ),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--pooling", "p-values:1:odd"),
            "form is 'odd'",
        ),
        (
            (
                "calibrate",
                "{}/calibration.npz",
                "-o",
                "x",
                "--pooling",
                "vote",
                "--calibration",
                "stop-aware",
            ),
            "has no guarantee",
        ),
        (
            (
                "calibrate",
                "{}/calibration.npz",
                "-o",
                "x",
                "--rule",
                "agreestop",
                "--pooling",
                "vote",
            ),
            "agreestop pools confidences",
        ),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--rule", "seenn"),
            "give --threshold, for example 0.9",
        ),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--threshold", "0.5"),
            "threshold belongs to the rule seenn, not to agreestop",
        ),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--rule", "spikecp", "--fill"),
            "fill belongs to the rule agreestop",
        ),
        (
            (
                "calibrate",
                "{}/calibration.npz",
                "-o",
                "x",
                "--rule",
                "dcsnn",
                "--calibration",
                "stop-aware",
            ),
            "belongs to the rule spikecp",
        ),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--rule", "seenn", "--target", "0.9"),
            "target belongs to",
        ),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--tuning", "{}/calibration.npz"),
            "tune on other inputs",
        ),
        (("evaluate", "{}/rule", "{}/calibration.npz"), "was calibrated on"),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--rule", "dcsnn", "--delta", "0.1"),
            "agreestop: --delta belongs to the rule",
        ),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--max-set-size", "0"),
            "agreestop: --max-set-size is 0",
        ),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--rule", "other"),
            "rule is 'other': choose one of",
        ),
        (("decide", "{}/calibration.npz", "{}/test.npz"), "is not an agreestop rule file"),
        (("decide", "{}/rule", "{}/rule"), "is no .npz file"),
        (
            ("decide", "{}/rule", "{}/test.npz", "-o", "d.txt"),
            "give a name that ends in .csv, .json, .npz",
        ),
        (
            ("decide", "{}/rule", "{}/test.npz", "-o", "d.parquet"),
            "or with --ray in .parquet, or a folder",
        ),
        (
            ("decide", "{}/rule", "{}/test.npz", "-o", "{}/./test.npz"),
            "is read and would be replaced",
        ),
        (
            ("calibrate", "{}/calibration.npz", "-o", "{}/calibration.npz"),
            "is read and would be replaced",
        ),
        (
            ("report", "{}/calibration.npz", "-o", "{}/calibration.npz"),
            "is read and would be replaced",
        ),
        (("evaluate", "{}/rule", "{}/unlabelled.npz"), "has no labels"),
        (
            (
                "calibrate",
                "{}/calibration.npz",
                "-o",
                "x",
                "--rule",
                "dcsnn",
                "--tuning",
                "{}/tuning.npz",
            ),
            "--tuning belongs to the rule",
        ),
        (("nonsense",), "nonsense"),
        (("calibrate", "{}/calibration.npz", "-o", "x", "--gate"), "give them with --tuning"),
        (("calibrate", "{}/calibration.npz", "-o", "x", "--blocks", "3"), "give --gate too"),
        (
            (
                "calibrate",
                "{}/calibration.npz",
                "-o",
                "x",
                "--gate",
                "--tuning",
                "{}/tuning.npz",
                "--blocks",
                "x",
            ),
            "--blocks is 'x'",
        ),
        (
            (
                "calibrate",
                "{}/calibration.npz",
                "-o",
                "x",
                "--gate",
                "--tuning",
                "{}/tuning.npz",
                "--pooling",
                "vote",
            ),
            "--pooling is 'vote', but a gate pools confidences",
        ),
        (
            (
                "calibrate",
                "{}/calibration.npz",
                "-o",
                "x",
                "--gate",
                "--tuning",
                "{}/tuning.npz",
                "--rule",
                "dcsnn",
            ),
            "gate belongs to the rule",
        ),
        (
            (
                "calibrate",
                "{}/calibration.npz",
                "-o",
                "x",
                "--gate",
                "--tuning",
                "{}/calibration.npz",
            ),
            "tune on other inputs",
        ),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--labels", "first"),
            "--labels is 'first'",
        ),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--groups", "{}/calibration.npz"),
            "is not a text file",
        ),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--groups", "none.txt"),
            "there is no file none.txt",
        ),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--groups", "{}/words.txt"),
            "has 2 lines for 100 inputs",
        ),
        (
            (
                "calibrate",
                "{}/words.npz",
                "-o",
                "x",
                "--weights",
                "{}/words.txt",
                "--max-weight",
                "1",
            ),
            "something else than numbers",
        ),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--max-weight", "2"),
            "agreestop: --max-weight is given without --weights",
        ),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--loss", "{}/words.txt"),
            "give a line of numbers for each class",
        ),
        (
            (
                "calibrate",
                "{}/calibration.npz",
                "-o",
                "x",
                "--loss",
                "{}/row.txt",
                "--max-loss",
                "1",
            ),
            "give a row and a column for each class",
        ),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--max-loss", "1"),
            "give either --target, or --loss, a cost matrix, and --max-loss, the mean",
        ),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--accumulated"),
            "agreestop: --accumulated needs --delta, for example 0.1, and goes without --gate, "
            "--loss and --class-conditional",
        ),
        (("calibrate", "{}/calibration.npz", "-o", "x", "--trim", "2"), "agreestop: --trim is 2.0"),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--rule", "spikecp", "--trim", "1"),
            "trim belongs to the rule agreestop",
        ),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--price-of-size", "1"),
            "--price-of-size is for tuning",
        ),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--schedule", "1,2"),
            "--schedule is '1,2'",
        ),
        (
            (
                "calibrate",
                "{}/calibration.npz",
                "-o",
                "x",
                "--schedule",
                "1:1",
                "--checkpoints",
                "all",
            ),
            "leave --checkpoints out",
        ),
        (
            ("decide", "{}/rule", "{}/test.npz", "--groups", "{}/words.txt"),
            "has 2 lines for 200 inputs",
        ),
        (
            ("decide", "{}/rule", "{}/test.npz", "--groups", "{}/lines.txt"),
            "agreestop: --groups are given, but the rule was calibrated",
        ),
        (
            (
                "calibrate",
                "{}/calibration.npz",
                "-o",
                "x",
                "--loss",
                "{}/costs.txt",
                "--max-loss",
                "7",
            ),
            "agreestop: --max-loss is '7': it must lie between 0 and the largest cost, 4",
        ),
        (
            (
                "calibrate",
                "{}/calibration.npz",
                "-o",
                "x",
                "--loss",
                "{}/costs.txt",
                "--max-loss",
                "1",
                "--delta",
                "0.1",
            ),
            "leave out --delta, or give --target.",
        ),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--delta", "target"),
            "agreestop: --delta is 'target': give a probability",
        ),
        (
            (
                "calibrate",
                "{}/calibration.npz",
                "-o",
                "x",
                "--pooling",
                "vote",
                "--rule",
                "spikecp",
                "--delta",
                "0.1",
            ),
            "use --pooling confidence:R, or drop --delta.",
        ),
        (
            ("calibrate", "{}/calibration.npz", "-o", "x", "--fill", "--trim", "0.5"),
            "agreestop: --fill answers all of the best classes, so --trim 0.5 has no use",
        ),
        (
            (
                "calibrate",
                "{}/calibration.npz",
                "-o",
                "x",
                "--gate",
                "--tuning",
                "{}/tuning.npz",
                "--blocks",
                "40",
            ),
            "agreestop: --blocks is 40: give a number up to 12",
        ),
        (("reproduce", "fig3", "--from-scores"), "`agreestop reproduce` is now `python -m paper`"),
        (("bench", "--device", "cpu"), "`agreestop bench` is now `python -m benchmarks`"),
    ],
)
def test_mistakes_are_one_sentence(
    words: tuple[str, ...],
    match: str,
    rule: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = call(monkeypatch, capsys, *(word.format(folder) for word in words))
    assert outcome.code == 2
    assert match in outcome.err
    assert "Traceback" not in outcome.err and len(outcome.err) < 400
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "printed"),
    [(("--pooling", "p-values:1"), False), (("--calibration", "stop-aware"), True)],
)
def test_the_law_of_a_draw_is_printed_for_rules_with_one_threshold_alone(
    words: tuple[str, ...],
    printed: bool,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--rule", "spikecp", "--checkpoints", "6,12", *words, "-o", str(tmp_path / "rule"))
    assert call(monkeypatch, capsys, "calibrate", folder / "calibration.npz", *words).code == 0
    told = " ".join(
        call(monkeypatch, capsys, "evaluate", tmp_path / "rule", folder / "test.npz").out.split()
    )
    assert ("100 calibration examples were chosen at random" in told) == printed


def test_a_low_coverage_is_explained(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Calibrated on what is easier than the test, so that coverage falls short."""
    test = ag.load_scores(folder / "test.npz")
    assert test.labels is not None
    right = test.log_confidence[:, -1, 0].argmax(axis=1) == test.labels
    ag.save_scores(tmp_path / "easy.npz", test.rows(np.flatnonzero(right)[:40]))
    ag.save_scores(tmp_path / "hard.npz", test.rows(np.flatnonzero(~right)))
    assert (
        call(
            monkeypatch,
            capsys,
            "calibrate",
            tmp_path / "easy.npz",
            "--target",
            "0.5",
            "-o",
            tmp_path / "rule",
        ).code
        == 0
    )
    outcome = call(monkeypatch, capsys, "evaluate", tmp_path / "rule", tmp_path / "hard.npz")
    assert (
        "may not be exchangeable with the calibration examples" in outcome.err
        and outcome.err.startswith("Coverage is 0.")
    )
    told = " ".join(outcome.out.split())
    assert re.search(
        r"Target 0.5: coverage 0\.\d+ is lower than the calibration draw allows\. The rows may "
        r"not be exchangeable with the calibration rows: were they shuffled",
        told,
    )
    assert all(word in told for word in ("shuffled", "training rows", "other people"))
    # what chance does not explain is not called chance
    assert "of them end this low" not in outcome.out
    others = test.rows(np.setdiff1d(np.arange(len(test)), np.flatnonzero(right)[:40]))
    hits = (
        ag.load_rule(tmp_path / "rule").decide(others).sets[np.arange(len(others)), others.labels]
    )
    misses = np.flatnonzero(~hits)
    # coverage 0.41
    few = np.concatenate([misses, np.flatnonzero(hits)[: round(0.7 * len(misses))]])
    ag.save_scores(tmp_path / "few.npz", others.rows(np.tile(few, 200 // len(few) + 1)))
    told = " ".join(
        call(monkeypatch, capsys, "evaluate", tmp_path / "rule", tmp_path / "few.npz").out.split()
    )
    assert re.search(
        r"Target 0.5: not contradicted\. Coverage 0\.4\d+ lies in the range that .* explains\. "
        r"The \d+ calibration examples .* between 0\.\d+ and 0\.\d+ ",
        told,
    )
    assert "Coverage is under 0.5 here" in told
    assert "of them end this low" in told


@pytest.mark.parametrize(
    ("words", "rows", "verdict"),
    [
        (
            ("--rule", "spikecp", "--checkpoints", "6,12"),
            "all",
            r"Target 0.5: coverage [01]\.\d+ is within the promise\.",
        ),
        (
            ("--rule", "spikecp", "--checkpoints", "6,12"),
            "wrong",
            "misses it by more than chance in .* may be a low one. The rows may not be",
        ),
        (
            ("--labels", "final"),
            "all",
            r"Target 0.5: agreement with the final class 0\.\d+ (is within|misses it by no more)",
        ),
        (
            ("--loss", "{}/costs.txt", "--max-loss", "0.5"),
            "all",
            r"Promised cost 0.5: cost 0\.\d+ (is within|misses it by no more)",
        ),
        (
            ("--loss", "{}/costs.txt", "--max-loss", "0.2"),
            "wrong",
            r"Promised cost 0.2: cost \d\.\d+ misses it by more than chance",
        ),
    ],
)
def test_the_verdict_names_what_is_promised(
    words: tuple[str, ...],
    rows: str,
    verdict: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    test, options = ag.load_scores(folder / "test.npz"), [word.format(folder) for word in words]
    if rows == "wrong":
        test = test.rows(
            np.tile(np.flatnonzero(test.log_confidence[:, -1, 0].argmax(axis=1) != test.labels), 20)
        )
    ag.save_scores(tmp_path / "test.npz", test)
    options += [] if "--max-loss" in words else ["--target", "0.5"]
    assert (
        call(
            monkeypatch,
            capsys,
            "calibrate",
            folder / "calibration.npz",
            *options,
            "-o",
            tmp_path / "rule",
        ).code
        == 0
    )
    told = " ".join(
        call(monkeypatch, capsys, "evaluate", tmp_path / "rule", tmp_path / "test.npz").out.split()
    )
    assert re.search(verdict, told), told


def test_help_of_calibrate_is_in_groups(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    told = call(monkeypatch, capsys, "calibrate", "--help").out
    heads = [line for line in told.splitlines() if re.fullmatch(r"\S.*:", line)]
    assert (
        heads[:2] == ["Arguments:", "Options:"] and "What is promised:" in heads and len(heads) > 6
    )
    in_options = told.split("Options:")[1].split("\n\n")[0]
    assert re.findall(r"--[a-z-]+", in_options) == [
        "--output",
        "--help",
    ]  # every other option is in a group
    assert max(map(len, told.splitlines())) <= 80


def test_rows_that_may_not_be_exchangeable_are_asked_about(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Sorted rows, labels off by one, and inputs of another kind, in every verb that can see them;
    fair rows are not.
    """
    calibration, test = (ag.load_scores(folder / f"{name}.npz") for name in ("calibration", "test"))
    assert calibration.labels is not None and test.labels is not None
    files = {
        "sorted": (
            calibration.rows(np.argsort(calibration.labels)),
            test.rows(np.flatnonzero(test.labels == 2)),
        ),
        "off": tuple(
            replace(part, labels=(np.asarray(part.labels) + 1) % 3) for part in (calibration, test)
        ),
        "fair": (calibration, test),
    }
    told = {}
    for name, parts in files.items():
        for part, scores in zip(("calibration", "test"), parts, strict=True):
            ag.save_scores(tmp_path / f"{name}-{part}.npz", scores)
        rule = tmp_path / f"{name}.rule"
        calls = (
            ("calibrate", tmp_path / f"{name}-calibration.npz", "-o", rule),
            ("evaluate", rule, tmp_path / f"{name}-test.npz"),
        )
        told[name] = [call(monkeypatch, capsys, *words).err for words in calls]
    assert "were the rows shuffled before they were divided" in told["sorted"][0]
    assert "The classes are not as frequent as in calibration" in told["sorted"][1]
    for sentence in told["off"]:
        assert sentence.count("Are the labels and the columns of the scores in the same order") == 1
    assert not any(
        word in sentence for sentence in told["fair"] for word in ("shuffled", "same order")
    )
    other = ag.simulate_scores(100, steps=12, K=2, C=3, seed=6, pace=0.3, signal=9.0)
    ag.save_scores(tmp_path / "other.npz", other)
    decided = call(
        monkeypatch, capsys, "decide", tmp_path / "fair.rule", tmp_path / "other.npz"
    ).err
    assert "These inputs differ from the calibration inputs" in decided


def test_evaluate_shows_groups_for_a_rule_without_groups(
    rule: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "groups.txt").write_text("north\nsouth\n" * 100)
    words = "evaluate", rule, folder / "test.npz", "--groups", tmp_path / "groups.txt"
    told = call(monkeypatch, capsys, *words).out
    assert "By group, without a promise" in told and "north" in told and "south" in told
    found = json.loads(call(monkeypatch, capsys, *words, "--json").out)["by_group"]
    assert [(one["group"], one["n"]) for one in found] == [("north", 100), ("south", 100)]


def test_a_monitor_goes_on_from_run_to_run(
    rule: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monitor, out = tmp_path / "monitor", tmp_path / "out.csv"
    for scores, said in (
        ("test", "200 decisions, 200 labels processed"),
        ("unlabelled", "400 decisions, 200 labels processed"),
    ):
        outcome = call(
            monkeypatch,
            capsys,
            "decide",
            rule,
            folder / f"{scores}.npz",
            "--monitor",
            monitor,
            "-o",
            out,
        )
        assert outcome.code == 0 and said in outcome.err
    assert ag.DriftMonitor.load(monitor).observed == 400
    before = monitor.read_bytes()
    outcome = call(
        monkeypatch,
        capsys,
        "decide",
        rule,
        folder / "calibration.npz",
        "--monitor",
        monitor,
        "-o",
        out,
    )
    assert (
        outcome.code == 2
        and "a monitor watches new inputs: 100 of the 100 rows were used for calibration"
        in outcome.err
    )
    other = ag.AgreeStop(0.9, range(1, 13), 1).calibrate(ag.load_scores(folder / "tuning.npz"))
    other.save(tmp_path / "other")
    outcome = call(
        monkeypatch,
        capsys,
        "decide",
        tmp_path / "other",
        folder / "test.npz",
        "--monitor",
        monitor,
        "-o",
        out,
    )
    assert outcome.code == 2 and "watches another rule" in outcome.err
    known = ag.load_rule(rule).rule
    larger = replace(known, max_set_size=3 - known.max_set_size)  # type: ignore[type-var]
    larger.calibrate(ag.load_scores(folder / "calibration.npz")).save(tmp_path / "larger")
    outcome = call(
        monkeypatch,
        capsys,
        "decide",
        tmp_path / "larger",
        folder / "test.npz",
        "--monitor",
        monitor,
        "-o",
        out,
    )
    assert outcome.code == 2 and "watches another rule" in outcome.err
    assert monitor.read_bytes() == before


def test_files_are_checked_before_the_work(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    rule: Path,
    tmp_path: Path,
) -> None:
    def work(*given: Any, **more: Any) -> None:
        raise AssertionError("work before the check")

    wrong = tmp_path / "wrong"
    wrong.write_text("x\ny\n")
    monkeypatch.setattr("agreestop.cli.tuning.tune", work)
    for option, more in (
        ("--groups", ()),
        ("--weights", ("--max-weight", 2)),
        ("--loss", ("--max-loss", 0.1)),
    ):
        words = (
            "calibrate",
            folder / "calibration.npz",
            "-o",
            tmp_path / "rule",
            "--tuning",
            folder / "tuning.npz",
            option,
            wrong,
            *more,
        )
        outcome = call(monkeypatch, capsys, *words)
        assert outcome.code == 2 and str(wrong) in outcome.err
    monkeypatch.setattr("agreestop.cli.decide._load_decisions", work)
    outcome = call(monkeypatch, capsys, "decide", rule, folder / "test.npz", "--monitor", wrong)
    assert outcome.code == 2 and "is not an agreestop rule file" in outcome.err


def test_two_commands_take_turns_with_a_monitor(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    rule: Path,
    tmp_path: Path,
) -> None:
    resume, locked = ag.DriftMonitor.resume, []

    def watched(path: Path, calibrated: ag.CalibratedRule) -> ag.DriftMonitor:
        locked.append((tmp_path / ".monitor.lock").exists())
        return resume(path, calibrated)

    monkeypatch.setattr(ag.DriftMonitor, "resume", watched)
    assert (
        call(
            monkeypatch,
            capsys,
            "decide",
            rule,
            folder / "test.npz",
            "--monitor",
            tmp_path / "monitor",
        ).code
        == 0
    )
    assert locked == [False, True], "once before the work, and once to go on with the monitor"


def test_a_monitor_of_a_rule_about_final_answers_gets_final_labels(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The labels of the file are all wrong here, and must not matter."""
    rule, path, out = tmp_path / "rule", tmp_path / "monitor", tmp_path / "out.csv"
    assert (
        call(
            monkeypatch,
            capsys,
            "calibrate",
            folder / "calibration.npz",
            "--target",
            "0.8",
            "--labels",
            "final",
            "-o",
            rule,
        ).code
        == 0
    )
    test, calibrated = ag.load_scores(folder / "test.npz"), ag.load_rule(rule)
    worst = calibrated.decide(test).sets.argmin(axis=1)  # a class that no answer holds
    ag.save_scores(tmp_path / "wrong.npz", replace(test, labels=worst))
    expected = ag.DriftMonitor(calibrated)
    for scores in (tmp_path / "wrong.npz", folder / "unlabelled.npz"):
        data = ag.load_scores(scores, calibrated.checkpoints)
        expected.update(calibrated.decide(data), calibrated.decide(data).final_best)
        outcome = call(monkeypatch, capsys, "decide", rule, scores, "--monitor", path, "-o", out)
        assert outcome.code == 0 and "no alarm" in outcome.err
    np.testing.assert_array_equal(
        ag.DriftMonitor.load(path).misses.capital, expected.misses.capital
    )


def test_what_could_not_be_checked_is_said_in_a_line(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A rule file of version 0.1 names its engine but not its members. Scores of a model that is
    not ours name neither.
    """
    calibration, test = (
        ag.load_scores(folder / "calibration.npz"),
        ag.load_scores(folder / "test.npz"),
    )
    ag.save_scores(tmp_path / "old.npz", replace(calibration, engine="dense"))
    ag.save_scores(tmp_path / "new.npz", replace(test, engine="dense", ensemble_digest="a" * 64))
    for name in ("old", "new"):
        source = tmp_path / "old.npz" if name == "old" else folder / "calibration.npz"
        assert (
            call(monkeypatch, capsys, "calibrate", source, "-o", tmp_path / f"{name}.rule").code
            == 0
        )
    for verb in ("decide", "evaluate"):
        told = call(monkeypatch, capsys, verb, tmp_path / "old.rule", tmp_path / "new.npz")
        assert (
            told.code == 0
            and "Not checked: members, which must be those of the calibration" in told.err
        )
        told = call(monkeypatch, capsys, verb, tmp_path / "new.rule", tmp_path / "new.npz")
        assert "Not checked: engine and members" in told.err
        assert (
            "Not checked"
            not in call(monkeypatch, capsys, verb, tmp_path / "new.rule", folder / "test.npz").err
        )


def test_the_version_and_the_verbs_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, capsys, "--version").out.startswith("agreestop ")
    text = call(monkeypatch, capsys, "--help").out
    assert all(
        words in text
        for words in (
            "Decide when an ensemble watching a stream",
            "run",
            "calibrate",
            "decide",
            "evaluate",
        )
    )
    assert "[default: runs/NAME of the configuration]" in " ".join(
        call(monkeypatch, capsys, "score", "--help").out.split()
    )


@given(st.text(max_size=12))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_any_pooling_text_is_read_or_refused(text: str) -> None:
    try:
        parse_pooling(text)
    except ag.InputError as error:
        assert str(error).endswith(".")


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6))
def test_listed_checkpoints_are_read_as_written(times: list[int]) -> None:
    assert parse_checkpoints(",".join(map(str, times)), tuple(range(1, 51))) == tuple(times)


def test_ranges_take_the_times_of_the_file() -> None:
    assert parse_checkpoints("2-5", (1, 2.5, 4, 6)) == (2.5, 4)
    assert parse_checkpoints("1,4-6", (1, 2.5, 4, 6)) == (1, 4, 6)
    assert parse_checkpoints("all", (1, 2.5)) == (1, 2.5)


def test_the_command_line_starts_without_pytorch() -> None:
    """Calibrating and deciding on scores needs none, and it takes seconds to load."""
    heavy = ("torch", "numba", "matplotlib", "sklearn")
    code = (
        f"import sys, agreestop.cli.app; print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_open_answers_go_through_the_command_line(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = []
    for number, ease in enumerate(rng.beta(2.0, 0.5, size=240)):
        samples = np.where(rng.random(8) < ease, "7", rng.integers(5, size=8).astype(str)).tolist()
        lines.append(
            json.dumps({"id": number, "gold": "7", "answers": samples, "tokens": [10] * 8})
        )
    calibration, test = tmp_path / "calibration.jsonl", tmp_path / "test.jsonl"
    calibration.write_text("\n".join(lines[:120]))
    test.write_text("\n".join(lines[120:]))
    rule, found = tmp_path / "rule", tmp_path / "found.csv"
    run = [sys.executable, "-c", "from agreestop.cli import main; main()"]

    def call(*words: object, code: int = 0) -> str:
        done = subprocess.run([*run, *map(str, words)], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    assert "most frequent answer of 8 samples" in " ".join(
        call("calibrate", calibration, "--labels", "final", "--break-ties", "-o", rule).split()
    )
    wrote = call("decide", rule, test, "-o", found)
    assert re.search(r"decisions, \d[.\d]* of 8 samples on average, 100\.0% answered\.", wrote)
    assert found.read_text().splitlines()[0] == "input,stop_time,answered,answer,cost"
    assert json.loads(call("evaluate", rule, test, "--json"))["agreement"] > 0.8
    assert "calibration" in call("evaluate", rule, calibration, code=2)
    page = tmp_path / "page.html"
    assert "adaptive" in call("report", calibration, "-o", page)
    assert "<svg" in page.read_text()


def test_a_report_names_the_command_of_the_rule_to_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    scores = ag.simulate_scores(300, steps=10, K=2, C=3)
    for name, part in zip(
        ("all", "tuning", "calibration"), (scores, *scores.split(0.5, 0.5)), strict=True
    ):
        ag.save_scores(f"{name}.npz", part)
    shown = call(monkeypatch, capsys, "report", "all.npz", "-o", "page.html").out
    (command,) = [line for line in shown.splitlines() if line.startswith("agreestop calibrate ")]
    made = call(monkeypatch, capsys, *command.split()[1:])
    assert made.code == 0, made.err
    taken = ag.load_rule("rule").rule
    label = shown.partition("Take ")[2]
    assert label.startswith("AgreeStop" if "--rule agreestop" in command else "stop-aware")
    assert isinstance(taken, ag.AgreeStop if label.startswith("AgreeStop") else ag.SpikeCP)
    assert ("every step" in label[:30]) == ("--checkpoints" not in command)
