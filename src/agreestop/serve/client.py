"""Clients of the server, with and without async and await.

    with Client("ws://127.0.0.1:8000") as client:
        session = client.open()
        for indices in stream:
            if (decision := session.push(indices)) is not None:
                break
        session.label(3)                 once it is known; the drift monitor of the server uses it

A client has one connection, and any number of sessions on it. A `Client` belongs to one thread. The
sessions of an `AsyncClient` may be used by as many tasks.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from random import random
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Self, TypeVar, final

import numpy as np
from numpy.typing import ArrayLike

from agreestop.common import InputError, is_number, needs
from agreestop.common.errors import quoted
from agreestop.decide.calibrated import refuse_more
from agreestop.decide.decisions import Decision
from agreestop.decide.spotting import Detection

from .protocol import (
    CLOSED_BY_CLIENT,
    JSON,
    PATH,
    PROTOCOL,
    SUBPROTOCOL,
    is_label,
    needed_label,
    read_decision,
    read_found,
    read_group,
    step_after,
    write,
    write_evidence,
    write_frames,
    write_push,
)

LARGEST_ANSWER = 1 << 20
WELCOME_SECONDS = 10.0
RECONNECT_SECONDS = 30.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds between attempts to connect, at most
ATTEMPTS = 3  # to send what is lost with its connection
Result = TypeVar("Result")
_NONE = type(None)
_FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    "opened": {"session": (int,), "number": (int,)},
    "next": {"session": (int,)},
    "decision": {
        "session": (int,),
        "decision": (str,),
        "promise": (str,),
        "time": (int, float),
        "index": (int,),
        "classes": (list,),
    }
    | {
        "names": (list, _NONE),
        "first_risk": (int, float, _NONE),
        "members": (int, _NONE),
        "block": (int, _NONE),
    },
    "closed": {"session": (int,)},
    "error": {"session": (int, _NONE), "error": (str,)},
    "labelled": {"decision": (str,), "alarms": (list,)},
}  # the fields of each answer that the clients use, with their types


class ConnectionLost(InputError):
    """The connection ended before the answer: the session is lost, and has no decision."""


class CannotConnect(InputError):
    """No server answers. may_pass: whether it could later."""

    def __init__(self, message: str, may_pass: bool) -> None:
        super().__init__(message)
        self.may_pass = may_pass


def as_seconds(reconnect: float) -> float:
    """For how long a client tries to connect again."""
    if not is_number(reconnect) or reconnect < 0:
        raise InputError(
            f"reconnect is {reconnect!r:.80}: give seconds, or 0 to stay disconnected."
        )
    return float(reconnect)


def pauses(seconds: float) -> Iterator[float]:
    """Pauses between attempts to connect, each about twice the last, for so many seconds in all.

    They are random, so that many clients do not come back at once.
    """
    until, longest = monotonic() + seconds, FIRST_PAUSE
    while (left := until - monotonic()) > 0:
        yield min(left, longest * (0.5 + 0.5 * random()))
        longest = min(LONGEST_PAUSE, 2 * longest)


class SharedSession:
    """What both kinds of session know: their number, the next step, and the answers
    of the server.
    """

    endless = False
    """Whether it is a stream without an end."""

    def __init__(self, session: int, about: dict[str, Any]) -> None:
        self._id, self._step, self._about = session, 1, about
        self.number = -1
        """The number of the input, which matters to members that are drawn for every input."""
        self.decision: Decision | None = None
        self.promise = ""
        """What the server promises about the decision, in words."""
        self._key, self._closed = "", ""
        self.lost = False
        """Whether the connection ended before the decision. The input may be pushed again, to a new
        session, which the drift monitor of the server takes for another input.
        """
        self._found: deque[Detection | Decision] = deque()  # in a stream without an end

    def __repr__(self) -> str:
        return (
            f"<session {self._id}: {self.decision or self._closed or f'step {self._step} is next'}>"
        )

    def _open_message(self, group: Any) -> str:
        if self.endless != self._about.get("endless", False):
            ended, never = ("inputs that end", "open"), ("endless streams", "watch")
            kind, call = ended if self.endless else never
            raise InputError(f"this server decides on {kind}: call client.{call}().")
        plain = (
            group.tolist()
            if isinstance(group, (np.generic, np.ndarray))
            else list(group)
            if isinstance(group, tuple)
            else group
        )
        return write(type="open", session=self._id, group=read_group(plain, self._id))

    def _step_message(
        self,
        step: Any,
        frame: ArrayLike | None,
        log_confidence: ArrayLike | None,
        cost: float | None,
        weight: float | None,
    ) -> str | bytes:
        """A push of one step, or of log-confidences."""
        if sum(given is not None for given in (step, frame, log_confidence)) != 1:
            raise InputError(
                "one of indices, frame and log_confidence is needed: push(indices), push([]) for a "
                "pause."
            )
        if log_confidence is None:
            return self._steps_message(
                None if step is None else [step],
                None if frame is None else np.asarray(frame)[None],
                None if cost is None else [cost],
                None if weight is None else [weight],
            )
        self._check_open()
        needed = "finite numbers (K, C), or several of them (m, K, C), are needed"
        try:
            array = np.asarray(log_confidence, dtype=np.float64)
        except (ValueError, TypeError):
            raise InputError(f"log_confidence is no array of numbers: {needed}.") from None
        if array.ndim not in (2, 3) or not np.isfinite(array).all():
            raise InputError(f"log_confidence has shape {array.shape}: {needed}.")
        first, self._step = self._step, self._step + (len(array) if array.ndim == 3 else 1)
        return write(type="push", session=self._id, step=first, log_confidence=array.tolist())

    def _steps_message(
        self,
        steps: Sequence[Any] | None,
        frames: ArrayLike | None,
        cost: Sequence[float] | None = None,
        weight: Sequence[float] | None = None,
    ) -> str | bytes:
        """A push of several steps."""
        self._check_open()
        if (steps is None) == (frames is None):
            raise InputError(
                "one of steps and frames is needed: push_steps([[3, 17], []]), or "
                "push_steps(frames=array)."
            )
        given: Any = frames if steps is None else steps
        if not hasattr(given, "__len__"):
            raise InputError(
                f"the steps are a {type(given).__name__}: give a list with an entry for each step."
            )
        first, reads = self._step, self._about.get("reads")
        reads = "risk" if reads == "scores" else reads  # one number for each step
        amounts = {"cost": cost, "weight": weight}
        if reads != "answers" and any(given is not None for given in amounts.values()):
            raise InputError("cost and weight belong to open answers: leave them out.")
        if reads == "log_confidence":
            raise InputError(
                "this server reads log-confidences: push(log_confidence=array), of shape (K, C)."
            )
        message: str | bytes
        if steps is not None and reads in ("answers", "numbers", "risk"):
            message = write_evidence(self._id, first, steps, reads, amounts)
        elif steps is None:
            message = write_frames(self._id, first, frames)  # type: ignore[arg-type]
        else:
            message = write_push(self._id, first, steps)
        self._step = step_after(first, len(given))
        return message

    def _check_open(self) -> None:
        refuse_more(self.decision)
        if self._closed:
            raise self._error()

    def _error(self) -> InputError:
        """Why there is no decision."""
        return (ConnectionLost if self.lost else InputError)(self._closed)

    def _lose(self, reason: str) -> None:
        """The connection has ended."""
        if self.decision is None and not self._closed:
            self.lost = True
            self._closed = (
                f"the connection to the server ended ({reason}) when step {self._step} was next: "
                "this session is lost. Open a new one, for which the client connects again, and "
                "push the input from its beginning."
            )

    def _label_message(self, label: int | float | str | None, again: bool = False) -> str:
        if not self._key:
            raise InputError(
                "there is no decision yet: push until there is one, then give its label."
            )
        kind = self._about.get("label", "class")
        if label is not None and not is_label(label, kind):
            raise InputError(f"label is {label!r:.80}: {needed_label(kind, 'None')}.")
        known = {"decision": self._key, "label": label}
        return write(type="label", **known, **({"again": True} if again else {}))

    def _take(self, answer: dict[str, Any]) -> None:
        """Take an answer of the server to this session."""
        match answer["type"]:
            case "opened":
                self.number = answer["number"]
            case "next":
                self._found.extend(map(read_found, answer.get("found", ())))
            case "decision":
                self.decision = read_decision(answer)
                self.promise = answer["promise"]
                self._key = answer["decision"]
            case "closed" | "error" if self.decision is None:
                # else it answers a push that came after the decision
                self._closed = (
                    f"the server closed this session: {answer.get('reason') or answer.get('error')}"
                )


def read_welcome(text: str | bytes) -> dict[str, Any]:
    """The welcome of the server, with which every connection begins. A ValueError if it is none."""
    try:
        answer = json.loads(text)
    except RecursionError:
        answer = None
    if not isinstance(answer, dict) or answer.get("type") != "welcome":
        raise ValueError("no agreestop server answers there")
    if answer.get("protocol") != PROTOCOL:
        spoken = quoted(answer.get("protocol"))
        raise ValueError(f"the server speaks protocol {spoken}, and this client speaks {PROTOCOL}")
    return answer


def read_answer(text: str | bytes) -> dict[str, Any]:
    """An answer of the server: one of _FIELDS, with all of its fields. Anything else is refused."""
    try:
        answer = JSON.decode(text if isinstance(text, str) else text.decode())
        if answer["type"] == "next" and "found" not in answer and type(answer["session"]) is int:
            return dict(answer)  # as most are
        known = all(type(answer[name]) in types for name, types in _FIELDS[answer["type"]].items())
        lists = (
            (answer.get("classes"), int),
            (answer.get("names"), str),
            (answer.get("alarms"), str),
        )
        known &= all(type(one) is kind for values, kind in lists for one in values or ())
        if (names := answer.get("names")) is not None:  # one name, where it is a node of a tree
            known &= len(names) in (1, len(answer["classes"]))
        if answer["type"] == "decision":
            read_decision(answer)
        for one in answer.get("found", ()):
            read_found(one)
        known &= type(answer.get("decision", "")) is str
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        known = False
    if not known:
        raise InputError(
            "the server sent an answer that this client cannot read: use the same version of "
            "agreestop at both ends."
        )
    return dict(answer)


def live_address(url: str) -> str:
    """The address of the WebSocket of a server; the path may be given or not. The address of
    its page, with http, means the same server.
    """
    if not isinstance(url, str) or not url.startswith(("ws://", "wss://", "http://", "https://")):
        raise InputError(
            f"the address is {url!r}: give that of the server, such as ws://127.0.0.1:8000."
        )
    if url.startswith("http"):
        url = "ws" + url.removeprefix("http")
    return url.rstrip("/").removesuffix(PATH) + PATH


def connect_options(token: str | None) -> dict[str, Any]:
    """How to connect, for websockets."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    shared = {"compression": None, "max_size": LARGEST_ANSWER, "proxy": None}
    return {"subprotocols": [SUBPROTOCOL], "additional_headers": headers, **shared}


def cannot_connect(url: str, error: Exception) -> CannotConnect:
    """Why there is no connection: what the server said, or the system."""
    response = getattr(error, "response", None)
    refused = response is not None and response.status_code < 500
    said = (
        response.body.decode(errors="replace").strip()
        if response is not None and response.body
        else str(error)
    )
    words = f"cannot connect to {url}: {said[:200] or type(error).__name__}"
    if isinstance(error, ConnectionRefusedError):
        words += ". Start the server there with `agreestop serve`, or check host and port."
    return CannotConnect(words, not refused and not isinstance(error, ValueError))


def connection_lost(reason: str) -> ConnectionLost:
    """Why there is no connection any more."""
    return ConnectionLost(
        f"the connection to the server ended ({reason}): connect again; sessions without a "
        "decision are lost."
    )


def read_alarms(answer: dict[str, Any]) -> tuple[str, ...]:
    """The answer to a label: the alarms so far, in words."""
    if answer["type"] == "error":
        raise InputError(answer["error"])
    return tuple(answer["alarms"])


@final
class ClientSession(SharedSession):
    """One input at the server, of a `Client`."""

    def __init__(self, client: "Client", session: int) -> None:
        super().__init__(session, client.about)
        self._client = client
        self._due = 0  # messages without an answer; more than one after a push that was interrupted

    def push(
        self,
        step: Any = None,
        *,
        frame: ArrayLike | None = None,
        log_confidence: ArrayLike | None = None,
        cost: float | None = None,
        weight: float | None = None,
    ) -> Decision | None:
        """Send the next step, and return the decision if the rule stops here, else None.

        step: flat indices of the active inputs, [] for a pause. Without members, what the rule
        reads at its next checkpoint (`Client.about["reads"]`): an answer, with its cost and weight
        where calibration had them; a pair (centre, scale) or (lower, upper); or a risk. frame:
        instead, one dense step of booleans or numbers. log_confidence: instead, (K, C) at the next
        checkpoint, or (m, K, C) at the next m. A session gets one of the three.
        """
        self._client._ask(self, self._step_message(step, frame, log_confidence, cost, weight))
        return self.decision

    def push_steps(
        self,
        steps: Sequence[Any] | None = None,
        *,
        frames: ArrayLike | None = None,
        cost: Sequence[float] | None = None,
        weight: Sequence[float] | None = None,
    ) -> Decision | None:
        """Send several steps in one message, each as for `push`, or frames (m, ...); steps after
        the decision are ignored. cost, weight: of open answers, one number for each.
        """
        self._client._ask(self, self._steps_message(steps, frames, cost, weight))
        return self.decision

    def end(self) -> Decision:
        """The decision on a stream that is over: its last evidence stands for every
        checkpoint that is left.
        """
        self._check_open()
        self._client._ask(self, write(type="end", session=self._id))
        assert self.decision is not None
        return self.decision

    def close(self) -> None:
        """Give up the session without a decision."""
        if self.decision is None and not self._closed:
            self._client._ask(self, write(type="close", session=self._id), may_close=True)

    def label(self, label: int | float | str | None) -> tuple[str, ...]:
        """Give the label of the decision, None if it will never be known.

        A class index; for open answers the right answer, for numbers the true number. Returns the
        alarms of the drift monitor so far, in words.
        """
        return self._client._label(self, label)


@final
class ClientWatch(SharedSession):
    """One stream without an end at the server, of a `Client`; `client.watch()` opens it.

    Examples
    --------
    With a server that `agreestop serve SPOTTER` started::

        with ag.serve.Client("ws://127.0.0.1:8000") as client:
            stream = client.watch()
            for score in scores:
                found = stream.push(score)
                if found is not None:
                    print(found)
    """

    endless = True

    def __init__(self, client: "Client", session: int) -> None:
        super().__init__(session, client.about)
        self._client = client
        self._due = 0

    def push(
        self, step: Any = None, *, frame: ArrayLike | None = None
    ) -> Detection | Decision | None:
        """Send the next step: a `Detection`, later the `Decision` on what follows, or None.

        step: a score, or where the server has members flat indices of the active inputs. frame:
        instead, one dense step.
        """
        self._client._ask(self, self._step_message(step, frame, None, None, None))
        return self._found.popleft() if self._found else None

    def push_steps(
        self, steps: Sequence[Any] | None = None, *, frames: ArrayLike | None = None
    ) -> list[Detection | Decision]:
        """Send several steps in one message. Returns what they found, in order."""
        self._client._ask(self, self._steps_message(steps, frames))
        found = list(self._found)
        self._found.clear()
        return found

    def close(self) -> str:
        """End the stream. Returns a sentence if a detection has no decision yet, else ""."""
        if not self._closed:
            self._client._ask(self, write(type="close", session=self._id), may_close=True)
        return self._closed.partition(CLOSED_BY_CLIENT)[2].strip()


Opened = TypeVar("Opened", ClientSession, ClientWatch)


@final
class Client:
    """A connection to a server. `about`: what is served there.

    Where the connection ends, sessions without a decision are lost (`ConnectionLost`); the next
    `open`, `watch` or `label` connects again, and tries for `reconnect` seconds at most.
    """

    def __init__(
        self, url: str, *, token: str | None = None, reconnect: float = RECONNECT_SECONDS
    ) -> None:
        self._url, self._address, self._token = url, live_address(url), token
        self._reconnect = as_seconds(reconnect)
        self._sessions: dict[int, ClientSession | ClientWatch] = {}
        self._labels_due: dict[str, int] = {}
        self._next, self._is_sending, self._is_closed = 0, False, False
        self._lost: ConnectionLost | None = None
        self._connect()

    def open(self, *, group: Any = None) -> ClientSession:
        """Begin a session. group: that of the input, for a rule with groups."""
        return self._retry(lambda again: self._begin(ClientSession(self, self._next), group))

    def watch(self) -> ClientWatch:
        """Begin a stream without an end, at a server with a spotter."""
        return self._retry(lambda again: self._begin(ClientWatch(self, self._next), None))

    def close(self) -> None:
        """End the connection; sessions without a decision are given up."""
        self._is_closed = True
        self._stack.close()

    def _connect(self) -> None:
        with needs("a client"):
            from websockets.exceptions import WebSocketException
            from websockets.sync.client import connect

        self._stack = ExitStack()
        try:
            options = connect_options(self._token)
            self._socket = self._stack.enter_context(connect(self._address, **options))
            self.about = read_welcome(self._socket.recv(timeout=WELCOME_SECONDS))
        except (OSError, WebSocketException, ValueError) as error:
            self._stack.close()
            raise cannot_connect(self._url, error) from None

    def _connect_again(self) -> None:
        """Connect where the connection has ended."""
        if self._is_closed:
            raise InputError("this client is closed: make a new one.")
        if self._lost is None:
            return
        failed: InputError = self._lost
        for pause in pauses(self._reconnect):
            try:
                self._connect()
            except CannotConnect as error:
                if not error.may_pass:
                    raise
                failed = error
                sleep(pause)
            else:
                self._lost = None
                return
        raise failed

    def _retry(self, work: Callable[[bool], Result]) -> Result:
        """What `work(again)` gives, connected; again: it was tried before, and the connection
        ended.
        """
        for left in reversed(range(ATTEMPTS)):
            self._connect_again()
            try:
                return work(left < ATTEMPTS - 1)
            except ConnectionLost:
                if not left or not self._reconnect:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _begin(self, session: Opened, group: Any) -> Opened:
        """Open a session."""
        message = session._open_message(group)
        self._next += 1
        self._sessions[session._id] = session
        self._ask(session, message)
        return session

    def _lose(self, error: Exception) -> ConnectionLost:
        """The connection has ended, and all sessions with it."""
        for session in self._sessions.values():
            session._lose(str(error))
            session._due = 0
        self._sessions.clear()
        self._labels_due.clear()
        self._lost = connection_lost(str(error))
        self._stack.close()
        return self._lost

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _label(self, session: ClientSession, label: int | float | str | None) -> tuple[str, ...]:
        session._label_message(label)  # refuses what is no label
        return self._retry(lambda again: self._label_once(session, label, again))

    def _label_once(
        self, session: ClientSession, label: int | float | str | None, again: bool
    ) -> tuple[str, ...]:
        message, key = session._label_message(label, again), session._key
        self._labels_due[key] = self._labels_due.get(key, 0) + 1
        self._send(message)
        while True:
            answer = self._receive()
            if answer.get("decision") == key and answer["type"] in ("labelled", "error"):
                self._labels_due[key] -= 1
                # else it is the answer to a label that was interrupted
                if not self._labels_due[key]:
                    del self._labels_due[key]
                    return read_alarms(answer)

    def _ask(
        self, session: ClientSession | ClientWatch, message: str | bytes, may_close: bool = False
    ) -> None:
        """Send a message about a session, and wait for its answer, behind those to messages that
        were interrupted.
        """
        session._due += 1
        try:
            self._send(message)
            while session._due:
                self._receive()
        except ConnectionLost:
            if session.decision is None and not may_close:
                raise session._error() from None
        if session._closed and session.decision is None and not may_close:
            raise session._error()

    def _send(self, message: str | bytes) -> None:
        from websockets.exceptions import ConnectionClosed

        if self._lost is not None:
            raise self._lost
        if self._is_sending:
            raise InputError(
                "an earlier message was interrupted while it was sent, perhaps in its middle: "
                "connect again."
            )
        self._is_sending = True
        try:
            self._socket.send(message)
        except ConnectionClosed as error:
            self._is_sending = False
            raise self._lose(error) from None
        self._is_sending = False

    def _receive(self) -> dict[str, Any]:
        """The next answer of the server, which its session has taken."""
        from websockets.exceptions import ConnectionClosed

        try:
            answer = read_answer(self._socket.recv())
        except ConnectionClosed as error:
            raise self._lose(error) from None
        session = self._sessions.get(answer.get("session", -1))
        if session is not None:
            session._take(answer)
            over = session.decision is not None or bool(session._closed)
            session._due = 0 if over else max(0, session._due - 1)
            if over:
                del self._sessions[session._id]
        elif (
            answer["type"] == "error" and "decision" not in answer and answer.get("session") is None
        ):
            raise InputError(f"the server refused a message: {answer['error']}")
        return answer
