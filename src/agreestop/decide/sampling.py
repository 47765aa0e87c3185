"""A language model sampled until a rule of open answers stops.

Samples count in the order in which they were requested. `ask` is called again as long as there is
no decision, at most T times, T the last checkpoint of the rule. Where it returns several samples at
once, those after the stop change nothing, but they are paid for.
"""

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from agreestop.common import InputError, is_number
from agreestop.common.errors import quoted

from .calibrated import CalibratedRule, Session
from .decisions import Decision

LATE = "ask did not return before the timeout: give more seconds, or ask for less"


def sample_until(
    rule: CalibratedRule | Session,
    ask: Callable[[], Any],
    *,
    number: int | None = None,
    timeout: float | None = None,
) -> Any:
    """Sample a language model until the rule stops.

    Parameters
    ----------
    rule : CalibratedRule or Session
        A rule calibrated on `Answers`, or a session of it, to go on where an error ended a call.
    ask : callable
        It samples once and returns the answer, a string; or ``(answer, cost)``, or ``(answer, cost,
        weight)``, where calibration had these; or a list of them, in the order of request. With a
        coroutine function, `sample_until` returns an awaitable.
    number : int, optional
        As in `CalibratedRule.stream`.
    timeout : float, optional
        Seconds for the whole question; after that, TimeoutError is raised. A function that is not
        a coroutine then runs in a thread, which is left behind if it does not return in time.

    Returns
    -------
    Decision, or an awaitable of one
        `time` is the number of samples that the decision used, and `cost` what all requested
        samples cost: the sum of their costs, or their number where these are not known.

    Raises
    ------
    Exception
        What `ask` raises, or TimeoutError. Its attribute `session` holds the samples so far
        (``error.session.history.answers``), and ``sample_until(error.session, ask)`` goes on.
        A monitor must know of a question that is given up:
        ``monitor.skip(session.number, session.close())``.

    Examples
    --------
    >>> import numpy as np, agreestop as ag
    >>> rng = np.random.default_rng(0)
    >>> samples = [rng.choice(["a", "b"], 9, p=(q, 1 - q)).tolist() for q in rng.random(200)]
    >>> rule = ag.AgreeStop(0.9, range(1, 10), 1).calibrate(ag.Answers(samples), "final")
    >>> ag.sample_until(rule, lambda: "18").names
    ('18',)
    """
    session = rule if isinstance(rule, Session) else rule.stream(number)
    if session.history is None:
        raise InputError("the rule does not read open answers: calibrate it on ag.Answers(...).")
    if not callable(ask):
        raise InputError(
            f"ask is {quoted(ask)}: give a function that samples the model once and returns its "
            "answer."
        )
    if isinstance(rule, Session) and number is not None:
        raise InputError("number is given with a session, which has its own: leave it out.")
    if timeout is not None and (not is_number(timeout) or timeout <= 0):
        raise InputError(f"timeout is {timeout!r:.80}: give seconds above 0.")
    run = _Run(session, None if timeout is None else time.monotonic() + timeout)
    call = getattr(ask, "__call__", None)  # noqa: B004  an object may have a coroutine as a method
    if inspect.iscoroutinefunction(ask) or inspect.iscoroutinefunction(call):
        return run.finish_later(ask)
    return run.finish(ask)


class _Run:
    """One question: its session and its deadline."""

    def __init__(self, session: Session, deadline: float | None) -> None:
        self.session, self.deadline = session, deadline

    def finish(self, ask: Callable[[], Any]) -> Decision:
        """Ask until there is a decision."""
        try:
            while self.session.decision is None:
                reply = ask() if self.deadline is None else _in_thread(ask, self._left())
                if inspect.isawaitable(reply):
                    raise InputError("ask returned an awaitable: give a coroutine function.")
                self._take(reply)
        except BaseException as error:
            self._leave(error)
            raise
        return self._decision()

    async def finish_later(self, ask: Callable[[], Awaitable[Any]]) -> Decision:
        """The same with a coroutine function."""
        try:
            while self.session.decision is None:
                left = None if self.deadline is None else self._left()
                self._take(await _within(ask, left))
        except BaseException as error:
            self._leave(error)
            raise
        return self._decision()

    def _left(self) -> float:
        assert self.deadline is not None
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("there was no decision before the timeout")
        return left

    def _take(self, reply: Any) -> None:
        """Push one sample or several; those after the stop are only paid for."""
        replies = reply if isinstance(reply, list) else [reply]
        if not replies:
            raise InputError("ask returned an empty list: return at least one answer.")
        for one in replies:
            answer, cost, weight = one, None, None
            if isinstance(one, tuple):
                if not 1 <= len(one) <= 3:
                    raise InputError("ask returned a tuple: give (answer, cost[, weight]).")
                answer, cost, weight = (*one, None, None)[:3]
            if self.session.decision is None:
                self.session.push(answer, cost=cost, weight=weight)
            self.session.history.paid += 1.0 if cost is None else float(cost)

    def _decision(self) -> Decision:
        assert self.session.decision is not None
        return replace(self.session.decision, cost=self.session.history.paid)

    def _leave(self, error: BaseException) -> None:
        """Nothing is lost: the error holds the session."""
        try:
            error.session = self.session  # type: ignore[attr-defined]
        except AttributeError:  # of a class with slots
            error.add_note(f"samples so far: {self.session.history.answers}")


async def _within(ask: Callable[[], Awaitable[Any]], seconds: float | None) -> Any:
    """What `ask` returns within the given seconds, else TimeoutError. Its own errors pass."""
    own = None
    try:
        async with asyncio.timeout(seconds):
            try:
                return await ask()
            except TimeoutError as error:
                own = error
                raise
    except TimeoutError:
        if own is not None:
            raise
        raise TimeoutError(LATE) from None


def _in_thread(ask: Callable[[], Any], seconds: float) -> Any:
    """The same for a function that is not a coroutine: it runs in a thread."""
    found: list[Any] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            found.append(ask())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not found:
        raise TimeoutError(LATE)
    return found[0]
