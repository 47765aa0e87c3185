"""Live inputs on the event-driven engine: one, or many in slots."""

from typing import Any, cast, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import Integers

from ..inputs import check_events, check_frame, check_one_of, count_repeats
from ..prefilter import Prefilter
from .layout import NO_VALUES, FlatNetwork, Lists, aligned, load_kernels

NOT_VALUED = NO_VALUES, False
NO_PREFILTER = 1.0, np.empty(0), np.empty(0), np.empty((0, 0)), 0, 0.0, 0.0
"""The numbers of a prefilter without bounds, so that the rule judges every checkpoint."""
MOST_TOGETHER = 512
"""Steps of live inputs that are computed layer by layer together."""
_COMPILED: set[tuple[Any, np.dtype[Any]]] = set()
"""Kernels that have run, and the types of their weights."""


def _with_values(values: NDArray[np.float32] | None) -> tuple[NDArray[np.float32], bool]:
    """The values of events as kernels take them, and whether there are any."""
    return NOT_VALUED if values is None else (values, True)


def _live_buffers(network: FlatNetwork) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Buffers for one step of one live input: marks, values and slot of the input; spikes and
    lists of the layers.
    """
    lanes = network.members * int(network.layers[0]["lanes"])
    lists = Lists.of(1, network.listed, lanes, network.window)
    # seven more, since the kernels test eight at once, as in Block
    words = network.received + sum(network.spikes) + sum(network.pooled) + 7
    marks, values = np.zeros(network.inputs, np.uint8), np.zeros(network.inputs, np.float32)
    spikes = np.zeros((words, 1), np.uint64)
    inputs = marks, values, np.zeros(1, np.int64)
    return inputs, (spikes, lists.active, lists.starts, lists.events, lists.values, lists.currents)


def _buffers_together(network: FlatNetwork, slots: int) -> tuple[Any, ...]:
    """Buffers for steps of many live inputs at once: spikes, lists of events, and currents.

    Networks of convolutions, and recurrent ones, run one step after the other.
    """
    layers, most = network.layers, min(slots, MOST_TOGETHER)
    if layers["convolves"].any() or layers["recurrent"].any():
        most = 0
    spikes = np.zeros((sum(network.spikes), most), np.uint64)
    lists = Lists.of(most, most * network.listed, most * load_kernels().WIDE)
    return spikes, lists.starts, lists.events, lists.currents


def _judging(
    network: FlatNetwork, clock: Integers, times: Integers, prefilter: Prefilter | None
) -> tuple[Any, ...]:
    """What kernels take to find the steps that the rule must judge."""
    members, classes = network.members, network.classes
    scratch = np.empty((members, classes)), np.empty(members), np.empty((2, classes))
    numbers = NO_PREFILTER if prefilter is None else prefilter.numbers_of_counts
    return clock, times, *numbers, *scratch, np.empty(classes, np.int64)


@final
class EventDrivenSlots:
    """Many live inputs, each in a slot of its own and at a time of its own, all members.

    See `protocol.LiveSlots`.

    Slots share the buffers of a step, so an input costs only its state and its counts. Results are
    those of `EventDrivenLive`.
    """

    def __init__(
        self,
        network: FlatNetwork,
        slots: int,
        repeats: str,
        times: Integers,
        prefilter: Prefilter | None,
    ) -> None:
        self._network, self._kernel = network, load_kernels().push_rows
        self._counts: Integers = np.zeros((slots, network.members, network.classes), np.int64)
        self._states = aligned(slots * network.state, np.float32).reshape(slots, network.state)
        self._clocks: Integers = np.zeros((slots, 2), np.int64)
        inputs, buffers = _live_buffers(network)
        # what the kernel takes before the results of a push, and after them
        self._before = *inputs, self._states, *buffers, self._counts
        judging = _judging(network, self._clocks, times, prefilter)
        self._after = *_buffers_together(network, slots), *judging
        self.inputs, self.repeats = network.inputs, repeats
        # numba compiles now rather than during a stream
        self.push(np.zeros(1, np.int64), np.zeros(2, np.int64), np.zeros(0, np.int64), True)
        self.reset(0)

    def reset(self, slot: int) -> None:
        self._states[slot], self._counts[slot], self._clocks[slot] = 0, 0, 0

    def evidence(self, slot: int) -> Integers:
        return self._counts[slot]

    def push(
        self, slots: Integers, pointers: Integers, indices: Integers, checked: bool = False
    ) -> tuple[Integers, Integers] | None:
        network, values = self._network, None
        if self.repeats != "once" and not checked:
            return None
        if self.repeats == "each":
            pointers, indices, values = count_repeats(pointers, indices, network.inputs)
        given = slots, pointers, indices, *_with_values(values), checked
        found = np.empty((len(slots), 2), np.int64)
        evidence = np.empty((len(slots), network.members, network.classes), np.int64)
        before = network.layers, network.weights, network.constants, *given, *self._before
        count = self._kernel(*before, found, evidence, *self._after)
        return None if count < 0 else (found[:count], evidence[:count])


@final
class EventDrivenLive:
    """One live input, all members, in one thread.

    The state stays bounded and the counts are 64-bit, so a stream need not end.
    """

    def __init__(self, network: FlatNetwork, input_shape: tuple[int, ...], repeats: str) -> None:
        self.network, self._shape, self._repeats = network, input_shape, repeats
        self.counts: Integers = np.zeros((network.members, network.classes), np.int64)
        self._state = aligned(network.state, np.float32)
        inputs, buffers = _live_buffers(network)
        # what a kernel takes before the events of a step, and after them
        self.before = network.layers, network.weights, network.constants
        self.after: tuple[Any, ...] = (*inputs, self._state, *buffers, self.counts)
        self._kernel = load_kernels().push

    def compile(self, kernel: Any, *more: Any) -> None:
        """Have numba compile a kernel before the stream rather than during it."""
        known = kernel, self.network.weights.dtype
        if known not in _COMPILED:
            kernel(*self.before, np.zeros(0, np.int64), *NOT_VALUED, *self.after, *more)
            self._state[:], self.counts[:] = 0, 0
            _COMPILED.add(known)

    def push(self, events: ArrayLike | None = None, *, frame: ArrayLike | None = None) -> Integers:
        """Run one step (see `protocol.Live`) and return the spike counts (K, C) so far, which the
        next push overwrites.

        The order of events has no meaning, and what a repeated one means depends on the members.
        Nothing is allocated where events are an array of int64 for members of 0 and 1. A step that
        is refused leaves the input as it was.
        """
        given, values = self.read(events, frame)
        self.check(self._kernel(*self.before, given, *values, *self.after), given)
        return self.counts

    def read(
        self, events: ArrayLike | None, frame: ArrayLike | None
    ) -> tuple[Integers, tuple[NDArray[np.float32], bool]]:
        """The flat indices of the active inputs; their values, and whether they have any."""
        check_one_of(events, frame)
        given, values = (
            self._from_events(events)
            if events is not None
            else self._from_frame(cast(ArrayLike, frame))
        )
        return given, _with_values(values)

    def check(self, wrong: int, given: Integers) -> None:
        """Refuse a step with events that are no inputs, of which one is number `wrong`."""
        if wrong >= 0:
            check_events(given, self.network.inputs)  # says which

    def _from_frame(self, frame: ArrayLike) -> tuple[Integers, NDArray[np.float32] | None]:
        """The flat indices of the active inputs, and their values for a network of real inputs."""
        flat = check_frame(frame, self._shape, self.network.real_input)
        active = np.flatnonzero(flat)
        if not self.network.real_input:
            return active, None
        return active, flat[active].astype(np.float32)

    def _from_events(self, events: ArrayLike) -> tuple[Integers, NDArray[np.float32] | None]:
        """The same from flat indices, which may be repeated."""
        whole, indices = self.network.inputs, cast(Integers, events)
        plain = (
            type(events) is np.ndarray
            and events.dtype == np.int64
            and events.ndim == 1
            and events.flags.carray
        )
        # as many indices as inputs may be a frame
        if self._repeats != "once" or not plain or len(indices) == whole:
            indices = check_events(events, whole, self._repeats)
        if self._repeats != "each":
            return indices, None
        _, indices, values = count_repeats(np.array([0, len(indices)]), indices, whole)
        return indices, values


@final
class EventDrivenFiltered:
    """One live input and the prefilter of a rule, both in one compiled call.

    See `protocol.FilteredLive`.
    """

    def __init__(self, live: EventDrivenLive, prefilter: Prefilter, times: Integers) -> None:
        self._live, self._kernel, self.evidence = live, load_kernels().push_filtered, live.counts
        self._clock: Integers = np.zeros(2, np.int64)
        judging = _judging(live.network, self._clock, times, prefilter)
        live.compile(self._kernel, *judging)
        self._clock[:] = 0
        self._before, self._after = live.before, (*live.after, *judging)

    @property
    def time(self) -> int:
        return int(self._clock[0])

    @property
    def index(self) -> int:
        return int(self._clock[1])

    @index.setter
    def index(self, index: int) -> None:
        self._clock[1] = index

    def push(self, events: ArrayLike | None, frame: ArrayLike | None) -> bool:
        given, values = self._live.read(events, frame)
        found = self._kernel(*self._before, given, *values, *self._after)
        if found < 0:
            self._live.check(-1 - found, given)
        return bool(found)
