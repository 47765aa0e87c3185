"""The messages between a client and the server, version 1; docs/protocol.md describes them.

A client sends JSON objects, or binary pushes:

    session  uint32      little-endian, as all numbers
    step     uint32      the number of the first step in the message, from 1
    count    uint32      the number of steps
    events   uint32      count numbers: how many events each step has
    indices  uint32      the flat indices of the events, step after step

Dense steps of numbers have FRAME in place of each number of events, and float32 in place of the indices, frame after frame.

The server answers every message with one JSON object.
"""

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import InputError
from agreestop.decide.decisions import Decision
from agreestop.engines.live_batch import Steps

PROTOCOL = 1
SUBPROTOCOL = "agreestop.v1"
PATH = "/live"
HEADER = struct.Struct("<III")
LARGEST = 2**32 - 1
FRAME = LARGEST  # instead of a number of events: the steps are frames
LONGEST_KEY = 64
CONTENTS = ("events", "steps", "frame", "frames", "log_confidence")  # what a push may hold, one of them


class BadMessage(InputError):
    """A message that cannot be used. It costs the session that it names; the connection if it names none."""

    def __init__(self, message: str, session: int | None = None) -> None:
        super().__init__(message)
        self.session = session


@dataclass(frozen=True, eq=False, slots=True)
class Open:
    """Begin a session, under a number that the client chooses."""

    session: int
    group: Any


@dataclass(frozen=True, eq=False, slots=True)
class PushSteps:
    """The next steps of a session, as events or as frames (m, ...), or its log-confidences (m, K, C) at the next m checkpoints.

    `step` is the number of the first.
    """

    session: int
    step: int
    steps: Steps | None = None
    log_confidence: NDArray[Any] | None = None
    frames: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(next(given for given in (self.steps, self.frames, self.log_confidence) if given is not None))


@dataclass(frozen=True, eq=False, slots=True)
class End:
    """The stream of a session is over: answer from what there is."""

    session: int


@dataclass(frozen=True, eq=False, slots=True)
class Close:
    """Give up a session without an answer."""

    session: int


@dataclass(frozen=True, eq=False, slots=True)
class Label:
    """The label of a decision, which is named by its key; None if it will never be known."""

    key: str
    label: int | None


Message = Open | PushSteps | End | Close | Label


def read_message(data: str | bytes) -> Message:
    """The message of a client. What is no message is refused with a sentence."""
    if isinstance(data, bytes):
        return _read_binary(data)
    try:
        content = json.loads(data, parse_constant=no_constant)
    except (ValueError, RecursionError):
        raise BadMessage("the message is no JSON: send one JSON object, or a binary push.") from None
    if not isinstance(content, dict):
        raise BadMessage("the message is no JSON object: send one with a 'type', or a binary push.")
    kind = content.get("type")
    if kind == "label":
        return _read_label(content)
    session = content.get("session")
    if type(session) is not int or not 0 <= session <= LARGEST:
        raise BadMessage(f"session is missing or no number: give a whole number from 0 to {LARGEST}.")
    if kind == "push":
        return _read_push(content, session)
    if kind == "open":
        return Open(session, read_group(content.get("group"), session))
    if kind == "end" or kind == "close":
        return End(session) if kind == "end" else Close(session)
    raise BadMessage("the type of the message is unknown: send open, push, end, close or label.", session)


def no_constant(name: str) -> None:
    """Refuses NaN and Infinity, which Python's JSON would read."""
    raise ValueError(name)


def _read_label(content: dict[str, Any]) -> Label:
    key, label = content.get("decision"), content.get("label")
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
        raise BadMessage("decision is missing: give the key that came with the decision.")
    if label is not None and (type(label) is not int or not 0 <= label <= LARGEST):
        raise BadMessage("label is no class index: give a whole number from 0, or null if it will never be known.")
    return Label(key, label)


def read_group(group: Any, session: int) -> Any:
    """The group of an input, as it may be in a message."""
    known = group is None or type(group) in (str, int) or (isinstance(group, list) and all(type(one) is bool for one in group))
    if not known or (type(group) is int and abs(group) > LARGEST):
        raise BadMessage("group is none: give a string, a whole number, or a list of booleans where groups overlap.", session)
    return group


def _read_push(content: dict[str, Any], session: int) -> PushSteps:
    given = [name for name in CONTENTS if name in content]
    if len(given) != 1 or not isinstance(content[given[0]], list):
        raise BadMessage(f"a push needs one of {', '.join(CONTENTS)}, as a list.", session)
    step, values = content.get("step"), content[given[0]]
    if type(step) is not int or not 1 <= step <= LARGEST:
        raise BadMessage("step is missing or no number: give the number of the first step in the message, from 1.", session)
    try:
        if given[0] == "log_confidence":
            array = np.asarray(values)
            array = array[None] if array.ndim == 2 else array
            if array.ndim != 3 or array.dtype.kind not in "fiu" or not array.size:
                raise InputError("log_confidence is no list of numbers (K, C), or of several (m, K, C): give the logarithms by member.")
            return PushSteps(session, step, log_confidence=array)
        if given[0] in ("frame", "frames"):
            return PushSteps(session, step, frames=_as_frames([values] if given[0] == "frame" else values))
        steps = [values] if given[0] == "events" else values
        if not steps or not all(isinstance(one, list) for one in steps):
            raise InputError("steps is empty or no list of lists: give a list of flat indices for each step.")
        return PushSteps(session, step, Steps.of(steps))
    except InputError as error:
        raise BadMessage(str(error), session) from None
    except (ValueError, OverflowError, TypeError):
        raise BadMessage(f"{given[0]} is no regular list of numbers: give indices, a frame, or log-confidences (K, C).", session) from None


def _as_frames(values: ArrayLike) -> NDArray[Any]:
    """Dense steps (m, ...) of booleans or numbers; whether they fit the members is not known here."""
    frames = np.asarray(values)
    if frames.ndim < 2 or not frames.size or frames.dtype.kind not in "bfiu":
        raise InputError("the frames are no lists of numbers: give a number for each input, in the shape of a step or flat.")
    return frames


def _read_binary(data: bytes) -> PushSteps:
    if len(data) < HEADER.size:
        raise BadMessage(f"the binary message has {len(data)} bytes: a push begins with session, step and count, 12 bytes.")
    session, step, count = HEADER.unpack_from(data)
    if len(data) % 4 or len(data) < HEADER.size + 4 * count or not count or not step:
        raise BadMessage(f"the binary message has {len(data)} bytes, which do not fit its {count} steps from step {step}.", session)
    numbers = np.frombuffer(data, "<u4", offset=HEADER.size)
    if (numbers[:count] == FRAME).all():
        if len(numbers) == count or len(numbers) % count:
            raise BadMessage(f"the binary message has {len(numbers) - count} numbers for {count} frames: send whole frames.", session)
        return PushSteps(session, step, frames=numbers[count:].view("<f4").reshape(count, -1))
    counts, indices = numbers[:count].astype(np.int64), numbers[count:].astype(np.int64)
    if (total := int(counts.sum())) != len(indices):
        raise BadMessage(f"the binary message has {len(indices)} events, but its steps have {total}.", session)
    return PushSteps(session, step, Steps(counts, indices))


def write_push(session: int, step: int, steps: Sequence[ArrayLike]) -> bytes:
    """A binary push of one or more steps, each a list of flat indices."""
    packed = Steps.of(steps)
    if not len(packed) or (len(packed.indices) and (packed.indices.min() < 0 or packed.indices.max() > LARGEST)):
        raise InputError("there is no step, or an index that is no input: give flat indices from 0 for each step, [] for a pause.")
    return HEADER.pack(session, step, len(packed)) + packed.counts.astype("<u4").tobytes() + packed.indices.astype("<u4").tobytes()


def write_frames(session: int, step: int, frames: ArrayLike) -> bytes:
    """A binary push of dense steps (m, ...), which travel as float32."""
    values = _as_frames(frames)
    with np.errstate(over="ignore"):
        sent = values.reshape(len(values), -1).astype("<f4")
    if not np.isfinite(sent).all():
        raise InputError("the frames hold numbers that are not finite in float32: clean or rescale the inputs.")
    return HEADER.pack(session, step, len(sent)) + np.full(len(sent), FRAME, "<u4").tobytes() + sent.tobytes()


def write(**content: Any) -> str:
    """A JSON message, in ASCII, so that half a character of a client cannot make it one that cannot be sent; numbers may be numpy's."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False, default=lambda number: number.item())


def write_decision(session: int, key: str, decision: Decision, promise: str) -> str:
    """The message that brings a decision."""
    risk = decision.first_risk
    return write(
        type="decision",
        session=session,
        decision=key,
        time=decision.time,
        index=decision.index,
        classes=decision.classes,
        names=decision.names,
        first_risk=None if risk is None or not math.isfinite(risk) else risk,
        members=decision.members,
        block=decision.block,
        number=decision.number,
        promise=promise,
    )


def read_decision(content: dict[str, Any]) -> Decision:
    """The decision in a message."""
    names = content["names"]
    return Decision(
        content["time"],
        content["index"],
        tuple(content["classes"]),
        None if names is None else tuple(names),
        content["first_risk"],
        content["members"],
        content["block"],
        number=content.get("number"),
    )
