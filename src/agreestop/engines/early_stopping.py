"""Run an engine under a calibrated rule, on batches or on one live input, so that an early decision
ends the computation.

    compute a chunk of steps  →  judge its checkpoints  →  drop inputs that have stopped  →  repeat

Decisions are exact: they are those that the rule makes on scores computed to the end. The chunk in
which an input stops is computed to its end, so work is saved by whole chunks.

With a `Schedule` a chunk ends where members join. A group of members that joins at step t replays
the steps 1 … t of the inputs that are still running. Members that no input asks for are never run.
Without a schedule there is one group, which is the engine itself. An engine whose members cannot be
divided runs all of them.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from time import perf_counter
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import (
    Booleans,
    Floats,
    InputError,
    Integers,
    as_count,
    check_finite,
    join_parts,
)
from agreestop.decide.calibrated import CalibratedRule, check_calibrated
from agreestop.decide.checkpoints import Index, State, Stops, in_rounds, run_rounds
from agreestop.decide.confidence import log_confidence
from agreestop.decide.decisions import Decisions
from agreestop.decide.leakage import Overlap, TrainingRows, or_unknown
from agreestop.decide.scores import Scores
from agreestop.events.container import Events, Inputs, as_inputs, input_ids

from .ending import EndingInputs, as_lengths, without_padding
from .prefilter import Prefilter, can_prefilter_on_cpu, prefilter_for
from .protocol import CountingPass, DividingEngine, Engine, EnsembleRun, Pass

Result = TypeVar("Result")
BATCH_SIZE = 256
# log-confidences from real outputs differ less than this between batch sizes, in float32
ROUNDING = 1e-4


@dataclass(frozen=True, eq=False)
class RunOptions:
    """How inputs are run, and which rule may decide on them.

    batch_size, chunk  the inputs, and the steps, that are computed together; chunk None: the
                       engine's choice
    steps              for how many steps images (n, 1, ...) are held
    lengths, mask      (n,) or (n, T): where each input ends; see `ending`
    groups             of the inputs, for a rule with groups
    first              the number of the first input, on which randomised merging and members that
                       are drawn for every input depend. Without it numbers begin at 0, and the
                       random numbers of randomised merging are fresh
    any_engine, any_members   allow another engine, or other members, than calibrated with
    digest             of the members, where it is known
    training           the rows that the members were trained on, where they know them
    """

    batch_size: int = BATCH_SIZE
    chunk: int | None = None
    steps: int | None = None
    lengths: ArrayLike | None = None
    mask: ArrayLike | None = None
    groups: ArrayLike | None = None
    first: int | None = None
    any_engine: bool = False
    any_members: bool = False
    digest: str = ""
    training: TrainingRows | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "chunk", "steps", "first"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, as_count(value, name, least=int(name != "first")))

    def ending(
        self, engine: Engine, inputs: ArrayLike | Events
    ) -> tuple[Engine, Inputs, Integers | None]:
        """The inputs without padding, the engine that runs them up to their ends, and these."""
        given = as_inputs(inputs)
        if self.lengths is None and self.mask is None:
            return engine, given, None
        ends = as_lengths(self.lengths, self.mask, given.shape)
        ending = EndingInputs(engine, ends, self.first or 0)
        return ending, without_padding(given, ends), ends

    def trained(
        self, inputs: ArrayLike | Events, ids: NDArray[np.uint64] | None
    ) -> tuple[Booleans, float] | None:
        """Which inputs are among the rows of training, as networks read them, and the share that
        is so by chance. ids: their hashes as they are, where they are known.
        """
        if self.training is None:
            return None
        given = as_inputs(inputs)
        padded = self.lengths is not None or self.mask is not None
        if ids is None or padded or given.dtype == np.float64:
            ids = input_ids(given, as_float32=True)
        return self.training.find(ids), self.training.chance


DEFAULTS = RunOptions()


@dataclass(frozen=True, eq=False)
class EarlyRun:
    """Decisions on n inputs, the steps (n,) and member-steps (n,) that were computed for each,
    and the seconds that all of it took.
    """

    decisions: Decisions
    computed: Integers = field(repr=False)
    seconds: float
    work: Integers = field(repr=False)


@dataclass(frozen=True, eq=False)
class Outcomes:
    """How n inputs ended, and the steps (n,) and member-steps (n,) that were computed."""

    stops: Stops
    computed: Integers
    work: Integers

    def complete(self, rows: Integers, later: "Outcomes") -> None:
        """Add how some rows ended that were undecided, and the work on them, which began again
        with their first step.
        """
        for one in fields(self.stops):
            getattr(self.stops, one.name)[rows] = getattr(later.stops, one.name)
        self.computed[rows] = np.maximum(self.computed[rows], later.computed)
        self.work[rows] += later.work


@runtime_checkable
class DecidingEngine(Protocol):
    """An engine that schedules its inputs itself while it decides (continuous batching)."""

    def decide(
        self, inputs: Inputs, prefilter: Prefilter, slots: int, chunk: int | None
    ) -> Outcomes | None:
        """Decide on inputs (n, T, ...) or `Events`, at most `slots` of them computed together.

        None if it cannot for these inputs.

        With a `Schedule`, inputs that the first members do not decide have the index -1 and are
        left to the caller.
        """


def decide_early(
    engine: Engine,
    calibrated: CalibratedRule,
    inputs: ArrayLike | Events,
    options: RunOptions = DEFAULTS,
) -> EarlyRun:
    """Decide on inputs (n, T, ...) or `Events`, or on images (n, 1, ...), and stop computing where
    the rule stops.

    The decisions are those of `calibrated.decide` on the scores that the same engine computes to
    the end. An input is computed up to the end of the chunk in which it stops. Images are held up
    to the rule's last checkpoint where `options.steps` is None, with a warning.
    """
    check_rule(calibrated, engine, options)
    check_whole_inputs(calibrated)
    first = options.first or 0
    engine, given, ends = options.ending(engine, inputs)
    calibrated.check_classes(given.classes if isinstance(given, Events) else None)
    calibrated.check_lengths(ends)
    held = options.steps is None and given.shape[1] == 1
    times = checkpoint_steps(calibrated, engine, None if held else _length(given, options.steps))
    if held and times[-1] > 1:
        warnings.warn(
            f"the inputs have one step and are held for {times[-1]}: give steps={times[-1]} if "
            "they are images.",
            stacklevel=2,
        )
    prefilter = prefilter_for(calibrated, engine.output)
    inside = calibrated.find_groups(options.groups, len(given))
    began = perf_counter()

    def decide_chunkwise(some: Inputs) -> Outcomes:
        on_cpu = prefilter if prefilter is not None and can_prefilter_on_cpu() else None
        members = MemberGroups(engine, calibrated.judged_members)

        def decide(batch: Inputs, begin: int) -> Outcomes:
            number = None if options.first is None else first + begin
            known = None if inside is None else inside[begin : begin + len(batch)]
            state = calibrated.start(len(batch), number, known)
            run = JoiningPass(members, batch, first + begin, engine.output)
            return _decide_batch(engine, calibrated, on_cpu, run, state, options.chunk)

        return _in_batches(engine, some, options.batch_size, decide)

    outcomes = _decide_on_engine(engine, prefilter, given, options)
    if outcomes is None:
        outcomes = decide_chunkwise(given)
    else:
        undecided = np.flatnonzero(outcomes.stops.index < 0)
        # a rule that an engine decides with does not depend on numbers or groups
        for begin in range(0, len(undecided), options.batch_size):
            left = undecided[begin : begin + options.batch_size]
            outcomes.complete(left, decide_chunkwise(given[left]))
    seconds = perf_counter() - began
    if ends is not None:  # all members that run compute the same steps
        computed = np.minimum(outcomes.computed, ends)
        work = outcomes.work // outcomes.computed * computed
        outcomes = replace(outcomes, computed=computed, work=work)
    ids = input_ids(given) if calibrated.knows_ids else None  # hashing takes a while
    trained = options.trained(inputs, ids)
    overlap = None if trained is None else Overlap.of("training", "ids", *trained)
    about = or_unknown(overlap, options.digest)
    decisions = calibrated.decisions(outcomes.stops, ids, groups=inside, training=about)
    return EarlyRun(decisions, outcomes.computed, seconds, outcomes.work)


def _decide_on_engine(
    engine: Engine, prefilter: Prefilter | None, inputs: Inputs, options: RunOptions
) -> Outcomes | None:
    """The outcomes of an engine that schedules its inputs itself; None where it cannot."""
    if prefilter is None or not prefilter.fits_gpu or not isinstance(engine, DecidingEngine):
        return None
    try:
        return engine.decide(inputs, prefilter, options.batch_size, options.chunk)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        warnings.warn(
            f"memory is too small for {options.batch_size} inputs at once with continuous "
            "batching: a slower way is used.",
            stacklevel=3,
        )
        return None


def _decide_batch(
    engine: Engine,
    calibrated: CalibratedRule,
    prefilter: Prefilter | None,
    run: "JoiningPass",
    state: State,
    chunk: int | None,
) -> Outcomes:
    """Run a batch chunk by chunk until all inputs have stopped.

    Without a prefilter the inputs are judged at one checkpoint after the other, with one at those
    where they may stop or where their state may change.
    """
    times, first = np.array(calibrated.checkpoints, dtype=np.int64), 0
    stops = Stops.empty(len(state), calibrated.classes, state.depths)
    computed = np.zeros(len(state), np.int64)
    while len(run.active):
        active, length = run.active, chunk or engine.chunk_steps(len(run.active))
        # up to the next checkpoint at least
        last = max(first + 1, int(np.searchsorted(times, run.time + length, side="right")))
        evidence = run.advance_to(times[first:last], first)
        count, every = evidence.shape[1], np.arange(len(active))
        index = np.arange(first, first + count)
        rounds: Iterable[tuple[Index, Integers, Integers]]
        rounds = ((one, every, every * count + one - first) for one in index.tolist())
        if prefilter is not None:
            where = np.flatnonzero(prefilter.may_stop(evidence, index))
            rounds = in_rounds(index[where % count], where // count, where)
        state, running = run_rounds(
            calibrated.judge_some(evidence.reshape(-1, *evidence.shape[2:])),
            state,
            rounds,
            lambda at, index, verdict: stops.put(active[at // count], index, verdict),  # noqa: B023
        )
        computed[active] = run.time
        state, first = state.rows(running), first + count
        run.keep(running)
    return Outcomes(stops, computed, run.work)


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
    options: RunOptions = DEFAULTS,
) -> Scores:
    """Log-confidences of all members after every step, for inputs (n, T, ...) or `Events`, or
    images (n, 1, ...) held for `options.steps` steps.

    labels (n,) and the names of classes are those of the `Events` where they are not given. Of
    inputs with lengths, the scores at the end stand for all later steps.
    """
    engine, given, ends = options.ending(engine, inputs)
    if isinstance(given, Events):
        labels = given.labels if labels is None else labels
        classes = given.classes if classes is None else classes
    truth = None if labels is None else np.asarray(labels)
    length, first = _length(given, options.steps), options.first or 0

    def run(batch: Inputs, begin: int) -> Floats:
        outputs = engine.begin(batch, first + begin).advance(length)
        if engine.output == "spikes":
            return log_confidence(np.cumsum(outputs, axis=1, dtype=np.int64))
        check_finite(outputs, "the output of the members")
        return log_confidence(outputs)

    values = _in_batches(engine, given, options.batch_size, run)
    names = None if classes is None else tuple(classes)
    rounding = 0.0 if engine.output == "spikes" else ROUNDING
    times, ids = tuple(range(1, length + 1)), input_ids(given)
    trained = options.trained(inputs, ids) or ()
    return Scores(
        values, truth, times, names, engine.name, options.digest, ids, ends, rounding, *trained
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
    return join_parts(results)


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
    steps = last if as_inputs(inputs).shape[1] == 1 else None
    options = RunOptions(any_engine=True, steps=steps)
    early_on = partial(decide_early, engine, calibrated, inputs, options)
    to_the_end = partial(decide_early, engine, calibrated, inputs, replace(options, chunk=last))
    early_on()  # warm-up: compilation and CUDA graphs
    runs = [(early_on(), to_the_end()) for _ in range(repeats)]
    early, to_end = (np.median([run.seconds for run in some]) for some in zip(*runs, strict=True))
    computed = float(runs[-1][0].computed.mean()) / last
    return TimeSaved(engine.name, float(early), float(to_end), computed)


def check_rule(calibrated: CalibratedRule, engine: Engine, options: RunOptions = DEFAULTS) -> None:
    """Refuse what is not a calibrated rule, and a rule of another engine or ensemble."""
    check_calibrated(calibrated)
    allowed = options.any_engine, options.any_members
    calibrated.check_source(engine.name, options.digest, *allowed)


def check_whole_inputs(calibrated: CalibratedRule) -> None:
    """Refuse a rule for windows of a stream where inputs run from their first step."""
    if calibrated.heard:
        raise InputError(
            f"the rule was calibrated on scores with {calibrated.heard}: its steps count from an "
            "alarm, and these inputs run from their first step. Give it to watch, behind its "
            "spotter, or calibrate on scores of whole inputs."
        )


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


# ---- members that join


class MemberGroups:
    """The groups of an engine under a rule.

    `members` (M,) is the number of members that each look judges.
    """

    def __init__(self, engine: Engine, members: Sequence[int]) -> None:
        self._engines: list[Engine | None] = [engine]
        self._engine, self._ends = engine, [engine.members]
        self.members: Integers = np.array(members)
        ends = np.unique(self.members).tolist()
        if isinstance(engine, DividingEngine) and ends != self._ends:
            first = engine.members_slice(0, ends[0])
            if first is not None:
                self._ends, self._engines = ends, [first, *[None] * (len(ends) - 1)]

    def __len__(self) -> int:
        return len(self._ends)

    def engine(self, group: int) -> Engine:
        """The engine of one group; it is made when the group first joins."""
        found = self._engines[group]
        if found is None:
            assert isinstance(self._engine, DividingEngine)
            found = self._engine.members_slice(self._ends[group - 1], self._ends[group])
            assert found is not None, "an engine that gives some of its members gives the others"
            self._engines[group] = found
        return found

    def needed(self, look: int) -> int:
        """The number of groups that a look needs."""
        return 1 if len(self) == 1 else self._ends.index(self.members[look]) + 1

    def run_length(self, look: int) -> int:
        """The number of looks from this one on that judge as many members."""
        return int((self.members == self.members[look])[look:].sum())


class JoiningPass:
    """A batch on its way through time; groups of members join it."""

    def __init__(self, groups: MemberGroups, batch: Inputs, first: int, output: str) -> None:
        self._groups = groups
        self._batch = batch
        self._first = first
        self._spikes = output == "spikes"
        self._passes: list[Pass] = []
        # the inputs (rows,) that are still running
        self.active: Integers = np.arange(len(batch))
        self.time, self.work = 0, np.zeros(len(batch), np.int64)
        # (rows, K, C) of the members that have joined: spike counts so far, or logits
        self.evidence: NDArray[Any] | None = None

    def _join(self, count: int) -> None:
        """Let the first `count` groups take part, and bring the new ones to the time
        of the others.
        """
        for group in range(len(self._passes), count):
            engine = self._groups.engine(group)
            self._passes.append(engine.begin(self._batch, self._first))
            if len(self.active) < len(self._batch):
                self._passes[-1].keep(np.isin(np.arange(len(self._batch)), self.active))
            shape = (len(self.active), engine.members, engine.classes)
            caught_up: NDArray[Any] = np.zeros(shape, np.int64 if self._spikes else np.float64)
            if self.time:
                outputs = self._passes[-1].advance(self.time)
                if not self._spikes:
                    check_finite(outputs, "the output of the members")
                caught_up = outputs.sum(axis=1, dtype=np.int64) if self._spikes else outputs[:, -1]
                self.work[self.active] += self.time * engine.members
            self.evidence = (
                caught_up
                if self.evidence is None
                else np.concatenate([self.evidence, caught_up], axis=1)
            )

    def advance_to(self, times: Integers, first: int) -> NDArray[Any]:
        """The evidence (rows, checkpoints, K, C) at these times, of the members that are judged.

        They are those of the checkpoints from number `first` on, as far as these ask for the same
        members. Members that join replay what they missed.
        """
        groups = self._groups
        self._join(groups.needed(first))
        times = times[: groups.run_length(first)]
        # the steps, from 0, after which evidence is needed; -1: members joined at this very time
        offsets, steps = times - self.time - 1, int(times[-1]) - self.time
        evidence = cast(NDArray[Any], self.evidence)
        before = [evidence[:, None]] if offsets[0] < 0 else []
        if steps:
            outputs = join_parts([run.advance(steps) for run in self._passes], 2)
            self.time += steps
            self.work[self.active] += steps * outputs.shape[2]
            later = offsets[offsets >= 0]
            if self._spikes:
                found = np.add.reduceat(outputs, [0, *(later[:-1] + 1)], axis=1, dtype=np.int64)
                found[:, 0] += evidence
                np.cumsum(found, axis=1, out=found)
            else:
                check_finite(outputs, "the output of the members")
                found = outputs[:, later]
            before, self.evidence = [*before, found], found[:, -1]
        return join_parts(before, 1)[:, :, : groups.members[first]]

    def keep(self, rows: Booleans) -> None:
        """Continue with some of the inputs that are running."""
        self.active = self.active[rows]
        self.evidence = cast(NDArray[Any], self.evidence)[rows]
        for run in self._passes:
            run.keep(rows)
