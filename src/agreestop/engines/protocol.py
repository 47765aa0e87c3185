"""What an engine offers: K members that run over inputs, in a batch or live, and that can drop the
inputs that have stopped.

    run = engine.begin(inputs)        inputs (n, T, ...), or images (n, 1, ...) that are held for
                                      any number of steps
    outputs = run.advance(8)          (rows, 8, K, C): read-out spikes or logits of the next 8 steps
    run.keep(undecided)               the other rows cost nothing from now on
    live = engine.live()
    evidence = live.push(events)      (K, C): spike counts so far, or logits of this step

The evidence after t steps is the spike counts up to t, or the logits at t. Its log-softmax is the
log-confidence that a rule judges.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import Booleans, Floats, Integers
from agreestop.events.container import Inputs

from .prefilter import Prefilter

CHUNK_STEPS = 8  # steps that an engine computes together by default
ENGINES = (
    "auto",
    "dense",
    "event-driven",
    "event-driven-bfloat16",
    "event-driven-int8",
    "fused",
    "fused-bfloat16",
)
"""Names of engines for members that are drawn once; "auto" chooses one of the others."""
# energy of a multiply-accumulate and of an accumulate (Horowitz 2014)
PICOJOULE_MULTIPLY, PICOJOULE_ACCUMULATE = 4.6, 0.9


class Pass(Protocol):
    """A batch of inputs on its way through time."""

    @property
    def rows(self) -> int:
        """The number of inputs that are still running."""

    def advance(self, steps: int) -> NDArray[Any]:
        """Outputs (rows, steps, K, C) of the next steps: bool for spikes, float for logits."""

    def keep(self, rows: Booleans) -> None:
        """Continue with the rows (rows,) that are True and drop the others."""


class Live(Protocol):
    """One live input."""

    def push(
        self, events: ArrayLike | None = None, *, frame: ArrayLike | None = None
    ) -> NDArray[Any]:
        """Run one step and return the evidence (K, C).

        events: flat indices of the inputs that are active in this step, none for a pause. frame:
        instead, one dense step of booleans or numbers, in the shape of one step of the input.
        """


class Engine(Protocol):
    """K members, ready to run.

    output: "spikes" or "logits". reason: one sentence that says why this engine was chosen, empty
    if it was named. copies_weights: whether it runs a copy of the weights, which later training
    does not change.
    """

    name: str
    members: int
    output: str
    reason: str
    copies_weights: bool

    @property
    def classes(self) -> int:
        """The number of classes C."""

    def chunk_steps(self, rows: int) -> int:
        """The number of steps to compute together while this many inputs are running."""

    def begin(self, inputs: Inputs, first: int = 0) -> Pass:
        """Start on inputs (n, T, ...), or on images (n, 1, ...) that are held; `first` is the
        number of the first input.

        An array or `Events`; an engine that needs an array makes one of this batch
        (`inputs.check_inputs`).
        """

    def live(self, number: int = 0) -> Live:
        """Start on one live input, which has this number."""


def describe(engine: Engine) -> str:
    """An engine in words, for its `repr`."""
    return (
        f"{type(engine).__name__}(name={engine.name!r}, members={engine.members}, "
        f"output={engine.output!r})"
    )


@dataclass(frozen=True, eq=False)
class Operations:
    """What the members did, (n, T, K) each: spikes emitted, accumulates, multiply-accumulates."""

    emitted: Integers
    accumulates: Integers
    multiplies: Integers


def running_energy(operations: Operations) -> Floats:
    """Energy (n, T, K) in nanojoules that each member has spent on each input up to each step,
    by the usual estimate for 45 nm.
    """
    spent = (
        PICOJOULE_MULTIPLY * operations.multiplies + PICOJOULE_ACCUMULATE * operations.accumulates
    )
    return np.cumsum(spent / 1000, axis=1)


@dataclass(frozen=True, eq=False)
class EnsembleRun:
    """Read-out spikes (n, T, K, C) of K members over T steps, and the operations that
    produced them.
    """

    spikes: Booleans
    operations: Operations


@runtime_checkable
class CountingPass(Protocol):
    """A pass that can also count the operations behind its spikes."""

    def advance_counted(self, steps: int) -> EnsembleRun:
        """Spikes and operations of the next steps."""


@runtime_checkable
class DividingEngine(Protocol):
    """An engine that can run some of its members without the others, so that members may join
    later (see `decide.Schedule`).
    """

    def members_slice(self, first: int, last: int) -> Engine | None:
        """An engine of the members first … last - 1, whose outputs are those that they have
        among all; None if it cannot be divided.
        """


class LiveSlots(Protocol):
    """Many live inputs that are run together with the prefilter of a rule, each in a slot."""

    inputs: int
    """The number of inputs of one step."""

    repeats: str
    """What an event that is named several times in a step means: it counts "once" or "each"
    time, or is "refused".
    """

    def reset(self, slot: int) -> None:
        """Begin a new input in a slot."""

    def evidence(self, slot: int) -> NDArray[Any]:
        """The evidence (K, C) after the last step of the input in a slot."""

    def push(
        self, slots: Integers, pointers: Integers, indices: Integers, checked: bool = False
    ) -> tuple[Integers, NDArray[Any]] | None:
        """Run n steps in this order and find those that the rule must judge: m pairs (step,
        checkpoint), (m, 2), and the evidence (m, K, C) after these steps.

        Step i is the next one of the input in slots[i], and its events are indices[pointers[i] :
        pointers[i + 1]], flat; pointers is (n + 1,). All three are arrays of int64. None is
        returned, and nothing is run, if the steps must be `checked` first.
        """


class FilteredLive(Protocol):
    """One live input that is run together with the prefilter of a rule, step by step."""

    index: int
    """The next checkpoint of the rule: at those before, the input did not stop."""

    @property
    def time(self) -> int:
        """The number of steps so far."""

    @property
    def evidence(self) -> NDArray[Any]:
        """(K, C) after the last step, of the members that checkpoint `index` asks for; the next
        push overwrites it.
        """

    def push(self, events: ArrayLike | None, frame: ArrayLike | None) -> bool:
        """Run one step; whether it is checkpoint `index` and the rule must judge it.

        The caller moves `index` on then.
        """


@runtime_checkable
class FilteringEngine(Protocol):
    """An engine whose live steps include the prefilter of a rule."""

    def live_filtered(self, prefilter: Prefilter, times: Integers) -> FilteredLive:
        """Start on one live input; times (M,) are the checkpoints in steps."""


@runtime_checkable
class BatchingEngine(Protocol):
    """An engine that can compute many live inputs together."""

    def live_slots(
        self, slots: int, times: Integers, prefilter: Prefilter | None = None
    ) -> LiveSlots:
        """Slots for as many live inputs; times (M,) are the checkpoints in steps."""
