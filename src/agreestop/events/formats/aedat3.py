"""AEDAT 3.1, the format of DVS128 Gesture's recordings, and the tables that list the gestures in a recording.

    header: lines that begin with '#' and end with '\\n', the first "#!AER-DAT3.1", the last "#!END-HEADER"
    then packets, little-endian:
        int16 type        1 for polarity events; other packets are skipped and counted
        int16 source
        int32 size        bytes of an event, 8 for polarity events
        int32 offset      offset of the timestamp in an event
        int32 overflow    how often the timestamps have run over 2^31
        int32 capacity    the number of events that the packet can hold; it takes up as much in the file
        int32 number      the number of events in it
        int32 valid       the number of valid events in it: not used, because each event has its own mark
        polarity events of
            uint32 data       bit 0 valid, bit 1 polarity (1 for ON), bits 2-16 y, bits 17-31 x
            int32  timestamp  microseconds; the full time is timestamp + overflow · 2^31

x counts from the left and y from the top. A packet with an impossible header (negative fields, more events than capacity, more than
1 GiB, polarity events that do not have 8 bytes) makes the rest of the file unreadable, so the file is refused.
"""

import re
import struct
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from typing import BinaryIO, NamedTuple

import numpy as np

from agreestop.common import InputError, Integers, atomic_writer

from .recording import BLOCK, LATEST, Columns, Recording, Skipped, bytes_left, open_recording

SIZE = (128, 128)
EVENT = 8  # bytes
POLARITY = 1
STAMP_OFFSET = 4
VERSION, END = b"#!AER-DAT3.1", b"#!END-HEADER"
HEADER = VERSION + b"\r\n#Format: RAW\r\n#Source 1: DVS128\r\n" + END + b"\r\n"
LONGEST_HEADER = 2**20
LARGEST_BODY = 2**30
WRITTEN_TOGETHER = 4096  # events in a packet

LABEL_COLUMNS = "class,startTime_usec,endTime_usec"
GESTURES = 11


class _Packet(NamedTuple):
    kind: int
    source: int
    size: int
    offset: int
    overflow: int
    capacity: int
    number: int
    valid: int


_HEAD = struct.Struct("<hhiiiiii")


def read_aedat3(path: str | PathLike[str], size: tuple[int, int] = SIZE) -> Recording:
    """A recording of a sensor of `size` (H, W). Memory: 13 bytes for each event, and about four times the largest packet."""
    with open_recording(path) as stream:
        _skip_header(stream, path)
        left = bytes_left(stream)
        columns = Columns(left // EVENT)
        contents: list[bytes] = []  # packets may be small, so several are decoded together
        overflows: list[int] = []
        packets = cut = missing = special = gathered = 0
        while left > 0:
            head = stream.read(_HEAD.size)
            left -= len(head)
            if len(head) < _HEAD.size:
                cut = len(head)
                break
            packet = _checked_packet(path, _Packet._make(_HEAD.unpack(head)))
            body = packet.size * packet.capacity
            used = 0
            if packet.kind == POLARITY:
                content = stream.read(min(EVENT * packet.number, left))
                whole = len(content) // EVENT
                used, missing, gathered = EVENT * whole, packet.number - whole, gathered + whole
                contents.append(content[:used])
                overflows.append(packet.overflow)
                if gathered >= BLOCK or len(contents) >= BLOCK:
                    special += _decode(columns, contents, overflows)
                    contents, overflows, gathered = [], [], 0
            else:
                packets += 1
            if body > left:
                cut = left - used
                break
            if body > used:
                stream.seek(body - used, 1)
            left -= body
    special += _decode(columns, contents, overflows)
    return columns.recording(str(path), "AEDAT 3.1", size, Skipped(0, special, packets, cut, missing))


def write_aedat3(path: str | PathLike[str], recording: Recording) -> None:
    """Write a recording, whole or not at all; `read_aedat3` gives the same events."""
    first, stop = recording.span
    if first < 0 or stop > LATEST:
        raise InputError(f"the recording reaches from {first} to {stop} µs: AEDAT 3.1 holds 0 to 2^62, so subtract the first time.")
    overflows = recording.time >> 31
    starts = np.union1d(np.arange(0, len(recording), WRITTEN_TOGETHER), np.flatnonzero(np.diff(overflows)) + 1).tolist()
    with atomic_writer(path) as stream:
        stream.write(HEADER)
        for begin, end in pairwise([*starts, len(recording)]):
            part = slice(begin, end)
            words = np.empty((end - begin, 2), "<u4")
            words[:, 0] = recording.x[part].astype(np.uint32) << 17 | recording.y[part].astype(np.uint32) << 2
            words[:, 0] |= recording.polarity[part].astype(np.uint32) << 1 | 1
            words[:, 1] = recording.time[part] & (2**31 - 1)
            stream.write(_HEAD.pack(*_Packet(POLARITY, 1, EVENT, STAMP_OFFSET, int(overflows[begin]), *3 * (end - begin,))))
            stream.write(words.tobytes())


@dataclass(frozen=True)
class GestureLabel:
    """One gesture of a recording: its class, from 1 to 11 as in the file, and its window start <= time < stop in microseconds."""

    gesture: int
    start: int
    stop: int


def read_gesture_labels(path: str | PathLike[str]) -> tuple[GestureLabel, ...]:
    """The gestures of a recording of DVS128 Gesture, from its table: a line of column names, then a line for each gesture."""
    with open_recording(path) as stream:
        lines = stream.read().decode("utf-8-sig", errors="replace").splitlines()
    if not lines or lines[0].strip() != LABEL_COLUMNS:
        raise InputError(f"{path} is no table of gestures: its first line must be {LABEL_COLUMNS}.")
    labels = []
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        row = re.fullmatch(r"\s*([0-9]{1,18})\s*,\s*([0-9]{1,18})\s*,\s*([0-9]{1,18})\s*", line)
        if row is None:
            raise InputError(f"{path} has {line[:80]!r} in line {number}: give three whole numbers, {LABEL_COLUMNS}.")
        gesture, start, stop = (int(value) for value in row.groups())
        if not 1 <= gesture <= GESTURES or start >= stop:
            raise InputError(f"{path} has {line[:80]!r} in line {number}: give a class from 1 to {GESTURES}, and a start before its end.")
        labels.append(GestureLabel(gesture, start, stop))
    return tuple(labels)


def _decode(columns: Columns, contents: list[bytes], overflows: list[int]) -> int:
    """Append the valid events of packets, which have these contents and overflows; the number of invalid ones."""
    words = np.frombuffer(b"".join(contents), "<u4").reshape(-1, 2)
    bases = np.repeat(np.array(overflows, np.int64) << 31, [len(content) // EVENT for content in contents])
    invalid = 0
    for first in range(0, len(words), BLOCK):
        some = words[first : first + BLOCK]
        data = some[:, 0].astype(np.uint32)
        time: Integers = bases[first : first + BLOCK] + some[:, 1].astype(np.uint32).view(np.int32)
        valid = (data & 1).astype(np.bool_)
        if not valid.all():
            invalid += len(valid) - int(np.count_nonzero(valid))
            data, time = data[valid], time[valid]
        columns.add(data >> 17, (data >> 2) & 0x7FFF, (data & 2).astype(np.bool_), time)
    return invalid


def _checked_packet(path: str | PathLike[str], packet: _Packet) -> _Packet:
    """The packet, if its header is possible."""
    body = packet.size * packet.capacity
    if packet.kind < 0 or packet.size < 1 or packet.overflow < 0 or not 0 <= packet.number <= packet.capacity or body > LARGEST_BODY:
        wrong = f"{packet.number} events in a capacity of {packet.capacity} events of {packet.size} bytes"
    elif packet.kind == POLARITY and packet.size != EVENT:
        wrong = f"polarity events of {packet.size} bytes"
    else:
        return packet
    raise InputError(f"{path} has a damaged packet (type {packet.kind}, overflow {packet.overflow}, {wrong}): get the file again.")


def _skip_header(stream: BinaryIO, path: str | PathLike[str]) -> None:
    """Move to the first packet."""
    line = stream.readline(LONGEST_HEADER)
    if not line.startswith(VERSION):
        other = ", but AEDAT 2.0: use read_aedat2" if line.startswith(b"#!AER-DAT2") else f": it must begin with a line {VERSION.decode()}"
        raise InputError(f"{path} is not AEDAT 3.1{other}.")
    while not (line.startswith(END) and line.endswith(b"\n")):
        line = stream.readline(LONGEST_HEADER)
        if not line.startswith(b"#") or stream.tell() > LONGEST_HEADER:
            raise InputError(f"{path} has a header without an end: a line {END.decode()} must close it, so get the file again.")
        if line.startswith(b"#Format:") and line[8:].strip() != b"RAW":
            written = line[8:].strip()[:40].decode("ascii", errors="replace")
            raise InputError(f"{path} holds packets of the format {written!r}: only RAW can be read, so write it again uncompressed.")
