"""Rules after calibration: a `CalibratedRule` decides for batches, streams and engines."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import (
    Booleans,
    Floats,
    InputError,
    Integers,
    KeptInFiles,
    StrPath,
    as_count,
    columns_of,
    find_groups,
    join_parts,
    set_fields,
    warn_user,
)
from agreestop.common.levels import UNIT, UNITS, in_words, quantile_rank

from .checkpoints import Index, Policy, State, Stops, Verdict, run_checkpoints
from .decisions import Decision, Decisions
from .leakage import (
    Marks,
    Overlap,
    RowScores,
    TunedRows,
    data_fingerprint,
    first_reuse,
    inputs_differ,
    or_unknown,
    training_overlap,
)
from .rule import Rule, read_evidence
from .rule_files import KINDS, read_rule_file, write_rule_file
from .scores import ScoresLike, labels_of

ENDED_INPUTS = (
    " Inputs that end early are answered from their last scores, which stand for all later "
    "checkpoints, in calibration too."
)
MOST_NUMBERS = 1 << 22  # members times classes of a rule in a file
BLOCK_NUMBERS = 1 << 17  # log-confidences that are judged together: a block stays in the cache


@dataclass(frozen=True, eq=False, repr=False)
class CalibratedRule(KeptInFiles):
    """A rule, what calibration taught it, and what it promises. Make one with `rule.calibrate`.

    Attributes
    ----------
    rule, policy
        The settings, and what calibration made of them.
    n, members, classes
        The number of calibration examples, of members and of classes.
    guarantee
        What is promised, in words.
    shortage
        A sentence if there were too few examples, else empty.
    fingerprint
        A name for the calibration data.
    engine, ensemble_digest, class_names, heard
        Of the scores it was calibrated on, where they are known.
    rows
        Sketches and ids of the calibration rows.
    first_risks : (n,)
        Their log-risk, or least score, at the first checkpoint.
    effective_size
        With weights, the number of equally weighted examples that would say as much.
    final
        Whether the promise is about the ensemble's own best class at the last checkpoint.
    adapted
        Whether an `AdaptiveRule` has moved the threshold.
    class_counts : (C,)
        How often each label occurred in calibration.
    eta
        How far the log-risk of one input at the first checkpoint may differ between two runs.
    people
        The number of people in calibration, where the promise is about new people.
    known_people
        Marks of these people, and of those who trained an early classifier; `evaluate` refuses
        them.
    weighted
        Whether the samples of calibration had weights; None where it is not known, and for rules
        that read no open answers.
    notes
        Sentences about the calibration examples; they are not kept in files.

    Examples
    --------
    >>> import agreestop as ag
    >>> calibration, test = ag.simulate_scores(400, steps=20, K=3, C=4).split(0.5, 0.5)
    >>> rule = ag.AgreeStop(0.9, range(1, 21), 1).calibrate(calibration)
    >>> rule
    CalibratedRule(AgreeStop, target=0.9, n=200, members=3, classes=4)
    >>> rule.decide(test)[0].answered
    True
    """

    rule: Rule
    policy: Policy
    n: int
    members: int
    classes: int
    guarantee: str
    shortage: str
    fingerprint: str
    engine: str = ""
    ensemble_digest: str = ""
    class_names: tuple[str, ...] | None = None
    heard: str = ""
    rows: TunedRows | None = None
    first_risks: Floats | None = None
    effective_size: float | None = None
    final: bool = False
    adapted: bool = False
    class_counts: Integers | None = None
    eta: float = UNITS * UNIT
    people: int | None = None
    known_people: Marks | None = None
    weighted: bool | None = None
    notes: tuple[str, ...] = field(default=(), init=False)
    # The number of streams that were opened without a number of their own.
    opened: list[int] = field(default_factory=lambda: [0], init=False)

    def noting(self, *sentences: str) -> Self:
        """The rule with more notes before its own; empty ones are left out."""
        set_fields(self, notes=(*filter(None, sentences), *self.notes))
        return self

    @property
    def checkpoints(self) -> tuple[float, ...]:
        """The times of the checkpoints, which may be a `Schedule`."""
        given = self.rule.checkpoints
        return given if isinstance(given, tuple) else tuple(given)

    @property
    def members_join(self) -> bool:
        """Whether members join over time."""
        return self.rule.joined_members is not None

    @property
    def judged_members(self) -> tuple[int, ...]:
        """The number of members that each checkpoint judges, (M,)."""
        return self.rule.joined_members or (self.members,) * len(self.checkpoints)

    @property
    def thresholds(self) -> Floats:
        """λ, the number that log-risks or scores are compared with.

        One, or one for each group, each block of a gate, or both (G, B).
        """
        return np.array(self.policy.thresholds, ndmin=1)

    @property
    def kth_values(self) -> Floats | None:
        """The order statistics before `thresholds` were moved aside from shared numbers.

        For `AgreeStop` the k-th smallest W, which no threshold is above; for `SpikeCP` order
        statistics of scores, which no threshold is below. None where a file of 0.2 holds none.
        """
        values = self.policy.kth_values
        return None if values is None else values.copy()

    @property
    def group_names(self) -> tuple[str, ...] | None:
        """The groups that the rule was calibrated for; None without groups."""
        return self.policy.group_names

    def start(self, count: int, first: int | None = None, groups: Booleans | None = None) -> State:
        """The state of `count` inputs before their first checkpoint.

        first: the number of the first of them, which decides their random numbers; None for fresh
        ones. groups: (count, G), which of the rule's groups each belongs to; see `find_groups`.
        """
        if groups is not None and self.group_names is not None:
            return self.policy.start_in(groups, first)
        return self.policy.start(count, self.classes, first)

    def find_groups(self, groups: ArrayLike | None, n: int) -> Booleans | None:
        """(n, G): which of the rule's groups n inputs belong to; None for a rule without groups."""
        names = self.group_names
        if names is None:
            if groups is not None:
                raise InputError(
                    "groups are given, but the rule was calibrated without: leave them out, or "
                    "calibrate with groups=."
                )
            return None
        if groups is None:
            return np.zeros((n, len(names)), dtype=bool)
        return find_groups(groups, names, n)

    def step(self, index: Index, log_confidence: Floats, state: State) -> Verdict:
        """The verdict on log-confidences (b, K, C), float64, at one checkpoint, or one for each.

        Every decision of a batch, a stream or an engine is made here.
        """
        evidence = read_evidence(self.rule, index, log_confidence)
        last = index == len(self.rule.checkpoints) - 1
        verdict = self.policy.judge(index, last, evidence, state)
        state = verdict.state
        best = self.rule.best(evidence) if np.count_nonzero(verdict.stop) else None
        if not isinstance(index, int):
            known = np.nan if state.first_risk is None else state.first_risk
            state = replace(state, first_risk=np.where(index == 0, evidence.level, known))
        elif index == 0:
            state = replace(state, first_risk=evidence.level)
        return Verdict(verdict.stop, verdict.sets, state, best)

    @property
    def randomized(self) -> bool:
        """Whether decisions depend on random numbers, one for each input."""
        return self.start(0).uniforms is not None

    def check_sizes(self, members: int, classes: int) -> None:
        """Refuse another number of members or classes than calibrated with."""
        sizes = ("members", members, self.members), ("classes", classes, self.classes)
        for name, given, needed in sizes:
            if given != needed:
                raise InputError(
                    f"log_confidence has {given} {name}, but the rule was calibrated with "
                    f"{needed}: give the same ensemble."
                )

    def check_classes(self, names: Sequence[str] | None) -> None:
        """Refuse classes other than in calibration, or in another order; None may pass."""
        if names is None or tuple(names) == self.class_names:
            return
        if len(names) != self.classes:
            raise InputError(
                f"the data have {len(names)} classes, but the rule was calibrated with "
                f"{self.classes}: use its classes."
            )
        if self.class_names is not None:
            pairs = zip(names, self.class_names, strict=True)
            given, known = next(pair for pair in pairs if pair[0] != pair[1])
            raise InputError(
                f"the data have class {given!r} where the rule was calibrated with {known!r}: use "
                "its classes, in its order."
            )

    def check_source(
        self,
        engine: str = "",
        ensemble_digest: str = "",
        any_engine: bool = False,
        any_members: bool = False,
    ) -> None:
        """Refuse scores of another engine or ensemble. An empty string is an unknown one.

        On another engine a borderline spike may differ, and the promise is about the scores of one
        engine and one ensemble.
        """
        known, given = (self.engine, self.ensemble_digest), (engine, ensemble_digest)
        check_source("rule", known, given, any_engine, any_members)

    def check_samples(self, weighted: bool | None) -> None:
        """Refuse open answers where calibration had none, or had weights and these have not.

        weighted: whether the samples have weights; None for other inputs.
        """
        if weighted is not None and not self.rule.terms.open_answers:
            raise InputError(
                "these are open answers, and the rule was calibrated on scores: give scores, or "
                "calibrate on answers."
            )
        if self.weighted is None or weighted == self.weighted:
            return
        if self.weighted:
            raise InputError(
                "weight is missing, and the rule was calibrated with weights: give the weight of "
                "each sample."
            )
        raise InputError(
            "weight is given, and the rule was calibrated without weights: leave it out, or "
            "calibrate with weights."
        )

    def check_lengths(self, lengths: Integers | None) -> None:
        """Warn where inputs may end early, but not the inputs of calibration, or the reverse."""
        known = ENDED_INPUTS in self.guarantee
        if lengths is None and known:
            words = (
                "the inputs of calibration may end early, and these have no lengths, so the "
                "promise covers them only if none has ended: give lengths, as in calibration."
            )
        elif lengths is not None and not known and (lengths < self.checkpoints[-1]).any():
            words = (
                "some inputs end early, and the calibration inputs did not, so the promise does "
                "not cover them: calibrate on scores with lengths."
            )
        else:
            return
        warn_user(words)

    def decide(
        self,
        scores_or_log_confidence: ScoresLike,
        times: Sequence[float] | None = None,
        *,
        groups: ArrayLike | None = None,
        any_engine: bool = False,
        any_members: bool = False,
        first: int | None = None,
    ) -> Decisions:
        """Stop and answer for many inputs.

        Parameters
        ----------
        scores_or_log_confidence : Scores, or array (n, M, K, C)
            What the model says. A `Scores`, or an array with `times`, may have more checkpoints
            than the rule; it is cut to the rule's. `StopRule` takes risks (n, M).
        times : sequence of float, optional
            The times of an array.
        groups : array, optional
            As in `calibrate`. An input of a group that calibration never saw answers all classes at
            the last checkpoint, or abstains there if the rule does.
        any_engine, any_members : bool
            Allow scores of another engine, or of other members, than calibrated with.
        first : int, optional
            The inputs are numbered `first`, `first` + 1 and so on. It matters only to random
            numbers: the same number and seed give the same random number, here and in `stream`.
            Without it they are fresh, so two calls may answer differently.

        Returns
        -------
        Decisions
        """
        first = None if first is None else as_count(first, "first", least=0)
        data = self.rule.read(scores_or_log_confidence, None, times)
        self.check_source(data.engine, data.ensemble_digest, any_engine, any_members)
        check_heard("rule", self.heard, data.heard)
        self.check_samples(data.weighted)
        array, (members, classes) = data.cells, data.sizes
        n = len(data)
        self.check_sizes(members, classes)
        self.check_classes(data.classes)
        if data is scores_or_log_confidence:
            self.check_lengths(data.lengths)
        columns = columns_of(self.checkpoints, data.times)
        inside = self.find_groups(groups, n)
        rows = max(1, BLOCK_NUMBERS // (members * classes))
        parts, final = [], np.full(n, -1)
        for begin in range(0, n, rows):
            block = slice(begin, begin + rows)
            number = None if first is None else first + begin
            known = None if inside is None else inside[block]
            state = self.start(len(array[block]), number, known)
            parts.append(self._decide_block(array[block], columns, state))
            if self.final:
                last = np.ascontiguousarray(array[block, columns[-1]], dtype=np.float64)
                final[block] = self.rule.best(read_evidence(self.rule, len(columns) - 1, last))
        at_end = final if self.final and self.rule.terms.has_classes else None
        overlap = training_overlap(data.trained, data.trained_chance)
        training = or_unknown(overlap, data.ensemble_digest)
        scored, stops = data.scored(columns), join_parts(parts)
        found = self.decisions(stops, data.ids, scored, inside, at_end, training)
        return replace(found, **data.details(found.stop_time))

    def _decide_block(self, block: NDArray[Any], columns: list[int], state: State) -> Stops:
        def judge(index: int, active: Integers, state: State) -> Verdict:
            column = columns[index]
            values = block[:, column] if len(active) == len(block) else block[active, column]
            return self.step(index, np.ascontiguousarray(values, dtype=np.float64), state)

        return run_checkpoints(judge, state, len(columns), self.classes)

    def judge_some(
        self, evidence: NDArray[Any], scored: bool = False
    ) -> Callable[[Index, Integers, State], Verdict]:
        """A function for `run_rounds` that judges some of the spike counts or logits (n, K, C).

        scored: they are log-confidences.
        """

        def judge(index: Index, where: Integers, state: State) -> Verdict:
            chosen = np.ascontiguousarray(evidence[where], dtype=np.float64)
            return self.step(index, chosen if scored else self.rule.read_outputs(chosen), state)

        return judge

    def decision(
        self, index: int, verdict: Verdict, number: int | None = None, row: int = 0
    ) -> Decision:
        """The decision of the input in a row of the verdict at checkpoint `index`.

        number: of its stream.
        """
        state, terms, found = verdict.state, self.rule.terms, verdict.sets[row]
        gated = None if terms.block_names is None else state.block
        ends = (None, None) if state.interval is None else state.interval[row].tolist()
        by_depth = self.decided_depths(state, number, row)
        return self._decision(
            *(index, found if terms.has_classes else found[:1], state, number, row),
            block=None if gated is None else int(gated[row]),
            answered=bool(found.any()) or not terms.abstains,
            lower=ends[0],
            upper=ends[1],
            by_depth=tuple(one for one in by_depth if one is not None),
        )

    def decided_depths(
        self, state: State, number: int | None = None, row: int = 0
    ) -> tuple[Decision | None, ...]:
        """The decisions of one input at each depth of a tree so far; empty for other rules."""
        if state.depth_index is None or state.depth_sets is None:
            return ()
        found: list[Decision | None] = []
        for index, answer in zip(
            state.depth_index[row].tolist(), state.depth_sets[row], strict=True
        ):
            known = index, answer, state, number, row
            one = self._decision(*known, answered=bool(answer.any())) if index >= 0 else None
            found.append(one)
        return tuple(found)

    def _decision(
        self,
        index: int,
        answer: Booleans,
        state: State,
        number: int | None,
        row: int,
        **known: Any,
    ) -> Decision:
        risk = None if state.first_risk is None else float(state.first_risk[row])
        names, tree = self.class_names, self.rule.terms.tree
        own: dict[str, Any] = {"first_risk": risk, "number": number, **known}
        return Decision.of(index, answer, self.checkpoints, names, self.members, tree, **own)

    def decisions(
        self,
        stops: Stops,
        ids: ArrayLike | None,
        scored: RowScores | None = None,
        groups: Booleans | None = None,
        final_best: Integers | None = None,
        training: Overlap | None = None,
    ) -> Decisions:
        """How inputs ended, as decisions, compared with the rows that the rule was fitted on.

        final_best (n,), for a rule about the final answer: the best class at the last checkpoint,
        where it is known. training: how many of the inputs the members were trained on.
        """
        overlaps = ([] if training is None else [training]) + self.overlaps(ids, scored)
        terms, likeness = self.rule.terms, self._needs_likeness
        about_end = self.final and final_best is None and terms.has_classes
        lower, upper = stops.interval.T if terms.numbers else (None, None)
        return Decisions(
            stops.index,
            stops.sets if terms.has_classes else stops.sets[:, :1],
            self.checkpoints,
            first_reuse(overlaps),
            self.class_names,
            tuple(self._notes(stops, overlaps, groups, about_end)),
            self.draw,
            best=None if (stops.best < 0).any() else stops.best,
            block=None if terms.block_names is None else stops.block,
            block_names=terms.block_names,
            groups=groups,
            group_names=self.group_names,
            first_risk=stops.first_risk,
            members=self.members,
            loss=None if about_end else terms.loss,
            final_best=final_best,
            class_counts=self.class_counts if likeness else None,
            answered=np.asarray(stops.sets.any(axis=1) | (not terms.abstains)),
            target=None if terms.target is None or not terms.promises else float(terms.target),
            largest_loss=terms.largest_loss,
            known_people=self.known_people,
            ids=None if ids is None else np.asarray(ids),
            lower=lower,
            upper=upper,
            tree=terms.tree,
            depth_index=stops.depth_index if stops.depth_index.shape[1] else None,
            depth_sets=stops.depth_sets if stops.depth_index.shape[1] else None,
        )

    def _notes(
        self, stops: Stops, overlaps: list[Overlap], groups: Booleans | None, about_end: bool
    ) -> list[str]:
        """What speaks against the promise, or could not be checked."""
        likeness = self._needs_likeness
        notes = [inputs_differ(self.first_risks, stops.first_risk)] if likeness else []
        notes += self.notes
        # Where ids are enough, the comparison by scores adds nothing.
        known = {one.use for one in overlaps if one.by == "ids" and not one.chance}
        notes += [one.note for one in overlaps if one.by != "scores" or one.use not in known]
        if self.kth_values is None:
            notes.append(
                "The rule is of version 0.2, whose thresholds may equal scores that many inputs "
                "share: calibrate it again."
            )
        if self.rows is None:
            notes.append(
                "The rule does not say which rows it was calibrated on, so these could not be "
                "compared with them."
            )
        if groups is not None and (unknown := int((~groups.any(axis=1)).sum())):
            what = "their best class" if self.final else "all classes"
            answer = f"answer {what} at the end"
            if self.rule.terms.numbers:
                answer = "answer all numbers, at the end"
            if self.rule.terms.largest_loss is not None:
                answer = "never stop early, and nothing is promised if they answer at the end"
            if self.rule.terms.abstains:
                answer = "are not answered"
            advice = "; give their groups if they have any" if unknown == len(groups) else ""
            notes.append(
                f"{unknown} of the {len(groups)} inputs are of no group that calibration saw: they "
                f"{answer}{advice}."
            )
        if about_end:
            notes.append(
                "The promise is about the ensemble's class at the last checkpoint, which is not "
                "known: the engine stopped before."
            )
        return [note for note in notes if note]

    @property
    def _needs_likeness(self) -> bool:
        """Whether the promise is about new inputs that look like all of calibration together.

        With groups, classes or people each has its own promise, weights allow for a shift, and an
        adapted threshold follows one.
        """
        divided = self.group_names is not None or self.rule.terms.class_conditional
        return not self._shifted and not divided

    @property
    def _shifted(self) -> bool:
        """Whether new inputs may be unlike the calibration examples, or the threshold has moved."""
        return self.adapted or self.effective_size is not None or self.people is not None

    @property
    def draw(self) -> tuple[int, int] | None:
        """`threshold_rank` of a rule whose promise is about labels."""
        about_labels = not self.final and self.rule.terms.largest_loss is None
        return self.threshold_rank if about_labels else None

    @property
    def threshold_rank(self) -> tuple[int, int] | None:
        """The number of examples and the rank of the threshold among them.

        None unless one order statistic of all examples is the threshold.
        """
        terms = self.rule.terms
        single = self.policy.one_order_statistic and not terms.class_conditional
        if self._shifted or not single or terms.target is None or not terms.promises:
            return None
        rank = quantile_rank(self.n, terms.target, terms.delta)
        return (self.n, rank) if rank <= self.n else None

    @property
    def examples_needed(self) -> int:
        """The least number of examples, of each class if promised so, to ever stop early."""
        return self.rule.examples_needed(self.members)

    @property
    def never_stops(self) -> bool:
        """Whether no input can stop early.

        There were fewer examples than the rule needs (`examples_needed`), or no checkpoint before
        the last one passed the test of `accumulated`.
        """
        if self.adapted:  # the threshold may move again
            return False
        return self.policy.never_stops(self.examples_needed if self.shortage else None)

    def __repr__(self) -> str:
        terms, names = self.rule.terms, self.group_names
        levels = {"target": terms.target, "max_loss": terms.max_loss, "delta": terms.delta}
        parts = [type(self.rule).__name__]
        parts += [f"{name}={in_words(one)}" for name, one in levels.items() if one is not None]
        given = {
            "class_conditional": terms.class_conditional,
            "accumulated": terms.accumulated,
            f"gate with {len(terms.block_names or ()) - 1} blocks": terms.block_names is not None,
            f"{len(names or ())} groups": names is not None,
            f"{self.people} people": self.people is not None,
            "final answers": self.final,
            f"schedule of {len(self.checkpoints)} checkpoints": self.members_join,
        }
        parts += [words for words, shown in given.items() if shown]
        parts += [f"n={self.n}", *self.sizes]
        parts += [self.heard] if self.heard else []
        parts += ["never stops early"] if self.never_stops else []
        parts += [f"notes={self.notes}"] if self.notes else []
        return f"CalibratedRule({', '.join(parts)})"

    @property
    def sizes(self) -> tuple[str, ...]:
        """What an input of this kind consists of, in words: members, classes, samples."""
        if self.rule.terms.open_answers:
            return (f"samples={self.classes - 1}",)
        members = f"members={self.members}"
        if self.rule.terms.has_classes:
            return members, f"classes={self.classes}"
        return (members,) if self.rule.terms.numbers else ()

    @property
    def knows_ids(self) -> bool:
        """Whether the ids of inputs can show that the rule was tuned or calibrated on them."""
        known = (self._tuned, self.rows)
        return any(rows is not None and rows.ids is not None for rows in known)

    @cached_property
    def _tuned(self) -> TunedRows | None:
        return self.rule.tuned

    def overlaps(self, ids: ArrayLike | None, scored: RowScores | None = None) -> list[Overlap]:
        """How many inputs are among the rows that the rule was tuned or calibrated on."""
        used = [("tuning", self._tuned), ("calibration", self.rows)]
        known = [(use, rows) for use, rows in used if rows is not None]
        return [one for use, rows in known for one in rows.overlaps(use, ids, scored)]

    def saw(
        self,
        scores_or_log_confidence: ScoresLike,
        labels: ArrayLike | None = None,
        times: Sequence[float] | None = None,
    ) -> bool:
        """Whether these are exactly the rows that the rule was calibrated on, in any order."""
        data = self.rule.read(scores_or_log_confidence, labels, times)
        scored = data.scored(columns_of(self.checkpoints, data.times))
        return data_fingerprint(scored.marks, labels_of(data)) == self.fingerprint

    def stream(self, number: int | None = None, *, group: ArrayLike | None = None) -> "Session":
        """Watch one input, checkpoint by checkpoint.

        Parameters
        ----------
        number : int, optional
            The streams of this rule are numbered 0, 1, 2 and so on, as they are opened, unless a
            number is given; monitors count in this order. A given number matters to random numbers
            too: the stream then has the random number of input `number` of a batch
            (`decide(first=0)`). Without it the random number is fresh.
        group : str, int or (G,) booleans, optional
            The input's group. An input of no known group answers all classes at the end,
            or abstains if the rule does.

        Returns
        -------
        Session
        """
        return Session(self, number, group)

    def save(self, path: StrPath) -> None:
        """Write the rule to one file: a readable header and plain arrays, all or nothing."""
        summary = {
            "guarantee": self.guarantee,
            "calibration_examples": self.n,
            "members": self.members,
            "classes": self.classes,
            "data_fingerprint": self.fingerprint,
        }
        write_rule_file(path, self, summary)

    # --- what monitors and adaptive rules need; here thresholds are such that small is safe

    @property
    def reach(self) -> tuple[float, float] | None:
        """The safest and the boldest useful threshold; None without one movable threshold."""
        return self.policy.movable_range if self.rule.terms.target is not None else None

    @property
    def safe_threshold(self) -> float:
        """The one threshold, where small is safe."""
        return float(self.policy.inner(self.policy.thresholds)[0])

    def shown(self, value: float) -> float:
        """A threshold where small is safe, in the scale of `thresholds`."""
        return float(self.policy.inner(np.array([value]))[0])

    def with_threshold(self, value: float) -> Self:
        """The rule with another threshold, where small is safe; with -∞ nothing stops early."""
        return replace(self, policy=self.policy.moved(value), shortage="", adapted=True)


def load_rule(path: StrPath) -> CalibratedRule:
    """Read a calibrated rule that `save` or `agreestop calibrate` wrote.

    Parameters
    ----------
    path : str or path
        What is not an intact and unaltered rule file of a known format is refused with a sentence.

    Returns
    -------
    CalibratedRule

    Examples
    --------
    >>> import tempfile, agreestop as ag
    >>> rule = ag.AgreeStop(0.9, range(1, 21), 1).calibrate(ag.simulate_scores(99, steps=20))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rule.save(f"{folder}/rule")
    ...     ag.load_rule(f"{folder}/rule").n
    99
    """
    return read_rule_file(path, CalibratedRule, try_out)


def try_out(calibrated: CalibratedRule) -> CalibratedRule:
    """Run one input through the first and the last checkpoint, so that a forged rule fails here."""
    shape = (1, calibrated.members, calibrated.classes)
    if min(shape) < 1 or calibrated.members * calibrated.classes > MOST_NUMBERS:
        raise ValueError(f"{calibrated.members} members and {calibrated.classes} classes")
    for index in (0, len(calibrated.checkpoints) - 1):
        nothing = calibrated.rule.example_cell(*shape[1:])[None]
        verdict = calibrated.step(index, nothing, calibrated.start(1))
        if verdict.sets.shape != (1, calibrated.classes) or verdict.stop.shape != (1,):
            raise ValueError("arrays of other sizes than the rule")
    counts = calibrated.class_counts
    if counts is not None and (counts.shape != (calibrated.classes,) or counts.min() < 0):
        raise ValueError("counts of classes that no calibration has")
    if np.isnan(calibrated.thresholds).any():
        raise ValueError("a threshold that is no number")
    kth = calibrated.kth_values
    if kth is not None and kth.size and kth.shape != calibrated.thresholds.shape:
        raise ValueError("order statistics that do not belong to the thresholds")
    calibrated.policy.check_blocks(len(calibrated.rule.terms.block_names or ()))
    return calibrated


def check_source(
    what: str,
    known: tuple[str, str],
    given: tuple[str, str],
    any_engine: bool = False,
    any_members: bool = False,
) -> None:
    """Refuse scores of another engine or ensemble than calibrated with.

    known, given: engine and digest of the ensemble. An empty string is an unknown one.
    """
    if not any_engine and all((known[0], given[0])) and given[0] != known[0]:
        raise InputError(
            f"the {what} was calibrated on scores of the {known[0]} engine, and these are of the "
            f"{given[0]} one: use {known[0]}, calibrate again, or allow it (any_engine=True, "
            "--any-engine)."
        )
    if not any_members and all((known[1], given[1])) and given[1] != known[1]:
        raise InputError(
            f"the {what} was calibrated on scores of the ensemble {known[1][:12]}, and these are "
            f"of {given[1][:12]}: use the same members, calibrate again, or allow it "
            "(any_members=True, --any-members)."
        )


BEHIND = ", behind "
"""In `heard` the threshold and the rest of the spotter before a class rule follow."""


def check_heard(what: str, known: str, given: str) -> None:
    """Refuse windows of streams that were made otherwise than the windows of calibration.

    An empty text is an unknown one, and so is what it does not say of the spotter.
    """
    if not known or not given:
        return
    for needed, other in zip(known.partition(BEHIND), given.partition(BEHIND), strict=True):
        if needed and other and needed != other:
            raise InputError(
                f"{other} is given, and the {what} was calibrated on scores with {needed}: give "
                f"the same, or calibrate the {what} on scores with {other}."
            )


def check_calibrated(given: object, kind: type = CalibratedRule) -> None:
    """Refuse what is not a calibrated rule, or not a calibrated spotter if that is `kind`."""
    if isinstance(given, kind):
        return
    rules = kind is CalibratedRule
    what, load = ("rule", "ag.load_rule") if rules else ("spotter", "ag.Spotter.load")
    if isinstance(given, (str, PathLike)):
        raise InputError(f"the {what} is a path, {given}: read the file with {load}.")
    if held := KINDS.get(type(given).__name__):
        endless = "" if rules else "; watch(spotter, rule) takes both, in this order"
        if rules and held is KINDS["CalibratedSpotter"]:
            endless = (
                "; a spotter is for streams without an end: give both to watch, or call its stream"
            )
        raise InputError(f"the {what} is {held[0]}: give what {what}.calibrate returned{endless}.")
    raise InputError(
        f"the {what} is of type {type(given).__name__}, which is not calibrated: call "
        f"{what}.calibrate({'scores' if rules else 'recordings'}), and give what it returns."
    )


def refused(verb: str) -> Callable[..., NoReturn]:
    """A method that only a calibrated rule has."""

    def refuse(rule: object, *arguments: object, **options: object) -> NoReturn:
        raise InputError(
            f"this {type(rule).__name__} is not calibrated yet: call its calibrate, then {verb} "
            "what that returns."
        )

    refuse.__doc__ = f"Only what `calibrate` returns can do this: {verb} that."
    return refuse


def refuse_more(decision: Decision | None) -> None:
    """Refuse to go on with an input that has its decision."""
    if decision is not None:
        raise InputError(
            f"this input stopped at time {decision.time}: open a new session for the next input; a "
            "stream without an end is for ensemble.watch, or for a Spotter."
        )


class Session:
    """One input under watch, pushed one checkpoint at a time. `calibrated.stream()` opens one.

    Attributes
    ----------
    number : int
        Its place in the order in which the streams of the rule were opened.
    index : int
        The next checkpoint.
    decision : Decision or None
        The decision, once there is one.
    history : object or None
        For open answers: the samples so far, with `answers`, `names` and `cost`.

    Examples
    --------
    >>> import agreestop as ag
    >>> calibration, test = ag.simulate_scores(400, steps=20, K=3, C=4).split(0.5, 0.5)
    >>> session = ag.AgreeStop(0.9, range(1, 21), 1).calibrate(calibration).stream()
    >>> for scores in test.log_confidence[0]:
    ...     decision = session.push(scores)
    ...     if decision is not None:
    ...         break
    >>> decision.time == session.index
    True
    """

    __slots__ = (
        *("_calibrated", "_closed", "_notify", "_skip", "_state"),
        *("decision", "history", "index", "number"),
    )

    def __init__(
        self,
        calibrated: CalibratedRule,
        number: int | None = None,
        group: ArrayLike | None = None,
        notify: Callable[[Decision], object] | None = None,
        skip: Callable[[int], object] | None = None,
        fresh: bool | None = None,
    ) -> None:
        """fresh: whether random numbers are fresh; by default they are if no number is given."""
        inside = calibrated.find_groups(None if group is None else np.asarray(group)[None], 1)
        fresh = number is None if fresh is None else fresh
        if number is None:
            number = calibrated.opened[0]
            calibrated.opened[0] += 1
        self._calibrated, self._notify, self._skip = calibrated, notify, skip
        self._closed = False
        self.index, self.number = 0, as_count(number, "number", least=0)
        self._state = calibrated.start(1, None if fresh else self.number, inside)
        self.decision: Decision | None = None
        self.history = calibrated.rule.history()

    def push(
        self,
        log_confidence: ArrayLike,
        *,
        cost: float | None = None,
        weight: float | None = None,
    ) -> Decision | None:
        """Log-confidences (K, C) of the next checkpoint; the decision if the rule stops here.

        With a `Schedule`, checkpoint after checkpoint: the members that have joined, (k, C), are
        enough. For a `StopRule`, the risk, a number. For open answers the next sample, a string, in
        the order of request, with its cost and weight where calibration had them.
        """
        if self.decision is not None or self._closed:
            self.check_open()
        calibrated = self._calibrated
        if self.history is not None:
            calibrated.check_samples(weight is not None)
            array = self.history.add(log_confidence, cost, weight)
            return None if array is None else self.judge(array)
        if cost is not None or weight is not None:
            raise InputError("cost and weight belong to open answers: leave them out.")
        array = calibrated.rule.read_one(log_confidence)
        if array.shape != (calibrated.members, calibrated.classes):
            joined = calibrated.judged_members[self.index]
            given = calibrated.members if array.shape[0] == joined else array.shape[0]
            calibrated.check_sizes(given, array.shape[1])
        return self.judge(array)

    def judge(self, array: NDArray[Any]) -> Decision | None:
        """The same for an array that is known to be as `push` needs it."""
        calibrated = self._calibrated
        values = np.ascontiguousarray(array, dtype=np.float64)[None]
        verdict = calibrated.step(self.index, values, self._state)
        if verdict.stop[0]:
            self.decision = calibrated.decision(self.index, verdict, self.number)
            if self.history is not None:
                named = tuple(self.history.names[label] for label in self.decision.classes)
                self.decision = replace(self.decision, names=named, cost=self.history.cost)
            if self._notify is not None:
                self._notify(self.decision)
        self._state = verdict.state
        self.index += 1
        return self.decision

    def check_open(self) -> None:
        """Refuse to go on after the decision, or after `close`."""
        refuse_more(self.decision)
        if self._closed:
            raise InputError("this session was closed: open a new session for the next input.")

    @property
    def by_depth(self) -> tuple[Decision | None, ...]:
        """With a tree and depth="each": the first answer at each depth, None before it."""
        return self._calibrated.decided_depths(self._state, self.number)

    @property
    def first_risk(self) -> float | None:
        """The risk, or the least score, at the first checkpoint; None before it."""
        risk = self._state.first_risk
        return None if risk is None else float(risk[0])

    def close(self) -> float | None:
        """Give up an input that gets no decision, for example at a deadline. Returns `first_risk`.

        A monitor must know: `monitor.skip(session.number, session.close())`. An input that has its
        decision, or was closed before, stays as it is.
        """
        if self.decision is None and not self._closed:
            self._closed = True
            if self._skip is not None:
                self._skip(self.number)
        return self.first_risk
