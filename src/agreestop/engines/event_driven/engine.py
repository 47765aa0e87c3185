"""The event-driven engine: K members on the CPU, where only active inputs and neurons that spike cost synaptic work.

A weight row holds the synapses of one input in all K members side by side, so one event is one read for all of them. Neurons are
those of `networks.srm`, in float32 and with the same roundings; batch normalisation, as in evaluation, is a gain and a constant
current for each channel; a max-pool of spikes is an "or".

    engine = EventDriven(network)                         float32, or precision="bfloat16" or "int8" for the weights
    batch = engine.begin(inputs)                          (n, T, ...)
    spikes = batch.advance(20)                            (rows, 20, K, C); the state is carried on
    batch.keep(undecided)                                 the others cost nothing from now on
    live = engine.live()
    counts = live.push(events)                            indices of the inputs that are active in this step

A result does not depend on the number of threads, on the other rows, on how the time is cut, or on batch or stream. It is that of
the dense engine but for the order in which a neuron's synapses are summed.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common.arrays import Booleans, Integers
from agreestop.common.cores import cores
from agreestop.common.errors import InputError
from agreestop.networks.architectures import Convolutional, FullyConnected, SpikingNetwork

from ..early_stopping import CHUNK
from ..inputs import as_inputs
from .layout import Plan, aligned, load_kernels, make_plan

PRECISIONS = ("float32", "bfloat16", "int8")
PAIRS_IN_A_BLOCK = 8192  # of row and step: enough for the weights of a tile to be fetched from afar for nothing
STEPS_IN_A_BLOCK = 128  # rather than rows: the state of the rows shares the second cache with the weights of the tile
BYTES_IN_A_BLOCK = 1 << 26
PARTS_A_THREAD = 4
NO_VALUES = np.zeros(0, dtype=np.float32)
LARGEST = float(np.finfo(np.float32).max)


@final
class EventDriven:
    """K members of a fully connected or convolutional network, as they are now: later training does not reach the engine.

    precision: how weights are kept. "float32" as they are; "bfloat16" rounded to 8 bits of mantissa, half the memory; "int8" in 127 steps
    for each member and output, a quarter of the memory and the fastest. State and sums are float32 in each (int8 weights of active
    inputs are summed exactly). threads: for batches, all cores where None; a stream takes one.

    The first batch and the first stream are compiled, which takes seconds. numba keeps the result next to this package's files, or in its
    own directory where those cannot be written (NUMBA_CACHE_DIR names another), or for this process alone.
    """

    def __init__(self, network: SpikingNetwork, precision: str = "float32", threads: int | None = None) -> None:
        if precision not in PRECISIONS:
            raise InputError(f"precision is {precision!r}: choose one of {', '.join(PRECISIONS)}.")
        if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
            raise InputError(f"threads is {threads!r}: an integer of at least 1 is needed, or None for all cores.")
        if not isinstance(network.config, (FullyConnected, Convolutional)):
            raise InputError(
                f"the network is a {type(network.config).__name__}, and the event-driven engine runs FullyConnected and Convolutional: "
                "use the dense engine."
            )
        self.name = "event-driven" if precision == "float32" else f"event-driven-{precision}"
        self.precision, self.threads = precision, threads or cores()
        self.input_shape = tuple(network.config.input_shape)
        self._plan = make_plan(network, precision)
        self.members, self.classes = self._plan.members, self._plan.classes

    def chunk_of(self, rows: int) -> int:
        """Steps that are worth computing together."""
        return CHUNK

    def begin(self, inputs: NDArray[Any]) -> EventDrivenPass:
        """A pass over inputs (n, T, *input_shape): booleans, 0 and 1, or real numbers where the network's settings allow them.

        The inputs are looked at in place, and copied only if they do not lie in order.
        """
        array = as_inputs(inputs, self.input_shape)
        flat = np.ascontiguousarray(array).reshape(*array.shape[:2], -1)
        if flat.dtype.kind == "f" and max(-flat.min(), flat.max()) > LARGEST:
            raise InputError(f"inputs reaches {max(-flat.min(), flat.max()):.3g}, which float32 cannot hold: rescale the inputs.")
        binary = _is_binary(flat)
        if not binary and not self._plan.real_input:
            raise InputError("inputs holds values other than 0 and 1: set real_input=True in the settings of the network to use them.")
        return EventDrivenPass(self._plan, flat.view(np.uint8) if binary and flat.itemsize == 1 else flat, not binary, self.threads)

    def live(self) -> LiveRun:
        """One stream that is pushed step by step."""
        return LiveRun(self._plan)


def _is_binary(flat: NDArray[Any]) -> bool:
    """Whether all is 0 or 1, without a temporary the size of the array."""
    if flat.dtype.kind in "bui":
        return flat.dtype == np.bool_ or bool(flat.min() >= 0 and flat.max() <= 1)
    return all(bool(((row == 0) | (row == 1)).all()) for row in flat)


@dataclass(frozen=True, eq=False)
class _Lists:
    """Room for lists of events: where each begins, the events, and their values."""

    starts: Integers
    events: NDArray[np.int32]
    values: NDArray[np.float32]
    currents: NDArray[np.float32]

    @classmethod
    def of(cls, lists: int, size: int, lanes: int = 0) -> _Lists:
        """For that many lists, of that size in all, and currents of that many lanes; memory that no event reaches is never touched."""
        kernels = load_kernels()
        events, currents = size + kernels.SPARE, max(lanes, kernels.WIDE * kernels.STEPS_SUMMED)
        return cls(np.empty(lists + 1, np.int64), np.empty(events, np.int32), np.empty(size, np.float32), aligned(currents, np.float32))


@dataclass(frozen=True, eq=False)
class _Block:
    """Room for the spikes of all layers in some rows and steps, for the lists of inputs, and for the lists that each thread makes."""

    pairs: int
    steps: int
    received: NDArray[np.uint64]
    spikes: list[NDArray[np.uint64]]
    pooled: list[NDArray[np.uint64]]
    inputs: _Lists
    local: list[_Lists]

    @classmethod
    def of(cls, plan: Plan, pairs: int, steps: int, threads: int) -> _Block:
        """For that many pairs of row and step; an odd number of cache lines, as for the weights."""
        columns = (-(-pairs // 8) | 1) * 8
        return cls(
            pairs,
            steps,
            np.zeros((plan.received, columns), np.uint64),
            [np.zeros((words, columns), np.uint64) for words in plan.spikes],
            [np.zeros((words, columns), np.uint64) for words in plan.pooled],
            _Lists.of(pairs, 0 if plan.received else pairs * plan.inputs),
            [_Lists.of(steps, steps * plan.listed) for _ in range(threads)],
        )


@final
class EventDrivenPass:
    """A batch on its way through time. Made by `EventDriven.begin`."""

    def __init__(self, plan: Plan, inputs: NDArray[Any], valued: bool, threads: int) -> None:
        self._plan, self._inputs, self._valued, self._threads = plan, inputs, valued, threads
        self._left: Integers = np.arange(len(inputs))
        self._time = 0
        self._state = aligned(len(inputs) * plan.state, np.float32)
        words = plan.received + sum(plan.spikes) + sum(plan.pooled)
        self._pairs = max(1, min(PAIRS_IN_A_BLOCK, BYTES_IN_A_BLOCK // (8 * words + 8 * plan.inputs)))
        self._block: _Block | None = None
        self._pool: ThreadPoolExecutor | None = None

    @property
    def rows(self) -> int:
        """Inputs that are still running."""
        return len(self._left)

    def keep(self, rows: Booleans) -> None:
        """Go on with those rows of (rows,) that are True; the others are dropped and cost nothing from now on."""
        chosen = np.asarray(rows)
        if chosen.shape != (self.rows,) or chosen.dtype != np.bool_:
            raise InputError(
                f"rows has shape {chosen.shape} and type {chosen.dtype}: "
                f"one boolean for each of the {self.rows} inputs still running is needed."
            )
        self._left = self._left[chosen]

    def advance(self, steps: int) -> Booleans:
        """Read-out spikes (rows, steps, K, C) of the next steps."""
        remaining = self._inputs.shape[1] - self._time
        if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or not 1 <= steps <= remaining:
            raise InputError(
                f"steps is {steps!r} and {remaining} of {self._inputs.shape[1]} time steps remain: give an integer from 1 to what remains."
            )
        spikes = np.empty((self.rows, steps, self._plan.members, self._plan.classes), dtype=np.bool_)
        length = min(int(steps), self._pairs, STEPS_IN_A_BLOCK)
        height = self._pairs // length
        for top in range(0, self.rows, height):
            for first in range(0, int(steps), length):
                part = spikes[top : top + height, first : first + length]
                part[:] = self._run(self._left[top : top + height], self._time + first, part.shape[1])
        self._time += int(steps)
        return spikes

    def _run(self, slots: Integers, first: int, steps: int) -> Booleans:
        """Some rows over a block of steps, layer after layer."""
        kernels, plan, pairs = load_kernels(), self._plan, len(slots) * steps
        if self._block is None or self._block.pairs < pairs or self._block.steps < steps:
            self._block = _Block.of(plan, pairs, steps, self._threads)
        block, lists = self._block, self._block.inputs
        marks, frames, rows, total = self._inputs.reshape(-1), NO_VALUES, slots, self._inputs.shape[1]
        if marks.dtype != np.uint8 or self._valued:
            part = self._inputs[slots, first : first + steps].reshape(-1)
            marks, rows, total, first = (part != 0).view(np.uint8), np.arange(len(slots)), steps, 0
            frames = part.astype(np.float32) if self._valued else NO_VALUES
        if plan.received:
            kernels.mark_positions(plan.layers[0], marks, total, rows, first, steps, block.received)
        else:
            room = (lists.starts, lists.events, lists.values)
            kernels.list_inputs(marks, frames, self._valued, plan.inputs, total, rows, first, steps, *room)
        arrived = block.received
        for place, layer in enumerate(plan.layers):
            spikes, shared = block.spikes[place], not (place or plan.received)
            fixed = (layer, plan.members, plan.weights, plan.constants[place], plan.scale, plan.bias, slots, plan.state, self._state, steps)
            given = (*fixed, spikes, arrived, frames, self._valued and place == 0)
            if shared:
                units = plan.members * int(layer["wide"] + layer["narrow"])
                self._share(units * len(slots), kernels.advance, (*given, *room), block.local, ("currents",))
            else:
                units = (plan.members if place else 1) * int(layer["height"])
                self._share(units * len(slots), kernels.advance, given, block.local, ("starts", "events", "values", "currents"))
            arrived = spikes
            if layer["pool"]:
                arrived = block.pooled[place]
                lines = plan.members * int(layer["height"] // 2)
                self._share(lines, kernels.pool, (layer, pairs, spikes, arrived), block.local, ())
        bits = arrived[:, :pairs].reshape(plan.members, -1, len(slots), steps).transpose(2, 3, 0, 1)  # (rows, steps, K, words)
        return np.unpackbits(np.ascontiguousarray(bits).view(np.uint8), axis=-1, count=plan.classes, bitorder="little").view(np.bool_)

    def _share(
        self, items: int, kernel: Callable[..., None], arguments: tuple[Any, ...], local: list[_Lists], own: tuple[str, ...]
    ) -> None:
        """Run a kernel over its items in a few parts for each thread, so that one that others hold up does not hold up all."""
        threads = min(self._threads, items)
        size = -(-items // (PARTS_A_THREAD * threads)) if threads > 1 else items
        parts = iter(range(0, items, size))

        def take(lists: _Lists) -> None:
            mine = tuple(getattr(lists, name) for name in own)
            for start in parts:
                kernel(*arguments, *mine, start, min(start + size, items))

        if threads > 1 and self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads - 1)
        others = [self._pool.submit(take, lists) for lists in local[1:threads]] if self._pool is not None else []
        take(local[0])
        for other in others:
            other.result()


@final
class LiveRun:
    """One live stream, all members, in one thread. Made by `EventDriven.live`.

    A pause is a step without events. The state stays bounded and the counts are 64-bit, so a stream need not end.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan, self._kernel = plan, load_kernels().push
        self._counts: Integers = np.zeros((plan.members, plan.classes), np.int64)
        self._state = aligned(plan.state, np.float32)
        self._events: Integers = np.zeros(plan.inputs, np.int64)
        lists = _Lists.of(1, plan.listed, plan.members * int(plan.layers[0]["lanes"]))
        self._before = (plan.layers, plan.weights, plan.constants, plan.scale, plan.bias)
        self._after = (
            np.zeros(plan.inputs, np.uint8),
            np.zeros(plan.inputs, np.float32),
            np.zeros(1, np.int64),
            self._state,
            np.zeros((plan.received + sum(plan.spikes) + sum(plan.pooled), 1), np.uint64),
            lists.starts,
            lists.events,
            lists.values,
            lists.currents,
            self._counts,
        )
        self.push(self._events[:0])  # so that numba compiles now, and not while the stream waits
        self.reset()

    def push(self, events: ArrayLike, values: ArrayLike | None = None) -> Integers:
        """One time step: the flat indices of its active inputs, none for a pause, to the spike counts (K, C) so far.

        The next push overwrites what is returned. The order of the indices means nothing, and one that is repeated counts once, as in
        `frame[events] = 1`; with values, for a network of real inputs, as in `frame[events] = values`. Nothing is allocated where events
        are an array of int64. A refused step leaves the stream as it was.
        """
        given = self._indices(events)
        real = NO_VALUES if values is None else self._real(values, len(given))
        wrong = self._kernel(*self._before, given, real, values is not None, *self._after)
        if wrong >= 0:
            raise InputError(
                f"events holds {given[wrong]}, but the inputs are numbered from 0 to {self._plan.inputs - 1}: "
                "drop events outside the sensor, or give flat indices."
            )
        return self._counts

    def reset(self) -> None:
        """Begin again, with nothing seen."""
        self._state[:] = 0
        self._counts[:] = 0

    def _indices(self, events: ArrayLike) -> Integers:
        if type(events) is np.ndarray and events.dtype == np.int64 and events.ndim == 1 and events.flags.carray:
            return events
        array = np.asarray(events)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise InputError(
                f"events has shape {array.shape} and type {array.dtype}: a list of the flat indices of active inputs is needed, "
                "which numpy.flatnonzero gives for a frame."
            )
        if array.size > len(self._events):
            return array.astype(np.int64)
        room = self._events[: array.size]
        room[:] = array
        return room

    def _real(self, values: ArrayLike, events: int) -> NDArray[np.float32]:
        if not self._plan.real_input:
            raise InputError("values is given to a network of spikes: set real_input=True in its settings, or leave values out.")
        with np.errstate(over="ignore"):
            real = np.array(values, dtype=np.float32)
        if real.shape != (events,) or not np.isfinite(real).all():
            raise InputError(f"values has shape {real.shape} for {events} events: one finite number for each event is needed.")
        return real
