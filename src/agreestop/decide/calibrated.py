"""A calibrated rule: decide for batches, for streams, and for engines that run an ensemble checkpoint by checkpoint."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import Booleans, Floats, InputError, Integers

from .checks import CalibrationWarning, as_log_confidence
from .decisions import Decision, Decisions
from .evidence import Evidence, Index
from .examples import Examples, ScoresLike
from .policies import Policy, State, Verdict, run_checkpoints
from .rule import Rule, shortage
from .rule_files import KeptInFiles, read_rule_file, write_rule_file
from .tuned_rows import join_marks, mark_rows

BLOCK_NUMBERS = 1 << 17  # log-confidences that are judged together: a block stays in the cache


@dataclass(frozen=True, eq=False)
class CalibratedRule(KeptInFiles):
    """A rule, what calibration taught it (`policy`), and what it promises (`guarantee`). Make one with `rule.calibrate`.

    engine, ensemble_digest, class_names: those of the scores it was calibrated on, where they are known.
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
    _opened: list[int] = field(default_factory=lambda: [0], init=False, repr=False)  # the number of streams without a number of their own

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
        evidence = self.rule.evidence(index, log_confidence)
        return self.policy.judge(index, index == len(self.rule.checkpoints) - 1, evidence, state)

    def check_sizes(self, members: int, classes: int) -> None:
        """Refuse another number of members or classes than calibrated with."""
        for name, given, needed in (("members", members, self.members), ("classes", classes, self.classes)):
            if given != needed:
                raise InputError(f"log_confidence has {given} {name}, but the rule was calibrated with {needed}: give the same ensemble.")

    def check_source(self, engine: str = "", ensemble_digest: str = "", any_engine: bool = False, any_members: bool = False) -> None:
        """Refuse scores of another engine or ensemble than calibrated with. An empty string is an unknown one and is not refused.

        On another engine a borderline spike may differ, and the promise is about the scores of one engine and one ensemble.
        """
        if not any_engine and self.engine and engine and engine != self.engine:
            raise InputError(
                f"the rule was calibrated on scores of the {self.engine} engine, and these are of the {engine} one: "
                f"use {self.engine}, calibrate again, or allow it (any_engine=True, --any-engine)."
            )
        if not any_members and self.ensemble_digest and ensemble_digest and ensemble_digest != self.ensemble_digest:
            raise InputError(
                f"the rule was calibrated on scores of the ensemble {self.ensemble_digest[:12]}, and these are of {ensemble_digest[:12]}: "
                "use the same members, calibrate again, or allow it (any_members=True, --any-members)."
            )

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
        data = Examples.of(scores_or_log_confidence, times=times)
        self.check_source(data.engine, data.ensemble_digest, any_engine, any_members)
        array = data.log_confidence
        n, _, members, classes = array.shape
        self.check_sizes(members, classes)
        columns = data.columns(self.checkpoints)
        stops, sets = np.empty(n, dtype=np.int64), np.empty((n, classes), dtype=bool)
        tuned = self.rule.tuned
        by_marks = tuned is not None and not tuned.knows(data.ids)
        marks = np.empty(n if by_marks else 0, dtype=np.uint64)
        rows = max(1, BLOCK_NUMBERS // (members * classes))
        for begin in range(0, n, rows):
            block = slice(begin, min(begin + rows, n))
            stops[block], sets[block] = self._decide_block(array[block], columns, begin)
            if by_marks:
                marks[block] = mark_rows(array[block], columns)
        reuse = tuned.reuse(marks) if tuned is not None and by_marks else self.reuse_of(data.ids)
        return Decisions(stops, sets, self.checkpoints, reuse, self.class_names)

    def _decide_block(self, block: NDArray[Any], columns: list[int], first: int) -> tuple[Integers, Booleans]:
        def judge(index: int, active: Integers, state: State) -> Verdict:
            values = block[:, columns[index]] if len(active) == len(block) else block[active, columns[index]]
            return self.step(index, np.ascontiguousarray(values, dtype=np.float64), state)

        return run_checkpoints(judge, self.start(len(block), first), len(columns), self.classes)

    def reuse_of(self, ids: ArrayLike | None) -> str:
        """A sentence if the rule was tuned on inputs with these ids, else an empty string; also if either side has no ids."""
        return "" if self.rule.tuned is None else self.rule.tuned.reuse_of(ids)

    def saw(self, scores_or_log_confidence: ScoresLike, labels: ArrayLike | None = None, times: Sequence[float] | None = None) -> bool:
        """Whether these are exactly the rows that the rule was calibrated on, in any order."""
        data = Examples.of(scores_or_log_confidence, labels, times)
        return _fingerprint(data, data.columns(self.checkpoints)) == self.fingerprint

    def stream(self, number: int | None = None) -> Session:
        """Watch one input, checkpoint by checkpoint.

        `number` matters only to randomised merging: it picks the uniform number that input `number` of a batch would get. Without it,
        the streams of this rule are numbered 0, 1, 2 and so on.
        """
        if number is None:
            number = self._opened[0]
            self._opened[0] += 1
        return Session(self, number)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the rule to one file: a readable header and plain arrays. The file appears whole or not at all."""
        sizes = {"calibration_examples": self.n, "members": self.members, "classes": self.classes}
        write_rule_file(path, self, {"guarantee": self.guarantee, **sizes, "data_fingerprint": self.fingerprint})


def load_rule(path: str | PathLike[str]) -> CalibratedRule:
    """Read a calibrated rule. What is not a whole and unaltered rule file of a known format is refused with a sentence."""
    return read_rule_file(path, CalibratedRule)


class Session:
    """One input under watch: a few numbers of state, pushed one checkpoint at a time."""

    __slots__ = ("_calibrated", "_state", "decision", "index", "number")

    def __init__(self, calibrated: CalibratedRule, number: int = 0) -> None:
        self._calibrated = calibrated
        self._state = calibrated.start(1, number)
        self.index, self.number = 0, number
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


def gather_evidence(rule: Rule, array: NDArray[Any], columns: list[int]) -> Evidence:
    """The rule's evidence (n, M, ...) of inputs (n, ..., K, C), one checkpoint after another."""
    return Evidence.stack(
        [rule.evidence(index, np.ascontiguousarray(array[:, column], dtype=np.float64)) for index, column in enumerate(columns)]
    )


class Uncalibrated:
    """The verbs of every rule before calibration; rules build on it and change nothing of it."""

    def calibrate(
        self, scores_or_log_confidence: ScoresLike, labels: ArrayLike | None = None, times: Sequence[float] | None = None
    ) -> CalibratedRule:
        """Calibrate on a `Scores` with labels, or on log-confidences (n, M, K, C) with labels (n,): data that were used for nothing else.

        A `Scores`, or an array with `times`, may have more checkpoints than the rule; it is cut to the rule's. Warns if n is too small
        for the rule ever to exclude a label. The rule keeps the names of the engine, the ensemble and the classes, where a `Scores`
        has them.
        """
        return _calibrate(cast(Rule, self), Examples.of(scores_or_log_confidence, labels, times))

    def decide(self, *scores: object, **options: object) -> NoReturn:
        """Refused: only a calibrated rule decides."""
        self._refuse("decide on")

    def save(self, path: str | PathLike[str]) -> NoReturn:
        """Refused: only a calibrated rule can be kept in a file."""
        self._refuse("save")

    def stream(self, number: int | None = None) -> NoReturn:
        """Refused: only a calibrated rule decides."""
        self._refuse("stream from")

    def _refuse(self, verb: str) -> NoReturn:
        raise InputError(
            f"this {type(self).__name__} is not calibrated yet: call calibrate(log_confidence, labels), then {verb} what it returns."
        )


def _calibrate(rule: Rule, data: Examples) -> CalibratedRule:
    n, _, members, classes = data.log_confidence.shape
    labels, columns = data.truth, data.columns(rule.checkpoints)
    data.refuse_tuned(rule.tuned, columns, "calibration")
    evidence = gather_evidence(rule, data.log_confidence, columns)
    if sentence := shortage(rule, labels, members, classes):
        warnings.warn(sentence, CalibrationWarning, stacklevel=3)
    return CalibratedRule(
        rule=rule,
        policy=rule.fit(evidence, labels, classes),
        n=n,
        members=members,
        classes=classes,
        guarantee=rule.promise(),
        shortage=sentence,
        fingerprint=_fingerprint(data, columns),
        engine=data.engine,
        ensemble_digest=data.ensemble_digest,
        class_names=data.class_names,
    )


def _fingerprint(data: Examples, columns: list[int]) -> str:
    """A name for the calibration data, whatever the order of their rows."""
    marks = join_marks(np.column_stack([mark_rows(data.log_confidence, columns), data.truth.astype(np.uint64)]))
    return hashlib.sha256(np.sort(marks).astype("<u8").tobytes()).hexdigest()[:16]
