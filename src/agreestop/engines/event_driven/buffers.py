"""Memory that the loops of the event-driven engine fill."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agreestop.common import Integers

from .layout import FlatNetwork, aligned, load_kernels

NO_VALUES = np.zeros(0, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Lists:
    """Buffers for lists of events: where words of bits are active, where each list begins, the
    events, their values, and currents.
    """

    active: NDArray[np.uint64]
    starts: Integers
    events: NDArray[np.int32]
    values: NDArray[np.float32]
    currents: NDArray[np.float32]

    @classmethod
    def of(cls, lists: int, size: int, lanes: int = 0, words: int = 0) -> "Lists":
        """Buffers for `lists` lists of `size` events in all, `lanes` currents and `words` words of
        bits for each of `lists` steps.

        Memory that no event reaches is never touched.
        """
        kernels = load_kernels()
        active = np.empty(words * -(-lists // 64), np.uint64)
        events, currents = size + kernels.SPARE, max(lanes, kernels.WIDE * kernels.STEPS_SUMMED)
        buffers = (
            np.empty(lists + 2, np.int64),
            np.empty(events, np.int32),
            np.empty(size, np.float32),
            aligned(currents, np.float32),
        )
        return cls(active, *buffers)


@dataclass(frozen=True, eq=False)
class Block:
    """Buffers for the spikes of all layers in some rows and steps, for the lists of inputs, and
    for the lists of each thread.
    """

    pairs: int
    steps: int
    received: NDArray[np.uint64]
    spikes: list[NDArray[np.uint64]]
    pooled: list[NDArray[np.uint64]]
    inputs: Lists
    local: list[Lists]

    @classmethod
    def of(cls, network: FlatNetwork, pairs: int, steps: int, threads: int) -> "Block":
        """Buffers for `pairs` pairs of row and step; a row of words is an odd number of cache
        lines, as for the weights.
        """
        columns = (-(-(pairs + 7) // 8) | 1) * 8  # the kernels test eight steps at once
        spikes, pooled = (
            [np.zeros((words, columns), np.uint64) for words in sizes]
            for sizes in (network.spikes, network.pooled)
        )
        inputs = Lists.of(pairs, 0 if network.received else pairs * network.inputs)
        local = [
            Lists.of(steps, steps * network.listed, words=network.window) for _ in range(threads)
        ]
        return cls(
            pairs,
            steps,
            np.zeros((network.received, columns), np.uint64),
            spikes,
            pooled,
            inputs,
            local,
        )


@dataclass(frozen=True, eq=False)
class RowBuffers:
    """Buffers for one row of a network that is run row by row, in one thread.

    See `event_rows.run_rows`.
    """

    frames: NDArray[Any]
    begins: Integers
    where: Integers
    words: NDArray[np.uint64]
    frame: NDArray[np.uint64]
    fired: NDArray[np.uint64]
    spiked: NDArray[np.uint64]
    currents: NDArray[np.float32]
    touched: NDArray[np.uint64]
    again: NDArray[np.uint64]
    spikes: NDArray[np.uint64]
    starts: Integers
    events: NDArray[np.int32]
    values: NDArray[np.float32]
    sums: NDArray[np.float32]

    @classmethod
    def of(cls, network: FlatNetwork, steps: int, frames: int) -> "RowBuffers":
        """Buffers for blocks of `steps` steps; `frames` values of sparse inputs.

        Memory that no event reaches is never touched.
        """
        kernels, layers = load_kernels(), network.layers
        full, together = layers["convolves"] == 0, kernels.TOGETHER
        lines, size = (
            int(
                max(
                    np.prod([layers[f"{side}{name}"] for name in names], axis=0).max()
                    for side in ("", "in_")
                )
            )
            for names in (("height",), ("height", "width", "words"))
        )
        open_lines = ((layers["window_y"] - 1) // layers["stride_y"] + 1)[~full]
        columns = int((open_lines * (layers["width"] + 2 * kernels.MARGIN)[~full]).max())
        first = layers[0]["in_height"] * layers[0]["in_width"] * layers[0]["in_words"]
        return cls(
            frames=np.empty(frames, np.float32),
            begins=np.zeros((3, steps * lines + 1), np.int64),
            where=np.empty((3, steps * size + 1), np.int64),
            words=np.empty((3, steps * size + 1), np.uint64),
            # the kernels test eight words at once
            frame=np.zeros(together * int(first) + 7, np.uint64),
            fired=np.empty(together * int((layers["height"] * layers["width"]).max()), np.uint64),
            spiked=np.zeros(together * lines, np.uint64),
            currents=aligned(together * columns * kernels.NARROW, np.float32),
            touched=np.zeros(together * int(open_lines.max()), np.uint64),
            again=np.empty(4 * lines, np.uint64),  # for each 16 of at most 64 channels
            spikes=np.zeros((network.members * int(layers["words"][full].sum()), steps), np.uint64),
            starts=np.empty(steps + 1, np.int64),
            events=np.empty(steps * int(layers["rows"][full].max()), np.int32),
            values=NO_VALUES,
            sums=aligned(kernels.WIDE * kernels.STEPS_SUMMED, np.float32),
        )
