"""The summary of one ensemble: what was promised, whether it was kept, and how much earlier the headline rule stopped than others.

The headline rule is the earliest of our rules whose coverage keeps the promise within its interval, at the main target and with all
members. It is picked after measuring, so the report says so and shows the other rules beside it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from agreestop.common import InputError
from agreestop.decide.decisions import Estimate

from .records import Record

Z = 1.96  # intervals are at 95 %, from standard errors over the realisations
Promise = Literal["kept", "within its interval", "not kept", "none made"]


@dataclass(frozen=True)
class Comparison:
    """How much earlier the headline rule stops than another; `earlier` is 1 - its mean stopping time over the other's."""

    other: Record
    earlier: Estimate


@dataclass(frozen=True)
class EnsembleSummary:
    """The headline rule and what it is compared with; `rules` are all rules at the same target and number of members.

    kept              whether the headline's coverage reaches the target within its interval
    paper             the paper's earliest rule that keeps its promise too
    one_member        the same rule with one member
    same_checkpoints  the earliest of our rules at the paper's checkpoints, where the headline has more of them
    smaller           the rule with the smallest answers among ours that stop as early as the headline within its interval
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

    def share_of_horizon(self, record: Record) -> Estimate:
        """A rule's mean stopping time as a share of T."""
        scale = record.checkpoints[-1] / self.horizon
        return interval(record.latency * scale, record.latency_se * scale)


def interval(value: float, se: float) -> Estimate:
    """A mean over realisations with its interval, which is not known where there was only one realisation."""
    return Estimate(value, value - Z * se, value + Z * se, se)


def promise_of(record: Record) -> Promise:
    """Whether a rule kept its promise; DC-SNN makes none."""
    if record.rule == "dcsnn":
        return "none made"
    if record.coverage >= record.target:
        return "kept"
    return "within its interval" if record.coverage + Z * record.coverage_se >= record.target else "not kept"


def summarise(records: Sequence[Record]) -> EnsembleSummary:
    """The summary of one ensemble's records; the first record is at the main target."""
    if not records:
        raise InputError("there are no records to summarise: measure at least one rule.")
    target, members = records[0].target, max(record.K for record in records)
    rules = tuple(record for record in records if (record.target, record.K) == (target, members))
    ours = [record for record in rules if _is_ours(record)]
    if not ours:
        raise InputError("no record is of stop-aware calibration or AgreeStop: measure one of them, because the report is about them.")
    keeping = [record for record in ours if _keeps(record)]
    headline = _earliest(keeping) if keeping else max(ours, key=lambda record: record.coverage)
    papers = [record for record in rules if _is_the_papers(record) and _keeps(record)]
    paper = _earliest(papers) if papers else None
    single = [one for one in records if (one.label, one.target, one.K) == (headline.label, target, 1)]
    same = [record for record in keeping if paper is not None and record.checkpoints == paper.checkpoints]
    return EnsembleSummary(
        headline=headline,
        kept=bool(keeping),
        paper=None if paper is None else _compare(headline, paper),
        one_member=_compare(headline, single[0]) if single and members > 1 else None,
        same_checkpoints=_earliest(same) if same and headline not in same else None,
        smaller=_smaller(headline, keeping),
        rules=rules,
        horizon=max(record.checkpoints[-1] for record in rules),
    )


def _is_ours(record: Record) -> bool:
    return record.rule == "agreestop" or record.calibration == "stop-aware"


def _is_the_papers(record: Record) -> bool:
    return record.calibration == "bonferroni" and record.pooling in ("MergeConfidence", "MergePValues")


def _keeps(record: Record) -> bool:
    return promise_of(record) in ("kept", "within its interval")


def _stop_time(record: Record) -> float:
    """The mean stopping time in steps: latency is over the rule's own last checkpoint."""
    return record.latency * record.checkpoints[-1]


def _earliest(records: Iterable[Record]) -> Record:
    return min(records, key=_stop_time)


def _smaller(headline: Record, keeping: Sequence[Record]) -> Record | None:
    latest = (headline.latency + Z * headline.latency_se) * headline.checkpoints[-1]
    others = [record for record in keeping if _stop_time(record) <= latest and record.set_size < 0.9 * headline.set_size]
    return min(others, key=lambda record: record.set_size) if others else None


def _compare(headline: Record, other: Record) -> Comparison:
    """The interval treats the two means as independent. They share their realisations, so the interval is wider than needed."""
    ratio = _stop_time(headline) / _stop_time(other)
    se = ratio * math.hypot(headline.latency_se / headline.latency, other.latency_se / other.latency)
    return Comparison(other, interval(1 - ratio, se))
