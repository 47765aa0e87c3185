"""The connection of an `AsyncClient`: that of websockets, with a short way for short messages.

Messages of one moment are sent together, and answers are taken where they arrive rather than in a
task of their own.
"""

from collections.abc import Callable
from typing import Any, final

from websockets.asyncio.client import ClientConnection
from websockets.protocol import State

from .client import LARGEST_ANSWER
from .frames import SHORT, FrameReader, Masks, write_frame

UNSENT_BYTES = 1 << 16  # which the system does not take; then each message waits for the earlier


@final
class ShortWay(ClientConnection):
    """A connection that begins as one of websockets."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self._answers: FrameReader | None = None
        self._in_parts = False  # whether messages come in several frames
        self._masks = Masks()
        self._unsent: list[bytes] = []

    def begin(self, take: Callable[[str | bytes], None]) -> None:
        """Hand over answers to `take` from now on, between two messages.

        Messages in several frames, which a proxy can make of them, are received as before, and so
        is all that comes after one.
        """
        self._answers = FrameReader(
            False, LARGEST_ANSWER, take, lambda: not self._in_parts, self._read_other
        )

    def data_received(self, data: bytes) -> None:
        read = super().data_received if self._answers is None else self._answers.read
        read(data)

    def _read_other(self, data: bytes) -> None:
        super().data_received(data)
        self._in_parts = self._in_parts or self.protocol.expect_continuation_frame

    async def send(self, message: Any, *, text: bool | None = None) -> None:
        unsent = self.transport.get_write_buffer_size()
        if len(message) > SHORT or unsent > UNSENT_BYTES or self.protocol.state is not State.OPEN:
            self._flush()
            await super().send(message, text=text)
            return
        if not self._unsent:
            self.loop.call_soon(self._flush)
        self._unsent.append(write_frame(message, self._masks.next()))

    async def close(self, *reason: Any, **reasons: Any) -> None:
        self._flush()
        await super().close(*reason, **reasons)

    def _flush(self) -> None:
        """Send what waits."""
        frames, self._unsent = self._unsent, []
        if frames and self.protocol.state is State.OPEN:
            self.transport.write(b"".join(frames))
