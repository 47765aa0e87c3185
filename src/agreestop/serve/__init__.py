"""The live server, its clients and its page: events go in over a WebSocket, and decisions come out
when they fall.

    agreestop serve RULE --members FILE                 the server, from a shell
    Server(rule, ensemble).run()                        the server, from Python
    session = Client("ws://127.0.0.1:8000").open()      one input
    session.push(indices)                               -> Decision or None

`AsyncClient` is the same with async and await.

It needs the extra `serve`. A client alone needs websockets and numpy.
"""

from typing import TYPE_CHECKING, Any

from agreestop.common.errors import needs

from .async_client import AsyncClient, AsyncSession
from .client import Client, ClientSession, ConnectionLost
from .limits import Limits
from .protocol import PROTOCOL

if TYPE_CHECKING:
    from .server import Server as Server

__all__ = [
    "PROTOCOL",
    "AsyncClient",
    "AsyncSession",
    "Client",
    "ClientSession",
    "ConnectionLost",
    "Limits",
    "Server",
]


def __getattr__(name: str) -> Any:
    if name != "Server":  # it needs PyTorch, which a client does not
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs("agreestop.serve.Server"):
        from .server import Server

    return Server
