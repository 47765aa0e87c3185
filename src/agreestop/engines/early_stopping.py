"""Run an engine under a calibrated rule, on batches or on one live input, so that an early decision
ends the computation.

    compute a chunk of steps  →  judge its checkpoints  →  drop inputs that have stopped  →  repeat

Decisions are exact: they are those that the rule makes on scores computed to the end. The chunk in
which an input stops is computed to its end, so work is saved by whole chunks. With a `Schedule` a
chunk ends where members join, and those replay what they missed.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import Booleans, Floats, InputError, Integers, as_count, check_finite
from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.checkpoints import State, Stops
from agreestop.decide.confidence import log_confidence, log_softmax
from agreestop.decide.decisions import Decisions
from agreestop.decide.leakage import Overlap, TrainingRows, or_unknown
from agreestop.decide.scores import Scores
from agreestop.events.container import Events, Inputs, as_inputs, input_ids

from .ending import EndingInputs, as_lengths, without_padding
from .joining import JoiningPass, MemberGroups
from .prefilter import Prefilter, can_prefilter_on_cpu, prefilter_for
from .protocol import CountingPass, DecidingEngine, Engine, EnsembleRun, Outcomes, Result, joined

BATCH_SIZE = 256
# log-confidences from real outputs differ less than this between batch sizes, in float32
ROUNDING = 1e-4


@dataclass(frozen=True, eq=False)
class EarlyRun:
    """Decisions on n inputs, the steps (n,) and member-steps (n,) that were computed for each,
    and the seconds that all of it took.
    """

    decisions: Decisions
    computed: Integers = field(repr=False)
    seconds: float
    work: Integers = field(repr=False)


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
    lengths: ArrayLike | None = None,
    first: int | None = None,
    training: TrainingRows | None = None,
) -> EarlyRun:
    """Decide on inputs (n, T, ...) or `Events`, or on images (n, 1, ...) held for `steps`, and stop
    computing where the rule stops.

    The decisions are those of `calibrated.decide` on the scores that the same engine computes to
    the end. An input is computed up to the end of the chunk in which it stops. chunk: steps
    computed together, the engine's choice where None. any_engine and any_members allow another
    engine or ensemble (`ensemble_digest`) than the rule was calibrated with. Inputs of one step are
    held up to the rule's last checkpoint where `steps` is None, with a warning. groups are those of
    the inputs, for a rule with groups. lengths (n,): where each input ends; see `ending`. first:
    the number of the first input, on which randomised merging and members that are drawn for every
    input depend. Without it the numbers begin at 0, and the random numbers of randomised merging
    are fresh. training: the rows that the members were trained on, where they know them.
    """
    fresh, first = first is None, 0 if first is None else as_count(first, "first", least=0)
    check_rule(calibrated, engine, ensemble_digest, any_engine, any_members)
    given, batch_size = as_inputs(inputs), as_count(batch_size, "batch_size")
    whole = given
    calibrated.check_classes(given.classes if isinstance(given, Events) else None)
    ends = as_lengths(lengths, None, given.shape)
    calibrated.check_lengths(ends)
    if ends is not None:
        engine, given = EndingInputs(engine, ends, first), without_padding(given, ends)
    chunk = None if chunk is None else as_count(chunk, "chunk")
    times = checkpoint_steps(
        calibrated, engine, None if steps is None and given.shape[1] == 1 else _length(given, steps)
    )
    if steps is None and given.shape[1] == 1 < times[-1]:
        warnings.warn(
            f"the inputs have one step and are held for {times[-1]}: give steps={times[-1]} if "
            "they are images.",
            stacklevel=2,
        )
    prefilter = prefilter_for(calibrated, engine.output)
    inside = calibrated.find_groups(groups, len(given))
    began = perf_counter()

    def decide_chunkwise(some: Inputs) -> Outcomes:
        on_cpu = prefilter if prefilter is not None and can_prefilter_on_cpu() else None
        members = MemberGroups(engine, calibrated.checkpoints)

        def decide(batch: Inputs, begin: int) -> Outcomes:
            state = calibrated.start(
                len(batch),
                None if fresh else first + begin,
                None if inside is None else inside[begin : begin + len(batch)],
            )
            run = JoiningPass(members, batch, first + begin, engine.output)
            return _RunningBatch(engine, calibrated, on_cpu, members, run, state).decide(
                times, chunk
            )

        return _in_batches(engine, some, batch_size, decide)

    outcomes = _decide_on_engine(engine, prefilter, given, batch_size, chunk)
    if outcomes is None:
        outcomes = decide_chunkwise(given)
    else:
        undecided = np.flatnonzero(outcomes.stops.index < 0)
        # a rule that an engine decides with does not depend on numbers or groups
        for begin in range(0, len(undecided), batch_size):
            left = undecided[begin : begin + batch_size]
            outcomes.complete(left, decide_chunkwise(given[left]))
    seconds = perf_counter() - began
    if ends is not None:  # all members that run compute the same steps
        computed = np.minimum(outcomes.computed, ends)
        outcomes = replace(
            outcomes, computed=computed, work=outcomes.work // outcomes.computed * computed
        )
    ids = input_ids(given) if calibrated.knows_ids else None  # hashing takes a while
    trained = (
        None
        if training is None
        else Overlap.of(
            "training",
            "ids",
            _trained(training, whole, ids if whole is given else None),
            training.chance,
        )
    )
    about = or_unknown(trained, ensemble_digest)
    decisions = calibrated.decisions(outcomes.stops, ids, groups=inside, training=about)
    return EarlyRun(decisions, outcomes.computed, seconds, outcomes.work)


def _trained(training: TrainingRows, inputs: Inputs, ids: NDArray[np.uint64] | None) -> Booleans:
    """Which inputs are among the rows of training, as networks read them. ids: their hashes as
    they are, where they are known.
    """
    if ids is not None and inputs.dtype != np.float64:
        return training.find(ids)
    return training.find(input_ids(inputs, as_float32=True))


def _decide_on_engine(
    engine: Engine, prefilter: Prefilter | None, inputs: Inputs, slots: int, chunk: int | None
) -> Outcomes | None:
    """The outcomes of an engine that schedules its inputs itself; None where it cannot."""
    if prefilter is None or not prefilter.fits_gpu or not isinstance(engine, DecidingEngine):
        return None
    try:
        return engine.decide(inputs, prefilter, slots, chunk)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        warnings.warn(
            f"memory is too small for {slots} inputs at once with continuous batching: a slower "
            "way is used.",
            stacklevel=3,
        )
        return None


class _RunningBatch:
    """A batch under the rule: the state of the inputs that still run, and the results of those
    that have stopped.
    """

    def __init__(
        self,
        engine: Engine,
        calibrated: CalibratedRule,
        prefilter: Prefilter | None,
        members: MemberGroups,
        run: JoiningPass,
        state: State,
    ) -> None:
        self._engine = engine
        self._calibrated = calibrated
        self._prefilter = prefilter
        self._state = state
        self._members, self._run = members, run
        self._outcomes = Outcomes(
            Stops.empty(len(state), calibrated.classes), np.zeros(len(state), np.int64), run.work
        )

    def decide(self, times: Integers, chunk: int | None) -> Outcomes:
        """Run the batch chunk by chunk until all inputs have stopped; `times` are the
        checkpoints of the rule.
        """
        first, run = 0, self._run
        while len(run.active):
            run.join(self._members.needed(first))
            length = chunk or self._engine.chunk_steps(len(run.active))
            # up to the next checkpoint at least
            last = max(first + 1, int(np.searchsorted(times, run.time + length, side="right")))
            last = min(last, first + self._members.run_length(first))
            offsets, steps = times[first:last] - run.time - 1, int(times[last - 1]) - run.time
            self._outcomes.computed[run.active] += steps
            evidence = self._evidence(run.advance(steps) if steps else None, offsets)
            judged = evidence[:, :, : self._members.members[first]]
            run.keep(self._judge(judged, np.arange(first, last)), evidence[:, -1])
            first = last
        return self._outcomes

    def _judge(self, evidence: NDArray[Any], checkpoints: Integers) -> Booleans:
        """Judge the evidence (rows, checkpoints, K, C) of a chunk and return which rows continue.
        checkpoints: their indices in the rule.

        Each round judges every row at its first checkpoint that is left. Without a prefilter that
        is the same one for all rows, in order. With a prefilter it is the first where the row may
        stop or change its state.
        """
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
            self._outcomes.stops.put(self._run.active[rows], index, verdict)
            self._state = self._state.put(rows, verdict.state)
            running[rows[verdict.stop]] = False
            left[rows, position] = False
            rows = rows[~verdict.stop]
        self._state = self._state.rows(running)
        return running

    def _evidence(self, outputs: NDArray[Any] | None, offsets: Integers) -> NDArray[Any]:
        """Spike counts so far, or logits, (rows, checkpoints, K, C), from the outputs of a chunk.

        None for a chunk without steps.

        offsets: the step of the chunk, from 0, after which each checkpoint is judged; -1 before the
        first step, where members have joined. The last ends the chunk.
        """
        before = self._run.evidence
        assert before is not None
        if outputs is None:
            return before[:, None]
        if self._engine.output == "logits":
            check_finite(outputs, "the output of the members")
            return (
                outputs[:, offsets]
                if offsets[0] >= 0
                else np.concatenate([before[:, None], outputs[:, offsets[1:]]], axis=1)
            )
        later = offsets[offsets >= 0]
        counts = np.add.reduceat(outputs, [0, *(later[:-1] + 1)], axis=1, dtype=np.int64)
        counts[:, 0] += before
        np.cumsum(counts, axis=1, out=counts)
        return (
            counts
            if len(later) == len(offsets)
            else np.concatenate([before[:, None], counts], axis=1)
        )


def _length(inputs: Inputs, steps: int | None) -> int:
    """The number of steps to run: those of the inputs, or `steps` for images that are held."""
    return inputs.shape[1] if steps is None else as_count(steps, "steps")


def run_to_end(
    engine: Engine,
    inputs: ArrayLike | Events,
    batch_size: int = BATCH_SIZE,
    steps: int | None = None,
    first: int = 0,
) -> NDArray[Any]:
    """Outputs (n, T, K, C) at every step of inputs (n, T, ...) or `Events`, or of images
    (n, 1, ...) that are held for `steps`.
    """
    given = as_inputs(inputs)
    length = _length(given, steps)
    return _in_batches(
        engine,
        given,
        batch_size,
        lambda batch, begin: engine.begin(batch, first + begin).advance(length),
    )


def run_counted(
    engine: Engine,
    inputs: ArrayLike | Events,
    batch_size: int = BATCH_SIZE,
    steps: int | None = None,
    first: int = 0,
) -> EnsembleRun:
    """Spikes and operations of inputs (n, T, ...) or `Events`, or of images held for `steps`,
    from one pass to the end.
    """
    given = as_inputs(inputs)
    length = _length(given, steps)

    def run(batch: Inputs, begin: int) -> EnsembleRun:
        started = engine.begin(batch, first + begin)
        if not isinstance(started, CountingPass):
            raise InputError(
                f"the {engine.name} engine cannot count the operations of these members: use "
                "run_to_end for their outputs."
            )
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
    lengths: ArrayLike | None = None,
    first: int = 0,
    training: TrainingRows | None = None,
) -> Scores:
    """Log-confidences of all members after every step, for inputs (n, T, ...) or `Events`, or
    images (n, 1, ...) held for `steps`.

    labels (n,) and the names of classes are those of the `Events` where they are not given. lengths
    (n,): where each input ends; the scores at its end stand for all later steps. first: the number
    of the first input. training: the rows that the members were trained on, where they know them.
    """
    whole = given = as_inputs(inputs)
    if isinstance(given, Events):
        labels = given.labels if labels is None else labels
        classes = given.classes if classes is None else classes
    length = _length(given, steps)
    ends = as_lengths(lengths, None, given.shape)
    if ends is not None:
        engine, given = EndingInputs(engine, ends, first), without_padding(given, ends)

    def run(batch: Inputs, begin: int) -> Floats:
        outputs = engine.begin(batch, first + begin).advance(length)
        if engine.output == "spikes":
            return log_confidence(np.cumsum(outputs, axis=1, dtype=np.int64))
        check_finite(outputs, "the output of the members")
        return log_confidence(outputs)

    values = _in_batches(engine, given, batch_size, run)
    truth = None if labels is None else np.asarray(labels)
    names = None if classes is None else tuple(classes)
    rounding = 0.0 if engine.output == "spikes" else ROUNDING
    times, ids = tuple(range(1, length + 1)), input_ids(given)
    trained = (
        ()
        if training is None
        else (_trained(training, whole, ids if whole is given else None), training.chance)
    )
    return Scores(
        values, truth, times, names, engine.name, ensemble_digest, ids, ends, rounding, *trained
    )


def _in_batches(
    engine: Engine, inputs: Inputs, batch_size: int, run: Callable[[Inputs, int], Result]
) -> Result:
    """The results of `run(batch, first)` for batches of the inputs, joined in order.

    A batch of `Events` is an `Events`.

    Where memory is too small for a batch, the batch size is halved, and one warning says so.
    """
    results: list[Result] = []
    start, halved, batch_size = 0, False, as_count(batch_size, "batch_size")
    while start < len(inputs) or not results:
        batch = inputs[start : start + batch_size]
        try:
            results.append(run(batch, start))
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            if len(batch) == 1:
                raise InputError(
                    f"memory is too small for {engine.members} members and one input on the "
                    f"{engine.name} engine: use fewer members."
                ) from None
            batch_size, halved = len(batch) // 2, True
            continue
        start += len(batch)
    if halved:
        warnings.warn(
            "memory was too small for the batch size that was asked for: inputs were run "
            f"{batch_size} at a time.",
            stacklevel=3,
        )
    return joined(results)


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(
        words in str(error) for words in ("out of memory", "allocate memory")
    )


@dataclass(frozen=True)
class TimeSaved:
    """Median seconds of runs with early stopping and to the end on an engine, and the share of
    all steps that early stopping computes.
    """

    engine: str
    early: float
    to_end: float
    computed: float


def measure_saving(
    engine: Engine, calibrated: CalibratedRule, inputs: ArrayLike | Events, repeats: int = 3
) -> TimeSaved:
    """Decide on inputs (n, T, ...) with early stopping and to the end, in turn, and
    compare the times.
    """
    last, repeats = int(calibrated.checkpoints[-1]), as_count(repeats, "repeats")
    options: dict[str, Any] = {
        "any_engine": True,
        "steps": last if as_inputs(inputs).shape[1] == 1 else None,
    }
    decide_early(engine, calibrated, inputs, **options)  # warm-up: compilation and CUDA graphs
    early, to_end, computed = [], [], 0.0
    for _ in range(repeats):
        run = decide_early(engine, calibrated, inputs, **options)
        early.append(run.seconds)
        computed = float(run.computed.mean()) / last
        to_end.append(decide_early(engine, calibrated, inputs, chunk=last, **options).seconds)
    return TimeSaved(engine.name, float(np.median(early)), float(np.median(to_end)), computed)


def check_calibrated(rule: object) -> None:
    """Refuse what is not a calibrated rule."""
    if not isinstance(rule, CalibratedRule):
        kind = type(rule).__name__
        raise InputError(
            f"the rule is of type {kind}, which is not calibrated: call rule.calibrate(scores), "
            "and give what it returns."
        )


def check_rule(
    calibrated: CalibratedRule,
    engine: Engine,
    ensemble_digest: str,
    any_engine: bool,
    any_members: bool,
) -> None:
    """Refuse what is not a calibrated rule, and a rule of another engine or ensemble."""
    check_calibrated(calibrated)
    calibrated.check_source(engine.name, ensemble_digest, any_engine, any_members)


def checkpoint_steps(calibrated: CalibratedRule, engine: Engine, steps: int | None) -> Integers:
    """The rule's checkpoints (M,) as numbers of steps, which inputs of `steps` steps must reach.

    None for any length.
    """
    calibrated.check_sizes(engine.members, engine.classes)
    times = np.array([int(time) for time in calibrated.checkpoints])
    if (times != calibrated.checkpoints).any() or times[0] < 1:
        raise InputError(
            "the rule's checkpoints are not whole steps: an engine counts steps from 1, so "
            "calibrate on those."
        )
    if steps is not None and times[-1] > steps:
        raise InputError(
            f"the rule's last checkpoint is step {times[-1]}, but the inputs have {steps}: give "
            "inputs that are as long."
        )
    return times
