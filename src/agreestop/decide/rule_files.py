"""Rule files: a calibrated rule in one file that any later run can decide with.

    line 1      agreestop-rule <format> <bytes of the header> <sha256 of all that follows this line>
    header      JSON that a person can read: the guarantee in words, n, versions, settings, where each array lies
    arrays      raw little-endian bytes

Loading builds only the classes listed here, from plain values and arrays. It runs no code from the file, and refuses a file that is
truncated, altered, foreign or newer.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agreestop.common.errors import InputError
from agreestop.common.files import atomic_writer

from .agree_stop import AgreeStop
from .calibrated import CalibratedRule
from .confidence_rules import DCSNN, SEENN
from .learned_risk import LearnedRisk
from .policies import (
    CheckpointThresholds,
    ConfidenceThreshold,
    MemberVotes,
    MergedPValues,
    RankPooling,
    RiskThreshold,
    RunningThreshold,
    StoppingThreshold,
)
from .pooling import MajorityVote, MergeConfidence, MergePValues, MergeRanks
from .ranking import MergedRanks, PooledRanks
from .risks import ShapedRisk, TopMass
from .scores import LogLoss, Shaped, Spread, Temperature, TuningRanks
from .spikecp import SpikeCP
from .tuned_rows import TunedRows

MAGIC = "agreestop-rule"
FORMAT = 1
DTYPES = ("<f8", "<i8", "<u8", "|b1")

_KNOWN: dict[str, Callable[..., Any]] = {
    kind.__name__: kind
    for kind in (
        *(SpikeCP, AgreeStop, DCSNN, SEENN),
        *(MergeConfidence, MergePValues, MergeRanks, MajorityVote),
        *(LogLoss, Temperature, TuningRanks, Spread, Shaped, TopMass, LearnedRisk, ShapedRisk, TunedRows),
        *(CheckpointThresholds, MemberVotes, MergedPValues, RankPooling, RunningThreshold, StoppingThreshold),
        *(RiskThreshold, ConfidenceThreshold, MergedRanks, PooledRanks, CalibratedRule),
    )
}


def save_rule(calibrated: CalibratedRule, path: str | PathLike[str]) -> None:
    """Write a calibrated rule, whole or not at all."""
    from importlib.metadata import version  # slow to import, and only saving needs it

    arrays: list[NDArray[Any]] = []
    body = _encode(calibrated, arrays)
    header = {
        "guarantee": calibrated.guarantee,
        "calibration_examples": calibrated.n,
        "members": calibrated.members,
        "classes": calibrated.classes,
        "data_fingerprint": calibrated.fingerprint,
        "versions": {"agreestop": version("agreestop"), "numpy": np.__version__},
        "rule": body,
        "arrays": [{"dtype": array.dtype.str, "shape": list(array.shape)} for array in arrays],
    }
    text = _readable(header).encode() + b"\n"
    content = text + b"".join(array.tobytes() for array in arrays)
    line = f"{MAGIC} {FORMAT} {len(text)} {hashlib.sha256(content).hexdigest()}\n"
    with atomic_writer(path) as stream:
        stream.write(line.encode() + content)


def _readable(header: dict[str, Any]) -> str:
    """Indented JSON in which a list of plain values stands on one line."""
    text = json.dumps(header, indent=1, ensure_ascii=False, allow_nan=False)
    return re.sub(r"\[[^\[\]{}\"]*\]", lambda found: " ".join(found[0].split()), text)


def load_rule(path: str | PathLike[str]) -> CalibratedRule:
    """Read a calibrated rule. Refuses, with a sentence, what is not a whole and unaltered rule file of a known format."""
    try:
        raw = Path(path).read_bytes()
    except FileNotFoundError:
        raise InputError(f"there is no file {path}: check the path, or calibrate a rule first.") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}.") from None
    line, _, content = raw.partition(b"\n")
    words = line.decode("ascii", "replace").split(" ")
    if words[0] != MAGIC:
        raise InputError(f"{path} is not an agreestop rule file: give one that `save` or `agreestop calibrate` wrote.")
    if len(words) != 4 or not words[1].isdigit() or not words[2].isdigit() or int(words[1]) < 1:
        raise InputError(f"{path} has a damaged first line: calibrate the rule again.")
    if int(words[1]) > FORMAT:
        raise InputError(f"{path} has rule format {words[1]} and this agreestop reads up to {FORMAT}: install a newer agreestop.")
    if hashlib.sha256(content).hexdigest() != words[3]:
        raise InputError(f"{path} was truncated or altered (its checksum does not match): copy it again, or calibrate the rule again.")
    try:
        return _Reader.of(content, int(words[2])).rule()
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InputError(f"{path} does not hold a rule that can be built ({error}): calibrate the rule again.") from None


def _encode(value: Any, arrays: list[NDArray[Any]]) -> Any:
    """Plain JSON for settings; arrays go to `arrays` and leave their number."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"number": str(value)}
    if isinstance(value, Fraction):
        return {"fraction": str(value)}
    if isinstance(value, tuple):
        return [_encode(item, arrays) for item in value]
    if isinstance(value, np.ndarray):
        arrays.append(np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<")))
        return {"array": len(arrays) - 1}
    if is_dataclass(value) and type(value).__name__ in _KNOWN:
        content = {field.name: _encode(getattr(value, field.name), arrays) for field in fields(value)}
        return {"type": type(value).__name__, **content}
    raise InputError(f"{type(value).__name__} cannot be kept in a rule file: use the scores, risks and poolings of agreestop.")


@dataclass(frozen=True)
class _Reader:
    arrays: list[NDArray[Any]]
    body: Any

    @classmethod
    def of(cls, content: bytes, header_size: int) -> _Reader:
        header = json.loads(content[:header_size])
        arrays, place = [], header_size
        for entry in header["arrays"]:
            if entry["dtype"] not in DTYPES:
                raise ValueError(f"array of type {entry['dtype']}")
            dtype, shape = np.dtype(entry["dtype"]), tuple(int(size) for size in entry["shape"])
            count = math.prod(shape)
            arrays.append(np.frombuffer(content, dtype, count, place).reshape(shape).copy())
            place += count * dtype.itemsize
        if place != len(content):
            raise ValueError(f"{len(content) - place} bytes too many")
        return cls(arrays, header["rule"])

    def rule(self) -> CalibratedRule:
        value = self.decode(self.body)
        if not isinstance(value, CalibratedRule):
            raise ValueError("no calibrated rule in it")
        return value

    def decode(self, value: Any) -> Any:
        if isinstance(value, list):
            return tuple(self.decode(item) for item in value)
        if not isinstance(value, dict):
            return value
        if "type" in value:
            build = _KNOWN[value["type"]]
            return build(**{name: self.decode(item) for name, item in value.items() if name != "type"})
        ((kind, content),) = value.items()
        if kind == "array":
            return self.arrays[content]
        if kind == "fraction":
            return Fraction(content)
        if kind == "number":
            return float(content)
        raise ValueError(f"unknown entry {kind}")
