"""On a cluster: answers that are nodes of a tree or abstentions are those of one machine; rules
without classes are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag

from .conftest import STEPS, Work
from .fake_ray import FakeRay

TIMES = range(1, STEPS + 1)
TREE = ag.Tree({"one": ("2", "0"), "1": None})


@pytest.mark.parametrize(
    "options",
    [{"tree": TREE, "depth": 1}, {"tree": TREE, "depth": None}, {"at_end": "abstain"}],
    ids=str,
)
def test_decisions_in_files_are_those_of_one_machine(
    options: dict[str, Any],
    work: Work,
    use: Callable[[FakeRay], FakeRay],
    in_files: Callable[[str], list[Path]],
    tmp_path: Path,
) -> None:
    use(FakeRay())
    scores = work.ensemble.score(work.events.rows(slice(0, 400)))
    # so many are wrong that some must stay unanswered
    labels = np.where(np.arange(400) % 2, np.asarray(scores.labels), 0)
    named = ag.Scores(
        scores.log_confidence,
        labels,
        scores.times,
        ("0", "1", "2"),
        scores.engine,
        scores.ensemble_digest,
    )
    rule = ag.AgreeStop(0.8, TIMES, 1, **options).calibrate(named)
    ag.cluster.decide(rule, work.ensemble, in_files(".npz"), tmp_path / "out")
    found, expected = (
        ag.cluster.load_decisions(tmp_path / "out", rule),
        work.ensemble.decide(rule, work.events).decisions,
    )
    np.testing.assert_array_equal(found.stop_index, expected.stop_index)
    np.testing.assert_array_equal(found.sets, expected.sets)
    np.testing.assert_array_equal(found.answered, expected.answered)
    assert [one.names for one in found] == [one.names for one in expected]
    assert "at_end" not in options or not found.answered.all()


def made(kind: str) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    if kind == "answers":
        samples = rng.choice(["a", "b"], (60, 6), p=(0.8, 0.2)).tolist()
        return ag.AgreeStop(0.8, range(1, 7), 1, risk=ag.VoteRisk()), (ag.Answers(samples), "final")
    if kind == "numbers":
        centre = rng.normal(size=(60, 4))
        return ag.IntervalStop(0.8, range(1, 5), max_width=9.0), (
            ag.Numbers(centre, np.ones((60, 4)), centre[:, 0]),
        )
    return ag.StopRule(0.8, range(1, 5), at_end="abstain"), (rng.random((60, 4)), np.zeros((60, 4)))


@pytest.mark.parametrize("kind", ["answers", "numbers", "risks"])
def test_rules_without_classes_are_refused(
    kind: str,
    work: Work,
    use: Callable[[FakeRay], FakeRay],
    in_files: Callable[[str], list[Path]],
    tmp_path: Path,
) -> None:
    use(FakeRay())
    rule, data = made(kind)
    with pytest.raises(ag.InputError, match="cluster"):
        ag.cluster.decide(rule.calibrate(*data), work.ensemble, in_files(".npz"), tmp_path / "out")
    with pytest.raises(ag.InputError, match="cluster"):
        ag.cluster.calibrate(rule, work.ensemble, in_files(".npz"))
