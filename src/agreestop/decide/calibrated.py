"""Rules after calibration: a `CalibratedRule` decides for batches, for streams, and for engines that run an ensemble."""

import hashlib
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import Booleans, Floats, InputError, Integers, as_count

from .checks import CalibrationWarning, as_log_confidence, columns_of
from .conditions import find_groups
from .decisions import Decision, Decisions
from .evidence import Policy, State, Stops, Verdict, run_checkpoints
from .exchangeability import inputs_differ
from .levels import as_delta, as_target, in_words, quantile_rank
from .policies import CheckpointRisks, ConditionalThresholds, RiskThreshold, RunningThreshold, StoppingThreshold
from .ranking import Index
from .rounding import UNIT, UNITS
from .rule_files import KeptInFiles, read_rule_file, write_rule_file
from .rules import Rule, read_evidence
from .schedules import Schedule, members_at
from .score_files import Scores, ScoresLike, as_scores, labels_of, training_overlap
from .tuned_rows import Marks, Overlap, RowScores, ScoredRows, TunedRows, first_reuse, join_marks, mark_rows, or_unknown

MOST_NUMBERS = 1 << 22  # members times classes of a rule in a file
ENDED_INPUTS = " Inputs that end early are answered from their last scores, which stand for all later checkpoints, in calibration too."
BLOCK_NUMBERS = 1 << 17  # log-confidences that are judged together: a block stays in the cache


@dataclass(frozen=True, eq=False, repr=False)
class CalibratedRule(KeptInFiles):
    """A rule, what calibration taught it (`policy`), and what it promises (`guarantee`). Make one with `rule.calibrate`.

    engine, ensemble_digest, class_names: those of the scores it was calibrated on, where they are
    known; rows: marks of their rows. first_risks: (n,) their log-risk, or least score, at the first
    checkpoint. class_counts: (C,) how often each label occurred among them. notes: sentences about
    the calibration examples, such as labels that come in blocks; they are not kept in files.
    effective_size: with weights, the number of equally weighted examples that would say as much.
    final: whether the promise is about the ensemble's own best class at the last checkpoint.
    adapted: whether an `AdaptiveRule` has moved the threshold. eta: how far the log-risk of one
    input at the first checkpoint may differ between two runs.
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
    rows: TunedRows | None = None
    first_risks: Floats | None = None
    effective_size: float | None = None
    final: bool = False
    adapted: bool = False
    class_counts: Integers | None = None
    eta: float = UNITS * UNIT
    notes: tuple[str, ...] = field(default=(), init=False)
    opened: list[int] = field(default_factory=lambda: [0], init=False)  # the number of streams without a number of their own

    def noting(self, sentence: str) -> Self:
        """The rule with a note before the others, unless it is empty."""
        if sentence:
            object.__setattr__(self, "notes", (sentence, *self.notes))
        return self

    @property
    def checkpoints(self) -> tuple[float, ...]:
        """The times of the checkpoints, which may be a `Schedule`."""
        given = self.rule.checkpoints
        return given if isinstance(given, Schedule) else tuple(given)

    @property
    def thresholds(self) -> Floats:
        """λ, the number that log-risks or scores are compared with: one, or one for each group, each block of a gate, or both (G, B)."""
        policy = self.policy
        if isinstance(policy, ConditionalThresholds):
            return self._by_group_and_block(policy.thresholds)
        return np.atleast_1d(getattr(policy, "thresholds", getattr(policy, "threshold", np.empty(0))))

    @property
    def kth_values(self) -> Floats | None:
        """The order statistics of calibration, before `thresholds` were moved aside so that rounding cannot flip a decision.

        For `AgreeStop` the k-th smallest W, which no threshold is above; for `SpikeCP` order statistics of scores, which no
        threshold is below. None where a file of 0.2 holds none.
        """
        policy = self.policy
        values: Floats | None = getattr(policy, "kth_values", np.empty(0))
        if values is None or not isinstance(policy, ConditionalThresholds):
            return values
        return self._by_group_and_block(values)

    def _by_group_and_block(self, values: Floats) -> Floats:
        """(G, B) numbers without the axes that the rule does not have."""
        if self.group_names is None:
            return values[0]
        return values[:, 0] if self._gate is None else values

    @property
    def group_names(self) -> tuple[str, ...] | None:
        """The groups that the rule was calibrated for; None without groups."""
        return self.policy.group_names if isinstance(self.policy, ConditionalThresholds) else None

    @property
    def _gate(self) -> Any:
        return getattr(self.rule, "gate", None)

    def start(self, count: int, first: int | None = None, groups: Booleans | None = None) -> State:
        """The state of `count` inputs before their first checkpoint.

        first: the number of the first of them, which decides their random numbers; None for fresh
        ones. groups: (count, G), which of the rule's groups each belongs to; see `find_groups`.
        """
        if groups is not None and isinstance(self.policy, ConditionalThresholds):
            return self.policy.start_in(groups, count)
        return self.policy.start(count, self.classes, first)

    def find_groups(self, groups: ArrayLike | None, n: int) -> Booleans | None:
        """(n, G): which of the rule's groups n inputs belong to, none if they are not given; None for a rule without groups."""
        names = self.group_names
        if names is None:
            if groups is not None:
                raise InputError("groups are given, but the rule was calibrated without: leave them out, or calibrate with groups=.")
            return None
        return np.zeros((n, len(names)), dtype=bool) if groups is None else find_groups(groups, names, n)

    def step(self, index: Index, log_confidence: Floats, state: State) -> Verdict:
        """The verdict on log-confidences (b, K, C), float64, at one checkpoint, or at one checkpoint for each input, (b,).

        Every decision of a batch, a stream or an engine is made here.
        """
        evidence = read_evidence(self.rule, index, log_confidence)
        verdict = self.policy.judge(index, index == len(self.rule.checkpoints) - 1, evidence, state)
        best, state = self.rule.best(evidence) if np.count_nonzero(verdict.stop) else None, verdict.state
        if not isinstance(index, int):
            risk = np.where(index == 0, evidence.level, np.nan if state.first_risk is None else state.first_risk)
            state = replace(state, first_risk=risk)
        elif index == 0:
            state = replace(state, first_risk=evidence.level)
        return Verdict(verdict.stop, verdict.sets, state, best)

    @property
    def randomized(self) -> bool:
        """Whether decisions depend on random numbers, one for each input."""
        return self.start(0).uniforms is not None

    def check_sizes(self, members: int, classes: int) -> None:
        """Refuse another number of members or classes than calibrated with."""
        for name, given, needed in (("members", members, self.members), ("classes", classes, self.classes)):
            if given != needed:
                raise InputError(f"log_confidence has {given} {name}, but the rule was calibrated with {needed}: give the same ensemble.")

    def check_classes(self, names: Sequence[str] | None) -> None:
        """Refuse scores or inputs whose classes are others than calibrated with, or in another order. Unknown names are not refused."""
        if names is None or tuple(names) == self.class_names:
            return
        if len(names) != self.classes:
            raise InputError(f"the data have {len(names)} classes, but the rule was calibrated with {self.classes}: use its classes.")
        if self.class_names is not None:
            given, known = next(both for both in zip(names, self.class_names, strict=True) if both[0] != both[1])
            raise InputError(f"the data have class {given!r} where the rule was calibrated with {known!r}: use its classes, in its order.")

    def check_source(self, engine: str = "", ensemble_digest: str = "", any_engine: bool = False, any_members: bool = False) -> None:
        """Refuse scores of another engine or ensemble than calibrated with. An empty string is an unknown one and is not refused.

        On another engine a borderline spike may differ, and the promise is about the scores of one engine and one ensemble.
        """
        if not any_engine and self.engine and engine and engine != self.engine:
            advice = f"use {self.engine}, calibrate again, or allow it (any_engine=True, --any-engine)"
            raise InputError(f"the rule was calibrated on scores of the {self.engine} engine, and these are of the {engine} one: {advice}.")
        if not any_members and self.ensemble_digest and ensemble_digest and ensemble_digest != self.ensemble_digest:
            advice = "use the same members, calibrate again, or allow it (any_members=True, --any-members)"
            known, given = self.ensemble_digest[:12], ensemble_digest[:12]
            raise InputError(f"the rule was calibrated on scores of the ensemble {known}, and these are of {given}: {advice}.")

    def check_lengths(self, lengths: Integers | None) -> None:
        """Warn where inputs may end early (their lengths (n,) are known), but not those of calibration, or the reverse."""
        ends = lengths is not None and bool((lengths < self.checkpoints[-1]).any())
        if ends and ENDED_INPUTS not in self.guarantee:
            words = "some inputs end early, and those of calibration did not, so the promise does not cover them"
            warnings.warn(f"{words}: calibrate on scores with lengths.", CalibrationWarning, stacklevel=3)
        if lengths is None and ENDED_INPUTS in self.guarantee:
            words = "the inputs of calibration may end early, and these have no lengths, so the promise covers them only if none has ended"
            warnings.warn(f"{words}: give lengths, as in calibration.", CalibrationWarning, stacklevel=3)

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
        """Stop and answer for the inputs of a `Scores`, or for log-confidences (n, M, K, C).

        A `Scores`, or an array with `times`, may have more checkpoints than the rule; it is cut to the rule's. A `Scores` of another
        engine or of other members than calibrated with is refused, unless any_engine or any_members allows it. groups, as in `calibrate`:
        an input of a group that calibration never saw answers all classes at the last checkpoint.

        first: the inputs are numbered `first`, `first` + 1 and so on. It matters only to randomised merging: the same number and seed give
        the same random number, here and in `stream`. Without it random numbers are fresh, so two calls may answer differently.
        """
        first = None if first is None else as_count(first, "first", least=0)
        data = as_scores(scores_or_log_confidence, None, times, self.checkpoints)
        self.check_source(data.engine, data.ensemble_digest, any_engine, any_members)
        array = data.log_confidence
        n, _, members, classes = array.shape
        self.check_sizes(members, classes)
        self.check_classes(data.classes)
        if isinstance(scores_or_log_confidence, Scores):
            self.check_lengths(data.lengths)
        columns = columns_of(self.checkpoints, data.times)
        inside = self.find_groups(groups, n)
        rows = max(1, BLOCK_NUMBERS // (members * classes))
        parts, final = [], np.full(n, -1)
        for begin in range(0, n, rows):
            block = slice(begin, begin + rows)
            number = None if first is None else first + begin
            state = self.start(len(array[block]), number, None if inside is None else inside[block])
            parts.append(self._decide_block(array[block], columns, state))
            if self.final:
                last = np.ascontiguousarray(array[block, columns[-1]], dtype=np.float64)
                final[block] = self.rule.best(read_evidence(self.rule, len(columns) - 1, last))
        known = final if self.final else None
        training = or_unknown(training_overlap(data), data.ensemble_digest)
        return self.decisions(Stops.joined(parts), data.ids, ScoredRows(array, columns), inside, known, training)

    def _decide_block(self, block: NDArray[Any], columns: list[int], state: State) -> Stops:
        def judge(index: int, active: Integers, state: State) -> Verdict:
            values = block[:, columns[index]] if len(active) == len(block) else block[active, columns[index]]
            return self.step(index, np.ascontiguousarray(values, dtype=np.float64), state)

        return run_checkpoints(judge, state, len(columns), self.classes)

    def decision(self, index: int, verdict: Verdict, number: int | None = None) -> Decision:
        """The decision of one input that stops at checkpoint `index`; `number` is that of its stream."""
        state, gated = verdict.state, self._gate is not None
        risk = None if state.first_risk is None else float(state.first_risk[0])
        block = int(state.block[0]) if gated and state.block is not None else None
        known = self.class_names, risk, block, self.members, None, number
        return Decision.of(index, verdict.sets[0], self.checkpoints, *known)

    def decisions(
        self,
        stops: Stops,
        ids: ArrayLike | None,
        scored: RowScores | None = None,
        groups: Booleans | None = None,
        final_best: Integers | None = None,
        training: Overlap | None = None,
    ) -> Decisions:
        """How inputs ended, as decisions; the inputs are compared with those that the rule was tuned or calibrated on.

        final_best (n,), for a rule about the final answer: the best class at the last checkpoint, where it is known. training: how many
        of the inputs the members were trained on, where that is of interest.
        """
        overlaps = ([] if training is None else [training]) + self.overlaps(ids, scored)
        reuse = first_reuse(overlaps)
        known = {overlap.use for overlap in overlaps if overlap.by == "ids" and not overlap.chance}  # where ids are enough
        needs_likeness = self._needs_likeness
        notes = [inputs_differ(self.first_risks, stops.first_risk)] if needs_likeness else []
        notes += [*self.notes]
        notes += [overlap.note for overlap in overlaps if not (overlap.by == "scores" and overlap.use in known)]
        if self.kth_values is None:
            notes.append("The rule is of version 0.2, whose thresholds may equal scores that many inputs share: calibrate it again.")
        if self.rows is None:
            notes.append("The rule does not say which rows it was calibrated on, so these could not be compared with them.")
        if groups is not None and (unknown := int((~groups.any(axis=1)).sum())):
            answer = "their best class" if self.final else "all classes"
            advice = "; give their groups if they have any" if unknown == len(groups) else ""
            whom = f"{unknown} of the {len(groups)} inputs are of no group that calibration saw"
            notes.append(f"{whom}: they answer {answer} at the end{advice}.")
        if self.final and final_best is None:
            notes.append("The promise is about the ensemble's class at the last checkpoint, which is not known: the engine stopped before.")
        gate = self._gate
        return Decisions(
            stops.index,
            stops.sets,
            self.checkpoints,
            reuse,
            self.class_names,
            tuple(filter(None, notes)),
            self.draw,
            best=None if (stops.best < 0).any() else stops.best,
            block=None if gate is None else stops.block,
            block_names=None if gate is None else gate.block_names,
            groups=groups,
            group_names=self.group_names,
            first_risk=stops.first_risk,
            members=self.members,
            loss=None if self.final and final_best is None else getattr(self.rule, "loss", None),
            final_best=final_best,
            class_counts=self.class_counts if needs_likeness else None,
        )

    @property
    def _needs_likeness(self) -> bool:
        """Whether the promise is about new inputs that look like those of calibration, all together.

        With groups or classes each has its own promise, weights allow for a shift, and an adapted threshold follows one.
        """
        shifted = self.effective_size is not None or self.group_names is not None or self.adapted
        return not shifted and not getattr(self.rule, "class_conditional", False)

    @property
    def draw(self) -> tuple[int, int] | None:
        """`threshold_rank` of a rule whose promise is about labels."""
        return None if self.final else self.threshold_rank

    @property
    def threshold_rank(self) -> tuple[int, int] | None:
        """The number of calibration examples and the rank of the threshold among them; None unless one order statistic is the threshold."""
        rule = self.rule
        single = isinstance(self.policy, (RiskThreshold, StoppingThreshold, RunningThreshold)) and self.effective_size is None
        if self.adapted or not single or getattr(rule, "class_conditional", True) or getattr(rule, "target", None) is None:
            return None
        rank = quantile_rank(self.n, as_target(rule.target), as_delta(rule.delta))  # type: ignore[attr-defined]
        return (self.n, rank) if rank <= self.n else None

    @property
    def examples_needed(self) -> int:
        """The least number of calibration examples with which the rule could ever stop early; with class_conditional, of each class."""
        return self.rule.examples_needed(self.members)

    @property
    def never_stops(self) -> bool:
        """Whether no input can stop early.

        There were fewer examples than the rule needs (`examples_needed`), or no checkpoint before
        the last one passed the test of `accumulated`.
        """
        if isinstance(self.policy, CheckpointRisks):
            return self.policy.never_stops
        if isinstance(self.policy, ConditionalThresholds):
            early = self.policy.thresholds if self._gate is None else self.policy.thresholds[:, :-1]  # the last block never stops early
            return bool((early == self.policy.base.safest).all())
        if not self.shortage:
            return False
        ranks = getattr(self.policy, "ranks", None)
        if isinstance(ranks, tuple):  # classes with too few examples are in every set
            return sum(one.calibration.shape[-1] < self.examples_needed for one in ranks) > self.rule.max_set_size
        thresholds = np.asarray(getattr(self.policy, "thresholds", getattr(self.policy, "threshold", np.inf)))
        if not getattr(self.rule, "class_conditional", False) or thresholds.ndim == 0:
            return True
        always_kept = np.isinf(thresholds).sum(axis=-1)  # classes with too few examples are in every set
        return bool((always_kept > self.rule.max_set_size).all())

    def __repr__(self) -> str:
        rule, names = self.rule, self.group_names
        parts = [type(rule).__name__]
        for name in ("target", "max_loss", "delta"):
            if (level := getattr(rule, name, None)) is not None:
                parts.append(f"{name}={in_words(Fraction(level))}")
        parts += [name for name in ("class_conditional", "accumulated") if getattr(rule, name, False)]
        parts += [] if self._gate is None else [f"gate with {len(self._gate.ends)} blocks"]
        parts += [] if names is None else [f"{len(names)} groups"]
        parts += ["final answers"] if self.final else []
        parts += [f"schedule of {len(rule.checkpoints)} looks"] if isinstance(rule.checkpoints, Schedule) else []
        parts += [f"n={self.n}", f"members={self.members}", f"classes={self.classes}"]
        parts += ["never stops early"] if self.never_stops else []
        parts += [f"notes={self.notes}"] if self.notes else []
        return f"CalibratedRule({', '.join(parts)})"

    @property
    def knows_ids(self) -> bool:
        """Whether the ids of inputs can show that the rule was tuned or calibrated on them."""
        return any(rows is not None and rows.ids is not None for rows in (self._tuned, self.rows))

    @cached_property
    def _tuned(self) -> TunedRows | None:
        return self.rule.tuned

    def overlaps(self, ids: ArrayLike | None, scored: RowScores | None = None) -> list[Overlap]:
        """How many inputs, by their ids and by their scores, are among those that the rule was tuned or calibrated on."""
        used = (("tuning", self._tuned), ("calibration", self.rows))
        return [overlap for use, rows in used if rows is not None for overlap in rows.overlaps(use, ids, scored)]

    def saw(self, scores_or_log_confidence: ScoresLike, labels: ArrayLike | None = None, times: Sequence[float] | None = None) -> bool:
        """Whether these are exactly the rows that the rule was calibrated on, in any order."""
        data = as_scores(scores_or_log_confidence, labels, times, self.checkpoints)
        marks = mark_rows(data.log_confidence, columns_of(self.checkpoints, data.times))
        return data_fingerprint(marks, labels_of(data)) == self.fingerprint

    def stream(self, number: int | None = None, *, group: ArrayLike | None = None) -> "Session":
        """Watch one input, checkpoint by checkpoint.

        `group` is the input's group, or (G,) booleans where groups overlap; an input of no known group answers all classes at the end.
        The streams of this rule are numbered 0, 1, 2 and so on, as they are opened, unless a
        `number` is given; monitors count in this order. A given number matters to randomised
        merging too: the stream then has the random number of input `number` of a batch
        (`decide(first=0)`). Without it the random number is fresh.
        """
        return Session(self, number, group)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the rule to one file: a readable header and plain arrays. The file appears whole or not at all."""
        sizes = {"calibration_examples": self.n, "members": self.members, "classes": self.classes}
        write_rule_file(path, self, {"guarantee": self.guarantee, **sizes, "data_fingerprint": self.fingerprint})


def load_rule(path: str | PathLike[str]) -> CalibratedRule:
    """Read a calibrated rule. What is not a whole and unaltered rule file of a known format is refused with a sentence."""
    return read_rule_file(path, CalibratedRule, try_out)


def try_out(calibrated: CalibratedRule) -> CalibratedRule:
    """Run one input through the first and the last checkpoint, so that a forged rule fails here and not in the middle of later work."""
    shape = (1, calibrated.members, calibrated.classes)
    if min(shape) < 1 or calibrated.members * calibrated.classes > MOST_NUMBERS:
        raise ValueError(f"{calibrated.members} members and {calibrated.classes} classes")
    for index in (0, len(calibrated.checkpoints) - 1):
        verdict = calibrated.step(index, np.full(shape, -math.log(calibrated.classes)), calibrated.start(1))
        if verdict.sets.shape != (1, calibrated.classes) or verdict.stop.shape != (1,):
            raise ValueError("arrays of other sizes than the rule")
    counts = calibrated.class_counts
    if counts is not None and (counts.shape != (calibrated.classes,) or counts.min() < 0):
        raise ValueError("counts of classes that no calibration has")
    if np.isnan(calibrated.thresholds).any():
        raise ValueError("a threshold that is no number")
    kth = calibrated.kth_values
    if kth is not None and kth.size and (kth.shape != calibrated.thresholds.shape or np.isnan(kth).any()):
        raise ValueError("order statistics other than those of the thresholds")
    policy, names = calibrated.policy, calibrated.group_names or ()
    if isinstance(policy, ConditionalThresholds):
        blocks = 1 if calibrated._gate is None else len(calibrated._gate.block_names)
        if policy.thresholds.shape[1] != blocks or len(set(names)) != len(names):
            raise ValueError("groups or blocks other than those of the rule")
    return calibrated


class Session:
    """One input under watch: a few numbers of state, pushed one checkpoint at a time.

    `number` is its place in the order in which the streams of the rule were opened.
    """

    __slots__ = ("_calibrated", "_closed", "_notify", "_skip", "_state", "decision", "index", "number")

    def __init__(
        self,
        calibrated: CalibratedRule,
        number: int | None = None,
        group: ArrayLike | None = None,
        notify: Callable[[Decision], object] | None = None,
        skip: Callable[[int], object] | None = None,
        fresh: bool | None = None,
    ) -> None:
        """fresh: whether random numbers are fresh although there is a number; by default they are if none is given."""
        inside = calibrated.find_groups(None if group is None else np.asarray(group)[None], 1)
        fresh = number is None if fresh is None else fresh
        if number is None:
            number, calibrated.opened[0] = calibrated.opened[0], calibrated.opened[0] + 1
        self._calibrated, self._notify, self._skip, self._closed = calibrated, notify, skip, False
        self.index, self.number = 0, as_count(number, "number", least=0)
        self._state = calibrated.start(1, None if fresh else self.number, inside)
        self.decision: Decision | None = None

    def push(self, log_confidence: ArrayLike) -> Decision | None:
        """Log-confidences (K, C) of the next checkpoint; the decision if the rule stops here, else None.

        With a `Schedule`, look after look: those of the members that have joined, (k, C), are enough.
        """
        if self.decision is not None:
            raise InputError(f"this input stopped at time {self.decision.time}: open a new session for the next input.")
        if self._closed:
            raise InputError("this session was closed: open a new session for the next input.")
        array = as_log_confidence(log_confidence, "(K, C)")
        calibrated = self._calibrated
        if array.shape != (calibrated.members, calibrated.classes):
            joined = members_at(calibrated.checkpoints, self.index)
            calibrated.check_sizes(calibrated.members if array.shape[0] == joined else array.shape[0], array.shape[1])
        verdict = calibrated.step(self.index, np.ascontiguousarray(array, dtype=np.float64)[None], self._state)
        if verdict.stop[0]:
            self.decision = calibrated.decision(self.index, verdict, self.number)
            if self._notify is not None:
                self._notify(self.decision)
        self._state = verdict.state
        self.index += 1
        return self.decision

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


def data_fingerprint(rows: Marks, labels: Integers) -> str:
    """A name for the calibration data, whatever the order of their rows."""
    marks = join_marks(np.column_stack([rows, labels.astype(np.uint64)]))
    return hashlib.sha256(np.sort(marks).astype("<u8").tobytes()).hexdigest()[:16]
