"""How sure the best I classes are: risks for AgreeStop, fixed before calibration.

    π_t(c)   posterior: softmax(τ_t · g_t), g_t the pooled log-confidence; it orders the classes,
             ties by lowest index
    ρ_t(c)   π_t-mass of c and of all classes ranked after it
    e_t      risk that the label is not among the I most probable classes; TopMass: their missing
             mass, ρ_t of rank I + 1

A `Gate` says when an input first looks ready. Fixed on tuning data:

    κ_t      a threshold for log e_t, one for each block of times
    G(x)     the first checkpoint with log e_t - κ_t < slack. Its block is the input's block, and
             "never" is a block of its own

Checkpoints before G(x) do not count. From there on a rule has the threshold of the input's block,
calibrated on the examples of that block. Block and failure are fixed functions of an example, so
the examples of one block are exchangeable, and P(miss | block) ≤ α for every block.

All in logarithms and as sums of the tail: 1 - Σ would cancel to 0 for confident networks, and then
nothing stops. A risk gives the rule an `Evidence`: values are log ρ of every class, log_risk is
log e.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import (
    Booleans,
    Floats,
    InputError,
    Integers,
    KeptInFiles,
    as_checkpoints,
    as_count,
    as_max_set_size,
    is_number,
)
from agreestop.common.levels import Rounding, Target, as_target

from .answer_kinds import BestClasses, Tails
from .checkpoints import Evidence, Index
from .class_scores import (
    LARGEST_CONSTANT,
    Fitted,
    Reader,
    ShapedOverTime,
    fit_temperatures,
    fix_numbers,
)
from .confidence import MODEL_AVERAGE, MergeConfidence, RiskNumbers, pooling_of, tempered
from .leakage import TunedRows
from .scores import Scores, ScoresLike, as_scores, at_checkpoint, labels_of
from .tuning.gate_fit import LEAST_ROWS, SLACKS, fit_gate, opened_at

MISSES = 6  # calibration examples that may miss for each block of a gate
FEWEST, MOST = 2, 4  # blocks of a gate


class Risk(Reader):
    """Turns the log-confidences of one checkpoint into an order of the classes and a risk."""

    kind: ClassVar[str] = ""
    """What a record calls AgreeStop with this risk, where that has a name of its own."""

    @abstractmethod
    def evidence(self, index: Index, log_confidence: Floats, max_set_size: int) -> Evidence:
        """log ρ (b, C) and log e (b,) from log-confidences (b, K, C).

        The index is one checkpoint, or one for each input.
        """

    reads_answers: ClassVar[bool] = False
    """Whether it reads open answers in place of log-confidences."""

    def logits(self, index: Index, log_confidence: Floats) -> Floats:
        """Pooled logits (b, C), for the risks of the nodes of a tree."""
        raise InputError(f"a tree needs pooled confidences, and {type(self).__name__} has none.")

    pools_classes: ClassVar[bool] = False
    """Whether it has `logits`."""

    def check_size(self, max_set_size: int) -> None:
        """Refuse another I than the risk was learned for."""
        return

    def own_limit(self, alpha: Fraction) -> float:
        """The log-risk below which the risk itself says that misses are rarer than alpha."""
        return math.log(alpha)

    @property
    def is_default(self) -> bool:
        """Whether it is the risk that a rule has without being given one."""
        return False

    @property
    def tunable(self) -> bool:
        """Whether another risk may stand in its place."""
        return True

    @property
    def takes_temperatures(self) -> bool:
        """Whether the risk has no temperatures and may have one for each checkpoint."""
        return False

    def with_temperatures(self, tuning: Scores) -> "Risk":
        """The risk with temperatures fitted on tuning scores, where it takes some."""
        return self

    def shaped(
        self, offsets: Floats, times: tuple[float, ...], rows: TunedRows | None
    ) -> "ShapedRisk":
        """The risk with an offset for each time (M,), which remembers the tuning rows."""
        return ShapedRisk(self, offsets, times, rows)


@dataclass(frozen=True, eq=False)
class TopMass(Fitted, Risk, KeptInFiles):
    """The posterior mass of all but the I most probable classes.

    Parameters
    ----------
    pooling : MergeConfidence
        How the members' confidences are pooled.
    temperatures : array (M,), optional
        Factors of the pooled log-confidence; `TopMass.fit` finds them on tuning data.
    times : tuple of float, optional
        The times of the temperatures.
    tuned : TunedRows, optional
        The rows that were used to fit it.

    Examples
    --------
    >>> import agreestop as ag
    >>> tuning, calibration = ag.simulate_scores(400, steps=20, K=3, C=4).split(0.5, 0.5)
    >>> rule = ag.AgreeStop(0.9, range(1, 21), 1, risk=ag.TopMass.fit(tuning))
    >>> rule.calibrate(calibration).n
    200
    """

    pooling: MergeConfidence = MODEL_AVERAGE
    temperatures: Floats | None = field(default=None, metadata={"per_checkpoint": True})
    times: tuple[float, ...] | None = None
    tuned: TunedRows | None = None

    _learn = staticmethod(fit_temperatures)

    def __post_init__(self) -> None:
        pooling_of(self.pooling)
        if self.temperatures is not None:
            fix_numbers(self, "temperatures", positive=True)

    pools_classes = True

    def logits(self, index: Index, log_confidence: Floats) -> Floats:
        pooled = self.pooling.pool(log_confidence)
        if self.temperatures is None:
            return pooled
        return tempered(np.asarray(self.temperatures[index])[..., None], pooled)

    def tails(self, index: Index, log_confidence: Floats) -> Tails:
        """The pooled order of the classes."""
        return Tails.of(self.logits(index, log_confidence))

    def evidence(self, index: Index, log_confidence: Floats, max_set_size: int) -> Evidence:
        tails = self.tails(index, log_confidence)
        return tails.evidence(tails.outside(max_set_size))

    def rounding(self, base: Rounding) -> Rounding:
        return base.scaled(1.0 if self.temperatures is None else self.temperatures)

    def cut(self, checkpoints: tuple[float, ...]) -> Self:
        return self if self.temperatures is None else super().cut(checkpoints)

    @property
    def is_default(self) -> bool:
        return self.temperatures is None and self.pooling == MODEL_AVERAGE

    @property
    def takes_temperatures(self) -> bool:
        return self.temperatures is None

    def with_temperatures(self, tuning: Scores) -> Risk:
        return TopMass.fit(tuning, pooling=self.pooling)

    def numbers(self, count: int) -> RiskNumbers | None:
        return RiskNumbers.of(self.pooling, self.temperatures, count)


@dataclass(frozen=True, eq=False)
class FixedTime(Risk, KeptInFiles):
    """A risk that only falls with time, so that all inputs stop at one checkpoint.

    It is the baseline that every early stop has to beat. `AgreeStop(..., fill=True,
    risk=FixedTime())` answers the I most probable classes at the earliest checkpoint that
    calibration allows. Where it allows none, the answer comes at the last checkpoint and may be
    larger.

    Parameters
    ----------
    pooling : MergeConfidence
        How the members' confidences are pooled.

    Examples
    --------
    >>> import agreestop as ag
    >>> scores, test = ag.simulate_scores(400, steps=20, K=3, C=4).split(0.5, 0.5)
    >>> rule = ag.AgreeStop(0.8, range(1, 21), 1, fill=True, risk=ag.FixedTime())
    >>> len(set(rule.calibrate(scores).decide(test).stop_time.tolist()))
    1
    """

    pooling: MergeConfidence = MODEL_AVERAGE

    kind = "fixedtime"

    def __post_init__(self) -> None:
        pooling_of(self.pooling)

    def evidence(self, index: Index, log_confidence: Floats, max_set_size: int) -> Evidence:
        # The risk stays above log ρ ≤ 0, so that a threshold first shrinks the last answer and only
        # then allows earlier stops.
        risk = np.full(len(log_confidence), 1.0 / (np.asarray(index) + 1.0))
        return Tails.of(self.pooling.pool(log_confidence)).evidence(risk)

    def rounding(self, base: Rounding) -> Rounding:
        """The rounding of log-masses; the risk itself is above them, and exact."""
        return replace(base.scaled(1.0), exact_above=0.0)

    def own_limit(self, alpha: Fraction) -> float:
        raise InputError(
            "accumulated=True stops where the risk is below 1 - target, which a fixed time never "
            "is: give another risk."
        )

    @property
    def tunable(self) -> bool:
        return False

    def numbers(self, count: int) -> RiskNumbers | None:
        return RiskNumbers.of(self.pooling, None, count, fixed_time=True)


class ShapedRisk(ShapedOverTime[Risk], Risk, KeptInFiles):
    """A risk whose threshold is shaped over time.

    It stops when e_t < λ · exp(offset_t), and keeps classes with ρ_t ≥ λ · exp(offset_t).

    Parameters
    ----------
    base : Risk
        The risk without its shape.
    offsets : array (M,)
        One for each checkpoint; -inf for a checkpoint at which nothing stops. `tune` finds them.
    times : tuple of float, optional
        The times of the offsets.
    rows : TunedRows, optional
        The rows the offsets were fitted on, where the base does not know them already.

    Examples
    --------
    >>> import agreestop as ag
    >>> risk = ag.ShapedRisk.per_time(ag.TopMass(), range(1, 21), power=0.5)
    >>> ag.AgreeStop(0.9, range(1, 21), 1, risk=risk).max_set_size
    1
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if not ((np.abs(self.offsets) <= LARGEST_CONSTANT) | (self.offsets == -np.inf)).all():
            raise InputError(
                "offsets holds nan, inf or a number that is too large: give numbers of at most "
                f"{LARGEST_CONSTANT:g} in size, or -inf for a checkpoint at which nothing stops."
            )

    @classmethod
    def per_time(cls, base: Risk, times: Sequence[float], power: float = 1.0) -> Self:
        """The shape (t/T)^power: the risk that is tolerated grows with the time waited."""
        known = as_checkpoints(times)
        return cls(base, power * np.log(np.array(known) / known[-1]), known)

    def check_size(self, max_set_size: int) -> None:
        self.base.check_size(max_set_size)

    def evidence(self, index: Index, log_confidence: Floats, max_set_size: int) -> Evidence:
        evidence = self.base.evidence(index, log_confidence, max_set_size)
        return evidence.minus(self.offsets[index])


@dataclass(frozen=True, eq=False, repr=False)
class Gate(ShapedRisk, KeptInFiles):
    """When an input first looks ready. Make one with `Gate.fit`, on tuning data.

    Parameters
    ----------
    base : Risk
        The risk.
    offsets : array (M,)
        κ at each checkpoint.
    times : tuple of float
        The times of the checkpoints.
    rows : TunedRows, optional
        The tuning rows.
    slack : float
        The gate opens where log e_t - κ_t is below this.
    ends : tuple of float
        The last time of each block.

    Examples
    --------
    >>> import agreestop as ag
    >>> scores = ag.simulate_scores(800, steps=20, K=3, C=4, pace=5.0)
    >>> tuning, calibration = scores.split(0.5, 0.5)
    >>> gate = ag.Gate.fit(tuning, target=0.9, max_set_size=1, blocks=(10,))
    >>> gate.block_names
    ('ready in (0, 10]', 'ready in (10, 20]', 'never ready')
    >>> ag.AgreeStop(0.9, range(1, 21), 1, gate=gate).calibrate(calibration).thresholds.shape
    (3,)
    """

    slack: float = SLACKS[0]
    ends: tuple[float, ...] = ()

    kind = "gatedagreestop"

    def __post_init__(self) -> None:
        super().__post_init__()
        rising = list(self.ends) == sorted(set(self.ends))
        if self.times is None or not self.ends or not rising or self.ends[-1] < self.times[-1]:
            raise InputError(
                f"ends is {self.ends}: give times in increasing order, the last one not before the "
                "last checkpoint."
            )
        if not (is_number(self.slack) or self.slack == np.inf):
            raise InputError(f"slack is {self.slack!r}: give a number.")

    def __repr__(self) -> str:
        return f"Gate(base={type(self.base).__name__}, ends={self.ends}, slack={self.slack:g})"

    @property
    def blocks(self) -> Integers:
        """(M,) the block of each checkpoint; never opening is block len(ends)."""
        return np.searchsorted(np.array(self.ends), np.array(self.times))

    def opened(self, log_risk: Floats) -> tuple[Booleans, Integers]:
        """Where the gate is open, (n, M), and the block of each input (n,).

        log_risk: shaped log-risks (n, M).
        """
        return opened_at(log_risk, self.slack, self.blocks, len(self.ends))

    @property
    def block_names(self) -> tuple[str, ...]:
        """The blocks in words: "ready in (0, 10]", "ready in (10, 20]", ..., "never ready"."""
        spans = zip((0, *self.ends[:-1]), self.ends, strict=True)
        return (*(f"ready in ({start:g}, {end:g}]" for start, end in spans), "never ready")

    def own_limit(self, alpha: Fraction) -> float:
        return 0.0

    @property
    def tunable(self) -> bool:
        return False

    @staticmethod
    def count_blocks(n_calibration: int, target: Target) -> int:
        """A number of blocks for n calibration examples: from 2 to 4.

        n·α/blocks is at least 6 where it can be. Fewer examples in a block make its threshold,
        which is the ⌊(n_b + 1)α⌋-th smallest of n_b, needlessly safe.
        """
        allowed = as_count(n_calibration, "n_calibration") * (1 - as_target(target))
        return min(max(int(allowed / MISSES), FEWEST), MOST)

    @classmethod
    def fit(
        cls,
        scores_or_log_confidence: ScoresLike,
        labels: ArrayLike | None = None,
        times: Sequence[float] | None = None,
        *,
        target: Target,
        max_set_size: int,
        blocks: int | Sequence[float] = 4,
        risk: Risk | None = None,
    ) -> Self:
        """A gate from tuning data. Calibration and test must not use these rows.

        Parameters
        ----------
        scores_or_log_confidence : Scores, or array (n, M, K, C)
            Tuning scores, or log-confidences with labels (n,).
        labels, times : optional
            For log-confidences.
        target, max_set_size
            As in the rule that the gate is for.
        blocks : int or sequence of float
            A number of blocks, which then hold about as many tuning inputs each, or the ends of the
            blocks: (10, 20, 40) divides the times into (0, 10], (10, 20], (20, 40] and (40, T].
            `Gate.count_blocks` says how many blocks suit how many calibration examples.
        risk : Risk
            `TopMass()` unless another is given.
        """
        alpha, size = float(1 - as_target(target)), as_max_set_size(max_set_size)
        data = as_scores(scores_or_log_confidence, labels, times)
        truth, known = labels_of(data), data.times
        if len(truth) < LEAST_ROWS:
            raise InputError(
                f"there are {len(truth)} tuning rows: a gate needs at least {LEAST_ROWS}."
            )
        base = TopMass() if risk is None else risk
        fitted = base.cut(known)  # the base is kept as fitted, so that rules may cut it themselves
        parts = [fitted.evidence(at, at_checkpoint(data, at), size) for at in range(len(known))]
        failures = BestClasses(size).failures(Evidence.stack(parts), truth, None, None)
        rounding = fitted.rounding(Rounding.of(data.log_confidence, data.rounding))
        offsets, slack, ends = fit_gate(failures, known, blocks, alpha, rounding)
        rows = TunedRows.of(data.log_confidence, data.ids)
        return cls(base, offsets, known, rows, slack, ends)
