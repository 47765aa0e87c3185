"""What a report shows, as plain data: collected from scores and records, then drawn and laid out by the other modules.

This module needs neither matplotlib nor jinja2.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from agreestop.common import Floats
from agreestop.decide.decisions import Estimate
from agreestop.engines.early_stopping import TimeSaved

from .records import MeasurementSettings, Record
from .summary import EnsembleSummary


@dataclass(frozen=True)
class GroupCoverage:
    """Coverage in a group of inputs: those that stopped at certain times, or those of one class.

    inputs    the number of inputs in one realisation, on average
    coverage  with Wilson's interval, in which every input of the pool counts once, however many realisations tested it
    """

    name: str
    inputs: float
    coverage: Estimate


@dataclass(frozen=True)
class Breakdown:
    """The coverage of one rule by groups, over all realisations; `lowest` and `highest` are those of single realisations.

    ties  the share of answers of the first realisation that name one class and leave out another with the same pooled confidence
    """

    overall: Estimate
    lowest: float
    highest: float
    ties: float
    by_time: tuple[GroupCoverage, ...]
    by_class: tuple[GroupCoverage, ...]


@dataclass(frozen=True)
class ClassSet:
    """Which of the C classes are in a set. It holds all classes and is `tied` while the scores do not tell the classes apart."""

    kept: tuple[bool, ...]
    tied: bool


@dataclass(frozen=True, eq=False)
class Moment:
    """One input at one time: a picture (planes, H, W) of it so far, the set of each member, and the set of all members together."""

    time: float
    picture: Floats
    members: tuple[ClassSet, ...]
    together: ClassSet


@dataclass(frozen=True, eq=False)
class Example:
    """One input until it stops: why it was chosen, its row in the pool, its true class, and moments up to its stop.

    whole  a picture (planes, H, W) of the input up to T
    """

    why: str
    row: int
    label: int
    hit: bool
    moments: tuple[Moment, ...]
    whole: Floats

    @property
    def stop_time(self) -> float:
        return self.moments[-1].time


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples of one realisation and its coverage; `meaning` says in words what a member's set is, `legend` what each colour is."""

    shown: tuple[Example, ...]
    meaning: str
    coverage: float
    legend: tuple[str, ...]


@dataclass(frozen=True)
class Accuracy:
    """How often the most confident class was right at a time: for single members (mean, least, greatest), and for their average."""

    time: float
    mean: float
    least: float
    greatest: float
    together: float


@dataclass(frozen=True, eq=False)
class Section:
    """The results of one ensemble, whose name is empty where there is only one. `settings` say how it was made.

    saved  the time that early stopping saved, where the members were run
    """

    name: str
    records: tuple[Record, ...]
    summary: EnsembleSummary
    breakdown: Breakdown
    accuracies: tuple[Accuracy, ...]
    classes: tuple[str, ...]
    examples: Examples | None = None
    saved: TimeSaved | None = None
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, eq=False)
class Report:
    """A whole report.

    kind         the kind of inputs in two words, such as "simulated events"; the first word is "simulated" where a simulator made them
    description  where the inputs come from, in a sentence
    n_tuning     inputs that rules were tuned on; n_pool: inputs that were divided into calibration and test
    command      the command that writes this report again
    notes        further sentences for the fine print
    """

    name: str
    kind: str
    description: str
    measured: MeasurementSettings
    n_tuning: int
    n_pool: int
    sections: Sequence[Section]
    command: str
    versions: tuple[tuple[str, str], ...]
    settings: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def simulated(self) -> bool:
        return self.kind.startswith("simulated")


def versions(*packages: str) -> tuple[tuple[str, str], ...]:
    """The version of Python, and of those of the packages that are installed."""
    found = [("Python", ".".join(str(part) for part in sys.version_info[:3]))]
    for package in packages:
        try:
            found.append((package, version(package)))
        except PackageNotFoundError:
            continue
    return tuple(found)


def in_words(settings: Any) -> tuple[tuple[str, str], ...]:
    """The names and values of a dataclass of settings, as text."""
    return tuple((name.replace("_", " "), _value_in_words(value)) for name, value in asdict(settings).items())


def _value_in_words(value: object) -> str:
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        return ", ".join(_value_in_words(entry) for entry in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
