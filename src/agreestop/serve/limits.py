"""What a client may ask of the server, and how long the server waits."""

from dataclasses import dataclass, fields

from agreestop.common import InputError, is_number


@dataclass(frozen=True)
class Limits:
    """Limits of a server. Each must be above 0.

    message_bytes        of one message
    sessions             open at once, in all
    sessions_per_client  open at once on one connection
    clients              connections at once
    idle_seconds         after which a session without a push is closed, and a connection
                         without a session
    session_seconds      after which a session without a decision is closed, however
                         often it is pushed
    slow_seconds         for which a client may not read what the server sends; then it is dropped
    queued_bytes         of messages of one client that wait for their answers; then the server
                         reads no more from it for a while
    labels_waiting       decisions that wait for their labels; the labels of older ones are given up
    label_seconds        for which a decision waits for its label
    restart_seconds      for which decisions from before a restart wait for their labels
    drain_seconds        for which sessions may go on after SIGTERM
    save_seconds         between two saves of the monitor: what a kill may lose
    """

    message_bytes: int = 1 << 20
    sessions: int = 4000
    sessions_per_client: int = 1000
    clients: int = 2000
    idle_seconds: float = 60.0
    session_seconds: float = 600.0
    slow_seconds: float = 10.0
    queued_bytes: int = 4 << 20
    labels_waiting: int = 10_000
    label_seconds: float = 3600.0
    restart_seconds: float = 60.0
    drain_seconds: float = 10.0
    save_seconds: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if (
                not is_number(value)
                or not 0 < value < float("inf")
                or (field.type is int and value != int(value))
            ):
                raise InputError(
                    f"{field.name} is {value!r}: give a number above "
                    f"0{', a whole one' if field.type is int else ''}."
                )
