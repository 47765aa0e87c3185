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
from typing import Any, Protocol, TypeVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.checks import Booleans, InputError, Integers
from agreestop.decide.confidence import log_softmax
from agreestop.decide.decisions import Decision, Decisions

BATCH = 256
ENGINES = ("auto", "dense", "event-driven", "event-driven-bfloat16", "event-driven-int8", "fused")
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


class Engine(Protocol):
    """K members, ready to run. `chunk`: steps that are worth computing together."""

    name: str
    members: int
    classes: int
    chunk: int

    def begin(self, inputs: NDArray[Any]) -> Pass:
        """Start on inputs (n, T, ...)."""
        ...

    def live(self) -> Live:
        """Start on one live input."""
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
    """Decide on inputs (n, T, ...), computing no further than the chunk in which an input stops.

    The decisions are those of `calibrated.decide` on the scores that the same engine computes to the end. chunk: steps computed
    together, where checkpoints lie so close; the engine's own unless told. any_engine allows another than the rule was calibrated with.
    """
    if not any_engine:
        calibrated.check_engine(engine.name)
    times = _as_steps(calibrated, engine, inputs.shape[1])
    began = perf_counter()
    length = chunk or engine.chunk
    parts = _in_groups(engine, inputs, batch_size, lambda batch, first: _decide_batch(engine, calibrated, times, batch, first, length))
    index, sets, computed = (np.concatenate(part) for part in zip(*parts, strict=True))
    return EarlyRun(Decisions(index, sets, calibrated.checkpoints), computed, perf_counter() - began)


def _decide_batch(
    engine: Engine, calibrated: CalibratedRule, times: Sequence[int], batch: NDArray[Any], number: int, length: int
) -> tuple[Integers, Booleans, Integers]:
    """Stop indices, sets and steps computed of inputs numbered from `number`."""
    watch, run = _Watch(calibrated, len(batch), number), engine.begin(batch)
    computed: Integers = np.zeros(len(batch), np.int64)
    time = 0
    while run.rows:
        first, last = _next_checkpoints(times, time, length)
        spikes = run.advance(times[last - 1] - time)
        computed[watch.active] += times[last - 1] - time
        run.keep(watch.judge(spikes, range(first, last), [times[place] - time - 1 for place in range(first, last)]))
        time = times[last - 1]
    return watch.index, watch.sets, computed


def run_to_end(engine: Engine, inputs: NDArray[Any], batch_size: int = BATCH) -> Booleans:
    """Read-out spikes (n, T, K, C) at every step of inputs (n, T, ...)."""
    return np.concatenate(_in_groups(engine, inputs, batch_size, lambda batch, first: engine.begin(batch).advance(inputs.shape[1])))


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
            if not isinstance(error, MemoryError) and "memory" not in str(error):
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


@dataclass(frozen=True)
class TimeSaved:
    """What stopping early saves on an engine: seconds with it and to the end, medians of runs in turn; the share of steps computed."""

    engine: str
    early: float
    to_end: float
    computed: float


def measure_saving(engine: Engine, calibrated: CalibratedRule, inputs: NDArray[Any], repeats: int = 3) -> TimeSaved:
    """Decide on inputs (n, T, ...) early and to the end, in turn."""
    decide_early(engine, calibrated, inputs[:2], any_engine=True)  # whatever is compiled or loaded first
    early, to_end, computed = [], [], 0.0
    for _ in range(repeats):
        run = decide_early(engine, calibrated, inputs, any_engine=True)
        early.append(run.seconds)
        computed = float(run.computed.mean()) / inputs.shape[1]
        to_end.append(decide_early(engine, calibrated, inputs, chunk=inputs.shape[1], any_engine=True).seconds)
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

    def __init__(self, calibrated: CalibratedRule, count: int, first: int) -> None:
        self._calibrated = calibrated
        self._state = calibrated.start(count, first)
        self._counts: Integers = np.zeros((count, calibrated.members, calibrated.classes), np.int64)
        self.active: Integers = np.arange(count)
        self.index: Integers = np.empty(count, np.int64)
        self.sets: Booleans = np.empty((count, calibrated.classes), bool)

    def judge(self, spikes: Booleans, checkpoints: Sequence[int], places: Sequence[int]) -> Booleans:
        """Judge a chunk of spikes (rows, steps, K, C) at its checkpoints, which end its steps `places`: the rows that go on."""
        going = np.arange(len(spikes))
        counts, state, before = self._counts, self._state, 0
        for checkpoint, place in zip(checkpoints, places, strict=True):
            counts = counts + spikes[going, before : place + 1].sum(axis=1, dtype=np.int64)
            before = place + 1
            verdict = self._calibrated.step(checkpoint, log_softmax(counts.astype(np.float64)), state)
            done = self.active[going[verdict.stop]]
            self.index[done], self.sets[done] = checkpoint, verdict.sets[verdict.stop]
            on = ~verdict.stop
            going, counts, state = going[on], counts[on], verdict.state[on]
        kept = np.zeros(len(spikes), dtype=bool)
        kept[going] = True
        self.active, self._counts, self._state = self.active[going], counts, state
        return kept


@final
class LiveSession:
    """One live input, an engine and a rule: push the events of each step until there is a decision.

    A pause is a step without events. Pushing on after the decision is refused. `number` matters to randomised merging alone, as
    in `calibrated.stream`.
    """

    def __init__(self, engine: Engine, calibrated: CalibratedRule, number: int = 0, any_engine: bool = False) -> None:
        if not any_engine:
            calibrated.check_engine(engine.name)
        self._times = _as_steps(calibrated, engine, None)
        self._session, self._live = calibrated.stream(number), engine.live()
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
        return self._session.push(log_softmax(counts.astype(np.float64)))
