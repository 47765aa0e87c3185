"""One live input under a calibrated rule: a step goes in, and a decision comes out when
the rule stops.
"""

from typing import final

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import InputError
from agreestop.decide.calibrated import CalibratedRule, Session
from agreestop.decide.decisions import Decision

from .early_stopping import DEFAULTS, RunOptions, check_rule, checkpoint_steps
from .joining import JoiningLive, MemberGroups
from .prefilter import can_prefilter_on_cpu, prefilter_for
from .protocol import Engine


@final
class LiveSession:
    """One live input, an engine and a rule: push each step until there is a decision.

    A pause is a step without events. A push after the decision is refused. A stream that is over
    before there is a decision is answered with `end`; one that is given up is closed with `close`.
    `number` is the number of the input: members that are drawn for each input depend on it,
    monitors count in this order, and randomised merging draws from it, unless random numbers are to
    be `fresh`. Where it is None it counts up by itself, and random numbers are fresh.
    """

    def __init__(
        self,
        engine: Engine,
        calibrated: CalibratedRule,
        number: int | None = None,
        group: ArrayLike | None = None,
        fresh: bool | None = None,
        options: RunOptions = DEFAULTS,
    ) -> None:
        check_rule(calibrated, engine, options)
        self._calibrated = calibrated
        self._times = checkpoint_steps(calibrated, engine, None)
        self._session = Session(calibrated, number, group, fresh=fresh)
        self._members = MemberGroups(engine, calibrated.checkpoints)
        self._live = JoiningLive(self._members, self._session.number)
        self._prefilter = (
            prefilter_for(calibrated, engine.output) if can_prefilter_on_cpu() else None
        )
        self.time = 0

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
        session = self._session
        session.check_open()
        self._live.push(events, frame)
        self.time += 1
        self._live.check()  # after the count, since the members have made the step
        while self.decision is None and self._times[session.index] == self.time:
            self.judge_next()
        return self.decision

    def end(self) -> Decision:
        """The decision on a stream that is over: its last evidence stands for every
        checkpoint that is left.

        Scores of inputs with `lengths` are made in the same way. The time of the decision is that
        of the checkpoint at which the rule stops, which may lie after the end.
        """
        if self.time == 0:
            raise InputError("this stream ends before its first step: push one step at least.")
        if self.decision is None:
            self._calibrated.check_lengths(np.array([self.time]))
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
        session = self._session
        evidence = self._live.join(self._members.needed(session.index))
        assert evidence is not None
        evidence = evidence[: self._members.members[session.index]]
        if (
            self._prefilter is not None
            and not self._prefilter.may_stop(evidence[None, None], np.array([session.index]))[0, 0]
        ):
            session.index += 1
        else:
            session.push(self._calibrated.rule.read_outputs(evidence))
