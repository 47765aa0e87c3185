"""Rule files: a calibrated rule in one file that any later run can decide with.

    line 1      agreestop-rule <format> <bytes of the header> <sha256 of all that follows this line>
    header      JSON that a person can read: the guarantee in words, n, versions, settings, type and shape of each array
    arrays      raw little-endian bytes

Loading builds only classes that are marked as `KeptInFiles`, from plain values and arrays. It runs no code from the file, and refuses
a file that is truncated, altered, foreign or newer.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from fractions import Fraction
from functools import cache
from os import PathLike
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import numpy as np
from numpy.typing import NDArray

from agreestop.common import InputError, atomic_writer, read_file
from agreestop.common.files import MOST_BYTES

from .levels import as_fraction
from .schedules import Schedule

LONGEST_LINE = 200  # characters of the first line, so that its numbers have few digits
MAGIC = "agreestop-rule"
FORMAT = 3  # format 2, of agreestop 0.2, had no kth_values, and format 1 no ensemble_digest, class_names or ids; such files still load
UNREADABLE = (ValueError, KeyError, TypeError, IndexError, AttributeError, ArithmeticError, RecursionError, AssertionError)
DTYPES = ("<f8", "<f4", "<i8", "<u8", "|b1")

_KNOWN: dict[str, type[Any]] = {}

Kind = TypeVar("Kind")
Built = TypeVar("Built")


class KeptInFiles:
    """A base of dataclasses whose objects may be kept in rule files, under the name of the class. It must be named for each class."""

    def __init_subclass__(cls) -> None:
        if KeptInFiles in cls.__bases__:
            _KNOWN[cls.__name__] = cls


def write_rule_file(path: str | PathLike[str], rule: object, summary: dict[str, Any]) -> None:
    """Write an object of a known class, whole or not at all; the header begins with the summary, for people to read."""
    arrays: list[NDArray[Any]] = []
    body = _encode(rule, arrays)
    header = {
        **summary,
        "versions": _versions(),
        "rule": body,
        "arrays": [{"dtype": array.dtype.str, "shape": list(array.shape)} for array in arrays],
    }
    try:
        text = _readable(header).encode() + b"\n"
        content = text + b"".join(array.tobytes() for array in arrays)
        _read_content(content, len(text), type(rule))  # nothing is written that could not be read again
    except UNREADABLE as error:
        raise InputError(f"the {type(rule).__name__} cannot be kept in a file ({error}): change its settings.") from None
    if len(content) > MOST_BYTES - LONGEST_LINE:
        raise InputError(f"the {type(rule).__name__} takes {len(content):,} bytes, and files have at most {MOST_BYTES:,}: use fewer rows.")
    line = f"{MAGIC} {FORMAT} {len(text)} {hashlib.sha256(content).hexdigest()}\n"
    with atomic_writer(path) as stream:
        stream.write(line.encode() + content)


@cache
def _versions() -> dict[str, str]:
    """Versions of the software. They are read once, so that a process goes on saving while the package is replaced."""
    from importlib.metadata import version  # slow to import, and only saving needs it

    return {"agreestop": version("agreestop"), "numpy": np.__version__}


def _readable(header: dict[str, Any]) -> str:
    """Indented JSON in which a list of plain values stands on one line."""
    text = json.dumps(header, indent=1, ensure_ascii=False, allow_nan=False)
    # A line break follows the bracket of a list, and never stands in a string.
    return re.sub(r"\[\n[^\[\]{}\"]*\]", lambda found: " ".join(found[0].split()), text)


def read_rule_file(path: str | PathLike[str], kind: type[Kind], build: Callable[[Kind], Built]) -> Built:
    """Read an object of that class. What is not a whole and unaltered rule file of a known format is refused with a sentence.

    `build` makes what is returned of the object, and raises an error for one that cannot work.
    """
    raw = read_file(path, "check the path, or calibrate a rule first")
    line, _, content = raw.partition(b"\n")
    words = line.decode("ascii", "replace").split(" ")
    if words[0] != MAGIC:
        raise InputError(f"{path} is not an agreestop rule file: give one that `save` or `agreestop calibrate` wrote.")
    if len(words) != 4 or len(line) > LONGEST_LINE or not words[1].isdigit() or not words[2].isdigit() or int(words[1]) < 1:
        raise InputError(f"{path} has a damaged first line: calibrate the rule again.")
    if int(words[1]) > FORMAT:
        raise InputError(f"{path} has rule format {words[1]} and this agreestop reads up to {FORMAT}: install a newer agreestop.")
    if hashlib.sha256(content).hexdigest() != words[3]:
        raise InputError(f"{path} was truncated or altered (its checksum does not match): copy it again, or calibrate the rule again.")
    try:
        return build(_read_content(content, int(words[2]), kind))
    except InputError:
        raise
    except UNREADABLE as error:
        raise InputError(f"{path} does not hold a rule that can be built ({error}): calibrate the rule again.") from None


def _encode(value: Any, arrays: list[NDArray[Any]]) -> Any:
    """Plain JSON for settings; an array is added to `arrays`, and the JSON holds its number."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"number": str(value)}
    if isinstance(value, Fraction):
        return {"fraction": str(value)}
    if isinstance(value, Schedule):
        return {"schedule": [list(look) for look in value.looks]}
    if isinstance(value, tuple):
        return [_encode(item, arrays) for item in value]
    if isinstance(value, np.ndarray):
        arrays.append(np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<")))
        return {"array": len(arrays) - 1}
    if is_dataclass(value) and type(value).__name__ in _KNOWN:
        content = {field.name: _encode(getattr(value, field.name), arrays) for field in fields(value) if field.init}
        return {"type": type(value).__name__, **content}
    raise InputError(f"{type(value).__name__} cannot be kept in a rule file: use the scores, risks and poolings of agreestop.")


def _read_content(content: bytes, header_size: int, kind: type[Kind]) -> Kind:
    header = json.loads(content[:header_size])
    arrays, position = [], header_size
    for entry in header["arrays"]:
        if entry["dtype"] not in DTYPES:
            raise ValueError(f"array of type {entry['dtype']}")
        dtype, shape = np.dtype(entry["dtype"]), tuple(int(size) for size in entry["shape"])
        count = math.prod(shape)
        arrays.append(np.frombuffer(content, dtype, count, position).reshape(shape).copy())
        position += count * dtype.itemsize
    if position != len(content):
        raise ValueError(f"{len(content) - position} bytes too many")
    value = _decode(header["rule"], arrays)
    if not isinstance(value, kind):
        raise ValueError(f"a {type(value).__name__}, where a {kind.__name__} is needed")
    return value


def _decode(value: Any, arrays: list[NDArray[Any]]) -> Any:
    if isinstance(value, list):
        return tuple(_decode(item, arrays) for item in value)
    if not isinstance(value, dict):
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ValueError("a number of more than 63 bits")
        return value
    if "type" in value:
        build = _KNOWN[value["type"]]
        parts = {name: _decode(item, arrays) for name, item in value.items() if name != "type"}
        for field in fields(build):
            if field.name in parts and not _fits(parts[field.name], field.type):
                raise ValueError(f"{field.name} of {build.__name__} is of type {type(parts[field.name]).__name__}")
        return build(**parts)
    ((kind, content),) = value.items()
    if kind == "array":
        return arrays[content]
    if kind == "fraction":
        return as_fraction(content)
    if kind == "number":
        return float(content)
    if kind == "schedule":
        return Schedule(content)
    raise ValueError(f"unknown entry {kind}")


def _fits(value: object, hint: Any) -> bool:
    """Whether a decoded value is of the type that a dataclass declares for its field."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in arguments)
    if origin in (tuple, Sequence):
        return isinstance(value, tuple) and all(_fits(item, arguments[0]) for item in value)
    if origin is np.ndarray:
        return isinstance(value, np.ndarray) and np.issubdtype(value.dtype, get_args(arguments[1])[0])
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if getattr(hint, "_is_protocol", False):
        needed = [name for base in hint.__mro__ if getattr(base, "_is_protocol", False) for name in vars(base) if name[0] != "_"]
        return all(hasattr(value, name) for name in needed)
    return not isinstance(hint, type) or isinstance(value, hint)
