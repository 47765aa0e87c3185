"""AEDAT 2.0, the format that jAER writes for 128 × 128 sensors and in which MNIST-DVS is published.

    header: printable lines that begin with '#' and end with '\\n', the first of them "#!AER-DAT2.0"
    then 8 bytes for each event, big-endian:
        uint32 address      bit 0      0 for ON, 1 for OFF
                            bits 1-7   x
                            bits 8-14  y
                            bits 15-31 0; other values are external inputs or addresses of other devices, skipped as special
        int32  timestamp    microseconds, which wrap around after 2^32 (71.6 minutes)

Times are unwrapped: each event is taken to be less than 2^31 µs (35.8 minutes) before or after the one before it in the file.

Coordinates are those of the address, x from the left and y from the top, which shows the digits of MNIST-DVS upright and unmirrored: of
the eight ways to turn and mirror its first zero, this one comes closest to the zeros of MNIST.
jAER itself draws x from the right and y from the bottom: a recording of a camera set up for its display is turned by 180 degrees here.
We checked on a recording of MNIST-DVS that a cleared bit 0 is ON, as in jAER: single events of pixels far from the digit come from leak
currents and are ON, and 93 of 100 of them have the bit cleared, as have most events in front of the moving bright digit.
"""

import re
from os import PathLike
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from agreestop.common import InputError, Integers, atomic_writer

from .recording import BLOCK, Columns, Recording, Skipped, bytes_left, open_recording, read_blocks

SIZE = (128, 128)
EVENT = 8  # bytes
VERSION = b"#!AER-DAT2.0"
HEADER = (
    VERSION + b"\r\n"
    b"# This is a raw AE data file - do not edit\r\n"
    b"# Data format is int32 address, int32 timestamp (8 bytes total), repeated for each event\r\n"
    b"# Timestamps tick is 1 us\r\n"
)
LONGEST_LINE = 2**16
UNPRINTABLE = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def read_aedat2(path: str | PathLike[str]) -> Recording:
    """A recording of a 128 × 128 sensor. Memory: 13 bytes for each event, and a few more where times run backwards."""
    special = 0
    with open_recording(path) as stream:
        _skip_header(stream, path)
        length = bytes_left(stream)
        columns = Columns(length // EVENT)
        stamp, now = np.uint32(0), 0
        for content in read_blocks(stream, length, EVENT):
            words = np.frombuffer(content, ">u4", len(content) // EVENT * 2).reshape(-1, 2)
            if not len(words):
                break
            address, stamps = words[:, 0].astype(np.uint32), words[:, 1].astype(np.uint32)
            time = _unwrapped(stamps, stamp, now)
            stamp, now = stamps[-1], int(time[-1])
            if int(address.max()) >> 15:
                known = address < 2**15
                special += len(known) - int(np.count_nonzero(known))
                address, time = address[known], time[known]
            columns.add((address >> 1) & 127, address >> 8, (address & 1) == 0, time)
    return columns.recording(str(path), "AEDAT 2.0", SIZE, Skipped(special=special, cut_bytes=length % EVENT))


def write_aedat2(path: str | PathLike[str], recording: Recording) -> None:
    """Write a recording of a 128 × 128 sensor, whole or not at all; `read_aedat2` gives the same events."""
    if recording.size != SIZE:
        raise InputError(f"the recording's size is {recording.size}: AEDAT 2.0 is written for sensors of {SIZE}.")
    if len(recording) and not -(2**31) <= recording.time[0] < 2**31:
        raise InputError(f"the first event is at {recording.time[0]} µs: AEDAT 2.0 begins within 2^31 µs of 0, so subtract the first time.")
    if len(recording) and np.diff(recording.time).max(initial=0) >= 2**31:
        raise InputError("two events are 2^31 µs or more apart: AEDAT 2.0 cannot hold such a gap, so write two files.")
    with atomic_writer(path) as stream:
        stream.write(HEADER)
        for first in range(0, len(recording), BLOCK):
            part = slice(first, first + BLOCK)
            words = np.empty((len(recording.time[part]), 2), ">u4")
            words[:, 0] = recording.y[part].astype(np.uint32) << 8 | recording.x[part].astype(np.uint32) << 1 | ~recording.polarity[part]
            words[:, 1] = recording.time[part].astype(np.uint32)
            stream.write(words.tobytes())


def _skip_header(stream: BinaryIO, path: str | PathLike[str]) -> None:
    """Move to the first event. A line that is not printable is no header, because an event may begin with the byte of '#'."""
    line = stream.readline(LONGEST_LINE)
    if not line.startswith(VERSION) or not line.endswith(b"\n"):
        other = ", but AEDAT 3.1: use read_aedat3" if line.startswith(b"#!AER-DAT3") else f": it must begin with a line {VERSION.decode()}"
        raise InputError(f"{path} is not AEDAT 2.0{other}.")
    while True:
        start = stream.tell()
        line = stream.readline(LONGEST_LINE)
        if not line.startswith(b"#") or not line.endswith(b"\n") or UNPRINTABLE.search(line):
            stream.seek(start)
            return


def _unwrapped(stamps: NDArray[np.uint32], stamp: np.uint32, now: int) -> Integers:
    """Full times of stamps, each less than 2^31 from the one before; the stamp before the first one is `stamp`, at the full time `now`."""
    steps = np.diff(stamps, prepend=stamp).view(np.int32)
    return now + np.cumsum(steps, dtype=np.int64)
