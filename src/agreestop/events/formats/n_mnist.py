"""N-MNIST's files: recordings of 34 × 34 pixels with 5 bytes for each event, big-endian, and nothing else.

    uint8   x
    uint8   y
    1 bit   polarity, 1 for ON
    23 bits time in microseconds, up to 8.4 s

x counts from the left and y from the top, which shows the digits upright and unmirrored. We checked on 1,100 recordings that a set bit is
ON: single events of pixels at the border come from leak currents and are ON, and 99 of 100 of them have the bit set. The moving digits then
make ON events behind them, as if they were darker than their background.

The files have no header, so a file of any other kind reads as events, most of them outside the sensor: `skipped.outside` counts them.
"""

from collections.abc import Iterable
from os import PathLike

import numpy as np

from agreestop.common import InputError, atomic_writer

from .recording import BLOCK, Columns, Recording, Skipped, bytes_left, open_recording, read_blocks

SIZE = (34, 34)
EVENT = 5  # bytes
LATEST_STAMP = 2**23 - 1


def read_n_mnist(source: str | PathLike[str] | bytes) -> Recording:
    """The recording in a file, or in the bytes of one. Memory: 13 bytes for each event, and a few more where times run backwards."""
    if isinstance(source, bytes):
        return _decode("the content", len(source), [source])
    with open_recording(source) as stream:
        length = bytes_left(stream)
        return _decode(str(source), length, read_blocks(stream, length, EVENT))


def write_n_mnist(path: str | PathLike[str], recording: Recording) -> None:
    """Write a recording of 34 × 34 pixels, whole or not at all; `read_n_mnist` gives the same events."""
    if recording.size != SIZE:
        raise InputError(f"the recording's size is {recording.size}: N-MNIST's files hold sensors of {SIZE}.")
    if not len(recording):
        raise InputError("the recording has no events: N-MNIST's files hold at least one.")
    if recording.time[0] < 0 or recording.time[-1] > LATEST_STAMP:
        reach = f"{recording.time[0]} to {recording.time[-1]} µs"
        raise InputError(f"the recording reaches from {reach}: N-MNIST's files hold times from 0 to {LATEST_STAMP}, so cut and shift it.")
    with atomic_writer(path) as stream:
        for first in range(0, len(recording), BLOCK):
            part = slice(first, first + BLOCK)
            stamps = recording.time[part] | recording.polarity[part].astype(np.int64) << 23
            content = np.stack((recording.x[part], recording.y[part], stamps >> 16, stamps >> 8, stamps), axis=1)
            stream.write(content.astype(np.uint8).tobytes())


def _decode(name: str, length: int, blocks: Iterable[bytes]) -> Recording:
    if not length:
        raise InputError(f"{name} is empty: N-MNIST's files hold at least one event of {EVENT} bytes, so get it again.")
    columns = Columns(length // EVENT)
    for content in blocks:
        events = np.frombuffer(content, np.uint8, len(content) // EVENT * EVENT).reshape(-1, EVENT)
        high = events[:, 2].astype(np.int32)
        time = (high & 127) << 16 | events[:, 3].astype(np.int32) << 8 | events[:, 4]
        columns.add(events[:, 0], events[:, 1], high >= 128, time.astype(np.int64))
    return columns.recording(name, "N-MNIST", SIZE, Skipped(cut_bytes=length % EVENT))
