"""What people look at: reprs of rules, a DataFrame of decisions, an evaluation as a table; and
rules that scikit-learn clones.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest

import agreestop as ag

# few rows will do here
pytestmark = pytest.mark.filterwarnings("ignore::agreestop.CalibrationWarning")
SCORES = ag.simulate_scores(400, steps=20, K=2, C=3, signal=4.0, pace=5.0)
TUNING, KNOWN, NEW = (
    SCORES.rows(part) for part in (slice(0, 150), slice(150, 250), slice(250, 400))
)
RULES = (
    ag.AgreeStop("0.9", range(1, 21), 1),
    ag.AgreeStop(0.9, (5, 10, 20), 2, risk=ag.TopMass.fit(TUNING), delta=0.1),
    ag.AgreeStop(
        0.8, range(1, 21), 1, gate=ag.Gate.fit(TUNING, target=0.8, max_set_size=1, blocks=2)
    ),
    ag.SpikeCP(0.9, range(2, 21, 2), 1, ag.MergePValues(r=45)),
    ag.SpikeCP(
        "1/3",
        (1.5, 3, 7, 8, 9, 11, 20),
        1,
        calibration="stop-aware",
        score=ag.Temperature.fit(TUNING.at((1, 3, 7, 8, 9, 11, 20)).log_confidence, TUNING.labels),
    ),
    ag.DCSNN(0.9, range(1, 21), 1),
    ag.SEENN(0.9, range(1, 21), 1),
)


def test_a_rule_shows_what_was_given_and_no_more() -> None:
    assert [repr(rule) for rule in RULES] == [
        "AgreeStop(target=0.9, checkpoints=range(1, 21), max_set_size=1)",
        "AgreeStop(target=0.9, checkpoints=(5, 10, 20), max_set_size=2, "
        "risk=TopMass(temperatures=array (3,)), delta=0.1)",
        "AgreeStop(target=0.8, checkpoints=range(1, 21), max_set_size=1, gate=Gate(base=TopMass, "
        "ends=(6, 20), slack=0.5))",
        "SpikeCP(target=0.9, checkpoints=range(2, 21, 2), max_set_size=1, "
        "pooling=MergePValues(r=45.0))",
        "SpikeCP(target=1/3, checkpoints=(1.5, 3, …, 20), max_set_size=1, "
        "calibration='stop-aware', "
        "score=Temperature(pooling=MergeConfidence(), temperatures=array (7,)))",
        "DCSNN(target=0.9, checkpoints=range(1, 21), max_set_size=1)",
        "SEENN(threshold=0.9, checkpoints=range(1, 21), max_set_size=1)",
    ]


@pytest.mark.parametrize(
    "rule",
    [rule for rule in RULES if 1.5 not in rule.checkpoints],
    ids=lambda rule: repr(rule)[:30],
)
def test_scikit_learn_clones_a_rule_and_the_clone_decides_the_same(rule: ag.AgreeStop) -> None:
    clone = pytest.importorskip("sklearn.base", reason="scikit-learn is not installed").clone
    other = clone(rule)
    assert other is not rule and repr(other) == repr(rule)
    one, two = (each.calibrate(KNOWN).decide(NEW) for each in (rule, other))
    assert np.array_equal(one.sets, two.sets) and np.array_equal(one.stop_index, two.stop_index)


def test_decisions_become_a_dataframe() -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    named = ag.Scores(KNOWN.log_confidence, KNOWN.labels, KNOWN.times, classes=("a", "b", "c"))
    groups = np.where(np.arange(100) % 2 == 0, "even", "odd")
    decisions = RULES[0].calibrate(named, groups=groups).decide(NEW, groups=["even"] * 150)
    frame = decisions.to_dataframe()
    assert list(frame) == [
        "time",
        "classes",
        "set_size",
        "best",
        "group even",
        "group odd",
        "first_risk",
        "members",
    ]
    assert len(frame) == 150 and frame["time"].tolist() == decisions.stop_time.tolist()
    assert frame["classes"][7] == decisions[7].names and frame["best"][7] in ("a", "b", "c")
    assert frame["group even"].all() and not frame["group odd"].any()
    gated = RULES[2].calibrate(KNOWN).decide(NEW).to_dataframe()
    assert gated["block"].str.contains("ready").all() and all(
        isinstance(one, int) for one in gated["classes"][0]
    )


def test_without_pandas_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ag.InputError, match="needs pandas, which is not installed"):
        RULES[0].calibrate(KNOWN).decide(NEW).to_dataframe()


def test_an_evaluation_prints_as_a_table_whose_rows_add_up() -> None:
    result = ag.evaluate(RULES[0].calibrate(KNOWN).decide(NEW), NEW)
    lines = [line for line in str(result).split("\n") if line not in result.notes]
    assert lines[0].split() == ["inputs", "coverage", "latency", "/", "T", "set", "size"]
    assert len({len(line) for line in lines}) == 1
    assert (
        f"{result.coverage:.3f} [{result.coverage.low:.3f}, {result.coverage.high:.3f}]" in lines[1]
    )
    counts = {
        word: sum(
            int(line.removeprefix(word).split("  ", 1)[1].split()[0])
            for line in lines
            if line.startswith(word)
        )
        for word in ("class", "stop at")
    }
    assert counts == {"class": 150, "stop at": 150}
    assert sum(line.startswith("stop at") for line in lines) <= 8
    assert repr(result).startswith("Evaluation(n=150, ")


def test_a_calibrated_rule_says_what_its_inputs_consist_of() -> None:
    rng = np.random.default_rng(0)
    numbers = ag.Numbers(rng.random((99, 3, 2)), np.ones((99, 3, 2)), rng.random(99))
    answers = ag.Answers(rng.choice(["a", "b"], (99, 5)).tolist())
    found = {
        "classes": ag.AgreeStop(0.9, range(1, 81), 1).calibrate(ag.simulate_scores(99)),
        "any risk": ag.StopRule(0.9, at_end="abstain").calibrate(
            rng.random((99, 3)), np.zeros((99, 3))
        ),
        "numbers": ag.IntervalStop(0.9, max_width=4.0).calibrate(numbers),
        "answers": ag.AgreeStop(0.9, range(1, 6), 1).calibrate(answers, "final"),
    }
    ends = {kind: repr(one).split("n=99")[1].split(", never")[0] for kind, one in found.items()}
    assert ends["classes"].startswith(", members=6, classes=10")
    assert ends["numbers"].startswith(", members=2") and "classes" not in ends["numbers"]
    assert ends["answers"].startswith(", samples=5") and "members" not in ends["answers"]
    assert ends["any risk"].startswith(")")


def test_notebooks_show_tables_whose_first_row_names_the_columns() -> None:
    calibration, new = ag.simulate_scores(300, steps=8, K=2, C=3).split(0.5, 0.5)
    decisions = ag.AgreeStop(0.9, range(1, 9), 1).calibrate(calibration).decide(new)
    for shown, first in ((decisions, "input"), (ag.evaluate(decisions, new), "")):
        page = shown._repr_html_()
        assert page.startswith(f"<table><tr><th>{first}</th><th>")
        assert page.count("<th>") == len(page.split("</tr>")[1].split("</td>")) - 1
        assert page.count("<tr>") > 8 and all(f"<p>{note}</p>" in page for note in shown.notes)
