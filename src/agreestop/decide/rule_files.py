"""Rule files: a calibrated rule in one file that any later run can decide with.

    line 1   agreestop-rule <format> <bytes of the header> <sha256 of all that follows this line>
    header   JSON that a person can read: the guarantee, n, versions, settings, types and shapes
    arrays   raw little-endian bytes

Loading builds only classes that derive from `KeptInFiles`, from plain values and arrays. It runs no
code from the file, and refuses a file that is truncated, altered, foreign or newer.

    format 2   agreestop 0.2; no kth_values
    format 3   before 0.3
    format 4   now
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from fractions import Fraction
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import numpy as np
from numpy.typing import NDArray

from agreestop.common import InputError, Schedule, StrPath, atomic_writer, read_file
from agreestop.common.errors import shortened
from agreestop.common.files import MOST_BYTES
from agreestop.common.kept import KEPT
from agreestop.common.levels import as_fraction

MAGIC, FORMAT = "agreestop-rule", 4
FIRST_LINE = re.compile(rb"agreestop-rule ([1-9]\d{0,8}) (\d{1,12}) ([0-9a-f]{64})")
UNREADABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
READERS: dict[str, Callable[[Any], Any]] = {
    "fraction": as_fraction,
    "number": float,
    "schedule": Schedule,
}
DTYPES = ("<f8", "<f4", "<i8", "<u8", "|b1")

KINDS = {
    "CalibratedRule": ("a rule", "ag.load_rule"),
    "CalibratedSpotter": ("a spotter", "ag.Spotter.load"),
    "SavedMonitor": ("a drift monitor", "ag.DriftMonitor.load"),
    "SavedAdaptive": ("an adaptive rule", "ag.AdaptiveRule.load"),
}
"""What a file with an object of each class holds, and what reads it."""

Kind = TypeVar("Kind")
Built = TypeVar("Built")


OLD: dict[str, Callable[..., Any]] = {}
"""What makes today's objects from the fields of classes that older formats have."""


def reads_old(name: str) -> Callable[[Callable[..., Built]], Callable[..., Built]]:
    """Mark a function that makes an object of today from the fields of the old class `name`."""

    def mark(build: Callable[..., Built]) -> Callable[..., Built]:
        OLD[name] = build
        return build

    return mark


def write_rule_file(path: StrPath, rule: object, summary: dict[str, Any]) -> None:
    """Write an object of a known class, completely or not at all.

    The header begins with the summary, for people to read.
    """
    kind, arrays = type(rule), list[NDArray[Any]]()
    header = {**summary, "versions": _versions(), "rule": _encode(rule, arrays)}
    header["arrays"] = [{"dtype": one.dtype.str, "shape": list(one.shape)} for one in arrays]
    try:
        text = _readable(header).encode() + b"\n"
        content = text + b"".join(one.tobytes() for one in arrays)
        _read_content(content, len(text))  # what cannot be read is not written
    except UNREADABLE as error:
        raise InputError(
            f"the {kind.__name__} cannot be kept in a file ({shortened(error)}): "
            "change its settings."
        ) from None
    line = f"{MAGIC} {FORMAT} {len(text)} {hashlib.sha256(content).hexdigest()}\n".encode()
    if len(line + content) > MOST_BYTES:
        raise InputError(
            f"the {kind.__name__} takes {len(content):,} bytes, and files have at most "
            f"{MOST_BYTES:,}: use fewer rows."
        )
    with atomic_writer(path) as stream:
        stream.write(line + content)


@cache
def _versions() -> dict[str, str]:
    """Versions of the software, read once: a process goes on saving while they are replaced."""
    from importlib.metadata import version  # slow to import, and only saving needs it

    return {"agreestop": version("agreestop"), "numpy": np.__version__}


def _readable(header: dict[str, Any]) -> str:
    """Indented JSON in which a list of plain values stands on one line."""
    text = json.dumps(header, indent=1, ensure_ascii=False, allow_nan=False)
    # A line break follows the bracket of a list, and never stands in a string.
    return re.sub(r"\[\n[^\[\]{}\"]*\]", lambda found: " ".join(found[0].split()), text)


def read_rule_file(path: StrPath, kind: type[Kind], build: Callable[[Kind], Built]) -> Built:
    """Read an object of that class and return `build(object)`.

    `build` raises an error for an object that cannot work. Every other file than an intact rule
    file of a known format is refused with a sentence.
    """
    raw = read_file(path, "check the path, or calibrate a rule first")
    line, _, content = raw.partition(b"\n")
    if line.split(b" ")[0] != MAGIC.encode():
        raise InputError(
            f"{path} is not an agreestop rule file: "
            "give one that `save` or `agreestop calibrate` wrote."
        )
    if (words := FIRST_LINE.fullmatch(line)) is None:
        raise InputError(f"{path} has a damaged first line: calibrate the rule again.")
    format = int(words[1])
    if format > FORMAT:
        raise InputError(
            f"{path} has rule format {format} and this agreestop reads up to {FORMAT}: "
            "install a newer agreestop."
        )
    if format < 2:
        raise InputError(f"{path} has rule format 1, of agreestop 0.1: calibrate the rule again.")
    if hashlib.sha256(content).hexdigest() != words[3].decode():
        raise InputError(
            f"{path} was truncated or altered (its checksum does not match): "
            "copy it again, or calibrate the rule again."
        )
    try:
        value = _read_content(content, int(words[2]))
        if not isinstance(value, kind):
            held, load = KINDS[type(value).__name__]
            raise InputError(
                f"{path} holds {held}, and {KINDS[kind.__name__][0]} is needed here: give a file "
                f"of one, or read this file with {load}."
            )
        return build(value)
    except InputError:
        raise
    except UNREADABLE as error:
        raise InputError(
            f"{path} does not hold a rule that can be built ({shortened(error)}): "
            "calibrate the rule again."
        ) from None


def kept_kind(path: StrPath) -> str:
    """The class of the object in a rule file; "" where the file cannot be read."""
    try:
        line, _, content = read_file(path).partition(b"\n")
        words = FIRST_LINE.fullmatch(line)
        return str(json.loads(content[: int(words[2])])["rule"]["type"]) if words else ""
    except (InputError, *UNREADABLE):
        return ""


def _encode(value: Any, arrays: list[NDArray[Any]]) -> Any:
    """Plain JSON for settings; an array is added to `arrays`, and the JSON holds its number."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return float(value) if math.isfinite(value) else {"number": str(value)}
        case Fraction():
            return {"fraction": str(value)}
        case Schedule():
            return {"schedule": [list(pair) for pair in value.looks]}
        case tuple():
            return [_encode(item, arrays) for item in value]
        case np.ndarray():
            arrays.append(np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<")))
            return {"array": len(arrays) - 1}
    kind, name = type(value), type(value).__name__
    if not is_dataclass(value) or name not in KEPT:
        raise InputError(
            f"{name} cannot be kept in a rule file: "
            "use the scores, risks and poolings of agreestop, or derive from KeptInFiles."
        )
    if KEPT[name] is not kind:
        raise InputError(
            f"{kind} has the name of {KEPT[name]}, by which rule files know a class: rename it."
        )
    kept = [field.name for field in fields(value) if field.init]
    return {"type": name, **{one: _encode(getattr(value, one), arrays) for one in kept}}


def _read_content(content: bytes, position: int) -> Any:
    """The object in a header of `position` bytes and the arrays after it."""
    header = json.loads(content[:position])
    arrays = []
    for entry in header["arrays"]:
        if entry["dtype"] not in DTYPES:
            raise ValueError(f"array of type {entry['dtype']}")
        dtype, shape = np.dtype(entry["dtype"]), tuple(map(int, entry["shape"]))
        count = math.prod(shape)
        arrays.append(np.frombuffer(content, dtype, count, position).reshape(shape).copy())
        position += count * dtype.itemsize
    if position != len(content):
        raise ValueError(f"{len(content) - position} bytes too many")
    return _decode(header["rule"], arrays)


def _decode(value: Any, arrays: list[NDArray[Any]]) -> Any:
    """The value that `_encode` made JSON of."""
    match value:
        case list():
            return tuple(_decode(item, arrays) for item in value)
        case int() if abs(value) >= 2**63:
            raise ValueError("a number of more than 63 bits")
        case {"type": name, **given}:
            return _build(name, {str(one): _decode(item, arrays) for one, item in given.items()})
        case dict():
            ((kind, content),) = value.items()
            return arrays[content] if kind == "array" else READERS[kind](content)
    return value


def _build(name: str, given: dict[str, Any]) -> Any:
    """An object of a known class, whose fields have the types that the class declares."""
    if name in OLD and not (
        name in KEPT and {one.name for one in fields(KEPT[name])} >= set(given)
    ):
        return OLD[name](**given)
    if name not in KEPT:
        raise ValueError(f"{shortened(name)} is not known: import the module that defines it")
    for field in fields(KEPT[name]):
        if field.name in given and not _fits(given[field.name], field.type):
            kind = type(given[field.name]).__name__
            raise ValueError(f"{field.name} of {name} is of type {kind}")
    return KEPT[name](**given)


def _fits(value: object, hint: Any) -> bool:
    """Whether a decoded value is of the type that a dataclass declares for its field."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in arguments)
    if origin in (tuple, Sequence):
        return isinstance(value, tuple) and all(_fits(item, arguments[0]) for item in value)
    if origin is np.ndarray:
        scalar = get_args(arguments[1])[0]
        return isinstance(value, np.ndarray) and np.issubdtype(value.dtype, scalar)
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    return not isinstance(hint, type) or isinstance(value, hint)
