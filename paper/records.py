"""Records of the paper's figures, as written to `results/figN/numbers.json`: one rule on one
ensemble at one point of the x-axis.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from agreestop.common import InputError, atomic_writer

SWEPT = {
    "target": "target p",
    "K": "members K",
    "r": "exponent r",
    "n": "calibration examples n",
    "": "",
}
"""What varies along the x-axis, in words; "" for a figure of one setting."""


@dataclass(frozen=True)
class FigureRecord:
    """Means over realisations and their standard errors; latency is the mean stopping time over T.

    coverage_se and latency_se are over realisations of one pool. coverage_pool_se and
    latency_pool_se take in that another pool would give other figures; None where that was not
    measured, or where the pool is too small to leave rows out.

    label        the rule in words
    family       "paper", "ours", "fixed" for one time for all inputs, or "baseline" for rules
                 without a guarantee
    rule         its stable name, such as "stop-aware"
    r            the exponent of its pooling, where the figure fixes it; in files, infinity is "inf"
                 or "-inf"
    checkpoints  "few", four of them, or "every" step
    K, target, n members, promised coverage and calibration examples
    x            the value of what is swept; None for a rule that does not depend on it
    default      whether this is the setting that all figures share
    vacuous      there are too few examples for the rule to ever exclude a class: it answers all of
                 them at T
    shape        what tuning chose, where the rule was tuned
    """

    data: str
    simulated: bool
    ensemble: str
    label: str
    family: str
    rule: str
    r: float | None
    checkpoints: str
    K: int
    target: float
    n: int
    x: float | None
    default: bool
    coverage: float
    coverage_se: float
    latency: float
    latency_se: float
    set_size: float
    realisations: int
    vacuous: bool = False
    shape: str | None = None
    coverage_pool_se: float | None = None
    latency_pool_se: float | None = None

    @property
    def coverage_error(self) -> float:
        """The standard error that a claim about coverage is judged by: for the draw of the pool,
        where it is known.
        """
        return self.coverage_se if self.coverage_pool_se is None else self.coverage_pool_se

    @property
    def interval_of(self) -> str:
        """What the intervals of the record are about."""
        return "over realisations" if self.coverage_pool_se is None else "for the draw of the pool"

    @property
    def latency_error(self) -> float:
        """The same for latency."""
        return self.latency_se if self.latency_pool_se is None else self.latency_pool_se


def as_plain(record: FigureRecord) -> dict[str, Any]:
    """A record for JSON, which has no infinity."""
    return {
        name: str(value) if isinstance(value, float) and math.isinf(value) else value
        for name, value in asdict(record).items()
    }


def from_plain(content: Mapping[str, Any]) -> FigureRecord:
    """The record that `as_plain` wrote; raises TypeError or KeyError if fields are missing."""
    values = {
        entry.name: content[entry.name]
        for entry in fields(FigureRecord)
        if entry.name in content or entry.default is MISSING
    }
    for name in ("r", "x"):
        if isinstance(values[name], str):
            values[name] = float(values[name])
    return FigureRecord(**values)


@dataclass(frozen=True, eq=False)
class FigureNumbers:
    """The content of a `numbers.json`.

    figure, title  such as "fig3", and what it shows in words
    swept          a key of SWEPT
    header         how the numbers were made: command, protocol, sources, notes, versions
    """

    figure: str
    title: str
    swept: str
    header: Mapping[str, Any]
    records: tuple[FigureRecord, ...]


def save_numbers(path: Path, numbers: FigureNumbers) -> None:
    """Write `numbers.json`, completely or not at all."""
    known = {name: getattr(numbers, name) for name in ("figure", "title", "swept")}
    content = {
        **known,
        **numbers.header,
        "records": [as_plain(record) for record in numbers.records],
    }
    with atomic_writer(path) as stream:
        stream.write(
            json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        )


def load_numbers(path: Path) -> FigureNumbers:
    """Read `numbers.json`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        records = tuple(from_plain(entry) for entry in content.pop("records"))
        known = {name: content.pop(name) for name in ("figure", "title", "swept")}
    except FileNotFoundError:
        raise InputError(f"there is no file {path}: run `python -m paper` first.") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{path} is not a complete file of `python -m paper` ({error}): run it again."
        ) from None
    return FigureNumbers(**known, header=content, records=records)
