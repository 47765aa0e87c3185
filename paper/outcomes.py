"""What a rule reaches on score files at several settings, over random divisions of the pool.

What the rule reads off the inputs is the same for all targets and numbers of examples. It is computed once, one step after another, from
spike counts of a byte each, so that no array holds the log-confidences of all steps; a realisation then costs a fit and a verdict.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import agreestop.decide
from agreestop.common.arrays import Floats, Integers
from agreestop.common.errors import InputError
from agreestop.decide.confidence import log_confidence
from agreestop.decide.confidence_rules import DCSNN, SEENN
from agreestop.decide.rule import shortage
from agreestop.decide.score_files import Spikes
from agreestop.decide.splits import split_figures
from agreestop.decide.tuned_rows import join_marks, mark_cells
from agreestop.decide.tuning import tune

from .figures import Contender, Rule, Setting, checkpoints
from .sources import Source


@dataclass(frozen=True)
class Effort:
    """How often the pool is divided, with which seed, and how many rows of the tuning split are tuned on: the first ones."""

    realisations: int = 50
    tuning_rows: int = 1000
    seed: int = 0


EFFORT = Effort()
MEASURED = ("coverage", "coverage_se", "latency", "latency_se", "set_size")


@dataclass(frozen=True)
class Part:
    """A rule and a number of members, at several targets and numbers of examples: what is read off the inputs is the same for all."""

    contender: Contender
    members: int
    settings: tuple[Setting, ...]


@dataclass(frozen=True)
class Outcome:
    """What a rule reached at one setting, over the realisations; see `FigureRecord`."""

    coverage: float
    coverage_se: float
    latency: float
    latency_se: float
    set_size: float
    vacuous: bool = False
    shape: str | None = None


@dataclass(frozen=True, eq=False)
class Counts:
    """Spikes so far, (T, n, K, C), and labels (n,)."""

    counts: NDArray[Any]
    labels: Integers

    @classmethod
    def of(cls, spikes: Spikes, rows: int | None = None) -> Counts:
        """Of the first `rows` inputs, or all of them."""
        assert spikes.labels is not None
        some = np.moveaxis(spikes.spikes[:rows], 1, 0)
        return cls(np.cumsum(some, axis=0, dtype=np.uint8 if len(some) < 256 else np.uint16), spikes.labels[:rows])

    @property
    def steps(self) -> int:
        return len(self.counts)

    def at(self, step: int, members: int) -> Floats:
        """Log-confidences (n, K, C) of the first members after so many steps."""
        return log_confidence(self.counts[step - 1, :, :members])


@dataclass(frozen=True, eq=False)
class Ready:
    """Spike counts of one ensemble, ready to be measured on."""

    tuning: Counts
    pool: Counts
    effort: Effort

    @classmethod
    def of(cls, source: Source, pool: int, effort: Effort) -> Ready:
        return cls(Counts.of(source.tuning, effort.tuning_rows), Counts.of(source.pool, pool), effort)

    def measure(self, part: Part) -> Sequence[Outcome]:
        """The outcomes of a part. Its rule is tuned once, for the default target and as many examples, where the tuning rows allow it."""
        contender, members, usual = part.contender, part.members, Setting()
        rule, shape = contender.build(usual.target, self.pool.steps), None
        if contender.tuned:
            rule, shape = self._tune(rule, checkpoints(contender.checkpoints, self.pool.steps), members, usual.n)
        evidence = self._read(rule, members)
        classes, labels = self.pool.counts.shape[3], self.pool.labels
        outcomes = []
        for setting in part.settings:
            aimed = replace(rule, threshold=setting.target) if isinstance(rule, SEENN) else replace(rule, target=setting.target)
            splits = split_figures(aimed, evidence, labels, classes, setting.n, self.effort.realisations, self.effort.seed)
            coverage, latency = splits.coverage, splits.normalized_latency
            outcome = Outcome(
                coverage=float(coverage),
                coverage_se=coverage.se,
                latency=float(latency),
                latency_se=latency.se,
                set_size=float(splits.set_size),
                vacuous=bool(shortage(aimed, labels[: setting.n], members, classes)),
                shape=shape,
            )
            outcomes.append(outcome)
        return outcomes

    def _tune(self, rule: Rule, looks: Sequence[int], members: int, n: int) -> tuple[Rule, str]:
        assert not isinstance(rule, (DCSNN, SEENN))
        scores = np.stack([self.tuning.at(step, members) for step in looks], axis=1)
        tuned = tune(rule, scores, self.tuning.labels, looks, min(n, len(scores) // 2), seed=self.effort.seed)
        return tuned.rule, tuned.trials[0].name

    def _read(self, rule: Rule, members: int) -> Floats:
        """What the rule reads off every input of the pool, (n, M, ...), one step after another; rows it was tuned on are refused."""
        parts, marks = [], []
        for index, step in enumerate(rule.checkpoints):
            scores = self.pool.at(int(step), members)
            parts.append(rule.evidence(index, scores))
            if rule.tuned is not None:
                marks.append(mark_cells(scores))
        if rule.tuned is not None and (reuse := rule.tuned.reuse(join_marks(np.stack(marks, axis=1)))):
            raise InputError(f"pool: {reuse}")
        return np.stack(parts, axis=1)


@cache
def code_fingerprint() -> str:
    """Of what decides and of this module: numbers that older code made are not passed off as those of newer code."""
    paths = [*sorted(Path(agreestop.decide.__path__[0]).glob("*.py")), Path(__file__)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()
