"""Writers of the formats that `agreestop.events` reads, each whole or not at all, with what a
recording must be to fit the format.
"""

from itertools import pairwise
from os import PathLike

import numpy as np

from agreestop.common import InputError, atomic_writer
from agreestop.events import Recording
from agreestop.events.datasets.n_mnist import SIZE as N_MNIST_SIZE
from agreestop.events.formats.aedat import (
    _HEAD,
    END,
    EVENT,
    POLARITY,
    SIZE,
    VERSIONS,
    _Packet,
)
from agreestop.events.formats.recording import BLOCK, LATEST

LATEST_STAMP = 2**23 - 1  # of N-MNIST, in microseconds
STAMP_OFFSET = 4  # of AEDAT 3.1, in bytes
HEADER_2 = (
    VERSIONS["2.0"] + b"\r\n"
    b"# This is a raw AE data file - do not edit\r\n"
    b"# Data format is int32 address, int32 timestamp (8 bytes total), repeated for each event\r\n"
    b"# Timestamps tick is 1 us\r\n"
)
HEADER_3 = VERSIONS["3.1"] + b"\r\n#Format: RAW\r\n#Source 1: DVS128\r\n" + END + b"\r\n"
WRITTEN_TOGETHER = 4096  # events in a packet


def write_aedat2(path: str | PathLike[str], recording: Recording) -> None:
    """Write a recording of a 128 × 128 sensor, whole or not at all; `read_aedat2` gives
    the same events.
    """
    if recording.size != SIZE:
        raise InputError(
            f"the recording's size is {recording.size}: AEDAT 2.0 is written for sensors of {SIZE}."
        )
    if len(recording) and not -(2**31) <= recording.time[0] < 2**31:
        raise InputError(
            f"the first event is at {recording.time[0]} µs: AEDAT 2.0 begins within 2^31 µs of 0, "
            "so subtract the first time."
        )
    if len(recording) and np.diff(recording.time).max(initial=0) >= 2**31:
        raise InputError(
            "two events are 2^31 µs or more apart: AEDAT 2.0 cannot hold such a gap, so write two "
            "files."
        )
    with atomic_writer(path) as stream:
        stream.write(HEADER_2)
        for first in range(0, len(recording), BLOCK):
            part = slice(first, first + BLOCK)
            words = np.empty((len(recording.time[part]), 2), ">u4")
            words[:, 0] = (
                recording.y[part].astype(np.uint32) << 8
                | recording.x[part].astype(np.uint32) << 1
                | ~recording.polarity[part]
            )
            words[:, 1] = recording.time[part].astype(np.uint32)
            stream.write(words.tobytes())


def write_aedat3(path: str | PathLike[str], recording: Recording) -> None:
    """Write a recording, whole or not at all; `read_aedat3` gives the same events."""
    first, stop = recording.span
    if first < 0 or stop > LATEST:
        raise InputError(
            f"the recording reaches from {first} to {stop} µs: AEDAT 3.1 holds 0 to 2^62, so "
            "subtract the first time."
        )
    overflows = recording.time >> 31
    starts = np.union1d(
        np.arange(0, len(recording), WRITTEN_TOGETHER), np.flatnonzero(np.diff(overflows)) + 1
    ).tolist()
    with atomic_writer(path) as stream:
        stream.write(HEADER_3)
        for begin, end in pairwise([*starts, len(recording)]):
            part = slice(begin, end)
            words = np.empty((end - begin, 2), "<u4")
            words[:, 0] = (
                recording.x[part].astype(np.uint32) << 17 | recording.y[part].astype(np.uint32) << 2
            )
            words[:, 0] |= recording.polarity[part].astype(np.uint32) << 1 | 1
            words[:, 1] = recording.time[part] & (2**31 - 1)
            stream.write(
                _HEAD.pack(
                    *_Packet(
                        POLARITY, 1, EVENT, STAMP_OFFSET, int(overflows[begin]), *3 * (end - begin,)
                    )
                )
            )
            stream.write(words.tobytes())


def write_n_mnist(path: str | PathLike[str], recording: Recording) -> None:
    """Write a recording of 34 × 34 pixels, whole or not at all; `read_n_mnist` gives
    the same events.
    """
    if recording.size != N_MNIST_SIZE:
        raise InputError(
            f"the recording's size is {recording.size}: N-MNIST's files hold sensors of "
            f"{N_MNIST_SIZE}."
        )
    if not len(recording):
        raise InputError("the recording has no events: N-MNIST's files hold at least one.")
    if recording.time[0] < 0 or recording.time[-1] > LATEST_STAMP:
        reach = f"{recording.time[0]} to {recording.time[-1]} µs"
        raise InputError(
            f"the recording reaches from {reach}: N-MNIST's files hold times from 0 to "
            f"{LATEST_STAMP}, so cut and shift it."
        )
    with atomic_writer(path) as stream:
        for first in range(0, len(recording), BLOCK):
            part = slice(first, first + BLOCK)
            stamps = recording.time[part] | recording.polarity[part].astype(np.int64) << 23
            content = np.stack(
                (recording.x[part], recording.y[part], stamps >> 16, stamps >> 8, stamps), axis=1
            )
            stream.write(content.astype(np.uint8).tobytes())
