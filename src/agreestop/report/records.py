"""Records of what was measured: one rule at one setting, as written to `metrics.json`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MeasurementSettings:
    """How rules are measured.

    targets        the probabilities that are promised; the first is the main one, at which numbers of members are compared
    sizes          numbers of members; a smaller ensemble is the first members of the largest
    checkpoints    the few times of rules that do not look at every step
    max_set_size   I_th, the largest set that may stop early
    n_calibration  calibration rows of each realisation
    realisations   random divisions of the pool into calibration and test rows
    """

    targets: tuple[float, ...] = (0.9, 0.8, 0.85, 0.92)
    sizes: tuple[int, ...] = (1, 2, 4, 6)
    checkpoints: tuple[float, ...] = (20, 40, 60, 80)
    max_set_size: int = 3
    n_calibration: int = 50
    realisations: int = 50
    seed: int = 0


@dataclass(frozen=True)
class Record:
    """One rule at one target and number of members: means over realisations and their standard errors. Latency is a share of T.

    energy  the energy spent until the stop as a share of the energy of running to T, where it was measured
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
