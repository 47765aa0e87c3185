"""The messages between a client and the server, version 1; docs/protocol.md describes them.

A client sends JSON objects, or binary pushes:

    session  uint32      little-endian, as all numbers
    step     uint32      the number of the first step in the message, from 1
    count    uint32      the number of steps
    events   uint32      count numbers: how many events each step has
    indices  uint32      the flat indices of the events, step after step

Dense steps of numbers have FRAME in place of each number of events, and float32 in place of the
indices, frame after frame.

The server answers every message with one JSON object.
"""

import gc
import json
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agreestop.common import InputError, is_integer, is_number
from agreestop.common.errors import quoted
from agreestop.decide.calibrated import CalibratedRule
from agreestop.decide.decisions import Decision
from agreestop.decide.spotting import Detection
from agreestop.engines.live_batch import LiveInput, Push, Reading, Steps

PROTOCOL = 1
SUBPROTOCOL = "agreestop.v1"
PATH = "/live"
HEADER = struct.Struct("<III")
ONE_STEP = struct.Struct("<IIII")  # the same and the number of events, for a single step
LARGEST = 2**32 - 1
FRAME = LARGEST  # instead of a number of events: the steps are frames
CLOSED_BY_CLIENT = "the client closed it."
LONGEST_KEY = 64
LONGEST_GROUP = 10_000  # characters, or booleans
DEEPEST = 16  # lists within lists
LONGEST_ANSWER = 1000  # characters
STREAM_STEPS = 1024  # of a message for a stream without an end
SPARE_LISTS = 10_000  # beyond those that a push can need; a message with more is not parsed
# what labels are, by what a rule reads
LABELS = {"log_confidence": "class", "answers": "string", "numbers": "number", "risk": None}
# what travels of the answer at each depth of a tree
OF_A_DEPTH = ("time", "index", "classes", "names", "members", "answered")
EVENTS_A_UNIT = 16  # events that cost about as much to compute as a step
# what a push may hold, one of them
CONTENTS = ("events", "steps", "frame", "frames", "log_confidence", "evidence")


class BadMessage(InputError):
    """A message that cannot be used.

    It costs the session that it names; the connection if it names none.
    """

    def __init__(self, message: str, session: int | None = None) -> None:
        super().__init__(message)
        self.session = session


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one message may hold, known before it is parsed: steps, checkpoints with
    evidence, and JSON lists. label: what labels are.
    """

    steps: int = LARGEST
    checkpoints: int = LARGEST
    lists: int = SPARE_LISTS
    label: str | None = "class"

    @classmethod
    def of(cls, calibrated: CalibratedRule, shape: Sequence[int] | None) -> Self:
        """The bounds under a rule, for inputs of this shape."""
        steps, checkpoints = int(calibrated.checkpoints[-1]), len(calibrated.checkpoints)
        of_a_checkpoint = 1 + (calibrated.members or 1)
        lists = SPARE_LISTS + max(steps * _lists(shape), checkpoints * of_a_checkpoint)
        return cls(steps, checkpoints, lists, LABELS[calibrated.rule.terms.reads])

    @classmethod
    def of_streams(cls, shape: Sequence[int] | None) -> Self:
        """The bounds for streams without an end."""
        lists = SPARE_LISTS + STREAM_STEPS * _lists(shape)
        return cls(STREAM_STEPS, STREAM_STEPS, lists, None)


def _lists(shape: Sequence[int] | None) -> int:
    """How many JSON lists a step of this shape can need."""
    return sum(math.prod((shape or ())[:depth]) for depth in range(len(shape or ()) + 1))


def step_after(step: int, count: int) -> int:
    """The number of the step that follows `count` steps; after the largest comes 1 again."""
    return (step + count - 1) % LARGEST + 1


@dataclass(frozen=True, eq=False, slots=True)
class Open:
    """Begin a session, under a number that the client chooses."""

    session: int
    group: Any


@dataclass(eq=False, slots=True)  # not frozen: one is made for each push
class PushSteps:
    """The next steps of a session, as events or as frames (m, ...), or its log-confidences
    (m, K, C) at the next m checkpoints, or what its rule reads there.

    `step` is the number of the first.
    """

    session: int
    step: int
    steps: Steps | None = None
    log_confidence: NDArray[Any] | None = None
    frames: NDArray[Any] | None = None
    evidence: Sequence[Reading] | None = None

    @property
    def content(self) -> Any:
        """What is pushed."""
        contents = self.steps, self.frames, self.log_confidence, self.evidence
        return next(given for given in contents if given is not None)

    def __len__(self) -> int:
        return len(self.content if self.steps is None else self.steps.counts)

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays; what a rule reads is about as large as its message."""
        if self.steps is not None:
            return self.steps.counts.nbytes + self.steps.indices.nbytes
        arrays = self.frames, self.log_confidence
        return sum(array.nbytes for array in arrays if array is not None)

    @property
    def units(self) -> int:
        """About how much work it is: a unit is a step, or some events of it."""
        return len(self) + (0 if self.steps is None else len(self.steps.indices) // EVENTS_A_UNIT)

    @property
    def largest_units(self) -> int:
        """The work of its largest step, which cannot be cut."""
        if self.steps is None:
            return 1
        counts = self.steps.counts
        return (
            1 + (int(counts.max()) if len(counts) > 1 else len(self.steps.indices)) // EVENTS_A_UNIT
        )

    def push(self, row: LiveInput) -> Push:
        """The same for the batch of live inputs."""
        return Push(row, self.steps, self.log_confidence, self.frames, self.evidence)

    def cut(self, units: int) -> tuple[Self, Self | None]:
        """The first steps that are about so many units of work, one step at least; and the rest,
        if there is one.
        """
        if len(self) == 1:
            return self, None
        if self.steps is None:
            count = max(1, units)
        else:
            costs = np.cumsum(1 + self.steps.counts[: max(1, units)] // EVENTS_A_UNIT)
            count = max(1, int(np.searchsorted(costs, units, side="right")))
        if count >= len(self):
            return self, None
        if self.steps is None:
            names = "frames", "log_confidence", "evidence"
            name = next(name for name in names if getattr(self, name) is not None)
            parts = self.content[:count], self.content[count:]
            return replace(self, **{name: parts[0]}), replace(self, **{name: parts[1]})
        counts, indices = self.steps.counts, self.steps.indices
        events = int(counts[:count].sum())
        head = Steps(counts[:count], indices[:events])
        tail = Steps(counts[count:], indices[events:])
        return replace(self, steps=head), replace(self, steps=tail)


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
    """The label of a decision, which is named by its key; None if it will never be known.

    A class index, or for other rules a string or a number. again: it was sent before, on a
    connection that ended before the answer.
    """

    key: str
    label: int | float | str | None
    again: bool = False


Message = Open | PushSteps | End | Close | Label


def read_message(data: str | bytes, bounds: Bounds | None = None) -> Message:
    """The message of a client. What is no message is refused with a sentence.

    Nothing is made of a message before its size and its types are known: a list in it costs its own
    length, and no more.
    """
    bounds = bounds or Bounds()
    if isinstance(data, bytes):
        return _read_binary(data, bounds)
    content = _read_json(data, bounds)
    if not isinstance(content, dict):
        raise BadMessage("the message is no JSON object: send one with a 'type', or a binary push.")
    kind = content.get("type")
    if kind == "label":
        return _read_label(content, bounds.label)
    session = content.get("session")
    if type(session) is not int or not 0 <= session <= LARGEST:
        raise BadMessage(
            f"session is missing or no number: give a whole number from 0 to {LARGEST}."
        )
    if kind == "push":
        return _read_push(content, session, bounds)
    if kind == "open":
        return Open(session, read_group(content.get("group"), session))
    if kind == "end" or kind == "close":
        return End(session) if kind == "end" else Close(session)
    raise BadMessage(
        "the type of the message is unknown: send open, push, end, close or label.", session
    )


def _read_json(text: str, bounds: Bounds) -> Any:
    """JSON of few lists and objects, which is what makes it large in memory and slow to read."""
    if (lists := text.count("[") + text.count("{")) > bounds.lists:
        named = re.search(r'"session"\s*:\s*([0-9]{1,10})(?![0-9])', text[:1000])
        session = None if named is None else min(int(named[1]), LARGEST)
        raise BadMessage(
            f"the message has {lists} lists, and none can need more than {bounds.lists}: send "
            "fewer steps.",
            session,
        )
    collecting = gc.isenabled()
    # JSON has no cycles, and to look for them would take many times as long as to read it
    gc.disable()
    try:
        return JSON.decode(text)
    except (ValueError, RecursionError):
        raise BadMessage(
            "the message is no JSON: send one JSON object, or a binary push."
        ) from None
    finally:
        if collecting:
            gc.enable()


def no_constant(name: str) -> None:
    """Refuses NaN and Infinity, which Python's JSON would read."""
    raise ValueError(name)


JSON = json.JSONDecoder(parse_constant=no_constant)


def _read_label(content: dict[str, Any], kind: str | None) -> Label:
    key, label = content.get("decision"), content.get("label")
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
        raise BadMessage("decision is missing: give the key that came with the decision.")
    if label is not None and not is_label(label, kind):
        raise BadMessage(f"label is {quoted(label)}: {needed_label(kind, 'null')}.")
    return Label(key, label, content.get("again") is True)


def is_label(label: object, kind: str | None) -> bool:
    """Whether this can be a label where labels are of that kind, one of LABELS."""
    if kind == "string":
        return isinstance(label, str) and 0 < len(label) <= LONGEST_ANSWER
    if kind == "number":
        return is_number(label)
    return kind is not None and is_integer(label) and 0 <= label <= LARGEST


def needed_label(kind: str | None, unknown: str) -> str:
    """What a label must be. unknown: what to give where it will never be known."""
    needed = {
        "class": "give a class index, a whole number from 0",
        "string": f"give the right answer, a string of at most {LONGEST_ANSWER} characters",
        "number": "give the true number, a finite one",
        None: "what is served here has no labels (losses, or detections), so give none",
    }
    return f"{needed[kind]}, or {unknown} if it will never be known"


def read_group(group: Any, session: int) -> Any:
    """The group of an input, as it may be in a message."""
    known = (
        group is None
        or type(group) in (str, int)
        or (type(group) is list and set(map(type, group)) <= {bool})
    )
    if (
        not known
        or (type(group) is int and abs(group) > LARGEST)
        or (type(group) in (str, list) and len(group) > LONGEST_GROUP)
    ):
        raise BadMessage(
            "group is none: give a string, a whole number, or a list of booleans where groups "
            "overlap.",
            session,
        )
    return group


def _read_push(content: dict[str, Any], session: int, bounds: Bounds) -> PushSteps:
    given = [name for name in CONTENTS if name in content]
    if len(given) != 1 or type(content[given[0]]) is not list:
        raise BadMessage(f"a push needs one of {', '.join(CONTENTS)}, as a list.", session)
    step, values = content.get("step"), content[given[0]]
    if type(step) is not int or not 1 <= step <= LARGEST:
        raise BadMessage(
            "step is missing or no number: give the number of the first step in the message, from "
            "1.",
            session,
        )
    try:
        if given[0] == "log_confidence":
            array = _as_numbers(values)
            array = array[None] if array.ndim == 2 else array
            if array.ndim != 3 or array.dtype.kind not in "fiu" or not array.size:
                raise InputError(
                    "log_confidence is no list of numbers (K, C), or of several (m, K, C): give "
                    "the logarithms by member."
                )
            _check_length(len(array), bounds.checkpoints)
            return PushSteps(session, step, log_confidence=array)
        if given[0] == "evidence":
            _check_length(len(values), bounds.checkpoints)
            return PushSteps(session, step, evidence=_as_readings(values, content))
        several = [values] if given[0] in ("events", "frame") else values
        _check_length(len(several), bounds.steps)
        if given[0] in ("frame", "frames"):
            return PushSteps(session, step, frames=_as_frames(_as_numbers(several)))
        return PushSteps(session, step, _as_steps(several))
    except InputError as error:
        raise BadMessage(str(error), session) from None
    except (ValueError, OverflowError):
        raise BadMessage(
            f"{given[0]} is no regular list of numbers: give indices, a frame, log-confidences "
            "(K, C), or what the rule reads.",
            session,
        ) from None


def _check_length(steps: int, most: int) -> None:
    if steps > most:
        raise InputError(
            f"the message has {steps} steps, but the rule decides within {most}: send fewer."
            if most != STREAM_STEPS
            else f"the message has {steps} steps: send at most {most} at once."
        )


def _as_readings(values: list[Any], content: dict[str, Any]) -> list[Reading]:
    """What a rule reads at the next checkpoints: strings, numbers, or pairs of numbers."""
    if not values:
        raise InputError("evidence is empty: give what the rule reads at the next checkpoint.")
    given = []
    for value in values:
        if type(value) is list:
            value = _as_numbers(value)
            if value.ndim > 2 or value.dtype.kind not in "fi" or not value.size:
                raise ValueError("no list of numbers")
        elif type(value) not in (str, int, float):
            raise ValueError("neither a string nor a number")
        elif type(value) is str and len(value) > LONGEST_ANSWER:
            raise InputError(
                f"an answer has {len(value)} characters, and {LONGEST_ANSWER} are the most: send "
                "the answer alone, without the text around it."
            )
        given.append(value)
    amounts = []
    for name in ("cost", "weight"):
        amount = content.get(name)
        if amount is None:
            amount = [None] * len(given)
        elif type(amount) is not list or not set(map(type, amount)) <= {int, float}:
            raise InputError(f"{name} is no list of numbers: give one for each sample.")
        elif len(amount) != len(given):
            raise InputError(
                f"{name} has {len(amount)} numbers for {len(given)} samples: give one for each."
            )
        amounts.append(amount)
    return list(map(Reading, given, *amounts))


def _as_steps(steps: list[Any]) -> Steps:
    """Steps from lists of flat indices; a ValueError if a step holds lists."""
    if not steps or set(map(type, steps)) != {list}:
        raise InputError(
            "steps is empty or no list of lists: give a list of flat indices for each step."
        )
    flat = list(chain.from_iterable(steps))
    kinds = set(map(type, flat))
    if list in kinds:
        raise ValueError("a step holds lists")
    if not kinds <= {int}:
        raise InputError(
            "events holds what is no whole number: a list of flat indices is needed for each step."
        )
    return Steps(np.array(list(map(len, steps)), np.int64), np.array(flat, np.int64))


def _as_numbers(values: list[Any]) -> NDArray[Any]:
    """An array of booleans or numbers from lists of lists; a ValueError if they are not regular.

    Every level is checked before the next, so a list of strings never becomes an array of the width
    of the longest.
    """
    shape, level = [len(values)], values
    while level and type(level[0]) is list and len(shape) < DEEPEST:
        if set(map(type, level)) != {list} or len(set(map(len, level))) != 1:
            raise ValueError("a ragged list")
        shape.append(len(level[0]))
        level = list(chain.from_iterable(level))
    kinds = set(map(type, level))
    if list in kinds:
        raise ValueError("a ragged list")
    if not kinds <= {bool, int, float}:
        return np.zeros(0, object)  # words or objects: refused for their type
    return np.array(
        level, np.float64 if float in kinds else np.int64 if int in kinds else np.bool_
    ).reshape(shape)


def _as_frames(values: ArrayLike) -> NDArray[Any]:
    """Dense steps (m, ...) of booleans or numbers; whether they fit the members is
    not known here.
    """
    frames = np.asarray(values)
    if frames.ndim < 2 or not frames.size or frames.dtype.kind not in "bfiu":
        raise InputError(
            "the frames are no lists of numbers: give a number for each input, in the shape of a "
            "step or flat."
        )
    return frames


def _read_binary(data: bytes, bounds: Bounds) -> PushSteps:
    if len(data) < HEADER.size:
        raise BadMessage(
            f"the binary message has {len(data)} bytes: a push begins with session, step and "
            "count, 12 bytes."
        )
    if len(data) >= ONE_STEP.size:
        session, step, count, events = ONE_STEP.unpack_from(data)
        if count == 1 and step and len(data) == ONE_STEP.size + 4 * events:
            indices = np.frombuffer(data, "<u4", offset=ONE_STEP.size).astype(np.int64)
            return PushSteps(session, step, Steps(np.array([events], np.int64), indices))
    session, step, count = HEADER.unpack_from(data)
    if len(data) % 4 or len(data) < HEADER.size + 4 * count or not count or not step:
        raise BadMessage(
            f"the binary message has {len(data)} bytes, which do not fit its {count} steps from "
            f"step {step}.",
            session,
        )
    try:
        _check_length(count, bounds.steps)
    except InputError as error:
        raise BadMessage(str(error), session) from None
    numbers = np.frombuffer(data, "<u4", offset=HEADER.size)
    if numbers[0] == FRAME and (numbers[:count] == FRAME).all():
        if len(numbers) == count or len(numbers) % count:
            raise BadMessage(
                f"the binary message has {len(numbers) - count} numbers for {count} frames: send "
                "whole frames.",
                session,
            )
        return PushSteps(session, step, frames=numbers[count:].view("<f4").reshape(count, -1))
    counts, indices = numbers[:count].astype(np.int64), numbers[count:].astype(np.int64)
    if (total := int(counts.sum())) != len(indices):
        raise BadMessage(
            f"the binary message has {len(indices)} events, but its steps have {total}.", session
        )
    return PushSteps(session, step, Steps(counts, indices))


def write_push(session: int, step: int, steps: Sequence[ArrayLike]) -> bytes:
    """A binary push of one or more steps, each a list of flat indices."""
    packed = Steps.of(steps)
    if not len(packed) or (
        len(packed.indices) and (packed.indices.min() < 0 or packed.indices.max() > LARGEST)
    ):
        raise InputError(
            "there is no step, or an index that is no input: give flat indices from 0 for each "
            "step, [] for a pause."
        )
    if len(packed) == 1:
        head = ONE_STEP.pack(session, step, 1, len(packed.indices))
        return head + packed.indices.astype("<u4").tobytes()
    return (
        HEADER.pack(session, step, len(packed))
        + packed.counts.astype("<u4").tobytes()
        + packed.indices.astype("<u4").tobytes()
    )


def write_frames(session: int, step: int, frames: ArrayLike) -> bytes:
    """A binary push of dense steps (m, ...), which travel as float32."""
    values = _as_frames(frames)
    with np.errstate(over="ignore"):
        sent = values.reshape(len(values), -1).astype("<f4")
    if not np.isfinite(sent).all():
        raise InputError(
            "the frames hold numbers that are not finite in float32: clean or rescale the inputs."
        )
    return (
        HEADER.pack(session, step, len(sent))
        + np.full(len(sent), FRAME, "<u4").tobytes()
        + sent.tobytes()
    )


def write_evidence(
    session: int, step: int, values: Sequence[Any], reads: str, amounts: dict[str, Any]
) -> str:
    """A push of what a rule without fixed classes reads at the next checkpoints.

    amounts: the cost and the weight of each answer, or None.
    """
    sent: list[Any] = []
    for value in values:
        if reads == "answers":
            if not isinstance(value, str):
                raise InputError(f"an answer is {quoted(value)}: push a string, such as '18'.")
            sent.append(value)
            continue
        array = np.asarray(value)
        right = array.ndim in ((0,) if reads == "risk" else (1, 2))
        if not right or array.dtype.kind not in "fiu" or not np.isfinite(array).all():
            needed = "a number" if reads == "risk" else "a pair of numbers, or (K, 2) of K members,"
            raise InputError(f"{quoted(value)} is pushed: {needed} is needed, and finite.")
        sent.append(array.tolist())
    given = {name: list(some) for name, some in amounts.items() if some is not None}
    return write(type="push", session=session, step=step, evidence=sent, **given)


def write(**content: Any) -> str:
    """A JSON message, in ASCII, so that half a character of a client cannot make it one that
    cannot be sent; numbers may be numpy's.
    """
    return json.dumps(
        content, separators=(",", ":"), allow_nan=False, default=lambda number: number.item()
    )


def write_decision(session: int, key: str, decision: Decision, promise: str) -> str:
    """The message that brings a decision."""
    known = {"session": session, "decision": key, "promise": promise}
    return write(type="decision", **known, **decision_fields(decision))


def decision_fields(decision: Decision) -> dict[str, Any]:
    """A decision as JSON can hold it."""
    interval = decision.lower, decision.upper
    plain = "time", "index", "classes", "names", "members", "block", "number", "answered", "cost"
    return {name: getattr(decision, name) for name in plain} | {
        "first_risk": _finite(decision.first_risk),
        "interval": None if decision.lower is None else [_finite(end) for end in interval],
        "by_depth": [
            {name: getattr(one, name) for name in OF_A_DEPTH} for one in decision.by_depth
        ],
    }


def found_fields(found: Detection | Decision) -> dict[str, Any]:
    """What a push to a stream without an end found, as JSON can hold it."""
    if isinstance(found, Decision):
        return {"type": "decision", **decision_fields(found)}
    known = {"index": found.index, "score": _finite(found.score), "number": found.number}
    return {"type": "detection", **known}


def read_found(content: dict[str, Any]) -> Detection | Decision:
    """What `found_fields` wrote."""
    if content["type"] == "decision":
        return read_decision(content)
    score = math.inf if content["score"] is None else content["score"]
    return Detection(content["index"], score, content["number"])


def _finite(number: float | None) -> float | None:
    """A number that JSON can hold: None in place of an infinite one."""
    return number if number is not None and math.isfinite(number) else None


def read_decision(content: dict[str, Any]) -> Decision:
    """The decision in a message."""
    names, interval = content["names"], content.get("interval")
    lower, upper = interval or (None, None)
    if interval is not None:  # an infinite end travels as null
        lower = -math.inf if lower is None else lower
        upper = math.inf if upper is None else upper
    depths = [
        Decision(**{name: _as_tuple(one[name]) for name in OF_A_DEPTH})
        for one in content.get("by_depth", ())
    ]
    return Decision(
        content["time"],
        content["index"],
        tuple(content["classes"]),
        None if names is None else tuple(names),
        content["first_risk"],
        content["members"],
        content["block"],
        number=content.get("number"),
        answered=content.get("answered", True),
        cost=content.get("cost"),
        lower=lower,
        upper=upper,
        by_depth=tuple(depths),
    )


def _as_tuple(value: Any) -> Any:
    """Lists of JSON as tuples."""
    return tuple(value) if isinstance(value, list) else value
