"""The study of what an adapter costs runs, and its runs compute the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="adapters need PyTorch")

import agreestop as ag
from benchmarks import adapters


@pytest.mark.slow
def test_the_study_writes_its_file(tmp_path: Path) -> None:
    adapters.run_adapters(1, tmp_path / "adapters.json")
    found = json.loads((tmp_path / "adapters.json").read_text())
    assert [(one["module"], one["batch"]) for one in found["results"]] == [
        ("Gru", 256),
        ("Gru", 1),
        ("Convolution", 256),
        ("Convolution", 1),
    ]
    assert all(0 < one["computed"] <= 1 and one["times_bare_loop"] > 0 for one in found["results"])


@pytest.mark.parametrize("kind", [adapters.Gru, adapters.Convolution])
def test_the_bare_loop_computes_what_the_engine_does(kind: type[Any]) -> None:
    modules = [kind().eval() for _ in range(2)]
    x = np.random.default_rng(0).random((3, 5, adapters.SENSORS), np.float32)
    outputs = ag.adapters.from_module(modules).engine.begin(x).advance(5)
    assert np.array_equal(
        outputs, adapters.bare_loop(modules, torch.from_numpy(x)).permute(2, 1, 0, 3).numpy()
    )
