"""This version decides as the version that stored its decisions.

`stored_cases` says how to store them.
"""

from __future__ import annotations

import copy
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agreestop as ag
from tests.decide.stored_cases import CASES, EXTRAS, PATH, STREAMS, Case, decided, load, record

LOOSE = {"learned": 1e-3}  # scikit-learn's optimiser stops a little elsewhere in other versions


def differences(found: Any, stored: Any, rtol: float = 1e-9, where: str = "") -> list[str]:
    """Where two records differ.

    Numbers that are not whole may differ by rtol; everything else must be equal.
    """
    if isinstance(found, dict) and isinstance(stored, dict):
        unlike = [f"{where}/{name} is in one only" for name in sorted(found.keys() ^ stored.keys())]
        both = [name for name in found if name in stored]
        return unlike + [
            one
            for name in both
            for one in differences(found[name], stored[name], rtol, f"{where}/{name}")
        ]
    if isinstance(found, list) and isinstance(stored, list) and len(found) == len(stored):
        pairs = enumerate(zip(found, stored, strict=True))
        return [
            one for index, pair in pairs for one in differences(*pair, rtol, f"{where}/{index}")
        ]
    numbers = all(
        isinstance(value, (int, float)) and not isinstance(value, bool) for value in (found, stored)
    )
    close = numbers and math.isclose(found, stored, rel_tol=rtol, abs_tol=1e-12)
    exact = isinstance(found, int) and isinstance(stored, int)
    same = found == stored and isinstance(found, bool) == isinstance(stored, bool)
    return [] if same or (close and not exact) else [f"{where}: {found!r}, stored {stored!r}"]


@pytest.fixture(params=list(CASES))
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def test_every_case_is_stored() -> None:
    stored = load()
    assert list(stored["cases"]) == list(CASES)
    assert list(stored["extras"]) == list(EXTRAS)
    assert PATH.stat().st_size < 100_000


def test_decisions_are_as_stored(name: str, tmp_path: Path) -> None:
    """Calibration, a batch, streams and a saved rule all give the stored decisions."""
    case, stored = CASES[name], load()["cases"][name]
    assert not differences(record(case), stored, case.rtol)
    for row in range(STREAMS):
        decision, expected = case.stream(row), case.decisions[row]
        assert decision == expected
        assert decision is not None
        assert (decision.first_risk, decision.block) == (expected.first_risk, expected.block)
    case.calibrated.save(tmp_path / "rule")
    loaded = ag.load_rule(tmp_path / "rule")
    assert decided(case.decide(loaded)) == decided(case.decisions)
    np.testing.assert_array_equal(loaded.thresholds, case.calibrated.thresholds)
    assert loaded.guarantee == case.calibrated.guarantee


@pytest.mark.parametrize("extra", list(EXTRAS))
def test_other_figures_are_as_stored(extra: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ag.CalibrationWarning)
        found = EXTRAS[extra]()
    if found is None:
        pytest.skip("scikit-learn is not installed")
    assert not differences(found, load()["extras"][extra], LOOSE.get(extra, 1e-9))


def test_cases_stop_at_different_times() -> None:
    """Most cases stop some inputs early and some late, and exclude some classes."""
    stored = load()["cases"].values()
    assert np.mean([len(set(one["stop_index"])) > 1 for one in stored]) > 0.8
    assert np.mean([set(one["sets"]) != {"v"} for one in stored]) > 0.9


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all numbers, texts and truth values of a record."""
    if not isinstance(value, (dict, list)):
        return [path]
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [one for key, part in items for one in leaves(part, (*path, key))]


def altered(value: Any) -> Any:
    """A value beside the given one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return ("1" if value[0] == "0" else "0") + value[1:]
    if isinstance(value, int):
        return value + 1
    return 0.0 if math.isinf(value) else value * (1 + 1e-8)


CHOSEN = (
    "AgreeStop, gate, unknown groups; K=6",
    "SpikeCP votes, by class; K=2",
    "stop-aware, final, groups; K=6",
)


@pytest.mark.parametrize("chosen", CHOSEN)
def test_each_altered_value_is_noticed(chosen: str) -> None:
    """A control: the comparison fails for every single value of a record."""
    stored = load()["cases"][chosen]
    paths = leaves(stored)
    assert len(paths) > 10
    for path in paths:
        changed = copy.deepcopy(stored)
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = altered(inner[path[-1]])
        assert differences(changed, stored), path


def test_another_threshold_is_noticed() -> None:
    """A control: fewer calibration rows, or a tiny step of the threshold, do not pass."""
    rules = (
        "AgreeStop top mass",
        "SpikeCP CM(1), stop-aware",
        "SpikeCP CM(1), bonferroni",
        "SpikeCP CM(1), simultaneous",
    )
    for chosen in rules:
        case = CASES[f"{chosen}; K=6"]
        moved = Case(case.name, case.rule, case.data, rows=190)
        found = differences(record(moved), load()["cases"][f"{chosen}; K=6"])
        noticed = {one.split(":")[0].split("/")[1] for one in found}
        assert {"n", "thresholds", "kth_values", "sets"} <= noticed, (chosen, noticed)
    start = CASES["AgreeStop top mass; K=6"]
    adaptive = ag.AdaptiveRule(start.calibrated, rate=1e-6)
    decisions = adaptive.decide(start.data.test.log_confidence, (1, 2.5, 4, 7, 10))
    adaptive.update(decisions, start.data.test.labels)
    found = adaptive.calibrated.thresholds.tolist()
    assert differences(found, load()["cases"]["AgreeStop top mass; K=6"]["thresholds"])
