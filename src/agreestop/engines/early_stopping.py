"""Run an engine under a calibrated rule, on batches or on one live input, so that an early decision ends the computation.

    compute a chunk of steps  →  judge its checkpoints  →  drop the inputs that have stopped  →  next chunk

Decisions are exact: they are those that the rule makes on scores computed to the end. The chunk in which an input stops is computed to its
end, so work is saved by whole chunks.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import Booleans, Floats, InputError, Integers, as_count, check_finite
from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.confidence import log_confidence, log_softmax
from agreestop.decide.decisions import Decision, Decisions
from agreestop.decide.policies import State, Stops
from agreestop.decide.score_files import Scores
from agreestop.events.container import Events, Inputs, as_inputs, dense_rows, input_ids

from .prefilter import Prefilter, can_prefilter_on_cpu, prefilter_for
from .protocol import CountingPass, DecidingEngine, Engine, EnsembleRun, Outcomes, Pass, Result, joined

BATCH_SIZE = 256
DENSE_BYTES = 1 << 30  # sparse inputs are made dense in blocks of at most this size, for engines that schedule their inputs themselves


@dataclass(frozen=True, eq=False)
class EarlyRun:
    """Decisions on n inputs, the steps (n,) that were computed for each, and the seconds that all of it took."""

    decisions: Decisions
    computed: Integers
    seconds: float


def decide_early(
    engine: Engine,
    calibrated: CalibratedRule,
    inputs: ArrayLike | Events,
    batch_size: int = BATCH_SIZE,
    chunk: int | None = None,
    any_engine: bool = False,
    any_members: bool = False,
    ensemble_digest: str = "",
    steps: int | None = None,
    groups: ArrayLike | None = None,
) -> EarlyRun:
    """Decide on inputs (n, T, ...) or `Events`, or on images (n, 1, ...) held for `steps`, and stop computing where the rule stops.

    The decisions are those of `calibrated.decide` on the scores that the same engine computes to the end. An input is computed up to the
    end of the chunk in which it stops. chunk: steps computed together, the engine's choice where None. any_engine and any_members allow
    another engine or ensemble (`ensemble_digest`) than the rule was calibrated with. Inputs of one step are held up to the rule's last
    checkpoint where `steps` is None, with a warning. groups are those of the inputs, for a rule with groups.
    """
    _check_rule(calibrated, engine, ensemble_digest, any_engine, any_members)
    given, batch_size = as_inputs(inputs), as_count(batch_size, "batch_size")
    chunk = None if chunk is None else as_count(chunk, "chunk")
    times = _checkpoint_steps(calibrated, engine, None if steps is None and given.shape[1] == 1 else _length(given, steps))
    if steps is None and given.shape[1] == 1 < times[-1]:
        warnings.warn(f"the inputs have one step and are held for {times[-1]}: give steps={times[-1]} if they are images.", stacklevel=2)
    prefilter = prefilter_for(calibrated) if engine.output == "spikes" else None
    inside = calibrated.find_groups(groups, len(given))
    began = perf_counter()

    outcomes = _decide_on_engine(engine, prefilter, given, batch_size, chunk)
    if outcomes is None:
        on_cpu = prefilter if prefilter is not None and can_prefilter_on_cpu() else None

        def decide(batch: NDArray[Any], first: int) -> Outcomes:
            state = calibrated.start(len(batch), first, None if inside is None else inside[first : first + len(batch)])
            return _RunningBatch(engine, calibrated, on_cpu, state).decide(engine.begin(batch, first), times, chunk)

        outcomes = _in_batches(engine, given, batch_size, decide)
    seconds = perf_counter() - began
    ids = input_ids(given) if calibrated.knows_ids else None  # hashing takes a while
    return EarlyRun(calibrated.decisions(outcomes.stops, ids, groups=inside), outcomes.computed, seconds)


def _decide_on_engine(engine: Engine, prefilter: Prefilter | None, inputs: Inputs, slots: int, chunk: int | None) -> Outcomes | None:
    """The outcomes of an engine that schedules its inputs itself; None where it cannot."""
    if prefilter is None or not prefilter.fits_gpu or not isinstance(engine, DecidingEngine):
        return None
    step = len(inputs)
    if isinstance(inputs, Events):
        step = max(slots, DENSE_BYTES // (int(np.prod(inputs.shape[1:])) * inputs.dtype.itemsize))
    parts = []
    try:
        for start in range(0, len(inputs), max(1, step)):
            part = engine.decide(dense_rows(inputs, slice(start, start + step)), prefilter, slots, chunk)
            if part is None:
                return None
            parts.append(part)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        warnings.warn(f"memory is too small for {slots} inputs at once with continuous batching: a slower way is used.", stacklevel=3)
        return None
    return joined(parts) if parts else None


class _RunningBatch:
    """A batch under the rule: evidence and state of the inputs that still run, and the results of those that have stopped."""

    def __init__(self, engine: Engine, calibrated: CalibratedRule, prefilter: Prefilter | None, state: State) -> None:
        self._engine, self._calibrated, self._prefilter, self._state = engine, calibrated, prefilter, state
        count = len(state)
        self._counts: NDArray[Any] | None = None
        if engine.output == "spikes":
            self._counts = np.zeros((count, engine.members, engine.classes), np.int64)
        self._inputs: Integers = np.arange(count)
        self._outcomes = Outcomes(Stops.empty(count, calibrated.classes), np.zeros(count, np.int64))

    def decide(self, run: Pass, times: Integers, chunk: int | None) -> Outcomes:
        """Run the batch chunk by chunk until all inputs have stopped; `times` are the checkpoints of the rule."""
        first = time = 0
        while run.rows:
            length = chunk or self._engine.chunk_steps(run.rows)
            last = max(first + 1, int(np.searchsorted(times, time + length, side="right")))  # up to the next checkpoint at least
            steps = int(times[last - 1]) - time
            self._outcomes.computed[self._inputs] += steps
            run.keep(self._judge(run.advance(steps), np.arange(first, last), times[first:last] - time - 1))
            first, time = last, time + steps
        return self._outcomes

    def _judge(self, outputs: NDArray[Any], checkpoints: Integers, offsets: Integers) -> Booleans:
        """Judge outputs (rows, steps, K, C) of a chunk at its checkpoints and return which rows continue.

        checkpoints: their indices in the rule. offsets: the step of the chunk, from 0, after which each is judged; the last ends the chunk.

        Each round judges every row at its first checkpoint that is left. Without a prefilter that is the same one for all rows, in order.
        With a prefilter it is the first where the row may stop or change its state.
        """
        evidence = self._evidence(outputs, offsets)
        left = np.ones(evidence.shape[:2], bool)
        if self._prefilter is not None:
            left = self._prefilter.may_stop(evidence, checkpoints)
        running = np.ones(len(evidence), dtype=bool)
        rows = np.arange(len(evidence))
        while left[rows].any():
            rows = rows[left[rows].any(axis=1)]
            position = left[rows].argmax(axis=1)
            index = checkpoints[position]
            verdict = self._calibrated.step(
                int(index[0]) if self._prefilter is None else index,
                log_softmax(evidence[rows, position].astype(np.float64)),
                self._state.rows(rows),
            )
            self._outcomes.stops.put(self._inputs[rows], index, verdict)
            self._state = self._state.put(rows, verdict.state)
            running[rows[verdict.stop]] = False
            left[rows, position] = False
            rows = rows[~verdict.stop]
        self._state = self._state.rows(running)
        self._inputs = self._inputs[running]
        if self._counts is not None:
            self._counts = evidence[running, -1]
        return running

    def _evidence(self, outputs: NDArray[Any], offsets: Integers) -> NDArray[Any]:
        """Spike counts so far, or logits, (rows, checkpoints, K, C)."""
        if self._counts is None:
            check_finite(outputs, "the output of the members")
            return outputs[:, offsets]
        counts = np.add.reduceat(outputs, [0, *(offsets[:-1] + 1)], axis=1, dtype=np.int64)
        counts[:, 0] += self._counts
        return np.cumsum(counts, axis=1, out=counts)


def _length(inputs: Inputs, steps: int | None) -> int:
    """The number of steps to run: those of the inputs, or `steps` for images that are held."""
    return inputs.shape[1] if steps is None else as_count(steps, "steps")


def run_to_end(engine: Engine, inputs: ArrayLike | Events, batch_size: int = BATCH_SIZE, steps: int | None = None) -> NDArray[Any]:
    """Outputs (n, T, K, C) at every step of inputs (n, T, ...) or `Events`, or of images (n, 1, ...) that are held for `steps`."""
    given = as_inputs(inputs)
    length = _length(given, steps)
    return _in_batches(engine, given, batch_size, lambda batch, first: engine.begin(batch, first).advance(length))


def run_counted(engine: Engine, inputs: ArrayLike | Events, batch_size: int = BATCH_SIZE, steps: int | None = None) -> EnsembleRun:
    """Spikes and operations of inputs (n, T, ...) or `Events`, or of images held for `steps`, from one pass to the end."""
    given = as_inputs(inputs)
    length = _length(given, steps)

    def run(batch: NDArray[Any], first: int) -> EnsembleRun:
        started = engine.begin(batch, first)
        if not isinstance(started, CountingPass):
            raise InputError(f"the {engine.name} engine cannot count the operations of these members: use run_to_end for their outputs.")
        return started.advance_counted(length)

    return _in_batches(engine, given, batch_size, run)


def score(
    engine: Engine,
    inputs: ArrayLike | Events,
    labels: ArrayLike | None = None,
    classes: Sequence[str] | None = None,
    steps: int | None = None,
    ensemble_digest: str = "",
    batch_size: int = BATCH_SIZE,
) -> Scores:
    """Log-confidences of all members after every step, for inputs (n, T, ...) or `Events`, or images (n, 1, ...) held for `steps`.

    labels (n,) and the names of classes are those of the `Events` where they are not given.
    """
    given = as_inputs(inputs)
    length = _length(given, steps)

    def run(batch: NDArray[Any], first: int) -> Floats:
        outputs = engine.begin(batch, first).advance(length)
        return log_confidence(np.cumsum(outputs, axis=1, dtype=np.int64) if engine.output == "spikes" else outputs)

    values = _in_batches(engine, given, batch_size, run)
    if isinstance(given, Events):
        labels = given.labels if labels is None else labels
        classes = given.classes if classes is None else classes
    truth, names = None if labels is None else np.asarray(labels), None if classes is None else tuple(classes)
    return Scores(values, truth, tuple(range(1, length + 1)), names, engine.name, ensemble_digest, input_ids(given))


def _in_batches(engine: Engine, inputs: Inputs, batch_size: int, run: Callable[[NDArray[Any], int], Result]) -> Result:
    """The results of `run(batch, first)` for batches of the inputs, joined in order.

    Where memory is too small for a batch, the batch size is halved, and one warning says so.
    """
    results: list[Result] = []
    start, halved, batch_size = 0, False, as_count(batch_size, "batch_size")
    while start < len(inputs) or not results:
        batch = dense_rows(inputs, slice(start, start + batch_size))
        try:
            results.append(run(batch, start))
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            if len(batch) == 1:
                raise InputError(
                    f"memory is too small for {engine.members} members and one input on the {engine.name} engine: use fewer members."
                ) from None
            batch_size, halved = len(batch) // 2, True
            continue
        start += len(batch)
    if halved:
        warnings.warn(f"memory was too small for the batch size that was asked for: inputs were run {batch_size} at a time.", stacklevel=3)
    return joined(results)


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(words in str(error) for words in ("out of memory", "allocate memory"))


@dataclass(frozen=True)
class TimeSaved:
    """Median seconds of runs with early stopping and to the end on an engine, and the share of all steps that early stopping computes."""

    engine: str
    early: float
    to_end: float
    computed: float


def measure_saving(engine: Engine, calibrated: CalibratedRule, inputs: ArrayLike | Events, repeats: int = 3) -> TimeSaved:
    """Decide on inputs (n, T, ...) with early stopping and to the end, in turn, and compare the times."""
    last, repeats = int(calibrated.checkpoints[-1]), as_count(repeats, "repeats")
    options: dict[str, Any] = {"any_engine": True, "steps": last if as_inputs(inputs).shape[1] == 1 else None}
    decide_early(engine, calibrated, inputs, **options)  # warm-up: compilation and CUDA graphs
    early, to_end, computed = [], [], 0.0
    for _ in range(repeats):
        run = decide_early(engine, calibrated, inputs, **options)
        early.append(run.seconds)
        computed = float(run.computed.mean()) / last
        to_end.append(decide_early(engine, calibrated, inputs, chunk=last, **options).seconds)
    return TimeSaved(engine.name, float(np.median(early)), float(np.median(to_end)), computed)


def _check_rule(calibrated: CalibratedRule, engine: Engine, ensemble_digest: str, any_engine: bool, any_members: bool) -> None:
    if not isinstance(calibrated, CalibratedRule):
        kind = type(calibrated).__name__
        raise InputError(f"the rule is of type {kind}, which is not calibrated: call rule.calibrate(scores), and give what it returns.")
    calibrated.check_source(engine.name, ensemble_digest, any_engine, any_members)


def _checkpoint_steps(calibrated: CalibratedRule, engine: Engine, steps: int | None) -> Integers:
    """The rule's checkpoints (M,) as numbers of steps, which inputs of `steps` steps must reach; None for any length."""
    calibrated.check_sizes(engine.members, engine.classes)
    times = np.array([int(time) for time in calibrated.checkpoints])
    if (times != calibrated.checkpoints).any() or times[0] < 1:
        raise InputError("the rule's checkpoints are not whole steps: an engine counts steps from 1, so calibrate on those.")
    if steps is not None and times[-1] > steps:
        raise InputError(f"the rule's last checkpoint is step {times[-1]}, but the inputs have {steps}: give inputs that are as long.")
    return times


@final
class LiveSession:
    """One live input, an engine and a rule: push each step until there is a decision.

    A pause is a step without events. A push after the decision is refused. `number` is the number of the input, for rules with randomised
    merging and for members drawn for each input; it counts up by itself where None.
    """

    def __init__(
        self,
        engine: Engine,
        calibrated: CalibratedRule,
        number: int | None = None,
        any_engine: bool = False,
        any_members: bool = False,
        ensemble_digest: str = "",
        group: ArrayLike | None = None,
    ) -> None:
        _check_rule(calibrated, engine, ensemble_digest, any_engine, any_members)
        self._times = _checkpoint_steps(calibrated, engine, None)
        self._session = calibrated.stream(number, group=group)
        self._live = engine.live(self._session.number)
        self._prefilter = prefilter_for(calibrated) if engine.output == "spikes" and can_prefilter_on_cpu() else None
        self._logits, self.time = engine.output == "logits", 0

    @property
    def decision(self) -> Decision | None:
        """The decision, once there is one."""
        return self._session.decision

    def push(self, events: ArrayLike | None = None, *, frame: ArrayLike | None = None) -> Decision | None:
        """Run the next step and return the decision if the rule stops here, else None.

        events: flat indices of the active inputs. frame: instead, one dense step of booleans or numbers.
        """
        session = self._session
        if session.decision is not None:
            raise InputError(f"this input stopped at time {session.decision.time}: open a new session for the next input.")
        evidence = self._live.push(events) if frame is None and events is not None else self._live.push(events, frame=frame)
        self.time += 1
        if self._logits:
            check_finite(evidence, "the output of the members")
        if self.time < self._times[session.index]:
            return None
        if self._prefilter is not None and not self._prefilter.may_stop(evidence[None, None], np.array([session.index]))[0, 0]:
            session.index += 1
            return None
        return session.push(log_softmax(evidence.astype(np.float64)))
