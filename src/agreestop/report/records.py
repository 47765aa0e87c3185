"""Records of what was measured: one rule at one setting, as written to `metrics.json`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Record:
    """One rule at one target and number of members: means over realisations and their standard errors. Latency is over T.

    energy is the share of the energy of running to T that stopping leaves, where it was measured.
    """

    ensemble: str
    label: str
    rule: str
    pooling: str | None
    r: float | None
    calibration: str | None
    K: int
    target: float
    checkpoints: tuple[float, ...]
    coverage: float
    coverage_se: float
    latency: float
    latency_se: float
    set_size: float
    energy: float | None = None
