"""The clients of the server, with answers that no server of this version sends."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

pytest.importorskip("websockets", reason="the clients need websockets: install agreestop[serve]")

from websockets.sync.server import serve
from websockets.typing import Subprotocol

import agreestop as ag
from agreestop.serve import AsyncClient, Client
from agreestop.serve.client import live_address, read_welcome
from agreestop.serve.protocol import SUBPROTOCOL

WRONG_ANSWERS = {
    "no JSON": "welcome back",
    "no object": "[1]",
    "deep": "[" * 100_000,
    "unknown type": '{"type":"stopped","session":0}',
    "no fields": '{"type":"decision","session":0}',
    "a session that is no number": '{"type":"opened","session":[0],"number":1}',
    "no names": '{"type":"decision","session":0,"decision":"a","promise":"","time":1,"index":0'
    ',"classes":[1],"names":[],"first_risk":null,"members":1,"block":null}',
    "classes that are none": '{"type":"decision","session":0,"decision":"a","promise":"","time":1'
    ',"index":0,"classes":["1"],"names":null,"first_risk":null,"members":1,"block":null}',
    "no number": '{"type":"decision","session":0,"decision":"a","promise":"","time":NaN'
    ',"index":0,"classes":[1],"names":null,"first_risk":null,"members":1,"block":null}',
    "an alarm that is no text": '{"type":"labelled","decision":"a","alarms":[1]}',
    "a key that is no text": '{"type":"error","session":null,"error":"no","decision":[]}',
}


@pytest.mark.parametrize("answer", WRONG_ANSWERS.values(), ids=WRONG_ANSWERS.keys())
def test_an_answer_that_cannot_be_read_is_a_sentence_and_nobody_waits_for_ever(answer: str) -> None:
    def speak(socket: Any) -> None:
        socket.send(json.dumps({"type": "welcome", "protocol": 1}))
        socket.recv()
        socket.send(answer)
        socket.recv()

    async def ask(url: str) -> None:
        async with AsyncClient(url) as client:
            with pytest.raises(ag.InputError, match="answer that this client cannot read"):
                await asyncio.wait_for(client.open(), 30)
            with pytest.raises(ag.InputError, match="answer that this client cannot read"):
                await client.open()

    with serve(speak, "127.0.0.1", 0, subprotocols=[Subprotocol(SUBPROTOCOL)]) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        with (
            Client(url) as client,
            pytest.raises(ag.InputError, match="answer that this client cannot read"),
        ):
            client.open()
        asyncio.run(ask(url))
        server.shutdown()
        thread.join()


def test_the_address_of_the_page_is_that_of_the_server() -> None:
    socket = live_address("ws://127.0.0.1:8000")
    assert socket.startswith("ws://127.0.0.1:8000/")
    assert live_address("http://127.0.0.1:8000/") == live_address(socket) == socket
    assert live_address("https://stop.example") == live_address("wss://stop.example")
    for wrong in ("localhost", "127.0.0.1:8000", "ftp://127.0.0.1", 8000):
        with pytest.raises(ag.InputError, match="give that of the server, such as ws://"):
            live_address(wrong)  # type: ignore[arg-type]


def test_a_welcome_that_is_none_is_a_sentence() -> None:
    for text in ("[" * 100_000, "[]", "{}", "no"):
        with pytest.raises(ValueError):
            read_welcome(text)
