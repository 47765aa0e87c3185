"""The study of published NIR networks, on small graphs with their names and on a few recordings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba", reason="the event-driven engine needs numba")
nir = pytest.importorskip("nir", reason="agreestop[nir] is not installed")

import agreestop as ag
from benchmarks.nir import BRAILLE, load_recordings, run_nir
from tests.adapters.nir_reference import chain, neurons, weights
from tests.events.writers import write_n_mnist
from tests.networks.plain import refused


def test_recordings_are_counted_in_milliseconds_with_off_first(tmp_path: Path) -> None:
    (tmp_path / "Test" / "7").mkdir(parents=True)
    x, y, polarity, time = (
        np.array([3, 3, 5]),
        np.array([1, 1, 2]),
        np.array([True, True, False]),
        np.array([1500, 1700, 299_500]),
    )
    write_n_mnist(
        tmp_path / "Test" / "7" / "1.bin",
        ag.events.checked_recording(x, y, polarity, time, (34, 34)),
    )
    counts, labels = load_recordings(tmp_path, 1)
    assert labels.tolist() == [7] and counts.sum() == 3
    assert counts[0, 1, 1, 1, 3] == 2 and counts[0, 299, 0, 2, 5] == 1
    refused(lambda: load_recordings(tmp_path, 2), "holds 1 N-MNIST recordings")


def test_accuracies_of_braille_networks_are_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in BRAILLE:
        nir.write(
            tmp_path / name,
            chain(nir.Linear(weight=weights(rng, 7, 12)), neurons("LIF", (7,), rng)),
        )
    np.savez(tmp_path / "braille.npz", x_test=rng.random((5, 20, 12)) < 0.3, y_test=np.arange(5))
    run_nir(tmp_path, None, tmp_path / "braille.npz", tmp_path / "out" / "numbers.json", None)
    found = json.loads((tmp_path / "out" / "numbers.json").read_text())["braille"]
    assert set(found) == set(BRAILLE) and all(
        one["engines_equal"] and 0 <= one["accuracy"] <= 1 for one in found.values()
    )
