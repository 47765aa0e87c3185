"""Score files of the figures, read and checked.

<scores>/<data>/<ensemble>/tuning.npz, pool.npz    read-out spikes at every step, with labels
                                                   (`save_spikes`)
<scores>/<data>/<ensemble>/about.json              how they were made; `description`, `device` and
                                                   `simulated` are read
<scores>/<data>/<ensemble>/seenn2.json             SEENN-II, where it was measured: a list of
                                                   records with K, target, n, coverage, coverage_se,
                                                   latency, latency_se and set_size
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agreestop.common import InputError
from agreestop.decide.scores import Spikes, load_spikes

from .figures import Figure
from .stand_ins import find

TUNING, POOL, ABOUT, SEENN2_FILE = "tuning.npz", "pool.npz", "about.json", "seenn2.json"


@dataclass(frozen=True, eq=False)
class ScoreSource:
    """The score files of one ensemble on one data set."""

    data: str
    ensemble: str
    folder: Path
    tuning: Spikes
    pool: Spikes
    about: dict[str, Any]
    fingerprint: str

    @property
    def simulated(self) -> bool:
        return find(self.data).simulated or bool(self.about.get("simulated"))

    @property
    def members(self) -> int:
        return int(self.pool.spikes.shape[2])

    @property
    def steps(self) -> int:
        return int(self.pool.spikes.shape[1])

    def describe(self) -> dict[str, Any]:
        """How the numbers of a figure name this source."""
        return {
            "data": self.data,
            "ensemble": self.ensemble,
            "simulated": self.simulated,
            "description": self.about.get("description", find(self.data).what),
            "device": self.about.get("device"),
            "members": self.members,
            "n_tuning": len(self.tuning.spikes),
            "n_pool": len(self.pool.spikes),
            "fingerprint": self.fingerprint,
            "about": self.about,
        }


def check_present(figure: Figure, scores: Path) -> None:
    """Refuse a figure whose score files are missing, and name the first of them."""
    folders = [scores / data / ensemble for data in figure.data for ensemble in figure.ensembles]
    missing = [
        str(folder / name)
        for folder in folders
        for name in (TUNING, POOL)
        if not (folder / name).is_file()
    ]
    if missing:
        others = f" (nor {len(missing) - 1} others)" if len(missing) > 1 else ""
        advice = "run in the repository, give --scores, or make them with --scale full or small"
        raise InputError(
            f"{figure.name} needs {missing[0]}, which does not exist{others}: {advice}."
        )


def load_source(folder: Path, data: str, ensemble: str) -> ScoreSource:
    """Read and check the score files of one ensemble, which are in `folder`."""
    tuning, pool = load_spikes(folder / TUNING), load_spikes(folder / POOL)
    for name, part in ((TUNING, tuning), (POOL, pool)):
        if part.labels is None:
            raise InputError(f"{folder / name} holds no labels: write them with the spikes.")
    if tuning.spikes.shape[1:] != pool.spikes.shape[1:]:
        raise InputError(
            f"{folder} holds spikes (T, K, C) of {tuning.spikes.shape[1:]} for tuning and "
            f"{pool.spikes.shape[1:]} in the pool: "
            "score both with the same ensemble."
        )
    digest = hashlib.sha256()
    for name in (TUNING, POOL):
        digest.update((folder / name).read_bytes())
    about = read_json(folder / ABOUT, dict) if (folder / ABOUT).is_file() else {}
    return ScoreSource(data, ensemble, folder, tuning, pool, about, digest.hexdigest())


def read_json(path: Path, kind: type) -> Any:
    """A list or a dictionary from a JSON file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as JSON ({error}): make it again.") from None
    if not isinstance(content, kind):
        raise InputError(f"{path} holds a {type(content).__name__}: a {kind.__name__} is needed.")
    return content
