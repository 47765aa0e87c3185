"""What is answered, and the two numbers a checkpoint that follow from it (see `checkpoints`).

Small thresholds λ are safe in every kind.

    BestClasses   risk e_t, classes in order of probability, ρ_t(c) the mass of c and all after it.
                  Stops where e_t < λ with the I best classes, of which trim c keeps ρ_t ≥ cλ.
                  opens_t = e_t;  fails_t = -∞ if y is not among the I best, ρ_t(y)/c if it is not
                  the first, else ∞;  fails_end = ρ_M(y) beyond the I best, else ∞;
                  ∞ for an abstention
    NestedSets    scores S_t(c). Stops where 1 ≤ #{c : S_t ≤ -λ} ≤ I with that set.
                  opens_t = minus the (I+1)-th smallest score, closes_t = minus the smallest;
                  fails_t = -S_t(y);  fails_end = ∞ if y is best at M, else -S_M(y)
    AnyRisk       any risk, no classes. Stops where risk_t < λ; a loss says whether that was wrong.
                  opens_t = risk_t;  fails_t = -∞ if the loss is 1, else ∞;
                  fails_end = ∞ for an abstention, else as fails_M

Everything about risks and masses is logarithmic. Classes that tie up to rounding may come in
another order in another run: under rounding y stands behind all that may change places with it.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from agreestop.common import Booleans, Floats, Integers, KeptInFiles
from agreestop.common.levels import EQUAL, Rounding, same_number

from .checkpoints import Evidence, Failures, State, Verdict, lowest_before

Limits = float | Floats
"""One threshold for all inputs, or one for each, (b,)."""


class Answer(ABC):
    """What a rule with one threshold answers."""

    meaning: ClassVar[str]
    """In words, what the set of an input that still runs means."""

    @abstractmethod
    def judge(
        self, limits: Limits, last: bool | Booleans, evidence: Evidence, state: State
    ) -> Verdict:
        """Who stops with these thresholds, and the answers; at the `last` checkpoint all stop."""

    @abstractmethod
    def stopping(self, limit: Limits, evidence: Evidence) -> Booleans:
        """Where inputs with evidence (n, M, ...) would stop, (n, M)."""

    @abstractmethod
    def kept(self, values: Floats, limit: float) -> Booleans:
        """The classes (..., C) that the threshold still keeps, from values of the evidence."""

    @abstractmethod
    def closed(self, evidence: Evidence, closed: Booleans, last: bool | Booleans) -> Evidence:
        """Evidence on which these inputs (b,) stop only at the last checkpoint."""

    def shut(self, evidence: Evidence, opened: Booleans) -> Evidence:
        """Evidence (n, M, ...) of which only some checkpoints (n, M), and the last, count."""
        last = np.arange(opened.shape[1]) == opened.shape[1] - 1
        return self.closed(evidence, ~opened, last)

    @abstractmethod
    def failures(
        self, evidence: Evidence, labels: Integers, loss: Floats | None, rounding: Rounding | None
    ) -> Failures:
        """opens, fails and fails_end from evidence (n, M, ...) and labels (n,), or a loss (n, M).

        With a rounding, the label may have changed places with classes that tie with it.
        """

    @abstractmethod
    def compared(self, evidence: Evidence) -> Floats:
        """All numbers (n, ...) that are compared with λ."""

    def shown(self, thresholds: Floats) -> Floats:
        """Thresholds in the scale that users see."""
        return thresholds

    @property
    def always_right_at_end(self) -> bool:
        """Whether an input that nothing stops cannot miss at λ = -∞, which may then be deployed."""
        return True


class StopsOnRisk(Answer):
    """Answers that come as soon as a risk is below the threshold."""

    def stopping(self, limit: Limits, evidence: Evidence) -> Booleans:
        return evidence.risk < limit

    def closed(self, evidence: Evidence, closed: Booleans, last: bool | Booleans) -> Evidence:
        return Evidence(evidence.values, np.where(closed, np.inf, evidence.risk))

    def kept(self, values: Floats, limit: float) -> Booleans:
        return np.ones(values.shape, dtype=bool)

    def compared(self, evidence: Evidence) -> Floats:
        return evidence.risk


@dataclass(frozen=True, eq=False)
class BestClasses(StopsOnRisk, KeptInFiles):
    """The I most probable classes, as soon as the risk that they miss is small enough.

    A stopped answer holds the most probable class, and of the I best all with log ρ - log_trim ≥ λ.
    log_trim = -∞ keeps all I of them. If nothing stopped, the last answer holds the I best and all
    with log ρ ≥ λ; with `final`, the most probable class alone. If it `abstains`, the last answer
    is no class, which cannot miss.
    """

    max_set_size: int
    log_trim: float = 0.0
    final: bool = False
    abstains: bool = False

    meaning = (
        "the classes that the calibrated threshold keeps: a class is removed once it and all less "
        "likely classes together are improbable enough"
    )

    def judge(
        self, limits: Limits, last: bool | Booleans, evidence: Evidence, state: State
    ) -> Verdict:
        stop = evidence.risk < limits
        sets = np.zeros(evidence.values.shape, dtype=bool)
        if np.count_nonzero(stop):  # `any` takes longer on the few values of a stream
            sets[stop] = self._stopped(evidence.values[stop], _rows_of(limits, stop))
        if last is False:
            return Verdict(stop, sets, state)
        ends = last & ~stop
        if np.count_nonzero(ends) and not self.abstains:
            mass = evidence.values[ends]
            if self.final:
                sets[ends] = mass == mass.max(axis=1, keepdims=True)
            else:
                sets[ends] = self._best(mass) | (mass >= _rows_of(limits, ends))
        return Verdict(stop | last, sets, state)

    def _best(self, mass: Floats) -> Booleans:
        """The I most probable classes: ρ falls strictly along the order of the classes."""
        others = mass.shape[1] - self.max_set_size
        if others <= 0:
            return np.ones(mass.shape, dtype=bool)
        return mass >= np.partition(mass, others, axis=1)[:, others, None]

    def _stopped(self, mass: Floats, limits: Limits) -> Booleans:
        best = self._best(mass)
        if self.log_trim == -math.inf:
            return best
        first = mass == mass.max(axis=1, keepdims=True)
        return best & ((mass - self.log_trim >= limits) | first)

    def kept(self, values: Floats, limit: float) -> Booleans:
        return values >= limit

    def failures(
        self, evidence: Evidence, labels: Integers, loss: Floats | None, rounding: Rounding | None
    ) -> Failures:
        rank, mass = _standing(evidence.values, labels, rounding)
        kept = np.where(rank > 0, mass - self.log_trim, np.inf)
        fails = np.where(rank >= self.max_set_size, -np.inf, kept)
        outside = (rank[:, -1] >= self.max_set_size) & (not self._right_at_end)
        return Failures(evidence.risk, fails, np.where(outside, mass[:, -1], np.inf))

    @property
    def _right_at_end(self) -> bool:
        """Whether an input that nothing stopped cannot miss, whatever the threshold."""
        return self.final or self.abstains

    def compared(self, evidence: Evidence) -> Floats:
        """Risks, masses of the best classes at a stop, and all masses at the end."""
        parts = [evidence.risk]
        if self.max_set_size > 1 and self.log_trim > -math.inf:
            ranked = -np.sort(-evidence.values, axis=-1)[:, :, 1 : self.max_set_size]
            parts.append(ranked.reshape(len(evidence), -1) - self.log_trim)
        parts += [] if self._right_at_end else [evidence.values[:, -1]]
        return np.concatenate(parts, axis=1)

    def costs(
        self, evidence: Evidence, labels: Integers, loss: Floats, rounding: Rounding | None
    ) -> tuple[Floats, Floats]:
        """Thresholds above which an answer costs something new, and those costs, both (n, steps).

        At a stop, the answer loses its least probable class as λ passes ρ/c of that class. If
        nothing stopped, the last answer loses a class beyond the best I as λ passes its ρ. The cost
        is the least of `loss` (C, C) over the answer, in the row of the label.
        """
        mass, risk = evidence.values, evidence.risk
        n, checkpoints, classes = mass.shape
        size = min(self.max_set_size, classes)
        order = np.argsort(-mass, axis=-1, kind="stable")
        ranked = np.take_along_axis(mass, order, axis=-1)
        paid = np.minimum.accumulate(loss[labels[:, None, None], order], axis=-1)
        opens, surely_open = risk, risk
        if rounding is not None:
            if rounding.breaks_ties:
                paid = _paid_among_ties(paid, ranked, loss[labels].max(axis=1), rounding)
            eta = rounding.at(risk)
            opens, surely_open = risk - eta, risk + eta
            # ρ of the first class outside is the risk itself: where it is too small to be kept,
            # the input has stopped.
            itself = same_number(ranked[:, -1, size:], risk[:, -1:])
            ranked = ranked - rounding.at(ranked)
            ranked[:, -1, size:][itself] = np.inf
        before = lowest_before(surely_open)
        # The answer at a stop has j classes for λ above ρ/c of class j + 1; all from e_t on.
        everything = np.full((n, checkpoints, 1), -np.inf)
        drops = np.concatenate([ranked[:, :, 1:size] - self.log_trim, everything], axis=-1)
        starts = np.maximum(drops, opens[:, :, None])
        stopped = np.where(starts < before[:, :-1, None], starts, np.inf)
        # Nothing stopped for λ ≤ lowest: the last answer has j ≥ I classes above ρ of class j + 1.
        tail = ranked[:, -1, size:]
        tail = np.where((tail < before[:, -1:]) & (not self.abstains), tail, np.inf)
        breaks = np.concatenate([stopped.reshape(n, -1), tail], axis=1)
        at_stops, at_end = paid[:, :, :size].reshape(n, -1), paid[:, -1, size - 1 : classes - 1]
        costs = np.concatenate([at_stops, at_end], axis=1)
        return breaks, np.where(breaks < np.inf, costs, 0.0)

    def cost_numbers(self, evidence: Evidence) -> Floats:
        """The numbers (n, ...) of an example that move its cost."""
        ranked = -np.sort(-evidence.values, axis=-1)
        kept = (ranked[:, :, 1 : self.max_set_size] - self.log_trim).reshape(len(ranked), -1)
        return np.concatenate([evidence.risk, kept, ranked[:, -1, self.max_set_size :]], axis=1)


@dataclass(frozen=True, eq=False)
class NestedSets(Answer, KeptInFiles):
    """The classes with scores S ≤ -λ; an empty set does not stop before the last checkpoint.

    There an empty set becomes the class of smallest score, lowest index on ties. With `final`, an
    input that nothing stopped answers that class.
    """

    max_set_size: int
    final: bool = False

    meaning = (
        "the classes whose loss is within the calibrated threshold: a class is removed once its "
        "loss is too large"
    )

    def judge(
        self, limits: Limits, last: bool | Booleans, evidence: Evidence, state: State
    ) -> Verdict:
        sets = evidence.values <= -np.asarray(limits)[..., None]
        size = np.count_nonzero(sets, axis=1)
        small = (size >= 1) & (size <= self.max_set_size)
        if last is not False:
            if self.final:
                sets[~small & last] = False
            sets = fill_empty(sets, evidence.values)
        return Verdict(small | last, sets, state)

    def stopping(self, limit: Limits, evidence: Evidence) -> Booleans:
        inside = (evidence.values <= -np.asarray(limit)[..., None]).astype(np.float32)
        # A matrix product is much faster than a sum over so short an axis.
        size = inside @ np.ones(inside.shape[-1], dtype=np.float32)
        return np.asarray((size >= 1) & (size <= self.max_set_size))

    def kept(self, values: Floats, limit: float) -> Booleans:
        return values <= -limit

    def closed(self, evidence: Evidence, closed: Booleans, last: bool | Booleans) -> Evidence:
        # nan is in no set, whatever the threshold.
        waits = (closed & ~np.asarray(last))[..., None]
        return Evidence(np.where(waits, np.nan, evidence.values), evidence.log_risk)

    def failures(
        self, evidence: Evidence, labels: Integers, loss: Floats | None, rounding: Rounding | None
    ) -> Failures:
        scores = evidence.values
        rows, classes = np.arange(len(labels)), scores.shape[2]
        own = scores[rows, :, labels]
        ordered = np.sort(scores[:, :-1], axis=-1)
        beyond = np.full(ordered.shape[:2], np.inf)
        if self.max_set_size < classes:
            beyond = ordered[:, :, self.max_set_size]
        # A label that surely has the least score is in every set that is not empty, and at the last
        # checkpoint in every answer.
        others = np.where(np.arange(classes) == labels[:, None, None], np.inf, scores).min(axis=-1)
        with np.errstate(invalid="ignore"):
            ahead = others - own
        best = ahead >= (0.0 if rounding is None else -EQUAL)
        first = scores[:, -1].argmin(axis=-1) == labels
        if rounding is not None and rounding.breaks_ties:
            best = ahead > rounding.at(own) + rounding.at(others) + EQUAL
            first &= best[:, -1] | self.final
        fails = np.where(best[:, :-1], np.inf, -own[:, :-1])
        fails_end = np.where(first, np.inf, -own[:, -1])
        return Failures(-beyond, fails, fails_end, -ordered[:, :, 0])

    def compared(self, evidence: Evidence) -> Floats:
        """The best I + 1 scores of each checkpoint, and all of the last."""
        scores = evidence.values
        n, _, classes = scores.shape
        best = np.sort(scores[:, :-1], axis=-1)[:, :, : min(self.max_set_size + 1, classes)]
        return -np.concatenate([best.reshape(n, -1), scores[:, -1]], axis=1)

    def shown(self, thresholds: Floats) -> Floats:
        return -thresholds


@dataclass(frozen=True, eq=False)
class AnyRisk(StopsOnRisk, KeptInFiles):
    """Nothing but the stop: the set (n, 1) says whether an input was answered.

    abstains  an input that nothing stopped is not answered, and cannot be wrong
    """

    abstains: bool = False

    meaning = "whether the input has been answered"

    def judge(
        self, limits: Limits, last: bool | Booleans, evidence: Evidence, state: State
    ) -> Verdict:
        stop = evidence.risk < limits
        answered = stop if self.abstains else stop | last
        return Verdict(stop | last, np.asarray(answered)[:, None], state)

    def failures(
        self, evidence: Evidence, labels: Integers, loss: Floats | None, rounding: Rounding | None
    ) -> Failures:
        assert loss is not None
        fails = np.where(loss > 0, -np.inf, np.inf)
        end = np.full(len(fails), np.inf) if self.abstains else fails[:, -1]
        return Failures(evidence.risk, fails, end)

    @property
    def always_right_at_end(self) -> bool:
        return self.abstains


def fill_empty(sets: Booleans, scores: Floats) -> Booleans:
    """Empty sets answer the class of smallest score, lowest index on ties."""
    empty = np.flatnonzero(~sets.any(axis=1))
    if len(empty):
        sets[empty, scores[empty].argmin(axis=1)] = True
    return sets


def _rows_of(limits: Limits, rows: Booleans) -> Limits:
    """The thresholds of some inputs, as a column."""
    return limits[rows][:, None] if isinstance(limits, np.ndarray) else limits


def _standing(
    values: Floats, labels: Integers, rounding: Rounding | None
) -> tuple[Integers, Floats]:
    """The rank of the label, from 0, and log ρ at that rank, both (n, M), from log ρ (n, M, C).

    With a rounding that breaks ties, the last rank that the label may have among classes that tie.
    """
    own = values[np.arange(len(labels)), :, labels]
    rank: Integers = np.count_nonzero(values > own[:, :, None], axis=-1)
    if rounding is None or not rounding.breaks_ties:
        return rank, own
    following = np.where(values < own[:, :, None], values, -np.inf).max(axis=-1)
    beyond = np.where(values < following[:, :, None], values, -np.inf).max(axis=-1)
    eta = rounding.at(own) + EQUAL
    gap = _log_difference(own, following) - _log_difference(following, beyond)
    tied = np.isfinite(own) & (gap <= eta)
    if not tied.any():
        return rank, own
    ranked = -np.sort(-values[tied], axis=-1)
    single = _single_masses(ranked)
    cells, ahead = np.arange(len(ranked)), rank[tied]
    swaps = single[cells, ahead][:, None] - single <= eta[tied][:, None]
    later = swaps & (np.arange(values.shape[2]) > ahead[:, None])
    last = ahead + np.count_nonzero(later, axis=-1)
    mass = own.copy()
    rank[tied], mass[tied] = last, ranked[cells, last]
    return rank, mass


def _paid_among_ties(paid: Floats, ranked: Floats, most: Floats, rounding: Rounding) -> Floats:
    """The cost of the best 1, 2, ... classes (n, M, C) where classes that tie come in any order.

    A class is surely among the best j if fewer than j others are as probable; an answer without a
    sure class may cost `most`, (n,).
    """
    places, single = np.arange(ranked.shape[-1]), _single_masses(ranked)
    eta = rounding.at(ranked)[..., None] + EQUAL
    with np.errstate(invalid="ignore"):  # masses are infinite where nothing stops
        swaps = single[:, :, :, None] - single[:, :, None, :] <= eta
    later = places + np.count_nonzero(swaps & (places > places[:, None]), axis=-1)
    last_place = np.maximum.accumulate(later, axis=-1)
    sure = np.count_nonzero(last_place[:, :, None, :] <= places[:, None], axis=-1)
    costs = np.take_along_axis(paid, np.maximum(sure - 1, 0), axis=-1)
    return np.where(sure > 0, costs, most[:, None, None])


def _single_masses(ranked: Floats) -> Floats:
    """log π of classes in order, from log ρ (..., C) in falling order."""
    nothing = np.full((*ranked.shape[:-1], 1), -np.inf)
    return _log_difference(ranked, np.append(ranked[..., 1:], nothing, axis=-1))


def _log_difference(larger: Floats, smaller: Floats) -> Floats:
    """log(e^larger - e^smaller), for larger ≥ smaller; -∞ where they are equal."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        gap = np.where(np.isneginf(smaller), -np.inf, smaller - larger)
        return np.asarray(larger + np.log(-np.expm1(np.minimum(gap, 0.0))))


@dataclass(frozen=True, eq=False)
class Tails:
    """Classes by probability, and the log-mass of each and of all after it, both (b, C)."""

    order: Integers
    log_mass: Floats

    @classmethod
    def of(cls, logits: Floats) -> Self:
        """From logits (b, C)."""
        order = np.negative(logits).argsort(axis=-1, kind="stable")
        ranked = logits[np.arange(len(logits))[:, None], order]
        mass = np.logaddexp.accumulate(ranked[:, ::-1], axis=-1)[:, ::-1]
        return cls(order, mass - mass[:, :1])

    def outside(self, count: int) -> Floats:
        """Log-mass of all but the `count` most probable classes; -∞ if there are no others."""
        if count >= self.log_mass.shape[1]:
            return np.full(len(self.log_mass), -np.inf)
        return self.log_mass[:, count]

    def evidence(self, log_risk: Floats) -> Evidence:
        """log ρ in the order of the class indices, with the risk (b,)."""
        by_class = np.empty(self.log_mass.shape)
        by_class[np.arange(len(by_class))[:, None], self.order] = self.log_mass
        return Evidence(by_class, log_risk)
