"""Drive an engine and a calibrated rule together, so that a decision made early ends the work.

    compute a chunk of steps  →  judge every checkpoint in it  →  drop the inputs that have stopped  →  the next chunk

Decisions inside a chunk are exact: they are those that the rule makes on scores computed to the end. A chunk that a stop falls into is
computed whole, so work is saved by the chunk. One live input goes through the same judgement, step by step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol, TypeVar, final, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common.arrays import Booleans, Integers
from agreestop.common.errors import InputError
from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.confidence import log_softmax
from agreestop.decide.decisions import Decision, Decisions

from .prefilter import Screen, can_screen_here, screen_of

BATCH = 256
CHUNK = 8
"""Steps that are worth computing together."""
TOGETHER = 1 << 14
"""Inputs times checkpoints that are judged at once at most, where no loop is compiled to screen them."""
ENGINES = ("auto", "dense", "event-driven", "event-driven-bfloat16", "event-driven-int8", "fused", "fused-bfloat16")
"""Names of engines for members that are drawn once; "auto" is what fits."""


class Pass(Protocol):
    """Some inputs under way."""

    @property
    def rows(self) -> int:
        """How many are under way."""
        ...

    def advance(self, steps: int) -> Booleans:
        """Read-out spikes (rows, steps, K, C) of the next steps."""
        ...

    def keep(self, rows: Booleans) -> None:
        """Go on with these of the rows; the others cost nothing from now on."""
        ...


class Live(Protocol):
    """One live input under way."""

    def push(self, events: ArrayLike) -> Integers:
        """One step, with the flat places of the inputs that are active in it; the spike counts (K, C) so far."""
        ...


@dataclass(frozen=True)
class Looks:
    """The checkpoints that fall into a chunk, and the step of it that each ends, counted from 0; the last ends the chunk."""

    checkpoints: Sequence[int]
    places: Sequence[int]


class Engine(Protocol):
    """K members, ready to run."""

    name: str
    members: int
    classes: int

    def chunk_of(self, rows: int) -> int:
        """Steps that are worth computing together for so many inputs."""
        ...

    def begin(self, inputs: NDArray[Any]) -> Pass:
        """Start on inputs (n, T, ...), or on images (n, 1, ...) that are held."""
        ...

    def live(self) -> Live:
        """Start on one live input."""
        ...


Outcomes = tuple[Integers, Booleans, Integers]
"""Stop indices (n,), sets (n, C) and steps computed (n,), of some inputs."""


@runtime_checkable
class Flowing(Protocol):
    """An engine that can decide by itself, where its spikes are."""

    def flow(self, inputs: NDArray[Any], screen: Screen, places: int, chunk: int | None) -> Outcomes | None:
        """Decide on inputs (n, T, ...), with at most so many computed together; None if it cannot for these."""
        ...


@dataclass(frozen=True, eq=False)
class EarlyRun:
    """Decisions, the steps (n,) that were computed for each input, and how long it all took."""

    decisions: Decisions
    computed: Integers
    seconds: float


def decide_early(
    engine: Engine,
    calibrated: CalibratedRule,
    inputs: NDArray[Any],
    batch_size: int = BATCH,
    chunk: int | None = None,
    any_engine: bool = False,
) -> EarlyRun:
    """Decide on inputs (n, T, ...), or on images (n, 1, ...) that are held, computing no further than the chunk in which an input stops.

    The decisions are those of `calibrated.decide` on the scores that the same engine computes to the end. chunk: steps computed
    together, where checkpoints lie so close; the engine's own unless told. any_engine allows another than the rule was calibrated with.
    """
    if not any_engine:
        calibrated.check_source(engine.name)
    times = _as_steps(calibrated, engine, None if inputs.shape[1] == 1 else inputs.shape[1])
    screen = screen_of(calibrated)
    began = perf_counter()

    outcomes = _flow(engine, screen, inputs, batch_size, chunk)
    if outcomes is None:
        parts = _in_groups(
            engine, inputs, batch_size, lambda batch, first: _decide_batch(engine, calibrated, screen, times, batch, first, chunk)
        )
        index, sets, computed = (np.concatenate(part) for part in zip(*parts, strict=True))
    else:
        index, sets, computed = outcomes
    return EarlyRun(Decisions(index, sets, calibrated.checkpoints), computed, perf_counter() - began)


def _flow(engine: Engine, screen: Screen | None, inputs: NDArray[Any], places: int, chunk: int | None) -> Outcomes | None:
    if screen is None or not screen.on_device or not isinstance(engine, Flowing):
        return None
    try:
        return engine.flow(inputs, screen, places, chunk)
    except (MemoryError, RuntimeError) as error:
        if not _is_about_memory(error):
            raise
        warnings.warn(f"memory did not hold {places} inputs at once with all they need: they are run in a slower way.", stacklevel=3)
        return None


def _decide_batch(
    engine: Engine,
    calibrated: CalibratedRule,
    screen: Screen | None,
    times: Sequence[int],
    batch: NDArray[Any],
    number: int,
    length: int | None,
) -> Outcomes:
    """Of inputs numbered from `number`."""
    watch, run = _Watch(calibrated, screen, len(batch), number), engine.begin(batch)
    computed: Integers = np.zeros(len(batch), np.int64)
    time = 0
    while run.rows:
        first, last = _next_checkpoints(times, time, length or engine.chunk_of(run.rows))
        steps = times[last - 1] - time
        looks = Looks(range(first, last), [times[place] - time - 1 for place in range(first, last)])
        computed[watch.active] += steps
        run.keep(watch.judge(run.advance(steps), looks))
        time = times[last - 1]
    return watch.index, watch.sets, computed


def run_to_end(engine: Engine, inputs: NDArray[Any], batch_size: int = BATCH, steps: int | None = None) -> Booleans:
    """Read-out spikes (n, T, K, C) at every step of inputs (n, T, ...), or of images (n, 1, ...) that are held for so many steps."""
    length = steps or inputs.shape[1]
    return np.concatenate(_in_groups(engine, inputs, batch_size, lambda batch, first: engine.begin(batch).advance(length)))


Outcome = TypeVar("Outcome")


def _in_groups(engine: Engine, inputs: NDArray[Any], batch_size: int, run: Callable[[NDArray[Any], int], Outcome]) -> list[Outcome]:
    """What `run` makes of batches of the inputs, in order. Where memory does not hold a batch, it is halved, and that is said once."""
    outcomes: list[Outcome] = []
    start, halved = 0, False
    while start < len(inputs) or not outcomes:
        batch = inputs[start : start + batch_size]
        try:
            outcomes.append(run(batch, start))
        except (MemoryError, RuntimeError) as error:
            if not _is_about_memory(error):
                raise
            sizes = f"{engine.members} members and {len(batch)} inputs at once"
            if len(batch) == 1:
                raise InputError(f"memory does not hold {sizes} on the {engine.name} engine: use fewer members.") from None
            batch_size, halved = len(batch) // 2, True
            continue
        start += len(batch)
    if halved:
        warnings.warn(f"memory did not hold the batch asked for: inputs were run in groups of {batch_size}.", stacklevel=3)
    return outcomes


def _is_about_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(words in str(error) for words in ("out of memory", "allocate memory"))


@dataclass(frozen=True)
class TimeSaved:
    """What stopping early saves on an engine: seconds with it and to the end, medians of runs in turn; the share of steps computed."""

    engine: str
    early: float
    to_end: float
    computed: float


def measure_saving(engine: Engine, calibrated: CalibratedRule, inputs: NDArray[Any], repeats: int = 3) -> TimeSaved:
    """Decide on inputs (n, T, ...) early and to the end, in turn."""
    decide_early(engine, calibrated, inputs, any_engine=True)  # whatever is compiled, loaded or recorded first
    early, to_end, computed = [], [], 0.0
    for _ in range(repeats):
        run = decide_early(engine, calibrated, inputs, any_engine=True)
        early.append(run.seconds)
        computed = float(run.computed.mean()) / calibrated.checkpoints[-1]
        to_end.append(decide_early(engine, calibrated, inputs, chunk=int(calibrated.checkpoints[-1]), any_engine=True).seconds)
    return TimeSaved(engine.name, float(np.median(early)), float(np.median(to_end)), computed)


def _as_steps(calibrated: CalibratedRule, engine: Engine, steps: int | None) -> list[int]:
    """The checkpoints as numbers of steps."""
    calibrated.check_sizes(engine.members, engine.classes)
    times = [int(time) for time in calibrated.checkpoints]
    if any(time != given or time < 1 for time, given in zip(times, calibrated.checkpoints, strict=True)):
        raise InputError("the rule's checkpoints are not whole steps: an engine counts steps from 1, so calibrate on those.")
    if steps is not None and times[-1] > steps:
        raise InputError(f"the rule looks last at step {times[-1]}, but the inputs have {steps}: give inputs as long as those it knows.")
    return times


def _next_checkpoints(times: Sequence[int], time: int, length: int) -> tuple[int, int]:
    """The checkpoints, from one place to before another, that the next chunk ends with: all within reach, or the next one."""
    first = int(np.searchsorted(times, time, side="right"))
    return first, max(first + 1, int(np.searchsorted(times, time + length, side="right")))


class _Watch:
    """A batch under the rule: counts and state of the inputs that are still running, and where the others stopped."""

    def __init__(self, calibrated: CalibratedRule, screen: Screen | None, count: int, first: int) -> None:
        self._calibrated, self._screen = calibrated, screen
        self._state = calibrated.start(count, first)
        self._counts: NDArray[Any] = np.zeros((count, calibrated.members, calibrated.classes), np.int64)
        self.active: Integers = np.arange(count)
        self.index: Integers = np.empty(count, np.int64)
        self.sets: Booleans = np.empty((count, calibrated.classes), bool)

    def judge(self, spikes: Booleans, looks: Looks) -> Booleans:
        """Judge a chunk of spikes (rows, steps, K, C) at its checkpoints: which rows go on."""
        firsts = [0, *(place + 1 for place in looks.places[:-1])]
        counts = np.add.reduceat(spikes, firsts, axis=1, dtype=np.int64)
        counts[:, 0] += self._counts
        np.cumsum(counts, axis=1, out=counts)
        if self._screen is not None and can_screen_here():
            kept = self._judge_some(self._screen, counts, looks)
        elif self._screen is not None and counts.shape[0] * counts.shape[1] <= TOGETHER:
            kept = self._judge_together(self._screen, counts, looks)
        else:
            kept = self._judge_all(counts, looks)
        self._counts = counts[kept, -1]
        return kept

    def _judge_all(self, counts: NDArray[Any], looks: Looks) -> Booleans:
        """Every input at every checkpoint until it stops."""
        going, state = np.arange(len(counts)), self._state
        for place, checkpoint in enumerate(looks.checkpoints):
            verdict = self._calibrated.step(checkpoint, log_softmax(counts[going, place].astype(np.float64)), state)
            self._settle(going[verdict.stop], checkpoint, verdict.sets[verdict.stop])
            going, state = going[~verdict.stop], verdict.state.rows(~verdict.stop)
        self._state, self.active = state, self.active[going]
        kept = np.zeros(len(counts), dtype=bool)
        kept[going] = True
        return kept

    def _judge_together(self, screen: Screen, counts: NDArray[Any], looks: Looks) -> Booleans:
        """Every input at every checkpoint at once."""
        rows, places = counts.shape[:2]
        checkpoints = np.array(looks.checkpoints)
        verdict = screen.judge(np.tile(checkpoints, rows), counts.reshape(rows * places, *counts.shape[2:]))
        stop = verdict.stop.reshape(rows, places)
        going: Booleans = np.logical_not(stop.any(axis=1))
        stopped = np.flatnonzero(~going)
        first = stop[stopped].argmax(axis=1)
        self._settle(stopped, checkpoints[first], verdict.sets.reshape(rows, places, -1)[stopped, first])
        self._state, self.active = self._state.rows(going), self.active[going]
        return going

    def _judge_some(self, screen: Screen, counts: NDArray[Any], looks: Looks) -> Booleans:
        """Inputs where they may stop, all at the first such checkpoint of each, then those that did not at their next: which rows go on."""
        may_stop, checkpoints = screen.may_stop(counts, looks.checkpoints), np.array(looks.checkpoints)
        going = np.ones(len(may_stop), dtype=bool)
        rows = np.flatnonzero(may_stop.any(axis=1))
        while len(rows):
            place = may_stop[rows].argmax(axis=1)
            verdict = screen.judge(checkpoints[place], counts[rows, place])
            stopped = rows[verdict.stop]
            self._settle(stopped, checkpoints[place[verdict.stop]], verdict.sets[verdict.stop])
            going[stopped] = False
            may_stop[rows, place] = False
            rows = rows[~verdict.stop]
            rows = rows[may_stop[rows].any(axis=1)]
        self._state, self.active = self._state.rows(going), self.active[going]
        return going

    def _settle(self, rows: Integers, checkpoints: int | Integers, sets: Booleans) -> None:
        inputs = self.active[rows]
        self.index[inputs], self.sets[inputs] = checkpoints, sets


@final
class LiveSession:
    """One live input, an engine and a rule: push the events of each step until there is a decision.

    A pause is a step without events. Pushing on after the decision is refused. `number` matters to randomised merging alone, as
    in `calibrated.stream`.
    """

    def __init__(self, engine: Engine, calibrated: CalibratedRule, number: int = 0, any_engine: bool = False) -> None:
        if not any_engine:
            calibrated.check_source(engine.name)
        self._times = _as_steps(calibrated, engine, None)
        self._session, self._live = calibrated.stream(number), engine.live()
        self._screen = screen_of(calibrated) if can_screen_here() else None
        self.time = 0

    @property
    def decision(self) -> Decision | None:
        """The decision, once there is one."""
        return self._session.decision

    def push(self, events: ArrayLike) -> Decision | None:
        """The next step, with the flat places of the inputs that are active in it; the decision if the rule stops here, else None."""
        if self.decision is not None:
            raise InputError(f"this input stopped at time {self.decision.time}: open a new session for the next input.")
        counts = self._live.push(events)
        self.time += 1
        if self.time < self._times[self._session.index]:
            return None
        if self._screen is not None and not self._screen.may_stop(counts[None, None], (self._session.index,))[0, 0]:
            self._session.index += 1
            return None
        return self._session.push(log_softmax(counts.astype(np.float64)))
