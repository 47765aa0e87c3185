"""Short reprs: what a rule, score or risk was given and differs from the default, with long arrays and lists of times shortened.

AgreeStop(target=0.9, checkpoints=range(1, 81), max_set_size=1)
SpikeCP(target=0.95, checkpoints=(20, 40, 60, 80), max_set_size=3, pooling=MergeConfidence(r=1.0), calibration='stop-aware')
"""

from collections.abc import Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from .levels import in_words
from .schedules import Schedule

LONGEST = 6  # values of a sequence that are all shown


def short_repr(rule: Any) -> str:
    """The repr of a rule, or of a score or risk in it. What tuning fills in beside its result, such as the rows it used, is left out."""
    given = {field.name: getattr(rule, field.name) for field in fields(rule) if field.name not in ("times", "tuned", "rows")}
    if given.get("gate") is not None:
        given.pop("risk", None)  # that of the gate
    words = {name: _short(value) for name, value in given.items()}
    defaults = {field.name: _default(field) for field in fields(rule)}
    return f"{type(rule).__name__}({', '.join(f'{name}={text}' for name, text in words.items() if text != defaults[name])})"


def _default(field: Field[Any]) -> str | None:
    """The default of a field in short words; None where it has none."""
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return None if default is MISSING else _short(default)


def _short(value: Any) -> str:
    if is_dataclass(value) and value.__dataclass_params__.repr:  # type: ignore[union-attr]
        return short_repr(value)
    if isinstance(value, Fraction):
        return in_words(value)
    if isinstance(value, np.ndarray):
        return f"array {value.shape}"
    if isinstance(value, (tuple, list)) and not isinstance(value, Schedule):
        return _short_sequence(value)
    return repr(value)


def _short_sequence(values: Sequence[Any]) -> str:
    """A sequence of numbers: whole where it is short, as a range where it is one, else its first and last values."""
    if len(values) <= LONGEST:
        return repr(tuple(values))
    if all(isinstance(value, int) for value in values) and len(set(np.diff(values).tolist())) == 1:
        return repr(range(values[0], values[-1] + 1, values[1] - values[0]))
    return f"({values[0]!r}, {values[1]!r}, …, {values[-1]!r})"
