"""Rules before and after calibration.

A `Rule` is settings: what it reads off an input, how labelled evidence becomes a policy, and what then holds. A `CalibratedRule` decides
for batches, for streams, and for engines that run an ensemble checkpoint by checkpoint.
"""

import hashlib
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from os import PathLike
from typing import Any, NoReturn, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import Booleans, Floats, InputError, Integers, as_count

from .checks import CalibrationWarning, as_checkpoints, as_log_confidence, as_max_set_size, columns_of
from .decisions import Decision, Decisions
from .levels import as_delta, as_target, in_words, quantile_rank
from .policies import Evidence, Policy, State, Verdict, run_checkpoints
from .ranking import Index
from .rule_files import KeptInFiles, read_rule_file, write_rule_file
from .score_files import ScoresLike, as_scores, at_times, labels_of
from .tuned_rows import Marks, Overlap, TunedRows, join_marks, mark_rows

MOST_NUMBERS = 1 << 22  # members times classes of a rule in a file
BLOCK_NUMBERS = 1 << 17  # log-confidences that are judged together: a block stays in the cache


class Rule(Protocol):
    """A rule before calibration. `evidence` is fixed before any calibration data are seen."""

    @property
    def checkpoints(self) -> Sequence[float]: ...

    @property
    def max_set_size(self) -> int: ...

    @property
    def tuned(self) -> TunedRows | None: ...

    def evidence(self, index: Index, log_confidence: Floats) -> Evidence:
        """What the rule reads off log-confidences (b, K, C) at one checkpoint, or at one checkpoint for each input."""
        ...

    def fit(self, evidence: Evidence, labels: Integers, classes: int) -> Policy:
        """The policy learned from calibration evidence of all checkpoints, (n, M, ...), with labels (n,)."""
        ...

    def promise(self) -> str:
        """What holds after calibration, in words."""
        ...

    def examples_needed(self, K: int = 1) -> int:
        """The least n with which K members could ever exclude a label or stop early."""
        ...


def groups_of(labels: Integers, classes: int, class_conditional: bool) -> list[Integers]:
    """The rows that share a quantile: all, or one group for each class."""
    if not class_conditional:
        return [np.arange(len(labels))]
    return [np.flatnonzero(labels == label) for label in range(classes)]


def coverage_promise(target: Fraction, class_conditional: bool, delta: Fraction | None) -> str:
    """The coverage guarantee in words."""
    whom = "for each true class, " if class_conditional else ""
    if delta is None:
        return (
            f"{whom}the answer holds the true class with probability at least {in_words(target)}, over the draw of the calibration "
            "examples and of a new example exchangeable with them."
        )
    return (
        f"{whom}with probability at least {in_words(1 - delta)} over the draw of the calibration examples, the answer holds the true class "
        f"of a new example with probability at least {in_words(target)}; calibration and new examples must be i.i.d."
    )


def shortage(rule: Rule, labels: Integers, members: int, classes: int) -> str:
    """One sentence if the rule can never exclude a label with these calibration examples, else an empty string."""
    needed = rule.examples_needed(members)
    if not getattr(rule, "class_conditional", False):
        if len(labels) >= needed:
            return ""
        return (
            f"With {len(labels)} calibration examples this rule can never exclude a label, so its sets stay full and nothing stops early: "
            f"it needs at least {needed}."
        )
    counts = np.bincount(labels, minlength=classes)
    rare = np.flatnonzero(counts < needed)
    if not len(rare):
        return ""
    names = ", ".join(f"class {label} has {counts[label]}" for label in rare[:5]) + (", …" if len(rare) > 5 else "")
    return (
        f"Class-conditional calibration needs at least {needed} examples of each class, but {names}: "
        "the rule can never exclude a label by what it knows of such a class."
    )


def warn_of(rule: Rule, labels: Integers, members: int, classes: int) -> str:
    """Warn of what makes the rule useless with these calibration examples; the sentence of `shortage`."""
    sentence, size = shortage(rule, labels, members, classes), rule.max_set_size
    if size >= classes:
        pointless = f"max_set_size is {size} and there are {classes} classes, so an answer may hold all of them and says nothing"
        warnings.warn(f"{pointless}: give at most {max(classes - 1, 1)}.", CalibrationWarning, stacklevel=3)
    if sentence:
        warnings.warn(sentence, CalibrationWarning, stacklevel=3)
    return sentence


def validate(rule: Any) -> None:
    """Check the settings that all rules share, and bring them to one form."""
    object.__setattr__(rule, "checkpoints", as_checkpoints(rule.checkpoints))
    object.__setattr__(rule, "max_set_size", as_max_set_size(rule.max_set_size))
    if hasattr(rule, "target"):
        object.__setattr__(rule, "target", as_target(rule.target))
    if hasattr(rule, "delta"):
        object.__setattr__(rule, "delta", as_delta(rule.delta))


@dataclass(frozen=True, eq=False, repr=False)
class CalibratedRule(KeptInFiles):
    """A rule, what calibration taught it (`policy`), and what it promises (`guarantee`). Make one with `rule.calibrate`.

    engine, ensemble_digest, class_names: those of the scores it was calibrated on, where they are known; rows: marks of their rows.
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
    opened: list[int] = field(default_factory=lambda: [0], init=False)  # the number of streams without a number of their own

    @property
    def checkpoints(self) -> tuple[float, ...]:
        return tuple(self.rule.checkpoints)

    def start(self, count: int, first: int = 0) -> State:
        """The state of `count` inputs before their first checkpoint; `first` is the number of the first of them."""
        return self.policy.start(count, self.classes, first)

    def step(self, index: Index, log_confidence: Floats, state: State) -> Verdict:
        """The verdict on log-confidences (b, K, C), float64, at one checkpoint, or at one checkpoint for each input, (b,).

        Every decision of a batch, a stream or an engine is made here.
        """
        evidence = read_evidence(self.rule, index, log_confidence)
        return self.policy.judge(index, index == len(self.rule.checkpoints) - 1, evidence, state)

    def check_sizes(self, members: int, classes: int) -> None:
        """Refuse another number of members or classes than calibrated with."""
        for name, given, needed in (("members", members, self.members), ("classes", classes, self.classes)):
            if given != needed:
                raise InputError(f"log_confidence has {given} {name}, but the rule was calibrated with {needed}: give the same ensemble.")

    def check_classes(self, names: Sequence[str] | None) -> None:
        """Refuse scores whose classes are others than calibrated with, or in another order. Unknown names are not refused."""
        if names is None or self.class_names is None or tuple(names) == self.class_names:
            return
        given, known = next(both for both in zip(names, self.class_names, strict=True) if both[0] != both[1])
        raise InputError(f"the scores have class {given!r} where the rule was calibrated with {known!r}: use its classes, in its order.")

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

    def decide(
        self,
        scores_or_log_confidence: ScoresLike,
        times: Sequence[float] | None = None,
        *,
        any_engine: bool = False,
        any_members: bool = False,
    ) -> Decisions:
        """Stop and answer for the inputs of a `Scores`, or for log-confidences (n, M, K, C).

        A `Scores`, or an array with `times`, may have more checkpoints than the rule; it is cut to the rule's. A `Scores` of another
        engine or of other members than calibrated with is refused, unless any_engine or any_members allows it.
        """
        data = as_scores(scores_or_log_confidence, None, times, self.checkpoints)
        self.check_source(data.engine, data.ensemble_digest, any_engine, any_members)
        array = data.log_confidence
        n, _, members, classes = array.shape
        self.check_sizes(members, classes)
        self.check_classes(data.classes)
        columns = columns_of(self.checkpoints, data.times)
        stops, sets = np.empty(n, dtype=np.int64), np.empty((n, classes), dtype=bool)
        rows = max(1, BLOCK_NUMBERS // (members * classes))
        for begin in range(0, n, rows):
            block = slice(begin, min(begin + rows, n))
            stops[block], sets[block] = self._decide_block(array[block], columns, begin)
        return self.decisions(stops, sets, data.ids, lambda: mark_rows(array, columns))

    def _decide_block(self, block: NDArray[Any], columns: list[int], first: int) -> tuple[Integers, Booleans]:
        def judge(index: int, active: Integers, state: State) -> Verdict:
            values = block[:, columns[index]] if len(active) == len(block) else block[active, columns[index]]
            return self.step(index, np.ascontiguousarray(values, dtype=np.float64), state)

        return run_checkpoints(judge, self.start(len(block), first), len(columns), self.classes)

    def decisions(self, stops: Integers, sets: Booleans, ids: ArrayLike | None, marks: Callable[[], Marks] | None = None) -> Decisions:
        """Stop indices (n,) and sets (n, C) as decisions; the inputs are compared with those that the rule was tuned or calibrated on."""
        overlaps = self.overlaps(ids, marks)
        reuse = next((overlap.reuse for overlap in overlaps if overlap.reuse), "")
        notes = [overlap.note for overlap in overlaps if overlap.note]
        if self.rows is None:
            notes.append("The rule does not say which rows it was calibrated on, so these could not be compared with them.")
        return Decisions(stops, sets, self.checkpoints, reuse, self.class_names, tuple(notes), self._draw)

    @property
    def _draw(self) -> tuple[int, int] | None:
        """The number of calibration examples and the rank of the threshold among them; None unless one order statistic is the threshold."""
        rule = self.rule
        if getattr(rule, "class_conditional", True) or getattr(rule, "calibration", "") == "bonferroni":
            return None
        rank = quantile_rank(self.n, as_target(rule.target), as_delta(rule.delta))  # type: ignore[attr-defined]
        return (self.n, rank) if rank <= self.n else None

    @property
    def examples_needed(self) -> int:
        """The least number of calibration examples with which the rule could ever stop early; with class_conditional, of each class."""
        return self.rule.examples_needed(self.members)

    @property
    def never_stops(self) -> bool:
        """Whether no input can stop early, because the rule was calibrated on fewer examples than it needs (`examples_needed`)."""
        if not self.shortage:
            return False
        thresholds = np.asarray(getattr(self.policy, "thresholds", getattr(self.policy, "threshold", np.inf)))
        if not getattr(self.rule, "class_conditional", False) or thresholds.ndim == 0:
            return True
        always_kept = np.isinf(thresholds).sum(axis=-1)  # classes with too few examples are in every set
        return bool((always_kept > self.rule.max_set_size).all())

    def __repr__(self) -> str:
        sizes = f"n={self.n}, members={self.members}, classes={self.classes}"
        return f"CalibratedRule({type(self.rule).__name__}, {sizes}{', never stops early' if self.never_stops else ''})"

    @property
    def knows_ids(self) -> bool:
        """Whether the ids of inputs can show that the rule was tuned or calibrated on them."""
        return any(rows is not None and rows.ids is not None for rows in (self.rule.tuned, self.rows))

    def overlaps(self, ids: ArrayLike | None, marks: Callable[[], Marks] | None = None) -> list[Overlap]:
        """How many inputs, by their ids or else by marks of their scores, are among those that the rule was tuned or calibrated on."""
        used = (("tuning", self.rule.tuned), ("calibration", self.rows))
        return [rows.overlap(use, ids, marks) for use, rows in used if rows is not None]

    def saw(self, scores_or_log_confidence: ScoresLike, labels: ArrayLike | None = None, times: Sequence[float] | None = None) -> bool:
        """Whether these are exactly the rows that the rule was calibrated on, in any order."""
        data = as_scores(scores_or_log_confidence, labels, times, self.checkpoints)
        marks = mark_rows(data.log_confidence, columns_of(self.checkpoints, data.times))
        return _fingerprint(marks, labels_of(data)) == self.fingerprint

    def stream(self, number: int | None = None) -> "Session":
        """Watch one input, checkpoint by checkpoint.

        `number` matters only to randomised merging: it picks the uniform number that input `number` of a batch would get. Without it,
        the streams of this rule are numbered 0, 1, 2 and so on.
        """
        return Session(self, number)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the rule to one file: a readable header and plain arrays. The file appears whole or not at all."""
        sizes = {"calibration_examples": self.n, "members": self.members, "classes": self.classes}
        write_rule_file(path, self, {"guarantee": self.guarantee, **sizes, "data_fingerprint": self.fingerprint})


def load_rule(path: str | PathLike[str]) -> CalibratedRule:
    """Read a calibrated rule. What is not a whole and unaltered rule file of a known format is refused with a sentence."""
    return read_rule_file(path, CalibratedRule, _try_out)


def _try_out(calibrated: CalibratedRule) -> None:
    """Run one input through the first and the last checkpoint, so that a forged rule fails here and not in the middle of later work."""
    shape = (1, calibrated.members, calibrated.classes)
    if min(shape) < 1 or calibrated.members * calibrated.classes > MOST_NUMBERS:
        raise ValueError(f"{calibrated.members} members and {calibrated.classes} classes")
    for index in (0, len(calibrated.checkpoints) - 1):
        verdict = calibrated.step(index, np.full(shape, -math.log(calibrated.classes)), calibrated.start(1))
        if verdict.sets.shape != (1, calibrated.classes) or verdict.stop.shape != (1,):
            raise ValueError("arrays of other sizes than the rule")


class Session:
    """One input under watch: a few numbers of state, pushed one checkpoint at a time."""

    __slots__ = ("_calibrated", "_state", "decision", "index", "number")

    def __init__(self, calibrated: CalibratedRule, number: int | None = None) -> None:
        if number is None:
            number, calibrated.opened[0] = calibrated.opened[0], calibrated.opened[0] + 1
        self._calibrated = calibrated
        self.index, self.number = 0, as_count(number, "number", least=0)
        self._state = calibrated.start(1, self.number)
        self.decision: Decision | None = None

    def push(self, log_confidence: ArrayLike) -> Decision | None:
        """Log-confidences (K, C) of the next checkpoint; the decision if the rule stops here, else None."""
        if self.decision is not None:
            raise InputError(f"this input stopped at time {self.decision.time}: open a new session for the next input.")
        array = as_log_confidence(log_confidence, "(K, C)")
        calibrated = self._calibrated
        if array.shape != (calibrated.members, calibrated.classes):
            calibrated.check_sizes(*array.shape)
        verdict = calibrated.step(self.index, np.ascontiguousarray(array, dtype=np.float64)[None], self._state)
        if verdict.stop[0]:
            self.decision = Decision.of(self.index, verdict.sets[0], calibrated.checkpoints, calibrated.class_names)
        self._state = verdict.state
        self.index += 1
        return self.decision


def gather_evidence(rule: Rule, array: NDArray[Any], columns: Sequence[int]) -> Evidence:
    """The rule's evidence (n, M, ...) of inputs (n, ..., K, C), one checkpoint after another."""
    inputs = (np.ascontiguousarray(array[:, column], dtype=np.float64) for column in columns)
    return Evidence.stack([read_evidence(rule, index, values) for index, values in enumerate(inputs)])


def read_evidence(rule: Rule, index: Index, log_confidence: Floats) -> Evidence:
    """What the rule reads off its inputs; nan is refused, because comparisons with it would silently drop classes."""
    evidence = rule.evidence(index, log_confidence)
    if np.isnan(evidence.values).any() or (evidence.log_risk is not None and np.isnan(evidence.log_risk).any()):
        raise InputError(f"the score or risk of this {type(rule).__name__} is nan for some inputs: check its constants.")
    return evidence


def _refused(verb: str) -> Callable[..., NoReturn]:
    """A method that only a calibrated rule has."""

    def refuse(rule: object, *arguments: object, **options: object) -> NoReturn:
        kind = type(rule).__name__
        raise InputError(f"this {kind} is not calibrated yet: call calibrate(log_confidence, labels), then {verb} what it returns.")

    return refuse


class Uncalibrated:
    """The verbs of every rule before calibration; rules build on it and change nothing of it."""

    decide, save, stream = _refused("decide on"), _refused("save"), _refused("stream from")

    def calibrate(
        self, scores_or_log_confidence: ScoresLike, labels: ArrayLike | None = None, times: Sequence[float] | None = None
    ) -> CalibratedRule:
        """Calibrate on a `Scores` with labels, or on log-confidences (n, M, K, C) with labels (n,): data that were used for nothing else.

        A `Scores`, or an array with `times`, may have more checkpoints than the rule; it is cut to the rule's. Warns if n is too small
        for the rule ever to exclude a label. The rule keeps the names of the engine, the ensemble and the classes, where a `Scores`
        has them.
        """
        rule = cast(Rule, self)
        data = at_times(as_scores(scores_or_log_confidence, labels, times, rule.checkpoints), rule.checkpoints)
        n, checkpoints, members, classes = data.log_confidence.shape
        truth = labels_of(data)
        rows = TunedRows.of(data.log_confidence, data.ids).cut(range(checkpoints), checkpoints)
        refuse_tuned(rule, data.ids, lambda: rows.rows, "calibration")
        evidence = gather_evidence(rule, data.log_confidence, range(checkpoints))
        sentence = warn_of(rule, truth, members, classes)
        policy, fingerprint = rule.fit(evidence, truth, classes), _fingerprint(rows.rows, truth)
        source = data.engine, data.ensemble_digest, data.classes, rows
        return CalibratedRule(rule, policy, n, members, classes, rule.promise(), sentence, fingerprint, *source)


def refuse_tuned(rule: Rule, ids: ArrayLike | None, marks: Callable[[], Marks], what: str) -> None:
    """Refuse rows, by their ids or by the marks of their scores, that the rule's score or risk was tuned on."""
    if rule.tuned is not None and (reuse := rule.tuned.overlap("tuning", ids, marks).reuse):
        raise InputError(f"{what}: {reuse}")


def _fingerprint(rows: Marks, labels: Integers) -> str:
    """A name for the calibration data, whatever the order of their rows."""
    marks = join_marks(np.column_stack([rows, labels.astype(np.uint64)]))
    return hashlib.sha256(np.sort(marks).astype("<u8").tobytes()).hexdigest()[:16]
