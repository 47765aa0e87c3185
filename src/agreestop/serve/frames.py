"""WebSocket frames of short messages, which are nearly all.

    first byte   0x81 text, 0x82 binary: a whole message in one frame
    second       its length up to 125, or 126 and two more bytes; 0x80 is added where it is masked
    mask         four bytes from a client, none from a server
    payload      the message

websockets reads and writes all other frames: control frames, fragments, long messages, and what no
client or server may send. One short message costs it many times as long as this.
"""

import os
import struct
from collections.abc import Callable
from typing import final

from websockets.frames import apply_mask  # type: ignore[attr-defined]

TEXT, BINARY, MASKED = 0x81, 0x82, 0x80
SHORT = 4096  # bytes of a message
MASKS = 1024  # that are drawn at once
Take = Callable[[str | bytes], None]


@final
class FrameReader:
    """Takes short messages out of the bytes of one peer, in whatever parts these come.

    masked   whether the peer is a client
    longest  bytes of a short message
    take     is called with each short message; may_take: whether one may come, which is not so in
             the middle of a message of several frames
    others   is called with the bytes of all other frames, in parts
    """

    def __init__(
        self,
        masked: bool,
        longest: int,
        take: Take,
        may_take: Callable[[], bool],
        others: Callable[[bytes], None],
    ) -> None:
        self._mask, self._short = MASKED if masked else 0, longest
        self._take, self._may_take, self._others = take, may_take, others
        self._begun = b""  # of a frame
        self._left = 0  # bytes of a frame that is for `others`

    def read(self, data: bytes) -> None:
        """Read the next bytes."""
        data, at = self._begun + data, 0
        self._begun = b""
        while at < len(data):
            if self._left:
                part = data[at : at + self._left]
                self._left -= len(part)
                at += len(part)
                self._others(part)
                continue
            bounds = _bounds(data, at)
            if bounds is None:
                break
            begin, end = bounds
            short = end - begin <= self._short and data[at + 1] & MASKED == self._mask
            if data[at] not in (TEXT, BINARY) or not short or not self._may_take():
                self._left = end - at
                continue
            if end > len(data):
                break
            payload = data[begin:end]
            if self._mask:
                payload = apply_mask(payload, data[begin - 4 : begin])
            if data[at] == BINARY:
                self._take(payload)
            else:
                try:
                    text = payload.decode()
                except UnicodeDecodeError:
                    self._left = end - at
                    continue
                self._take(text)
            at = end
        self._begun = data[at:]


def _bounds(data: bytes, at: int) -> tuple[int, int] | None:
    """Where the payload of a frame begins and ends; None if its head has not come yet."""
    if len(data) < at + 2:
        return None
    size, begin = data[at + 1] & 127, at + (6 if data[at + 1] & MASKED else 2)
    if size > 125:
        wide = 2 if size == 126 else 8
        if len(data) < at + 2 + wide:
            return None
        size, begin = int.from_bytes(data[at + 2 : at + 2 + wide], "big"), begin + wide
    return begin, begin + size


def write_frame(message: str | bytes, mask: bytes = b"") -> bytes:
    """The frame of a message. mask: four bytes, from a client."""
    kind, payload = (BINARY, message) if isinstance(message, bytes) else (TEXT, message.encode())
    size, masked = len(payload), MASKED if mask else 0
    if size < 126:
        head = bytes((kind, masked | size))
    elif size < 65536:
        head = struct.pack(">BBH", kind, masked | 126, size)
    else:
        head = struct.pack(">BBQ", kind, masked | 127, size)
    return head + (mask + apply_mask(payload, mask) if mask else payload)


@final
class Masks:
    """Masks for the frames of a client, which nobody can foresee."""

    def __init__(self) -> None:
        self._drawn: list[bytes] = []

    def next(self) -> bytes:
        """A mask that was not used before."""
        if not self._drawn:
            many = os.urandom(4 * MASKS)
            self._drawn = [many[at : at + 4] for at in range(0, len(many), 4)]
        return self._drawn.pop()
