"""AEDAT 2.0 and 3.1: the formats of jAER for 128 × 128 sensors, in which MNIST-DVS and DVS128
Gesture are published.

AEDAT 2.0
    header: printable lines that begin with '#' and end with '\\n', the first of them "#!AER-DAT2.0"
    then 8 bytes for each event, big-endian:
        uint32 address      bit 0      0 for ON, 1 for OFF
                            bits 1-7   x
                            bits 8-14  y
                            bits 15-31 0; other values are external inputs or addresses of other
                            devices, skipped as special
        int32  timestamp    microseconds, which wrap around after 2^32 (71.6 minutes)

Times are unwrapped: each event is taken to be less than 2^31 µs (35.8 minutes) before or after the
one before it in the file. Coordinates are those of the address, x from the left and y from the top,
which shows the digits of MNIST-DVS upright and unmirrored: of the eight ways to turn and mirror its
first zero, this one comes closest to the zeros of MNIST.
jAER itself draws x from the right and y from the bottom: a recording of a camera set up for its
display is turned by 180 degrees here. We checked on a recording of MNIST-DVS that a cleared bit 0
is ON, as in jAER: single events of pixels far from the digit come from leak currents and are ON,
and 93 of 100 of them have the bit cleared, as have most events in front of the moving bright digit.

AEDAT 3.1
    header: lines that begin with '#' and end with '\\n', the first "#!AER-DAT3.1", the last
    "#!END-HEADER" then packets, little-endian:
        int16 type        1 for polarity events; other packets are skipped and counted
        int16 source
        int32 size        bytes of an event, 8 for polarity events
        int32 offset      offset of the timestamp in an event
        int32 overflow    how often the timestamps have run over 2^31
        int32 capacity    the number of events that the packet can hold; it takes up as
                          much in the file
        int32 number      the number of events in it
        int32 valid       the number of valid events in it: not used, because each event
                          has its own mark
        polarity events of
            uint32 data       bit 0 valid, bit 1 polarity (1 for ON), bits 2-16 y, bits 17-31 x
            int32  timestamp  microseconds; the full time is timestamp + overflow · 2^31

x counts from the left and y from the top. A packet with an impossible header (negative fields, more
events than capacity, more than 1 GiB, polarity events that do not have 8 bytes) makes the rest of
the file unreadable, so the file is refused.
"""

import re
import struct
from os import PathLike
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agreestop.common import InputError, Integers, open_file
from agreestop.common.errors import quoted

from .recording import BLOCK, Columns, Recording, Skipped, bytes_left, read_blocks

SIZE = (128, 128)
EVENT = 8  # bytes, in both versions
VERSIONS = {"2.0": b"#!AER-DAT2.0", "3.1": b"#!AER-DAT3.1"}
END = b"#!END-HEADER"
LONGEST_LINE, LONGEST_HEADER = 2**16, 2**20
UNPRINTABLE = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
POLARITY = 1
LARGEST_BODY = 2**30


def read_aedat2(path: str | PathLike[str]) -> Recording:
    """A recording of a 128 × 128 sensor.

    Memory: 13 bytes for each event, and a few more where times run backwards.
    """
    special = 0
    with open_file(path) as stream:
        _skip_header_2(stream, path)
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
    return columns.recording(
        str(path), "AEDAT 2.0", SIZE, Skipped(special=special, cut_bytes=length % EVENT)
    )


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
    """A recording of a sensor of `size` (H, W).

    Memory: 13 bytes for each event, and about four times the largest packet.
    """
    with open_file(path) as stream:
        _skip_header_3(stream, path)
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
    return columns.recording(
        str(path), "AEDAT 3.1", size, Skipped(0, special, packets, cut, missing)
    )


def _check_version(line: bytes, path: str | PathLike[str], version: str) -> None:
    if not line.startswith(VERSIONS[version]) or not line.endswith(b"\n"):
        other = next(
            (
                name
                for name, start in VERSIONS.items()
                if name != version and line.startswith(start[:-2])
            ),
            None,
        )
        hint = (
            f", but AEDAT {other}: use read_aedat{other[0]}"
            if other
            else f": it must begin with a line {VERSIONS[version].decode()}"
        )
        raise InputError(f"{path} is not AEDAT {version}{hint}.")


def _skip_header_2(stream: BinaryIO, path: str | PathLike[str]) -> None:
    """Move to the first event.

    A line that is not printable is no header, because an event may begin with the byte of '#'.
    """
    _check_version(stream.readline(LONGEST_LINE), path, "2.0")
    while True:
        start = stream.tell()
        line = stream.readline(LONGEST_LINE)
        if not line.startswith(b"#") or not line.endswith(b"\n") or UNPRINTABLE.search(line):
            stream.seek(start)
            return


def _unwrapped(stamps: NDArray[np.uint32], stamp: np.uint32, now: int) -> Integers:
    """Full times of stamps, each less than 2^31 from the one before; the stamp before the first
    one is `stamp`, at the full time `now`.
    """
    steps = np.diff(stamps, prepend=stamp).view(np.int32)
    return now + np.cumsum(steps, dtype=np.int64)


def _decode(columns: Columns, contents: list[bytes], overflows: list[int]) -> int:
    """Append the valid events of packets, which have these contents and overflows; the number
    of invalid ones.
    """
    words = np.frombuffer(b"".join(contents), "<u4").reshape(-1, 2)
    bases = np.repeat(
        np.array(overflows, np.int64) << 31, [len(content) // EVENT for content in contents]
    )
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
    if (
        packet.kind < 0
        or packet.size < 1
        or packet.overflow < 0
        or not 0 <= packet.number <= packet.capacity
        or body > LARGEST_BODY
    ):
        wrong = (
            f"{packet.number} events in a capacity of {packet.capacity} events of {packet.size} "
            "bytes"
        )
    elif packet.kind == POLARITY and packet.size != EVENT:
        wrong = f"polarity events of {packet.size} bytes"
    else:
        return packet
    raise InputError(
        f"{path} has a damaged packet (type {packet.kind}, overflow {packet.overflow}, {wrong}): "
        "get the file again."
    )


def _skip_header_3(stream: BinaryIO, path: str | PathLike[str]) -> None:
    """Move to the first packet."""
    line = stream.readline(LONGEST_HEADER)
    _check_version(line, path, "3.1")
    while not (line.startswith(END) and line.endswith(b"\n")):
        line = stream.readline(LONGEST_HEADER)
        if not line.startswith(b"#") or stream.tell() > LONGEST_HEADER:
            raise InputError(
                f"{path} has a header without an end: a line {END.decode()} must close it, so get "
                "the file again."
            )
        if line.startswith(b"#Format:") and line[8:].strip() != b"RAW":
            written = line[8:].strip()[:40].decode("ascii", errors="replace")
            raise InputError(
                f"{path} holds packets of the format {quoted(written)}: only RAW can be read, so "
                "write it again uncompressed."
            )
