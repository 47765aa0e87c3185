"""The exported C code on all test inputs of the digits, with trained members, and its benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="an export needs trained networks, which need PyTorch")
pytest.importorskip("numba", reason="the event-driven engine needs numba")

import agreestop as ag
from tests.export.test_c import COMPILERS, check, pytestmark  # noqa: F401

EVERY = range(1, 81)


@pytest.fixture(scope="module")
def digits() -> Any:
    return ag.events.load_data_set("digits")


@pytest.fixture(scope="module")
def members(digits: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("digits") / "members"
    network = ag.networks.FullyConnected(digits.pool.inputs.shape[2:], classes=10, hidden=(96, 48))
    ensemble = ag.ensembles.DeepEnsemble(network, members=4, seed=0, device="cpu")
    ensemble.fit(digits.training.inputs, digits.training.labels, epochs=3, progress=False).save(
        path
    )
    return path


RULES = {
    "AgreeStop": ag.AgreeStop(0.9, EVERY, 1),
    "stop-aware": ag.SpikeCP(0.9, EVERY, 3, ag.MergeConfidence(r=1), "stop-aware"),
    "members that join": ag.AgreeStop(
        0.9, ag.Schedule([(1, 1), (5, 1), (5, 2), (10, 2), (20, 4), (40, 4), (80, 4)]), 1
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["float32", "int8"])
@pytest.mark.parametrize("label", RULES)
def test_deep_members_of_srm_neurons(
    label: str, weights: str, digits: Any, members: Path, tmp_path: Path
) -> None:
    ensemble = ag.ensembles.load(
        members, engine="event-driven" if weights == "float32" else "event-driven-int8"
    )
    x, y = digits.pool.inputs, digits.pool.labels
    rule = RULES[label].calibrate(ensemble.score(x[:100], y[:100]))
    made = check(rule, ensemble, tmp_path, x[100:])
    assert made.inputs == len(x) - 100 > 400


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "weights"),
    [("LIF", "float32"), ("LIF", "int8"), ("CubaLIF", "bfloat16"), ("IF", "int8")],
)
def test_graphs_of_nir(kind: str, weights: str, digits: Any, tmp_path: Path) -> None:
    pytest.importorskip("nir", reason="agreestop[nir] is not installed")
    from tests.adapters import nir_reference as graphs
    from tests.adapters.test_nir import linear

    rng, x = (
        np.random.default_rng(0),
        np.asarray(digits.pool.inputs).reshape(len(digits.pool), 80, -1),
    )
    layers = [
        (
            linear(rng, x.shape[2], 40),
            graphs.neurons(kind, (40,), rng),
            linear(rng, 40, 10),
            graphs.neurons(kind, (10,), rng),
        )
        for _ in range(3)
    ]
    name = "event-driven" if weights == "float32" else f"event-driven-{weights}"
    engine = ag.adapters.from_nir([graphs.chain(*one) for one in layers], dt=1e-3, engine=name)
    rule = ag.AgreeStop(0.8, EVERY, 1).calibrate(engine.score(x[:100]), labels="final")
    assert check(rule, engine, tmp_path, x[100:]).weights == weights


@pytest.mark.slow
def test_the_benchmark_writes_complete_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import c

    monkeypatch.setattr(c, "NETWORKS", (((16,), 2),))
    c.run_c(20, 1, 1, tmp_path / "c.json")
    records = json.loads((tmp_path / "c.json").read_text())["records"]
    assert [record["weights"] for record in records] == list(c.PRECISIONS)
    assert all(
        record["equal"] == record["inputs"] == 20
        and record["c_step"] > 0
        and 1000 < record["code"] < 50_000
        for record in records
    )
