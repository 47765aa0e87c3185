"""Short messages take a short way, and nobody can tell which way a message took."""

from __future__ import annotations

import json
import random
import socket

import pytest

for _name in ("torch", "numba", "starlette", "uvicorn", "websockets"):
    pytest.importorskip(_name, reason=f"the server needs {_name}: install agreestop[serve]")

from websockets.frames import Frame, Opcode
from websockets.sync.client import connect

from agreestop.serve import Limits, Server
from agreestop.serve.frames import FrameReader, write_frame
from agreestop.serve.protocol import write, write_push

from .served import Served, steps_of

MASK = b"\x01\x80\xff\x00"


def pieces(data: bytes, rng: random.Random) -> list[bytes]:
    """The same bytes in parts of random lengths."""
    ends = sorted(rng.randrange(len(data)) for _ in range(rng.choice((0, 3, 40))))
    return [data[begin:end] for begin, end in zip([0, *ends], [*ends, len(data)], strict=True)]


def test_no_message_is_taken_in_the_middle_of_another() -> None:
    """websockets refuses what comes between the frames of one message."""
    taken: list[object] = []
    others, sent = bytearray(), write_frame("between", MASK) + write_frame(b"again", MASK)
    reader = FrameReader(True, 4096, taken.append, lambda: False, others.extend)
    reader.read(sent)
    assert not taken and bytes(others) == sent


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("mask", [b"", MASK], ids=["of a server", "of a client"])
def test_frames_are_read_in_whatever_parts_they_come(seed: int, mask: bytes) -> None:
    rng = random.Random(seed)
    read: list[tuple[str, object]] = []
    others = bytearray()
    sent, foreign = b"", b""
    expected: list[tuple[str, object]] = []
    for _ in range(30):
        size = rng.choice((0, 1, 125, 126, 4096))
        message = rng.choice((rng.randbytes(size), "é" * (size // 2)))
        data = write_frame(message, mask)
        opcode = Opcode.BINARY if isinstance(message, bytes) else Opcode.TEXT
        payload = message if isinstance(message, bytes) else message.encode()
        if not mask:
            assert data == Frame(opcode, payload).serialize(mask=False)
        expected.append(("short", message))
        if rng.random() < 0.5:
            strange = rng.choice(
                (
                    write_frame(rng.randbytes(4097), mask),
                    write_frame(rng.randbytes(70_000), mask),
                    b"\x89" + write_frame(b"ping", mask)[1:],
                    b"\x81" + write_frame(b"\xff no UTF-8", mask)[1:],
                    write_frame(b"", b"" if mask else MASK),
                )
            )
            data += strange
            foreign += strange
        sent += data
    reader = FrameReader(
        bool(mask),
        4096,
        lambda message: read.append(("short", message)),
        lambda: True,
        others.extend,
    )
    for part in pieces(sent, rng):
        reader.read(part)
    assert read == expected
    assert bytes(others) == foreign


def test_messages_of_all_kinds_are_answered_in_their_order(served: Served) -> None:
    steps, end = steps_of(served.inputs[0]), int(served.expected[0].time)
    rng = random.Random(0)
    with (
        Server(served.rule, served.ensemble, port=0).background() as url,
        connect(url + "/live") as talk,
    ):
        json.loads(talk.recv())
        plain: socket.socket = talk.socket
        open_message = write(type="open", session=5).encode()
        data = Frame(Opcode.TEXT, open_message[:9], fin=False).serialize(mask=True)
        data += write_frame(b"", MASK).replace(b"\x82", b"\x89", 1)  # a ping between two fragments
        data += Frame(Opcode.CONT, open_message[9:]).serialize(mask=True)
        for number, step in enumerate(steps, start=1):
            message: str | bytes = write_push(5, number, [step])
            if number % 2:
                message = write(type="push", session=5, step=number, events=step.tolist())
            if number % 3 == 0:
                message = write(type="push", session=5, step=number, events=step.tolist())
                message = message[:-1] + " " * 5000 + "}"  # too long for the short way
            data += write_frame(message, rng.randbytes(4))
        for part in pieces(data, rng):
            plain.sendall(part)
        answers = [json.loads(talk.recv()) for _ in range(1 + end)]
    assert answers[0]["type"] == "opened"
    assert [one["step"] for one in answers[1:-1]] == list(range(2, end + 1))
    assert (answers[-1]["type"], answers[-1]["time"]) == ("decision", end)


def test_a_short_message_beyond_the_limit_is_refused(served: Served) -> None:
    limits = Limits(message_bytes=100)
    server = Server(served.rule, served.ensemble, port=0, limits=limits)
    with server.background() as url, connect(url + "/live") as talk:
        talk.recv()
        talk.send(" " * 101)
        with pytest.raises(Exception, match="1009"):
            talk.recv()
