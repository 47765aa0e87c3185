"""What a rule reaches on score files at several settings, over random divisions of the pool.

The evidence that a rule reads off the inputs is the same for all targets and numbers of calibration
examples. It is computed once, one step after another, from spike counts of one byte each. So no
array holds the log-confidences of all steps, and a realisation only has to fit the rule and apply
it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

import agreestop
from agreestop.common import Floats, Integers
from agreestop.decide.baselines import DCSNN, SEENN
from agreestop.decide.checkpoints import Evidence, LabelledEvidence
from agreestop.decide.confidence import log_confidence
from agreestop.decide.leakage import ReadRows, TunedRows, sketch_cells
from agreestop.decide.rule import Rule, refuse_used, shortage
from agreestop.decide.scores import Spikes
from agreestop.decide.tuning.splits import Pool, split_figures
from agreestop.decide.tuning.tune import tune

from .figures import FigureRule, Setting, checkpoints
from .sources import ScoreSource


@dataclass(frozen=True)
class MeasureSettings:
    """How often the pool is divided, with which seed, and how many rows of the tuning split are
    used, the first ones.

    pool_repeats: realisations for each part of the pool that is left out, for the standard errors
    of the draw of the pool.
    """

    realisations: int = 50
    tuning_rows: int = 1000
    seed: int = 0
    pool_repeats: int = 5


@dataclass(frozen=True)
class MeasureTask:
    """A rule with K members at several targets and numbers of examples, for which it reads the same
    evidence off the inputs.
    """

    rule: FigureRule
    members: int
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class RuleOutcome:
    """What a rule reached at one setting, over the realisations; see `FigureRecord`."""

    coverage: float
    coverage_se: float
    latency: float
    latency_se: float
    set_size: float
    vacuous: bool = False
    shape: str | None = None
    coverage_pool_se: float | None = None
    latency_pool_se: float | None = None


MEASURED = ("coverage", "coverage_se", "latency", "latency_se", "set_size")


@dataclass(frozen=True, eq=False)
class SpikeCounts:
    """Spikes so far, (T, n, K, C), and labels (n,)."""

    counts: NDArray[Any]
    labels: Integers

    @classmethod
    def of(cls, spikes: Spikes, rows: int | None = None) -> SpikeCounts:
        """The counts of the first `rows` inputs, or of all."""
        assert spikes.labels is not None
        chosen = np.moveaxis(spikes.spikes[:rows], 1, 0)
        return cls(
            np.cumsum(chosen, axis=0, dtype=np.uint8 if len(chosen) < 256 else np.uint16),
            spikes.labels[:rows],
        )

    @property
    def steps(self) -> int:
        return len(self.counts)

    def at(self, step: int, members: int) -> Floats:
        """Log-confidences (n, K, C) of the first members after that step, which counts from 1."""
        return log_confidence(self.counts[step - 1, :, :members])


@dataclass(frozen=True, eq=False)
class RuleMeasurer:
    """Measures rules on the spike counts of one ensemble."""

    tuning: SpikeCounts
    pool: SpikeCounts
    settings: MeasureSettings

    @classmethod
    def of(cls, source: ScoreSource, pool: int, settings: MeasureSettings) -> RuleMeasurer:
        return cls(
            SpikeCounts.of(source.tuning, settings.tuning_rows),
            SpikeCounts.of(source.pool, pool),
            settings,
        )

    def measure(self, task: MeasureTask) -> Sequence[RuleOutcome]:
        """What the rule reaches at each setting of the task.

        A tuned rule is tuned once, for the default target and the default n, or for half of the
        tuning rows where these are fewer.
        """
        members, usual = task.members, Setting()
        rule, shape = task.rule.build(usual.target, self.pool.steps), None
        if task.rule.tuned:
            rule, shape = self._tune(
                rule, checkpoints(task.rule.checkpoints, self.pool.steps), members, usual.n
            )
        evidence = self._read(rule, members)
        examples = LabelledEvidence(evidence, self.pool.labels, self.pool.counts.shape[3])
        # Calibration needs the same of each example for all targets.
        pool, found = Pool.of(rule, examples), []
        for setting in task.settings:
            name = "threshold" if isinstance(rule, SEENN) else "target"
            aimed: Rule = replace(cast(Any, rule), **{name: setting.target})
            splits = split_figures(
                aimed, pool, setting.n, self.settings.realisations, self.settings.seed
            )
            coverage, latency = splits.coverage, splits.normalized_latency
            pools, first = splits.pool_figures(self.settings.pool_repeats), np.arange(setting.n)
            few = shortage(
                aimed, pool.reduced_rows(first), examples.without_evidence(first), members
            )
            measured = RuleOutcome(
                coverage=float(coverage),
                coverage_se=coverage.se,
                latency=float(latency),
                latency_se=latency.se,
                set_size=float(splits.set_size),
                vacuous=bool(few),
                shape=shape,
                coverage_pool_se=_known(pools.coverage.se),
                latency_pool_se=_known(pools.normalized_latency.se),
            )
            found.append(measured)
        return found

    def _tune(self, rule: Rule, times: Sequence[int], members: int, n: int) -> tuple[Rule, str]:
        assert not isinstance(rule, (DCSNN, SEENN))
        scores = np.stack([self.tuning.at(step, members) for step in times], axis=1)
        tuned = tune(
            rule,
            scores,
            self.tuning.labels,
            times,
            min(n, len(scores) // 2),
            seed=self.settings.seed,
            only_if_better=False,
        )
        return tuned.rule, tuned.trials[0].name

    def _read(self, rule: Rule, members: int) -> Evidence:
        """The evidence (n, M, ...) that the rule reads off the pool. Rows that it was tuned on are
        refused.
        """
        evidence, cells = [], []
        for index, step in enumerate(rule.checkpoints):
            scores = self.pool.at(int(step), members)
            evidence.append(rule.evidence(index, scores))
            if rule.tuned is not None:
                cells.append(sketch_cells(scores))
        if cells:
            rows = TunedRows.of_cells(cells).cut(range(len(cells)), len(cells))
            assert rows.sketches is not None
            refuse_used(rule, None, ReadRows(rows.sketches, np.empty(0, np.uint64)), None, "pool")
        return Evidence.stack(evidence)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


@cache
def code_fingerprint() -> str:
    """A hash of this module and of the packages `decide` and `common`, so that numbers of older
    code are not used again.
    """
    package = Path(agreestop.__path__[0])
    paths = [
        *sorted(path for name in ("common", "decide") for path in (package / name).rglob("*.py")),
        Path(__file__),
    ]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()
