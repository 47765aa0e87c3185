"""Scores and calibrated rules of a cluster are those of one machine, exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from tests.decide.strategies import calibrate_reduced, reduce_examples

from .conftest import STEPS, Work
from .fake_ray import FakeRay

RULES: dict[str, Callable[[], Any]] = {
    "AgreeStop": lambda: ag.AgreeStop(0.9, range(1, STEPS + 1), 1),
    "AgreeStop, filled": lambda: ag.AgreeStop(0.9, (2, 5, STEPS), 2, fill=True),
    "AgreeStop for each class": lambda: ag.AgreeStop(
        0.8, range(1, STEPS + 1), 1, class_conditional=True
    ),
    "AgreeStop with delta": lambda: ag.AgreeStop(0.8, range(1, STEPS + 1), 1, delta=0.1),
    "stop-aware": lambda: ag.SpikeCP(
        0.9, range(1, STEPS + 1), 1, ag.MergeConfidence(r=1), "stop-aware"
    ),
    "stop-aware for each class": lambda: ag.SpikeCP(
        0.8, (3, 6, 9), 1, ag.MergeConfidence(r=2), "stop-aware", class_conditional=True
    ),
    "simultaneous": lambda: ag.SpikeCP(
        0.9, (3, 6, 9, 12), 1, ag.MergeConfidence(r=1), "simultaneous"
    ),
    "bonferroni": lambda: ag.SpikeCP(0.8, (6, 12), 1, ag.MergeConfidence(r=1)),
    "p-variables": lambda: ag.SpikeCP(0.8, (6, 12), 1, ag.MergePValues(r=45)),
    "ranks": lambda: ag.SpikeCP(0.8, (6, 12), 1, ag.MergeRanks()),
    "costs": lambda: ag.AgreeStop(None, (6, 12), 1, loss=1 - np.eye(3), max_loss=0.1),
    "accumulated": lambda: ag.AgreeStop(0.8, (6, 12), 1, delta=0.3, accumulated=True),
    "dcsnn": lambda: ag.DCSNN(0.9, (6, 12), 1),
}


TREE = ag.Tree({"one": ("c", "a"), "b": None})  # in another order than the classes of the scores
for depth in (1, 2, "each", None):
    RULES[f"tree, depth {depth}"] = partial(
        ag.AgreeStop, 0.8, range(1, STEPS + 1), 1, tree=TREE, depth=depth
    )


def content(rule: ag.CalibratedRule, path: Path) -> bytes:
    rule.save(path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def scored(work: Work) -> ag.Scores:
    return replace(work.ensemble.score(work.events.rows(slice(0, 333))), classes=("a", "b", "c"))


@pytest.mark.parametrize("name", RULES)
def test_a_rule_from_parts_is_the_rule_from_all_examples(
    scored: ag.Scores, tmp_path: Path, name: str
) -> None:
    rule = RULES[name]()
    parts = [
        reduce_examples(rule, scored.rows(part))
        for part in (slice(0, 1), slice(1, 200), slice(200, 333))
    ]
    assert content(calibrate_reduced(rule, parts), tmp_path / "a") == content(
        rule.calibrate(scored), tmp_path / "b"
    )


def test_a_few_numbers_an_example_are_enough(scored: ag.Scores) -> None:
    part = reduce_examples(RULES["AgreeStop"](), scored)
    shapes = {name: numbers.shape for name, numbers in part.reduced.items()}
    compared = shapes.pop("numbers")
    assert shapes == {"W": (333,), "rounded": (333,), "lowest": (333,), "highest": (333,)}
    assert compared == (333, 12 + 3), (
        "a risk for each checkpoint, and a mass for each class at the end"
    )


def test_parts_of_different_ensembles_are_refused(scored: ag.Scores) -> None:
    rule = RULES["AgreeStop"]()
    other = ag.Scores(scored.log_confidence[:, :, :1], scored.labels, scored.times)
    with pytest.raises(ag.InputError, match="the parts have different members"):
        calibrate_reduced(rule, [reduce_examples(rule, scored), reduce_examples(rule, other)])


def test_parts_of_another_rule_and_no_parts_are_refused(scored: ag.Scores) -> None:
    rule = RULES["AgreeStop"]()
    for other in (
        ag.AgreeStop(0.9, (2, 5, STEPS), 1),
        ag.AgreeStop(0.9, rule.checkpoints, 2),
        RULES["stop-aware"](),
    ):
        with pytest.raises(ag.InputError, match="other checkpoints or settings"):
            calibrate_reduced(rule, [reduce_examples(rule, scored), reduce_examples(other, scored)])
    with pytest.raises(ag.InputError, match="there are no parts"):
        calibrate_reduced(rule, [])


def test_parts_with_ids_of_different_kinds_are_refused(scored: ag.Scores) -> None:
    rule = RULES["AgreeStop"]()
    named = replace(scored, ids=np.array([f"recording {row}" for row in range(len(scored))]))
    with pytest.raises(ag.InputError, match="ids of different kinds"):
        calibrate_reduced(rule, [reduce_examples(rule, scored), reduce_examples(rule, named)])


def test_one_part_with_inputs_that_end_early_is_in_the_guarantee(scored: ag.Scores) -> None:
    rule = RULES["AgreeStop"]()
    ended = replace(scored, lengths=np.full(len(scored), STEPS))
    parts = [
        reduce_examples(rule, scored.rows(slice(0, 100))),
        reduce_examples(rule, ended.rows(slice(100, 333))),
    ]
    assert (
        calibrate_reduced(rule, parts).guarantee
        == rule.calibrate(ended).guarantee
        != rule.calibrate(scored).guarantee
    )


def test_rows_that_were_tuned_on_are_refused(scored: ag.Scores) -> None:
    rule = ag.AgreeStop(0.9, scored.times, 1, risk=ag.TopMass.fit(scored))
    with pytest.raises(ag.InputError, match="were used for tuning"):
        calibrate_reduced(rule, [reduce_examples(rule, scored)])


def test_too_few_examples_are_said(scored: ag.Scores) -> None:
    rule = RULES["AgreeStop"]()
    with pytest.warns(ag.CalibrationWarning, match="With 5 calibration examples"):
        calibrate_reduced(rule, [reduce_examples(rule, scored.rows(slice(0, 5)))])


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_a_cluster_scores_and_calibrates_as_one_machine(
    work: Work,
    in_files: Callable[[str], list[Path]],
    tmp_path: Path,
    use: Callable[[FakeRay], FakeRay],
    suffix: str,
) -> None:
    pytest.importorskip("pyarrow", reason="files of recordings need pyarrow (the extra cluster)")
    use(FakeRay())
    source = in_files(suffix)
    found, expected = (
        ag.cluster.score(work.members, source, shard_rows=256),
        work.ensemble.score(work.events),
    )
    for name in ("log_confidence", "labels", *["ids"] * (suffix == ".npz")):
        assert np.array_equal(getattr(found, name), getattr(expected, name))
    assert (found.times, found.engine, found.ensemble_digest) == (
        expected.times,
        expected.engine,
        expected.ensemble_digest,
    )
    rule = RULES["AgreeStop"]()
    calibrated = ag.cluster.calibrate(rule, work.members, source, shard_rows=256)
    assert content(calibrated, tmp_path / "x") == content(rule.calibrate(found), tmp_path / "y")
