"""The deep benchmark at tiny sizes: rules in which members join keep the promise of the others with
less work, and records are complete.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="engines need PyTorch")
pytest.importorskip("numba", reason="the event-driven engine needs numba")

import agreestop as ag
from agreestop.networks import Convolutional, SpikingNetwork
from benchmarks import deep, deep_cases
from benchmarks.deep_cases import N_CALIBRATION, STEPS, DeepCase, prepare
from benchmarks.peers import FoundPeers, Peer
from benchmarks.preparation import joining_rule
from benchmarks.records import OURS
from paper.stand_ins import simulate_gestures

from .test_benchmark import PLAIN


def tiny_case() -> DeepCase:
    """Two classes, told apart by which half of the pixels is active."""
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=260)
    rates = np.full((260, 1, 2, 8, 8), 0.02)
    for row, label in enumerate(truth):
        rates[row, :, :, label * 2 : label * 2 + 3] = 0.2
    inputs = (rng.random((260, STEPS, 2, 8, 8)) < rates).astype(np.uint8)
    config = Convolutional((2, 8, 8), 3, 2, (4,), (8,))
    parts = inputs[:40], truth[:40], inputs[40:80], inputs[80:], truth[80:]
    return DeepCase("tiny, 8 × 8", config, None, 4, (4, 8), *parts, epochs=6, together=8)


def test_members_that_join_are_asked_at_the_end_and_chosen_by_their_work() -> None:
    scores = ag.simulate_scores(300)
    assert scores.labels is not None
    members = scores.log_confidence.shape[2]
    plain = ag.AgreeStop(0.95, tuple(range(1, STEPS + 1)), 1)
    rule = joining_rule(plain, scores, 150)
    assert isinstance(rule.checkpoints, ag.Schedule)
    first = rule.checkpoints.members[0]
    assert rule.checkpoints.looks[-1] == (STEPS, members) and set(
        rule.checkpoints.members[:-1]
    ) == {first}
    assert len(rule.checkpoints) == STEPS + 1 and 1 <= first < members
    works = []
    for count in range(1, members):
        looks = [*((time, count) for time in range(1, STEPS + 1)), (STEPS, members)]
        works.append(
            ag.repeat_splits(
                replace(plain, checkpoints=ag.Schedule(looks)), scores, n_calibration=150
            ).work
        )
    assert first == 1 + int(np.argmin(np.array(works, dtype=float)))


@pytest.mark.parametrize(("device", "side"), [("cpu", 16), ("cuda", 128)])
def test_gestures_are_simulated_once(
    device: str, side: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        deep_cases,
        "simulate_gestures",
        lambda downsample, workers: simulate_gestures(0, (3, 2, 2), downsample),
    )
    case = deep_cases.gestures(device, tmp_path)
    monkeypatch.setattr(deep_cases, "simulate_gestures", pytest.fail)
    again = deep_cases.gestures(device, tmp_path)
    assert (
        case.training.shape == (3, STEPS, 2, side, side)
        and len(case.tuning) == len(case.pool) == len(case.truth) == 2
    )
    np.testing.assert_array_equal(again.training, case.training)
    np.testing.assert_array_equal(again.labels, case.labels)
    assert case.config.input_shape == (2, side, side) and case.training.any()


@pytest.mark.slow
def test_every_workload_of_a_case_is_recorded(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deep, "REPEATS", 1)
    case, notes = tiny_case(), list[str]()
    network = deep_cases.members_of(case, "cpu", tmp_path, lambda _: None)
    assert isinstance(network, SpikingNetwork) and network.members == 2
    again = deep_cases.members_of(case, "cpu", tmp_path, pytest.fail)  # read, not trained
    assert all(
        torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True)
    )
    prepared = prepare(case, network, "cpu", notes.append)
    assert prepared.joining is not None and prepared.joining.calibrated.n == N_CALIBRATION
    assert any("1 of them watch until T" in note for note in notes)
    for rule in (prepared.early, prepared.joining):
        assert (
            0.85 <= rule.facts["coverage"] <= 1
            and rule.facts["set_size"] >= 1
            and 1 <= rule.fixed <= STEPS
        )
    peers = deep.DeepPeers(FoundPeers((PLAIN,), ""), "cpu", pytest.fail)
    rivals: dict[str, list[Peer]] = {
        work: list(peers.found.peers) for work in ("decide-full", "train")
    }
    records = [record for part in deep.bench_case(case, prepared, peers, rivals) for record in part]
    mine = {record.work: record for record in records if record.system == OURS}
    assert set(mine) == {"decide-full", "decide-early", "decide-joining", "train"}
    assert all(
        record.times_fastest_peer and record.wanted
        for record in mine.values()
        if record.work != "train"
    )
    early, joining = mine["decide-early"], mine["decide-joining"]
    assert early.computed and joining.computed and joining.computed < early.computed <= 1
    assert any("stopped at step" in record.form and record.system == "plain" for record in records)
    single = prepare(case, network.select_members(slice(0, 1)), "cpu", notes.append)
    assert single.joining is None
