"""Decisions, and how good they were.

    coverage     share of inputs whose answer holds the label
    kept         share of inputs for which the promise is kept: the answer holds what it is about,
                 the label or the final class, or there is no answer. Without abstentions it is the
                 coverage, or the agreement
    latency      mean stopping time; normalized_latency the same over the last checkpoint's time
    set_size     mean number of classes in an answer
    answered     share of inputs that were answered: coverage + wrong
    wrong        share of inputs that were answered without the label
    width        for rules that answer with intervals: their mean width
    cost         for rules with a loss: mean cost of an answer, the least cost of its classes
    agreement    for rules about the final answer: share of inputs whose answer holds the ensemble's
                 class at the last checkpoint

Each is an `Estimate`: a number with `low` and `high`, at 95 % unless another level is given. Shares
have Wilson's interval. Means have the betting interval of `estimates`, which holds for every
distribution: times lie between the first and the last checkpoint, sizes between 0 and C, and costs
between 0 and the largest cost of the loss. Widths have no bound, and the normal interval.
"""

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import (
    Booleans,
    Floats,
    InputError,
    Integers,
    as_floats,
    as_labels,
    as_row_names,
    check_finite,
    find_groups,
    joined_members,
    name_groups,
    set_fields,
)
from agreestop.common.errors import quoted
from agreestop.common.estimates import Estimate
from agreestop.common.levels import coverage_draws
from agreestop.common.tables import as_dataframe, as_html, as_table, decisions_html

from .leakage import (
    Marks,
    classes_differ,
    coverage_too_low,
    kind_of_ids,
    labels_misplaced,
    labels_unrelated,
    refuse_known_people,
)
from .scores import Inputs, Scores, ScoresLike, classes_of_texts

SHARES = ("coverage", "kept", "answered", "wrong", "agreement")
FIGURES = (*SHARES, "latency", "normalized_latency", "set_size", "cost", "width")


@dataclass(frozen=True)
class Decision:
    """Where one input stopped, and the classes it answers with.

    Attributes
    ----------
    time, index
        The time of the checkpoint at which the input stopped, and the checkpoint's index.
    classes
        The indices of the classes in the answer.
    names
        The names of these classes, where they are known.
    first_risk
        The log-risk (the logarithm of the risk), or the least score, at the first checkpoint, where
        it is known. Drift shows in it.
    members
        The number of members behind the answer, where it is known: all of them, or with a
        `Schedule` the members that had joined.
    block
        For a rule with a gate: the block of the gate.
    row
        For a decision of a batch: its row.
    number
        For a stream: its place in the order in which the streams of the rule were opened. None in
        a batch, which counts in the order given.
    answered
        Whether the input was answered. An input that abstains has no classes.
    cost
        For open answers: what the samples so far cost, where that is known.
    lower, upper
        For an `IntervalStop`, which has no classes: the ends of the interval.
    by_depth
        With a tree and depth="each": the first answer at each depth, from depth 1 on.

    Examples
    --------
    >>> import agreestop as ag
    >>> calibration, new = ag.simulate_scores(200).split(0.5, 0.5)
    >>> rule = ag.AgreeStop(0.9, range(1, 81), 1).calibrate(calibration)
    >>> decision = rule.decide(new)[0]
    >>> decision.time, decision.classes, decision.answered
    (45, (3,), True)
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
    answered: bool = True
    cost: float | None = field(default=None, compare=False)
    lower: float | None = None
    upper: float | None = None
    by_depth: "tuple[Decision, ...]" = field(default=(), repr=False)

    def __repr__(self) -> str:
        known = {one.name: getattr(self, one.name) for one in fields(self) if one.repr}
        hidden = {one.name: one.default for one in fields(self)}
        shown = (f"{name}={value!r}" for name, value in known.items() if value != hidden[name])
        return f"Decision({', '.join(shown)})"

    @classmethod
    def of(
        cls,
        index: int,
        answer: Booleans,
        checkpoints: Sequence[float],
        class_names: Sequence[str] | None,
        members: int | None,
        tree: Any = None,
        **known: Any,
    ) -> Self:
        """The decision for a stop at checkpoint `index` with the set `answer`, (C,).

        members: of the ensemble. tree: names the answer, for rules that have one. known: other
        fields.
        """
        classes = tuple(np.flatnonzero(answer).tolist())
        names = None if class_names is None else tuple(class_names[label] for label in classes)
        if tree is not None and classes:
            names = (tree.name_of(answer),)
        joined = joined_members(checkpoints)
        count = members if joined is None else joined[index]
        return cls(checkpoints[index], index, classes, names, members=count, **known)


@dataclass(frozen=True, eq=False, repr=False)
class Decisions:
    """Where n inputs stopped and what they answer; `decisions[i]` is the `Decision` of one input.

    Attributes
    ----------
    stop_index : (n,)
        The index of the checkpoint at which each input stopped.
    sets : (n, C)
        Which classes each input answers.
    checkpoints
        The times of the checkpoints, which may be a `Schedule`.
    reuse
        A sentence if the rule was tuned or calibrated on some of the inputs, else empty.
    class_names : (C,)
        Where they are known.
    notes
        A sentence for each thing that could not be checked, or that speaks against the promise.
    draw
        For rules with one threshold: the number of calibration examples, and the rank of the
        threshold among them.
    best : (n,)
        The best class at the stop.
    block : (n,)
        For rules with a gate: the block of times in which an input first looked ready.
        `block_names` (B,) says which.
    groups : (n, G)
        For rules with groups: the groups of each input, named by `group_names` (G,).
    first_risk : (n,)
        The log-risk, or the least score, at the first checkpoint; nan where it is not known.
    members
        The number of members of the ensemble.
    loss : (C, C)
        For rules with a loss: the costs that the promise is about.
    final_best : (n,)
        For rules about the final answer: the best class at the last checkpoint; None where an
        engine stopped before it.
    class_counts : (C,)
        For rules whose promise needs classes as frequent as in calibration: their counts there.
    answered : (n,)
        Whether each input was answered; True for all unless given. An input that abstains has an
        empty set.
    target
        The coverage that the rule promises, where it promises one.
    largest_loss
        For a `StopRule`, which has no classes: the largest loss there can be. `evaluate` then takes
        losses (n, M), and sets (n, 1) say what was answered.
    known_people
        Marks of people whom `evaluate` refuses, because the rule was calibrated on them.
    ids : (n,)
        The ids of the inputs, where they have some; `evaluate` refuses scores of others.
    texts : n tuples of str
        For open answers, of which each input has classes of its own: the answers of each input, in
        the order in which they appeared. Sets are about these, and `names` says what was answered.
    cost : (n,)
        For open answers: what the samples up to the stop cost, where that is known. `largest_cost`
        is the largest cost of all samples of an input.
    lower, upper : (n,)
        For an `IntervalStop`, which has no classes either: the ends of the intervals.
    tree
        For rules with a tree: what names the nodes that are answered.
    depth_index, depth_sets : (n, D) and (n, D, C)
        With a tree and depth="each": the checkpoint and the set of the first answer at each depth.
        An input stops when it has all of them, and `sets` are the deepest ones. `by_depth` are
        the same as one `Decisions` for each depth.

    Examples
    --------
    >>> import agreestop as ag
    >>> calibration, new = ag.simulate_scores(200).split(0.5, 0.5)
    >>> ag.AgreeStop(0.9, range(1, 81), 1).calibrate(calibration).decide(new)
    Decisions(n=100, mean stop time 26.37, mean set size 1.02)
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
    answered: Booleans = None  # type: ignore[assignment]
    target: float | None = None
    largest_loss: float | None = None
    texts: tuple[tuple[str, ...], ...] | None = None
    cost: Floats | None = None
    largest_cost: float = 0.0
    lower: Floats | None = None
    upper: Floats | None = None
    tree: Any = None
    known_people: Marks | None = None
    ids: NDArray[Any] | None = None
    depth_index: Integers | None = None
    depth_sets: Booleans | None = None

    def __post_init__(self) -> None:
        if self.answered is None:
            set_fields(self, answered=np.ones(len(self), dtype=bool))

    @property
    def stop_time(self) -> Integers | Floats:
        """The checkpoint time at which each input stopped, (n,)."""
        return np.array(self.checkpoints)[self.stop_index]

    @property
    def stop_members(self) -> Integers:
        """The number of members that had joined when each input stopped, (n,)."""
        return self._members[self.stop_index]

    @property
    def work(self) -> Integers | Floats:
        """The member-steps behind each answer, (n,): stopping time times members."""
        return self.stop_time * self.stop_members

    @property
    def _members(self) -> Integers:
        """The number of members at each checkpoint, (M,)."""
        if joined := joined_members(self.checkpoints):
            return np.array(joined)
        if self.members is None:
            raise InputError(
                "these decisions do not say how many members there are: take them from `decide`."
            )
        return np.full(len(self.checkpoints), self.members)

    @cached_property
    def by_depth(self) -> "tuple[Decisions, ...]":
        """With a tree and depth="each": the first answers at each depth, from depth 1 on."""
        if self.depth_index is None or self.depth_sets is None:
            return ()
        depths = zip(self.depth_index.T, np.moveaxis(self.depth_sets, 1, 0), strict=True)
        return tuple(
            replace(
                self,
                stop_index=index,
                sets=sets,
                answered=sets.any(axis=1),
                best=None,
                draw=None,
                class_counts=None,
                depth_index=None,
                depth_sets=None,
            )
            for index, sets in depths
        )

    @property
    def has_classes(self) -> bool:
        """Whether answers are sets of classes; `StopRule` and `IntervalStop` have none."""
        return self.largest_loss is None and self.lower is None

    @property
    def width(self) -> Floats:
        """The width of each interval, (n,), of an `IntervalStop`."""
        if self.lower is None or self.upper is None:
            raise InputError("these decisions are not intervals: only an IntervalStop has a width.")
        return self.upper - self.lower

    @property
    def has_widths(self) -> bool:
        """Whether the intervals have two ends, and finite widths on average."""
        return self.lower is not None and bool(np.isfinite(self.width).all())

    @property
    def set_size(self) -> Integers:
        """The number of classes in each answer, (n,)."""
        return np.count_nonzero(self.sets, axis=1)

    @property
    def names(self) -> list[tuple[str, ...]]:
        """The names of the classes in each answer; numbers where names are not known.

        With a tree, the name of the node.
        """
        return [self._names(i) for i in range(len(self))]

    def _names(self, i: int) -> tuple[str, ...]:
        classes = np.flatnonzero(self.sets[i]).tolist()
        if self.tree is not None and classes:
            return (self.tree.name_of(self.sets[i]),)
        known = self.class_names if self.texts is None else self.texts[i]
        return tuple(str(one) if known is None else known[one] for one in classes)

    def __len__(self) -> int:
        return len(self.stop_index)

    def __repr__(self) -> str:
        size, notes = self.set_size.mean(), f", notes={self.notes}" if self.notes else ""
        last = f"mean set size {size:.4g}" if self.has_classes else f"{size:.4g} answered"
        if self.lower is not None:
            last = f"mean width {self.width.mean():.4g}"
        means = f"mean stop time {self.stop_time.mean():.4g}, {last}"
        return f"Decisions(n={len(self)}, {means}{notes})"

    def _repr_html_(self) -> str:
        return decisions_html(self)

    def to_dataframe(self) -> Any:
        """A pandas DataFrame with a row for each input; pandas must be installed.

        Its columns are time, classes (a tuple of names, or of indices) and set_size. Where they are
        known, there are columns for best, block, each group (booleans), first_risk (a log-risk) and
        members, and `answered` where not everything was answered. A `StopRule` has `answered` in
        place of classes.
        """
        return as_dataframe(self)

    def __iter__(self) -> Iterator[Decision]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> Decision:
        try:
            i = operator.index(i)
        except TypeError:
            raise InputError(
                f"decisions[{i!r}] is not the number of one input: give one, such as decisions[0]; "
                "list(decisions) holds all of them."
            ) from None

        def known(values: Any) -> Any:
            return None if values is None else values[i].item()

        risk = known(self.first_risk)
        return Decision.of(
            int(self.stop_index[i]),
            self.sets[i],
            self.checkpoints,
            self.class_names if self.texts is None else self.texts[i],
            self.members,
            self.tree,
            first_risk=None if risk is None or math.isnan(risk) else risk,
            block=known(self.block),
            row=range(len(self))[i],
            answered=bool(self.answered[i]),
            cost=known(self.cost),
            lower=known(self.lower),
            upper=known(self.upper),
            by_depth=tuple(one[i] for one in self.by_depth),
        )


@dataclass(frozen=True)
class Group:
    """Figures of the inputs that stopped at one time, or of one class, block, group or person.

    The figures are described in `agreestop.decide.decisions`. A group may have a name.

    Attributes
    ----------
    key
        The stopping time, class or block; groups and people are numbered.
    n
        The number of inputs.
    name
        The name of a class, a block, a group or a person.
    coverage, latency, normalized_latency, set_size, cost, agreement, answered, wrong, width, kept
        As in `Evaluation`, over these inputs alone.

    Examples
    --------
    >>> import agreestop as ag
    >>> scores = ag.simulate_scores(400, steps=8, K=2, C=3)
    >>> calibration, test = scores.split(0.5, 0.5, seed=0)
    >>> rule = ag.AgreeStop(0.9, range(1, 9), 1).calibrate(calibration)
    >>> first = ag.evaluate(rule.decide(test), test).by_stop_time[0]
    >>> 1 <= first.key <= 8, 0 < first.n <= 200, bool(0 <= first.coverage <= 1)
    (True, True, True)
    """

    key: float
    n: int
    coverage: Estimate
    latency: Estimate
    normalized_latency: Estimate
    set_size: Estimate
    name: str = ""
    cost: Estimate | None = None
    agreement: Estimate | None = None
    answered: Estimate | None = None
    wrong: Estimate | None = None
    width: Estimate | None = None
    kept: Estimate | None = None

    @classmethod
    def of(cls, groups: Sequence[Self], confidence: float = 0.95) -> Self:
        """Several groups as one, under the key of the first. Means have no intervals."""
        total = sum(group.n for group in groups)
        joined: dict[str, Any] = {}
        for name in FIGURES:
            if getattr(groups[0], name) is not None:
                mean = sum(group.n * getattr(group, name) for group in groups) / total
                joined[name] = Estimate(mean, math.nan, math.nan, math.nan)
                if name in SHARES:
                    joined[name] = Estimate.of_share(round(total * mean), total, confidence)
        return cls(groups[0].key, total, **joined)


@dataclass(frozen=True, repr=False)
class Evaluation:
    """How often the answers held the label, how early they came and how large they were.

    It prints as a table.

    Attributes
    ----------
    n
        The number of inputs.
    coverage, latency, normalized_latency, set_size
        Share of inputs whose answer holds the label; mean stopping time, as it is and over the last
        checkpoint's time; mean number of classes. An input that abstains has no answer.
    answered, wrong
        Share of inputs that were answered, and share answered without the label; for a `StopRule`,
        share answered with a loss above 0.
    kept
        What a target promises: the share of inputs that abstain, or whose answer holds the label,
        or the final class where the promise is about that. With abstentions it is 1 - wrong, and
        above the coverage; without them it is the coverage, or the agreement.
    accuracy
        Share of inputs whose best class at the stop is the label; None where it is not known.
    singles
        Share of answers with one class.
    work
        Mean member-steps behind an answer; None where the number of members is not known.
    by_stop_time, by_class
        One group for each stopping time, and for each true class. Nothing is promised for these,
        unless the rule has class_conditional. A `StopRule` has no classes.
    by_block
        For rules with a gate: one group for each block, that is by the time at which an input first
        looked ready, not by that at which it stopped.
    by_group, by_person
        One group for each group that `evaluate` was given, or else that the rule was calibrated
        with; one for each person that `evaluate` was given.
    by_depth
        For rules with a tree and depth="each": the first answers at each depth, whose `key` is the
        depth. `latency` is the time to the first answer.
    people_below
        Where people were given: the share of people for whom `kept` is under the rule's target;
        None for a rule without a target.
    draw_range
        For rules with one threshold: where `kept` lies between these two numbers, the draw of the
        calibration examples explains it, at the level of the intervals. Only the first is a limit
        for every rule: where scores tie, or where an answer keeps more classes than the threshold
        asks for, it may be higher.
    draws_this_low
        For rules with one threshold: the share of draws that would end at this `kept` or below, if
        the promise holds with equality.
    cost
        For rules with a loss: mean cost of an answer, which is promised to be at most max_loss. For
        a `StopRule` the mean loss, where an input that was not answered costs nothing.
    width
        For an `IntervalStop`: mean width; its interval is the normal one. None for a single side.
    agreement
        For rules about the final answer: share of answers that hold the ensemble's class at the
        last checkpoint. This is promised, and coverage of the label is not. None where that class
        is not known, because an engine stopped before it.
    by_final_class
        For these rules: one group for each class that the ensemble answers at the last checkpoint.
    notes
        A sentence for each thing that speaks against the promise or could not be checked: coverage
        that no draw of the calibration examples explains, labels and scores that do not belong
        together, classes that are not as frequent as in calibration.
    confidence
        The level of the intervals.

    Examples
    --------
    >>> import agreestop as ag
    >>> calibration, new = ag.simulate_scores(200, steps=20, K=3, C=4).split(0.5, 0.5)
    >>> rule = ag.AgreeStop(0.9, range(1, 21), 1).calibrate(calibration)
    >>> evaluation = ag.evaluate(rule.decide(new), new)
    >>> evaluation.n, len(evaluation.by_class)
    (100, 4)
    >>> bool(evaluation.latency <= 20)
    True
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
    people_below: Estimate | None = None
    answered: Estimate | None = None
    wrong: Estimate | None = None
    open_answers: bool = False
    width: Estimate | None = None
    by_depth: tuple[Group, ...] | None = None
    kept: Estimate | None = None

    @property
    def is_about_numbers(self) -> bool:
        """Whether the answers are intervals, for which coverage and width count."""
        return not self.by_class and self.answered is None

    @property
    def answered_by(self) -> tuple[Group, ...]:
        """One group for each stopping time t: the answers by t, as `accumulated` promises them."""
        groups = self.by_stop_time
        return tuple(
            replace(Group.of(groups[: end + 1], self.confidence), key=last.key)
            for end, last in enumerate(groups)
        )

    def __repr__(self) -> str:
        names = ["n", "coverage", "cost", "agreement", "normalized_latency", "set_size", "notes"]
        if not self.by_class:
            names = ["n", "answered", "wrong", "cost", "normalized_latency", "notes"]
        if self.is_about_numbers:
            names = ["n", "coverage", "width", "normalized_latency", "notes"]
        known = {name: getattr(self, name) for name in names}
        shown = (f"{name}={value!r}" for name, value in known.items() if value not in (None, ()))
        return f"Evaluation({', '.join(shown)})"

    def __str__(self) -> str:
        return as_table(self)

    def _repr_html_(self) -> str:
        return as_html(self)


def evaluate(
    decisions: Any,
    labels_or_scores: ScoresLike,
    confidence: float = 0.95,
    *,
    groups: ArrayLike | None = None,
    people: ArrayLike | None = None,
) -> Evaluation:
    """Compare decisions with the true labels. Rows that the rule was fitted on are refused.

    Parameters
    ----------
    decisions
        `Decisions`, or what holds them, such as the run of an engine.
    labels_or_scores
        Labels (n,), indices or names of classes; or a `Scores` with labels. For decisions of a
        `StopRule`, losses (n, M); of an `IntervalStop`, true numbers (n,) or `Numbers` with labels.
    confidence
        The level of the intervals.
    groups
        (n,) whole numbers or strings, or (n, G) booleans where groups overlap: coverage by group,
        for any rule. Without them, by the groups of the rule, if it has any.
    people
        (n,) whole numbers or strings: coverage by person, for any rule. People whom the rule was
        calibrated on are refused.

    Returns
    -------
    Evaluation

    Examples
    --------
    >>> import agreestop as ag
    >>> calibration, new = ag.simulate_scores(400, steps=20, K=3, C=4).split(0.5, 0.5)
    >>> rule = ag.AgreeStop(0.9, range(1, 21), 1).calibrate(calibration)
    >>> coverage = ag.evaluate(rule.decide(new), new).coverage
    >>> coverage.low < coverage < coverage.high
    True
    """
    given = decisions
    decisions = getattr(given, "decisions", given)
    if not isinstance(decisions, Decisions):
        kind = type(given).__name__
        raise InputError(f"decisions is of type {kind}: give what `decide` returns.")
    n = len(decisions)
    if n == 0:
        raise InputError("there are no decisions to evaluate: decide on at least one input.")
    found = Judged.of(decisions, labels_or_scores, confidence)
    inside, group_names = decisions.groups, decisions.group_names
    if groups is not None:
        group_names = name_groups(groups, n)
        inside = find_groups(groups, group_names, n)
    by_group = None
    if inside is not None:
        members = enumerate(zip(inside.T, group_names or (), strict=True))
        by_group = tuple(found.group(key, *one) for key, one in members if one[0].any())
    by_person = None if people is None else found.by_person(people)
    below = None
    if by_person is not None and decisions.target is not None:
        kept = [one.kept or 0.0 for one in by_person]
        below = found.share(np.array(kept) < decisions.target)
    together = found.group(0, np.ones(n, dtype=bool))
    draw_range, draws_this_low, note = found.likelihood()
    unchecked = ""
    if people is None and decisions.known_people is not None:
        unchecked = "The promise is about new people, and nobody knows who these are: give people=."
    times, names, shared = decisions.stop_time, decisions.class_names, found.shared
    return Evaluation(
        n=n,
        **{name: getattr(together, name) for name in FIGURES},
        by_stop_time=tuple(
            found.group(time, times == time, time=float(time)) for time in np.unique(times).tolist()
        ),
        by_class=(found.grouped(found.truth, names) or ()) if shared else (),
        accuracy=found.accuracy,
        singles=found.share(decisions.set_size == 1) if shared else None,
        work=found.work,
        by_block=found.grouped(decisions.block, decisions.block_names),
        by_group=by_group,
        draw_range=draw_range,
        draws_this_low=draws_this_low,
        notes=tuple(filter(None, (note, *found.questions, unchecked))) + decisions.notes,
        by_final_class=found.grouped(decisions.final_best, names) if shared else None,
        confidence=confidence,
        by_person=by_person,
        people_below=below,
        open_answers=decisions.texts is not None,
        by_depth=_by_depth(decisions, labels_or_scores, confidence),
    )


@dataclass(frozen=True, eq=False)
class Judged:
    """What decisions came to: for each figure, a number for each of the n inputs.

    truth       (n,) the labels; zeros where there are no classes
    right       whether these are right answers, not the answers after all samples
    shares      by the name of the figure: (n,) booleans
    means       by the name of the figure: (n,) numbers, and the least and the most that they can be
    """

    decisions: Decisions
    confidence: float
    truth: Integers
    right: bool
    shares: dict[str, Booleans]
    means: dict[str, tuple[Any, float, float]]

    @classmethod
    def of(cls, decisions: Decisions, given: Any, confidence: float) -> Self:
        """From labels, losses, or what holds them. Rows that were used before are refused."""
        n, classes = decisions.sets.shape
        labels: Any = given.labels if isinstance(given, Inputs) else given
        right, paid, hits = True, None, np.ones(n, dtype=bool)
        if decisions.texts is not None:
            labels, right = _open_labels(decisions, given)
        if decisions.largest_loss is not None:
            paid = _paid(decisions, given)
            hits = paid == 0
        elif decisions.lower is not None:
            assert decisions.upper is not None
            hits = covered(decisions.lower, decisions.upper, labels)
        if not decisions.has_classes:
            labels = np.zeros(n, dtype=np.int64)
        if labels is None:
            raise InputError(
                "the scores hold no labels: give one label for each input to evaluate decisions."
            )
        truth = as_labels(labels, n, classes, decisions.class_names)
        if decisions.reuse:
            raise InputError(f"evaluation: {decisions.reuse}")
        if isinstance(given, Inputs):
            _check_rows(decisions, given)
        answered, final, loss = decisions.answered, decisions.final_best, decisions.loss
        if decisions.has_classes:
            hits = decisions.sets[np.arange(n), truth]
        promised = hits if final is None else decisions.sets[np.arange(n), final]
        shares = {"coverage": hits & answered, "answered": answered, "wrong": ~hits & answered}
        shares["kept"] = promised | ~answered
        means: dict[str, tuple[Any, float, float]] = {"set_size": (decisions.set_size, 0, classes)}
        if final is not None:
            shares["agreement"] = promised & answered
        if loss is not None:
            costs = loss[truth if final is None else final]
            costs = np.where(decisions.sets, costs, costs.max(axis=1, keepdims=True)).min(axis=1)
            means["cost"] = np.where(answered, costs, 0.0), 0, loss.max()
        if decisions.cost is not None:
            means["cost"] = decisions.cost, 0, decisions.largest_cost
        if paid is not None and decisions.target is None:
            means["cost"] = paid, 0, decisions.largest_loss or 0.0
            del shares["wrong"]  # a loss between 0 and the largest is neither right nor wrong
        if decisions.lower is not None:
            del shares["answered"], shares["wrong"]  # everything is answered
        return cls(decisions, confidence, truth, right, shares, means)

    @property
    def shared(self) -> bool:
        """Whether all inputs share their classes."""
        return self.decisions.has_classes and self.decisions.texts is None

    def share(self, values: Booleans) -> Estimate:
        """The share of some inputs."""
        return Estimate.of_share(int(np.count_nonzero(values)), len(values), self.confidence)

    def mean(self, values: Any, least: float, most: float) -> Estimate:
        """The mean of numbers that lie between two bounds."""
        return Estimate.of_bounded(values, float(least), float(most), self.confidence)

    def group(self, key: float, rows: Booleans, name: str = "", time: float | None = None) -> Group:
        """The figures of some of the inputs; time: when all of them stopped."""
        checkpoints = self.decisions.checkpoints
        known = {one: self.share(values[rows]) for one, values in self.shares.items()}
        known |= {
            one: self.mean(values[rows], *ends) for one, (values, *ends) in self.means.items()
        }
        if self.decisions.has_widths:
            known["width"] = Estimate.of_mean(self.decisions.width[rows], self.confidence)
        if time is None:
            times = self.decisions.stop_time[rows]
            latency = self.mean(times, checkpoints[0], checkpoints[-1])
        else:
            latency = Estimate(time, time, time, 0.0)
        known |= {"latency": latency, "normalized_latency": latency.over(float(checkpoints[-1]))}
        return Group(key, int(np.count_nonzero(rows)), name=name, **known)

    def grouped(
        self, numbers: Integers | None, names: Sequence[str] | None
    ) -> tuple[Group, ...] | None:
        """One group for each number, (n,), that occurs."""
        if numbers is None:
            return None
        known = np.unique(numbers).tolist()
        return tuple(self.group(one, numbers == one, names[one] if names else "") for one in known)

    def by_person(self, people: ArrayLike) -> tuple[Group, ...] | None:
        """One group for each person; those whom the rule was calibrated on are refused."""
        names = as_row_names(people, len(self.truth), "people")
        refuse_known_people(names, self.decisions.known_people)
        persons, person = np.unique(names, return_inverse=True)
        return self.grouped(person, persons.astype(np.str_).tolist())

    def likelihood(self) -> tuple[tuple[float, float] | None, float | None, str]:
        """Which `kept` the draw explains, the share of draws so low, and a note if it is few."""
        if self.decisions.draw is None:
            return None, None, ""
        kept = self.shares["kept"]
        n, tails = len(self.truth), ((1 - self.confidence) / 2, (1 + self.confidence) / 2)
        draws = coverage_draws(*self.decisions.draw, n)
        low, high = (np.searchsorted(draws, tails) / n).tolist()
        note = coverage_too_low(float(kept.mean()), low, self.confidence)
        return (low, high), float(draws[np.count_nonzero(kept)]), note

    @property
    def accuracy(self) -> Estimate | None:
        """The share of inputs whose best class at the stop is the label, where it is known."""
        best = self.decisions.best
        known = best is not None and self.decisions.has_classes and self.right
        return self.share(best == self.truth) if known else None  # type: ignore[arg-type]

    @property
    def work(self) -> Estimate | None:
        """Mean member-steps behind an answer, where the number of members is known."""
        if self.decisions.members is None or not self.shared:
            return None
        first, last = (np.array(self.decisions.checkpoints) * self.decisions._members)[[0, -1]]
        return self.mean(self.decisions.work, first, last)

    @property
    def questions(self) -> Iterator[str]:
        """What speaks against labels and scores that belong together; empty where nothing does."""
        decisions, classes = self.decisions, self.decisions.sets.shape[1]
        if decisions.best is not None and self.shared:
            known = decisions.best, self.truth, classes
            yield labels_misplaced(*known) or labels_unrelated(*known)
        if decisions.final_best is None and self.shared:
            yield classes_differ(decisions.class_counts, self.truth, decisions.class_names)


def _by_depth(decisions: Decisions, labels: Any, confidence: float) -> tuple[Group, ...] | None:
    """The figures of the first answers at each depth of a tree, where each has its own."""
    groups = []
    for depth, one in enumerate(decisions.by_depth, 1):
        found = evaluate(one, labels, confidence)
        figures = {name: getattr(found, name) for name in FIGURES}
        groups.append(Group(depth, found.n, **figures))
    return tuple(groups) or None


def _check_rows(decisions: Decisions, given: Inputs) -> None:
    """Refuse inputs of other classes, or other ones than were decided on, where that is known."""
    if (
        None not in (given.classes, decisions.class_names)
        and given.classes != decisions.class_names
    ):
        raise InputError(
            f"the scores have the classes {quoted(given.classes)} and the decisions "
            f"{quoted(decisions.class_names)}: give the scores that were decided on."
        )
    own, others = decisions.ids, given.ids
    if own is None or others is None or kind_of_ids(own) != kind_of_ids(others):
        return
    if (unlike := np.flatnonzero(own != others)).size:
        first = unlike[0]
        raise InputError(
            f"the scores have id {others[first]} where decision {first} is of {own[first]}: give "
            "the scores that were decided on, in their order."
        )


def _open_labels(decisions: Decisions, given: Any) -> tuple[Integers | None, bool]:
    """The class (n,) of the right answer of each input, and whether right answers are known.

    given: `Answers`, or one string for each input. Without right answers, the answer after all
    samples stands for them where the promise is about it.
    """
    texts, never = decisions.texts or (), decisions.sets.shape[1] - 1
    if isinstance(given, Inputs):
        cut = given.at(decisions.checkpoints)
        labels, names = cut.labels, cut.names or ()
        # The first samples of an input may have fewer answers than all of them.
        pairs = zip(names, texts, strict=False)
        if len(names) != len(texts) or any(own != known[: len(own)] for own, known in pairs):
            raise InputError(
                "these are not the Answers that were decided on, in their order: give those, or "
                "the right answers as a list of strings."
            )
        return (decisions.final_best, False) if labels is None else (labels, True)
    if given is None:
        return None, False
    if isinstance(given, str) or len(given) != len(texts) or not isinstance(given[0], str):
        raise InputError(
            f"labels must be one string for each of the {len(texts)} inputs, the right answer: "
            "give these, or the Answers that were decided on."
        )
    return classes_of_texts(texts, given, never), True


def _paid(decisions: Decisions, losses: Any) -> Floats:
    """What each decision of a `StopRule` cost, (n,): the loss where it stopped, if it was answered.

    losses: (n, M), or risks with losses, which may have more times than the rule.
    """
    if hasattr(losses, "risk"):
        losses = losses.at(decisions.checkpoints).loss
    shape = len(decisions), len(decisions.checkpoints)
    if losses is None or isinstance(losses, Scores) or np.shape(losses) != shape:
        given = "Scores" if isinstance(losses, Scores) else f"an array of shape {np.shape(losses)}"
        raise InputError(
            "a StopRule is evaluated with a loss for each input and checkpoint, and this is "
            f"{given}: give losses of shape {shape}."
        )
    array, most = as_floats(losses, "loss"), decisions.largest_loss or 0.0
    inside = (array >= 0) & (array <= most)
    if decisions.target is not None:
        inside = (array == 0) | (array == 1)
    if not inside.all():
        needed = f"losses from 0 to {most:g}" if decisions.target is None else "losses of 0 and 1"
        raise InputError(
            f"loss holds {array[~inside][0]:g}, but the rule is about {needed}: give these."
        )
    return np.where(decisions.answered, array[np.arange(len(array)), decisions.stop_index], 0.0)


def covered(lower: Floats, upper: Floats, labels: Any) -> Booleans:
    """Whether intervals (n,) hold the true numbers."""
    if labels is None or np.shape(labels) != lower.shape:
        raise InputError(
            "intervals are evaluated with the true numbers: give one label for each of "
            f"{len(lower)} inputs, or Numbers with labels."
        )
    array = as_floats(labels, "labels")
    check_finite(array, "labels")
    return (lower <= array) & (array <= upper)
