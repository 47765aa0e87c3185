"""A small trained ensemble, a rule, and recordings, as files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import agreestop as ag
from agreestop.cluster import decisions, pool, scores

from .fake_ray import FakeRay

STEPS, CELLS, CLASSES = 12, 8, 3


def examples(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (n, T, 8) whose active cells tell the class more or less, and their labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, n)
    rates = np.where(np.arange(CELLS) % CLASSES == labels[:, None], 0.9, 0.02)[
        :, None
    ] * rng.uniform(0.2, 1, (n, 1, 1))
    return rng.random((n, STEPS, CELLS)) < rates, labels


@dataclass(frozen=True)
class Work:
    """An ensemble and a rule, in memory and in files, and recordings to decide on."""

    folder: Path
    ensemble: ag.ensembles.DeepEnsemble
    rule: ag.CalibratedRule
    events: ag.events.Events

    @property
    def members(self) -> Path:
        return self.folder / "members.safetensors"

    @property
    def rule_file(self) -> Path:
        return self.folder / "agreestop.rule"


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    folder = tmp_path_factory.mktemp("cluster")
    network = ag.networks.FullyConnected(
        (CELLS,), CLASSES, hidden=(16,), neuron=ag.networks.Neuron(2.0, 1.0, 2.0)
    )
    ensemble = ag.ensembles.DeepEnsemble(network, members=2, seed=0, device="cpu")
    ensemble.fit(*examples(256, 0), epochs=8, learning_rate=0.05, progress=False)
    rule = ag.AgreeStop(0.8, range(1, STEPS + 1), 1).calibrate(ensemble.score(*examples(100, 1)))
    x, y = examples(1100, 2)
    made = Work(folder, ensemble, rule, ag.events.Events.from_dense(x, y))
    ensemble.save(made.members)
    rule.save(made.rule_file)
    return made


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeRay], FakeRay]:
    """Let a stand-in take the place of Ray."""

    def put(fake: FakeRay) -> FakeRay:
        for module in (pool, decisions, scores):
            monkeypatch.setattr(module, "import_ray", lambda: fake)
        return fake

    return put


@pytest.fixture
def in_files(work: Work, tmp_path: Path) -> Callable[[str], list[Path]]:
    """The recordings in three files of 600, 300 and 200 rows."""

    def write(suffix: str) -> list[Path]:
        paths = []
        for name, rows in (("a", slice(0, 600)), ("b", slice(600, 900)), ("c", slice(900, 1100))):
            paths.append(tmp_path / f"{name}{suffix}")
            part = work.events.rows(rows)
            if suffix == ".npz":
                part.save(paths[-1])
            else:
                ag.cluster.save_recordings(paths[-1], part, ids=np.arange(1100)[rows] + 5000)
        return paths

    return write
