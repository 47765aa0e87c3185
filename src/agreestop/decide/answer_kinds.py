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
    NodeOfTree    a node of a tree of classes, coarse or fine. Classes are leaves, carried down to
                  the same depth D; the root, depth 0, holds all of them. v_d is the node of least
                  risk at depth d (lowest index at ties) and r_d its risk, the log-mass of the
                  classes outside it, made non-decreasing in d, r_{D+1} = ∞. For λ in
                  (r_d, r_{d+1}] the answer is v_d, and d* is the depth that is asked.
                  opens_t = r_{d*};  fails_t = min{ r_d : d ≥ d*, r_d < r_{d+1}, y not in v_d };
                  fails_end = the same over all d at the last checkpoint

Everything about risks and masses is logarithmic. Classes that tie up to rounding may come in
another order in another run: under rounding y stands behind all that may change places with it,
and any node within 2η of the least risk may be v_d, of which every one must hold y.

Each depth of a tree has its own W and λ, and another depth's λ is not valid for it. The minimum of
W over all depths promises for all of them at once.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from agreestop.common import (
    Booleans,
    Floats,
    InputError,
    Integers,
    KeptInFiles,
    StrPath,
    read_file,
    set_fields,
)
from agreestop.common.errors import quoted
from agreestop.common.levels import EQUAL, Rounding, same_number

from .checkpoints import Evidence, Failures, State, Verdict, lowest_before

Thresholds = float | Floats
"""One threshold for all inputs, or one for each, (b,)."""


class Answer(ABC):
    """What a rule with one threshold answers."""

    meaning: ClassVar[str]
    """In words, what the set of an input that still runs means."""

    @abstractmethod
    def judge(
        self, limits: Thresholds, last: bool | Booleans, evidence: Evidence, state: State
    ) -> Verdict:
        """Who stops with these thresholds, and the answers; at the `last` checkpoint all stop."""

    @abstractmethod
    def stopping(self, limit: Thresholds, evidence: Evidence) -> Booleans:
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
        self, evidence: Evidence, labels: NDArray[Any], rounding: Rounding | None
    ) -> Failures:
        """opens, fails and fails_end from evidence (n, M, ...) and labels (n,).

        Where there are no classes, losses (n, M) or true numbers (n, 1) stand for labels. With a
        rounding, the label may have changed places with classes that tie with it.
        """

    @abstractmethod
    def compared(self, evidence: Evidence) -> Floats:
        """All numbers (n, ...) that are compared with λ."""

    def reduce(
        self, evidence: Evidence, labels: Integers, rounding: Rounding
    ) -> dict[str, NDArray[Any]]:
        """W and W_η (n,) of examples, and the least and the largest threshold that opens each."""
        failures = self.failures(evidence, labels, None)
        W = failures.first()
        rounded = self.failures(evidence, labels, rounding).first(rounding, W)
        return {"W": W, "rounded": rounded, **_opening_range(failures.opens)}

    def shown(self, thresholds: Floats) -> Floats:
        """Thresholds in the scale that users see."""
        return thresholds

    @property
    def always_right_at_end(self) -> bool:
        """Whether an input that nothing stops cannot miss at λ = -∞, which may then be deployed."""
        return True


def _opening_range(opens: Floats) -> dict[str, Floats]:
    """The least and the largest finite number of each row (n, M); ∞ and -∞ where there is none."""
    known = np.isfinite(opens)
    return {
        "lowest": np.where(known, opens, np.inf).min(axis=1, initial=np.inf),
        "highest": np.where(known, opens, -np.inf).max(axis=1, initial=-np.inf),
    }


class StopsOnRisk(Answer):
    """Answers that come as soon as a risk is below the threshold."""

    def stopping(self, limit: Thresholds, evidence: Evidence) -> Booleans:
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
        self, limits: Thresholds, last: bool | Booleans, evidence: Evidence, state: State
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

    def _stopped(self, mass: Floats, limits: Thresholds) -> Booleans:
        best = self._best(mass)
        if self.log_trim == -math.inf:
            return best
        first = mass == mass.max(axis=1, keepdims=True)
        return best & ((mass - self.log_trim >= limits) | first)

    def kept(self, values: Floats, limit: float) -> Booleans:
        return values >= limit

    def failures(
        self, evidence: Evidence, labels: NDArray[Any], rounding: Rounding | None
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
        self, limits: Thresholds, last: bool | Booleans, evidence: Evidence, state: State
    ) -> Verdict:
        sets = evidence.values <= -_column(limits)
        size = np.count_nonzero(sets, axis=1)
        small = (size >= 1) & (size <= self.max_set_size)
        if last is not False:
            if self.final:
                sets[~small & last] = False
            sets = fill_empty(sets, evidence.values)
        return Verdict(small | last, sets, state)

    def stopping(self, limit: Thresholds, evidence: Evidence) -> Booleans:
        inside = (evidence.values <= -_column(limit)).astype(np.float32)
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
        self, evidence: Evidence, labels: NDArray[Any], rounding: Rounding | None
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
        self, limits: Thresholds, last: bool | Booleans, evidence: Evidence, state: State
    ) -> Verdict:
        stop = evidence.risk < limits
        answered = stop if self.abstains else stop | last
        return Verdict(stop | last, np.asarray(answered)[:, None], state)

    def failures(
        self, evidence: Evidence, labels: NDArray[Any], rounding: Rounding | None
    ) -> Failures:
        fails = np.where(labels > 0, -np.inf, np.inf)
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


def _column(limits: Thresholds) -> Thresholds:
    """Thresholds as a column; one for all inputs as it is."""
    return limits[..., None] if isinstance(limits, np.ndarray) else limits


def _rows_of(limits: Thresholds, rows: Booleans) -> Thresholds:
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
    """Classes by probability, and the log-mass of each and of all after it, both (b, C).

    rows  (b, 1) the index of each input
    """

    order: Integers
    log_mass: Floats
    rows: Integers

    @classmethod
    def of(cls, logits: Floats) -> Self:
        """From logits (b, C)."""
        order = np.negative(logits).argsort(axis=-1, kind="stable")
        rows = np.arange(len(logits))[:, None]
        ranked = logits[rows, order]
        mass = np.logaddexp.accumulate(ranked[:, ::-1], axis=-1)[:, ::-1]
        return cls(order, mass - mass[:, :1], rows)

    def outside(self, count: int) -> Floats:
        """Log-mass of all but the `count` most probable classes; -∞ if there are no others."""
        if count >= self.log_mass.shape[1]:
            return np.full(len(self.log_mass), -np.inf)
        return self.log_mass[:, count]

    def evidence(self, log_risk: Floats) -> Evidence:
        """log ρ in the order of the class indices, with the risk (b,)."""
        by_class = np.empty(self.log_mass.shape)
        by_class[self.rows, self.order] = self.log_mass
        return Evidence(by_class, log_risk)


ROOT = "any class"
EXAMPLE = 'for example {"animal": ("cat", "dog"), "vehicle": ("car", "ship")}'


@dataclass(frozen=True)
class Tree(KeptInFiles):
    """Classes in groups, and groups in groups.

    Parameters
    ----------
    branches : mapping
        A name for each group, with the names of its classes or with the groups inside it. A class
        that belongs to no group has None. Classes of unequal depth are carried down.

    Examples
    --------
    >>> from dataclasses import replace
    >>> import agreestop as ag
    >>> tree = ag.Tree({"animal": ("cat", "dog"), "vehicle": ("car", "ship")})
    >>> tree.depth, tree.classes
    (2, ('cat', 'dog', 'car', 'ship'))
    >>> scores = replace(ag.simulate_scores(400, steps=20, K=3, C=4), classes=tree.classes)
    >>> calibration, test = scores.split(0.5, 0.5)
    >>> rule = ag.AgreeStop(0.9, range(1, 21), 1, tree=tree, depth=1).calibrate(calibration)
    >>> rule.decide(test)[1].names
    ('animal',)
    """

    branches: Mapping[str, Any] | tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        given = self.branches
        if not isinstance(given, (Mapping, tuple)):
            raise InputError(f"branches is {quoted(given)}: give groups of classes, {EXAMPLE}.")
        paths = list(_paths(given)) if isinstance(given, Mapping) else [tuple(one) for one in given]
        if len(paths) < 2:
            raise InputError(f"the tree has {len(paths)} classes: give two at least, {EXAMPLE}.")
        leaves = [path[-1] for path in paths]
        for leaf in leaves:
            _check_once(leaf, leaves)
        deepest = max(map(len, paths))
        known = tuple(path + path[-1:] * (deepest - len(path)) for path in paths)
        set_fields(self, branches=known)

    @classmethod
    def load(cls, path: StrPath) -> Self:
        """Read a tree from a JSON file: an object of groups, with lists of classes.

        Examples
        --------
        >>> import pathlib, tempfile, agreestop as ag
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "tree.json")
        ...     _ = path.write_text('{"animal": ["cat", "dog"], "car": null}')
        ...     ag.Tree.load(path).classes
        ('cat', 'dog', 'car')
        """
        text = read_file(path, "check the path").decode("utf-8-sig", errors="replace")
        try:
            content = json.loads(text)
        except ValueError:
            raise InputError(f"{path} is not JSON: give groups with lists of classes.") from None
        if not isinstance(content, Mapping):
            raise InputError(f"{path} holds no groups: give an object of lists of classes.")
        return cls(content)

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """The names on the way to each class, without the root."""
        assert isinstance(self.branches, tuple)
        return self.branches

    @property
    def depth(self) -> int:
        """The depth of the classes; the root has depth 0."""
        return len(self.paths[0])

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return tuple(path[-1] for path in self.paths)

    def for_classes(self, classes: Sequence[str] | None) -> Self:
        """The tree with its classes in the order of the scores."""
        if classes is None:
            raise InputError(
                "the scores have no class names, by which a tree knows its classes: give "
                "Scores(..., classes=...), or put `classes` (C names) into the file."
            )
        own = {path[-1]: path for path in self.paths}
        for name in classes:
            if name not in own:
                raise InputError(f"the tree lacks class {quoted(name)}: give every class a place.")
        if unknown := sorted(set(own) - set(classes)):
            raise InputError(
                f"the tree has class {quoted(unknown[0])}, which the scores do not have: leave it "
                "out, or check its spelling."
            )
        return type(self)(tuple(own[name] for name in classes))

    @property
    def nodes(self) -> Integers:
        """(D + 1, C): the node of each class at each depth, by the first class that it holds."""
        rows = []
        for depth in range(self.depth + 1):
            starts = [path[:depth] for path in self.paths]
            rows.append([starts.index(start) for start in starts])
        return np.array(rows)

    def name_of(self, answer: Booleans) -> str:
        """The name of the node that holds just these classes (C,); the coarsest of several."""
        inside = np.flatnonzero(answer)
        if not len(inside) or len(inside) == len(self.paths):
            return ROOT if len(inside) else ""
        nodes = self.nodes
        for depth in range(1, self.depth + 1):
            own = nodes[depth] == nodes[depth, inside[0]]
            if np.array_equal(own, answer):
                return str(self.paths[inside[0]][depth - 1])
        return ", ".join(self.paths[one][-1] for one in inside)


def _paths(branches: Any, above: tuple[str, ...] = ()) -> Any:
    """The names on the way to each class."""
    for name, inside in branches.items():
        if not isinstance(name, str) or not name:
            raise InputError(f"the tree has a group named {quoted(name)}: give names as text.")
        way = (*above, name)
        if inside is None:
            yield way
        elif isinstance(inside, Mapping):
            yield from _paths(inside, way)
        elif isinstance(inside, (list, tuple)) and inside:
            for one in inside:
                _check_once(one, inside)
            yield from _paths(dict.fromkeys(inside), way)
        else:
            raise InputError(f"group {quoted(name)} holds {quoted(inside)}: give names, {EXAMPLE}.")


def _check_once(name: Any, names: Sequence[Any]) -> None:
    if list(names).count(name) > 1:
        raise InputError(f"the tree has class {quoted(name)} twice: give each class once.")


@dataclass(frozen=True, eq=False)
class NodeOfTree(StopsOnRisk, KeptInFiles):
    """A node of a tree: the finest that the threshold allows, at least as fine as `depth`.

    Values of the evidence (b, D + 1, C) are the log-mass outside the node of each class at each
    depth. `nodes` (D + 1, C) names the node of each class. With `all_depths`, W is the minimum over
    the first answers of all depths.
    """

    nodes: Integers
    depth: int
    all_depths: bool = False
    final: bool = False
    abstains: bool = False

    meaning = "the classes of the finest node that the calibrated threshold allows"

    def evidence(self, logits: Floats) -> Evidence:
        """The risks of all nodes from logits (b, C)."""
        values = np.full((len(logits), *self.nodes.shape), -np.inf)
        whole = _total(logits)
        for depth, nodes in enumerate(self.nodes):
            for node in np.unique(nodes) if depth else ():
                outside = _total(logits[:, nodes != node]) - whole
                values[:, depth, nodes == node] = np.minimum(outside, 0.0)[:, None]
        return Evidence(values, self._risks(values)[:, self.depth])

    def at_own_depth(self, evidence: Evidence) -> Evidence:
        """The same with the risk of the depth that is asked."""
        return Evidence(evidence.values, self._risks(evidence.values)[..., self.depth])

    def _risks(self, values: Floats) -> Floats:
        """r_d, (..., D + 1); a rise within float64 rounding does not count."""
        risks = values.min(axis=-1)
        for depth in range(1, risks.shape[-1]):
            above = risks[..., depth - 1]
            rises = risks[..., depth] > above + EQUAL
            risks[..., depth] = np.where(rises, risks[..., depth], above)
        return risks

    def kept(self, values: Floats, limit: float) -> Booleans:
        return np.ones((*values.shape[:-2], values.shape[-1]), dtype=bool)

    def judge(
        self, limits: Thresholds, last: bool | Booleans, evidence: Evidence, state: State
    ) -> Verdict:
        stop, values, rows = evidence.risk < limits, evidence.values, np.arange(len(evidence))
        below = self._risks(values) < _column(limits)
        depth = np.maximum(np.count_nonzero(below, axis=1) - 1, 0)
        if self.final:
            depth = np.where(stop, depth, len(self.nodes) - 1)
        best = _first_least(values[rows, depth])
        sets = self.nodes[depth] == self.nodes[depth, best][:, None]
        return Verdict(stop | last, sets & (stop[:, None] | (not self.abstains)), state)

    def failures(
        self, evidence: Evidence, labels: NDArray[Any], rounding: Rounding | None
    ) -> Failures:
        return self.failures_at(self.depth, evidence, labels, rounding)

    def failures_at(
        self, wanted: int, evidence: Evidence, labels: Integers, rounding: Rounding | None
    ) -> Failures:
        """For the first answer at the depth `wanted`."""
        values = evidence.values
        risks = self._risks(values)
        own = self.nodes[:, labels].T[:, None, :, None]  # (n, 1, D + 1, 1)
        holds = self.nodes[None, None] == own  # (n, 1, D + 1, C)
        if rounding is None:
            best = _first_least(values)[..., None]
            hits = np.take_along_axis(np.broadcast_to(holds, values.shape), best, axis=-1)[..., 0]
            deeper = np.concatenate([risks[..., 1:], np.full((*risks.shape[:2], 1), np.inf)], -1)
            misses = ~hits & (risks < deeper)
        else:
            least = values.min(axis=-1, keepdims=True)
            eta = rounding.at(least.reshape(*least.shape[:2], -1)).reshape(least.shape)
            misses = ((values <= least + 2 * eta) & ~holds).any(axis=-1)
        fails = np.where(misses, risks, np.inf)
        end = np.full(len(fails), np.inf)
        if not (self.final or self.abstains):
            end = fails[:, -1].min(axis=-1)
        return Failures(risks[..., wanted], fails[..., wanted:].min(axis=-1), end)

    def reduce(
        self, evidence: Evidence, labels: Integers, rounding: Rounding
    ) -> dict[str, NDArray[Any]]:
        """The same for one depth, or for all at once."""
        depths = range(1, len(self.nodes)) if self.all_depths else (self.depth,)
        exact = [self.failures_at(depth, evidence, labels, None).first() for depth in depths]
        firm = replace(rounding, breaks_ties=True)
        safe = [self.failures_at(depth, evidence, labels, firm).first(firm) for depth in depths]
        W = np.min(exact, axis=0)
        rounded = np.minimum(np.min(safe, axis=0), W)
        return {"W": W, "rounded": rounded, **_opening_range(evidence.risk)}

    def compared(self, evidence: Evidence) -> Floats:
        return self._risks(evidence.values)[..., 1:].reshape(len(evidence), -1)


def _first_least(values: Floats) -> Integers:
    """The first class of least risk, where sums that differ by their float64 rounding are equal."""
    return (values <= values.min(axis=-1, keepdims=True) + EQUAL).argmax(axis=-1)


def _total(logits: Floats) -> Floats:
    """log Σ exp of logits (b, c), in order of size, so that equal sums stay equal; -∞ for none."""
    if not logits.shape[1]:
        return np.full(len(logits), -np.inf)
    return np.asarray(np.logaddexp.accumulate(np.sort(logits, axis=1), axis=1)[:, -1])
