"""The study of new people on simulated ones: rows taken as exchangeable leave many people under the
target, the promises for people few.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="the figure needs matplotlib")

import agreestop as ag
from benchmarks.people import FOR_PEOPLE, TARGET, draw_people, measure, read_audiomnist, simulated


def test_promises_for_people_are_kept_where_rows_are_not_exchangeable(tmp_path: Path) -> None:
    draws = 20
    rows, person, most = measure(simulated(), draws)
    assert rows.below > 0.2 > 1 - FOR_PEOPLE, "the control"
    assert person.coverage >= TARGET - 3 * person.coverage_sd / draws**0.5
    assert most.below <= 1 - FOR_PEOPLE + 3 * most.below_sd / draws**0.5
    assert rows.latency < most.latency <= 1
    assert [
        path.stat().st_size > 0
        for path in draw_people([rows, person, most], tmp_path / "people.json")
    ] == [True, True]
    with pytest.raises(ag.InputError, match=r"audiomnist\.npz"):
        read_audiomnist(tmp_path)
