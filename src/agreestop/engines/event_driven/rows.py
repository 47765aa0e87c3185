"""A batch of a convolutional network, row by row: each row passes all layers over a block of
steps, then the next row does.
"""

from typing import Any, cast, final

import numpy as np
from numpy.typing import NDArray

from agreestop.common import Booleans, Integers, parallel_for
from agreestop.events.container import Events, Inputs

from ..protocol import Operations
from .layout import NO_VALUES, FlatNetwork, RowBuffers, load_kernels

# steps that a row takes in each layer before the next layer; more would not stay in the
# second-level cache
BLOCK_STEPS = 128


@final
class RowRun:
    """The rows of a pass. values: those of sparse inputs; valued: whether inputs have values;
    state: that of all rows.
    """

    def __init__(
        self,
        network: FlatNetwork,
        inputs: Inputs,
        values: NDArray[np.float32],
        valued: bool,
        state: NDArray[np.float32],
        threads: int,
    ) -> None:
        self._network = network
        self._inputs = inputs
        self._values = values
        self._valued = valued
        self._state = state
        self._threads, self._length = threads, 0
        self._buffers: list[tuple[Any, ...]] = []
        self._reach = np.empty(
            2 * int((network.layers["in_height"] + network.layers["in_width"]).sum()), np.int64
        )
        load_kernels().list_reach(network.layers, self._reach)

    def advance(
        self, slots: Integers, time: int, steps: int, operations: Operations | None
    ) -> Booleans:
        """Spikes (rows, steps, K, C) of these rows from a time on."""
        network, kernels = self._network, load_kernels()
        sparse, held = isinstance(self._inputs, Events), self._inputs.shape[1] == 1
        length = min(steps, BLOCK_STEPS)
        if self._length < length:
            self._length = length
            values = length * network.inputs if sparse and self._valued else 0
            self._buffers = [
                tuple(vars(RowBuffers.of(network, length, values)).values())
                for _ in range(self._threads)
            ]
        flat = (network.layers, network.members, network.weights_by_part, network.constants)
        fixed = (*flat, self._reach, slots, network.state, self._state)
        bits = []
        for first in range(0, steps, length):
            part = slice(first, min(first + length, steps))
            count = part.stop - first
            given, frames = (self._sparse if sparse else self._dense)(slots, time + first, count)
            found = np.empty(
                (len(slots), count, network.members, int(network.layers[-1]["words"])), np.uint64
            )
            shape = (len(slots) if operations else 0, count, network.members)
            counted = [np.zeros(shape, np.int64) for _ in range(3)]
            arguments = (
                *fixed,
                count,
                sparse,
                *given,
                held,
                self._valued,
                found,
                operations is not None,
                *counted,
            )

            def run(
                thread: int, start: int, stop: int, arguments: Any = arguments, frames: Any = frames
            ) -> None:
                own, *buffers = self._buffers[thread]
                kernels.run_rows(
                    *arguments, own if frames is None else frames, *buffers, start, stop
                )

            parallel_for(run, len(slots) * network.members, self._threads)
            if operations is not None:
                operations.emitted[:, part] += counted[0]
                first_layer = (
                    operations.multiplies if network.real_input else operations.accumulates
                )
                first_layer[:, part] += counted[1]
                operations.accumulates[:, part] += counted[2]
            bits.append(found)
        joined = (
            np.concatenate(bits, axis=1)
            if bits
            else np.empty((len(slots), 0, network.members, 1), np.uint64)
        )
        return np.unpackbits(
            joined.view(np.uint8), axis=-1, count=network.classes, bitorder="little"
        ).view(np.bool_)

    def _dense(
        self, slots: Integers, first: int, steps: int
    ) -> tuple[tuple[Any, ...], NDArray[Any] | None]:
        """Dense inputs as `run_rows` takes them, and their values.

        Bytes are read where they are; others are converted.
        """
        inputs = cast(NDArray[Any], self._inputs)
        held = inputs.shape[1] == 1
        if inputs.dtype == np.uint8:
            marks, rows, total = inputs.reshape(-1), slots, inputs.shape[1]
            frames = marks
        else:
            chosen = inputs[slots] if held else inputs[slots, first : first + steps]
            marks = (chosen != 0).view(np.uint8).reshape(-1)
            rows = np.arange(len(slots))
            total = chosen.shape[1]
            first = 0
            frames = chosen.astype(np.float32).reshape(-1) if self._valued else marks
        at = (rows * total + (0 if held else first)) * self._network.inputs
        nothing = (
            np.zeros((1, 2), np.int64),
            np.zeros(0, np.uint16),
            NO_VALUES,
        )  # the types of `Events`, as the kernel needs
        return (marks, at, 0 if held else self._network.inputs, *nothing), frames

    def _sparse(
        self, slots: Integers, first: int, steps: int
    ) -> tuple[tuple[Any, ...], NDArray[Any] | None]:
        """`Events` as `run_rows` takes them; their values go to the threads' own memory."""
        inputs = cast(Events, self._inputs)
        wanted = slice(0, 2) if inputs.shape[1] == 1 else slice(first, first + steps + 1)
        bounds = np.ascontiguousarray(inputs.pointers[slots, wanted])
        no_marks = np.zeros(0, np.uint8), np.zeros(0, np.int64)
        return (
            *no_marks,
            self._network.inputs,
            bounds,
            np.asarray(inputs.indices),
            self._values,
        ), None
