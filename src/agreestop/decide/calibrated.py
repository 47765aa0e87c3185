"""A calibrated rule: decide for batches, for streams, and for engines that run an ensemble checkpoint by checkpoint."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common.arrays import Booleans, Floats, Integers
from agreestop.common.errors import InputError

from .checks import CalibrationWarning, as_labels, as_log_confidence, columns_of
from .decisions import Decision, Decisions
from .evidence import Evidence, Index
from .policies import Policy, State, Verdict, run_checkpoints
from .rule import Rule, shortage
from .tuned_rows import TunedRows, join_marks, mark_rows

BLOCK_NUMBERS = 1 << 17  # numbers of log-confidence looked at together: a block stays in the cache


@dataclass(frozen=True, eq=False)
class CalibratedRule:
    """A rule, what calibration taught it (`policy`), and what it promises (`guarantee`). Make one with `rule.calibrate`.

    engine: what computed the scores it was calibrated on, where that is known.
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

    @property
    def checkpoints(self) -> tuple[float, ...]:
        return tuple(self.rule.checkpoints)

    def start(self, count: int, first: int = 0) -> State:
        """State of `count` inputs before their first checkpoint; `first` is the number of the first of them."""
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

    def check_engine(self, engine: str) -> None:
        """Refuse scores of another engine than calibrated with: a borderline spike may differ, and the promise is for the same one."""
        if self.engine and engine and engine != self.engine:
            raise InputError(
                f"the rule was calibrated on scores of the {self.engine} engine, and these are of the {engine} one: "
                f"use {self.engine}, calibrate again, or allow it (any_engine=True, --any-engine)."
            )

    def decide(self, log_confidence: ArrayLike, times: Sequence[float] | None = None) -> Decisions:
        """Stop and answer for inputs (n, M, K, C); with `times` a longer array is cut to the rule's checkpoints."""
        array = as_log_confidence(log_confidence)
        n, available, members, classes = array.shape
        self.check_sizes(members, classes)
        columns = columns_of(self.checkpoints, available, times)
        index, sets = np.empty(n, dtype=np.int64), np.empty((n, classes), dtype=bool)
        tuned = self.rule.tuned
        marks = np.empty(n if tuned else 0, dtype=np.uint64)
        rows = max(1, BLOCK_NUMBERS // (members * classes))
        for begin in range(0, n, rows):
            block = slice(begin, min(begin + rows, n))
            index[block], sets[block] = self._decide_block(array[block], columns, begin)
            if tuned:
                marks[block] = mark_rows(array[block], columns)
        reuse = tuned.reuse(marks) if tuned else ""
        return Decisions(stop_index=index, sets=sets, checkpoints=self.checkpoints, reuse=reuse)

    def _decide_block(self, block: NDArray[Any], columns: list[int], first: int) -> tuple[Integers, Booleans]:
        def judge(index: int, active: Integers, state: State) -> Verdict:
            values = block[:, columns[index]] if len(active) == len(block) else block[active, columns[index]]
            return self.step(index, np.ascontiguousarray(values, dtype=np.float64), state)

        return run_checkpoints(judge, self.start(len(block), first), len(columns), self.classes)

    def saw(self, log_confidence: ArrayLike, labels: ArrayLike, times: Sequence[float] | None = None) -> bool:
        """Whether these are the very rows that the rule was calibrated on, in any order."""
        array = as_log_confidence(log_confidence)
        columns = columns_of(self.checkpoints, array.shape[1], times)
        return _fingerprint(array, as_labels(labels, len(array), array.shape[3]), columns) == self.fingerprint

    def stream(self, number: int = 0) -> Session:
        """Watch one input, checkpoint by checkpoint.

        `number` matters to randomised merging alone: it picks the uniform number that input `number` of a batch would get.
        """
        return Session(self, number)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the rule to one file: a readable header and plain arrays. The file appears whole or not at all."""
        from .rule_files import save_rule

        save_rule(self, path)


class Session:
    """One input under watch: a few numbers of state, pushed one checkpoint at a time."""

    __slots__ = ("_calibrated", "_state", "decision", "index")

    def __init__(self, calibrated: CalibratedRule, number: int = 0) -> None:
        self._calibrated = calibrated
        self._state = calibrated.start(1, number)
        self.index = 0
        self.decision: Decision | None = None

    def push(self, log_confidence: ArrayLike) -> Decision | None:
        """Log-confidences (K, C) of the next checkpoint; the decision if the rule stops here, else None."""
        if self.decision is not None:
            raise InputError(f"this input stopped at time {self.decision.time}: open a new session for the next input.")
        array = as_log_confidence(log_confidence, "(K, C)")
        calibrated = self._calibrated
        if array.shape != (calibrated.members, calibrated.classes):
            calibrated.check_sizes(*array.shape)
        values = np.ascontiguousarray(array, dtype=np.float64)[None]
        verdict = calibrated.step(self.index, values, self._state)
        if verdict.stop[0]:
            classes = tuple(np.flatnonzero(verdict.sets[0]).tolist())
            self.decision = Decision(time=calibrated.checkpoints[self.index], index=self.index, classes=classes)
        self._state = verdict.state
        self.index += 1
        return self.decision


def gather_evidence(rule: Rule, array: NDArray[Any], columns: list[int]) -> Evidence:
    """The rule's evidence (n, M, ...) of inputs (n, ..., K, C), one checkpoint after another."""
    return Evidence.stack(
        [rule.evidence(index, np.ascontiguousarray(array[:, column], dtype=np.float64)) for index, column in enumerate(columns)]
    )


def refuse_tuned(tuned: TunedRows, array: NDArray[Any], columns: list[int], what: str) -> None:
    """Refuse rows that a score or risk was tuned on."""
    if reuse := tuned.reuse(mark_rows(array, columns)):
        raise InputError(f"{what}: {reuse}")


class Uncalibrated:
    """The verbs of every rule before calibration; rules build on it and change nothing of it."""

    def calibrate(self, log_confidence: ArrayLike, labels: ArrayLike, times: Sequence[float] | None = None) -> CalibratedRule:
        """Calibrate on log-confidences (n, M, K, C) with labels (n,), data that were used for nothing else.

        With `times` a longer array is cut to the rule's checkpoints. Warns if n is too small for the rule ever to exclude a label.
        """
        return _calibrate(cast(Rule, self), log_confidence, labels, times)

    def decide(self, log_confidence: ArrayLike, times: Sequence[float] | None = None) -> NoReturn:
        """Refused: only a calibrated rule decides."""
        raise InputError(
            f"this {type(self).__name__} is not calibrated yet: call calibrate(log_confidence, labels), then decide on what it returns."
        )

    def save(self, path: str | PathLike[str]) -> NoReturn:
        """Refused: only a calibrated rule can be kept in a file."""
        raise InputError(
            f"this {type(self).__name__} is not calibrated yet: call calibrate(log_confidence, labels), then save what it returns."
        )

    def stream(self, number: int = 0) -> NoReturn:
        """Refused: only a calibrated rule decides."""
        raise InputError(
            f"this {type(self).__name__} is not calibrated yet: call calibrate(log_confidence, labels), then stream from what it returns."
        )


def _calibrate(rule: Rule, log_confidence: ArrayLike, labels: ArrayLike, times: Sequence[float] | None) -> CalibratedRule:
    array = as_log_confidence(log_confidence)
    n, available, members, classes = array.shape
    known = as_labels(labels, n, classes)
    columns = columns_of(rule.checkpoints, available, times)
    if rule.tuned is not None:
        refuse_tuned(rule.tuned, array, columns, "calibration")
    evidence = gather_evidence(rule, array, columns)
    sentence = shortage(rule, known, members, classes)
    if sentence:
        warnings.warn(sentence, CalibrationWarning, stacklevel=3)
    policy = rule.fit(evidence, known, classes)
    return CalibratedRule(
        rule=rule,
        policy=policy,
        n=n,
        members=members,
        classes=classes,
        guarantee=rule.promise(),
        shortage=sentence,
        fingerprint=_fingerprint(array, known, columns),
    )


def _fingerprint(array: NDArray[Any], labels: Integers, columns: list[int]) -> str:
    """A name for the calibration data, whatever the order of their rows."""
    marks = join_marks(np.column_stack([mark_rows(array, columns), labels.astype(np.uint64)]))
    return hashlib.sha256(np.sort(marks).astype("<u8").tobytes()).hexdigest()[:16]
