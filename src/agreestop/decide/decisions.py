"""Decisions, and how good they were.

    coverage            share of inputs whose answer holds the label
    latency             mean stopping time; normalized_latency the same over the last checkpoint's time
    set_size            mean number of classes in an answer
    cost                for rules with a loss: mean cost of an answer, which is the least cost of its classes
    agreement           for rules about the final answer: share of inputs whose answer holds the ensemble's class at the last checkpoint

Each is an `Estimate`: a number with `low` and `high`, at 95 % if no other level is asked for.
Shares have Wilson's interval. Means have the betting interval of `estimates`, which holds for every
distribution: times lie between the first and the last checkpoint, sizes between 0 and C, and costs
between 0 and the largest cost of the loss.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import Booleans, Floats, InputError, Integers, as_array

from .checks import as_labels, as_row_names
from .conditions import find_groups, name_groups
from .estimates import Estimate
from .exchangeability import classes_differ, coverage_too_low, labels_misplaced, labels_unrelated
from .levels import coverage_draws
from .schedules import Schedule, members_at
from .score_files import Scores
from .tables import as_dataframe, as_table


@dataclass(frozen=True)
class Decision:
    """Where one input stopped, and the classes it answers with.

    names       the names of those classes, where they are known
    first_risk  the log-risk (the logarithm of the risk), or the least score, at the first checkpoint, where it is known; drift shows in it
    members     the number of members that the answer rests on, where it is known: all, or with a `Schedule` those that had joined
    block       the block of the gate, for a rule with a gate
    row         its row, for a decision of a batch
    number      for a stream: its place in the order in which the streams of the rule were opened; None
                in a batch, which counts in the order given
    """

    time: float
    index: int
    classes: tuple[int, ...]
    names: tuple[str, ...] | None = None
    first_risk: float | None = field(default=None, compare=False)
    members: int | None = field(default=None, compare=False)
    block: int | None = field(default=None, compare=False)
    row: int | None = field(default=None, compare=False)
    number: int | None = field(default=None, compare=False)

    @classmethod
    def of(
        cls,
        index: int,
        answer: Booleans,
        checkpoints: Sequence[float],
        class_names: Sequence[str] | None,
        first_risk: float | None = None,
        block: int | None = None,
        members: int | None = None,
        row: int | None = None,
        number: int | None = None,
    ) -> Self:
        """The decision for a stop at checkpoint `index` with the set `answer`, (C,), of an ensemble with this many members."""
        classes = tuple(np.flatnonzero(answer).tolist())
        names = None if class_names is None else tuple(class_names[label] for label in classes)
        joined = members_at(checkpoints, index)
        known = members if joined is None else joined
        return cls(checkpoints[index], index, classes, names, first_risk, known, block, row, number)


@dataclass(frozen=True, eq=False, repr=False)
class Decisions:
    """Where n inputs stopped and what they answer: `stop_index` (n,), `sets` (n, C).

    reuse        a sentence if the rule was tuned or calibrated on some of the inputs, else an empty string
    class_names  (C,) where they are known
    notes        a sentence for each thing that could not be checked, or that speaks against the promise
    class_counts (C,) how often each class occurred in calibration, for rules whose promise needs classes as frequent as there
    draw         for rules with one threshold: the number n of calibration examples and the rank of the threshold among them
    best         (n,) the best class at the stop
    block        (n,) for rules with a gate: the block of times in which an input first looked ready; block_names (B,) says which
    groups       (n, G) for rules with groups: those that an input belongs to; group_names (G,)
    first_risk   (n,) the log-risk (the logarithm of the risk), or the least score, at the first checkpoint; nan where it is not known
    members      the number of members of the ensemble
    loss         (C, C) for rules with a loss: the costs that the promise is about
    final_best   (n,) for rules about the final answer: the best class at the last checkpoint; None where an engine stopped before it
    """

    stop_index: Integers
    sets: Booleans
    checkpoints: tuple[float, ...]
    reuse: str = ""
    class_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    draw: tuple[int, int] | None = None
    best: Integers | None = None
    block: Integers | None = None
    block_names: tuple[str, ...] | None = None
    groups: Booleans | None = None
    group_names: tuple[str, ...] | None = None
    first_risk: Floats | None = None
    members: int | None = None
    loss: Floats | None = None
    final_best: Integers | None = None
    class_counts: Integers | None = None

    @property
    def stop_time(self) -> Integers | Floats:
        """The checkpoint time at which each input stopped, (n,)."""
        return np.array(self.checkpoints)[self.stop_index]

    @property
    def stop_members(self) -> Integers:
        """The number of members that had joined when each input stopped, (n,); all of them without a `Schedule`."""
        if isinstance(self.checkpoints, Schedule):
            return np.array(self.checkpoints.members)[self.stop_index]
        if self.members is None:
            raise InputError("these decisions do not say how many members there are: take them from `decide`.")
        return np.full(len(self), self.members)

    @property
    def work(self) -> Integers | Floats:
        """The member-steps behind each answer, (n,): the stopping time times the number of members that had joined."""
        return self.stop_time * self.stop_members

    @property
    def set_size(self) -> Integers:
        return np.count_nonzero(self.sets, axis=1)

    def __len__(self) -> int:
        return len(self.stop_index)

    def __repr__(self) -> str:
        notes = f", notes={self.notes}" if self.notes else ""
        return f"Decisions(n={len(self)}, mean stop time {self.stop_time.mean():.4g}, mean set size {self.set_size.mean():.4g}{notes})"

    def to_dataframe(self) -> Any:
        """A pandas DataFrame with a row for each input: time, classes (a tuple of names, or of indices) and set_size.

        Where they are known, there are columns for best, block, each group (booleans), first_risk (a log-risk) and members. pandas must be
        installed.
        """
        return as_dataframe(self)

    def __iter__(self) -> Iterator[Decision]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> Decision:
        risk = math.nan if self.first_risk is None else float(self.first_risk[i])
        block = None if self.block is None else int(self.block[i])
        index = int(self.stop_index[i])
        first_risk, row = None if math.isnan(risk) else risk, range(len(self))[i]
        return Decision.of(index, self.sets[i], self.checkpoints, self.class_names, first_risk, block, self.members, row)


@dataclass(frozen=True)
class Group:
    """Coverage among the inputs that stopped at one time, or that belong to one class, block, group or person, which may have a name."""

    key: float
    n: int
    coverage: Estimate
    normalized_latency: Estimate
    set_size: Estimate
    name: str = ""
    cost: Estimate | None = None
    agreement: Estimate | None = None

    @classmethod
    def of(cls, groups: Sequence[Self], confidence: float = 0.95) -> Self:
        """Several groups as one, under the key of the first; means without intervals, coverage with its own."""
        total = sum(group.n for group in groups)

        def mean(values: Iterable[Estimate]) -> Estimate:
            value = sum(group.n * one for group, one in zip(groups, values, strict=True)) / total
            return Estimate(value, math.nan, math.nan, math.nan)

        def share(values: Iterable[Estimate]) -> Estimate:
            return Estimate.of_share(round(total * mean(values)), total, confidence)

        coverage = share(group.coverage for group in groups)
        latency, set_size = mean(group.normalized_latency for group in groups), mean(group.set_size for group in groups)
        costs = [group.cost for group in groups if group.cost is not None]
        agreements = [group.agreement for group in groups if group.agreement is not None]
        known = mean(costs) if costs else None, share(agreements) if agreements else None
        return cls(groups[0].key, total, coverage, latency, set_size, "", *known)


@dataclass(frozen=True, repr=False)
class Evaluation:
    """How often the answers held the label, how early they came and how large they were. It prints as a table.

    draw_range      for rules with one threshold: coverages from `low` to `high` are what the draw of the calibration examples explains,
                    at the level of the intervals. Only `low` is a limit for every rule: where scores tie, or where an answer keeps more
                    classes than the threshold asks for, coverage may be higher
    accuracy        share of inputs whose best class at the stop is the label; None where the best class is not known
    singles         share of answers with one class
    work            mean member-steps behind an answer; None where the number of members is not known
    by_stop_time    one group for each stopping time; by_class, for each true class. Nothing is promised for these, unless the rule has
                    class_conditional
    by_block        for rules with a gate: one group for each block, that is by the time at which an
                    input first looked ready, not by that at which it stopped
    by_group        one group for each group that `evaluate` was given, or else that the rule was calibrated with
    by_person       one group for each person that `evaluate` was given
    cost            for rules with a loss: mean cost of an answer; the promise is that its expectation is at most max_loss
    agreement       for rules about the final answer: share of answers that hold the ensemble's class at the last checkpoint, which is what
                    is promised; coverage of the label is not. None where that class is not known, because an engine stopped before it
    by_final_class  for those rules: one group for each class that the ensemble answers at the last checkpoint
    draws_this_low  for rules with one threshold: the share of draws that would end at this coverage or below, if the promise holds with
                    equality
    notes           a sentence for each thing that speaks against the promise or could not be checked. First: coverage that no draw of the
                    calibration examples explains, labels and scores that do not belong together, classes that are not as frequent as in
                    calibration
    confidence      the level of the intervals
    """

    n: int
    coverage: Estimate
    latency: Estimate
    normalized_latency: Estimate
    set_size: Estimate
    by_stop_time: tuple[Group, ...]
    by_class: tuple[Group, ...]
    accuracy: Estimate | None = None
    singles: Estimate | None = None
    work: Estimate | None = None
    by_block: tuple[Group, ...] | None = None
    by_group: tuple[Group, ...] | None = None
    draw_range: tuple[float, float] | None = None
    draws_this_low: float | None = None
    notes: tuple[str, ...] = ()
    cost: Estimate | None = None
    agreement: Estimate | None = None
    by_final_class: tuple[Group, ...] | None = None
    confidence: float = 0.95
    by_person: tuple[Group, ...] | None = None

    @property
    def answered_by(self) -> tuple[Group, ...]:
        """One group for each stopping time t: the answers that came by t, which the promise of `accumulated` is about."""
        ends = range(1, len(self.by_stop_time) + 1)
        return tuple(replace(Group.of(self.by_stop_time[:end], self.confidence), key=self.by_stop_time[end - 1].key) for end in ends)

    def __repr__(self) -> str:
        names = ("n", "coverage", "cost", "agreement", "normalized_latency", "set_size", "notes")
        figures = (f"{name}={value!r}" for name in names if (value := getattr(self, name)) not in (None, ()))
        return f"Evaluation({', '.join(figures)})"

    def __str__(self) -> str:
        return as_table(self)


def evaluate(
    decisions: Any,
    labels_or_scores: ArrayLike | Scores,
    confidence: float = 0.95,
    *,
    groups: ArrayLike | None = None,
    people: ArrayLike | None = None,
) -> Evaluation:
    """Compare `Decisions` with the true labels (n,), indices or names of classes, or those of a `Scores`.

    Rows that the rule was tuned or calibrated on are refused.

    What holds decisions, such as the run of an engine, is taken too.

    confidence  the level of the intervals
    groups      (n,) whole numbers or strings, or (n, G) booleans where groups overlap: coverage by
                group, for any rule. Without them, by the groups of the rule, if it has any
    people      (n,) whole numbers or strings: coverage by person, for any rule
    """
    decisions = getattr(decisions, "decisions", decisions)
    if not isinstance(decisions, Decisions):
        raise InputError(f"decisions is of type {type(decisions).__name__}: give what `decide` returns.")
    n, classes = decisions.sets.shape
    if n == 0:
        raise InputError("there are no decisions to evaluate: decide on at least one input.")
    labels = labels_or_scores.labels if isinstance(labels_or_scores, Scores) else labels_or_scores
    if labels is None:
        raise InputError("the scores hold no labels: give one label for each input to evaluate decisions.")
    truth = as_labels(_by_name(labels, decisions.class_names), n, classes)
    if decisions.reuse:
        raise InputError(f"evaluation: {decisions.reuse}")
    hits = decisions.sets[np.arange(n), truth]
    times = decisions.stop_time
    horizon = float(decisions.checkpoints[-1])
    final, costs = decisions.final_best, None
    if decisions.loss is not None:
        rows_of_costs = decisions.loss[truth if final is None else final]
        costs = np.where(decisions.sets, rows_of_costs, rows_of_costs.max(axis=1, keepdims=True)).min(axis=1)
    counted = decisions.class_counts if final is None else None
    distinct = tuple(dict.fromkeys(decisions.checkpoints))  # a schedule may look at one time more than once

    def mean_time(rows: Booleans) -> Estimate:
        return Estimate.of_bounded(times[rows], float(decisions.checkpoints[0]), horizon, confidence)

    def group(key: float, rows: Booleans, name: str = "", time: float | None = None) -> Group:
        count = int(rows.sum())
        coverage = Estimate.of_share(int(hits[rows].sum()), count, confidence)
        latency = mean_time(rows) if time is None else Estimate(time, time, time, 0.0)  # all of them stopped then
        size = Estimate.of_bounded(decisions.set_size[rows], 0, classes, confidence)
        largest = None if decisions.loss is None else float(decisions.loss.max())
        cost = None if costs is None or largest is None else Estimate.of_bounded(costs[rows], 0, largest, confidence)
        agreement = None if final is None else Estimate.of_share(int(decisions.sets[rows, final[rows]].sum()), count, confidence)
        return Group(key, count, coverage, latency.over(horizon), size, name, cost, agreement)

    def grouped(values: Integers, keys: Sequence[float], names: Sequence[str] | None = None) -> tuple[Group, ...]:
        known = np.unique(values).tolist()
        return tuple(group(keys[value], values == value, "" if names is None else names[value]) for value in known)

    def members(inside: Booleans, names: Sequence[str]) -> tuple[Group, ...]:
        return tuple(group(key, rows, name) for key, (rows, name) in enumerate(zip(inside.T, names, strict=True)) if rows.any())

    by_block = by_group = by_person = accuracy = None
    notes = []
    if decisions.block is not None and decisions.block_names is not None:
        by_block = grouped(decisions.block, range(len(decisions.block_names)), decisions.block_names)
    if groups is not None:
        by_group = members(find_groups(groups, named := name_groups(groups, n), n), named)
    elif decisions.groups is not None and decisions.group_names is not None:
        by_group = members(decisions.groups, decisions.group_names)
    if people is not None:
        persons, person = np.unique(as_row_names(people, n, "people"), return_inverse=True)
        by_person = grouped(person, range(len(persons)), persons.astype(np.str_).tolist())
    if decisions.best is not None:
        accuracy = Estimate.of_share(int((decisions.best == truth).sum()), n, confidence)
        about_labels = decisions.best, truth, classes
        notes.append(labels_misplaced(*about_labels) or labels_unrelated(*about_labels))
    notes.append(classes_differ(counted, truth, decisions.class_names))

    everything = np.ones(n, dtype=bool)
    together = group(0, everything)
    draw_range = draws_this_low = None
    if decisions.draw is not None:
        draws = coverage_draws(*decisions.draw, n)
        low, high = np.searchsorted(draws, ((1 - confidence) / 2, (1 + confidence) / 2)).tolist()
        draw_range, draws_this_low = (low / n, high / n), float(draws[hits.sum()])
        notes.insert(0, coverage_too_low(together.coverage, low / n, confidence))
    stopped = np.searchsorted(distinct, times)
    return Evaluation(
        n=n,
        coverage=together.coverage,
        latency=mean_time(everything),
        normalized_latency=together.normalized_latency,
        set_size=together.set_size,
        by_stop_time=tuple(group(distinct[at], stopped == at, time=float(distinct[at])) for at in np.unique(stopped).tolist()),
        by_class=grouped(truth, range(classes), decisions.class_names),
        accuracy=accuracy,
        singles=Estimate.of_share(int((decisions.set_size == 1).sum()), n, confidence),
        work=None if decisions.members is None else _work(decisions, confidence),
        by_block=by_block,
        by_group=by_group,
        draw_range=draw_range,
        draws_this_low=draws_this_low,
        notes=(*filter(None, notes), *decisions.notes),
        cost=together.cost,
        agreement=together.agreement,
        by_final_class=None if final is None else grouped(final, range(classes), decisions.class_names),
        confidence=confidence,
        by_person=by_person,
    )


def _work(decisions: Decisions, confidence: float) -> Estimate:
    """Mean member-steps, which lie between those of the first and of the last checkpoint."""
    ends = replace(decisions, stop_index=np.array([0, len(decisions.checkpoints) - 1]), sets=decisions.sets[[0, 0]]).work
    return Estimate.of_bounded(decisions.work, float(ends[0]), float(ends[1]), confidence)


def _by_name(labels: ArrayLike, names: Sequence[str] | None) -> ArrayLike:
    """Labels that are names of the classes, as class indices; others as they are."""
    array = as_array(labels, "labels")
    if names is None or not (array.dtype.kind == "U" or (array.dtype == object and all(isinstance(one, str) for one in array.ravel()))):
        return labels
    index_of = {name: index for index, name in enumerate(names)}
    unknown = [str(one) for one in array.ravel() if one not in index_of]
    if unknown:
        known = ", ".join(map(repr, names[:5])) + (", …" if len(names) > 5 else "")
        raise InputError(f"labels holds {unknown[0]!r:.40}, which is none of the classes {known}: give names of classes, or class indices.")
    return np.array([index_of[one] for one in array.ravel()]).reshape(array.shape)
