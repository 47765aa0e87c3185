"""One live input under a calibrated rule: a step goes in, and a decision comes out when
the rule stops. With a `Schedule` members join, and replay the steps before.
"""

from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import InputError, Integers, as_array, check_finite
from agreestop.decide.calibrated import CalibratedRule, Session
from agreestop.decide.decisions import Decision

from .early_stopping import (
    DEFAULTS,
    MemberGroups,
    RunOptions,
    check_rule,
    check_whole_inputs,
    checkpoint_steps,
)
from .prefilter import Prefilter, can_prefilter_on_cpu, prefilter_for
from .protocol import Engine, FilteredLive, FilteringEngine, Live


@dataclass(frozen=True, eq=False)
class LivePlan:
    """What the live inputs of an engine under a rule have in common.

    times      (M,) the checkpoints in steps
    prefilter  of the rule, where there is one
    filtered   the engine, if its live steps include the prefilter
    """

    engine: Engine
    calibrated: CalibratedRule
    times: Integers
    prefilter: Prefilter | None
    filtered: FilteringEngine | None

    @classmethod
    def of(cls, engine: Engine, calibrated: CalibratedRule) -> Self:
        """The plan, for members as the rule needs them."""
        times = checkpoint_steps(calibrated, engine, None)
        prefilter = prefilter_for(calibrated, engine.output) if can_prefilter_on_cpu() else None
        if prefilter is None or calibrated.members_join or not isinstance(engine, FilteringEngine):
            return cls(engine, calibrated, times, prefilter, None)
        return cls(engine, calibrated, times, prefilter, engine)

    def begin(self, number: int) -> FilteredLive:
        """Start on the input with this number."""
        if self.filtered is not None and self.prefilter is not None:
            return self.filtered.live_filtered(self.prefilter, self.times)
        return JoiningLive(
            MemberGroups(self.engine, self.calibrated.judged_members), self.times, number
        )


@final
class LiveSession:
    """One live input, an engine and a rule: push each step until there is a decision.

    A pause is a step without events. A push after the decision is refused. A stream that is over
    before there is a decision is answered with `end`; one that is given up is closed with `close`.
    `number` is the number of the input: members that are drawn for each input depend on it,
    monitors count in this order, and randomised merging draws from it, unless random numbers are to
    be `fresh`. Where it is None it counts up by itself, and random numbers are fresh. A session
    belongs to one thread at a time.
    """

    def __init__(
        self,
        engine: Engine,
        calibrated: CalibratedRule,
        number: int | None = None,
        group: ArrayLike | None = None,
        fresh: bool | None = None,
        options: RunOptions = DEFAULTS,
        plan: LivePlan | None = None,
    ) -> None:
        """plan: of this engine and this rule, where it is known."""
        check_rule(calibrated, engine, options)
        check_whole_inputs(calibrated)
        self._plan = LivePlan.of(engine, calibrated) if plan is None else plan
        self._session = Session(calibrated, number, group, fresh=fresh)
        self._live = self._plan.begin(self._session.number)

    @property
    def time(self) -> int:
        """The number of steps that were pushed."""
        return self._live.time

    @property
    def decision(self) -> Decision | None:
        """The decision, once there is one."""
        return self._session.decision

    @property
    def by_depth(self) -> tuple[Decision | None, ...]:
        """With a tree and depth="each": the first answer at each depth, None before it."""
        return self._session.by_depth

    @property
    def number(self) -> int:
        """The place of this input in the order in which the streams of the rule were opened."""
        return self._session.number

    @property
    def first_risk(self) -> float | None:
        """The risk, or the least score, at the first checkpoint; None before it."""
        return self._session.first_risk

    def close(self) -> float | None:
        """Give up an input that gets no decision. Returns `first_risk`, for a monitor:

        monitor.skip(session.number, session.close())
        """
        return self._session.close()

    def push(
        self, events: ArrayLike | None = None, *, frame: ArrayLike | None = None
    ) -> Decision | None:
        """Run the next step and return the decision if the rule stops here, else None.

        events: flat indices of the active inputs. frame: instead, one dense step of
        booleans or numbers.
        """
        session, live = self._session, self._live
        session.check_open()
        if live.push(events, frame):
            self._judge(live.evidence, known=self._plan.filtered is not None)
            while session.decision is None and self._plan.times[live.index] == live.time:
                self.judge_next()
        return session.decision

    def end(self) -> Decision:
        """The decision on a stream that is over: its last evidence stands for every
        checkpoint that is left.

        Scores of inputs with `lengths` are made in the same way. The time of the decision is that
        of the checkpoint at which the rule stops, which may lie after the end.
        """
        if self.time == 0:
            raise InputError("this stream ends before its first step: push one step at least.")
        if self.decision is None:
            self._session.check_open()
            self._plan.calibrated.check_lengths(np.array([self.time]))
        return self.last_decision()

    def last_decision(self) -> Decision:
        """The same without a warning if the promise does not cover streams that end early."""
        while self.decision is None:
            self.judge_next()
        return self.decision

    def judge_next(self) -> None:
        """Judge the evidence so far at the next checkpoint of the rule, with the members
        that it asks for.
        """
        self._judge(self._live.evidence)

    def _judge(self, evidence: NDArray[Any], known: bool = False) -> None:
        """Judge evidence (K, C). known: the prefilter has seen it."""
        session, live, plan = self._session, self._live, self._plan
        if known or plan.prefilter is None or plan.prefilter.may_stop_at(evidence, live.index):
            session.index = live.index
            session.judge(plan.calibrated.rule.read_outputs(evidence))
        live.index += session.decision is None


class JoiningLive:
    """One live input; groups of members join it and replay what was pushed.

    See `protocol.FilteredLive`. Every step that is a checkpoint must be judged.
    """

    def __init__(self, groups: MemberGroups, times: Integers, number: int) -> None:
        self._groups, self._times, self._number = groups, times, number
        self._live: list[Live] = []
        # what was pushed, while groups are left that may join
        self._steps: list[tuple[ArrayLike | None, ArrayLike | None]] = []
        self._evidence: list[NDArray[Any]] = []
        self._failed: InputError | None = None
        self.time = self.index = 0
        self._join(groups.needed(0))

    def push(self, events: ArrayLike | None, frame: ArrayLike | None) -> bool:
        if self._failed is not None:
            raise self._failed
        self._evidence = [live.push(events, frame=frame) for live in self._live]
        if len(self._live) < len(self._groups):
            self._steps.append((_copied(events), _copied(frame)))
        self.time += 1
        if not all(map(_is_finite, self._evidence)):
            # the members have made the step, and cannot take it back
            self._failed = InputError(
                f"the output of the members is not finite at step {self.time}, so this input is "
                "not run further: check the members and this step, and open a new session."
            )
            raise self._failed
        return bool(self._times[self.index] == self.time)

    @property
    def evidence(self) -> NDArray[Any]:
        """(K, C) of the members that checkpoint `index` asks for, of which new ones replay the
        input.
        """
        if self._failed is not None:
            raise self._failed
        groups = self._groups
        count = groups.needed(self.index)
        self._join(count)
        found = self._evidence[0] if count == 1 else np.concatenate(self._evidence[:count])
        return found[: groups.members[self.index]]

    def _join(self, count: int) -> None:
        while len(self._live) < count:
            live = self._groups.engine(len(self._live)).live(self._number)
            for events, frame in self._steps:
                evidence = live.push(events, frame=frame)
                if evidence.dtype.kind == "f":
                    check_finite(evidence, "the output of the members")
            if self._steps:
                self._evidence.append(evidence)
            self._live.append(live)
        if len(self._live) == len(self._groups):
            self._steps.clear()


def _copied(step: ArrayLike | None) -> NDArray[Any] | None:
    return None if step is None else as_array(step, "the step").copy()


def _is_finite(evidence: NDArray[Any]) -> bool:
    """Whether the evidence (K, C) of a step is finite, as counts always are."""
    return evidence.dtype.kind != "f" or bool(np.isfinite(evidence).all())
