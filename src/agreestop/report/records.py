"""Records of what was measured, as written to `metrics.json`, and the summary of one
ensemble's records.

The headline rule is the earliest of our rules whose coverage keeps the promise within its interval,
at the main target and with all members. It is picked after measuring, so the report says so and
shows the other rules beside it. A rule with too few calibration examples to ever stop is never
praised: where no other is left, the headline says what it needs.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from agreestop.common import InputError
from agreestop.common.estimates import Estimate

Z = 1.96  # intervals are at 95 %, from standard errors
Promise = Literal["kept", "within its interval", "not kept", "none made", "cannot stop"]


@dataclass(frozen=True)
class MeasurementSettings:
    """How rules are measured.

    targets        the probabilities that are promised; the first is the main one, at which numbers
                   of members are compared
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
    """One rule at one target and number of members: means over realisations and their standard
    errors. Latency is a share of T.

    coverage_se, latency_se      over the realisations of this one pool, which share its examples
    energy                       the energy spent until the stop as a share of the energy of running
                                 to T, where it was measured
    examples_needed              the least number of calibration examples with which the rule could
                                 stop early, where it was given fewer
    coverage_pool, latency_pool  low and high end of the 95 % interval for the draw of the pool,
                                 where it was measured; claims are judged by it
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
    examples_needed: int | None = None
    coverage_pool: tuple[float, float] | None = None
    latency_pool: tuple[float, float] | None = None

    @property
    def judged_coverage(self) -> Estimate:
        """The coverage with the interval that claims are judged by: for the draw of the pool
        where it is known.
        """
        return interval(self.coverage, self.coverage_se, self.coverage_pool)

    @property
    def judged_latency(self) -> Estimate:
        """The latency with the interval that claims are judged by."""
        return interval(self.latency, self.latency_se, self.latency_pool)

    @property
    def stop_time(self) -> float:
        """The mean stopping time in steps: latency is over the rule's own last checkpoint."""
        return self.latency * self.checkpoints[-1]


@dataclass(frozen=True)
class Comparison:
    """How much earlier the headline rule stops than another; `earlier` is 1 - its mean stopping
    time over the other's.
    """

    other: Record
    earlier: Estimate


@dataclass(frozen=True)
class EnsembleSummary:
    """The headline rule and what it is compared with; `rules` are all rules at the same target and
    number of members.

    kept              whether the headline's coverage reaches the target within its interval
    paper             the paper's earliest rule that keeps its promise too
    one_member        the same rule with one member
    same_checkpoints  the earliest of our rules at the paper's checkpoints, where the headline
                      has more of them
    smaller           the rule with the smallest answers among ours that stop as early as the
                      headline within its interval
    horizon           T, the time at which the whole input has been seen
    """

    headline: Record
    kept: bool
    paper: Comparison | None
    one_member: Comparison | None
    same_checkpoints: Record | None
    smaller: Record | None
    rules: tuple[Record, ...]
    horizon: float

    def share_of_horizon(self, record: Record, judged: bool = False) -> Estimate:
        """A rule's mean stopping time as a share of T, with the interval over the realisations,
        or with that which claims are judged by.
        """
        latency = record.judged_latency if judged else interval(record.latency, record.latency_se)
        return latency.over(self.horizon / record.checkpoints[-1])


def interval(value: float, se: float, pool: tuple[float, float] | None = None) -> Estimate:
    """A mean with its interval: over the realisations, unknown where there was only one of them,
    or the one for the draw of the pool.
    """
    low, high = (value - Z * se, value + Z * se) if pool is None else pool
    return Estimate(value, low, high, se)


def promise_of(record: Record) -> Promise:
    """Whether a rule kept its promise.

    DC-SNN makes none, and a rule that can never stop keeps it by answering every class at the end.
    """
    if record.rule == "dcsnn":
        return "none made"
    if record.examples_needed is not None:
        return "cannot stop"
    if record.coverage >= record.target:
        return "kept"
    return "within its interval" if record.judged_coverage.high >= record.target else "not kept"


def summarise(records: Sequence[Record]) -> EnsembleSummary:
    """The summary of one ensemble's records; the first record is at the main target."""
    if not records:
        raise InputError("there are no records to summarise: measure at least one rule.")
    target, members = records[0].target, max(record.K for record in records)
    rules = tuple(record for record in records if (record.target, record.K) == (target, members))
    ours = [record for record in rules if _is_ours(record)]
    if not ours:
        raise InputError(
            "no record is of stop-aware calibration or AgreeStop: measure one of them, because the "
            "report is about them."
        )
    keeping = [record for record in ours if _keeps(record)]
    broken = [record for record in ours if promise_of(record) == "not kept"]
    closest = max(broken, key=lambda record: record.coverage, default=None)
    headline = (
        _earliest(keeping) or closest or min(ours, key=lambda record: record.examples_needed or 0)
    )
    paper = _earliest(record for record in rules if _is_the_papers(record) and _keeps(record))
    single = [
        one for one in records if (one.label, one.target, one.K) == (headline.label, target, 1)
    ]
    same = [
        record
        for record in keeping
        if paper is not None and record.checkpoints == paper.checkpoints
    ]
    return EnsembleSummary(
        headline=headline,
        kept=bool(keeping),
        paper=None if paper is None else _compare(headline, paper),
        one_member=_compare(headline, single[0]) if single and members > 1 else None,
        same_checkpoints=None if headline in same else _earliest(same),
        smaller=_smaller(headline, keeping),
        rules=rules,
        horizon=max(record.checkpoints[-1] for record in rules),
    )


def _is_ours(record: Record) -> bool:
    return record.rule == "agreestop" or record.calibration == "stop-aware"


def _is_the_papers(record: Record) -> bool:
    return record.calibration == "bonferroni" and record.pooling in (
        "MergeConfidence",
        "MergePValues",
    )


def _keeps(record: Record) -> bool:
    return promise_of(record) in ("kept", "within its interval")


def _earliest(records: Iterable[Record]) -> Record | None:
    return min(records, key=lambda record: record.stop_time, default=None)


def _smaller(headline: Record, keeping: Sequence[Record]) -> Record | None:
    latest = headline.judged_latency.high * headline.checkpoints[-1]
    others = [
        record
        for record in keeping
        if record.stop_time <= latest and record.set_size < 0.9 * headline.set_size
    ]
    return min(others, key=lambda record: record.set_size, default=None)


def _compare(headline: Record, other: Record) -> Comparison:
    """The interval treats the two means as independent.

    They share their realisations, so the interval is wider than needed.
    """
    ratio = headline.stop_time / other.stop_time
    se = ratio * math.hypot(
        headline.latency_se / headline.latency, other.latency_se / other.latency
    )
    return Comparison(other, interval(1 - ratio, se))
