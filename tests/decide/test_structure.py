"""The shape of the decision layer: few modules, short chains of imports, and nobody asks which rule
it has.

Every check has a control, which shows that it can fail. ruff checks the width of lines.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import agreestop as ag
from tests.test_import_graph import SOURCE, graph, modules

DESIGN = Path(__file__).parents[2] / "docs" / "design.md"
MOST_MODULES, MOST_DEPTH = 20, 6
MOST_KIND_QUESTIONS, MOST_ATTRIBUTE_QUESTIONS = 15, 8
MOST_RUN = 14
"""Modules in which a function runs while a rule is calibrated and decides."""

CONCRETE = {
    *("AgreeStop", "SpikeCP", "StopRule", "IntervalStop", "DCSNN", "SEENN"),
    *("TopMass", "FixedTime", "LearnedRisk", "ShapedRisk", "Gate", "VoteRisk", "LearnedVotes"),
    *("LogLoss", "Temperature", "TuningRanks", "Spread", "Shaped"),
    *("MergeConfidence", "MergePValues", "MergeRanks", "MajorityVote"),
}
"""Rules, risks, scores and poolings, of which only the module that defines one asks for it."""
HOLDERS = {"rule", "risk", "policy", "pooling", "calibrated"}


def own_modules(root: Path = SOURCE) -> list[str]:
    """Modules of decide itself, without the packages inside it."""
    return sorted(path.stem for path in (root / "decide").glob("*.py") if path.stem != "__init__")


def depth(edges: dict[str, set[str]]) -> int:
    """The longest chain of imports within decide; `decide` itself re-exports and is left out."""
    inner = {
        name: targets for name, targets in edges.items() if name.startswith("agreestop.decide.")
    }

    @cache
    def below(name: str) -> int:
        return 1 + max((below(target) for target in inner[name] if target in inner), default=0)

    return max(map(below, inner))


def calls(tree: ast.AST, *names: str) -> Iterator[ast.Call]:
    """Calls of functions with these names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield node


def named(node: ast.AST) -> set[str]:
    """All names and attributes in an expression, without leading underscores."""
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    names |= {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
    return {name.strip("_") for name in names}


def kind_questions(root: Path = SOURCE) -> list[str]:
    """`isinstance` on a concrete rule, risk, score or pooling, outside the module that
    defines it.
    """
    found = []
    for name, path in modules(root).items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        own = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        for call in calls(tree, "isinstance"):
            if len(call.args) == 2 and named(call.args[1]) & (CONCRETE - own):
                found.append(f"{name}:{call.lineno}")
    return found


def attribute_questions(root: Path = SOURCE) -> list[str]:
    """`getattr` and `hasattr` of a rule, risk, policy, pooling or calibrated rule."""
    found = []
    for name, path in modules(root).items():
        for call in calls(ast.parse(path.read_text(encoding="utf-8")), "getattr", "hasattr"):
            if call.args and named(call.args[0]) & HOLDERS:
                found.append(f"{name}:{call.lineno}")
    return found


def modules_run(work: Callable[[], object]) -> set[str]:
    """The modules of agreestop in which a function runs during `work`."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.split(".")[0] == "agreestop":
            found.add(name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return found


def test_there_are_few_modules_and_short_chains_of_imports() -> None:
    assert len(own_modules()) <= MOST_MODULES
    assert depth(graph()) <= MOST_DEPTH


def test_few_places_ask_which_rule_risk_score_or_pooling_it_is() -> None:
    assert len(kind_questions()) <= MOST_KIND_QUESTIONS, kind_questions()
    assert len(attribute_questions()) <= MOST_ATTRIBUTE_QUESTIONS, attribute_questions()


def drawn(text: str) -> dict[str, int]:
    """The line on which each module stands in the drawing of docs/design.md."""
    drawing = text.split("## Where it lives")[1].split("\n\n    ")[1].split("\n\n")[0]
    lines = {}
    for number, line in enumerate(drawing.splitlines()):
        for word in re.findall(r"\w+/\{[^}]*\}|[\w/]+", line):
            folder, _, names = word.rpartition("/")
            for name in re.findall(r"\w+", names):
                lines[f"{folder}.{name}" if folder else name] = number
    return lines


def test_the_drawing_of_the_modules_is_true() -> None:
    """Every module is drawn, and imports only from lines above its own."""
    lines, start = drawn(DESIGN.read_text(encoding="utf-8")), "agreestop.decide."
    edges = {
        name.removeprefix(start): targets
        for name, targets in graph().items()
        if name.startswith(start)
    }
    assert set(lines) == set(edges) - {"drift", "spotting", "tuning"}
    wrong = [
        f"{name} -> {target}"
        for name in lines
        for target in edges[name]
        if lines.get(target.removeprefix(start), -1) >= lines[name]
    ]
    assert not wrong
    moved = {**lines, "scores": lines["checkpoints"]}
    assert any(
        moved.get(target.removeprefix(start)) == moved["scores"] for target in edges["scores"]
    )


@pytest.mark.parametrize(
    "rule",
    [
        ag.AgreeStop(0.9, range(1, 21), 1),
        ag.SpikeCP(0.9, range(1, 21), 1, ag.MergeConfidence(), "stop-aware"),
    ],
    ids=["agreestop", "stop-aware"],
)
def test_a_decision_runs_through_few_modules(rule: ag.AgreeStop | ag.SpikeCP) -> None:
    calibration, test = ag.simulate_scores(200, steps=20, K=3, C=4, seed=1).split(0.5, 0.5)
    found = modules_run(lambda: rule.calibrate(calibration).decide(test))
    assert len(found) <= MOST_RUN, sorted(found)


def test_the_checks_can_fail(tmp_path: Path) -> None:
    root = tmp_path / "agreestop"
    chain = {f"decide/m{i}": f"from .m{i + 1} import x" for i in range(MOST_DEPTH)}
    questions = "isinstance(a, Gate)\nisinstance(b, (int, x.TopMass))\nisinstance(c, int)\n"
    files = {
        "__init__": "",
        "decide/__init__": "",
        **chain,
        f"decide/m{MOST_DEPTH}": "x = 1",
        "decide/asks": f"{questions}hasattr(self._rule, 'risk')\ngetattr(one, 'rule', None)\n",
        "decide/defines": "class Gate: ...\nisinstance(a, Gate)\n",
    }
    for name, text in files.items():
        path = root / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert depth(graph(root)) == MOST_DEPTH + 1
    assert len(own_modules(root)) == MOST_DEPTH + 3
    assert kind_questions(root) == ["agreestop.decide.asks:1", "agreestop.decide.asks:2"]
    assert attribute_questions(root) == ["agreestop.decide.asks:4"]
    mean = ag.generalized_mean
    assert modules_run(lambda: mean([0.1, 0.2], 1)) == {
        "agreestop.decide.confidence",
        "agreestop.common.arrays",
    }
    assert modules_run(lambda: None) == set()
