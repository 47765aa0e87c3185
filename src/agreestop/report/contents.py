"""What a report shows, as plain data: gathered by the experiments, drawn and laid out here.

Nothing here needs matplotlib or jinja2, so that gathering does not either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agreestop.common.arrays import Integers
from agreestop.decide.decisions import Estimate
from agreestop.engines.early_stopping import TimeSaved

from .records import Record
from .verdict import Verdict


@dataclass(frozen=True)
class Share:
    """Coverage among some of the inputs: those that stopped at these times, or those of a class.

    inputs    how many there are in one realisation, on average
    coverage  with Wilson's interval, in which every input of the pool counts once, however many realisations tested it
    """

    name: str
    inputs: float
    coverage: Estimate


@dataclass(frozen=True)
class Breakdown:
    """How the coverage of one rule splits, over all realisations; `lowest` and `highest` are those of single realisations.

    ties is the share of answers of the first realisation that name one class and leave out another with the same pooled confidence.
    """

    overall: Estimate
    lowest: float
    highest: float
    ties: float
    by_time: tuple[Share, ...]
    by_class: tuple[Share, ...]


@dataclass(frozen=True)
class ClassSet:
    """Which of the C classes are in a set: all of them, and `tied`, where the scores do not tell the classes apart yet."""

    kept: tuple[bool, ...]
    tied: bool


@dataclass(frozen=True, eq=False)
class Moment:
    """One input at one time: its ON and OFF events so far, (2, H, W), the members' sets, and the set of all of them together."""

    time: float
    events: Integers
    members: tuple[ClassSet, ...]
    together: ClassSet


@dataclass(frozen=True, eq=False)
class Example:
    """One input until it stops: why it was chosen, its row in the pool, its true class, and moments up to its stop.

    all_events  (2, H, W), those of the whole input, to T
    """

    why: str
    row: int
    label: int
    hit: bool
    moments: tuple[Moment, ...]
    all_events: Integers

    @property
    def stop_time(self) -> float:
        return self.moments[-1].time


@dataclass(frozen=True, eq=False)
class Strip:
    """Examples of one realisation; `meaning` says in words what a member's set is."""

    examples: tuple[Example, ...]
    meaning: str
    coverage: float


@dataclass(frozen=True)
class Accuracy:
    """How often the most confident class was right at a time: members one by one (mean, least, greatest), and their average."""

    time: float
    mean: float
    least: float
    greatest: float
    together: float


@dataclass(frozen=True, eq=False)
class Section:
    """All there is to say about one ensemble, whose name is empty where there is one only. `settings` are how it was made.

    saved is what stopping early truly saved, where the members were run so.
    """

    name: str
    records: tuple[Record, ...]
    verdict: Verdict
    breakdown: Breakdown
    accuracies: tuple[Accuracy, ...]
    classes: tuple[str, ...]
    strip: Strip | None = None
    saved: TimeSaved | None = None
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Measured:
    """The protocol in numbers: I_th, n, realisations, and the sizes of the tuning split and the pool."""

    max_set_size: int
    n_calibration: int
    realisations: int
    n_tuning: int
    n_pool: int


@dataclass(frozen=True, eq=False)
class Report:
    """A whole report.

    kind         what was watched, in two words, such as "simulated events"; the first is "simulated" wherever that is so
    description  where the inputs come from, in a sentence
    command      what writes this report again
    notes        further sentences for the fine print
    """

    name: str
    kind: str
    description: str
    measured: Measured
    sections: Sequence[Section]
    command: str
    versions: tuple[tuple[str, str], ...]
    settings: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def simulated(self) -> bool:
        return self.kind.startswith("simulated")
