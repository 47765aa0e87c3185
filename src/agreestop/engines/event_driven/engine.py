"""The event-driven engine: K members on the CPU, where only active inputs and neurons that spike
cost synaptic work.

A weight row holds the synapses of one input in all K members side by side, so one event reads one
row for all of them. Neurons are those of `networks.neurons`, in float32 and with the same
roundings. Batch normalisation, as in evaluation, is a gain and a constant current for each channel.
A max-pool of spikes is a logical "or".

A result does not depend on the number of threads, on the other rows, on the chunks, or on
batch or live. It is that of the dense engine, except for the order in which the synapses of a
neuron are summed.
"""

from collections.abc import Callable
from copy import copy
from typing import Any, cast, final

import numpy as np
from numpy.typing import NDArray

from agreestop.common import Booleans, InputError, Integers, as_count, cores, parallel_for
from agreestop.events.container import Events, Inputs
from agreestop.networks.architectures import Convolutional, FullyConnected, SpikingNetwork

from ..inputs import check_event_inputs, check_inputs, check_kept_rows, check_steps, is_binary
from ..prefilter import Prefilter
from ..protocol import CHUNK_STEPS, EnsembleRun, Operations, describe
from .chains import Chains
from .layout import (
    NO_VALUES,
    Block,
    FlatNetwork,
    aligned,
    flatten_plans,
    load_kernels,
    plan_network,
)
from .live import EventDrivenFiltered, EventDrivenLive, EventDrivenSlots
from .rows import RowRun

PRECISIONS = ("float32", "bfloat16", "int8")
# pairs of row and step: enough work for each time that the weights of a tile are read from memory
BLOCK_PAIRS = 8192
# at most, since the state of the rows shares the second-level cache with the weights of the tile
BLOCK_STEPS = 128
BLOCK_BYTES = 1 << 26


@final
class EventDriven:
    """The `Engine` of K members of a fully connected or convolutional network, copied: later
    training does not change the engine.

    `Chains` are members that were graphs.

    precision: how weights are stored. "float32" keeps them. "bfloat16" rounds them to 8 bits of
    mantissa and takes half the memory. "int8" rounds them to 127 steps for each member and output,
    takes a quarter of the memory and is the fastest. State and sums are float32 in each (int8
    weights of active inputs are summed exactly). threads: for batches, all cores where None. A live
    input uses one thread.

    The first batch and the first live input compile the kernels, which takes seconds. numba caches
    the result next to this package's files, or in its own directory where those cannot be written
    (NUMBA_CACHE_DIR names another), or only for this process.
    """

    output, reason, copies_weights = "spikes", "", True

    def __init__(
        self,
        network: SpikingNetwork | Chains,
        precision: str = "float32",
        threads: int | None = None,
    ) -> None:
        if precision not in PRECISIONS:
            raise InputError(f"precision is {precision!r}: choose one of {', '.join(PRECISIONS)}.")
        config = getattr(network, "config", network)
        if not isinstance(config, (FullyConnected, Convolutional, Chains)):
            raise InputError(
                f"the network is a {type(config).__name__}, and the event-driven engine runs "
                "FullyConnected and Convolutional: "
                "use the dense engine."
            )
        self.name = "event-driven" if precision == "float32" else f"event-driven-{precision}"
        self.precision = precision
        self.threads = cores() if threads is None else as_count(threads, "threads")
        self.input_shape, self.repeats = tuple(config.input_shape), network.repeats
        plans = network.layers if isinstance(network, Chains) else plan_network(network)
        self._network = flatten_plans(plans, precision, network.real_input)
        self.members, self.classes = self._network.members, self._network.classes

    __repr__ = describe

    def chunk_steps(self, rows: int) -> int:
        return CHUNK_STEPS

    def begin(self, inputs: Inputs, first: int = 0) -> "EventDrivenPass":
        # the inputs are read where they are, and copied only if they are not contiguous
        if isinstance(inputs, Events):
            events = check_event_inputs(
                inputs.in_memory(), self.input_shape, self._network.real_input
            )
            return EventDrivenPass(
                self._network,
                events,
                events.values is not None and not is_binary(events.values),
                self.threads,
            )
        array = check_inputs(inputs, self.input_shape, self._network.real_input)
        flat = np.ascontiguousarray(array).reshape(*array.shape[:2], -1)
        binary = not self._network.real_input or is_binary(flat)
        return EventDrivenPass(
            self._network,
            flat.view(np.uint8) if binary and flat.itemsize == 1 else flat,
            not binary,
            self.threads,
        )

    def live(self, number: int = 0) -> "EventDrivenLive":
        live = EventDrivenLive(self._network, self.input_shape, self.repeats)
        live.compile(load_kernels().push)
        return live

    def live_filtered(self, prefilter: Prefilter, times: Integers) -> "EventDrivenFiltered":
        live = EventDrivenLive(self._network, self.input_shape, self.repeats)
        return EventDrivenFiltered(live, prefilter, times)

    def live_slots(
        self, slots: int, times: Integers, prefilter: Prefilter | None = None
    ) -> "EventDrivenSlots":
        return EventDrivenSlots(self._network, slots, self.repeats, times, prefilter)

    def members_slice(self, first: int, last: int) -> "EventDriven":
        part = copy(self)
        part._network = self._network.select_members(first, last)
        part.members = last - first
        return part


@final
class EventDrivenPass:
    """A batch on its way through time; see `protocol.Pass`."""

    def __init__(self, network: FlatNetwork, inputs: Inputs, valued: bool, threads: int) -> None:
        self._network, self._inputs, self._valued, self._threads = network, inputs, valued, threads
        self._active: Integers = np.arange(len(inputs))
        self._time = 0
        self._state = aligned(len(inputs) * network.state, np.float32)
        words = network.received + sum(network.spikes) + sum(network.pooled)
        self._pairs = max(1, min(BLOCK_PAIRS, BLOCK_BYTES // (8 * words + 8 * network.inputs)))
        self._block: Block | None = None
        self._values = NO_VALUES
        if isinstance(inputs, Events) and valued and inputs.values is not None:
            self._values = inputs.values.astype(np.float32)
        self._by_rows = (
            RowRun(network, inputs, self._values, valued, self._state, threads)
            if network.by_rows
            else None
        )

    @property
    def rows(self) -> int:
        return len(self._active)

    def keep(self, rows: Booleans) -> None:
        self._active = self._active[check_kept_rows(rows, self.rows)]

    def advance(self, steps: int) -> Booleans:
        return self._advance(steps, None)

    def advance_counted(self, steps: int) -> EnsembleRun:
        # the input of a held image is counted at every step, as this engine computes it
        check_steps(steps, self._inputs.shape[1], self._time)
        operations = Operations(
            *(np.zeros((self.rows, steps, self._network.members), np.int64) for _ in range(3))
        )
        return EnsembleRun(self._advance(steps, operations), operations)

    def _advance(self, steps: int, operations: Operations | None) -> Booleans:
        check_steps(steps, self._inputs.shape[1], self._time)
        if self._by_rows is not None:
            self._time += int(steps)
            return self._by_rows.advance(
                self._active, self._time - int(steps), int(steps), operations
            )
        spikes = np.empty(
            (self.rows, steps, self._network.members, self._network.classes), dtype=np.bool_
        )
        length = min(int(steps), self._pairs, BLOCK_STEPS)
        height = self._pairs // length
        for top in range(0, self.rows, height):
            for first in range(0, int(steps), length):
                part = np.s_[top : top + height, first : first + length]
                count = spikes[part].shape[1]
                spikes[part] = self._run(
                    self._active[top : top + height], self._time + first, count
                )
                if operations is not None:
                    self._count(operations, part, count)
        self._time += int(steps)
        return spikes

    def _run(self, slots: Integers, first: int, steps: int) -> Booleans:
        """Some rows over a block of steps, layer after layer."""
        kernels, network, pairs = load_kernels(), self._network, len(slots) * steps
        if self._block is None or self._block.pairs < pairs or self._block.steps < steps:
            self._block = Block.of(network, pairs, steps, self._threads)
        block = self._block
        lists_of_inputs = (
            block.inputs.active,
            block.inputs.starts,
            block.inputs.events,
            block.inputs.values,
        )
        frames = (self._read_events if isinstance(self._inputs, Events) else self._read_frames)(
            block, slots, first, steps
        )
        received = block.received
        for index, layer in enumerate(network.layers):
            spikes = block.spikes[index]
            fixed = (
                layer,
                network.members,
                network.weights,
                network.constants,
                slots,
                network.state,
                self._state,
                steps,
            )
            given: tuple[Any, ...] = (*fixed, spikes, received, frames, self._valued and not index)
            buffers: tuple[str, ...] = ("active", "starts", "events", "values", "currents")
            units = (network.members if index else 1) * int(layer["height"])
            if not (index or network.received):  # all threads read the lists of the inputs
                units = network.members * int(layer["wide"] + layer["narrow"])
                given, buffers = (*given, *lists_of_inputs), ("currents",)
            self._in_parallel(units * len(slots), kernels.advance, given, buffers)
            received = spikes
            if layer["pool"]:
                received = block.pooled[index]
                lines = network.members * int(layer["height"] // 2)
                self._in_parallel(lines, kernels.pool, (layer, pairs, spikes, received), ())
        # (rows, steps, K, words)
        bits = (
            received[:, :pairs]
            .reshape(network.members, -1, len(slots), steps)
            .transpose(2, 3, 0, 1)
        )
        return np.unpackbits(
            np.ascontiguousarray(bits).view(np.uint8),
            axis=-1,
            count=network.classes,
            bitorder="little",
        ).view(np.bool_)

    def _read_frames(self, block: Block, slots: Integers, first: int, steps: int) -> NDArray[Any]:
        """List or mark the active inputs of dense frames.

        Returns the frames of a network of real inputs.
        """
        kernels, network, inputs = load_kernels(), self._network, cast(NDArray[Any], self._inputs)
        marks, frames, rows, total = inputs.reshape(-1), NO_VALUES, slots, inputs.shape[1]
        if marks.dtype != np.uint8 or self._valued or total == 1:
            part = (
                np.repeat(inputs[slots], steps, axis=1)
                if total == 1
                else inputs[slots, first : first + steps]
            )
            part = part.reshape(-1)
            rows, total, first = np.arange(len(slots)), steps, 0
            marks = part if part.dtype == np.uint8 else (part != 0).view(np.uint8)
            if self._valued:
                frames = part if part.dtype == np.uint8 else part.astype(np.float32)
        if network.received:
            marked = (network.layers[0], marks, total, rows, first, steps, block.received)
            self._in_parallel(len(rows), kernels.mark_positions, marked, ())
        else:
            lists = (block.inputs.starts, block.inputs.events, block.inputs.values)
            kernels.list_inputs(
                marks, frames, self._valued, network.inputs, total, rows, first, steps, *lists
            )
        return frames

    def _read_events(
        self, block: Block, slots: Integers, first: int, steps: int
    ) -> NDArray[np.float32]:
        """The same from `Events`, where nothing is dense but the values of this block for a
        convolution of real inputs.
        """
        kernels, network, inputs = load_kernels(), self._network, cast(Events, self._inputs)
        held = inputs.shape[1] == 1
        bounds = np.ascontiguousarray(
            inputs.pointers[slots] if held else inputs.pointers[slots, first : first + steps + 1]
        )
        given = (bounds, np.asarray(inputs.indices), self._values, self._valued, held, steps)
        if network.received:
            frames = np.zeros(
                len(slots) * steps * network.inputs if self._valued else 0, np.float32
            )
            kernels.mark_events(network.layers[0], *given, block.received, frames)
            return frames
        kernels.list_events(*given, block.inputs.starts, block.inputs.events, block.inputs.values)
        return NO_VALUES

    def _in_parallel(
        self,
        items: int,
        kernel: Callable[..., None],
        arguments: tuple[Any, ...],
        buffers: tuple[str, ...],
    ) -> None:
        """Run a kernel over its items in several threads, each with its own buffers."""
        assert self._block is not None
        local = [tuple(getattr(lists, name) for name in buffers) for lists in self._block.local]
        parallel_for(
            lambda thread, first, last: kernel(*arguments, *local[thread], first, last),
            items,
            self._threads,
        )

    def _count(self, operations: Operations, part: tuple[slice, slice], steps: int) -> None:
        """Add the operations of the block that `_run` has just computed; `part` is its
        rows and steps.
        """
        network, block = self._network, self._block
        assert block is not None
        pairs = operations.emitted[part].shape[0] * steps

        def by_member(counts: NDArray[Any]) -> NDArray[Any]:
            """(K, pairs), or (1, pairs) where the members share the input, as (rows, steps, K)."""
            return counts.reshape(len(counts), -1, steps).transpose(1, 2, 0)

        for index, layer in enumerate(network.layers):
            operations.emitted[part] += by_member(
                _number_set(block.spikes[index], network.members, pairs).sum(axis=1)
            )
            if index == 0 and not network.received:
                reached = np.diff(block.inputs.starts[: pairs + 1])[None] * int(layer["outputs"])
            else:
                before = network.layers[index - 1] if index else layer
                words = (
                    block.received
                    if index == 0
                    else block.pooled[index - 1]
                    if before["pool"]
                    else block.spikes[index - 1]
                )
                active = _number_set(
                    words, network.members if index else 1, pairs, int(layer["in_words"])
                )
                reached = np.einsum("kxp,x->kp", active, _windows(layer)) * int(layer["outputs"])
            total = (
                operations.multiplies
                if index == 0 and network.real_input
                else operations.accumulates
            )
            total[part] += by_member(reached)


def _number_set(
    words: NDArray[np.uint64], members: int, pairs: int, words_each: int = 1
) -> Integers:
    """The spikes (K, positions, pairs) in 64-bit words of spikes, `words_each` of them
    for a position.
    """
    counts = np.bitwise_count(words[:, :pairs]).astype(np.int64)
    return counts.reshape(members, -1, words_each, pairs).sum(axis=2)


def _windows(layer: Any) -> Integers:
    """The number of output positions that each input position reaches, (in_height · in_width,)."""
    sides = []
    for axis, inputs, outputs in (("y", "in_height", "height"), ("x", "in_width", "width")):
        starts = np.arange(int(layer[outputs])) * int(layer[f"stride_{axis}"]) - int(
            layer[f"pad_{axis}"]
        )
        reached = (starts[:, None] + np.arange(int(layer[f"window_{axis}"]))).ravel()
        sides.append(
            np.bincount(
                reached[(reached >= 0) & (reached < layer[inputs])], minlength=int(layer[inputs])
            )
        )
    return np.outer(*sides).ravel()
